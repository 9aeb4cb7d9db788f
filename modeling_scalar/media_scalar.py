"""Reads frames, sound and subtitles from files with PyAV.

Frames are addressed by their place in presentation order, never by time or by an average frame rate, so every way of
reaching a frame gives the same picture, also for variable frame rates. A modality that a file does not have is `None`;
a stream that the file has and that cannot be decoded is a `MediaError`. The two are never confused.
"""

import html
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch

try:
    import av
except ImportError:
    av = None

SAMPLING_RATE = 16_000

# Without this list FFmpeg renders any text as video (tty), reads single pictures as clips, and follows references to
# other files and hosts (concat, hls, dash).
_DEMUXERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,asf,flv,f4v,mpeg,mpegts,mpegvideo,m4v,h264,hevc,av1,ivf,obu,ogg,gif,mxf,"
    "nut,rm,dv,wtv,yuv4mpegpipe,wav,w64,mp3,flac,aac,ac3,eac3,aiff,au,caf,amr,wv,ape,tta"
)
_TEXT_SUBTITLES = ("ass", "ssa", "subrip", "srt", "webvtt", "mov_text", "text")
_SIDECARS = (".srt", ".vtt", ".en.srt", ".en.vtt")


class MediaError(ValueError):
    """A file or one of its streams cannot be decoded. The message names the file and, where known, the stream."""


def frame_indices(
    num_available: int, num_frames: int, training: bool = False, generator: torch.Generator | None = None
) -> list[int]:
    """Choose `num_frames` of `num_available` items (SCALAR, implementation details: uniformly sampled frames).

    The list of indices is padded with its last entry up to `num_frames` and split into `num_frames` chunks as
    `numpy.array_split` does; each chunk gives element `(len + 1) // 2 - 1`, in training a random one.

    Args:
        num_available (`int`): at least 1.
        num_frames (`int`): at least 1.
        training (`bool`): draw from each chunk instead of taking its middle.
        generator (`torch.Generator`): required in training; the same state gives the same indices.
    Returns:
        `list[int]` of length `num_frames`, ascending.
    Raises:
        ValueError: a count below 1, or `training` without a generator.
    """
    if num_available < 1 or num_frames < 1:
        raise ValueError(
            f"`num_available` and `num_frames` must be at least 1, got {num_available!r} and {num_frames!r}."
        )
    if training and generator is None:
        raise ValueError("`training=True` draws at random: pass a seeded `generator=torch.Generator()`.")
    size, extra = divmod(max(num_available, num_frames), num_frames)
    chosen, start = [], 0
    for chunk in range(num_frames):
        length = size + (chunk < extra)
        # No draw where there is no choice: choosing again among frames already chosen then changes no later draw.
        draws = training and length > 1
        offset = int(torch.randint(length, (), generator=generator)) if draws else (length + 1) // 2 - 1
        chosen.append(min(start + offset, num_available - 1))
        start += length
    return chosen


def to_tensor(array: np.ndarray | torch.Tensor) -> torch.Tensor:
    """View an array as a tensor; copy it where torch cannot view it (read-only memory, negative strides)."""
    return array if isinstance(array, torch.Tensor) else torch.from_numpy(np.require(array, requirements=["C", "W"]))


@contextmanager
def _open(path: str | os.PathLike) -> Iterator["av.container.InputContainer"]:
    if av is None:
        raise ImportError("Reading media files needs PyAV: `pip install av`. Or pass decoded frames and waveforms.")
    if not os.path.exists(path):
        raise FileNotFoundError(f"No such media file: {os.fspath(path)!r}.")
    try:
        # "file:" keeps names such as "a:b.mp4" from being read as a protocol
        container = av.open(
            f"file:{os.fspath(path)}", options={"format_whitelist": _DEMUXERS}, metadata_errors="replace"
        )
    except PermissionError:
        raise
    except av.FFmpegError as error:
        raise MediaError(
            f"{os.fspath(path)}: not a readable video or audio file ({error.strerror}). Is it empty, truncated, or of "
            "another type?"
        ) from error
    with container:
        if not container.streams.video and not container.streams.audio:
            raise MediaError(f"{os.fspath(path)}: the {container.format.name} file holds neither video nor audio.")
        yield container


def _select(container, stream) -> None:
    """Make the demuxer skip the data of all other streams."""
    for other in container.streams:
        if other.index != stream.index:
            other.discard = av.stream.Discard.all


def _describe(path, stream) -> str:
    return f"{os.fspath(path)}: {stream.type} stream {stream.index} ({stream.codec_context.name})"


def _first_stream(path, container, kind: str):
    """The first real stream of a kind: cover art and thumbnails are attached pictures, not video."""
    for stream in getattr(container.streams, kind):
        if stream.disposition & (av.stream.Disposition.attached_pic | av.stream.Disposition.timed_thumbnails):
            continue
        if stream.codec_context is None:
            raise MediaError(f"{os.fspath(path)}: no decoder for {kind} stream {stream.index}.")
        _select(container, stream)
        return stream
    return None


def _check_complete(path, container, stream, num_packets: int, end: float) -> None:
    """Compare what the container promised with what came."""
    # the sample table of an mp4 counts what an edit list trims away; the index built from both is what is to come
    promised = len(stream.index_entries) if "mp4" in container.format.name else stream.frames
    if num_packets < promised:
        raise MediaError(
            f"{_describe(path, stream)}: the container promises {promised} packets, {num_packets} came. The file is "
            "truncated or damaged."
        )
    tag = re.fullmatch(r"(\d+):(\d+):(\d+\.\d+)", stream.metadata.get("DURATION", ""))  # Matroska
    if tag:
        duration = int(tag[1]) * 3600 + int(tag[2]) * 60 + float(tag[3])
        if end < duration - max(1.0, 0.02 * duration):
            raise MediaError(
                f"{_describe(path, stream)}: the container promises {duration:.2f} s, {end:.2f} s came. The file is "
                "truncated or damaged."
            )


@dataclass
class _PacketTable:
    """The packets of a video stream in decode order, read without decoding."""

    pts: list[int]
    dts: list[int | None]
    is_key: list[bool]
    shown: list[int]  # decode positions in presentation order

    def __post_init__(self):
        self.position = {pts: position for position, pts in enumerate(self.pts)}

    def key_position(self, target: int) -> int:
        """The last keyframe from which `target` decodes: not one whose leading picture `target` is (open GOP)."""
        return next(
            position
            for position in range(target, -1, -1)
            if self.is_key[position] and self.pts[position] <= self.pts[target]
        )


def _packet_table(path, container, stream) -> tuple[int, _PacketTable | None]:
    """Count the packets and list them; the list is `None` where timestamps cannot name the frames."""
    pts, dts, is_key, is_discard, end = [], [], [], [], 0.0
    try:
        for packet in container.demux(stream):
            if packet.size == 0 and packet.dts is None:  # PyAV's flush packet
                continue
            pts.append(packet.pts)
            dts.append(packet.dts)
            is_key.append(packet.is_keyframe)
            is_discard.append(packet.is_discard)
            if packet.pts is not None:
                end = max(end, float((packet.pts + (packet.duration or 0)) * stream.time_base))
    except av.FFmpegError as error:
        raise MediaError(
            f"{_describe(path, stream)}: reading stopped after {len(pts)} packets ({error.strerror})."
        ) from error
    _check_complete(path, container, stream, len(pts), end)
    context = stream.codec_context
    # AVI has no presentation times, FFmpeg guesses; VP8 sends packets that are never shown, without saying so
    unreliable = (container.format.name == "avi" and context.has_b_frames) or context.name == "vp8"
    if unreliable or None in pts or len(set(pts)) < len(pts) or True not in is_key:
        return len(pts), None
    first_key = is_key.index(True)
    shown = [
        position
        for position in range(first_key, len(pts))
        if not is_discard[position] and pts[position] >= pts[first_key]
    ]
    return len(pts), _PacketTable(pts, dts, is_key, sorted(shown, key=pts.__getitem__))


def _to_rgb(frame, reformatter) -> np.ndarray:
    image = reformatter.reformat(frame, format="rgb24").to_ndarray()
    return np.rot90(image, k=round(frame.rotation / 90)) if frame.rotation else image


def _seek(container, stream, table: _PacketTable, key: int) -> Iterator | None:
    """The packets from decode position `key` on, or `None` if no seek lands there."""
    for timestamp in (table.pts[key], table.dts[key]):  # Matroska seeks by pts, mp4 by dts
        if timestamp is None:
            continue
        container.seek(timestamp, stream=stream)
        packets = container.demux(stream)
        for packet in packets:
            position = table.position.get(packet.pts, len(table.pts))
            if position == key:
                return chain([packet], packets)
            if position > key:
                break
    return None


def _decode_by_index(container, stream, table: _PacketTable, targets: Sequence[int]) -> dict[int, np.ndarray] | None:
    """Decode the packets at decode positions `targets` (in presentation order), seeking over what is not needed.

    Returns pts -> frame, or `None` where the stream's own timestamps or keyframe flags turn out not to hold.
    """
    reformatter, wanted, found = av.video.reformatter.VideoReformatter(), {table.pts[t] for t in targets}, {}
    context, packets, next_position = stream.codec_context, None, -1
    try:
        for target in targets:
            key = table.key_position(target)
            if key > next_position:
                packets = _seek(container, stream, table, key)
                if packets is None:
                    return None
            while table.pts[target] not in found:
                packet = next(packets, None)
                if packet is None:
                    return None
                next_position = table.position.get(packet.pts, len(table.pts)) + 1
                if context.name == "h264":  # no picture refers to a non-reference picture: skip it unless asked for
                    context.skip_frame = "DEFAULT" if packet.pts in wanted else "NONREF"
                for frame in packet.decode():
                    if frame.pts in wanted and frame.pts not in found:
                        if frame.is_corrupt:
                            return None
                        found[frame.pts] = _to_rgb(frame, reformatter)
    except av.FFmpegError:
        return None  # the sequential pass meets the same damage and reports it
    return found


def _decoded(path, num_threads: int) -> Iterator:
    """All frames of the video stream, in presentation order."""
    with _open(path) as container:
        stream = _first_stream(path, container, "video")
        _set_threads(stream, num_threads)
        count = 0
        try:
            for frame in container.decode(stream):
                yield frame
                count += 1
        except av.FFmpegError as error:
            raise MediaError(
                f"{_describe(path, stream)}: decoding stopped after {count} frames ({error.strerror})."
            ) from error


def _set_threads(stream, num_threads: int) -> None:
    stream.thread_type = "AUTO"
    stream.codec_context.thread_count = num_threads


def _choose(num_available, num_frames, training, generator) -> list[int]:
    if num_frames is None:
        return list(range(num_available))
    return frame_indices(num_available, num_frames, training, generator)


def _stack(name: str, frames: list[np.ndarray]) -> np.ndarray:
    if len(sizes := {frame.shape[:2] for frame in frames}) > 1:
        raise MediaError(f"{name}: the picture changes its size, {sorted(sizes)}. Convert the file to one size.")
    return np.stack(frames)


def read_frames(
    path: str | os.PathLike,
    num_frames: int | None = None,
    *,
    training: bool = False,
    generator: torch.Generator | None = None,
    seek: str = "index",
    num_threads: int = 0,
) -> np.ndarray | None:
    """Read frames of the first video stream, chosen by `frame_indices` over its shown frames.

    The packets are listed first, without decoding them: their number shows a truncated file, their timestamps name
    the frames. `seek="index"` then decodes from the keyframe before each chosen frame; `seek="scan"` decodes from the
    start. Both give the same bits on every stream that decodes. Where timestamps are missing or repeated the frames
    are counted by decoding them all. The display rotation that phones write is applied: frames are upright.

    Args:
        path (`str` or `os.PathLike`): a local media file.
        num_frames (`int`, *optional*): how many; all if `None` (mind the memory: 3 bytes a pixel).
        training (`bool`), generator (`torch.Generator`): see `frame_indices`.
        seek (`str`): `"index"` or `"scan"`.
        num_threads (`int`): decoding threads, 0 for FFmpeg's choice.
    Returns:
        `np.ndarray` of shape `(num_frames, height, width, 3)`, uint8 RGB; `None` if the file has no video: no video
        stream (an attached picture is none), or one without a single frame.
    Raises:
        FileNotFoundError: there is no such file.
        MediaError: not a media file, fewer packets than the container promises, or decoding fails.
    """
    if seek not in ("index", "scan"):
        raise ValueError(f"`seek` must be 'index' or 'scan', got {seek!r}.")
    with _open(path) as container:
        stream = _first_stream(path, container, "video")
        if stream is None:
            return None
        name = _describe(path, stream)
        _set_threads(stream, num_threads)
        num_packets, table = _packet_table(path, container, stream)
        if num_packets == 0:
            return None
        frames = None
        if table is not None and table.shown:
            chosen = [table.shown[i] for i in _choose(len(table.shown), num_frames, training, generator)]
            if seek == "index" and num_frames is not None:
                frames = _decode_by_index(container, stream, table, list(dict.fromkeys(chosen)))
            keys = [table.pts[position] for position in chosen]
    if table is not None and table.shown:
        if frames is None:
            frames = _collect(path, name, ((frame.pts, frame) for frame in _decoded(path, num_threads)), set(keys))
        if len(frames) == len(set(keys)):
            return _stack(name, [frames[key] for key in keys])
    # the timestamps do not name the decoded frames: number these
    count = sum(1 for _ in _decoded(path, num_threads))
    if count == 0:
        raise MediaError(f"{name}: {num_packets} packets, of which none decodes to a frame.")
    keys = _choose(count, num_frames, training, generator)
    frames = _collect(path, name, enumerate(_decoded(path, num_threads)), set(keys))
    return _stack(name, [frames[key] for key in keys])


def _collect(path, name: str, frames: Iterator, wanted: set[int]) -> dict[int, np.ndarray]:
    reformatter, found = av.video.reformatter.VideoReformatter(), {}
    for key, frame in frames:
        if key in wanted and key not in found:
            if frame.is_corrupt:
                raise MediaError(f"{name}: the frame at {float(frame.time or 0):.2f} s is damaged.")
            found[key] = _to_rgb(frame, reformatter)
            if len(found) == len(wanted):
                break
    return found


def _to_mono(frames: Iterator) -> list[np.ndarray]:
    """Resample audio frames to 16 kHz, mono, 16 bits: the mean of the channels, as Kaldi's recipes read it.

    A float mono target would be no mean: libswresample adds stereo channels with a factor of 0.707 then, 3 dB louder.
    """
    pieces, resampler, source = [], None, None
    for frame in frames:
        if source != (frame.format.name, frame.layout.name, frame.sample_rate):  # HE-AAC changes its rate on the way
            if resampler is not None:
                pieces += resampler.resample(None)
            source = (frame.format.name, frame.layout.name, frame.sample_rate)
            resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLING_RATE)
        pieces += resampler.resample(frame)
    if resampler is not None:
        pieces += resampler.resample(None)
    return [piece.to_ndarray()[0] for piece in pieces]


def _to_float(pieces: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(pieces).astype(np.float32) / 2**15


def read_audio(path: str | os.PathLike) -> np.ndarray | None:
    """Read the whole first audio track.

    Args:
        path (`str` or `os.PathLike`): a local media file.
    Returns:
        `np.ndarray` of shape `(samples,)`, float32 in [-1, 1], 16 kHz, the mean of the channels in 16 bits; `None` if
        the file has no audio: no audio track, or one without a single sample.
    Raises:
        FileNotFoundError: there is no such file.
        MediaError: not a media file, fewer packets than the container promises, or decoding fails.
    """
    with _open(path) as container:
        stream = _first_stream(path, container, "audio")
        if stream is None:
            return None
        num_packets, end = 0, 0.0

        def frames():
            nonlocal num_packets, end
            for packet in container.demux(stream):
                if packet.size or packet.dts is not None:
                    num_packets += 1
                    if packet.pts is not None:
                        end = max(end, float((packet.pts + (packet.duration or 0)) * stream.time_base))
                yield from packet.decode()

        try:
            pieces = _to_mono(frames())
        except av.FFmpegError as error:
            raise MediaError(
                f"{_describe(path, stream)}: decoding stopped after {num_packets} packets ({error.strerror})."
            ) from error
        _check_complete(path, container, stream, num_packets, end)
    return _to_float(pieces) if sum(map(len, pieces)) else None


def resample(waveform: np.ndarray, sampling_rate: int) -> np.ndarray:
    """Bring a waveform `(channels, samples)` of any rate to what `read_audio` returns: `(samples,)` at 16 kHz."""
    mono = np.ascontiguousarray(waveform, dtype=np.float32).mean(axis=0, keepdims=True)
    if sampling_rate == SAMPLING_RATE:
        return mono[0]
    if av is None:
        raise ImportError("Resampling needs PyAV: `pip install av`. Or pass waveforms at 16 kHz.")
    frame = av.AudioFrame.from_ndarray(mono, format="fltp", layout="mono")
    frame.sample_rate = sampling_rate
    pieces = _to_mono([frame])
    return _to_float(pieces)


def find_sidecar(path: str | os.PathLike) -> Path | None:
    """The subtitle file beside a video: its stem with `.srt`, `.vtt`, `.en.srt` or `.en.vtt`, in this order."""
    return next((file for suffix in _SIDECARS if (file := Path(path).with_suffix(suffix)).is_file()), None)


def _join_lines(lines: Iterator[str]) -> str:
    """Join cue lines to one string; a line that repeats the one before it (rolling captions) counts once."""
    kept: list[str] = []
    for line in lines:
        line = " ".join(line.split())
        if line and (not kept or line != kept[-1]):
            kept.append(line)
    return " ".join(kept)


_TIMING = re.compile(r"^\s*(?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3}\s*-->\s*(?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3}")
# only markup that players interpret: "<3" and "a < b" are speech
_MARKUP = re.compile(r"</?(?:[a-z]+|\d+:\d{2}[\d:.]*)(?:[.\s][^<>]*)?>|\{\\[^{}]*\}", re.IGNORECASE)


def _cue_lines(text: str, is_vtt: bool) -> Iterator[str]:
    in_cue, pending = False, None
    for line in text.splitlines():
        if _TIMING.match(line):
            in_cue, pending = True, None  # what came just before is the number of this cue
            continue
        if not in_cue:
            continue
        if is_vtt and not line.strip():
            in_cue = False  # up to the next timing: a cue's name, NOTE, STYLE
        if pending is not None:
            yield pending
            pending = None
        if line.strip().isdigit():
            pending = line
        elif in_cue:
            yield line
    if pending is not None:
        yield pending


def read_subtitle(path: str | os.PathLike) -> str:
    """Read an `.srt` or `.vtt` file as one plain string, without markup and timings; consecutive equal lines merge.

    Raises:
        FileNotFoundError: there is no such file.
        MediaError: not UTF-8, or text without a single timed cue.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise MediaError(f"{os.fspath(path)}: the subtitle file is not UTF-8 ({error}). Convert it first.") from error
    is_vtt = text.startswith("WEBVTT")
    if text.strip() and not is_vtt and not any(map(_TIMING.match, text.splitlines())):
        raise MediaError(f"{os.fspath(path)}: the subtitle file has text but no cue with a timing (`-->`).")
    return _join_lines(html.unescape(_MARKUP.sub("", line)) for line in _cue_lines(text, is_vtt))


def read_subtitle_track(path: str | os.PathLike) -> str | None:
    """Read the first text track inside a media file as `read_subtitle` reads a file; `None` if it has no text track.

    Tracks of pictures (DVD, Blu-ray) are not text.
    """
    with _open(path) as container:
        streams = (s for s in container.streams.subtitles if s.codec_context is not None)
        stream = next((s for s in streams if s.codec_context.name in _TEXT_SUBTITLES), None)
        if stream is None:
            return None
        _select(container, stream)
        lines: list[str] = []
        try:
            for packet in container.demux(stream):
                for subtitle in packet.decode():
                    # ReadOrder, Layer, Style, Name, MarginL, MarginR, MarginV, Effect, Text
                    text = subtitle.ass.decode("utf-8").split(",", 8)[-1]
                    if re.search(r"\{[^{}]*\\p[1-9]", text):  # a drawing
                        continue
                    lines += re.split(r"\\[Nn]|\n", _MARKUP.sub("", text).replace(r"\h", " "))
        except (av.FFmpegError, UnicodeDecodeError) as error:
            raise MediaError(f"{_describe(path, stream)}: the subtitle track does not decode ({error}).") from error
    return _join_lines(lines)


__all__ = [
    "SAMPLING_RATE",
    "MediaError",
    "find_sidecar",
    "frame_indices",
    "read_audio",
    "read_frames",
    "read_subtitle",
    "read_subtitle_track",
    "resample",
    "to_tensor",
]
