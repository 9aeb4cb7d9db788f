import math
import re

import numpy as np
import pytest
from scipy import stats

from eval.protocol.statistics import (
    area_under_curve,
    hierarchical_bootstrap,
    holm,
    paired_bootstrap,
    seed_interval,
    sign_test,
    t_interval,
)


def table(shared_dir, label):
    """Body of the paper's table with this label, without comments."""
    text = (shared_dir / "paper" / "scalar.tex").read_text(encoding="utf-8")
    text = re.sub(r"(?<!\\)%.*", "", text)
    return text[text.index(rf"\label{{{label}}}") :].split(r"\end{tabular}")[0]


def numbers(cells):
    return [float(value) for value in re.findall(r"[-+]?\d+\.\d+", cells)]


def slow_sign_test(wins, losses):
    n = wins + losses
    return sum(math.comb(n, k) for k in range(wins, n + 1)) / 2**n


def test_sign_test_against_its_sum():
    for wins in range(15):
        for losses in range(15):
            if wins + losses:
                assert sign_test(wins, losses) == pytest.approx(slow_sign_test(wins, losses), rel=1e-12)
    assert sign_test(0, 7) == 1 and sign_test(7, 0) == 2**-7


def consistent(mean, deviation, low, high, half_widths_per_deviation):
    """
    Whether some mean and deviation that round to the printed ones give both printed bounds.

    Each printed value stands for the interval of half a unit of its last place around it. Mean minus and plus the
    half-width must round to the bounds, so the half-width h and the mean m satisfy low - 0.05 <= m - h <= low + 0.05
    and high - 0.05 <= m + h <= high + 0.05: a grid over both is searched.
    """
    means = mean + np.linspace(-0.05, 0.05, 201)[:, None]
    half_widths = half_widths_per_deviation * (deviation + np.linspace(-0.05, 0.05, 201))
    fits = (abs(means - half_widths - low) <= 0.05) & (abs(means + half_widths - high) <= 0.05)
    return bool(fits.any())


def test_intervals_of_the_paper(shared_dir):
    body = table(shared_dir, "tab:supp-seed-ci")
    rows = re.findall(r"\$([\d.]+)\\pm([\d.]+)\$ & \$\[([\d.]+),([\d.]+)\]\$", body)
    rows = [tuple(map(float, row)) for row in rows]
    assert len(rows) == 5
    per_deviation = t_interval(0.0, 1.0, num_runs=3)[1]
    assert per_deviation == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)  # t of 2 degrees of freedom at 97.5 %
    assert all(consistent(*row, per_deviation) for row in rows)
    # The check is not empty: neither the normal quantile nor another number of runs gives the table.
    for other in (1.96 / math.sqrt(3), t_interval(0.0, 1.0, 2)[1], t_interval(0.0, 1.0, 5)[1]):
        assert not all(consistent(*row, other) for row in rows)


def test_seed_interval_agrees_with_scipy():
    values = [54.4, 54.6, 54.9]
    low, high = stats.t.interval(0.9, df=2, loc=np.mean(values), scale=stats.sem(values))
    result = seed_interval(values, confidence=0.9)
    assert (result["low"], result["high"]) == pytest.approx((low, high))
    assert result["mean"] == pytest.approx(sum(values) / 3)
    assert result["deviation"] == pytest.approx(math.sqrt(sum((v - result["mean"]) ** 2 for v in values) / 2))
    assert t_interval(result["mean"], result["deviation"], 3, 0.9) == (result["low"], result["high"])


def hits(share, num_queries, seed):
    return 100.0 * (np.random.default_rng(seed).random(num_queries) < share)


def test_bootstrap_agrees_with_a_loop_and_with_theory():
    first, second = hits(0.5, 400, 0), hits(0.42, 400, 1)
    result = paired_bootstrap(first, second, seed=3)
    rng = np.random.default_rng(7)
    draws = []
    for _ in range(4000):
        chosen = rng.integers(400, size=400)
        draws.append(first[chosen].mean() - second[chosen].mean())
    assert result["difference"] == pytest.approx(first.mean() - second.mean())
    low, high = np.percentile(draws, [2.5, 97.5])
    assert (result["low"], result["high"]) == pytest.approx((low, high), abs=0.5)
    half_width = 1.96 * (first - second).std() / math.sqrt(400)
    assert (result["high"] - result["low"]) / 2 == pytest.approx(half_width, rel=0.05)


def test_bootstrap_is_paired():
    hard = hits(0.5, 400, 0)
    better = hard.copy()
    better[np.flatnonzero(hard == 0)[:8]] = 100
    result = paired_bootstrap(better, hard)
    assert result["difference"] == pytest.approx(2.0)
    assert 0 < result["low"] < 2 < result["high"] < 4  # two independent samples of 400 would span about 14


@pytest.mark.parametrize("seed", range(3))
def test_the_area_under_the_curve_is_the_share_of_comparisons_won_with_ties_as_halves(seed):
    numbers = np.random.default_rng(seed)
    positives, negatives = (numbers.integers(0, 5, size).tolist() for size in (30, 40))
    wins = sum((a > b) + (a == b) / 2 for a in positives for b in negatives)
    assert any(a == b for a in positives for b in negatives)
    assert area_under_curve(positives, negatives) == pytest.approx(wins / 1200, abs=1e-15)
    assert area_under_curve([1, 2], [0]) == 1 and area_under_curve([1, 2], [3.0]) == 0


# Over trainings and queries ------------------------------------------------------------------------------------------


def test_the_hierarchical_bootstrap_is_a_loop_over_draws_of_queries_and_trainings():
    rng = np.random.default_rng(3)
    first = 100.0 * (rng.random((4, 80)) < 0.6)
    second = 100.0 * (rng.random((3, 80)) < 0.45)
    found = hierarchical_bootstrap(first, second, num_resamples=4000, seed=1)
    drawn = []
    for _ in range(4000):
        queries = rng.integers(80, size=80)
        means = [values[rng.integers(len(values), size=len(values))][:, queries].mean() for values in (first, second)]
        drawn.append(means[0] - means[1])
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert found["difference"] == pytest.approx(first.mean() - second.mean())
    assert found["low"] == pytest.approx(low, abs=0.8) and found["high"] == pytest.approx(high, abs=0.8)
    p_value = 2 * min(np.mean(np.array(drawn) <= 0), np.mean(np.array(drawn) >= 0))
    assert found["p_value"] == pytest.approx(max(p_value, 2 / 4000), abs=0.01)


def test_trainings_that_differ_widen_the_interval_and_one_training_leaves_that_of_queries():
    rng = np.random.default_rng(4)
    values = 100.0 * (rng.random(300) < 0.5)
    apart = np.stack([np.clip(values - 15, 0, None), values + 15])
    same, zero = np.stack([values, values]), np.zeros((1, 300))
    widths = [
        found["high"] - found["low"]
        for found in (hierarchical_bootstrap(rows, zero, num_resamples=2000) for rows in (apart, same))
    ]
    assert widths[0] > 1.5 * widths[1]
    paired = paired_bootstrap(values.tolist(), [0.0] * 300, num_resamples=2000)
    assert widths[1] == pytest.approx(paired["high"] - paired["low"], rel=0.1)


def test_equal_methods_have_no_difference_and_wrong_shapes_are_refused():
    rows = [[100.0, 0.0, 100.0]]
    found = hierarchical_bootstrap(rows, rows, num_resamples=50)
    assert (found["difference"], found["low"], found["high"], found["p_value"]) == (0, 0, 0, 1)
    with pytest.raises(ValueError, match="same queries, got 3 and 2"):
        hierarchical_bootstrap(rows, [[1.0, 2.0]])


def test_holm_multiplies_by_the_number_of_claims_that_are_left():
    assert holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert holm([0.4, 0.6]) == pytest.approx([0.8, 0.8]) and holm([]) == []
