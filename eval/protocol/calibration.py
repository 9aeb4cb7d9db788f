"""Calibration: fits a score's modality weights, the query temperature and each modality's scale and offset of cosines.

The fit uses queries whose relevant clips are known. It maximises the likelihood of the described clip among all clips,
and of a describing query among all queries: InfoNCE over scores in both directions, with a fitted contrastive
temperature. Recall is what counts, but it is a staircase: with a few hundred queries, a search would follow the noise
of single ranks. The likelihood sees every rank and does not depend on the scale of the scores. The gain is measured in
both directions, on clips that were not part of the fit. All scores of [`~eval.protocol.weighted.FITTED`] are fitted.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from eval.embedding.embeddings import Embeddings
from eval.metrics.retrieval.ranking import first_ranks
from eval.protocol.first_stage import rank_pairs
from eval.protocol.folds import by_group, deal, groups_of
from eval.protocol.least_score import LeastScore
from eval.protocol.shared_pairs import SharedPairs
from eval.protocol.statistics import paired_bootstrap
from eval.protocol.weighted import DISCOUNTED, FITTED
from modeling_scalar.model_identity import identify
from modeling_scalar.scores_scalar import DIRECTIONS, METHODS, PAPER_MODALITIES

_AT_ONCE = 1024  # most queries, and clips, of one fit
_CONTRASTIVE, _LEAST, _MOST = 0.05, 0.005, 50.0  # temperature of the likelihood: default and bounds
_FARTHEST = 7.0  # bound of offsets and logarithms of scales: a first step of the search can go too far
# Widths of the normal priors, together worth about one query: where the queries say little, the defaults stay.
_LOG_TEMPERATURE, _LOG_SCALE, _OFFSET = 3.0, 1.0, 0.5
_STEPS, _FLAT = 60, 1e-5  # maximum number of steps of the search, and the slope at which it ends
_DIGITS = 3  # significant digits of the fit


@dataclass(frozen=True)
class _Number:
    """A positive number that a score reads: its default, where searches start, and its bounds."""

    usual: float
    starts: tuple[float, ...]  # the likelihood can have several optima
    bounds: tuple[float, float]


_NUMBERS = {
    # Beyond its bounds one modality counts alone, or all count alike.
    "query_temperature": _Number(0.1, (0.03, 0.1, 0.5), (0.005, 50.0)),
    # Beyond its bounds first ranks count alone, or the number of a clip's modalities does.
    "rank_constant": _Number(60.0, (1.0, 10.0, 60.0), (0.1, 1000.0)),
}

_WAYS = {"text_to_video_": "text to video", "video_to_text_": "video to text", "": "mean of both"}
_KINDS = {"recall_at_1": "R@1", "mean_reciprocal_rank": "MRR"}
MEASURES = {way + kind: f"{title}, {name}" for kind, title in _KINDS.items() for way, name in _WAYS.items()}
"""What is measured, in percent, with its title in tables."""


@dataclass(frozen=True)
class Calibration:
    """
    The result of a fit, and its gain on clips that were not part of it.

    Args:
        before, after (`dict`): keyword arguments of `retrieval_scores` next to `method`, before the fit and fitted to
            all queries.
        folds (`list[dict]`): fits without the clips of one fold each.
        measures (`dict`): for each of [`MEASURES`] `before` and `after`, in percent and over held-out queries, and
            `difference`, `low`, `high` and `confidence` of [`~eval.protocol.statistics.paired_bootstrap`], which
            resamples clips.
        num_queries, num_clips (`int`): numbers of queries and clips.
        modalities (`tuple[str, ...]`): modalities of scales and offsets, in their order.
        least_score ([`~eval.protocol.least_score.LeastScore`], *optional*): score that a query's best hit must reach.
        method (`str`): the score.
    """

    before: dict[str, Any]
    after: dict[str, Any]
    folds: list[dict[str, Any]]
    measures: dict[str, dict[str, float]]
    num_queries: int
    num_clips: int
    modalities: tuple[str, ...] = PAPER_MODALITIES
    least_score: LeastScore | None = None
    method: str = "scalar"

    @property
    def is_better(self) -> bool:
        """Whether the interval of the gain in mean reciprocal rank, the mean of both directions, is above zero."""
        return self.measures["mean_reciprocal_rank"]["low"] > 0

    @property
    def is_worse(self) -> bool:
        """Whether the whole interval is below zero."""
        return self.measures["mean_reciprocal_rank"]["high"] < 0


# Fitting -------------------------------------------------------------------------------------------------------------


class _Likelihood:
    """
    Minus the mean log-likelihood of what queries describe, and of what describes clips, with the priors, as a function
    of the parameters.

    Parameters are the logarithms of the score's own number (the query temperature or the rank constant) and of the
    contrastive temperature and, if they are fitted, of the scales of the modalities, then their offsets. Those that a
    score does not read do not change. Where scales are at most 1, the parameters are the roots of minus their
    logarithms.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        before: Mapping[str, Any],
        fixed: Sequence[str],
        method: str = "scalar",
    ):
        names = embeddings.modalities
        self.method, self.is_directed = method, METHODS[method].directed
        self.own = own_number(method)
        self.usual = _NUMBERS[self.own].usual if self.own else 1.0
        self.free = torch.tensor([float(name not in fixed) for name in names], dtype=torch.float64)
        with torch.no_grad():
            self.pairs = SharedPairs(
                embeddings.text_embeds.double(),
                embeddings.modality_embeds.double(),
                embeddings.modality_mask,
                modalities=embeddings.modalities,
                **before,
            )
        self.is_match = torch.zeros(len(embeddings.query_ids), len(embeddings.clip_ids), dtype=torch.bool)
        self.is_match[embeddings.pairs[:, 0], embeddings.pairs[:, 1]] = True

    def options(self, parameters: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the parameters as fields of [`ScoreOptions`]."""
        found = {}
        if self.own:
            found[self.own] = parameters[0].clamp(*map(math.log, _NUMBERS[self.own].bounds)).exp()
        rest = parameters[2:]
        if len(rest):
            log_scale, offset = (self.free * part for part in rest.clamp(-_FARTHEST, _FARTHEST).chunk(2))
            if self.method in DISCOUNTED:
                log_scale = -log_scale.square()
            found |= {"modality_scale": log_scale.exp(), "modality_offset": offset}
        return {name: value for name, value in found.items() if name in FITTED[self.method]}

    def scores(self, parameters: torch.Tensor) -> list[torch.Tensor]:
        """Return the scores `(Q, V)` that rank clips, and those that rank texts."""
        pairs = self.pairs.with_options(**self.options(parameters))
        if not self.is_directed:
            return [pairs.scores(self.method)] * len(DIRECTIONS)
        # Temperatures assume scores up to about 1; a sum of reciprocal ranks is smaller.
        unit = 1 + pairs.options.rank_constant
        return [unit * pairs.with_options(direction=name).scores(self.method) for name in DIRECTIONS]

    def __call__(self, parameters: torch.Tensor) -> torch.Tensor:
        contrastive = parameters[1].clamp(math.log(_LEAST), math.log(_MOST)).exp()
        losses = []
        for dim, scores in zip((1, 0), self.scores(parameters), strict=True):
            logits = scores / contrastive
            losses.append(logits.logsumexp(dim) - logits.masked_fill(~self.is_match, -math.inf).logsumexp(dim))
        to_clips, to_texts = losses[0].mean(), losses[1][self.is_match.any(0)].mean()
        usual = parameters.new_tensor([self.usual, _CONTRASTIVE]).log()
        prior = (parameters[:2] - usual).square().sum() / _LOG_TEMPERATURE**2
        rest = parameters[2:]
        if len(rest):
            log_scale, offset = rest.chunk(2)
            prior = prior + log_scale.square().sum() / _LOG_SCALE**2 + offset.square().sum() / _OFFSET**2
        return (to_clips + to_texts + prior / len(self.is_match)) / 2

    def minimum(self, start: torch.Tensor) -> tuple[float, torch.Tensor]:
        """Return the lowest value found from a start, and its parameters."""
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


def _sample(embeddings: Embeddings, queries: np.ndarray, clips: np.ndarray, generator: np.random.Generator):
    """Sample queries and clips for one fit; the clips that a sampled query describes are always among them."""
    if len(queries) > _AT_ONCE:
        queries = np.sort(generator.choice(queries, _AT_ONCE, replace=False))
    pairs = embeddings.pairs[torch.isin(embeddings.pairs[:, 0], torch.from_numpy(queries))].numpy()
    described = np.intersect1d(pairs[:, 1], clips)
    others = np.setdiff1d(clips, described)
    room = max(0, _AT_ONCE - len(described))
    if len(others) > room:
        others = generator.choice(others, room, replace=False)
    clips = np.sort(np.concatenate([described, others]))
    pairs = pairs[np.isin(pairs[:, 1], clips)]
    places = np.stack([np.searchsorted(queries, pairs[:, 0]), np.searchsorted(clips, pairs[:, 1])], axis=1)
    return _select(embeddings, queries, torch.from_numpy(places), clips)


def _select(embeddings: Embeddings, queries: np.ndarray, pairs: torch.Tensor, clips: np.ndarray | None = None):
    """Select some queries, with renumbered pairs, and some clips."""
    changes = {"modality_embeds": embeddings.modality_embeds, "modality_mask": embeddings.modality_mask}
    clip_ids = embeddings.clip_ids
    if clips is not None:
        changes = {name: values[clips] for name, values in changes.items()}
        clip_ids = [clip_ids[row] for row in clips]
    return replace(
        embeddings,
        **changes,
        text_embeds=embeddings.text_embeds[queries],
        pairs=pairs,
        clip_ids=clip_ids,
        query_ids=[embeddings.query_ids[row] for row in queries],
        captions=[embeddings.captions[row] for row in queries],
        concat_embeds=None,
        fused_embeds=None,
    )


def _rounded(value: torch.Tensor | float | list | None) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, list):
        return [_rounded(number) for number in value]
    return value if value is None else float(f"{value:.{_DIGITS}g}")


def own_number(method: str) -> str | None:
    """Return the name of the one number that a score reads besides those of each modality, if it has one."""
    return next((name for name in _NUMBERS if name in FITTED[method]), None)


def check_fitted(method: str) -> None:
    """Raise a ValueError unless a score has numbers to fit."""
    if method not in FITTED:
        raise ValueError(f"The score {method!r} has no numbers to fit; scores with such numbers: {', '.join(FITTED)}.")


def _read_by(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a score reads."""
    return {name: options[name] for name in FITTED[method] if name in options}


def fit(
    embeddings: Embeddings,
    before: Mapping[str, Any],
    scale_offset: bool = False,
    fixed: Sequence[str] = (),
    method: str = "scalar",
) -> dict[str, Any]:
    """
    Fit the numbers of a score to all queries: the query temperature, or the constant of rank fusion, and, optionally,
    the scale and offset of each modality.

    Args:
        embeddings ([`Embeddings`]): queries, clips and pairs. All of them are scored at once.
        before (`dict`): current options of the score: `query_temperature` or `rank_constant`, `modality_scale`
            and `modality_offset`, if there are any.
        scale_offset (`bool`): also fit scales and offsets, instead of those in `before`. For scores other than
            `"scalar"`, which have nothing else to fit, they are always fitted.
        fixed (`Sequence[str]`): modalities whose scale and offset stay 1 and 0.
        method (`str`): a key of [`~eval.protocol.weighted.FITTED`], which defines what is fitted.

    Returns:
        `dict`: the options of `before` that the score reads, with the fitted ones. Scales and offsets of modalities
        that no clip has stay 1 and 0.

    Raises:
        ValueError: the score has no numbers to fit.
    """
    check_fitted(method)
    options = _read_by(method, before)
    likelihood = _Likelihood(embeddings, options, fixed, method)
    own = _NUMBERS[likelihood.own].starts if likelihood.own else (likelihood.usual,)
    starts = [torch.tensor([start, _CONTRASTIVE], dtype=torch.float64).log() for start in own]
    found = starts[0]
    if likelihood.own:
        _, found = min(map(likelihood.minimum, starts), key=lambda minimum: minimum[0])
    if scale_offset or "query_temperature" not in FITTED[method]:
        begin = 0.3 if method in DISCOUNTED else 0.0  # of a square, which has no slope at zero
        _, found = likelihood.minimum(torch.cat([found, found.new_full((2 * len(likelihood.free),), begin)]))
    with torch.no_grad():
        return options | {name: _rounded(value) for name, value in likelihood.options(found).items()}


def why_unwritable(model_path: str | os.PathLike) -> str | None:
    """Return why a fit cannot be written into a model; `None` if it can."""
    identity = identify(model_path)
    if not identity.is_folder:
        return f"{model_path} is not a folder, and a model on the Hub is not changed"
    if identity.is_configured:
        return None
    if identity.file("config.json") is None:
        return f"{model_path} has no config.json, and an adapter without a configuration scores as its base"
    return f"{model_path} is an encoder as published, whose config.json has no settings of scores"


# Measuring -----------------------------------------------------------------------------------------------------------


def _by_group(
    embeddings: Embeddings, groups: Sequence[np.ndarray], method: str, options: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return the measures of each group, in percent: its queries among all clips, and its clips among all queries."""
    (ranks,) = rank_pairs(embeddings, [embeddings.modality_mask], [method], **options)
    found = {}
    for column, (direction, own) in enumerate(zip(DIRECTIONS, groups, strict=True)):
        first = first_ranks(ranks[method][direction], embeddings.pairs[:, column]).double().numpy()
        found[f"{direction}_recall_at_1"] = by_group(100.0 * (first == 1), own)
        found[f"{direction}_mean_reciprocal_rank"] = by_group(100.0 / first, own)
    return found | {kind: sum(found[f"{way}_{kind}"] for way in DIRECTIONS) / 2 for kind in _KINDS}


def calibrate_embeddings(
    embeddings: Embeddings,
    before: Mapping[str, Any],
    scale_offset: bool = False,
    num_folds: int = 5,
    seed: int = 0,
    fixed: Sequence[str] = (),
    method: str = "scalar",
) -> Calibration:
    """
    Fit a score's modality weights, and measure the gain by cross-fitting.

    Clips are dealt into folds by [`deal`]. Queries of a fold rank all clips, and its clips rank all queries, with the
    fit to queries and clips of the other folds; clips that nothing describes are part of every fit. The result is the
    fit to all queries.

    Args:
        embeddings ([`Embeddings`]), before (`dict`), scale_offset (`bool`), fixed (`Sequence[str]`), method (`str`):
            as in [`fit`]. Of more than 1,024 queries or clips, each fit uses that many, drawn at random.
        num_folds (`int`): number of folds, at least 2.
        seed (`int`): seed of the folds, the draws and the interval.

    Returns:
        [`Calibration`].

    Raises:
        ValueError: there are fewer than two groups of clips for a fold, an embedding that counts is not finite, or the
            score has no numbers to fit.
    """
    if num_folds < 2:
        raise ValueError(f"`num_folds` must be at least 2, got {num_folds}.")
    check_fitted(method)
    embeddings.check_finite()
    generator = np.random.default_rng(seed)
    of_queries, query_folds, clip_folds = deal(embeddings, num_folds, generator)
    _, of_clips = groups_of(embeddings)
    before = _read_by(method, before)

    def fitted(fold: int | None) -> dict[str, Any]:
        queries, clips = np.flatnonzero(query_folds != fold), np.flatnonzero(clip_folds != fold)
        part = _sample(embeddings, queries, clips, generator)
        return fit(part, before, scale_offset, fixed, method)

    folds = [fitted(fold) for fold in range(num_folds)]
    groups = of_queries, of_clips[of_clips >= 0]
    old, *parts = (_by_group(embeddings, groups, method, options) for options in (before, *folds))
    fold_of = query_folds[np.unique(of_queries, return_index=True)[1]]
    measures = {}
    for name in MEASURES:
        new = np.choose(fold_of, [part[name] for part in parts])
        means = {"before": float(old[name].mean()), "after": float(new.mean())}
        measures[name] = means | paired_bootstrap(new, old[name], seed=seed)
    sizes = len(query_folds), len(clip_folds)
    return Calibration(before, fitted(None), folds, measures, *sizes, embeddings.modalities, method=method)


__all__ = ["MEASURES", "Calibration", "calibrate_embeddings", "check_fitted", "fit", "own_number", "why_unwritable"]
