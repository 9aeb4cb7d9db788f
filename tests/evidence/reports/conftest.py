"""Three labels over their seeds, as the paper's tables read them."""

import pytest

from evidence.reports.results import load_results
from tests.eval.reports.made_runs import save, three_labels


@pytest.fixture
def results(tmp_path):
    return load_results([save(tmp_path / "runs", *three_labels())], paper_mean=True)
