"""Data-anchor matching: the cross-encoder tells matched pairs from hard negatives (L_DAM of SCALAR Eq. 10)."""

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
    Draw one wrong column for each row, more often the better it scores: from softmax(scores / temperature) + 1e-4.

    Args:
        scores (`torch.Tensor` of shape `(rows, columns)`): the match of row i is column `offset + i`, never drawn;
            `-inf` for a pair without a score.
        candidates (`torch.BoolTensor` of shape `(columns,)`): columns that may be drawn.
        draws (`torch.Tensor` of shape `(rows,)`): uniform numbers in [0, 1), one per row, so that a row draws the same
            on whichever process it lies.
        offset (`int`): column of this process's first match.
        temperature (`float` or a scalar `torch.Tensor`): of the contrastive loss that the scores are trained with.

    Returns:
        `torch.LongTensor` of shape `(rows,)`, -1 for a row without any candidate.
    """
    # The clamp keeps a row of nothing but -inf, of a clip that the score does not cover, from becoming NaN.
    weights = (scores.detach().double().clamp(min=-1e4) / temperature).softmax(dim=1) + 1e-4
    weights = weights * candidates
    weights.diagonal(offset).zero_()
    cumulative = weights.cumsum(dim=1)
    # The first column whose cumulative weight exceeds the draw; one of weight 0 never is.
    drawn = torch.searchsorted(cumulative, draws.to(cumulative)[:, None] * cumulative[:, -1:], right=True).squeeze(1)
    drawn = drawn.clamp(max=scores.shape[1] - 1)  # scores of NaN reach the loss, where they are reported
    return drawn.masked_fill(cumulative[:, -1] == 0, -1)


class MatchingLoss(nn.Module):
    """Cross-entropy over two classes for matched pairs, texts with a wrong clip, and wrong texts with a clip."""

    def forward(
        self, match_logits: torch.Tensor, is_match: torch.Tensor, num_pairs: float | None = None
    ) -> torch.Tensor:
        """
        Compute the mean over pairs.

        Args:
            match_logits (`torch.Tensor` of shape `(pairs, 2)`): class 1 is "this text describes this clip".
            is_match (`torch.BoolTensor` of shape `(pairs,)`).
            num_pairs (`float`, *optional*): what to divide by, the mean number of pairs per process, where processes
                hold different numbers; by default the number of pairs.

        Returns:
            `torch.Tensor`, a scalar, log(2) for a head that knows nothing; 0 without pairs.
        """
        logits = match_logits.to(torch.promote_types(match_logits.dtype, torch.float32))
        total = nn.functional.cross_entropy(logits, is_match.long(), reduction="sum")
        return total / max(len(match_logits) if num_pairs is None else num_pairs, 1)


__all__ = ["MatchingLoss", "draw_negatives"]
