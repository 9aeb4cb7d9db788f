"""Loading a corpus annotated as VAST-27M is, from folders made by hand."""

import json
import re

import pytest

from scalar_retrieval.eval.benchmarks.annotations import FEATURES
from scalar_retrieval.eval.benchmarks.registry import load_benchmark, load_split


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
    paths = [
        (str(videos / "b.12.mp4"), str(audios / "b.12.wav")),
        (str(videos / "a.3.webm"), str(videos / "a.3.webm")),  # the video's own track
        (None, str(audios / "c.FLAC")),
    ]
    for row, made, (video, audio) in zip(dataset, entries, paths, strict=True):
        texts = {"video_id": made["clip_id"], "caption": made["vast_cap"], "subtitle": made["subtitle"]}
        assert row == texts | {"video_path": video, "audio_path": audio}


def test_a_clip_with_two_files_is_an_error_that_names_them(tmp_path):
    write_corpus(tmp_path, [entry()], ["a.mp4", "a.mkv"])
    with pytest.raises(ValueError, match=r"1 clips have several files .*a\.mkv and a\.mp4.*Keep one"):
        load_benchmark("vast27m", tmp_path, "train")


def test_what_downloaders_leave_beside_a_clip_is_not_the_clip_which_is_then_left_out_if_asked(tmp_path, caplog):
    write_corpus(tmp_path, [entry("a"), entry("b")], ["a.json", "a.TXT", "a.vtt", "b.mp4"])
    message = f"1 of 2 clips have no file in {tmp_path / 'videos'} or {tmp_path / 'audios'}: a."
    with pytest.raises(FileNotFoundError, match=re.escape(message)):
        load_split("vast27m", tmp_path, "train")
    loaded = load_split("vast27m", tmp_path, "train", on_missing="leave_out")
    assert loaded.left_out == ["a"] and loaded.dataset["video_id"][:] == ["b"] and message in caplog.text
    (tmp_path / "videos" / "b.mp4").unlink()
    with pytest.raises(FileNotFoundError, match="2 of 2 clips .* Is this the right folder"):
        load_split("vast27m", tmp_path, "train", on_missing="leave_out")
