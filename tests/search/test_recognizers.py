"""Recognisers of speech: what they are asked, what counts as understood, and how they fail."""

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode
from typer.testing import CliRunner

from scalar_retrieval.gallery.decoding import Stop, Stopped
from scalar_retrieval.modeling_scalar.media_scalar import SAMPLING_RATE, MediaReader
from scalar_retrieval.search.__main__ import app
from scalar_retrieval.search.recognizers import (
    Cue,
    FasterWhisperRecognizer,
    downloaded_recognizer,
    is_understood,
    recognizer_of,
)
from tests.search.recognizing import heard_by, save_ctc
from tests.search.sounds import SPEECH

CPU = torch.device("cpu")
LETTERS = "abcdefghij"
NOISE = np.random.default_rng(0).uniform(-0.5, 0.5, 3 * SAMPLING_RATE).astype(np.float32)


@pytest.fixture(scope="module")
def ctc(tmp_path_factory):
    """A recogniser that is no Whisper."""
    return recognizer_of(save_ctc(tmp_path_factory.mktemp("speech-model")), "tiny", CPU)


@pytest.mark.parametrize("num_samples", [1, 399, len(NOISE)])
def test_a_recogniser_of_transformers_hears_words_with_times_also_in_a_few_samples(ctc, num_samples):
    cues = ctc(NOISE[:num_samples])
    assert ctc.kind == "ctc" and (cues or num_samples < len(NOISE))
    for cue in cues:
        assert 0 <= cue.start <= cue.stop <= num_samples / SAMPLING_RATE
        assert cue.text and set(cue.text) <= {*LETTERS, " "}


@pytest.fixture(scope="module")
def whisper_folder(tmp_path_factory):
    """A Whisper with random weights, which knows two languages."""
    folder = tmp_path_factory.mktemp("whisper")
    languages, tasks = ["<|en|>", "<|de|>"], ["<|translate|>", "<|transcribe|>"]
    special = ["<|endoftext|>", "<|startoftranscript|>", *languages, *tasks, "<|startoflm|>", "<|startofprev|>"]
    special += ["<|nospeech|>", "<|notimestamps|>"]
    alphabet = bytes_to_unicode().values()
    tokenizer = WhisperTokenizer(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[])
    tokenizer.add_special_tokens({"extra_special_tokens": special})
    tokenizer.add_tokens([f"<|{index * 0.02:.2f}|>" for index in range(1501)])
    ids = tokenizer.get_vocab()
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    tokens = {"pad_token_id": end, "bos_token_id": end, "eos_token_id": end, "decoder_start_token_id": start}
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=len(ids), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_target_positions=64, init_std=1.0,
        **tokens,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        is_multilingual=True, lang_to_id={name: ids[name] for name in languages},
        task_to_id={name.strip("<|>"): ids[name] for name in tasks}, no_timestamps_token_id=ids["<|notimestamps|>"],
        max_length=24, suppress_tokens=[ids[name] for name in special[1:]], **tokens,
    )  # fmt: skip
    for part in (model, tokenizer, WhisperFeatureExtractor()):
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def whisper(whisper_folder):
    """It as a recogniser of transformers."""
    return recognizer_of(whisper_folder, "tiny", CPU)


@pytest.fixture(scope="module")
def converted(whisper_folder, tmp_path_factory):
    """The same Whisper, computed by CTranslate2."""
    pytest.importorskip("faster_whisper")
    from ctranslate2.converters import TransformersConverter

    folder = tmp_path_factory.mktemp("converted") / "model"
    copied = ["tokenizer.json", "preprocessor_config.json"]
    TransformersConverter(str(whisper_folder), copy_files=copied).convert(str(folder))
    return recognizer_of(folder, "tiny", CPU)


@pytest.mark.parametrize("kind", ["whisper", "converted"])
def test_ctrl_c_ends_hearing_within_a_stretch(request, kind):
    stop = Stop()
    with stop.threads(1) as threads:
        stop.set()
        with pytest.raises(Stopped):
            threads.submit(request.getfixturevalue(kind), NOISE).result(60)


def test_what_recognises_no_speech_is_reported(tiny_model_dir):
    with pytest.raises(ValueError, match=r"(?i)speech|auto"):
        recognizer_of(tiny_model_dir, "tiny", CPU)


HEARD = {  # by kind: what is answered for three seconds, and the cues
    "whisper": (  # whose slips are mended
        [(" Guten Tag.", 0.0, 1.5), (" ...", 1.5, 2.0), (" Hallo", 2.5, None), (" you", 29.0, 30.0)],
        [Cue(0.0, 1.5, "Guten Tag."), Cue(2.5, 3.0, "Hallo"), Cue(3.0, 3.0, "you")],
    ),
    "ctc": (  # whose words are joined up to a pause
        [("a", 0.0, 0.5), ("b", 0.6, 1.0), ("c", 2.5, 2.6), ("d", 2.7, 2.9)],
        [Cue(0, 1, "a b"), Cue(2.5, 2.9, "c d")],
    ),
    "plain": ([], [Cue(0.0, 3.0, "some words")]),  # without times, of the whole sound
}


@pytest.mark.parametrize("kind", HEARD)
def test_words_have_the_times_that_a_recogniser_gives(kind):
    answered, expected = HEARD[kind]
    chunks = [{"text": text, "timestamp": (start, stop)} for text, start, stop in answered]
    recognizer = heard_by(kind, {"text": "some words", "chunks": chunks})
    assert recognizer(NOISE) == expected
    ((length, options),) = recognizer.calls
    assert length == len(NOISE) and ("return_timestamps" in options) == (kind != "plain")


@pytest.mark.parametrize(("seconds", "expected"), [(0.1, 13), (30, 372)])
def test_whisper_is_asked_again_where_it_loops_and_for_no_more_tokens_than_anybody_says(seconds, expected):
    recognizer = heard_by("whisper", {"text": "yes"})
    recognizer(np.zeros(round(seconds * SAMPLING_RATE), np.float32))
    ((_, options),) = recognizer.calls
    asked = options["generate_kwargs"]
    assert asked["max_new_tokens"] == expected and asked["temperature"] == (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


LOOPS = ["a" * 1782, "I'm going to take a look at it, " * 40, "uh, " * 200]


@pytest.mark.parametrize("text", LOOPS)
@pytest.mark.parametrize("kind", ["whisper", "ctc", "plain"])
def test_a_loop_counts_as_not_understood_whoever_heard_it(kind, text):
    assert heard_by(kind, {"text": text})(NOISE) is None
    pieces = [{"text": text[place : place + 20], "timestamp": (0.0, 3.0)} for place in range(0, len(text), 20)]
    assert heard_by(kind, {"text": text, "chunks": pieces})(NOISE) is None


def test_sound_without_words_is_not_doubted():
    assert heard_by("whisper", {"text": " ♪"})(NOISE) == []


@pytest.mark.parametrize(
    ("languages", "certainty", "expected"),
    [
        ((5.0, 0.0, 0.0), 20.0, False),
        ((5.0, 0.0, 0.0), 0.0, True),  # improbable words
        ((0.5, 0.4, 0.3), 20.0, True),  # of no known language
    ],
)
def test_whisper_doubts_improbable_words_and_those_of_a_language_that_it_is_unsure_of(
    whisper, monkeypatch, languages, certainty, expected
):
    model, config = whisper.pipeline.model, whisper.pipeline.model.generation_config
    prompts = []

    def forward(features, decoder_input_ids):
        ids = decoder_input_ids[0].tolist()
        prompts.append(ids)
        logits = torch.zeros(1, len(ids), model.config.vocab_size)
        logits[0, range(len(ids) - 1), ids[1:]] = certainty
        logits[0, 0, :3] = torch.tensor(languages)
        return SimpleNamespace(logits=logits)

    monkeypatch.setattr(config, "lang_to_id", {"<|en|>": 0, "<|de|>": 1, "<|fi|>": 2})
    monkeypatch.setattr(model, "forward", forward)
    monkeypatch.setattr(model, "detect_language", lambda _: torch.tensor([0]))
    assert whisper._is_doubtful(NOISE, LETTERS) is expected
    begin = [config.decoder_start_token_id, 0, config.task_to_id["transcribe"], config.no_timestamps_token_id]
    assert prompts[0][:4] == begin and len(prompts[0]) == 4 + len(LETTERS)


@pytest.mark.parametrize(
    ("text", "seconds", "expected"),
    [
        ("no, no, no, no, no", 2, True),
        ("ja", 0.2, True),
        ("今日はとても良い天気ですね。", 2, True),
        (" ... ♪♪", 2, False),
        ("".join(chr(97 + 7 * number % 26) + chr(97 + number % 23) for number in range(200)), 2, False),
    ],
)
def test_what_somebody_can_have_said_is_understood(text, seconds, expected):
    assert is_understood(text, seconds) is expected


def test_a_recogniser_draws_the_same_words_each_time_and_nothing_else_draws_other_numbers():
    drawn = []
    recognizer = heard_by("plain", lambda _: drawn.append(torch.rand(1).item()) or {"text": "yes"})
    before = torch.get_rng_state()
    recognizer(NOISE), recognizer(NOISE)
    assert torch.get_rng_state().equal(before) and drawn[0] == drawn[1]


def test_faster_whisper_hears_words_with_times(converted):
    assert isinstance(converted, FasterWhisperRecognizer) and converted.name == "tiny"
    cues = converted(MediaReader().read_audio(SPEECH))
    assert all(0 <= cue.start <= cue.stop <= 6 and cue.text for cue in cues or ())


@pytest.mark.parametrize(("logprob", "language", "is_heard"), [(-0.5, 0.9, 1), (-1.5, 0.9, 0), (-0.5, 0.4, 0)])
def test_faster_whisper_returns_no_words_that_it_doubts(converted, monkeypatch, logprob, language, is_heard):
    segments = [SimpleNamespace(start=0.0, end=1.0, text=" the bells ring", avg_logprob=logprob)]
    found = SimpleNamespace(language_probability=language)
    monkeypatch.setattr(converted._model, "transcribe", lambda *_, **__: (segments, found))
    assert converted(NOISE) == ([Cue(0, 1, "the bells ring")] if is_heard else None)
    segments.clear()
    assert converted(NOISE) == []


def test_transcribing_without_a_model_takes_the_smallest_that_was_downloaded_last_and_asks_no_hub(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("asked"))
    monkeypatch.setattr("scalar_retrieval.modeling_scalar.model_identity.hub_answers", lambda: True)

    def indexed(*options, code=0):
        result = CliRunner().invoke(app, ["index", str(SPEECH), *options])
        assert result.exit_code == code, result.output
        return result.stderr

    for options in (("--output", "gallery", "--transcribe"), ("--transcribe", "--output", "gallery")):
        assert "No speech recogniser was downloaded before" in indexed(*options, code=1)
    assert "There is no model folder" in indexed("--output", "gallery", "--transcribe", "./nowhere", code=1)
    for name, revision, when, architecture, size in (
        ("large", "c", 3000, "WhisperForConditionalGeneration", 10**7),
        ("other", "d", 3000, "BertModel", 10),
        ("small", "b", 2000, None, 0),
        ("small", "a", 1000, None, 0),
    ):
        snapshot = tmp_path / "cache" / f"models--user--{name}" / "snapshots" / (revision * 40)
        snapshot.mkdir(parents=True)
        if architecture is None:
            save_ctc(snapshot)
        else:
            (snapshot / "config.json").write_text(json.dumps({"architectures": [architecture]}))
            (snapshot / "model.safetensors").write_bytes(bytes(size))
        for file in snapshot.iterdir():
            os.utime(file, (when, when))
    name, folder = downloaded_recognizer()
    assert (name, folder.name) == ("user/small", "b" * 40)
    reported = indexed("--output", "gallery", "--transcribe")
    assert "transcribed with user/small, which was downloaded before" in reported
    (transcript,) = (tmp_path / "gallery" / "transcripts").glob("*.vtt")
    assert "NOTE made by machine: user/small\n" in transcript.read_text()
