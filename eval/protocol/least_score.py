"""The least score of a match: if the best hit of a query scores less, nothing in the gallery matches well.

- It is fitted to queries whose relevant clips are known. Their best score among all clips is that of a query with an
  answer; their best score among the other clips is that of a query without one.
- The rule is one-sided: of queries with an answer, at most one in twenty is reported as without a match. The least
  score is therefore a low quantile of their best scores, corrected for their number as in conformal prediction, which
  assumes nothing about the distribution of scores. A threshold that weighs both errors alike was not chosen, because
  a wrong "nothing matches" is worse than none.
- A best score only rises as clips are added, so the rule holds in a larger gallery too, where fewer queries are
  reported, rightly or wrongly. In a smaller one, the share reported wrongly grows by at most the share of clips lost.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from scalar_retrieval.gallery.own_queries import least_score_of
from scalar_retrieval.modeling_scalar.scores_scalar import retrieval_scores

from ..embedding.embeddings import Embeddings
from .folds import SEED, by_group, deal
from .statistics import paired_bootstrap

_AT_ONCE = 2**24  # scores


@dataclass(frozen=True)
class LeastScore:
    """
    The score that the best hit of a query must reach, and how well it distinguishes queries with and without a match.

    Args:
        score (`float`, *optional*): `None` if there are too few queries: fewer than 19 of different clips.
        answered, unanswered (`float`): percentage of held-out queries reported as without a match, with the clips that
            they describe in the gallery and without them.
        difference, low, high, confidence (`float`): of the second minus the first, see
            [`~scalar_retrieval.eval.protocol.statistics.paired_bootstrap`], which resamples clips.
        num_clips (`int`): size of the gallery.
        modalities (`list[str]`): modalities that are scored.
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
        """Whether the interval of the difference is above zero."""
        return self.score is not None and self.low > 0


def best_scores(embeddings: Embeddings, options: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return each query's best score of all clips, and of the clips that it does not describe, both (Q,)."""
    # Clips without any modality have no score; `columns` counts the others.
    has_some = embeddings.modality_mask.any(dim=1)
    columns = has_some.cumsum(dim=0) - 1
    queries, clips = embeddings.pairs[has_some[embeddings.pairs[:, 1]]].unbind(dim=1)
    embeds = embeddings.modality_embeds[has_some].double()
    mask = embeddings.modality_mask[has_some]

    best_of_all = []
    best_of_others = []
    size = max(1, _AT_ONCE // len(mask))
    for start in range(0, len(embeddings.query_ids), size):
        texts = embeddings.text_embeds[start : start + size].double()
        scores = retrieval_scores(texts, embeds, mask, modalities=embeddings.modalities, **options)  # (Q, V)
        best_of_all.append(scores.amax(dim=1))
        here = (queries >= start) & (queries < start + size)
        scores[queries[here] - start, columns[clips[here]]] = -math.inf
        best_of_others.append(scores.amax(dim=1))
    return torch.cat(best_of_all).numpy(), torch.cat(best_of_others).numpy()


def fit_least_score(
    embeddings: Embeddings,
    options: Mapping[str, Any],
    fold_options: Sequence[Mapping[str, Any]],
) -> LeastScore:
    """
    Fit the least score, and measure by cross-fitting how well it distinguishes queries with and without a match.

    Args:
        embeddings ([`Embeddings`]): queries, clips and pairs.
        options (`dict`), fold_options (list of `dict`): how the gallery is scored, and how the queries of each fold
            are, as [`~scalar_retrieval.eval.protocol.calibration.calibrate_embeddings`] fits it to the other folds.

    Returns:
        [`LeastScore`].
    """
    # Each fold's queries are judged by the score fitted to the others; row 0 with their clips, row 1 without them.
    groups, folds, _ = deal(embeddings, len(fold_options), np.random.default_rng(SEED))
    reported = np.zeros((2, len(groups)))
    best = None
    last_options = None
    for fold, options_of_fold in enumerate([*fold_options, options]):  # the last one leaves no query out
        if best is None or options_of_fold != last_options:
            best = best_scores(embeddings, options_of_fold)
            last_options = options_of_fold
        is_held_out = folds == fold
        score = least_score_of(best[0][~is_held_out], groups[~is_held_out])
        for row, scores in enumerate(best):
            reported[row, is_held_out] = 100.0 * (scores[is_held_out] < score)

    # In percent of the queries of a clip, averaged over clips.
    answered = by_group(reported[0], groups)
    unanswered = by_group(reported[1], groups)
    interval = paired_bootstrap(unanswered, answered)
    least = None
    if math.isfinite(score):
        least = float(np.float32(score))  # in the precision of hits
    return LeastScore(
        score=least,
        answered=float(answered.mean()),
        unanswered=float(unanswered.mean()),
        **interval,
        num_clips=len(embeddings.clip_ids),
        modalities=list(embeddings.modalities),
    )


def format_least_score(least: LeastScore) -> list[str]:
    """Format the result as lines."""
    if least.score is None:
        return ["", "Fewer than 19 clips have queries of their own: too few to fit the least score of a match."]
    # Lines for people: the score, what it achieves, whether it is used.
    reported = f"{least.unanswered:.1f} % of queries without a relevant clip, {least.answered:.1f} % of those with one"
    bounds = f"{100 * least.confidence:g} % interval {least.low:+.1f} to {least.high:+.1f}"
    searched = f"{least.num_clips} clips, by {', '.join(least.modalities)}"
    lines = ["", f"least score of a match: {least.score:.4g}, among {searched}"]
    lines.append(f"held out, reported as without a match: {reported} (difference {least.difference:+.1f}, {bounds})")
    if not least.is_certain:
        lines.append("The interval includes zero: searches will not use the least score.")
    return lines


__all__ = ["LeastScore", "best_scores", "fit_least_score", "format_least_score"]
