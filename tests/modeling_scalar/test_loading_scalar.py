"""One way to load a model with its processor, and its refusals."""

import pytest
import torch
from transformers import BertConfig, BertModel

from modeling_scalar import ScalarModel, load_model


def test_a_model_comes_with_its_processor_in_evaluation_mode(tiny_model_dir, tiny_processor):
    model, processor = load_model(tiny_model_dir, dtype=torch.bfloat16)
    assert isinstance(model, ScalarModel) and not model.training and model.dtype == torch.bfloat16
    assert processor.image_processor.image_size == tiny_processor.image_processor.image_size


def test_a_folder_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="no/such/folder"):
        load_model("no/such/folder")


def test_another_model_is_refused(tmp_path, tiny_processor):
    tiny_processor.save_pretrained(tmp_path)
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=10, **small)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="must hold a ScalarModel, got BertModel"):
        load_model(tmp_path)


def test_a_tokenizer_is_no_processor(tmp_path, tiny_model, tiny_processor):
    tiny_model.save_pretrained(tmp_path)
    tiny_processor.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="processor"):
        load_model(tmp_path)
