import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalar_retrieval.eval.protocol.missing import mask_modalities, masked_modality
from tests.eval.slow import slow_mask


def test_a_clip_is_masked_at_rates_above_its_own_number_and_not_at_it():
    digest = hashlib.md5(b"0video0", usedforsecurity=False).hexdigest()
    own = int(digest[:8], 16) / 2**32
    assert masked_modality("video0", own, 3) is None
    assert masked_modality("video0", own + 2**-32, 3) == int(digest[8:16], 16) % 3


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.tuples(st.text(max_size=5), st.lists(st.booleans(), min_size=4, max_size=4).filter(any)), max_size=9),
    st.sampled_from((0.0, 0.25, 0.5, 0.9, 1.0)),
    st.integers(0, 9),
)
def test_masks_follow_the_rule_of_the_papers_supplement_clip_by_clip(clips, rate, seed):
    names = [name for name, _ in clips]
    present = torch.tensor([mask for _, mask in clips], dtype=torch.bool).reshape(-1, 4)
    expected = [slow_mask(name, mask, rate, seed) for name, mask in clips]
    assert mask_modalities(names, present, rate, seed).tolist() == expected


@pytest.mark.parametrize("rate", [-0.1, 50, float("nan")])
def test_rate_outside_zero_to_one_is_refused(rate):
    with pytest.raises(ValueError, match="between 0 and 1"):
        mask_modalities([], torch.ones(0, 3, dtype=torch.bool), rate)
