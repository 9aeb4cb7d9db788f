"""Trainings as a user starts them: every recipe, what stops one, and that nothing is lost when one is stopped."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from evidence.miniature.generation import generate
from scalar_retrieval.eval.benchmarks.registry import load_benchmark
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.trainer.checkpoints import last_checkpoint
from scalar_retrieval.trainer.recipe import parse_arguments
from scalar_retrieval.trainer.run import train
from scalar_retrieval.trainer.semantic_targets import make_semantic_targets
from tests.trainer.test_scalar_trainer import run_together

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parent.parent
_OTHERS = ("miniature", "joint")  # which go over the others, or start from an encoder of their own
RECIPES = sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml") if not path.stem.startswith(_OTHERS))


def make_line(folder):
    """Write a miniature set of a few clips, a backbone, and semantic targets."""
    generate(folder / "data", num_train=24, num_validation=0, num_test=6, num_proc=1)
    rows = load_benchmark("miniature", folder / "data", "train")
    make_semantic_targets(rows, folder / "targets.safetensors", "light", num_neighbors=4)
    shutil.copytree(ROOT / "recipes" / "miniature_backbone", folder / "backbone")
    return folder


@pytest.fixture(scope="module")
def line(tmp_path_factory, unless_fast):
    return make_line(tmp_path_factory.mktemp("training"))


def run(*arguments):
    """Train with recipes and the flags after them, which win over those that all runs share."""
    os.chdir(ROOT)
    words = list(map(str, arguments))
    number = sum(word.endswith(".yaml") for word in words)
    fixed = ["--use_cpu", "true", "--per_device_train_batch_size", "8", "--dataloader_num_workers", "0"]
    fixed += ["--report_to", "none", "--disable_tqdm", "true"]
    return train(*parse_arguments([*words[:number], *fixed, *words[number:]]))


def overlay(folder):
    targets = ["--semantic_targets", folder / "targets.safetensors"]
    return [ROOT / "recipes" / "miniature.yaml", "--root", folder / "data", "--model", folder / "backbone", *targets]


def log_of(folder):
    return json.loads((last_checkpoint(folder) / "trainer_state.json").read_text())["log_history"]


SCALAR_LOSSES = {"align", "mask", "sem", "unif", "dam"}
LOSSES = {
    "ablation_cross_arity": SCALAR_LOSSES - {"mask"},
    "ablation_semantic": SCALAR_LOSSES - {"sem"},
    "ablation_uniformity": SCALAR_LOSSES - {"unif"},
    "pmrl": {"pmrl", "dam"},
} | dict.fromkeys(("gram", "hypergram", "triangle"), {"align", "dam"})
SCORES = {"scalar_uniform": "uniform"} | {name: name for name in ("gram", "hypergram", "pmrl", "triangle")}


# Of those that differ from another by a weight, a score or by which towers have LoRA, losses have tests of their own.
_ALIKE = ("ablation_cross_arity", "ablation_masked_views", "ablation_semantic", "ablation_uniformity", "all_towers")
_ALIKE += ("hypergram", "scalar_uniform", "triangle")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in _ALIKE else ()) for name in RECIPES]
)
def test_every_recipe_trains_and_saves(line, tmp_path, name):
    schedule = ["--max_steps", "4", "--loss_warmup_steps", "2", "--logging_steps", "2", "--save_steps", "4"]
    options = [*overlay(line), *schedule, "--output_dir", tmp_path, "--save_strategy", "steps"]
    assert run(ROOT / "recipes" / f"{name}.yaml", *options)
    entry = [entry for entry in log_of(tmp_path) if "loss" in entry][-1]
    losses = LOSSES.get(name, SCALAR_LOSSES)
    assert {key.removeprefix("loss_") for key in entry if key.startswith("loss_")} == losses
    assert (entry["p_full"] < 1) == (losses & {"mask", "sem", "unif"} != set() and name != "ablation_masked_views")
    model, _ = load_model(tmp_path)
    assert model.config.aggregation == SCORES.get(name, "scalar")
    base, _ = load_model(line / "backbone")
    before, after = base.text_projection.weight, model.text_projection.weight
    assert (before - after).abs().max() > 1e-3  # trained, saved and loaded
    assert json.loads((tmp_path / "recipe.json").read_text())["max_steps"] == 4

    # What the run says it trained is what it saved.
    record = json.loads((tmp_path / "training.json").read_text())
    number = sum(record["trainable_parameters"].values())
    saved = [*model.parameters()]
    if (tmp_path / "adapter_model.safetensors").exists():
        saved = load_file(tmp_path / "adapter_model.safetensors").values()
    else:
        number += sum(record["frozen_parameters"].values())
    assert number == sum(value.numel() for value in saved)
    told = {"global_step": 4, "batch_size": 8, "num_examples": 24, "resumed": False, "precision": "float32"}
    assert told.items() <= record.items() and record["versions"]["torch"] == torch.__version__


def test_a_full_disk_loses_no_checkpoint(line, tmp_path, commands):
    """A limit on the size of files stands for the disk: adapters fit under it, the state of the optimizer does not."""
    arguments = [*overlay(line), "--output_dir", tmp_path, "--save_strategy", "steps", "--save_steps", "1"]
    run(*arguments, "--max_steps", "1")
    files = [tmp_path / "checkpoint-1" / name for name in ("adapter_model.safetensors", "optimizer.pt")]
    adapter, optimizer = (path.stat().st_size for path in files)
    limit = (adapter + optimizer) // 2
    assert adapter < limit < optimizer
    (tmp_path / "limited.py").write_text(
        f"import resource, runpy\nresource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        f"runpy.run_path({str(ROOT / 'train.py')!r}, run_name='__main__')\n"
    )
    # No data worker: what it hands over lies in files, too, in shared memory.
    arguments += ["--max_steps", "3", "--resume_from_checkpoint", "last"]
    fixed = ["--use_cpu", "true", "--per_device_train_batch_size", "8", "--dataloader_num_workers", "0"]
    failed = commands.run("-m", "limited", *arguments, *fixed, cwd=tmp_path, timeout=120)
    assert failed.code == 1, failed.stderr[-2000:]
    assert "checkpoint-2 could not be written" in failed.stderr and "checkpoint-1" in failed.stderr
    assert not (tmp_path / "checkpoint-2").exists()
    # Going on needs every file of the last checkpoint.
    assert run(*arguments) and last_checkpoint(tmp_path).name == "checkpoint-3"


def test_a_clip_that_cannot_be_read_is_named(line, tmp_path):
    """Also by a data worker."""
    shutil.copytree(line / "data", tmp_path / "data")
    broken = sorted((tmp_path / "data" / "train").glob("*.mp4"))[3]
    broken.write_bytes(broken.read_bytes()[:200])
    arguments = [*overlay(line), "--root", tmp_path / "data", "--keep_in_memory", "false"]
    arguments += ["--output_dir", tmp_path / "out", "--max_steps", "3", "--dataloader_num_workers", "1"]
    with pytest.raises(ValueError, match=f'(?s){broken.stem}.*set `on_error` to "missing"'):
        run(*arguments)
    assert run(*arguments, "--on_error", "missing")


@pytest.mark.distributed
def test_two_processes_train_as_one_with_the_whole_batch(line, tmp_path, commands):
    """The same clips, frames, views and negatives at every step, so the same terms, to the drift of float32."""
    fixed = [*overlay(line), "--use_cpu", "true", "--max_steps", "3", "--logging_steps", "1", "--save_steps", "3"]
    fixed += ["--loss_warmup_steps", "1", "--full_view_decay_steps", "0", "--disable_tqdm", "true"]
    fixed += ["--save_strategy", "steps", "--dataloader_drop_last", "false", "--report_to", "none"]
    for processes in (1, 2):
        sizes = ("--per_device_train_batch_size", 10 // processes, "--output_dir", tmp_path / str(processes))
        ended = run_together(commands, processes, "train.py", *fixed, *sizes)
        assert f"({processes} processes of {10 // processes})" in ended.stderr
    one, two = ([entry for entry in log_of(tmp_path / name) if "loss" in entry] for name in "12")
    assert len(one) == 3
    for expected, found in zip(one, two, strict=True):
        names = [name for name in expected if name.startswith(("loss", "weight"))]
        assert len(names) >= 8
        for name in names:
            assert found[name] == pytest.approx(expected[name], rel=2e-3, abs=2e-4)
