"""Features of the towers in place of their inputs, and the learned scalars of a model."""

import pytest
import torch

from scalar_retrieval.modeling_scalar import ScalarModel
from scalar_retrieval.modeling_scalar.scores_scalar import retrieval_scores
from tests.conftest import make_tiny_config

RAW = ("pixel_values_videos", "input_features")
MASKS = {
    "complete": torch.ones(4, 3, dtype=torch.bool),
    "partial": torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 1]]).bool(),
    "no audio": torch.tensor([[1, 0, 1], [1, 0, 0], [1, 0, 0], [0, 0, 1]]).bool(),
}


def with_features(model, batch, **options):
    """The batch with its pixels and filter banks replaced by what the towers give for them."""
    batch = dict(batch)
    features = model.get_tower_features(*(batch.pop(name) for name in RAW), batch["modality_mask"], **options)
    return batch | features


def training_step(model, batch):
    """The outputs and the gradients of the heads of a step as training makes it."""

    def select_pairs(output):
        states = output.condition_states[:3], output.condition_mask[:3]
        return batch["input_ids"][:3], batch["attention_mask"][:3], *states

    model.zero_grad()
    output = model(**batch, select_pairs=select_pairs, condition_on=("video", "audio"))
    (output.scores.sum() + output.match_logits.sum()).backward()
    found = {name: x.grad for name, x in model.named_parameters() if x.grad is not None and "_model" not in name}
    assert len(found) > 10
    for name in ("text_embeds", "modality_embeds", "modality_mask", "scores", "match_logits", "condition_states"):
        found[name] = output[name]
    return found


@pytest.mark.parametrize("mask", MASKS)
def test_a_step_from_features_is_exactly_the_step_from_pixels(tiny_model, batch, mask):
    batch["modality_mask"] = MASKS[mask]
    for index, name in enumerate(RAW):
        batch[name][~batch["modality_mask"][:, index]] = float("nan")
    expected = training_step(tiny_model, batch)
    assert all(value.isfinite().all() for value in expected.values())
    found = training_step(tiny_model, with_features(tiny_model, batch))
    torch.testing.assert_close(found, expected, atol=0, rtol=0)


@torch.no_grad()
def test_features_are_zero_where_absent_and_not_there_where_no_clip_has_them(tiny_model, batch):
    features = tiny_model.get_tower_features(*(batch[name] for name in RAW), MASKS["no audio"])
    assert features.keys() == {"video_pooled", "video_states"}
    for value in features.values():
        assert value.flatten(1).any(dim=1).tolist() == [True, True, True, False]


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


def test_the_hyperbolic_scalars_reach_the_scores_and_the_output(batch):
    torch.manual_seed(0)
    model = ScalarModel(make_tiny_config(aggregation="hypergram")).eval()
    output = model(**batch)
    mix, curvature = output.score_parameters
    embeds = output.text_embeds, output.modality_embeds, output.modality_mask
    expected = retrieval_scores(*embeds, "hypergram", hyperbolic_mix=mix, curvature=curvature)
    torch.testing.assert_close(output.scores, expected)
    output.scores.sum().backward()
    assert all(x.grad.abs() > 0 for x in model.hyperbolic.parameters())
