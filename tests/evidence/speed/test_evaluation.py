"""The measurements of scoring and evaluation run at a tiny size; they check public code against our scores."""

import evidence.speed.evaluation as evaluation
from evidence.speed.settings import EvaluationConfig
from tests.scores import METHODS


def test_every_score_has_a_row(capsys):
    evaluation.main(EvaluationConfig(sizes=(20,), dim=16, rounds=3))  # a median, which no slow moment decides
    cells = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = {name: numbers for name, *numbers in filter(None, cells) if name in METHODS}
    assert set(rows) == set(METHODS)
    for name, numbers in rows.items():
        assert len(numbers) == (4 if name in evaluation.PUBLIC else 2) and float(numbers[0]) > 0
