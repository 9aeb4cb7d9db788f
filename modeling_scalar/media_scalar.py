"""Decodes frames, sound and subtitles with PyAV, in a process of its own.

`decoding_scalar` starts this file as a program and asks it over pipes, so that a file that makes a decoder crash,
hang or take memory harms nobody else. It therefore imports neither torch nor its siblings, and starts in a moment.

Frames are addressed by their place in presentation order, never by time or by an average frame rate, so every way of
reaching a frame gives the same picture, also for variable frame rates. A modality that a file does not have is absent;
a stream that the file has and that cannot be decoded is a `MediaError`. The two are never confused.
"""

import html
import json
import math
import os
import re
import stat
import struct
import sys
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

try:
    import av
except ImportError:
    av = None

if os.name == "posix":
    import resource

SAMPLING_RATE = 16_000

# Without this list FFmpeg renders any text as video (tty), reads single pictures as clips, and follows references to
# other files and hosts (concat, hls, dash).
_DEMUXERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,asf,flv,f4v,mpeg,mpegts,mpegvideo,m4v,h264,hevc,av1,ivf,obu,ogg,gif,mxf,"
    "nut,rm,dv,wtv,yuv4mpegpipe,wav,w64,mp3,flac,aac,ac3,eac3,aiff,au,caf,amr,wv,ape,tta"
)
_TEXT_SUBTITLES = ("ass", "ssa", "subrip", "srt", "webvtt", "mov_text", "text")
_SIDECARS = (".srt", ".vtt", ".en.srt", ".en.vtt")

# FFmpeg's threads work on several frames at once: above this size one thread, to hold as few as the format allows.
_LARGE_PICTURE = 2048 * 2048
# A picture of this size is not even tried with the light share of memory.
_HEAVY_PICTURE = 4096 * 2304
_MOST_BYTES_PER_PIXEL = 120  # 16 reference pictures and some more, of 6 bytes a pixel
_LONG_SOUND = 600 * SAMPLING_RATE  # samples from which on only the chosen parts of a track are decoded
_MESSAGE = 2**16  # samples that are sent together
_LONG_FOR_WINDOW = 60 * SAMPLING_RATE  # the same where a window of the track is asked for
_LONGEST_MESSAGE = 8000
# Formats whose duration is a guess from the first bytes, or not told.
_UNTIMED = ("aac", "ac3", "eac3", "h264", "hevc", "ivf", "m4v", "mp3", "mpegvideo", "obu")
_MEMORY_PER_SUBTITLE_BYTE = 256  # of a subtitle file: its lines, their copies, and the tokens made of them


class MediaError(ValueError):
    """A file or one of its streams cannot be decoded. The message names the file and, where known, the stream."""


class LimitError(MediaError):
    """A file needs more than the [`Limits`] allow: with others it may well be read."""

    @staticmethod
    def no_longer_holds(message: str, limits: "Limits") -> bool:
        """Whether the limit that a message of this error names has been raised since."""
        told = re.search(r"the limit is (\w+)=([0-9.e+]+?)[.,;]? ", f"{message} ")
        return told is not None and getattr(limits, told[1], 0) > float(told[2])


@dataclass(frozen=True)
class Limits:
    """What reading one stream of a file may take; more is a [`LimitError`] that says how to raise the limit.

    `pixels` and `duration` hold everywhere. `memory` needs Linux, `time` a Unix; elsewhere a stream may take four
    times its `time` by the clock, and as much memory as its pictures need.

    Args:
        pixels (`int`): of a frame.
        duration (`float`): seconds of a stream.
        memory (`int`): bytes. All decoders of a program together take no more, however many files are read at once;
            of a subtitle file a 256th is read. What is read whole, into `Clip.frames` or `Clip.waveform`, takes no
            more, either.
        time (`float`): seconds of computing; four times as many of waiting.
    """

    pixels: int = 8192 * 4320
    duration: float = 24 * 3600
    memory: int = 2**30
    time: float = 60

    def __post_init__(self):
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 2**60:
                raise ValueError(f"The limit `{name}` must be a number above 0 and below 2**60, got {value!r}.")

    @classmethod
    def parse(cls, settings: Iterable[str], **defaults: float) -> "Limits":
        """Read limits as a command line has them: `["memory=2GiB", "pixels=70e6"]`; the others are the defaults.

        Raises:
            ValueError: an unknown name, not a number, or not above 0.
        """
        units = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
        names, values = [field.name for field in fields(cls)], {}
        for setting in settings:
            name, _, value = (part.strip() for part in setting.partition("="))
            if name not in names:
                raise ValueError(f"A limit is NAME=VALUE with one of the names {names}, got {setting!r}.")
            number = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?) *([kmgt]?i?)b?", value.lower())
            if number is None or number[2] not in units or (number[2] and name != "memory"):
                example = "2GiB" if name == "memory" else "70e6"
                raise ValueError(f"The limit `{name}` must be a number above 0 such as {example}, got {value!r}.")
            try:
                values[name] = float(number[1]) * units[number[2]]
            except ValueError as error:
                raise ValueError(f"The limit `{name}` must be a number, got {value!r}.") from error
            if name in ("pixels", "memory") and values[name] < 2**60:
                values[name] = int(values[name])
        return cls(**(defaults | values))

    def exceeded(self, where: str, name: str, what: str, needed: float | None = None) -> LimitError:
        """The error that names the file, what it wanted, the limit, and how to raise it."""
        limit = getattr(self, name)
        enough = math.ceil(2 * limit if needed is None else max(needed, limit))
        return LimitError(
            f"{where}: {what}; the limit is {name}={limit}. If it is to be read, raise it: `--limit {name}={enough}`, "
            f"or `processor.limits = Limits({name}={enough})`."
        )


_limits = Limits()  # of the request being answered: this process answers one at a time


def check_file(path: str | os.PathLike) -> None:
    """Raise unless `path` is a regular file or a link to one: a pipe or a device might be read for ever.

    Raises:
        FileNotFoundError: there is no such file.
        MediaError: it is something else.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a null character
        raise FileNotFoundError(f"No such media file: {os.fspath(path)!r}.") from error
    if not stat.S_ISREG(mode):
        kinds = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}
        kind = next((kind for test, kind in kinds.items() if test(mode)), "a device")
        raise MediaError(f"{os.fspath(path)}: not a file but {kind}. Only regular files are read.")


@contextmanager
def _open(path: str) -> Iterator["av.container.InputContainer"]:
    check_file(path)
    # max_pixels: looking for the streams already decodes pictures
    options = {"format_whitelist": _DEMUXERS, "protocol_whitelist": "file", "max_pixels": str(int(_limits.pixels))}
    try:
        # "file:" keeps names such as "a:b.mp4" from being read as a protocol
        container = av.open(f"file:{path}", options=options, metadata_errors="replace")
    except MemoryError:
        raise
    except av.FFmpegError as error:
        if isinstance(error, PermissionError) and not os.access(path, os.R_OK):  # FFmpeg says so of some damage, too
            raise
        raise MediaError(
            f"{path}: not a readable video or audio file ({error.strerror}). Is it empty, truncated, or of another "
            "type?"
        ) from error
    with container:
        if not container.streams.video and not container.streams.audio:
            raise MediaError(f"{path}: the {container.format.name} file holds neither video nor audio.")
        yield container


def _select(container, stream) -> None:
    """Make the demuxer skip the data of all other streams."""
    for other in container.streams:
        if other.index != stream.index:
            other.discard = av.stream.Discard.all


def _describe(path, stream) -> str:
    return f"{path}: {stream.type} stream {stream.index} ({stream.codec_context.name})"


def _first_stream(path, container, kind: str):
    """The first real stream of a kind: cover art and thumbnails are attached pictures, not video."""
    for stream in getattr(container.streams, kind):
        if stream.disposition & (av.stream.Disposition.attached_pic | av.stream.Disposition.timed_thumbnails):
            continue
        if stream.codec_context is None:
            raise MediaError(f"{path}: no decoder for {kind} stream {stream.index}.")
        _select(container, stream)
        return stream
    return None


def _read_number(file: BinaryIO, is_size: bool) -> int | None:
    """Read a number of EBML, RFC 8794; an unknown size is -1, the end of the file `None`."""
    first = file.read(1)
    if not first or not first[0]:
        return None
    length = 9 - first[0].bit_length()
    rest = file.read(length - 1)
    if len(rest) < length - 1:
        return None
    number = int.from_bytes(first + rest, "big")
    if not is_size:
        return number
    number &= (1 << 7 * length) - 1
    return -1 if number == (1 << 7 * length) - 1 else number


def _promised_by_riff(path) -> int:
    """Where the part of an AVI file that does not fit into it ends; 0 if all do."""
    size, stop = os.path.getsize(path), 0
    with open(path, "rb") as file:
        while stop <= size and (header := file.read(8))[:4] == b"RIFF" and len(header) == 8:
            stop = file.tell() + int.from_bytes(header[4:], "little")
            file.seek(stop + stop % 2)
    return stop if stop > size else 0


def _promised_by_matroska(path) -> int:
    """Where the outermost element of a Matroska file that does not fit into it ends; 0 if all do."""
    segment, cluster = 0x18538067, 0x1F43B675
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        end = size
        while file.tell() < end:
            name = _read_number(file, is_size=False)
            length = _read_number(file, is_size=True)
            if name is None or length is None:
                return 0
            stop = file.tell() + length
            if length >= 0 and stop > size:
                return stop
            if name == segment:
                end = stop if length >= 0 else size
            if length < 0 and name not in (segment, cluster):
                return 0
            if name == segment and length >= 0:
                return 0  # as long as it says
            if length >= 0:
                file.seek(stop)
    return 0


def _check_complete(path, container, stream, num_packets: int, end: float, seconds: float) -> None:
    """Compare what the container promised with what came: packets to `end`, of `seconds` together."""
    promised = stream.frames
    if "mp4" in container.format.name and (num_packets or stream.index_entries):
        # the sample table counts what an edit list trims away; the index built from both is what is to come
        promised = len(stream.index_entries)
    of_bytes = {"avi": _promised_by_riff, "matroska,webm": _promised_by_matroska}.get(container.format.name)
    told = came = None
    if of_bytes is not None and (end_of_file := of_bytes(path)):
        told, came = f"{end_of_file} bytes", f"{os.path.getsize(path)}"
    elif container.format.name == "avi":
        pass  # counts frames that are repeated without a packet
    elif container.format.name in ("aiff", "caf", "flac"):
        promised = round((stream.duration or 0) * float(stream.time_base) * stream.codec_context.sample_rate)
        num_samples = round(seconds * stream.codec_context.sample_rate)
        if num_samples < promised - 4096:  # about a packet
            told, came = f"{promised} samples", f"{num_samples}"
    elif num_packets < promised:
        told, came = f"{promised} packets", f"{num_packets}"
    elif "matroska" in container.format.name:
        # other formats pass on any comment of this name
        if tag := re.fullmatch(r"(\d{1,4}):(\d{2}):(\d{2}\.\d{1,9})", stream.metadata.get("DURATION", "")):
            duration = int(tag[1]) * 3600 + int(tag[2]) * 60 + float(tag[3])
            if end < duration - max(1.0, 0.02 * duration):
                told, came = f"{duration:.2f} s", f"{end:.2f} s"
    if told:
        raise MediaError(
            f"{_describe(path, stream)}: the container promises {told}, {came} came. The file is truncated or damaged."
        )


def _check_duration(path, stream, seconds: float) -> None:
    if seconds > _limits.duration:
        raise _limits.exceeded(_describe(path, stream), "duration", f"it lasts more than {_limits.duration:g} s")


def _check_picture(where: str, width: int, height: int) -> None:
    if width * height > _limits.pixels:
        what = f"pictures of {width}x{height} = {width * height} pixels"
        raise _limits.exceeded(where, "pixels", what, width * height)


def _damage(where: str, what: str, error: Exception) -> MediaError:
    return MediaError(f"{where}: {what} ({getattr(error, 'strerror', None) or error}).")


@dataclass
class _PacketTable:
    """The packets of a video stream in decode order, read without decoding."""

    pts: list[int]
    dts: list[int | None]
    is_key: list[bool]
    shown: list[int]  # decode positions in presentation order
    end: float  # of the last one, in seconds

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
    pts, dts, is_key, is_discard, end, seconds = [], [], [], [], 0.0, 0.0
    time_base = float(stream.time_base or 0)
    try:
        for packet in container.demux(stream):
            if packet.size == 0 and packet.dts is None:  # PyAV's flush packet
                continue
            pts.append(packet.pts)
            dts.append(packet.dts)
            is_key.append(packet.is_keyframe)
            is_discard.append(packet.is_discard)
            duration = (packet.duration or 0) * time_base
            seconds += duration
            _check_duration(path, stream, seconds)
            if packet.pts is not None:
                end = max(end, packet.pts * time_base + duration)
    except MemoryError:
        raise
    except av.FFmpegError as error:
        raise _damage(_describe(path, stream), f"reading stopped after {len(pts)} packets", error) from error
    _check_complete(path, container, stream, len(pts), end, seconds)
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
    return len(pts), _PacketTable(pts, dts, is_key, sorted(shown, key=pts.__getitem__), end)


Window = tuple[float, float | None]
"""From and to which second of a file, counted from its beginning; None is its end."""


def _zero(container) -> float:
    """The time at which a file begins, by the clock of its streams."""
    return (container.start_time or 0) / av.time_base


def _is_inside(seconds: float, window: Window) -> bool:
    start, stop = window
    # clocks are rounded; what begins before the file does belongs to its beginning
    return (start <= 0 or seconds >= start - 1e-6) and (stop is None or seconds < stop - 1e-6)


def _in_window(times: Sequence[float], end: float, window: Window) -> list[int]:
    """Which of the frames that appear at these times are seen in a window; the last one stays until `end`."""
    chosen = [place for place, seconds in enumerate(times) if _is_inside(seconds, window)]
    before = [place for place, seconds in enumerate(times) if seconds < window[0]]
    if not chosen and before and (before[-1] + 1 < len(times) or end > window[0]):
        return before[-1:]  # one that stays
    return chosen


class _Known:
    """What was found out about the file that was read last: its windows are read one by one."""

    path: str | None = None
    found: dict[str, Any] = {}

    @classmethod
    def of(cls, path: str) -> dict[str, Any]:
        """What is known of a file as it is now."""
        status = os.stat(path)
        name = f"{path} {status.st_size} {status.st_mtime_ns} {status.st_ino} {_limits.duration}"
        if name != cls.path:
            cls.path, cls.found = name, {}
        return cls.found


class _Channel:
    """Messages to and from the program that asks: a JSON object each, with bytes after it where it says so."""

    def __init__(self, source: BinaryIO, sink: BinaryIO):
        self.source, self.sink = source, sink

    def receive(self) -> dict[str, Any] | None:
        """The next message, or `None` at the end."""
        length = self._read(4)
        return json.loads(self._read(*struct.unpack(">I", length))) if length else None

    def _read(self, length: int) -> bytes:
        parts = b""
        while len(parts) < length and (part := self.source.read(length - len(parts))):
            parts += part
        return parts

    def send(self, kind: str, payload: Any = b"", **content: Any) -> None:
        """Send a message and, after it, the bytes of an array."""
        payload = memoryview(payload).cast("B")
        header = json.dumps(content | {"kind": kind, "size": len(payload)}).encode()
        self._write(struct.pack(">I", len(header)) + header)
        self._write(payload)

    def _write(self, data: Any) -> None:
        data = memoryview(data)
        while data:
            data = data[self.sink.write(data) :]

    def ask(self, kind: str, **content: Any) -> dict[str, Any]:
        """Send a message and wait for its answer."""
        self.send(kind, **content)
        answer = self.receive()
        if answer is None:
            raise SystemExit  # nobody is listening
        return answer


class _Frames:
    """Sends the chosen frames, each once, under the place of its key in `keys`."""

    def __init__(self, channel: _Channel, name: str, keys: Iterable[int]):
        self.channel, self.name = channel, name
        self.places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        self.missing = set(self.places)
        self.sizes: set[tuple[int, int]] = set()
        self.reformatter = av.video.reformatter.VideoReformatter()
        channel.send("begin")  # frames sent before are void

    def add(self, key: int, frame: "av.VideoFrame") -> None:
        """Send a frame upright, in RGB."""
        image = self.reformatter.reformat(frame, format="rgb24").to_ndarray()
        image = np.ascontiguousarray(np.rot90(image, k=round(frame.rotation / 90)) if frame.rotation else image)
        self.sizes.add(image.shape[:2])
        if len(self.sizes) > 1:
            raise MediaError(
                f"{self.name}: the picture changes its size, {sorted(self.sizes)}. Convert the file to one size."
            )
        self.missing.remove(key)
        self.channel.send("frame", image, place=self.places[key], height=image.shape[0], width=image.shape[1])


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


def _decode_by_index(name, container, stream, table: _PacketTable, targets: Sequence[int], frames: _Frames) -> bool:
    """Decode the packets at decode positions `targets` (in presentation order), seeking over what is not needed.

    Returns whether all of them were sent: not where the stream's timestamps or keyframe flags turn out not to hold.
    """
    context, packets, next_position = stream.codec_context, None, -1
    try:
        for target in targets:
            key = table.key_position(target)
            if key > next_position:
                packets = _seek(container, stream, table, key)
                if packets is None:
                    return False
            while table.pts[target] in frames.missing:
                packet = next(packets, None)
                if packet is None:
                    return False
                next_position = table.position.get(packet.pts, len(table.pts)) + 1
                if context.name == "h264":  # no picture refers to a non-reference picture: skip it unless asked for
                    context.skip_frame = "DEFAULT" if packet.pts in frames.places else "NONREF"
                for frame in packet.decode():
                    _check_picture(name, frame.width, frame.height)
                    if frame.pts in frames.missing:
                        if frame.is_corrupt:
                            return False
                        frames.add(frame.pts, frame)
    except MemoryError:
        raise
    except av.FFmpegError:
        return False  # the sequential pass meets the same damage and reports it
    return True


def _decoded(path, num_threads: int) -> Iterator:
    """All frames of the video stream, in presentation order."""
    with _open(path) as container:
        stream = _first_stream(path, container, "video")
        _set_threads(stream, num_threads)
        name, count = _describe(path, stream), 0
        try:
            for frame in container.decode(stream):
                _check_picture(name, frame.width, frame.height)
                yield frame
                count += 1
        except MemoryError:
            raise
        except av.FFmpegError as error:
            if isinstance(error, BlockingIOError):  # no memory for a thread
                raise MemoryError from error
            context = stream.codec_context  # some decoders keep the size that max_pixels made them refuse, some do not
            _check_picture(name, context.width, context.height)
            if isinstance(error, av.ArgumentError) and not context.width:
                raise _limits.exceeded(name, "pixels", "pictures of more pixels, or of none") from error
            raise _damage(name, f"decoding stopped after {count} frames", error) from error


def _set_threads(stream, num_threads: int) -> None:
    context = stream.codec_context
    if context.width * context.height > _LARGE_PICTURE:
        num_threads = 1
    context.thread_type = "AUTO"
    context.thread_count = num_threads
    context.options = {"max_pixels": str(int(_limits.pixels))}


def _send_frames(
    path: str,
    channel: _Channel,
    num_frames: int | None,
    seek: str,
    num_threads: int,
    window: Window | None = None,
) -> None:
    """Send the frames that the other side chooses, of those in the window: all if `num_frames` is `None`."""

    def choose(available: int) -> list[int]:
        return list(range(available)) if num_frames is None else channel.ask("choose", available=available)["chosen"]

    with _open(path) as container:
        stream = _first_stream(path, container, "video")
        if stream is None:
            return
        name = _describe(path, stream)
        _Weight.check(name, stream.codec_context.width, stream.codec_context.height)
        _set_threads(stream, num_threads)
        zero, tick = _zero(container), float(stream.time_base or 0)
        known = {} if window is None else _Known.of(path)
        if "packets" not in known:
            known["packets"] = _packet_table(path, container, stream)
        num_packets, table = known["packets"]
        if num_packets == 0:
            return
        duration = None if container.duration is None else container.duration / av.time_base
        if table is not None and table.shown:
            shown = table.shown
            if window is not None:
                times = [table.pts[position] * tick - zero for position in shown]
                shown = [shown[place] for place in _in_window(times, table.end - zero, window)]
                if not shown:
                    return
            chosen = [shown[place] for place in choose(len(shown))]
            keys = [table.pts[position] for position in chosen]
            if seek == "index" and num_frames is not None:
                frames = _Frames(channel, name, keys)
                if _decode_by_index(name, container, stream, table, list(dict.fromkeys(chosen)), frames):
                    return
    if table is not None and table.shown:
        frames = _Frames(channel, name, keys)
        _collect(((frame.pts, frame) for frame in _decoded(path, num_threads)), frames)
        if not frames.missing:
            return
    # the timestamps do not name the decoded frames: number these
    if "times" not in known:
        known["times"] = [frame.time for frame in _decoded(path, num_threads)]
    times = known["times"]
    if not times:
        raise MediaError(f"{name}: {num_packets} packets, of which none decodes to a frame.")
    places = list(range(len(times)))
    if window is not None:
        if None in times or sorted(times) != times:  # evenly then
            times = [zero + (duration or 0) * place / len(times) for place in places]
        places = _in_window([seconds - zero for seconds in times], duration or times[-1] - zero, window)
        if not places:
            return
    frames = _Frames(channel, name, [places[place] for place in choose(len(places))])
    _collect(enumerate(_decoded(path, num_threads)), frames)


def _collect(decoded: Iterator, frames: _Frames) -> None:
    for key, frame in decoded:
        if key in frames.missing:
            if frame.is_corrupt:
                raise MediaError(f"{frames.name}: the frame at {float(frame.time or 0):.2f} s is damaged.")
            frames.add(key, frame)
            if not frames.missing:
                break


class _Weight:
    """How much of the machine this request may take, and how much its pictures want."""

    is_heavy = False
    pixels = 0

    @classmethod
    def check(cls, name: str, width: int, height: int) -> None:
        """Refuse pictures above the limit; ask for the whole memory where the light share will not do."""
        _check_picture(name, width, height)
        cls.pixels = width * height
        if cls.pixels > _HEAVY_PICTURE and not cls.is_heavy:
            raise MemoryError


def _mono(frames: Iterable, rate: int = SAMPLING_RATE) -> Iterator[np.ndarray]:
    """Resample audio frames to 16 kHz or another rate, mono, 16 bits: the mean of the channels, as Kaldi's recipes do.

    A float mono target would be no mean: libswresample adds stereo channels with a factor of 0.707 then, 3 dB louder.
    """
    resampler, source = None, None
    for frame in frames:
        if source != (frame.format.name, frame.layout.name, frame.sample_rate):  # HE-AAC changes its rate on the way
            if resampler is not None:
                yield from (piece.to_ndarray()[0] for piece in resampler.resample(None))
            source = (frame.format.name, frame.layout.name, frame.sample_rate)
            resampler = av.AudioResampler(format="s16", layout="mono", rate=rate)
        yield from (piece.to_ndarray()[0] for piece in resampler.resample(frame))
    if resampler is not None:
        yield from (piece.to_ndarray()[0] for piece in resampler.resample(None))


def to_float(samples: np.ndarray) -> np.ndarray:
    """16-bit samples as float32 in [-1, 1)."""
    return samples.astype(np.float32) / 2**15


def _all_sound(path: str, rate: int = SAMPLING_RATE) -> Iterator[np.ndarray]:
    """The whole first audio track in 16 bits, piece by piece; nothing if there is none."""
    with _open(path) as container:
        yield from _sound_in(path, container, rate)


def _sound_in(path: str, container: "av.container.InputContainer", rate: int) -> Iterator[np.ndarray]:
    """The same of a file that is open, from its beginning."""
    stream = _first_stream(path, container, "audio")
    if stream is None:
        return
    num_packets, end, num_samples, seconds = 0, 0.0, 0, 0.0
    time_base = float(stream.time_base or 0)

    def frames() -> Iterator:
        nonlocal num_packets, end, seconds
        for packet in container.demux(stream):
            if packet.size or packet.dts is not None:
                num_packets += 1
                seconds += (packet.duration or 0) * time_base
                if packet.pts is not None:
                    end = max(end, (packet.pts + (packet.duration or 0)) * time_base)
            yield from packet.decode()

    try:
        for piece in _mono(frames(), rate):
            num_samples += len(piece)
            _check_duration(path, stream, num_samples / rate)
            yield piece
    except MemoryError:
        raise
    except av.FFmpegError as error:
        raise _damage(_describe(path, stream), f"decoding stopped after {num_packets} packets", error) from error
    _check_complete(path, container, stream, num_packets, end, seconds)


def _send_pieces(channel: _Channel, pieces: Iterable[np.ndarray]) -> None:
    """Send samples, of packets that follow each other many at once: a message costs more than they do."""
    waiting, num_samples = [], 0
    for piece in pieces:
        waiting.append(piece)
        num_samples += len(piece)
        if num_samples >= _MESSAGE:
            channel.send("sound", np.concatenate(waiting))
            waiting, num_samples = [], 0
    if num_samples:
        channel.send("sound", np.concatenate(waiting))


def _send_window(path: str, channel: _Channel, window: Window, rate: int) -> None:
    """Send the samples of a window of the first audio track; of a long one, decode no more than these."""
    with _open(path) as container:
        _send_contents(channel, container)
        stream = _first_stream(path, container, "audio")
        if stream is None:
            return
        first = 0.0 if stream.start_time is None else float(stream.start_time * stream.time_base) - _zero(container)
        is_long = (container.duration or 0) / av.time_base > _LONG_FOR_WINDOW / SAMPLING_RATE
    start, stop = (None if seconds is None else max(0, round((seconds - first) * rate)) for seconds in window)
    if window[0] <= 0:
        start = 0
    if is_long and rate == SAMPLING_RATE and _send_range(path, channel, start, stop):
        return

    def inside() -> Iterator[np.ndarray]:
        position = 0
        for piece in _all_sound(path, rate):
            yield piece[max(0, start - position) : None if stop is None else max(0, stop - position)]
            position += len(piece)
            if stop is not None and position >= stop:
                return

    _send_pieces(channel, inside())


def _send_range(path: str, channel: _Channel, start: int, stop: int | None) -> bool:
    """Decode and send a range of samples of a long track; returns whether that works."""
    known = _Known.of(path)
    if known.get("track", ()) is None:
        return False
    try:
        with _open(path) as container:
            stream = _first_stream(path, container, "audio")
            track = _Track(path, container, stream, known.get("track"), least=_LONG_FOR_WINDOW)
            known["track"] = track.found
            stop = track.num_samples if stop is None else min(stop, track.num_samples)
            part = track.part(start, stop) if start < stop else None
    except MemoryError:
        raise
    except (_Unsteady, av.FFmpegError):
        known["track"] = None
        return False  # decoding in order reports what is wrong, if something is
    if part is not None:
        channel.send("sound", np.ascontiguousarray(part))
    return True


def _send_sound(
    path: str, channel: _Channel, whole: bool, window: Window | None = None, rate: int = SAMPLING_RATE
) -> None:
    """Send the samples of the first audio track, all of them or those of a window; of a long one, unless `whole`, only
    what the other side chooses."""
    if window is not None:
        _send_window(path, channel, window, rate)
        return
    if whole:
        _send_pieces(channel, _all_sound(path, rate))
        return
    with _open(path) as container:
        _send_contents(channel, container)
        is_long = (container.duration or 0) / av.time_base > _LONG_SOUND / SAMPLING_RATE
        pieces = None if is_long else _unless_long(_sound_in(path, container, rate))
    if pieces is None:
        if rate == SAMPLING_RATE and _send_parts(path, channel):
            return
        pieces = _unless_long(_all_sound(path, rate)) if is_long else None
    if pieces is None:
        _send_chosen(path, channel, rate)
    else:
        _send_pieces(channel, pieces)


def _send_contents(channel: _Channel, container: "av.container.InputContainer") -> None:
    """Say what the header of a file tells for nothing, which to ask for would be to open the file again."""
    has_text = _text_stream(container) is not None
    channel.send("contents", seconds=_seconds_in_header(container), has_text=has_text)


def _unless_long(sound: Iterator[np.ndarray]) -> list[np.ndarray] | None:
    """All of a sound; `None` if it is a long one."""
    pieces, num_samples = [], 0
    for piece in sound:
        pieces.append(piece)
        num_samples += len(piece)
        if num_samples > _LONG_SOUND:
            return None
    return pieces


class _Unsteady(Exception):
    """The timestamps of a track do not say where its samples are."""


class _Track:
    """Finds the samples of a long audio track by the timestamps of its packets.

    Positions are those of decoding everything in order, exactly so where the container's clock is at least as fine
    as the samples (wav, flac, mp4, ogg, mp3), within some milliseconds in Matroska and flv. The samples found there
    are the same for codecs without memory (PCM, FLAC); others start two seconds earlier to recover theirs, and draw
    other noise where they replace noise by noise (AAC).
    """

    def __init__(self, path: str, container, stream, found: tuple | None = None, least: int | None = None):
        self.path, self.container, self.stream = path, container, stream
        self.tick = float(stream.time_base)
        if found is None:
            found = self._look(path, container, stream, _LONG_SOUND if least is None else least)
        self.found = found
        self.start, self.rate, self.pts, self.sizes, self.num_samples = found

    def _look(self, path: str, container, stream, least: int) -> tuple:
        """Where the track begins, its rate, its packets, and how many samples at 16 kHz it has: more than `least`."""
        self.start = self.rate = None
        self.pts, self.sizes = array("q"), array("q")
        is_steady, end, seconds = True, None, 0.0
        for packet in container.demux(stream):
            if packet.size == 0 and packet.dts is None:
                continue
            if packet.pts is None or (not packet.duration and self.start is not None):
                is_steady = False  # nevertheless count the packets
                packet.pts = 0
            # a gap, or one packet over another; clocks in milliseconds round up and down
            elif self.start is not None and abs(packet.pts - end) * self.tick > max(2 * self.tick, 0.0025):
                is_steady = False
            if self.start is None:
                for frame in packet.decode():
                    if self.start is None and frame.pts is not None:
                        self.start, self.rate = frame.pts * self.tick, frame.sample_rate
            self.pts.append(packet.pts)
            self.sizes.append(packet.size)
            end = packet.pts + (packet.duration or 0)
            seconds += (packet.duration or 0) * self.tick
            _check_duration(path, stream, seconds)
        _check_complete(path, container, stream, len(self.pts), (end or 0) * self.tick, seconds)
        if not is_steady or self.start is None:
            raise _Unsteady
        # what the decoder leaves out at the end is in the last frames only
        last = 0
        for position, frame in self._frames(container, stream, end * self.tick - self.start - 1):
            last = position + frame.samples
        num_samples = math.ceil(last * SAMPLING_RATE / self.rate)
        if num_samples <= least:  # only the rest of the file is long
            raise _Unsteady
        return self.start, self.rate, self.pts, self.sizes, num_samples

    def _frames(self, container, stream, seconds: float) -> Iterator[tuple[int, "av.AudioFrame"]]:
        """Frames from `seconds` after the first sample on, or before it, with the positions of their first samples."""
        if seconds > 0:
            container.seek(int((self.start + seconds) / self.tick), stream=stream)
        expected = index = None
        is_pcm = stream.codec_context.name.startswith("pcm_")
        for packet in container.demux(stream):
            if packet.size and not is_pcm:  # its packets are cut anywhere
                if index is None:
                    index = bisect_left(self.pts, packet.pts or 0)
                # some demuxers guess other timestamps after a seek
                if index >= len(self.pts) or (packet.pts, packet.size) != (self.pts[index], self.sizes[index]):
                    raise _Unsteady
                index += 1
            for frame in packet.decode():
                if (frame.pts is None and expected is None) or frame.sample_rate != self.rate:
                    raise _Unsteady
                # there are no gaps: only the first frame says where it is, decoders may be vague about others
                if expected is None:
                    expected = round((frame.pts * self.tick - self.start) * self.rate)
                yield expected, frame
                expected += frame.samples

    def part(self, start: int, stop: int) -> np.ndarray:
        """The samples from `start` to `stop`, at 16 kHz."""
        common = math.gcd(self.rate, SAMPLING_RATE)
        period, stride = SAMPLING_RATE // common, self.rate // common
        # the resampler's filter is as long as a few samples; from here on its phase is that of the whole
        first = max(0, start - SAMPLING_RATE) // period
        begin = first * stride
        needed = math.ceil(stop * self.rate / SAMPLING_RATE) + self.rate

        def frames(container, stream) -> Iterator:
            for position, frame in self._frames(container, stream, begin / self.rate - 2):
                if position > begin and not passed:
                    raise _Unsteady
                passed.append(position)
                if position + frame.samples > begin:
                    yield frame if position >= begin else _cut_front(frame, begin - position)
                if position > needed:
                    break

        passed: list[int] = []
        if begin / self.rate > 2:
            pieces = list(_mono(frames(self.container, self.stream)))
        else:  # as it was opened: at the start, some demuxers do something else after a seek
            with _open(self.path) as container:
                pieces = list(_mono(frames(container, _first_stream(self.path, container, "audio"))))
        samples = np.concatenate([np.zeros(0, np.int16), *pieces])[start - first * period : stop - first * period]
        missing = stop - start - len(samples)
        if missing > SAMPLING_RATE // 100:
            raise _Unsteady
        return np.pad(samples, (0, missing))  # the end, by a clock in milliseconds


def _cut_front(frame: "av.AudioFrame", count: int) -> "av.AudioFrame":
    """The frame without its first samples."""
    count *= 1 if frame.format.is_planar else len(frame.layout.channels)
    rest = np.ascontiguousarray(frame.to_ndarray()[:, count:])
    rest = av.AudioFrame.from_ndarray(rest, format=frame.format.name, layout=frame.layout.name)
    rest.sample_rate = frame.sample_rate
    return rest


def _send_parts(path: str, channel: _Channel) -> bool:
    """Ask which ranges of samples of a long track are needed and decode only these; returns whether that works."""
    try:
        with _open(path) as container:
            stream = _first_stream(path, container, "audio")
            if stream is None:
                return True
            track = _Track(path, container, stream)
            for start, stop in channel.ask("ranges", available=track.num_samples)["chosen"]:
                channel.send("part", track.part(start, stop))
            return True
    except MemoryError:
        raise
    except (_Unsteady, av.FFmpegError):
        return False  # decoding in order reports what is wrong, if something is


def _send_chosen(path: str, channel: _Channel, rate: int) -> None:
    """Do what `_send_parts` does, by decoding everything in order, twice, where nothing else works."""
    num_samples = sum(map(len, _all_sound(path, rate)))
    ranges = channel.ask("ranges", available=num_samples)["chosen"]
    kept = [[] for _ in ranges]
    position = 0
    for piece in _all_sound(path, rate):
        for parts, (start, stop) in zip(kept, ranges, strict=True):
            if (part := piece[max(0, start - position) : max(0, stop - position)]).size:
                parts.append(part)
        position += len(piece)
    for parts in kept:
        channel.send("part", np.concatenate([np.zeros(0, np.int16), *parts]))


def resample(waveform: np.ndarray, sampling_rate: int, rate: int = SAMPLING_RATE) -> np.ndarray:
    """Bring a waveform `(channels, samples)` of any rate to what `read_audio` returns: `(samples,)` at `rate`."""
    mono = np.ascontiguousarray(waveform, dtype=np.float32).mean(axis=0, keepdims=True)
    if sampling_rate == rate:
        return mono[0]
    if av is None:
        raise ImportError(f"Resampling needs PyAV: `pip install av`. Or pass waveforms at {rate} Hz.")
    frame = av.AudioFrame.from_ndarray(mono, format="fltp", layout="mono")
    frame.sample_rate = sampling_rate
    return to_float(np.concatenate(list(_mono([frame], rate))))


def find_sidecar(path: str | os.PathLike) -> Path | None:
    """The subtitle file beside a video: its stem with `.srt`, `.vtt`, `.en.srt` or `.en.vtt`, in this order."""
    # os.path.exists: a name that is too long for the file system is one that no file has
    return next((file for suffix in _SIDECARS if os.path.exists(file := Path(path).with_suffix(suffix))), None)


def _join_lines(lines: Iterator[str]) -> str:
    """Join cue lines to one string; a line that repeats the one before it (rolling captions) counts once."""
    kept: list[str] = []
    for line in lines:
        line = " ".join(line.split())
        if line and (not kept or line != kept[-1]):
            kept.append(line)
    return " ".join(kept)


_TIME = r"((?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3})"
_TIMING = re.compile(rf"^\s*{_TIME}\s*-->\s*{_TIME}")
# only markup that players interpret: "<3" and "a < b" are speech
_MARKUP = re.compile(r"</?(?:[a-z]+(?:[.\s][^<>]*)?|\d+:\d{2}[\d:.]*(?:\s[^<>]*)?)>|\{\\[^{}]*\}", re.IGNORECASE)


def _seconds(time_of_cue: str) -> float:
    *_, hours, minutes, seconds = "0", *time_of_cue.replace(",", ".").split(":")
    return 3600 * float(hours) + 60 * float(minutes) + float(seconds)  # of thousands of digits too


def _is_said(start: float, stop: float, window: Window | None) -> bool:
    """Whether a cue is on the screen at some time of a window."""
    return window is None or (max(stop, start + 1e-3) > window[0] and (window[1] is None or start < window[1]))


def _cue_lines(text: str, is_vtt: bool, window: Window | None = None) -> Iterator[str]:
    in_cue, pending = False, None
    for line in text.splitlines():
        if timing := _TIMING.match(line):
            # what came just before is the number of this cue
            in_cue, pending = _is_said(*map(_seconds, timing.groups()), window), None
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


def _send_subtitle_file(path: str, channel: _Channel, window: Window | None = None) -> None:
    """Send an `.srt` or `.vtt` file, or the cues of a window, as one plain string."""
    check_file(path)
    most = int(_limits.memory) // _MEMORY_PER_SUBTITLE_BYTE
    with open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        size = os.path.getsize(path)
        what = f"a subtitle file of {size} bytes, of which {_MEMORY_PER_SUBTITLE_BYTE} times as many are needed"
        raise _limits.exceeded(path, "memory", what, size * _MEMORY_PER_SUBTITLE_BYTE)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MediaError(f"{path}: the subtitle file is not UTF-8 ({error.reason}). Convert it first.") from error
    is_vtt = text.startswith("WEBVTT")
    if text.strip() and not is_vtt and not any(map(_TIMING.match, text.splitlines())):
        raise MediaError(f"{path}: the subtitle file has text but no cue with a timing (`-->`).")
    text = _join_lines(html.unescape(_MARKUP.sub("", line)) for line in _cue_lines(text, is_vtt, window))
    channel.send("text", text.encode())


def _text_stream(container: "av.container.InputContainer") -> Any:
    """The first text track; `None` if there is none."""
    streams = (s for s in container.streams.subtitles if s.codec_context is not None)
    return next((s for s in streams if s.codec_context.name in _TEXT_SUBTITLES), None)


def _send_subtitle_track(path: str, channel: _Channel, window: Window | None = None) -> None:
    """Send the first text track inside a media file as `_send_subtitle_file` does; nothing if it has none."""
    with _open(path) as container:
        stream = _text_stream(container)
        if stream is None:
            return
        _select(container, stream)
        lines: list[str] = []
        most = int(_limits.memory) // _MEMORY_PER_SUBTITLE_BYTE
        length, zero, tick = 0, _zero(container), float(stream.time_base or 0)
        try:
            for packet in container.demux(stream):
                start = 0.0 if packet.pts is None else packet.pts * tick - zero
                if packet.size and not _is_said(start, start + (packet.duration or 0) * tick, window):
                    continue
                for subtitle in packet.decode():
                    length += len(subtitle.ass)
                    if length > most:
                        what = f"its text needs more than {most * _MEMORY_PER_SUBTITLE_BYTE} bytes"
                        raise _limits.exceeded(_describe(path, stream), "memory", what)
                    # ReadOrder, Layer, Style, Name, MarginL, MarginR, MarginV, Effect, Text
                    text = subtitle.ass.decode("utf-8").split(",", 8)[-1]
                    if re.search(r"\{[^{}]*\\p[1-9]", text):  # a drawing
                        continue
                    lines += re.split(r"\\[Nn]|\n", _MARKUP.sub("", text).replace(r"\h", " "))
        except MemoryError:
            raise
        except (av.FFmpegError, UnicodeDecodeError) as error:
            raise _damage(_describe(path, stream), "the subtitle track does not decode", error) from error
    channel.send("text", _join_lines(lines).encode())


def _send_header(path: str, channel: _Channel, stream: str) -> None:
    """Say whether the header promises a stream of a kind, and how many seconds, if it does."""
    with _open(path) as container:
        seconds = None if container.duration is None else container.duration / av.time_base
        channel.send("header", promised=_first_stream(path, container, stream) is not None, seconds=seconds)


def _seconds_in_header(container: "av.container.InputContainer") -> float | None:
    """How long the header says a file lasts; `None` where it does not, or it is a guess."""
    if container.duration is None or container.format.name in _UNTIMED:
        return None
    return container.duration / av.time_base


def _send_duration(path: str, channel: _Channel) -> None:
    """Say how many seconds a file lasts, by its header or, where that does not tell, by its packets."""
    with _open(path) as container:
        seconds = _seconds_in_header(container)
        if seconds is None:
            seconds = None if container.duration is None else container.duration / av.time_base
            ends = [
                float((packet.pts + (packet.duration or 0)) * packet.time_base)
                for packet in container.demux()
                if packet.pts is not None
            ]
            seconds = max(ends) - _zero(container) if ends else seconds
        if seconds is not None and seconds > _limits.duration:
            raise _limits.exceeded(path, "duration", f"it lasts {seconds:g} s", seconds)
        channel.send("header", promised=True, seconds=seconds)


_ANSWERS: dict[str, Callable] = {
    "frames": _send_frames,
    "sound": _send_sound,
    "subtitle_file": _send_subtitle_file,
    "subtitle_track": _send_subtitle_track,
    "header": _send_header,
    "duration": _send_duration,
}


def _answer(request: dict[str, Any], channel: _Channel) -> None:
    """Answer one request; whatever goes wrong is told, and the last message is `done`, `error` or `memory`."""
    global _limits
    path = request["path"]
    _limits = Limits(**request["limits"])
    _Weight.is_heavy, _Weight.pixels = request["is_heavy"], 0
    if request["options"].get("window") is None:
        _Known.path, _Known.found = None, {}  # it takes memory
    try:
        _ANSWERS[request["what"]](path, channel, **request["options"])
    except MemoryError:
        channel.send("memory")
    except LimitError as error:
        channel.send("error", error="limit", message=str(error)[:_LONGEST_MESSAGE])
    except MediaError as error:
        # decoders pass on any error as "invalid data", also that the pictures do not fit into the memory
        if _Weight.pixels * _MOST_BYTES_PER_PIXEL > request["memory"]:
            channel.send("memory", message=str(error)[:_LONGEST_MESSAGE])
        else:
            channel.send("error", error="media", message=str(error)[:_LONGEST_MESSAGE])
    except OSError as error:
        kind = "media"
        if isinstance(error, FileNotFoundError) and not os.path.exists(path):
            kind = "missing"
        elif isinstance(error, PermissionError) and not os.access(path, os.R_OK):
            kind = "denied"
        channel.send("error", error=kind, message=f"{path}: reading failed ({error})."[:_LONGEST_MESSAGE])
    except Exception as error:
        message = (
            f"{path}: an unexpected fault of the reader; please report it with the file, if you can: "
            f"{type(error).__name__}: {error}"
        )
        channel.send("error", error="media", message=message[:_LONGEST_MESSAGE])
    else:
        channel.send("done")


def _restrict(limits: dict[str, float], memory: int, data_at_start: int | None) -> None:
    """Bound this process: beyond its memory allocations fail, beyond its time the system ends it."""
    if os.name != "posix":
        return
    bounds = {resource.RLIMIT_CPU: math.ceil(time.process_time() + limits["time"])}
    if data_at_start is not None:
        bounds[resource.RLIMIT_DATA] = data_at_start + int(memory)
    for kind, bound in bounds.items():
        _, hard = resource.getrlimit(kind)  # of whoever started this program: it cannot be raised
        resource.setrlimit(kind, (bound if hard == resource.RLIM_INFINITY else min(bound, hard), hard))


def _data_size() -> int | None:
    """Bytes of private writable memory, which `RLIMIT_DATA` bounds on Linux; `None` elsewhere."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            return int(re.search(r"VmData:\s*(\d+) kB", file.read())[1]) * 1024
    except (OSError, TypeError):
        return None


def _serve() -> None:
    """Answer requests until nobody asks any more."""
    # what a library prints must not get between the messages
    source, sink = (os.fdopen(os.dup(number), mode, buffering=0) for number, mode in ((0, "rb"), (1, "wb")))
    for number in (0, 1):
        os.dup2(2, number)
    if os.name == "posix":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in ("encodings.utf_8_sig", "av.subtitles.stream", "av.subtitles.codeccontext", "av.subtitles.subtitle"):
        with suppress(ImportError):
            import_module(name)  # otherwise loaded when needed: files would make this process open others
    channel, data_at_start = _Channel(source, sink), _data_size()
    channel.send("ready")
    while (request := channel.receive()) is not None:
        _restrict(request["limits"], request["memory"], data_at_start)
        _answer(request, channel)


__all__ = [
    "SAMPLING_RATE",
    "LimitError",
    "Limits",
    "MediaError",
    "check_file",
    "find_sidecar",
    "resample",
    "to_float",
]

if __name__ == "__main__":
    try:
        _serve()
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(1)
