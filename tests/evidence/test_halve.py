"""A trained model in half precision: what is kept of it, and what is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file

from scalar_retrieval.gallery.store.files import sha256_of
from scalar_retrieval.modeling_scalar import load_model


@pytest.fixture
def run(commands, tiny_run, tmp_path):
    fields = ["--adapter", "full", "--learning_rate", "1e-3"]
    command = tiny_run.command(tmp_path / "run", *fields, features=False, steps=3)
    ended = commands.run(*command, timeout=60)
    assert ended.code == 0, ended.stderr
    return tmp_path / "run"


def test_a_halved_model_computes_in_full_precision_with_rounded_weights(run, tmp_path, commands):
    ended = commands.run("-m", "evidence", "halve", run, tmp_path / "half", timeout=60)
    assert ended.code == 0, ended.stderr
    stored = load_file(tmp_path / "half" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    weights = load_file(run / "model.safetensors")
    loaded, _ = load_model(tmp_path / "half")  # no dtype is given
    assert {tensor.dtype for tensor in loaded.state_dict().values()} == {torch.float32}
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, weights[name].half().float()), name
    log = json.loads((tmp_path / "half" / "log.json").read_text())
    assert log["sha256"] == sha256_of(tmp_path / "half" / "model.safetensors")
    assert [entry["step"] for entry in log["log"]] and all("loss" in str(entry) for entry in log["log"])
    fields = json.loads((tmp_path / "half" / "recipe.json").read_text())
    assert fields["adapter"] == "full" and "output_dir" not in fields
