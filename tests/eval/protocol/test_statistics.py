import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from evidence.statistics import holm, pooled_interval, seed_interval, sign_test, t_interval
from scalar_retrieval.eval.protocol.statistics import area_under_curve, paired_bootstrap


def test_the_sign_test_is_one_sided():
    for wins, losses in itertools.product(range(12), range(1, 12)):
        expected = stats.binom.sf(wins - 1, wins + losses, 0.5)
        assert sign_test(wins, losses) == pytest.approx(expected, rel=1e-12)


def test_seed_interval_agrees_with_scipy():
    values = [54.4, 54.6, 54.9]
    result = seed_interval(values)
    low, high = stats.t.interval(0.95, df=2, loc=np.mean(values), scale=stats.sem(values))
    expected = {"mean": np.mean(values), "deviation": np.std(values, ddof=1), "low": low, "high": high}
    assert result == pytest.approx(expected)
    assert t_interval(result["mean"], result["deviation"], 3) == (result["low"], result["high"])


def test_bootstrap_agrees_with_a_loop():
    rng = np.random.default_rng(7)
    first = 100.0 * (rng.random(400) < 0.5)
    second = np.where(rng.random(400) < 0.8, first, 30.0)  # mostly the same, as of one query
    change = first - second
    low, high = np.percentile([change[rng.integers(400, size=400)].mean() for _ in range(4000)], [2.5, 97.5])
    expected = {"difference": change.mean(), "low": low, "high": high, "confidence": 0.95}
    assert paired_bootstrap(first, second) == pytest.approx(expected, abs=0.3)


def test_the_area_under_the_curve_is_the_share_of_comparisons_won_with_ties_as_halves():
    numbers = np.random.default_rng(0)
    positives, negatives = (numbers.integers(0, 5, size).tolist() for size in (30, 40))
    wins = sum((a > b) + (a == b) / 2 for a in positives for b in negatives)
    assert area_under_curve(positives, negatives) == pytest.approx(wins / 1200, abs=1e-15)


# Over trainings and queries ------------------------------------------------------------------------------------------


def slow_mean_squares(values):
    """Mean squares of trainings and of the rest, from the definition of a two-way layout."""
    num_trainings, num_queries = np.shape(values)
    everything, rows, columns = np.mean(values), np.mean(values, axis=1), np.mean(values, axis=0)
    rest = 0.0
    for s, q in np.ndindex(num_trainings, num_queries):
        rest += (values[s][q] - rows[s] - columns[q] + everything) ** 2
    return num_queries * rows.var(ddof=1), rest / ((num_trainings - 1) * (num_queries - 1))


def slow_parts(first, second, paired):
    """The summands of the variance by the rule of `pooled_interval`, with their degrees of freedom, in loops."""
    per_query = np.mean(first, axis=0) - np.mean(second, axis=0)
    groups = [np.subtract(first, second)] if paired else [first, second]
    whole, alone = [(per_query.var(ddof=1) / len(per_query), len(per_query) - 1)], []
    for values in groups:
        if len(values) > 1:
            size = len(values) * len(per_query)
            trainings, rest = slow_mean_squares(values)
            alone.append((trainings / size, len(values) - 1))
            if trainings > rest:
                whole.append(alone[-1])
                whole.append((-rest / size, (len(values) - 1) * (len(per_query) - 1)))
    return alone if sum(v for v, _ in alone) > sum(v for v, _ in whole) else whole


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(2, 7)), min_size=1, max_size=2),
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.3, 3.0]),
)
@settings(max_examples=200, deadline=None)
def test_the_interval_is_a_loop_over_trainings_and_queries_and_sets_count_by_their_queries(
    shapes, paired, seed, of_trainings
):
    rng = np.random.default_rng(seed)
    sets, difference, parts = [], 0.0, []
    for num_first, num_second, num_queries in shapes:
        first = rng.normal(0, 1, (num_first, num_queries)) + of_trainings * rng.normal(0, 1, (num_first, 1))
        second = rng.normal(0, 1, (num_first if paired else num_second, num_queries))
        sets.append((first, second))
        weight = num_queries / sum(queries for _, _, queries in shapes)
        difference += weight * (first.mean() - second.mean())
        parts += [(weight**2 * part, count) for part, count in slow_parts(first.tolist(), second.tolist(), paired)]
    found = pooled_interval(sets, paired)
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / count for part, count in parts)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(variance)
    assert found["difference"] == pytest.approx(difference, abs=1e-12)
    assert (found["low"], found["high"]) == pytest.approx((difference - half, difference + half), rel=1e-9, abs=1e-9)
    expected = 2 * stats.t.sf(abs(difference) / math.sqrt(variance), freedom)
    assert found["p_value"] == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("change, p_value", [(0, 1), (1, 0)])
def test_methods_that_do_not_vary_have_no_interval(change, p_value):
    first, second = [[1.0, 2.0]] * 2, [[1.0 - change, 2.0 - change]] * 2
    expected = {"difference": change, "low": change, "high": change, "p_value": p_value}
    assert pooled_interval([(first, second)], paired=True) == expected


def test_holm_multiplies_by_the_number_of_claims_that_are_left():
    assert holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert holm([0.4, 0.6]) == pytest.approx([0.8, 0.8]) and holm([]) == []
