"""Cross-arity consistency: hiding one modality should not change a clip's centroid or score (SCALAR Eq. 7)."""

import torch
from torch import nn

from modeling_scalar.paired import paired_centroids


class CrossArityLoss(nn.Module):
    """
    Pull the reduced view M of each clip to its complete view K, for its own text: Eq. 7.

    Both centroids are pulled towards each other. The reduced score is pulled to the complete one, which is a fixed
    reference (stop-gradient), because otherwise both would move to a value that never occurs at test time. Zero where
    nothing is hidden.

    Args:
        query_temperature (`float`): tau_w of the weights, positive.
    """

    def __init__(self, query_temperature: float = 0.1):
        super().__init__()
        self.query_temperature = query_temperature

    def forward(
        self,
        text_embeds: torch.Tensor,
        modality_embeds: torch.Tensor,
        modality_mask: torch.Tensor,
        reduced_mask: torch.Tensor,
        num_rows: float | None = None,
    ) -> torch.Tensor:
        """
        Compute the mean over the batch of 1 - <mu_M, mu_K> + (s_M - sg[s_K])^2.

        Args:
            text_embeds (`torch.Tensor` of shape `(batch, dim)`): Unit norm; row i belongs to clip i.
            modality_embeds (`torch.Tensor` of shape `(batch, 3, dim)`): Unit norm; masked rows are ignored.
            modality_mask, reduced_mask (`torch.BoolTensor` of shape `(batch, 3)`): K and M, at least one True per row.
            num_rows (`float`, *optional*): Divides the sum over rows; by default their number. With several
                processes, the mean number per process.

        Returns:
            `torch.Tensor`, a scalar, non-negative.
        """
        complete, reduced = (
            paired_centroids(text_embeds, modality_embeds, mask, self.query_temperature)
            for mask in (modality_mask, reduced_mask)
        )
        texts = text_embeds.to(complete.dtype)
        complete_scores, reduced_scores = ((texts * centroids).sum(-1) for centroids in (complete, reduced))
        direction = 1 - (reduced * complete).sum(-1)
        total = (direction + (reduced_scores - complete_scores.detach()).square()).sum()
        return total / (len(texts) if num_rows is None else num_rows)


__all__ = ["CrossArityLoss"]
