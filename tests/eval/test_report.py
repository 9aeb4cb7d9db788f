"""Reports: what may be compared, the arithmetic of every table, and what is written."""

import csv
import json
import re

import pyarrow as pa
import pytest
from pyarrow.parquet import write_table
from typer.testing import CliRunner

from eval import paper, paper_tables, report, score_tables
from eval.__main__ import app
from eval.figures import plot_gain, plot_query_weights
from eval.report import format_table, load_results, plot_results, write_report
from eval.results import changes, first_stage, label_name
from eval.tables import Cell, Table, latex, markdown, write_csv
from modeling_scalar.aggregation_scalar import METHODS, method_title

RATES = paper.RATES


def make_figures(recall):
    names = ("recall_at_1", "recall_at_5", "recall_at_10", "mean_average_precision", "ndcg_at_10")
    figures = {name: recall + step for step, name in enumerate(names)} | {"median_rank": 7.0, "mean_rank": 9.0}
    directions = {"text_to_video": 0.0, "video_to_text": -1.0}
    return {f"{d}_{name}": value + shift for d, shift in directions.items() for name, value in figures.items()}


def make_run(label, seed=50, joint=20.0, best=15.0, two_stage=30.0, slope=0.0, method="scalar", **changes):
    """A result whose joint R@1 falls by `slope` per masking rate, and whose best pathway falls by 1."""
    rates = []
    for step, rate in enumerate(changes.pop("rates", RATES)):
        recalls = {method: joint - slope * step, "uniform": joint - 2 - step, "video": 5.0, "audio": best - step}
        rates.append(
            {
                "rate": rate,
                "num_masked_clips": 10 * step,
                "presence": {"video": 100, "audio": 90 - step, "subtitle": 80},
                "methods": {name: make_figures(r) | {"num_unscorable_clips": 10} for name, r in recalls.items()},
                "best_pathway": {"method": "audio", "text_to_video_recall_at_1": best - step},
                "aggregation_gain": {name: recalls[name] - (best - step) for name in (method, "uniform")},
                "mean_weight": {"video": 0.5, "audio": 0.3, "subtitle": 0.2},
                "decided": {"video": 70, "audio": 20, "subtitle": 10},
            }
        )
    ladder = [
        {"modalities": list(m), "num_unscorable_clips": lost, "text_to_video_recall_at_1": {method: joint - lost}}
        for m, lost in ((("video",), 5), (("video", "audio"), 2), (("video", "audio", "subtitle"), 0))
    ]
    reranked = [
        {"depth": 50, "policy": policy, "method": method, "rate": rate, "mask_seed": 0, "num_unread_pairs": 0}
        | make_figures(two_stage - step - (policy == "zeros"))
        for policy in ("absent", "zeros")
        for step, rate in enumerate(RATES)
    ]
    bounds = {"difference": 2.0, "low": 0.5, "high": 3.5, "confidence": 0.95}
    run = {
        "label": label,
        "seed": seed,
        "benchmark": "miniature",
        "split": "test",
        "task": "retrieval",
        "score": {"method": method, "query_temperature": 0.1},
        "retrieval": {
            "num_queries": 1000,
            "num_clips": 900,
            "num_pairs": 1000,
            "mask_seed": 0,
            "tie_rule": "against the method",
            "rates": rates,
            "ladder": ladder,
            "differences": [{"method": method, "baseline": "uniform"} | bounds],
        },
        "two_stage": reranked,
        "latent": None,
        "gallery": {"sha256": "c0ffee" * 10},
        "left_out": [],
        "problems": [],
    }
    return run | changes


def save(folder, *runs):
    for place, run in enumerate(runs):
        path = folder / f"{place}" / "results"
        path.mkdir(exist_ok=True, parents=True)
        (path / "results.json").write_text(json.dumps(run))
    return folder


def three_labels():
    return [
        make_run("scalar", 50, joint=20.0, best=15.0, two_stage=30.0),
        make_run("scalar", 51, joint=22.0, best=16.0, two_stage=31.0, slope=1.0),
        make_run("scalar", 52, joint=24.0, best=15.0, two_stage=35.0),
        make_run("gram", 50, joint=10.0, best=15.0, two_stage=28.0, slope=2.0, method="gram"),
        make_run("gram", 52, joint=16.0, best=15.0, two_stage=32.0, slope=2.0, method="gram"),
        make_run("no_masked_views", 50, joint=18.0, best=16.0, two_stage=29.0, slope=1.5),
        make_run("no_masked_views", 51, joint=18.0, best=15.0, two_stage=31.0),
    ]


@pytest.fixture
def results(tmp_path):
    return load_results([save(tmp_path / "runs", *three_labels())], paper_mean=True)


def cells(table, label, benchmark=None):
    """What stands right of the keys in the one row of a label."""
    found = [row for row in table.rows if label in row[: table.num_keys] and benchmark in (None, row[0])]
    (row,) = found
    return [str(cell) for cell in row[table.num_keys :]]


# Layout --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Cell(), "–"),
        (Cell((12.34,)), "12.3"),
        (Cell((-1.0,), signed=True), "-1.0"),
        (Cell((1.0, 3.0), signed=True), "+2.0 ± 1.4"),  # sample deviation: sqrt(2), not 1
        (Cell((20.0, 22.0, 24.0)), "22.0 ± 2.0"),
        (Cell((950.0,), digits=0), "950"),
        (Cell((0.2, -0.1, -0.1), signed=True), "+0.0 ± 0.2"),  # their float64 mean is -1e-17
        (Cell((-0.0,), signed=True), "-0.0"),  # as the paper prints it
        (Cell((54.6,), published_deviation=0.2), "54.6 ± 0.2"),
    ],
)
def test_a_mean_has_the_sample_deviation_of_two_or_more(cell, text):
    assert str(cell) == text


@pytest.fixture
def table():
    blocks = [[["A", "one", Cell((1.0, 3.0)), ""], ["A", "two & 50 %", Cell((5.0,)), ""]], [["B", "one", Cell(), ""]]]
    columns = [("", "benchmark"), ("", "label"), ("T→V", "R@1"), ("T→V", "R@10")]
    return Table("example", "An example", "A note.", columns, blocks, num_keys=2)


def test_columns_of_a_table_stand_below_each_other_and_repeated_keys_are_blank(table):
    assert markdown(table).splitlines() == [
        "| benchmark | label      |   T→V R@1 | T→V R@10 |",
        "| --------- | ---------- | --------: | -------: |",
        "| A         | one        | 2.0 ± 1.4 |          |",
        "|           | two & 50 % |       5.0 |          |",
        "| B         | one        |         – |          |",
    ]


def test_columns_without_anything_can_be_left_out(table):
    assert [heading for _, heading in table.filled().columns] == ["benchmark", "label", "R@1"]
    assert table.without(["benchmark"]).num_keys == 1


def test_latex_has_groups_rules_and_no_bare_special_character(table):
    lines = latex(table).splitlines()
    assert r" &  & \multicolumn{2}{c}{T$\rightarrow$V} \\" in lines and r"\cmidrule(lr){3-4}" in lines
    assert r"A & one & 2.0 $\pm$ 1.4 &  \\" in lines
    assert r" & two \& 50 \% & 5.0 &  \\" in lines
    assert lines.count(r"\midrule") == 2


def test_labels_may_hold_what_a_layout_gives_a_meaning(table):
    table.blocks = [[["[A]", "a|b <c>\n d", Cell((1.0,)), ""]]]
    assert markdown(table).splitlines()[2].startswith(r"| [A]       | a\|b <c> d |")
    assert r"{[}A] & a\textbar{}b \textless{}c\textgreater{} d & 1.0 &  \\" in latex(table).splitlines()


def test_csv_keeps_digits_repeats_keys_and_has_columns_for_deviations(table, tmp_path):
    write_csv(table, tmp_path / "table.csv")
    header, first, second, third = csv.reader((tmp_path / "table.csv").open(newline=""))
    assert header == ["benchmark", "label", "T→V R@1", "T→V R@1 sd", "T→V R@10"]
    assert first[:3] == ["A", "one", "2.0"] and float(first[3]) == pytest.approx(2**0.5)
    assert second == ["A", "two & 50 %", "5.0", "", ""] and third == ["B", "one", "", "", ""]


def test_every_joint_score_has_a_name_for_readers():
    titles = {name: method_title(name) for name in METHODS}
    assert {name for name, title in titles.items() if title == name} == {"video", "audio", "subtitle"}
    assert len(set(titles.values())) == len(titles) and method_title("of a plugin") == "of a plugin"


# What may be compared ------------------------------------------------------------------------------------------------


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
        (make_run("gram", task="classification"), "the task is retrieval in"),
        (changed(make_run("gram"), mask_seed=3), "the mask seed is 0 in"),
        (changed(make_run("gram"), num_queries=10), "number of queries is 1000 in"),
        (changed(make_run("gram"), tie_rule="mean"), "tie rule"),
        (make_run("gram") | {"two_stage": [{"depth": 20, "policy": "absent"}]}, "depth of the second"),
        (make_run("scalar"), "both hold miniature of the label 'scalar' with the seed 50"),
        (
            make_run("scalar", 51, method="gram"),
            "have the label 'scalar' but score with the method 'scalar' and 'gram'",
        ),
        (
            make_run("scalar", 51) | {"score": {"method": "scalar", "query_temperature": 0.2}},
            "temperature 0.1 and 0.2",
        ),
        (make_run("SCALAR"), "both hold miniature of the label 'scalar' with the seed 50"),
        ({"variant": "gram"}, "not a result of .*lacks .'label', 'seed'"),
        ([], "not a result of"),
    ],
)
def test_results_that_cannot_be_compared_are_refused_by_name(other, message, tmp_path):
    save(tmp_path, make_run("scalar"), other)
    with pytest.raises(ValueError, match=message):
        load_results([tmp_path])


def test_a_result_that_is_no_json_is_named(tmp_path):
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(ValueError, match="results.json is not JSON"):
        load_results([tmp_path])


def test_paths_without_results_are_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere is not there"):
        load_results([tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="no results.json in"):
        load_results([tmp_path])


def test_the_same_file_given_twice_is_read_once(tmp_path):
    save(tmp_path, make_run("scalar"))
    found = load_results([tmp_path, tmp_path / "0" / "results" / "results.json"])
    assert list(found.all_runs()) == [make_run("scalar")]


def test_a_run_without_a_second_stage_stands_beside_one_that_has_it(tmp_path):
    save(tmp_path, make_run("scalar"), make_run("gram", method="gram") | {"two_stage": []})
    found = load_results([tmp_path])
    assert cells(paper_tables.retrieval_table(found), "GRAM")[4:] == ["–"] * 4


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
    with pytest.raises(ValueError, match="baseline 'clip' is none of the labels"):
        load_results([tmp_path], baseline="clip")


def test_the_papers_name_of_a_label_or_benchmark_and_its_key_are_one(tmp_path):
    runs = [make_run("SCALAR", 50, benchmark="MSR-VTT"), make_run("scalar", 51, benchmark="msrvtt")]
    found = load_results([save(tmp_path, *runs)])
    assert {name: {label: list(seeds) for label, seeds in labels.items()} for name, labels in found.runs.items()} == {
        "msrvtt": {"scalar": [50, 51]}
    }


def test_of_two_labels_with_grams_score_neither_is_the_baseline(tmp_path):
    save(tmp_path, make_run("one", method="gram"), make_run("two", method="gram"))
    assert load_results([tmp_path]).baseline is None


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


# The paper's tables --------------------------------------------------------------------------------------------------


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


def test_published_changes_stand_beside_means_over_the_same_benchmarks_only(tmp_path):
    def changes_of(*benchmarks, paper_mean):
        runs = [make_run(label, benchmark=name) for label in ("scalar", "no_semantic") for name in benchmarks]
        folder = save(tmp_path / "-".join(benchmarks), *runs)
        table = paper_tables.ablation_table(load_results([folder], paper_mean=paper_mean))
        (row,) = (row for row in table.rows if row[0].startswith("paper") and row[0].endswith("w/o L_sem"))
        return [str(cell) for cell in row[-4:]]

    published, none = ["-0.0", "–", "-0.9", "–"], ["–"] * 4
    assert changes_of(*paper.ABLATION, paper_mean=False) == published
    assert changes_of("miniature", paper_mean=True) == published
    assert changes_of("msrvtt", paper_mean=True) == none
    assert changes_of(*paper.ABLATION, "miniature", paper_mean=False) == none


def test_published_values_stand_beside_test_sets_only(tmp_path):
    found = load_results(
        [save(tmp_path, *(make_run(x, benchmark="vatex", split="train") for x in ("scalar", "no_semantic")))]
    )
    for table in report._tables(found):
        assert not any("paper" in str(cell) for row in table.rows for cell in row[:3])


def test_changes_by_ablation_are_means_over_the_benchmarks_that_both_have(tmp_path):
    runs = [make_run("scalar", benchmark="a", joint=20.0), make_run("scalar", benchmark="b", joint=30.0)]
    runs += [make_run("no_mine", benchmark="a", joint=19.0), make_run("no_mine", benchmark="b", joint=26.0)]
    runs += [make_run("no_mine", benchmark="c", joint=90.0)]
    table = paper_tables.ablation_table(load_results([save(tmp_path, *runs)]))
    assert cells(table, "no_mine")[3:] == ["+0.0", "-2.5", "-2.5", "-2.5"]


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


def test_a_second_stage_with_the_published_policy_alone_is_shown(tmp_path):
    run = make_run("scalar", two_stage=30.0)
    run["two_stage"] = [entry for entry in run["two_stage"] if (entry["policy"], entry["rate"]) == ("zeros", 0.0)]
    table = paper_tables.two_stage_missing_table(load_results([save(tmp_path, run)]), "zeros")
    assert cells(table, "SCALAR") == ["29.0", "5.0"]


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
    text = write_report(found, tmp_path / "report")
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


def test_runs_with_the_papers_figures_give_the_papers_rows(papers_runs):
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


def test_published_values_enter_no_figure_of_ours(tmp_path):
    folder = save(tmp_path, *three_labels())
    without, with_mean = (load_results([folder], paper_mean=mean) for mean in (False, True))

    def ours(results):
        rows = [row for table in report._tables(results) for row in table.rows]
        return [list(map(str, row)) for row in rows if not any("paper" in str(cell) for cell in row[:3])]

    assert ours(without) == ours(with_mean)
    assert not any("paper" in str(row[:3]) for table in report._tables(without) for row in table.rows)


# Every score on the same embeddings ----------------------------------------------------------------------------------


def test_every_score_has_a_row_with_its_figures(results):
    table = score_tables.scores_table(results, "text_to_video")
    assert [row[1:4] for row in table.blocks[2]] == [
        ["GRAM", "2", "GRAM volume (own)"],
        ["GRAM", "2", "uniform centroid"],
        ["GRAM", "2", "video"],
        ["GRAM", "2", "audio *"],
    ]
    own = ["13.0 ± 4.2", "14.0 ± 4.2", "15.0 ± 4.2", "16.0 ± 4.2", "17.0 ± 4.2", "7.0 ± 0.0", "9.0 ± 0.0"]
    assert [str(cell) for cell in table.blocks[2][0][4:]] == [*own, "-2.0 ± 4.2", "10 ± 0"]
    back = score_tables.scores_table(results, "video_to_text")
    assert str(back.blocks[2][0][4]) == "12.0 ± 4.2" and len(back.columns) == 4 + 7
    masked = score_tables.scores_missing_table(results)
    assert [str(cell) for cell in masked.blocks[2][1][4:]] == [f"{11 - step:.1f} ± 4.2" for step in range(5)]


def test_a_score_that_one_seed_alone_measured_has_a_row_with_its_number_of_seeds(tmp_path):
    runs = [make_run("scalar", 50), make_run("scalar", 51)]
    for entry in runs[1]["retrieval"]["rates"]:
        entry["methods"]["symile"] = entry["methods"]["uniform"]
    table = score_tables.scores_table(load_results([save(tmp_path, *runs)]), "text_to_video")
    assert {row[3]: row[2] for row in table.rows}["Symile"] == "1"
    assert {row[3]: row[2] for row in table.rows}["uniform centroid"] == "2"


def test_weights_differences_and_latent_figures_are_laid_out(tmp_path):
    latent = {"num_classes": 8, "text_centroid_cosine": 0.444, "silhouette": {"video": 0.2, "audio": 0.199}}
    found = load_results([save(tmp_path, make_run("scalar", benchmark="vggsound", latent=latent))])
    assert cells(paper_tables.latent_table(found), "SCALAR") == ["8", "0.44", "0.20", "0.20", "–"]
    assert cells(paper_tables.latent_table(found), "paper: GRAM") == ["–", "0.48", "–", "0.26", "–"]
    assert cells(score_tables.weights_table(found), "50 %") == [
        "100",
        "88",
        "80",
        "0.50",
        "0.30",
        "0.20",
        "70",
        "20",
        "10",
    ]
    assert cells(score_tables.differences_table(found), "SCALAR − uniform centroid") == [
        "+2.0",
        "[+0.5, +3.5] at 95 %",
    ]


# What is written -----------------------------------------------------------------------------------------------------


def test_the_report_holds_every_table_in_three_forms_with_its_protocol(results, tmp_path):
    text = write_report(results, tmp_path / "report")
    assert (tmp_path / "report" / "tables.md").read_text() == text
    tables = [table for table in report._tables(results) if table.blocks]
    assert len(tables) >= 14
    tex = (tmp_path / "report" / "tables.tex").read_text()
    for table in tables:
        section = text[text.index(f"## {table.title}\n") :].split("\n## ")[0]
        assert "1000 queries, 900 clips, SHA-256 c0ffeec0ffee" in section
        assert "Ties: against the method" in section and "Mask seed 0" in section
        assert rf"\label{{tab:{table.name}}}" in tex
        rows = list(csv.reader((tmp_path / "report" / f"{table.name}.csv").open(newline="")))
        assert len(rows) == 1 + len(table.rows) and len({len(row) for row in rows}) == 1
    assert "Left out, as nothing fills them: Retrieval across benchmarks" in text
    assert "Latent space" in text.split("Left out, as nothing fills them:")[1]
    assert (tmp_path / "report" / "gain_vs_masking.png").stat().st_size > 10_000


def test_a_report_leaves_no_table_of_an_earlier_one(results, tmp_path):
    write_report(results, tmp_path)
    assert (tmp_path / "ablation.csv").is_file()
    write_report(load_results([save(tmp_path / "one", make_run("mine"))]), tmp_path)
    assert not (tmp_path / "ablation.csv").exists() and (tmp_path / "missing.csv").is_file()


def test_the_latex_is_balanced_and_its_rows_have_the_columns_they_declare(results, tmp_path):
    write_report(results, tmp_path)
    tex = (tmp_path / "tables.tex").read_text()
    for environment in ("table*", "tabular"):
        count = tex.count(rf"\begin{{{environment}}}")
        assert count == tex.count(rf"\end{{{environment}}}") > 10
    plain = re.sub(r"\\[&%$#_{}]", "", tex)
    assert plain.count("{") == plain.count("}") and plain.count("$") % 2 == 0
    tex.encode("ascii", errors="strict")
    for body in re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", tex, re.DOTALL):
        columns = len(re.match(r"\{([lr]+)\}", body)[1])
        for line in re.findall(r"^(.*) \\\\$", body, re.MULTILINE):
            spanned = sum(int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", line))
            assert len(re.findall(r"(?<!\\)&", line)) + 1 + spanned == columns


def test_a_run_with_the_least_there_can_be_is_reported(tmp_path):
    run = make_run("mine", None, rates=(0.0,)) | {"two_stage": []}
    run["retrieval"].pop("ladder")
    run["retrieval"].pop("differences")
    text = write_report(load_results([save(tmp_path, run)]), tmp_path / "report")
    assert "20.0" in text and not list((tmp_path / "report").glob("*.png"))
    for title in ("Table S4", "Table S5", "Table 5", "Differences", "Sign tests"):
        assert title in text.split("Left out, as nothing fills them:")[1]


def test_weights_of_queries_are_drawn_where_a_run_wrote_them(tmp_path):
    folder = save(tmp_path, make_run("my model/2", None))
    queries = {
        "caption": ["a dog $barks$", "a cat", "a long caption " * 10],
        "weight_video": [0.7, 0.1, 0.2],
        "weight_audio": [0.2, 0.8, 0.7],
        "weight_subtitle": [0.1, 0.1, 0.1],
        "decided": ["video", "audio", "audio"],
    }
    write_table(pa.table(queries), folder / "0" / "results" / "queries.parquet")
    text = write_report(load_results([folder]), tmp_path / "report")
    figure = "weights_miniature_my_model_2.png"
    assert f"![{figure}]({figure})\n\nWeights of the queries of miniature: my model/2." in text
    assert (tmp_path / "report" / "weights_miniature_my_model_2.png").stat().st_size > 10_000
    plot_query_weights({name: column[:1] for name, column in queries.items()}, tmp_path / "one.png")


def test_weights_of_class_labels_which_have_many_right_clips_are_not_drawn(tmp_path):
    folder = save(tmp_path, make_run("mine", task="classification"))
    (folder / "0" / "results" / "queries.parquet").write_bytes(b"never read")
    write_report(load_results([folder]), tmp_path / "report")
    assert not list((tmp_path / "report").glob("*.png"))


def test_gains_are_drawn_for_any_number_of_panels_and_lines(tmp_path):
    lines = {f"label {i}": {0.0: [1.0 + i, 2.0 + i], 0.9: [0.5, 0.6]} for i in range(16)}
    plot_gain({f"benchmark {i}": lines for i in range(2)}, tmp_path / "gain.png")
    assert (tmp_path / "gain.png").read_bytes().startswith(b"\x89PNG")


def test_a_result_is_laid_out_for_a_screen():
    run = make_run("scalar", left_out=["clip9"], problems=["clip3: audio is broken"])
    lines = format_table(run).splitlines()
    assert lines[0] == "miniature test: SCALAR, seed 50"
    own = ["20.0", "21.0", "22.0", "23.0", "24.0", "7.0", "9.0", "+5.0", "10"]
    assert any(re.split(r" *\| *", line)[1:-1] == ["SCALAR (own)", *own] for line in lines)
    assert any(line.startswith("| audio *") for line in lines)
    assert "  clip9" in lines and "  clip3: audio is broken" in lines
    assert all(max(len(line) for line in lines if line.startswith("|")) < 160 for line in lines)
    assert "| benchmark" not in "\n".join(lines)


@pytest.mark.parametrize("rates", [(0.0,), RATES])
def test_scores_are_drawn_for_any_number_of_rates(rates, tmp_path):
    plot_results(make_run("scalar", rates=rates), tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_prints_what_it_writes(tmp_path):
    folder = save(tmp_path / "runs", *three_labels())
    done = CliRunner().invoke(app, ["report", str(folder), "--output", str(tmp_path / "report"), "--paper-mean"])
    assert done.exit_code == 0, done.output
    assert done.output == (tmp_path / "report" / "tables.md").read_text() + "\n"
    assert "paper, mean of 5: SCALAR" in done.output
    done = CliRunner().invoke(app, ["report", str(folder), "--output", str(tmp_path / "o"), "--baseline", "clip"])
    assert done.exit_code == 1 and done.stderr.startswith("Error: The baseline 'clip' is none of the labels")


def test_a_measure_that_was_not_taken_is_none():
    run = make_run("scalar", rates=(0.5,))
    assert first_stage()(run) is None and first_stage(rate=0.5)(run) == 20.0
    assert first_stage(method="concat_head", rate=0.5)(run) is None
