"""Which file imports which: read from the code, without running it."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("commands", "modeling_scalar", "gallery", "search", "trainer", "eval", "hub_cards")
"""The folders of the wheel that hold its code."""
_PACKAGE = "scalar_retrieval."


def files_of(rooms: tuple[str, ...] = ROOMS) -> list[Path]:
    return [path for room in rooms for path in sorted((ROOT / room).rglob("*.py"))]


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@cache
def statements(path: Path, later: bool = True) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """The import statements of a file that run with it, and with `later` those that run in functions or never."""
    return tuple(_statements(ast.parse(path.read_text(encoding="utf-8")), later))


def _statements(node: ast.AST, later: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):  # holds no statement
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not later:
            continue
        if _is_for_types(child) and not later:
            continue
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        yield from _statements(child, later)


def modules(path: Path, statement: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Full names of what a statement imports, which may be modules or members of one; those of the project begin with
    their room."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            yield alias.name.removeprefix(_PACKAGE)
        return
    package = path.relative_to(ROOT).parent.parts
    parts = list(package[: len(package) - statement.level + 1]) if statement.level else []
    if statement.module:
        parts.append(statement.module)
    module = ".".join(parts)
    yield module.removeprefix(_PACKAGE)
    for alias in statement.names:
        yield f"{module}.{alias.name}".removeprefix(_PACKAGE)


def _files(module: str) -> Iterator[Path]:
    """The files that importing a module runs: those of the packages around it, and its own."""
    place = ROOT
    for part in module.split("."):
        place = place / part
        for path in (place / "__init__.py", place.with_suffix(".py")):
            if path.exists():
                yield path


@cache
def imported_files(path: Path, later: bool = False) -> frozenset[Path]:
    """The files of the project that a file imports; with `later` also those that it imports in functions or for
    annotations."""
    found = set()
    for statement in statements(path, later):
        for module in modules(path, statement):
            if module.split(".")[0] in ROOMS:
                found.update(_files(module))
    return frozenset(found - {path})


def _has_code(path: Path) -> bool:
    return any(not isinstance(node, ast.Expr) for node in ast.parse(path.read_text(encoding="utf-8")).body)


def closure(*names: str) -> set[Path]:
    """All files that importing some modules runs, without those of packages that hold a docstring alone."""
    seen: set[Path] = set()
    waiting = [path for name in names for path in _files(name)]
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += imported_files(path)
    return {path for path in seen if _has_code(path)}


def circle() -> list[Path]:
    """Files that import each other, directly or through others; none if there are no such files.

    The files of packages are left out: they import what their room shows to others."""
    graph = {}
    for path in files_of():
        if path.name != "__init__.py":
            graph[path] = {other for other in imported_files(path, later=True) if other.name != "__init__.py"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []
