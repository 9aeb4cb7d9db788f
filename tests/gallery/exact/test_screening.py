"""Ranking that is screened in low precision, against all pairs in float64; and its bounds, against what they bound."""

import itertools
import math
from copy import copy

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.nn.functional import normalize

from gallery import columns
from gallery.columns import gram_of
from gallery.exact import device_search, screening
from gallery.exact.blocks import Block, blocks_of
from gallery.exact.codes import Codes, encode, multiplies_eight_bits, rotation
from gallery.exact.cone import cone_bound, hull_distance, inverse_of, score_error, spanned_bound
from gallery.exact.device_search import find_best_on_device
from gallery.exact.screening import find_best
from gallery.gallery import Gallery, GalleryWriter
from gallery.storage import Part
from modeling_scalar.scores_scalar import ScoreOptions, exact_scores
from tests.gallery.conftest import MADE_BY, make_clips, make_queries, write

MIN_NORM = 1e-3
KINDS = ("random", "clustered", "cancelling", "tied")


def mixes_of(number: int) -> torch.Tensor:
    """What clips may have of so many modalities, (2 ** number - 1, number)."""
    return torch.tensor([mix for mix in itertools.product([False, True], repeat=number) if any(mix)])


MIXES = mixes_of(3)


def make_vectors(kind: str, count: int, dim: int, seed: int, number: int = 3) -> torch.Tensor:
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
        vectors[::3, -1] = -normalize(vectors[::3, :-1], dim=-1).sum(1)
    elif kind == "tied":
        few = torch.randint(count // 10 + 1, (count,), generator=generator)
        vectors = vectors[few] + 1e-4 * torch.randint(2, (count, 1, 1), generator=generator) * vectors
        vectors[::4, 1::2] = vectors[::4, : number // 2]
    return normalize(vectors, dim=-1)


def make_part(
    kind: str, count: int, dim: int, seed: int = 0, dtype=torch.float16, start: int = 0, number: int = 3
) -> Block:
    generator, mixes = torch.Generator().manual_seed(seed + 1), mixes_of(number)
    mask = mixes[torch.randint(len(mixes), (count,), generator=generator)]
    vectors = make_vectors(kind, count, dim, seed, number) * mask[..., None]
    modalities = tuple(column.to(dtype).contiguous() for column in vectors.unbind(1))
    allowed = torch.rand(count, generator=generator) < 0.9
    codes = encode(modalities) if multiplies_eight_bits() else None
    gram = gram_of(modalities)
    return Block(modalities, mask, gram=gram, is_there=allowed, codes=codes, start=start, min_norm=MIN_NORM)


def with_codes(part: Block, codes: Codes | None = None) -> Block:
    """The same clips with other codes, or with none."""
    found = copy(part)
    found.codes = codes
    return found


def make_texts(parts: list[Block], count: int, seed: int) -> torch.Tensor:
    """Near to clips, some of them, so that scores are of all sizes."""
    generator = torch.Generator().manual_seed(seed + 2)
    vectors = torch.stack(parts[0].vectors, dim=1).float()
    near = vectors[torch.randint(len(vectors), (count,), generator=generator)].sum(1)
    texts = near + torch.randn(near.shape, generator=generator) * torch.rand(count, 1, generator=generator)
    return normalize(texts, dim=-1)


def all_scores(parts: list[Block], texts: torch.Tensor, options: ScoreOptions) -> np.ndarray:
    """Eq. 2 and 3 of every pair in float64, -inf for clips that may not be found: (Q, N)."""
    columns = []
    for part in parts:
        vectors = torch.stack(part.vectors, dim=1).double()
        cosines = torch.einsum("qd,vmd->qvm", texts.double(), vectors)
        for values, apply in ((options.modality_scale, torch.mul), (options.modality_offset, torch.add)):
            cosines = cosines if values is None else apply(cosines, torch.tensor(values, dtype=torch.float64))
        present = part.modality_mask
        weights = (cosines / options.query_temperature).masked_fill(~present, -math.inf).softmax(-1).nan_to_num()
        norms = torch.einsum("qvm,vmd->qvd", weights, vectors).norm(dim=-1).clamp(min=MIN_NORM)
        scores = (weights * cosines.masked_fill(~present, 0)).sum(-1) / norms
        columns.append(scores.masked_fill(~part.allowed, -math.inf))
    return torch.cat(columns, dim=1).numpy()


def check(parts: list[Block], texts: torch.Tensor, k: int, options: ScoreOptions, find=find_best) -> torch.Tensor:
    """Compare with all pairs: the same clips, in the same order but for what float64 cannot tell apart."""
    truth = all_scores(parts, texts, options)
    scores, rows, num_scored = find(parts, texts, k, options)
    for query, line in enumerate(truth):
        count = min(k, int((line > -math.inf).sum()))
        found = rows[query, :count].numpy()
        assert (scores[query, count:] == -math.inf).all() and len(set(found.tolist())) == count
        expected = np.sort(line)[::-1][:count]
        np.testing.assert_allclose(scores[query, :count].numpy(), line[found], rtol=0, atol=1e-9)
        np.testing.assert_allclose(line[found], expected, rtol=0, atol=1e-12)
        given = scores[query, :count].numpy()
        same = given[1:] == given[:-1]
        assert (found[1:][same] > found[:-1][same]).all()  # equal scores in the order of the gallery
    return num_scored


OPTIONS = {
    "the paper's": ScoreOptions(),
    "sharp": ScoreOptions(query_temperature=0.01),
    "flat": ScoreOptions(query_temperature=3.0),
    "equal weights": ScoreOptions(query_temperature=math.inf),
    "calibrated": ScoreOptions(modality_scale=[0.7, 1.0, 1.4], modality_offset=[-0.3, 0.1, -0.2]),
    "below zero": ScoreOptions(modality_offset=[-3.0, -3.0, -3.0]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPTIONS)
def test_what_is_found_is_what_all_pairs_in_float64_give(kind, name):
    parts = [make_part(kind, 500, 33), make_part(kind, 700, 33, seed=5, dtype=torch.float32, start=500)]
    texts = make_texts(parts, 25, 0)
    for k in (1, 10):
        check(parts, texts, k, OPTIONS[name])
    without = [with_codes(part) for part in parts]
    check(without, texts, 10, OPTIONS[name])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPTIONS)
def test_in_one_pass_the_same_is_found(kind, name, monkeypatch):
    monkeypatch.setattr(device_search, "_TILE_ON_CPU", 18_000)
    monkeypatch.setattr(device_search, "_MORE", 0)
    parts = [make_part(kind, 500, 33), make_part(kind, 700, 33, seed=5, dtype=torch.float32, start=500)]
    texts = make_texts(parts, 25, 0)
    for k in (1, 10, 1150):
        counts = check(parts, texts, k, OPTIONS[name], find_best_on_device)
    assert counts.min() > 1000  # all that there are


def test_a_text_is_the_sum_of_two_in_half_precision():
    texts = normalize(torch.randn(50, 512), dim=-1)
    first, second = device_search._halves(texts)
    missed = texts.double() - first.double() - second.double() / device_search._SMALL
    assert 0 < missed.abs().max() < 2.0**-21


@pytest.mark.parametrize("find", [find_best, find_best_on_device])
def test_products_of_less_precision_find_the_same(find):
    part = make_part("clustered", 3000, 64, dtype=torch.float32)
    part = with_codes(part)
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        check([part], make_texts([part], 20, 0), 10, ScoreOptions(), find)
        with torch.autocast("cpu", torch.bfloat16):
            check([part], make_texts([part], 20, 0), 10, ScoreOptions(), find)
    finally:
        torch.set_float32_matmul_precision(precision)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["the paper's", "sharp", "equal weights", "calibrated", "below zero"])
def test_ten_thousand_queries_are_answered_as_all_pairs_in_float64_do(kind, name):
    for seed in range(5):
        parts = [make_part(kind, 4000, 64, seed=seed)]
        check(parts, make_texts(parts, 100, seed), 10, OPTIONS[name])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_score_changes_by_no_more_than_its_error_when_cosines_do(kind, name):
    options, error = OPTIONS[name], 1e-3
    part = make_part(kind, 2000, 16, seed=3)
    texts = make_texts([part], 2000, 0).double()
    vectors, mask = torch.stack(part.vectors, dim=1).double(), part.modality_mask
    gram = vectors @ vectors.mT
    cosines = options.calibrated((vectors @ texts[:, :, None])[..., 0], dim=1)

    def scores(cosines: torch.Tensor) -> torch.Tensor:
        weights = (cosines / options.query_temperature).masked_fill(~mask, -math.inf).softmax(1)
        norms = torch.einsum("pi,pij,pj->p", weights, gram, weights).clamp(min=MIN_NORM**2).sqrt()
        return (weights * cosines).masked_fill(~mask, 0).sum(1) / norms

    largest = cosines.masked_fill(~mask, 0).abs().amax(1)
    bound = score_error(largest, part.rho.double(), error, options.query_temperature)
    generator = torch.Generator().manual_seed(1)
    worst = torch.zeros(len(cosines), dtype=torch.float64)
    for _ in range(20):
        moved = cosines + error * (2 * torch.rand(cosines.shape, generator=generator, dtype=torch.float64) - 1).sign()
        worst = torch.maximum(worst, (scores(moved) - scores(cosines)).abs())
    assert (worst <= bound).all() and (worst > 0).all()
    assert (worst / bound).max() > 0.02  # which a bound of no use would not be


@pytest.mark.parametrize("find", [find_best, find_best_on_device])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_vector_that_is_no_number_is_noticed_unless_it_may_not_be_found(find, dtype, value):
    part = make_part("random", 200, 16, dtype=dtype)
    part = with_codes(part)
    row = int((part.allowed & part.modality_mask[:, 1]).nonzero()[5])
    part.vectors[1][row, 3] = value
    texts = make_texts([make_part("random", 200, 16, dtype=dtype)], 3, 0)
    with pytest.raises(FloatingPointError):
        find([part], texts, 5, ScoreOptions())
    others = part.limited(torch.arange(200) != row)
    assert find([others], texts, 5, ScoreOptions())[0].isfinite().all()


@pytest.mark.parametrize(("name", "place"), [("gram", 1), ("code_scale", None), ("code_error", None)])
def test_what_bounds_are_made_of_must_be_numbers(name, place):
    table = columns.clip_table(*make_clips(4), has_codes=True)
    values = np.array(table.column(name).to_pylist(), np.float32)
    values[(2, place) if place is not None else 2] = math.nan
    field = table.schema.field(name)
    broken = pa.array(values.tolist(), field.type)
    assert len(blocks_of([Part(table)])) == 1
    with pytest.raises(ValueError, match="not as they were written"):
        blocks_of([Part(table.set_column(table.schema.get_field_index(name), field, broken))])


def test_the_sample_is_copied_a_little_at_a_time_and_in_eight_bits_without_vectors(monkeypatch):
    monkeypatch.setattr(screening, "_SAMPLED_AT_ONCE", 100)
    parts = [make_part("random", count, 16, start=start) for start, count in ((0, 5), (5, 900), (905, 3), (908, 40))]
    search = screening._Search(parts, make_texts(parts, 4, 0), 3, ScoreOptions())
    for has_codes in (True, False):
        if not has_codes:
            search.parts = parts = [with_codes(part) for part in parts]
        if has_codes and not multiplies_eight_bits():
            continue
        samples = list(search.samples(3, 100))
        sizes = [len(few.allowed) for few in samples]
        assert sum(sizes) == 2 + 300 + 1 + 14 and max(sizes) <= 100 and len(sizes) <= 5
        for index in range(3):
            kept = torch.cat([few.vectors[index] for few in samples])
            expected = torch.cat([part.vectors[index][::3] for part in parts])
            assert torch.equal(kept, expected[:0] if has_codes else expected)
        if has_codes:
            assert torch.equal(
                torch.cat([few.codes.codes[1] for few in samples]),
                torch.cat([part.codes.codes[1][::3] for part in parts]),
            )


def test_large_offsets_are_allowed_for_in_one_pass():
    options = ScoreOptions(modality_offset=[1e5, -1e5, 9e4])
    part = make_part("random", 400, 16)
    check([part], make_texts([part], 20, 0), 5, options, find_best_on_device)


def test_clips_that_float32_cannot_tell_apart_are_scored_in_float64():
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(1, 3, 64, generator=generator) + 1e-7 * torch.randn(2000, 3, 64, generator=generator)
    modalities = tuple(normalize(vectors, dim=-1).unbind(1))
    mask = torch.ones(2000, 3, dtype=torch.bool)
    codes = encode(modalities) if multiplies_eight_bits() else None
    part = Block(modalities, mask, gram=gram_of(modalities), is_there=mask.any(1), codes=codes, min_norm=MIN_NORM)
    check([part], make_texts([part], 10, 0), 10, ScoreOptions())


@pytest.mark.parametrize("k", [40, 61, 1000])
def test_all_that_there_is_can_be_asked_for(k):
    part = make_part("random", 60, 16)
    for options in OPTIONS.values():
        check([part], make_texts([part], 3, 0), k, options)


def test_few_clips_are_scored_exactly():
    part = make_part("clustered", 8_000, 64)
    for codes in (part.codes, None):
        screened = with_codes(part, codes)
        counts = check([screened], make_texts([part], 20, 0), 10, ScoreOptions())
        assert counts.min() >= 10 and counts.float().median() < 800


def test_a_threshold_that_was_guessed_too_high_is_noticed(monkeypatch):
    part = make_part("random", 3000, 32)
    texts = make_texts([part], 10, 0)
    right = find_best([part], texts, 5, ScoreOptions())

    def too_high(self):
        self.thresholds = np.full(len(self.texts), 0.99)
        self.thresholds[::2] = -1.0

    monkeypatch.setattr(screening._Search, "guess_thresholds", too_high)
    wrong = find_best([part], texts, 5, ScoreOptions())
    assert torch.equal(wrong[0], right[0]) and torch.equal(wrong[1], right[1])


@pytest.mark.parametrize("number", [1, 2, 3, 5, 8])
def test_bounds_are_no_less_than_what_any_weights_give_and_one_is_reached(number):
    generator = torch.Generator().manual_seed(0)
    for kind in KINDS:
        part = make_part(kind, 400, 24, dtype=torch.float32, number=number)
        mask, gram = part.modality_mask, part.gram
        vectors = torch.stack(part.vectors, dim=1).double()
        text = normalize(torch.randn(24, generator=generator, dtype=torch.float64), dim=0)
        cosines = vectors @ text
        bounds = cone_bound(cosines, gram, mask, part.rho)
        spanned = spanned_bound(cosines.float(), part.inverse).double()
        weights = torch.rand(2000, 1, number, generator=generator, dtype=torch.float64).pow(4) * mask
        weights = weights / weights.sum(-1, keepdim=True)
        norms = torch.einsum("wvm,vmd->wvd", weights, vectors).norm(dim=-1)
        assert (norms.clamp(min=MIN_NORM) >= part.rho - 1e-12).all()
        values = (weights * cosines).sum(-1) / norms.clamp(min=MIN_NORM)
        assert (values <= bounds + 1e-9).all()
        assert (values.amax(0).clamp(min=0) <= spanned + 1e-6).all()
        if number <= 3:  # which as many weights fill
            assert (norms.amin(0) < hull_distance(gram, mask) + 0.05).float().mean() > 0.9
            reached = (values.amax(0) > bounds - 0.01) & (bounds > 0)
            assert kind == "cancelling" or reached.float().mean() > 0.2  # the bound is no larger than it must be


def by_faces(vectors: torch.Tensor, text: torch.Tensor) -> tuple[float, float]:
    """Of the vectors (M, D) of a clip, the distance of their hull from 0 and the length of a text's projection on
    their cone, by every set of them: the largest that is reached by weights >= 0."""
    nearest, longest = torch.linalg.vector_norm(vectors, dim=1).min().item(), 0.0
    for some in mixes_of(len(vectors)):
        inverse = torch.linalg.inv(vectors[some] @ vectors[some].T)
        if (inverse.sum(1) >= 0).all():
            nearest = min(nearest, inverse.sum().item() ** -0.5)
        cosines = vectors[some] @ text
        if (inverse @ cosines >= 0).all():
            longest = max(longest, (cosines @ inverse @ cosines).item() ** 0.5)
    return nearest, longest


@pytest.mark.parametrize("number", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("kind", ["random", "clustered"])
def test_hull_and_cone_are_those_that_trying_every_set_of_vectors_gives(kind, number):
    part = make_part(kind, 60, 16, dtype=torch.float32, number=number)
    mask, vectors = part.modality_mask, torch.stack(part.vectors, dim=1).double()
    texts = make_texts([part], 60, 0).double()
    cosines = torch.einsum("nmd,nd->nm", vectors, texts)
    found = [by_faces(clip[there], text) for clip, there, text in zip(vectors, mask, texts, strict=True)]
    nearest, longest = torch.tensor(found, dtype=torch.float64).T
    distances = hull_distance(vectors @ vectors.mT, mask)
    torch.testing.assert_close(distances, nearest, rtol=0, atol=1e-9)
    torch.testing.assert_close(part.rho, distances, rtol=0, atol=3e-6)
    bounds = cone_bound(cosines, part.gram, mask, part.rho)
    positive = cosines.masked_fill(~mask, -1).amax(1) > 0
    assert positive.sum() > 20 and (bounds >= longest - 1e-12)[positive].all()
    torch.testing.assert_close(bounds[positive], longest[positive], rtol=0, atol=1e-4)  # of Gram matrices in float32


@pytest.mark.parametrize("number", [1, 3, 5])
def test_inverses_are_those_of_what_is_present(number):
    part = make_part("random", 50, 24, dtype=torch.float32, number=number)
    for row, present in enumerate(part.modality_mask):
        expected = torch.zeros(number, number, dtype=torch.float64)
        index = present.nonzero().flatten()
        small = part.gram[row].double()[index][:, index]
        expected[index[:, None], index[None]] = torch.linalg.inv(small)
        upper = [expected[m, n] * (1 if m == n else 2) for m in range(number) for n in range(m, number)]
        torch.testing.assert_close(part.inverse[row].double(), torch.stack(upper))


@pytest.mark.parametrize("number", [2, 3, 8])
def test_an_inverse_of_too_few_digits_is_not_used(number):
    vectors = make_vectors("random", 200, 64, 0, number)
    noise = torch.logspace(-8, 0, 200)[:, None]
    vectors[:, 1] = normalize(vectors[:, 0] + noise * vectors[:, 1], dim=-1)
    mask = torch.ones(200, number, dtype=torch.bool)
    inverse = inverse_of(gram_of(vectors.unbind(1)), mask)
    is_used = inverse.amax(1) < 1e29
    assert not is_used[:150].any() and is_used[190:].all() and inverse.isfinite().all()
    cosines = vectors.double() @ normalize(vectors[0].sum(0) + torch.randn(64), dim=0).double()
    positive = cosines.clamp(min=0)
    exact = (positive * torch.linalg.solve(vectors.double() @ vectors.double().mT, positive)).sum(1).sqrt()
    assert (spanned_bound(cosines.float(), inverse) >= exact)[is_used].all()


def test_codes_miss_vectors_by_no_more_than_they_say():
    vectors = [make_vectors("clustered", 300, 40, seed)[:, 0].half() for seed in range(3)]
    codes, turn = encode(vectors), rotation(40)
    torch.testing.assert_close(turn @ turn.T, torch.eye(40, dtype=torch.float64))
    lost = torch.stack(
        [
            (plain.double() @ turn - code.double() * codes.scale[:, None].double()).norm(dim=1)
            for plain, code in zip(vectors, codes.codes, strict=True)
        ]
    )
    assert (lost.amax(0) <= codes.error).all() and (codes.error < 0.02).all()


def test_products_that_are_cut_off_are_noticed(monkeypatch):
    exact = torch._int_mm
    monkeypatch.setattr(torch, "_int_mm", lambda a, b: exact(a, b).clamp(max=32767))
    multiplies_eight_bits.cache_clear()
    assert not multiplies_eight_bits()
    monkeypatch.undo()
    multiplies_eight_bits.cache_clear()


def test_equal_pairs_have_equal_scores_wherever_they_stand():
    vectors = make_vectors("random", 5, 7, 0).double()
    texts = normalize(torch.randn(5, 7, dtype=torch.float64), dim=-1)
    many = torch.randint(5, (401,))
    mask = torch.ones(401, 3, dtype=torch.bool)
    scores = exact_scores(texts[many], vectors[many], mask, MIN_NORM, ScoreOptions())
    for number in range(5):
        assert len(set(scores[(many == number).numpy()].tolist())) == 1


def test_codes_of_other_vectors_are_found_by_checking(tmp_path, monkeypatch):
    names, embeds, mask = make_clips(20, seed=0)
    write(tmp_path, (names, embeds, mask)).check()
    plain = columns.encode

    def wrong(modalities):
        codes = plain(modalities)
        codes.codes[1][mask[:, 1].nonzero()[0]] *= -1
        return codes

    monkeypatch.setattr(columns, "encode", wrong)
    gallery = write(tmp_path / "wrong", (names, embeds, mask))
    with pytest.raises(ValueError, match="Eight-bit vectors .* do not match those of the clips"):
        gallery.check()


def test_a_gallery_without_codes_grows_without_them_and_gives_the_same(tmp_path):
    names, embeds, mask = make_clips(60, seed=0)
    with GalleryWriter(tmp_path / "old", "float32", has_codes=False) as writer:
        writer.metadata = MADE_BY
        writer.put_clips(names[:30], embeds[:30], mask[:30])
        writer.commit()
    with GalleryWriter(tmp_path / "old") as writer:
        writer.put_clips(names[30:], embeds[30:], mask[30:])
        writer.commit()
    old, new = Gallery.open(tmp_path / "old"), write(tmp_path / "new", (names, embeds, mask))
    assert not old.has_codes and new.has_codes
    for first, second in zip(old.search(make_queries(5), 7), new.search(make_queries(5), 7), strict=True):
        assert list(first) == list(second)
