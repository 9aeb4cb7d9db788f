"""How large a score can be for any weights, from the cone of a clip's vectors; and how much errors change it.

[`~gallery.exact.screening`] says what is bounded, and why. All of it holds for any number of modalities. Nothing
relies on solving a Gram matrix accurately: bounds follow from whatever weights are found, and allow for errors.

Shapes: N clips, M modalities, P pairs of a query and a clip.
"""

import math
from collections.abc import Iterator

import torch

LONGEST = 1.02  # norm of vectors stored as unit vectors
ROUNDING = 1e-6  # error of a few operations in float32 on numbers of about 1
_ROUNDED = 1e-7  # more than the float32 error of an inner product in a Gram matrix
_CANCELLING = 0.1  # distance from 0 below which float32 Gram matrices have too few digits for small errors
_AT_ONCE = 2**18  # numbers in the Gram matrices that are solved at a time, in cache
_ALL_CHANGE, _TURNS = 8, 64  # iterations in which all violations change; after which any weights will do
_LEAST_PIVOT = 1e-14  # anything below is rounding in float64
_ZERO = 1e-10  # anything less below 0 is rounding


# Gram matrices ------------------------------------------------------------------------------------------------------


def _in_cache(gram: torch.Tensor, *others: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Chunks of Gram matrices, and the corresponding rows of others."""
    size = max(_AT_ONCE // gram.shape[1] ** 2, 1)
    return zip(gram.split(size), *(other.split(size) for other in others), strict=True)


def _columns(*rows: torch.Tensor) -> Iterator[torch.Tensor]:
    """The same with the first axis last, `(M, P)` of `(P, M)`: sums along short rows are slow."""
    return (values.movedim(0, -1).contiguous() for values in rows)


def _solved(gram: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Solve Gram matrices `(M, M, P)` for `target` `(M, ..., P)` by elimination. If they are singular, as with absent
    vectors (a row of zeros), returns some solution, or something large."""
    rows, found = [list(row) for row in gram], list(target)
    for k in range(len(found)):
        rows[k][k] = rows[k][k].clamp(min=_LEAST_PIVOT)
        for m in range(k + 1, len(found)):
            share = rows[m][k] / rows[k][k]
            for n in range(k + 1, m + 1):
                rows[m][n] = torch.addcmul(rows[m][n], share, rows[n][k], value=-1)
            found[m] = torch.addcmul(found[m], share, found[k], value=-1)
    for k in reversed(range(len(found))):
        for m in range(k + 1, len(found)):
            found[k] = torch.addcmul(found[k], rows[m][k], found[m], value=-1)
        found[k] = found[k] / rows[k][k]
    return torch.stack(found)


def _nearest(
    gram: torch.Tensor, target: torch.Tensor, modality_mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Find weights >= 0, `(M, P)`, so that the weighted sum of a clip's vectors is as near as possible, nearly always, to
    a text whose inner products with them are `target` `(P, M)`; and the inner products `(M, P)` with that sum.

    The weights solve the Gram matrix of the weighted vectors; products of the sum with the others reach their targets.
    Violations change sides until there are none. If that takes long, one at a time does, which terminates if matrices
    are positive definite (K. G. Murty, 1974): hence the ridge, of the size that rounding may take from eigenvalues.
    """
    found, ridge = [], max(gram.shape[1] * torch.finfo(gram.dtype).eps, 1e-12)
    for some in _in_cache(gram, target, modality_mask):
        whole, products, present = _columns(some[0].double(), *some[1:])
        matrices, rows = whole.clone(), torch.arange(whole.shape[2], device=gram.device)
        weights, chosen = torch.zeros_like(products), present & (products > 0)
        for turn in range(_TURNS):
            matrices.diagonal().add_(ridge)
            of_those = chosen.double()
            solved = _solved(matrices * of_those[:, None] * of_those, products * of_those)
            weights.index_copy_(1, rows, solved)
            others = products - (matrices * solved).sum(1)
            is_wrong = torch.where(chosen, solved < -_ZERO, present & (others > _ZERO))
            again = is_wrong.any(0).nonzero()[:, 0]
            if not len(again):
                break
            if turn >= _ALL_CHANGE:
                is_wrong &= is_wrong.flip(0).cumsum(0).flip(0) == 1  # the last one
            rows, chosen = rows.index_select(0, again), (chosen ^ is_wrong).index_select(1, again)
            # Rows are gathered several times as fast as columns.
            matrices, products, present = _columns(*(values.index_select(0, rows) for values in some))
            matrices = matrices.double()
        weights.clamp_(min=0)
        found.append((weights, (whole * weights).sum(1)))
    weights, products = zip(*found, strict=True)
    return torch.cat(weights, dim=1), torch.cat(products, dim=1)


def hull_distance(gram: torch.Tensor, modality_mask: torch.Tensor) -> torch.Tensor:
    """
    Compute the distance of the convex hull of each clip's vectors from 0, the least norm of any weighted mean.

    If a sum x of the vectors has inner products of at least p with each, then also with all points of their hull, none
    of which can be nearer than p / |x|. For the sum nearest to a text with a product of 1 with each, this is the
    distance.

    Args:
        gram (`torch.Tensor` of shape `(N, M, M)`): inner products, zero where absent.
        modality_mask (`torch.BoolTensor` of shape `(N, M)`): the modalities of each clip.

    Returns:
        `torch.DoubleTensor` of shape `(N,)`, at most 1 for unit vectors. Its square exceeds the true one by at most
        three times the error of the inner products.
    """
    weights, products = _nearest(gram, modality_mask.double(), modality_mask)
    least = products.masked_fill(~modality_mask.T, math.inf).amin(0).clamp(min=0)
    return least / (weights * products).sum(0).clamp(min=1e-30).sqrt()


def inverse_of(gram: torch.Tensor, modality_mask: torch.Tensor) -> torch.Tensor:
    """
    Invert the Gram matrices of the modalities that each clip has.

    Returns:
        `torch.FloatTensor` of shape `(N, M (M + 1) / 2)`: the upper triangle, row by row, with off-diagonal entries
        doubled; zero where absent; almost infinite on the diagonal if an inverse has too few digits.
    """
    number, found = gram.shape[1], []
    upper = torch.triu_indices(number, number, device=gram.device)
    units = torch.eye(number, dtype=torch.float64, device=gram.device)[..., None]
    for some in _in_cache(gram, modality_mask):
        matrices, present = _columns(some[0].double(), some[1])
        inverse = _solved(matrices, units.expand_as(matrices)) * (present[:, None] & present)
        # With S the sum of entries, the relative error of squares is at most (2 M + 3) 6e-8 S, see `spanned_bound`.
        is_safe = inverse.abs().sum((0, 1)) <= 1e4 / (2 * number + 3)
        inverse = torch.where(is_safe, inverse * (2 - units), 1e30 * units * present)
        found.append(inverse[upper[0], upper[1]].float().T)
    return torch.cat(found)


def spanned_bound(upper: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """
    Bound F(w, c) over all weights w >= 0 and all c <= `upper`, where that is positive: by the projection of
    max(`upper`, 0) on the span of the clip's vectors, c' G^-1 c with c = max(`upper`, 0). (P,)

    That is at least c_m^2 / |z_m|^2 for each m. A float32 sum of M (M + 1) / 2 products has an error of (M + 3) 6e-8
    of its absolute terms, which are at most S max_m c_m^2, and a float32 inverse of a Gram matrix one of M 6e-8 S.
    """
    columns, total = iter(inverse.unbind(1)), torch.zeros_like(upper[:, 0])
    positive = upper.clamp(min=0).unbind(1)
    for m, first in enumerate(positive):
        row = first * next(columns)
        for second in positive[m + 1 :]:
            row = torch.addcmul(row, second, next(columns))
        total = torch.addcmul(total, first, row)
    return total.clamp(min=0).sqrt() * (1 + 1e-3)


# Errors -------------------------------------------------------------------------------------------------------------


def score_error(largest: torch.Tensor, rho: torch.Tensor, error: float, temperature: float) -> torch.Tensor:
    """
    Bound how much a score changes if no cosine changes by more than `error`.

    The derivative of the score s by a cosine is w_m (1 + (c_m - s b_m) / temperature) / |sum_m w_m z_m|, with b_m at
    most the norm of z_m, |s| at most max_m |c_m| / rho, and weights that sum to 1.

    Args:
        largest (`torch.DoubleTensor` of shape `(P,)`): largest absolute (calibrated) cosine of a clip's modalities.
        rho (`torch.DoubleTensor` of shape `(P,)`): at most [`hull_distance`], and above 0.
        error (`float`), temperature (`float`).

    Returns:
        `torch.DoubleTensor` of shape `(P,)`; infinity if a float32 Gram matrix has too few digits.
    """
    largest = largest + error
    slope = (1 + largest * (1 + LONGEST / rho) / temperature) / rho
    rounded = 1e-6 * largest / rho**3  # a float32 Gram matrix has an error of 6e-8
    return (slope * error + rounded).masked_fill(rho <= _CANCELLING, math.inf)


def product_error(dim: int, norm: float, vectors: torch.Tensor) -> float:
    """Bound the error of inner products of texts of this norm with clips' vectors, summed in float32 on the device of
    `vectors`; if torch is set to a lower precision, of products in that."""
    allowed = {"highest": 0.0, "high": 2.0**-9, "medium": 2.0**-7}[torch.get_float32_matmul_precision()]
    if vectors.is_cuda and torch.backends.cuda.matmul.allow_tf32:
        allowed = max(allowed, 2.0**-9)
    return (dim * 2.0**-24 + allowed) * norm * LONGEST + ROUNDING


__all__ = [
    "LONGEST",
    "ROUNDING",
    "hull_distance",
    "inverse_of",
    "product_error",
    "score_error",
    "spanned_bound",
]
