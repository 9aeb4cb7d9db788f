"""Restore the intact parts of a damaged gallery.

A shard that does not match the manifest, or whose list of removed rows does not, is dropped with the records of its
files, so that the next `scalar index` reads these again. A damaged manifest is restored from its copy. What was
damaged is moved into the folder `damaged`.
"""

import os
from contextlib import suppress
from pathlib import Path

from .gallery import Gallery
from .store.contents import kept_rows
from .store.places import COPY, MANIFEST, has_lost_its_manifest
from .store.rows import abbreviated, texts_of
from .store.storage import (
    DERIVED,
    TABLES,
    Part,
    Shard,
    Snapshot,
    VersionError,
    damage_of,
    damaged_views,
    map_shard,
    read_manifest,
    verify,
)
from .store.windows import PARTLY, whole_files
from .store.writing import Writer

DAMAGED = "damaged"
"""Folder for damaged files."""


class _Repairer(Writer):
    """
    A writer that starts with whatever is intact, and commits it.

    `report` holds a sentence on everything that was wrong or done; `lost` counts the lost rows of each table.
    """

    def __init__(self, folder: Path):
        self.report: list[str] = []
        self.lost: dict[str, int] = {}
        super().__init__(folder)

    def _check_folder(self) -> None:
        if not (self.folder / MANIFEST).is_file() and not has_lost_its_manifest(self.folder):
            raise FileNotFoundError(f"There is no gallery in {str(self.folder)!r}: {MANIFEST} and {COPY} are missing.")

    def _check_alone(self, shards: dict[str, list[Shard]]) -> None:
        """Skip the check against the manifest on disk, which may contain anything."""
        self._check_lock()

    def _open(self) -> None:
        """Separate intact files from damaged ones."""
        try:
            manifest, entries = read_manifest(self.folder)
        except VersionError:
            raise
        except (OSError, ValueError):
            manifest, entries = read_manifest(self.folder, COPY)
            self.report.append(f"{MANIFEST} was damaged or missing. It was restored from {COPY}.")
            self._move_aside(self.folder / MANIFEST)
        # The state to commit is what is intact of the committed one.
        shards: dict[str, list[Shard]] = {}
        parts: dict[str, list[Part]] = {}
        for name, known in entries.items():
            for shard in known:
                first = next(iter(parts.get(name, ())), None)
                wrong = damage_of(self.folder, name, shard, first)
                if wrong is None:
                    shards.setdefault(name, []).append(shard)
                    parts.setdefault(name, []).append(map_shard(self.folder / name, shard))
                else:
                    self._drop(name, shard, wrong)
        # A damaged view needs no commit: it is made again from the manifest.
        self._is_changed = bool(self.report)
        for path in damaged_views(self.folder):
            self.report.append(f"{path} was damaged. It was made again.")
        self.snapshot = Snapshot(manifest, shards, parts)

    def _drop(self, name: str, shard: Shard, wrong: str) -> None:
        """Move the files of a shard aside, and count its rows as lost."""
        number = shard.rows - shard.num_removed
        self.report.append(f"{wrong}. {number} rows of `{name}` are lost.")
        self.lost[name] = self.lost.get(name, 0) + number
        for file in (shard.file, shard.removed):
            if file is not None:
                self._move_aside(self.folder / name / file)

    def _move_aside(self, path: Path) -> None:
        target = self.folder / DAMAGED / path.relative_to(self.folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        while os.path.lexists(target):  # of an earlier repair
            target = target.with_name(f"{target.name}.1")
        with suppress(FileNotFoundError):
            path.rename(target)

    def mend(self) -> None:
        """Make the tables consistent, and commit."""
        if "clips" in self.lost:
            self._forget_files()
        # Without all clips and captions, metrics would be wrong: the metadata record the loss.
        is_benchmark = "queries" in self.snapshot.parts or "queries" in self.lost
        if is_benchmark and (self.lost.keys() & {"clips", "queries"}):
            lost = {name: self.lost.get(name, 0) for name in ("clips", "queries")}
            self.metadata |= {"lost": lost}
            self.report.append(
                f"{lost['clips']} clips and {lost['queries']} captions of an embedded benchmark are lost. The rest "
                "can be searched, but not evaluated: remove the gallery, and embed the benchmark again."
            )
        if self._is_changed:
            self._commit(self._plan)
        else:
            self._update_views()
            self._delete_unused_files()
        # Of tables of which nothing is left, no view may stay.
        for name in set(TABLES).difference(self.snapshot.parts):
            for file in DERIVED:
                (self.folder / name / file).unlink(missing_ok=True)

    def _forget_files(self) -> None:
        """Drop the records of files whose clips are lost, so that the next indexing reads them again."""
        clips = kept_rows(self.snapshot.parts.get("clips", []))
        files = kept_rows(self.snapshot.parts.get("files", []))
        if files is None:
            return
        # A file is whole if it is a clip, or if all its windows are.
        clip_ids = set()
        if clips is not None:
            clip_ids.update(texts_of(clips, "clip_id"))
        whole = clip_ids | whole_files(clip_ids)
        lost = []
        for path, reason in zip(texts_of(files, "path"), files.column("reason").to_pylist(), strict=True):
            is_lost = path not in whole
            if reason is not None:
                # Windows without a clip are not recorded: any window that was a clip may be lost.
                is_lost = reason.startswith(PARTLY)
            if is_lost:
                lost.append(path)
        self.remove("files", self.find("files", lost))
        self.report.append(f"The clips of {abbreviated(lost)} are lost. `scalar index` embeds them again.")


def repair(folder: str | os.PathLike) -> list[str]:
    """
    Restore a gallery from its intact files. Damaged ones are moved into its folder `damaged`.

    Args:
        folder (`str`): a gallery, whose manifest may be missing.

    Returns:
        `list[str]`: a sentence on everything that was wrong or done; empty if nothing was wrong.

    Raises:
        FileNotFoundError: there is no gallery.
        ValueError: another process writes, the manifest and its copy are damaged, or the gallery is of another
            version.
        OSError: something could not be written. Another call continues the repair.
    """
    folder = Path(folder)
    with _Repairer(folder) as repairer:
        repairer.mend()
    verify(folder)
    Gallery.open(folder).check()
    return repairer.report


__all__ = ["DAMAGED", "repair"]
