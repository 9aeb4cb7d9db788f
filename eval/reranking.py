"""The second stage: the cross-encoder reorders the first clips of each query (SCALAR, "Inference" and Table S2).

Ranks beyond those clips are the first stage's. A clip that the cross-encoder cannot read, one with nothing but a
subtitle, keeps its first-stage place, and the others are reordered among the places that remain. Ties count against
the method, as in `eval.retrieval`.

Clips come in batches, and all pairs of a batch are scored before the next one is read: condition tokens of a whole
gallery would be 7 MB per clip at full size, and are never held.

Shape letters: Q queries, V clips, K candidates of each query.
"""

from typing import Any

import torch
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import BatchFeature, PreTrainedModel, ProcessorMixin

from eval.embed import group_rows, read_batches
from eval.embeddings import Embeddings
from eval.missing import mask_modalities
from eval.retrieval import retrieval_metrics, retrieval_ranks
from modeling_scalar.aggregation_scalar import retrieval_scores
from modeling_scalar.configuration_scalar import MODALITIES

MATCHING_MODALITIES = ("video", "audio")
"""What the cross-encoder reads, in training and here; the baselines that share the backbone do the same."""

_INPUTS = {"video": "pixel_values_videos", "audio": "input_features"}


def first_candidates(scores: torch.Tensor, depth: int = 50) -> torch.LongTensor:
    """
    Choose the clips that the second stage reorders.

    Args:
        scores (`torch.Tensor` of shape `(queries, clips)`): of the first stage, higher is better.
        depth (`int`): how many clips of each query.

    Returns:
        `torch.LongTensor` of shape `(queries, min(depth, clips))`: columns of `scores`, best first; of equal scores
        the lower column.
    """
    if depth < 1:
        raise ValueError(f"`depth` must be at least 1, got {depth}.")
    return scores.argsort(dim=1, descending=True, stable=True)[:, :depth].contiguous()


def two_stage_ranks(
    scores: torch.Tensor, candidates: torch.Tensor, probabilities: torch.Tensor, targets: torch.Tensor
) -> torch.LongTensor:
    """
    Rank the right clip of each query after the second stage.

    Args:
        scores (`torch.Tensor` of shape `(queries, clips)`): of the first stage, as in
            [`~eval.retrieval.retrieval_ranks`].
        candidates (`torch.LongTensor` of shape `(queries, candidates)`): columns of `scores`, the first of each query
            ([`first_candidates`]).
        probabilities (`torch.FloatTensor` of shape `(queries, candidates)`): of a match, NaN for a clip that the
            cross-encoder cannot read.
        targets (`torch.LongTensor` of shape `(queries,)`): column of the right clip of each query.

    Returns:
        `torch.LongTensor` of shape `(queries,)`: ranks from 1 (best) to the number of clips. A right clip that is no
        candidate, or is one that cannot be read, has its first-stage rank.

    Raises:
        ValueError: shapes do not fit, or the candidates are not the first clips by `scores`.
    """
    ranks = retrieval_ranks(scores, targets)
    if candidates.shape != probabilities.shape or candidates.ndim != 2 or len(candidates) != len(scores):
        raise ValueError(
            "Expected `candidates` and `probabilities` (queries, candidates) of the queries of `scores` "
            f"{tuple(scores.shape)}, got {tuple(candidates.shape)} and {tuple(probabilities.shape)}."
        )
    # Best first, and of equal scores the unreadable first: it takes the better place, which counts against the rest.
    order = probabilities.isnan().int().argsort(dim=1, descending=True, stable=True)
    order = order.gather(1, scores.gather(1, candidates.gather(1, order)).argsort(dim=1, descending=True, stable=True))
    candidates, probabilities = candidates.gather(1, order), probabilities.gather(1, order)

    is_target = candidates == targets[:, None]  # (Q, K)
    reached = ranks <= candidates.shape[1]  # with every clip that scores as high; such a target must be a candidate
    wrong = (reached & (is_target.sum(dim=1) != 1)).nonzero().flatten().tolist()
    if wrong:
        raise ValueError(
            f"`candidates` must be the first clips of each query by `scores`; those of the queries {wrong[:10]} lack "
            "the right clip although its first-stage rank is among them."
        )
    own = torch.where(is_target, probabilities, 0).sum(dim=1, keepdim=True)  # (Q, 1), NaN if it cannot be read
    place = (probabilities >= own).sum(dim=1)  # among the readable, from 1; counts the target itself
    # The target moves to the place-th of the places that readable candidates hold.
    held = (~probabilities.isnan()).cumsum(dim=1)  # (Q, K)
    moved = (held < place[:, None]).sum(dim=1) + 1
    return torch.where(reached & ~own.isnan().squeeze(1), moved, ranks)


def _read_conditions(
    model: PreTrainedModel, batch: BatchFeature, allowed: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Condition tokens and their mask, or None where no clip of the batch has a token."""
    modality_mask = batch["modality_mask"] & allowed
    if not modality_mask.any():
        return None
    inputs = {name: batch[name] for name in _INPUTS.values() if name in batch}
    return model.get_condition_states(**inputs, modality_mask=modality_mask)


def _match_pairs(
    model: PreTrainedModel,
    text: BatchFeature,
    conditions: tuple[torch.Tensor, torch.Tensor],
    queries: torch.Tensor,
    clips: torch.Tensor,
    size: int,
) -> torch.FloatTensor:
    """Match probability of each pair of a caption (row of `text`) and a clip (row of `conditions`), on the CPU."""
    states, token_mask = conditions
    probabilities = []
    for query, clip in zip(queries.split(size), clips.to(states.device).split(size), strict=True):
        words = text["attention_mask"][query].any(dim=0)  # no longer than the longest caption of these pairs
        ids, attention_mask = (
            text[name][query][:, words].to(states.device) for name in ("input_ids", "attention_mask")
        )
        probabilities.append(model.match(ids, attention_mask, states[clip], token_mask[clip]).float().cpu())
    return torch.cat(probabilities)


@torch.no_grad()
def match_probabilities(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    dataset: Dataset,
    candidates: torch.Tensor,
    modality_mask: torch.Tensor | None = None,
    batch_size: int = 32,
    pair_batch_size: int = 128,
    device: str | torch.device | None = None,
    on_error: str = "raise",
    progress: bool = True,
    num_workers: int = 2,
) -> torch.FloatTensor:
    """
    Score the candidates of each caption with the cross-encoder. Only clips that are candidates are read.

    Args:
        model, processor, dataset, device, on_error, progress, num_workers: as in [`~eval.embed.embed_dataset`], which
            reports what cannot be read.
        candidates (`torch.LongTensor` of shape `(queries, candidates)`): clips, numbered as in the
            [`~eval.embeddings.Embeddings`] of the same data set.
        modality_mask (`torch.BoolTensor` of shape `(clips, 3)`, *optional*): what of each clip may be read, at most;
            by default all that it has.
        batch_size (`int`): clips whose condition tokens are held at once. Changes speed and memory, not results.
        pair_batch_size (`int`): pairs per forward pass. Likewise.

    Returns:
        `torch.FloatTensor` of shape `(queries, candidates)` on the CPU: the probability of a match by
        `MATCHING_MODALITIES`; NaN where a clip has neither of them.

    Raises:
        ValueError: `candidates` are not clips of the data set, the model has no cross-attention, or as in
            [`~eval.embed.embed_dataset`].
    """
    clips, captions, _, _ = group_rows(dataset)
    if candidates.ndim != 2 or len(candidates) != len(captions) or not candidates.numel():
        raise ValueError(
            f"Expected `candidates` (queries, candidates) for {len(captions)} captions, got {tuple(candidates.shape)}."
        )
    if candidates.min() < 0 or candidates.max() >= len(clips):
        raise ValueError(f"`candidates` must be among the {len(clips)} clips of the data set, numbered from 0.")
    if batch_size < 1 or pair_batch_size < 1:
        raise ValueError(f"Batch sizes must be at least 1, got {batch_size} and {pair_batch_size}.")
    allowed = torch.tensor([name in MATCHING_MODALITIES for name in MODALITIES]).expand(len(clips), -1)
    if modality_mask is not None:
        if modality_mask.shape != allowed.shape or modality_mask.dtype != torch.bool:
            raise ValueError(
                f"`modality_mask` must be a bool tensor of shape {tuple(allowed.shape)}, got {modality_mask.dtype} "
                f"{tuple(modality_mask.shape)}."
            )
        allowed = allowed & modality_mask.cpu()
    if device is not None:
        model.to(device)
    text = processor(text=captions)  # before threads use the tokenizer
    # Pairs in the order of their clips: those of a batch of clips lie side by side.
    flat = candidates.cpu().flatten()
    pairs = flat.argsort(stable=True)
    wanted, counts = flat.unique(return_counts=True)
    probabilities = torch.full(flat.shape, torch.nan)
    was_training = model.training
    model.eval()
    try:
        with tqdm(total=len(flat), desc="pairs", unit="pair", disable=not progress) as bar:
            batches = read_batches(processor, [clips[i] for i in wanted.tolist()], batch_size, on_error, num_workers)
            for (batch, _), rows, sizes in zip(
                batches, wanted.split(batch_size), counts.split(batch_size), strict=True
            ):
                here, pairs = pairs[: sizes.sum()], pairs[sizes.sum() :]
                clip_of_pair = torch.arange(len(rows)).repeat_interleave(sizes)
                conditions = _read_conditions(model, batch.to(model.device), allowed[rows].to(model.device))
                if conditions is not None:
                    readable = conditions[1].any(dim=1).cpu()[clip_of_pair]
                    chosen = here[readable]
                    queries = chosen // candidates.shape[1]
                    probabilities[chosen] = _match_pairs(
                        model, text, conditions, queries, clip_of_pair[readable], pair_batch_size
                    )
                bar.update(len(here))
    finally:
        model.train(was_training)
    return probabilities.view(candidates.shape)


@torch.no_grad()
def evaluate_two_stage(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    dataset: Dataset,
    embeddings: Embeddings,
    depth: int = 50,
    rate: float = 0.0,
    mask_seed: int = 0,
    block_size: int = 256,
    score_options: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """
    Measure text-to-video retrieval after both stages.

    Args:
        model, processor, dataset: the cross-encoder and the clips it reads.
        embeddings ([`~eval.embeddings.Embeddings`]): of the same data set, for the first stage.
        depth (`int`): how many clips of each query are reordered.
        rate (`float`), mask_seed (`int`): missing-modality masks, the same for both stages.
        block_size (`int`): queries scored at once in the first stage. Changes memory, not results.
        score_options (`dict`): keyword arguments of `retrieval_scores`, the method among them; by default those of
            the model.
        options: of [`match_probabilities`].

    Returns:
        `dict`: `depth`, `rate`, `mask_seed`, `num_unread_pairs` (candidates that kept their place because the
        cross-encoder reads neither picture nor sound of them) and the `text_to_video_*` metrics.

    Raises:
        ValueError: the embeddings are not those of the data set, or as in [`match_probabilities`].
    """
    clips, _, query_ids, _ = group_rows(dataset)
    if embeddings.clip_ids != [clip["video_id"] for clip in clips] or embeddings.query_ids != query_ids:
        raise ValueError("`embeddings` must be those of `dataset`: their clips or captions are others.")
    score_options = model.score_options() if score_options is None else score_options
    modality_mask = mask_modalities(embeddings.clip_ids, embeddings.modality_mask, rate, mask_seed)
    blocks = [slice(start, start + block_size) for start in range(0, len(query_ids), block_size)]

    def scores(block: slice) -> torch.Tensor:
        texts = embeddings.text_embeds[block]
        return retrieval_scores(texts, embeddings.modality_embeds, modality_mask, **score_options)

    candidates = torch.cat([first_candidates(scores(block), depth) for block in blocks])
    probabilities = match_probabilities(model, processor, dataset, candidates, modality_mask, **options)
    ranks = torch.cat(
        [
            two_stage_ranks(scores(block), candidates[block], probabilities[block], embeddings.targets[block])
            for block in blocks
        ]
    )
    metrics = retrieval_metrics(ranks)
    del metrics["num_queries"]
    return {
        "depth": depth,
        "rate": rate,
        "mask_seed": mask_seed,
        "num_unread_pairs": probabilities.isnan().sum().item(),
        **{f"text_to_video_{name}": value for name, value in metrics.items()},
    }


__all__ = [
    "MATCHING_MODALITIES",
    "evaluate_two_stage",
    "first_candidates",
    "match_probabilities",
    "two_stage_ranks",
]
