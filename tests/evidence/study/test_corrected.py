"""Volumes with numbers of a clip alone: the formula from its definition, and what is fitted."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from evidence.study.corrected import BASE, CORRECTED, corrected_ranks, corrected_scores
from scalar_retrieval.eval.protocol.first_stage import rank_pairs
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS, make_pairs
from tests.eval.protocol.test_calibration import made


def slow(texts, clips, mask, exponent, missing):
    """-(log d + a/2 log det G + b missing), from vectors that span a volume, pair by pair; without an exponent a,
    SCALAR's score at temperature 0.3 minus b missing."""
    scores = np.empty((len(texts), len(clips)))
    for column, (vectors, present) in enumerate(zip(clips, mask, strict=True)):
        own = vectors[present]
        half = math.log(np.linalg.det(own @ own.T)) / 2
        for row, text in enumerate(texts):
            if exponent is None:
                weights = np.exp(own @ text / 0.3)
                centroid = weights @ own
                scores[row, column] = text @ centroid / np.linalg.norm(centroid) - missing * (~present).sum()
                continue
            both = np.vstack([text, own])
            volume = math.sqrt(np.linalg.det(both @ both.T))
            scores[row, column] = -(math.log(volume) + exponent * half + missing * (~present).sum())
    return scores


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("method", CORRECTED)
def test_scores_are_those_of_the_definition(number, method):
    generator = torch.Generator().manual_seed(number)
    texts = normalize(torch.randn(3, 24, generator=generator, dtype=torch.float64), dim=-1)
    clips = normalize(torch.randn(15, number, 24, generator=generator, dtype=torch.float64), dim=-1)
    mask = torch.rand(15, number, generator=generator) < 0.6
    mask[:, 0] |= ~mask.any(dim=1)
    numbers = {"missing": 0.3} | ({"exponent": -0.7} if method == "gram_corrected" else {})
    found = corrected_scores(make_pairs(texts, clips, mask, query_temperature=0.3), method, **numbers)
    exponent = {"gram_corrected": -0.7, "span_corrected": -1.0, "scalar_corrected": None}[method]
    expected = slow(texts.numpy(), clips.numpy(), mask.numpy(), exponent, 0.3)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("method", CORRECTED)
def test_without_numbers_clips_rank_as_by_the_score_itself(method):
    embeddings = made(num_clips=40, dim=24)
    (expected,) = rank_pairs(embeddings, [embeddings.modality_mask], [BASE[method]], query_temperature=0.3)
    found = corrected_ranks(embeddings, method, query_temperature=0.3)
    for direction in DIRECTIONS:
        assert torch.equal(found[direction], expected[BASE[method]][direction])
