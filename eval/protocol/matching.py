"""Match probabilities: how likely a caption describes a clip, by the cross-encoder (SCALAR, "Inference").

A match probability depends on the caption, the clip and what of it is shown, and on nothing else. So all methods,
masking rates, policies and directions are served by one reading of the files, in which each pair is scored once. Clips
come in batches, and all pairs of a batch are scored before the next one is read: condition tokens of a whole gallery
would be 7 MB per clip at full size, and are never held.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import BatchFeature, PreTrainedModel, ProcessorMixin

from eval.embedding.embed_dataset import read_rows
from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.processing_scalar import Clip

MATCHING_MODALITIES = ("video", "audio")
"""What the cross-encoder reads, in training and here; the baselines that share the backbone do the same."""

POLICIES = ("absent", "zeros")
"""What the cross-encoder reads of a modality that is masked or missing: no tokens, or those of zero states."""

_INPUTS = {"video": "pixel_values_videos", "audio": "input_features"}
# A view is a number: bit i says whether MATCHING_MODALITIES[i] is shown, the bit above them that the others are zeros.
_COMPLETE = 2 ** len(MATCHING_MODALITIES) - 1
_NUM_VIEWS = 2 * (_COMPLETE + 1)


def clip_views(modality_mask: torch.Tensor, policy: str = "absent") -> torch.LongTensor:
    """
    Number what the cross-encoder is shown of each clip.

    Args:
        modality_mask (`torch.BoolTensor` of shape `(clips, 3)`): what of each clip may be shown.
        policy (`str`): one of [`POLICIES`]; see
            [`~eval.protocol.second_stage.evaluate_two_stage`].

    Returns:
        `torch.LongTensor` of shape `(clips,)`: equal where the same is shown in the same way, 0 where nothing is.

    Raises:
        ValueError: the policy is unknown.
    """
    if policy not in POLICIES:
        raise ValueError(f"A policy must be one of {POLICIES}, got {policy!r}.")
    shown = modality_mask[:, [MODALITIES.index(name) for name in MATCHING_MODALITIES]]
    views = (shown.long() << torch.arange(shown.shape[1], device=shown.device)).sum(dim=1)
    return views if policy == "absent" else torch.where(views == _COMPLETE, views, views + _COMPLETE + 1)


def _is_shown(views: torch.Tensor) -> torch.BoolTensor:
    """Which of `MATCHING_MODALITIES` each view shows, (..., 2)."""
    return (views[..., None] >> torch.arange(len(MATCHING_MODALITIES))).bitwise_and(1).bool()


def _tower_features(model: PreTrainedModel, batch: BatchFeature, modality_mask: torch.Tensor) -> dict:
    inputs = {name: batch[name] for name in _INPUTS.values() if name in batch}
    return model.get_tower_features(**inputs, modality_mask=modality_mask) if inputs else {}


def _blank_features(model: PreTrainedModel, processor: ProcessorMixin) -> dict[str, torch.Tensor]:
    """What the towers would give for one clip, as zeros: every clip has as many frames, segments and tokens."""
    clip = Clip(frames=np.zeros((1, 32, 32, 3), np.uint8), waveform=np.zeros(16_000, np.float32))
    batch = processor(clips=[clip]).to(model.device)
    features = _tower_features(model, batch, batch["modality_mask"])
    return {name: torch.zeros_like(value) for name, value in features.items()}


def _condition_states(
    model: PreTrainedModel, features: dict, blank: dict, rows: torch.Tensor, view: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Condition tokens of some clips of a batch, all in the same view, and their mask."""
    inputs = {}
    for name, shown in zip(MATCHING_MODALITIES, _is_shown(torch.tensor(view)).tolist(), strict=True):
        for key in (f"{name}_pooled", f"{name}_states"):
            if shown:
                inputs[key] = features[key][rows]
            elif view > _COMPLETE:
                inputs[key] = blank[key].expand(len(rows), *blank[key].shape[1:])
    return model.get_condition_states(**inputs)


def _match_pairs(
    model: PreTrainedModel,
    text: BatchFeature,
    conditions: tuple[torch.Tensor, torch.Tensor],
    captions: torch.Tensor,
    clips: torch.Tensor,
    size: int,
) -> torch.FloatTensor:
    """Match probability of each pair of a caption (row of `text`) and a clip (row of `conditions`), on the CPU."""
    states, token_mask = conditions
    probabilities = []
    for caption, clip in zip(captions.split(size), clips.to(states.device).split(size), strict=True):
        words = text["attention_mask"][caption].any(dim=0)  # no longer than the longest caption of these pairs
        ids, attention_mask = (
            text[name][caption][:, words].to(states.device) for name in ("input_ids", "attention_mask")
        )
        probabilities.append(model.match(ids, attention_mask, states[clip], token_mask[clip]).float().cpu())
    return torch.cat(probabilities)


def _match_batch(
    model: PreTrainedModel, text: BatchFeature, features: dict, blank: dict, requests: torch.Tensor, size: int
) -> torch.FloatTensor:
    """Match probabilities of a batch of clips; the second column of `requests` is a row of the batch."""
    captions, clips, views = requests.unbind(dim=1)
    probabilities = torch.empty(len(requests))
    for view in views.unique().tolist():
        chosen = views == view
        shown, position = clips[chosen].unique(return_inverse=True)
        conditions = _condition_states(model, features, blank, shown.to(model.device), view)
        probabilities[chosen] = _match_pairs(model, text, conditions, captions[chosen], position, size)
    return probabilities


def _needed(views: torch.Tensor, rows: torch.Tensor, batch: BatchFeature, names: list[str]) -> torch.BoolTensor:
    """What of each clip of a batch some view shows, (clips, 3); the towers need not read the rest."""
    needed = torch.zeros(len(names), len(MODALITIES), dtype=torch.bool)
    for name, shown in zip(MATCHING_MODALITIES, _is_shown(views).unbind(dim=1), strict=True):
        needed[rows[shown], MODALITIES.index(name)] = True
    lost = (needed & ~batch["modality_mask"].cpu()).nonzero().tolist()
    if lost:
        raise ValueError(
            "These clips lack what the embeddings say they have: "
            f"{[f'{names[row]} ({MODALITIES[index]})' for row, index in lost]}. Embed the files as they are now."
        )
    return needed


@torch.no_grad()
def match_probabilities(
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
        `torch.FloatTensor` of shape `(requests,)` on the CPU: the probability of a match; NaN where nothing is shown.

    Raises:
        ValueError: `requests` names a caption or clip that is not there or shows what a clip does not have, the model
            has no cross-attention, or as in [`embed_dataset`].
    """
    limits = requests.new_tensor([len(captions), len(clips), _NUM_VIEWS])
    if requests.ndim != 2 or requests.shape[1] != 3 or (requests < 0).any() or (requests >= limits).any():
        raise ValueError(
            f"Expected `requests` (requests, 3) among {len(captions)} captions, {len(clips)} clips and {_NUM_VIEWS} "
            f"views, numbered from 0; got {tuple(requests.shape)} with values up to {requests.flatten().max()}."
        )
    if batch_size < 1 or pair_batch_size < 1:
        raise ValueError(f"Batch sizes must be at least 1, got {batch_size} and {pair_batch_size}.")
    if device is not None:
        model.to(device)
    text = processor(text=captions)  # before threads use the tokenizer
    probabilities = torch.full((len(requests),), torch.nan)
    pending = requests[:, 2].nonzero().flatten()
    pending = pending[requests[pending, 1].argsort(stable=True)]  # those of a batch of clips lie side by side
    if not len(pending):
        return probabilities
    wanted, counts = requests[pending, 1].unique(return_counts=True)
    was_training = model.training
    model.eval()
    try:
        blank = _blank_features(model, processor) if (requests[:, 2] > _COMPLETE).any() else {}
        with tqdm(total=len(pending), desc="pairs", unit="pair", disable=not progress) as bar:
            batches = read_rows(processor, [clips[i] for i in wanted.tolist()], batch_size, on_error, num_workers)
            for read, rows, sizes in zip(batches, wanted.split(batch_size), counts.split(batch_size), strict=True):
                batch = read.features
                here, pending = pending[: sizes.sum()], pending[sizes.sum() :]
                names = [clips[i]["video_id"] for i in rows.tolist()]
                local = torch.arange(len(rows)).repeat_interleave(sizes)
                needed = _needed(requests[here, 2], local, batch, names)
                features = _tower_features(model, batch.to(model.device), needed.to(model.device))
                asked = torch.stack([requests[here, 0], local, requests[here, 2]], dim=1)
                probabilities[here] = _match_batch(model, text, features, blank, asked, pair_batch_size)
                bar.update(len(here))
    finally:
        model.train(was_training)
    return probabilities


__all__ = ["MATCHING_MODALITIES", "POLICIES", "clip_views", "match_probabilities"]
