"""Trainings that are killed, wherever they are, end as those that are not; Ctrl-C loses nothing."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from scalar_retrieval.trainer.checkpoints import MANIFEST, RECIPE, last_checkpoint
from tests.trainer.test_checkpoints import is_complete
from tests.trainer.test_scalar_trainer import untimed

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
CONSTANT = ["--lr_scheduler_type", "constant", "--warmup_steps", "0", "--learning_rate", "1e-3"]
DECAYING = ["--lr_scheduler_type", "cosine", "--warmup_steps", "2", "--learning_rate", "1e-3"]
WORKERS = ["--dataloader_num_workers", "2", "--dataloader_pin_memory", "false"]
FILES = ["--features", "null"]  # not from stored ones
RESUME = ["--resume_from_checkpoint", "last"]


def outcome(folder):
    """All that a run leaves but its times and the names of folders."""
    checkpoint = last_checkpoint(folder)
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    adapters = [(path / "adapter_model.safetensors").read_bytes() for path in (folder, checkpoint)]
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if ".log" not in path.name)
    tensors = {path.name: path.read_bytes() for path in checkpoint.glob("*.pt*")}
    return adapters, tensors, untimed(state["log_history"]), files


def start(commands, line, folder, *fields):
    again = RESUME if last_checkpoint(folder) is not None or (folder / RECIPE).exists() else []
    return commands.start(*line.command(folder, *fields, *again))


def wait_until(condition, running, seconds=60):
    stop = time.monotonic() + seconds
    while not condition() and time.monotonic() < stop and alive(running):
        time.sleep(0.002)


def alive(running):
    try:
        os.killpg(running.pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def unfinished(folder):
    """The checkpoints that are being written or removed."""
    return {path for path in folder.glob("checkpoint-*") if not (path / MANIFEST).exists()}


MOMENTS = {
    "a checkpoint is being written": unfinished,
    "an old one is being removed": lambda folder: (folder / "checkpoint-6" / MANIFEST).exists(),
    "the last one is there": lambda folder: (folder / "checkpoint-7" / MANIFEST).exists(),
    "the model is being saved": lambda folder: (folder / ".model.unfinished").exists(),
    "the model is there": lambda folder: (folder / "training.json").exists(),
}


def killed_often(commands, line, folder, fields, kills, seed):
    """Kill a run, and what resumes it, so often; yield each time it has reached its end nevertheless."""
    draw = random.Random(seed)
    for number in range(kills):
        running = start(commands, line, folder, *fields)
        moment = [*MOMENTS, None, None, None][number % (len(MOMENTS) + 3)]
        if moment is None:
            time.sleep(draw.uniform(0, 3))
        else:
            wait_until(lambda moment=moment: MOMENTS[moment](folder), running)
            time.sleep(draw.choice((0, 0, draw.uniform(0, 0.2))))
        running.kill()
        ended = running.wait()
        assert ended.code in (-signal.SIGKILL, 0), ended.stderr
        if ended.code == 0:
            yield
            shutil.rmtree(folder)
    last = start(commands, line, folder, *fields).wait(60)
    assert last.code == 0, last.stderr
    yield


@pytest.mark.promise("data", "Training that is killed and resumed writes the same bytes")
@pytest.mark.parametrize(
    ("kills", "fields"),
    [
        pytest.param(4, CONSTANT, id="constant"),
        pytest.param(50, DECAYING, id="decaying-fifty", marks=pytest.mark.slow),
        pytest.param(1, [*CONSTANT, *WORKERS, *FILES], id="from-files"),
    ],
)
def test_a_run_that_is_killed_wherever_it_is_ends_as_the_unbroken_run(commands, tiny_run, tmp_path, kills, fields):
    unbroken = commands.run(*tiny_run.command(tmp_path / "unbroken", *fields), timeout=60)
    assert unbroken.code == 0, unbroken.stderr
    expected = outcome(tmp_path / "unbroken")
    assert len(expected[2]) >= 2 and expected[0][0] == expected[0][1]
    folder = tmp_path / "killed"
    for _ in killed_often(commands, tiny_run, folder, fields, kills, seed=kills):
        assert outcome(folder) == expected
    trained = load_file(folder / "adapter_model.safetensors")
    assert max(float(value.abs().max()) for name, value in trained.items() if "lora_B" in name) > 1e-4


@pytest.mark.promise("errors", "Ctrl-C ends training with code 130 and no traceback")
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_ends_a_run_with_130_and_without_a_traceback(commands, tiny_run, tmp_path, number):
    """The whole group gets it, as from a terminal: data workers too. What it leaves ends as an unbroken run."""
    folder = tmp_path / "run"
    running = commands.start(*tiny_run.command(folder, *CONSTANT, *WORKERS, steps=300))
    wait_until(lambda: (folder / "checkpoint-2" / MANIFEST).exists(), running)
    running.kill(number)
    ended = running.wait(60)
    assert ended.code == 130, ended.stderr
    assert "Traceback" not in ended.stderr and "Interrupted." in ended.stderr and not (folder / RECIPE).exists()
    assert "Continue with `--resume_from_checkpoint last`" in ended.stderr and not unfinished(folder)
    step = json.loads((last_checkpoint(folder) / "trainer_state.json").read_text())["global_step"]
    for place, fields in ((folder, RESUME), (tmp_path / "unbroken", [])):
        fields = [*CONSTANT, *WORKERS, *fields]
        ended = commands.run(*tiny_run.command(place, *fields, steps=step + 1), timeout=60)
        assert ended.code == 0, ended.stderr
    assert outcome(folder)[:3] == outcome(tmp_path / "unbroken")[:3]


def workers_of(running):
    """The processes that a training has forked, oldest first."""
    path = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


@pytest.mark.slow
def test_a_data_worker_that_the_system_ends_is_reported_in_one_sentence(commands, tiny_run, tmp_path):
    """As for want of memory, at any moment; what was saved is whole. One that has done its work is not missed."""
    for number in range(16):
        folder = tmp_path / f"run-{number}"
        running = commands.start(*tiny_run.command(folder, *CONSTANT, *WORKERS, steps=21))
        wait_until((folder / "checkpoint-2" / MANIFEST).exists, running)
        wait_until(lambda running=running: not workers_of(running), running)  # as between two epochs
        wait_until(lambda running=running: workers_of(running), running)
        time.sleep(0.01 * (number % 4))
        for worker in workers_of(running)[-1:]:
            os.kill(worker, signal.SIGKILL)
        ended = running.wait(60)
        assert is_complete(last_checkpoint(folder)) and not unfinished(folder)
        if ended.code:
            break
    assert ended.code == 1 and "Traceback" not in ended.stderr, ended.stderr
    assert "A data worker was killed" in ended.stderr.splitlines()[-1], ended.stderr
