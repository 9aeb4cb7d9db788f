"""The page: one file that runs what is in it, and asks nobody but this service."""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from .media import is_known

PAGE = Path(__file__).with_name("page.html")

router = APIRouter(include_in_schema=False)


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


@cache
def _page() -> tuple[str, dict[str, str]]:
    """The page, and the headers that it is answered with."""
    page = PAGE.read_text(encoding="utf-8")
    version = hashlib.sha256(page.encode()).hexdigest()[:32]
    return page, {
        "content-security-policy": _content_policy(page),
        "cache-control": "no-cache",
        "etag": f'"{version}"',
    }


@router.api_route("/", methods=["GET", "HEAD"])
async def the_page(request: Request) -> Response:
    """The page; nothing if the browser has this version of it."""
    page, headers = _page()
    if is_known(request.headers, headers["etag"]):
        return Response(status_code=304, headers=headers)
    return HTMLResponse(page, headers=headers)


@router.get("/favicon.ico")
async def no_icon() -> Response:
    """Nothing: the page has its icon in it."""
    return Response(status_code=204)


__all__ = ["PAGE", "router"]
