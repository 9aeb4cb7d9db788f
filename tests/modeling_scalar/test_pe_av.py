"""PE-AV behind the interface of joint encoders: the real classes, tiny, but for the vision tower, which needs timm."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import normalize
from transformers import AutoConfig, PeAudioVideoConfig, PeAudioVideoModel
from transformers.models.pe_video import modeling_pe_video

from modeling_scalar.pe_av import ScalarPeAvModel

HOP = 160  # samples that become one vector
TINY = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}


class TinyVision(torch.nn.Module):
    """What stands in for the tower of timm: one linear map of the pixels."""

    def __init__(self, config):
        super().__init__()
        self.linear = torch.nn.Linear(3 * 8 * 8, config.num_labels)

    def forward(self, pixels):
        return SimpleNamespace(logits=self.linear(pixels.flatten(1)))


@pytest.fixture(scope="module")
def encoder():
    special = {name: index for index, name in enumerate(("pad", "bos", "eos", "cls", "sep"))}
    text = AutoConfig.for_model(
        "modernbert", vocab_size=64, **TINY, **{f"{name}_token_id": index for name, index in special.items()}
    )
    dac = {"encoder_hidden_size": 4, "hidden_size": 64, "downsampling_ratios": [2, 4, 4, 5], "codebook_dim": 8}
    config = PeAudioVideoConfig(
        text_config=text,
        audio_video_config={
            "audio_config": {"model_type": "pe_audio_encoder", "dac_config": dac, **TINY},
            "video_config": {
                "model_type": "pe_video_encoder",
                "vision_config": {"architecture": "tiny", "num_classes": 12},
                **TINY,
            },
            **TINY,
        },
    )
    with pytest.MonkeyPatch.context() as patch:
        torch.manual_seed(0)
        made = SimpleNamespace(from_config=TinyVision)
        patch.setattr(modeling_pe_video, "AutoModelForImageClassification", made)
        model = PeAudioVideoModel(config).eval()
    with torch.no_grad():  # logit scales are zero at first, and say nothing
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    return model


def make_batch(num_clips=3):
    generator = torch.Generator().manual_seed(1)
    return {
        "input_ids": torch.randint(5, 64, (num_clips, 7), generator=generator),
        "attention_mask": torch.ones(num_clips, 7, dtype=torch.long),
        "pixel_values_videos": torch.randn(num_clips, 4, 3, 8, 8, generator=generator),
        "padding_mask_videos": torch.ones(num_clips, 4, dtype=torch.bool),
        "input_values": torch.randn(num_clips, 1, 10 * HOP, generator=generator),
        "padding_mask": torch.ones(num_clips, 10 * HOP, dtype=torch.bool),
    }


@torch.no_grad()
def test_vectors_are_those_of_its_own_forward_on_the_sphere(encoder):
    batch = make_batch()
    output, own = ScalarPeAvModel(encoder, ("video", "audio"))(**batch), encoder(**batch)
    heads = [own.text_video_embeds, own.text_audio_embeds, own.text_audio_video_embeds]
    assert output.text_embeds.shape == (3, 3, 16)
    close = {"atol": 1e-5, "rtol": 0}  # its own call computes both towers in one graph
    torch.testing.assert_close(output.text_embeds, normalize(torch.stack(heads, dim=1), dim=-1), **close)
    torch.testing.assert_close(output.video_embeds, normalize(own.video_embeds, dim=-1), **close)
    torch.testing.assert_close(output.audio_embeds, normalize(own.audio_embeds, dim=-1), **close)
    assert (output.text_embeds[:, 0] - output.text_embeds[:, 1]).abs().max() > 0.1
    assert output.modality_mask.tolist() == [[True, True, False]] * 3


@torch.no_grad()
def test_each_modality_meets_its_own_vector_of_the_text(encoder):
    batch = make_batch()
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 1, 0]]).bool()
    model = ScalarPeAvModel(encoder, ("video", "audio"), query_temperature=0.3, modality_offset=[0.2, 0.0, 0.0])
    output = model(**batch, modality_mask=mask)
    for query, texts in enumerate(output.text_embeds.double()):
        for clip, vectors in enumerate(output.modality_embeds.double()):
            here = mask[clip].nonzero().flatten().tolist()
            c = torch.stack([texts[m] @ vectors[m] + 0.2 * (m == 0) for m in here])
            weights = (c / 0.3).softmax(0)
            norm = (weights[:, None] * vectors[here]).sum(0).norm()
            assert output.scores[query, clip].item() == pytest.approx(((weights * c).sum() / norm).item(), abs=1e-5)
            told = model.compute_weights(output.text_embeds, output.modality_embeds, mask)[query, clip, here]
            torch.testing.assert_close(told.double(), weights, atol=1e-5, rtol=0)


@torch.no_grad()
def test_padding_and_what_is_masked_change_no_vector(encoder):
    batch, model = make_batch(), ScalarPeAvModel(encoder, ("video", "audio"))
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 1, 0]]).bool()
    expected = model(**batch, modality_mask=mask)
    batch["pixel_values_videos"][2], batch["input_values"][1] = float("nan"), float("nan")
    batch["pixel_values_videos"] = torch.cat([batch["pixel_values_videos"], torch.zeros(3, 2, 3, 8, 8)], dim=1)
    batch["padding_mask_videos"] = torch.arange(6).expand(3, -1) < 4
    output = model(**batch, modality_mask=mask)
    torch.testing.assert_close(output.modality_embeds, expected.modality_embeds, atol=1e-5, rtol=0)


def test_subtitles_are_left_out_and_that_is_said(encoder, monkeypatch):
    told = []
    monkeypatch.setattr("modeling_scalar.pe_av.logger.warning", told.append)
    assert ScalarPeAvModel(encoder).config.modalities == ["video", "audio"]
    assert told == ["PE-AV has no head for subtitle: in every clip that is left out."]
    with pytest.raises(ValueError, match="PE-AV embeds video and audio, got the modalities"):
        ScalarPeAvModel(encoder, ["subtitle"])


def test_what_it_cannot_do_is_refused(encoder, tmp_path):
    with pytest.raises(ValueError, match="'gram' is none of .*'scalar'"):
        ScalarPeAvModel(encoder, ("video", "audio"), aggregation="gram")
    with pytest.raises(ValueError, match="is not saved"):
        ScalarPeAvModel(encoder, ("video", "audio")).save_pretrained(tmp_path)
