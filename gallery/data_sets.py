"""Vectors written by `datasets` alone: `clips/`, and for evaluation `queries/`, with the columns in
[`~gallery.columns`]. They are read, laid out in memory like those of a gallery, and never changed."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import torch

from gallery.arrays import read_vectors, stacked_vectors
from gallery.columns import clip_table, lists_of, modalities_of, query_table
from gallery.files import read_json
from gallery.storage import MANIFEST, Part, check_not_lost

_STATE, _SPLITS = "state.json", "dataset_dict.json"


def are_data_sets(folder: Path) -> bool:
    """Whether a folder was written by `datasets` alone; raises a ValueError if that cannot be decided."""
    # In this order: the first commit of a gallery writes the manifest before the files that `datasets` reads.
    is_there = any((folder / "clips" / name).exists() for name in (_STATE, _SPLITS))
    if (folder / MANIFEST).is_file():
        return False
    check_not_lost(folder)
    return is_there


def _open(folder: Path) -> pa.Table:
    """Memory-map one data set."""
    from datasets import Dataset, load_from_disk  # slow to import, and needed only here

    state = folder / _STATE
    names = [str(file)[:80] for file in read_json(state).get("_data_files") or ()] if state.is_file() else []
    if any("/" in name or "\\" in name for name in names):
        raise ValueError(f"{state} names files outside its folder: {names[:3]}. Save the data set again.")
    try:
        dataset = load_from_disk(folder)
    except (AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError, pa.ArrowException) as error:
        raise ValueError(f"{folder} cannot be opened as a data set: it may be cut off or empty. {error}") from error
    if not isinstance(dataset, Dataset):
        raise ValueError(f"{folder} must hold one data set, got the splits {list(dataset)}.")
    return dataset.with_format("arrow")[:]


def _check_columns(table: pa.Table, names: Iterable[str], where: Path) -> None:
    """Raise a ValueError unless a table has these columns, without nulls."""
    for name in names:
        if name not in table.column_names:
            raise ValueError(f"{where} lacks the column `{name}`; it has {table.column_names}.")
        column = table.column(name)
        if column.null_count:
            raise ValueError(f"The column `{name}` of {where} must have no nulls, got {column.null_count}.")
        is_string = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        if name in ("clip_id", "query_id", "caption") and not is_string:
            raise ValueError(f"The column `{name}` of {where} must hold strings, got {column.type}.")


def _clips(table: pa.Table, where: Path) -> pa.Table:
    _check_columns(table, ("clip_id", "presence"), where)
    modalities = modalities_of(table)
    if not modalities:
        raise ValueError(f"{where} lacks columns of vectors, one per modality; it has {table.column_names}.")
    flags = pc.list_flatten(table.column("presence"))
    if not pa.types.is_boolean(flags.type) or len(flags) != len(table) * len(modalities) or flags.null_count:
        raise ValueError(f"`presence` in {where} must hold lists of {len(modalities)} bools, got {flags.type}.")
    mask = torch.from_numpy(flags.to_numpy().astype(bool)).view(-1, len(modalities))
    columns = {name: read_vectors(table.column(name), f"`{name}` in {where}") for name in modalities}
    embeds, mask = stacked_vectors(columns, mask)
    others = {}
    for name in ("problems", "seconds"):
        if name in table.column_names:
            others[name] = table.column(name).to_pylist()
    return clip_table(table.column("clip_id").to_pylist(), embeds, mask, modalities=modalities, **others)


def _queries(table: pa.Table, where: Path) -> pa.Table:
    _check_columns(table, ("query_id", "caption", "embedding", "clip_ids"), where)
    texts = (table.column(name).to_pylist() for name in ("query_id", "caption"))
    embeds = read_vectors(table.column("embedding"), f"`embedding` in {where}")
    return query_table(*texts, embeds, lists_of(table, "clip_ids"))


def read_data_sets(folder: Path) -> tuple[list[Part], list[Part]]:
    """The parts of clips and of queries; raises a ValueError that says what is damaged or invalid."""
    clips = Part(_clips(_open(folder / "clips"), folder / "clips"))
    where = folder / "queries"
    return [clips], [Part(_queries(_open(where), where))] if where.is_dir() else []


__all__ = ["are_data_sets", "read_data_sets"]
