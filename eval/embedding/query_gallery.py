"""Embeds the captions of a benchmark for an existing gallery, such as one by `scalar index`."""

import os
from collections.abc import Iterable
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, ProcessorMixin

from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.gallery.store.rows import abbreviated
from scalar_retrieval.gallery.store.windows import SEGMENT

from ..benchmarks.clip_rows import group_rows
from .embed_dataset import embed_texts
from .embeddings import Embeddings


def _names_of(clip: dict[str, Any]) -> list[str]:
    """Return the possible names of a clip in a gallery: its identifier, or its files."""
    names = [clip["video_id"]]
    for path in (clip["video_path"], clip["audio_path"]):
        if path is not None:
            names.append(os.path.realpath(path))
    return names


def rows_of(gallery: Gallery, clips: Iterable[dict[str, Any]], advice: str) -> list[int]:
    """
    Find clips in a gallery.

    Args:
        gallery ([`~scalar_retrieval.gallery.gallery.Gallery`]): its clips are named by identifiers, or by the files
            they were read from.
        clips (iterable of `dict`): with `video_id`, `video_path` and `audio_path`.
        advice (`str`): what to do about missing clips, for the message.

    Returns:
        `list[int]`: the row of each.

    Raises:
        ValueError: some clips are missing; the message lists them.
    """
    # The first name of a clip that the gallery has gives its row.
    row_of_name = dict(zip(gallery.clip_ids, range(len(gallery)), strict=True))
    rows = []
    clip_ids = set()
    lost = set()
    for clip in clips:
        clip_ids.add(clip["video_id"])
        for name in _names_of(clip):
            if name in row_of_name:
                rows.append(row_of_name[name])
                break
        else:
            lost.add(clip["video_id"])
    if not lost:
        return rows

    # A gallery of windows lacks longer files as a whole.
    names = abbreviated(sorted(lost))
    problem = f"{len(lost)} of {len(clip_ids)} clips are not in the gallery {gallery.path}: {names}. {advice}"
    if gallery.metadata.get(SEGMENT) is not None:
        problem += (
            " It holds windows of longer files: for whole files, index them with `--segment none`; for windows, name "
            "each by the `clip_id` of `scalar query --json`, as `video_id`."
        )
    raise ValueError(problem)


def query_gallery(
    gallery: Gallery,
    model: PreTrainedModel,
    processor: ProcessorMixin,
    dataset: Dataset,
    task: str = "retrieval",
    batch_size: int = 32,
) -> Embeddings:
    """
    Embed the captions of a data set, and take its clips from a gallery.

    Args:
        gallery ([`~scalar_retrieval.gallery.gallery.Gallery`]): clips, embedded by the same model. Those that are not
            in the data set are left out; `metadata` counts them.
        model ([`~scalar_retrieval.modeling_scalar.ScalarModel`]), processor
            ([`~scalar_retrieval.modeling_scalar.ScalarProcessor`]): embed captions.
        dataset (`datasets.Dataset`), task (`str`): as in
            [`~scalar_retrieval.eval.embedding.embed_dataset.embed_dataset`]. A clip is found by its file, or by its
            identifier.
        batch_size (`int`): captions per forward pass.

    Returns:
        [`Embeddings`] with the clips in the order of the data set.

    Raises:
        ValueError: clips of the data set are not in the gallery (the message lists them), or as in
            [`~scalar_retrieval.eval.embedding.embed_dataset.group_rows`].
    """
    # Rows of the gallery, in the order of the data set.
    clips, captions, query_ids, pairs = group_rows(dataset, task)
    advice = "Index their files, or leave them out of the data set: clips are never dropped silently."
    rows = rows_of(gallery, clips, advice)

    # What indexing could not read, under the identifiers of the data set.
    problems_of_clips = gallery.problems()
    clip_ids = []
    problems = []
    for clip, row in zip(clips, rows, strict=True):
        clip_ids.append(clip["video_id"])
        for problem in problems_of_clips.get(gallery.clip_ids[row], []):
            problems.append(f"{clip['video_id']}: {problem}")
    return Embeddings(
        text_embeds=embed_texts(model, processor, captions, batch_size),
        modality_embeds=gallery.modality_embeds()[rows],
        modality_mask=gallery.modality_mask[rows],
        pairs=torch.tensor(pairs),
        clip_ids=clip_ids,
        query_ids=query_ids,
        captions=captions,
        problems=problems,
        metadata={"gallery": str(gallery.path), "clips_of_the_gallery_left_out": len(gallery) - len(set(rows))},
        modalities=gallery.modalities,
    )


__all__ = ["query_gallery", "rows_of"]
