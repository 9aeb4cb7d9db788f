"""The rooms and the one direction of imports between them."""

import ast
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.imports import ROOMS, ROOT, closure, statements

ALLOWED = {
    "commands": set(),
    "modeling_scalar": {"commands"},
    "gallery": {"commands", "modeling_scalar"},
    "eval": {"commands", "gallery", "modeling_scalar"},
    "trainer": {"commands", "eval", "gallery", "modeling_scalar"},
    "search": {"commands", "gallery", "modeling_scalar"},
    "hub_cards": {"commands", "eval", "gallery", "modeling_scalar"},
}
ALLOWED["evidence"] = ALLOWED["tests"] = set(ALLOWED)  # which nothing imports
# NumPy comes with transformers and carries raw frames and sound; PyAV decodes files, charset-normalizer guesses what
# subtitles are encoded in, and both may be absent.
REMOTE_CODE = {
    "torch",
    "transformers",
    "huggingface_hub",
    "numpy",
    "av",
    "charset_normalizer",
} | sys.stdlib_module_names


def imported(path: Path) -> list[tuple[int, str]]:
    """(level, module) of every import of a file, also inside functions."""
    found = []
    for statement in statements(path):
        if isinstance(statement, ast.Import):
            found += [(0, alias.name) for alias in statement.names]
        else:
            found.append((statement.level, statement.module or ""))
    return found


@pytest.mark.parametrize("room", ALLOWED)
def test_imports_go_one_way(room):
    """Inside a room they are relative; elsewhere by the full name, as a module of two names would be loaded twice."""
    files = list((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        modules = [module.split(".") for level, module in imported(path) if not level]
        others = {parts[1] for parts in modules if parts[0] == "scalar_retrieval" and len(parts) > 1}
        assert others <= ALLOWED[room], f"{path.relative_to(ROOT)} imports {others}"
        assert not {parts[0] for parts in modules} & {*ROOMS, "recipes"}, f"{path} imports a room by its bare name"


def test_a_library_does_not_change_how_ctrl_c_is_reported():
    """Programs do, by importing `scalar_retrieval.commands.interrupts`; who imports a gallery has a program of their
    own."""
    of_commands = {path.name for path in closure("gallery.gallery", "search.index_folder") if "commands" in path.parts}
    assert of_commands and "interrupts.py" not in of_commands


def test_remote_code_is_flat_and_needs_nothing_else():
    room = ROOT / "modeling_scalar"
    files = [*room.glob("*_scalar.py"), room / "modeling_beats.py"]
    assert len(files) >= 6 and not list(room.glob("*/*.py"))
    for path in files:
        for level, module in imported(path):
            if level:
                assert level == 1 and module and "." not in module, f"{path.name}: from {'.' * level}{module}"
            else:
                assert module.split(".")[0] in REMOTE_CODE | sys.stdlib_module_names, f"{path.name} imports {module}"


def test_the_constraints_hold_every_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = chain(project["dependencies"], *project["optional-dependencies"].values())
    names = {canonicalize_name(Requirement(line).name) for line in listed} - {project["name"]}
    pinned = {canonicalize_name(line.split("==")[0]) for line in (ROOT / "constraints.txt").open()}
    assert names and names <= pinned
