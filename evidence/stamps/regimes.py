"""What is wrong with the items: nothing, something is missing, or texts are of other items."""

from dataclasses import dataclass

import torch

from .embedding import Half

REGIMES = ("complete", "missing", "disagreement")
"""The regimes, see `claims.yaml`."""


@dataclass(frozen=True)
class Drawn:
    """
    The items of one half under all draws of one regime.

    Args:
        half ([`Half`]): as embedded.
        modality_embeds (`torch.FloatTensor` of shape `(draws, V, M, D)`), modality_mask (`torch.BoolTensor` of shape
            `(draws, V, M)`): the items as each draw has them.
    """

    half: Half
    modality_embeds: torch.Tensor
    modality_mask: torch.Tensor


def _missing(num_items: int, num_modalities: int, generator: torch.Generator) -> torch.Tensor:
    """A mask `(V, M)`: with probability one half an item lacks one modality, each as likely."""
    lacks = torch.rand(num_items, generator=generator) < 0.5
    lost = torch.randint(num_modalities, (num_items,), generator=generator)
    is_lost = torch.arange(num_modalities) == lost[:, None]
    return ~(is_lost & lacks[:, None])


def _others(num_items: int, generator: torch.Generator) -> torch.Tensor:
    """For each item another one `(V,)`, each once: the items in a random circle, and their neighbours."""
    circle = torch.randperm(num_items, generator=generator)
    others = torch.empty_like(circle)
    others[circle] = circle.roll(1)
    return others


def draw(half: Half, regime: str, num_draws: int, seed: int) -> Drawn:
    """
    Draw the items of a regime.

    Args:
        half ([`Half`]): as embedded.
        regime (`str`): one of [`REGIMES`]; `"complete"` has one draw, whatever `num_draws` is.
        num_draws (`int`): number of draws.
        seed (`int`): seed of all draws.

    Raises:
        ValueError: the regime is unknown.
    """
    if regime not in REGIMES:
        raise ValueError(f"`regime` must be one of {REGIMES}, got {regime!r}.")
    generator = torch.Generator().manual_seed(seed)
    number, num_modalities, _ = half.modality_embeds.shape
    if regime == "complete":
        num_draws = 1

    # One generator for all draws, in turn.
    embeds = []
    masks = []
    for _ in range(num_draws):
        items = half.modality_embeds
        mask = torch.ones(number, num_modalities, dtype=torch.bool)
        if regime == "missing":
            mask = _missing(number, num_modalities, generator)
        if regime == "disagreement":
            # The picture stays, the texts move together.
            items = torch.cat([items[:, :1], items[_others(number, generator), 1:]], dim=1)
        embeds.append(items * mask[..., None])
        masks.append(mask)
    return Drawn(half, torch.stack(embeds), torch.stack(masks))


__all__ = ["REGIMES", "Drawn", "draw"]
