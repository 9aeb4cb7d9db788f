"""Where a collection is: `qdrant+http://HOST:6333/NAME`, `qdrant+https://...`, `qdrant+file:///FOLDER/NAME`, or a
table of PostgreSQL, `postgresql://HOST/DATABASE/TABLE`. An address holds no secrets.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

PREFIX, TABLE_PREFIX = "qdrant+", "postgresql://"
KEY_VARIABLE = "QDRANT_API_KEY"
"""Names the variable that holds the key; an address never does."""

_PORTS = {"http": 6333, "https": 443}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_EXPECTED = f"{PREFIX}http://HOST:6333/NAME, {PREFIX}https://HOST/NAME or {PREFIX}file:///FOLDER/NAME"
_TABLE = re.compile(
    r"postgresql://(?:(?P<user>[\w.-]+)@)?(?P<hosts>[^@/?#\s]*)/(?P<database>[\w.-]+)"
    r"/(?:(?P<schema>[A-Za-z_][A-Za-z0-9_]{0,49})\.)?(?P<table>[A-Za-z_][A-Za-z0-9_]{0,49})"
)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:,\[\]]+)(?::(\d{1,5}))?")
_EXPECTED_TABLE = f"{TABLE_PREFIX}[USER@]HOST[:PORT]/DATABASE/[SCHEMA.]TABLE"


@dataclass(frozen=True)
class Address:
    """
    Where a collection of Qdrant is.

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


@dataclass(frozen=True)
class TableAddress:
    """
    Where a table of PostgreSQL is.

    Args:
        hosts (`tuple[tuple[str, str], ...]`): hosts and ports, of which the first that answers is asked: copies of one
            server. What is empty, or no host at all, is as the environment has it (`PGHOST`, `PGPORT`).
        database (`str`), table (`str`), schema (`str`, *optional*), user (`str`, *optional*).
    """

    hosts: tuple[tuple[str, str], ...]
    database: str
    table: str
    schema: str | None = None
    user: str | None = None

    @property
    def options(self) -> dict[str, str]:
        """Where and as whom to connect, as `psycopg.connect` takes it."""
        named = {"host": ",".join(host.strip("[]") for host, _ in self.hosts), "user": self.user}
        named["port"] = ",".join(port for _, port in self.hosts)
        return {name: value for name, value in named.items() if value and value.strip(",")} | {"dbname": self.database}

    @property
    def name(self) -> str:
        """What messages call it."""
        place = ",".join(f"{host}:{port}" if port else host for host, port in self.hosts)
        return f"{place}/{self.database}/{self.path}"

    @property
    def path(self) -> str:
        """The table, with its schema where that is given."""
        return f"{self.schema}.{self.table}" if self.schema else self.table

    def __str__(self) -> str:
        return f"{TABLE_PREFIX}{self.user + '@' if self.user else ''}{self.name}"


def is_address(text: str) -> bool:
    """Whether a text names collections, and no folder."""
    return text.startswith((PREFIX, TABLE_PREFIX))


def parse_tables(text: str) -> tuple[TableAddress, ...]:
    """
    Read the address of a table, or several with commas between them: the nodes that hold a gallery together.

    Raises:
        ValueError: it is none; no message repeats any of it, as there may be a secret in it, wherever it stands.
    """
    tables = []
    for one in re.split(f",(?={TABLE_PREFIX})", text):
        if re.search(r"://[^/]*:[^/]*@", one) or re.search("pass", one.partition("?")[2], re.IGNORECASE):
            raise ValueError("An address must hold no secrets. Put the password into PGPASSWORD, or ~/.pgpass.")
        found = _TABLE.fullmatch(one)
        hosts = [_HOST.fullmatch(host) for host in found["hosts"].split(",")] if found and found["hosts"] else []
        if found is None or None in hosts:
            raise ValueError(
                f"Expected the address of a table, {_EXPECTED_TABLE}, or several with commas between them; the table "
                "named by at most 50 letters, digits and _. What else a connection needs, PostgreSQL takes from the "
                "environment, as PGSSLMODE."
            )
        places = tuple((host[1], host[2] or "") for host in hosts)
        tables.append(TableAddress(places, found["database"], found["table"], found["schema"], found["user"]))
    if len(set(tables)) < len(tables):
        raise ValueError("An address names one table twice. Name each node once.")
    return tuple(tables)


def parse_address(text: str) -> Address:
    """
    Read the address of a collection of Qdrant.

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
    if not text.startswith(PREFIX) or parts.scheme not in (*_PORTS, "file"):
        raise ValueError(f"Expected the address of a collection, {_EXPECTED}, or of a table, {_EXPECTED_TABLE}.")
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


__all__ = [
    "KEY_VARIABLE",
    "PREFIX",
    "TABLE_PREFIX",
    "Address",
    "TableAddress",
    "is_address",
    "parse_address",
    "parse_tables",
]
