"""Which files are gone, and whether they were deleted: a drive that was taken away often looks the same."""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress


def is_gone(path: str) -> bool:
    """Whether there is no such file any more; an `OSError` if that cannot be told, as on a drive that fails."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # of a name that none can have
        return True
    return False


def _folders_of(paths: Iterable[str]) -> set[str]:
    """The folders that files lie in, and those above them on the same drive."""
    found: set[str] = set()
    for path in paths:
        folder = os.path.dirname(path)
        while folder not in found:
            found.add(folder)
            if not os.path.ismount(folder):
                folder = os.path.dirname(folder)
    return found


def _emptied(folder: str) -> str | None:
    """The folder itself if nothing is in it, or the nearest one above it that is there; `None` if something is."""
    with suppress(OSError, ValueError), os.scandir(folder) as entries:
        if next(entries, None) is not None:
            return None
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder


def in_doubt(gone: Sequence[str], there: Iterable[str]) -> list[str]:
    """
    Of files that are gone those that may lie on a drive that was taken away: their folder is empty, as that in which a
    drive is shown, or is gone too, and no file that is there lies below the next one above it, on the same drive.
    """
    emptied = {folder: _emptied(folder) for folder in {os.path.dirname(path) for path in gone}}
    if not any(emptied.values()):
        return []
    in_use = _folders_of(there) | {None}
    return [path for path in gone if emptied[os.path.dirname(path)] not in in_use]


__all__ = ["in_doubt", "is_gone"]
