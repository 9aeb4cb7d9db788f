"""Embeds items and queries by `light`, as a gallery would."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from scalar_retrieval.gallery.embedding import embed_clips, in_batches
from scalar_retrieval.gallery.querying import embed_captions
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.modeling_scalar.model_identity import LIGHT
from scalar_retrieval.modeling_scalar.processing_scalar import Clip

from .items import Item, on_white

MODALITIES = ("video", "title", "folder")
"""The modalities of an item, in the order of its vectors."""

_BATCH = 32  # items or queries in a forward pass


@dataclass(frozen=True)
class Half:
    """
    The embedded items of one half, with the queries that ask for some of them.

    Args:
        text_embeds (`torch.FloatTensor` of shape `(Q, D)`): the queries, of unit norm.
        modality_embeds (`torch.FloatTensor` of shape `(V, M, D)`): the items, of unit norm, in the order of
            [`MODALITIES`].
        relevant (`torch.LongTensor` of shape `(Q,)`): the item of each query.
    """

    text_embeds: torch.Tensor
    modality_embeds: torch.Tensor
    relevant: torch.Tensor


def embed_half(items: Sequence[Item], root: Path) -> Half:
    """
    Embed items and their queries.

    Args:
        items (`Sequence[Item]`): of one half.
        root (`Path`): the folder of stamps.

    Raises:
        ModuleNotFoundError: a package of `light` is not installed.
    """
    model, processor = load_model(LIGHT, modalities=MODALITIES)
    # Items: a picture is a video of one frame.
    embeds = []
    for batch in in_batches(items, _BATCH):
        clips = []
        for item in batch:
            texts = {"title": item.title, "folder": item.folder}
            clips.append(Clip(frames=on_white(root / item.path)[None], texts=texts))
        vectors, _ = embed_clips(model, processor(clips=clips))
        embeds.append(vectors)
    # Queries, which some items lack.
    relevant = []
    queries = []
    for place, item in enumerate(items):
        if item.query is not None:
            relevant.append(place)
            queries.append(item.query)
    texts = []
    for batch in in_batches(queries, _BATCH):
        texts.append(embed_captions(model, processor, batch))
    return Half(torch.cat(texts), torch.cat(embeds), torch.tensor(relevant))


__all__ = ["MODALITIES", "Half", "embed_half"]
