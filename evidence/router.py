"""The oracle router: chooses one method for each kind of query. It is an upper bound, not a method.

It knows the kind of every query from the benchmark, which no search does.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np


def route(
    ranks_on_validation: Mapping[str, Sequence[int]],
    groups_of_validation: Sequence[Hashable],
    groups_of_test: Sequence[Hashable],
) -> tuple[dict[Hashable, str], list[str]]:
    """
    Choose for each group of queries the method with the best R@1 on validation; the earlier one in a tie.

    Args:
        ranks_on_validation (`dict`): method to the rank of each query's first relevant candidate, from 1.
        groups_of_validation, groups_of_test (`Sequence[Hashable]`): the group of each query, such as the kind of its
            caption with the modalities that it describes. A test group that validation lacks gets the method that is
            best on all of validation.

    Returns:
        `dict` from each group to its method, with the groups of validation first; and the method of each test query,
        whose rank it gets.

    Raises:
        ValueError: there are no methods or no queries, or not one rank for each query.
    """
    # Ranks and groups are of the same queries.
    numbers = {method: len(ranks) for method, ranks in ranks_on_validation.items()}
    if set(numbers.values()) != {len(groups_of_validation)} or not len(groups_of_validation):
        raise ValueError(
            f"Expected ranks by at least one method, for each of {len(groups_of_validation)} queries, got {numbers}."
        )
    # The R@1 of each method on some rows; the first of equals is the earlier method.
    hits = {}
    for method, ranks in ranks_on_validation.items():
        hits[method] = np.asarray(ranks) == 1

    def best(rows: Sequence[int]) -> str:
        return max(hits, key=lambda method: int(hits[method][rows].sum()))

    # One method for each group, and for groups that validation lacks the one that is best on all of it.
    rows_of: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups_of_validation):
        rows_of.setdefault(group, []).append(row)
    chosen = {group: best(rows) for group, rows in rows_of.items()}
    overall = best(range(len(groups_of_validation)))
    of_test = []
    for group in groups_of_test:
        of_test.append(chosen.setdefault(group, overall))
    return chosen, of_test


__all__ = ["route"]
