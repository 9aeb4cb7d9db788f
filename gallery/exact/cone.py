"""How large a score can be, whatever its weights, by the cone of a clip's vectors; and by how much errors change it.

What is bounded, and why, stands in [`~gallery.exact.screening`]. All of it holds for any number of modalities. Nothing
relies on how well a Gram matrix can be solved: bounds follow from whatever weights are found, and allow for the rest.

Shapes: N clips, M modalities, P pairs of a query and a clip.
"""

import math

import torch

from modeling_scalar.scores_scalar import gram_factor

LONGEST = 1.02  # of vectors that are kept as unit vectors
ROUNDING = 1e-6  # of a few operations in float32 on numbers of about 1
_ROUNDED = 1e-7  # more than what float32 leaves open of an inner product in a Gram matrix
_CANCELLING = 0.1  # a distance from 0 below which Gram matrices in float32 have too few digits for small errors
_AT_ONCE = 2048  # Gram matrices that are solved at a time, in cache
_AT_ONCE_CHANGED, _TURNS = 8, 64  # turns in which all that is wrong changes; after which any weights will do
_ZERO = 1e-10  # what is less below 0 is rounding


# Gram matrices ------------------------------------------------------------------------------------------------------


def _solved(factor: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Solve Gram matrices for `target` `(P, M)`, by [`~modeling_scalar.scores_scalar.gram_factor`] `(M, M, P)`."""
    found = list(target.unbind(1))
    for m in range(len(found)):
        for k in range(m):
            found[m] = torch.addcmul(found[m], factor[m, k], found[k], value=-1)
        found[m] = found[m] / factor[m, m]
    for m in reversed(range(len(found))):
        for k in range(m + 1, len(found)):
            found[m] = torch.addcmul(found[m], factor[k, m], found[k], value=-1)
        found[m] = found[m] / factor[m, m]
    return torch.stack(found, dim=1)


def _products(gram: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Inner products `(P, M)` of vectors with their sum by `weights` `(P, M)`."""
    found = torch.zeros_like(weights)
    for m, weight in enumerate(weights.split(1, dim=1)):  # sums along short rows are slow
        found.addcmul_(gram[:, m], weight)
    return found


def _nearest(gram: torch.Tensor, target: torch.Tensor, modality_mask: torch.Tensor) -> torch.Tensor:
    """
    Find weights >= 0, `(P, M)`, by which the sum of what clips have is as near as can be to texts whose inner products
    with it are `target` `(P, M)`; nearly always.

    They solve the Gram matrix of what is weighed, and the sum has no smaller products with the rest. What violates
    this changes sides until nothing does. If that takes long, one at a time does, which comes to an end where matrices
    are positive definite (K. G. Murty, 1974): hence the ridge, of what rounding may have taken from eigenvalues.
    """
    number = gram.shape[1]
    ridge = torch.eye(number, dtype=torch.float64, device=gram.device)
    ridge *= max(number * torch.finfo(gram.dtype).eps, 1e-12)
    found = []
    for matrices, products, present in zip(*(x.split(_AT_ONCE) for x in (gram, target, modality_mask)), strict=True):
        matrices, rows = matrices.double(), torch.arange(len(matrices), device=gram.device)
        weights, chosen = torch.zeros_like(products), present & (products > 0)
        for turn in range(_TURNS):
            few = torch.where(chosen[:, :, None] & chosen[:, None], matrices, 0) + ridge
            solved = _solved(gram_factor(few), torch.where(chosen, products, 0))
            weights.index_copy_(0, rows, solved)
            is_wrong = torch.where(chosen, solved < -_ZERO, present & (products - _products(matrices, solved) > _ZERO))
            again = is_wrong.any(1).nonzero()[:, 0]
            if not len(again):
                break
            matrices, products, present, chosen, is_wrong, rows = (
                x.index_select(0, again) for x in (matrices, products, present, chosen, is_wrong, rows)
            )
            if turn >= _AT_ONCE_CHANGED:
                is_wrong &= is_wrong.flip(1).cumsum(1).flip(1) == 1  # the last one
            chosen = chosen ^ is_wrong
        found.append(weights.clamp(min=0))
    return torch.cat(found)


def hull_distance(gram: torch.Tensor, modality_mask: torch.Tensor) -> torch.Tensor:
    """
    Compute how far the convex hull of each clip's vectors is from 0: no weights that sum to 1 make a shorter sum.

    The square is w'Gw of the best weights w, which are the direction of the nearest sum to a text with an inner
    product of 1 with each vector. As w'Gw is convex, it is nowhere less than 2 min_m (Gw)_m - w'Gw of any weights.

    Args:
        gram (`torch.Tensor` of shape `(N, M, M)`): inner products, zero where absent.
        modality_mask (`torch.BoolTensor` of shape `(N, M)`): what each clip has.

    Returns:
        `torch.DoubleTensor` of shape `(N,)`, at most 1 for unit vectors. Its square is never too large by more than
        three times what the inner products miss.
    """
    weights = _nearest(gram, modality_mask.double(), modality_mask)
    weights /= weights.sum(1, keepdim=True).clamp(min=1e-30)
    products = _products(gram.double(), weights)
    least = products.masked_fill(~modality_mask, math.inf).amin(1)
    return (2 * least - (weights * products).sum(1)).clamp(min=0).sqrt()


def inverse_of(gram: torch.Tensor, modality_mask: torch.Tensor) -> torch.Tensor:
    """
    Invert Gram matrices of what each clip has.

    Returns:
        `torch.FloatTensor` of shape `(N, M (M + 1) / 2)`: the upper triangle, row by row, with what stands beside the
        diagonal twice; zero where absent; next to infinity on the diagonal where an inverse has too few digits.
    """
    number, found = gram.shape[1], []
    upper = torch.triu_indices(number, number, device=gram.device)
    units = torch.eye(number, dtype=torch.float64, device=gram.device)
    for matrices, present in zip(gram.split(_AT_ONCE), modality_mask.split(_AT_ONCE), strict=True):
        factor = gram_factor(matrices.double())
        inverse = torch.stack([_solved(factor, unit.expand(len(matrices), -1)) for unit in units], dim=1)
        inverse *= present[:, :, None] & present[:, None]
        # With S the sum of what it holds, squares by it miss a share of at most (2 M + 3) 6e-8 S, see `spanned_bound`.
        is_safe = inverse.abs().sum((1, 2), keepdim=True) <= 1e4 / (2 * number + 3)
        inverse = torch.where(is_safe, inverse, 1e30 * torch.diag_embed(present.double()))
        found.append((inverse * (2 - units))[:, upper[0], upper[1]].float())
    return torch.cat(found)


def spanned_bound(upper: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """
    Bound as [`cone_bound`] does where that is positive, for less: by the projection of what is above 0 on the span of
    the clip's vectors, c' G^-1 c with c = max(`upper`, 0). (P,)

    That is at least c_m^2 / |z_m|^2 for each m. A sum in float32 of M (M + 1) / 2 products misses (M + 3) 6e-8 of its
    absolute terms, which are at most S max_m c_m^2, and an inverse of a Gram matrix in float32 a share of M 6e-8 S.
    """
    columns, total = iter(inverse.unbind(1)), torch.zeros_like(upper[:, 0])
    positive = upper.clamp(min=0).unbind(1)
    for m, first in enumerate(positive):
        row = first * next(columns)
        for second in positive[m + 1 :]:
            row = torch.addcmul(row, second, next(columns))
        total = torch.addcmul(total, first, row)
    return total.clamp(min=0).sqrt() * (1 + 1e-3)


def cone_bound(
    upper: torch.Tensor, gram: torch.Tensor, modality_mask: torch.Tensor, rho: torch.Tensor
) -> torch.Tensor:
    """
    Bound F(w, c) over all weights w >= 0 and all c <= `upper`: by P(`upper`), or what is hardly more.

    Of any sum x of the vectors, F(w, c) is at most |x| plus the most by which an inner product of x with a vector is
    below c, divided by rho: of the sum nearest to a text with the inner products `upper`, which is P, and nothing.

    Args:
        upper (`torch.DoubleTensor` of shape `(P, M)`): the most that (calibrated) cosines may be.
        gram (`torch.Tensor` of shape `(P, M, M)`), modality_mask (`torch.BoolTensor` of shape `(P, M)`).
        rho (`torch.DoubleTensor` of shape `(P,)`): at most [`hull_distance`], and above 0.

    Returns:
        `torch.DoubleTensor` of shape `(P,)`.
    """
    largest = upper.masked_fill(~modality_mask, -1e30).amax(1)
    weights = _nearest(gram, upper, modality_mask)
    products, missed = _products(gram.double(), weights), _ROUNDED * weights.sum(1)
    lacking = (upper - products).masked_fill(~modality_mask, 0).amax(1).clamp(min=0) + missed
    norm = ((weights * products).sum(1) + missed * weights.sum(1)).clamp(min=0).sqrt()
    simple = torch.where(largest > 0, largest / rho, largest / LONGEST)
    return torch.where(largest > 0, torch.minimum(norm + lacking / rho, simple), simple)


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
    "cone_bound",
    "hull_distance",
    "inverse_of",
    "product_error",
    "score_error",
    "spanned_bound",
]
