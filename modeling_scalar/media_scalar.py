"""Read frames, audio and subtitles of media files with PyAV, in this process.

Frames are addressed by their index in presentation order, never by time. A missing stream is absent; a stream that
cannot be decoded raises a `MediaError`. Only NumPy and PyAV are imported, so that a decoder starts quickly.
"""

import html
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby, pairwise, takewhile
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

try:
    import av
except ImportError:
    av = None

SAMPLING_RATE = 16_000
TEXT_CODECS = ("ass", "ssa", "subrip", "srt", "webvtt", "mov_text", "text")
# Without this list FFmpeg renders any text as video (tty), reads single pictures as clips, and follows references to
# other files and hosts (concat, hls, dash).
_DEMUXERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,asf,flv,f4v,mpeg,mpegts,mpegvideo,m4v,h264,hevc,av1,ivf,obu,ogg,gif,mxf,"
    "nut,rm,dv,wtv,yuv4mpegpipe,wav,w64,mp3,flac,aac,ac3,eac3,aiff,au,caf,amr,wv,ape,tta"
)

AnyPath = str | os.PathLike
Window = tuple[float, float | None]
"""The start and end of a part of a file in seconds from its beginning; None is its end."""
Choose = Callable[[int], Sequence[Any]]
"""From the number of frames or samples to the indices, or ranges, to read; it may be called again."""
Prepare = Callable[[int, int], Callable[[np.ndarray], Any]]
"""Called with height and width before the first frame; returns a function to call with each picture."""


class MediaError(ValueError):
    """A file or one of its streams cannot be decoded. The message names the file and, where known, the stream."""


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
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(mode), "a device")
        raise MediaError(f"{path}: not a file but {kind}. Only regular files are read.")


def check_content(path: AnyPath) -> None:
    """Raise a MediaError unless a file is regular and has a size. Files that the system generates, such as /proc/kmsg,
    have none, and reading them might never end."""
    check_file(path)
    if not os.path.getsize(path):
        raise MediaError(f"{path}: not a readable video or audio file: it is empty.")


@contextmanager
def open_media(path: AnyPath, **options: str) -> Iterator["av.container.InputContainer"]:
    """Open a file and nothing else; `options` are FFmpeg's."""
    check_installed()
    check_content(path)
    options |= {"format_whitelist": _DEMUXERS, "protocol_whitelist": "file"}
    try:
        # "file:" keeps names such as "a:b.mp4" from being read as a protocol
        container = av.open(f"file:{os.fspath(path)}", options=options, metadata_errors="replace")
    except av.FFmpegError as error:
        # FFmpeg calls some damage a lack of permission, too
        if isinstance(error, MemoryError) or (isinstance(error, PermissionError) and not os.access(path, os.R_OK)):
            raise
        what = f"not a readable video or audio file ({error.strerror})"
        raise MediaError(f"{path}: {what}. Is it empty, truncated, or of another type?") from error
    with container:
        if not container.streams.video and not container.streams.audio:
            raise MediaError(f"{path}: the {container.format.name} file holds neither video nor audio.")
        yield container


def select(container: Any, stream: Any) -> None:
    """Make the demuxer skip the data of all other streams."""
    for other in container.streams:
        if other.index != stream.index:
            other.discard = av.stream.Discard.all


def first_stream(path: AnyPath, container: Any, kind: str) -> Any:
    """Select the first real stream of a kind, if any: cover art and thumbnails are attached pictures, not video."""
    for stream in getattr(container.streams, kind):
        if stream.disposition & (av.stream.Disposition.attached_pic | av.stream.Disposition.timed_thumbnails):
            continue
        if stream.codec_context is None:
            raise MediaError(f"{path}: no decoder for {kind} stream {stream.index}.")
        select(container, stream)
        return stream
    return None


def describe(path: AnyPath, stream: Any) -> str:
    """Name a stream of a file, as errors do."""
    return f"{path}: {stream.type} stream {stream.index} ({stream.codec_context.name})"


def damage(where: str, what: str, error: Exception) -> Exception:
    """Make the error of a damaged stream; an error for lack of memory is returned unchanged."""
    problem = f"{where}: {what} ({getattr(error, 'strerror', None) or error})."
    return error if isinstance(error, MemoryError) else MediaError(problem)


def truncated(path: AnyPath, stream: Any, promised: str, came: str) -> MediaError:
    """Make the error of a stream that ended early."""
    less = f"the container promises {promised}, {came} came"
    return MediaError(f"{describe(path, stream)}: {less}. The file is truncated or damaged.")


def check_packets(path: AnyPath, container: Any, stream: Any, num_packets: int) -> None:
    """Raise a MediaError if fewer packets came than the container promises."""
    promised = stream.frames
    if "mp4" in container.format.name and (num_packets or stream.index_entries):
        # the sample table also counts packets that an edit list trims; the index built from both does not
        promised = len(stream.index_entries)
    # the first counts frames that are repeated without a packet, the others samples
    if container.format.name not in ("avi", "aiff", "caf", "flac") and num_packets < promised:
        raise truncated(path, stream, f"{promised} packets", f"{num_packets}")


class Upright:
    """Converts the frames of a stream, named in errors, to uint8 pictures `(height, width, 3)`, RGB and upright;
    pictures are shrunk until no side is longer than `side`, if given."""

    def __init__(self, name: str, side: int | None = None):
        self.name, self.side, self.size = name, side, None
        self._reformatter = av.video.reformatter.VideoReformatter()

    def __call__(self, frame: "av.VideoFrame") -> np.ndarray:
        if frame.is_corrupt:
            raise MediaError(f"{self.name}: the frame at {float(frame.time or 0):.2f} s is damaged.")
        share = 1.0 if self.side is None else min(1.0, self.side / max(frame.width, frame.height))
        width, height = (max(1, round(share * length)) for length in (frame.width, frame.height))
        options = {} if share == 1 else {"width": width, "height": height, "interpolation": "AREA"}
        image = self._reformatter.reformat(frame, format="rgb24", **options).to_ndarray()
        image = np.ascontiguousarray(np.rot90(image, k=round(frame.rotation / 90)) if frame.rotation else image)
        size, self.size = self.size or image.shape[:2], image.shape[:2]
        if self.size != size:
            raise MediaError(f"{self.name}: the picture changes its size, {[size, self.size]}. Convert the file.")
        return image


def mono(frames: Iterable, rate: int = SAMPLING_RATE) -> Iterator[np.ndarray]:
    """Resample audio frames to 16-bit mono: the mean of the channels, as in Kaldi's recipes.

    A float mono target would not be the mean: libswresample then adds stereo channels with factor 0.707, 3 dB louder.
    """
    # HE-AAC may change its rate within a stream
    for _, alike in groupby(frames, attrgetter("format.name", "layout.name", "sample_rate")):
        resampler = av.AudioResampler(format="s16", layout="mono", rate=rate)
        for frame in chain(alike, [None]):  # which ends it
            yield from (piece.to_ndarray()[0] for piece in resampler.resample(frame))


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


def find_sidecar(path: AnyPath) -> Path | None:
    """The subtitle file next to a video: its stem with `.srt`, `.vtt`, `.en.srt` or `.en.vtt`, in this order."""
    files = map(Path(path).with_suffix, (".srt", ".vtt", ".en.srt", ".en.vtt"))
    return next(filter(os.path.exists, files), None)  # where a name that is too long for the file system is not one


def names_subtitle_file(subtitle: Any) -> bool:
    """Whether a subtitle is the path of a subtitle file, not the text itself."""
    return isinstance(subtitle, os.PathLike) or (
        isinstance(subtitle, str)
        and subtitle.lower().endswith((".srt", ".vtt", ".ass", ".ssa"))
        and "\n" not in subtitle
    )


def join_lines(lines: Iterable[str]) -> str:
    """Join cue lines to one string; a line that repeats the one before it (rolling captions) counts once."""
    lines = filter(None, (" ".join(line.split()) for line in lines))
    return " ".join(line for line, _ in groupby(lines))


_TIME = r"((?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3})"
_TIMING = re.compile(rf"^\s*{_TIME}\s*-->\s*{_TIME}")
# only markup that players interpret: "<3" and "a < b" are speech
_MARKUP = re.compile(r"</?(?:[a-z]+(?:[.\s][^<>]*)?|\d+:\d{2}[\d:.]*(?:\s[^<>]*)?)>|\{\\[^{}]*\}", re.IGNORECASE)


def subtitle_cues(path: AnyPath, content: bytes) -> Iterator[tuple[str, str, list[str]]]:
    """The cues of an `.srt` or `.vtt` file: start and end as written, and lines without markup."""
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise MediaError(f"{path}: the subtitle file is not UTF-8 ({error.reason}). Convert it first.") from error
    is_vtt = bool(lines) and lines[0].startswith("WEBVTT")
    timings = [(place, timing) for place, line in enumerate(lines) if (timing := _TIMING.match(line))]
    if not timings and not is_vtt and any(map(str.strip, lines)):
        raise MediaError(f"{path}: the subtitle file has text but no cue with a timing (`-->`).")
    for (place, timing), (stop, _) in pairwise([*timings, (len(lines), None)]):
        cue = lines[place + 1 : stop]
        if stop < len(lines) and cue and cue[-1].strip().isdigit():
            cue.pop()  # the number of the next cue
        # up to an empty line, which a cue's name, NOTE or STYLE may follow
        said = takewhile(str.strip, cue) if is_vtt else cue
        yield timing[1], timing[2], [html.unescape(_MARKUP.sub("", line)) for line in said]


def text_stream(container: Any) -> Any:
    """The default text track, else the first, if any; picture-based tracks (DVD, Blu-ray) are not text."""
    streams = [stream for stream in container.streams.subtitles if stream.codec_context is not None]
    streams = [stream for stream in streams if stream.codec_context.name in TEXT_CODECS]
    streams.sort(key=lambda stream: not stream.disposition & av.stream.Disposition.default)
    return streams[0] if streams else None


def track_lines(path: AnyPath, stream: Any, packets: Iterable) -> Iterator[tuple[int, list[str]]]:
    """The lines of each event of a text track, and their size in bytes."""
    try:
        for packet in packets:
            for subtitle in packet.decode():
                # ReadOrder, Layer, Style, Name, MarginL, MarginR, MarginV, Effect, Text
                text = subtitle.ass.decode("utf-8").split(",", 8)[-1]
                is_drawing = re.search(r"\{[^{}]*\\p[1-9]", text)
                text = "" if is_drawing else _MARKUP.sub("", text).replace(r"\h", " ")
                yield len(subtitle.ass), re.split(r"\\[Nn]|\n", text)
    except (av.FFmpegError, UnicodeDecodeError) as error:
        raise damage(describe(path, stream), "the subtitle track does not decode", error) from error


def _refuse(window: Window | None) -> None:
    if window is not None:
        raise ValueError("Only `processor.reader = gallery.decoding.SandboxedReader()` reads windows of files.")


class MediaReader:
    """Opens files for a processor, in this process: for trusted files.

    A file that makes FFmpeg crash or use all memory affects this process. [`~gallery.decoding.SandboxedReader`]
    returns the same, bit for bit, and also reads a `window` of a file and the intact part of a damaged stream.

    All methods raise FileNotFoundError if the file does not exist; MediaError if it is not a regular file of a known
    format, fewer packets came than the container promises, or decoding fails; ImportError if PyAV is not installed.

    Attributes:
        on_error (`str`): For a damaged stream, a processor's `read_clip` can `"raise"` a `MediaError`, or treat it as
            `"missing"`, except for what the reader can still read, with a line in `Clip.problems`.
    """

    on_error = "raise"

    def noting(self, note: Callable[[str], Any] | None) -> "MediaReader":
        """A reader that reports damaged streams to `note` and reads the rest; this one always raises errors."""
        return self

    def _stream(self, path: AnyPath, kind: str, decodes: bool = True) -> Iterator[Any]:
        """All frames of the first stream of a kind in presentation order, or its packets; empty if there is none."""
        with open_media(path) as container:
            stream, num_packets = first_stream(path, container, kind), 0
            if stream is None:
                return
            if kind == "video":  # with several threads, audio decoding ignores damage at the end
                stream.thread_type = "AUTO"
            try:
                for packet in container.demux(stream):
                    num_packets += packet.size > 0 or packet.dts is not None  # PyAV's flush packet has neither
                    yield from packet.decode() if decodes else [packet]
            except av.FFmpegError as error:
                raise damage(describe(path, stream), f"decoding stopped after {num_packets} packets", error) from error
            check_packets(path, container, stream, num_packets)

    def read_frames(
        self, path: AnyPath, choose: Choose | None = None, window: Window | None = None, prepare: Prepare | None = None
    ) -> list[Any] | None:
        """Read frames of the first video stream; only one unprocessed frame is in memory at a time.

        Args:
            choose (`Callable`, *optional*): See `Choose`; all frames by default.
            prepare (`Callable`, *optional*): See `Prepare`; called once for a frame that is chosen several times. By
                default frames are returned unchanged, uint8 `(height, width, 3)`, RGB and upright.
        Returns:
            The prepared frames, in the order of choice; `None` if the file has no video stream (an attached picture
            is not one), or one without frames.
        """
        _refuse(window)
        packets = [packet.is_discard for packet in self._stream(path, "video", decodes=False) if packet.size]
        if not packets:
            return None
        count = packets.count(False)
        for _ in range(3):
            available, chosen = count, list(choose(count) if choose and count else range(count))
            places, kept, count = set(chosen), {}, 0
            upright, use = Upright(os.fspath(path)), None
            for place, frame in enumerate(self._stream(path, "video")):
                if place in places:
                    picture = upright(frame)
                    use = use or (prepare(*picture.shape[:2]) if prepare else lambda picture: picture)
                    kept[place] = use(picture)
                count = place + 1
            if chosen and count == available:  # if some packets are never shown, choose again among the others
                return [kept[place] for place in chosen]
        raise MediaError(f"{path}: of {len(packets)} video packets none decodes, or different ones each time.")

    def read_audio(self, path: AnyPath, window: Window | None = None, rate: int = SAMPLING_RATE) -> np.ndarray | None:
        """Read the first audio track, float32 `(samples,)` in [-1, 1], from 16-bit mono; `None` without samples."""
        _refuse(window)
        samples = np.concatenate([np.zeros(0, np.int16), *mono(self._stream(path, "audio"), rate)])
        return to_float(samples) if len(samples) else None

    def read_audio_parts(
        self, path: AnyPath, choose: Choose, window: Window | None = None, rate: int = SAMPLING_RATE
    ) -> tuple[list[np.ndarray], int] | None:
        """Read the ranges of samples that `choose` selects, as in `read_audio`, and count all; `None` if none."""
        if (waveform := self.read_audio(path, window, rate)) is None:
            return None
        return [waveform[start:stop] for start, stop in choose(len(waveform))], len(waveform)

    def read_subtitle(self, path: AnyPath, window: Window | None = None) -> str:
        """Read an `.srt` or `.vtt` file as one string, without markup, timings and repeated lines."""
        _refuse(window)
        check_file(path)
        content = Path(path).read_bytes() if os.path.getsize(path) else b""  # see `check_content`
        cues = subtitle_cues(path, content)
        return join_lines(line for _, _, lines in cues for line in lines)

    def read_subtitle_track(self, path: AnyPath, window: Window | None = None) -> str | None:
        """Read the text track of a media file (the default one, else the first), like `read_subtitle`; `None` if there
        is none."""
        _refuse(window)
        with open_media(path) as container:
            if (stream := text_stream(container)) is None:
                return None
            select(container, stream)
            events = track_lines(path, stream, container.demux(stream))
            return join_lines(line for _, lines in events for line in lines)

    def read_subtitle_of(self, path: AnyPath, window: Window | None = None) -> str | None:
        """Read the subtitle of a video: the file next to it (`find_sidecar`), else its text track, if any."""
        sidecar = find_sidecar(path)
        return self.read_subtitle_track(path, window) if sidecar is None else self.read_subtitle(sidecar, window)


__all__ = [
    "SAMPLING_RATE",
    "MediaError",
    "MediaReader",
    "Window",
    "check_content",
    "check_file",
    "names_subtitle_file",
    "resample",
]
