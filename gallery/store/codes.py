"""The vectors of clips in eight bits, after a rotation, and their errors: see
[`~scalar_retrieval.gallery.exact.ranking`].

Shapes: N clips, M modalities, D dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import torch

_ROTATED = 2.0**-23  # times the dimension: largest error of a rotation in float32
_ENCODED_AT_ONCE = 512  # clips
_TRIED_TEXTS = (1, 33)
_TRIED_CLIPS = (1, 33, 512)


@dataclass(frozen=True, eq=False)
class Codes:
    """
    The vectors of clips in eight bits: `scale * codes` differs from each by at most `error`.

    Args:
        codes: for each modality a `torch.Tensor` of int8, of the shape of its vectors, zero where absent.
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
    # Codes are stored, so the signs must be the same with every version of every library: Lehmer's generator is one
    # line of integers.
    state = 1
    for number in range(dim):
        state = state * 48271 % 2147483647
        if not state & 1024:
            cosines[number] *= -1
    return torch.from_numpy(cosines)


def encode(modalities: Sequence[torch.Tensor]) -> Codes:
    """Convert vectors, `(N, D)` per modality, whose D may differ, to eight bits, after [`rotation`]."""
    turns = [rotation(vectors.shape[1]).float() for vectors in modalities]
    codes = [torch.empty(vectors.shape, dtype=torch.int8) for vectors in modalities]
    scales = torch.empty(len(modalities[0]))
    errors = torch.empty(len(modalities[0]))
    # A few clips at a time stay in cache.
    for start in range(0, len(scales), _ENCODED_AT_ONCE):
        clips = slice(start, start + _ENCODED_AT_ONCE)
        block = [vectors[clips].float() @ turn for vectors, turn in zip(modalities, turns, strict=True)]
        # The largest coordinate of any modality becomes 127; a clip without any vector has no scale.
        largest = torch.stack([turned.abs().amax(1) for turned in block]).amax(0)
        scale = (largest / 127).clamp(min=1e-30)
        scales[clips] = scale
        errors[clips] = 0
        for code, turned in zip(codes, block, strict=True):
            rounded = (turned / scale[:, None]).round_()
            code[clips] = rounded
            # What rounding lost is measured, not assumed. The rotation in float32 has an error of its own.
            lost = torch.addcmul(turned, rounded, scale[:, None], value=-1).square().sum(1).sqrt()
            error = lost * (1 + 1e-5) + _ROTATED * turned.shape[1]
            errors[clips] = torch.maximum(errors[clips], error)
    return Codes(codes, scales, errors)


def are_codes_of(codes: Codes, modalities: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return for which clips `(N,)` the codes differ from the vectors by no more than their stated error."""
    scale = codes.scale[:, None].double()
    is_near = torch.ones(len(scale), dtype=torch.bool)
    for vectors, code in zip(modalities, codes.codes, strict=True):
        lost = vectors.double() @ rotation(vectors.shape[1]) - code.double() * scale
        is_near &= lost.square().sum(1).sqrt() <= codes.error.double()
    return is_near


@cache
def multiplies_eight_bits(dim: int) -> bool:
    """Whether products of int8 matrices of D columns are exact on this machine: without instructions for them, sums of
    a few large products may saturate at 16 bits, and torch writes no products of single columns."""
    draw = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (_TRIED_CLIPS[-1], dim), generator=draw).mul_(254).sub_(127)
    # Sums of products of one sign are the largest.
    signs[0] = 127
    signs[1] = -127
    codes = signs.to(torch.int8)
    expected = (signs[: _TRIED_TEXTS[-1]].double() @ signs.T.double()).int()
    # One text and many, with one clip and many. No product is 1, so what is not written is noticed.
    for num_texts, num_clips in product(_TRIED_TEXTS, _TRIED_CLIPS):
        products = torch.ones(num_texts, num_clips, dtype=torch.int32)
        try:
            torch._int_mm(codes[:num_texts], codes[:num_clips].T, out=products)
        except (AttributeError, RuntimeError):  # not in this version of torch
            return False
        if not torch.equal(products, expected[:num_texts, :num_clips]):
            return False
    return True


__all__ = ["Codes", "are_codes_of", "encode", "multiplies_eight_bits", "rotation"]
