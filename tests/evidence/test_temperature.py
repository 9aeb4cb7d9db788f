"""The temperature that suits a backbone."""

import re

import numpy as np
import pytest
import torch

from evidence.temperature import RATIO, spread, spread_of_model


def test_the_spread_is_that_of_unmatched_pairs_that_have_a_score():
    draw = np.random.default_rng(0)
    scores, is_match = draw.normal(0.1, 0.2, (7, 9)), draw.random((7, 9)) < 0.2
    scores[:, 4] = -np.inf
    expected = scores[~is_match & np.isfinite(scores)].std(ddof=1)
    assert spread(torch.tensor(scores), torch.tensor(is_match)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.e2e
def test_the_command_suggests_a_temperature_for_the_score_that_is_asked_for(commands, tiny_run):
    model, root = tiny_run.folder / "model", tiny_run.folder / "data"
    source = ["--model", model, "--root", root, "--aggregation", "gram"]
    ended = commands.run("-m", "evidence", "temperature", *source, timeout=60)
    assert ended.code == 0, ended.stderr
    found = re.search(r"unmatched pairs: ([\d.]+); temperature: ([\d.]+)", ended.stdout).groups()
    scalar, gram = (spread_of_model(model, root, "miniature", "train", 12, score) for score in (None, "gram"))
    assert found == (f"{gram:.3f}", f"{RATIO * gram:.2g}") and scalar != pytest.approx(gram, rel=0.1)
