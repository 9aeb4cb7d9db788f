"""Frames of a video stream, in a decoder's answer: identified by timestamps, decoded from the keyframe before.

A stream that does not decode is an error. If the request is lenient, it is read again with one thread for the frames
that do: which ones depends only on the file, not on threads or earlier seeks.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from gallery.decoding.channel import Channel
from gallery.decoding.limits import IN_PART, LimitError
from gallery.decoding.streams import (
    Known,
    Request,
    check_complete,
    check_duration,
    check_picture,
    cut_message,
    in_window,
    opened,
    zero_of,
)
from modeling_scalar.media_scalar import MediaError, Upright, Window, av, damage, describe, first_stream

# FFmpeg's threads decode several frames at once: above this size use one thread, to hold as few as the format allows.
_LARGE_PICTURE = 2048 * 2048


@dataclass
class _PacketTable:
    """The packets of a video stream in decode order, read without decoding."""

    pts: list[int]
    dts: list[int | None]
    is_key: list[bool]
    sizes: list[int]
    shown: list[int]  # decode positions in presentation order

    def __post_init__(self):
        self.position = {pts: position for position, pts in enumerate(self.pts)}

    def key_position(self, target: int) -> int:
        """The last keyframe from which `target` decodes: not one of which `target` is a leading picture (open GOP)."""
        return next(
            position
            for position in range(target, -1, -1)
            if self.is_key[position] and self.pts[position] <= self.pts[target]
        )

    def group(self, key: int) -> list[int]:
        """The decode positions that depend on the keyframe `key`, including leading pictures of the next keyframe."""
        after = next((position for position in range(key + 1, len(self.pts)) if self.is_key[position]), len(self.pts))
        stop = after + 1
        while stop < len(self.pts) and self.pts[stop] < self.pts[after]:
            stop += 1
        group = range(key, min(stop, len(self.pts)))
        return [position for position in group if self.key_position(position) == key]


@dataclass
class _Packets:
    """The packets of a video stream; `table` is `None` if their timestamps do not identify the frames."""

    count: int
    table: _PacketTable | None
    end: float  # end of the last one, in seconds
    cut: Exception | None  # why reading stopped


def _packets_of(path, container, stream) -> _Packets:
    """List the packets of a stream without decoding."""
    pts, dts, is_key, sizes, is_discard, end, seconds, cut = [], [], [], [], [], 0.0, 0.0, None
    time_base = float(stream.time_base or 0)
    try:
        for packet in container.demux(stream):
            if packet.size == 0 and packet.dts is None:  # PyAV's flush packet
                continue
            pts.append(packet.pts)
            dts.append(packet.dts)
            is_key.append(packet.is_keyframe)
            sizes.append(packet.size)
            is_discard.append(packet.is_discard)
            duration = (packet.duration or 0) * time_base
            seconds += duration
            check_duration(path, stream, seconds)
            if packet.pts is not None:
                end = max(end, packet.pts * time_base + duration)
        check_complete(path, container, stream, len(pts), end, seconds)
    except LimitError:
        raise
    except av.FFmpegError as error:
        cut = damage(describe(path, stream), f"reading stopped after {len(pts)} packets", error)
    except MediaError as error:
        cut = MediaError(str(error))  # without what its traceback holds
    end = end or zero_of(container) + seconds
    context = stream.codec_context
    # AVI has no presentation times, FFmpeg guesses them; VP8 has packets that are never shown, without marking them
    unreliable = (container.format.name == "avi" and context.has_b_frames) or context.name == "vp8"
    if unreliable or None in pts or len(set(pts)) < len(pts) or True not in is_key:
        return _Packets(len(pts), None, end, cut)
    first_key = is_key.index(True)
    shown = [
        position
        for position in range(first_key, len(pts))
        if not is_discard[position] and pts[position] >= pts[first_key]
    ]
    shown.sort(key=pts.__getitem__)
    return _Packets(len(pts), _PacketTable(pts, dts, is_key, sizes, shown), end, cut)


class _Frames:
    """Sends each chosen frame once, by the index of its key in `seconds`, which says when each appears."""

    def __init__(self, channel: Channel, name: str, seconds: Mapping[int, float], side: int | None):
        self.channel, self.seconds = channel, seconds
        self.places = {key: place for place, key in enumerate(seconds)}
        self.missing = set(self.places)
        self.upright = Upright(name, side)
        channel.send("begin")  # discards frames sent before

    def add(self, key: int, frame: "av.VideoFrame") -> None:
        """Send a frame."""
        image = self.upright(frame)
        self.missing.remove(key)
        height, width, _ = image.shape
        content = {"place": self.places[key], "height": height, "width": width, "seconds": self.seconds[key]}
        self.channel.send("frame", image, **content)


def _seek(container, stream, table: _PacketTable, key: int) -> Iterator | None:
    """The packets from decode position `key` on, or `None` if no seek gets there."""
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
    """Decode the packets at decode positions `targets` (in presentation order), seeking past what is not needed.

    Returns whether all of them were sent: not if the stream's timestamps or keyframe flags turn out to be wrong.
    Damage is reported by decoding in order; if the request is lenient, it is an error here.
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
                position = table.position.get(packet.pts)
                next_position = len(table.pts) if position is None else position + 1
                # if packets are missing, some demuxers count differently after a seek
                if position is not None and packet.size != table.sizes[position]:
                    return False
                if packet.is_corrupt and Request.is_lenient:
                    raise MediaError(f"{name}: a packet is damaged.")
                if context.name == "h264":  # nothing depends on a non-reference picture: skip it unless requested
                    context.skip_frame = "DEFAULT" if packet.pts in frames.places else "NONREF"
                for frame in packet.decode():
                    check_picture(name, frame.width, frame.height)
                    # frames that depend on a damaged one are damaged, too, though not marked
                    if frame.is_corrupt and Request.is_lenient and frame.pts in table.position:
                        raise _damaged(name, frame)
                    if frame.pts in frames.missing:
                        if frame.is_corrupt:
                            return False
                        frames.add(frame.pts, frame)
    except MemoryError:
        raise
    except av.FFmpegError as error:
        _check_threads(error)
        if Request.is_lenient:
            raise damage(name, "a packet does not decode", error) from error
        return False  # the sequential pass finds and reports the same damage
    return True


def _damaged(name: str, frame: "av.VideoFrame") -> MediaError:
    return MediaError(f"{name}: the frame at {float(frame.time or 0):.2f} s is damaged.")


def _decoded(path, num_threads: int, is_partial: bool = False, is_listed: bool = False) -> Iterator:
    """All frames of the video stream, in presentation order; only undamaged ones if partial. If timestamps identify
    the frames, packets marked as corrupt are damaged; otherwise the mark may mean where recordings were joined."""
    with opened(path) as container:
        stream = first_stream(path, container, "video")
        _set_threads(stream, num_threads)
        name, count = describe(path, stream), 0
        if is_partial:
            yield from _undamaged(name, container.demux(stream))
            return
        try:
            for packet in container.demux(stream):
                for frame in packet.decode():
                    check_picture(name, frame.width, frame.height)
                    if Request.is_lenient and (frame.is_corrupt or (is_listed and packet.is_corrupt)):
                        raise _damaged(name, frame)
                    yield frame
                    count += 1
        except MemoryError:
            raise
        except av.FFmpegError as error:
            _check_threads(error)
            context = stream.codec_context  # only some decoders keep the size that exceeds max_pixels
            check_picture(name, context.width, context.height)
            if isinstance(error, av.ArgumentError) and not context.width:
                raise Request.limits.exceeded(name, "pixels", "pictures of more pixels, or of none") from error
            raise damage(name, f"decoding stopped after {count} frames", error) from error


def _undamaged(name: str, packets: Iterable) -> Iterator:
    """The frames of packets, except those from damage to the next keyframe, which may depend on it. The few frames
    that a decoder holds back when damage occurs are left out, too."""
    is_damaged, keys = False, set()
    try:
        for packet in packets:
            if packet.is_corrupt:
                is_damaged = True
                keys.clear()
            elif packet.is_keyframe:
                keys.add(packet.pts)
            try:
                frames = packet.decode()
            except MemoryError:
                raise
            except av.FFmpegError as error:
                _check_threads(error)
                is_damaged = True
                keys.clear()
                continue
            for frame in frames:
                check_picture(name, frame.width, frame.height)
                # a frame that was sent after the damage
                is_key = frame.key_frame and frame.pts in keys
                is_damaged = frame.is_corrupt or (is_damaged and not is_key)
                if not is_damaged:
                    yield frame
    except MemoryError:
        raise
    except av.FFmpegError:  # no more packets
        return


def _check_threads(error: Exception) -> None:
    """Raise a MemoryError if memory was too short for a thread."""
    if isinstance(error, BlockingIOError):
        raise MemoryError from error


def _set_threads(stream, num_threads: int) -> None:
    context = stream.codec_context
    if context.width * context.height > _LARGE_PICTURE:
        num_threads = 1
    context.thread_type = "AUTO"
    context.thread_count = num_threads
    context.options = {"max_pixels": str(int(Request.limits.pixels))}


@dataclass
class _Wanted:
    """The requested frames, see `send_frames`."""

    whole: bool
    window: Window | None = None
    pace: float | None = None
    side: int | None = None


@dataclass
class _Video:
    """A video stream, and the ways to send requested frames."""

    path: str
    name: str
    channel: Channel
    wanted: _Wanted
    packets: _Packets
    zero: float  # start, in seconds
    tick: float
    end: float | None  # end, from its start
    known: dict[str, Any]

    def choose(self, available: Sequence[int], seconds: Sequence[float]) -> list[int]:
        """Which of the available frames, which appear at these times, the other side chooses; at a pace, the first of
        each interval."""
        if self.wanted.whole:
            return list(available)
        if self.wanted.pace is not None:
            steps = [math.floor(second / self.wanted.pace + 1e-6) for second in seconds]
            return [available[place] for place, step in enumerate(steps) if not place or step > steps[place - 1]]
        return [available[place] for place in self.channel.ask("choose", available=len(available))["chosen"]]

    def seconds_of(self, positions: Iterable[int]) -> list[float]:
        """When the frames at decode positions appear."""
        return [self.packets.table.pts[position] * self.tick - self.zero for position in positions]

    def listed(self) -> list[int] | None:
        """The decode positions of the frames in the window; `None` if the timestamps do not identify the frames."""
        table = self.packets.table
        if table is None or not table.shown:
            return None
        if self.wanted.window is None:
            return table.shown
        times = self.seconds_of(table.shown)
        return [table.shown[place] for place in in_window(times, self.packets.end - self.zero, self.wanted.window)]

    def _frames(self, chosen: Sequence[int]) -> _Frames:
        keys = [self.packets.table.pts[position] for position in chosen]
        seconds = dict(zip(keys, self.seconds_of(chosen), strict=True))
        return _Frames(self.channel, self.name, seconds, self.wanted.side)

    def by_index(self, container, stream, chosen: Sequence[int]) -> bool:
        """Send the frames at decode positions, seeking past what is not needed; returns whether that succeeded."""
        frames, targets = self._frames(chosen), list(dict.fromkeys(chosen))
        return _decode_by_index(self.name, container, stream, self.packets.table, targets, frames)

    def _seeking(self, chosen: Sequence[int]) -> bool:
        """Do this with one thread, for a file that is not open yet."""
        with opened(self.path) as container:
            stream = first_stream(self.path, container, "video")
            _set_threads(stream, 1)
            return self.by_index(container, stream, chosen)

    def by_one_thread(self, chosen: Sequence[int] | None) -> bool:
        """Send the frames at decode positions with one thread; returns whether there was no damage. Several threads
        run into damage behind the requested frames, and miss some."""
        if chosen is None or self.wanted.whole:
            return False
        try:
            return self._seeking(chosen) or self.in_order(chosen, 1)
        except LimitError:
            raise
        except MediaError:
            return False

    def in_order(self, chosen: Sequence[int], num_threads: int) -> bool:
        """Send the frames at decode positions by decoding from the start; returns whether timestamps identify them."""
        frames = self._frames(chosen)
        _collect(((frame.pts, frame) for frame in _decoded(self.path, num_threads, is_listed=True)), frames)
        return not frames.missing

    def by_number(self, num_threads: int, is_partial: bool = False) -> int:
        """Send frames by their index when everything is decoded; returns their number, in and outside the window."""
        decoding = (self.path, num_threads, is_partial)
        if ("times", is_partial) not in self.known:
            self.known["times", is_partial] = [frame.time for frame in _decoded(*decoding)]
        times = self.known["times", is_partial]
        if not times:
            raise MediaError(f"{self.name}: {self.packets.count} packets, but none decodes to a frame.")
        places = list(range(len(times)))
        if None in times or sorted(times) != times:  # then assume even spacing
            times = [self.zero + (self.end or 0) * place / len(times) for place in places]
        seconds = [time - self.zero for time in times]
        if self.wanted.window is not None:
            places = in_window(seconds, self.end or seconds[-1], self.wanted.window)
        if places:
            chosen = self.choose(places, [seconds[place] for place in places])
            appear = {place: seconds[place] for place in chosen}
            frames = _Frames(self.channel, self.name, appear, self.wanted.side)
            _collect(enumerate(_decoded(*decoding)), frames)
        return len(times)

    def of_damaged(self, listed: list[int] | None, problem: str) -> None:
        """Send frames of a damaged stream; if none decodes, raise an error with this problem."""
        try:
            remark = None if listed is None else self._by_groups(listed)
            if remark is None:
                count = self.by_number(1, is_partial=True)
                remark = f"{count} of {max(count, self.packets.count)} frames {IN_PART}, the others are damaged."
        except LimitError:
            raise
        except MediaError as error:
            for _ in _decoded(self.path, 1) if self.packets.cut is None else ():  # its error is the best description
                pass
            raise MediaError(problem) from error
        Request.note(MediaError(problem), f"{self.name}: {remark}")

    def _by_groups(self, listed: list[int]) -> str | None:
        """Send frames by group, from keyframe to keyframe; returns a remark, or `None` if no seek gets there. What
        decodes in a group is known only once one of its frames is chosen; then the choice is repeated."""
        table, found = self.packets.table, self.known.setdefault("groups", {})
        tried, damaged = set(), set()  # per window: the choice must not depend on windows read before
        while left := [position for position in listed if position not in damaged]:
            chosen = self.choose(left, self.seconds_of(left))
            fresh = {table.key_position(position) for position in chosen} - tried
            if not fresh:
                break
            for key in sorted(fresh - found.keys()):
                good: set[int] = set()
                if not self._decode_group(key, lambda frame, good=good: good.add(frame.pts)):
                    return None
                found[key] = {position for position in table.group(key) if table.pts[position] not in good}
            tried |= fresh
            damaged = damaged.union(*(found[key] for key in fresh))
        if not left:
            raise MediaError(f"{self.name}: none of its frames decodes.")
        frames = self._frames(chosen)
        for key in sorted({table.key_position(position) for position in chosen}):
            self._decode_group(key, lambda frame: frame.pts in frames.missing and frames.add(frame.pts, frame))
        if frames.missing:
            return None
        if self.wanted.window is not None or not damaged:
            return f"not all frames {IN_PART}, some are damaged."
        count = sum(len(table.group(key)) for key in tried)
        return f"{count - len(damaged)} of {count} frames that were decoded {IN_PART}, the others are damaged."

    def _decode_group(self, key: int, use: Callable[[Any], Any]) -> bool:
        """Call `use` with the undamaged frames that decode from a keyframe; returns whether a seek gets there."""
        table = self.packets.table
        with opened(self.path) as container:
            stream = first_stream(self.path, container, "video")
            _set_threads(stream, 1)
            packets = _seek(container, stream, table, key)
            if packets is None:
                return False
            for frame in _undamaged(self.name, _until(packets, stream, table, table.group(key)[-1])):
                use(frame)
        return True


def _until(packets: Iterable, stream, table: _PacketTable, last: int) -> Iterator:
    """Packets up to a decode position, and one that makes the decoder return the frames that it holds back."""
    for packet in packets:
        yield packet
        if table.position.get(packet.pts, -1) >= last:
            break
    flush = av.Packet()
    flush.stream = stream
    yield flush


def send_frames(path: str, channel: Channel, seek: str, num_threads: int, **wanted: Any) -> None:
    """Send the frames that the other side chooses among those in the `window`: all if `whole`, one every `pace`
    seconds if given. No side is longer than `side`."""
    damaged = _send_unless_damaged(path, channel, seek, num_threads, _Wanted(**wanted))
    if damaged is not None:  # the earlier container and its threads are closed
        video, chosen, problem = damaged
        if not video.by_one_thread(chosen):
            video.of_damaged(None if chosen is None else video.listed(), problem)


def _send_unless_damaged(
    path: str, channel: Channel, seek: str, num_threads: int, wanted: _Wanted
) -> tuple[_Video, list[int] | None, str] | None:
    """Like `send_frames`; if there is damage and the request is lenient, return the stream, the chosen decode
    positions (if there is a table), and what is wrong."""
    with opened(path) as container:
        stream = first_stream(path, container, "video")
        if stream is None:
            return None
        name = describe(path, stream)
        Request.weigh(name, stream.codec_context.width, stream.codec_context.height)
        _set_threads(stream, num_threads)
        zero, tick = zero_of(container), float(stream.time_base or 0)
        end = None if container.duration is None else container.duration / av.time_base
        known = {} if wanted.window is None else Known.of(path)
        if "packets" not in known:
            known["packets"] = _packets_of(path, container, stream)
        packets = known["packets"]
        if packets.cut is not None:
            read, stop = packets.end - zero, None if wanted.window is None else wanted.window[1]
            if not Request.is_lenient or stop is None or stop > read:  # earlier windows are intact
                Request.note(packets.cut, cut_message(name, packets.cut, container, read))
            end = read
        if packets.count == 0:
            return None
        video = _Video(path, name, channel, wanted, packets, zero, tick, end, known)
        listed = video.listed()
        if listed == []:
            return None
        chosen = None if listed is None else video.choose(listed, video.seconds_of(listed))
        try:
            # the way of seeking in a damaged stream affects the result: use its index if possible
            if chosen is not None and not wanted.whole and (seek == "index" or Request.is_lenient):
                if video.by_index(container, stream, chosen):
                    return None
            if chosen is None or not video.in_order(chosen, num_threads):
                # several threads skip damage that one thread detects
                video.by_number(1 if Request.is_lenient else num_threads)
        except LimitError:
            raise
        except MediaError as error:
            if not Request.is_lenient or Request.lacks_memory():
                raise
            return video, chosen, str(packets.cut or error)
    return None


def _collect(decoded: Iterator, frames: _Frames) -> None:
    for key, frame in decoded:
        if key in frames.missing:
            frames.add(key, frame)
            if not frames.missing:
                break


__all__ = ["send_frames"]
