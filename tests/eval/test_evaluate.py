"""`evaluate` from Python: what it takes, that it gives what the command writes, and what it refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scalar_retrieval.eval.__main__ import app
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.eval.results import Results
from scalar_retrieval.eval.run import evaluate
from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.modeling_scalar import load_model
from tests.eval import slow

LINES = ["video_id,caption,video_path,audio_path,subtitle", "a,a low bell,,,a bell rings", "b,rain,,,it rains"]
QUICK = {"rates": (0.0,), "depths": (), "progress": False}
SAME = ("model", "benchmark", "split", "task", "score", "retrieval", "gallery", "problems", "left_out")


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "clips.csv"
    path.write_text("\n".join(LINES) + "\n")
    return path


def same(one, other):
    return {name: one[name] for name in SAME} == {name: other[name] for name in SAME}


def test_results_are_those_of_the_command_and_nothing_is_written_unasked(table, tmp_path, tiny_model_dir, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = ["--model", str(tiny_model_dir), "--benchmark", "own", "--root", str(table)]
    done = CliRunner().invoke(app, ["run", *source, "--rate", "0", "--depth", "0", "--output", "out"])
    assert done.exit_code == 0, done.output
    written = json.loads(Path("out/results.json").read_text())
    before = set(tmp_path.rglob("*"))
    from_texts = evaluate(str(tiny_model_dir), "own", str(table), **QUICK)
    assert same(from_texts, written) and set(tmp_path.rglob("*")) == before
    assert written.keys() == from_texts.keys() == Results.__annotations__.keys()
    from_paths = evaluate(Path(tiny_model_dir), "own", Path(table), output=Path("again"), **QUICK)
    assert same(from_paths, written) and json.loads(Path("again/results.json").read_text()) == from_paths
    assert {path.name for path in Path("again").iterdir()} == {path.name for path in Path("out").iterdir()}


def test_embeddings_are_a_folder_a_gallery_or_in_memory(tmp_path):
    store = tmp_path / "store"
    slow.make_embeddings(12, 1, dim=8).save(store)
    expected = evaluate(embeddings=str(store), **QUICK | {"depths": None})
    opened = evaluate(embeddings=Gallery.open(store), **QUICK)
    assert same(opened, expected) and opened["arguments"]["embeddings"] == str(store)
    in_memory = evaluate(embeddings=Embeddings.load(store), label="mine", **QUICK)
    assert in_memory["retrieval"] == expected["retrieval"]
    assert (in_memory["label"], in_memory["arguments"]["embeddings"]) == ("mine", None)


def test_a_gallery_of_clips_alone_takes_its_captions_from_a_table(table, tmp_path, tiny_model_dir):
    whole = evaluate(tiny_model_dir, "own", table, output=tmp_path / "out", **QUICK)
    kept = Embeddings.load(tmp_path / "out" / "embeddings")
    columns = dict(zip(kept.modalities, kept.modality_embeds.unbind(1), strict=True))
    gallery = Gallery.from_arrays(kept.clip_ids, columns, kept.modality_mask)
    with pytest.raises(FileNotFoundError, match="has clips but no queries"):
        evaluate(embeddings=gallery, **QUICK)
    found = evaluate(tiny_model_dir, "own", table, embeddings=gallery, **QUICK)
    assert found["retrieval"]["rates"] == whole["retrieval"]["rates"]
    # Embeddings of the user stay as they are.
    before = dict(kept.metadata)
    evaluate(tiny_model_dir, "own", table, embeddings=kept, **QUICK)
    assert kept.metadata == before


TABLE = {"model": "light", "benchmark": "own", "root": "clips.csv"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embeddings": ["a", "b"]}, "must be the folder or address of a gallery, .* got a list"),
        (TABLE | {"on_error": "skip"}, "`on_error` must be"),
        (TABLE | {"on_missing": "skip"}, "`on_missing` must"),
        (TABLE | {"batch_size": 0}, "`batch_size`"),
        ({}, "Expected a model, a benchmark and its root, or embeddings"),
        (
            {"embeddings": "e", "captions": "all", "on_missing": "leave_out"},
            r"\['captions', 'on_missing'\] are settings of reading a benchmark",
        ),
        (TABLE | {"rates": (0, 50)}, "between 0 and 1"),
        ({"embeddings": "e", "depths": (50,)}, "The second stage needs a cross-encoder and clips to read"),
        (TABLE | {"fusion_split": "validation", "depths": ()}, "Fusion needs the second stage"),
        (TABLE | {"fusion_split": "test"}, "chosen on another split than 'test', which is reported"),
    ],
)
def test_a_wrong_argument_is_named_in_a_sentence_and_nothing_is_written(arguments, message, table, monkeypatch):
    monkeypatch.chdir(table.parent)
    with pytest.raises((TypeError, ValueError), match=message):
        evaluate(**arguments, output="out", progress=False)
    assert not Path("out").exists()


def test_a_model_in_memory_and_embeddings_without_unit_norm_are_refused(table, tiny_model_dir):
    model, _ = load_model(tiny_model_dir)
    with pytest.raises(TypeError, match="must be a folder or a name on the Hub, got a ScalarModel: .*`save_pretrain"):
        evaluate(model, "own", table)
    embeddings = slow.make_embeddings(12, 1, dim=8)
    embeddings.text_embeds = embeddings.text_embeds * 2
    with pytest.raises(ValueError, match="Embeddings must have unit norm"):
        evaluate(embeddings=embeddings, **QUICK)
