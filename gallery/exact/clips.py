"""A block of clips as they are stored: one matrix of vectors for each modality, in half precision if need be."""

from collections.abc import Sequence

import torch

from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.scores_scalar import Clips

_CONVERTED_AT_ONCE = 512  # half-precision vectors that are read in float32 at a time, in cache


class StoredClips(Clips):
    """
    What scores read of stored clips; nothing is checked or copied.

    Args:
        vectors (one `torch.Tensor` of shape `(N, D)` for each modality): unit norm. They may lie on disk; those in
            half precision are read in float32, a few at a time.
        modality_mask (`torch.BoolTensor` of shape `(N, M)`): which count as present.
        concat_embeds (`torch.Tensor` of shape `(N, 3, D)`, *optional*): of concatenation heads.
        min_norm (`float`): what a vanishing norm is clamped to.
        gram (`torch.Tensor` of shape `(N, M, M)`): inner products of the modalities, zero where absent.
        is_partial (`bool`): whether vectors that count as absent may be others than zero.
    """

    def __init__(
        self,
        vectors: Sequence[torch.Tensor],
        modality_mask: torch.Tensor,
        concat_embeds: torch.Tensor | None = None,
        *,
        min_norm: float,
        gram: torch.Tensor,
        is_partial: bool = False,
    ):
        self.vectors, self.modality_mask, self.concat_embeds = tuple(vectors), modality_mask, concat_embeds
        self.min_norm, self.modalities, self.is_partial = min_norm, MODALITIES, is_partial
        self._gram, self._exact_gram, self._derived = gram, None, {}

    @property
    def dtype(self) -> torch.dtype:
        """Of what is computed of these clips: float32 at least."""
        return torch.promote_types(self.vectors[0].dtype, torch.float32)

    @property
    def modality_embeds(self) -> torch.Tensor:
        """The embeddings in one tensor, `(N, M, D)`, in float32 at least."""
        return self.once(_stacked)

    @classmethod
    def joined(cls, clips: Sequence["StoredClips"], device: torch.device) -> "StoredClips":
        """Copy clips that lie in several places into one, in the memory of a device."""

        def join(columns: Sequence[torch.Tensor]) -> torch.Tensor:
            whole = columns[0].new_empty((sum(map(len, columns)), *columns[0].shape[1:]), device=device)
            for column, place in zip(columns, whole.split([len(column) for column in columns]), strict=True):
                place.copy_(column)
            return whole

        heads = [some.concat_embeds for some in clips]
        return cls(
            [join(columns) for columns in zip(*(some.vectors for some in clips), strict=True)],
            join([some.modality_mask for some in clips]),
            None if any(head is None for head in heads) else join(heads),
            min_norm=clips[0].min_norm,
            gram=join([some.gram for some in clips]),
            is_partial=any(some.is_partial for some in clips),
        )

    def __getitem__(self, columns: slice | torch.Tensor) -> "StoredClips":
        return StoredClips(
            [vectors[columns] for vectors in self.vectors],
            self.modality_mask[columns],
            None if self.concat_embeds is None else self.concat_embeds[columns],
            min_norm=self.min_norm,
            gram=self._gram[columns],
            is_partial=self.is_partial,
        )

    def with_mask(self, modality_mask: torch.Tensor) -> "StoredClips":
        """The same clips with fewer modalities `(N, M)`; the vectors of the others stay where they are."""
        gram = self._gram * (modality_mask[:, :, None] & modality_mask[:, None])
        return StoredClips(
            self.vectors, modality_mask, self.concat_embeds, min_norm=self.min_norm, gram=gram, is_partial=True
        )

    def products(self, text_embeds: torch.Tensor, index: int | None = None) -> torch.Tensor:
        """Inner products `(M, Q, N)` of the modalities, or of one, with texts `(Q, D)` or `(Q, M, D)`, zero where
        absent."""
        some = slice(index, None if index is None else index + 1)
        vectors = self.vectors[some]
        texts = text_embeds.unbind(1)[some] if text_embeds.ndim == 3 else [text_embeds] * len(vectors)
        products = torch.stack(list(map(_product, texts, vectors)))
        return products * self.modality_mask.T[some, None] if self.is_partial else products


def _product(texts: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Inner products (Q, N); vectors of another dtype are converted a few at a time and never all."""
    if vectors.dtype == texts.dtype:
        return texts @ vectors.T
    products = texts.new_empty(len(texts), len(vectors))
    converted = texts.new_empty(_CONVERTED_AT_ONCE, vectors.shape[1])
    for start in range(0, len(vectors), len(converted)):
        block = vectors[start : start + len(converted)]
        torch.mm(texts, converted[: len(block)].copy_(block).T, out=products[:, start : start + len(converted)])
    return products


def _stacked(clips: StoredClips) -> torch.Tensor:
    embeds = torch.stack(clips.vectors, dim=1).to(clips.dtype)
    return torch.where(clips.modality_mask[..., None], embeds, 0) if clips.is_partial else embeds


__all__ = ["StoredClips"]
