"""Galleries of any number of named modalities."""

import itertools

import pytest
import torch

from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from tests.gallery.conftest import MADE_BY, make_queries

NAMES = ("video", "audio", "subtitle", "title", "on_screen")


def make(count, modalities=NAMES, seed=0, dim=16):
    """Identifiers, unit-or-zero embeddings (N, M, D) and a mask in which every subset occurs."""
    generator, number = torch.Generator().manual_seed(seed), len(modalities)
    subsets = torch.tensor(list(itertools.product((False, True), repeat=number))[1:])
    mask = subsets[torch.arange(count) % len(subsets)]
    embeds = torch.nn.functional.normalize(torch.randn(count, number, dim, generator=generator), dim=-1)
    return [f"/clips/{row}.mp4" for row in range(count)], embeds * mask[..., None], mask


def write(folder, clips, modalities=NAMES, dtype="float32", **reported):
    with GalleryWriter(folder, dtype) as writer:
        writer.metadata = MADE_BY | {"modalities": list(modalities)} | reported
        writer.put_clips(*clips)
        writer.commit()
    return Gallery.open(folder)


def test_the_name_of_a_modality_is_a_score_its_cosine(tmp_path):
    modalities = ("title", "mood", "video")
    names, embeds, mask = clips = make(70, modalities)
    gallery = write(tmp_path, clips, modalities, score_options={"method": "mood"})
    queries = make_queries(6)
    for place, name in enumerate(modalities):
        for k in (5, 70):
            for query, hits in zip(queries, gallery.search(queries, k, method=name), strict=True):
                scores = torch.where(mask[:, place], embeds[:, place] @ query, -torch.inf)
                best = scores.topk(min(k, int(mask[:, place].sum())))
                assert [hit.clip_id for hit in hits] == [names[row] for row in best.indices.tolist()]
    assert gallery.search(like=names[1], k=3, method="mood") == gallery.search(like=names[1], k=3)  # its own score
    with pytest.raises(ValueError, match="must be one of .*'mood'.*got 'sound'"):
        gallery.search(queries, method="sound")
