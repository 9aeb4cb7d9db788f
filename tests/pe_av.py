"""A tiny PE-AV of the real classes, but for the vision tower, which needs timm."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoConfig,
    PeAudioFeatureExtractor,
    PeAudioVideoConfig,
    PeAudioVideoModel,
    PreTrainedTokenizerFast,
)
from transformers.models.pe_video import modeling_pe_video

HOP = 160  # samples that become one vector
SIDE = 8  # of a picture
_TINY = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}
_SPECIAL = ("pad", "bos", "eos", "cls", "sep", "unk")


class TinyVision(torch.nn.Module):
    """What stands in for the tower of timm: one linear map of the pixels."""

    def __init__(self, config):
        super().__init__()
        self.linear = torch.nn.Linear(3 * SIDE * SIDE, config.num_labels)

    def forward(self, pixels):
        return SimpleNamespace(logits=self.linear(pixels.flatten(1)))


def without_timm(patch: pytest.MonkeyPatch) -> None:
    """Let the tiny tower stand in for that of timm."""
    made = SimpleNamespace(from_config=TinyVision)
    patch.setattr(modeling_pe_video, "AutoModelForImageClassification", made)


def make_pe_av() -> PeAudioVideoModel:
    """The encoder with random weights; [`without_timm`] must hold."""
    text = AutoConfig.for_model(
        "modernbert", vocab_size=64, **_TINY, **{f"{name}_token_id": index for index, name in enumerate(_SPECIAL[:5])}
    )
    dac = {"encoder_hidden_size": 4, "hidden_size": 64, "downsampling_ratios": [2, 4, 4, 5], "codebook_dim": 8}
    config = PeAudioVideoConfig(
        text_config=text,
        audio_video_config={
            "audio_config": {"model_type": "pe_audio_encoder", "dac_config": dac, **_TINY},
            "video_config": {
                "model_type": "pe_video_encoder",
                "vision_config": {"architecture": "tiny", "num_classes": 12},
                **_TINY,
            },
            **_TINY,
        },
    )
    torch.manual_seed(0)
    model = PeAudioVideoModel(config).eval()
    with torch.no_grad():  # logit scales are zero at first, and say nothing
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    return model


def write_pe_av(folder: Path, **video_settings) -> Path:
    """Write the encoder as its publisher has it, with the settings of its processor and a tokenizer of letters."""
    make_pe_av().save_pretrained(folder)
    PeAudioFeatureExtractor(hop_length=HOP).save_pretrained(folder)
    settings = {
        "video_processor_type": "PeVideoVideoProcessor",
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_sample_frames": False,
        "num_frames": None,
        "size": {"height": SIDE, "width": SIDE},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    (folder / "video_preprocessor_config.json").write_text(json.dumps(settings | video_settings))
    tokens = [f"[{name.upper()}]" for name in _SPECIAL] + list("abcdefghijklmnopqrstuvwxyz")
    letters = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token="[UNK]"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    named = {f"{name}_token": f"[{name.upper()}]" for name in _SPECIAL}
    PreTrainedTokenizerFast(tokenizer_object=letters, model_max_length=32, **named).save_pretrained(folder)
    return folder
