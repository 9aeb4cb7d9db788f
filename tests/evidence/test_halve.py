"""A trained model in half precision: what is kept of it."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from evidence.halve import halve
from scalar_retrieval.gallery.store.files import sha256_of
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.trainer.checkpoints import finish_checkpoint


def test_a_halved_model_computes_in_full_precision_with_rounded_weights(tmp_path, tiny_model_dir):
    # The folder of a run as its training leaves it.
    run = Path(shutil.copytree(tiny_model_dir, tmp_path / "run"))
    (run / "recipe.json").write_text(json.dumps({"adapter": "full", "output_dir": "run"}))
    last = run / "checkpoint-3"
    last.mkdir()
    log = {"log_history": [{"step": 3, "loss": 0.5, "loss_match": 0.1, "grad_norm": 2.0}]}
    (last / "trainer_state.json").write_text(json.dumps(log))
    (last / "rng_state.pth").touch()
    finish_checkpoint(last, 3, {})

    half = tmp_path / "half"
    halve(run, half)
    assert {tensor.dtype for tensor in load_file(half / "model.safetensors").values()} == {torch.float16}
    weights, (loaded, _) = load_file(run / "model.safetensors"), load_model(half)  # no dtype is given
    for name, tensor in loaded.state_dict().items():
        torch.testing.assert_close(tensor, weights[name].half().float(), rtol=0, atol=0)
    log = json.loads((half / "log.json").read_text())
    assert log["sha256"] == sha256_of(half / "model.safetensors")
    assert log["log"] == [{"step": 3, "loss": 0.5, "loss_match": 0.1}]
    assert json.loads((half / "recipe.json").read_text()) == {"adapter": "full"}
