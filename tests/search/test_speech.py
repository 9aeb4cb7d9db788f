"""Transcripts: heard once, kept with times, and used where there are no subtitles."""

import os
import shutil
from threading import Thread

import numpy as np
import pytest

from scalar_retrieval.gallery.decoding import SandboxedReader, Stop, Stopped
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.modeling_scalar.media_scalar import SAMPLING_RATE, MediaReader
from scalar_retrieval.search.sources import find_files
from scalar_retrieval.search.speech import Speech
from scalar_retrieval.search.states import DOUBTFUL
from tests.gallery.decoding.reading import write_media
from tests.indexers import make_indexer
from tests.search.recognizing import heard_by
from tests.search.sounds import CHORD, SPEECH
from tests.search.test_indexing import of, problems_of
from tests.search.test_sources import index, place  # noqa: F401


@pytest.fixture(autouse=True)
def stretches(request, monkeypatch):
    """The sounds of these clips are no speech: by default, all of them counts as some."""
    if "real_voice" not in request.fixturenames:
        stretches = []
        monkeypatch.setattr(
            "scalar_retrieval.search.speech.speech_stretches", lambda voice, _: stretches or [(0, 512 * len(voice))]
        )
        return stretches
    return None


@pytest.fixture
def real_voice():
    """The detector decides what is speech."""


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


@pytest.fixture
def run(videos, tiny_model, tiny_processor):
    """Indexes; returns the report and, by name, whether there are subtitles."""

    def run(recognizer, **segment):
        with GalleryWriter(videos.parent / "gallery", "float32") as writer:
            writer.metadata = {"model": "model", "fingerprint": "fingerprint", "query_temperature": 0.1} | segment
            indexer = make_indexer(writer, tiny_model, tiny_processor, recognizer=recognizer)
            report = indexer.update(find_files([videos]))
        gallery = Gallery.open(videos.parent / "gallery")
        names = [name.rsplit("/")[-1] for name in gallery.clip_ids]
        return report, dict(zip(names, gallery.modality_mask[:, 2].tolist(), strict=True))

    return run


def test_a_recogniser_that_fails_is_reported_of_its_file_and_asked_again(videos, run):
    def fail(_):
        raise RuntimeError("Kernel size can't be greater than actual input size")

    for _ in range(2):
        recognizer = heard_by("whisper", fail)
        report, words = run(recognizer)
        assert not words["said.mp4"] and len(recognizer.calls) == 1 and not of(report, "unreadable")
        (reported,) = problems_of(report)[str(videos / "said.mp4")]
        assert reported.startswith("fake/model could not recognise the words: RuntimeError: Kernel size")
    assert run(heard_by("whisper", HELLO))[1]["said.mp4"]


HELLO = {"text": "", "chunks": [{"text": "hello", "timestamp": (1.0, 2.0)}]}


def test_only_clips_with_sound_and_without_subtitles_are_heard_and_only_once(videos, run):
    recognizer = heard_by("whisper", HELLO)
    assert run(recognizer)[1] == {"said.mp4": True, "silent.mp4": False, "with subtitles.mp4": True}
    assert Speech(videos.parent / "gallery").count() == (1, 1)
    assert len(of(run(recognizer)[0], "unchanged")) == 3 and len(recognizer.calls) == 1
    (videos / "said.mp4").rename(videos / "moved.mp4")
    report, words = run(None)  # what was heard stays known
    assert len(of(report, "moved")) == 1 and words["moved.mp4"]
    assert Gallery.open(videos.parent / "gallery").check() is None


@pytest.mark.parametrize("is_doubted", [False, True])
def test_where_words_are_not_understood_or_doubted_there_is_no_subtitle_and_nobody_asks_again(videos, run, is_doubted):
    recognizer = heard_by("whisper", HELLO, is_doubtful=True) if is_doubted else heard_by("plain", {"text": " ... "})
    report, words = run(recognizer)
    doubted = [path for path, state in report.items() if DOUBTFUL in state.hints]
    assert not words["said.mp4"] and doubted == [str(videos / "said.mp4")] * is_doubted
    assert len(of(run(recognizer)[0], "unchanged")) == 3 and len(recognizer.calls) == 1
    assert Speech(videos.parent / "gallery").count() == (1, 0)


def test_windows_have_the_words_that_are_spoken_in_them(run):
    recognizer = heard_by("whisper", HELLO)
    for _ in range(2):
        _, words = run(recognizer, segment=3.0)
        assert words["said.mp4#t=0,3"] and not words["said.mp4#t=3"]
        assert len(recognizer.calls) == 1  # for both, and for all time


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
    assert answers == [found] and found.endswith("/transcripts/a1.speech.vtt") and hears == ["once"]
    assert os.listdir(tmp_path / "transcripts") == ["a1.speech.vtt"]


def test_hearing_tells_where_it_is_and_is_given_up_at_the_next_stretch(videos, tmp_path, stretches):
    stretches += [(0, 8000), (8000, 9000)]
    stop, reported = Stop(), []
    speech = Speech(tmp_path, heard_by("whisper", lambda count: HELLO if count < 3 else stop.set() or HELLO))
    speech.on_progress = lambda path, second: reported.append(second)
    with stop.threads(1) as threads:
        first, second = (
            threads.submit(speech.of, str(videos / "said.mp4"), sha256, SandboxedReader()) for sha256 in ("a1", "a2")
        )
        assert first.result(30)
        with pytest.raises(Stopped):
            second.result(30)
    assert reported == [0.0, 0.5, 0.0]
    assert os.listdir(tmp_path / "transcripts") == ["a1.speech.vtt"]  # what was not heard to its end is heard again


class Sound:
    """A reader of one sound."""

    def __init__(self, waveform):
        self.waveform = waveform

    def reporting_to(self, note):
        return self

    def read_subtitle_of(self, path):
        return None

    def read_audio(self, path, window):
        first, stop = (round(second * SAMPLING_RATE) for second in window)
        return self.waveform[first:stop] if first < len(self.waveform) else None


def test_only_speech_is_heard_with_times_of_the_whole_even_across_what_is_read_at_a_time(
    tmp_path, monkeypatch, real_voice
):
    speech = MediaReader().read_audio(SPEECH)
    waveform = np.concatenate([CHORD, speech, np.zeros(SAMPLING_RATE, np.float32), CHORD, speech, CHORD])
    starts = [len(CHORD) / SAMPLING_RATE, (2 * len(CHORD) + len(speech)) / SAMPLING_RATE + 1]
    answer = {"text": "", "chunks": [{"text": "hello", "timestamp": (0.5, 1)}]}
    for read in (240.0, starts[0] + 5):  # whole, or cut within a sentence
        monkeypatch.setattr("scalar_retrieval.search.speech._READ", read)
        recognizer = heard_by("whisper", answer)
        cues = Speech(tmp_path, recognizer).make("path", Sound(waveform)).cues
        assert [cue.start for cue in cues] == pytest.approx([start + 0.5 for start in starts], abs=0.6)
        assert all(4 * SAMPLING_RATE < length < 7 * SAMPLING_RATE for length, _ in recognizer.calls)


def test_sound_without_speech_leaves_a_transcript_without_words_and_asks_no_model(tmp_path, real_voice):
    recognizer = heard_by("whisper", HELLO)
    speech = Speech(tmp_path, recognizer)
    assert speech.of("path", "a1", Sound(CHORD)) is None
    assert recognizer.calls == [] and speech.has_words("a1") is False


def test_words_of_one_stretch_that_are_doubted_do_not_take_others_with_them(tmp_path, stretches):
    stretches += [(0, 8000), (8000, 9000)]
    partly = heard_by("whisper", HELLO)
    partly._is_doubtful = lambda waveform, text: len(waveform) < 8000
    made = Speech(tmp_path, partly).make("path", Sound(CHORD))
    assert len(made.cues) == 1 and not made.is_doubtful
