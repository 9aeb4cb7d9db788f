"""The server: where it listens, and how long it waits for whom."""

import asyncio
import errno
import ipaddress
import json
import os
import resource
import socket
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

TOKEN_VARIABLE = "SCALAR_SERVICE_TOKEN"

_HEAD_SECONDS = 15.0  # for the lines before the body, and for a body that nobody reads any more
_STALLED_SECONDS = 60.0  # without the client reading anything; a browser asks again for what it needs later
_IDLE_SECONDS = 15
_END_SECONDS = 2
_MOST_HEAD_BYTES = 2**15
_MOST_CONNECTIONS = 1000
_OWN_FILES = 128  # that the service itself has open


class Connection(H11Protocol):
    """A connection of which there are not too many, and which ends where the client keeps it waiting."""

    most: int = _MOST_CONNECTIONS
    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse what is too much."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._forget("_deadline")
        self._forget("_stalled")
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def _forget(self, name: str) -> None:
        timer = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)

    def _wait(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(_HEAD_SECONDS, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a head, however it trickles; a request that is being answered may take its time."""
        super().data_received(data)
        is_unread = self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY
        if self.conn.their_state is h11.IDLE or is_unread:
            self._wait()
        else:
            self._forget("_deadline")

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP; where it follows a request that is being answered, end without an answer."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        elif self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": "This is no HTTP request."}).encode()
            lines = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
            for event in (h11.Response(status_code=400, headers=lines), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()

    def pause_writing(self) -> None:
        """Wait for a client that does not read."""
        super().pause_writing()
        self._forget("_stalled")
        self._stalled = self.loop.call_later(_STALLED_SECONDS, self.transport.abort)

    def shutdown(self) -> None:
        """At the end, do not wait for a client that does not read."""
        super().shutdown()
        if self.flow.write_paused:
            self.transport.abort()

    def resume_writing(self) -> None:
        """It reads."""
        self._forget("_stalled")
        super().resume_writing()


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can reach an address or a name."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"The host {host!r} is not known here: {error.strerror}. Give an address.") from error
    return all(ipaddress.ip_address(address[0].partition("%")[0]).is_loopback for *_, address in found)


def listen(host: str, port: int) -> socket.socket:
    """
    Take the port.

    Raises:
        ValueError: it is taken, may not be taken, or the host is none of this machine.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise ValueError(f"Port {port} of {host} {why}. Choose another with --port, or --host.") from error
    return listener


def address_of(listener: socket.socket) -> str:
    """Where a browser finds it."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def read_token(file: Path | None) -> str | None:
    """
    Read the secret from a file or, without one, from the environment: a command line is seen by everybody.

    Raises:
        ValueError: the file cannot be read, or others can read it.
    """
    if file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip() or None
    try:
        with file.open(encoding="utf-8") as stream:
            mode, text = os.fstat(stream.fileno()).st_mode, stream.read(4096)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is no text; a token of printable ASCII was expected.") from error
    if mode & 0o077:
        raise ValueError(f"Others can read {file}. Keep the token to yourself: `chmod 600 {file}`.")
    if not text.strip():
        raise ValueError(f"{file} is empty; a token was expected.")
    return text.strip()


def make_server(app: Any) -> uvicorn.Server:
    """A server of an ASGI application that no client can fill up or keep waiting; `server.run(sockets=[...])`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:  # each may have a file open besides
        Connection.most = max(16, min(_MOST_CONNECTIONS, (soft - _OWN_FILES) // 2))
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,  # faults go where all else is logged
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_END_SECONDS,
        h11_max_incomplete_event_size=_MOST_HEAD_BYTES,
    )
    return uvicorn.Server(config)


__all__ = ["TOKEN_VARIABLE", "Connection", "address_of", "is_loopback", "listen", "make_server", "read_token"]
