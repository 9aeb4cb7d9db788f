"""The second stage: the cross-encoder reorders the first candidates (SCALAR, "Inference" and Tables S2 and S4).

Captions rank clips and clips rank captions. Beyond the first candidates the ranks of the first stage stand. A pair
whose clip the cross-encoder cannot read, because it has nothing but a subtitle, keeps its first-stage place, and the
others are reordered among the places that remain. Ties of either stage count against the method, as in
`eval.metrics.retrieval.ranking`.

A match probability depends on the caption, the clip and what of it is shown, and on nothing else. So all methods,
masking rates, policies and directions are served by one reading of the files, in which each pair is scored once. Clips
come in batches, and all pairs of a batch are scored before the next one is read: condition tokens of a whole gallery
would be 7 MB per clip at full size, and are never held.

Shape letters: Q captions, V clips, N rows that rank something, C what they rank, K candidates of each row.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import BatchFeature, PreTrainedModel, ProcessorMixin

from eval.embed import group_rows, read_batches
from eval.embeddings import Embeddings
from eval.metrics.retrieval.ranking import relevant_ranks, retrieval_metrics
from eval.protocol.missing import mask_modalities
from modeling_scalar.aggregation_scalar import DIRECTIONS, retrieval_scores
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


# Ranks after two stages ----------------------------------------------------------------------------------------------


def _sort_rows(values: torch.Tensor, ties: torch.Tensor) -> torch.LongTensor:
    """Order each row: the highest value first, of equal ones the lowest tie, then the lowest column."""
    order = ties.argsort(dim=1, stable=True)
    return order.gather(1, values.gather(1, order).argsort(dim=1, descending=True, stable=True))


def _is_relevant(scores: torch.Tensor, pairs: torch.Tensor) -> torch.BoolTensor:
    relevant = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    relevant[pairs[:, 0], pairs[:, 1]] = True
    return relevant


def check_depth(depth: int) -> None:
    """Raise a ValueError unless the second stage has at least one candidate of each row to reorder."""
    if depth < 1:
        raise ValueError(f"`depth` must be at least 1, got {depth}.")


def first_candidates(scores: torch.Tensor, pairs: torch.Tensor, depth: int = 50) -> torch.LongTensor:
    """
    Choose what the second stage reorders.

    Args:
        scores (`torch.Tensor` of shape `(rows, columns)`): of the first stage, higher is better.
        pairs (`torch.LongTensor` of shape `(pairs, 2)`): row and column of each relevant candidate.
        depth (`int`): how many candidates of each row.

    Returns:
        `torch.LongTensor` of shape `(rows, min(depth, columns))`: columns of `scores`, best first; of equal scores the
        irrelevant ones first, then the lower column.
    """
    check_depth(depth)
    return _sort_rows(scores, _is_relevant(scores, pairs).byte())[:, :depth].contiguous()


def two_stage_scores(
    scores: torch.Tensor, pairs: torch.Tensor, candidates: torch.Tensor, probabilities: torch.Tensor
) -> torch.DoubleTensor:
    """
    Return scores in the order that the second stage leaves.

    Args:
        scores (`torch.Tensor` of shape `(rows, columns)`), pairs (`torch.LongTensor` of shape `(pairs, 2)`): of the
            first stage, as in [`first_candidates`].
        candidates (`torch.LongTensor` of shape `(rows, candidates)`): what [`first_candidates`] chose.
        probabilities (`torch.FloatTensor` of shape `(rows, candidates)`): of a match, NaN where the cross-encoder
            cannot read the clip.

    Returns:
        `torch.DoubleTensor` of shape `(rows, columns)`: the candidates above all others and no two of them equal, all
        others with their first-stage scores. Of equal probabilities the irrelevant ones come first. Where the first
        stage left places open between equals, a relevant candidate has the last, and of the irrelevant ones those that
        cannot be read have the first.

    Raises:
        ValueError: shapes do not match, or the candidates are not the first by `scores`.
    """
    if candidates.shape != probabilities.shape or candidates.ndim != 2 or len(candidates) != len(scores):
        raise ValueError(
            f"Expected `candidates` and `probabilities` (rows, candidates) of the rows of `scores` "
            f"{tuple(scores.shape)}, got {tuple(candidates.shape)} and {tuple(probabilities.shape)}."
        )
    others = scores.scatter(1, candidates, -torch.inf)
    repeated = (candidates.sort(dim=1).values.diff(dim=1) == 0).any(dim=1)
    misplaced = repeated | (scores.gather(1, candidates).amin(dim=1) < others.amax(dim=1))
    if misplaced.any():
        raise ValueError(
            f"`candidates` must be the first of each row by `scores`; those of the rows "
            f"{misplaced.nonzero().flatten().tolist()[:10]} are not."
        )
    relevant, readable = _is_relevant(scores, pairs).gather(1, candidates), ~probabilities.isnan()
    order = _sort_rows(scores.gather(1, candidates), 2 * relevant.byte() + (readable & ~relevant))
    candidates, probabilities, relevant, readable = (
        values.gather(1, order) for values in (candidates, probabilities, relevant, readable)
    )
    # The readable ones, best first, take the places that readable ones held; the others keep theirs.
    order = _sort_rows(probabilities.nan_to_num(nan=-torch.inf), (relevant & readable).byte())
    held = (~readable).byte().argsort(dim=1, stable=True)
    places = torch.empty_like(order).scatter_(1, order, held)  # (N, K), from 0
    final = scores.double()
    top = final.amax(dim=1, keepdim=True).clamp(min=0)
    return final.scatter(1, candidates, top + candidates.shape[1] - places)


# Match probabilities -------------------------------------------------------------------------------------------------


def clip_views(modality_mask: torch.Tensor, policy: str = "absent") -> torch.LongTensor:
    """
    Number what the cross-encoder is shown of each clip.

    Args:
        modality_mask (`torch.BoolTensor` of shape `(clips, 3)`): what of each clip may be shown.
        policy (`str`): one of [`POLICIES`]; see [`evaluate_two_stage`].

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
        model, processor, device, on_error, progress, num_workers: as in [`~eval.embed.embed_dataset`], which reports
            what cannot be read.
        clips (`Sequence[dict]`): of [`~eval.embed.group_rows`].
        captions (`list[str]`): the texts.
        requests (`torch.LongTensor` of shape `(requests, 3)`): a row of `captions`, a row of `clips`, and what of the
            clip is shown ([`clip_views`]).
        batch_size (`int`): clips whose features are held at once. Changes speed and memory, not results.
        pair_batch_size (`int`): pairs per forward pass. Likewise.

    Returns:
        `torch.FloatTensor` of shape `(requests,)` on the CPU: the probability of a match; NaN where nothing is shown.

    Raises:
        ValueError: `requests` names a caption or clip that is not there or shows what a clip does not have, the model
            has no cross-attention, or as in [`~eval.embed.embed_dataset`].
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
            batches = read_batches(processor, [clips[i] for i in wanted.tolist()], batch_size, on_error, num_workers)
            for (batch, _), rows, sizes in zip(
                batches, wanted.split(batch_size), counts.split(batch_size), strict=True
            ):
                here, pending = pending[: sizes.sum()], pending[sizes.sum() :]
                names = [clips[i]["video_id"] for i in rows.tolist()]
                local = torch.arange(len(rows)).repeat_interleave(sizes)
                needed = _needed(requests[here, 2], local, batch, names)
                features = _tower_features(model, batch.to(model.device), needed.to(model.device))
                for view in requests[here, 2].unique().tolist():
                    chosen = requests[here, 2] == view
                    shown, position = local[chosen].unique(return_inverse=True)
                    conditions = _condition_states(model, features, blank, shown.to(model.device), view)
                    probabilities[here[chosen]] = _match_pairs(
                        model, text, conditions, requests[here[chosen], 0], position, pair_batch_size
                    )
                bar.update(len(here))
    finally:
        model.train(was_training)
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


# The protocol --------------------------------------------------------------------------------------------------------


class _FirstStage:
    """One method under one mask in one direction: its scores, in blocks of rows, and the candidates it hands on."""

    def __init__(
        self,
        embeddings: Embeddings,
        modality_mask: torch.Tensor,
        direction: str,
        depth: int,
        block_size: int,
        score_options: dict[str, Any],
    ):
        self.embeddings, self.modality_mask, self.direction = embeddings, modality_mask, direction
        self.pairs = embeddings.pairs if direction == "text_to_video" else embeddings.pairs.flip(1)
        self.rows = self.pairs[:, 0].unique()  # a clip without captions ranks nothing
        self.block_size = block_size
        self.score_options = score_options | {"direction": direction}
        self.candidates = torch.cat([first_candidates(scores, pairs, depth) for _, scores, pairs in self._blocks()])

    def _blocks(self) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Yield the place of some rows among `rows`, their scores (N, C), and their relevant pairs, counted within."""
        embeddings, mask, concat = self.embeddings, self.modality_mask, self.embeddings.concat_embeds
        for start in range(0, len(self.rows), self.block_size):
            block = slice(start, start + self.block_size)
            rows = self.rows[block]
            if self.direction == "text_to_video":
                texts, clips = embeddings.text_embeds[rows], slice(None)
            else:
                texts, clips = embeddings.text_embeds, rows
            scores = retrieval_scores(
                texts,
                embeddings.modality_embeds[clips],
                mask[clips],
                concat_embeds=None if concat is None else concat[clips],
                **self.score_options,
            )
            pairs = self.pairs[torch.isin(self.pairs[:, 0], rows)]
            pairs = torch.stack([torch.searchsorted(rows, pairs[:, 0].contiguous()), pairs[:, 1]], dim=1)
            yield block, scores if self.direction == "text_to_video" else scores.T, pairs

    def requests(self, policy: str) -> torch.LongTensor:
        """Caption, clip and view of each candidate, (N, K, 3)."""
        rows = self.rows[:, None].expand_as(self.candidates)
        captions, clips = (rows, self.candidates) if self.direction == "text_to_video" else (self.candidates, rows)
        return torch.stack([captions, clips, clip_views(self.modality_mask, policy)[clips]], dim=-1)

    def metrics(self, probabilities: torch.Tensor) -> dict[str, float]:
        ranks, rows = [], []
        for block, scores, pairs in self._blocks():
            final = two_stage_scores(scores, pairs, self.candidates[block], probabilities[block])
            ranks.append(relevant_ranks(final, pairs))
            rows.append(pairs[:, 0] + block.start)
        metrics = retrieval_metrics(torch.cat(ranks), torch.cat(rows))
        del metrics["num_queries"]
        return {f"{self.direction}_{name}": value for name, value in metrics.items()}


@torch.no_grad()
def evaluate_two_stage(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    dataset: Dataset,
    embeddings: Embeddings,
    depth: int = 50,
    rates: Sequence[float] = (0.0,),
    mask_seed: int = 0,
    policies: Sequence[str] = ("absent",),
    methods: Sequence[str] | None = None,
    block_size: int = 256,
    score_options: dict[str, Any] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """
    Measure retrieval after both stages, in both directions (SCALAR Tables S2 and S4).

    A mask hides a modality from both stages. The first never sees it, whatever the policy. For the second the paper
    says that "a masked modality is written as zeros in the common trunk, matching what a loader produces for an absent
    stream" ("Robustness to Test-Time Missing Modalities"). We read this as zero states of its tower, which still pass
    through the projection of the condition tokens and receive their position and type: the cross-encoder then reads as
    many tokens of every clip, and those of zero states are the same for all. This is the policy `"zeros"`, and what is
    missing in the files counts as masked. With `"absent"` it reads no token of what is not there. At rate 0 the two
    differ only for clips without picture or sound.

    Args:
        model, processor, dataset: the cross-encoder and the clips it reads.
        embeddings ([`~eval.embeddings.Embeddings`]): of the same data set: for the first stage, and for which
            caption describes which clip.
        depth (`int`): how many clips of each caption, and captions of each clip, are reordered.
        rates (`Sequence[float]`), mask_seed (`int`): missing-modality masks, the same for both stages.
        policies (`Sequence[str]`): some of [`POLICIES`].
        methods (`Sequence[str]`, *optional*): first stages, names known to `retrieval_scores`; by default the one in
            `score_options`.
        block_size (`int`): rows scored at once in the first stage. Changes memory, not results.
        score_options (`dict`, *optional*): keyword arguments of `retrieval_scores`; by default those of the model.
        options: of [`match_probabilities`].

    Returns:
        `list[dict]`, one per method, policy and rate, in this order: `depth`, `policy`, `method`, `rate`, `mask_seed`,
        `num_unread_pairs` (candidates of both directions that kept their place because the cross-encoder reads
        nothing of the clip) and the `text_to_video_*` and `video_to_text_*` metrics.

    Raises:
        ValueError: the embeddings are not those of the data set, a method or policy is unknown, a rate is out of its
            range, or as in [`match_probabilities`].
    """
    clips, captions, *_ = group_rows(dataset)
    if embeddings.clip_ids != [clip["video_id"] for clip in clips] or set(embeddings.captions) != set(captions):
        raise ValueError("`embeddings` must be those of `dataset`: their clips or captions differ.")
    if not rates or not policies:
        raise ValueError(f"Expected at least one rate and one policy, got {rates} and {policies}.")
    if block_size < 1:
        raise ValueError(f"`block_size` must be at least 1, got {block_size}.")
    embeddings.check_finite()
    score_options = dict(model.score_options() if score_options is None else score_options)
    own_method = score_options.pop("method", "scalar")
    methods = (own_method,) if methods is None else methods
    stages = {}
    for rate in rates:
        mask = mask_modalities(embeddings.clip_ids, embeddings.modality_mask, rate, mask_seed)
        for method in methods:
            arguments = depth, block_size, score_options | {"method": method}
            stages[method, rate] = [_FirstStage(embeddings, mask, direction, *arguments) for direction in DIRECTIONS]

    settings = [(method, policy, rate) for method in methods for policy in policies for rate in rates]
    requests = [stage.requests(policy) for method, policy, rate in settings for stage in stages[method, rate]]
    unique, places = torch.cat([request.flatten(0, 1) for request in requests]).unique(dim=0, return_inverse=True)
    found = match_probabilities(model, processor, clips, embeddings.captions, unique, **options)
    probabilities = iter(found[places].split([request.shape[:2].numel() for request in requests]))

    results = []
    for method, policy, rate in settings:
        result = {"depth": depth, "policy": policy, "method": method, "rate": rate, "mask_seed": mask_seed}
        result["num_unread_pairs"] = 0
        for stage in stages[method, rate]:
            matched = next(probabilities).view_as(stage.candidates)
            result["num_unread_pairs"] += matched.isnan().sum().item()
            result |= stage.metrics(matched)
        results.append(result)
    return results


__all__ = [
    "MATCHING_MODALITIES",
    "POLICIES",
    "check_depth",
    "clip_views",
    "evaluate_two_stage",
    "first_candidates",
    "match_probabilities",
    "two_stage_scores",
]
