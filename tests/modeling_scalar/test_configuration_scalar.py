"""Defaults are the paper's sizes; relations between fields are checked; a saved configuration comes back whole."""

import pytest

from scalar_retrieval.modeling_scalar import MODALITIES, ScalarConfig, ScalarModel
from tests.conftest import make_tiny_config


def test_the_default_is_the_papers_network():
    config = ScalarConfig()
    assert MODALITIES == ("video", "audio", "subtitle")
    parts = (config.vision_config, config.audio_config, config.text_config)
    sizes = [(part.num_hidden_layers, part.hidden_size) for part in parts]
    assert sizes == [(40, 1408), (12, 768), (12, 768)]
    assert (config.projection_dim, config.query_temperature, config.aggregation) == (512, 0.1, "scalar")
    assert config.has_cross_attention and not config.has_concat_heads


def test_a_saved_configuration_comes_back_whole(tmp_path):
    """A part of the text's keeps its cross-attention, and texts are read in both directions."""
    fields = {"projection_dim": 64, "modality_scale": [0.5, 2.0, 1.0], "modality_offset": [0.0, -0.1, 0.1]}
    ScalarConfig(text_config={"hidden_size": 24, "num_attention_heads": 2}, **fields).save_pretrained(tmp_path)
    again = ScalarConfig.from_pretrained(tmp_path)
    text = again.text_config
    assert (text.hidden_size, text.is_decoder, text.add_cross_attention, text.is_causal) == (24, True, True, False)
    assert {name: getattr(again, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"query_temperature": 0}, "query_temperature"),
        ({"audio_pooling": "cls"}, "needs a class token"),
        ({"text_config": {"model_type": "bert", "is_decoder": True, "add_cross_attention": True}}, "is_causal"),
        ({"projection_dim": "512"}, "projection_dim"),
        ({"modalities": ["video", "audio"]}, "modalities"),
        ({"modality_scale": [1.0, 1.0]}, "modality_scale"),
    ],
)
def test_a_bad_field_is_refused_by_name(fields, message):
    with pytest.raises(Exception, match=message):
        ScalarConfig(**fields)


def test_a_score_by_concatenation_heads_needs_them():
    with pytest.raises(ValueError, match="--concat-heads"):
        ScalarModel(make_tiny_config(aggregation="concat_head"))
    model = ScalarModel(make_tiny_config(aggregation="concat_head", has_concat_heads=True))
    assert model.score_options()["method"] == "concat_head"


def test_a_score_that_is_not_registered_is_refused_when_the_model_is_built():
    with pytest.raises(ValueError, match="`aggregation` must be one of .*'scalar'.*got 'median'"):
        ScalarModel(make_tiny_config(aggregation="median"))
