"""What all answers of a decoder need: the request's limits, truncation checks, and what is visible in a window."""

import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO

from gallery.decoding.limits import IN_PART, LimitError, Limits
from modeling_scalar.media_scalar import (
    MediaError,
    Window,
    av,
    check_content,
    check_packets,
    describe,
    open_media,
    truncated,
)

# Formats whose duration is missing or guessed from the first bytes.
_UNTIMED = ("aac", "ac3", "eac3", "h264", "hevc", "ivf", "m4v", "mp3", "mpegvideo", "obu")
_LONGEST_TITLE = 1000  # in characters
# Pictures of this size are not tried with the light share of memory.
_HEAVY_PICTURE = 4096 * 2304
_MOST_BYTES_PER_PIXEL = 120  # 16 reference pictures and a few more, at 6 bytes per pixel


class Request:
    """The current request: this process answers one at a time."""

    limits = Limits()
    is_heavy = False
    """Whether it may use the whole memory, not only the light share."""
    pixels = 0
    """The pixels of its pictures, if known."""
    memory: float = math.inf
    """How many bytes it may use now."""
    is_lenient = False
    """Whether the readable part of a damaged stream counts."""
    problem: str | None = None
    """What is wrong with a stream that could be read in part."""

    @classmethod
    def begin(cls, limits: Limits, is_heavy: bool, memory: float = math.inf, is_lenient: bool = False) -> None:
        """Start a new request."""
        cls.limits, cls.is_heavy, cls.pixels = limits, is_heavy, 0
        cls.memory, cls.is_lenient, cls.problem = memory, is_lenient, None

    @classmethod
    def lacks_memory(cls) -> bool:
        """Whether damage may be due to lack of memory: decoders also report that as "invalid data"."""
        return cls.pixels * _MOST_BYTES_PER_PIXEL > cls.memory

    @classmethod
    def note(cls, error: Exception, problem: str | None = None) -> None:
        """If lenient, record damage, in the words of `problem` or else of the error; the first damage is the one that
        is reported. Otherwise raise the error."""
        if not cls.is_lenient or not isinstance(error, MediaError) or isinstance(error, LimitError):
            raise error
        if cls.lacks_memory():
            raise error
        cls.problem = cls.problem or problem or str(error)

    @classmethod
    def weigh(cls, name: str, width: int, height: int) -> None:
        """Refuse pictures above the limit; request the whole memory if the light share is not enough."""
        check_picture(name, width, height)
        cls.pixels = width * height
        if cls.pixels > _HEAVY_PICTURE and not cls.is_heavy:
            raise MemoryError


def check_duration(path: str, stream: Any, seconds: float) -> None:
    """Raise a LimitError if a stream is too long."""
    limits = Request.limits
    if seconds > limits.duration:
        raise limits.exceeded(describe(path, stream), "duration", f"it is longer than {limits.duration:g} s")


def check_picture(where: str, width: int, height: int) -> None:
    """Raise a LimitError if a picture is too large."""
    if width * height > Request.limits.pixels:
        what = f"pictures of {width}x{height} = {width * height} pixels"
        raise Request.limits.exceeded(where, "pixels", what, width * height)


@contextmanager
def opened(path: str) -> Iterator["av.container.InputContainer"]:
    """Open a file within the limit on pixels: searching for streams already decodes pictures."""
    check_content(path)
    with ExitStack() as stack:
        try:
            container = stack.enter_context(open_media(path, max_pixels=str(int(Request.limits.pixels))))
        except MediaError as error:
            if _lacks_index(path):
                why = "its index, which is written last, is missing: the recording or copy was interrupted"
                raise MediaError(f"{path}: not a readable video or audio file: {why}.") from error
            raise
        yield container


def _lacks_index(path: str) -> bool:
    """Whether this is an mp4 or mov file with samples but without their index."""
    names, size, position = set(), os.path.getsize(path), 0
    with open(path, "rb") as file:
        while position + 8 <= size and len(names) < 64:
            file.seek(position)
            header = file.read(16)
            length, name = int.from_bytes(header[:4]), header[4:8]
            if not position and name not in (b"ftyp", b"wide", b"mdat", b"skip", b"free"):
                return False
            names.add(name)
            length = int.from_bytes(header[8:]) if length == 1 else length or size
            if length < 8:
                break
            position += length
    return b"mdat" in names and b"moov" not in names and position >= size


def seconds_in_header(container: "av.container.InputContainer") -> float | None:
    """The duration in the header of a file; `None` if it is missing or a guess."""
    if container.duration is None or container.format.name in _UNTIMED:
        return None
    return container.duration / av.time_base


def title_of(container: "av.container.InputContainer") -> str | None:
    """The title in the tags of a file, in one line."""
    titles = (value for name, value in container.metadata.items() if name.lower() == "title")
    return " ".join(next(titles, "").split())[:_LONGEST_TITLE] or None


# Truncation ---------------------------------------------------------------------------------------------------------


def _read_number(file: BinaryIO, is_size: bool) -> int | None:
    """Read an EBML number (RFC 8794); an unknown size is -1, the end of the file `None`."""
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
    """The end of the first part of an AVI file that exceeds the file; 0 if there is none."""
    size, stop = os.path.getsize(path), 0
    with open(path, "rb") as file:
        while stop <= size and (header := file.read(8))[:4] == b"RIFF" and len(header) == 8:
            stop = file.tell() + int.from_bytes(header[4:], "little")
            file.seek(stop + stop % 2)
    return stop if stop > size else 0


def _promised_by_matroska(path) -> int:
    """The end of the first top-level element of a Matroska file that exceeds the file; 0 if there is none."""
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
                return 0  # complete
            if length >= 0:
                file.seek(stop)
    return 0


def check_complete(path: str, container: Any, stream: Any, num_packets: int, end: float, seconds: float) -> None:
    """Compare the container's promises with what was read: packets up to `end`, of `seconds` together."""
    of_bytes = {"avi": _promised_by_riff, "matroska,webm": _promised_by_matroska}.get(container.format.name)
    if of_bytes is not None and (end_of_file := of_bytes(path)):
        raise truncated(path, stream, f"{end_of_file} bytes", f"{os.path.getsize(path)}")
    check_packets(path, container, stream, num_packets)
    if container.format.name in ("aiff", "caf", "flac"):
        promised = round((stream.duration or 0) * float(stream.time_base) * stream.codec_context.sample_rate)
        num_samples = round(seconds * stream.codec_context.sample_rate)
        if num_samples < promised - 4096:  # about a packet
            raise truncated(path, stream, f"{promised} samples", f"{num_samples}")
    elif "matroska" in container.format.name:
        # other formats pass on any comment with this name
        if tag := re.fullmatch(r"(\d{1,4}):(\d{2}):(\d{2}\.\d{1,9})", stream.metadata.get("DURATION", "")):
            duration = int(tag[1]) * 3600 + int(tag[2]) * 60 + float(tag[3])
            if end < duration - max(1.0, 0.02 * duration):
                raise truncated(path, stream, f"{duration:.2f} s", f"{end:.2f} s")


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def cut_message(where: str, error: Exception, container: Any, read: float) -> str:
    """A sentence on a stream of which only `read` seconds could be read, and why."""
    reason = str(error).removeprefix(f"{where}: ")
    promised = None if container.format.name == "avi" else seconds_in_header(container)  # avi: of the existing part
    if promised is None or not 0 <= read < promised:
        return f"{where}: only a part {IN_PART}: {reason}"
    if promised < 60:  # rounded down: the missing part must not be zero
        share = f"{math.floor(10 * read) / 10:.1f} of {promised:.1f} s"
    else:
        share = f"{_clock(read)} of {_clock(promised)}"
    return f"{where}: {share} {IN_PART}: {reason}"


# Windows -------------------------------------------------------------------------------------------------------------


def zero_of(container: Any) -> float:
    """The time at which a file begins, on the clock of its streams."""
    return (container.start_time or 0) / av.time_base


def is_said(start: float, stop: float, window: Window) -> bool:
    """Whether a cue is visible at some time in a window."""
    return max(stop, start + 1e-3) > window[0] and (window[1] is None or start < window[1])


def _is_inside(seconds: float, window: Window) -> bool:
    start, stop = window
    # clocks are rounded; anything before the start of the file belongs to its start
    return (start <= 0 or seconds >= start - 1e-6) and (stop is None or seconds < stop - 1e-6)


def in_window(times: Sequence[float], end: float, window: Window) -> list[int]:
    """Which of the frames that appear at these times are visible in a window; the last one stays until `end`."""
    chosen = [place for place, seconds in enumerate(times) if _is_inside(seconds, window)]
    before = [place for place, seconds in enumerate(times) if seconds < window[0]]
    if not chosen and before and (before[-1] + 1 < len(times) or end > window[0]):
        return before[-1:]  # a frame that stays visible
    return chosen


class Known:
    """Findings about the last file that was read, cached because its windows are read one by one."""

    path: str | None = None
    found: dict[str, Any] = {}

    @classmethod
    def of(cls, path: str) -> dict[str, Any]:
        """What is known of the file in its current state."""
        status = os.stat(path)
        name = f"{path} {status.st_size} {status.st_mtime_ns} {status.st_ino} {Request.limits.duration}"
        if name != cls.path:
            cls.path, cls.found = name, {}
        return cls.found


__all__ = [
    "Known",
    "Request",
    "check_complete",
    "check_duration",
    "check_picture",
    "in_window",
    "is_said",
    "opened",
    "seconds_in_header",
    "title_of",
    "cut_message",
    "zero_of",
]
