"""Made clips in which every subset of modalities occurs, and galleries of them."""

import os

import pytest
import torch

from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter

DIM = 16
MADE_BY = {"model": "model", "fingerprint": "f" * 64, "query_temperature": 0.1}


def make_clips(count, seed=0, dim=DIM):
    """Identifiers, unit-or-zero embeddings (N, 3, D) and a mask."""
    generator = torch.Generator().manual_seed(seed)
    subsets = [[bool(number & 1 << bit) for bit in range(3)] for number in range(1, 8)]
    mask = torch.tensor([subsets[number % 7] for number in range(count)]).reshape(count, 3)
    embeds = torch.randn(count, 3, dim, generator=generator)
    embeds = torch.nn.functional.normalize(embeds, dim=-1) * mask[..., None]
    return [f"/clips/{seed}-{number}.mp4" for number in range(count)], embeds, mask


def make_queries(count, seed=100, dim=DIM):
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, dim, generator=generator), dim=-1)


def write(folder, *batches, dtype="float32"):
    """Commit one batch after the other; the gallery then."""
    with GalleryWriter(folder, dtype) as writer:
        writer.metadata = MADE_BY
        for batch in batches:
            writer.put_clips(*batch)
            writer.commit()
    return Gallery.open(folder)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No power is cut."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
