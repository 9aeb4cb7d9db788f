"""Embeds a data set of clips with a model, in memory; [`~scalar_retrieval.eval.embedding.embed_benchmark`] writes them
to a gallery.

Clips keep their place from the first row to the last score: none is dropped, replaced or imputed. Background threads
read files and wait for decoders while the model computes.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import BatchFeature, PreTrainedModel, ProcessorMixin

from scalar_retrieval.gallery.embedding import (
    Embedded,
    ReadBatch,
    check_reading,
    embed_batches,
    embed_clips,
    read_batches,
)
from scalar_retrieval.gallery.querying import embed_captions
from scalar_retrieval.gallery.store.columns import unit_vectors

from ..benchmarks.clip_rows import group_rows, read_row, warn_unread
from .embeddings import Embeddings

if TYPE_CHECKING:
    from scalar_retrieval.modeling_scalar.processing_scalar import Clip

Part = TypeVar("Part", ReadBatch, Embedded)


def row_reader(
    processor: ProcessorMixin,
) -> "Callable[[dict[str, Any]], tuple[tuple[str, list[str]], Clip | None]]":
    """Return the reader of rows for [`~scalar_retrieval.gallery.embedding.read_batches`]; it notes a clip's identifier
    and problems."""

    def read(row: dict[str, Any]) -> "tuple[tuple[str, list[str]], Clip | None]":
        # `None` in place of an empty clip, so that every clip keeps its place.
        clip = read_row(processor, row, processed=True)
        note = row["video_id"], clip.problems
        if clip.is_empty:
            return note, None
        return note, clip

    return read


def problems_of(batch: Part) -> list[str]:
    """Return what could not be read of clips, each line with the clip's identifier."""
    lines = []
    for name, problems in batch.notes:
        lines += [f"{name}: {problem}" for problem in problems]
    return lines


def _refuse_empty(batches: Iterable[Part], modalities: Iterable[str]) -> Generator[Part, None, None]:
    """Yield batches until a clip has no modality; then read the rest, to list all such clips in a ValueError."""
    problems = []
    empty = []
    for batch in batches:
        problems += problems_of(batch)
        # Places of a batch that cannot be embedded are empty clips.
        for place, (name, _) in enumerate(batch.notes):
            if place not in batch.embeddable:
                empty.append(name)
        if not empty:
            yield batch
    if empty:
        raise ValueError(
            f"{len(empty)} clips have nothing that the model embeds ({', '.join(modalities)}) and cannot be scored. "
            "Clips are never dropped from a gallery: repair them or leave them out of the data set. If `scalar index` "
            "has transcribed them, give its gallery: `--words-of GALLERY` to `scalar eval embed` for the words in it, "
            f"or `--embeddings GALLERY` to evaluate it. They are {empty}. Reading reported: {problems}"
        )


def read_rows(
    processor: ProcessorMixin, clips: list[dict[str, Any]], batch_size: int, num_workers: int
) -> Iterator[ReadBatch]:
    """
    Read and process clips in background threads, in order, without leaving any out.

    Args:
        processor ([`~scalar_retrieval.modeling_scalar.ScalarProcessor`]): reads the files.
        clips (`list[dict]`): from [`group_rows`].
        batch_size (`int`), num_workers (`int`): as in [`embed_dataset`].

    Yields:
        [`~scalar_retrieval.gallery.embedding.ReadBatch`]: `batch_size` clips (the last one may hold fewer); a note is
            the identifier
        of a clip and what could not be read of it.

    Raises:
        FileNotFoundError, ValueError: from [`read_row`], or clips have no modality left (all of them are listed).
    """
    batches = read_batches(processor, clips, row_reader(processor), batch_size, num_workers)
    return _refuse_empty(batches, processor.modalities)


def embed_rows(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    clips: Sequence[dict[str, Any]],
    batch_size: int,
    num_workers: int,
) -> Generator[Embedded, None, None]:
    """
    Read and embed clips, in order, without leaving any out.

    Args:
        model ([`~scalar_retrieval.modeling_scalar.ScalarModel`]): the model.
        processor, clips, batch_size, num_workers: as in [`read_rows`].

    Yields:
        [`~scalar_retrieval.gallery.embedding.Embedded`]: the clips of a batch; notes as in [`read_rows`].

    Raises:
        FileNotFoundError, ValueError: as in [`read_rows`].
    """
    batches = embed_batches(model, processor, clips, row_reader(processor), batch_size, num_workers)
    return _refuse_empty(batches, processor.modalities)


def embed_texts(
    model: PreTrainedModel, processor: ProcessorMixin, captions: Sequence[str], batch_size: int, progress: bool = False
) -> torch.Tensor:
    """Embed captions in batches: `torch.FloatTensor` of shape `(captions, dim)`, unit norm, on the CPU."""
    embeds = []
    with tqdm(total=len(captions), desc="captions", unit="caption", disable=not progress) as bar:
        for start in range(0, len(captions), batch_size):
            embeds.append(embed_captions(model, processor, captions[start : start + batch_size]))
            bar.update(len(embeds[-1]))
    return torch.cat(embeds)


@torch.no_grad()
def _embed_heads(model: PreTrainedModel, features: BatchFeature) -> torch.Tensor:
    """Compute the output of concatenation heads for a batch of clips, `(batch, 3, dim)`; runs the towers again."""
    return unit_vectors(model.get_concat_features(**features.to(model.device, model.dtype)))


def embed_dataset(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    dataset: Dataset,
    batch_size: int = 32,
    progress: bool = True,
    num_workers: int = 2,
    task: str = "retrieval",
) -> Embeddings:
    """
    Embed the clips and captions of a data set; rows with the same `video_id` are one clip with several captions.

    Args:
        model ([`~scalar_retrieval.modeling_scalar.ScalarModel`]): run in evaluation mode, then returned to its earlier
            mode.
        processor ([`~scalar_retrieval.modeling_scalar.ScalarProcessor`]): reads the files, with its settings for
            testing.
        dataset (`datasets.Dataset`): the columns `video_id`, `caption`, `video_path`, `audio_path` and `subtitle`;
            `None` if absent. An `audio_path` equal to `video_path` is the video's own track, if it has one. Columns
            named like further modalities of the model hold their texts.
        batch_size (`int`): clips, or captions, per forward pass. Changes speed and memory, not results.
        progress (`bool`): show a bar with an estimate of the time left.
        num_workers (`int`): threads that read batches ahead. Each holds one raw frame at a time.
        task (`str`): meaning of the captions, see [`group_rows`].

    Returns:
        [`Embeddings`] in float32 on the CPU, clips and captions in the order of their rows.

    Raises:
        ValueError: as in [`group_rows`], a clip cannot be read (with its identifier and path), or clips have no
            modality left (all of them are listed).
        FileNotFoundError: a file does not exist.
    """
    # Settings and rows are checked before anything is read.
    check_reading(batch_size, num_workers)
    warn_unread(dataset.column_names, processor.modalities)
    clips, captions, query_ids, pairs = group_rows(dataset, task, processor.modalities)

    # Captions, then clips; the heads run the towers a second time, only for models that have them.
    was_training = model.training
    model.eval()
    has_heads = getattr(model.config, "has_concat_heads", False)  # joint encoders have no such setting
    parts = []
    heads = []
    try:
        text_embeds = embed_texts(model, processor, captions, batch_size, progress)
        with tqdm(total=len(clips), desc="clips", unit="clip", disable=not progress) as bar:
            # Each batch is embedded while the next ones are read.
            for batch in read_rows(processor, clips, batch_size, num_workers):
                parts.append(Embedded(batch.notes, batch.embeddable, embed_clips(model, batch.features)))
                if has_heads:
                    heads.append(_embed_heads(model, batch.features))
                bar.update(len(batch.notes))
    finally:
        model.train(was_training)

    # All clips in one tensor (V, M, D), with the mask (V, M) of what each has.
    embedded = Embedded.joined(parts)
    modality_embeds, modality_mask = embedded.embeds
    concat_embeds = None
    if has_heads:
        concat_embeds = torch.cat(heads)
    return Embeddings(
        text_embeds=text_embeds,
        modality_embeds=modality_embeds,
        modality_mask=modality_mask,
        pairs=torch.tensor(pairs),
        clip_ids=[clip["video_id"] for clip in clips],
        query_ids=query_ids,
        captions=captions,
        concat_embeds=concat_embeds,
        problems=problems_of(embedded),
        modalities=model.config.modalities,
    )


__all__ = ["embed_dataset", "embed_rows", "embed_texts", "problems_of", "read_rows"]
