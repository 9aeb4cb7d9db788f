"""Files that are none, and files that a limit keeps from being read."""

import os
import signal
import time
from contextlib import closing
from threading import Barrier, Event

import pytest

from scalar_retrieval.gallery.decoding import Limits, SandboxedReader, Stopped, pool, sandboxed
from scalar_retrieval.gallery.embedding import read_batches
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter, MediaFile
from scalar_retrieval.modeling_scalar.processing_scalar import Clip
from scalar_retrieval.search.reading import record_of
from scalar_retrieval.search.sources import find_files
from tests.gallery.decoding.reading import write_media
from tests.indexers import make_indexer
from tests.search.test_indexing import FakeModel, FakeProcessor, of, old, problems_of

IRREGULAR = "not a regular file but a folder, a pipe, a socket or a device"


def index(folder, processor, model=None, **options):
    with GalleryWriter(folder.parent / "gallery", "float32") as writer:
        writer.metadata = {"model": "model", "fingerprint": "fingerprint", "query_temperature": 0.1}
        report = make_indexer(writer, model or FakeModel(), processor, **options).update(find_files([folder]))
    return report, Gallery.open(folder.parent / "gallery")


def named(paths):
    return [os.path.basename(path) for path in paths]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "clips"
    folder.mkdir()
    (folder / "a.mp4").write_text("1 video")
    os.mkfifo(folder / "b.mp4")
    (folder / "c.mp4").symlink_to("/dev/zero")
    (folder / "d.mp4").write_text("2 video")
    return folder


def test_what_is_no_file_is_named_and_does_not_stop_the_run(folder):
    for _ in range(2):
        report, gallery = index(folder, FakeProcessor())
        assert {os.path.basename(file.path): file.reason for file in report.of("unreadable")} == {
            "b.mp4": f"{IRREGULAR}.",
            "c.mp4": f"{IRREGULAR}.",
        }
        assert named(gallery.clip_ids) == ["a.mp4", "d.mp4"]


@pytest.mark.promise("files", "Files that the system generates are never opened")
def test_a_file_that_a_system_makes_up_is_empty_and_never_opened(folder, monkeypatch):
    (folder / "e.mp4").symlink_to("/proc/kmsg" if os.path.isfile("/proc/kmsg") else folder / "empty.mp4")
    (folder / "empty.mp4").touch()
    monkeypatch.setattr("scalar_retrieval.gallery.store.file_state.open", never_answers, raising=False)
    for path in find_files([folder]):
        if path.endswith(("e.mp4", "empty.mp4", "kmsg")):
            assert record_of(path, None) == (
                MediaFile(path, 0, 0, "", "not a readable video or audio file: it is empty."),
                False,
            )


def never_answers(*arguments):
    Event().wait()


@pytest.mark.promise("files", "A drive that never answers is reported as out of reach")
def test_a_file_of_a_drive_that_never_answers_is_out_of_reach(folder, monkeypatch):
    index(folder, FakeProcessor())
    monkeypatch.setattr("scalar_retrieval.gallery.store.file_state.open", never_answers, raising=False)
    monkeypatch.setattr("scalar_retrieval.gallery.store.file_state._PATIENCE", 0)
    (folder / "a.mp4").write_text("1 audio")
    report, gallery = index(folder, FakeProcessor())
    (state,) = report.of("out of reach")
    assert state.path == str(folder / "a.mp4") and state.reason == "no answer for 0 s"
    assert named(gallery.clip_ids) == ["a.mp4", "d.mp4"]


@pytest.mark.promise("files", "An interrupted run does not wait for a drive that hangs")
def test_a_run_that_is_interrupted_does_not_wait_for_a_drive_that_hangs(folder, monkeypatch):
    asked, given_up = Event(), []

    def hangs(*arguments):
        asked.set()
        Event().wait()

    def read(item):
        if item:
            try:
                record_of(str(folder / "a.mp4"), None)
            except Stopped as error:
                given_up.append(error)
                raise
        return item, Clip()

    monkeypatch.setattr("scalar_retrieval.gallery.store.file_state.open", hangs, raising=False)
    with closing(read_batches(lambda clips: None, range(2), read, batch_size=1, num_workers=2)) as batches:
        assert next(batches).notes == [0]
        assert asked.wait(30)
    assert len(given_up) == 1  # and not after four minutes


def test_a_file_that_exceeds_a_limit_is_read_once_the_limit_is_raised(tmp_path, tiny_processor, tiny_model):
    folder = tmp_path / "clips"
    folder.mkdir()
    write_media(folder / "a.mp4", 10)
    for limits, unreadable, retried in ((63, 1, 0), (63, 1, 1), (32, 1, 1), (64, 0, 0)):
        processor = sandboxed(tiny_processor, Limits(pixels=limits * 64))
        report, gallery = index(folder, processor, tiny_model)
        assert (len(of(report, "unreadable")), len(old(report))) == (unreadable, retried)
        assert len(gallery) == 1 - unreadable
    processor = sandboxed(tiny_processor, Limits(pixels=63 * 64))
    write_media(folder / "b.mp4", 10, seconds_of_audio=1.0)
    report, gallery = index(folder, processor, tiny_model)
    assert len(gallery) == 2 and len(problems_of(report)) == 1  # its sound could be read
    assert len(of(index(folder, processor, tiny_model)[0], "unchanged")) == 2
    report, gallery = index(folder, tiny_processor, tiny_model)
    assert named(of(report, "changed")) == ["b.mp4"] and problems_of(report) == gallery.problems() == {}


def test_the_clips_of_one_batch_are_read_at_the_same_time_and_keep_their_order():
    together = Barrier(3)

    def read(item):
        if item < 3:
            together.wait(timeout=30)  # raises unless three threads come
        return item, Clip()

    batches = list(read_batches(lambda clips: len(clips), range(7), read, batch_size=3, num_workers=3))
    assert [batch.notes for batch in batches] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [batch.features for batch in batches] == [3, 3, 1]


def test_no_more_is_read_ahead_than_keeps_the_readers_busy():
    asked = []
    items = (asked.append(item) or item for item in range(100))
    with closing(read_batches(lambda clips: None, items, lambda item: (item, None), 2, num_workers=5)) as batches:
        next(batches)
        assert len(asked) == 10  # the batch in hand, and as many more as five readers need and one to be whole


@pytest.mark.promise("files", "An interrupted run does not wait for a decoder that hangs")
def test_a_run_that_is_interrupted_does_not_wait_for_a_decoder_that_hangs(tmp_path, monkeypatch):
    decoders = pool._Pool()
    monkeypatch.setattr(pool, "_pool", decoders)
    write_media(tmp_path / "a.mp4", 10)
    path, stopped = tmp_path / "a.mp4", []

    def read(item):
        if item == 1:
            SandboxedReader().read_duration(path)  # so that there is a decoder
            for decoder in decoders.all:
                os.kill(decoder.process.pid, signal.SIGSTOP)
            together.wait(timeout=30)
            try:
                SandboxedReader().read_duration(path)
            except Stopped as error:
                stopped.append(error)
                raise
        return item, Clip()

    together = Barrier(2)
    with closing(read_batches(lambda clips: None, range(2), read, batch_size=1, num_workers=2)) as batches:
        assert next(batches).notes == [0]
        together.wait(timeout=30)
        patience = time.monotonic() + 30
        while not decoders.taken and time.monotonic() < patience:
            time.sleep(0.001)
    assert len(stopped) == 1  # and not after four minutes, when a decoder that does nothing is ended
    decoders.close()  # one that was stopped before it was asked would wait for ever
    assert SandboxedReader().read_duration(path) == 1.0  # of others nothing is given up
