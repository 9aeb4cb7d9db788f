"""The backbone that is kept with the recipes: it is what its files say, and the recipe still leads there."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from evidence.halve import LOG
from scalar_retrieval.gallery.store.files import sha256_of
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.trainer.recipe_files import read_recipe

ROOT = Path(__file__).resolve().parents[2]
BACKBONE = ROOT / "recipes" / "miniature_backbone"
FIRST, RECIPE = (ROOT / "recipes" / f"miniature_backbone{name}.yaml" for name in ("", "_matching"))


def test_the_weights_are_those_of_the_log_and_small():
    weights = BACKBONE / "model.safetensors"
    assert json.loads((BACKBONE / LOG).read_text())["sha256"] == sha256_of(weights)
    assert weights.stat().st_size < 5e6
    assert {tensor.dtype for tensor in load_file(weights).values()} == {torch.float16}


def test_it_is_loaded_in_full_precision_and_has_learned_to_match_subtitles_too():
    model, processor = load_model(BACKBONE)
    assert model.dtype == torch.float32 and model.config.condition_on == ["video", "audio", "subtitle"]
    assert processor.image_processor.image_size == model.config.vision_config.image_size


def test_its_training_had_the_fields_of_the_recipe():
    found, recipe = json.loads((BACKBONE / "recipe.json").read_text()), read_recipe(RECIPE)
    assert not {"output_dir"} & found.keys() and recipe.pop("output_dir")
    different = {name for name, value in recipe.items() if name not in found or found[name] != value}
    assert not different
    assert found["matching_weight"] > 0 and found["adapter"] == "full"
