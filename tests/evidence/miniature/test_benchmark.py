"""Loading the miniature benchmark, and benchmarks by name."""

import shutil
from pathlib import Path

import pytest

from evidence.miniature.benchmark import LABELS
from evidence.miniature.clips import draw_split
from evidence.miniature.generation import generate
from scalar_retrieval.eval.benchmarks.annotations import FEATURES
from scalar_retrieval.eval.benchmarks.registry import load_benchmark, load_split


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    counts = {"num_train": 0, "num_validation": 0, "num_test": 12}
    return generate(tmp_path_factory.mktemp("miniature") / "set", **counts, seed=1, num_proc=1)


def test_the_data_set_has_every_row_and_of_each_clip_with_sound_one_of_six_labels(folder):
    dataset = load_benchmark("miniature", folder, "test")
    assert dataset.column_names == [*FEATURES, "kind"]
    clips = draw_split(1, "test", 12)
    for name in ("caption", "subtitle", "kind"):
        assert dataset[name][:] == [getattr(clip, name) for clip in clips]
    loaded = load_split("miniature_classes", folder)
    clips = [clip for clip in clips if "audio" in clip.attributes]
    assert loaded.task == "classification" and 0 < len(clips) < 12
    assert loaded.dataset["caption"][:] == [LABELS[clip.attributes["audio"]["timbre"]] for clip in clips]
    assert len(set(LABELS.values())) == 6
    rows = dataset.filter(lambda row: row["audio_path"] is not None)
    assert rows.remove_columns(["caption", "kind"])[:] == loaded.dataset.remove_columns("caption")[:]


def test_a_changed_annotation_is_refused(folder, tmp_path):
    path = Path(shutil.copytree(folder, tmp_path / "copy")) / "test.jsonl"
    path.write_text(path.read_text().partition("\n")[2])
    with pytest.raises(ValueError, match="is not the file that miniature.json describes"):
        load_benchmark("miniature", path.parent)
