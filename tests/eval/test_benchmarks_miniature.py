"""Loading the miniature benchmark, and benchmarks by name."""

import shutil
from pathlib import Path

import pytest

from eval.benchmarks import FEATURES, load_about, load_benchmark, load_miniature
from eval.miniature import draw_split, generate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("miniature") / "set", num_train=6, num_test=12, seed=1, num_proc=1)


@pytest.fixture
def copy(folder, tmp_path):
    return Path(shutil.copytree(folder, tmp_path / "copy"))


@pytest.mark.parametrize(("split", "count"), [("train", 6), ("test", 12)])
def test_the_data_set_has_the_fixed_columns_and_every_row(folder, split, count):
    dataset = load_miniature(folder, split)
    assert dataset.features == FEATURES
    assert dataset.column_names == ["video_id", "caption", "video_path", "audio_path", "subtitle"]
    clips = draw_split(1, split, count)
    assert dataset["caption"][:] == [clip.caption for clip in clips]
    assert dataset["subtitle"][:] == [clip.subtitle for clip in clips]


def test_paths_are_absolute_and_absent_tracks_are_none(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    absent = set()
    for row, clip in zip(load_miniature(folder.name), draw_split(1, "test", 12), strict=True):
        for modality, path in (("video", row["video_path"]), ("audio", row["audio_path"])):
            assert path == (str(folder / clip.path) if modality in clip.attributes else None)
            absent |= {modality} if path is None else set()
    assert absent == {"video", "audio"}


def test_a_benchmark_is_loaded_by_name(folder):
    assert load_benchmark("miniature", folder, "train")[:] == load_miniature(folder, "train")[:]


def test_what_captions_speak_of_comes_in_the_order_of_the_rows(folder):
    assert load_about(folder) == [list(clip.mentions) for clip in draw_split(1, "test", 12)]


def test_an_unknown_name_lists_the_known_ones(folder):
    with pytest.raises(ValueError, match="'miniature', .*got 'msrvtt'"):
        load_benchmark("msrvtt", folder, "test")


def test_an_unknown_split_lists_the_known_ones(folder):
    with pytest.raises(ValueError, match=r"\('train', 'test'\), got 'validation'"):
        load_miniature(folder, "validation")


def test_a_missing_folder_is_answered_with_the_command_that_makes_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="python -m eval miniature --output"):
        load_miniature(tmp_path / "nowhere")


def test_an_unfinished_folder_is_refused(copy):
    (copy / "miniature.json").unlink()
    with pytest.raises(FileNotFoundError, match="not a finished miniature benchmark"):
        load_miniature(copy)


def test_a_lost_file_is_named(copy):
    row = load_miniature(copy)[3]
    Path(row["video_path"] or row["audio_path"]).unlink()
    with pytest.raises(FileNotFoundError, match=r"1 files .*mini_test_000003"):
        load_miniature(copy)
    assert len(load_miniature(copy, "train")) == 6


def test_a_changed_annotation_is_refused(copy):
    path = copy / "test.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(ValueError, match="is not the file that miniature.json describes"):
        load_miniature(copy)
