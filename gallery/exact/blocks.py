"""Blocks of clips, each of which lies in one place: mapped files as they are, or the memory of a device.

Shapes: N clips of a block.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import torch

from gallery.columns import CONCAT_COLUMNS, NORM_TOLERANCE, codes_of, matrix_of, presence_of, stacked
from gallery.exact.clips import StoredClips
from gallery.exact.codes import Codes, multiplies_eight_bits
from gallery.exact.cone import hull_distance, inverse_of
from gallery.storage import Part
from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.scores_scalar import MIN_NORM

_MIN_NORM = MIN_NORM[torch.float32]


@dataclass(eq=False)
class Block:
    """
    Clips that lie in one place, as they are ranked and screened.

    Args:
        start (`int`): the number of the first.
        clips ([`~gallery.exact.clips.StoredClips`]): their vectors, presence and Gram matrices. Vectors that are said
            to be absent are not looked at.
        is_there (`torch.BoolTensor` of shape `(N,)`): which are not removed, and may be found.
        codes ([`~gallery.exact.codes.Codes`], *optional*): their vectors in eight bits, where the machine multiplies
            them.
    """

    start: int
    clips: StoredClips
    is_there: torch.Tensor
    codes: Codes | None = None

    @cached_property
    def allowed(self) -> torch.Tensor:
        """Which clips `(N,)` are there and have a modality that is looked at."""
        return self.is_there & self.clips.modality_mask.any(1)

    @cached_property
    def num_there(self) -> int:
        """How many clips are there."""
        return int(self.is_there.sum())

    @property
    def device(self) -> torch.device:
        """Where the clips are ranked."""
        return self.clips.modality_mask.device

    def looking_at(self, modalities: torch.Tensor) -> "Block":
        """The same clips with some modalities `(3,)` alone; vectors of the others are where they were."""
        fewer = self.clips.with_mask(self.clips.modality_mask & modalities.to(self.device))
        return Block(self.start, fewer, self.is_there, self.codes)

    def limited(self, allowed: torch.Tensor) -> "Block":
        """The same clips, of which only some `(N,)` may be found; what was computed of them is shared."""
        limited = copy(self)
        limited.is_there = self.is_there & allowed.to(self.device)
        for derived in ("allowed", "num_there"):
            vars(limited).pop(derived, None)
        return limited

    @cached_property
    def rho(self) -> torch.Tensor:
        """No weighted mean of a clip's vectors is shorter, `(N,)`, or as short as what scores are clamped to."""
        squares = hull_distance(self.clips.gram, self.clips.modality_mask).square() - 1e-6  # which rounding may add
        return squares.clamp(min=self.clips.min_norm**2).sqrt()

    @cached_property
    def inverse_rho(self) -> torch.Tensor:
        """At least 1 / `rho`, `(N,)`, in float32."""
        return (1 / self.rho).float() * (1 + 1e-6)

    @cached_property
    def inverse(self) -> torch.Tensor:
        """See [`~gallery.exact.cone.inverse_of`], `(N, 6)`."""
        return inverse_of(self.clips.gram, self.clips.modality_mask)


def damaged() -> ValueError:
    """The error of vectors that are not as they were written."""
    return ValueError(
        "The vectors of some clips of the gallery are not as they were written, so nothing can be ranked. "
        "`scalar verify GALLERY` names the files, `scalar repair GALLERY` keeps the others."
    )


def _check_norms(gram: torch.Tensor, mask: torch.Tensor) -> None:
    """Raise a ValueError unless the vectors that a clip has are of unit norm by its Gram matrix, and it has one."""
    squares = gram.diagonal(dim1=1, dim2=2)  # (N, 3)
    # Of a norm that may miss 1 by `NORM_TOLERANCE`, the square may miss it by a little more than twice as much.
    is_unit = (((squares - 1).abs() <= 3 * NORM_TOLERANCE) | ~mask).all()
    if not (is_unit and mask.any(1).all() and gram.sum().isfinite()):
        raise damaged()


def blocks_of(parts: Sequence[Part]) -> list[Block]:
    """
    Lay a table of clips out for ranking; rows are numbered through all parts, removed ones too.

    Raises:
        ValueError: norms, as far as the Gram matrices tell them, show that the vectors are damaged.
    """
    blocks, start = [], 0
    for part in parts:
        is_there = torch.ones(len(part), dtype=torch.bool).index_fill_(0, torch.from_numpy(part.removed), False)
        first = 0
        for batch in part.table.to_batches():
            rows = part.table.slice(first, len(batch))
            vectors = tuple(matrix_of(batch.column(name)) for name in MODALITIES)
            mask, gram = presence_of(rows), matrix_of(batch.column("gram"))
            gram = gram.unflatten(1, (len(MODALITIES), len(MODALITIES)))
            _check_norms(gram, mask)
            clips = StoredClips(
                vectors,
                mask,
                stacked(rows, CONCAT_COLUMNS) if CONCAT_COLUMNS[0] in rows.column_names else None,
                min_norm=_MIN_NORM,
                gram=gram,
            )
            codes = codes_of(batch)
            if codes is not None and not (codes.scale.sum() + codes.error.sum()).isfinite():
                raise damaged()
            codes = codes if multiplies_eight_bits() else None
            blocks.append(Block(start + first, clips, is_there[first : first + len(batch)], codes))
            first += len(batch)
        start += len(part.table)
    return blocks


def in_one_block(blocks: Sequence[Block], device: torch.device) -> list[Block]:
    """The same clips in the memory of a device, without their codes. Every block costs as many calls as all clips
    would, and calls are what a search on a GPU waits for."""
    if not blocks:
        return []
    clips = StoredClips.joined([block.clips for block in blocks], device)
    return [Block(0, clips, torch.cat([block.is_there for block in blocks]).to(device))]


__all__ = ["Block", "blocks_of", "damaged", "in_one_block"]
