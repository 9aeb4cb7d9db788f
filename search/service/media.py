"""Files of the gallery as the page plays them: whole, or the part that is asked for."""

import os
import stat

from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response

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
    ".aac": "audio/aac",
    ".flac": "audio/flac",
    ".ogg": "audio/ogg",
    ".opus": "audio/ogg",
    ".wma": "audio/x-ms-wma",
    ".aif": "audio/aiff",
    ".aiff": "audio/aiff",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
"""Of the files that are served; nothing else is, whatever a gallery names. None of these runs as a page."""


class NoMediaError(ValueError):
    """The file of a clip is gone, or cannot be played."""


def kind_of(path: str, has_picture: bool) -> Kind | None:
    """How a browser plays a file; `None` if it is none that is served."""
    media_type = _TYPES.get(os.path.splitext(path)[1].lower())
    if media_type is None:
        return None
    kind = media_type.partition("/")[0]
    return "audio" if kind == "video" and not has_picture else kind


def is_known(headers: Headers, version: str) -> bool:
    """Whether the client has this version already, as `If-None-Match` names it: a whole answer would be wasted."""
    known = [name.strip().removeprefix("W/") for name in headers.get("if-none-match", "").split(",")]
    return version in known or known == ["*"]


def media_response(path: str, headers: Headers, cached: str = "no-cache") -> Response:
    """
    Answer with a file of the gallery, or the part of it that a request with these headers asks for; `cached` says for
    how long the browser may show it without asking again.

    Raises:
        NoMediaError: it is gone, no regular file, or of no type that is served.
    """
    real = os.path.realpath(path)
    media_type = _TYPES.get(os.path.splitext(real)[1].lower())
    if media_type is None or not os.path.isabs(path):
        raise NoMediaError("The file of this clip is of no type that a browser plays.")
    if not os.access(real, os.R_OK):
        raise NoMediaError("The file of this clip is gone, or may not be read.")
    status = os.stat(real)
    if not stat.S_ISREG(status.st_mode):
        raise NoMediaError("The file of this clip is no regular file any more.")
    told = {"cache-control": f"private, {cached}"}
    response = FileResponse(real, headers=told, media_type=media_type, stat_result=status)
    version = response.headers["etag"]
    return Response(status_code=304, headers=told | {"etag": version}) if is_known(headers, version) else response


__all__ = ["NoMediaError", "is_known", "kind_of", "media_response"]
