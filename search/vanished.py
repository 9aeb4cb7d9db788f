"""Which files are gone, and which of these were deleted: a drive that was taken away often looks the same. And what is
taken out of a gallery by name."""

import errno
import os
from collections.abc import Collection, Iterable

from gallery.gallery import GalleryWriter

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


def deleted(gone: Collection[str], others: Iterable[str]) -> set[str]:
    """
    Of files that are gone, those beside which other files are still there, as they would not be if a drive were away:
    in or below the nearest folder that is left, on the same drive.

    Args:
        gone (collection of `str`): files that were not there. One that is back is not deleted: its drive was away
            meanwhile.
        others (iterable of `str`): files that may be there. They are looked at after those that are gone: they may
            have gone with their drive since anybody saw them.
    """
    in_use: set[str] = set()
    for path in others if gone else ():
        folder = os.path.dirname(path)
        if folder in in_use or not os.path.exists(path):
            continue
        while folder not in in_use:
            in_use.add(folder)
            if not os.path.ismount(folder):
                folder = os.path.dirname(folder)
    return {path for path in gone if _nearest_folder(path) in in_use and not os.path.exists(path)}


def _nearest_folder(path: str) -> str:
    """The first folder above a file that is left; a link that leads nowhere is, as one to a drive."""
    folder = os.path.dirname(path)
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    return folder


def remove(writer: GalleryWriter, paths: Iterable[str | os.PathLike]) -> int:
    """
    Take the clips of files out of a gallery, and what is noted of them, whether the files are there or not.

    Args:
        writer ([`~gallery.gallery.GalleryWriter`]): the gallery; it is committed to.
        paths (iterable of `str`): files, and folders: of these, all files below them.

    Returns:
        `int`: how many clips there were.

    Raises:
        ValueError: the gallery holds nothing of a path; nothing is removed then.
    """
    gallery = writer.gallery()
    clips, found = gallery.clips_of_files(), {}
    known = {*gallery.files, *clips}
    for path in map(os.fspath, paths):
        names = {os.path.abspath(path), os.path.realpath(path)}  # a link may lead elsewhere now
        below = tuple(os.path.join(name, "") for name in names)
        inside = [file for file in known if file in names or file.startswith(below)]
        if not inside:
            raise ValueError(f"{writer.folder} holds nothing of {path!r}. `scalar info` names its files.")
        found |= dict.fromkeys(inside)
    removed = [name for file in found for name in clips.get(file, ())]
    writer.remove_clips(removed)
    writer.forget_files(found)
    writer.commit()
    return len(removed)


__all__ = ["deleted", "is_gone", "remove"]
