"""The wheel and the sdist of this project, built for tests."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

ROOMS = ("commands", "eval", "gallery", "hub_cards", "modeling_scalar", "search", "trainer")
"""What is installed, beside the recipes."""

_BESIDE = ("docs", "evidence", "recipes", "src", "tests")


def _run(*command: object, **options: object) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr[-3000:]


def _copy_source(folder: Path) -> Path:
    """Copy what is built: what a build leaves behind would get into the next one."""
    source = folder / "source"
    for name in (*ROOMS, *_BESIDE):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for name in ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "train.py"):
        shutil.copy(ROOT / name, source / name)
    return source


def build_wheel(folder: Path, source: Path | None = None) -> Path:
    """Build the wheel into a folder, of this project or of an sdist."""
    command = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    _run(*command, "-w", folder, source or _copy_source(folder))
    (wheel,) = folder.glob("*.whl")
    return wheel


def build_sdist(folder: Path) -> Path:
    """Build the sdist into a folder."""
    code = f"import setuptools.build_meta; setuptools.build_meta.build_sdist({str(folder)!r})"
    _run(sys.executable, "-c", code, cwd=_copy_source(folder))
    (sdist,) = folder.glob("*.tar.gz")
    return sdist


def install(wheel: Path, folder: Path) -> Path:
    """
    Make an environment that holds the wheel and the libraries of this one, and not this project.

    Returns:
        `Path`: its folder of programs.
    """
    _run(sys.executable, "-m", "venv", "--without-pip", folder)
    programs = folder / "bin"
    # A folder that a .pth names is searched, and its own .pth files, such as that of an editable install, are not.
    (packages,) = folder.glob("lib/python*/site-packages")
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "libraries.pth").write_text("\n".join(libraries))
    command = (sys.executable, "-m", "pip", "--python", programs / "python", "install", "--quiet")
    _run(*command, "--no-deps", "--no-index", "--force-reinstall", "--no-user", wheel)
    return programs
