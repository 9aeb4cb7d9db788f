"""Volumes with numbers of a clip alone: the formula from its definition, and what is fitted."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 4),
    st.floats(-2, 2),
    st.floats(-1, 1),
    st.sampled_from(sorted(CORRECTED)),
)
def test_scores_are_those_of_the_definition(seed, number, exponent, missing, method):
    generator = torch.Generator().manual_seed(seed)
    texts = normalize(torch.randn(3, 24, generator=generator, dtype=torch.float64), dim=-1)
    clips = normalize(torch.randn(4, number, 24, generator=generator, dtype=torch.float64), dim=-1)
    mask = torch.rand(4, number, generator=generator) < 0.6
    mask[torch.arange(4), torch.randint(number, (4,), generator=generator)] = True
    numbers = {"missing": missing}
    if method == "gram_corrected":
        numbers["exponent"] = exponent
    found = corrected_scores(make_pairs(texts, clips, mask, query_temperature=0.3), method, **numbers)
    exponents = {"gram_corrected": exponent, "span_corrected": -1.0, "scalar_corrected": None}
    expected = slow(texts.numpy(), clips.numpy(), mask.numpy(), exponents[method], missing)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("method", CORRECTED)
def test_without_numbers_clips_rank_as_by_the_score_itself(method):
    embeddings = made(num_clips=40, dim=24)
    (expected,) = rank_pairs(embeddings, [embeddings.modality_mask], [BASE[method]], query_temperature=0.3)
    found = corrected_ranks(embeddings, method, query_temperature=0.3)
    for direction in DIRECTIONS:
        assert torch.equal(found[direction], expected[BASE[method]][direction])
