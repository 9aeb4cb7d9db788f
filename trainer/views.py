"""Reduced-arity views: the same embeddings with one modality hidden (Algorithm S2, steps 3 and 4)."""

import torch


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
    modality_mask: torch.Tensor, full_probability: float, draws: torch.Tensor, min_modalities: int = 2
) -> torch.Tensor:
    """
    Hide one modality, drawn uniformly from what a clip has, in a fraction of the clips that have enough.

    Args:
        modality_mask (`torch.BoolTensor` of shape `(batch, 3)`): what each clip has.
        full_probability (`float`): probability that a clip keeps everything.
        draws (`torch.Tensor` of shape `(batch, 2)`): uniform numbers in [0, 1): whether, and which. Given from
            outside, so that a clip draws the same on every device and whichever process it lies on.
        min_modalities (`int`): how many a view must keep, so that clips with no more stay complete. The paper's is 2;
            with 1 a clip that has two may lose one of them as well.

    Returns:
        `torch.BoolTensor` of shape `(batch, 3)`, a subset of `modality_mask` that lacks at most one of its True in a
        row, and none where a row has no more than `min_modalities`.
    """
    draws = draws.to(modality_mask.device)
    num_present = modality_mask.sum(1)
    reduced = (draws[:, 0] >= full_probability) & (num_present > min_modalities)
    which = (draws[:, 1] * num_present).long()  # among the present ones
    hidden = modality_mask & (modality_mask.cumsum(1) - 1 == which[:, None])
    return modality_mask & ~(hidden & reduced[:, None])


__all__ = ["full_view_probability", "reduced_views"]
