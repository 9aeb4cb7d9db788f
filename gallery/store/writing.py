"""The one process that may change the tables of a folder in the format of
[`~scalar_retrieval.gallery.store.storage`]."""

import io
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from .files import locked, naming, read_json, sha256_of, sync_folder, write_json, write_whole
from .places import COPY, MANIFEST, check_not_lost, remedy
from .storage import (
    DERIVED,
    KEYS,
    MOST_PIECES,
    REMOVED_NAME,
    SHARD_NAME,
    TABLES,
    VERSION,
    Part,
    Shard,
    Snapshot,
    read_manifest,
    read_snapshot,
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

Plan = list[tuple[Shard | None, list[Part]]]
"""The future files of a table, in order: each a shard that stays, or None and parts to write into new files."""


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
        self.folder = Path(folder).absolute()
        self.bytes_written = 0
        self._rows_by_key: dict[tuple[str, str], dict[str, int]] = {}
        with ExitStack() as held:
            self._check_folder()
            self.folder.mkdir(parents=True, exist_ok=True)
            message = f"Another process writes to {self.folder}. Wait until it has finished, or end it."
            self._check_lock = held.enter_context(locked(self.folder / _LOCK, message))
            self._open()
            self._held = held.pop_all()
        self._reset_changes()

    def _check_folder(self) -> None:
        if not (self.folder / MANIFEST).is_file():
            check_place(self.folder)

    def _open(self) -> None:
        """Read the current state, and delete what a killed writer has left."""
        # A folder without a manifest gets its first one from the first commit.
        if (self.folder / MANIFEST).is_file():
            self.snapshot = read_snapshot(self.folder)
            self._update_views()
        else:
            self.snapshot = Snapshot({"version": VERSION, "commit": 0, "metadata": {}, "tables": {}}, {}, {})
        self._delete_unused_files()

    def _reset_changes(self) -> None:
        """Begin with no changes to the state that was read."""
        self.metadata: dict[str, Any] = dict(self.snapshot.manifest["metadata"])
        self._new: dict[str, list[pa.Table]] = {}
        self._cleared: set[str] = set()
        self._removed: dict[str, dict[int, list[int]]] = {}  # for each table, by the place of a part: rows

    def close(self) -> None:
        """Drop uncommitted changes, and let others write."""
        self._held.close()

    def __enter__(self) -> Self:
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
        if name in self._new:
            return self._new[name][0]
        for part in self._old(name):
            return part.table
        return None

    def _rows_of(self, name: str, place: int) -> dict[str, int]:
        """The row of each key in the committed shard at `place`, without removed rows."""
        shard = name, self.snapshot.shards[name][place].file
        # A shard is read once, however many commits look up keys in it.
        if shard not in self._rows_by_key:
            part = self.snapshot.parts[name][place]
            rows = np.delete(np.arange(len(part)), part.removed)
            keys = part.table.column(KEYS[name]).take(rows)
            self._rows_by_key[shard] = dict(zip(keys.to_pylist(), rows.tolist(), strict=True))
        return self._rows_by_key[shard]

    def find(self, name: str, keys: Iterable[str]) -> dict[int, set[str]]:
        """
        Find committed rows that are not removed.

        Args:
            name (`str`): the table.
            keys (iterable of `str`): those that do not exist are ignored.

        Returns:
            For each shard that has any, by its place, the keys that it has.
        """
        # Each key is in one shard at most, and not looked for in others once it is found.
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
        """The committed parts of a table, unless it was cleared."""
        if name in self._cleared:
            return []
        return self.snapshot.parts.get(name, [])

    def commit(self) -> bool:
        """
        Make the changes the new state; return whether there were any.

        Raises:
            OSError: files could not be written, e.g. because the disk is full. Either the old state holds, and the
                changes can be committed again; or the new state holds already, and only files derived from it are
                missing, which the next writer makes.
            ValueError: another process has written here, which the lock should have prevented; nothing was changed.
        """
        is_changed = self.metadata != self.snapshot.manifest["metadata"]
        for tables in self._new.values():
            is_changed = is_changed or any(map(len, tables))
        if not (is_changed or self._cleared or any(self._removed.values())):
            return False
        self._commit(self._plan)
        return True

    def compact(self) -> None:
        """Commit, and rewrite all tables without removed rows, in as few files as possible."""
        self._commit(lambda name: [(None, self._parts(name))])

    def _parts(self, name: str) -> list[Part]:
        """The future parts of a table; new rows come last."""
        parts = []
        removed = self._removed.get(name, {})
        for place, part in enumerate(self._old(name)):
            if place in removed:
                part = part.without(np.array(removed[place]))
            parts.append(part)
        for table in self._new.get(name, []):
            parts.append(Part(table))
        return parts

    def _plan(self, name: str) -> Plan:
        """The future files of a table, of which as many stay as possible."""
        parts = self._parts(name)
        num_old = len(self._old(name))
        plan: Plan = []
        # An old file is written again if it holds little else than removed rows, or if reading it would be slow.
        for shard, part in zip(self.snapshot.shards.get(name, []), parts[:num_old], strict=False):
            is_mostly_removed = 0 < len(part) <= 2 * len(part.removed)
            if is_mostly_removed or part.num_pieces > MOST_PIECES:
                shard = None
            plan.append((shard, [part]))
        if len(parts) > num_old:
            plan.append((None, parts[num_old:]))
        return _joined(plan)

    def _commit(self, plan_of: Callable[[str], Plan]) -> None:
        """Write the files that are planned for each table, then the manifest that names them."""
        self._check_alone({})
        number = self.snapshot.manifest["commit"] + 1
        manifest = None
        try:
            # New files come first: until the manifest names them, readers use the old ones.
            shards = {}
            tables = {}
            num_rows = {}
            for name in sorted({*self.snapshot.parts, *self._new}):
                shards[name] = self._write_table(name, plan_of(name), number)
                tables[name] = list(map(_entry, shards[name]))
                num_rows[name] = sum(shard.rows - shard.num_removed for shard in shards[name])
            manifest = signed(
                {
                    "version": VERSION,
                    "commit": number,
                    "num_rows": num_rows,
                    "metadata": self.metadata,
                    "tables": tables,
                }
            )
            # Writing may have taken long, so check once more. The commit takes effect with the manifest.
            self._check_alone(shards)
            self.bytes_written += write_json(manifest, self.folder / MANIFEST)
            self._read_committed()
        except BaseException:
            with suppress(OSError, ValueError):  # the first error counts
                self._recover(manifest)
            raise

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
            self._read_committed()
            return
        self._check_lock()  # otherwise these files may belong to another writer
        self._delete_unused_files()

    def _read_committed(self) -> None:
        """Read the new state from the manifest, and update what depends on it."""
        self.snapshot = read_snapshot(self.folder, self.snapshot)
        # Of what was read of keys, keep that of shards that still exist.
        rows_by_key = {}
        for name, shards in self.snapshot.shards.items():
            for shard in shards:
                rows = self._rows_by_key.get((name, shard.file))
                if rows is not None:
                    rows_by_key[name, shard.file] = rows
        self._rows_by_key = rows_by_key
        self._reset_changes()
        # Last, since these files are no part of the state: a kill before leaves nothing wrong.
        self._update_views()
        self._delete_unused_files()

    def _write_table(self, name: str, plan: Plan, number: int) -> list[Shard]:
        """Write the new files of a table; returns all its files."""
        folder = self.folder / name
        with naming(folder):
            folder.mkdir(exist_ok=True)
        shards = []
        for shard, parts in plan:
            if shard is not None:
                # The file stays; only the list of its removed rows may be new.
                if len(parts[0].removed) != shard.num_removed:
                    shard = self._write_removed(folder, shard, parts[0].removed, number, len(shards))
                shards.append(shard)
            elif parts:
                rows = pa.concat_tables(part.kept() for part in parts)
                for start in range(0, len(rows), SHARD_ROWS):
                    shards.append(self._write_shard(folder, rows[start : start + SHARD_ROWS], number, len(shards)))
        # A table without rows keeps its columns, in a file without rows.
        if not shards:
            known = self._first_rows(name)
            if known is None:
                known = self.snapshot.parts[name][0].table
            shards.append(self._write_shard(folder, known.schema.empty_table(), number, 0))
        sync_folder(folder)
        return shards

    def _write_new(self, path: Path, write: Callable[[Any], Any]) -> tuple[int, str]:
        """Write a file, completely or not at all; returns its size and hash."""
        write_whole(path, write)
        size = path.stat().st_size
        self.bytes_written += size
        return size, sha256_of(path)

    def _write_shard(self, folder: Path, rows: pa.Table, number: int, place: int) -> Shard:
        def write(file: Any) -> None:
            with pa.ipc.new_stream(file, rows.schema) as stream:
                # One batch: its columns are contiguous matrices.
                stream.write_table(rows.combine_chunks())

        path = folder / f"data-{number:06d}-{place}.arrow"
        size, digest = self._write_new(path, write)
        return Shard(path.name, len(rows), size, digest)

    def _write_removed(self, folder: Path, shard: Shard, removed: np.ndarray, number: int, place: int) -> Shard:
        path = folder / f"removed-{number:06d}-{place}.npy"
        # In memory first: when numpy writes to a file, its error does not say that the disk is full.
        content = io.BytesIO()
        np.save(content, removed.astype("<u4"), allow_pickle=False)
        _, digest = self._write_new(path, lambda file: file.write(content.getvalue()))
        return replace(shard, removed=path.name, num_removed=len(removed), removed_sha256=digest)

    def _update_views(self) -> None:
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

    def _delete_unused_files(self) -> None:
        """Delete files of ours that the manifest on disk does not list."""
        # The manifest on disk counts: after a failure it may be older than the state that was to be committed.
        used = set()
        if (self.folder / MANIFEST).is_file():
            for name, shards in read_manifest(self.folder)[1].items():
                for shard in shards:
                    used |= {self.folder / name / shard.file, self.folder / name / str(shard.removed)}
        elif self.snapshot.manifest["commit"]:
            return  # the manifest was deleted: only these files are left
        # Shards lie in the folders of tables, temporary files also in the folder itself.
        for name in ("", *TABLES):
            for path in (self.folder / name).glob("*"):
                is_shard = name and _FILES.fullmatch(path.name)
                if path not in used and (is_shard or _TEMPORARY.fullmatch(path.name)):
                    path.unlink(missing_ok=True)


def _joined(plan: Plan) -> Plan:
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
    joined: Plan = []
    place = 0
    while place < len(plan):
        # The files after this one that could be joined with it: those before the next full one
        stop = place + 1
        while not is_full[place] and stop < len(plan) and not is_full[stop]:
            stop += 1
        # Joining pays if much is added to this file; otherwise it stays, and the next one is considered.
        total = sum(rows[place:stop])
        if stop > place + 1 and total >= min(_GROWTH * rows[place], SHARD_ROWS):
            together = []
            for _, parts in plan[place:stop]:
                together += parts
            joined.append((None, together))
            place = stop
        else:
            joined.append(plan[place])
            place += 1
    return joined


def _entry(shard: Shard) -> dict[str, Any]:
    """A shard in the form of JSON, without empty fields."""
    filled = {field: value for field, value in asdict(shard).items() if value}
    return filled | {"rows": shard.rows}


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


__all__ = ["SHARD_ROWS", "Plan", "Writer", "check_place"]
