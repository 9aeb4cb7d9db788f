"""The folder of the miniature benchmark: what is written, and that it does not depend on how it was made."""

import hashlib
import json

import av
import numpy as np
import pytest

from evidence.miniature import generation
from evidence.miniature.clips import draw_split
from evidence.miniature.generation import generate
from evidence.miniature.rendering import draw_frames, write_on

# What these settings give, always: the clips and captions, and what is drawn.
SETTINGS = {"num_train": 12, "num_validation": 0, "num_test": 6, "seed": 7}
DIGESTS = {
    "train.jsonl": "52a5b280281a6579e207054bb8ef897a5173f2540b31f48476e8042f714ce79a",
    "test.jsonl": "195e65b1a6a3f894479fc16261c70e492c7db5c01dbe87994b765c3f8c9f1610",
    "miniature.json": "cc287537dcb4fe511797548c5b1bc8ff761cd8407a8ed3d73b483a87c5340867",
    "frames of test": "5ae90e5ef9a00751b760e39d546839455ec95db2e70a347b112b4ffffc992164",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("miniature") / "set", **SETTINGS, num_proc=1)


def decoded(path):
    """Everything a decoder gets out of a file: frames, samples, lines of text."""
    frames, samples, lines = [], [], []
    with av.open(path) as container:
        for packet in container.demux():
            for part in packet.decode() if packet.size or packet.stream.type != "subtitle" else ():
                if packet.stream.type == "video":
                    frames.append(part.to_ndarray(format="rgb24"))
                elif packet.stream.type == "audio":
                    samples.append(part.to_ndarray())
                else:
                    lines.append(part.dialogue.decode())
    return frames, samples, lines


def read_rows(folder, split):
    return [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]


def test_the_set_is_what_it_was_whatever_the_number_of_processes(folder, tmp_path):
    """Files depend on the versions of encoders: what is encoded is compared."""
    clips = [clip for clip in draw_split(7, "test", 6) if "video" in clip.attributes]
    frames = [draw_frames(clip.attributes["video"], np.random.default_rng(clip.key)).tobytes() for clip in clips]
    found = {name: (folder / name).read_bytes() for name in DIGESTS if "." in name}
    found["frames of test"] = b"".join(frames)
    assert {name: hashlib.sha256(content).hexdigest() for name, content in found.items()} == DIGESTS
    again = generate(tmp_path / "set", **SETTINGS, num_proc=2)
    for row in read_rows(again, "test"):
        path = row["video_path"] or row["audio_path"]
        for ours, theirs in zip(decoded(folder / path), decoded(again / path), strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_other_settings_are_refused(folder):
    with pytest.raises(ValueError, match="'seed': 7.*'seed': 4"):
        generate(folder, **SETTINGS | {"seed": 4})


def test_further_evidence_is_in_the_list_in_the_tags_and_on_the_screen(tmp_path):
    counts = {"num_train": 0, "num_validation": 0, "num_test": 12, "seed": 7, "num_proc": 1}
    five = generate(tmp_path / "five", **counts, evidence=["screen", "title"])
    seen = 0
    (tmp_path / "test").mkdir()
    clips = zip(draw_split(7, "test", 12), draw_split(7, "test", 12, evidence=["title", "screen"]), strict=True)
    for row, (before, clip) in zip(read_rows(five, "test"), clips, strict=True):
        assert row == clip.row()
        with av.open(five / clip.path) as container:
            assert container.metadata.get("title") == row["title"]
        if row["screen"] is not None:
            generation.render(before, tmp_path)
            frames, bare = decoded(five / clip.path)[0], decoded(tmp_path / clip.path)[0]
            written = write_on(np.stack(bare), row["screen"])
            assert ((np.stack(frames) > 128) == (written > 128))[:, -9:].mean() > 0.98  # what is read
            seen += 1
    assert seen > 5
