import pytest
import torch

from eval.protocol.missing import mask_modalities, masked_modality

IDS = [f"video{i}" for i in range(4000)]


# MD5("0video0") = 9e27e8b7 3831d313 ...: u = 0x9e27e8b7 / 2**32 = 0.61779...; 0x3831d313 is 2 mod 3 and 1 mod 2.
# MD5("1video0") = 83a5aedd f55046e2 ...: u = 0x83a5aedd / 2**32 = 0.51424...; 0xf55046e2 is 0 mod 3.
@pytest.mark.parametrize(
    ("seed", "rate", "num_available", "expected"),
    [(0, 0.6177, 3, None), (0, 0.6178, 3, 2), (0, 0.6178, 2, 1), (1, 0.5142, 3, None), (1, 0.5143, 3, 0)],
)
def test_mask_of_a_clip_follows_its_digest(seed, rate, num_available, expected):
    assert masked_modality("video0", rate, num_available, seed) == expected


def test_masks_of_a_lower_rate_are_contained_in_those_of_a_higher_one():
    present = torch.ones(len(IDS), 3, dtype=torch.bool)
    masks = [mask_modalities(IDS, present, rate) for rate in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)]
    for lower, higher in zip(masks, masks[1:], strict=False):
        assert (higher <= lower).all() and not torch.equal(higher, lower)


@pytest.mark.parametrize("rate", [0.25, 0.5, 0.9])
def test_share_of_masked_clips_is_close_to_the_rate_and_spread_over_modalities(rate):
    lost = ~mask_modalities(IDS, torch.ones(len(IDS), 3, dtype=torch.bool), rate)
    assert (lost.sum(dim=1) <= 1).all()
    # Binomial standard deviation is below 0.008 with 4000 clips: 0.03 is almost four of them.
    assert lost.any(dim=1).float().mean().item() == pytest.approx(rate, abs=0.03)
    assert (lost.float().mean(dim=0) - rate / 3).abs().max() < 0.03


def test_mask_of_a_clip_does_not_depend_on_the_others():
    present = torch.rand(60, 3, generator=torch.Generator().manual_seed(0)) < 0.7
    together = mask_modalities(IDS[:60], present, 0.5)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    shuffled = mask_modalities([IDS[i] for i in order], present[order], 0.5)
    alone = torch.cat([mask_modalities([IDS[i]], present[i : i + 1], 0.5) for i in range(60)])
    assert not torch.equal(together, present)
    assert torch.equal(shuffled, together[order])
    assert torch.equal(alone, together)


def test_clip_with_one_modality_keeps_it_at_every_rate():
    present = torch.eye(3, dtype=torch.bool).repeat(20, 1)
    assert torch.equal(mask_modalities(IDS[:60], present, 1.0), present)


def test_only_available_modalities_are_masked():
    present = torch.tensor([[True, False, True]]).repeat(100, 1)
    masked = mask_modalities(IDS[:100], present, 1.0)
    assert (masked.sum(dim=1) == 1).all() and not masked[:, 1].any()
    assert masked[:, 0].any() and masked[:, 2].any()


@pytest.mark.parametrize("rate", [-0.1, 1.1, 50, float("nan")])
def test_rate_outside_zero_to_one_is_refused(rate):
    with pytest.raises(ValueError, match="between 0 and 1"):
        masked_modality("video0", rate, 3)
    with pytest.raises(ValueError, match="between 0 and 1"):
        mask_modalities([], torch.ones(0, 3, dtype=torch.bool), rate)
