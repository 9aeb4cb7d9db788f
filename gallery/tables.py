"""Tables that users bring, row by row: CSV, JSON, JSON Lines, Parquet, and data sets saved by `datasets`."""

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

Row = tuple[str, dict[str, Any]]
"""The position of a row, for messages, and its cells."""
Choose = Callable[[Iterable[str]], list[str]]
"""From the names of all columns to those that are read."""


def distinct(path: str | os.PathLike, names: list[str]) -> list[str]:
    """Return the names of columns; raises a ValueError if one repeats."""
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{path}: the columns {repeated} appear more than once. Give each its own name.")
    return names


def _read_csv(path: Path, choose: Choose) -> Iterator[Row]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            names = choose(header)
            for row in reader:
                if not row:
                    continue
                where = f"line {reader.line_num}"
                if len(row) != len(header):
                    raise ValueError(
                        f"{path}, {where}: expected {len(header)} cells, as in line 1, got {len(row)}. Put cells "
                        'with commas in quotes: "like, this".'
                    )
                cells = dict(zip(header, row, strict=True))
                yield where, {name: cells[name] for name in names}
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}.") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: the table is not UTF-8 ({error.reason}, byte {error.start}). Convert it to UTF-8."
        ) from error


def _parsed(path: Path, where: str, text: bytes) -> Any:
    try:
        # Numbers stay as they are written: the id 1e5 differs from the id 100000.0.
        return json.loads(text.decode("utf-8-sig"), parse_int=str, parse_float=str)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}{where}: not UTF-8 ({error.reason}). Convert the table to UTF-8.") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}{where}: not JSON ({error}). Restore the table.") from error


def _chosen(path: Path, where: str, row: Any, choose: Choose) -> Row:
    if not isinstance(row, dict):
        raise ValueError(f'{path}, {where}: expected an object, such as {{"path": ...}}, got {row!r:.80}.')
    try:
        return where, {name: row[name] for name in choose(row)}
    except ValueError as error:
        raise ValueError(f"{error} (in {where})") from None


def _read_json(path: Path, choose: Choose) -> Iterator[Row]:
    rows = _parsed(path, "", path.read_bytes())
    if not isinstance(rows, list):
        raise ValueError(f"{path} must hold a list of objects, one per row, got {type(rows).__name__}.")
    for number, row in enumerate(rows, start=1):
        yield _chosen(path, f"row {number}", row, choose)


def _read_json_lines(path: Path, choose: Choose) -> Iterator[Row]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _chosen(path, f"line {number}", _parsed(path, f", line {number}", line), choose)


def _rows_of(batches: Iterable[pa.RecordBatch], names: list[str]) -> Iterator[Row]:
    number = 0
    for batch in batches:
        for cells in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
            number += 1
            # as `datasets` stores media: a path and, if already read, bytes
            plain = [cell["path"] if isinstance(cell, dict) and "path" in cell else cell for cell in cells]
            yield f"row {number}", dict(zip(names, plain, strict=True))


def _read_parquet(path: Path, choose: Choose) -> Iterator[Row]:
    try:
        with pa.parquet.ParquetFile(path) as file:
            names = choose(file.schema_arrow.names)
            yield from _rows_of(file.iter_batches(columns=names), names)
    except pa.ArrowException as error:
        raise ValueError(f"{path} is not a Parquet file, or is damaged: {error}") from error


def _read_data_set(path: Path, choose: Choose) -> Iterator[Row]:
    from datasets import DatasetDict, load_from_disk  # takes a second to import

    try:
        found = load_from_disk(str(path))
    except (pa.ArrowException, KeyError, TypeError) as error:
        raise ValueError(f"{path} is a damaged data set: {error}") from error
    if isinstance(found, DatasetDict):
        splits = ", ".join(str(path / name) for name in found)
        raise ValueError(f"{path} holds several data sets. Name the one to index: {splits}.")
    names = choose(found.column_names)
    tables = found.select_columns(names).with_format("arrow").iter(batch_size=1000)
    yield from _rows_of((batch for table in tables for batch in table.combine_chunks().to_batches()), names)


_READERS = {".csv": _read_csv, ".json": _read_json, ".jsonl": _read_json_lines, ".parquet": _read_parquet}
KINDS = tuple(_READERS)
"""Extensions of tables."""


def _reader_of(path: Path) -> Callable[[Path, Choose], Iterator[Row]] | None:
    if path.is_dir():
        one, several = ("state.json", "dataset_info.json"), ("dataset_dict.json",)
        is_data_set = any(all((path / name).is_file() for name in names) for names in (one, several))
        return _read_data_set if is_data_set else None
    return _READERS.get(path.suffix.lower())


def is_table(path: str | os.PathLike) -> bool:
    """Whether a path is read as a table: by its extension, or as a saved data set."""
    return _reader_of(Path(path)) is not None


def rows_of_table(path: str | os.PathLike, choose: Choose) -> Iterator[Row]:
    """
    Read a table row by row.

    Args:
        path (`str`): a path for which [`is_table`] holds.
        choose (`Callable`): called with the names of the columns (in JSON tables, for each row); returns those to
            read, [`distinct`]. Its exceptions are passed on.

    Yields:
        The position of a row, such as `"line 3"`, and its cells by column name. Numbers in JSON are returned as text,
        as they are written.

    Raises:
        ValueError: the table is malformed; the message names the line.
    """
    path = Path(path)
    has_content = path.stat().st_size > 0
    if not path.is_dir() and not (path.is_file() and has_content):
        # Reading a pipe or a device might never end, nor might a file that the system generates, which has no size.
        raise ValueError(f"{path}: expected a table, got an empty file, a pipe or a device. Name a file with rows.")
    return _reader_of(path)(path, choose)


__all__ = ["KINDS", "Row", "distinct", "is_table", "rows_of_table"]
