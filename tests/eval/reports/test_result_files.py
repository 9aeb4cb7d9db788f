"""Result files side by side: which may be compared, and what is measured of them."""

import pytest

from scalar_retrieval.eval.reports.result_files import load_results
from tests.eval.reports.made_runs import make_run, save


def changed(run, **fields):
    """The run with other fields inside `retrieval`."""
    return run | {"retrieval": run["retrieval"] | fields}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            make_run("gram", gallery={"sha256": "other"}),
            "SHA-256 is c0ffee.* in .*0/results.* and other in .*1/",
        ),
        (make_run("gram", split="val"), "the split is test in"),
        (changed(make_run("gram"), mask_seed=3), "the mask seed is 0 in"),
        (
            make_run("gram") | {"two_stage": [{"depth": 20, "policy": "absent", "method": "gram", "rate": 0.0}]},
            "depth of the second",
        ),
        (make_run("scalar"), "both hold miniature with the label 'scalar' and the seed 50"),
        (
            make_run("scalar", 51, method="gram"),
            "have the label 'scalar' but score with the method 'scalar' and 'gram'",
        ),
        (
            make_run("scalar", 51) | {"score": {"method": "scalar", "query_temperature": 0.2}},
            "temperature 0.1 and 0.2",
        ),
        ({"variant": "gram"}, "not a result of .*lacks .'label', 'seed'"),
        ([], "must hold a JSON object"),
    ],
)
def test_results_that_cannot_be_compared_are_refused_by_name(other, message, tmp_path):
    save(tmp_path, make_run("scalar"), other)
    with pytest.raises(ValueError, match=message):
        load_results([tmp_path])


def test_paths_without_results_are_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        load_results([tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="no results.json in"):
        load_results([tmp_path])


def test_the_same_file_given_twice_is_read_once(tmp_path):
    save(tmp_path, make_run("scalar"))
    found = load_results([tmp_path, tmp_path / "0" / "results" / "results.json"])
    assert list(found.values()) == [make_run("scalar")]
