"""Loading a corpus annotated as VAST-27M is, from folders made by hand."""

import json

import pytest

from scalar_retrieval.eval.benchmarks.annotations import FEATURES
from scalar_retrieval.eval.benchmarks.registry import load_benchmark


def write_corpus(root, entries, videos=(), audios=(), split="train"):
    for folder, names in (("videos", videos), ("audios", audios)):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name in names:
            (root / folder / name).touch()
    (root / f"{split}.json").write_text(entries if isinstance(entries, str) else json.dumps(entries))
    return root


def entry(clip_id="a", **changes):
    return {
        "clip_id": clip_id,
        "vast_cap": f"all of {clip_id}",
        "vision_cap": ["what one sees"],
        "audio_cap": ["what one hears"],
        "subtitle": f"speech of {clip_id}",
    } | changes


def test_every_entry_becomes_a_row_with_the_fixed_columns_in_order(tmp_path, monkeypatch):
    entries = [entry("b.12"), entry("a.3"), entry("c")]
    write_corpus(tmp_path / "set", entries, ["a.3.webm", "b.12.mp4", "unused.mp4"], ["b.12.wav", "c.FLAC"])
    monkeypatch.chdir(tmp_path)
    dataset = load_benchmark("vast27m", "set", "train")
    assert dataset.features == FEATURES
    videos, audios = tmp_path / "set" / "videos", tmp_path / "set" / "audios"
    expected = [
        ("b.12", videos / "b.12.mp4", audios / "b.12.wav"),
        ("a.3", videos / "a.3.webm", videos / "a.3.webm"),  # the video's own track
        ("c", None, audios / "c.FLAC"),
    ]
    for row, (clip_id, video, audio) in zip(dataset, expected, strict=True):
        assert row == {
            "video_id": clip_id,
            "caption": f"all of {clip_id}",
            "video_path": video and str(video),
            "audio_path": str(audio),
            "subtitle": f"speech of {clip_id}",
        }


def test_a_clip_with_two_files_is_an_error_that_names_them(tmp_path):
    write_corpus(tmp_path, [entry()], ["a.mp4", "a.mkv"])
    with pytest.raises(ValueError, match=r"1 clips have several files .*a\.mkv and a\.mp4.*Keep one"):
        load_benchmark("vast27m", tmp_path, "train")


def test_what_downloaders_leave_beside_a_clip_is_not_the_clip(tmp_path):
    write_corpus(tmp_path, [entry("a")], ["a.json", "a.TXT", "a.vtt", "a.mp4"])
    assert load_benchmark("vast27m", tmp_path, "train")[0]["video_path"] == str(tmp_path / "videos" / "a.mp4")
    (tmp_path / "videos" / "a.mp4").unlink()
    with pytest.raises(FileNotFoundError, match="1 of 1 clips"):
        load_benchmark("vast27m", tmp_path, "train")
