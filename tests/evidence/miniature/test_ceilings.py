"""What perfect readers of the miniature benchmark would reach."""

import numpy as np
import pytest

from evidence.miniature.ceilings import recall_ceilings
from evidence.miniature.clips import KINDS, draw_split


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
