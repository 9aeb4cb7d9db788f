"""A search says that nothing matches well where what a match scores was fitted to such searches, and nowhere else."""

import pytest
import torch
from torch.nn.functional import normalize

from scalar_retrieval.gallery.filters import Filter
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.gallery.querying import Likeness
from scalar_retrieval.gallery.store.described import LEAST_SCORE, fitted_to
from tests.gallery.conftest import DIM, MADE_BY, make_clips, make_queries

OPTIONS = {"method": "scalar", "query_temperature": 0.1}
NAMES = ["video", "audio", "subtitle"]


def fitted(score=0.9, num_clips=30, modalities=NAMES, **options):
    return {
        "score": score,
        "num_clips": num_clips,
        "modalities": list(modalities),
        "score_options": OPTIONS | options,
    }


@pytest.fixture
def written(tmp_path):
    """Makes a gallery of 30 clips; the first query is a clip, the second nothing in it."""
    ids, embeds, mask = make_clips(30)
    texts = torch.stack([normalize((embeds[6] * mask[6][:, None]).sum(0), dim=-1), make_queries(1)[0]])

    def write(reported=None, count=30, **metadata):
        with GalleryWriter(tmp_path / "gallery", "float32") as writer:
            writer.metadata = MADE_BY | metadata | ({} if reported is None else {LEAST_SCORE: reported})
            writer.put_clips(ids[:count], embeds[:count], mask[:count])
            writer.commit()
        return Gallery.open(tmp_path / "gallery"), texts

    return write


def answers(found):
    return [hits.matches_well for hits in found]


def test_a_query_that_nothing_answers_is_reported_with_the_nearest_clips(written):
    gallery, texts = written(fitted())
    plain = gallery.search(texts, k=3)
    assert answers(plain) == [True, False] and len(plain[1]) == 3
    for options in ({"modalities": NAMES}, {"query_temperature": 0.1}, {"allowed": Filter()}, {"unique": True}):
        assert answers(gallery.search(texts, **options)) == [True, False], options


def test_a_search_that_finds_nothing_counts_the_files_in_languages_that_the_model_does_not_read(written):
    gallery, texts = written(fitted(), model="light", unread={"Finnish": 3, "Greek": 2})
    found, nothing = gallery.search(texts, k=3)
    line = "5 files are in Finnish or Greek, which `light` does not read."
    assert line not in found.notes and list(nothing.notes) == [line] and line in str(nothing)


def test_a_search_that_is_made_otherwise_claims_nothing(written):
    gallery, texts = written(fitted())
    neutral = [1.0, 1.0, 1.0]
    for options in (
        {"modalities": ["video", "audio"]}, {"query_temperature": 0.2}, {"allowed": Filter(has="video")},
        {"allowed": torch.ones(30, dtype=torch.bool)}, {"method": "uniform"}, {"modality_scale": neutral},
        {"modality_offset": torch.zeros(3)},
    ):  # fmt: skip
        assert answers(gallery.search(texts, **options)) == [None, None], options
    outside = Likeness("a.mp4", normalize(torch.ones(3, DIM), dim=-1), torch.tensor([True] * 3))
    for like in (gallery.clip_ids[0], outside):
        assert gallery.search(like=like).matches_well is None


@pytest.mark.parametrize(
    "metadata",
    [
        {"query_temperature": "inf"},
        {"score_options": OPTIONS | {"query_temperature": 0.2}},
        {"score_options": OPTIONS | {"modality_scale": [1.0, 1.0, 1.1]}},
        {"score_options": {"method": "uniform"}},
    ],
)
def test_a_fit_to_other_scores_is_none(written, metadata):
    gallery, texts = written(fitted(), **metadata)
    assert gallery.least_score is None and answers(gallery.search(texts)) == [None, None]
    own = fitted() | {"score_options": OPTIONS | metadata.get("score_options", metadata)}
    gallery = written(own, **metadata)[0]
    assert gallery.least_score == own and fitted_to(gallery.metadata) == own["score_options"]


@pytest.mark.parametrize(("num_clips", "is_reported"), [(1, True), (33, True), (34, False)])
def test_it_holds_in_galleries_of_more_clips_and_of_a_tenth_less(written, num_clips, is_reported):
    gallery, texts = written(fitted(num_clips=num_clips))
    assert answers(gallery.search(texts)) == ([True, False] if is_reported else [None, None])
