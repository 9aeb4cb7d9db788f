"""Random draws of a training step: a reduced view of each clip, and hard negatives for its text and its clip.

Reduced views are the same embeddings with one modality hidden (Algorithm S2, steps 3 and 4). The cross-encoder reads
the matched pairs and the pairs with a negative.
"""

from typing import NamedTuple

import torch

from .distributed import mean_over_processes
from .objectives import Batch


def derived_generator(*numbers: int) -> torch.Generator:
    """Return a CPU generator seeded with a hash of `numbers`: the same numbers give the same draws."""
    seed = 0
    for number in numbers:  # 64-bit mixing (splitmix64), so neighbouring numbers give unrelated streams
        seed = (seed + number + 0x9E3779B97F4A7C15) % 2**64
        seed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        seed = (seed ^ (seed >> 27)) * 0x94D049BB133111EB % 2**64
        seed ^= seed >> 31
    return torch.Generator().manual_seed(seed)


def full_view_probability(step: int, final: float = 0.5, decay_steps: int = 2000) -> float:
    """
    Return p_full, the probability of keeping every modality of a clip, which falls linearly from 1 to `final`.

    Args:
        step (`int`): The optimizer steps taken so far.
        final (`float`): The value after `decay_steps`, in [0, 1]. 1 disables reduced views.
        decay_steps (`int`): The length of the decay; 0 starts at `final`.
    """
    progress = 1.0
    if step < decay_steps:
        progress = step / decay_steps
    return 1.0 - (1.0 - final) * progress


def reduced_views(
    modality_mask: torch.Tensor,
    full_probability: float,
    draws: torch.Tensor,
    min_modalities: int = 2,
) -> torch.Tensor:
    """
    Hide one modality, drawn uniformly from those of the clip, in a fraction of the clips that have enough.

    Args:
        modality_mask (`torch.BoolTensor` of shape `(batch, M)`): The modalities of each clip.
        full_probability (`float`): The probability that a clip keeps all modalities.
        draws (`torch.Tensor` of shape `(batch, 2)`): Uniform numbers in [0, 1): whether to hide, and which. They are
            an argument so that a clip draws the same on every device and process.
        min_modalities (`int`): The number of modalities a view must keep; clips with no more stay complete. The paper
            uses 2; with 1, a clip with two modalities may lose one of them.

    Returns:
        `torch.BoolTensor` of shape `(batch, M)`: `modality_mask` with at most one modality of each row removed,
        and none where a row has no more than `min_modalities`.
    """
    draws = draws.to(modality_mask.device)
    num_present = modality_mask.sum(1)
    reduced = (draws[:, 0] >= full_probability) & (num_present > min_modalities)
    which = (draws[:, 1] * num_present).long()  # among the present ones
    hidden = modality_mask & (modality_mask.cumsum(1) - 1 == which[:, None])
    return modality_mask & ~(hidden & reduced[:, None])


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
        candidates (`torch.BoolTensor` of shape `(rows, columns)` or `(columns,)`): Columns that may be drawn.
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


class MatchingPairs(NamedTuple):
    """
    The inputs of the cross-encoder, one row per pair, except the condition states of the clips.

    Args:
        input_ids, attention_mask (`torch.LongTensor` of shape `(pairs, tokens)`): The texts.
        clips (`torch.LongTensor` of shape `(pairs,)`): The rows of the clips in the global batch.
        condition_mask (`torch.BoolTensor` of shape `(pairs, condition tokens)`): The condition tokens to read.
        is_match (`torch.BoolTensor` of shape `(pairs,)`): Whether the text belongs to the clip.
        num_pairs (`float`): The mean number of pairs per process.
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
    Choose matched pairs, texts with a negative clip, and negative texts with a clip, from the global batch.

    A clip without condition tokens is in no pair, and a negative is of another clip.

    Args:
        batch ([`Batch`]): The embeddings of the step; b of the rows are on this process.
        input_ids, attention_mask (`torch.LongTensor` of shape `(b, tokens)`): This process's texts.
        condition_mask (`torch.BoolTensor` of shape `(b, condition tokens)`): The condition tokens of its clips.
        draws (`torch.Tensor` of shape `(b, 2)`): Uniform numbers in [0, 1), for the negative clip and text.
        temperature (`float` or a scalar `torch.Tensor`): See [`draw_negatives`].
        paired (`bool`): Whether to draw by C~ of Eq. 5, which aggregates each clip once for its own text, not by C.

    Returns:
        [`MatchingPairs`] of this process, at most `3 * b`.
    """
    # The condition masks and texts of all processes.
    rows = batch.rows
    condition_mask = rows.gather(condition_mask, ragged=True)
    tokens = rows.gather(torch.stack([input_ids, attention_mask], dim=-1), ragged=True)
    input_ids, attention_mask = tokens.unbind(-1)
    readable = condition_mask.any(dim=1)  # (B,)
    offset = rows.offset
    own = torch.arange(len(batch.texts), device=readable.device) + offset
    draws = draws.to(readable.device)
    # With the graph, if any: the batch keeps the matrices for the objective.
    if paired:
        text_to_clip = batch.text_to_paired_clip
        clip_to_text = batch.paired_clip_to_text
    else:
        text_to_clip = batch.text_to_clip
        clip_to_text = batch.clip_to_text
    # One hard negative in each direction: clips that have condition tokens, and texts of other clips.
    of_other_clips = torch.ones_like(text_to_clip, dtype=torch.bool)
    if batch.same_clip is not None:
        of_other_clips = ~batch.same_clip
    wrong_clips = draw_negatives(text_to_clip, of_other_clips & readable, draws[:, 0], offset, temperature)
    wrong_texts = draw_negatives(clip_to_text, of_other_clips, draws[:, 1], offset, temperature)
    # The three groups of pairs, without those that lack a negative or condition tokens.
    texts = torch.cat([own, own, wrong_texts])
    clips = torch.cat([own, wrong_clips, own])
    is_match = torch.arange(len(texts), device=own.device) < len(own)
    keep = (texts >= 0) & (clips >= 0)
    keep &= readable[clips.clamp(min=0)]
    texts = texts[keep]
    clips = clips[keep]
    is_match = is_match[keep]
    num_pairs = mean_over_processes(len(is_match), is_match.device)
    return MatchingPairs(input_ids[texts], attention_mask[texts], clips, condition_mask[clips], is_match, num_pairs)


__all__ = [
    "MatchingPairs",
    "choose_pairs",
    "derived_generator",
    "draw_negatives",
    "full_view_probability",
    "reduced_views",
]
