"""The order of examples: the same on any number of processes, in any epoch that is run again."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalar_retrieval.trainer.data import GlobalBatchSampler


def batches(num_processes=1, epoch=0, num_examples=23, **options):
    options = {"clips": torch.arange(num_examples), "batch_size": 6, "seed": 1, "drop_last": True} | options
    shares = []
    for rank in range(num_processes):
        sampler = GlobalBatchSampler(**options, rank=rank, num_processes=num_processes)
        sampler.set_epoch(epoch)
        shares.append(list(sampler))
        assert len(shares[-1]) == len(sampler)
    return [sum(parts, []) for parts in zip(*shares, strict=True)]


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("num_processes", [2, 3, 4])
def test_processes_share_the_batches_of_one(num_processes, drop_last):
    one = batches(drop_last=drop_last)
    assert batches(num_processes, drop_last=drop_last) == one
    seen = sum(one, [])
    assert len(set(seen)) == len(seen) == (18 if drop_last else 23)


def test_every_epoch_and_seed_has_an_order_of_its_own():
    orders = [batches(), batches(epoch=1), batches(seed=2)]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_no_process_is_left_with_nothing():
    """Of 13 examples in batches of 6 one is left, which two processes cannot share."""
    assert len(batches(2, num_examples=13, drop_last=False)) == 2
    assert len(batches(1, num_examples=13, drop_last=False)) == 3
    with pytest.raises(ValueError, match="per_device_train_batch_size"):
        batches(num_examples=5)
    assert len(batches(num_examples=5, drop_last=False)[0]) == 5


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=12), st.integers(1, 9), st.integers(0, 2**32), st.booleans())
def test_a_batch_draws_each_clip_once_where_that_is_possible(captions, batch_size, seed, drop_last):
    """B clips for each of K batches are enough if the captions, at most K of a clip, fill them."""
    clips = torch.arange(len(captions)).repeat_interleave(torch.tensor(captions))
    clips = clips[torch.randperm(len(clips), generator=torch.Generator().manual_seed(seed))]
    batch_size = min(batch_size, len(clips))
    drawn = batches(clips=clips, batch_size=batch_size, seed=seed, drop_last=drop_last)
    examples = Counter(sum(drawn, []))
    full = len(clips) // batch_size
    assert max(examples.values()) == 1
    assert [len(batch) for batch in drawn[:full]] == [batch_size] * full
    assert drop_last or len(examples) == len(clips)
    if len(drawn) == full:
        repeats = any(len(set(clips[batch].tolist())) < batch_size for batch in drawn)
        assert repeats == (sum(min(number, full) for number in captions) < full * batch_size)
