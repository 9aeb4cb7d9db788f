"""What the clips of the miniature benchmark are, and what their captions say of them."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from eval.miniature import ABSENT_SHARES, VOCABULARY, draw_clip, draw_split, recall_ceiling
from modeling_scalar.configuration_scalar import MODALITIES


@pytest.fixture(scope="module")
def train_clips():
    return draw_split(0, "train", 1500)


@pytest.fixture(scope="module")
def test_clips():
    return draw_split(0, "test", 300)


def test_the_vocabulary_is_in_the_order_of_modalities():
    assert tuple(VOCABULARY) == MODALITIES


def test_another_seed_gives_another_set():
    ours, theirs = draw_split(0, "test", 50), draw_split(1, "test", 50)
    assert sum(a.caption == b.caption for a, b in zip(ours, theirs, strict=True)) < 5


def test_the_splits_are_drawn_apart():
    ours, theirs = draw_split(0, "train", 50), draw_split(0, "test", 50)
    assert sum(a.caption == b.caption for a, b in zip(ours, theirs, strict=True)) < 5


@pytest.mark.parametrize("count", [12, 24, 300, 1500])
def test_shares_of_missing_tracks_are_exact(count):
    clips = draw_split(5, "train", count)
    for modality, share in ABSENT_SHARES.items():
        assert sum(modality not in clip.attributes for clip in clips) == round(share * count) > 0
    assert all(len(clip.attributes) >= 2 for clip in clips)
    assert all((clip.subtitle is None) == ("subtitle" not in clip.attributes) for clip in clips)


def test_captions_speak_of_one_or_two_modalities_the_clip_has(train_clips):
    lengths = Counter(len(clip.mentions) for clip in train_clips)
    assert set(lengths) == {1, 2}
    assert 0.45 < lengths[1] / len(train_clips) < 0.55  # 50 %, four standard errors
    for clip in train_clips:
        assert list(clip.mentions) == clip.row()["about"] == [m for m in MODALITIES if m in clip.mentions]
        assert set(clip.mentions) <= set(clip.attributes)


def test_captions_say_what_they_mention_and_nothing_else(train_clips):
    for clip in train_clips[:400]:
        words = clip.caption.replace(",", "").split()
        for modality, attribute in [("video", "colour"), ("subtitle", "speaker"), ("subtitle", "weekday")]:
            said = [value for value in VOCABULARY[modality][attribute] if value in words]
            mentioned = attribute in clip.mentions.get(modality, [])
            assert said == ([clip.attributes[modality][attribute]] if mentioned else [])


def test_subtitles_name_speaker_topic_and_weekday(train_clips):
    for clip in (clip for clip in train_clips if clip.subtitle is not None):
        assert all(value in clip.subtitle for value in clip.attributes["subtitle"].values())


@pytest.mark.parametrize("split", ["train_clips", "test_clips"])
def test_captions_are_unique(split, request):
    captions = [clip.caption for clip in request.getfixturevalue(split)]
    assert len(set(captions)) == len(captions)


def test_a_perfect_model_can_reach_a_high_recall(test_clips):
    assert 0.9 < recall_ceiling(test_clips) < 1
    single = [clip for clip in test_clips if len(clip.mentions) == 1]
    ceilings = [1 / sum(other.satisfies(clip) for other in test_clips) for clip in single]
    assert np.mean(ceilings) > 0.8


def test_the_ceiling_halves_for_clips_that_cannot_be_told_apart():
    clip = draw_clip(0, "test", 0)
    assert recall_ceiling([clip]) == 1
    assert recall_ceiling([clip, clip]) == 0.5


def test_a_clip_without_the_modality_does_not_satisfy_a_caption_about_it():
    query = next(clip for clip in (draw_clip(0, "test", i) for i in range(50)) if list(clip.mentions) == ["audio"])
    mute = draw_clip(0, "test", query.index, absent="audio")
    assert query.satisfies(query)
    assert not mute.satisfies(query)


def test_all_attributes_are_drawn_independently(train_clips):
    clips = [draw_clip(0, "train", index) for index in range(1500)]
    columns = {
        (modality, name): [list(values).index(clip.attributes[modality][name]) for clip in clips]
        for modality, names in VOCABULARY.items()
        for name, values in names.items()
    }
    scores = []
    for (first, a), (second, b) in combinations(columns.items(), 2):
        table = np.zeros([len(VOCABULARY[m][name]) for m, name in (first, second)])
        np.add.at(table, (a, b), 1)
        expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / len(clips)
        freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
        scores.append((((table - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))
    assert len(scores) == 66
    assert max(scores) < 4.5  # chi-square of the worst of 66 pairs, in standard deviations above its mean
    assert abs(np.mean(scores)) < 0.5


def test_every_value_is_drawn(train_clips):
    for modality, names in VOCABULARY.items():
        for name, values in names.items():
            seen = Counter(clip.attributes[modality][name] for clip in train_clips if modality in clip.attributes)
            assert set(seen) == set(values)
            assert min(seen.values()) > 0.5 * sum(seen.values()) / len(values)
