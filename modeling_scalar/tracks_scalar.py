"""The tracks of media files: which one is read, the subtitle files beside them, and the words of either."""

import html
import io
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

try:
    import av
except ImportError:
    av = None

MEDIA_FILES = frozenset(
    ".mp4 .m4v .mov .mkv .webm .avi .mpg .mpeg .vob .ts .mts .m2ts .mxf .flv .wmv .asf .ogv .3gp .3g2 .gif "
    ".wav .mp3 .m4a .aac .flac .ogg .opus .wma .aif .aiff".split()
)
"""Extensions of files with pictures or sound, in lowercase."""
TEXT_FILES = (".srt", ".vtt", ".ass", ".ssa")
TEXT_CODECS = ("ass", "ssa", "subrip", "srt", "webvtt", "mov_text", "text")
# Encodings of subtitle files that are not UTF-8.
_ENCODINGS = (
    "cp1252 cp1250 cp1251 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 koi8_r cp874 cp932 cp949 gb18030 big5 utf_16 "
    "utf_32"
).split()

AnyPath = str | os.PathLike
Cue = tuple[float, float, list[str]]
"""Start and end in seconds, and lines."""


class MediaError(ValueError):
    """A file or one of its streams cannot be decoded. The message names the file and, where known, the stream."""


def check_memory(error: Exception) -> None:
    """Raise an error that is due to lack of memory, for data or for a thread, as a MemoryError."""
    if isinstance(error, (MemoryError, BlockingIOError)):
        raise MemoryError(str(error)) from error


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


def stream_name(path: AnyPath, stream: Any) -> str:
    """The name of a stream of a file in errors."""
    return f"{path}: {stream.type} stream {stream.index} ({stream.codec_context.name})"


@lru_cache(maxsize=32)
def _subtitles_in(folder: str, version: tuple[int, int]) -> dict[str, list[str]]:
    """The subtitle files of a folder by the name, without extension, of the media file, best first."""
    media = set()
    subtitles = []
    for name in os.listdir(folder):
        stem, extension = os.path.splitext(name)
        if extension.lower() in MEDIA_FILES:
            media.add(stem.casefold())
        elif extension.lower() in TEXT_FILES:
            subtitles.append(name)
    # `film.en.srt` belongs to `film.en.mp4` if there is one, else to `film.mp4`.
    by_media = defaultdict(list)
    for name in sorted(subtitles, key=lambda name: (len(name), name)):
        parts = os.path.splitext(name)[0].casefold().split(".")
        for length in range(len(parts), 0, -1):
            beginning = ".".join(parts[:length])
            by_media[beginning].append(name)
            if beginning in media:
                break  # shorter names are other files
    return by_media


def find_sidecar(path: AnyPath) -> Path | None:
    """The subtitle file next to a media file, if any: `film.srt` of `film.mp4`, or one with something between the name
    and the extension, as `film.en.srt`, unless it belongs to a media file with a longer name. The shortest name is
    used, of equally short ones the first in alphabetical order; case does not matter."""
    folder, name = os.path.split(os.path.abspath(path))
    # List the folder once for all its files, again when it has changed.
    try:
        changed = os.stat(folder).st_mtime_ns
        now = time.time_ns()
        version = (changed, 0)
        if now - changed <= 2e9:  # the coarsest clock of file systems: later changes may have the same time
            version = (changed, now // 10**9)
        subtitles = _subtitles_in(folder, version)
    except OSError:
        return None
    for subtitle in subtitles.get(os.path.splitext(name)[0].casefold(), ()):
        file = Path(folder, subtitle)
        if file.exists():  # no broken link
            return file
    return None


def names_subtitle_file(subtitle: Any) -> bool:
    """Whether a subtitle is the path of a subtitle file, not the text itself."""
    if isinstance(subtitle, str):
        return subtitle.lower().endswith(TEXT_FILES) and "\n" not in subtitle
    return isinstance(subtitle, os.PathLike)


def join_lines(lines: Iterable[str]) -> str:
    """Join cue lines to one string; a line that repeats the one before it (rolling captions) counts once."""
    stripped = (" ".join(line.split()) for line in lines)
    return " ".join(line for line, _ in groupby(filter(None, stripped)))


_TIMING = re.compile(r"\b\d{1,3}(:\d\d){2}[.,]\d{1,3}\s*-->\s*\d{1,3}(:\d\d){2}[.,]\d")
_MARKUP = re.compile(r"\{\\[^{}]*\}")  # which the decoders of FFmpeg make of every format's


def _decoded_text(path: AnyPath, content: bytes) -> str:
    """The text of a subtitle file; an encoding other than UTF-8 is guessed from its bytes."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"{path}: the subtitle file is not UTF-8 ({error.reason}). Convert it"
    try:
        from charset_normalizer import from_bytes
    except ImportError:
        raise MediaError(f"{problem}, or install charset-normalizer.") from None
    matches = list(from_bytes(content, cp_isolation=_ENCODINGS))
    if not matches:
        raise MediaError(f"{problem}: its encoding is unknown.")
    # Among equally good matches the Western European encoding, by far the most frequent one.
    for match in matches:
        if match.encoding == "cp1252" and match.chaos <= matches[0].chaos:
            return str(match)
    return str(matches[0])


def subtitle_cues(path: AnyPath, content: bytes) -> list[Cue]:
    """The cues of a SubRip, WebVTT or SubStation Alpha file, without markup."""
    text = _decoded_text(path, content)
    # By content, because extensions are often wrong; without a mark it is SubRip.
    kind = "srt"
    if text.startswith("WEBVTT"):
        kind = "webvtt"
    elif "[Events]" in text:
        kind = "ass"
    try:
        with av.open(io.BytesIO(text.encode()), format=kind) as container:
            cues = list(track_cues(path, container, container.streams.subtitles[0], 0.0))
    except av.FFmpegError as error:
        check_memory(error)
        raise MediaError(f"{path}: the subtitle file does not decode ({error.strerror}).") from error
    # FFmpeg finds no cue in a text of another format, which is not an empty subtitle.
    if not cues and kind == "srt" and text.strip() and not _TIMING.search(text):
        raise MediaError(
            f"{path}: the subtitle file has text but no cue with a timing (`00:00:01,000 --> 00:00:02,000`)."
        )
    return cues


def rank_of_track(stream: Any) -> tuple[bool, bool]:
    """The order of text tracks: English before others, and the default one before others. Container formats write
    `eng`, some programs `en` or `en-GB`."""
    language = stream.metadata.get("language", "").casefold()
    is_english = re.split("[-_]", language)[0] in ("en", "eng")
    is_default = bool(stream.disposition & av.stream.Disposition.default)
    return not is_english, not is_default


def track_cues(path: AnyPath, container: Any, stream: Any, zero: float) -> Iterator[Cue]:
    """The cues of a text track; `zero` is the file's first second."""
    tick = float(stream.time_base or 0)
    select(container, stream)
    try:
        for packet in container.demux(stream):
            start = 0.0 if packet.pts is None else packet.pts * tick - zero
            for subtitle in packet.decode():
                # ReadOrder, Layer, Style, Name, MarginL, MarginR, MarginV, Effect, Text
                text = subtitle.ass.decode("utf-8").split(",", 8)[-1]
                if re.search(r"\{[^{}]*\\p[1-9]", text):  # a drawing, not words
                    text = ""
                text = html.unescape(_MARKUP.sub("", text)).replace(r"\h", " ")
                yield start, start + (packet.duration or 0) * tick, re.split(r"\\[Nn]|\n", text)
    except (av.FFmpegError, UnicodeDecodeError) as error:
        check_memory(error)
        reason = getattr(error, "strerror", None) or error
        raise MediaError(f"{stream_name(path, stream)}: the subtitle track does not decode ({reason}).") from error


__all__ = [
    "MEDIA_FILES",
    "TEXT_CODECS",
    "TEXT_FILES",
    "AnyPath",
    "Cue",
    "MediaError",
    "av",
    "check_memory",
    "find_sidecar",
    "first_stream",
    "join_lines",
    "names_subtitle_file",
    "rank_of_track",
    "stream_name",
    "subtitle_cues",
    "track_cues",
]
