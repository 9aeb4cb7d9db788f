"""Every wrong input of the table is answered by one sentence and the exit code 1, and changes nothing."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from evidence.miniature.generation import generate
from tests.conftest import ROOT
from tests.eval.slow import make_embeddings
from tests.modeling_scalar.test_loading import save_adapter
from tests.wrong_inputs import WRONG, fields

pytestmark = pytest.mark.e2e

PEAK = 1.5e9


@pytest.fixture(scope="module")
def valid(tmp_path_factory, tiny_model_dir, tiny_processor, commands) -> Path:
    """A folder with one of everything that a command takes."""
    folder = tmp_path_factory.mktemp("valid")
    shutil.copytree(tiny_model_dir, folder / "model")
    save_adapter(folder / "adapter", folder / "model", tiny_processor)
    fields("adapter/adapter_config.json", base_model_name_or_path="model")(folder)
    generate(folder / "data", num_train=2, num_validation=0, num_test=3, num_proc=1)
    make_embeddings().save(folder / "embeddings")
    for argv in (
        "-m scalar_retrieval.search index data/test --model model --output gallery",
        "-m scalar_retrieval.eval run --embeddings embeddings --output results --rate 0 --label ours",
    ):
        outcome = commands.run(*argv.split(), cwd=folder, timeout=60)
        assert outcome.code == 0, outcome.stderr
    return folder


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def place(valid, tmp_path) -> Path:
    """A copy of the valid inputs, to be spoilt."""
    return shutil.copytree(valid, tmp_path / "place", symlinks=True)


@pytest.mark.promise("errors", "A wrong input gets one sentence and changes nothing")
@pytest.mark.parametrize(("command", "offending", "damages"), WRONG)
def test_a_wrong_input_is_answered_by_one_sentence_and_changes_nothing(command, offending, damages, place, commands):
    for damage in damages:
        damage(place)
    before = digests(place)
    outcome = commands.run(*command, cwd=place, timeout=20)
    lines = outcome.stderr.splitlines()
    assert (outcome.code, "Traceback" in outcome.stderr) == (1, False), outcome.stderr[-3000:]
    assert [line for line in lines if line.startswith("Error: ")] == lines[-1:]
    assert offending in lines[-1], lines[-1]
    assert outcome.peak < PEAK
    after = digests(place)
    assert {name: after.get(name) for name in before} == before
    assert not (place / "EXECUTED").exists()


# Ctrl-C --------------------------------------------------------------------------------------------------------------


def is_running(group: int) -> bool:
    """Whether a process of a group still runs; one that has ended and waits for its parent does not."""
    for process in psutil.process_iter(["status"]):
        with suppress(OSError):
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                return True
    return False


@pytest.mark.promise("errors", "Ctrl-C ends a command without a traceback and leaves nothing running")
@pytest.mark.parametrize(
    "argv",
    [
        "-m scalar_retrieval.search index data/test data/train --model model --output out",
        "-m scalar_retrieval.eval run --model model --benchmark miniature --root data --output out",
        "-m evidence miniature --output out --num-train 90 --num-validation 0 --num-test 90 --num-proc 2",
    ],
)
def test_ctrl_c_ends_a_command_in_a_word_and_leaves_nothing_running(argv, place, commands):
    running = commands.start(*argv.split(), cwd=place)
    time.sleep(0.4)
    running.kill(signal.SIGINT)  # to its children too, as a terminal does
    outcome = running.wait(20)
    assert "Traceback" not in outcome.stderr and "bug in the program" not in outcome.stderr
    # It may have finished; before its first line it is Python that ends.
    assert outcome.code in (0, 130, -signal.SIGINT)
    stop = time.monotonic() + 10
    while is_running(running.pid) and time.monotonic() < stop:
        time.sleep(0.05)
    assert not is_running(running.pid)


def test_ctrl_c_while_libraries_load_is_reported_in_a_word(valid, tmp_path):
    command = [sys.executable, "-m", "scalar_retrieval.search", "index", "data/test", "--output", tmp_path / "out"]
    options = {"cwd": valid, "env": os.environ | {"PYTHONPATH": str(ROOT / "src")}, "text": True}
    with subprocess.Popen(command, stderr=subprocess.PIPE, **options) as process:
        while "torch" not in Path(f"/proc/{process.pid}/maps").read_text():
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "Interrupted." and "Traceback" not in stderr
