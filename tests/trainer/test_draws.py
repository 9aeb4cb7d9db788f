"""Who may lose a modality, which one, and how often; and from which scores wrong clips and texts are drawn."""

import dataclasses
import math

import pytest
import torch

from scalar_retrieval.trainer.distributed import RowLayout
from scalar_retrieval.trainer.draws import choose_pairs, draw_negatives, full_view_probability, reduced_views
from scalar_retrieval.trainer.objectives import Batch
from tests.trainer.test_losses import make_rows

SIZE = 5


def test_p_full_falls_linearly_and_stays():
    values = [full_view_probability(step) for step in (0, 500, 1000, 2000, 5000)]
    assert values == [1.0, 0.875, 0.75, 0.5, 0.5]  # max(0.5, 1 - 0.5 t / 2000) of Algorithm S2
    assert full_view_probability(0, 0.25, 0) == 0.25


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
    lost = mask & ~reduced_views(mask, 0.5, uniform(len(mask), 0), min_modalities=least)
    assert lost.sum(1).max() == 1
    shares = torch.tensor([[1 / 6, 1 / 6, 1 / 6], [1 / 4, 1 / 4, 0], [0, 0, 0]])  # half of them, each equally often
    shares[1] *= least == 1
    torch.testing.assert_close(lost.view(3000, 3, 3).float().mean(0), shares, atol=0.03, rtol=0)


def make_batch():
    texts, modalities, mask = make_rows()
    options = {"method": "scalar", "query_temperature": 0.1}
    clips = torch.tensor([0, 1, 0, 2, 1])
    return Batch(RowLayout((SIZE,), 0), texts, modalities, mask, mask, options, clips=clips)


def pairs_of(batch, seed, paired=False):
    ids = torch.arange(SIZE)[:, None].expand(-1, 2)
    readable = torch.ones(SIZE, 1, dtype=torch.bool)
    return choose_pairs(batch, ids, torch.ones_like(ids), readable, uniform(SIZE, seed), 0.07, paired)


@pytest.mark.parametrize("paired", [False, True])
def test_negatives_are_of_other_clips_by_the_matrix_that_is_asked_for(paired):
    batch, own = make_batch(), torch.arange(SIZE)
    scores, others = batch.text_to_clip, batch.clips[:, None] != batch.clips
    if paired:
        scores = batch.text_to_paired_clip
    for seed in range(10):
        pairs, draws = pairs_of(batch, seed, paired), uniform(SIZE, seed)
        wrong_clips = draw_negatives(scores, others, draws[:, 0])
        wrong_texts = draw_negatives(scores.T, others, draws[:, 1])
        assert pairs.clips.equal(torch.cat([own, wrong_clips, own]))
        assert pairs.input_ids[:, 0].equal(torch.cat([own, own, wrong_texts]))
        assert pairs.is_match.tolist() == [True] * SIZE + [False] * 2 * SIZE
    # Of one clip alone there is no negative.
    pairs = pairs_of(dataclasses.replace(batch, clips=torch.zeros(SIZE, dtype=torch.long)), 0)
    assert pairs.is_match.all() and len(pairs.clips) == SIZE


def test_negatives_follow_the_softmax_with_its_floor_and_are_never_the_match():
    """One row against a loop over its cumulative weights; its match, column 0, has the highest score."""
    temperature = 0.07
    scores = torch.tensor([[0.9, 0.4, -1.0, -1.0, 0.3]], dtype=torch.float64)
    candidates = torch.tensor([True, True, True, False, True])
    weights = (scores[0] / temperature).softmax(0) + 1e-4
    total = weights[[1, 2, 4]].sum()
    below = 0.0
    for column in (1, 2, 4):
        # The smallest number still belongs to the column; just below the next one's it ends.
        for share in (below / total + 1e-9, (below + weights[column]) / total - 1e-9):
            assert draw_negatives(scores, candidates, share[None], 0, temperature).tolist() == [column]
        below += weights[column]


@pytest.mark.parametrize(("share", "expected"), [(0.1, [2, 0]), (0.9, [2, 2])])
def test_negatives_are_drawn_also_where_a_clip_has_no_score(share, expected):
    """The second row has no score at all, so its two candidates are equally likely."""
    scores = torch.full((2, 3), -math.inf)
    scores[0, 2] = 0.5
    assert draw_negatives(scores, torch.ones(3).bool(), torch.full((2,), share)).tolist() == expected
