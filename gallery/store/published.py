"""Galleries published on the Hub as data sets, opened by their address: `hf://datasets/USER/NAME`, optionally followed
by `@REVISION`, a commit, branch or tag.

A published gallery is a gallery. Its files have names instead of paths; media that were published with it are in its
folder `media`, and each file is downloaded when it is needed.
"""

import os
import re
from pathlib import Path, PurePosixPath

import huggingface_hub  # which loads what is used only when it is used

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


__all__ = ["MEDIA", "folder_of", "is_from_hub", "is_published", "lies_in_gallery", "media_of", "name_of"]
