"""A model and a split of a benchmark, loaded: both are read for the embeddings and for the second stage.

Evaluating given embeddings does not import this module.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, ProcessorMixin

from scalar_retrieval import modeling_scalar
from scalar_retrieval.gallery.decoding import sandboxed
from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.gallery.second_stage.matching import measurable_policies
from scalar_retrieval.gallery.store.described import MODALITIES
from scalar_retrieval.gallery.store.provenance import provenance_of
from scalar_retrieval.modeling_scalar.model_identity import default_device, model_summary
from scalar_retrieval.modeling_scalar.scores_scalar import WEIGHING

from .benchmarks.clip_rows import num_trained_on, query_kinds
from .benchmarks.definition import Split, configure_processor
from .benchmarks.registry import describe_benchmark, load_split
from .embedding.embed_dataset import embed_dataset
from .embedding.embeddings import Embeddings
from .embedding.query_gallery import query_gallery
from .inputs import Inputs
from .protocol.second_stage import TwoStage

logger = logging.getLogger(__name__)


def _files(split: Split) -> dict[tuple[str | None, str | None], str]:
    """Return the identifier of each clip by its video and audio file, if it has any."""
    columns = split.dataset.select_columns(["video_path", "audio_path", "video_id"]).to_dict()
    files = {}
    for video, audio, name in zip(*columns.values(), strict=True):
        if video or audio:
            files[video, audio] = name
    return files


def _check_apart(names: tuple[str, str], reported: Split, other: Split) -> None:
    """Raise a ValueError if the split that is reported and the one that the fusion is chosen on share clips."""
    # A clip is the same if its files are, whatever its id.
    theirs = _files(other)
    shared = [name for files, name in _files(reported).items() if files in theirs]
    if shared:
        raise ValueError(
            f"The weight of the fusion must be chosen on other clips than those that are reported, but the splits "
            f"{names[1]!r} and {names[0]!r} share {len(shared)}, such as {shared[0]!r}."
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

    inputs: Inputs
    model: PreTrainedModel
    processor: ProcessorMixin
    split: Split
    fusion_split: Split | None = None

    @classmethod
    def open(cls, inputs: Inputs, fusion_split: str | None = None) -> "Source":
        """
        Load the requested splits, then the model.

        Raises:
            ValueError: the fusion would be chosen on clips that are reported, or a split or the model is wrong.
            FileNotFoundError: a file does not exist.
        """
        # The clips first: annotations are the quickest to fail.
        benchmark, root = inputs.benchmark, inputs.root
        split = load_split(benchmark, root, inputs.split, **inputs.settings)
        other = None
        if fusion_split is not None:
            other = load_split(benchmark, root, fusion_split, **inputs.settings)
            _check_apart((inputs.split, fusion_split), split, other)

        # Then the model, and a processor that reads files in other processes.
        model, processor = modeling_scalar.load_model(inputs.model, device=default_device())
        logger.info("%s: %s.", inputs.model, model_summary(model))
        processor = configure_processor(sandboxed(processor, on_error=inputs.on_error), split.processing)
        return cls(inputs, model, processor, split, other)

    def _embed(self, split: Split) -> Embeddings:
        """Embed clips and captions, in memory."""
        return embed_dataset(self.model, self.processor, split.dataset, task=split.task, **self.inputs.reading())

    def metadata(self) -> dict[str, Any]:
        """Return what the embeddings of these clips depend on, for their metadata and the results."""
        inputs = self.inputs
        split = self.split
        return provenance_of(
            self.model,
            inputs.model,
            benchmark=inputs.benchmark,
            benchmark_description=describe_benchmark(inputs.benchmark, inputs.root),
            split=inputs.split,
            task=split.task,
            processing=dict(split.processing),
            left_out=split.left_out,
            device=str(self.model.device),
            on_error=inputs.on_error,
            trained_on=num_trained_on(inputs.model, split.dataset),
            **query_kinds(split.dataset, split.task),
        )

    def embed(self, gallery: Gallery | None = None) -> Embeddings:
        """Embed the captions and, unless a gallery of the same model has them, the clips."""
        metadata = self.metadata()
        if gallery is None:
            embeddings = self._embed(self.split)
            embeddings.metadata = metadata
            return embeddings
        rows = (self.split.dataset, self.split.task)
        embeddings = query_gallery(gallery, self.model, self.processor, *rows, self.inputs.batch_size)
        embeddings.metadata = metadata | embeddings.metadata | _as_searched(gallery, metadata)
        return embeddings

    def second_stage(
        self,
        embeddings: Embeddings,
        score: Mapping[str, Any],
        rates: Sequence[float],
        depths: Sequence[int],
        fusion_split: str | None,
    ) -> dict[str, Any]:
        """Return the second stage's part of the results."""
        # Both splits are read and scored alike, with the same masks.
        options = {"score_options": dict(score), "rates": rates, "depth": max(depths)} | self.inputs.reading()
        policies = measurable_policies(self.model.config.condition_on)

        # The weight of a match logit first, chosen on the other split.
        fusion = None
        weight = None
        if self.fusion_split is not None:
            dataset = self.fusion_split.dataset
            others = self._embed(self.fusion_split)
            stages = TwoStage(self.model, self.processor, dataset, others, policies=policies[:1], **options)
            fusion = {"split": fusion_split, "num_clips": len(others.clip_ids), **stages.choose_weight()}
            weight = fusion["weight"]
        stages = TwoStage(self.model, self.processor, self.split.dataset, embeddings, policies=policies, **options)
        return {
            "two_stage": stages.metrics(depths, weight),
            "two_stage_fusion": fusion,
            "two_stage_diagnostic": stages.diagnostic(),
        }


__all__ = ["Source"]
