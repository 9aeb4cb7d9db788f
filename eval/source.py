"""A model and a benchmark, loaded for an evaluation: both are read for the embeddings and for the second stage.

Evaluating given embeddings does not import this module.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, ProcessorMixin

from scalar_retrieval import modeling_scalar
from scalar_retrieval.gallery.decoding import sandboxed
from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.gallery.second_stage.matching import check_can_match, measurable_policies
from scalar_retrieval.gallery.store.contents import is_gallery
from scalar_retrieval.gallery.store.described import MODALITIES
from scalar_retrieval.gallery.store.provenance import provenance_of
from scalar_retrieval.modeling_scalar.model_identity import default_device, identify, model_summary
from scalar_retrieval.modeling_scalar.scores_scalar import WEIGHING

from .benchmarks.clip_rows import num_trained_on, query_kinds
from .benchmarks.definition import Split, configure_processor
from .benchmarks.registry import describe_benchmark, load_split
from .embedding.embed_dataset import embed_dataset
from .embedding.embeddings import Embeddings
from .embedding.query_gallery import query_gallery
from .protocol.first_stage import check_methods
from .protocol.second_stage import TwoStage

if TYPE_CHECKING:
    from .settings import RunConfig

logger = logging.getLogger(__name__)


def check_made_by(path: str | os.PathLike, model_path: str | os.PathLike) -> None:
    """Raise a ValueError if a gallery was made by another model; other embeddings do not record their model."""
    if is_gallery(path):
        Gallery.open(path).check_model(str(model_path), identify(model_path).fingerprint)


def _files(split: Split) -> dict[tuple[str | None, str | None], str]:
    """Return the identifier of each clip by its video and audio file, if it has any."""
    columns = split.dataset.select_columns(["video_path", "audio_path", "video_id"]).to_dict()
    files = {}
    for video, audio, name in zip(*columns.values(), strict=True):
        if video or audio:
            files[video, audio] = name
    return files


def _check_apart(config: "RunConfig", reported: Split, other: Split) -> None:
    # A clip is the same if its files are, whatever its id.
    theirs = _files(other)
    shared = [name for files, name in _files(reported).items() if files in theirs]
    if shared:
        raise ValueError(
            f"The weight of the fusion must be chosen on other clips than those that are reported, but the splits "
            f"{config.fusion_split!r} and {config.split!r} share {len(shared)}, such as {shared[0]!r}."
        )


def _as_searched(gallery: Gallery, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a search in a gallery scores: the model's method, with the gallery's own modalities and their
    weights."""
    temperature = gallery.metadata.get("query_temperature")
    if temperature is None:
        temperature = 0.1
    weighing = {"query_temperature": temperature} | gallery.calibration
    options = {name: value for name, value in metadata["score_options"].items() if name not in WEIGHING}
    return {
        "query_temperature": weighing["query_temperature"],
        "score_options": options | weighing,
        MODALITIES: list(gallery.modalities),
    }


@dataclass
class Source:
    """A model with its processor, the clips to read, and the clips to choose the weight of the fusion on, if any."""

    config: "RunConfig"
    model: PreTrainedModel
    processor: ProcessorMixin
    split: Split
    fusion_split: Split | None = None

    @classmethod
    def open(cls, config: "RunConfig") -> "Source":
        """
        Load the requested splits, then the model.

        Raises:
            ValueError: the second stage is requested, but the model has none; a score reads modalities that the model
                does not embed; or the fusion would be chosen on clips that are reported.
        """
        # The clips first: annotations are the quickest to fail.
        settings = config.benchmark_settings()
        split = load_split(config.benchmark, config.root, config.split, **settings)
        fusion_split = None
        if config.fusion_split is not None:
            fusion_split = load_split(config.benchmark, config.root, config.fusion_split, **settings)
            _check_apart(config, split, fusion_split)

        # Then the model, and a processor that reads files in other processes.
        model, processor = modeling_scalar.load_model(config.model_path, device=default_device())
        logger.info("%s: %s.", config.model_path, model_summary(model))
        processor = configure_processor(sandboxed(processor, on_error=config.on_error), split.processing)
        source = cls(config, model, processor, split, fusion_split)
        if config.two_stage or fusion_split is not None:
            check_can_match(model)
        if config.embeddings_path is None:
            check_methods(config.methods or (), model.config.modalities)
        return source

    @property
    def has_second_stage(self) -> bool:
        """Whether the second stage is measured."""
        return self.model.config.has_cross_attention and self.config.two_stage is not False

    @property
    def policies(self) -> Sequence[str]:
        """The second stage's inputs for a masked modality."""
        return measurable_policies(self.model.config.condition_on)

    def embed(self, split: Split) -> Embeddings:
        """Embed clips and captions, in memory."""
        return embed_dataset(self.model, self.processor, split.dataset, task=split.task, **self.config.reading())

    def metadata(self) -> dict[str, Any]:
        """Return what the embeddings of these clips depend on, for their metadata and the results."""
        config = self.config
        split = self.split
        return provenance_of(
            self.model,
            config.model_path,
            benchmark=config.benchmark,
            benchmark_description=describe_benchmark(config.benchmark, config.root),
            split=config.split,
            task=split.task,
            processing=dict(split.processing),
            left_out=split.left_out,
            device=str(self.model.device),
            on_error=config.on_error,
            trained_on=num_trained_on(config.model_path, split.dataset),
            **query_kinds(split.dataset, split.task),
        )

    def _two_stage(self, split: Split, embeddings: Embeddings, score: Mapping[str, Any], **options: Any) -> TwoStage:
        config = self.config
        # Both splits are read and scored alike.
        options |= {"score_options": dict(score), "rates": config.rates, "depth": max(config.depths)}
        options |= config.reading()
        return TwoStage(self.model, self.processor, split.dataset, embeddings, **options)

    def _fusion(self, score: Mapping[str, Any]) -> dict[str, Any] | None:
        """The weight of a match logit, and how it was chosen: on the other split, with the same masks."""
        if self.fusion_split is None:
            return None
        # Candidates and match logits of the other split, with its own embeddings.
        embeddings = self.embed(self.fusion_split)
        stages = self._two_stage(self.fusion_split, embeddings, score, policies=self.policies[:1])
        return {
            "split": self.config.fusion_split,
            "num_clips": len(embeddings.clip_ids),
            **stages.choose_weight(),
        }

    def second_stage(self, embeddings: Embeddings, score: Mapping[str, Any]) -> dict[str, Any]:
        """Return the second stage's part of the results, empty if it is not measured."""
        if not self.has_second_stage:
            return {}
        # The weight first, chosen on the other split.
        fusion = self._fusion(score)
        stages = self._two_stage(self.split, embeddings, score, policies=self.policies)
        weight = None
        if fusion is not None:
            weight = fusion["weight"]
        return {
            "two_stage": stages.metrics(self.config.depths, weight),
            "two_stage_fusion": fusion,
            "two_stage_diagnostic": stages.diagnostic(),
        }


def prepare(config: "RunConfig") -> tuple[Embeddings, Source]:
    """
    Return the embeddings to measure, and the model and clips they belong to.

    Given embeddings have queries, whose kinds come from the benchmark. A gallery without queries has clips only; their
    captions come from the benchmark. What is embedded here is saved in the output folder.

    Raises:
        ValueError: a step cannot be done; FileNotFoundError: a file does not exist.
    """
    path = config.embeddings_path

    # Given embeddings are read before the model, which takes longer to load.
    gallery = None
    if path is not None and is_gallery(path):
        gallery = Gallery.open(path)
    if path is not None and (gallery is None or gallery.queries is not None):
        embeddings = Embeddings.load(path)
        source = Source.open(config)
        embeddings.metadata = query_kinds(source.split.dataset, source.split.task) | embeddings.metadata
        return embeddings, source

    # Otherwise what is missing is embedded: the captions of a gallery, or captions and clips.
    if gallery is not None:
        check_made_by(path, config.model_path)
    source = Source.open(config)
    split = source.split
    metadata = source.metadata()
    if gallery is not None:
        embeddings = query_gallery(
            gallery, source.model, source.processor, split.dataset, split.task, config.batch_size
        )
        embeddings.metadata = metadata | embeddings.metadata | _as_searched(gallery, metadata)
    else:
        embeddings = source.embed(split)
        embeddings.metadata = metadata
    embeddings.save(Path(config.output) / "embeddings")
    return embeddings, source


__all__ = ["Source", "check_made_by", "prepare"]
