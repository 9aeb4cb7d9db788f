"""The measurements of scoring and evaluation run at tiny sizes; what they compute, not how fast, is tested."""

import pytest
import torch

import evidence.speed.evaluation as evaluation
from evidence.speed.settings import EvaluationConfig
from scalar_retrieval.modeling_scalar import MODALITIES
from scalar_retrieval.modeling_scalar.scores_scalar import retrieval_scores
from tests.scores import METHODS


def complete(size):
    generator = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(size, 4, 16, generator=generator), dim=-1)
    return vectors[:, 0], vectors[:, 1:]


@pytest.mark.parametrize("name", evaluation.PUBLIC)
def test_the_ways_of_public_code_are_the_same_scores(name, monkeypatch):
    texts, clips = complete(9)
    monkeypatch.setattr("torch.Tensor.split", _split_small(torch.Tensor.split))
    scores = evaluation.PUBLIC[name](texts, clips)
    mask = torch.ones(9, 3, dtype=torch.bool)
    expected = retrieval_scores(texts, clips, mask, name, modalities=MODALITIES)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)
    assert scores.std() > 1e-3


def _split_small(split):
    return lambda tensor, size, dim=0: split(tensor, min(size, 4) if isinstance(size, int) else size, dim)


def test_every_score_has_a_row(capsys):
    evaluation.main(EvaluationConfig(sizes=(20,), dim=16, rounds=3))  # a median, which no slow moment decides
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.split() and line.split()[0] in METHODS}
    assert set(rows) == set(METHODS)
    for name, cells in rows.items():
        assert len(cells) == (4 if name in evaluation.PUBLIC else 2)
        assert all(float(cell) > 0 for cell in cells[:2])
    assert f"{len(METHODS)} scores x 5 rates x 2 directions" in lines[-1]
