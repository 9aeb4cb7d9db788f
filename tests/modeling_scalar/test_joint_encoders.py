"""Models on joint encoders, against the libraries that such encoders are published for.

The weights are random and tiny, the classes are the real ones. What Sentence Transformers makes of the same streams is
computed in a process of its own (joint_reference.py).
"""

import copy
import json
import logging
import os
import subprocess
import sys
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from scalar_retrieval.modeling_scalar import (
    MODALITIES,
    Clip,
    ScalarJointModel,
    ScalarModel,
    ScalarProcessor,
    load_model,
)
from scalar_retrieval.modeling_scalar.direct_sum import DirectSum
from scalar_retrieval.modeling_scalar.image_processing_joint_scalar import patch_grid
from scalar_retrieval.modeling_scalar.modalities_scalar import FAMILIES
from scalar_retrieval.modeling_scalar.processing_joint_scalar import as_words
from tests.conftest import ROOT
from tests.joint_encoders import CHAT_TEMPLATE, DOCUMENT_PROMPT, make_streams, write_joint_encoder
from tests.media_corpus import media

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
    torch.save(list(model.state_dict()), folders / "names.pt")
    program, output = ROOT / "tests" / "modeling_scalar" / "joint_reference.py", folders / "reference.pt"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(folders / "modules")}
    done = subprocess.run(
        [sys.executable, str(program), str(ROOT), str(folders), str(output)],
        cwd=folders,
        env={name: value for name, value in environment.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with torch.no_grad():
        ours = model(**batch).scores, model.get_text_features(**processor(text="a dog barks")).pooler_output
    return torch.load(output) | {"ours": ours}


@torch.no_grad()
@pytest.mark.parametrize("kind", ["plain", "chat"])
def test_each_vector_is_what_sentence_transformers_encodes_alone_and_in_a_batch(encoders, reference, kind):
    model, processor = encoders[kind]
    output = model(**processor(text=make_streams()[2], clips=make_clips()))
    for batch_size in (1, 3):
        expected = reference[kind][batch_size]
        torch.testing.assert_close(output.text_embeds, expected["text"], **CLOSE)
        for name in MODALITIES:
            torch.testing.assert_close(output[f"{name}_embeds"], expected[name], **CLOSE)
    assert (expected["video"] - expected["audio"]).norm(dim=1).min() > 0.1  # or there would be nothing to tell apart


def test_fewer_dimensions_are_those_of_sentence_transformers(folders, joint, reference):
    model = ScalarModel.from_joint_encoder(folders / "plain", projection_dim=8)
    with torch.no_grad():
        got = model.get_text_features(**joint[1](text=make_streams()[2])).pooler_output
    torch.testing.assert_close(got, reference["plain"]["short"], **CLOSE)


@pytest.mark.parametrize("kind", ["plain", "chat"])
def test_patches_are_those_of_the_encoders_own_processor(encoders, reference, kind):
    """The same bits; `chat` has twice the budget, and frames that are narrower than its squares allow are padded."""
    batch, expected = encoders[kind][1](videos=make_streams()[0], audio=None), reference[kind]["patches"]
    for name in ("pixel_values_videos", "video_position_ids"):
        assert torch.equal(batch[name].flatten(0, 1), expected[name])
    assert (expected["video_position_ids"] == -1).any()


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


def test_sound_is_read_at_the_rate_of_the_route_that_hears():
    """A SentenceTransformer with a `Router` has no processor; each of its routes may have one."""
    router = DeafEncoder()
    router.modalities = ["text", "audio"]
    router.audio = torch.nn.Identity()
    router.audio.processor = SimpleNamespace(feature_extractor=SimpleNamespace(sampling_rate=48_000))
    assert DirectSum([router]).sampling_rate == 48_000


def test_a_folder_that_sentence_transformers_saved_is_the_same_encoder(folders, joint, reference):
    assert reference  # it has saved the folder
    again, processor = load_model(folders / "plain-saved")
    processor.num_frames = 2
    assert isinstance(again, ScalarJointModel) and processor.query_prompt == joint[1].query_prompt
    torch.testing.assert_close(embed(again, processor, make_clips()), embed(*joint, make_clips()))


def test_an_encoder_in_a_subfolder_of_its_folder_is_the_same(reference):
    expected, found = reference["chat"][3], reference["below"]
    torch.testing.assert_close(found["text"], expected["text"], **CLOSE)
    torch.testing.assert_close(found["clips"], torch.stack([expected[name] for name in MODALITIES], dim=1), **CLOSE)
    before, after = found["fingerprints"]
    assert before != after  # as of any model, by its weights


# Special tokens ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "chat"])
def test_what_somebody_writes_is_never_a_token_of_the_encoders_own(encoders, kind):
    model, processor = encoders[kind]
    own = {*processor.tokenizer.all_special_ids} - {processor.tokenizer.unk_token_id}  # which some letters are
    words = "say " + " ".join(processor.tokenizer.all_special_tokens) + "<|video|><|audio|>"
    for name in ("input_ids", "subtitle_input_ids"):
        counts = []
        for text in ("say", words):
            ids = processor(text=text, clips=[Clip(subtitle=text)])[name]
            counts.append(torch.isin(ids, torch.tensor(sorted(own))).sum())
        assert counts[0] == counts[1] > 0
    with torch.no_grad():
        assert model.get_text_features(**processor(text=words)).pooler_output.isfinite().all()


def test_a_text_without_such_tokens_stays_as_it_is(joint):
    tokenizer = joint[1].tokenizer
    assert as_words("a < b | c > d {video} <video>", tokenizer) == "a < b | c > d {video} <video>"
    assert as_words("<|video|> and <eos>", tokenizer) == "< |video|> and < eos>"
    assert as_words("<|video|> and <eos>", None) == "< |video|> and <eos>"  # of no tokenizer of transformers
    grown = copy.deepcopy(tokenizer)
    grown.add_special_tokens({"additional_special_tokens": ["<new>"]})
    assert as_words("<new>", grown) == "< new>" and as_words("<new>", tokenizer) == "<new>"


# Saved and loaded ----------------------------------------------------------------------------------------------------


def test_a_saved_model_loads_as_remote_code_in_a_fresh_process(reference):
    scores, query = reference["ours"]
    assert reference["remote"]["is_remote"] and not reference["remote"]["missing"]
    torch.testing.assert_close(reference["remote"]["scores"], scores, **CLOSE)
    torch.testing.assert_close(reference["remote"]["query"], query, **CLOSE)


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
    whole, _ = embed(*joint, clips)
    torch.testing.assert_close(untrained[:, 1], whole[:, 2], **CLOSE)  # without the towers that others need
    heads = [name for name, _ in model.named_children() if name.endswith("_head")]
    assert set(heads) == {"text_head", "video_head", "subtitle_head", "title_head"}
    for name in heads:
        torch.nn.init.normal_(getattr(model, name).weight, std=0.1)
    expected = embed(model, processor, clips)
    assert (expected[0] - untrained).norm(dim=-1).min() > 1e-2
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    assert str(folders) not in (tmp_path / "config.json").read_text()  # the encoder's
    again, beside = load_model(tmp_path)
    assert again.config.to_diff_dict() == model.config.to_diff_dict()
    assert again.backbone.audio_tower is None
    assert {name: getattr(beside, name) for name in settings} == settings
    for name in ("query_prompt", "max_length"):
        assert getattr(beside, name) == getattr(processor, name), name
    torch.testing.assert_close(embed(again, beside, clips), expected)


# Presence ------------------------------------------------------------------------------------------------------------


def test_sound_shorter_than_30_ms_is_absent_with_a_reason(joint):
    _, processor = joint
    for samples, is_there in ((479, False), (480, True)):
        clip = processor.read_clip(make_streams()[0][0], audio=np.full(samples, 0.1, np.float32))
        assert clip.has("audio") == is_there
        assert any("30 ms" in problem for problem in clip.problems) != is_there
        embeds, mask = embed(*joint, [clip])
        assert mask.tolist() == [[True, is_there, False]] and embeds.isfinite().all()


def test_sound_beyond_the_limit_is_left_out_and_said_once(folders, joint, caplog):
    processor = processor_of(folders / "plain", max_audio_seconds=0.5)
    logging.getLogger("transformers").propagate = True
    sound = np.random.default_rng(1).uniform(-0.5, 0.5, 24_000).astype(np.float32)
    with caplog.at_level(logging.WARNING):
        long = [processor.read_clip(None, audio=sound) for _ in range(2)]
    assert caplog.text.count("0.5 s of audio; the rest is left out") == 1 and long[0].duration == 1.5
    torch.testing.assert_close(embed(joint[0], processor, long[:1]), embed(*joint, [Clip(waveform=sound[:8000])]))


def test_a_file_gives_the_batch_of_its_decoded_streams(joint, tmp_path):
    """Processed as it is decoded, whole, or handed over as arrays."""
    _, processor = joint
    path = tmp_path / "clip.mkv"
    path.write_bytes(media("matroska", "mjpeg", "pcm_s16le", "subrip", size=(96, 64)))
    raw = processor.read_clip(path)
    clips = [
        raw,
        processor.read_clip(path, processed=True),
        processor.read_clip(raw.frames, raw.waveform, raw.subtitle),
    ]
    assert clips[1].frames is None and clips[1].pixel_values.shape[0] == 2 and clips[1].duration == raw.duration
    expected, *others = (processor(clips=[clip]) for clip in clips)
    assert expected["modality_mask"].all()
    for batch in others:
        assert batch.keys() == expected.keys() and all(torch.equal(batch[key], expected[key]) for key in batch)


def test_more_tokens_than_the_encoder_reads_are_refused(folders):
    processor = processor_of(folders / "plain", max_length=100, max_text_length=100, max_subtitle_length=100)
    with pytest.raises(ValueError, match=r"its video takes \d+ tokens, but the encoder reads 100.*num_frames"):
        processor(clips=make_clips())
    assert processor(text=["a" * 200])["input_ids"].shape == (1, 100)  # a text is cut


# Prompts -------------------------------------------------------------------------------------------------------------


def test_a_chat_template_counts_only_where_sentence_transformers_uses_it(tmp_path):
    folder = write_joint_encoder(tmp_path / "encoder", chat_template=CHAT_TEMPLATE)
    path = folder / "sentence_bert_config.json"
    content = json.loads(path.read_text())
    del content["modality_config"]["message"]
    path.write_text(
        json.dumps(content | {"max_seq_length": 2048, "processing_kwargs": {"video": {"max_soft_tokens": 280}}})
    )
    processor = processor_of(folder)
    assert (processor.media_prompt, processor.add_special_tokens) == ("", True)
    assert (processor.max_length, processor.image_processor.max_soft_tokens) == (2048, 280)


def test_prompts_are_those_of_the_folder_unless_given(folders, encoders):
    plain, chat = encoders["plain"][1], encoders["chat"][1]
    assert (plain.document_prompt, plain.media_prompt, plain.add_special_tokens) == (DOCUMENT_PROMPT, "", True)
    assert (chat.media_prompt, chat.add_special_tokens) == (f"<bos>{DOCUMENT_PROMPT}{{}}<eos>", False)
    own = processor_of(folders / "plain", media_prompt=DOCUMENT_PROMPT)
    for name in ("video", "audio"):
        key = f"{name}_input_ids"
        got, expected = (batch(clips=make_clips()[:1])[key][0].tolist() for batch in (own, plain))
        prompt = plain.tokenizer(DOCUMENT_PROMPT)["input_ids"][1:-1]  # without <bos> and <eos>
        assert got == [expected[0], *prompt, *expected[1:]]


# Scores --------------------------------------------------------------------------------------------------------------


def test_a_call_returns_what_three_towers_return(joint):
    model, processor = joint
    batch = processor(text=make_streams()[2], clips=make_clips())
    assert model(**batch).loss is None
    output = model(**batch, return_loss=True)
    assert output.scores.shape == (3, 3) and output.modality_embeds.shape == (3, 3, model.config.projection_dim)
    output.loss.backward()
    for part in ("language_model", "vision_tower", "audio_tower"):
        assert any(p.grad is not None and p.grad.any() for p in getattr(model.backbone, part).parameters()), part
    model.zero_grad()
    with torch.no_grad():
        more = model(**processor(text="a"), output_hidden_states=True)
    assert more.text_model_output.hidden_states and more.scores is None
    assert model.score_options() == {"method": "scalar", "query_temperature": 0.1}


def test_the_inputs_are_checked(joint):
    model, processor = joint
    batch = processor(clips=make_clips())
    with pytest.raises(TypeError, match="pixel_values"):
        model(**batch, pixel_values=1)
    with pytest.raises(ValueError, match="video_position_ids"):
        model.get_modality_features(pixel_values_videos=batch["pixel_values_videos"])
    with pytest.raises(ValueError, match=r"marks \['audio', 'subtitle'\]"):
        model.get_modality_features(
            **{key: batch[key] for key in model.input_sets("video")[0]}, modality_mask=batch["modality_mask"]
        )


# Sizes and limits ----------------------------------------------------------------------------------------------------


def test_patches_across_and_down_are_those_of_transformers():
    from transformers.models.embedding_gemma2.processing_embedding_gemma2 import get_aspect_ratio_preserving_size

    draw = np.random.default_rng(0)
    sizes = [*draw.integers(1, 3000, (200, 2)).tolist(), [1, 5000], [5000, 1], [720, 1280], [48, 48], [1080, 1920]]
    for (height, width), tokens in product(sizes, (70, 140, 1120)):
        expected = get_aspect_ratio_preserving_size(height, width, 16, tokens * 9, 3)
        assert tuple(16 * count for count in patch_grid(height, width, tokens * 9, 16, 3)) == expected


def test_float16_is_refused_where_it_gives_nan(folders, joint):
    model = ScalarModel.from_joint_encoder(folders / "plain", dtype=torch.bfloat16)
    batch = joint[1](text="a", clips=make_clips()).to("cpu", torch.bfloat16)
    with torch.no_grad():
        embeds = model(**batch).modality_embeds
    assert embeds.dtype == torch.float32
    torch.testing.assert_close(embeds.norm(dim=-1), torch.ones(3, 3), **CLOSE)
    with pytest.raises(ValueError, match="NaN in float16"):
        model.half().get_text_features(batch["input_ids"])


def test_what_is_no_joint_encoder_is_refused(tiny_model_dir, folders, tmp_path):
    with pytest.raises(ValueError, match="joint encoder"):
        ScalarModel.from_joint_encoder(tiny_model_dir)
    with pytest.raises(ValueError, match=r"no fields \['heat'\]"):
        ScalarModel.from_joint_encoder(folders / "plain", heat=1)
    with pytest.raises(ValueError, match="modalities"):
        ScalarModel.from_joint_encoder(folders / "plain", modalities="video")


@pytest.mark.parametrize("kind", ["plain", pytest.param("remote", marks=pytest.mark.slow)])
def test_an_adapter_of_a_joint_encoder_loads_on_its_base(folders, tmp_path, kind):
    """Whether that was saved as a model of ours or is as published."""
    base, processor = load_model(folders / kind, query_temperature=0.2)
    patterns = "|".join(rf"backbone\.{pattern}" for pattern in FAMILIES["embedding_gemma2"].adapted.values())
    options = {"target_modules": patterns, "task_type": "FEATURE_EXTRACTION", "init_lora_weights": False}
    adapted = get_peft_model(base, LoraConfig(r=2, **options)).eval()
    adapted.save_pretrained(tmp_path)
    base.config.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    again, beside = load_model(tmp_path)
    beside.num_frames = 2
    assert again.config.query_temperature == 0.2
    other = ScalarJointModel.from_pretrained(tmp_path).eval()  # as remote code does
    torch.testing.assert_close(embed(other, beside, make_clips()), embed(again, beside, make_clips()))
    torch.testing.assert_close(
        embed(again, beside, make_clips()), embed(adapted.base_model.model, beside, make_clips())
    )
    plain = embed(load_model(folders / "remote")[0], beside, make_clips())[0]
    assert (embed(again, beside, make_clips())[0] - plain).norm(dim=-1).min() > 1e-3  # it changes every modality
