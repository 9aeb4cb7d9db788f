"""The first minute of a new user: an environment with nothing but pip, the wheel and its extra, and no Hub."""

import os
import re
import shutil
import subprocess
import venv

import pytest

from evidence.archive.making import read_contents, write_file
from tests.conftest import ROOT
from tests.wheels import build_wheel

pytestmark = pytest.mark.slow

BEST = {"a husky on a sofa": "video2.mp4", "a muscular pit bull": "video1.mp4", "a cat": "video3.mp4"}
# Over the clips and an archive of speech, slides, sounds and titles: pictures, names and titles answer.
BEST_OF_ALL = {
    "a husky on a sofa": "video2.mp4",
    "a muscular pit bull": "video1.mp4",
    "an orange kitten outdoors": "video3.mp4",
    "a black cat indoors": "video4.mp4",
    "the sound of falling rain": "rain noise.mkv",
    "a marriage in Portugal": "MVI_0102.mp4",
    "making a wooden hut in a tree": "MVI_0340.mkv",
    "children learn to swim": "MVI_0777.mp4",
}
ANSWERS = re.compile(r"^query: .*\n  1  .*", re.MULTILINE)  # each query with its best hit


DATE = re.compile("  (?:changed )?[0-9-]{10}$", re.MULTILINE)  # of the recording, or when the files were copied


def run(*command, **options):
    """Run a program and return what it printed; an AssertionError unless it ends well."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


def is_synthesised(item):
    """Whether a file of the archive is speech, slides, a sound or a short video with a title, and can be made here."""
    if "speech" in item:
        return shutil.which("espeak-ng") is not None
    return "chapters" not in item and any(kind in item for kind in ("slides", "sound", "title"))


@pytest.fixture(scope="module")
def place(tmp_path_factory, shared_dir):
    """A folder with a new environment, in which the wheel is installed, with four clips, and with an archive."""
    folder = tmp_path_factory.mktemp("first")
    venv.create(folder / "environment", with_pip=True)
    install = (folder / "environment" / "bin" / "python", "-m", "pip", "install", "--quiet")
    # First, as another version of an index may be another build.
    constraints = (ROOT / "constraints.txt").read_text()
    run(*install, re.search("^torch==.*", constraints, re.MULTILINE)[0])
    run(*install, f"{build_wheel(folder)}[search]")
    shutil.copytree(shared_dir / "data" / "videos", folder / "Videos")
    for item in read_contents()["files"]:
        if is_synthesised(item):
            write_file(folder / "Archive" / item["path"], item)
    return folder


@pytest.fixture
def scalar(place):
    """The installed command, and the options of a process of a user who has neither this project nor a cache."""
    hidden = ("PYTHONPATH", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME")
    names = {name: value for name, value in os.environ.items() if name not in hidden}
    names |= {"HOME": str(place / "home"), "HF_HUB_OFFLINE": "1"}
    return place / "environment" / "bin" / "scalar", {"cwd": place, "env": names}


def asked(command, gallery, queries, options):
    """What is printed of each query and its best hit."""
    printed = run(command, "query", gallery, *queries, "-k", "1", **options).stdout
    answers = ANSWERS.findall(DATE.sub("", printed))
    assert len(answers) == len(queries)
    return answers


def test_a_new_user_finds_four_clips_as_the_readme_says(scalar):
    command, options = scalar
    indexed = run(command, "index", "Videos", "--output", "galleries/videos", **options)
    assert "4 new" in indexed.stdout and "Loading weights" not in indexed.stderr

    answers = asked(command, "galleries/videos", BEST, options)
    for answer, (query, best) in zip(answers, BEST.items(), strict=True):
        assert answer.startswith(f"query: {query}\n") and answer.endswith(f"  {best}")
    assert answers == ANSWERS.findall(DATE.sub("", (ROOT / "README.md").read_text(encoding="utf-8")))


def test_a_new_user_indexes_and_searches_clips_and_an_archive(scalar):
    command, options = scalar
    indexed = run(command, "index", "Videos", "Archive", "--output", "galleries/all", **options).stdout
    num_files = 4 + sum(map(is_synthesised, read_contents()["files"]))
    assert f"{num_files} new, 0 changed, 0 unchanged, 0 unreadable" in indexed
    assert re.search("files have sound but no transcript; --transcribe makes one", indexed)
    assert re.search('files have still pictures.*`pip install "scalar-retrieval\\[screen\\]"`', indexed)

    answers = asked(command, "galleries/all", BEST_OF_ALL, options)
    for answer, (query, best) in zip(answers, BEST_OF_ALL.items(), strict=True):
        assert answer.startswith(f"query: {query}\n") and answer.endswith(f"/{best}")
