"""Galleries that `scalar index` wrote until version 1, and stores of evaluation: read, converted, never changed."""

import hashlib
import json
import math

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file

from gallery.gallery import Gallery, GalleryWriter, MediaFile
from modeling_scalar.configuration_scalar import MODALITIES
from tests.gallery.conftest import DIM, MADE_BY, make_clips, make_queries, write


def save_vectors(folder, tensors):
    save_file(tensors, folder / "part")
    digest = hashlib.sha256((folder / "part").read_bytes()).hexdigest()
    (folder / "part").rename(folder / f"gallery-{digest}.safetensors")
    return digest


def write_first_version(folder, count=10):
    """What `scalar index` of version 1 left."""
    names, embeds, mask = make_clips(count)
    names[1] = "/clips/ü \udcff.mp4"
    folder.mkdir(exist_ok=True)
    tensors = {name: embeds[:, index].contiguous() for index, name in enumerate(MODALITIES)}
    entries = [
        {
            "path": path,
            "size": 10 + number,
            "mtime_ns": number,
            "sha256": "a" * 64,
            "presence": [name for name, here in zip(MODALITIES, row, strict=True) if here],
            "duration": 1.5 if number == 2 else None,
            "problems": ["audio: cut off"] if number == 3 else [],
        }
        for number, (path, row) in enumerate(zip(names, mask.tolist(), strict=True))
    ]
    failed = [{"path": "/clips/broken.mp4", "size": 1, "mtime_ns": 2, "sha256": "b" * 64, "reason": "no video"}]
    record = MADE_BY | {
        "version": 1,
        "dim": DIM,
        "embeddings_sha256": save_vectors(folder, tensors | {"modality_mask": mask}),
        "entries": entries,
        "failed": failed,
    }
    (folder / "gallery.json").write_text(json.dumps(record, indent=1), "ascii")
    return names, embeds, mask


def hits_of(gallery):
    return [
        [(hit.clip_id, pytest.approx(hit.score, abs=1e-6)) for hit in hits]
        for hits in gallery.search(make_queries(4), 5)
    ]


def test_the_first_version_of_search_is_read_and_converted(tmp_path):
    names, embeds, mask = write_first_version(tmp_path / "old")
    old = Gallery.open(tmp_path / "old")
    assert old.clip_ids == names and torch.equal(old.modality_embeds(), embeds)
    assert torch.equal(old.modality_mask, mask) and old.metadata == MADE_BY and old.dtype == "float32"
    assert old.problems() == {names[3]: ["audio: cut off"]}
    assert old.clips.column("duration").to_pylist()[:3] == [None, None, 1.5]
    assert list(old.files) == [*names, "/clips/broken.mp4"]
    assert old.files["/clips/broken.mp4"] == MediaFile("/clips/broken.mp4", 1, 2, "b" * 64, "no video")
    before = sorted(path.name for path in (tmp_path / "old").iterdir())
    with pytest.raises(ValueError, match="python -m search convert .*old NEW"):
        GalleryWriter(tmp_path / "old")
    assert sorted(path.name for path in (tmp_path / "old").iterdir()) == before and old.verify() == 0
    new = old.copy(tmp_path / "new")
    assert new.clip_ids == names and new.files == old.files and new.problems() == old.problems()
    assert new.metadata == MADE_BY and torch.equal(new.modality_embeds(), embeds)
    assert hits_of(new) == hits_of(old) == hits_of(write(tmp_path / "again", (names, embeds, mask)))
    with GalleryWriter(tmp_path / "new") as writer:
        writer.put_clips(*make_clips(1, seed=5))
        writer.commit()
    assert len(Gallery.open(tmp_path / "new")) == 11


def _edit(**changes):
    return lambda record: record.update(changes)


def _edit_entry(**changes):
    return lambda record: record["entries"][1].update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_edit(version=7), "of version 7; expected 2"),
        (_edit(query_temperature="hot"), "query_temperature"),
        (_edit(query_temperature=-1.0), "query_temperature"),
        (_edit(dim=DIM + 1), "must hold arrays"),
        (_edit(embeddings_sha256="../../etc"), "missing or damaged"),
        (_edit(embeddings_sha256="0" * 64), "missing or damaged"),
        (lambda record: record.pop("failed"), "'failed'"),
        (lambda record: record["entries"].pop(), "must hold arrays"),
        (lambda record: record["entries"].append(3), "is not as"),
        (_edit_entry(path="/clips/0-0.mp4"), "unique, repeated"),
        (_edit_entry(presence=["video", "subtitle"]), "disagree on what"),
        (_edit_entry(size="large"), "is not as"),
    ],
)
def test_a_changed_record_of_the_first_version_is_refused(tmp_path, change, message):
    write_first_version(tmp_path)
    record = json.loads((tmp_path / "gallery.json").read_text())
    change(record)
    (tmp_path / "gallery.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=message):
        Gallery.open(tmp_path).query_temperature  # noqa: B018


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors["video"][0].mul_(1.02), "unit norm.*'/clips/0-0.mp4'"),
        (lambda tensors: tensors["video"][0].fill_(math.nan), "unit norm"),
        (lambda tensors: tensors["modality_mask"][0].fill_(False), "disagree"),
        (lambda tensors: tensors.pop("audio"), "must hold"),
        (lambda tensors: tensors.update(audio=tensors["audio"][1:].clone()), "must hold"),
    ],
)
def test_vectors_of_the_first_version_that_break_the_contract_are_refused(tmp_path, change, message):
    write_first_version(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    file.unlink()
    record = json.loads((tmp_path / "gallery.json").read_text())
    record["embeddings_sha256"] = save_vectors(tmp_path, tensors)
    (tmp_path / "gallery.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=message):
        Gallery.open(tmp_path)


def test_a_single_flipped_bit_of_the_first_version_is_refused(tmp_path):
    write_first_version(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    raw = bytearray(file.read_bytes())
    raw[-5] ^= 1
    file.write_bytes(raw)
    with pytest.raises(ValueError, match="damaged"):
        Gallery.open(tmp_path)


def test_a_store_of_evaluation_is_read_with_its_description(tmp_path):
    names, embeds, mask = make_clips(5)
    columns = {name: embeds[:, index].tolist() for index, name in enumerate(MODALITIES)}
    Dataset.from_dict({"clip_id": names} | columns | {"presence": mask.tolist()}).save_to_disk(tmp_path / "clips")
    captions = {
        "query_id": ["q"],
        "caption": ["a dog"],
        "embedding": make_queries(1).tolist(),
        "clip_ids": [names[:2]],
    }
    Dataset.from_dict(captions).save_to_disk(tmp_path / "queries")
    description = {"version": 1, "problems": [f"{names[1]}: audio: cut off", "of no clip"], "metadata": MADE_BY}
    (tmp_path / "embeddings.json").write_text(json.dumps(description))
    store = Gallery.open(tmp_path)
    assert store.clip_ids == names and store.model == "model" and store.facts()["num_pairs"] == 2
    assert store.problems() == {names[1]: ["audio: cut off"]} and store.metadata["problems"] == ["of no clip"]
    converted = store.copy(tmp_path / "new", "float32")
    assert converted.facts()["gallery_sha256"] == store.facts()["gallery_sha256"]
    assert converted.queries.column("caption").to_pylist() == ["a dog"] and hits_of(converted) == hits_of(store)
