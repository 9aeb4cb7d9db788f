"""A gallery in a table of PostgreSQL, on one server and on nodes: the score in SQL, pushes, damage, and nodes that
fail. That hits are right is tested in test_conformance.py."""

import json
import math
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psycopg
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scalar_retrieval.gallery.filters import Filter
from scalar_retrieval.gallery.searcher import Scoring, Selection
from scalar_retrieval.modeling_scalar.scores_scalar import ScoreOptions
from scalar_retrieval.search import postgresql
from scalar_retrieval.search.addresses import TableAddress
from scalar_retrieval.search.postgresql import (
    SCHEMA,
    DamagedTableError,
    DatabaseTable,
    NodeError,
    Pushed,
    TableError,
    TableSearcher,
)
from scalar_retrieval.search.push import PushReport, push, verify_table
from scalar_retrieval.search.settings import open_searcher
from tests.search.conformance import DAY, DIM, PAPER, SLICES, Made, make_clips, make_texts, names_of
from tests.search.test_forged import KINDS, METADATA, PARTS, forged, places_in
from tests.search.test_main import index, place, run  # noqa: F401 - a fixture


def execute(database, statement, values=None):
    with psycopg.connect(database, autocommit=True) as connection:
        found = connection.execute(statement, values)
        return found.fetchall() if found.description else None


@pytest.fixture
def database(postgres):
    return postgres(1)[0].new_database()


@pytest.fixture
def made():
    return Made(make_clips(seed=3, kinds=("random",), count=90))


def pushed(gallery, database, servers=(), timeout=60):
    """The searcher of a gallery in the table `clips` of a database, with its parts on servers."""
    address = TableAddress.parse(f"{database}/clips")
    push(gallery, address, [f"127.0.0.1:{server.port}" for server in servers])
    return TableSearcher(DatabaseTable(address, timeout))


def partitioned(postgres, count=3):
    """A new database, on every server, and the servers."""
    servers = postgres(count)
    (database, *_) = [server.new_database() for server in servers]
    return database, servers


def ranked(searcher, texts, k=5, temperature=0.1, among=None):
    return searcher.rank(texts, k, Scoring(options={"query_temperature": temperature}), among or Selection())


# The score in SQL ----------------------------------------------------------------------------------------------------


def score_of(products, gram, temperature, scales=None, offsets=None):
    """The score in float64; None stands for NULL."""
    there = [row for row, product in enumerate(products) if product is not None]
    if not there:
        return None
    scales, offsets = scales or [1.0] * len(products), offsets or [0.0] * len(products)
    cosines = np.array([products[row] * scales[row] + offsets[row] for row in there])
    weights = np.exp((cosines - cosines.max()) / temperature)
    weights /= weights.sum()
    squared = weights @ gram[np.ix_(there, there)] @ weights
    return weights @ cosines / max(math.sqrt(max(squared, 0)), 1e-3)


@pytest.fixture(scope="module")
def functions(_postgres_servers):
    (server,) = _postgres_servers(1)
    database = server.new_database()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(SCHEMA)
        yield connection


@st.composite
def clips_and_queries(draw):
    """Products, Gram matrix, temperature, scales and offsets of a clip with one to five modalities, of which some
    repeat or oppose another."""
    number = draw(st.integers(1, 5))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    text, *vectors = generator.standard_normal((number + 1, 7))
    for row in range(1, number):
        sign = draw(st.sampled_from((0, 0, 1, -1)))
        vectors[row] = sign * vectors[0] + vectors[row] * (1e-7 if sign else 1)
    vectors = np.array(vectors) / np.linalg.norm(vectors, axis=1, keepdims=True)
    products = (vectors @ text / np.linalg.norm(text)).tolist()
    for row in draw(st.sets(st.integers(0, number - 1))):
        products[row] = None
    temperature = draw(st.sampled_from((1e-30, 1e-6, 1e-3, 0.1, 3.0, math.inf)))
    numbers = st.none() | st.lists(st.floats(0.125, 8), min_size=number, max_size=number)
    return products, (vectors @ vectors.T), temperature, draw(numbers), draw(numbers)


SCORE = "SELECT scalar.scalar_score(%s::float8[], %s::float8[], %s, %s::float8[], %s::float8[])"


@given(clips_and_queries())
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_function_is_the_score_of_a_loop_in_float64(functions, asked):
    products, gram, temperature, scales, offsets = asked
    expected = score_of(products, gram, temperature, scales, offsets)
    triangle = gram[np.tril_indices(len(gram))].tolist()
    for form in (triangle, gram.tolist(), gram.ravel().tolist()):
        (found,) = functions.execute(SCORE, (products, form, temperature, scales, offsets)).fetchone()
        assert found == (None if expected is None else pytest.approx(expected, rel=1e-7, abs=1e-9))


@pytest.mark.parametrize(
    "arguments",
    [
        "'{0.6,0.8}', '{1,0}'",
        "'{0.6,0.8}', '{1,0,0,1,1}'",
        "'{0.6,0.8}', NULL",
        "'{0.6,0.8}', '{1,NULL,1}'",
        "'{0.6,0.8,1}', '{1,0,1}'",
        "'{0.6,0.8}', '{1,0,1}', 0",
        "'{0.6,0.8}', '{1,0,1}', 'NaN'",
        "'{0.6,0.8}', '{1,0,1}', NULL",
        "'{0.6,0.8}', '{1,0,1}', 0.1, '{1}'",
        "'{0.6,0.8}', '{1,0,1}', 0.1, NULL, '{1,2,3}'",
        "'{{0.6,0.8},{0.6,0.8}}', '{1,0,1}'",
    ],
)
def test_arguments_of_which_no_score_can_be_computed_are_errors(functions, arguments):
    with pytest.raises(psycopg.errors.RaiseException):
        functions.execute(f"SELECT scalar.scalar_score({arguments})")


def test_the_list_has_the_best_in_the_order_of_their_numbers_beyond_float64(functions):
    generator = np.random.default_rng(0)
    rows = [(float(score), 2**60 - number) for number, score in enumerate(generator.integers(0, 40, 3000) / 8)]
    rows += [(1e300, 5), (-math.inf, 6), (0.1 + 0.2, 8)]
    functions.execute("CREATE TEMP TABLE scored (score float8, id bigint)")
    functions.cursor().executemany("INSERT INTO scored VALUES (%s, %s)", [*rows, (None, 7)])
    rows.sort(key=lambda row: (-row[0], len(str(row[1])), row[1]))
    for k, kind in ((1, "bigint"), (7, "text"), (4000, "bigint")):
        ((best,),) = functions.execute(f"SELECT scalar.scalar_best(score, id::{kind}, {k}) FROM scored").fetchall()
        assert [(float(score), int(number)) for score, number in best] == rows[:k]
    ((nothing,),) = functions.execute("SELECT scalar.scalar_best(score, id, 3) FROM scored WHERE id = 7").fetchall()
    assert nothing == []
    for wrong in ("'NaN', id, 3", "score, id, 0", "score, NULL::text, 3"):
        with pytest.raises(psycopg.errors.RaiseException):
            functions.execute(f"SELECT scalar.scalar_best({wrong}) FROM scored WHERE score IS NOT NULL")


def test_several_processes_of_a_server_find_the_same_list(database):
    execute(database, SCHEMA)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE scored AS SELECT i AS id, (i * 7919 % 10007) / 64.0::float8 AS score "
            "FROM generate_series(1, 20000) i"
        )
        asked = "SELECT scalar.scalar_best(score, id, 30) FROM scored"
        alone = connection.execute(asked).fetchall()
        connection.execute(
            "SET min_parallel_table_scan_size = 0; SET parallel_setup_cost = 0; "
            "SET parallel_tuple_cost = 0; ANALYZE scored"
        )
        plan = str(connection.execute(f"EXPLAIN {asked}").fetchall())
        assert "Partial Aggregate" in plan and connection.execute(asked).fetchall() == alone


# Answers -------------------------------------------------------------------------------------------------------------


def test_few_clips_are_scored_and_the_list_is_that_of_the_folder(database, tmp_path):
    made = Made(make_clips(seed=6, kinds=("random",), count=3000))
    gallery, texts = made.write(tmp_path), make_texts(made, 1, 5)
    searcher = pushed(gallery, database)
    with searcher.table.transaction() as connection:
        connection.execute("SET LOCAL track_functions = 'all'")
        hits = postgresql._Ranking(searcher, connection, ScoreOptions(0.1), Selection()).hits(texts[0], 3)
        calls = "SELECT pg_stat_get_xact_function_calls('scalar.scalar_score'::regproc)"
        ((num_scored,),) = connection.execute(calls).fetchall()
    assert names_of(hits) == names_of(gallery.search(texts, k=3, query_temperature=0.1)[0])
    assert 0 < num_scored < len(gallery) / 3


WHOLE = Filter(
    ("clips/**", "*.mp4"), min_duration=1, max_duration=100, after="1970-01-01", before="2100-01-01", has="video",
    lacks="subtitle", words=("a dog",),
)  # fmt: skip


@pytest.mark.e2e
def test_every_node_computes_its_scores_its_list_and_its_counts(postgres, tmp_path, made, monkeypatch):
    database, servers = partitioned(postgres)
    searcher, run = pushed(made.write(tmp_path), database, servers), DatabaseTable.run
    plans = []

    def explaining(self, connection, statement, values=None, binary=False):
        if "scalar_best" in statement:
            plans.append(str(run(self, connection, f"EXPLAIN (VERBOSE, COSTS OFF) {statement}", values)))
        return run(self, connection, statement, values, binary)

    monkeypatch.setattr(DatabaseTable, "run", explaining)
    for among in (Selection(), Selection(WHOLE, None, ("audio", "video"), "/clips/1.mp4", frozenset({"/b"}), "/c")):
        ranked(searcher, make_texts(made, 1), among=among)
        assert plans[-1].startswith("[('Append',)") and plans[-1].count("->  Async Foreign Scan") == 3
        assert plans[-1].count("Relations: Aggregate on (public.clips_at_") == 3
    searcher.table.close()


# Pushing -------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("data", "A second push to PostgreSQL writes only what changed, in one transaction")
def test_a_second_push_writes_only_what_changed_or_if_it_ends_early_nothing(database, tmp_path, made, monkeypatch):
    searcher = pushed(gallery := made.write(tmp_path), database)
    address, rows = searcher.table.address, "SELECT clip_id, xmin::text FROM clips WHERE _id >= 0 ORDER BY _id"
    count, before = len(made.clips), execute(database, rows)
    assert push(gallery, address) == PushReport(unchanged=count)
    assert execute(database, rows) == before and searcher.current() is searcher
    new = [replace(clip, name=f"{clip.name} new") for clip in made.clips[:3]]
    other = replace(made.clips[7], vectors=made.clips[8].vectors)
    gallery = made.write(tmp_path, [*new, other], [made.clips[5].name])

    def failing(self, *arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("scalar_retrieval.search.push._Push.write_version", failing)
        push(gallery, address)
    assert execute(database, rows) == before and verify_table(address) == count
    assert push(gallery, address) == PushReport(new=3, changed=1, unchanged=count - 2, removed=1)
    found = execute(database, rows)
    assert [name for name, _ in found] == gallery.clip_ids and len(set(found) & set(before)) == count - 2
    assert len(searcher.current()) == count + 2 and verify_table(address) == count + 2
    searcher.table.close()


def test_of_two_pushers_one_waits_for_the_other(database, tmp_path, made):
    gallery = made.write(tmp_path)
    table = pushed(gallery, database).table
    with table.transaction("READ WRITE") as connection:
        table.run(connection, "SELECT pg_advisory_xact_lock(hashtext('scalar push'))")
        other = threading.Thread(target=push, args=(gallery, table.address))
        other.start()
        time.sleep(0.3)
        assert other.is_alive()
    other.join(60)
    assert not other.is_alive()
    table.close()


def test_what_is_not_of_this_version_or_model_is_refused(database, tmp_path, made):
    address, opened = TableAddress.parse(f"{database}/clips"), f"{database}/clips"
    gallery = made.write(tmp_path / "one")
    with pytest.raises(FileNotFoundError, match="scalar push"):
        open_searcher(opened)
    with pytest.raises(ValueError, match="no.clips: schema .no. does not exist"):
        open_searcher(f"{database}/no.clips")
    execute(database, "CREATE TABLE clips (mine int)")
    for refused in (lambda: push(gallery, address), lambda: open_searcher(opened)):
        with pytest.raises(ValueError, match="not made by `scalar push`"):
            refused()
    execute(database, "DROP TABLE clips")
    searcher = pushed(gallery, database)
    other = replace(made, metadata={"fingerprint": "g" * 64}).write(tmp_path / "two")
    with pytest.raises(ValueError, match="fingerprint"):
        push(other, address)
    with pytest.raises(ValueError, match="--nodes"):
        push(gallery, address, ["db.example"])
    right = searcher.pushed.text()
    for about in ('{"format": 1}', right.replace("audio", "au dio"), right.replace("1", "9")):
        execute(database, "UPDATE clips SET _about = %s WHERE _id = -1", [about])
        with pytest.raises(ValueError, match="clips"):
            searcher.current()


MANY_PARTS = 4 * PARTS  # as a push to a server takes longer than writing a folder


@pytest.mark.parametrize("part", [pytest.param(n, marks=pytest.mark.slow if n else ()) for n in range(MANY_PARTS)])
def test_any_value_in_any_field_of_what_was_pushed_is_refused_in_a_sentence_or_harmless(database, tmp_path, part):
    gallery = Made(make_clips(seed=3, kinds=("random",), count=9), metadata={"query_temperature": 0.1}).write(tmp_path)
    table = pushed(gallery, database).table
    texts = torch.nn.functional.normalize(torch.ones(1, gallery.dim), dim=-1)
    right = json.loads(TableSearcher(table).pushed.text()) | {"metadata": METADATA}
    # Whoever owns the table can also compute the hash.
    own_sum = Pushed.parse(json.dumps(right), "it").sum()
    wrong = [((), about) for about in ("", "[1]", "5", "{}", "[" * 100_000)]
    for number, field in enumerate(places_in(right)):
        for value in KINDS[(number + part) % MANY_PARTS :: MANY_PARTS] if field else ():
            wrong.append((field, forged(right, field, value)))
    num_refused = 0
    for field, about in wrong:
        execute(database, "UPDATE clips SET _about = %s WHERE _id = -1", [about])
        with table.transaction("READ WRITE") as connection:
            connection.execute(table.composed(f"UPDATE {{table}} SET _sum = {own_sum}"))
        for use in (lambda: ranked(TableSearcher(table), texts), lambda: verify_table(table.address)):
            try:
                use()
            except (OSError, ValueError) as error:
                num_refused += 1
                assert str(error)
            except Exception as error:
                raise AssertionError(f"{field}: {about!r:.400}: {type(error).__name__}: {error}") from error
        try:
            push(gallery, table.address)
        except (OSError, ValueError) as error:
            assert "Choose another name" in str(error)
    table.close()
    assert num_refused > 50


def test_columns_are_as_wide_as_the_slices_of_their_modalities(database, tmp_path):
    made = Made(make_clips((*PAPER, "title"), slices=SLICES), (*PAPER, "title"), metadata={"modality_slices": SLICES})
    gallery = made.write(tmp_path / "sliced")
    searcher = pushed(gallery, database)
    widths = dict(execute(database, "SELECT attname, atttypmod FROM pg_attribute WHERE atttypmod > 0"))
    assert [widths[name] for name in made.modalities] == [stop - start for start, stop in SLICES]
    assert searcher.described.slices == SLICES and searcher.described.dim == DIM
    stored = [clip.modality_embeds for clip in searcher.clips(gallery.clip_ids)]
    assert torch.stack(stored).equal(gallery.modality_embeds())
    assert verify_table(searcher.table.address) == len(made.clips)
    # Vectors of one space are not of the same kind.
    made.metadata = {}
    with pytest.raises(ValueError, match="differ from those of .* in modality_slices"):
        pushed(made.write(tmp_path / "dense"), database)


# Damage --------------------------------------------------------------------------------------------------------------

CHANGES = {
    "vectors swapped": ("UPDATE clips SET video = audio, audio = video WHERE {best}", {}),
    "a vector less": ("UPDATE clips SET video = NULL WHERE {best}", {"has": "video"}),
    "no vectors": ("UPDATE clips SET video = NULL, audio = NULL, subtitle = NULL WHERE {best}", {}),
    "larger inner products": ("UPDATE clips SET _gram = array_fill(1e6::float8, ARRAY[6]) WHERE {best}", {}),
    "another least norm": ("UPDATE clips SET _rho = 1 WHERE {best}", {}),
    "no inner products": ("UPDATE clips SET _gram = '{{}}' WHERE {best}", {}),
    "inner products from 0": ("UPDATE clips SET _gram = ('[0:5]=' || _gram::text)::float8[] WHERE {best}", {}),
    "another path": ("UPDATE clips SET _path = '/other/a.mp4' WHERE {best}", {"paths": "clips/**"}),
    "another length": ("UPDATE clips SET _seconds = 1000 WHERE {best}", {"max_duration": 100}),
    "another date": ("UPDATE clips SET _changed = 0 WHERE {best}", {"after": "1970-01-02"}),
    "other words": ("UPDATE clips SET _words = '' WHERE {best}", {"words": "dog"}),
    "fewer words": ("UPDATE clips SET _all_words = NOT _all_words WHERE {best}", {}),
    "another name": ("UPDATE clips SET clip_id = 'other' WHERE {best}", {}),
    "another number": ("UPDATE clips SET _id = 10000 WHERE {best}", {}),
    "another hash": ("UPDATE clips SET _digest = md5('other') WHERE {best}", {}),
    "a clip less": ("DELETE FROM clips WHERE {best}", {}),
    "a clip more": ("INSERT INTO clips (_node, _id, clip_id) VALUES ('', 10000, 'more')", {}),
    "a clip of a node": ("INSERT INTO clips (_node, _id, clip_id) VALUES ('node', 10000, 'more')", {}),
    "the best clip last": ("UPDATE clips SET _id = 9223372036854775807 WHERE {best}", {}),
    "no clips": ("TRUNCATE clips", {}),
    "another version": ("UPDATE clips SET _about = replace(_about, '0.1', '0.2') WHERE _id = -1", {}),
    "fewer clips for all": ("UPDATE clips SET _about = replace(_about, '\"\": ', '\"\": 1') WHERE _id = -1", {}),
}
"""Changes of the row of the best clip, and the filter of a search from whose answer it may then be missing."""


@pytest.mark.promise("data", "A PostgreSQL row that others changed, even with triggers off, is named in an error")
def test_whatever_is_changed_is_an_error_and_the_next_push_repairs_it(database, tmp_path):
    clips = [
        replace(clip, seconds=5.0, changed=DAY, said="a dog")
        for clip in make_clips(seed=3, kinds=("random",), count=120)
        if len(clip.vectors) > 1
    ]
    made = Made(clips, metadata={"query_temperature": 0.1})
    best = next(clip for clip in clips if len(clip.vectors) == 3)
    text = torch.tensor(best.vectors["video"] + 0.3 * best.vectors["audio"]).float()
    text = torch.nn.functional.normalize(text, dim=-1)[None]
    searcher, missed = pushed(gallery := made.write(tmp_path), database), []
    for name, (statement, wanted) in CHANGES.items():
        among = Selection(Filter(**wanted))
        before = names_of(ranked(searcher, text, among=among)[0])
        assert before[0] == best.name
        changed = statement.format(best=f"clip_id = '{best.name}'")
        execute(database, f"SET session_replication_role = replica; {changed}")
        for use in (partial(ranked, searcher, text, among=among), partial(verify_table, searcher.table.address)):
            try:
                use()
                missed.append(name)
            except (DamagedTableError, FileNotFoundError) as error:
                is_gone = re.match("TRUNCATE|DELETE|INSERT|.*_about|.*clip_id = 'other'", statement)
                assert is_gone or best.name in str(error), name
        push(gallery, searcher.table.address)
        assert names_of(ranked(searcher, text, among=among)[0]) == before
    searcher.table.close()
    assert missed == []


# Commands ------------------------------------------------------------------------------------------------------------


def test_the_commands_push_query_and_verify_a_table(place, database, tmp_path):  # noqa: F811
    index("clips")
    address = f"{database}/clips"
    assert "2 new, 0 changed, 0 unchanged, 0 removed; 2 clips" in run("push", "gallery", address).stdout
    for asked in (["audio", "-k", "2"], ["--like", "clips/cat.mp4"], ["audio", "--path", "cat*"], ['"audio"']):
        reported, known = (run("query", where, *asked, "--json") for where in (address, "gallery"))
        assert reported.stdout == known.stdout
    assert "folder" in run("query", address, "audio", "--rerank", 5, code=1).stderr
    assert "2 clips" in run("verify", address).stdout
    execute(database, "UPDATE clips SET _path = 'other' WHERE _id = 1")
    assert "1 of them as they were written" in run("verify", address, code=1).stderr
    assert run("push", "--sql").stdout == SCHEMA
    run("push", "--sql", tmp_path / "extension")
    assert (tmp_path / "extension/scalar--1.sql").read_text() in SCHEMA


# Addresses -----------------------------------------------------------------------------------------------------------


def test_addresses_are_read():
    parsed = TableAddress.parse("postgresql://me@one:5433,[::1]/media/mine.videos")
    assert (parsed.server, parsed.schema, parsed.table) == ("postgresql://me@one:5433,[::1]/media", "mine", "videos")
    assert parsed.name == "one:5433,[::1]/media/mine.videos"


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:secret@one/media/videos",
        "postgresql://one/media/videos?password=secret",
        "postgresql://one/media",
        "postgresql://one/media/vid-eos",
        "postgresql://one/media/videos,postgresql://secret/media/videos",
        "postgres://secret/media/videos",
    ],
)
def test_what_is_no_address_is_refused_without_its_secrets(text):
    with pytest.raises(ValueError) as caught:
        TableAddress.parse(text)
    assert "secret" not in str(caught.value)


# Nodes ---------------------------------------------------------------------------------------------------------------


def answer(searcher, texts):
    """The names of the best clips, or the error."""
    try:
        return [names_of(hits) for hits in ranked(searcher, texts)]
    except TableError as error:
        return str(error)


@pytest.mark.e2e
def test_a_node_that_is_replaced_or_lacks_a_row_is_named(postgres, tmp_path, made):
    database, servers = partitioned(postgres)
    gallery, texts = made.write(tmp_path), make_texts(made, 2)
    searcher = pushed(gallery, database, servers)
    right = answer(searcher, texts)
    assert right == [names_of(hits) for hits in gallery.search(texts, 5)]
    name = [f"127.0.0.1:{server.port}" for server in servers]
    node = f"{servers[2].address}/{database.rpartition('/')[2]}"

    # A node is replaced: by nothing, by an older copy, by a copy of another node.
    execute(node, "CREATE TABLE copy AS SELECT * FROM clips_2; ALTER TABLE copy DROP COLUMN _now")
    ((columns,),) = execute(
        node, "SELECT string_agg(column_name, ', ') FROM information_schema.columns WHERE table_name = 'copy'"
    )
    for statement in (
        "TRUNCATE clips_2",
        "UPDATE clips_2 SET _about = replace(_about, '\"version\": ', '\"version\": -') WHERE _id = -1",
        f"UPDATE clips_2 SET _node = '{name[1]}'",
        "DELETE FROM clips_2 WHERE _id = (SELECT max(_id) FROM clips_2)",
        "ALTER TABLE clips_2 RENAME TO other",
    ):
        execute(node, statement)
        assert name[2] in answer(searcher, texts) or name[1] in answer(searcher, texts), statement
        if "RENAME" not in statement:
            execute(node, f"TRUNCATE clips_2; INSERT INTO clips_2 ({columns}) SELECT {columns} FROM copy")
            assert answer(searcher, texts) == right
    execute(node, "ALTER TABLE other RENAME TO clips_2; DELETE FROM clips_2 WHERE _id > 50")
    # A clip of another node is on this one, too.
    asked = "SELECT _id, clip_id FROM clips WHERE _node = %s AND _id BETWEEN 0 AND 50 AND _sum IS NOT NULL LIMIT 1"
    ((number, copied),) = execute(database, asked, [name[0]])
    execute(node, "INSERT INTO clips_2 (_node, _id, clip_id) VALUES (%s, %s, %s)", [name[2], number, copied])
    assert push(gallery, searcher.table.address).unchanged > 0
    assert answer(searcher, texts) == right and verify_table(searcher.table.address) == len(made.clips)
    searcher.table.close()


@pytest.mark.e2e
@pytest.mark.promise("data", "PostgreSQL nodes answer completely, or an error names the node that did not")
@pytest.mark.parametrize("what", ["pause", "kill"])
def test_a_node_that_does_not_answer_is_named_by_every_use_of_the_table(postgres, tmp_path, made, monkeypatch, what):
    monkeypatch.setattr(postgresql, "_HASTE", 0.5)
    monkeypatch.setattr("scalar_retrieval.search.push._PROMPT", 1)
    monkeypatch.setattr("scalar_retrieval.search.push._TIMEOUT", 1)
    database, servers = partitioned(postgres, 2)
    gallery, texts = made.write(tmp_path), make_texts(made, 1)
    searcher = pushed(gallery, database, servers, timeout=1)
    right = answer(searcher, texts)
    assert right == [names_of(hits) for hits in gallery.search(texts, 5)]
    address, name = searcher.table.address, f"127.0.0.1:{servers[1].port}"
    uses = {
        "search": lambda: ranked(searcher, texts),
        "open": lambda: TableSearcher(DatabaseTable(address, 1)),
        "counts": searcher.counts,
        "clips": lambda: searcher.clips(gallery.clip_ids),
        "verify": lambda: verify_table(address),
        "push": lambda: push(gallery, address),
    }
    getattr(servers[1], what)()

    def fails(use):
        begun = time.monotonic()
        with pytest.raises(NodeError, match=f"No answer from the node '{name}'") as caught:
            uses[use]()
        assert "canceling" not in str(caught.value)
        assert time.monotonic() - begun < 8, use

    with ThreadPoolExecutor(len(uses)) as threads:
        list(threads.map(fails, uses))
    # Also if it fails while a push is under way.
    with monkeypatch.context() as patched, pytest.raises(NodeError, match=f"No answer from the node '{name}'"):
        patched.setattr(DatabaseTable, "answers", lambda self: True)
        push(gallery, address)
    servers[1].resume() if what == "pause" else servers[1].start()
    for ask in uses.values():
        ask()
    assert answer(searcher, texts) == right
    searcher.table.close()


@pytest.mark.e2e
def test_a_password_reaches_the_nodes_and_no_message(postgres, tmp_path, made, monkeypatch):
    database, servers = partitioned(postgres, 2)
    for server in servers:
        execute(f"{server.address}/postgres", "DROP ROLE IF EXISTS me; CREATE ROLE me SUPERUSER LOGIN PASSWORD 'hush'")
    address, shown = TableAddress.parse(f"{database.replace('postgres@', 'me@')}/clips"), []
    monkeypatch.setenv("PGPASSWORD", "hush")
    push(made.write(tmp_path), address, [f"127.0.0.1:{server.port}" for server in servers], shown.append)
    assert verify_table(address) == len(made.clips)
    assert "FOREIGN TABLE" in str(shown) and "hush" not in str(shown)
    monkeypatch.setenv("PGPASSWORD", "wrong hush")
    with pytest.raises(TableError) as caught:
        verify_table(address)
    assert "hush" not in str(caught.value)


@pytest.mark.e2e
def test_of_several_hosts_the_first_that_answers_is_used(postgres, tmp_path, made):
    servers = postgres(2)
    database = servers[0].new_database()
    pushed(made.write(tmp_path), database)
    servers[1].kill()
    searcher = open_searcher(f"{database.replace('127', f'127.0.0.1:{servers[1].port},127', 1)}/clips")
    assert len(searcher) == len(made.clips)
    searcher.table.close()


def test_docs_show_the_functions_in_a_table_of_somebody_else(database):
    page = Path(__file__).parents[2] / "docs/postgresql.md"
    making, asking, listing = re.findall(r"```sql\n(.*?)```", page.read_text(), re.DOTALL)
    execute(database, f"{SCHEMA} {making}")
    (first, second) = execute(database, asking)
    assert first == ("b.mp4", pytest.approx(0.9999, abs=1e-3)) and second == ("a.mp4", pytest.approx(0.6))
    ((best,),) = execute(database, listing)
    assert [name for _, name in best] == ["b.mp4", "a.mp4"]
