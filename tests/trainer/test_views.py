"""Reduced-arity views: who may lose a modality, which one, and how often."""

import torch

from trainer.views import full_view_probability, reduced_views


def test_p_full_falls_linearly_and_stays():
    values = [full_view_probability(step) for step in (0, 500, 1000, 2000, 5000)]
    assert values == [1.0, 0.875, 0.75, 0.5, 0.5]  # max(0.5, 1 - 0.5 t / 2000) of Algorithm S2
    assert full_view_probability(10, final=1.0) == 1.0 and full_view_probability(0, 0.25, 0) == 0.25


def uniform(rows, seed):
    return torch.rand(rows, 2, generator=torch.Generator().manual_seed(seed))


def test_only_clips_with_more_than_two_modalities_lose_exactly_one():
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 0, 1]]).bool().repeat(3000, 1)
    reduced = reduced_views(mask, 0.5, uniform(len(mask), 0))
    lost = mask & ~reduced
    assert not (reduced & ~mask).any()
    assert (lost[1::3] == 0).all() and (lost[2::3] == 0).all()
    counts = lost[0::3].sum(1)
    assert set(counts.tolist()) == {0, 1}
    assert abs(counts.float().mean().item() - 0.5) < 0.04  # four standard deviations
    shares = lost[0::3].float().sum(0) / counts.sum()
    torch.testing.assert_close(shares, torch.full((3,), 1 / 3), atol=0.05, rtol=0)


def test_a_clip_draws_the_same_wherever_it_lies():
    mask, draws = torch.ones(50, 3, dtype=torch.bool), uniform(50, 1)
    whole = reduced_views(mask, 0.5, draws)
    parts = torch.cat([reduced_views(mask[:20], 0.5, draws[:20]), reduced_views(mask[20:], 0.5, draws[20:])])
    assert torch.equal(whole, parts) and not torch.equal(whole, reduced_views(mask, 0.5, uniform(50, 2)))


def test_a_probability_of_one_hides_nothing():
    mask = torch.ones(100, 3, dtype=torch.bool)
    assert reduced_views(mask, 1.0, uniform(100, 0)).all()


def test_the_largest_draw_still_hides_a_present_modality():
    mask = torch.ones(1, 3, dtype=torch.bool)
    largest = torch.tensor([[0.9, 1 - 2**-24]])
    assert reduced_views(mask, 0.0, largest).tolist() == [[True, True, False]]


def test_with_one_as_the_least_a_clip_of_two_modalities_may_lose_either():
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 0, 1]]).bool().repeat(3000, 1)
    draws = uniform(len(mask), 0)
    lost = mask & ~reduced_views(mask, 0.5, draws, min_modalities=1)
    assert (lost[2::3] == 0).all()  # nothing is left of a clip that loses all
    for rows, num_present in ((lost[0::3], 3), (lost[1::3], 2)):
        counts = rows.sum(1)
        assert set(counts.tolist()) == {0, 1} and abs(counts.float().mean().item() - 0.5) < 0.04
        shares = rows.float().sum(0)[:num_present] / counts.sum()
        torch.testing.assert_close(shares, torch.full((num_present,), 1 / num_present), atol=0.05, rtol=0)
    # What clips of three lose is what they lose under the paper's rule.
    assert torch.equal(lost[0::3], (mask & ~reduced_views(mask, 0.5, draws))[0::3])
