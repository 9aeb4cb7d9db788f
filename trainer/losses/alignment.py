"""Retrieval alignment: symmetric InfoNCE over the query-conditioned scores (SCALAR Eq. 6)."""

import torch
from torch import nn


def info_nce(
    scores: torch.Tensor,
    offset: int = 0,
    temperature: float | torch.Tensor = 0.07,
    label_smoothing: float = 0.0,
    num_rows: float | None = None,
) -> torch.Tensor:
    """
    Cross-entropy of each row's match against all columns.

    Args:
        scores (`torch.Tensor` of shape `(rows, columns)`): Cosines; the match of row i is column `offset + i`.
        offset (`int`): The column of this process's first match.
        temperature (`float` or a scalar `torch.Tensor`): Divides the scores.
        label_smoothing (`float`): The share of the target spread evenly over all columns.
        num_rows (`float`, *optional*): Divides the sum over rows; by default their number. With several processes,
            pass the mean number per process, so that the mean over processes is the mean over all rows.

    Returns:
        `torch.Tensor`, a scalar: the mean over rows, log(columns) when all scores are equal.
    """
    targets = torch.arange(len(scores), device=scores.device) + offset
    total = nn.functional.cross_entropy(
        scores / temperature, targets, label_smoothing=label_smoothing, reduction="sum"
    )
    return total / max(len(scores) if num_rows is None else num_rows, 1)


class AlignmentLoss(nn.Module):
    """
    Pull each text to its clip and push it away from the other clips of the batch, and vice versa: Eq. 6.

    Args:
        temperature (`float`): tau, positive; small values emphasise the hardest negatives. SCALAR keeps it fixed,
            because the scale of its cosines is meaningful.
        label_smoothing (`float`): Label smoothing, in [0, 1).
    """

    def __init__(self, temperature: float = 0.07, label_smoothing: float = 0.1):
        super().__init__()
        if temperature <= 0:
            raise ValueError(f"`temperature` must be positive, got {temperature!r}.")
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"`label_smoothing` must be in [0, 1), got {label_smoothing!r}.")
        self.temperature = temperature
        self.label_smoothing = label_smoothing

    def forward(
        self,
        text_to_clip: torch.Tensor,
        clip_to_text: torch.Tensor,
        offset: int = 0,
        num_rows: float | None = None,
        temperature: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        Compute the loss of this process's rows.

        Args:
            text_to_clip (`torch.Tensor` of shape `(batch, clips)`): Rows of C: this process's texts against all clips.
            clip_to_text (`torch.Tensor` of shape `(batch, texts)`): Rows of C transposed: this process's clips, each
                aggregated separately for every text.
            offset (`int`): The index of this process's first row in the global batch.
            num_rows (`float`, *optional*): See [`info_nce`].
            temperature (`torch.Tensor`, *optional*): A learned temperature instead of the fixed one.

        Returns:
            `torch.Tensor`, a scalar, non-negative.
        """
        arguments = (offset, self.temperature if temperature is None else temperature, self.label_smoothing, num_rows)
        return (info_nce(text_to_clip, *arguments) + info_nce(clip_to_text, *arguments)) / 2


__all__ = ["AlignmentLoss", "info_nce"]
