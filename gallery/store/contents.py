"""What a gallery contains: its clips by name, their modalities, vectors and files.

Shapes: N clips, M modalities.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from .described import Described, Extent, NoClipError
from .places import MANIFEST, find_gallery, media_of
from .rows import FILES, MediaFile, check_hashes, lists_of, moment_of, strings, texts_of, widths_of
from .storage import Part, Snapshot, read_snapshot
from .windows import SEGMENT, WINDOW, Place, clip_id_of_label, place_of_clip

if TYPE_CHECKING:
    import torch


# The tables of a gallery to which nothing was ever added; its clips have no columns of vectors.
_CLIPS = pa.schema({"clip_id": pa.string(), "seconds": pa.float64(), "problems": pa.list_(pa.string())})
# From no batches: an empty array of pyarrow would import pandas, where it is installed.
_NO_CLIPS = pa.Table.from_batches([], _CLIPS)
_NO_FILES = pa.Table.from_batches([], FILES)


def stamp_of(folder: Path) -> tuple[int, ...] | None:
    """A value that changes with every commit; `None` if the gallery is gone or was never committed."""
    try:
        stat = os.stat(folder / MANIFEST)
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def kept_rows(parts: Sequence[Part], default: pa.Table | None = None) -> pa.Table | None:
    """The mapped rows of a table, without removed ones; `default` if there is no table."""
    if not parts:
        return default
    return pa.concat_tables(part.kept() for part in parts)


def _media_files(table: pa.Table) -> dict[str, MediaFile]:
    """The media files of a table, by path."""
    return {row["path"]: MediaFile(**row) for row in table.to_pylist()}


def _ends_with(texts: pa.ChunkedArray, endings: Sequence[str]) -> pa.ChunkedArray:
    """Which texts have one of these endings."""
    return reduce(pc.or_, [pc.ends_with(texts, ending) for ending in endings])


class Contents(Described):
    """
    The clips of a gallery and their files, as committed when they were read. Each table is read when it is needed.

    Reading facts needs no torch, only vectors and their presence do, so `scalar info` answers at once.

    Args:
        clips (`list[Part]`), queries (`list[Part]`), files (`list[Part]`): the tables.
        metadata (`dict`): where the embeddings come from, see
            [`~scalar_retrieval.gallery.store.provenance.provenance_of`].
        path (`Path`, *optional*): the folder.
    """

    stamp: tuple[int, ...] | None = None
    """A value that differs after every commit; `None` if nothing is committed in the folder."""

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """
        Open a gallery with its tables memory-mapped.

        Args:
            path (`str`): a folder written by `scalar index`, `scalar eval` or
                [`~scalar_retrieval.gallery.gallery.GalleryWriter`], or the address of a published gallery,
                `hf://datasets/USER/NAME`.

        Raises:
            FileNotFoundError: the folder holds no gallery.
            ValueError: it is damaged; the message says where.
        """
        folder = find_gallery(path)
        # Before the manifest is read, so that a commit in the meantime is noticed.
        stamp = stamp_of(folder)
        gallery = cls.of_snapshot(read_snapshot(folder), folder)
        gallery.stamp = stamp
        return gallery

    @classmethod
    def of_snapshot(cls, snapshot: Snapshot, folder: Path) -> Self:
        """The gallery in a folder in one of its states."""
        tables = (snapshot.parts.get(name, []) for name in ("clips", "queries", "files"))
        return cls(*tables, snapshot.manifest["metadata"], folder)

    def __init__(
        self,
        clips: Sequence[Part],
        queries: Sequence[Part] = (),
        files: Sequence[Part] = (),
        metadata: Mapping[str, Any] | None = None,
        path: Path | None = None,
    ):
        self.parts = list(clips)
        self._queries = list(queries)
        self._files = list(files)
        widths = None
        self.dtype = None  # `"float16"` or `"float32"`
        # The columns of vectors say more than the metadata; a gallery without clips has none.
        if self.parts:
            table = self.parts[0].table
            widths = widths_of(table)
            vectors = table.schema.field(next(iter(widths))).type
            self.dtype = vectors.value_type.to_pandas_dtype().__name__
        # Files are read when they are needed, wherever the program works by then.
        if path is not None:
            path = path.absolute()
        super().__init__(metadata, path, widths)

    def __len__(self) -> int:
        return sum(part.num_kept for part in self.parts)

    @cached_property
    def clips(self) -> pa.Table:
        """The table of clips, mapped."""
        return kept_rows(self.parts, _NO_CLIPS)

    @cached_property
    def queries(self) -> pa.Table | None:
        """The table of queries, mapped; `None` if there is none."""
        return kept_rows(self._queries)

    @cached_property
    def clip_ids(self) -> list[str]:
        """Identifiers of the clips, in the order of the gallery."""
        return texts_of(self.clips, "clip_id")

    @cached_property
    def modality_mask(self) -> "torch.Tensor":
        """`torch.BoolTensor` of shape `(N, M)`: which modalities each clip has."""
        import torch  # not at the top: see above

        from .columns import presence_of

        if not self.parts:
            return torch.zeros(0, len(self.modalities), dtype=torch.bool)
        return presence_of(self.clips)

    def modality_embeds(self) -> "torch.Tensor":
        """Copy the vectors: `(N, M, D)`, in the precision of the gallery, zero where absent, and in the components
        that a modality does not have."""
        from .columns import embeds_of  # not at the top: see above

        if not self.parts:
            raise ValueError("This gallery has no vectors: no clip was ever added to it.")
        return embeds_of(self.clips, self.slices)

    def presence_counts(self) -> dict[str, int]:
        """The number of clips that have each modality."""
        counts = dict.fromkeys(self.modalities, 0)
        if not self.parts:
            return counts
        # Of the flags of all clips, one after the other, every M-th belongs to the same modality.
        for chunk in self.clips.column("presence").chunks:
            flags = chunk.flatten()
            for place, name in enumerate(self.modalities):
                counts[name] += flags[place :: len(self.modalities)].true_count
        return counts

    def clips_with(self, modality: str) -> set[str]:
        """The clips that have a modality."""
        found = set()
        if not self.parts:
            return found
        # Of each clip there is a flag for every modality, one after the other.
        place = self.modalities.index(modality)
        for batch in self.clips.select(["clip_id", "presence"]).to_batches():
            flags = batch.column("presence").flatten()[place :: len(self.modalities)]
            found.update(batch.column("clip_id").filter(flags).to_pylist())
        return found

    def problems(self) -> dict[str, list[str]]:
        """For each clip with problems, what could not be read and counts as absent."""
        # A cast, as comparing with a number makes Arrow import pandas.
        has_problems = pc.list_value_length(self.clips.column("problems")).cast(pa.bool_())
        clips = self.clips.select(["clip_id", "problems"]).filter(has_problems)
        return dict(zip(texts_of(clips, "clip_id"), lists_of(clips, "problems"), strict=True))

    @cached_property
    def file_rows(self) -> pa.Table:
        """The table of media files, mapped. Raises a ValueError if a hash is not valid."""
        files = kept_rows(self._files, _NO_FILES)
        check_hashes(files)
        return files

    @cached_property
    def files(self) -> dict[str, MediaFile]:
        """The known media files, by path."""
        return self.files_at()

    def files_at(self, paths: Collection[str] | None = None) -> dict[str, MediaFile]:
        """The known media files, by path; only those at the given paths, if any are given."""
        table = self.file_rows
        if paths is not None:
            table = table.filter(pc.is_in(table.column("path"), value_set=strings(list(paths))))
        return _media_files(table)

    def failed_files(self) -> list[MediaFile]:
        """The media files that were not read in full, with their reasons."""
        failed = self.file_rows.filter(pc.is_valid(self.file_rows.column("reason")))
        return list(_media_files(failed).values())

    @cached_property
    def extent(self) -> Extent:
        """How much there is."""
        paths = pc.unique(self.paths)
        seconds = pc.sum(self.clips.column("seconds")).as_py()
        # Files without clips are not counted, nor those of which no date is known.
        files = self.file_rows
        files = files.filter(pc.is_in(files.column("path"), value_set=paths))
        dates = pc.coalesce(files.column("recorded_ns"), files.column("mtime_ns"))
        is_known = dates.cast(pa.bool_())  # 0 is unknown; not by a comparison, see `problems`
        ends = pc.min_max(dates.filter(is_known)).as_py()
        num_changed = files.column("recorded_ns").filter(is_known).null_count
        oldest, newest = (None if end is None else moment_of(end) for end in ends.values())
        return Extent(len(paths), seconds, oldest, newest, num_changed)

    def own_media_of(self, place: Place, known: MediaFile | None) -> str | None:
        """
        The path of a clip's file if it may be shown to others: it lies in the gallery, or is what was embedded.

        A stranger's gallery may name any file of this machine. But it knows neither when that file was changed nor its
        content; `known`, the gallery's record of the file, must hold one of them.
        """
        from .file_state import is_known_media  # not at the top: it imports decoders

        path = media_of(self.path, place.path)
        if path is None or not os.path.isabs(place.path):
            return path  # in the folder of the gallery
        if known is None or not is_known_media(path, known):
            return None
        return path

    @property
    def is_cut(self) -> bool:
        """Whether clips are windows of files."""
        return self.metadata.get(SEGMENT) is not None

    @cached_property
    def paths(self) -> pa.ChunkedArray:
        """The file of each clip, `(N,)`: of a window, the file that was cut."""
        names = self.clips.column("clip_id")
        if not self.is_cut:
            return names
        # The file of a window is what comes before its seconds.
        paths = pc.replace_substring_regex(names, WINDOW.pattern, "")
        # The (very few) files whose own names look like those of windows
        is_file = pc.is_in(names, value_set=self.file_rows.column("path"))
        return pc.if_else(is_file, names, paths)

    def places_of(self, clip_ids: Sequence[str]) -> list[Place]:
        """The file of each clip, or the name of a clip without a file; for a window also its seconds."""
        places = []
        for clip_id in clip_ids:
            place = Place(clip_id)
            if self.is_cut and clip_id not in self._files_named_as_windows:
                place = place_of_clip(clip_id)
            places.append(place)
        return places

    @cached_property
    def _files_named_as_windows(self) -> frozenset[str]:
        """The (very few) files whose own names look like those of windows."""
        paths = self.file_rows.column("path")
        return frozenset(paths.filter(pc.match_substring(paths, "#t=")).to_pylist())

    def check_queries(self) -> None:
        """Raise an error unless metrics can be computed of these queries and clips: a ValueError if a part is lost or
        missing, a FileNotFoundError if there are no queries."""
        # A damaged or unfinished gallery would give the metrics of another benchmark.
        if self.metadata.get("lost"):
            raise ValueError(
                f"A part of the embeddings in {self.path} was damaged and is lost: {self.metadata['lost']}. They can "
                "be searched, but metrics would be those of another benchmark: remove them, and embed it again."
            )
        self.check_finished()
        if self.queries is None:
            raise FileNotFoundError(
                f"The gallery {self.path} has clips but no queries, so relevant clips are unknown. Give the model "
                "and the benchmark too: its captions are then embedded, and its clips found in the gallery by their "
                "files."
            )

    def check_finished(self) -> None:
        """Raise a ValueError if `scalar eval embed` has not finished embedding a benchmark here."""
        planned = self.metadata.get("unfinished")
        if not planned:
            return
        num_queries = 0 if self.queries is None else len(self.queries)
        raise ValueError(
            f"The embeddings in {self.path} are unfinished: {len(self)} clips and {num_queries} queries out of "
            f"{planned}. Run the same `scalar eval embed` again to continue."
        )

    def row_of(self, clip_id: str) -> int:
        """The index of a clip in the gallery; raises a KeyError if there is no clip of that name."""
        row = self._find_row(clip_id)
        if row < 0:
            raise KeyError(f"There is no clip {clip_id!r} in {self.path}.")
        return row

    def _find_row(self, clip_id: str) -> int:
        """The index of a clip in the gallery; -1 if there is no clip of that name."""
        names = self.clips.column("clip_id")
        return pc.index(names, pa.scalar(clip_id, names.type)).as_py()

    def clip_named(self, name: str) -> str:
        """
        Find a clip by its identifier, its name as hits show it, its path relative to the working folder, or the end of
        its path, if that is unique.

        Raises:
            ValueError: no clip matches, or several do; for a file that was cut, the message names windows.
        """
        name = name.encode("utf-8", "replace").decode()  # the names of clips are UTF-8
        names = [name]
        window = clip_id_of_label(name)
        if window is not None:
            names.append(window)
        # Whole names come first.
        candidates = []
        endings = []
        for known in names:
            endings.append(f"/{known}")
            candidates += [known, os.path.join(self.root or "", known), os.path.realpath(known)]
        for candidate in candidates:
            if self._find_row(candidate) >= 0:
                return candidate
        # Then ends of names, of which one must match.
        clip_ids = self.clips.column("clip_id")
        matches = clip_ids.filter(_ends_with(clip_ids, endings))
        if len(matches) == 1:
            return matches[0].as_py()
        problem = "matches several clips in"
        # Then files that were cut into windows: the message names some of these.
        if not matches:
            is_file = pc.is_in(self.paths, value_set=strings(candidates))
            matches = clip_ids.filter(pc.or_(is_file, _ends_with(self.paths, endings)))
            problem = "is cut into windows in"
        if not matches:
            raise NoClipError(
                f"There is no clip {name!r} in {self.path}. `scalar query ... --json` prints the `clip_id` of each "
                "hit."
            )
        examples = ", ".join(map(repr, matches.slice(0, 3).to_pylist()))
        raise ValueError(f"{name!r} {problem} {self.path}. Name one of them, such as {examples}.")

    @cached_property
    def root(self) -> str | None:
        """The folder that contains all files, from which their names are shown; `None` if there are no files."""
        clip_ids = self.clips.column("clip_id")
        ends = pc.min_max(clip_ids.filter(pc.starts_with(clip_ids, "/"))).as_py()
        if ends["min"] is None:
            return None
        return os.path.commonpath([os.path.dirname(ends["min"]), os.path.dirname(ends["max"])])


__all__ = ["Contents", "kept_rows", "stamp_of"]
