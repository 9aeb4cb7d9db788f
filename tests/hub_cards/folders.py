"""Folders of models and adapters: staged ones, and results as an evaluation leaves them."""

import json
import re

import numpy as np
from huggingface_hub import ModelCard
from safetensors.numpy import save_file

from scalar_retrieval.hub_cards.privacy import check_card
from scalar_retrieval.modeling_scalar.model_identity import identify
from tests.hub_cards.records.test_evaluations import make_content
from tests.hub_cards.records.test_evaluations import write_result as write_evaluation
from tests.hub_cards.records.test_runs import RECIPE, TRAINING, write_adapter

CODE = {
    *("modalities_scalar.py", "scores_scalar.py", "configuration_scalar.py"),
    *(
        "feature_extraction_scalar.py",
        "image_processing_scalar.py",
        "media_scalar.py",
        "tracks_scalar.py",
        "modeling_beats.py",
    ),
    *("modeling_scalar.py", "processing_scalar.py", "retrieval_scalar.py"),
}
PROCESSOR = {"processor_config.json", "tokenizer.json", "tokenizer_config.json"}
CONFIG = {
    "model_type": "scalar",
    "aggregation": "scalar",
    "query_temperature": 0.2,
    "projection_dim": 96,
    "vision_config": {"model_type": "blip_2_vision_model", "num_hidden_layers": 3},
    "audio_config": {"model_type": "beats", "num_hidden_layers": 3},
    "text_config": {"model_type": "bert", "num_hidden_layers": 2, "is_decoder": True, "add_cross_attention": True},
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ADAPTER = {
    "base_model_name_or_path": "user/base",
    "revision": COMMIT,
    "peft_type": "LORA",
    "r": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.0,
}


def write_json(content, path):
    path.write_text(json.dumps(content), encoding="utf-8")


def make_adapter(folder):
    """A staged adapter with everything that there can be."""
    folder.mkdir(exist_ok=True)
    write_adapter(folder)
    for name, content in (("config", CONFIG), ("adapter_config", ADAPTER), ("recipe", RECIPE), ("training", TRAINING)):
        write_json(content, folder / f"{name}.json")
    emissions = {"emissions": 1.2, "source": "CodeCarbon 3.0.4", "geographical_location": "Italy"}
    write_json(emissions, folder / "emissions.json")
    result = write_evaluation(folder, make_content())
    (result.parent / "results.png").touch()
    return folder


def make_model(folder):
    """A staged model of which nothing is known."""
    folder.mkdir(exist_ok=True)
    save_file({"text_projection.weight": np.zeros((2, 3), np.float32)}, folder / "model.safetensors")
    write_json(CONFIG, folder / "config.json")
    return folder


def write_card(folder, card):
    (folder / "README.md").write_bytes(card.encode())
    check_card(card)
    return ModelCard(card)


def write_result(folder, model, sha256="a" * 64, weights=None, **changes):
    """A result of a model as an evaluation leaves it, with paths of this machine."""
    content = make_content(
        problems=[f"{folder}/clips/b.mp4: no sound"],
        gallery={"num_clips": 2, "ids": ["/data/a.mp4", "b"], "presence": [[1, 1, 1], [1, 0, 0]], "sha256": sha256},
        embedded={"model": str(model), "weights": identify(model).weights if weights is None else weights},
        arguments={"root": "/home/me/data/x"},
        **changes,
    )
    folder.mkdir(parents=True)
    write_json(content, folder / "results.json")
    (folder / "results.png").write_bytes(b"\x89PNG")
    (folder / "queries.parquet").write_bytes(b"PAR1")
    (folder / "embeddings").mkdir()


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def blocks(text):
    """The snippets of a card."""
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
