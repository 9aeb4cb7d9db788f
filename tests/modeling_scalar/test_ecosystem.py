"""What libraries do with any model of transformers, each against the scores of the plain model."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from transformers import (
    AutoModel,
    BitsAndBytesConfig,
    TorchAoConfig,
    pipeline,
)

from scalar_retrieval.modeling_scalar import ScalarModel, load_model
from tests.conftest import make_tiny_config


@pytest.fixture
def clips(batch):
    """A batch in which something is absent of every clip but one, and what is absent is not even a number."""
    batch["modality_mask"] = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 1, 1], [1, 1, 0]]).bool()
    batch["input_features"][1] = float("nan")
    batch["pixel_values_videos"][2] = float("nan")
    return batch


@pytest.fixture
def saved(tiny_model, tmp_path):
    tiny_model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@torch.no_grad()
def scores(model, batch):
    return model(**batch).scores


@torch.no_grad()
def scores_from_towers(model, batch):
    """The same, with the towers' outputs computed first and passed in."""
    batch = dict(batch)
    raw = {name: batch.pop(name) for name in ("pixel_values_videos", "input_features")}
    features = model.get_tower_features(**raw, modality_mask=batch["modality_mask"])
    return model(**batch, **features).scores


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_changes_scores_by_rounding_only(saved, tiny_model, clips, dtype):
    model = AutoModel.from_pretrained(saved, dtype=dtype).eval()
    halved = {name: value.to(dtype) if value.is_floating_point() else value for name, value in clips.items()}
    found = scores(model, halved)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, scores(tiny_model, clips), rtol=0, atol=20 * torch.finfo(dtype).eps)


@pytest.fixture
def wide_model():
    """Layers of the 64 columns that four bits need on a CPU."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1}
    config = make_tiny_config()
    for part in (config.vision_config, config.audio_config, config.text_config):
        for name, value in sizes.items():
            setattr(part, name, value)
    config.audio_config.patch_embed_dim = config.projection_dim = 64
    torch.manual_seed(0)
    return ScalarModel(config).eval()


QUANTISED = {
    # On a CPU, layers of four bits need a multiple of 32 outputs; the gates of BEATs have 8.
    "4 bits": lambda: BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32, llm_int8_skip_modules=["gate"]
    ),
    "8 bits": lambda: BitsAndBytesConfig(load_in_8bit=True),
    "torchao": lambda: TorchAoConfig(_int8_weights()),
}


def _int8_weights():
    from torchao.quantization import Int8WeightOnlyConfig

    return Int8WeightOnlyConfig()


@pytest.mark.suite
@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_weights_score_the_same_from_files_and_from_tower_features(wide_model, clips, kind, tmp_path):
    wide_model.save_pretrained(tmp_path)
    model = AutoModel.from_pretrained(tmp_path, quantization_config=QUANTISED[kind](), dtype=torch.float32).eval()
    found = scores(model, clips)
    torch.testing.assert_close(scores_from_towers(model, clips), found, rtol=0, atol=1e-6)
    difference = (found - scores(wide_model, clips)).abs().max()
    assert 1e-5 < difference < (0.2 if kind == "4 bits" else 0.02)


def test_the_feature_extraction_pipeline_gives_the_embedding_of_a_text(tiny_model, tiny_processor):
    extract = pipeline("feature-extraction", model=tiny_model, tokenizer=tiny_processor.tokenizer)
    found = torch.tensor(extract("a red circle"))
    tokens = tiny_processor.tokenizer("a red circle", return_tensors="pt").to(tiny_model.device)
    assert "token_type_ids" in tokens  # which a model of transformers is expected to take
    with torch.no_grad():
        expected = tiny_model(**tokens).text_embeds
    torch.testing.assert_close(found, expected.cpu())


@torch.no_grad()
def test_sentence_transformers_encodes_texts_and_sounds_of_a_folder_and_pictures_if_configured(
    tiny_model_dir, tmp_path
):
    model, processor = load_model(tiny_model_dir)
    random = np.random.default_rng(0)
    texts, sounds = (
        ["a red circle", "the dog barks"],
        list(random.standard_normal((2, 16_000), dtype=np.float32) * 0.1),
    )
    videos = list(random.integers(0, 256, (2, 8, 40, 48, 3), dtype=np.uint8))
    plain = SentenceTransformer(str(tiny_model_dir), device="cpu")
    method = {"method": "get_video_features", "method_output_name": "pooler_output"}
    modalities = {"video": method, "image": method}
    module = Transformer(str(tiny_model_dir), modality_config=modalities, module_output_name="sentence_embedding")
    SentenceTransformer(modules=[module], device="cpu").save_pretrained(str(tmp_path))
    configured = SentenceTransformer(str(tmp_path), device="cpu")
    frames, stills = processor(videos=videos), [video[0] for video in videos]
    for encoder, name, items, expected in (
        (plain, "text", texts, model.get_text_features(**processor(text=texts))),
        (plain, "audio", sounds, model.get_audio_features(processor(audio=sounds)["input_features"])),
        (configured, "video", videos, model.get_video_features(frames["pixel_values_videos"])),
        (configured, "image", stills, model.get_video_features(processor(images=stills)["pixel_values_videos"])),
    ):
        found = encoder.encode([{name: item} for item in items], convert_to_tensor=True)
        assert torch.equal(found, expected.pooler_output), name
