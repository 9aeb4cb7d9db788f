"""Tables on disk that grow at the cost of what is new, and change as a whole or not at all: what they are, and how
they are read. [`~gallery.writing`] changes them.

A folder holds a manifest, `gallery.json`, and a folder for each table. A table is a list of shards: Arrow files that
are never changed once the manifest names them. The manifest itself names those at the end of a table, which change; a
second file names the large ones before them, and is written only when one more has become large. A commit writes new
shards and then replaces the manifest, which is the moment it happens; killed before, the folder is what it was, and
what was written is cleared away by the next writer. Rows are removed by a small file that lists them. Of sixteen small
shards that follow each other one is made, so that their number stays small and each row is written a few times only; a
shard has at most 65,536 rows, so that no commit writes much more than that, however large the table has grown.

Each table's folder is a data set for `datasets.load_from_disk` too. That view is derived from the manifest; it still
shows rows that were removed, until the gallery is made compact. It also holds what [`~gallery.repair.repair`] needs to
write a manifest again that is gone: the files in their order, which rows of them are removed, and the metadata.
"""

import hashlib
import io
import json
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gallery.files import read_json, without_infinity

MANIFEST = "gallery.json"
VERSION = 2
TABLES = ("clips", "queries", "files")
"""What a gallery holds: embedded clips, embedded captions that describe them, and the media files it knows."""

SHARD_NAME = re.compile(r"data-\d{6,12}(-\d{1,12})?\.arrow")
REMOVED_NAME = re.compile(r"removed-\d{6,12}-\d{1,12}\.npy")
SEALED_NAME = re.compile(r"sealed-\d{6,12}\.json")
_INFO, _STATE = DERIVED = "dataset_info.json", "state.json"


class DamagedFileError(ValueError):
    """A file is not as it was written: `path` names it, and `what` says what is wrong."""

    def __init__(self, path: Path, what: str, folder: Path):
        self.path, self.what = path, what
        super().__init__(f"{path} {what}. {remedy(folder)}")


def remedy(folder: Path) -> str:
    """What to do about a damaged gallery: the end of a message."""
    return f"Run `scalar repair {folder}`: it keeps what is whole."


@dataclass(frozen=True)
class Shard:
    """One file of a table as the manifest has it; `removed` names the file of the rows that are removed."""

    file: str
    rows: int
    bytes: int
    sha256: str
    removed: str | None = None
    num_removed: int = 0
    removed_sha256: str | None = None


class Part:
    """
    The rows of one shard, and the sorted numbers of those that are removed.

    Args:
        table (`pa.Table` or a function that returns one): the rows; a function is called when they are asked for.
        num_rows (`int`, *optional*): how many there are; needed beside a function.
        removed (`np.ndarray`, *optional*): by default none.
    """

    def __init__(
        self,
        table: pa.Table | Callable[[], pa.Table],
        num_rows: int | None = None,
        removed: np.ndarray | None = None,
    ):
        self._table = table
        self._num_rows = len(table) if num_rows is None else num_rows
        self.removed = np.empty(0, np.int64) if removed is None else removed

    def __len__(self) -> int:
        return self._num_rows

    @property
    def table(self) -> pa.Table:
        """The rows, mapped."""
        if not isinstance(self._table, pa.Table):
            self._table = self._table()
        return self._table

    def without(self, rows: Iterable[int]) -> "Part":
        """The same with more rows removed."""
        return Part(self.table, removed=np.union1d(self.removed, np.fromiter(rows, np.int64)))

    def kept(self) -> pa.Table:
        """The rows that are not removed, as pieces of the mapped file."""
        if not len(self.removed):
            return self.table
        edges = [-1, *self.removed.tolist(), len(self)]
        runs = [(first + 1, stop - first - 1) for first, stop in pairwise(edges)]
        pieces = [self.table.slice(start, length) for start, length in runs if length]
        return pa.concat_tables(pieces or [self.table.slice(0, 0)])


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One committed state: what the manifest says, and the parts of each table by name."""

    manifest: dict[str, Any]
    shards: dict[str, list[Shard]]
    parts: dict[str, list[Part]]


def _digest(content: dict[str, Any]) -> str:
    plain = {name: value for name, value in content.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def signed(content: dict[str, Any]) -> dict[str, Any]:
    """Add the hash by which a damaged JSON file is known."""
    content = without_infinity(content)
    return content | {"sha256": _digest(content)}


def is_as_signed(content: dict[str, Any]) -> bool:
    """Whether a JSON file is as it was written."""
    return content.get("sha256") == _digest(content)


def _shards_of(content: dict[str, Any], path: Path) -> dict[str, list[Shard]]:
    """The shards that a file names; a ValueError if it is not as it was written."""
    if not is_as_signed(content):
        raise DamagedFileError(path, "has changed since it was written", path.parent)
    return {name: [Shard(**entry) for entry in entries] for name, entries in content["tables"].items()}


def read_manifest(folder: Path) -> tuple[dict[str, Any], dict[str, list[Shard]]]:
    """
    Read the manifest of a folder.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is of another version, or damaged.
    """
    path = folder / MANIFEST
    manifest = read_json(path, remedy(folder))
    if manifest.get("version") != VERSION:
        raise ValueError(
            f"{path} is of version {manifest.get('version')!r:.80}; expected {VERSION}. Update this "
            "program, or index again."
        )
    shards, sealed = _shards_of(manifest, path), manifest.get("sealed")
    if sealed is None:
        return manifest, shards
    try:
        before = _shards_of(read_json(folder / sealed, remedy(folder)), folder / sealed)
    except FileNotFoundError as error:
        if read_json(path, remedy(folder)).get("sealed") == sealed:
            raise DamagedFileError(folder / sealed, f"is gone, although {path} names it", folder) from error
        return read_manifest(folder)  # a writer has replaced both
    return manifest, {name: before.get(name, []) + shards.get(name, []) for name in {**before, **shards}}


def _read_stream(source: pa.MemoryMappedFile | pa.Buffer) -> pa.Table:
    """Read rows in place; a ValueError if they are not what Arrow can rely on. Vectors are not looked at."""
    try:
        with pa.ipc.open_stream(source) as stream:
            table = stream.read_all()
        table.validate(full=True)
    except (OSError, TypeError, pa.ArrowException) as error:
        raise ValueError(str(error)) from error
    return table


def map_arrow(path: Path) -> pa.Table:
    """Memory-map an Arrow stream file; a ValueError if it is cut off or something else."""
    return _read_stream(pa.memory_map(str(path)))


def _read_removed(path: Path, shard: Shard) -> np.ndarray:
    """Read a list of removed rows; a ValueError if it is not as it was written."""
    raw = path.read_bytes()
    if hashlib.sha256(raw).hexdigest() != shard.removed_sha256:
        raise DamagedFileError(path, "has changed since it was written", path.parent.parent)
    return np.load(io.BytesIO(raw)).astype(np.int64)


def map_shard(folder: Path, shard: Shard, verified: bool) -> Part:
    """
    Map a shard, so that it stays what it is, and read its rows when they are asked for.

    Args:
        folder (`Path`): of its table.
        shard ([`Shard`]): what the manifest says.
        verified (`bool`): compare the rows with their hash when they are read.

    Raises:
        FileNotFoundError: a file is gone.
        DamagedFileError: a file is not as the manifest has it.
    """
    path = folder / shard.file
    size = path.stat().st_size
    if size != shard.bytes:
        raise DamagedFileError(path, f"is damaged: it must have {shard.bytes} bytes, got {size}", folder.parent)
    try:
        mapped = pa.memory_map(str(path)).read_buffer()  # not the file, whose position all threads would share
    except FileNotFoundError as error:
        error.filename = str(path)  # which Arrow leaves out
        raise

    def read() -> pa.Table:
        if verified and hashlib.sha256(mapped).hexdigest() != shard.sha256:
            raise DamagedFileError(path, "has changed since it was written", folder.parent)
        try:
            table = _read_stream(mapped)
        except ValueError as error:
            raise DamagedFileError(path, f"is damaged: {error}", folder.parent) from error
        if len(table) != shard.rows:
            raise DamagedFileError(path, f"must have {shard.rows} rows, got {len(table)}", folder.parent)
        return table

    removed = None if shard.removed is None else _read_removed(folder / shard.removed, shard)
    return Part(read, shard.rows, removed)


def read_snapshot(folder: Path, known: Snapshot | None = None, verified: bool = False) -> Snapshot:
    """
    Map the last committed state; a commit that happens meanwhile is seen as a whole or not at all.

    Args:
        folder (`Path`): the gallery.
        known ([`Snapshot`], *optional*): an earlier state, whose parts are taken over where they are the same.
        verified (`bool`): compare each shard with its hash when it is read for the first time.

    Raises:
        FileNotFoundError: there is no gallery.
        ValueError: a file is damaged or gone.
    """
    mapped = {}
    if known is not None:
        for name, shards in known.shards.items():
            mapped |= {(name, shard): part for shard, part in zip(shards, known.parts[name], strict=True)}
    while True:
        manifest, shards = read_manifest(folder)
        try:
            parts = {
                name: [mapped.get((name, shard)) or map_shard(folder / name, shard, verified) for shard in entries]
                for name, entries in shards.items()
            }
            return Snapshot(manifest, shards, parts)
        except FileNotFoundError as error:
            # A writer may have replaced this state, and its files, since the manifest was read.
            if read_manifest(folder)[0]["commit"] == manifest["commit"]:
                path = Path(error.filename)
                raise DamagedFileError(path, f"is gone, although {folder / MANIFEST} names it", folder) from error


def derived_is_whole(path: Path) -> bool:
    """Whether a file that `datasets` reads is as some commit wrote it."""
    try:
        return is_as_signed(read_json(path))
    except (OSError, ValueError):
        return False


def verify(folder: Path) -> int:
    """
    Compare every file of a gallery with its hash, and every value with its type.

    Returns:
        `int`: how many bytes were read.

    Raises:
        ValueError: a file is damaged, or gone for good; all of them are named.
    """
    while True:
        manifest, shards = read_manifest(folder)
        parts, damaged, is_gone = [], [], False
        for name, shard in ((name, shard) for name, entries in shards.items() for shard in entries):
            try:
                parts.append(map_shard(folder / name, shard, verified=True))
            except FileNotFoundError as error:
                is_gone = True
                damaged.append(str(error.filename))
            except DamagedFileError as error:
                damaged.append(str(error.path))
        # What is gone may have been replaced by a writer; all else is mapped, and stays what it is.
        if not is_gone or read_manifest(folder)[0]["commit"] == manifest["commit"]:
            break
    for part in parts:
        try:
            part.table  # noqa: B018 - compared when it is read
        except DamagedFileError as error:
            damaged.append(str(error.path))
    # What `datasets` reads is written after a commit: where it is gone, the next writer makes it.
    derived = (folder / name / file for name in shards for file in DERIVED)
    damaged += [str(path) for path in derived if path.exists() and not derived_is_whole(path)]
    if damaged:
        raise ValueError(f"Gone, or changed since they were written: {damaged}. {remedy(folder)}")
    return sum(shard.bytes for entries in shards.values() for shard in entries)


def damaged_shards(folder: Path, found: dict[tuple[Path, Shard, int], str | None], rest: float) -> list[str]:
    """
    Compare the files of a gallery with their hashes, one after the other, while it is in use.

    Args:
        folder (`Path`): the gallery.
        found (`dict`): what is wrong with each file, as it was last changed, that was compared before, `None` with
            one that is whole; those that are compared now are added, and those that are no more are taken out.
        rest (`float`): so many times as long as comparing a file takes, nothing is read afterwards.

    Returns:
        What is wrong with files of the gallery as it is now.

    Raises:
        FileNotFoundError: there is no gallery.
        ValueError: the manifest cannot be read.
    """
    shards = [(folder / name, shard) for name, entries in read_manifest(folder)[1].items() for shard in entries]
    before = dict(found)
    found.clear()
    for table, shard in shards:
        with suppress(FileNotFoundError):  # a writer replaced it, or who opens the gallery is told
            key, begun = (table, shard, (table / shard.file).stat().st_mtime_ns), time.monotonic()
            if key in before:
                found[key] = before[key]
                continue
            try:
                map_shard(table, shard, verified=True).table  # noqa: B018 - compared when it is read
                found[key] = None
            except DamagedFileError as error:
                found[key] = str(error)
            time.sleep(rest * (time.monotonic() - begun))
    return [wrong for wrong in found.values() if wrong is not None]


def has_lost_its_manifest(folder: Path) -> bool:
    """Whether a folder holds tables of a gallery, but no manifest that names their files."""
    # In this order: a writer places the manifest first.
    ours = any(_is_ours(folder / name / _STATE) for name in TABLES)
    return ours and not (folder / MANIFEST).is_file()


def _is_ours(state: Path) -> bool:
    """Whether a state file of `datasets` was written here."""
    try:
        return "sha256" in read_json(state)
    except (OSError, ValueError):
        return False


def check_not_lost(folder: Path) -> None:
    """Raise a ValueError if the manifest of a gallery is gone."""
    if has_lost_its_manifest(folder):
        raise DamagedFileError(folder / MANIFEST, "is gone, although tables of a gallery are there", folder)


__all__ = [
    "DERIVED",
    "MANIFEST",
    "REMOVED_NAME",
    "SEALED_NAME",
    "SHARD_NAME",
    "TABLES",
    "VERSION",
    "DamagedFileError",
    "Part",
    "Shard",
    "Snapshot",
    "check_not_lost",
    "damaged_shards",
    "derived_is_whole",
    "has_lost_its_manifest",
    "is_as_signed",
    "map_arrow",
    "map_shard",
    "read_manifest",
    "read_snapshot",
    "remedy",
    "signed",
    "verify",
]
