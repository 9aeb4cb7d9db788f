"""Tables on disk that grow at the cost of what is new, and change as a whole or not at all.

A folder holds a manifest, `gallery.json`, and a folder for each table. A table is a list of shards: Arrow files that
are never changed once the manifest names them. The manifest itself names those at the end of a table, which change; a
second file names the large ones before them, and is written only when one more has become large. A commit writes new
shards and then replaces the manifest, which is the moment it happens; killed before, the folder is what it was, and
what was written is cleared away by the next writer. Rows are removed by a small file that lists them. Of sixteen small
shards that follow each other one is made, so that their number stays small and each row is written a few times only; a
shard has at most `SHARD_ROWS` rows, so that no commit writes much more than that, however large the table has grown.

Each table's folder is a data set for `datasets.load_from_disk` too. That view is derived from the manifest; it still
shows rows that were removed, until [`Writer.compact`].
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gallery.files import locked, read_json, sha256_of, sync_folder, write_json

MANIFEST = "gallery.json"
VERSION = 2
SHARD_ROWS = 65_536
"""The most rows of one file: what a commit may have to write again."""

TABLES = ("clips", "queries", "files")
"""What a gallery holds: embedded clips, embedded captions that describe them, and the media files it knows."""

_FANOUT = 16  # so many small shards in a row become one
_LOCK = ".lock"
_FILES = re.compile(r"(data|removed)-\d{6,}(-\d+)?\.(arrow|npy)(\.new)?")
_SHARD_NAME, _REMOVED_NAME = re.compile(r"data-\d{6,}(-\d+)?\.arrow"), re.compile(r"removed-\d{6,}-\d+\.npy")
_SEALED_NAME = re.compile(r"sealed-\d{6,}\.json")
_TEMPORARY = re.compile(r"\.(gallery|state|dataset_info|sealed-\d{6,})\.json\.\d+")  # of `write_json`, if it is killed
_SEALED_ROWS = SHARD_ROWS // _FANOUT  # from so many rows on, a shard is seldom merged again
_STATE, _INFO = "state.json", "dataset_info.json"
_DTYPES = {"halffloat": "float16", "float": "float32", "double": "float64"}  # names in Arrow to those in `datasets`


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


# Reading ----------------------------------------------------------------------------------------------------------


def _read_shards(path: Path, tables: Any) -> dict[str, list[Shard]]:
    try:
        shards = {name: [Shard(**entry) for entry in entries] for name, entries in tables.items()}
        if not set(shards) <= set(TABLES):
            raise ValueError(f"tables are {list(TABLES)}, got {list(shards)}")
        for entry in (entry for entries in shards.values() for entry in entries):
            if not _SHARD_NAME.fullmatch(entry.file) or not (
                entry.removed is None or _REMOVED_NAME.fullmatch(entry.removed)
            ):
                raise ValueError(f"{entry.file!r} or {entry.removed!r} is no name of a shard")
            if not 0 <= entry.num_removed <= entry.rows <= SHARD_ROWS or entry.bytes < 0:
                raise ValueError(f"the numbers of {entry.file!r} contradict each other")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not as a gallery's manifest is written: {error!r}. Restore the file.") from error
    return shards


def read_manifest(folder: Path) -> tuple[dict[str, Any], dict[str, list[Shard]]]:
    """
    Read the manifest of a folder.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is of another version, or damaged.
    """
    path = folder / MANIFEST
    manifest = read_json(path)
    if manifest.get("version") != VERSION:
        raise ValueError(
            f"{path} is of version {manifest.get('version')!r}; expected {VERSION}. An older gallery can be read, and "
            "converted with `python -m search convert OLD NEW`; for a newer one, update this program."
        )
    if not isinstance(manifest.get("metadata"), dict) or not isinstance(manifest.get("commit"), int):
        raise ValueError(f"{path} must hold the object `metadata` and the number `commit`. Restore the file.")
    shards, sealed = _read_shards(path, manifest.get("tables")), manifest.get("sealed")
    if sealed is None:
        return manifest, shards
    if not isinstance(sealed, str) or not _SEALED_NAME.fullmatch(sealed):
        raise ValueError(f"`sealed` in {path} must name a file, got {sealed!r}. Restore the file.")
    try:
        before = _read_shards(folder / sealed, read_json(folder / sealed).get("tables"))
    except FileNotFoundError as error:
        if read_json(path).get("sealed") == sealed:
            raise ValueError(f"{folder / sealed} is gone, although {path} names it. Restore it.") from error
        return read_manifest(folder)  # a writer has replaced both
    return manifest, {name: before.get(name, []) + shards.get(name, []) for name in {**before, **shards}}


def _read_stream(source: pa.MemoryMappedFile, path: Path) -> pa.Table:
    try:
        with pa.ipc.open_stream(source) as stream:
            table = stream.read_all()
        table.validate()
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"{path} is damaged or no Arrow file: {error}. Restore it, or build it again.") from error
    return table


def map_arrow(path: Path) -> pa.Table:
    """Memory-map an Arrow stream file; a ValueError if it is cut off or something else."""
    return _read_stream(pa.memory_map(str(path)), path)


def _map_shard(folder: Path, shard: Shard, verified: bool) -> Part:
    """Map a shard, so that it stays what it is, and read its rows when they are asked for."""
    path = folder / shard.file
    try:
        source = pa.memory_map(str(path))
    except FileNotFoundError as error:
        error.filename = str(path)  # which Arrow leaves out
        raise
    if source.size() != shard.bytes:
        raise ValueError(
            f"{path} is damaged: it must have {shard.bytes} bytes, got {source.size()}. Restore it, or build it again."
        )

    def read() -> pa.Table:
        if verified and hashlib.sha256(source.read_buffer()).hexdigest() != shard.sha256:
            raise ValueError(f"{path} has changed since it was written. Restore it, or build it again.")
        source.seek(0)
        table = _read_stream(source, path)
        if len(table) != shard.rows:
            raise ValueError(f"{path} must have {shard.rows} rows, got {len(table)}. Restore it, or build it again.")
        return table

    if shard.removed is None:
        return Part(read, shard.rows)
    try:
        removed = np.load(folder / shard.removed, allow_pickle=False).astype(np.int64)
        if removed.shape != (shard.num_removed,) or not np.all(np.diff(removed, prepend=-1, append=shard.rows) > 0):
            raise ValueError(f"expected {shard.num_removed} sorted rows below {shard.rows}")
    except (EOFError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / shard.removed} is damaged: {error}. Restore it.") from error
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
                name: [mapped.get((name, shard)) or _map_shard(folder / name, shard, verified) for shard in entries]
                for name, entries in shards.items()
            }
            return Snapshot(manifest, shards, parts)
        except FileNotFoundError as error:
            # A writer may have replaced this state, and its files, since the manifest was read.
            if read_manifest(folder)[0]["commit"] == manifest["commit"]:
                raise ValueError(
                    f"{error.filename} is gone, although {folder / MANIFEST} names it. Restore it, or build the "
                    "gallery again."
                ) from error


def verify(folder: Path) -> int:
    """
    Compare every file of a gallery with its hash, and every value with its type.

    Returns:
        `int`: how many bytes were read.

    Raises:
        ValueError: a file is damaged or gone; all of them are named.
    """
    num_bytes, damaged = 0, []
    for name, shards in read_manifest(folder)[1].items():
        for shard in shards:
            for file, digest in ((shard.file, shard.sha256), (shard.removed, shard.removed_sha256)):
                path = folder / name / str(file)
                if file is not None and (not path.is_file() or sha256_of(path) != digest):
                    damaged.append(str(path))
            num_bytes += shard.bytes
    if damaged:
        raise ValueError(f"Gone, or changed since they were written: {damaged}. Restore them, or build them again.")
    for parts in read_snapshot(folder).parts.values():
        for part in parts:
            part.table.validate(full=True)
    return num_bytes


# Writing ----------------------------------------------------------------------------------------------------------


def _write_new(path: Path, write: Any) -> tuple[int, str]:
    """Write a file beside its place, then rename it; its size and hash."""
    new = path.with_name(path.name + ".new")
    with open(new, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    return path.stat().st_size, sha256_of(path)


def check_place(folder: Path) -> None:
    """Raise a ValueError unless a gallery may be begun in a folder: a new or empty one, or one begun and killed."""
    if folder.is_file():
        raise ValueError(f"{folder} is a file; a gallery is a folder.")
    for path in folder.rglob("*") if folder.exists() else ():
        ours = (pattern.fullmatch(path.name) for pattern in (_FILES, _SEALED_NAME, _TEMPORARY))
        if path.name not in (_LOCK, _INFO) and not path.is_dir() and not any(ours):
            raise ValueError(
                f"{folder} holds something else than a gallery, {path.name!r}. Give a new or empty folder."
            )


class Writer:
    """
    The one process that may change the tables of a folder; what it changes is seen after [`Writer.commit`] only.

    Args:
        folder (`str`): an existing gallery, or a new or empty folder.

    Raises:
        ValueError: another process writes at this moment, the folder holds something else, or it is damaged.

    To be used in a `with` statement, or closed by [`Writer.close`]; what was not committed is dropped then.
    `bytes_written` counts what all commits of this object wrote.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)
        self.bytes_written = 0
        with ExitStack() as held:
            is_new = not (self.folder / MANIFEST).is_file()
            if is_new:
                check_place(self.folder)
            self.folder.mkdir(parents=True, exist_ok=True)
            message = f"Another process writes to {self.folder} at this moment. Wait until it has finished, or end it."
            held.enter_context(locked(self.folder / _LOCK, message))
            if (self.folder / MANIFEST).is_file():
                self.snapshot = read_snapshot(self.folder)
                self._derive()
            else:
                manifest = {"version": VERSION, "commit": 0, "metadata": {}, "tables": {}}
                self.snapshot = Snapshot(manifest, {}, {})
            self._clear()
            self._held = held.pop_all()
        self._forget()

    def _forget(self) -> None:
        self.metadata: dict[str, Any] = dict(self.snapshot.manifest["metadata"])
        self._new: dict[str, list[pa.Table]] = {}
        self._cleared: set[str] = set()
        self._removed: dict[str, dict[int, set[int]]] = {}  # table, place of the part, rows

    def close(self) -> None:
        """Drop what was not committed, and let others write."""
        self._held.close()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def append(self, name: str, rows: pa.Table) -> None:
        """Add rows at the end of a table; the first ones decide its columns. A ValueError if others have others."""
        known = self._new.get(name) or [part.table for part in self._old(name)[:1]]
        if known and not known[0].schema.equals(rows.schema):
            raise ValueError(f"`{name}` has the columns\n{known[0].schema}\nbut rows were given with\n{rows.schema}")
        self._new.setdefault(name, []).append(rows)

    def remove(self, name: str, place: int, rows: Iterable[int]) -> None:
        """Remove rows of the part at `place` in the committed table `name`."""
        self._removed.setdefault(name, {}).setdefault(place, set()).update(rows)

    def clear(self, name: str) -> None:
        """Remove all rows of a table; the next ones may have other columns."""
        self._new.pop(name, None)
        self._removed.pop(name, None)
        if name in self.snapshot.parts:
            self._cleared.add(name)

    def _old(self, name: str) -> list[Part]:
        return [] if name in self._cleared else self.snapshot.parts.get(name, [])

    def commit(self) -> bool:
        """
        Make what was changed the new state; return whether anything was changed.

        Raises:
            OSError: the files could not be written, of a full disk say; the state is the old one, and what was
                changed can be committed again.
        """
        has_rows = any(len(table) for tables in self._new.values() for table in tables)
        is_described = self.metadata == self.snapshot.manifest["metadata"]
        if is_described and not (has_rows or self._cleared or any(self._removed.values())):
            return False
        return self._commit({name: self._plan(name) for name in {*self.snapshot.parts, *self._new}})

    def compact(self) -> None:
        """Commit, and write all tables again without what was removed, in as few files as there can be."""
        tables = {name: self._parts(name) for name in {*self.snapshot.parts, *self._new}}
        self._commit({name: [(None, parts)] if parts else [] for name, parts in tables.items()})

    def _parts(self, name: str) -> list[Part]:
        """The parts of a table as they will be; new rows come last."""
        parts = []
        for place, part in enumerate(self._old(name)):
            more = self._removed.get(name, {}).get(place)
            parts.append(part.without(more) if more else part)
        return parts + [Part(table) for table in self._new.get(name, [])]

    def _plan(self, name: str) -> list[tuple[Shard | None, list[Part]]]:
        """What the table's files will be, in order: each an old shard, or parts to write into new files."""
        parts, old = self._parts(name), [] if name in self._cleared else self.snapshot.shards.get(name, [])
        plan = [(shard, [part]) for shard, part in zip(old, parts, strict=False)]
        plan = [
            (None if 2 * len(part.removed) >= len(part) and len(part.removed) else shard, [part])
            for shard, (part,) in plan
        ]
        new = parts[len(old) :]
        if new:
            plan.append((None, new))
        while run := self._run(plan):
            merged = [part for _, parts in plan[run] for part in parts]
            plan[run] = [(None, merged)]
        return plan

    @staticmethod
    def _run(plan: Sequence[tuple[Shard | None, list[Part]]]) -> slice | None:
        """Which files at the end of a table are to become one: sixteen or more, none much larger than the last."""
        rows = [sum(len(part) - len(part.removed) for part in parts) for _, parts in plan]
        if not rows:
            return None
        limit = _FANOUT ** (1 + int(np.log(max(rows[-1], 1)) / np.log(_FANOUT) + 1e-9))
        start = len(rows)
        while start and rows[start - 1] < limit:
            start -= 1
        if len(rows) - start < _FANOUT:
            return None
        stop = start
        while stop < len(rows) and sum(rows[start : stop + 1]) <= SHARD_ROWS:
            stop += 1
        return slice(start, stop) if stop - start >= 2 else None

    def _commit(self, plans: dict[str, list[tuple[Shard | None, list[Part]]]]) -> bool:
        number = self.snapshot.manifest["commit"] + 1
        try:
            shards = {name: self._write_table(name, plan, number) for name, plan in sorted(plans.items())}
            sealed, last = self._seal(shards, number)
            manifest = {
                "version": VERSION,
                "commit": number,
                "num_rows": {name: sum(s.rows - s.num_removed for s in entries) for name, entries in shards.items()},
                "metadata": self.metadata,
                "sealed": sealed,
                "tables": _entries(last),
            }
            self.bytes_written += write_json(manifest, self.folder / MANIFEST)
            self._settle()
        except BaseException:
            # Whatever it was, the manifest tells whether the commit happened: then nothing may be written twice.
            if (self.folder / MANIFEST).is_file() and read_manifest(self.folder)[0]["commit"] == number:
                self._settle()
            else:
                self._clear()
            raise
        return True

    def _seal(self, shards: dict[str, list[Shard]], number: int) -> tuple[str | None, dict[str, list[Shard]]]:
        """Name the large shards at the beginning of each table in a file of their own; the file, and the others."""
        large = {
            name: list(takewhile(lambda shard: shard.rows >= _SEALED_ROWS, entries))
            for name, entries in shards.items()
        }
        last = {name: entries[len(large[name]) :] for name, entries in shards.items()}
        if not any(large.values()):
            return None, last
        known, content = self.snapshot.manifest.get("sealed"), {"tables": _entries(large)}
        if known is not None and read_json(self.folder / known) == content:
            return known, last
        name = f"sealed-{number:06d}.json"
        self.bytes_written += write_json(content, self.folder / name)
        return name, last

    def _settle(self) -> None:
        """Take over what the manifest says now."""
        self.snapshot = read_snapshot(self.folder, self.snapshot)
        self._forget()
        self._derive()
        self._clear()

    def _write_table(self, name: str, plan: list[tuple[Shard | None, list[Part]]], number: int) -> list[Shard]:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        tables = [part.table for _, parts in plan for part in parts]
        schema = (tables or [part.table for part in self.snapshot.parts[name]])[0].schema
        shards = []
        for shard, parts in plan:
            if shard is None:
                rows = pa.concat_tables(part.kept() for part in parts)
                for start in range(0, len(rows), SHARD_ROWS):
                    shards.append(self._write_shard(folder, rows[start : start + SHARD_ROWS], number, len(shards)))
            elif len(parts[0].removed) != shard.num_removed:
                shards.append(self._write_removed(folder, shard, parts[0].removed, number, len(shards)))
            else:
                shards.append(shard)
        if not shards:  # a table without rows keeps its columns
            shards.append(self._write_shard(folder, schema.empty_table(), number, 0))
        sync_folder(folder)
        return shards

    def _write_shard(self, folder: Path, rows: pa.Table, number: int, place: int) -> Shard:
        def write(file: Any) -> None:
            with pa.ipc.new_stream(file, rows.schema) as stream:
                # One batch: its columns are matrices in one piece.
                stream.write_table(rows.combine_chunks())

        path = folder / f"data-{number:06d}-{place}.arrow"
        size, digest = _write_new(path, write)
        self.bytes_written += size
        return Shard(path.name, len(rows), size, digest)

    def _write_removed(self, folder: Path, shard: Shard, removed: np.ndarray, number: int, place: int) -> Shard:
        path = folder / f"removed-{number:06d}-{place}.npy"
        size, digest = _write_new(path, lambda file: np.save(file, removed.astype(np.uint32), allow_pickle=False))
        self.bytes_written += size
        return replace(shard, removed=path.name, num_removed=len(removed), removed_sha256=digest)

    def _derive(self) -> None:
        """Show each table to `datasets` as it is now."""
        for name, entries in self.snapshot.shards.items():
            folder, schema = self.folder / name, self.snapshot.parts[name][0].table.schema
            state = {
                "_data_files": [{"filename": shard.file} for shard in entries],
                "_fingerprint": entries[-1].sha256[:16],
                "_format_columns": None,
                "_format_kwargs": {},
                "_format_type": None,
                "_output_all_columns": False,
                "_split": None,
                "columns": str(schema),  # not for `datasets`: whether what lies beside this file is right
            }
            known = read_json(folder / _STATE) if (folder / _STATE).is_file() else {}
            if known.get("columns") != state["columns"]:
                self.bytes_written += write_json(_dataset_info(schema), folder / _INFO)
            if known != state:
                self.bytes_written += write_json(state, folder / _STATE)

    def _clear(self) -> None:
        """Delete files of ours to which the manifest on disk does not refer."""
        manifest, named = read_manifest(self.folder) if (self.folder / MANIFEST).is_file() else ({}, {})
        used = {(self.folder, manifest.get("sealed"))}
        for name, shards in named.items():
            used |= {(self.folder / name, file) for shard in shards for file in (shard.file, shard.removed)}
        for folder in (self.folder, *(self.folder / name for name in TABLES)):
            patterns = (_SEALED_NAME, _TEMPORARY) if folder == self.folder else (_FILES, _TEMPORARY)
            for path in folder.glob("*"):
                if (folder, path.name) not in used and any(pattern.fullmatch(path.name) for pattern in patterns):
                    path.unlink(missing_ok=True)


def _entries(shards: dict[str, list[Shard]]) -> dict[str, list[dict[str, Any]]]:
    """Shards as JSON has them, without what is empty."""
    return {
        name: [{k: v for k, v in asdict(shard).items() if v} | {"rows": shard.rows} for shard in entries]
        for name, entries in shards.items()
    }


def _feature(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_fixed_size_list(kind):
        return {"feature": _feature(kind.value_type), "length": kind.list_size, "_type": "List"}
    if pa.types.is_list(kind):
        return {"feature": _feature(kind.value_type), "_type": "List"}
    return {"dtype": _DTYPES.get(str(kind), str(kind)), "_type": "Value"}


def _dataset_info(schema: pa.Schema) -> dict[str, Any]:
    """What `datasets` keeps beside the files of a data set; written here because the library is slow to load."""
    return {"features": {item.name: _feature(item.type) for item in schema}}


__all__ = [
    "MANIFEST",
    "SHARD_ROWS",
    "TABLES",
    "VERSION",
    "Part",
    "Shard",
    "Snapshot",
    "Writer",
    "check_place",
    "map_arrow",
    "read_manifest",
    "read_snapshot",
    "verify",
]
