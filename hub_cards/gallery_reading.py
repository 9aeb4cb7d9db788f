"""A gallery on disk as it is published: names that tell no folder of this machine, and vectors that stay on disk."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from gallery.columns import lists_of
from gallery.files import read_json
from gallery.gallery import Gallery, MediaFile, is_gallery, verify_gallery
from gallery.provenance import gallery_sha256
from gallery.windows import place_of_clip
from modeling_scalar.configuration_scalar import MODALITIES

from .hub.privacy import without_folders

DESCRIPTION = "embeddings.json"
"""The file that describes a published gallery."""
UNKNOWN = "unknown"
"""Given as the model when nobody knows which one made the vectors."""
VERSION = 1
NUM_NAMED = 10
"""How many entries of a long list are named."""

# What the card reads of `metadata` that no gallery checks.
_IN_METADATA = {"weights": dict, "source": dict, "is_encoder": bool, "benchmark": str, "split": str}
# Paths below a common folder no lower than these would begin with the names of people or disks.
_TOO_HIGH = ("/", "/home", "/Users")


def read_description(path: Path) -> dict[str, Any]:
    """Read the description of a published gallery; a ValueError names a file that is none, or of another version."""
    content = read_json(path)
    if content.get("version", VERSION) != VERSION:
        raise ValueError(f"{path} is of version {content['version']!r}; expected {VERSION}, the one read here.")
    return content


@dataclass
class PublishedRows:
    """
    What is published of a gallery; vectors are mapped, and read when they are written.

    Args:
        description (`dict`): what `embeddings.json` says of it.
        split (`str`): name of the split.
        clips (`pa.Table`), queries (`pa.Table`): the columns that are published; no queries are `None`.
        media (`dict`): the media files that are published, by their names below `media/`.
    """

    description: dict[str, Any]
    split: str
    clips: pa.Table
    queries: pa.Table | None
    media: dict[str, MediaFile] = field(default_factory=dict)

    @property
    def clip_ids(self) -> list[str]:
        """Identifiers of the clips as they are published."""
        return self.clips.column("clip_id").to_pylist()


def _check_queries(queries: pa.Table, gallery: Gallery, described: Sequence[Sequence[str]], where: Path) -> None:
    """Raise unless each query is there once, with vectors like those of clips, and describes clips, each once."""
    length, clip_ids = queries.schema.field("embedding").type.list_size, set(gallery.clip_ids)
    if length not in (gallery.dim, len(MODALITIES) * gallery.dim):
        raise ValueError(f"All lists in `embedding` of {where} must have the length {gallery.dim}, got {length}.")
    query_ids = queries.column("query_id").to_pylist()
    wrong = [name for name, clips in zip(query_ids, described, strict=True) if not clips or not clip_ids >= set(clips)]
    wrong += [name for name, clips in zip(query_ids, described, strict=True) if len(set(clips)) < len(clips)]
    wrong += [name for name, count in Counter(query_ids).items() if count > 1]
    if wrong:
        raise ValueError(
            f"`query_id` in {where} must be unique, and `clip_ids` name clips of the gallery, at least one and each "
            f"once; not so: {wrong[:NUM_NAMED]}."
        )


def _relative(path: str, folder: str | None) -> str:
    """The path below the folder that all clips share, with slashes; its name alone if it lies elsewhere."""
    inside = folder is not None and Path(path).is_relative_to(folder)
    name = (Path(path).relative_to(folder) if inside else Path(Path(path).name)).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{path!r} has a name that is not UTF-8. Rename the file, and index again.") from error
    return name


def _paths_of(gallery: Gallery) -> dict[str, str]:
    """The file of each clip that has one; windows of a file share it."""
    paths = {name: name if name in gallery.files else place_of_clip(name).path for name in gallery.clip_ids}
    return {name: path for name, path in paths.items() if path in gallery.files}


def _file_names(paths: Iterable[str], source: Path) -> tuple[dict[str, str], str | None]:
    """The name under which each file is published, and the folder that all of them share."""
    paths = set(paths)
    if not paths:
        return {}, None
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    if folder in _TOO_HIGH:
        raise ValueError(
            f"The clips of {source} share no folder but {folder!r}, so their names would tell the folders of this "
            "machine. Index what lies in one folder, and publish a gallery for each."
        )
    return {path: _relative(path, folder) for path in paths}, folder


def _kind_told(metadata: dict[str, Any]) -> str | None:
    """What kind of model made a gallery by what that tells, `None` where it does not; see [`stage_gallery`]."""
    if "adapter_model.safetensors" in (metadata.get("weights") or {}):
        return "adapter"
    return {True: "encoder", False: "model", None: None}[metadata.get("is_encoder")]


def _open(source: Path, is_known: bool) -> Gallery:
    if not is_gallery(source):
        way = (
            " `eval.embedding.embeddings.load_embeddings(FILE).save(FOLDER)` makes a gallery of a file."
            * source.is_file()
        )
        raise FileNotFoundError(f"There is no gallery in {source}.{way}")
    gallery, _ = verify_gallery(source)
    if not gallery.metadata and not is_known:
        raise ValueError(f"Nothing in {source} says which model made it. Give the model, a Hub id, or {UNKNOWN!r}.")
    for name, kind in _IN_METADATA.items():
        if not isinstance(gallery.metadata.get(name), kind | None):
            found = gallery.metadata[name]
            raise ValueError(f"`{name}` in the metadata of {source} must be a {kind.__name__}, got {found!r}.")
    if not len(gallery):
        raise ValueError(f"The gallery in {source} holds no clips.")
    return gallery


def read_gallery(source: Path, is_known: bool, media: bool) -> PublishedRows:
    """
    Read what is published of a gallery.

    Args:
        source (`Path`): any folder that [`~gallery.gallery.Gallery`] opens.
        is_known (`bool`): whether the caller says which model made it.
        media (`bool`): whether media files are published too.

    Raises:
        FileNotFoundError: there is no gallery.
        ValueError: it is damaged, rows are not as they must be, or its names would tell folders of this machine.
    """
    gallery = _open(source, is_known)
    if media and not gallery.files:
        raise ValueError(f"{source} was not made by `scalar index`, and only those know their media files.")
    presence, rows, queries = gallery.modality_mask, gallery.clips, gallery.queries
    paths = _paths_of(gallery)
    file_names, folder = _file_names(paths.values(), source)
    # Behind the file, a window has its seconds.
    names = {name: file_names[path] + name[len(path) :] for name, path in paths.items()}
    clip_ids = [names.get(name, name) for name in gallery.clip_ids]
    facts = gallery.facts()
    columns = {"clip_id": clip_ids}
    heads = [name for name in facts["columns"] if name not in MODALITIES]
    columns |= {name: rows.column(name) for name in (*MODALITIES, "presence", *heads)}
    if media:
        files = (file_names.get(paths.get(name)) for name in gallery.clip_ids)
        columns["file"] = pa.array([None if file is None else f"media/{file}" for file in files], pa.string())
    if queries is not None:
        described = lists_of(queries, "clip_ids")
        _check_queries(queries, gallery, described, source / "queries")
        if names:
            shown = pa.array([[names.get(name, name) for name in row] for row in described], pa.list_(pa.string()))
            queries = queries.set_column(queries.column_names.index("clip_ids"), "clip_ids", shown)

    def shortened(text: str) -> str:
        return without_folders(text if folder is None else text.replace(f"{folder}{os.sep}", ""))

    metadata = {name: value for name, value in gallery.metadata.items() if name not in ("left_out", "problems")}
    left_out = gallery.metadata.get("left_out")
    failed = [file for file in gallery.files.values() if file.reason is not None]
    clips = gallery.clips_of_files()  # windows of a file are there though others of it could not be read
    if left_out is not None or gallery.files:
        left_out = [{"clip_id": name, "reason": None} for name in left_out or ()] + [
            {"clip_id": _relative(file.path, folder), "reason": shortened(file.reason)}
            for file in failed
            if file.path not in clips
        ]
    problems = [
        f"{names.get(name, name)}: {shortened(problem)}"
        for name, told in gallery.problems().items()
        for problem in told
    ]
    problems += [f"{_relative(file.path, folder)}: {shortened(file.reason)}" for file in failed if file.path in clips]
    problems += [without_folders(problem) for problem in gallery.metadata.get("problems", [])]
    description = facts | {
        "num_present": dict(zip(MODALITIES, presence.sum(dim=0).tolist(), strict=True)),
        "gallery_sha256": gallery_sha256(clip_ids, presence.int().tolist()),
        "query_temperature": metadata.get("query_temperature"),
        "score_options": metadata.get("score_options"),
        "problems": problems,
        "left_out": left_out,
        "metadata": without_folders(metadata),
        "model_kind": _kind_told(metadata),
    }
    split = re.sub(r"\W+", "_", metadata.get("split") or "gallery")
    known = {name: gallery.files[path] for path, name in sorted(file_names.items())} if media else {}
    return PublishedRows(description, split, pa.table(columns), queries, known)


__all__ = ["DESCRIPTION", "NUM_NAMED", "UNKNOWN", "VERSION", "PublishedRows", "read_description", "read_gallery"]
