"""Tables on disk that grow at the cost of what is new, and change completely or not at all: their format, and how they
are read. [`~scalar_retrieval.gallery.store.writing`] changes them.

A folder holds a manifest, `gallery.json`, and a folder for each table. A table is a list of shards: Arrow files that
never change once the manifest names them. A commit writes new shards and then replaces the manifest, which is the
moment it takes effect. If it is killed before, the folder keeps its old state, and the next writer deletes what was
written. Rows are removed by a small file that lists them. Commits join small shards, so that their number stays small.

Each table's folder is also a data set for `datasets.load_from_disk`. That view is derived from the manifest, like a
copy of the manifest itself, from which [`~scalar_retrieval.gallery.repair.repair`] restores it; it shows removed rows
until the gallery is made compact.
"""

import hashlib
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from scalar_retrieval.commands.schema import check_value, count, nothing, text

from .files import read_json, sha256_of, without_infinity
from .places import COPY, MANIFEST, DamagedFileError, check_not_lost, remedy
from .rows import check_layout

VERSION = 3
KEYS = {"clips": "clip_id", "queries": "query_id", "files": "path"}
"""The tables of a gallery, with the column that names their rows: embedded clips, embedded captions that describe
them, and known media files."""
TABLES = tuple(KEYS)

SHARD_NAME = re.compile(r"data-\d{6,12}-\d{1,12}\.arrow")
REMOVED_NAME = re.compile(r"removed-\d{6,12}-\d{1,12}\.npy")
DERIVED = "dataset_info.json", "state.json"
"""What `datasets` reads in the folder of a table."""
MOST_PIECES = 4096
"""Runs of rows without removed ones, which readers map one by one. Writers write a shard with more of them again."""

_TABLE = [
    {
        "file": text,
        "rows": count,
        "bytes": count,
        "sha256": text,
        "removed?": text,
        "num_removed?": count,
        "removed_sha256?": text,
        ...: nothing,
    }
]
# A manifest of a stranger must not lead out of the folder, so that it names no other tables.
_MANIFEST = {"commit": count, "metadata": {}, "tables": {**{f"{name}?": _TABLE for name in TABLES}, ...: nothing}}


class VersionError(ValueError):
    """A gallery was written by another version of this package."""


@dataclass(frozen=True)
class Shard:
    """A file of a table, as described by the manifest; `removed` names the file that lists its removed rows. Raises a
    ValueError if the names are not those of such files, which lie in the folder of their table."""

    file: str
    rows: int
    bytes: int
    sha256: str
    removed: str | None = None
    num_removed: int = 0
    removed_sha256: str | None = None

    def __post_init__(self) -> None:
        # A manifest of a stranger must not lead out of the folder.
        is_named = SHARD_NAME.fullmatch(self.file)
        if self.removed is not None:
            is_named = is_named and REMOVED_NAME.fullmatch(self.removed)
        if not is_named:
            raise ValueError(f"it names the files {self.file!r:.80} and {self.removed!r:.80}, which no gallery has")


class Part:
    """
    The rows of one shard, and the sorted indices of the removed ones.

    Args:
        table (`pa.Table` or a function that returns one): the rows; a function is called when they are needed.
        num_rows (`int`, *optional*): their number; required with a function.
        removed (`np.ndarray`, *optional*): by default none.
    """

    def __init__(
        self,
        table: pa.Table | Callable[[], pa.Table],
        num_rows: int | None = None,
        removed: np.ndarray | None = None,
    ):
        if num_rows is None:
            num_rows = len(table)
        if removed is None:
            removed = np.empty(0, np.int64)
        self._table = table
        self._num_rows = num_rows
        self.removed = removed

    def __len__(self) -> int:
        return self._num_rows

    @property
    def table(self) -> pa.Table:
        """The rows, mapped."""
        # A function is called once, and replaced by what it returns.
        if not isinstance(self._table, pa.Table):
            self._table = self._table()
        return self._table

    @property
    def num_kept(self) -> int:
        """The number of rows that are not removed."""
        return len(self) - len(self.removed)

    @property
    def num_pieces(self) -> int:
        """About the number of runs of rows that are not removed."""
        return 1 + np.count_nonzero(np.diff(self.removed) > 1)

    def without(self, rows: np.ndarray) -> "Part":
        """The same shard with more rows removed."""
        return Part(self._table, len(self), np.union1d(self.removed, rows))

    def kept(self) -> pa.Table:
        """The rows that are not removed: chunks of the mapped file, or a copy if these were too many."""
        if not len(self.removed):
            return self.table
        if self.num_pieces > MOST_PIECES:
            is_kept = np.ones(len(self), bool)
            is_kept[self.removed] = False
            return self.table.filter(pa.array(is_kept))
        # The runs of rows between removed ones, in place.
        pieces = []
        start = 0
        for stop in [*self.removed.tolist(), len(self)]:
            if start < stop:
                pieces.append(self.table.slice(start, stop - start))
            start = stop + 1
        return pa.concat_tables(pieces or [self.table.slice(0, 0)])


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One committed state: the content of the manifest, and the parts of each table by its name."""

    manifest: dict[str, Any]
    shards: dict[str, list[Shard]]
    parts: dict[str, list[Part]]


def _digest(content: dict[str, Any]) -> str:
    # The order of entries does not matter, and the hash is not a part of itself.
    plain = {name: value for name, value in content.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def signed(content: dict[str, Any]) -> dict[str, Any]:
    """Add a hash by which damage to a JSON file is detected."""
    # As it will be read, so that the hash is of what is in the file.
    content = without_infinity(content)
    return content | {"sha256": _digest(content)}


def _is_as_signed(content: dict[str, Any]) -> bool:
    """Whether a JSON file is unchanged since it was written."""
    return content.get("sha256") == _digest(content)


def read_manifest(folder: Path, name: str = MANIFEST) -> tuple[dict[str, Any], dict[str, list[Shard]]]:
    """
    Read the manifest of a folder.

    Args:
        folder (`Path`): the gallery.
        name (`str`): the file, `MANIFEST` or `COPY`.

    Returns:
        Its content, and the shards of each table by its name.

    Raises:
        FileNotFoundError: there is no manifest.
        ValueError: it has another version, or is damaged.
    """
    # Damage is noticed before anything in it is used, its version included.
    path = folder / name
    manifest = read_json(path, remedy(folder))
    if not _is_as_signed(manifest):
        raise DamagedFileError(path, "has changed since it was written", folder)
    if manifest.get("version") != VERSION:
        raise VersionError(
            f"{path} has version {manifest.get('version')!r:.80}, expected {VERSION}. Update this program, or index "
            "again."
        )
    shards = {}
    try:
        check_value(manifest, _MANIFEST)
        for table, entries in manifest["tables"].items():
            shards[table] = [Shard(**entry) for entry in entries]
    except ValueError as error:
        what = str(error).rstrip(".")
        raise DamagedFileError(path, f"was not written by this program: {what}", folder) from error
    return manifest, shards


def map_shard(folder: Path, shard: Shard, first: Part | None = None) -> Part:
    """
    Map a shard, so that its content cannot change, and read its rows when they are needed.

    Args:
        folder (`Path`): folder of its table.
        shard ([`Shard`]): its description in the manifest.
        first ([`Part`], *optional*): another part of the table, which must have the same columns.

    Raises:
        FileNotFoundError: a file is missing.
        DamagedFileError: a file does not match the manifest.
    """
    # The size is checked at once; hashes would take a reading, see [`verify`].
    path = folder / shard.file
    size = path.stat().st_size
    if size != shard.bytes:
        raise DamagedFileError(path, f"is damaged: it must have {shard.bytes} bytes, got {size}", folder.parent)
    try:
        mapped = pa.memory_map(str(path)).read_buffer()  # not the file: threads would share its position
    except FileNotFoundError as error:
        error.filename = str(path)  # Arrow omits it
        raise

    def read() -> pa.Table:
        try:
            with pa.ipc.open_stream(mapped) as stream:
                table = stream.read_all()
            # Otherwise wrong offsets in the file would end the process when they are followed.
            table.validate(full=True)
            check_layout(folder.name, table)
            if first is not None and table.schema != first.table.schema:
                raise ValueError("its columns are not those of the first file of its table")
        except (OSError, TypeError, ValueError, pa.ArrowException) as error:
            raise DamagedFileError(path, f"is damaged: {error}", folder.parent) from error
        if len(table) != shard.rows:
            raise DamagedFileError(path, f"must have {shard.rows} rows, got {len(table)}", folder.parent)
        return table

    # The list of removed rows is short, and read at once.
    removed = None
    if shard.removed is not None:
        removed_path = folder / shard.removed
        raw = removed_path.read_bytes()
        if hashlib.sha256(raw).hexdigest() != shard.removed_sha256:
            raise DamagedFileError(removed_path, "has changed since it was written", folder.parent)
        # It may have been signed by anything: rows must be there, and in ascending order.
        try:
            removed = np.lib.format.read_array(io.BytesIO(raw)).astype(np.int64)
            steps = np.diff(removed, prepend=-1, append=shard.rows)
            is_list = removed.shape == (shard.num_removed,) and (steps > 0).all()
        except (TypeError, ValueError):  # no array of numbers
            is_list = False
        if not is_list:
            raise DamagedFileError(removed_path, "does not list rows that were removed", folder.parent)
    return Part(read, shard.rows, removed)


def read_snapshot(folder: Path, known: Snapshot | None = None) -> Snapshot:
    """
    Map the last committed state; a commit in the meantime counts completely or not at all.

    Args:
        folder (`Path`): the gallery.
        known ([`Snapshot`], *optional*): an earlier state, whose parts are reused where they are unchanged.

    Raises:
        FileNotFoundError: there is no gallery.
        ValueError: a file is damaged or missing.
    """
    # Parts of files that have not changed, whose rows may be read already.
    mapped = {}
    if known is not None:
        for name, shards in known.shards.items():
            for shard, part in zip(shards, known.parts[name], strict=True):
                mapped[name, shard] = part
    while True:
        manifest, shards = read_manifest(folder)
        parts: dict[str, list[Part]] = {}
        try:
            for name, entries in shards.items():
                parts[name] = []
                for shard in entries:
                    first = next(iter(parts[name]), None)
                    part = mapped.get((name, shard))
                    parts[name].append(part or map_shard(folder / name, shard, first))
            return Snapshot(manifest, shards, parts)
        except FileNotFoundError as error:
            # A writer may have replaced this state and its files since the manifest was read.
            if read_manifest(folder)[0]["commit"] == manifest["commit"]:
                path = Path(error.filename)
                raise DamagedFileError(path, f"is missing, although {folder / MANIFEST} names it", folder) from error


def damage_of(folder: Path, name: str, shard: Shard, first: Part | None = None) -> str | None:
    """Compare a shard and the list of its removed rows with their hashes, and its columns with those of the `first`
    part; returns what is wrong, or `None`."""
    # In the order of cost: sizes and removed rows, the hash of the file, and its layout.
    path = folder / name / shard.file
    try:
        part = map_shard(folder / name, shard, first)
        if sha256_of(path) != shard.sha256:
            return f"{path} has changed since it was written"
        part.table  # noqa: B018 - its layout is checked when it is read
    except DamagedFileError as error:
        return f"{error.path} {error.what}"
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except OSError as error:
        return str(error)
    return None


def damaged_views(folder: Path) -> list[Path]:
    """
    What is derived from the manifest, for `datasets` and for repairs, and was changed since it was written.

    A missing one is not damage: a writer that was killed after its commit leaves that, and the next writer makes it.
    """
    paths = [folder / COPY]
    for name in TABLES:
        paths += [folder / name / file for file in DERIVED]
    damaged = []
    for path in paths:
        try:
            if not _is_as_signed(read_json(path)):
                damaged.append(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            damaged.append(path)
    return damaged


def verify(folder: Path) -> int:
    """
    Compare every file of a gallery with its hash, and every value with its type.

    Returns:
        `int`: number of bytes read.

    Raises:
        ValueError: files are damaged or permanently missing; all of them are named.
    """
    check_not_lost(folder)
    while True:
        manifest, shards = read_manifest(folder)
        num_bytes = 0
        damaged = []
        for name, entries in shards.items():
            for shard in entries:
                num_bytes += shard.bytes
                wrong = damage_of(folder, name, shard)
                if wrong is not None:
                    damaged.append(wrong)
        # A writer may have replaced the files of this state meanwhile.
        if not damaged or read_manifest(folder)[0]["commit"] == manifest["commit"]:
            break
    damaged += [f"{path} has changed since it was written" for path in damaged_views(folder)]
    if damaged:
        raise ValueError(f"Damaged: {'; '.join(damaged)}. {remedy(folder)}")
    return num_bytes


__all__ = [
    "DERIVED",
    "KEYS",
    "MOST_PIECES",
    "REMOVED_NAME",
    "SHARD_NAME",
    "TABLES",
    "VERSION",
    "Part",
    "Shard",
    "Snapshot",
    "VersionError",
    "damage_of",
    "damaged_views",
    "map_shard",
    "read_manifest",
    "read_snapshot",
    "signed",
    "verify",
]
