"""Made clips in which every subset of modalities occurs, and galleries of them."""

import math
import os

import pytest
import torch

from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.gallery.hits import Hits, Texts
from scalar_retrieval.gallery.store.windows import Place

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


@pytest.fixture
def make_gallery(tmp_path):
    def make(count=30, seed=0, **options):
        return write(tmp_path / f"gallery-{seed}", make_clips(count, seed), **options)

    return make


def hits_of(hits, modalities=None, **facts):
    """The columns of hits, in this order; `facts` are further arguments of [`~scalar_retrieval.gallery.hits.Hits`]."""
    hits = list(hits)
    modalities = modalities or tuple(hits[0].presence)
    places = [hit.place or Place(hit.clip_id) for hit in hits]
    columns = ([getattr(hit, name) for hit in hits] for name in ("problems", "copies", "record"))
    texts = Texts([hit.clip_id for hit in hits], places, *columns)
    if hits and hits[0].weights is not None:
        facts["weights"] = torch.tensor([[hit.weights[name] for name in modalities] for hit in hits])
    if any(hit.match is not None for hit in hits):
        facts["matches"] = torch.tensor([math.nan if hit.match is None else hit.match for hit in hits]).double()
    presence = torch.tensor([[hit.presence[name] for name in modalities] for hit in hits], dtype=torch.bool)
    scores = torch.tensor([hit.score for hit in hits])
    return Hits(modalities, scores, presence.view(-1, len(modalities)), lambda: texts, **facts)
