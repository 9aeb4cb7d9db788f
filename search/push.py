"""Copies a gallery into a table of PostgreSQL, in one transaction; only new and changed clips are written.

Nodes are servers of their own: each has a table of its clips, and the server of the address has a table that is
partitioned over them, by list, in foreign tables of `postgres_fdw`. What runs on the nodes must be in extensions
there, so that the functions of `scoring.sql` are in the extension `scalar`, two files that [`write_extension`] writes.
"""

import os
import re
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import torch
from psycopg import sql
from tqdm import tqdm

from scalar_retrieval.gallery.exact.blocks import inverses_of
from scalar_retrieval.gallery.exact.clip_facts import NO_DATE
from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.gallery.store.columns import embeds_of, presence_of
from scalar_retrieval.gallery.store.described import LEAST_SCORE, MODALITIES, SLICES
from scalar_retrieval.gallery.store.rows import texts_of
from scalar_retrieval.gallery.store.windows import SEGMENT
from scalar_retrieval.modeling_scalar.scores_scalar import MIN_NORM

from .addresses import TableAddress
from .postgresql import (
    FACTS,
    FUNCTIONS,
    OWN_COLUMNS,
    VECTORS,
    DatabaseTable,
    Pushed,
    Row,
)

_AT_ONCE = 2048  # rows
_PROMPT = 60  # seconds in which a node must answer a short statement
_TIMEOUT = 3600
_HIGHEST = 2**62  # number of a clip
_REPEATED = ("model", "fingerprint", "query_temperature", "score_options", LEAST_SCORE, SEGMENT, SLICES)
"""What the table repeats of a gallery's metadata."""
_COPIED = ("_node", "_id", "_digest", "_gram", "_rho", *FACTS)
_CONTROL = """\
comment = 'SCALAR''s score of clips, and the list of the best'
default_version = '1'
relocatable = false
schema = scalar
"""


# Vectors stay in their rows, because a scan reads them all.
_TABLE = """\
CREATE EXTENSION IF NOT EXISTS vector SCHEMA {vector};
CREATE TABLE {table} ({columns}, PRIMARY KEY (_id)) WITH (toast_tuple_target = 8160);
CREATE INDEX ON {table} USING hash (clip_id);
CREATE INDEX ON {table} USING hash (_path);
CREATE INDEX ON {table} (_sum)"""
_SCALAR = """\
CREATE EXTENSION IF NOT EXISTS vector SCHEMA {vector};
CREATE EXTENSION IF NOT EXISTS scalar;
"""
_IS_PLAIN = """\
SELECT 1 FROM pg_proc WHERE pronamespace = to_regnamespace('scalar')
    AND NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'scalar') LIMIT 1"""
_PARTITIONED = """\
CREATE EXTENSION IF NOT EXISTS postgres_fdw SCHEMA {vector};
CREATE TABLE {table} ({columns}) PARTITION BY LIST (_node)"""
# The costs make it never cheaper to aggregate the rows of a node here. For a tenth of what a cursor returns, which is
# what a node plans for otherwise, it would sort its rows first.
_NODE = """\
CREATE SERVER IF NOT EXISTS {server} FOREIGN DATA WRAPPER postgres_fdw OPTIONS (
    host {host}, port {port}, dbname {database}, async_capable 'true', extensions 'vector,scalar',
    batch_size '500', fdw_tuple_cost '1000', connect_timeout '5', options '-c jit=off -c cursor_tuple_fraction=1'
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
    """Write the two files of the extension `scalar`, which belong in the folder `extension` of every server."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, "scalar.control").write_text(_CONTROL)
    Path(folder, "scalar--1.sql").write_text(FUNCTIONS)


def pushed_of(gallery: Gallery, nodes: Sequence[str]) -> Pushed:
    """What the table will have of a gallery, without clips yet; without paths, except that of the model."""
    if gallery.dim is None:
        raise ValueError(f"{gallery.path} holds no clips.")
    metadata = {name: gallery.metadata[name] for name in _REPEATED if gallery.metadata.get(name) is not None}
    metadata[MODALITIES] = list(gallery.modalities)
    return Pushed(0, dict.fromkeys(nodes, 0), gallery.dim, gallery.dtype, metadata)


def batches_of(gallery: Gallery) -> Iterator[list[Row]]:
    """The clips of a gallery, in order, some at a time."""
    known = gallery.searcher.clip_facts
    words, are_all = gallery.searcher.clip_words.texts()
    times = [known.times(name).tolist() for name in ("mtime_ns", "recorded_ns")]
    facts = zip(known.seconds.tolist(), *times, words, are_all, strict=True)
    for batch in gallery.clips.to_batches(_AT_ONCE):
        table = pa.Table.from_batches([batch])
        names = texts_of(table, "clip_id")
        embeds = embeds_of(table, gallery.slices).numpy()  # (N, M, D)
        presence = presence_of(table).numpy()  # (N, M)
        rows = []
        for name, place, vectors, mask in zip(names, gallery.places_of(names), embeds, presence, strict=True):
            seconds, *moments, said, has_all = next(facts)
            length = None if np.isnan(seconds) else seconds
            # from nanoseconds to microseconds
            changed, recorded = (None if moment == NO_DATE else moment // 1000 for moment in moments)
            said = said.replace("\0", "\ufffd")  # PostgreSQL has no NUL in texts
            rows.append(Row((name, place.path, length, changed, recorded, said, has_all), vectors, mask))
        yield rows


# Tables --------------------------------------------------------------------------------------------------------------


def make_tables(
    table: DatabaseTable, pushed: Pushed, nodes: Sequence[str], print_statement: Callable[[str], Any]
) -> None:
    """
    Make the tables of a gallery.

    Args:
        table ([`~scalar_retrieval.search.postgresql.DatabaseTable`]), pushed
        ([`~scalar_retrieval.search.postgresql.Pushed`]):
            where, and for what.
        nodes (`list[str]`): servers with the same database and user, `HOST` or `HOST:PORT`; without them, one table
            at the address.
        print_statement (`Callable`): with nodes, is given each statement, without passwords.
    """
    kinds = OWN_COLUMNS | {"_now": f"bigint GENERATED ALWAYS AS ({pushed.sum()}) STORED"}
    for column, (start, stop) in zip(pushed.columns, pushed.slices, strict=True):
        kinds[column] = f"{{vector}}.{VECTORS[pushed.dtype][0]}({stop - start})"
    columns = ", ".join(f"{name} {kind}" for name, kind in kinds.items())

    def make(place: DatabaseTable, *statements: tuple[str, dict[str, Any]]) -> None:
        with place.transaction("READ WRITE", is_made=False) as connection:
            if nodes and place.run(connection, _IS_PLAIN):
                raise ValueError(
                    f"The database of {place.name} has SCALAR's functions, but not as the extension that nodes need. "
                    "Run DROP SCHEMA scalar CASCADE there, and push again: its tables are then searched with the "
                    "extension."
                )
            login = {"database": connection.info.dbname, "user": connection.info.user}
            login["password"] = os.environ.get("PGPASSWORD", "")
            for statement, names in statements:
                made = place.composed(statement, columns=place.composed(columns), **login, **names)
                if nodes:
                    text = re.sub("password '(?:[^']|'')*'", "password '...'", made.as_string())
                    print_statement(f"-- on {place.name}\n{text};")
                place.run(connection, made)
            # What was there before, such as a server, may belong to another role.
            place.check_owners(connection)

    if not nodes:
        make(table, (_TABLE, {}))
        return
    # The table of each node comes first, as the foreign tables lead to them.
    parts = []
    for number, node in enumerate(nodes):
        host, _, port = node.partition(":")
        port = port or "5432"
        place = table.address.at(host, port, f"_{number}")
        with closing(DatabaseTable(place, table.timeout)) as part:
            make(part, (_SCALAR + _TABLE, {}))
        names = {"node": node, "host": host, "port": port, "schema": place.schema, "name": place.table}
        names |= {"server": sql.Identifier(node), "part": table.address.identifier(f"_at_{number}")}
        parts.append((_NODE, names))
    make(table, (_SCALAR + _PARTITIONED, {}), *parts)


# Rows ----------------------------------------------------------------------------------------------------------------


def push(
    gallery: Gallery,
    address: TableAddress,
    nodes: Sequence[str] = (),
    print_statement: Callable[[str], Any] = lambda statement: None,
) -> PushReport:
    """
    Copy a gallery into a table, which is made if it is missing: write new and changed clips, and remove those that the
    gallery no longer has. Rows that others changed or added are replaced or removed.

    Args:
        gallery ([`~scalar_retrieval.gallery.gallery.Gallery`]), address
        ([`~scalar_retrieval.search.addresses.TableAddress`]).
        nodes (`list[str]`): of a new table, the servers that it is partitioned over, see [`make_tables`].
        print_statement (`Callable`): with nodes, is given every statement that makes tables, without passwords.

    Raises:
        ValueError: the table holds vectors of another model, dimension or precision, or something else.
        TableError: a server does not answer, or refuses a statement.
    """
    with closing(DatabaseTable(address, _PROMPT)) as table:
        is_new = not table.answers()
        if nodes and not is_new:
            raise ValueError(f"{table.name} exists, and --nodes is for a new table. Choose another name, or drop it.")
        if is_new:
            make_tables(table, pushed_of(gallery, nodes), nodes, print_statement)
    with closing(DatabaseTable(address, _TIMEOUT)) as table, table.transaction("READ WRITE") as connection:
        table.run(connection, "SELECT pg_advisory_xact_lock(hashtext('scalar push'))")  # one at a time
        return _Push(table, connection, gallery).run()


class _Push:
    """A push, in a transaction."""

    def __init__(self, table: DatabaseTable, connection: psycopg.Connection, gallery: Gallery):
        self.table = table
        self.connection = connection
        self.gallery = gallery
        self.nodes = table.nodes(connection) or [""]  # a table without partitions has the node ''
        self.pushed = pushed_of(gallery, self.nodes)
        self.report = PushReport()

    def execute(self, statement: str, values: Any = None) -> list[tuple]:
        """Run a statement, see [`~scalar_retrieval.search.postgresql.DatabaseTable.run`]."""
        return self.table.run(self.connection, statement, values)

    def run(self) -> PushReport:
        """Write what is new or changed, and then the version."""
        before = self.before()
        self.make_functions()
        self.execute("CREATE TEMP TABLE pushed (LIKE {table}) ON COMMIT DROP")
        known, strange = self.known()
        gone = list(strange)
        # Numbers increase in the order of the gallery, which orders equal scores.
        last = -1
        next_number = max((number for number, *_ in known.values()), default=-1) + 1
        counts = dict.fromkeys(self.nodes, 0)
        with tqdm(total=len(self.gallery), unit="clip", disable=None) as bar:
            for rows in batches_of(self.gallery):
                waiting = []
                for row in rows:
                    node = self.nodes[zlib.crc32(row.clip_id.encode()) % len(self.nodes)]
                    counts[node] += 1
                    number, *stored = known.pop(row.clip_id, (-1,))
                    is_unchanged = stored == [node, row.digest()] and number not in strange
                    if is_unchanged and number > last:
                        self.report.unchanged += 1
                        last = number
                        continue
                    if stored:
                        self.report.changed += 1
                        gone.append(number)
                    else:
                        self.report.new += 1
                    if number <= last:
                        number = next_number
                    last = number
                    next_number = max(next_number, last + 1)
                    waiting.append((node, number, row))
                self.write(gone, waiting)
                gone = []
                bar.update(len(rows))
        # What is left in the table is not in the gallery.
        self.report.removed = len(known)
        self.write([number for number, *_ in known.values()], [])
        self.write_version(before, counts)
        return self.report

    def make_functions(self) -> None:
        """Make the functions, or replace those of another version, unless an extension or another role has them."""
        is_mine = self.execute(
            "SELECT pg_has_role(nspowner, 'USAGE') AND NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'scalar') "
            "FROM pg_namespace WHERE nspname = 'scalar'"
        )
        if not is_mine:
            self.execute("CREATE SCHEMA scalar")
        if is_mine != [(False,)]:
            with self.table.errors():
                self.connection.execute(FUNCTIONS)

    def before(self) -> int:
        """The version that was pushed before, 0 for a new table; a ValueError if this gallery cannot replace it."""
        versions = [0]
        # Vectors of another kind could not be compared with those that stay.
        for (about,) in self.execute("SELECT _about FROM {table} WHERE _id = -1 AND _about IS NOT NULL"):
            state = Pushed.parse(about, self.table.name)
            different = state.differences(self.pushed)
            if different:
                raise ValueError(
                    f"{self.table.name} holds vectors of {state.metadata.get('model')!r}, which differ from those of "
                    f"{self.gallery.path} in {', '.join(different)}. They cannot be compared. Choose another name."
                )
            versions.append(state.version)
        return max(versions)

    def known(self) -> tuple[dict[str, tuple[int, str, str | None]], set[int]]:
        """Number, node and digest of each clip by its name, and the numbers of rows that are not clips. The digest of
        a row that others changed is None."""
        # `push` writes no row without a name, none with the name of another one, and none with so high a number that
        # no other could follow.
        known = {}
        strange = set()
        digest = f"CASE WHEN {self.pushed.unchanged()} THEN _digest END"
        for clip_id, number, *stored in self.execute(
            f"SELECT clip_id, _id, _node, {digest} FROM {{table}} WHERE _id <> -1"
        ):
            if clip_id is None or clip_id in known or not 0 <= number < _HIGHEST:
                strange.add(number)
            else:
                known[clip_id] = (number, *stored)
        return known, strange

    def write(self, gone: Sequence[int], waiting: Sequence[tuple[str, int, Row]]) -> None:
        """Remove rows, and write new ones."""
        if gone:
            self.execute("DELETE FROM {table} WHERE _id = ANY(%s)", [list(gone)])
        if not waiting:
            return
        vectors = np.stack([row.vectors for *_, row in waiting])
        # The inner products in float64: the lower triangle by rows, (N, M (M + 1) / 2)
        exactly = vectors.astype(np.float64)
        squares = exactly @ exactly.transpose(0, 2, 1)
        masks = torch.from_numpy(np.stack([row.mask for *_, row in waiting]))
        norms, _ = inverses_of(torch.from_numpy(squares), masks, MIN_NORM[torch.float32])
        rows, columns = np.tril_indices(vectors.shape[1])
        grams = squares[:, rows, columns].tolist()
        # pgvector's format on the wire: the number of dimensions, two unused bytes, and the numbers
        sent = vectors.astype(VECTORS[self.pushed.dtype][1])
        slices = self.pushed.slices
        names = ", ".join([*_COPIED, *self.pushed.columns])
        copy = f"COPY pushed ({names}) FROM STDIN (FORMAT BINARY)"
        with self.table.errors(), self.connection.cursor().copy(copy) as copied:
            copied.set_types([*map(OWN_COLUMNS.get, _COPIED), *["bytea"] * len(self.pushed.modalities)])
            for (node, number, row), gram, norm, own in zip(waiting, grams, norms.tolist(), sent, strict=True):
                stored: list[bytes | None] = [None] * len(own)
                for place in row.mask.nonzero()[0]:
                    start, stop = slices[place]
                    stored[place] = (stop - start).to_bytes(2, "big") + b"\0\0" + own[place, start:stop].tobytes()
                copied.write_row([node, number, row.digest(), gram, norm, *row.facts, *stored])
        self.insert()

    def insert(self) -> None:
        """Move rows from the temporary table into that of the clips, with their hashes."""
        names = ", ".join([*_COPIED, "_about", *self.pushed.columns])
        self.execute(
            f"INSERT INTO {{table}} ({names}, _sum) SELECT {names}, {self.pushed.sum()} FROM pushed; TRUNCATE pushed"
        )

    def write_version(self, before: int, counts: dict[str, int]) -> None:
        """Replace the rows with what was pushed, unless they are right."""
        same = replace(self.pushed, version=before, num_clips=counts).text()
        where = f"_id = -1 AND {self.pushed.unchanged()} AND _about = %s"
        found = self.execute(f"SELECT _node FROM {{table}} WHERE {where}", [same])
        is_same = self.report == PushReport(unchanged=self.report.unchanged)
        if is_same and sorted(node for (node,) in found) == sorted(self.nodes):
            return
        # The version contains the time, so that a new table never has that of one that was dropped.
        version = max(before + 1, time.time_ns() // 10**6)
        text = replace(self.pushed, version=version, num_clips=counts).text()
        self.execute("DELETE FROM {table} WHERE _id = -1")
        for node in self.nodes:
            self.execute("INSERT INTO pushed (_node, _id, _about) VALUES (%s, -1, %s)", [node, text])
        self.insert()


def verify_table(address: TableAddress) -> int:
    """
    Check every row of a table on its server: counts, version and hashes, words included.

    Returns:
        The number of clips.

    Raises:
        DamagedTableError: something is not as it was pushed.
    """
    with closing(DatabaseTable(address, _PROMPT)) as table:
        table.answers()
    with closing(DatabaseTable(address, _TIMEOUT)) as table:
        return sum(table.check().num_clips.values())


__all__ = ["PushReport", "make_tables", "push", "verify_table", "write_extension"]
