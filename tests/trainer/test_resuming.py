"""A resumed run is the unbroken run, from each of its checkpoints; a checkpoint of another kind is refused."""

import inspect
import os
import re
import shutil
import signal
from pathlib import Path
from pickle import UnpicklingError

import pytest
import torch
from transformers import Trainer

from scalar_retrieval.modeling_scalar import ScalarModel
from scalar_retrieval.trainer.callbacks import StopOnInterrupt
from scalar_retrieval.trainer.lora import apply_adapters
from scalar_retrieval.trainer.resuming import ResumableTrainer
from scalar_retrieval.trainer.scalar_trainer import ScalarTrainer
from tests.conftest import make_tiny_config
from tests.trainer.test_checkpoints import list_again
from tests.trainer.test_scalar_trainer import EVAL_ROWS, make_trainer, untimed

pytestmark = pytest.mark.e2e

# A constant rate shows a step too many, a decaying one a wrong count of steps.
SCHEDULES = {
    "constant": {"lr_scheduler_type": "constant", "warmup_steps": 0},
    "linear": {"lr_scheduler_type": "linear", "warmup_steps": 2},
}
EVERY_STEP = {"save_strategy": "steps", "save_steps": 1, "size": 12, "per_device_train_batch_size": 4}


def trainer_of(folder, score=None, **options):
    """Dropout makes the state of random numbers matter."""
    config = make_tiny_config()
    config.text_config.hidden_dropout_prob = 0.2
    torch.manual_seed(0)
    model = apply_adapters(ScalarModel(config), "paper")
    trainer = make_trainer(folder, model=model, **EVERY_STEP | options)
    if score is not None:

        def evaluate(*arguments, **keywords):
            metrics = {"eval_mean_recall_at_1": score[trainer.state.global_step - 1]}
            trainer.log(metrics)
            return metrics

        trainer.evaluate = evaluate
    return trainer


def finish(trainer, checkpoint=None):
    """Train to the end and save; return all that must not depend on where the run was broken."""
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    folder = Path(trainer.args.output_dir)
    last = folder / f"checkpoint-{trainer.state.global_step}"
    weights = [(place / "adapter_model.safetensors").read_bytes() for place in (folder, last)]
    states = [torch.load(last / name, weights_only=True) for name in ("optimizer.pt", "scheduler.pt")]
    return weights, trainer.state.global_step, untimed(trainer.state.log_history), states[0]["state"], states[1]


RUNS = {
    "steps in the middle of an epoch": {"max_steps": 5, "logging_steps": 2},
    "one and a half epochs": {"max_steps": -1, "num_train_epochs": 1.5, "logging_steps": 4},
    "logged by epochs, at two rates": {"max_steps": 5, "logging_strategy": "epoch", "lora_learning_rate": 1e-4},
    "in parts and accumulated": {
        "max_steps": 3,
        "mini_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "logging_steps": 3,
    },
    "the best of all": {
        "max_steps": 5,
        "score": [1, 3, 2, 0, 1],
        "eval_strategy": "steps",
        "eval_steps": 1,
        "load_best_model_at_end": True,
        "eval_dataset": EVAL_ROWS,
        "logging_steps": 2,
    },
}


# What the others would find too is left to the slow ones.
QUICK = ("logged by epochs, at two rates", "the best of all")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in RUNS]
)
def test_a_run_resumed_from_any_of_its_checkpoints_is_the_unbroken_run(tmp_path, name):
    options = RUNS[name] | SCHEDULES["constant" if len(name) % 2 else "linear"]
    weights, steps, logged, *last = finish(trainer_of(tmp_path / "run", **options))
    assert steps > 2 and any("loss" in entry for entry in logged)
    logged[-1] |= {"train_loss": pytest.approx(logged[-1]["train_loss"])}
    resumed = range(steps, 0, -1)
    if name in QUICK:  # the last one, and one in an epoch
        resumed = (steps, 2)
    for step in resumed:
        for later in range(step + 1, steps + 1):
            shutil.rmtree(tmp_path / "run" / f"checkpoint-{later}")
        again = finish(trainer_of(tmp_path / "run", **options), str(tmp_path / "run" / f"checkpoint-{step}"))
        assert again[:3] == (weights, steps, logged), step
        torch.testing.assert_close(again[3:], tuple(last), rtol=0, atol=0)


@pytest.fixture(scope="module")
def of_three_steps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("three") / "run"
    trainer_of(folder, max_steps=3, save_steps=2).train()
    return folder


@pytest.fixture
def checkpoint(of_three_steps, tmp_path):
    """Of the second of three steps."""
    return shutil.copytree(of_three_steps / "checkpoint-2", tmp_path / "run" / "checkpoint-2")


def test_a_checkpoint_of_another_run_is_refused(checkpoint, tmp_path, unless_fast):
    for name, changes in {"seed": {"seed": 1}, "num_examples": {"size": 16}}.items():
        with pytest.raises(ValueError, match=f"checkpoint-2 belongs to another run: its {name} was"):
            trainer_of(tmp_path / "run", **{"max_steps": 3} | changes).train(str(checkpoint))
    other = trainer_of(tmp_path / "run", max_steps=3)
    with torch.no_grad():
        next(p for p in other.model.parameters() if not p.requires_grad).add_(1)
    with pytest.raises(ValueError, match="its frozen weights was"):
        other.train(str(checkpoint))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoint-2"]


class Harm:
    """What a pickle can do to who loads it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.promise("code", "A forged checkpoint runs no code")
def test_a_forged_checkpoint_runs_no_code(checkpoint, tmp_path):
    for file in ("rng_state.pth", "scheduler.pt", "optimizer.pt"):  # each is read before those that come before it
        torch.save(Harm(str(tmp_path / "harmed")), checkpoint / file)
        list_again(checkpoint)
        with pytest.raises(UnpicklingError):
            trainer_of(tmp_path / "run", max_steps=3).train(str(checkpoint))
    assert not (tmp_path / "harmed").exists()


def test_no_private_method_of_the_trainer_is_overridden_or_called():
    private = {name for name in vars(Trainer) if name.startswith("_") and not name.startswith("__")}
    assert "_save_checkpoint" in private
    for ours in (ScalarTrainer, ResumableTrainer):
        called = set(re.findall(r"(?:self|super\(\))\.(_\w+)\(", inspect.getsource(ours)))
        assert not private & {*vars(ours), *called}


def test_a_second_signal_ends_the_run_at_once_but_not_the_same_one_twice(monkeypatch):
    now = [10.0]
    monkeypatch.setattr("scalar_retrieval.trainer.callbacks.time.monotonic", lambda: now[0])
    interrupt = StopOnInterrupt()
    interrupt._interrupt(signal.SIGINT, None)
    now[0] += 0.2  # the launcher passes on what came from the terminal
    interrupt._interrupt(signal.SIGINT, None)
    assert interrupt.interrupted
    now[0] += 1
    with pytest.raises(KeyboardInterrupt):
        interrupt._interrupt(signal.SIGTERM, None)
