"""How a model was made: its settings, its run, its energy and the parameters in its files."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from hub_cards.evidence.runs import (
    check_parameters,
    count_parameters,
    read_emissions,
    read_training,
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


def test_parameters_are_counted_by_part(tmp_path):
    write_adapter(tmp_path)
    counts = count_parameters([tmp_path / "adapter_model.safetensors"])
    assert counts == {"text_model": 12, "text_projection": 6}
    check_parameters(counts, TRAINING, is_adapter=True)


def test_the_parts_of_a_model_are_counted_together_and_none_twice(tmp_path):
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    save_file(
        {"text_model.a": np.zeros((112,), np.float32), "text_projection.weight": np.zeros(6)}, tmp_path / names[0]
    )
    save_file({"vision_model.a": np.zeros((5, 10), np.float16)}, tmp_path / names[1])
    counts = count_parameters([tmp_path / name for name in names])
    check_parameters(counts, TRAINING, is_adapter=False)
    with pytest.raises(ValueError, match="text_model.a.*another file"):
        count_parameters([tmp_path / names[0], tmp_path / names[0]])


def test_a_record_that_disagrees_with_the_weights_is_refused(tmp_path):
    write_adapter(tmp_path)
    counts = count_parameters([tmp_path / "adapter_model.safetensors"])
    record = TRAINING | {"trainable_parameters": {"text_model": 12, "text_projection": 7}}
    with pytest.raises(ValueError, match=r"\{'text_projection': \(7, 6\)\}"):
        check_parameters(counts, record, is_adapter=True)
    with pytest.raises(ValueError, match="vision_model"):
        check_parameters(counts, TRAINING, is_adapter=False)


def test_a_pickle_is_not_counted(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        count_parameters([tmp_path / "model.safetensors"])


def test_a_record_is_read_whole_or_refused(tmp_path):
    path = tmp_path / "training.json"
    assert read_training(path) is None
    path.write_text(json.dumps(TRAINING), encoding="utf-8")
    assert read_training(path) == TRAINING
    for change in ({"seconds": "long"}, {"hardware": {"device": "CPU"}}, {"source": {"commit": "c"}}):
        path.write_text(json.dumps(TRAINING | change), encoding="utf-8")
        with pytest.raises(ValueError, match=f"{next(iter(change))}"):
            read_training(path)


def test_the_table_shows_what_the_objective_reads():
    adapter = {"r": 8, "lora_alpha": 16, "lora_dropout": 0.0}
    rows = dict(training_table(RECIPE, TRAINING, adapter))
    assert rows["LoRA rank"] == 8 and rows["LoRA alpha"] == 16
    assert rows["learning rate"] == "0.003" and rows["optimiser"] == "`adamw_torch_fused`"
    assert rows["temperature of the semantic affinities"] == "0.5"
    assert rows["batch size"] == "64" and rows["steps"] == "1,840" and rows["examples"] == "1,500"
    assert "batch size of one process" not in rows
    assert not any("TOKEN" in str(value) or "data/" in str(value) for value in rows.values())

    rows = dict(training_table(RECIPE | {"objective": "pmrl"}, None, None))
    assert not {"contrastive temperature", "weight of the semantic loss", "LoRA rank", "steps"} & rows.keys()
    assert rows["batch size of one process"] == 16
    rows = dict(training_table(RECIPE | {"semantic_weight": 0.0}, None, None))
    assert rows["weight of the semantic loss"] == "0.0"
    assert "temperature of the semantic affinities" not in rows
    rows = dict(training_table(RECIPE | {"learnable_temperature": True}, None, None))
    assert rows["contrastive temperature"] == "0.07, learned from there"
    assert training_table(None, None, None) == []


VIEWS = {"full_view_probability": 0.5, "full_view_decay_steps": 69, "loss_warmup_steps": 17, "uniformity_weight": 0.1}
OF_VIEWS = {"share of complete views after the decay", "steps of that decay"}


def test_settings_that_a_run_does_not_read_are_not_shown():
    recipe = RECIPE | VIEWS
    shown = dict(training_table(recipe, None, None))
    assert OF_VIEWS | {"epochs", "steps before semantic and uniformity loss"} <= shown.keys()
    for objective in ("contrastive", "pmrl", "pathways"):  # they see complete clips alone
        assert not OF_VIEWS & dict(training_table(recipe | {"objective": objective}, None, None)).keys()
    for change, unread in (
        ({"full_view_probability": 1.0}, "steps of that decay"),
        ({"semantic_weight": 0.0, "uniformity_weight": 0.0}, "steps before semantic and uniformity loss"),
        ({"max_steps": 6}, "epochs"),
    ):
        assert unread not in dict(training_table(recipe | change, None, None))
    with_one_loss = dict(training_table(recipe | {"semantic_weight": 0.0}, None, None))
    assert "steps before semantic and uniformity loss" in with_one_loss


def test_the_table_says_where_training_began_and_who_saw_whom():
    rows = dict(training_table(RECIPE | {"gradient_accumulation_steps": 4, "model": "base"}, TRAINING, None))
    assert rows["batch size"] == "64, of which 16 see each other"
    assert "initial weights" not in rows  # an adapter's base is named by its configuration
    rows = dict(training_table(RECIPE | {"adapter": "full", "model": "base"}, None, None))
    assert rows["initial weights"] == "`base`"
    rows = dict(training_table(RECIPE | {"adapter": "full", "model": None, "new_model": "model.yaml"}, None, None))
    assert rows["initial weights"] == "random"


def test_emissions_of_all_rows_are_added_in_grams(tmp_path):
    path = tmp_path / "emissions.csv"
    assert read_emissions(path) is None
    path.write_text(
        EMISSIONS + "1,100.0,0.0012,0.003,Italy,veneto,3.0.4\n2,50.0,0.0003,0.001,Italy,veneto,3.0.4\n", "utf-8"
    )
    found = read_emissions(path)
    assert found.grams == pytest.approx(1.5) and found.kilowatt_hours == pytest.approx(0.004)
    assert (found.seconds, found.place, found.version) == (150.0, "veneto, Italy", "3.0.4")


@pytest.mark.parametrize(
    "content", [EMISSIONS, "a,b\n1,2\n", EMISSIONS + "1,x,0.1,0.1,,,\n", EMISSIONS + "1,1,inf,1,,,\n"]
)
def test_what_codecarbon_did_not_write_is_refused(tmp_path, content):
    path = tmp_path / "emissions.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match="emissions.csv"):
        read_emissions(path)
