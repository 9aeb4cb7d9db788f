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
        first (`Sequence[float]`), second (`Sequence[float]`): one finite value per query for each method, in the same
            order, e.g. `100 * (ranks <= 1)` for R@1.

    Returns:
        `dict`: `difference` (mean of `first` minus mean of `second`), its bounds `low` and `high`, and `confidence`.
    """
    # The percentile interval of the mean difference per query.
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
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
    """
    # The statistic of Mann and Whitney is the number of pairs in this order.
    result = stats.mannwhitneyu(positives, negatives, method="asymptotic")
    return float(result.statistic) / (len(positives) * len(negatives))


__all__ = ["CONFIDENCE", "area_under_curve", "paired_bootstrap"]
