"""A new model and its vocabulary: the same from the same texts, able to spell what it has not seen."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import BertTokenizer

from evidence.building import build_backbone, learn_vocabulary
from evidence.miniature.generation import generate
from scalar_retrieval.modeling_scalar import load_model

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ["A red star, slowly.", "a RED circle", "Zo\u00eb says: hello", "star star"]


def test_frequent_words_are_tokens_and_new_words_are_spelt():
    tokenizer = BertTokenizer(vocab=learn_vocabulary(TEXTS, 100))
    assert tokenizer.tokenize("A red STAR!") == ["a", "red", "star", "[UNK]"]
    assert tokenizer.tokenize("rest") == ["r", "##e", "##s", "##t"]
    assert tokenizer.tokenize("zo\u00eb") == ["zoe"]
    assert [tokenizer.convert_ids_to_tokens(i) for i in range(5)] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def test_the_order_of_texts_changes_no_vocabulary():
    learnt = list(learn_vocabulary(TEXTS, 60))
    assert list(learn_vocabulary(reversed(TEXTS), 60)) == learnt and "star" in learnt


def test_a_new_backbone_is_the_same_from_the_same_seed_and_loads_from_its_folder(tmp_path):
    generate(tmp_path / "data", num_train=8, num_validation=0, num_test=0, num_proc=1)
    for name, seed in (("a", 50), ("b", 50), ("c", 51)):
        build_backbone(tmp_path / "data", tmp_path / name, seed)
    weights = {name: load_file(tmp_path / name / "model.safetensors") for name in "abc"}
    same = {name: torch.equal(tensor, weights["b"][name]) for name, tensor in weights["a"].items()}
    assert all(same.values())
    assert not torch.equal(weights["a"]["text_projection.weight"], weights["c"]["text_projection.weight"])
    model, processor = load_model(tmp_path / "a")
    assert model.config.condition_on == ["video", "audio", "subtitle"]
    assert processor.image_processor.image_size == model.config.vision_config.image_size
    assert len(processor.tokenizer) == model.config.text_config.vocab_size
