"""The app as a Space: what is laid out, and its card."""

import ast
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
from huggingface_hub import RepoCard

from hub_cards.apps import GRADIO_VERSION, SEARCH
from hub_cards.card import Details, read_card
from hub_cards.hub.card_rules import check_card
from hub_cards.space import space_card, stage_space
from tests.conftest import ROOT

COMMITS = {"model_revision": "a" * 40, "gallery_revision": "b" * 40}
FILES = {"app.py", "rendering.py", "searching.py", "requirements.txt", "space.json"}


@pytest.fixture
def staged(tmp_path) -> Path:
    stage_space(tmp_path / "space", model="user/model", gallery="user/gallery", **COMMITS)
    return tmp_path / "space"


def test_the_folder_holds_the_app_and_nothing_else(staged):
    assert {path.name for path in staged.iterdir()} == FILES
    assert json.loads((staged / "space.json").read_text()) == {
        "model": "user/model",
        "gallery": "user/gallery",
        **COMMITS,
    }


def test_every_file_of_the_app_is_published(staged):
    sources = {path.name for path in SEARCH.iterdir() if path.is_file()}
    assert sources | {"space.json"} == FILES


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "user/two/three"},
        {"gallery": "/data/gallery"},
        {"model_revision": "main"},
        {"gallery_revision": "b" * 39},
    ],
)
def test_what_is_no_place_on_the_hub_is_refused(tmp_path, changes):
    with pytest.raises(ValueError, match=next(iter(changes)).removesuffix("_revision")):
        stage_space(tmp_path / "space", **({"model": "user/model", "gallery": "user/gallery"} | changes))
    assert not (tmp_path / "space").exists()


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="empty"):
        stage_space(tmp_path, model="user/model", gallery="user/gallery")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_card_passes_the_rules_of_the_hub(staged):
    card = space_card(staged, "user/demo", Details())
    (staged / "README.md").write_text(card)
    check_card(staged)
    data = RepoCard(card).data
    assert (data.sdk, data.sdk_version, data.app_file) == ("gradio", GRADIO_VERSION, "app.py")
    assert (data.models, data.datasets) == (["user/model"], ["user/gallery"])
    assert data.python_version == "3.11" and len(data.short_description) <= 60
    assert card.count("aaaaaaaa") == card.count("bbbbbbbb") == 1


def test_a_card_without_commits_names_none(tmp_path):
    stage_space(tmp_path / "space", model="user/model", gallery="user/gallery")
    card = space_card(tmp_path / "space", "user/demo", Details())
    assert "at commit" not in card and "None" not in card
    assert "gallery)\nwith the model" in card


@pytest.mark.parametrize("details", [Details(license="mit", languages=("en",), kept="## Mine\n\n* a\n"), Details()])
def test_what_a_person_wrote_is_read_back(staged, details):
    kind, found = read_card(space_card(staged, "user/demo", details))
    assert kind == "space"
    assert (found.license, found.languages, found.kept) == (
        details.license or "apache-2.0",
        details.languages,
        details.kept,
    )


def requirements() -> dict[str, str]:
    lines = (SEARCH / "requirements.txt").read_text().splitlines()
    wanted = [line for line in lines if line and not line.startswith(("#", "-"))]
    return {re.split(r"[<>=]", line)[0]: line for line in wanted}


def test_the_app_asks_for_the_versions_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"], *(x for extra in project["optional-dependencies"].values() for x in extra)]
    assert len(requirements()) == 5 and set(requirements().values()) <= set(listed)


def test_the_app_imports_only_what_the_space_installs():
    found = set()
    for path in SEARCH.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                found.add(node.module.split(".")[0])
    others = found - sys.stdlib_module_names
    assert others == {"gradio", "rendering", "searching", *requirements()}
