"""How a model was made: its settings, its run, its energy and the parameters in its files."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from scalar_retrieval.hub_cards.records.runs import (
    count_parameters,
    read_emissions,
    training_table,
)

TRAINING = {
    "trainable_parameters": {"text_model": 12, "text_projection": 6},
    "frozen_parameters": {"text_model": 100, "vision_model": 50},
    "num_examples": 1500,
    "global_step": 1840,
    "batch_size": 64,
    "seconds": 183.4,
    "resumed": False,
    "hardware": {"device": "NVIDIA A100-SXM4-64GB", "num_processes": 4},
    "precision": "float32",
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
    "source": {"commit": "b" * 40, "dirty": True},
    "date": "2026-11-20T08:13:36+00:00",
}
RECIPE = {
    "benchmark": "miniature",
    "root": "data/miniature",
    "train_split": "train",
    "per_device_train_batch_size": 16,
    "num_train_epochs": 8.0,
    "max_steps": -1,
    "learning_rate": 0.003,
    "optim": "adamw_torch_fused",
    "objective": "scalar",
    "adapter": "paper",
    "aggregation": None,
    "temperature": 0.07,
    "learnable_temperature": False,
    "semantic_weight": 1.0,
    "semantic_temperature": 0.5,
    "matching_weight": 0.1,
    "seed": 50,
    "hub_token": "<HUB_TOKEN>",
}
EMISSIONS = "timestamp,duration,emissions,energy_consumed,country_name,region,codecarbon_version\n"


def write_adapter(folder):
    """Weights that `TRAINING` counts right."""
    tensors = {
        "base_model.model.text_model.layer.0.query.lora_A.weight": np.zeros((2, 3), np.float32),
        "base_model.model.text_model.layer.0.query.lora_B.weight": np.zeros((3, 2), np.float32),
        "base_model.model.text_projection.weight": np.zeros((2, 3), np.float32),
    }
    save_file(tensors, folder / "adapter_model.safetensors")


def test_the_parts_of_a_model_are_counted_together_and_none_twice(tmp_path):
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    save_file(
        {"text_model.a": np.zeros((112,), np.float32), "text_projection.weight": np.zeros(6)}, tmp_path / names[0]
    )
    save_file({"vision_model.a": np.zeros((5, 10), np.float16)}, tmp_path / names[1])
    counts = count_parameters([tmp_path / name for name in names])
    assert counts == {"text_model": 112, "text_projection": 6, "vision_model": 50}
    write_adapter(tmp_path)
    assert count_parameters([tmp_path / "adapter_model.safetensors"]) == {"text_model": 12, "text_projection": 6}


def test_the_table_shows_the_settings_that_matter_most_and_what_the_run_recorded():
    rows = dict(training_table(RECIPE, TRAINING, {"r": 8}))
    shown = {"r": 8, "learning_rate": 0.003, "batch size of a step": 64, "steps": 1840, "examples": 1500}
    assert {name: rows.get(f"`{name}`") for name in shown} == {name: f"`{value}`" for name, value in shown.items()}
    assert "`num_train_epochs`" in rows and "`max_steps`" not in rows
    assert not any("TOKEN" in str(value) or "data/" in str(value) for value in rows.values())
    rows = dict(training_table(RECIPE | {"max_steps": 6}, None, None))
    assert rows["`max_steps`"] == "`6`" and not {"`num_train_epochs`", "`r`", "`steps`"} & rows.keys()


@pytest.mark.parametrize("content", ["", "emissions\n", "emissions\n1\n", EMISSIONS + "now,1,much,1,,,3\n"])
def test_a_file_that_is_no_record_of_emissions_is_named(tmp_path, content):
    path = tmp_path / "emissions.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"emissions\.csv"):
        read_emissions(path)
