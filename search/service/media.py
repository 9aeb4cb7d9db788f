"""Media files of the gallery for the page: whole, or the requested range."""

import os

from starlette.responses import FileResponse

from .models import Kind

_TYPES: dict[str, str] = {
    ".mp4": "video/mp4",
    ".m4v": "video/mp4",
    ".mov": "video/mp4",  # browsers play the codecs that they support
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
"""The types of files that are served, and no others. None of them can run as a page."""


class NoMediaError(ValueError):
    """The file of a clip is gone, or cannot be played."""


def kind_of(path: str, has_picture: bool) -> Kind | None:
    """How a browser plays a file; `None` if its type is not served."""
    media_type = _TYPES.get(os.path.splitext(path)[1].lower())
    if media_type is None:
        return None
    kind = media_type.partition("/")[0]
    return "audio" if kind == "video" and not has_picture else kind


def media_response(path: str, cached: str = "no-cache") -> FileResponse:
    """
    Answer with a file of the gallery, or a range of it; `cached` is the `cache-control` policy of the browser.

    Raises:
        NoMediaError: it is gone, not a regular file, or of a type that is not served.
    """
    real = os.path.realpath(path)
    media_type = _TYPES.get(os.path.splitext(real)[1].lower())
    if media_type is None or not os.path.isabs(path):
        raise NoMediaError("Browsers cannot play files of this type.")
    if not (os.path.isfile(real) and os.access(real, os.R_OK)):
        raise NoMediaError("The file of this clip is gone or cannot be read.")
    return FileResponse(real, headers={"cache-control": f"private, {cached}"}, media_type=media_type)


__all__ = ["NoMediaError", "kind_of", "media_response"]
