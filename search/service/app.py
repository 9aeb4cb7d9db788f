"""The application: its calls, its page, and what stands before them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from . import page, routes
from .archive import Archive
from .guard import Guard, Token
from .problems import ANSWERED, answer_of
from .uploads import Uploads


@asynccontextmanager
async def _running(app: FastAPI) -> AsyncIterator[None]:
    """Embed what comes, as long as the service runs."""
    service: routes.Service = app.state.service
    if service.uploads is not None:
        service.uploads.start()
    try:
        yield
    finally:
        if service.uploads is not None:
            service.uploads.stop()
        service.threads.end()


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
    api = FastAPI(
        title="SCALAR search",
        summary="Find clips of a gallery by text, and see which modality made them match.",
        version="1",
        docs_url=None,  # pages that load their code from elsewhere
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=_running,
    )
    api.state.service = routes.Service(archive, uploads, token)
    for kind in ANSWERED:
        api.add_exception_handler(kind, answer_of)
    api.include_router(page.router)
    api.include_router(routes.router)
    api.include_router(routes.uploading, include_in_schema=uploads is not None)
    return Guard(api, names, token, 0 if uploads is None else uploads.most_bytes)


__all__ = ["build_app"]
