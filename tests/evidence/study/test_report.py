"""The study's results, its tables and differences, and its page."""

import re

import pyarrow.parquet as pq
import pytest

from evidence.study import differences
from evidence.study.collecting import collect, describe_clips
from evidence.study.differences import Difference, as_recall, bound, described, judged, named_claims, place
from evidence.study.report import fill, plot_sharing, report
from evidence.study.results import BOTH, Results, Selection
from evidence.study.tables import TABLES, gains_table, main_table, named_table, settings_table, sharing_table
from tests.evidence.study.made_studies import save_clips, save_run

SINGLE = {"video": 20, "audio": 10, "subtitle": 35}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    for seed in (50, 51):
        more = seed - 50
        save_run(folder / "main" / f"scalar-{seed}", "scalar", 60 + more, fitted=4, single=SINGLE, disagree=55)
        save_run(folder / "main" / f"gram-{seed}", "gram", 50, single=SINGLE, disagree=40)
        save_run(folder / "repeated" / f"scalar-{seed}", "scalar", 70)
        save_run(folder / "repeated" / f"gram-{seed}", "gram", 50)
        for level in ("0", "1"):
            save_run(folder / f"sharing-{level}" / f"scalar-{seed}", "scalar", 20 + 20 * float(level))
    describe_clips(save_clips(folder / "made"), folder / "clips" / "main.json")
    collect(folder, folder / "results")
    return folder


@pytest.fixture(scope="module")
def results(study):
    return Results(study / "results")


def plain(variant="scalar", **fields):
    return Selection(variant, numbers="as trained", **fields)


def test_what_was_measured_is_what_is_kept(study, results):
    assert results.means(Selection()) == (64, 65)  # the fitted numbers
    assert results.means(plain()) == (60, 61)
    assert results.means(Selection("gram", masked="0.5")) == (40, 40)
    assert results.means(plain(clips="disagree")) == (55, 55)
    assert results.means(Selection("pmrl")) == ()
    assert results.means(Selection(at=10)) == (100, 100)  # what is not first is seventh
    # Kinds alternate, and the first of a hundred are hits: of 60 the half is of each kind.
    assert results.values(plain(kinds=("single",))).shape == (2, 50)
    assert results.means(plain(about="video")) == (60, 62)
    assert results.means(Selection(about="audio")) == ()
    assert results.seeds() == [50, 51]
    assert (study / "results" / "ranks.parquet").stat().st_size < 20_000


def test_a_score_without_numbers_to_fit_has_those_of_its_training(tmp_path):
    save_run(tmp_path / "main" / "triangle-50", "triangle", 30)
    path = tmp_path / "main" / "triangle-50.parquet"
    table = pq.read_table(path)
    pq.write_table(table.filter([name == "as trained" for name in table["numbers"].to_pylist()]), path)
    describe_clips(save_clips(tmp_path / "made"), tmp_path / "clips" / "main.json")
    collect(tmp_path, tmp_path / "results")
    assert Results(tmp_path / "results").means(Selection("triangle", numbers="fitted")) == (30,)


def test_reciprocal_ranks_count_up_to_the_tenth(tmp_path):
    save_run(tmp_path / "main" / "scalar-50", "scalar", 0)
    path = tmp_path / "main" / "scalar-50.parquet"
    rows = pq.read_table(path).to_pylist()
    for row in rows:
        row["ranks"] = bytes([1, 4, 10, 11] if row["direction"] == "text_to_video" else [2, 1, 11, 11])
    pq.write_table(type(pq.read_table(path)).from_pylist(rows), path)
    describe_clips(save_clips(tmp_path / "made", num_queries=4), tmp_path / "clips" / "main.json")
    collect(tmp_path, tmp_path / "results")
    found = Results(tmp_path / "results")
    assert found.values(Selection(measure="mrr")).tolist() == [[100, 25, 10, 0]]
    assert found.values(Selection(measure="mrr", direction=BOTH)).tolist() == [[75, 62.5, 5, 0]]
    assert found.values(Selection(direction=BOTH)).tolist() == [[50, 50, 0, 0]]
    for wrong in ({"measure": "median"}, {"direction": "up"}):
        with pytest.raises(ValueError, match=next(iter(wrong.values()))):
            Selection(**wrong)


def test_gain_is_over_the_best_single_modality_of_the_same_embeddings(results):
    assert results.best_modality(plain()) == "subtitle"
    assert results.means(plain(gain=True)) == (25, 26)
    assert results.means(plain(gain=True, masked="0.5")) == (25, 26)  # the single ones are masked, too
    assert results.best_modality(plain(experiment="repeated")) is None
    assert results.means(plain(experiment="repeated", gain=True)) == ()
    gain = bound(results, Difference("x", "", plain(gain=True)))
    assert gain["difference"] == pytest.approx(25.5) and gain["low"] > 0


def test_a_difference_of_two_methods_is_bounded_over_queries_and_trainings(results):
    found = bound(results, Difference("x", "", plain(), Selection("gram")))
    assert found["difference"] == pytest.approx(10.5)
    assert 4 < found["low"] < 10.5 < found["high"] < 18  # ten queries of a hundred: 10 ± 1.96 * 3
    assert place(found) == "above" and found["sets"] == ("main",)
    assert bound(results, Difference("x", "", Selection(), Selection("pmrl"))) is None


def test_scores_of_the_same_embeddings_are_paired(results, monkeypatch):
    asked = []
    monkeypatch.setattr(differences, "pooled_interval", lambda sets, paired: asked.append(paired) or {})
    for second in (plain(), Selection("gram"), None, Selection("gram", "scalar")):
        bound(results, Difference("x", "", Selection(), second))
    assert asked == [True, False, True]  # the last was not measured
    assert not Difference("x", "", Selection(), Selection(experiment="repeated")).same_trainings


def test_sets_of_clips_are_pooled_where_both_sides_were_measured(results):
    pooled = bound(results, Difference("x", "", plain(), plain("gram"), pooled=True))
    assert pooled["difference"] == pytest.approx((10.5 + 20) / 2) and pooled["sets"] == ("main", "repeated")
    gain = bound(results, Difference("x", "", plain(gain=True), pooled=True))
    assert gain["sets"] == ("main",)  # no single modality was measured on the other clips


def test_claims_named_in_advance_are_judged_and_no_others(results):
    claims = named_claims()
    assert len(claims) == 7 and all(claim.first.measure == "mrr" for claim in claims)
    assert [claim.name for claim in claims if claim.first.gain] == ["views"]
    found = judged(results)
    assert found.keys() == {"gram"}  # no equal weights, no complete clips, no spans in these results
    entry = found["gram"]
    assert entry["verdict"] == "shown" and entry["sets"] == ("main", "repeated")
    assert entry["adjusted"] == pytest.approx(min(1, 7 * entry["p_value"]))
    assert as_recall(entry["claim"]).first == plain(direction=BOTH)
    assert not any("verdict" in each for each in described(results).values())
    rows = {row[0]: [str(cell) for cell in row[1:]] for row in named_table(results).rows}
    assert rows["SCALAR − GRAM, all clips"][0] == "seed 0, seed 1"
    assert sum(row[-1] == "not measured" for row in rows.values()) == 6


@pytest.mark.parametrize("low, high, p_value, verdict", [
    (1, 3, 0.001, "shown"), (-3, -1, 0.001, "reverse"), (0.1, 3, 0.04, "undecided"), (-1, 2, 0.5, "undecided"),
])  # fmt: skip
def test_verdicts(study, monkeypatch, low, high, p_value, verdict):
    entry = {"difference": (low + high) / 2, "low": low, "high": high, "p_value": p_value, "sets": ("main",)}
    monkeypatch.setattr(differences, "bound", lambda results, claim: dict(entry))
    assert {found["verdict"] for found in judged(Results(study / "results")).values()} == {verdict}


def test_every_table_stands_on_the_results_alone(results):
    text = report(results)
    assert "| SCALAR " in text and "## Differences" in text and "## Perfect readers" in text
    cells = [str(cell) for cell in main_table(results).rows[0]]
    assert cells[:5] == ["SCALAR", "60.5 ± 0.7", "64.5 ± 0.7", "100.0 ± 0.0", "54.5 ± 0.7"]
    row = [str(cell) for cell in sharing_table(results).rows[0]]
    assert row == ["SCALAR", "nothing masked", "20.0 ± 0.0", "64.5 ± 0.7", "40.0 ± 0.0"]
    gains = [str(cell) for cell in gains_table(results).rows[0]]
    assert gains[1:4] == ["60.5 ± 0.7", "subtitle", "35.0 ± 0.0"] and gains[4].startswith("+25.5 [")
    assert all(name in TABLES for name in ("views", "disagreement", "arity", "repeated", "attribution"))


def test_settings_at_an_end_of_what_was_tried_are_marked(study):
    results = Results(study / "results")
    chosen = {"temperature": 0.8, "learning_rate": 0.003, "num_train_epochs": 8}
    results.study["tuning"] = {
        "measure": "mean_reciprocal_rank",
        "methods": {"pmrl": {"chosen": chosen, "trials": [{"mean_reciprocal_rank": 40.0}]}},
    }
    assert [str(cell) for cell in settings_table(results).rows[0]] == ["PMRL", "0.8†", "0.003", "8†", "40.0"]


def test_a_page_is_filled_with_tables_differences_and_recalls(results):
    text = fill(
        "SCALAR {{recall scalar numbers=fitted}}, masked {{recall scalar masked=0.5}}: "
        "{{difference scalar-gram above}} {{claim gram shown}}.\n\n{{table main}}\n\n"
        "{{recall scalar kinds=single clips=disagree}} {{clips main num_train}} {{lack main audio}} {{lack main any}} "
        "{{option scalar query_temperature}}",
        results,
    )
    assert text.startswith("SCALAR 64.5, masked 54.5: +14.5 [")
    assert text.endswith(" 1,500 15 40 0.5") and "| GRAM " in text and "{{" not in text
    for wrong in (
        "{{table best}}", "{{difference scalar-pmrl above}}", "{{difference scalar-gram below}}", "{{claim gram}}",
        "{{claim gram undecided}}", "{{claim scalar-gram shown}}", "{{recall pmrl}}", "{{figure x}}",
        "{{clips main best}}", "{{lack other any}}", "{{option pmrl query_temperature}}",
    ):  # fmt: skip
        with pytest.raises(ValueError, match=re.escape(wrong)):
            fill(wrong, results)


def test_the_figure_has_a_line_for_each_variant(results, tmp_path):
    plot_sharing(results, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
