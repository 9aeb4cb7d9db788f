"""Exact ranking of a gallery, from the mapped vectors and what is stored with them: half-precision vectors are
converted a tile at a time, and nothing else is copied. SCALAR's score is screened in low precision, with proof; other
scores are computed for every clip.

Products in eight bits cost a fraction of those in float32. Their error has a bound, and so has the score:

1. With weights w >= 0 of a clip's modalities, the score is F(w, c) = sum_m w_m c_m / |sum_m w_m z_m|. It grows with
   every (calibrated) cosine c_m, and for any weights it is at most P(c) = max_w F(w, c), the norm of the projection on
   the cone of the clip's vectors. So if cosines are known to +-e, the score is at most P(c + e), for any temperature
   of the query.
2. Two bounds of P cost less than itself: max_m c_m / rho, with rho the distance of the convex hull of the clip's
   vectors from 0, and the norm of the projection of the positive part of c on their span.
3. A threshold is guessed from the scores of a sample of the clips, and raised to the k-th best estimate so far. Clips
   whose bound is below it are left out. All others are scored in float32, with an error bound, and those that may be
   among the k best in float64.
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
from typing import Any, NamedTuple

import numpy as np
import torch

from gallery.exact.blocks import (
    LONGEST,
    ROUNDING,
    Best,
    Block,
    DamagedVectorsError,
    best_of_pairs,
    bounded_scores,
    centroid_scores,
    exact_pairs,
    highest_of_pairs,
    product_error,
    score_error,
    spanned_bound,
)
from gallery.exact.codes import rotation
from modeling_scalar.scores_scalar import METHODS, Pairs, ScoreOptions, find_method

_TILE = 2**20  # products of a modality computed at once, in cache
_NARROWEST, _WIDEST = 512, 65_536  # clips per tile
_ROUNDS = 16  # times that thresholds are raised
_SLACK = 4  # about as many standard deviations a score may be below its estimate
_SCALE, _ERROR, _INVERSE_RHO, _INVERSE = 0, 1, 2, 3  # columns of `Block.screened`; the last one is the first of many
_DEVICE_TILE, _TILE_ON_CPU = 3 * 2**26, 3 * 2**20  # products computed at once; on a CPU in cache
_MORE = 64  # candidates in addition to twice the number of hits
_SMALL = 2048.0  # scales the remainder of a float16 to the size of the number
# Clips scored and searched at once, for few queries and for many: their scores stay in cache.
_FEW, _BLOCK_OF_FEW, _BLOCK = 16, 16_384, 2_048
_PAIRS_AT_ONCE = 2**22  # pairs that may be among the best
_SCORES_AT_ONCE = 2**26  # if all scores of a query are needed


# SCALAR's score, of clips with codes --------------------------------------------------------------------------------


class _Candidates(NamedTuple):
    """Pairs that may be among the best: bounds and estimates of their scores, `(P,)`."""

    queries: np.ndarray
    rows: np.ndarray
    bounds: np.ndarray
    estimates: np.ndarray


class _Screen:
    """
    The bounds of all clips for some queries.

    Args:
        block ([`~gallery.exact.blocks.Block`]): with codes.
        texts (`torch.FloatTensor` of shape `(Q, D)`): unit norm.
        options ([`~modeling_scalar.scores_scalar.ScoreOptions`]): temperature and calibration.
        k (`int`): hits per query.
        thresholds (`np.ndarray` of shape `(Q,)`): clips with a bound below are left out.
        is_guess (`bool`): whether the thresholds are guesses, which may be raised.
    """

    def __init__(
        self, block: Block, texts: torch.Tensor, options: ScoreOptions, k: int, thresholds: np.ndarray, is_guess: bool
    ):
        self.block, self.options, self.k = block, options, k
        self.count, self.facts = len(block), block.screened
        self.thresholds, self.is_guess = thresholds, is_guess
        self.highest = np.full((len(texts), k), -math.inf, np.float32)
        self.number = block.modality_mask.shape[1]
        self.gain = [1.0] * self.number if options.modality_scale is None else list(options.modality_scale)
        self.offset = [0.0] * self.number if options.modality_offset is None else list(options.modality_offset)
        # The queries in eight bits: all have one scale, and `lost` is the largest norm of what is rounded off.
        turned = texts.double() @ rotation(texts.shape[-1])
        self.scale = max(turned.abs().amax().item() / 127, 1e-30)
        rounded = (turned / self.scale).round()
        self.codes = rounded.to(torch.int8)
        self.lost = torch.linalg.vector_norm(turned - rounded * self.scale, dim=1).amax().item() * (1 + 1e-6) + 1e-7
        self.norm = torch.linalg.vector_norm(turned, dim=1).amax().item() + 1e-6
        # Errors of many coordinates add up like random numbers.
        error = self.error_of(self.facts[:, _ERROR].amax()).item() * max(map(abs, self.gain))
        self.slack = _SLACK / math.sqrt(texts.shape[-1]) * error
        # Memory that tiles reuse: new memory has to be mapped first, which costs as much as a product.
        width = min(max(_TILE // len(texts) // _NARROWEST * _NARROWEST, _NARROWEST), _WIDEST)
        self.width = min(width, self.count)
        self.products = torch.empty(self.number, len(texts) * self.width, dtype=torch.int32)
        self.upper, self.other = torch.empty(2, len(texts) * self.width).unbind(0)
        self.largest = torch.empty(len(texts) * self.width, dtype=torch.int32)

    def error_of(self, code_errors: torch.Tensor) -> torch.Tensor:
        """Bound the errors of cosines: |<t, z> - <t', z'>| <= |t| |z - z'| + |t - t'| |z'|."""
        return code_errors * (self.norm + self.lost) + (self.lost * LONGEST + ROUNDING)

    def multiply(self, start: int, stop: int) -> torch.Tensor:
        """Multiply the queries with a tile of clips, in eight bits: `(M, Q, B)`."""
        shape = self.number, len(self.codes), stop - start
        products = self.products[:, : shape[1] * shape[2]].view(shape)
        for chunk, some, first in self.block.pieces(start, stop):
            place = slice(first - start, first - start + some.stop - some.start)
            for m in range(self.number):
                codes = self.block.codes[chunk].codes[m][some]
                into = products[m, :, place]
                if into.is_contiguous():
                    torch._int_mm(self.codes, codes.T, out=into)
                else:
                    into.copy_(torch._int_mm(self.codes, codes.T))
        return products

    def survivors(self, start: int, stop: int, products: torch.Tensor) -> np.ndarray:
        """The pairs of a tile, numbered query by query, whose bound max_m c_m / rho reaches the threshold."""
        shape = tuple(products.shape[1:])
        size = shape[0] * shape[1]
        upper, other = self.upper[:size].view(shape), self.other[:size].view(shape)
        facts = self.facts[start:stop]
        scale, inverse_rho = facts[:, _SCALE] * self.scale, facts[:, _INVERSE_RHO]
        error, allowed = self.error_of(facts[:, _ERROR]), self.block.allowed[start:stop]
        if self.options.is_calibrated:
            is_there = (self.block.modality_mask[start:stop] & allowed[:, None]).unbind(1)
            looked_at = zip(products, self.gain, self.offset, is_there, strict=True)
        else:  # absent modalities can only make the bound larger
            largest = products[0]
            for product in products[1:]:
                largest = torch.maximum(largest, product, out=self.largest[:size].view(shape))
            looked_at = [(largest, 1.0, 0.0, allowed)]
        for index, (product, gain, offset, there) in enumerate(looked_at):
            level = ((error * gain + offset) * inverse_rho).masked_fill(~there, -math.inf)
            into = other if index else upper
            torch.addcmul(level, into.copy_(product), gain * scale * inverse_rho, out=into)
            if index:
                torch.maximum(upper, other, out=upper)
        if (self.thresholds <= 0).any():  # values below 0 are divided by the largest possible norm
            torch.maximum(upper, upper / inverse_rho / LONGEST, out=upper)
        # Clips that may not be found are at -inf, and are left out even if no score is known to be reached.
        reach = (self.thresholds - abs(self.thresholds) * ROUNDING).clip(np.finfo(np.float32).min)
        # NumPy compares several times as fast as torch, which compares one by one.
        return np.flatnonzero(upper.numpy() >= reach.astype(np.float32)[:, None])

    def candidates(self, start: int, stop: int) -> _Candidates:
        """The pairs of a tile whose bounds reach the thresholds."""
        products = self.multiply(start, stop)
        pairs = self.survivors(start, stop, products)
        queries = pairs // (stop - start)
        rows = pairs - queries * (stop - start) + start
        flat = torch.from_numpy(pairs)
        # Rows are gathered several times as fast as columns, and computed with more slowly.
        facts = self.facts.index_select(0, torch.from_numpy(rows)).T.contiguous()
        scale, error, cosines, upper = facts[_SCALE] * self.scale, self.error_of(facts[_ERROR]), [], []
        for product, gain, offset in zip(products, self.gain, self.offset, strict=True):
            cosine = product.view(-1).index_select(0, flat).float().mul_(scale)
            cosines.append(cosine)
            upper.append((cosine + error).mul_(gain).add_(offset))
        bounds = spanned_bound(torch.stack(upper).T, facts[_INVERSE:].T).numpy()
        likely = np.flatnonzero(bounds >= self.thresholds[queries])
        # The scores of the others, estimated from the products in eight bits.
        places = torch.from_numpy(likely)
        near = torch.stack([cosine.index_select(0, places) for cosine in cosines])
        chosen = torch.from_numpy(rows[likely])
        mask, gram = (values.index_select(0, chosen) for values in (self.block.modality_mask, self.block.gram))
        near = self.options.calibrated(near, dim=0)
        estimates, _, _ = centroid_scores(near, mask, gram, self.block.min_norm, self.options)
        return _Candidates(queries[likely], rows[likely], bounds[likely], estimates.numpy())

    def raise_thresholds(self, found: _Candidates) -> None:
        """Raise the thresholds to the k-th highest estimates, less what these may be too high, nearly always."""
        highest = highest_of_pairs(found.queries, found.estimates, len(self.thresholds), self.k)
        both = np.concatenate([self.highest, highest], axis=1)
        both.partition(self.k, axis=1)
        self.highest = both[:, -self.k :]
        self.thresholds = np.maximum(self.thresholds, self.highest.min(1) - self.slack)

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All pairs whose bounds reach the thresholds, in the order of their clips: queries and rows `(P,)`."""
        found, new, since = [], [], 0
        for start in range(0, self.count, self.width):
            stop = min(start + self.width, self.count)
            new.append(self.candidates(start, stop))
            if stop - since >= self.count / _ROUNDS or stop == self.count:
                found.append(_Candidates(*map(np.concatenate, zip(*new, strict=True))))
                new, since = [], stop
                if self.is_guess:
                    self.raise_thresholds(found[-1])
        queries, rows, bounds, _ = map(np.concatenate, zip(*found, strict=True))
        likely = np.flatnonzero(bounds >= self.thresholds[queries])
        likely = likely[np.argsort(rows[likely], kind="stable")]
        return torch.from_numpy(queries[likely]), torch.from_numpy(rows[likely])


def _guessed(block: Block, texts: torch.Tensor, k: int, options: ScoreOptions) -> np.ndarray:
    """
    Guess thresholds `(Q,)` from the scores of a sample of clips, spread evenly over all.

    Of the k best of N clips, about r = k n / N are among n that are drawn. At a rank some standard deviations
    below r, the sample has a score that k of all clips reach, nearly always.
    """
    rows, sample = block.sample
    scores = Pairs(texts, sample, options).scores("scalar").numpy()
    scores = np.where(block.allowed[rows].numpy(), scores, -math.inf)
    expected = k * len(rows) / len(block)
    rank = math.ceil(expected + 3 * math.sqrt(expected)) + 1
    if len(rows) < rank:
        return np.full(len(texts), -math.inf)
    scores.partition(len(rows) - rank, axis=1)
    return scores[:, -rank].astype(np.float64)


def _best_above(
    block: Block, texts: torch.Tensor, k: int, options: ScoreOptions, thresholds: np.ndarray, is_guess: bool
) -> tuple[Best, np.ndarray]:
    """The k best of the clips whose bounds reach the thresholds; and the thresholds, which may have been raised."""
    screen = _Screen(block, texts, options, k, thresholds, is_guess)
    queries, rows = screen.run()
    if len(rows):
        scores, errors = bounded_scores(block, texts, queries, rows, options)
        least = highest_of_pairs(queries.numpy(), (scores - errors).numpy(), len(texts), k).min(1)
        is_near = ~(scores + errors < torch.from_numpy(least)[queries])  # NaN is kept, so that it is noticed
        queries, rows = queries[is_near], rows[is_near]
    scores, weights = exact_pairs(block, texts, queries, rows, options)
    return best_of_pairs(queries, rows, scores, len(texts), k, weights), screen.thresholds


@torch.no_grad()
def find_best(block: Block, texts: torch.Tensor, k: int, options: ScoreOptions) -> Best:
    """
    Find the k best clips of each query by SCALAR's score, as if every pair were scored in float64.

    Args:
        block ([`~gallery.exact.blocks.Block`]): the clips, with codes.
        texts (`torch.FloatTensor` of shape `(Q, D)`): unit norm.
        k (`int`): hits per query.
        options ([`~modeling_scalar.scores_scalar.ScoreOptions`]): temperature and calibration.

    Returns:
        [`~gallery.exact.blocks.Best`]: equal scores in gallery order.

    Raises:
        DamagedVectorsError: vectors are not as they were written.
    """
    with torch.autocast("cpu", enabled=False):
        best, thresholds = _best_above(block, texts, k, options, _guessed(block, texts, k, options), True)
        again = np.flatnonzero(best.scores[:, -1].numpy() < thresholds)
        if len(again):
            known = best.scores[again, -1].numpy()
            repeated, _ = _best_above(block, texts[again], k, options, known, False)
            for column, values in zip(best, repeated, strict=True):
                column[again] = values
    return best


# SCALAR's score, of clips without codes -----------------------------------------------------------------------------


def _halves(texts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split texts into one in float16 plus 1 / 2048 of another; the error of a coordinate is at most 2^-21."""
    first = texts.half()
    return first, ((texts - first.float()) * _SMALL).half()


def _product(texts: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Inner products in float32, `(Q, B)`."""
    if vectors.dtype != torch.float16 or not vectors.is_cuda or torch.__version__ < (2, 8):  # without `out_dtype`
        return texts @ vectors.float().T
    first, second = (torch.mm(part, vectors.T, out_dtype=torch.float32) for part in _halves(texts))
    return first.add_(second, alpha=1 / _SMALL)


def _error_of(block: Block, texts: torch.Tensor, options: ScoreOptions) -> torch.Tensor:
    """Bound how much scores in float32 differ from those in float64, `(N,)`."""
    gain, offset = (
        max(abs(value) for value in values) if values is not None else default
        for values, default in ((options.modality_scale, 1.0), (options.modality_offset, 0.0))
    )
    norm, dim = torch.linalg.vector_norm(texts.double(), dim=-1).amax().item(), texts.shape[-1]
    # Tensor cores truncate sums of products instead of rounding, and the remainders of texts are truncated, too.
    error = 4 * product_error(dim, norm, block.chunks[0][0]) + norm * math.sqrt(dim) * 2.0**-21
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
    best, found = [], []
    for start in range(0, len(block), width):
        columns = slice(start, start + width)
        clips = block[columns] if len(block) > width else block  # the whole block keeps its derived values
        of_chunks = [[_product(texts, vectors) for vectors in chunk] for chunk in clips.chunks]
        products = torch.stack([torch.cat(column, dim=1) for column in zip(*of_chunks, strict=True)])
        products = products.mul_(clips.modality_mask.T[:, None])
        upper = METHODS["scalar"].score(Pairs(texts, clips, options, similarities=products))
        upper = (upper + miss[columns]).masked_fill_(~block.allowed[columns], -math.inf)
        values, places = upper.topk(min(count, upper.shape[1]), dim=1)
        best.append(values)
        found.append(places + start)
    values, order = torch.cat(best, dim=1).topk(count, dim=1)
    return values, torch.cat(found, dim=1).gather(1, order)


def _proved(
    block: Block, texts: torch.Tensor, miss: torch.Tensor, k: int, count: int, options: ScoreOptions
) -> tuple[Best, torch.Tensor]:
    """The k best of the clips with the highest bounds, and for which queries no other clip can be better."""
    upper, rows = _highest(block, texts, miss, min(count + 1, len(block)), options)
    rest = upper[:, -1] if count < len(block) else upper.new_full((len(upper),), -math.inf)
    queries, columns = (upper[:, :count] != -math.inf).nonzero(as_tuple=True)  # NaN is scored, so that it is noticed
    rows = rows[queries, columns]
    order = rows.argsort(stable=True)
    queries, rows = queries[order], rows[order]
    scores, weights = exact_pairs(block, texts, queries, rows, options)
    best = best_of_pairs(queries.cpu(), rows.cpu(), scores.cpu(), len(texts), k, weights.cpu())
    rest = rest.double().cpu()
    return best, (rest == -math.inf) | (best.scores[:, -1] > rest)


@torch.no_grad()
def find_best_on_device(block: Block, texts: torch.Tensor, k: int, options: ScoreOptions) -> Best:
    """
    Find the k best clips of each query as [`~gallery.exact.ranking.find_best`] does, on the device of the clips,
    which need no codes.

    Args, returns and errors: as of [`~gallery.exact.ranking.find_best`]; what is returned is on the CPU.
    """
    with torch.autocast(texts.device.type, enabled=False):
        miss = _error_of(block, texts, options).float() * (1 + 1e-6) + ROUNDING
        count = min(2 * k + _MORE, len(block))
        best, is_proved = _proved(block, texts, miss, k, count, options)
        while not is_proved.all():
            again, count = (~is_proved).nonzero()[:, 0], min(4 * count, len(block))
            more, is_proved[again] = _proved(block, texts[again.to(texts.device)], miss, k, count, options)
            for column, values in zip(best, more, strict=True):
                column[again] = values
    return best


# Every score --------------------------------------------------------------------------------------------------------


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
    find, found, count = find_best_on_device if block.codes is None else find_best, [], len(block)
    for some in queries.split(max(1, _PAIRS_AT_ONCE // (count if 4 * k > count else 4 * k))):
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
    entry, score_options, num_clips = find_method(method), ScoreOptions(**options), len(block)
    k, queries = min(k, num_clips), text_embeds.to(block.device)
    if not num_clips or not len(queries):
        nothing = torch.empty(len(queries), 0)
        return Ranking(nothing, nothing.long(), torch.zeros(len(queries), dtype=torch.long))
    if method == "scalar":
        return _rank_by_centroids(block, queries, k, score_options)
    is_whole = entry.whole or 4 * k > num_clips
    scores, rows = (_rank_whole if is_whole else _rank_in_tiles)(block, queries, k, method, score_options)
    return Ranking(scores.cpu(), rows.cpu(), torch.full((len(queries),), block.num_there))


__all__ = ["Ranking", "find_best", "find_best_on_device", "rank"]
