"""A gallery in a table of PostgreSQL, on one server or partitioned over several, searched in one statement:

    SELECT _node, scalar.scalar_best(scalar.scalar_score(...), _id, k), count(*) FROM clips GROUP BY _node

- A row is a clip: its facts for filters, one vector column for each modality (NULL where absent), their inner
  products in float64, `_rho`, the least norm of a weighted mean of them, and `_sum`, a hash of all that searching
  reads. `_now` is the same hash, a generated column: the server computes it whenever a row is written, whoever writes
  it. The row -1 of each node has `_about`: what was pushed, with a version and the number of clips of every node.
- Nodes are partitions in foreign tables of `postgres_fdw`, which computes scores, lists and counts where the rows are.
- Searching runs code of whoever owns the table and the functions. So names have schemas, the search path is fixed, and
  each transaction begins with a check of all owners.
- An answer has counted, on every node, all rows of one version with the hash that was written; otherwise it is an
  error that names the node.
- A score is at most the largest product, divided by `_rho`: only clips for which that is as high as the best scores of
  a sample are scored.
- pgvector sums in float32, so the list holds upper bounds of the scores. The clips in it are read and scored in
  float64, and the list is made longer until its last bound is below the k-th best score.

Shapes: Q queries, N clips, M modalities, D dimensions.
"""

import hashlib
import json
import math
import os
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
from psycopg import errors, sql

from scalar_retrieval.commands.schema import check_value, count, nothing, parse_json, size, whole
from scalar_retrieval.gallery.exact.blocks import LONGEST
from scalar_retrieval.gallery.filters import DATE, DURATION, WORDS, PatternError, are_selected, text_pattern_of
from scalar_retrieval.gallery.hits import Hits, Texts
from scalar_retrieval.gallery.searcher import Scoring, Selection, StoredClip, UnsupportedError
from scalar_retrieval.gallery.store.described import (
    SLICES,
    Described,
    NoClipError,
    check_metadata,
    modalities_in,
    slices_of,
)
from scalar_retrieval.gallery.store.rows import MediaFile, check_modality
from scalar_retrieval.gallery.store.windows import Place, place_of_clip
from scalar_retrieval.gallery.words.cues import subtitle_cues
from scalar_retrieval.gallery.words.folding import folded
from scalar_retrieval.gallery.words.transcripts import Cue
from scalar_retrieval.modeling_scalar.modalities_scalar import Slice
from scalar_retrieval.modeling_scalar.scores_scalar import (
    MIN_NORM,
    WEIGHING,
    ScoreOptions,
    exact_scores,
    paired_weights,
)

from .addresses import TableAddress

FUNCTIONS = Path(__file__).with_name("scoring.sql").read_text()
"""The SQL of `scalar_score` and `scalar_best`, in the schema `scalar`."""

SCHEMA = f"BEGIN;\nCREATE SCHEMA scalar;\n\n{FUNCTIONS}\nCOMMIT;\n"
"""The same SQL with the schema, all or nothing: in a schema of another role, functions could be that role's."""

FACTS = {
    "clip_id": "text",
    "_path": "text",
    "_seconds": "double precision",
    "_changed": "bigint",
    "_recorded": "bigint",
    "_words": "text",
    "_all_words": "boolean",
}
"""What is known of a clip, other than its vectors; NULL where unknown. `_changed` and `_recorded` are in
microseconds from 1970, and `_words` as from [`~scalar_retrieval.gallery.words.folding.folded`]."""

OWN_COLUMNS = {
    "_node": "text",
    "_id": "bigint",
    "_about": "text",
    **FACTS,
    "_gram": "double precision[]",
    "_rho": "double precision",
    "_digest": "text",
    "_sum": "bigint",
    "_now": "bigint",
}
"""The columns next to the vectors; names of modalities begin with a letter. `_id` is in the order of the gallery,
`_gram` the lower triangle, `_rho` of [`~scalar_retrieval.gallery.exact.blocks.inverses_of`], `_digest` the hash that
`push` compares, `_sum` that of the row as it was pushed, `_now` of the row as it was last written."""

VECTORS = {"float16": ("halfvec", ">f2"), "float32": ("vector", ">f4")}
"""By the precision of a gallery: pgvector's type, and that of its numbers on the wire."""
_PRODUCT_ERROR = {"float16": 1e-3, "float32": 1e-5}
"""More than the error of an inner product with a query in this type."""

# Whatever may run code in a statement on the table and belongs to a role that cannot already do all that this one can.
# `push` lets no other role create functions or triggers; what other objects of the table call is in pg_depend.
_STRANGERS = """\
WITH RECURSIVE parts(part) AS (
    SELECT '{table}'::regclass::oid UNION SELECT inhrelid FROM pg_inherits JOIN parts ON inhparent = part
), objects(object, owner) AS (
    SELECT 'table ' || part::regclass, relowner FROM parts JOIN pg_class ON oid = part
    UNION ALL SELECT 'right to make triggers on ' || part::regclass, grantee
        FROM parts JOIN pg_class ON oid = part CROSS JOIN aclexplode(relacl) WHERE privilege_type = 'TRIGGER'
    UNION ALL SELECT pg_describe_object(uses.refclassid, uses.refobjid, 0), owner.refobjid
        FROM parts JOIN pg_depend AS has ON has.refclassid = 'pg_class'::regclass AND has.refobjid = part
        JOIN pg_depend AS uses ON uses.classid = has.classid AND uses.objid = has.objid
        JOIN pg_shdepend AS owner ON owner.classid = uses.refclassid AND owner.objid = uses.refobjid
        JOIN pg_database ON pg_database.oid = dbid AND datname = current_database()
        WHERE has.deptype IN ('a', 'i') AND owner.deptype = 'o'
    UNION ALL SELECT 'server ' || srvname, srvowner
        FROM parts JOIN pg_foreign_table ON ftrelid = part JOIN pg_foreign_server AS server ON server.oid = ftserver
    UNION ALL SELECT 'extension ' || extname, extowner FROM pg_extension
        WHERE extname IN ('vector', 'scalar', 'postgres_fdw')
    UNION ALL SELECT 'schema scalar', nspowner FROM pg_namespace WHERE nspname = 'scalar'
    UNION ALL SELECT 'right to create in the schema scalar', grantee
        FROM pg_namespace CROSS JOIN aclexplode(nspacl) WHERE nspname = 'scalar' AND privilege_type = 'CREATE'
    UNION ALL SELECT 'function ' || oid::regprocedure, proowner FROM pg_proc
        WHERE proname LIKE 'scalar%' AND pronamespace = to_regnamespace('scalar')
)
SELECT object, coalesce(rolname, 'PUBLIC'), current_user FROM objects LEFT JOIN pg_roles ON pg_roles.oid = owner
WHERE (rolname IS NOT NULL AND pg_has_role(rolname, current_user, 'MEMBER')) IS NOT TRUE LIMIT 1"""

_SNAPSHOT = "ISOLATION LEVEL REPEATABLE READ READ ONLY"
_FORMAT = 1
_NEVER = 2**62  # microseconds after 1970
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MORE = 16  # entries of the first list beyond the number of hits
_GROWTH = 16
_LOOSE = 4  # clips that may reach a score, for each that does
_GRACE = 1.0  # seconds in which a server must cancel a statement that took too long
_HASTE = 2.0  # seconds in which a node must answer that it is there
_UNIT_ROUNDING = 2.0**-24  # of float32
_ROUNDING = 1e-9  # more than the float64 rounding error of a score


def _is_precision(value: Any) -> bool:
    """float16 or float32"""
    return isinstance(value, str) and value in VECTORS


_ABOUT = {
    "format": f"[{_FORMAT}, {_FORMAT}]",
    "version": whole,
    "num_clips": {...: count},
    "dim": size,
    "dtype": _is_precision,
    "metadata": {},
    ...: nothing,
}


class TableError(OSError):
    """The server does not answer, or refuses a statement."""


class NodeError(TableError):
    """A node does not answer."""


class DamagedTableError(TableError):
    """What is in the table is not what was pushed, or may run what another role wrote."""


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
        return json.dumps(vars(self) | {"format": _FORMAT}, sort_keys=True)

    @classmethod
    def parse(cls, text: str, name: str) -> "Pushed":
        """The inverse of [`text`]; raises a ValueError if another version, or another program, wrote it."""
        try:
            stored = parse_json(text)
            check_value(stored, _ABOUT)
            check_metadata(stored["metadata"], "the table")
            del stored["format"]
            pushed = cls(**stored)
            # The names of modalities become parts of SQL.
            for modality in pushed.modalities:
                check_modality(modality)
            if max(pushed.slices)[1] != pushed.dim:
                raise ValueError(f"the slices {pushed.slices!r:.80} do not end at the dimension {pushed.dim}")
        except ValueError as error:
            what = str(error).rstrip(".")
            raise ValueError(
                f"{name} was not made by `scalar push` of this version: {what}. Choose another name."
            ) from error
        return pushed

    @property
    def modalities(self) -> tuple[str, ...]:
        """The names of the modalities."""
        return modalities_in(self.metadata)

    @property
    def slices(self) -> Sequence[Slice]:
        """For each modality, the start and the stop of the components of a query that its vectors have."""
        return slices_of(self.metadata, len(self.modalities), self.dim)

    def differences(self, other: "Pushed") -> list[str]:
        """The fields in which the vectors of two galleries are of different kinds."""
        mine = vars(self) | self.metadata
        others = vars(other) | other.metadata
        # A model may have moved to another folder, so its fingerprint is compared where it is known.
        model = "fingerprint" if mine.get("fingerprint") else "model"
        different = []
        for name in ("dim", "dtype", "segment", "modalities", SLICES, model):
            if mine.get(name) != others.get(name):
                different.append(name)
        return different

    @property
    def columns(self) -> list[str]:
        """The vector columns in SQL; the names have only letters, digits and _."""
        return [f'"{name}"' for name in self.modalities]

    def sum(self) -> str:
        """SQL of the hash of a row, by functions that every server has and that `postgres_fdw` runs on the nodes."""
        # The types of pgvector have no hash, but the bytes that they are sent as have one. The hash of an array is
        # that of its elements, not of its dimensions; `array_cat` makes an empty array of NULL.
        send = f"{{vector}}.{VECTORS[self.dtype][0]}_send"
        vectors = ", ".join(f"{send}({column})" for column in self.columns)
        return (
            "hash_array_extended(ARRAY[_node, _about, clip_id, _path, _words, _digest, array_dims(_gram)], 0) "
            "# hash_array_extended(ARRAY[_id, _changed, _recorded, _all_words::int], 1) "
            "# hash_array_extended(array_cat(_gram, ARRAY[]::float8[]), 2) "
            f"# hash_array_extended(ARRAY[_seconds, _rho], 4) # hash_array_extended(ARRAY[{vectors}], 3)"
        )

    def unchanged(self) -> str:
        """SQL of whether a row is as it was written, by a hash that is computed again."""
        return f"(_sum = {self.sum()})"


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
    def record(self) -> MediaFile:
        """What is known of its file: when it was changed and recorded, in whole microseconds."""
        _, path, _, changed, recorded, *_ = self.facts
        return MediaFile(path, 0, 1000 * (changed or 0), "", recorded_ns=recorded and 1000 * recorded)

    @property
    def place(self) -> Place:
        """The file of the clip, and its seconds; the name of a whole file may look like that of a window."""
        place = place_of_clip(self.clip_id)
        path = self.facts[1]
        return place if place.path == path else Place(path)


@dataclass(frozen=True, eq=False)
class TableClip(StoredClip):
    """A clip of a table; its record has only the times of its file."""

    @property
    def media(self) -> Path | None:
        """Its file, if it is on this machine and has not changed."""
        if self.record is None or not self.record.mtime_ns:
            return None
        path = Path(self.place.path)
        changed = self.record.mtime_ns // 1000
        with suppress(OSError, ValueError):  # it is out of reach
            if path.is_absolute() and path.is_file() and path.stat().st_mtime_ns // 1000 == changed:
                return path
        return None

    def words(self) -> dict[str, list[Cue]]:
        """The subtitles of its file, if it is on this machine; transcripts stay in the folder of the gallery."""
        media = self.media
        return {} if media is None else {"subtitle": subtitle_cues(str(media))}


# Statements ----------------------------------------------------------------------------------------------------------


def _cut(connection: psycopg.Connection) -> None:
    """End what runs on a connection at once, whatever thread waits for it."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


class DatabaseTable:
    """
    Statements on a table. Safe to use from several threads: each transaction has its own connection.

    Args:
        address ([`TableAddress`]).
        timeout (`float`): seconds that a statement may take.
    """

    def __init__(self, address: TableAddress, timeout: float = 60):
        self.address = address
        self.name = address.name
        self.timeout = timeout
        self.vector = "public"
        self._idle: list[psycopg.Connection] = []

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise what an error of the server means, in one line, without a password that it may contain."""
        try:
            yield
        except psycopg.Error as error:
            raise self._meaning(error) from None

    def _meaning(self, error: psycopg.Error) -> Exception:
        # What a node lacks must not be reported as missing here.
        is_here = "remote SQL" not in (error.diag.context or "")
        primary = str(error.diag.message_primary)
        match error:
            case errors.UndefinedTable() if is_here:
                return FileNotFoundError(f"There is no table {self.name}. `scalar push GALLERY ADDRESS` makes it.")
            case errors.UndefinedColumn() if is_here:
                return ValueError(f"{self.name} was not made by `scalar push`. Choose another name.")
            case errors.InvalidSchemaName() if is_here and "scalar" not in primary:
                return ValueError(f"{self.name}: {primary}. Create it, or choose another schema.")
            case errors.InvalidSchemaName() | errors.UndefinedFunction() if is_here:
                return TableError(f"{self.name} lacks functions: {primary}. `scalar push GALLERY ADDRESS` makes them.")
            case errors.DuplicateTable():
                return ValueError(f"There is already a table {self.name}. Drop it, or choose another name.")
            case errors.InvalidRegularExpression():
                return PatternError(f"A path pattern is invalid: {primary}.")
            case errors.QueryCanceled() if "timeout" in primary:
                return TableError(f"{self.name}: no answer in {self.timeout:g} seconds")
        # Anything else is passed on in one line.
        text = " ".join(str(error).split()) or type(error).__name__
        password = os.environ.get("PGPASSWORD")
        if password:
            text = text.replace(password, "...")
        return TableError(f"{self.name}: {text[:300]}")

    @contextmanager
    def transaction(self, mode: str = _SNAPSHOT, is_made: bool = True) -> Iterator[psycopg.Connection]:
        """
        The connection of a transaction, by default of one snapshot of every node.

        Args:
            mode (`str`): as in `BEGIN`.
            is_made (`bool`): whether the table exists, and what it may run is checked.

        Raises:
            FileNotFoundError: there is no such table.
            DamagedTableError: another role could run code by it.
            NodeError: a node does not answer; other errors of a statement are a TableError.
        """
        connection = self._begin(mode, is_made)
        try:
            yield connection
            self.run(connection, "COMMIT")
        except BaseException as error:
            connection.close()
            # The server does not name a node that hangs.
            if is_made and isinstance(error, TableError) and not isinstance(error, DamagedTableError | NodeError):
                silent = self._silent()
                if silent:
                    raise NodeError(f"{error}. No answer from the node {', '.join(map(repr, silent))}.") from None
            raise
        self._idle.append(connection)

    def _begin(self, mode: str, is_made: bool = True) -> psycopg.Connection:
        connection = self._connected(mode)
        if is_made:
            try:
                self.check_owners(connection)
            except BaseException:
                connection.close()
                raise
        return connection

    def _connected(self, mode: str) -> psycopg.Connection:
        # Take a connection that is idle, unless there is none, or its server was started again.
        with suppress(IndexError, TableError):
            connection = self._idle.pop()
            self.run(connection, f"BEGIN {mode}")
            return connection
        # Otherwise open one. Connecting may take no longer than a statement.
        with self.errors():
            connection = psycopg.connect(
                self.address.server,
                autocommit=True,
                prepare_threshold=None,
                connect_timeout=max(2, math.ceil(self.timeout)),
                application_name="scalar",
                client_encoding="utf8",
            )
        # In other schemas, other roles may have functions and operators that fit better than the built-in ones.
        self.run(
            connection,
            f"SET search_path = pg_catalog, pg_temp; SET statement_timeout = {math.ceil(1000 * self.timeout)}; "
            "SET enable_partitionwise_aggregate = on; SET jit = off",
        )
        # The schema of the extension `vector`
        for (name,) in self.run(
            connection,
            "SELECT nspname FROM pg_extension JOIN pg_namespace AS n ON n.oid = extnamespace WHERE extname = 'vector'",
        ):
            self.vector = name
        self.run(connection, f"BEGIN {mode}")
        return connection

    def check_owners(self, connection: psycopg.Connection) -> None:
        """Refuse a table by which another role could run code with the rights of this one."""
        # Until the end of the transaction, the table of this name stays the one that is checked here.
        self.run(connection, "LOCK TABLE {table} IN ACCESS SHARE MODE")
        for strange, owner, user in self.run(connection, _STRANGERS):
            raise DamagedTableError(
                f"{self.name}: the {strange} belongs to the role {owner!r}, whose code would run with the rights of "
                f"{user!r}. Remove it, or connect as {owner!r} or a role of which {owner!r} is a member."
            )

    def close(self) -> None:
        """Close the connections that are idle."""
        while self._idle:
            self._idle.pop().close()

    def composed(self, statement: str, **names: Any) -> sql.Composed:
        """A statement, in which `{table}` stands for the table, and `{vector}` for the schema of pgvector."""
        return sql.SQL(statement).format(table=self.address.identifier(), vector=sql.Identifier(self.vector), **names)

    def run(
        self, connection: psycopg.Connection, statement: str | sql.Composed, values: Any = None, binary: bool = False
    ) -> list[tuple]:
        """
        Run a statement; a text is one for [`composed`].

        Returns:
            The rows.

        Raises:
            TableError: it fails, or the server does not answer in time.
        """
        if isinstance(statement, str):
            statement = self.composed(statement)
        timer = Timer(self.timeout + _GRACE, _cut, [connection])  # a server that hangs cancels nothing
        timer.start()
        try:
            with self.errors():
                cursor = connection.execute(statement, values, binary=binary)
                return [] if cursor.description is None else cursor.fetchall()  # of a statement without rows, none
        finally:
            timer.cancel()

    def named(self, node: str) -> str:
        """A node in messages; a table on one server has the node `""`."""
        return f"The node {node!r} of {self.name}" if node else self.name

    def nodes(self, connection: psycopg.Connection) -> list[str]:
        """The nodes of the table; on one server, none."""
        parts = self.run(
            connection,
            "SELECT pg_get_expr(relpartbound, oid) FROM pg_class JOIN pg_inherits ON inhrelid = oid "
            "WHERE inhparent = '{table}'::regclass ORDER BY oid",
        )
        # A partition is `FOR VALUES IN ('node')`.
        return [bound.split("'")[1] for (bound,) in parts]

    def _silent(self) -> list[str]:
        """The nodes that do not answer at once; a TableError if the server of the address does not."""
        hasty = DatabaseTable(self.address, _HASTE)
        silent = []
        connection = hasty._begin(_SNAPSHOT)
        for node in hasty.nodes(connection):
            try:
                hasty.run(connection, "SELECT _about FROM {table} WHERE _node = %s AND _id = -1", [node])
            except OSError:
                silent.append(node)
                connection.close()
                connection = hasty._begin(_SNAPSHOT)
        connection.close()
        return silent

    def answers(self) -> bool:
        """Whether there is a table; a NodeError if one of its nodes does not answer."""
        try:
            with self.transaction() as connection:
                self.run(connection, "SELECT _node FROM {table} WHERE _id = -1")
        except FileNotFoundError:
            return False
        return True

    def agreed(self, answers: Sequence[tuple]) -> Pushed:
        """
        What was pushed, if every node has it.

        Args:
            answers (list of `tuple`): of each node, its name, the `_about` of its row -1, and more.

        Raises:
            DamagedTableError: nodes are missing, or have different versions.
        """
        stored = {node: about for node, about, *_ in answers}
        texts = set(stored.values()) - {None}
        if not texts:
            raise FileNotFoundError(f"{self.name} holds no gallery. `scalar push GALLERY ADDRESS` writes one.")
        # Every node must have the newest version, and no other node may be there.
        newest = max((Pushed.parse(text, self.name) for text in texts), key=lambda pushed: pushed.version)
        for node in [*newest.num_clips, *stored]:
            if node not in newest.num_clips or stored.get(node) != newest.text():
                raise DamagedTableError(
                    f"{self.named(node)} does not have version {newest.version}, which another one has, or is not of "
                    "this table. If it is a copy, wait for it; otherwise push the gallery again."
                )
        return newest

    def pushed(self, connection: psycopg.Connection) -> Pushed:
        """Read what was pushed."""
        return self.agreed(self.run(connection, "SELECT _node, _about FROM {table} WHERE _id = -1"))

    def whole(self, connection: psycopg.Connection, answers: Sequence[tuple]) -> Pushed:
        """
        What was pushed, if every node has all rows of it as they were written.

        Args:
            answers (list of `tuple`): of each node, its name, `_about`, the number of rows, that of rows with their
                hash, and more.

        Raises:
            DamagedTableError: nodes or rows are missing, or are not as they were written.
        """
        pushed = self.agreed(answers)
        for node, _, num_rows, num_unchanged, *_ in answers:
            expected = pushed.num_clips[node] + 1  # with the row -1
            if num_rows == num_unchanged == expected:
                continue
            # Name some of the rows that were changed.
            found = self.run(
                connection,
                "SELECT coalesce(clip_id, _id::text) FROM {table} "
                f"WHERE _node = %s AND {pushed.unchanged()} IS NOT TRUE ORDER BY _id LIMIT 3",
                [node],
            )
            names = "".join(f" {name!r}" for (name,) in found)
            if names:
                names = f" Changed:{names}"
            raise DamagedTableError(
                f"{self.named(node)} has {num_rows - 1} clips, {num_unchanged - 1} of them as they were written; "
                f"{expected - 1} were pushed.{names} Push the gallery again."
            )
        return pushed

    def check(self) -> Pushed:
        """Check the counts and hashes of all rows, words included; returns what was pushed."""
        with self.transaction() as connection:
            counts = f"count(*), count(*) FILTER (WHERE {self.pushed(connection).unchanged()})"
            answers = self.run(connection, f"SELECT _node, min(_about), {counts} FROM {{table}} GROUP BY _node")
            return self.whole(connection, answers)

    def rows(self, connection: psycopg.Connection, pushed: Pushed, where: str, values: Any) -> list[Row]:
        """Read the clips that meet a condition, in their order; raises a DamagedTableError if one was changed."""
        kind = VECTORS[pushed.dtype][1]
        names = ", ".join(["_node", "_digest", *FACTS, *pushed.columns])
        statement = f"SELECT {names} FROM {{table}} WHERE _id >= 0 AND {where} ORDER BY _id"
        rows = []
        for node, digest, *stored in self.run(connection, statement, values, binary=True):
            facts = tuple(stored[: len(FACTS)])
            vectors = np.zeros((len(pushed.modalities), pushed.dim), pushed.dtype)
            mask = np.zeros(len(pushed.modalities), bool)
            for place, vector in enumerate(stored[len(FACTS) :]):
                if vector is not None:
                    start, stop = pushed.slices[place]
                    vectors[place, start:stop] = np.frombuffer(vector[4:], kind)  # after the number of dimensions
                    mask[place] = True
            row = Row(facts, vectors, mask)
            # The hash is the one that `push` stored, unless the row was changed.
            if row.digest() != digest:
                raise DamagedTableError(f"{self.named(node)} has a changed clip, {row.clip_id!r}. Push again.")
            rows.append(row)
        return rows


# Conditions ----------------------------------------------------------------------------------------------------------


def condition_of(among: Selection, modalities: Sequence[str]) -> tuple[str, dict[str, str], dict[str, Any]]:
    """
    A selection as SQL, but for the modalities in use.

    Returns:
        That all conditions are met; by the name of a fact that may be unknown, that it is, and that no known fact is
        against the clip; and the values, by name.
    """
    wanted = among.filter
    wanted.check_modalities(modalities)  # so that their names can be parts of SQL
    # Conditions on facts that are always known
    known = [
        "_id >= 0",
        "clip_id IS DISTINCT FROM %(without)s::text",
        "(%(inside)s::text IS NULL OR _path = %(inside)s)",
        "_path <> ALL(%(outside)s::text[])",
    ]
    for name in wanted.has:
        known.append(f'"{name}" IS NOT NULL')
    for name in wanted.lacks:
        known.append(f'"{name}" IS NULL')
    values = {"without": among.without, "inside": among.inside, "outside": list(among.outside)}
    if wanted.paths:
        values["paths"] = []
        for path in wanted.paths:
            pattern = text_pattern_of(path)
            if pattern is not None:
                values["paths"].append(f"^(?:{pattern})$")
        known.append("_path ~ ANY(%(paths)s::text[])")

    # Facts that may be unknown: by name, SQL of whether the condition is met, and of whether it is unknown
    doubtful = {}
    if wanted.min_duration is not None or wanted.max_duration is not None:
        values["shortest"] = float(wanted.min_duration or 0)
        values["longest"] = float(wanted.max_duration) if wanted.max_duration is not None else math.inf
        doubtful[DURATION] = "_seconds BETWEEN %(shortest)s AND %(longest)s", "_seconds IS NULL"
    if wanted.after is not None or wanted.before is not None:
        values["first"] = (wanted.after - _EPOCH) // _MICROSECOND if wanted.after else -_NEVER
        values["last"] = (wanted.before - _EPOCH) // _MICROSECOND if wanted.before else _NEVER
        date = "CASE WHEN _recorded IS NULL THEN _changed ELSE _recorded END"  # nodes do not get `coalesce`
        doubtful[DATE] = f"{date} BETWEEN %(first)s AND %(last)s - 1", f"{date} IS NULL"
    if wanted.words:
        values["words"] = [f"%{folded(word)}%" for word in wanted.words]  # letters and spaces, so nothing to escape
        met = "_words LIKE ALL(%(words)s::text[])"
        doubtful[WORDS] = met, f"(NOT _all_words AND NOT {met})"

    # A clip is left out because of an unknown fact if it meets all other conditions, or may meet them.
    allowed = known.copy()
    possible = known.copy()
    for met, unknown in doubtful.values():
        allowed.append(met)
        possible.append(f"({met} OR {unknown})")
    left_out = {}
    for fact, (_, unknown) in doubtful.items():
        left_out[fact] = " AND ".join([*possible, unknown])
    return " AND ".join(allowed), left_out, values


# Searching -----------------------------------------------------------------------------------------------------------


class TableSearcher:
    """
    A table as a [`~scalar_retrieval.gallery.searcher.Searcher`]: exact, with every filter.

    Args:
        table ([`DatabaseTable`]): which it searches.

    Raises:
        FileNotFoundError: there is no such table, or nothing in it.
        ValueError: it was not made by `push`.
        TableError: the server does not answer, or the nodes do not agree.
    """

    unsupported = frozenset({"mask", "unique", "rerank", "listing"})

    def __init__(self, table: DatabaseTable):
        self.table = table
        with table.transaction() as connection:
            self.pushed = table.pushed(connection)
        self.described = Described(self.pushed.metadata, table.name)
        self.described.dim = self.pushed.dim
        self.described.slices = self.pushed.slices
        self.described.dtype = self.pushed.dtype

    def __len__(self) -> int:
        return sum(self.pushed.num_clips.values())

    def current(self) -> "TableSearcher":
        """The latest state: itself if nothing was pushed."""
        latest = TableSearcher(self.table)
        return self if latest.pushed == self.pushed else latest

    def rank(self, queries: torch.Tensor, k: int, scoring: Scoring, among: Selection) -> list[Hits]:
        """
        Find the exact k best clips of each query.

        Args:
            queries (`torch.FloatTensor` of shape `(Q, D)`): unit norm.
            k (`int`): number of hits.
            scoring ([`~scalar_retrieval.gallery.searcher.Scoring`]): only the score `"scalar"`.
            among ([`~scalar_retrieval.gallery.searcher.Selection`]): without `mask` and `unique`.

        Raises:
            UnsupportedError: only a gallery in a folder can do this.
            DamagedTableError: the table does not have all rows of one version as they were written.
            TableError: a server does not answer.
        """
        if scoring.method != "scalar":
            raise UnsupportedError(
                f"{self.table.name} has only the score 'scalar', got {scoring.method!r}; a folder has others."
            )
        # The gallery's own options, unless the query has others
        own = {"query_temperature": self.described.query_temperature} | self.described.calibration
        options = ScoreOptions(**own | scoring.options)
        try:
            with self.table.transaction() as connection:
                ranking = _Ranking(self, connection, options, among)
                return [ranking.hits(query, k) for query in queries]
        except (DamagedTableError, NodeError):
            raise
        except TableError:
            # The server does not name a row of which no score can be computed.
            self.table.check()
            raise

    def clips(self, clip_ids: Sequence[str]) -> list[StoredClip]:
        """Read clips; raises a KeyError that names a missing one."""
        with self.table.transaction() as connection:
            rows = self.table.rows(connection, self.pushed, "clip_id = ANY(%s)", [list(clip_ids)])
        found = {row.clip_id: row for row in rows}
        clips = []
        for name in clip_ids:
            row = found[name]
            embeds = torch.from_numpy(row.vectors.astype(np.float32))  # (M, D)
            mask = torch.from_numpy(row.mask)  # (M,)
            clips.append(TableClip(name, row.place, embeds, mask, record=row.record))
        return clips

    def clip_named(self, name: str) -> str:
        """Find a clip by its identifier, its path, or the end of its path; raises a NoClipError, or for several clips
        another ValueError."""
        found = []
        # No clip has a name with a NUL or a lone surrogate: PostgreSQL cannot hold it.
        if name.replace("\0", "").encode("utf-8", "ignore").decode() == name:
            statement = (
                "SELECT clip_id FROM {table} WHERE clip_id = %s OR _path = ANY(%s) OR "
                "right(_path, length(%s) + 1) = '/' || %s ORDER BY clip_id <> %s, _id LIMIT 4"
            )
            paths = [name, os.path.realpath(name)]
            with self.table.transaction() as connection:
                rows = self.table.run(connection, statement, [name, paths, name, name, name])
            found = [clip_id for (clip_id,) in rows]
        # The clip of this name comes first, where there is one.
        if name in found or len(found) == 1:
            return found[0]
        problem = ValueError if found else NoClipError
        raise problem(
            f"Expected one clip {name!r} in {self.table.name}, got {', '.join(map(repr, found[:3])) or 'none'}. "
            "`scalar query ... --json` prints the `clip_id` of each hit."
        )

    def counts(self) -> dict[str, int]:
        """The number of clips by modality."""
        counts = ", ".join(f"count({column})" for column in self.pushed.columns)
        with self.table.transaction() as connection:
            (found,) = self.table.run(connection, f"SELECT {counts} FROM {{table}}")
        return dict(zip(self.pushed.modalities, found, strict=True))


class _Ranking:
    """
    The lists of some queries from one snapshot.

    Args:
        searcher ([`TableSearcher`]), connection (`psycopg.Connection`): of the snapshot.
        options ([`~scalar_retrieval.modeling_scalar.scores_scalar.ScoreOptions`]), among
            ([`~scalar_retrieval.gallery.searcher.Selection`]): how clips are scored, and which.
    """

    def __init__(
        self, searcher: TableSearcher, connection: psycopg.Connection, options: ScoreOptions, among: Selection
    ):
        self.table = searcher.table
        self.pushed = searcher.pushed
        self.connection = connection
        self.options = options
        self.seen = are_selected(among.modalities, self.pushed.modalities)
        self.allowed, self.left_out, self.values = condition_of(among, self.pushed.modalities)
        self.num_allowed: int | None = None
        self.unknown: dict[str, int] = {}

    def hits(self, query: torch.Tensor, k: int) -> Hits:
        """The k best clips of a query `(D,)`."""
        # Score the clips with the highest bounds, and more of them until no other clip can be among the best.
        limit = k + _MORE
        while True:
            entries, rest = self.bounds(query, limit)
            numbers = [number for _, number in entries]
            rows = self.table.rows(self.connection, self.pushed, "_id = ANY(%s)", [numbers])
            shape = (len(rows), len(self.seen), self.pushed.dim)
            embeds = torch.from_numpy(np.array([row.vectors for row in rows], np.float32).reshape(shape))
            presence = torch.from_numpy(np.array([row.mask for row in rows], bool).reshape(shape[:2]))
            queries = query.expand(len(rows), -1)
            seen = presence & torch.tensor(self.seen)
            scores = exact_scores(queries, embeds, seen, MIN_NORM[torch.float32], self.options)
            best = scores.argsort(descending=True, stable=True)[:k]  # of equal ones, the first in the gallery
            if rest == -math.inf or (len(best) == k and scores[best[-1]] > rest):
                break
            limit *= _GROWTH

        weighing = {name: getattr(self.options, name) for name in WEIGHING}
        weights = paired_weights(queries[best], embeds[best], seen[best], **weighing)
        found = [rows[place] for place in best]
        nothing = [()] * len(best)  # a table knows neither problems nor copies
        names = [row.clip_id for row in found]
        texts = Texts(names, [row.place for row in found], nothing, nothing, [row.record for row in found])
        reason = None if found else f"none of the clips in {self.table.name} matches the filters"
        return Hits(
            self.pushed.modalities,
            scores[best].float(),
            presence[best],
            lambda: texts,
            weights=weights,
            num_clips=sum(self.pushed.num_clips.values()),
            num_scored=len(entries),
            num_allowed=self.num_allowed,
            unknown=self.unknown,
            reason=reason,
        )

    def bounds(self, query: torch.Tensor, limit: int) -> tuple[list[tuple[float, int]], float]:
        """Upper bounds of scores, and numbers, of at most `limit` clips, best first; and what no score of another clip
        is above, `-inf` if there is none."""
        options = self.options
        # The error of D products of float32 numbers, summed in any order
        rounding = (self.pushed.dim + 16) * _UNIT_ROUNDING
        values = self.values | {
            "query_temperature": float(options.query_temperature),
            "error": rounding * max(options.modality_scale or (1.0,)) + _ROUNDING,
            "limit": limit,
        }
        # What the modalities of a space have of the query
        for start, stop in self.pushed.slices:
            values[f"from_{start}"] = str(query[start:stop].tolist())
        products = ", ".join(map(self.product, range(len(self.seen))))

        def best(where: str, error: str) -> str:
            return (
                f"scalar.scalar_best(scalar.scalar_score(ARRAY[{products}]::float8[], _gram, "
                f"%(query_temperature)s::float8, error => {error}), _id, %(limit)s::int) FILTER (WHERE {where})"
            )

        # As many clips as are wanted have the scores of the best of a sample, so that others need not be scored.
        floor = -math.inf
        where = self.allowed
        step = math.isqrt(sum(self.pushed.num_clips.values()) // (_LOOSE * limit))
        if step > 1:
            # Hashes are spread evenly, and there is an index of them. Of two limits, the server of the address would
            # expect so few rows that it fetched them from the nodes.
            sample = f"WHERE _sum < {2**64 // step - 2**63}"
            entries = self.listed(values, "_node", best(where, "0"), sample)
            if len(entries) >= limit:
                floor, _ = entries[limit - 1]
                values["floor"] = floor
                where += f" AND ({' OR '.join(self.can_reach(floor))})"
        columns = "_node"
        # The first query also counts rows; in a snapshot, nothing changes afterwards.
        if self.num_allowed is None:
            columns += ", min(_about), count(*)"
            for part in ("_sum = _now", self.allowed, *self.left_out.values()):
                columns += f", count(*) FILTER (WHERE {part})"
        entries = self.listed(values, columns, best(where, "%(error)s::float8"))
        if len(entries) < limit:
            return entries, floor
        last, _ = entries[limit - 1]
        return entries[:limit], max(last, floor)

    def listed(self, values: dict[str, Any], columns: str, best: str, sample: str = "") -> list[tuple[float, int]]:
        """The scores and numbers that `best` gives of all nodes, best first; further columns are counts to note."""
        statement = f"SELECT {columns}, {best} FROM {{table}} {sample} GROUP BY _node"
        rows = self.table.run(self.connection, statement, values)
        if columns != "_node":
            self.note_counts(rows)
        entries = []
        for *_, found in rows:
            for score, number in found or ():
                entries.append((float(score), int(number)))
        return sorted(entries, key=lambda entry: (-entry[0], entry[1]))

    def note_counts(self, rows: Sequence[tuple]) -> None:
        """Check that every row of one version was counted, and note how many clips are allowed."""
        pushed = self.table.whole(self.connection, rows)
        different = self.pushed.differences(pushed)
        if different:
            raise TableError(
                f"{self.table.name} was replaced after it was opened; its vectors differ in {', '.join(different)}"
            )
        self.pushed = pushed
        # Add up the nodes; the first four numbers of each were checked.
        self.num_allowed = sum(row[4] for row in rows)
        for place, fact in enumerate(self.left_out, start=5):
            number = sum(row[place] for row in rows)
            if number:
                self.unknown[fact] = number

    def product(self, place: int) -> str:
        """SQL of the calibrated product of the query with a modality; NULL if it is absent or not in use."""
        if not self.seen[place]:
            return "NULL"
        start, _ = self.pushed.slices[place]
        vectors = f"{self.pushed.columns[place]}::{{vector}}.vector, %(from_{start})s::{{vector}}.vector"
        return self.calibrated(place, f"{{vector}}.inner_product({vectors})")

    def calibrated(self, place: int, product: str) -> str:
        """SQL of a product with a modality, calibrated."""
        if self.options.modality_scale is not None:
            product += f" * {float(self.options.modality_scale[place])}::float8"
        if self.options.modality_offset is not None:
            product += f" + ({float(self.options.modality_offset[place])})::float8"
        return product

    def can_reach(self, floor: float) -> Iterator[str]:
        """SQL of whether a clip may have a score of `%(floor)s`, by each modality in use: one has to hold. In the type
        of the column, products take half the time."""
        kind, _ = VECTORS[self.pushed.dtype]
        # Divided by the least norm, or what is negative by the largest.
        least = f"%(floor)s::float8 * {'_rho' if floor > 0 else LONGEST}"
        for place, column in enumerate(self.pushed.columns):
            if self.seen[place]:
                start, _ = self.pushed.slices[place]
                negative = f"({column} OPERATOR({{vector}}.<#>) %(from_{start})s::{{vector}}.{kind})"
                product = f"({_PRODUCT_ERROR[self.pushed.dtype]} - {negative})"
                yield f"{self.calibrated(place, product)} >= {least}"


__all__ = [
    "FACTS",
    "FUNCTIONS",
    "OWN_COLUMNS",
    "SCHEMA",
    "VECTORS",
    "DamagedTableError",
    "NodeError",
    "Pushed",
    "Row",
    "DatabaseTable",
    "TableClip",
    "TableError",
    "TableSearcher",
    "condition_of",
]
