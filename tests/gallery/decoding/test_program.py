"""Every file is made here with PyAV; the expected frames are FFmpeg's own, decoded in order."""

from fractions import Fraction

import av
import numpy as np
import pytest
import torch

from gallery.decoding import reader, sound, streams, tolerant, video
from modeling_scalar import media_scalar
from modeling_scalar.image_processing_scalar import frame_indices
from modeling_scalar.media_scalar import MediaError, find_sidecar, resample
from tests.gallery.decoding.reading import (
    read_audio,
    read_frames,
    read_subtitle,
    read_subtitle_track,
)
from tests.media_corpus import CORPUS

OPEN_GOP = {"bf": "3", "x264-params": "open-gop=1:keyint=7:min-keyint=7:scenecut=0:b-adapt=0:log-level=none"}
VARIABLE = np.cumsum(np.random.default_rng(0).integers(5, 400, 40)).tolist()  # milliseconds
CLIPS = {
    "constant.mp4": {"options": {"g": "5", "bf": "0"}},
    "b_frames.mp4": {"options": {"g": "5", "bf": "3"}},
    "b_frames.mkv": {"options": {"g": "12", "bf": "3"}},
    "open_gop.mp4": {"options": OPEN_GOP},
    "open_gop.mkv": {"options": OPEN_GOP},
    "open_gop.ts": {"options": OPEN_GOP},
    "variable.mp4": {"options": {"g": "5", "bf": "2"}, "milliseconds": VARIABLE},
    "variable.mkv": {"options": {"g": "5", "bf": "2"}, "milliseconds": VARIABLE},
    "fragments.mp4": {"options": {"g": "5", "bf": "2"}, "container": {"movflags": "frag_keyframe+empty_moov"}},
    "mpeg4.avi": {"codec": "mpeg4", "options": {"g": "5"}},
    "b_frames.avi": {"options": {"g": "5", "bf": "2"}},  # no presentation times
    "vp8.webm": {"codec": "libvpx", "options": {"g": "12"}},  # may hold packets that are never shown
    "picture.gif": {"codec": "gif", "pixels": "rgb8"},
    "three.mp4": {"num_frames": 3},
    "one.mp4": {"num_frames": 1},
}
COUNTED = {"b_frames.avi", "vp8.webm"}  # their timestamps do not name frames


def picture(index, size=64):
    y, x = np.mgrid[:size, :size]
    base = np.stack([x * 3 + index * 5, y * 2 + index * 3, x + y + index * 7], axis=-1) % 256
    noise = np.random.default_rng(index).integers(0, 30, base.shape)
    return (base + noise).clip(0, 255).astype(np.uint8)


def write_media(
    path,
    num_frames=40,
    codec="libx264",
    options=None,
    milliseconds=None,
    seconds_of_audio=0.0,
    audio_codec="aac",
    rotation=None,
    pixels="yuv420p",
    container=None,
    pictures=picture,
    size=64,
):
    """A clip of 10 frames a second, its sound 440 Hz with amplitude 0.5 left and 0.25 right."""
    with av.open(str(path), "w", options=container or {}) as output:
        if num_frames:
            video = output.add_stream(codec, rate=10, options=options or {})
            video.width, video.height, video.pix_fmt = size, size, pixels
            if rotation is not None:
                video.set_display_rotation(rotation)
            if milliseconds is not None:
                video.codec_context.time_base = Fraction(1, 1000)
        if seconds_of_audio:
            audio = output.add_stream(audio_codec, rate=44100)
            audio.layout = "stereo"
        for index in range(num_frames):
            frame = av.VideoFrame.from_ndarray(pictures(index), format="rgb24")
            frame.time_base = Fraction(1, 10) if milliseconds is None else Fraction(1, 1000)
            frame.pts = index if milliseconds is None else milliseconds[index]
            output.mux(video.encode(frame))
        if num_frames:
            output.mux(video.encode(None))
        if seconds_of_audio:
            tone = np.sin(2 * np.pi * 440 * np.arange(int(44100 * seconds_of_audio)) / 44100)
            stereo = np.stack([0.5 * tone, 0.25 * tone]).astype(np.float32)
            frame = av.AudioFrame.from_ndarray(stereo, format="fltp", layout="stereo")
            frame.sample_rate = 44100
            target = audio.codec_context.format.name
            resampler = av.AudioResampler(format=target, layout="stereo", rate=44100)
            fifo = av.AudioFifo()
            for piece in resampler.resample(frame):
                fifo.write(piece)
            while piece := fifo.read(1024, partial=True):
                output.mux(audio.encode(piece))
            output.mux(audio.encode(None))


def write_subtitles(path, codec, lines):
    header = (
        "[Script Info]\n[V4+ Styles]\nFormat: Name, Fontname\nStyle: Default,Arial\n[Events]\nFormat: Layer, Text\n"
    )
    with av.open(str(path), "w") as output:
        video = output.add_stream("libx264", rate=10)
        video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
        stream = output.add_stream(codec)
        stream.codec_context.subtitle_header = header.encode()
        stream.codec_context.time_base = Fraction(1, 1000)
        for index in range(20):
            frame = av.VideoFrame.from_ndarray(picture(index), format="rgb24")
            frame.pts = index
            output.mux(video.encode(frame))
        output.mux(video.encode(None))
        for index, line in enumerate(lines):
            event = f"{index},0,Default,,0,0,0,,{line}".encode()
            packet = stream.codec_context.encode_subtitle(
                av.subtitles.subtitle.SubtitleSet.create(event, 0, 900, pts=index * 1000)
            )
            packet.stream, packet.time_base = stream, Fraction(1, 1000)
            packet.pts = packet.dts = index * 1000
            packet.duration = 900
            output.mux(packet)


def decode_in_order(path):
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clips")
    for name, settings in CLIPS.items():
        write_media(folder / name, **settings)
    return folder


@pytest.fixture
def with_sound(tmp_path):
    write_media(tmp_path / "whole.mp4", options={"g": "10"}, seconds_of_audio=4.0, container={"movflags": "faststart"})
    return tmp_path / "whole.mp4"


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


def test_the_same_generator_state_gives_the_same_frames():
    first, second, third = (
        frame_indices(900, 8, training=True, generator=torch.Generator().manual_seed(seed)) for seed in (5, 5, 6)
    )
    assert first == second != third


def test_frame_indices_refuse_unseeded_training():
    with pytest.raises(ValueError, match="generator"):
        frame_indices(8, 2, training=True)


# ---------------------------------------------------------------- frames


@pytest.mark.parametrize("seek", ["index", "scan"])
@pytest.mark.parametrize("name", CLIPS)
def test_frames_are_those_of_decoding_everything_in_order(clips, name, seek):
    expected = decode_in_order(clips / name)
    assert len(np.unique(expected.reshape(len(expected), -1), axis=0)) == len(expected)  # the frames are distinct
    for num_frames in (1, 2, 5, 8, 16, 60):
        frames = read_frames(clips / name, num_frames, seek=seek)
        np.testing.assert_array_equal(frames, expected[frame_indices(len(expected), num_frames)])
    np.testing.assert_array_equal(read_frames(clips / name, seek=seek), expected)


class Here:
    """Stands for the other side of a decoder that runs in this process."""

    def __init__(self, choose):
        self.choose, self.frames = choose, {}

    def send(self, kind, payload=b"", **content):
        if kind == "frame":
            self.frames[content["place"]] = payload

    def ask(self, kind, available):
        return {"chosen": self.choose(available)}


@pytest.fixture
def read_by_index(monkeypatch):
    def read(path, choose):
        here = Here(choose)
        video.send_frames(str(path), here, "index", 1, whole=False)
        return np.stack([here.frames[place] for place in range(len(here.frames))])

    monkeypatch.setattr(video, "_decoded", lambda *_: pytest.fail("fell back to decoding in order"))
    return read


@pytest.mark.parametrize("name", sorted(set(CLIPS) - COUNTED))
def test_the_index_alone_finds_every_frame(clips, name, read_by_index):
    for index, expected in enumerate(decode_in_order(clips / name)):
        frames = read_by_index(clips / name, lambda _, chosen=index: [chosen])
        np.testing.assert_array_equal(frames, expected[None])


def test_the_index_decodes_less(clips):
    count = {}
    for seek in ("index", "scan"):
        with streams.opened(clips / "b_frames.mp4") as container:
            stream = media_scalar.first_stream(clips, container, "video")
            table = video._packets_of(clips, container, stream).table
        target = table.shown[-1]
        count[seek] = target - (table.key_position(target) if seek == "index" else 0)
    assert 0 <= count["index"] < 5 < count["scan"]


def test_training_frames_follow_the_generator(clips):
    path = clips / "b_frames.mp4"
    expected = decode_in_order(path)[frame_indices(40, 2, True, torch.Generator().manual_seed(3))]
    frames = read_frames(path, 2, training=True, generator=torch.Generator().manual_seed(3))
    np.testing.assert_array_equal(frames, expected)


def test_frames_before_the_start_of_an_edit_list_are_not_shown(clips, tmp_path, read_by_index):
    path = tmp_path / "trimmed.mp4"
    with (
        av.open(str(clips / "b_frames.mp4")) as source,
        av.open(str(path), "w", options={"avoid_negative_ts": "disabled"}) as output,
    ):
        stream = output.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                shift = round(Fraction(14, 10) / packet.time_base)
                packet.pts, packet.dts, packet.stream = packet.pts - shift, packet.dts - shift, stream
                output.mux(packet)
    expected = decode_in_order(path)
    assert len(expected) == 26  # of the 28 packets from the keyframe before the start
    np.testing.assert_array_equal(read_frames(path, 8, seek="scan"), expected[frame_indices(26, 8)])
    frames = read_by_index(path, lambda available: frame_indices(available, 8))
    np.testing.assert_array_equal(frames, expected[frame_indices(26, 8)])


def test_the_rotation_of_a_phone_is_applied(tmp_path):
    def white_top(_):
        image = np.zeros((64, 64, 3), np.uint8)
        image[:32] = 255
        return image

    write_media(tmp_path / "phone.mp4", 4, rotation=90, pictures=white_top)  # counter-clockwise: the top goes left
    left, right = np.split(read_frames(tmp_path / "phone.mp4", 2).astype(int), 2, axis=2)
    assert left[:, :, :24].min() > 200 and right[:, :, 8:].max() < 50  # the codec blurs the edge


def test_cover_art_is_not_video(tmp_path):
    path = tmp_path / "song.mp3"
    with av.open(str(path), "w") as output:
        audio = output.add_stream("mp3", rate=44100)
        audio.layout = "stereo"
        cover = output.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 64, 64, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        output.mux(cover.encode(av.VideoFrame.from_ndarray(picture(0), format="rgb24").reformat(format="yuvj420p")))
        output.mux(cover.encode(None))
        frame = av.AudioFrame.from_ndarray(np.zeros((2, 1152), np.float32), format="fltp", layout="stereo")
        frame.sample_rate = 44100
        for _ in range(20):
            frame.pts = None
            output.mux(audio.encode(frame))
        output.mux(audio.encode(None))
    with av.open(str(path)) as container:
        assert len(container.streams.video) == 1
    assert read_frames(path, 8) is None
    assert read_audio(path) is not None


def test_a_file_without_picture_has_no_frames(tmp_path):
    write_media(tmp_path / "sound.m4a", num_frames=0, seconds_of_audio=1.0)
    assert read_frames(tmp_path / "sound.m4a", 8) is None


@pytest.mark.parametrize("seek", ["index", "scan"])
def test_repeated_timestamps_do_not_hide_frames(clips, tmp_path, seek):
    twice = tmp_path / "twice.ts"
    twice.write_bytes((clips / "open_gop.ts").read_bytes() * 2)
    expected = decode_in_order(twice)
    assert len(expected) > 60
    np.testing.assert_array_equal(read_frames(twice, 8, seek=seek), expected[frame_indices(len(expected), 8)])


def test_a_picture_that_changes_its_size_is_an_error(clips, tmp_path):
    write_media(tmp_path / "large.ts", pictures=lambda index: picture(index, 96), size=96)
    mixed = tmp_path / "mixed.ts"
    mixed.write_bytes((clips / "open_gop.ts").read_bytes() + (tmp_path / "large.ts").read_bytes())
    with pytest.raises(MediaError, match=r"mixed.ts: .*\(64, 64\), \(96, 96\)"):
        read_frames(mixed, 8)


def test_unknown_seek_is_refused(clips):
    with pytest.raises(ValueError, match="'index' or 'scan'"):
        read_frames(clips / "one.mp4", seek="time")


# ---------------------------------------------------------------- files that are not what they should be


@pytest.mark.parametrize("read", [read_frames, read_audio])
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_a_truncated_file_is_an_error_that_says_what_was_promised(tmp_path, read, suffix):
    whole, half = tmp_path / f"whole{suffix}", tmp_path / f"half{suffix}"
    container = {"movflags": "faststart"} if suffix == ".mp4" else {}
    write_media(whole, options={"g": "10"}, seconds_of_audio=4.0, container=container)
    data = whole.read_bytes()
    half.write_bytes(data[: len(data) // 2])
    assert len(read(whole)) > 0
    with pytest.raises(
        MediaError, match=r"half\S*: (video|audio) stream \d \(\w+\): (the container promises|decoding)"
    ):
        read(half)


@pytest.mark.parametrize("seek", ["index", "scan"])
def test_frames_of_a_truncated_file_name_both_numbers(with_sound, seek):
    data = with_sound.read_bytes()
    half = with_sound.with_name("half.mp4")
    half.write_bytes(data[: len(data) // 2])
    with pytest.raises(MediaError, match=r"promises 40 packets, \d+ came"):
        read_frames(half, 8, seek=seek)


@pytest.mark.parametrize("read", [read_frames, read_audio])
def test_noise_inside_a_file_is_an_error(with_sound, read):
    data = bytearray(with_sound.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 8000] = np.random.default_rng(1).bytes(8000)
    noisy = with_sound.with_name("noisy.mp4")
    noisy.write_bytes(data)
    with pytest.raises(MediaError, match="noisy.mp4: (video|audio) stream"):
        read(noisy)


CAPTIONS = "1\n00:00:01,000 --> 00:00:02,000\nHello there\n\n2\n00:00:02,000 --> 00:00:03,000\nAgain\n"
NOT_MEDIA = {
    "empty.mp4": b"",
    "random.mp4": np.random.default_rng(0).bytes(20_000),
    "prose.mp4": b"The quick brown fox jumps over the lazy dog.\n" * 40,
    "prose.txt": b"The quick brown fox jumps over the lazy dog.\n" * 40,  # FFmpeg would render it
    "colours.ans": b"\x1b[31mred\x1b[0m text\n" * 40,
    "captions.mp4": CAPTIONS.encode(),
    "captions_vtt.mp4": b"WEBVTT\n\n00:01.000 --> 00:02.000\nHi\n",
    "lyrics.mp4": b"[00:12.00]Line 1\n[00:17.20]Line 2\n",
    "page.mp4": b"<html><body>404 not found</body></html>",
    "playlist.mp4": b"ffconcat version 1.0\nfile 'constant.mp4'\n",  # would open another file
    "stream.m3u8": b"#EXTM3U\n#EXT-X-VERSION:3\n#EXTINF:10,\nconstant.mp4\n#EXT-X-ENDLIST\n",
    "picture.ppm": b"P3\n2 2\n255\n1 2 3 4 5 6 7 8 9 10 11 12\n",
}


@pytest.mark.parametrize("read", [read_frames, read_audio, read_subtitle_track])
@pytest.mark.parametrize("name", NOT_MEDIA)
def test_what_is_not_media_is_an_error_that_names_the_file(tmp_path, clips, name, read):
    (tmp_path / "constant.mp4").write_bytes((clips / "constant.mp4").read_bytes())
    (tmp_path / name).write_bytes(NOT_MEDIA[name])
    with pytest.raises(MediaError, match=name):
        read(tmp_path / name)


def test_an_mp4_cut_before_its_index_is_an_error(tmp_path):
    write_media(tmp_path / "whole.mp4")
    data = (tmp_path / "whole.mp4").read_bytes()
    assert data.index(b"moov") > len(data) // 2
    (tmp_path / "cut.mp4").write_bytes(data[: len(data) // 2])
    with pytest.raises(MediaError, match="cut.mp4"):
        read_frames(tmp_path / "cut.mp4", 8)


@pytest.mark.parametrize("read", [read_frames, read_audio, read_subtitle_track])
def test_a_missing_file_is_not_a_broken_one(tmp_path, read):
    with pytest.raises(FileNotFoundError, match="nowhere.mp4"):
        read(tmp_path / "nowhere.mp4")


def test_a_colon_in_a_name_is_not_a_protocol(tmp_path):
    write_media(tmp_path / "http:clip.mp4", 3)
    assert len(read_frames(tmp_path / "http:clip.mp4", 3)) == 3


def test_reading_without_pyav_says_what_to_install(clips, monkeypatch):
    monkeypatch.setattr(media_scalar, "av", None)
    with pytest.raises(ImportError, match="pip install av"):
        read_frames(clips / "one.mp4")


# ---------------------------------------------------------------- sound


@pytest.mark.parametrize(("suffix", "codec"), [(".mp4", "aac"), (".mkv", "aac"), (".wav", "pcm_s16le")])
def test_audio_is_the_mean_of_the_channels_at_16_khz(tmp_path, suffix, codec):
    path = tmp_path / f"tone{suffix}"
    write_media(path, 0 if suffix == ".wav" else 10, seconds_of_audio=1.0, audio_codec=codec)
    waveform = read_audio(path)
    assert waveform.dtype == np.float32 and waveform.ndim == 1
    assert 16_000 <= len(waveform) < 17_200  # AAC pads its last packet
    spectrum = np.abs(np.fft.rfft(waveform[2000:14000])) / 6000  # amplitude of each 4/3 Hz
    assert spectrum.argmax() == 330  # 440 Hz
    assert spectrum[330] == pytest.approx(0.375, abs=0.01)  # a lossy codec; the mean of 0.5 and 0.25, not their sum


def test_a_file_without_a_track_has_no_audio(clips):
    assert read_audio(clips / "constant.mp4") is None


def test_resample_averages_channels_and_keeps_the_duration():
    time = np.arange(44_100) / 44_100
    stereo = np.stack([np.sin(2 * np.pi * 440 * time), np.zeros_like(time)])
    waveform = resample(stereo, 44_100)
    assert len(waveform) == pytest.approx(16_000, abs=2)
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(1000, 15_000) / 16_000)
    np.testing.assert_allclose(waveform[1000:15_000], expected, atol=2e-3)  # the resampler's passband
    np.testing.assert_allclose(resample(stereo, 16_000), stereo.mean(axis=0), atol=1e-7)


@pytest.mark.parametrize(("index", "seconds"), [(1, 4.39), (2, 14.79), (3, 5.78), (4, 6.73)])
def test_real_clips_give_frames_and_sound(shared_dir, index, seconds):
    path = shared_dir / "data" / "videos" / f"video{index}.mp4"
    indexed, scanned = (read_frames(path, 8, seek=seek) for seek in ("index", "scan"))
    np.testing.assert_array_equal(indexed, scanned)
    waveform = read_audio(path)
    assert len(waveform) / 16_000 == pytest.approx(seconds, abs=0.1)
    assert 0.01 < np.abs(waveform).max() <= 1


@pytest.mark.parametrize("index", [1, 3])
def test_sound_of_real_clips_is_that_of_the_reference(shared_dir, index):
    safetensors = pytest.importorskip("safetensors.numpy")
    reference = safetensors.load_file(shared_dir / "reference" / "kaldi_fbank.safetensors")
    expected = reference[f"clip{index}.waveform_int16"].astype(np.float32) / 2**15
    waveform = read_audio(shared_dir / "data" / "videos" / f"video{index}.mp4")[: len(expected)]
    np.testing.assert_allclose(waveform, expected, atol=1.5 / 2**15)  # one step of 16 bits


# ---------------------------------------------------------------- subtitles


def test_srt_becomes_one_plain_string(tmp_path):
    path = tmp_path / "clip.srt"
    path.write_text(
        "\ufeff1\n00:00:01,000 --> 00:00:02,000\n{\\an8}<i>Hello</i>, <font color='red'>you</font>\n\n"
        "2\n00:00:02,000 --> 00:00:03,000\nI <3 it &amp; a < b\n\nafter a blank line\n\n"
        "3\n00:00:03,000 --> 00:00:04,000\n1984\n",
        encoding="utf-8",
    )
    assert read_subtitle(path) == "Hello, you I <3 it & a < b after a blank line 1984"


def test_vtt_becomes_one_plain_string(tmp_path):
    path = tmp_path / "clip.vtt"
    path.write_text(
        "WEBVTT - a title\nKind: captions\n\nSTYLE\n::cue { color: red }\n\nNOTE not spoken\n\n"
        "intro\n00:01.000 --> 00:02.000 align:start\n<v Ann>Hi<00:00:01.500><c> there</c></v>\n\n"
        "NOTE\nnot spoken either\n\n2\n01:00:02.000 --> 01:00:03.000\nx &lt; y\n"
    )
    assert read_subtitle(path) == "Hi there x < y"


def test_rolling_captions_say_each_line_once(tmp_path):
    path = tmp_path / "clip.srt"
    cues = ["one", "one\ntwo", "two", "two\nthree", "one"]
    path.write_text("".join(f"{i}\n00:00:0{i},000 --> 00:00:0{i},900\n{cue}\n\n" for i, cue in enumerate(cues)))
    assert read_subtitle(path) == "one two three one"


@pytest.mark.parametrize("content", ["", " \n\n", "WEBVTT\n\n", "1\n00:00:01,000 --> 00:00:02,000\n \n"])
def test_a_file_without_words_is_an_empty_string(tmp_path, content):
    (tmp_path / "clip.srt").write_text(content)
    assert read_subtitle(tmp_path / "clip.srt") == ""


@pytest.mark.parametrize(("content", "message"), [(bytes(range(256)) * 9, "UTF-8"), (b"words", "no cue")])
def test_a_subtitle_file_of_another_kind_is_an_error(tmp_path, content, message):
    (tmp_path / "clip.srt").write_bytes(content)
    with pytest.raises(MediaError, match=f"clip.srt.*{message}"):
        read_subtitle(tmp_path / "clip.srt")


def test_sidecars_are_found_in_a_fixed_order(tmp_path):
    video = tmp_path / "a.clip.mp4"
    assert find_sidecar(video) is None
    for suffix in (".en.vtt", ".en.srt", ".vtt", ".srt"):
        (tmp_path / f"a.clip{suffix}").write_text("")
        assert find_sidecar(video) == tmp_path / f"a.clip{suffix}"


@pytest.mark.parametrize(
    ("suffix", "codec"), [(".mkv", "subrip"), (".mkv", "ass"), (".mkv", "webvtt"), (".mp4", "mov_text")]
)
def test_a_text_track_becomes_one_plain_string(tmp_path, suffix, codec):
    path = tmp_path / f"clip{suffix}"
    drawing = ["{\\p1}m 0 0 l 100 0 100 100{\\p0}"] if codec == "ass" else []
    write_subtitles(path, codec, ["Hello, {\\i1}world{\\i0}", *drawing, "Hello, world\\Nsecond line"])
    assert read_subtitle_track(path) == "Hello, world second line"
    assert len(read_frames(path, 8)) == 8


def test_a_file_without_a_text_track_has_no_subtitle(clips):
    assert read_subtitle_track(clips / "constant.mp4") is None


# ---------------------------------------------------------------- whole and cut


class Sink:
    """A file that cannot be written but at its end: a stream."""

    def __init__(self, path):
        self.file = open(path, "wb")
        self.write = self.file.write


MATROSKA = {
    "h264.mkv": {"options": {"g": "12", "bf": "3"}, "seconds_of_audio": 3.0},
    "silent.mkv": {},
    "variable.mkv": {"options": {"bf": "2"}, "milliseconds": [0, 40, 80, 1500, 1540, 2900], "num_frames": 6},
    "longer_sound.mkv": {"seconds_of_audio": 6.0},
    "shorter_sound.mkv": {"seconds_of_audio": 0.5},
    "flac.mkv": {"seconds_of_audio": 3.0, "audio_codec": "flac"},
    "mpeg4.mkv": {"codec": "mpeg4", "seconds_of_audio": 3.0, "audio_codec": "mp3"},
    "vp8.webm": {"codec": "libvpx"},
    "vp9.webm": {"codec": "libvpx-vp9"},
    "live.mkv": {"container": {"live": "1"}, "seconds_of_audio": 3.0},
    "live.webm": {"codec": "libvpx", "container": {"live": "1"}},
    "cues_in_front.mkv": {"container": {"reserve_index_space": "2000"}, "seconds_of_audio": 3.0},
}


@pytest.mark.parametrize("name", MATROSKA)
def test_matroska_is_whole_or_cut_whoever_wrote_it(tmp_path, name):
    settings = {"num_frames": 30} | MATROSKA[name]
    path = tmp_path / name
    write_media(path, **settings)
    num_frames = settings["num_frames"]
    assert len(read_frames(path)) == num_frames
    assert (read_audio(path) is not None) == ("seconds_of_audio" in settings)
    data = path.read_bytes()
    for share in (0.5, 0.9, 0.99):
        path.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(MediaError, match=f"{name}: .*(promises|decoding|decodes|damaged)"):
            read_frames(path)


def test_matroska_from_a_pipe_is_whole_or_cut(tmp_path):
    path = tmp_path / "piped.mkv"
    sink = Sink(path)
    with av.open(sink, "w", format="matroska") as output:
        video = output.add_stream("mpeg4", rate=10)
        video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
        for index in range(30):
            output.mux(video.encode(av.VideoFrame.from_ndarray(picture(index), format="rgb24")))
        output.mux(video.encode(None))
    sink.file.close()
    assert len(read_frames(path)) == 30
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.9)])
    with pytest.raises(MediaError, match=r"piped.mkv: .*promises \d+ bytes, \d+ came"):
        read_frames(path)


@pytest.mark.parametrize("suffix", [".ogg", ".nut", ".mkv", ".mp4"])
@pytest.mark.parametrize("duration", ["00:59:00.000000000", "99999999999999999999:00:00.0", "-1:00:00.0", "x"])
def test_a_comment_called_duration_promises_nothing(tmp_path, suffix, duration):
    path = tmp_path / f"song{suffix}"
    with av.open(str(path), "w", options={"movflags": "use_metadata_tags"} if suffix == ".mp4" else {}) as output:
        audio = output.add_stream("libopus", rate=48000)
        audio.layout = "mono"
        audio.metadata["DURATION"] = output.metadata["DURATION"] = duration
        for index in range(50):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 960), np.float32), format="flt", layout="mono")
            frame.sample_rate, frame.pts = 48000, 960 * index
            output.mux(audio.encode(frame))
        output.mux(audio.encode(None))
    if suffix in (".ogg", ".nut"):
        with av.open(str(path)) as container:
            tags = container.streams.audio[0].metadata | container.metadata
            assert duration in tags.values()
    assert len(read_audio(path)) == pytest.approx(16_000, abs=400)


@pytest.mark.parametrize(("suffix", "promise"), [(".aiff", "132300 samples"), (".avi", r"\d+ bytes")])
def test_pcm_is_whole_or_cut(tmp_path, suffix, promise):
    path = tmp_path / f"sound{suffix}"
    codec = "pcm_s16be" if suffix == ".aiff" else "pcm_s16le"
    write_media(path, 0, seconds_of_audio=3.0, audio_codec=codec)
    assert len(read_audio(path)) == pytest.approx(48_000, abs=2)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * 0.8)])
    with pytest.raises(MediaError, match=f"promises {promise}"):
        read_audio(path)


@pytest.mark.parametrize("codec", ["mpeg4", "libx264"])
def test_an_avi_is_whole_or_cut(tmp_path, codec):
    path = tmp_path / "clip.avi"
    write_media(path, codec=codec, seconds_of_audio=2.0, audio_codec="mp3")  # counts a 41st, empty frame
    assert len(read_frames(path)) == 40
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * 0.9)])
    for read in (read_frames, read_audio):
        with pytest.raises(MediaError, match=r"promises \d+ bytes"):
            read(path)


# ---------------------------------------------------------------- long sound


class Listener(Here):
    """Keeps the samples that it chose."""

    def send(self, kind, payload=b"", **content):
        if kind in ("sound", "part"):
            self.parts.append(np.array(payload))

    def ask(self, kind, available):
        self.available, self.parts = available, []
        return super().ask(kind, available)


def read_parts(path, choose):
    listener = Listener(choose)
    listener.available, listener.parts = None, []
    sound.send_sound(str(path), listener, whole=False)
    return listener


def test_short_sound_is_sent_at_once_from_a_file_that_is_opened_once(tmp_path, monkeypatch):
    write_media(tmp_path / "clip.mp4", seconds_of_audio=3)
    whole = np.concatenate(list(sound._all_sound(str(tmp_path / "clip.mp4"))))
    opened, opens = [], sound.opened
    monkeypatch.setattr(sound, "opened", lambda path: opened.append(path) or opens(path))
    (part,) = read_parts(tmp_path / "clip.mp4", None).parts
    assert np.array_equal(part, whole) and len(whole) >= 3 * 16_000 and len(opened) == 1
    monkeypatch.setattr(sound, "_MESSAGE", 20_000)
    parts = read_parts(tmp_path / "clip.mp4", None).parts
    assert np.array_equal(np.concatenate(parts), whole) and len(parts) == 3


@pytest.mark.parametrize("name", ["h264_aac.mp4", "text_track.mkv", "pcm.aiff", "just_too_short.wav", "empty.mp4"])
def test_a_file_is_not_asked_for_what_its_header_said_when_its_sound_was_read(
    tmp_path, tiny_processor, monkeypatch, name
):
    CORPUS[name].make(tmp_path / name)
    asked, ask = [], reader.ask
    monkeypatch.setattr(reader, "ask", lambda what, *given, **to: asked.append(what) or ask(what, *given, **to))
    processor = tolerant(tiny_processor)
    processor.read_clip(tmp_path / name, processed=True)
    words = {"text_track.mkv": ["subtitle_track"], "empty.mp4": ["tracks"]}
    assert asked == ["frames", "sound", *words.get(name, [])]
    if name == "empty.mp4":  # it does not open
        return
    asked.clear()
    assert processor.reader.read_duration(tmp_path / name) > 0 and not asked
    window = processor.read_clip(tmp_path / name, processed=True, window=(0, 0.5))
    assert (window.subtitle is None) == (name != "text_track.mkv")
    asked.clear()
    (tmp_path / name).with_suffix(".srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nbeside it\n")
    assert processor.read_clip(tmp_path / name, processed=True).subtitle == "beside it"
    assert asked == ["frames", "sound", "subtitle_file"]
    (tmp_path / name).write_bytes(b"")  # another file
    with pytest.raises(MediaError):
        processor.reader.read_duration(tmp_path / name)


LONG = {
    "wav.wav": ("pcm_s16le", 44100),
    "float.wav": ("pcm_f32le", 48000),
    "low.wav": ("pcm_s16le", 11025),
    "same.wav": ("pcm_s16le", 16000),
    "flac.flac": ("flac", 44100),
    "flac_48.flac": ("flac", 48000),
    "alac.m4a": ("alac", 44100),
    "mp3.mp3": ("mp3", 44100),
}


def write_sound(path, codec, rate, seconds):
    time = np.arange(int(rate * seconds) + 137) / rate
    noise = np.random.default_rng(0).standard_normal(len(time)) * 0.1 if codec != "aac" else 0
    wave = 0.3 * np.sin(2 * np.pi * (200 + 20 * time) * time) + noise
    frame = av.AudioFrame.from_ndarray(
        np.stack([wave, wave[::-1] / 2]).astype(np.float32), format="fltp", layout="stereo"
    )
    frame.sample_rate = rate
    with av.open(str(path), "w") as output:
        audio = output.add_stream(codec, rate=rate)
        audio.layout = "stereo"
        resampler = av.AudioResampler(format=audio.codec_context.format.name, layout="stereo", rate=rate)
        fifo = av.AudioFifo()
        for piece in resampler.resample(frame):
            fifo.write(piece)
        while piece := fifo.read(audio.codec_context.frame_size or 1024, partial=True):
            output.mux(audio.encode(piece))
        output.mux(audio.encode(None))


def choose_parts(available):
    return [(0, 16_000), (100, 300), (0, 0), (80_001, 96_001), (160_000, 176_123), (available - 7000, available)]


@pytest.mark.parametrize("name", LONG)
def test_parts_of_a_long_track_are_those_of_decoding_everything(tmp_path, monkeypatch, name):
    write_sound(tmp_path / name, *LONG[name], seconds=15)
    whole = np.concatenate(list(sound._all_sound(str(tmp_path / name))))
    monkeypatch.setattr(sound, "_LONG_SOUND", 5 * 16_000)
    monkeypatch.setattr(sound, "_send_chosen", lambda *_: pytest.fail("decoded everything"))
    read = read_parts(tmp_path / name, choose_parts)
    assert read.available == len(whole)
    for (start, stop), part in zip(choose_parts(len(whole)), read.parts, strict=True):
        np.testing.assert_array_equal(part, whole[start:stop])


@pytest.mark.parametrize("name", ["aac.m4a", "aac.mkv", "flac.mkv", "opus.webm", "opus.ogg"])
def test_parts_of_other_long_tracks_are_close(tmp_path, monkeypatch, name):
    codec = {"opus": "libopus"}.get(name.split(".")[0], name.split(".")[0])
    write_sound(tmp_path / name, codec, 48_000, seconds=15)
    whole = np.concatenate(list(sound._all_sound(str(tmp_path / name))))
    monkeypatch.setattr(sound, "_LONG_SOUND", 5 * 16_000)
    monkeypatch.setattr(sound, "_send_chosen", lambda *_: pytest.fail("decoded everything"))
    read = read_parts(tmp_path / name, choose_parts)
    assert read.available == pytest.approx(len(whole), abs=50)
    for (start, stop), part in zip(choose_parts(len(whole))[:-1], read.parts[:-1], strict=True):
        shifts = range(max(-48, -start), 49)  # 3 ms
        errors = [np.abs(part.astype(int) - whole[start + s : stop + s]).max(initial=0) for s in shifts]
        assert min(errors) < 1500  # of 32768: what AAC loses itself, and a third of a sample


@pytest.mark.parametrize("name", ["gaps.mka", "flac.ogg", "short.flac"])
def test_a_long_track_without_steady_timestamps_is_decoded_in_order(tmp_path, monkeypatch, name):
    path = tmp_path / name
    if name == "gaps.mka":
        write_sound(tmp_path / "whole.mka", "flac", 44100, 15)
        with av.open(str(tmp_path / "whole.mka")) as source, av.open(str(path), "w") as output:
            stream = output.add_stream_from_template(source.streams.audio[0])
            for index, packet in enumerate(source.demux(audio=0)):
                if packet.dts is not None:
                    packet.pts += 1000 * (index > 50)
                    packet.dts, packet.stream = packet.pts, stream
                    output.mux(packet)
    else:
        write_sound(path, "flac", 44100, 15 if name == "flac.ogg" else 3)
    whole = np.concatenate(list(sound._all_sound(str(path))))
    monkeypatch.setattr(sound, "_LONG_SOUND", 5 * 16_000)
    read = read_parts(path, choose_parts)
    if name == "short.flac":
        assert read.available is None
        np.testing.assert_array_equal(np.concatenate(read.parts), whole)
    else:
        assert read.available == len(whole)
        for (start, stop), part in zip(choose_parts(len(whole)), read.parts, strict=True):
            np.testing.assert_array_equal(part, whole[start:stop])


def test_hours_of_silence_are_not_decoded(tmp_path, monkeypatch):
    path = tmp_path / "silence.flac"
    with av.open(str(path), "w") as output:
        audio = output.add_stream("flac", rate=8000)
        audio.layout = "mono"
        for index in range(1500):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 4608), np.int16), format="s16", layout="mono")
            frame.sample_rate, frame.pts = 8000, 4608 * index
            output.mux(audio.encode(frame))
        output.mux(audio.encode(None))
    decoded = []
    mono = sound.mono
    monkeypatch.setattr(sound, "mono", lambda frames: mono(decoded.append(frame.samples) or frame for frame in frames))
    read = read_parts(path, lambda available: [(available // 2, available // 2 + 160_000)])
    assert read.available == 1500 * 4608 * 2 and len(read.parts[0]) == 160_000
    assert 10 * 8000 < sum(decoded) < 20 * 8000  # of 864 s
