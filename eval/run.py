"""One evaluation: measure a model on a benchmark, or given embeddings, and write all results to one folder."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from scalar_retrieval.gallery.store.described import score_options_of
from scalar_retrieval.gallery.store.files import write_json
from scalar_retrieval.gallery.store.provenance import source_state, versions

from .embedding.embeddings import Embeddings
from .protocol.first_stage import measure_first_stage
from .reports.figures import plot_results
from .reports.report import write_report
from .settings import RunConfig

if TYPE_CHECKING:
    from .source import Source


def _prepare(config: RunConfig) -> "tuple[Embeddings, Source | None]":
    """Return the embeddings, given or computed and saved, and the model with its clips, if there is one."""
    Path(config.output).mkdir(parents=True, exist_ok=True)
    if config.model_path is None:
        return Embeddings.load(config.embeddings_path), None
    from .source import prepare  # not at the top: it imports models, benchmarks and decoders

    return prepare(config)


def embeddings_of(config: RunConfig) -> Embeddings:
    """Return the embeddings that [`run`] would measure: given, or computed and saved in the output folder."""
    return _prepare(config)[0]


def has_classes(embeddings: Embeddings) -> bool:
    """Whether queries are class labels: some query describes several clips, and no clip is described by several."""
    # Some query is in several pairs, and no clip is.
    queries, clips = embeddings.pairs.unbind(dim=1)
    return len(queries.unique()) < len(queries) and len(clips.unique()) == len(clips)


def _measure(
    config: RunConfig, embeddings: Embeddings, source: "Source | None"
) -> tuple[dict[str, Any], dict[str, list]]:
    """Return the content of `results.json` and the table of queries."""
    # Both stages, scored as the model that embedded the clips scores.
    metadata = embeddings.metadata
    score = score_options_of(metadata)
    first, queries = measure_first_stage(
        embeddings,
        methods=config.methods,
        rates=config.rates,
        progress=config.progress,
        **score,
    )
    second = {"two_stage": [], "two_stage_fusion": None, "two_stage_diagnostic": None}
    if source is not None:
        second |= source.second_stage(embeddings, score)

    # What was measured; a path's name stands for what the metadata does not name.
    name = Path(config.embeddings_path or config.model_path).stem
    model = metadata.get("model", name)
    split = metadata.get("split", config.split)
    trained_on = metadata.get("trained_on")
    if trained_on:  # clips seen in training are no test, whatever their split is called
        split = "train"
    task = "retrieval"
    if has_classes(embeddings):
        task = "classification"

    # Runs of several seeds share a label: `model-7` of seed 7 becomes `model`.
    seed = (metadata.get("training") or {}).get("seed")
    label = config.label or Path(model).name
    if not config.label and seed is not None:
        label = re.sub(rf"-{seed}$", "", label)
    results = {
        "label": label,
        "seed": seed,
        "model": model,
        "benchmark": metadata.get("benchmark", config.benchmark or name),
        "split": split,
        "trained_on": trained_on,
        "task": metadata.get("task", task),
        "score": score,
        "retrieval": first,
        **second,
        "gallery": embeddings.manifest(),
        "left_out": metadata.get("left_out", []),
        "problems": embeddings.problems,
        "embedded": {name: value for name, value in metadata.items() if name != "kinds"},  # kinds are in the table
        "versions": versions(),
        "source": source_state(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "arguments": config.arguments(),
    }
    return results, queries


def _write(output: Path, results: Mapping[str, Any], queries: Mapping[str, list]) -> str:
    """Write all results; return the tables for the terminal."""
    pq.write_table(pa.table(queries), output / "queries.parquet")
    plot_results(results, output / "results.png")
    tables = write_report({output / "results.json": results}, output / "report")
    write_json(results, output / "results.json")  # after the other files: where it exists, they do too
    return tables


def evaluate(config: RunConfig) -> tuple[dict[str, Any], str]:
    """
    Evaluate a model on a benchmark, or embeddings, and write the results.

    The folder `config.output` receives `results.json`, `queries.parquet` (the result of each query),
    `results.png`, the tables and figures of `report/`, and, unless they were given, the `embeddings`, so that other
    methods and masks can be measured without reading the files again.

    Args:
        config ([`RunConfig`]): settings of the evaluation.

    Returns:
        `dict`: the content of `results.json`, in which `embedded` describes how the embeddings were computed, and
        `versions`, `source` and `date` how the metrics were. And `str`: the tables of `report/tables.md`.

    Raises:
        ValueError: a step cannot be done; FileNotFoundError: a file does not exist.
    """
    # Embed or load, measure, write.
    embeddings, source = _prepare(config)
    results, queries = _measure(config, embeddings, source)
    return results, _write(Path(config.output), results, queries)


def run(config: RunConfig) -> dict[str, Any]:
    """Run [`evaluate`] and return only the content of `results.json`."""
    return evaluate(config)[0]


__all__ = ["RunConfig", "embeddings_of", "evaluate", "has_classes", "run"]
