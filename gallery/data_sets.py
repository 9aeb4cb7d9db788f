"""Vectors that `datasets` alone wrote: `clips/`, and for evaluation `queries/`, with the columns that
[`~gallery.tables`] names. They are read, and never changed."""

from pathlib import Path

import pyarrow as pa

from gallery.columns import column_of, is_list, is_string, texts_of
from gallery.files import read_json
from gallery.storage import MANIFEST, Part, check_not_lost

_STATE, _SPLITS = "state.json", "dataset_dict.json"


def are_data_sets(folder: Path) -> bool:
    """Whether `datasets` alone wrote what a folder holds; a ValueError if nothing can tell."""
    # In this order: the first commit of a gallery places the manifest, then what `datasets` reads.
    is_there = any((folder / "clips" / name).exists() for name in (_STATE, _SPLITS))
    if (folder / MANIFEST).is_file():
        return False
    check_not_lost(folder)
    return is_there


def _open(folder: Path) -> pa.Table:
    """Memory-map one data set."""
    from datasets import Dataset, load_from_disk  # slow to load, and needed for these alone

    state = folder / _STATE
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


def read_data_sets(folder: Path) -> tuple[list[Part], list[Part]]:
    """The parts of clips and of queries; a ValueError says what is damaged, or not as it must be."""
    clips, queries = _open(folder / "clips"), []
    column_of(clips, "clip_id", folder / "clips")
    if (where := folder / "queries").is_dir():
        table = _open(where)
        for name in ("query_id", "caption"):
            texts_of(table, name, where)
        kind = column_of(table, "clip_ids", where).type
        if not is_list(kind) or not is_string(kind.value_type):
            raise ValueError(f"The column `clip_ids` of {where} must hold lists of strings, got {kind}.")
        queries = [Part(table)]
    # One record batch each, as those of a gallery.
    parts = [Part(pa.Table.from_batches([batch])) for batch in clips.to_batches() if len(batch)]
    return parts or [Part(clips)], queries


__all__ = ["are_data_sets", "read_data_sets"]
