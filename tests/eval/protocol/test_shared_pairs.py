"""Products that are shared by scores and masks give what each score gives alone."""

import gc
import weakref

import pytest
import torch

from eval.protocol.shared_pairs import SharedPairs
from modeling_scalar.scores_scalar import find_method, retrieval_scores
from tests.modeling_scalar.test_scores_scalar import FLOAT32, random_clips
from tests.scores import METHODS


@pytest.mark.parametrize("method", METHODS)
def test_shared_products_and_masks_change_no_score(method, monkeypatch):
    texts, modalities, mask = random_clips()
    heads = random_clips(seed=1)[1]
    monkeypatch.setattr("modeling_scalar.scores_scalar._TILE", (3, 5))
    left = mask.clone()
    left[mask.sum(1) == 3, 1] = False
    assert (left != mask).any()
    with torch.no_grad():
        pairs = SharedPairs(texts, modalities, mask, heads)
        for presence in (left, mask):
            expected = retrieval_scores(texts, modalities, presence, method=method, concat_embeds=heads)
            torch.testing.assert_close(pairs.masked(presence).scores(method), expected, **FLOAT32)
            assert torch.equal(expected[0] == float("-inf"), ~find_method(method).covers(presence))
        reverse = retrieval_scores(
            texts, modalities, mask, method=method, concat_embeds=heads, direction="video_to_text"
        )
        torch.testing.assert_close(pairs.with_options(direction="video_to_text").scores(method), reverse, **FLOAT32)
        assert torch.allclose(reverse, expected, atol=1e-6) == (method != "rank_fusion")


def test_what_scores_and_masks_share_changes_no_score():
    texts, modalities, mask = random_clips()
    with torch.no_grad():
        pairs = SharedPairs(texts, modalities, mask, direction="video_to_text")
        for presence in (mask, mask & torch.tensor([True, False, False]) | ~mask[:, :1] & mask):
            shown = pairs.masked(presence)
            for method in ("pmrl_raw", "pmrl", "rank_fusion"):
                expected = retrieval_scores(texts, modalities, presence, method=method, direction="video_to_text")
                torch.testing.assert_close(shown.scores(method), expected, **FLOAT32)


def test_pairs_are_freed_as_soon_as_nobody_reads_them():
    """Large products, and in training whole graphs, would otherwise wait for the collector of cycles."""
    gc.collect()
    gc.disable()
    try:
        pairs = SharedPairs(*random_clips())
        masked = pairs.masked(random_clips()[2]).with_options(direction="video_to_text")
        masked.scores("rank_fusion"), masked.scores("pmrl"), pairs.scores("gram_span")
        alive = weakref.ref(pairs), weakref.ref(masked)
        del pairs, masked
        assert [found() for found in alive] == [None, None]
    finally:
        gc.enable()
