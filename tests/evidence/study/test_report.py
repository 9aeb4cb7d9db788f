"""The study's results, its tables and differences, and its page."""

import re

import numpy as np
import pyarrow.parquet as pq
import pytest

from evidence.miniature.clips import draw_split
from evidence.settings import StudyConfig
from evidence.study import differences
from evidence.study.collecting import collect, describe_clips
from evidence.study.differences import (
    Difference,
    as_recall,
    described_differences,
    judged_claims,
    named_claims,
    side_of_zero,
    with_interval,
)
from evidence.study.paper import paper_table
from evidence.study.report import fill, plot, report
from evidence.study.results import BOTH, SAME_SIZE, Quantity, StudyResults, chances_of_first, is_complete
from evidence.study.tables import TABLES, gains_table, main_table, named_table, settings_table, sharing_table
from evidence.study.whole import run_study
from tests.evidence.study.made_studies import save_clips, save_run, save_whole_study

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
    return StudyResults(study / "results")


def plain(variant="scalar", **fields):
    return Quantity(variant, numbers="as trained", **fields)


def test_what_was_measured_is_what_is_kept(study, results):
    assert results.means(Quantity()) == (64, 65, 70, 70)  # the fitted numbers, on both sets of clips
    assert results.means(plain()) == (60, 61, 70, 70)
    assert results.means(plain(experiment="main")) == (60, 61)
    assert results.means(Quantity("gram", masked="0.5")) == (40, 40, 40, 40)
    assert results.means(plain(clips="disagree")) == (55, 55)
    assert results.means(Quantity("pmrl")) == ()
    assert set(results.means(Quantity(at=10))) == {100}  # what is not first is seventh
    # Kinds alternate, and the first of a hundred are hits: of 60 the half is of each kind.
    assert results.values(plain(kinds=("single",))).shape == (2, 50)
    assert results.means(plain(about="video", experiment="main")) == (60, 62)
    assert results.means(Quantity(about="audio")) == ()
    assert results.seeds() == [50, 51]
    assert (study / "results" / "ranks.parquet").stat().st_size < 20_000


def test_a_score_without_numbers_to_fit_has_those_of_its_training(tmp_path):
    save_run(tmp_path / "main" / "triangle-50", "triangle", 30)
    path = tmp_path / "main" / "triangle-50.parquet"
    table = pq.read_table(path)
    pq.write_table(table.filter([name == "as trained" for name in table["numbers"].to_pylist()]), path)
    describe_clips(save_clips(tmp_path / "made"), tmp_path / "clips" / "main.json")
    collect(tmp_path, tmp_path / "results")
    assert StudyResults(tmp_path / "results").means(Quantity("triangle", numbers="fitted")) == (30,)


def test_reciprocal_ranks_count_up_to_the_tenth(tmp_path):
    save_run(tmp_path / "main" / "scalar-50", "scalar", 0)
    path = tmp_path / "main" / "scalar-50.parquet"
    rows = pq.read_table(path).to_pylist()
    for row in rows:
        row["ranks"] = bytes([1, 4, 10, 11] if row["direction"] == "text_to_video" else [2, 1, 11, 11])
    pq.write_table(type(pq.read_table(path)).from_pylist(rows), path)
    describe_clips(save_clips(tmp_path / "made", num_queries=4), tmp_path / "clips" / "main.json")
    collect(tmp_path, tmp_path / "results")
    found = StudyResults(tmp_path / "results")
    assert found.values(Quantity(measure="mrr")).tolist() == [[100, 25, 10, 0]]
    assert found.values(Quantity(measure="mrr", direction=BOTH)).tolist() == [[75, 62.5, 5, 0]]
    assert found.values(Quantity(direction=BOTH)).tolist() == [[50, 50, 0, 0]]
    for wrong in ({"measure": "median"}, {"direction": "up"}):
        with pytest.raises(ValueError, match=next(iter(wrong.values()))):
            Quantity(**wrong)


def test_gain_is_over_the_best_single_modality_of_the_same_embeddings(results):
    assert results.best_modality(plain()) == "subtitle"
    assert results.means(plain(gain=True)) == (25, 26)
    assert results.means(plain(gain=True, masked="0.5")) == (25, 26)  # the single ones are masked, too
    assert results.best_modality(plain(experiment="repeated")) is None
    assert results.means(plain(experiment="repeated", gain=True)) == ()
    gain = with_interval(results, Difference("x", "", plain(gain=True)))
    assert gain["difference"] == pytest.approx(25.5) and gain["low"] > 0


def test_a_difference_of_two_methods_is_bounded_over_queries_and_trainings(results):
    found = with_interval(results, Difference("x", "", plain(experiment="main"), Quantity("gram", experiment="main")))
    assert found["difference"] == pytest.approx(10.5)
    assert 4 < found["low"] < 10.5 < found["high"] < 18  # ten queries of a hundred: 10 ± 1.96 * 3
    assert side_of_zero(found) == "above" and found["sets"] == ("main",)
    assert with_interval(results, Difference("x", "", Quantity(), Quantity("pmrl"))) is None


def test_scores_of_the_same_embeddings_are_paired(results, monkeypatch):
    asked = []
    monkeypatch.setattr(differences, "pooled_interval", lambda sets, paired: asked.append(paired) or {})
    for second in (plain(), Quantity("gram"), None, Quantity("gram", "scalar")):
        with_interval(results, Difference("x", "", Quantity(), second))
    assert asked == [True, False, True]  # the last was not measured
    assert not Difference("x", "", Quantity(), Quantity(experiment="repeated")).same_trainings


def test_sets_of_clips_are_pooled_where_both_sides_were_measured(results):
    pooled = with_interval(results, Difference("x", "", plain(), plain("gram")))
    assert pooled["difference"] == pytest.approx((10.5 + 20) / 2) and pooled["sets"] == ("main", "repeated")
    gain = with_interval(results, Difference("x", "", plain(gain=True)))
    assert gain["sets"] == ("main",)  # no single modality was measured on the other clips


def test_claims_named_in_advance_are_judged_and_no_others(results):
    claims = named_claims()
    assert len(claims) == 7 and all(claim.first.measure == "mrr" for claim in claims)
    assert [claim.name for claim in claims if claim.first.gain] == ["views"]
    found = judged_claims(results)
    assert found.keys() == {"gram"}  # no equal weights, no complete clips, no spans in these results
    entry = found["gram"]
    assert entry["verdict"] == "shown" and entry["sets"] == ("main", "repeated")
    assert entry["adjusted"] == pytest.approx(min(1, 7 * entry["p_value"]))
    assert as_recall(entry["of"]).first == Quantity(direction=BOTH)
    assert not any("verdict" in each for each in described_differences(results).values())
    rows = {row[0]: [str(cell) for cell in row[1:]] for row in named_table(results).rows}
    assert rows["SCALAR − GRAM, all clips"][0] == "seed 0, seed 1"
    assert sum(row[-1] == "not measured" for row in rows.values()) == 6


@pytest.mark.parametrize("low, high, p_value, verdict", [
    (1, 3, 0.001, "shown"), (-3, -1, 0.001, "reverse"), (0.1, 3, 0.04, "undecided"), (-1, 2, 0.5, "undecided"),
])  # fmt: skip
def test_verdicts(study, monkeypatch, low, high, p_value, verdict):
    entry = {"difference": (low + high) / 2, "low": low, "high": high, "p_value": p_value, "sets": ("main",)}
    monkeypatch.setattr(differences, "with_interval", lambda results, claim: dict(entry))
    assert {found["verdict"] for found in judged_claims(StudyResults(study / "results")).values()} == {verdict}


def test_every_table_stands_on_the_results_alone(results):
    text = report(results)
    assert "| SCALAR " in text and "## Differences" in text and "## Perfect readers" in text
    cells = [str(cell) for cell in main_table(results).rows[0]]
    assert cells[:2] == ["SCALAR", "7"] and cells[4:7] == ["65.2 ± 5.5", "67.2 ± 3.2", "100.0 ± 0.0"]
    row = [str(cell) for cell in sharing_table(results).rows[0]]
    assert row == ["SCALAR", "nothing masked", "20.0 ± 0.0", "40.0 ± 0.0"]
    gains = [str(cell) for cell in gains_table(results).rows[0]]
    assert gains[1:4] == ["67.2 ± 3.2", "subtitle", "35.0 ± 0.0"] and gains[4].startswith("+29.5 [")
    assert all(name in TABLES for name in ("views", "disagreement", "arity", "repeated", "attribution"))


def test_settings_at_an_end_of_what_was_tried_are_marked(study):
    results = StudyResults(study / "results")
    chosen = {"temperature": 0.8, "learning_rate": 0.003, "num_train_epochs": 8}
    trials = []
    for change in (
        {},
        {"temperature": 0.1},
        {"learning_rate": 0.01},
        {"learning_rate": 0.001},
        {"num_train_epochs": 4},
    ):
        trials.append({"settings": chosen | change, "mean_reciprocal_rank": 40.0 - len(change)})
    results.study["tuning"] = {
        "measure": "mean_reciprocal_rank",
        "methods": {"pmrl": {"chosen": chosen, "trials": trials}},
    }
    assert [str(cell) for cell in settings_table(results).rows[0]] == ["PMRL", "0.8†", "0.003", "8†", "–", "40.0"]


def test_a_page_is_filled_with_tables_differences_and_recalls(results):
    text = fill(
        "SCALAR {{mean scalar numbers=fitted}}, masked {{mean scalar masked=0.5}}: "
        "{{difference lead-gram above}} {{difference gram}}.\n\n{{table main}}\n\n"
        "{{mean scalar kinds=single clips=disagree}} {{clips main num_train}} {{lack main audio}} {{lack main any}} "
        "{{option scalar query_temperature}}",
        results,
    )
    assert text.startswith("SCALAR 67.2, masked 57.2: +17.2 [")
    assert text.endswith(" 1,500 15 40 0.5") and "| GRAM " in text and "{{" not in text
    for wrong in (
        "{{table best}}", "{{difference lead-pmrl above}}", "{{difference lead-gram below}}",
                "{{words lead-gram a b}}", "{{difference lead-best}}", "{{mean pmrl}}", "{{figure x}}",
        "{{clips main best}}", "{{lack other any}}", "{{option pmrl query_temperature}}",
    ):  # fmt: skip
        with pytest.raises(ValueError, match=re.escape(wrong)):
            fill(wrong, results)


def test_the_figure_has_a_line_for_each_variant(results, tmp_path):
    plot(results, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


# A study of full shape -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "measured"
    save_whole_study(folder)
    collect(folder, folder.with_name("results"))
    return StudyResults(folder.with_name("results"))


def test_one_command_writes_the_tables_the_page_and_the_figure_of_a_finished_study(whole, tmp_path):
    page = tmp_path / "page.md"
    run_study(StudyConfig(report_only=True, results=whole.folder, page=page))
    text = page.read_text()
    assert "{{" not in text
    assert (whole.folder / "README.md").read_text() == report(whole) + "\n"
    assert (tmp_path / "miniature_sharing.png").stat().st_size > 10_000
    for title in (
        "SCALAR, trained at temperature 0.1",
        "SCALAR, full fine-tuning",
        "corrected volume",
        "temperature inf",
    ):
        assert title in report(whole)


def test_every_claim_of_the_paper_that_the_study_measures_has_a_verdict(whole):
    not_run = {row[0] for row in paper_table(whole).rows if row[-1] == "not run"}
    assert not_run == {
        "gain, 90 % masked: SCALAR − without masked views",
        "reranked, 90 % masked: SCALAR comes near picture alone", "scores on five public benchmarks",
    }  # fmt: skip


def test_claims_are_judged_with_the_fits_that_are_kept_on_both_sets_of_clips(whole):
    judged = judged_claims(whole)
    assert len(judged) == 7 and {entry["of"].first.numbers for entry in judged.values()} == {"fitted"}
    assert all(entry["sets"] == ("main", "repeated") for entry in judged.values())
    assert len(whole.means(Quantity())) == 6 and len(whole.means(Quantity("scalar_full_ft"))) == 3
    # The clips that disagree are the same for the trainings on both sets.
    assert len(whole.means(Quantity(clips="disagree"))) == 3
    assert described_differences(whole)["disagree-gram"]["sets"] == ("main",)


def test_the_number_of_fitted_numbers_is_that_of_the_fits_that_are_kept(whole):
    numbers = {row[0]: row[1] for row in main_table(whole).rows}
    assert numbers["SCALAR"] == "1 or 7" and numbers["HyperGRAM"] == "0"
    assert numbers["corrected volume, GRAM's embeddings"] == "0 or 2"
    gram = next(row for row in settings_table(whole).rows if row[0] == "GRAM")
    assert str(gram[4]).startswith("0.089")


def test_galleries_of_the_same_size_are_the_mean_of_all_draws():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(40, 40)) + 2 * np.eye(40)
    ranks = (scores >= scores.diagonal()[:, None]).sum(1).clip(max=11)
    hits = []
    for _ in range(3000):
        kept = rng.permutation(40)[:28]
        part = scores[np.ix_(kept, kept)]
        hits.append((part.argmax(1) == np.arange(28)).mean())
    assert chances_of_first(40, 28)[ranks].mean() == pytest.approx(np.mean(hits), abs=0.005)
    assert chances_of_first(40, 40)[:3].tolist() == [0, 1, 0]


def test_complete_clips_are_those_that_were_drawn_so(whole):
    drawn = draw_split(0, "test", 60)
    clips = whole.study["clips"]["main"]
    assert is_complete(clips).tolist() == [len(clip.attributes) == 3 for clip in drawn]
    values = whole.values(Quantity(clips="complete", kinds=("several",)))
    groups = [kind for (kind, *_), complete in zip(clips["queries"], is_complete(clips), strict=True) if complete]
    assert values.shape == (3, groups.count("several"))
    assert whole.values(Quantity(clips=SAME_SIZE)).shape == (3, 60)
