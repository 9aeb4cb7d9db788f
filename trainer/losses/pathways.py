"""The backbone's objective: plain symmetric InfoNCE between the text and each modality separately.

It is not in the paper, which starts from a pretrained backbone. Without aggregation, it favours no aggregator.
"""

import torch
from torch import nn


class PathwaysLoss(nn.Module):
    """
    Pull each text to every modality of its clip, against the same modality of the other clips.

    Args:
        temperature (`float`): Divides the cosines; positive.
    """

    def __init__(self, temperature: float = 0.07):
        super().__init__()
        if temperature <= 0:
            raise ValueError(f"`temperature` must be positive, got {temperature!r}.")
        self.temperature = temperature

    def forward(
        self,
        text_embeds: torch.Tensor,
        modality_embeds: torch.Tensor,
        modality_mask: torch.Tensor,
        all_text_embeds: torch.Tensor,
        all_modality_embeds: torch.Tensor,
        all_modality_mask: torch.Tensor,
        offset: int = 0,
        num_rows: float | None = None,
    ) -> torch.Tensor:
        """
        Compute the mean over modalities of the loss among the clips that have it.

        Args:
            text_embeds, modality_embeds, modality_mask: This process's rows, `(batch, dim)`, `(batch, 3, dim)` and
                `(batch, 3)`.
            all_text_embeds, all_modality_embeds, all_modality_mask: The rows of all processes.
            offset (`int`): The index of this process's first row in the global batch.
            num_rows (`float`, *optional*): The mean number of rows per process; by default `batch`.

        Returns:
            `torch.Tensor`, a scalar, non-negative.
        """
        targets = torch.arange(len(text_embeds), device=text_embeds.device) + offset
        processes = len(all_text_embeds) / (len(text_embeds) if num_rows is None else num_rows)
        total, terms = text_embeds.new_zeros(()), 0
        for modality in range(modality_mask.shape[1]):
            rows = modality_mask[:, modality].nonzero().flatten()
            absent = ~all_modality_mask[:, modality]
            if absent.all():
                continue
            # The mean over the rows of all processes, which may hold different numbers of them.
            num_present = (~absent).sum() / processes
            for queries, items in (
                (text_embeds[rows], all_modality_embeds[:, modality]),
                (modality_embeds[rows, modality], all_text_embeds),
            ):
                logits = (queries @ items.T / self.temperature).masked_fill(absent, -1e30)
                total = total + nn.functional.cross_entropy(logits, targets[rows], reduction="sum") / num_present
                terms += 1
        return total / max(terms, 1)


__all__ = ["PathwaysLoss"]
