"""A gallery on disk as it is published: names that tell no folder of this machine, and vectors piece by piece."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Features, List, Value

from gallery.columns import CODE_COLUMNS, CONCAT_COLUMNS, NORM_TOLERANCE, check_lists, column_of, lists_of, texts_of
from gallery.data_sets import are_data_sets
from gallery.files import read_json
from gallery.gallery import Gallery, MediaFile, is_gallery
from gallery.provenance import gallery_sha256
from gallery.storage import verify
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

_CLIPS = ("clip_id", *MODALITIES, "presence")
_DERIVED = ("gram", *CODE_COLUMNS, "code_scale", "code_error")  # of the vectors: not published
_OPTIONAL = (*CONCAT_COLUMNS, *_DERIVED, "duration", "seconds", "problems")
_QUERIES = ("query_id", "caption", "embedding", "clip_ids")
# What the card reads of `metadata`, which may be written by hand.
_IN_METADATA = {
    **{"weights": dict, "source": dict, "score_options": dict, "left_out": list, "is_encoder": bool},
    **dict.fromkeys(("model", "benchmark", "split"), str),
}
# Paths below a common folder no lower than these would begin with the names of people or disks.
_TOO_HIGH = ("/", "/home", "/Users")


def _listed(names: Iterable[Any]) -> str:
    names = list(names)
    more = f" and {len(names) - NUM_NAMED} more" if len(names) > NUM_NAMED else ""
    return f"{names[:NUM_NAMED]}{more}"


def read_description(path: Path) -> dict[str, Any]:
    """Read the description of a published gallery; a ValueError names a file that is none, or of another version."""
    content = read_json(path)
    if content.get("version", VERSION) != VERSION:
        raise ValueError(f"{path} is of version {content['version']!r}; expected {VERSION}, the one read here.")
    return content


def check_vectors(columns: dict[str, Any], present: np.ndarray, clip_ids: Sequence[str]) -> None:
    """
    Check that vectors are of unit norm where present and zero where absent; those of heads may be either.

    Args:
        columns (`dict`): arrays `(clips, dim)` by name.
        present (`np.ndarray` of shape `(clips, 3)`): which modalities the clips have.
        clip_ids (`Sequence[str]`): names for the error.

    Raises:
        ValueError: some are not; the message names the clips.
    """
    for index, name in enumerate((*MODALITIES, *CONCAT_COLUMNS)):
        if name not in columns:
            continue
        norms = np.linalg.norm(columns[name].astype(np.float32), axis=1)
        is_unit = np.abs(norms - 1) <= NORM_TOLERANCE  # NaN is not
        right = np.where(present[:, index], is_unit, norms == 0) if index < len(MODALITIES) else is_unit | (norms == 0)
        if not right.all():
            wrong = [clip_ids[row] for row in np.flatnonzero(~right)]
            raise ValueError(
                f"`{name}` must hold a vector of unit norm for each clip whose `presence` says that it has one, and "
                f"zeros for the others; it does not for the clips {_listed(wrong)}. Normalise it, or mend `presence`."
            )


def _check_ids(names: Sequence[str], what: str) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"{what} must be unique, repeated: {_listed(repeated)}.")


def _check_columns(table: pa.Table, required: Sequence[str], optional: Sequence[str], where: Path) -> None:
    for name in required:
        column_of(table, name, where)
    others = sorted(set(table.column_names) - {*required, *optional})
    if others:
        raise ValueError(f"{where} also has the columns {others}. What else it holds is not published: remove it.")


def _check_metadata(metadata: dict[str, Any], where: Path) -> None:
    for name, kind in _IN_METADATA.items():
        if not isinstance(metadata.get(name), kind | None):
            raise ValueError(f"`{name}` in the metadata of {where} must be a {kind.__name__}, got {metadata[name]!r}.")
    temperature = metadata.get("query_temperature")
    is_positive = isinstance(temperature, int | float) and temperature > 0
    if not (is_positive or temperature in (None, "inf")):
        raise ValueError(f"`query_temperature` of {where} must be above 0, or 'inf', got {temperature!r}.")


def _precision(table: pa.Table, names: Iterable[str]) -> str:
    """The precision in which columns are published: half if all have it, else single."""
    kinds = {table.column(name).type.value_type for name in names}
    return "float16" if kinds == {pa.float16()} else "float32"


def _array(table: pa.Table, name: str, dtype: str, where: Path, length: int) -> np.ndarray:
    """A column of lists of one length as an array `(rows, length)`."""
    check_lists(table, name, where, length=length)
    values = table.column(name).combine_chunks().flatten()
    if values.null_count:
        raise ValueError(f"Lists in the column `{name}` of {where} hold nulls.")
    return values.to_numpy(zero_copy_only=False).reshape(len(table), length).astype(dtype)


@dataclass
class PublishedRows:
    """
    What is published of a gallery: identifiers in memory, vectors read piece by piece.

    Args:
        description (`dict`): what `embeddings.json` says of it.
        split (`str`): name of the split.
        clip_ids (`list[str]`): as they are published.
        presence (`np.ndarray` of shape `(clips, 3)`): which modalities each clip has.
        clips, queries (`pa.Table`): mapped; no queries are `None`.
        media (`dict`): the media files that are published, by their names below `media/`.
        media_of (`dict`): the name of the file of each clip that has one; windows of a file share it.
        names (`dict`): how clips are published that are named after files of this machine.
    """

    description: dict[str, Any]
    split: str
    clip_ids: list[str]
    presence: np.ndarray
    clips: pa.Table
    queries: pa.Table | None
    where: Path
    media: dict[str, MediaFile] = field(default_factory=dict)
    media_of: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    @property
    def num_queries(self) -> int:
        """How many captions there are."""
        return 0 if self.queries is None else len(self.queries)

    @property
    def query_length(self) -> int:
        """How many numbers the embedding of a query has: those of one vector, or of one for each modality."""
        dim = self.description["dim"]
        each = len(MODALITIES) * dim
        length = check_lists(self.queries, "embedding", self.where / "queries")
        return each if length == each else dim

    @property
    def clip_features(self) -> Features:
        """The columns of `clips`."""
        vectors = {
            name: List(Value(self.description["dtype"]), length=self.description["dim"])
            for name in self.description["columns"]
        }
        heads = {name: vectors.pop(name) for name in CONCAT_COLUMNS if name in vectors}
        presence = {"presence": List(Value("bool"), length=len(MODALITIES))}
        file = {"file": Value("string")} if self.media else {}
        return Features({"clip_id": Value("string")} | vectors | presence | heads | file)

    @property
    def query_features(self) -> Features:
        """The columns of `queries`."""
        text, dtype = Value("string"), _precision(self.queries, ["embedding"])
        embedding = List(Value(dtype), length=self.query_length)
        return Features({"query_id": text, "caption": text, "embedding": embedding, "clip_ids": List(text)})

    def read_clips(self, start: int, stop: int) -> dict[str, Any]:
        """Return rows from start to stop as columns, checked; vectors are arrays `(rows, dim)`."""
        rows, told = self.clips.slice(start, stop - start), self.description
        clip_ids, presence = self.clip_ids[start:stop], self.presence[start:stop]
        columns = {name: _array(rows, name, told["dtype"], self.where, told["dim"]) for name in told["columns"]}
        check_vectors(columns, presence, clip_ids)
        files = {}
        if self.media:
            files["file"] = [f"media/{self.media_of[name]}" if name in self.media_of else None for name in clip_ids]
        return columns | files | {"clip_id": clip_ids, "presence": presence}

    def read_queries(self, start: int, stop: int) -> dict[str, Any]:
        """Return captions from start to stop as columns, checked."""
        rows, where = self.queries.slice(start, stop - start), self.where / "queries"
        columns = {name: texts_of(rows, name, where) for name in ("query_id", "caption")}
        embeds = _array(rows, "embedding", _precision(rows, ["embedding"]), where, self.query_length)
        vectors = embeds.astype(np.float32).reshape(len(rows), -1, self.description["dim"])
        is_unit = (np.abs(np.linalg.norm(vectors, axis=2) - 1) <= NORM_TOLERANCE).all(axis=1)
        wrong = [columns["query_id"][row] for row in np.flatnonzero(~is_unit)]
        if wrong:
            raise ValueError(f"`embedding` in {where} must be of unit norm; it is not for {_listed(wrong)}.")
        described = [[self.names.get(name, name) for name in names] for names in lists_of(rows, "clip_ids", where)]
        return columns | {"embedding": embeds, "clip_ids": described}


def _check_queries(queries: pa.Table, clip_ids: Sequence[str], where: Path) -> None:
    """Raise unless each pair of a query and a clip is there once, of a known clip, and each query has one."""
    _check_columns(queries, _QUERIES, (), where)
    query_ids, described = texts_of(queries, "query_id", where), lists_of(queries, "clip_ids", where)
    _check_ids(query_ids, f"`query_id` in {where}")
    if not all(described):
        raise ValueError(f"Every query in {where} must describe a clip; some have no `clip_ids`.")
    unknown = sorted({name for names in described for name in names} - set(clip_ids))
    if unknown:
        raise ValueError(f"Queries in {where} describe clips that are not in the gallery: {_listed(unknown)}.")
    repeated = [name for name, row in zip(query_ids, described, strict=True) if len(set(row)) < len(row)]
    if repeated:
        raise ValueError(f"Queries in {where} name a clip more than once: {_listed(repeated)}.")


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
    gallery = Gallery.open(source, check=False)
    if not gallery.metadata and not is_known:
        raise ValueError(f"Nothing in {source} says which model made it. Give the model, a Hub id, or {UNKNOWN!r}.")
    _check_metadata(gallery.metadata, source)
    if not len(gallery):
        raise ValueError(f"The gallery in {source} holds no clips.")
    if not are_data_sets(source):
        verify(source)
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
    _check_columns(gallery.clips, _CLIPS, _OPTIONAL, source / "clips")
    paths = _paths_of(gallery)
    file_names, folder = _file_names(paths.values(), source)
    # Behind the file, a window has its seconds.
    names = {name: file_names[path] + name[len(path) :] for name, path in paths.items()}
    clip_ids, presence = [names.get(name, name) for name in gallery.clip_ids], gallery.modality_mask.numpy()
    _check_ids(clip_ids, f"`clip_id` in {source}")
    empty = [clip_ids[row] for row in np.flatnonzero(~presence.any(axis=1))]
    if empty:
        raise ValueError(f"Every clip needs at least one modality; in {source} these have none: {_listed(empty)}.")
    if gallery.queries is not None:
        _check_queries(gallery.queries, gallery.clip_ids, source / "queries")

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
    facts = gallery.facts()
    description = facts | {
        "dtype": _precision(gallery.clips, facts["columns"]),
        "gallery_sha256": gallery_sha256(clip_ids, presence.tolist()),
        "query_temperature": metadata.get("query_temperature"),
        "score_options": metadata.get("score_options"),
        "problems": problems,
        "left_out": left_out,
        "metadata": without_folders(metadata),
        "model_kind": _kind_told(metadata),
    }
    split = re.sub(r"\W+", "_", metadata.get("split") or "gallery")
    rows = PublishedRows(description, split, clip_ids, presence, gallery.clips, gallery.queries, source, names=names)
    if media:
        rows.media_of = {names[name]: file_names[path] for name, path in paths.items()}
        rows.media = {name: gallery.files[path] for path, name in sorted(file_names.items())}
    return rows


__all__ = [
    "DESCRIPTION",
    "NUM_NAMED",
    "UNKNOWN",
    "VERSION",
    "PublishedRows",
    "check_vectors",
    "read_description",
    "read_gallery",
]
