"""From clips to embeddings: files are read and processed in the background while the model computes.

Reading a clip is done by a thread, but nearly all of its work by a decoder, a process of its own: so many threads keep
so many cores busy. A clip keeps its place: batches are consecutive items, whatever could not be read of them.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from gallery.decoding import Stop

if TYPE_CHECKING:
    from transformers import BatchFeature, PreTrainedModel, ProcessorMixin

    from modeling_scalar.processing_scalar import Clip

Item, Result, Note = TypeVar("Item"), TypeVar("Result"), TypeVar("Note")


def check_reading(batch_size: int, on_error: str, num_workers: int) -> None:
    """Raise a ValueError unless there is a clip in a batch, a thread to read it, and `on_error` is known."""
    if on_error not in ("raise", "missing"):
        raise ValueError(f'`on_error` must be "raise" or "missing", got {on_error!r}.')
    if batch_size < 1 or num_workers < 1:
        raise ValueError(f"`batch_size` and `num_workers` must be at least 1, got {batch_size} and {num_workers}.")


def in_background(function: Callable[[Item], Result], batches: Iterable[Item], num_workers: int) -> Iterator[Result]:
    """Yield `function(batch)` in order, computed by threads that stay at most `num_workers` batches ahead."""
    with ThreadPoolExecutor(num_workers) as executor:
        waiting = deque()
        try:
            for batch in batches:
                waiting.append(executor.submit(function, batch))
                if len(waiting) > num_workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            executor.shutdown(wait=True, cancel_futures=True)


@dataclass(eq=False)
class Batch:
    """
    Consecutive items that were read.

    Args:
        notes (`list`): what the reader said of each item.
        embeddable (`list[int]`): the places of those with a clip.
        features (`BatchFeature`, *optional*): what the processor made of these clips; `None` if there are none.
    """

    notes: list[Any]
    embeddable: list[int]
    features: "BatchFeature | None"


def in_batches(items: Iterable[Item], batch_size: int) -> Iterator[list[Item]]:
    """Cut items into lists of `batch_size`, of which the last may be shorter, asking for them as they are needed."""
    items = iter(items)
    return iter(lambda: list(islice(items, batch_size)), [])


def batches_ahead(batch_size: int, num_workers: int) -> int:
    """How many batches are begun before one is waited for, so that readers are busy while its last clip is read."""
    return 1 + -(-num_workers // batch_size)


def read_batches(
    processor: "ProcessorMixin",
    items: Iterable[Item],
    read: "Callable[[Item], tuple[Note, Clip | None]]",
    batch_size: int,
    num_workers: int,
) -> Generator[Batch, None, None]:
    """
    Read and process items in the background, in order, `batch_size` of them at a time: see [`read_in_batches`].

    Args:
        items (iterable): what stands for a clip, a path say; asked for its items as they are needed.
        batch_size (`int`): items of a batch; the last one may have fewer.
        processor, read, num_workers: as there.
    """
    batches, ahead = in_batches(items, batch_size), batches_ahead(batch_size, num_workers)
    return read_in_batches(processor, batches, read, num_workers, ahead)


def read_in_batches(
    processor: "ProcessorMixin",
    batches: Iterable[Sequence[Item]],
    read: "Callable[[Item], tuple[Note, Clip | None]]",
    num_workers: int,
    ahead: int,
) -> Generator[Batch, None, None]:
    """
    Read and process batches of items in the background, in order.

    A generator that is closed early gives up what is being read at once.

    Args:
        processor ([`~modeling_scalar.ScalarProcessor`]): turns clips into features; or what else is called with them.
        batches (iterable): lists of items, each of which stands for a clip; asked for as they are needed.
        read (`Callable`): from an item to whatever is to be noted of it and its clip, `None` if there is nothing to
            embed. Called in threads; what it raises ends the run.
        num_workers (`int`): items that are read at a time.
        ahead (`int`): batches that are asked for before the first is given out, beside it.
    """

    def prepare(reading: list[Future]) -> Batch:
        notes, clips = list(zip(*(future.result() for future in reading), strict=True)) or ((), ())
        embeddable = [place for place, clip in enumerate(clips) if clip is not None]
        features = processor(clips=[clips[place] for place in embeddable]) if embeddable else None
        return Batch(list(notes), embeddable, features)

    # Files side by side keep the processors busy, and each gives the same pictures whenever it is read.
    stop, waiting = Stop(num_threads=1 if num_workers > 1 else 0), deque()
    readers = ThreadPoolExecutor(num_workers, initializer=stop.join)
    # One thread: fast tokenizers fail when two set their padding at once.
    preparer = ThreadPoolExecutor(1, initializer=stop.join)
    try:
        for batch in batches:
            waiting.append(preparer.submit(prepare, [readers.submit(read, item) for item in batch]))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        stop.set()
        readers.shutdown(wait=True, cancel_futures=True)
        preparer.shutdown(wait=True, cancel_futures=True)


def _unit(embeds: torch.Tensor) -> torch.Tensor:
    """In float32 on the CPU; of unit norm there, too, if the model computed with fewer digits."""
    full = embeds.float()
    return (full if embeds.dtype == torch.float32 else torch.nn.functional.normalize(full, dim=-1)).cpu()


@torch.no_grad()
def embed_clips(
    model: "PreTrainedModel", features: "BatchFeature"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """
    Embed one batch of clips; each tower of pictures and sound runs once.

    Args:
        model ([`~modeling_scalar.ScalarModel`]), features (`BatchFeature`): the model and what its processor made.

    Returns:
        The embeddings `(batch, M, dim)`, the mask `(batch, M)` and what the concatenation heads give
        `(batch, 3, dim)`, `None` for a model without them; on the CPU, in float32.
    """
    inputs = dict(features.to(model.device, model.dtype))
    concat_embeds = None
    if model.config.has_concat_heads:
        raw = {name: inputs.pop(name) for name in ("pixel_values_videos", "input_features") if name in inputs}
        if raw:
            mask = inputs["modality_mask"]
            inputs |= model.get_tower_features(**raw, modality_mask=mask, with_states=False)
        concat_embeds = _unit(model.get_concat_features(**inputs))
    modality_embeds, modality_mask = model.get_modality_features(**inputs)
    return _unit(modality_embeds), modality_mask.cpu(), concat_embeds


@dataclass(eq=False)
class Embedded:
    """
    Consecutive items that were read and embedded.

    Args:
        notes (`list`): what the reader said of each item.
        embeddable (`list[int]`): the places of those with a clip.
        embeds (`tuple`, *optional*): of these clips, what [`embed_clips`] gives; `None` if there are none.
    """

    notes: list[Any]
    embeddable: list[int]
    embeds: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None

    @classmethod
    def joined(cls, parts: Iterable["Embedded"]) -> "Embedded":
        """One after the other."""
        parts, notes, embeddable = list(parts), [], []
        for part in parts:
            embeddable += [len(notes) + place for place in part.embeddable]
            notes += part.notes
        columns = list(zip(*(part.embeds for part in parts if part.embeds is not None), strict=True))
        embeds = tuple(None if column[0] is None else torch.cat(column) for column in columns)
        return cls(notes, embeddable, embeds or None)


def embed_batches(
    model: "PreTrainedModel",
    processor: "ProcessorMixin",
    read: "Callable[[Item], tuple[Note, Clip | None]]",
    num_workers: int,
    batches: Iterable[Sequence[Item]],
    ahead: int,
) -> Generator[Embedded, None, None]:
    """
    Read and embed batches of items, in order: what each process of a [`~gallery.parallel.Crew`] does with its share.

    Args:
        model ([`~modeling_scalar.ScalarModel`]): embeds.
        processor, read, num_workers, batches, ahead: as in [`read_in_batches`].
    """
    with closing(read_in_batches(processor, batches, read, num_workers, ahead)) as reading:
        for batch in reading:
            embeds = embed_clips(model, batch.features) if batch.embeddable else None
            yield Embedded(batch.notes, batch.embeddable, embeds)


@torch.no_grad()
def embed_fused(model: "PreTrainedModel", features: "BatchFeature") -> torch.Tensor:
    """Embed what `fuse` of a processor made of clips: `torch.FloatTensor` `(batch, dim)`, unit norm, on the CPU."""
    return _unit(model.get_fused_features(**features.to(model.device, model.dtype)))


@torch.no_grad()
def embed_captions(model: "PreTrainedModel", processor: "ProcessorMixin", captions: Sequence[str]) -> torch.Tensor:
    """Embed one batch of texts: `torch.FloatTensor` of shape `(batch, dim)`, unit norm, on the CPU.

    `(batch, M, dim)` by a model of which each modality meets a vector of its own.
    """
    batch = processor(text=list(captions)).to(model.device)
    return _unit(model.get_text_features(batch["input_ids"], batch["attention_mask"]).pooler_output)


__all__ = [
    "Batch",
    "Embedded",
    "batches_ahead",
    "check_reading",
    "embed_batches",
    "embed_captions",
    "embed_clips",
    "embed_fused",
    "in_background",
    "in_batches",
    "read_batches",
    "read_in_batches",
]
