"""Media files of the gallery for the page: whole, or the requested range; a frame of them, and how loud they are."""

import math
import os
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import numpy as np
from starlette.responses import FileResponse

from scalar_retrieval.gallery.decoding import Limits, SandboxedReader
from scalar_retrieval.gallery.searcher import StoredClip
from scalar_retrieval.gallery.store.stills import SIDE, as_still
from scalar_retrieval.modeling_scalar.media_scalar import MediaError

from .models import Kind

_TYPES: dict[str, str] = {
    ".mp4": "video/mp4",
    ".m4v": "video/mp4",
    ".mov": "video/mp4",  # browsers play the codecs that they support
    ".qt": "video/mp4",
    ".mkv": "video/x-matroska",
    ".webm": "video/webm",
    ".avi": "video/x-msvideo",
    ".mpg": "video/mpeg",
    ".mpeg": "video/mpeg",
    ".vob": "video/mpeg",
    ".ts": "video/mp2t",
    ".mts": "video/mp2t",
    ".m2ts": "video/mp2t",
    ".mxf": "video/mxf",
    ".flv": "video/x-flv",
    ".wmv": "video/x-ms-wmv",
    ".asf": "video/x-ms-asf",
    ".ogv": "video/ogg",
    ".3gp": "video/3gpp",
    ".3g2": "video/3gpp2",
    ".wav": "audio/wav",
    ".mp3": "audio/mpeg",
    ".m4a": "audio/mp4",
    ".m4b": "audio/mp4",
    ".mka": "audio/x-matroska",
    ".weba": "audio/webm",
    ".aac": "audio/aac",
    ".flac": "audio/flac",
    ".ogg": "audio/ogg",
    ".oga": "audio/ogg",
    ".opus": "audio/ogg",
    ".wma": "audio/x-ms-wma",
    ".aif": "audio/aiff",
    ".aiff": "audio/aiff",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".avif": "image/avif",
    ".bmp": "image/bmp",
}
"""The types of files that are served, and no others. None of them can run as a page."""

_STILLS = 512  # that are kept, of about 10 kB
_STILL_SECONDS = 10  # of computing for a still
_LOUDNESSES = 1024  # that are kept
_BARS = 100  # of a picture of sound
_RATE = 8000  # samples per second, which show all that is loud in speech and music
_LONGEST = 3600  # seconds of a file; reading more takes too long for a picture

Made = TypeVar("Made")


class NoMediaError(ValueError):
    """The file of a clip is gone, or cannot be played."""


def kind_of(path: str, has_picture: bool) -> Kind | None:
    """How a browser plays a file; `None` if its type is not served."""
    media_type = _TYPES.get(os.path.splitext(path)[1].lower())
    if media_type is None:
        return None
    kind = media_type.partition("/")[0]
    return "audio" if kind == "video" and not has_picture else kind


def _served(path: str) -> tuple[str, str]:
    """The real path and the type of a file of the gallery; a [`NoMediaError`] if it is gone, not a regular file, or of
    a type that is not served."""
    # The type is that of the file that a link leads to, so that links lead to media files only.
    real = os.path.realpath(path)
    media_type = _TYPES.get(os.path.splitext(real)[1].lower())
    if media_type is None or not os.path.isabs(path):
        raise NoMediaError("Browsers cannot play files of this type.")
    if not (os.path.isfile(real) and os.access(real, os.R_OK)):
        raise NoMediaError("The file of this clip is gone or cannot be read.")
    return real, media_type


def media_response(path: str, cached: str = "no-cache") -> FileResponse:
    """
    Answer with a file of the gallery, or a range of it; `cached` is the `cache-control` policy of the browser.

    Raises:
        NoMediaError: it is gone, not a regular file, or of a type that is not served.
    """
    real, media_type = _served(path)
    return FileResponse(real, headers={"cache-control": f"private, {cached}"}, media_type=media_type)


def _made(make: Callable[..., Made], clip: StoredClip) -> Made | None:
    """What is made of a version of the file of a clip, and its seconds; `None` if nothing of it can be read."""
    if clip.media is None:
        return None
    try:
        path, _ = _served(str(clip.media))
        return make(path, os.stat(path).st_mtime_ns, clip.place.start, clip.place.stop)
    except (OSError, ValueError):
        return None


def still_of(clip: StoredClip) -> bytes | None:
    """
    Make a still of a clip that has none.

    Returns:
        A JPEG file of the frame in the middle, or of the first one; `None` if there is none that can be read.
    """
    return _made(_still, clip)


@lru_cache(maxsize=_STILLS)
def _still(path: str, modified: int, start: float | None, stop: float | None) -> bytes | None:
    """A still of a version of a file, or of some seconds of it."""
    reader = SandboxedReader(Limits(time=_STILL_SECONDS)).reporting_to(lambda problem: None)
    # That a file cannot be read is kept, too: requesting its still again decodes nothing.
    try:
        begin = start or 0.0
        end = stop or reader.read_duration(path) or begin
        for second in ((begin + end) / 2, begin):
            frames = reader.read_pictures(path, math.inf, SIDE, (second, stop))
            if frames:
                return as_still(frames[0][1])
    except MediaError:
        pass
    return None


def loudness_of(clip: StoredClip) -> list[float]:
    """
    Measure how loud a clip is over its time.

    Returns:
        The largest amplitude in each of at most a hundred equal parts, relative to the largest of all; none if its
        file cannot be read, or lasts for more than an hour.
    """
    # A sound without loudness is played nevertheless.
    return _made(_loudness, clip) or []


@lru_cache(maxsize=_LOUDNESSES)
def _loudness(path: str, modified: int, start: float | None, stop: float | None) -> list[float]:
    """The loudness of a version of a file, or of some seconds of it."""
    # Of a damaged file, what comes before the damage is shown.
    reader = SandboxedReader().reporting_to(lambda problem: None)
    part = None
    if start is not None:
        part = (start, stop)
    elif (reader.read_duration(path) or 0) > _LONGEST:
        return []
    waveform = reader.read_audio(path, part, _RATE)
    if waveform is None:
        return []
    # The peak of each of a hundred equal parts
    parts = np.array_split(waveform, min(_BARS, len(waveform)))
    peaks = np.array([np.abs(part).max() for part in parts])
    return (peaks / max(peaks.max(), 1e-6)).round(3).tolist()


__all__ = ["NoMediaError", "kind_of", "loudness_of", "media_response", "still_of"]
