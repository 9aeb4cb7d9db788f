"""What identifies the weights of a model, and all that decides what it embeds."""

import hashlib
import json
import shutil

import pytest

from modeling_scalar.model_identity import identify
from tests.modeling_scalar.test_loading import save_adapter


def save_model(folder, weights=b"weights", **config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def test_the_fingerprint_follows_the_content_not_the_place(tmp_path):
    first = save_model(tmp_path / "a", dim=1)
    second = save_model(tmp_path / "b", dim=1)
    (second / "README.md").write_text("a card")
    assert identify(first).fingerprint == identify(second).fingerprint
    fingerprints = {
        identify(folder).fingerprint
        for folder in (first, save_model(tmp_path / "c", dim=2), save_model(tmp_path / "d", b"other", dim=1))
    }
    assert len(fingerprints) == 3
    (second / "processor_config.json").write_text("{}")
    assert identify(first).fingerprint != identify(second).fingerprint


def test_the_fingerprint_of_an_adapter_includes_its_base(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # else the Hub is asked for "user/base"
    base, other = save_model(tmp_path / "base"), save_model(tmp_path / "other", b"other")
    moved = save_model(tmp_path / "moved")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"lora")
    fingerprints = []
    for folder in (base, moved, other, "user/base"):
        (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder), "r": 4}))
        fingerprints.append(identify(adapter).fingerprint)
    assert fingerprints[0] == fingerprints[1]
    assert len(set(fingerprints)) == 3


def test_a_folder_without_weights_has_no_fingerprint(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no model"):
        str(identify(tmp_path).fingerprint)


def test_weights_are_known_by_their_digests(tmp_path, tiny_model_dir, tiny_processor):
    save_adapter(tmp_path / "adapter", tiny_model_dir, tiny_processor)
    shutil.copytree(tiny_model_dir, tmp_path / "model")
    (tmp_path / "model" / "targets.safetensors").write_bytes(b"no weights of the model")
    for folder, name in (("adapter", "adapter_model.safetensors"), ("model", "model.safetensors")):
        expected = hashlib.sha256((tmp_path / folder / name).read_bytes()).hexdigest()
        assert identify(tmp_path / folder).weights == {name: expected}
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no weights"):
        str(identify(tmp_path / "empty").weights)
