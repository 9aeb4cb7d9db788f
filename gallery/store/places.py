"""Where galleries are: folders with a manifest, and addresses on the Hub. Imports neither pyarrow nor numpy."""

import os
from pathlib import Path

from .published import folder_of

MANIFEST = "gallery.json"
COPY = "gallery-copy.json"
"""A copy of the manifest, made after each commit."""


def remedy(folder: Path) -> str:
    """What to do about a damaged gallery: the end of an error message."""
    return f"Run `scalar repair {folder}` to keep what is intact."


class DamagedFileError(ValueError):
    """A file has changed since it was written: `path` names it, and `what` is the rest of the sentence."""

    def __init__(self, path: Path, what: str, folder: Path):
        self.path = path
        self.what = what
        super().__init__(f"{path} {what}. {remedy(folder)}")


def has_lost_its_manifest(folder: Path) -> bool:
    """Whether a folder holds the copy of a manifest, but not the manifest."""
    # In this order: the first commit writes the manifest first.
    return (folder / COPY).is_file() and not (folder / MANIFEST).is_file()


def check_not_lost(folder: Path) -> None:
    """Raise a ValueError if the manifest of a gallery is missing."""
    if has_lost_its_manifest(folder):
        raise DamagedFileError(folder / MANIFEST, f"is missing, although {COPY} exists", folder)


def is_gallery(path: str | os.PathLike) -> bool:
    """Whether a folder holds embedded clips, damaged or not."""
    path = Path(path)
    return (path / MANIFEST).is_file() or has_lost_its_manifest(path)


def find_gallery(place: str | os.PathLike) -> Path:
    """
    Return the folder of a gallery, given by its path or its address; a published one is downloaded.

    Raises:
        FileNotFoundError: the folder holds no gallery, or the Hub does not provide it.
        ValueError: it is damaged, or what begins like an address is not one.
    """
    folder = Path(place) if os.path.exists(place) else folder_of(place)
    check_not_lost(folder)
    if not (folder / MANIFEST).is_file():
        raise FileNotFoundError(f"There is no gallery in {str(folder)!r}: {MANIFEST} is missing.")
    return folder


__all__ = [
    "COPY",
    "MANIFEST",
    "DamagedFileError",
    "check_not_lost",
    "find_gallery",
    "has_lost_its_manifest",
    "is_gallery",
    "remedy",
]
