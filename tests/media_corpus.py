"""Files that a folder of videos may hold, from every kind of good one to the hostile, each with the answer due to it.

All of them are made here, by PyAV or byte by byte, in seconds. `CORPUS` is the table: a file's name is its key, its
`Case` says which modalities must be read, and a part of each sentence about what cannot be. `write_corpus` makes them.
"""

import io
import math
import os
import pickle
import re
import stat
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from pathlib import Path

import av
import numpy as np

NOISE = np.random.default_rng(0).bytes(400_000)
MINF = "moov/trak/mdia/minf"
STBL = f"{MINF}/stbl"


# ------------------------------------------------------------------------------------------------ writing media


def _options(text: str) -> dict[str, str]:
    return dict(item.split("=", 1) for item in text.split())


def picture(index: int, width: int = 64, height: int = 64) -> np.ndarray:
    """A picture that moves from one index to the next."""
    y, x = np.ogrid[:height, :width]
    colours = x[..., None] * [3, 1, 1] + y[..., None] * [1, 2, 1] + np.multiply(index, [5, 3, 7])
    return colours.astype(np.uint8)


def _audio_frames(context, rate: int, layout: str, seconds: float, loudness: float | tuple) -> Iterable[av.AudioFrame]:
    """A tone; its loudness may be that of each channel."""
    tone = np.sin(2 * np.pi * 440 * np.arange(round(rate * seconds)) / rate)
    if not tone.size:
        return
    sound = np.empty((context.layout.nb_channels, len(tone)), np.float32)
    sound[:] = np.reshape(loudness, (-1, 1)) * tone
    whole = av.AudioFrame.from_ndarray(sound, format="fltp", layout=layout)
    whole.sample_rate = rate
    resampler = av.AudioResampler(context.format.name, layout, rate, frame_size=context.frame_size or 1024)
    position = 0
    for frame in [*resampler.resample(whole), *resampler.resample(None)]:
        frame.pts, frame.time_base = position, Fraction(1, rate)
        position += frame.samples
        yield frame


def _subtitle_packets(stream, lines: Iterable[str]) -> Iterable[av.Packet]:
    for index, line in enumerate(lines):
        event = f"{index},0,Default,,0,0,0,,{line}".encode()
        packet = stream.codec_context.encode_subtitle(
            av.subtitles.subtitle.SubtitleSet.create(event, 0, 900, pts=index * 1000)
        )
        packet.stream, packet.time_base, packet.duration = stream, Fraction(1, 1000), 900
        packet.pts = packet.dts = index * 1000
        yield packet


@contextmanager
def _ordinary_priority() -> Iterator[None]:
    """SVT-AV1 turns the thread that encodes into a real-time one where it may, as root, and so all that is started
    from it: what waits in a loop would leave the processor to nobody."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


@_ordinary_priority()
def write_film(
    path: Path,
    kind: str | None,
    video="",
    audio="",
    subtitle="",
    *,
    frames=20,
    size=(64, 64),
    pictures=None,
    rotation=None,
    rate=10,
    pixels="",
    encoder="",
    times=None,
    sampling_rate=16_000,
    layout="mono",
    seconds=2.0,
    loudness=0.5,
    sound="",
    muxer="",
    metadata=(),
    tags=(),
    lines=("hello about music",),
    chapters=(),
) -> None:
    """Write a file, see [`media`]; the end of its name says the container, unless `kind` does."""
    pictures = pictures or partial(picture, width=size[0], height=size[1])
    with av.open(str(path), "w", format=kind, options=_options(muxer)) as output:
        output.metadata.update(metadata)
        output.set_chapters(chapters)
        films, sounds = [], []
        for name in filter(None, video.split("+")):
            stream = output.add_stream(name, rate=rate, options=_options(encoder))
            stream.width, stream.height = size
            stream.pix_fmt = pixels or (stream.codec.video_formats or [av.VideoFormat("yuv420p")])[0].name
            stream.codec_context.thread_count = 1
            if times is not None:
                stream.codec_context.time_base = Fraction(1, 1000)
            if rotation is not None:
                stream.set_display_rotation(rotation)
            films.append(stream)
        for name in filter(None, audio.split("+")):
            stream = output.add_stream(name, rate=sampling_rate, options=_options(sound))
            stream.layout = layout
            sounds.append(stream)
        if subtitle:
            words = output.add_stream(subtitle)
            words.codec_context.subtitle_header = (
                b"[Script Info]\n[V4+ Styles]\nFormat: Name, Fontname\nStyle: Default,Arial\n[Events]\n"
                b"Format: Layer, Text\n"
            )
            words.codec_context.time_base = Fraction(1, 1000)
        for stream in (*films, *sounds):
            stream.metadata.update(tags)
        output.start_encoding()
        for stream in films:
            for index in range(frames):
                frame = av.VideoFrame.from_ndarray(pictures(index), format="rgb24")
                frame.pts = index if times is None else times[index]
                frame.time_base = Fraction(1, rate if times is None else 1000)
                output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
        for stream in sounds:
            for frame in _audio_frames(stream.codec_context, sampling_rate, layout, seconds, loudness):
                output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
        if subtitle:
            for packet in _subtitle_packets(words, lines):
                output.mux(packet)


@cache
def media(*arguments, **settings) -> bytes:
    """
    One file of a container.

    Args:
        kind (`str`): the container, as FFmpeg calls it.
        video (`str`), audio (`str`), subtitle (`str`): encoders, several joined by `+`.
        times (`tuple[int, ...]`, *optional*): of the frames, in milliseconds; `rate` says how many a second otherwise.
        pictures (`Callable`, *optional*): a picture of RGB for a number; others move.
        loudness (`float` or `tuple`): of the tone, or of each channel.
        encoder (`str`), sound (`str`), muxer (`str`): options, as `g=5 bf=2`.
        metadata (`tuple`), tags (`tuple`): pairs, of the file and of each stream.
    """
    with tempfile.TemporaryDirectory() as folder:  # some muxers open their file a second time
        path = Path(folder, "file")
        write_film(path, *arguments, **settings)
        return path.read_bytes()


def remux(data: bytes, kind: str, edit: Callable[[list], list], muxer: str = "") -> bytes:
    """The packets of a file in another one, after `edit` has changed their list."""
    target = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(target, "w", format=kind, options=_options(muxer)) as output:
        streams = {stream.index: output.add_stream_from_template(stream) for stream in source.streams}
        packets = [packet for packet in source.demux() if packet.dts is not None]
        for packet in edit(packets):
            packet.stream = streams[packet.stream_index]
            output.mux(packet)
    return target.getvalue()


# ------------------------------------------------------------------------------------------------ damaging media


def cut(data: bytes, share: float) -> bytes:
    """The first part of a file."""
    return data[: int(len(data) * share)]


def noisy(data: bytes, start: float, length: int) -> bytes:
    """A file with noise in place of `length` bytes from a share `start` on."""
    first = int(len(data) * start)
    return data[:first] + NOISE[: min(length, len(data) - first)] + data[first + length :]


def flipped(data: bytes, every: int) -> bytes:
    """A file in which each `every`-th byte is inverted."""
    changed = np.frombuffer(data, np.uint8).copy()
    changed[::every] ^= 0xFF
    return changed.tobytes()


def swapped(data: bytes, old: bytes, new: bytes, count: int = 1) -> bytes:
    """A file with some bytes in place of others, which must be there."""
    assert old in data, (old, "is not in the file to change")
    return data.replace(old, new, count)


def packets_damaged(data: bytes, kind: str) -> bytes:
    """A file in which every packet of one kind of stream holds noise, at the same places."""
    changed, place = bytearray(data), 0
    with av.open(io.BytesIO(data)) as source:
        stream = next(stream for stream in source.streams if stream.type == kind)
        contents = [bytes(packet) for packet in source.demux(stream) if packet.size]
    for content in contents:
        place = data.index(content, place)
        changed[place : place + len(content)] = NOISE[: len(content)]
    return bytes(changed)


def _find_box(data: bytes, path: str) -> tuple[int, int]:
    """Start and end of a box by the way to it: "moov/trak/mdia"; "trak#1" is the second of its name."""
    start, stop = 0, len(data)
    for step in path.split("/"):
        name, _, number = step.partition("#")
        left = int(number or 0)
        while True:
            assert start + 8 <= stop, f"no box {path}"
            size = int.from_bytes(data[start : start + 4])
            if data[start + 4 : start + 8] == name.encode():
                if not left:
                    break
                left -= 1
            start += size
        start, stop = start + 8, start + size
    return start - 8, stop


def box(name: bytes, *content: bytes) -> bytes:
    """A box of an mp4 file."""
    body = b"".join(content)
    return struct.pack(">I", len(body) + 8) + name + body


def set_box(data: bytes, path: str, offset: int, value: bytes) -> bytes:
    """Write bytes at an offset from the start of a box, which keeps its size."""
    start, stop = _find_box(data, path)
    assert start + offset + len(value) <= stop
    return data[: start + offset] + value + data[start + offset + len(value) :]


def ebml(identifier: int, *content: bytes | int | str, size: int | None = None) -> bytes:
    """An element of a Matroska file; `size` is what it claims to hold."""
    body = b"".join(
        item if isinstance(item, bytes) else item.encode() if isinstance(item, str) else item.to_bytes(8)
        for item in content
    )
    name = identifier.to_bytes((identifier.bit_length() + 7) // 8)
    return name + (0x01 << 56 | (len(body) if size is None else size)).to_bytes(8) + body


def matroska(*content: bytes, codec: str = "V_MJPEG", track: bytes = b"", info: bytes = b"", size=(64, 64)) -> bytes:
    """A Matroska file with one track of pictures and the given blocks, 100 ms apart."""
    header = ebml(0x1A45DFA3, ebml(0x4282, "matroska"), ebml(0x4287, 4), ebml(0x4285, 2))
    video = ebml(0xE0, ebml(0xB0, size[0]), ebml(0xBA, size[1]))
    entry = ebml(0xAE, ebml(0xD7, 1), ebml(0x73C5, 1), ebml(0x83, 1), ebml(0x86, codec), video, track)
    blocks = (ebml(0xA3, b"\x81" + struct.pack(">hB", 100 * n, 0x80) + data) for n, data in enumerate(content))
    cluster = ebml(0x1F43B675, ebml(0xE7, 0), *blocks)
    return header + ebml(
        0x18538067, ebml(0x1549A966, ebml(0x2AD7B1, 1_000_000), info), ebml(0x1654AE6B, entry), cluster
    )


def wav(data: bytes, *, code=1, channels=1, rate=16_000, bits=16, align=None, claim=None) -> bytes:
    """A WAV file whose header has the values it is given, whatever follows."""
    align = channels * bits // 8 if align is None else align
    form = struct.pack("<HHIIHH", code, channels, rate, rate * align % 2**32, align, bits)
    size = len(data) if claim is None else claim
    return (
        b"RIFF" + struct.pack("<I", min(size + 36, 2**32 - 1)) + b"WAVEfmt " + struct.pack("<I", 16) + form
        + b"data" + struct.pack("<I", size) + data
    )  # fmt: skip


def tone(samples: int, rate: int = 16_000) -> bytes:
    """Samples of 16 bits."""
    return (8000 * np.sin(2 * np.pi * 440 * np.arange(samples) / rate)).astype("<i2").tobytes()


def gif(width: int, height: int, frames: int = 1) -> bytes:
    """A GIF whose canvas is as large as it says and whose pictures are one pixel."""
    pixel = b"\x21\xf9\x04\x00\x0a\x00\x00\x00,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00"
    return (
        b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\x00\x00\x00\x00\x00\xff\xff\xff" + pixel * frames + b";"
    )


def png(width: int, height: int) -> bytes:
    """A black PNG of one bit per pixel: what a large one compresses to is little."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(1 + (width + 7) // 8) * height, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def jpeg(width: int, height: int) -> bytes:
    """A gray JPEG whose header says any size and whose data is that of a small one."""
    data = media("mjpeg", "mjpeg", frames=1, size=(64, 64))
    start = data.index(b"\xff\xc0")
    return data[: start + 5] + struct.pack(">HH", height, width) + data[start + 9 :]


def shifted(packets: list, seconds: float) -> list:
    for packet in packets:
        shift = round(seconds / packet.time_base)
        packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
    return packets


def _referring() -> bytes:
    """An index whose samples are in another file."""
    data, entry = media("mov", "mjpeg"), box(b"url ", bytes(4), LURE.encode(), b"\x00")
    start = data.index(b"moov") - 4
    index = data[start:].replace(box(b"url ", b"\x00\x00\x00\x01"), entry)
    for around in ("moov", "moov/trak", "moov/trak/mdia", MINF, f"{MINF}/dinf", f"{MINF}/dinf/dref"):
        first, stop = _find_box(index, around)
        index = set_box(index, around, 0, struct.pack(">I", stop - first + len(entry) - 12))
    return box(b"ftyp", b"qt  ", bytes(4), b"qt  ") + box(b"free", bytes(start - 28)) + index


def _bomb() -> bytes:
    """An index that is 100 MB when unpacked."""
    packed = zlib.compress(bytes(100_000_000), 9)
    index = box(b"cmov", box(b"dcom", b"zlib"), box(b"cmvd", struct.pack(">I", 100_000_000), packed))
    return box(b"ftyp", b"qt  ", bytes(4)) + box(b"moov", index)


def _pngs(size: int, *pictures: bytes) -> bytes:
    """A Matroska file of PNG pictures whose header says a size."""
    header = struct.pack("<IiiHH4sIiiII", 40, size, size, 1, 24, b"MPNG", 0, 0, 0, 0, 0)
    return matroska(*pictures, codec="V_MS/VFW/FOURCC", track=ebml(0x63A2, header))


@cache
def _silent_mp3() -> bytes:
    """One frame of 72 ms at 8 kHz and 8 kbit/s."""
    data = media("mp3", audio="libmp3lame", sampling_rate=8000, sound="b=8000", muxer="write_xing=0 id3v2_version=0")
    size = data.index(data[:3], 4)
    return data[:4] + bytes(size - 4)


def _black(index: int) -> np.ndarray:
    return np.zeros((8192, 8192, 3), np.uint8)


def _retagged(text: str) -> bytes:
    """An mkv whose streams say another duration, in as many characters."""
    return re.sub(rb"\d\d:\d\d:\d\d\.\d{9}", text.encode(), MKV())


# ------------------------------------------------------------------------------------------------ the table

V, A, VA, VS, VAS = (
    ("video",),
    ("audio",),
    ("video", "audio"),
    ("video", "subtitle"),
    ("video", "audio", "subtitle"),
)
NOTHING = ()
SILENT = ()  # digital silence is no sound

NO_MEDIA = "not a readable video or audio file"
NEITHER = "neither video nor audio"
UNREADABLE = f"{NO_MEDIA}|{NEITHER}"
SHORT = "promises"
PARTLY = "could (not )?be read"
BROKEN = f"decoding stopped|promises|reading failed|is damaged|none decodes|{PARTLY}"
PIXELS, DURATION, MEMORY, TIME = map("the limit is {}=".format, ("pixels", "duration", "memory", "time"))
IRREGULAR = "regular file"


@dataclass(frozen=True)
class Case:
    """
    A file and what reading it must give.

    Args:
        kind (`str`): why it is here.
        make (`Callable`): writes it, and what belongs to it, to a path.
        reads (`tuple[str, ...]`): the modalities that are there afterwards.
        says (`tuple[str, ...]`): a regular expression for each problem that is reported; without one nothing is wrong.
        perhaps (`tuple[str, ...]`): modalities that may be there too, where damage depends on what an encoder wrote.
            If one of them is not, a problem is reported; if they all are, none need be.
        is_listed (`bool`): whether indexing a folder meets it as a file of this name.
    """

    kind: str
    make: Callable[[Path], None]
    reads: tuple[str, ...]
    says: tuple[str, ...] = ()
    perhaps: tuple[str, ...] = ()
    is_listed: bool = True


CORPUS: dict[str, Case] = {}


def _add(kind: str) -> Callable:
    """Return a function that adds files of one kind, of which reading must give the same, to the table: their contents
    by name, and what is written to files beside them, by suffix."""

    def add(files: dict, reads=NOTHING, *says: str, perhaps=NOTHING, beside: dict | None = None) -> None:
        for name, content in files.items():
            write = partial(_write, content=content, beside=beside or {})
            _add_path(kind, name, write, reads, *says, perhaps=perhaps)

    return add


def _write(path: Path, content: bytes | Callable[[], bytes], beside: dict) -> None:
    path.write_bytes(content() if callable(content) else content)
    for suffix, text in beside.items():
        other = path.with_suffix(suffix)
        text(other) if callable(text) else other.write_bytes(text)


def _add_path(
    kind: str, name: str, make: Callable[[Path], None], reads: tuple[str, ...], *says: str, **options
) -> None:
    assert name not in CORPUS, name
    CORPUS[name] = Case(kind, make, reads, says, **options)


def _films(table: str) -> dict[str, Callable[[], bytes]]:
    """Files by name, from lines of a name, a container, encoders of pictures and sound or "-", and settings."""
    films = {}
    for line in table.strip().splitlines():
        name, kind, video, audio, *settings = line.split()
        options = {}
        for key, value in _options(" ".join(settings)).items():
            options[key] = int(value) if value.isdigit() else value
        films[name] = partial(media, kind, video.strip("-"), audio.strip("-"), **options)
    return films


MP4 = partial(media, "mp4", "libx264", "aac")
FAST = partial(MP4, encoder="g=5 bf=2", muxer="movflags=faststart")
MKV = partial(media, "matroska", "libx264", "aac", encoder="g=5 bf=2", seconds=3.0, frames=30)
AVI = partial(media, "avi", "mpeg4", "libmp3lame")
TS = partial(media, "mpegts", "libx264", "aac", encoder="g=5")
WEBM = partial(media, "webm", "libvpx-vp9", "libopus", sampling_rate=48_000, seconds=3.0, frames=30)
FLAC = partial(media, "flac", audio="flac")
MP3 = partial(media, "mp3", audio="libmp3lame")
WAV = partial(media, "wav", audio="pcm_s16le")
CUE = b"1\n00:00:00,000 --> 00:00:01,000\nhello about music\n"

# Whole files of every container and codec that the bundled FFmpeg writes and the reader allows: all of them are read.
good = _add("whole: every container and codec, read in full")
good(
    _films("""
        h264_aac.mp4              mp4       libx264     aac
        h264_aac_index_first.mp4  mp4       libx264     aac        muxer=movflags=faststart
        h264_aac_fragments.mp4    mp4       libx264     aac        muxer=movflags=frag_keyframe+empty_moov
        hevc_ac3.mp4              mp4       libx265     ac3        sampling_rate=48000
        av1_opus.mp4              mp4       libsvtav1   libopus    sampling_rate=48000
        prores_pcm.mov            mov       prores_ks   pcm_s16le
        h264_vorbis.mkv           matroska  libx264     vorbis     layout=stereo sound=strict=-2
        ffv1_flac.mkv             matroska  ffv1        flac
        live.mkv                  matroska  libx264     aac        muxer=live=1
        vp8_vorbis.webm           webm      libvpx      vorbis     layout=stereo sound=strict=-2
        vp9_opus.webm             webm      libvpx-vp9  libopus    sampling_rate=48000
        mpeg4_mp3.avi             avi       mpeg4       libmp3lame
        huffyuv_pcm.avi           avi       huffyuv     pcm_s16le
        raw_yuv.avi               avi       rawvideo    pcm_u8
        flv1_mp3.flv              flv       flv         libmp3lame sampling_rate=22050
        h264_aac.flv              flv       libx264     aac
        mpeg2_mp2.ts              mpegts    mpeg2video  mp2        rate=25
        h264_aac.ts               mpegts    libx264     aac
        mpeg2_ac3.mpg             vob       mpeg2video  ac3        rate=25 sampling_rate=48000
        wmv2_wma.wmv              asf       wmv2        wmav2      sound=b=48000 sampling_rate=44100
        mpeg2_pcm.mxf             mxf       mpeg2video  pcm_s16le  rate=25 sampling_rate=48000
        mpeg4_pcm.nut             nut       mpeg4       pcm_s16le
        recording.wtv             wtv       mpeg2video  mp2        rate=25 sampling_rate=48000
    """),
    VA,
)
CIF = (176, 144)
good(
    {
        "h263_amr.3gp": partial(media, "3gp", "h263", "libopencore_amrnb", size=CIF, sampling_rate=8000),
        "rv10_ac3.rm": partial(media, "rm", "rv10", "ac3", size=CIF, sampling_rate=48_000),
        "camera.dv": lambda: media(
            "dv", "dvvideo", "pcm_s16le", rate=25, frames=5, size=(720, 576), pixels="yuv420p", sampling_rate=48_000,
            layout="stereo",
        ),
    },
    VA,
)  # fmt: skip
good(
    _films("""
        png.mov        mov           png             -
        raw_rgb.mov    mov           rawvideo        - pixels=rgb24
        vp8.ogv        ogv           libvpx          -
        raw.y4m        yuv4mpegpipe  wrapped_avframe -
        animation.gif  gif           gif             -
        av1.obu        obu           libsvtav1       -
        stream.h264    h264          libx264         -
    """),
    V,
)
good(
    _films("""
        aac.m4a           ipod  -  aac
        alac.m4a          ipod  -  alac
        vorbis.ogg        ogg   -  vorbis     layout=stereo sound=strict=-2
        opus.ogg          ogg   -  libopus    sampling_rate=48000
        pcm_s16le.wav     wav   -  pcm_s16le
        pcm_s24le.wav     wav   -  pcm_s24le
        pcm_f32le.wav     wav   -  pcm_f32le
        pcm_u8.wav        wav   -  pcm_u8
        pcm_mulaw.wav     wav   -  pcm_mulaw
        adpcm_ms.wav      wav   -  adpcm_ms
        mp3.mp3           mp3   -  libmp3lame
        flac.flac         flac  -  flac
        aac.aac           adts  -  aac
        ac3.ac3           ac3   -  ac3        sampling_rate=48000
        pcm.aiff          aiff  -  pcm_s16be
        alac.caf          caf   -  alac
        wavpack.wv        wv    -  wavpack
        speech.amr        amr   -  libopencore_amrnb sampling_rate=8000
    """),
    A,
)

# What cameras, phones and editors write that is unusual and right.
unusual = _add("unusual: right, but not what a plain recorder writes")
unusual(
    {
        "one_frame.mp4": partial(MP4, frames=1),
        "six_channels.mp4": partial(MP4, layout="5.1", sampling_rate=48_000),
        "two_recordings.ts": lambda: TS() * 2,
        "negative_times.mp4": lambda: remux(MP4(), "mp4", partial(shifted, seconds=-1), "avoid_negative_ts=disabled"),
        "late_times.mkv": lambda: remux(MKV(), "matroska", partial(shifted, seconds=90_000)),
    },
    VA,
)
unusual(
    _films("""
        ten_bits.mp4        mp4       libx265     -  pixels=yuv420p10le encoder=x265-params=colorprim=bt2020
        gray.mp4            mp4       libx264     -  pixels=gray
        alpha.mov           mov       png         -  pixels=rgba
        palette.avi         avi       rawvideo    -  pixels=rgb8
        interlaced.mpg      mpeg      mpeg2video  -  rate=25 encoder=flags=+ildct+ilme
        no_times.avi        avi       libx264     -  encoder=bf=3
        eight_pictures.mkv  matroska  mpeg4+mpeg4+mpeg4+mpeg4+mpeg4+mpeg4+mpeg4+mpeg4  -
    """),
    V,
)
PICTURES = partial(media, "matroska", "libx264")
unusual(
    {
        "odd_size.mp4": partial(media, "mp4", "libx264", size=(63, 37), pixels="yuv444p"),
    },
    V,
)
unusual(
    {
        "bats.flac": partial(FLAC, sampling_rate=192_000, seconds=0.5),
        "chained.ogg": lambda: media("ogg", audio="flac") * 2,
        "streamed.wav": wav(tone(16_000), claim=2**32 - 1),  # what a pipe leaves in the header
        "window_of_samples.wav": wav(tone(400)),
    },
    A,
)
unusual({"text_track.mkv": partial(PICTURES, "aac", "subrip")}, VAS)
unusual({"text_track.mp4": partial(media, "mp4", "libx264", "", "mov_text")}, VS)
unusual({"sidecar.mp4": MP4}, VAS, beside={".srt": CUE})


# A stream may be there without a thing in it: absent, nothing is broken.
hollow = _add("hollow: streams with nothing in them, or too little, are absent")
HOLLOW = partial(media, "mp4", "mpeg4", "aac", frames=0)
hollow({"no_samples.wav": wav(b"")})
hollow({"just_too_short.wav": wav(tone(399))}, NOTHING, "audio of 399 samples")
hollow({"no_frames.mp4": HOLLOW}, A)
hollow(
    {
        "nothing_at_all.mp4": partial(HOLLOW, seconds=0.0),
        "text_alone.mkv": partial(media, "matroska", subtitle="subrip"),
    },
    NOTHING,
    NEITHER,
)
hollow({"wordless_sidecar.mp4": MP4}, VA, beside={".srt": b""})

# What is cut off must be reported wherever the container says how much there should be; what came before it is read.
truncated = _add("truncated: a copy or a download that broke off")
GONE = (NOTHING, UNREADABLE)
HALF = (VA, f"video stream.*{PARTLY}.*{SHORT}", f"audio stream.*{PARTLY}.*{SHORT}")
CUT = (NOTHING, f"{UNREADABLE}|{BROKEN}")  # how much can be read depends on where in a packet the cut falls
for name, source, *answers in (
    ("index_last.mp4", MP4, GONE, GONE),
    ("index_first.mp4", FAST, HALF, CUT),
    ("fragments.mp4", partial(MP4, encoder="g=5", muxer="movflags=frag_keyframe+empty_moov"), CUT, CUT),
    ("cluster.mkv", MKV, HALF, HALF),
    ("cluster.webm", WEBM, HALF, HALF),
    ("riff.avi", AVI, CUT, HALF),
    ("packets.ts", TS, CUT, CUT),
    # these say nowhere how long they are: what came is all there is
    ("pages.ogg", partial(media, "ogg", audio="libopus", sampling_rate=48_000, seconds=6.0), (A,), (A,)),
    ("data.wav", WAV, (A,), (A,)),
    ("frames.mp3", MP3, (A,), (A,)),
    ("blocks.gif", partial(media, "gif", "gif"), (V,), (V,)),
):
    for share, answer in zip((50, 90), answers, strict=True):
        content = partial(lambda source, share: cut(source(), share / 100), source, share)
        truncated({f"{share}_percent_{name}": content}, *answer, perhaps=VA if answer == CUT else NOTHING)
truncated(
    {
        "only_header.mp4": lambda: MP4()[:40],
        "only_header.wav": lambda: WAV()[:30],
    },
    *CUT,
)


# Anything can be called .mp4.
foreign = _add("foreign: no media at all, by a name of media")
foreign(
    {
        "empty.mp4": b"",
        "noise.mp4": NOISE[:50_000],
        "text.mp4": b"Dear diary,\nthis is no video at all.\n" * 100,
        "pickle.mp4": pickle.dumps({"weights": list(range(1000))}),
        "captions.mp4": CUE * 20,
        "picture.png.mp4": lambda: png(64, 64),
        "unfinished.mp4": box(b"ftyp", b"isom", bytes(4), b"isom"),
    },
    NOTHING,
    NO_MEDIA,
)


# FFmpeg can render these, or follow what they name: the reader must not.
LURE = "h264_aac.mp4"  # a good file beside them
follows = _add("playlist: text that makes FFmpeg open other files and hosts")
follows(
    {
        "hls.mp4": f"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2.0,\n{LURE}\n#EXT-X-ENDLIST\n".encode(),
        "hls_file.ts": b"#EXTM3U\n#EXTINF:2.0,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
        "concat.mp4": f"ffconcat version 1.0\nfile '{LURE}'\n".encode(),
        "dash.mp4": f'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period>'
        f'<AdaptationSet mimeType="video/mp4"><Representation id="1" bandwidth="1"><BaseURL>{LURE}</BaseURL>'
        "</Representation></AdaptationSet></Period></MPD>".encode(),
        "session.mp4": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"
        b"a=rtpmap:96 H264/90000\n",
    },
    NOTHING,
    NO_MEDIA,
)
ADDRESS = box(b"rdrf", bytes(4), b"url ", bytes([0, 0, 0, len(LURE) + 1]), LURE.encode(), b"\x00")
follows({"redirect.mov": box(b"moov", box(b"rmra", box(b"rmda", ADDRESS)))}, NOTHING, UNREADABLE)
follows({"reference_by_url.mov": _referring}, NOTHING, BROKEN)
follows(
    {
        "linked_segment.mkv": lambda: matroska(
            *[jpeg(64, 64)] * 5, info=ebml(0x3E83BB, LURE) + ebml(0x3EB923, NOISE[:16]) + ebml(0x73A4, NOISE[16:32])
        )
    },
    V,
)

# Bits flip on disks and in transfer: what decodes is kept, what does not is named.
rotten = _add("bit rot: bytes that flipped somewhere")
PICTURE, SOUND = "video stream", "audio stream"
rotten({"noise_in_the_picture.mp4": lambda: packets_damaged(MP4(), "video")}, A, PICTURE)
rotten({"noise_in_the_sound.mp4": lambda: packets_damaged(MP4(), "audio")}, V, SOUND)
rotten(
    {"noise_in_both.mp4": lambda: packets_damaged(packets_damaged(MP4(), "audio"), "video")}, NOTHING, PICTURE, SOUND
)
rotten(
    {"noise_in_the_middle.mp4": lambda: noisy(FAST(), 0.5, 6000)},
    VA,
    f"{PICTURE}.*{PARTLY}",
    f"{SOUND}.*{PARTLY}",
)
rotten({"noise_in_the_middle.mp3": lambda: noisy(MP3(), 0.5, 1000)}, A, f"{SOUND}.*{PARTLY}")
rotten({"flipped_everywhere.mp4": lambda: flipped(MP4(), 97)}, NOTHING, ".", perhaps=VA)
rotten({"lost_start.ts": lambda: TS()[10_000:]}, VA)


def _without_keyframe(encoder: str) -> bytes:
    return remux(PICTURES(encoder=encoder), "matroska", lambda packets: packets[3:])


rotten(
    {
        "no_keyframe_first.mkv": partial(_without_keyframe, "g=10 bf=0"),
        "size_changes.ts": lambda: (
            media("mpegts", "mpeg2video", rate=25) + media("mpegts", "mpeg2video", rate=25, size=(96, 96))
        ),
    },
    V,
)
rotten({"no_keyframe_at_all.mkv": partial(_without_keyframe, "g=100 bf=0 sc_threshold=0")}, NOTHING, PICTURE)

# Sizes, counts and offsets that somebody else wrote: none may cost memory, time or another file.
MOST, LAST = b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"


def _lying(path: str, offset: int, value: bytes, source: Callable[[], bytes] = FAST) -> Callable[[], bytes]:
    return lambda: set_box(source(), path, offset, value)


lies = _add("lies: boxes, tables and headers that claim what is not so")
for path, answer in (
    ("moov", (VA,)),
    ("moov/trak", (V,)),
    (f"{STBL}/stsz", (A, PICTURE)),
    (f"{STBL}/stsd", (A,)),  # nothing is left that tells of a picture
):
    step = path.split("/")[-1]
    lies({f"huge_size_of_{step}.mp4": _lying(path, 0, MOST, MP4)}, *answer)
    lies({f"zero_size_of_{step}.mp4": _lying(path, 0, bytes(4), MP4)}, *answer)
lies({"seven_size_of_trak.mp4": _lying("moov/trak", 0, b"\x00\x00\x00\x07", MP4)}, NOTHING, UNREADABLE)
lies({"box_inside_itself.mp4": lambda: set_box(MP4(), "moov/trak", 0, struct.pack(">I", len(MP4())))}, V)
for table in ("stsc", "stss", "ctts", "stsd"):
    lies({f"entries_of_{table}.mp4": _lying(f"{STBL}/{table}", 12, MOST)}, NOTHING, NO_MEDIA)
lies(
    {
        "no_index.mp4": lambda: MP4()[: MP4().index(b"moov") - 4],
        "entries_of_stsz.mp4": _lying(f"{STBL}/stsz", 16, MOST),
        "no_codec_settings.mp4": lambda: swapped(FAST(), b"avcC", b"free"),
    },
    NOTHING,
    NO_MEDIA,
)
lies({"entries_of_stts.mp4": _lying(f"{STBL}/stts", 12, MOST)}, NOTHING, f"{NO_MEDIA}|{MEMORY}")
lies(
    {"no_samples.mp4": lambda: box(b"ftyp", b"isom", bytes(4)) + MP4()[MP4().index(b"moov") - 4 :]},
    NOTHING,
    BROKEN,
    BROKEN,
)
lies(
    {
        "entries_of_stco.mp4": _lying(f"{STBL}/stco", 12, MOST),
        "size_of_the_picture.mp4": _lying(f"{STBL}/stsd", 16 + 32, MOST),
    },
    VA,
)
lies(
    {
        "samples_of_one_size.mp4": _lying(f"{STBL}/stsz", 12, b"\x00\x00\x00\x01" + MOST),
    },
    A,
    PICTURE,
)
lies({"duration_of_a_frame.mp4": _lying(f"{STBL}/stts", 20, LAST)}, A, DURATION)
lies({"samples_elsewhere.mp4": _lying(f"{STBL}/stco", 16, LAST)}, A, BROKEN)
lies({"edit_beyond_the_end.mp4": _lying("moov/trak/edts/elst", 20, LAST)}, A, ".")
lies({"unknown_codec.mp4": lambda: swapped(FAST(), b"avc1\x00", b"zzz9\x00")}, A, "no decoder|unknown")
lies({"compressed_index.mov": _bomb}, NOTHING, f"{UNREADABLE}|{MEMORY}")
lies({"unknown_codec.mkv": lambda: matroska(*[NOISE[:500]] * 3, codec="V_NOBODY/KNOWS")}, NOTHING, "no decoder")
lies({"no_index.avi": lambda: AVI()[: AVI().index(b"idx1")]}, *HALF)
lies({"samples_of.flac": lambda: FLAC()[:22] + MOST + FLAC()[26:]}, A, SHORT)
lies(
    {
        "4_gb.wav": wav(tone(16_000), claim=2**32 - 20),
        "slow.wav": wav(tone(1000), rate=1),  # a quarter of an hour
    },
    A,
)
lies({"no_channels.wav": wav(tone(16_000), channels=0, align=2)}, NOTHING, ".")


# Little on disk, much in memory or in time.
bombs = _add("bomb: small files that are large, or long, when they are decoded")
bombs(
    {
        "8192_by_8192.mp4": lambda: media(
            "mp4", "libx264", frames=1, size=(8192, 8192), encoder="preset=ultrafast", pictures=_black
        ),
        "8192_by_8192.mkv": lambda: _pngs(8192, *[png(8192, 8192)] * 8),
        "16000_by_16000.gif": gif(16_000, 16_000, 20),
    },
    NOTHING,
    PIXELS,
)
bombs({"16000_by_16000.mkv": lambda: matroska(*[jpeg(16_000, 16_000)] * 5)}, NOTHING, ".")
bombs({"grows.mkv": lambda: _pngs(64, png(64, 64), *[png(16_384, 16_384)] * 3)}, V, f"3 of 4 frames {PARTLY}")
bombs({"just_within.mkv": lambda: _pngs(64, *[png(5900, 5900)] * 8)}, V)
bombs({"ten_hours.mp3": lambda: _silent_mp3() * math.ceil(36_000 / 0.072)}, SILENT)


# Values, times and tags at the ends of their ranges.
extreme = _add("extreme: samples, times and tags that no recorder writes")
SAMPLES = np.where(np.arange(16_000) % 7, 0.25, np.nan).astype("<f4")
extreme({"not_a_number.wav": wav(SAMPLES.tobytes(), code=3, bits=32)}, A)
for name, duration in ("absurd", f"{'9' * 400}:00:00.0"), ("negative", "-1:00:00.0"), ("text", "two seconds"):
    extreme({f"duration_{name}.ogg": partial(media, "ogg", audio="flac", tags=(("DURATION", duration),))}, A)
STRANGE = b"\xff\xfe\xc3\x28\x80\xf8\xed\xa0"  # as long as "ABCDEFGH"
extreme(
    {
        "overflowing_times.mkv": lambda: remux(MKV(), "matroska", partial(shifted, seconds=2**43 / 1000)),
        "duration_absurd.mkv": lambda: _retagged("9" * 18),
        "duration_longer.mkv": lambda: _retagged("99:59:59.000000000"),
        "title_of_a_megabyte.mkv": partial(MKV, metadata=(("title", "x" * 1_000_000),)),
        "title_of_controls.mp4": partial(MP4, metadata=(("title", "\x1b]0;owned\x07\x1b[31m\r\n\t\x7f"),)),
        "title_not_utf8.mkv": lambda: swapped(MKV(metadata=(("title", "ABCDEFGH"),)), b"ABCDEFGH", STRANGE),
    },
    VA,
)


# Subtitles beside a clip and inside it; what is wrong with them costs the clip nothing else.
text = _add("subtitles: files beside a clip and tracks inside, right, wrong and hostile")
for answer, contents in {
    (VAS,): {
        "utf16.srt": CUE.decode().encode("utf-16"),
        "latin1.srt": CUE.replace(b"hello", b"caf\xe9"),
        "mark.srt": b"\xef\xbb\xbf" + CUE,
        "carriage_returns.srt": CUE.replace(b"\n", b"\r\n"),
        "controls.srt": CUE.replace(b"hello", b"\x1b[31mhello\x07"),
        "angle_brackets.srt": CUE.replace(b"hello", b"<b " * 300_000),
        "braces.srt": CUE.replace(b"hello", b"{\\" * 400_000),
        "entities.srt": CUE.replace(b"hello", b"&#1114111;&lt;&#0;&#99999999999999999999;&" * 20_000),
        "spaces.srt": CUE.replace(b"00:00:00", b" " * 1_000_000 + b"00:00:00"),
        "plain.vtt": b"WEBVTT\n\n00:00.000 --> 00:01.000\n<v Karin>hello\n",
    },
    (VA, "no cue"): {
        "prose.srt": b"Dear diary,\nno times here.\n",
        "zeros.srt": bytes(20_000),
        "numbers_of_millions.srt": CUE.replace(b"00:00:01", b"9" * 5000 + b":00:01"),
        "arrows.srt": b"--> " * 500_000,
        "of_passwords.srt": partial(os.symlink, "/etc/passwd"),
    },
    (VA,): {"styles.vtt": b"WEBVTT\n\nSTYLE\n::cue { color: red }\n\nNOTE " + b"x " * 100_000},
    (VA, "UTF-8"): {"binary.srt": NOISE[:20_000]},
    (VA, IRREGULAR): {"of_zero.srt": partial(os.symlink, "/dev/zero"), "fifo.srt": os.mkfifo},
    (VA, MEMORY): {
        "one_line_of_20_mb.srt": CUE + b"la " * 7_000_000,
        "million_cues.srt": lambda path: path.write_bytes(
            b"".join(b"%d\n00:00:00,000 --> 00:00:01,000\nla %d\n\n" % (n, n) for n in range(1_000_000))
        ),
    },
}.items():
    for name, content in contents.items():
        stem, suffix = name.split(".")
        text({f"{suffix}_{stem}.mp4": MP4}, *answer, beside={f".{suffix}": content})
TITLED = partial(PICTURES, "", "subrip", lines=("ABCDEFGH",))
text({"track_not_utf8.mkv": lambda: swapped(TITLED(), b"ABCDEFGH", STRANGE)}, V, "subtitle stream|subtitle track")
text({"track_of_drawings.mkv": partial(PICTURES, "", "ass", lines=("{\\p1}m 0 0 l 100 0 100 100{\\p0}",))}, V)

# Names that terminals, shells, protocols and encodings trip over; the content is good.
named = _add("names: good files with names that something trips over")
NAMES = (
    "-y.mp4",
    "a:b.mp4",
    "concat:a|b.mp4",
    "%s%n%d.mp4",
    "'quotes\".mp4",
    " spaces .mp4",
    "UPPER.MP4",
    "new\nline.mp4",
    "tab\tand\rreturn.mp4",
    "\x1b[31mred\x1b[0m.mp4",
    "\x1b]0;owned\x07.mp4",
    "rtl\u202egpj.mp4",
    "\u05e9\u05dc\u05d5\u05dd.mp4",
    "e\u0301 and \xe9.mp4",
    "zero\u200bwidth\ufeff.mp4",
    "x" * 251 + ".mp4",
    "\u00e9" * 125 + ".mp4",
    "*?[a-z]{b}.mp4",
    "back\\slash.mp4",
    "<b>&amp;.mp4",
)
named(dict.fromkeys(NAMES, MP4), VA)
named(dict.fromkeys(("broken \x1b[2J\nname.mp4", "x" * 251 + ".mkv"), b"no video"), NOTHING, NO_MEDIA)

# What is no regular file must not be opened: reading it may never end, or begin something.
special = partial(_add_path, "no regular file: reading it may never end")
special("pipe.mp4", os.mkfifo, NOTHING, IRREGULAR)
special("socket.mp4", lambda path: os.mknod(path, stat.S_IFSOCK | 0o600), NOTHING, IRREGULAR)
special("zero.mp4", partial(os.symlink, "/dev/zero"), NOTHING, IRREGULAR)
special("terminal.mp4", partial(os.symlink, "/dev/tty"), NOTHING, IRREGULAR)
special("nowhere.mp4", partial(os.symlink, "no such file.mp4"), NOTHING, "No such")
special(
    "link_to_itself.mp4", lambda path: path.symlink_to(path.name), NOTHING, "No such|Too many levels|symbolic links"
)
special("folder.mp4", os.mkdir, NOTHING, IRREGULAR, is_listed=False)
special("vanished.mp4", lambda path: None, NOTHING, "No such", is_listed=False)
special("link.mp4", partial(os.symlink, "h264_aac.mp4"), VA, is_listed=False)
special("second_name.mp4", lambda path: os.link(path.with_name("h264_aac.mp4"), path), VA)
special(
    "private.mp4",
    lambda path: (path.write_bytes(MP4()), path.chmod(0)),
    *((VA,) if os.geteuid() == 0 else (NOTHING, "ermission")),
)


def write_corpus(folder: Path) -> None:
    """Make every file of the table in a folder."""
    for name, case in CORPUS.items():
        case.make(folder / name)


__all__ = ["CORPUS", "Case", "write_corpus"]
