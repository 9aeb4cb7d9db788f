"""The captions of a benchmark over a gallery that was embedded before, by `python -m search index` say."""

import os
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, ProcessorMixin

from eval.benchmarks.rows import group_rows
from eval.embedding.embed_dataset import embed_texts
from eval.embedding.embeddings import Embeddings
from gallery.columns import listed
from gallery.gallery import Gallery


def row_of(known: dict[str, int], clip: dict[str, Any]) -> int | None:
    """Return the row of a clip in a gallery, whose clips are named by the files they were read from or identifiers."""
    paths = [os.path.realpath(path) for path in (clip["video_path"], clip["audio_path"]) if path is not None]
    return next((known[name] for name in (clip["video_id"], *paths) if name in known), None)


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
        gallery ([`~gallery.gallery.Gallery`]): clips, embedded by the same model. Those that the data set does not
            name are left out; `metadata` counts them.
        model ([`~modeling_scalar.ScalarModel`]), processor ([`~modeling_scalar.ScalarProcessor`]): embed captions.
        dataset (`datasets.Dataset`), task (`str`): as in [`~eval.embedding.embed_dataset.embed_dataset`]. A clip is
            found by its file, or by its identifier.
        batch_size (`int`): captions per forward pass.

    Returns:
        [`Embeddings`] with the clips in the order of the data set.

    Raises:
        ValueError: clips of the data set are not in the gallery (they are named), or as in
            [`~eval.embedding.embed_dataset.group_rows`].
    """
    clips, captions, query_ids, pairs = group_rows(dataset, task)
    known = {name: row for row, name in enumerate(gallery.clip_ids)}
    rows = [row_of(known, clip) for clip in clips]
    missing = [clip["video_id"] for clip, row in zip(clips, rows, strict=True) if row is None]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(clips)} clips are not in the gallery {gallery.path}: {listed(missing)}. Index "
            "their files, or leave them out of the data set: clips are never dropped in silence."
        )
    problems, concat_embeds = gallery.problems(), gallery.concat_embeds()
    return Embeddings(
        text_embeds=embed_texts(model, processor, captions, batch_size),
        modality_embeds=gallery.modality_embeds()[rows],
        modality_mask=gallery.modality_mask[rows],
        pairs=torch.tensor(pairs),
        clip_ids=[clip["video_id"] for clip in clips],
        query_ids=query_ids,
        captions=captions,
        concat_embeds=None if concat_embeds is None else concat_embeds[rows],
        problems=[
            f"{clip['video_id']}: {problem}"
            for clip, row in zip(clips, rows, strict=True)
            for problem in problems.get(gallery.clip_ids[row], [])
        ],
        metadata={"gallery": str(gallery.path), "clips_of_the_gallery_left_out": len(known) - len(set(rows))},
    )


__all__ = ["query_gallery", "row_of"]
