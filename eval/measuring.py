"""The work of an evaluation: embeddings are prepared, measured, described, and written with a report."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.gallery.second_stage.matching import check_can_match
from scalar_retrieval.gallery.store.files import write_json
from scalar_retrieval.gallery.store.provenance import source_state, versions
from scalar_retrieval.modeling_scalar.model_identity import identify

from .embedding.embeddings import Embeddings
from .inputs import Inputs, num_readers
from .protocol.first_stage import check_methods
from .reports.figures import plot_results
from .reports.report import write_report
from .results import Results

if TYPE_CHECKING:
    from .source import Source


def prepare(
    inputs: Inputs,
    output: Path | None = None,
    methods: Sequence[str] = (),
    needs_match: bool = False,
    fusion_split: str | None = None,
) -> "tuple[Embeddings, Source | None]":
    """
    Return the embeddings to measure, given or computed, and the model and clips they belong to, if there is a model.

    Given embeddings have queries, whose kinds come from the benchmark. A gallery without queries has clips only; their
    captions come from the benchmark.

    Args:
        inputs ([`~scalar_retrieval.eval.inputs.Inputs`]): what is measured.
        output (`Path`, *optional*): what is embedded here is saved in its folder `embeddings`.
        methods (`Sequence[str]`): scores to check against the modalities, before anything is embedded.
        needs_match (`bool`): whether the model must have a second stage.
        fusion_split (`str`, *optional*): a split to load too, see [`~scalar_retrieval.eval.source.Source.open`].

    Raises:
        ValueError: a step cannot be done; FileNotFoundError: a file does not exist.
    """
    # Given embeddings are read before the model, which takes longer to load.
    given = inputs.embeddings
    if isinstance(given, str | os.PathLike):
        given = Gallery.open(given)
    if given is not None:
        check_methods(methods, given.modalities)
    clips = None
    if isinstance(given, Gallery) and given.queries is None and inputs.model is not None:
        clips = given
        clips.check_model(str(inputs.model), identify(inputs.model).fingerprint)
        given = None
    elif isinstance(given, Gallery):
        given = Embeddings.of_gallery(given)
    elif given is not None:
        given.check_unit()
    if inputs.model is None:
        return given, None

    # Not at the top: models, benchmarks and decoders take seconds.
    from scalar_retrieval.gallery.embedding import check_reading

    from .benchmarks.clip_rows import query_kinds
    from .source import Source

    # The model and the benchmark, and what is checked only now that they are known.
    check_reading(inputs.batch_size, num_readers())
    source = Source.open(inputs, fusion_split)
    if needs_match:
        check_can_match(source.model)
    if given is not None:
        kinds = query_kinds(source.split.dataset, source.split.task)
        return replace(given, metadata=kinds | given.metadata), source
    if clips is None:
        check_methods(methods, source.model.config.modalities)

    # What is missing is embedded: the captions of a gallery, or captions and clips.
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)  # fails before hours of embedding, not after
    embeddings = source.embed(clips)
    if output is not None:
        embeddings.save(output / "embeddings")
    return embeddings, source


def has_classes(embeddings: Embeddings) -> bool:
    """Whether queries are class labels: some query describes several clips, and no clip is described by several."""
    # Some query is in several pairs, and no clip is.
    queries, clips = embeddings.pairs.unbind(dim=1)
    return len(queries.unique()) < len(queries) and len(clips.unique()) == len(clips)


def describe(
    inputs: Inputs, embeddings: Embeddings, label: str | None, measured: Mapping[str, Any], arguments: dict[str, Any]
) -> Results:
    """
    Return the content of `results.json`.

    Args:
        inputs ([`~scalar_retrieval.eval.inputs.Inputs`]), embeddings ([`Embeddings`]): what was measured.
        label (`str`, *optional*): name of the row in tables; by default the model's.
        measured (`Mapping`): `score`, and the results of both stages.
        arguments (`dict`): how to repeat it.
    """
    # What was measured; a path's name stands for what the metadata does not name.
    metadata = embeddings.metadata
    model = metadata.get("model", inputs.name)
    split = metadata.get("split", inputs.split)
    trained_on = metadata.get("trained_on")
    if trained_on:  # clips seen in training are no test, whatever their split is called
        split = "train"
    task = "retrieval"
    if has_classes(embeddings):
        task = "classification"

    # Runs of several seeds share a label: `model-7` of seed 7 becomes `model`.
    seed = (metadata.get("training") or {}).get("seed")
    if not label:
        label = Path(model).name
        if seed is not None:
            label = re.sub(rf"-{seed}$", "", label)
    return {
        "label": label,
        "seed": seed,
        "model": model,
        "benchmark": metadata.get("benchmark", inputs.benchmark or inputs.name),
        "split": split,
        "trained_on": trained_on,
        "task": metadata.get("task", task),
        **measured,
        "gallery": embeddings.manifest(),
        "left_out": metadata.get("left_out", []),
        "problems": embeddings.problems,
        "embedded": {name: value for name, value in metadata.items() if name != "kinds"},  # kinds are in the table
        "versions": versions(),
        "source": source_state(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "arguments": json.loads(json.dumps(arguments | {"embeddings": inputs.place}, default=str)),
    }


def write(output: Path, results: Results, queries: Mapping[str, list]) -> None:
    """Write all results, the table of queries, and a report with tables and figures."""
    pq.write_table(pa.table(queries), output / "queries.parquet")
    plot_results(results, output / "results.png")
    write_report({output / "results.json": results}, output / "report")
    write_json(results, output / "results.json")  # after the other files: where it exists, they do too


__all__ = ["describe", "has_classes", "prepare", "write"]
