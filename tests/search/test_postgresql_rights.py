"""Roles of PostgreSQL: what another role wrote never runs, a role that only reads can search, and what a push and its
nodes are told when functions or servers are there already."""

import re

import psycopg
import pytest

from scalar_retrieval.search.addresses import TableAddress
from scalar_retrieval.search.postgresql import SCHEMA, DamagedTableError, DatabaseTable, TableError, TableSearcher
from scalar_retrieval.search.push import push, verify_table
from scalar_retrieval.search.settings import open_searcher
from tests.search.conformance import Made, make_clips, make_texts, names_of
from tests.search.test_postgresql import execute, ranked


@pytest.fixture
def made():
    return Made(make_clips(seed=3, kinds=("random",), count=30))


@pytest.fixture
def database(postgres):
    """A database in which the role `mallory` may create what it likes, and a table where its functions would leave a
    trace."""
    database = postgres(1)[0].new_database()
    name = database.rpartition("/")[2]
    for role in ("mallory", "pusher", "reader"):
        execute(database, f"DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN PASSWORD 'word'")
    execute(
        database,
        f"""GRANT CREATE ON DATABASE {name} TO mallory; GRANT CREATE ON SCHEMA public TO mallory, pusher;
        GRANT CREATE ON DATABASE {name} TO pusher; CREATE EXTENSION vector;
        CREATE TABLE traces (trace text); GRANT INSERT, SELECT ON traces TO PUBLIC""",
    )
    return database


def as_mallory(database, statements):
    execute(database, f"SET ROLE mallory; {statements}")


def function(declared, returned, language="plpgsql"):
    """SQL of a function of mallory that leaves a trace."""
    return (
        f"CREATE FUNCTION {declared} RETURNS {returned} LANGUAGE {language} AS "
        "$$ BEGIN INSERT INTO public.traces VALUES (current_user); RETURN NULL; END $$;"
    )


def traces(database):
    return execute(database, "SELECT * FROM traces")


TRIGGER = "CREATE TRIGGER t BEFORE INSERT ON clips FOR EACH ROW EXECUTE FUNCTION"
WHEN = "CREATE TRIGGER w BEFORE INSERT ON clips FOR EACH ROW WHEN"
BEFORE = {
    "the printed functions": (SCHEMA, "schema scalar"),
    "an empty schema": ("CREATE SCHEMA scalar", "schema scalar"),
    "a table with a trigger": (
        f"CREATE TABLE clips (_node text, _id bigint); {function('f()', 'trigger')} {TRIGGER} f()",
        "table public.clips",
    ),
    "a view": (f"{function('f()', 'text')} CREATE VIEW clips AS SELECT f() AS _node, 1 AS _id", "table public.clips"),
}


@pytest.mark.parametrize("name", BEFORE)
def test_what_another_role_made_before_a_push_is_refused(database, tmp_path, made, name):
    statements, named = BEFORE[name]
    as_mallory(database, statements)
    with pytest.raises(
        DamagedTableError, match=f"the {named} belongs to the role 'mallory'.*Remove it, or connect as"
    ):
        push(made.write(tmp_path), TableAddress.parse(f"{database}/clips"))
    assert traces(database) == []


AFTER = {
    "table public.clips": ("ALTER TABLE clips OWNER TO mallory", "ALTER TABLE clips OWNER TO postgres"),
    "table public.heir": (
        "CREATE TABLE heir () INHERITS (clips); ALTER TABLE heir OWNER TO mallory",
        "DROP TABLE heir",
    ),
    "right to make triggers on public.clips": ("GRANT ALL ON clips TO mallory", "REVOKE ALL ON clips FROM mallory"),
    "function public.f()": (f"{TRIGGER} f()", "DROP TRIGGER t ON clips"),
    "operator public.===(text,text)": (
        f"{WHEN} (NEW.clip_id OPERATOR(public.===) '') EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "DROP TRIGGER w ON clips",
    ),
    "type public.kind": (
        f"{WHEN} (NEW.clip_id::kind IS NULL) EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "DROP TRIGGER w ON clips",
    ),
    "function public.rule(text)": (
        "CREATE RULE r AS ON DELETE TO clips DO ALSO SELECT rule('')",
        "DROP RULE r ON clips",
    ),
    "function public.policy(text)": ("CREATE POLICY p ON clips USING (policy(clip_id))", "DROP POLICY p ON clips"),
    "function public.default_(text)": (
        "ALTER TABLE clips ALTER _all_words SET DEFAULT default_('')",
        "ALTER TABLE clips ALTER _all_words DROP DEFAULT",
    ),
    "function public.check_(text)": (
        "ALTER TABLE clips ADD CONSTRAINT c CHECK (check_(clip_id)) NOT VALID",
        "ALTER TABLE clips DROP CONSTRAINT c",
    ),
    "function public.index_(text)": ("CREATE INDEX i ON clips (_id) WHERE index_(clip_id)", "DROP INDEX i"),
    "extension vector": (
        "UPDATE pg_extension SET extowner = 'mallory'::regrole WHERE extname = 'vector'",
        "UPDATE pg_extension SET extowner = 'postgres'::regrole WHERE extname = 'vector'",
    ),
    "schema scalar": ("ALTER SCHEMA scalar OWNER TO mallory", "ALTER SCHEMA scalar OWNER TO postgres"),
    "right to create in the schema scalar": (
        "GRANT CREATE ON SCHEMA scalar TO mallory",
        "REVOKE CREATE ON SCHEMA scalar FROM mallory",
    ),
    "function scalar.scalar_best_list(text[])": (
        "ALTER FUNCTION scalar.scalar_best_list OWNER TO mallory",
        "ALTER FUNCTION scalar.scalar_best_list OWNER TO postgres",
    ),
}
"""By what is named: what gives another role a way to run code, and what takes it away."""


@pytest.mark.promise(
    "data", "A PostgreSQL table through which another role could run code is refused, and the role named"
)
def test_what_another_role_could_run_is_refused_by_every_use_of_the_table(database, tmp_path, made):
    predicates = "".join(function(f"{name}(text)", "bool") for name in ("rule", "policy", "default_", "check_"))
    index = "CREATE FUNCTION index_(text) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT false';"
    equal = function("equal(text, text)", "bool")
    operator = "CREATE OPERATOR === (LEFTARG = text, RIGHTARG = text, FUNCTION = equal);"
    kind = f"{function('is_kind(text)', 'bool')} CREATE DOMAIN kind AS text CHECK (is_kind(VALUE));"
    as_mallory(database, f"{function('f()', 'trigger')} {predicates} {index} {equal} {operator} {kind}")
    gallery, texts, address = made.write(tmp_path), make_texts(made, 1), TableAddress.parse(f"{database}/clips")
    push(gallery, address)
    searcher = TableSearcher(DatabaseTable(address))
    right, accepted = names_of(ranked(searcher, texts)[0]), []
    uses = {
        "search": lambda: ranked(searcher, texts),
        "open": searcher.current,
        "verify": lambda: verify_table(address),
        "push": lambda: push(gallery, address),
    }
    for named, (give, take) in AFTER.items():
        execute(database, give)
        for use, run in uses.items():
            try:
                run()
                accepted.append((named, use))
            except DamagedTableError as error:
                assert f"the {named} belongs to the role 'mallory', whose code" in str(error)
        execute(database, take)
        assert names_of(ranked(searcher, texts)[0]) == right
    execute(database, "GRANT CREATE ON SCHEMA scalar TO PUBLIC")
    with pytest.raises(DamagedTableError, match="schema scalar belongs to the role 'PUBLIC'"):
        searcher.current()
    searcher.table.close()
    assert accepted == traces(database) == []


def test_functions_and_tables_of_other_roles_in_the_search_path_are_not_used(database, tmp_path, made):
    """They match better than the built-in ones, and come first."""
    overloads = "".join(
        function(f"public.{declared}", returned)
        for declared, returned in (
            ("hash_array_extended(text[], int)", "bigint"),
            ("hash_array_extended(bytea[], int)", "bigint"),
            ("cardinality(float8[])", "int"),
            ("inner_product(vector, text)", "float8"),
            ("scalar_score(float8[], float8[], float8)", "float8"),
            ("times(int, float8)", "float8"),
        )
    )
    name = database.rpartition("/")[2]
    as_mallory(
        database,
        f"{overloads} CREATE OPERATOR public.* (LEFTARG = int, RIGHTARG = float8, FUNCTION = times);"
        f"CREATE SCHEMA first; {function('f()', 'text')} CREATE VIEW first.clips AS SELECT f() AS _about, 1 AS _id",
    )
    execute(database, f"ALTER DATABASE {name} SET search_path = first, public, pg_catalog")
    gallery, texts, address = made.write(tmp_path), make_texts(made, 2), TableAddress.parse(f"{database}/clips")
    push(gallery, address)
    assert verify_table(address) == len(made.clips)
    searcher = TableSearcher(DatabaseTable(address))
    expected = [names_of(hits) for hits in gallery.search(texts, 5)]
    assert [names_of(hits) for hits in ranked(searcher, texts)] == expected
    searcher.table.close()
    # The functions call none of them either, wherever they are called from.
    scored = execute(database, "SELECT scalar.scalar_score('{0.6,0.8}', '{1,0,1}', error => 1e-6)")
    assert scored[0][0] > 0.8 and traces(database) == []


@pytest.mark.promise("data", "A read-only PostgreSQL role can search and verify a table")
def test_a_role_that_may_only_read_searches_and_verifies_a_table(database, tmp_path, made, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "word")
    gallery, texts = made.write(tmp_path), make_texts(made, 1)
    pushing, reading = (f"{database.replace('postgres@', f'{role}@')}/clips" for role in ("pusher", "reader"))
    address = TableAddress.parse(reading)
    push(gallery, TableAddress.parse(pushing))
    execute(database, "GRANT USAGE ON SCHEMA scalar TO reader; GRANT SELECT ON clips TO reader")
    # The owner of a table could run code as whoever reads it, unless it has these rights already.
    with pytest.raises(DamagedTableError, match="or a role of which 'pusher' is a member"):
        open_searcher(reading)
    execute(database, "GRANT reader TO pusher")
    searcher = open_searcher(reading)
    assert names_of(ranked(searcher, texts)[0]) == names_of(gallery.search(texts, 5)[0])
    assert searcher.current() is searcher and verify_table(address) == len(searcher) == len(made.clips)
    searcher.table.close()
    fewer = made.write(tmp_path / "fewer", made.clips[1:])
    with pytest.raises(TableError, match="permission denied"):
        push(fewer, address)
    assert push(fewer, TableAddress.parse(pushing)).removed == 1


def test_functions_that_a_superuser_made_are_used_by_whoever_pushes(database, tmp_path, made, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "word")
    gallery, texts = made.write(tmp_path), make_texts(made, 1)
    functions = "pg_proc WHERE pronamespace = 'scalar'::regnamespace"
    execute(database, f"{SCHEMA} GRANT USAGE ON SCHEMA scalar TO pusher")
    with pytest.raises(psycopg.errors.DuplicateSchema):
        execute(database, SCHEMA)
    settings = execute(database, f"SELECT DISTINCT proconfig FROM {functions} AND prokind = 'f'")
    assert settings == [(["search_path=pg_catalog, pg_temp"],)]
    address = TableAddress.parse(f"{database.replace('postgres@', 'pusher@')}/clips")
    assert push(gallery, address).new == push(gallery, address).unchanged == len(made.clips)
    searcher = TableSearcher(DatabaseTable(address))
    assert names_of(ranked(searcher, texts)[0]) == names_of(gallery.search(texts, 5)[0])
    searcher.table.close()
    assert execute(database, f"SELECT DISTINCT proowner::regrole::text FROM {functions}") == [("postgres",)]


# Nodes ---------------------------------------------------------------------------------------------------------------


def node_of(database):
    return re.search(r"[\d.]+:\d+", database)[0]


def test_a_push_to_nodes_says_what_to_do_about_functions_and_tables_that_are_there(database, tmp_path, made):
    gallery, texts, node = made.write(tmp_path), make_texts(made, 1), node_of(database)
    plain, parted = (TableAddress.parse(f"{database}/{name}") for name in ("plain", "parted"))
    push(gallery, plain)
    with pytest.raises(ValueError, match=f"database of {node}/.*/public.parted_0.*DROP SCHEMA scalar CASCADE there"):
        push(gallery, parted, [node])
    execute(database, "DROP SCHEMA scalar CASCADE")
    searcher = TableSearcher(DatabaseTable(plain))
    with pytest.raises(TableError, match="lacks functions.*`scalar push"):
        ranked(searcher, texts)
    push(gallery, parted, [node])
    # The table on one server is searched with the extension.
    assert names_of(ranked(searcher, texts)[0]) == names_of(gallery.search(texts, 5)[0])
    assert verify_table(plain) == verify_table(parted) == len(gallery)
    searcher.table.close()
    # What a push that ended early left on a node is named.
    execute(database, "DROP TABLE parted")
    with pytest.raises(ValueError, match=f"already a table {node}/.*/public.parted_0. Drop it"):
        push(gallery, parted, [node])


def test_a_role_that_may_only_read_searches_nodes_by_its_own_login(database, tmp_path, made, monkeypatch):
    gallery, texts, node = made.write(tmp_path), make_texts(made, 1), node_of(database)
    push(gallery, TableAddress.parse(f"{database}/clips"), [node])
    execute(
        database,
        f"""GRANT USAGE ON SCHEMA scalar TO reader; GRANT SELECT ON clips TO reader; GRANT SELECT ON clips_0 TO reader;
        CREATE USER MAPPING FOR reader SERVER "{node}" OPTIONS (user 'reader', password 'word')""",
    )
    monkeypatch.setenv("PGPASSWORD", "word")
    address = TableAddress.parse(f"{database.replace('postgres@', 'reader@')}/clips")
    searcher = TableSearcher(DatabaseTable(address))
    assert names_of(ranked(searcher, texts)[0]) == names_of(gallery.search(texts, 5)[0])
    assert verify_table(address) == len(made.clips)
    searcher.table.close()


def test_a_server_of_another_role_gets_no_password(database, tmp_path, made, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "word")
    execute(database, "CREATE EXTENSION postgres_fdw; GRANT USAGE ON FOREIGN DATA WRAPPER postgres_fdw TO mallory")
    node = node_of(database)
    as_mallory(database, f"CREATE SERVER \"{node}\" FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host 'evil.example')")
    with pytest.raises(DamagedTableError, match=f"the server {node} belongs to the role 'mallory'"):
        push(made.write(tmp_path), TableAddress.parse(f"{database}/clips"), [node])
    assert execute(database, "SELECT * FROM pg_user_mappings") == []
