"""Addresses of collections: `qdrant+http://HOST:6333/NAME`, `qdrant+https://...`, `qdrant+file:///FOLDER/NAME`, and
of PostgreSQL tables: `postgresql://HOST/DATABASE/TABLE`. An address contains no secrets.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

PREFIX, TABLE_PREFIX = "qdrant+", "postgresql://"
KEY_VARIABLE = "QDRANT_API_KEY"
"""The environment variable with the API key; an address never contains it."""

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
    The address of a Qdrant collection.

    Args:
        server (`str`, *optional*): `http://HOST:PORT`, without a path.
        folder (`Path`, *optional*): folder of collections that the client itself stores, without a server.
        name (`str`): name of the collection.
        is_approximate (`bool`): search the engine's index, not all of its vectors.
    """

    server: str | None
    folder: Path | None
    name: str
    is_approximate: bool = False

    @property
    def is_here(self) -> bool:
        """Whether what is sent to it stays on this machine."""
        return self.server is None or urlsplit(self.server).hostname in ("127.0.0.1", "::1", "localhost")

    def __str__(self) -> str:
        place = f"file://{self.folder}" if self.server is None else self.server
        return f"{PREFIX}{place}/{self.name}" + ("?approximate" if self.is_approximate else "")


@dataclass(frozen=True)
class TableAddress:
    """
    The address of a PostgreSQL table.

    Args:
        hosts (`tuple[tuple[str, str], ...]`): hosts and ports of copies of one server; the first that answers is used.
            Empty values, or no host at all, are taken from the environment (`PGHOST`, `PGPORT`).
        database (`str`), table (`str`), schema (`str`, *optional*), user (`str`, *optional*).
    """

    hosts: tuple[tuple[str, str], ...]
    database: str
    table: str
    schema: str | None = None
    user: str | None = None

    @property
    def options(self) -> dict[str, str]:
        """The connection parameters for `psycopg.connect`."""
        named = {"host": ",".join(host.strip("[]") for host, _ in self.hosts), "user": self.user}
        named["port"] = ",".join(port for _, port in self.hosts)
        return {name: value for name, value in named.items() if value and value.strip(",")} | {"dbname": self.database}

    @property
    def name(self) -> str:
        """The name used in messages."""
        place = ",".join(f"{host}:{port}" if port else host for host, port in self.hosts)
        return f"{place}/{self.database}/{self.path}"

    @property
    def path(self) -> str:
        """The table, with its schema if given."""
        return f"{self.schema}.{self.table}" if self.schema else self.table

    def __str__(self) -> str:
        return f"{TABLE_PREFIX}{self.user + '@' if self.user else ''}{self.name}"


def is_address(text: str) -> bool:
    """Whether a text is the address of a collection, not a folder."""
    return text.startswith((PREFIX, TABLE_PREFIX))


def parse_tables(text: str) -> tuple[TableAddress, ...]:
    """
    Parse the address of a table, or several separated by commas: the nodes that share a gallery.

    Raises:
        ValueError: it is not valid. No message repeats any part of it, as it may contain a secret anywhere.
    """
    tables = []
    for one in re.split(f",(?={TABLE_PREFIX})", text):
        if re.search(r"://[^/]*:[^/]*@", one) or re.search("pass", one.partition("?")[2], re.IGNORECASE):
            raise ValueError("An address must not contain secrets. Put the password into PGPASSWORD or ~/.pgpass.")
        found = _TABLE.fullmatch(one)
        hosts = [_HOST.fullmatch(host) for host in found["hosts"].split(",")] if found and found["hosts"] else []
        if found is None or None in hosts:
            raise ValueError(
                f"Expected the address of a table, {_EXPECTED_TABLE}, or several separated by commas; a table's name "
                "has at most 50 letters, digits and _. Set other connection options, such as PGSSLMODE, in the "
                "environment."
            )
        places = tuple((host[1], host[2] or "") for host in hosts)
        tables.append(TableAddress(places, found["database"], found["table"], found["schema"], found["user"]))
    if len(set(tables)) < len(tables):
        raise ValueError("An address names the same table twice. Name each node once.")
    return tuple(tables)


def parse_address(text: str) -> Address:
    """
    Parse the address of a Qdrant collection.

    Raises:
        ValueError: it is not valid. No message repeats any part of it, as it may contain a secret anywhere.
    """
    has_user = "@" in text and not text.startswith(f"{PREFIX}file:///")
    if has_user or re.search("key|token", text.partition("?")[2], re.IGNORECASE):
        raise ValueError(f"An address must not contain secrets. Put the key of the engine into {KEY_VARIABLE}.")
    try:
        parts = urlsplit(text.removeprefix(PREFIX))
        host, port = parts.hostname, parts.port
    except ValueError:  # whose message may repeat the address
        raise ValueError(f"A collection's address has an invalid host or port. Expected {_EXPECTED}.") from None
    if not text.startswith(PREFIX) or parts.scheme not in (*_PORTS, "file"):
        raise ValueError(f"Expected the address of a collection, {_EXPECTED}, or of a table, {_EXPECTED_TABLE}.")
    options = parse_qs(parts.query, keep_blank_values=True)
    if parts.fragment or set(options) - {"approximate"} or options.get("approximate", [""]) != [""]:
        raise ValueError(f"Only `?approximate` may follow the name of a collection. Expected {_EXPECTED}.")
    folder, _, name = parts.path.rpartition("/")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"A collection's name has at most 100 letters, digits and any of `._-`. Expected {_EXPECTED}."
        )
    if parts.scheme == "file":
        if host or not folder:
            raise ValueError(f"Expected an absolute folder, with three slashes after `file:`: {_EXPECTED}.")
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
