"""One evaluation: a model and a benchmark, or embeddings, in; one folder with everything that was measured out."""

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
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
from eval.protocol.first_stage import (
    FUSED,
    RATES,
    check_methods,
    evaluate_embeddings,
    measurable_methods,
    pathways,
    protocol_masks,
    query_table,
    recall_differences,
    recalls_by_kind,
    subset_ladder,
)
from eval.protocol.latent import has_classes, latent_space
from eval.protocol.matching import check_policies, measurable_policies
from eval.protocol.missing import check_rate
from eval.protocol.second_stage import TwoStage, check_depth, check_weight
from eval.reports.figures import plot_results
from eval.reports.latent_figure import plot_latent
from eval.reports.report import format_table, write_report
from eval.reports.result_files import load_results
from gallery.decoding import Limits, sandboxed
from gallery.embedding import check_reading
from gallery.files import write_json
from gallery.gallery import Gallery, is_gallery, score_options_of
from gallery.provenance import describe, source_state, versions
from modeling_scalar import load_model
from modeling_scalar.devices import device_of_name, dtype_of_name, said_of
from modeling_scalar.model_identity import identify
from modeling_scalar.scores_scalar import WEIGHING

logger = logging.getLogger(__name__)

_COMPARED = ("uniform", "gram")  # with the model's own score, beside the best pathway


@dataclass(frozen=True)
class SourceConfig:
    """
    Where clips and queries come from.

    Args:
        output (`str` or `os.PathLike`): folder to write to.
        model_path (`str` or `os.PathLike`, *optional*): folder or Hub name of a model or adapter, with its processor
            beside it.
        benchmark (`str`, *optional*), root (`str` or `os.PathLike`, *optional*): name and folder of the benchmark.
        split (`str`): of the benchmark.
        embeddings_path (`str` or `os.PathLike`, *optional*): saved [`Embeddings`], of this project
            or of any other model. Model, benchmark and root are then needed for the second stage only; and beside a
            gallery without queries, such as `scalar index` writes, whose clips the benchmark's captions describe,
            and which is scored as it is searched, with its own temperature, scale and offset.
        batch_size (`int`), on_error (`str`), num_workers (`int`), progress (`bool`): see
            [`embed_dataset`].
        device (`str`, *optional*): where the model runs; by default on the accelerator if there is one.
        model_dtype (`str`, *optional*): `"bfloat16"`, `"float16"` or `"float32"`, in which the model computes; by
            default [`~modeling_scalar.devices.default_dtype`].
        normalize (`bool`): give unit norm to embeddings that do not have it.
        captions (`str`, *optional*), annotations (`str` or `os.PathLike`, *optional*), on_missing (`str`), columns
            (`Mapping`, *optional*): how the benchmark is read, see [`~eval.benchmarks.load_split`].
        limits ([`~gallery.decoding.Limits`], *optional*): what reading a stream may take.
    """

    output: str | os.PathLike
    model_path: str | os.PathLike | None = None
    benchmark: str | None = None
    root: str | os.PathLike | None = None
    _: KW_ONLY
    split: str = "test"
    embeddings_path: str | os.PathLike | None = None
    batch_size: int = 32
    on_error: str = "raise"
    num_workers: int = 2
    progress: bool = True
    device: str | None = None
    model_dtype: str | None = None
    normalize: bool = False
    captions: str | None = None
    annotations: str | os.PathLike | None = None
    on_missing: str = "raise"
    columns: Mapping[str, str] | None = None
    limits: Limits | None = None


@dataclass(frozen=True)
class RunConfig(SourceConfig):
    """
    What is evaluated, and how.

    Args:
        output, model_path and what else says where clips and queries come from: see [`SourceConfig`].
        methods (`Sequence[str]`, *optional*): scores to measure; by default all of
            [`~eval.protocol.first_stage.measurable_methods`]. The model's own score is always measured.
        rates (`Sequence[float]`), mask_seed (`int`): missing-modality masks, see
            [`~eval.protocol.first_stage.evaluate_embeddings`].
        fused (`bool`): also measure the vectors that a joint encoder fuses itself; they are embedded for each set of
            modalities that the masks leave of a clip, see [`~eval.embedding.embed_fused.embed_fused_dataset`].
        label (`str`, *optional*): name of the row in tables; by default the name of the model's folder without its
            seed.
        two_stage (`bool`, *optional*): whether to measure the second stage; by default if the model has one and there
            are clips to read.
        depths (`Sequence[int]`): of the second stage. Each pair is read once, at the largest.
        policies (`Sequence[str]`, *optional*): of the second stage, see
            [`~eval.protocol.second_stage.TwoStage`]; by default all that are defined for what the model reads.
        fusion_split (`str`, *optional*): another split of the benchmark, on which the weight of a match logit is
            chosen, to measure the rule `"fused"` beside `"match"`; see
            [`~eval.protocol.second_stage.TwoStage.choose_weight`].
        fusion_weight (`float`, *optional*): this weight, in place of one that is chosen.

    Raises:
        ValueError: settings contradict each other, or one is out of its range.
    """

    _: KW_ONLY
    methods: Sequence[str] | None = None
    rates: Sequence[float] = RATES
    mask_seed: int = 0
    fused: bool = False
    label: str | None = None
    two_stage: bool | None = None
    depths: Sequence[int] = (50,)
    policies: Sequence[str] | None = None
    fusion_split: str | None = None
    fusion_weight: float | None = None

    def __post_init__(self) -> None:
        source = (self.model_path, self.benchmark, self.root)
        if None in source and any(part is not None for part in source):
            raise ValueError(f"A model, a benchmark and its root belong together, got {list(source)}.")
        if self.embeddings_path is None and None in source:
            raise ValueError("Expected a model, a benchmark and its root, or embeddings in their place.")
        unused = [name for name, value in self.benchmark_settings().items() if value not in (None, "raise")]
        if self.model_path is None and unused:
            raise ValueError(
                f"{unused} say how a benchmark is read: give a model, a benchmark and its root with them."
            )
        # Before hours of embedding, not after.
        if self.methods is not None:  # the vectors of the method `fused` are there once they are embedded
            check_methods([name for name in self.methods if name != FUSED or not self.fused])
        for rate in self.rates:
            check_rate(rate)
        if not self.depths:
            raise ValueError("`depths` must hold at least one number of candidates, got none.")
        for depth in self.depths:
            check_depth(depth)
        self._check_fusion()
        if self.fused and self.model_path is None:
            raise ValueError("Fused vectors are made from clips: give the model, the benchmark and its root too.")
        device_of_name(self.device)
        check_reading(self.batch_size, self.on_error, self.num_workers)
        dtype_of_name(self.model_dtype)
        if self.policies is not None:
            check_policies(self.policies, ())

    def _check_fusion(self) -> None:
        if not self.is_fused:
            return
        if self.model_path is None or self.two_stage is False:
            raise ValueError(
                "Fusion is a rule of the second stage: measure it, with a model, a benchmark and its root."
            )
        if self.fusion_weight is not None:
            check_weight(self.fusion_weight)
            if self.fusion_split is not None:
                raise ValueError("Give either the weight of the fusion or the split on which it is chosen, not both.")
        if self.fusion_split == self.split:
            raise ValueError(
                f"The weight of the fusion must be chosen on another split than the {self.split!r} that is reported."
            )
        if self.fusion_split is not None and self.annotations is not None:
            raise ValueError(
                "An annotation file holds one split: give the weight of the fusion, not a split to choose it on."
            )

    @property
    def is_fused(self) -> bool:
        """Whether the second stage is measured by the fused rule too."""
        return self.fusion_split is not None or self.fusion_weight is not None

    def benchmark_settings(self) -> dict[str, Any]:
        """Return how the benchmark is read: keyword arguments of [`~eval.benchmarks.load_split`]."""
        return {name: getattr(self, name) for name in ("captions", "annotations", "on_missing", "columns")}

    def reading(self) -> dict[str, Any]:
        """Return how clips are read, keyword arguments of both stages."""
        return {name: getattr(self, name) for name in ("batch_size", "on_error", "num_workers", "progress")}

    def arguments(self) -> dict[str, Any]:
        """Return the configuration as result files hold it: paths as text, how the benchmark is read by itself."""
        settings = self.benchmark_settings()
        values = {name: value for name, value in asdict(self).items() if name not in (*settings, "limits")}
        return json.loads(json.dumps(values | {"settings": settings}, default=os.fspath))


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
        masks = protocol_masks(given, config.rates, config.mask_seed)
        model, processor, split = source.model, source.processor, source.split
        given.fused_embeds = embed_fused_dataset(
            model, processor, split.dataset, given, masks, task=split.task, **config.reading()
        )
    return given, reranker


# From embeddings to metrics ------------------------------------------------------------------------------------------


def _first_stage(
    config: RunConfig, embeddings: Embeddings, score: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, list]]:
    """The metrics of the first stage, and the table of queries."""
    options = {name: value for name, value in score.items() if name != "method"}
    methods = measurable_methods(embeddings) if config.methods is None else config.methods
    fused = () if embeddings.fused_embeds is None else (FUSED,)
    methods = tuple(dict.fromkeys((score["method"], *fused, *methods)))
    measured = evaluate_embeddings(
        embeddings, methods, config.rates, config.mask_seed, progress=config.progress, **options
    )
    joint = [name for name in methods if name not in pathways()]
    measured["ladder"] = subset_ladder(embeddings, joint, **options) if joint else []
    methods = tuple(measured["rates"][0]["methods"])
    queries = query_table(embeddings, methods, **options)
    best = max(pathways(), key=lambda name: queries[f"rank_{name}"].count(1))
    compared = [name for name in (*fused, *_COMPARED) if name in methods]
    measured["differences"] = recall_differences(queries, score["method"], [*compared, best])
    kinds = embeddings.kinds()
    if any(kinds):
        queries["kind"] = kinds
        measured["kinds"] = recalls_by_kind(queries, methods)
    return measured, queries


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
    first, queries = _first_stage(config, embeddings, score)
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
    write_report(load_results([output / "results.json"]), output / "report")


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


__all__ = ["RunConfig", "SourceConfig", "check_made_by", "embeddings_of", "open_model", "run"]
