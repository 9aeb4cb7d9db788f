"""The arithmetic of the paper's tables, and its published values beside them."""

import pytest

from evidence.reports import paper, paper_tables
from evidence.reports.results import load_results
from tests.eval.reports.made_runs import cells, make_run, save


def test_missing_modalities_are_compared_seed_by_seed(results):
    table = paper_tables.missing_table(results)
    # At 90 % three seeds 20, 22 - 4, 24, and two 10 - 8, 16 - 8; the margin has the seeds 50 and 52 alone.
    assert cells(table, "SCALAR") == ["22.0 ± 2.0", "21.7 ± 2.1", "21.3 ± 2.3", "21.0 ± 2.6", "20.7 ± 3.1"]
    margin = ["+9.0 ± 1.4", "+11.0 ± 1.4", "+13.0 ± 1.4", "+15.0 ± 1.4", "+17.0 ± 1.4"]
    assert cells(table, "SCALAR − GRAM") == margin
    assert [row[2] for row in table.rows if row[1] == "SCALAR − GRAM"] == ["2"]
    # (45.2 + 34.3 + 34.4 + 81.7 + 27.1) / 5 and (38.7 + 28.2 + 31.0 + 75.6 + 22.9) / 5
    assert cells(table, "paper, mean of 5: SCALAR")[0] == "44.5"
    assert cells(table, "paper, mean of 5: SCALAR − GRAM")[0] == "+5.3"


def test_seeds_have_t_intervals_and_single_runs_none(tmp_path):
    runs = [make_run("scalar", seed, joint, benchmark="vatex") for seed, joint in ((1, 20.0), (2, 22.0), (3, 24.0))]
    found = load_results([save(tmp_path, *runs, make_run("gram", None, benchmark="vatex", method="gram"))])
    table = paper_tables.seeds_table(found)
    # 22 ± 4.3027 * 2 / sqrt(3)
    assert cells(table, "SCALAR")[:2] == ["22.0 ± 2.0", "[17.0, 27.0]"]
    assert cells(table, "GRAM") == ["20.0", "", "30.0", ""]
    assert cells(table, "paper: SCALAR") == ["–", "", "90.6 ± 0.1", "[90.3, 90.9]"]


def as_published(benchmark, label, method, recalls, best):
    run = make_run(label, None, method=method, benchmark=benchmark)
    for entry, recall in zip(run["retrieval"]["rates"], recalls, strict=True):
        entry["methods"][method]["text_to_video_recall_at_1"] = recall
    first = run["retrieval"]["rates"][0]
    first["best_pathway"]["text_to_video_recall_at_1"] = best
    first["aggregation_gain"][method] = round(recalls[0] - best, 1)
    return run


@pytest.fixture
def papers_runs(tmp_path):
    """Runs that measured what the paper prints."""
    runs = []
    for benchmark, rows in paper.COMPONENTS.items():
        for label, (best, joint) in rows.items():
            method = {"scalar_uniform": "uniform"}.get(label, label)
            recalls = paper.MISSING[benchmark].get(label, (joint,) * 5)
            runs.append(as_published(benchmark, label, method, recalls, best))
    return load_results([save(tmp_path, *runs)])


def test_runs_with_the_papers_values_give_the_papers_rows(papers_runs):
    missing, gains = paper_tables.missing_table(papers_runs), paper_tables.gain_table(papers_runs)
    for benchmark in paper.MISSING:
        name = paper.BENCHMARKS[benchmark]
        for label in ("SCALAR", "GRAM", "SCALAR − GRAM"):
            assert cells(missing, label, name) == cells(missing, f"paper: {label}", name)
    for label in ("SCALAR", "GRAM", "PMRL", "HyperGRAM", "SCALAR, uniform weights"):
        assert cells(gains, label) == cells(gains, f"paper: {label}")
    assert cells(gains, "HyperGRAM") == ["-3.4", "-0.1", "-2.0", "+0.0", "–"]


def test_sign_tests_give_the_papers_p_values(papers_runs):
    rows = {(row[0], row[1]): [str(cell) for cell in row[2:]] for row in paper_tables.sign_table(papers_runs).rows}
    assert rows["SCALAR above GRAM", "rates and benchmarks"] == ["25", "0", "0", "3e-08"]
    assert rows["SCALAR above GRAM", "benchmarks"] == ["5", "0", "0", "0.031"]
    assert rows["negative gain: GRAM, PMRL, HyperGRAM", "labels and benchmarks"] == ["12", "0", "2", "0.0065"]
