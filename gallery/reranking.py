"""The second stage: the cross-encoder reorders the first candidates (SCALAR, "Inference").

Beyond the first candidates, ranks stay those of the first stage. A pair whose clip the cross-encoder cannot read keeps
its first-stage rank; the others are reordered among the remaining ranks by one of two rules: by the match alone, as in
the paper, or by the first-stage score plus a weight times the match logit, which is not in the paper.

Shape letters: N ranked lists, K candidates in each.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from gallery.decoding import num_processors, tolerant
from gallery.embedding import Batch, read_batches
from gallery.hits import Hit, Hits
from gallery.matching import clip_views, match_logits
from gallery.media import has_given_words, is_as_known
from gallery.querying import QueryModel
from gallery.transcripts import Transcripts
from gallery.windows import Place
from gallery.words import split_query
from modeling_scalar.scores_scalar import PAPER_MODALITIES as MODALITIES

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from modeling_scalar.processing_scalar import Clip

_BATCH_SIZE = 8
_TOLD = 3  # most clips named among those that keep their place


def sort_rows(values: torch.Tensor, ties: torch.Tensor) -> torch.LongTensor:
    """Order each row: highest value first; among equal ones the lowest tie, then the lowest column."""
    order = ties.argsort(dim=1, stable=True)
    return order.gather(1, values.gather(1, order).argsort(dim=1, descending=True, stable=True))


def check_depth(depth: int) -> None:
    """Raise a ValueError unless the second stage reorders at least one candidate of each row."""
    if depth < 1:
        raise ValueError(f"`depth` must be at least 1, got {depth}.")


def check_weight(weight: float) -> None:
    """Raise a ValueError unless a number is a valid weight of a match logit."""
    if not 0 <= weight < math.inf:
        raise ValueError(f"The weight of a match logit must be a finite number from 0, got {weight}.")


def fused_values(scores: torch.Tensor, logits: torch.Tensor, weight: float) -> torch.DoubleTensor:
    """
    Add the weighted match logits to the first-stage scores; not in the paper.

    Args:
        scores (`torch.Tensor` of shape `(rows, candidates)`): of the first stage; -inf where it is undefined.
        logits (`torch.Tensor` of the same shape): match logits, NaN where the cross-encoder cannot read the clip.
        weight (`float`): weight of the logits, at least 0. At 0 the order is that of the first stage.

    Returns:
        `torch.DoubleTensor` of the same shape: NaN where the cross-encoder cannot read the clip.
    """
    return scores.double() + weight * logits.double()


def places_of(values: torch.Tensor, ties: torch.Tensor) -> torch.LongTensor:
    """
    Return the place of each candidate after the second stage: candidates that could be read are sorted, best first,
    among the places that they held; the others keep theirs.

    Args:
        values (`torch.Tensor` of shape `(N, K)`): new values of the candidates, in first-stage order; NaN where the
            cross-encoder cannot read the clip.
        ties (`torch.Tensor` of shape `(N, K)`): of equal values, the lowest tie comes first, then the lowest column.

    Returns:
        `torch.LongTensor` of shape `(N, K)`, from 0.
    """
    unread = values.isnan()
    order = sort_rows(values.nan_to_num(nan=-torch.inf), ties.masked_fill(unread, 0))
    held = unread.byte().argsort(dim=1, stable=True)
    return torch.empty_like(order).scatter_(1, order, held)


# Of a gallery -------------------------------------------------------------------------------------------------------


def check_can_match(model: "PreTrainedModel") -> None:
    """Raise a ValueError unless a model has a cross-encoder."""
    if not getattr(model.config, "has_cross_attention", False):
        raise ValueError(
            f"The second stage needs a cross-encoder, which reads a text together with a clip; the model "
            f"({type(model).__name__}) has none. Search without reranking."
        )


def rerank(
    results: Sequence[Hits],
    query_model: QueryModel,
    files: Mapping[str, Any],
    depth: int,
    modalities: Sequence[str] = MODALITIES,
    weight: float | None = None,
    transcripts: Transcripts | None = None,
    media_of: Callable[[Place], str | None] = attrgetter("path"),
) -> list[Hits]:
    """
    Reorder the first hits of texts by the match of the cross-encoder, with condition tokens computed from the files.

    Args:
        results (`list[Hits]`): with their `query`.
        query_model ([`~gallery.querying.QueryModel`]): with a cross-encoder.
        files (`dict[str, MediaFile]`): the gallery's records of the files of these hits.
        depth (`int`): number of hits of each query.
        modalities (`list[str]`): the selected modalities; the cross-encoder uses only the paper's.
        weight (`float`, *optional*): weight of the match logit, which is added to the first-stage score; by default
            only the match counts.
        transcripts ([`~gallery.transcripts.Transcripts`], *optional*): those of the gallery.
        media_of (`Callable`): returns the path of a clip's file.

    Returns:
        `list[Hits]`: hits that were read have a `match`; clips that could not be read keep their place, and a note
        says which and why.

    Raises:
        ValueError: the model has no cross-encoder, the gallery has no records of files, or a number is out of range.
    """
    check_depth(depth)
    check_can_match(query_model.model)
    if weight is not None:
        check_weight(weight)
    if not any(results):
        return list(results)
    if not files:
        raise ValueError(
            "The second stage reads the files of clips, which this gallery does not record; galleries made by "
            "`scalar index` do. Search without reranking."
        )
    first = [hits[:depth] for hits in results]
    clips = {hit.clip_id: hit for hits in first for hit in hits}
    rows = {name: row for row, name in enumerate(clips)}
    places = {hit.clip_id: hits.place_of(hit) for hits in results for hit in hits[:depth]}
    condition_on, reasons = query_model.model.config.condition_on, {}
    present = [[hit.presence.get(name, False) and name in modalities for name in MODALITIES] for hit in clips.values()]
    views = clip_views(torch.tensor(present).view(-1, len(MODALITIES)), condition_on)
    for name, view in zip(clips, views.tolist(), strict=True):
        if not view:
            reasons[name] = f"it has nothing that the cross-encoder reads ({', '.join(condition_on)})"

    processor = tolerant(query_model.processor)

    def read(name: str) -> "tuple[str, Clip | None]":
        shown = _shown(views[rows[name]], condition_on)
        clip, reason = _read(processor, places[name], files, shown, transcripts, media_of)
        if reason is not None:
            reasons[name] = reason
        return name, clip

    def batches(wanted: list[int]) -> Iterator[Batch]:
        names = [list(clips)[row] for row in wanted]
        return read_batches(processor, names, read, _BATCH_SIZE, min(1 + num_processors(), _BATCH_SIZE))

    requests = [
        [query, rows[hit.clip_id], int(views[rows[hit.clip_id]])] for query, hits in enumerate(first) for hit in hits
    ]
    with query_model.lock:
        logits = match_logits(
            query_model.model,
            query_model.processor,
            list(clips),
            [split_query(hits.query)[0] for hits in results],
            torch.tensor(requests, dtype=torch.long).view(-1, 3),
            batches,
            _BATCH_SIZE,
            progress=False,
        )
    found = logits.split([len(hits) for hits in first])
    return [_reordered(hits, part, depth, weight, reasons) for hits, part in zip(results, found, strict=True)]


def _shown(view: torch.Tensor, condition_on: Sequence[str]) -> list[str]:
    return [name for bit, name in enumerate(MODALITIES) if int(view) >> bit & 1 and name in condition_on]


def _read(
    processor: Any,
    place: Place,
    files: Mapping[str, Any],
    needed: Sequence[str],
    transcripts: Transcripts | None,
    media_of: Callable[[Place], str | None],
) -> "tuple[Clip | None, str | None]":
    """A clip as it was when it was embedded, or why it is not available."""
    known = files.get(place.path)
    if known is None:
        return None, "the gallery has no record of its file"
    path = media_of(place)
    if path is None or not os.path.exists(path):
        return None, "its file is gone"
    if not is_as_known(path, known):
        return None, "its file or its subtitle file has changed, or was replaced, since it was embedded"
    if "subtitle" in needed and has_given_words(known):
        return None, "its words came from a list, and are not in its file"
    options: dict[str, Any] = {} if place.start is None else {"window": (place.start, place.stop)}
    words = transcripts.with_words(known.sha256) if transcripts is not None and "subtitle" in needed else None
    options |= {} if words is None else {"subtitle": str(words)}
    try:
        clip = processor.read_clip(path, processed=True, **options)
    except (OSError, ValueError) as error:
        return None, f"its file cannot be read: {error}"
    if lost := [name for name in needed if not clip.has(name)]:
        return None, f"{' and '.join(lost)} cannot be read from its file as when it was embedded"
    return clip, None


def _reordered(hits: Hits, logits: torch.Tensor, depth: int, weight: float | None, reasons: Mapping[str, str]) -> Hits:
    """Hits in the order of the second stage, with notes on it."""
    first = hits[:depth]
    if not first:
        return hits
    scores = torch.tensor([[hit.score for hit in first]], dtype=torch.float64)
    values = logits[None].double() if weight is None else fused_values(scores, logits[None], weight)
    order: list[Hit | None] = [None] * len(first)
    for hit, place, logit in zip(first, places_of(values, torch.zeros_like(values))[0].tolist(), logits, strict=True):
        order[place] = hit if logit.isnan() else replace(hit, match=logit.item())
    by = (
        "by the cross-encoder"
        if weight is None
        else f"by the score and {weight:g} times the match of the cross-encoder"
    )
    what = "The first hit was" if len(first) == 1 else f"The first {len(first)} hits were"
    unread = [hit for hit, logit in zip(first, logits, strict=True) if logit.isnan()]
    notes = [f"{what} put in order {by}."]
    if unread:
        named = "; ".join(
            f"{hits.name_of(hit)}: {reasons.get(hit.clip_id, 'it was not read')}" for hit in unread[:_TOLD]
        )
        more = f"; and {len(unread) - _TOLD} more" if len(unread) > _TOLD else ""
        verb = "1 keeps its place" if len(unread) == 1 else f"{len(unread)} keep their places"
        notes.append(f"Of these, {verb}: {named}{more}.")
        if len(unread) == len(first):
            notes = [f"No hit was put in order {by}, as none of the first {len(first)} could be read: {named}{more}."]
    return hits.having([*order, *hits[depth:]], notes)


__all__ = [
    "check_can_match",
    "check_depth",
    "check_weight",
    "fused_values",
    "places_of",
    "rerank",
    "sort_rows",
]
