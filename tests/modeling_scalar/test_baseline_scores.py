"""The geometric baselines against float64 loops over their definitions, one pair of text and clip at a time."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from modeling_scalar.scores_scalar import query_weights, retrieval_scores

BASELINES = ("max", "mean", "gram", "gram_span", "pmrl", "pmrl_raw", "hypergram", "triangle", "symile")
VOLUMES = ("gram", "gram_span", "hypergram", "triangle")


def random_clips(num_queries=9, num_clips=31, dim=24, seed=0, spread=2.0, dtype=torch.float32):
    """Vectors around one direction: the smaller the spread, the smaller the volumes."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (num_queries, dim), (num_clips, 3, dim)
    texts, modalities = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)
    centre = normalize(torch.randn(dim, generator=generator, dtype=torch.float64), dim=0)
    texts, modalities = (normalize(centre + spread * normalize(x, dim=-1), dim=-1) for x in (texts, modalities))
    mask = torch.rand(num_clips, 3, generator=generator) < 0.6
    mask[torch.arange(num_clips), torch.arange(num_clips) % 3] = True
    assert {1, 2, 3} == set(mask.sum(1).tolist())
    return texts.to(dtype), modalities.to(dtype), mask


def lorentz_volume(vectors, curvature):
    """The definition: points on the hyperboloid of curvature -c, and the determinant of their inner products."""
    root = math.sqrt(curvature)
    norms = vectors.norm(dim=1, keepdim=True)
    time, space = torch.cosh(root * norms) / root, torch.sinh(root * norms) * vectors / (root * norms)
    torch.testing.assert_close(
        space.square().sum(1, keepdim=True) - time.square(), torch.full_like(time, -1 / curvature)
    )
    return (space @ space.T - time @ time.T).det().abs().sqrt().item()


def score_of_one_pair(text, present, triangle, method, mix, curvature):
    vectors = torch.cat([text[None], present])
    volume = (vectors @ vectors.T).det().abs().sqrt().item()
    if method == "gram":
        return -volume
    if method == "gram_span":  # what a least-squares fit by the modalities leaves of the text
        return -(text - torch.linalg.lstsq(present.T, text[:, None]).solution.T[0] @ present).norm().item()
    if method in ("pmrl", "pmrl_raw"):
        return torch.linalg.svdvals(vectors)[0].item() ** 2 / (len(vectors) if method == "pmrl" else 1)
    if method in ("max", "mean"):
        cosines = [sum(x * y for x, y in zip(text.tolist(), z, strict=True)) for z in present.tolist()]
        return max(cosines) if method == "max" else sum(cosines) / len(cosines)
    if method == "symile":
        return sum(math.prod(values) for values in vectors.T.tolist())
    if method == "hypergram":
        return -(mix * volume + (1 - mix) * lorentz_volume(vectors, curvature))
    if triangle is None:
        return -math.inf
    first, second, third = ((a - b).norm().item() for a, b in zip(triangle, triangle.roll(1, 0), strict=True))
    half = (first + second + third) / 2
    return -math.sqrt(max(half * (half - first) * (half - second) * (half - third), 0))  # Heron


def pairwise_grams(texts, modalities):
    """Gram matrices of all pairs of a text and a clip, (Q, V, n, n)."""
    queries = texts[:, None, None].expand(-1, len(modalities), -1, -1)
    vectors = torch.cat([queries, modalities.expand(len(texts), -1, -1, -1)], dim=2)
    return vectors @ vectors.mT


def loop_scores(texts, modalities, mask, method, mix=0.51, curvature=1.0):
    texts, modalities = texts.double(), modalities.double()
    scores = torch.zeros(len(texts), len(modalities), dtype=torch.float64)
    for q, text in enumerate(texts):
        for v, clip in enumerate(modalities):
            triangle = torch.stack([text, clip[0], clip[1]]) if mask[v, :2].all() else None
            scores[q, v] = score_of_one_pair(text, clip[mask[v]], triangle, method, mix, curvature)
    return scores


@pytest.mark.parametrize("method", BASELINES)
@pytest.mark.parametrize("spread", [10.0, 1.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_equal_the_float64_loop(method, spread, dtype):
    clips = random_clips(spread=spread, dtype=dtype)
    expected = loop_scores(*clips, method)
    assert expected[expected.isfinite()].std() > 1e-3
    scores = retrieval_scores(*clips, method=method)
    assert scores.dtype == dtype
    # Determinants of cosines are exact to a few units of the last place; their roots lose more the smaller they are.
    least = expected[expected.isfinite()].abs().min().item() if method in VOLUMES else 1
    tolerance = (1e-6 if dtype == torch.float32 else 1e-14) / min(least, 1)
    torch.testing.assert_close(scores.double(), expected, atol=tolerance, rtol=1e-6)


@pytest.mark.parametrize("method", BASELINES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("angle", [0.1, 0.03, 0.01])
def test_scores_are_exact_where_modalities_nearly_repeat_each_other(method, dtype, angle):
    generator = torch.Generator().manual_seed(0)
    texts, mask = random_clips(dtype=dtype)[0], random_clips()[2]
    centres, offsets = (
        normalize(torch.randn(len(mask), n, 24, generator=generator, dtype=torch.float64), dim=-1) for n in (1, 3)
    )
    modalities = normalize(centres + angle * offsets, dim=-1).to(dtype)
    expected = loop_scores(texts, modalities, mask, method)
    if method in ("gram", "hypergram"):  # volumes below 1e-3 are all the same, the next ones less exact
        kept = loop_scores(texts, modalities, mask, "gram") < -3e-3
        assert kept.float().mean() > 0.5
    else:
        kept = expected.isfinite()
    # Half precision leaves norms of 1 +- 5e-4, which the loops see and the eigenvalue and the hyperboloid do not.
    tolerance = 1e-3 if dtype == torch.float16 and method in ("pmrl", "pmrl_raw", "hypergram") else 1.5e-7 / angle
    scores = retrieval_scores(texts, modalities, mask, method=method).double()
    torch.testing.assert_close(scores[kept], expected[kept], atol=tolerance, rtol=0)


@pytest.mark.parametrize("curvature", [0.01, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("mix", [0.0, 0.3, 1.0])
def test_hyperbolic_scores_equal_the_loop_at_every_mix_and_curvature(mix, curvature):
    clips = random_clips(spread=1.0)
    expected = loop_scores(*clips, "hypergram", mix, curvature)
    scores = retrieval_scores(*clips, method="hypergram", hyperbolic_mix=mix, curvature=curvature)
    # At small curvature all points lie far up the hyperboloid, and volumes are differences of large numbers.
    torch.testing.assert_close(scores.double(), expected, atol=2e-5, rtol=2e-6)


def test_a_mix_of_one_is_the_volume_and_the_rest_depends_on_the_curvature():
    clips = random_clips()
    gram = retrieval_scores(*clips, method="gram")
    torch.testing.assert_close(retrieval_scores(*clips, method="hypergram", hyperbolic_mix=1.0), gram)
    first, second = (retrieval_scores(*clips, method="hypergram", curvature=c) for c in (1.0, 1.1))
    assert (first - second).abs().mean() > 1e-2


@pytest.mark.parametrize("method", ["gram", "hypergram", "pmrl"])
@pytest.mark.parametrize("present", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_a_clip_is_scored_at_its_own_arity_and_never_as_zeros(method, present):
    """The masked volume is that of the sub-matrix, and not the zero volume of a vector of zeros (Eq. S1)."""
    texts, modalities, mask = random_clips(dtype=torch.float64)
    mask = torch.zeros_like(mask)
    mask[:, present] = True
    scores = retrieval_scores(texts, modalities, mask, method=method)
    gram = pairwise_grams(texts, modalities[:, present])
    if method == "pmrl":
        expected = torch.linalg.eigvalsh(gram)[..., -1] / (1 + len(present))
    else:
        hyperbolic = math.sinh(1) ** 2 * gram - math.cosh(1) ** 2
        mix = {"gram": 1, "hypergram": 0.51}[method]
        expected = -(mix * gram.det().sqrt() + (1 - mix) * hyperbolic.det().abs().sqrt())
        assert (expected < -0.1).all()
    torch.testing.assert_close(scores, expected, atol=1e-7, rtol=0)


@pytest.mark.parametrize("dim", [2, 3, 4, 16, 256])
@pytest.mark.parametrize("spread", [0.05, 1.0, 100.0])
def test_the_largest_eigenvalue_is_exact_whatever_the_correlations(dim, spread):
    texts, modalities, mask = random_clips(40, 60, dim, dim, spread)
    zeroed = modalities.double() * mask[..., None]
    expected = torch.linalg.eigvalsh(pairwise_grams(texts.double(), zeroed))[..., -1] / (1 + mask.sum(1))
    actual = retrieval_scores(texts, modalities, mask, method="pmrl")
    torch.testing.assert_close(actual.double(), expected, atol=5e-7, rtol=0)


@pytest.mark.parametrize("clip", [[0, 0, 0], [1, 1, 1], [0, 1, 1], [1, 2, 3]])
def test_the_largest_eigenvalue_of_equal_and_orthogonal_vectors_is_their_largest_number(clip):
    axes = torch.eye(4)
    texts, modalities, mask = axes[:1], axes[clip][None], torch.ones(1, 3, dtype=torch.bool)
    expected = max([0, *clip].count(axis) for axis in range(4)) / 4
    for signs in ([1, 1, 1], [1, -1, 1], [-1, -1, -1]):
        signed = modalities * torch.tensor(signs)[:, None]
        assert retrieval_scores(texts, signed, mask, method="pmrl").item() == pytest.approx(expected, abs=1e-6)
        raw = retrieval_scores(texts, signed, mask, method="pmrl_raw")
        assert raw.item() == pytest.approx(4 * expected, abs=4e-6)


@pytest.mark.parametrize("gap", [0.0, 1e-6, 1e-3])
def test_two_equal_eigenvalues_cost_half_of_the_digits_of_float64_only(gap):
    axes = torch.eye(4, dtype=torch.float64)
    cosine, other = 0.5, 0.5 + gap
    video = cosine * axes[0] + math.sqrt(1 - cosine**2) * axes[1]
    subtitle = other * axes[2] + math.sqrt(1 - other**2) * axes[3]
    clips = axes[:1], torch.stack([video, axes[2], subtitle])[None], torch.ones(1, 3, dtype=torch.bool)
    expected = torch.tensor([[(1 + other) / 4]], dtype=torch.float64)
    torch.testing.assert_close(retrieval_scores(*clips, method="pmrl"), expected, atol=1e-5, rtol=0)


def test_triangle_says_where_it_is_undefined_and_does_not_read_subtitles():
    texts, modalities, mask = random_clips()
    scores = retrieval_scores(texts, modalities, mask, method="triangle")
    defined = mask[:, :2].all(1)
    assert defined.any() and not defined.all()
    assert (scores[:, ~defined] == -math.inf).all() and scores[:, defined].isfinite().all()
    mask = mask.clone()
    mask[defined, 2] = ~mask[defined, 2]
    torch.testing.assert_close(retrieval_scores(texts, modalities, mask, method="triangle"), scores)


@pytest.mark.parametrize("method", ["gram", "hypergram"])
def test_a_volume_does_not_see_the_sign_of_a_vector_but_a_hyperbolic_one_does(method):
    texts, modalities, mask = random_clips(spread=1.0)
    flipped = retrieval_scores(texts, -modalities, mask, method=method)
    changed = (flipped - retrieval_scores(texts, modalities, mask, method=method)).abs().max().item()
    assert changed < 1e-6 if method == "gram" else changed > 0.1


@pytest.mark.parametrize("method", BASELINES)
def test_gradients_equal_finite_differences(method):
    texts, modalities, mask = random_clips(3, 9, 5, spread=1.0, dtype=torch.float64)
    texts.requires_grad_(), modalities.requires_grad_()
    learned = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.4, 1.3)]

    def finite_scores(text_embeds, modality_embeds, mix, curvature):
        options = {"method": method, "hyperbolic_mix": mix, "curvature": curvature}
        scores = retrieval_scores(text_embeds, modality_embeds, mask, **options)
        return scores[scores.isfinite()] + 0 * (mix + curvature)  # the other methods do not use the two

    assert torch.autograd.gradcheck(finite_scores, (texts, modalities, *learned))


def test_mix_and_curvature_learn_from_frozen_embeddings():
    mix, curvature = torch.tensor([0.51], requires_grad=True), torch.tensor(1.0, requires_grad=True)
    scores = retrieval_scores(*random_clips(), method="hypergram", hyperbolic_mix=mix, curvature=curvature)
    scores.sum().backward()
    assert mix.grad.abs() > 1 and curvature.grad.abs() > 1
    plain = retrieval_scores(*random_clips(), method="hypergram", hyperbolic_mix=0.51, curvature=1.0)
    torch.testing.assert_close(scores.detach(), plain)
    with torch.no_grad():
        assert not retrieval_scores(*random_clips(), method="hypergram", curvature=curvature).requires_grad


@pytest.mark.parametrize("method", BASELINES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_degenerate_clips_give_finite_scores_and_gradients(method, dtype):
    """Text and modalities that are all the same, opposite, or orthogonal, with what is absent holding NaN."""
    axes = torch.eye(6)
    texts = axes[:2].to(dtype).requires_grad_()
    clips = [axes[[0, 0, 0]], axes[[2, 3, 4]], axes[[0, 1, 1]], axes[[0, 0, 1]] * torch.tensor([[1], [-1], [1]])]
    clips.append(normalize(axes[:3] + 0.3 * axes[1:4] - 0.2 * axes[2:5], dim=-1))  # an ordinary one: it has a gradient
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 1, 1], [1, 0, 0]]).bool().repeat_interleave(5, dim=0)
    filled = torch.stack(clips).repeat(4, 1, 1).masked_fill(~mask[..., None], math.nan).to(dtype).requires_grad_()
    scores = retrieval_scores(texts, filled, mask, method=method)
    defined = mask[:, :2].all(1) | (method != "triangle")
    assert scores[:, defined].isfinite().all() and scores.dtype == torch.promote_types(dtype, torch.float32)
    scores[:, defined].sum().backward()
    assert texts.grad.isfinite().all() and filled.grad.isfinite().all()
    assert (filled.grad[~mask] == 0).all() and filled.grad.abs().max() > 0


@pytest.mark.parametrize("method", BASELINES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
def test_half_precision_embeddings_lose_only_their_own_rounding(method, dtype, tolerance):
    texts, modalities, mask = random_clips()
    tolerance *= 4 if method == "pmrl_raw" else 1
    halved = retrieval_scores(texts.to(dtype), modalities.to(dtype), mask, method=method)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        full = retrieval_scores(texts, modalities, mask, method=method)
    torch.testing.assert_close(full, retrieval_scores(texts, modalities, mask, method=method), atol=0, rtol=0)
    torch.testing.assert_close(halved, full, atol=tolerance, rtol=0)
    assert not torch.equal(halved, full)


@pytest.mark.parametrize("name", ["hyperbolic_mix", "curvature"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, torch.tensor(-1.0)])
def test_a_mix_or_curvature_out_of_range_is_refused(name, value):
    with pytest.raises(ValueError, match=name):
        retrieval_scores(*random_clips(), method="hypergram", **{name: value})


def loop_fusion(texts, modalities, mask, direction, constant):
    """Reciprocal ranks counted one by one; of equal similarities each has the worst rank."""
    similarities = torch.einsum("qd,vmd->mqv", texts, modalities)
    scores = torch.zeros(len(texts), len(modalities), dtype=torch.float64)
    for q in range(len(texts)):
        for v in range(len(modalities)):
            for m in mask[v].nonzero().flatten().tolist():
                own = similarities[m, q, v]
                if direction == "text_to_video":
                    rank = sum((similarities[m, q, w] >= own).item() for w in range(len(mask)) if mask[w, m])
                else:
                    rank = sum((similarities[m, p, v] >= own).item() for p in range(len(texts)))
                scores[q, v] += 1 / (constant + rank)
    return scores


@pytest.mark.parametrize("direction", ["text_to_video", "video_to_text"])
@pytest.mark.parametrize("constant", [1, 60])
def test_rank_fusion_equals_the_loop_with_ties_and_absent_modalities(direction, constant):
    # Of unit vectors with four entries of 1/2 or -1/2, many similarities are equal, some are zero of either sign.
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (9 + 31 * 3, 6), generator=generator) - 0.5
    zeros = torch.rand(signs.shape, generator=generator).topk(2, dim=1).indices
    vectors = signs.scatter(1, zeros, 0.0)
    texts, modalities = vectors[:9], vectors[9:].view(31, 3, 6)
    mask = random_clips()[2]
    similarities = texts @ modalities[:, 0].T
    assert all(len(row.unique()) < len(row) for row in similarities) and (similarities < 0).any()
    scores = retrieval_scores(
        texts, modalities, mask, method="rank_fusion", rank_constant=constant, direction=direction
    )
    expected = loop_fusion(texts, modalities, mask, direction, constant)
    torch.testing.assert_close(scores.double(), expected, atol=1e-6, rtol=0)


def test_concatenation_heads_are_chosen_by_what_a_clip_has_and_never_guessed():
    texts, modalities, _ = random_clips()
    heads = random_clips(seed=1)[1]
    subsets = [(0, 1), (0, 2), (0, 1, 2), (1, 2), (0,), (1,), (2,)]
    mask = torch.zeros(len(modalities), 3, dtype=torch.bool)
    for clip in range(len(mask)):
        mask[clip, subsets[clip % len(subsets)]] = True
    scores = retrieval_scores(texts, modalities, mask, method="concat_head", concat_embeds=heads)
    for clip in range(len(mask)):
        head = clip % len(subsets)
        expected = texts @ heads[clip, head] if head < 3 else torch.full((len(texts),), -math.inf)
        torch.testing.assert_close(scores[:, clip], expected)


# Identities ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [0.3, 1.0, 100.0])
def test_no_weighting_beats_the_projection_on_the_span(seed, spread):
    """|s| <= sqrt(a' G^-1 a), the cosine with the nearest vector of the span, at every temperature."""
    clips = random_clips(seed=seed, spread=spread, dtype=torch.float64)
    bound = (1 - retrieval_scores(*clips, method="gram_span").square()).clamp(min=0).sqrt()
    for temperature in (0.01, 0.1, 1.0, math.inf):
        scores = retrieval_scores(*clips, query_temperature=temperature)
        assert (scores.abs() <= bound + 1e-7).all()
    single = clips[2].sum(1) == 1
    assert single.any()
    torch.testing.assert_close(scores[:, single].abs(), bound[:, single], atol=1e-7, rtol=0)


@pytest.mark.parametrize("temperature", [0.02, 0.1, 1.0, math.inf])
def test_a_score_is_at_least_its_weighted_mean_of_cosines_where_that_is_not_negative(temperature):
    texts, modalities, mask = random_clips(spread=3.0, dtype=torch.float64)
    scores = retrieval_scores(texts, modalities, mask, query_temperature=temperature)
    weights = query_weights(texts, modalities, mask, query_temperature=temperature)
    mean = (weights * torch.einsum("qd,vmd->qvm", texts, modalities)).sum(-1)
    counted = mean >= 0
    assert counted.any() and not counted.all() and (scores[counted] > mean[counted] + 1e-3).any()
    assert (scores[counted] >= mean[counted] - 1e-12).all()


@pytest.mark.parametrize("index", range(3))
def test_with_one_modality_every_cosine_is_the_same_and_every_volume_its_sine(index):
    texts, modalities, mask = random_clips(dtype=torch.float64)
    mask = torch.zeros_like(mask)
    mask[:, index] = True
    cosine = texts @ modalities[:, index].T
    for method in ("scalar", "uniform", "max", "mean", "symile", ("video", "audio", "subtitle")[index]):
        torch.testing.assert_close(retrieval_scores(texts, modalities, mask, method=method), cosine)
    for method in ("gram", "gram_span"):
        sine = (1 - cosine.square()).sqrt()
        torch.testing.assert_close(retrieval_scores(texts, modalities, mask, method=method), -sine)
    torch.testing.assert_close(retrieval_scores(texts, modalities, mask, method="pmrl_raw"), 1 + cosine.abs())


def test_a_repeated_vector_makes_a_volume_zero_which_ranks_first_but_not_the_distance_to_the_span():
    texts, modalities, mask = random_clips(dtype=torch.float64)
    mask = torch.ones_like(mask)
    modalities = modalities.clone()
    modalities[0, 1] = modalities[0, 0]
    volumes = retrieval_scores(texts, modalities, mask, method="gram")
    assert (volumes.argmax(1) == 0).all() and volumes[:, 0].abs().max() < 1e-5
    distances = retrieval_scores(texts, modalities, mask, method="gram_span")
    two = mask.clone()
    two[0, 1] = False
    torch.testing.assert_close(distances, retrieval_scores(texts, modalities, two, method="gram_span"))
    # A vector of zeros in place of an absent one would do the same to every masked clip (Eq. S1 does not).
    gram = pairwise_grams(texts, modalities * two[..., None])
    assert gram[:, 0].det().abs().max() < 1e-12
    assert retrieval_scores(texts, modalities, two, method="gram")[:, 0].abs().min() > 0.1


def test_the_span_distance_is_the_ratio_of_two_volumes():
    texts, modalities, _ = random_clips(dtype=torch.float64)
    mask = torch.ones(len(modalities), 3, dtype=torch.bool)
    ratio = (pairwise_grams(texts, modalities).det() / (modalities @ modalities.mT).det()).sqrt()
    torch.testing.assert_close(retrieval_scores(texts, modalities, mask, method="gram_span"), -ratio)
