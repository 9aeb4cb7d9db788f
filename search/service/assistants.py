"""What assistants ask the service by the Model Context Protocol, at `/mcp`: to search, and to look into a hit.

Each request stands by itself, and is answered by JSON: nothing is kept between two of them.
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
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.types import ASGIApp

from gallery.hits import Certainty

from .models import LONGEST_KEY, LONGEST_QUERY, Found, Modality, SearchRequest, Wanted
from .problems import answer_of
from .routes import Service, find, moment

logger = logging.getLogger(__name__)

_MOST_HITS = 100
_INSTRUCTIONS = (
    "A gallery of video and sound that is searched by meaning. `search` finds moments: whole files, or windows of "
    "longer ones from second `start` to `stop`. What a query has in quotation marks must be said in them. "
    "`get_moment` tells what is said in one."
)


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class SearchArguments(_Arguments):
    """Find the moments that fit words best, and how much each modality, as picture or sound, made them fit."""

    query: str = Field(
        min_length=1,
        max_length=LONGEST_QUERY,
        description='What to look for; "what is in quotation marks" must be said.',
    )
    k: int = Field(10, ge=1, le=_MOST_HITS, description="How many at most.")
    modalities: list[Modality] | None = Field(None, min_length=1, description="What is looked at; all by default.")
    filters: Wanted | None = Field(None, description="Which moments may be found; all by default.")


class MomentArguments(_Arguments):
    """Tell what a moment is called, when it is, what it has, and what is said in it."""

    key: str = Field(max_length=LONGEST_KEY, description="Of a hit of `search`.")
    query: str | None = Field(
        None,
        min_length=1,
        max_length=LONGEST_QUERY,
        description="By which modalities are weighed and words are chosen.",
    )


class Moment(BaseModel):
    """A file, or a window of a longer one."""

    key: str = Field(description="Names it to `get_moment`.")
    name: str
    start: float | None = Field(description="Second of the file; none of a whole file.")
    stop: float | None = Field(description="None where it goes on to the end.")
    score: float | None
    weights: dict[str, float] | None = Field(description="How much each modality made it fit the query.")
    presence: dict[str, bool] = Field(description="Which modalities it has.")

    @classmethod
    def of(cls, found: Found) -> "Moment":
        """A moment as it is told here."""
        return cls(**found.model_dump(include=set(Moment.model_fields)))


class Moments(BaseModel):
    """The moments found, best first."""

    hits: list[Moment]
    num_clips: int = Field(description="In the gallery.")
    num_allowed: int = Field(description="Of these, those that could be found.")
    certainty: Certainty
    unknown: dict[str, int] = Field(description="How many are left out because it is not known whether they fit.")
    matches_well: bool | None = Field(description="Whether the best one fits as relevant ones do; none if not known.")
    note: str | None


class Said(BaseModel):
    """Words, and the seconds of the file at which they are said."""

    start: float
    stop: float
    text: str


class WholeMoment(Moment):
    """A moment with its words."""

    words: list[Said] = Field(description="In their order; of very many those that fit the query best.")
    num_words: int = Field(description="How many lines there are in all.")


class Assistants:
    """
    Answers to assistants.

    Args:
        service ([`~search.service.routes.Service`]): what they are answered from.
    """

    def __init__(self, service: Service):
        self._service = service
        self._tools = {
            "search": (SearchArguments, Moments, self._search),
            "get_moment": (MomentArguments, WholeMoment, self._moment),
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ASGIApp]:
        """What answers, as long as the service runs."""
        server = Server(
            "scalar-search",
            version="1",
            instructions=_INSTRUCTIONS,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        # Which hosts and pages may ask, the guard has told before.
        manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)
        async with manager.run():
            yield manager.handle_request

    async def _search(self, asked: SearchArguments) -> Moments:
        request = SearchRequest(query=asked.query, k=asked.k, modalities=asked.modalities, filter=asked.filters)
        answer = await find(request, self._service)
        told = answer.model_dump(include={"num_clips", "num_allowed", "certainty", "unknown", "matches_well", "note"})
        return Moments(hits=list(map(Moment.of, answer.hits)), **told)

    async def _moment(self, asked: MomentArguments) -> WholeMoment:
        found, cues, count = await moment(asked.key, asked.query, self._service)
        return WholeMoment(
            **Moment.of(found).model_dump(), words=[Said(**cue._asdict()) for cue in cues], num_words=count
        )

    async def _list(self, *_: Any) -> ListToolsResult:
        return ListToolsResult(
            tools=[
                Tool(
                    name=name,
                    description=arguments.__doc__,
                    input_schema=arguments.model_json_schema(),
                    output_schema=result.model_json_schema(),
                    annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
                )
                for name, (arguments, result, _) in self._tools.items()
            ]
        )

    async def _call(self, _: Any, params: Any) -> CallToolResult:
        if params.name not in self._tools:
            return _told(
                f"There is no tool {params.name!r:.100}; there are {' and '.join(self._tools)}.", is_error=True
            )
        arguments, _, tool = self._tools[params.name]
        try:
            result = await tool(arguments.model_validate(params.arguments or {}))
        except Exception as error:
            if isinstance(error, ValidationError):
                wrong = [{**one, "loc": ("arguments", *one["loc"])} for one in error.errors()]
                error = RequestValidationError(wrong)
            answer = await answer_of(None, error)
            if answer.status_code >= 500:
                logger.exception("An assistant could not be answered.")
            return _told(json.loads(answer.body)["error"], is_error=True)
        return _told(result.model_dump_json(), structured_content=result.model_dump(mode="json"))


def _told(text: str, **others: Any) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], **others)


__all__ = ["Assistants", "Moment", "Moments", "WholeMoment"]
