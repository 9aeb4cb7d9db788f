"""The first stage: ranks, metrics and the aggregation gain from embeddings (SCALAR Tables 3, 4, S3 and S5).

Ties count against the method: a score that cannot distinguish candidates ranks the relevant one last, never first. The
products of texts and clips are computed once for all scores and masks; large galleries are scored in blocks.

Shape letters: Q queries, V clips, P pairs of a query and a clip that it describes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from scalar_retrieval.modeling_scalar.modalities_scalar import CALIBRATION, PAPER_MODALITIES
from scalar_retrieval.modeling_scalar.scores_scalar import (
    DIRECTIONS,
    METHODS,
    Method,
    Pairs,
    find_method,
    make_pairs,
    paired_weights,
)

from ..embedding.embeddings import Embeddings
from ..metrics.retrieval.ranking import first_ranks, relevant_ranks, retrieval_metrics
from .missing import MASK_SEED, RATES, ladder, ladder_masks, rate_masks
from .statistics import paired_bootstrap

TIE_RULE = "among candidates of equal score the wrong ones come first"

Ranks = dict[str, dict[str, torch.LongTensor]]
"""Ranks of the relevant pairs (P,), by method and direction."""

_COMPARED = ("uniform", "gram")  # compared with the model's own score, next to the best pathway
_CHUNK = 4096  # relevant pairs whose weights are computed at once
_MAX_PAIRS = 2**25  # scores held at once


def _methods_of(modalities: Sequence[str]) -> dict[str, Method]:
    """Return the scores of clips with these modalities, in the order of tables; single modalities are listed
    together."""
    methods = {}
    for registered in METHODS:
        # In place of each of the paper's modalities, all of these; a name that comes again changes nothing.
        for name in modalities if registered in PAPER_MODALITIES else [registered]:
            method = METHODS.get(name) or find_method(name, modalities)
            # A registered score may need modalities that these clips lack.
            if {*method.needs, *(method.reads or ())}.issubset(modalities):
                methods[name] = method
    return methods


def measurable_methods(embeddings: Embeddings) -> tuple[str, ...]:
    """Return the scores that these embeddings have the inputs for: some scores need certain modalities, `concat_head`
    needs its heads."""
    names = []
    for name, method in _methods_of(embeddings.modalities).items():
        if embeddings.concat_embeds is not None or not method.uses_concat_heads:
            names.append(name)
    return tuple(names)


def check_methods(methods: Sequence[str], modalities: Sequence[str]) -> None:
    """Raise a ValueError unless every name is a registered method or one of the clips' modalities, and the clips have
    the modalities that the methods read."""
    known = tuple(dict.fromkeys((*METHODS, *modalities)))
    unknown = [method for method in methods if method not in known]
    if unknown:
        raise ValueError(f"`methods` must be among {known}, got {unknown}. The clips have {', '.join(modalities)}.")
    for method in methods:
        find_method(method, modalities)


def _scorable(embeddings: Embeddings, modality_mask: torch.Tensor, method: str) -> torch.Tensor:
    return find_method(method, embeddings.modalities).covers(modality_mask, embeddings.modalities)


def pathways(modalities: Sequence[str]) -> tuple[str, ...]:
    """Return the methods that read a single modality, to compare joint scores with the best of them."""
    return tuple(name for name, method in _methods_of(modalities).items() if method.is_pathway)


def _blocks(num_queries: int, num_clips: int) -> Iterator[tuple[slice, slice, tuple[str, ...]]]:
    """Yield parts of the score matrix in which every query of the direction meets all of its candidates."""
    queries = slice(0, num_queries)
    clips = slice(0, num_clips)
    # A small matrix as a whole, for both directions; a large one in rows of each direction.
    if num_queries * num_clips <= _MAX_PAIRS:
        yield queries, clips, DIRECTIONS
        return
    size = max(1, _MAX_PAIRS // num_clips)
    for start in range(0, num_queries, size):
        yield slice(start, start + size), clips, DIRECTIONS[:1]
    size = max(1, _MAX_PAIRS // num_queries)
    for start in range(0, num_clips, size):
        yield queries, slice(start, start + size), DIRECTIONS[1:]


def _ranks(scores: torch.Tensor, pairs: torch.Tensor, direction: str) -> torch.LongTensor:
    """Return the ranks (P,) of the pairs [query, clip]; a query without a relevant candidate has none."""
    if not len(pairs):
        return pairs[:, 0]
    if direction == "video_to_text":
        scores = scores.T
        pairs = pairs.flip(1)
    # A clip that no query describes ranks nothing: its row is left out.
    with_relevant, rows = pairs[:, 0].unique(return_inverse=True)
    if len(with_relevant) < len(scores):
        scores = scores[with_relevant]
    return relevant_ranks(scores, torch.stack([rows, pairs[:, 1]], dim=1))


@torch.no_grad()
def rank_pairs(
    embeddings: Embeddings,
    masks: Sequence[torch.Tensor],
    methods: Sequence[str],
    progress: bool = False,
    **score_options: Any,
) -> list[Ranks]:
    """
    Rank every relevant pair of a benchmark by each method, under each mask, in both directions: from text to video
    clips for each query, from video to text queries for each clip that a query describes.

    Args:
        embeddings ([`Embeddings`]): queries, clips and which query describes which clip.
        masks (`Sequence[torch.BoolTensor]`, each of shape `(clips, M)`): the modalities that may be read of each clip.
            A clip with none left cannot be scored by any method and ranks last.
        methods (`Sequence[str]`): keys of `METHODS`, and modalities of the clips.
        progress (`bool`): show a bar with an estimate of the time left.
        score_options: of [`~scalar_retrieval.modeling_scalar.scores_scalar.retrieval_scores`].

    Returns:
        One `dict` per mask: `torch.LongTensor` of shape `(pairs,)` by method and direction, the rank of each pair as
        of [`~scalar_retrieval.eval.metrics.retrieval.ranking.relevant_ranks`].

    Raises:
        ValueError: a method is unknown or lacks what it needs, or an embedding that counts is not finite.
    """
    embeddings.check_finite()
    check_methods(methods, embeddings.modalities)
    pairs = embeddings.pairs

    # Masks that leave every clip the same modalities are scored once: low rates mask few clips, small galleries none.
    keys = []
    distinct = {}
    ranks: dict[bytes, Ranks] = {}
    for mask in masks:
        mask = mask & embeddings.modality_mask
        key = mask.numpy().tobytes()
        keys.append(key)
        distinct[key] = mask
        ranks[key] = {}
        for method in methods:
            ranks[key][method] = {name: torch.empty(len(pairs), dtype=torch.long) for name in DIRECTIONS}

    blocks = list(_blocks(len(embeddings.query_ids), len(embeddings.clip_ids)))
    total = len(methods) * len(distinct) * len(blocks)
    with tqdm(total=total, desc="scores", unit="matrix", disable=not progress) as bar:
        for queries, clips, block_directions in blocks:
            # The products of texts and clips are the costly part: computed once, for all masks and methods.
            start = torch.tensor([queries.start, clips.start])
            stop = torch.tensor([queries.stop, clips.stop])
            here = ((pairs >= start) & (pairs < stop)).all(dim=1)
            block_pairs = pairs[here] - start
            given = make_pairs(**embeddings.score_inputs(queries, clips), **score_options)
            dtype = given.text_embeds.dtype
            unmasked = given.exact
            similarities = torch.empty_like(unmasked.similarities)  # one for all masks: fresh memory is slow
            for key, mask in distinct.items():
                visible = mask[clips]  # (V, M)
                torch.mul(unmasked.similarities, visible.T.contiguous()[:, None], out=similarities)
                masked_clips = unmasked.clips.masked(visible)
                for method in methods:
                    # A directed method scores each direction by itself; the others share one matrix.
                    is_directed = find_method(method, embeddings.modalities).directed
                    scores = None
                    for direction in block_directions:
                        if is_directed or scores is None:
                            options = replace(unmasked.options, direction=direction)
                            masked = Pairs(unmasked.text_embeds, masked_clips, options, similarities)
                            # Scores in float64 are compared in float32: copies tie wherever in a block they are.
                            scores = masked.scores(method, dtype)
                        ranks[key][method][direction][here] = _ranks(scores, block_pairs, direction)
                    bar.update()
    return list(map(ranks.get, keys))


def relevant_weights(
    embeddings: Embeddings, modality_mask: torch.Tensor, query_temperature: float = 0.1, **score_options: Any
) -> torch.FloatTensor:
    """
    Weigh the modalities of each clip for a query that describes it (SCALAR Eq. 2), to see which modality decides.

    Args:
        embeddings ([`Embeddings`]): queries, clips and pairs.
        modality_mask (`torch.BoolTensor` of shape `(clips, M)`): modalities that may be read.
        query_temperature (`float`): tau_w of Eq. 2.
        score_options: options of [`~scalar_retrieval.modeling_scalar.scores_scalar.retrieval_scores`] that the weights
        depend on.

    Returns:
        `torch.FloatTensor` of shape `(pairs, M)`: sums to 1; 0 for absent modalities.
    """
    calibration = {name: value for name, value in score_options.items() if name in CALIBRATION}
    # A chunk at a time: the vectors of all pairs at once would be a copy of the clips for each caption.
    weights = []
    for chunk in embeddings.pairs.split(_CHUNK):
        queries, clips = chunk.unbind(1)
        weights_of_chunk = paired_weights(
            embeddings.text_embeds[queries],
            embeddings.modality_embeds[clips],
            modality_mask[clips],
            query_temperature=query_temperature,
            **calibration,
        )
        weights.append(weights_of_chunk)
    return torch.cat(weights)


def _rate_entry(
    embeddings: Embeddings,
    rate: float,
    modality_mask: torch.Tensor,
    ranks: Ranks,
    score_options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the results of one masking rate, in the format of result files."""
    names = embeddings.modalities

    # Metrics of each method in both directions.
    methods = {}
    recalls = {}
    for method, by_direction in ranks.items():
        entry = {}
        for direction, values in by_direction.items():
            metrics = retrieval_metrics(values, embeddings.pairs[:, DIRECTIONS.index(direction)])
            del metrics["num_queries"]
            entry |= {f"{direction}_{name}": value for name, value in metrics.items()}
        entry["num_unscorable_clips"] = (~_scorable(embeddings, modality_mask, method)).sum().item()
        methods[method] = entry
        recalls[method] = entry["text_to_video_recall_at_1"]

    # The aggregation gain: R@1 of a joint score minus that of the strongest single pathway, in points.
    singles = pathways(names)
    best = max(singles, key=recalls.__getitem__)
    gains = {}
    for name, recall in recalls.items():
        if name not in singles:
            gains[name] = recall - recalls[best]

    # Which modality decides, by the weights of relevant pairs (P, M).
    weights = relevant_weights(embeddings, modality_mask, **score_options)
    decided = weights.argmax(1).bincount(minlength=len(names))
    return {
        "rate": float(rate),
        "num_masked_clips": (modality_mask != embeddings.modality_mask).any(dim=1).sum().item(),
        "presence": dict(zip(names, modality_mask.sum(dim=0).tolist(), strict=True)),
        "methods": methods,
        "best_pathway": {"method": best, "text_to_video_recall_at_1": recalls[best]},
        "aggregation_gain": gains,
        "mean_weight": dict(zip(names, weights.double().mean(0).tolist(), strict=True)),
        "decided": dict(zip(names, decided.tolist(), strict=True)),
    }


def _at_rates(
    embeddings: Embeddings,
    rates: Sequence[float],
    masks: Sequence[torch.Tensor],
    ranks: Sequence[Ranks],
    score_options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the result of [`evaluate_embeddings`]."""
    entries = []
    for rate, mask, ranks_of_rate in zip(rates, masks, ranks, strict=True):
        entries.append(_rate_entry(embeddings, rate, mask, ranks_of_rate, score_options))
    return {
        "num_queries": len(embeddings.query_ids),
        "num_clips": len(embeddings.clip_ids),
        "num_pairs": len(embeddings.pairs),
        "mask_seed": MASK_SEED,
        "query_temperature": score_options.get("query_temperature", 0.1),
        "tie_rule": TIE_RULE,
        "rates": entries,
    }


def evaluate_embeddings(
    embeddings: Embeddings,
    methods: Sequence[str] | None = None,
    rates: Sequence[float] = RATES,
    progress: bool = False,
    **score_options: Any,
) -> dict[str, Any]:
    """
    Measure retrieval in both directions, first stage, by each method at each masking rate, on the same embeddings.

    The aggregation gain of a joint score is its text-to-video R@1 minus that of the strongest single pathway under the
    same masks (SCALAR, "Aggregation Gain"). The single pathways are therefore always measured, even if `methods` lacks
    them; of equally strong ones, the first in the order of modalities is named.

    Args:
        embeddings ([`Embeddings`]): queries, clips and which query describes which clip. Class labels
            as queries make video-to-text recall the accuracy of classification as retrieval.
        methods (`Sequence[str]`, *optional*): keys of `METHODS`, and modalities; by default [`measurable_methods`].
        rates (`Sequence[float]`): fractions of clips that lose one modality; 0 is the plain protocol.
        progress (`bool`): as in [`rank_pairs`].
        score_options: keyword arguments of `retrieval_scores`, which the methods that know them use.

    Returns:
        `dict`: `num_queries`, `num_clips`, `num_pairs`, `mask_seed`, `query_temperature`, `tie_rule`, and in `rates`
        one entry per rate: `rate`, `num_masked_clips` (how many lost a modality), `presence` (how many clips have each
        modality left), `methods` (name to `text_to_video_*` and `video_to_text_*` metrics and
        `num_unscorable_clips`), `best_pathway`, `aggregation_gain` (joint method to points of R@1), `mean_weight` (of
        each modality of the relevant clip under the scalar weights, over pairs; 0 where absent, so that all sum to 1)
        and `decided` (in how many pairs each modality has the largest weight).

    Raises:
        ValueError: a method is unknown or reads modalities that the clips do not have, a rate lies outside [0, 1], or
            an embedding that counts is not finite.
    """
    if methods is None:
        methods = measurable_methods(embeddings)
    methods = tuple(dict.fromkeys((*methods, *pathways(embeddings.modalities))))
    masks = rate_masks(embeddings.clip_ids, embeddings.modality_mask, rates)
    ranks = rank_pairs(embeddings, masks, methods, progress, **score_options)
    return _at_rates(embeddings, rates, masks, ranks, score_options)


def measure_first_stage(
    embeddings: Embeddings,
    method: str = "scalar",
    methods: Sequence[str] | None = None,
    rates: Sequence[float] = RATES,
    progress: bool = False,
    **score_options: Any,
) -> tuple[dict[str, Any], dict[str, list]]:
    """
    Measure the first stage completely: with every mask, with fixed sets of modalities, and query by query.

    Args:
        embeddings, rates, progress, score_options: as in [`evaluate_embeddings`].
        method (`str`): the model's own score, with which others are compared.
        methods (`Sequence[str]`, *optional*): further methods next to it; by default [`measurable_methods`].

    Returns:
        What [`evaluate_embeddings`] returns, with `ladder`, one entry for each set of
        [`~scalar_retrieval.eval.protocol.missing.ladder`] (SCALAR Table S5: a clip with no modality of the set ranks
        last, and `num_unscorable_clips` counts such clips); `differences` of [`recall_differences`] to the best
        pathway and some joint scores; and `kinds` of [`recalls_by_kind`] if queries have kinds. Also the table of
        [`queries_of`], which then has a column `kind`.

    Raises:
        ValueError: as in [`evaluate_embeddings`].
    """
    if methods is None:
        methods = measurable_methods(embeddings)
    singles = pathways(embeddings.modalities)
    methods = tuple(dict.fromkeys((method, *methods, *singles)))

    # All masks in one call: what they share is computed once.
    at_rates = rate_masks(embeddings.clip_ids, embeddings.modality_mask, rates)
    steps = ladder_masks(embeddings.modality_mask)
    ranks = rank_pairs(embeddings, [*at_rates, *steps], methods, progress, **score_options)
    ranks_of_steps = ranks[len(at_rates) :]
    measured = _at_rates(embeddings, rates, at_rates, ranks[: len(at_rates)], score_options)

    # The ladder of modality sets, for joint scores: a single pathway reads only its own modality.
    measured["ladder"] = []
    if not set(methods) <= set(singles):
        for modalities, mask, step_ranks in zip(ladder(embeddings.modalities), steps, ranks_of_steps, strict=True):
            measured["ladder"].append(_ladder_entry(embeddings, modalities, mask, step_ranks))

    # Query by query, on the ladder's last step, which masks nothing.
    queries = queries_of(embeddings, ranks_of_steps[-1], **score_options)
    best = max(singles, key=lambda name: queries[f"rank_{name}"].count(1))
    compared = [name for name in _COMPARED if name in methods]
    measured["differences"] = recall_differences(queries, method, [*compared, best])
    kinds = embeddings.kinds()
    if any(kinds):
        queries["kind"] = kinds
        measured["kinds"] = recalls_by_kind(queries, methods)
    return measured, queries


def _ladder_entry(
    embeddings: Embeddings, modalities: Sequence[str], modality_mask: torch.Tensor, ranks: Ranks
) -> dict[str, Any]:
    """Return R@1 of joint scores with one set of modalities for the whole gallery; `None` if a score is undefined for
    every clip, as areas are with the video alone."""
    singles = pathways(embeddings.modalities)
    recalls: dict[str, float | None] = {}
    for method, by_direction in ranks.items():
        if method in singles:
            continue
        recalls[method] = None
        if _scorable(embeddings, modality_mask, method).any():
            recalls[method] = retrieval_metrics(by_direction["text_to_video"], embeddings.pairs[:, 0])["recall_at_1"]
    lost = (~modality_mask.any(1)).sum().item()
    return {"modalities": list(modalities), "num_unscorable_clips": lost, "text_to_video_recall_at_1": recalls}


def queries_of(embeddings: Embeddings, ranks: Ranks, **score_options: Any) -> dict[str, list]:
    """
    List the result of each query with nothing masked: the rank of its clip and the deciding modality.

    Args:
        embeddings ([`Embeddings`]): queries and clips.
        ranks (`dict`): of [`rank_pairs`], with nothing masked.
        score_options: of [`relevant_weights`].

    Returns:
        `dict` of columns with one entry per query: `query_id`, `caption`, `clip_id` (the clip it describes, the
        first of several), `weight_<modality>` of each modality (of that clip for this query), `decided` (the modality
        of the largest weight), and `rank_<method>` (of the best-ranked clip that the query describes).
    """
    # The first pair of each query (Q,): of several clips that a query describes, the table has the first.
    queries = embeddings.pairs[:, 0]
    first = torch.full((len(embeddings.query_ids),), len(queries))
    first.scatter_reduce_(0, queries, torch.arange(len(queries)), "amin")
    names = embeddings.modalities
    weights = relevant_weights(embeddings, embeddings.modality_mask, **score_options)[first]  # (Q, M)

    table: dict[str, list] = {
        "query_id": embeddings.query_ids,
        "caption": embeddings.captions,
        "clip_id": [embeddings.clip_ids[row] for row in embeddings.pairs[first, 1].tolist()],
    }
    for name, column in zip(names, weights.T, strict=True):
        table[f"weight_{name}"] = column.tolist()
    table["decided"] = [names[index] for index in weights.argmax(1).tolist()]
    for method, by_direction in ranks.items():
        table[f"rank_{method}"] = first_ranks(by_direction["text_to_video"], queries).tolist()
    return table


def recall_differences(table: dict[str, list], method: str, baselines: Sequence[str]) -> list[dict[str, Any]]:
    """
    Compare the text-to-video R@1 of a method with that of others, query by query, by the paired bootstrap.

    Args:
        table (`dict`): of [`queries_of`].
        method (`str`), baselines (`Sequence[str]`): measured methods.

    Returns:
        `list[dict]`: `method`, `baseline` and what [`~scalar_retrieval.eval.protocol.statistics.paired_bootstrap`]
        gives, in points of R@1.
    """
    # Each query counts 100 if a relevant clip is first and 0 otherwise, so that their mean is R@1 in percent.
    own = 100.0 * np.equal(table[f"rank_{method}"], 1)
    differences = []
    for baseline in baselines:
        if baseline != method:
            other = 100.0 * np.equal(table[f"rank_{baseline}"], 1)
            differences.append({"method": method, "baseline": baseline, **paired_bootstrap(own, other)})
    return differences


def recalls_by_kind(table: dict[str, list], methods: Sequence[str]) -> list[dict[str, Any]]:
    """
    Measure text-to-video R@1 with nothing masked for each kind of query, in the gallery of all clips.

    Args:
        table (`dict`): of [`queries_of`], with a column `kind`; queries whose kind is `None` are left out.
        methods (`Sequence[str]`): measured methods.

    Returns:
        `list[dict]`, sorted by kind: `kind`, `num_queries` and `text_to_video_recall_at_1`, a `dict` from method to
        percent.
    """
    # Queries of a kind among all clips, which are the same for every kind.
    entries = []
    for kind in sorted({*table["kind"]} - {None}):
        rows = [row for row, name in enumerate(table["kind"]) if name == kind]
        recalls = {}
        for name in methods:
            num_first = np.equal(table[f"rank_{name}"], 1)[rows].sum().item()
            recalls[name] = 100 * num_first / len(rows)
        entries.append({"kind": kind, "num_queries": len(rows), "text_to_video_recall_at_1": recalls})
    return entries


__all__ = [
    "TIE_RULE",
    "Ranks",
    "check_methods",
    "evaluate_embeddings",
    "measurable_methods",
    "measure_first_stage",
    "pathways",
    "queries_of",
    "rank_pairs",
    "recall_differences",
    "recalls_by_kind",
    "relevant_weights",
]
