"""The second stage: the cross-encoder reorders the first candidates (SCALAR, "Inference" and Tables S2 and S4).

Captions rank clips and clips rank captions. Beyond the first candidates the ranks of the first stage stand. A pair
whose clip the cross-encoder cannot read, because it has nothing but a subtitle, keeps its first-stage place, and the
others are reordered among the places that remain. Ties of either stage count against the method, as in
`eval.metrics.retrieval.ranking`.

Shape letters: Q captions, V clips, N rows that rank something, C what they rank, K candidates of each row.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, ProcessorMixin

from eval.benchmarks.rows import group_rows
from eval.embedding.embeddings import Embeddings
from eval.metrics.retrieval.ranking import relevant_ranks, retrieval_metrics
from eval.protocol.matching import clip_views, match_probabilities
from eval.protocol.missing import mask_modalities
from modeling_scalar.aggregation_scalar import DIRECTIONS, retrieval_scores

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
    ) -> None:
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
        embeddings ([`Embeddings`]): of the same data set: for the first stage, and for which
            caption describes which clip.
        depth (`int`): how many clips of each caption, and captions of each clip, are reordered.
        rates (`Sequence[float]`), mask_seed (`int`): missing-modality masks, the same for both stages.
        policies (`Sequence[str]`): some of [`~eval.protocol.matching.POLICIES`].
        methods (`Sequence[str]`, *optional*): first stages, names known to `retrieval_scores`; by default the one in
            `score_options`.
        block_size (`int`): rows scored at once in the first stage. Changes memory, not results.
        score_options (`dict`, *optional*): keyword arguments of `retrieval_scores`; by default those of the model.
        options: of [`~eval.protocol.matching.match_probabilities`].

    Returns:
        `list[dict]`, one per method, policy and rate, in this order: `depth`, `policy`, `method`, `rate`, `mask_seed`,
        `num_unread_pairs` (candidates of both directions that kept their place because the cross-encoder reads
        nothing of the clip) and the `text_to_video_*` and `video_to_text_*` metrics.

    Raises:
        ValueError: the embeddings are not those of the data set, a method or policy is unknown, a rate is out of its
            range, or as in [`~eval.protocol.matching.match_probabilities`].
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


__all__ = ["check_depth", "evaluate_two_stage", "first_candidates", "two_stage_scores"]
