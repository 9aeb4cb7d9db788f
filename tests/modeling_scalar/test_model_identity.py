"""Which model a name or a folder is, what decides its embeddings, and where it runs in which precision."""

import hashlib
import json
import shutil

import pytest
import torch

from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.modeling_scalar.model_identity import (
    SENTENCE_TRANSFORMERS,
    default_device,
    default_dtype,
    identify,
)
from tests.joint_encoders import write_joint_encoder

GEMMA, OTHER = {"model_type": "embedding_gemma2"}, {"model_type": "bert"}
MEAN = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]
DEEP = [{"type": "x.Transformer", "path": "0_Transformer"}, MEAN[1]]
ADAPTER = {"base_model_name_or_path": "base"}


def write(folder, **files):
    folder.mkdir()
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("files", "kind", "encoder", "is_joint"),
    [
        ({"config": {"model_type": "scalar"}}, "model", None, False),
        ({"config": {"model_type": "scalar_joint"}, "modules": MEAN}, "model", None, True),
        ({"config": GEMMA}, "encoder", "embedding_gemma2", True),
        ({"config": GEMMA, "modules": MEAN}, "encoder", "embedding_gemma2", True),
        ({"config": GEMMA, "modules": DEEP}, "encoder", SENTENCE_TRANSFORMERS, True),
        ({"config": OTHER, "modules": MEAN}, "encoder", SENTENCE_TRANSFORMERS, True),
        ({"adapter_config": ADAPTER, "config": {"model_type": "scalar"}}, "adapter", None, False),
        ({"adapter_config": ADAPTER}, "adapter", None, True),  # as its base
        ({"config": OTHER}, None, None, False),
        ({"config": {"model_type": ["scalar"]}}, None, None, False),
        ({}, None, None, False),
    ],
)
def test_a_folder_says_what_it_is(tmp_path, monkeypatch, files, kind, encoder, is_joint):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "base", config=GEMMA)
    found = identify(write(tmp_path / "model", **files))
    assert (found.kind, found.encoder, found.is_joint) == (kind, encoder, is_joint)
    assert found.name == str(tmp_path / "model") and found.download() == tmp_path / "model"
    assert (found.base and found.base.name) == (str(tmp_path / "base") if kind == "adapter" else None)


def test_what_is_nowhere_is_a_missing_file_and_a_wrong_value():
    for error in (FileNotFoundError, ValueError):
        with pytest.raises(error, match="There is no model folder '/no/such/folder'"):
            identify("/no/such/folder")


# Fingerprints -------------------------------------------------------------------------------------------------------


def save_model(folder, weights=b"weights", **config):
    write(folder, config=config)
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def test_the_fingerprint_follows_the_content_not_the_place_and_the_base_of_an_adapter(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # else the Hub is asked for "user/base"
    base, same = save_model(tmp_path / "base"), save_model(tmp_path / "same")
    (same / "README.md").write_text("a card")
    others = [save_model(tmp_path / "b", b"other"), save_model(tmp_path / "c", dim=2), save_model(tmp_path / "d")]
    (others[2] / "processor_config.json").write_text("{}")
    adapter = tmp_path / "adapter"
    fingerprints = {identify(folder).fingerprint for folder in (base, same, *others)}
    assert len(fingerprints) == 4
    of_bases = []
    for folder in (base, same, others[0], "user/base"):
        shutil.rmtree(adapter, ignore_errors=True)
        write(adapter, adapter_config={"base_model_name_or_path": str(folder), "r": 4})
        (adapter / "adapter_model.safetensors").write_bytes(b"lora")
        of_bases.append(identify(adapter).fingerprint)
    assert of_bases[0] == of_bases[1] and len(fingerprints | set(of_bases)) == 7


def test_weights_are_known_by_their_digests(tmp_path):
    adapter = write(tmp_path / "adapter", adapter_config={"base_model_name_or_path": "user/base"})
    (adapter / "adapter_model.safetensors").write_bytes(b"lora")
    model = save_model(tmp_path / "model")
    (model / "targets.safetensors").write_bytes(b"no weights of the model")
    assert identify(adapter).weights == {"adapter_model.safetensors": hashlib.sha256(b"lora").hexdigest()}
    assert identify(model).weights == {"model.safetensors": hashlib.sha256(b"weights").hexdigest()}
    for name in ("weights", "fingerprint"):
        with pytest.raises(FileNotFoundError, match="holds no model"):
            getattr(identify(write(tmp_path / name)), name)


# Devices ------------------------------------------------------------------------------------------------------------


def test_a_build_for_an_accelerator_runs_on_the_cpu_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert default_device() == torch.device("cpu")


def test_a_joint_encoder_computes_in_full_precision_on_a_processor_and_in_half_on_a_gpu(tmp_path, monkeypatch):
    folder = write_joint_encoder(tmp_path / "encoder")
    model, _ = load_model(folder)
    model.backbone.to(torch.bfloat16).save_pretrained(folder)  # as it may be published
    assert load_model(folder)[0].dtype == torch.bfloat16  # nothing was said of a device
    assert load_model(folder, device="cpu")[0].dtype == torch.float32
    for has_it, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda has_it=has_it: has_it)
        assert default_dtype(folder, torch.device("cuda")) == expected
    towers = write(tmp_path / "towers", config={"model_type": "scalar"})
    assert default_dtype(towers, torch.device("cuda")) is None
