"""The calls of the HTTP API, each by itself."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from gallery.cues import within
from gallery.decoding import Stop
from gallery.transcripts import Cue
from gallery.words import places_of, split_query

from .archive import Archive
from .guard import COOKIE, Token
from .media import media_response
from .models import (
    LONGEST_QUERY,
    MOST_SECONDS,
    About,
    Answer,
    Chosen,
    Found,
    LikeRequest,
    Listing,
    ListRequest,
    Problem,
    Said,
    SearchRequest,
    WordsSource,
)
from .words import as_vtt, best_cues

Result = TypeVar("Result")

SEARCHES = min(4, os.cpu_count() or 1)
"""Maximum number of concurrent searches: each uses all cores available to torch."""
_READERS = 8
_ASKING = 4  # concurrent look-ups of the gallery's description, and of files of clips
_MOST_CUES = 2
_STILL_CACHED = "max-age=600"  # seconds, so that browsing back and forth loads each still once


def _problems(texts: dict[int, str]) -> dict[int | str, dict[str, Any]]:
    """Error responses of the schema."""
    return {status: {"model": Problem, "description": text} for status, text in texts.items()}


_ALWAYS = _problems(
    {
        400: "The request is not valid.",
        401: "A token is needed.",
        403: "The request comes from a page of another site.",
        422: "A field is missing or out of range.",
        429: "The service is busy; try again after `Retry-After` seconds.",
        503: "The engine that holds the gallery does not answer; try again after `Retry-After` seconds.",
    }
)
router = APIRouter(prefix="/api", responses=_ALWAYS)


class Threads:
    """Thread pools: one for each kind of call, so that one kind does not block another."""

    def __init__(self):
        self.model, self.files = ThreadPoolExecutor(1, "model"), ThreadPoolExecutor(_READERS, "read")
        self.searches, self.summaries, self.paths = (
            ThreadPoolExecutor(SEARCHES, "search"),
            ThreadPoolExecutor(_ASKING, "about"),
            ThreadPoolExecutor(_ASKING, "path"),
        )
        self._stop = Stop()
        self.words = ThreadPoolExecutor(1, "words", initializer=self._stop.join)

    def end(self) -> None:
        """Wait for the model and for files, but not for calls that may wait for an engine."""
        self._stop.set()  # reading the words of all files may take long
        self.words.shutdown(wait=False, cancel_futures=True)
        for pool in (self.searches, self.summaries, self.paths):
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in (self.model, self.files):
            pool.shutdown(wait=True, cancel_futures=True)


async def call_in(pool: Executor, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in a thread of a pool."""
    return await asyncio.get_running_loop().run_in_executor(pool, partial(function, *arguments))


@dataclass(frozen=True)
class Service:
    """The state of the application, set by `build_app`."""

    archive: Archive
    token: Token | None
    threads: Threads = field(default_factory=Threads)


async def _service(request: Request) -> Service:
    return request.app.state.service


Here = Annotated[Service, Depends(_service)]


@router.post("/session", status_code=204)
async def begin_session(request: Request, here: Here) -> Response:
    """Exchange the token, sent as `Authorization: Bearer TOKEN`, for a cookie, which media players send, too."""
    response = Response(status_code=204)
    if here.token is None:
        return response
    if not here.token.knows(request.headers):
        raise HTTPException(401, "This is not the token of the service.")
    response.set_cookie(COOKIE, here.token.cookie, httponly=True, samesite="strict", path="/")
    return response


@router.get("/gallery")
async def about(here: Here) -> About:
    """Describe the gallery that is served."""
    return await call_in(here.threads.summaries, here.archive.about)


async def _ready(asked: Chosen, here: Service) -> None:
    """Load the words of all clips first, if they are searched, so that other searches do not wait for this."""
    if asked.allowed is not None and asked.allowed.words:
        await call_in(here.threads.words, here.archive.read_words)


@router.post("/search")
async def search(request: SearchRequest, here: Here) -> Answer:
    """Find clips by text."""
    return await find(request, here)


async def find(request: SearchRequest, here: Service) -> Answer:
    """Answer a text query."""
    text, _ = split_query(request.query.strip())
    if not text:
        raise HTTPException(422, "`query`: type what you are looking for.")
    if not here.archive.is_known(text):  # searches that need no model never wait for it
        await call_in(here.threads.model, here.archive.embed, text)
    await _ready(request, here)
    return await call_in(here.threads.searches, here.archive.search, text, request)


@router.post("/clips")
async def clips(request: ListRequest, here: Here) -> Listing:
    """List clips by name."""
    await _ready(request, here)
    return await call_in(here.threads.searches, here.archive.listed, request)


@router.post("/like", responses=_problems({404: "There is no such clip."}))
async def like(request: LikeRequest, here: Here) -> Answer:
    """Find the clips most similar to one that was found."""
    await _ready(request, here)
    return await call_in(here.threads.searches, here.archive.like, request.key, request)


@router.head("/clips/{key}/media", include_in_schema=False)
@router.get(
    "/clips/{key}/media",
    response_class=Response,
    responses={
        200: {"content": {"video/*": {}, "audio/*": {}, "image/*": {}}, "description": "The file of the clip."},
        206: {"description": "The range requested by the `Range` header."},
        416: {"description": "The range is outside the file."},
        **_problems({404: "There is no such clip, or its file is gone."}),
    },
)
async def media(key: str, here: Here) -> Response:
    """Play the file of a clip; the whole file, even for a window."""
    path = await call_in(here.threads.paths, here.archive.source.path_of, key)
    return await call_in(here.threads.files, media_response, path)


@router.get(
    "/clips/{key}/still",
    response_class=Response,
    responses={
        200: {"content": {"image/jpeg": {}}, "description": "A frame of the clip, at most 320 pixels wide and high."},
        **_problems({404: "There is no such clip, or no still of it."}),
    },
)
async def still(key: str, here: Here) -> Response:
    """Show a small picture of a clip."""
    path = await call_in(here.threads.paths, here.archive.source.still_of, key)
    if path is None:
        raise HTTPException(404, "There is no still of this clip.")
    return await call_in(here.threads.files, media_response, str(path), _STILL_CACHED)


_MOST_LINES = 100  # maximum number of cues returned for a moment


async def moment(key: str, query: str | None, here: Service) -> tuple[Found, list[Cue], int]:
    """A clip with its weights for a query, its cues (the best for the query, if there are many), and their number."""
    text = None if query is None else split_query(query.strip())[0]
    if text == "":
        raise HTTPException(422, "`query`: type what you are looking for.")
    if text is not None and not here.archive.is_known(text):
        await call_in(here.threads.model, here.archive.embed, text)
    found = await call_in(here.threads.searches, here.archive.moment, key, text)
    texts = await call_in(here.threads.files, here.archive.source.texts_of, key)
    cues = within(sorted(cue for cues in texts.values() for cue in cues), found.start, found.stop)
    best = await call_in(here.threads.files, best_cues, cues, query or "", _MOST_LINES)
    return found, [cue for cue, _ in best] if len(cues) > _MOST_LINES else cues, len(cues)


_WORDS = _problems({404: "There is no such clip, or it has no known words."})


@router.get(
    "/clips/{key}/captions",
    response_class=Response,
    responses={200: {"content": {"text/vtt": {}}, "description": "The subtitles of the file."}, **_WORDS},
)
async def captions(key: str, here: Here) -> Response:
    """Return the subtitles of the file of a clip as WebVTT."""
    texts = await _texts_of(key, here)
    said = texts.get("subtitle") or texts.get("speech") or []
    return Response(as_vtt(said), media_type="text/vtt", headers={"cache-control": "no-cache"})


@router.get("/clips/{key}/words", responses=_WORDS)
async def words(
    key: str,
    here: Here,
    query: Annotated[str, Query(max_length=LONGEST_QUERY, description="The query whose words to find.")] = "",
    start: Annotated[float | None, Query(ge=0, le=MOST_SECONDS, description="Start of the window in seconds.")] = None,
    stop: Annotated[float | None, Query(ge=0, le=MOST_SECONDS)] = None,
) -> list[Said]:
    """Return the words of a clip that best match a query, or its first ones."""
    texts = await _texts_of(key, here)
    return await call_in(here.threads.files, _best_of, texts, query, start, stop)


def _best_of(texts: dict[WordsSource, list[Cue]], query: str, start: float | None, stop: float | None) -> list[Said]:
    source_of = {cue: source for source, cues in texts.items() for cue in cues}
    cues = within(sorted(source_of), start, stop)
    quoted = split_query(query)[1]
    return [
        Said(**cue._asdict(), source=source_of[cue], is_asked=is_asked, marks=places_of(quoted, cue.text))
        for cue, is_asked in best_cues(cues, query, _MOST_CUES)
    ]


async def _texts_of(key: str, here: Service) -> dict[WordsSource, list[Cue]]:
    texts = await call_in(here.threads.files, here.archive.source.texts_of, key)
    if not any(texts.values()):
        raise HTTPException(404, "This clip has no known words.")
    return texts


__all__ = ["SEARCHES", "Service", "Threads", "find", "moment", "router"]
