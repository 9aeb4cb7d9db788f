"""A whole model: what is published of it, and its card."""

import json

import pytest
import torch

from hub_cards.card import Details
from hub_cards.model import model_card, stage_model
from modeling_scalar import ScalarModel, ScalarProcessor, load_model
from tests.hub_cards.evidence.test_evaluations import make_content
from tests.hub_cards.evidence.test_evaluations import write_result as write_evaluation
from tests.hub_cards.evidence.test_runs import RECIPE, TRAINING
from tests.hub_cards.folders import CODE, COMMIT, PROCESSOR, make_model, names, write_card, write_json


def test_a_whole_model_is_staged_with_the_code_of_this_version(model_dir, staged):
    (model_dir / "modeling_scalar.py").write_text("raise SystemExit")
    config = json.loads((model_dir / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "somebody/else--modeling.Model"}
    (model_dir / "config.json").write_text(json.dumps(config))
    stage_model(model_dir, staged)
    assert names(staged) == CODE | PROCESSOR | {"config.json", "model.safetensors"}
    assert "SystemExit" not in (staged / "modeling_scalar.py").read_text()
    assert json.loads((staged / "config.json").read_text())["auto_map"]["AutoModel"] == "modeling_scalar.ScalarModel"
    assert isinstance(ScalarProcessor.from_pretrained(staged), ScalarProcessor)


def test_a_sharded_model_keeps_its_index(tiny_model, tiny_processor, tmp_path, staged, batch):
    tiny_model.save_pretrained(tmp_path / "sharded", max_shard_size="60KB")
    tiny_processor.save_pretrained(tmp_path / "sharded")
    stage_model(tmp_path / "sharded", staged)
    assert len(list(staged.glob("model-*.safetensors"))) > 1
    with torch.no_grad():
        assert torch.equal(ScalarModel.from_pretrained(staged)(**batch).scores, tiny_model(**batch).scores)


def test_a_merged_model_scores_as_the_adapter(adapter_dir, model_dir, staged, batch):
    stage_model(adapter_dir, staged, merge=True)
    merged, adapted = ScalarModel.from_pretrained(staged).eval(), load_model(adapter_dir)[0]
    with torch.no_grad():
        scores, expected = merged(**batch).scores, adapted(**batch).scores
        base = load_model(model_dir, aggregation="gram")[0](**batch).scores
    torch.testing.assert_close(scores, expected, atol=1e-6, rtol=0)
    assert (scores - base).abs().max() > 1e-3 and merged.config.aggregation == "gram"
    assert "adapter_config.json" not in names(staged)
    assert json.loads((staged / "merge.json").read_text()) == {"base_model": "model", "base_model_revision": None}
    assert (staged / "results" / "miniature-test-aaaaaaaa").is_dir()  # measured with the adapter that was merged


def test_an_adapter_is_not_taken_for_a_model(adapter_dir, model_dir, staged):
    with pytest.raises(ValueError, match="holds an adapter: publish it with `scalar publish adapter`, or .* --merge"):
        stage_model(adapter_dir, staged)
    with pytest.raises(ValueError, match="holds no adapter to merge"):
        stage_model(model_dir, staged, merge=True)


# Card ---------------------------------------------------------------------------------------------------------------


def test_what_is_not_known_is_said(tmp_path):
    folder = make_model(tmp_path)
    card = write_card(folder, model_card(folder, "user/model", Details()))
    for part in (
        "`recipe.json` is missing",
        "`training.json`, with hardware, time and versions, is missing",
        "which of them were trained is not recorded",
        "Hardware: not recorded.",
        "Time: not recorded.",
        "Emissions: not recorded.",
        "No evaluation is published with these weights",
        "No licence is given.",
    ):
        assert part in card.text
    assert card.data.to_dict().keys() == {"library_name", "pipeline_tag", "tags"}


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
    write_evaluation(folder, make_content())
    card = write_card(folder, model_card(folder, "user/merged", Details()))
    assert (card.data.base_model, card.data.base_model_relation) == ("user/base", "finetune")
    assert f"base `user/base` at the commit `{COMMIT}`" in card.text
    assert "measured with the adapter on its base" in card.text
    assert "An adapter of 18 parameters was trained on the base" in card.text
    write_json({"base_model": "base", "base_model_revision": None}, folder / "merge.json")
    assert write_card(folder, model_card(folder, "user/merged", Details())).data.base_model is None
