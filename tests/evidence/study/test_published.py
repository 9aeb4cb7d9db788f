"""Every figure that is published about the study is computed from the results in the repository."""

import re
from pathlib import Path

import pytest
import yaml

from evidence.reports.tables import markdown
from evidence.study.differences import described_differences, format_interval, side_of_zero
from evidence.study.measure import AS_TRAINED
from evidence.study.report import report, write_page
from evidence.study.results import StudyResults
from evidence.study.runs import RECIPES
from evidence.study.tables import short_table
from evidence.study.tuning import GRID

ROOT = Path(__file__).resolve().parents[3]
STUDY = ROOT / "evidence" / "study"
AGAIN = "run `python -m evidence study --report-only --page docs/miniature_study.md`"


@pytest.fixture(scope="module")
def results():
    return StudyResults(STUDY / "results")


def test_the_page_is_its_template_filled_with_the_results(results, tmp_path):
    write_page(results, tmp_path / "page.md")
    written = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert (ROOT / "docs" / "miniature_study.md").read_text(encoding="utf-8") == written, AGAIN


def test_the_tables_are_computed_from_the_results(results):
    assert (STUDY / "results" / "README.md").read_text(encoding="utf-8") == report(results) + "\n", AGAIN


def test_the_readme_has_the_table_of_the_study_and_its_differences(results):
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert " ".join(markdown(short_table(results).filled()).split()) in readme
    shown = re.findall(r"[+−]\d+\.\d \[−?\d+\.\d, −?\d+\.\d\]", readme)
    found = {format_interval(entry) for entry in described_differences(results).values()}
    assert len(shown) >= 4 and found.issuperset(shown)


def test_the_lead_over_gram_is_shown_with_what_it_rests_on(results):
    """One fitted temperature; without it the lead is smaller, and a corrected volume is level."""
    (temperature,) = {entry["options"]["query_temperature"] for entry in results.entries("scalar", None, AS_TRAINED)}
    found = described_differences(results)
    leads = ("lead-gram", "lead-gram-back", "lead-gram-complete", "lead-gram-complete-back")
    at_paper_temperature = ("trained-01", "trained-01-back")
    for name in ("README.md", "docs/miniature_study.md"):
        text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
        for difference in (*leads, *at_paper_temperature, "lead-gram_corrected"):
            assert format_interval(found[difference]) in text
        assert "one fitted temperature" in text and f"{temperature:g}" in text
    assert {side_of_zero(found[name]) for name in leads} == {"above"}


def test_the_recipe_of_the_demo_has_the_settings_that_were_chosen(results):
    recipe = yaml.safe_load((ROOT / "recipes" / "miniature.yaml").read_text(encoding="utf-8"))
    assert {name: recipe[name] for name in GRID} == results.study["tuning"]["methods"]["scalar"]["chosen"]


def test_the_results_are_complete_and_small(results):
    assert sum(path.stat().st_size for path in (STUDY / "results").iterdir()) <= 4_000_000
    experiments = {run["experiment"] for run in results.study["runs"]}
    assert experiments >= {"main", "repeated", "views-complete", "views-new-heads", "sharing-0", "sharing-1"}
    assert results.study["second_stage"] and len(results.study["labels"]) == 8
    assert results.study["versions"]["torch"]
    assert len(results.seeds()) >= 3
    trained = {run["variant"] for run in results.study["runs"] if run["experiment"] == "main"}
    assert trained == RECIPES.keys() and results.seeds() == results.seeds("repeated")
