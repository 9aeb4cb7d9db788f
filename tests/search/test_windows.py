"""Long files are indexed as windows."""

import os
import shutil
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from scalar_retrieval.gallery import embedding
from scalar_retrieval.gallery.decoding import SandboxedReader, sandboxed
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.search.__main__ import app
from scalar_retrieval.search.sources import find_files
from tests.indexers import make_indexer
from tests.joint_encoders import write_joint_encoder
from tests.media_corpus import media, tone, wav
from tests.search.further import index_with
from tests.search.test_indexing import of

TALK = ["talk.mkv#t=0,2", "talk.mkv#t=2,4", "talk.mkv#t=4"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_joint_encoder(tmp_path_factory.mktemp("windows") / "encoder")


@pytest.fixture(scope="module")
def loaded(encoder):
    """The encoder and its processor, for all commands: loading takes longest, and then embedding frames."""
    model, processor = load_model(encoder)
    processor.num_frames = 1
    return model, processor


@pytest.fixture
def place(encoder, loaded, tmp_path, monkeypatch):
    monkeypatch.setattr("scalar_retrieval.modeling_scalar.load_model", lambda *_, **__: loaded)
    index_with(monkeypatch, dtype="float32")
    (tmp_path / "encoder").symlink_to(encoder)
    (tmp_path / "clips").mkdir()
    write_talk(tmp_path)
    (tmp_path / "clips" / "short.wav").write_bytes(wav(tone(16_000)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_talk(place):
    data = media("matroska", "mjpeg", "pcm_s16le", frames=60, seconds=6, size=(32, 32))
    (place / "clips" / "talk.mkv").write_bytes(data)
    cues = "".join(f"{n}\n00:00:0{n},000 --> 00:00:0{n},900\nword {n}\n\n" for n in range(6))
    (place / "clips" / "talk.srt").write_text(cues)


def run(*arguments, code=0):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result


def index(*options, code=0):
    arguments = ["--model", "encoder", "--output", "gallery"]
    return run("index", "clips", *arguments, *options, code=code)


def names(gallery="gallery"):
    return sorted(name.rsplit("/", 1)[-1] for name in Gallery.open(gallery).clip_ids)


def test_each_window_is_a_clip_with_what_is_in_it(place, loaded):
    (place / "clips" / "silent.mkv").write_bytes(media("matroska", "mjpeg", "", frames=30, seconds=3, size=(32, 32)))
    assert "3 new, 0 changed, 0 unchanged, 0 unreadable; 4 clips" in index("--segment", "4").stdout
    gallery, (model, processor) = Gallery.open("gallery"), loaded
    for name, window, words, seconds in (
        ("short.wav", (0, None), None, 1),
        ("silent.mkv", (0, None), None, 3),
        ("talk.mkv#t=0,4", (0, 4), "word 0 word 1 word 2 word 3", 4),
        ("talk.mkv#t=4", (4, None), "word 4 word 5", 2),
    ):
        clip = sandboxed(processor).read_clip(f"clips/{name.partition('#')[0]}", window=window)
        assert clip.subtitle == words
        with torch.no_grad():
            expected, _ = model.get_modality_features(**processor(clips=[clip]))
        row = gallery.row_of(f"{place}/clips/{name}")
        torch.testing.assert_close(gallery.modality_embeds()[row], expected[0], atol=1e-6, rtol=0)
        assert gallery.clips.column("seconds")[row].as_py() == pytest.approx(seconds, abs=0.05)
    assert "0 new, 0 changed, 3 unchanged" in index().stdout


WRONG_NOTES = {
    "a note less": lambda notes: notes.pop(),
    "notes of two windows exchanged": lambda notes: notes.insert(1, notes.pop(2)),
    "no note": lambda notes: notes.__setitem__(0, None),
}
WRONG_FIELDS = {
    "a whole file as a window": {"window": (0.0, 2.0)},
    "no length": {"seconds": float("nan")},
    "problems that are a text": {"problems": "none"},
    "a still that is a script": {"still": b"<script>"},
    "a reason for what was embedded": {"reason": "broken"},
}
WRONG_FILES = {
    "a file of another path": {"path": "/etc/passwd"},
    "a hash that is a path": {"sha256": "../../x"},
    "a hash in a line": {"sha256": "a" * 64 + "\n"},
    "a time beyond 64 bits": {"mtime_ns": 2**63},
    "texts that are no object": {"texts": "[1]"},
}
WRONG_VECTORS = {
    "no vectors": lambda embeds, mask: None,
    "a vector less": lambda embeds, mask: (embeds[1:], mask[1:]),
    "vectors without a mask": lambda embeds, mask: (embeds,),
    "a mask of numbers": lambda embeds, mask: (embeds, mask.float()),
    "a modality less": lambda embeds, mask: (embeds[:, 1:], mask[:, 1:]),
    "vectors twice as long": lambda embeds, mask: (2 * embeds, mask),
    "vectors of NaN": lambda embeds, mask: (embeds * float("nan"), mask),
    "clips without anything": lambda embeds, mask: (embeds, mask & False),
}


def wrong_answers(right):
    """Answers with something else in one place, each with its name."""
    for name in (*WRONG_NOTES, *WRONG_FIELDS, *WRONG_FILES, *WRONG_VECTORS):
        answer = deepcopy(right)
        note = answer.notes[0]
        if name in WRONG_NOTES:
            WRONG_NOTES[name](answer.notes)
        elif name in WRONG_VECTORS:
            answer.embeds = WRONG_VECTORS[name](*answer.embeds)
        else:
            file = replace(note.file, **WRONG_FILES.get(name, {}))
            answer.notes[0] = replace(note, **WRONG_FIELDS.get(name, {"file": file}))
        yield name, answer


@pytest.mark.promise("data", "A worker's answer is checked before anything is written")
def test_an_answer_to_something_else_than_was_asked_is_refused_before_anything_is_written(place, loaded):
    answers = []

    def indexed(output, embed=None):
        with GalleryWriter(output, "float32") as writer:
            writer.metadata = {"model": "encoder", "segment": 2}
            indexer = make_indexer(writer, *loaded, num_workers=1, embed=embed)
            honest = indexer._embed
            if embed is None:
                indexer._embed = lambda jobs, size: (answers.append(deepcopy(a)) or a for a in honest(jobs, size))
            indexer.update(find_files(["clips"]))

    indexed("gallery")
    (right,) = answers
    assert len(right.notes) == 4 and right.notes[1].file.path.endswith("talk.mkv") and right.notes[1].still
    for name, answer in wrong_answers(right):
        shutil.rmtree("other", ignore_errors=True)
        with pytest.raises(ValueError):
            indexed("other", lambda jobs, size, answer=answer: (answer for _ in [list(jobs)]))
        # The metadata were committed before.
        assert sorted(os.listdir("other")) == [".lock", "gallery-copy.json", "gallery.json"], name


def test_a_run_that_ends_between_two_windows_goes_on_there(place, loaded, monkeypatch):
    (path,), embedded, embed = find_files(["clips/talk.mkv"]), [], embedding.embed_clips

    def fail_at_the_second(model, features):
        embedded.append(1)
        if len(embedded) == 2:
            raise KeyboardInterrupt
        return embed(model, features)

    def index_one_by_one():
        with GalleryWriter("gallery", "float32") as writer:
            writer.metadata = writer.metadata or {"model": "encoder", "segment": 2}
            return make_indexer(writer, *loaded, batch_size=1, num_workers=1).update([path])

    monkeypatch.setattr(embedding, "embed_clips", fail_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        index_one_by_one()
    assert names() == TALK[:1] and "not all of its windows" in Gallery.open("gallery").files[path].reason
    assert of(index_one_by_one(), "new") == [path] and names() == TALK
    assert Gallery.open("gallery").files[path].reason is None
    assert of(index_one_by_one(), "unchanged") == [path] and len(embedded) == 4


def test_sound_that_the_encoder_does_not_hear_is_reported_with_the_way_to_keep_it(place, loaded, monkeypatch):
    monkeypatch.setattr(loaded[1], "max_audio_seconds", 2)
    (place / "clips" / "talk.mkv").unlink()
    (place / "clips" / "long.wav").write_bytes(wav(tone(72_000)))
    reported = index().stdout
    assert "long.wav, the sound after the first 2 s of a clip is left out" in reported and "--segment 2\n" in reported
    assert "left out" not in index().stdout  # of what was indexed before
    assert "left out" not in index("--output", "windows", "--segment", "2").stdout and len(names("windows")) == 4
    monkeypatch.setattr(SandboxedReader, "read_duration", lambda *_: None)
    reported = index("--output", "unreported", "--segment", "2").stdout
    assert "its header gives a wrong length" in reported and "--segment" not in reported
