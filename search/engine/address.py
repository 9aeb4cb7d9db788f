"""Where a collection is: `qdrant+http://HOST:6333/NAME`, `qdrant+https://...`, or `qdrant+file:///FOLDER/NAME`."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

PREFIX = "qdrant+"
KEY_VARIABLE = "QDRANT_API_KEY"
"""Names the variable that holds the key; an address never does."""

_PORTS = {"http": 6333, "https": 443}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_EXPECTED = f"{PREFIX}http://HOST:6333/NAME, {PREFIX}https://HOST/NAME or {PREFIX}file:///FOLDER/NAME"


@dataclass(frozen=True)
class Address:
    """
    Where a collection is.

    Args:
        server (`str`, *optional*): `http://HOST:PORT`, without a path.
        folder (`Path`, *optional*): of the collections that the client itself keeps, without a server.
        name (`str`): of the collection.
        is_approximate (`bool`): whether the engine's index is asked, not all of its vectors.
    """

    server: str | None
    folder: Path | None
    name: str
    is_approximate: bool = False

    @property
    def is_here(self) -> bool:
        """Whether what is sent there stays on this machine."""
        return self.server is None or urlsplit(self.server).hostname in ("127.0.0.1", "::1", "localhost")

    def __str__(self) -> str:
        place = f"file://{self.folder}" if self.server is None else self.server
        return f"{PREFIX}{place}/{self.name}" + ("?approximate" if self.is_approximate else "")


def is_address(text: str) -> bool:
    """Whether a text names a collection, and no folder."""
    return text.startswith(PREFIX)


def parse_address(text: str) -> Address:
    """
    Read an address.

    Raises:
        ValueError: it is none; no message repeats any of it, as there may be a secret in it, wherever it stands.
    """
    has_user = "@" in text and not text.startswith(f"{PREFIX}file:///")
    if has_user or re.search("key|token", text.partition("?")[2], re.IGNORECASE):
        raise ValueError(f"An address must hold no secrets. Put the key of the engine into {KEY_VARIABLE}.")
    try:
        parts = urlsplit(text.removeprefix(PREFIX))
        host, port = parts.hostname, parts.port
    except ValueError:  # which may repeat what it is about
        raise ValueError(
            f"The host of a collection's address is none, or its port no number. Expected {_EXPECTED}."
        ) from None
    if not is_address(text) or parts.scheme not in (*_PORTS, "file"):
        raise ValueError(f"Expected the address of a collection, {_EXPECTED}.")
    options = parse_qs(parts.query, keep_blank_values=True)
    if parts.fragment or set(options) - {"approximate"} or options.get("approximate", [""]) != [""]:
        raise ValueError(f"After the name of a collection only `?approximate` is known. Expected {_EXPECTED}.")
    folder, _, name = parts.path.rpartition("/")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"A collection must be named by at most 100 letters, digits and any of `._-`. Expected {_EXPECTED}."
        )
    if parts.scheme == "file":
        if host or not folder:
            raise ValueError(f"The folder of collections must be absolute, three slashes after `file:`: {_EXPECTED}.")
        return Address(None, Path(os.path.normpath(folder)), name, bool(options))
    if not host or folder:
        raise ValueError(f"Expected a host and the name of a collection, {_EXPECTED}.")
    host = f"[{host}]" if ":" in host else host
    return Address(f"{parts.scheme}://{host}:{port or _PORTS[parts.scheme]}", None, name, bool(options))


__all__ = ["KEY_VARIABLE", "PREFIX", "Address", "is_address", "parse_address"]
