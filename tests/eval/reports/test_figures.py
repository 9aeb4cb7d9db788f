"""Figures are drawn for any number of rates, panels and lines."""

import pytest

from eval.reports.figures import plot_gain, plot_results
from tests.eval.reports.made_runs import RATES, make_run


def test_gains_are_drawn_for_any_number_of_panels_and_lines(tmp_path):
    lines = {f"label {i}": {0.0: [1.0 + i, 2.0 + i], 0.9: [0.5, 0.6]} for i in range(16)}
    plot_gain({f"benchmark {i}": lines for i in range(2)}, tmp_path / "gain.png")
    assert (tmp_path / "gain.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("rates", [(0.0,), RATES])
def test_scores_are_drawn_for_any_number_of_rates(rates, tmp_path):
    plot_results(make_run("scalar", rates=rates), tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
