"""Read frames, sound and subtitles of media files with PyAV: the one reader of media.

Frames are addressed by their index in presentation order. A missing stream is absent, and damage in a stream is an
error, or is skipped and reported. Only NumPy and PyAV are imported, so that a process that reads files starts quickly.
"""

import copy
import math
import os
import re
import stat
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, count, groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from .tracks_scalar import (
    AnyPath,
    Cue,
    MediaError,
    av,
    caption_cues,
    captions_in,
    check_memory,
    find_sidecar,
    is_text,
    join_lines,
    main_stream,
    rank_of_track,
    stream_name,
    subtitle_cues,
    track_cues,
)

SAMPLING_RATE = 16_000
IN_PART = "be read"
"""Phrase in messages on damaged streams that were read in part."""
# Without this list FFmpeg renders any text as video (tty), reads single pictures as clips, and follows references to
# other files and hosts (concat, hls, dash).
_DEMUXERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,asf,flv,f4v,mpeg,mpegts,mpegvideo,m4v,h264,hevc,av1,ivf,obu,ogg,gif,mxf,"
    "nut,rm,dv,wtv,yuv4mpegpipe,wav,w64,mp3,flac,aac,ac3,eac3,aiff,au,caf,amr,wv,ape,tta"
)
# Transfer characteristics that are HDR, as in ITU-T H.273.
_PQ = 16
_HLG = 18
_WHITE = 203.0  # cd/m2 of white in HDR (ITU-R BT.2408)
_KNEE = np.float32(0.3)  # of tone mapping, in multiples of white
# Of light of BT.2020: its luminance, and what it is in BT.709 (ITU-R BT.2407).
_LUMINANCE = np.array([0.2627, 0.678, 0.0593], np.float32)
_TO_BT709 = np.array([[1.6605, -0.1246, -0.0182], [-0.5876, 1.1329, -0.1006], [-0.0728, -0.0083, 1.1187]], np.float32)
_STRIP = 64  # rows
_UPRIGHT = np.eye(3, dtype=np.int32)  # a display matrix
_GAP = 0.25  # seconds; sound whose timestamps jump by more is missing in between
_MARRED = 1.0  # seconds; pictures that build on a damaged one are shown from then on, if no keyframe comes before
_MOST_OF = 0.95  # of what a container promises, which is rarely exact
_MOST_ERRORS = 100  # of a demuxer, one after the other
_MOST_PASSES = 8  # over frames of which some turn out to be damaged
_MEMORY_PER_BYTE = 256  # of subtitles: lines, their copies, and their tokens

Window = tuple[float, float | None]
"""The start and end of a part of a file in seconds from its beginning; None is its end."""
Choose = Callable[[int], Sequence[Any]]
"""From the number of frames or samples to the indices, or ranges, to read; it may be called again."""
Prepare = Callable[[int, int], Callable[[np.ndarray], Any]]
"""Called with height and width before the first frame; returns a function to call with each picture."""
Select = Callable[[Sequence[float]], Sequence[int]]
"""From the seconds of frames, in order, to the indices of those to read; it may be called again."""
Lose = Callable[[Any, "_Damage"], None]
"""Called with a packet that does not decode, or a frame that is damaged, and why."""


class _Damage(MediaError):
    """A part of a stream does not decode. `reason`: why, in a few words."""

    reason = "damaged"


class _UnreliableTimestamps(Exception):
    """The timestamps of a stream do not lead to its frames."""


def check_installed() -> None:
    """Raise an ImportError unless PyAV is installed."""
    if av is None:
        raise ImportError("Reading media files needs PyAV: `pip install av`. Or pass frames, and waveforms at 16 kHz.")


def check_file(path: AnyPath) -> None:
    """Raise a MediaError unless a file, or the target of a link, is a regular file: a pipe might be read forever."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a null character
        raise FileNotFoundError(f"No such media file: {os.fspath(path)!r}.") from error
    if not stat.S_ISREG(mode):
        raise MediaError(f"{path}: not a regular file but a folder, a pipe, a socket or a device.")


def check_content(path: AnyPath) -> None:
    """Raise a MediaError unless a file is regular and has a size. Files that the system generates, such as /proc/kmsg,
    have none, and reading them might never end."""
    check_file(path)
    if not os.path.getsize(path):
        raise MediaError(f"{path}: not a readable video or audio file: it is empty.")


@dataclass(eq=False)
class Packets:
    """The packets of a stream in the order of decoding, read without decoding."""

    name: str  # the file and the stream, as in errors
    pts: np.ndarray  # (packets,) int64, in ticks
    dts: np.ndarray
    sizes: np.ndarray  # in bytes
    keys: np.ndarray  # (packets,) bool: keyframes
    hidden: np.ndarray  # (packets,) bool: decoded, but not shown
    is_named: bool  # whether timestamps identify the frames
    tick: float  # seconds
    zero: float  # where the file begins, in seconds on the clock of the stream
    start: float  # where the stream begins
    end: float  # where its last packet ends
    seconds: float  # the durations of all packets together
    captions: list[Cue]  # of captions inside pictures
    corrupt: np.ndarray  # pts of those that the demuxer calls damaged
    stop: int | None  # the byte of the file at which the last one ends
    missing: MediaError | None = None  # why there are fewer than the container promises
    ends_early: bool = False  # whether those at its end are missing
    vanished: Sequence[float] = ()  # the seconds of the file at which damage has left no packet

    def __len__(self) -> int:
        return len(self.pts)

    @property
    def lead(self) -> float:
        """The second of the file at which the stream begins."""
        return self.start - self.zero

    def missing_in(self, window: Window | None) -> MediaError | None:
        """`missing`, unless the window ends before, or packets that have vanished are all that is missing."""
        is_before = window is not None and window[1] is not None and window[1] <= self.end - self.zero
        if self.missing is not None and not is_before and (self.ends_early or not self.vanished):
            return self.missing
        vanished = inside(self.vanished, window)
        if not vanished:
            return None
        what = f"nothing could be read from {vanished[0]:.1f} s on"
        return MediaError(f"{self.name}: {what}. The file is damaged.")

    def in_presentation_order(self) -> np.ndarray:
        """The indices of the packets in the order of presentation, from the first keyframe on."""
        first = int(self.keys.argmax())
        is_presented = ~self.hidden & (self.pts >= self.pts[first])
        is_presented[:first] = False
        places = np.flatnonzero(is_presented)
        return places[np.argsort(self.pts[places], kind="stable")]

    def is_at(self, place: int, packet: Any) -> bool:
        """Whether this is the packet at a place."""
        return place < len(self) and (packet.pts, packet.size) == (self.pts[place], self.sizes[place])

    def key_of(self, place: int) -> int:
        """The last keyframe from which a packet decodes: not one of which it is a leading picture (open GOP)."""
        keys = np.flatnonzero(self.keys[: place + 1])
        return int(keys[self.pts[keys] <= self.pts[place]][-1])

    def dependents(self, place: int) -> np.ndarray:
        """The packets of which damage to one can be seen: it and those before the next keyframe, and after that the
        pictures that lead it, within a second. Where keyframes are rare, later ones are almost right."""
        keys = np.flatnonzero(self.keys[place + 1 :]) + place + 1
        key, stop = np.append(keys[:2], [len(self), len(self)])[:2]
        places = np.arange(place, stop)
        is_dependent = (places < key) | (self.pts[places] < self.pts[min(key, len(self) - 1)])
        return places[is_dependent & (self.pts[places] < self.pts[place] + _MARRED / self.tick)]


def truncation_error(path: AnyPath, stream: Any, promised: str, came: str) -> MediaError:
    """The error of a stream that ended early."""
    name = stream_name(path, stream)
    return MediaError(f"{name}: the container promises {promised}, {came} came. The file is truncated or damaged.")


def zero_of(container: Any) -> float:
    """The second at which a file begins, on the clock of its streams."""
    return (container.start_time or 0) / av.time_base


def list_packets(path: AnyPath, container: Any, stream: Any, demuxed: Iterable) -> Packets:
    """List the packets of a stream, `demuxed`, without decoding."""
    # Compact columns: a long film has a million packets.
    pts = array("q")
    dts = array("q")
    sizes = array("q")
    keys = bytearray()
    hidden = bytearray()
    corrupt = array("q")
    last = None
    captions = []
    cues = []
    seconds = 0.0
    end = 0.0
    has_times = True
    tick = float(stream.time_base or 0)
    zero = zero_of(container)
    for packet in demuxed:
        if packet.size == 0 and packet.dts is None:  # PyAV's flush packet
            continue
        duration = (packet.duration or 0) * tick
        seconds += duration
        if packet.pts is None:
            has_times = False
        else:
            end = max(end, packet.pts * tick + duration)
            words = captions_in(packet)
            if words:
                captions.append((packet.pts * tick - zero, words))
        pts.append(packet.pts or 0)
        dts.append(pts[-1] if packet.dts is None else packet.dts)
        sizes.append(packet.size)
        keys.append(packet.is_keyframe)
        hidden.append(packet.is_discard)
        last = packet
        if packet.is_corrupt:
            corrupt.append(pts[-1])
    if captions:
        captions.append((end - zero, "942c"))  # the command that ends the last one
        cues = caption_cues(stream_name(path, stream), captions)
    # Whether a frame can be found by its time.
    # AVI has no presentation times, FFmpeg guesses them; VP8 has packets that are never shown, without marking them
    context = stream.codec_context
    is_vague = context.name == "vp8" or (container.format.name == "avi" and getattr(context, "has_b_frames", False))
    is_named = has_times and not is_vague and any(keys) and len(set(pts)) == len(pts)
    start = zero if stream.start_time is None else stream.start_time * tick
    return Packets(
        name=stream_name(path, stream),
        pts=np.array(pts, np.int64),
        dts=np.array(dts, np.int64),
        sizes=np.array(sizes, np.int64),
        keys=np.array(keys, bool),
        hidden=np.array(hidden, bool),
        is_named=is_named,
        tick=tick,
        zero=zero,
        start=start,
        end=end or zero + seconds,
        seconds=seconds,
        captions=cues,
        corrupt=np.array(corrupt, np.int64),
        stop=None if last is None or last.pos is None else last.pos + last.size,
    )


def inside(seconds: Iterable[float], window: Window | None) -> list[float]:
    """The seconds that lie in a window."""
    start, stop = window or (-math.inf, None)
    return [second for second in seconds if second >= start and (stop is None or second < stop)]


def in_window(times: Sequence[float], end: float, window: Window | None) -> np.ndarray:
    """The indices of the frames that appear at these times and are visible in a window; the last one stays until
    `end`."""
    times = np.asarray(times, float)
    if window is None:
        return np.arange(len(times))
    start, stop = window
    # clocks are rounded; what comes before the start of the file belongs to its start
    is_inside = (times >= start - 1e-6) | (start <= 0)
    if stop is not None:
        is_inside &= times < stop - 1e-6
    before = np.flatnonzero(times < start)
    if not is_inside.any() and len(before) and (before[-1] + 1 < len(times) or end > start):
        return before[-1:]  # a frame that stays visible
    return np.flatnonzero(is_inside)


@lru_cache
def _light_of(transfer: int) -> np.ndarray:
    """The light of each 16-bit code by ITU-R BT.2100, float32 `(65536,)`: of PQ on the display, in multiples of SDR's
    white; of HLG in the scene, in multiples of its peak."""
    signal = np.linspace(0, 1, 2**16)
    if transfer == _PQ:
        power = signal ** (32 / 2523)
        base = np.maximum(power - 107 / 128, 0) / (2413 / 128 - 2392 / 128 * power)
        light = 10_000 / _WHITE * base ** (8192 / 1305)
    else:
        light = np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - 0.55991073) / 0.17883277) + 0.28466892) / 12)
    return light.astype(np.float32)


def to_sdr(codes: np.ndarray, transfer: int) -> np.ndarray:
    """
    Tone-map a picture of ITU-R BT.2100: the brightest channel follows the Möbius curve of FFmpeg's `tonemap` filter,
    and the others keep their ratio to it. Up to 61 cd/m2 nothing changes, 203 cd/m2 become 0.68 of white, 1,000 cd/m2
    and more become white.

    Args:
        codes (`np.ndarray`): uint16 `(height, width, 3)`, RGB of full range.
        transfer (`int`): 16 for PQ, 18 for HLG, as in ITU-T H.273.

    Returns:
        uint8 `(height, width, 3)`, RGB of BT.709, for a screen with a gamma of 2.4 (ITU-R BT.1886).
    """
    picture = np.empty(codes.shape, np.uint8)
    for start in range(0, len(codes), _STRIP):  # light takes much memory
        light = _light_of(transfer)[codes[start : start + _STRIP]]
        if transfer == _HLG:  # from the scene to a display of 1,000 cd/m2
            luminance = light @ _LUMINANCE
            light *= 1000 / _WHITE * luminance[..., None] ** 0.2
        red, green, blue = np.moveaxis(light @ _TO_BT709, 2, 0)
        brightest = np.maximum(np.maximum(red, green), blue)
        # From 0.3 on a hyperbola, which begins with the slope of the straight line and reaches 1 at 1,000 cd/m2.
        bent = np.maximum(brightest, _KNEE)
        gain = np.where(brightest > _KNEE, 1.1248 * (bent - 0.08001) / (bent + 0.52481) / bent, 1)
        linear = np.stack([red, green, blue], axis=2) * gain[..., None]
        picture[start : start + _STRIP] = np.clip(linear, 0, 1) ** (1 / 2.4) * 255 + 0.5
    return picture


def orientation(matrix: Any) -> tuple[bool, bool, bool]:
    """
    Whether a picture must be transposed, then mirrored left to right, then top to bottom: the nearest of eight ways.

    Args:
        matrix (bytes-like): a display matrix, 9 native int32; the first two rows of three say what `x` and `y` in the
            picture add to `x` and `y` on the screen.
    """
    x_to_x, x_to_y, _, y_to_x, y_to_y = np.frombuffer(matrix, np.int32)[:5].tolist()
    if abs(x_to_x) + abs(y_to_y) < abs(x_to_y) + abs(y_to_x):
        return True, y_to_x < 0, x_to_y < 0
    return False, x_to_x < 0, y_to_y < 0


class Upright:
    """Converts the frames of a stream, named in errors, to uint8 pictures `(height, width, 3)`, RGB of BT.709 and
    upright, all turned like the first one and of its size; this is shrunk until no side is longer than `side`, if
    given."""

    def __init__(self, name: str, side: int | None = None):
        self.name = name
        self.side = side or math.inf
        self.size = None  # of the first picture
        self.turn = (False, False, False)
        self._reformatter = av.video.reformatter.VideoReformatter()

    def __call__(self, frame: "av.VideoFrame") -> np.ndarray:
        # Only of the first frame: in PyAV, a frame whose side data were looked at is kept until garbage is collected.
        if self.size is None:
            self.turn = orientation(frame.side_data.get("DISPLAYMATRIX", _UPRIGHT))
        is_transposed, is_mirrored, is_upside_down = self.turn
        # The pictures of a clip are stacked, so they have the size of the first one.
        size = [frame.width, frame.height]
        if is_transposed:
            size.reverse()
        if self.size is None:
            share = min(1.0, self.side / max(size))
            self.size = [max(1, round(share * length)) for length in size]
        # Scale while converting, which is faster than doing both.
        options = {"format": "rgb24", "threads": 1}
        if size != self.size:
            width, height = self.size
            if is_transposed:
                width, height = height, width
            options |= {"width": width, "height": height, "interpolation": "AREA"}
        is_hdr = frame.color_trc in (_PQ, _HLG)
        if is_hdr:
            options["format"] = "rgb48le"
        try:
            image = self._reformatter.reformat(frame, **options).to_ndarray()
        except av.FFmpegError as error:
            check_memory(error)
            what = f"a picture of {frame.width}x{frame.height} cannot be scaled ({error.strerror})"
            raise MediaError(f"{self.name}: {what}. Convert the file.") from error
        if is_hdr:
            image = to_sdr(image, frame.color_trc)
        if is_transposed:
            image = image.transpose(1, 0, 2)
        if is_mirrored:
            image = image[:, ::-1]
        if is_upside_down:
            image = image[::-1]
        return np.ascontiguousarray(image)


def mono(frames: Iterable, rate: int = SAMPLING_RATE) -> Iterator[np.ndarray]:
    """Resample audio frames to 16-bit mono: the mean of the channels, as in Kaldi's recipes.

    A float mono target would not be the mean: libswresample then adds stereo channels with factor 0.707, 3 dB louder.
    """
    # HE-AAC may change its rate within a stream
    for _, alike in groupby(frames, attrgetter("format.name", "layout.name", "sample_rate")):
        resampler = av.AudioResampler(format="s16", layout="mono", rate=rate)
        for frame in chain(alike, [None]):  # which ends it
            for piece in resampler.resample(frame):
                yield piece.to_ndarray()[0]


def _can_be_mixed(frame: Any) -> bool:
    """Whether FFmpeg has a rule to mix the channels of an audio frame: not of eleven in no known order, as noise in a
    packet may say."""
    # Of an empty one, as resampling a frame gives it another layout.
    empty = av.AudioFrame(frame.format.name, frame.layout.name, frame.samples)
    empty.sample_rate = frame.sample_rate
    try:
        next(mono([empty]), None)
    except av.ArgumentError:
        return False
    return True


def placed(frames: Iterable, position: float, origin: float) -> Iterator[tuple[float, Any]]:
    """Audio frames, the first of which begins at a second of the track, each with the second at which the frames begin
    that it follows without a gap; `origin` is the track's beginning on the clock of the stream."""
    seconds = 0.0
    for frame in frames:
        start = end = position + seconds
        if frame.pts is not None:
            start = float(frame.pts * frame.time_base) - origin
        if abs(start - end) > _GAP:
            position = start
            seconds = 0.0
        seconds += frame.samples / frame.sample_rate
        yield position, frame


def sound_of_span(
    frames: Iterable, position: float, origin: float, start: int, stop: int | None, rate: int
) -> Iterator[np.ndarray]:
    """The samples from `start` to `stop` of audio frames, in 16-bit mono and in pieces. Where the timestamps of frames
    have a gap, samples are missing. `position`, `origin`: see `placed`."""
    if not start and stop is None:
        yield from mono(frames, rate)
        return
    for second, run in groupby(placed(frames, position, origin), itemgetter(0)):
        begin = place = round(second * rate)
        for piece in mono((frame for _, frame in run), rate):
            last = len(piece) if stop is None else max(0, stop - place)
            yield piece[max(0, start - place) : last]
            place += len(piece)
            # The end, unless it is a single frame with noise in its timestamp.
            if stop is not None and place >= stop and place > begin + _GAP * rate:
                return


def to_float(samples: np.ndarray) -> np.ndarray:
    """16-bit samples as float32 in [-1, 1)."""
    return samples.astype(np.float32) / 2**15


def resample(waveform: np.ndarray, sampling_rate: int, rate: int = SAMPLING_RATE) -> np.ndarray:
    """Convert a waveform `(channels, samples)` of any rate to the format of `read_audio`: `(samples,)` at `rate`."""
    averaged = np.ascontiguousarray(waveform, dtype=np.float32).mean(axis=0, keepdims=True)
    if sampling_rate == rate:
        return averaged[0]
    check_installed()
    frame = av.AudioFrame.from_ndarray(averaged, format="fltp", layout="mono")
    frame.sample_rate = sampling_rate
    return to_float(np.concatenate(list(mono([frame], rate))))


def text_in(cues: Iterable[Cue], window: Window | None = None) -> str:
    """The words of the cues that are visible in a window, as one string."""
    # A cue counts if any part of it is visible; one without duration is visible for a moment.
    start, stop = window or (-math.inf, None)
    lines = []
    for begins, ends, cue_lines in cues:
        if max(ends, begins + 1e-3) > start and (stop is None or begins < stop):
            lines += cue_lines
    return join_lines(lines)


_LOSS = re.compile(rf"(.+: )([\d.]+) of ([\d.]+)( .+ could not {IN_PART}, .+)")


def joined_losses(problems: Iterable[str]) -> dict[str, list[str]]:
    """Join sentences on what was lost of the same stream in several windows: from each sentence to those it joins."""
    groups = defaultdict(list)
    for problem in problems:
        match = _LOSS.fullmatch(problem)
        groups[problem if match is None else match[1]].append((problem, match))
    sentences = {}
    for group in groups.values():
        sentence, match = group[0]
        if match is not None and len(group) > 1:
            amount, total = np.sum([(float(match[2]), float(match[3])) for _, match in group], axis=0)
            sentence = f"{match[1]}{amount:.10g} of {total:.10g}{match[4]}"
        sentences[sentence] = [problem for problem, _ in group]
    return sentences


@dataclass
class _Losses:
    """What is lost of a stream by damage: the seconds of its packets or frames, and the first damage."""

    packets: Packets
    seconds: list[float] = field(default_factory=list)
    damage: _Damage | None = None

    def add(self, item: Any, damage: _Damage) -> None:
        """Add a packet that does not decode, or a damaged frame."""
        self.damage = self.damage or damage
        pts = item.dts if item.pts is None else item.pts
        self.seconds.append((pts or 0) * self.packets.tick - self.packets.zero)

    def sentence(self, window: Window | None, read: float, each: float, unit: str) -> str | None:
        """A sentence on what is lost in a window in which so much was `read`; `each` is what a loss costs."""
        # Sound may have been decoded twice, to find a part of it.
        lost = inside({*self.seconds, *self.packets.vanished}, window)
        if not lost:
            return None
        amount = round(each * len(lost), 2)
        how_much = f"{amount:.10g} of {round(read + amount, 2):.10g} {unit} could not {IN_PART}"
        reason = (self.damage or _Damage).reason
        return f"{self.packets.name}: {how_much}, the first at {max(0.0, min(lost)):.1f} s ({reason})."


@dataclass(eq=False)
class _VideoReader:
    """Reads frames of an open video stream as [`MediaReader.read_timed_frames`] does.

    Damage is an error or, if the reader reports it, costs the frames that are damaged and those that depend on them,
    up to the next keyframe. `num_frames` is the number of the others in the window.
    """

    reader: "MediaReader"
    path: AnyPath
    container: Any
    stream: Any
    packets: Packets
    select: Select
    window: Window | None
    prepare: Prepare | None
    side: int | None
    losses: _Losses
    num_frames: int = 0
    _around: Window | None = None
    _place: int = -2  # of the last packet that was decoded

    def read(self) -> list[tuple[float, Any]]:
        """Read frames."""
        packets = self.packets
        # Find frames by their times, decoding only from the keyframe before each.
        if packets.is_named:
            places = packets.in_presentation_order()
            seconds = packets.pts[places] * packets.tick - packets.zero
            self._is_lost = np.zeros(len(packets), bool)
            try:
                return self._read_places(places, seconds, self._decode_places)
            except _UnreliableTimestamps:
                pass
        # Otherwise decode all frames, or those around the window, once to count them and once to read some.
        for around in (self.window if packets.is_named else None, None):
            self._around = around
            self.losses = _Losses(packets)
            times = [frame.time for frame in self._decode_all(self.losses)]
            is_timed = None not in times and sorted(times) == times
            if around is None or (is_timed and times and times[0] - packets.zero <= around[0]):
                break
        if not is_timed:  # then assume even spacing
            length = packets.end - packets.zero
            times = [packets.zero + length * number / len(times) for number in range(len(times))]
        if not times:
            raise self.losses.damage or _Damage(
                f"{packets.name}: {len(packets)} packets, but none decodes to a frame."
            )
        self._is_lost = np.zeros(len(times), bool)
        return self._read_places(np.arange(len(times)), np.array(times) - packets.zero, self._decode_numbers)

    def _read_places(self, places: np.ndarray, seconds: np.ndarray, decode: Callable) -> list[tuple[float, Any]]:
        """Read frames from places in the stream, that appear at these seconds."""
        inside = in_window(seconds, self.packets.end - self.packets.zero, self.window)
        places = places[inside]
        seconds = seconds[inside]
        is_found = np.zeros_like(self._is_lost)
        # Choose again if frames turn out to be damaged, in the end among those that were read.
        for num_passes in count():
            is_left = ~self._is_lost[places]
            self.num_frames = int(is_left.sum())
            if self.num_frames < len(places):
                self.losses.seconds = seconds[~is_left].tolist()
            if num_passes >= _MOST_PASSES:
                is_left &= is_found[places]
            if not is_left.any():
                return []
            left_seconds = seconds[is_left].tolist()
            left = places[is_left]
            # A frame may be chosen several times, and is decoded once.
            chosen = list(self.select(left_seconds))
            wanted = sorted(set(chosen))
            upright = Upright(self.packets.name, self.side)
            process = None
            pictures = {}
            for index, frame in zip(wanted, decode(left[wanted]), strict=True):
                if frame is None:
                    continue
                picture = upright(frame)
                if self.prepare is not None:
                    process = process or self.prepare(*picture.shape[:2])
                    picture = process(picture)
                pictures[index] = picture
                is_found[left[index]] = True
            if len(pictures) == len(wanted):
                return [(left_seconds[index], pictures[index]) for index in chosen]

    def _lose(self, item: Any, damage: _Damage) -> None:
        """Note a packet that does not decode, or a damaged frame, and what depends on it."""
        self.losses.damage = self.losses.damage or damage
        for place in np.flatnonzero((self.packets.pts == item.pts) & ~self._is_lost):
            # Noise may begin in the packet before, unnoticed.
            if not self.packets.keys[place]:
                place = max(0, place - 1)
            self._is_lost[self.packets.dependents(place)] = True

    def _decode_all(self, losses: _Losses) -> Iterator[Any]:
        """Decode all frames, or those around a window; after damage from the next keyframe or second on."""
        start, stop = self._around or (0.0, None)
        zero = self.packets.zero
        num_lost = 0
        marred_until = -math.inf
        with self.reader.opened(self.path) as container:
            stream = main_stream(self.path, container, "video")
            if start:
                with suppress(av.FFmpegError):
                    container.seek(round((zero + start) * av.time_base))
            for frame in self.reader.decoded(self.path, stream, self.reader.demuxed(container, stream), losses.add):
                second = (frame.time or 0.0) - zero
                if len(losses.seconds) > num_lost:
                    num_lost = len(losses.seconds)
                    marred_until = losses.seconds[-1] + _MARRED
                if second < marred_until and not frame.key_frame:
                    losses.add(frame, losses.damage)
                    num_lost += 1
                    continue
                marred_until = -math.inf
                yield frame
                if stop is not None and (frame.time or 0.0) > zero + stop:
                    return

    def _decode_numbers(self, numbers: np.ndarray) -> Iterator[Any]:
        """Decode frames by their numbers, in order."""
        frames = enumerate(self._decode_all(_Losses(self.packets)))
        for wanted in numbers.tolist():
            yield next(frame for number, frame in frames if number == wanted)

    def _decode_places(self, places: np.ndarray) -> Iterator[Any]:
        """Decode the frames of packets, in order of presentation, each from the keyframe before it; None for one that
        is lost by damage."""
        self._place = -2
        timestamps = self.packets.pts[places].tolist()
        for place, timestamp in zip(places.tolist(), timestamps, strict=True):
            key = self.packets.key_of(place)
            if key > self._place + 1:  # nothing before it is needed
                frames = self._decode_from(key, set(timestamps))
                frame = None
            # The frame at hand is that of the last place, or a later one.
            while frame is None or frame.pts < timestamp:
                frame = next(frames, None)
                if frame is None:
                    break
            if frame is not None and frame.pts == timestamp and not self._is_lost[place]:
                yield frame
                continue
            if self.losses.damage is None:
                raise _UnreliableTimestamps
            self._is_lost[place] = True
            yield None

    def _decode_from(self, key: int, wanted: set[int]) -> Iterator[Any]:
        """Decode the frames from a keyframe on."""
        first = int(self.packets.pts[key])
        context = self.stream.codec_context
        if context.name == "hevc":  # which would give nothing between damage and the next keyframe
            context.flags |= av.codec.context.Flags.output_corrupt
        for frame in self.reader.decoded(self.path, self.stream, self._packets_from(key, wanted), self._lose):
            if frame.pts is None:
                raise _UnreliableTimestamps
            if frame.pts >= first:  # no leading picture, which needs the keyframe before
                yield frame

    def _packets_from(self, key: int, wanted: set[int]) -> Iterator[Any]:
        """The packets from a keyframe on, if they are those that were listed."""
        packets = self.packets
        context = self.stream.codec_context
        # By its dts, which is not later than its pts, by which Matroska seeks.
        try:
            self.container.seek(int(packets.dts[key]), stream=self.stream)
        except av.FFmpegError as error:
            raise _UnreliableTimestamps from error
        self._place = None
        for packet in self.reader.demuxed(self.container, self.stream):
            # A seek may lead to an earlier packet.
            if self._place is None and packet.pts == packets.pts[key]:
                self._place = key - 1
            if self._place is None:
                continue
            if packet.size or packet.dts is not None:
                self._place += 1
                # if packets are missing, some demuxers count differently after a seek
                if not packets.is_at(self._place, packet):
                    raise _UnreliableTimestamps
                if packet.is_corrupt:
                    self.reader.lose_or_raise(packet, _Damage(f"{packets.name}: a packet is damaged."), self._lose)
                if context.name == "h264":  # nothing depends on a non-reference picture: skip it unless requested
                    context.skip_frame = "NONREF"
                    if packet.pts in wanted:
                        context.skip_frame = "DEFAULT"
            yield packet


class MediaReader:
    """Opens files for a processor, in this process: for trusted files.

    A file that makes FFmpeg crash or use all memory affects this process.
    [`~scalar_retrieval.gallery.decoding.SandboxedReader`] reads the same in other processes, within limits.

    All methods raise FileNotFoundError if the file does not exist; MediaError if it is not a regular file of a known
    format, fewer packets came than the container promises, or decoding fails; ImportError if PyAV is not installed.
    A `window` is the part of the file to read, `(start, stop)` in seconds; None is its end.

    Attributes:
        on_error (`str`): For a damaged stream, a processor's `read_clip` can `"raise"` a `MediaError`, or treat it as
            `"missing"`, except for what can be read of it, with a line in `Clip.problems`.
    """

    on_error = "raise"
    options: dict[str, str] = {}  # of FFmpeg's demuxers and decoders
    may_lack_memory = False  # whether there is more for a file that needs it
    _report: Callable[[str], Any] | None = None
    # Of the last two streams, shared by all readers: windows are read one by one.
    _cached_packets: dict[tuple, Packets] = {}

    @property
    def is_tolerant(self) -> bool:
        """Whether a damaged stream counts as missing."""
        return self.on_error == "missing"

    def reporting_to(self, report: Callable[[str], Any] | None) -> "MediaReader":
        """
        Return a reader that skips what is damaged of a stream; if nothing else is in it, it is an error.

        Args:
            report (`Callable`, *optional*): called with a sentence on each damaged stream: how much is missing, and
                why. With None, any damage is an error.
        """
        reader = copy.copy(self)
        reader._report = report
        return reader

    def check(self, where: str, limit: str, needed: float | None, what: str) -> None:
        """Called with what a stream needs of a limit, None for more than that, for readers that have limits."""

    @contextmanager
    def opened(self, path: AnyPath) -> Iterator["av.container.InputContainer"]:
        """Open a file and nothing else."""
        check_installed()
        check_content(path)
        # Only known formats, and no other file or host that a file refers to.
        options = self.options | {"format_whitelist": _DEMUXERS, "protocol_whitelist": "file"}
        try:
            # "file:" keeps names such as "a:b.mp4" from being read as a protocol
            container = av.open(f"file:{os.fspath(path)}", options=options, metadata_errors="replace")
        except av.FFmpegError as error:
            # FFmpeg calls some damage a lack of permission, too
            if isinstance(error, PermissionError) and not os.access(path, os.R_OK):
                raise PermissionError(error.errno, error.strerror, os.fspath(path)) from error
            check_memory(error)
            what = f"not a readable video or audio file ({error.strerror})"
            raise MediaError(f"{path}: {what}. Is it empty, truncated, or of another type?") from error
        with container:
            if not container.streams.video and not container.streams.audio:
                raise MediaError(f"{path}: the {container.format.name} file holds neither video nor audio.")
            yield container

    def demuxed(self, container: Any, streams: Any, errors: list[Exception] | None = None) -> Iterator[Any]:
        """The packets of a stream, or of several. Where a demuxer fails, it goes on behind that, and the error is
        added to `errors`."""
        num_errors = 0
        while num_errors < _MOST_ERRORS:
            try:
                for packet in container.demux(streams):
                    num_errors = 0
                    yield packet
                return
            except IndexError:  # in the end, PyAV misses the streams that noise has added
                return
            except av.FFmpegError as error:
                # Noise in a size asks for any memory, too.
                if self.may_lack_memory:
                    check_memory(error)
                num_errors += 1
                if errors is not None:
                    errors.append(error)

    def find_truncation(self, path: AnyPath, container: Any, stream: Any, packets: Packets) -> MediaError | None:
        """The error of a stream of which less came than the container promises, if so."""
        # Each container format has its own count of the packets of a stream.
        kind = container.format.name
        promised = stream.frames
        if "mp4" in kind and (len(packets) or stream.index_entries):
            # the sample table also counts packets that an edit list trims; the index built from both does not
            promised = len(stream.index_entries)
        # the first counts frames that are repeated without a packet, the others samples
        if kind not in ("avi", "aiff", "caf", "flac") and len(packets) < promised:
            return truncation_error(path, stream, f"{promised} packets", f"{len(packets)}")
        return None

    def find_vanished(self, path: AnyPath, container: Any, stream: Any, packets: Packets) -> list[float]:
        """The seconds of the file at which packets of a stream are missing by damage, without an error; readers of
        single files do not look for them."""
        return []

    def packets_of(self, path: AnyPath, kind: str) -> Packets | None:
        """The packets of the first stream of a kind; `None` if there is no stream."""
        # Packets are listed once for all windows of a file, as long as it does not change.
        check_content(path)
        status = os.stat(path)
        key = (type(self), kind, os.path.abspath(path), status.st_size, status.st_mtime_ns)
        packets = self._cached_packets.get(key)
        if packets is None:
            with self.opened(path) as container:
                stream = main_stream(path, container, kind)
                if stream is None:
                    return None
                errors = []
                packets = list_packets(path, container, stream, self.demuxed(container, stream, errors))
                promised = (container.duration or math.inf) / av.time_base
                packets.ends_early = packets.end - packets.zero < _MOST_OF * promised
                packets.missing = self.find_truncation(path, container, stream, packets)
                if errors:
                    packets.missing = MediaError(f"{packets.name}: reading failed ({errors[0].strerror}).")
                packets.vanished = self.find_vanished(path, container, stream, packets)
            for old in list(self._cached_packets)[:-1]:
                self._cached_packets.pop(old, None)
            self._cached_packets[key] = packets
        self.check(packets.name, "duration", packets.seconds, f"it lasts {packets.seconds:g} s")
        return packets

    def decoded(self, path: AnyPath, stream: Any, packets: Iterable, lose: Lose) -> Iterator[Any]:
        """The frames of packets, decoded by one thread, so that damage is met where it is. Damage is an error or, if
        this reader reports it, skipped and passed to `lose`."""
        name = stream_name(path, stream)
        context = stream.codec_context
        is_video = stream.type == "video"
        count = 0
        is_marked = False
        can_be_mixed = {}
        if not context.is_open:
            context.options = dict(self.options)
            context.thread_count = 1
        for packet in packets:
            frames = []
            damage = None
            try:
                frames = packet.decode()
            except av.FFmpegError as error:
                check_memory(error)
                if is_video:  # decoders refuse pictures above `max_pixels`
                    self._check_picture(name, context.width, context.height)
                    if isinstance(error, av.ArgumentError) and not context.width:
                        self.check(name, "pixels", None, "pictures of more pixels, or of none")
                damage = _Damage(f"{name}: decoding stopped after {count} frames ({error.strerror}).")
                damage.reason = error.strerror
            self.lose_or_raise(packet, damage, lose)
            for frame in frames:
                damage = None
                if is_video:
                    self._check_picture(name, frame.width, frame.height)
                    # Damage is not a frame that is almost right. HEVC marks all that follow, up to a keyframe.
                    if frame.is_corrupt and not (is_marked and context.name == "hevc"):
                        damage = _Damage(f"{name}: the frame at {float(frame.time or 0):.2f} s is damaged.")
                    is_marked = frame.is_corrupt
                elif " channels" in frame.layout.name:  # no name tells which
                    layout = frame.layout.name
                    if layout not in can_be_mixed:
                        can_be_mixed[layout] = _can_be_mixed(frame)
                    if not can_be_mixed[layout]:
                        damage = _Damage(f"{name}: {layout} in no known order cannot be mixed.")
                self.lose_or_raise(frame, damage, lose)
                if damage is None:
                    count += 1
                    yield frame

    def lose_or_raise(self, item: Any, damage: _Damage | None, lose: Lose) -> None:
        """Pass damage, if any, to `lose`, or raise it."""
        if damage is not None:
            if self._report is None:
                raise damage
            lose(item, damage)

    def _check_picture(self, name: str, width: int, height: int) -> None:
        self.check(name, "pixels", width * height, f"pictures of {width}x{height} = {width * height} pixels")

    def read_frames(
        self, path: AnyPath, choose: Choose | None = None, window: Window | None = None, prepare: Prepare | None = None
    ) -> list[Any] | None:
        """Read frames of the main video stream; only one unprocessed frame is in memory at a time.

        Args:
            choose (`Callable`, *optional*): See `Choose`; all frames by default.
            prepare (`Callable`, *optional*): See `Prepare`; called once for a frame that is chosen several times. By
                default frames are returned unchanged, uint8 `(height, width, 3)`, RGB and upright.
        Returns:
            The prepared frames, in the order of choice; `None` if the file has no video stream (an attached picture
            is not one), or one without frames, or none in the window.
        """
        choose = choose or range
        timed_frames = self.read_timed_frames(path, lambda seconds: choose(len(seconds)), window, prepare)
        if not timed_frames:
            return None
        return [picture for _, picture in timed_frames]

    def read_timed_frames(
        self,
        path: AnyPath,
        select: Select,
        window: Window | None = None,
        prepare: Prepare | None = None,
        side: int | None = None,
    ) -> list[tuple[float, Any]]:
        """Read frames as `read_frames` does, each with the second of the file at which it appears.

        Args:
            select (`Callable`): From the seconds of the frames, in order, to the indices of those to read.
            side (`int`, *optional*): Maximum width and height in pixels; larger frames are shrunk.
        """
        packets = self.packets_of(path, "video")
        if packets is None:
            return []
        # Read what there is, unless something is missing and any problem is an error.
        frames = []
        losses = _Losses(packets)
        loss = None
        problem = packets.missing_in(window)
        if len(packets) and (problem is None or self._report is not None):
            with self.opened(path) as container:
                stream = main_stream(path, container, "video")
                self._check_picture(packets.name, stream.codec_context.width, stream.codec_context.height)
                video = _VideoReader(self, path, container, stream, packets, select, window, prepare, side, losses)
                frames = video.read()
            losses = video.losses
            loss = losses.sentence(window, video.num_frames, 1, "frames")
        self._report_or_raise(losses, problem, packets.end - packets.zero, loss, window is None and not frames)
        return frames

    def _report_or_raise(
        self, losses: _Losses, problem: MediaError | None, seconds: float, loss: str | None, is_nothing: bool
    ) -> None:
        """Report in one sentence that packets of a stream are missing, of which the first seconds came, or its `loss`
        by damage. Raise it if nothing was read, or if any problem is an error."""
        error = problem or losses.damage
        if error is not None and (self._report is None or is_nothing):
            raise MediaError(str(error)) from error
        packets = losses.packets
        if problem is not None and (loss is None or packets.ends_early):
            reason = str(problem).removeprefix(f"{packets.name}: ")
            how_much = f"a part could not {IN_PART}"
            if packets.ends_early:
                how_much = f"only the first {max(0.0, seconds):.1f} s could {IN_PART}"
            loss = f"{packets.name}: {how_much}: {reason}"
        if loss is not None:
            self._report(loss)

    def read_audio(self, path: AnyPath, window: Window | None = None, rate: int = SAMPLING_RATE) -> np.ndarray | None:
        """Read the main audio track, float32 `(samples,)` in [-1, 1], from 16-bit mono; `None` without samples.
        Windows that follow each other share out the samples of the track."""
        packets = self.packets_of(path, "audio")
        if packets is None:
            return None
        # The window in samples of the track, which may begin later than the file.
        begin, end = window or (0.0, None)
        start = max(0, round((begin - packets.lead) * rate)) if begin > 0 else 0
        stop = None if end is None else max(0, round((end - packets.lead) * rate))
        losses = _Losses(packets)
        # Read what there is, unless something is missing and any problem is an error.
        problem = packets.missing_in(window)
        pieces = [np.zeros(0, np.int16)]
        if problem is None or self._report is not None:
            for piece in self.samples(path, packets, start, stop, rate, losses.add):
                pieces.append(piece)
        samples = np.concatenate(pieces)
        each = packets.seconds / max(1, len(packets))
        loss = losses.sentence(window, len(samples) / rate, each, "s of sound")
        self._report_or_raise(losses, problem, packets.seconds, loss, window is None and not len(samples))
        if not len(samples):
            return None
        return to_float(samples)

    def samples(
        self, path: AnyPath, packets: Packets, start: int, stop: int | None, rate: int, lose: Lose
    ) -> Iterator[np.ndarray]:
        """The samples of the main audio track from `start` to `stop`, in 16 bits and in pieces."""
        with self.opened(path) as container:
            stream = main_stream(path, container, "audio")
            frames = self.decoded(path, stream, self.demuxed(container, stream), lose)
            yield from sound_of_span(frames, 0.0, packets.start, start, stop, rate)

    def read_audio_parts(
        self, path: AnyPath, choose: Choose, window: Window | None = None, rate: int = SAMPLING_RATE
    ) -> tuple[list[np.ndarray], int] | None:
        """Read the ranges of samples that `choose` selects, as in `read_audio`, and count all; `None` if none."""
        waveform = self.read_audio(path, window, rate)
        if waveform is None:
            return None
        return [waveform[start:stop] for start, stop in choose(len(waveform))], len(waveform)

    def cues_of_file(self, path: AnyPath) -> list[Cue]:
        """The cues of a subtitle file."""
        check_file(path)
        size = os.path.getsize(path)
        what = f"a subtitle file of {size} bytes needs {_MEMORY_PER_BYTE} times as much memory"
        self.check(os.fspath(path), "memory", size * _MEMORY_PER_BYTE, what)
        content = b""
        if size:  # see `check_content`
            content = Path(path).read_bytes()
        return subtitle_cues(path, content)

    def cues_of_track(self, path: AnyPath) -> list[Cue] | None:
        """The cues of the text track of a media file, the best by `rank`, or else of the captions inside its pictures;
        `None` if there is neither. Picture-based tracks (DVD, Blu-ray) are not text."""
        with self.opened(path) as container:
            tracks = (*container.streams.subtitles, *container.streams.data)
            texts = [stream for stream in tracks if is_text(path, container, stream)]
            if texts:
                stream = min(texts, key=rank_of_track)
                return list(track_cues(path, container, stream, zero_of(container)))
        packets = None
        with suppress(MediaError):  # what is wrong with pictures is said where they are read
            packets = self.packets_of(path, "video")
        if packets is None:
            return None
        return packets.captions or None

    def cues_of(self, path: AnyPath) -> list[Cue] | None:
        """The cues of the subtitle of a video: of the file next to it (`find_sidecar`), else of its text track;
        `None` if there is neither."""
        sidecar = find_sidecar(path)
        if sidecar is not None:
            return self.cues_of_file(sidecar)
        return self.cues_of_track(path)

    def read_subtitle(self, path: AnyPath, window: Window | None = None) -> str:
        """Read a subtitle file (`TEXT_FILES`) as one string, without markup, timings and repeated lines. An encoding
        other than UTF-8 is guessed, if charset-normalizer is installed."""
        return text_in(self.cues_of_file(path), window)

    def read_subtitle_of(self, path: AnyPath, window: Window | None = None) -> str | None:
        """Read the subtitle of a video, see `cues_of`, as one string; `None` if there is none."""
        cues = self.cues_of(path)
        if cues is None:
            return None
        return text_in(cues, window)


__all__ = [
    "IN_PART",
    "SAMPLING_RATE",
    "MediaError",
    "MediaReader",
    "Window",
    "check_content",
    "check_file",
    "resample",
]
