"""Galleries of any number of named modalities."""

import itertools

import pytest
import torch

from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.modeling_scalar.scores_scalar import retrieval_scores
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


@pytest.mark.parametrize("modalities", [NAMES[:number] for number in (1, 2, 4, 5)] + [("title", "mood")], ids=len)
def test_names_are_those_of_columns_hits_and_filters(tmp_path, modalities):
    names, embeds, mask = clips = make(70, modalities)
    gallery, queries = write(tmp_path, clips, modalities), make_queries(6)
    assert gallery.modalities == modalities and torch.equal(gallery.modality_mask, mask)
    assert gallery.metadata["modalities"] == list(modalities) == gallery.facts()["columns"]
    expected = retrieval_scores(queries.double(), embeds.double(), mask, method="scalar", modalities=modalities)
    for hits, scores in zip(gallery.search(queries, 20), expected, strict=True):
        best = scores.topk(20)
        assert [hit.clip_id for hit in hits] == [names[row] for row in best.indices.tolist()]
        assert torch.allclose(torch.tensor([hit.score for hit in hits]).double(), best.values, atol=1e-6)
        for hit in hits:
            assert tuple(hit.presence) == tuple(hit.weights) == modalities
            assert sum(hit.weights.values()) == pytest.approx(1)
    assert gallery.verify() > 0 and Gallery.open(tmp_path).facts() == gallery.facts()


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
