"""A checkpoint in the original layout computes what the original network computed, and nothing slips through."""

import shutil

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from scalar_retrieval.modeling_scalar import BeatsConfig, ScalarConfig, ScalarModel, load_model
from scalar_retrieval.modeling_scalar.__main__ import app
from scalar_retrieval.modeling_scalar.convert_vast_to_hf import convert, convert_state_dict, read_checkpoint

PARITY = {"atol": 1e-5, "rtol": 0}  # float32, other kernels: 3e-6 was seen
CASES = {
    "frames8_audio1": ("vision_pixels_8", "audio_spectrograms"),
    "frames2_audio2": ("vision_pixels_2", "audio_spectrograms_2"),
}


@pytest.fixture(scope="module")
def reference(shared_dir):
    return shared_dir / "reference" / "vast_tiny"


def make_config(**changes) -> ScalarConfig:
    """The sizes of the reference network."""
    vision = {"hidden_size": 64, "intermediate_size": 279, "num_hidden_layers": 3, "num_attention_heads": 4}
    audio = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
    positions = {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "num_buckets": 32}
    text = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    attention = {"is_decoder": True, "add_cross_attention": True, "is_causal": False}
    fields = {
        "vision_config": {"model_type": "blip_2_vision_model", "image_size": 56, "patch_size": 14, **vision},
        "audio_config": BeatsConfig(patch_embed_dim=32, max_bucket_distance=64, **audio, **positions),
        "text_config": {"vocab_size": 120, "max_position_embeddings": 80, **text, **attention},
        "projection_dim": 32,
        "mask_condition_padding": False,  # the original shows padded subtitle tokens to the query
    }
    return ScalarConfig(**fields | changes)


@pytest.fixture
def config():
    return make_config()


@pytest.fixture(scope="module")
def state(reference):
    return read_checkpoint(reference / "model_step_7.pt")


@pytest.fixture(scope="module")
def converted_dir(reference, tmp_path_factory):
    """Converted by the command, as a user would."""
    folder = tmp_path_factory.mktemp("converted")
    make_config().to_json_file(folder / "config.json")
    command = ["--checkpoint", reference / "model_step_7.pt", "--config", folder / "config.json"]
    done = CliRunner().invoke(app, [*map(str, command), "--output", str(folder / "model")])
    assert done.exit_code == 0, done.output
    assert "Not used of the checkpoint, 36 keys" in done.stdout and "contra_temp" in done.stdout
    return folder / "model"


def compute_outputs(model, inputs):
    """Every output the reference file holds, by the public functions of the model."""
    outputs = {}
    texts = inputs["caption_ids"], inputs["caption_mask"]
    subtitles = inputs["subtitle_ids"], inputs["subtitle_mask"]
    for case, (video, audio) in CASES.items():
        pixels, features = inputs[video], inputs[audio]
        embedded = {
            "caption": model.get_text_features(*texts),
            "vision": model.get_video_features(pixels),
            "audio": model.get_audio_features(features),
            "subtitle": model.get_subtitle_features(*subtitles),
        }
        result = {}
        for letter, (name, output) in zip("tvas", embedded.items(), strict=True):
            result[f"{name}_output"] = output.last_hidden_state
            result[f"feat_{letter}"] = output.pooler_output
        given = {"v": {"pixel_values_videos": pixels}, "a": {"input_features": features}}
        given["s"] = {"subtitle_input_ids": subtitles[0], "subtitle_attention_mask": subtitles[1]}
        for name in ("v", "a", "s", "va", "vas"):
            states, mask = model.get_condition_states(**{k: v for letter in name for k, v in given[letter].items()})
            result[f"condition_feats_{name}"] = states
            if len(name) > 1:
                pairs = [(texts[0][i : i + 1].expand(6, -1), texts[1][i : i + 1].expand(6, -1)) for i in range(6)]
                scores = [model.match(*pair, states, mask) for pair in pairs]
                result[f"match_probability_{name}"] = torch.stack(scores).sigmoid()
        outputs |= {f"{case}.{name}": value for name, value in result.items()}
    return outputs


@torch.no_grad()
def test_every_output_of_the_original_network_is_reproduced(converted_dir, reference):
    stored = load_file(reference / "expected.safetensors")
    model = ScalarModel.from_pretrained(converted_dir).eval()
    outputs = compute_outputs(model, {name.removeprefix("input."): value for name, value in stored.items()})
    # Volumes are functions of the other outputs.
    expected = {name for name in stored if name.startswith("output.") and "volume" not in name}
    assert expected == {f"output.{name}" for name in outputs} and len(expected) == 30
    for name, value in outputs.items():
        original = stored[f"output.{name}"]
        if name.endswith("_output"):
            original = original.flatten(1, -2)  # here the tokens of all frames and segments follow each other
        torch.testing.assert_close(value, original, **PARITY, msg=lambda m, n=name: f"{n}: {m}")


def test_older_names_and_wrappers_convert_alike(state, config, tmp_path):
    older = {}
    for name, value in state.items():
        name = name.replace("vision_encoder", "evaclip_model").replace("vision", "video")
        older[f"module.{name}"] = value
    torch.save({"model": older}, tmp_path / "old.pt")
    converted, _ = convert_state_dict(read_checkpoint(tmp_path / "old.pt"), config)
    expected, _ = convert_state_dict(state, config)
    assert converted.keys() == expected.keys()
    assert all(torch.equal(converted[name], value) for name, value in expected.items())


def test_a_processor_is_saved_with_a_tokenizer_and_heads_on_request(
    reference, state, config, tiny_model_dir, tmp_path
):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model_dir / name, tmp_path)
    convert(reference / "model_step_7.pt", tmp_path / "out", config, tokenizer=str(tmp_path), concat_heads=True)
    model, processor = load_model(tmp_path / "out")
    assert processor.image_processor.image_size == 56 and processor.max_text_length == 40
    # In the order that the model reads them in.
    for head, letters in zip(model.concat_projections, ("va", "vs", "vas"), strict=True):
        assert torch.equal(head.weight, state[f"contra_head_{letters}.weight"])
        assert torch.equal(head.bias, state[f"contra_head_{letters}.bias"])


TABLE = "audio_encoder.encoder.layers.1.self_attn.relative_attention_bias.weight"


@pytest.mark.parametrize(
    ("change", "changes", "message"),
    [
        (lambda state: {"contra_head_x.weight": torch.zeros(1)}, {}, "contra_head_x"),
        (lambda state: {"itm_head.linear2.bias": None}, {}, "match_head.classifier.bias"),
        (lambda state: {}, {"projection_dim": 64}, "--config"),
        (lambda state: {TABLE: state[TABLE] + 1}, {}, "differs from layer 0"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_nothing_written(state, tmp_path, change, changes, message):
    changed = {**state, **change(state)}
    torch.save({name: value for name, value in changed.items() if value is not None}, tmp_path / "x.pt")
    with pytest.raises(ValueError, match=message):
        convert(tmp_path / "x.pt", tmp_path / "out", make_config(**changes))
    assert not (tmp_path / "out").exists()


def test_frame_and_patch_positions_are_resized(state):
    config = make_config(num_frame_embeddings=4)
    config.vision_config.image_size = 84  # 6 x 6 patches instead of 4 x 4
    converted, _ = convert_state_dict(state, config)
    frames = converted["video_condition.position_embedding"]
    torch.testing.assert_close(frames, state["vision_frame_embedding"][0, [0, 0, 1, 1]])
    old, patches = state["vision_encoder.visual.pos_embed"], converted["vision_model.embeddings.position_embedding"]
    assert patches.shape == (1, 37, 64)
    torch.testing.assert_close(patches[:, 0], old[:, 0])
    torch.testing.assert_close(patches[:, 1:].mean(1), old[:, 1:].mean(1), atol=0.05, rtol=0)  # a smooth resampling


def test_a_checkpoint_that_would_execute_code_is_refused(tmp_path):
    marker = tmp_path / "executed"

    class Evil:
        def __reduce__(self):
            return (open, (str(marker), "w"))

    torch.save({"model": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(ValueError, match="plain tensors"):
        read_checkpoint(tmp_path / "evil.pt")
    assert not marker.exists()


@pytest.mark.parametrize("content", [b"", b"no checkpoint"])
def test_a_broken_file_is_named(tmp_path, content):
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.pt"):
        convert(tmp_path / "x.pt", tmp_path / "out")
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pt"):
        convert(tmp_path / "nowhere.pt", tmp_path / "out")


@pytest.mark.parametrize("output", ["file", "full", "link", "."])
def test_nothing_that_exists_is_replaced(tmp_path, monkeypatch, output):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("empty")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="already exists"):
        convert("nowhere.pt", output)
