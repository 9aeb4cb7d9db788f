"""From a model and a data set of clips to embeddings.

A clip keeps its place from the first row to the last score: nothing is dropped, replaced or imputed. Files are read in
background threads (decoders release the GIL) while the model computes.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import torch
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import BatchFeature, PreTrainedModel, ProcessorMixin

from eval.benchmarks.columns import FEATURES
from eval.embeddings import Embeddings
from modeling_scalar.media_scalar import MediaError
from modeling_scalar.processing_scalar import FROM_VIDEO, Clip

_CLIP_COLUMNS = tuple(name for name in FEATURES if name != "caption")


def group_rows(dataset: Dataset) -> tuple[list[dict[str, Any]], list[str], list[str], list[int]]:
    """Split rows into clips and captions: (clips, captions, query_ids, targets), in the order of first appearance."""
    missing = [name for name in FEATURES if name not in dataset.column_names]
    if missing:
        raise ValueError(f"Expected the columns {list(FEATURES)}; {missing} are not among {dataset.column_names}.")
    clips: dict[str, dict[str, Any]] = {}
    rows: dict[str, int] = {}
    num_captions: dict[str, int] = {}
    captions, query_ids, targets = [], [], []
    for row in dataset.select_columns(list(FEATURES)):
        clip_id, caption = row["video_id"], row["caption"]
        clip = {name: row[name] for name in _CLIP_COLUMNS}
        if clips.setdefault(clip_id, clip) != clip:
            raise ValueError(
                f"Rows of the clip {clip_id!r} name different files or subtitles: {clips[clip_id]} and {clip}. One "
                "`video_id` is one clip."
            )
        if not caption or not caption.strip():
            raise ValueError(f"A row of the clip {clip_id!r} has no caption, got {caption!r}.")
        targets.append(rows.setdefault(clip_id, len(rows)))
        query_ids.append(f"{clip_id}#{num_captions.setdefault(clip_id, 0)}")
        num_captions[clip_id] += 1
        captions.append(caption)
    if not clips:
        raise ValueError("The data set has no rows; there is nothing to embed.")
    return list(clips.values()), captions, query_ids, targets


def read_row(processor: ProcessorMixin, clip: dict[str, Any], on_error: str = "raise", **kwargs: Any) -> Clip:
    """
    Read the files of one row of a benchmark.

    Args:
        processor ([`~modeling_scalar.ScalarProcessor`]): reads the files.
        clip (`dict`): a row with `video_id`, `video_path`, `audio_path` and `subtitle`.
        on_error (`str`), kwargs: as in [`ScalarProcessor.read_clip`].

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: a stream cannot be decoded. Both name the clip and its files.
    """
    video, audio = clip["video_path"], clip["audio_path"]
    if audio is not None and audio == video:
        audio = FROM_VIDEO
    where = f"The clip {clip['video_id']!r} (video {video!r}, audio {clip['audio_path']!r})"
    try:
        return processor.read_clip(video, audio=audio, subtitle=clip["subtitle"], on_error=on_error, **kwargs)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{where} names a file that is not there: {error}") from error
    except MediaError as error:
        raise ValueError(
            f'{where} could not be read: {error} Repair the file, or pass on_error="missing" to count what cannot be '
            "read as absent."
        ) from error


def _prepare(
    processor: ProcessorMixin, lock: Lock, clips: list[dict[str, Any]], on_error: str
) -> tuple[BatchFeature | None, list[str], list[str]]:
    """Read and process one batch: (features, problems, identifiers of clips with nothing left); no features if any."""
    read = [read_row(processor, clip, on_error) for clip in clips]
    ids = [clip["video_id"] for clip in clips]
    problems = [f"{name}: {problem}" for name, content in zip(ids, read, strict=True) for problem in content.problems]
    empty = [name for name, content in zip(ids, read, strict=True) if content.is_empty]
    if empty:
        return None, problems, empty
    with lock:  # fast tokenizers fail when two threads set their padding at once
        return processor(clips=read), problems, empty


def in_background(function: Callable, batches: Iterable, num_workers: int) -> Iterator:
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


def read_batches(
    processor: ProcessorMixin, clips: list[dict[str, Any]], batch_size: int, on_error: str, num_workers: int
) -> Iterator[tuple[BatchFeature, list[str]]]:
    """
    Read and process clips in background threads, in order.

    Args:
        processor ([`~modeling_scalar.ScalarProcessor`]): reads the files.
        clips (`list[dict]`): of [`group_rows`].
        batch_size (`int`), on_error (`str`), num_workers (`int`): as in [`embed_dataset`].

    Yields:
        The features of `batch_size` clips (the last batch may hold fewer) and what could not be read of them.

    Raises:
        FileNotFoundError, ValueError: of [`read_row`], or clips have no modality left (all of them are named).
    """
    lock, problems, empty = Lock(), [], []
    batches = [clips[start : start + batch_size] for start in range(0, len(clips), batch_size)]
    for batch, found, nothing in in_background(
        lambda rows: _prepare(processor, lock, rows, on_error), batches, num_workers
    ):
        problems += found
        empty += nothing
        if not empty:  # the run is lost once a clip is empty: read on only to name all of them
            yield batch, found
    if empty:
        raise ValueError(
            f"These clips have neither video, audio nor subtitle and cannot be scored: {empty}. Clips are never "
            f"dropped from a gallery: repair them or leave them out of the data set. Reading reported: {problems}"
        )


def _embed_clips(
    model: PreTrainedModel, batches: Iterator[tuple[BatchFeature, list[str]]], progress: tqdm
) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    embeds, masks, problems = [], [], []
    for batch, found in batches:
        modality_embeds, modality_mask = model.get_modality_features(**batch.to(model.device))
        embeds.append(modality_embeds.float().cpu())
        masks.append(modality_mask.cpu())
        problems += found
        progress.update(len(modality_mask))
    return torch.cat(embeds), torch.cat(masks), problems


def _embed_captions(
    model: PreTrainedModel, processor: ProcessorMixin, captions: list[str], batch_size: int, progress: tqdm
) -> torch.Tensor:
    embeds = []
    for start in range(0, len(captions), batch_size):
        batch = processor(text=captions[start : start + batch_size]).to(model.device)
        embeds.append(model.get_text_features(batch["input_ids"], batch["attention_mask"]).float().cpu())
        progress.update(len(batch["input_ids"]))
    return torch.cat(embeds)


@torch.no_grad()
def embed_dataset(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    dataset: Dataset,
    batch_size: int = 32,
    device: str | torch.device | None = None,
    on_error: str = "raise",
    progress: bool = True,
    num_workers: int = 2,
) -> Embeddings:
    """
    Embed the clips and captions of a data set; rows with the same `video_id` are one clip with several captions.

    Args:
        model ([`~modeling_scalar.ScalarModel`]): run in evaluation mode, then put back into the mode it was in.
        processor ([`~modeling_scalar.ScalarProcessor`]): reads the files, with its settings for testing.
        dataset (`datasets.Dataset`): the columns `video_id`, `caption`, `video_path`, `audio_path` and `subtitle`;
            absent is `None`. An `audio_path` equal to `video_path` is the video's own track, if it has one.
        batch_size (`int`): clips, or captions, per forward pass. Changes speed and memory, not results.
        device (`str` or `torch.device`): where the model is moved first; by default it stays where it is.
        on_error (`str`): `"raise"`, or `"missing"`: a modality that cannot be read counts as absent and is listed in
            `problems`.
        progress (`bool`): show a bar with an estimate of the time left.
        num_workers (`int`): threads that read batches ahead. Each holds the raw frames of a batch while it works.

    Returns:
        [`Embeddings`] in float32 on the CPU, clips and captions in the order of their rows.

    Raises:
        ValueError: a column or caption is missing, rows of one clip disagree, a clip cannot be read (with its
            identifier and path), or clips have no modality left (all of them are named).
        FileNotFoundError: a file is not there, whatever `on_error` says.
    """
    if on_error not in ("raise", "missing"):
        raise ValueError(f'`on_error` must be "raise" or "missing", got {on_error!r}.')
    if batch_size < 1 or num_workers < 1:
        raise ValueError(f"`batch_size` and `num_workers` must be at least 1, got {batch_size} and {num_workers}.")
    clips, captions, query_ids, targets = group_rows(dataset)
    if device is not None:
        model.to(device)
    was_training = model.training
    model.eval()
    try:
        with tqdm(total=len(captions), desc="captions", unit="caption", disable=not progress) as bar:
            text_embeds = _embed_captions(model, processor, captions, batch_size, bar)
        with tqdm(total=len(clips), desc="clips", unit="clip", disable=not progress) as bar:
            batches = read_batches(processor, clips, batch_size, on_error, num_workers)
            modality_embeds, modality_mask, problems = _embed_clips(model, batches, bar)
    finally:
        model.train(was_training)
    return Embeddings(
        text_embeds=text_embeds,
        modality_embeds=modality_embeds,
        modality_mask=modality_mask,
        pairs=torch.stack([torch.arange(len(targets)), torch.tensor(targets)], dim=1),
        clip_ids=[clip["video_id"] for clip in clips],
        query_ids=query_ids,
        captions=captions,
        problems=problems,
    )


__all__ = ["embed_dataset", "group_rows", "read_batches", "read_row"]
