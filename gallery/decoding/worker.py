"""What a process that reads media files does: it answers requests on its standard input, within limits.

It imports neither torch nor a package that does, and starts in a tenth of a second. Requests and answers are pickles:
the process has the rights of the user who started it, so its answers are trusted like everything else of this user.
"""

import math
import os
import pickle
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from scalar_retrieval.modeling_scalar.media_scalar import (
    SAMPLING_RATE,
    Choose,
    Lose,
    MediaError,
    MediaReader,
    Packets,
    Prepare,
    Select,
    Window,
    av,
    check_content,
    joined_losses,
    sound_of_span,
    truncation_error,
    zero_of,
)
from scalar_retrieval.modeling_scalar.tracks_scalar import AnyPath, main_stream

if TYPE_CHECKING:
    from PIL.Image import Exif, Image
if os.name == "posix":
    import resource

PICTURE_FILES = tuple(".jpg .jpeg .jpe .jfif .png .webp .bmp .tif .tiff .avif .heic .heif .hif".split())
"""Extensions of pictures, in lowercase."""
# Pillow's formats of pictures. No others: some run programs, as EPS does.
_PICTURE_FORMATS = ["JPEG", "PNG", "WEBP", "AVIF", "BMP", "TIFF", "GIF"]
_LARGE_PICTURE = 4096 * 2304  # in pixels: larger ones are not tried with the light share of memory
_LEAST_SIDE = 1024  # pixels, more than any encoder sees: a JPEG is decoded smaller, but no side shorter than that
_BYTES_OF_COEFFICIENTS = 6  # of each pixel of a JPEG
_LONGEST = 8000  # characters of a message
_LONGEST_TITLE = 1000  # characters
# Formats whose duration is missing or guessed from the first bytes.
_UNTIMED = ("aac", "ac3", "eac3", "h264", "hevc", "ivf", "m4v", "mp3", "mpegvideo", "obu")
_LONG_SOUND = 600.0  # seconds; of longer tracks only the chosen parts are decoded
_BINS = 16  # of the histogram of a colour channel
_MOST_READ = 0.95  # of a file; the rest may be an index
_EVEN = 0.9  # of the packets that follow at the usual interval: then a longer one is a gap
_LATE = 0.9  # of a file: where its end is looked for
_RUN_UP = 2.0  # seconds decoded before a part of a track, for codecs with state between packets
# In this order: QuickTime's own tag is the moment of recording in its time zone; `date` may be that of a publication.
_DATE_TAGS = (
    "com.apple.quicktime.creationdate",
    "creation_time",
    "date_recorded",
    "creation_date",
    "origination_date",
    "date",
)
_PLACE_TAGS = ("com.apple.quicktime.location.iso6709", "location")
_LONGEST_NAME = 200  # characters of a tag or a name that are looked at
# A day, and a time after it: 2019-06-15 12.30.11, 20190615_123011, 20190615. It is no part of a longer number.
_DAY = r"(?<!\d)((?:19|20)\d\d)([-:._/ ]?)(\d\d)\2(\d\d)"
_TIME = r"(?:[ T_.-]| at )?([01]\d|2[0-3])[-:._]?([0-5]\d)(?:[-:._]?([0-5]\d)(?:[._]?\d{3})?)?"
_MOMENT = re.compile(rf"{_DAY}(?:{_TIME})?(?!\d)")
# ISO 6709: latitude and longitude in degrees, as QuickTime and Android write them
_COORDINATES = re.compile(r"([+-]\d\d?(?:\.\d+)?)([+-]\d{1,3}(?:\.\d+)?)(?!\d)")
# What clocks show that were never set: the first day of the time of QuickTime, Unix and FAT.
_FIRST_DAYS = ("1904-01-01", "1970-01-01", "1980-01-01")


class Facts(NamedTuple):
    """What the header of a file says: its title, the second at which each chapter begins and its title, in order,
    whether it has tracks of pictures and of sound, and anything in them, and when (in nanoseconds from 1970) and where
    (latitude and longitude in degrees) it was recorded. A title is `""` if there is none."""

    title: str
    chapters: list[tuple[float, str]]
    has_pictures: bool
    has_sound: bool
    recorded_ns: int | None = None
    place: list[float] | None = None


class LimitError(MediaError):
    """A file exceeds the [`Limits`]: with higher ones it may be readable."""

    @staticmethod
    def no_longer_holds(message: str, limits: "Limits") -> bool:
        """Whether the limit named in a message of this error has been raised since."""
        match = re.search(r"the limit is (\w+)=([0-9.e+]+?)[.,;]? ", f"{message} ")
        return match is not None and getattr(limits, match[1], 0) > float(match[2])


@dataclass(frozen=True)
class Limits:
    """Limits on reading one stream of a file; exceeding one is a [`LimitError`] that says how to raise the limit.

    `pixels` and `duration` work everywhere. `memory` needs Linux, `time` a Unix; elsewhere a stream may take four
    times its `time` by the clock, and as much memory as its pictures need.

    Args:
        pixels (`int`): maximum size of a frame.
        duration (`float`): maximum seconds of a stream.
        memory (`int`): bytes, shared by all decoders of a program, however many files are read at once. A subtitle
            file may have up to a 256th of it.
        time (`float`): seconds of computing; four times as many of waiting.
    """

    pixels: int = 8192 * 4320
    duration: float = 24 * 3600
    memory: int = 2**30
    time: float = 60

    def __post_init__(self):
        for name, value in asdict(self).items():
            if not 0 < value < 2**60:
                raise ValueError(f"The limit `{name}` must be a number above 0 and below 2**60, got {value!r}.")

    @classmethod
    def parse(cls, settings: Iterable[str], **defaults: float) -> "Limits":
        """Parse limits from a command line: `["memory=2GiB", "pixels=70e6"]`; the others keep their defaults.

        Raises:
            ValueError: the name is unknown, or the value is not a number above 0.
        """
        names = [field.name for field in fields(cls)]
        values = {}
        for setting in settings:
            name, _, value = setting.strip().partition("=")
            if name not in names:
                raise ValueError(f"A limit must be NAME=VALUE with a name in {names}, got {setting!r}.")
            unit = 2**30 if value.endswith("GiB") else 1
            try:
                values[name] = unit * float(value.removesuffix("GiB"))
            except ValueError as error:
                what = "must be a number such as 70e6 or 2GiB"
                raise ValueError(f"The limit `{name}` {what}, got {value!r}.") from error
        return cls(**(defaults | values))

    def exceeded(self, where: str, name: str, what: str, needed: float | None = None) -> LimitError:
        """The error that names the file, its need, the limit, and how to raise it."""
        limit = getattr(self, name)
        if needed is None:
            needed = 2 * limit
        enough = math.ceil(max(needed, limit))
        return LimitError(
            f"{where}: {what}; the limit is {name}={limit}. To read it, raise the limit: `--limit {name}={enough}`, "
            f"or `processor.reader = SandboxedReader(Limits({name}={enough}))`."
        )


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
    # Of a size, the first bits give the length of the number; all others are set if the size is unknown.
    unknown = (1 << 7 * length) - 1
    number &= unknown
    if number == unknown:
        return -1
    return number


def _end_of_riff(path: AnyPath) -> int:
    """The byte at which the last part of an AVI file must end, according to its header."""
    stop = 0
    with open(path, "rb") as file:
        header = file.read(8)
        # Each part begins with its name and its size. Beyond the end of the file nothing is read.
        while len(header) == 8 and header.startswith(b"RIFF"):
            stop = file.tell() + int.from_bytes(header[4:], "little")
            file.seek(stop + stop % 2)
            header = file.read(8)
    return stop


def _end_of_matroska(path: AnyPath) -> int:
    """The byte at which the content of a Matroska file must end, according to its header; 0 if it is not known."""
    stop = 0
    with open(path, "rb") as file:
        for _ in ("header", "content"):
            _read_number(file, is_size=False)  # its name
            length = _read_number(file, is_size=True)
            if length is None or length < 0:
                return 0
            stop = file.tell() + length
            file.seek(stop)
    return stop


def firsts(seconds: Sequence[float], pace: float) -> list[int]:
    """The indices of those that are the first in their interval of `pace` seconds, from 0 on."""
    intervals = np.floor(np.array(seconds) / pace + 1e-6)
    return np.unique(intervals, return_index=True)[1].tolist()


def colours_of(frame: np.ndarray) -> np.ndarray:
    """The histograms of the channels of a frame `(height, width, 3)`: shares that add up to 1, `(3 * bins,)`."""
    values = frame.reshape(-1, 3) // (256 // _BINS) + _BINS * np.arange(3)
    return np.bincount(values.ravel(), minlength=3 * _BINS).astype(np.float32) / values.size


class LimitedReader(MediaReader):
    """Reads files within limits, and checks that nothing is missing at their end.

    Args:
        limits ([`Limits`]): what a stream may need.
        memory (`int`): the bytes that it may use now; if that is not all, a MemoryError asks for more.
    """

    bytes_per_pixel = 120  # at most: 16 reference pictures and a few more, at 6 bytes

    def __init__(self, limits: Limits, memory: int):
        self.limits = limits
        self.memory = memory
        self.may_lack_memory = memory < limits.memory
        self.pixels = 0
        self.options = {"max_pixels": str(int(limits.pixels))}

    def check(self, where: str, limit: str, needed: float | None, what: str) -> None:
        """Raise a LimitError if a stream needs more than a limit, a MemoryError if it may need all the memory."""
        if needed is None or needed > getattr(self.limits, limit):
            raise self.limits.exceeded(where, limit, what, needed)
        if limit == "pixels":
            self.pixels = max(self.pixels, int(needed))
            if needed > _LARGE_PICTURE and self.may_lack_memory:
                raise MemoryError

    def find_truncation(self, path: AnyPath, container: Any, stream: Any, packets: Packets) -> MediaError | None:
        """Compare what came also with the bytes and samples that a container promises."""
        # Bytes, where a header counts them.
        kind = container.format.name
        size = os.path.getsize(path)
        end = 0
        if kind == "avi":
            end = _end_of_riff(path)
        elif kind == "matroska,webm":
            end = _end_of_matroska(path)
        if end > size:
            return truncation_error(path, stream, f"{end} bytes", f"{size}")
        # Fragments of mp4 name neither their number nor their size: reading ends at the first that is damaged.
        if "mp4" in kind and not stream.frames and (packets.stop or size) < _MOST_READ * size:
            end = max(stop for _, stop, _, _ in self._places_of(path))
            if end < _MOST_READ * size:
                packets.ends_early = True
                what = f"reading ended at byte {end} of {size}"
                return MediaError(f"{packets.name}: {what}. The file is truncated or damaged.")
        # Bytes of each stream, where an index lists them. Of sound, a part of a packet may be left out.
        if kind == "avi":
            sizes = [entry.size for entry in stream.index_entries]
            came = int(packets.sizes.sum())
            left_out = max(sizes, default=0) if stream.type == "audio" else 0
            if came + left_out < sum(sizes):
                packets.ends_early = False  # its clock counts packets
                return truncation_error(path, stream, f"{sum(sizes)} bytes", f"{came}")
        # Samples, where a header counts these instead of packets.
        if kind in ("aiff", "caf", "flac"):
            rate = stream.codec_context.sample_rate
            promised = round((stream.duration or 0) * packets.tick * rate)
            came = round(packets.seconds * rate)
            if came < promised - 4096:  # about a packet
                return truncation_error(path, stream, f"{promised} samples", f"{came}")
        return super().find_truncation(path, container, stream, packets)

    def find_vanished(self, path: AnyPath, container: Any, stream: Any, packets: Packets) -> list[float]:
        """The seconds at which packets of a stream are missing by damage: between timestamps that are otherwise even,
        beside a damaged packet or where a part of the file about as large as they are belongs to no packet."""
        if not packets.is_named or len(packets) < 2:
            return []
        pts = np.sort(packets.pts)
        steps = np.diff(pts)
        step = np.median(steps)
        # In a stream with a variable rate of frames, gaps are no damage.
        if np.mean(steps <= 1.5 * step) < _EVEN:
            return []
        vanished = []
        unread = {}
        for place in np.flatnonzero(steps > 2.5 * step):
            before, after = pts[place : place + 2].tolist()
            count = round(steps[place] / step) - 1
            if count > len(packets):  # noise in a timestamp
                continue
            if not ((packets.corrupt >= before) & (packets.corrupt <= after)).any():
                unread = unread or self._unread_before(path, stream.index)
                if unread[after] - unread[before] < count * packets.sizes.mean() / 2:
                    continue
            times = before + step * np.arange(1, count + 1)
            vanished += (times * packets.tick - packets.zero).tolist()
        return vanished

    def _unread_before(self, path: AnyPath, index: int) -> dict[int, int]:
        """How many bytes of a file before each packet of a stream belong to no packet, by the packet's pts."""
        unread = 0
        end = 0
        found = {}
        for start, stop, stream, pts in sorted(self._places_of(path), key=itemgetter(0)):
            unread += max(0, start - end)
            end = max(end, stop)
            if stream == index:
                found[pts] = unread
        return found

    def _places_of(self, path: AnyPath) -> list[tuple[int, int, int, int | None]]:
        """Of each packet of a file its first byte and the one after its last, the index of its stream, and its pts."""
        places = []
        stops = defaultdict(int)
        with self.opened(path) as container:
            for packet in self.demuxed(container, ()):
                # Of the frames that a packet of the container holds, all but the first have no place of their own.
                index = packet.stream_index
                start = stops[index] if packet.pos is None else packet.pos
                stops[index] = start + packet.size
                places.append((start, stops[index], index, packet.pts))
        return places

    def samples(
        self, path: AnyPath, packets: Packets, start: int, stop: int | None, rate: int, lose: Lose
    ) -> Iterator[np.ndarray]:
        """The samples of a range of the main audio track. One that begins later than two seconds is found by its
        timestamps: exactly in PCM and FLAC at `rate`, otherwise within a frame of the codec."""
        # Nothing lies beyond the end, apart from rounding and what codecs add.
        if start >= (packets.end - packets.start + 1) * rate:
            return
        if start > _RUN_UP * rate:
            with self.opened(path) as container:
                stream = main_stream(path, container, "audio")
                sought = self._frames_from(path, container, stream, packets, start / rate, lose)
                if sought is not None:
                    frames, position, origin = sought
                    yield from sound_of_span(frames, position, origin, start, stop, rate)
                    return
        # Otherwise decode the track from its beginning.
        yield from super().samples(path, packets, start, stop, rate, lose)

    def _frames_from(
        self, path: AnyPath, container: Any, stream: Any, packets: Packets, seconds: float, lose: Lose
    ) -> tuple[Iterable, float, float] | None:
        """The frames of the main audio track from before a second of it, where they begin, and where the track does
        on the clock of the stream; `None` if there are no timestamps, or no way to them."""
        try:
            # The clock begins with the first frame, unless those before it are lost.
            origin = float(
                next(self.decoded(path, stream, self.demuxed(container, stream), lose)).pts * stream.time_base
            )
            if origin > packets.start + _RUN_UP:
                origin = packets.start
            container.seek(int((origin + seconds - _RUN_UP) / stream.time_base), stream=stream)
            frames = self.decoded(path, stream, self.demuxed(container, stream), lose)
            first = next(frames)
            position = float(first.pts * stream.time_base) - origin
            if position <= seconds:
                return chain([first], frames), position, origin
        except (av.FFmpegError, MediaError, StopIteration, TypeError):
            pass
        return None

    def read_audio_parts(
        self, path: AnyPath, choose: Choose, window: Window | None = None, rate: int = SAMPLING_RATE
    ) -> tuple[list[np.ndarray], int] | None:
        """Read ranges of samples; of a track of more than ten minutes only these are decoded, and the number of all
        samples is that of the packets."""
        seconds = 0.0
        if window is None:
            packets = self.packets_of(path, "audio")
            if packets is not None:
                # Gaps between packets do not count, nor packets that overlap.
                seconds = min(packets.seconds, packets.end - packets.start)
        if seconds <= _LONG_SOUND:
            return super().read_audio_parts(path, choose, window, rate)
        parts = []
        available = round(seconds * rate)
        for start, stop in choose(available):
            part = self.read_audio(path, (packets.lead + start / rate, packets.lead + stop / rate), rate)
            samples = np.zeros(stop - start, np.float32)  # the clock of a container may be coarser
            if part is not None:
                samples[: len(part)] = part
            parts.append(samples)
        return parts, available

    def read_pictures(self, path: AnyPath, pace: float, side: int, window: Window | None) -> list[tuple[float, Any]]:
        """See [`~scalar_retrieval.gallery.decoding.SandboxedReader.read_pictures`]."""
        return self.read_timed_frames(path, partial(firsts, pace=pace), window, side=side)

    def read_colours(
        self, path: AnyPath, pace: float, side: int, window: Window | None
    ) -> list[tuple[float, np.ndarray]]:
        """The seconds that `read_pictures` returns of the frames from the first keyframe of a window to the first one
        after it, each with the colours of the frame: windows that follow each other decode no frame twice."""
        packets = self.packets_of(path, "video")
        if packets is None:
            return []
        if window is not None and packets.is_named:
            keys = np.sort(packets.pts[packets.keys]) * packets.tick - packets.zero
            ends: list[float | None] = [*keys.tolist(), None]
            start, stop = np.searchsorted(keys, np.array(window) - 1e-6)
            # What comes before the first keyframe of the file belongs to its start.
            window = (ends[start] if window[0] > 0 else 0.0, ends[stop])
            if window[0] is None or window[0] == window[1]:
                return []
        return self.read_timed_frames(path, partial(firsts, pace=pace), window, lambda height, width: colours_of, side)

    def read_facts(self, path: AnyPath) -> Facts:
        """See [`~scalar_retrieval.gallery.decoding.SandboxedReader.read_facts`]."""
        with self.opened(path) as container:
            chapters = []
            for chapter in container.chapters():
                start = float(chapter["start"] * chapter["time_base"]) - zero_of(container)
                chapters.append((max(start, 0.0), _title_in(chapter["metadata"])))
            tracks = container.streams
            has_packets = any(packet.size for packet in self.demuxed(container, (*tracks.video, *tracks.audio)))
            # Tags of the file come before those of its tracks, where Ogg has all of them.
            tags = {}
            for source in (*tracks, container):
                for name, value in source.metadata.items():
                    tags[name.lower()] = value
            return Facts(
                _title_in(container.metadata),
                sorted(chapters),
                has_packets and bool(tracks.video),
                has_packets and bool(tracks.audio),
                date_in_tags(tags),
                place_in_tags(tags),
            )

    def read_duration(self, path: AnyPath) -> float | None:
        """See [`~scalar_retrieval.gallery.decoding.SandboxedReader.read_duration`]."""
        seconds = None
        with self.opened(path) as container:
            if container.duration is not None and container.format.name not in _UNTIMED:
                seconds = container.duration / av.time_base
                if not _reaches(container, seconds):
                    seconds = None
        # If the container does not give it, or does not hold as much, it follows from the packets.
        if seconds is None:
            lengths = []
            for kind in ("video", "audio"):
                packets = self.packets_of(path, kind)
                if packets is not None and len(packets):
                    lengths.append(packets.end - packets.zero)
            seconds = max(lengths, default=None)
        if seconds is not None:
            self.check(os.fspath(path), "duration", seconds, f"it lasts {seconds:g} s")
        return seconds


def _reaches(container: Any, seconds: float) -> bool:
    """Whether a file has a packet near the end of the seconds that it promises: a recording that was cut off promises
    those that were planned, and an empty one may promise any."""
    late = zero_of(container) + _LATE * seconds
    with suppress(av.FFmpegError):
        container.seek(round(late * av.time_base))
        for packet in container.demux():
            if packet.pts is not None and (packet.pts + (packet.duration or 0)) * packet.time_base >= late:
                return True
    return False


@contextmanager
def opened_picture(path: AnyPath) -> "Iterator[Image]":
    """
    Open a picture, of which nothing is decoded yet, with Pillow. FFmpeg is no choice: it reads a phone's HEIC as
    tiles, and neither animated WebP nor the two pictures that phones put in one JPEG.

    Raises:
        FileNotFoundError: there is no such file.
        MediaError: it is not a picture of a known format, or what is done with it fails.
    """
    # Not at the top: a process that reads films alone starts without it.
    from PIL import Image, UnidentifiedImageError

    check_content(path)
    Image.MAX_IMAGE_PIXELS = None  # the reader has a limit of its own, which it names
    formats = list(_PICTURE_FORMATS)
    with suppress(ImportError):
        from pillow_heif import register_heif_opener

        register_heif_opener()
        formats.append("HEIF")
    try:
        with Image.open(path, formats=formats) as picture:
            yield picture
    except (MediaError, MemoryError, PermissionError):
        raise
    except UnidentifiedImageError as error:
        raise MediaError(f"{path}: not a readable picture: {_why_unknown(path)}") from error
    except Exception as error:  # damaged files raise errors of many kinds
        raise MediaError(f"{path}: not a readable picture ({error}).") from error


def _why_unknown(path: AnyPath) -> str:
    """Why a picture cannot be opened, and what helps."""
    with open(path, "rb") as file:
        head = file.read(12)
    if head[4:].startswith((b"ftyphe", b"ftypmif", b"ftypmsf")):
        return "HEIC needs the package pillow-heif, `pip install pillow-heif`, or convert the file."
    return "it is damaged, or of another type."


def upright_pixels(picture: "Image", side: int | None = None) -> np.ndarray:
    """
    Decode an open picture, of an animation the first one.

    Args:
        picture (`PIL.Image.Image`): from [`opened_picture`].
        side (`int`, *optional*): maximum width and height in pixels; larger pictures are shrunk.

    Returns:
        uint8 `np.ndarray` of shape `(height, width, 3)`: RGB, upright, and white where the picture is transparent.
    """
    from PIL import Image, ImageOps

    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I;16"):  # which Pillow would cut to eight bits
        picture = Image.fromarray(np.uint8(np.asarray(picture) // 256))
    if picture.has_transparency_data:
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture.convert("RGBA"))
    picture = picture.convert("RGB")
    if side is not None:
        picture.thumbnail((side, side))
    return np.array(picture)


class PictureReader(LimitedReader):
    """Reads a picture as a film of one frame, without sound, text and length."""

    bytes_per_pixel = 16  # at most: it is decoded, laid over white, and converted

    def read_timed_frames(
        self,
        path: AnyPath,
        select: Select,
        window: Window | None = None,
        prepare: Prepare | None = None,
        side: int | None = None,
    ) -> list[tuple[float, Any]]:
        """Read the picture, at second 0."""
        with opened_picture(path) as picture:
            number = picture.width * picture.height
            what = f"pictures of {picture.width}x{picture.height} = {number} pixels"
            picture.draft(None, (side or _LEAST_SIDE,) * 2)  # a half, a quarter or an eighth of a JPEG
            needed = picture.width * picture.height
            # Of a progressive JPEG all coefficients are kept, however small it is decoded.
            if "progression" in picture.info:
                needed = max(needed, number * _BYTES_OF_COEFFICIENTS // self.bytes_per_pixel)
            self.check(os.fspath(path), "pixels", needed, what)
            pixels = upright_pixels(picture, side)
        chosen = select([0.0])
        if prepare is not None:
            pixels = prepare(*pixels.shape[:2])(pixels)
        return [(0.0, pixels)] * len(chosen)

    def packets_of(self, path: AnyPath, kind: str) -> None:
        """There are none, as of a stream that a file lacks."""
        return None

    def cues_of_track(self, path: AnyPath) -> None:
        """A picture has no track of text."""
        return None

    def read_facts(self, path: AnyPath) -> Facts:
        """See [`~scalar_retrieval.gallery.decoding.SandboxedReader.read_facts`]."""
        tags: dict[str, str] = {}
        # A picture can be seen although what it says of itself is damaged. That of a PNG may stand behind its pixels,
        # which are not decoded for it.
        with suppress(MediaError), opened_picture(path) as picture:
            if "exif" in picture.info:
                _add_exif(picture.getexif(), tags)
        return Facts("", [], True, False, date_in_tags(tags), place_in_tags(tags))

    def read_duration(self, path: AnyPath) -> None:
        """A picture does not last."""
        return None


def _add_exif(exif: "Exif", tags: dict[str, str]) -> None:
    """Add when and where a picture was taken, as films say it in their tags."""
    from PIL.ExifTags import GPS, IFD, Base

    # 2019:06:15 12:30:11, and perhaps +02:00
    details = exif.get_ifd(IFD.Exif)
    day = str(details.get(Base.DateTimeOriginal, "")).replace(":", "-", 2)
    tags["creation_time"] = day + str(details.get(Base.OffsetTimeOriginal, ""))
    # Degrees, minutes and seconds, and the side of the equator and of Greenwich
    position = exif.get_ifd(IFD.GPSInfo)
    latitude, longitude = (
        sum(float(number) / 60**power for power, number in enumerate(position.get(name, ())))
        for name in (GPS.GPSLatitude, GPS.GPSLongitude)
    )
    if position.get(GPS.GPSLatitudeRef) == "S":
        latitude = -latitude
    if position.get(GPS.GPSLongitudeRef) == "W":
        longitude = -longitude
    tags["location"] = f"{latitude:+010.6f}{longitude:+011.6f}"


def _title_in(tags: Mapping[str, str]) -> str:
    """The title that tags name, on one line; `""` if they name none."""
    for name, value in tags.items():
        if name.lower() == "title":
            return " ".join(value.split())[:_LONGEST_TITLE]
    return ""


# When and where a file was recorded ----------------------------------------------------------------------------------


def nanoseconds_of(moment: datetime) -> int:
    """Nanoseconds from 1970 to a moment, limited to 64 bits; the smallest such number is not used."""
    most = 2**63 - 1
    number = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000
    return min(max(number, -most), most)


def _if_possible(moment: datetime) -> int | None:
    """A moment in nanoseconds from 1970, if something can have been recorded then."""
    # Of a moment without a time zone it is not known when it was.
    if moment.year < 1900 or moment > datetime.now(UTC) + timedelta(days=1) or str(moment.date()) in _FIRST_DAYS:
        return None
    return nanoseconds_of(moment)


def _date_in(text: str) -> int | None:
    """The first possible moment in a text, as if it were in UTC, in nanoseconds from 1970."""
    for year, _, month, day, *clock in _MOMENT.findall(text[:_LONGEST_NAME]):
        numbers = [int(number or 0) for number in (year, month, day, *clock)]
        with suppress(ValueError):  # there is no such day
            date = _if_possible(datetime(*numbers, tzinfo=UTC))
            if date is not None:
                return date
    return None


def date_in_name(path: AnyPath) -> int | None:
    """The moment in the name of a file, such as VID_20190615_123011.mp4, as if it were in UTC, in nanoseconds from
    1970; `None` without one."""
    return _date_in(os.path.basename(os.fspath(path)))


def date_in_tags(tags: Mapping[str, str]) -> int | None:
    """
    The moment of a recording in nanoseconds from 1970; `None` if no tag has a full date that is possible.

    Args:
        tags (`dict[str, str]`): by their names in lower case; a time without a zone is taken for UTC.
    """
    for name in _DATE_TAGS:
        value = tags.get(name, "").strip()
        # With its time zone, where it has one.
        try:
            moment = datetime.fromisoformat(value)
            date = _if_possible(moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC))
        except (OverflowError, ValueError):
            date = _date_in(value)
        if date is not None:
            return date
    return None


def place_in_tags(tags: Mapping[str, str]) -> list[float] | None:
    """Latitude and longitude of a recording, in degrees; `None` if no tag has them. See [`date_in_tags`]."""
    for name in _PLACE_TAGS:
        match = _COORDINATES.match(tags.get(name, "").strip())
        if match is not None:
            latitude, longitude = map(float, match.groups())
            # 0, 0 is in the ocean: there was no reception.
            if abs(latitude) <= 90 and abs(longitude) <= 180 and (latitude or longitude):
                return [latitude, longitude]
    return None


# Requests ------------------------------------------------------------------------------------------------------------


def _handle(request: dict[str, Any], call: Callable[..., Any]) -> tuple[str, Any]:
    """Handle a request; returns the kind of the answer, `result`, `error` or `memory`, and its content."""

    def prepare(height: int, width: int) -> Callable[[np.ndarray], Any]:
        call("prepare", height, width)
        return partial(call, "frame")

    path = request["path"]
    problems = []
    kind = PictureReader if path.lower().endswith(PICTURE_FILES) else LimitedReader
    reader = kind(request["limits"], request["memory"])
    try:
        # Functions stay in the process that sent the request: here they become calls to it.
        options = request["options"]
        if "choose" in request["calls"]:
            options["choose"] = partial(call, "choose")
        if "prepare" in request["calls"]:
            options["prepare"] = prepare
        if request["is_lenient"]:
            reader = reader.reporting_to(problems.append)
        result = getattr(reader, request["method"])(path, **options)
        # What looks like damage may be a lack of memory: then read again, with all of it.
        needed = reader.pixels * reader.bytes_per_pixel
        if problems and reader.memory < min(needed, reader.limits.memory):
            return "memory", None
        return "result", (result, list(joined_losses(problems)))
    except (MemoryError, BlockingIOError):  # the second: of a thread
        return "memory", None
    except MediaError as error:
        # Decoders also call it damage if there is not enough memory.
        if reader.pixels * reader.bytes_per_pixel > reader.memory and not isinstance(error, LimitError):
            return "memory", str(error)
        return "error", type(error)(str(error)[:_LONGEST])
    except (FileNotFoundError, PermissionError) as error:
        return "error", error
    except OSError as error:
        return "error", MediaError(f"{path}: reading failed ({error}).")
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"[:_LONGEST]
        return "error", MediaError(f"{path}: unexpected error of the reader; please report it: {problem}")


def _restrict(limits: Limits, memory: int, data_at_start: int | None) -> None:
    """Limit this process: beyond its memory, allocations fail; beyond its time, the system ends it."""
    if os.name != "posix":
        return
    # What was used before this request does not count.
    bounds = {resource.RLIMIT_CPU: math.ceil(time.process_time() + limits.time)}
    if data_at_start is not None:
        bounds[resource.RLIMIT_DATA] = data_at_start + memory
    for kind, bound in bounds.items():
        _, hard = resource.getrlimit(kind)  # set by whoever started this program; it cannot be raised
        if hard != resource.RLIM_INFINITY:
            bound = min(bound, hard)
        resource.setrlimit(kind, (bound, hard))


def _data_size() -> int | None:
    """Bytes of private writable memory, which `RLIMIT_DATA` limits on Linux; `None` elsewhere."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            return int(re.search(r"VmData:\s*(\d+) kB", file.read())[1]) * 1024
    except (OSError, TypeError):
        return None


def serve() -> None:
    """Answer requests until there are no more."""
    # What libraries print must not get between the answers.
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 0)
    os.dup2(2, 1)
    if os.name == "posix":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Import everything now, so that reading a file opens nothing else.
    subtitles = ("av.subtitles.subtitle", "av.subtitles.stream", "av.subtitles.codeccontext")
    for name in ("encodings.utf_8_sig", "charset_normalizer", *subtitles):
        with suppress(ImportError):
            import_module(name)

    def send(*message: Any) -> None:
        pickle.dump(message, sink, protocol=5)
        sink.flush()

    def call(name: str, *arguments: Any) -> Any:
        send(name, arguments)
        if name != "choose":
            return None  # nothing comes back
        return pickle.load(source)

    data_at_start = _data_size()
    send("ready", None)
    with suppress(EOFError, BrokenPipeError):
        while True:
            request = pickle.load(source)
            _restrict(request["limits"], request["memory"], data_at_start)
            send(*_handle(request, call))


__all__ = [
    "PICTURE_FILES",
    "Facts",
    "LimitError",
    "LimitedReader",
    "Limits",
    "PictureReader",
    "colours_of",
    "date_in_name",
    "firsts",
    "nanoseconds_of",
    "serve",
]
