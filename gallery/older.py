"""Galleries of older formats, and those that `datasets` alone wrote: read, never changed.

Two kinds: what `scalar index` wrote until version 1 (`gallery.json` and one safetensors file), and a store (`clips/`
and maybe `queries/` as `datasets.save_to_disk` writes them, and maybe a description, `embeddings.json`).
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from safetensors import SafetensorError, safe_open

from gallery.columns import (
    CONCAT_COLUMNS,
    check_lists,
    clip_table,
    column_of,
    is_list,
    is_string,
    problems_of_clips,
    stacked,
    texts_of,
    to_utf8,
)
from gallery.files import read_json, sha256_of
from gallery.provenance import gallery_sha256
from gallery.storage import MANIFEST, Part, check_not_lost, remedy
from modeling_scalar.configuration_scalar import MODALITIES

DESCRIPTION = "embeddings.json"
"""The file that told what a store of version 1 holds."""

_VERSION = 1
_OF_DATASETS = ("state.json", "dataset_dict.json")
_Tables = tuple[list[Part], list[Part], list[Part], dict[str, Any]]


def is_older(folder: Path) -> bool:
    """Whether a folder holds embedded clips in another format than today's; a ValueError if nothing can tell."""
    manifest = folder / MANIFEST
    # In this order: the first commit of a gallery of today places the manifest, then what `datasets` reads.
    is_other = any((folder / name).exists() for name in (DESCRIPTION, *(f"clips/{name}" for name in _OF_DATASETS)))
    if manifest.is_file():
        version = read_json(manifest, remedy(folder)).get("version")
        return type(version) is int and version == _VERSION
    check_not_lost(folder)
    return is_other


def read_older(folder: Path) -> _Tables:
    """
    Read a gallery of an older format, or one that `datasets` wrote.

    Returns:
        The parts of its clips, queries and files, and its metadata.

    Raises:
        FileNotFoundError: a data set is not there.
        ValueError: it is damaged, or not as it must be; the message says where.
    """
    return _read_search_gallery(folder) if (folder / MANIFEST).is_file() else _read_store(folder)


# Search, version 1 ------------------------------------------------------------------------------------------------


def _read_search_gallery(folder: Path) -> _Tables:
    file = folder / MANIFEST
    record = read_json(file)
    try:
        vectors = folder / f"gallery-{record['embeddings_sha256']}.safetensors"
        entries, failed = record["entries"], record["failed"]
        clip_ids = [entry["path"] for entry in entries]
        durations, problems = ([entry[name] for entry in entries] for name in ("duration", "problems"))
        named = torch.tensor([[name in entry["presence"] for name in MODALITIES] for entry in entries])
        expected = dict.fromkeys(MODALITIES, [len(entries), record["dim"]])
        expected["modality_mask"] = [len(entries), len(MODALITIES)]
        metadata = {name: record[name] for name in ("model", "fingerprint", "query_temperature")}
        columns = {name: [entry[name] for entry in (*entries, *failed)] for name in ("path", "sha256")}
        numbers = {name: [entry[name] for entry in (*entries, *failed)] for name in ("size", "mtime_ns")}
        reasons = [None] * len(entries) + [to_utf8(failure["reason"]) for failure in failed]
        files = pa.table(
            {name: pa.array(list(map(to_utf8, texts)), pa.string()) for name, texts in columns.items()}
            | {name: pa.array(values, pa.int64()) for name, values in numbers.items()}
            | {"reason": pa.array(reasons, pa.string())}
        )
    except (AttributeError, KeyError, TypeError, pa.ArrowException) as error:
        raise ValueError(f"{file} is not as `scalar index` wrote it: {error!r}. Index again.") from error
    if not vectors.is_file() or sha256_of(vectors) != record["embeddings_sha256"]:
        raise ValueError(f"{vectors} is missing or damaged: its content must have the hash in its name. Index again.")
    try:
        with safe_open(vectors, framework="pt") as stored:
            shapes = {name: stored.get_slice(name).get_shape() for name in stored.keys()}
            if shapes != expected:
                raise ValueError(f"{vectors} must hold arrays of the shapes {expected}, got {shapes}. Index again.")
            tensors = {name: stored.get_tensor(name) for name in expected}
    except SafetensorError as error:
        raise ValueError(f"{vectors} is not a safetensors file: {error}. Index again.") from error
    mask = tensors["modality_mask"].bool()
    if entries and not torch.equal(named, mask):
        wrong = clip_ids[int((named != mask).any(1).nonzero()[0])]
        raise ValueError(f"{file} and {vectors.name} disagree on what {wrong!r} has. Index again.")
    embeds = torch.stack([tensors[name] for name in MODALITIES], dim=1)
    clips = clip_table(clip_ids, embeds, mask, durations=durations, problems=problems)
    return [Part(clips)], [], [Part(files)], metadata


# Stores -----------------------------------------------------------------------------------------------------------


def _open(folder: Path) -> pa.Table:
    """Memory-map one data set of a store."""
    from datasets import Dataset, load_from_disk  # slow to load, and needed for older formats only

    if not folder.is_dir():
        raise FileNotFoundError(
            f"There is no data set {folder}. A store of embeddings has `clips` and `queries`, each as "
            "`datasets.save_to_disk` writes it."
        )
    state = folder / _OF_DATASETS[0]
    names = [str(file)[:80] for file in read_json(state).get("_data_files") or ()] if state.is_file() else []
    if any("/" in name or "\\" in name for name in names):
        raise ValueError(f"{state} names files outside of its folder: {names[:3]}. Save the data set again.")
    try:
        dataset = load_from_disk(folder)
    except (AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError, pa.ArrowException) as error:
        raise ValueError(f"{folder} cannot be opened as a data set; is it cut off, or empty? {error}") from error
    if not isinstance(dataset, Dataset):
        raise ValueError(f"{folder} must hold one data set, got the splits {list(dataset)}.")
    return dataset.with_format("arrow")[:]


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    content = read_json(path) if path.is_file() else {}
    if content.get("version", _VERSION) != _VERSION:
        raise ValueError(f"{folder} holds embeddings of version {content['version']!r}, expected {_VERSION}.")
    for name, kind in (("problems", list), ("metadata", dict)):
        if not isinstance(content.setdefault(name, kind()), kind):
            raise ValueError(f"`{name}` in {path} must be a {kind.__name__}, got {content[name]!r}.")
    if not all(isinstance(problem, str) for problem in content["problems"]):
        raise ValueError(f"`problems` in {path} must be texts.")
    return content


def _check_description(folder: Path, description: dict[str, Any], clips: pa.Table, queries: pa.Table | None) -> None:
    """Raise unless what a description counts is what lies beside it."""
    presence = stacked(clips, ["presence"], folder / "clips", boolean=True)[:, 0]
    found = {
        "dim": check_lists(clips, MODALITIES[0], folder / "clips"),
        "dtype": {"halffloat": "float16", "float": "float32"}.get(str(clips.column(MODALITIES[0]).type.value_type)),
        "num_clips": len(clips),
        "columns": [*MODALITIES, *(name for name in CONCAT_COLUMNS if name in clips.column_names)],
        "gallery_sha256": gallery_sha256(texts_of(clips, "clip_id", folder / "clips"), presence.int().tolist()),
    }
    if queries is not None:
        num_pairs = pc.sum(pc.list_value_length(queries.column("clip_ids"))).as_py()
        found |= {"num_queries": len(queries), "num_pairs": num_pairs or 0}
    different = sorted(name for name, value in found.items() if description.get(name, value) != value)
    if different:
        raise ValueError(
            f"{folder / DESCRIPTION} describes other embeddings than those beside it: different are {different}. "
            "Restore the file that belongs to them, or remove it."
        )


def _read_store(folder: Path) -> _Tables:
    description = _read_description(folder)
    clips = _open(folder / "clips")
    column_of(clips, "clip_id", folder / "clips")
    queries = None
    if (folder / "queries").is_dir():
        queries = _open(folder / "queries")
        for name in ("query_id", "caption"):
            texts_of(queries.select([name]) if name in queries.column_names else queries, name, folder / "queries")
        column = column_of(queries, "clip_ids", folder / "queries")
        if not is_list(column.type) or not is_string(column.type.value_type):
            raise ValueError(
                f"The column `clip_ids` of {folder / 'queries'} must hold lists of strings, got {column.type}."
            )
    metadata = dict(description["metadata"])
    clip_ids = texts_of(clips, "clip_id", folder / "clips")
    if (folder / DESCRIPTION).is_file():
        _check_description(folder, description, clips, queries)
    if description["problems"]:
        told, others = problems_of_clips(description["problems"], clip_ids)
        clips = clips.append_column("problems", pa.array(told, pa.list_(pa.string())))
        if others:
            metadata["problems"] = others
    # Pieces of one record batch each, as those of today's format.
    parts = [Part(pa.Table.from_batches([batch])) for batch in clips.to_batches() if len(batch)]
    return parts or [Part(clips)], [] if queries is None else [Part(queries)], [], metadata


__all__ = ["DESCRIPTION", "is_older", "read_older"]
