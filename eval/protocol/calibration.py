"""Calibration: fits the query temperature of SCALAR's score, and the scale and offset of each modality's cosines.

The fit uses queries whose relevant clips are known. It maximises the likelihood of the described clip among all clips,
and of a describing query among all queries: InfoNCE over scores in both directions, with a fitted contrastive
temperature. Recall is what counts, but it is a staircase: with a few hundred queries, a search would follow the noise
of single ranks. The likelihood sees every rank and does not depend on the scale of the scores. The gain is measured in
both directions, on clips that were not part of the fit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS, WEIGHING, Pairs, make_pairs

from ..embedding.embeddings import Embeddings
from ..metrics.retrieval.ranking import first_ranks
from .first_stage import rank_pairs
from .folds import SEED, by_group, deal, groups_of
from .least_score import LeastScore
from .statistics import paired_bootstrap

_AT_ONCE = 1024  # most queries, and clips, of one fit
# Temperature of the likelihood: default and bounds.
_CONTRASTIVE = 0.05
_LEAST = 0.005
_MOST = 50.0
_FARTHEST = 7.0  # bound of offsets and logarithms of scales: a first step of the search can go too far
# Widths of the normal priors, together worth about one query: where the queries say little, the defaults stay.
_LOG_NUMBER = 3.0
_LOG_SCALE = 1.0
_OFFSET = 0.5
_STEPS = 60  # most steps of the search
_FLAT = 1e-5  # slope at which it ends
_DIGITS = 3  # significant digits of the fit

_KINDS = ("recall_at_1", "mean_reciprocal_rank")
MEASURES = {
    "text_to_video_recall_at_1": "R@1, text to video",
    "video_to_text_recall_at_1": "R@1, video to text",
    "recall_at_1": "R@1, mean of both",
    "text_to_video_mean_reciprocal_rank": "MRR, text to video",
    "video_to_text_mean_reciprocal_rank": "MRR, video to text",
    "mean_reciprocal_rank": "MRR, mean of both",
}
"""What is measured, in percent, with its title in tables."""


@dataclass(frozen=True)
class Calibration:
    """
    The result of a fit, and its gain on clips that were not part of it.

    Args:
        before, after (`dict`): keyword arguments of `retrieval_scores`, before the fit and fitted to all queries.
        folds (`list[dict]`): fits without the clips of one fold each.
        measures (`dict`): for each of [`MEASURES`] `before` and `after`, in percent and over held-out queries, and
            `difference`, `low`, `high` and `confidence` of
            [`~scalar_retrieval.eval.protocol.statistics.paired_bootstrap`], which resamples clips.
        num_queries, num_clips (`int`): numbers of queries and clips.
        modalities (`tuple[str, ...]`): modalities of scales and offsets, in their order.
        least_score ([`~scalar_retrieval.eval.protocol.least_score.LeastScore`], *optional*): score that a query's best
            hit must reach.
    """

    before: dict[str, Any]
    after: dict[str, Any]
    folds: list[dict[str, Any]]
    measures: dict[str, dict[str, float]]
    num_queries: int
    num_clips: int
    modalities: tuple[str, ...]
    least_score: LeastScore | None = None

    @property
    def is_better(self) -> bool:
        """Whether the interval of the gain in mean reciprocal rank, the mean of both directions, is above zero."""
        return self.measures["mean_reciprocal_rank"]["low"] > 0


# Fitting -------------------------------------------------------------------------------------------------------------


class Likelihood:
    """
    Minus the mean log-likelihood of what queries describe, and of what describes clips, with the priors, as a function
    of the parameters: the logarithms of a number of the score and of the contrastive temperature and, if they are
    fitted, of the scales of the modalities, then their offsets. The score is SCALAR's; a subclass may fit another.

    Args:
        embeddings ([`Embeddings`]): queries, clips and pairs. All of them are scored at once.
        options (`dict`): keyword arguments of `retrieval_scores` that are not fitted.
    """

    number = "query_temperature"
    """The score's own number."""
    usual = 0.1
    """Its default."""
    starts = (0.03, 0.1, 0.5)
    """Where searches start: the likelihood can have several optima."""
    bounds = (0.005, 50.0)
    """Beyond them one modality counts alone, or all count alike."""

    def __init__(self, embeddings: Embeddings, options: Mapping[str, Any]):
        # Products of texts and clips (M, Q, V), in float64, are computed once for the whole search.
        given = make_pairs(
            embeddings.text_embeds.double(),
            embeddings.modality_embeds.double(),
            embeddings.modality_mask,
            modalities=embeddings.modalities,
            **options,
        )
        self.pairs = Pairs(given.text_embeds, given.clips, given.options, given.similarities)
        self.is_match = torch.zeros(len(embeddings.query_ids), len(embeddings.clip_ids), dtype=torch.bool)
        self.is_match[embeddings.pairs[:, 0], embeddings.pairs[:, 1]] = True

    def options(self, parameters: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the parameters as options of the score."""
        options = {self.number: parameters[0].clamp(*map(math.log, self.bounds)).exp()}
        rest = parameters[2:].clamp(-_FARTHEST, _FARTHEST)
        if len(rest):
            log_scale, offset = rest.chunk(2)
            options["modality_scale"] = log_scale.exp()
            options["modality_offset"] = offset
        return options

    def with_options(self, **options: Any) -> Pairs:
        """Return the pairs with some options of their score replaced."""
        pairs = self.pairs
        return Pairs(pairs.text_embeds, pairs.clips, replace(pairs.options, **options), pairs.similarities)

    def scores(self, parameters: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the scores `(Q, V)` that rank clips, and those that rank texts."""
        scores = self.with_options(**self.options(parameters)).scores("scalar")
        return scores, scores

    def __call__(self, parameters: torch.Tensor) -> torch.Tensor:
        # InfoNCE in both directions: of all candidates, minus the log of the share of the relevant ones.
        contrastive = parameters[1].clamp(math.log(_LEAST), math.log(_MOST)).exp()
        losses = []
        for dim, scores in zip((1, 0), self.scores(parameters), strict=True):
            logits = scores / contrastive  # (Q, V)
            losses.append(logits.logsumexp(dim) - logits.masked_fill(~self.is_match, -math.inf).logsumexp(dim))
        to_clips = losses[0].mean()
        to_texts = losses[1][self.is_match.any(0)].mean()  # clips without queries rank nothing

        # Normal priors around the defaults.
        usual = parameters.new_tensor([self.usual, _CONTRASTIVE]).log()
        prior = (parameters[:2] - usual).square().sum() / _LOG_NUMBER**2
        rest = parameters[2:]
        if len(rest):
            log_scale, offset = rest.chunk(2)
            prior = prior + log_scale.square().sum() / _LOG_SCALE**2 + offset.square().sum() / _OFFSET**2
        return (to_clips + to_texts + prior / len(self.is_match)) / 2

    def minimum(self, start: torch.Tensor) -> tuple[float, torch.Tensor]:
        """Return the lowest value found from a start, and its parameters."""
        # L-BFGS on all queries at once: few parameters, and a smooth function.
        parameters = start.clone().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [parameters], max_iter=_STEPS, tolerance_grad=_FLAT, line_search_fn="strong_wolfe"
        )

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            value = self(parameters)
            value.backward()
            return value

        with torch.enable_grad():
            optimizer.step(closure)
        with torch.no_grad():
            return self(parameters).item(), parameters.detach()

    def fit(self, scale_offset: bool, begin: float = 0.0) -> dict[str, Any]:
        """Return the options with the lowest value: the score's own number, then, optionally, scales and offsets,
        whose search starts at `begin`."""
        # The lowest of the optima that the starts lead to.
        starts = [torch.tensor([start, _CONTRASTIVE], dtype=torch.float64).log() for start in self.starts]
        best = starts[0]
        if len(starts) > 1:  # a score without a number of its own has nothing to choose
            _, best = min(map(self.minimum, starts), key=lambda minimum: minimum[0])

        # From there, all parameters together.
        if scale_offset:
            rest = best.new_full((2 * len(self.pairs.clips.modalities),), begin)
            _, best = self.minimum(torch.cat([best, rest]))
        with torch.no_grad():
            options = self.options(best)
        rounded = {}
        for name, value in options.items():
            numbers = [float(f"{number:.{_DIGITS}g}") for number in value.flatten().tolist()]
            rounded[name] = numbers[0] if not value.ndim else numbers
        return rounded


def fit(embeddings: Embeddings, before: Mapping[str, Any], scale_offset: bool = False) -> dict[str, Any]:
    """
    Fit the numbers of SCALAR's score to all queries.

    Args:
        embeddings ([`Embeddings`]): queries, clips and pairs. All of them are scored at once.
        before (`dict`): current options: `query_temperature`, `modality_scale` and `modality_offset`, if there are
            any; others are ignored.
        scale_offset (`bool`): also fit scales and offsets, instead of those in `before`.

    Returns:
        `dict`: these options, with the fitted ones. Scales and offsets of modalities that no clip has stay 1 and 0.
    """
    options = {name: value for name, value in before.items() if name in WEIGHING}
    return options | Likelihood(embeddings, options).fit(scale_offset)


# Measuring -----------------------------------------------------------------------------------------------------------


def _sample(
    embeddings: Embeddings, queries: np.ndarray, clips: np.ndarray, generator: np.random.Generator
) -> Embeddings:
    """Sample queries and clips for one fit; the clips that a sampled query describes are always among them."""
    if len(queries) > _AT_ONCE:
        queries = np.sort(generator.choice(queries, _AT_ONCE, replace=False))

    # All clips that these queries describe, and others as far as there is room.
    pairs = embeddings.pairs[torch.isin(embeddings.pairs[:, 0], torch.from_numpy(queries))].numpy()
    described = np.intersect1d(pairs[:, 1], clips)
    others = np.setdiff1d(clips, described)
    room = max(0, _AT_ONCE - len(described))
    if len(others) > room:
        others = generator.choice(others, room, replace=False)
    clips = np.sort(np.concatenate([described, others]))

    # Pairs by the places of the sampled rows, (P, 2).
    pairs = pairs[np.isin(pairs[:, 1], clips)]
    places = np.stack([np.searchsorted(queries, pairs[:, 0]), np.searchsorted(clips, pairs[:, 1])], axis=1)
    return replace(
        embeddings,
        text_embeds=embeddings.text_embeds[queries],
        modality_embeds=embeddings.modality_embeds[clips],
        modality_mask=embeddings.modality_mask[clips],
        pairs=torch.from_numpy(places),
        clip_ids=[embeddings.clip_ids[row] for row in clips],
        query_ids=[embeddings.query_ids[row] for row in queries],
        captions=[embeddings.captions[row] for row in queries],
        concat_embeds=None,
    )


def _by_group(
    embeddings: Embeddings, groups: Sequence[np.ndarray], options: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return the measures of each group, in percent: its queries among all clips, and its clips among all queries."""
    # Each direction by the best rank of a query, or of a clip; then the mean of both.
    (ranks,) = rank_pairs(embeddings, [embeddings.modality_mask], ["scalar"], **options)
    measures = {}
    for column, (direction, own) in enumerate(zip(DIRECTIONS, groups, strict=True)):
        first = first_ranks(ranks["scalar"][direction], embeddings.pairs[:, column]).double().numpy()
        measures[f"{direction}_recall_at_1"] = by_group(100.0 * (first == 1), own)
        measures[f"{direction}_mean_reciprocal_rank"] = by_group(100.0 / first, own)
    for kind in _KINDS:
        measures[kind] = (measures[f"text_to_video_{kind}"] + measures[f"video_to_text_{kind}"]) / 2
    return measures


def calibrate_embeddings(
    embeddings: Embeddings,
    before: Mapping[str, Any],
    scale_offset: bool = False,
    num_folds: int = 5,
) -> Calibration:
    """
    Fit the numbers of SCALAR's score, and measure the gain by cross-fitting.

    Clips are dealt into folds by [`deal`]. Queries of a fold rank all clips, and its clips rank all queries, with the
    fit to queries and clips of the other folds; clips that nothing describes are part of every fit. The result is the
    fit to all queries.

    Args:
        embeddings ([`Embeddings`]), before (`dict`), scale_offset (`bool`): as in [`fit`]. Of more than 1,024 queries
            or clips, each fit uses that many, drawn at random.
        num_folds (`int`): number of folds, at least 2.

    Returns:
        [`Calibration`].

    Raises:
        ValueError: there are fewer than two groups of clips for a fold, or an embedding that counts is not finite.
    """
    embeddings.check_finite()
    # Folds of connected queries and clips: no clip of a held-out query is part of its fit.
    generator = np.random.default_rng(SEED)
    of_queries, query_folds, clip_folds = deal(embeddings, num_folds, generator)
    _, of_clips = groups_of(embeddings)
    before = {name: value for name, value in before.items() if name in WEIGHING}

    def fit_without(fold: int | None) -> dict[str, Any]:
        queries = np.flatnonzero(query_folds != fold)
        clips = np.flatnonzero(clip_folds != fold)
        return fit(_sample(embeddings, queries, clips, generator), before, scale_offset)

    # Each group is measured with the fit that did not include it.
    folds = list(map(fit_without, range(num_folds)))
    groups = of_queries, of_clips[of_clips >= 0]
    old = _by_group(embeddings, groups, before)
    parts = [_by_group(embeddings, groups, options) for options in folds]
    fold_of_group = query_folds[np.unique(of_queries, return_index=True)[1]]
    measures = {}
    for name in MEASURES:
        new = np.choose(fold_of_group, [part[name] for part in parts])
        means = {"before": float(old[name].mean()), "after": float(new.mean())}
        measures[name] = means | paired_bootstrap(new, old[name])

    # The result is fitted to all queries.
    after = fit_without(None)
    return Calibration(before, after, folds, measures, len(query_folds), len(clip_folds), embeddings.modalities)


__all__ = ["MEASURES", "Calibration", "Likelihood", "calibrate_embeddings", "fit"]
