"""Result files under the names of the paper, and what is measured of them."""

import pytest

from evidence.reports.label_tables import changes, first_stage
from evidence.reports.results import label_name, load_results
from tests.eval.reports.made_runs import make_run, save


def test_labels_and_benchmarks_stand_in_the_order_of_the_paper(tmp_path):
    runs = [make_run("mine"), make_run("gram"), make_run("scalar"), make_run("another")]
    runs += [make_run("mine", benchmark=name) for name in ("zoo", "vatex", "msrvtt")]
    found = load_results([save(tmp_path, *runs)])
    assert list(found.runs) == ["msrvtt", "vatex", "miniature", "zoo"]
    assert list(found.runs["miniature"]) == ["scalar", "gram", "another", "mine"]
    assert (label_name("gram"), label_name("mine")) == ("GRAM", "mine")


def test_baseline_and_reference_are_found_or_chosen(tmp_path):
    save(tmp_path, make_run("SCALAR"), make_run("volume", method="gram"), make_run("mine"))
    found = load_results([tmp_path])
    assert (found.reference, found.baseline) == ("scalar", "volume")
    found = load_results([tmp_path], baseline="SCALAR", reference="volume")
    assert (found.reference, found.baseline) == ("volume", "scalar")
    with pytest.raises(ValueError, match="baseline 'clip' is not among the labels"):
        load_results([tmp_path], baseline="clip")


def test_the_papers_name_of_a_label_or_benchmark_and_its_key_are_one(tmp_path):
    runs = [make_run("SCALAR", 50, benchmark="MSR-VTT"), make_run("scalar", 51, benchmark="msrvtt")]
    found = load_results([save(tmp_path, *runs)])
    assert {name: {label: list(seeds) for label, seeds in labels.items()} for name, labels in found.runs.items()} == {
        "msrvtt": {"scalar": [50, 51]}
    }


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ({50: 3.0, 51: 5.0}, {51: 1.0, 52: 9.0}, [4.0]),
        ({50: 3.0, 51: 5.0}, {None: 1.0}, [2.0, 4.0]),
        ({None: 1.0}, {50: 3.0, 51: 5.0}, [-2.0, -4.0]),
        ({50: 3.0, 51: 5.0}, {60: 1.0, 61: 2.0}, [2.5]),
        ({}, {50: 1.0}, []),
    ],
)
def test_changes_are_seed_by_seed_where_seeds_are_shared(ours, theirs, expected):
    assert changes(ours, theirs) == expected


def test_a_measure_that_was_not_taken_is_none():
    run = make_run("scalar", rates=(0.5,))
    assert first_stage()(run) is None and first_stage(rate=0.5)(run) == 20.0
    assert first_stage(rate=0.5)(run, "concat_head") is None
