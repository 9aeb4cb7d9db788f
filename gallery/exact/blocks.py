"""Blocks of clips, each stored in one place: in mapped files, unchanged, or in the memory of a device.

Shapes: N clips of a block, M modalities, D dimensions.
"""

from collections.abc import Sequence
from copy import copy
from functools import cached_property

import torch

from gallery.columns import (
    codes_of,
    matrix_of,
    modalities_of,
    presence_of,
)
from gallery.exact.codes import Codes, multiplies_eight_bits
from gallery.exact.cone import hull_distance, inverse_of
from gallery.storage import Part
from modeling_scalar.scores_scalar import MIN_NORM, NORM_TOLERANCE, Clips

_MIN_NORM = MIN_NORM[torch.float32]
_CONVERTED_AT_ONCE = 512  # half-precision vectors converted to float32 at a time, in cache


class Block(Clips):
    """
    Clips in one place, in the form in which they are ranked and screened: one matrix of vectors per modality, possibly
    in half precision. Nothing is checked or copied.

    Args:
        vectors (one `torch.Tensor` of shape `(N, D)` per modality): unit norm. They may be on disk; half-precision
            vectors are converted to float32, a few at a time.
        modality_mask (`torch.BoolTensor` of shape `(N, M)`): which vectors count as present.
        modalities (sequence of `str`): the names along the axis M; empty if they have none.
        gram (`torch.Tensor` of shape `(N, M, M)`): inner products of the modalities, zero where absent.
        is_there (`torch.BoolTensor` of shape `(N,)`): clips that are not removed, and may be found.
        codes ([`~gallery.exact.codes.Codes`], *optional*): their vectors in eight bits, if the machine can multiply
            them.
        start (`int`): index of the first clip.
        min_norm (`float`): vanishing norms are clamped to this.
        is_partial (`bool`): whether vectors that count as absent may be nonzero.
    """

    def __init__(
        self,
        vectors: Sequence[torch.Tensor],
        modality_mask: torch.Tensor,
        *,
        modalities: Sequence[str] = (),
        gram: torch.Tensor,
        is_there: torch.Tensor,
        codes: Codes | None = None,
        start: int = 0,
        min_norm: float = _MIN_NORM,
        is_partial: bool = False,
    ):
        self.vectors, self.modality_mask = tuple(vectors), modality_mask
        self.start, self.is_there, self.codes = start, is_there, codes
        self.min_norm, self.modalities, self.is_partial = min_norm, tuple(modalities), is_partial
        self._gram, self._derived = gram, {}

    def __getitem__(self, columns: slice | torch.Tensor) -> "Block":
        """Some of these clips, without their codes."""
        return Block(
            [vectors[columns] for vectors in self.vectors],
            self.modality_mask[columns],
            modalities=self.modalities,
            gram=self.gram[columns],
            is_there=self.is_there[columns],
            min_norm=self.min_norm,
            is_partial=self.is_partial,
        )

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of computations with these clips: at least float32."""
        return torch.promote_types(self.vectors[0].dtype, torch.float32)

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
        some = slice(index, None if index is None else index + 1)
        products = torch.stack([_product(text_embeds, vectors) for vectors in self.vectors[some]])
        return products * self.modality_mask.T[some, None] if self.is_partial else products

    # Selection ------------------------------------------------------------------------------------------------------

    @cached_property
    def allowed(self) -> torch.Tensor:
        """Clips `(N,)` that are not removed and have a selected modality."""
        return self.is_there & self.modality_mask.any(1)

    @cached_property
    def num_there(self) -> int:
        """How many clips are not removed."""
        return int(self.is_there.sum())

    def looking_at(self, modalities: torch.Tensor) -> "Block":
        """The same clips with only the selected modalities `(M,)`."""
        return self.shown(self.modality_mask & modalities.to(self.device))

    def shown(self, modality_mask: torch.Tensor) -> "Block":
        """The same clips with the modalities that a mask `(N, M)` shows; hidden vectors are not zeroed."""
        return Block(
            self.vectors,
            modality_mask,
            modalities=self.modalities,
            gram=self.gram * (modality_mask[:, :, None] & modality_mask[:, None]),
            is_there=self.is_there,
            codes=self.codes,
            start=self.start,
            min_norm=self.min_norm,
            is_partial=True,
        )

    def limited(self, allowed: torch.Tensor) -> "Block":
        """The same clips, of which only some `(N,)` may be found; derived values are shared."""
        limited = copy(self)
        limited.is_there = self.is_there & allowed.to(self.device)
        for derived in ("allowed", "num_there"):
            vars(limited).pop(derived, None)
        return limited

    # Bounds ---------------------------------------------------------------------------------------------------------

    @cached_property
    def rho(self) -> torch.Tensor:
        """A lower bound `(N,)` of the norm of weighted means of a clip's vectors, or the norm that scores clamp to."""
        squares = hull_distance(self.gram, self.modality_mask).square() - 1e-6  # rounding may add this
        return squares.clamp(min=self.min_norm**2).sqrt()

    @cached_property
    def inverse_rho(self) -> torch.Tensor:
        """An upper bound of 1 / `rho`, `(N,)`, in float32."""
        return (1 / self.rho).float() * (1 + 1e-6)

    @cached_property
    def inverse(self) -> torch.Tensor:
        """See [`~gallery.exact.cone.inverse_of`], `(N, M (M + 1) / 2)`."""
        return inverse_of(self.gram, self.modality_mask)


def _product(texts: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Inner products (Q, N); vectors of another dtype are converted a few at a time, never all at once."""
    if vectors.dtype == texts.dtype:
        return texts @ vectors.T
    products = texts.new_empty(len(texts), len(vectors))
    converted = texts.new_empty(_CONVERTED_AT_ONCE, vectors.shape[1])
    for start in range(0, len(vectors), len(converted)):
        block = vectors[start : start + len(converted)]
        torch.mm(texts, converted[: len(block)].copy_(block).T, out=products[:, start : start + len(converted)])
    return products


def _stacked(clips: Block) -> torch.Tensor:
    embeds = torch.stack(clips.vectors, dim=1).to(clips.dtype)
    return torch.where(clips.modality_mask[..., None], embeds, 0) if clips.is_partial else embeds


def damaged() -> ValueError:
    """The error raised if vectors are not as they were written."""
    return ValueError(
        "The vectors of some clips of the gallery are not as they were written, so nothing can be ranked. "
        "`scalar verify GALLERY` names the files, `scalar repair GALLERY` keeps all others."
    )


def _check_norms(gram: torch.Tensor, mask: torch.Tensor) -> None:
    """Raise a ValueError unless each clip has a modality, and its vectors have unit norm by the Gram matrix."""
    squares = gram.diagonal(dim1=1, dim2=2)  # (N, M)
    # If a norm may differ from 1 by `NORM_TOLERANCE`, its square may differ by a little more than twice as much.
    is_unit = (((squares - 1).abs() <= 3 * NORM_TOLERANCE) | ~mask).all()
    if not (is_unit and mask.any(1).all() and gram.sum().isfinite()):
        raise damaged()


def blocks_of(parts: Sequence[Part]) -> list[Block]:
    """
    Lay out a table of clips for ranking; rows are numbered through all parts, including removed ones.

    Raises:
        ValueError: the Gram matrices contain norms that show damaged vectors.
    """
    blocks, start = [], 0
    for part in parts:
        table, first, modalities = part.table, 0, modalities_of(part.table)
        is_there = torch.ones(len(table), dtype=torch.bool).index_fill_(0, torch.from_numpy(part.removed), False)
        for batch in table.to_batches():
            rows, stop = table.slice(first, len(batch)), first + len(batch)
            vectors = tuple(matrix_of(batch.column(name)) for name in modalities)
            mask, gram = presence_of(rows), matrix_of(batch.column("gram"))
            gram = gram.unflatten(1, (len(modalities), len(modalities)))
            _check_norms(gram, mask)
            codes = codes_of(batch)
            if codes is not None and not (codes.scale.sum() + codes.error.sum()).isfinite():
                raise damaged()
            block = Block(
                vectors, mask, modalities=modalities, gram=gram, is_there=is_there[first:stop],
                codes=codes if multiplies_eight_bits() else None, start=start + first,
            )  # fmt: skip
            blocks.append(block)
            first = stop
        start += len(table)
    return blocks


def in_one_block(blocks: Sequence[Block], device: torch.device) -> Block:
    """The same clips in the memory of a device, without codes. Each block costs as many calls as all clips together
    would, and a search on a GPU mostly waits for calls."""

    def join(columns: Sequence[torch.Tensor]) -> torch.Tensor:
        whole = columns[0].new_empty((sum(map(len, columns)), *columns[0].shape[1:]), device=device)
        for column, place in zip(columns, whole.split([len(column) for column in columns]), strict=True):
            place.copy_(column)
        return whole

    return Block(
        [join(columns) for columns in zip(*(block.vectors for block in blocks), strict=True)],
        join([block.modality_mask for block in blocks]),
        modalities=blocks[0].modalities,
        gram=join([block.gram for block in blocks]),
        is_there=join([block.is_there for block in blocks]),
        min_norm=blocks[0].min_norm,
        is_partial=any(block.is_partial for block in blocks),
    )


__all__ = ["Block", "blocks_of", "damaged", "in_one_block"]
