"""From clips to embeddings: files are read and processed in the background while the model computes.

A thread reads each clip, but a decoder, a separate process, does nearly all of the work: N threads keep N cores busy.
Clips keep their order: batches are consecutive items, even if some of them could not be read.

torch is imported where something is computed: it loads for a second, and often there is nothing to embed.
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from .decoding import Stop

if TYPE_CHECKING:
    import torch
    from transformers import BatchFeature, PreTrainedModel, ProcessorMixin

    from scalar_retrieval.modeling_scalar.model_identity import ModelIdentity
    from scalar_retrieval.modeling_scalar.processing_scalar import Clip

Item = TypeVar("Item")
Result = TypeVar("Result")
Note = TypeVar("Note")


def check_reading(batch_size: int, num_workers: int) -> None:
    """Raise a ValueError unless `batch_size` and `num_workers` are at least 1."""
    if batch_size < 1 or num_workers < 1:
        raise ValueError(f"`batch_size` and `num_workers` must be at least 1, got {batch_size} and {num_workers}.")


def modalities_option(identity: "ModelIdentity", modalities: Sequence[str] | None) -> dict[str, Any]:
    """The option of `load_model` with which a model embeds these modalities; none if the model defines its own."""
    if identity.kind != "encoder" or not modalities:
        return {}
    return {"modalities": list(modalities)}


def configure(processor: "ProcessorMixin", reading: Mapping[str, float]) -> None:
    """
    Make a processor read as much of each clip as [`~scalar_retrieval.gallery.store.described.reading_of`] says.

    Raises:
        ValueError: the model hears no sound, or no more than that.
    """
    for name, value in reading.items():
        most = processor.max_audio_seconds
        has_sound = "audio" in processor.modalities
        if name == "max_audio_seconds" and not (has_sound and value <= most < math.inf):
            length = f"{most:g} s" if has_sound else "nothing"
            raise ValueError(f"`sound_seconds` shortens what the model hears of a clip, which is {length}. Omit it.")
        setattr(processor, name, value)


def _in_order(futures: Iterable[Future], ahead: int) -> Iterator[Any]:
    """Yield results in order; futures are taken while at most `ahead` of them are not yet needed."""
    # Results are taken from the front, in the order of the futures, whichever is ready first.
    waiting = deque()
    for future in futures:
        waiting.append(future)
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def in_background(function: Callable[[Item], Result], batches: Iterable[Item], num_workers: int) -> Iterator[Result]:
    """Yield `function(batch)` in order, computed by threads that stay at most `num_workers` batches ahead."""
    with Stop().threads(num_workers) as executor:
        yield from _in_order((executor.submit(function, batch) for batch in batches), num_workers)


@dataclass(eq=False)
class ReadBatch:
    """
    Consecutive items that have been read.

    Args:
        notes (`list`): what the reader reported of each item.
        embeddable (`list[int]`): the indices of the items with a clip.
        features (`BatchFeature`, *optional*): the processor's output for these clips; `None` if there are none.
    """

    notes: list[Any]
    embeddable: list[int]
    features: "BatchFeature | None"


def in_batches(items: Iterable[Item], batch_size: int) -> Iterator[list[Item]]:
    """Cut items, lazily, into lists of `batch_size`; the last one may be shorter."""
    items = iter(items)
    return iter(lambda: list(islice(items, batch_size)), [])


def read_batches(
    processor: "ProcessorMixin",
    items: Iterable[Item],
    read: "Callable[[Item], tuple[Note, Clip | None]]",
    batch_size: int,
    num_workers: int,
) -> Generator[ReadBatch, None, None]:
    """
    Read and process items in the background, in order.

    Closing the generator early stops all reading at once.

    Args:
        processor ([`~scalar_retrieval.modeling_scalar.ScalarProcessor`]): turns clips into features; or another
            callable with `clips=`.
        items (iterable): what represents a clip, such as a path; consumed lazily.
        read (`Callable`): from an item to a note on it and its clip, `None` if there is nothing to embed. Called in
            threads; an exception ends the run.
        batch_size (`int`): items per batch; the last one may have fewer.
        num_workers (`int`): items that are read at a time.
    """

    import torch

    def prepare(reading: list[Future]) -> ReadBatch:
        # Only clips with something to embed are processed; the notes are on all items.
        notes = []
        clips = []
        embeddable = []
        for place, future in enumerate(reading):
            note, clip = future.result()
            notes.append(note)
            if clip is not None:
                clips.append(clip)
                embeddable.append(place)
        if not clips:
            return ReadBatch(notes, embeddable, None)
        features = processor(clips=clips)
        # A GPU copies from pinned memory while it computes.
        if torch.cuda.is_available():
            for name, values in features.items():
                if isinstance(values, torch.Tensor):
                    features[name] = values.pin_memory()
        return ReadBatch(notes, embeddable, features)

    stop = Stop()
    # One thread prepares: fast tokenizers fail when two threads set their padding at once.
    with stop.threads(1) as preparer, stop.threads(num_workers) as readers:

        def prepared() -> Iterator[Future]:
            for batch in in_batches(items, batch_size):
                reading = [readers.submit(read, item) for item in batch]
                yield preparer.submit(prepare, reading)

        # So many batches in advance keep the readers busy while the last clip of a batch is read.
        yield from _in_order(prepared(), 1 + -(-num_workers // batch_size))


def embed_clips(model: "PreTrainedModel", features: "BatchFeature") -> "tuple[torch.Tensor, torch.Tensor]":
    """
    Embed one batch of clips.

    Args:
        model ([`~scalar_retrieval.modeling_scalar.ScalarModel`]), features (`BatchFeature`): the model and its
            processor's output.

    Returns:
        The embeddings `(batch, M, dim)` and the mask `(batch, M)`; on the CPU, in float32.
    """
    import torch

    from .store.columns import unit_vectors

    # First to the device, as a conversion would give memory that is not pinned.
    features = features.to(model.device, non_blocking=True).to(model.dtype)
    with torch.no_grad():
        modality_embeds, modality_mask = model.get_modality_features(**features)
        return unit_vectors(modality_embeds), modality_mask.cpu()


@dataclass(eq=False)
class Embedded:
    """
    Consecutive items that have been read and embedded.

    Args:
        notes (`list`): what the reader reported of each item.
        embeddable (`list[int]`): the indices of the items with a clip.
        embeds (`tuple`, *optional*): the output of [`embed_clips`] for these clips; `None` if there are none.
    """

    notes: list[Any]
    embeddable: list[int]
    embeds: "tuple[torch.Tensor, torch.Tensor] | None"

    @classmethod
    def joined(cls, parts: Iterable["Embedded"]) -> "Embedded":
        """Concatenate several of them."""
        import torch

        notes = []
        embeddable = []
        embeds = []
        for part in parts:
            # Indices continue after the items of earlier parts.
            embeddable += [len(notes) + place for place in part.embeddable]
            notes += part.notes
            if part.embeds is not None:
                embeds.append(part.embeds)
        if not embeds:
            return cls(notes, embeddable, None)
        return cls(notes, embeddable, tuple(map(torch.cat, zip(*embeds, strict=True))))


def embed_batches(
    model: "PreTrainedModel",
    processor: "ProcessorMixin",
    items: Iterable[Item],
    read: "Callable[[Item], tuple[Note, Clip | None]]",
    batch_size: int,
    num_workers: int,
) -> Generator[Embedded, None, None]:
    """
    Read and embed items in batches, in order.

    Args:
        model ([`~scalar_retrieval.modeling_scalar.ScalarModel`]): embeds.
        processor, items, read, batch_size, num_workers: as in [`read_batches`].
    """
    with closing(read_batches(processor, items, read, batch_size, num_workers)) as reading:
        for batch in reading:
            embeds = None if batch.features is None else embed_clips(model, batch.features)
            yield Embedded(batch.notes, batch.embeddable, embeds)


__all__ = [
    "Embedded",
    "ReadBatch",
    "check_reading",
    "configure",
    "embed_batches",
    "embed_clips",
    "in_background",
    "in_batches",
    "modalities_option",
    "read_batches",
]
