"""`scalar query URL`: a thin client of a running service."""

import gzip
import json
import re
import socket
import socketserver
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager, suppress

import pytest
from typer.testing import CliRunner

from scalar_retrieval.search.__main__ import app
from scalar_retrieval.search.settings import TOKEN_VARIABLE
from tests.search.serving import PRESENCE, SECRET, make_app, serving, write_gallery

CODE = """
import sys
from scalar_retrieval.commands.scalar import run
try:
    run(sys.argv[1:])
finally:
    heavy = {"torch", "numpy", "pydantic", "scalar_retrieval.gallery", "scalar_retrieval.modeling_scalar"}
    print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""


@pytest.fixture
def address(tmp_path, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, SECRET)
    write_gallery(tmp_path)
    (tmp_path / "clips" / "dog.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nA dog barks.\n")
    with serving(make_app(tmp_path, secret=SECRET)) as address:
        yield address


def query(address, *arguments, code=0):
    result = CliRunner().invoke(app, ["query", address, *map(str, arguments)])
    assert result.exit_code == code and "Traceback" not in result.output, result.output
    return result


def test_a_service_is_queried_without_torch_or_the_gallery(address):
    command = [sys.executable, "-c", CODE, "query", address, "a dog", "--json", "-k", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr.strip() == "[]"
    (answer,) = json.loads(done.stdout)
    assert answer["query"] == "a dog" and len(answer["hits"]) == 2


def test_what_a_service_finds_is_printed_with_weights_and_words(address, monkeypatch):
    monkeypatch.setattr("scalar_retrieval.search.service.routes._WORDS_SECONDS", 20)
    lines = query(address, "a dog", "a cat", "-k", 5).stdout.splitlines()
    assert [line for line in lines if line.startswith("query: ")] == ["query: a dog", "query: a cat"]
    assert any(re.search("  dog.webm  changed [0-9-]{10}$", line) for line in lines)
    assert "     0:01  A dog barks." in lines
    asked = ("--modalities", "audio, subtitle", "--has", "audio", "--json")
    (answer,) = json.loads(query(address, "a dog", *asked).stdout)
    assert {hit["name"] for hit in answer["hits"]} == {name for name, there in PRESENCE.items() if there[1]}
    assert query(address, "a dog", "--path", "nowhere").stderr == "The filters leave none of the 5 clips.\n"


def test_what_a_service_cannot_do_or_refuses_is_an_error_in_one_line(address, monkeypatch):
    with closing(socket.socket()) as nobody:
        nobody.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        for place, options, reported in (
            (address, ("--rerank", 5), "--rerank needs the gallery itself"),
            (address, ("--min-duration", 9, "--max-duration", 2), "Swap them?"),
            (address, ("--modalities", "video,Smell"), "('video', 'audio', 'subtitle'), got ('video', 'Smell')"),
            ("http://", (), "such as http://127.0.0.1:8000"),
            (gone, (), f"The service at {gone} does not answer"),
        ):
            assert reported in query(place, "a dog", *options, code=1).stderr
    monkeypatch.setenv(TOKEN_VARIABLE, "a-token-of-other-letters")
    assert TOKEN_VARIABLE in query(address, "a dog", code=1).stderr


def response(body, status="200 OK", *further):
    head = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(body)}", *further, "", ""]
    return "\r\n".join(head).encode() + body


def hit(**changes):
    row = {"rank": 1, "score": 0.5, "name": "a", "start": None, "stop": None, "weights": None, "presence": {}}
    return response(json.dumps({"hits": [row | {"said": None, "copies": []} | changes], "note": None}).encode())


ENDLESS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LARGE = f"HTTP/1.1 200 OK\r\nContent-Length: {3 * 2**30}\r\n\r\n".encode()
VALUES = (None, True, -1, 0.5, 10**400, float("inf"), "x", [], [None], [[1]], {"x": None}, {"x": "y"})
STRANGE = {
    "bodies": [response(body) for body in (b"[]", b"null", b"5", b"", b"x", b'{"hits": 1}', b"\xed\x9f\xbf")],
    "brackets": [response(b"[" * 10**6), response(b'{"hits": ' * 1000 + b"1" + b"}" * 1000)],
    "errors": [response(text, "500 No") for text in (b"[]", b'{"error": [1]}', b"<html>")],
    "redirects": [response(b"", "302 Found", "Location: http://127.0.0.1:1/")],
    "compressed": [response(gzip.compress(b" " * 10**6), "200 OK", "Content-Encoding: gzip")],
    "no answer": [b"", b"\0" * 100, b"SSH-2.0-server\r\n", LARGE + b"{", b"A" * 10**6],
    "headers without end": [b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10**4, b"HTTP/1.1 100 Go\r\n\r\n" * 10**4],
    "large": [LARGE + b" " * 2**20, ENDLESS + b"100000\r\n" + b" " * 2**20],
}
FIELDS = ("rank", "name", "start", "weights", "presence", "said", "copies")


@contextmanager
def answering(answer, wait=0.0):
    """An address at which every request is answered by these bytes, perhaps one after the other."""

    class Answer(socketserver.BaseRequestHandler):
        def handle(self):
            with suppress(OSError):
                self.request.recv(65536)
                for piece in map(bytes, zip(answer, strict=True)) if wait else [answer]:
                    self.request.sendall(piece)
                    time.sleep(wait)
                self.request.shutdown(socket.SHUT_WR)
                while self.request.recv(65536):
                    pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer) as server:
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.promise("errors", "Whatever answers in place of a service, a query ends in time, with one sentence")
@pytest.mark.parametrize("name", [*STRANGE, *FIELDS])
def test_what_is_no_service_is_reported_in_one_sentence(name, monkeypatch):
    monkeypatch.setattr("scalar_retrieval.search.client._TIMEOUT_SECONDS", 5.0)
    monkeypatch.setattr("scalar_retrieval.search.client._MOST_BYTES", 2**18)
    answers = STRANGE.get(name) or [hit(**{name: value}) for value in VALUES]
    num_refused = 0
    for answer in answers:
        with answering(answer) as address:
            ended = CliRunner().invoke(app, ["query", address, "a dog"])
        assert ended.exit_code in (0, 1) and isinstance(ended.exception, SystemExit | None), (answer[:200], ended)
        assert ended.exit_code == 0 or (ended.stderr.startswith("Error: ") and ended.stderr.count("\n") == 1)
        num_refused += ended.exit_code
    assert num_refused == len(answers) or (name in FIELDS and num_refused > len(answers) / 2)


def test_a_byte_at_a_time_ends_at_the_deadline(monkeypatch):
    monkeypatch.setattr("scalar_retrieval.search.client._TIMEOUT_SECONDS", 0.3)
    tracebacks = []
    monkeypatch.setattr("threading.excepthook", tracebacks.append)
    slow = [(hit(), 0.05), (b"HTTP/1.1 100 Continue\r\n\r\n" * 100, 0.05), (ENDLESS + b"1\r\n \r\n" * 400, 0.002)]
    for answer, wait in slow:
        began = time.monotonic()
        with answering(answer, wait) as address:
            assert "has not answered in 0.3 seconds" in query(address, "a dog", code=1).stderr
        assert time.monotonic() - began < 3
    # What was left behind on a connection that is closed ends without a word.
    time.sleep(0.1)
    assert not tracebacks
