"""The study's results, its tables and claims, and its page."""

import re

import pyarrow.parquet as pq
import pytest

from evidence.study.report import (
    TABLES,
    Claim,
    bound,
    claims,
    fill,
    judged,
    main_table,
    plot_sharing,
    report,
    sharing_table,
)
from evidence.study.results import Results, Selection, collect
from tests.evidence.study.made_studies import save_clips, save_run


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    for seed in (50, 51):
        save_run(folder / "main" / f"scalar-{seed}", "scalar", 60 + (seed - 50), fitted=4, disagree=55)
        save_run(folder / "main" / f"gram-{seed}", "gram", 50, disagree=40)
        for level in ("0", "1"):
            save_run(folder / f"sharing-{level}" / f"scalar-{seed}", "scalar", 20 + 20 * float(level))
    clips = {"main": save_clips(folder / "clips" / "main")}
    collect(folder, clips, folder / "results")
    return folder


@pytest.fixture(scope="module")
def results(study):
    return Results(study / "results")


def test_what_was_measured_is_what_is_kept(study, results):
    assert results.recalls(Selection()) == (64, 65)  # the fitted numbers
    assert results.recalls(Selection(numbers="as trained")) == (60, 61)
    assert results.recalls(Selection("gram", masked="half")) == (40, 40)
    assert results.recalls(Selection(clips="disagree", numbers="as trained")) == (55, 55)
    assert results.recalls(Selection("pmrl")) == ()
    assert results.recalls(Selection(at=10)) == (100, 100)  # what is not first is seventh
    # Kinds alternate, and the first of a hundred are hits: of 60 the half is of each kind.
    assert results.hits(Selection(kinds=("single",), numbers="as trained")).shape == (2, 50)
    assert results.recalls(Selection(about="video", numbers="as trained")) == (60, 62)
    assert results.recalls(Selection(about="audio")) == ()
    assert results.seeds() == [50, 51]
    assert (study / "results" / "ranks.parquet").stat().st_size < 20_000


def test_a_score_without_numbers_to_fit_has_those_of_its_training(tmp_path):
    save_run(tmp_path / "main" / "triangle-50", "triangle", 30)
    path = tmp_path / "main" / "triangle-50" / "measured" / "ranks.parquet"
    table = pq.read_table(path)
    pq.write_table(table.filter([name == "as trained" for name in table["numbers"].to_pylist()]), path)
    collect(tmp_path, {"main": save_clips(tmp_path / "clips")}, tmp_path / "results")
    assert Results(tmp_path / "results").recalls(Selection("triangle", numbers="fitted")) == (30,)


def test_a_claim_is_bounded_over_queries_and_seeds(results):
    found = bound(results, Claim("x", "", Selection(numbers="as trained"), Selection("gram")))
    assert found["difference"] == pytest.approx(10.5)
    assert 4 < found["low"] < 10.5 < found["high"] < 18  # ten queries of a hundred: 10 ± 1.96 * 3
    assert bound(results, Claim("x", "", Selection(), Selection("pmrl"))) is None


def test_claims_are_adjusted_for_the_number_of_those_that_were_measured(results):
    found = judged(results)
    assert found.keys() < {claim.name for claim in claims()} and "scalar-gram" in found and "scalar-pmrl" not in found
    for entry in found.values():
        assert entry["p_value"] <= entry["adjusted"] <= min(1, len(found) * entry["p_value"] + 1e-12)
        reported = "ahead" if entry["difference"] > 0 else "behind"
        assert entry["verdict"] == (reported if entry["adjusted"] <= 0.05 else "undecided")
    assert found["scalar-gram"]["verdict"] == "ahead"


def test_every_table_stands_on_the_results_alone(results):
    text = report(results)
    assert "| SCALAR " in text and "## Claims" in text and "## Perfect readers" in text
    cells = [str(cell) for cell in main_table(results).rows[0]]
    assert cells[:5] == ["SCALAR", "60.5 ± 0.7", "64.5 ± 0.7", "100.0 ± 0.0", "54.5 ± 0.7"]
    row = [str(cell) for cell in sharing_table(results).rows[0]]
    assert row == ["SCALAR", "nothing masked", "20.0 ± 0.0", "64.5 ± 0.7", "40.0 ± 0.0"]
    assert all(name in TABLES for name in ("views", "disagreement", "arity", "repeated", "attribution"))


def test_a_page_is_filled_with_tables_claims_and_recalls(results):
    text = fill(
        "SCALAR {{recall scalar numbers=fitted}}, masked {{recall scalar masked=half}}: "
        "{{claim scalar-gram ahead}}.\n\n{{table main}}\n\n{{recall scalar kinds=single clips=disagree}}",
        results,
    )
    assert text.startswith("SCALAR 64.5, masked 54.5: +14.5 [")
    assert "| GRAM " in text and "{{" not in text
    for wrong in (
        "{{table best}}", "{{claim scalar-pmrl ahead}}", "{{claim scalar-gram behind}}", "{{claim scalar-gram}}",
        "{{recall pmrl}}", "{{figure x}}",
    ):  # fmt: skip
        with pytest.raises(ValueError, match=re.escape(wrong)):
            fill(wrong, results)


def test_the_figure_has_a_line_for_each_variant(results, tmp_path):
    plot_sharing(results, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
