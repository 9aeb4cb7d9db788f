"""VGGSound from its own annotation and from a list of labelled clips."""

import json

import pytest

from scalar_retrieval.eval.benchmarks.annotations import FEATURES
from scalar_retrieval.eval.benchmarks.registry import load_split

ROWS = """---g-f_I2yQ,1,people marching,test
--0PQM4-hqg,30,"waterfall burbling, loud",train
--56QUhyDQM,185,"playing tennis, hitting a ball",test
-0jeONf82dE,21,people marching,test
"""


def make(root, *names, content=ROWS):
    (root / "videos").mkdir(parents=True)
    for name in names:
        (root / "videos" / name).touch()
    (root / "vggsound.csv").write_text(content)
    return root


def test_the_published_table_names_clips_by_their_start(tmp_path):
    root = make(tmp_path, "---g-f_I2yQ_000001.mp4", "--56QUhyDQM_000185.mkv", "-0jeONf82dE_000021.mp4")
    loaded = load_split("vggsound", root)
    assert loaded.task == "classification" and loaded.left_out == []
    assert loaded.dataset.features == FEATURES
    assert loaded.dataset["video_id"][:] == ["---g-f_I2yQ_000001", "--56QUhyDQM_000185", "-0jeONf82dE_000021"]
    assert loaded.dataset["caption"][:] == ["people marching", "playing tennis, hitting a ball", "people marching"]
    assert loaded.dataset["video_path"][1] == str(root / "videos" / "--56QUhyDQM_000185.mkv")
    make(tmp_path / "train", "--0PQM4-hqg_000030.mp4")
    train = load_split("vggsound", tmp_path / "train", "train")
    assert train.dataset["caption"][:] == ["waterfall burbling, loud"]


@pytest.mark.parametrize("key", ["label", "desc", "caption"])
def test_a_list_of_labels_comes_first(tmp_path, key):
    root = make(tmp_path, "b.mp4", "a.mp4")
    entries = [{"video_id": "b", key: "dog barking"}, {"video_id": "a", key: ["cat meowing"]}]
    (root / "descs_ret_test.json").write_text(json.dumps(entries))
    assert load_split("vggsound", root).dataset["caption"][:] == ["dog barking", "cat meowing"]


def test_a_clip_with_two_labels_is_refused(tmp_path):
    root = make(tmp_path, "a.mp4")
    (root / "descs_ret_test.json").write_text(json.dumps([{"video_id": "a", "label": ["dog barking", "cat meowing"]}]))
    with pytest.raises(ValueError, match=r"must have one label; these have several: \['a'\]"):
        load_split("vggsound", root)


@pytest.mark.parametrize("row", ["x,1,label", "x,one,label,test", "x,1, ,test", "x,1,label,val"])
def test_a_malformed_row_is_named(tmp_path, row):
    root = make(tmp_path, content=ROWS + row + "\n")
    with pytest.raises(ValueError, match=r"Row 5 of .*vggsound\.csv must be a YouTube id.*got \['x'"):
        load_split("vggsound", root)
