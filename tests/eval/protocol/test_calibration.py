"""What is fitted, on whom, and whether the reported gain is real: on made embeddings with and without a gap."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.eval.protocol import calibration
from scalar_retrieval.eval.protocol.calibration import Likelihood, calibrate_embeddings, fit
from scalar_retrieval.eval.protocol.folds import groups_of
from scalar_retrieval.eval.protocol.statistics import paired_bootstrap
from scalar_retrieval.modeling_scalar import MODALITIES
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS, retrieval_scores

BEFORE = {"method": "scalar", "query_temperature": 0.1}


def made(gap=0.0, num_clips=90, captions_each=1, dim=48, seed=0):
    """
    Clips that say something in each modality that they have, and captions about some of it.

    A gap is a direction of its own that is added to the vectors of each modality, and to texts, before they are
    normalised: the texts' is that of the video for the most part, so that the cosines of video lie above the others.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    facts = normalize(draw(num_clips, 3, dim), dim=-1)
    modalities = normalize(facts + 0.4 * draw(num_clips, 3, dim) / dim**0.5, dim=-1)
    mask = torch.rand(num_clips, 3, generator=generator) >= 0.35
    mask[torch.arange(num_clips), torch.randint(3, (num_clips,), generator=generator)] = True
    rows = torch.arange(num_clips).repeat_interleave(captions_each)
    about = (torch.rand(len(rows), 3, generator=generator) < 0.6) & mask[rows]
    about = torch.where(about.any(1, keepdim=True), about, mask[rows])
    texts = normalize((facts[rows] * about[..., None]).sum(1) + 1.35 * draw(len(rows), dim) / dim**0.5, dim=-1)
    ways = normalize(draw(3, dim), dim=-1)
    modalities = normalize(modalities + gap * ways, dim=-1)
    texts = normalize(texts + gap * normalize(0.9 * ways[0] + 0.1 * ways[1], dim=-1), dim=-1)
    clips = [f"clip{row}" for row in range(num_clips)]
    queries = [f"query{row}" for row in range(len(rows))]
    pairs = torch.stack([torch.arange(len(rows)), rows], dim=1)
    vectors = (modalities * mask[..., None]).float()
    return Embeddings(texts.float(), vectors, mask, pairs, clips, queries, queries, MODALITIES)


@pytest.mark.parametrize("scale_offset", [False, True])
def test_without_a_gap_calibration_changes_nothing_beyond_noise(scale_offset):
    found = calibrate_embeddings(made(num_clips=80, seed=3), BEFORE, scale_offset, num_folds=2)
    assert not found.is_better
    for measure in found.measures.values():
        assert measure["low"] <= 0 <= measure["high"]


def test_what_is_minimised_is_the_likelihood_of_the_described_clip():
    embeddings = made(num_clips=7, captions_each=2)
    embeddings.pairs = torch.cat([embeddings.pairs, torch.tensor([[0, 5]])])  # a query of two clips
    numbers = torch.tensor([math.log(0.2), math.log(0.07), 0.3, -0.2, 0.1, 0.05, -0.1, 0.2], dtype=torch.float64)
    scale, offset = numbers[2:5].exp().tolist(), numbers[5:].tolist()
    scores = retrieval_scores(
        embeddings.text_embeds.double(),
        embeddings.modality_embeds.double(),
        embeddings.modality_mask,
        query_temperature=0.2,
        modality_scale=scale,
        modality_offset=offset,
    ).tolist()
    total = 0.0
    for query, line in enumerate(scores):
        described = [clip for asked, clip in embeddings.pairs.tolist() if asked == query]
        powers = [math.exp(score / 0.07) for score in line]
        total -= math.log(sum(powers[clip] for clip in described) / sum(powers)) / 14 / 2
    for clip in range(7):
        describing = [query for query, described in embeddings.pairs.tolist() if described == clip]
        powers = [math.exp(line[clip] / 0.07) for line in scores]
        total -= math.log(sum(powers[query] for query in describing) / sum(powers)) / 7 / 2
    prior = (
        ((math.log(0.2) - math.log(0.1)) / 3) ** 2
        + ((math.log(0.07) - math.log(0.05)) / 3) ** 2
        + (0.09 + 0.04 + 0.01)
        + (0.0025 + 0.01 + 0.04) / 0.25
    )
    assert Likelihood(embeddings, {})(numbers).item() == pytest.approx(total + prior / 2 / 14, rel=1e-9)
    # and nothing near the fit is more likely
    fitted = fit(embeddings, BEFORE)
    likelihood = Likelihood(embeddings, {})
    tau = math.log(fitted["query_temperature"])

    def best(log_tau):  # over the contrastive temperature
        grid = torch.arange(-6, 1, 0.05, dtype=torch.float64)
        return min(likelihood(torch.stack([torch.tensor(log_tau, dtype=torch.float64), other])) for other in grid)

    assert all(best(tau) < best(tau + step) + 1e-4 for step in (-2, -0.5, 0.5, 2))


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
    values = {name: {way: np.zeros(24) for way in DIRECTIONS} for name in ("before", "after")}
    for query, clip in embeddings.pairs.tolist():
        for name, options in (("before", found.before), ("after", found.folds[fold_of[clip]])):
            arguments = embeddings.text_embeds, embeddings.modality_embeds, embeddings.modality_mask
            scores = retrieval_scores(*arguments, **options)
            rank = 1 + (scores[query] > scores[query, clip]).sum().item()
            values[name]["text_to_video"][clip] += 100 / rank / 2
            rank = 1 + (scores[:, clip] > scores[query, clip]).sum().item()
            values[name]["video_to_text"][clip] = max(values[name]["video_to_text"][clip], 100 / rank)  # the best one
    for of_name in values.values():
        of_name[""] = (of_name["text_to_video"] + of_name["video_to_text"]) / 2
    for way in (*DIRECTIONS, ""):
        before, after = values["before"][way], values["after"][way]
        reported = found.measures[f"{way}_mean_reciprocal_rank".strip("_")]
        assert reported["before"] == pytest.approx(before.mean())
        expected = paired_bootstrap(after, before)
        assert {name: reported[name] for name in expected} == pytest.approx(expected)
    assert values["before"]["text_to_video"].mean() != pytest.approx(values["before"]["video_to_text"].mean())


def test_queries_that_share_clips_stay_in_one_group():
    embeddings = made(num_clips=6)
    embeddings.pairs = torch.tensor([[0, 0], [1, 0], [2, 1], [2, 2], [3, 2], [4, 4], [5, 4]])
    of_queries, of_clips = groups_of(embeddings)
    assert of_queries[0] == of_queries[1] == of_clips[0]
    assert of_queries[2] == of_queries[3] == of_clips[1] == of_clips[2] != of_queries[0]
    assert of_clips[3] == of_clips[5] == -1  # nothing describes them
    assert len(set(of_queries)) == 3


def test_what_no_clip_has_stays_neutral():
    embeddings = made(num_clips=30, gap=0.5)
    embeddings.modality_mask[:, 1] = False
    embeddings.modality_mask[:, 0] |= ~embeddings.modality_mask.any(1)
    embeddings.modality_embeds[:, 0] = normalize(torch.randn(30, 48, generator=torch.Generator().manual_seed(0)))
    fitted = fit(embeddings, BEFORE, scale_offset=True)
    assert fitted["modality_scale"][1] == pytest.approx(1, abs=1e-3)
    assert fitted["modality_offset"][1] == pytest.approx(0, abs=1e-3)
    assert fitted["modality_offset"][0] != pytest.approx(0, abs=1e-2)


def test_scale_and_offset_that_are_there_are_kept_or_replaced():
    embeddings = made(num_clips=20, gap=0.5)
    known = BEFORE | {"modality_scale": [1.0, 2.0, 3.0], "modality_offset": [0.1, 0.2, 0.3]}
    assert fit(embeddings, known) | {"query_temperature": 0} == {
        "query_temperature": 0,
        "modality_scale": [1.0, 2.0, 3.0],
        "modality_offset": [0.1, 0.2, 0.3],
    }
    replaced, new = (fit(embeddings, options, scale_offset=True) for options in (known, BEFORE))
    # from another temperature to start from, the same place but for where the search ends
    assert replaced["modality_scale"] == pytest.approx(new["modality_scale"], abs=0.05)
    assert replaced["modality_offset"] == pytest.approx(new["modality_offset"], abs=0.05)


def test_a_fit_of_many_clips_sees_some_and_the_ranks_all(monkeypatch):
    embeddings, seen = made(num_clips=40, captions_each=2), []
    whole = calibration.fit

    def spy(part, *arguments):
        seen.append((len(part.query_ids), len(part.clip_ids)))
        owners = {f"query{query}": f"clip{clip}" for query, clip in embeddings.pairs.tolist()}
        for query, clip in part.pairs.tolist():
            assert owners[part.query_ids[query]] == part.clip_ids[clip]
        return whole(part, *arguments)

    monkeypatch.setattr(calibration, "fit", spy)
    monkeypatch.setattr(calibration, "_AT_ONCE", 16)
    found = calibrate_embeddings(embeddings, BEFORE, num_folds=2)
    assert seen == [(16, 16)] * 3 and (found.num_queries, found.num_clips) == (80, 40)


def test_too_few_clips_are_refused():
    with pytest.raises(ValueError, match="at least 10 clips.*got 9"):
        calibrate_embeddings(made(num_clips=9), BEFORE)
