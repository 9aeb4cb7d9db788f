"""Graded semantics: captions that mean nearly the same should score nearly the same (SCALAR Eq. 8)."""

import torch
from torch import nn


class SemanticLoss(nn.Module):
    """
    Match each row of scores to the affinities of a frozen sentence encoder: Eq. 8, in two parts.

    Neighbourhoods: the softmax of the row is pulled to the softmax of its affinities, over the whole row; an unknown
    affinity counts as 0, the lowest weight. Calibration: a cosine with a known affinity S* is pulled to 2 S* - 1;
    unknown pairs are skipped.

    The scores are those of C~, in which each clip is aggregated once, for its own text, so that the targets act on the
    embeddings and not on the modality weights of the query.

    Args:
        temperature (`float`): tau of the contrastive scores, positive. It is fixed, because a learned one could absorb
            the scale that calibration supervises.
        semantic_temperature (`float`): tau* of the softmax over affinities, positive.
        calibration_weight (`float`): The weight of the second part; 0 skips it.
    """

    def __init__(self, temperature: float = 0.07, semantic_temperature: float = 0.5, calibration_weight: float = 1.0):
        super().__init__()
        for name, value in (("temperature", temperature), ("semantic_temperature", semantic_temperature)):
            if not value > 0:
                raise ValueError(f"`{name}` must be positive, got {value!r}.")
        self.temperature = temperature
        self.semantic_temperature = semantic_temperature
        self.calibration_weight = calibration_weight

    def forward(
        self,
        scores: torch.Tensor,
        affinities: torch.Tensor,
        num_rows: float | None = None,
        num_observed: float | torch.Tensor | None = None,
        temperature: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        Compute the loss of this process's rows.

        Args:
            scores (`torch.Tensor` of shape `(batch, clips)`): Rows of C~, cosines.
            affinities (`torch.Tensor` of shape `(batch, clips)`): Rows of S*, in [0, 1]; 0 where unknown.
            num_rows (`float`, *optional*): Divides the sum over rows: the mean number of rows per process.
            num_observed (`float`, *optional*): The same for known pairs. Both default to the numbers of this process.
            temperature (`torch.Tensor`, *optional*): A learned temperature instead of the fixed one.

        Returns:
            `torch.Tensor`, a scalar, non-negative.
        """
        targets = (affinities / self.semantic_temperature).softmax(dim=1)
        divergence = nn.functional.kl_div(
            (scores / (self.temperature if temperature is None else temperature)).log_softmax(dim=1),
            targets.log(),
            log_target=True,
            reduction="sum",
        )
        total = divergence / (len(scores) if num_rows is None else num_rows)
        if self.calibration_weight:
            observed = affinities > 0
            errors = (scores - (2 * affinities - 1)).square() * observed
            count = observed.sum() if num_observed is None else num_observed
            total = total + self.calibration_weight * errors.sum() / max(count, 1)
        return total


__all__ = ["SemanticLoss"]
