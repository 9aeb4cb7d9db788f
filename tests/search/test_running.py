"""A query from the command line asks a service of the same gallery that runs, and else loads the model itself."""

import json

import pytest
import torch
from typer.testing import CliRunner

from search import running
from search.__main__ import app
from search.running import announced, ask_served
from tests.search.serving import SECRET, make_app, serving, write_gallery

FINGERPRINT = "f" * 64


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv(running.TOKEN_VARIABLE, raising=False)
    write_gallery(tmp_path)
    (tmp_path / "link").symlink_to("gallery")
    return tmp_path


@pytest.fixture
def gallery(place):
    return place / "gallery"


def query(gallery, *options):
    result = CliRunner().invoke(app, ["query", str(gallery), "a dog", "two cats", "--json", *options])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_queries_are_embedded_by_the_service_of_the_gallery(place, gallery):
    app = make_app(place)
    texts = ["a dog", "two cats"]
    with serving(app) as address, announced(gallery, address):
        reported = query(place / "link")  # its model lies nowhere
        served = ask_served(gallery, FINGERPRINT, texts)
        assert torch.equal(served.embed(texts[::-1]), torch.cat([app.archive.embed(text) for text in texts[::-1]]))
        assert served.method == app.archive.method
        for text, answer in zip(texts, reported, strict=True):
            hits = app.archive.source.view().search(queries=app.archive.embed(text), k=10)
            expected = [(hit.clip_id, pytest.approx(hit.score)) for hit in hits]
            assert answer["query"] == text and [(hit["clip_id"], hit["score"]) for hit in answer["hits"]] == expected
        assert ask_served(gallery, "0" * 64, texts) is ask_served(gallery, None, texts) is None
        assert ask_served(place / "clips", FINGERPRINT, texts) is None
    assert list((place / f"scalar-{running.os.getuid()}").iterdir()) == []


def test_where_no_service_answers_the_model_is_loaded(place, gallery):
    with serving(make_app(place)) as address:
        pass
    with announced(gallery, address):  # it was killed, say
        assert ask_served(gallery, FINGERPRINT, ["a dog"]) is None
        result = CliRunner().invoke(app, ["query", str(gallery), "a dog"])
    assert result.exit_code == 1 and "no model folder 'words'" in result.stderr


def test_a_service_with_a_token_is_asked_with_it(place, gallery, monkeypatch):
    with serving(make_app(place, secret=SECRET)) as address, announced(gallery, address):
        assert ask_served(gallery, FINGERPRINT, ["a dog"]) is None
        monkeypatch.setenv(running.TOKEN_VARIABLE, SECRET)
        assert ask_served(gallery, FINGERPRINT, ["a dog"]) is not None


def test_what_somebody_else_could_have_written_is_not_asked(place, gallery):
    with serving(make_app(place)) as address, announced(gallery, address):
        folder = place / f"scalar-{running.os.getuid()}"
        assert folder.stat().st_mode & 0o777 == 0o700
        folder.chmod(0o777)
        assert ask_served(gallery, FINGERPRINT, ["a dog"]) is None
