"""Every score against float64 loops written from its definition, for clips that are hard to score: copies and near
copies, opposite and cancelling vectors, more vectors than dimensions, half precision, temperatures from 1e-6 to
infinity, with and without scales and offsets, and with anything where a modality is absent."""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalar_retrieval.modeling_scalar.scores_scalar import (
    MIN_NORM,
    ScoreOptions,
    exact_scores,
    query_weights,
    retrieval_scores,
)

NAMES = ("audio", "video", "subtitle", "title", "speech", "screen", "tags", "place")
CENTROIDS = ("scalar", "uniform")
VOLUMES = ("gram", "gram_span", "hypergram", "triangle")
METHODS = (*CENTROIDS, "max", "mean", "video", *VOLUMES, "pmrl", "pmrl_raw", "symile")
MIX, CURVATURE = 0.3, 0.4
SPAN_TOLERANCE = 1e-7  # eigenvalues of a Gram matrix below this share of the largest are no direction of the span

NEUTRAL = {"modality_scale": 1.0, "modality_offset": 0.0}
SHORT = 1e-3  # a centroid as short as this leaves few digits of a calibrated score, which does not vanish with it

NUM_QUERIES, NUM_CLIPS = 3, 5
DISTANCES = (0.0, 1e-12, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
TEMPERATURES = (1e-6, 1e-4, 1e-2, 0.05, 0.051, 0.1, 0.41, 1.0, 10.0, math.inf)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Drawn(NamedTuple):
    texts: torch.Tensor  # (Q, D)
    clips: torch.Tensor  # (V, M, D)
    mask: torch.Tensor  # (V, M)
    temperature: float
    calibration: dict[str, list[float]]

    @property
    def scales_and_offsets(self):
        number = len(self.names)
        return tuple(self.calibration.get(name, [neutral] * number) for name, neutral in NEUTRAL.items())

    @property
    def names(self):
        return NAMES[: self.clips.shape[1]]

    def scores(self, method):
        options = {"hyperbolic_mix": MIX, "curvature": CURVATURE, "modalities": self.names} | self.calibration
        return retrieval_scores(*self[:3], method, self.temperature, **options)


def unit(vectors):
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-300)


@st.composite
def draws(draw, method="scalar", dtypes=DTYPES, is_calibrated=None):
    """Texts and clips whose modalities are arranged in one of four hard ways, up to a distance."""
    least = 2 if method in ("triangle", "video") else 1
    number = draw(st.integers(least, len(NAMES)))
    dim = draw(st.sampled_from((2, 3, 4, 8, 32, 512)))
    arrangement = draw(st.sampled_from(("copies", "opposite", "cancelling", "of the text")))
    distance = draw(st.sampled_from(DISTANCES))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    texts = unit(random.standard_normal((NUM_QUERIES, dim)))
    clips = unit(random.standard_normal((NUM_CLIPS, number, dim)))
    off = distance * unit(random.standard_normal(clips.shape))
    if arrangement == "copies":
        source = random.integers(0, number, (NUM_CLIPS, number, 1))
        clips = np.take_along_axis(clips, source, axis=1) + off
    elif arrangement == "opposite":
        clips = clips[:, :1] * random.choice([-1, 1], (NUM_CLIPS, number, 1)) + off
    elif arrangement == "cancelling" and number > 1:
        clips[:, -1] = unit(-clips[:, :-1].sum(1)) + off[:, -1]
    elif arrangement == "of the text":
        texts = clips[:NUM_QUERIES, -1] + off[:NUM_QUERIES, -1]
    mask = random.random((NUM_CLIPS, number)) < 0.7
    mask[np.arange(NUM_CLIPS), random.integers(0, number, NUM_CLIPS)] = True

    calibration = {}
    if draw(st.booleans()) if is_calibrated is None else is_calibrated:
        scales, offsets = 4 ** random.uniform(-1, 1, number), random.uniform(-0.5, 0.5, number)
        calibration = {"modality_scale": scales.tolist(), "modality_offset": offsets.tolist()}

    dtype = draw(st.sampled_from(dtypes))
    vectors, mask = torch.from_numpy(unit(clips)).to(dtype), torch.from_numpy(mask)
    vectors[~mask] = draw(st.sampled_from((0.0, 1e4, math.nan, math.inf)))  # what is absent may hold anything
    return Drawn(
        torch.from_numpy(unit(texts)).to(dtype),
        vectors,
        mask,
        draw(st.sampled_from(TEMPERATURES)),
        calibration,
    )


# Definitions, of a text (D,) and the vectors (n, D) that a clip has, with their calibrated cosines (n,) --------------


def weights_of(cosines, temperature):
    """Eq. 2."""
    powers = [math.exp((cosine - max(cosines)) / temperature) for cosine in cosines]
    return [power / sum(powers) for power in powers]


def centroid_of(cosines, vectors, temperature):
    weights = weights_of(cosines, temperature)
    return weights, sum(weight * vector for weight, vector in zip(weights, vectors, strict=True))


def centroid_score(cosines, vectors, temperature, least):
    """Eq. 3: the weighted sum of cosines over the norm of that of vectors, which counts as at least `least`."""
    weights, centroid = centroid_of(cosines, vectors, temperature)
    total = sum(weight * cosine for weight, cosine in zip(weights, cosines, strict=True))
    return total / max(float(np.linalg.norm(centroid)), least)


def volume(vectors):
    """The root of the Gram determinant: the product of the singular values, of which too many vectors lack some."""
    if len(vectors) > vectors.shape[1]:
        return 0.0
    return float(np.prod(np.linalg.svd(vectors, compute_uv=False)))


def lorentz_volume(vectors):
    """The same of points of the hyperboloid of curvature -c, with their Lorentz inner products."""
    root = math.sqrt(CURVATURE)
    gram = (math.sinh(root) ** 2 * (vectors @ vectors.T) - math.cosh(root) ** 2) / CURVATURE
    return math.sqrt(abs(np.linalg.det(gram)))


def span_distance(text, vectors):
    """What is left of the text without its projection on each direction of the span."""
    eigenvalues, directions = np.linalg.eigh(vectors @ vectors.T)
    rest = float(text @ text)
    for eigenvalue, direction in zip(eigenvalues, directions.T, strict=True):
        if eigenvalue > SPAN_TOLERANCE * eigenvalues[-1]:
            rest -= float(direction @ (vectors @ text)) ** 2 / eigenvalue
    return math.sqrt(max(rest, 0.0))


def definition(method, text, present, cosines, temperature, dtype):
    """One score, from the vectors by name and their calibrated cosines; `None` where it is not defined."""
    vectors = np.stack(list(present.values()))
    everything = np.vstack([text, vectors])
    least = MIN_NORM[dtype]
    flattest = min(least, MIN_NORM[torch.float32])  # volumes below are all the same
    if method == "scalar":
        return centroid_score(cosines, vectors, temperature, least)
    if method == "uniform":
        return centroid_score(cosines, vectors, math.inf, least)
    if method == "max":
        return max(cosines)
    if method == "mean":
        return sum(cosines) / len(cosines)
    if method == "video":
        return float(present["video"] @ text) if "video" in present else None
    if method == "symile":
        return float(sum(math.prod(column) for column in everything.T))
    if method in ("pmrl", "pmrl_raw"):
        eigenvalue = float(np.linalg.svd(unit(everything), compute_uv=False)[0]) ** 2
        return eigenvalue / (len(everything) if method == "pmrl" else 1)
    if method == "gram":
        return -max(volume(everything), flattest)
    if method == "gram_span":
        return -max(span_distance(text, vectors), flattest)
    if method == "hypergram":
        # The least volume is one of the Euclidean Gram matrix, before the map stretches every vector.
        stretched = (math.sinh(math.sqrt(CURVATURE)) / math.sqrt(CURVATURE)) ** len(everything)
        hyperbolic = max(lorentz_volume(everything), stretched * flattest)
        return -(MIX * max(volume(everything), flattest) + (1 - MIX) * hyperbolic)
    if "video" not in present or "audio" not in present:
        return None
    first, second = text - present["video"], present["audio"] - present["video"]
    area = math.sqrt(max(float(first @ first) * float(second @ second) - float(first @ second) ** 2, 0.0))
    return -max(area, flattest) / 2


def present_of(drawn, clip):
    rows = zip(drawn.names, drawn.clips[clip].double().numpy(), drawn.mask[clip].tolist(), strict=True)
    return {name: vector for name, vector, is_there in rows if is_there}


def vectors_of(drawn, clip):
    return drawn.clips[clip, drawn.mask[clip]].double().numpy()


def cosines_of(drawn, query, clip):
    """The calibrated cosines of a text and what a clip has."""
    text = drawn.texts[query].double().numpy()
    scales, offsets = (np.array(values)[drawn.mask[clip].numpy()] for values in drawn.scales_and_offsets)
    return (scales * (vectors_of(drawn, clip) @ text) + offsets).tolist()


def has_digits(drawn, cosines, vectors):
    """Whether the centroids are long enough for a calibrated score."""
    if not drawn.calibration:
        return True
    return all(
        np.linalg.norm(centroid_of(cosines, vectors, temperature)[1]) > SHORT
        for temperature in (drawn.temperature, math.inf)
    )


def has_clear_span(vectors):
    """Whether no direction of the span is so thin that rounding decides if it counts."""
    eigenvalues = np.linalg.eigvalsh(vectors @ vectors.T)
    shares = eigenvalues / eigenvalues[-1]
    return not ((shares > SPAN_TOLERANCE / 5) & (shares < SPAN_TOLERANCE * 5)).any()


def defined_pairs(method, drawn):
    """Query, clip and defined score of every pair for which there is one."""
    for clip in range(NUM_CLIPS):
        present = present_of(drawn, clip)
        if method == "gram_span" and not has_clear_span(vectors_of(drawn, clip)):
            continue
        for query, text in enumerate(drawn.texts.double().numpy()):
            cosines = cosines_of(drawn, query, clip)
            expected = definition(method, text, present, cosines, drawn.temperature, drawn.texts.dtype)
            if expected is not None and has_digits(drawn, cosines, vectors_of(drawn, clip)):
                yield query, clip, expected


def tolerance_of(method, dtype, expected):
    if dtype == torch.float64 and method in VOLUMES:
        # Squares are exact to 1e-7 with eight nearly equal vectors; at volumes of 1e-6 their roots have few digits.
        return min(1e-7 / abs(expected), 4e-4) + 1e-9
    return 1e-5 * max(1.0, abs(expected))  # of a centroid as short as 1e-6, whose square has few digits


# Properties ---------------------------------------------------------------------------------------------------------


def gradients(method, drawn):
    leaves = drawn.texts.clone().requires_grad_(), drawn.clips.clone().requires_grad_()
    scores = drawn._replace(texts=leaves[0], clips=leaves[1]).scores(method)
    scores[scores.isfinite()].sum().backward()
    return [leaf.grad for leaf in leaves]


@pytest.mark.promise("scores", "Scores equal their definition to 1e-5, even if modalities repeat or cancel each other")
@pytest.mark.parametrize("method", METHODS)
def test_a_score_is_its_definition_and_its_gradients_are_finite_and_bounded(method):
    compared = []

    @settings(max_examples=100, deadline=None, derandomize=True, database=None)
    @given(draws(method))
    def check(drawn):
        scores = drawn.scores(method).double()
        for query, clip, expected in defined_pairs(method, drawn):
            tolerance = tolerance_of(method, drawn.texts.dtype, expected)
            assert scores[query, clip].item() == pytest.approx(expected, abs=tolerance, rel=0)
            compared.append(expected)
        least = MIN_NORM[drawn.texts.dtype]
        steepness = 1 + 8 / drawn.temperature if method == "scalar" else 1.0
        # Of as many scores as there are pairs: of a centroid or a distance as short as counts, the span of vectors
        # that just differ multiplies it.
        bound = 10 * NUM_QUERIES * NUM_CLIPS * steepness / least
        if drawn.calibration and method in CENTROIDS:
            bound = 5 * bound / least  # the numerator does not vanish with the centroid
        if method == "gram_span":
            bound = bound / math.sqrt(SPAN_TOLERANCE)
        for gradient in gradients(method, drawn):
            assert gradient.isfinite().all() and gradient.abs().max() <= bound
        assert (gradient[~drawn.mask] == 0).all()

    check()
    assert len(compared) > 500 and np.std(compared) > 0.05


@settings(max_examples=120, deadline=None, derandomize=True, database=None)
@given(draws())
def test_weights_and_the_score_that_certifies_a_ranking_are_the_definition(drawn):
    least = MIN_NORM[drawn.texts.dtype]
    options = ScoreOptions(drawn.temperature, **drawn.calibration)
    weights = query_weights(*drawn[:3], drawn.temperature, **drawn.calibration)
    assert (weights[:, ~drawn.mask] == 0).all()
    for query, text in enumerate(drawn.texts):
        scores = exact_scores(text.expand(NUM_CLIPS, -1), drawn.clips, drawn.mask, least, options)
        for clip in range(NUM_CLIPS):
            cosines, vectors = cosines_of(drawn, query, clip), vectors_of(drawn, clip)
            found = weights[query, clip, drawn.mask[clip]].tolist()
            assert found == pytest.approx(weights_of(cosines, drawn.temperature), abs=1e-5)
            # At a temperature of 1e-6, equal cosines must be equal to 1e-16 for their weights to be.
            if has_digits(drawn, cosines, vectors):
                expected = centroid_score(cosines, vectors, drawn.temperature, least)
                assert scores[clip].item() == pytest.approx(expected, abs=1e-8, rel=1e-8), (query, clip)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_are_finite_differences_where_a_score_is_smooth(method):
    compared = []

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(draws(method, dtypes=(torch.float64,)), st.integers(0, 2**32 - 1))
    def check(drawn, seed):
        if method == "gram_span" and not all(has_clear_span(vectors_of(drawn, clip)) for clip in range(NUM_CLIPS)):
            return
        generator = torch.Generator().manual_seed(seed)
        directions = [torch.randn(leaf.shape, generator=generator).double() for leaf in drawn[:2]]

        def total(step):
            texts, clips = (leaf + step * away for leaf, away in zip(drawn[:2], directions, strict=True))
            scores = drawn._replace(texts=texts, clips=clips).scores(method)
            return scores[scores.isfinite()].sum().item()

        # A score is smooth at the scale of a step if one side, and a tenth of the step, have the same slope.
        step = 1e-5 * min(drawn.temperature, 1.0) if method == "scalar" else 1e-5
        slope = (total(step) - total(-step)) / (2 * step)
        others = (total(step) - total(0.0)) / step, (total(step / 10) - total(-step / 10)) / (step / 5)
        tolerance = 1e-3 * max(1.0, abs(slope))
        if any(abs(other - slope) > tolerance for other in others):
            return
        pairs = zip(gradients(method, drawn), directions, strict=True)
        found = sum((gradient * direction).sum().item() for gradient, direction in pairs)
        assert found == pytest.approx(slope, abs=tolerance)
        compared.append(found)

    check()
    assert len(compared) > 10 and np.std(compared) > 0.1
