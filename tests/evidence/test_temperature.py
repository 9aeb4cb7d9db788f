"""The temperature that suits a backbone."""

import re

import numpy as np
import pytest
import torch

from evidence.temperature import RATIO, spread


def test_the_spread_is_that_of_unmatched_pairs_that_have_a_score():
    draw = np.random.default_rng(0)
    scores, is_match = draw.normal(0.1, 0.2, (7, 9)), draw.random((7, 9)) < 0.2
    scores[:, 4] = -np.inf
    kept = [scores[q, v] for q in range(7) for v in range(9) if not is_match[q, v] and np.isfinite(scores[q, v])]
    mean = sum(kept) / len(kept)
    expected = (sum((value - mean) ** 2 for value in kept) / (len(kept) - 1)) ** 0.5
    assert spread(torch.tensor(scores), torch.tensor(is_match)) == pytest.approx(expected, rel=1e-12)


def test_the_command_suggests_a_temperature_for_the_score_that_is_asked_for(commands, tiny_run, tmp_path):
    data = ("--model", tiny_run.folder / "model", "--root", tiny_run.folder / "data")
    found = []
    for score in (("--device", "cpu"), ("--aggregation", "gram")):
        ended = commands.run("-m", "evidence", "temperature", *data, *score, timeout=60)
        assert ended.code == 0, ended.stderr
        assert " parameters in float32, " in ended.stderr
        numbers = re.search(r"unmatched pairs: ([\d.]+); temperature: ([\d.]+)", ended.stdout).groups()
        found.append(tuple(map(float, numbers)))
        assert found[-1][1] == pytest.approx(RATIO * found[-1][0], abs=0.05 * found[-1][1] + 1e-3)
    assert found[0] != found[1]
