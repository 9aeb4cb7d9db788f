"""Every score for one, two, four, five and eight modalities, against float64 loops over the definitions."""

import itertools
import math
import subprocess
import sys

import pytest
import torch
from torch.nn.functional import normalize

from modeling_scalar import ScalarConfig
from modeling_scalar.scores_scalar import (
    PAPER_MODALITIES,
    ScoreOptions,
    exact_scores,
    find_method,
    make_pairs,
    paired_centroids,
    query_weights,
    retrieval_scores,
)
from tests.scores import METHODS

NUMBERS = [1, 2, 4, 5, 8]
NAMED = {"triangle", "concat_head", *PAPER_MODALITIES}  # read modalities by name
GENERAL = [name for name in METHODS if name not in NAMED]
DIFFERENTIABLE = [name for name in GENERAL if name != "rank_fusion"]
CALIBRATED = ("scalar", "uniform", "max", "mean")


def vectors_of(number, num_queries=3, seed=0, dim=24, dtype=torch.float64):
    """Texts, clips of every mask (of eight modalities of every seventh), and the masks."""
    generator = torch.Generator().manual_seed(seed)
    masks = torch.tensor(list(itertools.product([False, True], repeat=number))[1:])
    masks = masks[:: 7 if number == 8 else 1]
    texts = normalize(torch.randn(num_queries, dim, generator=generator, dtype=torch.float64), dim=-1)
    clips = normalize(torch.randn(len(masks), number, dim, generator=generator, dtype=torch.float64), dim=-1)
    return texts.to(dtype), clips.to(dtype), masks


def weighted(text, vectors, temperature, scale, offset):
    """Eq. 2 and 3, a coordinate at a time."""
    cosines = [
        a * sum(x * y for x, y in zip(text, z, strict=True)) + b
        for z, a, b in zip(vectors, scale, offset, strict=True)
    ]
    powers = [math.exp((c - max(cosines)) / temperature) for c in cosines]
    weights = [power / sum(powers) for power in powers]
    total = [sum(w * z[d] for w, z in zip(weights, vectors, strict=True)) for d in range(len(vectors[0]))]
    inner = sum(w * c for w, c in zip(weights, cosines, strict=True))
    return inner / math.sqrt(sum(x * x for x in total)), weights, cosines


def by_definition(method, text, vectors, mix=0.51, curvature=1.0):
    """One score of the M + 1 vectors that are there."""
    everything = torch.stack([text, *vectors])
    gram = everything @ everything.T
    volume = gram.det().abs().sqrt().item()
    if method == "gram":
        return -volume
    if method == "gram_span":
        fit = torch.linalg.lstsq(torch.stack(vectors).T, text[:, None]).solution
        return -(text - (torch.stack(vectors).T @ fit)[:, 0]).norm().item()
    if method in ("pmrl", "pmrl_raw"):
        return torch.linalg.svdvals(everything)[0].item() ** 2 / (len(everything) if method == "pmrl" else 1)
    if method == "symile":
        return sum(math.prod(values) for values in everything.T.tolist())
    root = math.sqrt(curvature)
    lorentz = (math.sinh(root) ** 2 * gram - math.cosh(root) ** 2) / curvature
    return -(mix * volume + (1 - mix) * lorentz.det().abs().sqrt().item())


def fused_ranks(texts, clips, masks, direction, constant=60):
    similarities = torch.einsum("qd,vmd->mqv", texts, clips)
    scores = torch.zeros(len(texts), len(clips), dtype=torch.float64)
    for q, v in itertools.product(range(len(texts)), range(len(clips))):
        for m in masks[v].nonzero().flatten().tolist():
            own = similarities[m, q, v]
            others = similarities[m, :, v] if direction == "video_to_text" else similarities[m, q, masks[:, m]]
            scores[q, v] += 1 / (constant + (others >= own).sum().item())
    return scores


def loop_scores(method, texts, clips, masks, temperature=0.1, scale=None, offset=None, direction="text_to_video"):
    number = clips.shape[1]
    scale, offset = scale or [1.0] * number, offset or [0.0] * number
    if method == "rank_fusion":
        return fused_ranks(texts, clips, masks, direction)
    scores = torch.zeros(len(texts), len(clips), dtype=torch.float64)
    for q, v in itertools.product(range(len(texts)), range(len(clips))):
        there = masks[v].nonzero().flatten().tolist()
        if method not in CALIBRATED:
            scores[q, v] = by_definition(method, texts[q], [clips[v, m] for m in there])
            continue
        tau = math.inf if method == "uniform" else temperature
        arguments = texts[q].tolist(), [clips[v, m].tolist() for m in there], tau
        score, _, cosines = weighted(*arguments, [scale[m] for m in there], [offset[m] for m in there])
        scores[q, v] = {"max": max(cosines), "mean": sum(cosines) / len(cosines)}.get(method, score)
    return scores


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("method", GENERAL)
def test_scores_equal_the_float64_loop_under_every_mask(method, number):
    clips = vectors_of(number)
    expected = loop_scores(method, *clips)
    assert expected.std() > 1e-3 or method == "rank_fusion"
    torch.testing.assert_close(retrieval_scores(*clips, method=method), expected, atol=1e-9, rtol=0)
    single = clips[0].float(), clips[1].float(), clips[2]
    # a root loses digits where a volume is small, and the product of many small numbers has few to lose
    least = expected.abs().min().item() if method in ("gram", "gram_span", "hypergram") else 1.0
    tolerance = 1e-6 * max(1.0, expected.abs().max().item()) / min(least, 1.0)
    torch.testing.assert_close(retrieval_scores(*single, method=method).double(), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("temperature", [0.01, 0.1, 2.0])
def test_calibrated_scores_equal_the_float64_loop(number, temperature):
    texts, clips, masks = vectors_of(number)
    scale, offset = [0.5 + 0.25 * m for m in range(number)], [0.1 * m - 0.2 for m in range(number)]
    expected = loop_scores("scalar", texts, clips, masks, temperature, scale, offset)
    options = {"modality_scale": scale, "modality_offset": offset}
    scores = retrieval_scores(texts, clips, masks, "scalar", temperature, **options)
    torch.testing.assert_close(scores, expected, atol=1e-9, rtol=1e-9)
    score_options = ScoreOptions(temperature, **options)
    for q in range(len(texts)):
        reference = exact_scores(texts[q].expand(len(clips), -1), clips, masks, 1e-6, score_options)
        torch.testing.assert_close(reference, expected[q], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("number", NUMBERS)
def test_rank_fusion_of_texts_for_each_clip_equals_the_loop(number):
    clips = vectors_of(number, num_queries=7)
    scores = retrieval_scores(*clips, method="rank_fusion", direction="video_to_text")
    torch.testing.assert_close(scores, fused_ranks(*clips, "video_to_text"), atol=1e-9, rtol=0)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("method", DIFFERENTIABLE)
def test_gradients_equal_finite_differences(method, number):
    generator = torch.Generator().manual_seed(number)
    shapes = (1, 10), (3, number, 10)
    texts, clips = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    texts, clips = normalize(texts, dim=-1).requires_grad_(), normalize(clips, dim=-1).requires_grad_()
    masks = torch.rand(3, number, generator=generator) < 0.7
    masks[0], masks[:, 0] = True, True
    # of many numbers, differences along random directions: one of each would take a thousand scores
    scores, is_large = lambda t, z: retrieval_scores(t, z, masks, method), number > 4
    assert torch.autograd.gradcheck(scores, (texts, clips), fast_mode=is_large)


@pytest.mark.parametrize("number", [1, 4, 8])
def test_what_is_masked_changes_nothing_and_reaches_no_gradient(number):
    texts, clips, masks = vectors_of(number, dtype=torch.float32)
    masks = masks[~masks.all(1)] if number > 1 else masks
    clips = clips[: len(masks)]
    filled = clips.masked_fill(~masks[..., None], math.nan).requires_grad_()
    for method in DIFFERENTIABLE:
        scores = retrieval_scores(texts, filled, masks, method)
        expected = retrieval_scores(texts, clips.clone().requires_grad_(), masks, method)
        assert torch.equal(scores, expected) and scores.isfinite().all(), method
        (gradient,) = torch.autograd.grad(scores.sum(), filled)
        assert (gradient[~masks] == 0).all() and gradient.isfinite().all() and gradient.abs().max() > 0, method


@pytest.mark.parametrize("number", NUMBERS)
def test_scores_do_not_depend_on_the_order_of_modalities(number):
    texts, clips, masks = vectors_of(number)
    order = torch.arange(number).flip(0)
    for method in GENERAL:
        turned = retrieval_scores(texts, clips[:, order], masks[:, order], method)
        torch.testing.assert_close(turned, retrieval_scores(texts, clips, masks, method), atol=1e-9, rtol=0)


@pytest.mark.parametrize("number", NUMBERS)
def test_an_absent_modality_is_one_fewer(number):
    texts, clips, masks = vectors_of(number)
    wider = torch.cat([clips, torch.full_like(clips[:, :1], 7.0)], dim=1)
    hidden = torch.cat([masks, torch.zeros_like(masks[:, :1])], dim=1)
    for method in GENERAL:
        scores = retrieval_scores(texts, wider, hidden, method)
        torch.testing.assert_close(scores, retrieval_scores(texts, clips, masks, method), atol=1e-9, rtol=0)


@pytest.mark.parametrize("number", [pytest.param(m, marks=() if m == 4 else pytest.mark.slow) for m in NUMBERS])
def test_a_compiled_graph_is_whole_and_scores_alike(number):
    texts, clips, masks = vectors_of(number, dtype=torch.float32)
    clips, masks = clips[-9:], masks[-9:]

    def scores(texts, clips, masks):
        return retrieval_scores(texts, clips, masks, query_temperature=0.2)

    torch.compiler.reset()
    compiled = torch.compile(scores, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(texts, clips, masks), scores(texts, clips, masks), atol=2e-6, rtol=0)
    texts, clips = texts.requires_grad_(), clips.requires_grad_()
    expected = torch.autograd.grad(scores(texts, clips, masks).square().sum(), (texts, clips))
    found = torch.autograd.grad(compiled(texts, clips, masks).square().sum(), (texts, clips))
    for gradient, reference in zip(found, expected, strict=True):
        assert reference.abs().max() > 0.01
        torch.testing.assert_close(gradient, reference, atol=2e-5, rtol=0)


@pytest.mark.parametrize("number", [2, 5, 8])
@pytest.mark.parametrize("length", [0.3, 0.03, 3e-3])
def test_scores_stay_exact_where_many_modalities_nearly_cancel(number, length):
    """The mean of all vectors has about this length, at a temperature that weighs them alike."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(1, number, 16, generator=generator, dtype=torch.float64)
    directions[..., 0] = 0
    for _ in range(200):  # unit vectors whose sum vanishes, then raised towards one direction
        directions = normalize(directions - directions.mean(1, keepdim=True), dim=-1)
    directions[..., 0] = length
    clips, masks = normalize(directions, dim=-1), torch.ones(1, number, dtype=torch.bool)
    texts = normalize(torch.randn(6, 16, generator=generator, dtype=torch.float64), dim=-1)
    clips, texts = clips.float(), texts.float()
    expected = loop_scores("scalar", texts.double(), clips.double(), masks, 50.0)
    scores = retrieval_scores(texts, clips, masks, query_temperature=50.0)
    torch.testing.assert_close(scores.double(), expected, atol=1e-6 / length, rtol=0)


@pytest.mark.parametrize("number", NUMBERS)
def test_weights_and_centroids_have_as_many_modalities_as_the_clips(number):
    _, clips, masks = vectors_of(number)
    texts = normalize(torch.randn(len(clips), clips.shape[2], dtype=torch.float64), dim=-1)
    weights = query_weights(texts, clips, masks, 0.3)
    assert weights.shape == (len(texts), len(clips), number) and (weights[:, ~masks] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    cosines = (texts * paired_centroids(texts, clips, masks, 0.3)).sum(-1)
    torch.testing.assert_close(cosines, retrieval_scores(texts, clips, masks, "scalar", 0.3).diagonal())


# Names --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", sorted(NAMED))
@pytest.mark.parametrize("names", [None, ["a", "b", "c", "d"]])
def test_a_score_that_reads_modalities_by_name_says_which(method, names):
    clips = vectors_of(4)
    with pytest.raises(ValueError, match=rf"'{method}' reads the modalities \[.*`modalities`"):
        retrieval_scores(*clips, method=method, modalities=names)


def test_names_say_where_a_modality_stands():
    texts, clips, masks = vectors_of(4)
    names = ["title", "audio", "screen", "video"]
    for index, name in enumerate(names):
        scores = retrieval_scores(texts, clips, masks, name, modalities=names)
        here = masks[:, index]
        torch.testing.assert_close(scores[:, here], texts @ clips[here, index].T)
        assert (scores[:, ~here] == -math.inf).all()
        assert torch.equal(find_method(name, names).covers(masks, names), here)
    three, hidden = clips[:, [3, 1, 0]], masks[:, [3, 1, 0]]
    kept = hidden.any(1)
    expected = retrieval_scores(texts, three[kept], hidden[kept], "triangle")
    torch.testing.assert_close(retrieval_scores(texts, clips, masks, "triangle", modalities=names)[:, kept], expected)


@pytest.mark.parametrize("names", [["a"], ["a", "a"], ["a", "b", "c"]])
def test_names_must_be_one_different_name_for_each(names):
    with pytest.raises(ValueError, match="`modalities` must be 2 different names"):
        make_pairs(*vectors_of(2), modalities=names)


def test_an_unknown_score_is_refused_with_the_names_that_are_known():
    with pytest.raises(ValueError, match="`method` must be one of .*'scalar'.*'title'.*got 'sound'"):
        retrieval_scores(*vectors_of(2), method="sound", modalities=["title", "screen"])


def test_a_calibration_has_one_number_for_each_modality():
    with pytest.raises(ValueError, match="`modality_scale` must be 4 finite numbers above 0"):
        retrieval_scores(*vectors_of(4), modality_scale=[1, 1, 1])


def test_the_names_of_three_modalities_are_the_papers_in_every_place():
    assert tuple(ScalarConfig().modalities) == PAPER_MODALITIES
    with pytest.raises(Exception, match="`modalities` of three towers must be"):
        ScalarConfig(modalities=["audio", "video", "subtitle"])


def test_importing_the_scores_loads_torch_and_their_own_file():
    code = (
        "import sys; import modeling_scalar.scores_scalar; "
        "print(sorted(name for name in sys.modules if name.split('.')[0] in "
        "('modeling_scalar', 'av', 'datasets', 'transformers', 'gallery', 'pyarrow')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "['modeling_scalar', 'modeling_scalar.scores_scalar']"
