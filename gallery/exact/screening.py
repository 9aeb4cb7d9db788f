"""The exact best clips by SCALAR's score, found in eight bits and proved.

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

Shapes: Q queries, N clips, B clips of a tile, M modalities, D dimensions, P pairs of a query and a clip, K hits.
"""

import math
from typing import NamedTuple

import numpy as np
import torch

from gallery.exact.blocks import Block
from gallery.exact.codes import rotation
from gallery.exact.cone import LONGEST, ROUNDING, spanned_bound
from gallery.exact.pairs import Best, best_of_pairs, bounded_scores, centroid_scores, exact_pairs, highest_of_pairs
from modeling_scalar.scores_scalar import Pairs, ScoreOptions

_TILE = 2**20  # products of a modality computed at once, in cache
_NARROWEST, _WIDEST = 512, 65_536  # clips per tile
_ROUNDS = 16  # times that thresholds are raised
_SLACK = 4  # about as many standard deviations a score may be below its estimate
_SCALE, _ERROR, _INVERSE_RHO, _INVERSE = 0, 1, 2, 3  # columns of `Block.screened`; the last one is the first of many


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
        error = self.error_of(block.screened[:, _ERROR].amax()).item() * max(map(abs, self.gain))
        self.slack = _SLACK / math.sqrt(texts.shape[-1]) * error
        # Memory that tiles reuse: new memory has to be mapped first, which costs as much as a product.
        width = min(max(_TILE // len(texts) // _NARROWEST * _NARROWEST, _NARROWEST), _WIDEST)
        self.width = min(width, len(block))
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
        facts = self.block.screened[start:stop]
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
        facts = self.block.screened.index_select(0, torch.from_numpy(rows)).T.contiguous()
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
        for start in range(0, len(self.block), self.width):
            stop = min(start + self.width, len(self.block))
            new.append(self.candidates(start, stop))
            if stop - since >= len(self.block) / _ROUNDS or stop == len(self.block):
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
        [`~gallery.exact.pairs.Best`]: equal scores in gallery order.

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


__all__ = ["find_best"]
