"""Every figure that is published about the study is computed from the results in the repository."""

import re
from pathlib import Path

import pytest
import yaml

from evidence.reports.tables import markdown
from evidence.study.differences import described, interval, place
from evidence.study.report import fill, report
from evidence.study.results import Results
from evidence.study.tables import short_table
from evidence.study.tuning import GRID

ROOT = Path(__file__).resolve().parents[3]
STUDY = ROOT / "evidence" / "study"
AGAIN = "run `python -m evidence study --report-only"


@pytest.fixture(scope="module")
def results():
    return Results(STUDY / "results")


def test_the_page_is_its_template_filled_with_the_results(results):
    page = (ROOT / "docs" / "miniature_study.md").read_text(encoding="utf-8")
    assert page == fill((STUDY / "page.md").read_text(encoding="utf-8"), results), f"{AGAIN} --page …`"


def test_the_tables_are_computed_from_the_results(results):
    assert (STUDY / "results" / "README.md").read_text(encoding="utf-8") == report(results) + "\n", AGAIN


def test_the_readme_has_the_table_of_the_study_and_its_differences(results):
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert " ".join(markdown(short_table(results).filled()).split()) in readme
    shown = re.findall(r"[+−]\d+\.\d \[−?\d+\.\d, −?\d+\.\d\]", readme)
    found = {interval(entry): place(entry) for entry in described(results).values()}
    assert len(shown) >= 4 and all(found[each] == "above" for each in shown)


def test_the_lead_over_gram_stands_with_nothing_fitted_to_gram_and_where_no_clip_lacks_anything(results):
    temperatures = set()
    for options in results.options("scalar", "scalar", "as trained"):
        temperatures.add(options["query_temperature"])
    assert len(temperatures) == 1
    found = described(results)
    for name in ("README.md", "docs/miniature_study.md"):
        text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
        for lead in ("pooled-gram", "pooled-gram-back", "pooled-gram-complete", "pooled-gram-complete-back"):
            assert interval(found[lead]) in text
        assert interval(found["span-gram"]) in text
        assert f"{min(temperatures):g}" in text
        assert "as trained" in text and "unfitted" not in text


def test_the_recipe_of_the_demo_has_the_settings_that_were_chosen(results):
    recipe = yaml.safe_load((ROOT / "recipes" / "miniature.yaml").read_text(encoding="utf-8"))
    assert {name: recipe[name] for name in GRID} == results.study["tuning"]["methods"]["scalar"]["chosen"]


def test_the_results_are_complete_and_small(results):
    assert sum(path.stat().st_size for path in (STUDY / "results").iterdir()) <= 2_000_000
    assert len(results.seeds()) == 5
    experiments = {run["experiment"] for run in results.study["runs"]}
    assert experiments >= {"main", "repeated", "views-complete", "views-mixed", "sharing-0", "sharing-1"}
    assert results.study["second_stage"] and results.study["versions"]["torch"]
