"""The vectors of clips in eight bits, after a rotation, and their errors: see [`~gallery.exact.ranking`].

Shapes: N clips, M modalities, D dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

_ROTATED = 2.0**-23  # times the dimension: largest error of a rotation in float32


@dataclass(frozen=True, eq=False)
class Codes:
    """
    The vectors of clips in eight bits: `scale * codes` differs from each by at most `error`.

    Args:
        codes: for each modality a `torch.Tensor` of shape `(N, D)` of int8, zero where absent.
        scale (`torch.FloatTensor` of shape `(N,)`), error (`torch.FloatTensor` of shape `(N,)`): of all modalities.
    """

    codes: Sequence[torch.Tensor]
    scale: torch.Tensor
    error: torch.Tensor


@cache
def rotation(dim: int) -> torch.Tensor:
    """
    Make an orthogonal matrix that spreads a few large coordinates over all coordinates.

    Embeddings have a few large coordinates, which would determine the scale of the codes, and so the error of all
    others. After fixed pseudorandom signs and a discrete cosine transform, they have none.

    Returns:
        `torch.DoubleTensor` of shape `(dim, dim)`: `vectors @ rotation(dim)`.
    """
    numbers = np.arange(dim)
    cosines = np.cos(np.pi * np.outer(numbers + 0.5, numbers) / dim) * np.sqrt(2 / dim)
    cosines[:, 0] /= np.sqrt(2)
    state, signs = 1, np.empty(dim)
    for number in range(dim):
        state = state * 48271 % 2147483647  # Lehmer's generator needs no library
        signs[number] = 1 if state & 1024 else -1
    return torch.from_numpy(signs[:, None] * cosines)


def encode(modalities: Sequence[torch.Tensor]) -> Codes:
    """Convert vectors, `(N, D)` per modality, to eight bits, after [`rotation`]."""
    found, turn = [], rotation(modalities[0].shape[1]).float()
    for blocks in zip(*(vectors.split(512) for vectors in modalities), strict=True):
        block = torch.stack([vectors.float() for vectors in blocks], dim=1) @ turn  # (B, M, D)
        scale = (block.abs().amax((1, 2)) / 127).clamp(min=1e-30)
        codes = (block / scale[:, None, None]).round_()
        lost = torch.addcmul(block, codes, scale[:, None, None], value=-1).square().sum(2).sqrt().amax(1)
        found.append((codes.to(torch.int8), scale, lost * (1 + 1e-5) + _ROTATED * len(turn)))
    if not found:
        return Codes([vectors.to(torch.int8) for vectors in modalities], torch.empty(0), torch.empty(0))
    codes, scale, error = map(torch.cat, zip(*found, strict=True))
    return Codes([column.contiguous() for column in codes.unbind(1)], scale, error)


def are_codes_of(codes: Codes, modalities: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return for which clips `(N,)` the codes differ from the vectors by no more than their stated error."""
    turn = rotation(modalities[0].shape[1])
    far = [
        (vectors.double() @ turn - code.double() * codes.scale[:, None].double()).square().sum(1).sqrt()
        for vectors, code in zip(modalities, codes.codes, strict=True)
    ]
    return torch.stack(far).amax(0) <= codes.error.double()


@cache
def multiplies_eight_bits() -> bool:
    """Whether products of int8 matrices are exact on this machine: without instructions for them, sums of a few large
    products may saturate at 16 bits."""
    draw = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (33, 512), generator=draw).mul_(254).sub_(127)
    signs[0], signs[1] = 127, -127
    codes = signs.to(torch.int8)
    try:
        return torch.equal(torch._int_mm(codes, codes.T).long(), signs @ signs.T)
    except (AttributeError, RuntimeError):  # not in this version of torch
        return False


__all__ = ["Codes", "are_codes_of", "encode", "multiplies_eight_bits", "rotation"]
