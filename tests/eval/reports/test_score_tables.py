"""Tables of what was measured beside the paper's: every score, weights, galleries, and the second stage."""

import pytest

from eval.reports import paper_tables, score_tables
from eval.reports.report import format_table, write_report
from eval.reports.result_files import load_results
from eval.reports.result_schema import method_title
from eval.reports.score_tables import second_stage_table, separation_table
from tests.eval.reports.made_runs import cells, make_metrics, make_run, save
from tests.scores import METHODS


def test_every_joint_score_has_a_name_for_readers():
    titles = {name: method_title(name) for name in METHODS}
    assert {name for name, title in titles.items() if title == name} == {"video", "audio", "subtitle"}
    assert len(set(titles.values())) == len(titles) and method_title("of a plugin") == "of a plugin"


def test_every_score_has_a_row_with_its_metrics(results):
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


def test_the_own_score_of_a_model_that_nobody_trained_is_not_called_trained(results):
    tables = [score_tables.scores_table(results, way) for way in ("text_to_video", "video_to_text")]
    tables += [score_tables.scores_missing_table(results), score_tables.kinds_table(results)]
    assert all("(own) the model's own score" in table.note and "trained" not in table.note for table in tables)


def test_a_score_that_one_seed_alone_measured_has_a_row_with_its_number_of_seeds(tmp_path):
    runs = [make_run("scalar", 50), make_run("scalar", 51)]
    for entry in runs[1]["retrieval"]["rates"]:
        entry["methods"]["symile"] = entry["methods"]["uniform"]
    table = score_tables.scores_table(load_results([save(tmp_path, *runs)]), "text_to_video")
    assert {row[3]: row[2] for row in table.rows}["Symile"] == "1"
    assert {row[3]: row[2] for row in table.rows}["uniform centroid"] == "2"


def test_recall_by_kind_of_caption_has_a_column_for_each_kind(tmp_path):
    runs = [make_run("scalar", 50), make_run("scalar", 51), make_run("gram", 50, method="gram")]
    for shift, run in enumerate(runs[:2]):
        run["retrieval"]["kinds"] = [
            {
                "kind": kind,
                "num_queries": count,
                "text_to_video_recall_at_1": {"scalar": recall + shift, "audio": recall},
            }
            for kind, count, recall in (("several", 700, 20.0), ("single", 300, 40.0))
        ]
    table = score_tables.kinds_table(load_results([save(tmp_path / "some", *runs)]))
    assert [heading for _, heading in table.columns[4:]] == ["several", "single"]
    assert [[str(cell) for cell in row[3:]] for row in table.rows] == [
        ["SCALAR (own)", "20.5 ± 0.7", "40.5 ± 0.7"],
        ["audio *", "20.0 ± 0.0", "40.0 ± 0.0"],
    ]
    assert "several 700 of miniature; single 300 of miniature" in table.note
    assert score_tables.kinds_table(load_results([save(tmp_path / "none", make_run("scalar"))])).blocks == []


def test_weights_differences_and_latent_numbers_are_laid_out(tmp_path):
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


def with_rules(run, depths=(5, 50, 100), shift=10.0):
    """The run with both rules at several depths, the metrics of the match at 50 as they were."""
    entries = []
    for entry in run["two_stage"]:
        base = entry["text_to_video_recall_at_1"]
        for depth in depths:
            step = 0 if depth == 50 else depth
            entries.append(entry | {"rule": "match", "depth": depth} | make_metrics(base - step))
            entries.append(entry | {"rule": "fused", "depth": depth, "weight": 0.1} | make_metrics(base + shift))
    fusion = {"split": "validation", "weight": 0.1, "grid": [0, 0.1], "curve": [1.0, 2.0]}
    found = {"auc": 0.7654, "num_matched_pairs": 1000, "num_hard_pairs": 49000, "depth": 50, "policy": "absent"}
    found["method"] = run["score"]["method"]
    return run | {"two_stage": entries[::-1], "two_stage_fusion": fusion, "two_stage_diagnostic": found}


def rows_of(table):
    return {tuple(row[1 : table.num_keys]): [str(cell) for cell in row[table.num_keys :]] for row in table.rows}


def test_every_rule_and_depth_has_a_row_in_both_directions(tmp_path):
    run = with_rules(make_run("scalar", joint=20.0, two_stage=30.0))
    table = second_stage_table(load_results([save(tmp_path, run)]))
    rows = rows_of(table)
    assert list(rows) == [
        ("SCALAR", "1", "first stage", "", ""),
        *(
            ("SCALAR", "1", rule, str(depth), policy)
            for rule in ("match", "fused")
            for depth in (5, 50, 100)
            for policy in ("absent", "zeros")
        ),
    ]
    assert rows["SCALAR", "1", "first stage", "", ""] == ["20.0"] * 5 + ["19.0"] * 5
    falling = [30 - step for step in range(5)]
    both = [f"{value:.1f}" for shift in (0, -1) for value in (falling[i] + shift for i in range(5))]
    assert rows["SCALAR", "1", "match", "50", "absent"] == both
    assert rows["SCALAR", "1", "match", "5", "absent"][:2] == ["25.0", "24.0"]
    assert rows["SCALAR", "1", "fused", "5", "zeros"][:2] == ["39.0", "38.0"]


def test_a_file_without_rules_is_of_the_match_and_has_no_row_for_another(tmp_path):
    results = load_results([save(tmp_path, make_run("scalar", two_stage=30.0))])
    assert [names[2:] for names in rows_of(second_stage_table(results))] == [
        ("first stage", "", ""),
        ("match", "50", "absent"),
        ("match", "50", "zeros"),
    ]
    assert separation_table(results).blocks == []
    without = make_run("scalar") | {"two_stage": []}
    assert second_stage_table(load_results([save(tmp_path / "none", without)])).blocks == []


def test_the_papers_tables_take_the_match_at_the_papers_depth(tmp_path):
    plain = make_run("scalar", two_stage=30.0)
    expected = load_results([save(tmp_path / "plain", plain)])
    found = load_results([save(tmp_path / "rules", with_rules(plain))])
    for table in (
        paper_tables.retrieval_table,
        paper_tables.transfer_table,
        paper_tables.seeds_table,
        lambda results: paper_tables.two_stage_missing_table(results, "zeros"),
    ):
        assert table(found).rows == table(expected).rows
    largest = load_results([save(tmp_path / "largest", with_rules(plain, depths=(5, 20)))])
    assert rows_of(paper_tables.two_stage_missing_table(largest, "absent"))[("SCALAR", "1")][0] == "10.0"


def test_runs_whose_largest_depths_differ_are_compared_at_the_papers(tmp_path):
    runs = with_rules(make_run("scalar")), make_run("gram", method="gram")
    assert len(list(load_results([save(tmp_path / "a", *runs)]).all_runs())) == 2
    with pytest.raises(ValueError, match="the depth of the second stage is 20 in .* and 50 in"):
        load_results(
            [save(tmp_path / "b", with_rules(runs[0] | {"two_stage": runs[0]["two_stage"][:1]}, (20,)), runs[1])]
        )


def test_what_the_match_separates_stands_beside_the_weight_run_by_run(tmp_path):
    given = make_run("scalar", 51) | {"two_stage_fusion": {"split": None, "weight": 0.05}}
    results = load_results([save(tmp_path, with_rules(make_run("scalar", 50)), given)])
    rows = rows_of(separation_table(results))
    assert rows["SCALAR", "50"] == ["0.765", "1000", "49000", "50", "0.100", "validation"]
    assert rows["SCALAR", "51"] == ["–", "–", "–", "–", "0.050", "given"]
    text = write_report(results, tmp_path / "report")
    assert "## Second stage by rule and depth" in text and "## What the second stage separates" in text
    assert "0.765" in format_table(with_rules(make_run("scalar", 50)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"two_stage_fusion": {"split": "validation"}}, "`two_stage_fusion` lacks ..weight"),
        ({"two_stage_fusion": {"weight": "much"}}, "`two_stage_fusion.weight` must be a finite number"),
        ({"two_stage_diagnostic": {"auc": 2}}, "`two_stage_diagnostic` lacks"),
        ({"two_stage": [{"depth": 5, "policy": "absent", "method": "scalar", "rate": 0, "rule": 3}]}, "`two_stage.0."),
    ],
)
def test_second_stages_that_are_none_are_refused_by_name(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        load_results([save(tmp_path, make_run("scalar") | change)])
