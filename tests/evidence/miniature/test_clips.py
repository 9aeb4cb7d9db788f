"""What the clips of the miniature benchmark are, and what their captions say of them."""

import re

import pytest

from evidence.miniature.clips import ABSENT_SHARES, EVIDENCE_ABSENT_SHARES, SPLITS, draw_split
from evidence.miniature.vocabulary import EVIDENCE


@pytest.mark.parametrize("count", [12, 300])
def test_shares_of_missing_tracks_and_texts_are_exact(count):
    clips = draw_split(5, "train", count, evidence=["title", "screen"])
    for modality, share in (ABSENT_SHARES | EVIDENCE_ABSENT_SHARES).items():
        assert sum(modality not in clip.attributes for clip in clips) == round(share * count) > 0
    for clip in clips:
        assert len(clip.attributes.keys() & ABSENT_SHARES) >= 2
        assert "screen" not in clip.attributes or "video" in clip.attributes  # without pictures there is no screen


@pytest.mark.parametrize("split", SPLITS)
def test_captions_are_unique_and_what_they_say_is_true_of_their_clips(split):
    clips = draw_split(0, split, 1000)
    assert len({clip.caption for clip in clips}) == 1000
    assert all(clip.claims and clip.satisfies(clip) for clip in clips)


# Further evidence ----------------------------------------------------------------------------------------------------


def test_a_caption_that_a_text_answers_is_true_of_the_clips_whose_text_has_its_words():
    """Told by the words alone: of the texts as they are listed, without attributes."""
    evidence = ("title", "screen")
    clips = draw_split(2, "test", 500, evidence=evidence)
    shown = {name: set().union(*EVIDENCE[name].values()) for name in evidence}
    for query in clips:
        if query.kind in evidence:
            said = shown[query.kind].intersection(re.findall(r"\w+", query.caption))
            texts = [set(re.findall(r"\w+", clip.texts[query.kind] or "")) for clip in clips]
            assert len(said) == 3
            assert [said <= words for words in texts] == [clip.satisfies(query) for clip in clips]
