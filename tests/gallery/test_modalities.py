"""Galleries of any number of named modalities."""

import pytest
import torch

from scalar_retrieval.gallery.gallery import GalleryWriter
from tests.gallery.conftest import MADE_BY, make_clips, make_queries


def test_the_name_of_a_modality_is_a_score_its_cosine(tmp_path):
    modalities = ("title", "mood", "video")
    names, embeds, mask = make_clips(70)
    with GalleryWriter(tmp_path, "float32") as writer:
        writer.metadata = MADE_BY | {"modalities": list(modalities), "score_options": {"method": "mood"}}
        writer.put_clips(names, embeds, mask)
        writer.commit()
        gallery = writer.gallery()
    queries = make_queries(6)
    for place, name in enumerate(modalities):
        for query, hits in zip(queries, gallery.search(queries, 5, method=name), strict=True):
            scores = torch.where(mask[:, place], embeds[:, place] @ query, -torch.inf)
            assert hits.clip_ids == [names[row] for row in scores.topk(5).indices.tolist()]
    assert gallery.search(like=names[1], k=3, method="mood") == gallery.search(like=names[1], k=3)  # its own score
    with pytest.raises(ValueError, match="must be one of .*'mood'.*got 'sound'"):
        gallery.search(queries, method="sound")
