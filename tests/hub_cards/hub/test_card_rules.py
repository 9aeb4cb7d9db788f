"""Each rule on a card that breaks it, and on one that does not."""

import pytest

from hub_cards.hub.card_rules import check_card, validate
from tests.conftest import ROOT

MODEL = """\
license: apache-2.0
language: [en, deu, multilingual]
library_name: peft
pipeline_tag: feature-extraction
base_model: user/base
base_model_relation: adapter
tags: [video-retrieval]
co2_eq_emissions: {emissions: 1.2}
model-index:
- name: model
  results:
  - task: {type: text-to-video-retrieval}
    dataset: {type: msrvtt, name: MSR-VTT}
    metrics: [{type: recall_at_1, value: 32.3}, {type: recall_at_1, value: 3}]
"""
DATASET = """\
license: cc-by-4.0
size_categories: [n<1K]
task_categories: [text-retrieval]
pretty_name: A gallery
configs:
- config_name: clips
  default: true
  data_files: [{split: test, path: clips/*.parquet}]
- config_name: queries
  data_files: [{split: test, path: [queries/test.parquet]}]
"""
SPACE = """\
title: A Space
emoji: 🔎
colorFrom: blue
colorTo: green
sdk: gradio
sdk_version: 6.31.0
python_version: "3.11"
app_file: app.py
short_description: Finds videos by text
models: [user/model]
datasets: [user/data]
pinned: false
license: other
license_name: my-license
license_link: LICENSE
"""
CARDS = {"model": MODEL, "dataset": DATASET, "space": SPACE}
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

    def check(front_matter, text=TEXT, repo_type=None):
        (tmp_path / "README.md").write_text(f"---\n{front_matter}---\n\n{text}", encoding="utf-8")
        return validate(tmp_path, repo_type)

    return check


@pytest.mark.parametrize("repo_type", CARDS)
def test_a_good_card_has_no_problem(problems, repo_type):
    assert problems(CARDS[repo_type], repo_type=repo_type) == []
    assert problems(CARDS[repo_type]) == []  # the type shows


@pytest.mark.parametrize(
    ("repo_type", "old", "new", "problem"),
    [
        ("model", "license: apache-2.0", "license: apache2", "`license` must be an id"),
        ("model", "license: apache-2.0", "license: {a: b}", "`license` must be an id"),
        ("model", "license: apache-2.0", "license: other", "needs a `license_name`"),
        ("model", "license: apache-2.0", "license: mit\nlicense_name: mine", "belongs to `license: other`"),
        ("space", "license_link: LICENSE", "license_link: LICENCE", "`license_link` must be a URL or a file"),
        ("model", "[en, deu, multilingual]", "[english]", "`language` must be codes of ISO 639"),
        ("model", "[en, deu, multilingual]", "no", "quote it"),
        ("model", "library_name: peft", "library_name: [peft]", "`library_name`"),
        ("model", "feature-extraction", "video-retrieval", "`pipeline_tag` must be a task"),
        ("model", "base_model: user/base", "base_model: /runs/base", "`base_model` must be ids"),
        ("model", "base_model: user/base", "base_model: ../base", "`base_model` must be ids"),
        ("model", "base_model: user/base", "base_model: [user/base, a/b/c]", "got 'a/b/c'"),
        ("model", "base_model: user/base\n", "", "which is missing"),
        ("model", "relation: adapter", "relation: lora", "`base_model_relation` must be one of"),
        ("model", "tags: [video-retrieval]", "tags: video-retrieval", "`tags` must be a list"),
        ("model", "tags: [video-retrieval]", "tags: [1]", "`tags` must be a list"),
        ("model", "{emissions: 1.2}", "{emissions: much}", "`co2_eq_emissions`"),
        ("model", "{emissions: 1.2}", "{emissions: -1}", "`co2_eq_emissions`"),
        ("model", "- name: model\n  results", "- results", "needs the `name`"),
        ("model", "task: {type: text-to-video-retrieval}", "task: {name: retrieval}", "`task.type` must be a string"),
        ("model", "{type: msrvtt, name: MSR-VTT}", "{type: msrvtt}", "`dataset.name` must be a string"),
        ("model", "{type: msrvtt, name: MSR-VTT}", "{name: MSR-VTT}", "`dataset.type` must be a string"),
        ("model", "{type: msrvtt, name", "{type: data/my/msrvtt, name", "`dataset.type` must be ids"),
        ("model", "{type: recall_at_1, value: 32.3}", "{value: 32.3}", "needs a `type`"),
        ("model", "value: 32.3", "value: 'high'", "must be a finite number"),
        ("model", "value: 32.3", "value: .inf", "must be a finite number"),
        ("model", "value: 32.3", "value: .nan", "must be a finite number"),
        ("model", "value: 32.3", "value: true", "must be a finite number"),
        ("model", "[{type: recall_at_1, value: 32.3}, {type: recall_at_1, value: 3}]", "[]", "at least one"),
        ("model", "license: apache-2.0", "license: mit\nlicense: mit", "'license' is there twice"),
        ("model", "{emissions: 1.2}", "{emissions: 1.2, emissions: 1}", "'emissions' is there twice"),
        ("model", "license: apache-2.0", "license: mit: mit", "is not YAML"),
        ("dataset", "n<1K", "300", "`size_categories` must be some of"),
        ("dataset", "text-retrieval", "video-retrieval", "`task_categories` must be some of"),
        ("dataset", "pretty_name: A gallery", "pretty_name: [a]", "`pretty_name`"),
        ("dataset", "config_name: queries", "config_name: clips", "a `config_name` of its own"),
        ("dataset", "- config_name: queries", "- description: queries", "a `config_name` of its own"),
        ("dataset", "config_name: queries", "config_name: queries\n  default: true", "can be the default"),
        ("dataset", "clips/*.parquet", "clips/*.arrow", "names 'clips/*.arrow', but there is no such file"),
        ("dataset", "queries/test.parquet", "/queries/test.parquet", "paths inside the repository"),
        ("dataset", "queries/test.parquet", "../queries/test.parquet", "paths inside the repository"),
        ("dataset", "{split: test, path: clips", "{split: a-b, path: clips", "the name of a split"),
        ("space", "sdk: gradio", "sdk: streamlit", "`sdk` must be one of"),
        ("space", "sdk_version: 6.31.0", "sdk_version: 6.31", "Quote it"),
        ("space", 'python_version: "3.11"', "python_version: 3.10", "Quote it"),
        ("space", "app_file: app.py", "app_file: main.py", "'main.py', but there is no such file"),
        ("space", "app_file: app.py", "app_file: ../app.py", "but there is no such file"),
        ("space", "colorFrom: blue", "colorFrom: black", "`colorFrom` must be one of"),
        ("space", "colorTo: green", "colorTo: [green]", "`colorTo` must be one of"),
        ("space", "emoji: 🔎", "emoji: search", "`emoji` must be one emoji"),
        ("space", "Finds videos by text", "x" * 61, "at most 60 characters, got 61"),
        ("space", "[user/model]", "[/runs/model]", "`models` must be ids"),
        ("space", "[user/data]", "['data set']", "`datasets` must be ids"),
        ("space", "pinned: false", "pinned: 'no'", "`pinned` must be true or false"),
    ],
)
def test_a_card_that_breaks_a_rule_has_that_problem(problems, repo_type, old, new, problem):
    assert old in CARDS[repo_type]
    (found,) = problems(CARDS[repo_type].replace(old, new, 1), repo_type=repo_type)
    assert problem in found


def test_a_model_index_must_be_a_list(problems):
    (found,) = problems("model-index: {name: model}\n")
    assert "`model-index` must be a list" in found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("See [the file](missing.md).", "'missing.md' does not lead to a file"),
        ("![picture](results/picture.png)", "'results/picture.png' does not lead to a file"),
        ('<img src="picture.png">', "'picture.png' does not lead to a file"),
        ("[name]: missing.md", "'missing.md' does not lead to a file"),
        ("[up](../outside.md)", "'../outside.md' does not lead to a file"),
        ("[root](/LICENSE)", "'/LICENSE' does not lead to a file"),
        ("Trained by [More Information Needed].", "placeholder was left in: [More Information Needed]"),
        ("Trained by {{ developers }}.", "placeholder was left in: {{ developers }}"),
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


def test_a_metric_may_tell_its_spread(problems):
    """Cards of agents have it so, and the documentation of `EvalResult`."""
    for value in ("20.0 ± 1.2", "-261.22 +/- 21.69", ".5"):
        assert problems(CARDS["model"].replace("value: 32.3", f"value: '{value}'", 1)) == []


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
    assert problems(MODEL) == []
    assert validate(tmp_path / "README.md") == []


def test_a_link_to_weights_that_are_linked_themselves_is_good(problems, tmp_path):
    folder = tmp_path / "staged"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(tmp_path / "LICENSE")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n[weights](model.safetensors)\n", encoding="utf-8")
    (tmp_path / "LICENSE").touch()
    assert validate(folder, "model") == []


def test_what_is_not_there_or_unknown_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="README.md"):
        validate(tmp_path)
    with pytest.raises(ValueError, match="'kernel'"):
        validate(tmp_path, "kernel")


def test_a_card_is_refused_with_all_its_problems(problems, tmp_path):
    assert len(problems("license: x\nlanguage: y\n")) == 2
    with pytest.raises(ValueError, match=r"(?s)cannot be published:\n- `license`.*\n- `language`"):
        check_card(tmp_path, "model")
    problems(MODEL)
    check_card(tmp_path, "model")


def test_the_documentation_of_the_metrics_keeps_the_rules():
    cards = sorted((ROOT / "eval" / "metrics").glob("*/README.md"))
    assert len(cards) == 2
    for card in cards:
        assert [problem for problem in validate(card) if "`app_file`" not in problem] == []  # staged with the app


def test_what_is_escaped_is_no_link(tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: mit\ntags:\n- a\n---\nA clip called \\[1080p\\](1).mp4.\n")
    assert validate(tmp_path, "model") == []
    (tmp_path / "README.md").write_text("---\nlicense: mit\ntags:\n- a\n---\nA clip called [1080p](1).mp4.\n")
    assert "'1'" in " ".join(validate(tmp_path, "model"))
