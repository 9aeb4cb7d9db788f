"""`scalar query --service`: a thin client of a running service."""

import json
import socket
import subprocess
import sys
from contextlib import closing

import pytest
from typer.testing import CliRunner

from search.__main__ import app
from search.settings import TOKEN_VARIABLE
from tests.search.serving import PRESENCE, SECRET, make_app, serving, write_gallery

CODE = """
import sys
from commands.scalar import run
try:
    run(sys.argv[1:])
finally:
    print(sorted({"torch", "gallery", "numpy", "modeling_scalar"} & set(sys.modules)), file=sys.stderr)
"""


@pytest.fixture
def address(tmp_path, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, SECRET)
    write_gallery(tmp_path)
    (tmp_path / "clips" / "dog.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nA dog barks.\n")
    with serving(make_app(tmp_path, secret=SECRET)) as address:
        yield address


def query(address, *arguments, code=0):
    result = CliRunner().invoke(app, ["query", "--service", address, *map(str, arguments)])
    assert result.exit_code == code and "Traceback" not in result.output, result.output
    return result


def test_a_service_is_queried_without_torch_or_the_gallery(address):
    command = [sys.executable, "-c", CODE, "query", "--service", address, "a dog", "--json", "--k", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr.strip() == "[]"
    (answer,) = json.loads(done.stdout)
    assert answer["query"] == "a dog" and len(answer["hits"]) == 2


def test_what_a_service_finds_is_printed_with_weights_and_words(address, monkeypatch):
    monkeypatch.setattr("search.service.routes._WORDS_SECONDS", 20)
    lines = query(address, "a dog", "a cat", "--k", 5).stdout.splitlines()
    assert [line for line in lines if line.startswith("query: ")] == ["query: a dog", "query: a cat"]
    assert any(line.endswith("  dog.webm") for line in lines) and "     0:01  A dog barks." in lines
    (answer,) = json.loads(query(address, "a dog", "--mask", "video", "--has", "audio", "--json").stdout)
    assert {hit["name"] for hit in answer["hits"]} == {name for name, there in PRESENCE.items() if there[1]}
    assert query(address, "a dog", "--path", "nowhere").stderr == "The filters leave none of the 5 clips.\n"


def test_what_a_service_cannot_do_or_refuses_is_an_error_in_one_line(address, monkeypatch):
    assert "--rerank needs the gallery itself" in query(address, "a dog", "--rerank", 5, code=1).stderr
    assert "Swap them?" in query(address, "a dog", "--min-duration", 9, "--max-duration", 2, code=1).stderr
    assert "such as http://127.0.0.1:8000" in query("127.0.0.1:8000", "a dog", code=1).stderr
    monkeypatch.setenv(TOKEN_VARIABLE, "a-token-of-other-letters")
    assert TOKEN_VARIABLE in query(address, "a dog", code=1).stderr
    with closing(socket.socket()) as nobody:
        nobody.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        assert f"The service at {gone} does not answer" in query(gone, "a dog", code=1).stderr
