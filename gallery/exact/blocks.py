"""The clips of a gallery in the form in which they are ranked, in mapped files or in the memory of a device; how large
their scores can be for any weights; and the scores of single pairs of a query and a clip.

[`~scalar_retrieval.gallery.exact.ranking`] says what is bounded, and why. All bounds hold for any number of
modalities. Nothing relies on solving a Gram matrix accurately: bounds follow from whatever weights are found, and
allow for errors.

Shapes: Q queries, N clips, M modalities, D dimensions, P clips or pairs at a time, K hits.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from itertools import product
from typing import Any, NamedTuple

import torch

from scalar_retrieval.modeling_scalar.modalities_scalar import Slice
from scalar_retrieval.modeling_scalar.scores_scalar import (
    MIN_NORM,
    NORM_TOLERANCE,
    Clips,
    ScoreOptions,
    exact_scores,
    quadratic,
    side_by_side,
    softmax_weights,
)

from ..store.codes import Codes, multiplies_eight_bits
from ..store.columns import codes_of, matrix_of, presence_of
from ..store.rows import modalities_of
from ..store.storage import Part

LONGEST = 1.02  # norm of vectors stored as unit vectors
ROUNDING = 1e-6  # error of a few operations in float32 on numbers of about 1
_CANCELLING = 0.1  # distance from 0 below which float32 Gram matrices have too few digits for small errors
_RIDGE = 1e-3  # added to the diagonals of Gram matrices
_INVERTED_AT_ONCE = 2**16  # Gram matrices
_SAMPLE = 2048  # clips of a sample
_LEAST_STRIDE = 16  # a sample is at most one of so many clips
_CONVERTED_AT_ONCE = 512  # half-precision vectors converted to float32 at a time, in cache
_CLIPS_AT_ONCE = 512  # clips whose vectors are copied at a time on a CPU
_ON_A_DEVICE = 16_384  # the same on a GPU
_GRAM_TOLERANCE = 1e-6  # within which sums in another order agree
_SHORT = 0.01  # squared norm of a centroid below which a Gram matrix has too few digits


# Gram matrices ------------------------------------------------------------------------------------------------------


def inverses_of(gram: torch.Tensor, modality_mask: torch.Tensor, min_norm: float) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Invert the Gram matrices G of clips, with a ridge d on their diagonals: A = (G + d I)^-1, which bounds scores.

    For weights w >= 0 that sum to 1 and any c, (w' c)^2 <= c' A c (w' G w + d w' w) by Cauchy and Schwarz, and w' w is
    at most 1. With c = 1, w' G w is at least r^2 = 1 / (1' A 1) - d, so (w' c)^2 / (w' G w) is at most
    (1 + d / r^2) c' A c. With the ridge, this is of use for vectors that are nearly or exactly the same, too.

    Args:
        gram (`torch.Tensor` of shape `(N, M, M)`): inner products, zero where absent, with errors of 6e-8.
        modality_mask (`torch.BoolTensor` of shape `(N, M)`): the modalities of each clip.
        min_norm (`float`): vanishing norms are clamped to this.

    Returns:
        r `(N,)` in float64, a lower bound of the norm of weighted means of the clip's vectors, or the norm that scores
        clamp to; and (1 + d / r^2) A as `torch.FloatTensor` of shape `(N, M, M)`, zero where absent, increased by more
        than the error of [`spanned_bounds`] in float32.
    """
    number = gram.shape[1]
    ridge = _RIDGE * torch.eye(number, dtype=torch.float64, device=gram.device)
    inverse = torch.linalg.inv(gram.double() + ridge)
    # Without the ones that the ridge leaves for absent modalities
    inverse = inverse * (modality_mask[:, :, None] & modality_mask[:, None])
    squares = 1 / inverse.sum((1, 2)).clamp(min=1e-30) - _RIDGE - ROUNDING
    squares = squares.clamp(min=min_norm**2)
    # A sum of M^2 products in float32 has an error of at most (M + 6) 6e-8 of its absolute terms. These are at most
    # the absolute sum of A times the largest c_m^2, and c' A c is at least c_m^2 / (|z_m|^2 + d) for each m.
    error = (number + 6) * 2.0**-24 * LONGEST**2 * inverse.abs().sum((1, 2))
    inverse = inverse * ((1 + (_RIDGE + ROUNDING) / squares) * (1 + 2 * error + ROUNDING))[:, None, None]
    return squares.sqrt(), inverse.float()


def spanned_bounds(upper: Sequence[torch.Tensor], inverse: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """
    Bound the square of scores sum_m w_m c_m / |sum_m w_m z_m| over all weights w >= 0 and all c <= `upper`.

    Args:
        upper (M `torch.FloatTensor` of shape `(Q, B)`): at least 0.
        inverse (`torch.FloatTensor` of shape `(M, M, B)`): of [`inverses_of`].
        total (`torch.FloatTensor` of shape `(B,)`): what is added to the bounds of each clip.

    Returns:
        `torch.FloatTensor` of shape `(Q, B)`.
    """
    # The matrix is symmetric: what is on one side of its diagonal counts twice. Memory is reused, as new memory has to
    # be mapped first.
    row = torch.empty_like(upper[0])
    squares = torch.empty_like(upper[0])
    for m, first in enumerate(upper):
        torch.mul(first, inverse[m, m], out=row)
        for n in range(m + 1, len(upper)):
            torch.addcmul(row, upper[n], inverse[m, n], value=2, out=row)
        total = torch.addcmul(total, first, row, out=squares)
    return squares


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


def largest_calibration(options: ScoreOptions) -> tuple[float, float]:
    """The largest scale and the largest absolute offset of the cosines of any modality."""
    scale = 1.0
    offset = 0.0
    if options.modality_scale is not None:
        scale = max(options.modality_scale)
    if options.modality_offset is not None:
        offset = max(map(abs, options.modality_offset))
    return scale, offset


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
            "Vectors of some clips have changed since they were written, so nothing can be ranked. "
            "`scalar verify GALLERY` names the files, `scalar repair GALLERY` keeps all others."
        )
        self.rows = torch.empty(0, dtype=torch.long) if rows is None else rows


def shared(compute: Callable[["Block"], Any]) -> property:
    """A property that is computed once for all blocks that share their derived values."""
    return property(lambda block: block.cached(compute))


class Block(Clips):
    """
    Clips in the form in which they are ranked and screened. Vectors stay where they are, in chunks; nothing is checked
    or copied.

    Args:
        chunks (list of tuples of M `torch.Tensor` of shape `(n, width)`): unit vectors of each modality, of n clips
            each. They may be on disk; half-precision vectors are converted to float32, a few at a time.
        slices: for each modality, the start and the stop of the components of a query that its vectors have.
        modality_mask (`torch.BoolTensor` of shape `(N, M)`): which vectors count as present.
        modalities (sequence of `str`): the names along the axis M; empty if they have none.
        gram (`torch.Tensor` of shape `(N, M, M)`): inner products of the modalities, zero where absent.
        is_there (`torch.BoolTensor` of shape `(N,)`): clips that are not removed, and may be found.
        codes (list of [`~scalar_retrieval.gallery.store.codes.Codes`], *optional*): the vectors of each chunk in eight
            bits, if the machine can multiply them.
    """

    min_norm = MIN_NORM[torch.float32]  # vanishing norms are clamped to this
    is_partial = False  # whether vectors that count as absent may be nonzero

    def __init__(
        self,
        chunks: Sequence[tuple[torch.Tensor, ...]],
        slices: Sequence[Slice],
        modality_mask: torch.Tensor,
        *,
        modalities: Sequence[str] = (),
        gram: torch.Tensor,
        is_there: torch.Tensor,
        codes: Sequence[Codes] | None = None,
    ):
        self.chunks = list(chunks)
        self.slices = slices
        self.codes = codes
        self.modality_mask = modality_mask
        self.is_there = is_there
        self.modalities = tuple(modalities)
        self._gram = gram
        self._derived = {}

    def _with(self, **changes: Any) -> "Block":
        """These clips with other attributes. Derived values are not shared, unless they are among the changes."""
        block = super()._with(**changes)
        for derived in ("allowed", "_ends"):
            vars(block).pop(derived, None)
        return block

    def __getitem__(self, columns: slice | torch.Tensor) -> "Block":
        """Some of these clips, without their codes; given by indices, they are copied."""
        if isinstance(columns, slice):
            start, stop, _ = columns.indices(len(self))
            chunks = []
            first = 0
            for chunk in self.chunks:
                some = slice(max(start - first, 0), max(stop - first, 0))
                first += len(chunk[0])
                # Chunks before and after the slice are left out, not kept as empty ones.
                if some.start < len(chunk[0]) and some.stop:
                    chunks.append(tuple(vectors[some] for vectors in chunk))
        else:
            if columns.dtype == torch.bool:
                columns = columns.nonzero()[:, 0]
            chunks = [tuple(vectors.to(self.dtype) for vectors in self.taken(self.chunks, columns))]
        return self._with(
            chunks=chunks,
            codes=None,
            modality_mask=self.modality_mask[columns],
            is_there=self.is_there[columns],
            _gram=self.gram[columns],
        )

    @cached_property
    def _ends(self) -> torch.Tensor:
        """For each chunk, the index of the first clip after it."""
        return torch.tensor([len(chunk[0]) for chunk in self.chunks], device=self.device).cumsum(0)

    def taken(self, chunks: Sequence[Sequence[torch.Tensor]], rows: torch.Tensor) -> list[torch.Tensor]:
        """Copy some rows, in ascending order, of M matrices in chunks like those of the clips: M of `(P, width)`."""
        copied = [matrix.new_empty(len(rows), matrix.shape[1]) for matrix in chunks[0]]
        # Where the rows of each chunk stop among all rows
        stops = torch.searchsorted(rows, self._ends).tolist()
        start = 0
        first = 0
        for chunk, end, stop in zip(chunks, self._ends.tolist(), stops, strict=True):
            if start < stop:
                places = rows[start:stop] - first
                for m, matrix in enumerate(chunk):
                    torch.index_select(matrix, 0, places, out=copied[m][start:stop])
            start = stop
            first = end
        return copied

    def vectors_at(self, rows: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Copy the vectors of clips in ascending order, `(P, M, D)`, also of modalities that count as absent."""
        vectors = side_by_side(self.taken(self.chunks, rows), self.slices)
        return vectors.to(self.dtype).to(dtype)  # from float16 to float64, two steps are faster than one

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of computations with these clips: at least float32."""
        return torch.promote_types(self.chunks[0][0].dtype, torch.float32)

    @property
    def device(self) -> torch.device:
        """Where the clips are ranked."""
        return self.modality_mask.device

    @shared
    def modality_embeds(self) -> torch.Tensor:
        """The embeddings in one tensor, `(N, M, D)`, in at least float32."""
        embeds = torch.cat([side_by_side(chunk, self.slices).to(self.dtype) for chunk in self.chunks])
        if self.is_partial:
            return torch.where(self.modality_mask[..., None], embeds, 0)
        return embeds

    def parts(self, text_embeds: torch.Tensor) -> list[torch.Tensor]:
        """For each modality, the components of texts `(Q, D)` that its vectors have, `(Q, width)`."""
        return [text_embeds[:, start:stop].contiguous() for start, stop in self.slices]

    def products(self, text_embeds: torch.Tensor, index: int | None = None) -> torch.Tensor:
        """Inner products `(M, Q, N)` of all modalities, or of one, with texts `(Q, D)`; zero where absent."""
        chosen = range(self.modality_mask.shape[1]) if index is None else [index]
        products = text_embeds.new_empty(len(chosen), len(text_embeds), len(self))
        parts = self.parts(text_embeds)
        first = 0
        for chunk in self.chunks:
            end = first + len(chunk[0])
            for place, m in enumerate(chosen):
                _multiply(parts[m], chunk[m], products[place, :, first:end])
            first = end
        if self.is_partial:
            products *= self.modality_mask.T[chosen][:, None]
        return products

    # Selection ------------------------------------------------------------------------------------------------------

    @cached_property
    def allowed(self) -> torch.Tensor:
        """Clips `(N,)` that are not removed and have a selected modality."""
        return self.is_there & self.modality_mask.any(1)

    def masked(self, modality_mask: torch.Tensor) -> "Block":
        """The same clips with the modalities that a mask `(N, M)` shows; hidden vectors are not zeroed."""
        gram = self.gram * (modality_mask[:, :, None] & modality_mask[:, None])
        return self._with(modality_mask=modality_mask, _gram=gram, is_partial=True)

    def with_modalities(self, modalities: torch.Tensor) -> "Block":
        """The same clips with only the selected modalities `(M,)`."""
        return self.masked(self.modality_mask & modalities.to(self.device))

    def limited(self, allowed: torch.Tensor) -> "Block":
        """The same clips, of which only some `(N,)` may be found; derived values are shared."""
        return self._with(is_there=self.is_there & allowed.to(self.device), _derived=self._derived)

    # Bounds ---------------------------------------------------------------------------------------------------------

    @shared
    def _bounds(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What [`inverses_of`] returns, for some clips at a time: it computes in float64."""
        rho = []
        inverse = []
        grams = self.gram.split(_INVERTED_AT_ONCE)
        for gram, mask in zip(grams, self.modality_mask.split(_INVERTED_AT_ONCE), strict=True):
            norms, matrices = inverses_of(gram, mask, self.min_norm)
            rho.append(norms)
            inverse.append(matrices.permute(1, 2, 0))
        return torch.cat(rho), torch.cat(inverse, dim=2)

    @property
    def rho(self) -> torch.Tensor:
        """A lower bound `(N,)` of the norm of weighted means of a clip's vectors, of [`inverses_of`]."""
        return self._bounds[0]

    @property
    def inverse(self) -> torch.Tensor:
        """What bounds the scores of each clip, `(M, M, N)`, of [`inverses_of`]."""
        return self._bounds[1]

    @shared
    def code_facts(self) -> torch.Tensor:
        """The scale and the error of each clip's codes, `(2, N)`."""
        return torch.cat([torch.stack([some.scale, some.error]) for some in self.codes], dim=1)

    @shared
    def sample(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Clips that are spread evenly over all: their rows `(S,)`, and their M codes `(S, width)`, copied."""
        rows = torch.arange(0, len(self), max(len(self) // _SAMPLE, _LEAST_STRIDE))
        return rows, self.taken([some.codes for some in self.codes], rows)


def _multiply(texts: torch.Tensor, vectors: torch.Tensor, out: torch.Tensor) -> None:
    """Inner products (Q, n); vectors of another dtype are converted a few at a time, never all at once."""
    if vectors.dtype == texts.dtype:
        torch.mm(texts, vectors.T, out=out)
        return
    converted = texts.new_empty(_CONVERTED_AT_ONCE, vectors.shape[1])
    for start in range(0, len(vectors), len(converted)):
        some = vectors[start : start + len(converted)]
        torch.mm(texts, converted[: len(some)].copy_(some).T, out=out[:, start : start + len(converted)])


def block_of(parts: Sequence[Part], slices: Sequence[Slice], device: torch.device | None = None) -> Block:
    """
    Lay out a table of clips for ranking; rows are numbered through all parts, including removed ones.

    Args:
        parts (list of [`~scalar_retrieval.gallery.store.storage.Part`]).
        slices: as of [`Block`].
        device (`torch.device`, *optional*): copy the vectors into the memory of a device, without codes. By default,
            they stay in the mapped files.

    Raises:
        DamagedVectorsError: the Gram matrices contain norms that show damaged vectors.
    """
    modalities = modalities_of(parts[0].table) if parts else ()
    number = len(modalities)
    # Each batch of a table is a chunk, because its vectors are in one piece of a mapped file.
    chunks = []
    codes = []
    mask = [torch.empty(0, number, dtype=torch.bool)]
    gram = [torch.empty(0, number, number)]
    is_there = [torch.empty(0, dtype=torch.bool)]
    for part in parts:
        there = torch.ones(len(part.table), dtype=torch.bool)
        there[torch.from_numpy(part.removed)] = False
        is_there.append(there)
        mask.append(presence_of(part.table))
        for batch in part.table.to_batches():
            chunks.append(tuple(matrix_of(batch.column(name)) for name in modalities))
            codes.append(codes_of(batch))
            gram.append(matrix_of(batch.column("gram")).unflatten(1, (number, number)))
    mask = torch.cat(mask)
    gram = torch.cat(gram)
    is_there = torch.cat(is_there)

    # Bounds rest on what is stored beside the vectors: numbers, and norms of 1. If a norm may differ from 1 by
    # `NORM_TOLERANCE`, its square may differ by a little more than twice as much.
    squares = gram.diagonal(dim1=1, dim2=2)  # (N, M)
    is_unit = ((squares - 1).abs() <= 3 * NORM_TOLERANCE) | ~mask
    facts = gram.sum()
    if None in codes:
        codes = []
    for some in codes:
        facts = facts + some.scale.sum() + some.error.sum()
    if not (is_unit.all() and mask.any(1).all() and facts.isfinite()):
        raise DamagedVectorsError

    if device is not None and device.type != "cpu":
        # One matrix for each modality: a search on a GPU mostly waits for calls.
        if chunks:
            chunks = [tuple(_joined(column, device) for column in zip(*chunks, strict=True))]
        mask = mask.to(device)
        gram = gram.to(device)
        is_there = is_there.to(device)
        codes = []
    if not codes or not all(multiplies_eight_bits(stop - start) for start, stop in slices):
        codes = None
    return Block(chunks, slices, mask, modalities=modalities, gram=gram, is_there=is_there, codes=codes)


def _joined(columns: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Matrices as one in the memory of a device, copied one by one: there may be no memory for all of them here."""
    sizes = [len(column) for column in columns]
    whole = columns[0].new_empty((sum(sizes), columns[0].shape[1]), device=device)
    for column, place in zip(columns, whole.split(sizes), strict=True):
        place.copy_(column)
    return whole


# Pairs --------------------------------------------------------------------------------------------------------------


class Ranking(NamedTuple):
    """The best clips of each query, best first: `scores` `(Q, K)`, -inf where there are fewer, and `rows` `(Q, K)`;
    `num_scored` `(Q,)`, the number of clips scored exactly, while the others cannot be among the best; and `weights`
    `(Q, K, M)`, if the score has weights."""

    scores: torch.Tensor
    rows: torch.Tensor
    num_scored: torch.Tensor
    weights: torch.Tensor | None = None


@cache
def _warn_of_sparse_tensors() -> None:
    """Have torch warn now, unheard, that sparse tensors are in beta state: it does so once per process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor([0, 0], [], [], size=(1, 1))


def _paired_products(
    first: torch.Tensor, second: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor
) -> torch.Tensor:
    """Inner products `(P,)` of pairs of rows of two matrices, without a copy of the rows; `rows`, of the first, are in
    ascending order. Products of equal vectors are equal at any position."""
    if first.device.type != "cpu":
        return (first[rows] * second[columns]).sum(-1)
    # A product of sparse rows computes these products alone. `ends` is where the columns of each row end.
    ends = torch.zeros(len(first) + 1, dtype=torch.long)
    ends[1:] = rows.bincount(minlength=len(first)).cumsum(0)
    _warn_of_sparse_tensors()
    values = first.new_zeros(len(rows))
    size = len(first), len(second)
    pattern = torch.sparse_csr_tensor(ends, columns, values, size=size, check_invariants=False)
    return torch.sparse.sampled_addmm(pattern, first, second.T, beta=0).values()


class _Some(NamedTuple):
    """Some clips and all pairs with them: the clips and their vectors, M of `(C, width)`, zero where absent; for each
    pair, which of the clips it has, and its products with the text `(P, M)`."""

    clips: torch.Tensor
    vectors: list[torch.Tensor]
    places: torch.Tensor
    products: torch.Tensor


def _multiplied(block: Block, texts: torch.Tensor, queries: torch.Tensor, rows: torch.Tensor) -> Iterator[_Some]:
    """Multiply pairs, in ascending order of their clips, in the precision of the texts, with a few clips at a time."""
    unique, places, counts = rows.unique_consecutive(return_inverse=True, return_counts=True)
    ends = [0, *counts.cumsum(0).tolist()]
    parts = block.parts(texts)
    # Copies of few clips stay in the cache of a CPU; a GPU is faster with many.
    size = _CLIPS_AT_ONCE if block.device.type == "cpu" else _ON_A_DEVICE
    for start in range(0, len(unique), size):
        clips = unique[start : start + size]
        pairs = slice(ends[start], ends[start + len(clips)])
        of_pairs = places[pairs] - start
        vectors = []
        products = []
        for m, column in enumerate(block.taken(block.chunks, clips)):
            column = column.to(texts.dtype)
            if block.is_partial:
                column *= block.modality_mask[clips, m, None]
            products.append(_paired_products(column, parts[m], of_pairs, queries[pairs]))
            vectors.append(column)
        yield _Some(clips, vectors, of_pairs, torch.stack(products, dim=1))


def bounded_scores(
    block: Block, texts: torch.Tensor, queries: torch.Tensor, rows: torch.Tensor, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Bound the scores of pairs, by computing them from cosines in float32.

    Args:
        block ([`~scalar_retrieval.gallery.exact.blocks.Block`]): the clips.
        texts (`torch.FloatTensor` of shape `(Q, D)`): unit norm.
        queries (`torch.LongTensor` of shape `(P,)`), rows (`torch.LongTensor` of shape `(P,)`): the pairs, in
            ascending order of their clips.
        options ([`~scalar_retrieval.modeling_scalar.scores_scalar.ScoreOptions`]): temperature and calibration.

    Returns:
        Lower and upper bounds `(P,)` of the scores in float64; infinite if a float32 Gram matrix has too few digits,
        or vectors are damaged.
    """
    products = torch.cat([some.products for some in _multiplied(block, texts, queries, rows)])
    # Eq. 4, with modalities as the first axis: sums along short rows are slow.
    present = block.modality_mask[rows].T
    cosines = torch.where(present, options.calibrated(products.T.double(), dim=0), 0)
    weights = softmax_weights(cosines, present, options.query_temperature, dim=0)
    squares = quadratic(weights[:, None], block.gram[rows].double())[0]
    scores = (weights * cosines).sum(0) / squares.clamp(min=block.min_norm**2).sqrt()
    # Errors of the products, of the calibration, and then of the scores
    gain, _ = largest_calibration(options)
    norm = torch.linalg.vector_norm(texts.double(), dim=-1).amax().item() + 1e-6
    largest = cosines.abs().amax(0)
    error = gain * product_error(texts.shape[-1], norm, texts) + ROUNDING * largest
    errors = score_error(largest, block.rho[rows], error, options.query_temperature)
    lower = (scores - errors).nan_to_num(-math.inf)
    upper = (scores + errors).nan_to_num(math.inf, math.inf, -math.inf)
    return lower, upper


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
    texts = texts.double()
    mask = block.modality_mask[rows]
    products = []
    grams = []
    for some in _multiplied(block, texts, queries, rows):
        # Products and sums, not matrix products, whose order of additions depends on the number of clips.
        # Vectors of different spaces have the product 0.
        gram = texts.new_zeros(len(some.clips), *block.gram.shape[1:])
        for one, other in product(range(len(block.slices)), repeat=2):
            if block.slices[one] == block.slices[other]:
                gram[:, one, other] = (some.vectors[one] * some.vectors[other]).sum(-1)
        # Bounds rest on the stored Gram matrix, so vectors that have another one were screened wrongly.
        is_wrong = ~((gram - block.gram[some.clips]).abs().flatten(1).amax(1) <= _GRAM_TOLERANCE)  # nor NaN
        if is_wrong.any():
            raise DamagedVectorsError(some.clips[is_wrong].cpu())
        products.append(some.products)
        grams.append(gram[some.places])
    # Eq. 4, with pairs as the first axis: sums along rows do not depend on where a row is.
    cosines = torch.where(mask, options.calibrated(torch.cat(products), dim=1), 0)
    weights = softmax_weights(cosines, mask, options.query_temperature, dim=1)
    squares = (weights[:, :, None] * weights[:, None] * torch.cat(grams)).flatten(1).sum(1)
    scores = (weights * cosines).sum(1) / squares.clamp(min=block.min_norm**2).sqrt()
    # Where a centroid is short, its norm has too few digits: it is computed from the vectors.
    short = (squares < _SHORT).nonzero()[:, 0]
    if len(short):
        vectors = block.vectors_at(rows[short], torch.float64)
        scores[short] = exact_scores(texts[queries[short]], vectors, mask[short], block.min_norm, options)
    if scores.isnan().any():
        raise DamagedVectorsError(rows[scores.isnan()].unique().cpu())
    return scores, weights.float()


def exact_best(
    block: Block, texts: torch.Tensor, upper: torch.Tensor, rows: torch.Tensor, k: int, options: ScoreOptions
) -> Ranking:
    """The k best of some clips for each query, on the CPU; equal scores in gallery order. `upper` and `rows` `(Q, C)`
    are the clips, and bounds of their scores, which are -inf where there is no clip; C is at least k."""
    # A stable sort by score then leaves equal scores in gallery order.
    rows, order = rows.sort(dim=1)
    is_clip = (upper != -math.inf).gather(1, order)
    queries, columns = is_clip.nonzero(as_tuple=True)
    # Pairs are scored clip by clip, so that a clip's vectors are read once for all queries.
    order = rows[queries, columns].argsort(stable=True)
    queries = queries[order]
    columns = columns[order]
    scores = torch.full(rows.shape, -math.inf, dtype=torch.float64, device=rows.device)
    weights = torch.zeros(*rows.shape, block.modality_mask.shape[1], device=rows.device)
    if len(order):
        where = queries, columns
        scores[where], weights[where] = exact_pairs(block, texts, queries, rows[where], options)
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    scores = scores[:, :k]
    order = order[:, :k]
    weights = weights.take_along_dim(order[..., None], dim=1)
    return Ranking(scores.cpu(), rows.gather(1, order).cpu(), is_clip.sum(1).cpu(), weights.cpu())


__all__ = [
    "LONGEST",
    "ROUNDING",
    "Block",
    "DamagedVectorsError",
    "Ranking",
    "block_of",
    "bounded_scores",
    "exact_best",
    "exact_pairs",
    "inverses_of",
    "largest_calibration",
    "product_error",
    "score_error",
    "spanned_bounds",
]
