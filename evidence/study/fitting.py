"""Fits the numbers of any score of `evidence.weighted`, as calibration fits those of SCALAR's."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from eval.embedding.embeddings import Embeddings
from eval.protocol.calibration import Likelihood
from evidence.weighted import DISCOUNTED, FITTED
from modeling_scalar.scores_scalar import DIRECTIONS, METHODS

_FARTHEST = 7.0  # bound of the roots
_BEGIN = 0.3  # of a square, which has no slope at zero


class ScoreLikelihood(Likelihood):
    """
    The likelihood of any score. Parameters that it does not read do not change. Where scales are at most 1, their
    parameters are the roots of minus their logarithms.

    Args:
        embeddings ([`Embeddings`]), options (`dict`): as in [`~eval.protocol.calibration.Likelihood`].
        method (`str`): a key of [`~evidence.weighted.FITTED`].
    """

    def __init__(self, embeddings: Embeddings, options: Mapping[str, Any], method: str):
        super().__init__(embeddings, options)
        self.method = method
        if "rank_constant" in FITTED[method]:
            # Beyond the bounds first ranks count alone, or the number of a clip's modalities does.
            self.number, self.usual = "rank_constant", 60.0
            self.starts, self.bounds = (1.0, 10.0, 60.0), (0.1, 1000.0)
        elif "query_temperature" not in FITTED[method]:
            self.usual, self.starts = 1.0, (1.0,)

    def options(self, parameters: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the parameters that the score reads as its options."""
        if self.method in DISCOUNTED and len(parameters) > 2:
            root, _ = parameters[2:].clamp(-_FARTHEST, _FARTHEST).chunk(2)
            return {"modality_scale": (-root.square()).exp()}
        found = super().options(parameters)
        return {name: value for name, value in found.items() if name in FITTED[self.method]}

    def scores(self, parameters: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the scores `(Q, V)` that rank clips, and those that rank texts."""
        options = self.options(parameters)
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
        embeddings ([`Embeddings`]), before (`dict`), scale_offset (`bool`): as in [`~eval.protocol.calibration.fit`].
            Scales and offsets of scores other than `"scalar"`, which have nothing else to fit, are always fitted.
        method (`str`): a key of [`~evidence.weighted.FITTED`], which defines what is fitted.

    Returns:
        `dict`: the options of `before` that the score reads, with the fitted ones.
    """
    options = {name: value for name, value in before.items() if name in FITTED[method]}
    likelihood = ScoreLikelihood(embeddings, options, method)
    begin = _BEGIN if method in DISCOUNTED else 0.0
    return options | likelihood.fit(scale_offset or "query_temperature" not in FITTED[method], begin)


__all__ = ["ScoreLikelihood", "fit"]
