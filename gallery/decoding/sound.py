"""Samples of an audio track, in a decoder's answer: all of them, or chosen parts of a long track."""

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

import numpy as np

from gallery.decoding.channel import Channel
from gallery.decoding.limits import IN_PART
from gallery.decoding.streams import (
    Known,
    Request,
    check_complete,
    check_duration,
    cut_message,
    opened,
    seconds_in_header,
    title_of,
    zero_of,
)
from gallery.decoding.subtitles import tracks_of
from modeling_scalar.media_scalar import (
    SAMPLING_RATE,
    MediaError,
    Window,
    av,
    damage,
    describe,
    first_stream,
    mono,
)

_LONG_SOUND = 600 * SAMPLING_RATE  # tracks with this many samples or more: only chosen parts are decoded
_MESSAGE = 2**16  # samples per message
_LONG_FOR_WINDOW = 60 * SAMPLING_RATE  # the same if a window of the track is requested


def _all_sound(path: str, rate: int = SAMPLING_RATE, start: int = 0) -> Iterator[np.ndarray]:
    """The whole first audio track in 16 bits, in chunks; nothing if there is none. If the request is lenient, packets
    that do not decode are left out; damage after the sample `start` is reported."""
    with opened(path) as container:
        yield from _sound_in(path, container, rate, start)


def _sound_in(path: str, container: "av.container.InputContainer", rate: int, start: int = 0) -> Iterator[np.ndarray]:
    """The same for an open file, from its beginning."""
    stream = first_stream(path, container, "audio")
    if stream is None:
        return
    where, first = describe(path, stream), None
    num_packets, end, num_samples, seconds, num_damaged = 0, 0.0, 0, 0.0, 0
    time_base = float(stream.time_base or 0)

    def note(error: Exception) -> None:
        nonlocal first, num_damaged
        wrong = damage(where, f"decoding stopped after {num_packets} packets", error)
        if not Request.is_lenient or isinstance(wrong, MemoryError):
            raise wrong from error
        first, num_damaged = first or wrong, num_damaged + (num_samples >= start)

    def frames() -> Iterator:
        nonlocal num_packets, end, seconds
        for packet in container.demux(stream):
            if packet.size or packet.dts is not None:
                num_packets += 1
                seconds += (packet.duration or 0) * time_base
                if packet.pts is not None:
                    end = max(end, (packet.pts + (packet.duration or 0)) * time_base)
            try:
                yield from packet.decode()
            except av.FFmpegError as error:
                note(error)

    try:
        for piece in mono(frames(), rate):
            num_samples += len(piece)
            check_duration(path, stream, num_samples / rate)
            yield piece
    except av.FFmpegError as error:
        note(error)
    if first is not None and not num_samples:
        raise first
    try:
        check_complete(path, container, stream, num_packets, end, seconds)
    except MediaError as error:
        Request.note(error, cut_message(where, error, container, num_samples / rate))
    if num_damaged:
        what = f"{num_packets - num_damaged} of {num_packets} packets {IN_PART}, the others are damaged."
        Request.note(first, f"{where}: {what}")


def _send_pieces(channel: Channel, pieces: Iterable[np.ndarray]) -> None:
    """Send samples, those of many packets at once: each message has a cost."""
    waiting, num_samples = [], 0
    for piece in pieces:
        waiting.append(piece)
        num_samples += len(piece)
        if num_samples >= _MESSAGE:
            channel.send("sound", np.concatenate(waiting))
            waiting, num_samples = [], 0
    if num_samples:
        channel.send("sound", np.concatenate(waiting))


def _send_window(path: str, channel: Channel, window: Window, rate: int) -> None:
    """Send the samples of a window of the first audio track; of a long track, decode no more than these."""
    with opened(path) as container:
        _send_contents(channel, container)
        stream = first_stream(path, container, "audio")
        if stream is None:
            return
        first = 0.0 if stream.start_time is None else float(stream.start_time * stream.time_base) - zero_of(container)
        is_long = (container.duration or 0) / av.time_base > _LONG_FOR_WINDOW / SAMPLING_RATE
    start, stop = (None if seconds is None else max(0, round((seconds - first) * rate)) for seconds in window)
    if window[0] <= 0:
        start = 0
    if is_long and rate == SAMPLING_RATE and _send_range(path, channel, start, stop):
        return

    def inside() -> Iterator[np.ndarray]:
        position = 0
        for piece in _all_sound(path, rate, start):
            yield piece[max(0, start - position) : None if stop is None else max(0, stop - position)]
            position += len(piece)
            if stop is not None and position >= stop:
                return

    _send_pieces(channel, inside())


def _send_range(path: str, channel: Channel, start: int, stop: int | None) -> bool:
    """Decode and send a range of samples of a long track; returns whether that succeeded."""
    known = Known.of(path)
    if known.get("track", ()) is None:
        return False
    try:
        with opened(path) as container:
            stream = first_stream(path, container, "audio")
            track = _Track(path, container, stream, known.get("track"), least=_LONG_FOR_WINDOW)
            known["track"] = track.found
            if not Request.is_lenient or stop is None or stop > track.num_samples:  # earlier windows are intact
                track.note_cut()
            stop = track.num_samples if stop is None else min(stop, track.num_samples)
            part = track.part(start, stop) if start < stop else None
    except MemoryError:
        raise
    except (_Unsteady, av.FFmpegError):
        known["track"] = None
        return False  # decoding in order reports any errors
    if part is not None:
        channel.send("sound", np.ascontiguousarray(part))
    return True


def send_sound(
    path: str, channel: Channel, whole: bool, window: Window | None = None, rate: int = SAMPLING_RATE
) -> None:
    """Send the samples of the first audio track, all or those of a window; of a long track, unless `whole`, only those
    that the other side chooses."""
    if window is not None:
        _send_window(path, channel, window, rate)
        return
    if whole:
        _send_pieces(channel, _all_sound(path, rate))
        return
    with opened(path) as container:
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


def _send_contents(channel: Channel, container: "av.container.InputContainer") -> None:
    """Send what the header of a file says, which would cost another opening later."""
    about = {"tracks": tracks_of(container), "title": title_of(container)}
    channel.send("contents", seconds=seconds_in_header(container), **about)


def _unless_long(sound: Iterator[np.ndarray]) -> list[np.ndarray] | None:
    """All samples; `None` if the track is long."""
    pieces, num_samples = [], 0
    for piece in sound:
        pieces.append(piece)
        num_samples += len(piece)
        if num_samples > _LONG_SOUND:
            return None
    return pieces


class _Unsteady(Exception):
    """The timestamps of a track do not determine where its samples are."""


class _Track:
    """Locates the samples of a long audio track by the timestamps of its packets.

    Positions equal those of decoding everything in order: exactly if the container's clock is at least as fine as the
    samples (wav, flac, mp4, ogg, mp3), within some milliseconds in Matroska and flv. The samples there are equal for
    codecs without memory (PCM, FLAC); other codecs start two seconds earlier to recover their state, and where they
    replace noise by noise (AAC) they draw other noise.
    """

    def __init__(self, path: str, container, stream, found: tuple | None = None, least: int | None = None):
        self.path, self.container, self.stream = path, container, stream
        self.tick = float(stream.time_base)
        if found is None:
            found = self._look(path, container, stream, _LONG_SOUND if least is None else least)
        self.found = found
        self.start, self.rate, self.pts, self.sizes, self.num_samples, self.cut = found

    def _look(self, path: str, container, stream, least: int) -> tuple:
        """Where the track starts, its rate, its packets, and its number of samples at 16 kHz: more than `least`."""
        self.start = self.rate = None
        self.pts, self.sizes = array("q"), array("q")
        is_steady, end, seconds = True, None, 0.0
        for packet in container.demux(stream):
            if packet.size == 0 and packet.dts is None:
                continue
            if packet.pts is None or (not packet.duration and self.start is not None):
                is_steady = False  # but count the packets
                packet.pts = 0
            # a gap, or overlapping packets; clocks in milliseconds round up and down
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
            check_duration(path, stream, seconds)
        cut = None
        try:
            check_complete(path, container, stream, len(self.pts), (end or 0) * self.tick, seconds)
        except MediaError as error:
            if not Request.is_lenient:
                raise
            cut = MediaError(str(error))  # without what its traceback holds
        if not is_steady or self.start is None:
            raise _Unsteady
        # samples that the decoder drops at the end are only in the last frames
        last = 0
        for position, frame in self._frames(container, stream, end * self.tick - self.start - 1):
            last = position + frame.samples
        num_samples = math.ceil(last * SAMPLING_RATE / self.rate)
        if num_samples <= least:  # only the rest of the file is long
            raise _Unsteady
        return self.start, self.rate, self.pts, self.sizes, num_samples, cut

    def note_cut(self) -> None:
        """Report that the track is shorter than promised, if it is."""
        if self.cut is not None:
            where, read = describe(self.path, self.stream), self.num_samples / SAMPLING_RATE
            Request.note(self.cut, cut_message(where, self.cut, self.container, read))

    def _frames(self, container, stream, seconds: float) -> Iterator[tuple[int, "av.AudioFrame"]]:
        """Frames from `seconds` after the first sample on, or earlier, with the positions of their first samples."""
        if seconds > 0:
            container.seek(int((self.start + seconds) / self.tick), stream=stream)
        expected = index = None
        is_pcm = stream.codec_context.name.startswith("pcm_")
        for packet in container.demux(stream):
            if packet.size and not is_pcm:  # its packets can be cut anywhere
                if index is None:
                    index = bisect_left(self.pts, packet.pts or 0)
                # some demuxers return other timestamps after a seek
                if index >= len(self.pts) or (packet.pts, packet.size) != (self.pts[index], self.sizes[index]):
                    raise _Unsteady
                index += 1
            for frame in packet.decode():
                if (frame.pts is None and expected is None) or frame.sample_rate != self.rate:
                    raise _Unsteady
                # there are no gaps: only the first frame's position is used, decoders may be vague about others
                if expected is None:
                    expected = round((frame.pts * self.tick - self.start) * self.rate)
                yield expected, frame
                expected += frame.samples

    def part(self, start: int, stop: int) -> np.ndarray:
        """The samples from `start` to `stop`, at 16 kHz."""
        common = math.gcd(self.rate, SAMPLING_RATE)
        period, stride = SAMPLING_RATE // common, self.rate // common
        # the resampler's filter covers a few samples; from here on its phase is that of the whole track
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
            pieces = list(mono(frames(self.container, self.stream)))
        else:  # as opened: at the start, some demuxers behave differently after a seek
            with opened(self.path) as container:
                pieces = list(mono(frames(container, first_stream(self.path, container, "audio"))))
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


def _send_parts(path: str, channel: Channel) -> bool:
    """Ask which ranges of samples of a long track are needed and decode only these; returns whether that succeeded."""
    try:
        with opened(path) as container:
            stream = first_stream(path, container, "audio")
            if stream is None:
                return True
            track = _Track(path, container, stream)
            track.note_cut()
            for start, stop in channel.ask("ranges", available=track.num_samples)["chosen"]:
                channel.send("part", track.part(start, stop))
            return True
    except MemoryError:
        raise
    except (_Unsteady, av.FFmpegError):
        return False  # decoding in order reports any errors


def _send_chosen(path: str, channel: Channel, rate: int) -> None:
    """Like `_send_parts`, but decode everything in order, twice, if nothing else works."""
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


__all__ = ["send_sound"]
