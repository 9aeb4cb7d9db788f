"""Uncertainty of results: the difference of two methods over the same queries (SCALAR, "Statistical Support")."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
"""The probability that an interval holds the value."""
_RESAMPLED_AT_ONCE = 2**20  # values held at once by the bootstrap, 16 MB with their indices


def paired_bootstrap(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """
    Bound the difference of two methods' means over the same queries, at 95 %, by the same 9,999 draws each time.

    Queries are drawn with replacement, and both methods are evaluated on the same draw, so that the difficulty of a
    query cancels. This is the percentile interval: for a mean over many queries it nearly coincides with BCa, and it
    exists for every sample, whereas BCa divides by a spread that can be 0.

    Args:
        first (`Sequence[float]`), second (`Sequence[float]`): one value per query for each method, in the same order,
            e.g. `100 * (ranks <= 1)` for R@1.

    Returns:
        `dict`: `difference` (mean of `first` minus mean of `second`), its bounds `low` and `high`, and `confidence`.

    Raises:
        ValueError: the methods have different numbers of queries or none, or a value is not finite.
    """
    first = finite("first", first)
    second = finite("second", second)
    if first.shape != second.shape:
        raise ValueError(f"Expected values of the same queries, got {len(first)} and {len(second)}.")
    # The percentile interval of the mean difference per query.
    differences = first - second
    difference = float(differences.mean())
    low = difference
    high = difference
    if (differences != differences[0]).any():  # else every draw has the same mean
        result = stats.bootstrap(
            (differences,),
            np.mean,
            n_resamples=9999,
            batch=max(1, _RESAMPLED_AT_ONCE // len(differences)),
            confidence_level=CONFIDENCE,
            method="percentile",
            rng=np.random.default_rng(0),
        )
        low, high = map(float, result.confidence_interval)
    return {"difference": difference, "low": low, "high": high, "confidence": CONFIDENCE}


def area_under_curve(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """
    Return the area under the ROC curve: how often a positive value is above a negative one, ties counted half.

    Args:
        positives (`Sequence[float]`), negatives (`Sequence[float]`): finite, at least one of each.

    Returns:
        `float`: between 0 and 1; 0.5 for values that do not distinguish the two kinds.

    Raises:
        ValueError: there are no values of a kind, or one is not finite.
    """
    positives = finite("positives", positives)
    negatives = finite("negatives", negatives)
    # The statistic of Mann and Whitney is the number of pairs in this order.
    result = stats.mannwhitneyu(positives, negatives, method="asymptotic")
    return float(result.statistic) / (len(positives) * len(negatives))


def finite(name: str, values: Sequence[float]) -> np.ndarray:
    """Return values as float64 `(values,)`; raises a ValueError if there are none, or one is not finite."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise ValueError(f"`{name}` must be a sequence of finite numbers, not empty; got {values.tolist()!r:.200}.")
    return values


__all__ = ["CONFIDENCE", "area_under_curve", "finite", "paired_bootstrap"]
