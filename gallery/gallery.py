"""A gallery: embedded clips in a folder, opened, searched, copied, and changed by one process at a time.

[`~gallery.tables`] says what is in the folder, [`~gallery.searching`] what can be asked of it.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from gallery.checks import calibration_of, check_files, check_metadata, check_rows, score_options_of
from gallery.columns import (
    CONCAT_COLUMNS,
    clip_table,
    listed,
    lists_of,
    precision_of,
    query_table,
    stacked,
    strings,
    text_embeds_of,
    texts_of,
    to_utf8,
)
from gallery.data_sets import are_data_sets, read_data_sets
from gallery.hits import Hit, Hits, Results
from gallery.searching import GallerySearch
from gallery.storage import MANIFEST, Writer, has_lost_its_manifest, read_snapshot
from gallery.storage import verify as verify_files
from gallery.tables import COPIED_ROWS, KEYS, MediaFile
from gallery.transcripts import Transcripts
from modeling_scalar.configuration_scalar import MODALITIES


def is_gallery(path: str | os.PathLike) -> bool:
    """Whether a folder holds embedded clips, though maybe damaged."""
    path = Path(path)
    return (path / MANIFEST).is_file() or has_lost_its_manifest(path) or are_data_sets(path)


class Gallery(GallerySearch):
    """Embedded clips as they were committed when this object was opened; a writer does not change them any more."""

    @classmethod
    def open(cls, path: str | os.PathLike, check: bool = True, verify: bool = False) -> "Gallery":
        """
        Open a gallery with its vectors memory-mapped.

        Args:
            path (`str`): a folder that `scalar index`, `scalar eval` or `datasets` wrote.
            check (`bool`): check every vector that `datasets` wrote, which no writer of ours has checked.
            verify (`bool`): compare each file of clips, captions and media with its hash when it is read for the first
                time. [`Gallery.verify`] reads all of them.

        Raises:
            FileNotFoundError: the folder holds no gallery.
            ValueError: it is damaged; the message says where.
        """
        folder = Path(path)
        if not is_gallery(folder):
            raise FileNotFoundError(
                f"There is no gallery in {str(folder)!r}: neither {MANIFEST} nor the data set `clips`."
            )
        if are_data_sets(folder):
            gallery = cls(*read_data_sets(folder), path=folder)
            if check:
                gallery.check()
            return gallery
        snapshot = read_snapshot(folder, verified=verify)
        tables = (snapshot.parts.get(name, []) for name in ("clips", "queries", "files"))
        return cls(*tables, snapshot.manifest["metadata"], folder)

    def verify(self) -> int:
        """
        Compare every file with its hash and check every row.

        Returns:
            `int`: how many bytes were read.

        Raises:
            ValueError: something is damaged; the message names it.
        """
        num_bytes = 0 if are_data_sets(self.path) else verify_files(self.path)
        self.check()
        return num_bytes

    def copy(
        self,
        folder: str | os.PathLike,
        dtype: str | None = None,
        project: Callable[[str, torch.Tensor], torch.Tensor] | None = None,
        metadata: Mapping[str, Any] | None = None,
        has_codes: bool = True,
    ) -> "Gallery":
        """
        Write all of it to a new folder, piece by piece, with its transcripts.

        Args:
            folder (`str`): new or empty.
            dtype (`str`, *optional*): precision of the vectors there; by default that of this gallery.
            project (`Callable`, *optional*): makes other vectors of these; called with `"text"` or a modality, and
                with vectors of it `(rows, D)`.
            metadata (`Mapping`, *optional*): by default that of this gallery.
            has_codes (`bool`): whether it keeps its vectors in eight bits too.

        Raises:
            ValueError: the folder holds something, or a vector is not as it must be.
        """
        if self.clips is None:
            raise ValueError(f"{self.path} holds no clips.")
        if is_gallery(folder):
            raise ValueError(f"{folder} holds a gallery already. Give a new folder.")
        with GalleryWriter(folder, dtype or self.dtype, has_codes) as writer:
            writer.metadata = dict(self.metadata if metadata is None else metadata)
            for batch in self.clips.to_batches(COPIED_ROWS):
                clip_ids, embeds, mask, *others = self._columns(pa.Table.from_batches([batch]))
                if project is not None:
                    columns = [project(name, embeds[:, i]) for i, name in enumerate(MODALITIES)]
                    embeds = torch.stack(columns, dim=1) * mask[..., None]
                writer.put_clips(clip_ids, embeds, mask, *others)
            if self.queries is not None:
                embeds = text_embeds_of(self.queries, self.dim, self.path)
                embeds = embeds if project is None else project("text", embeds)
                texts = (texts_of(self.queries, name, self.path) for name in ("query_id", "caption"))
                described = lists_of(self.queries, "clip_ids", self.path)
                writer.put_queries(query_table(*texts, embeds, described, writer.dtype))
            writer.put_files(list(self.files.values()))
            writer.commit()
            if self.path is not None:
                Transcripts(self.path).copy(writer.folder)
            return writer.gallery()

    def _columns(self, rows: pa.Table) -> tuple[Any, ...]:
        """The arguments of [`GalleryWriter.put_clips`] that give these rows."""
        names = rows.column_names
        return (
            texts_of(rows, "clip_id", self.path),
            stacked(rows, MODALITIES, self.path),
            stacked(rows, ["presence"], self.path, boolean=True)[:, 0],
            stacked(rows, CONCAT_COLUMNS, self.path) if CONCAT_COLUMNS[0] in names else None,
            rows.column("duration").to_pylist() if "duration" in names else None,
            lists_of(rows, "problems", self.path) if "problems" in names else None,
            rows.column("seconds").to_pylist() if "seconds" in names else None,
        )


def verify_gallery(path: str | os.PathLike) -> tuple[Gallery, int]:
    """
    Compare every file of a gallery with its hash before anything in them is relied on, then check every row.

    Returns:
        The gallery, and how many bytes were compared.

    Raises:
        FileNotFoundError: the folder holds no gallery.
        ValueError: something is damaged; the message names it.
    """
    folder = Path(path)
    num_bytes = verify_files(folder) if is_gallery(folder) and not are_data_sets(folder) else 0
    gallery = Gallery.open(folder, check=False)
    gallery.check()
    return gallery, num_bytes


def check_format(folder: Path) -> None:
    """Raise a ValueError if `datasets` alone wrote what a folder holds, which can be read but not changed."""
    if are_data_sets(folder):
        raise ValueError(
            f"{folder} holds data sets that `datasets` wrote, which can be read but not changed. "
            f"`Gallery.open({str(folder)!r}).copy(NEW)` makes a gallery of them that can."
        )


# Writing ----------------------------------------------------------------------------------------------------------


class GalleryWriter(Writer):
    """
    The one process that may change a gallery; others see a change after [`GalleryWriter.commit`], as a whole.

    Args:
        folder (`str`): a gallery, or a new or empty folder.
        dtype (`str`): precision of the vectors of a new gallery, `"float16"` or `"float32"`.
        has_codes (`bool`): whether a new gallery also keeps its vectors in eight bits, by which it is searched faster.

    Raises:
        ValueError: another process writes, the folder holds something else, or what `datasets` alone wrote, it is
            damaged, or `dtype` is unknown.
    """

    def __init__(self, folder: str | os.PathLike, dtype: str = "float16", has_codes: bool = True):
        precision_of(dtype)
        check_format(Path(folder))
        self._indexed: dict[tuple[str, str], dict[str, int]] = {}  # of each shard, the row of each key
        super().__init__(folder)
        known = Gallery(self.snapshot.parts.get("clips", ()))
        self.dtype = known.dtype or dtype
        self.has_codes = has_codes if known.dtype is None else known.has_codes

    def _check(self) -> None:
        gallery = self.gallery()
        gallery._clips, gallery._file_rows  # noqa: B018 - whose columns are checked when they are asked for

    def _forget(self) -> None:
        super()._forget()
        self._pending: set[str] = set()  # clips put since the last commit
        there = {(name, shard.file) for name, shards in self.snapshot.shards.items() for shard in shards}
        self._indexed = {shard: index for shard, index in self._indexed.items() if shard in there}

    def _find(self, name: str, key: str) -> tuple[int, int] | None:
        """Where the committed row with that key is and not removed: the place of its part, and its row."""
        parts, shards = self._old(name), self.snapshot.shards.get(name, [])
        for place, (part, shard) in enumerate(zip(parts, shards, strict=False)):
            index = self._indexed.get((name, shard.file))
            if index is None:
                keys = texts_of(part.table, KEYS[name], self.folder)
                index = self._indexed[name, shard.file] = {}
                for row in np.setdiff1d(np.arange(len(part)), part.removed, assume_unique=True).tolist():
                    index[keys[row]] = row
            row = index.get(key)
            if row is None or row in self._removed.get(name, {}).get(place, ()):
                continue
            found = np.searchsorted(part.removed, row)
            if found == len(part.removed) or part.removed[found] != row:
                return place, row
        return None

    def __contains__(self, clip_id: str) -> bool:
        return clip_id in self._pending or self._find("clips", clip_id) is not None

    def put_clips(
        self,
        clip_ids: Sequence[str],
        modality_embeds: torch.Tensor,
        modality_mask: torch.Tensor,
        concat_embeds: torch.Tensor | None = None,
        durations: Sequence[float | None] | None = None,
        problems: Sequence[Sequence[str]] | None = None,
        seconds: Sequence[float | None] | None = None,
    ) -> None:
        """
        Add clips at the end; a clip that is there already is replaced.

        Args: as in [`~gallery.columns.clip_table`], on the CPU.

        Raises:
            ValueError: of [`check_rows`], another dimension than that of the gallery, or a clip was put twice since
                the last commit; nothing is changed then.
        """
        check_rows(clip_ids, modality_embeds, modality_mask)
        twice = sorted(self._pending.intersection(clip_ids))
        if twice:
            raise ValueError(f"Clips can be put once before a commit; put again were {listed(twice)}.")
        about = concat_embeds, durations, problems, self.dtype, self.has_codes, seconds
        rows = clip_table(clip_ids, modality_embeds, modality_mask, *about)
        self.append("clips", rows)
        self._drop("clips", clip_ids)
        self._pending.update(clip_ids)

    def put_files(self, files: Sequence[MediaFile]) -> None:
        """Note media files as they are now; what was noted of a path is replaced."""
        if not files:
            return
        texts, number = pa.string(), pa.int64()
        table = pa.table(
            {
                "path": strings([file.path for file in files]),
                "size": pa.array([file.size for file in files], number),
                "mtime_ns": pa.array([file.mtime_ns for file in files], number),
                "sha256": strings([file.sha256 for file in files]),
                "reason": pa.array([file.reason and to_utf8(file.reason) for file in files], texts),
            }
        )
        self.append("files", table)
        self._drop("files", [file.path for file in files])

    def put_queries(self, rows: pa.Table) -> None:
        """Add rows of [`~gallery.columns.query_table`]."""
        self.append("queries", rows)

    def _drop(self, name: str, keys: Iterable[str]) -> None:
        for key in keys:
            found = self._find(name, key)
            if found is not None:
                self.remove(name, found[0], [found[1]])

    def remove_clips(self, clip_ids: Iterable[str]) -> None:
        """Take committed clips out, and what is known of their files; a KeyError for one that is not there."""
        for clip_id in clip_ids:
            found = self._find("clips", clip_id)
            if found is None:
                raise KeyError(clip_id)
            self.remove("clips", found[0], [found[1]])
            self._drop("files", [clip_id])

    def forget_files(self, paths: Iterable[str]) -> None:
        """Drop what is known of files in which nothing could be read."""
        self._drop("files", paths)

    def gallery(self) -> Gallery:
        """The last committed state."""
        tables = (self.snapshot.parts.get(name, []) for name in ("clips", "queries", "files"))
        return Gallery(*tables, self.snapshot.manifest["metadata"], self.folder)


__all__ = [
    "KEYS",
    "Gallery",
    "GalleryWriter",
    "Hit",
    "Hits",
    "MediaFile",
    "Results",
    "calibration_of",
    "check_files",
    "check_format",
    "check_metadata",
    "check_rows",
    "is_gallery",
    "score_options_of",
    "verify_gallery",
]
