"""Exact ranking of a gallery, from the mapped vectors and what is stored with them: half-precision vectors are
converted a tile at a time, and nothing else is copied. SCALAR's score is screened in low precision, with proof; other
scores are computed for every clip.

Products in eight bits cost a fraction of those in float32. Their error has a bound, and so has the score:

1. With weights w >= 0 of a clip's modalities, the score is F(w, c) = sum_m w_m c_m / |sum_m w_m z_m|. It grows with
   every (calibrated) cosine c_m. If cosines are known to +-e, it is at most max_w F(w, c + e), for any temperature
   of the query. That is at most the norm of the projection of the positive part of c + e on the span of the clip's
   vectors: see [`~scalar_retrieval.gallery.exact.blocks.inverses_of`].
2. A threshold is guessed from the estimated scores of a sample of clips. Clips whose bound is below it are left out.
3. Those with the highest bounds are scored in float32, with an error bound. Others whose bound exceeds the k-th best
   of them are scored, too, and those that may be among the k best in float64.
4. If the k-th best score reaches the threshold, no clip that was left out can be better. If not, the guess was too
   high, and the k-th best score, which k clips have, takes its place: the search is repeated with it.

Clips without codes, on a GPU or on a CPU, are screened in float32. The error of the products has a bound, and so have
the errors of the scores. Clips are then scored in float64, in the order of the upper bounds of their scores, until the
k-th best exceeds the bounds of all others. Vectors in float16 are multiplied unconverted: for texts, a second product
adds what float16 lost.

Shapes: Q queries, N clips, B clips of a tile, M modalities, D dimensions, P pairs of a query and a clip, K hits or
candidates of a query.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from scalar_retrieval.modeling_scalar.scores_scalar import (
    METHODS,
    Pairs,
    ScoreOptions,
    closed_form,
    find_method,
    make_options,
)

from ..store.codes import rotation
from .blocks import (
    LONGEST,
    ROUNDING,
    Block,
    DamagedVectorsError,
    Ranking,
    bounded_scores,
    exact_best,
    largest_calibration,
    product_error,
    score_error,
    spanned_bounds,
)

_TILE = 2**18  # pairs whose bounds are computed at once, in cache
_NARROWEST = 512  # fewest clips of a tile
_TILE_ON_CPU = 3 * 2**20  # products in float32 computed at once, in cache
_DEVICE_TILE = 3 * 2**26  # the same on a GPU
_GUESSED_AT_ONCE = 64  # texts whose thresholds are guessed at once, in cache
_MORE = 64  # candidates in addition to twice the number of hits
_SMALL = 2048.0  # scales the remainder of a float16 to the size of the number
_FEW = 16  # queries
_BLOCK_OF_FEW = 16_384  # clips scored at once for few queries, whose scores stay in cache
_BLOCK = 2_048  # the same for more
_PAIRS_AT_ONCE = 2**22  # pairs that may be among the best
_SCORES_AT_ONCE = 2**26  # if all scores of a query are needed


# SCALAR's score, of clips with codes --------------------------------------------------------------------------------


class _Coded(NamedTuple):
    """
    Texts in eight bits.

    Args:
        codes (M `torch.CharTensor` of shape `(Q, width)`): times `scale`, nearly the rotated part of each text that
            each modality has.
        scale (`torch.FloatTensor` of shape `(Q,)`): of each text.
        lost (`torch.FloatTensor` of shape `(M, 1)`): largest distance between a rotated part and its codes, as a
            multiple of the scale.
        norm (`torch.FloatTensor` of shape `(M, 1)`): largest norm of a part, or of its codes.
    """

    codes: Sequence[torch.Tensor]
    scale: torch.Tensor
    lost: torch.Tensor
    norm: torch.Tensor


def _coded(block: Block, texts: torch.Tensor) -> _Coded:
    # Each space has its own rotation. The largest coordinate of each text becomes 127.
    turned = {}
    for start, stop in block.slices:
        if start not in turned:
            turned[start] = texts[:, start:stop].double() @ rotation(stop - start)
    scale = (torch.cat(list(turned.values()), dim=1).abs().amax(1) / 127).clamp(min=1e-30).float()
    # What rounding lost is measured, so the bound holds for any text.
    coded = {}
    for start, part in turned.items():
        rounded = (part / scale[:, None]).round()
        far = torch.linalg.vector_norm(part - rounded * scale[:, None], dim=1)
        lost = ((far * LONGEST + ROUNDING) / scale).amax()
        norm = (torch.linalg.vector_norm(part, dim=1) + far).amax() + ROUNDING
        coded[start] = rounded.to(torch.int8), lost, norm
    of_modalities = []
    for start, _ in block.slices:
        of_modalities.append(coded[start])
    codes, lost, norm = zip(*of_modalities, strict=True)
    return _Coded(codes, scale, torch.stack(lost).float()[:, None], torch.stack(norm).float()[:, None])


def _guessed(block: Block, coded: _Coded, k: int, options: ScoreOptions) -> np.ndarray:
    """
    Guess thresholds `(Q,)` from the scores of a sample of clips, estimated in eight bits.

    Of the k best of N clips, about r = k n / N are among n that are drawn. At a rank some standard deviations
    below r, the sample has a score that k of all clips reach, nearly always.
    """
    rows, codes = block.sample
    expected = k * len(rows) / len(block)
    rank = math.ceil(expected + 3 * math.sqrt(expected)) + 1
    if len(rows) < rank:
        return np.full(len(coded.scale), -math.inf)
    mask = block.modality_mask[rows]
    is_present = mask.T[:, None]
    code_scale = block.code_facts[0, rows]
    # The temporaries of a few texts stay in cache.
    found = []
    for start in range(0, len(coded.scale), _GUESSED_AT_ONCE):
        few = slice(start, start + _GUESSED_AT_ONCE)
        products = []
        for texts, some in zip(coded.codes, codes, strict=True):
            products.append(torch._int_mm(texts[few], some.T))
        products = torch.stack(products) * (coded.scale[few, None] * code_scale)  # (M, Q, S)
        cosines = options.calibrated(products, dim=0) * is_present
        scores = closed_form(cosines, mask, block.gram[rows], options.query_temperature, block.min_norm)
        scores = scores.masked_fill(~block.allowed[rows], -math.inf)
        found.append(scores.topk(rank).values[:, -1])
    return torch.cat(found).double().numpy()


def _screened(
    block: Block, coded: _Coded, k: int, thresholds: np.ndarray, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Find all clips whose scores may reach a threshold, from products in eight bits.

    Args:
        block ([`~scalar_retrieval.gallery.exact.blocks.Block`]), coded ([`_Coded`]), options: clips with codes, and
            texts.
        k (`int`): least number of columns.
        thresholds (`np.ndarray` of shape `(Q,)`): of each text.

    Returns:
        Upper bounds of scores, and rows, `(Q, C)` each, as of [`_tables`].
    """
    number = block.modality_mask.shape[1]
    num_queries = len(coded.scale)
    gain = torch.ones(number, 1)
    offset = torch.zeros(number, 1)
    if options.modality_scale is not None:
        gain = torch.as_tensor(options.modality_scale, dtype=torch.float32)[:, None]
    if options.modality_offset is not None:
        offset = torch.as_tensor(options.modality_offset, dtype=torch.float32)[:, None]
    # A cosine is at most the product of the codes, times both scales, plus an error, by Cauchy and Schwarz:
    # |<t, z> - <t', z'>| <= |t'| |z - z'| + |t - t'| |z|. All that follows is divided by the scale of the text: it is
    # `factor` times the product, plus `lost`, plus `level` over the scale. (M, N) and (M, 1)
    scale, error = block.code_facts
    factor = gain * scale
    lost = gain * coded.lost
    level = gain * (coded.norm * error) + offset
    inverse_scale = 1 / coded.scale[:, None]
    # Clips that may not be found are at -inf, and are left out even if no score is known to be reached.
    never = torch.zeros(len(block)).masked_fill_(~block.allowed, -math.inf)
    # Squares of bounds are compared, which saves a root for every pair; no square is below -1.
    reach = thresholds / coded.scale.numpy() * (1 - ROUNDING)
    reach = np.where(reach > 0, reach**2, -1.0).astype(np.float32)[:, None]

    # Memory that tiles reuse: new memory has to be mapped first, which costs as much as a product.
    width = max(_TILE // num_queries, _NARROWEST)
    memory = torch.empty(number, num_queries * min(width, len(block)), dtype=torch.int32)
    found = []
    first = 0
    for codes in block.codes:
        for some in zip(*(matrix.split(width) for matrix in codes.codes), strict=True):
            # Upper bounds of the cosines, (M, Q, B), take the place of the products in memory.
            clips = slice(first, first + len(some[0]))
            products = memory[:, : num_queries * len(some[0])].view(number, num_queries, -1)
            upper = products.view(torch.float32)
            for m, matrix in enumerate(some):
                torch._int_mm(coded.codes[m], matrix.T, out=products[m])
                values = upper[m].copy_(products[m])
                torch.addcmul(lost[m], values, factor[m, clips], out=values)
                torch.addcmul(values, inverse_scale, level[m, clips], out=values).clamp_(min=0)
            squares = spanned_bounds(upper, block.inverse[..., clips], never[clips]).numpy()
            # NumPy compares several times as fast as torch, which compares one by one.
            pairs = np.flatnonzero(squares >= reach)
            queries, places = np.divmod(pairs, squares.shape[1])
            found.append((queries, places + first, squares.ravel()[pairs]))
            first = clips.stop

    # Pairs come tile by tile, and are sorted by query; numbers of few bits are sorted fast.
    queries, rows, squares = map(np.concatenate, zip(*found, strict=True))
    order = np.argsort(queries.astype(np.min_scalar_type(num_queries)), kind="stable")
    queries = queries[order]
    scale = coded.scale.numpy()[queries].astype(np.float64)
    bounds = np.sqrt(squares[order]) * scale * (1 + ROUNDING)
    return _tables(*map(torch.from_numpy, (queries, rows[order], bounds)), num_queries, k)


def _tables(
    queries: torch.Tensor, rows: torch.Tensor, values: torch.Tensor, num_queries: int, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs, in ascending order of their queries, as tables `(Q, C)` with C at least k: their values, -inf where there
    are no more, and their rows."""
    counts = queries.bincount(minlength=num_queries)
    starts = counts.cumsum(0) - counts
    columns = torch.arange(len(queries), device=queries.device) - starts[queries]
    table = values.new_full((num_queries, max(k, int(counts.max()))), -math.inf)
    places = rows.new_zeros(table.shape)
    table[queries, columns] = values
    places[queries, columns] = rows
    return table, places


def _refined(
    block: Block, texts: torch.Tensor, upper: torch.Tensor, rows: torch.Tensor, k: int, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Leave out what proves not to be among the k best once it is scored in float32: the remaining upper bounds and
    rows, as of [`_tables`]. Those with the highest bounds are scored first; most others are below the k-th of them."""
    lower = torch.full_like(upper, -math.inf)
    is_known = torch.zeros_like(upper, dtype=torch.bool)
    is_next = is_known.scatter(1, upper.topk(min(2 * k, upper.shape[1])).indices, True)
    for _ in range(2):
        queries, columns = (is_next & (upper > -math.inf)).nonzero(as_tuple=True)
        if len(queries):
            # Clip by clip, so that a clip's vectors are read once for all queries
            order = rows[queries, columns].argsort(stable=True)
            where = queries[order], columns[order]
            lower[where], upper[where] = bounded_scores(block, texts, where[0], rows[where], options)
        is_known |= is_next
        # k clips have at least this score.
        least = lower.topk(k).values[:, -1:]
        is_next = (upper >= least) & ~is_known
    upper = upper.masked_fill(upper < least, -math.inf)
    width = max(k, int((upper > -math.inf).sum(1).max()))
    upper, order = upper.topk(width)
    return upper, rows.gather(1, order)


def _replace(best: Ranking, again: torch.Tensor, repeated: Ranking) -> Ranking:
    """What was found for some of the queries in place of what was found before."""
    for column, values in zip(best, repeated, strict=True):
        column[again] = values
    return best


@torch.no_grad()
def find_best(
    block: Block, texts: torch.Tensor, k: int, options: ScoreOptions, thresholds: np.ndarray | None = None
) -> Ranking:
    """
    Find the k best clips of each query by SCALAR's score, as if every pair were scored in float64.

    Args:
        block ([`~scalar_retrieval.gallery.exact.blocks.Block`]): the clips, with codes.
        texts (`torch.FloatTensor` of shape `(Q, D)`): unit norm.
        k (`int`): hits per query.
        options ([`~scalar_retrieval.modeling_scalar.scores_scalar.ScoreOptions`]): temperature and calibration.
        thresholds (`np.ndarray` of shape `(Q,)`, *optional*): scores that k clips reach; by default they are guessed.

    Returns:
        [`~scalar_retrieval.gallery.exact.blocks.Ranking`], of scores in float64: equal scores in gallery order.

    Raises:
        DamagedVectorsError: vectors are not as they were written.
    """
    with torch.autocast("cpu", enabled=False):
        coded = _coded(block, texts)
        if thresholds is None:
            thresholds = _guessed(block, coded, k, options)
        # Each step leaves fewer clips, and scores them more precisely: in eight bits, float32 and float64.
        upper, rows = _screened(block, coded, k, thresholds, options)
        upper, rows = _refined(block, texts, upper, rows, k, options)
        best = exact_best(block, texts, upper, rows, k, options)
        # A guess was too high if fewer than k of the clips reach it; but k of them reach the last one's score.
        again = torch.from_numpy(np.flatnonzero(best.scores[:, -1].numpy() < thresholds))
        if not len(again):
            return best
        known = best.scores[again, -1].numpy()
        return _replace(best, again, find_best(block, texts[again], k, options, known))


# SCALAR's score, of clips without codes -----------------------------------------------------------------------------


def _halves(texts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split texts into one in float16 plus 1 / 2048 of another; the error of a coordinate is at most 2^-21."""
    first = texts.half()
    return first, ((texts - first.float()) * _SMALL).half()


def _product(texts: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Inner products in float32, `(Q, B)`."""
    if vectors.dtype != torch.float16 or not vectors.is_cuda or torch.__version__ < (2, 8):  # without `out_dtype`
        return texts @ vectors.float().T
    first, second = _halves(texts)
    products = torch.mm(first, vectors.T, out_dtype=torch.float32)
    return products.add_(torch.mm(second, vectors.T, out_dtype=torch.float32), alpha=1 / _SMALL)


def _error_of(block: Block, texts: torch.Tensor, options: ScoreOptions) -> torch.Tensor:
    """Bound how much scores in float32 differ from those in float64, `(N,)`."""
    gain, offset = largest_calibration(options)
    dim = texts.shape[-1]
    norm = torch.linalg.vector_norm(texts.double(), dim=-1).amax().item()
    # Tensor cores truncate sums of products instead of rounding, and the remainders of texts are truncated, too.
    error = 4 * product_error(dim, norm, block.chunks[0][0]) + norm * math.sqrt(dim) * 2.0**-21
    # No calibrated cosine is larger than that of the longest vector in the direction of the text.
    largest = gain * norm * LONGEST + offset
    rho = block.rho.double()
    error = gain * error + ROUNDING * max(1.0, largest)
    return score_error(torch.full_like(rho, largest), rho, error, options.query_temperature)


def _highest(
    block: Block, texts: torch.Tensor, miss: torch.Tensor, count: int, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """The highest upper bounds of scores, and the rows of their clips, `(Q, K)` each."""
    tile = _TILE_ON_CPU if texts.device.type == "cpu" else _DEVICE_TILE
    width = max(tile // block.modality_mask.shape[1] // len(texts), 1)
    best = []
    found = []
    for start in range(0, len(block), width):
        columns = slice(start, start + width)
        clips = block
        if len(block) > width:  # the whole block keeps its derived values
            clips = block[columns]
        of_chunks = []
        for chunk in clips.chunks:
            of_chunks.append(torch.stack(list(map(_product, block.parts(texts), chunk))))
        products = torch.cat(of_chunks, dim=2).mul_(clips.modality_mask.T[:, None])  # (M, Q, B)
        # A score in float32 plus the error of its clip is an upper bound.
        upper = METHODS["scalar"].score(Pairs(texts, clips, options, similarities=products))
        upper = (upper + miss[columns]).masked_fill_(~block.allowed[columns], -math.inf)
        values, places = upper.topk(min(count, upper.shape[1]), dim=1)
        best.append(values)
        found.append(places + start)
    # The best of all tiles are among the best of each.
    values, order = torch.cat(best, dim=1).topk(count, dim=1)
    return values, torch.cat(found, dim=1).gather(1, order)


@torch.no_grad()
def find_best_on_device(
    block: Block, texts: torch.Tensor, k: int, options: ScoreOptions, count: int | None = None
) -> Ranking:
    """
    Find the k best clips of each query as [`~scalar_retrieval.gallery.exact.ranking.find_best`] does, on the device of
    the clips, which need no codes.

    Args, returns and errors: as of [`~scalar_retrieval.gallery.exact.ranking.find_best`]; what is returned is on the
    CPU. `count` is the number of clips that are scored in float64, by default about twice the number of hits.
    """
    with torch.autocast(texts.device.type, enabled=False):
        miss = _error_of(block, texts, options).float() * (1 + 1e-6) + ROUNDING
        if count is None:
            count = 2 * k + _MORE
        count = min(count, len(block))
        upper, rows = _highest(block, texts, miss, min(count + 1, len(block)), options)
        best = exact_best(block, texts, upper[:, :count], rows[:, :count], k, options)
        if count == len(block):
            return best
        # No other clip can be better than the bound of the first one that was not scored.
        rest = upper[:, -1].double().cpu()
        again = ((rest != -math.inf) & ~(best.scores[:, -1] > rest)).nonzero()[:, 0]
        if not len(again):
            return best
        more = find_best_on_device(block, texts[again.to(texts.device)], k, options, 4 * count)
        return _replace(best, again, more)


# Every score --------------------------------------------------------------------------------------------------------


def _sorted(scores: torch.Tensor, rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k highest of each row, best first; equal ones in their original order. NaN would be ranked somewhere, or
    silently left out: it comes from damaged vectors."""
    if scores.isnan().any():
        raise DamagedVectorsError
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    return scores[:, :k], rows.gather(1, order[:, :k])


def _rank_whole(
    block: Block, queries: torch.Tensor, k: int, method: str, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rank from all scores of a query at once: for scores that depend on other clips, and for a large `k`."""
    # Without removed clips, which would take ranks from others
    rows = block.is_there.nonzero().flatten()
    clips = block
    if len(rows) < len(block):
        clips = block[rows]
    found = []
    for some in queries.split(max(1, _SCORES_AT_ONCE // max(1, len(clips)))):
        scores = Pairs(some, clips, options).scores(method)
        found.append(_sorted(scores, rows.expand(len(some), -1), k))
    return tuple(map(torch.cat, zip(*found, strict=True)))


def _rank_in_tiles(
    block: Block, queries: torch.Tensor, k: int, method: str, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rank from the scores of some clips at a time."""
    # Only what beats the k best so far is sorted.
    best = queries.new_full((len(queries), k), -math.inf)
    rows = torch.zeros(best.shape, dtype=torch.long, device=queries.device)
    size = _BLOCK_OF_FEW if len(queries) <= _FEW else _BLOCK
    for start in range(0, len(block), size):
        scores = Pairs(queries, block[start : start + size], options).scores(method)
        scores.masked_fill_(~block.is_there[start : start + size], -math.inf)
        # A clip with an equal score is later in the gallery, so it does not replace the last one. NaN is kept, and
        # raises an error.
        better, columns = (~(scores <= best[:, -1:])).nonzero(as_tuple=True)
        values, places = _tables(better, columns + start, scores[better, columns], len(queries), 0)
        best, rows = _sorted(torch.cat([best, values], dim=1), torch.cat([rows, places], dim=1), k)
    return best, rows


def _rank_by_centroids(block: Block, queries: torch.Tensor, k: int, options: ScoreOptions) -> Ranking:
    """Rank by SCALAR's score, with as many queries at once as fit in memory."""
    find = find_best_on_device if block.codes is None else find_best
    # Up to 4 k clips of a query may be among the best; if there are no more, all of them.
    count = min(4 * k, len(block))
    found = [find(block, some, k, options) for some in queries.split(max(1, _PAIRS_AT_ONCE // count))]
    best = Ranking(*map(torch.cat, zip(*found, strict=True)))
    return best._replace(scores=best.scores.float())


@torch.no_grad()
def rank(block: Block, text_embeds: torch.Tensor, k: int, method: str, **options: Any) -> Ranking:
    """
    Find the k best clips of each query, exactly.

    Args:
        block ([`~scalar_retrieval.gallery.exact.blocks.Block`]): of
            [`~scalar_retrieval.gallery.exact.blocks.block_of`].
        text_embeds (`torch.FloatTensor` of shape `(Q, D)`): unit norm.
        k (`int`): hits per query.
        method (`str`), options: as in [`~scalar_retrieval.modeling_scalar.scores_scalar.retrieval_scores`].

    Returns:
        [`~scalar_retrieval.gallery.exact.blocks.Ranking`], on the CPU: equal scores in gallery order; K is at most `k`
        and the number of rows. Rows that are removed or not covered by the method score `-inf`. For `"scalar"`, the
        order is that of the scores in float64.

    Raises:
        DamagedVectorsError: vectors are not as they were written.
        ValueError: the method is unknown, or an option is out of range.
    """
    score_options = make_options(**options)
    num_clips = len(block)
    queries = text_embeds.to(block.device)
    k = min(k, num_clips)
    if not num_clips or not len(queries):
        nothing = torch.empty(len(queries), 0)
        return Ranking(nothing, nothing.long(), torch.zeros(len(queries), dtype=torch.long))
    if method == "scalar":
        return _rank_by_centroids(block, queries, k, score_options)
    entry = find_method(method, block.modalities or None)
    rank_all = _rank_in_tiles
    if entry.whole or 4 * k > num_clips:
        rank_all = _rank_whole
    scores, rows = rank_all(block, queries, k, method, score_options)
    return Ranking(scores.cpu(), rows.cpu(), torch.full((len(queries),), int(block.is_there.sum())))


__all__ = ["find_best", "find_best_on_device", "rank"]
