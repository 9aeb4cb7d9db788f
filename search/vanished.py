"""Which files are gone, which of them were deleted rather than on a missing drive, and the removal of clips by
file."""

import errno
import os
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalar_retrieval.gallery.gallery import GalleryWriter

_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}  # circular links lead to no file


def is_gone(path: str, hidden: tuple[str, ...] = ()) -> bool:
    """Whether a file no longer exists; an `OSError` if that is unknown, as on a failing drive, or if its path begins
    with that of a `hidden` folder, which could not be listed."""
    try:
        os.stat(path)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        if path.startswith(hidden):
            raise OSError("its folder could not be listed") from error
        return True
    except ValueError:  # no file can have this name
        return True
    return False


def deleted(gone: Collection[str], others: Iterable[str]) -> set[str]:
    """
    The files among `gone` that were deleted: other files still exist on the same drive, in or below their nearest
    existing folder. If a drive were missing, none would.

    Args:
        gone (collection of `str`): files that did not exist. One that exists again was not deleted: its drive was
            missing meanwhile.
        others (iterable of `str`): files that may exist. They are checked after those that are gone, as they may have
            disappeared with their drive since the last check.
    """
    if not gone:
        return set()
    # The folders that have files, and all those above them on the same drive
    in_use: set[str] = set()
    for path in others:
        folder = os.path.dirname(path)
        if folder in in_use or not os.path.exists(path):
            continue
        while folder not in in_use:
            in_use.add(folder)
            if not os.path.ismount(folder):
                folder = os.path.dirname(folder)
    # A file was deleted if its nearest existing folder is one of them.
    found = set()
    for path in gone:
        # A broken link counts as a folder, as it may lead to a drive.
        folder = os.path.dirname(path)
        while not os.path.lexists(folder):
            folder = os.path.dirname(folder)
        if folder in in_use and not os.path.exists(path):
            found.add(path)
    return found


def remove(writer: "GalleryWriter", paths: Iterable[str | os.PathLike]) -> int:
    """
    Remove the clips and records of files from a gallery, whether or not the files exist.

    Args:
        writer ([`~scalar_retrieval.gallery.gallery.GalleryWriter`]): the gallery; the change is committed.
        paths (iterable of `str`): files, and folders with all files below them.

    Returns:
        `int`: the number of clips removed.

    Raises:
        ValueError: the gallery has no clips of a path; nothing is removed then.
    """
    gallery = writer.gallery()
    clips = gallery.clips_of_files()
    known = {*gallery.files, *clips}
    # All files are found before any is removed.
    found = {}
    for path in map(os.fspath, paths):
        names = {os.path.abspath(path), os.path.realpath(path)}  # a link may have another target now
        below = tuple(os.path.join(name, "") for name in names)
        inside = [file for file in known if file in names or file.startswith(below)]
        if not inside:
            raise ValueError(f"{writer.folder} has no clips of {path!r}. `scalar info` names its files.")
        found |= dict.fromkeys(inside)
    removed = []
    for file in found:
        removed += clips.get(file, ())
    writer.remove_clips(removed)
    writer.forget_files(found)
    writer.commit()
    return len(removed)


__all__ = ["deleted", "is_gone", "remove"]
