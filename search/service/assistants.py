"""Tools for assistants by the Model Context Protocol, at `/mcp`: search, and details of a hit.

The server is stateless: each request is answered by JSON on its own.
"""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi.exceptions import RequestValidationError
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool, ToolAnnotations
from pydantic import Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp

from .matching_lines import words_of
from .models import LONGEST_KEY, LONGEST_QUERY, ClipFilter, Modalities, SearchRequest, Strict
from .problems import answer_of
from .routes import Service, search

logger = logging.getLogger(__name__)

_MOST_HITS = 100
_MOST_LINES = 100  # of a moment; of more, those are returned that best match
_INSTRUCTIONS = (
    "A gallery of videos and sounds, searched by meaning. `search` finds moments: whole files, or windows of longer "
    "ones from second `start` to `stop`. Words of a query in quotation marks must be in them: in subtitles, speech or "
    "other texts. `get_moment` returns the words of a moment."
)


class SearchArguments(Strict):
    """Find the moments that best match a text, with the weight of each modality, such as picture or sound, and the
    words that best match it (`said`; null if `get_moment` has them). `matches_well` is whether the best one scores as
    relevant ones do; null if not calibrated. `unknown` counts the clips left out as a filtered value is unknown.
    `date` is that of the recording; unless `is_recorded`, of the last change. `place` is latitude and longitude."""

    query: str = Field(
        min_length=1,
        max_length=LONGEST_QUERY,
        description='Text to search for; words "in quotation marks" must be in a moment.',
    )
    k: int = Field(10, ge=1, le=_MOST_HITS, description="Maximum number of hits.")
    modalities: Modalities | None = Field(None, description="Modalities to search; all by default.")
    filters: ClipFilter | None = Field(None, description="Conditions that moments must meet; none by default.")


class MomentArguments(Strict):
    """Return the name, times, modalities and words of a moment; the words that best match a text, if there are more
    than a hundred lines."""

    key: str = Field(max_length=LONGEST_KEY, description="`key` of a hit of `search`.")
    query: str = Field("", max_length=LONGEST_QUERY, description="Text for which words are selected.")


# The fields of the service's answers that an assistant gets.
_OF_LINE = {"start", "stop", "text"}
_OF_MOMENT: dict[str, Any] = dict.fromkeys(
    ("key", "name", "start", "stop", "date", "is_recorded", "place", "presence"), True
)
_OF_MOMENT["said"] = {"__all__": _OF_LINE}
_OF_HIT = _OF_MOMENT | {"score": True, "weights": True}
_OF_ANSWER: dict[str, Any] = dict.fromkeys(("num_clips", "num_allowed", "unknown", "matches_well", "note"), True)
_OF_ANSWER["hits"] = {"__all__": _OF_HIT}


class Assistants:
    """
    The tools and their answers.

    Args:
        service ([`~scalar_retrieval.search.service.routes.Service`]): what answers searches.
    """

    def __init__(self, service: Service):
        self._service = service
        self._tools = {
            "search": (SearchArguments, self._search),
            "get_moment": (MomentArguments, self._moment),
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ASGIApp]:
        """The ASGI application, for as long as the service runs."""
        server = Server(
            "scalar-search",
            version="1",
            instructions=_INSTRUCTIONS,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        # The guard has already checked hosts and origins.
        manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)
        async with manager.run():
            yield manager.handle_request

    async def _search(self, asked: SearchArguments) -> dict[str, Any]:
        request = SearchRequest(query=asked.query, k=asked.k, modalities=asked.modalities, filter=asked.filters)
        answer = await search(request, self._service)
        return answer.model_dump(mode="json", include=_OF_ANSWER)

    async def _moment(self, asked: MomentArguments) -> dict[str, Any]:
        # In threads, so that other requests are answered while a clip and its words are read.
        result, clip = await run_in_threadpool(self._service.archive.moment, asked.key)
        result.said, num_lines = await run_in_threadpool(words_of, clip, asked.query, _MOST_LINES, True)
        return result.model_dump(mode="json", include=_OF_MOMENT) | {"num_words": num_lines}

    async def _list(self, *_: Any) -> ListToolsResult:
        tools = []
        for name, (arguments, _) in self._tools.items():
            tools.append(
                Tool(
                    name=name,
                    description=arguments.__doc__,
                    input_schema=arguments.model_json_schema(),
                    annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
                )
            )
        return ListToolsResult(tools=tools)

    async def _call(self, _: Any, params: Any) -> CallToolResult:
        if params.name not in self._tools:
            return _result(f"There is no tool {params.name!r:.100}. Use {' or '.join(self._tools)}.", is_error=True)
        # Errors are results, so that the assistant reads them and can try again.
        arguments, tool = self._tools[params.name]
        try:
            result = await tool(arguments.model_validate(params.arguments or {}))
        except Exception as error:
            # Errors are worded as in the service, where the names of fields come after the part of the request.
            if isinstance(error, ValidationError):
                wrong = [{**one, "loc": ("arguments", *one["loc"])} for one in error.errors()]
                error = RequestValidationError(wrong)
            answer = await answer_of(None, error)
            if answer.status_code >= 500:
                logger.exception("An assistant could not be answered.")
            return _result(json.loads(answer.body)["error"], is_error=True)
        return _result(json.dumps(result), structured_content=result)


def _result(text: str, **others: Any) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], **others)


__all__ = ["Assistants"]
