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
        scores (`torch.Tensor` of shape `(rows, columns)`): cosines; the match of row i is column `offset + i`.
        offset (`int`): column of this process's first match.
        temperature (`float` or a scalar `torch.Tensor`): divides the scores.
        label_smoothing (`float`): share of the target spread evenly over all columns.
        num_rows (`float`, *optional*): what the sum over rows is divided by; by default their number. Of several
            processes, the mean number per process: the mean over processes is then the mean over all rows.

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
    Pull each text to its clip and push it from the other clips of the batch, and the reverse: Eq. 6.

    Args:
        temperature (`float`): tau, positive; small values weigh the hardest negatives most. In SCALAR it is fixed: the
            scale of the cosines carries meaning.
        label_smoothing (`float`): in [0, 1).
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
            text_to_clip (`torch.Tensor` of shape `(batch, clips)`): rows of C: this process's texts against all clips.
            clip_to_text (`torch.Tensor` of shape `(batch, texts)`): rows of C transposed: this process's clips, each
                aggregated anew for every text that scores it.
            offset (`int`): index of this process's first row in the whole batch.
            num_rows (`float`, *optional*): see [`info_nce`].
            temperature (`torch.Tensor`, *optional*): a learned temperature in place of the fixed one.

        Returns:
            `torch.Tensor`, a scalar, non-negative.
        """
        arguments = (offset, self.temperature if temperature is None else temperature, self.label_smoothing, num_rows)
        return (info_nce(text_to_clip, *arguments) + info_nce(clip_to_text, *arguments)) / 2


__all__ = ["AlignmentLoss", "info_nce"]
