"""Claims of the evidence: sign test, intervals over seeds, over queries and trainings (SCALAR, "Statistical Support").

SciPy does the computation; this module defines the tests.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from scalar_retrieval.eval.protocol.statistics import CONFIDENCE


def sign_test(wins: int, losses: int) -> float:
    """
    Test exactly whether one method wins more often than not, one-sided (SCALAR, "Statistical Support").

    Under the null hypothesis wins and losses are equally likely and independent. Cells that share masks or a
    checkpoint are not independent; the value is then a description.

    Args:
        wins (`int`), losses (`int`): numbers of comparisons, at least one in all. Ties are left out by the usual rule;
            to count them against the claim, as the paper does with a gain of 0.0, add them to `losses`.

    Returns:
        `float`: the probability of at least `wins` wins under the null hypothesis.
    """
    return float(stats.binomtest(wins, wins + losses, alternative="greater").pvalue)


def t_interval(mean: float, deviation: float, num_runs: int) -> tuple[float, float]:
    """
    Bound a mean over runs by Student's t, two-sided, at 95 % (SCALAR Table S8).

    Args:
        mean (`float`): over the runs.
        deviation (`float`): sample standard deviation over the runs (divisor n - 1), at least 0.
        num_runs (`int`): how many runs, at least 2.

    Returns:
        `tuple[float, float]`: the lower and the upper end; both the mean if the runs do not differ.
    """
    half_width = deviation / math.sqrt(num_runs) * float(stats.t.ppf((1 + CONFIDENCE) / 2, num_runs - 1))
    return mean - half_width, mean + half_width


def seed_interval(values: Sequence[float]) -> dict[str, float]:
    """
    Summarise one metric over seeds (SCALAR Table S8).

    Args:
        values (`Sequence[float]`): its value in each run, at least two.

    Returns:
        `dict`: `mean`, `deviation` (of the sample, divisor n - 1) and the ends `low` and `high` of [`t_interval`].
    """
    mean = float(np.mean(values))
    deviation = float(np.std(values, ddof=1))
    low, high = t_interval(mean, deviation, len(values))
    return {"mean": mean, "deviation": deviation, "low": low, "high": high}


def pooled_interval(
    sets: Sequence[tuple[Sequence[Sequence[float]], Sequence[Sequence[float]]]], paired: bool
) -> dict[str, float]:
    """
    Bound the difference of two methods' means over the same queries, for other queries and other trainings, at 95 %.

    Queries and trainings are crossed random effects, with their interaction as the rest. With S trainings, Q queries
    and mean squares MS, the variance of the mean difference is

    - paired, of D = `first` - `second`: `(MS_queries + MS_trainings - MS_rest) / (S Q)`;
    - not paired: that of the mean difference per query, over Q, plus `(MS_trainings - MS_rest) / (S Q)` of each side.

    A part of trainings below 0 counts as 0, and the variance is at least `MS_trainings / (S Q)`, summed over the
    sides: neither queries nor trainings alone vary more than the whole. Bounds are Student's t with Satterthwaite's
    degrees of freedom. A single training on a side adds nothing: the bounds are then for other queries alone.

    Of several sets, each with queries and trainings of its own, every query weighs the same: the difference is the
    mean of those of the sets, weighted by their numbers of queries.

    Args:
        sets (`Sequence`): for each set, at least one, `first` and `second`: `Sequence` of shape `(trainings, queries)`
            each, one value for each training and query, queries in the same order; at least two queries.
        paired (`bool`): whether row by row both sides come from the same training, as two scores of the same
            embeddings do. Otherwise the numbers of trainings may differ.

    Returns:
        `dict`: `difference` (mean of `first` minus mean of `second`), its bounds `low` and `high`, and the two-sided
        `p_value`. Without any variance both bounds are the difference, and the p-value is 1 if it is 0, else 0.
    """
    # Both methods' values of each set, (trainings, queries).
    values = []
    num_queries = 0
    for first, second in sets:
        values.append((np.asarray(first), np.asarray(second)))
        num_queries += len(first[0])

    # The weighted mean of the differences, and the parts of its variance, which grow with the square of the weight.
    difference = 0.0
    parts: list[_Part] = []
    for first, second in values:
        weight = first.shape[1] / num_queries
        difference += weight * float(first.mean() - second.mean())
        for part in _variance_parts(first, second, paired):
            parts.append(_Part(weight**2 * part.variance, part.freedom))
    return {"difference": difference} | _student(difference, parts)


class _Part(NamedTuple):
    """A summand of a variance, and the degrees of freedom of its estimate."""

    variance: float
    freedom: int


def _variance_parts(first: np.ndarray, second: np.ndarray, paired: bool) -> list[_Part]:
    """The summands of the variance of the mean difference, by the rule of [`pooled_interval`]."""
    per_query = first.mean(0) - second.mean(0)  # (queries,)
    of_queries = _Part(float(per_query.var(ddof=1)) / len(per_query), len(per_query) - 1)
    sides = [first - second] if paired else [first, second]

    # What trainings add to the variation over queries, which already has the interaction in it.
    whole = [of_queries]
    alone = []
    for values in sides:
        if len(values) == 1:
            continue
        of_trainings, rest = _training_parts(values)
        alone.append(of_trainings)
        if of_trainings.variance > rest.variance:
            whole += [of_trainings, _Part(-rest.variance, rest.freedom)]
    return max(whole, alone, key=_total)


def _training_parts(values: np.ndarray) -> tuple[_Part, _Part]:
    """The mean squares of trainings and of the rest, each over the number of values `(trainings, queries)`."""
    # Analysis of variance with two factors and one value in each cell.
    num_trainings, num_queries = values.shape
    per_training = values.mean(1, keepdims=True)
    per_query = values.mean(0, keepdims=True)
    # What is neither of the training nor of the query: their interaction, and noise.
    rest = values - per_training - per_query + values.mean()
    freedom = (num_trainings - 1) * (num_queries - 1)
    return (
        _Part(float(per_training.var(ddof=1)) / num_trainings, num_trainings - 1),
        _Part(float((rest**2).sum()) / freedom / values.size, freedom),
    )


def _total(parts: Sequence[_Part]) -> float:
    """The variance that is the sum of parts."""
    total = 0.0
    for part in parts:
        total += part.variance
    return total


def _student(difference: float, parts: Sequence[_Part]) -> dict[str, float]:
    """The bounds and the p-value of a difference whose variance is a sum of parts, by Satterthwaite's rule."""
    variance = _total(parts)
    if variance <= 0:
        return {"low": difference, "high": difference, "p_value": float(difference == 0)}
    # Degrees of freedom: those of the parts, weighted by their shares of the variance.
    spread = 0.0
    for part in parts:
        spread += part.variance**2 / part.freedom
    freedom = variance**2 / spread
    error = math.sqrt(variance)
    half_width = error * float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
    p_value = 2 * float(stats.t.sf(abs(difference) / error, freedom))
    return {"low": difference - half_width, "high": difference + half_width, "p_value": p_value}


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
    # The smallest counts for all claims, the next for all but one, and none is below an earlier one.
    steps = np.maximum.accumulate(np.asarray(p_values, dtype=float)[order] * factors)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted.tolist()


__all__ = ["holm", "pooled_interval", "seed_interval", "sign_test", "t_interval"]
