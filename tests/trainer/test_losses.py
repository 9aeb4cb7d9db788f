"""Each term against a float64 loop, and its gradients where they are the point."""

import doctest
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from scalar_retrieval.modeling_scalar import MODALITIES, ScalarConfig
from scalar_retrieval.modeling_scalar.scores_scalar import paired_centroids, retrieval_scores
from scalar_retrieval.trainer import losses
from scalar_retrieval.trainer.distributed import RowLayout
from scalar_retrieval.trainer.losses import (
    CrossArityLoss,
    MatchingLoss,
    UniformityLoss,
)
from scalar_retrieval.trainer.objectives import (
    OBJECTIVES,
    Batch,
    ContrastiveObjective,
    PathwaysObjective,
    PMRLObjective,
    ScalarObjective,
)
from scalar_retrieval.trainer.training_args import OBJECTIVE_NAMES, WITH_SEMANTICS, ScalarTrainingArguments


def make_rows(batch_size=5, dim=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    texts = normalize(torch.randn(batch_size, dim, generator=generator, dtype=torch.float64), dim=-1)
    modalities = normalize(torch.randn(batch_size, 3, dim, generator=generator, dtype=torch.float64), dim=-1)
    mask = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 0, 1], [0, 1, 1], [1, 1, 0]]).bool()[:batch_size]
    return texts, modalities, mask


@st.composite
def drawn_batches(draw):
    """A batch of any size, with any modalities and known pairs, and numbers of the objective."""
    size, dim = draw(st.integers(1, 6)), draw(st.sampled_from((4, 8)))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    texts = normalize(torch.randn(size, dim, generator=random, dtype=torch.float64), dim=-1)
    modalities = normalize(torch.randn(size, 3, dim, generator=random, dtype=torch.float64), dim=-1)
    mask = torch.rand(size, 3, generator=random) < 0.7
    mask[torch.arange(size), torch.randint(3, (size,), generator=random)] = True
    reduced = mask.clone()
    for clip in range(size):
        present = mask[clip].nonzero().flatten()
        if len(present) > 1 and draw(st.booleans()):
            reduced[clip, present[0]] = False
    affinities = torch.rand(size, size, generator=random, dtype=torch.float64)
    affinities[torch.rand(size, size, generator=random) < 0.5] = 0.0
    affinities[torch.arange(size), torch.arange(size)] = 1.0
    clips = draw(st.sampled_from((None, torch.randint(3, (size,), generator=random))))
    return SimpleNamespace(
        texts=texts,  # (B, D)
        modalities=modalities.masked_fill(~mask[..., None], math.nan),  # (B, M, D)
        mask=mask,  # (B, M)
        reduced=reduced,  # (B, M): a clip of several may lack one more
        affinities=affinities,  # (B, B), 1 on the diagonal, 0 where nothing is known
        query_temperature=draw(st.sampled_from((0.05, 0.1, 1.0))),
        temperature=draw(st.sampled_from((0.05, 0.07, 0.5))),
        semantic_temperature=draw(st.sampled_from((0.25, 0.5, 1.0))),
        calibration=draw(st.sampled_from((0.0, 0.3, 1.0))),
        smoothing=draw(st.sampled_from((0.0, 0.1))),
        clips=clips,  # (B,), of which some may have several texts; None if all differ
        clip_of=list(range(size)) if clips is None else clips.tolist(),
    )


def loop_centroid(text, embeds, temperature):
    """mu of Eq. 2 of one text and what a clip has."""
    powers = [math.exp(float(embed @ text) / temperature) for embed in embeds]
    total = sum(power * embed for power, embed in zip(powers, embeds, strict=True))
    return total / total.norm()


def loop_info_nce(scores, temperature, smoothing, clips):
    """Each row against its match and the columns of other clips."""
    total = 0.0
    for i, row in enumerate(scores):
        columns = [j for j in range(len(row)) if j == i or clips[j] != clips[i]]
        log_sum = math.log(sum(math.exp(row[j] / temperature) for j in columns))
        for j in columns:
            target = (1 - smoothing) * (j == i) + smoothing / len(columns)
            total -= target * (row[j] / temperature - log_sum)
    return total / len(scores)


def loop_alignment(scores, *settings):
    """The mean of both directions."""
    columns = [list(column) for column in zip(*scores, strict=True)]
    return (loop_info_nce(scores, *settings) + loop_info_nce(columns, *settings)) / 2


def loop_semantic(scores, drawn):
    """The divergence from the softmax of S*, and the squared error of known pairs from 2 S* - 1."""
    divergence, errors, size = 0.0, [], len(scores)
    affinities = drawn.affinities.tolist()
    for i in range(size):
        targets = [math.exp(value / drawn.semantic_temperature) for value in affinities[i]]
        powers = [math.exp(score / drawn.temperature) for score in scores[i]]
        for j in range(size):
            share = targets[j] / sum(targets)
            divergence += share * math.log(share / (powers[j] / sum(powers)))
            if affinities[i][j] > 0:
                errors.append((scores[i][j] - (2 * affinities[i][j] - 1)) ** 2)
    return divergence / size + drawn.calibration * sum(errors) / len(errors)


def loop_uniformity(centroids, clips, scale=2.0):
    """Over the pairs of different clips; 0 if there are none."""
    powers = []
    for i in range(len(centroids)):
        for j in range(len(centroids)):
            if clips[i] != clips[j]:
                powers.append(math.exp(-scale * float((centroids[i] - centroids[j]).square().sum())))
    return math.log(sum(powers) / len(powers)) if powers else 0.0


def loop_cross_arity(drawn):
    total = 0.0
    for i, text in enumerate(drawn.texts):
        complete, partial = (
            loop_centroid(text, drawn.modalities[i, view[i]], drawn.query_temperature)
            for view in (drawn.mask, drawn.reduced)
        )
        total += float(1 - complete @ partial + (text @ partial - text @ complete) ** 2)
    return total / len(drawn.texts)


def loop_pathways(drawn):
    """Over each modality, among the clips that have it; one that no clip has has no term."""
    terms = []
    for m in range(3):
        rows = drawn.mask[:, m].nonzero().flatten()
        if len(rows):
            scores = drawn.texts[rows] @ drawn.modalities[rows, m].T
            clips = [drawn.clip_of[row] for row in rows]
            terms.append(loop_alignment(scores.tolist(), drawn.temperature, 0.0, clips))
    return sum(terms) / len(terms)


def loop_pmrl(drawn):
    """Of each text with what its clip has: the first singular value against all, and directions among themselves."""
    total, directions = 0.0, []
    for text, clip, present in zip(drawn.texts, drawn.modalities, drawn.mask, strict=True):
        left, values, _ = torch.linalg.svd(torch.cat([text[None], clip[present]]).T, full_matrices=False)
        total -= (values / 0.05).log_softmax(0)[0]
        directions.append(left[:, 0] * (left[:, 0] @ text).sign())
    directions = torch.stack(directions)
    settings = drawn.query_temperature, 0.0, drawn.clip_of
    return total / len(directions) + loop_info_nce((directions @ directions.T).tolist(), *settings)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(drawn_batches())
def test_the_terms_of_a_batch_equal_the_loops(drawn):
    size = range(len(drawn.texts))
    centroids = {}  # of clip j, reduced, for text i
    for i in size:
        for j in size:
            embeds = drawn.modalities[j, drawn.reduced[j]]
            centroids[i, j] = loop_centroid(drawn.texts[i], embeds, drawn.query_temperature)
    scores = [[float(drawn.texts[i] @ centroids[i, j]) for j in size] for i in size]
    own = [[float(drawn.texts[i] @ centroids[j, j]) for j in size] for i in size]  # of each clip for its own text
    expected = {
        "align": (1.0, loop_alignment(scores, drawn.temperature, drawn.smoothing, drawn.clip_of)),
        "mask": (1.0, loop_cross_arity(drawn)),
        "sem": (1.0, loop_semantic(own, drawn)),
        "unif": (0.1, loop_uniformity([centroids[j, j] for j in size], drawn.clip_of)),
    }

    args = ScalarTrainingArguments(
        output_dir="out",
        use_cpu=True,
        loss_warmup_steps=0,
        semantic_weight=1.0,
        temperature=drawn.temperature,
        contrastive_label_smoothing=drawn.smoothing,
        semantic_temperature=drawn.semantic_temperature,
        direction_temperature=drawn.query_temperature,
        calibration_weight=drawn.calibration,
    )
    options = {"method": "scalar", "query_temperature": drawn.query_temperature}
    views = drawn.texts, drawn.modalities, drawn.mask, drawn.reduced
    batch = Batch(RowLayout((len(size),), 0), *views, options, drawn.affinities, clips=drawn.clips)
    config = ScalarConfig(query_temperature=drawn.query_temperature)
    terms = ScalarObjective(args, config)(batch, 0)
    assert terms.keys() == {"align", "mask", "sem", "unif"}
    for name, (weight, loss) in expected.items():
        assert terms[name][0] == weight
        assert terms[name][1].item() == pytest.approx(loss, rel=1e-9, abs=1e-12), name
    for objective, expected in ((PathwaysObjective, loop_pathways), (PMRLObjective, loop_pmrl)):
        ((_, loss),) = objective(args, config)(batch, 0).values()
        assert loss.item() == pytest.approx(float(expected(drawn)), rel=1e-9, abs=1e-12)


def test_the_contrastive_objective_reads_modalities_by_name():
    """TRIANGLE's area of a text, a picture and a sound, among the clips that have both, whatever their order."""
    texts, modalities, mask = make_rows()
    clips = torch.tensor([0, 1, 0, 2, 1])
    rows = [0, 1, 4]  # that have both
    scores = retrieval_scores(texts[rows], modalities[rows], mask[rows], method="triangle", modalities=MODALITIES)
    expected = loop_alignment(scores.tolist(), 0.07, 0.1, clips[rows].tolist())
    args = ScalarTrainingArguments(output_dir="out", use_cpu=True, objective="contrastive")
    for order in ([0, 1, 2], [1, 2, 0]):
        names = [MODALITIES[place] for place in order]
        options = {"method": "triangle", "query_temperature": 0.1, "modalities": names}
        views = mask[:, order]
        batch = Batch(RowLayout((5,), 0), texts, modalities[:, order], views, views, options, clips=clips)
        config = SimpleNamespace(aggregation="triangle", modalities=names)
        ((_, loss),) = ContrastiveObjective(args, config)(batch, 0).values()
        assert loss.item() == pytest.approx(expected, rel=1e-9)


def test_only_the_complete_score_is_a_fixed_reference():
    """A hidden modality, which the complete view alone reads, has the gradient of the direction term alone."""
    texts, modalities, mask = make_rows()
    reduced = mask.clone()
    reduced[0, 0] = False
    modalities.requires_grad_()
    complete, partial = (paired_centroids(texts, modalities, view, 0.1) for view in (mask, reduced))
    direction = (1 - (complete * partial).sum(-1)).mean()
    losses = CrossArityLoss(0.1)(texts, modalities, mask, reduced), direction
    gradient, expected = (torch.autograd.grad(loss, modalities, retain_graph=True)[0] for loss in losses)
    torch.testing.assert_close(gradient[0, 0], expected[0, 0])
    assert gradient[0, 0].abs().max() > 1e-4 and (gradient - expected)[0, 1].abs().max() > 1e-6


def test_matching_equals_binary_cross_entropy():
    logits = torch.tensor([[0.0, 1.0], [2.0, -1.0]])
    expected = (math.log1p(math.exp(-1)) + math.log1p(math.exp(-3))) / 2
    assert MatchingLoss()(logits, torch.tensor([True, False])).item() == pytest.approx(expected, rel=1e-6)
    assert MatchingLoss()(logits[:0], torch.zeros(0, dtype=torch.bool)).item() == 0


def test_uniformity_moves_no_point_that_is_alone():
    alone = torch.tensor([[1.0, 0.0]], requires_grad=True)
    UniformityLoss()(alone).backward()
    assert (alone.grad == 0).all()


def test_the_arguments_name_the_objectives_and_what_they_need():
    assert tuple(OBJECTIVES) == OBJECTIVE_NAMES
    assert {name for name, objective in OBJECTIVES.items() if objective.uses_semantics} == {*WITH_SEMANTICS}


def test_the_examples_print_these_numbers():
    results = doctest.testmod(losses)
    assert results.attempted and not results.failed
