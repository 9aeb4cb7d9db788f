"""Models on joint encoders, against the libraries that such encoders are published for.

The weights are random and tiny, the classes are the real ones. What Sentence Transformers makes of the same streams is
computed in a process of its own (joint_reference.py).
"""

import logging
import os
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import torch

from scalar_retrieval.modeling_scalar import (
    MODALITIES,
    Clip,
    ScalarModel,
    ScalarProcessor,
    load_model,
)
from scalar_retrieval.modeling_scalar.image_processing_joint_scalar import patch_grid
from scalar_retrieval.modeling_scalar.processing_joint_scalar import as_words
from tests.conftest import ROOT
from tests.joint_encoders import CHAT_TEMPLATE, DOCUMENT_PROMPT, make_streams, write_joint_encoder

# What the padding of a batch may change, and the order of sums in two processes: fifty times the last bit of a cosine.
CLOSE = {"atol": 1e-6, "rtol": 0}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two encoders as published, `plain` and with a chat template, and one saved as a model of ours, `remote`."""
    root = tmp_path_factory.mktemp("joint")
    write_joint_encoder(root / "plain")
    write_joint_encoder(root / "chat", chat_template=CHAT_TEMPLATE, max_soft_tokens=140)
    model, processor = load_model(root / "plain")
    model.save_pretrained(root / "remote")
    processor.save_pretrained(root / "remote")
    return root


@pytest.fixture(scope="module")
def encoders(folders):
    """Both encoders by name, with processors of as many frames as the clips have."""
    return {
        kind: (ScalarModel.from_joint_encoder(folders / kind), processor_of(folders / kind))
        for kind in ("plain", "chat")
    }


@pytest.fixture(scope="module")
def joint(encoders):
    return encoders["plain"]


def processor_of(folder, **settings):
    return ScalarProcessor.from_joint_encoder(folder, **{"num_frames": 2} | settings)


def make_clips() -> list[Clip]:
    return [Clip(*streams) for streams in zip(*make_streams(), strict=True)]


@torch.no_grad()
def embed(model, processor, clips):
    return model.get_modality_features(**processor(clips=clips))


# The encoder's own library -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference(folders):
    model, processor = load_model(folders / "remote")
    processor.num_frames = 2
    batch = processor(text=make_streams()[2], clips=make_clips())
    torch.save(dict(batch), folders / "batch.pt")
    program, output = ROOT / "tests" / "modeling_scalar" / "joint_reference.py", folders / "reference.pt"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(folders / "modules"), "PYTHONPATH": ""}
    arguments = [sys.executable, str(program), str(ROOT), str(folders), str(output)]
    done = subprocess.run(arguments, cwd=folders, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    with torch.no_grad():
        return torch.load(output) | {"scores": model(**batch).scores}


@torch.no_grad()
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("kind", ["plain", "chat"])
def test_each_vector_is_what_sentence_transformers_encodes_alone_and_in_a_batch(encoders, reference, kind, batch_size):
    model, processor = encoders[kind]
    output, expected = model(**processor(text=make_streams()[2], clips=make_clips())), reference[kind][batch_size]
    for name in ("text", *MODALITIES):
        torch.testing.assert_close(output[f"{name}_embeds"], expected[name], **CLOSE)
    assert (expected["video"] - expected["audio"]).norm(dim=1).min() > 0.1  # or there would be nothing to tell apart


@pytest.mark.parametrize("kind", ["plain", "chat"])
def test_a_sentence_transformer_that_computes_itself_gives_its_own_vectors(encoders, reference, kind):
    """Also of a query that names a file."""
    (model, processor), expected, ours = encoders[kind], reference[kind][3], reference[kind]["ours"]
    torch.testing.assert_close(ours["text"], expected["text"], **CLOSE)
    assert ours["mask"].tolist() == [[True, True, True], [True, False, True], [True, True, False]]
    by_name = torch.stack([expected[name] for name in MODALITIES], dim=1)
    torch.testing.assert_close(ours["clips"], by_name * ours["mask"][..., None], **CLOSE)
    with torch.no_grad():
        address = model.get_text_features(**processor(text="cat.png")).pooler_output
    torch.testing.assert_close(ours["address"], address, **CLOSE)


class DeafEncoder(torch.nn.Module):
    """In place of a SentenceTransformer that knows texts and videos: counts words, and averages colours."""

    modalities, processor, transformers_model = ["text", "image", "video"], None, None

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def supports(self, modality):
        return modality in self.modalities

    def get_embedding_dimension(self):
        return 3

    def encode_query(self, inputs, **_):
        return torch.tensor([[len(text.split()), 1.0, 0.0] for text in inputs])

    def encode_document(self, inputs, **_):
        if isinstance(inputs[0], str):
            return self.encode_query(inputs)
        return torch.stack([frames.float().mean(dim=(0, 2, 3)) for frames in inputs])


# Special tokens ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "chat"])
def test_what_somebody_writes_is_never_a_token_of_the_encoders_own(encoders, kind):
    _, processor = encoders[kind]
    own = {*processor.tokenizer.all_special_ids} - {processor.tokenizer.unk_token_id}  # which some letters are
    words = "say " + " ".join(processor.tokenizer.all_special_tokens) + "<|video|><|audio|>"
    for name in ("input_ids", "subtitle_input_ids"):
        counts = []
        for text in ("say", words):
            ids = processor(text=text, clips=[Clip(subtitle=text)])[name]
            counts.append(torch.isin(ids, torch.tensor(sorted(own))).sum())
        assert counts[0] == counts[1] > 0


def test_a_text_without_such_tokens_stays_as_it_is(joint):
    tokenizer = joint[1].tokenizer
    assert as_words("a < b | c > d {video} <video>", tokenizer) == "a < b | c > d {video} <video>"
    assert as_words("<|video|> and <eos>", tokenizer) == "< |video|> and < eos>"
    assert as_words("<|video|> and <eos>", None) == "< |video|> and <eos>"  # of no tokenizer of transformers


# Saved and loaded ----------------------------------------------------------------------------------------------------


def test_a_saved_model_loads_as_remote_code_in_a_fresh_process(reference):
    remote = reference["remote"]
    assert remote["is_remote"]
    torch.testing.assert_close(remote["scores"], reference["scores"], **CLOSE)


def test_saving_keeps_every_setting_and_the_heads_of_all_modalities(folders, joint, tmp_path):
    modalities = ["video", "subtitle", "title"]
    fields = {"has_heads": True, "query_temperature": 0.3, "aggregation": "gram"}
    model = ScalarModel.from_joint_encoder(folders / "plain", modalities=modalities, **fields)
    settings = {"modalities": modalities, "media_prompt": "a {} b", "num_frames": 3, "max_audio_seconds": 5}
    processor = processor_of(folders / "plain", **settings)
    clips = make_clips()
    for clip in clips:
        clip.texts["title"] = "Rex"
    untrained, _ = embed(model, processor, clips)
    torch.testing.assert_close(untrained[:, 1], embed(*joint, clips)[0][:, 2], **CLOSE)  # without the audio tower
    for name in ("text", *modalities):
        torch.nn.init.normal_(getattr(model, f"{name}_head").weight, std=0.1)
    expected = embed(model, processor, clips)
    assert (expected[0] - untrained).norm(dim=-1).min() > 1e-2
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    assert str(folders) not in (tmp_path / "config.json").read_text()  # the encoder's
    again, beside = load_model(tmp_path)
    assert again.config.to_diff_dict() == model.config.to_diff_dict() and again.backbone.audio_tower is None
    for name in (*settings, "query_prompt", "max_length"):
        assert getattr(beside, name) == getattr(processor, name), name
    torch.testing.assert_close(embed(again, beside, clips), expected)


# Presence ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("samples", "is_there"), [(479, False), (480, True)])
def test_sound_shorter_than_30_ms_is_absent_with_a_reason(joint, samples, is_there):
    clip = joint[1].read_clip(make_streams()[0][0], audio=np.full(samples, 0.1, np.float32))
    assert ("30 ms" in str(clip.problems)) != is_there
    embeds, mask = embed(*joint, [clip])
    assert mask.tolist() == [[True, is_there, False]] and embeds.isfinite().all()


def test_sound_beyond_the_limit_is_left_out_and_said_once(folders, joint, caplog):
    processor = processor_of(folders / "plain", max_audio_seconds=0.5)
    logging.getLogger("transformers").propagate = True
    sound = np.random.default_rng(1).uniform(-0.5, 0.5, 24_000).astype(np.float32)
    long = [processor.read_clip(None, audio=sound) for _ in range(2)]
    assert caplog.text.count("0.5 s of audio; the rest is left out") == 1 and long[0].duration == 1.5
    torch.testing.assert_close(embed(joint[0], processor, long[:1]), embed(*joint, [Clip(waveform=sound[:8000])]))


def test_more_tokens_than_the_encoder_reads_are_refused(folders):
    processor = processor_of(folders / "plain", max_length=100, max_text_length=100, max_subtitle_length=100)
    with pytest.raises(ValueError, match=r"its video takes \d+ tokens, but the encoder reads 100.*num_frames"):
        processor(clips=make_clips())
    assert processor(text=["a" * 200])["input_ids"].shape == (1, 100)  # a text is cut


# Prompts -------------------------------------------------------------------------------------------------------------


def test_prompts_are_those_of_the_folder_unless_given(folders, encoders):
    plain, chat = encoders["plain"][1], encoders["chat"][1]
    assert (plain.document_prompt, plain.media_prompt, plain.add_special_tokens) == (DOCUMENT_PROMPT, "", True)
    assert (chat.media_prompt, chat.add_special_tokens) == (f"<bos>{DOCUMENT_PROMPT}{{}}<eos>", False)
    own = processor_of(folders / "plain", media_prompt=DOCUMENT_PROMPT)
    prompt = plain.tokenizer(DOCUMENT_PROMPT)["input_ids"][1:-1]  # without <bos> and <eos>
    first, *others = plain(clips=make_clips()[:1])["audio_input_ids"][0].tolist()
    assert own(clips=make_clips()[:1])["audio_input_ids"][0].tolist() == [first, *prompt, *others]


# Scores --------------------------------------------------------------------------------------------------------------


def test_the_inputs_are_checked(joint):
    model, processor = joint
    batch = processor(clips=make_clips())
    pictures = {key: value for key, value in batch.items() if key.startswith(("pixel_values", "video"))}
    for given, error, message in (
        (batch | {"pixel_values": 1}, TypeError, "pixel_values"),
        ({"pixel_values_videos": batch["pixel_values_videos"]}, ValueError, "video_position_ids"),
        (pictures | {"modality_mask": batch["modality_mask"]}, ValueError, r"\['audio', 'subtitle'\]"),
    ):
        with pytest.raises(error, match=message):
            model(**given)


# Sizes and limits ----------------------------------------------------------------------------------------------------


def test_patches_across_and_down_are_those_of_transformers():
    from transformers.models.embedding_gemma2.processing_embedding_gemma2 import get_aspect_ratio_preserving_size

    sizes = np.random.default_rng(0).integers(1, 3000, (200, 2)).tolist()
    for (height, width), tokens in product([*sizes, [1, 5000], [5000, 1], [1080, 1920]], (70, 140, 1120)):
        expected = get_aspect_ratio_preserving_size(height, width, 16, tokens * 9, 3)
        assert tuple(16 * count for count in patch_grid(height, width, tokens * 9, 16, 3)) == expected


def test_float16_is_refused_where_it_gives_nan(folders, joint):
    model = ScalarModel.from_joint_encoder(folders / "plain", dtype=torch.bfloat16)
    batch = joint[1](text="a", clips=make_clips()).to("cpu", torch.bfloat16)
    with torch.no_grad():
        embeds = model(**batch).modality_embeds
    torch.testing.assert_close(embeds.norm(dim=-1), torch.ones(3, 3), **CLOSE)  # in float32
    with pytest.raises(ValueError, match="NaN in float16"):
        model.half().get_text_features(batch["input_ids"])


def test_what_is_no_joint_encoder_is_refused(tiny_model_dir, folders):
    for folder, fields, message in (
        (tiny_model_dir, {}, "joint encoder"),
        (folders / "plain", {"heat": 1}, "heat"),
        (folders / "plain", {"modalities": "video"}, "modalities"),
    ):
        with pytest.raises(ValueError, match=message):
            ScalarModel.from_joint_encoder(folder, **fields)
