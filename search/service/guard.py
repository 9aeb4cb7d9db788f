"""The checks on every request: access, origin, size and number.

A page of another site can make a browser send requests to this machine. Such a page can read no answer: a domain name
that resolves to this machine is not accepted as `Host`, the browser says which site sent the request, and headers of
the response exclude other sites.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import problem

COOKIE = "scalar_search"
ASSISTANTS = "/mcp"
"""The path for assistants."""
SHORTEST_TOKEN = 16

MOST_REQUESTS = 256
"""Maximum number of requests whose answers are computed at once; as many others may still be sending their bodies."""
MOST_BYTES = 2**16
"""Maximum size of the body of a request."""
_BODY_SECONDS = 30.0  # until the whole body must have arrived
_RETRY_SECONDS = 1

_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",  # not for the page
}
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::\d{1,5})?", re.ASCII)


class Token:
    """
    The access token of the service.

    Args:
        secret (`str`): at least [`SHORTEST_TOKEN`] characters, printable ASCII.

    Raises:
        ValueError: it is too short, or has characters that cannot be sent.
    """

    def __init__(self, secret: str):
        if len(secret) < SHORTEST_TOKEN:
            raise ValueError(
                f"The token has {len(secret)} characters; it must have at least {SHORTEST_TOKEN}. Make one with "
                "`python -c 'import secrets; print(secrets.token_urlsafe())'`."
            )
        if not (secret.isascii() and secret.isprintable() and " " not in secret):
            raise ValueError("The token must consist of printable ASCII characters without spaces.")
        self._digest = hashlib.sha256(secret.encode()).digest()
        # The browser does not store the token itself, and the token cannot be derived from the cookie.
        self.cookie = hmac.new(secret.encode(), b"cookie of the search", hashlib.sha256).hexdigest()

    def accepts(self, headers: Headers) -> bool:
        """Whether a request carries the token, or the cookie for it."""
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        digest = hashlib.sha256(secret.strip().encode("utf-8", "replace")).digest()
        if scheme.lower() == "bearer" and hmac.compare_digest(digest, self._digest):
            return True
        # Not with `http.cookies`: its time grows quadratically with the length, and anybody may send this header.
        for cookie in headers.get("cookie", "").split(";"):
            name, _, given = cookie.strip().partition("=")
            if name == COOKIE:
                return hmac.compare_digest(given.encode("latin-1"), self.cookie.encode())
        return False


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _replaying(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns a body that was read, and then what the client does."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Message:
        if messages:
            return messages.pop()
        return await receive()  # which waits for the client to disconnect

    return receiving


def _is_asked(scope: Scope) -> bool:
    """Whether a request is for anything but the page, which is public."""
    return scope["path"].startswith("/api/") or scope["path"] == ASSISTANTS


class Guard:
    """
    An ASGI middleware.

    Args:
        app: the application.
        names (`Iterable[str]`): accepted hostnames of this machine, next to any address and `localhost`.
        token ([`Token`], *optional*): required for anything but the page itself.
        is_public (`bool`): whether other sites may embed the page in a frame, as the Hub does for a Space.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str], token: Token | None, is_public: bool):
        self._app = app
        self._token = token
        self._is_public = is_public
        self._names = {"localhost", *(name.lower() for name in names)}
        self.num_running = 0
        self._arriving: dict[asyncio.Timeout, None] = {}  # the bodies that are awaited, the oldest first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        # Refuse what comes from elsewhere, or lacks the token.
        send = self._with_headers(send)
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            return await problem(*refusal)(scope, receive, send)
        # The page is in memory, and needs no limit.
        if not _is_asked(scope):
            return await self._app(scope, receive, send)
        # The body comes first: whoever sends it slowly must not take a place from others.
        try:
            body = await self._body_of(scope, receive)
        except ClientDisconnect:
            return  # there is nobody to answer
        except HTTPException as error:
            return await problem(error.status_code, error.detail)(scope, receive, send)
        # Then answer a limited number of requests at a time.
        if self.num_running >= MOST_REQUESTS:
            retry = {"retry-after": str(_RETRY_SECONDS)}
            busy = problem(429, f"The service is busy with {MOST_REQUESTS} requests. Try again.", retry)
            return await busy(scope, receive, send)
        with ExitStack() as place:
            self.num_running += 1
            place.callback(self._leave)

            # Whoever reads an answer slowly takes no place from others either.
            async def sending(message: Message) -> None:
                place.close()
                await send(message)

            with suppress(ClientDisconnect):
                await self._app(scope, _replaying(body, receive), sending)

    def _leave(self) -> None:
        self.num_running -= 1

    async def _body_of(self, scope: Scope, receive: Receive) -> bytes:
        """Receive the body of a request. Raises an HTTPException if it is too long, does not arrive in time, or must
        make room for others, and a ClientDisconnect if the client leaves."""
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS) as limit:
                self._arriving[limit] = None
                # Where too many are awaited, the time of the oldest ends now.
                if len(self._arriving) > MOST_REQUESTS:
                    oldest = next(iter(self._arriving))
                    del self._arriving[oldest]
                    if not oldest.expired():
                        oldest.reschedule(0)
                async for piece in Request(scope, receive).stream():
                    body += piece
                    if len(body) > MOST_BYTES:
                        raise HTTPException(413, f"Expected at most {MOST_BYTES} bytes in the body, got more.")
        except TimeoutError:
            raise HTTPException(408, "The body of the request was not sent in time. Try again.") from None
        finally:
            self._arriving.pop(limit, None)
        return bytes(body)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        # A domain name of another site that resolves to this machine is not accepted.
        hosts = headers.getlist("host")
        host = ""
        if len(hosts) == 1:
            found = _HOST.fullmatch(hosts[0].lower())
            if found is not None:
                host = found[1].strip("[]")
        if not (host in self._names or _is_address(host)):
            name = f"the name {host!r:.100}" if host else "no name"
            return 400, f"The request has {name} for this machine. Use its address, or start with --hostname NAME."
        # Browsers send the origin of the page; other programs do not.
        origin = headers.get("origin")
        is_navigation = scope["method"] == "GET" and scope["path"] == "/"
        is_foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site") and not is_navigation
        if is_foreign or (origin is not None and origin.lower().partition("://")[2] != hosts[0].lower()):
            return 403, "The request comes from a page of another site."
        # Open to all: the page, and the call that exchanges the token for a cookie, as it checks the token itself.
        is_open = not _is_asked(scope) or scope["path"] == "/api/session"
        if self._token is not None and not is_open and not self._token.accepts(headers):
            return 401, "A token is needed. Send it as `Authorization: Bearer TOKEN`, or enter it on the page."
        return None

    def _with_headers(self, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                if message["status"] >= 400:
                    await asyncio.sleep(0)  # the server may have refused the body, and be about to close
                # Answers may have headers of their own, which stay.
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if self._is_public:
                    policy = headers["content-security-policy"]
                    headers["content-security-policy"] = policy.replace("frame-ancestors 'none'", "frame-ancestors *")
                    del headers["x-frame-options"]
                if headers.get("content-type", "").startswith("application/json"):
                    headers.setdefault("cache-control", "no-store")
                if message["status"] == 401:
                    headers.setdefault("www-authenticate", "Bearer")
            await send(message)

        return sending


__all__ = [
    "ASSISTANTS",
    "COOKIE",
    "MOST_BYTES",
    "MOST_REQUESTS",
    "SHORTEST_TOKEN",
    "Guard",
    "Token",
]
