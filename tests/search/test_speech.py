"""Transcripts: heard once, kept with times, and used where there are no subtitles."""

import json
import os
import shutil
from threading import Lock, Thread

import numpy as np
import pytest
import torch
from transformers import (
    GenerationConfig,
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

from gallery.decoding import SandboxedReader
from gallery.gallery import Gallery, GalleryWriter
from gallery.windows import SEGMENT
from modeling_scalar.media_scalar import SAMPLING_RATE
from search.indexing import index_files
from search.sources import find_files
from search.speech import Cue, Speech, SpeechRecognizer, write_transcript
from tests.gallery.decoding.reading import read_subtitle
from tests.gallery.decoding.test_program import write_media
from tests.search.test_indexing import of, problems_of
from tests.search.test_sources import index, place, told  # noqa: F401

NOISE = np.random.default_rng(0).uniform(-0.5, 0.5, 3 * SAMPLING_RATE).astype(np.float32)


@pytest.fixture(scope="module")
def speech_model(tmp_path_factory):
    """A recogniser with random weights, as a folder; the letters that it hears mean nothing."""
    folder = tmp_path_factory.mktemp("speech-model")
    vocab = {token: index for index, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefghij"])}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    torch.manual_seed(0)
    config = Wav2Vec2Config(
        vocab_size=len(vocab), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        conv_dim=(16,) * 7, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, initializer_range=1.0,
    )  # fmt: skip
    model = Wav2Vec2ForCTC(config)
    model.lm_head.bias.data[:4] = -100.0  # letters alone
    model.save_pretrained(folder)
    Wav2Vec2CTCTokenizer(str(folder / "vocab.json")).save_pretrained(folder)
    Wav2Vec2FeatureExtractor(return_attention_mask=False).save_pretrained(folder)
    return folder


def test_a_recogniser_of_transformers_hears_words_with_times(speech_model):
    recognizer = SpeechRecognizer(str(speech_model), "tiny")
    cues, language = recognizer(NOISE)
    assert recognizer.kind == "ctc" and language is None and cues
    for cue in cues:
        assert 0 <= cue.start <= cue.stop <= 3 and cue.text and set(cue.text) <= set("abcdefghij ")
    assert recognizer(np.zeros_like(NOISE)) == ([], None)  # which random weights would fill with letters


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    """A Whisper with random weights, which knows two languages."""
    folder = tmp_path_factory.mktemp("whisper")
    languages, tasks = ["<|en|>", "<|de|>"], ["<|translate|>", "<|transcribe|>"]
    special = ["<|endoftext|>", "<|startoftranscript|>", *languages, *tasks, "<|startofprev|>", "<|notimestamps|>"]
    tokenizer = WhisperTokenizer(vocab={letter: index for index, letter in enumerate("abcdefghij")}, merges=[])
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
        max_initial_timestamp_index=50, max_length=24, prev_sot_token_id=ids["<|startofprev|>"],
        suppress_tokens=[ids[name] for name in special[1:]], begin_suppress_tokens=[end], **tokens,
    )  # fmt: skip
    for part in (model, tokenizer, WhisperFeatureExtractor()):
        part.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_whisper_hears_segments_and_tells_their_language(whisper):
    recognizer = SpeechRecognizer(str(whisper), "tiny")
    cues, language = recognizer(np.tile(NOISE, 12))  # more than it takes at once
    assert recognizer.kind == "whisper" and language in ("english", "german") and len(cues) > 1
    assert all(0 <= cue.start <= cue.stop <= 36 and set(cue.text) <= set("abcdefghij ") for cue in cues)


def test_what_recognises_no_speech_is_told(tiny_model_dir):
    with pytest.raises(ValueError, match=r"(?i)speech|auto"):
        SpeechRecognizer(str(tiny_model_dir))


@pytest.mark.parametrize("num_samples", [1, 320, 399])
def test_sound_of_a_few_samples_is_heard(speech_model, num_samples):
    cues, _ = SpeechRecognizer(str(speech_model), "tiny")(NOISE[:num_samples])
    assert all(0 <= cue.start <= cue.stop <= num_samples / SAMPLING_RATE for cue in cues)


def heard_by(kind, answer):
    """A recogniser that hears `answer`."""
    recognizer = SpeechRecognizer.__new__(SpeechRecognizer)
    recognizer.name, recognizer.kind, recognizer.calls = "fake/model", kind, []

    def hear(sound, **options):
        recognizer.calls.append((len(sound["raw"]), options))
        return answer(len(recognizer.calls)) if callable(answer) else answer

    recognizer.hear = hear
    recognizer._lock = Lock()
    return recognizer


def test_times_and_language_of_whisper_are_taken_and_its_slips_are_mended():
    chunks = [
        {"text": " Guten Tag.", "timestamp": (0.0, 1.5), "language": "german"},
        {"text": " ...", "timestamp": (1.5, 2.0), "language": "german"},
        {"text": " Hallo", "timestamp": (2.5, None), "language": "german"},
        {"text": " you", "timestamp": (29.0, 30.0), "language": "english"},
    ]
    recognizer = heard_by("whisper", {"text": "", "chunks": chunks})
    assert recognizer(NOISE) == (
        [Cue(0.0, 1.5, "Guten Tag."), Cue(2.5, 3.0, "Hallo"), Cue(3.0, 3.0, "you")],
        "german",
    )
    assert recognizer.calls == [(len(NOISE), {"return_timestamps": True, "return_language": True})]


def test_words_of_a_ctc_model_are_joined_up_to_a_pause():
    times = [(0.0, 0.5), (0.6, 1.0), (2.5, 2.6), (2.7, 2.9)]
    chunks = [{"text": word, "timestamp": time} for word, time in zip("abcd", times, strict=True)]
    assert heard_by("ctc", {"text": "", "chunks": chunks})(NOISE)[0] == [Cue(0, 1, "a b"), Cue(2.5, 2.9, "c d")]


def test_words_of_a_model_without_times_have_those_of_the_sound():
    recognizer = heard_by("plain", {"text": "some words"})
    assert recognizer(NOISE)[0] == [Cue(0.0, 3.0, "some words")] and recognizer.calls == [(len(NOISE), {})]
    assert recognizer.num_seconds == 30


def test_a_transcript_reads_as_it_was_heard_and_says_who_heard_it(tmp_path):
    text = "1 < 2 & <b>2</b> --> 3"
    write_transcript(tmp_path / "a.vtt", [Cue(0.5, 1, "42"), Cue(3725.25, 3725.25, text)], "a\n\n--> b", "en")
    lines = (tmp_path / "a.vtt").read_text().splitlines()
    assert lines[:4] == ["WEBVTT", "Language: en", "", "NOTE made by machine: a -> b"]
    assert "01:02:05.250 --> 01:02:05.251" in lines
    assert read_subtitle(tmp_path / "a.vtt") == f"42 {text}"
    assert read_subtitle(tmp_path / "a.vtt", window=(0, 2)) == "42"


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    write_media(folder / "said.mp4", num_frames=60, seconds_of_audio=6)
    write_media(folder / "silent.mp4")
    write_media(folder / "with subtitles.mp4", seconds_of_audio=4)
    (folder / "with subtitles.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\na dog barks\n")
    return folder


@pytest.fixture
def videos(originals, tmp_path):
    return shutil.copytree(originals, tmp_path / "videos")


def run(videos, model, processor, recognizer, segment=None):
    """Index; returns the report and, by name, whether there are subtitles."""
    with GalleryWriter(videos.parent / "gallery", "float32") as writer:
        writer.metadata = {"model": "model", "fingerprint": "fingerprint", "query_temperature": 0.1}
        if segment is not None:
            writer.metadata |= {SEGMENT: segment}
        report = index_files(find_files([videos]), writer, model, processor, recognizer=recognizer)
    gallery = Gallery.open(videos.parent / "gallery")
    names = [name.rsplit("/")[-1] for name in gallery.clip_ids]
    return report, dict(zip(names, gallery.modality_mask[:, 2].tolist(), strict=True))


def transcribed(report):
    return [path.rsplit("/")[-1] for path, state in report.items() if state.is_transcribed]


def test_a_recogniser_that_fails_is_told_of_its_file_and_asked_again(videos, tiny_model, tiny_processor):
    for name in ("silent.mp4", "with subtitles.mp4"):
        (videos / name).unlink()

    def fail(_):
        raise RuntimeError("Kernel size can't be greater than actual input size")

    for _ in range(2):
        recognizer = heard_by("whisper", fail)
        report, words = run(videos, tiny_model, tiny_processor, recognizer)
        assert words == {"said.mp4": False}
        ((path, (told,)),) = problems_of(report).items()
        assert path.endswith("said.mp4") and not of(report, "unreadable") and len(recognizer.calls) == 1
        assert told.startswith("fake/model could not hear the words: RuntimeError: Kernel size")
    with pytest.raises(ValueError, match="said.mp4: fake/model could not hear"):
        with GalleryWriter(videos.parent / "gallery") as writer:
            files = find_files([videos])
            index_files(files, writer, tiny_model, tiny_processor, recognizer=recognizer, on_error="raise")
    assert run(videos, tiny_model, tiny_processor, heard_by("whisper", HELLO))[1]["said.mp4"]


HELLO = {"text": "", "chunks": [{"text": "hello", "timestamp": (1.0, 2.0), "language": "english"}]}


def test_only_clips_with_sound_and_without_subtitles_are_heard_and_only_once(videos, tiny_model, tiny_processor):
    recognizer = heard_by("whisper", HELLO)
    report, words = run(videos, tiny_model, tiny_processor, recognizer)
    assert words == {"said.mp4": True, "silent.mp4": False, "with subtitles.mp4": True}
    assert len(recognizer.calls) == 1 and transcribed(report) == ["said.mp4"]
    assert Speech(videos.parent / "gallery").count() == (1, 1)
    report, _ = run(videos, tiny_model, tiny_processor, recognizer)
    assert len(of(report, "unchanged")) == 3 and len(recognizer.calls) == 1
    (videos / "said.mp4").rename(videos / "moved.mp4")
    report, words = run(videos, tiny_model, tiny_processor, None)  # what was heard stays known
    assert len(of(report, "new")) == 1 and words["moved.mp4"]
    assert Gallery.open(videos.parent / "gallery").check() is None


@pytest.mark.slow
def test_what_was_indexed_without_speech_is_heard_later(videos, tiny_model, tiny_processor):
    report, words = run(videos, tiny_model, tiny_processor, None)
    assert not words["said.mp4"] and not transcribed(report)
    recognizer = heard_by("whisper", HELLO)
    report, words = run(videos, tiny_model, tiny_processor, recognizer)
    assert [path.rsplit("/")[-1] for path in of(report, "changed")] == ["said.mp4"] and words["said.mp4"]
    assert len(recognizer.calls) == 1


@pytest.mark.parametrize("text", ["", pytest.param(" ... ", marks=pytest.mark.slow)])
def test_where_nothing_is_understood_there_is_no_subtitle_and_nobody_asks_again(
    videos, tiny_model, tiny_processor, text
):
    recognizer = heard_by("plain", {"text": text})
    for _ in range(2):
        report, words = run(videos, tiny_model, tiny_processor, recognizer)
        assert not words["said.mp4"] and len(recognizer.calls) == 1 and not transcribed(report)
    assert Speech(videos.parent / "gallery").count() == (1, 0) and len(of(report, "unchanged")) == 3


@pytest.mark.slow
def test_a_run_that_was_killed_after_hearing_goes_on_with_what_it_heard(videos, tiny_model, tiny_processor):
    run(videos, tiny_model, tiny_processor, heard_by("whisper", HELLO))
    transcript = next((videos.parent / "gallery" / "transcripts").iterdir())
    kept = transcript.read_bytes()
    transcript.unlink()
    with GalleryWriter(videos.parent / "gallery") as writer:  # as if it had been killed before embedding
        writer.remove_clips([str(videos / "said.mp4")])
        writer.forget_files([str(videos / "said.mp4")])
        writer.commit()
    run(videos, tiny_model, tiny_processor, None)
    transcript.write_bytes(kept)
    recognizer = heard_by("whisper", HELLO)
    report, words = run(videos, tiny_model, tiny_processor, recognizer)
    assert words["said.mp4"] and len(of(report, "changed")) == 1 and recognizer.calls == []


@pytest.mark.slow
def test_a_subtitle_file_that_comes_later_takes_the_place_of_a_transcript(videos, tiny_model, tiny_processor):
    run(videos, tiny_model, tiny_processor, heard_by("whisper", HELLO))
    (videos / "said.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\na cat meows\n")
    recognizer = heard_by("whisper", HELLO)
    report, words = run(videos, tiny_model, tiny_processor, recognizer)
    assert len(of(report, "changed")) == 1 and words["said.mp4"] and recognizer.calls == [] and not transcribed(report)


def test_windows_have_the_words_that_are_spoken_in_them(videos, tiny_model, tiny_processor):
    recognizer = heard_by("whisper", HELLO)
    _, words = run(videos, tiny_model, tiny_processor, recognizer, segment=3.0)
    assert words["said.mp4#t=0,3"] and not words["said.mp4#t=3"]
    assert len(recognizer.calls) == 1  # for both
    report, _ = run(videos, tiny_model, tiny_processor, recognizer, segment=3.0)
    assert len(of(report, "unchanged")) == 3 and len(recognizer.calls) == 1


def test_a_file_that_another_process_hears_is_waited_for_and_not_heard_twice(videos, tmp_path):
    path, answers, hears = str(videos / "said.mp4"), [], []

    def listen():
        answers.append(Speech(tmp_path, heard_by("whisper", second)).of(path, "a1", reader=SandboxedReader()))

    def second(_):
        hears.append("twice")
        return HELLO

    def first(_):
        other.start()
        other.join(0.1)
        assert other.is_alive()  # it waits
        hears.append("once")
        return HELLO

    other = Thread(target=listen)
    found = Speech(tmp_path, heard_by("whisper", first)).of(path, "a1", reader=SandboxedReader())
    other.join(30)
    assert answers == [found] and found.endswith("/transcripts/a1.vtt") and hears == ["once"]
    assert os.listdir(tmp_path / "transcripts") == ["a1.vtt"]


@pytest.mark.slow
def test_long_sound_is_heard_piece_by_piece_with_times_of_the_whole(videos, tmp_path, monkeypatch):
    recognizer = heard_by(
        "whisper", lambda call: {"text": "", "chunks": [{"text": f"n{call}", "timestamp": (0.5, 1)}]}
    )
    monkeypatch.setattr(SpeechRecognizer, "num_seconds", 2.0)
    path = Speech(tmp_path, recognizer).of(str(videos / "said.mp4"), "a1", reader=SandboxedReader())
    assert [length for length, _ in recognizer.calls][:2] == [2 * SAMPLING_RATE] * 2
    assert read_subtitle(path, window=(2.1, 3.9)) == "n2" and read_subtitle(path, window=(4.1, 5.2)) == "n3"


def test_the_command_hears_and_says_so(place, speech_model):  # noqa: F811
    (place / "b.srt").unlink()
    result = index(place, place / "a.mp4", place / "b.mp4", "--transcribe", speech_model)
    assert "2 new" in told(result)
    assert "of 1 files of this run, the subtitles are transcripts made by machine" in result.stdout
    assert Gallery.open(place / "gallery").modality_mask.tolist() == [[True, False, False], [True, True, True]]
    (transcript,) = (place / "gallery" / "transcripts").iterdir()
    assert f"NOTE made by machine: {speech_model}" in transcript.read_text()
    result = index(place, place / "a.mp4", place / "b.mp4", "--transcribe", place / "nowhere")
    assert result.exit_code == 1 and "There is no model folder" in result.stderr
