"""`index` fits the least score of a match at its end, and `info` shows from what."""

import pytest

from scalar_retrieval import index
from scalar_retrieval.gallery import own_queries
from scalar_retrieval.gallery.gallery import GalleryWriter
from scalar_retrieval.gallery.store import described
from scalar_retrieval.gallery.store.described import LEAST_SCORE, fitted_to
from tests.joint_encoders import write_joint_encoder
from tests.search.small_folder import run
from tests.search.test_scales import write_list

SOURCE = "57 titles and subtitles, and random letters"


@pytest.fixture
def fits(monkeypatch):
    """The texts of each fit, of which a score follows that no hit reaches."""
    found = []

    def measure(gallery, texts, embed):
        found.append(sorted(texts))
        least = {"score": 2.0, "source": SOURCE, "answered": 1.5, "unanswered": 26.0, "num_clips": len(gallery)}
        options = {"modalities": list(gallery.modalities), "score_options": fitted_to(gallery.metadata)}
        return least | options

    monkeypatch.setattr(described, "_FEWEST_CLIPS", 3)
    monkeypatch.setattr(own_queries, "measure_least_score", measure)
    return found


@pytest.mark.e2e
def test_index_fits_the_least_score_to_titles_where_clips_were_added(fits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, titles = write_joint_encoder(tmp_path / "encoder"), ["bells", "birds", "rain", "wind"]
    # Too few clips, then enough, then the same ones, then one more
    for count in (2, 3, 3, 4):
        write_list(tmp_path, titles[:count])
        gallery = index("list.csv", "gallery", model, text="title", progress=False)
    assert fits == [titles[:3], titles]
    assert gallery.search("rain").matches_well is False
    shown = run("info", "gallery")
    assert "least score of a match: 2 (fitted to 4 clips, by " in shown
    assert f"  from {SOURCE}: 1.5 % of the former and 26.0 % of the latter score less\n" in shown

    # One from captions stays, and nothing else is said of it.
    captions = {name: gallery.metadata[LEAST_SCORE][name] for name in ("modalities", "score_options")}
    with GalleryWriter("gallery") as writer:
        writer.metadata |= {LEAST_SCORE: captions | {"score": 0.5, "num_clips": 1}}
        writer.commit()
    write_list(tmp_path, [*titles, "snow"])
    gallery = index("list.csv", "gallery", progress=False)
    assert len(gallery) == 5 and len(fits) == 2 and gallery.least_score["score"] == 0.5
    assert "least score from" not in run("info", "gallery")
