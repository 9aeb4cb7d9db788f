"""The folder of the miniature benchmark: what is written, and that it does not depend on how it was made."""

import hashlib
import json
from collections import Counter

import av
import numpy as np
import pytest

from eval.miniature import draw_frames, draw_split, generate, generation
from eval.miniature.rendering import NUM_FRAMES, NUM_SAMPLES
from modeling_scalar.configuration_scalar import MODALITIES

COUNTS = {"train": 24, "test": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("miniature") / "set", COUNTS["train"], COUNTS["test"], seed=3, num_proc=2)


def decoded(path):
    """Everything a decoder gets out of a file: frames, samples, lines of text."""
    with av.open(path) as container:
        frames = [f.to_ndarray(format="rgb24") for s in container.streams.video for f in container.decode(s)]
    with av.open(path) as container:
        samples = [f.to_ndarray() for s in container.streams.audio for f in container.decode(s)]
    with av.open(path) as container:
        packets = [p for s in container.streams.subtitles for p in container.demux(s) if p.size]
        lines = [line.dialogue.decode() for packet in packets for line in packet.stream.decode(packet)]
    return frames, samples, lines


def read_rows(folder, split):
    return [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]


def test_every_listed_clip_and_nothing_else_is_written(folder):
    for split, count in COUNTS.items():
        rows = read_rows(folder, split)
        assert [row["video_id"] for row in rows] == [f"mini_{split}_{index:06d}" for index in range(count)]
        written = {path.relative_to(folder).as_posix() for path in (folder / split).iterdir()}
        assert written == {row["video_path"] or row["audio_path"] for row in rows}
    assert not folder.with_name("set.partial").exists()


def test_files_hold_the_promised_tracks(folder):
    seen = Counter()
    for row in read_rows(folder, "train") + read_rows(folder, "test"):
        frames, samples, lines = decoded(folder / (row["video_path"] or row["audio_path"]))
        assert len(frames) == (NUM_FRAMES if row["video_path"] else 0)
        assert bool(samples) == (row["audio_path"] is not None)
        if samples:
            wave = np.concatenate(samples, axis=1)[0]
            assert NUM_SAMPLES <= wave.size <= NUM_SAMPLES + 1024  # AAC fills its last frame
            assert 0.05 < np.abs(wave).max() < 1.1  # heard, and clipped by no more than the codec's ripple
        assert lines == ([row["subtitle"]] if row["subtitle"] is not None else [])
        tracks = {"video": row["video_path"], "audio": row["audio_path"], "subtitle": row["subtitle"]}
        assert set(row["attributes"]) == {modality for modality, track in tracks.items() if track is not None}
        seen.update(modality for modality, track in tracks.items() if track is None)
    assert set(seen) == set(MODALITIES)


def test_the_set_does_not_depend_on_the_number_of_processes(folder, tmp_path):
    again = generate(tmp_path / "set", COUNTS["train"], COUNTS["test"], seed=3, num_proc=1)
    for name in ("train.jsonl", "test.jsonl", "miniature.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()
    for row in read_rows(folder, "test"):
        path = row["video_path"] or row["audio_path"]
        for ours, theirs in zip(decoded(folder / path), decoded(again / path), strict=True):
            assert len(ours) == len(theirs)
            assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_the_manifest_describes_the_set(folder):
    manifest = json.loads((folder / "miniature.json").read_text())
    assert (manifest["seed"], manifest["num_train"], manifest["num_test"]) == (3, 24, 12)
    for split in COUNTS:
        content = (folder / f"{split}.jsonl").read_bytes()
        assert manifest["sha256"][f"{split}.jsonl"] == hashlib.sha256(content).hexdigest()
        rows = read_rows(folder, split)
        for modality, column in zip(MODALITIES, ("video_path", "audio_path", "subtitle"), strict=True):
            assert manifest["absent"][split][modality] == sum(row[column] is None for row in rows)


def test_a_finished_set_is_returned_at_once(folder, monkeypatch):
    monkeypatch.setattr(generation, "render", lambda *_: pytest.fail("rendered again"))
    assert generate(folder, COUNTS["train"], COUNTS["test"], seed=3, num_proc=1) == folder


def test_an_interrupted_run_does_not_look_finished_and_is_made_anew(tmp_path, monkeypatch):
    render, rendered = generation.render, []

    def interrupted(clip, folder):
        if len(rendered) == 4:
            raise KeyboardInterrupt
        rendered.append(clip)
        render(clip, folder)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(generation, "render", interrupted)
        generate(tmp_path / "set", 6, 3, num_proc=1)
    assert rendered and not (tmp_path / "set").exists()
    partial = tmp_path / "set.partial"
    (partial / "train" / "999999.mp4").write_bytes(b"")  # as if of another, larger set
    generate(tmp_path / "set", 6, 3, num_proc=1)
    assert len(list((tmp_path / "set" / "train").iterdir())) == 6
    assert not partial.exists()


def test_other_settings_are_refused(folder):
    with pytest.raises(ValueError, match=r"'num_test': 12.*'num_test': 13"):
        generate(folder, COUNTS["train"], 13, seed=3)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not a miniature benchmark"):
        generate(tmp_path, 6, 3)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "settings", [{"num_train": 0}, {"num_test": 0}, {"seed": -1}, {"num_proc": 0}], ids=lambda s: next(iter(s))
)
def test_numbers_out_of_range_are_refused(settings, tmp_path):
    with pytest.raises(ValueError, match="must be at least"):
        generate(tmp_path / "set", **settings)
    assert not (tmp_path / "set.partial").exists()


def test_rendered_frames_are_close_to_the_drawn_ones(folder):
    clip = next(clip for clip in draw_split(3, "test", COUNTS["test"]) if "video" in clip.attributes)
    drawn = draw_frames(clip.attributes["video"], np.random.default_rng(clip.key))
    frames = np.stack(decoded(folder / clip.path)[0])
    assert np.abs(frames.astype(float) - drawn).mean() < 12  # lossy codec, colours at half resolution
