"""Files that repeat what another file says: held together here."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.promises import PAGE, page, promises

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read_yaml(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_page_on_reliability_has_the_promises_of_the_tests_each_once():
    sentences = [promise.sentence for promise in promises()]
    assert len(set(sentences)) == len(sentences) > 20
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.promises --write`"


def walks():
    """The lines of each walk of CONTRIBUTING, by its title."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Where to look first\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    found = {}
    for part in section.split("\n### ")[1:]:
        title, _, steps = part.partition("\n")
        found[title] = re.split(r"^\d+\. ", steps, flags=re.MULTILINE)[1:]
    return found


def test_each_walk_has_few_steps_through_files_that_are_there():
    assert len(walks()) == 4
    for title, steps in walks().items():
        assert 5 <= len(steps) <= 10, title
        for path in re.findall(r"`([\w/]+\.py)`", " ".join(steps)):
            assert (ROOT / path).is_file(), f"{title}: there is no {path}"


def test_what_contributing_names_in_a_file_is_defined_there():
    text = " ".join((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split())
    named = re.findall(r"`([\w.]+)` (?:in |\()`([\w/]+\.py)`", text)
    assert len(named) >= 25
    for name, path in named:
        defined = rf"^ *(?:def|class) {name.rpartition('.')[2]}\b"
        assert re.search(defined, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), f"{path} has no {name}"


@pytest.mark.parametrize("tool", ["ruff", "typos"])
def test_hooks_run_the_checks_in_the_versions_of_the_constraints(tool):
    pinned = dict(line.strip().split("==") for line in (ROOT / "constraints.txt").open())
    (revision,) = {repo["rev"] for repo in read_yaml(".pre-commit-config.yaml")["repos"] if tool in repo["repo"]}
    assert revision == f"v{pinned[tool]}"


def test_workflow_runs_what_every_change_must_pass_from_the_first_python_on():
    job = read_yaml(".github/workflows/ci.yml")["jobs"]["test"]
    versions = job["strategy"]["matrix"]["python-version"]
    assert all(isinstance(version, str) for version in versions)  # 3.10 as a number is 3.1
    assert PROJECT["requires-python"] == f">={versions[0]}"
    assert any(step.get("run", "").endswith("bash .ci/run") for step in job["steps"])


def test_citation_is_that_of_the_readme():
    citation, readme = read_yaml("CITATION.cff"), (ROOT / "README.md").read_text(encoding="utf-8")
    paper, bibtex = citation["preferred-citation"], readme.split("```bibtex")[1]
    authors = " and ".join(f"{author['family-names']}, {author['given-names']}" for author in paper["authors"])
    assert f"{{{paper['title']}}}" in bibtex and f"{{{authors}}}" in bibtex and f"{{{paper['year']}}}" in bibtex
    assert citation["version"] == PROJECT["version"] and citation["license"] == PROJECT["license"]


def test_changelog_begins_with_the_version_or_what_comes_after_it():
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] in ("Unreleased", PROJECT["version"]) and PROJECT["version"] in headings


def test_the_readme_installs_the_torch_of_the_constraints():
    pinned = re.search("^torch==.*", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)[0]
    assert f"pip install {pinned} " in (ROOT / "README.md").read_text(encoding="utf-8")
