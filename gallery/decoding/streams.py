"""What every answer of a decoder needs: the request's limits, whole files, and what is seen in a window."""

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
    check_file,
    check_packets,
    describe,
    open_media,
    truncated,
)

# Formats whose duration is a guess from the first bytes, or not told.
_UNTIMED = ("aac", "ac3", "eac3", "h264", "hevc", "ivf", "m4v", "mp3", "mpegvideo", "obu")
_LONGEST_TITLE = 1000  # characters
# A picture of this size is not even tried with the light share of memory.
_HEAVY_PICTURE = 4096 * 2304
_MOST_BYTES_PER_PIXEL = 120  # 16 reference pictures and some more, of 6 bytes a pixel


class Request:
    """The request being answered: this process answers one at a time."""

    limits = Limits()
    is_heavy = False
    """Whether it may take the whole memory, not only the light share."""
    pixels = 0
    """Of its pictures, as far as they are known."""
    memory: float = math.inf
    """How many bytes it may take now."""
    is_lenient = False
    """Whether what can be read of a damaged stream counts."""
    problem: str | None = None
    """What is wrong with a stream of which something counts."""

    @classmethod
    def begin(cls, limits: Limits, is_heavy: bool, memory: float = math.inf, is_lenient: bool = False) -> None:
        """Forget the request before."""
        cls.limits, cls.is_heavy, cls.pixels = limits, is_heavy, 0
        cls.memory, cls.is_lenient, cls.problem = memory, is_lenient, None

    @classmethod
    def lacks_memory(cls) -> bool:
        """Whether damage may be want of memory: decoders call it "invalid data" too that pictures do not fit."""
        return cls.pixels * _MOST_BYTES_PER_PIXEL > cls.memory

    @classmethod
    def note(cls, error: Exception, problem: str | None = None) -> None:
        """Note damage where what can be read counts, in other words than the error's if they are given; the first
        damage is what is told. Elsewhere raise the error."""
        if not cls.is_lenient or not isinstance(error, MediaError) or isinstance(error, LimitError):
            raise error
        if cls.lacks_memory():
            raise error
        cls.problem = cls.problem or problem or str(error)

    @classmethod
    def weigh(cls, name: str, width: int, height: int) -> None:
        """Refuse pictures above the limit; ask for the whole memory where the light share will not do."""
        check_picture(name, width, height)
        cls.pixels = width * height
        if cls.pixels > _HEAVY_PICTURE and not cls.is_heavy:
            raise MemoryError


def check_duration(path: str, stream: Any, seconds: float) -> None:
    """Raise a LimitError if a stream lasts too long."""
    limits = Request.limits
    if seconds > limits.duration:
        raise limits.exceeded(describe(path, stream), "duration", f"it lasts more than {limits.duration:g} s")


def check_picture(where: str, width: int, height: int) -> None:
    """Raise a LimitError if a picture is too large."""
    if width * height > Request.limits.pixels:
        what = f"pictures of {width}x{height} = {width * height} pixels"
        raise Request.limits.exceeded(where, "pixels", what, width * height)


@contextmanager
def opened(path: str) -> Iterator["av.container.InputContainer"]:
    """Open a file; looking for its streams already decodes pictures, which the limit holds for too."""
    check_file(path)  # what is no file is not looked into, either
    with ExitStack() as stack:
        try:
            container = stack.enter_context(open_media(path, max_pixels=str(int(Request.limits.pixels))))
        except MediaError as error:
            if _lacks_index(path):
                why = "its index, which is written last, is missing: the recording or the copy broke off"
                raise MediaError(f"{path}: not a readable video or audio file: {why}.") from error
            raise
        yield container


def _lacks_index(path: str) -> bool:
    """Whether this is an mp4 or mov file with samples and without the box that says where they are."""
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
    """How long the header says a file lasts; `None` where it does not, or it is a guess."""
    if container.duration is None or container.format.name in _UNTIMED:
        return None
    return container.duration / av.time_base


def title_of(container: "av.container.InputContainer") -> str | None:
    """The title that the tags of a file give it, in one line."""
    titles = (value for name, value in container.metadata.items() if name.lower() == "title")
    return " ".join(next(titles, "").split())[:_LONGEST_TITLE] or None


# Whole or cut --------------------------------------------------------------------------------------------------------


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


def check_complete(path: str, container: Any, stream: Any, num_packets: int, end: float, seconds: float) -> None:
    """Compare what the container promised with what came: packets to `end`, of `seconds` together."""
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
        # other formats pass on any comment of this name
        if tag := re.fullmatch(r"(\d{1,4}):(\d{2}):(\d{2}\.\d{1,9})", stream.metadata.get("DURATION", "")):
            duration = int(tag[1]) * 3600 + int(tag[2]) * 60 + float(tag[3])
            if end < duration - max(1.0, 0.02 * duration):
                raise truncated(path, stream, f"{duration:.2f} s", f"{end:.2f} s")


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def told_of_cut(where: str, error: Exception, container: Any, read: float) -> str:
    """What is told of a stream of which so many seconds came, and why there are no more."""
    reason = str(error).removeprefix(f"{where}: ")
    promised = None if container.format.name == "avi" else seconds_in_header(container)  # avi: of what is there
    if promised is None or not 0 <= read < promised:
        return f"{where}: only a part {IN_PART}: {reason}"
    if promised < 60:  # rounded down: what is left out is never nothing
        share = f"{math.floor(10 * read) / 10:.1f} of {promised:.1f} s"
    else:
        share = f"{_clock(read)} of {_clock(promised)}"
    return f"{where}: {share} {IN_PART}: {reason}"


# Windows -------------------------------------------------------------------------------------------------------------


def zero_of(container: Any) -> float:
    """The time at which a file begins, by the clock of its streams."""
    return (container.start_time or 0) / av.time_base


def is_said(start: float, stop: float, window: Window) -> bool:
    """Whether a cue is on the screen at some time of a window."""
    return max(stop, start + 1e-3) > window[0] and (window[1] is None or start < window[1])


def _is_inside(seconds: float, window: Window) -> bool:
    start, stop = window
    # clocks are rounded; what begins before the file does belongs to its beginning
    return (start <= 0 or seconds >= start - 1e-6) and (stop is None or seconds < stop - 1e-6)


def in_window(times: Sequence[float], end: float, window: Window) -> list[int]:
    """Which of the frames that appear at these times are seen in a window; the last one stays until `end`."""
    chosen = [place for place, seconds in enumerate(times) if _is_inside(seconds, window)]
    before = [place for place, seconds in enumerate(times) if seconds < window[0]]
    if not chosen and before and (before[-1] + 1 < len(times) or end > window[0]):
        return before[-1:]  # one that stays
    return chosen


class Known:
    """What was found out about the file that was read last: its windows are read one by one."""

    path: str | None = None
    found: dict[str, Any] = {}

    @classmethod
    def of(cls, path: str) -> dict[str, Any]:
        """What is known of a file as it is now."""
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
    "told_of_cut",
    "zero_of",
]
