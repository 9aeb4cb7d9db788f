"""The whole line by its own commands, on a handful of clips: generate, train, adapt, evaluate."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parent.parent


def test_a_model_is_made_trained_adapted_and_evaluated_by_commands(commands, tmp_path):
    def command(*arguments):
        """Run a command as `python` does, which must end well."""
        outcome = commands.run(*arguments, cwd=ROOT, timeout=120)
        assert outcome.code == 0, outcome.stdout[-1500:] + outcome.stderr[-6000:]
        return outcome

    data, targets = tmp_path / "data", tmp_path / "targets.safetensors"
    counts = ("--num-train", 24, "--num-validation", 0, "--num-test", 12)
    command("-m", "evidence", "miniature", "--output", data, *counts)
    command("-m", "evidence", "backbone", "--root", data, "--output", tmp_path / "new")
    common = ("--root", data, "--per_device_train_batch_size", "8", "--use_cpu", "true", "--max_steps", "4")
    places = ("--model", tmp_path / "new", "--output_dir", tmp_path / "backbone")
    command("train.py", "recipes/miniature_backbone.yaml", *common, *places)
    benchmark = ("--plugin", "evidence.miniature", "--benchmark", "miniature", "--root", data)
    command("-m", "scalar_retrieval.trainer.semantic_targets", *benchmark, "--output", targets, "--encoder", "light")
    places = ("--model", tmp_path / "backbone", "--output_dir", tmp_path / "adapter", "--semantic_targets", targets)
    command("train.py", "recipes/miniature.yaml", *common, *places, "--loss_warmup_steps", "2")

    places = ("--model", tmp_path / "adapter", "--output", tmp_path / "results")
    printed = command("-m", "scalar_retrieval.eval", "run", *benchmark, *places).stdout
    results = json.loads((tmp_path / "results" / "results.json").read_text())
    for entry in results["retrieval"]["rates"]:
        assert {"scalar", "uniform", "video", "audio", "subtitle", "gram"} < set(entry["methods"])
    assert len(results["gallery"]["ids"]) == 12 and results["embedded"]["training"]["seed"] == 50
    # Its cross-encoder reads subtitles, of which an absent one has no number of tokens to be zeros.
    assert [entry["policy"] for entry in results["two_stage"]] == ["absent"] * 5
    table = (tmp_path / "results" / "report" / "tables.md").read_text()
    assert "## Second stage" in table and table.splitlines()[0] in printed
