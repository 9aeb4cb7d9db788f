"""A gallery beside a dictionary: whatever is changed, killed or damaged in any order, both hold the same clips."""

import errno
import shutil
import tempfile
from collections import OrderedDict
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter, MediaFile, verify_gallery
from scalar_retrieval.gallery.repair import repair
from scalar_retrieval.gallery.store.places import COPY, MANIFEST
from tests.gallery.conftest import MADE_BY, make_clips
from tests.gallery.faults import Faults, Killed

NAMES = [f"/clips/{number}.mp4" for number in range(60)]
MANY_NAMES = st.lists(st.sampled_from(NAMES), min_size=8, max_size=40, unique=True)
PLACES = st.sets(st.integers(0, 59), min_size=1, max_size=4)
FINISH = st.sampled_from(["commit", "commit", "compact"])
DAMAGE = {
    "gone": lambda raw: None,
    "empty": lambda raw: b"",
    "cut": lambda raw: raw[: len(raw) // 2],
    "a flipped bit": lambda raw: raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 1]) + raw[len(raw) // 2 + 1 :],
    "something else": lambda raw: b'{"version": 3}\n',
}


def vectors_of(name, version):
    """The vectors of a clip, (3, D)."""
    return make_clips(7, seed=1000 * version + NAMES.index(name), dim=4)[1][6]


def nothing():
    """What an empty gallery holds: of `clips` the version of each, in order; of `files` the size of each."""
    return {"clips": OrderedDict(), "files": {}}


class Galleries(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp()) / "gallery"
        self.patched = pytest.MonkeyPatch()
        # Small files, so that a few clips fill them and leave them in pieces
        self.patched.setattr("scalar_retrieval.gallery.store.writing.SHARD_ROWS", 24)
        for module in ("writing", "storage"):
            self.patched.setattr(f"scalar_retrieval.gallery.store.{module}.MOST_PIECES", 3)
        self.version = 0
        self.committed = nothing()
        self.begin()

    def begin(self):
        """Begin to write, with no changes to what is committed."""
        self.writer = GalleryWriter(self.folder, "float32", has_codes=False)
        self.writer.metadata = MADE_BY
        self.next = deepcopy(self.committed)
        self.touched = set()

    def teardown(self):
        self.writer.close()
        self.patched.undo()
        shutil.rmtree(self.folder.parent)

    def read(self):
        try:
            gallery = Gallery.open(self.folder)
        except FileNotFoundError:
            return nothing()
        state = nothing() | {"files": {path: file.size for path, file in gallery.files.items()}}
        if not len(gallery):
            return state
        for name, vectors in zip(gallery.clip_ids, gallery.modality_embeds(), strict=True):
            expected = {version: vectors_of(name, version) for version in self.versions_of(name)}
            (version,) = [version for version, known in expected.items() if torch.equal(known, vectors)]
            state["clips"][name] = version
        return state

    def versions_of(self, name):
        return {state["clips"][name] for state in (self.committed, self.next) if name in state["clips"]}

    # Changes

    @rule(names=MANY_NAMES)
    def put(self, names):
        """New clips, and clips that are replaced."""
        names = [name for name in names if name not in self.touched]
        self.version += 1
        if not names:
            return
        embeds = torch.stack([vectors_of(name, self.version) for name in names])
        self.writer.put_clips(names, embeds, torch.ones(len(names), 3, dtype=torch.bool))
        self.writer.put_files([MediaFile(name, self.version, 2, "a" * 64) for name in names])
        for name in names:
            self.next["clips"].pop(name, None)
            self.next["clips"][name] = self.version
            self.next["files"][name] = self.version
        self.touched.update(names)

    def untouched(self, table, places):
        """What the committed table has at these places, unless it was changed since."""
        names = list(self.committed[table])
        return [names[place] for place in places if place < len(names) and names[place] not in self.touched]

    @rule(places=PLACES)
    def remove(self, places):
        names = self.untouched("clips", places)
        self.writer.remove_clips(names)
        for name in names:
            del self.next["clips"][name]
            self.next["files"].pop(name, None)
        self.touched.update(names)

    @rule(places=PLACES)
    def forget(self, places):
        names = self.untouched("files", places)
        self.writer.forget_files(names)
        for name in names:
            self.next["files"].pop(name, None)

    # Commits, kills and errors

    def settle(self):
        """What is on the disk is the last commit or the one in flight."""
        found = self.read()
        assert found in (self.committed, self.next), (found, self.committed, self.next)
        self.committed = found

    @rule(finish=FINISH)
    def commit(self, finish):
        getattr(self.writer, finish)()
        self.committed = self.next
        self.next = deepcopy(self.committed)
        self.touched = set()

    @rule()
    def reopen(self):
        self.writer.close()
        self.begin()

    def interrupt(self, change, number, stays=True, error=None):
        """Let the n-th call that changes the disk fail with an error, or kill the process."""
        with pytest.MonkeyPatch.context() as patched:
            Faults(patched, number, stays, error)
            try:
                change()
            except Killed:
                pass
            except OSError as raised:
                assert raised.errno == error and str(self.folder.parent) in str(raised)

    @rule(finish=FINISH, number=st.integers(1, 45))
    def kill(self, finish, number):
        self.interrupt(getattr(self.writer, finish), number)
        self.writer.close()  # the lock ends with its process
        self.settle()
        if (self.folder / MANIFEST).is_file():
            verify_gallery(self.folder)
        self.begin()
        assert not [path for path in self.folder.rglob(".*") if path.name != ".lock"], "a killed writer left files"

    @rule(number=st.integers(1, 20))
    def kill_while_opening(self, number):
        self.writer.close()
        self.interrupt(lambda: GalleryWriter(self.folder).close(), number)
        self.begin()

    @rule(finish=FINISH, number=st.integers(1, 45), stays=st.booleans())
    def fill_the_disk(self, finish, number, stays):
        """A call fails; there is space again, and the same can be committed."""
        self.interrupt(getattr(self.writer, finish), number, stays, errno.ENOSPC)
        self.settle()
        self.commit(finish)

    # Damage

    @rule(data=st.data(), kind=st.sampled_from(sorted(DAMAGE)))
    def damage(self, data, kind):
        """A damaged file is named by verifying. Repairing keeps what is whole, and forgets the files of lost clips."""
        self.reopen()
        lost = {self.folder / MANIFEST: None, self.folder / COPY: None}
        for name, shards in self.writer.snapshot.shards.items():
            for shard, part in zip(shards, self.writer.snapshot.parts[name], strict=True):
                keys = part.kept().column("clip_id" if name == "clips" else "path").to_pylist()
                lost |= {self.folder / name / file: (name, keys) for file in (shard.file, shard.removed) if file}
        self.writer.close()
        path = data.draw(st.sampled_from(sorted(path for path in lost if path.exists()) or [None]))
        if path is not None:
            self.damage_file(path, DAMAGE[kind](path.read_bytes()), lost[path])
        self.begin()

    def damage_file(self, path, damaged, lost):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        if damaged is not None or path.name != COPY:  # the copy alone is made by the next writer
            with pytest.raises(ValueError, match=f"{path.name}.*scalar repair"):
                verify_gallery(self.folder)
        assert repair(self.folder) or path.name == COPY
        if lost is not None:
            table, keys = lost
            for key in keys:
                self.committed[table].pop(key)
                self.committed["files"].pop(key, None)
            if table == "clips" and keys:  # records of files without a clip say that these are lost, too
                for key in set(self.committed["files"]) - set(self.committed["clips"]):
                    del self.committed["files"][key]
        assert repair(self.folder) == []

    @invariant()
    def a_reader_sees_the_last_commit(self):
        assert self.read() == self.committed
        shards = self.writer.snapshot.shards.get("clips", [])
        assert max((shard.rows for shard in shards), default=0) <= 24 and len(shards) <= 12


@pytest.mark.promise("data", "`scalar verify` names damage; `scalar repair` keeps what is intact")
def test_whatever_is_changed_killed_full_or_damaged_a_gallery_holds_its_last_commit():
    options = settings(
        max_examples=36,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],  # making a failure small takes minutes
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    run_state_machine_as_test(Galleries, settings=options)
