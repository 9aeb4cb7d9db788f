"""A whole model: what is published of it, and its card."""

import json

import torch

from scalar_retrieval.hub_cards.card import Details
from scalar_retrieval.hub_cards.model import model_card, stage_model
from scalar_retrieval.modeling_scalar import ScalarModel
from tests.hub_cards.folders import CODE, PROCESSOR, make_model, names, write_card, write_json
from tests.hub_cards.records.test_runs import RECIPE, TRAINING


def test_a_whole_model_is_staged_with_the_code_of_this_version(model_dir, staged):
    (model_dir / "modeling_scalar.py").write_text("raise SystemExit")
    config = json.loads((model_dir / "config.json").read_text())
    write_json(config | {"auto_map": {"AutoModel": "somebody/else--modeling.Model"}}, model_dir / "config.json")
    stage_model(model_dir, staged)
    assert names(staged) == CODE | PROCESSOR | {"config.json", "model.safetensors"}
    assert "SystemExit" not in (staged / "modeling_scalar.py").read_text()
    assert json.loads((staged / "config.json").read_text())["auto_map"]["AutoModel"] == "modeling_scalar.ScalarModel"


def test_a_sharded_model_keeps_its_index(tiny_model, tiny_processor, tmp_path, staged, batch):
    tiny_model.save_pretrained(tmp_path / "sharded", max_shard_size="60KB")
    tiny_processor.save_pretrained(tmp_path / "sharded")
    stage_model(tmp_path / "sharded", staged)
    assert len(list(staged.glob("model-*.safetensors"))) > 1
    with torch.no_grad():
        assert torch.equal(ScalarModel.from_pretrained(staged)(**batch).scores, tiny_model(**batch).scores)


# Card ---------------------------------------------------------------------------------------------------------------


def test_a_card_lists_what_is_not_recorded(tmp_path):
    folder = make_model(tmp_path)
    card = write_card(folder, model_card(folder, "user/model", Details()))
    for part in (
        "`recipe.json` is missing",
        "which of them were trained is not recorded",
        "Hardware and time: not recorded.",
        "No evaluation is published with these weights",
        "No licence is given.",
    ):
        assert part in card.text
    assert card.data.to_dict().keys() == {"library_name", "pipeline_tag", "tags"}


def test_a_trained_model_shows_what_was_trained(tmp_path):
    folder = make_model(tmp_path)
    write_json(RECIPE, folder / "recipe.json")
    record = TRAINING | {"trainable_parameters": {"text_projection": 4}, "frozen_parameters": {"text_projection": 2}}
    write_json(record, folder / "training.json")
    body = write_card(folder, model_card(folder, "user/model", Details())).text
    assert "| `text_projection` | 6 | 4 |" in body and "| total | 6 | 4 |" in body
