"""What fails when a file is written: each call in turn that opens, writes, syncs, renames or makes a folder."""

import builtins
import errno
import io
import os
import re
import shutil
from contextlib import suppress

import pytest
import torch
from typer.testing import CliRunner

from commands.errors import describe
from eval.embedding.embeddings import Embeddings
from gallery.gallery import Gallery, GalleryWriter, MediaFile, is_gallery
from gallery.repair import repair
from gallery.storage import MANIFEST, read_manifest
from gallery.writing import Writer
from search.__main__ import app
from tests.disks import small_disk
from tests.gallery.conftest import MADE_BY, make_clips, make_queries


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No power is cut."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Faults:
    """Let the n-th call that changes the disk fail; `stays`: all later ones too, as on a disk that is full."""

    def __init__(self, monkeypatch, number, stays):
        self.number, self.stays, self.error = 0, stays, errno.ENOSPC
        self.failing = number
        for name in ("fsync", "replace", "mkdir"):
            monkeypatch.setattr(os, name, self._wrapped(getattr(os, name)))
        self._open = builtins.open
        for module in (builtins, io):
            monkeypatch.setattr(module, "open", self._opened)

    def _call(self, *names):
        self.number += 1
        if self.number == self.failing or (self.stays and self.number > self.failing > 0):
            raise OSError(self.error, os.strerror(self.error), *names)

    def _wrapped(self, function):
        def call(*arguments, **options):
            # Of these calls the system names the file, but of what is open it knows none.
            self._call(*([] if isinstance(arguments[0], int) else [os.fspath(arguments[0])]))
            return function(*arguments, **options)

        return call

    def _opened(self, file, mode="r", *arguments, **options):
        if not set(mode) & set("wax+"):
            return self._open(file, mode, *arguments, **options)
        self._call(os.fspath(file))
        stream = self._open(file, mode, *arguments, **options)
        return _Stream(stream, self)


class _Stream(io.RawIOBase):
    """A file whose every write is a call that may fail."""

    def __init__(self, stream, faults):
        self._stream, self._faults = stream, faults

    def write(self, data):
        self._faults._call()
        return self._stream.write(data)

    def writable(self):
        return True

    def fileno(self):
        return self._stream.fileno()

    def flush(self):
        if not self._stream.closed:
            self._stream.flush()

    def close(self):
        self._stream.close()
        super().close()


def begin(folder):
    with GalleryWriter(folder, "float32") as writer:
        writer.metadata = MADE_BY
        for number in range(3):
            names, embeds, mask = make_clips(4, seed=number)
            writer.put_clips(names, embeds, mask)
            writer.put_files([MediaFile(name, 1, 2, "a" * 64) for name in names])
            writer.commit()


def append(folder):
    """New clips, one that is replaced and one that is removed."""
    with GalleryWriter(folder, "float32") as writer:
        names, embeds, mask = make_clips(4, seed=3)
        writer.put_clips(names, embeds, mask)
        writer.put_clips(make_clips(1, seed=1)[0], embeds[2:3], mask[2:3])
        writer.remove_clips(make_clips(1, seed=2)[0])
        writer.put_files([MediaFile(name, 1, 2, "a" * 64) for name in names])
        writer.commit()


def compact(folder):
    with Writer(folder) as writer:
        writer.compact()


def copy(folder):
    Gallery.open(folder).copy(folder.with_name(f"{folder.name}-copy"))


def damage(folder):
    (folder / MANIFEST).unlink()
    (folder / "clips" / "data-000002-1.arrow").write_bytes(b"x")


def content(folder):
    gallery = Gallery.open(folder)
    gallery.verify()
    vectors = gallery.modality_embeds().tolist()
    return dict(zip(gallery.clip_ids, vectors, strict=True)), gallery.files, gallery.metadata


def leftovers(folder):
    return [path for path in folder.parent.rglob(".*") if path.is_file() and path.name != ".lock"]


CHANGES = [append, compact, copy, repair]


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """A gallery; and what each change makes of it, undisturbed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        folder = tmp_path_factory.mktemp("states")
        begin(folder / "begun")
        expected = {}
        for change in CHANGES:
            shutil.copytree(folder / "begun", folder / change.__name__)
            if change is repair:
                damage(folder / change.__name__)
            change(folder / change.__name__)
            expected[change] = content(result_of(change, folder / change.__name__))
    return folder / "begun", expected


def result_of(change, folder):
    return folder.with_name(f"{folder.name}-copy") if change is copy else folder


@pytest.mark.promise("data", "A full disk leaves the old or the new state; the command can be repeated")
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 11])
@pytest.mark.parametrize("stays", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("change", CHANGES)
def test_whatever_call_fails_the_state_is_the_old_or_the_new_one_and_the_change_can_be_repeated(
    states, tmp_path, monkeypatch, change, stays, step
):
    begun, expected = states
    old, number, failed = content(begun), 0, 0
    while True:
        number += step
        folder = tmp_path / str(number) / "gallery"
        shutil.copytree(begun, folder)
        if change is repair:
            damage(folder)
        caught = None
        with monkeypatch.context() as patched:
            faults = Faults(patched, number, stays)
            try:
                change(folder)
            except OSError as error:
                caught = error
        result = result_of(change, folder)
        if caught is None and faults.number < number:
            break
        if caught is not None:
            failed += 1
            message = describe(caught)
            assert message.startswith("The disk is full: ") and str(tmp_path) in message, message
        assert not leftovers(folder)
        if change is copy:
            assert content(folder) == old
        elif change is append:
            assert content(folder) in (old, expected[change])
            assert caught is not None or content(folder) == expected[change]
        elif change is compact:
            assert content(folder)[0].keys() == old[0].keys()
        # There is space again: the same goes on, and comes to the same.
        if (change is append and content(folder) == expected[append]) or (change is copy and is_gallery(result)):
            compact(result)  # which shows that the lock is free
        else:
            change(folder)
        assert content(result) == expected[change]
        shutil.rmtree(folder.parent)
    assert failed > 0.6 * (number // step - 1) and number > 20  # `mkdir` may fail where there is a folder already


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS, errno.EDQUOT, errno.EACCES])
def test_other_errors_of_the_system_leave_the_old_state_too(states, tmp_path, monkeypatch, error):
    begun, expected = states
    shutil.copytree(begun, tmp_path / "gallery")
    with monkeypatch.context() as patched:
        Faults(patched, 3, stays=True).error = error
        with pytest.raises(OSError, match=os.strerror(error)) as caught:
            append(tmp_path / "gallery")
    assert caught.value.errno == error and str(tmp_path) in str(caught.value)
    assert content(tmp_path / "gallery") == content(begun)
    append(tmp_path / "gallery")
    assert content(tmp_path / "gallery") == expected[append]


def test_a_first_commit_that_fails_leaves_a_folder_in_which_a_gallery_can_be_begun(tmp_path, monkeypatch):
    number = 0
    while True:
        number += 5
        folder = tmp_path / str(number) / "gallery"
        with monkeypatch.context() as patched:
            faults = Faults(patched, number, stays=True)
            try:
                begin(folder)
            except OSError:
                pass
        if faults.number < number:
            break
        if not (folder / MANIFEST).exists():
            begin(folder)
        else:
            with GalleryWriter(folder):
                pass
        assert len(Gallery.open(folder)) in (4, 8, 12) and Gallery.open(folder).verify()
    assert number > 30 and read_manifest(folder)[0]["commit"] == 3


def test_saving_embeddings_that_fails_leaves_a_folder_in_which_they_can_be_saved(tmp_path, monkeypatch):
    names, embeds, mask = make_clips(4)
    pairs = torch.tensor([[0, 0]])
    embeddings = Embeddings(make_queries(1), embeds, mask, pairs, names, ["q"], ["c"], metadata=MADE_BY)
    number = 0
    while True:
        number += 1
        folder = tmp_path / str(number)
        with monkeypatch.context() as patched:
            faults = Faults(patched, number, stays=True)
            try:
                embeddings.save(folder)
            except OSError:
                pass
        if faults.number < number:
            break
        if not (folder / MANIFEST).exists():
            embeddings.save(folder)
        assert len(Gallery.open(folder)) == 4
    assert number > 10


def test_on_a_file_system_that_is_full_nothing_committed_is_lost_and_the_same_goes_on(tmp_path):
    with small_disk(tmp_path / "disk", 2**20) as disk:
        check_full(disk, tmp_path)


def check_full(disk, tmp_path):
    folder, done, kept = disk / "gallery", 0, {}
    (disk / "ballast").write_bytes(bytes(800_000))
    with pytest.raises(OSError, match="No space left on device") as caught:
        while True:
            names, embeds, mask = make_clips(16, seed=done)
            with GalleryWriter(folder, "float32") as writer:
                writer.put_clips(names, embeds, mask)
                writer.commit()
            kept |= dict(zip(names, embeds.tolist(), strict=True))
            done += 1
    assert done > 3 and str(folder) in describe(caught.value) and describe(caught.value).startswith("The disk is full")
    assert content(folder)[0] == kept and not leftovers(folder)
    (disk / "more").write_bytes(b"")
    with suppress(OSError):
        with open(disk / "more", "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
    result = CliRunner().invoke(app, ["compact", str(folder)])
    assert result.exit_code == 1 and re.search("No space left|disk is full", result.stderr), result.output
    assert str(disk) in result.stderr and content(folder)[0] == kept
    with pytest.raises(OSError, match="No space left"):
        Gallery.open(folder).copy(disk / "copy")
    assert content(folder)[0] == kept
    (disk / "more").unlink()
    (disk / "ballast").unlink()
    with GalleryWriter(folder, "float32") as writer:
        writer.put_clips(*make_clips(16, seed=done))
        writer.commit()
        writer.compact()
    assert len(Gallery.open(folder)) == 16 * (done + 1) and Gallery.open(folder).verify()
