"""The arithmetic of the paper's tables, and its published values beside them."""

import csv

import pytest

from evidence.reports import paper, paper_tables
from evidence.reports.paper_report import write_tables
from evidence.reports.results import load_results
from evidence.reports.tables import write_csv
from tests.eval.reports.made_runs import cells, make_run, save


def test_both_stages_stand_in_columns_of_their_own(results):
    table = paper_tables.retrieval_table(results)
    groups = [group for group, _ in table.columns]
    assert groups[3:] == [f"{s} {d}" for s in ("1-stage", "2-stage") for d in ("T→V", "V→T") for _ in range(2)]
    first = ["22.0 ± 2.0", "24.0 ± 2.0", "21.0 ± 2.0", "23.0 ± 2.0"]
    assert cells(table, "SCALAR") == [*first, "32.0 ± 2.6", "34.0 ± 2.6", "31.0 ± 2.6", "33.0 ± 2.6"]
    # 275.1 / 5 of Tables 1 and 2
    full = cells(table, "paper, mean of 5: SCALAR, full fine-tuning")
    assert full == ["–"] * 4 + ["55.0", "83.3", "–", "–"]


def test_missing_modalities_are_compared_seed_by_seed(results):
    table = paper_tables.missing_table(results)
    # At 90 % three seeds 20, 22 - 4, 24, and two 10 - 8, 16 - 8; the margin has the seeds 50 and 52 alone.
    assert cells(table, "SCALAR") == ["22.0 ± 2.0", "21.7 ± 2.1", "21.3 ± 2.3", "21.0 ± 2.6", "20.7 ± 3.1"]
    assert cells(table, "GRAM") == ["13.0 ± 4.2", "11.0 ± 4.2", "9.0 ± 4.2", "7.0 ± 4.2", "5.0 ± 4.2"]
    margin = ["+9.0 ± 1.4", "+11.0 ± 1.4", "+13.0 ± 1.4", "+15.0 ± 1.4", "+17.0 ± 1.4"]
    assert cells(table, "SCALAR − GRAM") == margin
    assert [row[2] for row in table.rows if row[1] == "SCALAR − GRAM"] == ["2"]
    assert "seed by seed" in table.note
    assert cells(table, "w/o masked training views − GRAM")[0] == "+8.0"
    # (45.2 + 34.3 + 34.4 + 81.7 + 27.1) / 5 and (38.7 + 28.2 + 31.0 + 75.6 + 22.9) / 5
    assert cells(table, "paper, mean of 5: SCALAR")[0] == "44.5"
    assert cells(table, "paper, mean of 5: SCALAR − GRAM")[0] == "+5.3"


def test_gains_are_those_of_the_score_a_label_was_trained_for(results):
    table = paper_tables.components_table(results)
    assert cells(table, "SCALAR") == ["audio", "15.3 ± 0.6", "22.0 ± 2.0", "+6.7 ± 2.1"]
    assert cells(table, "GRAM") == ["audio", "15.0 ± 0.0", "13.0 ± 4.2", "-2.0 ± 4.2"]
    # Four benchmarks: (42.5 + 32.1 + 36.3 + 78.0) / 4, (39.1 + 32.0 + 34.3 + 78.0) / 4
    assert cells(table, "paper, mean of 4: HyperGRAM") == ["", "47.2", "45.9", "-1.4"]
    table = paper_tables.gain_missing_table(results)
    assert cells(table, "GRAM") == ["-2.0 ± 4.2", "-3.0 ± 4.2", "-4.0 ± 4.2", "-5.0 ± 4.2", "-6.0 ± 4.2"]


def test_ablations_are_changes_of_the_same_seed(results):
    table = paper_tables.ablation_table(results)
    # Two-stage: -1 and 0. First stage: -2 and -4. Gains: 2 - 5 and 3 - 6. At 90 %: 0 - 9 and 7 - 6.
    row = ["30.0 ± 1.4", "-0.5 ± 0.7", "-3.0 ± 1.4", "-3.0 ± 0.0", "-4.0 ± 7.1"]
    assert cells(table, "w/o masked training views") == row
    assert cells(table, "SCALAR (reference)") == ["32.0 ± 2.6", "–", "–", "+6.7 ± 2.1", "+9.3 ± 3.5"]
    published = ["56.8", "-0.8", "–", "-6.5", "-7.1"]
    assert cells(table, "paper, mean of 5: w/o masked training views") == published
    assert not any("GRAM" in str(row[0]) for row in table.rows)


def test_two_stages_under_masks_keep_their_policies_apart(results):
    absent, zeros = (paper_tables.two_stage_missing_table(results, policy) for policy in ("absent", "zeros"))
    video = "5.0 ± 0.0"
    assert cells(absent, "SCALAR") == [f"{32 - step:.1f} ± 2.6" for step in range(5)] + [video]
    assert cells(zeros, "SCALAR") == [f"{31 - step:.1f} ± 2.6" for step in range(5)] + [video]
    assert cells(absent, "SCALAR − GRAM") == ["+2.5 ± 0.7"] * 5 + ["–"]
    # The paper transports zeros: (54.8 + 51.3 + 55.8 + 90.5 + 35.2) / 5, (32.1 + 23.2 + 23.7 + 58.5 + 10.2) / 5
    row = cells(zeros, "paper, mean of 5: SCALAR")
    assert (row[0], row[-1]) == ("57.5", "29.5")
    assert not any("paper" in str(row[1]) for row in absent.rows)


def test_the_ladder_says_how_many_clips_it_loses(results):
    table = paper_tables.ladder_table(results)
    assert cells(table, "SCALAR") == ["17.0 ± 2.0", "20.0 ± 2.0", "22.0 ± 2.0", "+5.0 ± 0.0"]
    assert "cannot be found: miniature V 5, miniature VA 2" in table.note
    # (41.2 + 81.2) / 2 and (45.2 + 81.7) / 2
    assert cells(table, "paper, mean of 2: SCALAR") == ["61.2", "62.0", "63.5", "+2.2"]


def test_classification_is_what_each_clip_ranks_and_stays_out_of_other_tables(tmp_path):
    run = make_run("scalar", benchmark="vggsound", task="classification", joint=40.0, best=30.0)
    found = load_results([save(tmp_path, run, make_run("gram", method="gram"))])
    table = paper_tables.classification_table(found.of_task("classification"))
    assert cells(table, "SCALAR") == ["39.0", "41.0", "4.0", "6.0", "29.0", "31.0", "–", "–", "37.0", "39.0"]
    assert cells(table, "paper: GRAM")[:6] == ["40.5", "77.3", "35.0", "68.4", "26.3", "66.4"]
    text = write_tables(found, tmp_path / "report")
    assert "VGGSound-5K" not in text[text.index("## Retrieval (") : text.index("## Classification")].split("\n\n")[1]


def test_seeds_have_t_intervals_and_single_runs_none(tmp_path):
    runs = [make_run("scalar", seed, joint, benchmark="vatex") for seed, joint in ((1, 20.0), (2, 22.0), (3, 24.0))]
    found = load_results([save(tmp_path, *runs, make_run("gram", None, benchmark="vatex", method="gram"))])
    table = paper_tables.seeds_table(found)
    # 22 ± 4.3027 * 2 / sqrt(3)
    assert cells(table, "SCALAR")[:2] == ["22.0 ± 2.0", "[17.0, 27.0]"]
    assert cells(table, "GRAM") == ["20.0", "", "30.0", ""]
    assert cells(table, "paper: SCALAR") == ["–", "", "90.6 ± 0.1", "[90.3, 90.9]"]
    assert cells(table, "paper: HyperGRAM") == ["–", "", "89.8", ""]
    write_csv(table, tmp_path / "seeds.csv")
    rows = {row["label"]: row for row in csv.DictReader((tmp_path / "seeds.csv").open(newline=""))}
    assert rows["SCALAR"]["first stage R@1 mean"] == "22.0" and rows["SCALAR"]["first stage R@1 mean sd"] == "2.0"
    published = [rows["paper: SCALAR"][f"two-stage R@1 {name}"] for name in ("mean", "mean sd", "95 % interval")]
    assert published == ["90.6", "0.1", "[90.3, 90.9]"]


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


def test_margins_that_cancel_over_seeds_are_ties(tmp_path):
    runs = [make_run("scalar", seed, 20 + change) for seed, change in ((1, 0.2), (2, -0.1), (3, -0.1))]
    runs += [make_run("gram", seed, 20.0, method="gram") for seed in (1, 2, 3)]
    (row,) = paper_tables.sign_table(load_results([save(tmp_path, *runs)])).rows
    assert [str(cell) for cell in row] == ["SCALAR above GRAM", "rates and benchmarks", "0", "5", "0", ""]
