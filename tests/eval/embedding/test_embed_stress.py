"""Two runs of `eval embed` started at once, random kills and a reader: the same bytes, never half of them."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from evidence.miniature.generation import generate

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true",
}  # fmt: skip
NUM_CLIPS = 21

# Children are forked, so that libraries load once.
PROGRAM = """
import os, random, signal, sys, threading, time
from pathlib import Path

from tqdm import tqdm

import evidence.miniature
from eval.embedding.embed_benchmark import embed_benchmark
from gallery.gallery import Gallery, verify_gallery

folder, model, data, seconds, num_clips = Path(sys.argv[1]), *sys.argv[2:4], float(sys.argv[4]), int(sys.argv[5])


def fork(function, *arguments):
    child = os.fork()
    if child:
        return child
    tqdm.set_lock(threading.RLock())  # its own is shared by all processes, and may be held by one that was killed
    try:
        function(*arguments)
    except BaseException as error:
        print(f"{function.__name__}: {error!r}", flush=True)
        os._exit(1)
    os._exit(0)


def embed(output):
    while True:
        try:
            embed_benchmark(output, model, "miniature", data, batch_size=2, dtype="float32", progress=False)
            return
        except ValueError as error:
            assert "Another process writes to" in str(error), error
            print("refused", flush=True)
            time.sleep(0.05)


def read(output, stop):
    count = 0
    while not os.path.exists(stop):
        try:
            gallery = Gallery.open(output)
        except FileNotFoundError:
            time.sleep(0.005)
            continue
        if "unfinished" not in gallery.metadata:
            assert len(gallery) == num_clips and len(gallery.queries) == num_clips
            count += 1
        gallery.check()
        time.sleep(0.01)
    assert count
    print("read", flush=True)


def rows(output):
    return [file.read_bytes() for name in ("clips", "queries") for file in sorted((output / name).glob("*.arrow"))]


whole = fork(embed, folder / "whole")
assert os.waitpid(whole, 0)[1] == 0
begun, kills, rounds, dice = time.monotonic(), 0, 0, random.Random(0)
while time.monotonic() - begun < seconds or not rounds:
    output, stop = folder / str(rounds), folder / f"{rounds}.stop"
    reader = fork(read, output, stop)
    runs = {place: fork(embed, output) for place in range(2)}
    killed, next_kill = 0, time.monotonic() + 0.5
    while runs:
        time.sleep(0.02)
        for place, child in list(runs.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                assert status == 0, status
                del runs[place]
        if runs and killed < 5 and time.monotonic() > next_kill:
            killed, next_kill = killed + 1, time.monotonic() + dice.uniform(0.05, 1.5)
            place = dice.choice(sorted(runs))
            os.kill(runs[place], signal.SIGKILL)
            if os.WIFSIGNALED(os.waitpid(runs[place], 0)[1]):
                kills += 1
            runs[place] = fork(embed, output)
    time.sleep(0.1)
    stop.touch()
    assert os.waitpid(reader, 0)[1] == 0
    verify_gallery(output)
    assert rows(output) == rows(folder / "whole") and len(rows(output)) == 2
    rounds += 1
print(f"{kills} kills, {rounds} rounds", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [3, 60])
def test_two_runs_and_random_kills_give_the_bytes_of_an_unbroken_run(tiny_model_dir, tmp_path, seconds):
    data = generate(tmp_path / "data", num_train=1, num_validation=0, num_test=NUM_CLIPS, num_proc=1)
    (tmp_path / "out").mkdir()
    arguments = [tmp_path / "out", tiny_model_dir, data, seconds, NUM_CLIPS]
    printed = tmp_path / "printed"
    with printed.open("w") as file:  # a pipe would be open as long as any child of it lives
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(str, arguments)],
            cwd=ROOT, env=ENVIRONMENT, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(seconds + 240)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    lines = printed.read_text().splitlines()
    assert code == 0, "\n".join(lines[-60:])
    kills, rounds = (int(part.split()[0]) for part in lines[-1].split(", "))
    assert kills >= 2 and rounds >= 1 and lines.count("read") == rounds
    assert "refused" in lines or rounds == 1  # that two meet takes chance
    print(lines[-1])
