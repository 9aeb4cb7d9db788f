"""The five retrieval benchmarks, from the annotation files that their protocol publishes."""

import json
import shutil

import pytest

from scalar_retrieval.eval.benchmarks.annotations import FEATURES
from scalar_retrieval.eval.benchmarks.registry import find_benchmark, load_benchmark, load_split

FILES = {
    "msrvtt": {"test": "descs_ret_test.json", "train": "unique_descs_ret_train.json"},
    "didemo": {"test": "descs_ret_test.json", "train": "descs_ret_train.json"},
    "activitynet": {"test": "descs_ret_test.json", "train": "descs_ret_train.json"},
    "vatex": {"test": "descs_ret_test.json"},
    "audiocaps": {"test": "descs_ret_test.json"},
}
COUNTS = {
    ("msrvtt", "test"): (1000, 762, 1),
    ("msrvtt", "train"): (9000, 6891, 1),
    ("didemo", "test"): (1003, 0, 1),
    ("didemo", "train"): (8363, 0, 1),
    ("activitynet", "test"): (4917, 0, 1),
    ("activitynet", "train"): (10009, 0, 1),
    ("vatex", "test"): (1500, 741, 10),
    ("audiocaps", "test"): (729, 0, 5),
}


@pytest.fixture(scope="module")
def annotated(shared_dir, tmp_path_factory):
    """Make folders of a published annotation, each clip a name of one empty file; return folder and entries."""

    def make(name, split="test"):
        root = tmp_path_factory.mktemp(name)
        source = shared_dir / "data" / "annotations" / name / FILES[name][split]
        shutil.copy(source, root)
        entries = json.loads(source.read_text())
        (root / "videos").mkdir()
        (root / "empty.mp4").touch()
        for entry in entries:
            (root / "videos" / f"{entry['video_id']}.mp4").hardlink_to(root / "empty.mp4")  # faster than files
        return root, entries

    return make


def texts(entry):
    captions = entry.get("desc", entry.get("caption"))
    return captions if isinstance(captions, list) else [captions]


@pytest.mark.parametrize(("name", "split"), COUNTS)
def test_the_published_annotation_gives_its_clips_in_order(annotated, name, split):
    root, entries = annotated(name, split)
    loaded = load_split(name, root, split)
    assert loaded.left_out == [] and loaded.task == "retrieval"
    dataset = loaded.dataset
    assert dataset.features == FEATURES
    num_clips, num_subtitles, num_captions = COUNTS[name, split]
    assert len(dataset) == len(set(dataset["video_id"])) == num_clips
    assert sum(subtitle is not None for subtitle in dataset["subtitle"]) == num_subtitles
    assert {len(texts(entry)) for entry in entries} == {num_captions}
    assert dataset["video_id"][:] == [entry["video_id"] for entry in entries]
    assert dataset["caption"][:] == [texts(entry)[0] for entry in entries]
    assert dataset["video_path"][:] == [str(root / "videos" / f"{entry['video_id']}.mp4") for entry in entries]
    assert dataset["audio_path"][:] == dataset["video_path"][:]
    if num_captions > 1:  # a row each when asked for
        every = load_benchmark(name, root, split, captions="all")
        assert every["caption"][:] == [caption for entry in entries for caption in texts(entry)]
        assert every["video_id"][::num_captions] == dataset["video_id"][:]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"video_id": "a", "desc": "again"}, "repeats the clip 'a'"),
        ({"video_id": "b"}, "clip 'b': `desc` or `caption` must be .*, got None"),
        ({"video_id": "b", "desc": "a dog", "subtitle": 3}, "`subtitle` must be text, got 3"),
    ],
)
def test_a_malformed_entry_is_named(tmp_path, bad, message):
    (tmp_path / "descs_ret_test.json").write_text(json.dumps([{"video_id": "a", "desc": "a dog"}, bad]))
    with pytest.raises(ValueError, match=rf"Entry 1 of .*descs_ret_test\.json.*{message}"):
        load_split("activitynet", tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_what_the_protocol_sets(name):
    expected = {
        "num_frames": 8,
        "max_text_length": 70 if name in ("didemo", "activitynet") else 40,
        "max_subtitle_length": 70,
        "num_segments": 2 if name in ("didemo", "activitynet") else 1,
        "resize_mode": "crop" if name == "msrvtt" else "squash",
    }
    assert find_benchmark(name).processing == expected
