"""Copies a gallery into a table of PostgreSQL, in one transaction; only new and changed clips are written.

Nodes are servers of their own: each has a table of its clips, and the server of the address has a table that is
partitioned over them, by list, in foreign tables of `postgres_fdw`. What runs on the nodes must be in extensions
there, so that `scalar_score` and `scalar_best` are in the extension `scalar`, two files that [`write_extension`]
writes.
"""

import os
import re
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from getpass import getuser
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql
from tqdm import tqdm

from gallery.columns import embeds_of, presence_of, texts_of
from gallery.described import LEAST_SCORE, MODALITIES
from gallery.filters import _NO_DATE
from gallery.gallery import Gallery
from gallery.windows import SEGMENT

from .postgresql import (
    FACTS,
    FUNCTIONS,
    OWN_COLUMNS,
    VECTORS,
    WORDS_SUM,
    Pushed,
    Row,
    Table,
    TableAddress,
    gram_of,
)

_AT_ONCE = 2048  # rows
_TIMEOUT = 3600
_REPEATED = ("model", "fingerprint", "query_temperature", "score_options", LEAST_SCORE, SEGMENT)
"""What the table repeats of a gallery's metadata."""
_COPIED = tuple(name for name in OWN_COLUMNS if name not in ("_about", "_words_sum", "_sum"))
_CONTROL = """\
comment = 'SCALAR''s score of clips, and the list of the best'
default_version = '1'
relocatable = true
"""


# Vectors stay in their rows, because a scan reads them all.
_TABLE = """\
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE {own} ({columns}, PRIMARY KEY (_id)) WITH (toast_tuple_target = 8160);
CREATE INDEX ON {own} USING hash (clip_id);
CREATE INDEX ON {own} USING hash (_path)"""
_SCALAR = """\
CREATE EXTENSION IF NOT EXISTS vector;
CREATE EXTENSION IF NOT EXISTS scalar;
"""
_PARTITIONED = """\
CREATE EXTENSION IF NOT EXISTS postgres_fdw;
CREATE TABLE {table} ({columns}) PARTITION BY LIST (_node)"""
# The costs make it never cheaper to aggregate the rows of a node here.
_NODE = """\
CREATE SERVER IF NOT EXISTS {server} FOREIGN DATA WRAPPER postgres_fdw OPTIONS (
    host {host}, port {port}, dbname {database}, async_capable 'true', extensions 'vector,scalar',
    batch_size '500', fdw_tuple_cost '1000', connect_timeout '5', options '-c jit=off'
);
CREATE USER MAPPING IF NOT EXISTS FOR CURRENT_USER SERVER {server} OPTIONS (user {user}, password {password});
CREATE FOREIGN TABLE {part} PARTITION OF {table} FOR VALUES IN ({node})
    SERVER {server} OPTIONS (schema_name {schema}, table_name {name})"""


@dataclass
class PushReport:
    """The numbers of clips added, changed, left alone, and removed."""

    new: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0


def write_extension(folder: str | os.PathLike) -> None:
    """Write the two files of the extension `scalar`, which belong into the folder `extension` of every server."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, "scalar.control").write_text(_CONTROL)
    Path(folder, "scalar--1.sql").write_text(FUNCTIONS.read_text())


def pushed_of(gallery: Gallery, nodes: Sequence[str] = ("",)) -> Pushed:
    """What the table will have of a gallery, without clips yet; without paths, except that of the model."""
    if gallery.dim is None:
        raise ValueError(f"{gallery.path} holds no clips.")
    metadata = {name: gallery.metadata[name] for name in _REPEATED if gallery.metadata.get(name) is not None}
    metadata[MODALITIES] = list(gallery.modalities)
    return Pushed(0, dict.fromkeys(nodes, 0), gallery.dim, gallery.dtype, metadata)


def rows_of(gallery: Gallery) -> Iterator[Row]:
    """The clips of a gallery, in order."""
    known = gallery.searcher.clip_facts
    seconds, changed, words = known.seconds.tolist(), known.changed.tolist(), zip(*known.words(), strict=True)
    number = 0
    for batch in gallery.clips.to_batches(_AT_ONCE):
        table = pa.Table.from_batches([batch])
        columns = texts_of(table, "clip_id"), embeds_of(table).numpy(), presence_of(table).numpy()
        places = gallery.places_of(columns[0])
        for name, place, vectors, mask in zip(columns[0], places, *columns[1:], strict=True):
            said, is_all = next(words)
            length = None if np.isnan(seconds[number]) else seconds[number]
            date = None if changed[number] == _NO_DATE else changed[number] // 1000
            facts = (name, place.path, length, date, said.replace("\0", "\ufffd"), is_all)
            yield Row(facts, vectors, mask)
            number += 1


# Tables --------------------------------------------------------------------------------------------------------------


def tables_of(address: TableAddress, pushed: Pushed, nodes: Sequence[str]) -> list[tuple[str, sql.Composable]]:
    """
    SQL that makes the tables of a gallery.

    Args:
        address ([`TableAddress`]), pushed ([`Pushed`]): where, and for what.
        nodes (`list[str]`): servers with the same database and user, `HOST` or `HOST:PORT`; without them, one table
            at the address.

    Returns:
        The statements in order, each with the node that runs it, `""` for the server of the address.
    """
    kinds = OWN_COLUMNS | dict.fromkeys(pushed.modalities, f"{VECTORS[pushed.dtype][0]}({pushed.dim})")
    columns = sql.SQL(", ").join(sql.SQL(f"{{}} {kind}").format(sql.Identifier(name)) for name, kind in kinds.items())
    if not nodes:
        return [("", sql.SQL(_TABLE).format(own=address.identifier(), columns=columns))]
    statements = []
    for number, node in enumerate(nodes):
        own = address.identifier(f"_{number}")
        statements.append((node, sql.SQL(_SCALAR + _TABLE).format(own=own, columns=columns)))
    table = address.identifier()
    statements.append(("", sql.SQL(_SCALAR + _PARTITIONED).format(table=table, columns=columns)))
    info = psycopg.conninfo.conninfo_to_dict(address.server)
    for number, node in enumerate(nodes):
        values = {
            **_place_of(node),
            "node": node,
            "database": info["dbname"],
            "user": info.get("user", getuser()),
            "password": os.environ.get("PGPASSWORD", ""),
            "schema": address.schema or "public",
            "name": f"{address.table}_{number}",
        }
        part = address.identifier(f"_at_{number}")
        statements.append(("", sql.SQL(_NODE).format(server=sql.Identifier(node), table=table, part=part, **values)))
    return statements


def _place_of(node: str) -> dict[str, str]:
    host, _, port = node.partition(":")
    return {"host": host, "port": port or "5432"}


def make_tables(address: TableAddress, pushed: Pushed, nodes: Sequence[str], show: Callable[[str], None]) -> None:
    """Make the tables of a gallery, and show the SQL, without passwords."""
    for node, statement in tables_of(address, pushed, nodes):
        shown = re.sub("password '(?:[^']|'')*'", "password '...'", statement.as_string())
        show(f"-- on {node or address.name}\n{shown};")
        info = psycopg.conninfo.conninfo_to_dict(address.server)
        if node:
            info |= _place_of(node)
        with Table(address).errors(), psycopg.connect(**info, connect_timeout=10) as connection:
            connection.execute(statement)


# Rows ----------------------------------------------------------------------------------------------------------------


def push(
    gallery: Gallery,
    address: TableAddress,
    nodes: Sequence[str] = (),
    show: Callable[[str], None] = lambda line: None,
    progress: bool = False,
) -> PushReport:
    """
    Copy a gallery into a table, which is made if it is missing: write new and changed clips, and remove those that the
    gallery no longer has. Rows that others changed or added are replaced or removed.

    Args:
        gallery ([`~gallery.gallery.Gallery`]), address ([`~search.postgresql.TableAddress`]).
        nodes (`list[str]`): of a new table, the servers that it is partitioned over, see [`tables_of`].
        show (`Callable`): is given every statement that makes tables.
        progress (`bool`): show a progress bar.

    Raises:
        ValueError: the table holds vectors of another model, dimension or precision, or something else.
        TableError: a server does not answer, or refuses a statement.
    """
    table = Table(address, _TIMEOUT)
    try:
        with table.transaction() as connection:
            name = address.identifier().as_string(connection)
            is_new = table.run(connection, "SELECT to_regclass(%s)", [name]) == [(None,)]
        if nodes and not is_new:
            raise ValueError(f"{table.name} exists: --nodes is for a new table.")
        if is_new:
            make_tables(address, pushed_of(gallery), nodes, show)
        with table.transaction("READ WRITE") as connection:
            table.run(connection, "SELECT pg_advisory_xact_lock(hashtext('scalar push'))")  # one at a time
            return _Push(table, connection, gallery).run(progress)
    finally:
        table.close()


class _Push:
    """A push, in a transaction."""

    def __init__(self, table: Table, connection: psycopg.Connection, gallery: Gallery):
        self.table, self.connection, self.gallery = table, connection, gallery
        parts = self.execute(
            "SELECT pg_get_expr(relpartbound, oid) FROM pg_class JOIN pg_inherits ON inhrelid = oid "
            "WHERE inhparent = to_regclass(%s) ORDER BY oid",
            [table.address.identifier().as_string(connection)],
        )
        # A partition is `FOR VALUES IN ('node')`; a table without partitions has the node ''.
        self.nodes = [bound.split("'")[1] for (bound,) in parts] or [""]
        self.pushed = pushed_of(gallery, self.nodes)
        self.report = PushReport()

    def execute(self, statement: str, values: Any = None, **parts: Any) -> list[tuple]:
        """Run a statement, see [`~search.postgresql.Table.run`]; it may use the hashes of a row."""
        if "{sum}" in statement:
            parts |= {"sum": self.pushed.sum(), "words_sum": WORDS_SUM}
        return self.table.run(self.connection, statement, values, **parts)

    def run(self, progress: bool) -> PushReport:
        """Write what is new or changed, and then the version."""
        before = self.before()
        if not self.execute("SELECT FROM pg_extension WHERE extname = 'scalar'"):
            with self.table.errors():
                self.connection.execute(FUNCTIONS.read_text())
        self.execute("CREATE TEMP TABLE pushed (LIKE {table}) ON COMMIT DROP")
        known, gone = self.known()
        used = {number for number, *_ in known.values()}
        next_number = max(used, default=-1) + 1
        last = -1
        counts = dict.fromkeys(self.nodes, 0)
        waiting: list[tuple[str, int, Row]] = []
        for row in tqdm(rows_of(self.gallery), total=len(self.gallery), unit="clip", disable=not progress or None):
            node = self.nodes[zlib.crc32(row.clip_id.encode()) % len(self.nodes)]
            counts[node] += 1
            number, *stored = known.pop(row.clip_id, (-1,))
            if number > last and stored == [node, row.digest()]:
                self.report.unchanged += 1
                last = number
                continue
            if stored:
                self.report.changed += 1
                gone.append(number)
            else:
                self.report.new += 1
            # Numbers increase in the order of the gallery, which orders equal scores.
            if number <= last:
                number = last + 1 if last + 1 not in used else next_number
            last = number
            next_number = max(next_number, last + 1)
            waiting.append((node, number, row))
            if len(waiting) == _AT_ONCE:
                self.remove(gone)
                self.write(waiting)
                gone, waiting = [], []
        self.report.removed = len(known)
        self.remove(gone + [number for number, *_ in known.values()])
        if waiting:
            self.write(waiting)
        self.write_version(before, counts)
        return self.report

    def before(self) -> int:
        """The version that was pushed before, 0 for a new table; a ValueError if this gallery cannot replace it."""
        found = self.execute("SELECT _about FROM {table} WHERE _id = -1 AND _about IS NOT NULL")
        states = [Pushed.parse(about, self.table.name) for (about,) in found]
        for state in states:
            different = state.differences(self.pushed)
            if different:
                raise ValueError(
                    f"{self.table.name} holds vectors of {state.metadata.get('model')!r}, which differ from those of "
                    f"{self.gallery.path} in {', '.join(different)}. They cannot be compared. Choose another name."
                )
        return max((state.version for state in states), default=0)

    def known(self) -> tuple[dict[str, tuple[int, str, str | None]], list[int]]:
        """Number, node and digest of each clip by its name, and the numbers of rows that are not clips. The digest of
        a row that others changed is None."""
        known: dict[str, tuple[int, str, str | None]] = {}
        strange = []
        for clip_id, number, *stored in self.execute(
            "SELECT clip_id, _id, _node, CASE WHEN _sum = {sum} AND _words_sum = {words_sum} THEN _digest END "
            "FROM {table} WHERE _id <> -1"
        ):
            if clip_id is None or clip_id in known or number < 0:
                strange.append(number)
            else:
                known[clip_id] = (number, *stored)
        return known, strange

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove rows."""
        if numbers:
            self.execute("DELETE FROM {table} WHERE _id = ANY(%s)", [list(numbers)])

    def write(self, waiting: Sequence[tuple[str, int, Row]]) -> None:
        """Write new rows."""
        names = sql.SQL(", ").join(map(sql.Identifier, (*_COPIED, *self.pushed.modalities)))
        head = self.pushed.dim.to_bytes(2, "big") + b"\0\0"
        vectors = np.stack([row.vectors for *_, row in waiting])
        sent = vectors.astype(VECTORS[self.pushed.dtype][1])
        copy = sql.SQL("COPY pushed ({}) FROM STDIN (FORMAT BINARY)").format(names)
        with self.table.errors(), self.connection.cursor().copy(copy) as copied:
            copied.set_types([*(OWN_COLUMNS[name] for name in _COPIED), *["bytea"] * len(self.pushed.modalities)])
            for (node, number, row), gram, own in zip(waiting, gram_of(vectors).tolist(), sent, strict=True):
                values = dict(zip(FACTS, row.facts, strict=True))
                values |= {"_node": node, "_id": number, "_digest": row.digest(), "_gram": gram}
                stored = [head + vector.tobytes() if has else None for vector, has in zip(own, row.mask, strict=True)]
                copied.write_row([*(values[name] for name in _COPIED), *stored])
        self.insert()

    def insert(self) -> None:
        """Move rows from the temporary table into that of the clips, with their hashes."""
        names = sql.SQL(", ").join(map(sql.Identifier, (*_COPIED, "_about", *self.pushed.modalities)))
        self.execute(
            "INSERT INTO {table} ({names}, _words_sum, _sum) SELECT {names}, _words_sum, {sum} "
            "FROM (SELECT {names}, {words_sum} AS _words_sum FROM pushed) AS rows",
            names=names,
        )
        self.execute("TRUNCATE pushed")

    def write_version(self, before: int, counts: dict[str, int]) -> None:
        """Replace the rows with what was pushed, unless they are right."""
        same = replace(self.pushed, version=before, num_clips=counts).text()
        found = self.execute("SELECT _node FROM {table} WHERE _id = -1 AND _sum = {sum} AND _about = %s", [same])
        is_same = self.report == PushReport(unchanged=self.report.unchanged)
        if is_same and sorted(node for (node,) in found) == sorted(self.nodes):
            return
        version = max(before + 1, time.time_ns() // 10**6)
        text = replace(self.pushed, version=version, num_clips=counts).text()
        self.execute("DELETE FROM {table} WHERE _id = -1")
        for node in self.nodes:
            self.execute("INSERT INTO pushed (_node, _id, _about) VALUES (%s, -1, %s)", [node, text])
        self.insert()


def verify_table(address: TableAddress) -> int:
    """
    Check every row of a table on its server: counts, version and hashes; then read every clip.

    Returns:
        The number of clips.

    Raises:
        DamagedTableError: something is not as it was pushed.
    """
    table = Table(address, _TIMEOUT)
    try:
        pushed = table.check()
        with table.transaction() as connection:
            numbers = [number for (number,) in table.run(connection, "SELECT _id FROM {table} WHERE _id >= 0")]
            for start in range(0, len(numbers), _AT_ONCE):
                table.rows(connection, pushed, "_id = ANY(%s)", [numbers[start : start + _AT_ONCE]])
    finally:
        table.close()
    return len(numbers)


__all__ = ["PushReport", "push", "tables_of", "verify_table", "write_extension"]
