"""The first minute of a new user: an environment with nothing but pip, the wheel and its extra, and no Hub."""

import os
import re
import shutil
import subprocess
import venv

import pytest

from tests.conftest import ROOT
from tests.wheels import build_wheel

pytestmark = pytest.mark.slow

BEST = {"a husky on a sofa": "video2.mp4", "a muscular pit bull": "video1.mp4", "a cat": "video3.mp4"}
ANSWERS = re.compile(r"^query: .*\n  1  .*", re.MULTILINE)  # each query with its best hit


DATE = re.compile("  (?:changed )?[0-9-]{10}$", re.MULTILINE)  # of the recording, or when the files were copied


def run(*command, **options):
    """Run a program and return what it printed; an AssertionError unless it ends well."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


def test_a_new_user_finds_four_clips_as_the_readme_says(tmp_path, shared_dir):
    # A new environment, in which the wheel is installed
    venv.create(tmp_path / "environment", with_pip=True)
    programs = tmp_path / "environment" / "bin"
    install = (programs / "python", "-m", "pip", "install", "--quiet")
    # First, as another version of an index may be another build.
    constraints = (ROOT / "constraints.txt").read_text()
    run(*install, re.search("^torch==.*", constraints, re.MULTILINE)[0])
    run(*install, f"{build_wheel(tmp_path)}[search]")
    shutil.copytree(shared_dir / "data" / "videos", tmp_path / "Videos")

    # A user who has neither this project nor a cache
    hidden = ("PYTHONPATH", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME")
    names = {name: value for name, value in os.environ.items() if name not in hidden}
    options = {"cwd": tmp_path, "env": names | {"HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}}
    indexed = run(programs / "scalar", "index", "Videos", "--output", "galleries/videos", **options)
    assert "4 new" in indexed.stdout and "Loading weights" not in indexed.stderr
    printed = run(programs / "scalar", "query", "galleries/videos", *BEST, "-k", "1", **options).stdout
    answers = ANSWERS.findall(DATE.sub("", printed))
    for answer, (query, best) in zip(answers, BEST.items(), strict=True):
        assert answer.startswith(f"query: {query}\n") and answer.endswith(f"  {best}")
    assert answers == ANSWERS.findall(DATE.sub("", (ROOT / "README.md").read_text(encoding="utf-8")))
