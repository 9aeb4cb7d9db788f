"""Bounds of scores as vectors: against scores in float64, against a loop over orders, and as engines store them."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from gallery.exact.bounds import _grid, bound_vectors, num_rows, stored_bounds
from gallery.exact.cone import hull_distance
from modeling_scalar.scores_scalar import ScoreOptions
from tests.gallery.exact.test_screening import KINDS, MIN_NORM, all_scores, make_part, make_texts, mixes_of

TEMPERATURES = (1e-6, 0.01, 0.1, 1.0, 10.0, math.inf)  # from what the best modality decides alone to equal weights
CALIBRATIONS = {
    "plain": {},
    "scaled": {"modality_scale": [0.7, 1.0, 1.4, 0.9, 1.2]},
    "calibrated": {"modality_scale": [0.7, 1.0, 1.4, 0.9, 1.2], "modality_offset": [-0.3, 0.1, -0.2, 0.2, 0.0]},
    "below zero": {"modality_offset": [-3.0] * 5},
}


def calibration_of(name, number=3):
    return {key: values[:number] for key, values in CALIBRATIONS[name].items()}


def made(kind, count, dim, seed=0, dtype=torch.float32, number=3):
    part = make_part(kind, count, dim, seed=seed, dtype=dtype, number=number)
    part.allowed[:] = True
    return part, torch.stack(part.vectors, dim=1)


def largest(rows, is_used, texts):
    """The largest product of each text with the rows of each clip, (Q, N)."""
    return torch.einsum("qd,nrd->qnr", texts, rows).masked_fill(~is_used, -math.inf).amax(-1)


def as_an_engine_computes(stored, is_used, texts, dtype):
    queries = torch.cat([texts, torch.ones(len(texts), 1)], dim=1).to(dtype).float()
    return largest(stored.float(), is_used, queries).double()


def least_slack(kind, count, num_texts, dtype, name, seed=0, number=3):
    """By how much the bounds that an engine computes exceed scores, at least, over all pairs and temperatures."""
    part, embeds = made(kind, count, 33, seed, dtype, number)
    calibration = calibration_of(name, number)
    mask = part.modality_mask
    bounds = bound_vectors(embeds, mask, MIN_NORM, **calibration)
    texts = make_texts([part], num_texts, seed)
    found = as_an_engine_computes(stored_bounds(bounds, dtype), bounds.is_used, texts, dtype)
    if "modality_offset" not in calibration:
        found = found.clamp(min=0)
    slacks = []
    for temperature in TEMPERATURES:
        scores = torch.from_numpy(all_scores([part], texts, ScoreOptions(temperature, **calibration)))
        slacks.append((found - scores).min().item())
    return min(slacks)


@pytest.mark.parametrize("name", CALIBRATIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(1, 6))
def test_no_score_at_any_temperature_exceeds_the_bound_that_an_engine_computes(kind, name, number):
    for dtype in (torch.float32, torch.float16):
        assert least_slack(kind, 400 if number == 3 else 100, 40, dtype, name, number=number) >= 0


@pytest.mark.slow
@pytest.mark.parametrize("name", CALIBRATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_score_of_many_galleries_exceeds_the_bound(kind, name):
    for seed, number in enumerate((3, 2, 3, 4, 3, 5)):
        for dtype in (torch.float32, torch.float16):
            assert least_slack(kind, 3000 if number == 3 else 600, 200, dtype, name, seed, number) >= 0


def test_without_the_distance_of_the_hull_the_bound_would_be_exceeded():
    part, embeds = made("random", 500, 8)
    bounds = bound_vectors(embeds, part.modality_mask, MIN_NORM)
    texts = make_texts([part], 100, 0).double()
    too_short = bounds.rows / torch.linalg.vector_norm(bounds.rows, dim=-1, keepdim=True).clamp(min=1)
    exceeded = False
    for temperature in TEMPERATURES:
        scores = torch.from_numpy(all_scores([part], texts.float(), ScoreOptions(temperature)))
        exceeded |= (scores > largest(too_short, bounds.is_used, texts).clamp(min=0) + 1e-3).any().item()
        assert (scores <= largest(bounds.rows, bounds.is_used, texts).clamp(min=0) + 1e-6).all()
    assert exceeded


@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_a_bound_holds_for_clips_of_which_something_is_not_looked_at(number):
    for kind in ("random", "cancelling"):
        part, embeds = made(kind, 200, 16, number=number)
        mask = part.modality_mask
        bounds = bound_vectors(embeds, mask, MIN_NORM)
        texts = make_texts([part], 40, 0)
        found = largest(bounds.rows, bounds.is_used, texts.double()).clamp(min=0)
        for seen in mixes_of(number):
            masked = part.looking_at(seen)
            rows = masked.modality_mask.any(1)
            for temperature in TEMPERATURES[::2]:
                scores = torch.from_numpy(all_scores([masked], texts, ScoreOptions(temperature)))
                assert (scores[:, rows] <= found[:, rows] + 1e-9).all()


def small_simplices(number, detail):
    """Freudenthal's triangulation: from some point on, sums s_1 <= s_2 <= ... of parts are raised by one each, in some
    order, so that none leaves the large simplex. Of each the corners, as parts of each modality."""
    found = []
    for start in itertools.product(range(detail + 1), repeat=number - 1):
        for order in itertools.permutations(range(number - 1)):
            sums = [start]
            for place in order:
                sums.append(tuple(value + (index == place) for index, value in enumerate(sums[-1])))
            bounded = [(0, *corner, detail) for corner in sums]
            corners = [tuple(b - a for a, b in itertools.pairwise(corner)) for corner in bounded]
            if min(map(min, corners)) >= 0:
                found.append(corners)
    return found


@pytest.mark.parametrize(("number", "detail"), [(1, 3), (2, 4), (3, 1), (3, 3), (4, 2), (4, 3), (5, 3)])
def test_every_weighing_lies_in_one_small_simplex(number, detail):
    points, corners = _grid(number, detail)
    simplices = points[corners]  # (T, M, M)
    assert len(points) == len(points.unique(dim=0)) == num_rows(number, detail)
    assert {frozenset(map(tuple, s)) for s in (simplices * detail).round().int().tolist()} == {
        frozenset(corners) for corners in small_simplices(number, detail)
    }
    # As many of the same size as fill the large one, and no two of them overlap.
    sizes = torch.linalg.det(simplices).abs()
    torch.testing.assert_close(sizes, torch.full_like(sizes, detail ** (1 - number)))
    weights = torch.distributions.Dirichlet(torch.ones(number).double()).sample((500,))
    shares = torch.linalg.solve(simplices.mT[:, None], weights[None, ..., None])[..., 0]  # (T, 500, M)
    assert ((shares >= -1e-12).all(-1).sum(0) == 1).all()


def by_loop(embeds, mask, detail):
    """The rows of one clip as docs/bounds.md has them, point by point: of weights (in parts), the row."""
    number = len(mask)
    points = [point for point in itertools.product(range(detail + 1), repeat=number) if sum(point) == detail]
    found = {point: math.inf for point in points if all(mask[m] for m in range(number) if point[m])}
    units = {point: normalize(torch.tensor(point).double() @ embeds, dim=0) for point in found}
    for corners in small_simplices(number, detail):
        there = [one for one in corners if one in found]
        if there:
            vectors = torch.stack([units[one] for one in there])
            known = torch.ones(1, len(there), dtype=torch.bool)
            rho = hull_distance((vectors @ vectors.T)[None], known).item()
            for one in there:
                found[one] = min(found[one], rho)
    return {point: units[point] / rho for point, rho in found.items()}


@pytest.mark.parametrize(
    ("number", "detail"), [(1, 3), (2, 3), (3, 1), (3, 2), (3, 3), (3, 4), (4, 2), (4, 3), (5, 2)]
)
def test_rows_are_those_of_the_definition(number, detail):
    part, embeds = made("random", 20, 12, number=number)
    embeds, mask = embeds.double(), part.modality_mask
    bounds = bound_vectors(embeds, mask, MIN_NORM, detail=detail)
    assert bounds.rows.shape[1] == num_rows(number, detail)
    for clip in range(20):
        expected = torch.stack(list(by_loop(embeds[clip], mask[clip], detail).values()))
        rows = bounds.rows[clip][bounds.is_used[clip]]
        assert len(rows) == len(expected) == num_rows(int(mask[clip].sum()), detail)
        distances = torch.cdist(expected, rows)
        assert (distances.amin(0) < 1e-8).all() and (distances.amin(1) < 1e-8).all()


def test_the_number_of_rows_is_the_one_reported_beforehand():
    assert [num_rows(number) for number in range(1, 9)] == [1, 4, 10, 20, 35, 56, 84, 120]
    assert [num_rows(3, detail) for detail in (2, 3, 4)] == [6, 10, 15]
    part, embeds = made("random", 5, 12, number=4)
    offset = {"modality_offset": [0.1] * 4}
    assert bound_vectors(embeds, part.modality_mask, MIN_NORM, **offset).rows.shape[1] == num_rows(4, has_offset=True)


@pytest.mark.parametrize("detail", [1, 2, 4, 6])
def test_every_detail_bounds_every_score_and_a_finer_one_is_closer(detail):
    part, embeds = made("random", 300, 16)
    mask, texts = part.modality_mask, make_texts([part], 40, 0).double()
    found, finer = (
        largest(bounds.rows, bounds.is_used, texts).clamp(min=0)
        for bounds in (bound_vectors(embeds, mask, MIN_NORM, detail=n) for n in (detail, 2 * detail))
    )
    for temperature in TEMPERATURES:
        scores = torch.from_numpy(all_scores([part], texts.float(), ScoreOptions(temperature)))
        assert (scores <= found + 1e-6).all() and (scores <= finer + 1e-6).all()
    assert finer.mean() < found.mean()


def test_of_a_clip_with_one_modality_the_bound_is_the_score():
    embeds = normalize(torch.randn(20, 3, 8, dtype=torch.float64), dim=-1)
    mask = torch.eye(3, dtype=torch.bool)[torch.arange(20) % 3]
    bounds = bound_vectors(embeds, mask, MIN_NORM)
    assert (bounds.is_used.sum(1) == 1).all()
    torch.testing.assert_close(bounds.rows[bounds.is_used], embeds[mask], rtol=0, atol=1e-9)


def test_near_the_best_clips_the_bound_is_close():
    part, embeds = made("clustered", 2000, 64)
    bounds = bound_vectors(embeds, part.modality_mask, MIN_NORM)
    texts = make_texts([part], 50, 0)
    scores = torch.from_numpy(all_scores([part], texts, ScoreOptions()))
    best = scores.topk(10, dim=1)
    found = largest(bounds.rows, bounds.is_used, texts.double()).gather(1, best.indices)
    assert (best.values / found).median() > 0.95


def test_vectors_that_cancel_or_repeat_give_finite_rows():
    first = normalize(torch.randn(1, 8, dtype=torch.float64), dim=-1)[0]
    second = normalize(torch.randn(1, 8, dtype=torch.float64), dim=-1)[0]
    embeds = torch.stack(
        [
            torch.stack([first, first, first]),
            torch.stack([first, -first, second]),
            torch.stack([first, -first, first]),
            torch.stack([first, first, -first]),
        ]
    )
    bounds = bound_vectors(embeds, torch.ones(4, 3, dtype=torch.bool), MIN_NORM)
    norms = torch.linalg.vector_norm(bounds.rows, dim=-1)
    assert norms.isfinite().all() and (norms <= 1.01 / MIN_NORM).all()
    torch.testing.assert_close(norms[0], torch.ones(10, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_what_rounding_takes_away_the_last_coordinate_gives_back(dtype):
    part, embeds = made("random", 400, 64, dtype=dtype)
    bounds = bound_vectors(embeds, part.modality_mask, MIN_NORM)
    stored = stored_bounds(bounds, dtype)
    texts = make_texts([part], 200, 0)
    exact = torch.einsum("qd,nrd->qnr", texts.double(), bounds.rows)[:, bounds.is_used]
    queries = torch.cat([texts, torch.ones(len(texts), 1)], dim=1).to(dtype).float()
    computed = torch.einsum("qd,nrd->qnr", queries, stored.float())[:, bounds.is_used].double()
    assert (computed >= exact).all()
    assert (computed - exact).max() < (4e-3 if dtype == torch.float16 else 1e-4)
    without = torch.einsum("qd,nrd->qnr", queries[:, :-1], stored.float()[..., :-1])[:, bounds.is_used].double()
    assert (without < exact).any()


def test_bounds_that_half_precision_cannot_hold_are_refused():
    part, embeds = made("cancelling", 400, 16)
    bounds = bound_vectors(embeds, part.modality_mask, MIN_NORM, modality_offset=[100.0, 100.0, 100.0])
    assert np.isfinite(stored_bounds(bounds, torch.float32).numpy()).all()
    with pytest.raises(ValueError, match=r"copy\(NEW, 'float32'\)"):
        stored_bounds(bounds, torch.float16)
