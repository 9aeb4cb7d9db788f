"""Galleries of embeddings on disk, read piece by piece: a store of evaluation, or a gallery of search."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, List, Value, load_from_disk
from safetensors import SafetensorError, safe_open

from modeling_scalar.configuration_scalar import CONCATENATIONS, MODALITIES

from .files import read_json, sha256_of
from .hub.privacy import without_folders

DESCRIPTION = "embeddings.json"
"""The file that describes a store of embeddings, and a published gallery."""
UNKNOWN = "unknown"
"""Given as the model when nobody knows which one made the vectors."""
VERSION = 1
NUM_NAMED = 10
"""How many entries of a long list are named."""

_STORE_FACTS = ("dim", "dtype", "num_clips", "num_queries", "num_pairs", "columns", "gallery_sha256")
_CONCAT_COLUMNS = tuple("_".join(("concat", *names)) for names in CONCATENATIONS)
# What is read of a gallery of search, of its clips, and of the files in which nothing could be read.
_IN_GALLERY = itemgetter("model", "fingerprint", "query_temperature", "dim", "embeddings_sha256")
_IN_ENTRY, _IN_FAILURE = itemgetter("path", "size", "sha256", "presence", "problems"), itemgetter("path", "reason")
# What the card reads of a store's `metadata`, which may be written by hand.
_IN_METADATA = {"weights": dict, "source": dict, "score_options": dict, "left_out": list} | dict.fromkeys(
    ("model", "benchmark", "split"), str
)
# Paths below a common folder no lower than these would begin with the names of people or disks.
_TOO_HIGH = ("/", "/home", "/Users")
# Vectors normalised in half precision miss the unit norm by up to 0.4 %.
_NORM_TOLERANCE = 0.01


def _listed(names: Iterable[Any]) -> str:
    names = list(names)
    more = f" and {len(names) - NUM_NAMED} more" if len(names) > NUM_NAMED else ""
    return f"{names[:NUM_NAMED]}{more}"


def read_description(path: Path) -> dict[str, Any]:
    """Read the record of a gallery; a ValueError names a file that is not one, or is of another version."""
    content = read_json(path)
    if content.get("version", VERSION) != VERSION:
        raise ValueError(f"{path} is of version {content['version']!r}; expected {VERSION}, the one read here.")
    return content


def _gallery_sha256(clip_ids: Iterable[str], presence: np.ndarray) -> str:
    """As evaluation computes it: of the JSON list of [id, presence] pairs without spaces, ASCII alone."""
    digest = hashlib.sha256()
    pairs = ([name, row] for name, row in zip(clip_ids, presence.astype(int).tolist(), strict=True))
    for number, pair in enumerate(pairs):
        digest.update(b",[" if number else b"[[")
        digest.update(json.dumps(pair, separators=(",", ":")).encode()[1:])
    digest.update(b"]")
    return digest.hexdigest()


# What is published ------------------------------------------------------------------------------------------------


@dataclass
class Gallery:
    """A gallery wherever it is: identifiers in memory, vectors read piece by piece.

    `read_clips` gives rows from start to stop as columns, without identifiers and presence; `read_queries` whole ones;
    vectors are arrays `(rows, dim)`. `media` maps `clip_id` to the entry of the file to publish.
    """

    description: dict[str, Any]
    split: str
    clip_ids: list[str]
    presence: np.ndarray
    clip_features: Features
    read_clips: Callable[[int, int], dict[str, Any]]
    num_queries: int = 0
    query_features: Features | None = None
    read_queries: Callable[[int, int], dict[str, Any]] | None = None
    media: dict[str, dict[str, Any]] = field(default_factory=dict)


def _clip_features(dim: int, dtype: str, columns: Sequence[str], media: bool = False) -> Features:
    """The columns of `clips`, in the order of a store."""
    vectors = {name: List(Value(dtype), length=dim) for name in columns}
    heads = {name: vectors.pop(name) for name in _CONCAT_COLUMNS if name in vectors}
    presence = {"presence": List(Value("bool"), length=len(MODALITIES))}
    file = {"file": Value("string")} if media else {}
    return Features({"clip_id": Value("string")} | vectors | presence | heads | file)


def _query_features(dim: int, dtype: str) -> Features:
    text = Value("string")
    return Features(
        {"query_id": text, "caption": text, "embedding": List(Value(dtype), length=dim), "clip_ids": List(text)}
    )


def _check_ids(names: Sequence[str], what: str) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"{what} must be unique, repeated: {_listed(repeated)}.")


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
    for index, name in enumerate((*MODALITIES, *_CONCAT_COLUMNS)):
        if name not in columns:
            continue
        norms = np.linalg.norm(columns[name].astype(np.float32), axis=1)
        is_unit = np.abs(norms - 1) <= _NORM_TOLERANCE  # NaN is not
        right = np.where(present[:, index], is_unit, norms == 0) if index < len(MODALITIES) else is_unit | (norms == 0)
        if not right.all():
            wrong = [clip_ids[row] for row in np.flatnonzero(~right)]
            raise ValueError(
                f"`{name}` must hold a vector of unit norm for each clip whose `presence` says that it has one, and "
                f"zeros for the others; it does not for the clips {_listed(wrong)}. Normalise it, or mend `presence`."
            )


# A store of evaluation --------------------------------------------------------------------------------------------


def _open(folder: Path, required: Sequence[str], optional: Sequence[str] = ()) -> Dataset:
    if not folder.is_dir():
        raise FileNotFoundError(
            f"There is no data set {folder}. A store of embeddings has `clips` and `queries`, each as "
            "`datasets.save_to_disk` writes it."
        )
    try:
        dataset = load_from_disk(folder)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{folder} cannot be opened as a data set; is it cut off, or empty? {error}") from error
    if not isinstance(dataset, Dataset) or not len(dataset):
        raise ValueError(f"{folder} must hold one data set with rows, got {dataset}.")
    found = set(dataset.column_names)
    if not set(required) <= found <= {*required, *optional}:
        raise ValueError(
            f"{folder} must have the columns {list(required)}"
            + (f" and may have {list(optional)}" if optional else "")
            + f", got {dataset.column_names}. What else it holds is not published: remove it first."
        )
    return dataset.with_format("arrow")


def _column(table: pa.Table, name: str, where: Path) -> pa.Array:
    column = table.column(name).combine_chunks()
    if column.null_count:
        raise ValueError(f"The column `{name}` of {where} has {column.null_count} nulls; a store has none.")
    return column


def _is_string(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _strings(table: pa.Table, name: str, where: Path) -> list[str]:
    column = _column(table, name, where)
    if not _is_string(column.type):
        raise ValueError(f"The column `{name}` of {where} must hold strings, got {column.type}.")
    return column.to_pylist()


def _items(table: pa.Table, name: str, where: Path, kind: str, is_kind: Callable[[pa.DataType], bool]) -> pa.Array:
    """A column of lists that hold no nulls."""
    column = _column(table, name, where)
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(is_list(column.type) for is_list in lists) or not is_kind(column.type.value_type):
        raise ValueError(f"The column `{name}` of {where} must hold lists of {kind}, got {column.type}.")
    if column.flatten().null_count:
        raise ValueError(f"Lists in the column `{name}` of {where} hold nulls.")
    return column


def _array(table: pa.Table, name: str, where: Path, length: int | None = None, boolean: bool = False) -> np.ndarray:
    """A column of lists of one length as an array `(rows, length)`."""
    is_kind = pa.types.is_boolean if boolean else pa.types.is_floating
    column = _items(table, name, where, "bools" if boolean else "floats", is_kind)
    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(lengths) != 1 or length not in (None, lengths[0]):
        expected = "one length" if length is None else f"the length {length}"
        raise ValueError(f"All lists in `{name}` of {where} must have {expected}, got {sorted(lengths)[:NUM_NAMED]}.")
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), lengths[0])


def _precision(arrays: Iterable[np.ndarray]) -> str:
    """The precision in which columns are published: half if all have it, else single."""
    return "float16" if {array.dtype for array in arrays} == {np.dtype("float16")} else "float32"


def _read_description(source: Path, is_known: bool) -> dict[str, Any]:
    file = source / DESCRIPTION
    if not file.is_file() and not is_known:
        raise ValueError(
            f"{source} has no {DESCRIPTION}, so nothing says which model made it. Give the model, a Hub id, or "
            f"{UNKNOWN!r}."
        )
    description = read_description(file) if file.is_file() else {}
    for name, kind in (("problems", list), ("metadata", dict)):
        if not isinstance(description.setdefault(name, kind()), kind):
            raise ValueError(f"`{name}` in {file} must be a {kind.__name__}.")
    if not all(isinstance(problem, str) for problem in description["problems"]):
        raise ValueError(f"`problems` in {file} must be texts.")
    metadata = description["metadata"]
    for name, kind in _IN_METADATA.items():
        if not isinstance(metadata.get(name), kind | None):
            raise ValueError(f"`{name}` in the metadata of {file} must be a {kind.__name__}, got {metadata[name]!r}.")
    temperature = metadata.get("query_temperature")
    is_positive = isinstance(temperature, int | float) and temperature > 0
    if not (is_positive or temperature in (None, "inf")):
        raise ValueError(f"`query_temperature` in {file} must be above 0, or 'inf', got {temperature!r}.")
    return description


def _read_presence(clips: Dataset, where: Path) -> tuple[list[str], np.ndarray]:
    """Identifiers of clips and which modalities they have, `(clips, 3)`."""
    rows = clips.select_columns(["clip_id", "presence"])[:]
    clip_ids, presence = _strings(rows, "clip_id", where), _array(rows, "presence", where, len(MODALITIES), True)
    _check_ids(clip_ids, f"`clip_id` in {where}")
    empty = [clip_ids[row] for row in np.flatnonzero(~presence.any(axis=1))]
    if empty:
        raise ValueError(f"Every clip needs at least one modality; in {where} these have none: {_listed(empty)}.")
    return clip_ids, presence


def _count_pairs(queries: Dataset, clip_ids: Iterable[str], where: Path) -> int:
    """How many pairs of a query and a clip there are, each of a known clip and at least one for each query."""
    rows = queries.select_columns(["query_id", "clip_ids"])[:]
    query_ids = _strings(rows, "query_id", where)
    _check_ids(query_ids, f"`query_id` in {where}")
    described = _items(rows, "clip_ids", where, "strings", _is_string)
    if not pc.all(pc.greater(pc.list_value_length(described), 0)).as_py():
        raise ValueError(f"Every query in {where} must describe a clip; some have no `clip_ids`.")
    named = described.flatten().to_pylist()
    unknown = sorted(set(named) - set(clip_ids))
    if unknown:
        raise ValueError(f"Queries in {where} describe clips that are not in the gallery: {_listed(unknown)}.")
    repeated = [name for name, row in zip(query_ids, described.to_pylist(), strict=True) if len(set(row)) < len(row)]
    if repeated:
        raise ValueError(f"Queries in {where} name a clip more than once: {_listed(repeated)}.")
    return len(named)


def _read_store(source: Path, is_known: bool) -> Gallery:
    description = _read_description(source, is_known)
    where, where_queries = source / "clips", source / "queries"
    clips = _open(where, ("clip_id", *MODALITIES, "presence"), _CONCAT_COLUMNS)
    queries = _open(where_queries, ("query_id", "caption", "embedding", "clip_ids"))
    vectors = [name for name in (*MODALITIES, *_CONCAT_COLUMNS) if name in clips.column_names]
    first = {name: _array(clips[:1], name, where) for name in vectors}
    dim = first[MODALITIES[0]].shape[1]
    clip_dtype = _precision(first.values())
    query_dtype = _precision([_array(queries[:1], "embedding", where_queries, dim)])
    clip_ids, presence = _read_presence(clips, where)
    num_pairs = _count_pairs(queries, clip_ids, where_queries)

    facts = (dim, first[MODALITIES[0]].dtype.name, len(clips), len(queries), num_pairs, vectors)
    facts = dict(zip(_STORE_FACTS, (*facts, _gallery_sha256(clip_ids, presence)), strict=True))
    different = sorted(name for name, value in facts.items() if description.get(name, value) != value)
    if different:
        raise ValueError(
            f"{source / DESCRIPTION} describes other embeddings than those beside it: different are {different}. "
            "Restore the file that belongs to them, or remove it."
        )

    def read_clips(start: int, stop: int) -> dict[str, Any]:
        table = clips[start:stop]
        return {name: _array(table, name, where, dim).astype(clip_dtype) for name in vectors}

    def read_queries(start: int, stop: int) -> dict[str, Any]:
        table = queries[start:stop]
        columns = {name: _strings(table, name, where_queries) for name in ("query_id", "caption")}
        columns["embedding"] = _array(table, "embedding", where_queries, dim).astype(query_dtype)
        norms = np.linalg.norm(columns["embedding"].astype(np.float32), axis=1)
        wrong = [columns["query_id"][row] for row in np.flatnonzero(~(np.abs(norms - 1) <= _NORM_TOLERANCE))]
        if wrong:
            raise ValueError(f"`embedding` in {where_queries} must be of unit norm; it is not for {_listed(wrong)}.")
        return columns | {"clip_ids": _column(table, "clip_ids", where_queries)}

    metadata, ids = description["metadata"], set(clip_ids)
    left_out = metadata.get("left_out")
    known = {
        "dtype": clip_dtype,
        "query_temperature": metadata.get("query_temperature"),
        "score_options": metadata.get("score_options"),
        "problems": [_without_folders_after(problem, ids) for problem in description["problems"]],
        "left_out": [{"clip_id": name, "reason": None} for name in left_out] if left_out is not None else None,
        "metadata": without_folders({name: value for name, value in metadata.items() if name != "left_out"}),
        "is_adapter": "adapter_model.safetensors" in (metadata.get("weights") or {}),
    }
    return Gallery(
        description=facts | known,
        split=re.sub(r"\W+", "_", metadata.get("split") or "gallery"),
        clip_ids=clip_ids,
        presence=presence,
        clip_features=_clip_features(dim, clip_dtype, vectors),
        read_clips=read_clips,
        num_queries=len(queries),
        query_features=_query_features(dim, query_dtype),
        read_queries=read_queries,
    )


def _without_folders_after(problem: str, ids: set[str]) -> str:
    """Shorten the paths in a problem, but not the identifier before it."""
    name, colon, reason = problem.partition(": ")
    return name + colon + without_folders(reason) if name in ids else without_folders(problem)


# A gallery of search ----------------------------------------------------------------------------------------------


def _relative(path: str, folder: str) -> str:
    """The path below the folder that all clips share, with slashes; its name alone if it lies elsewhere."""
    inside = Path(path).is_relative_to(folder)
    name = (Path(path).relative_to(folder) if inside else Path(Path(path).name)).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{path!r} has a name that is not UTF-8. Rename the file, and index again.") from error
    return name


def _open_search_gallery(source: Path) -> tuple[dict[str, Any], Path, np.ndarray]:
    """The record of a gallery, the file of its vectors, and which modalities clips have, all checked."""
    file = source / "gallery.json"
    record = read_description(file)
    try:
        _IN_GALLERY(record), list(map(_IN_ENTRY, record["entries"])), list(map(_IN_FAILURE, record["failed"]))
        vectors = source / f"gallery-{record['embeddings_sha256']}.safetensors"
        paths = [entry["path"] for entry in record["entries"]]
        named = np.array([[name in entry["presence"] for name in MODALITIES] for entry in record["entries"]])
        expected = dict.fromkeys(MODALITIES, (len(paths), record["dim"])) | {"modality_mask": named.shape}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file} is not as `python -m search index` writes it: {error!r}. Index again.") from error
    if not paths:
        raise ValueError(f"The gallery in {source} holds no clips.")
    if not vectors.is_file() or sha256_of(vectors) != record["embeddings_sha256"]:
        raise ValueError(f"{vectors} is missing or damaged: its content must have the hash in its name.")
    try:
        with safe_open(vectors, framework="np") as stored:
            shapes = {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}
            presence = stored.get_tensor("modality_mask")
    except SafetensorError as error:
        raise ValueError(f"{vectors} is not as `python -m search index` writes it: {error}.") from error
    if shapes != expected:
        raise ValueError(f"{vectors} must hold arrays of the shapes {expected}, got {shapes}.")
    wrong = (named != presence).any(axis=1) | ~presence.any(axis=1)
    if wrong.any():
        names = _listed(paths[row] for row in np.flatnonzero(wrong))
        raise ValueError(f"{file} and {vectors.name} disagree on what clips have: {names}. Index again.")
    return record, vectors, presence


def _read_search_gallery(source: Path, media: bool) -> Gallery:
    record, vectors, presence = _open_search_gallery(source)
    entries = record["entries"]
    paths = [entry["path"] for entry in entries]
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    if folder in _TOO_HIGH:
        raise ValueError(
            f"The clips of {source} share no folder but {folder!r}, so their names would tell the folders of this "
            "machine. Index what lies in one folder, and publish a gallery for each."
        )
    clip_ids = [_relative(path, folder) for path in paths]
    _check_ids(clip_ids, f"Paths in {source}")

    def read_clips(start: int, stop: int) -> dict[str, Any]:
        with safe_open(vectors, framework="np") as stored:
            columns = {name: stored.get_slice(name)[start:stop] for name in MODALITIES}
        return columns | ({"file": [f"media/{name}" for name in clip_ids[start:stop]]} if media else {})

    names = dict(zip(paths, clip_ids, strict=True))

    def shortened(text: str) -> str:
        return without_folders(text.replace(f"{folder}{os.sep}", ""))

    dim, query_temperature = record["dim"], record["query_temperature"]
    counts = (dim, "float32", len(paths), 0, 0, list(MODALITIES), _gallery_sha256(clip_ids, presence))
    known = {
        "query_temperature": query_temperature,
        "score_options": {"query_temperature": query_temperature},
        "problems": [
            f"{names[entry['path']]}: {shortened(problem)}" for entry in entries for problem in entry["problems"]
        ],
        "left_out": [
            {"clip_id": _relative(failure["path"], folder), "reason": shortened(failure["reason"])}
            for failure in record["failed"]
        ],
        "metadata": {"model": without_folders(record["model"]), "fingerprint": record["fingerprint"]},
        "is_adapter": (Path(record["model"]) / "adapter_config.json").is_file(),
    }
    return Gallery(
        description=dict(zip(_STORE_FACTS, counts, strict=True)) | known,
        split="gallery",
        clip_ids=clip_ids,
        presence=presence,
        clip_features=_clip_features(dim, "float32", MODALITIES, media),
        read_clips=read_clips,
        media=dict(zip(clip_ids, entries, strict=True)) if media else {},
    )


def read_gallery(source: Path, is_known: bool, media: bool) -> Gallery:
    """
    Open a gallery of either kind.

    Args:
        source (`Path`): a store of `python -m eval embed` or `run`, or a gallery of `python -m search index`.
        is_known (`bool`): whether somebody says which model made it, so that it need not.
        media (`bool`): whether the media files of a gallery of search are wanted.

    Returns:
        [`Gallery`].

    Raises:
        FileNotFoundError: the source, or a part of it, is not there.
        ValueError: the source is damaged, its description is that of other vectors, or it has no media files.
    """
    if (source / "gallery.json").is_file():
        return _read_search_gallery(source, media)
    if media:
        raise ValueError(f"{source} is not a gallery of `python -m search index`; only those know their media files.")
    if source.is_dir():
        return _read_store(source, is_known)
    way = " `eval.embeddings.load_embeddings(FILE).save(STORE)` makes a store of a file." * source.is_file()
    raise FileNotFoundError(f"There is no folder {source}. Give a store of embeddings, or a gallery of search.{way}")


__all__ = [
    "DESCRIPTION",
    "NUM_NAMED",
    "UNKNOWN",
    "VERSION",
    "Gallery",
    "check_vectors",
    "read_description",
    "read_gallery",
]
