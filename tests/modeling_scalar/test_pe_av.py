"""PE-AV behind the interface of joint encoders, made of tensors and of a folder, and its processor."""

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate, normalize
from transformers import AutoFeatureExtractor, AutoTokenizer, PeAudioVideoModel

from gallery.decoding import sandboxed
from modeling_scalar import ScalarModel, ScalarProcessor, load_model
from modeling_scalar.image_processing_scalar import frame_indices
from modeling_scalar.media_scalar import resample
from modeling_scalar.pe_av import ScalarPeAvModel
from tests.media_corpus import media, tone, wav
from tests.pe_av import HOP, SIDE, make_pe_av, without_timm, write_pe_av


@pytest.fixture(autouse=True, scope="module")
def tower():
    with pytest.MonkeyPatch.context() as patch:
        without_timm(patch)
        yield patch


@pytest.fixture(scope="module")
def encoder(tower):
    return make_pe_av()


@pytest.fixture(scope="module")
def folder(tower, tmp_path_factory):
    return write_pe_av(tmp_path_factory.mktemp("pe") / "pe-av")


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
    heads = [own.text_video_embeds, own.text_audio_embeds]
    assert output.text_embeds.shape == (3, 2, 16)
    close = {"atol": 1e-5, "rtol": 0}  # its own call computes both towers in one graph
    torch.testing.assert_close(output.text_embeds, normalize(torch.stack(heads, dim=1), dim=-1), **close)
    torch.testing.assert_close(output.video_embeds, normalize(own.video_embeds, dim=-1), **close)
    torch.testing.assert_close(output.audio_embeds, normalize(own.audio_embeds, dim=-1), **close)
    assert (output.text_embeds[:, 0] - output.text_embeds[:, 1]).abs().max() > 0.1
    assert output.modality_mask.tolist() == [[True, True]] * 3
    turned = ScalarPeAvModel(encoder, ("audio", "video"))(**batch)
    torch.testing.assert_close(turned.modality_embeds, output.modality_embeds.flip(1))
    torch.testing.assert_close(turned.text_embeds, output.text_embeds.flip(1))
    torch.testing.assert_close(turned.scores, output.scores)


@torch.no_grad()
def test_each_modality_meets_its_own_vector_of_the_text(encoder):
    batch = make_batch()
    mask = torch.tensor([[1, 1], [1, 0], [0, 1]]).bool()
    model = ScalarPeAvModel(encoder, ("video", "audio"), query_temperature=0.3, modality_offset=[0.2, 0.0])
    output = model(**batch, modality_mask=mask)
    for query, texts in enumerate(output.text_embeds.double()):
        for clip, vectors in enumerate(output.modality_embeds.double()):
            here = mask[clip].nonzero().flatten().tolist()
            c = torch.stack([texts[m] @ vectors[m] + 0.2 * (m == 0) for m in here])
            weights = (c / 0.3).softmax(0)
            norm = (weights[:, None] * vectors[here]).sum(0).norm()
            assert output.scores[query, clip].item() == pytest.approx(((weights * c).sum() / norm).item(), abs=1e-5)
            reported = model.compute_weights(output.text_embeds, output.modality_embeds, mask)[query, clip, here]
            torch.testing.assert_close(reported.double(), weights, atol=1e-5, rtol=0)


@torch.no_grad()
def test_padding_and_what_is_masked_change_no_vector(encoder):
    batch, model = make_batch(), ScalarPeAvModel(encoder, ("video", "audio"))
    mask = torch.tensor([[1, 1], [1, 0], [0, 1]]).bool()
    expected = model(**batch, modality_mask=mask)
    batch["pixel_values_videos"][2], batch["input_values"][1] = float("nan"), float("nan")
    batch["pixel_values_videos"] = torch.cat([batch["pixel_values_videos"], torch.zeros(3, 2, 3, 8, 8)], dim=1)
    batch["padding_mask_videos"] = torch.arange(6).expand(3, -1) < 4
    output = model(**batch, modality_mask=mask)
    torch.testing.assert_close(output.modality_embeds, expected.modality_embeds, atol=1e-5, rtol=0)


def test_subtitles_are_left_out_and_that_is_said(encoder, monkeypatch):
    reported = []
    monkeypatch.setattr("modeling_scalar.pe_av.logger.warning", reported.append)
    assert ScalarPeAvModel(encoder).config.modalities == ["video", "audio"]
    assert reported == ["PE-AV has no head for subtitle, which is left out of every clip."]
    with pytest.raises(ValueError, match="PE-AV embeds video and audio, got the modalities"):
        ScalarPeAvModel(encoder, ["subtitle"])
    with pytest.raises(ValueError, match='has no "fused" vector'):
        ScalarPeAvModel(encoder, ["video", "audio", "fused"])


def test_what_it_cannot_do_is_refused(encoder, tmp_path):
    with pytest.raises(ValueError, match="use a score of .*'scalar'.*got 'gram'"):
        ScalarPeAvModel(encoder, ("video", "audio"), aggregation="gram")
    with pytest.raises(ValueError, match="cannot be saved"):
        ScalarPeAvModel(encoder, ("video", "audio")).save_pretrained(tmp_path)


# By name -------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_folder_is_loaded_by_its_name_with_its_processor(folder):
    model, processor = load_model(folder)
    frames = np.random.default_rng(0).integers(0, 256, (5, 24, 40, 3), dtype=np.uint8)
    sound = np.random.default_rng(1).normal(0, 0.1, 48_000).astype(np.float32)
    clips = [
        processor.read_clip(frames, sound, "a subtitle", num_frames="all"),
        processor.read_clip(frames, None, None, num_frames="all"),
        processor.read_clip(None, sound[:9_001], None),
    ]
    batch = processor(text=["abc", "a longer text"], clips=clips)
    output = model(**batch)
    assert output.modality_mask.tolist() == [[True, True], [True, False], [False, True]]

    encoder = PeAudioVideoModel.from_pretrained(folder).eval()
    chosen = torch.from_numpy(frames)[frame_indices(5, 8)]
    resized = interpolate(chosen.permute(0, 3, 1, 2), (SIDE, SIDE), mode="bilinear", antialias=True).float()
    texts = AutoTokenizer.from_pretrained(folder)(["abc", "a longer text"], padding=True, return_tensors="pt")
    heard = AutoFeatureExtractor.from_pretrained(folder)(sound, sampling_rate=48_000, return_tensors="pt")
    own = encoder(
        input_ids=texts["input_ids"][:1],
        attention_mask=texts["attention_mask"][:1],
        pixel_values_videos=((resized / 255 - 0.5) / 0.5)[None],
        **heard,
    )
    close = {"atol": 1e-5, "rtol": 0}
    torch.testing.assert_close(output.video_embeds[0], normalize(own.video_embeds[0], dim=-1), **close)
    torch.testing.assert_close(output.audio_embeds[0], normalize(own.audio_embeds[0], dim=-1), **close)
    torch.testing.assert_close(output.text_embeds[0, 0], normalize(own.text_video_embeds[0], dim=-1), **close)
    torch.testing.assert_close(output.text_embeds[0, 1], normalize(own.text_audio_embeds[0], dim=-1), **close)
    torch.testing.assert_close(output.audio_embeds[2], model(**processor(clips=clips[2:])).audio_embeds[0], **close)


def test_sound_is_read_at_the_rate_that_it_hears(folder, tmp_path, monkeypatch):
    _, processor = load_model(folder)
    (tmp_path / "clip.mkv").write_bytes(media("matroska", "mjpeg", "pcm_s16le", sampling_rate=48_000))
    clip = processor.read_clip(tmp_path / "clip.mkv", processed=True)
    assert clip.pixel_values.shape == (8, 3, SIDE, SIDE)
    assert clip.duration == pytest.approx(2, abs=0.05) and len(clip.waveform) == pytest.approx(2 * 48_000, abs=2400)

    (tmp_path / "tone.wav").write_bytes(wav(tone(16_000)))
    heard = processor.read_clip(None, tmp_path / "tone.wav").waveform
    samples = np.frombuffer(tone(16_000), "<i2")[None] / 2**15
    expected = resample(samples, 16_000, 48_000)
    assert len(heard) == len(expected) == 48_000
    np.testing.assert_allclose(heard, expected, atol=2**-14)
    window = sandboxed(processor).read_clip(None, tmp_path / "tone.wav", window=(0.25, 0.75)).waveform
    np.testing.assert_array_equal(window, heard[12_000:36_000])

    reported = []
    monkeypatch.setattr("modeling_scalar.processing_joint_scalar.logger.warning", reported.append)
    processor.max_audio_seconds = 0.5
    clip = processor.read_clip(None, tmp_path / "tone.wav", processed=True)
    assert np.array_equal(clip.waveform, heard[:24_000]) and clip.duration == 1
    assert len(reported) == 1 and "the encoder reads the first 0.5 s" in reported[0]
    (tmp_path / "click.wav").write_bytes(wav(tone(479)))
    clip = processor.read_clip(None, tmp_path / "click.wav")
    assert not clip.has("audio") and "shorter than one 30 ms window" in clip.problems[0]


def test_frames_follow_the_settings_of_its_own_video_processor(tmp_path):
    folder = write_pe_av(tmp_path / "pe-av", num_frames=16, image_mean=[0.4, 0.5, 0.6])
    processor = ScalarProcessor.from_joint_encoder(folder)
    assert processor.num_frames == 16 and processor.image_processor.image_mean == [0.4, 0.5, 0.6]
    assert processor.modalities == ["video", "audio"]
    assert ScalarProcessor.from_joint_encoder(folder, num_frames=4).num_frames == 4
    for settings in ({"resample": 3}, {"size": {"shortest_edge": 8}}, {"do_center_crop": True}):
        with pytest.raises(ValueError, match="settings of PE-AV's video processor are not supported"):
            ScalarProcessor.from_joint_encoder(write_pe_av(folder, **settings))
    with pytest.raises(ValueError, match="`height` must be a whole number from 1 to 4096"):
        ScalarProcessor.from_joint_encoder(write_pe_av(folder, size={"height": 10**6, "width": 8}))


def test_what_is_set_and_left_out_is_as_for_any_joint_encoder(folder):
    model = ScalarModel.from_joint_encoder(folder, modalities=["audio"], query_temperature=0.3, dtype=torch.bfloat16)
    assert isinstance(model, ScalarPeAvModel) and model.dtype == torch.bfloat16 and not model.training
    assert model.config.modalities == ["audio"] and model.config.query_temperature == 0.3


def test_missing_weights_are_refused(tmp_path, encoder):
    folder = write_pe_av(tmp_path / "pe-av")
    state = {name: value for name, value in encoder.state_dict().items() if "text_audio_head" not in name}
    encoder.save_pretrained(folder, state_dict=state)
    with pytest.raises(ValueError, match=r"lacks \d+ weights of its model, such as .*text_audio_head"):
        load_model(folder)


def test_a_missing_timm_is_named_with_the_command_that_installs_it(folder, tower):
    import importlib.util

    if importlib.util.find_spec("timm") is not None:
        pytest.skip("timm is installed")
    tower.undo()
    try:
        with pytest.raises(ImportError, match="needs timm: `pip install timm`"):
            load_model(folder)
    finally:
        without_timm(tower)
