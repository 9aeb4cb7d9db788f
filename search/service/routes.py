"""The calls of the HTTP API, each by itself."""

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import FileResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from scalar_retrieval.gallery.decoding import Stop
from scalar_retrieval.gallery.filters import split_query
from scalar_retrieval.gallery.searcher import StoredClip
from scalar_retrieval.gallery.words.transcripts import as_vtt

from .archive import Archive
from .guard import COOKIE, Token
from .matching_lines import words_of
from .models import (
    LONGEST_QUERY,
    About,
    ClipOptions,
    ClipResult,
    LikeRequest,
    Line,
    Listing,
    ListRequest,
    Problem,
    SearchAnswer,
    SearchRequest,
)
from .streaming import loudness_of, media_response, still_of

Result = TypeVar("Result")

SEARCHES = min(4, os.cpu_count() or 1)
"""Maximum number of concurrent searches: each uses all cores available to torch."""
_MOST_CUES = 2  # of a hit
_MOST_HITS = 100  # of an answer that carry words
_WORDS_SECONDS = 0.2  # for which an answer waits for the words of its hits
_STILL_CACHED = "max-age=600"  # seconds, so that browsing back and forth loads each still once


router = APIRouter(
    prefix="/api",
    responses={
        "4XX": {"model": Problem, "description": "What is wrong with the request; after 429, try again."},
        "5XX": {"model": Problem, "description": "The gallery cannot be read; after 503, try again."},
    },
)


async def call_in(pool: Executor, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in a thread of a pool."""
    return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)


class Service:
    """
    What the calls have in common: the gallery, the token, and a pool of threads for each kind of search, so that one
    kind does not block another. Files are read in the threads of the framework.
    """

    def __init__(self, archive: Archive, token: Token | None):
        self.archive = archive
        self.token = token
        self.model_pool = ThreadPoolExecutor(1, "model")
        self.search_pool = ThreadPoolExecutor(SEARCHES, "search")
        self._stop = Stop()
        self.sound_pool = ThreadPoolExecutor(1, "sounds", initializer=self._stop.join)
        self.still_pool = ThreadPoolExecutor(1, "stills", initializer=self._stop.join)
        # The first search for quoted words reads those of all clips, which may take long.
        self.quoted_pool = ThreadPoolExecutor(1, "words", initializer=self._stop.join)

    def pool_of(self, asked: ClipOptions) -> Executor:
        """The threads for a search."""
        return self.quoted_pool if asked.allowed.words else self.search_pool

    def end(self) -> None:
        """Wait for the model, but not for searches, which may wait for a database."""
        self._stop.set()
        for pool in (self.quoted_pool, self.sound_pool, self.still_pool, self.search_pool):
            pool.shutdown(wait=False, cancel_futures=True)
        self.model_pool.shutdown(wait=True, cancel_futures=True)


async def _service(request: Request) -> Service:
    return request.app.state.service


InjectedService = Annotated[Service, Depends(_service)]


@router.post("/session", status_code=204)
async def begin_session(request: Request, service: InjectedService) -> Response:
    """Exchange the token, sent as `Authorization: Bearer TOKEN`, for a cookie, which media players send, too."""
    response = Response(status_code=204)
    if service.token is None:
        return response
    if not service.token.accepts(request.headers):
        raise HTTPException(401, "This is not the token of the service.")
    response.set_cookie(COOKIE, service.token.cookie, httponly=True, samesite="strict", path="/")
    return response


@router.get("/gallery")
def about(service: InjectedService) -> About:
    """Describe the gallery that is served."""
    return service.archive.about()


@router.post("/search")
async def search(request: SearchRequest, service: InjectedService) -> SearchAnswer:
    """Find clips by text."""
    # Words in quotation marks are a filter; what is embedded is the text without the marks.
    text, _ = split_query(request.query.strip())
    if not text:
        raise HTTPException(422, "`query`: type what you are looking for.")
    # The model has a thread of its own, and keeps the embedding for the search.
    await call_in(service.model_pool, service.archive.embed, text)
    answer, clips = await call_in(service.pool_of(request), service.archive.search, text, request)
    await _add_words(answer.hits, clips, request.query)
    return answer


async def _add_words(hits: Sequence[ClipResult], clips: Sequence[StoredClip], query: str) -> None:
    """Add words to hits. Where reading them takes long, they stay without: `words` is the URL to get them."""
    # Read the words of all hits at once.
    reading: dict[asyncio.Task, ClipResult] = {}
    for hit, clip in zip(hits, clips, strict=True):
        if hit.words is not None and len(reading) < _MOST_HITS:
            task = asyncio.create_task(run_in_threadpool(words_of, clip, query, _MOST_CUES))
            reading[task] = hit
    if not reading:
        return
    # Take what is read in time; a thread that is late is not waited for.
    done, late = await asyncio.wait(reading, timeout=_WORDS_SECONDS)
    for task in late:
        task.cancel()
    for task in done:
        if task.exception() is None:
            reading[task].said, _ = task.result()


@router.post("/clips")
async def clips(request: ListRequest, service: InjectedService) -> Listing:
    """List clips by name."""
    return await call_in(service.pool_of(request), service.archive.list_clips, request)


@router.post("/like")
async def like(request: LikeRequest, service: InjectedService) -> SearchAnswer:
    """Find the clips most similar to one that was found."""
    return await call_in(service.pool_of(request), service.archive.like, request.key, request)


@router.head("/clips/{key}/media", include_in_schema=False)
@router.get("/clips/{key}/media", response_class=FileResponse)
def media(key: str, service: InjectedService) -> FileResponse:
    """Play the file of a clip; the whole file, even if the clip is a part of it."""
    return media_response(service.archive.media_of(key))


@router.get("/clips/{key}/still", response_class=FileResponse)
async def still(key: str, service: InjectedService) -> Response:
    """Show a small JPEG of a clip, at most 320 pixels wide and high. That of a video without one is made now."""
    clip = await run_in_threadpool(service.archive.clip, key)
    stored = await run_in_threadpool(_stored_still, clip)
    if stored is not None:
        return stored
    # One thread decodes, however many stills are requested.
    picture = await call_in(service.still_pool, still_of, clip)
    if picture is None:
        raise HTTPException(404, "There is no still of this clip.")
    return Response(picture, media_type="image/jpeg", headers={"cache-control": f"private, {_STILL_CACHED}"})


def _stored_still(clip: StoredClip) -> FileResponse | None:
    path = clip.still
    if path is None:
        return None
    return media_response(path, _STILL_CACHED)


@router.get("/clips/{key}/loudness")
async def loudness(key: str, service: InjectedService, response: Response) -> list[float]:
    """Return how loud a clip is over its time, for a picture of its sound: at most a hundred numbers from 0 to 1.

    There are none if the sound cannot be read, or lasts for more than an hour.
    """
    # Decoding a sound takes long, so there is one thread for it.
    clip = await run_in_threadpool(service.archive.clip, key)
    response.headers["cache-control"] = f"private, {_STILL_CACHED}"
    return await call_in(service.sound_pool, loudness_of, clip)


@router.get("/clips/{key}/captions", response_class=Response)
def captions(key: str, service: InjectedService) -> Response:
    """Return the subtitles of the file of a clip, or its recognised speech, as WebVTT."""
    # A player shows one track: subtitles where there are any.
    texts = service.archive.clip(key).words()
    if not any(texts.values()):
        raise HTTPException(404, "This clip has no known words.")
    said = texts.get("subtitle") or texts.get("speech") or []
    return Response(as_vtt(said), media_type="text/vtt", headers={"cache-control": "no-cache"})


@router.get("/clips/{key}/words")
def words(
    key: str,
    service: InjectedService,
    query: Annotated[str, Query(max_length=LONGEST_QUERY, description="The query whose words to find.")] = "",
) -> list[Line]:
    """Return the words of a clip that best match a query, or its first ones."""
    best, _ = words_of(service.archive.clip(key), query, _MOST_CUES)
    return best


__all__ = ["SEARCHES", "Service", "router", "search"]
