"""Make the cosines of modalities comparable if encoders with spaces of their own embed them: [`fit_scales`].

Shapes: Q texts, V clips, M modalities.
"""

import math
from typing import NamedTuple

import torch

from scalar_retrieval.modeling_scalar.scores_scalar import exact

_LEAST_COSINES = 30  # by which a modality is measured
_LEAST_DEVIATION = 1e-4  # less is the rounding of vectors in float16
_EQUAL_WEIGHTS = 10  # a temperature above it weighs all modalities alike
_UNIT = 0.1  # the deviation of cosines then, as at the default temperature


class Scales(NamedTuple):
    """
    What [`fit_scales`] returns for each of M modalities.

    Args:
        modality_scale (`list[float]`), modality_offset (`list[float]`): keyword arguments of `retrieval_scores`.
        is_measured (`list[bool]`): whether a modality has numbers of its own, rather than those of an average one.
    """

    modality_scale: list[float]
    modality_offset: list[float]
    is_measured: list[bool]


def fit_scales(similarities: torch.Tensor, mask: torch.Tensor, query_temperature: float = 0.1) -> Scales:
    """
    Standardise the cosines x of each modality over texts that look like queries, without labels:

        c_m = tau_w (x - mu_m) / sigma_m = scale_m x + offset_m

    mu_m and sigma_m are the mean and the standard deviation of all cosines of modality m, so one deviation is the unit
    of the temperature tau_w. A modality with fewer than 30 cosines, or with a deviation below 1e-4, counts as an
    average one: it gets the mean of the others' mu and sigma. If none can be measured, cosines stay as they are
    (scales 1, offsets 0).

    Args:
        similarities (`torch.Tensor` of shape `(Q, V, M)`): cosines of texts and clips; any number where absent.
        mask (`torch.BoolTensor` of shape `(V, M)` or `(Q, V, M)`): the modalities of each clip; or of each pair, to
            leave out a text that belongs to the clip itself.
        query_temperature (`float`): tau_w of the score, positive. Above 10, where all weights are equal and the unit
            does not matter, 0.1 is used.

    Returns:
        [`Scales`], computed in float64.
    """
    unit = query_temperature if query_temperature <= _EQUAL_WEIGHTS else _UNIT
    mask = mask.expand(similarities.shape)
    # Mean and deviation of each modality
    num_modalities = similarities.shape[-1]
    means = torch.full((num_modalities,), math.nan, dtype=torch.float64)
    deviations = means.clone()
    for m in range(num_modalities):
        cosines = exact(similarities[..., m][mask[..., m]])
        if len(cosines) < _LEAST_COSINES:
            continue
        deviation = cosines.std(correction=0)
        if deviation >= _LEAST_DEVIATION:
            means[m] = cosines.mean()
            deviations[m] = deviation
    # Those of an average modality where they could not be measured
    is_measured = deviations.isfinite()
    if not is_measured.any():
        return Scales([1.0] * num_modalities, [0.0] * num_modalities, is_measured.tolist())
    means = means.where(is_measured, means[is_measured].mean())
    deviations = deviations.where(is_measured, deviations[is_measured].mean())
    scale = unit / deviations
    return Scales(scale.tolist(), (-scale * means).tolist(), is_measured.tolist())


__all__ = ["Scales", "fit_scales"]
