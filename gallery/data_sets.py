"""Vectors written by `datasets` alone: `clips/`, and for evaluation `queries/`, with the columns in
[`~gallery.columns`]. They are read, laid out in memory like those of a gallery, and never changed."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from gallery.columns import clip_table, modalities_of, query_table
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


def _is_string(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


_VALUES = {"strings": _is_string, "floats": pa.types.is_floating, "bools": pa.types.is_boolean}


def _column(table: pa.Table, name: str, where: Path, kind: str) -> pa.ChunkedArray:
    """A column of the given kind ("strings", "lists of floats" etc.) without nulls, or a ValueError that says why."""
    if name not in table.column_names:
        raise ValueError(f"{where} lacks the column `{name}`; it has {table.column_names}.")
    column = table.column(name)
    if column.null_count:
        raise ValueError(
            f"The column `{name}` of {where} must have no nulls, got {column.null_count}. Write absent modalities as "
            "zeros, with False in `presence`."
        )
    are_lists, is_value = kind.startswith("lists of "), _VALUES[kind.removeprefix("lists of ")]
    if _is_list(column.type) != are_lists or not is_value(column.type.value_type if are_lists else column.type):
        raise ValueError(f"The column `{name}` of {where} must hold {kind}, got {column.type}.")
    if are_lists and pc.list_flatten(column).null_count:
        raise ValueError(f"Lists in the column `{name}` of {where} must not hold nulls.")
    return column


def _matrix(table: pa.Table, name: str, where: Path, kind: str, length: int | None = None) -> torch.Tensor:
    """A column of lists of one length, `(rows, length)`: bool, float16 or float32."""
    column = _column(table, name, where, kind)
    lengths = sorted(pc.unique(pc.list_value_length(column)).to_pylist())
    if len(lengths) != 1 or length not in (None, lengths[0]):
        expected = "one length" if length is None else f"the length {length}"
        raise ValueError(f"All lists in `{name}` of {where} must have {expected}, got {lengths[:10]}.")
    values = pc.list_flatten(column).to_numpy().reshape(-1, lengths[0])
    return torch.from_numpy(values.astype(np.float32) if values.dtype == np.float64 else values.copy())


def _vectors(table: pa.Table, names: tuple[str, ...], where: Path, dim: int | None = None) -> torch.Tensor:
    """`(rows, columns, D)`, in float16 if all are, else in float32."""
    columns: list[torch.Tensor] = []
    for name in names:
        columns.append(_matrix(table, name, where, "lists of floats", columns[0].shape[1] if columns else dim))
    dtype = torch.float16 if all(column.dtype == torch.float16 for column in columns) else torch.float32
    return torch.stack([column.to(dtype) for column in columns], dim=1)


def _clips(table: pa.Table, where: Path) -> pa.Table:
    names = _column(table, "clip_id", where, "strings").to_pylist()
    modalities = modalities_of(table)
    if not modalities:
        raise ValueError(f"{where} lacks columns of vectors, one per modality; it has {table.column_names}.")
    embeds = _vectors(table, modalities, where)
    mask = _matrix(table, "presence", where, "lists of bools", len(modalities))
    others: dict[str, Any] = {}
    for argument, name in (("durations", "duration"), ("problems", "problems"), ("seconds", "seconds")):
        if name in table.column_names:
            others[argument] = table.column(name).to_pylist()
    return clip_table(names, embeds, mask, modalities=modalities, **others)


def _queries(table: pa.Table, where: Path) -> pa.Table:
    texts = (_column(table, name, where, "strings").to_pylist() for name in ("query_id", "caption"))
    embeds = _vectors(table, ("embedding",), where)[:, 0]
    return query_table(*texts, embeds, _column(table, "clip_ids", where, "lists of strings").to_pylist())


def read_data_sets(folder: Path) -> tuple[list[Part], list[Part]]:
    """The parts of clips and of queries; raises a ValueError that says what is damaged or invalid."""
    clips = Part(_clips(_open(folder / "clips"), folder / "clips"))
    where = folder / "queries"
    return [clips], [Part(_queries(_open(where), where))] if where.is_dir() else []


__all__ = ["are_data_sets", "read_data_sets"]
