"""Two writers, two readers and random kills on one gallery: nothing that was committed is lost, no reader fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

# Children are forked, so that libraries load once. Both writers tell through one pipe, which keeps the order, what
# they are about to commit, on top of which commit, and when it has happened: "+3" puts the clips of seed 3, "=1:2"
# replaces some of those of seed 1 by version 2, "-1" removes them.
PROGRAM = """
import os, random, select, signal, sys, time
from pathlib import Path

import torch
import scalar_retrieval.gallery.store.writing
from scalar_retrieval.gallery.store.columns import clip_table
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter, MediaFile, verify_gallery
from scalar_retrieval.gallery.repair import repair
from scalar_retrieval.gallery.store.storage import read_manifest
from tests.gallery.conftest import MADE_BY, make_clips, make_queries
from scalar_retrieval.modeling_scalar import MODALITIES

folder, seconds = sys.argv[1], float(sys.argv[2])
scalar_retrieval.gallery.store.writing.SHARD_ROWS = 256
PUT, CHANGED = 4, 2  # clips of a batch, and how many of an earlier one are put again with it
clip_table(*make_clips(8), MODALITIES)


def vectors(seed, version):
    names, _, mask = make_clips(PUT, seed=seed)
    return names, make_clips(PUT, seed=seed + 1_000_000 * version)[1], mask


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


def put(writer, seed, version=0, rows=slice(None)):
    names, embeds, mask = vectors(seed, version)
    writer.put_clips(names[rows], embeds[rows], mask[rows])
    writer.put_files([MediaFile(name, version, 1, "a" * 64) for name in names[rows]])


def write(reported, dice):
    while True:
        try:
            writer = GalleryWriter(folder, "float32")
        except ValueError as error:
            assert "Another process writes to" in str(error), error
            os.write(reported, b"refused\\n")
            time.sleep(0.05)
            continue
        with writer:
            opened = writer.gallery()
            versions = {int(name.split("/")[2].split("-")[0]): 0 for name in opened.clip_ids}
            versions |= {seed: opened.files[f"/clips/{seed}-0.mp4"].size for seed in versions}
            for _ in range(dice.randint(3, 40)):
                seed = max(versions) + 1
                changes, finish = [f"+{seed}"], writer.commit
                put(writer, seed)
                versions[seed] = 0
                if seed % 5 == 4:
                    old = dice.choice(sorted(versions)[:-1])
                    versions[old] += 1
                    put(writer, old, versions[old], slice(CHANGED))
                    changes.append(f"={old}:{versions[old]}")
                elif seed % 7 == 6 and len(versions) > 20:
                    gone = dice.choice(sorted(versions)[: len(versions) // 2])
                    del versions[gone]
                    writer.remove_clips(f"/clips/{gone}-{row}.mp4" for row in range(PUT))
                    changes.append(f"-{gone}")
                elif seed % 50 == 17:
                    finish = writer.compact
                os.write(reported, f"begins {writer.snapshot.manifest['commit']} {' '.join(changes)}\\n".encode())
                finish()
                os.write(reported, b"ends\\n")
        time.sleep(0.02)


def read(dice, stop):
    queries, newest = make_queries(2), -1
    count = 0
    while not os.path.exists(stop):
        opened = Gallery.open(folder)
        rows = {}
        for name in opened.clip_ids:
            seed, row = name.split("/")[2].removesuffix(".mp4").split("-")
            rows.setdefault(int(seed), []).append(int(row))
        assert all(sorted(found) == list(range(PUT)) for found in rows.values()), rows
        assert set(opened.files) == set(opened.clip_ids)
        assert max(rows) >= newest, (max(rows), newest)
        newest = max(rows)
        assert all(len(hits) == min(5, len(opened)) for hits in opened.search(queries, k=5))
        if dice.random() < 0.3:
            verify_gallery(folder)
        elif dice.random() < 0.3:  # of a gallery that was opened earlier
            time.sleep(dice.random() * 0.1)
            opened.check()
        count += 1
    print(f"reader: {count}", flush=True)


class Told:
    \"\"\"What writers have committed: the version of each seed.\"\"\"

    def __init__(self):
        self.versions, self.pending, self.refused, self.commits, self.buffer = {}, None, 0, 0, b""

    def take(self, raw):
        *lines, self.buffer = (self.buffer + raw).split(b"\\n")
        for kind, *rest in (line.decode().split() for line in lines):
            if kind == "refused":
                self.refused += 1
            elif kind == "ends":
                self.apply()
            else:
                self.settle(int(rest[0]))
                self.pending = int(rest[0]), rest[1:]

    def settle(self, commit):
        \"\"\"One who was killed did not tell the end of a commit: the number of the last one tells it.\"\"\"
        if self.pending is not None:
            assert commit - self.pending[0] in (0, 1), (commit, self.pending)
            if commit > self.pending[0]:
                self.apply()
            self.pending = None

    def apply(self):
        for change in self.pending[1]:
            if change[0] == "-":
                del self.versions[int(change[1:])]
            else:
                seed, _, version = change[1:].partition(":")
                self.versions[int(seed)] = int(version or 0)
        self.pending, self.commits = None, self.commits + 1


def check(reported):
    opened = Gallery.open(folder)
    with GalleryWriter(folder):  # what a kill left is cleared away
        pass
    opened.verify()
    expected = {}
    for seed, version in reported.versions.items():
        names, embeds, _ = vectors(seed, 0)
        if version:
            embeds[:CHANGED] = vectors(seed, version)[1][:CHANGED]
        expected |= dict(zip(names, embeds, strict=True))
    assert set(opened.clip_ids) == set(expected), set(opened.clip_ids) ^ set(expected)
    assert torch.equal(opened.modality_embeds(), torch.stack([expected[name] for name in opened.clip_ids]))
    assert set(opened.files) == set(expected)


def main():
    dice, reported, stop = random.Random(0), Told(), f"{folder}.stop"
    with GalleryWriter(folder, "float32") as writer:
        writer.metadata = MADE_BY
        put(writer, 0)
        writer.commit()
    reported.versions[0] = 0
    readers = [fork(read, random.Random(seed), stop) for seed in (1, 2)]
    pipe, tell = os.pipe()
    writers = [fork(write, tell, random.Random(10 + place)) for place in range(2)]
    until, kills, next_kill = time.monotonic() + seconds, 0, time.monotonic() + 0.5
    while time.monotonic() < until:
        if select.select([pipe], [], [], 0.02)[0]:
            reported.take(os.read(pipe, 1_000_000))
        if time.monotonic() < next_kill:
            continue
        next_kill = time.monotonic() + dice.uniform(0.02, 0.5)
        for place in dice.choice([(0,), (1,), (0, 1)]):
            os.kill(writers[place], signal.SIGKILL)
            assert os.WTERMSIG(os.waitpid(writers[place], 0)[1]) == signal.SIGKILL, "a writer has failed"
            kills += 1
            writers[place] = fork(write, tell, random.Random(100 + kills))
    for child in writers:
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL, "a writer has failed"
    os.close(tell)
    while raw := os.read(pipe, 1_000_000):
        reported.take(raw)
    reported.settle(read_manifest(Path(folder))[0]["commit"])
    open(stop, "w").close()
    assert all(os.waitpid(child, 0)[1] == 0 for child in readers)
    check(reported)
    assert repair(folder) == []
    print(f"{kills} kills, {reported.commits} commits, {reported.refused} refusals")


main()
"""


@pytest.mark.promise("data", "Two writers and random kills lose no committed clip and disturb no reader")
@pytest.mark.slow
def test_two_writers_two_readers_and_random_kills_lose_nothing_and_disturb_no_reader(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "gallery"), str(SECONDS)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=SECONDS + 120,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    reported = done.stdout.split()
    numbers = {name.strip(","): int(number) for number, name in zip(reported[-6::2], reported[-5::2], strict=True)}
    assert min(numbers[name] for name in ("kills", "commits", "refusals")) >= SECONDS // 4, done.stdout
    assert done.stdout.count("reader: ") == 2
    print(done.stdout)
