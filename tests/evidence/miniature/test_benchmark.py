"""Loading the miniature benchmark, and benchmarks by name."""

import shutil
from pathlib import Path

import pytest
from datasets import Value

from evidence.miniature.benchmark import LABELS
from evidence.miniature.clips import draw_split
from evidence.miniature.generation import generate
from scalar_retrieval.eval.benchmarks.annotations import FEATURES
from scalar_retrieval.eval.benchmarks.registry import load_benchmark, load_split


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    counts = {"num_train": 0, "num_validation": 0, "num_test": 12}
    return generate(tmp_path_factory.mktemp("miniature") / "set", **counts, seed=1, num_proc=1)


def test_the_data_set_has_the_fixed_columns_the_kind_and_every_row(folder):
    dataset = load_benchmark("miniature", folder, "test")
    assert dataset.features == {**FEATURES, "kind": Value("string")}
    assert dataset.column_names == ["video_id", "caption", "video_path", "audio_path", "subtitle", "kind"]
    clips = draw_split(1, "test", 12)
    assert dataset["caption"][:] == [clip.caption for clip in clips]
    assert dataset["subtitle"][:] == [clip.subtitle for clip in clips]
    assert dataset["kind"][:] == [clip.kind for clip in clips]


def test_every_clip_with_sound_has_one_of_six_labels(folder):
    loaded = load_split("miniature_classes", folder)
    clips = [clip for clip in draw_split(1, "test", 12) if "audio" in clip.attributes]
    assert loaded.task == "classification" and 0 < len(clips) < 12
    assert loaded.dataset["video_id"][:] == [clip.row()["video_id"] for clip in clips]
    assert loaded.dataset["caption"][:] == [LABELS[clip.attributes["audio"]["timbre"]] for clip in clips]
    assert len(LABELS) == len(set(LABELS.values())) == 6 and LABELS["bell"] == "the sound of a bell"
    rows = load_benchmark("miniature", folder).filter(lambda row: row["audio_path"] is not None)
    assert rows.remove_columns(["caption", "kind"])[:] == loaded.dataset.remove_columns("caption")[:]


def test_a_changed_annotation_is_refused(folder, tmp_path):
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    path = copy / "test.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(ValueError, match="is not the file that miniature.json describes"):
        load_benchmark("miniature", copy)
