"""The clips of a gallery in the form in which they are ranked, in mapped files or in the memory of a device; how large
their scores can be for any weights; and the scores of single pairs of a query and a clip.

[`~gallery.exact.ranking`] says what is bounded, and why. All bounds hold for any number of modalities. Nothing relies
on solving a Gram matrix accurately: bounds follow from whatever weights are found, and allow for errors.

Shapes: Q queries, N clips, M modalities, D dimensions, P clips or pairs at a time, K hits.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import torch

from gallery.columns import codes_of, matrix_of, modalities_of, presence_of
from gallery.exact.codes import Codes, multiplies_eight_bits
from gallery.storage import Part
from modeling_scalar.scores_scalar import (
    MIN_NORM,
    NORM_TOLERANCE,
    Clips,
    ScoreOptions,
    exact_scores,
    quadratic,
    softmax_weights,
)

LONGEST = 1.02  # norm of vectors stored as unit vectors
ROUNDING = 1e-6  # error of a few operations in float32 on numbers of about 1
_CANCELLING = 0.1  # distance from 0 below which float32 Gram matrices have too few digits for small errors
_AT_ONCE = 2**18  # numbers in the Gram matrices that are solved at a time, in cache
_ALL_CHANGE, _TURNS = 8, 64  # iterations in which all violations change; after which any weights will do
_LEAST_PIVOT = 1e-14  # anything below is rounding in float64
_ZERO = 1e-10  # anything less below 0 is rounding
_MIN_NORM = MIN_NORM[torch.float32]
_SAMPLE, _RUN = 1024, 64  # clips of a sample, in runs
_CONVERTED_AT_ONCE = 512  # half-precision vectors converted to float32 at a time, in cache
_CLIPS_AT_ONCE, _ON_A_DEVICE = 2048, 16_384  # clips whose vectors are copied at a time
_GRAM_TOLERANCE = 1e-6  # within which sums in another order agree
_SHORT = 0.01  # squared norm of a centroid below which a Gram matrix has too few digits


# Gram matrices ------------------------------------------------------------------------------------------------------


def _in_cache(gram: torch.Tensor, *others: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Chunks of Gram matrices, and the corresponding rows of others."""
    size = max(_AT_ONCE // gram.shape[1] ** 2, 1)
    return zip(gram.split(size), *(other.split(size) for other in others), strict=True)


def _columns(*rows: torch.Tensor) -> Iterator[torch.Tensor]:
    """The same with the first axis last, `(M, P)` of `(P, M)`: sums along short rows are slow."""
    return (values.movedim(0, -1).contiguous() for values in rows)


def _solved(gram: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Solve Gram matrices `(M, M, P)` for `target` `(M, ..., P)` by elimination. If they are singular, as with absent
    vectors (a row of zeros), returns some solution, or something large."""
    rows, found = [list(row) for row in gram], list(target)
    for k in range(len(found)):
        rows[k][k] = rows[k][k].clamp(min=_LEAST_PIVOT)
        for m in range(k + 1, len(found)):
            share = rows[m][k] / rows[k][k]
            for n in range(k + 1, m + 1):
                rows[m][n] = torch.addcmul(rows[m][n], share, rows[n][k], value=-1)
            found[m] = torch.addcmul(found[m], share, found[k], value=-1)
    for k in reversed(range(len(found))):
        for m in range(k + 1, len(found)):
            found[k] = torch.addcmul(found[k], rows[m][k], found[m], value=-1)
        found[k] = found[k] / rows[k][k]
    return torch.stack(found)


def _nearest(
    gram: torch.Tensor, target: torch.Tensor, modality_mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Find weights >= 0, `(M, P)`, so that the weighted sum of a clip's vectors is as near as possible, nearly always, to
    a text whose inner products with them are `target` `(P, M)`; and the inner products `(M, P)` with that sum.

    The weights solve the Gram matrix of the weighted vectors; products of the sum with the others reach their targets.
    Violations change sides until there are none. If that takes long, one at a time does, which terminates if matrices
    are positive definite (K. G. Murty, 1974): hence the ridge, of the size that rounding may take from eigenvalues.
    """
    found, ridge = [], max(gram.shape[1] * torch.finfo(gram.dtype).eps, 1e-12)
    for some in _in_cache(gram, target, modality_mask):
        whole, products, present = _columns(some[0].double(), *some[1:])
        matrices, rows = whole.clone(), torch.arange(whole.shape[2], device=gram.device)
        weights, chosen = torch.zeros_like(products), present & (products > 0)
        for turn in range(_TURNS):
            matrices.diagonal().add_(ridge)
            of_those = chosen.double()
            solved = _solved(matrices * of_those[:, None] * of_those, products * of_those)
            weights.index_copy_(1, rows, solved)
            others = products - (matrices * solved).sum(1)
            is_wrong = torch.where(chosen, solved < -_ZERO, present & (others > _ZERO))
            again = is_wrong.any(0).nonzero()[:, 0]
            if not len(again):
                break
            if turn >= _ALL_CHANGE:
                is_wrong &= is_wrong.flip(0).cumsum(0).flip(0) == 1  # the last one
            rows, chosen = rows.index_select(0, again), (chosen ^ is_wrong).index_select(1, again)
            # Rows are gathered several times as fast as columns.
            matrices, products, present = _columns(*(values.index_select(0, rows) for values in some))
            matrices = matrices.double()
        weights.clamp_(min=0)
        found.append((weights, (whole * weights).sum(1)))
    weights, products = zip(*found, strict=True)
    return torch.cat(weights, dim=1), torch.cat(products, dim=1)


def hull_distance(gram: torch.Tensor, modality_mask: torch.Tensor) -> torch.Tensor:
    """
    Compute the distance of the convex hull of each clip's vectors from 0, the least norm of any weighted mean.

    If a sum x of the vectors has inner products of at least p with each, then also with all points of their hull, none
    of which can be nearer than p / |x|. For the sum nearest to a text with a product of 1 with each, this is the
    distance.

    Args:
        gram (`torch.Tensor` of shape `(N, M, M)`): inner products, zero where absent.
        modality_mask (`torch.BoolTensor` of shape `(N, M)`): the modalities of each clip.

    Returns:
        `torch.DoubleTensor` of shape `(N,)`, at most 1 for unit vectors. Its square exceeds the true one by at most
        three times the error of the inner products.
    """
    weights, products = _nearest(gram, modality_mask.double(), modality_mask)
    least = products.masked_fill(~modality_mask.T, math.inf).amin(0).clamp(min=0)
    return least / (weights * products).sum(0).clamp(min=1e-30).sqrt()


def inverse_of(gram: torch.Tensor, modality_mask: torch.Tensor) -> torch.Tensor:
    """
    Invert the Gram matrices of the modalities that each clip has.

    Returns:
        `torch.FloatTensor` of shape `(N, M (M + 1) / 2)`: the upper triangle, row by row, with off-diagonal entries
        doubled; zero where absent; almost infinite on the diagonal if an inverse has too few digits.
    """
    number, found = gram.shape[1], []
    upper = torch.triu_indices(number, number, device=gram.device)
    units = torch.eye(number, dtype=torch.float64, device=gram.device)[..., None]
    for some in _in_cache(gram, modality_mask):
        matrices, present = _columns(some[0].double(), some[1])
        inverse = _solved(matrices, units.expand_as(matrices)) * (present[:, None] & present)
        # With S the sum of entries, the relative error of squares is at most (2 M + 3) 6e-8 S, see `spanned_bound`.
        is_safe = inverse.abs().sum((0, 1)) <= 1e4 / (2 * number + 3)
        inverse = torch.where(is_safe, inverse * (2 - units), 1e30 * units * present)
        found.append(inverse[upper[0], upper[1]].float().T)
    return torch.cat(found)


def spanned_bound(upper: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """
    Bound F(w, c) over all weights w >= 0 and all c <= `upper`, where that is positive: by the projection of
    max(`upper`, 0) on the span of the clip's vectors, c' G^-1 c with c = max(`upper`, 0). (P,)

    That is at least c_m^2 / |z_m|^2 for each m. A float32 sum of M (M + 1) / 2 products has an error of (M + 3) 6e-8
    of its absolute terms, which are at most S max_m c_m^2, and a float32 inverse of a Gram matrix one of M 6e-8 S.
    """
    columns, total = iter(inverse.unbind(1)), torch.zeros_like(upper[:, 0])
    positive = upper.clamp(min=0).unbind(1)
    for m, first in enumerate(positive):
        row = first * next(columns)
        for second in positive[m + 1 :]:
            row = torch.addcmul(row, second, next(columns))
        total = torch.addcmul(total, first, row)
    return total.clamp(min=0).sqrt() * (1 + 1e-3)


# Errors -------------------------------------------------------------------------------------------------------------


def score_error(largest: torch.Tensor, rho: torch.Tensor, error: float, temperature: float) -> torch.Tensor:
    """
    Bound how much a score changes if no cosine changes by more than `error`.

    The derivative of the score s by a cosine is w_m (1 + (c_m - s b_m) / temperature) / |sum_m w_m z_m|, with b_m at
    most the norm of z_m, |s| at most max_m |c_m| / rho, and weights that sum to 1.

    Args:
        largest (`torch.DoubleTensor` of shape `(P,)`): largest absolute (calibrated) cosine of a clip's modalities.
        rho (`torch.DoubleTensor` of shape `(P,)`): at most [`hull_distance`], and above 0.
        error (`float`), temperature (`float`).

    Returns:
        `torch.DoubleTensor` of shape `(P,)`; infinity if a float32 Gram matrix has too few digits.
    """
    largest = largest + error
    slope = (1 + largest * (1 + LONGEST / rho) / temperature) / rho
    rounded = 1e-6 * largest / rho**3  # a float32 Gram matrix has an error of 6e-8
    return (slope * error + rounded).masked_fill(rho <= _CANCELLING, math.inf)


def product_error(dim: int, norm: float, vectors: torch.Tensor) -> float:
    """Bound the error of inner products of texts of this norm with clips' vectors, summed in float32 on the device of
    `vectors`; if torch is set to a lower precision, of products in that."""
    allowed = {"highest": 0.0, "high": 2.0**-9, "medium": 2.0**-7}[torch.get_float32_matmul_precision()]
    if vectors.is_cuda and torch.backends.cuda.matmul.allow_tf32:
        allowed = max(allowed, 2.0**-9)
    return (dim * 2.0**-24 + allowed) * norm * LONGEST + ROUNDING


# Clips --------------------------------------------------------------------------------------------------------------


class DamagedVectorsError(ValueError):
    """Vectors are not as they were written. `rows` are their clips, if known."""

    def __init__(self, rows: torch.Tensor | None = None):
        super().__init__(
            "The vectors of some clips of the gallery are not as they were written, so nothing can be ranked. "
            "`scalar verify GALLERY` names the files, `scalar repair GALLERY` keeps all others."
        )
        self.rows = torch.empty(0, dtype=torch.long) if rows is None else rows


class Block(Clips):
    """
    Clips in the form in which they are ranked and screened. Vectors stay where they are, in chunks; nothing is checked
    or copied.

    Args:
        chunks (list of tuples of M `torch.Tensor` of shape `(n, D)`): unit vectors of each modality, of n clips each.
            They may be on disk; half-precision vectors are converted to float32, a few at a time.
        modality_mask (`torch.BoolTensor` of shape `(N, M)`): which vectors count as present.
        modalities (sequence of `str`): the names along the axis M; empty if they have none.
        gram (`torch.Tensor` of shape `(N, M, M)`): inner products of the modalities, zero where absent.
        is_there (`torch.BoolTensor` of shape `(N,)`): clips that are not removed, and may be found.
        codes (list of [`~gallery.exact.codes.Codes`], *optional*): the vectors of each chunk in eight bits, if the
            machine can multiply them.
        min_norm (`float`): vanishing norms are clamped to this.
        is_partial (`bool`): whether vectors that count as absent may be nonzero.
    """

    gram: torch.Tensor = torch.empty(0)  # given to each block, not computed

    def __init__(
        self,
        chunks: Sequence[tuple[torch.Tensor, ...]],
        modality_mask: torch.Tensor,
        *,
        modalities: Sequence[str] = (),
        gram: torch.Tensor,
        is_there: torch.Tensor,
        codes: Sequence[Codes] | None = None,
        min_norm: float = _MIN_NORM,
        is_partial: bool = False,
    ):
        self.chunks, self.codes = list(chunks), codes
        self.modality_mask, self.is_there = modality_mask, is_there
        self.modalities, self.min_norm, self.is_partial = tuple(modalities), min_norm, is_partial
        self.gram = self._gram = gram
        self._derived = {}

    def pieces(self, start: int, stop: int) -> list[tuple[int, slice, int]]:
        """The chunks from one clip to another: the chunk, which of its clips, and the index of the first of these."""
        found, first = [], 0
        for number, chunk in enumerate(self.chunks):
            end = first + len(chunk[0])
            if first < stop and end > start:
                some = slice(max(start - first, 0), min(stop, end) - first)
                found.append((number, some, first + some.start))
            first = end
        return found

    def __getitem__(self, columns: slice | torch.Tensor) -> "Block":
        """Some of these clips, without their codes; given by indices, they are copied."""
        if isinstance(columns, slice):
            start, stop, _ = columns.indices(len(self.modality_mask))
            chunks = [tuple(vectors[some] for vectors in self.chunks[n]) for n, some, _ in self.pieces(start, stop)]
        else:
            columns = columns.nonzero()[:, 0] if columns.dtype == torch.bool else columns
            vectors = self.vectors_at(columns, self.dtype)
            chunks = [tuple(column.contiguous() for column in vectors.unbind(1))]
        return Block(
            chunks,
            self.modality_mask[columns],
            modalities=self.modalities,
            gram=self.gram[columns],
            is_there=self.is_there[columns],
            min_norm=self.min_norm,
            is_partial=self.is_partial,
        )

    def vectors_at(self, rows: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Copy the vectors of clips in ascending order, `(P, M, D)`, also of modalities that count as absent."""
        number, dim = self.modality_mask.shape[1], self.chunks[0][0].shape[1]
        found = torch.empty(len(rows), number, dim, dtype=dtype, device=self.device)
        ends = torch.tensor([len(chunk[0]) for chunk in self.chunks], device=self.device).cumsum(0)
        places = torch.searchsorted(rows, ends).tolist()
        first, start = 0, 0
        for chunk, end, stop in zip(self.chunks, ends.tolist(), places, strict=True):
            if start < stop:
                for m, vectors in enumerate(chunk):
                    found[start:stop, m] = vectors.index_select(0, rows[start:stop] - first)
            first, start = end, stop
        return found

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of computations with these clips: at least float32."""
        return torch.promote_types(self.chunks[0][0].dtype, torch.float32)

    @property
    def device(self) -> torch.device:
        """Where the clips are ranked."""
        return self.modality_mask.device

    @property
    def modality_embeds(self) -> torch.Tensor:
        """The embeddings in one tensor, `(N, M, D)`, in at least float32."""
        return self.once(_stacked)

    def products(self, text_embeds: torch.Tensor, index: int | None = None) -> torch.Tensor:
        """Inner products `(M, Q, N)` of all modalities, or of one, with texts `(Q, D)`; zero where absent."""
        chosen = range(self.modality_mask.shape[1]) if index is None else [index]
        products = text_embeds.new_empty(len(chosen), len(text_embeds), len(self.modality_mask))
        first = 0
        for chunk in self.chunks:
            end = first + len(chunk[0])
            for place, m in enumerate(chosen):
                _multiply(text_embeds, chunk[m], products[place, :, first:end])
            first = end
        return products * self.modality_mask.T[chosen][:, None] if self.is_partial else products

    # Selection ------------------------------------------------------------------------------------------------------

    @cached_property
    def allowed(self) -> torch.Tensor:
        """Clips `(N,)` that are not removed and have a selected modality."""
        return self.is_there & self.modality_mask.any(1)

    @cached_property
    def num_there(self) -> int:
        """How many clips are not removed."""
        return int(self.is_there.sum())

    def shown(self, modality_mask: torch.Tensor) -> "Block":
        """The same clips with the modalities that a mask `(N, M)` shows; hidden vectors are not zeroed."""
        return Block(
            self.chunks,
            modality_mask,
            modalities=self.modalities,
            gram=self.gram * (modality_mask[:, :, None] & modality_mask[:, None]),
            is_there=self.is_there,
            codes=self.codes,
            min_norm=self.min_norm,
            is_partial=True,
        )

    def with_modalities(self, modalities: torch.Tensor) -> "Block":
        """The same clips with only the selected modalities `(M,)`."""
        return self.shown(self.modality_mask & modalities.to(self.device))

    def limited(self, allowed: torch.Tensor) -> "Block":
        """The same clips, of which only some `(N,)` may be found; derived values are shared."""
        limited = copy(self)
        limited.is_there = self.is_there & allowed.to(self.device)
        for derived in ("allowed", "num_there"):
            vars(limited).pop(derived, None)
        return limited

    # Bounds ---------------------------------------------------------------------------------------------------------

    @property
    def rho(self) -> torch.Tensor:
        """A lower bound `(N,)` of the norm of weighted means of a clip's vectors, or the norm that scores clamp to."""
        return self.once(_rho)

    @property
    def screened(self) -> torch.Tensor:
        """What screening reads of each clip, `(N, 3 + M (M + 1) / 2)`: scale and error of its codes, an upper bound of
        1 / `rho`, and [`~gallery.exact.blocks.inverse_of`]."""
        return self.once(_screened)

    @property
    def sample(self) -> tuple[torch.Tensor, "Block"]:
        """About 1,024 clips, in short runs that are spread evenly over all: their rows, and the clips, copied."""
        return self.once(_sample)


def _rho(clips: Block) -> torch.Tensor:
    squares = hull_distance(clips.gram, clips.modality_mask).square() - 1e-6  # rounding may add this
    return squares.clamp(min=clips.min_norm**2).sqrt()


def _screened(clips: Block) -> torch.Tensor:
    scale, error = (torch.cat([getattr(codes, name) for codes in clips.codes]) for name in ("scale", "error"))
    inverse_rho = (1 / clips.rho).float() * (1 + 1e-6)
    return torch.cat([torch.stack([scale, error, inverse_rho], 1), inverse_of(clips.gram, clips.modality_mask)], 1)


def _sample(clips: Block) -> tuple[torch.Tensor, Block]:
    count = len(clips.modality_mask)
    starts = torch.arange(0, count, max(_RUN * count // _SAMPLE, _RUN))
    rows = (starts[:, None] + torch.arange(_RUN)).flatten()
    rows = rows[rows < count]
    return rows, clips[rows]


def _stacked(clips: Block) -> torch.Tensor:
    embeds = torch.cat([torch.stack(chunk, dim=1).to(clips.dtype) for chunk in clips.chunks])
    return torch.where(clips.modality_mask[..., None], embeds, 0) if clips.is_partial else embeds


def _multiply(texts: torch.Tensor, vectors: torch.Tensor, out: torch.Tensor) -> None:
    """Inner products (Q, n); vectors of another dtype are converted a few at a time, never all at once."""
    if vectors.dtype == texts.dtype:
        torch.mm(texts, vectors.T, out=out)
        return
    converted = texts.new_empty(_CONVERTED_AT_ONCE, vectors.shape[1])
    for start in range(0, len(vectors), len(converted)):
        some = vectors[start : start + len(converted)]
        torch.mm(texts, converted[: len(some)].copy_(some).T, out=out[:, start : start + len(converted)])


def _check_norms(gram: torch.Tensor, mask: torch.Tensor) -> None:
    """Raise an error unless each clip has a modality, and its vectors have unit norm by the Gram matrix."""
    squares = gram.diagonal(dim1=1, dim2=2)  # (N, M)
    # If a norm may differ from 1 by `NORM_TOLERANCE`, its square may differ by a little more than twice as much.
    is_unit = (((squares - 1).abs() <= 3 * NORM_TOLERANCE) | ~mask).all()
    if not (is_unit and mask.any(1).all() and gram.sum().isfinite()):
        raise DamagedVectorsError


def block_of(parts: Sequence[Part], device: torch.device | None = None) -> Block:
    """
    Lay out a table of clips for ranking; rows are numbered through all parts, including removed ones.

    Args:
        parts (list of [`~gallery.storage.Part`]).
        device (`torch.device`, *optional*): copy the vectors into the memory of a device, without codes. By default,
            they stay in the mapped files.

    Raises:
        DamagedVectorsError: the Gram matrices contain norms that show damaged vectors.
    """
    modalities = modalities_of(parts[0].table) if parts else ()
    chunks, codes, masks, grams, there = [], [], [], [], []
    for part in parts:
        table = part.table
        is_there = torch.ones(len(table), dtype=torch.bool)
        is_there[torch.from_numpy(part.removed)] = False
        there.append(is_there)
        masks.append(presence_of(table))
        for batch in table.to_batches():
            chunks.append(tuple(matrix_of(batch.column(name)) for name in modalities))
            codes.append(codes_of(batch))
            grams.append(matrix_of(batch.column("gram")).unflatten(1, (len(modalities), len(modalities))))
    if not chunks:
        nothing = torch.empty(0, len(modalities), dtype=torch.bool)
        gram = torch.empty(0, len(modalities), len(modalities))
        return Block([], nothing, modalities=modalities, gram=gram, is_there=nothing.any(1))
    mask, gram, is_there = torch.cat(masks), torch.cat(grams), torch.cat(there)
    _check_norms(gram, mask)
    has_codes = bool(codes) and None not in codes
    for some in codes if has_codes else ():
        if not (some.scale.sum() + some.error.sum()).isfinite():
            raise DamagedVectorsError
    if device is not None and device.type != "cpu":
        chunks = [tuple(_joined(column, device) for column in zip(*chunks, strict=True))]
        mask, gram, is_there = mask.to(device), gram.to(device), is_there.to(device)
        has_codes = False
    has_codes = has_codes and multiplies_eight_bits()
    return Block(chunks, mask, modalities=modalities, gram=gram, is_there=is_there, codes=codes if has_codes else None)


def _joined(columns: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Matrices as one in the memory of a device: a search on a GPU mostly waits for calls."""
    whole = columns[0].new_empty((sum(map(len, columns)), columns[0].shape[1]), device=device)
    for column, place in zip(columns, whole.split([len(column) for column in columns]), strict=True):
        place.copy_(column)
    return whole


# Pairs --------------------------------------------------------------------------------------------------------------


@cache
def _warn_of_sparse_tensors() -> None:
    """Have torch warn now, unheard, that sparse tensors are in beta state: it does so once per process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor([0, 0], [], [], size=(1, 1))


def paired_products(
    first: torch.Tensor, second: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor
) -> torch.Tensor:
    """
    Inner products `(P,)` of different pairs of rows of two matrices, without a copy of the rows. Products of equal
    vectors are equal at any position.

    Args:
        first (`torch.Tensor` of shape `(A, D)`), second (`torch.Tensor` of shape `(B, D)`): in one dtype.
        rows (`torch.LongTensor` of shape `(P,)`): of `first`, in ascending order.
        columns (`torch.LongTensor` of shape `(P,)`): of `second`.
    """
    if first.device.type != "cpu":
        return (first[rows] * second[columns]).sum(-1)
    ends = torch.zeros(len(first) + 1, dtype=torch.long)
    ends[1:] = rows.bincount(minlength=len(first)).cumsum(0)
    _warn_of_sparse_tensors()
    values, size = first.new_zeros(len(rows)), (len(first), len(second))
    pattern = torch.sparse_csr_tensor(ends, columns, values, size=size, check_invariants=False)
    return torch.sparse.sampled_addmm(pattern, first, second.T, beta=0).values()


class Best(NamedTuple):
    """The best clips of each query, best first: `scores` `(Q, K)` in float64, -inf where there are fewer, `rows`
    `(Q, K)`, `weights` `(Q, K, M)`, and `num_scored` `(Q,)`, the number of clips that were scored in float64."""

    scores: torch.Tensor
    rows: torch.Tensor
    weights: torch.Tensor
    num_scored: torch.Tensor


class _Chunk(NamedTuple):
    """Some pairs, in the order of their clips: which ones, their queries, their clips, and for each pair which of the
    clips; the clips' vectors, zero where absent."""

    pairs: slice
    queries: torch.Tensor
    rows: torch.Tensor
    clips: torch.Tensor
    vectors: torch.Tensor


def _chunks(block: Block, queries: torch.Tensor, rows: torch.Tensor, dtype: torch.dtype) -> Iterator[_Chunk]:
    """Pairs whose clips are in ascending order, with the vectors of a few clips at a time."""
    unique, places, counts = rows.unique_consecutive(return_inverse=True, return_counts=True)
    ends = [0, *counts.cumsum(0).tolist()]
    size = _CLIPS_AT_ONCE if block.device.type == "cpu" else _ON_A_DEVICE
    for start in range(0, len(unique), size):
        some = unique[start : start + size]
        pairs = slice(ends[start], ends[start + len(some)])
        vectors = block.vectors_at(some, dtype)
        if block.is_partial:
            vectors *= block.modality_mask[some][..., None]
        yield _Chunk(pairs, queries[pairs], some, places[pairs] - start, vectors)


def _cosines(chunk: _Chunk, texts: torch.Tensor, options: ScoreOptions) -> torch.Tensor:
    """The calibrated cosines `(M, P)`, also of absent modalities."""
    columns = [paired_products(column, texts, chunk.clips, chunk.queries) for column in chunk.vectors.unbind(1)]
    return options.calibrated(torch.stack(columns), dim=0)


def centroid_scores(
    cosines: torch.Tensor, mask: torch.Tensor, gram: torch.Tensor, min_norm: float, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Eq. 4 of pairs, from calibrated cosines `(M, P)`, modality masks `(P, M)` and Gram matrices `(P, M, M)`: scores
    `(P,)`, weights `(M, P)` and squared norms of centroids `(P,)`. Sums along short rows would be slow."""
    present = mask.T
    cosines = torch.where(present, cosines, 0)
    weights = softmax_weights(cosines, present, options.query_temperature, dim=0)
    squares = quadratic(weights[:, None], gram)[0]
    return (weights * cosines).sum(0) / squares.clamp(min=min_norm**2).sqrt(), weights, squares


def bounded_scores(
    block: Block, texts: torch.Tensor, queries: torch.Tensor, rows: torch.Tensor, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Score pairs in float32.

    Args:
        block ([`~gallery.exact.blocks.Block`]): the clips.
        texts (`torch.FloatTensor` of shape `(Q, D)`): unit norm.
        queries (`torch.LongTensor` of shape `(P,)`), rows (`torch.LongTensor` of shape `(P,)`): the pairs, in
            ascending order of their clips.
        options ([`~modeling_scalar.scores_scalar.ScoreOptions`]): temperature and calibration.

    Returns:
        Scores `(P,)`, and by how much each may differ from the score in float64; infinity if a float32 Gram matrix has
        too few digits.
    """
    gain = 1.0 if options.modality_scale is None else max(map(abs, options.modality_scale))
    norm = torch.linalg.vector_norm(texts.double(), dim=-1).amax().item() + 1e-6
    rounding = texts.shape[-1] * 2.0**-24 * norm * LONGEST + ROUNDING  # of sums in float32, in any order
    scores, errors = [], []
    for chunk in _chunks(block, queries, rows, torch.float32):
        of_pairs = chunk.rows[chunk.clips]
        mask, rho = block.modality_mask[of_pairs], block.rho[of_pairs].double()
        cosines = _cosines(chunk, texts, options).double()
        score, _, _ = centroid_scores(cosines, mask, block.gram[of_pairs].double(), block.min_norm, options)
        largest = cosines.masked_fill(~mask.T, 0).abs().amax(0)
        error = gain * rounding + ROUNDING * largest.amax().item()
        scores.append(score)
        errors.append(score_error(largest, rho, error, options.query_temperature))
    return torch.cat(scores), torch.cat(errors)


def _gram64(vectors: torch.Tensor) -> torch.Tensor:
    """The inner products `(P, M, M)` of each clip's vectors `(P, M, D)`; equal clips have equal ones."""
    count, number, _ = vectors.shape
    upper = torch.triu_indices(number, number, device=vectors.device)
    first = torch.arange(count, device=vectors.device)[:, None] * number
    flat = vectors.flatten(0, 1)
    products = paired_products(flat, flat, (first + upper[0]).flatten(), (first + upper[1]).flatten())
    gram = vectors.new_empty(count, number, number)
    gram[:, upper[0], upper[1]] = gram[:, upper[1], upper[0]] = products.view(count, -1)
    return gram


def exact_pairs(
    block: Block, texts: torch.Tensor, queries: torch.Tensor, rows: torch.Tensor, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Score pairs in float64. Equal pairs have equal scores at any position.

    Args: as of [`bounded_scores`].

    Returns:
        Scores `(P,)` in float64, and weights `(P, M)` in float32.

    Raises:
        DamagedVectorsError: vectors do not have the inner products with which they were stored.
    """
    scores = torch.empty(len(rows), dtype=torch.float64, device=block.device)
    weights = torch.empty(len(rows), block.modality_mask.shape[1], device=block.device)
    exact_texts = texts.double()
    for chunk in _chunks(block, queries, rows, torch.float64):
        gram = _gram64(chunk.vectors)
        is_wrong = ~((gram - block.gram[chunk.rows]).abs().amax(dim=(1, 2)) <= _GRAM_TOLERANCE)  # nor NaN
        if is_wrong.any():
            raise DamagedVectorsError(chunk.rows[is_wrong].cpu())
        mask, cosines = block.modality_mask[chunk.rows[chunk.clips]], _cosines(chunk, exact_texts, options)
        score, weight, squares = centroid_scores(cosines, mask, gram[chunk.clips], block.min_norm, options)
        short = (squares < _SHORT).nonzero()[:, 0]
        if len(short):
            vectors = chunk.vectors[chunk.clips[short]]
            about = exact_texts[chunk.queries[short]], vectors, mask[short], block.min_norm
            score[short] = exact_scores(*about, options)
        if score.isnan().any():
            raise DamagedVectorsError(chunk.rows[chunk.clips[score.isnan()]].unique().cpu())
        scores[chunk.pairs], weights[chunk.pairs] = score, weight.T.float()
    return scores, weights


def highest_of_pairs(queries: np.ndarray, values: np.ndarray, num_queries: int, k: int) -> np.ndarray:
    """The k highest values of each query, in any order, `(Q, k)`: -inf where there are fewer."""
    order = np.argsort(queries.astype(np.min_scalar_type(num_queries)), kind="stable")  # few bits are sorted fast
    queries = queries[order]
    place = np.arange(len(queries)) - np.searchsorted(queries, queries)
    table = np.full((num_queries, max(k, place.max(initial=0) + 1)), -math.inf, values.dtype)
    table[queries, place] = values[order]
    table.partition(table.shape[1] - k, axis=1)
    return table[:, -k:]


def best_of_pairs(
    queries: torch.Tensor,
    rows: torch.Tensor,
    scores: torch.Tensor,
    num_queries: int,
    k: int,
    weights: torch.Tensor,
) -> Best:
    """The k best of scored pairs, for each query; among equal scores, the first in the gallery comes first."""
    order = np.lexsort((rows.numpy(), -scores.numpy(), queries.numpy()))
    order = torch.from_numpy(order)
    counts = queries.bincount(minlength=num_queries)
    place = torch.arange(len(order)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    order, place = order[place < k], place[place < k]
    found = Best(
        torch.full((num_queries, k), -math.inf, dtype=torch.float64),
        torch.zeros(num_queries, k, dtype=torch.long),
        torch.zeros(num_queries, k, weights.shape[1]),
        counts,
    )
    where = queries[order], place
    found.scores[where], found.rows[where], found.weights[where] = scores[order], rows[order], weights[order]
    return found


__all__ = [
    "LONGEST",
    "ROUNDING",
    "Best",
    "Block",
    "DamagedVectorsError",
    "best_of_pairs",
    "block_of",
    "bounded_scores",
    "centroid_scores",
    "exact_pairs",
    "highest_of_pairs",
    "hull_distance",
    "inverse_of",
    "paired_products",
    "product_error",
    "score_error",
    "spanned_bound",
]
