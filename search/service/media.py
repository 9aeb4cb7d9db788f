"""Files of the gallery as the page plays them: whole, or the part that is asked for."""

import os
import re
import stat
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from .models import Kind
from .threads import call_in

_TYPES: dict[str, str] = {
    ".mp4": "video/mp4",
    ".m4v": "video/mp4",
    ".mov": "video/mp4",  # browsers play what they know of it
    ".mkv": "video/x-matroska",
    ".webm": "video/webm",
    ".avi": "video/x-msvideo",
    ".mpg": "video/mpeg",
    ".mpeg": "video/mpeg",
    ".ts": "video/mp2t",
    ".flv": "video/x-flv",
    ".wmv": "video/x-ms-wmv",
    ".ogv": "video/ogg",
    ".3gp": "video/3gpp",
    ".wav": "audio/wav",
    ".mp3": "audio/mpeg",
    ".m4a": "audio/mp4",
    ".flac": "audio/flac",
    ".ogg": "audio/ogg",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
"""Of the files that are served; nothing else is, whatever a gallery names. None of these runs as a page."""


_CHUNK = 2**18
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


class NoMediaError(ValueError):
    """The file of a clip is gone, or cannot be played."""


def kind_of(path: str, has_picture: bool) -> Kind | None:
    """How a browser plays a file; `None` if it is none that is served."""
    media_type = _TYPES.get(os.path.splitext(path)[1].lower())
    if media_type is None:
        return None
    kind = media_type.partition("/")[0]
    return "audio" if kind == "video" and not has_picture else kind


class OpenFile(NamedTuple):
    """A file of the gallery that is open: its descriptor, what the system knows of it, and its media type."""

    descriptor: int
    status: os.stat_result
    media_type: str


def open_media(path: str) -> OpenFile:
    """
    Open a file of the gallery.

    Raises:
        NoMediaError: it is gone, no regular file, or of no type that is served.
    """
    real = os.path.realpath(path)
    media_type = _TYPES.get(os.path.splitext(real)[1].lower())
    if media_type is None or not os.path.isabs(path):
        raise NoMediaError("The file of this clip is of no type that a browser plays.")
    try:
        # without waiting: it may have become a pipe
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise NoMediaError("The file of this clip is gone, or may not be read.") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NoMediaError("The file of this clip is no regular file any more.")
    except BaseException:
        os.close(descriptor)
        raise
    return OpenFile(descriptor, status, media_type)


def is_known(headers: Headers, version: str) -> bool:
    """Whether the client has this version already, as `If-None-Match` names it: a whole answer would be wasted."""
    known = [name.strip().removeprefix("W/") for name in headers.get("if-none-match", "").split(",")]
    return version in known or known == ["*"]


def part_of(header: str | None, size: int) -> tuple[int, int] | None:
    """
    Read a `Range` header: the first byte wanted and the one after the last; `None` for the whole file.

    Several ranges, and what is no range at all, are answered with the whole file, as HTTP lets a server do.

    Raises:
        HTTPException: it lies outside the file.
    """
    found = _RANGE.fullmatch((header or "").replace(" ", ""))
    first, last = found.groups() if found else ("", "")
    if not (first or last) or (first and last and int(last) < int(first)):
        return None
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= stop:
        sentence = f"The file has {size} bytes; what was asked for lies outside."
        raise HTTPException(416, sentence, {"content-range": f"bytes */{size}"})
    return start, stop


async def _pieces(descriptor: int, start: int, stop: int, pool: Executor) -> AsyncIterator[bytes]:
    while start < stop:
        piece = await call_in(pool, os.pread, descriptor, min(_CHUNK, stop - start), start)
        if not piece:  # the file has become shorter: the connection ends before what was promised
            return
        start += len(piece)
        yield piece


def media_response(file: OpenFile, request: Request, pool: Executor) -> Response:
    """
    Answer with an open file, or the part of it that is asked for, as it is: read by its descriptor, whatever its path
    leads to now, and no further than to where it ended when it was opened. It must stay open until the answer is sent.
    """
    size, version = file.status.st_size, f'"{file.status.st_mtime_ns:x}-{file.status.st_size:x}"'
    told = {"accept-ranges": "bytes", "cache-control": "private, no-cache", "etag": version}
    if is_known(request.headers, version):
        return Response(status_code=304, headers=told)
    # A part of another version of the file would be put together with those that came before.
    is_same = request.headers.get("if-range", version) == version
    part = part_of(request.headers.get("range"), size) if is_same else None
    start, stop = part or (0, size)
    told["content-length"] = str(stop - start)
    if part is not None:
        told["content-range"] = f"bytes {start}-{stop - 1}/{size}"
    status = 200 if part is None else 206
    if request.method == "HEAD":
        return Response(status_code=status, headers=told, media_type=file.media_type)
    pieces = _pieces(file.descriptor, start, stop, pool)
    return StreamingResponse(pieces, status, told, media_type=file.media_type)


__all__ = ["NoMediaError", "OpenFile", "is_known", "kind_of", "media_response", "open_media", "part_of"]
