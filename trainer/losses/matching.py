"""Data-anchor matching: the cross-encoder tells matched pairs from hard negatives (L_DAM of SCALAR Eq. 10)."""

import torch
from torch import nn


def draw_negatives(
    scores: torch.Tensor,
    candidates: torch.Tensor,
    offset: int = 0,
    temperature: float = 0.07,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """
    Draw one wrong column for each row, more often the better it scores: from softmax(scores / temperature) + 1e-4.

    Args:
        scores (`torch.Tensor` of shape `(rows, columns)`): the match of row i is column `offset + i`, never drawn.
        candidates (`torch.BoolTensor` of shape `(columns,)`): columns that may be drawn.
        offset (`int`): column of this process's first match.
        temperature (`float`): of the contrastive loss that the scores are trained with.
        generator (`torch.Generator`, *optional*): on the CPU.

    Returns:
        `torch.LongTensor` of shape `(rows,)`, -1 for a row without any candidate.
    """
    weights = (scores.detach().float() / temperature).softmax(dim=1).cpu() + 1e-4
    weights[:, ~candidates.cpu()] = 0
    weights.diagonal(offset).zero_()
    drawable = weights.sum(1) > 0
    weights[~drawable] = 1  # multinomial refuses rows of zeros; their draw is discarded
    drawn = torch.multinomial(weights, 1, generator=generator).squeeze(1)
    return drawn.masked_fill(~drawable, -1).to(scores.device)


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
        total = nn.functional.cross_entropy(match_logits.float(), is_match.long(), reduction="sum")
        return total / max(len(match_logits) if num_pairs is None else num_pairs, 1)


__all__ = ["MatchingLoss", "draw_negatives"]
