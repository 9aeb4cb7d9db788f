"""The rooms and the one direction of imports between them."""

import ast
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.imports import ROOT, statements

ALLOWED = {
    "commands": set(),
    "modeling_scalar": {"commands"},
    "gallery": {"commands", "modeling_scalar"},
    "eval": {"commands", "gallery", "modeling_scalar"},
    "trainer": {"commands", "eval", "gallery", "modeling_scalar"},
    "search": {"commands", "gallery", "modeling_scalar"},
    "hub_cards": {"commands", "eval", "gallery", "modeling_scalar"},  # of `eval` the reports alone, see below
}
ALLOWED["evidence"] = set(ALLOWED)  # which nothing imports
REMOTE_CODE = {"torch", "transformers", "huggingface_hub"}
# NumPy comes with transformers and carries raw frames and sound; PyAV decodes files, charset-normalizer guesses what
# subtitles are encoded in, and both may be absent. Scores name NumPy's arrays for type checkers alone.
READERS = {
    "scores_scalar.py",
    "media_scalar.py",
    "tracks_scalar.py",
    "feature_extraction_scalar.py",
    "image_processing_scalar.py",
    "processing_scalar.py",
    "image_processing_joint_scalar.py",
    "processing_joint_scalar.py",
}


def imported(path: Path, package: str = "scalar_retrieval.") -> list[tuple[int, str]]:
    """(level, module) of every import of a file, also inside functions; modules of the project begin with their
    room."""
    found = []
    for statement in statements(path):
        if isinstance(statement, ast.Import):
            found += [(0, alias.name) for alias in statement.names]
        else:
            found.append((statement.level, statement.module or ""))
    return [(level, module.removeprefix(package)) for level, module in found]


@pytest.mark.parametrize("room", ALLOWED)
def test_imports_go_one_way(room):
    files = list((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        others = {module.split(".")[0] for level, module in imported(path) if level == 0} & set(ALLOWED)
        assert others <= ALLOWED[room] | {room}, f"{path.relative_to(ROOT)} imports {others}"


def test_every_module_is_imported_by_one_name():
    """By two names it would be loaded twice, with two classes of each name."""
    files = [path for folder in (*ALLOWED, "src", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 400
    for path in files:
        names = {module.split(".")[0] for level, module in imported(path, package="") if not level}
        bare = names & {*ALLOWED, "recipes"} - {"evidence"}
        assert not bare, f"{path} imports {bare}"


def test_inside_a_room_imports_are_relative():
    for room in set(ALLOWED) - {"evidence"}:
        for path in (ROOT / room).rglob("*.py"):
            for level, module in imported(path):
                assert level or module.split(".")[0] != room, f"{path.relative_to(ROOT)} imports {module}"


def test_cards_take_of_evaluation_its_reports_alone():
    found = {module for path in (ROOT / "hub_cards").rglob("*.py") for level, module in imported(path) if not level}
    of_eval = {module for module in found if module.split(".")[0] == "eval"}
    assert of_eval and all(module.startswith("eval.reports.") for module in of_eval)


def test_a_library_does_not_change_how_ctrl_c_is_reported():
    """Programs do, by importing `scalar_retrieval.commands.interrupts`; who imports a gallery has a program of their
    own."""
    found = {module for path in (ROOT / "gallery").rglob("*.py") for _, module in imported(path)}
    assert {module for module in found if module.split(".")[0] == "commands"} == {"commands.schema", "commands.texts"}
    inner = {
        module.split(".")[0] for name in ("schema", "texts") for _, module in imported(ROOT / f"commands/{name}.py")
    }
    assert inner <= sys.stdlib_module_names and not imported(ROOT / "commands" / "__init__.py")


def test_remote_code_is_flat_and_needs_nothing_else():
    room = ROOT / "modeling_scalar"
    files = [*room.glob("*_scalar.py"), room / "modeling_beats.py"]
    assert len(files) >= 6 and not list(room.glob("*/*.py"))
    for path in files:
        for level, module in imported(path):
            if level:
                assert level == 1 and module and "." not in module, f"{path.name}: from {'.' * level}{module}"
            elif (package := module.split(".")[0]) not in REMOTE_CODE:
                is_reader = path.name in READERS and package in {"numpy", "av", "charset_normalizer"}
                assert is_reader or package in sys.stdlib_module_names, f"{path.name} imports {package}"


def test_remote_code_loads_without_a_decoder():
    """PyAV stands in a `try` at the top, where the check of imports of transformers passes over it."""
    tree = ast.parse((ROOT / "modeling_scalar" / "tracks_scalar.py").read_text(encoding="utf-8"))
    tried = [node for block in tree.body if isinstance(block, ast.Try) for node in block.body]
    assert [alias.name for node in tried for alias in node.names] == ["av"]
    assert not any("av" in [alias.name for alias in node.names] for node in tree.body if isinstance(node, ast.Import))


def test_the_constraints_hold_every_dependency():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"], *(x for extra in project["optional-dependencies"].values() for x in extra)]
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").open()}
    names = {Requirement(line).name.lower().replace("_", "-") for line in listed} - {project["name"]}
    assert names and names <= pinned
