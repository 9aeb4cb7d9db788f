"""The HTTP API and the page: what is asked, and what answers it."""

import asyncio
import base64
import hashlib
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from commands.errors import describe, plain
from search.engine.errors import UnsupportedError
from search.indexing import EXTENSIONS

from .archive import Archive, Asked
from .guard import COOKIE, Guard, Token
from .media import NoMediaError, RangeError, is_known, media_response, open_media
from .models import LONGEST_NAME, About, Answer, LikeRequest, Problem, SearchRequest, Upload
from .pool import Pool
from .uploads import NoRoomError, RefusedError, TooManyError, Uploads
from .views import AwayError, UnknownClipError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

PAGE = Path(__file__).with_name("page.html")

_SEARCHES = min(4, os.cpu_count() or 1)  # at once: each takes all cores that torch may use
_READERS = 8
_ASKING = 4  # at once: which file a clip is of
_END_SECONDS = 3.0  # to wait for a search, which may wait for an engine
_BUFFER = 2**20
_RETRY = {"retry-after": "5"}
_FAULT = "A fault of the service; its log says more."


def _content_policy(page: str) -> str:
    """What the page may do: run what is in it, and ask this service."""

    def hashes(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found]
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "media-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _sentence(error: RequestValidationError) -> str:
    """What is wrong with a question, in one line."""
    told = []
    for problem in error.errors()[:3]:
        where = ".".join(str(part) for part in problem["loc"] if part not in ("body", "query"))
        message = problem["msg"].removeprefix("Value error, ").removesuffix(".")
        is_whole = problem["type"] == "value_error" and where == "filter"  # a sentence that says what it is about
        told.append(f"`{where}`: {message}" if where and not is_whole else message)
    sentence = plain("; ".join(told)[:500], "utf-8")
    return sentence if sentence.endswith("?") else f"{sentence}."


def _problem(status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
    text = plain(" ".join(sentence.split()), "utf-8")
    return JSONResponse({"error": text}, status, headers)


def _asked(request: SearchRequest | LikeRequest) -> Asked:
    wanted = None if request.filter is None else request.filter.filter()
    modalities = tuple(dict.fromkeys(request.modalities))
    return Asked(request.k, request.temperature, modalities, wanted, request.per_file)


_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in {
        400: "The request is wrong.",
        401: "A token is needed.",
        403: "The request comes from a page of another site.",
        422: "A field is missing or out of its range.",
        429: "Too much is going on; ask again after `Retry-After` seconds.",
        503: "The vector engine that holds the gallery does not answer; ask again after `Retry-After` seconds.",
    }.items()
}


def build_app(
    archive: Archive, uploads: Uploads | None = None, token: Token | None = None, names: tuple[str, ...] = ()
) -> Guard:
    """
    Build the service.

    Args:
        archive ([`~search.service.archive.Archive`]): what is searched.
        uploads ([`~search.service.uploads.Uploads`], *optional*): where files can be added.
        token ([`~search.service.guard.Token`], *optional*): that requests must carry.
        names (`tuple[str, ...]`): names by which this machine may be called.

    Returns:
        An ASGI application.
    """
    page = PAGE.read_text(encoding="utf-8")
    policy, version = _content_policy(page), hashlib.sha256(page.encode()).hexdigest()
    model_thread, readers = ThreadPoolExecutor(1, "model"), ThreadPoolExecutor(_READERS, "read")
    # Of what may wait for an engine none waits for another, and nothing else does.
    searches, summaries, paths = Pool(_SEARCHES, "search"), Pool(_ASKING, "about"), Pool(_ASKING, "path")

    async def in_thread(pool: Executor, function: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(pool, partial(function, *arguments))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if uploads is not None:
            uploads.start()
        try:
            yield
        finally:
            if uploads is not None:
                uploads.stop()
            end = time.monotonic() + _END_SECONDS
            for pool in (model_thread, readers):
                pool.shutdown(wait=True, cancel_futures=True)
            for pool in (searches, summaries, paths):
                pool.end(end - time.monotonic())

    api = FastAPI(
        title="SCALAR search",
        summary="Find clips of a gallery by text, and see which modality made them match.",
        version="1",
        docs_url=None,  # pages that load their code from elsewhere
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=lifespan,
        responses=_ERRORS,
    )

    @api.exception_handler(HTTPException)
    async def told(_: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        return _problem(error.status_code, str(error.detail), headers)

    @api.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return _problem(422, _sentence(error))

    @api.exception_handler(ClientDisconnect)
    async def gone(_: Request, __: ClientDisconnect) -> Response:
        return _problem(400, "The request was not sent to its end.")

    @api.exception_handler(Exception)
    async def fault(_: Request, error: Exception) -> Response:
        return _problem(500, _FAULT)  # Starlette logs it

    for kind, status in (
        (UnknownClipError, 404),
        (NoMediaError, 404),
        (RefusedError, 415),
        (NoRoomError, 507),
        (UnsupportedError, 422),
        (ValueError, 400),
    ):

        @api.exception_handler(kind)
        async def refused(_: Request, error: Exception, status: int = status) -> Response:
            return _problem(status, describe(error))

    @api.exception_handler(TooManyError)
    async def too_many(_: Request, error: TooManyError) -> Response:
        return _problem(429, str(error), _RETRY)

    @api.exception_handler(AwayError)
    async def away(_: Request, error: AwayError) -> Response:
        return _problem(503, str(error), {"retry-after": str(error.seconds)})

    @api.exception_handler(RangeError)
    async def outside(_: Request, error: RangeError) -> Response:
        return _problem(416, str(error), {"content-range": f"bytes */{error.size}"})

    @api.exception_handler(OSError)
    async def no_space(_: Request, error: OSError) -> Response:
        logger.error("%s", describe(error))
        return _problem(507, "The service cannot read or write on its disk; its log says more.")

    page_headers = {"content-security-policy": policy, "cache-control": "no-cache", "etag": f'"{version[:32]}"'}

    @api.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def the_page(request: Request) -> Response:
        if is_known(request.headers, page_headers["etag"]):
            return Response(status_code=304, headers=page_headers)
        return HTMLResponse(page, headers=page_headers)

    @api.get("/favicon.ico", include_in_schema=False)
    async def no_icon() -> Response:
        return Response(status_code=204)

    @api.post("/api/session", status_code=204)
    async def begin_session(request: Request) -> Response:
        """Exchange the token, sent as `Authorization: Bearer TOKEN`, for a cookie, which players send too."""
        response = Response(status_code=204)
        if token is None:
            return response
        if not token.knows(request.headers):
            raise HTTPException(401, "This is not the token of the service.")
        response.set_cookie(COOKIE, token.cookie, httponly=True, samesite="strict", path="/")
        return response

    @api.get("/api/gallery")
    async def about() -> About:
        """What is served."""
        most = 0 if uploads is None else uploads.most_bytes
        return await in_thread(summaries, archive.about, most, sorted(EXTENSIONS) if uploads is not None else [])

    @api.post("/api/search")
    async def search(request: SearchRequest) -> Answer:
        """Find clips by words."""
        text = request.query.strip()
        if not text:
            raise HTTPException(422, "`query`: type what you are looking for.")
        if not archive.is_known(text):  # so that searches that need no model never wait for it
            await in_thread(model_thread, archive.embed, text)
        return await in_thread(searches, archive.search, text, _asked(request))

    @api.post("/api/like", responses={404: {"model": Problem, "description": "There is no such clip."}})
    async def like(request: LikeRequest) -> Answer:
        """Find the clips most like one that was found."""
        return await in_thread(searches, archive.like, request.key, _asked(request))

    @api.get(
        "/api/clips/{key}/media",
        response_class=Response,
        responses={
            200: {"content": {"video/*": {}, "audio/*": {}, "image/*": {}}, "description": "The file of the clip."},
            206: {"description": "The part of it that the `Range` header asked for."},
            304: {"description": "It is the version that `If-None-Match` names."},
            404: {"model": Problem, "description": "There is no such clip, or its file is gone."},
            416: {"model": Problem, "description": "The part lies outside the file."},
        },
    )
    async def media(key: str, request: Request) -> Response:
        """Play the file of a clip; of a window too it is the whole file."""
        path = await in_thread(paths, archive.source.path_of, key)
        opened = await in_thread(readers, open_media, path)
        return media_response(opened, request.headers, readers, is_head=request.method == "HEAD")

    api.head("/api/clips/{key}/media", include_in_schema=False)(media)

    if uploads is None:

        @api.post("/api/uploads", include_in_schema=False)
        async def no_upload() -> Response:
            raise HTTPException(404, archive.source.why_no_uploads)

    else:

        @api.post(
            "/api/uploads",
            status_code=202,
            openapi_extra={
                "requestBody": {
                    "required": True,
                    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
                }
            },
            responses={
                413: {"model": Problem, "description": "The file is too large."},
                415: {"model": Problem, "description": "The file is of a kind that is not taken."},
                507: {"model": Problem, "description": "What is set aside for uploaded files is used up."},
            },
        )
        async def upload(
            request: Request,
            name: Annotated[str, Query(min_length=1, max_length=LONGEST_NAME, description="Of the file.")],
        ) -> Upload:
            """Add a file, the body of the request, to the gallery; it is embedded afterwards."""
            receiver = await in_thread(readers, uploads.receive, name)
            try:
                buffer = bytearray()
                async for piece in request.stream():
                    buffer += piece
                    if len(buffer) >= _BUFFER:
                        await in_thread(readers, receiver.write, bytes(buffer))
                        buffer.clear()
                await in_thread(readers, receiver.write, bytes(buffer))
                return await in_thread(readers, uploads.add, receiver, name)
            finally:
                uploads.done()
                await asyncio.shield(in_thread(readers, receiver.close))

        unknown: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "No such file was sent."}}

        @api.get("/api/uploads/{upload_id}", responses=unknown)
        async def state(upload_id: str) -> Upload:
            """How a file fares that was sent."""
            return known(await in_thread(readers, uploads.state, upload_id))

        @api.delete("/api/uploads/{upload_id}", status_code=202, responses=unknown)
        async def remove(upload_id: str) -> Upload:
            """Take a file that was sent out of the gallery and off the disk; one that others sent too stays."""
            return known(await in_thread(readers, uploads.remove, upload_id))

        def known(upload: Upload | None) -> Upload:
            if upload is None:
                raise HTTPException(404, "No such file was sent, or it is gone.")
            return upload

    return Guard(api, names, token, 0 if uploads is None else uploads.most_bytes)


__all__ = ["PAGE", "build_app"]
