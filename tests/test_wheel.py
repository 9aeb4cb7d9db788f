"""What is installed: the rooms, with all they read, and the recipes; nothing that only developers need."""

import tarfile
from zipfile import ZipFile

import pytest

from tests.conftest import ROOT
from tests.wheels import ROOMS, build_sdist, build_wheel

pytestmark = pytest.mark.e2e

READ_BY_ROOMS = (".jinja", ".html", ".json", ".md", ".safetensors", ".sql", ".txt")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    return build_sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist):
    """The files of the wheel that is built of the sdist; that of the project is installed in `test_elsewhere.py`."""
    with ZipFile(build_wheel(sdist.parent, sdist)) as archive:
        archive.extractall(sdist.parent / "installed")
    return sdist.parent / "installed" / "scalar_retrieval"


def files_below(folder, *names):
    found = (path for name in names for path in (folder / name).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)) for path in found if "__pycache__" not in path.parts}


def test_an_sdist_holds_files_and_no_links(sdist):
    with tarfile.open(sdist) as archive:
        assert all(member.isfile() or member.isdir() for member in archive)
        tops = {member.name.split("/")[1] for member in archive if "/" in member.name}
    assert {"LICENSE", "README.md", "pyproject.toml", "src"} <= tops and not {*ROOMS, "tests"} & tops


def test_its_wheel_holds_the_rooms_what_they_read_and_the_recipes_alone(wheel):
    expected = {name for name in files_below(ROOT, *ROOMS) if name.endswith((".py", *READ_BY_ROOMS))}
    expected |= {name for name in files_below(ROOT, "recipes") if not name.endswith(".py")}
    assert {"search/service/page.html", "trainer/__main__.py", "recipes/miniature.yaml"} <= expected
    for name in expected:
        assert (wheel / name).read_bytes() == (ROOT / name).read_bytes()
    assert files_below(wheel, ".") == expected | {"__init__.py", "py.typed"}
    assert {path.suffix or path.name for path in wheel.parent.iterdir()} == {"scalar_retrieval", ".dist-info"}
