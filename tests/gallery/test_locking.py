"""One writer at a time, by a lock that dies with its process; readers need none, and no place to write."""

import errno
import fcntl
import os
import signal
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.gallery.repair import repair
from scalar_retrieval.gallery.store import files
from scalar_retrieval.gallery.store.places import MANIFEST
from tests.gallery.conftest import make_clips, make_queries, write


def in_child(function):
    """The exit code of a forked child in which a function is called: 0 if it returns True."""
    child = os.fork()
    if not child:
        torch.set_num_threads(1)  # those of OpenMP stayed in the parent, and would be waited for
        try:
            os._exit(0 if function() else 1)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
        os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def refused(function, *arguments, message="Another process writes"):
    try:
        function(*arguments)
    except ValueError as error:
        return message in str(error)
    return False


@pytest.mark.promise("data", "One process at a time writes to a gallery; its lock ends with it")
def test_a_writer_is_refused_in_this_process_and_in_others_until_the_first_is_closed(tmp_path):
    with GalleryWriter(tmp_path / "gallery") as first:
        assert refused(GalleryWriter, tmp_path / "gallery")
        first.put_clips(*make_clips(2))
        first.commit()
        assert refused(repair, tmp_path / "gallery")
        assert in_child(lambda: refused(GalleryWriter, tmp_path / "gallery")) == 0
    assert in_child(lambda: GalleryWriter(tmp_path / "gallery").dtype == "float16") == 0


def test_a_killed_writer_lets_go_though_its_own_children_live(tmp_path):
    """As those that decode, which a kill may leave."""
    write(tmp_path / "gallery", make_clips(2))
    read, reported = os.pipe()
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        writer = GalleryWriter(tmp_path / "gallery")
        if not os.fork():  # once this returns there, the child has closed the lock
            os.write(reported, b"." if writer.folder else b"")
        signal.pause()
    assert os.read(read, 1) == b"." and refused(GalleryWriter, tmp_path / "gallery")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with GalleryWriter(tmp_path / "gallery") as writer:
        assert len(writer.gallery()) == 2
    os.killpg(child, signal.SIGKILL)


def test_a_forked_child_cannot_commit_and_does_not_let_go_of_its_parents_lock(tmp_path):
    with GalleryWriter(tmp_path) as writer:
        writer.put_clips(*make_clips(2))

        def use():
            is_refused = refused(writer.commit, message="the process was forked")
            writer.close()
            return is_refused

        assert in_child(use) == 0
        assert in_child(lambda: refused(GalleryWriter, tmp_path)) == 0
        assert writer.commit()
    assert len(Gallery.open(tmp_path)) == 2


def delete_lock(folder):
    (folder / ".lock").unlink()


def take_lock(folder):
    delete_lock(folder)
    write(folder, make_clips(3, seed=2))


def delete_manifest(folder):
    (folder / MANIFEST).unlink()


@pytest.mark.parametrize(("happens", "count"), [(delete_lock, 2), (take_lock, 5), (delete_manifest, 2)])
def test_a_writer_whose_lock_or_manifest_is_gone_changes_nothing_more_and_costs_no_row(tmp_path, happens, count):
    write(tmp_path, make_clips(2))
    with GalleryWriter(tmp_path) as writer:
        writer.put_clips(*make_clips(2, seed=1))
        happens(tmp_path)
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(ValueError, match="is no longer held|Another process has written to"):
            writer.commit()
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    repair(tmp_path)
    assert len(Gallery.open(tmp_path)) == count and Gallery.open(tmp_path).verify()


def test_writers_that_do_not_see_each_others_lock_lose_nothing_that_was_committed(tmp_path, monkeypatch):
    """As on a drive that locks within one machine only."""
    write(tmp_path, make_clips(2))
    monkeypatch.setattr("scalar_retrieval.gallery.store.writing.locked", lambda *arguments: nullcontext(lambda: None))
    with GalleryWriter(tmp_path) as first, GalleryWriter(tmp_path) as second:
        first.put_clips(*make_clips(2, seed=1))
        second.put_clips(*make_clips(3, seed=2))
        assert second.commit()
        with pytest.raises(ValueError, match="Another process has written to .* meanwhile"):
            first.commit()
    assert len(Gallery.open(tmp_path)) == 5 and Gallery.open(tmp_path).verify()


def test_a_writer_whose_new_files_another_one_cleared_away_does_not_commit(tmp_path, monkeypatch):
    write(tmp_path, make_clips(2))
    with GalleryWriter(tmp_path) as writer:
        sync = files.sync_folder

        def cleared(folder):
            sync(folder)
            (tmp_path / "clips" / "data-000002-1.arrow").unlink()

        monkeypatch.setattr("scalar_retrieval.gallery.store.writing.sync_folder", cleared)
        writer.put_clips(*make_clips(2, seed=1))
        with pytest.raises(ValueError, match="Another process has written to"):
            writer.commit()
    assert len(Gallery.open(tmp_path)) == 2 and Gallery.open(tmp_path).verify()


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_drive_without_locks_is_refused_and_no_lock_is_made_that_would_outlive_its_process(
    tmp_path, monkeypatch, error
):
    write(tmp_path / "gallery", make_clips(2))

    def flock(descriptor, operation):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", flock)
    for folder in (tmp_path / "gallery", tmp_path / "new"):
        with pytest.raises(ValueError, match="does not support locks.* Write to a local folder"):
            GalleryWriter(folder)
    assert len(Gallery.open(tmp_path / "gallery").search(make_queries(1))[0]) == 2
    monkeypatch.undo()
    for folder in (tmp_path / "gallery", tmp_path / "new"):
        with GalleryWriter(folder):  # nothing is in the way
            pass


@pytest.fixture
def open_folder():
    """A folder below others that anybody may enter, unlike those of pytest."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


def test_a_folder_that_cannot_be_written_is_read(open_folder):
    write(open_folder, make_clips(4))
    (open_folder / ".lock").unlink()
    paths = [open_folder, *open_folder.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)

    def read():
        if os.geteuid() == 0:  # whom no permission stops
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        gallery = Gallery.open(open_folder)
        assert len(gallery.search(make_queries(1), k=3)[0]) == 3 and gallery.verify()
        try:
            GalleryWriter(open_folder)
        except PermissionError:
            return True

    try:
        assert in_child(read) == 0
    finally:
        for path in paths:
            path.chmod(0o755)
    assert not (open_folder / ".lock").exists()
