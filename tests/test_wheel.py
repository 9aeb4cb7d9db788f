"""What is installed: the rooms, with all they read, and the recipes; nothing that only developers need."""

import tarfile
from zipfile import ZipFile

import pytest

from tests.conftest import ROOT
from tests.wheels import ROOMS, build_sdist, build_wheel

pytestmark = pytest.mark.e2e

READ_BY_ROOMS = (".jinja", ".html", ".json", ".md", ".safetensors", ".sql", ".txt")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The files of the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    with ZipFile(build_wheel(folder)) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed" / "scalar_retrieval"


def files_below(folder, *names):
    found = (path for name in names for path in (folder / name).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)) for path in found if "__pycache__" not in path.parts}


def test_it_holds_the_rooms_what_they_read_and_the_recipes_alone(wheel):
    expected = {name for name in files_below(ROOT, *ROOMS) if name.endswith((".py", *READ_BY_ROOMS))}
    expected |= {name for name in files_below(ROOT, "recipes") if not name.endswith(".py")}
    assert files_below(wheel, ".") == expected | {"__init__.py", "py.typed"}
    assert {"search/service/page.html", "trainer/__main__.py", "recipes/miniature.yaml"} <= expected
    assert {path.suffix or path.name for path in wheel.parent.iterdir()} == {"scalar_retrieval", ".dist-info"}


def test_an_sdist_holds_files_and_no_links_and_builds_the_same_wheel(wheel, tmp_path):
    sdist = build_sdist(tmp_path)
    with tarfile.open(sdist) as archive:
        assert all(member.isfile() or member.isdir() for member in archive)
        tops = {member.name.split("/")[1] for member in archive if "/" in member.name}
    assert {"LICENSE", "README.md", "pyproject.toml", "src"} <= tops and not {*ROOMS, "tests"} & tops
    with ZipFile(build_wheel(tmp_path, sdist)) as archive:
        built = {name: archive.read(name) for name in archive.namelist()}
    assert built == {name: (wheel.parent / name).read_bytes() for name in files_below(wheel.parent, ".")}
