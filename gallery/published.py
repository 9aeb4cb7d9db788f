"""Galleries that were published on the Hub as data sets, opened by their address: `hf://datasets/USER/NAME`, and with
`@REVISION` behind it one commit, branch or tag of it.

A published gallery is a gallery. Its files have names in place of paths; those of media that were published with it
lie below its folder `media`, and are downloaded one by one, as they are asked for.
"""

import os
import re
from pathlib import Path, PurePosixPath

from huggingface_hub import cached_assets_path, hf_hub_download, snapshot_download

MEDIA = "media"
"""The folder of published media files."""

_SCHEME = re.compile(r"hf:/+")  # a `Path` keeps one slash of two
_ADDRESS = re.compile(r"hf:/+datasets/([^/@]+/[^/@]+)(?:@(.+))?")


def is_published(place: str | os.PathLike) -> bool:
    """Whether this is the address of a published gallery, and no folder."""
    return _SCHEME.match(os.fspath(place)) is not None


def name_of(place: str | os.PathLike) -> str | None:
    """The `USER/NAME` of a published gallery; `None` of a folder."""
    found = _ADDRESS.fullmatch(os.fspath(place))
    return None if found is None else found[1]


def is_from_hub(folder: Path) -> bool:
    """Whether a folder was downloaded, and belongs to the cache of the Hub."""
    return folder.parent.name == "snapshots"


def folder_of(place: str | os.PathLike) -> Path:
    """
    Return the folder of a gallery; one of the Hub is downloaded, without its media.

    Raises:
        FileNotFoundError: the Hub does not give it.
        ValueError: it begins as an address does, and is none.
    """
    if not is_published(place):
        return Path(place)
    address = os.fspath(place)
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ValueError(f"The address of a gallery is hf://datasets/USER/NAME, or with @REVISION, got {address!r}.")
    repo_id, revision = found.groups()
    try:
        return Path(snapshot_download(repo_id, repo_type="dataset", revision=revision, ignore_patterns=f"{MEDIA}/*"))
    except OSError as error:
        raise FileNotFoundError(f"The Hub does not give the gallery {repo_id}: {error}") from error


def media_of(folder: Path | None, name: str) -> str | None:
    """
    Tell where a media file of a gallery lies.

    Args:
        folder (`Path`, *optional*): of the gallery.
        name (`str`): the path of the file; of a published gallery its name.

    Returns:
        `str`: the path; of a published file that of a copy below `media`, downloaded if need be. `None` if it was not
        published, or cannot be had.
    """
    if os.path.isabs(name):
        # A stranger's gallery must not name files of this machine.
        return name if folder is None or not is_from_hub(folder) else None
    if folder is None or ".." in PurePosixPath(name).parts:
        return None
    if not is_from_hub(folder):
        path = folder / MEDIA / name
        return str(path) if path.is_file() else None
    repo_id = folder.parents[1].name.removeprefix("datasets--").replace("--", "/")
    # Not in the cache, which keeps files under names without an extension, which no browser would play.
    copies = cached_assets_path("scalar-retrieval", namespace=repo_id, subfolder=folder.name)
    path = copies / MEDIA / name
    if not path.is_file():
        try:
            hf_hub_download(repo_id, f"{MEDIA}/{name}", repo_type="dataset", revision=folder.name, local_dir=copies)
        except OSError:  # a hit is worth showing without its file
            return None
    return str(path)


__all__ = ["MEDIA", "folder_of", "is_from_hub", "is_published", "media_of", "name_of"]
