"""The whole line by its own commands, on a handful of clips: generate, train, interrupt, resume, adapt, evaluate,
index, query."""

import json
import signal
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parent.parent
LAUNCH = ["-m", "accelerate.commands.launch", "--num_processes", "1", "--num_cpu_threads_per_process", "1"]


@pytest.fixture(scope="module")
def command(commands):
    """Run a command as `python` does, which must end well."""

    def run(*arguments):
        outcome = commands.run(*arguments, cwd=ROOT, timeout=120)
        assert outcome.code == 0, outcome.stdout[-1500:] + outcome.stderr[-6000:]
        return outcome

    return run


@pytest.fixture(scope="module")
def line(command, tmp_path_factory):
    """A miniature set of a few clips, a backbone and an adapter, each made by its command."""
    folder = tmp_path_factory.mktemp("line")
    counts = ("--num-train", 24, "--num-validation", 0, "--num-test", 12)
    command("-m", "evidence", "miniature", "--output", folder / "data", *counts)
    common = ("--root", folder / "data", "--per_device_train_batch_size", "8", "--use_cpu", "true")
    backbone = ("train.py", "recipes/miniature_backbone.yaml", *common, "--max_steps", "4")
    command("-m", "evidence", "backbone", "--root", folder / "data", "--output", folder / "new")
    command(*backbone, "--model", folder / "new", "--output_dir", folder / "backbone")
    benchmark = ("--plugin", "evidence.miniature", "--benchmark", "miniature")
    targets = ("--output", folder / "targets.safetensors", "--encoder", "light")
    command("-m", "scalar_retrieval.trainer.semantic_targets", *benchmark, "--root", folder / "data", *targets)
    adapter = ("train.py", "recipes/miniature.yaml", *common, "--model", folder / "backbone")
    adapter += ("--semantic_targets", folder / "targets.safetensors", "--loss_warmup_steps", "2")
    adapter += ("--save_strategy", "steps")
    command(*adapter, "--output_dir", folder / "adapter", "--max_steps", "4")
    return folder, adapter


def test_ctrl_c_leaves_a_checkpoint_to_resume_from(line, command, commands):
    """As in a terminal: the signal reaches the launcher and the training process."""
    folder, adapter = line
    arguments = [*LAUNCH, *adapter, "--output_dir", folder / "stopped", "--max_steps", "5000", "--save_steps", "5000"]
    arguments += ["--logging_steps", "1", "--disable_tqdm", "true"]
    running = commands.start(*arguments, cwd=ROOT, env={"PYTHONUNBUFFERED": "1"})

    def wait_for(text):
        stop = time.monotonic() + 120
        while text not in running.printed() + running.printed("stderr"):
            assert time.monotonic() < stop, running.printed("stderr")[-2000:]
            time.sleep(0.02)

    wait_for("loss_align")
    running.kill(signal.SIGINT)
    wait_for("Continue with `--resume_from_checkpoint last`")  # of the training process, which the launcher may leave
    running.wait(120)
    (checkpoint,) = (folder / "stopped").glob("checkpoint-*")
    step = int(checkpoint.name.removeprefix("checkpoint-"))
    last = ("--resume_from_checkpoint", "last", "--max_steps", step + 1)
    command(*adapter, "--output_dir", folder / "stopped", *last)
    assert (folder / "stopped" / "adapter_model.safetensors").is_file()


def test_evaluation_writes_one_json_with_everything(line, command):
    folder, _ = line
    run = command(
        "-m", "scalar_retrieval.eval", "run", "--model", folder / "adapter", "--plugin", "evidence.miniature",
        "--benchmark", "miniature", "--root", folder / "data", "--output", folder / "results",
    )  # fmt: skip
    results = json.loads((folder / "results" / "results.json").read_text())
    for entry in results["retrieval"]["rates"]:
        assert {"scalar", "uniform", "video", "audio", "subtitle", "gram"} < set(entry["methods"])
    assert len(results["gallery"]["ids"]) == 12 and results["embedded"]["training"]["seed"] == 50
    assert results["versions"]["torch"] and "commit" in results["source"]
    # Its cross-encoder reads subtitles, of which an absent one has no number of tokens to be zeros.
    assert [entry["policy"] for entry in results["two_stage"]] == ["absent"] * 5
    table = (folder / "results" / "report" / "tables.md").read_text()
    assert "## Second stage" in table and table.splitlines()[0] in run.stdout
