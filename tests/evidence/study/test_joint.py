"""The small joint encoder that is trained from scratch: what its clips show, and that its folder is a model."""

from collections import Counter

import pytest
import torch

from evidence.study.joint import draw_mixes


def test_half_of_the_draws_show_one_modality_and_the_others_any_mix_of_what_a_clip_has():
    present = torch.tensor([[True, False, True], [True, True, True], [False, True, False]])
    draws = [draw_mixes(present, torch.Generator().manual_seed(seed)) for seed in range(1400)]
    for row, (possible, num_alone) in enumerate(((3, 2), (7, 3), (1, 1))):
        counts = Counter(tuple(mix[row].tolist()) for mix in draws)
        assert len(counts) == possible and all(any(mix) for mix in counts)
        assert not any((torch.tensor(mix) & ~present[row]).any() for mix in counts)
        for mix, count in counts.items():
            share = 0.5 / possible + (0.5 / num_alone if sum(mix) == 1 else 0)
            assert count == pytest.approx(1400 * share, abs=4 * (1400 * share * (1 - share)) ** 0.5 + 1e-9)
