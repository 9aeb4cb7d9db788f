"""Search of embedded clips: which ones match texts, vectors or another clip best, and why. [`search`] is the same for
every [`~scalar_retrieval.gallery.searcher.Searcher`].

Shapes: Q queries, N clips, M modalities, D dimensions, K hits.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
import torch

from scalar_retrieval.modeling_scalar.modalities_scalar import CALIBRATION
from scalar_retrieval.modeling_scalar.scores_scalar import WEIGHING, joined_queries

from .filters import Filter, are_selected, split_queries
from .hits import HitLists, Hits
from .querying import (
    Likeness,
    NothingToCompareError,
    QueryModel,
    check_vectors,
    load_query_model,
    query_like,
)
from .searcher import Scoring, Searcher, Selection, UnsupportedError
from .second_stage.matching import check_can_match, check_depth
from .second_stage.reranking import rerank as rerank_hits
from .store.described import Described, score_options_of, unread_lines
from .store.windows import SEGMENT

if TYPE_CHECKING:
    from .store.arrays import Array

_FEWEST = 0.9  # smallest gallery, as a share of the clips that a least score was fitted to


class ScoreParameters(TypedDict, total=False):
    """Fitted parameters of a score, as in [`~scalar_retrieval.modeling_scalar.scores_scalar.ScoreOptions`]."""

    modality_scale: Sequence[float] | None
    modality_offset: Sequence[float] | None
    hyperbolic_mix: float
    curvature: float
    rank_constant: float


def _least_score(described: Described, scoring: Scoring, modalities: Sequence[str] | None, num_clips: int) -> Any:
    """The least score of a match, if it was fitted to searches like this one."""
    least = described.least_score
    if least is None or num_clips < _FEWEST * least["num_clips"]:
        return None
    # Other methods, modalities, temperatures and calibrations give scores that mean something else.
    if scoring.method != least["score_options"]["method"] or set(CALIBRATION) & set(scoring.options):
        return None
    if set(modalities or described.modalities) != set(least["modalities"]):
        return None
    if scoring.options.get("query_temperature", described.query_temperature) != described.query_temperature:
        return None
    return least["score"]


def check_supported(searcher: Searcher, among: Selection, *further: str) -> None:
    """Raise an UnsupportedError if a selection, or something `further`, is more than a searcher can do."""
    asked = list(further)
    if among.mask is not None:
        asked.append("mask")
    if among.unique:
        asked.append("unique")
    missing = sorted(searcher.unsupported.intersection(asked))
    if missing:
        raise UnsupportedError(
            f"{searcher.described.path} does not support {', '.join(missing)}; a gallery in a folder does."
        )


def _best_of_files(
    found: Hits, k: int, searcher: Searcher, query: torch.Tensor, scoring: Scoring, among: Selection
) -> Hits:
    """The best hit of each of `k` files, or of all, from the `k` best windows of a query, `(1, D)`."""
    # Asking for ever more hits would not do: a file may have any number of windows.
    best = found.best_of_files(k)
    count = -1
    while count < len(best) < k:
        count = len(best)
        outside = frozenset(place.path for place in found.texts.places)
        (further,) = searcher.rank(query, k, scoring, replace(among, outside=outside))
        found = found.continued(further)
        best = found.best_of_files(k)
    return best


def _searched(embeds: torch.Tensor, described: Described, modalities: Sequence[str] | None) -> list[tuple[str, ...]]:
    """For each query `(Q, D)`, the selected modalities of which it has components: where it is zero, there is nothing
    to compare. Raises a NothingToCompareError if one has none."""
    selected = tuple(modalities or described.modalities)
    found = [selected] * len(embeds)
    for name, (start, stop) in zip(described.modalities, described.slices, strict=False):
        for row in (~embeds[:, start:stop].any(1)).nonzero()[:, 0].tolist():
            found[row] = tuple(other for other in found[row] if other != name)
    if () in found:
        raise NothingToCompareError(
            f"A query has nothing to compare with {', '.join(selected)}. Select another modality."
        )
    return found


def search(
    searcher: Searcher,
    queries: "str | Sequence[str] | torch.Tensor | np.ndarray | Mapping[str, Array] | None" = None,
    k: int = 10,
    query_temperature: float | None = None,
    method: str | None = None,
    *,
    load: Callable[[], QueryModel] | None = None,
    like: str | Likeness | None = None,
    modalities: Sequence[str] | None = None,
    allowed: torch.Tensor | Filter | None = None,
    per_file: bool = False,
    unique: bool = False,
    rerank: int | None = None,
    fusion_weight: float | None = None,
    inside: str | None = None,
    **score_parameters: Unpack[ScoreParameters],
) -> Hits | HitLists:
    """
    Find the k best clips of each query in anything that can be searched, exactly.

    Args:
        searcher ([`~scalar_retrieval.gallery.searcher.Searcher`]): what is searched.
        load (`Callable`, *optional*): returns the [`~scalar_retrieval.gallery.querying.QueryModel`] that embeds texts,
            and is called if there are some; by default the model is loaded for each call.
        inside (`str`, *optional*): the one file whose windows may be found.

    Further args, returns and errors: as in [`~scalar_retrieval.gallery.gallery.Gallery.search`].

    Raises:
        UnsupportedError: the searcher cannot do this.
    """
    # What is asked for must make sense, and be something that the searcher can do.
    described = searcher.described
    if isinstance(queries, np.ndarray) and queries.dtype.kind == "f":
        queries = torch.from_numpy(queries)
    if isinstance(queries, Mapping):
        queries = joined_queries(queries, described.modalities, described.slices)
    is_texts = queries is not None and not isinstance(queries, torch.Tensor)
    if k < 1:
        raise ValueError(f"`k` must be at least 1, got {k}.")
    if (queries is None) == (like is None):
        raise ValueError("Give either `queries` or `like`.")
    if rerank is None and fusion_weight is not None:
        raise ValueError("`fusion_weight` needs the second stage: set `rerank` to the number of hits to reorder.")
    if rerank is not None and not is_texts:
        raise ValueError("The second stage needs texts: use `rerank` only with text queries.")
    if modalities is not None:
        modalities = tuple(modalities)
        are_selected(modalities, described.modalities)  # raises an error before a model is loaded
    among = Selection(modalities=modalities, inside=inside, unique=unique)
    if isinstance(allowed, Filter):
        among = replace(among, filter=allowed)
    else:
        among = replace(among, mask=allowed)
    further = [] if rerank is None else ["rerank"]
    check_supported(searcher, among, *further)

    # Every kind of query becomes vectors, (Q, D), that are scored by `method` with `score_parameters`.
    name = None
    if is_texts:
        # Words in quotation marks are conditions on clips; the model reads them without the marks.
        texts = [queries] if isinstance(queries, str) else list(queries)
        if not texts:
            return HitLists()
        asked, words = split_queries(texts)
        model = load_query_model(described) if load is None else load()
        if rerank is not None:
            check_depth(rerank)
            check_can_match(model.model)
        embeds = model.embed(asked)
        # Fitted parameters fit one method only.
        method = method or model.method
        if method == model.method:
            score_parameters = model.learned | score_parameters
    elif like is None:
        embeds = queries
        method = method or "scalar"
        texts = [None] * len(embeds)
        words = [()] * len(embeds)
    else:
        texts = [None]
        words = [()]
        # The gallery's own score, except for what was fitted to queries of words.
        own = score_options_of(described.metadata)
        method = method or own["method"]
        if method == own["method"]:
            fitted = {option: value for option, value in own.items() if option not in ("method", *WEIGHING)}
            score_parameters = fitted | score_parameters
        score_parameters = dict.fromkeys(CALIBRATION) | score_parameters
        selected = torch.tensor(are_selected(modalities, described.modalities))
        if isinstance(like, Likeness):
            name = like.name
            embeds = query_like(like.embeds, like.mask & selected)
        else:
            name = like
            (clip,) = searcher.clips([like])
            embeds = query_like(clip.modality_embeds, clip.modality_mask & selected)
            among = replace(among, without=like)  # it would be the best
    if query_temperature is not None:
        score_parameters = {"query_temperature": query_temperature} | score_parameters
    scoring = Scoring(method, score_parameters)
    embeds = check_vectors(embeds, described.dim)

    # The first stage ranks queries with the same words and modalities at once.
    size = max(k, rerank or 0)
    per_file = per_file and described.metadata.get(SEGMENT) is not None
    found: list[Hits] = [None] * len(texts)
    alike = defaultdict(list)
    for row, kind in enumerate(zip(words, _searched(embeds, described, modalities), strict=True)):
        alike[kind].append(row)
    for (quoted, names), rows in alike.items():
        chosen = replace(among, filter=among.filter.with_words(quoted), modalities=names)
        is_of_all = chosen.mask is None and chosen.inside is None and chosen.filter.is_empty
        for row, hits in zip(rows, searcher.rank(embeds[rows], size, scoring, chosen), strict=True):
            # The best windows may all be of a few files: then more are ranked.
            if per_file:
                hits = _best_of_files(hits, size, searcher, embeds[row : row + 1], scoring, chosen)
            hits.query = texts[row]
            hits.like = name
            hits.words = quoted
            if is_of_all and like is None and rerank is None:
                hits.least_score = _least_score(described, scoring, names, hits.num_clips)
            if hits.matches_well is False:
                hits.notes = [*hits.notes, *unread_lines(described.metadata)]
            found[row] = hits

    # The second stage reads the files of the first hits, each once for all queries.
    if rerank is not None:
        first = set()
        for hits in found:
            first.update(hits[:rerank].clip_ids)
        clips = {clip.clip_id: clip for clip in searcher.clips(list(first))}
        found = rerank_hits(found, model, clips, rerank, modalities or described.modalities, fusion_weight)
        found = [hits[:k] for hits in found]
    if like is not None or isinstance(queries, str):
        return found[0]
    return HitLists(found)


__all__ = ["ScoreParameters", "check_supported", "search"]
