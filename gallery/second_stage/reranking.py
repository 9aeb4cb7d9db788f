"""The second stage of a search: the cross-encoder reads the files of the first hits again, and reorders these."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from scalar_retrieval.modeling_scalar.modalities_scalar import PAPER_MODALITIES as MODALITIES

from ..decoding import num_processors, tolerant
from ..embedding import ReadBatch, read_batches
from ..filters import split_query
from ..hits import Hits
from ..querying import QueryModel
from ..searcher import StoredClip
from ..store.file_state import has_given_words, is_as_known
from .matching import clip_views, fused_values, match_logits, reranked_places

if TYPE_CHECKING:
    from scalar_retrieval.modeling_scalar.processing_scalar import Clip

_BATCH_SIZE = 8
_NAMED = 3  # most clips named among those that keep their place


def rerank(
    results: Sequence[Hits],
    query_model: QueryModel,
    clips: Mapping[str, StoredClip],
    depth: int,
    modalities: Sequence[str],
    weight: float | None,
) -> list[Hits]:
    """
    Reorder the first hits of texts by the match of the cross-encoder, with condition tokens computed from the files.

    Args:
        results (`list[Hits]`): with their `query`.
        query_model ([`~scalar_retrieval.gallery.querying.QueryModel`]): with a cross-encoder, see
            [`~scalar_retrieval.gallery.second_stage.matching.check_can_match`].
        clips (`dict[str, StoredClip]`): the clips of these hits, by identifier.
        depth (`int`): number of hits of each query, at least 1.
        modalities (`list[str]`): the selected modalities; the cross-encoder uses only the paper's.
        weight (`float`, *optional*): weight of the match logit, which is added to the first-stage score; if None,
            only the match counts.

    Returns:
        `list[Hits]`: hits that were read have a `match`; clips that could not be read keep their place, and a note
        says which and why.

    Raises:
        ValueError: the gallery has no records of files, or the weight is out of range.
    """
    if weight is not None and not 0 <= weight < math.inf:
        raise ValueError(f"The weight of a match logit must be a finite number from 0, got {weight}.")
    if not any(map(len, results)):
        return list(results)
    # A clip among the first hits of several queries is read once.
    first = [hits[:depth] for hits in results]
    presence = {}
    for hits in first:
        for hit in hits:
            presence[hit.clip_id] = hit.presence
    names = list(presence)
    if all(clips[name].record is None for name in names):
        raise ValueError(
            "The second stage reads the files of clips, which this gallery does not record; galleries made by "
            "`scalar index` do. Search without reranking."
        )

    # What is visible of each clip to the cross-encoder: of the selected modalities, those that it reads.
    condition_on = query_model.model.config.condition_on
    readable = [name for name in MODALITIES if name in condition_on and name in modalities]
    mask = []
    for has in presence.values():
        mask.append([has.get(name, False) for name in readable])
    views = clip_views(torch.tensor(mask, dtype=torch.bool), readable, condition_on).tolist()
    reasons = {}
    for name, view in zip(names, views, strict=True):
        if not view:
            reasons[name] = f"it has nothing that the cross-encoder reads ({', '.join(condition_on)})"
    processor = tolerant(query_model.processor)

    def read(row: int) -> "tuple[str, Clip | None]":
        needed = [name for name, is_there in zip(readable, mask[row], strict=True) if is_there]
        inputs, reason = _read(processor, clips[names[row]], needed)
        if reason is not None:
            reasons[names[row]] = reason
        return names[row], inputs

    def batches(wanted: list[int]) -> Iterator[ReadBatch]:
        return read_batches(processor, wanted, read, _BATCH_SIZE, min(1 + num_processors(), _BATCH_SIZE))

    # The match of each query with its first hits: (requests, 3), see `match_logits`.
    rows = {name: row for row, name in enumerate(names)}
    requests = []
    for query, hits in enumerate(first):
        for name in hits.clip_ids:
            requests.append([query, rows[name], views[rows[name]]])
    with query_model.lock:
        logits = match_logits(
            query_model.model,
            query_model.processor,
            names,
            [split_query(hits.query)[0] for hits in results],
            torch.tensor(requests),
            batches,
            _BATCH_SIZE,
            progress=False,
        )

    # Each query has the logits of its own hits.
    parts = logits.split(list(map(len, first)))
    return [_reordered(hits, part, depth, weight, reasons) for hits, part in zip(results, parts, strict=True)]


def _read(processor: Any, clip: StoredClip, needed: Sequence[str]) -> "tuple[Clip | None, str | None]":
    """A clip as it was when it was embedded, or why it is not available."""
    if clip.record is None:
        return None, "the gallery has no record of its file"
    if clip.media is None:
        return None, "its file is gone, or has changed since it was embedded"
    if not is_as_known(os.fspath(clip.media), clip.record):
        return None, "its file or its subtitle file has changed, or was replaced, since it was embedded"
    if "subtitle" in needed and has_given_words(clip.record):
        return None, "its words came from a list, and are not in its file"
    # Of a window, its seconds alone; of words, the transcript that takes the place of subtitles.
    options: dict[str, Any] = {}
    if clip.place.start is not None:
        options["window"] = (clip.place.start, clip.place.stop)
    if "subtitle" in needed and clip.subtitle is not None:
        options["subtitle"] = os.fspath(clip.subtitle)
    try:
        inputs = processor.read_clip(os.fspath(clip.media), processed=True, **options)
    except (OSError, ValueError) as error:
        return None, f"its file cannot be read: {error}"
    lost = [name for name in needed if not inputs.has(name)]
    if lost:
        return None, f"{' and '.join(lost)} cannot be read from its file as when it was embedded"
    return inputs, None


def _reordered(hits: Hits, logits: torch.Tensor, depth: int, weight: float | None, reasons: Mapping[str, str]) -> Hits:
    """Hits in the order of the second stage, with notes on it."""
    count = min(depth, len(hits))
    if not count:
        return hits
    values = logits.double()[None]
    if weight is not None:
        values = fused_values(hits.scores[None, :count], logits[None], weight)
    places = reranked_places(values, torch.zeros_like(values))[0]
    order = [*places.argsort().tolist(), *range(count, len(hits))]

    # A note on what was reordered, and one on what could not be: the hits without a match keep their places.
    by = "by the cross-encoder"
    if weight is not None:
        by = f"by the score and {weight:g} times the match of the cross-encoder"
    notes = [f"Hits 1 to {count} were put in order {by}."]
    unread = []
    for row in logits.isnan().nonzero()[:, 0].tolist():
        hit = hits[row]
        unread.append(f"{hits.name_of(hit)}: {reasons.get(hit.clip_id, 'it was not read')}")
    if unread:
        named = "; ".join(unread[:_NAMED])
        if len(unread) > _NAMED:
            named += f"; and {len(unread) - _NAMED} more"
        notes.append(f"In the places that they had, as they could not be read: {named}.")
        if len(unread) == count:
            notes = [f"No hit was put in order {by}, as none of the first {count} could be read: {named}."]

    # Hits beyond the first ones stay where they are, without a match.
    matched = hits.select(range(len(hits)))
    matched.matches = torch.cat([logits.double(), torch.full((len(hits) - count,), torch.nan, dtype=torch.float64)])
    return matched.select(order, notes)


__all__ = ["rerank"]
