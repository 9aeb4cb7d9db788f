"""Several processes that index together: the gallery of one, and an end for all if one dies."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gallery.gallery import Gallery, GalleryWriter
from tests.media_corpus import cut, media
from tests.trainer.test_scalar_trainer import free_port

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
NUM_CLIPS = 45
LONG = 30  # seconds


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Clips with picture, sound, subtitles or some of them; a long one, broken ones, and one that is not there."""
    folder = tmp_path_factory.mktemp("videos")
    tiny = {"size": (32, 32), "rate": 10}
    for number in range(NUM_CLIPS):
        frames, sound = 1 + number % 7, "aac" if number % 3 else ""
        content = media("mp4", "libx264", sound, frames=frames, seconds=0.1 * frames, **tiny)
        (folder / f"{number:02d}.mp4").write_bytes(content)
        if number % 5 == 0:
            text = f"1\n00:00:00,000 --> 00:00:01,000\na dog {number}\n"
            (folder / f"{number:02d}.srt").write_text(text)
    (folder / "long.mp4").write_bytes(media("mp4", "libx264", "aac", frames=10 * LONG, seconds=LONG, **tiny))
    (folder / "07 broken.mp4").write_bytes(cut(content, 0.4))
    (folder / "13 empty.mp4").write_bytes(b"")
    (folder / "21 gone.mp4").symlink_to(folder / "nowhere.mp4")
    return folder


@pytest.fixture(scope="module")
def index(commands, videos, tiny_model_dir):
    """Starts indexing by one process or by several, without a launcher, which would end all if one dies."""

    def start(output, *options, size=1, batch_size=4):
        options = ("--dtype", "float32", "--batch-size", batch_size, *options)
        arguments = ("-m", "search", "index", videos, "--model", tiny_model_dir, "--output", output, *options)
        if size == 1:
            return commands.start(*arguments)
        shared = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        shared |= {"ACCELERATE_USE_CPU": "true"}
        ranks = [shared | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(size)]
        return [commands.start(*arguments, env={name: str(of[name]) for name in of}) for of in ranks]

    return start


def ended(running, seconds=60):
    return [one.wait(seconds) for one in running]


def assert_same(folder, other):
    """The same clips in the same order, the same vectors, and the same that is known of files."""
    ours, theirs = Gallery.open(folder), Gallery.open(other)
    ours.verify()
    assert ours.clip_ids == theirs.clip_ids and len(ours) > NUM_CLIPS
    assert torch.equal(ours.modality_embeds(), theirs.modality_embeds())
    assert torch.equal(ours.modality_mask, theirs.modality_mask)
    assert ours.files == theirs.files and ours.problems() == theirs.problems()
    stills, others = ({path.name: path.read_bytes() for path in Path(of).glob("stills/*")} for of in (folder, other))
    assert stills == others and len(stills) > 20  # many clips are copies
    for name in ("duration", "seconds"):
        assert ours.clips.column(name).to_pylist() == theirs.clips.column(name).to_pylist()


@pytest.fixture(scope="module", params=[(), ("--segment", "2")], ids=["files", "windows"])
def alone(request, index, tmp_path_factory):
    """What one process makes of it, and the options that it was given."""
    output = tmp_path_factory.mktemp("alone") / "gallery"
    outcome = index(output, *request.param).wait(60)
    assert outcome.code == 0, outcome.stderr
    return output, request.param, outcome


@pytest.mark.promise("data", "Several processes index into the gallery that one makes")
@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_make_the_gallery_of_one_and_tell_it_once(index, alone, tmp_path, size):
    whole, options, outcome = alone
    first, *others = ended(index(tmp_path / "gallery", *options, size=size))
    assert first.code == 0, first.stderr
    reported = first.stdout.replace(str(tmp_path / "gallery"), str(whole))
    assert reported == outcome.stdout and "1 unreadable" not in first.stdout and "3 unreadable" in first.stdout
    assert f"on cpu by {size} processes" in first.stderr and first.stderr.count("clips per second") == 1
    for other in others:
        assert other.code == 0 and other.stdout == "" and "clips per second" not in other.stderr, other.stderr
    assert_same(tmp_path / "gallery", whole)
    again, *_ = ended(index(tmp_path / "gallery", *options, size=size))
    assert again.code == 0 and again.stdout.startswith("0 new, 0 changed, 46 unchanged, 3 unreadable")
    assert_same(tmp_path / "gallery", whole)


@pytest.mark.promise("data", "If one of several processes dies, the others end and the command can be repeated")
@pytest.mark.parametrize("victim", [0, 1])
def test_if_one_dies_the_others_end_and_the_next_run_goes_on(index, alone, tmp_path, victim):
    whole, options, _ = alone
    output, dice = tmp_path / "gallery", random.Random(victim)
    done = 0
    for _ in range(3):
        running = index(output, *options, size=2, batch_size=1)
        stop = time.monotonic() + 60
        while not (output / "gallery.json").is_file() or len(Gallery.open(output)) <= done:
            assert time.monotonic() < stop, running[0].printed("stderr")
            time.sleep(0.005)
        time.sleep(dice.uniform(0, 0.05))
        running[victim].kill()
        outcomes = ended(running)
        assert outcomes[victim].code == -signal.SIGKILL and outcomes[1 - victim].code == 1
        reported = outcomes[1 - victim].stderr
        assert "Traceback" not in reported
        if victim:
            assert "Error: Another process of this run has ended. What was embedded before is saved" in reported
        with GalleryWriter(output):  # what a kill left is cleared away
            pass
        gallery = Gallery.open(output)
        gallery.verify()
        assert len(gallery) > done
        done = len(gallery)
    first, _ = ended(index(output, *options, size=2, batch_size=1))
    assert first.code == 0, first.stderr
    ours, theirs = Gallery.open(output), Gallery.open(whole)
    assert ours.clip_ids == theirs.clip_ids and ours.files == theirs.files
    torch.testing.assert_close(ours.modality_embeds(), theirs.modality_embeds(), atol=1e-6, rtol=0)  # other batches


def test_what_stops_a_run_is_reported_by_the_first_process_alone(index, tmp_path):
    for options in (("--watch",), ("--device", "cuda"), ("--segment", "0.5")):
        outcomes = ended(index(tmp_path / "other", *options, size=2))
        assert {one.code for one in outcomes} <= {1, 2} and "Traceback" not in outcomes[0].stderr
    assert not (tmp_path / "other").exists()


def test_ctrl_c_ends_all_and_a_second_run_is_refused_meanwhile(index, tmp_path):
    running = index(tmp_path / "gallery", size=2, batch_size=1)
    stop = time.monotonic() + 60
    while not (tmp_path / "gallery" / "gallery.json").is_file():
        assert time.monotonic() < stop
        time.sleep(0.005)
    for one in running:
        one.kill(signal.SIGSTOP)
    refused = index(tmp_path / "gallery").wait(60)
    assert refused.code == 1 and "Another process writes to" in refused.stderr
    for one in running:
        one.kill(signal.SIGINT)
        one.kill(signal.SIGCONT)
    first, second = ended(running)
    assert first.code in (1, 130) and second.code in (1, 130)
    assert "Traceback" not in first.stderr + second.stderr
    with GalleryWriter(tmp_path / "gallery"):
        pass
    Gallery.open(tmp_path / "gallery").verify()


@pytest.mark.parametrize("reported", [0, 1])
def test_ctrl_c_ends_a_process_that_waits_for_one_that_does_not_answer(index, tmp_path, reported):
    running = index(tmp_path / "gallery", size=2, batch_size=1)
    stop = time.monotonic() + 60
    while not (tmp_path / "gallery" / "gallery.json").is_file():
        assert time.monotonic() < stop
        time.sleep(0.005)
    running[1 - reported].kill(signal.SIGSTOP)  # as a machine that was cut off
    time.sleep(1)
    running[reported].kill(signal.SIGINT)
    outcome = running[reported].wait(60)
    assert outcome.code == 130 and "Traceback" not in outcome.stderr
    running[1 - reported].kill(signal.SIGKILL)
    assert running[1 - reported].wait(60).code == -signal.SIGKILL
    Gallery.open(tmp_path / "gallery").verify()


def test_the_launcher_ends_all_if_one_dies(videos, tiny_model_dir, tmp_path):
    command = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    command += ["--main_process_port", free_port(), "-m", "search", "index", videos, "--model", tiny_model_dir]
    command += ["--output", tmp_path / "gallery", "--batch-size", "1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    with (tmp_path / "reported").open("w") as reported:
        process = subprocess.Popen(
            [sys.executable, *map(str, command)], cwd=ROOT, env=environment, stdout=reported, stderr=reported,
            start_new_session=True,
        )  # fmt: skip
    try:
        stop = time.monotonic() + 120
        while not (tmp_path / "gallery" / "gallery.json").is_file():
            assert time.monotonic() < stop, (tmp_path / "reported").read_text()
            time.sleep(0.01)
        workers = []
        for entry in os.listdir("/proc"):
            try:
                environ = Path("/proc", entry, "environ").read_bytes().split(b"\0") if entry.isdigit() else []
                parent = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1] if environ else None
            except OSError:
                continue
            if parent == str(process.pid) and b"RANK=1" in environ:
                workers.append(int(entry))
        (worker,) = workers
        os.kill(worker, signal.SIGKILL)
        assert process.wait(60) == 1
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    text = (tmp_path / "reported").read_text()
    assert "another process of it may have died" in text or "Another process of this run has ended" in text, text
    with GalleryWriter(tmp_path / "gallery"):
        pass
    Gallery.open(tmp_path / "gallery").verify()
