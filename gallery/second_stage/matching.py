"""The second stage: match logits, and the order that they give the first candidates (SCALAR, "Inference").

A match logit is the log-odds that a caption describes a clip, by the cross-encoder.

A match logit depends only on the caption, the clip, and what is visible of the clip. Clips come in batches, and all
pairs of a batch are scored before the next one is read: condition tokens of a whole gallery, 7 MB per clip at full
size, are never held in memory.

Beyond the first candidates, ranks stay those of the first stage. A pair whose clip the cross-encoder cannot read keeps
its first-stage rank; the others are reordered among the remaining ranks by one of two rules: by the match alone, as in
the paper, or by the first-stage score plus a weight times the match logit, which is not in the paper.

Shape letters: N ranked lists, K candidates in each.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from tqdm.auto import tqdm

from scalar_retrieval.modeling_scalar.modalities_scalar import PAPER_MODALITIES as MODALITIES

from ..embedding import ReadBatch

if TYPE_CHECKING:
    from transformers import BatchFeature, PreTrainedModel, ProcessorMixin

POLICIES = ("absent", "zeros")
"""What the cross-encoder reads of a modality that is masked or missing: no tokens, or tokens of zero states."""

_INPUTS = ("pixel_values_videos", "input_features")
_SUBTITLES = ("subtitle_input_ids", "subtitle_attention_mask")
# A view is a number: bit i is set where MODALITIES[i] is visible, the next bit where zeros replace whatever else the
# cross-encoder reads.
_WITH_ZEROS = 2 ** len(MODALITIES)


def check_can_match(model: "PreTrainedModel") -> None:
    """Raise a ValueError unless a model has a cross-encoder."""
    if not getattr(model.config, "has_cross_attention", False):
        raise ValueError(
            "The second stage needs a cross-encoder, which reads a text together with a clip; the model "
            f"({type(model).__name__}) has none. Leave the second stage out."
        )


def measurable_policies(condition_on: Sequence[str]) -> tuple[str, ...]:
    """
    Return the policies that are defined for a cross-encoder.

    Zero states need a number of tokens. It is the same for all clips in video and audio. But subtitles differ, and an
    absent one has none, so `"zeros"` is not defined for cross-encoders that read subtitles.

    Args:
        condition_on (`Sequence[str]`): `condition_on` of the model's configuration.
    """
    return POLICIES[:1] if "subtitle" in condition_on else POLICIES


def check_policies(policies: Sequence[str], condition_on: Sequence[str]) -> None:
    """Raise a ValueError unless every policy is defined for the cross-encoder."""
    known = measurable_policies(condition_on)
    if not policies or not set(policies) <= set(known):
        raise ValueError(
            f"For a cross-encoder that reads {', '.join(condition_on)}, `policies` must be some of {known}, got "
            f"{list(policies)}."
        )


def clip_views(
    modality_mask: torch.Tensor,
    modalities: Sequence[str],
    condition_on: Sequence[str],
    policy: str = "absent",
) -> torch.LongTensor:
    """
    Encode as a number what is visible of each clip to the cross-encoder.

    Args:
        modality_mask (`torch.BoolTensor` of shape `(clips, M)`): what may be visible of each clip.
        modalities (`Sequence[str]`): the names along the axis M. Cross-encoders read only the paper's modalities.
        condition_on (`Sequence[str]`): what the cross-encoder reads, from the model's configuration.
        policy (`str`): one of [`POLICIES`].

    Returns:
        `torch.LongTensor` of shape `(clips,)`: equal where the same is visible in the same way, 0 where nothing is.

    Raises:
        ValueError: the policy is unknown, or not defined for this cross-encoder.
    """
    check_policies([policy], condition_on)
    is_read = torch.tensor([name in condition_on for name in MODALITIES], device=modality_mask.device)
    # What is visible of each clip, (clips, 3), in the order of the paper's modalities; others are never read.
    known = dict(zip(modalities, modality_mask.unbind(1), strict=True))
    none = modality_mask.new_zeros(len(modality_mask))
    visible = torch.stack([known.get(name, none) for name in MODALITIES], dim=1) & is_read
    views = (visible.long() << torch.arange(len(MODALITIES), device=visible.device)).sum(dim=1)
    if policy == "absent":
        return views
    return torch.where((visible == is_read).all(dim=1), views, views + _WITH_ZEROS)


def _visible_in(views: torch.Tensor) -> torch.BoolTensor:
    """Which of `MODALITIES` are visible in each view, (..., 3)."""
    return (views[..., None] >> torch.arange(len(MODALITIES))).bitwise_and(1).bool()


def _tower_features(model: "PreTrainedModel", batch: "BatchFeature", modality_mask: torch.Tensor) -> dict:
    inputs = {name: batch[name] for name in _INPUTS if name in batch}
    if not inputs:
        return {}
    return model.get_tower_features(**inputs, modality_mask=modality_mask)


def _blank_features(model: "PreTrainedModel", processor: "ProcessorMixin") -> dict[str, torch.Tensor]:
    """The towers' outputs for one clip, as zeros: all clips have the same number of frames, segments and tokens."""
    from scalar_retrieval.modeling_scalar.processing_scalar import Clip  # it imports transformers

    clip = Clip(frames=np.zeros((1, 32, 32, 3), np.uint8), waveform=np.zeros(16_000, np.float32))
    batch = processor(clips=[clip]).to(model.device)
    features = _tower_features(model, batch, batch["modality_mask"])
    return {name: torch.zeros_like(value) for name, value in features.items()}


def _condition_states(
    model: "PreTrainedModel", clips: dict, blank: dict, rows: torch.Tensor, view: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Condition tokens of some clips of a batch, all in the same view, and their mask."""
    inputs = {}
    for name, is_visible in zip(MODALITIES, _visible_in(torch.tensor(view)).tolist(), strict=True):
        keys = _SUBTITLES if name == "subtitle" else (f"{name}_pooled", f"{name}_states")
        is_zero = view >= _WITH_ZEROS and name in model.config.condition_on
        for key in keys:
            if is_visible:
                inputs[key] = clips[key][rows]
            elif is_zero:
                inputs[key] = blank[key].expand(len(rows), *blank[key].shape[1:])
    return model.get_condition_states(**inputs)


def _match_pairs(
    model: "PreTrainedModel",
    text: "BatchFeature",
    conditions: tuple[torch.Tensor, torch.Tensor],
    captions: torch.Tensor,
    clips: torch.Tensor,
    size: int,
) -> torch.FloatTensor:
    """Match logit of each pair of a caption (row of `text`) and a clip (row of `conditions`), on the CPU."""
    states, token_mask = conditions
    logits = torch.empty(len(clips))
    for clip in range(len(states)):
        for part in (clips == clip).nonzero().flatten().split(size):
            # Padding that all these captions have is cut off.
            attention_mask = text["attention_mask"][captions[part]]  # (pairs, tokens)
            is_used = attention_mask.any(dim=0)
            attention_mask = attention_mask[:, is_used].to(states.device)
            ids = text["input_ids"][captions[part]][:, is_used].to(states.device)
            # One row of conditions: the clip is read once for all its captions.
            rows = slice(clip, clip + 1)
            logits[part] = model.match(ids, attention_mask, states[rows], token_mask[rows]).cpu()
    return logits


def _match_batch(
    model: "PreTrainedModel", text: "BatchFeature", clips: dict, blank: dict, requests: torch.Tensor, size: int
) -> torch.FloatTensor:
    """Match logits of a batch of clips; the second column of `requests` is a row of the batch."""
    captions, rows, views = requests.unbind(dim=1)
    logits = torch.empty(len(requests))
    # Clips in one view have the same modalities, so their condition tokens are computed together, once per clip.
    for view in views.unique().tolist():
        chosen = views == view
        unique, position = rows[chosen].unique(return_inverse=True)
        conditions = _condition_states(model, clips, blank, unique.to(model.device), view)
        logits[chosen] = _match_pairs(model, text, conditions, captions[chosen], position, size)
    return logits


def _needed(views: torch.Tensor, rows: torch.Tensor, batch: "BatchFeature", names: list[str]) -> torch.BoolTensor:
    """What is visible of each clip of a batch in some view, (clips, 3); the towers need not read the rest."""
    needed = torch.zeros(len(names), len(MODALITIES), dtype=torch.bool)
    for index, is_visible in enumerate(_visible_in(views).unbind(dim=1)):
        needed[rows[is_visible], index] = True
    lost = []
    for row, index in (needed & ~batch["modality_mask"].cpu()).nonzero().tolist():
        lost.append(f"{names[row]} ({MODALITIES[index]})")
    if lost:
        raise ValueError(
            f"The files of these clips lack modalities that their embeddings have: {lost}. Embed the files as they "
            "are now."
        )
    return needed


@torch.no_grad()
def match_logits(
    model: "PreTrainedModel",
    processor: "ProcessorMixin",
    names: Sequence[str],
    captions: list[str],
    requests: torch.Tensor,
    read: Callable[[list[int]], Iterable[ReadBatch]],
    batch_size: int,
    pair_batch_size: int = 128,
    progress: bool = True,
) -> torch.FloatTensor:
    """
    Score pairs of a caption and a clip with the cross-encoder. Each requested clip is read once.

    Args:
        model, processor: a model with a cross-encoder; in evaluation mode during the call.
        names (`list[str]`): names of the clips.
        captions (`list[str]`): the texts.
        requests (`torch.LongTensor` of shape `(requests, 3)`): a row of `captions`, a row of `names`, and what is
            visible of the clip ([`clip_views`]).
        read (`Callable`): from rows of `names` to the clips as [`~scalar_retrieval.gallery.embedding.ReadBatch`]es of
            `batch_size`.
        batch_size (`int`): clips whose features are held at once. Affects speed and memory, not results.
        pair_batch_size (`int`): pairs per forward pass. Likewise.
        progress (`bool`): show a progress bar.

    Returns:
        `torch.FloatTensor` of shape `(requests,)` on the CPU: the log-odds of a match; NaN where nothing is visible,
        and for clips that have nothing to embed according to their batch.

    Raises:
        ValueError: a modality that a clip lacks is visible in `requests`, or the model has no cross-attention.
    """
    text = processor(text=captions)  # before threads use the tokenizer
    logits = torch.full((len(requests),), torch.nan)
    # Requests for one batch of clips are adjacent, so that each clip is read once.
    pending = requests[:, 2].nonzero().flatten()
    pending = pending[requests[pending, 1].argsort(stable=True)]
    if not len(pending):
        return logits
    wanted, counts = requests[pending, 1].unique(return_counts=True)

    was_training = model.training
    model.eval()
    try:
        blank = _blank_features(model, processor) if (requests[:, 2] >= _WITH_ZEROS).any() else {}
        with tqdm(total=len(pending), desc="pairs", unit="pair", disable=not progress) as bar:
            batches = read(wanted.tolist())
            for batch, rows, sizes in zip(batches, wanted.split(batch_size), counts.split(batch_size), strict=True):
                # The requests for this batch: `local` is the row of their clip among those with something to embed.
                current = pending[: sizes.sum()]
                pending = pending[sizes.sum() :]
                bar.update(len(current))
                if batch.features is None:
                    continue
                place = torch.full((len(rows),), -1)
                place[batch.embeddable] = torch.arange(len(batch.embeddable))
                local = place.repeat_interleave(sizes)
                current = current[local >= 0]
                local = local[local >= 0]
                embeddable = [names[rows[i]] for i in batch.embeddable]
                needed = _needed(requests[current, 2], local, batch.features, embeddable)
                # The inputs of condition tokens: the outputs of the towers, computed once, and the subtitles.
                features = batch.features.to(model.device)
                inputs = _tower_features(model, features, needed.to(model.device))
                inputs |= {name: features[name] for name in _SUBTITLES if name in features}
                asked = torch.stack([requests[current, 0], local, requests[current, 2]], dim=1)
                logits[current] = _match_batch(model, text, inputs, blank, asked, pair_batch_size)
    finally:
        model.train(was_training)
    return logits


# The order of the second stage ---------------------------------------------------------------------------------------


def sort_rows(values: torch.Tensor, ties: torch.Tensor) -> torch.LongTensor:
    """Order each row: highest value first; among equal ones the lowest tie, then the lowest column."""
    order = ties.argsort(dim=1, stable=True)
    return order.gather(1, values.gather(1, order).argsort(dim=1, descending=True, stable=True))


def check_depth(depth: int) -> None:
    """Raise a ValueError unless the second stage reorders at least one candidate of each row."""
    if depth < 1:
        raise ValueError(f"`depth` must be at least 1, got {depth}.")


def fused_values(scores: torch.Tensor, logits: torch.Tensor, weight: float) -> torch.DoubleTensor:
    """
    Add the weighted match logits to the first-stage scores; not in the paper.

    Args:
        scores (`torch.Tensor` of shape `(rows, candidates)`): of the first stage; -inf where it is undefined.
        logits (`torch.Tensor` of the same shape): match logits, NaN where the cross-encoder cannot read the clip.
        weight (`float`): weight of the logits, at least 0. At 0 the order is that of the first stage.

    Returns:
        `torch.DoubleTensor` of the same shape: NaN where the cross-encoder cannot read the clip.
    """
    return scores.double() + weight * logits.double()


def reranked_places(values: torch.Tensor, ties: torch.Tensor) -> torch.LongTensor:
    """
    Return the place of each candidate after the second stage: candidates that could be read are sorted, best first,
    among the places that they held; the others keep theirs.

    Args:
        values (`torch.Tensor` of shape `(N, K)`): new values of the candidates, in first-stage order; NaN where the
            cross-encoder cannot read the clip.
        ties (`torch.Tensor` of shape `(N, K)`): of equal values, the lowest tie comes first, then the lowest column.

    Returns:
        `torch.LongTensor` of shape `(N, K)`, from 0.
    """
    # `order` lists the candidates, readable ones first, best first; `held` lists the places that they held, likewise.
    unread = values.isnan()
    order = sort_rows(values.nan_to_num(nan=-torch.inf), ties.masked_fill(unread, 0))
    held = unread.byte().argsort(dim=1, stable=True)
    return torch.empty_like(order).scatter_(1, order, held)


__all__ = [
    "POLICIES",
    "check_can_match",
    "check_depth",
    "check_policies",
    "clip_views",
    "fused_values",
    "match_logits",
    "measurable_policies",
    "reranked_places",
    "sort_rows",
]
