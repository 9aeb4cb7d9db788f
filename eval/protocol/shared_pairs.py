"""All pairs of texts and clips, cached for several scores, masks and options: what evaluation computes once."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from modeling_scalar.scores_scalar import Clips, Pairs, make_pairs


class SharedPairs(Pairs):
    """
    Pairs that compute their products, and whatever else several scores or masks share, once and in float64. The dtype
    of scores is that of [`~modeling_scalar.scores_scalar.retrieval_scores`].

    The arguments are those of [`~modeling_scalar.scores_scalar.make_pairs`].
    """

    def __init__(self, *embeds: Any, **options: Any):
        given = make_pairs(*embeds, **options)
        pairs = given.exact
        super().__init__(pairs.text_embeds, pairs.clips, pairs.options, pairs.similarities)
        self._dtype = given.text_embeds.dtype
        self._unmasked, self._ranks, self._eigenvalues = pairs, {}, None
        self._replaced = frozenset()

    def _changed(self, *pairs: Any, replaced: Collection[int] = ()) -> "SharedPairs":
        changed = object.__new__(SharedPairs)
        Pairs.__init__(changed, *pairs)
        changed._unmasked, changed._ranks, changed._eigenvalues = self._unmasked, self._ranks, None
        changed._dtype = self._dtype
        changed._replaced = self._replaced.union(replaced)
        return changed

    def masked(self, modality_mask: torch.Tensor, replaced: Mapping[int, torch.Tensor] | None = None) -> "SharedPairs":
        """Return the same pairs with only the modalities in `modality_mask` `(V, M)` of each clip, and with other
        vectors `(V, D)` for some modalities, by index."""
        clips, similarities = self.clips.shown(modality_mask), self.similarities * modality_mask.T[:, None]
        for index, vectors in (replaced or {}).items():
            embeds = clips.modality_embeds
            embeds[:, index] = vectors * modality_mask[:, index, None]
            similarities[index] = self.text_embeds @ embeds[:, index].T
            named = {"min_norm": clips.min_norm, "modalities": clips.modalities}
            clips = Clips(embeds, modality_mask, clips.concat_embeds, **named)
        return self._changed(self.text_embeds, clips, self.options, similarities, replaced=replaced or ())

    def with_options(self, **changes: Any) -> "SharedPairs":
        """Return the same pairs with other values of some [`~modeling_scalar.scores_scalar.ScoreOptions`]."""
        return self._changed(self.text_embeds, self.clips, replace(self.options, **changes), self.similarities)

    def text_ranks(self, index: int) -> torch.Tensor:
        """As [`Pairs.text_ranks`], once for all masks: a clip's missing modalities change no rank by the others."""
        if index in self._replaced:
            return super().text_ranks(index)
        if index not in self._ranks:
            self._ranks[index] = self._unmasked.text_ranks(index)
        return self._ranks[index]

    def scores(self, method: str) -> torch.Tensor:
        """As [`Pairs.scores`]; PMRL's two scores share their eigenvalues, which cost more than the others."""
        if method == "pmrl" and self._eigenvalues is not None:
            return self._eigenvalues / (1 + self.clips.arity)
        scores = super().scores(method).to(self._dtype)
        if method == "pmrl_raw":
            self._eigenvalues = scores
        return scores


__all__ = ["SharedPairs"]
