"""Match logits of the clips of a data set, see [`~gallery.matching`].

All methods, masking rates, policies and directions are served by one reading of the files, in which each pair is
scored once.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, ProcessorMixin

from eval.embedding.embed_dataset import read_rows
from gallery.embedding import Batch
from gallery.matching import POLICIES, check_policies, clip_views, measurable_policies
from gallery.matching import match_logits as match_read


def match_logits(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    clips: Sequence[dict[str, Any]],
    captions: list[str],
    requests: torch.Tensor,
    batch_size: int = 32,
    pair_batch_size: int = 128,
    device: str | torch.device | None = None,
    on_error: str = "raise",
    progress: bool = True,
    num_workers: int = 2,
) -> torch.FloatTensor:
    """
    Score pairs of a caption and a clip with the cross-encoder. Each clip that is asked for is read once.

    Args:
        model, processor, device, on_error, progress, num_workers: as in [`embed_dataset`], which reports
            what cannot be read.
        clips (`Sequence[dict]`): of [`group_rows`].
        captions (`list[str]`): the texts.
        requests (`torch.LongTensor` of shape `(requests, 3)`): a row of `captions`, a row of `clips`, and what of the
            clip is shown ([`clip_views`]).
        batch_size (`int`): clips whose features are held at once. Changes speed and memory, not results.
        pair_batch_size (`int`): pairs per forward pass. Likewise.

    Returns:
        `torch.FloatTensor` of shape `(requests,)` on the CPU: the log-odds of a match; NaN where nothing is shown.

    Raises:
        ValueError: `requests` names a caption or clip that is not there or shows what a clip does not have, the model
            has no cross-attention, or as in [`embed_dataset`].
    """
    if device is not None:
        model.to(device)

    def read(rows: list[int]) -> Iterator[Batch]:
        return read_rows(processor, [clips[row] for row in rows], batch_size, on_error, num_workers)

    names = [clip["video_id"] for clip in clips]
    sizes = batch_size, pair_batch_size
    return match_read(model, processor, names, captions, requests, read, *sizes, progress)


__all__ = ["POLICIES", "check_policies", "clip_views", "match_logits", "measurable_policies"]
