"""The paper's claims: sizes as printed there, and verdicts by the rule under the table."""

import re

import pytest

from evidence.study import paper
from evidence.study.paper import PAPER_CLAIMS, paper_table, verdict
from evidence.study.results import StudyResults
from evidence.study.whole import RESULTS

CLAIMS = {claim.sentence: claim for topic in PAPER_CLAIMS for claim in topic}


@pytest.fixture(scope="module")
def results():
    return StudyResults(RESULTS)


@pytest.fixture(scope="module")
def source(shared_dir):
    text = (shared_dir / "paper" / "scalar.tex").read_text(encoding="utf-8")
    return re.sub(r"(?<!\\)%.*", "", text)


def rows(source, label):
    """The numbers of each row of a table of the paper, by its first cell that has letters."""
    body = source[source.index(rf"\label{{{label}}}") :].split(r"\end{tabular}")[0]
    found = {}
    for row in body.split(r"\\"):
        name, *cells = row.split("&")
        if not re.sub(r"[^A-Za-z]", "", name.replace("midrule", "")):
            name, *cells = cells or [""]
        numbers = [re.findall(r"[-+]?\d+\.\d+", cell) for cell in cells]
        found[" ".join(name.split())] = [float(each[0]) for each in numbers if each]
    return found


def row(source, label, start):
    return next(values for name, values in rows(source, label).items() if start in name and values)


@pytest.mark.parametrize("sentence, start", [
    ("aggregation gain of GRAM", r"\gram{}"), ("aggregation gain of PMRL", r"\pmrl{}"),
    ("aggregation gain of HyperGRAM", r"\hypergram{}"), ("aggregation gain of equal weights", "uniform weights"),
    ("aggregation gain of SCALAR", "query-weighted"),
])  # fmt: skip
def test_gains_are_those_of_the_paper(source, sentence, start):
    assert list(CLAIMS[sentence].sizes) == row(source, "tab:gain", start)


@pytest.mark.parametrize("sentence, start", [
    ("SCALAR − GRAM, first stage", "GRAM$"), ("SCALAR − PMRL, first stage", "PMRL"),
    ("SCALAR − HyperGRAM, first stage", "HyperGRAM"), ("SCALAR − equal weights, first stage", "uniform weights"),
])  # fmt: skip
def test_first_stages_are_differences_of_the_papers_scores(source, sentence, start):
    label = "tab:supp-gain-components"
    ours, theirs = (row(source, label, name)[1::3] for name in ("query-weighted", start))
    differences = [a - b for a, b in zip(ours, theirs, strict=False)]
    assert list(CLAIMS[sentence].sizes) == pytest.approx(differences)


def test_masked_margins_are_those_of_the_paper(source):
    body = source[source.index(r"\label{tab:missing}") :].split(r"\end{tabular}")[0]
    margins = [re.findall(r"\+\d+\.\d+", line) for line in body.splitlines() if "margin" in line]
    shares = ("first stage", "a quarter masked", "half masked", "three quarters masked", "90 % masked")
    for column, share in enumerate(shares):
        sizes = [float(margin[column]) for margin in margins]
        assert list(CLAIMS[f"SCALAR − GRAM, {share}"].sizes) == sizes


def test_every_label_is_one_of_the_paper(source):
    for claim in CLAIMS.values():
        labels = re.findall(r"(?:tab|fig|sec):[\w-]+", claim.place)
        assert labels and all(rf"\label{{{label}}}" in source for label in labels)


@pytest.mark.parametrize("sizes, low, high, expected", [
    ((3.0, 5.0), 1.0, 4.0, "confirmed"),
    ((3.0, 5.0), 1.0, 2.9, "excluded"),  # of that sign, but smaller than anything in the paper
    ((3.0, 5.0), -1.0, 2.9, "excluded"),
    ((3.0, 5.0), -1.0, 3.1, "too small to see"),
    ((3.0, 5.0), -2.0, -1.0, "reverse"),
    ((-3.0, -5.0), -4.0, -1.0, "confirmed"),
    ((-3.0, -5.0), -2.0, 1.0, "excluded"),
    ((-3.0, -5.0), 1.0, 2.0, "reverse"),
    ((-3.0, -5.0), -3.5, 2.0, "too small to see"),
    ((5.0, -1.0), 0.5, 8.0, "confirmed"),  # the least value of the side on which the mean lies
    ((5.0, -1.0), 0.5, 3.0, "excluded"),
    ((0.0,), -0.5, 0.5, "not excluded"),  # that there is no difference
    ((0.0,), 0.1, 0.5, "excluded"),
])  # fmt: skip
def test_verdicts(sizes, low, high, expected):
    assert verdict(sizes, {"difference": (low + high) / 2, "low": low, "high": high}) == expected
    assert verdict(sizes, None) == "not run"


def test_the_table_says_first_that_symmetric_aggregators_are_above_their_best_modality(results):
    shown = [[str(cell) for cell in line] for line in paper_table(results).rows]
    assert [line[0] for line in shown[:3]] == [f"aggregation gain of {name}" for name in
                                               ("GRAM", "HyperGRAM", "equal weights")]  # fmt: skip
    assert {line[-1] for line in shown[:3]} == {"reverse"}
    assert "TRIANGLE" not in str(shown) and all(f"*{name}*" in paper.RULE for name in
                                                {line[-1] for line in shown} - {"not run"})  # fmt: skip
