"""A table of PostgreSQL that holds a gallery, on one server or on several nodes: every call to them.

A row is a clip: its identifier, its file, what filters ask for, its vectors with a column for each modality, NULL
where it lacks one, their inner products, and a hash over all of it. A second table of one row, `TABLE_about`, tells
what the gallery is, how many rows there must be, and which version this is: when it was pushed. Several nodes share
the clips by their numbers, and are asked side by side. A query reads one snapshot of each node, all of one version,
and counts the rows; a push is one transaction on each. So an answer is of all rows of one state, or it is an error
that names the node.
"""

import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from heapq import merge
from itertools import islice
from threading import local
from typing import Any, NamedTuple, TypeVar

import numpy as np
import psycopg
import torch
from psycopg import sql

from gallery.columns import from_utf8, to_utf8
from gallery.exact.cone import hull_distance
from gallery.filters import DATE, DURATION, WORDS, Filter, pattern_of
from gallery.words import folded
from modeling_scalar.scores_scalar import ScoreOptions

from .address import TableAddress
from .clips import MIN_CLIP_NORM, About, Asked, Counts, Point, about_told, damaged
from .errors import DamagedError, EngineError, NoCollectionError, UnsupportedError
from .scoring import listed

_COLUMNS = {
    "number": "uuid",
    "clip_id": "text",
    "_path": "text",
    "_part": "text",
    "_place": "int8",
    "_seconds": "float8",
    "_changed": "int8",
    "_words": "text",
    "_all_words": "bool",
    "_digest": "text",
    "_gram": "float8[]",
    "_reach": "float8",
}
"""What a row holds beside its vectors; names of modalities begin with a letter. `_reach` is 1 by the norm of the
shortest centroid."""

_FACTS = {"clip_id": "clip_id", "path": "_path", "part": "_part", "seconds": "_seconds", "changed": "_changed"}
_FACTS |= {"words": "_words", "all_words": "_all_words"}  # of a payload, the columns
_TYPES = {"float16": ("halfvec", ">f2"), "float32": ("vector", ">f4")}
_FINER = 4096.0  # what float16 leaves of a query is multiplied by, so that float16 holds that too
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_TIMEOUT, _TIMEOUT_OF_PAGE = 60, 10
_PATIENCE = 5.0  # seconds that nodes may take to become of one version while somebody pushes
_PAUSE = 0.05
_ROUNDING = 1e-12  # of float64
_ONE_BY_ONE = 16  # threads for each node: queries that are asked at once
_SHARE, _TIMES = 64, 16  # of a table one row of so many is looked at first, or so many times as a list has entries
_ESCAPED = "\uffff"  # no character, and allowed in texts of PostgreSQL, as NUL is not

Answered = TypeVar("Answered")


class _Where(NamedTuple):
    """A condition, and its values by name."""

    text: sql.Composable
    values: dict[str, Any]


class _State(NamedTuple):
    """What a node says of itself."""

    about: About
    version: int
    node: int
    num_nodes: int
    num_clips: int


class _Vectors(NamedTuple):
    """The vectors of a query by the names of their parameters, which modalities they are for, and the options."""

    values: dict[str, str]
    places: list[int]
    options: ScoreOptions


@dataclass(frozen=True)
class _Node:
    """A node, and its tables as they are named in statements."""

    address: TableAddress

    @property
    def name(self) -> str:
        return self.address.name

    def table(self, more: str = "") -> sql.Identifier:
        names = [self.address.schema] if self.address.schema else []
        return sql.Identifier(*names, self.address.table + more)

    def connect(self, timeout: int) -> psycopg.Connection:
        told = {"connect_timeout": timeout, "application_name": "scalar", "client_encoding": "utf8"}
        connection = psycopg.connect(**self.address.options, **told, autocommit=True, prepare_threshold=None)
        connection.execute(f"SET jit = off; SET statement_timeout = '{timeout}s'")
        return connection


def _to_text(text: str) -> str:
    """A text, or a file name that is not UTF-8, as PostgreSQL holds it."""
    return to_utf8(text).replace(_ESCAPED, f"{_ESCAPED}1").replace("\0", f"{_ESCAPED}0")


def _from_text(text: str) -> str:
    """What [`_to_text`] was given, as [`~gallery.columns.to_utf8`] has it."""
    return text.replace(f"{_ESCAPED}0", "\0").replace(f"{_ESCAPED}1", _ESCAPED)


def _told(error: Exception) -> str:
    """What an error says, in one line, without a password that it may repeat."""
    text, password = " ".join(str(error).split()) or type(error).__name__, os.environ.get("PGPASSWORD")
    return (text.replace(password, "...") if password else text)[:300]


def _cut(connection: psycopg.Connection) -> None:
    """End what is asked over a connection, at once, whatever thread waits for it."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


class Table:
    """
    A table of PostgreSQL, whether it is there already or not: a [`~search.engine.clips.Engine`]. Passwords are those
    of the environment or `~/.pgpass`.

    Args:
        addresses (`Sequence[TableAddress]`): of the nodes, in any order.
        is_patient (`bool`): whether a node may take a minute for an answer, or ten seconds, as somebody waits who
            looks at a page.
    """

    is_exact, growth, is_limited, takes_any_query = True, 16, False, True
    no_filters: tuple[str, ...] = ()
    points_at_once = 2000

    def __init__(self, addresses: Sequence[TableAddress], is_patient: bool = True):
        self.nodes = [_Node(address) for address in sorted(addresses, key=str)]
        self.name = self.nodes[0].address.path  # a page tells it to everybody
        self.timeout = _TIMEOUT if is_patient else _TIMEOUT_OF_PAGE
        self._threads = ThreadPoolExecutor(_ONE_BY_ONE * len(self.nodes))
        self._idle: list[list[psycopg.Connection]] = []
        self._here = local()  # of a thread the connections of its query or push, and what the nodes said
        self._about: About | None = None
        self._version = 0

    def close(self) -> None:
        """Close all connections."""
        while self._idle:
            for connection in self._idle.pop():
                connection.close()
        self._threads.shutdown()

    # Asking nodes ---------------------------------------------------------------------------------------------------

    def _gather(self, tasks: Sequence[Future[Answered]], seconds: float | None = None) -> list[Answered]:
        """What tasks, one for each node, return; an [`EngineError`] that names a node of which one fails."""
        answers, end = [], time.monotonic() + (seconds or self.timeout)
        for node, task in zip(self.nodes, tasks, strict=True):
            try:
                answers.append(task.result(max(0.0, end - time.monotonic())))
            except TimeoutError:
                raise EngineError(f"{node.name} did not answer within {seconds or self.timeout:g} seconds.") from None
            except psycopg.Error as error:
                raise EngineError(f"{node.name}: {_told(error)}") from None
        return answers

    def _each(self, ask: Callable[[_Node, psycopg.Connection], Answered]) -> list[Answered]:
        """Ask all nodes side by side, in the query or push of this thread."""
        if not hasattr(self._here, "connections"):
            with self.reading():
                return self._each(ask)
        connections = self._here.connections
        tasks = [self._threads.submit(ask, *pair) for pair in zip(self.nodes, connections, strict=True)]
        try:
            return self._gather(tasks)
        except BaseException:
            for task, connection in zip(tasks, connections, strict=True):
                if not task.done():
                    _cut(connection)
            raise

    def _rows(self, statement: Callable[[_Node], sql.Composable], values: Mapping[str, Any], binary: bool = False):
        """What each node answers."""

        def ask(node: _Node, connection: psycopg.Connection) -> list[tuple]:
            return connection.execute(statement(node), values, binary=binary).fetchall()

        return self._each(ask)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Have a connection to each node, in this thread; they are kept if nothing fails."""
        connections = self._idle.pop() if self._idle else []
        try:
            if not connections:
                # a connection that comes too late closes itself
                tasks = [self._threads.submit(node.connect, self.timeout) for node in self.nodes]
                try:
                    connections = self._gather(tasks, self.timeout + 1)
                except BaseException:
                    for task in tasks:
                        task.add_done_callback(lambda done: done.exception() or done.result().close())
                    raise
            self._here.connections = connections
            yield
            self._idle.append(connections)
        except BaseException:
            for connection in connections:
                _cut(connection)
                connection.close()
            raise
        finally:
            vars(self._here).clear()

    def _begin(self) -> list[_State]:
        """Let every node take its snapshot, and tell its state."""

        def begin(node: _Node, connection: psycopg.Connection) -> _State:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return self._state(node, connection)

        return self._each(begin)

    def _end(self, how: str = "ROLLBACK") -> None:
        self._each(lambda node, connection: connection.execute(how))

    def _state(self, node: _Node, connection: psycopg.Connection) -> _State:
        statement = sql.SQL("SELECT about, version, node, num_nodes, num_clips FROM {}")
        try:
            row = connection.execute(statement.format(node.table("_about"))).fetchone()
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            raise NoCollectionError(
                f"There is no gallery in {node.name}. `scalar push GALLERY ADDRESS` writes one."
            ) from None
        except psycopg.errors.UndefinedColumn:
            row = None
        return _State(about_told(row and row[0], f"The table {node.name}"), *(row or (0, 0, 0, 0))[1:])

    @contextmanager
    def reading(self) -> Iterator[None]:
        """
        Read one state of all nodes.

        Raises:
            EngineError: a node does not answer, is behind the others, or holds what another model made.
        """
        if hasattr(self._here, "connections"):
            yield
            return
        if self._idle:  # which a server that was stopped meanwhile has closed
            self._idle = [kept for kept in self._idle if not any(connection.closed for connection in kept)]
        end = time.monotonic() + _PATIENCE
        while True:
            with self._connected():
                states = self._begin()
                if (problem := self._disagreement(states)) is None:
                    self._here.states = states
                    self._version = max(self._version, states[0].version)
                    yield
                    self._end()
                    return
                self._end()
            if time.monotonic() > end:
                raise EngineError(problem)
            time.sleep(_PAUSE)

    def _disagreement(self, states: Sequence[_State]) -> str | None:
        """Why nodes do not hold one gallery together, if they do not; an error where no waiting helps."""
        for node, state, number in zip(self.nodes, states, range(len(states)), strict=True):
            if (state.node, state.num_nodes) != (number, len(states)):
                raise EngineError(
                    f"{node.name} is node {state.node + 1} of {state.num_nodes} of a gallery, not {number + 1} of "
                    f"{len(states)} as asked. Name all nodes of the push, and no others."
                )
            if different := states[0].about.differences(state.about):
                raise EngineError(
                    f"{node.name} holds vectors that differ from those of {self.nodes[0].name} in "
                    f"{', '.join(different)}. Push the gallery to all nodes again."
                )
        newest = max(self._version, *(state.version for state in states))
        late = [node.name for node, state in zip(self.nodes, states, strict=True) if state.version < newest]
        if not late:
            return None
        return (
            f"{' and '.join(late)} is behind: what it holds is older than version {newest}, which was seen. If it is "
            "a copy, wait for it; if a push was cut off, push the gallery again."
        )

    # What it is -----------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether every node has its tables."""

        def ask(node: _Node, connection: psycopg.Connection) -> bool:
            name = node.table("_about").as_string(connection)
            return connection.execute("SELECT to_regclass(%s)", [name]).fetchone()[0] is not None

        return all(self._each(ask))

    def about(self, is_new: bool = False) -> About:
        """
        What it holds.

        Raises:
            FileNotFoundError: there is no such table.
            ValueError: it holds something else, or in another format.
        """
        about = self._about
        if is_new or about is None:
            if hasattr(self._here, "connections"):
                about = self._each(self._state)[0].about
            else:
                with self.reading():
                    about = self._here.states[0].about
            self._about = about
        return about

    def create(self, about: About, num_shards: int | None = None, num_replicas: int | None = None) -> None:
        """Make the tables where they are not; in a push."""
        if num_shards is not None or num_replicas is not None:
            raise UnsupportedError(
                "Nodes of PostgreSQL are those that the address names; their copies are made by PostgreSQL."
            )
        kind = f"{_TYPES[about.dtype][0]}({about.dim})"
        columns = [sql.SQL(f"{{}} {kind}").format(sql.Identifier(name)) for name in about.modalities]
        columns = [sql.SQL(f"{name} {kind}") for name, kind in _COLUMNS.items()] + columns
        # Vectors stay in their row, as far as a page holds them: a scan reads them all.
        statements = (
            "CREATE TABLE {table} ({columns}, PRIMARY KEY (number)) WITH (toast_tuple_target = 8160)",
            "CREATE INDEX ON {table} USING hash (_path)",
            "CREATE TABLE {about} (about jsonb, version int8, node int4, num_nodes int4, num_clips int8)",
        )

        def make(node: _Node, connection: psycopg.Connection) -> None:
            known = connection.execute("SELECT to_regclass(%s)", [node.table("_about").as_string(connection)])
            if known.fetchone()[0] is not None:
                return
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            parts = {"columns": sql.SQL(", ").join(columns), "table": node.table(), "about": node.table("_about")}
            try:
                for statement in statements:
                    connection.execute(sql.SQL(statement).format(**parts))
            except psycopg.errors.DuplicateTable:
                raise ValueError(
                    f"There is a table {node.name} that `scalar push` did not make. Choose another name."
                ) from None
            row = json.dumps(about.told()["scalar"]), 0, self.nodes.index(node), len(self.nodes), 0
            connection.execute(sql.SQL("INSERT INTO {about} VALUES (%s, %s, %s, %s, %s)").format(**parts), row)

        self._each(make)

    def describe(self, metadata: Mapping[str, Any]) -> None:
        """Replace what is told of the gallery; in a push."""
        about = json.dumps(replace(self.about(), metadata=dict(metadata)).told()["scalar"])
        statement = sql.SQL("UPDATE {} SET about = %s")
        self._each(lambda node, connection: connection.execute(statement.format(node.table("_about")), [about]))
        self._about, self._here.changed = None, True

    def index_payload(self) -> None:
        """Nothing: a scan fulfils conditions."""

    # Writing --------------------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Push in one transaction on each node, one pusher at a time; the others wait."""
        with self._connected():

            def begin(node: _Node, connection: psycopg.Connection) -> None:
                connection.execute("SET statement_timeout = 0; BEGIN")

            def lock(node: _Node, connection: psycopg.Connection) -> bool:
                ask = "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))"
                return connection.execute(ask, [f"scalar push {node.address.path}"]).fetchone()[0]

            self._each(begin)
            while not all(self._each(lock)):  # who has some of them lets go, so that nobody waits for another
                self._end()
                time.sleep(2 * _PAUSE * np.random.default_rng().random())
                self._each(begin)
            self._here.changed = False
            yield
            self._note_version()
            self._end("COMMIT")
            self._each(lambda node, connection: connection.execute(f"SET statement_timeout = '{self.timeout}s'"))

    def _note_version(self) -> None:
        """Tell of the rows that there are now, and give all nodes a new version if something changed."""
        versions = {state.version for state in self._each(self._state)}
        if not self._here.changed and len(versions) == 1 and versions != {0}:
            return
        self._version = version = max(*versions, time.time_ns() // 10**6 - 1, self._version) + 1
        statement = sql.SQL("UPDATE {} SET version = %s, num_clips = (SELECT count(*) FROM {})")
        self._each(
            lambda node, connection: connection.execute(
                statement.format(node.table("_about"), node.table()), [version]
            )
        )

    def known(self, part: str) -> Iterator[tuple[str, str, int]]:
        """The number, the hash and the place of each clip of a part."""
        statement = sql.SQL("SELECT number::text, _digest, _place FROM {} WHERE _part = %(part)s")
        for rows in self._rows(lambda node: statement.format(node.table()), {"part": _to_text(part)}):
            yield from rows

    def put(self, points: Sequence[Point]) -> None:
        """Write clips; each is replaced as a whole."""
        about = self.about()
        names = sql.SQL(", ").join([*map(sql.Identifier, _COLUMNS), *map(sql.Identifier, about.modalities)])
        changes = sql.SQL(", ").join(
            sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in (*_COLUMNS, *about.modalities)
        )
        rows: list[list[tuple]] = [[] for _ in self.nodes]
        for point, reach in zip(points, _reaches(points), strict=True):
            rows[uuid.UUID(point.number).int % len(self.nodes)].append(_row_of(point, reach, _TYPES[about.dtype][1]))

        def write(node: _Node, connection: psycopg.Connection) -> None:
            parts = {"table": node.table(), "names": names, "changes": changes}
            connection.execute(
                sql.SQL("CREATE TEMP TABLE IF NOT EXISTS pushed (LIKE {table}) ON COMMIT DROP").format(**parts)
            )
            copy = sql.SQL("COPY pushed ({names}) FROM STDIN (FORMAT BINARY)").format(**parts)
            with connection.cursor().copy(copy) as copied:
                copied.set_types([*_COLUMNS.values(), *["bytea"] * len(about.modalities)])
                for row in rows[self.nodes.index(node)]:
                    copied.write_row(row)
            connection.execute(
                sql.SQL(
                    "INSERT INTO {table} ({names}) SELECT {names} FROM pushed "
                    "ON CONFLICT (number) DO UPDATE SET {changes}"
                ).format(**parts)
            )
            connection.execute("TRUNCATE pushed")

        self._each(write)
        self._here.changed = True

    def remove(self, ids: Sequence[str]) -> None:
        """Take clips out."""
        statement = sql.SQL("DELETE FROM {} WHERE number = ANY(%s::uuid[])")
        self._each(lambda node, connection: connection.execute(statement.format(node.table()), [list(ids)]))
        self._here.changed = True

    # Reading --------------------------------------------------------------------------------------------------------

    def condition(
        self,
        wanted: Filter | None,
        modalities: Sequence[str] | None = None,
        without: str | None = None,
        outside: Sequence[str] = (),
    ) -> _Where | None:
        """What may be found, as a condition; `None` if that is everything."""
        parts, known, values = _conditions(wanted or Filter())
        parts += [fulfilled for fulfilled, _ in known.values()]
        if modalities is not None:
            there = [sql.SQL("{} IS NOT NULL").format(sql.Identifier(name)) for name in modalities]
            parts.append(sql.SQL("({})").format(sql.SQL(" OR ").join(there)))
        if without is not None:
            parts.append(sql.SQL("number <> %(without)s::uuid"))
            values["without"] = without
        if outside:
            parts.append(sql.SQL("_path <> ALL(%(outside)s)"))
            values["outside"] = list(map(_to_text, outside))
        return _Where(sql.SQL(" AND ").join(parts), values) if parts else None

    def counts(self, wanted: Filter | None, without: str | None = None) -> Counts:
        """
        Count the clips that there are and that may be found.

        Raises:
            DamagedError: a node has more or fewer rows than were pushed.
        """
        where = self.condition(wanted, without=without)
        parts, known, _ = _conditions(wanted or Filter())
        asked = [sql.SQL("count(*)")]
        conditions = [sql.SQL("true") if where is None else where.text]
        for name in known:
            others = [sql.SQL("({} OR {})").format(*known[other]) for other in known if other != name]
            conditions.append(sql.SQL(" AND ").join([*parts, known[name][1], *others]))
        asked += [sql.SQL("count(*) FILTER (WHERE {})").format(condition) for condition in conditions]
        statement = sql.SQL("SELECT {} FROM {}")
        with self.reading():
            states = self._here.states
            rows = self._rows(
                lambda node: statement.format(sql.SQL(", ").join(asked), node.table()), where.values if where else {}
            )
        lines = [row[0] for row in rows]
        for node, line, state in zip(self.nodes, lines, states, strict=True):
            if line[0] != state.num_clips:
                raise DamagedError(
                    f"{node.name} has {line[0]} rows, but {state.num_clips} were pushed. Push the gallery again."
                )
        note = None
        if len(self.nodes) > 1:
            told = ", ".join(f"{node.name} ({line[0]} clips)" for node, line in zip(self.nodes, lines, strict=True))
            note = f"{len(self.nodes)} nodes counted, of version {states[0].version}: {told}."
        num_clips, num_allowed, *left_out = (sum(column) for column in zip(*lines, strict=True))
        unknown = {name: count for name, count in zip(known, left_out, strict=True) if count}
        return Counts(num_clips, num_allowed, unknown, note=note)

    def __len__(self) -> int:
        return self.count(None)

    def count(self, where: _Where | None) -> int:
        """How many clips fulfil a condition."""
        statement = sql.SQL("SELECT count(*) FROM {} WHERE {}")
        condition = sql.SQL("true") if where is None else where.text
        rows = self._rows(lambda node: statement.format(node.table(), condition), where.values if where else {})
        return sum(row[0][0] for row in rows)

    def is_estimate(self, count: int) -> bool:
        """Never: rows are counted."""
        return False

    def asked(self, text: torch.Tensor, seen: Sequence[bool], options: ScoreOptions) -> Asked:
        """The vectors of a text, which float16 holds in two parts."""
        places, values = [place for place, is_seen in enumerate(seen) if is_seen], {}
        vectors = text.float().numpy()
        for place in places if text.ndim == 2 else [0]:
            vector = vectors if text.ndim == 1 else vectors[place]
            coarse = vector.astype(np.float16)
            rest = ((vector - coarse.astype(np.float32)) * np.float32(_FINER)).astype(np.float16)
            for name, part in (("vector", vector), ("coarse", coarse), ("rest", rest)):
                values[f"{name}{place}"] = f"[{','.join(map(str, part.tolist()))}]"
        return Asked([_Vectors(values, places, options)], True, -np.inf)

    def nearest(self, query: _Vectors, limit: int, where: _Where | None) -> list[tuple[str, float]]:
        """The clips whose scores may be highest, and the least number that is above each."""
        about, each = self.about(), len(query.values) > 3
        products = []
        for place in query.places:
            column, at = sql.Identifier(about.modalities[place]), place if each else 0
            if about.dtype == "float32":
                product = f"-({{0}} <#> %(vector{at})s::vector)"
            else:
                product = f"(-({{0}} <#> %(coarse{at})s::halfvec) - ({{0}} <#> %(rest{at})s::halfvec) / {_FINER})"
            products.append(sql.SQL(product).format(column).as_string())
        condition = (sql.SQL("true") if where is None else where.text).as_string()
        values = query.values | (where.values if where else {}) | {"limit": limit}

        def statement(node: _Node) -> sql.Composable:
            num_clips = self._here.states[self.nodes.index(node)].num_clips
            sample = max(num_clips / _SHARE, _TIMES * limit)
            percent = 100 * sample / num_clips if sample < num_clips / 4 else None
            asked = products, query.places, query.options, MIN_CLIP_NORM, about.dim
            return sql.SQL(listed(node.table().as_string(), condition, percent, *asked))

        with self.reading():
            lists = self._rows({node: statement(node) for node in self.nodes}.get, values)
        return list(islice(merge(*lists, key=lambda entry: -entry[1]), limit))

    def fetch(self, ids: Sequence[str]) -> list[Point]:
        """
        Read clips by their numbers; those that are gone are left out.

        Raises:
            DamagedError: what is there is not what was written.
        """
        about, points = self.about(), []
        names = sql.SQL(", ").join([*map(sql.Identifier, _COLUMNS), *map(sql.Identifier, about.modalities)])
        statement = sql.SQL("SELECT {} FROM {} WHERE number = ANY(%(ids)s::uuid[])")
        answers = self._rows(lambda node: statement.format(names, node.table()), {"ids": list(ids)}, binary=True)
        for node, rows in zip(self.nodes, answers, strict=True):
            for row in rows:
                point = _point_of(row, about)
                if point is None:
                    raise damaged(node.name, str(row[0]))
                points.append(point)
        return points

    def of_files(self, paths: Sequence[str]) -> list[tuple[str, str]]:
        """The number and the name of each clip of some files."""
        statement = sql.SQL("SELECT number::text, clip_id FROM {} WHERE _path = ANY(%(paths)s)")
        answers = self._rows(lambda node: statement.format(node.table()), {"paths": list(map(_to_text, paths))})
        return [(number, from_utf8(_from_text(name))) for rows in answers for number, name in rows]

    def path_of(self, number: str) -> str | None:
        """The file of a clip; `None` for a clip that is gone."""
        statement = sql.SQL("SELECT _path FROM {} WHERE number = %(number)s::uuid")
        answers = self._rows(lambda node: statement.format(node.table()), {"number": number})
        return next((from_utf8(_from_text(row[0])) for rows in answers for row in rows), None)

    def try_out(self) -> None:
        """Count."""
        self.count(None)


def _conditions(
    wanted: Filter,
) -> tuple[list[sql.Composable], dict[str, tuple[sql.Composable, sql.Composable]], dict[str, Any]]:
    """What a filter asks for: conditions that are fulfilled or not; by what may be unknown, the condition and whether
    it is unknown; and values."""
    values: dict[str, Any] = {}
    parts = [sql.SQL("{} IS NOT NULL").format(sql.Identifier(name)) for name in wanted.has]
    parts += [sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in wanted.lacks]
    if wanted.paths:
        parts.append(sql.SQL("_path ~ ANY(%(paths)s)"))
        values["paths"] = [f"^(?:{_ESCAPED}0)?(?:{pattern_of(glob)})$" for glob in wanted.paths]
    known = {}
    first, last = (moment and (moment - _EPOCH) // _MICROSECOND for moment in (wanted.after, wanted.before))
    for kind, column, numbers in (
        (DURATION, "_seconds", ((">=", wanted.min_duration), ("<=", wanted.max_duration))),
        (DATE, "_changed", ((">=", first), ("<", last))),
    ):
        limits = [(f"{column}{number}", sign, value) for number, (sign, value) in enumerate(numbers)]
        asked = [f"{column} {sign} %({name})s" for name, sign, value in limits if value is not None]
        values |= {name: value for name, _, value in limits if value is not None}
        if asked:
            known[kind] = (sql.SQL(f"({' AND '.join(asked)})"), sql.SQL(f"{column} IS NULL"))
    for number, word in enumerate(wanted.words):
        values[f"word{number}"] = folded(word)
    if wanted.words:
        said = " AND ".join(f"strpos(_words, %(word{number})s) > 0" for number in range(len(wanted.words)))
        known[WORDS] = (sql.SQL(f"({said})"), sql.SQL(f"(NOT _all_words AND NOT ({said}))"))
    return parts, known, values


def _reaches(points: Sequence[Point]) -> list[float]:
    """1 by the norm of the shortest centroid that weights may make of each clip."""
    embeds = torch.from_numpy(np.stack([point.modality_embeds for point in points])).double()
    mask = torch.tensor([point.modality_mask for point in points])
    squares = hull_distance(embeds @ embeds.mT, mask).square() - _ROUNDING
    return ((1 + _ROUNDING) / squares.clamp(min=0).sqrt().clamp(min=MIN_CLIP_NORM)).tolist()


def _row_of(point: Point, reach: float, kind: str) -> tuple:
    """A point as a row of [`_COLUMNS`] and vectors, these as pgvector receives them."""
    texts = {name: _to_text(value) for name, value in point.payload.items() if isinstance(value, str)}
    facts = {column: (point.payload | texts).get(name) for name, column in _FACTS.items()}
    exactly = point.modality_embeds.astype(np.float64)
    facts |= {"number": uuid.UUID(point.number), "_place": point.place, "_digest": point.digest, "_reach": reach}
    facts["_gram"] = (exactly @ exactly.T)[np.tril_indices(len(exactly))].tolist()
    head = len(exactly[0]).to_bytes(2, "big") + b"\0\0"
    vectors = [
        head + vector.astype(kind).tobytes() if there else None
        for vector, there in zip(point.modality_embeds, point.modality_mask, strict=True)
    ]
    return *(facts[name] for name in _COLUMNS), *vectors


def _point_of(row: Sequence[Any], about: About) -> Point | None:
    """A point as it was written; `None` if it is not."""
    facts = dict(zip(_COLUMNS, row, strict=False))
    payload = {name: facts[column] for name, column in _FACTS.items() if facts[column] is not None}
    payload |= {name: _from_text(value) for name, value in payload.items() if isinstance(value, str)}
    vectors = dict(zip(about.modalities, row[len(_COLUMNS) :], strict=True))
    payload["has"] = [name for name, vector in vectors.items() if vector is not None]
    embeds = np.zeros((len(vectors), about.dim), about.dtype)
    for place, vector in enumerate(vectors.values()):
        if vector is not None:
            embeds[place] = np.frombuffer(vector[4:], _TYPES[about.dtype][1])
    point = Point(payload, embeds, facts["_place"], about.modalities)
    is_whole = (point.number, point.digest) == (str(facts["number"]), facts["_digest"])
    return point if is_whole and type(point.place) is int else None


__all__ = ["Table"]
