"""One evaluation: a model and a benchmark in; out comes one JSON file with the figures and how to repeat them."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from eval.benchmarks import describe_benchmark, load_benchmark
from eval.embed import embed_dataset
from eval.embeddings import Embeddings, gallery_manifest
from eval.files import write_json
from eval.missing import check_rate
from eval.report import format_table, plot_results
from eval.retrieval import DEFAULT_METHODS, evaluate_embeddings
from modeling_scalar import load_model

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


def training_recipe(model_path: str) -> dict[str, Any] | None:
    """Return how a local model was trained, its seed included, if the run left its `recipe.json` beside it."""
    path = Path(model_path) / "recipe.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _embed(
    model_path: str,
    benchmark: str,
    root: str | os.PathLike,
    split: str,
    batch_size: int,
    on_error: str,
    device: str | None,
) -> Embeddings:
    dataset = load_benchmark(benchmark, root, split)
    model, processor = load_model(model_path)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    embeddings = embed_dataset(model, processor, dataset, batch_size=batch_size, device=device, on_error=on_error)
    embeddings.metadata = {
        "model": str(model_path),
        "training": training_recipe(model_path),
        "benchmark": benchmark,
        "benchmark_description": describe_benchmark(benchmark, root),
        "split": split,
        "query_temperature": model.config.query_temperature,
        "score_options": {
            name: value.item() if isinstance(value, torch.Tensor) else value
            for name, value in model.score_options().items()
        },
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "on_error": on_error,
        "versions": versions(),
        "source": source_state(),
    }
    return embeddings


def _check_sources(model_path: str | None, benchmark: str | None, root: Any, embeddings_path: Any) -> None:
    needed = (model_path, benchmark, root)
    if embeddings_path is None and None in needed:
        raise ValueError("Expected a model, a benchmark and its root folder, or saved embeddings in their place.")
    if embeddings_path is not None and needed != (None, None, None):
        raise ValueError(
            "Saved embeddings know their model and benchmark. Give either the embeddings, or a model, a benchmark and "
            "its root folder."
        )


def run(
    output: str | os.PathLike,
    model_path: str | None = None,
    benchmark: str | None = None,
    root: str | os.PathLike | None = None,
    split: str = "test",
    embeddings_path: str | os.PathLike | None = None,
    methods: Sequence[str] | None = None,
    rates: Sequence[float] = (0.0, 0.5),
    mask_seed: int = 0,
    batch_size: int = 32,
    on_error: str = "raise",
    device: str | None = None,
) -> dict[str, Any]:
    """
    Evaluate a model on a benchmark, or embeddings of an earlier run, and write what came out.

    `output` receives `results.json`, `table.txt`, `results.png` and, unless they were given, the `embeddings`, so that
    other methods and masks can be measured without reading a file again.

    Args:
        output (`str`): folder to write to.
        model_path (`str`): folder or Hub name of a model or of an adapter with its processor.
        benchmark (`str`), root (`str`), split (`str`): name, folder and split of the benchmark.
        embeddings_path (`str`): folder of saved [`~eval.embeddings.Embeddings`], in place of model, benchmark and
            root.
        methods (`Sequence[str]`, *optional*): by default those of [`~eval.retrieval.DEFAULT_METHODS`] and the model's
            own.
        rates, mask_seed: see [`~eval.retrieval.evaluate_embeddings`].
        batch_size, on_error: see [`~eval.embed.embed_dataset`].
        device (`str`): where the model runs; by default on a GPU if there is one, else on the CPU.

    Returns:
        `dict`: the content of `results.json`. `embedded` tells how the embeddings were made, `versions`, `source` and
        `date` how the figures were made from them.

    Raises:
        ValueError: arguments contradict each other, or a step cannot be done; FileNotFoundError: a file is not there.
    """
    arguments = json.loads(json.dumps(locals(), default=os.fspath))
    _check_sources(model_path, benchmark, root, embeddings_path)
    for rate in rates:
        check_rate(rate)  # before hours of embedding, not after
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    if embeddings_path is None:
        embeddings = _embed(model_path, benchmark, root, split, batch_size, on_error, device)
        embeddings.save(output / "embeddings")
    else:
        embeddings = Embeddings.load(embeddings_path)
    described = embeddings.metadata
    lacking = [name for name in ("model", "benchmark", "split", "query_temperature") if name not in described]
    if lacking:
        raise ValueError(f"The embeddings in {str(embeddings_path)!r} do not tell their {lacking} in `metadata`.")
    score_options = {"query_temperature": described["query_temperature"]} | described.get("score_options", {})
    own = score_options.pop("method", "scalar")
    if methods is None:
        methods = tuple(dict.fromkeys((*DEFAULT_METHODS, own)))
    results = {
        "model": described["model"],
        "benchmark": described["benchmark"],
        "split": described["split"],
        "retrieval": evaluate_embeddings(
            embeddings,
            methods=methods,
            rates=rates,
            mask_seed=mask_seed,
            **score_options,
        ),
        "gallery": gallery_manifest(embeddings),
        "problems": embeddings.problems,
        "embedded": described,
        "versions": versions(),
        "source": source_state(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "arguments": arguments,
    }
    (output / "table.txt").write_text(format_table(results) + "\n", encoding="utf-8")
    plot_results(results, output / "results.png")
    write_json(results, output / "results.json")  # last: whoever sees it sees all
    return results


__all__ = ["run", "source_state", "training_recipe", "versions"]
