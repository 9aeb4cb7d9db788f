"""Addresses of tables of PostgreSQL, and of running services."""

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psycopg import sql

_ADDRESS = re.compile(
    r"(?P<server>postgresql://(?:[\w.-]+@)?[^@/?#\s]*/[\w.-]+)"
    r"/(?:(?P<schema>[A-Za-z_]\w{0,49})\.)?(?P<table>[A-Za-z_]\w{0,49})",
    re.ASCII,
)


@dataclass(frozen=True)
class TableAddress:
    """
    The address of a table, `postgresql://[USER@]HOST[:PORT][,HOST[:PORT]...]/DATABASE/[SCHEMA.]TABLE`.

    Args:
        server (`str`): as psycopg takes it, with the database; of several hosts, the first that answers is used.
        table (`str`), schema (`str`): by default `public`, whatever the search path.
    """

    server: str
    table: str
    schema: str = "public"

    @classmethod
    def parse(cls, text: str) -> "TableAddress":
        """Parse an address; raises a ValueError, which does not repeat it, as it may contain a secret."""
        # Passwords and options do not match, so that neither ends up in a message or a log.
        found = _ADDRESS.fullmatch(text)
        if found is None:
            raise ValueError(
                "Expected the address of a table, postgresql://[USER@]HOST[:PORT]/DATABASE/[SCHEMA.]TABLE, where the "
                "name of the table has at most 50 letters, digits and _. Put a password into PGPASSWORD or ~/.pgpass, "
                "and options, such as PGSSLMODE, into the environment."
            )
        return cls(found["server"], found["table"], found["schema"] or "public")

    @property
    def name(self) -> str:
        """The name for messages, without the user."""
        server = self.server.removeprefix("postgresql://").rpartition("@")[2]
        return f"{server}/{self.schema}.{self.table}"

    def at(self, host: str, port: str, suffix: str) -> "TableAddress":
        """The address of a table whose name begins like this one, in the same database of another server."""
        server = re.sub("//([^/]*@)?[^/]*", rf"//\g<1>{host}:{port}", self.server)
        return replace(self, server=server, table=self.table + suffix)

    def identifier(self, suffix: str = "") -> "sql.Identifier":
        """The name in SQL of the table, or of another one whose name begins like it."""
        from psycopg import sql

        return sql.Identifier(self.schema, self.table + suffix)


def is_address(text: str) -> bool:
    """Whether a text is the address of a table, not a folder."""
    return text.startswith("postgresql:/")  # a path leaves out the second slash


def is_service(text: str) -> bool:
    """Whether a text is the address of a running service, not a folder."""
    return text.startswith(("http://", "https://"))


__all__ = ["TableAddress", "is_address", "is_service"]
