"""Cards come from files alone, survive what is in them, and keep what a person wrote."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard, SpaceCardData
from safetensors.numpy import save_file

from hub_cards import cards
from hub_cards.cards import KEPT_BEGIN, KEPT_END, Details, adapter_card, model_card, read_card, render
from hub_cards.markdown import Markdown, code, table, text
from hub_cards.results import R1, eval_results, read_results
from hub_cards.validation import check_card
from tests.hub_cards.test_results import SHA256, make_content, write_result
from tests.hub_cards.test_training import EMISSIONS, RECIPE, TRAINING, write_adapter

CONFIG = {
    "aggregation": "scalar",
    "query_temperature": 0.2,
    "projection_dim": 96,
    "vision_config": {"model_type": "blip_2_vision_model", "num_hidden_layers": 3},
    "audio_config": {"model_type": "beats", "num_hidden_layers": 3},
    "text_config": {"model_type": "bert", "num_hidden_layers": 2, "is_decoder": True, "add_cross_attention": True},
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ADAPTER = {
    "base_model_name_or_path": "user/base",
    "revision": COMMIT,
    "peft_type": "LORA",
    "r": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.0,
}


def write_json(content, path):
    path.write_text(json.dumps(content), encoding="utf-8")


def make_adapter(folder):
    """A staged adapter with everything that there can be."""
    folder.mkdir(exist_ok=True)
    write_adapter(folder)
    for name, content in (("config", CONFIG), ("adapter_config", ADAPTER), ("recipe", RECIPE), ("training", TRAINING)):
        write_json(content, folder / f"{name}.json")
    (folder / "emissions.csv").write_text(EMISSIONS + "1,183.0,0.0012,0.0031,Italy,,3.0.4\n", encoding="utf-8")
    result = write_result(folder, make_content())
    (result.parent / "results.png").touch()
    (result.parent / "report").mkdir()
    (result.parent / "report" / "tables.md").touch()
    return folder


def make_model(folder):
    """A staged model of which nothing is known."""
    folder.mkdir(exist_ok=True)
    save_file({"text_projection.weight": np.zeros((2, 3), np.float32)}, folder / "model.safetensors")
    write_json(CONFIG, folder / "config.json")
    return folder


def write_card(folder, card, repo_type="model"):
    (folder / "README.md").write_bytes(card.encode())
    check_card(folder, repo_type)
    return ModelCard(card)


# Round trip ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def template(tmp_path, monkeypatch):
    """A template of its own, beside the shared parts."""
    for part in cards._TEMPLATES.glob("_*.jinja"):
        (tmp_path / part.name).write_text(part.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(cards, "_TEMPLATES", tmp_path)

    def write(content='# Title\n\n{% include "_kept.md.jinja" %}\n'):
        (tmp_path / "kind.md.jinja").write_text(content, encoding="utf-8")

    write()
    return write


@pytest.mark.parametrize(
    "details",
    [
        Details(),
        Details("apache-2.0", ("en", "no")),  # YAML reads an unquoted `no` as false
        Details("other", (), "Text.", license_name="my-license", license_link="https://example.org"),
        *(
            Details("mit", ("en",), kept)
            for kept in (
                *("\n", "\r\n", "\n\n", "  ", " text \n", "one\r\ntwo\r\n", "ends with\r", "---\nlicense: mit\n---\n"),
                *("{{ name }} {% raw %}", "# Title\n\n```python\nx = 1\n```", "<b>bold</b> ünï – \u2028 \ufeff"),
                "<!-- a comment of one's own -->",
            )
        ),
    ],
)
def test_what_a_person_wrote_is_read_back_byte_for_byte(template, details):
    assert read_card(render("kind", {"title": "Title"}, details)) == ("kind", details)


def test_a_card_that_a_web_editor_gave_other_line_breaks_is_read(template):
    card = render("kind", {}, Details("mit", ("en",), "one\ntwo")).replace("\n", "\r\n")
    assert read_card(card) == ("kind", Details("mit", ("en",), "one\r\ntwo"))


def test_the_lines_may_be_moved_and_the_empty_line_between_them_taken_out(template):
    card = render("kind", {}, Details()).replace(f"{KEPT_BEGIN}\n\n{KEPT_END}", f"{KEPT_BEGIN}\n{KEPT_END}\n\nBelow.")
    assert read_card(card) == ("kind", Details())


@pytest.mark.parametrize(
    "change",
    [
        lambda card: card.replace(KEPT_END, ""),
        lambda card: card.replace(KEPT_BEGIN, ""),
        lambda card: card.replace(KEPT_BEGIN, "").replace(KEPT_END, ""),
        lambda card: card + f"\n{KEPT_END}\n",
        lambda card: card + f"\n{KEPT_BEGIN}\n{KEPT_END}\n",
        lambda card: card.replace(KEPT_END, "x").replace(KEPT_BEGIN, KEPT_END).replace("x", KEPT_BEGIN),
        lambda card: card.replace(KEPT_END, KEPT_END.replace("end", "End")),
        lambda card: card.replace("<!-- hub_cards: kind -->", ""),
        lambda card: card + "\n<!-- hub_cards: other -->\n",
        lambda card: card + "\n<!-- hub_cards: Begin -->\n",
    ],
)
def test_broken_marks_are_an_error(template, change):
    card = render("kind", {}, Details(kept="Kept."))
    with pytest.raises(ValueError, match="marked lines of the card are"):
        read_card(change(card))


def test_kept_text_with_a_marked_line_is_refused(template):
    for line in (KEPT_BEGIN, KEPT_END, "<!-- hub_cards: adapter -->"):
        with pytest.raises(ValueError, match="marked lines"):
            render("kind", {}, Details(kept=f"Text.\n{line}\nText."))


def test_a_card_of_others_has_no_kind_and_its_licence_is_known():
    assert read_card("# Title\n") == (None, Details())
    card = "---\nlicense: mit\nlanguage: en\n---\n# Title\n"
    assert read_card(card) == (None, Details("mit", ("en",)))


@pytest.mark.parametrize(
    ("front_matter", "message"),
    [
        ("license: [mit, apache-2.0]", "Choose one"),
        ("language: no", "Quote them"),
        ("- a list", "must be a mapping, got list"),
        ("a: b: c", "is not YAML"),
    ],
)
def test_a_front_matter_that_cannot_be_kept_is_an_error(front_matter, message):
    with pytest.raises(ValueError, match=message):
        read_card(f"---\n{front_matter}\n---\n# Title\n")


def test_what_is_given_now_wins_over_the_earlier_card():
    earlier = Details("other", ("de",), "Kept.", "my-license", "LICENSE")
    assert Details().over(earlier) == earlier
    assert Details("mit", ("en",)).over(earlier) == Details("mit", ("en",), "Kept.")
    assert Details(languages=("en",)).over(earlier) == Details("other", ("en",), "Kept.", "my-license", "LICENSE")


# Rendering ----------------------------------------------------------------------------------------------------------


def test_licence_and_languages_join_any_front_matter(template):
    details = Details("mit", ("en",))
    for data in ({"title": "Title"}, SpaceCardData(title="Title")):
        card = ModelCard(render("kind", data, details))
        assert card.data.to_dict() == {"title": "Title", "license": "mit", "language": ["en"]}
    with pytest.raises(ValueError, match="'mit' in the details of the card but 'gpl' in its data"):
        render("kind", {"license": "gpl"}, details)


def test_a_variable_that_a_template_misses_is_an_error(template):
    template('{{ missing }}\n{% include "_kept.md.jinja" %}\n')
    with pytest.raises(Exception, match="'missing' is undefined"):
        render("kind", {}, Details())


@pytest.mark.parametrize(
    ("content", "message"),
    [("# Title\n", "marked lines"), ("{{ kept_begin }}\nlost\n{{ kept_end }}\n", "would not be read back")],
)
def test_a_template_without_the_kept_section_is_an_error(template, content, message):
    template(content)
    with pytest.raises(ValueError, match=message):
        render("kind", {}, Details(kept="Kept."))


HOSTILE = "a|b\n# c <script>`x`</script> [l](http://e.org) **d** $e$ \\ ---\r\x00"


def test_foreign_text_stays_text():
    escaped = text(HOSTILE)
    assert "\n" not in escaped and "\r" not in escaped and "\x00" not in escaped
    assert not set("<>") & set(escaped)
    assert not set("`*[]$\\") & set(re.sub(r"\\.", "", escaped))
    assert text(escaped) == escaped and isinstance(escaped, Markdown)


def test_a_code_span_ends_where_it_should():
    assert code("plain_name") == "`plain_name`"
    assert code("a`b") == "``a`b``"
    assert code("`a\nb`") == "`` `a b` ``"
    assert code("") == "`  `"


def test_a_table_has_as_many_cells_as_columns():
    written = table(["a", "b"], [[HOSTILE, None], [code("x|y"), 3]], "lr").splitlines()
    assert len(written) == 4
    assert written[1] == "| --- | ---: |"
    for line in written:
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3
    assert written[3] == "| `x\\|y` | 3 |"
    with pytest.raises(ValueError, match="must have 2 cells, got 1"):
        table(["a", "b"], [["a"]])


# Adapters and models ------------------------------------------------------------------------------------------------


def test_a_card_is_read_back_with_the_figures_of_its_results(tmp_path):
    folder = make_adapter(tmp_path)
    write_card(folder, adapter_card(folder, "user/adapter", Details("apache-2.0", ("en",))))
    read = ModelCard.load(folder / "README.md")
    assert read.data.model_name == "adapter"

    def by_task(entries):
        return sorted(entries, key=lambda entry: (entry.task_type, entry.metric_name))

    expected = eval_results(read_results(folder))
    assert len(expected) == 26
    assert by_task(read.data.eval_results) == by_task(expected)


def test_the_front_matter_of_an_adapter(tmp_path):
    folder = make_adapter(tmp_path)
    data = write_card(folder, adapter_card(folder, "user/adapter", Details("apache-2.0", ("en",)))).data
    assert (data.library_name, data.base_model, data.base_model_relation) == ("peft", "user/base", "adapter")
    assert (data.license, data.language, data.pipeline_tag) == ("apache-2.0", ["en"], "feature-extraction")
    assert {"video-retrieval", "scalar", "lora"} <= set(data.tags)
    assert data.co2_eq_emissions == {
        "emissions": 1.2,
        "source": "CodeCarbon 3.0.4",
        "training_type": "fine-tuning",
        "geographical_location": "Italy",
        "hardware_used": "4 x NVIDIA A100-SXM4-64GB",
    }


def test_the_text_of_an_adapter_says_what_its_files_say(tmp_path):
    folder = make_adapter(tmp_path)
    body = write_card(folder, adapter_card(folder, "user/adapter", Details("apache-2.0"))).text
    for part in (
        "A LoRA adapter of 18 parameters for [user/base](https://huggingface.co/user/base)",
        f"at the commit `{COMMIT}`",
        'AutoPeftModelForFeatureExtraction.from_pretrained("user/adapter", trust_remote_code=True)',
        f'from_pretrained("user/base", revision="{COMMIT}", config=config, trust_remote_code=True)',
        'pip install torch "transformers>=5.23" "peft>=0.21"\n',
        "| LoRA rank | 8 |",
        "| `text_model` | 12 |",
        "| total | 18 |",
        "Hardware: 4 x NVIDIA A100-SXM4-64GB.",
        "Time: 3 min 3 s.",
        "Energy: 0.0031 kWh, 1.2 g of CO2 equivalents in 3 min 3 s, recorded by CodeCarbon 3.0.4",
        f"commit `{'b' * 40}` with changes",
        f"Gallery: 100 clips, SHA-256 `{SHA256}`, of which have video 95 (95 %)",
        "| SCALAR (own score) | 32.3 |",
        "](results/miniature-test/results.png)",
        "[tables](results/miniature-test/report/tables.md)",
        "This benchmark is synthetic",
        "No clip was left out.",
        "**Direction.**",
        "`apache-2.0`",
        "@article{mehrish2026scalar",
    ):
        assert part in body
    assert "not recorded" not in body


def test_what_is_not_known_is_said(tmp_path):
    folder = make_model(tmp_path)
    card = write_card(folder, model_card(folder, "user/model", Details()))
    for part in (
        "`recipe.json` is missing",
        "`training.json`, with its hardware, time and versions, is missing",
        "which of them were trained is not recorded",
        "Hardware: not recorded.",
        "Time: not recorded.",
        "Energy: not recorded.",
        "Nothing has been measured with these weights",
        "The publisher has named none.",
    ):
        assert part in card.text
    assert card.data.to_dict().keys() == {"library_name", "pipeline_tag", "tags"}


def test_left_out_clips_and_problems_are_said_openly(tmp_path):
    folder = make_model(tmp_path)
    write_result(folder, make_content(left_out=["a", "b"], problems=["clip <7>: no | sound", "clip 8: no sound"]))
    body = write_card(folder, model_card(folder, "user/model", Details())).text
    assert "as they have no file: 2 clips" in body
    assert "counts as absent: 2, such as `clip <7>: no | sound`" in body


def test_findings_stand_on_the_card(tmp_path):
    folder = make_model(tmp_path)
    content = make_content()
    content["two_stage"][0][R1] = 9.0
    write_result(folder, content)
    body = write_card(folder, model_card(folder, "user/model", Details())).text
    assert "show against this model:" in body and "from 32.3 to 9.0 with nothing masked" in body


def test_names_of_others_cannot_break_a_card(tmp_path):
    folder = make_model(tmp_path)
    write_result(folder, make_content(benchmark=HOSTILE, problems=[HOSTILE], left_out=[HOSTILE]))
    write_json(RECIPE | {"benchmark": HOSTILE, "optim": HOSTILE, "objective": HOSTILE}, folder / "recipe.json")
    card = write_card(folder, model_card(folder, "user/model", Details()))
    assert card.data.eval_results[0].dataset_name == HOSTILE
    outside_of_code = re.sub(r"(`+)[^`\n](?:.*?[^`])?\1(?!`)", "", card.text)
    assert "<script>" not in outside_of_code
    headings = [line for line in card.text.splitlines() if line.startswith("#")]
    assert sum("script" in heading for heading in headings) == 1  # that of its evaluation


def test_limitations_are_those_of_the_model(tmp_path):
    folder = make_model(tmp_path)
    text_config = {"model_type": "clip_text_model", "num_hidden_layers": 2}
    config = CONFIG | {"aggregation": "gram", "text_config": text_config}
    write_json(config, folder / "config.json")
    body = write_card(folder, model_card(folder, "user/model", Details())).text
    for part in ("**Direction.**", "**Second stage.**", "**Backbone.**", "compute_weights", r"\tau_w", "model.match"):
        assert part not in body
    assert "Clips are ranked by GRAM volume (`gram`" in body
    write_json(CONFIG | {"text_config": text_config}, folder / "config.json")
    write_json(RECIPE | {"benchmark": "vast27m"}, folder / "recipe.json")
    body = write_card(folder, model_card(folder, "user/model", Details())).text
    assert "This model has other towers" in body and "**Scale of the training.**" in body


@pytest.mark.parametrize(("aggregation", "needed"), [("triangle", "video or audio"), ("subtitle", "subtitle")])
def test_a_score_that_some_clips_do_not_have_is_not_praised_for_incomplete_clips(tmp_path, aggregation, needed):
    folder = make_adapter(tmp_path)
    write_json(CONFIG | {"aggregation": aggregation}, folder / "config.json")
    body = write_card(folder, adapter_card(folder, "user/adapter", Details())).text
    assert f"a clip without {needed} has no score and ranks last" in body
    assert "whichever of them" not in body and "computed from the embeddings" not in body
    assert (
        '"videos": [frames, frames.flip(-1)]' in body and '"audios": [tone, tone]' in body
    )  # or the snippet shows -inf
    write_json(CONFIG | {"aggregation": "gram"}, folder / "config.json")
    body = write_card(folder, adapter_card(folder, "user/adapter", Details())).text
    assert "has no score" not in body and "whichever of them a clip has" in body and "[frames, None]" in body


def test_a_warning_about_what_only_the_adapter_holds_is_explained(tmp_path):
    folder = make_adapter(tmp_path)
    assert "missing in the base" not in adapter_card(folder, "user/adapter", Details())
    save_file(
        {"base_model.model.logit_scale.log_scale": np.zeros(1, np.float32)}, folder / "adapter_model.safetensors"
    )
    (folder / "training.json").unlink()
    body = write_card(folder, adapter_card(folder, "user/adapter", Details())).text
    assert "Weights of `logit_scale` are reported as missing in the base: they are the adapter's own." in body


def test_an_infinite_temperature_is_written_as_one(tmp_path):
    folder = make_model(tmp_path)
    write_json(
        CONFIG | {"query_temperature": {"__float__": "Infinity"}}, folder / "config.json"
    )  # as transformers does
    body = write_card(folder, model_card(folder, "user/model", Details())).text
    assert r"\\(\tau_w\\) = inf, that is with equal weights," in body and "__float__" not in body


def test_a_second_stage_that_nothing_trained_is_called_random(tmp_path):
    folder = make_model(tmp_path)
    for change, sentence in (
        ({"new_model": "model.yaml", "matching_weight": 0.0}, "its weights are random"),
        ({"new_model": None, "matching_weight": 0.0}, "left that part as it was"),
        ({"new_model": "model.yaml"}, None),
    ):
        write_json(RECIPE | change, folder / "recipe.json")
        body = write_card(folder, model_card(folder, "user/model", Details())).text
        for known in ("its weights are random", "left that part as it was"):
            assert (known in body) == (known == sentence)


def test_with_class_labels_the_accuracy_is_named(tmp_path):
    folder = make_model(tmp_path)
    write_result(folder, make_content(task="classification"))
    body = write_card(folder, model_card(folder, "user/model", Details())).text
    assert "The texts are class labels, so V→T R@1 is the accuracy." in body


def test_the_packages_to_install_are_new_enough_for_the_code(tmp_path):
    """With an older transformers the remote code ends in an ImportError that does not say why."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = dict(re.match(r"(\w+)>=([\d.]+)", package).groups() for package in project["dependencies"])
    make_adapter(tmp_path / "adapter")
    make_model(tmp_path / "model")
    for folder, write, packages in (
        ("adapter", adapter_card, ("transformers", "peft")),
        ("model", model_card, ("transformers",)),
    ):
        (line,) = re.findall("^pip install torch .*$", write(tmp_path / folder, "user/name", Details()), re.MULTILINE)
        assert line == "pip install torch " + " ".join(f'"{name}>={oldest[name]}"' for name in packages)


def test_a_trained_model_shows_what_was_trained(tmp_path):
    folder = make_model(tmp_path)
    write_json(RECIPE | {"new_model": "recipes/model.yaml"}, folder / "recipe.json")
    record = TRAINING | {"trainable_parameters": {"text_projection": 4}, "frozen_parameters": {"text_projection": 2}}
    write_json(record, folder / "training.json")
    body = write_card(folder, model_card(folder, "user/model", Details())).text
    assert "| `text_projection` | 6 | 4 |" in body and "| total | 6 | 4 |" in body


def test_a_merged_model_names_its_base(tmp_path):
    folder = make_model(tmp_path)
    write_json(TRAINING, folder / "training.json")  # the record of the adapter
    write_json({"base_model": "user/base", "base_model_revision": COMMIT}, folder / "merge.json")
    write_result(folder, make_content())
    card = write_card(folder, model_card(folder, "user/merged", Details()))
    assert (card.data.base_model, card.data.base_model_relation) == ("user/base", "finetune")
    assert f"base `user/base` at the commit `{COMMIT}`" in card.text
    assert "measured with the adapter on its base" in card.text
    assert "An adapter of 18 parameters was trained on the base" in card.text
    write_json({"base_model": "base", "base_model_revision": None}, folder / "merge.json")
    assert write_card(folder, model_card(folder, "user/merged", Details())).data.base_model is None


@pytest.mark.parametrize("recipe", [None, RECIPE | {"aggregation": "gram"}])
def test_an_adapter_that_may_score_otherwise_than_its_base_is_loaded_with_its_own_configuration(tmp_path, recipe):
    folder = make_adapter(tmp_path)
    (folder / "recipe.json").unlink()
    if recipe is not None:
        write_json(recipe, folder / "recipe.json")
    body = write_card(folder, adapter_card(folder, "user/adapter", Details())).text
    assert "AutoPeftModel" not in body
    assert body.index("config = AutoConfig.from_pretrained") < body.index("model = PeftModel.from_pretrained")


def test_an_adapter_without_a_base_on_the_hub_is_refused(tmp_path):
    folder = make_adapter(tmp_path)
    for change in ({"base_model_name_or_path": "/runs/base"}, {"revision": 'x") or print("'}):
        write_json(ADAPTER | change, folder / "adapter_config.json")
        with pytest.raises(ValueError, match="adapter_config.json"):
            adapter_card(folder, "user/adapter", Details())


def test_weights_that_the_record_does_not_count_are_refused(tmp_path):
    folder = make_adapter(tmp_path)
    write_json(TRAINING | {"trainable_parameters": {"text_model": 12}}, folder / "training.json")
    with pytest.raises(ValueError, match="text_projection"):
        adapter_card(folder, "user/adapter", Details())


def test_a_folder_without_weights_is_refused(tmp_path):
    write_json(CONFIG, tmp_path / "config.json")
    for write in (model_card, adapter_card):
        with pytest.raises(FileNotFoundError, match="no weights"):
            write(tmp_path, "user/model", Details())


def test_the_blocks_of_a_card_are_python(tmp_path):
    make_adapter(tmp_path / "adapter")
    make_model(tmp_path / "model")
    for folder, write in ((tmp_path / "adapter", adapter_card), (tmp_path / "model", model_card)):
        blocks = re.findall(r"^```python\n(.*?)^```", write(folder, "user/name", Details()), re.MULTILINE | re.DOTALL)
        assert len(blocks) >= 4
        for block in blocks:
            compile(block, str(folder), "exec")
