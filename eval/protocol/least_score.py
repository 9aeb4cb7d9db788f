"""Below which score the best hit of a query says that nothing in the gallery matches well.

Queries of which it is known what they describe tell both what the best hit of a query scores that something answers,
and what it scores where nothing does: the best score among the other clips is that of the gallery without what the
query describes. The rule is one-sided: of queries that something answers, at most one in twenty is told that nothing
matches. So the least score is a low quantile of their best scores, corrected for their number as in conformal
prediction, which asks nothing of how scores are spread. The score at which both kinds are as likely would weigh the
two errors alike; but to be told that nothing matches, above a clip that does, is worse than not to be told at all.

A best score only rises as clips are added, so the rule holds in a larger gallery too, where less is told, rightly and
wrongly. In a smaller one more is: wrongly of at most as large a further share of queries as clips were taken away.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from eval.embedding.embeddings import Embeddings
from eval.protocol.calibration import by_group, deal
from eval.protocol.statistics import paired_bootstrap
from modeling_scalar.scores_scalar import retrieval_scores

_MOST = 0.05  # of the queries that something answers, those that are told that nothing matches
_AT_ONCE = 2**24  # scores


@dataclass(frozen=True)
class LeastScore:
    """
    What the best hit of a query must score to match well, and how well that tells queries apart.

    Args:
        score (`float`, *optional*): `None` where there are too few queries, less than 19 of different clips.
        answered, unanswered (`float`): in percent, the held-out queries that are told that nothing matches, with the
            clips that they describe and without these.
        difference, low, high, confidence (`float`): of the second minus the first, see
            [`~eval.protocol.statistics.paired_bootstrap`], which draws clips.
        num_clips (`int`): among so many.
        modalities (`list[str]`): what of them was looked at.
    """

    score: float | None
    answered: float
    unanswered: float
    difference: float
    low: float
    high: float
    confidence: float
    num_clips: int
    modalities: list[str]

    @property
    def is_certain(self) -> bool:
        """Whether the interval of the difference lies above zero."""
        return self.score is not None and self.low > 0


def best_scores(embeddings: Embeddings, options: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return of each query the best score of all clips, and of those that it does not describe, both (Q,)."""
    there = embeddings.modality_mask.any(dim=1)
    columns = there.cumsum(dim=0) - 1
    queries, clips = embeddings.pairs[there[embeddings.pairs[:, 1]]].unbind(dim=1)
    about = embeddings.modality_embeds[there].double(), embeddings.modality_mask[there]
    every, other = [], []
    size = max(1, _AT_ONCE // len(about[1]))
    for start in range(0, len(embeddings.query_ids), size):
        texts = embeddings.text_embeds[start : start + size].double()
        scores = retrieval_scores(texts, *about, modalities=embeddings.modalities, **options)
        every.append(scores.amax(dim=1))
        here = (queries >= start) & (queries < start + size)
        scores[queries[here] - start, columns[clips[here]]] = -math.inf
        other.append(scores.amax(dim=1))
    return torch.cat(every).numpy(), torch.cat(other).numpy()


def least_score_of(best: np.ndarray, groups: np.ndarray) -> float:
    """
    Return the highest score below which the best hit of a new query lies with a probability of at most 5 %.

    With G groups of queries, each of the same weight in all, and the new query as one more that may lie anywhere, that
    is the highest of the scores with at most 0.05 (G + 1) - 1 groups below it: of hierarchical conformal prediction.

    Args:
        best (`np.ndarray` of shape `(Q,)`): the best scores of queries.
        groups (`np.ndarray` of shape `(Q,)`): which of them belong together.

    Returns:
        `float`: -inf for less than 19 groups.
    """
    _, places, counts = np.unique(groups, return_inverse=True, return_counts=True)
    order = best.argsort(kind="stable")
    weights = 1 / counts[places][order]
    below = weights.cumsum() - weights
    place = np.searchsorted(below, _MOST * (len(counts) + 1) - 1 + 1e-9, side="right") - 1
    return -math.inf if place < 0 else float(best[order[place]])


def fit_least_score(
    embeddings: Embeddings,
    options: Mapping[str, Any],
    fold_options: Sequence[Mapping[str, Any]],
    modalities: Sequence[str],
    seed: int = 0,
) -> LeastScore:
    """
    Fit what the best hit of a query must score, and measure by cross-fitting what that tells.

    Args:
        embeddings ([`Embeddings`]): queries, clips and pairs.
        options (`dict`), fold_options (list of `dict`): how the gallery is scored, and how queries of each fold are,
            as [`~eval.protocol.calibration.calibrate_embeddings`] fits it to the others.
        modalities (`Sequence[str]`): what is looked at.
        seed (`int`): of the folds and the interval, the same as there.

    Returns:
        [`LeastScore`].
    """
    groups, folds, _ = deal(embeddings, len(fold_options), np.random.default_rng(seed))
    told, found, last = np.zeros((2, len(groups))), None, None
    for fold, chosen in enumerate([*fold_options, options]):  # without any of them in the end
        if found is None or chosen != last:
            found, last = best_scores(embeddings, chosen), chosen
        is_held_out = folds == fold
        score = least_score_of(found[0][~is_held_out], groups[~is_held_out])
        for kind, scores in enumerate(found):
            told[kind, is_held_out] = 100.0 * (scores[is_held_out] < score)
    answered, unanswered = (by_group(values, groups) for values in told)
    score = None if score == -math.inf else float(np.float32(score))  # as hits have it
    about = {"num_clips": len(embeddings.clip_ids), "modalities": list(modalities)}
    interval = paired_bootstrap(unanswered, answered, seed=seed)
    return LeastScore(score, float(answered.mean()), float(unanswered.mean()), **interval, **about)


def format_least_score(found: LeastScore, is_kept: bool) -> list[str]:
    """Lay out what was found in lines."""
    if found.score is None:
        return ["", "Of less than 19 clips with queries of their own it cannot be told which scores are too low."]
    told = f"{found.unanswered:.1f} % of queries without a relevant clip, {found.answered:.1f} % of those with one"
    bounds = f"{100 * found.confidence:g} % interval {found.low:+.1f} to {found.high:+.1f}"
    looked_at = f"{found.num_clips} clips, by {', '.join(found.modalities)}"
    lines = ["", f"least score of a match: {found.score:.4g}, among {looked_at}"]
    lines.append(
        f"held out, would be told that nothing matches well: {told} (difference {found.difference:+.1f}, {bounds})"
    )
    if not found.is_certain:
        return [*lines, "The interval includes zero: no search is told so."]
    return lines if is_kept else [*lines, "--write keeps it in the gallery: searches that find less say so."]


__all__ = ["LeastScore", "best_scores", "fit_least_score", "format_least_score", "least_score_of"]
