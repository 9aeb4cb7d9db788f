"""Which files are gone, and whether they were deleted: a drive that was taken away often looks the same."""

import errno
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress

_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}  # links in a circle lead to no file


def is_gone(path: str) -> bool:
    """Whether there is no such file any more; an `OSError` if that cannot be told, as on a drive that fails."""
    try:
        os.stat(path)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return True
    except ValueError:  # of a name that none can have
        return True
    return False


def _folders_in_use(paths: Iterable[str]) -> set[str]:
    """The folders in which files are there now, and those above them on the same drive."""
    found: set[str] = set()
    for path in paths:
        folder = os.path.dirname(path)
        if folder in found or not os.path.exists(path):
            continue
        while folder not in found:
            found.add(folder)
            if not os.path.ismount(folder):
                folder = os.path.dirname(folder)
    return found


def _emptied(folder: str) -> str | None:
    """The folder itself if nothing is in it, or the nearest one above it that is there, or is a link that leads
    nowhere, as to a drive; `None` if something is in it."""
    with suppress(OSError, ValueError), os.scandir(folder) as entries:
        if next(entries, None) is not None:
            return None
    while not (os.path.isdir(folder) or os.path.islink(folder)) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder


def in_doubt(gone: Sequence[str], others: Iterable[str]) -> list[str]:
    """
    Of files that are gone those that may lie on a drive that was taken away: their folder is empty, as that in which a
    drive is shown, or is gone too, and none of the others is there below the next one above it, on the same drive.
    Those, too, that are back: their drive was away while it was looked for them.

    Args:
        gone (`list[str]`): files that were not there.
        others (iterable of `str`): files that may be there. They are looked at here, and only if a folder is empty or
            gone: they may have gone with their drive since anybody saw them.
    """
    emptied = {folder: _emptied(folder) for folder in {os.path.dirname(path) for path in gone}}
    in_use = _folders_in_use(others) | {None} if any(emptied.values()) else {None}
    return [path for path in gone if emptied[os.path.dirname(path)] not in in_use or os.path.exists(path)]


__all__ = ["in_doubt", "is_gone"]
