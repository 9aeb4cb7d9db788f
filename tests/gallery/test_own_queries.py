"""The least score of a match without labels: against its definition, and where it tells nothing."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from scalar_retrieval.gallery.gallery import GalleryWriter
from scalar_retrieval.gallery.own_queries import measure_least_score
from scalar_retrieval.gallery.store.described import LEAST_SCORE
from scalar_retrieval.gallery.store.windows import SEGMENT, clip_id_of
from scalar_retrieval.modeling_scalar.scores_scalar import retrieval_scores
from tests.gallery.conftest import MADE_BY

DIM = 32
NAMES = ["video", "title"]


def near(vectors, noise, generator):
    """Unit vectors around these, `(rows, D)`."""
    return normalize(vectors + noise * torch.randn(vectors.shape, generator=generator) / DIM**0.5, dim=-1)


class Made:
    """
    A gallery of files of two windows, whose titles lie near their pictures, and the vectors of texts.

    Args:
        noise (`float`): how far titles are from pictures.
    """

    def __init__(self, folder, noise=0.8, num_files=140, modalities=NAMES):
        generator = torch.Generator().manual_seed(0)
        pictures = normalize(torch.randn(num_files, DIM, generator=generator), dim=-1)
        way = normalize(torch.randn(DIM, generator=generator), dim=-1)
        self.titles = near(pictures + 0.5 * way, noise, generator)
        self.unknown = normalize(0.3 * way + near(torch.zeros(60, DIM), 1.0, generator), dim=-1)
        self.nonsense = []  # vectors that were asked for
        owners = torch.arange(num_files)
        owners -= (owners % 5 == 4).long()  # every fifth file has the title of the one before
        self.owners = owners.repeat_interleave(2)
        ids = []
        for number in range(num_files):
            ids += [clip_id_of(f"/{number}.mp4", (start, start + 1.0)) for start in (0.0, 1.0)]
        self.texts = {}
        for clip, owner in zip(ids, self.owners.tolist(), strict=True):
            self.texts.setdefault(f"title {owner}", set()).add(clip)
        pictures = near(pictures.repeat_interleave(2, dim=0), 0.3, generator)
        embeds = torch.stack([pictures, self.titles[self.owners]], dim=1)
        self.mask = torch.ones(len(ids), 2, dtype=torch.bool)
        self.mask[::7, 1] = False
        self.embeds = embeds * self.mask[..., None]
        with GalleryWriter(folder / "gallery", "float32") as writer:
            writer.metadata = MADE_BY | {"modalities": modalities, SEGMENT: 1.0}
            writer.put_clips(ids, self.embeds, self.mask)
            writer.commit()
            self.gallery = writer.gallery()

    def embed(self, batch):
        """Vectors of titles; other texts are nonsense."""
        found = []
        for text in batch:
            if text in self.texts:
                found.append(self.titles[int(text.split()[1])])
            else:
                found.append(self.unknown[len(self.nonsense)])
                self.nonsense.append(found[-1])
        return torch.stack(found)

    def fit(self):
        return measure_least_score(self.gallery, self.texts, self.embed)


def by_definition(made):
    """The best scores of texts that find their file, one pair after another, and of nonsense."""
    answered = []
    for text in made.texts:
        title = int(text.split()[1])
        own = made.owners == title
        query = made.titles[title][None].double()
        everything = retrieval_scores(query, made.embeds.double(), made.mask)[0]
        pictures = made.embeds[:, 0].double() @ query[0]
        best_own = pictures[own].max()
        if (pictures[~own] > best_own).sum() <= len(own) // 100:
            answered.append(max(best_own, everything[~own].max()).item())
    nonsense = retrieval_scores(torch.stack(made.nonsense), made.embeds, made.mask).amax(1)
    return answered, nonsense.numpy()


def test_the_least_score_is_that_of_the_definition(tmp_path):
    made = Made(tmp_path, noise=1.4)
    least = made.fit()
    answered, nonsense = by_definition(made)
    assert len(nonsense) == 50
    # Fewer than one in twenty files whose texts find them, and a quarter of nonsense, in float32
    lowest = sorted(answered)[math.floor(0.05 * (len(answered) + 1) - 1 + 1e-9)]
    assert 30 < len(answered) < len(made.texts)
    assert least["score"] == pytest.approx(min(lowest, np.quantile(nonsense, 0.25)), abs=1e-6)
    assert least["source"] == f"{len(answered)} titles and subtitles, and random letters"
    # One query may be the score itself, which is rounded here and there.
    rates = [100 * np.less(scores, least["score"]).mean() for scores in (answered, nonsense)]
    assert [least["answered"], least["unanswered"]] == pytest.approx(rates, abs=2.1)
    assert least["num_clips"] == 280 and least["modalities"] == NAMES


def test_queries_with_a_clip_bound_the_least_score_where_nonsense_scores_as_high(tmp_path):
    """Nonsense that is like all titles would be reported by a higher score alone."""
    made = Made(tmp_path, noise=1.2)
    made.unknown = near(made.titles[:60], 0.6, torch.Generator().manual_seed(1))
    assert made.fit()["score"] is None
    answered, nonsense = by_definition(made)
    lowest = sorted(answered)[math.floor(0.05 * (len(answered) + 1) - 1 + 1e-9)]
    assert lowest < np.quantile(nonsense, 0.1)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_files": 120},  # 96 texts
        {"noise": 30.0},  # titles that say nothing of pictures
        {"modalities": ["subtitle", "title"]},  # texts alone
    ],
)
def test_nothing_is_said_where_texts_do_not_tell(tmp_path, settings):
    least = Made(tmp_path, **settings).fit()
    assert least["score"] is None and least["source"] == "titles and subtitles" and "answered" not in least


def test_the_score_is_fitted_again_as_the_gallery_grows_but_never_over_one_from_captions(tmp_path):
    made = Made(tmp_path)
    gallery = made.gallery
    assert gallery.lacks_least_score
    fitted = made.fit()
    for changes, due in [
        ({}, False),
        ({"score": None}, False),
        ({"num_clips": 255}, False),
        ({"num_clips": 254}, True),
        ({"num_clips": 312}, True),
    ]:
        gallery.metadata[LEAST_SCORE] = fitted | changes
        assert gallery.lacks_least_score == due, changes
    for name in ("source", "answered", "unanswered"):
        del fitted[name]
    gallery.metadata[LEAST_SCORE] = fitted | {"num_clips": 10}
    assert not gallery.lacks_least_score


def test_a_small_gallery_has_no_least_score(tmp_path):
    assert not Made(tmp_path, num_files=49).gallery.lacks_least_score
