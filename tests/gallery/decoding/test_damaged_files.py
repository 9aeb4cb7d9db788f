"""What decodes of a damaged file counts, where problems may be noted; what that is depends on the file alone."""

from functools import partial

import numpy as np
import pytest

from gallery.decoding import IN_PART, SandboxedReader, sandboxed, tolerant
from modeling_scalar.image_processing_scalar import frame_indices
from modeling_scalar.media_scalar import MediaError
from tests.media_corpus import cut, media, noisy, packets_damaged

CHOOSE = partial(frame_indices, num_frames=8)
SIZES = {"frames": 60, "seconds": 6.0}
H264 = {"encoder": "g=10 bf=2", **SIZES}
WHOLE = {
    "h264.mp4": partial(media, "mp4", "libx264", "aac", muxer="movflags=faststart", **H264),
    "one_keyframe.mp4": partial(media, "mp4", "libx264", "aac", muxer="movflags=faststart", encoder="bf=2", **SIZES),
    "h264.mkv": partial(media, "matroska", "libx264", "aac", **H264),
    "h264.ts": partial(media, "mpegts", "libx264", "aac", **H264),
    "mpeg4.avi": partial(media, "avi", "mpeg4", "libmp3lame", encoder="g=10", **SIZES),
    "h264.avi": partial(media, "avi", "libx264", "libmp3lame", encoder="g=10 bf=3", **SIZES),
    "mjpeg.avi": partial(media, "avi", "mjpeg", "pcm_s16le", **SIZES),
}
HARM = {
    "half": lambda data: cut(data, 0.5),
    "third": lambda data: cut(data, 0.35),
    "stretch": lambda data: noisy(data, 0.5, 600),
    "wide": lambda data: noisy(data, 0.4, 5000),
}


def write(folder, name, how=None):
    data = WHOLE[name]() if how is None else HARM[how](WHOLE[name]())
    path = folder / f"{how}_{name}"
    path.write_bytes(data)
    return path


def read(path, choose=CHOOSE, window=None, **options):
    """Frames, and what is reported."""
    reported = []
    frames = SandboxedReader().noting(reported.append).read_frames(path, choose, window, **options)
    return (None if frames is None else np.stack(frames)), [line.removeprefix(f"{path}: ") for line in reported]


def hear(path, **options):
    reported = []
    sound = SandboxedReader().noting(reported.append).read_audio(path, **options)
    return sound, [line.removeprefix(f"{path}: ") for line in reported]


@pytest.mark.promise("files", "Seeking and threads do not change what is read of a damaged file")
@pytest.mark.parametrize("how", sorted(HARM))
@pytest.mark.parametrize("name", sorted(WHOLE))
def test_how_a_damaged_file_is_sought_and_by_how_many_threads_makes_no_difference(tmp_path, name, how):
    path = write(tmp_path, name, how)
    frames, reported = read(path, seek="index", num_threads=1)
    assert frames is not None and len(frames) == 8
    for seek, num_threads in (("index", 4), ("scan", 1), ("scan", 3)):
        others, lines = read(path, seek=seek, num_threads=num_threads)
        assert np.array_equal(frames, others) and lines == reported, (seek, num_threads)


@pytest.mark.parametrize(
    ("name", "how"),
    [("h264.mp4", "half"), ("h264.mp4", "stretch"), ("h264.mp4", "wide"), ("one_keyframe.mp4", "wide"),
     ("h264.mkv", "half"), ("h264.ts", "wide"), ("mpeg4.avi", "half")],
)  # fmt: skip
def test_the_frames_that_count_are_whole_and_all_there_are(tmp_path, name, how):
    path, whole = write(tmp_path, name, how), SandboxedReader().read_frames(write(tmp_path, name))
    of_whole = {frame.tobytes() for frame in whole}
    every, reported = read(path, None)
    assert {frame.tobytes() for frame in every} <= of_whole and len(reported) == 1 and IN_PART in reported[0]
    assert 20 < len(every) < len(whole)
    chosen, _ = read(path)
    assert {frame.tobytes() for frame in chosen} <= of_whole
    assert len({frame.tobytes() for frame in chosen}) == 8  # evenly among them
    if name != "h264.ts":  # in which nobody else minds
        with pytest.raises(MediaError):
            SandboxedReader().read_frames(path)


def test_half_a_file_is_reported_with_its_seconds_and_why(tmp_path):
    path = write(tmp_path, "h264.mp4", "half")
    (_, (pictures,)), (sound, (words,)) = read(path), hear(path)
    for kind, line in (("video stream 0 (h264)", pictures), ("audio stream 1 (aac)", words)):
        assert line.startswith(f"{kind}: ") and " of 6.0 s could be read: the container promises" in line
        assert line.endswith("The file is truncated or damaged.")
    assert 2 * 16_000 < len(sound) < 4 * 16_000
    assert np.array_equal(sound[:16_000], SandboxedReader().read_audio(write(tmp_path, "h264.mp4"))[:16_000])
    for strict in (SandboxedReader().read_frames, SandboxedReader().read_audio):
        with pytest.raises(MediaError, match="promises|decoding stopped"):
            strict(path)


def test_a_stretch_that_does_not_decode_is_reported_with_numbers(tmp_path):
    path = write(tmp_path, "h264.mp4", "wide")
    (_, (pictures,)), (sound, (words,)) = read(path), hear(path)
    assert "frames that were decoded could be read, the others are damaged." in pictures
    assert "packets could be read, the others are damaged." in words and 4 * 16_000 < len(sound) < 6 * 16_000


def test_of_a_stream_of_which_nothing_decodes_there_is_the_error_as_ever(tmp_path):
    path = tmp_path / "noise.mkv"
    path.write_bytes(packets_damaged(media("matroska", "libx264", "flac", **SIZES), "video"))
    with pytest.raises(MediaError) as strict:
        SandboxedReader().read_frames(path, CHOOSE)
    with pytest.raises(MediaError) as lenient:
        read(path)
    assert str(lenient.value) == str(strict.value)


def test_an_mp4_without_its_index_says_so_plainly(tmp_path):
    path = tmp_path / "half.mp4"
    path.write_bytes(cut(media("mp4", "libx264", "aac", **SIZES), 0.5))
    with pytest.raises(MediaError, match="its index, which is written last, is missing: the recording or copy"):
        read(path)


@pytest.mark.parametrize("name", ["h264.mp4", "h264.mkv", "mpeg4.avi"])
def test_windows_before_the_end_of_half_a_file_are_whole_and_those_after_it_are_reported(tmp_path, name):
    path, whole = write(tmp_path, name, "half"), SandboxedReader()
    expected = write(tmp_path, name)
    for reading, strict in (
        (read, partial(whole.read_frames, expected, CHOOSE)),
        (hear, partial(whole.read_audio, expected)),
    ):
        found, reported = reading(path, window=(1.0, 2.0))
        assert np.array_equal(found, np.array(strict(window=(1.0, 2.0)))) and not reported
        found, reported = reading(path, window=(2.0, 6.0))
        assert found is not None and len(reported) == 1 and IN_PART in reported[0]
        for window in ((4.0, 5.0), (5.0, None)):
            found, lines = reading(path, window=window)
            assert found is None and lines == reported  # in the same words


def test_the_choice_in_a_window_does_not_depend_on_the_windows_before_it(tmp_path):
    path = write(tmp_path, "one_keyframe.mp4", "wide")
    windows = [(0.0, 2.5), (2.0, 4.0), (1.5, 3.0)]

    def frames(windows):
        return {window: read(path, window=window)[0] for window in windows if window[0] < 2.0}

    first, second = frames(windows), frames(windows[::-1])
    assert first.keys() == second.keys() and all(np.array_equal(first[window], second[window]) for window in first)


def test_a_clip_has_what_can_be_read_of_its_file_or_raises(tiny_processor, tmp_path, monkeypatch):
    path, processor = write(tmp_path, "h264.mp4", "half"), sandboxed(tiny_processor)
    clip = tolerant(processor).read_clip(path, processed=True)
    assert clip.has("video") and clip.has("audio") and 2 < clip.duration < 4
    assert [line.split(": ")[1] for line in clip.problems] == ["video stream 0 (h264)", "audio stream 1 (aac)"]
    with pytest.raises(MediaError, match="promises|decoding stopped"):
        processor.read_clip(path, processed=True)
    monkeypatch.setattr(tiny_processor.reader, "on_error", "missing")
    plain = tiny_processor.read_clip(path)  # which reads a stream whole or not at all
    assert not plain.has("video") and not plain.has("audio") and len(plain.problems) == 2


@pytest.mark.parametrize("name", ["h264.avi", "h264.mp4"])
def test_damage_anywhere_is_met_by_several_threads_as_by_one(tmp_path, name):
    data, path = WHOLE[name](), tmp_path / "clip"
    for share in (0.4, 0.5, 0.6, 0.69, 0.72, 0.8, 0.86, 0.9):
        path.write_bytes(noisy(data, share, 600 if share == 0.69 else 3000))
        (one, reported), (others, lines) = (read(path, num_threads=number) for number in (1, 4))
        assert np.array_equal(one, others) and reported == lines, share
