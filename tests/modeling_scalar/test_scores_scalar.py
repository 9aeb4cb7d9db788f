"""Scores, weights and centroids against a float64 loop over Eq. 2-4, and the properties the paper relies on."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from modeling_scalar import MODALITIES
from modeling_scalar.scores_scalar import (
    find_method,
    paired_centroids,
    paired_weights,
    query_weights,
    register_method,
    retrieval_scores,
)
from tests.scores import METHODS

FLOAT32 = {"atol": 2e-6, "rtol": 0}  # a few roundings of sums of D products


def random_clips(num_queries=7, num_clips=23, dim=24, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    texts = normalize(torch.randn(num_queries, dim, generator=generator, dtype=torch.float64), dim=-1)
    modalities = normalize(torch.randn(num_clips, 3, dim, generator=generator, dtype=torch.float64), dim=-1)
    mask = torch.rand(num_clips, 3, generator=generator) < 0.6
    mask[torch.arange(num_clips), torch.arange(num_clips) % 3] = True
    assert {1, 2, 3} == set(mask.sum(1).tolist())
    return texts.to(dtype), modalities.to(dtype), mask


def loop_weights(text, embeds, query_temperature):
    agreements = [sum(x * y for x, y in zip(text, z, strict=True)) for z in embeds]
    largest = max(agreements)
    exponentials = [math.exp((a - largest) / query_temperature) for a in agreements]
    return [e / sum(exponentials) for e in exponentials]


def loop_scores(texts, modalities, mask, query_temperature, uniform=False):
    """Eq. 2 and 3 literally: weights, weighted sum, norm, cosine; one pair and one coordinate at a time."""
    scores = torch.zeros(len(texts), len(modalities), dtype=torch.float64)
    for q, text in enumerate(texts.double().tolist()):
        for v in range(len(modalities)):
            embeds = [modalities[v, m].double().tolist() for m in range(3) if mask[v, m]]
            weights = [1 / len(embeds)] * len(embeds) if uniform else loop_weights(text, embeds, query_temperature)
            total = [sum(w * z[d] for w, z in zip(weights, embeds, strict=True)) for d in range(len(text))]
            norm = math.sqrt(sum(x * x for x in total))
            scores[q, v] = sum(t * x for t, x in zip(text, total, strict=True)) / norm
    return scores


@pytest.mark.parametrize("query_temperature", [0.01, 0.05, 0.1, 1.0])
def test_scores_equal_the_float64_loop(query_temperature):
    clips = random_clips()
    expected = loop_scores(*clips, query_temperature)
    scores = retrieval_scores(*clips, query_temperature=query_temperature)
    torch.testing.assert_close(scores.double(), expected, **FLOAT32)


def test_uniform_scores_equal_the_float64_loop():
    clips = random_clips()
    expected = loop_scores(*clips, 0.1, uniform=True)
    torch.testing.assert_close(retrieval_scores(*clips, method="uniform").double(), expected, **FLOAT32)


@pytest.mark.parametrize("name", MODALITIES)
def test_a_pathway_is_the_cosine_and_minus_infinity_where_absent(name):
    texts, modalities, mask = random_clips()
    index = MODALITIES.index(name)
    scores = retrieval_scores(texts, modalities, mask, method=name)
    present = mask[:, index]
    assert present.any() and not present.all()
    torch.testing.assert_close(scores[:, present], texts @ modalities[present, index].T)
    assert (scores[:, ~present] == float("-inf")).all()


@pytest.mark.parametrize("method", METHODS)
def test_differentiable_and_tiled_paths_agree(method, monkeypatch):
    texts, modalities, mask = random_clips()
    heads = random_clips(seed=1)[1]
    monkeypatch.setattr("modeling_scalar.scores_scalar._TILE", (3, 5))
    tiled = retrieval_scores(texts, modalities, mask, method=method, concat_embeds=heads)
    plain = retrieval_scores(texts.requires_grad_(), modalities, mask, method=method, concat_embeds=heads)
    assert plain.requires_grad == (method != "rank_fusion") and not tiled.requires_grad
    torch.testing.assert_close(tiled, plain.detach(), **FLOAT32)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("content", [1e4, float("nan"), float("inf")])
def test_what_a_masked_modality_holds_changes_nothing(method, content):
    texts, modalities, mask = random_clips()
    heads = random_clips(seed=1)[1]
    expected = retrieval_scores(texts, modalities, mask, method=method, concat_embeds=heads)
    filled = modalities.masked_fill(~mask[..., None], content)
    scores = retrieval_scores(texts, filled, mask, method=method, concat_embeds=heads)
    torch.testing.assert_close(scores, expected, atol=0, rtol=0)
    torch.testing.assert_close(query_weights(texts, filled, mask), query_weights(texts, modalities, mask))


def test_what_a_masked_modality_holds_reaches_no_gradient():
    texts, modalities, mask = random_clips()
    filled = modalities.masked_fill(~mask[..., None], float("nan")).requires_grad_()
    texts.requires_grad_()
    own = torch.arange(len(texts))
    loss = retrieval_scores(texts, filled, mask).sum() + paired_centroids(texts, filled[own], mask[own]).sum()
    loss.backward()
    assert texts.grad.isfinite().all() and texts.grad.abs().max() > 0.1
    assert (filled.grad[~mask] == 0).all() and filled.grad.isfinite().all() and filled.grad[mask].abs().max() > 0.1


def test_scores_do_not_depend_on_the_other_clips_or_their_order():
    texts, modalities, mask = random_clips()
    scores = retrieval_scores(texts, modalities, mask)
    order = torch.randperm(len(mask), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(retrieval_scores(texts, modalities[order], mask[order]), scores[:, order], **FLOAT32)
    one = torch.cat([retrieval_scores(texts[:1], modalities[v : v + 1], mask[v : v + 1]) for v in range(len(mask))], 1)
    torch.testing.assert_close(one, scores[:1], **FLOAT32)


def test_scores_do_not_depend_on_the_order_of_modalities():
    texts, modalities, mask = random_clips()
    order = [2, 0, 1]
    rotated = retrieval_scores(texts, modalities[:, order], mask[:, order])
    torch.testing.assert_close(rotated, retrieval_scores(texts, modalities, mask), **FLOAT32)


def test_one_modality_scores_as_its_cosine():
    texts, modalities, _ = random_clips()
    mask = torch.tensor([[False, True, False]]).expand(len(modalities), -1)
    torch.testing.assert_close(retrieval_scores(texts, modalities, mask), texts @ modalities[:, 1].T, **FLOAT32)


def test_the_temperature_goes_from_the_best_pathway_to_the_uniform_centroid():
    texts, modalities, mask = random_clips(dtype=torch.float64)
    cold = retrieval_scores(texts, modalities, mask, query_temperature=1e-5)
    pathways = torch.stack([retrieval_scores(texts, modalities, mask, method=name) for name in MODALITIES])
    torch.testing.assert_close(cold, pathways.amax(0), atol=1e-4, rtol=0)
    hot = retrieval_scores(texts, modalities, mask, query_temperature=1e6)
    torch.testing.assert_close(hot, retrieval_scores(texts, modalities, mask, method="uniform"), atol=1e-5, rtol=0)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_an_infinite_temperature_is_the_uniform_centroid_and_still_learns(requires_grad):
    texts, modalities, mask = random_clips(num_queries=23)
    modalities[3, 1], mask[3] = -modalities[3, 0], torch.tensor([True, True, False])  # they cancel exactly
    modalities.requires_grad_(requires_grad)
    hot = {"query_temperature": math.inf}
    scores = retrieval_scores(texts, modalities, mask, **hot)
    torch.testing.assert_close(scores, retrieval_scores(texts, modalities, mask, method="uniform"), atol=0, rtol=0)
    uniform = mask / mask.sum(1, keepdim=True)
    torch.testing.assert_close(query_weights(texts, modalities, mask, **hot), uniform.expand(23, -1, -1))
    torch.testing.assert_close(paired_weights(texts, modalities, mask, **hot), uniform)
    centroids = paired_centroids(texts, modalities, mask, **hot)
    torch.testing.assert_close((texts * centroids).sum(-1), scores.diagonal(), **FLOAT32)
    assert scores.requires_grad == centroids.requires_grad == requires_grad
    if requires_grad:
        gradients = [torch.autograd.grad(total.sum(), modalities)[0] for total in (scores, centroids)]
        assert all(gradient.isfinite().all() and gradient.abs().max() > 0.1 for gradient in gradients)


def test_the_score_is_a_cosine_and_at_least_the_weighted_mean():
    texts, modalities, mask = random_clips(dtype=torch.float64)
    scores, weights = retrieval_scores(texts, modalities, mask), query_weights(texts, modalities, mask)
    mean = (weights * torch.einsum("qd,vmd->qvm", texts, modalities)).sum(-1)
    assert scores.abs().max() <= 1
    assert (mean > 0).any() and (scores[mean > 0] >= mean[mean > 0] - 1e-12).all()


def test_weights_equal_the_loop_and_are_zero_where_absent():
    texts, modalities, mask = random_clips()
    weights = query_weights(texts, modalities, mask, 0.1)
    assert weights.shape == (len(texts), len(mask), 3)
    for q in (0, 3):
        for v in range(len(mask)):
            present = mask[v].nonzero().flatten()
            expected = loop_weights(texts[q].double().tolist(), modalities[v, present].double().tolist(), 0.1)
            torch.testing.assert_close(weights[q, v, present].double(), torch.tensor(expected).double(), **FLOAT32)
    assert (weights[:, ~mask] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(texts), len(mask)))


def test_paired_centroids_are_unit_and_give_the_paired_score():
    texts, modalities, mask = random_clips(num_queries=23)
    centroids = paired_centroids(texts, modalities, mask, 0.1)
    torch.testing.assert_close(centroids.norm(dim=-1), torch.ones(len(texts)))
    scores = retrieval_scores(texts, modalities, mask)
    torch.testing.assert_close((texts * centroids).sum(-1), scores.diagonal(), **FLOAT32)


def test_paired_weights_are_the_diagonal_of_all_weights():
    texts, modalities, mask = random_clips(num_queries=23)
    expected = query_weights(texts, modalities, mask, 0.2).diagonal(dim1=0, dim2=1).T
    torch.testing.assert_close(paired_weights(texts, modalities, mask, 0.2), expected)
    with pytest.raises(ValueError, match="one text per clip"):
        paired_weights(texts[:5], modalities, mask)


def test_gradients_equal_finite_differences():
    texts, modalities, mask = random_clips(3, 4, 5, dtype=torch.float64)
    texts.requires_grad_(), modalities.requires_grad_()
    assert torch.autograd.gradcheck(lambda t, z: retrieval_scores(t, z, mask), (texts, modalities))
    assert torch.autograd.gradcheck(lambda t, z: paired_centroids(t, z[:3], mask[:3]), (texts, modalities))


@pytest.mark.parametrize("length", [0.3, 0.09, 0.02, 5e-3])
def test_scores_stay_exact_where_modalities_nearly_cancel(length):
    """Two unit vectors whose sum has twice this length, and a query that weighs them alike."""
    dim = 16
    modalities = torch.zeros(1, 3, dim, dtype=torch.float64)
    modalities[0, 0, 0] = modalities[0, 1, 0] = length
    modalities[0, 0, 1], modalities[0, 1, 1] = math.sqrt(1 - length**2), -math.sqrt(1 - length**2)
    texts = normalize(torch.randn(6, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=-1)
    texts[:, 1] *= 0.05
    texts = normalize(texts, dim=-1)
    mask = torch.tensor([[True, True, False]])
    clips = texts.float(), modalities.float(), mask
    expected = loop_scores(*clips, 0.1)
    # The centroid is computed to 1e-7 and then divided by its length.
    torch.testing.assert_close(retrieval_scores(*clips).double(), expected, atol=5e-7 / length, rtol=0)
    texts = clips[0].requires_grad_()
    with_gradient = retrieval_scores(texts, *clips[1:])
    torch.testing.assert_close(with_gradient.detach().double(), expected, atol=5e-7 / length, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("query_temperature", [0.01, 0.1])
def test_opposite_modalities_give_bounded_scores_and_finite_gradients(dtype, query_temperature):
    texts, modalities, mask = random_clips()
    modalities[:, 1], modalities[:, 2] = -modalities[:, 0], modalities[:, 0]
    texts[0] = normalize(texts[0] - (texts[0] @ modalities[0, 0]) * modalities[0, 0], dim=-1)  # agrees with neither
    mask = torch.tensor([[True, True, False], [True, True, True]]).repeat(12, 1)[: len(mask)]
    texts, modalities = texts.to(dtype).requires_grad_(), modalities.to(dtype).requires_grad_()
    scores = retrieval_scores(texts, modalities, mask, query_temperature=query_temperature)
    scores.sum().backward()
    assert scores.dtype == torch.float32 and scores.isfinite().all() and scores.abs().max() <= 1.01
    assert texts.grad.isfinite().all() and modalities.grad.isfinite().all()
    centroids = paired_centroids(texts, modalities[: len(texts)], mask[: len(texts)], query_temperature)
    assert centroids.isfinite().all()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 1e-3), (torch.bfloat16, 8e-3)])
def test_half_precision_embeddings_lose_only_their_own_rounding(dtype, tolerance):
    texts, modalities, mask = random_clips()
    halved = texts.to(dtype), modalities.to(dtype), mask
    expected = loop_scores(*halved, 0.1)  # of the rounded vectors
    torch.testing.assert_close(retrieval_scores(*halved).double(), expected, **FLOAT32)
    torch.testing.assert_close(
        retrieval_scores(*halved), retrieval_scores(texts, modalities, mask), atol=tolerance, rtol=0
    )


def test_autocast_does_not_touch_the_scores():
    clips = random_clips()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = retrieval_scores(*clips)
    torch.testing.assert_close(scores, retrieval_scores(*clips), atol=0, rtol=0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("direction", ["text_to_video", "video_to_text"])
@pytest.mark.parametrize(("num_queries", "num_clips"), [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_score_is_no_scores(method, direction, num_queries, num_clips):
    clips = torch.full((num_clips, 3, 4), 0.5), torch.ones(num_clips, 3, dtype=torch.bool)
    options = {"method": method, "direction": direction, "concat_embeds": clips[0]}
    scores = retrieval_scores(torch.full((num_queries, 4), 0.5), *clips, **options)
    assert scores.shape == (num_queries, num_clips)


def test_an_all_absent_row_is_named():
    texts, modalities, mask = random_clips()
    mask[[3, 17]] = False
    for function in (retrieval_scores, query_weights):
        with pytest.raises(ValueError, match=r"\[3, 17\]"):
            function(texts, modalities, mask)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, z, m: (t, z, m, "median"), "method"),
        (lambda t, z, m: (t, z, m, "scalar", 0.0), "positive"),
        (lambda t, z, m: (t, z, m, "scalar", math.nan), "positive"),
        (lambda t, z, m: (t, z, m.float()), "bool"),
        (lambda t, z, m: (t, z[:, :2], m), "modality_embeds"),
        (lambda t, z, m: (t[:, :5], z, m), "text_embeds"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        retrieval_scores(*change(*random_clips()))


@pytest.mark.parametrize("factor", [0.0, 0.5, 2.0, math.nan, math.inf])
@pytest.mark.parametrize("argument", [0, 1])
def test_vectors_that_are_not_of_unit_norm_are_refused_by_row(factor, argument):
    clips = random_clips()
    clips[2][5] = True
    clips[argument][5] *= factor
    for function in (retrieval_scores, query_weights):
        with pytest.raises(ValueError, match=rf"{['text_embeds', 'modality_embeds'][argument]}.*\[5\]"):
            function(*clips)


@pytest.mark.parametrize("argument", [0, 1, 2])
def test_arrays_that_are_not_tensors_are_refused(argument):
    clips = list(random_clips())
    clips[argument] = clips[argument].numpy()
    for function in (retrieval_scores, query_weights):
        with pytest.raises(TypeError, match=["text_embeds", "modality_embeds", "modality_mask"][argument]):
            function(*clips)


def test_a_training_step_that_diverged_has_a_score_that_is_not_a_number():
    texts, modalities, mask = random_clips()
    modalities[3] = math.nan
    scores = retrieval_scores(texts.requires_grad_(), modalities, mask)
    assert scores[:, 3].isnan().all() and scores[:, 4].isfinite().all()


def test_a_new_method_is_one_function(monkeypatch):
    monkeypatch.setattr("modeling_scalar.scores_scalar.METHODS", dict(METHODS))

    @register_method("least", scorable=lambda mask: mask[:, 0])
    def least(pairs):
        return pairs.similarities.masked_fill(~pairs.clips.modality_mask.T[:, None], math.inf).amin(0)

    texts, modalities, mask = random_clips()
    scores = retrieval_scores(texts, modalities, mask, method="least")
    assert (scores[:, ~mask[:, 0]] == -math.inf).all() and scores[:, mask[:, 0]].isfinite().all()
    for v in mask[:, 0].nonzero().flatten().tolist():
        torch.testing.assert_close(scores[:, v], (texts @ modalities[v, mask[v]].T).amin(1))
    with pytest.raises(ValueError, match="already"):
        register_method("gram")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "volume"}, "must be one of"),
        ({"rank_constant": 0}, "rank_constant"),
        ({"direction": "backwards"}, "text_to_video"),
        ({"method": "concat_head"}, "has_concat_heads"),
        ({"concat_embeds": torch.zeros(2, 3, 24)}, "concat_embeds"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        retrieval_scores(*random_clips(), **options)


def test_the_order_of_scores_is_that_of_tables():
    assert tuple(METHODS)[:7] == ("scalar", "uniform", "max", "mean", *MODALITIES)


@pytest.mark.parametrize("method", METHODS)
def test_a_score_depends_on_what_it_says_it_reads_and_on_nothing_else(method):
    texts, modalities, mask = random_clips()
    heads, facts = random_clips(seed=1)[1], METHODS[method]
    expected = retrieval_scores(texts, modalities, mask, method, concat_embeds=heads)
    for index, name in enumerate(MODALITIES):
        changed = modalities.clone()
        changed[:, index] = random_clips(seed=2)[1][:, index]
        scores = retrieval_scores(texts, changed, mask, method, concat_embeds=heads)
        assert torch.equal(scores, expected) == (
            (facts.reads is not None and name not in facts.reads) or facts.uses_concat_heads
        )
    heads = heads.flip(2)
    changed = retrieval_scores(texts, modalities, mask, method, concat_embeds=heads)
    assert torch.equal(changed, expected) != facts.uses_concat_heads
    other = retrieval_scores(texts, modalities, mask, method, hyperbolic_mix=0.2, curvature=2.0, concat_embeds=heads)
    assert torch.equal(other, changed) != facts.uses_hyperbolic_mix


@pytest.mark.parametrize("method", METHODS)
def test_a_clip_without_what_a_score_needs_is_not_covered(method):
    presence = torch.tensor([[a, b, c] for a in (0, 1) for b in (0, 1) for c in (0, 1)])[1:].bool()
    covered = find_method(method).covers(presence)
    needs = [MODALITIES.index(name) for name in METHODS[method].needs]
    assert covered.any() and not covered[~presence[:, needs].all(1)].any()
    if METHODS[method].scorable is None:
        assert torch.equal(covered, presence[:, needs].all(1))
