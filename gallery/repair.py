"""Restore the intact parts of a damaged gallery.

The manifest defines a gallery. What `datasets` reads next to each table repeats all of it but the hashes: from that,
and from the files themselves, a lost manifest can be written again. Nothing damaged is deleted: it is moved into the
folder `damaged`.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gallery.columns import (
    KEYS,
    check_hashes,
    check_rows,
    embeds_of,
    listed,
    lists_of,
    modalities_of,
    presence_of,
    texts_of,
)
from gallery.files import read_json, sha256_of, write_whole
from gallery.gallery import Gallery
from gallery.storage import (
    DERIVED,
    MANIFEST,
    REMOVED_NAME,
    SEALED_NAME,
    SHARD_NAME,
    TABLES,
    VERSION,
    DamagedFileError,
    Part,
    Shard,
    Snapshot,
    derived_is_whole,
    has_lost_its_manifest,
    is_as_signed,
    map_arrow,
    map_shard,
    read_manifest,
    verify,
)
from gallery.windows import PARTLY, place_of_clip, whole_files
from gallery.writing import Writer

DAMAGED = "damaged"
"""Folder for damaged files."""


def _number(file: str) -> int:
    """The number of the commit that wrote a file."""
    return int(file.split("-")[1].split(".")[0])


def _num_listed(removed: Path) -> int:
    """How many rows a list of removed rows contains, by its size."""
    return max(0, removed.stat().st_size - 128) // 4


_COPIED = 2**24  # bytes; no manifest is larger


class _Repairer(Writer):
    """
    A writer that starts with whatever is intact, and commits it.

    `report` says in sentences what was found and done; `lost` counts lost rows by table, as far as that is known.
    """

    def __init__(self, folder: Path):
        self.report: list[str] = []
        self.lost: dict[str, int] = dict.fromkeys(TABLES, 0)
        self._unlisted: dict[str, int] = {}  # tables with shards whose removed rows are unknown, and their number
        self._have_lost: set[str] = set()
        self._is_changed = False
        super().__init__(folder)

    # Inspection ----------------------------------------------------------------------------------------------------

    def _check_folder(self) -> None:
        if not (self.folder / MANIFEST).is_file() and not has_lost_its_manifest(self.folder):
            raise FileNotFoundError(
                f"There is no gallery in {str(self.folder)!r}: neither {MANIFEST} nor tables of a gallery."
            )

    def _aside(self, path: Path, copied: bool = False) -> str:
        """Move a file into the folder for damaged files; returns its new path relative to the gallery."""
        target = self.folder / DAMAGED / path.relative_to(self.folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        name, number = target.name, 0
        while os.path.lexists(target):
            number += 1
            target = target.with_name(f"{name}.{number}")
        if copied:  # the original stays until it is replaced
            write_whole(target, lambda file: file.write(path.read_bytes()))
        else:
            path.rename(target)
        return str(target.relative_to(self.folder))

    def _open(self) -> None:
        """Separate intact files from damaged ones; nothing is deleted before the commit."""
        try:
            manifest, entries = read_manifest(self.folder)
            wrong = f"{MANIFEST} belonged to another gallery" if self._is_of_another(entries) else None
        except (OSError, ValueError) as error:
            self._check_version(error)
            sealed = SEALED_NAME.search(str(error))
            wrong = f"{sealed.group() if sealed else MANIFEST} was damaged or missing"
        is_known = wrong is None
        if not is_known:
            manifest, entries = self._rebuild(wrong)
        shards, parts = {}, {}
        for name in TABLES:
            shards[name], parts[name] = [], []
            for shard in entries.get(name, []):
                found = self._look_at(name, shard, is_known)
                if found is not None:
                    shards[name].append(found[0])
                    parts[name].append(found[1])
            if not parts[name]:
                del shards[name], parts[name]
                self._is_changed |= bool(entries.get(name))
        self._look_at_derived(shards)
        self._look_at_others(entries, manifest.get("sealed"), is_known)
        manifest = {"version": VERSION, "metadata": manifest["metadata"], "commit": manifest["commit"]}
        if not is_known:
            self._is_changed = True
            manifest["commit"] = max(map(_number, self._files()), default=1)
        self.snapshot = Snapshot(manifest, shards, parts)

    def _check_alone(self, shards: dict[str, list[Shard]]) -> None:
        """Skip the check against the manifest on disk, which may contain anything."""
        self._check_lock()

    def _files(self) -> list[str]:
        """The names of all shards and lists of removed rows."""
        paths = [path for name in TABLES for path in (self.folder / name).glob("*")]
        return [path.name for path in paths if SHARD_NAME.fullmatch(path.name) or REMOVED_NAME.fullmatch(path.name)]

    def _check_version(self, error: Exception) -> None:
        """Raise the error if the manifest is intact, but from another version."""
        try:
            content = read_json(self.folder / MANIFEST)
        except (OSError, ValueError):
            return
        if is_as_signed(content) and content.get("version") != VERSION:
            raise error

    def _is_of_another(self, entries: dict[str, list[Shard]]) -> bool:
        """Whether no file that a manifest names exists, although what `datasets` reads matches those that do."""
        paths = ((self.folder / name / shard.file, shard) for name in TABLES for shard in entries.get(name, []))
        if any(shard.rows and path.is_file() and sha256_of(path) == shard.sha256 for path, shard in paths):
            return False
        for folder in (self.folder / name for name in TABLES if derived_is_whole(self.folder / name / DERIVED[1])):
            state = read_json(folder / DERIVED[1])
            path = folder / state["_data_files"][-1]["filename"]
            if path.is_file() and sha256_of(path).startswith(state["_fingerprint"]):
                return True
        return False

    def _rebuild(self, wrong: str) -> tuple[dict[str, Any], dict[str, list[Shard]]]:
        """Reconstruct the manifest from the files next to it."""
        path = self.folder / MANIFEST
        if path.exists():
            place = self._aside(path, copied=path.is_file() and path.stat().st_size < _COPIED)
            self.report.append(f"{wrong}. The manifest was written again; the old one is now {place}.")
        else:
            self.report.append(f"{MANIFEST} was missing. It was written again, from the files next to it.")
        entries = {}
        for name in TABLES:
            entries[name] = self._list_table(name)
        return {"metadata": self._find_metadata(), "commit": 0}, entries

    def _find_metadata(self) -> dict[str, Any]:
        for path in (self.folder / name / DERIVED[0] for name in TABLES):
            if derived_is_whole(path):
                return read_json(path)["metadata"]
        self.report.append(
            "The model that made the gallery is no longer known: give it to `scalar query` with --model. Nothing can "
            "be added to the gallery."
        )
        return {}

    def _list_table(self, name: str) -> list[Shard]:
        """The shards of a table in order, without hashes: those that `datasets` lists, and those added later."""
        folder = self.folder / name
        there = {path.name for path in folder.glob("*") if SHARD_NAME.fullmatch(path.name)}
        order, removed = [], None
        if derived_is_whole(folder / DERIVED[1]):
            state = read_json(folder / DERIVED[1])
            # Anybody can sign these files, so they may name anything.
            listed_files = [file["filename"] for file in state["_data_files"]]
            order = [file for file in listed_files if SHARD_NAME.fullmatch(file)]
            removed = {file: name for file, name in state["removed"].items() if REMOVED_NAME.fullmatch(name)}
        if removed is None:
            lists = [path for path in folder.glob("*") if REMOVED_NAME.fullmatch(path.name)]
            if lists:  # it is unknown to which shards they belong
                self._unlisted[name] = sum(map(_num_listed, lists))
            removed = {}
        last = max(map(_number, order), default=0)
        later = sorted((file for file in there - set(order) if _number(file) > last), key=_number)
        return [Shard(file, 0, 0, "", removed.get(file)) for file in order + later]

    def _look_at(self, name: str, shard: Shard, is_known: bool) -> tuple[Shard, Part] | None:
        """Check one shard; returns the shard and its rows, or `None` if it is damaged."""
        folder, number = self.folder / name, shard.rows - shard.num_removed
        lost = f"{number} rows are lost" if is_known else "its rows are lost"
        path = folder / shard.file
        if not path.is_file():
            place = f" What had its name was moved to {self._aside(path)}." if os.path.lexists(path) else ""
            self.report.append(f"{name}/{shard.file} was missing: {lost}.{place}")
            self._lose(name, number)
            return None
        try:
            known = shard if is_known else self._describe(name, shard)
            part = map_shard(folder, replace(known, removed=None, num_removed=0), verified=True)
            part.table  # noqa: B018 - compared with its hash when it is read
            if name == "files":
                check_hashes(part.table)
        except (OSError, ValueError) as error:
            if isinstance(error, DamagedFileError):
                why = error.what.removeprefix("is damaged: ")
            else:
                why = str(error.__cause__ or error)
            self.report.append(
                f"{name}/{shard.file} was damaged ({why}): {lost}. It was moved to {self._aside(path)}."
            )
            self._lose(name, number)
            return None
        if shard.removed is None:
            return known, part
        listing = folder / shard.removed
        try:
            if not is_known:
                known = replace(
                    known,
                    removed=shard.removed,
                    num_removed=_num_listed(listing),
                    removed_sha256=sha256_of(listing),
                )
            return known, map_shard(folder, known, verified=True)
        except (OSError, ValueError):
            place = f" It was moved to {self._aside(listing)}." if os.path.lexists(listing) else ""
            self.report.append(f"{name}/{shard.removed}, which listed removed rows, was damaged or missing.{place}")
            self._unlisted[name] = self._unlisted.get(name, 0) + (known.num_removed if is_known else 0)
            self._is_changed = True
            return replace(known, removed=None, num_removed=0, removed_sha256=None), part

    def _lose(self, name: str, number: int) -> None:
        self.lost[name] += number
        self._have_lost.add(name)
        self._is_changed = True

    def _describe(self, name: str, shard: Shard) -> Shard:
        """Describe a shard that has no description; raises a ValueError if its rows are invalid."""
        path = self.folder / name / shard.file
        table = map_arrow(path)
        if name == "clips":
            names = list(map(str, range(len(table))))
            check_rows(names, embeds_of(table), presence_of(table), modalities_of(table))
        return Shard(shard.file, len(table), path.stat().st_size, sha256_of(path))

    def _look_at_derived(self, shards: dict[str, list[Shard]]) -> None:
        for name, path in ((name, self.folder / name / file) for name in TABLES for file in DERIVED):
            if name not in shards:  # nothing is left of this table
                if path.is_file():
                    self._aside(path)
            elif os.path.lexists(path) and not derived_is_whole(path):
                place = self._aside(path)
                self.report.append(
                    f"{name}/{path.name}, read by `datasets`, was damaged. It was moved to {place} and made again."
                )

    def _look_at_others(self, entries: dict[str, list[Shard]], sealed: str | None, is_known: bool) -> None:
        """Without a manifest, files left by a killed writer cannot be distinguished from others: keep them all."""
        if is_known:
            return
        for name in TABLES:
            used = {file for shard in entries[name] for file in (shard.file, shard.removed)}
            for path in sorted((self.folder / name).glob("*")):
                if (SHARD_NAME.fullmatch(path.name) or REMOVED_NAME.fullmatch(path.name)) and path.name not in used:
                    self.report.append(f"{name}/{path.name} belongs to no table. It was moved to {self._aside(path)}.")
        for path in self.folder.glob("*"):
            if SEALED_NAME.fullmatch(path.name):
                self._aside(path)

    # Repair --------------------------------------------------------------------------------------------------------

    def _keys(self, name: str) -> list[tuple[str, int, int]]:
        """For each row that is kept: its key, the index of its part, and its row there."""
        found = []
        for place, part in enumerate(self.snapshot.parts.get(name, [])):
            gone = {*part.removed.tolist(), *self._removed.get(name, {}).get(place, ())}
            keys = texts_of(part.table, KEYS[name])
            found += [(key, place, row) for row, key in enumerate(keys) if row not in gone]
        return found

    def _drop(self, name: str, rows: Iterable[tuple[str, int, int]]) -> int:
        rows = list(rows)
        for _, place, row in rows:
            self.remove(name, place, [row])
        self._is_changed |= bool(rows)
        return len(rows)

    def _drop_older(self, name: str) -> int:
        """Of rows with the same key, keep the latest; returns how many are dropped."""
        shards, last = self.snapshot.shards.get(name, []), {}
        rows = self._keys(name)
        for number, (key, place, _) in enumerate(rows):
            age = (_number(shards[place].file), number)
            last[key] = max(last.get(key, age), age)
        keep = {number for _, number in last.values()}
        return self._drop(name, (row for number, row in enumerate(rows) if number not in keep))

    def mend(self) -> None:
        """Make the tables consistent, and commit."""
        dropped = {name: self._drop_older(name) for name in TABLES}
        there = {key for key, *_ in self._keys("clips")}
        if "clips" in self._unlisted:
            self._drop_unlisted(self._unlisted["clips"] - dropped["clips"])
            there = {key for key, *_ in self._keys("clips")}
        files = [part.table for part in self.snapshot.parts.get("files", [])]
        reasons = [table.column("reason").to_pylist() for table in files]
        whole = there | whole_files(there)

        def lacks_clips(row: tuple[str, int, int]) -> bool:
            reason = reasons[row[1]][row[2]]
            if reason is None:
                return row[0] not in whole
            # Windows without a clip are not recorded: any window that was a clip may be lost.
            return reason.startswith(PARTLY) and "clips" in self._have_lost

        forgotten = [row for row in self._keys("files") if lacks_clips(row)]
        self._drop("files", forgotten)
        if forgotten and "clips" in self._have_lost:
            names = listed([key for key, *_ in forgotten])
            self.report.append(f"The clips {names} are lost. `scalar index` embeds them again.")
        self._tell_of_queries(there)
        if "files" in self._have_lost:
            self.report.append(
                "The records of some media files are lost: `scalar index` reads and embeds these files again."
            )
        if not self._is_changed:
            self._derive()
            self._clear()
        else:
            plans = {
                name: [(shard, [part]) for shard, part in zip(shards, self._parts(name), strict=True)]
                for name, shards in self.snapshot.shards.items()
            }
            self._commit(plans)

    def _drop_unlisted(self, number: int) -> None:
        """Remove `number` clips again whose list is lost: the files of removed clips are not known."""
        known = {key for key, *_ in self._keys("files")}
        without = [row for row in self._keys("clips") if not known & {row[0], place_of_clip(row[0]).path}]
        if len(without) == number:
            self._drop("clips", without)
        elif number > 0:
            self.report.append(f"Up to {number} removed clips are back, and it is unknown which.")

    def _tell_of_queries(self, there: set[str]) -> None:
        """Note in the metadata that a benchmark is incomplete: it can no longer be evaluated."""
        parts = self.snapshot.parts.get("queries", [])
        described = {name for part in parts for names in lists_of(part.table, "clip_ids") for name in names}
        missing = sorted(described - there)
        number = max(self.lost["clips"], len(missing))
        if "queries" not in self._have_lost and not (parts and "clips" in self._have_lost):
            return
        names = f", among them {listed(missing)}" if missing else ""
        self.report.append(
            f"{number} clips{names} and {self.lost['queries']} captions of an embedded benchmark are lost. The rest "
            "can be searched, but not evaluated: remove the gallery, and embed the benchmark again."
        )
        self.metadata = self.metadata | {"lost": {"clips": number, "queries": self.lost["queries"]}}


def repair(folder: str | os.PathLike) -> list[str]:
    """
    Restore a gallery from its intact files. Damaged ones are moved into its folder `damaged`.

    Args:
        folder (`str`): a gallery, whose manifest may be missing.

    Returns:
        `list[str]`: sentences on what was found and done; empty if nothing was wrong.

    Raises:
        FileNotFoundError: there is no gallery.
        ValueError: another process writes, or the gallery is of another version or format.
        OSError: something could not be written. Another call continues the repair.
    """
    folder = Path(folder)
    with _Repairer(folder) as repairer:
        repairer.mend()
    verify(folder)
    Gallery.open(folder).check()
    return repairer.report


__all__ = ["DAMAGED", "repair"]
