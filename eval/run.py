"""One evaluation: a model and a benchmark, or embeddings, in; one folder with every figure of the protocol out."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import PreTrainedModel, ProcessorMixin

from eval.benchmarks import Split, configure_processor, load_split
from eval.embed import embed_dataset
from eval.embeddings import Embeddings, gallery_manifest, load_embeddings
from eval.files import write_json
from eval.protocol.first_stage import (
    RATES,
    evaluate_embeddings,
    measurable_methods,
    pathways,
    query_table,
    recall_differences,
    subset_ladder,
)
from eval.protocol.latent import has_classes, latent_space
from eval.protocol.missing import check_rate
from eval.protocol.second_stage import POLICIES, evaluate_two_stage
from eval.provenance import describe, source_state, versions
from eval.reports.figures import plot_results
from eval.reports.latent_figure import plot_latent
from eval.reports.report import format_table, write_report
from eval.reports.result_files import load_results
from modeling_scalar import load_model
from modeling_scalar.aggregation_scalar import METHODS

_COMPARED = ("uniform", "gram")  # with the model's own score, beside the best pathway


@dataclass
class _Source:
    """A model with its processor, and the clips it reads."""

    model: PreTrainedModel
    processor: ProcessorMixin
    split: Split


def _open_source(model_path: str, benchmark: str, root: str, split: str, device: str | None, settings) -> _Source:
    loaded = load_split(benchmark, root, split, **settings)  # the quickest to fail
    model, processor = load_model(model_path)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return _Source(model.to(device), configure_processor(processor, loaded.processing), loaded)


def _check_sources(source: Sequence[Any], embeddings_path: Any) -> None:
    if None in source and any(part is not None for part in source):
        raise ValueError(f"A model, a benchmark and its root belong together, got {list(source)}.")
    if embeddings_path is None and None in source:
        raise ValueError("Expected a model, a benchmark and its root, or embeddings in their place.")


def _check_two_stage(two_stage: bool | None, source: _Source | None) -> bool:
    possible = source is not None and source.model.config.has_cross_attention
    if two_stage and not possible:
        raise ValueError(
            "The second stage reads clips with a cross-encoder: give a model whose text tower has cross-attention, a "
            "benchmark and its root, beside embeddings too."
        )
    return possible if two_stage is None else two_stage


def _score_options(described: Mapping[str, Any]) -> dict[str, Any]:
    """How the model scores, as its embeddings tell; by default the paper's way. JSON has an infinity as a string."""
    options = {"query_temperature": described.get("query_temperature", 0.1)} | described.get("score_options", {})
    method = options.pop("method", "scalar")
    return {"method": method, **{name: float(value) for name, value in options.items()}}


def _default_label(model: str, seed: int | None) -> str:
    name = Path(model).name
    return name if seed is None else re.sub(rf"-{seed}$", "", name)


def _first_stage(embeddings: Embeddings, methods, rates, mask_seed, score: Mapping[str, Any]) -> tuple[dict, dict]:
    """The figures of the first stage, and the table of queries."""
    options = {name: value for name, value in score.items() if name != "method"}
    if methods is None:
        methods = measurable_methods(embeddings)
    methods = tuple(dict.fromkeys((score["method"], *methods)))
    figures = evaluate_embeddings(embeddings, methods, rates, mask_seed, progress=True, **options)
    joint = [name for name in methods if not METHODS[name].is_pathway]
    figures["ladder"] = subset_ladder(embeddings, joint, **options) if joint else []
    measured = tuple(figures["rates"][0]["methods"])
    table = query_table(embeddings, measured, **options)
    best = max(pathways(), key=lambda name: table[f"rank_{name}"].count(1))
    compared = [name for name in _COMPARED if name in measured]
    figures["differences"] = recall_differences(table, score["method"], [*compared, best])
    return figures, table


def run(
    output: str | os.PathLike,
    model_path: str | None = None,
    benchmark: str | None = None,
    root: str | os.PathLike | None = None,
    split: str = "test",
    embeddings_path: str | os.PathLike | None = None,
    methods: Sequence[str] | None = None,
    rates: Sequence[float] = RATES,
    mask_seed: int = 0,
    batch_size: int = 32,
    on_error: str = "raise",
    device: str | None = None,
    *,
    label: str | None = None,
    two_stage: bool | None = None,
    depth: int = 50,
    policies: Sequence[str] = POLICIES,
    normalize: bool = False,
    num_workers: int = 2,
    progress: bool = True,
    **settings: Any,
) -> dict[str, Any]:
    """
    Evaluate a model on a benchmark, or embeddings, and write what came out.

    `output` receives `results.json`, `queries.parquet` (what happened to each query), `table.txt`, `results.png`, the
    tables and figures of `report/`, with class labels as queries `latent.png`, and, unless they were given, the
    `embeddings`, so that other methods and masks can be measured without reading a file again.

    Args:
        output (`str`): folder to write to.
        model_path (`str`): folder or Hub name of a model or of an adapter with its processor.
        benchmark (`str`), root (`str`), split (`str`): name, folder and split of the benchmark.
        embeddings_path (`str`): saved [`~eval.embeddings.Embeddings`], of this project or of any other model. Model,
            benchmark and root are then needed for the second stage only.
        methods (`Sequence[str]`, *optional*): by default all of
            [`~eval.protocol.first_stage.measurable_methods`]. The model's own score is always measured.
        rates, mask_seed: see [`~eval.protocol.first_stage.evaluate_embeddings`].
        batch_size, on_error, num_workers, progress: see [`~eval.embed.embed_dataset`].
        device (`str`): where the model runs; by default on a GPU if there is one, else on the CPU.
        label (`str`): name of the row in tables; by default the name of the model's folder without its seed.
        two_stage (`bool`, *optional*): whether to measure the second stage too; by default if the model has one and
            clips to read.
        depth, policies: see [`~eval.protocol.second_stage.evaluate_two_stage`].
        normalize (`bool`): give embeddings unit norm that do not have it.
        settings: of [`~eval.benchmarks.load_split`]: `captions`, `annotations`, `on_missing`, `columns`.

    Returns:
        `dict`: the content of `results.json`. `embedded` tells how the embeddings were made, `versions`, `source` and
        `date` how the figures were made from them.

    Raises:
        ValueError: arguments contradict each other, or a step cannot be done; FileNotFoundError: a file is not there.
    """
    arguments = json.loads(json.dumps(locals(), default=os.fspath))
    _check_sources((model_path, benchmark, root), embeddings_path)
    useless = [name for name, value in settings.items() if value not in (None, "raise")]  # the default of each
    if model_path is None and useless:
        raise ValueError(f"{useless} say how a benchmark is read: give a model, a benchmark and its root with them.")
    for rate in rates:
        check_rate(rate)  # before hours of embedding, not after
    unknown = [policy for policy in policies if policy not in POLICIES]
    if unknown or not policies:
        raise ValueError(f"`policies` must be some of {POLICIES}, got {list(policies)}.")
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    reading = {"batch_size": batch_size, "on_error": on_error, "num_workers": num_workers, "progress": progress}
    embeddings = None if embeddings_path is None else load_embeddings(embeddings_path, normalize)
    source = None
    if model_path is not None:
        source = _open_source(model_path, benchmark, root, split, device, settings)
    two_stage = _check_two_stage(two_stage, source)
    if embeddings is None:
        dataset, task = source.split.dataset, source.split.task
        embeddings = embed_dataset(source.model, source.processor, dataset, task=task, **reading)
        embeddings.metadata = describe(
            source.model,
            model_path,
            benchmark,
            root,
            split,
            task=task,
            processing=dict(source.split.processing),
            left_out=source.split.left_out,
            device=str(source.model.device),
            on_error=on_error,
        )
        embeddings.save(output / "embeddings")
    described = embeddings.metadata
    name = str(embeddings_path) if embeddings_path else model_path
    score = _score_options(described)
    figures, table = _first_stage(embeddings, methods, rates, mask_seed, score)
    second = []
    if two_stage:
        second = evaluate_two_stage(
            source.model,
            source.processor,
            source.split.dataset,
            embeddings,
            depth=depth,
            rates=rates,
            mask_seed=mask_seed,
            policies=policies,
            score_options=score,
            **reading,
        )
    model = described.get("model", Path(name).stem)
    seed = (described.get("training") or {}).get("seed")
    results = {
        "label": label or _default_label(model, seed),
        "seed": seed,
        "model": model,
        "benchmark": described.get("benchmark", benchmark or Path(name).stem),
        "split": described.get("split", split),
        "task": described.get("task", "classification" if has_classes(embeddings) else "retrieval"),
        "score": score,
        "retrieval": figures,
        "two_stage": second,
        "latent": latent_space(embeddings) if has_classes(embeddings) else None,
        "gallery": gallery_manifest(embeddings),
        "left_out": described.get("left_out", []),
        "problems": embeddings.problems,
        "embedded": described,
        "versions": versions(),
        "source": source_state(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "arguments": arguments,
    }
    pq.write_table(pa.table(table), output / "queries.parquet")
    if results["latent"] is not None:
        plot_latent({results["label"]: embeddings}, output / "latent.png")
    (output / "table.txt").write_text(format_table(results) + "\n", encoding="utf-8")
    plot_results(results, output / "results.png")
    write_json(results, output / "results.json")  # after its own parts: whoever sees it sees all of them
    write_report(load_results([output / "results.json"]), output / "report")
    return results


__all__ = ["run"]
