"""Frames of a video stream, as a decoder sends them: named by their timestamps, decoded from the keyframe before."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from gallery.decoding.channel import Channel
from gallery.decoding.streams import (
    Known,
    Request,
    check_complete,
    check_duration,
    check_picture,
    in_window,
    opened,
    zero_of,
)
from modeling_scalar.media_scalar import MediaError, Upright, Window, av, damage, describe, first_stream

# FFmpeg's threads work on several frames at once: above this size one thread, to hold as few as the format allows.
_LARGE_PICTURE = 2048 * 2048


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
            check_duration(path, stream, seconds)
            if packet.pts is not None:
                end = max(end, packet.pts * time_base + duration)
    except av.FFmpegError as error:
        raise damage(describe(path, stream), f"reading stopped after {len(pts)} packets", error) from error
    check_complete(path, container, stream, len(pts), end, seconds)
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


class _Frames:
    """Sends the chosen frames, each once, under the place of its key in `keys`."""

    def __init__(self, channel: Channel, name: str, keys: Iterable[int]):
        self.channel = channel
        self.places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        self.missing = set(self.places)
        self.upright = Upright(name)
        channel.send("begin")  # frames sent before are void

    def add(self, key: int, frame: "av.VideoFrame") -> None:
        """Send a frame."""
        image = self.upright(frame)
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
                    check_picture(name, frame.width, frame.height)
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
    with opened(path) as container:
        stream = first_stream(path, container, "video")
        _set_threads(stream, num_threads)
        name, count = describe(path, stream), 0
        try:
            for frame in container.decode(stream):
                check_picture(name, frame.width, frame.height)
                yield frame
                count += 1
        except MemoryError:
            raise
        except av.FFmpegError as error:
            if isinstance(error, BlockingIOError):  # no memory for a thread
                raise MemoryError from error
            context = stream.codec_context  # some decoders keep the size that max_pixels made them refuse, some do not
            check_picture(name, context.width, context.height)
            if isinstance(error, av.ArgumentError) and not context.width:
                raise Request.limits.exceeded(name, "pixels", "pictures of more pixels, or of none") from error
            raise damage(name, f"decoding stopped after {count} frames", error) from error


def _set_threads(stream, num_threads: int) -> None:
    context = stream.codec_context
    if context.width * context.height > _LARGE_PICTURE:
        num_threads = 1
    context.thread_type = "AUTO"
    context.thread_count = num_threads
    context.options = {"max_pixels": str(int(Request.limits.pixels))}


def send_frames(
    path: str,
    channel: Channel,
    whole: bool,
    seek: str,
    num_threads: int,
    window: Window | None = None,
) -> None:
    """Send the frames that the other side chooses, of those in the window: all if `whole`."""

    def choose(available: int) -> list[int]:
        return list(range(available)) if whole else channel.ask("choose", available=available)["chosen"]

    with opened(path) as container:
        stream = first_stream(path, container, "video")
        if stream is None:
            return
        name = describe(path, stream)
        Request.weigh(name, stream.codec_context.width, stream.codec_context.height)
        _set_threads(stream, num_threads)
        zero, tick = zero_of(container), float(stream.time_base or 0)
        known = {} if window is None else Known.of(path)
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
                shown = [shown[place] for place in in_window(times, table.end - zero, window)]
                if not shown:
                    return
            chosen = [shown[place] for place in choose(len(shown))]
            keys = [table.pts[position] for position in chosen]
            if seek == "index" and not whole:
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
        places = in_window([seconds - zero for seconds in times], duration or times[-1] - zero, window)
        if not places:
            return
    frames = _Frames(channel, name, [places[place] for place in choose(len(places))])
    _collect(enumerate(_decoded(path, num_threads)), frames)


def _collect(decoded: Iterator, frames: _Frames) -> None:
    for key, frame in decoded:
        if key in frames.missing:
            frames.add(key, frame)
            if not frames.missing:
                break


__all__ = ["send_frames"]
