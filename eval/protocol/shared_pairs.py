"""Every text with every clip, kept for several scores, masks and options: what evaluation computes once."""

from dataclasses import replace
from typing import Any

import torch

from modeling_scalar.scores_scalar import Clips, Pairs, make_pairs


class SharedPairs(Pairs):
    """
    Pairs whose products are computed once.

    The arguments are those of [`~modeling_scalar.scores_scalar.make_pairs`].
    """

    def __init__(self, *embeds: Any, **options: Any):
        pairs = make_pairs(*embeds, **options)
        super().__init__(pairs.text_embeds, pairs.clips, pairs.options, pairs.similarities)

    def _changed(self, clips: Clips, similarities: torch.Tensor, **options: Any) -> "SharedPairs":
        changed = object.__new__(SharedPairs)
        Pairs.__init__(changed, self.text_embeds, clips, replace(self.options, **options), similarities)
        return changed

    def masked(self, modality_mask: torch.Tensor) -> "SharedPairs":
        """The same pairs when only what `modality_mask` `(V, M)` leaves of each clip is there."""
        clips = self.clips
        both = modality_mask[:, :, None] & modality_mask[:, None]
        shown = Clips(
            clips.modality_embeds * modality_mask[..., None],
            modality_mask,
            clips.concat_embeds,
            min_norm=clips.min_norm,
            modalities=clips.modalities,
            gram=clips.gram * both,
            exact_gram=clips.exact_gram * both,
        )
        return self._changed(shown, self.similarities * modality_mask.T[:, None])

    def with_options(self, **changes: Any) -> "SharedPairs":
        """The same pairs with other values of some [`~modeling_scalar.scores_scalar.ScoreOptions`]."""
        return self._changed(self.clips, self.similarities, **changes)


__all__ = ["SharedPairs"]
