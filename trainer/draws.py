"""What a step draws for each of its rows: a reduced view, and a hard negative of its text and of its clip.

Views are the same embeddings with one modality hidden (Algorithm S2, steps 3 and 4). The cross-encoder reads matched
pairs and those with a negative.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from modeling_scalar.scores_scalar import kind_of

from .distributed import mean_over_processes
from .losses import draw_negatives
from .objectives import Batch


def full_view_probability(step: int, final: float = 0.5, decay_steps: int = 2000) -> float:
    """
    Return p_full, the probability of keeping every modality of a clip: from 1 linearly to `final`.

    Args:
        step (`int`): optimizer steps taken so far.
        final (`float`): value after `decay_steps`, in [0, 1]. 1 turns reduced views off.
        decay_steps (`int`): length of the decay; 0 starts at `final`.
    """
    progress = min(step / decay_steps, 1.0) if decay_steps else 1.0
    return 1.0 - (1.0 - final) * progress


def reduced_views(
    modality_mask: torch.Tensor,
    full_probability: float,
    draws: torch.Tensor,
    min_modalities: int = 2,
    modalities: Sequence[str] = (),
) -> torch.Tensor:
    """
    Hide one modality, drawn uniformly from what a clip has, in a fraction of the clips that have enough.

    Args:
        modality_mask (`torch.BoolTensor` of shape `(batch, M)`): what each clip has.
        full_probability (`float`): probability that a clip keeps everything.
        draws (`torch.Tensor` of shape `(batch, 2)`): uniform numbers in [0, 1): whether, and which. Given from
            outside, so that a clip draws the same on every device and whichever process it lies on.
        min_modalities (`int`): how many a view must keep, so that clips with no more stay complete. The paper's is 2;
            with 1 a clip that has two may lose one of them as well.
        modalities (`Sequence[str]`): the names along the axis M. What an encoder fused of the others, if that is one,
            is neither drawn nor counted, and is hidden with whatever is.

    Returns:
        `torch.BoolTensor` of shape `(batch, M)`, a subset of `modality_mask` that lacks at most one of its True in a
        row, and what is fused of it, and none where a row has no more than `min_modalities`.
    """
    if fused := [index for index, name in enumerate(modalities) if kind_of(name) == "fused"]:
        parts = [index for index in range(len(modalities)) if index not in fused]
        left = reduced_views(modality_mask[:, parts], full_probability, draws, min_modalities)
        is_whole = (left == modality_mask[:, parts]).all(1, keepdim=True)
        view = modality_mask & is_whole
        view[:, parts] = left
        return view
    draws = draws.to(modality_mask.device)
    num_present = modality_mask.sum(1)
    reduced = (draws[:, 0] >= full_probability) & (num_present > min_modalities)
    which = (draws[:, 1] * num_present).long()  # among the present ones
    hidden = modality_mask & (modality_mask.cumsum(1) - 1 == which[:, None])
    return modality_mask & ~(hidden & reduced[:, None])


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
    offset = rows.offset
    own = torch.arange(len(batch.texts), device=readable.device) + offset
    draws = draws.to(readable.device)
    # With a graph, where there is one: the batch keeps the matrices for the objective.
    of_texts = batch.text_to_paired_clip if paired else batch.text_to_clip
    wrong_clips = draw_negatives(of_texts, readable, draws[:, 0], offset, temperature)
    anyone = torch.ones_like(readable)
    of_clips = batch.paired_clip_to_text if paired else batch.clip_to_text
    wrong_texts = draw_negatives(of_clips, anyone, draws[:, 1], offset, temperature)
    texts, clips = torch.cat([own, own, wrong_texts]), torch.cat([own, wrong_clips, own])
    is_match = torch.arange(len(texts), device=own.device) < len(own)
    keep = (texts >= 0) & (clips >= 0)
    keep &= readable[clips.clamp(min=0)]
    texts, clips, is_match = texts[keep], clips[keep], is_match[keep]
    num_pairs = mean_over_processes(len(is_match), is_match.device)
    return MatchingPairs(input_ids[texts], attention_mask[texts], clips, condition_mask[clips], is_match, num_pairs)


__all__ = ["MatchingPairs", "choose_pairs", "full_view_probability", "reduced_views"]
