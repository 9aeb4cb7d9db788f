"""Encoders of pictures, sound and texts side by side, against transformers' own features; with tiny random weights."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from transformers import AutoModel, AutoProcessor

from scalar_retrieval.modeling_scalar import Clip, ScalarModel, ScalarProcessor, load_model
from scalar_retrieval.modeling_scalar.direct_sum import DirectSum, load_encoder
from scalar_retrieval.modeling_scalar.light_model import text_folder
from scalar_retrieval.modeling_scalar.model_identity import identify
from tests.dual_encoders import WRITERS, write_clap
from tests.media_corpus import wav

TEXTS = ["a dog", "a photo of two cats, sleeping"]
# Sums in another order: ten times the last bit of a cosine.
CLOSE = {"atol": 1e-6, "rtol": 0}
# As the publishers say: SigLIP's texts have one length, and no mask.
PADDING = {
    "siglip": {"padding": "max_length", "max_length": 64},
    "siglip2": {"padding": "max_length", "max_length": 64},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("encoders")
    return {name: write(root / name) for name, write in WRITERS.items()}


@pytest.fixture(scope="module")
def side_by_side(folders):
    encoders = [load_encoder(str(folder)) for folder in (folders["clip"], folders["clap"], text_folder())]
    return DirectSum(encoders, {"video": 0, "audio": 1, "text": 2})


def unit(vectors):
    return torch.nn.functional.normalize(vectors, dim=-1)


def make_frames(seed: int, count: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 40, 60, 3), np.uint8)


def make_sound(seconds: float, seed: int = 0) -> dict:
    draw = np.random.default_rng(seed)
    steps = np.arange(round(48_000 * seconds)) / 48_000
    waveform = np.sin(2 * np.pi * draw.uniform(200, 2000) * steps * (1 + steps)) + 0.1 * draw.normal(size=len(steps))
    return {"array": (0.4 * waveform).astype(np.float32), "sampling_rate": 48_000}


@torch.no_grad()
def features_of(folder, **inputs):
    """What transformers computes, normalised: of texts, pictures or sounds."""
    model, processor = AutoModel.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)
    if "sounds" in inputs:
        arrays = [sound["array"] for sound in inputs["sounds"]]
        prepared = processor(audio=arrays, sampling_rate=48_000, return_tensors="pt")
        return unit(model.get_audio_features(**prepared).pooler_output)
    if "pictures" in inputs:
        prepared = processor(images=[Image.fromarray(frame) for frame in inputs["pictures"]], return_tensors="pt")
        return unit(model.get_image_features(**prepared).pooler_output)
    options = PADDING.get(model.config.model_type, {"padding": True})
    prepared = processor(text=inputs["texts"], return_tensors="pt", **options)
    if model.config.model_type in PADDING:
        prepared.pop("attention_mask", None)
    return unit(model.get_text_features(**prepared).pooler_output)


def distinct(embeds: torch.Tensor) -> bool:
    """Whether no two rows are nearly the same, or nothing would be compared."""
    return float(torch.pdist(embeds).min()) > 0.01


@pytest.mark.parametrize("family", WRITERS)
def test_an_encoder_alone_embeds_as_transformers_does(folders, family):
    alone = DirectSum([load_encoder(str(folders[family]))], {"text": 0, "video": 0, "audio": 0})
    texts = features_of(folders[family], texts=TEXTS)
    assert distinct(texts)
    torch.testing.assert_close(alone.encode_queries(TEXTS), texts, **CLOSE)
    torch.testing.assert_close(alone.encode_clips("title", TEXTS), texts, **CLOSE)
    if family == "clap":
        sounds = [make_sound(3, 1), make_sound(10, 2)]
        expected = features_of(folders[family], sounds=sounds)
        got = alone.encode_clips("audio", sounds)
    else:
        videos = [make_frames(1), make_frames(2, 1)]
        expected = []
        for frames in videos:
            expected.append(unit(features_of(folders[family], pictures=frames).mean(dim=0)))
        expected = torch.stack(expected)
        got = alone.encode_clips("video", [torch.from_numpy(frames).permute(0, 3, 1, 2) for frames in videos])
    assert distinct(expected)
    torch.testing.assert_close(got, expected, **CLOSE)


def test_a_long_sound_is_the_mean_of_its_windows_to_the_bit(folders, side_by_side):
    sound = make_sound(25)
    windows = [sound | {"array": sound["array"][48_000 * start : 48_000 * (start + 10)]} for start in (0, 10, 15)]
    expected = features_of(folders["clap"], sounds=windows)
    assert distinct(expected)
    got = side_by_side.encode_clips("audio", [sound])
    torch.testing.assert_close(got[:, 12:32], unit(expected.mean(dim=0))[None], **CLOSE)
    assert torch.equal(side_by_side.encode_clips("audio", [sound]), got)


@pytest.mark.e2e
def test_sound_does_not_depend_on_the_other_sounds_of_a_batch(tmp_path):
    alone = DirectSum([load_encoder(str(write_clap(tmp_path, is_fused=True)))])
    sounds = [make_sound(3, 1), make_sound(25, 2), make_sound(2, 3)]
    together = alone.encode_clips("audio", sounds)
    assert distinct(together)
    for sound, expected in zip(sounds, together, strict=True):
        assert torch.equal(alone.encode_clips("audio", [sound])[0], expected)


def test_a_query_has_all_texts_and_a_modality_its_own_slice(folders, side_by_side):
    query = side_by_side.encode_queries(TEXTS)
    own = [features_of(folders["clip"], texts=TEXTS), features_of(folders["clap"], texts=TEXTS)]
    mini = SentenceTransformer(str(text_folder()), device="cpu").encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(query, torch.cat([*own, mini], dim=1) / math.sqrt(3), **CLOSE)
    assert side_by_side.slices == [[0, 12], [12, 32], [32, 416]]
    # A product is the cosine of the modality's own encoder, over the root of three.
    title = side_by_side.encode_clips("title", TEXTS)
    assert not title[:, :32].any()
    torch.testing.assert_close(query @ title.T, mini @ mini.T / math.sqrt(3), **CLOSE)


def test_a_tone_of_12_kilohertz_is_heard(folders, tmp_path):
    """It is above what sound of 16 kHz can hold."""
    steps = np.arange(48_000) / 48_000
    noise = np.random.default_rng(0).normal(size=48_000) * 1e-3
    sounds = {"noise": noise, "tone": noise + 0.5 * np.sin(2 * np.pi * 12_000 * steps)}
    for name, waveform in sounds.items():
        data = (32767 * waveform).astype("<i2").tobytes()
        (tmp_path / f"{name}.wav").write_bytes(wav(data, rate=48_000))
    model, processor = load_model(folders["clap"])
    clips = [processor.read_clip(tmp_path / f"{name}.wav") for name in sounds]
    assert [len(clip.waveform) for clip in clips] == [48_000, 48_000]
    with torch.no_grad():
        embeds, _ = model.get_modality_features(**processor(clips=clips))
    assert distinct(embeds[:, 0])


def write_layouts(folder, clip):
    """CLIP in the three layouts of Sentence Transformers: at the root, as its old class in a subfolder, and routed."""
    encoder = load_encoder(str(clip))
    encoder.save(str(folder / "root"), create_model_card=False)
    (folder / "old").mkdir()
    shutil.copytree(clip, folder / "old" / "0_CLIPModel")
    module = {"idx": 0, "name": "0", "path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}
    (folder / "old" / "modules.json").write_text(json.dumps([module]))
    routes = {"words": [encoder[0]], "pictures": [load_encoder(str(clip))[0]]}
    kinds = {(None, "text"): "words", (None, "image"): "pictures"}
    router = Router(routes, default_route="words", route_mappings=kinds)
    SentenceTransformer(modules=[router], device="cpu").save(str(folder / "routed"), create_model_card=False)
    return folder / "root", folder / "old", folder / "routed"


@pytest.mark.e2e
def test_every_layout_of_sentence_transformers_sees_frames(folders, tmp_path):
    expected = features_of(folders["clip"], pictures=make_frames(1)).mean(dim=0)
    for folder in write_layouts(tmp_path, folders["clip"]):
        identity = identify(folder)
        assert (identity.kinds, identity.modalities) == ({"text", "image"}, ("video",))
        model, processor = load_model(folder)
        processor.num_frames = 3
        with torch.no_grad():
            output = model(**processor(text=TEXTS, clips=[Clip(make_frames(1))]))
        torch.testing.assert_close(output.modality_embeds[0], unit(expected)[None], **CLOSE)
        torch.testing.assert_close(output.text_embeds, features_of(folders["clip"], texts=TEXTS), **CLOSE)


def test_what_is_masked_is_absent_and_heads_stay_within_their_slice(folders):
    name = f"{folders['clip']}+{folders['clap']}"
    model, processor = load_model(name)
    assert model.config.modality_slices == [[0, 12], [12, 32]]
    sound, frames = make_sound(1)["array"], make_frames(1)
    with torch.no_grad():
        whole = model(**processor(text=TEXTS, clips=[Clip(frames, sound), Clip(frames), Clip(None, sound)]))
        batch = processor(clips=[Clip(frames, sound)])
        masked = model.get_modality_features(**batch | {"modality_mask": torch.tensor([[True, False]])})[0]
    assert whole.modality_mask.tolist() == [[True, True], [True, False], [False, True]]
    torch.testing.assert_close(whole.modality_embeds[1], masked[0], **CLOSE)
    assert not masked[0, 1].any()
    torch.testing.assert_close(whole.modality_embeds[1:].sum(dim=0), whole.modality_embeds[0], **CLOSE)
    # Heads that are not trained change nothing, others only their own slice, but all of a query.
    model.add_heads()
    for head in (model.text_head, model.audio_head):
        torch.nn.init.normal_(head.weight)
    with torch.no_grad():
        changed = model(**processor(text=TEXTS, clips=[Clip(frames, sound)]))
    torch.testing.assert_close(changed.modality_embeds[0, 0], whole.modality_embeds[0, 0], **CLOSE)
    moved = changed.modality_embeds[0, 1] - whole.modality_embeds[0, 1]
    assert moved[12:].norm() > 0.1 and not moved[:12].any()
    assert (changed.text_embeds - whole.text_embeds)[:, :12].norm() > 0.1


def test_encoders_can_be_chosen_by_modality(folders):
    chosen = {"video": str(folders["siglip"]), "title": str(folders["clip"]), "notes": str(text_folder())}
    model = ScalarModel.from_joint_encoder(chosen)
    processor = ScalarProcessor.from_joint_encoder(chosen)
    assert model.config.modalities == processor.modalities == list(chosen)
    assert model.config.modality_slices == [[0, 16], [16, 28], [28, 412]]
    texts = {"title": TEXTS[:1], "notes": TEXTS[:1]}
    with torch.no_grad():
        output = model(**processor(text=TEXTS[:1], videos=[make_frames(1)], texts=texts))
    torch.testing.assert_close(
        output.modality_embeds[0, 1, 16:28] / math.sqrt(3), output.text_embeds[0, 16:28], **CLOSE
    )


# Names ---------------------------------------------------------------------------------------------------------------


def test_each_encoder_beside_others_has_one_job(folders, tmp_path):
    clip, siglip, clap, words = map(str, (folders["clip"], folders["siglip"], folders["clap"], text_folder()))
    assert identify(f"{clap}+{clip}").modalities == ("video", "audio")
    assert identify([words, clip]).modalities == ("video", "title", "subtitle", "screen")
    assert identify([clip, words]).routes == {"video": 0, "text": 1}
    (tmp_path / "empty").mkdir()
    shutil.copy(folders["clip"] / "config.json", tmp_path / "empty")
    (tmp_path / "bare").mkdir()
    shutil.copy(folders["clip"] / "model.safetensors", tmp_path / "bare")
    (tmp_path / "code").mkdir()
    shutil.copy(folders["clip"] / "model.safetensors", tmp_path / "code")
    (tmp_path / "code" / "modules.json").write_text('[{"type": "custom_st.Encoder", "path": ""}]')
    for name, said in (
        (f"{clip}+{tmp_path / 'code'}", "code needs code of its own, custom_st.Encoder, which is never run"),
        (f"{clip}+{siglip}", "would both embed video. Leave out one"),
        (f"{words}+{words}", "are named once each"),
        (f"{clip}+{clip}", "are named once each"),
        (f"{clip}+clap", "Did you mean 'laion/clap-htsat-unfused'"),
        (f"{clip}+{tmp_path / 'bare'}", "bare is not a joint encoder"),
        ("clip", "no model folder 'clip'.*Did you mean 'openai/clip-vit-base-patch32'"),
    ):
        with pytest.raises((FileNotFoundError, ValueError), match=said):
            assert identify(name).routes
    with pytest.raises(ValueError, match=f"^{tmp_path / 'empty'} cannot be loaded: .* holds no model"):
        load_model(f"{clap}+{tmp_path / 'empty'}")
    with pytest.raises(ValueError, match="embeds texts alone. Name it beside"):
        load_model(words)
    with pytest.raises(ValueError, match=r"^Number 2 of .* embeds none of \['video'\]. Leave it out."):
        load_model(f"{clip}+{words}", modalities=["video"])
    # A folder of this name comes first.
    (tmp_path / "a+b").symlink_to(clip)
    assert identify(tmp_path / "a+b").name == clip


def test_the_fingerprint_covers_every_part(folders, tmp_path):
    shutil.copytree(folders["clap"], tmp_path / "clap")
    shutil.copytree(text_folder(), tmp_path / "words", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "words" / "model.safetensors").write_bytes(b"weights")
    name = f"{folders['clip']}+{tmp_path / 'clap'}+{tmp_path / 'words'}"
    known = {identify(name).fingerprint}
    for file, old, new in (
        ("clap/preprocessor_config.json", b"10", b"20"),  # seconds
        ("words/config_sentence_transformers.json", b"{", b'{"a prompt": 1, '),
        ("words/1_Pooling/config.json", b"{", b'{"another": 1, '),
        ("words/tokenizer.json", b"[PAD]", b"[MAD]"),
        ("words/model.safetensors", b"weights", b"others"),
    ):
        path = tmp_path / file
        path.write_bytes(path.read_bytes().replace(old, new))
        fingerprint = identify(name).fingerprint
        assert fingerprint not in known, file
        known.add(fingerprint)


def test_a_saved_direct_sum_is_the_same(side_by_side, tmp_path):
    two = DirectSum(side_by_side.encoders[:2], {"video": 0, "audio": 1, "text": 0})
    saved = SentenceTransformer(modules=[two], device="cpu")
    saved.save(str(tmp_path), create_model_card=False)
    loaded = load_encoder(str(tmp_path))
    assert loaded[0].routes == {"video": 0, "audio": 1, "text": 0}
    picture, sound = Image.fromarray(make_frames(1)[0]), make_sound(1)
    for inputs in (TEXTS, [picture], [sound]):
        expected = saved.encode_document(inputs, convert_to_tensor=True)
        torch.testing.assert_close(loaded.encode_document(inputs, convert_to_tensor=True), expected, **CLOSE)
    query = saved.encode_query(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(query, two.encode_queries(TEXTS), **CLOSE)
    torch.testing.assert_close(loaded.encode_query(TEXTS, convert_to_tensor=True), query, **CLOSE)
    with pytest.raises(ValueError, match="prompts of their own"):
        saved.encode(TEXTS, prompt="query: ")
