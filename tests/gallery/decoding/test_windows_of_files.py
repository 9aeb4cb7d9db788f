"""Reading a window of a file: as if it were the file."""

import numpy as np
import pytest

from gallery.decoding import LimitError, Limits, sound
from modeling_scalar.image_processing_scalar import frame_indices
from tests.gallery.decoding.reading import (
    read_audio,
    read_audio_parts,
    read_duration,
    read_frames,
    read_subtitle,
    read_subtitle_track,
)
from tests.media_corpus import media, tone, wav

CUES = """1
00:00:00,500 --> 00:00:01,500
one

2
00:00:01,900 --> 00:00:02,100
two

3
00:01:02.000 --> 00:01:03.000
three
"""


def write(folder, name, data):
    (folder / name).write_bytes(data)
    return folder / name


@pytest.mark.parametrize(
    "arguments",
    [("matroska", "mjpeg"), ("mp4", "libx264"), ("avi", "mpeg4"), ("webm", "libvpx"), ("mpegts", "mpeg2video")],
    ids=lambda arguments: arguments[0],
)
def test_windows_share_out_the_frames_of_a_file(tmp_path, arguments):
    options = {"rate": 25} if arguments[0] == "mpegts" else {}
    path = write(tmp_path, "clip", media(*arguments, frames=50, **options))
    rate = options.get("rate", 10)
    whole, cuts = read_frames(path), [round(seconds * rate) for seconds in (0, 0.8, 1.6)]
    windows = [(0, 0.8), (0.8, 1.6), (1.6, None)]
    for (first, stop), window in zip(zip(cuts, [*cuts[1:], len(whole)], strict=True), windows, strict=True):
        assert np.array_equal(read_frames(path, window=window), whole[first:stop]), window
    chosen = [cuts[1] + place for place in frame_indices(cuts[2] - cuts[1], 2)]
    assert np.array_equal(read_frames(path, 2, window=windows[1]), whole[chosen])
    assert read_frames(path, 2, window=(100, 110)) is None
    assert read_duration(path) == pytest.approx(50 / rate, abs=0.1)


def test_a_picture_that_stays_is_seen_in_every_window(tmp_path):
    path = write(tmp_path, "slides.mkv", media("matroska", "mjpeg", frames=3, times=(0, 1000, 9000)))
    whole = read_frames(path)
    assert np.array_equal(read_frames(path, window=(4, 6)), whole[1:2])
    assert np.array_equal(read_frames(path, window=(0, 4)), whole[:2])
    assert np.array_equal(read_frames(path, 2, window=(8, None)), whole[[2, 2]])


@pytest.mark.parametrize("seconds", [5, 70])
def test_windows_share_out_the_sound_of_a_file_to_the_sample(tmp_path, seconds):
    path = write(tmp_path, "sound.wav", wav(tone(seconds * 16_000 + 123)))
    whole, step = read_audio(path), seconds / 3
    windows = [(0, step), (step, 2 * step), (2 * step, None)]
    parts = [read_audio(path, window=window) for window in windows]
    assert np.array_equal(np.concatenate(parts), whole) and len(parts[1]) == pytest.approx(step * 16_000, abs=1)
    for window, part in zip(windows, parts, strict=True):  # what is chosen is chosen in the window
        (chosen,), length = read_audio_parts(path, lambda available: [(100, available - 7)], window=window)
        assert length == len(part) and np.array_equal(chosen, part[100:-7])
    assert read_audio(path, window=(seconds + 1, None)) is None


def test_a_window_of_a_long_track_is_found_without_decoding_the_rest(tmp_path, monkeypatch):
    path = write(tmp_path, "sound.flac", media("flac", "", "flac", seconds=8))
    whole = np.concatenate(list(sound._all_sound(str(path))))
    monkeypatch.setattr(sound, "_LONG_FOR_WINDOW", 4 * 16_000)
    monkeypatch.setattr(sound, "_all_sound", None)
    looked = []
    look = sound._Track._look
    monkeypatch.setattr(sound._Track, "_look", lambda *args: looked.append(1) or look(*args))

    class Listener:
        def send(self, kind, payload=None, **_):
            self.got = payload

    for first, stop in ((0, 2), (3, 5), (6, None)):
        listener = Listener()
        sound.send_sound(str(path), listener, True, (first, stop))
        expected = whole[first * 16_000 : None if stop is None else stop * 16_000]
        assert np.array_equal(listener.got, expected)
    assert len(looked) == 1  # the packets are listed once


def test_a_window_has_the_cues_that_are_shown_in_it(tmp_path):
    path = write(tmp_path, "clip.srt", CUES.encode())
    reported = [
        read_subtitle(path, window=window) for window in ((0, 1), (1, 2), (2, 3), (3, 62), (60, None), (63.5, None))
    ]
    assert reported == ["one", "one two", "two", "", "three", ""]
    assert read_subtitle(path) == "one two three"


def test_a_track_of_subtitles_is_cut_by_its_times(tmp_path):
    path = write(tmp_path, "clip.mkv", media("matroska", "mjpeg", "", "subrip", lines=("a", "b", "c"), frames=30))
    reported = [read_subtitle_track(path, window=window) for window in ((0, 0.95), (0.95, 2), (2.5, None))]
    assert reported == ["a", "b", "c"] and read_subtitle_track(path) == "a b c"


def test_a_file_that_does_not_say_how_long_it_is_is_measured(tmp_path):
    path = write(tmp_path, "sound.aac", media("adts", "", "aac", seconds=3))
    assert read_duration(path) == pytest.approx(3, abs=0.2)
    with pytest.raises(LimitError, match="--limit duration"):
        read_duration(write(tmp_path, "sound.wav", wav(tone(32_000))), Limits(duration=1))
