"""From embeddings to ranks, metrics and the aggregation gain (SCALAR Tables 3, 4 and S3).

Ties count against the method: a score that cannot tell clips apart ranks last, never first. Scores are made in blocks
of queries, so nothing larger than a block of queries by clips is held.

Shape letters: Q queries, V clips.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from eval.embeddings import Embeddings
from eval.missing import mask_modalities
from modeling_scalar.aggregation_scalar import query_weights, retrieval_scores
from modeling_scalar.configuration_scalar import MODALITIES

DEFAULT_METHODS = ("scalar", "uniform", *MODALITIES)
"""What is measured unless asked otherwise: ours, its control without query conditioning, and the single pathways."""


def retrieval_ranks(scores: torch.Tensor, targets: torch.Tensor) -> torch.LongTensor:
    """
    Rank the right clip of each query: 1 + the number of other clips that score at least as high.

    Args:
        scores (`torch.Tensor` of shape `(queries, clips)`): higher is better; `-inf` for a clip that a method cannot
            score. A right clip at `-inf` ranks last, since every clip ties with it or beats it.
        targets (`torch.LongTensor` of shape `(queries,)`): column of the right clip of each query.

    Returns:
        `torch.LongTensor` of shape `(queries,)`: ranks from 1 (best) to the number of clips.

    Raises:
        ValueError: shapes do not fit, a target is not a column, or a row of scores contains NaN.
    """
    if scores.ndim != 2 or targets.shape != scores.shape[:1]:
        raise ValueError(
            "Expected `scores` (queries, clips) and one target per query, got "
            f"{tuple(scores.shape)} and {tuple(targets.shape)}."
        )
    outside = ((targets < 0) | (targets >= scores.shape[1])).nonzero().flatten().tolist()
    if outside:
        raise ValueError(f"`targets` must be columns of `scores`, below {scores.shape[1]}; rows {outside} are not.")
    undefined = scores.isnan().any(dim=1).nonzero().flatten().tolist()
    if undefined:
        raise ValueError(
            f"`scores` has NaN in query rows {undefined}: a NaN has no rank. Give a clip that cannot be scored -inf."
        )
    target_scores = scores.gather(1, targets[:, None])
    return (scores >= target_scores).sum(dim=1)  # counts the right clip itself: the 1 of the definition


def retrieval_metrics(ranks: torch.Tensor) -> dict[str, float | int]:
    """
    Summarise ranks.

    Args:
        ranks (`torch.LongTensor` of shape `(queries,)`): ranks from 1, as of [`retrieval_ranks`].

    Returns:
        `dict`: `recall_at_1`, `recall_at_5`, `recall_at_10` in percent (0 to 100), `median_rank` (the mean of the
        middle two for an even number), `mean_rank` and `num_queries`. In a gallery of k clips or fewer the recall at k
        is 100.

    Raises:
        ValueError: there are no ranks, or one is below 1.
    """
    if ranks.numel() == 0 or ranks.min() < 1:
        raise ValueError(f"Expected at least one rank, counted from 1; got {ranks.tolist()[:10]}.")
    ordered = ranks.double().sort().values
    middle = ordered[[(len(ordered) - 1) // 2, len(ordered) // 2]]
    recalls = {f"recall_at_{k}": 100 * (ordered <= k).double().mean().item() for k in (1, 5, 10)}
    return recalls | {
        "median_rank": middle.mean().item(),
        "mean_rank": ordered.mean().item(),
        "num_queries": len(ordered),
    }


def _blocks(num_queries: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, num_queries, size))


def _all_ranks(
    embeddings: Embeddings, modality_mask: torch.Tensor, method: str, block_size: int, score_options: dict[str, Any]
) -> torch.LongTensor:
    ranks = []
    for block in _blocks(len(embeddings.targets), block_size):
        scores = retrieval_scores(
            embeddings.text_embeds[block],
            embeddings.modality_embeds,
            modality_mask,
            method=method,
            **score_options,
        )  # (block, V)
        ranks.append(retrieval_ranks(scores, embeddings.targets[block]))
    return torch.cat(ranks)


def _mean_weights(
    embeddings: Embeddings, modality_mask: torch.Tensor, query_temperature: float, block_size: int
) -> dict[str, float]:
    total = torch.zeros(len(MODALITIES), dtype=torch.float64)
    for block in _blocks(len(embeddings.targets), block_size):
        clips = embeddings.targets[block]
        weights = query_weights(
            embeddings.text_embeds[block],
            embeddings.modality_embeds[clips],
            modality_mask[clips],
            query_temperature=query_temperature,
        )  # (block, block, 3): the diagonal pairs each query with its own clip
        total += weights.diagonal(dim1=0, dim2=1).sum(dim=1).double().cpu()
    return dict(zip(MODALITIES, (total / len(embeddings.targets)).tolist(), strict=True))


def _evaluate_rate(
    embeddings: Embeddings,
    methods: Sequence[str],
    rate: float,
    mask_seed: int,
    query_temperature: float,
    block_size: int,
    score_options: dict[str, Any],
) -> dict[str, Any]:
    modality_mask = mask_modalities(embeddings.clip_ids, embeddings.modality_mask, rate, mask_seed)
    figures = {}
    score_options = score_options | {"query_temperature": query_temperature}
    for method in methods:
        metrics = retrieval_metrics(_all_ranks(embeddings, modality_mask, method, block_size, score_options))
        del metrics["num_queries"]
        figures[method] = {f"text_to_video_{name}": value for name, value in metrics.items()}
    recalls = {method: figures[method]["text_to_video_recall_at_1"] for method in methods}
    best = max(MODALITIES, key=recalls.__getitem__)
    return {
        "rate": rate,
        "num_masked_clips": (modality_mask != embeddings.modality_mask).any(dim=1).sum().item(),
        "presence": dict(zip(MODALITIES, modality_mask.sum(dim=0).tolist(), strict=True)),
        "methods": figures,
        "best_pathway": {"method": best, "text_to_video_recall_at_1": recalls[best]},
        "aggregation_gain": {name: recalls[name] - recalls[best] for name in methods if name not in MODALITIES},
        "mean_weight": _mean_weights(embeddings, modality_mask, query_temperature, block_size),
    }


@torch.no_grad()
def evaluate_embeddings(
    embeddings: Embeddings,
    methods: Sequence[str] = DEFAULT_METHODS,
    rates: Sequence[float] = (0.0, 0.5),
    mask_seed: int = 0,
    query_temperature: float = 0.1,
    block_size: int = 256,
    **score_options: Any,
) -> dict[str, Any]:
    """
    Measure text-to-video retrieval, first stage, for each method at each masking rate, all on the same embeddings.

    The aggregation gain of a joint score is its R@1 minus that of the strongest single pathway under the same masks
    (SCALAR, "Aggregation Gain"). The single pathways are therefore always measured, in `methods` or not; of two
    equally strong ones the first in the order of `MODALITIES` is named.

    Args:
        embeddings ([`~eval.embeddings.Embeddings`]): queries, clips and which clip each query describes.
        methods (`Sequence[str]`): names known to `retrieval_scores`.
        rates (`Sequence[float]`): fractions of clips that lose one modality; 0 is the plain protocol.
        mask_seed (`int`): seed of the masks.
        query_temperature (`float`): temperature of the query weights, tau_w of SCALAR Eq. 2.
        block_size (`int`): queries scored at once. Changes memory, not results.
        score_options: further keyword arguments of `retrieval_scores`, which the methods that know them use.

    Returns:
        `dict`: `num_queries`, `num_clips`, `mask_seed`, `query_temperature`, and in `rates` one entry per rate:
        `rate`, `num_masked_clips` (how many lost a modality), `presence` (how many clips have each modality left),
        `methods` (name to `text_to_video_*` metrics), `best_pathway`, `aggregation_gain` (joint method to points of
        R@1) and `mean_weight` (of each modality of the right clip under the scalar weights, over queries; 0 where
        absent, so the three sum to 1).

    Raises:
        ValueError: a method is unknown, a rate lies outside [0, 1], or an embedding that counts is not finite.
    """
    methods = tuple(dict.fromkeys((*methods, *MODALITIES)))
    if not rates:
        raise ValueError("`rates` is empty; expected at least one masking rate, 0 for the plain protocol.")
    if block_size < 1:
        raise ValueError(f"`block_size` must be at least 1, got {block_size}.")
    embeddings.check_finite()
    return {
        "num_queries": len(embeddings.targets),
        "num_clips": len(embeddings.clip_ids),
        "mask_seed": mask_seed,
        "query_temperature": query_temperature,
        "rates": [
            _evaluate_rate(embeddings, methods, float(rate), mask_seed, query_temperature, block_size, score_options)
            for rate in rates
        ],
    }


__all__ = ["DEFAULT_METHODS", "evaluate_embeddings", "retrieval_metrics", "retrieval_ranks"]
