"""What there is to index: folders, files, and lists that name files and may say what is spoken in them.

A list is a CSV, JSON Lines or Parquet file, or a data set that `datasets` saved. Its column `path`, or `video`, names
a file of each row, from the folder in which the list lies; `subtitle` may hold the words, or name an `.srt` or `.vtt`
file. Other columns are an error unless they are to be ignored: nothing that somebody wrote down is dropped in silence.
"""

import csv
import json
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from modeling_scalar.processing_scalar import names_subtitle_file

EXTENSIONS = frozenset(
    ".mp4 .m4v .mov .mkv .webm .avi .mpg .mpeg .ts .flv .wmv .ogv .3gp .wav .mp3 .m4a .flac .ogg".split()
)
"""What is taken from a folder; a file named explicitly is taken whatever its extension."""

_PATHS = ("path", "video")
_SUBTITLE = "subtitle"

_Row = tuple[str, dict[str, Any]]
"""Where a row stands, as people say it, and its cells."""


def find_files(paths: Iterable[str | os.PathLike]) -> list[str]:
    """List the files that `paths` (files and folders) stand for, absolute, free of symbolic links, each once.

    Raises:
        FileNotFoundError: a path does not exist.
        OSError: a folder cannot be listed.
    """
    found, visited = {}, set()
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"There is no file or folder {str(path)!r}.")
        if not path.is_dir():
            found[real_path(path)] = None
            continue
        for folder, subfolders, names in os.walk(path, onerror=_reraise, followlinks=True):
            real = os.path.realpath(folder)
            if real in visited:
                subfolders.clear()  # linked folders are followed once, so a circle of links ends
            visited.add(real)
            subfolders.sort()
            for name in sorted(names):
                if os.path.splitext(name)[1].lower() in EXTENSIONS:
                    found[real_path(os.path.join(folder, name))] = None
    return list(found)


def real_path(path: str | os.PathLike) -> str:
    """The file that a link leads to; one that leads to anything else is reported by its own name."""
    real = os.path.realpath(path)
    return os.path.abspath(path) if os.path.exists(real) and not os.path.isfile(real) else real


def _reraise(error: OSError) -> None:
    raise error


def _read_csv(path: Path, choose: Callable[[Iterable[str]], list[str]]) -> Iterator[_Row]:
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
                        f"{path}, {where}: expected {len(header)} cells, as line 1 has, got {len(row)}. Put cells "
                        'with commas into quotes: "like, this".'
                    )
                cells = dict(zip(header, row, strict=True))
                yield where, {name: cells[name] for name in names}
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: the list is not UTF-8 ({error.reason}, byte {error.start}). Convert it.") from error


def _read_json_lines(path: Path, choose: Callable[[Iterable[str]], list[str]]) -> Iterator[_Row]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"line {number}"
            try:
                row = json.loads(line)
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}, {where}: not UTF-8 ({error.reason}). Convert the list.") from error
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, {where}: not JSON ({error}). Write one object in each line.") from error
            if not isinstance(row, dict):
                raise ValueError(f'{path}, {where}: expected an object, such as {{"path": ...}}, got {line[:80]!r}.')
            try:
                names = choose(row)
            except ValueError as error:
                raise ValueError(f"{error} (in {where})") from None
            yield where, {name: row[name] for name in names}


def _rows_of(batches: Iterable[pa.RecordBatch], names: list[str]) -> Iterator[_Row]:
    number = 0
    for batch in batches:
        for cells in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
            number += 1
            # as `datasets` keeps media: a path and, if they were read already, bytes
            plain = [cell["path"] if isinstance(cell, dict) and "path" in cell else cell for cell in cells]
            yield f"row {number}", dict(zip(names, plain, strict=True))


def _read_parquet(path: Path, choose: Callable[[Iterable[str]], list[str]]) -> Iterator[_Row]:
    try:
        with pa.parquet.ParquetFile(path) as file:
            names = choose(file.schema_arrow.names)
            yield from _rows_of(file.iter_batches(columns=names), names)
    except pa.ArrowException as error:
        raise ValueError(f"{path} is no Parquet file, or damaged: {error}") from error


def _read_data_set(path: Path, choose: Callable[[Iterable[str]], list[str]]) -> Iterator[_Row]:
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


_READERS = {".csv": _read_csv, ".jsonl": _read_json_lines, ".parquet": _read_parquet}


def _reader_of(path: Path) -> Callable | None:
    """What reads a list; `None` for anything else."""
    if path.is_dir():
        one, several = ("state.json", "dataset_info.json"), ("dataset_dict.json",)
        is_data_set = any(all((path / name).is_file() for name in names) for names in (one, several))
        return _read_data_set if is_data_set else None
    return _READERS.get(path.suffix.lower())


def is_list(path: str | os.PathLike) -> bool:
    """Whether a path is a list, not a folder of media or a media file: by its extension, or as a saved data set."""
    return _reader_of(Path(path)) is not None


def read_list(path: str | os.PathLike, ignored: Collection[str] = ()) -> dict[str, str | None]:
    """
    Read a list of files.

    Args:
        path (`str`): a CSV file with a header, a file of JSON objects, one in each line, a Parquet file, or the folder
            of a data set. What it names is looked for from the folder in which it lies.
        ignored: names of columns that are not used.

    Returns:
        `dict`: the files, in their order, and what is said in each: words, the path of an `.srt` or `.vtt` file, or
        `None` where the list says nothing.

    Raises:
        ValueError: not such a list; a column is lacking, unknown or holds something else; or two rows of one file
            disagree. The message names the list, the line and the column.
    """
    path = Path(path)
    folder = Path(os.path.abspath(path)).parent
    found: dict[str, tuple[str, str | None]] = {}

    def choose(names: Iterable[str]) -> list[str]:
        names = [name for name in names if name not in ignored]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{path}: the columns {repeated} are there more than once. Give each its own name.")
        paths = [name for name in _PATHS if name in names]
        if len(paths) != 1:
            got = f"got {names}" if names else "there is none"
            raise ValueError(f"{path} must have one column `path`, or `video`, that names the files; {got}.")
        if unknown := [name for name in names if name not in (*paths, _SUBTITLE)]:
            flags = " ".join(f"--ignore {shlex.quote(name)}" for name in unknown)  # one may have no name
            raise ValueError(
                f"{path}: nothing is known to do with the columns {unknown}; known are `path` or `video`, and "
                f"`subtitle`. Leave the others out by {flags}."
            )
        return names

    for where, row in _reader_of(path)(path, choose):
        for name, cell in row.items():
            if not isinstance(cell, str | None) or (isinstance(cell, str) and "\0" in cell):
                raise ValueError(f"{path}, {where}, column `{name}`: expected a text, got {cell!r}.")
        words = row.pop(_SUBTITLE, None)
        words = words if words and words.strip() else None
        ((name, file),) = row.items()
        if not file:
            raise ValueError(f"{path}, {where}, column `{name}`: expected the path of a file, got {file!r}.")
        if words is not None and names_subtitle_file(words):
            words = os.path.join(folder, words)
            if not os.path.isfile(words):
                raise ValueError(f"{path}, {where}, column `{_SUBTITLE}`: there is no file {words!r}.")
        file = real_path(os.path.join(folder, file))
        before, said = found.setdefault(file, (where, words))
        if said != words:
            raise ValueError(f"{path}, {before} and {where}, column `{_SUBTITLE}`: they disagree about {file}.")
    return {file: words for file, (_, words) in found.items()}


def find_clips(paths: Iterable[str | os.PathLike], ignored: Collection[str] = ()) -> tuple[list[str], dict[str, str]]:
    """
    List the files that folders, files and lists stand for, each once, and what lists say is spoken in them.

    Returns:
        The files, and of those of which a list tells it: words, or the path of a subtitle file.

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: see [`read_list`]; or two lists disagree.
    """
    found, subtitles = {}, {}
    for path in map(Path, paths):
        if not is_list(path) or not path.exists():
            found |= dict.fromkeys(find_files([path]))
            continue
        for file, words in read_list(path, ignored).items():
            if words is not None and subtitles.setdefault(file, words) != words:
                raise ValueError(f"{path} and a list before it disagree about the subtitle of {file}.")
            found[file] = None
    return list(found), subtitles


__all__ = ["EXTENSIONS", "find_clips", "find_files", "is_list", "read_list"]
