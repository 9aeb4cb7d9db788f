"""What repairing makes of a damaged gallery, beside `test_state_machine.py`, which damages any file of any gallery."""

import json

import pytest
from datasets import load_from_disk

from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter, MediaFile, verify_gallery
from scalar_retrieval.gallery.repair import repair
from scalar_retrieval.gallery.store.columns import query_table
from scalar_retrieval.gallery.store.places import COPY, MANIFEST
from scalar_retrieval.gallery.store.storage import DERIVED, signed
from tests.gallery.conftest import MADE_BY, make_clips, make_queries, write


def write_benchmark(folder):
    names, embeds, mask = make_clips(6)
    with GalleryWriter(folder, "float32") as writer:
        writer.metadata = MADE_BY | {"plan": {"x": 1}}
        writer.put_clips(names, embeds, mask)
        writer.put_queries(query_table([str(n) for n in range(6)], ["c"] * 6, make_queries(6), [[n] for n in names]))
        writer.commit()
    return Gallery.open(folder)


def listing(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_damaged_file_is_put_aside_and_the_next_indexing_embeds_its_clips(tmp_path):
    names = write(tmp_path, make_clips(5), make_clips(4, seed=1)).clip_ids
    with GalleryWriter(tmp_path) as writer:
        writer.put_files([MediaFile(name, 1, 2, "a" * 64) for name in names])
        writer.commit()
    (tmp_path / "clips" / "data-000002-1.arrow").write_bytes(b"x")
    reported = repair(tmp_path)
    assert "data-000002-1.arrow is damaged" in reported[0] and "4 rows of `clips` are lost" in reported[0]
    assert reported[1] == f"The clips of {names[5:]} are lost. `scalar index` embeds them again."
    gallery = Gallery.open(tmp_path)
    assert gallery.clip_ids == list(gallery.files) == names[:5]
    assert (tmp_path / "damaged" / "clips" / "data-000002-1.arrow").read_bytes() == b"x"
    assert len(load_from_disk(tmp_path / "clips")) == 5 and verify_gallery(tmp_path) and repair(tmp_path) == []


@pytest.mark.parametrize("name", DERIVED)
def test_what_datasets_reads_is_made_again(tmp_path, name):
    write(tmp_path, make_clips(3))
    path = tmp_path / "clips" / name
    whole = path.read_bytes()
    path.write_bytes(b"{")
    with pytest.raises(ValueError, match=f"{name}.*scalar repair"):
        verify_gallery(tmp_path)
    assert name in repair(tmp_path)[0] and path.read_bytes() == whole


@pytest.mark.parametrize(
    ("name", "lost"), [("clips", {"clips": 6, "queries": 0}), ("queries", {"clips": 0, "queries": 6})]
)
def test_a_benchmark_of_which_a_part_is_lost_is_searched_but_not_evaluated(tmp_path, name, lost):
    write_benchmark(tmp_path)
    (tmp_path / name / "data-000001-0.arrow").unlink()
    repair(tmp_path)
    assert Gallery.open(tmp_path).metadata["lost"] == lost
    with pytest.raises(ValueError, match="A part of .* was damaged and is lost"):
        Embeddings.load(tmp_path)


def test_what_cannot_be_repaired_is_not_changed(tmp_path):
    write(tmp_path, make_clips(5))
    for names, content, message in (
        ([MANIFEST], json.dumps(signed({"commit": 1, "version": 4})), "has version 4"),
        ([MANIFEST, COPY], "{", COPY),
    ):
        for name in names:
            (tmp_path / name).write_text(content)
        before = listing(tmp_path)
        with pytest.raises(ValueError, match=message):
            repair(tmp_path)
        assert listing(tmp_path) == before
    with pytest.raises(FileNotFoundError):
        repair(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("is_absolute", [False, True])
def test_files_outside_a_gallery_are_neither_read_nor_moved(tmp_path, is_absolute):
    folder = tmp_path / "gallery"
    outside = tmp_path / "data-000001-0.arrow"
    write(folder, make_clips(9))
    outside.write_text("private")
    content = json.loads((folder / MANIFEST).read_text())
    content["tables"]["clips"][0]["file"] = str(outside) if is_absolute else f"../../{outside.name}"
    (folder / MANIFEST).write_text(json.dumps(signed(content)))
    with pytest.raises(ValueError, match="which no gallery has"):
        Gallery.open(folder)
    repair(folder)
    assert outside.read_text() == "private" and len(Gallery.open(folder)) == 9
