"""Files of the gallery as the page plays them: whole, or the part that is asked for."""

import asyncio
import os
import re
import stat
from collections.abc import AsyncIterator
from concurrent.futures import Executor

from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse

from .models import Kind

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
_RANGE = re.compile(r"bytes=(\d*)-(\d*)", re.ASCII)
_LONGEST_NUMBER = 18  # digits


class NoMediaError(ValueError):
    """The file of a clip is gone, or cannot be played."""


class RangeError(ValueError):
    """The part that is asked for lies outside the file; `size` is what it has."""

    def __init__(self, size: int):
        self.size = size
        super().__init__(f"The file has {size} bytes; what was asked for lies outside.")


def kind_of(path: str, has_picture: bool) -> Kind | None:
    """How a browser plays a file; `None` if it is none that is served."""
    media_type = _TYPES.get(os.path.splitext(path)[1].lower())
    if media_type is None or not os.path.isabs(path):
        return None
    kind = media_type.partition("/")[0]
    return "audio" if kind == "video" and not has_picture else kind


def open_media(path: str) -> tuple[int, os.stat_result, str]:
    """
    Open a file of the gallery.

    Returns:
        Its descriptor, what the system knows of it, and its media type.

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
    return descriptor, status, media_type


def part_of(header: str | None, size: int) -> tuple[int, int] | None:
    """
    Read a `Range` header: the first byte wanted and the one after the last; `None` for the whole file.

    Several ranges, and what is no range at all, are answered with the whole file, as HTTP lets a server do.

    Raises:
        RangeError: it lies outside the file.
    """
    found = None if header is None else _RANGE.fullmatch(header.replace(" ", ""))
    if found is None or not any(found.groups()) or max(map(len, found.groups())) > _LONGEST_NUMBER:
        return None
    first, last = found.groups()
    if not first:  # so many at the end
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return None
    if start >= stop:
        raise RangeError(size)
    return start, stop


def is_known(headers: Headers, version: str) -> bool:
    """Whether the client has this version already, as `If-None-Match` names it: a whole answer would be wasted."""
    known = [name.strip().removeprefix("W/") for name in headers.get("if-none-match", "").split(",")]
    return version in known or known == ["*"]


async def _pieces(descriptor: int, start: int, stop: int, pool: Executor) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    while start < stop:
        piece = await loop.run_in_executor(pool, os.pread, descriptor, min(_CHUNK, stop - start), start)
        if not piece:  # the file has become shorter: the connection ends before what was promised
            return
        start += len(piece)
        yield piece


class _Closing(StreamingResponse):
    """Closes the file however the answer ends."""

    descriptor: int

    async def __call__(self, scope, receive, send) -> None:  # noqa: ANN001 - as in Starlette
        try:
            await super().__call__(scope, receive, send)
        finally:
            os.close(self.descriptor)


def media_response(
    opened: tuple[int, os.stat_result, str], headers: Headers, pool: Executor, is_head: bool = False
) -> Response:
    """Answer with an open file, which is closed afterwards, or the part of it that a `Range` header wants."""
    descriptor, status, media_type = opened
    version = f'"{status.st_mtime_ns:x}-{status.st_size:x}"'
    told = {"accept-ranges": "bytes", "cache-control": "private, no-cache", "etag": version}
    if is_known(headers, version):
        os.close(descriptor)
        return Response(status_code=304, headers=told)
    # A part of another version of the file would be put together with those that came before.
    is_same = headers.get("if-range", version) == version
    try:
        part = part_of(headers.get("range"), status.st_size) if is_same else None
    except RangeError:
        os.close(descriptor)
        raise
    start, stop = part or (0, status.st_size)
    told["content-length"] = str(stop - start)
    if part is not None:
        told["content-range"] = f"bytes {start}-{stop - 1}/{status.st_size}"
    code = 200 if part is None else 206
    if is_head:
        os.close(descriptor)
        return Response(status_code=code, headers=told, media_type=media_type)
    response = _Closing(_pieces(descriptor, start, stop, pool), code, told, media_type=media_type)
    response.descriptor = descriptor
    return response


__all__ = ["NoMediaError", "RangeError", "is_known", "kind_of", "media_response", "open_media", "part_of"]
