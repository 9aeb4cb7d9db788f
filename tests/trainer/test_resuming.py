"""A resumed run is the unbroken run, from each of its checkpoints; a checkpoint of another kind is refused."""

import shutil
from pathlib import Path

import pytest
import torch

from modeling_scalar import ScalarModel
from tests.conftest import make_tiny_config
from tests.trainer.test_scalar_trainer import make_trainer
from trainer.lora import apply_adapters

# A constant rate shows a step too many, a decaying one a wrong count of steps.
SCHEDULES = {
    "constant": {"lr_scheduler_type": "constant", "warmup_steps": 0},
    "linear": {"lr_scheduler_type": "linear", "warmup_steps": 2},
}
EVERY_STEP = {"save_strategy": "steps", "save_steps": 1, "size": 12, "per_device_train_batch_size": 4}
TIMED = {"clips_per_second", "train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos"}


def trainer_of(folder, score=None, **options):
    """Dropout makes the state of random numbers matter."""
    config = make_tiny_config()
    config.text_config.hidden_dropout_prob = 0.2
    torch.manual_seed(0)
    model = apply_adapters(ScalarModel(config), "paper")
    trainer = make_trainer(folder, model=model, **EVERY_STEP | options)
    if score is not None:

        def evaluate(*arguments, **keywords):
            metrics = {"eval_score": score[trainer.state.global_step - 1]}
            trainer.log(metrics)
            return metrics

        trainer.evaluate = evaluate
    return trainer


def history(trainer):
    entries = [{k: v for k, v in entry.items() if k not in TIMED} for entry in trainer.state.log_history]
    return entries


def states(trainer):
    checkpoint = Path(trainer.args.output_dir) / f"checkpoint-{trainer.state.global_step}"
    optimizer = torch.load(checkpoint / "optimizer.pt", weights_only=True)["state"]
    schedule = torch.load(checkpoint / "scheduler.pt", weights_only=True)
    return (checkpoint / "adapter_model.safetensors").read_bytes(), optimizer, schedule


def finish(trainer, checkpoint=None):
    """Train to the end and save; return all that must not depend on where the run was broken."""
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    weights = (Path(trainer.args.output_dir) / "adapter_model.safetensors").read_bytes()
    return weights, trainer.state.global_step, history(trainer), states(trainer) if trainer.args.save_steps else None


RUNS = {
    "steps in the middle of an epoch": {"max_steps": 5, "logging_steps": 2},
    "steps at the end of an epoch": {"max_steps": 6, "logging_steps": 4},
    "one and a half epochs": {"max_steps": -1, "num_train_epochs": 1.5, "logging_steps": 2},
    "logged by epochs": {"max_steps": 5, "logging_strategy": "epoch"},
    "accumulated": {"max_steps": 5, "gradient_accumulation_steps": 2, "logging_steps": 2},
    "in parts": {"max_steps": 4, "mini_batch_size": 3, "logging_steps": 3},
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
        "metric_for_best_model": "score",
        "eval_dataset": [0],
        "logging_steps": 2,
    },
    "evaluated by epochs": {"max_steps": 4, "score": [1, 3, 2, 0], "eval_strategy": "epoch", "eval_dataset": [0]},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_resumed_from_any_of_its_checkpoints_is_the_unbroken_run(tmp_path, name):
    schedule = SCHEDULES["constant" if len(name) % 2 else "linear"]
    options = RUNS[name] | schedule
    expected = finish(trainer_of(tmp_path / "run", **options))
    checkpoints = sorted((tmp_path / "run").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    assert len(checkpoints) == expected[1] > 2 and any("loss" in entry for entry in expected[2])
    for checkpoint in reversed(checkpoints):
        for later in (tmp_path / "run").glob("checkpoint-*"):
            if int(later.name[11:]) > int(checkpoint.name[11:]):
                shutil.rmtree(later)
        again = finish(trainer_of(tmp_path / "run", **options), str(checkpoint))
        assert again[1] == expected[1]
        last = expected[2][-1] | {"train_loss": pytest.approx(expected[2][-1].get("train_loss"))}
        assert again[2] == [*expected[2][:-1], last], checkpoint.name
        assert again[0] == expected[0] and again[3][0] == expected[3][0] and again[3][2] == expected[3][2]
        torch.testing.assert_close(again[3][1], expected[3][1], rtol=0, atol=0)
