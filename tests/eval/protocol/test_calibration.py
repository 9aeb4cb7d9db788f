"""What is fitted, on whom, and whether the reported gain is real: on made embeddings with and without a gap."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from scalar_retrieval.eval.protocol import calibration
from scalar_retrieval.eval.protocol.calibration import Likelihood, calibrate_embeddings, fit
from scalar_retrieval.eval.protocol.folds import groups_of
from scalar_retrieval.eval.protocol.statistics import paired_bootstrap
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS, retrieval_scores
from tests.eval.slow import make_embeddings

BEFORE = {"method": "scalar", "query_temperature": 0.1}


def made(gap=0.0, num_clips=90, captions_each=1, dim=48, seed=0):
    """
    Captions of clips, each near one of the modalities that its clip has.

    A gap is a direction of its own that is added to the vectors of each modality, and to texts, before they are
    normalised: the texts' is that of the video for the most part, so that the cosines of video lie above the others.
    """
    embeddings = make_embeddings(num_clips, captions_each, dim=dim, seed=seed, noise=1.35)
    ways = normalize(torch.randn(3, dim, generator=torch.Generator().manual_seed(seed)), dim=-1)
    there = embeddings.modality_mask[..., None]
    embeddings.modality_embeds = normalize(embeddings.modality_embeds + gap * ways, dim=-1) * there
    texts = embeddings.text_embeds + gap * normalize(0.9 * ways[0] + 0.1 * ways[1], dim=-1)
    embeddings.text_embeds = normalize(texts, dim=-1)
    return embeddings


@pytest.mark.parametrize("scale_offset", [False, True])
def test_from_what_was_fitted_nothing_is_gained(scale_offset):
    embeddings = made(num_clips=80, seed=3)
    found = calibrate_embeddings(embeddings, fit(embeddings, BEFORE, scale_offset), scale_offset, num_folds=2)
    assert not found.is_better
    assert all(measure["low"] <= 0 for measure in found.measures.values())


def test_what_is_minimised_is_the_likelihood_of_the_described_clip():
    embeddings = made(num_clips=7, captions_each=2)
    embeddings.pairs = torch.cat([embeddings.pairs, torch.tensor([[0, 5]])])  # a query of two clips
    numbers = torch.tensor([math.log(0.2), math.log(0.07), 0.3, -0.2, 0.1, 0.05, -0.1, 0.2], dtype=torch.float64)
    texts, clips = embeddings.text_embeds.double(), embeddings.modality_embeds.double()
    options = {"modality_scale": numbers[2:5].exp().tolist(), "modality_offset": numbers[5:].tolist()}
    scores = retrieval_scores(texts, clips, embeddings.modality_mask, query_temperature=0.2, **options)
    powers = (scores / 0.07).exp()
    own = torch.zeros_like(powers)
    own[tuple(embeddings.pairs.T)] = 1
    total = 0.0
    for axis in (0, 1):
        total -= ((own * powers).sum(axis) / powers.sum(axis)).log().mean().item() / 2
    prior = (
        ((math.log(0.2) - math.log(0.1)) / 3) ** 2
        + ((math.log(0.07) - math.log(0.05)) / 3) ** 2
        + (0.09 + 0.04 + 0.01)
        + (0.0025 + 0.01 + 0.04) / 0.25
    )
    likelihood = Likelihood(embeddings, {})
    assert likelihood(numbers).item() == pytest.approx(total + prior / 2 / 14, rel=1e-9)


def test_the_fit_without_a_fold_knows_nothing_of_it():
    embeddings = made(num_clips=24, captions_each=2, gap=0.7)
    found = calibrate_embeddings(embeddings, BEFORE, num_folds=3)
    of_queries, of_clips = groups_of(embeddings)
    shuffled = np.random.default_rng(0).permutation(np.unique(of_queries))
    mine = shuffled[np.arange(24) % 3 == 1]  # the clips of the second fold
    changed = replace(embeddings, text_embeds=embeddings.text_embeds.clone())
    changed.modality_embeds = embeddings.modality_embeds.clone()
    changed.text_embeds[np.isin(of_queries, mine)] = normalize(torch.ones(48), dim=-1)
    changed.modality_embeds[np.isin(of_clips, mine)] = normalize(torch.ones(48), dim=-1)
    other = calibrate_embeddings(changed, BEFORE, num_folds=3)
    assert other.folds[1] == found.folds[1]
    assert other.folds[0] != found.folds[0] and other.folds[2] != found.folds[2]


def test_the_gain_is_that_of_held_out_queries_drawn_by_clip():
    embeddings = made(num_clips=24, captions_each=2, gap=0.5)
    found = calibrate_embeddings(embeddings, BEFORE, num_folds=3)
    folds = np.random.default_rng(0).permutation(24)
    fold_of = {int(clip): place % 3 for place, clip in enumerate(folds)}  # a group here is a clip
    reciprocal = np.zeros((2, 2, 24))  # before and after, by direction and clip
    for query, clip in embeddings.pairs.tolist():
        for when, options in enumerate((found.before, found.folds[fold_of[clip]])):
            arguments = embeddings.text_embeds, embeddings.modality_embeds, embeddings.modality_mask
            scores = retrieval_scores(*arguments, **options)
            own = scores[query, clip]
            reciprocal[when, 0, clip] += 50 / (1 + (scores[query] > own).sum().item())
            best = 100 / (1 + (scores[:, clip] > own).sum().item())  # the best of the clip's captions counts
            reciprocal[when, 1, clip] = max(reciprocal[when, 1, clip], best)
    ways = dict(zip(DIRECTIONS, range(2), strict=True)) | {"": slice(None)}
    for name, way in ways.items():
        before, after = reciprocal[:, way].reshape(2, -1, 24).mean(1)
        reported = found.measures[f"{name}_mean_reciprocal_rank".strip("_")]
        expected = paired_bootstrap(after, before) | {"before": before.mean(), "after": after.mean()}
        assert {key: reported[key] for key in expected} == pytest.approx(expected)


def test_queries_that_share_clips_stay_in_one_group():
    embeddings = made(num_clips=6)
    embeddings.pairs = torch.tensor([[0, 0], [1, 0], [2, 1], [2, 2], [3, 2], [4, 4], [5, 4]])
    of_queries, of_clips = (groups.tolist() for groups in groups_of(embeddings))
    first, second, third = of_queries[0], of_queries[2], of_queries[4]
    assert of_queries == [first, first, second, second, third, third] and len({first, second, third}) == 3
    assert of_clips == [first, second, second, -1, third, -1]  # nothing describes two of them


def test_what_no_clip_has_stays_neutral():
    embeddings = made(num_clips=30, gap=0.5)
    embeddings.modality_mask[:, 1] = False
    embeddings.modality_mask[:, 0] = True
    embeddings.modality_embeds[:, 0] = normalize(torch.randn(30, 48, generator=torch.Generator().manual_seed(0)))
    fitted = fit(embeddings, BEFORE, scale_offset=True)
    assert (fitted["modality_scale"][1], fitted["modality_offset"][1]) == pytest.approx((1, 0), abs=1e-3)
    assert fitted["modality_offset"][0] != pytest.approx(0, abs=1e-2)


def test_scale_and_offset_that_are_there_are_kept_or_replaced():
    embeddings = made(num_clips=20, gap=0.5)
    there = {"modality_scale": [1.0, 2.0, 3.0], "modality_offset": [0.1, 0.2, 0.3]}
    kept = fit(embeddings, BEFORE | there)
    assert kept == kept | there
    replaced, new = (fit(embeddings, options, scale_offset=True) for options in (BEFORE | there, BEFORE))
    # from another temperature to start from, the same place but for where the search ends
    for name in there:
        assert replaced[name] == pytest.approx(new[name], abs=0.05)


def test_a_fit_of_many_clips_sees_some_and_the_ranks_all(monkeypatch):
    embeddings, seen = made(num_clips=40, captions_each=2), []
    whole = calibration.fit

    def spy(part, *arguments):
        seen.append((len(part.query_ids), len(part.clip_ids)))
        return whole(part, *arguments)

    monkeypatch.setattr(calibration, "fit", spy)
    monkeypatch.setattr(calibration, "_AT_ONCE", 16)
    found = calibrate_embeddings(embeddings, BEFORE, num_folds=2)
    assert seen == [(16, 16)] * 3 and (found.num_queries, found.num_clips) == (80, 40)


def test_too_few_clips_are_refused():
    with pytest.raises(ValueError, match="at least 10 clips.*got 9"):
        calibrate_embeddings(made(num_clips=9), BEFORE)
