"""Reader of untrusted files: does what [`~modeling_scalar.media_scalar.MediaReader`] does, in other processes."""

import copy
import math
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from gallery.decoding.answers import Answer, Contents, Cues, Frames, Header, Sound, TimedFrames, Tracks
from gallery.decoding.limits import Limits
from gallery.decoding.pool import ask
from gallery.subtitles import TEXT_FILES, find_sidecar
from modeling_scalar.media_scalar import SAMPLING_RATE, Choose, MediaReader, Prepare, Window, join_lines

_REMEMBERED = 1024  # files whose contents are cached
_PIECE = 30.0  # seconds read at a time
Processor = TypeVar("Processor")


class SandboxedReader(MediaReader):
    """Reads files through decoders, which are separate processes, within limits.

    A file that makes a decoder crash, hang or exceed limits fails with a MediaError that names it; the next one gets a
    fresh decoder. Results equal those of [`~modeling_scalar.media_scalar.MediaReader`] to the bit; of long files only
    what is needed is decoded. [`~gallery.decoding.Stop`] stops the reading of threads.

    It supports more names, formats and encodings of subtitles, see [`gallery.subtitles`].

    Args:
        limits ([`Limits`], *optional*): limits on reading a stream; exceeding one is a `LimitError`.
    """

    _note: Callable[[str], Any] | None = None

    def __init__(self, limits: Limits | None = None):
        self.limits = limits or Limits()
        self.show: Callable[[np.ndarray], None] | None = None  # see [`showing`]
        self._contents: dict[str, tuple[tuple[int, ...] | None, Contents]] = {}

    def noting(self, note: Callable[[str], Any]) -> "SandboxedReader":
        """
        Return a reader that reads damaged streams as far as possible.

        For video, these are the frames that follow their keyframe without damage in between; for sound, the packets
        that decode, one after the other. Which ones depends only on the file. If there are none, it is an error as
        usual.

        Args:
            note (`Callable`): called with a sentence on each damaged stream: what is wrong, and how much was read.
        """
        reader = copy.copy(self)
        reader._note = note
        return reader

    def _ask(self, what: str, path: str | os.PathLike, answer: Answer, **options: Any) -> Any:
        ask(what, path, answer, is_lenient=self._note is not None, **options)
        if answer.problem is not None:
            self._note(answer.problem)
        return answer

    def read_frames(
        self,
        path: str | os.PathLike,
        choose: Choose | None = None,
        window: Window | None = None,
        prepare: Prepare | None = None,
        *,
        seek: str = "index",
        num_threads: int = 0,
    ) -> list[Any] | None:
        """Read frames as [`MediaReader.read_frames`] does.

        The packets are listed first, without decoding: their number reveals a truncated file, their timestamps name
        the frames. If timestamps are missing or repeated, the frames are counted by decoding them all. Frames that are
        stored whole may take no more than the memory limit.

        Args:
            path, choose, prepare: as there; frames come in any order.
            window (`tuple[float, float | None]`, *optional*): choose among the frames visible between these seconds of
                the file; None is its end.
            seek (`str`): `"index"`: decode from the keyframe before each chosen frame; `"scan"`: from the start. Both
                give the same bits for every stream that decodes.
            num_threads (`int`): decoding threads; 0 divides the processors among the files being read, at most 8 for
                each.
        """
        if seek not in ("index", "scan"):
            raise ValueError(f"`seek` must be 'index' or 'scan', got {seek!r}.")
        options = {"whole": choose is None, "seek": seek, "num_threads": num_threads, "window": window}
        return self._ask("frames", path, Frames(self.limits, prepare, choose, self.show), **options).result()

    def read_pictures(
        self, path: str | os.PathLike, pace: float, side: int, window: Window | None = None
    ) -> list[tuple[float, np.ndarray]]:
        """Read frames for other purposes than the model: few, small, and with the second at which each appears.

        Args:
            path: a local media file.
            pace (`float`): interval in seconds. The first frame of each interval from 0 on is read, and if a window
                begins within an interval, the first frame visible in the window.
            side (`int`): maximum width and height in pixels; larger frames are shrunk.
            window (`tuple[float, float | None]`, *optional*): as in `read_frames`.

        Returns:
            The seconds in the file, and uint8 frames `(height, width, 3)`, in order; none if there is no video.
        """
        options = {"whole": False, "seek": "index", "num_threads": 0, "window": window, "pace": pace, "side": side}
        return self._ask("frames", path, TimedFrames(self.limits), **options).timed()

    def look_through(self, path: str | os.PathLike, pace: float, side: int) -> Iterator[tuple[float, np.ndarray]]:
        """All that `read_pictures` returns for a file, read in chunks, so that no file is too long for the limits."""
        length, last = pace * max(1, _PIECE // pace), -math.inf
        seconds = self.read_duration(path)
        pieces = 1 if seconds is None else math.ceil(seconds / length)
        for piece in range(pieces):
            window = None if pieces == 1 else (piece * length, (piece + 1) * length)
            for second, picture in self.read_pictures(path, pace, side, window):
                if second > last:  # one that stays is visible in the next chunk, too
                    yield second, picture
                    last = second

    def read_audio(
        self, path: str | os.PathLike, window: Window | None = None, rate: int = SAMPLING_RATE
    ) -> np.ndarray | None:
        """Read the first audio track as [`MediaReader.read_audio`] does, or a window of it.

        In tracks longer than a minute, a window is located as `read_audio_parts` locates parts.
        """
        return self._ask("sound", path, Sound(self.limits), whole=True, window=window, rate=rate).samples()

    def read_audio_parts(
        self,
        path: str | os.PathLike,
        choose: Callable[[int], list[tuple[int, int]]],
        window: Window | None = None,
        rate: int = SAMPLING_RATE,
    ) -> tuple[list[np.ndarray], int] | None:
        """Read only the needed parts of the first audio track; in tracks of ten minutes or more, decode only these.

        The parts equal those of the waveform of `read_audio` to the bit, except in long tracks: there they are located
        by timestamps, and a codec with state between packets gets two seconds to recover it. PCM and FLAC with a clock
        as fine as their samples (wav, flac, mp4) are still exact; in Matroska and flv, parts are located within a
        millisecond. A track without steady timestamps is decoded in order.

        Args:
            path: a local media file.
            choose (`Callable`): from the number of samples to ranges `(start, stop)` within it.
            window (`tuple[float, float | None]`, *optional*): as in `read_audio`; the window is then the track.
            rate (`int`): sampling rate in Hz. At rates other than 16 kHz, long tracks are decoded in order.
        """
        answer = Sound(self.limits, choose)
        try:
            return self._ask("sound", path, answer, whole=False, window=window, rate=rate).parts()
        finally:
            self._remember(path, answer.contents)

    def read_subtitle(self, path: str | os.PathLike, window: Window | None = None) -> str:
        """Read a subtitle file as [`MediaReader.read_subtitle`] does; also `.ass` and `.ssa`, in any encoding."""
        return _text(self._cues_of_file(path, window))

    def read_subtitle_track(self, path: str | os.PathLike, window: Window | None = None) -> str | None:
        """Read the text track as [`MediaReader.read_subtitle_track`] does."""
        cues = self._cues_of_track(path, window)
        return None if cues is None else _text(cues)

    def read_subtitle_of(self, path: str | os.PathLike, window: Window | None = None) -> str | None:
        """Read the file next to a video ([`~gallery.subtitles.find_sidecar`]), else its text track, if any."""
        sidecar = find_sidecar(path)
        return self.read_subtitle_track(path, window) if sidecar is None else self.read_subtitle(sidecar, window)

    def read_cues(self, path: str | os.PathLike) -> list[tuple[float, float, str]]:
        """The cues of a subtitle file, or of the subtitle of a media file: start and end in seconds, and words."""
        is_text = os.fspath(path).lower().endswith(TEXT_FILES)
        file = path if is_text else find_sidecar(path)
        cues = self._cues_of_track(path) if file is None else self._cues_of_file(file)
        return sorted((start, stop, text) for start, stop, lines in cues or () if (text := join_lines(lines)))

    def _cues_of_file(self, path: str | os.PathLike, window: Window | None = None) -> list:
        return ask("subtitle_file", path, Cues(self.limits), window=window).cues

    def _cues_of_track(self, path: str | os.PathLike, window: Window | None = None) -> list | None:
        """The cues of the text track; `None` if there is none."""
        tracks = self._known_of(path).tracks
        if tracks is None:
            tracks = ask("tracks", path, Tracks(self.limits)).tracks
        if not tracks:
            return None
        return ask("subtitle_track", path, Cues(self.limits), window=window, index=tracks[0]).cues

    def read_title(self, path: str | os.PathLike) -> str | None:
        """The title in the tags of a media file; `None` if there is none."""
        known = self._known_of(path)
        return ask("tracks", path, Tracks(self.limits)).title if known.tracks is None else known.title

    def read_header(self, path: str | os.PathLike, kind: str) -> tuple[bool, float | None]:
        """Whether the header of a file announces a stream, `"video"` or `"audio"`, and its duration in seconds."""
        answer = ask("header", path, Header(self.limits), stream=kind)
        return answer.promised, answer.seconds

    def read_duration(self, path: str | os.PathLike) -> float | None:
        """The length of a file in seconds, from the start of its first stream; `None` if unknown.

        Raises:
            FileNotFoundError: there is no such file.
            MediaError: not a media file.
            LimitError: it claims to be longer than the limits allow.
        """
        known = self._known_of(path).seconds
        return ask("duration", path, Header(self.limits)).seconds if known is None else known

    # Caches what the header said when the sound was read, as asking again would open the file again.

    def _remember(self, path: str | os.PathLike, contents: Contents) -> None:
        if contents != Contents():
            if len(self._contents) >= _REMEMBERED:
                self._contents.clear()
            self._contents[os.path.abspath(path)] = _stamp(path), contents

    def _known_of(self, path: str | os.PathLike) -> Contents:
        stamp, contents = self._contents.get(os.path.abspath(path), (None, Contents()))
        return contents if stamp is not None and stamp == _stamp(path) else Contents()


def _text(cues: list) -> str:
    return join_lines(line for _, _, lines in cues for line in lines)


def _stamp(path: str | os.PathLike) -> tuple[int, ...] | None:
    """Changes with the file; `None` if it does not exist."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev


def sandboxed(processor: Processor, limits: Limits | None = None, on_error: str | None = None) -> Processor:
    """Return a processor that reads files through a [`SandboxedReader`].

    Args:
        processor ([`~modeling_scalar.ScalarProcessor`]): is not changed.
        limits ([`Limits`], *optional*): of the reader; by default those it has.
        on_error (`str`, *optional*): what to do about a damaged stream, `"raise"` or `"missing"`, see
            [`~modeling_scalar.media_scalar.MediaReader`]; by default as before.
    """
    if on_error not in (None, "raise", "missing"):
        raise ValueError(f"`on_error` must be 'raise' or 'missing', got {on_error!r}.")
    before = processor.reader
    if isinstance(before, SandboxedReader) and limits is None:
        reader = copy.copy(before)
    else:
        reader = SandboxedReader(limits)
    reader.on_error = before.on_error if on_error is None else on_error
    processor = copy.copy(processor)
    processor.reader = reader
    return processor


def tolerant(processor: Processor) -> Processor:
    """Return a processor that reads files through a [`SandboxedReader`] and treats damaged streams as missing, as a
    search does."""
    return sandboxed(processor, on_error="missing")


def showing(processor: Processor, show: Callable[[np.ndarray], None]) -> Processor:
    """Return a processor that shows one decoded frame of each video that it reads.

    Args:
        processor ([`~modeling_scalar.ScalarProcessor`]): reads through a [`SandboxedReader`]; is not changed.
        show (`Callable`): called with the middle one of the chosen frames, uint8 `(height, width, 3)`, RGB and
            upright; called again if reading restarts.
    """
    processor = copy.copy(processor)
    processor.reader = copy.copy(processor.reader)
    processor.reader.show = show
    return processor


__all__ = ["SandboxedReader", "sandboxed", "showing", "tolerant"]
