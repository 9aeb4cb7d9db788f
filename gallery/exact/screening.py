"""The exact best clips by SCALAR's score, found in low precision and proved.

Products in eight bits cost a fraction of those in float32. Their error has a bound, and so has the score:

1. With weights w >= 0 of a clip's modalities, the score is F(w, c) = sum_m w_m c_m / |sum_m w_m z_m|. It grows with
   every (calibrated) cosine c_m, and for any weights it is at most P(c) = max_w F(w, c), the norm of the projection on
   the cone of the clip's vectors. So if cosines are known to +-e, the score is at most P(c + e), for any temperature
   of the query.
2. P is the largest of sqrt(c_S' G_S^-1 c_S) over sets S of a clip's modalities for which G_S^-1 c_S >= 0. Cheaper
   bounds come first: max_m c_m / rho, with rho the distance of the convex hull of the clip's vectors from 0, and the
   norm of the projection of the positive part of c on their span.
3. The k-th best of any exactly scored clips is a threshold. A clip whose bound is below it is not among the k best.
   For all others, the vectors are read and multiplied in float32, which leaves few candidates; these are scored in
   float64.

Shapes: Q queries, N clips, B clips of a tile, M modalities, D dimensions, P pairs of a query and a clip.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from gallery.exact.blocks import Block
from gallery.exact.codes import Codes, rotation
from gallery.exact.cone import (
    LONGEST,
    ROUNDING,
    cone_bound,
    product_error,
    score_error,
    spanned_bound,
)
from modeling_scalar.scores_scalar import ScoreOptions, exact_scores

_TILE = 3 * 2**20  # products computed at once, in cache
_NARROWEST, _WIDEST = 512, 65_536  # clips per tile
_SAMPLED, _LEAST_SAMPLE = 64, 2048  # one clip in 64 is sampled first, and at least 2,048 clips
_SAMPLED_AT_ONCE = 4096  # clips of the sample at a time
_SLACK = 4  # about as many standard deviations a score may be below its estimate
_COPIED_AT_ONCE = 512  # vectors multiplied at a time, in cache
_READ_AT_ONCE = 128  # pairs whose vectors are read at a time, in cache
_PAIRS_AT_ONCE = 16_384  # whose bounds or scores are computed at a time


def _gathered(group: Sequence[tuple[Block, slice]]) -> Block:
    """Some clips of each block, copied to one place; if there are codes, without vectors, which may be on disk."""

    def joined(columns: Iterable[torch.Tensor]) -> torch.Tensor:
        return torch.cat([column[some] for column, (_, some) in zip(columns, group, strict=True)])

    parts, codes = [part for part, _ in group], [part.codes for part, _ in group]
    kept = None
    if codes[0] is not None:
        of_modalities = [joined(columns) for columns in zip(*(some.codes for some in codes), strict=True)]
        kept = Codes(of_modalities, joined(some.scale for some in codes), joined(some.error for some in codes))
    return Block(
        tuple(
            joined(columns) if kept is None else columns[0][:0]
            for columns in zip(*(part.vectors for part in parts), strict=True)
        ),
        joined(part.modality_mask for part in parts),
        gram=joined(part.gram for part in parts),
        is_there=joined(part.allowed for part in parts),
        codes=kept,
        min_norm=parts[0].min_norm,
    )


class _Best:
    """The best scored clips, best first: `scores` and `rows` `(Q, k)`, -inf where there are fewer."""

    def __init__(self, num_queries: int, k: int):
        self.scores = np.full((num_queries, k), -math.inf)
        self.rows = np.full((num_queries, k), np.iinfo(np.int64).max)
        self.num_scored = np.zeros(num_queries, np.int64)

    @property
    def last(self) -> np.ndarray:
        """The k-th best score of each query, (Q,)."""
        return self.scores[:, -1]

    def merge(self, queries: np.ndarray, rows: np.ndarray, scores: np.ndarray) -> None:
        """Merge scored pairs; among equal scores, the first in the gallery comes first."""
        lines, k = self.scores.shape
        queries = np.concatenate([np.repeat(np.arange(lines), k), queries])
        rows, scores = np.concatenate([self.rows.ravel(), rows]), np.concatenate([self.scores.ravel(), scores])
        order = np.lexsort((rows, -scores, queries))
        chosen = order[places_of(queries[order]) < k]
        self.rows, self.scores = rows[chosen].reshape(lines, k), scores[chosen].reshape(lines, k)


def places_of(queries: np.ndarray) -> np.ndarray:
    """The index of each entry among those of its query, which are adjacent."""
    return np.arange(len(queries)) - np.searchsorted(queries, queries)


def _cut(count: int, most: int) -> Iterator[slice]:
    """Slices of at most `most` entries."""
    return (slice(start, min(start + most, count)) for start in range(0, count, most))


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Pairs that may be among the best: screened cosines `(P, M)`, and their maximum error `(P,)`."""

    queries: np.ndarray
    rows: np.ndarray
    cosines: torch.Tensor
    error: torch.Tensor
    bounds: np.ndarray
    estimates: np.ndarray

    def __getitem__(self, chosen: np.ndarray) -> "_Candidates":
        chosen = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        index = torch.from_numpy(chosen)
        return _Candidates(
            self.queries[chosen],
            self.rows[chosen],
            self.cosines.index_select(0, index),
            self.error.index_select(0, index),
            self.bounds[chosen],
            self.estimates[chosen],
        )

    @staticmethod
    def joined(all_of_them: Sequence["_Candidates"]) -> "_Candidates":
        """Concatenate several of them."""
        columns = []
        for field in fields(_Candidates):
            parts = [getattr(some, field.name) for some in all_of_them]
            columns.append(torch.cat(parts) if isinstance(parts[0], torch.Tensor) else np.concatenate(parts))
        return _Candidates(*columns)


class _Scale(NamedTuple):
    """
    Turns products into cosines: that of query q and clip j is product * clips[j] * queries[q], with an error of at
    most error[j] + lost[q] * spread[j].
    """

    clips: torch.Tensor
    error: torch.Tensor
    spread: torch.Tensor
    queries: torch.Tensor
    lost: torch.Tensor


class _Search:
    """
    One search over all clips: see [`find_best`].

    Args:
        least (`np.ndarray` of shape `(Q,)`, *optional*): scores that the k-th best is known to reach. Without it they
            are guessed from a sample of the clips, and [`_Search.run`] returns the queries for which the guess failed.
    """

    def __init__(
        self,
        parts: Sequence[Block],
        texts: torch.Tensor,
        k: int,
        options: ScoreOptions,
        least: np.ndarray | None = None,
    ):
        self.parts, self.texts, self.k, self.options = parts, texts, k, options
        self.exact_texts = texts.double()
        self.num_modalities = len(parts[0].vectors)
        self.starts = np.array([part.start for part in parts])
        self.is_plain = not options.is_calibrated
        self.norm = float(torch.linalg.vector_norm(self.exact_texts, dim=-1).amax()) + 1e-6
        neutral = torch.ones(self.num_modalities), torch.zeros(self.num_modalities)
        given = options.modality_scale, options.modality_offset
        self.gain, self.offset = (
            default if values is None else torch.as_tensor(values).float()
            for values, default in zip(given, neutral, strict=True)
        )
        turned = self.exact_texts @ rotation(texts.shape[-1])
        self.scale = (turned.abs().amax(1) / 127).clamp(min=1e-30)
        codes = (turned / self.scale[:, None]).round()
        self.codes = codes.to(torch.int8)
        lost = torch.linalg.vector_norm(turned - codes * self.scale[:, None], dim=1)
        self.scale, self.lost = self.scale.float(), lost.float() * (1 + 1e-6) + 1e-7
        self.buffers: dict[tuple, torch.Tensor] = {}
        self.best, self.highest = _Best(len(texts), k), np.full((len(texts), k), -math.inf)
        self.rounding = texts.shape[-1] * 2.0**-24 * self.norm * LONGEST + ROUNDING  # of NumPy's sums
        self.is_known, self.slack = least is not None, np.zeros(len(texts))
        self.thresholds = np.full(len(texts), -math.inf) if least is None else least

    def buffer(self, name: str, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """Memory that tiles reuse: new memory has to be mapped first, which costs as much as a product."""
        size = shape[0] * shape[1]
        found = self.buffers.get((name, dtype))
        if found is None or len(found) < size:
            found = self.buffers[name, dtype] = torch.empty(size, dtype=dtype)
        return found[:size].view(shape)

    # Products and bounds -------------------------------------------------------------------------------------------

    def products(self, part: Block, columns: slice) -> tuple[list[torch.Tensor], _Scale]:
        """
        Multiply the queries with a tile of clips.

        Returns:
            The products of each modality `(Q, B)`; the [`_Scale`] that turns them into cosines.
        """
        shape, products = (len(self.texts), len(part.allowed[columns])), []
        for index, vectors in enumerate(part.vectors):
            if part.codes is not None:
                block = part.codes.codes[index][columns]
                out = self.buffer(f"products {index}", shape, torch.int32)
                torch._int_mm(self.codes, block.T, out=out)
            else:
                out = self.buffer(f"products {index}", shape, torch.float32)
                block = vectors[columns]
                # A product reads data that was just copied (and converted) faster than pages of a mapped file.
                for start in range(0, shape[1], _COPIED_AT_ONCE):
                    few = block[start : start + _COPIED_AT_ONCE]
                    few = self.buffer("vectors", tuple(few.shape), torch.float32).copy_(few)
                    torch.mm(self.texts, few.T, out=out[:, start : start + _COPIED_AT_ONCE])
                # With a NaN bound the clip would be left out; codes contain none.
                if (~out[:1].isfinite() & part.allowed[columns]).any():
                    raise FloatingPointError("a product is not a number")
            products.append(out)
        if part.codes is None:
            ones, zeros = torch.ones(len(self.texts)), torch.zeros(len(self.texts))
            error = torch.full(shape[1:], product_error(self.texts.shape[-1], self.norm, part.vectors[0]))
            return products, _Scale(torch.ones(shape[1]), error, torch.zeros(shape[1]), ones, zeros)
        error = part.codes.error[columns]
        scale = part.codes.scale[columns]
        # |<t, z> - <t', z'>| <= |t| |z - z'| + |t - t'| |z'|
        return products, _Scale(scale, self.norm * error + ROUNDING, LONGEST + error, self.scale, self.lost)

    def survivors(self, part: Block, columns: slice, products: list[torch.Tensor], scale: _Scale) -> np.ndarray:
        """The pairs of a tile, numbered query by query, whose cheaper bound reaches the threshold."""
        shape = tuple(products[0].shape)
        allowed, mask = part.allowed[columns], part.modality_mask[columns]
        inverse_rho = part.inverse_rho[columns]
        if self.is_plain:  # absent or unselected modalities can only make the bound larger
            largest, *others = products
            for product in others:
                largest = torch.maximum(largest, product, out=self.buffer("largest", shape, product.dtype))
            looked_at = [(largest, 1.0, 0.0, allowed)]
        else:
            looked_at = zip(products, self.gain, self.offset, (mask & allowed[:, None]).unbind(1), strict=True)
        thresholds = torch.from_numpy(self.thresholds).float()
        is_positive = bool((thresholds > 0).all())
        inverse = inverse_rho if is_positive else torch.ones(())
        # Everything is divided by the query's scale, relative to which all queries lose about the same.
        spread = (scale.lost / scale.queries).amax() * scale.spread
        upper = self.buffer("upper", shape, torch.float32)
        for index, (product, gain, offset, is_there) in enumerate(looked_at):
            into = self.buffer("other", shape, torch.float32) if index else upper
            product = product if product.dtype == torch.float32 else into.copy_(product)
            slope, level = gain * scale.clips * inverse, gain * spread * inverse
            fixed = ((scale.error * gain + offset) * inverse).masked_fill(~is_there, -math.inf)
            if part.codes is None:  # all queries have the scale 1
                torch.addcmul(level + fixed, product, slope, out=into)
            else:
                torch.addcmul(level, product, slope, out=into).addcmul_(1 / scale.queries[:, None], fixed)
            if index:
                torch.maximum(upper, into, out=upper)
        if not is_positive:  # values below 0 are divided by the largest possible norms
            upper = torch.maximum(upper * inverse_rho, upper / LONGEST)
        # Clips that may not be found are at -inf, and are left out even if no score is known to be reached.
        reach = (thresholds - thresholds.abs() * ROUNDING) / scale.queries
        reach = reach.clamp(min=torch.finfo(torch.float32).min)
        found = self.buffer("found", shape, torch.bool).numpy()
        # NumPy compares several times as fast as torch, which compares one by one.
        return np.flatnonzero(np.greater_equal(upper.numpy(), reach.numpy()[:, None], out=found))

    def screen(self, part: Block, columns: slice) -> _Candidates:
        """The clips of a tile that may be among the best."""
        products, scale = self.products(part, columns)
        pairs = self.survivors(part, columns, products, scale)
        queries = pairs // products[0].shape[1]
        flat, query = torch.from_numpy(pairs), torch.from_numpy(queries)
        place = flat - query * products[0].shape[1]
        cosines = torch.stack([product.view(-1).index_select(0, flat) for product in products], dim=1)
        times = scale.clips.index_select(0, place) * scale.queries.index_select(0, query)
        cosines = cosines * times[:, None] * self.gain + self.offset
        error = scale.lost.index_select(0, query) * scale.spread.index_select(0, place)
        error += scale.error.index_select(0, place)
        rows = place + columns.start
        upper, inverse = cosines + error[:, None] * self.gain, part.inverse.index_select(0, rows)
        bounds = spanned_bound(upper, inverse).numpy()
        likely = np.flatnonzero(bounds >= self.thresholds[queries])
        chosen = torch.from_numpy(likely)
        cosines, rows, error = (values.index_select(0, chosen) for values in (cosines, rows, error))
        gram, mask = part.gram.index_select(0, rows), part.modality_mask.index_select(0, rows)
        estimates = self.estimate(cosines.unbind(1), gram, mask).numpy()
        return _Candidates(queries[likely], rows.numpy() + part.start, cosines, error, bounds[likely], estimates)

    def estimate(
        self, cosines: Sequence[torch.Tensor], gram: torch.Tensor, modality_mask: torch.Tensor
    ) -> torch.Tensor:
        """The scores from the cosines with each modality, `(P,)` or `(Q, P)`, Eq. 4, written out, as sums along short
        rows are slow. Gram matrices are `(P, M, M)`, modality masks `(P, M)`."""
        least = self.parts[0].min_norm
        absent = (~modality_mask).unbind(1)
        some = [column.masked_fill(none, -math.inf) for column, none in zip(cosines, absent, strict=True)]
        largest = reduce(torch.maximum, some)
        weights = [
            ((column - largest) / self.options.query_temperature).masked_fill(none, -math.inf).exp_()
            for column, none in zip(some, absent, strict=True)
        ]
        squares, inner = 0, 0
        for m, (weight, column) in enumerate(zip(weights, cosines, strict=True)):
            row = weight * gram[:, m, m]
            for n in range(m + 1, len(weights)):
                row = row.addcmul_(weights[n], 2 * gram[:, m, n])
            squares, inner = row.mul_(weight).add_(squares), (weight * column).add_(inner)
        return inner * torch.maximum(squares, (least * sum(weights)).square_()).rsqrt_()

    def slack_of(self, scale: _Scale) -> np.ndarray:
        """The error of estimates, nearly always: errors of many coordinates add up like random numbers."""
        error = scale.error.amax() + scale.lost * scale.spread.amax()
        return (_SLACK / math.sqrt(self.texts.shape[-1]) * self.gain.amax() * error).numpy()

    def raise_thresholds(self, found: _Candidates) -> None:
        """Raise the thresholds to the k-th highest estimates."""
        better = found.estimates > self.highest[:, -1][found.queries]
        queries, estimates = found.queries[better], found.estimates[better]
        if self.is_known or not len(queries):
            return
        place = places_of(queries)
        table = np.full((len(self.texts), self.k + place.max() + 1), -math.inf)
        table[:, : self.k] = self.highest
        table[queries, self.k + place] = estimates
        table.partition(table.shape[1] - self.k, axis=1)
        self.highest = table[:, -self.k :]
        self.highest[:, [0, -1]] = self.highest[:, [-1, 0]]
        self.thresholds = np.maximum(self.thresholds, self.highest[:, -1] - self.slack)

    # Exact scores ---------------------------------------------------------------------------------------------------

    def pieces(self, rows: np.ndarray) -> Iterator[tuple[Block, slice, torch.Tensor]]:
        """Split rows in ascending order by block: the block, which rows, and their indices there."""
        places = np.searchsorted(self.starts, rows, side="right") - 1
        for start, stop in pairwise([0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), len(rows)]):
            part = self.parts[places[start]]
            yield part, slice(start, stop), torch.from_numpy(rows[start:stop] - part.start)

    def facts(self, rows: np.ndarray) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """For chunks of rows in ascending order: which rows, their Gram matrices `(P, M, M)`, masks `(P, M)`, and
        `rho` `(P,)`."""
        for some in _cut(len(rows), _PAIRS_AT_ONCE):
            found = []
            for part, _, inside in self.pieces(rows[some]):
                known = part.gram, part.modality_mask, part.rho
                found.append([values.index_select(0, inside) for values in known])
            yield some, *map(torch.cat, zip(*found, strict=True))

    def vectors(self, rows: np.ndarray) -> Iterator[tuple[slice, torch.Tensor]]:
        """The vectors of rows in ascending order, in chunks: which rows, and `(P, M, D)` in float32."""
        read = torch.empty(min(len(rows), _READ_AT_ONCE), self.num_modalities, self.texts.shape[-1])
        for some in _cut(len(rows), _READ_AT_ONCE):
            for part, place, inside in self.pieces(rows[some]):
                for index, column in enumerate(part.vectors):
                    read[place, index] = column.index_select(0, inside)
            yield some, read[: some.stop - some.start]

    def refined(self, found: _Candidates) -> _Candidates:
        """The candidates that may be among the best according to their vectors in float32."""
        texts, most = self.texts.numpy(), np.empty(len(found.rows))
        products = np.empty((len(found.rows), self.num_modalities), np.float32)
        for some, vectors in self.vectors(found.rows):
            asked = texts[found.queries[some]]
            np.einsum("pmd,pd->pm", vectors, asked, out=products[some])
        for some, gram, mask, rho in self.facts(found.rows):
            cosines = torch.from_numpy(products[some]).double() * self.gain + self.offset
            largest = cosines.masked_fill(~mask, 0).abs().amax(1)
            error = self.rounding * self.gain.amax().item() + ROUNDING * largest.amax().item()
            miss = score_error(largest, rho.double(), error, self.options.query_temperature)
            most[some] = (self.estimate(cosines.unbind(1), gram.double(), mask) + miss).numpy()
        return found[~(most < self.best.last[found.queries])]  # NaN is kept, so that it is noticed

    def score(self, found: _Candidates) -> None:
        """Score pairs in float64."""
        scores, masks = np.empty(len(found.rows)), torch.empty(len(found.rows), self.num_modalities, dtype=torch.bool)
        for some, _, mask, _ in self.facts(found.rows):
            masks[some] = mask
        for some, vectors in self.vectors(found.rows):
            texts, min_norm = self.texts[torch.from_numpy(found.queries[some])], self.parts[0].min_norm
            scores[some] = exact_scores(texts, vectors, masks[some], min_norm, self.options).numpy()
        if np.isnan(scores).any():
            raise FloatingPointError("a score is not a number")
        self.best.merge(found.queries, found.rows, scores)

    def tiles(self) -> Iterator[tuple[Block, slice]]:
        """The clips in tiles whose products stay in cache."""
        width = _TILE // self.num_modalities // len(self.texts) // _NARROWEST * _NARROWEST
        width = min(max(width, _NARROWEST), _WIDEST)
        for part in self.parts:
            for start in range(0, len(part.allowed), width):
                yield part, slice(start, min(start + width, len(part.allowed)))

    def guess_thresholds(self) -> None:
        """
        Guess thresholds from a sample of clips, spread evenly over all.

        Of the k best of N clips, about r = k n / N are among n that are drawn. At a rank some standard deviations
        below r, the sample has a score that k of all clips reach, nearly always.
        """
        num_clips = sum(len(part.allowed) for part in self.parts)
        step = max(1, num_clips // max(_LEAST_SAMPLE, num_clips // _SAMPLED))
        most = min(max(_TILE // 8 // self.num_modalities // len(self.texts), _NARROWEST), _SAMPLED_AT_ONCE)
        found = [self.look_at(few) for few in self.samples(step, most)]
        estimates = np.concatenate(found, axis=1)
        expected = self.k * estimates.shape[1] / num_clips
        rank = math.ceil(expected + 2 * math.sqrt(expected)) + 1
        if estimates.shape[1] < rank:
            return
        estimates.partition(estimates.shape[1] - rank, axis=1)
        self.thresholds = estimates[:, -rank].astype(np.float64) - self.slack

    def samples(self, step: int, most: int) -> Iterator[Block]:
        """One clip in `step`, at most `most` at a time, copied to one place."""
        group: list[tuple[Block, slice]] = []
        count = 0
        for part in self.parts:
            for start in range(0, len(part.allowed), step * most):
                columns = slice(start, start + step * most, step)
                size = len(part.allowed[columns])
                is_other = group and (group[0][0].codes is None) != (part.codes is None)
                if is_other or count + size > most:
                    yield _gathered(group)
                    group, count = [], 0
                group.append((part, columns))
                count += size
        if group:
            yield _gathered(group)

    def look_at(self, part: Block) -> np.ndarray:
        """The estimated scores of all queries with a few clips, `(Q, n)`."""
        products, scale = self.products(part, slice(0, len(part.allowed)))
        times = scale.queries[:, None] * scale.clips
        cosines = [
            (product * times).mul_(gain).add_(offset)
            for product, gain, offset in zip(products, self.gain, self.offset, strict=True)
        ]
        self.slack = np.maximum(self.slack, self.slack_of(scale))
        estimates = self.estimate(cosines, part.gram, part.modality_mask)
        return np.where(part.allowed.numpy(), estimates.numpy(), -math.inf)

    def run(self) -> np.ndarray:
        """Screen all tiles and score the candidates; return the queries for which the result is not proved."""
        if not self.is_known:
            self.guess_thresholds()
        found = []
        for part, columns in self.tiles():
            found.append(self.screen(part, columns))
            self.raise_thresholds(found[-1])
        found = self.bounded(_Candidates.joined(found))
        order = np.argsort(-found.estimates)
        order = order[np.argsort(found.queries[order], kind="stable")]
        first = np.zeros(len(order), bool)
        first[order[places_of(found.queries[order]) < self.k]] = True
        self.score(found[first])
        rest = found[~first & (found.bounds >= self.best.last[found.queries])]
        self.score(self.refined(rest))
        self.best.num_scored += np.bincount(found.queries[first], minlength=len(self.texts))
        self.best.num_scored += np.bincount(rest.queries, minlength=len(self.texts))
        return np.flatnonzero(self.best.last < self.thresholds)

    def bounded(self, found: _Candidates) -> _Candidates:
        """The candidates that may reach the thresholds by the closest bounds, in the order of their rows, so that
        adjacent clips are read together."""
        found = found[found.bounds >= self.thresholds[found.queries]]
        found = found[np.argsort(found.rows, kind="stable")]
        bounds = np.empty(len(found.rows))
        for some, gram, mask, rho in self.facts(found.rows):
            upper = (found.cosines[some] + found.error[some, None] * self.gain).double()
            upper += upper.abs() * ROUNDING
            bounds[some] = cone_bound(upper, gram, mask, rho).numpy()
        return found[bounds >= self.thresholds[found.queries]]


@torch.no_grad()
def find_best(
    parts: Sequence[Block], text_embeds: torch.Tensor, k: int, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """
    Find the k best clips of each query by SCALAR's score, as if every pair were scored in float64.

    Args:
        parts (`list[Block]`): the clips.
        text_embeds (`torch.FloatTensor` of shape `(Q, D)`): unit norm.
        k (`int`): hits per query.
        options ([`~modeling_scalar.scores_scalar.ScoreOptions`]): temperature and calibration.

    Returns:
        Scores (float64) and rows, `(Q, k)`, best first, equal scores in gallery order; `-inf` where there are fewer.
        And the number of clips of each query that were scored in float64, `(Q,)`: the others cannot be among the best.

    Raises:
        FloatingPointError: a score is not a number: vectors are damaged.
    """
    with torch.autocast("cpu", enabled=False):
        search = _Search(parts, text_embeds, k, options)
        again, best = search.run(), search.best
        if len(again):  # the threshold was too high: the scored clips give a valid one
            known = _Search(parts, text_embeds[again], k, options, best.last[again])
            known.run()
    if len(again):
        best.scores[again], best.rows[again] = known.best.scores, known.best.rows
        most = sum(int(part.allowed.sum()) for part in parts)
        best.num_scored[again] = np.minimum(best.num_scored[again] + known.best.num_scored, most)
    return torch.from_numpy(best.scores), torch.from_numpy(best.rows), torch.from_numpy(best.num_scored)


__all__ = ["find_best"]
