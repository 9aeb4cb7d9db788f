"""The terms of the SCALAR objective for a whole batch on one process (Algorithm S2, steps 5 to 8)."""

import torch

from modeling_scalar.paired import paired_centroids
from modeling_scalar.scores_scalar import retrieval_scores

from .alignment import AlignmentLoss
from .cross_arity import CrossArityLoss
from .semantic import SemanticLoss
from .uniformity import UniformityLoss


def scalar_components(
    text_embeds: torch.Tensor,
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    reduced_mask: torch.Tensor,
    affinities: torch.Tensor,
    *,
    temperature: float = 0.07,
    query_temperature: float = 0.1,
    label_smoothing: float = 0.1,
    semantic_temperature: float = 0.5,
    uniformity_scale: float = 2.0,
) -> dict[str, torch.Tensor]:
    """
    Compute the unweighted terms of SCALAR Eq. 10 that need embeddings only: all but matching.

    Args:
        text_embeds (`torch.Tensor` of shape `(batch, dim)`): unit norm, row i belongs to clip i.
        modality_embeds (`torch.Tensor` of shape `(batch, 3, dim)`): unit norm; masked rows are ignored.
        modality_mask (`torch.BoolTensor` of shape `(batch, 3)`): what each clip has, K.
        reduced_mask (`torch.BoolTensor` of shape `(batch, 3)`): what is left of it in the reduced view, M.
        affinities (`torch.Tensor` of shape `(batch, batch)`): S* of Eq. 8, in [0, 1]; 0 where unknown.
        temperature (`float`): tau; query_temperature (`float`): tau_w; semantic_temperature (`float`): tau*.
        label_smoothing (`float`): of the alignment; uniformity_scale (`float`): of the exponent of Eq. 9.

    Returns:
        `dict` of scalars: `alignment` (Eq. 6), `cross_arity` (Eq. 7), `semantic` (Eq. 8), `uniformity` (Eq. 9).

    Raises:
        ValueError: as in [`retrieval_scores`], or a temperature is not positive.
    """
    scores = retrieval_scores(text_embeds, modality_embeds, reduced_mask, query_temperature=query_temperature)
    centroids = paired_centroids(text_embeds, modality_embeds, reduced_mask, query_temperature)
    cross_arity = CrossArityLoss(query_temperature)
    return {
        "alignment": AlignmentLoss(temperature, label_smoothing)(scores, scores.T),
        "cross_arity": cross_arity(text_embeds, modality_embeds, modality_mask, reduced_mask),
        "semantic": SemanticLoss(temperature, semantic_temperature)(
            text_embeds.to(centroids.dtype) @ centroids.T, affinities
        ),
        "uniformity": UniformityLoss(uniformity_scale)(centroids),
    }


__all__ = ["scalar_components"]
