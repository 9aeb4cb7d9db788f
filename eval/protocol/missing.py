"""Deterministic missing-modality masks (SCALAR, supplement, "Deterministic missing-modality masks").

A mask depends on the identifier of a clip and a seed alone: not on order, batch, method or process. The masks of a
lower rate are contained in those of a higher one, and every method is scored under the same ones.

Imports nothing slow: settings check their rates here, before torch is loaded.
"""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

RATES = (0.0, 0.25, 0.5, 0.75, 0.9)
"""Fractions of the clips that lose a modality: those of the paper's Table 3."""

MASK_SEED = 0
"""Of the masks of every evaluation."""


def check_rate(rate: float) -> None:
    """Raise a ValueError unless `rate` is a fraction between 0 and 1."""
    if not 0 <= rate <= 1:
        raise ValueError(f"`rate` is the fraction of clips that lose a modality, between 0 and 1; got {rate!r}.")


def ladder(modalities: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the sets of modalities that the whole gallery has in turn: the first, the first two, and so on up to all,
    with nothing masked. For the paper's three modalities these are the sets of its Table S5."""
    return [tuple(modalities[:number]) for number in range(1, len(modalities) + 1)]


def masked_modality(clip_id: str, rate: float, num_available: int, seed: int = MASK_SEED) -> int | None:
    """
    Choose which of a clip's available modalities is masked at a rate, if any.

    With `H = MD5(seed || clip_id)` written in hexadecimal, the first 32 bits give `u` in [0, 1) and the clip is masked
    when `u < rate`; the next 32 bits, modulo `num_available`, give the modality, whatever the rate.

    Args:
        clip_id (`str`): identifier of the clip.
        rate (`float`): fraction of clips that lose a modality, between 0 and 1.
        num_available (`int`): number of modalities the clip has.
        seed (`int`): seed of the masks, written in decimal before the identifier.

    Returns:
        `int` or `None`: index into the modalities *the clip has*, in their order; `None` if not masked.

    Raises:
        ValueError: `rate` is outside [0, 1].

    Example:

    ```python
    >>> masked_modality("video0", rate=0.75, num_available=3)
    2
    ```
    """
    check_rate(rate)
    # Both numbers come from the identifier and the seed alone.
    digest = hashlib.md5(f"{seed}{clip_id}".encode(), usedforsecurity=False).hexdigest()
    return None if int(digest[:8], 16) / 2**32 >= rate else int(digest[8:16], 16) % num_available


def mask_modalities(
    clip_ids: Sequence[str], modality_mask: "torch.Tensor", rate: float, seed: int = MASK_SEED
) -> "torch.BoolTensor":
    """
    Remove one modality from a fraction of clips.

    A clip with a single modality keeps it at every rate: without it the clip could not be scored, and clips are never
    dropped from a gallery. The share of clips that lose a modality can therefore be below `rate`.

    Args:
        clip_ids (`Sequence[str]`): one identifier per row of `modality_mask`.
        modality_mask (`torch.BoolTensor` of shape `(clips, modalities)`): modalities of each clip. Not changed.
        rate (`float`): fraction of clips that lose a modality, between 0 and 1.
        seed (`int`): seed of the masks.

    Returns:
        `torch.BoolTensor` of shape `(clips, modalities)`: modalities that each clip has left.

    Raises:
        ValueError: `rate` is outside [0, 1], or there is not one identifier per row.
    """
    check_rate(rate)  # also if no clip has two modalities
    masked = modality_mask.clone()
    for row, (clip_id, present) in enumerate(zip(clip_ids, modality_mask.tolist(), strict=True)):
        # A clip with one modality keeps it.
        available = [index for index, here in enumerate(present) if here]
        if len(available) < 2:
            continue
        index = masked_modality(clip_id, rate, len(available), seed)
        if index is not None:
            masked[row, available[index]] = False
    return masked


def rate_masks(clip_ids: Sequence[str], modality_mask: "torch.Tensor", rates: Sequence[float]) -> "list[torch.Tensor]":
    """Return the mask of [`mask_modalities`] at each rate, at least one; 0 is the plain protocol."""
    if not rates:
        raise ValueError("`rates` is empty; expected at least one masking rate, 0 for the plain protocol.")
    return [mask_modalities(clip_ids, modality_mask, rate) for rate in rates]


def ladder_masks(modality_mask: "torch.Tensor") -> "list[torch.Tensor]":
    """Return the modalities that each clip `(clips, M)` has left with each set of [`ladder`]."""
    masks = []
    for number in range(1, modality_mask.shape[1] + 1):
        mask = modality_mask.clone()
        mask[:, number:] = False
        masks.append(mask)
    return masks


__all__ = [
    "MASK_SEED",
    "RATES",
    "check_rate",
    "ladder",
    "ladder_masks",
    "mask_modalities",
    "masked_modality",
    "rate_masks",
]
