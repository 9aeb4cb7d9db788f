"""Error responses of the service: one sentence as JSON, without internal details."""

import logging
from collections.abc import Mapping

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import Request

from scalar_retrieval.commands.errors import error_text
from scalar_retrieval.commands.texts import plain
from scalar_retrieval.gallery.filters import ModalityError, PatternError
from scalar_retrieval.gallery.searcher import UnsupportedError
from scalar_retrieval.gallery.store.places import DamagedFileError

from .archive import UnknownClipError
from .streaming import NoMediaError

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 5


def problem(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error response."""
    return JSONResponse({"error": plain(" ".join(sentence.split()), "utf-8")}, status, headers)


def _sentence(error: RequestValidationError) -> str:
    """The problems of a request, in one line."""
    # The first three are enough to see what is wrong.
    messages = []
    for wrong in error.errors()[:3]:
        where = ".".join(map(str, wrong["loc"][1:]))  # after the part of the request
        message = wrong["msg"].removeprefix("Value error, ").removesuffix(".")
        # An error of a whole filter is a sentence that names the condition.
        is_whole = wrong["type"] == "value_error" and where == "filter"
        if where and not is_whole:
            message = f"`{where}`: {message}"
        messages.append(message)
    sentence = plain("; ".join(messages)[:500], "utf-8")
    return sentence if sentence.endswith("?") else f"{sentence}."


async def answer_of(_: Request, error: Exception) -> Response:
    """The response to a request that failed; Starlette logs bugs."""
    match error:
        case HTTPException():
            return problem(error.status_code, str(error.detail), error.headers)
        case RequestValidationError():
            return problem(422, _sentence(error))
        case UnknownClipError() | NoMediaError():
            return problem(404, error_text(error))
        case UnsupportedError() | ModalityError() | PatternError():
            return problem(422, error_text(error))
        # The log names the file, for whoever runs the service.
        case DamagedFileError():
            logger.error("%s", error_text(error))
            return problem(500, "A file of the gallery is damaged; see the log of the service.")
        case OSError():
            logger.error("%s", error_text(error))
            retry = {"retry-after": str(_RETRY_SECONDS)}
            return problem(503, "The gallery cannot be read now; see the log of the service.", retry)
        case _:
            return problem(500, "Internal error of the service; see its log.")


ANSWERED = (
    HTTPException, RequestValidationError, UnknownClipError, NoMediaError,
    UnsupportedError, ModalityError, PatternError, DamagedFileError, OSError, Exception,
)  # fmt: skip
"""The exceptions handled by [`answer_of`], including their subclasses."""

__all__ = ["ANSWERED", "answer_of", "problem"]
