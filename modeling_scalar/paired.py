"""Weights, centroids and exact scores of pairs of a text and a clip, for training, statistics and search."""

from typing import Any

import torch

from .scores_scalar import WEIGHING, ScoreOptions, make_pairs, min_norm_of, softmax_weights, unit


def exact_scores(
    text_embeds: torch.Tensor,
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    min_norm: float,
    options: ScoreOptions,
) -> torch.Tensor:
    """
    Score pairs `(P,)` in float64 by their centroids, Eq. 2 and 3. This is the reference for exact search. Equal pairs
    have equal scores at any position.

    Args:
        text_embeds (`(P, D)`), modality_embeds (`(P, M, D)`), modality_mask (`(P, M)`): The pairs. The
            values of absent rows have no effect.
        min_norm (`float`), options ([`ScoreOptions`]): The clamp of norms; temperature and calibration.
    """
    texts = text_embeds.double()[:, None]
    vectors = torch.where(modality_mask[..., None], modality_embeds.double(), 0)
    # Products and sums, not matrix products, whose order of additions depends on the number of pairs.
    cosines = options.calibrated((vectors * texts).sum(-1), dim=1)
    cosines = torch.where(modality_mask, cosines, 0)
    weights = softmax_weights(cosines, modality_mask, options.query_temperature, dim=1)
    squared_norm = (weights[..., None] * vectors).sum(1).square().sum(-1)
    return (weights * cosines).sum(1) / squared_norm.sqrt().clamp(min=min_norm)


def paired_weights(
    text_embeds: torch.Tensor, modality_embeds: torch.Tensor, modality_mask: torch.Tensor, *weighing: Any, **named: Any
) -> torch.Tensor:
    """
    Compute the weights of each clip for its own text only, `(P, M)`: the diagonal of [`query_weights`].

    Args and errors: See [`query_weights`]; row i of the texts belongs to clip i.
    """
    if len(text_embeds) != len(modality_embeds):
        raise ValueError(f"Expected one text per clip, got {len(text_embeds)} texts and {len(modality_embeds)} clips.")
    named = dict(zip(WEIGHING, weighing, strict=False)) | named
    with torch.autocast(device_type=text_embeds.device.type, enabled=False):
        pairs = make_pairs(text_embeds, modality_embeds, modality_mask, **named)
        temperature = pairs.options.query_temperature
        resolved = pairs.resolved(temperature)
        texts = resolved.text_embeds[:, None]
        # Products and sums, because matrix products would be a batch of tiny ones.
        cosines = pairs.options.calibrated((resolved.clips.modality_embeds * texts).sum(-1), dim=-1)  # (P, M)
        weights = softmax_weights(cosines, modality_mask, temperature, dim=-1)
        return weights.to(pairs.text_embeds.dtype)


def paired_centroids(
    text_embeds: torch.Tensor, modality_embeds: torch.Tensor, modality_mask: torch.Tensor, *weighing: Any, **named: Any
) -> torch.Tensor:
    """
    Aggregate each clip for its own text only, mu_M(z^T) of SCALAR Eq. 2: `(P, D)`, of unit norm (shorter only where
    modalities cancel to nothing).

    Args and errors: See [`paired_weights`].
    """
    weights = paired_weights(text_embeds, modality_embeds, modality_mask, *weighing, **named)
    with torch.autocast(device_type=text_embeds.device.type, enabled=False):
        present = make_pairs(text_embeds, modality_embeds, modality_mask).clips.modality_embeds
        return unit((weights[..., None] * present).sum(1), min_norm_of(text_embeds, modality_embeds))


__all__ = ["exact_scores", "paired_centroids", "paired_weights"]
