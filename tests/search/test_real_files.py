"""Real files through the commands, with the real processor and a tiny model: whole, partial and broken ones."""

import shutil

from typer.testing import CliRunner

from scalar_retrieval.search.__main__ import app


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_real_clips_can_be_indexed_queried_and_added_to(shared_dir, tiny_model_dir, tmp_path):
    source = shared_dir / "data" / "videos"
    first = tmp_path / "first"
    first.mkdir()
    shutil.copy(source / "video1.mp4", first)
    gallery = tmp_path / "gallery"
    assert run("index", first, "--model", tiny_model_dir, "--output", gallery).exit_code == 0
    result = run("index", first, source, "--model", tiny_model_dir, "--output", gallery)
    assert result.exit_code == 0 and "4 new, 0 changed, 1 unchanged" in result.output
    answer = run("query", gallery, "a dog barks", "a cat meows", "-k", 2)
    assert answer.exit_code == 0
    assert answer.output.count("query:") == 2 and answer.output.count(".mp4") == 4
    assert answer.output.count("subtitle – absent") + answer.output.count("subtitle - absent") == 4
