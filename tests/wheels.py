"""The wheel of this project, built for tests."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

ROOMS = ("commands", "eval", "gallery", "hub_cards", "modeling_scalar", "search", "trainer")
"""What is installed, beside the recipes."""

_BESIDE = ("docs", "evidence", "recipes", "src", "tests")


def build_wheel(folder: Path) -> Path:
    """Build the wheel into a folder, from a copy: what a build leaves behind would get into the next one."""
    source = folder / "source"
    for name in (*ROOMS, *_BESIDE):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("LICENSE", "README.md", "pyproject.toml", "train.py"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*command, "-w", folder, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    (wheel,) = folder.glob("*.whl")
    return wheel
