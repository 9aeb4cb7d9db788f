"""Vectors that bound a clip's score from above, for any query at any temperature, for use in a vector engine.

A score that weights modalities by the query is not an inner product with one vector. But it never exceeds the largest
inner product with a few vectors that depend only on the clip:

1. The weights of any query are a point in a simplex whose corners are the M modalities: a triangle if there are three.
   A grid divides it into small simplices. The point is in one of these, so the centroid is a mean of the f_1, ..., f_M
   that belong to its corners.
2. So it is a sum of e_i = f_i / |f_i| with weights v_i >= 0, and its norm is at least rho sum_i v_i, with rho the
   distance of the convex hull of the e_i from 0. The numerator of the score is sum_i v_i <t, e_i>.
3. The score is therefore at most max_i <t, e_i> / rho, or 0 where all of these are negative. Since the small simplex
   of a query's weights is not known in advance, rho is, for each grid point, the least of those around it.

The temperature does not occur in this, and neither does a mask: if modalities are left out, weights are on a face.
docs/bounds.md has the proof in full, with scales and offsets of modalities and norms that are clamped.

Shapes: N clips, M modalities, D dimensions, P points of the grid, T small simplices, R rows of a clip.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise

import numpy as np
import torch

from gallery.exact.cone import hull_distance
from modeling_scalar.scores_scalar import check_calibration

DETAIL = 3
"""Number of parts into which the edges of the simplex are divided."""

_LONGEST = 1.01  # norm of a query
_TINY = 1e-12  # more than the rounding errors of squares near 1 in float64
_AT_ONCE = 2**22  # numbers at a time in the Gram matrices of small simplices
_MORE = 1e-9  # more than the rounding error of a score in float64


@dataclass(frozen=True, eq=False)
class Bounds:
    """
    The rows that bound the scores of each clip.

    Args:
        rows (`torch.DoubleTensor` of shape `(N, R, D)`), offsets (`torch.DoubleTensor` of shape `(N, R)`): the score
            of a text t is at most the largest of `rows @ t + offsets`, if that is above 0.
        is_used (`torch.BoolTensor` of shape `(N, R)`): unused rows weight modalities that the clip lacks.
    """

    rows: torch.Tensor
    offsets: torch.Tensor
    is_used: torch.Tensor


def num_rows(num_modalities: int, detail: int = DETAIL, has_offset: bool = False) -> int:
    """How many rows [`bound_vectors`] makes for a clip that has all modalities."""
    return math.comb(detail + num_modalities - 1, detail) * (2 if has_offset else 1)


@cache
def _grid(num_modalities: int, detail: int) -> tuple[torch.Tensor, torch.Tensor]:
    """
    The grid points as weights (P, M), and the small simplices as indices of their corners (T, M).

    From one corner to the next, a part of the weight moves from a modality to the one before it, once for each of the
    M - 1 neighbours, in every order in which no weight becomes negative (H. Freudenthal, 1942).
    """
    last = detail + num_modalities - 1  # M - 1 of these places are bars that separate the modalities' parts
    bars = combinations(range(last), num_modalities - 1)
    points = [tuple(b - a - 1 for a, b in pairwise((-1, *some, last))) for some in bars]
    numbers = {point: number for number, point in enumerate(points)}
    chains = [([number], frozenset(range(1, num_modalities))) for number in range(len(points))]
    for _ in range(num_modalities - 1):
        longer = []
        for corners, left in chains:
            for m in left:
                moved = list(points[corners[-1]])
                moved[m - 1], moved[m] = moved[m - 1] + 1, moved[m] - 1
                if moved[m] >= 0:
                    longer.append(([*corners, numbers[tuple(moved)]], left - {m}))
        chains = longer
    return torch.tensor(points).double() / detail, torch.tensor([corners for corners, _ in chains])


def _least_distances(
    units: torch.Tensor, norms: torch.Tensor, is_used: torch.Tensor, corners: torch.Tensor, min_norm: float
) -> torch.Tensor:
    """For each grid point, the least rho of the small simplices around it, (N, P), from [`hull_distance`] of those
    corners that clips have."""
    gram = (units @ units.mT)[:, corners[:, :, None], corners[:, None]]  # (N, T, M, M)
    there, short = is_used[:, corners], (norms < min_norm)[:, corners]  # (N, T, M)
    rho = hull_distance(gram.flatten(0, 1), there.flatten(0, 1)).square().sub_(_TINY).clamp_(min=0).sqrt_()
    rho = rho.view(there.shape[:2])
    # If that is almost zero, the norm of the centroid is at least the value that it is clamped to.
    vanishes = (short & there).any(2) | (rho < min_norm)
    rho = torch.where(vanishes[..., None], min_norm / norms.clamp(min=min_norm)[:, corners], rho[..., None])
    rho = rho.where(there, math.inf).flatten(1)
    places = corners.flatten().expand(len(rho), -1)
    return torch.ones_like(norms).scatter_reduce(1, places, rho, "amin")


def bound_vectors(
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    min_norm: float,
    modality_scale: Sequence[float] | None = None,
    modality_offset: Sequence[float] | None = None,
    detail: int = DETAIL,
) -> Bounds:
    """
    Compute the vectors that bound the scores of clips.

    Args:
        modality_embeds (`torch.Tensor` of shape `(N, M, D)`): as stored; absent rows are ignored.
        modality_mask (`torch.BoolTensor` of shape `(N, M)`): the modalities of each clip.
        min_norm (`float`): the norm of a centroid is clamped to this.
        modality_scale, modality_offset (M `float`, *optional*): calibration of each modality's cosines.
        detail (`int`): number of parts into which the edges of the simplex are divided: more give closer bounds.

    Returns:
        [`Bounds`] with R = [`num_rows`]: for three modalities 6, 10, 15 for a `detail` of 2, 3, 4, of which a clip
        with two uses 3, 4, 5, and one with a single modality 1. Twice as many if there are offsets: scores may then
        all be negative, and half of the rows bound those.
    """
    check_calibration(modality_scale, modality_offset)
    points, corners = _grid(modality_mask.shape[1], detail)
    embeds = torch.where(modality_mask[..., None], modality_embeds.double(), 0)
    is_used = ~((points > 0) & ~modality_mask[:, None]).any(-1)  # (N, P)
    centroids = torch.einsum("pm,nmd->npd", points, embeds)
    norms = torch.linalg.vector_norm(centroids, dim=-1)
    clamped = norms.clamp(min=min_norm)
    units = centroids / clamped[..., None]
    size = max(_AT_ONCE // (len(corners) * corners.shape[1] ** 2), 1)
    some = zip(*(values.split(size) for values in (units, norms, is_used)), strict=True)
    least = torch.cat([_least_distances(*values, corners, min_norm) for values in some])
    scale = torch.ones(len(points[0])) if modality_scale is None else torch.as_tensor(modality_scale)
    rows = torch.einsum("pm,nmd->npd", points * scale.double(), embeds) / clamped[..., None]
    if modality_offset is None:
        return Bounds(rows / least[..., None], torch.zeros_like(least), is_used)
    offsets = points @ torch.as_tensor(modality_offset).double() / clamped
    return Bounds(
        torch.cat([rows / least[..., None], rows], dim=1),
        torch.cat([offsets / least, offsets], dim=1),
        torch.cat([is_used, is_used], dim=1),
    )


def stored_bounds(bounds: Bounds, dtype: torch.dtype) -> torch.Tensor:
    """
    Round bounds up to what an engine stores, `(N, R, D + 1)`, for queries that end in 1.

    The last coordinate holds the offset, plus how much the product of the others may fall short: because the row is
    rounded, because the query is (as by an engine with rows in half precision), and because float32 sums have errors.
    So the products that an engine computes are bounds, whatever it rounds.

    Args:
        bounds ([`Bounds`]).
        dtype (`torch.dtype`): `torch.float16` or `torch.float32`.

    Raises:
        ValueError: a number is too large for `dtype`.
    """
    rows = bounds.rows.to(dtype)
    norm = torch.linalg.vector_norm(rows.double(), dim=-1)
    lost = torch.linalg.vector_norm(rows.double() - bounds.rows, dim=-1)
    dim = rows.shape[-1]
    adding = (dim + 8) * 2.0**-23
    rounding = 2.0**-11 + math.sqrt(dim) * 2.0**-25 if dtype == torch.float16 else 2.0**-24
    last = bounds.offsets + _LONGEST * (lost + norm * (rounding + adding)) + bounds.offsets.abs() * adding + _MORE
    numbers = last.numpy() * (1 + np.sign(last.numpy()) * adding)
    with np.errstate(over="ignore"):  # reported below
        up = numbers.astype(np.float16 if dtype == torch.float16 else np.float32)
    up = np.where(up < numbers, np.nextafter(up, up.dtype.type(np.inf)), up)
    stored = torch.cat([rows, torch.from_numpy(up)[..., None]], dim=-1)
    if not stored[bounds.is_used].isfinite().all():
        raise ValueError(
            f"Bounds of clips are too large for {dtype}. Push a copy of the gallery in float32: "
            "`Gallery.open(FOLDER).copy(NEW, 'float32')`."
        )
    return stored


__all__ = ["DETAIL", "Bounds", "bound_vectors", "num_rows", "stored_bounds"]
