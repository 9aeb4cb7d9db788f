"""What an audit finds in galleries that lack this and that."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evidence.miniature.generation import generate
from scalar_retrieval.eval.__main__ import app
from scalar_retrieval.eval.benchmarks.audit import audit_split
from scalar_retrieval.eval.benchmarks.registry import load_split
from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset
from scalar_retrieval.modeling_scalar import MODALITIES


@pytest.fixture(scope="module")
def miniature(tmp_path_factory):
    return generate(
        tmp_path_factory.mktemp("audit") / "set", num_train=1, num_validation=0, num_test=24, seed=1, num_proc=1
    )


@pytest.fixture
def broken(tmp_path, miniature):
    """A table with one clip for each thing that can be wrong."""
    kinds = {}  # a file with picture and sound, one with picture alone and one with sound alone
    for row in load_split("miniature", miniature).dataset:
        kinds[row["video_path"] is not None, row["audio_path"] is not None] = row["video_path"] or row["audio_path"]
    both, silent, blind = (Path(kinds[kind]) for kind in ((True, True), (True, False), (False, True)))
    videos, audios = tmp_path / "videos", tmp_path / "audios"
    videos.mkdir()
    audios.mkdir()
    for name, film in {"good": both, "silent": silent, "blind": blind, "sounds": silent}.items():
        shutil.copy(film, videos / f"{name}.mp4")
    shutil.copy(blind, audios / "sounds.m4a")
    (videos / "cut.mp4").write_bytes(both.read_bytes()[:600])
    (videos / "void.mp4").touch()
    names = ["good", "silent", "blind", "cut", "void", "sounds", "gone"]
    lines = [f"{name},a caption,{'some words' if name == 'void' else ''}" for name in names]
    (tmp_path / "table.csv").write_text("\n".join(["video_id,caption,subtitle", *lines]) + "\n")
    return tmp_path / "table.csv"


def test_every_clip_is_accounted_for(broken):
    report = audit_split(load_split("own", broken, on_missing="leave_out"))
    assert (report["num_clips"], report["num_queries"], report["num_pairs"]) == (6, 6, 6)
    assert report["missing_clips"] == ["gone"] and report["missing_files"] == []
    assert [line.split(":")[0] for line in report["unreadable"]] == ["cut", "void"]
    assert report["empty"] == ["cut"] and not report["complete"]
    assert report["duration"]["num_known"] == 4 and report["duration"]["median"] == pytest.approx(1.2, abs=0.1)
    names = ["good", "silent", "blind", "cut", "void", "sounds"]
    presence = [[1, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1], [1, 1, 0]]
    assert (report["gallery"]["ids"], report["gallery"]["presence"]) == (names, presence)
    for name, column in zip(MODALITIES, zip(*presence, strict=True), strict=True):
        assert report["without"][name] == [clip for clip, is_there in zip(names, column, strict=True) if not is_there]
    assert json.loads(json.dumps(report)) == report


def test_the_manifest_is_that_of_the_embeddings(miniature, tiny_model, tiny_processor):
    split = load_split("miniature", miniature)
    report = audit_split(split, num_workers=1)
    assert report["gallery"] == embed_dataset(tiny_model, tiny_processor, split.dataset).manifest()
    assert report["complete"]


def test_the_command_writes_everything_and_fails_where_something_is_wrong(miniature, broken, tmp_path):
    command = ["audit", "--benchmark", "miniature", "--root", str(miniature), "--output", str(tmp_path / "audit.json")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0 and "Complete: every stream decodes." in result.stdout
    assert json.loads((tmp_path / "audit.json").read_text())["num_clips"] == 24
    command = ["audit", "--benchmark", "own", "--root", str(broken), "--column", "subtitle=subtitle"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1 and "1 clips without their files:\n  gone\n" in result.stdout
