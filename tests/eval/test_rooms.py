"""The rooms of the evaluation and the one direction of imports between them."""

from tests.imports import ROOT, modules, statements

EVAL = ROOT / "eval"
ALLOWED = {
    "metrics": set(),
    "benchmarks": set(),
    "embedding": {"benchmarks"},
    "protocol": {"benchmarks", "embedding", "metrics"},
    "reports": {"embedding", "protocol"},
    "adapters": {"embedding", "protocol"},
}


def imported_rooms(path):
    """The rooms that a file imports from, also inside functions."""
    names = [name for statement in statements(path) for name in modules(path, statement)]
    return {name.split(".")[1] for name in names if name.startswith("eval.")} & set(ALLOWED)


def test_every_folder_is_a_room_of_the_map_and_imports_go_one_way():
    rooms = {path.parent.name for path in EVAL.glob("*/__init__.py")}
    assert rooms == set(ALLOWED)
    for room in rooms:
        for path in (EVAL / room).rglob("*.py"):
            assert imported_rooms(path) <= ALLOWED[room] | {room}, path.relative_to(EVAL)
