"""Results as frames, and their text: means over seeds, marks, both stages, differences."""

import math

import pytest

from scalar_retrieval.eval.reports.result_files import load_results
from scalar_retrieval.eval.reports.tables import differences, first_stage, report_tables, second_stage, select
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS
from tests.eval.reports.made_runs import make_run, save, three_labels


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return [*load_results([save(tmp_path_factory.mktemp("runs"), *three_labels())]).values()]


def rows_of(table):
    """The cells of each row by the names of the row."""
    keys = table.text.index.nlevels
    return {tuple(row[:keys]): [*row[keys:]] for row in table.cells().to_numpy()}


def table_of(runs, name):
    return next(table for table in report_tables(runs) if table.name == name)


def test_a_frame_holds_every_number_of_every_run(runs):
    first = first_stage(runs)
    assert (len(first), len(second_stage(runs))) == (7 * 5 * 4 * 2, 7 * 2 * 5 * 2)
    for run in runs:
        for entry in run["retrieval"]["rates"]:
            for score, metrics in entry["methods"].items():
                own = select(first, label=run["label"], seed=run["seed"], masked=entry["rate"], score=score)
                assert own["nDCG@10"].tolist() == [metrics[f"{way}_ndcg_at_10"] for way in DIRECTIONS]
                gains = [entry["aggregation_gain"].get(score, math.nan), math.nan]
                assert own["gain"].tolist() == pytest.approx(gains, nan_ok=True)
    assert differences(runs)["low"].tolist() == [0.5] * 7


def test_seeds_are_shown_as_their_mean_and_sample_deviation(runs):
    rows = rows_of(table_of(runs, "scores_text_to_video"))
    own = ["13.0 ± 4.2", "14.0 ± 4.2", "15.0 ± 4.2", "16.0 ± 4.2", "17.0 ± 4.2", "7.0 ± 0.0", "9.0 ± 0.0"]
    assert rows["miniature", "gram", "GRAM volume (own)"] == ["2", *own, "-2.0 ± 4.2", "10 ± 0"]
    scores = ["GRAM volume (own)", "uniform centroid", "video", "audio *"]
    assert [key[2] for key in rows if key[1] == "gram"] == scores
    back = table_of(runs, "scores_video_to_text")
    assert rows_of(back)["miniature", "gram", "GRAM volume (own)"][1] == "12.0 ± 4.2" and "gain" not in back.text


def test_scores_under_missing_modalities_have_a_column_for_each_rate(runs):
    table = table_of(runs, "scores_missing")
    assert [*table.text.columns] == ["n", "0 %", "25 %", "50 %", "75 %", "90 %"]
    row = rows_of(table)["miniature", "gram", "uniform centroid"]
    assert row[1:] == [f"{11 - step:.1f} ± 4.2" for step in range(5)]
    assert not any(table.name == "scores_missing" for table in report_tables([make_run("scalar", rates=(0.0,))]))


def test_every_rule_and_depth_has_a_row_in_both_directions():
    run = make_run("scalar", joint=20.0, two_stage=30.0)
    changes = {"rule": "fused", "depth": 5, "weight": 0.1, "text_to_video_recall_at_1": 41.0}
    run["two_stage"] = [entry | changes for entry in run["two_stage"]] + run["two_stage"]
    run["two_stage_fusion"] = {"split": "validation", "weight": 0.1}
    table = table_of([run], "second_stage")
    rows = rows_of(table)
    keys = [("match", "50", "absent"), ("match", "50", "zeros"), ("fused", "5", "absent"), ("fused", "5", "zeros")]
    assert list(rows) == [("first stage", "", ""), *keys]
    assert rows["first stage", "", ""] == ["20.0"] * 5 + ["19.0"] * 5
    falling = [30 - step for step in range(5)]
    assert rows[keys[0]] == [f"{value + shift:.1f}" for shift in (0, -1) for value in falling]
    assert rows[keys[3]][:2] == ["41.0", "41.0"]
    assert "Weight of miniature test: scalar, seed 50: 0.100, chosen on validation." in table.note


def test_names_may_hold_what_a_layout_gives_a_meaning():
    runs = [make_run("a|b <c>\n d_e & 5 %"), make_run("other")]
    table = table_of(runs, "differences")
    assert r"a\|b <c> d_e & 5 %" in table.markdown()
    assert r"a|b <c> d\_e \& 5 \%" in table.latex()
