"""Each rule on a card that breaks it, and on one that does not."""

import json

import pytest

from hub_cards.hub.card_rules import ask_hub, check_card, validate
from tests.conftest import ROOT

CARD = """\
license: other
license_name: my-license
license_link: LICENSE
sdk: gradio
app_file: app.py
configs:
- config_name: clips
  data_files: [{split: test, path: clips/*.parquet}]
- config_name: queries
  data_files: [{split: test, path: [queries/test.parquet]}]
"""
TEXT = """\
# Title

A [file](LICENSE), a [part](#title), a [page](https://example.org), ![a picture](clips/a.parquet "Title") and
<img src="app.py">. In code nothing is a link: `[x](y)`, nor here:

```python
x = table[1](2)  # [More Information Needed]
```
"""


@pytest.fixture
def problems(tmp_path):
    """Check a card in a folder with some files."""
    for name in ("app.py", "LICENSE", "clips/a.parquet", "queries/test.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    def check(front_matter, text=TEXT):
        (tmp_path / "README.md").write_text(f"---\n{front_matter}---\n\n{text}", encoding="utf-8")
        return validate(tmp_path)

    return check


def test_a_good_card_has_no_problem(problems):
    assert problems(CARD) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("license_link: LICENSE", "license_link: LICENCE", "`license_link` is 'LICENCE', but there is no such file"),
        ("app_file: app.py", "app_file: main.py", "'main.py', but there is no such file"),
        ("app_file: app.py", "app_file: ../app.py", "but there is no such file"),
        ("clips/*.parquet", "clips/*.arrow", "names 'clips/*.arrow', but there is no such file"),
        ("queries/test.parquet", "/queries/test.parquet", "names '/queries/test.parquet', but"),
        ("queries/test.parquet", "../queries/test.parquet", "names '../queries/test.parquet', but"),
        ("license: other", "license: other\nlicense: mit", "'license' is there twice"),
        ("config_name: clips", "config_name: a\n  config_name: clips", "'config_name' is there twice"),
        ("license: other", "license: mit: mit", "is not YAML"),
    ],
)
def test_front_matter_that_leads_nowhere_has_that_problem(problems, old, new, problem):
    assert old in CARD
    (found,) = problems(CARD.replace(old, new, 1))
    assert problem in found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("See [the file](missing.md).", "'missing.md' does not lead to a file"),
        ("![picture](results/picture.png)", "'results/picture.png' does not lead to a file"),
        ('<img src="picture.png">', "'picture.png' does not lead to a file"),
        ("[name]: missing.md", "'missing.md' does not lead to a file"),
        ("[up](../outside.md)", "'../outside.md' does not lead to a file"),
        ("[root](/LICENSE)", "'/LICENSE' does not lead to a file"),
        ("```\nHF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz\n```", "looks like an access token"),
        ("Trained in `/home/me/runs/model`.", "path of one machine: /home/me/runs/model"),
        ("Trained in C:\\Users\\me.", "path of one machine: C:\\Users\\me"),
        ("<!-- hub_cards: begin -->", "marked lines of the card are broken"),
    ],
)
def test_a_text_that_should_not_be_seen_has_that_problem(problems, text, problem):
    (found,) = problems("license: mit\n", text)
    assert problem in found


@pytest.mark.parametrize(
    "text",
    [
        "Trained on [this](/datasets/user/data), see [there](/spaces/user/demo) and [here](/docs/hub/index#top).",
        "Links of [models](/models?library=peft) and <a href='/papers/2412.11959'>a paper</a>.",
    ],
)
def test_links_into_the_hub_are_no_files(problems, text):
    assert problems("license: mit\n", text) == []


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


def test_a_link_to_weights_that_are_linked_themselves_is_good(problems, tmp_path):
    folder = tmp_path / "staged"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(tmp_path / "LICENSE")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n[weights](model.safetensors)\n", encoding="utf-8")
    (tmp_path / "LICENSE").touch()
    assert validate(folder) == []


def test_what_is_not_there_or_unknown_is_an_error(problems, tmp_path):
    with pytest.raises(FileNotFoundError, match="README.md"):
        validate(tmp_path)
    problems(CARD)
    with pytest.raises(ValueError, match="'kernel'"):
        ask_hub(tmp_path, "kernel")


def test_a_card_is_refused_with_all_its_problems(problems, tmp_path):
    assert len(problems("license_link: nowhere\napp_file: nothing\n")) == 2
    with pytest.raises(ValueError, match=r"(?s)cannot be published:\n- `license_link`.*\n- `app_file`"):
        check_card(tmp_path)
    problems(CARD)
    check_card(tmp_path)


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
        assert [problem for problem in validate(card) if "`app_file`" not in problem] == []  # staged with the app


def test_what_is_escaped_is_no_link(tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: mit\ntags:\n- a\n---\nA clip called \\[1080p\\](1).mp4.\n")
    assert validate(tmp_path) == []
    (tmp_path / "README.md").write_text("---\nlicense: mit\ntags:\n- a\n---\nA clip called [1080p](1).mp4.\n")
    assert "'1'" in " ".join(validate(tmp_path))
