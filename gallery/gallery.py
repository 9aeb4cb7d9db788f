"""A gallery: embedded clips, the captions that describe some of them, and the media files they were read from.

On disk it is three tables (see [`~gallery.storage`]), each of which `datasets.load_from_disk` reads:

`clips/`
    `clip_id` (string); `video`, `audio`, `subtitle` (lists of D floats): unit vectors, zero where the clip lacks the
    modality; `presence` (list of 3 bools): which of the three it has, in this order; `gram` (list of 9 floats): their
    Gram matrix, see [`~gallery.columns.gram_of`]; `video_codes`, `audio_codes`, `subtitle_codes` (lists of D bytes),
    `code_scale` and `code_error`: the vectors in eight bits, see [`~gallery.screening`]; `concat_video_audio`,
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

import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from gallery.columns import (
    CODE_COLUMNS,
    CONCAT_COLUMNS,
    check_lists,
    check_type,
    clip_table,
    codes_of,
    from_utf8,
    is_string,
    listed,
    lists_of,
    off_unit,
    precision_of,
    query_table,
    stacked,
    strings,
    text_embeds_of,
    texts_of,
    to_utf8,
)
from gallery.filters import Allowed, ClipFacts, Filter
from gallery.hits import Hit, Hits, Results
from gallery.older import is_older, read_older
from gallery.provenance import gallery_sha256
from gallery.querying import QueryModel, check_texts, query_like, where_is
from gallery.ranking import Piece, pieces_of, rank
from gallery.reranking import check_can_match, check_depth
from gallery.reranking import rerank as rerank_hits
from gallery.screening import are_codes_of
from gallery.storage import MANIFEST, Part, Writer, has_lost_its_manifest, read_snapshot
from gallery.storage import verify as verify_files
from gallery.transcripts import Transcripts
from gallery.windows import SEGMENT, Place, place_of_clip
from modeling_scalar.aggregation_scalar import METHODS, query_weights
from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.pairs_scalar import CALIBRATION, WEIGHING, check_calibration

KEYS = {"clips": "clip_id", "files": "path", "queries": "query_id"}
"""The column that names the rows of a table."""

_QUERY_BLOCK = 1024
_LEAST_TEMPERATURE = float(np.finfo(np.float32).tiny)  # by less, scores would be divided to infinity
_COPIED_ROWS = 16_384
_LOADING = Lock()
_FILTERS = 8  # of which it is remembered what fulfils them


@dataclass(frozen=True)
class MediaFile:
    """A file as it was when it was read; `reason` says why nothing, or not all of its windows, could be read."""

    path: str
    size: int
    mtime_ns: int
    sha256: str
    reason: str | None = None


def is_gallery(path: str | os.PathLike) -> bool:
    """Whether a folder holds embedded clips, in today's format or an older one, though maybe damaged."""
    path = Path(path)
    return (path / MANIFEST).is_file() or has_lost_its_manifest(path) or is_older(path)


def _check_clips(table: pa.Table, where: Any, dim: int | None) -> int:
    """Return the dimension of the vectors; a ValueError if the columns are not those of clips."""
    check_type(table, "clip_id", where, is_string, "strings")
    has_heads = any(name in table.column_names for name in CONCAT_COLUMNS)
    for name in MODALITIES + (CONCAT_COLUMNS if has_heads else ()):
        dim = check_lists(table, name, where, length=dim)
    if not dim:
        raise ValueError(f"Vectors in {where} must have at least one dimension, got {dim}.")
    check_lists(table, "presence", where, boolean=True, length=len(MODALITIES))
    if "gram" in table.column_names:
        check_lists(table, "gram", where, length=len(MODALITIES) ** 2)
        check_type(table, "gram", where, lambda kind: pa.types.is_float32(kind.value_type), "lists of float32")
    if CODE_COLUMNS[0] in table.column_names:
        for name in CODE_COLUMNS:
            check_type(table, name, where, lambda kind: kind == pa.list_(pa.int8(), dim), f"lists of {dim} bytes")
        for name in ("code_scale", "code_error"):
            check_type(table, name, where, pa.types.is_float32, "float32")
    for name in ("duration", "seconds"):
        if name in table.column_names:
            check_type(table, name, where, pa.types.is_floating, "floats", nullable=True)
    return dim


def check_files(table: pa.Table, where: Any) -> None:
    """Raise a ValueError if the columns are not those of media files."""
    for name, of_type, kind in (
        ("path", is_string, "strings"),
        ("size", pa.types.is_integer, "integers"),
        ("mtime_ns", pa.types.is_integer, "integers"),
        ("sha256", is_string, "strings"),
        ("reason", is_string, "strings"),
    ):
        check_type(table, name, where, of_type, kind, nullable=name == "reason")


def check_rows(clip_ids: Sequence[str], modality_embeds: torch.Tensor, modality_mask: torch.Tensor) -> None:
    """
    Check embedded clips.

    Args:
        clip_ids (`list[str]`): one per clip.
        modality_embeds (`torch.Tensor` of shape `(N, 3, D)`): what a row with a False mask holds does not count.
        modality_mask (`torch.BoolTensor` of shape `(N, 3)`): what each clip has.

    Raises:
        ValueError: shapes differ, an identifier repeats, a clip has no modality, or a vector that is present is not
            of unit norm; the clips are named.
    """
    expected = (len(clip_ids), len(MODALITIES))
    if modality_mask.shape != expected or modality_embeds.ndim != 3 or modality_embeds.shape[:2] != expected:
        raise ValueError(
            f"{len(clip_ids)} clips need `modality_mask` of shape {expected} and `modality_embeds` of shape "
            f"{(*expected, 'D')}, got {tuple(modality_mask.shape)} and {tuple(modality_embeds.shape)}."
        )
    if len(set(clip_ids)) != len(clip_ids):
        repeated = sorted(name for name, count in Counter(clip_ids).items() if count > 1)
        raise ValueError(f"`clip_id` must be unique, repeated: {listed(repeated)}.")
    for rows, message in (
        (~modality_mask.any(1), "Every clip needs at least one modality; these have none"),
        (
            (off_unit(modality_embeds) & modality_mask).any(1),
            "Vectors of modalities that are present must be of unit norm; they are not for the clips",
        ),
    ):
        wrong = [clip_ids[row] for row in rows.nonzero().flatten().tolist()]
        if wrong:
            raise ValueError(f"{message}: {listed(wrong)}.")


def _rows_of(parts: Sequence[Part]) -> pa.Table | None:
    """The rows of a table that are not removed, mapped; `None` if there is no table."""
    return pa.concat_tables(part.kept() for part in parts) if parts else None


# Of metadata, what is used here and where galleries are evaluated.
_IN_METADATA = {
    "model": str,
    "fingerprint": str,
    "dtype": str,
    "plan": dict,
    "lost": dict,
    "problems": list,
    "left_out": list,
    "score_options": dict,
    "training": dict,
}
_LONGEST_NAME = 4096


def check_metadata(metadata: Mapping[str, Any], where: Any) -> None:
    """Raise a ValueError that names what in the metadata of a gallery is not as its readers expect it."""
    for name, kind in _IN_METADATA.items():
        value = metadata.get(name)
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"`{name}` in the metadata of {where} must be a {kind.__name__}, got {value!r:.80}.")
        if isinstance(value, str) and len(value) > _LONGEST_NAME:
            raise ValueError(f"`{name}` in the metadata of {where} has {len(value)} characters: {value[:40]!r}...")
    segment = metadata.get(SEGMENT)
    if segment is not None and (type(segment) not in (int, float) or not 0 < segment < math.inf):
        raise ValueError(f"`segment` in the metadata of {where} must be a number of seconds, got {segment!r:.80}.")
    for name in ("problems", "left_out"):
        if not all(isinstance(text, str) for text in metadata.get(name) or ()):
            raise ValueError(f"`{name}` in the metadata of {where} must be a list of texts.")
    for options in (metadata, metadata.get("score_options") or {}):
        value = options.get("query_temperature")
        if value in (None, "inf") or (type(value) in (int, float) and value >= _LEAST_TEMPERATURE):
            continue
        raise ValueError(
            f"`query_temperature` in the metadata of {where}, a number of float32, must be above 0, or 'inf', got "
            f"{value!r:.80}."
        )
    try:
        check_calibration(**calibration_of(metadata))
    except ValueError as error:
        raise ValueError(f"In the metadata of {where}: {error}") from error


def calibration_of(metadata: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the scale and the offset of each modality's cosines that metadata tell, as far as there are any."""
    options = metadata.get("score_options") or {}
    return {name: options[name] for name in CALIBRATION if options.get(name) is not None}


def score_options_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a model scores, as the metadata of what it embedded tell: keyword arguments of `retrieval_scores`, by
    default the paper's. JSON has an infinity as a string."""
    told = {"query_temperature": metadata.get("query_temperature")} | (metadata.get("score_options") or {})
    options = {"method": "scalar", "query_temperature": 0.1} | {k: v for k, v in told.items() if v is not None}
    return {name: value if name in ("method", *CALIBRATION) else float(value) for name, value in options.items()}


class Gallery:
    """
    Embedded clips as they were committed when this object was opened; a writer does not change them any more.

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
        self._query_model: QueryModel | None = None
        self._where = path / "clips" if path else "clips"
        # Of one part; the others are read when they are asked for.
        self.dim = _check_clips(self._parts[0].table, self._where, None) if self._parts else None

    @classmethod
    def open(cls, path: str | os.PathLike, check: bool = True, verify: bool = False) -> "Gallery":
        """
        Open a gallery with its vectors memory-mapped.

        Args:
            path (`str`): a folder that `search index`, `eval embed`, `eval run` or `datasets` wrote, of today's format
                or an older one.
            check (`bool`): check every vector of a gallery of another format, which no writer of ours has checked.
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
        if is_older(folder):
            gallery = cls(*read_older(folder), folder)
            if check:
                gallery.check()
            return gallery
        snapshot = read_snapshot(folder, verified=verify)
        tables = (snapshot.parts.get(name, []) for name in ("clips", "queries", "files"))
        return cls(*tables, snapshot.manifest["metadata"], folder)

    def __len__(self) -> int:
        return sum(len(part) - len(part.removed) for part in self._parts)

    @cached_property
    def _clips(self) -> list[Part]:
        """The parts of the table of clips, their columns checked."""
        for part in self._parts:
            _check_clips(part.table, self._where, self.dim)
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
    def has_seconds(self) -> bool:
        """Whether it can hold how long clips last; galleries from before that was kept cannot."""
        return bool(self._parts) and "seconds" in self._parts[0].table.column_names

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
    def files(self) -> dict[str, MediaFile]:
        """The media files it knows, by path."""
        return self.files_at()

    def files_at(self, paths: Collection[str] | None = None) -> dict[str, MediaFile]:
        """The media files it knows, by path; only those at some paths, if they are given."""
        table = _rows_of(self._files)
        if table is None:
            return {}
        check_files(table, self.path)
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
        table = _rows_of(self._files)
        if table is None:
            return frozenset()
        check_files(table, self.path)
        paths = table.column("path")
        return frozenset(map(from_utf8, paths.filter(pc.match_substring(paths, "#t=")).to_pylist()))

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
        for batch in self.clips.select(names).to_batches(_COPIED_ROWS):
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

    def why_no_hits(self, method: str, among: Allowed | None = None) -> str:
        """Why a search with this score, among these clips, finds nothing."""
        if not len(self):
            return f"{self.path} holds no clips"
        if among is None:
            return f"none of the {len(self)} clips in {self.path} has what the score {method!r} needs"
        if not among.num_clips:
            return f"the filter leaves none of the {len(self)} clips in {self.path}"
        return f"none of the {among.num_clips} clips that the filter leaves has what the score {method!r} needs"

    def verify(self) -> int:
        """
        Compare every file with its hash and check every row.

        Returns:
            `int`: how many bytes were read.

        Raises:
            ValueError: something is damaged; the message names it.
        """
        num_bytes = 0 if is_older(self.path) else verify_files(self.path)
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
        Write all of it to a new folder in today's format, piece by piece.

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
        with GalleryWriter(folder, dtype or self.dtype, has_codes) as writer:
            writer.metadata = dict(self.metadata if metadata is None else metadata)
            for batch in self.clips.to_batches(_COPIED_ROWS):
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

    # Search --------------------------------------------------------------------------------------------------------

    @cached_property
    def _pieces(self) -> list[Piece]:
        return pieces_of(self._clips)

    def to(self, device: str | torch.device) -> "Gallery":
        """
        Copy what is ranked into the memory of a device, where many searches cost less: 6 bytes per clip and dimension
        in float16.

        Args:
            device (`str` or `torch.device`): such as `"cuda"`; `"cpu"` reads it from the files again.

        Returns:
            `Gallery`: the same clips. It is as the gallery was; open it again to see what was added since.
        """
        moved, place = copy(self), torch.device(device)
        for derived in ("_pieces", "_partial"):
            vars(moved).pop(derived, None)
        if place.type != "cpu":
            moved._pieces = [piece.to(place) for piece in pieces_of(self._clips)]
        return moved

    def load_model(
        self, model: str | os.PathLike | None = None, device: str | None = None, dtype: str | None = None
    ) -> QueryModel:
        """
        Load the model that texts are embedded with; by default it is loaded for the first search by a text.

        Args:
            model (`str`, *optional*): where it is now, a folder or a Hub id; by default where it was.
            device (`str`, *optional*), dtype (`str`, *optional*): where it runs and in which precision, by name; by
                default as the commands have it.

        Raises:
            FileNotFoundError: it is not there.
            ValueError: the gallery does not say which model made it and none is named, or another one made it.
        """
        model = model or self.model
        if model is None:
            raise ValueError(
                f"{self.path} does not say which model made it. Name it with --model, or `gallery.load_model(FOLDER)`."
            )
        folder, fingerprint = where_is(model)
        self.check_model(str(model), fingerprint)
        self._query_model = QueryModel.load(folder, device, dtype)
        return self._query_model

    def search(
        self,
        queries: "str | Sequence[str] | torch.Tensor | None" = None,
        k: int = 10,
        query_temperature: float | None = None,
        method: str | None = None,
        *,
        like: str | None = None,
        modalities: Sequence[str] | None = None,
        allowed: torch.Tensor | Filter | None = None,
        per_file: bool = False,
        rerank: int | None = None,
        fusion_weight: float | None = None,
        **score_parameters: float,
    ) -> "Hits | Results":
        """
        Find the k best clips of each query, exactly.

        Scores are computed of every clip; that of SCALAR is first bounded in eight bits, and computed in float64 where
        the bound does not prove that the clip is not among the best (see [`~gallery.screening`]).

        Args:
            queries (`str`, `list[str]`, or `torch.FloatTensor` of shape `(Q, D)` or `(Q, 3, D)`): texts, which the
                gallery's own model embeds (see [`Gallery.load_model`]), or vectors of unit norm along the last axis,
                one or one for each modality.
            k (`int`): hits per query; fewer come back where the gallery has fewer clips that `method` can score.
            query_temperature (`float`, *optional*): the gallery's own when None.
            method (`str`, *optional*): as in `retrieval_scores`; by default the model's own, of vectors `"scalar"`. A
                clip for which it is not defined is no hit.
            like (`str`, *optional*): in place of queries, a clip: those most like it, without itself. See
                [`~gallery.querying.query_like`]; scales and offsets, which fit modalities to words, do not count then.
            modalities (`list[str]`, *optional*): what of a clip is looked at, by default all; clips that have nothing
                of it are no hits.
            allowed (`torch.BoolTensor` of shape `(N,)`, or [`~gallery.filters.Filter`], *optional*): which clips may
                be hits, in gallery order, or what they must fulfil.
            per_file (`bool`): of a gallery of windows, each file once, by its best window.
            rerank (`int`, *optional*): of texts, so many first hits are put in order by the model's cross-encoder,
                which reads their files again: the second stage of [`~gallery.reranking`].
            fusion_weight (`float`, *optional*): in the second stage, order by the score and so many times the match,
                in place of the match alone.
            score_parameters (`float`): what the method learned, the other keyword arguments of `retrieval_scores`; by
                default what the model did. The scale and offset of modalities are the gallery's own unless they are
                given.

        Returns:
            [`Hits`] of one text or clip; of several queries their [`Results`], a list of `Hits`. Best first, equal
            scores in gallery order. They show themselves when they are printed, and in notebooks.

        Raises:
            KeyError: there is no clip `like`.
            FileNotFoundError: the model is gone.
            ValueError: a text is empty, the shape or norm of vectors is wrong, a number is out of its range, the
                model is another one, or the clip has nothing of what is looked at.
        """
        if k < 1:
            raise ValueError(f"`k` must be at least 1, got {k}.")
        if (queries is None) == (like is None):
            raise ValueError("Search for `queries`, or for what is `like` a clip: give one of the two.")
        if rerank is None and fusion_weight is not None:
            raise ValueError("`fusion_weight` is of the second stage: say with `rerank` how many hits it reads.")
        texts: list[str | None] = [None]
        if rerank is not None and (like is not None or isinstance(queries, torch.Tensor)):
            raise ValueError("The second stage reads texts: `rerank` goes with queries that are texts.")
        if like is not None:
            embeds, allowed = self._query_like(like, modalities, allowed, method := method or self._own_method)
            score_parameters = self._learned(method) | dict.fromkeys(CALIBRATION) | score_parameters
        elif isinstance(queries, torch.Tensor):
            embeds, method, texts = queries, method or "scalar", [None] * (len(queries) if queries.ndim else 0)
        else:
            texts = [queries] if isinstance(queries, str) else list(queries)
            check_texts(texts)
            if not texts:
                return Results()
            with _LOADING:
                model = self._query_model or self.load_model()
            if rerank is not None:
                check_depth(rerank)
                check_can_match(model.model)
            embeds, method = model.embed(texts), method or model.method
            score_parameters = (model.learned if method == model.method else {}) | score_parameters

        def find(embeds: torch.Tensor, size: int, allowed: Any) -> list[Hits]:
            options = {"modalities": modalities, "allowed": allowed, **score_parameters}
            return self.search_vectors(embeds, size, query_temperature, method, **options)

        size, per_file = max(k, rerank or 0), per_file and self.metadata.get(SEGMENT) is not None
        found = find(embeds, size, allowed)
        if per_file:
            found = self._with_files(found, k, lambda place, *limits: find(embeds[place, None], *limits)[0], allowed)
        for hits, text in zip(found, texts, strict=True):
            hits.query, hits.like = text, like
        if rerank is not None:
            paths = {hits.place_of(hit).path for hits in found for hit in hits[:rerank]}
            names = MODALITIES if modalities is None else modalities
            words = None if self.path is None else Transcripts(self.path)
            found = rerank_hits(found, model, self.files_at(paths), rerank, names, fusion_weight, words)
            found = [hits.having(hits[:k]) for hits in found] if not per_file else found
        results = Results(hits.best_of_files(k) for hits in found) if per_file else Results(found)
        return results[0] if like is not None or isinstance(queries, str) else results

    def search_vectors(
        self,
        text_embeds: torch.Tensor,
        k: int = 10,
        query_temperature: float | None = None,
        method: str = "scalar",
        *,
        modalities: Sequence[str] | None = None,
        allowed: torch.Tensor | Filter | None = None,
        **score_parameters: float,
    ) -> list[Hits]:
        """Find the k best clips of each vector: what [`Gallery.search`] does once queries are embedded."""
        if k < 1:
            raise ValueError(f"`k` must be at least 1, got {k}.")
        shape, expected = tuple(text_embeds.shape[1:]), self.dim or (text_embeds.shape[-1] if text_embeds.ndim else 0)
        if shape not in ((expected,), (len(MODALITIES), expected)):
            raise ValueError(
                f"`text_embeds` must have shape (queries, {self.dim or 'D'}), or with a vector for each modality "
                f"(queries, {len(MODALITIES)}, {self.dim or 'D'}), got {tuple(text_embeds.shape)}."
            )
        text_embeds = text_embeds.detach().to("cpu", torch.float32)
        wrong = off_unit(text_embeds)
        if wrong.any():
            norms = torch.linalg.vector_norm(text_embeds[wrong], dim=-1)
            raise ValueError(f"Rows of `text_embeds` must have unit norm, got {norms.tolist()[:8]}.")
        temperature = self.query_temperature if query_temperature is None else query_temperature
        options = {"query_temperature": temperature} | self.calibration | score_parameters
        weighing = {name: options[name] for name in WEIGHING if name in options}
        seen, results = self._seen(modalities), []
        among = self.allowed(allowed)
        pieces = self._limited(self._pieces_of(seen), None if among is None else among.mask)
        about = (None, None) if among is None else (among.num_clips, among.unknown)
        told = {"root": self.root, "locate": self.place_of}
        for queries in text_embeds.split(_QUERY_BLOCK):
            ranking = rank(pieces, queries, min(k, len(self)), method, **options)
            for query, scores, rows, num_scored in zip(queries, *ranking, strict=True):
                hits = self._hits(query, scores, rows, method, weighing, seen)
                reason = None if hits else self.why_no_hits(method, among)
                results.append(Hits(hits, len(self), int(num_scored), *about, reason=reason, **told))
        return results

    @property
    def _own_method(self) -> str:
        return score_options_of(self.metadata)["method"]

    def _learned(self, method: str) -> dict[str, Any]:
        """What the model learned of its score, as far as the gallery tells it."""
        told = score_options_of(self.metadata)
        is_own = told.pop("method") == method
        return {name: value for name, value in told.items() if is_own and name not in WEIGHING}

    def row_of(self, clip_id: str) -> int:
        """The place of a clip in the gallery; a KeyError if there is none of that name."""
        row = self._find_row(clip_id)
        if row is None:
            raise KeyError(clip_id)
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
        candidates = [name, *([os.path.join(self.root, name)] if self.root else []), os.path.realpath(name)]
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
            f"There is no clip {name!r} in {self.path}. `search query ... --json` prints the `clip_id` of each hit."
        )

    def _query_like(
        self, clip_id: str, modalities: Sequence[str] | None, allowed: torch.Tensor | Filter | None, method: str
    ) -> tuple[torch.Tensor, Allowed]:
        """The query that a clip is, and what may be found: all that may be, but itself."""
        row = self.row_of(clip_id)
        rows = self.clips.slice(row, 1)
        mask = stacked(rows, ["presence"], self.path, boolean=True)[0, 0] & torch.tensor(self._seen(modalities))
        among = self._among(allowed)
        others = among.mask.clone()
        others[row] = False
        return query_like(stacked(rows, MODALITIES, self.path)[0], mask, method), Allowed(others, among.unknown)

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

    @staticmethod
    def _seen(modalities: Sequence[str] | None) -> tuple[bool, ...]:
        names = MODALITIES if modalities is None else tuple(modalities)
        if not names or not set(names) <= set(MODALITIES):
            raise ValueError(f"`modalities` must name some of {MODALITIES}, got {names}.")
        return tuple(name in names for name in MODALITIES)

    def _pieces_of(self, seen: tuple[bool, ...]) -> list[Piece]:
        """The clips with what is looked at; made once for each choice."""
        if seen not in self._partial:
            self._partial[seen] = [piece.looking_at(torch.tensor(seen)) for piece in self._pieces]
        return self._partial[seen]

    @cached_property
    def _facts_of_clips(self) -> ClipFacts:
        files = _rows_of(self._files)
        if files is not None:
            check_files(files, self.path)
        return ClipFacts(self.clips, files, self.metadata.get(SEGMENT) is not None, self.modality_mask)

    def allowed(self, wanted: torch.Tensor | Filter | Allowed | None) -> Allowed | None:
        """
        Tell which clips may be hits.

        Args:
            wanted (`torch.BoolTensor` of shape `(N,)`, or [`~gallery.filters.Filter`], *optional*): the clips, in
                gallery order, or what they must fulfil. What fulfils a filter is remembered for the last few.

        Returns:
            [`~gallery.filters.Allowed`], `None` if all may be.

        Raises:
            ValueError: not bools, or not one for each clip.
        """
        if wanted is None or (isinstance(wanted, Filter) and wanted.is_empty):
            return None
        if isinstance(wanted, Allowed):
            return wanted
        if not isinstance(wanted, Filter):
            if wanted.dtype != torch.bool or wanted.shape != (len(self),):
                raise ValueError(
                    f"`allowed` must be a bool tensor of shape {(len(self),)}, got {wanted.dtype} "
                    f"{tuple(wanted.shape)}."
                )
            return Allowed(wanted)
        if self.clips is None:
            return Allowed(torch.zeros(0, dtype=torch.bool))
        found = self._allowed.pop(wanted, None) or self._facts_of_clips.allowed(wanted)
        self._allowed[wanted] = found
        while len(self._allowed) > _FILTERS:
            self._allowed.pop(list(self._allowed)[0], None)  # threads may do so at once
        return found

    def _with_files(
        self,
        found: list[Hits],
        k: int,
        find: Callable[[int, int, Any], Hits],
        allowed: torch.Tensor | Filter | Allowed | None,
    ) -> list[Hits]:
        """Hits of so many files, or of all; `find` asks one query again, for so many hits among some clips."""
        # Not by ever more hits: a file may have any number of windows.
        among = self._among(allowed)
        for place, hits in enumerate(found):
            while 0 < len(found[place].best_of_files(k)) < k:
                rest = find(place, max(k, len(hits)), self._outside(among, found[place]))
                if not rest:
                    break
                found[place] = found[place].going_on(rest)
        return found

    def _among(self, allowed: torch.Tensor | Filter | Allowed | None) -> Allowed:
        """What may be a hit, also where all may be."""
        return self.allowed(allowed) or Allowed(torch.ones(len(self), dtype=torch.bool))

    def _outside(self, among: Allowed, hits: Hits) -> Allowed:
        """Of the clips that may be hits those of other files than these are of."""
        paths, names = {hits.place_of(hit).path for hit in hits}, [hit.clip_id for hit in hits]
        of_these = pc.or_(
            pc.is_in(self._facts_of_clips.paths, value_set=strings(list(paths))),
            pc.is_in(self.clips.column("clip_id"), value_set=strings(names)),
        )
        return Allowed(among.mask & ~torch.from_numpy(np.array(of_these, dtype=bool)), among.unknown)

    @cached_property
    def _allowed(self) -> dict[Filter, Allowed]:
        return {}

    @cached_property
    def _partial(self) -> dict[tuple[bool, ...], list[Piece]]:
        return {(True,) * len(MODALITIES): self._pieces}

    def _limited(self, pieces: list[Piece], allowed: torch.Tensor | None) -> list[Piece]:
        """The clips of which only those may be found that are allowed, in gallery order."""
        if allowed is None:
            return pieces
        limited, first = [], 0
        for piece in pieces:
            here = torch.ones(len(piece.clips), dtype=torch.bool).index_fill(0, piece.removed.cpu(), False)
            count = int(here.sum())
            limited.append(piece.limited(here.masked_scatter(here, allowed[first : first + count])))
            first += count
        return limited

    def _hits(
        self,
        query: torch.Tensor,
        scores: torch.Tensor,
        rows: torch.Tensor,
        method: str,
        weighing: Mapping[str, Any],
        seen: tuple[bool, ...],
    ) -> list[Hit]:
        found = scores > -math.inf
        scores, rows = scores[found], rows[found]
        if not len(rows):
            return []
        starts = np.cumsum([0] + [len(part) for part in self._clips])
        places = np.searchsorted(starts, rows.numpy(), side="right") - 1
        pieces = [
            self._clips[place].table.slice(row - starts[place], 1)
            for place, row in zip(places, rows.tolist(), strict=True)
        ]
        table = pa.concat_tables(pieces)
        mask = stacked(table, ["presence"], self.path, boolean=True)[:, 0]
        weights = [None] * len(rows)
        if METHODS[method].weights == "query":
            embeds = stacked(table, MODALITIES, self.path)
            lines = query_weights(query[None], embeds, mask & torch.tensor(seen), **weighing)[0].tolist()  # (K, 3)
            weights = [dict(zip(MODALITIES, line, strict=True)) for line in lines]
        named = zip(texts_of(table, "clip_id", self.path), scores.tolist(), weights, mask.tolist(), strict=True)
        return [
            Hit(number + 1, name, score, weight, dict(zip(MODALITIES, present, strict=True)))
            for number, (name, score, weight, present) in enumerate(named)
        ]


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
    num_bytes = verify_files(folder) if is_gallery(folder) and not is_older(folder) else 0
    gallery = Gallery.open(folder, check=False)
    gallery.check()
    return gallery, num_bytes


def check_format(folder: Path) -> None:
    """Raise a ValueError if a folder holds a gallery of another format, which can be read but not changed."""
    if is_older(folder):
        raise ValueError(
            f"{folder} holds a gallery of another format, which can be read but not changed. Convert it with "
            f"`python -m search convert {folder} NEW`, and use that."
        )


# Writing ----------------------------------------------------------------------------------------------------------


class GalleryWriter(Writer):
    """
    The one process that may change a gallery; others see a change after [`GalleryWriter.commit`], as a whole.

    Args:
        folder (`str`): a gallery of today's format, or a new or empty folder.
        dtype (`str`): precision of the vectors of a new gallery, `"float16"` or `"float32"`.
        has_codes (`bool`): whether a new gallery also keeps its vectors in eight bits, by which it is searched faster.

    Raises:
        ValueError: another process writes, the folder holds something else or an older format, it is damaged, or
            `dtype` is unknown.
    """

    def __init__(self, folder: str | os.PathLike, dtype: str = "float16", has_codes: bool = True):
        precision_of(dtype)
        check_format(Path(folder))
        self._indexed: dict[tuple[str, str], dict[str, int]] = {}  # of each shard, the row of each key
        super().__init__(folder)
        known = Gallery(self.snapshot.parts.get("clips", ()))
        self.dtype = known.dtype or dtype
        self.has_codes = has_codes if known.dtype is None else known.has_codes
        self._has_seconds = known.dtype is None or known.has_seconds

    def _check(self) -> None:
        gallery = self.gallery()
        gallery._clips  # noqa: B018 - whose columns are checked when they are asked for
        if gallery._files:
            check_files(_rows_of(gallery._files), self.folder / "files")

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
        seconds = (seconds or [None] * len(clip_ids)) if self._has_seconds else None
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
