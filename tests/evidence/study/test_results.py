"""What the study's quantities and differences mean, by the shipped results."""

import numpy as np
import pytest

from evidence.study import differences
from evidence.study.differences import Difference, described_differences, judged_claims, named_claims, with_interval
from evidence.study.report import difference_with, fill
from evidence.study.results import Quantity, StudyResults, chances_of_first
from evidence.study.whole import RESULTS


@pytest.fixture(scope="module")
def results():
    return StudyResults(RESULTS)


def test_scores_of_the_same_embeddings_are_paired(results, monkeypatch):
    monkeypatch.setattr(differences, "pooled_interval", lambda sets, paired: {"low": paired})
    others = Quantity(numbers="as trained"), Quantity("gram"), None, Quantity(score="gram")
    found = [with_interval(results, Difference("x", "", Quantity(), other))["low"] for other in others]
    assert found == [True, False, True, True]


def test_claims_named_in_advance_are_judged_together_and_no_others(results):
    claims, found = named_claims(), judged_claims(results)
    assert len(claims) == len(found) == 7 and all(claim.first.measure == "mrr" for claim in claims)
    lowest = min(found.values(), key=lambda entry: entry["p_value"])
    assert lowest["adjusted"] == pytest.approx(min(1, 7 * lowest["p_value"]))
    assert {entry["verdict"] for entry in found.values()} == {"shown"}  # as the page says
    assert not any("verdict" in entry for entry in described_differences(results).values())


@pytest.mark.parametrize("low, high, p_value, verdict", [
    (1, 3, 0.001, "shown"), (-3, -1, 0.001, "reverse"), (0.1, 3, 0.04, "undecided"), (-1, 2, 0.5, "undecided"),
])  # fmt: skip
def test_verdicts(monkeypatch, low, high, p_value, verdict):
    entry = {"difference": (low + high) / 2, "low": low, "high": high, "p_value": p_value, "sets": ("main",)}
    monkeypatch.setattr(differences, "with_interval", lambda results, claim: dict(entry))
    assert {found["verdict"] for found in judged_claims(StudyResults(RESULTS)).values()} == {verdict}


def test_a_sentence_that_the_results_do_not_bear_out_is_refused(results):
    entries = described_differences(results)
    assert difference_with(entries, "lead-gram", "above").startswith("+5.7 [")
    with pytest.raises(ValueError, match="relies on 'lead-gram' below 0; the results say"):
        difference_with(entries, "lead-gram", "below")
    with pytest.raises(ValueError, match="figure x"):
        fill("{{figure x}}", results)


def test_galleries_of_the_same_size_are_the_mean_of_all_draws():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(40, 40)) + 2 * np.eye(40)
    ranks = (scores >= scores.diagonal()[:, None]).sum(1).clip(max=11)
    hits = []
    for _ in range(3000):
        kept = rng.permutation(40)[:28]
        hits.append((scores[np.ix_(kept, kept)].argmax(1) == np.arange(28)).mean())
    assert chances_of_first(40, 28)[ranks].mean() == pytest.approx(np.mean(hits), abs=0.005)
