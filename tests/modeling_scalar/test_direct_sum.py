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
    torch.testing.assert_close(alone.encode_queries(TEXTS), texts, **CLOSE)
    torch.testing.assert_close(alone.encode_clips("title", TEXTS), texts, **CLOSE)
    if family == "clap":
        sounds = [make_sound(3, 1), make_sound(10, 2)]
        expected = features_of(folders[family], sounds=sounds)
        got = alone.encode_clips("audio", sounds)
    else:
        videos = [make_frames(1), make_frames(2, 1)]
        means = [features_of(folders[family], pictures=frames).mean(dim=0) for frames in videos]
        expected = unit(torch.stack(means))
        got = alone.encode_clips("video", [torch.from_numpy(frames).permute(0, 3, 1, 2) for frames in videos])
    assert distinct(texts) and distinct(expected)
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
    mini = SentenceTransformer(str(text_folder()), device="cpu").encode(TEXTS, convert_to_tensor=True)
    own = [features_of(folders["clip"], texts=TEXTS), features_of(folders["clap"], texts=TEXTS), mini]
    torch.testing.assert_close(query, torch.cat(own, dim=1) / math.sqrt(3), **CLOSE)
    assert side_by_side.slices == [[0, 12], [12, 32], [32, 416]]
    # A product is the cosine of the modality's own encoder, over the root of three.
    title = side_by_side.encode_clips("title", TEXTS)
    torch.testing.assert_close(title, torch.nn.functional.pad(mini, (32, 0)), **CLOSE)


@torch.no_grad()
def test_a_tone_of_12_kilohertz_is_heard(folders, tmp_path):
    """It is above what sound of 16 kHz can hold."""
    model, processor = load_model(folders["clap"])
    noise = np.random.default_rng(0).normal(size=48_000) * 1e-3
    tone = 0.5 * np.sin(np.pi / 2 * np.arange(48_000))
    clips = []
    for name, waveform in (("noise.wav", noise), ("tone.wav", noise + tone)):
        (tmp_path / name).write_bytes(wav((32767 * waveform).astype("<i2").tobytes(), rate=48_000))
        clips.append(processor.read_clip(tmp_path / name))
        assert len(clips[-1].waveform) == 48_000
    assert distinct(model.get_modality_features(**processor(clips=clips))[0][:, 0])


def write_layouts(folder, clip):
    """CLIP in the three layouts of Sentence Transformers: at the root, as its old class in a subfolder, and routed."""
    encoder = load_encoder(str(clip))
    routes = {"words": [encoder[0]], "pictures": [load_encoder(str(clip))[0]]}
    kinds = {(None, "text"): "words", (None, "image"): "pictures"}
    router = Router(routes, default_route="words", route_mappings=kinds)
    for name, layout in (("root", encoder), ("routed", SentenceTransformer(modules=[router], device="cpu"))):
        layout.save(str(folder / name), create_model_card=False)
    shutil.copytree(clip, folder / "old" / "0_CLIPModel")
    module = {"idx": 0, "name": "0", "path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}
    (folder / "old" / "modules.json").write_text(json.dumps([module]))
    return folder / "root", folder / "old", folder / "routed"


@pytest.mark.e2e
@torch.no_grad()
def test_every_layout_of_sentence_transformers_sees_frames(folders, tmp_path):
    frames = unit(features_of(folders["clip"], pictures=make_frames(1)).mean(dim=0))
    for folder in write_layouts(tmp_path, folders["clip"]):
        assert identify(folder).modalities == ("video",)
        model, processor = load_model(folder)
        processor.num_frames = 3
        output = model(**processor(text=TEXTS, clips=[Clip(make_frames(1))]))
        torch.testing.assert_close(output.modality_embeds[0], frames[None], **CLOSE)
        torch.testing.assert_close(output.text_embeds, features_of(folders["clip"], texts=TEXTS), **CLOSE)


@torch.no_grad()
def test_what_is_masked_is_absent_and_heads_stay_within_their_slice(folders):
    model, processor = load_model(f"{folders['clip']}+{folders['clap']}")
    assert model.config.modality_slices == [[0, 12], [12, 32]]
    sound, frames = make_sound(1)["array"], make_frames(1)
    batch = processor(text=TEXTS, clips=[Clip(frames, sound), Clip(frames), Clip(None, sound)])
    whole = model(**batch)
    assert whole.modality_mask.tolist() == [[True, True], [True, False], [False, True]]
    torch.testing.assert_close(whole.modality_embeds[1:].sum(dim=0), whole.modality_embeds[0], **CLOSE)
    mask = torch.tensor([[True, False], [True, False], [False, True]])
    masked, _ = model.get_modality_features(**processor(clips=[Clip(frames, sound)] * 3) | {"modality_mask": mask})
    torch.testing.assert_close(masked, whole.modality_embeds[[1, 1, 2]], **CLOSE)
    # Heads that are not trained change nothing, others only their own slice, but all of a query.
    model.add_heads()
    for head in (model.text_head, model.audio_head):
        torch.nn.init.normal_(head.weight)
    changed = model(**batch)
    moved = changed.modality_embeds - whole.modality_embeds
    torch.testing.assert_close(moved[:, 0], torch.zeros(3, 32), **CLOSE)
    assert moved[0, 1, 12:].norm() > 0.1 and not moved[:, 1, :12].any()
    assert (changed.text_embeds - whole.text_embeds)[:, :12].norm() > 0.1


@torch.no_grad()
def test_encoders_can_be_chosen_by_modality(folders):
    chosen = {"video": str(folders["siglip"]), "title": str(folders["clip"]), "notes": str(text_folder())}
    model, processor = ScalarModel.from_joint_encoder(chosen), ScalarProcessor.from_joint_encoder(chosen)
    assert model.config.modalities == processor.modalities == list(chosen)
    output = model(**processor(text="a dog", videos=[make_frames(1)], texts={"title": "a dog", "notes": "a dog"}))
    # Of a query, the parts of 16, 12 and 384 numbers have equal weights.
    title, query = output.modality_embeds[0, 1], output.text_embeds[0] * math.sqrt(3)
    torch.testing.assert_close(title, torch.nn.functional.pad(query[16:28], (16, 384)), **CLOSE)


# Names ---------------------------------------------------------------------------------------------------------------


def test_each_encoder_beside_others_has_one_job(folders, tmp_path):
    clip, siglip, clap, words = map(str, (folders["clip"], folders["siglip"], folders["clap"], text_folder()))
    assert identify(f"{clap}+{clip}").modalities == ("video", "audio")
    assert identify([words, clip]).modalities == ("video", "title", "subtitle", "screen")
    assert identify([clip, words]).routes == {"video": 0, "text": 1}
    for name, file in (("empty", "config.json"), ("code", "model.safetensors")):
        (tmp_path / name).mkdir()
        shutil.copy(folders["clip"] / file, tmp_path / name)
    (tmp_path / "code" / "modules.json").write_text('[{"type": "custom_st.Encoder", "path": ""}]')
    for name, said in (
        (f"{clip}+{tmp_path / 'code'}", "custom_st.Encoder, which is never run"),
        (f"{clip}+{siglip}", "would both embed video"),
        (f"{words}+{words}", "are named once each"),
        (f"{clip}+clap", "'laion/clap-htsat-unfused'"),
        (f"{clap}+{tmp_path / 'empty'}", "holds no model"),
        (words, "embeds texts alone"),
        ("clip", "no model folder 'clip'.*'openai/clip-vit-base-patch32'"),
    ):
        with pytest.raises((FileNotFoundError, ValueError), match=said):
            load_model(name)
    with pytest.raises(ValueError, match=r"Number 2 of .* embeds none of \['video'\]"):
        load_model(f"{clip}+{words}", modalities=["video"])
    # A folder of this name comes first.
    (tmp_path / "a+b").symlink_to(clip)
    assert identify(tmp_path / "a+b").name == clip


def test_the_fingerprint_covers_every_part(folders, tmp_path):
    shutil.copytree(folders["clap"], tmp_path / "clap")
    shutil.copytree(text_folder(), tmp_path / "words", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "words" / "model.safetensors").write_bytes(b"weights")
    name = f"{folders['clip']}+{tmp_path / 'clap'}+{tmp_path / 'words'}"
    known = [identify(name).fingerprint]
    for file in (
        "clap/preprocessor_config.json",
        "words/config_sentence_transformers.json",
        "words/1_Pooling/config.json",
        "words/tokenizer.json",
        "words/model.safetensors",
    ):
        with (tmp_path / file).open("ab") as stream:
            stream.write(b"\n")
        known.append(identify(name).fingerprint)
        assert known[-1] not in known[:-1], file


def test_a_saved_direct_sum_is_the_same(side_by_side, tmp_path):
    two = DirectSum(side_by_side.encoders[:2], {"video": 0, "audio": 1, "text": 0})
    saved = SentenceTransformer(modules=[two], device="cpu")
    saved.save(str(tmp_path), create_model_card=False)
    loaded = load_encoder(str(tmp_path))
    assert loaded[0].routes == two.routes
    for inputs in (TEXTS, [Image.fromarray(make_frames(1)[0])], [make_sound(1)]):
        np.testing.assert_allclose(loaded.encode_document(inputs), saved.encode_document(inputs), atol=1e-6, rtol=0)
    query = two.encode_queries(TEXTS)
    for encoder in (saved, loaded):
        torch.testing.assert_close(encoder.encode_query(TEXTS, convert_to_tensor=True), query, **CLOSE)
    with pytest.raises(ValueError, match="prompts of their own"):
        saved.encode(TEXTS, prompt="query: ")
