"""Volumes with numbers of a clip alone: the formula from its definition, and what is fitted."""

import numpy as np
import pytest
import torch

from evidence.study.corrected import BASE, CORRECTED, corrected_ranks, corrected_scores
from scalar_retrieval.eval.protocol.first_stage import rank_pairs
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS, make_pairs
from tests.eval.slow import make_embeddings


def slow(text, own, exponent):
    """-(log d + a/2 log det G) of one pair, from vectors that span a volume; without an exponent a, SCALAR's score."""
    if exponent is None:
        centroid = np.exp(own @ text / 0.3) @ own
        return text @ centroid / np.linalg.norm(centroid)
    both = np.vstack([text, own])
    return -(np.linalg.slogdet(both @ both.T)[1] + exponent * np.linalg.slogdet(own @ own.T)[1]) / 2


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("method", CORRECTED)
def test_scores_are_those_of_the_definition(number, method):
    embeddings = make_embeddings(15, 1, "abcd"[:number])
    texts, clips, mask = embeddings.text_embeds.double(), embeddings.modality_embeds.double(), embeddings.modality_mask
    numbers = {"missing": 0.3} | ({"exponent": -0.7} if method == "gram_corrected" else {})
    found = corrected_scores(make_pairs(texts, clips, mask, query_temperature=0.3), method, **numbers)
    exponent = {"gram_corrected": -0.7, "span_corrected": -1.0, "scalar_corrected": None}[method]
    expected = np.empty((15, 15))
    for row, text in enumerate(texts.numpy()):
        for column, (vectors, present) in enumerate(zip(clips.numpy(), mask.numpy(), strict=True)):
            expected[row, column] = slow(text, vectors[present], exponent) - 0.3 * (~present).sum()
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("method", CORRECTED)
def test_without_numbers_clips_rank_as_by_the_score_itself(method):
    embeddings = make_embeddings()
    (expected,) = rank_pairs(embeddings, [embeddings.modality_mask], [BASE[method]], query_temperature=0.3)
    found = corrected_ranks(embeddings, method, query_temperature=0.3)
    for direction in DIRECTIONS:
        assert torch.equal(found[direction], expected[BASE[method]][direction])
