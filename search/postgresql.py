"""A gallery in a table of PostgreSQL, on one server or partitioned over several, searched in one statement:

    SELECT _node, scalar_best_clips(..., _id, k), count(*) FROM clips GROUP BY _node

- A row is a clip: its facts for filters, one vector column for each modality (NULL where absent), their inner
  products in float64, and `_sum`, a hash of all that searching reads. The row -1 of each node has `_about`: what was
  pushed, with a version and the number of clips of every node.
- Nodes are partitions in foreign tables of `postgres_fdw`, which computes scores, lists and counts where the rows are.
- An answer has counted, on every node, all rows of one version with the hash that was written; otherwise it is an
  error that names the node.
- pgvector sums in float32, so the list holds upper bounds of the scores. The clips in it are read and scored in
  float64, and the list is made longer until its last bound is below the k-th best score.

Shapes: Q queries, N clips, M modalities, D dimensions.
"""

import hashlib
import json
import math
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import psycopg
import torch
from psycopg import sql

from gallery.columns import check_modality
from gallery.cues import cues_of
from gallery.described import Described, NoClipError
from gallery.filters import DATE, DURATION, WORDS, PatternError, text_pattern_of
from gallery.hits import Hits, Texts
from gallery.querying import check_vectors
from gallery.searcher import Clip, Scoring, Selection, UnsupportedError
from gallery.searching import check_supported, seen_of
from gallery.transcripts import Cue
from gallery.windows import Place, place_of_clip
from gallery.words import folded
from modeling_scalar.scores_scalar import MIN_NORM, WEIGHING, ScoreOptions, exact_scores, paired_weights

FUNCTIONS = Path(__file__).with_name("scoring.sql")
"""The SQL of `scalar_score`, `scalar_best` and `scalar_best_clips`."""

FACTS = {
    "clip_id": "text",
    "_path": "text",
    "_seconds": "double precision",
    "_changed": "bigint",
    "_words": "text",
    "_all_words": "boolean",
}
"""What is known of a clip, other than its vectors; NULL where unknown. `_changed` is in microseconds from 1970, and
`_words` as from [`~gallery.words.folded`]."""

OWN_COLUMNS = {
    "_node": "text",
    "_id": "bigint",
    "_about": "text",
    **FACTS,
    "_gram": "double precision[]",
    "_digest": "text",
    "_words_sum": "bigint",
    "_sum": "bigint",
}
"""The columns next to the vectors; names of modalities begin with a letter. `_id` is in the order of the gallery,
`_gram` the lower triangle, `_digest` the hash that `push` compares, `_words_sum` that of `_words`."""

VECTORS = {"float16": ("halfvec", ">f2"), "float32": ("vector", ">f4")}
"""By the precision of a gallery: pgvector's type, and that of its numbers on the wire."""

_ADDRESS = re.compile(
    r"(?P<server>postgresql://(?:[\w.-]+@)?[^@/?#\s]*/[\w.-]+)"
    r"/(?:(?P<schema>[A-Za-z_]\w{0,49})\.)?(?P<table>[A-Za-z_]\w{0,49})",
    re.ASCII,
)
_FORMAT = 1
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_MORE = 16  # entries of the first list beyond the number of hits
_GROWTH = 16
_QUERIES_AT_ONCE = 256  # whose clips are in memory at the same time
_READ_AT_ONCE = 512
_GRACE = 1.0  # seconds in which a server must cancel a statement that took too long
_HASTE = 2.0  # seconds in which a node must answer that it is there
_UNIT_ROUNDING = 2.0**-24  # of float32
_ROUNDING = 1e-9  # more than the float64 rounding error of a score


class TableError(OSError):
    """The server does not answer, or refuses a statement."""


class DamagedTableError(TableError):
    """What is in the table is not what was pushed."""


@dataclass(frozen=True)
class TableAddress:
    """
    The address of a table, `postgresql://[USER@]HOST[:PORT][,HOST[:PORT]...]/DATABASE/[SCHEMA.]TABLE`.

    Args:
        server (`str`): as psycopg takes it, with the database; of several hosts, the first that answers is used.
        table (`str`), schema (`str`, *optional*).
    """

    server: str
    table: str
    schema: str | None = None

    @classmethod
    def parse(cls, text: str) -> "TableAddress":
        """Parse an address; raises a ValueError, which does not repeat it, as it may contain a secret."""
        if re.search(r"://[^/]*:[^/]*@", text) or "?" in text:
            raise ValueError(
                "An address must not contain a password or options. Put a password into PGPASSWORD or ~/.pgpass, and "
                "options, such as PGSSLMODE, into the environment."
            )
        found = _ADDRESS.fullmatch(text)
        if found is None:
            raise ValueError(
                "Expected the address of a table, postgresql://[USER@]HOST[:PORT]/DATABASE/[SCHEMA.]TABLE; the name "
                "of a table has at most 50 letters, digits and _."
            )
        return cls(found["server"], found["table"], found["schema"])

    @property
    def name(self) -> str:
        """The name for messages, without the user."""
        server = self.server.removeprefix("postgresql://").rpartition("@")[2]
        return f"{server}/{self.table}" if self.schema is None else f"{server}/{self.schema}.{self.table}"

    def identifier(self, suffix: str = "") -> sql.Identifier:
        """The name in SQL of the table, or of another one whose name begins like it."""
        schema = [] if self.schema is None else [self.schema]
        return sql.Identifier(*schema, self.table + suffix)


@dataclass(frozen=True)
class Pushed:
    """
    What was pushed: the content of `_about`.

    Args:
        version (`int`): larger after every push.
        num_clips (`dict[str, int]`): by node; a table on one server has the node `""`.
        dim (`int`), dtype (`str`): of the vectors.
        metadata (`dict`): the gallery's: its model, and how it scores.
    """

    version: int
    num_clips: dict[str, int]
    dim: int
    dtype: str
    metadata: dict[str, Any]

    def text(self) -> str:
        """The form that is stored."""
        return json.dumps({**vars(self), "format": _FORMAT}, sort_keys=True)

    @classmethod
    def parse(cls, text: str, name: str) -> "Pushed":
        """The inverse of [`text`]; raises a ValueError if another version wrote it."""
        with suppress(AttributeError, KeyError, RecursionError, TypeError, ValueError):
            stored = json.loads(text)
            if stored.pop("format") == _FORMAT:
                pushed = cls(**stored)
                for modality in pushed.modalities:
                    check_modality(modality)
                return pushed
        raise ValueError(f"{name} was not made by `scalar push` of this version. Choose another name.")

    @property
    def modalities(self) -> tuple[str, ...]:
        """The names of the vector columns."""
        return tuple(self.metadata["modalities"])

    def differences(self, other: "Pushed") -> list[str]:
        """The fields in which the vectors of two galleries are of different kinds."""
        mine, others = ({"dim": pushed.dim, "dtype": pushed.dtype, **pushed.metadata} for pushed in (self, other))
        model = "fingerprint" if mine.get("fingerprint") else "model"
        names = ("dim", "dtype", "segment", "modalities", model)
        return [name for name in names if mine.get(name) != others.get(name)]

    def sum(self) -> sql.Composable:
        """SQL of the hash of a row, by functions that every server has and that `postgres_fdw` runs on the nodes."""
        send = f"{VECTORS[self.dtype][0]}_send"
        vectors = [sql.SQL(f"{send}({{}})").format(sql.Identifier(name)) for name in self.modalities]
        return sql.SQL(
            "hash_array_extended(ARRAY[_node, _about, clip_id, _path, _digest], 0) "
            "# hash_array_extended(ARRAY[_id, _changed, _words_sum, _all_words::int], 1) "
            "# hash_array_extended(array_append(_gram, _seconds), 2) # hash_array_extended(ARRAY[{}], 3)"
        ).format(sql.SQL(", ").join(vectors))


WORDS_SUM = sql.SQL("hash_array_extended(ARRAY[_words], 0)")
"""SQL of the hash of the words of a row."""


def gram_of(vectors: np.ndarray) -> np.ndarray:
    """The inner products `(N, M (M + 1) / 2)` of vectors `(N, M, D)` in float64: the lower triangle by rows."""
    exactly = vectors.astype(np.float64)
    rows, columns = np.tril_indices(vectors.shape[1])
    return (exactly @ exactly.transpose(0, 2, 1))[:, rows, columns]


@dataclass(frozen=True, eq=False)
class Row:
    """A clip: the values of [`FACTS`], its vectors `(M, D)` as they are stored, zero where absent, and which are there
    `(M,)`."""

    facts: tuple[Any, ...]
    vectors: np.ndarray
    mask: np.ndarray

    def digest(self) -> str:
        """A hash of all of it."""
        content = json.dumps(self.facts).encode() + b"\0" + self.vectors.tobytes()
        return hashlib.blake2b(content, digest_size=16).hexdigest()

    @property
    def clip_id(self) -> str:
        """The identifier."""
        return self.facts[0]

    @property
    def place(self) -> Place:
        """The file of the clip, and its seconds; the name of a whole file may look like that of a window."""
        place = place_of_clip(self.clip_id)
        path = self.facts[1]
        return place if place.path == path else Place(path)


@dataclass(frozen=True, eq=False)
class TableClip(Clip):
    """A clip of a table; `changed` is the time of the last change of its file, in microseconds from 1970."""

    changed: int | None = None

    @property
    def media(self) -> Path | None:
        """Its file, if it is on this machine and has not changed."""
        path = Path(self.place.path)
        try:
            is_same = path.is_absolute() and path.is_file() and path.stat().st_mtime_ns // 1000 == self.changed
        except (OSError, ValueError):
            return None
        return path if is_same else None

    def words(self) -> dict[str, list[Cue]]:
        """The subtitles of its file, if it is on this machine; transcripts stay in the folder of the gallery."""
        media = self.media
        return {} if media is None else {"subtitle": cues_of(str(media))}


# Statements ----------------------------------------------------------------------------------------------------------


def _cut(connection: psycopg.Connection) -> None:
    """End what runs on a connection at once, whatever thread waits for it."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


class Table:
    """
    Statements on a table. Safe to use from several threads: each transaction has its own connection.

    Args:
        address ([`TableAddress`]).
        timeout (`float`): seconds that a statement may take.
    """

    def __init__(self, address: TableAddress, timeout: float = 60):
        self.address, self.name, self.timeout = address, address.name, timeout
        self._idle: list[psycopg.Connection] = []

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """The context of what the server does, whose errors are those of [`error`]."""
        try:
            yield
        except psycopg.Error as error:
            raise self.error(error) from None

    def connect(self) -> psycopg.Connection:
        """Open a connection."""
        with self.errors():
            connection = psycopg.connect(
                self.address.server,
                autocommit=True,
                prepare_threshold=None,
                connect_timeout=max(2, math.ceil(self.timeout)),
                application_name="scalar",
                client_encoding="utf8",
            )
        self.run(connection, "SET statement_timeout = {limit}", limit=math.ceil(1000 * self.timeout))
        self.run(connection, "SET enable_partitionwise_aggregate = on")
        self.run(connection, "SET jit = off")
        return connection

    def begin(self, mode: str) -> psycopg.Connection:
        """Begin a transaction on a connection that is not in use, or on a new one."""
        with suppress(IndexError):  # there is none
            connection = self._idle.pop()
            try:
                self.run(connection, f"BEGIN {mode}")
                return connection
            except TableError:  # the server was started again
                connection.close()
                self.close()
        connection = self.connect()
        self.run(connection, f"BEGIN {mode}")
        return connection

    @contextmanager
    def transaction(self, mode: str = "ISOLATION LEVEL REPEATABLE READ READ ONLY") -> Iterator[psycopg.Connection]:
        """The connection of a transaction, by default of one snapshot of every node."""
        connection = self.begin(mode)
        try:
            yield connection
            self.run(connection, "COMMIT")
        except BaseException:
            _cut(connection)
            connection.close()
            raise
        self._idle.append(connection)

    def run(
        self, connection: psycopg.Connection, statement: str, values: Any = None, binary: bool = False, **parts: Any
    ) -> list[tuple]:
        """
        Run a statement, in which `{table}` stands for the table, and the names of `parts` for these.

        Returns:
            The rows.

        Raises:
            TableError: it fails, or the server does not answer in time.
        """
        statement = sql.SQL(statement).format(table=self.address.identifier(), **parts)
        timer = Timer(self.timeout + _GRACE, _cut, [connection])  # a server that hangs cancels nothing
        timer.start()
        try:
            with self.errors():
                found = connection.execute(statement, values, binary=binary)
                return found.fetchall() if found.description else []
        finally:
            timer.cancel()

    def error(self, error: psycopg.Error) -> Exception:
        """What the error of a statement means, in one line, without a password that it may contain."""
        is_here = "remote SQL" not in (error.diag.context or "")
        if is_here and isinstance(error, psycopg.errors.UndefinedTable):
            return FileNotFoundError(f"There is no table {self.name}. `scalar push GALLERY ADDRESS` makes it.")
        if is_here and isinstance(error, psycopg.errors.UndefinedColumn):
            return ValueError(f"{self.name} was not made by `scalar push`. Choose another name.")
        if isinstance(error, psycopg.errors.InvalidRegularExpression):
            return PatternError(f"A path pattern is invalid: {error.diag.message_primary}.")
        text = " ".join(str(error).split()) or type(error).__name__
        password = os.environ.get("PGPASSWORD")
        if password:
            text = text.replace(password, "...")
        return TableError(f"{self.name}: {text[:300]}")

    def named(self, node: str) -> str:
        """A node in messages."""
        return f"The node {node!r} of {self.name}" if node else self.name

    def failing(self, nodes: Sequence[str]) -> list[str]:
        """Those of some nodes that do not answer at once; none if the server of the address does not."""
        failing = []
        for node in nodes:
            hasty = Table(self.address, _HASTE)
            try:
                connection = hasty.connect()
            except OSError:
                return []
            try:
                hasty.run(connection, "SELECT _about FROM {table} WHERE _node = %s AND _id = -1", [node])
            except OSError:
                failing.append(node)
            _cut(connection)
            connection.close()
        return failing

    def agreed(self, answers: Sequence[tuple[str, str | None]]) -> Pushed:
        """
        What was pushed, if every node has it.

        Args:
            answers (list of `(str, str)`): node and `_about` of the rows -1.

        Raises:
            DamagedTableError: nodes are missing, or have different versions.
        """
        states = [(node, Pushed.parse(about, self.name)) for node, about in answers if about is not None]
        if not states:
            raise FileNotFoundError(f"{self.name} holds no gallery. `scalar push GALLERY ADDRESS` writes one.")
        newest = max((pushed for _, pushed in states), key=lambda pushed: pushed.version)
        right = [node for node, pushed in states if pushed == newest]
        wrong = [node for node in newest.num_clips if right.count(node) != 1]
        wrong += [node for node, _ in answers if node not in right]
        for node in wrong:
            raise DamagedTableError(
                f"{self.named(node)} does not have version {newest.version}, which another one has, or is not of this "
                "table. If it is a copy, wait for it; otherwise push the gallery again."
            )
        return newest

    def pushed(self, connection: psycopg.Connection) -> Pushed:
        """Read what was pushed."""
        return self.agreed(self.run(connection, "SELECT _node, _about FROM {table} WHERE _id = -1"))

    def check_counts(
        self, connection: psycopg.Connection, pushed: Pushed, counts: Sequence[tuple[str, int, int]]
    ) -> None:
        """
        Raise a DamagedTableError unless every node has all rows of a version as they were written.

        Args:
            counts (list of `(str, int, int)`): of each node the rows, and those with the right hash.
        """
        for node, num_rows, num_right in counts:
            expected = pushed.num_clips[node] + 1  # with the row -1
            if num_rows == num_right == expected:
                continue
            found = self.run(
                connection,
                "SELECT coalesce(clip_id, _id::text) FROM {table} WHERE _node = %s AND "
                "({sum} = _sum AND {words_sum} = _words_sum) IS NOT TRUE ORDER BY _id LIMIT 3",
                [node],
                sum=pushed.sum(),
                words_sum=WORDS_SUM,
            )
            names = "".join(f" {name!r}" for (name,) in found)
            raise DamagedTableError(
                f"{self.named(node)} has {num_rows - 1} clips, {num_right - 1} of them as they were written; "
                f"{expected - 1} were pushed.{' Changed:' * bool(names)}{names} Push the gallery again."
            )

    def check(self) -> Pushed:
        """Check the counts and hashes of all rows, words included; returns what was pushed."""
        with self.transaction() as connection:
            pushed = self.pushed(connection)
            counts = self.run(
                connection,
                "SELECT _node, count(*), count(*) FILTER (WHERE {sum} = _sum AND {words_sum} = _words_sum) "
                "FROM {table} GROUP BY _node",
                sum=pushed.sum(),
                words_sum=WORDS_SUM,
            )
            self.check_counts(connection, pushed, counts)
        return pushed

    def rows(self, connection: psycopg.Connection, pushed: Pushed, where: str, values: Any) -> dict[int, Row]:
        """Read the clips that meet a condition, by `_id`; raises a DamagedTableError if one was changed."""
        kind = VECTORS[pushed.dtype][1]
        names = map(sql.Identifier, ("_node", "_id", "_digest", *FACTS, *pushed.modalities))
        statement = f"SELECT {{names}} FROM {{table}} WHERE _id >= 0 AND {where}"
        found = self.run(connection, statement, values, binary=True, names=sql.SQL(", ").join(names))
        rows = {}
        for node, number, digest, *values_ in found:
            facts, stored = values_[: len(FACTS)], values_[len(FACTS) :]
            vectors = np.zeros((len(stored), pushed.dim), pushed.dtype)
            for place, vector in enumerate(stored):
                if vector is not None:
                    vectors[place] = np.frombuffer(vector[4:], kind)  # after the number of dimensions
            row = Row(tuple(facts), vectors, np.array([vector is not None for vector in stored]))
            if row.digest() != digest:
                raise DamagedTableError(f"{self.named(node)} has a changed clip, {row.clip_id!r}. Push again.")
            rows[number] = row
        return rows


# Conditions ----------------------------------------------------------------------------------------------------------


def _can_be_stored(text: str) -> bool:
    """Whether PostgreSQL can hold a text, which it cannot with a NUL or a lone surrogate."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True)
class _Condition:
    """
    SQL of which clips may be found.

    Args:
        known (`str`): the conditions on facts that are known of every clip.
        doubtful (`dict[str, tuple[str, str]]`): by the name of a fact that may be unknown, the condition on it, and
            that it is unknown.
        values (`dict`): by name.
    """

    known: str
    doubtful: dict[str, tuple[str, str]]
    values: dict[str, Any]

    def allowed(self) -> str:
        """That all conditions are met."""
        return " AND ".join([self.known, *(met for met, _ in self.doubtful.values())])

    def left_out(self, fact: str) -> str:
        """That this fact is unknown, and no other known fact is against the clip."""
        others = [f"({met} OR {unknown})" for name, (met, unknown) in self.doubtful.items() if name != fact]
        return " AND ".join([self.known, self.doubtful[fact][1], *others])


def condition_of(among: Selection, modalities: Sequence[str]) -> _Condition:
    """A selection as SQL, but for the modalities in use."""
    wanted = among.filter
    wanted.check_modalities(modalities)  # so that their names can be parts of SQL
    known = ["_id >= 0"]
    known += [f'"{name}" IS NOT NULL' for name in wanted.has]
    known += [f'"{name}" IS NULL' for name in wanted.lacks]
    values: dict[str, Any] = {}
    if wanted.paths:
        patterns = map(text_pattern_of, wanted.paths)
        values["paths"] = [f"^(?:{pattern})$" for pattern in patterns if pattern is not None]
        known.append("_path ~ ANY(%(paths)s::text[])")
    for condition, name, value in (
        ("clip_id <> %(without)s", "without", among.without),
        ("_path = %(inside)s", "inside", among.inside),
        ("_path <> ALL(%(outside)s::text[])", "outside", list(among.outside) or None),
    ):
        if value is not None:
            values[name] = value
            known.append(condition)
    doubtful = {}
    first, last = (moment and (moment - _EPOCH) // _MICROSECOND for moment in (wanted.after, wanted.before))
    for fact, column, conditions in (
        (
            DURATION,
            "_seconds",
            {"_seconds >= %(shortest)s": wanted.min_duration, "_seconds <= %(longest)s": wanted.max_duration},
        ),
        (DATE, "_changed", {"_changed >= %(first)s": first, "_changed < %(last)s": last}),
    ):
        given = {condition: value for condition, value in conditions.items() if value is not None}
        if given:
            doubtful[fact] = f"({' AND '.join(given)})", f"{column} IS NULL"
    values |= {"shortest": wanted.min_duration, "longest": wanted.max_duration, "first": first, "last": last}
    words = {f"word{number}": folded(word) for number, word in enumerate(wanted.words)}
    if words:
        met = " AND ".join(f"strpos(_words, %({name})s) > 0" for name in words)
        doubtful[WORDS] = f"({met})", f"(NOT _all_words AND NOT ({met}))"
    values |= words
    if not all(_can_be_stored(text) for text in (among.inside or "", *words.values())):
        return _Condition("false", {}, {})
    return _Condition(" AND ".join(known), doubtful, values)


# Searching -----------------------------------------------------------------------------------------------------------


class TableSearcher:
    """
    A table as a [`~gallery.searcher.Searcher`]: exact, with every filter.

    Args:
        table ([`Table`]): which it searches.
        pushed ([`Pushed`], *optional*): what is in it; by default it is read.

    Raises:
        FileNotFoundError: there is no such table, or nothing in it.
        ValueError: it was not made by `push`.
        TableError: the server does not answer, or the nodes do not agree.
    """

    unsupported = frozenset({"mask", "unique", "rerank", "listing"})

    def __init__(self, table: Table, pushed: Pushed | None = None):
        if pushed is None:
            with table.transaction() as connection:
                pushed = table.pushed(connection)
        self.table, self.pushed = table, pushed
        self.described = Described(pushed.metadata, table.name)
        self.described.dim, self.described.dtype = pushed.dim, pushed.dtype

    def __len__(self) -> int:
        return sum(self.pushed.num_clips.values())

    def current(self) -> "TableSearcher":
        """The latest state: itself if nothing was pushed."""
        with self.table.transaction() as connection:
            pushed = self.table.pushed(connection)
        return self if pushed == self.pushed else TableSearcher(self.table, pushed)

    def rank(self, queries: torch.Tensor, k: int, scoring: Scoring, among: Selection) -> list[Hits]:
        """
        Find the exact k best clips of each query.

        Args:
            queries (`torch.FloatTensor` of shape `(Q, D)`): unit norm.
            k (`int`): number of hits.
            scoring ([`~gallery.searcher.Scoring`]): only the score `"scalar"`.
            among ([`~gallery.searcher.Selection`]): without `mask` and `unique`.

        Raises:
            UnsupportedError: only a gallery in a folder can do this.
            DamagedTableError: the table does not have all rows of one version as they were written.
            TableError: a server does not answer.
        """
        queries = check_vectors(queries, self.pushed.dim)
        check_supported(self, among)
        if scoring.method != "scalar":
            raise UnsupportedError(
                f"{self.table.name} has only the score 'scalar', got {scoring.method!r}; a folder has others."
            )
        unknown = sorted(set(scoring.options) - set(WEIGHING))
        if unknown:
            raise TypeError(f"The score 'scalar' has no {', '.join(unknown)}.")
        own = {"query_temperature": self.described.query_temperature} | self.described.calibration
        options = ScoreOptions(**own | scoring.options)
        results = []
        try:
            for some in queries.split(_QUERIES_AT_ONCE):
                with self.table.transaction() as connection:
                    results += _Ranking(self, connection, options, among).hits(some, k)
        except DamagedTableError:
            raise
        except TableError as error:
            # The server may name neither a node that hangs nor a row of which no score can be computed.
            failing = self.table.failing([node for node in self.pushed.num_clips if node])
            if failing:
                raise TableError(f"{error}. No answer from the node {', '.join(map(repr, failing))}.") from None
            self.table.check()
            raise
        return results

    def clips(self, clip_ids: Sequence[str]) -> list[Clip]:
        """Read clips; raises a KeyError that names a missing one."""
        names = [name for name in clip_ids if _can_be_stored(name)]
        with self.table.transaction() as connection:
            rows = self.table.rows(connection, self.pushed, "clip_id = ANY(%s)", [names]).values()
        found = {row.clip_id: row for row in rows}
        clips = []
        for name in clip_ids:
            row = found[name]
            facts = dict(zip(FACTS, row.facts, strict=True))
            embeds = torch.from_numpy(row.vectors.astype(np.float32))
            clips.append(TableClip(name, row.place, embeds, torch.from_numpy(row.mask), changed=facts["_changed"]))
        return clips

    def clip_named(self, name: str) -> str:
        """Find a clip by its identifier, its path, or the end of its path; raises a NoClipError."""
        found = []
        if _can_be_stored(name):
            statement = (
                "SELECT clip_id FROM {table} WHERE clip_id = %s OR _path = ANY(%s) OR "
                "right(_path, length(%s) + 1) = '/' || %s ORDER BY clip_id <> %s, _id LIMIT 4"
            )
            paths = [name, os.path.realpath(name)]
            with self.table.transaction() as connection:
                rows = self.table.run(connection, statement, [name, paths, name, name, name])
            found = [clip_id for (clip_id,) in rows]
        if name in found or len(found) == 1:
            return found[0]
        which = f"{len(found)} or more clips" if found else "no clip"
        examples = f": name one, such as {', '.join(map(repr, found[:3]))}" if found else ""
        raise NoClipError(
            f"There is {which} {name!r} in {self.table.name}{examples}. `scalar query ... --json` prints the "
            "`clip_id` of each hit."
        )

    def list_clips(self, among: Selection, skip: int, k: int, per_file: bool) -> Hits:
        """Raise an UnsupportedError."""
        raise UnsupportedError(f"{self.table.name} does not list clips. List those of the gallery in its folder.")

    def counts(self) -> dict[str, int]:
        """The number of clips by modality."""
        names = self.pushed.modalities
        counts = sql.SQL(", ").join(sql.SQL("count({})").format(sql.Identifier(name)) for name in names)
        with self.table.transaction() as connection:
            (numbers,) = self.table.run(connection, "SELECT {counts} FROM {table} WHERE _id >= 0", counts=counts)
        return dict(zip(names, numbers, strict=True))


class _Ranking:
    """
    The lists of some queries from one snapshot.

    Args:
        searcher ([`TableSearcher`]), connection (`psycopg.Connection`): of the snapshot.
        options ([`~modeling_scalar.scores_scalar.ScoreOptions`]), among ([`~gallery.searcher.Selection`]): how clips
            are scored, and which.
    """

    def __init__(
        self, searcher: TableSearcher, connection: psycopg.Connection, options: ScoreOptions, among: Selection
    ):
        self.searcher, self.connection, self.options = searcher, connection, options
        self.table, self.pushed = searcher.table, searcher.pushed
        self.seen = np.array(seen_of(among.modalities, self.pushed.modalities))
        self.condition = condition_of(among, self.pushed.modalities)
        self.rows: dict[int, Row] = {}
        self.num_allowed: int | None = None
        self.unknown: dict[str, int] = {}

    def hits(self, queries: torch.Tensor, k: int) -> list[Hits]:
        """The k best clips of each query `(Q, D)`."""
        best: list[list[tuple[float, int]]] = [[] for _ in queries]
        num_scored = [0] * len(queries)
        waiting = list(range(len(queries)))
        limit = k + _MORE
        while waiting:
            lists = {query: self.bounds(queries[query], limit) for query in waiting}
            self.read({number for entries in lists.values() for _, number in entries})
            waiting = []
            for query, entries in lists.items():
                best[query] = self.scored(queries[query], [number for _, number in entries])[:k]
                num_scored[query] = len(entries)
                # Every clip that is not in the list has a score of at most its last bound.
                is_proved = len(best[query]) == k and best[query][-1][0] > entries[-1][0]
                if len(entries) == limit and not is_proved:
                    waiting.append(query)
            limit *= _GROWTH
        return [self.hits_of(*found) for found in zip(queries, best, num_scored, strict=True)]

    def bounds(self, query: torch.Tensor, limit: int) -> list[tuple[float, int]]:
        """Upper bounds of scores, and numbers, of the `limit` clips with the highest bounds, best first."""
        condition, options = self.condition, self.options
        scales = options.modality_scale or (1.0,)
        # D products of float32 numbers, summed in any order
        error = (self.pushed.dim + 16) * _UNIT_ROUNDING * max(scales) + _ROUNDING
        values = condition.values | {
            "query": f"[{','.join(map(str, query.tolist()))}]",
            "temperature": float(options.query_temperature),
            "error": error,
            "limit": limit,
        }
        columns = (
            "scalar_best_clips(ARRAY[{products}]::float8[], _gram, %(temperature)s::float8, %(error)s::float8, _id, "
            f"%(limit)s::int) FILTER (WHERE {condition.allowed()})"
        )
        is_first = self.num_allowed is None  # in a snapshot, nothing changes afterwards
        if is_first:
            right = "_sum = {sum} AND _words_sum = {words_sum}" if WORDS in condition.doubtful else "_sum = {sum}"
            counted = [right, condition.allowed(), *map(condition.left_out, condition.doubtful)]
            columns += ", min(_about), count(*)" + "".join(f", count(*) FILTER (WHERE {where})" for where in counted)
        rows = self.table.run(
            self.connection,
            f"SELECT _node, {columns} FROM {{table}} GROUP BY _node",
            values,
            products=sql.SQL(", ").join(map(self.product, range(len(self.seen)))),
            sum=self.pushed.sum(),
            words_sum=WORDS_SUM,
        )
        if is_first:
            self.note_counts([(node, *counts) for node, _, *counts in rows])
        entries = [(float(bound), int(number)) for _, best, *_ in rows for bound, number in best or ()]
        return sorted(entries, key=lambda entry: (-entry[0], entry[1]))[:limit]

    def note_counts(self, counts: Sequence[tuple]) -> None:
        """Check that every row of one version was counted, and note how many clips are allowed."""
        pushed = self.table.agreed([(node, about) for node, about, *_ in counts])
        different = self.pushed.differences(pushed)
        if different:
            raise TableError(
                f"{self.table.name} was replaced after it was opened; its vectors differ in {', '.join(different)}"
            )
        self.table.check_counts(self.connection, pushed, [(node, *numbers[:2]) for node, _, *numbers in counts])
        self.pushed = pushed
        _, _, _, _, allowed, *left_out = zip(*counts, strict=True)
        self.num_allowed = sum(allowed)
        for fact, numbers in zip(self.condition.doubtful, left_out, strict=True):
            if sum(numbers):
                self.unknown[fact] = sum(numbers)

    def product(self, place: int) -> sql.Composable:
        """SQL of the calibrated product of the query with a modality; NULL if it is absent or not in use."""
        if not self.seen[place]:
            return sql.NULL
        name = sql.Identifier(self.pushed.modalities[place])
        product = sql.SQL("-({}::vector <#> %(query)s::vector)").format(name)
        scales, offsets = self.options.modality_scale, self.options.modality_offset
        if scales is not None:
            product = sql.SQL("{} * {}").format(product, float(scales[place]))
        if offsets is not None:
            product = sql.SQL("{} + {}::float8").format(product, float(offsets[place]))
        return product

    def read(self, numbers: set[int]) -> None:
        """Read the clips of lists that were not read yet."""
        missing = sorted(numbers - self.rows.keys())
        for start in range(0, len(missing), _READ_AT_ONCE):
            some = missing[start : start + _READ_AT_ONCE]
            self.rows |= self.table.rows(self.connection, self.pushed, "_id = ANY(%s)", [some])

    def arrays(self, query: torch.Tensor, numbers: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A query and clips as pairs: texts `(P, D)`, vectors `(P, M, D)`, and which of them are there `(P, M)`."""
        rows = [self.rows[number] for number in numbers]
        embeds = torch.from_numpy(np.stack([row.vectors for row in rows]))
        return query.expand(len(rows), -1), embeds, torch.from_numpy(np.stack([row.mask for row in rows]))

    def scored(self, query: torch.Tensor, numbers: Sequence[int]) -> list[tuple[float, int]]:
        """The scores of clips in float64, and their numbers, best first; equal ones in the order of the gallery."""
        if not numbers:
            return []
        texts, embeds, mask = self.arrays(query, numbers)
        seen = mask & torch.from_numpy(self.seen)
        scores = exact_scores(texts, embeds, seen, MIN_NORM[torch.float32], self.options).tolist()
        return sorted(zip(scores, numbers, strict=True), key=lambda entry: (-entry[0], entry[1]))

    def hits_of(self, query: torch.Tensor, best: Sequence[tuple[float, int]], num_scored: int) -> Hits:
        """The best clips of a query as hits."""
        numbers = [number for _, number in best]
        scores = torch.tensor([score for score, _ in best], dtype=torch.float64).float()
        weights = presence = torch.zeros(0, len(self.seen))
        if numbers:
            texts, embeds, presence = self.arrays(query, numbers)
            weighing = {name: getattr(self.options, name) for name in WEIGHING}
            weights = paired_weights(texts, embeds, presence & torch.from_numpy(self.seen), **weighing)
        rows = [self.rows[number] for number in numbers]
        nothing = [()] * len(rows)
        texts = Texts([row.clip_id for row in rows], [row.place for row in rows], nothing, nothing)
        return Hits(
            self.pushed.modalities,
            scores,
            presence.bool(),
            lambda: texts,
            weights=weights,
            num_clips=sum(self.pushed.num_clips.values()),
            num_scored=num_scored,
            num_allowed=self.num_allowed,
            unknown=self.unknown,
            reason=None if rows else f"none of the clips in {self.table.name} matches the filters",
        )


__all__ = [
    "FACTS",
    "FUNCTIONS",
    "OWN_COLUMNS",
    "VECTORS",
    "WORDS_SUM",
    "DamagedTableError",
    "Pushed",
    "Row",
    "Table",
    "TableAddress",
    "TableClip",
    "TableError",
    "TableSearcher",
    "condition_of",
    "gram_of",
]
