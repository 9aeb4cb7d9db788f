"""The search service over a gallery in a vector engine, beside the same gallery in its folder."""

import logging
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Event
from types import SimpleNamespace

import httpx
import pytest
import torch
from starlette.testclient import TestClient
from typer.testing import CliRunner

from gallery.gallery import Gallery, GalleryWriter
from gallery.windows import clip_id_of
from search.__main__ import app
from search.engine import collection as collection_module
from search.engine.address import parse_address
from search.engine.asking import EngineSearcher
from search.engine.clips import point_id
from search.engine.collection import Collection
from search.engine.errors import DamagedError, EngineError
from search.engine.push import push
from search.service import engine as engine_module
from search.service import server as server_module
from search.service.archive import UnknownClipError
from search.service.engine import EngineSource
from search.service.routes import SEARCHES
from tests.search.engines import EdgeServer
from tests.search.serving import (
    PRESENCE,
    SECRET,
    WordModel,
    WordProcessor,
    make_app,
    recorded,
    serving,
    vectors_of,
    write_gallery,
)

ADDRESS = "http://127.0.0.1:8000"
KEY = "a-secret-of-the-engine"


def engine_at(address):
    """A source as the command opens it."""
    collection = Collection.at(parse_address(address), is_patient=False)
    return EngineSource(EngineSearcher(collection, address), "words", "f" * 64)


def push_to(address, folder):
    collection = Collection.at(parse_address(address))
    push(Gallery.open(folder), collection)
    collection.close()


@contextmanager
def asking_both(place, address):
    """Clients of the gallery in its folder and in the engine."""
    push_to(address, place / "gallery")
    source = engine_at(address)
    with TestClient(make_app(place), ADDRESS) as folder, TestClient(make_app(place, source=source), ADDRESS) as engine:
        engine.source = source
        yield folder, engine
    source._collection.close()


def ask(client, query="a dog", code=200, call="search", **options):
    body = options if call == "like" else {"query": query} | options
    response = client.post(f"/api/{call}", json=body)
    assert response.status_code == code, response.text
    return response.json()


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    place = tmp_path_factory.mktemp("both")
    write_gallery(place)
    with asking_both(place, f"qdrant+file://{place}/engine/clips") as clients:
        clients[0].place = place
        yield clients


@pytest.fixture
def at_once(monkeypatch):
    """The engine is asked whenever somebody asks for something, and once."""
    monkeypatch.setattr(collection_module, "_PAUSES", (0,))
    monkeypatch.setattr(collection_module, "_PAUSES_OF_PAGE", ())
    for name in ("_RETRY", "_LOOK", "_COUNT"):
        monkeypatch.setattr(engine_module, f"{name}_SECONDS", 0.0)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """The service over an engine that is asked over HTTP."""
    place = tmp_path_factory.mktemp("running")
    write_gallery(place)
    server = EdgeServer(place / "engine")
    with asking_both(place, f"qdrant+{server.url}/clips") as (folder, engine):
        engine.folder, engine.server, engine.gallery = folder, server, Gallery.open(place / "gallery")
        yield engine
    server.close()


@pytest.fixture
def engine(running, at_once):
    return running


@pytest.fixture
def server(tmp_path, monkeypatch, at_once):
    monkeypatch.setenv("QDRANT_API_KEY", KEY)
    server = EdgeServer(tmp_path / "engine", key=KEY)
    yield server
    server.close()


# Of clips that an engine holds these are not known, or otherwise.
OTHERWISE = ("key", "media", "captions", "words", "problems")


def name_of(hit):
    """The name of its file; an engine does not know the folder that all files share."""
    return hit["name"].removeprefix("clips/")


def same(reported, known):
    """Whether two answers are the same, but for what an engine does not know."""
    for answer in (reported, known):
        del answer["seconds"], answer["num_scored"]
        for hit in answer["hits"]:
            assert hit["name"] and (hit["kind"] is None) == (hit["media"] is None)
            hit["name"] = name_of(hit)
            for name in OTHERWISE:
                del hit[name]
    return reported == known


@pytest.mark.parametrize(
    "options",
    [
        {}, {"k": 2}, {"temperature": 0.001}, {"temperature": 1e4}, {"modalities": ["audio"]},
        {"modalities": ["video", "subtitle"]}, {"filter": {"has": ["audio"], "lacks": ["subtitle"]}},
        {"filter": {"min_duration": 1}}, {"filter": {"after": "2020-01-01"}, "modalities": ["subtitle"]},
        {"per_file": True},
    ],
)  # fmt: skip
def test_an_engine_answers_as_the_folder_does(both, options):
    folder, engine = both
    assert same(ask(engine, **options), ask(folder, **options))
    for hit, mine in zip(ask(folder, **options)["hits"], ask(engine, **options)["hits"], strict=True):
        assert mine["key"] == point_id("", str(folder.place / "clips" / hit["name"]))
        more = {name: value for name, value in options.items() if name != "modalities"}
        reported, known = (
            ask(client, call="like", key=key, **more) for client, key in ((engine, mine["key"]), (folder, hit["key"]))
        )
        assert same(reported, known)


def test_files_that_are_on_this_machine_are_played(both, tmp_path):
    folder, engine = both
    known = {hit["name"]: hit["media"] for hit in ask(folder)["hits"]}
    for hit in ask(engine)["hits"]:
        assert engine.get(hit["media"]).content == folder.get(known[name_of(hit)]).content != b""
        assert engine.get(hit["media"], headers={"range": "bytes=0-2"}).status_code == 206
    for key in (str(uuid.uuid4()), "0-0", "..", "a" * 80, point_id("", "/etc/passwd"), hit["name"]):
        response = engine.get(f"/api/clips/{key}/media")
        assert response.status_code == 404 and list(response.json()) == ["error"]
        if len(key) <= 80:
            assert "Search again" in ask(engine, code=404, call="like", key=key)["error"]


def test_files_of_another_machine_are_reported_and_not_played(tmp_path):
    write_gallery(tmp_path)
    with asking_both(tmp_path, f"qdrant+file://{tmp_path}/engine/clips") as (_, engine):
        for path in (tmp_path / "clips").iterdir():
            path.unlink()
        hits = ask(engine)["hits"]
        assert set(map(name_of, hits)) == set(PRESENCE) and {hit["media"] for hit in hits} == {None}
        assert engine.get(f"/api/clips/{hits[0]['key']}/media").status_code == 404


def test_a_collection_cannot_make_other_files_public(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    with GalleryWriter(tmp_path / "gallery") as writer:
        writer.metadata = {"model": "words", "fingerprint": "f" * 64}
        writer.put_clips([str(secret)], vectors_of("a")[None], torch.ones(1, 3).bool())
        writer.commit()
    with asking_both(tmp_path, f"qdrant+file://{tmp_path}/engine/clips") as (_, engine):
        (hit,) = ask(engine)["hits"]
        assert hit["media"] is None
        assert engine.get(f"/api/clips/{hit['key']}/media").status_code == 404


def test_a_clip_by_its_key_has_the_weights_of_the_search(both):
    for client in both:
        hits = ask(client)["hits"]
        reported = [client.app.archive.moment(hit["key"], "a dog") for hit in hits]
        assert [found.weights for found in reported] == [pytest.approx(hit["weights"]) for hit in hits]
        assert [found.name for found in reported] == [hit["name"] for hit in hits] and reported[0].score is None
        assert client.app.archive.moment(hits[0]["key"], None).weights is None
        with pytest.raises(UnknownClipError):
            client.app.archive.moment("0" * len(hits[0]["key"]), None)


def test_what_an_engine_cannot_be_asked_is_reported_in_a_sentence(both):
    folder, engine = both
    about, known = (client.get("/api/gallery").json() for client in (engine, folder))
    assert set(known["filters"]) - set(about["filters"]) == {"paths", "words"} and "has" in about["filters"]
    reported = ask(engine, code=422, filter={"paths": ["holiday/**"]})["error"]
    assert reported.startswith("This engine does not support patterns of paths.")
    key = ask(engine)["hits"][0]["key"]
    assert "patterns of paths" in ask(engine, code=422, call="like", key=key, filter={"paths": ["*"]})["error"]
    reported = ask(engine, 'a dog "Karin"', code=422)["error"]
    assert reported.startswith("This engine does not support words in quotation marks. Omit the marks")
    assert not about["uploads"] and not about["lists"] and known["lists"]
    assert "Enter a query" in engine.post("/api/clips", json={}).json()["error"]
    for client, word in ((engine, "scalar push"), (folder, "--allow-uploads")):
        response = client.post("/api/uploads?name=a.mp4", content=b"video")
        assert response.status_code == 404 and word in response.json()["error"]
    for name in ("num_clips", "share", "model", "temperature", "method", "segment", "problem"):
        assert about[name] == known[name]
    assert (about["name"], about["num_clips"]) == ("clips", 5)
    schema = engine.get("/api/openapi.json").json()["components"]["schemas"]
    assert schema["Certainty"]["enum"] == ["exact", "exact up to the index", "stopped early"]


def test_an_answer_says_how_certain_it_is(both, tmp_path, server):
    assert [ask(client)["certainty"] for client in both] == ["exact", "exact"]
    write_gallery(tmp_path, dict.fromkeys([*PRESENCE, *(f"{number}.webm" for number in range(20))], b"x"))
    with asking_both(tmp_path, f"qdrant+{server.url}/clips") as (_, engine):
        assert ask(engine)["certainty"] == "exact" and ask(engine)["exact"]
        near = engine_at(f"qdrant+{server.url}/clips?approximate")
        with TestClient(make_app(tmp_path, source=near), ADDRESS) as client:
            answer = ask(client)
            assert (
                answer["certainty"] == "exact up to the index" and not answer["exact"] and answer["num_scored"] == 25
            )
        key = next(hit["key"] for hit in ask(engine)["hits"] if name_of(hit) == "dog.webm")
        answer = ask(engine, call="like", key=key, k=1)
        assert answer["certainty"] == "exact" and answer["exact"] and answer["num_allowed"] == 24


def test_each_file_is_reported_once_by_an_engine_too(tmp_path):
    names = [clip_id_of(name, (start, start + 1)) for name in ("talk.webm", "song.webm") for start in range(9)]
    write_gallery(tmp_path, dict.fromkeys([*names, "short.webm"], b"x"), segment=1)
    with asking_both(tmp_path, f"qdrant+file://{tmp_path}/engine/clips") as (folder, engine):
        reported, known = (ask(client, per_file=True) for client in (engine, folder))
        assert list(map(name_of, reported["hits"])) == list(map(name_of, known["hits"]))
        assert [hit["start"] for hit in reported["hits"]] == [hit["start"] for hit in known["hits"]]
        assert reported["num_files"] is None and {hit["num_windows"] for hit in reported["hits"]} == {None}
        assert reported["exact"] and reported["num_clips"] == 19


def test_an_engine_that_does_not_answer_is_reported_and_answers_again(tmp_path, server, caplog):
    write_gallery(tmp_path)
    with asking_both(tmp_path, f"qdrant+{server.url}/clips") as (_, engine), caplog.at_level(logging.DEBUG):
        before, about = ask(engine), engine.get("/api/gallery").json()
        key = before["hits"][0]["key"]
        server.go_away()
        for call, options in (("search", {}), ("like", {"key": key})):
            response = engine.post(f"/api/{call}", json={"query": "a dog"} if call == "search" else options)
            assert response.status_code == 503 and int(response.headers["retry-after"]) > 0
            assert response.json()["error"] == engine_module._AWAY and KEY not in response.text
        assert engine.get(f"/api/clips/{key}/media").status_code == 503
        reported = engine.get("/api/gallery").json()
        assert reported["problem"] == engine_module._AWAY and reported | {"problem": None} == about
        server.come_back()
        assert ask(engine)["hits"] == before["hits"] and engine.get("/api/gallery").json() == about
        server.fails += [500, 401]
        assert [ask(engine, code=503)["error"] for _ in range(2)] == [engine_module._AWAY] * 2
        assert ask(engine)["hits"] == before["hits"]
    # What the engine says is for whoever reads the log.
    for words in ("Is the address right", "refuses access", "refuses a request", "Connection refused"):
        assert words in caplog.text and words not in engine_module._AWAY
    assert KEY not in caplog.text


def test_only_one_request_finds_out_whether_the_engine_is_back(tmp_path, server, monkeypatch):
    write_gallery(tmp_path)
    with asking_both(tmp_path, f"qdrant+{server.url}/clips") as (_, engine):
        monkeypatch.setattr(engine_module, "_RETRY_SECONDS", 1000.0)
        server.fails += [500]
        ask(engine, code=503)
        asked = len(server.asked)
        assert engine.post("/api/search", json={"query": "a dog"}).headers["retry-after"] == "1000"
        assert [ask(engine, code=503)["error"] for _ in range(5)] and len(server.asked) == asked
        engine.source._retry = 0.0
        with engine.source._looking:  # somebody does
            ask(engine, code=503)
        assert len(server.asked) == asked
        assert len(ask(engine)["hits"]) == 5 and engine.source.problem is None


@contextmanager
def hanging(collection, name="nearest"):
    """A call to the engine that does not come back before it is allowed to, and then fails; `calls` are those made."""
    gate, calls, late, call = Event(), [], [], getattr(collection, name)

    def hang(*arguments, **options):
        calls.append(arguments)
        if not gate.wait(15):
            late.append(True)
        raise EngineError(f"The engine does not answer: {KEY}.")

    setattr(collection, name, hang)
    try:
        yield SimpleNamespace(release=gate.set, calls=calls, is_released=gate.is_set)
    finally:
        gate.set()
        setattr(collection, name, call)
    assert not late, "somebody waited for it"


def wait_until(is_true):
    stop = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < stop
        time.sleep(0.005)


def test_searches_that_hang_stop_nothing_else(engine, monkeypatch, caplog):
    with ThreadPoolExecutor(12) as clients:
        source, hit = engine.source, ask(engine)["hits"][0]
        with hanging(source._collection) as hung:
            reported = [clients.submit(ask, engine, code=503) for _ in range(12)]
            wait_until(lambda: len(hung.calls) == SEARCHES)
            about = engine.get("/api/gallery").json()
            assert (about["num_clips"], about["problem"]) == (5, None)
            assert engine.get(hit["media"]).status_code == 200
            assert not hung.is_released() and len(hung.calls) == SEARCHES
            monkeypatch.setattr(engine_module, "_RETRY_SECONDS", 1000.0)
            hung.release()
            assert [future.result()["error"] for future in reported] == [engine_module._AWAY] * 12
            assert len(hung.calls) <= 2 * SEARCHES  # whoever had looked already; the others are refused at once
            assert engine.get("/api/gallery").json() == about | {"problem": engine_module._AWAY}
            made = len(hung.calls)
            assert ask(engine, code=503)["error"] == engine_module._AWAY and len(hung.calls) == made
            # What it holds it tells, but it finds nothing yet.
            source._retry = 0.0
            assert engine.get("/api/gallery").json()["problem"] == engine_module._AWAY
            assert len(hung.calls) == made + 1
        source._retry = 0.0
        assert ask(engine)["hits"][0] == hit and source.problem is None
    assert KEY in caplog.text  # of this test's own error: details are for the log


def test_files_and_summaries_that_hang_stop_no_search(engine):
    with ThreadPoolExecutor(12) as clients:
        collection, hits = engine.source._collection, ask(engine)["hits"]
        with hanging(collection, "path_of") as paths:
            waiting = [clients.submit(engine.get, hit["media"]) for hit in [*hits, *hits]]
            wait_until(lambda: paths.calls)
            assert ask(engine)["hits"] == hits and engine.get("/api/gallery").json()["problem"] is None
            with hanging(collection, "count") as counts:
                first = clients.submit(engine.get, "/api/gallery")
                wait_until(lambda: counts.calls)
                # One counts, and the others get what is known.
                assert [engine.get("/api/gallery").json()["num_clips"] for _ in range(6)] == [5] * 6
                assert not counts.is_released()
                counts.release()
                assert first.result().json()["problem"] == engine_module._AWAY
            assert not paths.is_released()
            paths.release()
            assert {future.result().status_code for future in waiting} == {503}
        assert ask(engine)["hits"] == hits


def test_the_service_ends_while_a_search_hangs(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "_END_SECONDS", 0)
    with hanging(engine.source._collection) as hung, ThreadPoolExecutor(1) as clients:
        with serving(make_app(tmp_path, source=engine.source)) as address:
            asked = clients.submit(httpx.post, f"{address}api/search", json={"query": "a dog"}, timeout=30)
            wait_until(lambda: hung.calls)
        assert not hung.is_released()  # and nobody waited for it
        assert asked.exception() is not None or asked.result().status_code >= 500
    wait_until(lambda: engine.source.problem)
    ask(engine)


def test_a_look_opens_what_it_has_read_and_one_request_at_a_time_looks(engine, monkeypatch):
    collection, inside, most = engine.source._collection, [], []
    known = collection.about()
    other = replace(known, metadata=known.metadata | {"fingerprint": "e" * 64})

    def looking(is_new=False):
        inside.append(True)
        most.append(len(inside))
        time.sleep(0.01)
        inside.pop()
        return known

    with monkeypatch.context() as patch, ThreadPoolExecutor(4) as pool:
        patch.setattr(collection, "about", looking)
        list(pool.map(lambda _: engine.source.view(), range(8)))
    assert max(most) == 1 and len(most) == 8
    # What another thread has read before is what the collection remembers.
    with monkeypatch.context() as patch:
        patch.setattr(collection, "about", lambda is_new=False: other if is_new else known)
        assert ask(engine, code=503)["error"] == engine_module._OTHERWISE
    assert len(ask(engine)["hits"]) == 5


def test_a_clip_that_is_removed_meanwhile_is_not_there(engine, monkeypatch):
    (first, second, *_), collection = ask(engine)["hits"], engine.source._collection
    collection.remove([first["key"]])
    assert "Search again" in ask(engine, code=404, call="like", key=first["key"])["error"]
    assert engine.get(first["media"]).status_code == 404
    assert engine.source.problem is None and len(ask(engine)["hits"]) == 4
    push(engine.gallery, collection)
    monkeypatch.setattr(collection, "nearest", lambda *_: {}["a fault"])
    with pytest.raises(KeyError, match="a fault"):  # of ours is none of whoever asks
        ask(engine, call="like", key=second["key"])


def test_what_is_damaged_in_an_engine_is_reported_and_stops_no_other_search(engine, monkeypatch, caplog):
    key, collection = ask(engine)["hits"][0]["key"], engine.source._collection
    monkeypatch.setattr(engine_module, "_RETRY_SECONDS", 1000.0)

    def damaged(_):
        raise DamagedError("the clip of a secret name")

    for call, options in (("search", {}), ("like", {"key": key})):
        with monkeypatch.context() as patch:
            patch.setattr(collection, "fetch", damaged)
            assert ask(engine, code=503, call=call, **options)["error"] == engine_module._DAMAGED
        assert "secret name" in caplog.text
        caplog.clear()
        assert len(ask(engine)["hits"]) == 5
    assert engine.get("/api/gallery").json()["problem"] is None


def test_an_engine_is_asked_no_more_than_needed(engine, monkeypatch):
    hit, server = ask(engine)["hits"][0], engine.server
    for name in ("_LOOK_SECONDS", "_COUNT_SECONDS"):
        monkeypatch.setattr(engine_module, name, 1000.0)
    server.asked.clear()
    with monkeypatch.context() as patch:
        patch.setattr(engine.source._collection, "fetch", lambda _: pytest.fail("with its vectors"))
        assert engine.get(hit["media"], headers={"range": "bytes=0-0"}).status_code == 206
        engine.get("/api/gallery")
    assert server.asked == [("POST", "points")]
    ask(engine)
    without_look = len(server.asked) - 1
    monkeypatch.setattr(engine_module, "_LOOK_SECONDS", 0.0)
    server.asked.clear()
    ask(engine)
    assert without_look < len(server.asked)


def test_estimates_are_reported_as_such_and_no_filter_leaves_more_than_there_is(engine, monkeypatch):
    for client in (engine.folder, engine):
        assert not ask(client)["estimated"] and not client.get("/api/gallery").json()["estimated"]
    monkeypatch.setattr(collection_module, "_COUNTED", 4)
    collection, count = engine.source._collection, engine.source._collection.count
    monkeypatch.setattr(collection, "count", lambda where: 7 if where else count(where))
    answer = ask(engine, filter={"has": ["video"]})
    assert answer["estimated"] and answer["num_allowed"] == answer["num_clips"] == 5
    about = engine.get("/api/gallery").json()
    assert about["estimated"] and max(about["share"].values()) == 1


def test_what_is_pushed_meanwhile_is_found_and_another_model_is_refused(tmp_path, server, caplog):
    write_gallery(tmp_path)
    address = f"qdrant+{server.url}/clips"
    with asking_both(tmp_path, address) as (folder, engine):
        key = ask(engine)["hits"][0]["key"]
        with GalleryWriter(tmp_path / "gallery") as writer:
            writer.metadata = writer.metadata | {"query_temperature": 0.5}
            (tmp_path / "clips" / "new.webm").write_bytes(b"new")
            writer.put_clips([str(tmp_path / "clips" / "new.webm")], vectors_of("new")[None], torch.ones(1, 3).bool())
            writer.put_files([recorded(tmp_path / "clips" / "new.webm")])
            writer.commit()
        push_to(address, tmp_path / "gallery")
        assert same(ask(engine), ask(folder)) and ask(engine)["temperature"] == 0.5
        assert engine.get("/api/gallery").json()["num_clips"] == 6
        ask(engine, call="like", key=key)

        for folder in ("engine", "gallery"):
            (tmp_path / folder).rename(tmp_path / f"{folder} before")
        engine_before = server.engine.shard
        server.engine.shard = None
        assert ask(engine, code=503)["error"] == engine_module._OTHERWISE
        write_gallery(tmp_path, fingerprint="e" * 64)
        push_to(address, tmp_path / "gallery")
        reported = ask(engine, code=503)["error"]
        assert reported == engine_module._OTHERWISE and "There is no collection" in caplog.text
        assert "The gallery was made with" in caplog.text and "cannot be compared" in caplog.text
        assert engine.get("/api/gallery").json()["problem"] == reported
        server.engine.shard.close()
        server.engine.shard = engine_before
        server.engine.metadata["scalar"]["metadata"] = server.engine.metadata["scalar"]["metadata"].replace(
            "e" * 64, "f" * 64
        )
        assert len(ask(engine)["hits"]) == 6 and engine.get("/api/gallery").json()["problem"] is None


def test_many_may_ask_at_once_while_clips_are_pushed(tmp_path):
    """The client's own engine is not made for several threads."""
    write_gallery(tmp_path)
    with asking_both(tmp_path, f"qdrant+file://{tmp_path}/engine/clips") as (folder, engine):
        known, collection = ask(folder, "a cat"), engine.source._collection
        stop, inside, most = [], [0], [0]
        query_points = collection.client.query_points

        def watching(*arguments, **options):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            found = query_points(*arguments, **options)
            inside[0] -= 1
            return found

        collection.client.query_points = watching
        gallery = Gallery.open(tmp_path / "gallery")

        def pushing():
            while not stop:
                collection.remove([point_id("", gallery.clip_ids[0])])
                push(gallery, collection)

        with ThreadPoolExecutor(7) as pool:
            pusher = pool.submit(pushing)
            try:
                reported = list(
                    pool.map(lambda number: ask(engine, f"a {number % 9}", temperature=0.1 + number), range(60))
                )
            finally:
                stop.append(True)
            pusher.result()
        assert {len(answer["hits"]) for answer in reported} <= {4, 5} and most[0] == 1
        assert same(ask(engine, "a cat"), known)


def test_the_rules_of_tokens_are_those_of_a_folder(both, tmp_path):
    _, engine = both
    with TestClient(make_app(tmp_path, source=engine.source, secret=SECRET), ADDRESS) as client:
        for method, path in (("GET", "gallery"), ("POST", "search"), ("POST", "uploads?name=a.mp4"), ("POST", "like")):
            assert client.request(method, f"/api/{path}", content=b"{}").status_code == 401
        client.headers["authorization"] = f"Bearer {SECRET}"
        assert len(ask(client)["hits"]) == 5


def test_a_model_whose_score_an_engine_has_no_bounds_of_is_refused(both, tmp_path, monkeypatch):
    monkeypatch.setattr(WordModel.config, "aggregation", "uniform")
    with pytest.raises(ValueError, match="An engine only has bounds of the score 'scalar', got 'uniform'"):
        make_app(tmp_path, source=both[1].source)


# The command --------------------------------------------------------------------------------------------------------


def serve(*arguments, code=1):
    result = CliRunner().invoke(app, ["serve", *map(str, arguments)])
    assert result.exit_code == code and "Traceback" not in result.output, result.output
    return result.output


def test_the_command_serves_a_collection_and_refuses_what_makes_no_sense(tmp_path, server, monkeypatch):
    write_gallery(tmp_path)
    address = f"qdrant+{server.url}/clips"
    monkeypatch.setattr("search.service.keeper.keep_running", lambda _: None)  # in this process
    monkeypatch.setattr("modeling_scalar.load_model", lambda *_: pytest.fail("loaded"))
    assert "There is no collection 'clips'" in serve(address)
    push_to(address, tmp_path / "gallery")
    for reported, options in (
        ("--allow-uploads needs a gallery in a folder", ["--allow-uploads"]),
        ("--max-upload limits uploads: it needs --allow-uploads", ["--max-upload", 3]),
        ("--limit limits uploads", ["--limit", "time=3"]),
        ("words", []),  # the model, which is not there
    ):
        assert reported in serve(address, *options)
    assert "not contain secrets" in serve(f"{address}?api_key=x")
    monkeypatch.setattr("modeling_scalar.load_model", lambda *_: (WordModel(), WordProcessor()))
    monkeypatch.setattr("modeling_scalar.model_identity.model_fingerprint", lambda *_: "f" * 64)
    (tmp_path / "words").mkdir()
    answers = []

    class Server:
        def __init__(self, application, started):
            self.application, self.started = application, started

        def run(self, sockets):
            self.started()
            with TestClient(self.application, ADDRESS) as client:
                answers.append(ask(client))

    monkeypatch.setattr("search.service.server.make_server", Server)
    assert "Serving 5 clips at http://127.0.0.1:" in serve(address, "--model", tmp_path / "words", "--port", 0, code=0)
    assert [len(answer["hits"]) for answer in answers] == [5]
    monkeypatch.setattr("modeling_scalar.model_identity.model_fingerprint", lambda *_: "e" * 64)
    assert "Embeddings of different models cannot be compared" in serve(address, "--model", tmp_path / "words")
    server.fails += [401] * 2
    reported = serve(address)
    assert "Put its key into QDRANT_API_KEY" in reported and KEY not in reported
    assert "or the address of a collection" in " ".join(serve("--help", code=0).lower().split())
    assert set(PRESENCE) == set(map(name_of, answers[0]["hits"]))
