"""A gallery in a PostgreSQL table, on one server or several nodes: all calls to them.

- A row is a clip: its identifier, file, facts for filters, one vector column per modality (NULL where absent), the
  inner products of the vectors, and a hash over all else. A trigger empties the hash of rows that others write.
- `TABLE_about` has one row: the gallery's metadata, the number of rows, and the version (the time of the push). Nodes
  share the clips by number and are queried in parallel.
- A query reads one snapshot of each node, all of the same version, and counts the rows; a push is one transaction per
  node. So an answer covers all rows of one version, or is an error that names the node.
"""

import json
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from heapq import merge
from itertools import chain, islice
from threading import local
from typing import Any, NamedTuple, TypeVar

import numpy as np
import psycopg
import torch
from psycopg import sql

from gallery.columns import from_utf8, to_utf8
from gallery.exact.cone import hull_distance
from gallery.filters import DATE, DURATION, PLAIN, WORDS, Filter, text_pattern_of
from gallery.words import folded
from modeling_scalar.scores_scalar import ScoreOptions

from .address import TableAddress
from .clips import MIN_CLIP_NORM, About, Asked, Counts, Point, about_from, damaged, foreign
from .errors import DamagedError, EngineError, NoCollectionError, UnsupportedError
from .scoring import listed

_COLUMNS = {
    "number": "uuid",
    "clip_id": "text",
    "_path": "text",
    "_part": "text",
    "_place": "bigint",
    "_seconds": "double precision",
    "_changed": "bigint",
    "_words": "text",
    "_all_words": "boolean",
    "_digest": "text",
    "_gram": "double precision[]",
    "_reach": "double precision",
}
"""The columns of a row next to its vectors; names of modalities begin with a letter. `_reach` is 1 / (the norm of the
shortest centroid)."""

# Vectors stay in their row if they fit into a page: a scan reads them all.
_MADE = (
    "CREATE EXTENSION IF NOT EXISTS vector",
    "CREATE TABLE {table} ({columns}, PRIMARY KEY (number)) WITH (toast_tuple_target = 8160)",
    "CREATE INDEX ON {table} USING hash (_path)",
    "CREATE INDEX ON {table} (number) WHERE _digest = ''",
    "CREATE OR REPLACE FUNCTION {changed}() RETURNS trigger LANGUAGE plpgsql "
    "AS $$ BEGIN NEW._digest := ''; RETURN NEW; END $$",
    "CREATE TRIGGER changed BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW "
    "WHEN (current_setting('scalar.pushing', true) IS DISTINCT FROM 'yes') EXECUTE FUNCTION {changed}()",
    "CREATE TABLE {about} ({columns_of_about})",
)
_ABOUT = {"about": "jsonb", "version": "bigint", "node": "integer", "num_nodes": "integer", "num_clips": "bigint"}
_STATE = """
SELECT about, coalesce(version, -1), node, num_nodes, coalesce(num_clips, -1), ARRAY(
    SELECT attname || ' ' || format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid IN (to_regclass({table}), to_regclass({about}))
) FROM {rows}
"""
_LATEST = 2**53  # versions are milliseconds since 1970
_FACTS = {"clip_id": "clip_id", "path": "_path", "part": "_part", "seconds": "_seconds", "changed": "_changed"}
_FACTS |= {"words": "_words", "all_words": "_all_words"}  # fields of a payload and their columns
_TYPES = {"float16": ("halfvec", ">f2"), "float32": ("vector", ">f4")}
_FINER = 4096.0  # scale of a query's float16 rounding error, so that float16 can hold that too
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_TIMEOUT, _TIMEOUT_OF_PAGE, _TIMEOUT_OF_PUSH = 60, 10, 3600
_PATIENCE = 5.0  # seconds to wait until all nodes have the same version during a push
_PAUSE = 0.05
_ROUNDING = 1e-12  # of float64
_ONE_BY_ONE = 16  # threads per node: concurrent queries
_SHARE, _TIMES = 64, 16  # size of the first sample: 1/64 of the rows, or 16 times the length of the list if more

# PostgreSQL stores neither NUL nor bytes that are not text. A stored text has an escape character instead, and then
# the character that stands for them where paths are compared with patterns.
_ESCAPE = "\uffff"  # a noncharacter
_SEEN = {code: chr(seen) for code, seen in PLAIN.items()} | {0: "\ufffe"}
_ESCAPED = {code: _ESCAPE + seen for code, seen in _SEEN.items()} | {ord(_ESCAPE): 2 * _ESCAPE}
_UNESCAPED = {escaped: chr(code) for code, escaped in _ESCAPED.items()}
_PATH_SEEN = (
    f"CASE WHEN strpos(_path, '{_ESCAPE}') > 0 THEN regexp_replace(_path, '{_ESCAPE}(.)', '\\1', 'g') ELSE _path END"
)

Answered = TypeVar("Answered")


class _Where(NamedTuple):
    """A condition, and its values by name."""

    text: sql.Composable
    values: dict[str, Any]


_ALL = _Where(sql.SQL("true"), {})


class _State(NamedTuple):
    """The row of a node's `TABLE_about`."""

    about: About
    version: int
    node: int
    num_nodes: int
    num_clips: int


class _Query(NamedTuple):
    """A query: its vectors by parameter name, the SQL of its inner products, the modalities of these, and the
    options."""

    values: dict[str, str]
    products: list[str]
    places: list[int]
    options: ScoreOptions


class _Node:
    """A node, and the SQL names of its tables."""

    def __init__(self, address: TableAddress):
        self.name, self.address = address.name, address
        schema = [address.schema] if address.schema else []
        names = (sql.Identifier(*schema, address.table + more) for more in ("", "_about", "_changed"))
        self.table, self.about, self.changed = names

    def connect(self, timeout: int) -> psycopg.Connection:
        own = {"connect_timeout": timeout, "application_name": "scalar", "client_encoding": "utf8"}
        connection = psycopg.connect(**self.address.options, **own, autocommit=True, prepare_threshold=None)
        connection.execute(f"SET jit = off; SET statement_timeout = '{timeout}s'")
        return connection


def _to_text(text: str) -> str:
    """A text, or a file name in the form of [`~gallery.columns.to_utf8`] or not, in the form stored in PostgreSQL."""
    return from_utf8(text).translate(_ESCAPED)


def _from_text(text: str) -> str:
    """The inverse of [`_to_text`]: a text, or a file name that need not be UTF-8."""
    return re.sub(f"(?s){_ESCAPE}.", lambda escaped: _UNESCAPED.get(escaped[0], escaped[0]), text)


def _message_of(error: Exception) -> str:
    """The message of an error in one line, without a password that it may contain."""
    text, password = " ".join(str(error).split()) or type(error).__name__, os.environ.get("PGPASSWORD")
    return (text.replace(password, "...") if password else text)[:300]


def _cut(connection: psycopg.Connection) -> None:
    """Abort the request on a connection at once, whatever thread waits for it."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


class Table:
    """
    A PostgreSQL table, which need not exist yet: a [`~search.engine.clips.Engine`]. Passwords come from the
    environment or `~/.pgpass`.

    Args:
        addresses (`Sequence[TableAddress]`): of the nodes, in any order.
        is_patient (`bool`): timeout of a node: 60 s, or 10 s if false, as for the page.
    """

    is_exact, growth, is_limited, takes_any_query = True, 16, False, True
    no_filters: tuple[str, ...] = ()
    points_at_once = 2000

    def __init__(self, addresses: Sequence[TableAddress], is_patient: bool = True):
        self.nodes = [_Node(address) for address in sorted(addresses, key=str)]
        self.name = self.nodes[0].address.path  # without the host: the page shows it to everybody
        self.timeout = _TIMEOUT if is_patient else _TIMEOUT_OF_PAGE
        self._threads = ThreadPoolExecutor(_ONE_BY_ONE * len(self.nodes))
        self._idle: list[list[psycopg.Connection]] = []
        self._here = local()  # per thread: the connections of its query or push, and the states of the nodes
        self._about: About | None = None
        self._version = 0

    def close(self) -> None:
        """Close all connections."""
        while self._idle:
            self._drop(self._idle.pop())
        self._threads.shutdown()

    # Asking nodes ---------------------------------------------------------------------------------------------------

    def _gather(self, tasks: Sequence[Future[Answered]], seconds: float) -> list[Answered]:
        """The results of tasks, one per node; an [`EngineError`] that names the node if one fails."""
        answers, end = [], time.monotonic() + seconds
        for node, task in zip(self.nodes, tasks, strict=True):
            try:
                answers.append(task.result(max(0.0, end - time.monotonic())))
            except TimeoutError:
                raise EngineError(f"{node.name} did not answer within {seconds:g} seconds.") from None
            except psycopg.Error as error:
                raise EngineError(f"{node.name}: {_message_of(error)}") from None
        return answers

    def _each(self, ask: Callable[[_Node, psycopg.Connection], Answered]) -> list[Answered]:
        """Call all nodes in parallel, in the query or push of this thread."""
        if not hasattr(self._here, "connections"):
            with self.reading():
                return self._each(ask)
        tasks = [self._threads.submit(ask, *pair) for pair in zip(self.nodes, self._here.connections, strict=True)]
        try:
            return self._gather(tasks, getattr(self._here, "timeout", self.timeout))
        except BaseException:
            for connection in self._here.connections:
                _cut(connection)
            wait(tasks, 1)  # they end soon
            raise

    def _run(self, text: str, values: Any = None, binary: bool = False, **parts: sql.Composable) -> list[list[tuple]]:
        """Run a statement on each node, where `{table}` and `{about}` stand for its tables."""

        def ask(node: _Node, connection: psycopg.Connection) -> list[tuple]:
            statement = sql.SQL(text).format(table=node.table, about=node.about, **parts)
            found = connection.execute(statement, values, binary=binary)
            return found.fetchall() if found.description else []

        return self._each(ask)

    def _connect(self) -> list[psycopg.Connection]:
        tasks = [self._threads.submit(node.connect, self.timeout) for node in self.nodes]
        try:
            return self._gather(tasks, self.timeout + 1)
        except BaseException:
            for task in tasks:  # late connections are closed, too
                task.add_done_callback(lambda done: done.exception() or done.result().close())
            raise

    def _drop(self, connections: Sequence[psycopg.Connection]) -> None:
        for connection in connections:
            _cut(connection)
            connection.close()

    @contextmanager
    def _begun(self, begin: Callable[[], Answered]) -> Iterator[Answered]:
        """Open or reuse a connection to each node, in this thread, and call `begin`. Connections are kept if nothing
        fails; an old one that a server has closed meanwhile is replaced."""
        try:
            while True:
                is_kept = bool(self._idle)
                self._here.connections = self._idle.pop() if is_kept else self._connect()
                try:
                    begun = begin()
                    break
                except EngineError as error:
                    if not (is_kept and isinstance(error.__context__, psycopg.Error)):  # it may hang
                        raise
                    self._drop(self._here.connections)
            yield begun
            self._idle.append(self._here.connections)
        except BaseException:
            self._drop(getattr(self._here, "connections", ()))
            raise
        finally:
            vars(self._here).clear()

    def _states(self) -> list[_State]:
        """The state of every node."""

        def ask(node: _Node, connection: psycopg.Connection) -> _State:
            names = {"table": node.table.as_string(connection), "about": node.about.as_string(connection)}
            statement = sql.SQL(_STATE).format(rows=node.about, **{k: sql.Literal(v) for k, v in names.items()})
            try:
                rows = connection.execute(statement).fetchall()
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                reason = f"There is no gallery in {node.name}. `scalar push GALLERY ADDRESS` writes one."
                raise NoCollectionError(reason) from None
            except (psycopg.errors.UndefinedColumn, psycopg.errors.DatatypeMismatch):
                rows = []
            name = f"The table {node.name}"
            if len(rows) != 1 or None in rows[0]:
                raise foreign(name)
            about, *numbers, columns = rows[0]
            about = about_from(about, name)
            if not {f"{column} {kind}" for column, kind in (_columns_of(about) | _ABOUT).items()} <= {*columns}:
                raise foreign(name)
            return _State(about, *numbers)

        return self._each(ask)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """
        Read one version on all nodes.

        Raises:
            EngineError: a node does not answer, is behind the others, or holds another model's vectors.
        """
        if hasattr(self._here, "connections"):
            yield
            return

        def begin() -> list[_State]:
            self._run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return self._states()

        end = time.monotonic() + _PATIENCE
        while True:
            with self._begun(begin) as states:
                if (problem := self._disagreement(states)) is None:
                    self._here.states, self._version = states, states[0].version
                    yield
                self._run("ROLLBACK")
            if problem is None:
                return
            if time.monotonic() > end:
                raise EngineError(problem)
            time.sleep(_PAUSE)

    def _disagreement(self, states: Sequence[_State]) -> str | None:
        """Why nodes have different versions, or `None`; raises an error if waiting cannot help."""
        for number, (node, state) in enumerate(zip(self.nodes, states, strict=True)):
            if not 0 <= state.version < _LATEST:
                raise DamagedError(f"{node.name} has a version that no push writes. Push the gallery again.")
            if (state.node, state.num_nodes) != (number, len(states)):
                raise EngineError(
                    f"{node.name} is node {state.node + 1} of {state.num_nodes} of a gallery, but node {number + 1} "
                    f"of {len(states)} in the address. Name all nodes of the push, and no others."
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
            f"{' and '.join(late)} is behind: its data is older than version {newest}, which was seen before. If it "
            "is a replica, wait for it; if a push was interrupted, push the gallery again."
        )

    # What it is -----------------------------------------------------------------------------------------------------

    def _missing(self) -> list[bool]:
        """For each node, whether its tables are missing."""

        def ask(node: _Node, connection: psycopg.Connection) -> bool:
            found = connection.execute("SELECT to_regclass(%s)", [node.about.as_string(connection)])
            return found.fetchone()[0] is None

        return self._each(ask)

    def exists(self) -> bool:
        """Whether every node has its tables; within a push."""
        return not any(self._missing())

    def about(self, is_new: bool = False) -> About:
        """
        Describe what the table holds.

        Raises:
            FileNotFoundError: there is no such table.
            ValueError: it was not made by `push`, or has another format.
        """
        about = self._about
        if is_new or about is None:
            with self.reading():  # or in a push
                states = self._here.states if hasattr(self._here, "states") else self._states()
            self._about = about = states[0].about
        return about

    def create(self, about: About, num_shards: int | None = None, num_replicas: int | None = None) -> None:
        """Create missing tables; within a push."""
        if num_shards is not None or num_replicas is not None:
            raise UnsupportedError(
                "--shards and --replicas are for Qdrant. The address lists the nodes of PostgreSQL, which makes its "
                "own replicas."
            )
        columns, columns_of_about = (
            sql.SQL(", ").join(sql.SQL(f"{{}} {kind}").format(sql.Identifier(name)) for name, kind in kinds.items())
            for kinds in (_columns_of(about), _ABOUT)
        )
        metadata, missing = json.dumps(about.as_metadata()["scalar"]), self._missing()

        def make(node: _Node, connection: psycopg.Connection) -> None:
            number = self.nodes.index(node)
            if not missing[number]:
                return
            parts = {"table": node.table, "about": node.about, "changed": node.changed}
            parts |= {"columns": columns, "columns_of_about": columns_of_about}
            try:
                for statement in _MADE:
                    connection.execute(sql.SQL(statement).format(**parts))
            except psycopg.errors.DuplicateTable:
                raise ValueError(
                    f"The table {node.name} already exists, and was not made by `scalar push`. Choose another name."
                ) from None
            row = metadata, 0, number, len(self.nodes), 0
            connection.execute(sql.SQL("INSERT INTO {about} VALUES (%s, %s, %s, %s, %s)").format(**parts), row)

        self._each(make)

    def describe(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata of the gallery; within a push."""
        about = replace(self.about(), metadata=dict(metadata)).as_metadata()["scalar"]
        self._run("UPDATE {about} SET about = %s", [json.dumps(about)])
        self._about, self._here.changed = None, True

    def index_payload(self) -> None:
        """Do nothing: a scan evaluates conditions."""

    # Writing --------------------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Push in one transaction per node; other pushes wait."""

        def begin() -> bool:
            self._run("BEGIN")
            lock = "SELECT pg_try_advisory_xact_lock(hashtextextended('scalar push ' || {name}, 0))"
            return all(rows[0][0] for rows in self._run(lock, name=sql.Literal(self.name)))

        while True:
            with self._begun(begin) as is_locked:
                if is_locked:
                    self._run("SET LOCAL statement_timeout = 0; SET LOCAL scalar.pushing = 'yes'")
                    self._here.changed, self._here.timeout = False, _TIMEOUT_OF_PUSH
                    yield
                    self._note_version()
                    self._run("COMMIT")
                    return
                self._run("ROLLBACK")  # release the locks of some nodes, so that two pushes cannot block each other
            time.sleep(_PAUSE * (1 + np.random.default_rng().random()))

    def _note_version(self) -> None:
        """Record the number of rows, and give all nodes a new version if something changed, or is wrong."""
        states = self._states()
        versions = {state.version for state in states}
        counts = [rows[0][0] for rows in self._run("SELECT count(*) FROM {table}")]
        is_right = len(versions) == 1 and 0 < min(versions) < _LATEST
        is_right &= counts == [state.num_clips for state in states]
        if self._here.changed or not is_right:
            newer = [version + 1 for version in versions if version < _LATEST]
            version = max(*newer, time.time_ns() // 10**6, self._version + 1)
            self._run("UPDATE {about} SET version = %s, num_clips = (SELECT count(*) FROM {table})", [version])

    def known(self, part: str) -> Iterator[tuple[str, str, int]]:
        """The number, hash and place of each clip of a part, or of none. Those of damaged rows differ from all that a
        push writes, so that they are rewritten or removed."""
        place = f"CASE WHEN _place BETWEEN 0 AND {_LATEST} THEN _place ELSE -1 END"
        text = f"SELECT number::text, coalesce(_digest, ''), {place} FROM {{table}} WHERE coalesce(_part, %s) = %s"
        rows = self._run(text, 2 * [_to_text(part)])
        return chain.from_iterable(rows)

    def put(self, points: Sequence[Point]) -> None:
        """Write clips; each one is replaced as a whole."""
        about = self.about()
        names = [*map(sql.Identifier, (*_COLUMNS, *about.modalities))]
        changes = [sql.SQL("{0} = excluded.{0}").format(name) for name in names]
        parts = {"names": sql.SQL(", ").join(names), "changes": sql.SQL(", ").join(changes)}
        rows: list[list[tuple]] = [[] for _ in self.nodes]
        for row in _rows_of(points, _TYPES[about.dtype][1]):
            rows[row[0].int % len(self.nodes)].append(row)

        def copy(node: _Node, connection: psycopg.Connection) -> None:
            statement = sql.SQL("COPY pushed ({names}) FROM STDIN (FORMAT BINARY)").format(**parts)
            with connection.cursor().copy(statement) as copied:
                copied.set_types([*_COLUMNS.values(), *["bytea"] * len(about.modalities)])
                for row in rows[self.nodes.index(node)]:
                    copied.write_row(row)

        self._run("CREATE TEMP TABLE IF NOT EXISTS pushed (LIKE {table}) ON COMMIT DROP")
        self._each(copy)
        self._run(
            "INSERT INTO {table} ({names}) SELECT {names} FROM pushed ON CONFLICT (number) DO UPDATE SET {changes}",
            **parts,
        )
        self._run("TRUNCATE pushed")
        self._here.changed = True

    def remove(self, ids: Sequence[str]) -> None:
        """Remove clips."""
        self._run("DELETE FROM {table} WHERE number = ANY(%s::uuid[])", [list(ids)])
        self._here.changed = True

    # Reading --------------------------------------------------------------------------------------------------------

    def condition(
        self,
        wanted: Filter | None,
        modalities: Sequence[str] | None = None,
        without: str | None = None,
        outside: Sequence[str] = (),
    ) -> _Where | None:
        """The condition on hits; `None` if every clip is allowed."""
        parts, known, values = _conditions(wanted or Filter())
        parts += [fulfilled for fulfilled, _ in known.values()]
        if modalities is not None:
            there = [sql.SQL("{} IS NOT NULL").format(sql.Identifier(name)) for name in modalities]
            parts.append(sql.SQL("({})").format(sql.SQL(" OR ").join(there)))
        if without is not None:
            parts.append(sql.SQL("number <> %(without)s::uuid"))
        if outside:
            parts.append(sql.SQL("_path <> ALL(%(outside)s)"))
        values |= {"without": without, "outside": list(map(_to_text, outside))}
        return _Where(sql.SQL(" AND ").join(parts), values) if parts else None

    def counts(self, wanted: Filter | None, without: str | None = None) -> Counts:
        """
        Count all clips and those allowed.

        Raises:
            DamagedError: a node has more or fewer rows than were pushed, or some were written by others.
        """
        where = self.condition(wanted, without=without) or _ALL
        parts, known, _ = _conditions(wanted or Filter())
        conditions = [where.text]
        for name in known:
            others = [sql.SQL("({} OR {})").format(*known[other]) for other in known if other != name]
            conditions.append(sql.SQL(" AND ").join([*parts, known[name][1], *others]))
        asked = [sql.SQL("count(*) FILTER (WHERE {})").format(condition) for condition in conditions]
        with self.reading():
            states = self._here.states
            changed = self._run("SELECT count(*), min(number::text) FROM {table} WHERE _digest = ''")
            rows = self._run("SELECT count(*), {asked} FROM {table}", where.values, asked=sql.SQL(", ").join(asked))
        for node, ((count, number),) in zip(self.nodes, changed, strict=True):
            if count:
                raise damaged(node.name, number, count)
        lines = [row[0] for row in rows]
        for node, line, state in zip(self.nodes, lines, states, strict=True):
            if line[0] != state.num_clips:
                raise DamagedError(
                    f"{node.name} has {line[0]} rows, but {state.num_clips} were pushed. Push the gallery again."
                )
        note = None
        if len(self.nodes) > 1:
            counts = ", ".join(f"{node.name} ({line[0]} clips)" for node, line in zip(self.nodes, lines, strict=True))
            note = f"{len(self.nodes)} nodes counted, of version {states[0].version}: {counts}."
        num_clips, num_allowed, *left_out = (sum(column) for column in zip(*lines, strict=True))
        unknown = {name: count for name, count in zip(known, left_out, strict=True) if count}
        return Counts(num_clips, num_allowed, unknown, note=note)

    def __len__(self) -> int:
        return self.count(None)

    def count(self, where: _Where | None) -> int:
        """The number of clips that meet a condition."""
        where = where or _ALL
        return sum(
            rows[0][0]
            for rows in self._run("SELECT count(*) FROM {table} WHERE {where}", where.values, where=where.text)
        )

    def is_estimate(self, count: int) -> bool:
        """Always False: rows are counted."""
        return False

    def asked(self, text: torch.Tensor, seen: Sequence[bool], options: ScoreOptions) -> Asked:
        """A query from a text: its vector, and the SQL of its products; in float16, the vector has two parts."""
        about, vector = self.about(), text.float().numpy()
        if about.dtype == "float32":
            parts = {"vector": vector}
            product = "-({0} <#> %(vector)s::vector)"
        else:
            coarse = vector.astype(np.float16)
            rest = ((vector - coarse.astype(np.float32)) * np.float32(_FINER)).astype(np.float16)
            parts = {"coarse": coarse, "rest": rest}
            product = f"(-({{0}} <#> %(coarse)s::halfvec) - ({{0}} <#> %(rest)s::halfvec) / {_FINER})"
        values = {name: f"[{','.join(map(str, part.tolist()))}]" for name, part in parts.items()}
        places = [place for place, is_seen in enumerate(seen) if is_seen]
        products = [product.format(sql.Identifier(about.modalities[place]).as_string()) for place in places]
        return Asked(_Query(values, products, places, options), True, -np.inf)

    def nearest(self, query: _Query, limit: int, where: _Where | None) -> list[tuple[str, float]]:
        """The clips whose scores may be highest, and an upper bound of each score."""
        where = where or _ALL
        with self.reading():
            least = min(state.num_clips for state in self._here.states)  # clips are spread evenly
            sample = max(least / _SHARE, _TIMES * limit)
            percent = 100 * sample / least if sample < least / 4 else None
            text = listed("{table}", "{where}", percent, *query[1:], MIN_CLIP_NORM, self.about().dim)
            lists = self._run(text, query.values | where.values | {"limit": limit}, where=where.text)
        return list(islice(merge(*lists, key=lambda entry: -entry[1]), limit))

    def fetch(self, ids: Sequence[str]) -> list[Point]:
        """
        Read clips by their numbers; those that are gone are left out.

        Raises:
            DamagedError: a clip is not as it was written.
        """
        about, points = self.about(), []
        names = sql.SQL(", ").join(map(sql.Identifier, (*_COLUMNS, *about.modalities)))
        text = "SELECT {names} FROM {table} WHERE number = ANY(%s::uuid[])"
        for node, rows in zip(self.nodes, self._run(text, [list(ids)], binary=True, names=names), strict=True):
            for row in rows:
                point = _point_of(row, about)
                if point is None:
                    raise damaged(node.name, str(row[0]))
                points.append(point)
        return points

    def of_files(self, paths: Sequence[str]) -> list[tuple[str, str]]:
        """The number and name of each clip of some files."""
        text = "SELECT number::text, clip_id FROM {table} WHERE _path = ANY(%s)"
        found = chain.from_iterable(self._run(text, [list(map(_to_text, paths))]))
        clips = []
        for number, name in found:
            if name is None:
                raise damaged(self.name, number)
            clips.append((number, _from_text(name)))
        return clips

    def path_of(self, number: str) -> str | None:
        """The file of a clip; `None` if it is gone or has none."""
        found = chain.from_iterable(self._run("SELECT _path FROM {table} WHERE number = %s::uuid", [number]))
        return next((_from_text(path) for (path,) in found if path is not None), None)

    def try_out(self) -> None:
        """Count the clips."""
        self.count(None)


def _conditions(
    wanted: Filter,
) -> tuple[list[sql.Composable], dict[str, tuple[sql.Composable, sql.Composable]], dict[str, Any]]:
    """A filter as SQL: conditions on known facts; for each fact that may be unknown, its condition and a test whether
    it is unknown; and the values."""
    values: dict[str, Any] = {}
    parts = [sql.SQL("{} IS NOT NULL").format(sql.Identifier(name)) for name in wanted.has]
    parts += [sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in wanted.lacks]
    if wanted.paths:
        parts.append(sql.SQL(f"{_PATH_SEEN} ~ ANY(%(paths)s)"))
        patterns = map(text_pattern_of, wanted.paths)
        values["paths"] = [f"^(?:{pattern})$" for pattern in patterns if pattern is not None]
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


def _columns_of(about: About) -> dict[str, str]:
    """The columns of a table, and their types; PostgreSQL cuts names to 63 characters."""
    kind = f"{_TYPES[about.dtype][0]}({about.dim})"
    return _COLUMNS | {name[:63]: kind for name in about.modalities}


def _rows_of(points: Sequence[Point], kind: str) -> Iterator[tuple]:
    """Points as rows of [`_COLUMNS`] and vectors in pgvector's binary format."""
    embeds = torch.from_numpy(np.stack([point.modality_embeds for point in points]))
    mask, exactly = torch.tensor([point.modality_mask for point in points]), embeds.double()
    gram = exactly @ exactly.mT
    squares = hull_distance(gram, mask).square() - _ROUNDING
    reach = (1 + _ROUNDING) / squares.clamp(min=0).sqrt().clamp(min=MIN_CLIP_NORM)
    triangles = gram[:, *torch.tril_indices(*gram.shape[1:])].tolist()
    head = embeds.shape[-1].to_bytes(2, "big") + b"\0\0"
    vectors = embeds.numpy().astype(kind)
    for point, line, triangle, most in zip(points, vectors, triangles, reach.tolist(), strict=True):
        texts = {name: _to_text(value) for name, value in point.payload.items() if isinstance(value, str)}
        facts = {column: (point.payload | texts).get(name) for name, column in _FACTS.items()}
        facts |= {"number": uuid.UUID(point.number), "_place": point.place, "_digest": point.digest}
        facts |= {"_gram": triangle, "_reach": most}
        there = zip(line, point.modality_mask, strict=True)
        yield *(facts[name] for name in _COLUMNS), *(head + one.tobytes() if has else None for one, has in there)


def _point_of(row: Sequence[Any], about: About) -> Point | None:
    """A point, or `None` if it is not as it was written."""
    facts = dict(zip(_COLUMNS, row, strict=False))
    if None in (facts["clip_id"], facts["_part"]):
        return None
    payload = {name: facts[column] for name, column in _FACTS.items() if facts[column] is not None}
    payload |= {name: to_utf8(_from_text(value)) for name, value in payload.items() if isinstance(value, str)}
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
