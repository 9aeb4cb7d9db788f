"""What transformers promises of any model: names of outputs, a loss, optional inputs, attentions."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from scalar_retrieval.modeling_scalar import ScalarModel
from tests.conftest import make_tiny_config


@torch.no_grad()
def test_scores_and_embeddings_have_the_names_of_transformers_too(tiny_model, batch):
    output = tiny_model(**batch)
    torch.testing.assert_close(output.logits_per_text, output.scores / 0.07)
    assert torch.equal(output.logits_per_video, output.logits_per_text.T)
    for index, name in enumerate(("video", "audio", "subtitle")):
        assert torch.equal(output[f"{name}_embeds"], output.modality_embeds[:, index])
    learned = ScalarModel(make_tiny_config(has_logit_scale=True)).eval()
    torch.nn.init.zeros_(learned.logit_scale.log_scale)  # a temperature of 1
    output = learned(**batch)
    assert torch.equal(output.logits_per_text, output.scores)


@torch.no_grad()
def test_the_loss_is_on_request_the_symmetric_info_nce_of_the_scores(tiny_model, batch):
    output = tiny_model(**batch, return_loss=True)
    logits, target = output.scores.double() / 0.07, torch.arange(4)
    expected = (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2
    torch.testing.assert_close(output.loss.double(), expected)
    assert tiny_model(**batch).loss is None
    fewer = {name: value[:2] if name in ("input_ids", "attention_mask") else value for name, value in batch.items()}
    assert tiny_model(**fewer, return_loss=True).loss is None  # no clip is known to belong to a query


@torch.no_grad()
def test_a_mask_of_tokens_is_optional_and_token_types_are_read(tiny_model, batch):
    ids = batch["input_ids"].clamp(min=5)
    expected = tiny_model(input_ids=ids, attention_mask=torch.ones_like(ids)).text_embeds
    assert torch.equal(tiny_model(input_ids=ids).text_embeds, expected)
    assert not torch.equal(tiny_model(input_ids=ids, token_type_ids=torch.ones_like(ids)).text_embeds, expected)


def test_an_attention_that_a_tower_lacks_is_refused_by_the_name_of_the_tower(tiny_model, tmp_path, batch):
    tiny_model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="BeatsModel does not support"):
        ScalarModel.from_pretrained(tmp_path, attn_implementation="flex_attention")
    choice = {"text_config": "eager", "vision_config": "sdpa", "audio_config": "eager"}
    model = ScalarModel.from_pretrained(tmp_path, attn_implementation=choice).eval()
    assert model.audio_model.config._attn_implementation == "eager"
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).scores, tiny_model(**batch).scores)
