"""Vectors that bound a clip's score from above, for every query at every temperature: what a vector engine can search.

A score that weighs modalities by the query is no inner product with one vector. But it never exceeds the largest of a
few that depend on the clip alone:

1. The weights of a query, whatever they are, are a point of a triangle, whose corners are the modalities. The triangle
   is cut into small ones by a grid. The point lies in one of these: the centroid is a mean of those f_1, f_2, f_3 that
   belong to its corners.
2. So it is a sum of e_i = f_i / |f_i| by weights v_i >= 0, which is no shorter than rho sum_i v_i, with rho the
   distance of the convex hull of e_1, e_2, e_3 from 0. The numerator of the score is sum_i v_i <t, e_i>.
3. The score is therefore at most max_i <t, e_i> / rho, or 0 where all of these are negative. In which small triangle
   the weights of a query lie is not known beforehand: for each point of the grid, rho is the least of those around it.

The temperature is nowhere in it. Neither is a mask: where modalities are left out, weights lie on an edge or a corner.
docs/scale.md has the proof in full, with scales and offsets of modalities and norms that are clamped.

Shapes: N clips, D dimensions, R rows of a clip.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
import torch

from modeling_scalar.scores_scalar import PAPER_MODALITIES as MODALITIES

DETAIL = 3
"""Into how many parts the edges of the triangle are cut."""

_LONGEST = 1.01  # of a query
_TINY = 1e-12  # more than what float64 leaves open of squares near 1
_MORE = 1e-9  # more than what float64 leaves open of a score


@dataclass(frozen=True, eq=False)
class Bounds:
    """
    The rows of each clip.

    Args:
        rows (`torch.DoubleTensor` of shape `(N, R, D)`), offsets (`torch.DoubleTensor` of shape `(N, R)`): no score of
            a text t is more than the largest of `rows @ t + offsets`, where that is above 0.
        is_used (`torch.BoolTensor` of shape `(N, R)`): the others weigh what the clip has not.
    """

    rows: torch.Tensor
    offsets: torch.Tensor
    is_used: torch.Tensor


@cache
def _grid(detail: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The points of the grid as weights (P, 3), and of the small triangles the numbers of their corners (T, 3)."""
    points = [(i, j, detail - i - j) for i in range(detail + 1) for j in range(detail + 1 - i)]
    # Neighbours differ by one step along an edge; three points that are neighbours of each other are a small triangle.
    near = {
        pair for pair in combinations(range(len(points)), 2)
        if sum(abs(a - b) for a, b in zip(points[pair[0]], points[pair[1]], strict=True)) == 2
    }  # fmt: skip
    corners = [
        three for three in combinations(range(len(points)), 3) if all(pair in near for pair in combinations(three, 2))
    ]
    return torch.tensor(points).double() / detail, torch.tensor(corners)


def _radius(first: torch.Tensor, second: torch.Tensor, third: torch.Tensor) -> torch.Tensor:
    """The squared radius of the smallest ball around three points, by their squared distances."""
    longest = torch.maximum(torch.maximum(first, second), third)
    acute = first + second + third > 2 * longest
    # 16 times the squared area; the ball around an acute triangle is between those of a line and of equal sides.
    area = 4 * first * second - (first + second - third).square()
    around = (first * second * third / area).nan_to_num(math.inf, math.inf, math.inf)
    return torch.where(acute, around.clamp(longest / 4, longest / 3), longest / 4)


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
        modality_embeds (`torch.Tensor` of shape `(N, 3, D)`): as they are stored; what is absent does not count.
        modality_mask (`torch.BoolTensor` of shape `(N, 3)`): what each clip has.
        min_norm (`float`): what the norm of a centroid is clamped to.
        modality_scale, modality_offset (three `float`, *optional*): of the cosines of each modality.
        detail (`int`): into how many parts the edges of the triangle are cut: the more, the closer the bounds.

    Returns:
        [`Bounds`], with R = 6, 10, 15 for a `detail` of 2, 3, 4, of which a clip with two modalities uses 3, 4, 5, and
        one with a single modality 1. Twice as many where there are offsets: scores may all be negative then, and half
        of the rows bound those.
    """
    points, corners = _grid(detail)
    embeds = torch.where(modality_mask[..., None], modality_embeds.double(), 0)
    is_used = ~((points > 0) & ~modality_mask[:, None]).any(-1)  # (N, P)
    centroids = torch.einsum("pm,nmd->npd", points, embeds)
    norms = torch.linalg.vector_norm(centroids, dim=-1)
    clamped = norms.clamp(min=min_norm)
    units = centroids / clamped[..., None]
    # From here: how far the hull of each three is from 0. They are unit vectors, so that its nearest point is the
    # centre of the smallest ball around them. Corners that weigh what the clip lacks repeat one that does not.
    gram = units @ units.mT
    squares = gram.diagonal(dim1=1, dim2=2)
    apart = (squares[:, :, None] + squares[:, None] - 2 * gram).clamp(min=0)  # (N, P, P)
    least, clips = norms.new_ones(is_used.shape), torch.arange(len(apart))  # rho of each point
    for three in corners:
        there = is_used[:, three]  # (N, 3)
        place = torch.where(there, three, three[there.int().argmax(1)][:, None])
        rho = 1 - _radius(*(apart[clips, place[:, m], place[:, n]] for m, n in ((0, 1), (0, 2), (1, 2)))) - _TINY
        rho = rho.clamp(min=0).sqrt()
        # Where that is next to nothing, the norm of the centroid is at least what it is clamped to.
        vanishes = ((norms[:, three] < min_norm) & there).any(1) | (rho < min_norm)
        rho = torch.where(vanishes[:, None], min_norm / clamped[:, three], rho[:, None])
        least[:, three] = torch.where(there, torch.minimum(least[:, three], rho), least[:, three])
    scale = torch.ones(len(MODALITIES)) if modality_scale is None else torch.as_tensor(modality_scale)
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

    The last coordinate holds the offset, and by how much the product of the others may fall short: because the row is
    rounded, because the query is, as an engine with rows in half precision does, and because float32 adds with errors.
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
    with np.errstate(over="ignore"):  # of what is told below
        up = numbers.astype(np.float16 if dtype == torch.float16 else np.float32)
    up = np.where(up < numbers, np.nextafter(up, up.dtype.type(np.inf)), up)
    stored = torch.cat([rows, torch.from_numpy(up)[..., None]], dim=-1)
    if not stored[bounds.is_used].isfinite().all():
        raise ValueError(
            f"Bounds of clips are too large for {dtype}. Push a copy of the gallery in float32, which "
            "`Gallery.open(FOLDER).copy(NEW, 'float32')` makes."
        )
    return stored


__all__ = ["DETAIL", "Bounds", "bound_vectors", "stored_bounds"]
