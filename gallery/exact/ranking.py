"""Exact ranking of a gallery, from the mapped vectors and what is stored with them: half-precision vectors are
converted a tile at a time, and nothing else is copied. SCALAR's score is screened in low precision, with proof (see
[`~gallery.exact.screening`]; for clips without codes, [`~gallery.exact.device_search`]); other scores are computed for
every clip.

Shapes: Q queries, N clips, M modalities, D dimensions, K hits.
"""

import math
from typing import Any, NamedTuple

import torch

from gallery.exact.blocks import Block, DamagedVectorsError
from gallery.exact.device_search import find_best_on_device
from gallery.exact.screening import find_best
from modeling_scalar.scores_scalar import Pairs, ScoreOptions, find_method

# Clips scored and searched at once, for few queries and for many: their scores stay in cache.
_FEW, _BLOCK_OF_FEW, _BLOCK = 16, 16_384, 2_048
_PAIRS_AT_ONCE = 2**22  # pairs that may be among the best
_SCORES_AT_ONCE = 2**26  # if all scores of a query are needed


class Ranking(NamedTuple):
    """The best clips of each query: `scores` and `rows` `(Q, K)`, best first; `num_scored` `(Q,)`, the number of
    clips scored exactly, while the others cannot be among the best; and `weights` `(Q, K, M)`, if the score has
    weights."""

    scores: torch.Tensor
    rows: torch.Tensor
    num_scored: torch.Tensor
    weights: torch.Tensor | None = None


def _check_scores(scores: torch.Tensor) -> None:
    """Raise a ValueError if a score is not a number: NaN would be ranked somewhere, or silently left out."""
    if scores.isnan().any():
        raise DamagedVectorsError


def _sorted(scores: torch.Tensor, rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k highest of each row, best first; equal ones in their original order."""
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    return scores[:, :k], rows.gather(1, order[:, :k])


def _merge(
    best: tuple[torch.Tensor, torch.Tensor], scores: torch.Tensor, start: int, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge the scores (Q, B) of later clips into the k best so far (Q, K) and their rows (Q, K)."""
    if best[0].shape[1] < k:
        rows = torch.arange(start, start + scores.shape[1], device=scores.device).expand(len(scores), -1)
        return _sorted(torch.cat([best[0], scores], dim=1), torch.cat([best[1], rows], dim=1), k)
    # A clip with an equal score is later in the gallery, so it does not replace the last one.
    queries, columns = (scores > best[0][:, -1:]).nonzero(as_tuple=True)
    if len(queries):
        lines, counts = queries.unique_consecutive(return_counts=True)
        width = int(counts.max())
        first = (counts.cumsum(0) - counts).repeat_interleave(counts)
        place = torch.arange(len(queries), device=first.device) - first
        line = torch.arange(len(lines), device=first.device).repeat_interleave(counts)
        found = scores.new_full((len(lines), width), -math.inf).index_put_((line, place), scores[queries, columns])
        rows = best[1].new_zeros(len(lines), width).index_put_((line, place), columns + start)
        merged = _sorted(torch.cat([best[0][lines], found], dim=1), torch.cat([best[1][lines], rows], dim=1), k)
        best[0][lines], best[1][lines] = merged
    return best


def _rank_whole(
    block: Block, queries: torch.Tensor, k: int, method: str, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rank from all scores of a query at once: for scores that depend on other clips, and for a large `k`."""
    # Without removed clips, which would take ranks from others.
    rows, clips = block.is_there.nonzero().flatten(), block
    if len(rows) < len(block):
        clips = block[rows]
    found = []
    for some in queries.split(max(1, _SCORES_AT_ONCE // max(1, len(clips)))):
        scores = Pairs(some, clips, options).scores(method)
        _check_scores(scores)
        found.append(_sorted(scores, rows.expand(len(some), -1), k))
    return tuple(map(torch.cat, zip(*found, strict=True)))


def _rank_in_tiles(
    block: Block, queries: torch.Tensor, k: int, method: str, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rank from the scores of some clips at a time."""
    best = queries.new_empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.long, device=queries.device)
    size = _BLOCK_OF_FEW if len(queries) <= _FEW else _BLOCK
    for start in range(0, len(block), size):
        scores = Pairs(queries, block[start : start + size], options).scores(method)
        scores.masked_fill_(~block.is_there[start : start + size], -math.inf)
        _check_scores(scores)
        best = _merge(best, scores, start, k)
    return best


def _rank_by_centroids(block: Block, queries: torch.Tensor, k: int, options: ScoreOptions) -> Ranking:
    """Rank by SCALAR's score, with as many queries at once as fit in memory."""
    find, found = find_best_on_device if block.codes is None else find_best, []
    for some in queries.split(max(1, _PAIRS_AT_ONCE // (len(block) if 4 * k > len(block) else 4 * k))):
        found.append(find(block, some, k, options))
    scores, rows, weights, num_scored = map(torch.cat, zip(*found, strict=True))
    return Ranking(scores.float(), rows, num_scored, weights)


@torch.no_grad()
def rank(block: Block, text_embeds: torch.Tensor, k: int, method: str, **options: Any) -> Ranking:
    """
    Find the k best clips of each query, exactly.

    Args:
        block ([`~gallery.exact.blocks.Block`]): of [`~gallery.exact.blocks.block_of`].
        text_embeds (`torch.FloatTensor` of shape `(Q, D)`): unit norm.
        k (`int`): hits per query.
        method (`str`), options: as in [`~modeling_scalar.scores_scalar.retrieval_scores`].

    Returns:
        [`Ranking`], on the CPU: equal scores in gallery order; K is at most `k` and the number of rows. Rows that are
        removed or not covered by the method score `-inf`. For `"scalar"`, the order is that of the scores in float64.

    Raises:
        DamagedVectorsError: vectors are not as they were written.
        ValueError: the method is unknown, or an option is out of range.
    """
    entry, score_options, k = find_method(method), ScoreOptions(**options), min(k, len(block))
    queries = text_embeds.to(block.device)
    if not len(block) or not len(queries):
        nothing = torch.empty(len(queries), 0)
        return Ranking(nothing, nothing.long(), torch.zeros(len(queries), dtype=torch.long))
    if method == "scalar":
        return _rank_by_centroids(block, queries, k, score_options)
    is_whole = entry.whole or 4 * k > len(block)
    scores, rows = (_rank_whole if is_whole else _rank_in_tiles)(block, queries, k, method, score_options)
    return Ranking(scores.cpu(), rows.cpu(), torch.full((len(queries),), block.num_there))


__all__ = ["Ranking", "rank"]
