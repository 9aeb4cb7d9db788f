"""Exact ranking against all pairs in float64, and its bounds against what they bound."""

import itertools
import math

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from scalar_retrieval.gallery.exact import ranking
from scalar_retrieval.gallery.exact.blocks import (
    DamagedVectorsError,
    block_of,
    exact_pairs,
    score_error,
    spanned_bounds,
)
from scalar_retrieval.gallery.exact.ranking import find_best, find_best_on_device
from scalar_retrieval.gallery.gallery import GalleryWriter
from scalar_retrieval.gallery.store import columns
from scalar_retrieval.gallery.store.codes import encode, multiplies_eight_bits, rotation
from scalar_retrieval.gallery.store.columns import clip_table
from scalar_retrieval.gallery.store.storage import Part
from scalar_retrieval.modeling_scalar import MODALITIES
from scalar_retrieval.modeling_scalar.scores_scalar import ScoreOptions
from tests.gallery.conftest import make_clips, make_queries, write

MIN_NORM = 1e-3
KINDS = ("random", "clustered", "cancelling", "tied")
FINDS = [find_best, find_best_on_device] if multiplies_eight_bits(33) else [find_best_on_device]


def mixes_of(number):
    """What clips may have of so many modalities, (2 ** number - 1, number)."""
    return torch.tensor([mix for mix in itertools.product([False, True], repeat=number) if any(mix)])


def make_vectors(kind, count, dim, seed, number=3):
    """Unit vectors (count, number, dim): independent; in few groups; nearly cancelling; nearly or exactly the same,
    of other clips and of the same one."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(count, number, dim, generator=generator)
    if kind == "clustered":
        centres = torch.randn(5, 1, dim, generator=generator) * torch.arange(dim).add(1).rsqrt()
        vectors = centres[torch.randint(5, (count,), generator=generator)] + 0.05 * vectors
    elif kind == "cancelling" and number > 1:
        noise = torch.tensor([1e-4, 1e-2, 0.3])[torch.randint(3, (count, 1), generator=generator)]
        vectors[:, 1] = -vectors[:, 0] + noise * vectors[:, 1]
        # Not quite: of one dimension, their sum may be zero.
        vectors[::3, -1] = 1e-6 * vectors[::3, -1] - normalize(vectors[::3, :-1], dim=-1).sum(1)
    elif kind == "tied":
        few = torch.randint(count // 10 + 1, (count,), generator=generator)
        vectors = vectors[few] + 1e-4 * torch.randint(2, (count, 1, 1), generator=generator) * vectors
        vectors[::4, 1::2] = vectors[::4, : number // 2]
    return normalize(vectors, dim=-1)


def make_block(kind, counts, dim, seed=0, dtype="float16", number=3, has_codes=True, slices=None):
    """Clips of several commits, as they are stored; a tenth is removed. Each modality has its slice of the dimensions,
    by default all."""
    generator, mixes, count = torch.Generator().manual_seed(seed + 1), mixes_of(number), sum(counts)
    mask = mixes[torch.randint(len(mixes), (count,), generator=generator)]
    slices = slices or [(0, dim)] * number
    vectors, parts = make_vectors(kind, count, dim, seed, number), []
    is_inside = torch.tensor([[start <= place < stop for place in range(dim)] for start, stop in slices])
    vectors = normalize(torch.where(is_inside, vectors, 0), dim=-1)
    for embeds, there in zip(vectors.split(counts), mask.split(counts), strict=True):
        names = [f"clip {row}" for row in range(len(there))]
        modalities = [f"modality {m}" for m in range(number)]
        table = clip_table(names, embeds, there, modalities, dtype=dtype, has_codes=has_codes, slices=slices)
        removed = (torch.rand(len(there), generator=generator) < 0.1).nonzero()[:, 0].numpy()
        parts.append(Part(table, removed=removed.astype(np.int64)))
    return block_of(parts, slices)


def spaces_of(dim):
    """Slices that cut dimensions into up to three spaces of different width."""
    ends = sorted({0, dim // 5, dim // 2, dim})
    return list(itertools.pairwise(ends))


def make_texts(block, count, seed):
    """Near to clips, some of them, so that scores are of all sizes."""
    generator = torch.Generator().manual_seed(seed + 2)
    near = block.vectors_at(torch.randint(len(block), (count,), generator=generator).sort().values).sum(1)
    texts = near + torch.randn(near.shape, generator=generator) * torch.rand(count, 1, generator=generator)
    return normalize(texts, dim=-1)


def all_scores(block, texts, options):
    """Eq. 2 and 3 of every pair in float64, -inf for clips that may not be found: (Q, N); and weights (Q, N, M)."""
    vectors, present = block.vectors_at(torch.arange(len(block)), torch.float64), block.modality_mask
    cosines = torch.einsum("qd,vmd->qvm", texts.double(), vectors)
    for values, apply in ((options.modality_scale, torch.mul), (options.modality_offset, torch.add)):
        cosines = cosines if values is None else apply(cosines, torch.tensor(values, dtype=torch.float64))
    weights = (cosines / options.query_temperature).masked_fill(~present, -math.inf).softmax(-1).nan_to_num()
    norms = torch.einsum("qvm,vmd->qvd", weights, vectors).norm(dim=-1).clamp(min=MIN_NORM)
    scores = (weights * cosines.masked_fill(~present, 0)).sum(-1) / norms
    return scores.masked_fill(~block.allowed, -math.inf).numpy(), weights


def check(block, texts, k, options, find=FINDS[0]):
    """Compare with all pairs: the same clips, in the same order but for what float64 cannot tell apart."""
    truth, weights = all_scores(block, texts, options)
    best = find(block, texts, k, options)
    for query, line in enumerate(truth):
        count = min(k, int((line > -math.inf).sum()))
        found, scores = best.rows[query, :count], best.scores[query].numpy()
        assert (scores[count:] == -math.inf).all() and len(set(found.tolist())) == count
        np.testing.assert_allclose(scores[:count], line[found], rtol=0, atol=1e-9)
        np.testing.assert_allclose(line[found], np.sort(line)[::-1][:count], rtol=0, atol=1e-12)
        same = np.diff(scores[:count]) == 0
        assert (found[1:][same] > found[:-1][same]).all()  # equal scores in the order of the gallery
        torch.testing.assert_close(best.weights[query, :count].double(), weights[query, found], rtol=0, atol=1e-6)
    return best.num_scored


def all_options(number):
    """Temperatures and calibrations."""
    scale, offset = torch.linspace(0.7, 1.4, number).tolist(), torch.linspace(-0.3, 0.2, number).tolist()
    return [
        *(ScoreOptions(temperature) for temperature in (0.1, 1e-6, 0.01, 3.0, math.inf)),
        ScoreOptions(0.03, modality_scale=scale),
        ScoreOptions(0.1, modality_scale=scale[::-1], modality_offset=offset),
        ScoreOptions(math.inf, modality_offset=[-3.0] * number),
        ScoreOptions(0.1, modality_offset=[1e5 * (-1) ** m for m in range(number)]),
    ]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_what_is_found_is_what_all_pairs_in_float64_give(data):
    """Ties, copies, cancelling vectors, absent and unselected modalities, removed clips, several commits, any k, one
    space or several, one dimension, of which there are no codes."""
    number, kind = data.draw(st.integers(1, 8)), data.draw(st.sampled_from(KINDS))
    counts = data.draw(st.lists(st.integers(1, 400), min_size=1, max_size=4))
    dtype, has_codes = data.draw(st.sampled_from(["float16", "float32"])), data.draw(st.integers(0, 3)) > 0
    dim = data.draw(st.sampled_from([1, 2, 9, 33]))
    slices = data.draw(st.lists(st.sampled_from(spaces_of(dim)), min_size=number, max_size=number))
    if data.draw(st.booleans()):
        slices = [(0, dim)] * number
    dim = max(stop for _, stop in slices)
    block = make_block(kind, counts, dim, len(counts), dtype, number, has_codes, slices)
    texts = make_texts(block, data.draw(st.integers(1, 12)), 0)
    if data.draw(st.booleans()):
        block = block.with_modalities(data.draw(st.sampled_from(list(mixes_of(number)))))
    if data.draw(st.booleans()):
        block = block.limited(torch.arange(len(block)) % data.draw(st.integers(1, 50)) == 0)
    find = find_best_on_device if block.codes is None else data.draw(st.sampled_from(FINDS))
    k = min(len(block), data.draw(st.sampled_from([1, 5, 10, 70, 10_000])))
    check(block, texts, k, data.draw(st.sampled_from(all_options(number))), find)


@pytest.mark.parametrize("find", FINDS)
def test_tiles_and_the_size_of_the_sample_change_nothing(find, monkeypatch):
    monkeypatch.setattr(ranking, "_TILE_ON_CPU", 18_000)
    monkeypatch.setattr(ranking, "_MORE", 0)
    monkeypatch.setattr(ranking, "_NARROWEST", 100)
    monkeypatch.setattr(ranking, "_TILE", 1)
    monkeypatch.setattr(ranking, "_GUESSED_AT_ONCE", 7)
    monkeypatch.setattr("scalar_retrieval.gallery.exact.blocks._CLIPS_AT_ONCE", 11)
    monkeypatch.setattr("scalar_retrieval.gallery.exact.blocks._SAMPLE", 128)
    block = make_block("clustered", [500, 3, 1700, 800], 33)
    assert check(block, make_texts(block, 25, 0), 10, ScoreOptions(), find).min() >= 10


def test_few_clips_are_scored_in_full():
    block = make_block("clustered", [8_000], 64)
    counts = check(block, make_texts(block, 20, 0), 10, ScoreOptions())
    assert counts.min() >= 10 and counts.float().median() < 800


@pytest.mark.skipif(not multiplies_eight_bits(33), reason="this machine does not screen in eight bits")
@pytest.mark.parametrize("kind", ["random", "clustered"])
def test_a_threshold_that_no_clip_or_fewer_than_k_clips_reach_is_noticed(kind, monkeypatch):
    block = make_block(kind, [3000], 32)
    texts = make_texts(block, 20, 0)
    third = np.sort(all_scores(block, texts, ScoreOptions())[0])[:, -3]
    guessed = np.where(np.arange(20) % 2, third, 2.0)
    monkeypatch.setattr(ranking, "_guessed", lambda *given: guessed)
    check(block, texts, 5, ScoreOptions())


@pytest.mark.skipif(not multiplies_eight_bits(33), reason="this machine does not screen in eight bits")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", all_options(3))
@pytest.mark.parametrize("slices", [None, [(0, 20), (20, 33), (0, 20)]])
def test_no_score_is_above_its_bound_from_eight_bits(kind, options, slices):
    block = make_block(kind, [700, 100], 33, slices=slices)
    # Some texts are their own codes, so that nothing but the error of the clips' codes is left.
    codes = torch.randint(-127, 128, (10, 33), generator=torch.Generator().manual_seed(0)).double()
    codes[:, 0] = 127
    texts = torch.cat([make_texts(block, 10, 0), normalize(codes @ rotation(33).T, dim=-1).float()])
    truth = all_scores(block, texts, options)[0]
    upper, rows = ranking._screened(block, ranking._coded(block, texts), 1, np.full(len(texts), -math.inf), options)
    is_clip = (upper > -math.inf).numpy()
    assert is_clip.sum() == len(texts) * int(block.allowed.sum())
    above = np.take_along_axis(truth, rows.numpy(), axis=1) - upper.numpy()
    assert above[is_clip].max() <= 1e-9


@pytest.mark.skipif(not multiplies_eight_bits(33), reason="this machine does not screen in eight bits")
@pytest.mark.parametrize("m", range(3))
def test_no_score_is_above_its_bound_where_a_text_points_to_what_rounding_lost(m):
    slices = [(0, 20), (20, 33), (0, 20)]
    block = make_block("random", [400], 33, slices=slices)
    start, stop = slices[m]
    (codes,) = block.codes
    turned = block.chunks[0][m].double() @ rotation(stop - start)
    lost = turned - codes.codes[m].double() * codes.scale[:, None].double()
    # Those clips whose stated error is that of this modality
    rows = (lost.norm(dim=1) > 0.95 * codes.error).nonzero().flatten()[:50]
    texts = make_texts(block, len(rows), 0)
    texts[:, start:stop] = 3 * normalize(lost[rows] @ rotation(stop - start).T, dim=-1).float()
    texts = normalize(texts, dim=-1)
    of_one = block.with_modalities(torch.arange(3) == m)
    truth = all_scores(of_one, texts, ScoreOptions())[0]
    lowest = np.full(len(texts), -math.inf)
    upper, found = ranking._screened(of_one, ranking._coded(of_one, texts), 1, lowest, ScoreOptions())
    room = upper.numpy() - np.take_along_axis(truth, found.numpy(), axis=1)
    assert len(rows) > 10 and room[(upper > -math.inf).numpy()].min() >= -1e-9


def test_a_text_is_the_sum_of_two_in_half_precision():
    texts = normalize(torch.randn(50, 512), dim=-1)
    first, second = ranking._halves(texts)
    missed = texts.double() - first.double() - second.double() / ranking._SMALL
    assert 0 < missed.abs().max() < 2.0**-21


@pytest.mark.parametrize("find", FINDS)
def test_clips_that_float32_cannot_tell_apart_are_scored_in_float64(find):
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(1, 3, 64, generator=generator) + 1e-7 * torch.randn(2000, 3, 64, generator=generator)
    names, mask = [str(row) for row in range(2000)], torch.ones(2000, 3, dtype=torch.bool)
    block = block_of(
        [Part(clip_table(names, normalize(vectors, dim=-1), mask, MODALITIES, dtype="float32", has_codes=True))],
        [(0, 64)] * 3,
    )
    check(block, make_texts(block, 10, 0), 10, ScoreOptions(), find)


@pytest.mark.parametrize("slices", [[(0, 33)], [(0, 33)] * 4, [(0, 20), (20, 33), (0, 20)]])
def test_equal_pairs_have_equal_scores_wherever_they_stand(slices):
    copies = torch.randint(5, (401,))
    block = make_block("random", [5], 33, dtype="float32", number=len(slices), slices=slices)[copies]
    texts = normalize(torch.randn(30, 33), dim=-1)
    rows, queries = (torch.rand(401, 30) < 0.3).nonzero(as_tuple=True)
    scores, _ = exact_pairs(block, texts, queries, rows, ScoreOptions())
    for row, query in itertools.product(range(5), range(30)):
        assert len(set(scores[(copies[rows] == row) & (queries == query)].tolist())) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", all_options(3)[:-1])
def test_a_score_changes_by_no_more_than_its_error_when_cosines_do(kind, options):
    error, block = 1e-3, make_block(kind, [2000], 16, seed=3)
    texts = make_texts(block, 2000, 0).double()
    vectors, mask = block.vectors_at(torch.arange(2000), torch.float64), block.modality_mask
    gram = vectors @ vectors.mT
    cosines = options.calibrated((vectors @ texts[:, :, None])[..., 0], dim=1)

    def scores(cosines: torch.Tensor) -> torch.Tensor:
        weights = (cosines / options.query_temperature).masked_fill(~mask, -math.inf).softmax(1)
        norms = torch.einsum("pi,pij,pj->p", weights, gram, weights).clamp(min=MIN_NORM**2).sqrt()
        return (weights * cosines).masked_fill(~mask, 0).sum(1) / norms

    largest = cosines.masked_fill(~mask, 0).abs().amax(1)
    bound = score_error(largest, block.rho.double(), error, options.query_temperature)
    generator = torch.Generator().manual_seed(1)
    worst = torch.zeros(len(cosines), dtype=torch.float64)
    for _ in range(20):
        moved = cosines + error * (2 * torch.rand(cosines.shape, generator=generator, dtype=torch.float64) - 1).sign()
        worst = torch.maximum(worst, (scores(moved) - scores(cosines)).abs())
    assert (worst <= bound).all() and (worst > 0).any()


def bounds_of(cosines: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """Upper bounds of scores `(N,)` from the cosines `(N, M)` of one text, in float32."""
    upper = cosines.float().clamp(min=0).T[:, None]
    return spanned_bounds(upper, inverse.permute(1, 2, 0), torch.zeros(len(cosines)))[0].double().sqrt()


def values_of(vectors: torch.Tensor, mask: torch.Tensor, cosines: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The highest and the shortest of 2000 random weighted means of each clip: its score, and its norm, `(N,)`."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(2000, 1, mask.shape[1], generator=generator, dtype=torch.float64).pow(4) * mask
    weights = weights / weights.sum(-1, keepdim=True)
    gram = vectors.double() @ vectors.double().mT
    norms = (torch.einsum("wvm,vmn->wvn", weights, gram) * weights).sum(-1).clamp(min=MIN_NORM**2).sqrt()
    return ((weights * cosines).sum(-1) / norms).amax(0), norms.amin(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [1, 2, 3, 5, 8])
def test_bounds_are_no_less_than_what_any_weights_give(number, kind):
    generator = torch.Generator().manual_seed(0)
    block = make_block(kind, [400], 24, dtype="float32", number=number)
    mask, vectors = block.modality_mask, block.vectors_at(torch.arange(400), torch.float64)
    cosines = vectors @ normalize(torch.randn(24, generator=generator, dtype=torch.float64), dim=0)
    cosines = cosines * cosines.sum().sign()
    values, norms = values_of(vectors, mask, cosines)
    bounds = bounds_of(cosines, block.inverse.permute(2, 0, 1))
    assert (norms >= block.rho).all() and (values <= bounds).all()
    if number <= 3 and kind in ("random", "clustered"):  # which as many weights fill
        assert (norms < block.rho + 0.05).float().mean() > 0.8
        assert (values > bounds - 0.01)[values > 0].float().mean() > 0.1


# What bounds rest on ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        lambda out: out.clamp_(max=32767),  # saturated
        lambda out: out.fill_(1),  # nothing is written
        lambda out: out.fill_(1) if len(out) == 1 else out,
        lambda out: out.fill_(1) if out.shape[1] == 1 else out,
    ],
)
def test_products_that_are_cut_off_or_not_written_are_noticed(write, monkeypatch):
    exact = torch._int_mm
    monkeypatch.setattr(torch, "_int_mm", lambda a, b, out: write(exact(a, b, out=out)))
    assert not multiplies_eight_bits.__wrapped__(33)


@pytest.mark.parametrize("find", FINDS)
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e-3])
def test_a_vector_that_is_not_as_it_was_written_is_noticed_unless_it_may_not_be_found(find, value):
    block = make_block("random", [200], 16)
    row = int((block.allowed & block.modality_mask[:, 1]).nonzero()[5])
    text = normalize(block.vectors_at(torch.tensor([row])).sum(1), dim=-1)
    block.chunks[0] = tuple(column.clone() for column in block.chunks[0])
    block.chunks[0][1][row, 3] += value
    with pytest.raises(DamagedVectorsError) as raised:
        find(block, text, 5, ScoreOptions())
    assert row in raised.value.rows
    others = block.limited(torch.arange(200) != row)
    assert find(others, text, 5, ScoreOptions()).scores.isfinite().all()


# Damage -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"), [("gram", [math.nan] * 9), ("code_scale", math.nan), ("code_error", math.nan)]
)
def test_what_bounds_are_made_of_must_be_numbers(name, value):
    table = clip_table(*make_clips(4), MODALITIES, has_codes=True)
    field = table.schema.field(name)
    broken = table.set_column(table.schema.get_field_index(name), field, pa.array([value] * 4, field.type))
    with pytest.raises(DamagedVectorsError):
        block_of([Part(broken)], [(0, 16)] * 3)


def test_codes_of_other_vectors_are_found_by_checking(tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "encode", lambda vectors: encode([-vectors[0], *vectors[1:]]))
    with pytest.raises(ValueError, match="Eight-bit vectors .* do not match those of the clips"):
        write(tmp_path, make_clips(20)).check()


def test_a_gallery_without_codes_grows_without_them_and_gives_the_same(tmp_path):
    first, second = make_clips(30, seed=0), make_clips(30, seed=1)
    with GalleryWriter(tmp_path / "old", "float32", has_codes=False) as writer:
        writer.put_clips(*first)
        writer.commit()
    old, new = write(tmp_path / "old", second), write(tmp_path / "new", first, second)
    assert not old.has_codes and new.has_codes
    for method in ("scalar", "gram"):
        assert old.search(make_queries(5), 7, method=method) == new.search(make_queries(5), 7, method=method)
