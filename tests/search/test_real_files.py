"""Real files through the commands, with the real processor and a tiny model: whole, partial and broken ones."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from gallery.gallery import Gallery
from search.__main__ import app
from tests.gallery.decoding.reading import write_media


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def videos(tmp_path):
    folder = tmp_path / "videos"
    folder.mkdir()
    write_media(folder / "whole.mp4", seconds_of_audio=2)
    write_media(folder / "without sound.mp4")
    write_media(folder / "without picture.mp4", num_frames=0, seconds_of_audio=2)
    write_media(folder / "source.mp4", num_frames=60, seconds_of_audio=6, container={"movflags": "faststart"})
    content = (folder / "source.mp4").read_bytes()
    (folder / "truncated.mp4").write_bytes(content[: len(content) // 2])
    (folder / "source.mp4").unlink()
    (folder / "empty.mp4").touch()
    (folder / "text.mp4").write_text("Dear diary,\nthis is no video at all.\n" * 30)
    (folder / "without sound.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nhello about music\n")
    return folder


def test_whole_partial_and_broken_files_each_behave_as_they_should(videos, tiny_model_dir, tmp_path):
    result = run("index", videos, "--model", tiny_model_dir, "--output", tmp_path / "gallery")
    assert result.exit_code == 0, result.output
    gallery = Gallery.open(tmp_path / "gallery")
    presence = {
        path.rsplit("/")[-1]: row for path, row in zip(gallery.clip_ids, gallery.modality_mask.tolist(), strict=True)
    }
    assert presence == {
        "whole.mp4": [True, True, False],
        "without sound.mp4": [True, False, True],
        "without picture.mp4": [False, True, False],
        "truncated.mp4": [True, True, False],
    }
    failed = {path.rsplit("/")[-1] for path, file in gallery.files.items() if file.reason is not None}
    assert failed == {"empty.mp4", "text.mp4"}
    for name in failed:
        assert f"unreadable: {videos / name}" in result.output
    answer = run("query", tmp_path / "gallery", "a dog barks", "--json")
    hits = json.loads(answer.stdout)[0]["hits"]
    assert len(hits) == 4 and hits[0]["score"] >= hits[1]["score"] >= hits[2]["score"]
    for hit in hits:
        assert sum(hit["weights"].values()) == pytest.approx(1, abs=1e-5)
        assert all(weight == 0 for name, weight in hit["weights"].items() if not hit["presence"][name])


def test_the_real_clips_can_be_indexed_queried_and_added_to(shared_dir, tiny_model_dir, tmp_path):
    source = shared_dir / "data" / "videos"
    first = tmp_path / "first"
    first.mkdir()
    shutil.copy(source / "video1.mp4", first)
    gallery = tmp_path / "gallery"
    assert run("index", first, "--model", tiny_model_dir, "--output", gallery).exit_code == 0
    result = run("index", first, source, "--model", tiny_model_dir, "--output", gallery)
    assert result.exit_code == 0 and "4 new, 0 changed, 1 unchanged" in result.output
    answer = run("query", gallery, "a dog barks", "a cat meows", "--k", 2)
    assert answer.exit_code == 0
    assert answer.output.count("query:") == 2 and answer.output.count(".mp4") == 4
    assert answer.output.count("subtitle – absent") + answer.output.count("subtitle - absent") == 4
