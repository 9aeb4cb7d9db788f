"""A gallery in tables of PostgreSQL beyond what every engine must do: the score in SQL, pushes, and several nodes."""

import json
import math
import re
import threading
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psycopg
import pytest
import torch
from psycopg import sql
from starlette.testclient import TestClient

from gallery.filters import Filter
from gallery.gallery import Gallery
from gallery.hits import Certainty
from modeling_scalar.scores_scalar import ScoreOptions, exact_scores
from search.engine.address import is_address, parse_tables
from search.engine.asking import EngineSearcher
from search.engine.errors import DamagedError, EngineError, NoCollectionError
from search.engine.push import PushReport, about_gallery, push
from search.engine.scoring import FUNCTION, bounded, listed
from search.engine.table import _COLUMNS, Table
from search.service.archive import AwayError
from search.service.engine import EngineSource
from tests.gallery.conftest import MADE_BY
from tests.search.conformance import DAY, Made, make_clips, make_facts
from tests.search.serving import make_app, write_gallery
from tests.search.test_engine import made_gallery, made_texts
from tests.search.test_main import index, place, run  # noqa: F401 - a fixture
from tests.search.test_service_engine import ADDRESS, ask, at_once, name_of, same  # noqa: F401 - a fixture

MIN_NORM = 1e-3
JSON = {"content-type": "application/json"}


def table_of(*databases, name="clips", **options):
    return Table(parse_tables(",".join(f"{database}/{name}" for database in databases)), **options)


def execute(database, statement, values=None):
    with psycopg.connect(database, autocommit=True) as connection:
        found = connection.execute(statement, values)
        return found.fetchall() if found.description else None


def filled(databases, gallery):
    table = table_of(*databases)
    push(gallery, table)
    return table


def one(table, text, **options):
    return EngineSearcher(table, "it").search(text[None], **options)[0]


@pytest.fixture
def database(postgres):
    return postgres(1)[0].new_database()


@pytest.fixture
def gallery(tmp_path):
    return made_gallery(tmp_path / "gallery", "clustered", 60)


# The score ----------------------------------------------------------------------------------------------------------


def score_of(products, gram, temperature, scales=None, offsets=None):
    """The score as the function has it, by a loop; `None` stands for NULL."""
    number = len(products)
    scales, offsets = scales or [None] * number, offsets or [None] * number
    cosines = [
        None if c is None else c * (1 if a is None else a) + (b or 0)
        for c, a, b in zip(products, scales, offsets, strict=True)
    ]
    if all(cosine is None for cosine in cosines):
        return None
    inside = [m for m in range(number) if cosines[m] is not None]
    highest = max(cosines[m] for m in inside)
    weights = {m: math.exp((cosines[m] - highest) / temperature) for m in inside}
    total = sum(weights.values())
    squared = sum(weights[m] * weights[n] * gram[m][n] for m in inside for n in inside) / total**2
    return sum(weights[m] * cosines[m] for m in inside) / total / max(math.sqrt(max(squared, 0)), MIN_NORM)


def test_the_function_is_the_score_for_any_number_of_modalities(database):
    generator, asked, expected = np.random.default_rng(0), [], []
    for number in (1, 2, 3, 5) * 40:
        vectors = generator.standard_normal((number, 7))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors[-1] = -vectors[0] if number > 1 and len(asked) % 3 == 0 else vectors[-1]  # which cancel
        text = generator.standard_normal(7)
        text /= np.linalg.norm(text)
        products = [float(c) if generator.random() < 0.7 else None for c in vectors @ text]
        gram, temperature = vectors @ vectors.T, float(generator.choice([1e-30, 1e-6, 0.001, 0.1, 3, math.inf]))
        triangle = gram[np.tril_indices(number)].tolist()
        scales, offsets = (
            None if generator.random() < 0.4 else [float(x) if x > least else None for x in generator.random(number)]
            for least in (0.2, 0.5)
        )
        asked.append((products, triangle, temperature, scales, offsets))
        expected.append(score_of(products, gram, temperature, scales, offsets))
    execute(database, FUNCTION)
    with psycopg.connect(database) as connection:
        call = "SELECT scalar_score(%s::float8[], %s::float8[], %s, %s::float8[], %s::float8[])"
        found = [connection.execute(call, one).fetchone()[0] for one in asked]
        assert connection.execute("SELECT scalar_score('{1,NULL}', '{1,0,1}')").fetchone() == (1.0,)
    assert [score is None for score in found] == [score is None for score in expected] and None in found
    pairs = [pair for pair in zip(found, expected, strict=True) if None not in pair]
    assert len(pairs) > 120 and all(a == pytest.approx(b, rel=1e-9, abs=1e-9) for a, b in pairs)


def definition(text, vectors, mask, temperature):
    """Eq. 2 to 4 in float64, from the vectors; `None` if a clip has none."""
    cosines = {m: float(vectors[m] @ text) for m in range(len(vectors)) if mask[m]}
    if not cosines:
        return None
    highest = max(cosines.values())
    parts = {m: math.exp((cosine - highest) / temperature) for m, cosine in cosines.items()}
    weights = {m: part / sum(parts.values()) for m, part in parts.items()}
    centroid = sum(weight * vectors[m] for m, weight in weights.items())
    return sum(weight * cosines[m] for m, weight in weights.items()) / max(np.linalg.norm(centroid), MIN_NORM)


def hard_clips(generator, count):
    """A text and 1 to 8 vectors: near or exact copies, opposites, vectors that cancel, and tiny inner products."""
    for turn in range(count):
        number, dim = turn % 8 + 1, int(generator.choice([2, 3, 32, 512]))
        text, *vectors = generator.standard_normal((number + 1, dim))
        vectors, eps = np.array(vectors), float(generator.choice([0, 1e-12, 1e-9, 1e-7, 1e-5, 1e-4, 1e-3, 0.01, 0.1]))
        match turn // 8 % 5:
            case 0:
                vectors[generator.random(number) < 0.6] = vectors[0]
            case 1:
                vectors[:] = vectors[0] * generator.choice([-1, 1], (number, 1))
            case 2 if number > 1:
                vectors[-1] = -vectors[:-1].sum(0)
            case 3:
                vectors[:] = text
            case 4:
                text[:], vectors[:, 0] = np.eye(dim)[0], 1e-300
                vectors[0] = text
                eps = 0
        vectors += eps * generator.standard_normal(vectors.shape) / math.sqrt(dim)
        yield text / np.linalg.norm(text), vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_the_function_is_right_where_vectors_repeat_or_cancel_each_other(database):
    generator, asked, expected = np.random.default_rng(1), [], []
    for text, vectors in hard_clips(generator, 600):
        mask = generator.random(len(vectors)) < 0.8
        temperature = float(generator.choice([1e-6, 1e-4, 0.01, 0.1, 1, 10, math.inf]))
        products = [float(vector @ text) if is_there else None for vector, is_there in zip(vectors, mask, strict=True)]
        gram = vectors @ vectors.T
        for array in (gram[np.tril_indices(len(vectors))], gram.flatten()):
            asked.append((len(asked), products, array.tolist(), temperature))
            expected.append(definition(text, vectors, mask, temperature))
    execute(database, FUNCTION)
    execute(database, "CREATE TABLE asked (row int, products float8[], gram float8[], temperature float8)")
    with psycopg.connect(database) as connection:
        connection.cursor().executemany("INSERT INTO asked VALUES (%s, %s, %s, %s)", asked)
    found = execute(database, "SELECT scalar_score(products, gram, temperature) FROM asked ORDER BY row")
    assert [score is None for (score,) in found] == [score is None for score in expected]
    for (score,), known in zip(found, expected, strict=True):
        assert score is None or (abs(score - known) < 1e-9 and abs(score) <= 1 + 1e-6)


WRONG_ARGUMENTS = (
    ("'{1,0.9}', '{1,0.9}'", "gram of 2 modalities must have 3 or 4 numbers, got 2"),
    ("'{1,0.9}', '{1,0.9,1,0.9,1}'", "must have 3 or 4 numbers, got 5"),
    ("'{1}', '{}'", "gram of 1 modalities must have 1 or 1 numbers, got 0"),
    ("'{1,0.9,0.8}', '{1,0.9,1,1}'", "must have 6 or 9 numbers, got 4"),
    ("'{1,0.9}', NULL", "gram has no inner product of modalities 1 and 1"),
    ("'{1,0.9}', '{1,NULL,1}'", "gram has no inner product of modalities 2 and 1"),
    ("'{{1},{0.9}}', '{1,0.9,1}'", "only gram may have two dimensions"),
    ("'{1,0.9}', '{1,0.9,1}', 0", "temperature must be above 0, got 0"),
    ("'{1,0.9}', '{1,0.9,1}', -0.1", "temperature must be above 0, got -0.1"),
    ("'{1,0.9}', '{1,0.9,1}', 'NaN'", "temperature must be above 0, got NaN"),
    ("'{1,0.9}', '{1,0.9,1}', NULL", "temperature must be above 0, got <NULL>"),
    ("'{1,0.9}', '{1,0.9,1}', 1, '{1}'", "must each be NULL or have 2 numbers"),
    (
        "'{1,0.9}', '{1,0.9,1}', 1, NULL, '{0,0,0}'",
        "must each be NULL or have 2 numbers",
    ),
)


def test_the_function_refuses_arrays_of_other_lengths(database):
    execute(database, FUNCTION)
    for arguments, reason in WRONG_ARGUMENTS:
        with pytest.raises(psycopg.errors.RaiseException, match=re.escape(reason)):
            execute(database, f"SELECT scalar_score({arguments})")


def test_the_function_takes_the_triangle_and_the_square(database):
    execute(database, FUNCTION)
    triangle, square, matrix = "'{1,0.5,1}'", "'{1,0.5,0.5,1}'", "'{{1,0.5},{0.5,1}}'"
    calls = [f"scalar_score('{{1,0.5}}', {gram}, 0.1)" for gram in (triangle, square, matrix)]
    (found,) = execute(database, f"SELECT {', '.join(calls)}")
    assert len(set(found)) == 1 and found[0] == score_of([1, 0.5], [[1, 0.5], [0.5, 1]], 0.1)
    assert execute(database, "SELECT scalar_score('{0.7}', '{1}'), scalar_score('{NULL,NULL}', NULL)") == [(0.7, None)]


def test_docs_show_the_function_in_a_table_of_somebody_else(database):
    """What docs/postgresql.md has of SQL, run as it is."""
    page = Path(__file__).parents[2].joinpath("docs/postgresql.md").read_text()
    blocks = [block.partition("\n```")[0] for block in page.split("```sql\n")[1:]]
    execute(database, FUNCTION)
    assert len(blocks) == 2
    execute(database, "CREATE EXTENSION vector")
    execute(database, blocks[0])
    (first, *others) = execute(database, blocks[1])
    assert first[0] == "b.mp4" and len(others) == 1
    both = math.exp(1 / 0.1), math.exp(0.6 / 0.1)
    total = np.array([both[0] + 0.6 * both[1], 0.8 * both[1]])
    assert first[1] == pytest.approx((both[0] + 0.6 * both[1]) / np.linalg.norm(total), abs=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_bound_is_above_the_score_and_near_to_it(tmp_path, database, dtype):
    """Whatever rounding leaves open, also of weights that nearly repeat each other, at every temperature."""
    gallery = made_gallery(tmp_path / "gallery", "clustered", 300, dtype=dtype)
    embeds, mask = gallery.modality_embeds(), gallery.modality_mask
    slack = []
    with closing(filled([database], gallery)) as table:
        places = {number: place for number, _, place in table.known("")}
        for turn, text in enumerate(made_texts(gallery, 18)):
            temperature = (1e-9, 1e-6, 0.001, 0.03, 0.1, math.inf)[turn % 6]
            options = ScoreOptions(
                temperature,
                modality_scale=(0.7, 1.0, 1.3) if turn % 2 else None,
                modality_offset=(0.1, -0.5, 0.0),
            )
            seen = [(True, True, True), (True, False, True), (False, True, False)][turn % 3]
            asked = table.asked(text, seen, options)
            seen = torch.tensor(seen)
            where = table.condition(None, [n for n, there in zip(gallery.modalities, seen, strict=True) if there])
            found = table.nearest(asked.query, 1000, where)
            rows = [places[number] for number, _ in found]
            assert sorted(rows) == (mask & seen).any(1).nonzero()[:, 0].tolist()
            scores = exact_scores(text.expand(len(rows), -1), embeds[rows], mask[rows] & seen, MIN_NORM, options)
            bounds = torch.tensor([bound for _, bound in found])
            assert (bounds >= scores).all() and (bounds.diff() <= 0).all()
            slack.append((bounds - scores).median().item())
    assert max(slack) < 1e-3


def test_what_a_sample_leaves_out_is_not_among_the_best(tmp_path, database, monkeypatch):
    percents = []
    monkeypatch.setattr("search.engine.asking._FIRST", 1)
    for name, value in (("_TIMES", 0), ("_SHARE", 5)):
        monkeypatch.setattr(f"search.engine.table.{name}", value)
    monkeypatch.setattr("search.engine.table.listed", lambda *a: percents.append(a[2]) or listed(*a))
    for seed, kind in enumerate(("clustered", "cancelling", "random")):
        options = ({}, {"modality_scale": [0.7, 1.3, 1.0]}, {"modality_offset": [-1.5, -1.2, -1.4]})[seed]
        gallery = made_gallery(tmp_path / kind, kind, 900, seed=seed, metadata={"score_options": options})
        texts = made_texts(gallery, 12)
        with closing(table_of(database, name=kind)) as table:
            push(gallery, table)
            for temperature in (0.001, 0.1, math.inf):
                found = [searcher.search(texts, 5, temperature) for searcher in (EngineSearcher(table, "it"), gallery)]
                for reported, known in zip(*found, strict=True):
                    assert [(hit.clip_id, hit.score) for hit in reported] == [
                        (hit.clip_id, hit.score) for hit in known
                    ]
    assert len(percents) >= 108 and set(percents) == {20.0}


@pytest.mark.e2e
def test_a_thousand_queries_find_what_float64_finds(tmp_path, postgres):
    databases = [server.new_database() for server in postgres(3)]
    generator, gallery = np.random.default_rng(0), made_gallery(tmp_path / "gallery", "clustered", 3000, seed=4)
    embeds, mask = gallery.modality_embeds(), gallery.modality_mask
    with closing(filled(databases, gallery)) as table:
        searcher = EngineSearcher(table, "it")
        for text in made_texts(gallery, 1000):
            options = ScoreOptions(float(10 ** generator.uniform(-3, 1)))
            scores = exact_scores(text.expand(len(embeds), -1), embeds, mask, MIN_NORM, options).numpy()
            (found,) = searcher.search(text[None], 10, options.query_temperature)
            best = np.argsort(-scores, kind="stable")[:10]
            assert [hit.clip_id for hit in found] == [gallery.clip_ids[row] for row in best]
            assert [hit.score for hit in found] == scores[best].astype(np.float32).tolist()
            assert found.certainty is Certainty.EXACT


def test_the_list_names_each_product_once():
    """What an expression names several times PostgreSQL computes as often."""
    text = bounded("clips WHERE true", ["(p0)", "(p1)", "(p2)"], [0, 1, 2], ScoreOptions(0.1), MIN_NORM, 64)
    assert [text.count(f"(p{m})") for m in range(3)] == [1, 1, 1] and text.count("OFFSET 0") == 4


# Pushing ------------------------------------------------------------------------------------------------------------


def rows_of(database):
    return execute(database, "SELECT * FROM clips ORDER BY number")


@pytest.mark.promise("data", "A push to PostgreSQL that fails or is killed leaves the old clips")
def test_a_push_that_fails_or_is_killed_leaves_what_was_there(tmp_path, database, gallery, monkeypatch):
    table = filled([database], gallery)
    before = rows_of(database), execute(database, "SELECT * FROM clips_about")
    other = made_gallery(tmp_path / "other", "random", 90, seed=5)
    monkeypatch.setattr(Table, "points_at_once", 20)
    remove, pid = table.remove, []

    def killing(ids):
        (pid[:],) = execute(database, "SELECT pid FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'")
        execute(database, "SELECT pg_terminate_backend(%s)", pid)
        remove(ids)

    table.remove = killing
    gone = made_gallery(tmp_path / "gone", "random", 30, seed=5)
    with pytest.raises(EngineError, match=f"{parse_tables(database + '/clips')[0].name}: .*terminating"):
        push(gone, table)
    put, table.remove = table.put, remove
    table.put = lambda points: put(points) if len(points) == 20 else 1 / 0
    with pytest.raises(ZeroDivisionError):
        push(other, table)
    assert pid and (rows_of(database), execute(database, "SELECT * FROM clips_about")) == before
    table.put = put
    assert push(other, table) == PushReport(new=30, changed=60)
    assert push(other, table) == PushReport(unchanged=90)
    assert one(table, made_texts(other, 1)[0]).num_clips == 90
    table.close()


def test_of_two_pushers_one_waits_for_the_other(tmp_path, database, gallery):
    first, second = table_of(database), table_of(database)
    with first.writing():
        first.create(about_gallery(gallery))
        done = threading.Thread(target=push, args=(gallery, second))
        done.start()
        time.sleep(0.3)
        assert done.is_alive()
    done.join(60)
    assert len(second) == 60 and one(first, made_texts(gallery, 1)[0]).num_clips == 60
    first.close()
    second.close()


def test_what_is_not_of_this_version_or_model_is_refused_in_a_sentence(tmp_path, database, gallery):
    table = table_of(database)
    with pytest.raises(NoCollectionError, match="no gallery in .*`scalar push"):
        table.about()
    execute(database, "CREATE TABLE clips (mine int)")
    with pytest.raises(ValueError, match="was not made by `scalar push`"):
        push(gallery, table)
    assert execute(database, "SELECT * FROM clips") == []
    execute(database, "DROP TABLE clips")
    push(gallery, table)
    other = made_gallery(tmp_path / "other", "clustered", 60, metadata={"fingerprint": "g" * 64})
    with pytest.raises(ValueError, match="differ from those of .* in fingerprint.*Choose another name"):
        push(other, table)
    execute(database, """UPDATE clips_about SET about = jsonb_set(about, '{format}', '99')""")
    for refused in (lambda: push(gallery, table), lambda: table.about(is_new=True)):
        with pytest.raises(ValueError, match="not made by `scalar push` of this version"):
            refused()
    execute(database, "ALTER TABLE clips_about DROP COLUMN version")
    with pytest.raises(ValueError, match="not made by `scalar push` of this version"):
        table.about(is_new=True)
    table.close()


def test_a_row_that_somebody_changed_added_or_deleted_is_an_error(database, gallery):
    table, text = filled([database], gallery), made_texts(gallery, 1)[0]
    best = one(table, text)[0].key
    execute(database, "UPDATE clips SET video = audio, audio = video WHERE number = %s", [best])
    with pytest.raises(DamagedError, match=f"1 clips of .*/clips are not as they were pushed, such as {best}"):
        one(table, text)
    execute(database, "DELETE FROM clips WHERE number = %s", [best])
    with pytest.raises(DamagedError, match="/clips has 59 rows, but 60 were pushed"):
        one(table, text)
    assert push(gallery, table).new == 1
    assert one(table, text)[0].key == best
    table.close()


CHANGES = {
    "vectors swapped": ("UPDATE clips SET video = audio, audio = video WHERE {best}", {}),
    "an opposite vector": (
        "UPDATE clips SET video = array_fill(-1::real, ARRAY[24])::vector * video::vector WHERE {best}",
        {},
    ),
    "a vector less": ("UPDATE clips SET video = NULL WHERE {best}", {"has": "video"}),
    "no vectors": ("UPDATE clips SET video = NULL, audio = NULL, subtitle = NULL WHERE {best}", {}),
    "larger inner products": ("UPDATE clips SET _gram = array_fill(1e6::float8, ARRAY[6]) WHERE {best}", {}),
    "a lower bound": ("UPDATE clips SET _reach = 0 WHERE {best}", {}),
    "another path": ("UPDATE clips SET _path = '/other/a.mp4' WHERE {best}", {"paths": "clips/**"}),
    "another length": ("UPDATE clips SET _seconds = 1000 WHERE {best}", {"max_duration": 100}),
    "another date": ("UPDATE clips SET _changed = 0 WHERE {best}", {"after": "1970-01-02"}),
    "other words": ("UPDATE clips SET _words = '' WHERE {best}", {"words": "dog"}),
    "another name": ("UPDATE clips SET clip_id = 'other' WHERE {best}", {}),
    "another number": ("UPDATE clips SET number = gen_random_uuid() WHERE {best}", {}),
    "a hash that fits": ("UPDATE clips SET _reach = 0, _digest = md5('other') WHERE {best}", {}),
    "a clip for another": (
        "INSERT INTO clips SELECT gen_random_uuid(), clip_id FROM clips WHERE {best}; DELETE FROM clips WHERE {best}",
        {},
    ),
    "a clip less": ("DELETE FROM clips WHERE {best}", {}),
    "no clips": ("TRUNCATE clips", {}),
}
"""Changes of the row of the best clip, and the filter of a search from whose answer it may then be missing."""


def noted_clips(folder):
    """A gallery of clips of which all is known, and a text near to one of them."""
    vectors = make_clips(seed=3, kinds=("random",), count=200)
    clips = [replace(clip, seconds=5.0, changed=DAY, said="a dog") for clip in vectors if len(clip.vectors) > 1]
    best = next(clip.vectors for clip in clips if len(clip.vectors) == 3)
    text = torch.tensor(best["video"] + 0.3 * best["audio"]).float()
    return Made(clips).write(folder), torch.nn.functional.normalize(text, dim=-1)


@pytest.mark.promise("data", "A row in PostgreSQL that others changed is an error until the next push")
def test_whatever_is_changed_in_a_row_is_an_error_and_the_next_push_repairs_it(tmp_path, database):
    (gallery, text), missed = noted_clips(tmp_path), []
    with closing(filled([database], gallery)) as table:
        for name, (statement, wanted) in CHANGES.items():
            asked = {"k": 5, "allowed": Filter(**wanted)}
            (known,) = gallery.search(text[None], **asked)
            before = one(table, text, **asked)
            assert [hit.clip_id for hit in before] == [hit.clip_id for hit in known]
            execute(database, statement.format(best=f"number = '{before[0].key}'"))
            try:
                one(table, text, **asked)
                missed.append(name)
            except DamagedError as error:
                assert "/clips" in str(error)
            push(gallery, table)
            assert [hit.clip_id for hit in one(table, text, **asked)] == [hit.clip_id for hit in known]
    assert missed == []


@pytest.mark.xfail(
    strict=True, reason="Only rows that are found are compared with a hash, which has no inner products"
)
@pytest.mark.parametrize("name", ["larger inner products", "a lower bound", "a vector less", "another path"])
def test_a_row_that_an_administrator_changed_without_triggers_is_an_error(tmp_path, database, name):
    gallery, text = noted_clips(tmp_path)
    statement, wanted = CHANGES[name]
    with closing(filled([database], gallery)) as table:
        asked = {"k": 5, "allowed": Filter(**wanted)}
        statement = statement.format(best=f"number = '{one(table, text, **asked)[0].key}'")
        execute(database, f"SET session_replication_role = replica; {statement}")
        with pytest.raises(DamagedError):
            one(table, text, **asked)


METADATA = (
    {"modalities": 5}, {"modalities": [1, 2, 3]}, {"modalities": "video"}, {"modalities": [["a"]]},
    {"modalities": ["video", "smell"]}, {"modalities": ["vid\0"]}, {"score_options": [1]}, {"score_options": 5},
    {"score_options": {"modality_scale": "x"}}, {"query_temperature": 0}, {"least_score": 5}, {"fingerprint": 5},
)  # fmt: skip
ABOUT = (
    "UPDATE clips_about SET about = NULL",
    "UPDATE clips_about SET about = '[1]'",
    "UPDATE clips_about SET about = jsonb_set(about, '{dim}', '25')",
    "UPDATE clips_about SET about = jsonb_set(about, '{dtype}', '[]')",
    "UPDATE clips_about SET about = jsonb_set(about, '{dtype}', '\"float32\"')",
    "UPDATE clips_about SET about = jsonb_set(about, '{metadata}', '[[1, 2]]')",
    "UPDATE clips_about SET about = jsonb_set(about, '{metadata}', to_jsonb(repeat('[', 100000)))",
    "UPDATE clips_about SET version = NULL",
    "UPDATE clips_about SET version = 9223372036854775807",
    "UPDATE clips_about SET version = -9223372036854775808",
    "UPDATE clips_about SET node = NULL",
    "UPDATE clips_about SET num_nodes = NULL",
    "UPDATE clips_about SET num_clips = NULL",
    "UPDATE clips_about SET num_clips = 9223372036854775807",
    "DELETE FROM clips_about",
    "INSERT INTO clips_about SELECT * FROM clips_about",
    "ALTER TABLE clips_about ALTER version TYPE text",
    "ALTER TABLE clips_about ALTER version TYPE numeric",
    "ALTER TABLE clips_about ALTER node TYPE text",
    "ALTER TABLE clips_about ALTER about TYPE text",
    "ALTER TABLE clips_about DROP num_clips",
)
ROWS = (
    *(f"UPDATE clips SET {name} = NULL" for name in (*_COLUMNS, "video") if name != "number"),
    "UPDATE clips SET _gram = '{1}'",
    "UPDATE clips SET _gram = array_fill('NaN'::float8, ARRAY[6])",
    "UPDATE clips SET _gram = array_fill(1e300::float8, ARRAY[6])",
    "UPDATE clips SET _reach = 'NaN'",
    "UPDATE clips SET _place = 9223372036854775807",
    "UPDATE clips SET clip_id = E'\\uFFFF\\uFFFE日本'",
    "UPDATE clips SET _path = E'x\\uFFFF'",
    "UPDATE clips SET video = array_fill(60000, ARRAY[24])::vector::halfvec",
    "ALTER TABLE clips ALTER clip_id TYPE int USING 1",
    "ALTER TABLE clips ALTER clip_id TYPE text[] USING '{x}'",
    "ALTER TABLE clips ALTER _path TYPE bytea USING 'x'",
    "ALTER TABLE clips ALTER _place TYPE text",
    "ALTER TABLE clips ALTER _place TYPE float8",
    "ALTER TABLE clips ALTER _seconds TYPE numeric",
    "ALTER TABLE clips ALTER _changed TYPE timestamp USING '2020-01-01'",
    "ALTER TABLE clips ALTER _gram TYPE text",
    "ALTER TABLE clips ALTER video TYPE halfvec(3) USING '[1,0,0]'",
    "ALTER TABLE clips ALTER video TYPE text",
    "ALTER TABLE clips ALTER video TYPE real[] USING video::vector::real[]",
    "ALTER TABLE clips DROP _words",
    "DROP TABLE clips",
)


def test_hostile_rows_and_metadata_are_errors_of_a_sentence(tmp_path, database):
    """By an administrator who disables triggers; a clip may be missing then, but nothing fails without a sentence."""
    gallery = Made(make_facts().clips[:12]).write(tmp_path)
    text, failed = made_texts(gallery, 1)[0], []
    changes = [f"UPDATE clips_about SET about = jsonb_set(about, '{{metadata}}', {json_of(it)})" for it in METADATA]
    for statement in (*changes, *ABOUT, *ROWS):
        execute(database, "DROP TABLE IF EXISTS clips, clips_about")
        with closing(filled([database], gallery)) as table:
            searcher = EngineSearcher(table, "clips")
            best = searcher.search(text[None])[0][0]
            execute(database, f"SET session_replication_role = replica; {statement}")
            wanted = Filter(paths="*", words="dog", min_duration=1, after="1970-01-02")
            for ask in (
                partial(table.about, is_new=True),
                partial(EngineSearcher, table, "clips"),
                partial(searcher.search, text[None], 5),
                partial(searcher.search, text[None], 5, allowed=wanted),
                partial(searcher.search, like=best.key),
                partial(searcher.clip_named, best.clip_id),
                partial(searcher.point_of, best.key),
                partial(searcher.path_of, best.key),
                partial(push, gallery, table),
                partial(push, gallery, table, rewrite=True),
            ):
                try:
                    ask()
                except (EngineError, ValueError) as error:
                    is_own = type(error) is ValueError or type(error).__module__.startswith(("search.", "gallery."))
                    if not (is_own and "clips" in str(error) and str(error).endswith(".") and "\n" not in str(error)):
                        failed.append((statement, repr(error)))
                except Exception as error:
                    failed.append((statement, repr(error)))
    assert failed == []


def json_of(metadata):
    return sql.Literal(json.dumps(json.dumps(metadata))).as_string() + "::jsonb"


@pytest.mark.parametrize("version", [2**63 - 1, 2**60, -5, None])
def test_a_version_that_no_push_writes_is_replaced_by_the_next_push(database, gallery, version):
    table, text = filled([database], gallery), made_texts(gallery, 1)[0]
    known = one(table, text)
    execute(database, "UPDATE clips_about SET version = %s", [version])
    with pytest.raises(DamagedError, match="/clips has a version that no push writes. Push the gallery again"):
        one(table, text)
    assert push(gallery, table).unchanged == 60
    assert [hit.clip_id for hit in one(table, text)] == [hit.clip_id for hit in known]
    push(made_gallery(gallery.path.parent / "more", "clustered", 70), table)
    assert one(table, text).num_clips == 70
    table.close()


def test_the_service_says_that_a_table_of_another_format_is_gone(database, gallery):
    table, text = filled([database], gallery), made_texts(gallery, 1)[0]
    source = EngineSource(EngineSearcher(table, "it"), MADE_BY["model"], MADE_BY["fingerprint"])
    view = source.view()
    execute(database, "ALTER TABLE clips_about ALTER version TYPE text")
    with pytest.raises(AwayError, match="is gone, or made by another model"):
        view.search(queries=text[None])
    table.close()


def test_an_older_copy_is_noticed_by_its_version(database, gallery, monkeypatch):
    monkeypatch.setattr("search.engine.table._PATIENCE", 0)
    table = filled([database], gallery)
    one(table, made_texts(gallery, 1)[0])
    execute(database, "UPDATE clips_about SET version = version - 1")
    with pytest.raises(EngineError, match="/clips is behind"):
        one(table, made_texts(gallery, 1)[0])
    table.close()


def test_secrets_stand_in_no_address_and_no_message(postgres, gallery, monkeypatch):
    server, secret = postgres(1)[0], "hunter2-is-secret"
    database = server.new_database()
    execute(database, "CREATE EXTENSION vector")
    execute(database, f"CREATE ROLE guest LOGIN PASSWORD '{secret}'")
    execute(database, "GRANT CREATE ON SCHEMA public TO guest")
    address = database.replace("postgres@", "guest@") + "/clips"
    try:
        for given in (f"{secret}-not", secret):
            monkeypatch.setenv("PGPASSWORD", given)
            with closing(Table(parse_tables(address))) as table:
                if given == secret:
                    push(gallery, table)
                    assert len(table) == 60
                else:
                    with pytest.raises(EngineError, match="password authentication failed") as caught:
                        table.about()
                    assert secret not in str(caught.value)
        for text in (
            address.replace("guest@", f"guest:{secret}@"),
            f"{address},{address.replace('guest@', f':{secret}@')}",
            f"{address}?password={secret}",
        ):
            assert is_address(text)
            with pytest.raises(ValueError, match="not contain secrets.*PGPASSWORD") as caught:
                parse_tables(text)
            assert secret not in str(caught.value)
    finally:
        execute(database, "DROP OWNED BY guest; DROP ROLE guest")


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://host/clips",
        "postgresql://host/db/a;b",
        "postgresql://host:port/db/clips",
        "postgresql://h/d/c?x=1",
    ],
)
def test_what_is_no_address_of_a_table_is_reported(text):
    with pytest.raises(ValueError, match="Expected the address of a table"):
        parse_tables(text)


def test_addresses_of_tables_are_read():
    (first, second) = parse_tables("postgresql://a:1,[::1]:2/db/s.clips,postgresql://me@b/db/clips")
    assert first.options == {"host": "a,::1", "port": "1,2", "dbname": "db"}
    assert (first.schema, first.table, second.user) == ("s", "clips", "me")
    assert second.options == {"host": "b", "user": "me", "dbname": "db"}
    assert parse_tables(str(first)) == (first,)
    assert parse_tables("postgresql:///db/clips")[0].options == {"dbname": "db"}
    with pytest.raises(ValueError, match="twice"):
        parse_tables("postgresql://b/db/clips,postgresql://b/db/clips")


def test_the_commands_push_and_ask_a_table(place, database):  # noqa: F811
    index("clips", "--dtype", "float32")
    address = f"{database}/clips"
    assert "2 new, 0 changed, 0 unchanged, 0 removed; 2 clips" in run("push", "gallery", address).stdout
    for asked in (["audio", "--k", "2"], ["--like", "clips/cat.mp4"], ["audio", "--path", "cat*"], ['"audio"']):
        reported, known = (run("query", where, *asked, "--json") for where in (address, "gallery"))
        assert reported.stdout == known.stdout
    assert "The second stage reads files" in run("query", address, "audio", "--rerank", 5, code=1).stderr
    assert "The address lists the nodes" in run("push", "gallery", address + "2", "--shards", 2, code=1).stderr
    assert run("push", "--print-sql").stdout == FUNCTION


# Nodes --------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("data", "A node that dies, hangs or lies gives a right answer or an error")
@pytest.mark.e2e
def test_a_node_that_is_killed_hangs_or_lies_is_named_or_the_answer_is_right(tmp_path, postgres, monkeypatch):
    """While another process pushes: 200 queries, each is right, or an error that names the node."""
    monkeypatch.setattr("search.engine.table._TIMEOUT_OF_PAGE", 2)
    servers = postgres(3)
    databases = [server.new_database() for server in servers]
    states = [made_gallery(tmp_path / str(seed), "clustered", 300, seed=seed) for seed in (1, 2)]
    texts = made_texts(states[0], 8)
    known = [[[hit.clip_id for hit in hits] for hits in state.search(texts)] for state in states]
    scores = [[[hit.score for hit in hits] for hits in state.search(texts)] for state in states]
    table = filled(databases, states[0])
    searcher = EngineSearcher(table_of(*databases, is_patient=False), "it")
    stop, right, named = threading.Event(), 0, 0

    def pushing():
        turn = 0
        while not stop.is_set():
            turn += 1
            try:
                push(states[turn % 2], table)
            except OSError:
                time.sleep(0.1)

    pusher = threading.Thread(target=pushing)
    pusher.start()
    try:
        for turn in range(200):
            server = servers[turn // 20 % 3]
            if turn % 20 == 10:  # while it is asked
                (ending := threading.Timer(0.01, server.pause if turn // 20 % 2 else server.kill)).start()
            if turn % 20 == 12:
                ending.join()
                server.resume() if turn // 20 % 2 else server.start()
            try:
                hits = searcher.search(texts[turn % 8, None])[0]
            except OSError as error:
                named += 1
                assert any(f":{server.port}/" in str(error) for server in servers), error
                continue
            right += 1
            found = [hit.clip_id for hit in hits], [hit.score for hit in hits]
            assert found in [(names[turn % 8], of[turn % 8]) for names, of in zip(known, scores, strict=True)]
            assert hits.certainty is Certainty.EXACT and hits.num_clips == 300 and hits.notes[0].startswith("3 nodes")
    finally:
        stop.set()
        pusher.join()
    assert right + named == 200 and right > 120 and named > 5


def test_nodes_that_do_not_belong_together_are_errors_that_name_one(tmp_path, postgres, monkeypatch):
    monkeypatch.setattr("search.engine.table._PATIENCE", 0.2)
    databases = [postgres(1)[0].new_database() for _ in range(3)]  # one server has what three would have
    gallery = made_gallery(tmp_path / "gallery", "clustered", 90)
    filled(databases, gallery).close()
    text = made_texts(gallery, 1)[0]
    names = {database: parse_tables(f"{database}/clips")[0].name for database in databases}

    def refused(*databases):
        with closing(table_of(*databases)) as table, pytest.raises(EngineError) as caught:
            one(table, text)
        return str(caught.value)

    assert "of 3 of a gallery" in refused(*databases[:2])
    with closing(table_of(*reversed(databases))) as table:  # in any order
        assert [hit.clip_id for hit in one(table, text)] == [hit.clip_id for hit in gallery.search(text[None])[0]]
    execute(databases[1], "UPDATE clips_about SET version = version - 1")
    assert f"{names[databases[1]]} is behind" in refused(*databases)
    execute(databases[1], "UPDATE clips_about SET version = version + 1")
    execute(databases[2], "DELETE FROM clips WHERE number IN (SELECT number FROM clips LIMIT 1)")
    assert f"{names[databases[2]]} has" in refused(*databases)
    other = made_gallery(tmp_path / "other", "clustered", 90, metadata={"fingerprint": "g" * 64})
    execute(databases[2], "DROP TABLE clips, clips_about")
    about = sql.SQL("UPDATE clips_about SET about = {}")
    assert f"no gallery in {names[databases[2]]}" in refused(*databases)
    push(gallery, table := table_of(*databases))  # which makes what is missing
    assert one(table, text).num_clips == 90
    other = table.about().as_metadata()["scalar"] | {"metadata": '{"fingerprint": "other"}'}
    execute(databases[1], about.format(sql.Literal(json.dumps(other))))
    assert "fingerprint" in refused(*databases)
    table.close()


def test_nodes_are_served_as_a_folder_is_and_one_that_is_away_is_reported(tmp_path, postgres, at_once):  # noqa: F811
    (server,) = postgres(1)
    write_gallery(tmp_path)
    gallery = Gallery.open(tmp_path / "gallery")
    databases = [server.new_database() for _ in range(3)]
    filled(databases, gallery).close()
    table = table_of(*databases, is_patient=False)
    source = EngineSource(EngineSearcher(table, "it"), "words", "f" * 64)
    with (
        TestClient(make_app(tmp_path), ADDRESS) as folder,
        TestClient(make_app(tmp_path, source=source), ADDRESS) as own,
    ):
        about, known = (client.get("/api/gallery").json() for client in (own, folder))
        assert about["filters"] == known["filters"] and about["num_clips"] == known["num_clips"]
        for options in ({}, {"filter": {"paths": ["*.webm"], "has": ["audio"]}}, {"modalities": ["video"], "k": 2}):
            assert same(ask(own, **options), ask(folder, **options))
        hits = [ask(client)["hits"] for client in (own, folder)]
        reported, found = (
            ask(client, call="like", key=of[0]["key"]) for client, of in zip((own, folder), hits, strict=True)
        )
        assert same(reported, found) and own.get("/").status_code == 200
        server.kill()
        assert "does not answer" in ask(own, code=503)["error"] and own.get("/").status_code == 200
        server.start()
        assert same(ask(own), ask(folder))
        assert server.address not in json.dumps(about) and name_of(hits[0][0]) == name_of(hits[1][0])
    table.close()


def test_a_filter_with_nul_or_a_lone_surrogate_is_answered_as_in_a_folder(tmp_path, database):
    write_gallery(tmp_path)
    table = table_of(database, is_patient=False)
    push(Gallery.open(tmp_path / "gallery"), table)
    source = EngineSource(EngineSearcher(table, "it"), "words", "f" * 64)
    with (
        TestClient(make_app(tmp_path), ADDRESS) as folder,
        TestClient(make_app(tmp_path, source=source), ADDRESS) as own,
    ):
        answered = 0
        for text in ("\0", "*\0", "[!\0]*", "\ud800", "[!\udce9]", "~\0"):
            for wanted in ({"paths": [text]}, {"words": [f"dog{text}"]}):
                body = json.dumps({"query": "a dog", "filter": wanted})
                reported, known = (client.post("/api/search", content=body, headers=JSON) for client in (own, folder))
                assert reported.status_code == known.status_code and source.problem is None
                if known.status_code == 200:
                    assert same(reported.json(), known.json())
                    answered += 1
        assert answered >= 8 and same(ask(own), ask(folder))
    table.close()
