"""Result files under the names of the paper, and what is measured of them."""

import pytest

from evidence.reports.results import load_results
from tests.eval.reports.made_runs import make_run, save


def test_baseline_and_reference_are_found_or_chosen(tmp_path):
    save(tmp_path, make_run("SCALAR"), make_run("volume", method="gram"))
    found = load_results([tmp_path])
    assert (found.reference, found.baseline) == ("scalar", "volume")
    found = load_results([tmp_path], baseline="SCALAR", reference="volume")
    assert (found.reference, found.baseline) == ("volume", "scalar")
    with pytest.raises(ValueError, match="baseline 'clip' is not among the labels"):
        load_results([tmp_path], baseline="clip")
