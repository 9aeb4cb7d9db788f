"""The rooms of the gallery: folders, and files beside them. Imports between them go one way."""

from graphlib import TopologicalSorter

from tests.imports import ROOT, imported_files

GALLERY = ROOT / "gallery"


def room_of(path):
    return path.relative_to(GALLERY).parts[0].removesuffix(".py")


def rooms():
    """The rooms that each room imports from, also inside functions."""
    found = {}
    for path in GALLERY.rglob("*.py"):
        if path == GALLERY / "__init__.py":
            continue
        others = {room_of(other) for other in imported_files(path, later=True) if other.is_relative_to(GALLERY)}
        found.setdefault(room_of(path), set()).update(others - {"__init__", room_of(path)})
    return found


def test_imports_between_rooms_go_one_way_and_are_few():
    found = rooms()
    assert "folder_searcher" in found["gallery"]
    floors = list(TopologicalSorter(found).static_order())  # raises a CycleError
    print(f"{len(found)} rooms, {sum(map(len, found.values()))} arrows: {', '.join(floors)}")
    assert len(found) <= 17 and sum(map(len, found.values())) <= 57
