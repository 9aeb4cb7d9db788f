"""The embeddings of a benchmark: clips, captions, and which caption describes which clip.

On disk they are a [`~scalar_retrieval.gallery.gallery.Gallery`] with queries. Vectors of any other model become one by
[`Embeddings.save`], or by [`~scalar_retrieval.gallery.gallery.GalleryWriter`].
"""

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.gallery.store.columns import (
    clip_table,
    precision_of,
    problems_of_clips,
    query_table,
    text_embeds_of,
)
from scalar_retrieval.gallery.store.described import MODALITIES, modalities_in, slices_of
from scalar_retrieval.gallery.store.provenance import gallery_manifest
from scalar_retrieval.gallery.store.rows import abbreviated, texts_of
from scalar_retrieval.gallery.store.storage import TABLES
from scalar_retrieval.modeling_scalar.modalities_scalar import PAPER_MODALITIES
from scalar_retrieval.modeling_scalar.scores_scalar import CONCATENATIONS, off_unit


def _chosen(ids: list[str], selected: torch.Tensor) -> list[str]:
    return [ids[row] for row in selected.nonzero().flatten().tolist()]


@dataclass(eq=False)
class Embeddings:
    """
    All inputs of the scores of a benchmark.

    Args:
        text_embeds (`torch.FloatTensor` of shape `(queries, dim)`): one unit vector per caption.
        modality_embeds (`torch.FloatTensor` of shape `(clips, M, dim)`): unit vectors in the order of `modalities`;
            rows with a False mask are ignored.
        modality_mask (`torch.BoolTensor` of shape `(clips, M)`): modalities of each clip, at least one True per row.
        pairs (`torch.LongTensor` of shape `(pairs, 2)`): relevant pairs of a query (row of `text_embeds`) and a clip
            (row of `modality_embeds`). Every query has at least one; a clip may have none or several.
        clip_ids (`list[str]`), query_ids (`list[str]`): identifiers, each unique, in the order of the rows.
        captions (`list[str]`): the text of each query.
        modalities (`tuple[str, ...]`): names of the M vectors of a clip.
        concat_embeds (`torch.FloatTensor` of shape `(clips, 3, dim)`, *optional*): output of the concatenation heads
            for each clip, in the order of `CONCATENATIONS`; zero where the clip lacks a modality of the head. Only
            some checkpoints have these heads, and only clips with the paper's modalities. Not saved in a gallery.
        problems (`list[str]`): what could not be read and counts as absent, each with the identifier of its clip.
        metadata (`dict`): origin of the embeddings, as JSON values.

    Raises:
        ValueError: there are no queries or no clips, shapes do not match, an identifier repeats, a pair has no clip,
            or a clip has no modality.

    Example:

        >>> vectors = torch.eye(4)
        >>> theirs = Embeddings(
        ...     text_embeds=vectors[:2],
        ...     modality_embeds=vectors.view(2, 2, 4),
        ...     modality_mask=torch.tensor([[True, True], [True, False]]),
        ...     pairs=torch.tensor([[0, 0], [1, 1]]),  # query and relevant clip
        ...     clip_ids=["a", "b"],
        ...     query_ids=["q1", "q2"],
        ...     captions=["a dog barks", "rain"],
        ...     modalities=("video", "audio"),
        ... )
        >>> theirs.save("galleries/theirs")
        >>> len(Gallery.open("galleries/theirs"))
        2
    """

    text_embeds: torch.Tensor
    modality_embeds: torch.Tensor
    modality_mask: torch.Tensor
    pairs: torch.Tensor
    clip_ids: list[str]
    query_ids: list[str]
    captions: list[str]
    modalities: tuple[str, ...]
    concat_embeds: torch.Tensor | None = None
    problems: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.modalities = tuple(self.modalities)

        # Shapes: Q queries, V clips, M modalities.
        queries = len(self.query_ids)
        clips = len(self.clip_ids)
        number = len(self.modalities)
        dim = self.text_embeds.shape[-1]
        expected = {
            "text_embeds": (queries, dim),
            "modality_embeds": (clips, number, dim),
            "modality_mask": (clips, number),
            "pairs": (len(self.pairs), 2),
        }
        if self.concat_embeds is not None:
            expected["concat_embeds"] = (clips, len(CONCATENATIONS), dim)
        if not queries or not clips:
            raise ValueError(f"Expected at least one query and one clip, got {queries} queries and {clips} clips.")
        if not number or len(set(self.modalities)) != number:
            raise ValueError(f"`modalities` must be different names, at least one, got {self.modalities}.")
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise ValueError(
                    f"Expected `{name}` of shape {shape}, got {tuple(getattr(self, name).shape)}. The modalities of "
                    f"these clips are {', '.join(self.modalities)}."
                )
        if self.concat_embeds is not None and self.modalities != PAPER_MODALITIES:
            raise ValueError(
                f"Concatenation heads read the modalities {PAPER_MODALITIES}, but these clips have {self.modalities}. "
                "Leave out `concat_embeds`."
            )
        if self.modality_mask.dtype != torch.bool:
            raise ValueError(f"`modality_mask` must be a bool tensor, got {self.modality_mask.dtype}.")

        # Identifiers and captions.
        for name in ("clip_ids", "query_ids"):
            ids = Counter(getattr(self, name))
            repeated = sorted(ids - Counter(ids.keys()))  # what is left if each is taken once
            if repeated:
                raise ValueError(f"`{name}` must be unique, repeated: {abbreviated(repeated)}.")
        if len(self.captions) != queries:
            raise ValueError(f"Expected one caption per query, got {len(self.captions)} for {queries}.")

        # Pairs: a query without a clip has no rank, and a clip without a modality has no score.
        outside = (self.pairs < 0) | (self.pairs >= self.pairs.new_tensor([queries, clips]))
        if outside.any():
            wrong = self.pairs[outside.any(dim=1)].tolist()[:10]
            raise ValueError(f"`pairs` must name rows of the {queries} queries and {clips} clips, got {wrong}.")
        if len(self.pairs.unique(dim=0)) != len(self.pairs):
            raise ValueError("`pairs` must be unique: a query describes a clip or not.")
        lost = torch.ones(queries, dtype=torch.bool).index_fill(0, self.pairs[:, 0], False)
        if lost.any():
            names = abbreviated(_chosen(self.query_ids, lost))
            raise ValueError(f"Every query must describe a clip; these describe none: {names}.")
        empty = _chosen(self.clip_ids, ~self.modality_mask.any(dim=1))
        if empty:
            raise ValueError(f"Every clip needs at least one modality; these have none: {abbreviated(empty)}.")

    def score_inputs(self, queries: slice | torch.Tensor, clips: slice | torch.Tensor) -> dict[str, Any]:
        """Return some queries and clips as arguments of
        [`~scalar_retrieval.modeling_scalar.scores_scalar.retrieval_scores`]."""
        concat_embeds = self.concat_embeds
        if concat_embeds is not None:
            concat_embeds = concat_embeds[clips]
        return {
            "text_embeds": self.text_embeds[queries],
            "modality_embeds": self.modality_embeds[clips],
            "modality_mask": self.modality_mask[clips],
            "concat_embeds": concat_embeds,
            "modalities": self.modalities,
        }

    def _wrong(self, is_wrong: Callable[[torch.Tensor], torch.Tensor]) -> tuple[list[str], list[str]]:
        """Return the captions and the clips with a wrong vector: vectors of absent modalities may hold anything, and
        concatenation heads may return zero."""
        captions = is_wrong(self.text_embeds).view(len(self.query_ids), -1).any(dim=1)
        clips = (is_wrong(self.modality_embeds) & self.modality_mask).any(dim=1)
        if self.concat_embeds is not None:
            clips |= (is_wrong(self.concat_embeds) & (self.concat_embeds != 0).any(dim=-1)).any(dim=1)
        return _chosen(self.query_ids, captions), _chosen(self.clip_ids, clips)

    def check_finite(self) -> None:
        """Raise a ValueError that lists the captions and clips with a NaN or infinity in a used vector."""
        captions, clips = self._wrong(_is_infinite)
        if captions or clips:
            raise ValueError(
                f"Embeddings must be finite; they are not for the captions {abbreviated(captions)} and the clips "
                f"{abbreviated(clips)}."
            )

    def check_unit(self) -> None:
        """Raise a ValueError that lists the captions and clips with present vectors that do not have unit norm.

        Values that are not finite pass, for [`check_finite`] to report.
        """
        captions, clips = self._wrong(_is_off)
        if captions or clips:
            raise ValueError(
                f"Embeddings must have unit norm; they do not for the captions {abbreviated(captions)} and the clips "
                f"{abbreviated(clips)}. Normalize them; a modality that a clip lacks must be marked absent."
            )

    def manifest(self) -> dict[str, Any]:
        """Return what identifies the gallery: [`~scalar_retrieval.gallery.store.provenance.gallery_manifest`]."""
        return gallery_manifest(self.clip_ids, self.modality_mask)

    def kinds(self) -> list[str | None]:
        """Return the kind of each query from `kinds` in the metadata; `None` for queries that it lacks."""
        kinds = self.metadata.get("kinds", {})
        return list(map(kinds.get, self.query_ids))

    def save(self, folder: str | os.PathLike, dtype: str | None = None) -> None:
        """
        Write a gallery with queries, whole or not at all.

        Args:
            folder (`str`): created if needed; an existing gallery is replaced. Pairs are stored in the order of
                queries.
            dtype (`str`, *optional*): `"float32"` or `"float16"`; by default clips and captions keep their own.

        Raises:
            ValueError: the folder holds something else, the embeddings have another precision and `dtype` does not
                choose one, a vector does not have unit norm, or `metadata` is not JSON.
        """
        # The clips that each query describes, by their ids: rows may be stored in another order.
        if dtype is not None:
            precision_of(dtype)
        described: list[list[str]] = [[] for _ in self.query_ids]
        for query, clip in self.pairs.tolist():
            described[query].append(self.clip_ids[clip])

        # Problems go to their clips; those without a clip, and modalities other than the default, to the metadata.
        problems, others = problems_of_clips(self.problems, self.clip_ids)
        metadata = dict(self.metadata)
        if others:
            metadata["problems"] = others
        if modalities_in(metadata) != self.modalities:
            metadata[MODALITIES] = list(self.modalities)
        try:
            json.dumps(metadata, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"The metadata of embeddings must be JSON, without NaN and infinity: {error}") from error

        # Both tables in one commit, in place of an earlier gallery's.
        columns = self.clip_ids, self.modality_embeds, self.modality_mask
        slices = slices_of(metadata, len(self.modalities), self.modality_embeds.shape[-1])
        clips = clip_table(*columns, self.modalities, problems, dtype=dtype, slices=slices)
        queries = query_table(self.query_ids, self.captions, self.text_embeds, described, dtype)
        with GalleryWriter(folder) as writer:
            for name in TABLES:
                writer.clear(name)
            writer.metadata = metadata
            writer.append("clips", clips)
            writer.put_queries(queries)
            writer.commit()

    @classmethod
    def load(cls, folder: str | os.PathLike) -> "Embeddings":
        """
        Read a gallery with queries.

        Args:
            folder (`str`): output of [`Embeddings.save`] or `scalar eval embed`.

        Returns:
            [`Embeddings`], see [`Embeddings.of_gallery`].

        Raises:
            FileNotFoundError, ValueError: there is no gallery; or as in [`Embeddings.of_gallery`].
        """
        return cls.of_gallery(Gallery.open(folder))

    @classmethod
    def of_gallery(cls, gallery: Gallery) -> "Embeddings":
        """
        Read a gallery with queries.

        Returns:
            [`Embeddings`], in float16 if the gallery holds float16, else in float32.

        Raises:
            FileNotFoundError: it has no queries.
            ValueError: a column is missing or of another type, lengths differ, an identifier repeats, a query has an
                unknown clip, or a vector does not have unit norm.
        """
        gallery.check_queries()
        # Queries and clips as they are stored; pairs by the identifiers of clips.
        queries = gallery.queries
        metadata = dict(gallery.metadata)
        problems = []
        for name, of_clip in gallery.problems().items():
            problems += [f"{name}: {problem}" for problem in of_clip]
        embeddings = cls(
            text_embeds=text_embeds_of(queries),
            modality_embeds=gallery.modality_embeds(),
            modality_mask=gallery.modality_mask,
            pairs=_read_pairs(queries, gallery.clip_ids, gallery.path / "queries"),
            clip_ids=gallery.clip_ids,
            query_ids=texts_of(queries, "query_id"),
            captions=texts_of(queries, "caption"),
            problems=problems + metadata.pop("problems", []),
            metadata=metadata,
            modalities=gallery.modalities,
        )
        embeddings.check_unit()
        return embeddings


def _is_infinite(embeds: torch.Tensor) -> torch.Tensor:
    return ~embeds.isfinite().all(dim=-1)


def _is_off(embeds: torch.Tensor) -> torch.Tensor:
    return off_unit(embeds) & ~_is_infinite(embeds)


def _read_pairs(queries: pa.Table, clip_ids: list[str], where: Path) -> torch.Tensor:
    """Return the rows of queries and the clips that they describe, (P, 2)."""
    # A query has a list of ids: flattened, with the row of its query for each id.
    column = queries.column("clip_ids")
    described = pc.list_flatten(column).cast(pa.string())
    query_rows = pc.list_parent_indices(column)
    rows = pc.index_in(described, value_set=pa.array(clip_ids, pa.string()))
    if rows.null_count:
        unknown = described.filter(pc.is_null(rows)).unique().to_pylist()
        raise ValueError(f"Queries in {where} describe clips that are not in the gallery: {abbreviated(unknown)}.")
    pairs = [query_rows.to_numpy(), rows.to_numpy()]
    return torch.from_numpy(np.stack(pairs, axis=1).astype(np.int64))


__all__ = ["Embeddings"]
