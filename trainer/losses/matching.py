"""Data-anchor matching: the cross-encoder distinguishes matched pairs from hard negatives (L_DAM of SCALAR Eq. 10)."""

import torch
from torch import nn


def draw_negatives(
    scores: torch.Tensor,
    candidates: torch.Tensor,
    draws: torch.Tensor,
    offset: int = 0,
    temperature: float | torch.Tensor = 0.07,
) -> torch.Tensor:
    """
    Draw one negative column for each row with probability proportional to softmax(scores / temperature) + 1e-4.

    Args:
        scores (`torch.Tensor` of shape `(rows, columns)`): The match of row i is column `offset + i`, never drawn;
            `-inf` for a pair without a score.
        candidates (`torch.BoolTensor` of shape `(columns,)`): Columns that may be drawn.
        draws (`torch.Tensor` of shape `(rows,)`): Uniform numbers in [0, 1), one per row, so that a row draws the same
            on any process.
        offset (`int`): The column of this process's first match.
        temperature (`float` or a scalar `torch.Tensor`): The temperature of the contrastive loss of the scores.

    Returns:
        `torch.LongTensor` of shape `(rows,)`, -1 for a row without any candidate.
    """
    # The clamp prevents NaN in a row of only -inf, that of a clip that the score does not cover.
    weights = (scores.detach().double().clamp(min=-1e4) / temperature).softmax(dim=1) + 1e-4
    weights = weights * candidates
    weights.diagonal(offset).zero_()
    cumulative = weights.cumsum(dim=1)
    # The first column whose cumulative weight exceeds the draw; a column of weight 0 is never drawn.
    drawn = torch.searchsorted(cumulative, draws.to(cumulative)[:, None] * cumulative[:, -1:], right=True).squeeze(1)
    drawn = drawn.clamp(max=scores.shape[1] - 1)  # NaN scores reach the loss, where they are reported
    return drawn.masked_fill(cumulative[:, -1] == 0, -1)


class MatchingLoss(nn.Module):
    """Binary cross-entropy for matched pairs, texts with a negative clip, and negative texts with a clip."""

    def forward(
        self, match_logits: torch.Tensor, is_match: torch.Tensor, num_pairs: float | None = None
    ) -> torch.Tensor:
        """
        Compute the mean over pairs.

        Args:
            match_logits (`torch.Tensor` of shape `(pairs, 2)`): Class 1 is "this text describes this clip".
            is_match (`torch.BoolTensor` of shape `(pairs,)`): Whether the text describes the clip.
            num_pairs (`float`, *optional*): Divides the sum: the mean number of pairs per process, if processes hold
                different numbers; by default the number of pairs.

        Returns:
            `torch.Tensor`, a scalar: log(2) for equal logits, 0 without pairs.
        """
        logits = match_logits.to(torch.promote_types(match_logits.dtype, torch.float32))
        total = nn.functional.cross_entropy(logits, is_match.long(), reduction="sum")
        return total / max(len(match_logits) if num_pairs is None else num_pairs, 1)


__all__ = ["MatchingLoss", "draw_negatives"]
