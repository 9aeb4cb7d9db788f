"""Each rule on a card that breaks it, and on one that does not."""

import json

import pytest

from hub_cards.hub.card_rules import ask_hub, refuse, validate
from tests.conftest import ROOT

CARD = "license: mit\n"
TEXT = "# Title\n\nA [page](https://example.org), and `code`.\n"


@pytest.fixture
def problems(tmp_path):
    """Check a card."""

    def check(front_matter, text=TEXT):
        (tmp_path / "README.md").write_text(f"---\n{front_matter}---\n\n{text}", encoding="utf-8")
        return validate(tmp_path)

    return check


def test_a_good_card_has_no_problem(problems):
    assert problems(CARD) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```\nHF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz\n```", "looks like an access token"),
        ("Trained in `/home/me/runs/model`.", "path of one machine: /home/me/runs/model"),
        ("Trained in C:\\Users\\me.", "path of one machine: C:\\Users\\me"),
        ("<!-- hub_cards: begin -->", "marked lines of the card are broken"),
    ],
)
def test_a_text_that_should_not_be_seen_has_that_problem(problems, text, problem):
    (found,) = problems("license: mit\n", text)
    assert problem in found


def test_a_token_is_never_repeated(problems):
    (found,) = problems("license: mit\n", "hf_abcdefghijklmnopqrstuvwxyz")
    assert "hf_" not in found


def test_local_paths_are_found_in_the_metadata_too(problems):
    (found,) = problems("license: mit\ncomment: /scratch/runs\n")
    assert "path of one machine: /scratch/runs" in found


@pytest.mark.parametrize("text", ["https://example.org/home/me", "a/data/b", "either/or", "s3://bucket/data/x"])
def test_other_slashes_are_no_local_paths(problems, text):
    assert problems("license: mit\n", text) == []


@pytest.mark.parametrize("card", ["# Title\n", "---\n- list\n---\n", "---\n---\n"])
def test_a_card_without_metadata_has_that_problem(tmp_path, card):
    (tmp_path / "README.md").write_text(card, encoding="utf-8")
    (found,) = validate(tmp_path)
    assert "front matter" in found


def test_a_file_can_be_given_in_place_of_its_folder(problems, tmp_path):
    assert problems(CARD) == []
    assert validate(tmp_path / "README.md") == []


def test_what_is_not_there_or_unknown_is_an_error(problems, tmp_path):
    with pytest.raises(FileNotFoundError, match="README.md"):
        validate(tmp_path)
    problems(CARD)
    with pytest.raises(ValueError, match="'kernel'"):
        ask_hub(tmp_path, "kernel")


def test_a_card_is_refused_with_all_its_problems(problems, tmp_path):
    assert len(problems(CARD, "`/home/me` and hf_abcdefghijklmnopqrstuvwxyz")) == 2
    with pytest.raises(ValueError, match=r"(?s)cannot be published:\n- There is something.*\n- There is a path"):
        refuse(validate(tmp_path))
    problems(CARD)
    refuse(validate(tmp_path))


@pytest.mark.parametrize(
    ("front_matter", "repo_type"),
    [("license: mit\n", "model"), ("size_categories: [n<1K]\n", "dataset"), ("sdk: gradio\n", "space")],
)
def test_the_hub_is_asked_about_its_own_rules(hub, problems, tmp_path, front_matter, repo_type):
    assert problems(front_matter) == [] and ask_hub(tmp_path) == []
    assert json.loads(hub.bodies[-1])["repoType"] == repo_type
    with hub.fail("POST", "/validate-yaml", status=400, body=b'"license" must be one of [mit]'):
        assert ask_hub(tmp_path) == ['"license" must be one of [mit]']


def test_the_documentation_of_the_metrics_keeps_the_rules():
    cards = sorted((ROOT / "eval" / "metrics").glob("*/README.md"))
    assert len(cards) == 2
    for card in cards:
        assert validate(card) == []
