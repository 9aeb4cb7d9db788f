"""Below which score nothing matches: fitted as it is defined, one-sided, and never where scores tell nothing."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from scalar_retrieval.eval.protocol.folds import groups_of
from scalar_retrieval.eval.protocol.least_score import (
    best_scores,
    fit_least_score,
    format_least_score,
)
from scalar_retrieval.eval.protocol.statistics import paired_bootstrap
from scalar_retrieval.gallery.own_queries import least_score_of
from tests.eval.slow import make_embeddings
from tests.modeling_scalar.test_scores_scalar import loop

OPTIONS = {"query_temperature": 0.2, "modality_scale": [1.0, 1.5, 0.5], "modality_offset": [0.1, 0.0, -0.2]}


def made(num_clips=60, captions_each=2, seed=0):
    """Captions near the sum of what their clips have, two of them of a second clip, and ten clips without captions."""
    embeddings = make_embeddings(num_clips, captions_each, dim=64, seed=seed, undescribed=10)
    about = embeddings.modality_embeds.sum(1)[embeddings.pairs[:, 1]]
    noise = torch.randn(about.shape, generator=torch.Generator().manual_seed(seed + 1)) / 64**0.5
    embeddings.text_embeds = normalize(about + 0.7 * noise, dim=-1)
    embeddings.pairs = torch.cat([embeddings.pairs, torch.tensor([[0, 3], [7, num_clips - 1]])])
    return embeddings


def by_loops(embeddings, options):
    """The best score of each query among all clips, and among those that it does not describe."""
    options = {"temperature": options["query_temperature"]} | {k: v for k, v in options.items() if "modality" in k}
    scores, _ = loop(embeddings.text_embeds, embeddings.modality_embeds, embeddings.modality_mask, **options)
    others = scores.clone()
    others[tuple(embeddings.pairs.T)] = -math.inf
    return scores.amax(1).numpy(), others.amax(1).numpy()


def by_definition(best, groups):
    """The highest of the scores with no more than 0.05 (G + 1) - 1 groups below it, each query a part of its group."""
    names = sorted(set(groups))
    found = -math.inf
    for candidate in best:
        below = sum(np.mean([best[row] < candidate for row in np.flatnonzero(groups == name)]) for name in names)
        if below <= 0.05 * (len(names) + 1) - 1 + 1e-9:
            found = max(found, candidate)
    return found


def test_the_least_score_and_what_it_tells_are_those_of_the_definition(monkeypatch):
    monkeypatch.setattr("scalar_retrieval.eval.protocol.least_score._AT_ONCE", 7 * 60)  # in parts
    embeddings, others = made(), OPTIONS | {"query_temperature": 0.05}
    embeddings.modality_mask[4] = False  # nothing of a described clip can be read
    chosen = [OPTIONS, others]
    found = fit_least_score(embeddings, OPTIONS, chosen)
    groups, _ = groups_of(embeddings)
    names = np.random.default_rng(0).permutation(np.unique(groups)).tolist()
    folds = np.array([names.index(group) % 2 for group in groups])
    reported = np.zeros((2, len(groups)))
    for fold, options in enumerate(chosen):
        scores = by_loops(embeddings, options)
        for kind, expected in enumerate(best_scores(embeddings, options)):
            np.testing.assert_allclose(expected, scores[kind], atol=1e-12)
        limit = by_definition(scores[0][folds != fold], groups[folds != fold])
        for kind in (0, 1):
            reported[kind, folds == fold] = scores[kind][folds == fold] < limit
    answered, unanswered = ([100 * np.mean(line[groups == name]) for name in np.unique(groups)] for line in reported)
    assert found.score == pytest.approx(by_definition(by_loops(embeddings, OPTIONS)[0], groups), rel=1e-7)
    assert (found.answered, found.unanswered) == pytest.approx((np.mean(answered), np.mean(unanswered)))
    expected = paired_bootstrap(unanswered, answered)
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected)
    assert found.is_certain and found.unanswered > 30 and found.num_clips == 60


def test_of_less_than_nineteen_clips_nothing_can_be_reported():
    assert least_score_of(np.arange(18.0), np.arange(18)) == -math.inf
    assert least_score_of(np.arange(19.0), np.arange(19)) == 0.0
    found = fit_least_score(made(num_clips=28, captions_each=1), OPTIONS, [OPTIONS] * 2)
    assert found.score is None and not found.is_certain


def test_scores_that_tell_nothing_make_no_claim():
    embeddings = made(num_clips=100, captions_each=1)
    embeddings.text_embeds = normalize(torch.randn(90, 64, generator=torch.Generator().manual_seed(1)), dim=-1)
    found = fit_least_score(embeddings, OPTIONS, [OPTIONS] * 5)
    assert found.score is not None and not found.is_certain
    assert "The interval includes zero" in format_least_score(found)[-1]
