"""Exact ranking of a gallery, from the mapped vectors and what is stored with them: half-precision vectors are
converted a tile at a time, and nothing else is copied. SCALAR's score is screened in low precision, with proof (see
[`~gallery.exact.screening`]; for clips in the memory of a GPU, [`~gallery.exact.device_search`]); other scores are
computed for every clip.

Shapes: Q queries, N clips, M modalities, D dimensions, K hits.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from gallery.exact.blocks import Block, damaged, in_one_block
from gallery.exact.device_search import find_best_on_device
from gallery.exact.screening import find_best
from modeling_scalar.scores_scalar import METHODS, Pairs, ScoreOptions, find_method

# Clips scored and searched at once, for few queries and for many: their scores stay in cache.
_FEW, _BLOCK_OF_FEW, _BLOCK = 16, 16_384, 2_048
_PAIRS_AT_ONCE = 2**22  # pairs that may be among the best
_SCORES_AT_ONCE = 2**26  # if all scores of a query are needed


class Ranking(NamedTuple):
    """The best clips of each query: `scores` and `rows` `(Q, K)`, best first, and `num_scored` `(Q,)`, the number of
    clips scored exactly. The others cannot be among the best."""

    scores: torch.Tensor
    rows: torch.Tensor
    num_scored: torch.Tensor


def _check_scores(scores: torch.Tensor) -> None:
    """Raise a ValueError if a score is not a number: NaN would be ranked somewhere, or silently left out."""
    if scores.isnan().any():
        raise damaged()


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
    blocks: Sequence[Block], text_embeds: torch.Tensor, k: int, method: str, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rank from all scores of a query at once: for scores that depend on other clips, and for a large `k`."""
    # Without removed clips, which would take ranks from others.
    clips = in_one_block(blocks, blocks[0].device)
    rows = clips.is_there.nonzero().flatten()
    if len(rows) < len(clips):
        clips = clips[rows]
    found = []
    for queries in text_embeds.split(max(1, _SCORES_AT_ONCE // max(1, len(clips)))):
        scores = Pairs(queries, clips, options).scores(method)
        _check_scores(scores)
        found.append(_sorted(scores, rows.expand(len(queries), -1), k))
    return tuple(map(torch.cat, zip(*found, strict=True)))


def _screen(
    blocks: Sequence[Block], text_embeds: torch.Tensor, k: int, num_rows: int, options: ScoreOptions
) -> Ranking:
    """Rank by SCALAR's score, with as many queries at once as fit in memory."""
    found = []
    find = find_best if blocks[0].device.type == "cpu" else find_best_on_device
    for queries in text_embeds.split(max(1, _PAIRS_AT_ONCE // (num_rows if 4 * k > num_rows else 4 * k))):
        try:
            found.append(find(blocks, queries, min(k, num_rows), options))
        except FloatingPointError as error:
            raise damaged() from error
    scores, rows, num_scored = map(torch.cat, zip(*found, strict=True))
    rows = rows.masked_fill(scores == -math.inf, 0)
    return Ranking(scores.float(), rows, num_scored)


@torch.no_grad()
def rank(blocks: Sequence[Block], text_embeds: torch.Tensor, k: int, method: str, **options: Any) -> Ranking:
    """
    Find the k best clips of each query, exactly.

    Args:
        blocks (`list[Block]`): of [`~gallery.exact.blocks.blocks_of`].
        text_embeds (`torch.FloatTensor` of shape `(Q, D)`): unit norm.
        k (`int`): hits per query.
        method (`str`), options: as in [`~modeling_scalar.scores_scalar.retrieval_scores`].

    Returns:
        [`Ranking`], on the CPU: equal scores in gallery order; K is at most `k` and the number of rows. Rows that are
        removed or not covered by the method score `-inf`. For `"scalar"`, the order is that of the scores in float64.

    Raises:
        ValueError: the method is unknown, an option is out of range, or vectors are damaged.
    """
    find_method(method)
    ranking = _rank(blocks, text_embeds, k, method, ScoreOptions(**options))
    return Ranking(*(numbers.cpu() for numbers in ranking))


def _rank(
    blocks: Sequence[Block], text_embeds: torch.Tensor, k: int, method: str, score_options: ScoreOptions
) -> Ranking:
    num_rows = sum(len(block) for block in blocks)
    if blocks:
        text_embeds = text_embeds.to(blocks[0].device)
    best = text_embeds.new_empty(len(text_embeds), 0), text_embeds.new_empty(len(text_embeds), 0).long()
    all_of_them = torch.full((len(text_embeds),), sum(block.num_there for block in blocks))
    if not num_rows or not len(text_embeds):
        return Ranking(*best, all_of_them)
    if method == "scalar":
        return _screen(blocks, text_embeds, k, num_rows, score_options)
    if METHODS[method].whole or 4 * k > num_rows:
        return Ranking(*_rank_whole(blocks, text_embeds, k, method, score_options), all_of_them)
    size = _BLOCK_OF_FEW if len(text_embeds) <= _FEW else _BLOCK
    for block in blocks:
        for start in range(0, len(block), size):
            scores = Pairs(text_embeds, block[start : start + size], score_options).scores(method)
            if block.num_there < len(block):
                scores.masked_fill_(~block.is_there[start : start + size], -math.inf)
            _check_scores(scores)
            best = _merge(best, scores, block.start + start, k)
    return Ranking(*best, all_of_them)


__all__ = ["Ranking", "rank"]
