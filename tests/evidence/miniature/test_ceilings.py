"""What perfect readers of the miniature benchmark would reach."""

from dataclasses import replace

import numpy as np
import pytest

from evidence.miniature.ceilings import _Factor, recall_ceilings
from evidence.miniature.clips import KINDS, _draw_attributes, draw_clip, draw_split, expressed_value
from evidence.miniature.vocabulary import FACTORS

CLIP = draw_clip(0, "test", 0)


@pytest.mark.parametrize("shared", [0, 0.6, 1])
def test_a_reader_of_everything_finds_what_a_loop_over_pairs_finds(shared):
    clips = draw_split(4, "validation", 200, shared=shared)
    matches = [[clip.satisfies(query) for clip in clips] for query in clips]
    found = recall_ceilings(clips, KINDS)
    assert list(found) == ["all", *KINDS]
    for kind in found:
        shares = [100 / sum(row) for row, query in zip(matches, clips, strict=True) if kind in ("all", query.kind)]
        assert found[kind] == (pytest.approx(np.mean(shares), abs=1e-9) if shares else None)
    assert found["all"] < 100


def test_the_ceiling_halves_for_clips_that_cannot_be_distinguished():
    clip, other = CLIP, next(kind for kind in KINDS if kind != CLIP.kind)
    assert recall_ceilings([clip], [clip.kind, other]) == {"all": 100, clip.kind: 100, other: None}
    assert recall_ceilings([clip, clip], [clip.kind]) == {"all": 50, clip.kind: 50}
    assert recall_ceilings([], KINDS) == dict.fromkeys(("all", *KINDS))


def test_a_reader_of_one_modality_knows_how_probable_a_claim_is_of_what_that_modality_says():
    """Against counts among drawn clips whose modality says the same."""
    rng = np.random.default_rng(0)
    drawn = [_draw_attributes(0.6, rng)[0] for _ in range(5000)]
    checked = 0
    for name in ("tempo", "scene"):  # of few values, so that enough clips are alike
        factor = _Factor(name, 0.6)
        modalities = list(next(iter(FACTORS[name].values())))
        reported = {m: np.array([str(expressed_value(name, m, clip[m])) for clip in drawn]) for m in modalities}
        for modality in modalities:
            said = np.array([factor.said(replace(CLIP, attributes=clip), modality) for clip in drawn])
            for value in FACTORS[name]:
                true = np.any([reported[m] == value for m in modalities], axis=0)
                holds, own = factor.holds({(name, value)}), factor.own(modality)
                for code in np.unique(own):
                    alike = said == code
                    of_states = factor.probabilities[own == code]
                    probability = (of_states * holds[own == code]).sum() / of_states.sum()
                    assert abs(of_states.sum() - alike.mean()) < 0.02
                    assert abs(probability - true[alike].mean()) < 4.5 * np.sqrt(0.25 / alike.sum())
                    checked += 0.05 < probability < 0.95
    assert checked > 50
