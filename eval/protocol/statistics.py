"""Uncertainty of results: sign test, interval over seeds, difference of two methods (SCALAR, "Statistical Support").

SciPy does the computation; this module defines the tests and refuses input that they do not fit.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy import stats

_RESAMPLED_AT_ONCE = 2**20  # values held at once by the bootstrap, 16 MB with their indices


def sign_test(wins: int, losses: int) -> float:
    """
    Test exactly whether one method wins more often than not, one-sided (SCALAR, "Statistical Support").

    Under the null hypothesis wins and losses are equally likely and independent. Cells that share masks or a
    checkpoint are not independent; the value is then a description.

    Args:
        wins (`int`), losses (`int`): numbers of comparisons, from 0. Ties are left out by the usual rule; to count
            them against the claim, as the paper does with a gain of 0.0, add them to `losses`.

    Returns:
        `float`: the probability of at least `wins` wins under the null hypothesis.

    Raises:
        ValueError: a number is negative, or both are 0.
    """
    if wins < 0 or losses < 0 or wins + losses == 0:
        raise ValueError(f"Expected numbers of wins and losses, at least one in all; got {wins} and {losses}.")
    return float(stats.binomtest(wins, wins + losses, alternative="greater").pvalue)


def t_interval(mean: float, deviation: float, num_runs: int, confidence: float = 0.95) -> tuple[float, float]:
    """
    Bound a mean over runs by Student's t, two-sided (SCALAR Table S8).

    Args:
        mean (`float`): over the runs.
        deviation (`float`): sample standard deviation over the runs (divisor n - 1), at least 0.
        num_runs (`int`): how many runs, at least 2.
        confidence (`float`): between 0 and 1.

    Returns:
        `tuple[float, float]`: the lower and the upper end; both the mean if the runs do not differ.

    Raises:
        ValueError: there are fewer than two runs, or a value is not finite or out of range.
    """
    if num_runs < 2:
        raise ValueError(f"An interval needs at least two runs, got {num_runs}: one has no deviation.")
    if not math.isfinite(mean) or not 0 <= deviation < math.inf:
        raise ValueError(f"Expected a finite mean and a deviation of at least 0, got {mean} and {deviation}.")
    _check_confidence(confidence)
    half_width = deviation / math.sqrt(num_runs) * float(stats.t.ppf((1 + confidence) / 2, num_runs - 1))
    return mean - half_width, mean + half_width


def seed_interval(values: Sequence[float], confidence: float = 0.95) -> dict[str, float]:
    """
    Summarise one metric over seeds (SCALAR Table S8).

    Args:
        values (`Sequence[float]`): its value in each run, at least two.
        confidence (`float`): between 0 and 1.

    Returns:
        `dict`: `mean`, `deviation` (of the sample, divisor n - 1) and the ends `low` and `high` of [`t_interval`].

    Raises:
        ValueError: there are fewer than two values, or one is not finite.
    """
    values = _finite("values", values)
    if len(values) < 2:
        raise ValueError(f"An interval needs at least two runs, got {len(values)}: one has no deviation.")
    mean, deviation = float(values.mean()), float(values.std(ddof=1))
    low, high = t_interval(mean, deviation, len(values), confidence)
    return {"mean": mean, "deviation": deviation, "low": low, "high": high}


def paired_bootstrap(
    first: Sequence[float],
    second: Sequence[float],
    confidence: float = 0.95,
    num_resamples: int = 9999,
    seed: int = 0,
) -> dict[str, float]:
    """
    Bound the difference of two methods' means over the same queries.

    Queries are drawn with replacement, and both methods are evaluated on the same draw, so that the difficulty of a
    query cancels. This is the percentile interval: for a mean over many queries it nearly coincides with BCa, and it
    exists for every sample, whereas BCa divides by a spread that can be 0.

    Args:
        first (`Sequence[float]`), second (`Sequence[float]`): one value per query for each method, in the same order,
            e.g. `100 * (ranks <= 1)` for R@1.
        confidence (`float`): between 0 and 1.
        num_resamples (`int`): number of draws, at least 1.
        seed (`int`): seed of the draws.

    Returns:
        `dict`: `difference` (mean of `first` minus mean of `second`), its bounds `low` and `high`, and `confidence`.

    Raises:
        ValueError: the methods have different numbers of queries or none, or a value is not finite.
    """
    first, second = _finite("first", first), _finite("second", second)
    if first.shape != second.shape:
        raise ValueError(f"Expected values of the same queries, got {len(first)} and {len(second)}.")
    _check_confidence(confidence)
    if num_resamples < 1:
        raise ValueError(f"`num_resamples` must be at least 1, got {num_resamples}.")
    differences = first - second
    difference = float(differences.mean())
    low = high = difference
    if (differences != differences[0]).any():  # else every draw has the same mean
        result = stats.bootstrap(
            (differences,),
            np.mean,
            n_resamples=num_resamples,
            batch=max(1, _RESAMPLED_AT_ONCE // len(differences)),
            confidence_level=confidence,
            method="percentile",
            rng=np.random.default_rng(seed),
        )
        low, high = map(float, result.confidence_interval)
    return {"difference": difference, "low": low, "high": high, "confidence": confidence}


@lru_cache(maxsize=2)  # drawing is what takes the time, and reports make many claims of the same queries
def _query_draws(num_queries: int, num_resamples: int, seed: int) -> np.ndarray:
    """How often each draw takes each query, `(num_resamples, num_queries)`."""
    generator = np.random.default_rng([seed, 0])
    return generator.multinomial(num_queries, np.full(num_queries, 1 / num_queries), num_resamples).astype(np.float32)


def hierarchical_bootstrap(
    first: Sequence[Sequence[float]],
    second: Sequence[Sequence[float]],
    confidence: float = 0.95,
    num_resamples: int = 9999,
    seed: int = 0,
) -> dict[str, float]:
    """
    Bound the difference of two methods' means over the same queries and over trainings.

    Each draw takes queries with replacement, the same for both methods, and trainings of each method with
    replacement: the variation by another set of queries and another training seed. This is the percentile interval.

    Args:
        first (`Sequence` of shape `(trainings, queries)`), second (likewise): one value for each training and query;
            the numbers of trainings may differ.
        confidence (`float`): between 0 and 1.
        num_resamples (`int`): number of draws, at least 1.
        seed (`int`): seed of the draws.

    Returns:
        `dict`: `difference` (mean of `first` minus mean of `second`), its bounds `low` and `high`, `confidence`, and
        `p_value`, two-sided: twice the share of draws on the other side of 0, at least that of a single draw.

    Raises:
        ValueError: the methods have different numbers of queries, or none, or a value is not finite.
    """
    groups = [np.stack([_finite(name, row) for row in rows]) for name, rows in (("first", first), ("second", second))]
    if groups[0].shape[1] != groups[1].shape[1]:
        raise ValueError(f"Expected values of the same queries, got {groups[0].shape[1]} and {groups[1].shape[1]}.")
    _check_confidence(confidence)
    if num_resamples < 1:
        raise ValueError(f"`num_resamples` must be at least 1, got {num_resamples}.")
    queries, generator = _query_draws(groups[0].shape[1], num_resamples, seed), np.random.default_rng([seed, 1])
    means = []
    for values in groups:
        trainings = generator.multinomial(len(values), np.full(len(values), 1 / len(values)), num_resamples)
        means.append((trainings * (queries @ values.T)).sum(1) / values.size)
    drawn = means[0] - means[1]
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    beyond = min((drawn <= 0).mean(), (drawn >= 0).mean())
    return {
        "difference": float(groups[0].mean() - groups[1].mean()),
        "low": float(low),
        "high": float(high),
        "confidence": confidence,
        "p_value": float(min(1.0, 2 * max(beyond, 1 / num_resamples))),
    }


def holm(p_values: Sequence[float]) -> list[float]:
    """
    Adjust p-values for multiple tests by Holm's step-down method, which bounds the probability of any false claim.

    Args:
        p_values (`Sequence[float]`): p-values of all claims, in [0, 1].

    Returns:
        `list[float]`: adjusted p-values in the same order; a claim holds if its own is at most the level.
    """
    order = np.argsort(p_values, kind="stable")
    factors = len(order) - np.arange(len(order))
    adjusted = np.minimum(np.maximum.accumulate(np.asarray(p_values, dtype=float)[order] * factors), 1.0)
    found = np.empty(len(order))
    found[order] = adjusted
    return found.tolist()


def area_under_curve(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """
    Return the area under the ROC curve: how often a positive value is above a negative one, ties counted half.

    Args:
        positives (`Sequence[float]`), negatives (`Sequence[float]`): finite, at least one of each.

    Returns:
        `float`: between 0 and 1; 0.5 if the values say nothing.

    Raises:
        ValueError: there are no values of a kind, or one is not finite.
    """
    positives, negatives = _finite("positives", positives), np.sort(_finite("negatives", negatives))
    below, up_to = (np.searchsorted(negatives, positives, side) for side in ("left", "right"))
    return float((below + up_to).sum() / (2 * len(positives) * len(negatives)))


def _finite(name: str, values: Sequence[float]) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise ValueError(f"`{name}` must be a sequence of finite numbers, not empty; got {values.tolist()!r:.200}.")
    return values


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"`confidence` must be between 0 and 1, got {confidence}.")


__all__ = [
    "area_under_curve",
    "hierarchical_bootstrap",
    "holm",
    "paired_bootstrap",
    "seed_interval",
    "sign_test",
    "t_interval",
]
