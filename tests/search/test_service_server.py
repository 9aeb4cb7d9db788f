"""The server of the search service: where it listens, whom it waits for, and the command that starts it."""

import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from unittest.mock import Mock

import httpx2
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from scalar_retrieval.search.__main__ import app
from scalar_retrieval.search.service import guard, server
from scalar_retrieval.search.service.server import listen
from scalar_retrieval.search.settings import TOKEN_VARIABLE
from tests.search.serving import SECRET, WordModel, WordProcessor, make_app, serving, write_gallery

HEAD = b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n"
BODY = b'{"query": "ab"}'


@pytest.fixture
def address(unchanged):
    with serving(make_app(unchanged)) as address:
        yield place_of(address)


def place_of(address):
    return "127.0.0.1", int(address.rsplit(":", 1)[1].strip("/"))


def answer_to(connection, request):
    connection.sendall(request)
    connection.settimeout(20)
    received = b""
    while more := connection.recv(65536):
        received += more
        if b"}" in more[-3:]:
            break
    return received


def test_what_is_no_request_and_a_missing_body_are_refused(address, monkeypatch):
    monkeypatch.setattr(guard, "_BODY_SECONDS", 0.1)
    for request, status in (
        (HEAD + BODY[:3], b"408"),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"400"),
        (b"GET\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"A" * 100_000, b"400"),
    ):
        with closing(socket.create_connection(address)) as connection:
            assert answer_to(connection, request).startswith(b"HTTP/1.1 " + status)


def test_no_spelling_of_a_path_leads_around_the_token(unchanged):
    paths = (
        "/%61pi/gallery", "/api/gallery/", "//api/gallery", "/x/../api/gallery", "/API/gallery", "/api//gallery",
        "/api%2Fgallery", "http://127.0.0.1/api/gallery", "/api/session/../gallery",
    )  # fmt: skip
    with serving(make_app(unchanged, secret=SECRET)) as address:
        for path in paths:
            with closing(connect(address)) as connection:
                connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                answer = b"".join(iter(lambda connection=connection: connection.recv(65536), b""))
            assert re.match(rb"HTTP/1.1 (307|400|401|404)", answer) and b"num_clips" not in answer, path


# Connections --------------------------------------------------------------------------------------------------------

PAGE = b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n"
SLOW = HEAD.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")


def connect(address):
    return socket.create_connection(place_of(address), timeout=20)


def is_closed(connection):
    """Wait until the server closes a connection, or sends something."""
    try:
        return connection.recv(1000) == b""
    except ConnectionResetError:
        return True


def ask(connection):
    """The first line of the answer to a small request."""
    try:
        connection.sendall(PAGE)
        return connection.recv(1000).partition(b"\r\n")[0]
    except (BrokenPipeError, ConnectionResetError):
        return b""


@pytest.mark.parametrize("is_kept", [False, True], ids=["at first", "after a request"])
def test_a_connection_without_a_whole_request_is_closed(unchanged, is_kept):
    with serving(make_app(unchanged), idle_seconds=0.3) as address, ExitStack() as held:
        connections = [held.enter_context(closing(connect(address))) for _ in range(4)]
        for connection, rest in zip(connections, (b"", b"G", PAGE[:-2], PAGE[:-2]), strict=True):
            if is_kept:
                assert ask(connection).startswith(b"HTTP/1.1 200")
            connection.sendall(rest)
        # The head of one grows, and never ends.
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(200):
                connection.sendall(b"x")
                time.sleep(0.02)
        assert all(map(is_closed, connections))


def test_a_request_that_is_being_sent_is_not_idle(unchanged):
    with (
        serving(make_app(unchanged), idle_seconds=0.2) as address,
        closing(connect(address)) as busy,
        closing(connect(address)) as idle,
    ):
        busy.sendall(SLOW)
        assert busy.recv(1000).startswith(b"HTTP/1.1 100")
        assert is_closed(idle)
        with closing(connect(address)) as later:
            assert is_closed(later)  # so much time has passed
        assert answer_to(busy, BODY).startswith(b"HTTP/1.1 200")


@pytest.mark.promise("code", "Idle connections do not block `scalar serve`: the oldest are closed")
def test_idle_connections_keep_nobody_out(unchanged):
    with serving(make_app(unchanged), idle_seconds=600, most_connections=8) as address, ExitStack() as held:
        idle = [held.enter_context(closing(connect(address))) for _ in range(20)]
        for connection in idle[:10]:
            connection.sendall(PAGE[:-2])
        for connection in idle[:12]:
            assert is_closed(connection)
        with closing(connect(address)) as connection:
            assert ask(connection).startswith(b"HTTP/1.1 200")


def post(address, query):
    """Search over the network."""
    return httpx2.post(f"{address}api/search", json={"query": query}, timeout=20, verify=False)


def found(answer):
    return [(hit["name"], hit["score"], hit["weights"]) for hit in answer.json()["hits"]]


def test_many_clients_at_once_get_the_right_answers_and_those_beyond_the_limit_are_asked_to_retry(
    unchanged, monkeypatch
):
    monkeypatch.setattr(guard, "MOST_REQUESTS", 8)
    app, is_crowded = make_app(unchanged), threading.Event()
    queries, refused, embed = [f"query {number}" for number in range(24)], [], app.model.get_text_features

    def embed_in_a_crowd(*tokens):
        # No request ends before all others have met the limit.
        assert is_crowded.wait(20)
        return embed(*tokens)

    def ask(query):
        while (answer := post(address, query)).status_code == 429:
            refused.append(answer.json()["error"])
            if len(refused) == len(queries) - guard.MOST_REQUESTS:
                is_crowded.set()
            time.sleep(int(answer.headers["retry-after"]))
        return found(answer)

    app.model.get_text_features = embed_in_a_crowd
    with serving(app) as address, ThreadPoolExecutor(len(queries)) as clients:
        answers = list(clients.map(ask, queries))
    assert "busy with 8 requests" in refused[0]
    with TestClient(make_app(unchanged), "http://localhost") as alone:
        for query, hits in zip(queries, answers, strict=True):
            assert found(alone.post("/api/search", json={"query": query})) == hits


@pytest.mark.promise("code", "Slow requests do not block `scalar serve`: the oldest are ended")
@pytest.mark.parametrize(("path", "status"), [(b"/api/search", b"200"), (guard.ASSISTANTS.encode(), b"406")])
def test_bodies_that_are_sent_slowly_keep_nobody_out(unchanged, monkeypatch, path, status):
    monkeypatch.setattr(guard, "MOST_REQUESTS", 8)
    app = make_app(unchanged)
    head = HEAD.replace(b"/api/search", path)
    with serving(app) as address, ExitStack() as held:
        slow = [held.enter_context(closing(connect(address))) for _ in range(20)]
        for number, connection in enumerate(slow):
            connection.sendall(head + BODY[:1])
            if number >= 8:  # the oldest ends, with an answer
                assert slow[number - 8].recv(1000).startswith(b"HTTP/1.1 408")
            # Each byte is another chance to keep a place.
            for other in slow[number - 3 : number]:
                other.sendall(BODY[1:2])
        assert app.num_running == 0 and post(address, "a dog").status_code == 200
        # The last one may still send its body.
        assert answer_to(slow[-1], BODY[1:]).split(maxsplit=2)[1] == status


def is_answered_soon(address):
    """Whether a query is answered, once what others sent has been worked through."""
    for _ in range(50):
        with suppress(httpx2.TransportError):
            return post(address, "a dog").status_code == 200
        time.sleep(0.1)
    return False


@pytest.mark.promise("code", "Clients that do not read their answers do not block `scalar serve`")
def test_answers_that_are_not_read_keep_nobody_out(tmp_path, monkeypatch):
    monkeypatch.setattr(guard, "MOST_REQUESTS", 4)
    write_gallery(tmp_path, {"dog.webm": bytes(2**24)})
    app = make_app(tmp_path)
    with serving(app, idle_seconds=0.3, most_connections=8) as address, ExitStack() as held:
        key = post(address, "a dog").json()["hits"][0]["key"]
        for path in (f"/api/clips/{key}/media", "/"):
            request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            for _ in range(12):
                connection = held.enter_context(closing(connect(address)))
                with suppress(ConnectionResetError):
                    connection.sendall(request * 400)
                assert is_answered_soon(address)
            time.sleep(0.4)  # so that they are closed, but for what is not read
            with closing(connect(address)) as connection:
                assert ask(connection).startswith(b"HTTP/1.1 200")
        assert app.num_running == 0


def test_what_cannot_be_served_is_said_before_the_model_is_loaded(unchanged, tmp_path, monkeypatch):
    monkeypatch.setattr("scalar_retrieval.modeling_scalar.load_model", lambda *_: pytest.fail("loaded"))
    gallery, anywhere = unchanged / "gallery", ("--host", "0.0.0.0")
    elsewhere = ("--host", "no-such-host.invalid")
    with closing(listen("127.0.0.1", 0)) as taken:
        for token, options, reported in (
            (None, (gallery, *anywhere), TOKEN_VARIABLE),
            ("short", (gallery, *anywhere), "16"),
            (None, (gallery, "--port", taken.getsockname()[1]), "is already in use"),
            (None, (tmp_path / "none",), "no gallery"),
            (None, (gallery, *elsewhere), "no-such-host.invalid"),
            (SECRET, (gallery, *elsewhere), "'no-such-host.invalid' cannot be resolved"),
            (None, (gallery, "--host", "localhost", "--port", 0), "words"),  # the model, which is not there
        ):
            monkeypatch.setenv(TOKEN_VARIABLE, token or "")
            result = CliRunner().invoke(app, ["serve", *map(str, options)])
            assert result.exit_code == 1 and reported in result.output and "Traceback" not in result.output
            assert token is None or token not in result.output


def test_the_command_serves_what_its_options_say(unchanged, tmp_path, monkeypatch):
    monkeypatch.setattr("scalar_retrieval.modeling_scalar.load_model", lambda *_: (WordModel(), WordProcessor()))
    monkeypatch.setattr("scalar_retrieval.modeling_scalar.model_identity.ModelIdentity.fingerprint", "f" * 64)
    monkeypatch.setattr("scalar_retrieval.search.service.server.address_of", lambda _: "http://here/")
    (tmp_path / "words").mkdir()
    served = []

    def run(application, sockets):
        served.append((application, sockets[0].getsockname()[0]))

    monkeypatch.setattr(server, "make_server", lambda application: Mock(run=partial(run, application)))
    monkeypatch.setenv(TOKEN_VARIABLE, f" {SECRET}\n")
    arguments = ["serve", unchanged / "gallery", "--model", tmp_path / "words", "--host", "0.0.0.0", "--port", 0]
    result = CliRunner().invoke(app, list(map(str, [*arguments, "--hostname", "Search.lan"])))
    assert result.exit_code == 0 and "Serving 5 clips at http://here/" in result.output, result.output
    ((application, host),) = served
    with TestClient(application, "http://search.lan") as client:
        assert host == "0.0.0.0" and client.get("/api/gallery").status_code == 401
        client.headers["authorization"] = f"Bearer {SECRET}"
        about = client.get("/api/gallery").json()
    assert (about["num_clips"], about["method"]) == (5, "scalar") and about["problem"] is None
