"""Which pairs of a batch the cross-encoder reads: matched ones, and for each text and each clip one hard negative."""

from typing import NamedTuple

import torch

from .distributed import mean_over_processes
from .losses import draw_negatives
from .objectives import Batch


class MatchingPairs(NamedTuple):
    """
    What the cross-encoder reads, a row a pair, but for the condition states of the clips.

    Args:
        input_ids, attention_mask (`torch.LongTensor` of shape `(pairs, tokens)`): the texts.
        clips (`torch.LongTensor` of shape `(pairs,)`): rows of the clips among those of all processes.
        condition_mask (`torch.BoolTensor` of shape `(pairs, condition tokens)`): which tokens of the clips to read.
        is_match (`torch.BoolTensor` of shape `(pairs,)`): whether the text is the clip's own.
        num_pairs (`float`): mean number of pairs over processes.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    clips: torch.Tensor
    condition_mask: torch.Tensor
    is_match: torch.Tensor
    num_pairs: float


def choose_pairs(
    batch: Batch,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    condition_mask: torch.Tensor,
    draws: torch.Tensor,
    temperature: float | torch.Tensor,
    paired: bool = False,
) -> MatchingPairs:
    """
    Choose matched pairs, texts with a wrong clip, and wrong texts with a clip, among the rows of all processes.

    A clip with nothing to read is in no pair.

    Args:
        batch ([`Batch`]): the embeddings of the step; b of the rows lie on this process.
        input_ids, attention_mask (`torch.LongTensor` of shape `(b, tokens)`): this process's texts.
        condition_mask (`torch.BoolTensor` of shape `(b, condition tokens)`): what there is to read of its clips.
        draws (`torch.Tensor` of shape `(b, 2)`): uniform numbers in [0, 1), for the wrong clip and the wrong text.
        temperature (`float` or a scalar `torch.Tensor`): see [`draw_negatives`].
        paired (`bool`): draw by C~ of Eq. 5, in which each clip is aggregated once, for its own text, in place of C.

    Returns:
        [`MatchingPairs`] of this process: at most `3 * b`.
    """
    rows = batch.rows
    condition_mask, input_ids, attention_mask = (
        rows.gather(tensor, ragged=True) for tensor in (condition_mask, input_ids, attention_mask)
    )
    readable = condition_mask.any(dim=1)  # (B,)
    own = torch.arange(len(batch.texts), device=readable.device) + rows.offset
    draws = draws.to(readable.device)
    # With a graph, where there is one: the batch keeps the matrices for the objective.
    of_texts = batch.text_to_paired_clip if paired else batch.text_to_clip
    wrong_clips = draw_negatives(of_texts, readable, draws[:, 0], rows.offset, temperature)
    anyone = torch.ones_like(readable)
    of_clips = batch.paired_clip_to_text if paired else batch.clip_to_text
    wrong_texts = draw_negatives(of_clips, anyone, draws[:, 1], rows.offset, temperature)
    texts, clips = torch.cat([own, own, wrong_texts]), torch.cat([own, wrong_clips, own])
    is_match = torch.arange(len(texts), device=own.device) < len(own)
    keep = (texts >= 0) & (clips >= 0)
    keep &= readable[clips.clamp(min=0)]
    texts, clips, is_match = texts[keep], clips[keep], is_match[keep]
    num_pairs = mean_over_processes(len(is_match), is_match.device)
    return MatchingPairs(input_ids[texts], attention_mask[texts], clips, condition_mask[clips], is_match, num_pairs)


__all__ = ["MatchingPairs", "choose_pairs"]
