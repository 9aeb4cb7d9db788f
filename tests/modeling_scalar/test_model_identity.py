"""Which model a name or a folder is: one answer, whoever asks."""

import json

import pytest

from modeling_scalar.model_identity import SENTENCE_TRANSFORMERS, identify

GEMMA, OTHER = {"model_type": "embedding_gemma2"}, {"model_type": "bert"}
MEAN = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]
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
        ({"config": GEMMA, "modules": [*MEAN, {"type": "x.Dense"}]}, "encoder", SENTENCE_TRANSFORMERS, True),
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
    assert found.name == str(tmp_path / "model") and found.download() == tmp_path / "model" and found.commit is None
    base = str(tmp_path / "base") if kind == "adapter" else None
    assert (found.base and found.base.name) == base


def test_what_is_nowhere_is_a_missing_file_and_a_wrong_value():
    for error in (FileNotFoundError, ValueError):
        with pytest.raises(error, match="There is no model folder '/no/such/folder'"):
            identify("/no/such/folder")
