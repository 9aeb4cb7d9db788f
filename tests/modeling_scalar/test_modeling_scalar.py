"""The composite model: presence, invariance, matching, any encoders, saving."""

import json
import math

import pytest
import torch
from transformers import (
    AutoModel,
    BertConfig,
    BertModel,
    ClapAudioConfig,
    ClapAudioModel,
    ClapConfig,
    ClapModel,
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPVisionConfig,
    CLIPVisionModel,
    SiglipConfig,
    SiglipModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)
from transformers.models.audio_spectrogram_transformer import ASTConfig, ASTModel

from scalar_retrieval.modeling_scalar import MODALITIES, ScalarModel
from scalar_retrieval.modeling_scalar.scores_scalar import CONCATENATIONS, query_weights, retrieval_scores
from tests.conftest import make_batch, make_tiny_config
from tests.modeling_scalar.test_scores_scalar import CALIBRATION

CLOSE = {"atol": 1e-5, "rtol": 0}  # another batch shape sums in another order
TEXT_INPUTS = ("input_ids", "attention_mask")
CLIP_INPUTS = ("pixel_values_videos", "input_features", "subtitle_input_ids", "subtitle_attention_mask")


def clip_inputs(batch):
    """The inputs of a batch that are given of clips."""
    return {name: value for name, value in batch.items() if name not in TEXT_INPUTS}


def conditions(model, batch):
    return model.get_condition_states(**clip_inputs(batch))


@torch.no_grad()
def test_a_model_may_score_by_the_concatenation_head_for_exactly_what_a_clip_has():
    """A head reads the towers of clips that have all it needs."""
    torch.manual_seed(0)
    model = ScalarModel(make_tiny_config(aggregation="concat_head", has_concat_heads=True)).eval()
    batch = make_batch(5)
    batch["modality_mask"] = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 0, 0]]).bool()
    towers = model.get_tower_features(batch["pixel_values_videos"], batch["input_features"])
    subtitles = model.get_subtitle_features(batch["subtitle_input_ids"], batch["subtitle_attention_mask"])
    vectors = (towers["video_pooled"], towers["audio_pooled"], subtitles.last_hidden_state[:, 0])
    for index, name in enumerate(("pixel_values_videos", "input_features")):
        batch[name][~batch["modality_mask"][:, index]] = float("nan")
    output, heads = model(**batch), model.get_concat_features(**clip_inputs(batch))
    scores = torch.full((5, 5), -math.inf)
    for head, (names, clip) in enumerate(zip(CONCATENATIONS, (1, 2, 0), strict=True)):
        needed = [MODALITIES.index(name) for name in names]
        complete = batch["modality_mask"][:, needed].all(1)
        projected = model.concat_projections[head](torch.cat([vectors[place] for place in needed], dim=1))
        expected = torch.nn.functional.normalize(projected, dim=-1) * complete[:, None]
        torch.testing.assert_close(heads[:, head], expected, **CLOSE)
        scores[:, clip] = output.text_embeds @ expected[clip]
    torch.testing.assert_close(output.scores, scores, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("name", MODALITIES)
def test_what_is_masked_is_absent_whatever_it_holds(tiny_model, batch, name):
    index = MODALITIES.index(name)
    key = CLIP_INPUTS[index]
    # Of some clips.
    batch["modality_mask"][[0, 2], index] = False
    expected, (states, mask) = tiny_model(**batch), conditions(tiny_model, batch)
    batch[key][[0, 2]] = 59 if name == "subtitle" else float("nan")
    output, (same_states, same_mask) = tiny_model(**batch), conditions(tiny_model, batch)
    assert torch.equal(output.scores, expected.scores) and not output.modality_embeds[[0, 2], index].any()
    assert torch.equal(same_mask, mask) and torch.equal(same_states[mask], states[mask])
    # Of all clips, as if it were not given.
    batch["modality_mask"][:, index] = False
    absent = {k: v for k, v in batch.items() if not k.startswith(key.removesuffix("_input_ids"))}
    assert torch.equal(tiny_model(**absent).scores, tiny_model(**batch).scores)
    texts = [batch[k] for k in TEXT_INPUTS]
    matched = [tiny_model.match(*texts, *conditions(tiny_model, inputs)) for inputs in (absent, batch)]
    torch.testing.assert_close(*matched)


@torch.no_grad()
def test_order_batch_size_and_padding_change_nothing(tiny_model):
    batch = make_batch(6)
    batch["modality_mask"] = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 1, 1], [1, 1, 0], [0, 0, 1], [1, 0, 0]]).bool()

    def compute(batch):
        matched = tiny_model.match(*(batch[name] for name in TEXT_INPUTS), *conditions(tiny_model, batch))
        output = tiny_model(**batch)
        return matched, output.text_embeds, output.modality_embeds

    expected = compute(batch)
    for rows in ([4, 2, 0, 5, 1, 3], [0], [1], [2], [3], [4], [5]):
        part = {name: value[rows] for name, value in batch.items()}
        length = int(part["attention_mask"].sum(1).max())
        part |= {name: part[name][:, :length] for name in TEXT_INPUTS}
        for found, whole in zip(compute(part), expected, strict=True):
            torch.testing.assert_close(found, whole[rows], **CLOSE)
    padded = dict(batch)
    for name in (*TEXT_INPUTS, "subtitle_input_ids", "subtitle_attention_mask"):
        padded[name] = torch.nn.functional.pad(batch[name], (0, 7))
    for found, whole in zip(compute(padded), expected, strict=True):
        torch.testing.assert_close(found, whole, **CLOSE)


@pytest.mark.parametrize(
    ("change", "error", "name"),
    [
        (lambda b: {}, ValueError, "Nothing to embed"),
        (lambda b: b | {"pixel_values": 1}, TypeError, "pixel_values"),
        (lambda b: b | {"modality_mask": b["modality_mask"][:2]}, ValueError, "modality_mask"),
        (lambda b: b | {"subtitle_attention_mask": b["subtitle_attention_mask"] * 0}, ValueError, "subtitle"),
        (lambda b: b | {"modality_mask": b["modality_mask"] & False}, ValueError, "modality_mask"),
    ],
)
def test_bad_calls_are_refused(tiny_model, batch, change, error, name):
    with pytest.raises(error, match=name):
        tiny_model(**change(batch))


def test_a_pair_without_any_condition_token_is_refused(tiny_model, batch):
    states, mask = conditions(tiny_model, batch)
    mask[1] = False
    with pytest.raises(ValueError, match=r"\[1\]"):
        tiny_model.match(batch["input_ids"], batch["attention_mask"], states, mask)


def test_gradient_checkpointing_changes_no_gradient(batch):
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = ScalarModel(make_tiny_config()).train()
        if checkpointing:
            model.activation_checkpointing_enable()
        model(**batch).scores.diagonal().sum().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert len(gradients[0]) > 50
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-6, rtol=1e-4)


SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL_TEXT = {**SMALL, "vocab_size": 60, "max_position_embeddings": 80}
VISION = {
    "clip": lambda: CLIPVisionModel(CLIPVisionConfig(**SMALL, image_size=32, patch_size=16)),
    "siglip": lambda: SiglipVisionModel(SiglipVisionConfig(**SMALL, image_size=32, patch_size=16)),
}
AUDIO = {
    "ast": lambda: ASTModel(ASTConfig(**SMALL, num_mel_bins=64, max_length=64)),
    "clap": lambda: ClapAudioModel(
        ClapAudioConfig(
            patch_embeds_hidden_size=8,
            hidden_size=32,
            depths=[1, 1, 1],
            num_attention_heads=[1, 2, 4],
            num_hidden_layers=3,
            spec_size=64,
            num_mel_bins=64,
            window_size=2,
            enable_fusion=False,
        )
    ),
}


def make_bert() -> BertModel:
    return BertModel(BertConfig(**SMALL_TEXT, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


@pytest.mark.parametrize(
    ("vision", "audio", "poolings"),
    [
        ("clip", "ast", ("pooler", "cls")),
        ("siglip", "clap", ("mean", "mean")),
        ("siglip", "clap", ("pooler", "pooler")),
    ],
)
def test_any_encoders_can_be_composed_saved_and_loaded(vision, audio, poolings, tmp_path, batch):
    torch.manual_seed(0)
    parts = VISION[vision]().eval(), AUDIO[audio]().eval(), make_bert().eval()
    pooled = dict(zip(("vision_pooling", "audio_pooling"), poolings, strict=True))
    model = ScalarModel.from_encoders(*parts, projection_dim=16, **pooled)
    with torch.no_grad():
        output = model(**batch)
        frames = parts[0](batch["pixel_values_videos"].flatten(0, 1))
    pictures = frames.last_hidden_state.mean(1) if poolings[0] == "mean" else frames.pooler_output
    expected = torch.nn.functional.normalize(model.video_projection(pictures.unflatten(0, (4, 2)).mean(1)), dim=-1)
    torch.testing.assert_close(output.modality_embeds[:, 0], expected, **CLOSE)  # the encoder's own weights
    assert output.scores.shape == (4, 4) and output.scores.isfinite().all()
    with pytest.raises(ValueError, match="Matching is not available"):
        conditions(model, batch)
    model.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(again(**batch).scores, output.scores, **CLOSE)


def save_dual_encoders(folder):
    """Tiny CLIP, SigLIP and CLAP, as their checkpoints are published: both halves and their projections."""
    parts = {"text_config": SMALL_TEXT, "vision_config": {**SMALL, "image_size": 32, "patch_size": 16}}
    audio = AUDIO["clap"]().config.to_dict()
    models = {
        "clip": CLIPModel(CLIPConfig(**parts)),
        "siglip": SiglipModel(SiglipConfig(**parts)),
        "clap": ClapModel(ClapConfig(text_config=SMALL_TEXT | {"type_vocab_size": 1}, audio_config=audio)),
    }
    for name, model in models.items():
        model.save_pretrained(folder / name)
    return models


@pytest.mark.parametrize(("vision", "text"), [("clip", "siglip"), ("siglip", "clip"), ("clip", "clap")])
def test_of_a_dual_encoder_given_by_name_the_fitting_half_is_taken_with_its_weights(vision, text, tmp_path, batch):
    torch.manual_seed(0)
    duals, names = save_dual_encoders(tmp_path), {"vision": vision, "audio": "clap", "text": text}
    poolings = {f"{part}_pooling": "mean" for part in names}
    folders = [str(tmp_path / name) for name in names.values()]
    model = ScalarModel.from_encoders(*folders, projection_dim=16, **poolings)
    for part, name in names.items():
        own = getattr(model, f"{part}_model").state_dict()
        expected = getattr(duals[name], f"{part}_model").state_dict()
        assert len(own) > 10 and {key for key in expected if "pooler" not in key} <= set(own)
        assert all(torch.equal(value, expected[key]) for key, value in own.items())
    assert model(**batch).scores.isfinite().all()


def test_a_checkpoint_that_lacks_a_weight_is_refused(tmp_path):
    encoder = VISION["clip"]()
    state = encoder.state_dict()
    del state["encoder.layers.0.mlp.fc1.weight"]
    encoder.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ValueError, match="mlp.fc1.weight"):
        ScalarModel.from_encoders(str(tmp_path), AUDIO["ast"](), make_bert())


def test_an_encoder_by_name_that_needs_code_of_its_own_is_refused(tmp_path):
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text("raise SystemExit('it has run')")
    with pytest.raises(ValueError, match="contains custom code"):
        ScalarModel.from_encoders(str(tmp_path), AUDIO["ast"](), make_bert())


def test_a_class_token_that_has_seen_no_word_is_refused():
    with pytest.raises(Exception, match="text_pooling='cls'"):
        make_tiny_config(text_config=CLIPTextConfig(**SMALL_TEXT))


@torch.no_grad()
@pytest.mark.parametrize("aggregation", ["scalar", "uniform", "hypergram", "video"])
def test_stored_embeddings_are_scored_as_in_forward_and_as_the_configuration_says_unless_told_otherwise(
    aggregation, batch
):
    torch.manual_seed(0)
    own = {"query_temperature": 0.3} | CALIBRATION
    model = ScalarModel(make_tiny_config(aggregation=aggregation, **own)).eval()
    batch["modality_mask"][1, 1] = False
    output = model(**batch)
    embeds = (output.text_embeds, output.modality_embeds, output.modality_mask)
    assert torch.equal(model.compute_scores(*embeds), output.scores)
    learned = {}
    if aggregation == "hypergram":
        learned = dict(zip(("hyperbolic_mix", "curvature"), model.hyperbolic(), strict=True))
    for given in ({}, {"query_temperature": 0.2, "modality_scale": [1, 1, 1], "modality_offset": [0, 0, 0]}):
        expected = retrieval_scores(*embeds, aggregation, modalities=MODALITIES, **learned, **own | given)
        torch.testing.assert_close(model.compute_scores(*embeds, **given), expected)
        torch.testing.assert_close(model.compute_weights(*embeds, **given), query_weights(*embeds, **own | given))
