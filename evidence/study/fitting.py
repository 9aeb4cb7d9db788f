"""Fits the numbers of any score of `evidence.weighted`, as calibration fits those of SCALAR's.

A fit is kept as `scalar eval calibrate --write` keeps one: only if the interval of its gain on clips that were not
part of the fit lies above 0. The gain is in MRR@10, the mean of both directions, which is what the study shows. Of
several fits of one score, the best of those that are kept is taken.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from evidence.study.corrected import BASE, CORRECTED, fit_corrected
from evidence.study.ranks import Choice, mean_reciprocal_ranks
from evidence.weighted import DISCOUNTED, FITTED
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.eval.protocol.calibration import Likelihood
from scalar_retrieval.eval.protocol.folds import deal
from scalar_retrieval.eval.protocol.statistics import paired_bootstrap
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS, METHODS

_FARTHEST = 7.0  # bound of the roots
_BEGIN = 0.3  # of a square, which has no slope at zero
_FOLDS = 5
_OF_EACH_MODALITY = ("modality_scale", "modality_offset")

FIXED_WEIGHTS = {
    "scalar": "scalar", "uniform": "weighted_centroid", "mean": "weighted_mean", "max": "max",
    "rank_fusion": "weighted_rank_fusion", "gram": "weighted_gram", "gram_span": "weighted_span",
    "pmrl": "weighted_pmrl",
}  # fmt: skip
"""Scores with numbers to fit, and the registered score that takes these."""


def _read_by(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a score reads."""
    return {name: value for name, value in options.items() if name in FITTED[method]}


class ScoreLikelihood(Likelihood):
    """
    The likelihood of any score. Parameters that it does not read do not change. Where scales are at most 1, their
    parameters are the roots of minus their logarithms.

    Args:
        embeddings ([`Embeddings`]), options (`dict`): as in
            [`~scalar_retrieval.eval.protocol.calibration.Likelihood`].
        method (`str`): a key of [`~evidence.weighted.FITTED`].
    """

    def __init__(self, embeddings: Embeddings, options: Mapping[str, Any], method: str):
        super().__init__(embeddings, options)
        self.method = method
        if "rank_constant" in FITTED[method]:
            self.number = "rank_constant"
            self.usual = 60.0
            self.starts = (1.0, 10.0, 60.0)
            # Beyond these first ranks count alone, or the number of a clip's modalities does.
            self.bounds = (0.1, 1000.0)
        elif "query_temperature" not in FITTED[method]:
            self.usual = 1.0
            self.starts = (1.0,)

    def options(self, parameters: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the parameters that the score reads as its options."""
        if self.method in DISCOUNTED and len(parameters) > 2:
            root, _ = parameters[2:].clamp(-_FARTHEST, _FARTHEST).chunk(2)
            return {"modality_scale": (-root.square()).exp()}
        return _read_by(self.method, super().options(parameters))

    def scores(self, parameters: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the scores `(Q, V)` that rank clips, and those that rank texts."""
        options = self.options(parameters)
        # Most scores are the same in both directions; rank fusion ranks within each.
        if not METHODS[self.method].directed:
            scores = self.with_options(**options).scores(self.method)
            return scores, scores
        # Temperatures assume scores up to about 1; a sum of reciprocal ranks is smaller.
        unit = 1 + options["rank_constant"]
        return [unit * self.with_options(**options, direction=name).scores(self.method) for name in DIRECTIONS]


def fit(
    embeddings: Embeddings, before: Mapping[str, Any], scale_offset: bool = False, method: str = "scalar"
) -> dict[str, Any]:
    """
    Fit the numbers of a score to all queries.

    Args:
        embeddings ([`Embeddings`]), before (`dict`), scale_offset (`bool`): as in
            [`~scalar_retrieval.eval.protocol.calibration.fit`]. Scales and offsets of scores other than `"scalar"`,
            which have nothing else to fit, are always fitted.
        method (`str`): a key of [`~evidence.weighted.FITTED`], which defines what is fitted.

    Returns:
        `dict`: the options of `before` that the score reads, with the fitted ones.
    """
    options = _read_by(method, before)
    likelihood = ScoreLikelihood(embeddings, options, method)
    begin = _BEGIN if method in DISCOUNTED else 0.0
    return options | likelihood.fit(scale_offset or "query_temperature" not in FITTED[method], begin)


# Keeping a fit -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """
    A score with fitted numbers.

    Args:
        choice (`tuple[str, dict]`): registered score and its options, fitted to all clips.
        count (`int`): how many numbers were fitted.
        gain (`dict`): `difference`, `low` and `high`: points of MRR@10 on clips that were not part of a fit.
    """

    choice: Choice
    count: int
    gain: dict[str, float]

    @property
    def is_kept(self) -> bool:
        """Whether the interval of the gain lies above 0."""
        return self.gain["low"] > 0


def _at(values: Sequence[str], rows: torch.Tensor) -> list[str]:
    return [values[row] for row in rows]


def some_clips(embeddings: Embeddings, clips: torch.Tensor) -> tuple[Embeddings, torch.Tensor]:
    """Return the clips in some rows, ascending, with their captions; and the rows of these captions."""
    kept = torch.isin(embeddings.pairs[:, 1], clips).nonzero().flatten()
    queries = embeddings.pairs[kept, 0]
    # Captions are numbered anew in the order of their pairs, clips by their places among the kept ones.
    pairs = torch.stack([torch.arange(len(kept)), torch.searchsorted(clips, embeddings.pairs[kept, 1])], dim=1)
    some = replace(
        embeddings,
        text_embeds=embeddings.text_embeds[queries],
        modality_embeds=embeddings.modality_embeds[clips],
        modality_mask=embeddings.modality_mask[clips],
        pairs=pairs,
        clip_ids=_at(embeddings.clip_ids, clips),
        query_ids=_at(embeddings.query_ids, queries),
        captions=_at(embeddings.captions, queries),
    )
    return some, queries


def _held_out(embeddings: Embeddings, make: Callable[[Embeddings], Choice], before: Choice, count: int) -> Fit:
    """Fit to all clips, and measure the gain of fits without a fold on the clips of this fold, among all clips."""
    _, query_folds, clip_folds = deal(embeddings, _FOLDS, np.random.default_rng(0))
    # Every query is ranked among all clips, with numbers to which its own fold did not contribute.
    after = torch.zeros(len(query_folds), dtype=torch.float64)
    for fold in range(_FOLDS):
        others, _ = some_clips(embeddings, torch.from_numpy(np.flatnonzero(clip_folds != fold)))
        in_fold = torch.from_numpy(query_folds == fold)
        after[in_fold] = mean_reciprocal_ranks(embeddings, make(others))[in_fold]
    bounds = paired_bootstrap(after.tolist(), mean_reciprocal_ranks(embeddings, before).tolist())
    gain = {name: round(bounds[name], 3) for name in ("difference", "low", "high")}
    return Fit(make(embeddings), count, gain)


def fits_of(embeddings: Embeddings, score: str, trained: Mapping[str, Any]) -> list[Fit]:
    """
    Fit the numbers of a score: of SCALAR's its temperature, then all of them; of others all that they have.

    Args:
        embeddings ([`~scalar_retrieval.eval.embedding.embeddings.Embeddings`]): validation clips, each with one
            caption.
        score (`str`): a score of the study.
        trained (`dict`): the options of the training.

    Returns:
        `list` of [`Fit`]; empty if the score has no numbers.
    """
    if score in CORRECTED:
        # Volumes have no options of a training.
        options = dict(trained) if BASE[score] == "scalar" else {}

        def make_corrected(some: Embeddings) -> Choice:
            return score, options | fit_corrected(some, score, options)

        return [_held_out(embeddings, make_corrected, (BASE[score], options), len(CORRECTED[score]))]
    if score not in FIXED_WEIGHTS:
        return []
    # Most scores have a registered twin that takes the numbers.
    method = FIXED_WEIGHTS[score]
    names = FITTED[method]
    of_each = len(set(names) & set(_OF_EACH_MODALITY))
    num_temperatures = len(names) - of_each

    def make_alone(some: Embeddings) -> Choice:
        return method, fit(some, trained, False, method)

    def make_all(some: Embeddings) -> Choice:
        return method, fit(some, trained, True, method)

    before = (score, dict(trained))
    fits = []
    if "query_temperature" in names:
        fits.append(_held_out(embeddings, make_alone, before, num_temperatures))
    count = num_temperatures + of_each * len(embeddings.modalities)
    return [*fits, _held_out(embeddings, make_all, before, count)]


def kept_fit(fits: Sequence[Fit]) -> Fit | None:
    """Return the fit with the largest gain among those that are kept; None if there is none."""
    kept = [each for each in fits if each.is_kept]
    return max(kept, key=lambda each: each.gain["difference"], default=None)


__all__ = ["FIXED_WEIGHTS", "Fit", "ScoreLikelihood", "fit", "fits_of", "kept_fit", "some_clips"]
