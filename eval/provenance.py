"""What figures and embeddings were made from: model, benchmark, code and versions."""

import json
import math
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from eval.benchmarks import describe_benchmark
from modeling_scalar.loading_scalar import weight_digests

_PACKAGES = ("torch", "transformers", "peft", "accelerate", "datasets", "numpy", "av")


def _git(*arguments: str) -> str | None:
    """Output of git beside this file, or None where git fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *arguments], capture_output=True, text=True, check=True
        )
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def source_state() -> dict[str, str | bool] | None:
    """
    Return the git `commit` of this code and whether tracked files differ from it (`dirty`).

    `None` if git does not track this file: an installed package may lie inside the repository of something else.
    """
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--untracked-files=no")
    return None if commit is None or changes is None else {"commit": commit, "dirty": bool(changes)}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that figures can depend on; `None` if not installed."""
    return {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES}


def training_recipe(model_path: str | os.PathLike) -> dict[str, Any] | None:
    """Return how a local model was trained, its seed included, if the run left its `recipe.json` beside it."""
    path = Path(model_path) / "recipe.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _json_number(value: Any) -> Any:
    """A number as JSON has it: JSON knows no infinity, so that is written as a string which `float` reads."""
    value = value.item() if isinstance(value, torch.Tensor) else value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def describe(
    model: PreTrainedModel,
    model_path: str | os.PathLike,
    benchmark: str,
    root: str | os.PathLike,
    split: str,
    **settings: Any,
) -> dict[str, Any]:
    """
    Describe what embeddings are made from, for [`~eval.embeddings.Embeddings`]`.metadata`.

    Args:
        model ([`~modeling_scalar.ScalarModel`]): asked how it scores.
        model_path (`str`): where it was loaded from. The SHA-256 of its weights is included, and a recipe beside it.
        benchmark (`str`), root (`str`), split (`str`): what was embedded.
        settings: further entries, such as `device`, `on_error`, `task` or `left_out`.

    Returns:
        `dict`: of what JSON can hold. An infinite `query_temperature` is the string `"inf"`, which `float` reads.
    """
    return {
        "model": str(model_path),
        "weights": weight_digests(model_path),
        "training": training_recipe(model_path),
        "benchmark": benchmark,
        "benchmark_description": describe_benchmark(benchmark, root),
        "split": split,
        "query_temperature": _json_number(model.config.query_temperature),
        "score_options": {name: _json_number(value) for name, value in model.score_options().items()},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "source": source_state(),
        **settings,
    }


__all__ = ["describe", "source_state", "training_recipe", "versions"]
