import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from evidence.statistics import holm, pooled_interval, seed_interval, sign_test, t_interval
from scalar_retrieval.eval.protocol.statistics import area_under_curve, paired_bootstrap


def test_the_sign_test_is_one_sided():
    for wins in range(12):
        for losses in range(1, 12):
            expected = stats.binomtest(wins, wins + losses, alternative="greater").pvalue
            assert sign_test(wins, losses) == pytest.approx(expected, rel=1e-12)
    assert sign_test(0, 7) == 1 and sign_test(7, 0) == 2**-7


def test_seed_interval_agrees_with_scipy():
    values = [54.4, 54.6, 54.9]
    low, high = stats.t.interval(0.95, df=2, loc=np.mean(values), scale=stats.sem(values))
    result = seed_interval(values)
    assert (result["low"], result["high"]) == pytest.approx((low, high))
    assert result["mean"] == pytest.approx(sum(values) / 3)
    assert result["deviation"] == pytest.approx(math.sqrt(sum((v - result["mean"]) ** 2 for v in values) / 2))
    assert t_interval(result["mean"], result["deviation"], 3) == (result["low"], result["high"])


def hits(share, num_queries, seed):
    return 100.0 * (np.random.default_rng(seed).random(num_queries) < share)


def test_bootstrap_agrees_with_a_loop_and_with_theory():
    first = hits(0.5, 400, 0)
    second = np.where(hits(0.8, 400, 1) > 0, first, hits(0.3, 400, 2))  # mostly the same, as of one query
    result = paired_bootstrap(first, second)
    rng = np.random.default_rng(7)
    draws = []
    for _ in range(4000):
        chosen = rng.integers(400, size=400)
        draws.append(first[chosen].mean() - second[chosen].mean())
    assert result["difference"] == pytest.approx(first.mean() - second.mean())
    low, high = np.percentile(draws, [2.5, 97.5])
    assert (result["low"], result["high"]) == pytest.approx((low, high), abs=0.3)
    half_width = 1.96 * (first - second).std() / math.sqrt(400)
    assert (result["high"] - result["low"]) / 2 == pytest.approx(half_width, rel=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_the_area_under_the_curve_is_the_share_of_comparisons_won_with_ties_as_halves(seed):
    numbers = np.random.default_rng(seed)
    positives, negatives = (numbers.integers(0, 5, size).tolist() for size in (30, 40))
    wins = sum((a > b) + (a == b) / 2 for a in positives for b in negatives)
    assert any(a == b for a in positives for b in negatives)
    assert area_under_curve(positives, negatives) == pytest.approx(wins / 1200, abs=1e-15)
    assert area_under_curve([1, 2], [0]) == 1 and area_under_curve([1, 2], [3.0]) == 0


# Over trainings and queries ------------------------------------------------------------------------------------------


def slow_mean_squares(values):
    """Mean squares of trainings and of the rest, from the definition of a two-way layout."""
    num_trainings, num_queries = len(values), len(values[0])
    everything = math.fsum(math.fsum(row) for row in values) / (num_trainings * num_queries)
    rows = [math.fsum(row) / num_queries for row in values]
    columns = [math.fsum(row[q] for row in values) / num_trainings for q in range(num_queries)]
    trainings = num_queries * math.fsum((row - everything) ** 2 for row in rows) / max(1, num_trainings - 1)
    rest = 0.0
    for s in range(num_trainings):
        for q in range(num_queries):
            rest += (values[s][q] - rows[s] - columns[q] + everything) ** 2
    rest /= max(1, (num_trainings - 1) * (num_queries - 1))
    return trainings, rest


def slow_two_way(first, second, paired):
    """Difference, standard error and degrees of freedom by the rule of `pooled_interval`, in loops."""
    num_queries = len(first[0])
    per_query = []
    for q in range(num_queries):
        sides = [math.fsum(row[q] for row in values) / len(values) for values in (first, second)]
        per_query.append(sides[0] - sides[1])
    difference = math.fsum(per_query) / num_queries
    groups = [first, second]
    if paired:
        groups = [[[a - b for a, b in zip(x, y, strict=True)] for x, y in zip(first, second, strict=True)]]
    of_queries = math.fsum((value - difference) ** 2 for value in per_query) / (num_queries - 1) / num_queries
    whole = [(of_queries, num_queries - 1)]
    alone = []
    for values in groups:
        if len(values) > 1:
            size = len(values) * num_queries
            trainings, rest = slow_mean_squares(values)
            alone.append((trainings / size, len(values) - 1))
            if trainings > rest:
                whole.append((trainings / size, len(values) - 1))
                whole.append((-rest / size, (len(values) - 1) * (num_queries - 1)))
    parts = alone if sum(v for v, _ in alone) > sum(v for v, _ in whole) else whole
    variance = sum(v for v, _ in parts)
    freedom = variance**2 / sum(v**2 / n for v, n in parts) if variance > 0 else None
    return difference, math.sqrt(max(0.0, variance)), freedom


def two_way_interval(first, second, paired):
    return pooled_interval([(first, second)], paired)


@given(
    st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(2, 7), st.booleans(), st.integers(0, 2**32 - 1)),
    st.sampled_from([0.0, 0.3, 3.0]),
)
@settings(max_examples=200, deadline=None)
def test_the_two_way_interval_is_a_loop_over_trainings_and_queries(shape, of_trainings):
    num_first, num_second, num_queries, paired, seed = shape
    rng = np.random.default_rng(seed)
    first = rng.normal(0, 1, (num_first, num_queries)) + of_trainings * rng.normal(0, 1, (num_first, 1))
    second = rng.normal(0, 1, (num_first if paired else num_second, num_queries))
    found = two_way_interval(first, second, paired=paired)
    difference, error, freedom = slow_two_way(first.tolist(), second.tolist(), paired)
    quantile = stats.t.ppf(0.975, freedom)
    assert found["difference"] == pytest.approx(difference, abs=1e-12)
    assert found["low"] == pytest.approx(difference - quantile * error, rel=1e-9, abs=1e-9)
    assert found["high"] == pytest.approx(difference + quantile * error, rel=1e-9, abs=1e-9)
    assert found["p_value"] == pytest.approx(2 * stats.t.sf(abs(difference) / error, freedom), rel=1e-6, abs=1e-12)


def test_sets_count_by_their_queries_and_their_variances_by_the_square():
    rng = np.random.default_rng(9)
    sets = []
    for num_queries in (100, 300):
        sets.append((rng.normal(1, 1, (1, num_queries)), rng.normal(0, 1, (1, num_queries))))
    found = pooled_interval(sets, paired=False)
    # Of a single training, the variance of each set has one summand.
    difference = 0.0
    parts = []
    for weight, (first, second) in zip((0.25, 0.75), sets, strict=True):
        mean, error, freedom = slow_two_way(first.tolist(), second.tolist(), False)
        difference += weight * mean
        parts.append(((weight * error) ** 2, freedom))
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / count for part, count in parts)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(variance)
    assert found["difference"] == pytest.approx(difference)
    assert (found["low"], found["high"]) == pytest.approx((difference - half, difference + half))


def test_methods_that_do_not_vary_have_no_interval():
    rows = [[100.0, 0.0, 100.0]]
    found = two_way_interval(rows, rows, paired=True)
    assert found == {"difference": 0, "low": 0, "high": 0, "p_value": 1}
    found = two_way_interval([[1.0, 2.0], [1.0, 2.0]], [[0.0, 1.0]] * 2, paired=True)
    assert found == {"difference": 1, "low": 1, "high": 1, "p_value": 0}


def test_holm_multiplies_by_the_number_of_claims_that_are_left():
    assert holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert holm([0.4, 0.6]) == pytest.approx([0.8, 0.8]) and holm([]) == []
