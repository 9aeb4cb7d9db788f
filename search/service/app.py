"""The web application: page, API, tools for assistants, and the guard in front of them."""

import base64
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp

from . import routes
from .archive import Archive
from .guard import ASSISTANTS, Guard, Token
from .problems import ANSWERED, answer_of

_SCRIPTS = "https://cdn.jsdelivr.net"  # whence FastAPI's page of the API loads its script
PAGE = Path(__file__).with_name("page.html")

_page_router = APIRouter(include_in_schema=False)


def _hashes(page: str, tag: str) -> str:
    """What a page holds between tags, as sources of a content security policy."""
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    sources = []
    for text in found:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        sources.append(f"'sha256-{digest}'")
    return " ".join(sources)


@cache
def _page() -> tuple[str, dict[str, str]]:
    """The page and its response headers: it may run its own scripts and styles, and query this service."""
    # Scripts and styles are allowed by their hashes, so that no text of a gallery can ever run.
    page = PAGE.read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src {_hashes(page, 'script')}; style-src {_hashes(page, 'style')}; "
        "connect-src 'self'; "
        "media-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, {"content-security-policy": policy, "cache-control": "no-cache"}


@_page_router.api_route("/", methods=["GET", "HEAD"])
async def the_page() -> Response:
    """The page."""
    page, headers = _page()
    return HTMLResponse(page, headers=headers)


@_page_router.get("/docs")
async def the_reference() -> Response:
    """The usual page of an API; its script comes from another host, which the browser asks for it."""
    page = get_swagger_ui_html(
        openapi_url="api/openapi.json", title="SCALAR search: the API", swagger_favicon_url="data:,"
    )
    policy = (
        f"default-src 'none'; script-src {_SCRIPTS} {_hashes(page.body.decode(), 'script')}; connect-src 'self'; "
        f"style-src {_SCRIPTS} 'unsafe-inline'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
    )
    page.headers["content-security-policy"] = policy  # instead of the one that forbids all
    return page


async def _assistants(request: Request) -> ASGIApp:
    """The application that answers assistants."""
    if request.app.state.assistants is None:
        raise HTTPException(404, 'Assistants need `pip install "scalar-retrieval[mcp]"` on the server.')
    return request.app.state.assistants


@asynccontextmanager
async def _running(app: FastAPI) -> AsyncIterator[None]:
    """Answer assistants while the service runs."""
    service: routes.Service = app.state.service
    try:
        # The tools for assistants are an extra.
        async with AsyncExitStack() as stack:
            if find_spec("mcp") is not None:
                from .assistants import Assistants

                app.state.assistants = await stack.enter_async_context(Assistants(service).running())
            yield
    finally:
        service.end()


def build_app(
    archive: Archive,
    token: Token | None = None,
    names: tuple[str, ...] = (),
    is_public: bool = False,
) -> Guard:
    """
    Build the service.

    Args:
        archive ([`~scalar_retrieval.search.service.archive.Archive`]): the gallery to search.
        token ([`~scalar_retrieval.search.service.guard.Token`], *optional*): secret that requests must carry.
        names (`tuple[str, ...]`): host names that requests may use.
        is_public (`bool`): whether other sites may embed the page.

    Returns:
        An ASGI application.
    """
    api = FastAPI(
        title="SCALAR search",
        summary="Find clips of a gallery by text, and see which modality made them match.",
        version="1",
        docs_url=None,  # served below, with a policy of its own
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=_running,
    )
    # What the calls use, and how errors are answered
    api.state.service = routes.Service(archive, token)
    api.state.assistants = None
    for kind in ANSWERED:
        api.add_exception_handler(kind, answer_of)
    # The page, the calls, and the tools for assistants
    api.include_router(_page_router)
    api.include_router(routes.router)
    api.router.routes.append(Route(ASSISTANTS, _assistants, methods=["POST"], include_in_schema=False))
    return Guard(api, names, token, is_public)


__all__ = ["PAGE", "build_app"]
