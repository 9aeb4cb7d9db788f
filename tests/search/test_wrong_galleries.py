"""Every wrong gallery of the table is refused in one sentence, by every command that meets it, and left as it is."""

import re
import shutil

import pytest
from typer.testing import CliRunner

from scalar_retrieval.eval.__main__ import app as eval_app
from scalar_retrieval.gallery.gallery import verify_gallery
from scalar_retrieval.gallery.repair import repair
from scalar_retrieval.hub_cards.__main__ import app as hub_app
from scalar_retrieval.modeling_scalar.model_identity import identify
from scalar_retrieval.search.__main__ import app as search_app
from tests.search.wrong_galleries import EVERY, WRONG, make_good


@pytest.fixture(scope="module")
def good(tmp_path_factory, tiny_model_dir):
    folder = tmp_path_factory.mktemp("good") / "gallery"
    made_by = {
        "model": str(tiny_model_dir),
        "fingerprint": identify(tiny_model_dir).fingerprint,
        "query_temperature": 0.1,
    }
    make_good(folder, made_by)
    return folder


def call(command, folder, model):
    """Call a command that meets the gallery, and writes beside it."""
    beside = folder.parent
    (beside / "clip.mp4").write_bytes(b"no film")
    app, *arguments = {
        "query": [search_app, "query", folder, "a dog"],
        "info": [search_app, "info", folder],
        "verify": [search_app, "verify", folder],
        "compact": [search_app, "compact", folder],
        "index": [search_app, "index", beside / "clip.mp4", "--model", model, "--output", folder],
        "run": [eval_app, "run", "--embeddings", folder, "--output", beside / "results"],
        "push": [hub_app, "gallery", folder, "user/gallery", "--model", "user/model", "--dry-run", beside / "out"],
    }[command]
    return CliRunner().invoke(app, list(map(str, arguments)))


def listing(folder):
    """All that is there, but the lock, which a writer makes."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() and path.stat().st_size < 2**20 else None
        for path in sorted(folder.rglob("*"))
        if path.name != ".lock"
    }


@pytest.mark.parametrize("command", EVERY)
def test_the_gallery_that_is_changed_is_taken_by_every_command(good, tiny_model_dir, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(good, tmp_path / "gallery")
    result = call(command, tmp_path / "gallery", tiny_model_dir)
    # The film cannot be read, which is reported on stdout; nothing else is wrong.
    assert result.exit_code == (1 if command == "index" else 0) and "Error" not in result.stderr, result.output


def _once_of_all(wrong, place):
    """One command for each wrong gallery is quick; all of them take a minute."""
    for number, command in enumerate(wrong.commands):
        chosen = number == place % len(wrong.commands)
        yield pytest.param(wrong, command, id=f"{command}: {wrong.name}", marks=() if chosen else pytest.mark.slow)


@pytest.mark.promise("errors", "A wrong gallery is refused in one sentence")
@pytest.mark.parametrize(
    ("wrong", "command"), [case for place, wrong in enumerate(WRONG) for case in _once_of_all(wrong, place)]
)
def test_a_wrong_gallery_is_refused_in_one_sentence_and_left_as_it_is(
    good, tiny_model_dir, tmp_path, monkeypatch, wrong, command
):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "gallery"
    shutil.copytree(good, folder)
    wrong.make(folder)
    before = listing(folder)
    result = call(command, folder, tiny_model_dir)
    # Of what is reported while a model is loaded, the last line counts.
    lines = [line for line in result.stderr.splitlines() if line.strip() and "it/s]" not in line]
    assert isinstance(result.exception, SystemExit) and result.exit_code == 1, result.exception
    assert len(lines) == 1 and lines[0].startswith("Error: ") and len(lines[0]) < 3000, lines
    # Verifying, as publishing does first, names all damaged files at once.
    verifies = command in ("verify", "push")
    assert re.search(f"{wrong.message}|Damaged: " if verifies else wrong.message, lines[0]), lines
    assert listing(folder) == before


@pytest.mark.parametrize(
    "wrong",
    [pytest.param(wrong, marks=pytest.mark.slow if place % 8 else ()) for place, wrong in enumerate(WRONG)],
    ids=[wrong.name for wrong in WRONG],
)
def test_a_wrong_gallery_is_repaired_or_refused_in_a_sentence(good, tmp_path, monkeypatch, wrong):
    folder = tmp_path / "gallery"
    shutil.copytree(good, folder)
    wrong.make(folder)
    try:
        repair(folder)
    except (OSError, ValueError) as error:
        assert len(str(error)) > 20
    else:
        verify_gallery(folder)
        assert repair(folder) == []
