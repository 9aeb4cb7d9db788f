"""Lists that users bring: CSV, JSON, JSON Lines and Parquet files, and data sets saved by `datasets`.

Text stays as it is written. The readers of `datasets` would turn the text "2024-01-02" into a date, and 007 into 7.
"""

import csv
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from scalar_retrieval.modeling_scalar.media_scalar import check_content

Row = tuple[str, dict[str, Any]]
"""The position of a row, for messages, and its cells by column."""
KINDS = (".csv", ".json", ".jsonl", ".parquet")
"""Extensions of tables."""


def is_table(path: str | os.PathLike) -> bool:
    """Whether a path is read as a table: by its extension, or as a saved data set."""
    path = Path(path)
    if not path.is_dir():
        return path.suffix.lower() in KINDS
    is_one = (path / "state.json").is_file() and (path / "dataset_info.json").is_file()
    return is_one or (path / "dataset_dict.json").is_file()


def _read_csv(path: Path) -> tuple[list[str], list[Row]]:
    rows = []
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        names = next(reader, [])
        for cells in reader:
            if cells and len(cells) != len(names):
                raise ValueError(
                    f"line {reader.line_num}: expected {len(names)} cells, as in line 1, got {len(cells)}. Put cells "
                    'with commas in quotes: "like, this"'
                )
            if cells:
                rows.append((f"line {reader.line_num}", dict(zip(names, cells, strict=True))))
    return names, rows


def _read_json(path: Path) -> tuple[list[str], list[Row]]:
    text = path.read_text(encoding="utf-8-sig")
    # Numbers stay as they are written: the id 1e5 differs from the id 100000.0.
    options = {"parse_int": str, "parse_float": str}
    rows: list[Row] = []
    if path.suffix.lower() == ".json":
        content = json.loads(text, **options)
        if not isinstance(content, list):
            raise ValueError(f"expected a list of objects, one per row, got {type(content).__name__}")
        for number, row in enumerate(content, start=1):
            rows.append((f"row {number}", row))
    else:
        # Not `splitlines`, which also splits at characters that may occur within a text.
        for number, line in enumerate(text.split("\n"), start=1):
            try:
                if line.strip():
                    rows.append((f"line {number}", json.loads(line, **options)))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
    # A row may lack some columns: all that occur, in their order.
    names: dict[str, None] = {}
    for where, row in rows:
        if not isinstance(row, dict):
            raise ValueError(f'{where}: expected an object, such as {{"path": ...}}, got {row!r:.80}')
        names |= dict.fromkeys(row)
    return list(names), rows


def _read_arrow(path: Path) -> tuple[list[str], list[Row]]:
    if path.is_dir():
        from datasets import DatasetDict, load_from_disk  # takes a second to import

        dataset = load_from_disk(str(path))
        if isinstance(dataset, DatasetDict):
            splits = ", ".join(str(path / name) for name in dataset)
            raise ValueError(f"it holds several data sets. Name one of them: {splits}")
        table = dataset.with_format("arrow")[:]
    else:
        from pyarrow import parquet  # not at the top: it loads for 50 milliseconds

        table = parquet.read_table(path)
    rows = []
    for number, row in enumerate(table.to_pylist(), start=1):
        for name, cell in row.items():
            if isinstance(cell, dict) and "path" in cell:  # media, as `datasets` stores it
                row[name] = cell["path"]
        rows.append((f"row {number}", row))
    return table.column_names, rows


def read_table(path: str | os.PathLike) -> tuple[list[str], list[Row]]:
    """
    Read a table.

    Args:
        path (`str`): a path for which [`is_table`] holds.

    Returns:
        The names of the columns, and the rows. Numbers in JSON are returned as text, as they are written.

    Raises:
        ValueError: the table is malformed, or two of its columns have the same name; the message names the file.
    """
    path = Path(path)
    if not path.is_dir():
        check_content(path)  # reading a pipe or a device might never end
    readers = {".csv": _read_csv, ".json": _read_json, ".jsonl": _read_json}
    read = readers.get(path.suffix.lower(), _read_arrow)
    # All problems of a table become one error that names its file.
    try:
        names, rows = read(path)
    except (csv.Error, ValueError, RecursionError, KeyError, TypeError) as error:
        raise ValueError(f"{path} could not be read as a table: {error}.") from error
    # Of two columns with one name, cells of one would be lost.
    repeated = sorted(name for name, number in Counter(names).items() if number > 1)
    if repeated:
        raise ValueError(f"{path}: the columns {repeated} appear more than once. Give each its own name.")
    return names, rows


__all__ = ["KINDS", "Row", "is_table", "read_table"]
