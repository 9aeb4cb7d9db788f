"""Each term against a float64 loop, and its gradients where they are the point."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from modeling_scalar import ScalarConfig
from modeling_scalar.scores_scalar import paired_centroids
from trainer.distributed import RowLayout
from trainer.draws import draw_negatives
from trainer.losses import (
    AlignmentLoss,
    CrossArityLoss,
    MatchingLoss,
    PathwaysLoss,
    SemanticLoss,
    UniformityLoss,
    info_nce,
)
from trainer.objectives import OBJECTIVES, Batch, ScalarObjective
from trainer.training_args import OBJECTIVE_NAMES, WITH_SEMANTICS, WITH_TEMPERATURE, ScalarTrainingArguments


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


def uniform(rows, seed=0):
    return torch.rand(rows, generator=torch.Generator().manual_seed(seed))


def test_negatives_follow_the_softmax_and_never_hit_the_match():
    scores = torch.tensor([[0.9, 0.3, 0.2, -0.5]])
    candidates, draws = torch.ones(4).bool(), uniform(4000)
    drawn = torch.cat([draw_negatives(scores[:1], candidates, draw[None], 0, 0.5) for draw in draws])
    assert not (drawn == 0).any()
    weights = (scores[0] / 0.5).softmax(0) + 1e-4
    expected = weights[1:] / weights[1:].sum()
    observed = torch.bincount(drawn, minlength=4)[1:] / 4000
    torch.testing.assert_close(observed, expected, atol=0.03, rtol=0)  # four standard deviations


def test_negatives_respect_the_offset_and_the_candidates():
    candidates = torch.tensor([False, True, True, True])
    drawn = torch.stack([draw_negatives(torch.zeros(2, 4), candidates, uniform(2, i), offset=1) for i in range(200)])
    assert set(drawn[:, 0].tolist()) == {2, 3} and set(drawn[:, 1].tolist()) == {1, 3}
    only = draw_negatives(torch.zeros(2, 2), torch.tensor([True, False]), uniform(2))
    assert only.tolist() == [-1, 0]
    for draw in (0.0, 1 - 2**-24):  # the ends of the interval, next to columns of weight 0
        assert draw_negatives(torch.zeros(1, 4), candidates, torch.tensor([draw]), offset=3).item() in (1, 2)


def test_negatives_are_drawn_also_where_a_clip_has_no_score():
    scores = torch.full((2, 3), float("-inf"))
    scores[0, 2] = 0.5
    drawn = torch.stack([draw_negatives(scores, torch.ones(3).bool(), uniform(2, i)) for i in range(100)])
    assert (drawn[:, 0] == 2).float().mean() > 0.95 and set(drawn[:, 1].tolist()) == {0, 2}


def make_affinities(batch_size=5):
    """A sparse S*: 1 on the diagonal, a few known pairs, not symmetric."""
    affinities = torch.eye(batch_size, dtype=torch.float64)
    affinities[0, 1], affinities[1, 0], affinities[2, 4], affinities[3, 0] = 0.8, 0.8, 0.35, 0.05
    return affinities


def loop_semantic(scores, affinities, temperature=0.07, semantic_temperature=0.5, calibration=1.0):
    size = len(scores)
    divergence, errors = 0.0, []
    for i in range(size):
        targets = [math.exp(affinities[i][j] / semantic_temperature) for j in range(size)]
        targets = [t / sum(targets) for t in targets]
        exponents = [math.exp(scores[i][j] / temperature) for j in range(size)]
        for j in range(size):
            divergence += targets[j] * math.log(targets[j] / (exponents[j] / sum(exponents)))
            if affinities[i][j] > 0:
                errors.append((scores[i][j] - (2 * affinities[i][j] - 1)) ** 2)
    return divergence / size + calibration * sum(errors) / len(errors)


@pytest.mark.parametrize("calibration", [0.0, 1.0, 0.3])
def test_semantics_equal_the_loop(calibration):
    scores = 2 * torch.rand(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) - 1
    expected = loop_semantic(scores.tolist(), make_affinities().tolist(), calibration=calibration)
    loss = SemanticLoss(calibration_weight=calibration)(scores, make_affinities())
    assert loss.item() == pytest.approx(expected, rel=1e-12) and expected > 0.1


def test_calibration_abstains_from_unknown_pairs_and_ranking_does_not():
    scores = torch.zeros(5, 5, dtype=torch.float64, requires_grad=True)
    affinities = make_affinities()
    full, ranking = SemanticLoss(), SemanticLoss(calibration_weight=0.0)
    (full(scores, affinities) - ranking(scores, affinities)).backward()
    assert torch.equal(scores.grad != 0, affinities > 0)  # no known target here is 1/2
    scores.grad = None
    ranking(scores, affinities).backward()
    assert (scores.grad != 0).all()


def loop_uniformity(centroids, scale):
    size = len(centroids)
    total = sum(
        math.exp(-scale * ((centroids[i] - centroids[j]) ** 2).sum().item())
        for i in range(size)
        for j in range(size)
        if i != j
    )
    return math.log(total / (size * (size - 1)))


@pytest.mark.parametrize("scale", [2.0, 0.5])
def test_uniformity_equals_the_loop_also_for_short_centroids(scale):
    centroids = make_rows()[0]
    centroids[0] *= 0.4
    assert UniformityLoss(scale)(centroids).item() == pytest.approx(loop_uniformity(centroids, scale), rel=1e-12)


def test_uniformity_of_equal_and_of_opposite_points():
    point = torch.tensor([[1.0, 0.0]])
    assert UniformityLoss()(point.repeat(4, 1)).item() == pytest.approx(0, abs=1e-6)
    assert UniformityLoss()(torch.cat([point, -point])).item() == pytest.approx(-8)  # -2 |2|^2
    alone = point.clone().requires_grad_()
    UniformityLoss()(alone).backward()
    assert (alone.grad == 0).all()


def test_the_terms_of_a_batch_equal_the_loops():
    texts, modalities, mask = make_rows()
    reduced = mask.clone()
    reduced[0, 1] = reduced[1, 2] = False
    affinities = make_affinities()

    def centroid(i, j):  # clip j, reduced, for text i
        embeds = modalities[j, reduced[j]]
        c = ((embeds @ texts[i]) / 0.1).softmax(0) @ embeds
        return c / c.norm()

    size = range(len(texts))
    scores = [[(texts[i] @ centroid(i, j)).item() for j in size] for i in size]
    own = [[(texts[i] @ centroid(j, j)).item() for j in size] for i in size]
    both = [loop_info_nce(x, 0, 0.07, 0.1) for x in (scores, list(zip(*scores, strict=True)))]
    args = ScalarTrainingArguments(output_dir="out", use_cpu=True, loss_warmup_steps=0)
    options = {"method": "scalar", "query_temperature": 0.1}
    batch = Batch(RowLayout((5,), 0), texts, modalities, mask, reduced, options, affinities)
    terms = ScalarObjective(args, ScalarConfig())(batch, 0)
    assert {name: weight for name, (weight, _) in terms.items()} == {"align": 1, "mask": 1, "sem": 1, "unif": 0.1}
    losses = {name: loss for name, (_, loss) in terms.items()}
    assert losses["align"].item() == pytest.approx(sum(both) / 2, rel=1e-9)
    assert losses["sem"].item() == pytest.approx(loop_semantic(own, affinities.tolist()), rel=1e-9)
    expected = loop_uniformity(torch.stack([centroid(j, j) for j in size]), 2.0)
    assert losses["unif"].item() == pytest.approx(expected, rel=1e-9)
    cross_arity = CrossArityLoss(0.1)(texts, modalities, mask, reduced)
    torch.testing.assert_close(losses["mask"], cross_arity)


def test_the_parts_of_a_batch_add_up_to_it():
    """Two halves with the columns of all, each divided by the mean number of rows: their mean is the whole."""
    texts, modalities, mask = make_rows()
    reduced = mask.clone()
    reduced[0, 1] = False
    scores = torch.rand(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    affinities = make_affinities()
    parts = [slice(0, 2), slice(2, 5)]
    observed = (affinities > 0).sum() / 2
    for whole, split in (
        (AlignmentLoss()(scores, scores.T), lambda p: AlignmentLoss()(scores[p], scores.T[p], p.start, 2.5)),
        (SemanticLoss()(scores, affinities), lambda p: SemanticLoss()(scores[p], affinities[p], 2.5, observed)),
        (
            CrossArityLoss()(texts, modalities, mask, reduced),
            lambda p: CrossArityLoss()(texts[p], modalities[p], mask[p], reduced[p], 2.5),
        ),
        (
            PathwaysLoss()(texts, modalities, mask, texts, modalities, mask),
            lambda p: PathwaysLoss()(texts[p], modalities[p], mask[p], texts, modalities, mask, p.start, 2.5),
        ),
    ):
        torch.testing.assert_close(sum(split(part) for part in parts) / 2, whole)


def test_the_arguments_name_the_objectives_and_what_they_need():
    assert tuple(OBJECTIVES) == OBJECTIVE_NAMES
    assert {name for name, objective in OBJECTIVES.items() if objective.uses_temperature} == {*WITH_TEMPERATURE}
    assert {name for name, objective in OBJECTIVES.items() if objective.uses_semantics} == {*WITH_SEMANTICS}
