"""Features of the towers in place of their inputs, and the learned temperature of a model."""

import pytest
import torch

from scalar_retrieval.modeling_scalar import ScalarModel
from tests.conftest import make_tiny_config

RAW = ("pixel_values_videos", "input_features")


def with_features(model, batch, **options):
    """The batch with its pixels and filter banks replaced by what the towers give for them."""
    batch = dict(batch)
    features = model.get_tower_features(*(batch.pop(name) for name in RAW), batch["modality_mask"], **options)
    return batch | features


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda f, b: f | {"pixel_values_videos": b["pixel_values_videos"]}, "pixel_values_videos"),
        (lambda f, b: f | {"video_pooled": None}, "video_states"),
        (lambda f, b: f | {"video_states": f["video_states"][:3]}, "video_states"),
    ],
)
def test_features_that_do_not_fit_together_are_refused(tiny_model, batch, change, name):
    features = change(with_features(tiny_model, batch), batch)
    del features["input_ids"], features["attention_mask"]
    with pytest.raises(ValueError, match=name):
        tiny_model.get_condition_states(**features)


def test_features_without_states_embed_but_do_not_match(tiny_model, batch):
    features = with_features(tiny_model, batch, with_states=False)
    assert torch.equal(tiny_model(**features).scores, tiny_model(**batch).scores)
    with pytest.raises(ValueError, match="tokens of the video"):
        tiny_model(**features, select_pairs=lambda output: pytest.fail("too late"))


# Learned scalars --------------------------------------------------------------------------------------------------


def test_the_temperature_starts_at_the_papers_reaches_the_output_and_stops_at_its_floor(batch):
    model = ScalarModel(make_tiny_config(has_logit_scale=True))
    temperature = model(**batch).temperature
    temperature.backward()
    gradient = model.logit_scale.log_scale.grad  # d exp(-p) / dp
    torch.testing.assert_close([temperature, gradient], [torch.tensor(0.07), torch.tensor(-0.07)])
    torch.nn.init.constant_(model.logit_scale.log_scale, 9.0)
    assert model.logit_scale().item() == pytest.approx(0.01)
