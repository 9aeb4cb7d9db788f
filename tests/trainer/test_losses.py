"""Each term against a float64 loop, and its gradients where they are the point."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from modeling_scalar.aggregation_scalar import paired_centroids
from trainer.losses import AlignmentLoss, CrossArityLoss, MatchingLoss, PathwaysLoss, draw_negatives, info_nce


def make_rows(batch_size=5, dim=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    texts = normalize(torch.randn(batch_size, dim, generator=generator, dtype=torch.float64), dim=-1)
    modalities = normalize(torch.randn(batch_size, 3, dim, generator=generator, dtype=torch.float64), dim=-1)
    mask = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 0, 1], [0, 1, 1], [1, 1, 0]]).bool()[:batch_size]
    return texts, modalities, mask


def loop_info_nce(scores, offset, temperature, smoothing):
    total, (rows, columns) = 0.0, (len(scores), len(scores[0]))
    for i, row in enumerate(scores):
        log_sum = math.log(sum(math.exp(s / temperature) for s in row))
        for j, score in enumerate(row):
            target = (1 - smoothing) * (j == i + offset) + smoothing / columns
            total -= target * (score / temperature - log_sum)
    return total / rows


@pytest.mark.parametrize("offset", [0, 2])
def test_info_nce_equals_the_loop(offset):
    scores = torch.rand(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = loop_info_nce(scores.tolist(), offset, 0.07, 0.1)
    assert info_nce(scores, offset, 0.07, 0.1).item() == pytest.approx(expected, rel=1e-12)


def test_alignment_is_the_mean_of_both_directions():
    scores = torch.rand(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rows, columns = (loop_info_nce(x.tolist(), 0, 0.07, 0.1) for x in (scores, scores.T))
    assert rows != pytest.approx(columns)
    assert AlignmentLoss()(scores, scores.T).item() == pytest.approx((rows + columns) / 2, rel=1e-12)


def test_equal_scores_cost_the_logarithm_of_the_batch():
    assert AlignmentLoss()(torch.zeros(8, 8), torch.zeros(8, 8)).item() == pytest.approx(math.log(8), rel=1e-6)


def test_cross_arity_equals_the_loop():
    texts, modalities, mask = make_rows()
    reduced = mask.clone()
    reduced[0, 1] = reduced[1, 2] = False
    total = 0.0
    for i in range(len(texts)):
        centroids, scores = [], []
        for view in (mask, reduced):
            embeds = modalities[i, view[i]]
            weights = ((embeds @ texts[i]) / 0.1).softmax(0)
            centroid = weights @ embeds
            centroids.append(centroid / centroid.norm())
            scores.append((texts[i] @ centroids[-1]).item())
        total += 1 - (centroids[0] @ centroids[1]).item() + (scores[1] - scores[0]) ** 2
    loss = CrossArityLoss(0.1)(texts, modalities, mask, reduced)
    assert loss.item() > 1e-3 and loss.item() == pytest.approx(total / len(texts), rel=1e-12)


def test_cross_arity_is_zero_where_nothing_is_hidden():
    texts, modalities, mask = make_rows()
    assert CrossArityLoss()(texts, modalities, mask, mask).abs().item() < 1e-12


def test_only_the_complete_score_is_a_fixed_reference():
    """The gradient is that of the direction term through both centroids plus the score term through one."""
    texts, modalities, mask = make_rows()
    reduced = mask.clone()
    reduced[0, 0] = False
    modalities.requires_grad_()
    CrossArityLoss(0.1)(texts, modalities, mask, reduced).backward()
    gradient, modalities.grad = modalities.grad, None
    complete, partial = (paired_centroids(texts, modalities, view, 0.1) for view in (mask, reduced))
    reference = (texts * complete).sum(-1).detach()
    ((1 - (complete * partial).sum(-1)) + ((texts * partial).sum(-1) - reference) ** 2).mean().backward()
    torch.testing.assert_close(gradient, modalities.grad)
    assert gradient[0, 0].abs().max() > 1e-4  # the hidden modality is reached through the complete view


def test_pathways_equals_the_loop_over_clips_that_have_the_modality():
    texts, modalities, mask = make_rows()
    terms = []
    for m in range(3):
        rows = mask[:, m].nonzero().flatten()
        scores = texts[rows] @ modalities[rows, m].T
        terms += [loop_info_nce(x.tolist(), 0, 0.07, 0.0) for x in (scores, scores.T)]
    loss = PathwaysLoss(0.07)(texts, modalities, mask, texts, modalities, mask)
    assert loss.item() == pytest.approx(sum(terms) / 6, rel=1e-9)


def test_pathways_does_not_read_absent_modalities():
    texts, modalities, mask = make_rows()
    loss = PathwaysLoss()
    expected = loss(texts, modalities, mask, texts, modalities, mask)
    other = modalities.masked_fill(~mask[..., None], 0.7)
    torch.testing.assert_close(loss(texts, other, mask, texts, other, mask), expected)


def test_matching_equals_binary_cross_entropy():
    logits = torch.tensor([[0.0, 1.0], [2.0, -1.0]])
    expected = (-math.log(math.e / (1 + math.e)) - math.log(math.exp(2) / (math.exp(2) + math.exp(-1)))) / 2
    assert MatchingLoss()(logits, torch.tensor([True, False])).item() == pytest.approx(expected, rel=1e-6)
    assert MatchingLoss()(torch.zeros(0, 2), torch.zeros(0, dtype=torch.bool)).item() == 0


def test_negatives_follow_the_softmax_and_never_hit_the_match():
    scores = torch.tensor([[0.9, 0.3, 0.2, -0.5], [0.1, 0.9, 0.1, 0.1]])
    candidates = torch.tensor([True, True, True, True])
    generator = torch.Generator().manual_seed(0)
    many = scores[:1].expand(20000, -1)
    weights = (many[0] / 0.5).softmax(0) + 1e-4
    draws = torch.stack(
        [draw_negatives(scores, candidates, 0, 0.5, generator) for _ in range(4000)], dim=1
    )  # (2, 4000)
    assert not (draws == torch.tensor([[0], [1]])).any()
    expected = weights[1:] / weights[1:].sum()
    observed = torch.bincount(draws[0], minlength=4)[1:] / 4000
    torch.testing.assert_close(observed, expected, atol=0.03, rtol=0)  # four standard deviations


def test_a_hopeless_negative_is_still_drawn_now_and_then():
    """Beside a wrong clip of weight 0.0033 one of weight 0.00005 is drawn as if it had 0.0001 more."""
    scores = torch.tensor([[0.9, 0.5, 0.2]])
    generator = torch.Generator().manual_seed(0)
    draws = torch.cat([draw_negatives(scores, torch.ones(3).bool(), 0, 0.07, generator) for _ in range(4000)])
    weights = (scores[0] / 0.07).softmax(0)[1:] + 1e-4
    share = (weights[1] / weights.sum()).item()
    assert 0.03 < share < 0.05 and abs((draws == 2).float().mean().item() - share) < 0.013  # four deviations


def test_negatives_respect_the_offset_and_the_candidates():
    candidates = torch.tensor([False, True, True, True])
    draws = torch.stack([draw_negatives(torch.zeros(2, 4), candidates, offset=1) for _ in range(200)])
    assert set(draws[:, 0].tolist()) == {2, 3} and set(draws[:, 1].tolist()) == {1, 3}
    only = draw_negatives(torch.zeros(2, 2), torch.tensor([True, False]))
    assert only.tolist() == [-1, 0]


@pytest.mark.parametrize("bad", [{"temperature": 0.0}, {"label_smoothing": 1.0}])
def test_bad_settings_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        AlignmentLoss(**bad)
