"""The one process that may change the tables of a folder in the format of [`~gallery.storage`]."""

import io
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gallery.files import locked, naming, read_json, sha256_of, sync_folder, write_json, write_whole
from gallery.storage import (
    DERIVED,
    MANIFEST,
    REMOVED_NAME,
    SEALED_NAME,
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

_FANOUT = 16  # this many small shards in a row are merged
_SEALED_ROWS = SHARD_ROWS // _FANOUT  # from this many rows on, a shard is seldom merged again
_LOCK = ".lock"
_FILES = re.compile(rf"{SHARD_NAME.pattern}|{REMOVED_NAME.pattern}")
_TEMPORARY = re.compile(  # left by `write_whole`, if it is killed
    rf"\.((gallery|state|dataset_info)\.json|{SHARD_NAME.pattern}|{REMOVED_NAME.pattern}|{SEALED_NAME.pattern})\.\d+"
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
    for path in folder.rglob("*") if folder.exists() else ():
        ours = (pattern.fullmatch(path.name) for pattern in (_FILES, SEALED_NAME, _TEMPORARY))
        if path.name not in (_LOCK, _INFO) and not path.is_dir() and not any(ours):
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
        self.metadata: dict[str, Any] = dict(self.snapshot.manifest["metadata"])
        self._new: dict[str, list[pa.Table]] = {}
        self._cleared: set[str] = set()
        self._removed: dict[str, dict[int, set[int]]] = {}  # table, place of the part, rows

    def close(self) -> None:
        """Drop uncommitted changes, and let others write."""
        self._held.close()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def append(self, name: str, rows: pa.Table) -> None:
        """Add rows at the end of a table; the first ones define its columns. Raises a ValueError if columns differ."""
        known = self._new.get(name) or [part.table for part in self._old(name)[:1]]
        if known and not known[0].schema.equals(rows.schema):
            raise ValueError(f"`{name}` has the columns\n{known[0].schema}\nbut the new rows have\n{rows.schema}")
        self._new.setdefault(name, []).append(rows)

    def remove(self, name: str, place: int, rows: Iterable[int]) -> None:
        """Remove rows of the part at `place` in the committed table `name`."""
        self._removed.setdefault(name, {}).setdefault(place, set()).update(rows)

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
            parts.append(part.without(more) if more else part)
        return parts + [Part(table) for table in self._new.get(name, [])]

    def _plan(self, name: str) -> list[tuple[Shard | None, list[Part]]]:
        """The future files of a table, in order: each an old shard, or parts to write into new files."""
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
        """Which files at the end of a table to merge: sixteen or more, none much larger than the last."""
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
        self._check_alone({})
        number, manifest = self.snapshot.manifest["commit"] + 1, None
        try:
            shards = {name: self._write_table(name, plan, number) for name, plan in sorted(plans.items())}
            sealed, last = self._seal(shards, number)
            manifest = signed(
                {
                    "version": VERSION,
                    "commit": number,
                    "num_rows": {name: sum(s.rows - s.num_removed for s in rows) for name, rows in shards.items()},
                    "metadata": self.metadata,
                    "sealed": sealed,
                    "tables": _entries(last),
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
        now = read_json(path, remedy(self.folder)) if path.is_file() else None
        is_same = now == self.snapshot.manifest if now else self.snapshot.manifest["commit"] == 0
        named = [(self.folder / name / shard.file, shard.bytes) for name, rows in shards.items() for shard in rows]
        if not is_same or any(not path.is_file() or path.stat().st_size != size for path, size in named):
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

    def _seal(self, shards: dict[str, list[Shard]], number: int) -> tuple[str | None, dict[str, list[Shard]]]:
        """List the large shards at the start of each table in a separate file; returns that file, and the others."""
        large = {
            name: list(takewhile(lambda shard: shard.rows >= _SEALED_ROWS, entries))
            for name, entries in shards.items()
        }
        last = {name: entries[len(large[name]) :] for name, entries in shards.items()}
        if not any(large.values()):
            return None, last
        known, content = self.snapshot.manifest.get("sealed"), signed({"tables": _entries(large)})
        with suppress(FileNotFoundError, ValueError):  # missing or damaged since: written again
            if known is not None and read_json(self.folder / known) == content:
                return known, last
        name = f"sealed-{number:06d}.json"
        self.bytes_written += write_json(content, self.folder / name)
        return name, last

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
        if not shards:  # this keeps the columns of a table without rows
            shards.append(self._write_shard(folder, schema.empty_table(), number, 0))
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
        """Update what `datasets` reads of each table, and what is needed if the manifest is lost."""
        for name, entries in self.snapshot.shards.items():
            folder, schema = self.folder / name, self.snapshot.parts[name][0].table.schema
            state = _state([shard.file for shard in entries], entries[-1].sha256[:16])
            state["removed"] = {shard.file: shard.removed for shard in entries if shard.removed}
            info = _dataset_info(schema) | {"metadata": self.snapshot.manifest["metadata"]}
            for content, path in ((signed(info), folder / _INFO), (signed(state), folder / _STATE)):
                with suppress(FileNotFoundError, ValueError):  # missing or damaged: written again
                    if read_json(path) == content:
                        continue
                self.bytes_written += write_json(content, path)

    def _clear(self) -> None:
        """Delete files of ours that the manifest on disk does not list."""
        manifest, named = {}, {}
        if (self.folder / MANIFEST).is_file():
            manifest, named = read_manifest(self.folder)
        elif self.snapshot.manifest["commit"]:
            return  # the manifest was deleted: only these files are left
        used = {(self.folder, manifest.get("sealed"))}
        for name, shards in named.items():
            used |= {(self.folder / name, file) for shard in shards for file in (shard.file, shard.removed)}
        for folder in (self.folder, *(self.folder / name for name in TABLES)):
            patterns = (SEALED_NAME, _TEMPORARY) if folder == self.folder else (_FILES, _TEMPORARY)
            for path in folder.glob("*"):
                if (folder, path.name) not in used and any(pattern.fullmatch(path.name) for pattern in patterns):
                    path.unlink(missing_ok=True)


def _entries(shards: dict[str, list[Shard]]) -> dict[str, list[dict[str, Any]]]:
    """Shards in the form of JSON, without empty fields."""
    return {
        name: [{k: v for k, v in asdict(shard).items() if v} | {"rows": shard.rows} for shard in entries]
        for name, entries in shards.items()
    }


def _state(files: Sequence[str], fingerprint: str) -> dict[str, Any]:
    """The state that `datasets` stores for the files of a data set."""
    return {
        "_data_files": [{"filename": file} for file in files],
        "_fingerprint": fingerprint,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }


def _feature(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_fixed_size_list(kind):
        return {"feature": _feature(kind.value_type), "length": kind.list_size, "_type": "List"}
    if pa.types.is_list(kind):
        return {"feature": _feature(kind.value_type), "_type": "List"}
    return {"dtype": _DTYPES.get(str(kind), str(kind)), "_type": "Value"}


def _dataset_info(schema: pa.Schema) -> dict[str, Any]:
    """The information that `datasets` stores with a data set; written here because the library is slow to load."""
    return {"features": {item.name: _feature(item.type) for item in schema}}


__all__ = ["SHARD_ROWS", "Writer", "check_place"]
