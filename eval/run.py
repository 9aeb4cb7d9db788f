"""One evaluation: a model and a benchmark, or embeddings, in; one folder with everything that was measured out."""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedModel, ProcessorMixin

from eval.benchmarks import Split, configure_processor, describe_benchmark, load_split
from eval.benchmarks.rows import query_kinds
from eval.embedding.embed_dataset import embed_dataset
from eval.embedding.embed_fused import check_fuses, embed_fused_dataset
from eval.embedding.embeddings import Embeddings, load_embeddings
from eval.embedding.query_gallery import query_gallery
from eval.protocol.first_stage import measure_first_stage
from eval.protocol.latent import has_classes, latent_space
from eval.protocol.matching import check_policies, measurable_policies
from eval.protocol.missing import ladder_masks, rate_masks
from eval.protocol.second_stage import TwoStage
from eval.reports.figures import plot_results
from eval.reports.latent_figure import plot_latent
from eval.reports.report import format_table, write_report
from eval.reports.result_files import results_of
from eval.settings import RunConfig, SourceConfig
from gallery.decoding import sandboxed
from gallery.files import write_json
from gallery.gallery import Gallery, is_gallery, score_options_of
from gallery.provenance import describe, source_state, versions
from modeling_scalar import load_model
from modeling_scalar.devices import device_of_name, dtype_of_name, said_of
from modeling_scalar.model_identity import identify
from modeling_scalar.scores_scalar import WEIGHING

logger = logging.getLogger(__name__)


# From what is given to embeddings ------------------------------------------------------------------------------------


def check_made_by(path: str | os.PathLike, model_path: str | os.PathLike) -> None:
    """Raise a ValueError if a gallery was made by another model; other embeddings do not say what made them."""
    if is_gallery(path):
        Gallery.open(path).check_model(str(model_path), identify(model_path).fingerprint)


def open_model(model_path: str | os.PathLike, config: SourceConfig) -> tuple[PreTrainedModel, ProcessorMixin]:
    """Load a model and its processor as a run has them: its device, precision and limits. What runs is logged."""
    model, processor = load_model(model_path, dtype_of_name(config.model_dtype), device_of_name(config.device))
    logger.info("%s: %s.", model_path, said_of(model))
    return model, sandboxed(processor, config.limits)


@dataclass
class _Source:
    """A model with its processor, the clips it reads, and those that the weight of the fusion is chosen on, if any."""

    model: PreTrainedModel
    processor: ProcessorMixin
    split: Split
    fusion_split: Split | None = None


def _files(split: Split) -> dict[tuple[str | None, str | None], str]:
    """Picture and sound of each clip that has any, and its identifier."""
    columns = (split.dataset[name] for name in ("video_path", "audio_path", "video_id"))
    return {(video, audio): name for video, audio, name in zip(*columns, strict=True) if video or audio}


def _check_apart(config: RunConfig, reported: Split, other: Split) -> None:
    ours, theirs = _files(reported), _files(other)
    shared = [name for files, name in ours.items() if files in theirs]
    if shared:
        raise ValueError(
            f"The weight of the fusion must be chosen on other clips than those that are reported, but the splits "
            f"{config.fusion_split!r} and {config.split!r} share {len(shared)}, such as {shared[0]!r}."
        )


def _open_source(config: RunConfig) -> _Source:
    def load(name: str) -> Split:
        return load_split(config.benchmark, config.root, name, **config.benchmark_settings())

    split = load(config.split)  # fails the soonest
    fusion_split = None if config.fusion_split is None else load(config.fusion_split)
    if fusion_split is not None:
        _check_apart(config, split, fusion_split)
    model, processor = open_model(config.model_path, config)
    return _Source(model, configure_processor(processor, split.processing), split, fusion_split)


def _policies(config: RunConfig, source: _Source) -> Sequence[str]:
    if config.policies is None:
        return measurable_policies(source.model.config.condition_on)
    return config.policies


def _reranker(config: RunConfig, source: _Source | None) -> _Source | None:
    """What measures the second stage, if it is measured."""
    possible = source is not None and source.model.config.has_cross_attention
    if (config.two_stage or config.is_fused) and not possible:
        raise ValueError(
            "The second stage reads clips with a cross-encoder: give a model whose text tower has cross-attention, a "
            "benchmark and its root, even beside embeddings."
        )
    if not possible or config.two_stage is False:
        return None
    check_policies(_policies(config, source), source.model.config.condition_on)
    return source


def _as_searched(gallery: Gallery, description: Mapping[str, Any]) -> dict[str, Any]:
    """How a search in a gallery scores: by the model's method, with the weights of modalities that are the gallery's
    own."""
    temperature = gallery.metadata.get("query_temperature")
    weighing = {"query_temperature": 0.1 if temperature is None else temperature} | gallery.calibration
    options = {name: value for name, value in description["score_options"].items() if name not in WEIGHING}
    return {"query_temperature": weighing["query_temperature"], "score_options": options | weighing}


def _embed(config: RunConfig, source: _Source, gallery: Gallery | None) -> Embeddings:
    """Embed the benchmark, its captions alone if its clips are in a gallery, and keep the result."""
    model, processor, split = source.model, source.processor, source.split
    description = describe(
        model,
        config.model_path,
        benchmark=config.benchmark,
        benchmark_description=describe_benchmark(config.benchmark, config.root),
        split=config.split,
        task=split.task,
        processing=dict(split.processing),
        left_out=split.left_out,
        device=str(model.device),
        on_error=config.on_error,
        **query_kinds(split.dataset, split.task),
    )
    if gallery is None:
        embeddings = embed_dataset(model, processor, split.dataset, task=split.task, **config.reading())
        embeddings.metadata = description
    else:
        embeddings = query_gallery(gallery, model, processor, split.dataset, split.task, config.batch_size)
        embeddings.metadata = description | embeddings.metadata | _as_searched(gallery, description)
    embeddings.save(Path(config.output) / "embeddings")
    return embeddings


def _prepare(config: RunConfig) -> tuple[Embeddings, _Source | None]:
    """Return the embeddings, read or made and saved, and what measures the second stage, if it is measured."""
    Path(config.output).mkdir(parents=True, exist_ok=True)
    given, gallery, path = None, None, config.embeddings_path
    if path is not None and config.model_path is not None and is_gallery(path):
        gallery = Gallery.open(path)
    if gallery is not None and gallery.queries is not None:
        gallery = None  # it has its own
    if path is not None and gallery is None:
        given = load_embeddings(path, config.normalize)
    if gallery is not None or (config.fused and given is not None):
        check_made_by(path, config.model_path)
    source = None if config.model_path is None else _open_source(config)
    reranker = _reranker(config, source)
    if config.fused:
        check_fuses(source.model)
    if given is None:
        given = _embed(config, source, gallery)
    elif source is not None:
        given.metadata = query_kinds(source.split.dataset, source.split.task) | given.metadata
    if config.fused:
        masks = rate_masks(given.clip_ids, given.modality_mask, config.rates, config.mask_seed)
        masks += ladder_masks(given.modality_mask)
        model, processor, split = source.model, source.processor, source.split
        given.fused_embeds = embed_fused_dataset(
            model, processor, split.dataset, given, masks, task=split.task, **config.reading()
        )
    return given, reranker


# From embeddings to metrics ------------------------------------------------------------------------------------------


def _fusion(config: RunConfig, reranker: _Source, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """The weight of a match logit, and how it was chosen: on the other split, under the same masks."""
    if reranker.fusion_split is None:
        return None if config.fusion_weight is None else {"split": None, "weight": config.fusion_weight}
    model, processor, split = reranker.model, reranker.processor, reranker.fusion_split
    embeddings = embed_dataset(model, processor, split.dataset, task=split.task, **config.reading())
    masks = {"rates": config.rates, "mask_seed": config.mask_seed, "policies": _policies(config, reranker)[:1]}
    chosen = TwoStage(model, processor, split.dataset, embeddings, **masks, **options).choose_weight()
    return {"split": config.fusion_split, "num_clips": len(embeddings.clip_ids)} | chosen


def _second_stage(
    config: RunConfig, reranker: _Source | None, embeddings: Embeddings, score: Mapping[str, Any]
) -> dict[str, Any]:
    """What the results hold of the second stage."""
    if reranker is None:
        return {"two_stage": [], "two_stage_fusion": None, "two_stage_diagnostic": None}
    options = {"depth": max(config.depths), "score_options": dict(score), **config.reading()}
    fusion = _fusion(config, reranker, options)
    stages = TwoStage(
        reranker.model,
        reranker.processor,
        reranker.split.dataset,
        embeddings,
        rates=config.rates,
        mask_seed=config.mask_seed,
        policies=_policies(config, reranker),
        **options,
    )
    return {
        "two_stage": stages.metrics(config.depths, None if fusion is None else fusion["weight"]),
        "two_stage_fusion": fusion,
        "two_stage_diagnostic": stages.diagnostic(),
    }


def _default_label(model: str, seed: int | None) -> str:
    name = Path(model).name
    return name if seed is None else re.sub(rf"-{seed}$", "", name)


def _measure(
    config: RunConfig, embeddings: Embeddings, reranker: _Source | None
) -> tuple[dict[str, Any], dict[str, list]]:
    """Return the content of `results.json` and the table of queries."""
    described = embeddings.metadata
    score = score_options_of(described)
    first, queries = measure_first_stage(
        embeddings,
        methods=config.methods,
        rates=config.rates,
        mask_seed=config.mask_seed,
        progress=config.progress,
        **score,
    )
    second = _second_stage(config, reranker, embeddings, score)
    name = Path(config.embeddings_path or config.model_path).stem  # of what does not say what it is
    model = described.get("model", name)
    seed = (described.get("training") or {}).get("seed")
    results = {
        "label": config.label or _default_label(model, seed),
        "seed": seed,
        "model": model,
        "benchmark": described.get("benchmark", config.benchmark or name),
        "split": described.get("split", config.split),
        "task": described.get("task", "classification" if has_classes(embeddings) else "retrieval"),
        "score": score,
        "retrieval": first,
        **second,
        "latent": latent_space(embeddings),
        "gallery": embeddings.manifest(),
        "left_out": described.get("left_out", []),
        "problems": embeddings.problems,
        "embedded": {name: value for name, value in described.items() if name != "kinds"},  # those are in the table
        "versions": versions(),
        "source": source_state(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "arguments": config.arguments(),
    }
    return results, queries


# From metrics to files -----------------------------------------------------------------------------------------------


def _write(output: Path, results: Mapping[str, Any], queries: Mapping[str, list], embeddings: Embeddings) -> None:
    pq.write_table(pa.table(queries), output / "queries.parquet")
    if results["latent"] is not None:
        plot_latent({results["label"]: embeddings}, output / "latent.png")
    (output / "table.txt").write_text(format_table(results) + "\n", encoding="utf-8")
    plot_results(results, output / "results.png")
    write_json(results, output / "results.json")  # after its own parts: whoever sees it sees all of them
    write_report(results_of({output / "results.json": results}), output / "report")


def embeddings_of(config: RunConfig) -> Embeddings:
    """Return what [`run`] would measure: embeddings that are given, or made and saved in the folder of the output."""
    return _prepare(replace(config, two_stage=False))[0]


def run(config: RunConfig) -> dict[str, Any]:
    """
    Evaluate a model on a benchmark, or embeddings, and write what came out.

    The folder `config.output` receives `results.json`, `queries.parquet` (what happened to each query), `table.txt`,
    `results.png`, the tables and figures of `report/`, with class labels as queries `latent.png`, and, unless they
    were given, the `embeddings`, so that other methods and masks can be measured without reading a file again.

    Args:
        config ([`RunConfig`]): what is evaluated, and how.

    Returns:
        `dict`: the content of `results.json`. `embedded` tells how the embeddings were made, `versions`, `source` and
        `date` how the metrics were made from them.

    Raises:
        ValueError: a step cannot be done; FileNotFoundError: a file is not there.
    """
    embeddings, reranker = _prepare(config)
    results, queries = _measure(config, embeddings, reranker)
    _write(Path(config.output), results, queries, embeddings)
    return results


__all__ = ["RunConfig", "check_made_by", "embeddings_of", "open_model", "run"]
