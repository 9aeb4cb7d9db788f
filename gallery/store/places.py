"""Where galleries are: folders with a manifest, and addresses on the Hub. Imports neither pyarrow nor numpy.

A published gallery has the address `hf://datasets/USER/NAME`, optionally followed by `@REVISION`, a commit, branch or
tag. It is a gallery: its files have names instead of paths; media that were published with it are in its folder
`media`, and each file is downloaded when it is needed.
"""

import os
import re
from pathlib import Path, PurePosixPath

import huggingface_hub  # which loads what is used only when it is used

MANIFEST = "gallery.json"
COPY = "gallery-copy.json"
"""A copy of the manifest, made after each commit."""
MEDIA = "media"
"""Folder of the published media files."""

_SCHEME = re.compile(r"hf:/+")  # `Path` turns two slashes into one
_ADDRESS = re.compile(r"hf:/+datasets/([^/@]+/[^/@]+)(?:@(.+))?")


def is_published(place: str | os.PathLike) -> bool:
    """Whether this is the address of a published gallery, not a folder."""
    return _SCHEME.match(os.fspath(place)) is not None


def name_of(place: str | os.PathLike) -> str | None:
    """The `USER/NAME` of a published gallery; `None` for a folder."""
    match = _ADDRESS.fullmatch(os.fspath(place))
    return match and match[1]


def is_from_hub(folder: Path) -> bool:
    """Whether a folder was downloaded, that is, belongs to the Hub's cache."""
    return folder.absolute().parent.name == "snapshots"


def folder_of(place: str | os.PathLike) -> Path:
    """
    Return the folder of a gallery; if it is on the Hub, download it without its media.

    Raises:
        FileNotFoundError: the Hub does not provide it.
        ValueError: it begins like an address, but is not one.
    """
    if not is_published(place):
        return Path(place)
    address = os.fspath(place)
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(f"The address of a gallery is hf://datasets/USER/NAME, or with @REVISION, got {address!r}.")
    repo_id, revision = match.groups()
    try:
        folder = huggingface_hub.snapshot_download(
            repo_id, repo_type="dataset", revision=revision, ignore_patterns=f"{MEDIA}/*"
        )
    except OSError as error:
        raise FileNotFoundError(f"The gallery {repo_id} cannot be downloaded from the Hub: {error}") from error
    return Path(folder)


def lies_in_gallery(path: str | os.PathLike, folder: Path) -> bool:
    """Whether a file lies in the folder of a gallery, wherever links lead."""
    place = Path(os.path.realpath(folder))
    # Files in the Hub's cache are links to others of the same repository.
    if is_from_hub(place):
        place = place.parents[1]
    return Path(os.path.realpath(path)).is_relative_to(place)


def media_of(folder: Path | None, name: str) -> str | None:
    """
    Return the path of a media file of a gallery.

    Args:
        folder (`Path`, *optional*): folder of the gallery.
        name (`str`): the path of the file; in a published gallery, its name.

    Returns:
        `str`: the path; for a published file, that of its copy in `media`, downloaded if needed. `None` if it was not
        published or is not available.
    """
    # The path of a file of this machine, which a stranger's gallery must not name.
    is_downloaded = folder is not None and is_from_hub(folder)
    if os.path.isabs(name):
        if is_downloaded:
            return None
        return name
    if folder is None or ".." in PurePosixPath(name).parts:
        return None
    if is_downloaded:
        # Not in the cache: its file names have no extension, and browsers would not play them.
        repo_id = folder.parents[1].name.removeprefix("datasets--").replace("--", "/")
        revision = folder.name
        folder = huggingface_hub.cached_assets_path("scalar-retrieval", namespace=repo_id, subfolder=revision)
        if not (folder / MEDIA / name).is_file():
            try:
                huggingface_hub.hf_hub_download(
                    repo_id, f"{MEDIA}/{name}", repo_type="dataset", revision=revision, local_dir=folder
                )
            except OSError:  # a hit is worth showing without its file
                return None
    # Beside the gallery, or in the folder of downloaded files.
    path = folder / MEDIA / name
    if path.is_file() and lies_in_gallery(path, folder):
        return str(path)
    return None


# Folders with a manifest -----------------------------------------------------------------------------------------


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
    "MEDIA",
    "DamagedFileError",
    "check_not_lost",
    "find_gallery",
    "folder_of",
    "has_lost_its_manifest",
    "is_from_hub",
    "is_gallery",
    "is_published",
    "lies_in_gallery",
    "media_of",
    "name_of",
    "remedy",
]
