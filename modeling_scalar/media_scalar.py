"""Reads frames, sound and subtitles of media files with PyAV, in this process.

Frames are addressed by their place in presentation order, never by time or by an average frame rate. A modality that
a file does not have is absent; a stream that the file has and that cannot be decoded is a `MediaError`. The two are
never confused. Only NumPy and PyAV are imported, so that a process that does nothing but decode starts in a moment.
"""

import html
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

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

Window = tuple[float, float | None]
"""From and to which second of a file, counted from its beginning; None is its end."""


Choose = Callable[[int], Sequence[int]]
"""From how many frames there are to the places of those to be read; it may be asked again, where a count was wrong."""
Prepare = Callable[[int, int], Callable[[np.ndarray], Any]]
"""Called with the height and the width before the first frame; what it returns is called with each picture."""


class MediaError(ValueError):
    """A file or one of its streams cannot be decoded. The message names the file and, where known, the stream."""


def check_installed() -> None:
    """Raise an ImportError unless PyAV is there."""
    if av is None:
        raise ImportError(
            "Reading media files and resampling need PyAV: `pip install av`. Or pass decoded frames and waveforms at "
            "16 kHz."
        )


# Files and streams ---------------------------------------------------------------------------------------------------


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
def open_media(path: str | os.PathLike, **options: str) -> Iterator["av.container.InputContainer"]:
    """Open a file and nothing else; `options` are FFmpeg's."""
    check_installed()
    check_file(path)
    options |= {"format_whitelist": _DEMUXERS, "protocol_whitelist": "file"}
    try:
        # "file:" keeps names such as "a:b.mp4" from being read as a protocol
        container = av.open(f"file:{os.fspath(path)}", options=options, metadata_errors="replace")
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


def select(container: Any, stream: Any) -> None:
    """Make the demuxer skip the data of all other streams."""
    for other in container.streams:
        if other.index != stream.index:
            other.discard = av.stream.Discard.all


def first_stream(path: str | os.PathLike, container: Any, kind: str) -> Any:
    """Select the first real stream of a kind, if any: cover art and thumbnails are attached pictures, not video."""
    for stream in getattr(container.streams, kind):
        if stream.disposition & (av.stream.Disposition.attached_pic | av.stream.Disposition.timed_thumbnails):
            continue
        if stream.codec_context is None:
            raise MediaError(f"{path}: no decoder for {kind} stream {stream.index}.")
        select(container, stream)
        return stream
    return None


def describe(path: str | os.PathLike, stream: Any) -> str:
    """Name a stream of a file, as errors do."""
    return f"{path}: {stream.type} stream {stream.index} ({stream.codec_context.name})"


def damage(where: str, what: str, error: Exception) -> MediaError:
    """Make the error of a stream in which something is wrong."""
    return MediaError(f"{where}: {what} ({getattr(error, 'strerror', None) or error}).")


def truncated(path: str | os.PathLike, stream: Any, promised: str, came: str) -> MediaError:
    """Make the error of a stream of which not all came."""
    return MediaError(
        f"{describe(path, stream)}: the container promises {promised}, {came} came. The file is truncated or damaged."
    )


def check_packets(path: str | os.PathLike, container: Any, stream: Any, num_packets: int) -> None:
    """Raise a MediaError where fewer packets came than the container promises, if it does."""
    promised = stream.frames
    if "mp4" in container.format.name and (num_packets or stream.index_entries):
        # the sample table counts what an edit list trims away; the index built from both is what is to come
        promised = len(stream.index_entries)
    # the first counts frames that are repeated without a packet, the others samples
    is_other = container.format.name in ("avi", "aiff", "caf", "flac")
    if not is_other and num_packets < promised:
        raise truncated(path, stream, f"{promised} packets", f"{num_packets}")


def zero_of(container: Any) -> float:
    """The time at which a file begins, by the clock of its streams."""
    return (container.start_time or 0) / av.time_base


# Pictures and sound --------------------------------------------------------------------------------------------------


class Upright:
    """Turns the frames of a stream upright and to RGB.

    Args:
        name (`str`): of the stream, for errors.
    """

    def __init__(self, name: str):
        self.name, self.sizes = name, set()
        self._reformatter = av.video.reformatter.VideoReformatter()

    def __call__(self, frame: "av.VideoFrame") -> np.ndarray:
        """Return the uint8 picture `(height, width, 3)` of a frame."""
        if frame.is_corrupt:
            raise MediaError(f"{self.name}: the frame at {float(frame.time or 0):.2f} s is damaged.")
        image = self._reformatter.reformat(frame, format="rgb24").to_ndarray()
        image = np.ascontiguousarray(np.rot90(image, k=round(frame.rotation / 90)) if frame.rotation else image)
        self.sizes.add(image.shape[:2])
        if len(self.sizes) > 1:
            raise MediaError(
                f"{self.name}: the picture changes its size, {sorted(self.sizes)}. Convert the file to one size."
            )
        return image


def mono(frames: Iterable, rate: int = SAMPLING_RATE) -> Iterator[np.ndarray]:
    """Resample audio frames to mono, 16 bits: the mean of the channels, as Kaldi's recipes read it.

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


def resample(waveform: np.ndarray, sampling_rate: int, rate: int = SAMPLING_RATE) -> np.ndarray:
    """Bring a waveform `(channels, samples)` of any rate to what `read_audio` returns: `(samples,)` at `rate`."""
    averaged = np.ascontiguousarray(waveform, dtype=np.float32).mean(axis=0, keepdims=True)
    if sampling_rate == rate:
        return averaged[0]
    check_installed()
    frame = av.AudioFrame.from_ndarray(averaged, format="fltp", layout="mono")
    frame.sample_rate = sampling_rate
    return to_float(np.concatenate(list(mono([frame], rate))))


# Subtitles -----------------------------------------------------------------------------------------------------------


def find_sidecar(path: str | os.PathLike) -> Path | None:
    """The subtitle file beside a video: its stem with `.srt`, `.vtt`, `.en.srt` or `.en.vtt`, in this order."""
    # os.path.exists: a name that is too long for the file system is one that no file has
    return next((file for suffix in _SIDECARS if os.path.exists(file := Path(path).with_suffix(suffix))), None)


def join_lines(lines: Iterable[str]) -> str:
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


def _cue_lines(text: str, is_vtt: bool, window: Window | None) -> Iterator[str]:
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


def parse_subtitle(path: str | os.PathLike, content: bytes, window: Window | None = None) -> str:
    """Bring the content of an `.srt` or `.vtt` file, or its cues of a window, to one plain string."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MediaError(f"{path}: the subtitle file is not UTF-8 ({error.reason}). Convert it first.") from error
    is_vtt = text.startswith("WEBVTT")
    if text.strip() and not is_vtt and not any(map(_TIMING.match, text.splitlines())):
        raise MediaError(f"{path}: the subtitle file has text but no cue with a timing (`-->`).")
    return join_lines(html.unescape(_MARKUP.sub("", line)) for line in _cue_lines(text, is_vtt, window))


def text_stream(container: Any) -> Any:
    """The first text track; `None` if there is none: tracks of pictures (DVD, Blu-ray) are not text."""
    streams = (s for s in container.streams.subtitles if s.codec_context is not None)
    return next((s for s in streams if s.codec_context.name in _TEXT_SUBTITLES), None)


def track_lines(
    path: str | os.PathLike, container: Any, stream: Any, window: Window | None = None
) -> Iterator[tuple[int, list[str]]]:
    """The lines of each event of a text track, or of those in a window, and how many bytes they were."""
    select(container, stream)
    zero, tick = zero_of(container), float(stream.time_base or 0)
    try:
        for packet in container.demux(stream):
            start = 0.0 if packet.pts is None else packet.pts * tick - zero
            if packet.size and not _is_said(start, start + (packet.duration or 0) * tick, window):
                continue
            for subtitle in packet.decode():
                # ReadOrder, Layer, Style, Name, MarginL, MarginR, MarginV, Effect, Text
                text = subtitle.ass.decode("utf-8").split(",", 8)[-1]
                is_drawing = re.search(r"\{[^{}]*\\p[1-9]", text)
                text = "" if is_drawing else _MARKUP.sub("", text).replace(r"\h", " ")
                yield len(subtitle.ass), re.split(r"\\[Nn]|\n", text)
    except MemoryError:
        raise
    except (av.FFmpegError, UnicodeDecodeError) as error:
        raise damage(describe(path, stream), "the subtitle track does not decode", error) from error


# The reader ----------------------------------------------------------------------------------------------------------


def _refuse(window: Window | None) -> None:
    if window is not None:
        raise ValueError(
            "Windows of files are not read by the plain reader of a processor: set `processor.reader = "
            "gallery.decoding.SandboxedReader()`, or leave `window` out."
        )


class MediaReader:
    """Opens files for a processor, in this process: for files that one trusts.

    A file that makes FFmpeg crash or take all memory does so to this process. Of other readers
    ([`~gallery.decoding.SandboxedReader`]) what is read is the same, bit for bit.

    Raises of all methods: FileNotFoundError, there is no such file; MediaError, it is not a regular file of a known
    format, fewer packets came than the container promises, or decoding fails; ImportError, PyAV is not installed.
    """

    def _stream(self, path: str | os.PathLike, kind: str, decodes: bool = True) -> Iterator[Any]:
        """All frames of the first stream of a kind in presentation order, or its packets; nothing if there is none."""
        with open_media(path) as container:
            stream, num_packets = first_stream(path, container, kind), 0
            if stream is None:
                return
            if kind == "video":  # several threads that decode sound pass over damage at its end
                stream.thread_type = "AUTO"
            try:
                for packet in container.demux(stream):
                    num_packets += packet.size > 0 or packet.dts is not None  # PyAV's flush packet has neither
                    yield from packet.decode() if decodes else [packet]
            except MemoryError:
                raise
            except av.FFmpegError as error:
                what = f"decoding stopped after {num_packets} packets"
                raise damage(describe(path, stream), what, error) from error
            check_packets(path, container, stream, num_packets)

    def prepare_frames(
        self,
        path: str | os.PathLike,
        prepare: Prepare | None = None,
        choose: Choose | None = None,
        window: Window | None = None,
    ) -> list[Any] | None:
        """Read frames of the first video stream, one whole frame at a time; keep of each what `prepare` makes of it.

        Args:
            path (`str` or `os.PathLike`): a local media file.
            prepare (`Callable`, *optional*): see `Prepare`; called once for a frame that is chosen several times. The
                uint8 pictures `(height, width, 3)`, RGB and upright, by default.
            choose (`Callable`, *optional*): see `Choose`; all frames by default.
            window (`tuple[float, float | None]`, *optional*): choose among the frames that are seen from one second of
                the file to another; not by the plain reader.
        Returns:
            `list` of what was made of the chosen frames, in their order; `None` if the file has no video: no video
            stream (an attached picture is none), or one without a single frame.
        """
        _refuse(window)
        packets = [packet.is_discard for packet in self._stream(path, "video", decodes=False) if packet.size]
        num_packets, count = len(packets), packets.count(False)
        for _ in range(3):
            if not (available := count):
                break
            chosen = list(range(available) if choose is None else choose(available))
            kept, count = self._keep(path, set(chosen), prepare)
            if count == available:  # not where some packets are never shown: choose again, among those that are
                return [kept[place] for place in chosen]
        if num_packets:
            raise MediaError(f"{path}: of its video of {num_packets} packets none decodes, or others each time.")
        return None

    def _keep(self, path: str | os.PathLike, places: set[int], prepare: Prepare | None) -> tuple[dict[int, Any], int]:
        """What was made of the frames at these places, and how many frames there are."""
        upright, use, kept, count = Upright(os.fspath(path)), None, {}, 0
        for place, frame in enumerate(self._stream(path, "video")):
            if place in places:
                picture = upright(frame)
                use = use or (prepare(*picture.shape[:2]) if prepare else lambda picture: picture)
                kept[place] = use(picture)
            count = place + 1
        return kept, count

    def read_frames(
        self, path: str | os.PathLike, choose: Choose | None = None, window: Window | None = None
    ) -> np.ndarray | None:
        """Read frames whole: uint8 RGB `(frames, height, width, 3)`, or `None`; see `prepare_frames`."""
        frames = self.prepare_frames(path, None, choose, window)
        return None if frames is None else np.stack(frames)

    def read_audio(
        self, path: str | os.PathLike, window: Window | None = None, rate: int = SAMPLING_RATE
    ) -> np.ndarray | None:
        """Read the whole first audio track.

        Returns:
            `np.ndarray` of shape `(samples,)`, float32 in [-1, 1], at `rate` Hz, the mean of the channels in 16 bits;
            `None` if the file has no audio: no audio track, or one without a single sample.
        """
        _refuse(window)
        samples = np.concatenate([np.zeros(0, np.int16), *mono(self._stream(path, "audio"), rate)])
        return to_float(samples) if len(samples) else None

    def read_audio_parts(
        self,
        path: str | os.PathLike,
        choose: Callable[[int], list[tuple[int, int]]],
        window: Window | None = None,
        rate: int = SAMPLING_RATE,
    ) -> tuple[list[np.ndarray], int] | None:
        """Read parts of the waveform of `read_audio`: `choose` goes from its number of samples to ranges in it.

        Returns:
            The parts, and the number of samples of the whole; `None` if there is no audio.
        """
        waveform = self.read_audio(path, window, rate)
        if waveform is None:
            return None
        return [waveform[start:stop] for start, stop in choose(len(waveform))], len(waveform)

    def read_subtitle(self, path: str | os.PathLike, window: Window | None = None) -> str:
        """Read an `.srt` or `.vtt` file as one plain string, without markup and timings; equal lines in a row merge.

        Of a window, in seconds, it is what is shown at some time of it.
        """
        check_file(path)
        return parse_subtitle(path, Path(path).read_bytes(), window)

    def read_subtitle_track(self, path: str | os.PathLike, window: Window | None = None) -> str | None:
        """Read the first text track inside a media file as `read_subtitle` does a file; `None` if it has none."""
        with open_media(path) as container:
            stream = text_stream(container)
            if stream is None:
                return None
            return join_lines(line for _, lines in track_lines(path, container, stream, window) for line in lines)

    def read_subtitle_of(self, path: str | os.PathLike, window: Window | None = None) -> str | None:
        """Read the subtitle of a video: the file beside it (`find_sidecar`), else its first text track, if any."""
        sidecar = find_sidecar(path)
        return self.read_subtitle_track(path, window) if sidecar is None else self.read_subtitle(sidecar, window)


__all__ = ["SAMPLING_RATE", "MediaError", "MediaReader", "Window", "check_file", "find_sidecar", "resample"]
