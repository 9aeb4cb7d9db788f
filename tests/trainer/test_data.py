"""The order of examples: the same on any number of processes, in any epoch that is run again."""

import pytest
import torch

from trainer.data import GlobalBatchSampler


def batches(num_processes=1, epoch=0, **options):
    options = {"num_examples": 23, "batch_size": 6, "seed": 1, "drop_last": True} | options
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
    assert batches(epoch=1) == orders[1]
    assert sorted(sum(batches(drop_last=False), [])) == list(range(23))


def test_no_process_is_left_with_nothing():
    """Of 13 examples in batches of 6 one is left, which two processes cannot share."""
    assert len(batches(2, num_examples=13, drop_last=False)) == 2
    assert len(batches(1, num_examples=13, drop_last=False)) == 3


def test_too_few_examples_are_refused():
    with pytest.raises(ValueError, match="per_device_train_batch_size"):
        GlobalBatchSampler(5, 6, seed=0)
    assert torch.tensor(list(GlobalBatchSampler(5, 6, seed=0, drop_last=False))).numel() == 5
