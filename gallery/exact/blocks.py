"""The clips of a gallery in the form in which they are ranked: in mapped files, or in the memory of a device.

Shapes: N clips, M modalities, D dimensions, P clips or pairs at a time.
"""

import warnings
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cache, cached_property

import torch

from gallery.columns import codes_of, matrix_of, modalities_of, presence_of
from gallery.exact.codes import Codes, multiplies_eight_bits
from gallery.exact.cone import hull_distance, inverse_of
from gallery.storage import Part
from modeling_scalar.scores_scalar import MIN_NORM, NORM_TOLERANCE, Clips

_MIN_NORM = MIN_NORM[torch.float32]
_SAMPLE, _RUN = 1024, 64  # clips of a sample, in runs
_CONVERTED_AT_ONCE = 512  # half-precision vectors converted to float32 at a time, in cache


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
        self._gram, self._derived = gram, {}

    def pieces(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, slice, int]]:
        """The chunks from one clip to another: the chunk, which of its clips, and the index of the first of these."""
        stop, first = len(self) if stop is None else min(stop, len(self)), 0
        for number, chunk in enumerate(self.chunks):
            end = first + len(chunk[0])
            if first < stop and end > start:
                some = slice(max(start - first, 0), min(stop, end) - first)
                yield number, some, first + some.start
            first = end

    def __getitem__(self, columns: slice | torch.Tensor) -> "Block":
        """Some of these clips, without their codes; given by indices, they are copied."""
        if isinstance(columns, slice):
            start, stop, _ = columns.indices(len(self))
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
        products = text_embeds.new_empty(len(chosen), len(text_embeds), len(self))
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
        1 / `rho`, and [`~gallery.exact.cone.inverse_of`]."""
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
    starts = torch.arange(0, len(clips), max(_RUN * len(clips) // _SAMPLE, _RUN))
    rows = (starts[:, None] + torch.arange(_RUN)).flatten()
    rows = rows[rows < len(clips)]
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
        is_there = torch.ones(len(part), dtype=torch.bool)
        is_there[torch.from_numpy(part.removed)] = False
        there.append(is_there)
        masks.append(presence_of(part.table))
        for batch in part.table.to_batches():
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


# Products of pairs --------------------------------------------------------------------------------------------------


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


__all__ = ["Block", "DamagedVectorsError", "block_of", "paired_products"]
