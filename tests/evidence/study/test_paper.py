"""The paper's claims: sizes as printed there, and verdicts by the rule under the table."""

import re

import pytest

from evidence.reports import paper as published
from evidence.study.paper import PAPER_CLAIMS, verdict

CLAIMS = {claim.sentence: claim for topic in PAPER_CLAIMS for claim in topic}


NAMES = {"GRAM": "gram", "PMRL": "pmrl", "HyperGRAM": "hypergram", "equal weights": "scalar_uniform"}
RATES = {"a quarter": 1, "half": 2, "three quarters": 3, "90 %": 4}


def test_sizes_are_differences_of_the_papers_values():
    """Which are those of its LaTeX: tests/evidence/reports/test_paper.py."""
    for title, name in {**NAMES, "SCALAR": "scalar"}.items():
        rows = [rows for rows in published.COMPONENTS.values() if name in rows]
        gains = [joint - best for best, joint in (row[name] for row in rows)]
        assert CLAIMS[f"aggregation gain of {title}"].sizes == pytest.approx(gains)
        if title in NAMES:
            leads = [row["scalar"][1] - row[name][1] for row in rows]
            assert CLAIMS[f"SCALAR − {title}, first stage"].sizes == pytest.approx(leads)
    for share, rate in RATES.items():
        margins = [rows["scalar"][rate] - rows["gram"][rate] for rows in published.MISSING.values()]
        assert CLAIMS[f"SCALAR − GRAM, {share} masked"].sizes == pytest.approx(margins)


def test_every_label_is_one_of_the_paper(shared_dir):
    source = (shared_dir / "paper" / "scalar.tex").read_text(encoding="utf-8")
    for claim in CLAIMS.values():
        labels = re.findall(r"(?:tab|fig|sec):[\w-]+", claim.place)
        assert labels and all(rf"\label{{{label}}}" in source for label in labels)


@pytest.mark.parametrize("sizes, low, high, expected", [
    ((3.0, 5.0), 1.0, 4.0, "confirmed"),
    ((3.0, 5.0), 1.0, 2.9, "excluded"),  # of that sign, but smaller than anything in the paper
    ((3.0, 5.0), -1.0, 3.1, "too small to see"),
    ((3.0, 5.0), -2.0, -1.0, "reverse"),
    ((-3.0, -5.0), -4.0, -1.0, "confirmed"),
    ((5.0, -1.0), 0.5, 8.0, "confirmed"),  # the least value of the side on which the mean lies
    ((0.0,), -0.5, 0.5, "not excluded"),  # that there is no difference
    ((0.0,), 0.1, 0.5, "excluded"),
])  # fmt: skip
def test_verdicts(sizes, low, high, expected):
    assert verdict(sizes, {"difference": (low + high) / 2, "low": low, "high": high}) == expected
    assert verdict(sizes, None) == "not run"
