"""Damage to each file of a gallery, what verifying says of it, and what repairing makes of it."""

import json
import os
import shutil

import pyarrow as pa
import pytest
from datasets import load_from_disk

from eval.embedding.embeddings import Embeddings
from gallery.columns import query_table
from gallery.files import write_json
from gallery.gallery import Gallery, GalleryWriter, MediaFile, verify_gallery
from gallery.repair import repair
from gallery.storage import DERIVED, MANIFEST, has_lost_its_manifest, read_manifest, signed
from gallery.writing import Writer
from tests.gallery.conftest import MADE_BY, make_clips, make_queries, write

DAMAGE = {
    "gone": lambda raw: None,
    "empty": lambda raw: b"",
    "cut after a byte": lambda raw: raw[:1],
    "cut in the middle": lambda raw: raw[: len(raw) // 2],
    "cut before the last byte": lambda raw: raw[:-1] if not raw.endswith(b"}\n") else raw[:-2],
    "zeros": lambda raw: bytes(len(raw)),
    "a flipped bit at the beginning": lambda raw: flipped(raw, 3),
    "a flipped bit in the middle": lambda raw: flipped(raw, len(raw) // 2),
    "a flipped bit at the end": lambda raw: flipped(raw, len(raw) - 9),
    "something else": lambda raw: b'{"version": 2}\n',
}


def flipped(raw, place):
    return raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Nothing is waited for: no power is cut."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def names_of(number):
    return make_clips(4, seed=number)[0]


def build_videos(folder):
    """Clips and files of several commits: removed, replaced and sealed ones among them."""
    with pytest.MonkeyPatch.context() as patched, GalleryWriter(folder, "float32") as writer:
        patched.setattr("gallery.writing._SEALED_ROWS", 8)
        writer.metadata = MADE_BY
        for number in (0, 2, 3, 4):
            batches = [make_clips(4, seed=seed) for seed in ((0, 1) if not number else (number,))]
            for names, embeds, mask in batches:
                writer.put_clips(names, embeds, mask)
                writer.put_files([MediaFile(name, 1, 2, "a" * 64) for name in names])
            writer.put_files([MediaFile(f"/broken{number}", 1, 2, "b" * 64, "nothing in it")])
            writer.commit()
        writer.remove_clips(names_of(2)[:1] + names_of(1)[2:3])  # taken out
        _, embeds, mask = make_clips(4, seed=7)
        writer.put_clips(names_of(3)[:1], embeds[3:], mask[3:])  # replaced
        writer.put_files([MediaFile(names_of(3)[0], 9, 9, "c" * 64)])
        writer.commit()


def build_benchmark(folder):
    names, embeds, mask = make_clips(6)
    with GalleryWriter(folder, "float32") as writer:
        writer.metadata = MADE_BY | {"plan": {"x": 1}}
        writer.put_clips(names, embeds, mask)
        writer.put_queries(query_table([str(n) for n in range(6)], ["c"] * 6, make_queries(6), [[n] for n in names]))
        writer.commit()


def content(folder):
    """What a gallery holds: vectors by clip, files by path, captions by query."""
    gallery = Gallery.open(folder)
    clips = {}
    if gallery.clips is not None:
        clips = dict(zip(gallery.clip_ids, gallery.modality_embeds().numpy().tolist(), strict=True))
    queries = [] if gallery.queries is None else gallery.queries.column("query_id").to_pylist()
    return clips, gallery.files, queries, gallery.metadata


def listing(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def rows_of_shard(folder, name, file):
    """The keys of the rows of a shard that are not removed."""
    with Writer(folder) as writer:
        for shard, part in zip(writer.snapshot.shards[name], writer.snapshot.parts[name], strict=True):
            if shard.file == file:
                return set(
                    part.kept().column({"clips": "clip_id", "files": "path", "queries": "query_id"}[name]).to_pylist()
                )
    raise AssertionError(file)


FILES = {
    build_videos: [
        "gallery.json", "sealed-000005.json", "clips/data-000001-0.arrow", "clips/data-000002-1.arrow",
        "clips/data-000003-2.arrow", "clips/data-000005-4.arrow", "clips/removed-000005-0.npy",
        "clips/removed-000005-1.npy", "clips/removed-000005-2.npy", "clips/state.json", "clips/dataset_info.json",
        "files/data-000001-0.arrow", "files/data-000002-1.arrow", "files/data-000005-4.arrow",
        "files/removed-000005-0.npy", "files/removed-000005-1.npy", "files/removed-000005-2.npy", "files/state.json",
        "files/dataset_info.json",
    ],
    build_benchmark: [
        "gallery.json", "clips/data-000001-0.arrow", "clips/state.json", "clips/dataset_info.json",
        "queries/data-000001-0.arrow", "queries/state.json", "queries/dataset_info.json",
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Folders and their content, by who built them."""
    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        for build in FILES:
            build(folder / build.__name__)
    return {build: (folder / build.__name__, content(folder / build.__name__)) for build in FILES}


def test_every_file_of_the_galleries_is_damaged_here(built):
    left = ["clips/data-000004-3.arrow", "files/data-000003-2.arrow", "files/data-000004-3.arrow"]  # like others
    assert sorted(listing(built[build_videos][0])) == sorted([*FILES[build_videos], ".lock", *left])
    assert sorted(listing(built[build_benchmark][0])) == sorted([*FILES[build_benchmark], ".lock"])
    clips, files, _, _ = built[build_videos][1]
    assert len(clips) == 18 and len(files) == 22 and files[names_of(3)[0]].size == 9


@pytest.mark.promise("data", "`scalar verify` names damage; `scalar repair` keeps exactly what is whole")
@pytest.mark.parametrize(("build", "file"), [(build, file) for build in FILES for file in FILES[build]])
def test_damage_is_named_by_verifying_and_repairing_keeps_exactly_what_is_whole(built, tmp_path, build, file):
    source, (clips, files, queries, metadata) = built[build]
    name, _, shard = file.partition("/")
    lost = rows_of_shard(source, name, shard) if shard.endswith(".arrow") else set()
    assert lost or not shard.endswith(".arrow")
    for kind, damage in DAMAGE.items():
        folder = tmp_path / kind
        shutil.copytree(source, folder)
        damaged = damage((folder / file).read_bytes())
        if damaged is None:
            (folder / file).unlink()
        else:
            (folder / file).write_bytes(damaged)
        if damaged is None and file.endswith(DERIVED):  # as a writer leaves it that is killed after its commit
            verify_gallery(folder)
            assert repair(folder) == [] and (folder / file).is_file()
            continue
        with pytest.raises(ValueError, match=f"(?s){file.split('/')[-1]}.*scalar repair"):
            verify_gallery(folder)
        reported = repair(folder)
        assert reported and file in " ".join(reported), (kind, reported)
        assert damaged is None or listing(folder)[f"damaged/{file}"] == damaged, kind
        found = content(folder)
        assert found[0] == {key: value for key, value in clips.items() if name != "clips" or key not in lost}, kind
        assert found[1] == {key: value for key, value in files.items() if key not in lost}, kind
        assert found[2] == [key for key in queries if name != "queries" or key not in lost], kind
        is_benchmark_broken = build is build_benchmark and lost
        assert ("lost" in found[3]) == bool(is_benchmark_broken) and metadata.items() <= found[3].items()
        Gallery.open(folder).verify()
        for table, rows in (("clips", found[0]), ("files", found[1]), ("queries", found[2])):
            assert not rows or len(load_from_disk(folder / table)) >= len(rows)
        before = listing(folder)
        assert repair(folder) == [] and listing(folder) == before, kind


def test_lost_clips_are_counted_and_named_and_the_next_indexing_embeds_them(built, tmp_path):
    source, (clips, files, *_) = built[build_videos]
    shutil.copytree(source, tmp_path / "gallery")
    (tmp_path / "gallery" / "clips" / "data-000002-1.arrow").unlink()
    reported = repair(tmp_path / "gallery")
    lost = sorted(names_of(2)[1:])
    assert reported[0] == "clips/data-000002-1.arrow was missing: 3 rows are lost."
    assert reported[1] == f"The clips {lost} are lost. `scalar index` embeds them again."
    known = Gallery.open(tmp_path / "gallery").files
    assert not set(lost) & set(known) and "/broken2" in known


def test_a_benchmark_of_which_a_part_is_lost_is_searched_but_not_evaluated(built, tmp_path):
    for name, message in (("clips", "6 clips, among them"), ("queries", "0 clips and 6 captions")):
        folder = tmp_path / name
        shutil.copytree(built[build_benchmark][0], folder)
        (folder / name / "data-000001-0.arrow").unlink()
        assert message in repair(folder)[-1]
        with pytest.raises(ValueError, match="A part of .* was damaged and is lost"):
            Embeddings.load(folder)
        assert Gallery.open(folder).metadata["lost"]


def test_several_damages_at_once_are_repaired_at_once(built, tmp_path):
    source, (clips, files, *_) = built[build_videos]
    folder = tmp_path / "gallery"
    shutil.copytree(source, folder)
    lost = rows_of_shard(folder, "clips", "data-000003-2.arrow")
    for file in ("gallery.json", "clips/data-000003-2.arrow", "files/dataset_info.json"):
        (folder / file).write_bytes(b"{")
    assert len(repair(folder)) == 4
    found = content(folder)
    assert found[0] == {key: value for key, value in clips.items() if key not in lost} and found[3] == MADE_BY
    assert found[1] == {key: value for key, value in files.items() if key not in lost}


def test_without_manifest_and_without_what_datasets_reads_the_shards_tell_what_they_can(built, tmp_path):
    """Rows that were removed are there again, but the newest of each clip counts."""
    source, (clips, *_) = built[build_videos]
    folder = tmp_path / "gallery"
    shutil.copytree(source, folder)
    (folder / MANIFEST).write_bytes(b"{")
    for file in ("state.json", "dataset_info.json"):
        for name in ("clips", "files"):
            (folder / name / file).unlink()
    reported = " ".join(repair(folder))
    assert "The model that made the gallery is no longer known" in reported
    found = content(folder)
    assert clips.items() <= found[0].items() and set(found[0]) - set(clips) <= {names_of(2)[0], names_of(1)[2]}
    assert found[3] == {}


@pytest.mark.parametrize("build", list(FILES))
def test_beside_the_manifest_of_another_gallery_all_that_is_whole_is_kept(built, tmp_path, build):
    source, expected = built[build]
    shutil.copytree(source, tmp_path / "gallery")
    other = write(tmp_path / "other", make_clips(5, seed=9)).path
    shutil.copy(other / MANIFEST, tmp_path / "gallery")
    reported = repair(tmp_path / "gallery")
    assert reported[0].startswith(
        "gallery.json belonged to another gallery. The manifest was written again; the old one"
    )
    assert content(tmp_path / "gallery") == expected
    assert repair(tmp_path / "gallery") == []


def test_a_gallery_whose_manifest_is_gone_is_neither_begun_anew_nor_taken_for_a_data_set(built, tmp_path):
    folder = tmp_path / "gallery"
    shutil.copytree(built[build_videos][0], folder)
    (folder / MANIFEST).unlink()
    before = listing(folder)
    assert has_lost_its_manifest(folder)
    for use in (Gallery.open, GalleryWriter, Writer):
        with pytest.raises(ValueError, match="gallery.json is missing, although .*scalar repair"):
            use(folder)
    assert listing(folder) == before


@pytest.mark.parametrize(("change", "message"), [({"version": 3}, "has version 3"), ({"version": 1}, "has version 1")])
def test_what_another_program_wrote_is_not_repaired(tmp_path, change, message):
    (tmp_path / MANIFEST).write_text(json.dumps(signed({"commit": 1} | change)))
    before = listing(tmp_path)
    with pytest.raises(ValueError, match=message):
        repair(tmp_path)
    assert {name: raw for name, raw in listing(tmp_path).items() if name != ".lock"} == before
    with pytest.raises(FileNotFoundError, match="There is no gallery in"):
        repair(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("is_absolute", [False, True])
@pytest.mark.parametrize("is_manifest_lost", [False, True])
def test_files_outside_a_gallery_are_neither_read_nor_moved(tmp_path, is_absolute, is_manifest_lost):
    folder, outside = tmp_path / "gallery", tmp_path / "outside-000001.arrow"
    build_videos(folder)
    outside.write_text("private")
    name = str(outside) if is_absolute else f"../../{outside.name}"
    forged = folder / "clips" / DERIVED[1] if is_manifest_lost else folder / MANIFEST
    content = json.loads(forged.read_text())
    if is_manifest_lost:
        (folder / MANIFEST).unlink()
        content["_data_files"][0]["filename"] = name
        content["removed"][name] = name
    else:
        content["tables"]["clips"][0]["file"] = name
    forged.write_text(json.dumps(signed(content)))
    with pytest.raises(ValueError, match="gallery"):
        Gallery.open(folder)
    repair(folder)
    assert outside.read_text() == "private" and len(Gallery.open(folder))


def test_a_gallery_in_use_is_not_repaired(tmp_path):
    with GalleryWriter(tmp_path / "gallery") as writer:
        writer.put_clips(*make_clips(2))
        writer.commit()
        with pytest.raises(ValueError, match="Another process writes"):
            repair(tmp_path / "gallery")


def test_what_a_killed_writer_left_is_no_part_of_the_gallery_that_is_repaired(tmp_path):
    """Files of a commit that never happened are cleared away; a manifest tells that it did not happen."""
    gallery = write(tmp_path, make_clips(3), make_clips(3, seed=1))
    (tmp_path / "clips" / "data-000003-2.arrow").write_bytes(b"half of it")
    assert repair(tmp_path) == [] and content(tmp_path)[0].keys() == set(gallery.clip_ids)
    assert not (tmp_path / "clips" / "data-000003-2.arrow").exists()


def test_a_manifest_lost_between_a_merge_and_its_commit_costs_and_doubles_nothing(tmp_path):
    """Both the sixteen old files and the one made of them lie there."""
    with GalleryWriter(tmp_path, "float32") as writer:
        for number in range(15):
            writer.put_clips(*make_clips(1, seed=number))
            writer.commit()
        kept = listing(tmp_path)
        writer.put_clips(*make_clips(1, seed=15))
        writer.commit()
        assert len(read_manifest(tmp_path)[1]["clips"]) == 1
    for name, raw in kept.items():
        (tmp_path / name).write_bytes(raw)
    (tmp_path / MANIFEST).unlink()
    repair(tmp_path)
    expected = {f"/clips/{number}-0.mp4" for number in range(16)}
    assert len(content(tmp_path)[0]) == len(Gallery.open(tmp_path)) == 16 and content(tmp_path)[0].keys() == expected
    Gallery.open(tmp_path).verify()


def test_a_shard_that_is_whole_for_arrow_but_holds_no_unit_vectors_is_put_aside_without_a_manifest(tmp_path):
    write(tmp_path, make_clips(3), make_clips(3, seed=1))
    first, second = sorted((tmp_path / "clips").glob("*.arrow"))
    raw = second.read_bytes()
    value = Gallery.open(tmp_path).modality_embeds()[5].numpy().tobytes()[:64]
    assert raw.count(value) == 1
    second.write_bytes(raw.replace(value, bytes(64)))
    (tmp_path / MANIFEST).unlink()
    reported = " ".join(repair(tmp_path))
    assert "must be of unit norm" in reported and len(Gallery.open(tmp_path)) == 3


def test_a_copy_that_is_killed_after_its_commit_is_whole_and_completed_by_the_next_writer(
    built, tmp_path, monkeypatch
):
    source, whole = Gallery.open(built[build_benchmark][0]), content(built[build_benchmark][0])

    def killed(content, path):
        if len(list(tmp_path.rglob("*.json"))) == number:
            raise KeyboardInterrupt
        return write_json(content, path)

    for number in range(1, 5):  # the manifest, and so many of the four files that `datasets` reads
        folder = tmp_path / str(number)
        monkeypatch.setattr("gallery.writing.write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            source.copy(folder)
        monkeypatch.setattr("gallery.writing.write_json", write_json)
        assert len(list(folder.rglob("*.json"))) == number
        assert verify_gallery(folder)[0].facts() == source.facts() and content(folder) == whole
        with GalleryWriter(folder):
            pass
        assert len(list(folder.rglob("*.json"))) == 5 and len(load_from_disk(folder / "clips")) == 6
        assert repair(folder) == []
        shutil.rmtree(folder)


def test_rows_of_other_columns_do_not_come_into_a_table_that_is_repaired(tmp_path):
    write(tmp_path, make_clips(3))
    table = pa.table({"clip_id": ["other"]})
    with pa.OSFile(str(tmp_path / "clips" / "data-000000-7.arrow"), "wb") as file:
        with pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    (tmp_path / MANIFEST).unlink()
    assert "belongs to no table" in " ".join(repair(tmp_path))
    assert len(Gallery.open(tmp_path)) == 3
