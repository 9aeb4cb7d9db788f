"""What scores, weights and centroids do beside their definitions (`test_definitions.py`): pairs, ranks, gradients, the
registry, names of modalities, and what is refused."""

import doctest
import itertools
import math
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from scalar_retrieval.modeling_scalar import MODALITIES, scores_scalar
from scalar_retrieval.modeling_scalar.scores_scalar import (
    closed_form,
    find_method,
    paired_centroids,
    paired_weights,
    query_weights,
    register_method,
    retrieval_scores,
)
from tests.imports import closure, modules, statements
from tests.modeling_scalar.test_definitions import centroid_score, weights_of
from tests.scores import METHODS

FLOAT32 = {"atol": 3e-6, "rtol": 0}  # a few roundings of sums of D products
CALIBRATION = {"modality_scale": [0.5, 2.0, 1.25], "modality_offset": [0.3, -0.1, 0.05]}
NAMED = {"triangle", "concat_head", *MODALITIES}  # read modalities by name


def random_clips(num_queries=7, num_clips=23, number=3, dim=24, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    texts = normalize(torch.randn(num_queries, dim, generator=generator, dtype=torch.float64), dim=-1)
    modalities = normalize(torch.randn(num_clips, number, dim, generator=generator, dtype=torch.float64), dim=-1)
    mask = torch.rand(num_clips, number, generator=generator) < 0.6
    mask[torch.arange(num_clips), torch.arange(num_clips) % number] = True
    return texts.to(dtype), modalities.to(dtype), mask


def score(clips, method, **options):
    """Scores of every method, those by concatenation heads too."""
    names = {"modalities": MODALITIES} if clips[1].shape[1] == 3 else {}
    return retrieval_scores(*clips, method=method, concat_embeds=random_clips(seed=1)[1], **names | options)


def loop(texts, modalities, mask, temperature=0.1, modality_scale=None, modality_offset=None):
    """Calibrated scores (Q, V) and weights (Q, V, M) of Eq. 2 to 4 in float64, one pair at a time."""
    number = modalities.shape[1]
    scales, offsets = np.array(modality_scale or [1.0] * number), np.array(modality_offset or [0.0] * number)
    scores = torch.full((len(texts), len(modalities)), -math.inf, dtype=torch.float64)
    weights = torch.zeros(*scores.shape, number, dtype=torch.float64)
    for q, v in itertools.product(range(len(texts)), range(len(modalities))):
        present = mask[v].numpy()
        if present.any():
            vectors = modalities[v, mask[v]].double().numpy()
            cosines = scales[present] * (vectors @ texts[q].double().numpy()) + offsets[present]
            weights[q, v, mask[v]] = torch.tensor(weights_of(cosines, temperature), dtype=torch.float64)
            scores[q, v] = centroid_score(cosines, vectors, temperature, 0.0)
    return scores, weights


# Scores -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_differentiable_and_tiled_paths_agree(method, monkeypatch):
    texts, modalities, mask = random_clips()
    monkeypatch.setattr("scalar_retrieval.modeling_scalar.scores_scalar._TILE", (3, 5))
    tiled = score((texts, modalities, mask), method, **CALIBRATION)
    plain = score((texts.requires_grad_(), modalities, mask), method, **CALIBRATION)
    assert plain.requires_grad == (method != "rank_fusion") and not tiled.requires_grad
    torch.testing.assert_close(tiled, plain.detach(), **FLOAT32)


def test_paired_weights_and_centroids_are_those_of_each_clip_and_its_own_text():
    texts, modalities, mask = random_clips(num_queries=23)
    modalities = modalities.masked_fill(~mask[..., None], math.nan)
    expected = query_weights(texts, modalities, mask, 0.2, **CALIBRATION).diagonal(dim1=0, dim2=1).T
    torch.testing.assert_close(paired_weights(texts, modalities, mask, 0.2, **CALIBRATION), expected)
    centroids = paired_centroids(texts, modalities, mask, 0.1)
    torch.testing.assert_close(centroids.norm(dim=-1), torch.ones(len(texts)))
    scores = retrieval_scores(texts, modalities, mask)
    torch.testing.assert_close((texts * centroids).sum(-1), scores.diagonal(), **FLOAT32)
    with pytest.raises(ValueError, match="one text per clip"):
        paired_weights(texts[:5], modalities, mask)


@pytest.mark.parametrize(
    ("text_dtype", "clip_dtype", "least"),
    [
        (torch.float64, torch.float64, 1e-6),
        (torch.float64, torch.float32, 1e-3),
        (torch.bfloat16, torch.float32, 1e-2),
        (torch.float32, torch.float16, 1e-2),
    ],
)
def test_a_centroid_counts_as_no_shorter_than_its_coarsest_dtype_resolves(text_dtype, clip_dtype, least):
    text = torch.tensor([[1.0, 0.0]], dtype=text_dtype)
    for length in (least / 4, least * 4):
        # The mean of two vectors, in the direction of the text.
        aside = math.sqrt(1 - length**2)
        vectors = torch.tensor([[[length, aside], [length, -aside]]], dtype=torch.float64).to(clip_dtype)
        length = vectors[..., 0].mean().item()  # after rounding
        expected = pytest.approx(length / max(length, least), rel=2e-3)
        assert retrieval_scores(text, vectors, method="uniform").item() == expected
        assert paired_centroids(text, vectors, query_temperature=math.inf)[0, 0].item() == expected


@pytest.mark.parametrize("temperature", [0.04, 0.01, 0.001])
def test_a_low_temperature_does_not_magnify_the_rounding_of_cosines(temperature):
    texts, modalities, _ = random_clips(num_queries=64, num_clips=64, dim=256)
    exact = retrieval_scores(texts.double(), modalities.double(), query_temperature=temperature)
    found = retrieval_scores(texts, modalities, query_temperature=temperature)
    # Of a float32 below 1 the last digit is 6e-8; weights from cosines in float32 would add several of them.
    assert (found - exact).abs().max() < 3e-8


def test_autocast_does_not_touch_the_scores():
    texts, modalities, mask = random_clips(num_queries=23)
    functions = (retrieval_scores, query_weights, paired_weights, paired_centroids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = [function(texts, modalities, mask) for function in functions]
    for function, value in zip(functions, found, strict=True):
        assert torch.equal(value, function(texts, modalities, mask))


@pytest.mark.parametrize("direction", ["text_to_video", "video_to_text"])
def test_rank_fusion_equals_the_loop_with_ties_and_absent_modalities(direction):
    # Similarities of axes and their opposites are 1, -1, or zero of either sign.
    generator = torch.Generator().manual_seed(0)
    vectors = torch.eye(4)[torch.randint(4, (9 + 31 * 3,), generator=generator)]
    vectors *= torch.randint(2, (len(vectors), 1), generator=generator) * 2 - 1
    texts, modalities, mask = vectors[:9], vectors[9:].view(31, 3, 4), random_clips(num_clips=31)[2]
    filled = modalities.masked_fill(~mask[..., None], math.nan)
    scores = retrieval_scores(texts, filled, mask, method="rank_fusion", rank_constant=7, direction=direction)
    similarities = torch.einsum("qd,vmd->mqv", texts, modalities)
    expected = torch.zeros_like(scores)
    for q, v in itertools.product(range(9), range(31)):
        for m in mask[v].nonzero().flatten().tolist():
            others = similarities[m, :, v] if direction == "video_to_text" else similarities[m, q, mask[:, m]]
            expected[q, v] += 1 / (7 + (others >= similarities[m, q, v]).sum())
    torch.testing.assert_close(scores, expected, atol=1e-6, rtol=0)


def test_gradients_equal_finite_differences_of_centroids_and_of_all_numbers():
    texts, modalities, mask = random_clips(3, 3, dim=5, dtype=torch.float64)
    numbers = torch.tensor([0.5, 2.0, 1.25, 0.3, -0.1, 0.05, 0.2, 0.4, 1.3], dtype=torch.float64, requires_grad=True)

    def scores(values):
        calibration = {"modality_scale": values[:3], "modality_offset": values[3:6]}
        mixed = {"hyperbolic_mix": values[7], "curvature": values[8]}
        return (
            retrieval_scores(texts, modalities, mask, "scalar", values[6], **calibration),
            retrieval_scores(texts, modalities, mask, "hypergram", **mixed),
        )

    assert torch.autograd.gradcheck(scores, numbers)
    filled = modalities.masked_fill(~mask[..., None], math.nan)
    leaves = texts.clone().requires_grad_(), filled.requires_grad_()
    assert torch.autograd.gradcheck(lambda t, z: paired_centroids(t, z, mask), leaves)


def test_the_closed_form_compiles_to_one_graph_and_has_the_same_gradients():
    texts, clips, mask = random_clips(number=4)

    def scores(texts, clips, mask):
        present = clips * mask[..., None]
        cosines = texts @ present.permute(1, 2, 0)
        return closed_form(cosines, mask, present @ present.mT, 0.2, 1e-3)

    torch.compiler.reset()
    leaves = texts.requires_grad_(), clips.requires_grad_()
    expected = scores(*leaves, mask)
    found = torch.compile(scores, fullgraph=True, backend="aot_eager")(*leaves, mask)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)
    gradients = [torch.autograd.grad(values.square().sum(), leaves) for values in (found, expected)]
    assert all(reference.abs().max() > 0.01 for reference in gradients[1])
    torch.testing.assert_close(*gradients, atol=2e-5, rtol=0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("num_queries", "num_clips"), [(0, 5), (5, 0)])
def test_nothing_to_score_is_no_scores(method, num_queries, num_clips):
    texts, clips, mask = random_clips()
    given = texts[:num_queries], clips[:num_clips], mask[:num_clips]
    scores = retrieval_scores(*given, method, concat_embeds=given[1], modalities=MODALITIES)
    assert scores.shape == (num_queries, num_clips)


# The registry and names ---------------------------------------------------------------------------------------------


def test_a_score_cannot_take_the_name_of_another():
    with pytest.raises(ValueError, match="gram"):
        register_method("gram")


@pytest.mark.parametrize("method", METHODS)
def test_a_score_depends_on_what_it_says_it_reads_and_on_nothing_else(method):
    texts, modalities, mask = random_clips()
    facts, expected = METHODS[method], score((texts, modalities, mask), method)
    for index, name in enumerate(MODALITIES):
        changed = modalities.clone()
        changed[:, index] = random_clips(seed=2)[1][:, index]
        is_ignored = facts.uses_concat_heads or (facts.reads is not None and name not in facts.reads)
        assert torch.equal(score((texts, changed, mask), method), expected) == is_ignored


@pytest.mark.parametrize(("number", "names"), [(3, None), (3, "abc"), (4, None), (4, "abcd")])
def test_a_score_that_reads_modalities_by_name_needs_the_names(number, names):
    """Also of three: the paper's names are not guessed."""
    for method in sorted(NAMED):
        with pytest.raises(ValueError, match=method):
            retrieval_scores(*random_clips(number=number), method=method, modalities=names and list(names))


@pytest.mark.parametrize(("names", "message"), [(MODALITIES, "concat_embeds"), (MODALITIES[::-1], "needs the order")])
def test_concatenation_heads_need_to_be_there_and_an_order(names, message):
    heads = None if names == MODALITIES else torch.zeros(23, 3, 24)
    with pytest.raises(ValueError, match=message):
        retrieval_scores(*random_clips(), method="concat_head", modalities=names, concat_embeds=heads)


def test_names_say_where_a_modality_stands():
    texts, clips, mask = random_clips(number=4)
    names = ["title", "audio", "screen", "video"]
    for index, name in enumerate(names):
        scores = retrieval_scores(texts, clips, mask, name, modalities=names)
        here = mask[:, index]
        torch.testing.assert_close(scores[:, here], texts @ clips[here, index].T)
        assert (scores[:, ~here] == -math.inf).all()
        assert torch.equal(find_method(name, names).covers(mask, names), here)


def test_the_scores_import_torch_and_nothing_else_of_size():
    found = set()
    for path in closure("modeling_scalar.scores_scalar"):
        for statement in statements(path, later=False):
            found |= {name.split(".")[0] for name in modules(path, statement)}
    assert "torch" in found and not found & {"av", "datasets", "gallery", "pyarrow", "transformers"}


def test_arrays_of_numpy_are_taken_and_without_a_mask_each_clip_has_every_modality():
    texts, modalities, mask = random_clips(num_queries=23)
    arrays = [values.numpy() for values in (texts, modalities, mask)]
    for function in (retrieval_scores, query_weights, paired_weights, paired_centroids):
        assert torch.equal(function(*arrays), function(texts, modalities, mask))
        assert torch.equal(function(*arrays[:2]), function(texts, modalities, torch.ones_like(mask)))


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda t, z, m: (t, z.long().numpy(), m), r"torch.int64 \(23, 3, 24\)"),
        (lambda t, z, m: (t, z[:, :2], m), "modality_mask"),
        (lambda t, z, m: (t[:, :5], z, m), "text_embeds"),
        (lambda t, z, m: (t, z, m & (torch.arange(len(m)) != 3)[:, None]), r"\[3\]"),
    ],
)
def test_clips_that_do_not_fit_are_refused(change, name):
    with pytest.raises(ValueError, match=name):
        retrieval_scores(*change(*random_clips()))


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "method": ["median"],
        "query_temperature": [0.0, math.nan, 10**400],
        "rank_constant": [0],
        "direction": ["backwards"],
        "hyperbolic_mix": [math.nan, torch.tensor(-1.0)],
        "curvature": [-0.1, math.inf],
        "concat_embeds": [torch.zeros(2, 3, 24)],
        "modality_scale": [[1, 0, 1], [1, 1], 2.0],
        "modality_offset": [[0, math.nan, 0], torch.zeros(3, 1)],
        "modalities": [["a"], ["a", "a", "b"]],
    }.items(),
)
def test_options_out_of_range_are_refused(name, values):
    for value in values:
        with pytest.raises(ValueError, match=name):
            retrieval_scores(*random_clips(), **{name: value})


@pytest.mark.parametrize("function", [retrieval_scores, query_weights, paired_weights, paired_centroids])
def test_another_name_of_an_option_is_answered_with_those_like_it(function):
    with pytest.raises(TypeError, match="query_temperature"):
        function(*random_clips(), temperature=0.05)


@pytest.mark.parametrize("argument", [0, 1])
@pytest.mark.parametrize("function", [retrieval_scores, query_weights])
def test_vectors_further_from_unit_norm_than_half_precision_takes_them_are_refused_by_row(function, argument):
    message = rf"{['text_embeds', 'modality_embeds'][argument]}` must have unit norm.*\[5\]"
    for norm in (0.0, 0.985, 0.994, 1.006, 1.015, math.nan, math.inf):
        clips = random_clips()
        clips[2][5] = True
        clips[argument][5] *= norm
        if norm in (0.994, 1.006):
            assert function(*clips).isfinite().any()
        else:
            with pytest.raises(ValueError, match=message):
                function(*clips)


def test_a_training_step_that_diverged_has_a_score_that_is_not_a_number():
    texts, modalities, mask = random_clips()
    modalities[3] = math.nan
    scores = retrieval_scores(texts.requires_grad_(), modalities, mask)
    assert scores[:, 3].isnan().all() and scores[:, 4].isfinite().all()


def test_the_examples_print_these_numbers():
    with patch.dict(scores_scalar.METHODS):  # an example registers one
        results = doctest.testmod(scores_scalar)
    assert results.attempted and not results.failed
