"""How large a score can be, whatever its weights, by the cone of a clip's vectors; and by how much errors change it.

What is bounded, and why, stands in [`~gallery.exact.screening`]. Shapes: N clips, D dimensions, P pairs of a query and
a clip.
"""

import math

import torch

LONGEST = 1.02  # of vectors that are kept as unit vectors
ROUNDING = 1e-6  # of a few operations in float32 on numbers of about 1
_CANCELLING = (
    0.1  # by a distance from 0 less than this, only the cheaper bound is safe from the rounding of Gram matrices
)
_LEAST_DETERMINANT = 1e-9


def hull_distance(gram: torch.Tensor, modality_mask: torch.Tensor) -> torch.Tensor:
    """
    Compute how far the convex hull of each clip's vectors is from 0: no weights that sum to 1 make a shorter sum.

    Args:
        gram (`torch.Tensor` of shape `(N, 3, 3)`): inner products, zero where absent.
        modality_mask (`torch.BoolTensor` of shape `(N, 3)`): what each clip has.

    Returns:
        `torch.DoubleTensor` of shape `(N,)`, at most 1 for unit vectors.
    """
    # The least value of w'Gw over the simplex lies in a vertex, on an edge, or inside.
    gram = gram.double()
    squares = gram.diagonal(dim1=1, dim2=2)
    least = squares.masked_fill(~modality_mask, math.inf).amin(1)
    for m, n in ((0, 1), (0, 2), (1, 2)):
        x, y, g = squares[:, m], squares[:, n], gram[:, m, n]
        inside = modality_mask[:, m] & modality_mask[:, n] & (g < x) & (g < y)
        least = torch.where(inside, torch.minimum(least, (x * y - g * g) / (x + y - 2 * g)), least)
    adjugate, determinant = _adjugate(gram)
    weights = adjugate.sum(2)
    inside = modality_mask.all(1) & (weights > 0).all(1)
    return torch.where(inside, torch.minimum(least, determinant / weights.sum(1)), least).clamp(min=0).sqrt()


def _adjugate(gram: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Adjugates (P, 3, 3) and determinants (P,) of symmetric matrices."""
    (a, d, e), (_, b, f), (_, _, c) = (row.unbind(1) for row in gram.unbind(1))
    rows = [b * c - f * f, e * f - d * c, d * f - e * b], [a * c - e * e, d * e - a * f], [a * b - d * d]
    (first, second, third), (fourth, fifth), (sixth,) = rows
    whole = [first, second, third, second, fourth, fifth, third, fifth, sixth]
    return torch.stack(whole, dim=1).view(-1, 3, 3), a * first + d * second + e * third


UPPER = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))


def inverse_of(gram: torch.Tensor, modality_mask: torch.Tensor) -> torch.Tensor:
    """
    Invert Gram matrices of what each clip has.

    Returns:
        `torch.FloatTensor` of shape `(N, 6)`: the upper triangle, with what stands beside the diagonal twice; zero
        where absent; infinity on the diagonal where an inverse has too few digits.
    """
    gram = gram.double() + torch.diag_embed((~modality_mask).double())
    adjugate, determinant = _adjugate(gram)
    inverse = adjugate / determinant[:, None, None]
    is_unsafe = determinant < 1e-2
    inverse[is_unsafe] = torch.diag(torch.full((3,), 1e30, dtype=torch.float64))
    inverse *= modality_mask[:, :, None] & modality_mask[:, None]
    return torch.stack([inverse[:, m, n] * (1 if m == n else 2) for m, n in UPPER], dim=1).float()


def spanned_bound(upper: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """Bound as [`cone_bound`] does where that is positive, for less: by the projection of what is above 0 on the span
    of the clip's vectors, c' G^-1 c with c = max(`upper`, 0). (P,)"""
    a, b, c = upper.clamp(min=0).unbind(1)
    aa, ab, ac, bb, bc, cc = inverse.unbind(1)
    return (a * (a * aa + b * ab + c * ac) + b * (b * bb + c * bc) + c * c * cc).clamp(min=0).sqrt() * (1 + 1e-3)


def cone_bound(
    upper: torch.Tensor, gram: torch.Tensor, modality_mask: torch.Tensor, rho: torch.Tensor
) -> torch.Tensor:
    """
    Bound F(w, c) over all weights w >= 0 and all c <= `upper`: by P(`upper`), or what is no less.

    Args:
        upper (`torch.DoubleTensor` of shape `(P, 3)`): the most that (calibrated) cosines may be.
        gram (`torch.Tensor` of shape `(P, 3, 3)`), modality_mask (`torch.BoolTensor` of shape `(P, 3)`).
        rho (`torch.DoubleTensor` of shape `(P,)`): at most [`hull_distance`], and above 0.

    Returns:
        `torch.DoubleTensor` of shape `(P,)`.
    """
    upper, gram = upper.masked_fill(~modality_mask, -1e30), gram.double()
    largest = upper.amax(1)
    simple = torch.where(largest > 0, largest / rho, largest / LONGEST)
    squares = gram.diagonal(dim1=1, dim2=2)
    positive = upper.clamp(min=0)
    best = (positive.square() / squares.clamp(min=0.5)).amax(1)  # of one modality
    is_safe = (largest > 0) & (rho > _CANCELLING)
    for m, n in ((0, 1), (0, 2), (1, 2)):
        g = gram[:, m, n]
        x, y = squares[:, n] * upper[:, m] - g * upper[:, n], squares[:, m] * upper[:, n] - g * upper[:, m]
        valid = modality_mask[:, m] & modality_mask[:, n] & (x > 0) & (y > 0)
        determinant = squares[:, m] * squares[:, n] - g * g
        is_safe &= ~valid | (determinant > _LEAST_DETERMINANT)
        best = torch.where(valid, torch.maximum(best, (upper[:, m] * x + upper[:, n] * y) / determinant), best)
    adjugate, determinant = _adjugate(gram)
    weights = (adjugate * upper[:, None]).sum(2)
    valid = modality_mask.all(1) & (weights > 0).all(1)
    is_safe &= ~valid | (determinant > _LEAST_DETERMINANT)
    best = torch.where(valid, torch.maximum(best, (upper * weights).sum(1) / determinant), best)
    # A Gram matrix in float32 misses by 6e-8, so squared norms of sums by that much over the square of their own.
    return torch.where(is_safe, torch.minimum(best.sqrt() * (1 + 1e-5), simple), simple)


# Errors -------------------------------------------------------------------------------------------------------------


def score_error(largest: torch.Tensor, rho: torch.Tensor, error: float, temperature: float) -> torch.Tensor:
    """
    Bound by how much a score changes if no cosine changes by more than `error`.

    The derivative of the score s by a cosine is w_m (1 + (c_m - s b_m) / temperature) / |sum_m w_m z_m|, with b_m at
    most the norm of z_m, |s| at most max_m |c_m| / rho, and weights that sum to 1.

    Args:
        largest (`torch.DoubleTensor` of shape `(P,)`): the largest absolute (calibrated) cosine of what a clip has.
        rho (`torch.DoubleTensor` of shape `(P,)`): at most [`hull_distance`], and above 0.
        error (`float`), temperature (`float`).

    Returns:
        `torch.DoubleTensor` of shape `(P,)`; infinity where a Gram matrix in float32 has too few digits.
    """
    largest = largest + error
    slope = (1 + largest * (1 + LONGEST / rho) / temperature) / rho
    rounded = 1e-6 * largest / rho**3  # a Gram matrix in float32 misses by 6e-8
    return (slope * error + rounded).masked_fill(rho <= _CANCELLING, math.inf)


def product_error(dim: int, norm: float, vectors: torch.Tensor) -> float:
    """Bound the error of inner products of texts of this norm with clips' vectors, summed in float32 on the device of
    `vectors`; where torch was allowed less precision, of products in that."""
    allowed = {"highest": 0.0, "high": 2.0**-9, "medium": 2.0**-7}[torch.get_float32_matmul_precision()]
    if vectors.is_cuda and torch.backends.cuda.matmul.allow_tf32:
        allowed = max(allowed, 2.0**-9)
    return (dim * 2.0**-24 + allowed) * norm * LONGEST + ROUNDING


__all__ = [
    "LONGEST",
    "ROUNDING",
    "UPPER",
    "cone_bound",
    "hull_distance",
    "inverse_of",
    "product_error",
    "score_error",
    "spanned_bound",
]
