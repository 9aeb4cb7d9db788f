"""Where models run and in which precision."""

import pytest
import torch

from modeling_scalar import default_device, load_model
from modeling_scalar.model_identity import default_dtype
from tests.joint_encoders import write_joint_encoder


@pytest.mark.parametrize("name", ["cuda", "mps", "xpu"])
def test_a_command_runs_on_the_accelerator_where_there_is_one(monkeypatch, name):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(name))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert default_device() == torch.device(name)


def test_a_build_for_an_accelerator_runs_on_the_cpu_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert default_device() == torch.device("cpu")


def test_a_joint_encoder_computes_in_full_precision_on_a_processor_and_in_half_on_a_gpu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_joint_encoder(tmp_path / "encoder")
    model, _ = load_model("encoder")
    model.backbone.to(torch.bfloat16).save_pretrained("encoder")  # as it may be published
    assert load_model("encoder")[0].dtype == torch.bfloat16  # nothing was said of a device
    with_device, _ = load_model("encoder", device=torch.device("cpu"))
    assert with_device.dtype == torch.float32
    for has_it, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda has_it=has_it: has_it)
        assert default_dtype("encoder", torch.device("cuda")) == expected
    (tmp_path / "towers").mkdir()
    (tmp_path / "towers" / "config.json").write_text('{"model_type": "scalar"}')
    assert default_dtype("towers", torch.device("cuda")) is None
