"""Every figure that is published about the study is computed from the results in the repository."""

import re
from pathlib import Path

import pytest
import yaml

from evidence.reports.tables import markdown
from evidence.study.differences import described_differences, format_interval, side_of_zero
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
    found = {}
    for entry in described_differences(results).values():
        found[format_interval(entry)] = side_of_zero(entry)
    assert len(shown) >= 4 and all(found[each] == "above" for each in shown)


def test_the_lead_over_gram_stands_with_nothing_fitted_to_gram_and_where_no_clip_lacks_anything(results):
    temperatures = set()
    for entry in results.entries("scalar", "scalar", "as trained"):
        temperatures.add(entry["options"]["query_temperature"])
    assert len(temperatures) == 1
    found = described_differences(results)
    for name in ("README.md", "docs/miniature_study.md"):
        text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
        for lead in ("lead-gram", "lead-gram-back", "lead-gram-complete", "lead-gram-complete-back"):
            assert format_interval(found[lead]) in text
        assert format_interval(found["span-gram"]) in text
        assert f"{min(temperatures):g}" in text
        assert "as trained" in text and "unfitted" not in text


def test_the_recipe_of_the_demo_has_the_settings_that_were_chosen(results):
    recipe = yaml.safe_load((ROOT / "recipes" / "miniature.yaml").read_text(encoding="utf-8"))
    assert {name: recipe[name] for name in GRID} == results.study["tuning"]["methods"]["scalar"]["chosen"]


def test_the_results_are_complete_and_small(results):
    assert sum(path.stat().st_size for path in (STUDY / "results").iterdir()) <= 4_000_000
    experiments = {run["experiment"] for run in results.study["runs"]}
    assert experiments >= {"main", "repeated", "views-complete", "views-new-heads", "sharing-0", "sharing-1"}
    assert results.study["second_stage"] and results.study["versions"]["torch"]
    assert len(results.seeds()) >= 3
    trained = {run["variant"] for run in results.study["runs"] if run["experiment"] == "main"}
    assert trained == RECIPES.keys() and results.seeds() == results.seeds("repeated")
