"""Cues of subtitle files and of text tracks, with their times, for decoders.

The encoding of a file that is not UTF-8 is guessed from its bytes, among those usual for subtitles.
"""

import io
import json
import os
from collections.abc import Iterator

from charset_normalizer import from_bytes

from gallery.decoding.channel import Channel
from gallery.decoding.streams import Request, is_said, opened, zero_of
from modeling_scalar.media_scalar import (
    MediaError,
    Window,
    av,
    check_file,
    damage,
    describe,
    select,
    subtitle_cues,
    text_stream,
    track_lines,
)

_MEMORY_PER_BYTE = 256  # per byte of a subtitle file: its lines, their copies, and their tokens
_SCRIPTS = (".ass", ".ssa")
_ENCODINGS = (
    "cp1252 cp1250 cp1251 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 koi8_r cp874 cp932 cp949 gb18030 big5 utf_16 "
    "utf_32"
).split()

_Cue = tuple[float, float, list[str]]
"""Start, end, and lines."""


def _as_utf8(path: str, content: bytes) -> bytes:
    """The content of a subtitle file in UTF-8."""
    try:
        content.decode("utf-8-sig")
        return content
    except UnicodeDecodeError:
        found = list(from_bytes(content, cp_isolation=_ENCODINGS))
    if not found:
        raise MediaError(f"{path}: the encoding of the subtitle file is unknown. Convert it to UTF-8.")
    likely = [match for match in found if match.chaos <= found[0].chaos]
    return str(next((match for match in likely if match.encoding == "cp1252"), likely[0])).encode()


def _seconds(time_of_cue: str) -> float:
    *_, hours, minutes, seconds = "0", *time_of_cue.replace(",", ".").split(":")
    return 3600 * float(hours) + 60 * float(minutes) + float(seconds)  # float accepts thousands of digits


def _track_cues(
    path: str, container: "av.container.InputContainer", stream: "av.stream.Stream", zero: float
) -> Iterator[_Cue]:
    """The cues of a text track, limited in bytes like a subtitle file; `zero` is the file's first second."""
    most, length, tick = int(Request.limits.memory) // _MEMORY_PER_BYTE, 0, float(stream.time_base or 0)
    select(container, stream)
    for packet in container.demux(stream):
        start = 0.0 if packet.pts is None else packet.pts * tick - zero
        for size, lines in track_lines(path, stream, [packet]):
            length += size
            if length > most:
                what = f"its text needs more than {most * _MEMORY_PER_BYTE} bytes"
                raise Request.limits.exceeded(describe(path, stream), "memory", what)
            yield start, start + (packet.duration or 0) * tick, lines


def _script_cues(path: str, content: bytes) -> Iterator[_Cue]:
    """The cues of a SubStation Alpha script."""
    if not content.strip():
        return
    if b"[Events]" not in content:
        raise MediaError(f"{path}: the subtitle file has text but no `[Events]`.")
    try:
        with av.open(io.BytesIO(content), format="ass") as container:
            yield from _track_cues(path, container, container.streams.subtitles[0], 0.0)
    except av.FFmpegError as error:
        raise damage(path, "the subtitle file does not decode", error) from error


def _send(channel: Channel, cues: Iterator[_Cue], window: Window | None) -> None:
    """Send the cues in a window."""
    kept = [cue for cue in cues if window is None or is_said(cue[0], cue[1], window)]
    channel.send("cues", json.dumps(kept).encode())


def send_subtitle_file(path: str, channel: Channel, window: Window | None = None) -> None:
    """Send the cues of an `.srt`, `.vtt`, `.ass` or `.ssa` file."""
    check_file(path)
    most = int(Request.limits.memory) // _MEMORY_PER_BYTE
    content = b""
    if os.path.getsize(path):  # what the system generates has no size, and reading it might never end
        with open(path, "rb") as file:
            content = file.read(most + 1)
    if len(content) > most:
        size = os.path.getsize(path)
        what = f"a subtitle file of {size} bytes needs {_MEMORY_PER_BYTE} times as much memory"
        raise Request.limits.exceeded(path, "memory", what, size * _MEMORY_PER_BYTE)
    content = _as_utf8(path, content)
    if path.lower().endswith(_SCRIPTS):
        cues = _script_cues(path, content)
    else:
        cues = ((_seconds(start), _seconds(stop), lines) for start, stop, lines in subtitle_cues(path, content))
    _send(channel, cues, window)


def send_subtitle_track(path: str, channel: Channel, index: int, window: Window | None = None) -> None:
    """Send the cues of a text track in a media file, given the index of its stream."""
    with opened(path) as container:
        _send(channel, _track_cues(path, container, container.streams[index], zero_of(container)), window)


def tracks_of(container: "av.container.InputContainer") -> list[int]:
    """The index of the text track that is read; none if there is no such track."""
    stream = text_stream(container)
    return [] if stream is None else [stream.index]


__all__ = ["send_subtitle_file", "send_subtitle_track", "tracks_of"]
