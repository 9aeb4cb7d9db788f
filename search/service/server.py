"""The server: its address and its connections."""

import asyncio
import errno
import ipaddress
import math
import os
import socket
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

_END_SECONDS = 2
_MOST_HEAD_BYTES = 2**15
_MOST_CONNECTIONS = 1000
_IDLE_SECONDS = 10  # until a request must have begun, with all of its head


def _addresses_of(host: str, port: int | None, flags: int = 0) -> list[tuple]:
    """The addresses of a host, see `socket.getaddrinfo`."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except OSError as error:
        raise ValueError(f"The host {host!r} cannot be resolved: {error.strerror}. Give an address.") from error


def is_loopback(host: str) -> bool:
    """Whether an address or hostname can only be reached from this machine."""
    for *_, address in _addresses_of(host, None):
        number, _, _ = address[0].partition("%")  # without the name of an interface
        if not ipaddress.ip_address(number).is_loopback:
            return False
    return True


def listen(host: str, port: int) -> socket.socket:
    """
    Listen on a port.

    Raises:
        ValueError: it is in use or not allowed, or the host is not an address of this machine.
    """
    family, *_, address = _addresses_of(host, port, socket.AI_PASSIVE)[0]
    # An address of IPv6 that stands for all addresses of this machine is also for those of IPv4.
    is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(address, family=family, backlog=1024, dualstack_ipv6=is_dual)
    except OSError as error:
        why = f"cannot be used ({os.strerror(error.errno)})"
        if error.errno == errno.EADDRINUSE:
            why = "is already in use"
        raise ValueError(f"Port {port} of {host} {why}. Choose another with --port, or --host.") from error


def address_of(listener: socket.socket) -> str:
    """The URL for a browser."""
    host, port = listener.getsockname()[:2]
    # Browsers cannot connect to an address that stands for all addresses of a machine.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    if ":" in host:
        host = f"[{host}]"
    return f"http://{host}:{port}/"


class _Connection(H11Protocol):
    """
    A connection that is closed if the head of a request does not arrive in time, or if others need its place.

    Args:
        most (`int`): number of connections. Where there are more, the one that has waited longest for a request, or
            for an answer to be read, is closed.
    """

    def __init__(self, *arguments: Any, most: int, **options: Any):
        super().__init__(*arguments, **options)
        self._most = most

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Wait for the first request, and make room."""
        # uvicorn itself waits for the first request without a limit.
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        # Close the one that has waited longest for its client. One that was closed stays open until its last answer is
        # read.
        still_open = []
        for connection in self.connections:
            if not connection.transport.is_closing() or connection.transport.get_write_buffer_size():
                still_open.append(connection)
        if len(still_open) > self._most:
            min(still_open, key=_Connection._waits_since).transport.abort()

    def pause_writing(self) -> None:
        """Note when the client stopped reading."""
        super().pause_writing()
        self._paused = self.loop.time()

    def _waits_since(self) -> float:
        """Since when it waits for its client to send a request or to read an answer; infinity if it does not."""
        if self.transport.is_closing():
            return -math.inf
        if self.flow.write_paused:
            return self._paused
        if self.timeout_keep_alive_task is not None:
            return self.timeout_keep_alive_task.when() - self.timeout_keep_alive
        return math.inf

    def data_received(self, data: bytes) -> None:
        """Read on. Only a whole head of a request ends the wait; in the class above, any byte does."""
        self.conn.receive_data(data)
        self.handle_events()


class _Server(uvicorn.Server):
    """A server that exits normally on a signal."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop without raising the signal again afterwards."""
        self.should_exit = True


def make_server(
    app: Any,
    idle_seconds: float = _IDLE_SECONDS,
    most_connections: int = _MOST_CONNECTIONS,
) -> uvicorn.Server:
    """
    Make a server; `server.run(sockets=[...])` runs it.

    Args:
        app: an ASGI application.
        idle_seconds (`float`): how long a connection may wait for the head of a request.
        most_connections (`int`): number of connections; where there are more, the one that has waited longest for
            its client is closed.
    """
    # No other protocol, no log of requests, and no header that names the server
    config = uvicorn.Config(
        app,
        http=partial(_Connection, most=most_connections),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,  # errors go to the root logger
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=idle_seconds,
        timeout_graceful_shutdown=_END_SECONDS,
        h11_max_incomplete_event_size=_MOST_HEAD_BYTES,
    )
    return _Server(config)


__all__ = ["address_of", "is_loopback", "listen", "make_server"]
