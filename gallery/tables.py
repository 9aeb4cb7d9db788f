"""The tables of a gallery: embedded clips, the captions that describe some of them, and the media files they were read
from. Each of the three (see [`~gallery.storage`]) is one that `datasets.load_from_disk` reads:

`clips/`
    `clip_id` (string); `video`, `audio`, `subtitle` (lists of D floats): unit vectors, zero where the clip lacks the
    modality; `presence` (list of 3 bools): which of the three it has, in this order; `gram` (list of 9 floats): their
    Gram matrix, see [`~gallery.columns.gram_of`]; `video_codes`, `audio_codes`, `subtitle_codes` (lists of D bytes),
    `code_scale` and `code_error`: the vectors in eight bits, see [`~gallery.exact.codes`]; `concat_video_audio`,
    `concat_video_subtitle` and `concat_video_audio_subtitle` of checkpoints with concatenation heads; `duration` of
    the sound in seconds, if known; `seconds`: how long the clip lasts, if known; `problems` (list of
    strings): what could not be read and counts as absent.
`queries/`
    `query_id`, `caption` (strings); `embedding` (list of D floats): a unit vector, or one for each modality (3 D
    floats); `clip_ids` (list of strings): the clips that the query describes. Only benchmarks have them.
`files/`
    `path`, `size`, `mtime_ns`, `sha256` of each media file as it was when it was read, and `reason` (string) if
    nothing, or not all of its windows, could be read. Only galleries of one's own files have them; the `clip_id` is
    the path then, or names a window of it (see [`~gallery.windows`]).

Vectors of any other model are a gallery too, once they are written with `datasets` alone (`clips/`, and for evaluation
`queries/`; of the columns those described first, up to `presence`):

    Dataset.from_dict({"clip_id": ids, "video": v, "audio": a, "subtitle": s, "presence": p}).save_to_disk("X/clips")
    Dataset.from_dict({"query_id": q, "caption": c, "embedding": t, "clip_ids": lists}).save_to_disk("X/queries")

Shapes: Q queries, N clips, D dimensions, K hits.
"""

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch

from gallery.checks import calibration_of, check_clips, check_files, check_metadata, check_rows
from gallery.columns import (
    CODE_COLUMNS,
    CONCAT_COLUMNS,
    codes_of,
    from_utf8,
    listed,
    lists_of,
    off_unit,
    stacked,
    strings,
    text_embeds_of,
    texts_of,
    to_utf8,
)
from gallery.exact.codes import are_codes_of
from gallery.provenance import gallery_sha256
from gallery.storage import Part
from gallery.windows import SEGMENT, Place, clip_id_of_shown, place_of_clip
from modeling_scalar.configuration_scalar import MODALITIES

KEYS = {"clips": "clip_id", "files": "path", "queries": "query_id"}
"""The column that names the rows of a table."""
COPIED_ROWS = 16_384
"""How many rows are checked or copied at a time."""


@dataclass(frozen=True)
class MediaFile:
    """A file as it was when it was read; `reason` says why nothing, or not all of its windows, could be read."""

    path: str
    size: int
    mtime_ns: int
    sha256: str
    reason: str | None = None


def _rows_of(parts: Sequence[Part]) -> pa.Table | None:
    """The rows of a table that are not removed, mapped; `None` if there is no table."""
    return pa.concat_tables(part.kept() for part in parts) if parts else None


class GalleryTables:
    """
    The tables of a gallery, and what it says of itself.

    Args:
        clips (`list[Part]`), queries (`list[Part]`), files (`list[Part]`): the tables.
        metadata (`dict`): where the embeddings come from, see [`~gallery.provenance.describe`].
        path (`Path`): the folder.

    Everything is read when it is asked for: opening does not depend on how many clips there are.
    """

    def __init__(
        self,
        clips: Sequence[Part],
        queries: Sequence[Part] = (),
        files: Sequence[Part] = (),
        metadata: Mapping[str, Any] | None = None,
        path: Path | None = None,
    ):
        self.path = path
        self.metadata = dict(metadata or {})
        check_metadata(self.metadata, path or "the gallery")
        self._parts, self._queries, self._files = list(clips), list(queries), list(files)
        self._where = path / "clips" if path else "clips"
        # Of one part; the others are read when they are asked for.
        self.dim = check_clips(self._parts[0].table, self._where, None) if self._parts else None

    def __len__(self) -> int:
        return sum(len(part) - len(part.removed) for part in self._parts)

    @cached_property
    def _clips(self) -> list[Part]:
        """The parts of the table of clips, their columns checked."""
        for part in self._parts:
            check_clips(part.table, self._where, self.dim)
        return self._parts

    # What it says of itself ----------------------------------------------------------------------------------------

    @property
    def model(self) -> str | None:
        """Where the model was loaded from, if that is known."""
        return self.metadata.get("model")

    @property
    def fingerprint(self) -> str | None:
        """The hash of the model's files, if that is known."""
        return self.metadata.get("fingerprint")

    @property
    def query_temperature(self) -> float:
        """Temperature of the query's modality weights, by default the paper's 0.1."""
        value = self.metadata.get("query_temperature")
        return 0.1 if value is None else float(value)

    @property
    def calibration(self) -> dict[str, list[float]]:
        """The scale and the offset of each modality's cosines, as far as there are any; see `retrieval_scores`."""
        return calibration_of(self.metadata)

    @property
    def dtype(self) -> str | None:
        """`"float16"` or `"float32"`; `None` as long as there is no clip."""
        kinds = {str(part.table.column(MODALITIES[0]).type.value_type) for part in self._parts[:1]}
        return None if not kinds else "float16" if kinds == {"halffloat"} else "float32"

    @property
    def has_codes(self) -> bool:
        """Whether the vectors are kept in eight bits too."""
        return bool(self._parts) and CODE_COLUMNS[0] in self._parts[0].table.column_names

    def check_model(self, model: str, fingerprint: str, must_know: bool = False) -> None:
        """
        Raise a ValueError if this gallery was made by another model.

        Args:
            model (`str`), fingerprint (`str`): the model that is to be used with it.
            must_know (`bool`): whether a gallery of clips that does not say what made it is refused too.
        """
        if must_know and len(self) and self.fingerprint is None:
            raise ValueError(
                f"{self.path} does not say which model made it, so nothing can be added to it: embeddings of "
                "different models cannot be compared. Index into a new gallery."
            )
        if self.fingerprint not in (None, fingerprint):
            raise ValueError(
                f"The gallery was made with {self.model!r} (fingerprint {str(self.fingerprint)[:12]}), but the files "
                f"of {model!r} have fingerprint {fingerprint[:12]}. Embeddings of different models cannot be "
                "compared: use the gallery's model, or index into a new gallery."
            )

    # Its tables ----------------------------------------------------------------------------------------------------

    @cached_property
    def clips(self) -> pa.Table | None:
        """The table of clips, mapped; `None` as long as there never was one."""
        return _rows_of(self._clips)

    @cached_property
    def queries(self) -> pa.Table | None:
        """The table of queries, mapped; `None` if there is none."""
        return _rows_of(self._queries)

    @cached_property
    def clip_ids(self) -> list[str]:
        """Identifiers of the clips, in the order of the gallery."""
        return [] if self.clips is None else texts_of(self.clips, "clip_id", self.path)

    @cached_property
    def modality_mask(self) -> torch.Tensor:
        """`torch.BoolTensor` of shape `(N, 3)`: which modalities each clip has."""
        if self.clips is None:
            return torch.zeros(0, len(MODALITIES), dtype=torch.bool)
        return stacked(self.clips, ["presence"], self.path, boolean=True)[:, 0]

    def modality_embeds(self) -> torch.Tensor:
        """Copy the vectors: `(N, 3, D)`, in the precision of the gallery, zero where absent."""
        if self.clips is None:
            raise ValueError("A gallery to which no clip was ever added has no vectors.")
        return stacked(self.clips, MODALITIES, self.path)

    def concat_embeds(self) -> torch.Tensor | None:
        """Copy what concatenation heads gave: `(N, 3, D)`, or `None` without them."""
        if self.clips is None or CONCAT_COLUMNS[0] not in self.clips.column_names:
            return None
        return stacked(self.clips, CONCAT_COLUMNS, self.path)

    def problems(self) -> dict[str, list[str]]:
        """What could not be read and counts as absent, by clip."""
        if self.clips is None or "problems" not in self.clips.column_names:
            return {}
        told = lists_of(self.clips, "problems", self.path)
        return {name: problems for name, problems in zip(self.clip_ids, told, strict=True) if problems}

    @cached_property
    def _file_rows(self) -> pa.Table | None:
        """The table of media files, mapped, its columns checked; `None` if there is none."""
        table = _rows_of(self._files)
        if table is not None:
            check_files(table, self.path / "files" if self.path else "files")
        return table

    @cached_property
    def files(self) -> dict[str, MediaFile]:
        """The media files it knows, by path."""
        return self.files_at()

    def files_at(self, paths: Collection[str] | None = None) -> dict[str, MediaFile]:
        """The media files it knows, by path; only those at some paths, if they are given."""
        table = self._file_rows
        if table is None:
            return {}
        if paths is not None:
            table = table.filter(pc.is_in(table.column("path"), value_set=strings(list(paths))))
        columns = [table.column(item.name).to_pylist() for item in fields(MediaFile)]
        return {
            from_utf8(path): MediaFile(from_utf8(path), size, mtime, sha256, reason and from_utf8(reason))
            for path, size, mtime, sha256, reason in zip(*columns, strict=True)
        }

    def clips_of_files(self) -> dict[str, list[str]]:
        """The clips of each file: itself, or its windows."""
        clips: dict[str, list[str]] = {}
        for name in self.clip_ids:
            clips.setdefault(self.place_of(name).path, []).append(name)
        return clips

    def place_of(self, clip_id: str) -> Place:
        """The file of a clip, or the name of a clip of no file, and its seconds if it is a window."""
        is_whole = self.metadata.get(SEGMENT) is None or clip_id in self._called_as_windows
        return Place(clip_id) if is_whole else place_of_clip(clip_id)

    @cached_property
    def _called_as_windows(self) -> frozenset[str]:
        """The files, hardly any, whose own names are as those of windows."""
        if self._file_rows is None:
            return frozenset()
        paths = self._file_rows.column("path")
        return frozenset(map(from_utf8, paths.filter(pc.match_substring(paths, "#t=")).to_pylist()))

    def row_of(self, clip_id: str) -> int:
        """The place of a clip in the gallery; a KeyError if there is none of that name."""
        row = self._find_row(clip_id)
        if row is None:
            raise KeyError(f"There is no clip {clip_id!r} in {self.path}.")
        return row

    def _find_row(self, clip_id: str) -> int | None:
        if self.clips is None:
            return None
        names = self.clips.column("clip_id")
        row = pc.index(names, pa.scalar(to_utf8(clip_id), names.type)).as_py()
        return None if row < 0 else row

    def clip_named(self, name: str) -> str:
        """
        Tell which clip is meant by its identifier, its name as hits show it, or its path from the working folder.

        Raises:
            ValueError: there is none; of a file that was cut, the message names windows.
        """
        candidates = [
            candidate
            for said in filter(None, (name, clip_id_of_shown(name)))
            for candidate in (said, *([os.path.join(self.root, said)] if self.root else []), os.path.realpath(said))
        ]
        for candidate in candidates:
            if self._find_row(candidate) is not None:
                return candidate
        for candidate in candidates if self.clips is not None else ():
            names = self.clips.column("clip_id")
            windows = names.filter(pc.starts_with(names, to_utf8(f"{candidate}#t="))).slice(0, 3).to_pylist()
            if windows:
                told = ", ".join(repr(from_utf8(window)) for window in windows)
                raise ValueError(f"{name!r} is cut into windows in {self.path}: name one of them, as {told}.")
        raise ValueError(
            f"There is no clip {name!r} in {self.path}. `scalar query ... --json` prints the `clip_id` of each hit."
        )

    @cached_property
    def root(self) -> str | None:
        """The folder that all files lie in or below, from which their names are shown; `None` if there are none."""
        if self.clips is None:
            return None
        names = self.clips.column("clip_id")
        ends = pc.min_max(names.filter(pc.starts_with(names, "/"))).as_py()
        # Names that are not UTF-8, which are kept otherwise, are few.
        odd = [from_utf8(name) for name in names.filter(pc.starts_with(names, "\0/")).to_pylist()]
        first_and_last = [name for name in (*ends.values(), *odd) if name is not None]
        return os.path.commonpath(map(os.path.dirname, first_and_last)) if first_and_last else None

    def facts(self) -> dict[str, Any]:
        """
        Return what can be counted: `dim`, `dtype`, `num_clips`, `num_queries`, `num_pairs`, the `columns` of vectors
        and `gallery_sha256`, see [`~gallery.provenance.gallery_sha256`].
        """
        names = [] if self.clips is None else self.clips.column_names
        described = [] if self.queries is None else lists_of(self.queries, "clip_ids", self.path)
        return {
            "dim": self.dim,
            "dtype": self.dtype,
            "num_clips": len(self),
            "num_queries": len(described),
            "num_pairs": sum(map(len, described)),
            "columns": [name for name in (*MODALITIES, *CONCAT_COLUMNS) if name in names],
            "gallery_sha256": gallery_sha256(self.clip_ids, self.modality_mask.int().tolist()),
        }

    def check(self) -> None:
        """Raise a ValueError that names clips and queries whose vectors are not as they must be; reads all of them."""
        if self.clips is None:
            return
        start = 0
        names = ["clip_id", *MODALITIES, "presence"]
        names += [*CODE_COLUMNS, "code_scale", "code_error"] if self.has_codes else []
        for batch in self.clips.select(names).to_batches(COPIED_ROWS):
            rows = pa.Table.from_batches([batch])
            mask = stacked(rows, ["presence"], self.path, boolean=True)[:, 0]
            embeds = stacked(rows, MODALITIES, self.path)
            check_rows(self.clip_ids[start : start + len(rows)], embeds, mask)
            filled = (embeds[~mask] != 0).any()
            if "gram" in self.clips.column_names and filled:
                raise ValueError(f"Vectors of absent modalities must be zero in {self.path}; some are not.")
            codes = codes_of(batch, self.path)
            wrong = [] if codes is None else ~are_codes_of(codes, embeds.unbind(1))
            if len(wrong) and wrong.any():
                told = [self.clip_ids[start + row] for row in wrong.nonzero().flatten().tolist()]
                raise ValueError(f"Vectors in eight bits in {self.path} are not those of the clips {listed(told)}.")
            start += len(rows)
        if len(set(self.clip_ids)) != len(self.clip_ids):
            repeated = sorted(name for name, count in Counter(self.clip_ids).items() if count > 1)
            raise ValueError(f"`clip_id` in {self.path} must be unique, repeated: {listed(repeated)}.")
        if self.queries is not None:
            names = texts_of(self.queries, "query_id", self.path)
            wrong = off_unit(text_embeds_of(self.queries, self.dim, self.path))
            if wrong.any():
                wrong = wrong.view(len(wrong), -1).any(1)
                wrong = [names[row] for row in wrong.nonzero().flatten().tolist()]
                raise ValueError(f"Vectors of queries in {self.path} must be of unit norm; not so: {listed(wrong)}.")


__all__ = ["COPIED_ROWS", "KEYS", "GalleryTables", "MediaFile"]
