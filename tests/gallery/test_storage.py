import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset, load_from_disk

from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter, MediaFile
from scalar_retrieval.gallery.store import storage
from scalar_retrieval.gallery.store.columns import clip_table, query_table
from scalar_retrieval.gallery.store.writing import Writer
from tests.gallery.conftest import make_clips, make_queries, write

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def rows(start, stop):
    names = [str(number) for number in range(start, stop)]
    return clip_table(names, torch.ones(len(names), 1, 1), torch.ones(len(names), 1, dtype=torch.bool), ["video"])


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# Growing


# Of files of a tenth or two thirds, sixteen in a row once stayed as they were. Of small ones there are four of each
# power of four at the most, beside the full ones.
@pytest.mark.parametrize(("size", "most"), [(1, 20), (17, 20), (400, 3)])
def test_any_sequence_of_commits_keeps_every_row_in_order_in_few_files_that_are_written_few_times(
    tmp_path, monkeypatch, size, most
):
    monkeypatch.setattr("scalar_retrieval.gallery.store.writing.SHARD_ROWS", 1000)
    size_of_all = 0
    with Writer(tmp_path) as writer:
        for number in range(60):
            added = rows(number * size, (number + 1) * size)
            size_of_all += added.nbytes
            writer.append("clips", added)
            writer.commit()
            shards = writer.snapshot.shards["clips"]
            assert max(shard.rows for shard in shards) <= 1000
            assert len(shards) <= most + (number + 1) * size / 875
        assert writer.bytes_written < 6 * size_of_all + 60 * 10_000
    assert load_from_disk(tmp_path / "clips")["clip_id"][:] == [str(number) for number in range(60 * size)]
    assert len(list((tmp_path / "clips").glob("*.arrow"))) == len(shards)


def test_datasets_reads_the_types_that_it_would_write(tmp_path):
    names, embeds, mask = make_clips(6)
    with GalleryWriter(tmp_path / "ours") as writer:
        writer.put_clips(names, embeds, mask, [["x"]] * 6, [1.0] * 6)
        writer.put_files([MediaFile(name, 1, 2, "a" * 64) for name in names])
        writer.put_queries(query_table(["q"], ["c"], make_queries(1), [names]))
        writer.commit()
    for name in ("clips", "files", "queries"):
        ours = load_from_disk(tmp_path / "ours" / name)
        table = ours.with_format("arrow")[:]
        assert ours.features == Dataset(table).features and ours.features.arrow_schema == table.schema


# One writer, any number of readers


def test_an_open_gallery_stays_what_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr("scalar_retrieval.gallery.store.writing.SHARD_ROWS", 20)
    names, embeds, mask = make_clips(30)
    opened = write(tmp_path, (names, embeds, mask))
    with GalleryWriter(tmp_path) as writer:
        writer.remove_clips(names[:25])
        writer.put_clips(*make_clips(4, seed=1))
        writer.commit()
        writer.compact()
    assert opened.clip_ids == names and torch.equal(opened.modality_embeds(), embeds)
    assert len(opened.search(make_queries(1), k=30)[0]) == 30
    assert len(Gallery.open(tmp_path)) == 9


def test_a_reader_that_meets_a_commit_sees_the_new_state(tmp_path, monkeypatch):
    """The files of the state whose manifest it has read are gone when it looks for them."""
    names, embeds, mask = make_clips(6)
    write(tmp_path, (names, embeds, mask))
    read, commits = storage.read_manifest, []

    def overtaken(folder):
        manifest = read(folder)
        commits.append(manifest[0]["commit"])
        if len(commits) == 1:
            with GalleryWriter(tmp_path) as writer:
                writer.remove_clips(names[:4])  # more than half: the file is written anew
                writer.commit()
        return manifest

    monkeypatch.setattr(storage, "read_manifest", overtaken)
    assert Gallery.open(tmp_path).clip_ids == names[4:]
    assert commits[0] == 1 and commits[-1] == 2


# Killed and damaged

# Children are forked, so that libraries load once.
FORKING = """
import os, random, signal, sys, time
import torch
from scalar_retrieval.gallery.store.columns import clip_table
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.gallery.store.places import MANIFEST
from tests.gallery.conftest import MADE_BY, make_clips, make_queries
from scalar_retrieval.modeling_scalar import MODALITIES

folder, parent = sys.argv[1], os.getpid()
clip_table(*make_clips(8), MODALITIES)  # what is slow the first time is done before children are forked


def fork(function, *arguments):
    child = os.fork()
    if child:
        return child
    try:
        function(*arguments)
    except BaseException as error:
        print(f"{function.__name__}: {error!r}", flush=True)
        os._exit(1)
    os._exit(0)


def write(stop, reported=None):
    with GalleryWriter(folder, "float32") as writer:
        writer.metadata = MADE_BY
        for number in range(len(writer.gallery()) // 8, stop):
            writer.put_clips(*make_clips(8, seed=number))
            if number % 7 == 6:  # clips that are there already, put again
                writer.put_clips(*((column[:2] for column in make_clips(8, seed=number - 3))))
            writer.commit()
            if reported is not None:
                os.write(reported, b".")
            if number % 10 == 9:
                writer.compact()


def read(stop):
    queries, last = make_queries(3), 0
    while last < stop:
        assert os.getppid() == parent, "nobody waits for this any more"
        gallery = Gallery.open(folder)
        number, rest = divmod(len(gallery), 8)
        assert not rest and number >= last, (number, rest, last)
        assert set(gallery.clip_ids) == {f"/clips/{seed}-{row}.mp4" for seed in range(number) for row in range(8)}
        assert all(len(hits) == min(5, len(gallery)) for hits in gallery.search(queries, k=5))
        last = number
"""

KILLING = """
def content(number):
    found = {}
    for seed in range(number):
        names, embeds, _ = make_clips(8, seed=seed)
        found |= {name: row for name, row in zip(names, embeds, strict=True)}
    return found


dice, done, kills = random.Random(0), 0, 0
while kills < 10 or done < 10:  # on a busy machine few are written between two kills
    reported, tell = os.pipe()
    child = fork(write, 10_000, tell)
    os.close(tell)
    time.sleep(dice.uniform(0.02, 0.25))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    kills += 1
    done += len(os.read(reported, 100_000))
    os.close(reported)
    if not os.path.exists(f"{folder}/{MANIFEST}"):
        assert not done
        continue
    gallery = Gallery.open(folder)
    number, rest = divmod(len(gallery), 8)
    assert not rest and done <= number <= done + 1, (number, rest, done)  # a kill may come before the dot
    done = number
    expected = content(number)
    assert sorted(gallery.clip_ids) == sorted(expected)
    assert torch.equal(gallery.modality_embeds(), torch.stack([expected[name] for name in gallery.clip_ids]))
    gallery.verify()
print(done, flush=True)
"""

READING = """
write(1)
readers = [fork(read, 50) for _ in range(2)]
writer = fork(write, 50)
for child in (writer, *readers):
    assert os.waitpid(child, 0)[1] == 0
print("all well", flush=True)
"""


def _run(tmp_path, program):
    done = subprocess.run(
        [sys.executable, "-c", FORKING + program, str(tmp_path / "gallery")],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout.strip()


@pytest.mark.promise("data", "A kill loses at most the current batch")
@pytest.mark.e2e
def test_kills_lose_at_most_the_batch_in_hand(tmp_path):
    done = int(_run(tmp_path, KILLING))
    # What `datasets` sees is derived from the manifest: the last kill may have come between the two.
    assert len(load_from_disk(tmp_path / "gallery" / "clips")) >= 8 * (done - 1)


@pytest.mark.e2e
def test_readers_always_see_one_whole_state_while_a_writer_commits(tmp_path):
    assert _run(tmp_path, READING) == "all well"


def test_a_hit_whose_vectors_have_changed_is_not_shown(tmp_path):
    write(tmp_path, make_clips(40))
    queries, (file,) = make_queries(4), (tmp_path / "clips").glob("*.arrow")
    best = Gallery.open(tmp_path).search(queries, k=1)
    whole, gallery = file.read_bytes(), Gallery.open(tmp_path)
    row = gallery.clip_ids.index(best[0][0].clip_id)
    modality = gallery.modality_mask[row].long().argmax()
    vector = gallery.modality_embeds()[row, modality].numpy()
    place = whole.index(vector.tobytes())
    size = vector.itemsize
    for byte, bit in ((size - 2, 0), (size - 1, 7), (vector.nbytes - 1, 3)):  # of a number, of a sign, of an exponent
        raw = bytearray(whole)
        raw[place + byte] ^= 1 << bit
        file.write_bytes(raw)
        with pytest.raises(ValueError, match=f"'{best[0][0].clip_id}'.*scalar repair"):
            Gallery.open(tmp_path).search(queries, k=40)
    file.write_bytes(whole)
    assert [hits[0].clip_id for hits in Gallery.open(tmp_path).search(queries, k=1)] == [h[0].clip_id for h in best]


def test_files_of_others_are_left_alone(tmp_path):
    write(tmp_path, make_clips(2))
    for name in ("notes.txt", "clips/data.arrow", "clips/data-1.arrow", "other/data-000001-0.arrow"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"mine")
    (tmp_path / "clips" / "data-000077-0.arrow").write_bytes(b"of a writer that was killed")
    write(tmp_path, make_clips(2, seed=1))
    assert {"notes.txt", "clips/data.arrow", "clips/data-1.arrow", "other/data-000001-0.arrow"} <= set(files(tmp_path))
    assert "clips/data-000077-0.arrow" not in files(tmp_path)


def test_a_folder_with_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match="contains something other than a gallery: 'thesis.tex'"):
        GalleryWriter(tmp_path)
    with pytest.raises(ValueError, match="is a file; a gallery is a folder"):
        GalleryWriter(tmp_path / "thesis.tex")
    with pytest.raises(FileNotFoundError, match="no gallery in"):
        Gallery.open(tmp_path)
    assert files(tmp_path) == ["thesis.tex"]
