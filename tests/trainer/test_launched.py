"""As many processes as were asked for, and one sentence from all of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalar_retrieval.trainer.checkpoints import MANIFEST, last_checkpoint
from scalar_retrieval.trainer.distributed import check_launched
from tests.trainer.test_killed import CONSTANT, RESUME, outcome
from tests.trainer.test_scalar_trainer import free_port

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch"]
TWO = ["--multi_gpu", "--num_processes", "2", "--num_cpu_threads_per_process", "1", "--quiet"]


def launched(options, command, tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
        environment.pop(name, None)
    arguments = [*LAUNCH, *options, *map(str, command)]
    return subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


def test_one_process_where_several_were_asked_for_is_refused(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delenv("ACCELERATE_DYNAMO_BACKEND", raising=False)
    monkeypatch.setenv("MASTER_PORT", "29500")
    check_launched()  # of a cluster, without the launcher
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "NO")
    with pytest.raises(ValueError, match="told to start several processes but started one"):
        check_launched()
    monkeypatch.setenv("WORLD_SIZE", "1")
    check_launched()


@pytest.mark.slow
def test_the_launcher_that_starts_fewer_processes_is_found_out(tiny_run, tmp_path):
    ended = launched(["--num_processes", "3"], tiny_run.command(tmp_path / "out"), tmp_path)
    assert ended.returncode == 1 and "Error: `accelerate launch` was told to start several" in ended.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.distributed
def test_several_processes_tell_an_error_once(tiny_run, tmp_path):
    command = tiny_run.command(tmp_path / "out", "--root", tmp_path / "nowhere")
    ended = launched([*TWO, "--main_process_port", str(free_port())], command, tmp_path)
    assert ended.returncode == 1
    reported = [line for line in ended.stderr.splitlines() if line.startswith(("Error: ", "Interrupted"))]
    assert len(reported) == 1 and "nowhere is not a finished miniature benchmark" in reported[0], ended.stderr


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_resume_as_two_and_not_as_one(commands, tiny_run, tmp_path):
    fields = [*CONSTANT, "--per_device_train_batch_size", "2"]

    def two(folder, *more, steps=5):
        port = ["--main_process_port", str(free_port())]
        ended = launched([*TWO, *port], tiny_run.command(folder, *fields, *more, steps=steps), tmp_path)
        assert ended.returncode == 0, ended.stderr[-3000:]

    two(tmp_path / "unbroken")
    two(tmp_path / "broken", steps=3)
    refused = commands.run(*tiny_run.command(tmp_path / "broken", *fields, *RESUME, steps=5), timeout=60)
    assert refused.code == 1 and "its num_processes was 2, got 1" in refused.stderr
    two(tmp_path / "broken", *RESUME)
    found, expected = outcome(tmp_path / "broken"), outcome(tmp_path / "unbroken")
    assert found[0] == expected[0] and found[2] == expected[2]
    last = last_checkpoint(tmp_path / "broken")
    names = {path.name for path in last.iterdir()}
    assert {"log_1.json", "rng_state_1.pth"} <= names
    assert names == {*json.loads((last / MANIFEST).read_text())["files"], MANIFEST}
