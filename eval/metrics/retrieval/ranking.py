"""Ranks of the relevant candidates and the metrics computed from them.

Ties count against the method: among candidates of equal score the irrelevant ones come first. A score that cannot
distinguish candidates therefore ranks the relevant one last, never first. Rows are queries and columns candidates:
text-to-video retrieval has captions in rows, video-to-text retrieval has clips in rows.
"""

from collections.abc import Sequence

import torch

NDCG_DEPTH = 10
_BLOCK_ELEMENTS = 2**22  # scores held at once, twice: 32 MB in single precision


def _later_equals(groups: torch.Tensor) -> torch.LongTensor:
    """For each entry, count the entries after it that belong to the same group."""
    order = groups.argsort(stable=True)
    sizes = groups[order].unique_consecutive(return_counts=True)[1]
    ends = sizes.cumsum(dim=0).repeat_interleave(sizes)
    return torch.empty_like(order).scatter_(0, order, ends - 1 - torch.arange(len(order), device=order.device))


def _check(scores: torch.Tensor, pairs: torch.Tensor) -> None:
    if scores.ndim != 2 or pairs.ndim != 2 or pairs.shape[1] != 2:
        raise ValueError(
            "Expected `scores` (queries, candidates) and `pairs` (pairs, 2), got "
            f"{tuple(scores.shape)} and {tuple(pairs.shape)}."
        )
    # Pairs lie inside the matrix, each once, and every row has one.
    outside = ((pairs < 0) | (pairs >= pairs.new_tensor(scores.shape))).any(dim=1)
    if outside.any():
        raise ValueError(
            f"`pairs` must be rows and columns of `scores` {tuple(scores.shape)}; "
            f"{pairs[outside].tolist()[:10]} are not."
        )
    if len((pairs[:, 0] * scores.shape[1] + pairs[:, 1]).unique()) != len(pairs):
        raise ValueError("`pairs` must be unique: a candidate is relevant to a query or not.")
    without = torch.ones(len(scores), dtype=torch.bool, device=pairs.device).index_fill(0, pairs[:, 0], False)
    if without.any():
        raise ValueError(
            f"The query rows {without.nonzero().flatten().tolist()[:10]} have no relevant candidate, so nothing to "
            "rank. Leave such rows out of `scores`."
        )
    # A NaN compares with nothing, so it would seem to be ranked first.
    undefined = scores.amax(dim=1).isnan()  # the largest of a row with a NaN is NaN
    if undefined.any():
        raise ValueError(
            f"`scores` has NaN in query rows {undefined.nonzero().flatten().tolist()[:10]}: a NaN has no rank. Give a "
            "candidate that cannot be scored -inf."
        )


def _count_not_below(scores: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.LongTensor:
    """For each pair, count the scores of its row that are at least its value; rows are read in memory order."""
    # Rows in memory order: a large matrix is read once, in blocks.
    order = rows.argsort()
    ordered_rows = rows[order]
    ordered_values = values[order]
    is_one_each = len(rows) == len(scores)  # every row has a pair: then rows need not be selected
    counts = torch.zeros(len(rows), dtype=torch.int32, device=scores.device)
    if scores.stride(0) < scores.stride(1):  # a transposed view
        for block in scores.T.split(max(1, _BLOCK_ELEMENTS // len(rows))):
            if not is_one_each:
                block = block[:, ordered_rows]
            counts += (block >= ordered_values).sum(dim=0, dtype=torch.int32)
    else:
        size = max(1, _BLOCK_ELEMENTS // scores.shape[1])
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            chosen = part if is_one_each else ordered_rows[part]
            block = scores[chosen]
            counts[part] = (block >= ordered_values[part, None]).sum(dim=1, dtype=torch.int32)
    return torch.empty_like(rows).scatter_(0, order, counts.long())


def relevant_ranks(scores: torch.Tensor, pairs: torch.Tensor) -> torch.LongTensor:
    """
    Rank every relevant candidate of every query.

    The rank is 1 + the number of irrelevant candidates that score at least as high + the number of relevant ones
    placed before: those that score higher, and of those that score the same the ones named earlier in `pairs`.

    Args:
        scores (`torch.Tensor` of shape `(queries, candidates)`): higher is better; `-inf` for a candidate that cannot
            be scored, which every irrelevant candidate then ties with or beats. A transposed view will do.
        pairs (`torch.LongTensor` of shape `(pairs, 2)`): row and column of each relevant candidate, in any order.
            Every row has at least one.

    Returns:
        `torch.LongTensor` of shape `(pairs,)`: ranks from 1 (best) to the number of candidates. No two relevant
        candidates of a query share one.

    Raises:
        ValueError: shapes do not fit, a pair is outside `scores` or repeated, a row has no relevant candidate or
            contains NaN.
    """
    _check(scores, pairs)
    rows, columns = pairs.unbind(dim=1)
    # At least as high, less the relevant ones of the same score that are named later.
    values = scores[rows, columns]
    not_below = _count_not_below(scores, rows, values)
    levels, level = values.unique(return_inverse=True)
    return not_below - _later_equals(rows * len(levels) + level)


def first_ranks(ranks: torch.Tensor, rows: torch.Tensor) -> torch.LongTensor:
    """
    Reduce the ranks of all relevant candidates to that of the best one of each query.

    Args:
        ranks (`torch.LongTensor` of shape `(pairs,)`): as of [`relevant_ranks`].
        rows (`torch.LongTensor` of shape `(pairs,)`): the query each rank belongs to; any integers.

    Returns:
        `torch.LongTensor` of shape `(queries,)`: in ascending order of the values of `rows`.
    """
    queries, query = rows.unique(return_inverse=True)
    return ranks.new_empty(len(queries)).scatter_reduce_(0, query, ranks, "amin", include_self=False)


def retrieval_metrics(
    ranks: torch.Tensor, rows: torch.Tensor | None = None, k: Sequence[int] = (1, 5, 10)
) -> dict[str, float | int]:
    """
    Summarise ranks.

    Args:
        ranks (`torch.LongTensor` of shape `(pairs,)`): ranks from 1 of all relevant candidates, as of
            [`relevant_ranks`].
        rows (`torch.LongTensor` of shape `(pairs,)`, *optional*): the query each rank belongs to. Without it each
            rank is that of the only relevant candidate of its own query.
        k (`Sequence[int]`): depths of the recall, from 1.

    Returns:
        `dict`: `recall_at_{k}` (queries with a relevant candidate among the first k), `mean_average_precision` and
        `ndcg_at_10` (gains of 0 and 1, discount log2(1 + rank), relative to the best possible order of all relevant
        candidates), all of these in percent (0 to 100); `median_rank` (the mean of the middle two for an even number)
        and `mean_rank` of the first relevant candidate; `num_queries`. With k candidates or fewer the recall at k is
        100.

    Raises:
        ValueError: `k` holds something that is not a depth.
    """
    if not all(isinstance(depth, int) and depth >= 1 for depth in k):
        raise ValueError(f"`k` must hold whole numbers of at least 1, got {k}.")
    if rows is None:
        rows = torch.arange(len(ranks), device=ranks.device)
    # The best rank of each query, and all ranks by query, then by rank.
    first = first_ranks(ranks, rows).double().sort().values
    queries, rows, num_relevant = rows.unique(return_inverse=True, return_counts=True)
    order = ranks.argsort()
    order = order[rows[order].argsort(stable=True)]  # by query, then by rank
    ranks = ranks[order]
    rows = rows[order]
    # The place of each relevant candidate among those of its query, from 1: its rank in the best possible order.
    place = 1 + torch.arange(len(ranks), device=ranks.device) - (num_relevant.cumsum(dim=0) - num_relevant)[rows]

    def total(values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(len(queries)).index_add_(0, rows, values)

    def discounted(position: torch.Tensor) -> torch.Tensor:
        return total((position <= NDCG_DEPTH) / torch.log2(1 + position.double()))

    # The median of an even number is the mean of the middle two.
    middle = first[[(len(first) - 1) // 2, len(first) // 2]]
    return {
        **{f"recall_at_{depth}": 100 * (first <= depth).double().mean().item() for depth in k},
        "mean_average_precision": 100 * (total(place.double() / ranks) / num_relevant).mean().item(),
        f"ndcg_at_{NDCG_DEPTH}": 100 * (discounted(ranks) / discounted(place)).mean().item(),
        "median_rank": middle.mean().item(),
        "mean_rank": first.mean().item(),
        "num_queries": len(first),
    }


__all__ = ["first_ranks", "relevant_ranks", "retrieval_metrics"]
