"""What the clips of the miniature benchmark are, and what their captions say of them."""

import re
from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from evidence.miniature.clips import (
    ABSENT_SHARES,
    EVIDENCE_ABSENT_SHARES,
    SPLITS,
    draw_clip,
    draw_split,
    expressed_value,
)
from evidence.miniature.vocabulary import EVIDENCE, FACTORS


def whole_clips(count, shared):
    """Clips that lack nothing, one by one as they are drawn."""
    return [draw_clip(0, "train", index, shared=shared) for index in range(count)]


def values_of(clip, factor):
    """What each modality of a clip that can express a factor says of it."""
    return [expressed_value(factor, m, clip.attributes[m]) for m in FACTORS[factor][next(iter(FACTORS[factor]))]]


# Splits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("one", "other"), list(combinations(SPLITS, 2)))
def test_the_splits_are_drawn_apart(one, other):
    ours, theirs = draw_split(0, one, 300), draw_split(0, other, 300)
    assert sum(a.caption == b.caption for a, b in zip(ours, theirs, strict=True)) == 0
    # One caption in 2^12 and less: few of 300 are those of 300 others, wherever they stand.
    assert len({clip.caption for clip in ours} & {clip.caption for clip in theirs}) < 10
    assert {clip.key for clip in ours}.isdisjoint(clip.key for clip in theirs)


@pytest.mark.parametrize("count", [12, 24, 300, 1500])
def test_shares_of_missing_tracks_and_texts_are_exact(count):
    clips = draw_split(5, "train", count, evidence=["title", "screen"])
    for modality, share in (ABSENT_SHARES | EVIDENCE_ABSENT_SHARES).items():
        assert sum(modality not in clip.attributes for clip in clips) == round(share * count) > 0
    for clip in clips:
        assert len(clip.attributes.keys() & ABSENT_SHARES) >= 2
        assert (clip.subtitle is None) == ("subtitle" not in clip.attributes)
        assert all((clip.texts[name] is None) == (name not in clip.attributes) for name in EVIDENCE_ABSENT_SHARES)
        assert "screen" not in clip.attributes or "video" in clip.attributes  # without pictures there is no screen


@pytest.mark.parametrize("split", SPLITS)
def test_captions_are_unique(split):
    captions = [clip.caption for clip in draw_split(0, split, 1000)]
    assert len(set(captions)) == len(captions)


# What is shared ------------------------------------------------------------------------------------------------------


def test_modalities_agree_as_often_as_was_asked_for():
    shared, clips = 0.6, whole_clips(2000, shared=0.6)
    chance = {"subject": 1 / 24**2, "tempo": 1 / 5, "scene": 6 / 8 / 6**2}  # of independent draws: all say the same
    for factor, by_chance in chance.items():
        assert sum(factor in clip.shared for clip in clips) / 2000 == pytest.approx(shared, abs=0.044)  # 4 errors
        agree = sum(len(set(values_of(clip, factor))) == 1 for clip in clips) / 2000
        assert agree == pytest.approx(shared + (1 - shared) * by_chance, abs=0.044)
    counts = Counter(len(clip.shared) for clip in clips)  # the factors are independent of each other
    assert counts[3] / 2000 == pytest.approx(shared**3, abs=0.037)
    assert counts[0] / 2000 == pytest.approx((1 - shared) ** 3, abs=0.022)


# Captions ------------------------------------------------------------------------------------------------------------


def test_what_a_caption_says_is_true_of_its_clip():
    assert all(clip.claims and clip.satisfies(clip) for clip in draw_split(0, "train", 2000))


# Further evidence ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[("title",), ("screen",), ("title", "screen")], ids="+".join)
def clips_of(request):
    return request.param, draw_split(2, "test", 1000, evidence=request.param)


def test_a_caption_that_a_text_answers_is_true_of_the_clips_whose_text_has_its_words(clips_of):
    """Told by the words alone: of the texts as they are listed, without attributes."""
    evidence, clips = clips_of
    shown = {name: {value for values in EVIDENCE[name].values() for value in values} for name in evidence}
    for query in clips:
        if query.kind in evidence:
            said = shown[query.kind].intersection(re.findall(r"\w+", query.caption))
            texts = [set(re.findall(r"\w+", clip.texts[query.kind] or "")) for clip in clips]
            assert len(said) == 3
            assert [said <= words for words in texts] == [clip.satisfies(query) for clip in clips]


# What a set can be asked for -----------------------------------------------------------------------------------------


def test_where_modalities_disagree_only_what_the_caption_is_not_about_is_another_clips():
    plain, disagreeing = draw_split(2, "test", 1000, shared=0.6), draw_split(2, "test", 1000, disagree=1)
    for before, clip in zip(plain, disagreeing, strict=True):
        assert (clip.caption, clip.claims) == (before.caption, before.claims) and clip.satisfies(clip)
        assert set(clip.attributes) == set(before.attributes)
        assert all(clip.attributes[modality] == before.attributes[modality] for modality in before.about)
        if "subtitle" in clip.attributes:
            assert clip.attributes["subtitle"]["speaker"] in clip.subtitle
    for factor, values in FACTORS.items():
        pairs = [(a, b) for a in next(iter(values.values())) for b in next(iter(values.values())) if a != b]
        reported = [
            (expressed_value(factor, a, clip.attributes[a]), expressed_value(factor, b, clip.attributes[b]))
            for clip in disagreeing
            for a, b in pairs
            if a in clip.about and b in clip.attributes and b not in clip.about
        ]
        agreeing = np.mean([ours == theirs for ours, theirs in reported])
        assert len(reported) > 200 and agreeing < 1.5 / len(values) + 0.03, factor  # by chance alone, of 0.6 and more
