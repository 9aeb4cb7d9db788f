"""The backbone that is kept with the recipes: it is what its files say, and the recipe still leads there."""

import ast
import json
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from evidence.building import build_backbone
from evidence.halve import LOG
from evidence.miniature.generation import generate
from gallery.files import sha256_of
from modeling_scalar import load_model
from trainer.recipe import read_recipe

ROOT = Path(__file__).resolve().parents[2]
BACKBONE = ROOT / "recipes" / "miniature_backbone"
FIRST, RECIPE = (ROOT / "recipes" / f"miniature_backbone{name}.yaml" for name in ("", "_matching"))
CLIPS = {"num_train": 6000, "num_validation": 0, "num_test": 0, "seed": 100, "alone": True}


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


def logged(output):
    return [ast.literal_eval(line) for line in output.splitlines() if line.startswith("{'loss'")]


@pytest.mark.slow
def test_the_recipe_still_leads_there(commands, tmp_path):
    """Its first sixty steps on its own clips, under the schedule of the first of its two runs."""
    generate(tmp_path / "clips", **CLIPS)
    log = [entry for entry in json.loads((BACKBONE / LOG).read_text())["log"] if "loss" in entry]
    build_backbone(tmp_path / "clips", tmp_path / "new", seed=50)
    fields = [
        "--root",
        tmp_path / "clips",
        "--model",
        tmp_path / "new",
        "--output_dir",
        tmp_path / "run",
        "--disable_tqdm",
        "true",
    ]
    running = commands.start("train.py", FIRST, *fields, "--use_cpu", "true", cwd=ROOT)
    stop = time.monotonic() + 600
    while len(logged(running.printed())) < 3 and time.monotonic() < stop:
        time.sleep(1)
    running.kill()
    found = logged(running.printed())
    assert len(found) >= 3, running.printed("stderr")
    for ours, kept in zip(found, log, strict=False):
        assert float(ours["loss"]) == pytest.approx(float(kept["loss"]), rel=0.02)
    assert "loss_dam" in log[-1] and float(log[-1]["loss_pathways"]) < 0.5 * float(log[0]["loss_pathways"])
