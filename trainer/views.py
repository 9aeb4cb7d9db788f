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


def reduced_views(modality_mask: torch.Tensor, full_probability: float, draws: torch.Tensor) -> torch.Tensor:
    """
    Hide one modality, drawn uniformly from what a clip has, in a fraction of the clips that have more than two.

    Args:
        modality_mask (`torch.BoolTensor` of shape `(batch, 3)`): what each clip has.
        full_probability (`float`): probability that a clip keeps everything.
        draws (`torch.Tensor` of shape `(batch, 2)`): uniform numbers in [0, 1): whether, and which. Given from
            outside, so that a clip draws the same on every device and whichever process it lies on.

    Returns:
        `torch.BoolTensor` of shape `(batch, 3)`, a subset of `modality_mask` with at least two True wherever it had
        more than two.
    """
    draws = draws.to(modality_mask.device)
    num_present = modality_mask.sum(1)
    reduced = (draws[:, 0] >= full_probability) & (num_present > 2)
    which = (draws[:, 1] * num_present).long()  # among the present ones
    hidden = modality_mask & (modality_mask.cumsum(1) - 1 == which[:, None])
    return modality_mask & ~(hidden & reduced[:, None])


__all__ = ["full_view_probability", "reduced_views"]
