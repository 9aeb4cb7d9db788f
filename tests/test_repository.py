"""Files that repeat what another file says: held together here."""

import re
import tomllib
from pathlib import Path

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


def test_what_contributing_names_is_there():
    text = " ".join((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split())
    for path in re.findall(r"`([\w/]+/\w+\.py)`", text):
        assert (ROOT / path).is_file(), f"there is no {path}"
    named = re.findall(r"`([\w.]+)` (?:in |\()`([\w/]+\.py)`", text)
    assert len(named) >= 25
    for name, path in named:
        defined = rf"^ *(?:def|class) {name.rpartition('.')[2]}\b"
        assert re.search(defined, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), f"{path} has no {name}"


def test_citation_is_that_of_the_readme():
    citation = read_yaml("CITATION.cff")
    paper, bibtex = citation["preferred-citation"], (ROOT / "README.md").read_text("utf-8").split("```bibtex")[1]
    authors = " and ".join(f"{author['family-names']}, {author['given-names']}" for author in paper["authors"])
    for field in (paper["title"], authors, paper["year"]):
        assert f"{{{field}}}" in bibtex
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])


def test_the_readme_installs_the_torch_of_the_constraints():
    pinned = re.search("^torch==.*", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)[0]
    assert f"pip install {pinned} " in (ROOT / "README.md").read_text(encoding="utf-8")
