"""A gallery: embedded clips in a folder, which can be opened, searched, copied, and changed by one process at a time.

[`~scalar_retrieval.gallery.store.columns`] describes the folder's content, [`~scalar_retrieval.gallery.searching`] the
search. What computes with vectors is imported where it is needed: torch loads for a second, and many runs of `scalar`
need none of it.

Shapes: N clips, D dimensions.
"""

import json
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .store.contents import Contents, stamp_of
from .store.described import (
    MODALITIES,
    SLICES,
    check_metadata,
    modalities_in,
    slices_of,
)
from .store.files import without_infinity
from .store.places import is_from_hub, is_gallery
from .store.rows import (
    CODE_FACTS,
    FILES,
    MediaFile,
    abbreviated,
    check_hashes,
    check_modality,
    check_precision,
    codes_columns,
    lists_of,
    strings,
    texts_of,
    widths_of,
)
from .store.stills import Stills
from .store.storage import verify as verify_files
from .store.writing import Plan, Writer

if TYPE_CHECKING:
    import torch

    from .filters import Filter
    from .folder_searcher import FolderSearcher
    from .hits import HitLists, Hits
    from .querying import Likeness, QueryModel
    from .searching import ScoreParameters
    from .store.arrays import Array

StrPath = str | os.PathLike[str]
"""A path, however it is given."""

_LOADING = Lock()


class Gallery(Contents):
    """
    Embedded clips as committed when this object was opened; later writes do not change them.

    Args: as in [`~scalar_retrieval.gallery.store.contents.Contents`].

    Everything is read when it is needed: the time to open a gallery does not depend on the number of clips.

    Example:

        >>> gallery = Gallery.open("galleries/videos")
        >>> gallery.modalities
        ('video', 'audio', 'subtitle')
        >>> print(gallery.search("a dog barks", k=1))
        query: a dog barks
          1  0.78...  both.mkv  changed ...
             video ... 0.15  audio ... 0.10  subtitle ... 0.75
        Exact among 4 clips: 2 scored in full, the others proved to be below the best.
    """

    query_model: "QueryModel | None" = None
    """The model that embeds texts, once it is loaded."""
    temporary_folder: TemporaryDirectory[str] | None = None
    """The handle of a folder that is deleted with this object."""

    @cached_property
    def searcher(self) -> "FolderSearcher":
        """What searches this gallery."""
        from .folder_searcher import FolderSearcher  # not at the top: it imports rankers, models and decoders

        return FolderSearcher(self)

    @classmethod
    def from_arrays(
        cls,
        ids: "Sequence[object] | Array",
        modality_embeds: "Mapping[str, Array]",
        mask: "Array | None" = None,
        *,
        spaces: Mapping[str, str] | None = None,
        path: StrPath | None = None,
        queries: pa.Table | None = None,
        method: str = "scalar",
        query_temperature: float = 0.1,
        model: str | None = None,
        dtype: str | None = None,
    ) -> "Gallery":
        """
        Make a gallery of vectors that exist: arrays of numpy or torch, or columns of pyarrow, e.g. from Parquet.

        A clip lacks a modality where `mask` is False, where its list is null, or where its vector is all NaN. Vectors
        without unit norm are normalised, and a warning gives their number.

        Args:
            ids (`list[str]`): names of the N clips, all different.
            modality_embeds (`dict[str, Array]`): for each of M modalities, by its name, `(N, width)` floats or N lists
                of floats. Modalities of equal width share a space, and a query has a part for each space.
            mask (array of shape `(N, M)`, *optional*): bools; by default clips have all modalities.
            spaces (`dict[str, str]`, *optional*): the spaces of some modalities, by any names: needed if vectors of
                one width are of several encoders. Modalities with different names do not share a space.
            path (`str`, *optional*): a new or empty folder; by default a temporary one, deleted with this object.
            queries (`pa.Table`, *optional*): captions with their relevant clips, for evaluation, from
                [`~scalar_retrieval.gallery.store.columns.query_table`].
            method (`str`), query_temperature (`float`): how clips are scored, see `retrieval_scores`.
            model (`str`, *optional*): the model that made the vectors, a folder or a Hub id; it embeds text queries.
            dtype (`str`, *optional*): `"float16"` or `"float32"`, in which they are stored; by default float16 if all
                are, else float32.

        Raises:
            ValueError: shapes differ, an identifier repeats, a clip has no modality, or a vector is zero or not
                finite; the message names the clips.

        Example:

            gallery = Gallery.from_arrays(["a", "b"], {"image": images, "title": titles})
            gallery.search(query_vectors)  # (Q, D); of two encoders {"image": (Q, 512), "title": (Q, 384)}
        """
        import torch

        from scalar_retrieval.modeling_scalar.scores_scalar import slices_of_spaces

        from .store.arrays import names_of, normalised, read_vectors, stacked_vectors
        from .store.columns import COPIED_ROWS

        # Read the arrays first: nothing is written if something is wrong with them.
        names = names_of(ids)
        columns = {}
        for name, rows in modality_embeds.items():
            check_modality(name)
            columns[name] = read_vectors(rows, f"`{name}`")
        # Full precision, unless no array has it.
        if dtype is None:
            is_half = all(rows.dtype == torch.float16 for rows in columns.values())
            dtype = "float16" if is_half else "float32"
        slices = slices_of_spaces(columns, spaces)
        if mask is not None:
            mask = torch.as_tensor(np.asarray(mask))
        # A temporary folder is deleted with the gallery, which holds its handle.
        temporary = None
        if path is None:
            temporary = TemporaryDirectory(prefix="gallery-")
            path = temporary.name
        folder = Path(path)
        if is_gallery(folder):
            raise ValueError(f"{folder} already holds a gallery. Choose a new folder.")
        num_off = 0
        num_present = 0
        with GalleryWriter(folder, dtype) as writer:
            writer.metadata = {
                MODALITIES: list(columns),
                "query_temperature": query_temperature,
                "score_options": {"method": method},
            }
            if len(set(slices)) > 1:
                writer.metadata[SLICES] = slices
            if model is not None:
                writer.metadata["model"] = model
            # Some clips at a time: a copy of all vectors may take more room than the memory.
            for start in range(0, max(map(len, [names, *columns.values()])), COPIED_ROWS):
                part = slice(start, start + COPIED_ROWS)
                vectors = {name: rows[part] for name, rows in columns.items()}
                part_mask = None
                if mask is not None:
                    part_mask = mask[part]
                embeds, presence = stacked_vectors(vectors, slices, part_mask)
                embeds, num = normalised(names[part], embeds, presence, list(columns))
                writer.put_clips(names[part], embeds, presence)
                num_off += num
                num_present += int(presence.sum())
            if queries is not None:
                writer.put_queries(queries)
            writer.commit()
            gallery = writer.gallery()
        gallery.temporary_folder = temporary
        if num_off:
            message = f"{num_off} of {num_present} vectors did not have unit norm, and were normalised."
            warnings.warn(message, stacklevel=2)
        return gallery

    @staticmethod
    def writer(folder: StrPath, dtype: str = "float16", has_codes: bool = True) -> "GalleryWriter":
        """What writes vectors into a gallery, for a `with` statement: [`GalleryWriter`]."""
        return GalleryWriter(folder, dtype, has_codes)

    def index(
        self,
        paths: StrPath | Sequence[StrPath],
        *,
        batch_size: int = 8,
        prune: bool = False,
        transcribe: StrPath | None = None,
        read_text: bool = False,
        words_of: StrPath | None = None,
        exclude: str | Sequence[str] = (),
        pictures: bool = False,
        limits: str | Sequence[str] = (),
        cluster: str | None = None,
        progress: bool = True,
    ) -> "Gallery":
        """
        Embed new and changed files into this gallery, by its own model and as its other files were.

        Args and errors: as in `scalar_retrieval.index`, which also makes new galleries.

        Returns:
            The gallery as it is now; this object remains as it was opened.
        """
        import scalar_retrieval  # which knows what indexes: no file of this room does

        scalar_retrieval.index(
            paths,
            self.path,
            batch_size=batch_size,
            prune=prune,
            transcribe=transcribe,
            read_text=read_text,
            words_of=words_of,
            exclude=exclude,
            pictures=pictures,
            limits=limits,
            cluster=cluster,
            progress=progress,
        )
        return self.newest()

    @property
    def has_codes(self) -> bool:
        """Whether the vectors are also stored in eight bits."""
        return bool(self.parts) and CODE_FACTS[0] in self.parts[0].table.column_names

    # Tables --------------------------------------------------------------------------------------------------------

    def hashes(self, among: Collection[str] | None = None) -> set[str]:
        """The hashes of the known media files; only those `among` the given ones, if any are given."""
        known = self.file_rows.column("sha256")
        if among is not None:
            known = known.filter(pc.is_in(known, strings(list(among))))
        return set(known.to_pylist())

    def clips_of_files(self) -> dict[str, list[str]]:
        """The clips of each file: the file itself, or its windows."""
        clips: dict[str, list[str]] = {}
        for path, name in zip(self.paths.to_pylist(), self.clip_ids, strict=True):
            clips.setdefault(path, []).append(name)
        return clips

    def facts(self) -> dict[str, Any]:
        """
        Return `dim`, `dtype`, `num_clips`, `num_queries`, `num_pairs`, the `columns` of vectors and `gallery_sha256`,
        see [`~scalar_retrieval.gallery.store.provenance.gallery_sha256`].
        """
        from .store.provenance import gallery_sha256

        names = self.clips.column_names
        described = []  # for each query, the clips that it describes
        if self.queries is not None:
            described = lists_of(self.queries, "clip_ids")
        return {
            "dim": self.dim,
            "dtype": self.dtype,
            "num_clips": len(self),
            "num_queries": len(described),
            "num_pairs": sum(map(len, described)),
            "columns": [name for name in self.modalities if name in names],
            "gallery_sha256": gallery_sha256(self.clip_ids, self.modality_mask.int().tolist()),
        }

    def check(self) -> None:
        """Raise a ValueError that names the clips and queries with invalid vectors, or a file with an invalid hash;
        reads all of them."""
        from scalar_retrieval.modeling_scalar.scores_scalar import off_unit

        from .store.codes import are_codes_of
        from .store.columns import (
            COPIED_ROWS,
            check_rows,
            check_unique,
            codes_of,
            embeds_of,
            matrix_of,
            named,
            presence_of,
            text_embeds_of,
        )

        self.file_rows  # noqa: B018 - checked when it is read
        if not self.parts:
            return
        # Clips, some at a time: the vectors may take more room than the memory.
        names = ["clip_id", *self.modalities, "presence"]
        if self.has_codes:
            names += codes_columns(self.modalities)
        start = 0
        for batch in self.clips.select(names).to_batches(COPIED_ROWS):
            clip_ids = self.clip_ids[start : start + len(batch)]
            start += len(batch)
            rows = pa.Table.from_batches([batch])
            mask = presence_of(rows)
            embeds = embeds_of(rows, self.slices)
            check_rows(clip_ids, embeds, mask, self.modalities)
            # Scores rely on zeros where a modality is absent.
            if (embeds[~mask] != 0).any():
                raise ValueError(f"Vectors of absent modalities must be zero in {self.path}; some are not.")
            if self.has_codes:
                vectors = [matrix_of(batch.column(name)) for name in self.modalities]
                wrong = named(clip_ids, ~are_codes_of(codes_of(batch), vectors))
                if wrong:
                    raise ValueError(f"Eight-bit vectors in {self.path} do not match those of the clips {wrong}.")
        # Then what concerns all clips, and the queries.
        check_unique(self.clip_ids)
        if self.queries is not None:
            wrong = named(texts_of(self.queries, "query_id"), off_unit(text_embeds_of(self.queries)))
            if wrong:
                raise ValueError(f"Vectors of queries in {self.path} must be of unit norm; wrong: {wrong}.")

    def verify(self) -> int:
        """
        Compare every file with its hash and check every row.

        Returns:
            `int`: number of bytes read.

        Raises:
            ValueError: something is damaged; the message names it.
        """
        return verify_gallery(self.path)[1]

    # Search --------------------------------------------------------------------------------------------------------

    @overload
    def search(
        self,
        queries: str | None = None,
        k: int = 10,
        query_temperature: float | None = None,
        method: str | None = None,
        *,
        like: "str | Likeness | None" = None,
        modalities: Sequence[str] | None = None,
        allowed: "torch.Tensor | Filter | None" = None,
        per_file: bool = False,
        unique: bool = False,
        rerank: int | None = None,
        fusion_weight: float | None = None,
        inside: str | None = None,
        **score_parameters: "Unpack[ScoreParameters]",
    ) -> "Hits": ...

    @overload
    def search(
        self,
        queries: "Sequence[str] | torch.Tensor | np.ndarray | Mapping[str, Array]",
        k: int = 10,
        query_temperature: float | None = None,
        method: str | None = None,
        *,
        modalities: Sequence[str] | None = None,
        allowed: "torch.Tensor | Filter | None" = None,
        per_file: bool = False,
        unique: bool = False,
        rerank: int | None = None,
        fusion_weight: float | None = None,
        inside: str | None = None,
        **score_parameters: "Unpack[ScoreParameters]",
    ) -> "HitLists": ...

    def search(
        self,
        queries: "str | Sequence[str] | torch.Tensor | np.ndarray | Mapping[str, Array] | None" = None,
        k: int = 10,
        query_temperature: float | None = None,
        method: str | None = None,
        *,
        like: "str | Likeness | None" = None,
        modalities: Sequence[str] | None = None,
        allowed: "torch.Tensor | Filter | None" = None,
        per_file: bool = False,
        unique: bool = False,
        rerank: int | None = None,
        fusion_weight: float | None = None,
        inside: str | None = None,
        **score_parameters: "Unpack[ScoreParameters]",
    ) -> "Hits | HitLists":
        """
        Find the k best clips of each query, exactly.

        Scores are computed for every clip; SCALAR's score is first bounded in eight bits, and computed in float64
        unless the bound proves that the clip is not among the best (see [`~scalar_retrieval.gallery.exact.ranking`]).

        Args:
            queries (`str`, `list[str]`, or a float tensor or array of shape `(Q, D)`, or a dict): texts, which the
                gallery's own model embeds (see [`~scalar_retrieval.gallery.querying.load_query_model`]), or vectors of
                unit norm. Where spaces stand side by side, a dict has a part for each, by the name of a modality: see
                [`~scalar_retrieval.modeling_scalar.scores_scalar.joined_queries`]. A modality of which a query has no
                part, or zeros alone, is not searched.
                Parts of a text in quotation marks must be said in a clip, see
                [`~scalar_retrieval.gallery.filters.split_query`].
            k (`int`): hits per query; fewer if the gallery has fewer clips that `method` can score.
            query_temperature (`float`, *optional*): by default the gallery's own.
            method (`str`, *optional*): as in `retrieval_scores`, such as `"scalar"` or the name of a modality; by
                default the model's own, for vectors `"scalar"`. Clips for which it is undefined are not found.
            like (`str` or [`~scalar_retrieval.gallery.querying.Likeness`], *optional*): instead of queries, a clip:
                finds those most similar to it, without itself; or an outside file, embedded by
                [`~scalar_retrieval.gallery.querying.QueryModel.embed_file`]. See
                [`~scalar_retrieval.gallery.querying.query_like`]; scales and offsets, which fit modalities to words,
                are not used then.
            modalities (`list[str]`, *optional*): the modalities to use, by default all; clips that have none of them
                are not found.
            allowed (`torch.BoolTensor` of shape `(N,)`, or [`~scalar_retrieval.gallery.filters.Filter`], *optional*):
                which clips may be found, in gallery order, or the conditions that they must meet.
            per_file (`bool`): in a gallery of windows, return each file once, with its best window.
            unique (`bool`): return files with the same content once, as the first of them that is allowed; for
                windows, those at the same seconds. `Hit.copies` are the others.
            rerank (`int`, *optional*): for texts, number of first hits that the model's cross-encoder reorders, for
                which it reads their files again: the second stage of
                [`~scalar_retrieval.gallery.second_stage.reranking`].
            fusion_weight (`float`, *optional*): in the second stage, order by the score plus this weight times the
                match, instead of the match alone.
            inside (`str`, *optional*): the one file whose windows may be found.
            score_parameters (`float`): fitted parameters of the method, such as `curvature`; by default the model's.
                The scale and offset of modalities are the gallery's own unless they are given.

        Returns:
            [`Hits`] for one text or clip; [`HitLists`], a list of `Hits`, for several queries. Best first, equal
            scores in gallery order. They can be printed, and shown in notebooks. Their `matches_well` is None except
            for queries to all clips, scored like the gallery, if the score of a match was fitted
            ([`~scalar_retrieval.gallery.store.described.LEAST_SCORE`]).

        Raises:
            KeyError: there is no clip `like`.
            FileNotFoundError: the model is missing.
            ValueError: a text is empty, the shape or norm of vectors is wrong, a number is out of range, the model is
                not the gallery's, or the clip has none of the selected modalities.

        Example:

            hits = gallery.search("a dog barks", k=3)  # a list of texts gives a list of hits
            hits[0].clip_id, hits[0].score, hits[0].weights
        """
        from .searching import search

        # With the lock, so that threads that search at once load one model.
        def load() -> "QueryModel":
            with _LOADING:
                return self.query_model or self.load_model()

        return search(
            self.searcher,
            queries,
            k,
            query_temperature,
            method,
            load=load,
            like=like,
            modalities=modalities,
            allowed=allowed,
            per_file=per_file,
            unique=unique,
            rerank=rerank,
            fusion_weight=fusion_weight,
            inside=inside,
            **score_parameters,
        )

    def to(self, device: "str | torch.device") -> "Gallery":
        """The same gallery with what is ranked copied into the memory of a device, for many searches."""
        from scalar_retrieval.modeling_scalar.model_identity import device_of_name

        from .folder_searcher import FolderSearcher

        moved = copy(self)
        moved.searcher = FolderSearcher(moved, device_of_name(device))
        return moved

    def load_model(self, model: StrPath | None = None, device: "str | torch.device | None" = None) -> "QueryModel":
        """Load the model that embeds texts, and keep it: [`~scalar_retrieval.gallery.querying.load_query_model`]."""
        from .querying import load_query_model

        self.query_model = load_query_model(self, model, device)
        return self.query_model

    def newest(self) -> "Gallery":
        """The latest committed state: itself if nothing has changed."""
        if stamp_of(self.path) == self.stamp:
            return self
        newest = Gallery.open(self.path)
        newest.query_model = self.query_model
        newest.temporary_folder = self.temporary_folder
        return newest


def verify_gallery(path: StrPath) -> tuple[Gallery, int]:
    """
    Compare every file of a gallery with its hash before using its content, then check every row.

    Returns:
        The gallery, and the number of bytes compared.

    Raises:
        FileNotFoundError: the folder holds no gallery.
        ValueError: something is damaged; the message names it.
    """
    folder = Path(path)
    num_bytes = 0
    if is_gallery(folder):
        num_bytes = verify_files(folder)
    gallery = Gallery.open(folder)
    gallery.check()
    return gallery, num_bytes


def check_writable(folder: Path) -> None:
    """Raise a ValueError if a folder is a published gallery, which can be read but not changed."""
    if is_from_hub(folder):
        raise ValueError(
            f"{folder} is a published gallery, which can be read but not changed. Download one that can be changed: "
            "`hf download USER/NAME --repo-type dataset --local-dir NEW`."
        )


# Writing ----------------------------------------------------------------------------------------------------------


class GalleryWriter(Writer):
    """
    The one process that may change a gallery; others see all changes at once, after [`GalleryWriter.commit`].

    Args:
        folder (`str`): a gallery, or a new or empty folder.
        dtype (`str`): precision of the vectors of a new gallery, `"float16"` or `"float32"`.
        has_codes (`bool`): whether a new gallery also stores its vectors in eight bits, which speeds up the search.

    Raises:
        ValueError: another process writes, the folder holds something else or a published gallery, it is damaged,
            or `dtype` is unknown.
    """

    def __init__(self, folder: StrPath, dtype: str = "float16", has_codes: bool = True):
        check_precision(dtype)
        check_writable(Path(folder))
        super().__init__(folder)
        self.stills = Stills(self.folder)
        self.dtype = dtype
        self.has_codes = has_codes
        # All clips of a gallery are stored alike.
        known = self.gallery()
        if known.dtype is not None:
            self.dtype = known.dtype
            self.has_codes = known.has_codes

    def _reset_changes(self) -> None:
        super()._reset_changes()
        self._pending: set[str] = set()  # clips added since the last commit
        self._dropped: set[str] = set()  # hashes of files forgotten or replaced since then

    def _widths_of_clips(self) -> dict[str, int] | None:
        known = self._first_rows("clips")
        if known is None:
            return None
        return widths_of(known)

    @property
    def modalities(self) -> tuple[str, ...]:
        """Names of the modalities: those of the existing clips, or else those in the metadata."""
        return tuple(self._widths_of_clips() or modalities_in(self.metadata))

    def put_clips(
        self,
        clip_ids: Sequence[str],
        modality_embeds: "torch.Tensor",
        modality_mask: "torch.Tensor",
        problems: Sequence[Sequence[str]] | None = None,
        seconds: Sequence[float | None] | None = None,
    ) -> None:
        """
        Add clips at the end; a clip that exists already is replaced.

        Args: as in [`~scalar_retrieval.gallery.store.columns.clip_table`], on the CPU.

        Raises:
            ValueError: from [`check_rows`] or [`~scalar_retrieval.gallery.store.columns.cut`]; or the dimension is not
                that of the gallery, or a clip was added twice since the last commit. Nothing is changed then.
        """
        from .store.columns import check_rows, clip_table

        check_rows(clip_ids, modality_embeds, modality_mask, self.modalities)
        twice = sorted(self._pending.intersection(clip_ids))
        if twice:
            raise ValueError(f"A clip can be added once per commit; added again: {abbreviated(twice)}.")
        modalities = self.modalities
        slices = slices_of(self.metadata, len(modalities), modality_embeds.shape[-1])
        columns = clip_ids, modality_embeds, modality_mask, modalities, problems, seconds
        rows = clip_table(*columns, self.dtype, self.has_codes, slices)
        # Append first, which checks the columns; then remove the clips that are replaced.
        self.append("clips", rows)
        self.remove("clips", self.find("clips", clip_ids))
        self._pending.update(clip_ids)

    def put_files(self, files: Sequence[MediaFile]) -> None:
        """Record media files as they are now; earlier records of the same paths are replaced."""
        if not files:
            return
        # Hashes are checked first: they become file names.
        table = pa.Table.from_pylist([vars(file) for file in files], FILES)
        check_hashes(table)
        self.append("files", table)
        self.forget_files([file.path for file in files])

    def put_queries(self, rows: pa.Table) -> None:
        """Add rows of [`~scalar_retrieval.gallery.store.columns.query_table`]."""
        self.append("queries", rows)

    def remove_clips(self, clip_ids: Iterable[str]) -> None:
        """Remove committed clips and what is known of their files; raises a KeyError if one does not exist."""
        clip_ids = list(clip_ids)
        self.remove("clips", self._committed(clip_ids))
        self.forget_files(clip_ids)

    def _committed(self, clip_ids: Iterable[str]) -> dict[int, set[str]]:
        """Find committed clips, see [`~scalar_retrieval.gallery.store.writing.Writer.find`]; raises a KeyError if one
        does not exist."""
        found = self.find("clips", clip_ids)
        missing = set(clip_ids).difference(*found.values())
        if missing:
            raise KeyError(f"There are no clips {abbreviated(sorted(missing))} in {self.folder}.")
        return found

    def rename_clips(self, names: Mapping[str, str]) -> None:
        """Rename committed clips, from old names to new ones; raises a KeyError if one does not exist."""
        parts = self._old("clips")
        for place, rows in self.remove("clips", self._committed(names)).items():
            # The same rows under new names, at the end of the table.
            table = parts[place].table.take(rows)
            new = [names[name] for name in texts_of(table, "clip_id")]
            column = table.schema.get_field_index("clip_id")
            self.append("clips", table.set_column(column, "clip_id", strings(new)))
            self._pending.update(new)

    def forget_files(self, paths: Iterable[str]) -> None:
        """Drop the records of files in which nothing could be read."""
        # Their still pictures are removed after the commit, unless another file has the same content.
        parts = self._old("files")
        for place, rows in self.remove("files", self.find("files", paths)).items():
            self._dropped.update(parts[place].table.column("sha256").take(rows).to_pylist())

    def _commit(self, plan_of: Callable[[str], Plan]) -> None:
        # What is committed must open: the metadata are checked as they will be read, before anything is written.
        as_read = json.loads(json.dumps(without_infinity(self.metadata)))
        check_metadata(as_read, self.folder, self._widths_of_clips())
        super()._commit(plan_of)

    def commit(self) -> bool:
        """
        Make the changes the new state, see [`~scalar_retrieval.gallery.store.writing.Writer.commit`]; remove still
        pictures of files that are no longer known.

        Raises:
            ValueError: also if no gallery could be opened with `metadata`; nothing was changed.
        """
        # After a kill in between, pictures are left that nothing uses; `compact` removes them.
        dropped = self._dropped
        is_changed = super().commit()
        if dropped:
            self.stills.remove(dropped.difference(self.gallery().hashes(dropped)))
        return is_changed

    def compact(self) -> None:
        """Commit, and rewrite everything without removed rows, see
        [`~scalar_retrieval.gallery.store.writing.Writer.compact`]."""
        self.gallery().file_rows  # noqa: B018 - checked before anything is written
        super().compact()
        self.stills.keep(self.gallery().hashes())

    def gallery(self) -> Gallery:
        """The last committed state."""
        return Gallery.of_snapshot(self.snapshot, self.folder)


__all__ = [
    "Gallery",
    "GalleryWriter",
    "MediaFile",
    "StrPath",
    "check_writable",
    "verify_gallery",
]
