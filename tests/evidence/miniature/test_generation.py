"""The folder of the miniature benchmark: what is written, and that it does not depend on how it was made."""

import hashlib
import json
from collections import Counter

import av
import numpy as np
import pytest

from evidence.miniature import generation
from evidence.miniature.clips import draw_split
from evidence.miniature.generation import generate
from evidence.miniature.rendering import draw_frames, write_on
from scalar_retrieval.modeling_scalar.configuration_scalar import MODALITIES

# A set as it was before there were options for other sets: its clips and captions, and what is drawn.
SETTINGS = {"num_train": 24, "num_validation": 6, "num_test": 12, "seed": 7}
DIGESTS = {
    "train.jsonl": "0eedb9ab4a80a3fbc83e3d36c867b80d2ec75078809d5444d2ac54ceba1885a4",
    "validation.jsonl": "bd8053589db15be18ce5667bb614a7b0d4d2f73f684a09cb30b1810247ef065b",
    "test.jsonl": "3f79b307bf73a959fa6657e1972f8f360fff62cf0a5d3b847a2b8ad93e35fcbd",
    "miniature.json": "2211433c07917e1af12feb4e5cc7daf0edf959adbee1840cd3c318ca63a14f45",
    "frames of test": "fc3b0605bc73ec632edf2f511189fbcd807ea9313a14dc313a25afeb04c75aec",
}
SMALL = {"num_train": 6, "num_validation": 0, "num_test": 3, "seed": 7}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("miniature") / "set", **SETTINGS, num_proc=1)


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


def test_the_set_is_what_it_was_whatever_the_number_of_processes(folder, tmp_path):
    """Files depend on the versions of encoders: what is encoded is compared."""
    clips = [clip for clip in draw_split(7, "test", 12) if "video" in clip.attributes]
    frames = [draw_frames(clip.attributes["video"], np.random.default_rng(clip.key)).tobytes() for clip in clips]
    found = {name: (folder / name).read_bytes() for name in DIGESTS if "." in name}
    found["frames of test"] = b"".join(frames)
    assert {name: hashlib.sha256(content).hexdigest() for name, content in found.items()} == DIGESTS
    with av.open(folder / clips[0].path) as container:
        assert "title" not in container.metadata
    again = [generate(tmp_path / str(number), **SMALL, num_proc=number) for number in (1, 2)]
    for row in read_rows(again[0], "test"):
        path = row["video_path"] or row["audio_path"]
        for ours, theirs in zip(*(decoded(made / path) for made in again), strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_an_interrupted_run_does_not_look_finished_and_is_made_anew(tmp_path, monkeypatch):
    render, rendered = generation.render, []

    def interrupted(clip, folder):
        if len(rendered) == 4:
            raise KeyboardInterrupt
        rendered.append(clip)
        render(clip, folder)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(generation, "render", interrupted)
        generate(tmp_path / "set", **SMALL, num_proc=1)
    assert rendered and not (tmp_path / "set").exists()
    partial = tmp_path / "set.partial"
    (partial / "train" / "999999.mp4").write_bytes(b"")  # as if of another, larger set
    generate(tmp_path / "set", **SMALL, num_proc=1)
    assert len(list((tmp_path / "set" / "train").iterdir())) == 6
    assert not partial.exists()


def test_other_settings_are_refused(folder):
    with pytest.raises(ValueError, match="'seed': 7.*'seed': 4"):
        generate(folder, **SETTINGS | {"seed": 4})


# Further evidence ----------------------------------------------------------------------------------------------------

FIVE = {"num_train": 0, "num_validation": 0, "num_test": 40, "seed": 7, "num_proc": 1}


@pytest.fixture(scope="module")
def five(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("five") / "set", **FIVE, evidence=["screen", "title"])


def test_further_evidence_is_in_the_list_in_the_tags_and_on_the_screen(five, tmp_path):
    plain = {clip.path: clip for clip in draw_split(7, "test", 40)}
    clips = {clip.path: clip for clip in draw_split(7, "test", 40, evidence=["title", "screen"])}
    seen = Counter()
    for row, (path, clip) in zip(read_rows(five, "test"), clips.items(), strict=True):
        assert row == clip.row() and list(row)[5:7] == ["title", "screen"]
        with av.open(five / path) as container:
            assert container.metadata.get("title") == row["title"]
        before = {name: value for name, value in clip.attributes.items() if name in MODALITIES}
        assert before == plain[path].attributes and clip.subtitle == plain[path].subtitle
        if row["screen"] is None:
            continue
        generation.render(plain[path], _folder_of(tmp_path, path))
        frames, bare = decoded(five / path)[0], decoded(tmp_path / path)[0]
        bar, expected = np.stack(frames)[:, -9:].mean(-1), write_on(np.stack(bare), row["screen"])[:, -9:].mean(-1)
        assert ((bar > 128) == (expected > 128)).mean() > 0.98  # what is read is what was written
        seen[len(row["screen"])] += 1
    assert seen.total() == 28 and max(seen) == 10


def _folder_of(folder, path):
    (folder / path).parent.mkdir(exist_ok=True)
    return folder
