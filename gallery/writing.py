"""The one process that may change the tables of a folder in the format of [`~gallery.storage`]."""

import io
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gallery.files import locked, naming, read_json, sha256_of, sync_folder, write_json, write_whole
from gallery.storage import (
    COPY,
    DERIVED,
    KEYS,
    MANIFEST,
    MOST_PIECES,
    REMOVED_NAME,
    SHARD_NAME,
    TABLES,
    VERSION,
    Part,
    Shard,
    Snapshot,
    check_not_lost,
    read_manifest,
    read_snapshot,
    remedy,
    signed,
)

SHARD_ROWS = 65_536
"""Maximum rows of one file, which a commit may have to write again."""

_GROWTH = 4  # small shards are joined once the result is this many times as large as the first of them
_NEARLY_FULL = 7 / 8  # shards with this share of the maximum are not joined with others
_LOCK = ".lock"
_FILES = re.compile(rf"{SHARD_NAME.pattern}|{REMOVED_NAME.pattern}")
_TEMPORARY = re.compile(  # left by `write_whole`, if it is killed
    rf"\.(gallery(-copy)?\.json|state\.json|dataset_info\.json|{SHARD_NAME.pattern}|{REMOVED_NAME.pattern})\.\d+"
)
_INFO, _STATE = DERIVED
_DTYPES = {"halffloat": "float16", "float": "float32", "double": "float64"}  # Arrow's names to those of `datasets`


def _saved(removed: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, removed.astype("<u4"), allow_pickle=False)
    return file.getvalue()


def _write_new(path: Path, write: Callable[[Any], Any]) -> tuple[int, str]:
    """Write a file, completely or not at all; returns its size and hash."""
    write_whole(path, write)
    return path.stat().st_size, sha256_of(path)


def check_place(folder: Path) -> None:
    """Raise a ValueError unless a folder may become a gallery: a new or empty one, or one begun and killed."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; a gallery is a folder.")
    check_not_lost(folder)
    for path in folder.rglob("*"):
        is_ours = path.name == _LOCK or _FILES.fullmatch(path.name) or _TEMPORARY.fullmatch(path.name)
        if not path.is_dir() and not is_ours:
            raise ValueError(
                f"{folder} contains something other than a gallery: {path.name!r}. Choose a new or empty folder."
            )


class Writer:
    """
    The one process that may change the tables of a folder; its changes become visible only after [`Writer.commit`].

    Args:
        folder (`str`): an existing gallery, or a new or empty folder.

    Raises:
        ValueError: another process is writing, the folder holds something else, or it is damaged.

    To be used in a `with` statement, or closed by [`Writer.close`]; uncommitted changes are then dropped.
    `bytes_written` counts the bytes of all commits of this object.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)
        self.bytes_written = 0
        self._rows_by_key: dict[tuple[str, str], dict[str, int]] = {}
        with ExitStack() as held:
            self._check_folder()
            self.folder.mkdir(parents=True, exist_ok=True)
            message = f"Another process writes to {self.folder}. Wait until it has finished, or end it."
            self._check_lock = held.enter_context(locked(self.folder / _LOCK, message))
            self._open()
            self._held = held.pop_all()
        self._forget()

    def _check_folder(self) -> None:
        if not (self.folder / MANIFEST).is_file():
            check_place(self.folder)

    def _open(self) -> None:
        """Read the current state, and delete what a killed writer has left."""
        if (self.folder / MANIFEST).is_file():
            self.snapshot = read_snapshot(self.folder)
            self._derive()
        else:
            self.snapshot = Snapshot({"version": VERSION, "commit": 0, "metadata": {}, "tables": {}}, {}, {})
        self._clear()

    def _forget(self) -> None:
        """Begin with no changes to the state that was read."""
        self.metadata: dict[str, Any] = dict(self.snapshot.manifest["metadata"])
        self._new: dict[str, list[pa.Table]] = {}
        self._cleared: set[str] = set()
        self._removed: dict[str, dict[int, list[int]]] = {}  # table, place of the part, rows
        # For each shard, the row of each key, without removed rows. Only those of existing shards are kept.
        files = {(name, shard.file) for name, shards in self.snapshot.shards.items() for shard in shards}
        self._rows_by_key = {shard: rows for shard, rows in self._rows_by_key.items() if shard in files}

    def close(self) -> None:
        """Drop uncommitted changes, and let others write."""
        self._held.close()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def append(self, name: str, rows: pa.Table) -> None:
        """Add rows at the end of a table; the first ones define its columns. Raises a ValueError if columns differ."""
        known = self._first_rows(name)
        if known is not None and not known.schema.equals(rows.schema):
            raise ValueError(f"`{name}` has the columns\n{known.schema}\nbut the new rows have\n{rows.schema}")
        self._new.setdefault(name, []).append(rows)

    def _first_rows(self, name: str) -> pa.Table | None:
        """The rows that define the columns of a table, if there are any."""
        known = self._new.get(name) or [part.table for part in self._old(name)[:1]]
        return known[0] if known else None

    def _rows_of(self, name: str, place: int) -> dict[str, int]:
        """The row of each key in the committed shard at `place`, without removed rows."""
        shard = self.snapshot.shards[name][place]
        if (name, shard.file) not in self._rows_by_key:
            part = self.snapshot.parts[name][place]
            keys = part.table.column(KEYS[name]).to_pylist()
            rows = dict(zip(keys, range(len(keys)), strict=True))
            if len(part.removed):
                is_kept = np.ones(len(part), bool)
                is_kept[part.removed] = False
                rows = {keys[row]: row for row in np.flatnonzero(is_kept).tolist()}
            self._rows_by_key[name, shard.file] = rows
        return self._rows_by_key[name, shard.file]

    def find(self, name: str, keys: Iterable[str]) -> dict[int, set[str]]:
        """
        Find committed rows that are not removed.

        Args:
            name (`str`): the table.
            keys (iterable of `str`): those that do not exist are ignored.

        Returns:
            For each shard that has any, by its place, the keys that it has.
        """
        left = set(keys)
        found = {}
        for place in range(len(self._old(name))):
            here = left & self._rows_of(name, place).keys()
            if here:
                found[place] = here
                left -= here
        return found

    def remove(self, name: str, found: dict[int, set[str]]) -> dict[int, list[int]]:
        """
        Remove rows.

        Args:
            name (`str`): the table.
            found (`dict`): the rows, from [`Writer.find`].

        Returns:
            For each shard, by its place, the rows that are removed, in ascending order.
        """
        removed = {}
        for place, keys in found.items():
            rows = self._rows_of(name, place)
            removed[place] = sorted(rows.pop(key) for key in keys)
            self._removed.setdefault(name, {}).setdefault(place, []).extend(removed[place])
        return removed

    def clear(self, name: str) -> None:
        """Remove all rows of a table; later ones may have other columns."""
        self._new.pop(name, None)
        self._removed.pop(name, None)
        if name in self.snapshot.parts:
            self._cleared.add(name)

    def _old(self, name: str) -> list[Part]:
        return [] if name in self._cleared else self.snapshot.parts.get(name, [])

    def commit(self) -> bool:
        """
        Make the changes the new state; return whether there were any.

        Raises:
            OSError: files could not be written, e.g. because the disk is full. Either the old state holds, and the
                changes can be committed again; or the new state holds already, and only files derived from it are
                missing, which the next writer makes.
            ValueError: another process has written here, which the lock should have prevented; nothing was changed.
        """
        has_rows = any(len(table) for tables in self._new.values() for table in tables)
        is_described = self.metadata == self.snapshot.manifest["metadata"]
        if is_described and not (has_rows or self._cleared or any(self._removed.values())):
            return False
        return self._commit({name: self._plan(name) for name in {*self.snapshot.parts, *self._new}})

    def compact(self) -> None:
        """Commit, and rewrite all tables without removed rows, in as few files as possible."""
        tables = {name: self._parts(name) for name in {*self.snapshot.parts, *self._new}}
        self._commit({name: [(None, parts)] if parts else [] for name, parts in tables.items()})

    def _parts(self, name: str) -> list[Part]:
        """The future parts of a table; new rows come last."""
        parts = []
        for place, part in enumerate(self._old(name)):
            more = self._removed.get(name, {}).get(place)
            parts.append(part.without(np.array(more)) if more else part)
        return parts + [Part(table) for table in self._new.get(name, [])]

    def _plan(self, name: str) -> list[tuple[Shard | None, list[Part]]]:
        """The future files of a table, in order: each an old shard, or parts to write into new files."""
        shards = [] if name in self._cleared else self.snapshot.shards.get(name, [])
        parts = self._parts(name)
        plan: list[tuple[Shard | None, list[Part]]] = []
        for shard, part in zip(shards, parts, strict=False):
            is_mostly_removed = 0 < len(part) <= 2 * len(part.removed)
            is_in_pieces = part.num_pieces > MOST_PIECES
            plan.append((None if is_mostly_removed or is_in_pieces else shard, [part]))
        if len(parts) > len(shards):
            plan.append((None, parts[len(shards) :]))
        return _joined(plan)

    def _commit(self, plans: dict[str, list[tuple[Shard | None, list[Part]]]]) -> bool:
        self._check_alone({})
        number = self.snapshot.manifest["commit"] + 1
        manifest = None
        try:
            shards = {}
            num_rows = {}
            for name, plan in sorted(plans.items()):
                shards[name] = self._write_table(name, plan, number)
                num_rows[name] = sum(shard.rows - shard.num_removed for shard in shards[name])
            manifest = signed(
                {
                    "version": VERSION,
                    "commit": number,
                    "num_rows": num_rows,
                    "metadata": self.metadata,
                    "tables": _entries(shards),
                }
            )
            self._check_alone(shards)
            self.bytes_written += write_json(manifest, self.folder / MANIFEST)
            self._settle()
        except BaseException:
            with suppress(OSError, ValueError):  # the first error counts
                self._recover(manifest)
            raise
        return True

    def _check_alone(self, shards: dict[str, list[Shard]]) -> None:
        """
        Raise a ValueError if another process has written here, because a lock was deleted or is not visible to it.

        Args:
            shards (`dict`): the files to commit, which the other process may have deleted.
        """
        self._check_lock()
        path = self.folder / MANIFEST
        if path.is_file():
            is_alone = read_json(path, remedy(self.folder)) == self.snapshot.manifest
        else:
            is_alone = self.snapshot.manifest["commit"] == 0
        for name, entries in shards.items():
            for shard in entries:
                file = self.folder / name / shard.file
                is_alone = is_alone and file.is_file() and file.stat().st_size == shard.bytes
        if not is_alone:
            raise ValueError(
                f"Another process has written to {self.folder} meanwhile. Nothing was changed. Start again, one "
                "process at a time."
            )

    def _recover(self, manifest: dict[str, Any] | None) -> None:
        """After a failure: if the commit took effect, avoid writing anything twice; otherwise, delete its files."""
        path = self.folder / MANIFEST
        if manifest is not None and path.is_file() and read_json(path) == manifest:
            self._settle()
            return
        self._check_lock()  # otherwise these files may belong to another writer
        self._clear()

    def _settle(self) -> None:
        """Read the new state from the manifest."""
        self.snapshot = read_snapshot(self.folder, self.snapshot)
        self._forget()
        self._derive()
        self._clear()

    def _write_table(self, name: str, plan: list[tuple[Shard | None, list[Part]]], number: int) -> list[Shard]:
        folder = self.folder / name
        with naming(folder):
            folder.mkdir(exist_ok=True)
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
        if not shards:  # this keeps the columns of a table without rows
            known = [part for _, parts in plan for part in parts] or self.snapshot.parts[name]
            shards.append(self._write_shard(folder, known[0].table.schema.empty_table(), number, 0))
        sync_folder(folder)
        return shards

    def _write_shard(self, folder: Path, rows: pa.Table, number: int, place: int) -> Shard:
        def write(file: Any) -> None:
            with pa.ipc.new_stream(file, rows.schema) as stream:
                # One batch: its columns are contiguous matrices.
                stream.write_table(rows.combine_chunks())

        path = folder / f"data-{number:06d}-{place}.arrow"
        size, digest = _write_new(path, write)
        self.bytes_written += size
        return Shard(path.name, len(rows), size, digest)

    def _write_removed(self, folder: Path, shard: Shard, removed: np.ndarray, number: int, place: int) -> Shard:
        path = folder / f"removed-{number:06d}-{place}.npy"
        size, digest = _write_new(path, lambda file: file.write(_saved(removed)))
        self.bytes_written += size
        return replace(shard, removed=path.name, num_removed=len(removed), removed_sha256=digest)

    def _derive(self) -> None:
        """Update what `datasets` reads of each table, and the copy of the manifest."""
        views = {self.folder / COPY: self.snapshot.manifest}
        for name, entries in self.snapshot.shards.items():
            schema = self.snapshot.parts[name][0].table.schema
            # written here because `datasets` is slow to load
            features = {item.name: _feature(item.type) for item in schema}
            views[self.folder / name / _INFO] = signed({"features": features})
            views[self.folder / name / _STATE] = signed(_state(entries))
        for path, content in views.items():
            with suppress(FileNotFoundError, ValueError):  # missing or damaged: written again
                if read_json(path) == content:
                    continue
            self.bytes_written += write_json(content, path)

    def _clear(self) -> None:
        """Delete files of ours that the manifest on disk does not list."""
        used = set()
        if (self.folder / MANIFEST).is_file():
            for name, shards in read_manifest(self.folder)[1].items():
                for shard in shards:
                    used |= {self.folder / name / shard.file, self.folder / name / str(shard.removed)}
        elif self.snapshot.manifest["commit"]:
            return  # the manifest was deleted: only these files are left
        for folder in (self.folder, *(self.folder / name for name in TABLES)):
            for path in folder.glob("*"):
                is_shard = folder != self.folder and _FILES.fullmatch(path.name)
                if path not in used and (is_shard or _TEMPORARY.fullmatch(path.name)):
                    path.unlink(missing_ok=True)


def _joined(plan: list[tuple[Shard | None, list[Part]]]) -> list[tuple[Shard | None, list[Part]]]:
    """
    Join neighbouring small files of a plan.

    A file is joined with all small ones after it when that makes it four times as large, or full. So a table has few
    small files, and each row is written a few times, however many commits there are.
    """
    rows = []
    is_full = []
    for _, parts in plan:
        rows.append(sum(part.num_kept for part in parts))
        is_full.append(rows[-1] >= _NEARLY_FULL * SHARD_ROWS)
    joined: list[tuple[Shard | None, list[Part]]] = []
    place = 0
    while place < len(plan):
        # The files after this one that could be joined with it: those before the next full one
        stop = place + 1
        while not is_full[place] and stop < len(plan) and not is_full[stop]:
            stop += 1
        total = sum(rows[place:stop])
        if stop > place + 1 and total >= min(_GROWTH * rows[place], SHARD_ROWS):
            joined.append((None, [part for _, parts in plan[place:stop] for part in parts]))
            place = stop
        else:
            joined.append(plan[place])
            place += 1
    return joined


def _entries(shards: dict[str, list[Shard]]) -> dict[str, list[dict[str, Any]]]:
    """Shards in the form of JSON, without empty fields."""
    tables = {}
    for name, entries in shards.items():
        tables[name] = []
        for shard in entries:
            filled = {field: value for field, value in asdict(shard).items() if value}
            tables[name].append(filled | {"rows": shard.rows})
    return tables


def _state(shards: Sequence[Shard]) -> dict[str, Any]:
    """The state that `datasets` stores for the files of a data set."""
    return {
        "_data_files": [{"filename": shard.file} for shard in shards],
        "_fingerprint": shards[-1].sha256[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }


def _feature(kind: pa.DataType) -> dict[str, Any]:
    """The type of a column in the information that `datasets` stores with a data set."""
    if pa.types.is_fixed_size_list(kind):
        return {"feature": _feature(kind.value_type), "length": kind.list_size, "_type": "List"}
    if pa.types.is_list(kind):
        return {"feature": _feature(kind.value_type), "_type": "List"}
    return {"dtype": _DTYPES.get(str(kind), str(kind)), "_type": "Value"}


__all__ = ["SHARD_ROWS", "Writer", "check_place"]
