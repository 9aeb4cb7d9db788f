"""What is read of files. All are made here; the expected frames are FFmpeg's own, decoded in order."""

import re
from contextlib import suppress
from functools import partial

import av
import numpy as np
import pytest
import torch

from scalar_retrieval.gallery.decoding import IN_PART, LimitError, Limits, SandboxedReader, worker
from scalar_retrieval.modeling_scalar import media_scalar
from scalar_retrieval.modeling_scalar.image_processing_scalar import frame_indices
from scalar_retrieval.modeling_scalar.media_scalar import MediaError, MediaReader, joined_losses
from tests.gallery.decoding.reading import decode_in_order, read_frames, write_media
from tests.media_corpus import (
    NOISE,
    cut,
    media,
    noisy,
    remux,
    shifted,
    tone,
    wav,
)

READER = MediaReader()
READERS = {"this process": READER, "another process": SandboxedReader()}
OPEN_GOP = "bf=3 x264-params=open-gop=1:keyint=7:min-keyint=7:scenecut=0:b-adapt=0:log-level=none"
VARIABLE = np.cumsum(np.random.default_rng(0).integers(5, 400, 40)).tolist()  # milliseconds
CLIPS = {
    "constant.mp4": {"encoder": "g=5 bf=0"},
    "b_frames.mp4": {"encoder": "g=5 bf=3"},
    "b_frames.mkv": {"encoder": "g=12 bf=3"},
    "open_gop.mp4": {"encoder": OPEN_GOP},
    "open_gop.ts": {"encoder": OPEN_GOP},
    "variable.mp4": {"encoder": "g=5 bf=2", "times": VARIABLE},
    "variable.mkv": {"encoder": "g=5 bf=2", "times": VARIABLE},
    "fragments.mp4": {"encoder": "g=5 bf=2", "muxer": "movflags=frag_keyframe+empty_moov"},
    "mpeg4.avi": {"codec": "mpeg4", "encoder": "g=5"},
    "b_frames.avi": {"encoder": "g=5 bf=2"},  # no presentation times
    "vp8.webm": {"codec": "libvpx", "encoder": "g=12"},  # may hold packets that are never shown
    "picture.gif": {"codec": "gif", "pixels": "rgb8"},
    "one.mp4": {"num_frames": 1},
}


def write(folder, name, data):
    (folder / name).write_bytes(data)
    return folder / name


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clips")
    for name, settings in CLIPS.items():
        write_media(folder / name, **settings)
    # An edit list, before whose start no frame is shown, and timestamps that are repeated
    whole = (folder / "b_frames.mp4").read_bytes()
    trimmed = remux(whole, "mp4", partial(shifted, seconds=-1.4), "avoid_negative_ts=disabled")
    write(folder, "trimmed.mp4", trimmed)
    write(folder, "twice.ts", (folder / "open_gop.ts").read_bytes() * 2)
    return folder


# ---------------------------------------------------------------- frame_indices


@pytest.mark.parametrize("available", [1, 2, 3, 7, 8, 9, 16, 100, 900])
@pytest.mark.parametrize("num_frames", [1, 2, 3, 8])
def test_frame_indices_take_the_middle_of_each_part_of_numpy_array_split(available, num_frames):
    padded = list(range(available)) + [available - 1] * (num_frames - available)
    expected = [part[(len(part) + 1) // 2 - 1] for part in np.array_split(padded, num_frames)]
    assert frame_indices(available, num_frames) == expected


def test_training_draws_one_index_from_each_part():
    parts = np.array_split(np.arange(100), 8)
    generator = torch.Generator().manual_seed(0)
    draws = [frame_indices(100, 8, training=True, generator=generator) for _ in range(300)]
    for column, part in zip(zip(*draws, strict=True), parts, strict=True):
        assert set(column) == set(part.tolist())
    with pytest.raises(ValueError, match="generator"):
        frame_indices(8, 2, training=True)


# ---------------------------------------------------------------- frames


@pytest.mark.parametrize("name", [*CLIPS, "trimmed.mp4", "twice.ts"])
def test_frames_are_those_of_decoding_everything_in_order(clips, name):
    expected = decode_in_order(clips / name)
    num_distinct = len(np.unique(expected.reshape(len(expected), -1), axis=0))
    assert num_distinct >= len(expected) // 2  # each is there twice in one of the files
    for num_frames in (1, 2, 8, 60):
        frames = read_frames(clips / name, num_frames, reader=READER)
        np.testing.assert_array_equal(frames, expected[frame_indices(len(expected), num_frames)])
    np.testing.assert_array_equal(read_frames(clips / name, reader=READER), expected)


def test_reading_without_pyav_says_what_to_install(clips, monkeypatch):
    monkeypatch.setattr(media_scalar, "av", None)
    for reader in READERS.values():
        with pytest.raises(ImportError, match="pip install av"):
            reader.read_frames(clips / "one.mp4")


# ---------------------------------------------------------------- frames with their seconds

TIMES = (0, 300, 1000, 1100, 1900, 2050, 2400, 7000, 7200)


@pytest.mark.parametrize("pace", [0.25, 1.0, 60.0])
@pytest.mark.parametrize(
    "arguments",
    [
        {"kind": "matroska", "video": "mjpeg", "times": TIMES, "frames": len(TIMES)},
        {"kind": "mp4", "video": "libx264", "frames": 40},
        {"kind": "webm", "video": "libvpx", "frames": 40},  # its frames are counted
    ],
    ids=lambda arguments: arguments["kind"],
)
def test_the_first_frame_of_each_step_is_read_with_its_second(tmp_path, monkeypatch, arguments, pace):
    path = write(tmp_path, "clip", media(**arguments))
    whole, reader = read_frames(path, reader=READER), SandboxedReader()
    seconds = [milliseconds / 1000 for milliseconds in arguments.get("times", range(0, 100 * len(whole), 100))]
    _, places = np.unique(np.floor(np.array(seconds) / pace + 1e-6), return_index=True)
    if pace < 1.0:  # all in one, and in pieces
        monkeypatch.setattr("scalar_retrieval.gallery.decoding.pool._PIECE", 1.0)
    for found in (reader.read_pictures(path, pace, 10_000), list(reader.sample_frames(path, pace, 10_000))):
        assert [second for second, _ in found] == pytest.approx([seconds[place] for place in places], abs=2e-3)
        assert np.array_equal(np.stack([frame for _, frame in found]), whole[places])


# ---------------------------------------------------------------- sound


@pytest.mark.parametrize(("suffix", "codec"), [(".mp4", "aac"), (".mkv", "aac"), (".wav", "pcm_s16le")])
def test_audio_is_the_mean_of_the_channels_at_16_khz(tmp_path, suffix, codec):
    path = tmp_path / f"tone{suffix}"
    write_media(path, 0 if suffix == ".wav" else 10, seconds_of_audio=1.0, audio_codec=codec)
    waveform = READER.read_audio(path)
    assert waveform.dtype == np.float32 and waveform.ndim == 1
    assert 16_000 <= len(waveform) < 17_200  # AAC pads its last packet
    spectrum = np.abs(np.fft.rfft(waveform[2000:14000])) / 6000  # amplitude of each 4/3 Hz
    assert spectrum.argmax() == 330  # 440 Hz
    assert spectrum[330] == pytest.approx(0.375, abs=0.01)  # a lossy codec; the mean of 0.5 and 0.25, not their sum


@pytest.mark.parametrize("index", [1, 3])
def test_sound_of_real_clips_is_that_of_the_reference(shared_dir, index):
    safetensors = pytest.importorskip("safetensors.numpy")
    reference = safetensors.load_file(shared_dir / "reference" / "kaldi_fbank.safetensors")
    expected = reference[f"clip{index}.waveform_int16"].astype(np.float32) / 2**15
    waveform = READER.read_audio(shared_dir / "data" / "videos" / f"video{index}.mp4")[: len(expected)]
    np.testing.assert_allclose(waveform, expected, atol=1.5 / 2**15)  # one step of 16 bits


# ---------------------------------------------------------------- windows


@pytest.mark.parametrize(
    ("kind", "codec"),
    [("matroska", "mjpeg"), ("mp4", "libx264"), ("avi", "mpeg4"), ("webm", "libvpx"), ("mpegts", "mpeg2video")],
)
def test_windows_share_out_the_frames_of_a_file(tmp_path, kind, codec):
    path = write(tmp_path, "clip", media(kind, codec, frames=50, rate=25))
    read = partial(read_frames, path, reader=READER)
    whole, windows = read(), [(0, 0.8), (0.8, 1.6), (1.6, None)]
    for places, window in zip(((0, 20), (20, 40), (40, 50)), windows, strict=True):
        assert np.array_equal(read(window=window), whole[slice(*places)]), window
    assert np.array_equal(read(2, window=windows[1]), whole[[20 + place for place in frame_indices(20, 2)]])
    assert read(2, window=(100, 110)) is None
    assert SandboxedReader().read_duration(path) == pytest.approx(2, abs=0.1)


def test_a_picture_that_stays_is_seen_in_every_window(tmp_path):
    path = write(tmp_path, "slides.mkv", media("matroska", "mjpeg", frames=3, times=(0, 1000, 9000)))
    read = partial(read_frames, path, reader=READER)
    whole = read()
    assert np.array_equal(read(window=(4, 6)), whole[1:2])
    assert np.array_equal(read(window=(0, 4)), whole[:2])
    assert np.array_equal(read(2, window=(8, None)), whole[[2, 2]])


SOUNDS = {  # container, codec, and the samples by which its windows may differ from the whole: one frame of the codec
    "wav": ("wav", "pcm_s16le", 0),
    "flac": ("flac", "flac", 0),
    "mp3": ("mp3", "libmp3lame", 1152),
    "aac.m4a": ("ipod", "aac", 1024),
    "opus.ogg": ("ogg", "libopus", 960),
}


@pytest.fixture(scope="module", params=SOUNDS)
def sound(request, tmp_path_factory):
    """A file, its whole sound, and the samples by which parts may differ."""
    kind, codec, frame = SOUNDS[request.param]
    rate = 48_000 if codec == "libopus" else 16_000
    content = media(kind, "", codec, seconds=21.0, sampling_rate=rate)
    path = write(tmp_path_factory.mktemp("sounds"), request.param, content)
    return path, READER.read_audio(path), frame


def test_windows_share_out_the_sound_of_a_file(sound):
    path, whole, frame = sound
    windows = [(0, 7.5), (7.5, 14.1), (14.1, None)]
    for reader in READERS.values():
        parts = [reader.read_audio(path, window=window) for window in windows]
        joined = np.concatenate(parts)
        assert abs(len(joined) - len(whole)) <= frame and len(parts[1]) == round(6.6 * 16_000)
        assert reader.read_audio(path, window=(30, None)) is None
        if not frame or reader is READER:
            assert np.array_equal(joined, whole)
        for window, part in zip(windows, parts, strict=True):
            (chosen,), length = reader.read_audio_parts(path, lambda available: [(100, available - 7)], window=window)
            assert length == len(part) and np.array_equal(chosen, part[100:-7])


def test_of_a_long_track_the_chosen_parts_are_decoded(sound, monkeypatch):
    path, whole, frame = sound
    monkeypatch.setattr(worker, "_LONG_SOUND", 5.0)
    chosen = [(0, 16_000), (100, 300), (0, 0), (240_001, 256_001), (320_000, 326_123)]
    parts, available = worker.LimitedReader(Limits(), 2**30).read_audio_parts(path, lambda available: chosen)
    assert abs(available - len(whole)) <= 2 * frame
    for (start, stop), part in zip(chosen, parts, strict=True):
        shifts = [0] if not frame else range(max(-48, -start), 49)  # 3 ms
        errors = [np.abs(part - whole[start + shift : stop + shift]).max(initial=0) for shift in shifts]
        assert len(part) == stop - start and min(errors) <= (0.05 if frame else 0)


def test_a_file_that_does_not_say_how_long_it_is_is_measured(tmp_path):
    path = write(tmp_path, "sound.aac", media("adts", "", "aac", seconds=3))
    assert SandboxedReader().read_duration(path) == pytest.approx(3, abs=0.2)
    with pytest.raises(LimitError, match="--limit duration"):
        SandboxedReader(Limits(duration=1)).read_duration(write(tmp_path, "sound.wav", wav(tone(32_000))))


# ---------------------------------------------------------------- files that end early

WHOLE = {
    "variable.mkv": {"encoder": "bf=2", "times": [0, 40, 80, 1500, 1540, 2900], "num_frames": 6},
    "longer_sound.mkv": {"seconds_of_audio": 6.0},
    "shorter_sound.mkv": {"seconds_of_audio": 0.5},
    "cues_in_front.mkv": {"muxer": "reserve_index_space=2000", "seconds_of_audio": 3.0},
    "mpeg4.avi": {"codec": "mpeg4", "seconds_of_audio": 2.0, "audio_codec": "mp3"},  # counts another, empty frame
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_is_whole_or_cut_whoever_wrote_it(tmp_path, name):
    settings = {"num_frames": 30} | WHOLE[name]
    path, reader = tmp_path / name, SandboxedReader()
    write_media(path, **settings)
    assert len(reader.read_frames(path)) == settings["num_frames"]
    assert (reader.read_audio(path) is not None) == ("seconds_of_audio" in settings)
    path.write_bytes(cut(path.read_bytes(), 0.5))
    with pytest.raises(MediaError, match=f"{name}: .*(promises|decoding|decodes|damaged)"):
        reader.read_frames(path)


# ---------------------------------------------------------------- damage: what does not decode is skipped

CHOOSE = partial(frame_indices, num_frames=8)
SIZES = {"frames": 60, "seconds": 6.0}
H264 = {"encoder": "g=10 bf=2", **SIZES}
HARMED = {
    "h264.mp4": partial(media, "mp4", "libx264", "aac", muxer="movflags=faststart", **H264),
    "one_keyframe.mp4": partial(media, "mp4", "libx264", "aac", muxer="movflags=faststart", encoder="bf=2", **SIZES),
    "h264.mkv": partial(media, "matroska", "libx264", "aac", **H264),
    "h264.ts": partial(media, "mpegts", "libx264", "aac", **H264),
    "mpeg4.avi": partial(media, "avi", "mpeg4", "libmp3lame", encoder="g=10", **SIZES),
    "mjpeg.avi": partial(media, "avi", "mjpeg", "pcm_s16le", **SIZES),
}
HARM = {
    "half": lambda data: cut(data, 0.5),
    "stretch": lambda data: noisy(data, 0.5, 600),
    "wide": lambda data: noisy(data, 0.4, 5000),
}


def harmed(folder, name, how=None):
    data = HARMED[name]()
    return write(folder, f"{how}_{name}", data if how is None else HARM[how](data))


def read(path, choose=CHOOSE, window=None, reader=None):
    """Frames, and what is reported."""
    reported = []
    frames = (reader or SandboxedReader()).reporting_to(reported.append).read_frames(path, choose, window)
    return (None if frames is None else np.stack(frames)), [line.removeprefix(f"{path}: ") for line in reported]


def hear(path, window=None):
    reported = []
    sound = SandboxedReader().reporting_to(reported.append).read_audio(path, window)
    return sound, [line.removeprefix(f"{path}: ") for line in reported]


UNNOTICED = {("mpeg4.avi", "stretch"), ("mpeg4.avi", "wide")}  # by FFmpeg
MARRED_LATER = {("h264.mp4", "wide"), ("h264.ts", "wide"), ("one_keyframe.mp4", "wide")}  # no keyframe for a second
NOTICED = {("h264.mp4", "stretch"), ("h264.mp4", "wide"), ("one_keyframe.mp4", "wide"), ("h264.ts", "wide")}


@pytest.mark.promise("files", "Damage in a stream is reported, and costs at most a second more of it")
@pytest.mark.parametrize("how", sorted(HARM))
@pytest.mark.parametrize("name", sorted(HARMED))
def test_the_frames_that_are_read_beside_damage_are_those_of_the_whole_file(tmp_path, name, how):
    path, whole = harmed(tmp_path, name, how), SandboxedReader().read_frames(harmed(tmp_path, name))
    every, reported = read(path, None)
    assert 5 < len(every) <= len(whole) and len(reported) <= 1
    if (name, how) not in UNNOTICED | MARRED_LATER:
        assert {frame.tobytes() for frame in every} <= {frame.tobytes() for frame in whole}
    if (name, how) in NOTICED:
        lost, total = map(int, re.search(rf"(\d+) of (\d+) frames could not {IN_PART}", reported[0]).groups())
        assert len(every) == total - lost and lost < 20
        if name == "one_keyframe.mp4":
            assert len(read(path, None, (5.0, None))[0]) == 10
        else:  # then those after the damage, too
            assert every[-1].tobytes() == whole[-1].tobytes()
        with pytest.raises(MediaError):
            SandboxedReader().read_frames(path)
    chosen, _ = read(path)
    assert len({frame.tobytes() for frame in chosen}) == min(8, len(every))  # evenly among them
    in_process, lines = read(path, None, reader=READER)
    assert np.array_equal(every, in_process) or lines != reported


@pytest.mark.parametrize("name", ["h264.mp4", "h264.mkv", "mpeg4.avi"])
def test_windows_before_the_end_of_half_a_file_are_whole_and_those_after_it_are_reported(tmp_path, name):
    path, whole = harmed(tmp_path, name, "half"), harmed(tmp_path, name)
    for reading in (read, hear):
        found, reported = reading(path, window=(1.0, 2.0))
        assert np.array_equal(found, reading(whole, window=(1.0, 2.0))[0]) and not reported
        found, reported = reading(path, window=(2.0, 6.0))
        assert found is not None and len(reported) == 1 and IN_PART in reported[0]
        assert reading(path, window=(4.0, 5.0)) == reading(path, window=(5.0, None)) == (None, reported)


MARRED = {
    "mp4": ("mp4", "libx264", "aac", "movflags=faststart"),
    "mkv": ("matroska", "libx264", "aac", ""),
    "ts": ("mpegts", "libx264", "aac", ""),
    "avi": ("avi", "mpeg4", "libmp3lame", ""),
    "webm": ("webm", "libvpx", "libopus", ""),
    "mp3": ("mp3", "", "libmp3lame", ""),
    "flac": ("flac", "", "flac", ""),
    "ogg": ("ogg", "", "libopus", ""),
    "wav": ("wav", "", "pcm_s16le", ""),
}
HARMS = {"noise": NOISE[:800], "zeros": bytes(800), "hole": b""}


def marred(kind, how):
    """A film or a sound of 9 s, 800 bytes of which are something else."""
    container, video, audio, muxer = MARRED[kind]
    rate = 48_000 if audio == "libopus" else 16_000
    settings = {"frames": 90, "seconds": 9.0, "encoder": "g=5", "muxer": muxer, "sampling_rate": rate}
    data = media(container, video, audio, **(settings if video else settings | {"encoder": ""}))
    place = len(data) * 45 // 100
    return data[:place] + HARMS[how] + data[place + 800 :]


def decode_what_can_be(path, kind):
    """The frames of all packets that decode, as the ffmpeg command reads them."""
    with av.open(str(path)) as container:
        stream = getattr(container.streams, kind)[0]
        for packet in container.demux(stream):
            with suppress(av.FFmpegError):
                yield from packet.decode()


@pytest.mark.parametrize("how", HARMS)
@pytest.mark.parametrize("kind", MARRED)
def test_what_follows_damage_is_read_whole_and_in_windows_by_both_readers(tmp_path, kind, how):
    if (kind, how) == ("mp4", "hole"):
        pytest.skip("the index points beside all that follows, for FFmpeg too")
    path = write(tmp_path, f"clip.{kind}", marred(kind, how))
    windows = [(0.0, 3.0), (3.0, 6.0), (6.0, None)]
    there = sum(frame.samples / frame.sample_rate for frame in decode_what_can_be(path, "audio"))
    for reader in (MediaReader(), worker.LimitedReader(Limits(), 2**30)):
        reader = reader.reporting_to(lambda sentence: None)
        assert len(reader.read_audio(path)) / 16_000 == pytest.approx(there, rel=0.02)
        sounds = [len(reader.read_audio(path, window)) / 16_000 for window in windows]
        assert min(sounds) > 1.5 and sum(sounds) == pytest.approx(there, abs=0.3)
        if MARRED[kind][1]:
            frames = list(decode_what_can_be(path, "video"))
            assert len(reader.read_frames(path)) >= len(frames) - 15  # of the packets damaged up to a keyframe
            assert [len(reader.read_frames(path, CHOOSE, window)) for window in windows] == [8, 8, 8]


WIPED = {"mkv": bytes(4000), "ts": bytes(4000), "moof": b"noise"}


@pytest.mark.parametrize("kind", WIPED)
def test_packets_that_vanish_in_damage_are_counted(tmp_path, kind):
    container, video, audio, _ = MARRED.get(kind, MARRED["mp4"])
    muxer = "movflags=frag_keyframe+empty_moov" if kind == "moof" else ""
    whole = media(container, video, audio, frames=90, seconds=9.0, encoder="g=5", muxer=muxer)
    start = len(whole) * 45 // 100
    if kind == "moof":  # the name of a box is not known: it is skipped
        start = whole.index(b"moof", start)
    path = write(tmp_path, f"clip.{kind}", whole[:start] + WIPED[kind][:4000] + whole[start + len(WIPED[kind]) :])
    frames, (sentence,) = read(path, None)
    lost, total = map(int, re.search(rf"(\d+) of (\d+) frames could not {IN_PART}", sentence).groups())
    assert lost >= 5 and 88 <= len(frames) + lost == total <= 90
    windows = [read(path, None, window)[1] for window in ((0.0, 3.0), (3.0, 6.0), (6.0, None))]
    assert not windows[0] and windows[1] and not windows[2]


def with_a_false_size():
    """Fragments, the size of one of which is wrong."""
    whole = media("mp4", "libx264", "aac", muxer="movflags=frag_keyframe+empty_moov", **H264)
    start = whole.index(b"moof", len(whole) // 3) - 4
    return whole[:start] + b"\x70" + whole[start + 1 :]


MISSING = {  # of which FFmpeg says nothing
    "fragments.mp4": (with_a_false_size, r"reading ended at byte [0-9]+ of \d+"),
    "index.avi": (lambda: noisy(HARMED["mpeg4.avi"](), 0.45, 4000), r"promises \d+ bytes, \d+ came"),
    "header.flac": (lambda: cut(media("flac", "", "flac", seconds=3.0), 0.8), r"promises \d+ samples, \d+ came"),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_without_an_error_is_found_by_what_the_file_says_of_itself(tmp_path, name):
    content, said = MISSING[name]
    sound, (sentence,) = hear(write(tmp_path, name, content()))
    assert len(sound) and re.search(said, sentence)


@pytest.mark.parametrize(
    ("kind", "video", "settings"),
    [
        ("matroska", "libx264", H264),
        ("vob", "mpeg2video", {"rate": 25, "frames": 225, "seconds": 9.0}),  # few packets say where they are
    ],
)
def test_gaps_of_a_stream_are_no_damage_where_nothing_stands_in_the_file(tmp_path, kind, video, settings):
    whole = media(kind, video, "mp2", sampling_rate=48_000, **settings)
    path = write(tmp_path, "gap", remux(whole, kind, _without_4_to_6))
    assert read(path, None)[1] == hear(path)[1] == []


def test_sound_of_noise_in_no_known_order_of_channels_is_skipped():
    frame = av.AudioFrame(format="fltp", layout="11 channels", samples=1024)
    frame.sample_rate = 16_000
    assert not media_scalar._can_be_mixed(frame)


def test_sound_after_a_gap_is_found_at_its_time(tmp_path):
    path = write(
        tmp_path, "gap.mkv", remux(media("matroska", "", "pcm_s16le", seconds=9.0), "matroska", _without_4_to_6)
    )
    for reader in READERS.values():
        seconds = [len(reader.read_audio(path, window)) / 16_000 for window in ((0, 3), (3, 6), (6, 9))]
        assert seconds == pytest.approx([3, 1, 3], abs=0.1)
        assert len(reader.read_audio(path)) == pytest.approx(7 * 16_000, abs=3000)


def _without_4_to_6(packets):
    return [packet for packet in packets if not 4 <= packet.pts * packet.time_base < 6]


@pytest.mark.parametrize("start", [NOISE[:100_000], b"no sound " * 500, bytes(5000)], ids=["noise", "text", "zeros"])
def test_sound_after_garbage_and_after_a_second_header_is_read(tmp_path, start):
    sound = media("mp3", "", "libmp3lame", seconds=4.0)
    path = write(tmp_path, "joined.mp3", start + sound[: len(sound) // 2 + 50] + sound)
    there = sum(frame.samples / frame.sample_rate for frame in decode_what_can_be(path, "audio"))
    found, _ = hear(path)
    assert len(found) / 16_000 == pytest.approx(there, rel=0.02) and there > 5.9


def test_windows_of_damaged_films_are_reported_in_one_sentence(tmp_path):
    path = write(tmp_path, "clip.mp4", noisy(marred("mp4", "noise"), 0.7, 800))
    lines = []
    for window in ((0.0, 3.0), (3.0, 6.0), (6.0, None)):
        lines += read(path, None, window)[1] + hear(path, window)[1]
    sentences = joined_losses(lines)
    assert len(lines) > len(sentences) == 2
    (_, (whole,)) = read(path, None)
    assert re.sub(r" of \d+ frames", "", whole) in {re.sub(r" of \d+ frames", "", line) for line in sentences}


@pytest.mark.parametrize(("share", "seconds"), [(1.0, 9.0), (0.5, 4.5)])
@pytest.mark.parametrize("kind", ["mp4", "mkv", "avi"])
def test_the_length_of_a_recording_that_was_cut_off_is_that_of_what_came(tmp_path, kind, share, seconds):
    container, video, audio, muxer = MARRED[kind]
    data = media(container, video, audio, frames=90, seconds=9.0, encoder="g=5", muxer=muxer)
    path = write(tmp_path, f"clip.{kind}", cut(data, share))
    assert worker.LimitedReader(Limits(), 2**30).read_duration(path) == pytest.approx(seconds, rel=0.4)


# ---------------------------------------------------------------- subtitles


SUBTITLES = {  # a suffix, a content and its words
    "SRT": (
        ".srt",
        "\ufeff1\n00:00:01,000 --> 00:00:02,000\n{\\an8}<i>Hello</i>, <font color='red'>you</font>\n\n"
        "2\n00:00:02,000 --> 00:00:03,000\nI <3 it &amp; a < b\n\nafter a blank line\n\n"
        "3\n00:00:03,000 --> 00:00:04,000\n1984\n",
        "Hello, you I <3 it & a < b after a blank line 1984",
    ),
    "WebVTT": (
        ".vtt",
        "WEBVTT - a title\nKind: captions\n\nSTYLE\n::cue { color: red }\n\nNOTE not spoken\n\n"
        "intro\n00:01.000 --> 00:02.000 align:start\n<v Ann>Hi<00:00:01.500><c> there</c></v>\n\n"
        "NOTE\nnot spoken either\n\n2\n01:00:02.000 --> 01:00:03.000\nx &lt; y\n",
        "Hi there x < y",
    ),
    "nothing": (".srt", "", ""),
    "blanks": (".srt", " \n\n", ""),
    "a header": (".srt", "WEBVTT\n\n", ""),
    "times": (".srt", "1\n00:00:01,000 --> 00:00:02,000\n \n", ""),
}


@pytest.mark.parametrize("name", SUBTITLES)
def test_a_subtitle_file_becomes_one_plain_string(tmp_path, name):
    suffix, content, words = SUBTITLES[name]
    path = tmp_path / f"clip{suffix}"
    path.write_text(content, encoding="utf-8")
    assert READER.read_subtitle(path) == words


def test_rolling_captions_say_each_line_once(tmp_path):
    path = tmp_path / "clip.srt"
    cues = ["one", "one\ntwo", "two", "two\nthree", "one"]
    path.write_text("".join(f"{i}\n00:00:0{i},000 --> 00:00:0{i},900\n{cue}\n\n" for i, cue in enumerate(cues)))
    assert READER.read_subtitle(path) == "one two three one"
    windows = ((0, 1), (1, 2), (2.95, 3), (4.5, None))
    assert [READER.read_subtitle(path, window) for window in windows] == ["one", "one two", "", "one"]


@pytest.mark.parametrize(
    "codec", [("matroska", "subrip"), ("matroska", "ass"), ("matroska", "webvtt"), ("mp4", "mov_text")]
)
def test_a_text_track_becomes_one_plain_string(tmp_path, codec):
    drawing = ["{\\p1}m 0 0 l 100 0 100 100{\\p0}"] if "ass" in codec else []
    lines = ("Hello, {\\i1}world{\\i0}", *drawing, "Hello, world\\Nsecond line")
    path = write(tmp_path, "clip", media(codec[0], "libx264", "", codec[1], lines=lines))
    assert READER.read_subtitle_of(path) == "Hello, world second line"
    assert READER.read_subtitle_of(path, (len(lines) - 1, None)) == "Hello, world second line"
    assert READER.read_subtitle_of(path, (0, 0.5)) == "Hello, world"
    assert len(read_frames(path, 8, reader=READER)) == 8
