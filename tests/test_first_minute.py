"""The first minute of a new user: an environment with nothing but pip, the wheel and its extra, and no Hub."""

import os
import re
import shutil
import subprocess
import venv
from urllib.request import urlopen

import pytest

from tests.conftest import ROOT
from tests.wheels import build_wheel

pytestmark = pytest.mark.slow

BEST = {"a husky on a sofa": "video2.mp4", "a muscular pit bull": "video1.mp4", "a cat": "video3.mp4"}
ANSWERS = re.compile(r"^query: .*\n  1  .*", re.MULTILINE)  # each query with its best hit


def run(*command, **options):
    """Run a program and return what it printed; an AssertionError unless it ends well."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


@pytest.fixture(scope="module")
def place(tmp_path_factory, shared_dir):
    """A folder with a new environment, in which the wheel is installed, and with four clips."""
    folder = tmp_path_factory.mktemp("first")
    venv.create(folder / "environment", with_pip=True)
    install = (folder / "environment" / "bin" / "python", "-m", "pip", "install", "--quiet")
    # First, as another version of an index may be another build.
    constraints = (ROOT / "constraints.txt").read_text()
    run(*install, re.search("^torch==.*", constraints, re.MULTILINE)[0])
    run(*install, f"{build_wheel(folder)}[search]")
    shutil.copytree(shared_dir / "data" / "videos", folder / "Videos")
    return folder


@pytest.fixture
def scalar(place):
    """The installed command, and the options of a process of a user who has neither this project nor a cache."""
    hidden = ("PYTHONPATH", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME")
    names = {name: value for name, value in os.environ.items() if name not in hidden}
    names |= {"HOME": str(place / "home"), "HF_HUB_OFFLINE": "1"}
    return place / "environment" / "bin" / "scalar", {"cwd": place, "env": names}


def test_a_new_user_indexes_searches_and_serves_four_clips(scalar):
    command, options = scalar
    indexed = run(command, "index", "Videos", "--output", "galleries/videos", **options)
    assert "4 new" in indexed.stdout and "Loading weights" not in indexed.stderr

    found = run(command, "query", "galleries/videos", *BEST, "--k", "1", **options).stdout
    answers = ANSWERS.findall(found)
    assert len(answers) == len(BEST)
    for answer, (query, best) in zip(answers, BEST.items(), strict=True):
        assert answer.startswith(f"query: {query}\n") and answer.endswith(f"  {best}")
    assert answers == ANSWERS.findall((ROOT / "README.md").read_text(encoding="utf-8"))

    serve = [str(command), "serve", "galleries/videos", "--port", "0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, **options) as serving:
        try:
            address = re.search(r"http://\S+", serving.stdout.readline())[0]
            with urlopen(address, timeout=60) as answer:
                assert "<title>" in answer.read().decode()
        finally:
            serving.terminate()
