"""Who may lose a modality, which one, and how often; and from which scores wrong clips and texts are drawn."""

import dataclasses
import math

import pytest
import torch
from torch.nn.functional import normalize

from scalar_retrieval.trainer.distributed import RowLayout
from scalar_retrieval.trainer.draws import choose_pairs, draw_negatives, full_view_probability, reduced_views
from scalar_retrieval.trainer.objectives import Batch
from tests.trainer.test_losses import loop_centroid

SIZE, DIM, TAU_W = 6, 8, 0.1


def test_p_full_falls_linearly_and_stays():
    values = [full_view_probability(step) for step in (0, 500, 1000, 2000, 5000)]
    assert values == [1.0, 0.875, 0.75, 0.5, 0.5]  # max(0.5, 1 - 0.5 t / 2000) of Algorithm S2
    assert full_view_probability(10, final=1.0) == 1.0 and full_view_probability(0, 0.25, 0) == 0.25


def uniform(rows, seed):
    return torch.rand(rows, 2, generator=torch.Generator().manual_seed(seed))


def test_the_largest_draw_still_hides_a_present_modality():
    mask = torch.ones(1, 3, dtype=torch.bool)
    largest = torch.tensor([[0.9, 1 - 2**-24]])
    assert reduced_views(mask, 0.0, largest).tolist() == [[True, True, False]]


@pytest.mark.parametrize("least", [1, 2])
def test_only_clips_with_more_than_the_least_modalities_lose_exactly_one(least):
    """Two is the paper's rule, one that of its public code."""
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 0, 1]]).bool().repeat(3000, 1)
    draws = uniform(len(mask), 0)
    reduced = reduced_views(mask, 0.5, draws, min_modalities=least)
    lost = mask & ~reduced
    assert not (reduced & ~mask).any()
    for place, num_present in enumerate((3, 2, 1)):
        rows = lost[place::3]
        if num_present <= least:
            assert not rows.any()
            continue
        counts = rows.sum(1)
        assert set(counts.tolist()) == {0, 1} and abs(counts.float().mean().item() - 0.5) < 0.04  # four deviations
        shares = rows.float().sum(0)[:num_present] / counts.sum()
        torch.testing.assert_close(shares, torch.full((num_present,), 1 / num_present), atol=0.05, rtol=0)
    # What clips of three lose is what they lose under either rule.
    assert torch.equal(lost[0::3], (mask & ~reduced_views(mask, 0.5, draws))[0::3])


def make_batch(method="scalar"):
    generator = torch.Generator().manual_seed(0)
    texts = normalize(torch.randn(SIZE, DIM, generator=generator, dtype=torch.float64), dim=-1)
    modalities = normalize(torch.randn(SIZE, 3, DIM, generator=generator, dtype=torch.float64), dim=-1)
    mask = torch.ones(SIZE, 3, dtype=torch.bool)
    reduced = mask.clone()
    reduced[0, 1] = reduced[3, 0] = reduced[4, 2] = False
    options = {"method": method, "query_temperature": TAU_W}
    return Batch(RowLayout((SIZE,), 0), texts, modalities, mask, reduced, options)


def loop(batch, paired, method):
    """C of Eq. 5, or C~: entry (i, j) is the cosine of text i and clip j, aggregated for text i, or for text j."""
    temperature = math.inf if method == "uniform" else TAU_W
    cosines = torch.zeros(SIZE, SIZE, dtype=torch.float64)
    for i in range(SIZE):
        for j in range(SIZE):
            embeds = batch.modalities[j, batch.reduced_mask[j]]
            cosines[i, j] = batch.texts[i] @ loop_centroid(batch.texts[j if paired else i], embeds, temperature)
    return cosines


@pytest.mark.parametrize("method", ["scalar", "uniform"])
def test_both_matrices_are_those_of_the_loop_in_both_directions(method):
    batch = make_batch(method)
    for rows, columns, paired in (
        (batch.text_to_clip, batch.clip_to_text, False),
        (batch.text_to_paired_clip, batch.paired_clip_to_text, True),
    ):
        expected = loop(batch, paired, method)
        torch.testing.assert_close(rows, expected, atol=1e-12, rtol=0)
        torch.testing.assert_close(columns, expected.T, atol=1e-12, rtol=0)
    same = torch.allclose(batch.text_to_clip, batch.text_to_paired_clip)
    assert same == (method == "uniform")  # without query conditioning they are one


@pytest.mark.parametrize("paired", [False, True])
def test_negatives_are_drawn_by_the_matrix_that_is_asked_for(paired):
    batch, tokens = make_batch(), torch.ones(SIZE, 2, dtype=torch.long)
    scores, anyone = loop(batch, paired, "scalar"), torch.ones(SIZE, dtype=torch.bool)
    for seed in range(10):
        draws = torch.rand(SIZE, 2, generator=torch.Generator().manual_seed(seed))
        ids = torch.arange(SIZE)[:, None].expand(-1, 2)
        pairs = choose_pairs(batch, ids, tokens, torch.ones(SIZE, 1, dtype=torch.bool), draws, 0.07, paired)
        wrong_clips = draw_negatives(scores, anyone, draws[:, 0])
        wrong_texts = draw_negatives(scores.T, anyone, draws[:, 1])
        assert torch.equal(pairs.clips, torch.cat([torch.arange(SIZE), wrong_clips, torch.arange(SIZE)]))
        assert torch.equal(pairs.input_ids[:, 0], torch.cat([torch.arange(SIZE)] * 2 + [wrong_texts]))


def test_negatives_are_of_other_clips():
    batch = make_batch()
    batch.clips = torch.tensor([0, 1, 0, 2, 0, 1])
    ids = torch.arange(SIZE)[:, None].expand(-1, 2)
    readable = torch.ones(SIZE, 1, dtype=torch.bool)
    for seed in range(10):
        draws = uniform(SIZE, seed)
        pairs = choose_pairs(batch, ids, torch.ones_like(ids), readable, draws, 0.07)
        same_clip = batch.clips[pairs.input_ids[:, 0]] == batch.clips[pairs.clips]
        assert torch.equal(same_clip, pairs.is_match) and len(same_clip) == 3 * SIZE
    # Of one clip alone there is no negative.
    batch = dataclasses.replace(batch, clips=torch.zeros(SIZE, dtype=torch.long))
    pairs = choose_pairs(batch, ids, torch.ones_like(ids), readable, uniform(SIZE, 0), 0.07)
    assert pairs.is_match.all() and len(pairs.clips) == SIZE


def test_negatives_follow_the_softmax_with_its_floor_and_are_never_the_match():
    """One row against a loop over its cumulative weights; its match, column 0, has the highest score."""
    temperature = 0.07
    scores = torch.tensor([[0.9, 0.4, -1.0, -1.0, 0.3]], dtype=torch.float64)
    candidates = torch.tensor([True, True, True, False, True])
    powers = (scores[0] / temperature).exp()
    weights = powers / powers.sum() + 1e-4
    allowed = {1: weights[1].item(), 2: weights[2].item(), 4: weights[4].item()}
    total = sum(allowed.values())
    below = 0.0
    for column, weight in allowed.items():
        # The smallest number still belongs to the column, as 0 does to the first; just below the next one's it ends.
        for share in (below / total + (1e-9 if below else 0.0), (below + weight) / total - 1e-9):
            drawn = draw_negatives(scores, candidates, torch.tensor([share], dtype=torch.float64), 0, temperature)
            assert drawn.tolist() == [column]
        below += weight


@pytest.mark.parametrize(("share", "expected"), [(0.1, [2, 0]), (0.9, [2, 2])])
def test_negatives_are_drawn_also_where_a_clip_has_no_score(share, expected):
    """The second row has no score at all, so its two candidates are equally likely."""
    scores = torch.full((2, 3), -math.inf)
    scores[0, 2] = 0.5
    assert draw_negatives(scores, torch.ones(3).bool(), torch.full((2,), share)).tolist() == expected
