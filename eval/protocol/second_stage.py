"""The second stage: the cross-encoder reorders the first candidates (SCALAR, "Inference" and Tables 1, 2 and S4).

Captions rank clips and clips rank captions. Only the first candidates are reordered, by one of two rules: by the match
logit alone, as in the paper, or by the first-stage score plus a weight times the match logit, which is not in the
paper. A pair whose clip has nothing for the cross-encoder to read keeps its first-stage place, and the others are
reordered among the remaining places. Ties of either stage count against the method, as in
`scalar_retrieval.eval.metrics.retrieval.ranking`.

The candidates of a smaller depth are the first ones of a larger depth, so every depth, rule and weight is measured
from one reading of the clips, with each pair scored once.

Shape letters: Q captions, V clips, N rows that rank something, C what they rank, K candidates of each row.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel, ProcessorMixin

from scalar_retrieval.gallery.embedding import ReadBatch
from scalar_retrieval.gallery.second_stage.matching import (
    check_policies,
    clip_views,
    fused_values,
    reranked_places,
    sort_rows,
)
from scalar_retrieval.gallery.second_stage.matching import match_logits as match_read
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS, retrieval_scores

from ..benchmarks.clip_rows import group_rows
from ..embedding.embed_dataset import read_rows
from ..embedding.embeddings import Embeddings
from ..metrics.retrieval.ranking import relevant_ranks, retrieval_metrics
from .missing import MASK_SEED, mask_modalities
from .statistics import area_under_curve

FUSION_WEIGHTS = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Weights of a match logit to choose from: at 0 the first-stage order stays, at 10 a cosine hardly counts."""

_BLOCK = 256  # rows scored at once in the first stage

# Ranks after two stages ----------------------------------------------------------------------------------------------


def _is_relevant(scores: torch.Tensor, pairs: torch.Tensor) -> torch.BoolTensor:
    relevant = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    relevant[pairs[:, 0], pairs[:, 1]] = True
    return relevant


def first_candidates(scores: torch.Tensor, pairs: torch.Tensor, depth: int) -> torch.LongTensor:
    """
    Choose the candidates that the second stage reorders.

    Args:
        scores (`torch.Tensor` of shape `(rows, columns)`): scores of the first stage, higher is better.
        pairs (`torch.LongTensor` of shape `(pairs, 2)`): row and column of each relevant candidate.
        depth (`int`): number of candidates per row.

    Returns:
        `torch.LongTensor` of shape `(rows, min(depth, columns))`: columns of `scores`, best first; among equal scores
        the irrelevant ones come first, then the lower columns.
    """
    return sort_rows(scores, _is_relevant(scores, pairs).byte())[:, :depth].contiguous()


def two_stage_scores(
    scores: torch.Tensor, pairs: torch.Tensor, candidates: torch.Tensor, values: torch.Tensor
) -> torch.DoubleTensor:
    """
    Return scores whose order is that of the second stage.

    Args:
        scores (`torch.Tensor` of shape `(rows, columns)`), pairs (`torch.LongTensor` of shape `(pairs, 2)`): of the
            first stage, as in [`first_candidates`].
        candidates (`torch.LongTensor` of shape `(rows, candidates)`): from [`first_candidates`].
        values (`torch.FloatTensor` of shape `(rows, candidates)`): values to reorder them by, match logits or
            [`fused_values`]; NaN where the cross-encoder cannot read the clip.

    Returns:
        `torch.DoubleTensor` of shape `(rows, columns)`: distinct scores for the candidates, above all others, which
        keep their first-stage scores. Among equal values the irrelevant ones come first. If equal first-stage scores
        leave the order of places open, a relevant candidate gets the last place, and the irrelevant ones that cannot
        be read get the first places.
    """
    # The places of equal first-stage scores: first irrelevant clips that cannot be read, last the relevant ones.
    relevant = _is_relevant(scores, pairs).gather(1, candidates)
    readable = ~values.isnan()
    order = sort_rows(scores.gather(1, candidates), 2 * relevant.byte() + (readable & ~relevant))
    candidates = candidates.gather(1, order)
    places = reranked_places(values.gather(1, order), relevant.gather(1, order).byte())
    # Distinct scores above all others, in the order of the places.
    final = scores.double()
    top = final.amax(dim=1, keepdim=True).clamp(min=0)
    return final.scatter(1, candidates, top + candidates.shape[1] - places)


# Match logits of a data set ------------------------------------------------------------------------------------------


def match_logits(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    clips: Sequence[dict[str, Any]],
    captions: list[str],
    requests: torch.Tensor,
    batch_size: int = 32,
    pair_batch_size: int = 128,
    progress: bool = True,
    num_workers: int = 2,
) -> torch.FloatTensor:
    """
    Score pairs of a caption and a clip with the cross-encoder. Each requested clip is read once.

    Args:
        model, processor, progress, num_workers: as in [`embed_dataset`], which reports
            unreadable files.
        clips (`Sequence[dict]`): from [`group_rows`].
        captions (`list[str]`): the texts.
        requests (`torch.LongTensor` of shape `(requests, 3)`): a row of `captions`, a row of `clips`, and the view of
            the clip that is read ([`clip_views`]).
        batch_size (`int`): clips whose features are held at once. Changes speed and memory, not results.
        pair_batch_size (`int`): pairs per forward pass. Changes speed and memory, not results.

    Returns:
        `torch.FloatTensor` of shape `(requests,)` on the CPU: the log-odds of a match; NaN where nothing is read.

    Raises:
        ValueError: `requests` names a caption or clip that does not exist, or reads a modality that a clip lacks, the
            model has no cross-attention, or as in [`embed_dataset`].
    """

    def read(rows: list[int]) -> Iterator[ReadBatch]:
        return read_rows(processor, [clips[row] for row in rows], batch_size, num_workers)

    names = [clip["video_id"] for clip in clips]  # for errors
    return match_read(model, processor, names, captions, requests, read, batch_size, pair_batch_size, progress)


# The protocol --------------------------------------------------------------------------------------------------------


class _FirstStage:
    """One method with one mask in one direction: its scores, in blocks of rows, and its first candidates."""

    def __init__(
        self,
        embeddings: Embeddings,
        modality_mask: torch.Tensor,
        direction: str,
        depth: int,
        score_options: dict[str, Any],
    ) -> None:
        self.embeddings = embeddings
        self.modality_mask = modality_mask
        self.direction = direction
        self.pairs = embeddings.pairs
        if direction == "video_to_text":
            self.pairs = self.pairs.flip(1)
        self.rows = self.pairs[:, 0].unique()  # a clip without captions ranks nothing
        self.score_options = score_options | {"direction": direction}
        candidates = []
        for _, scores, pairs in self._blocks():
            candidates.append(first_candidates(scores, pairs, depth))
        self.candidates = torch.cat(candidates)

    def _places_of_pairs(self, rows: torch.Tensor, pairs: torch.Tensor) -> torch.LongTensor:
        """Return pairs (P, 2) with places among `rows`, which are sorted, instead of rows."""
        return torch.stack([torch.searchsorted(rows, pairs[:, 0].contiguous()), pairs[:, 1]], dim=1)

    def _blocks(self) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Yield the positions of some rows among `rows`, their scores (N, C), and their relevant pairs within them."""
        for start in range(0, len(self.rows), _BLOCK):
            block = slice(start, start + _BLOCK)
            rows = self.rows[block]
            queries = slice(None)
            clips = slice(None)
            if self.direction == "text_to_video":
                queries = rows
            else:
                clips = rows
            inputs = self.embeddings.score_inputs(queries, clips)
            inputs["modality_mask"] = self.modality_mask[clips]
            scores = retrieval_scores(**inputs, **self.score_options)  # (Q, V)
            if self.direction == "video_to_text":
                scores = scores.T
            pairs = self.pairs[torch.isin(self.pairs[:, 0], rows)]
            yield block, scores, self._places_of_pairs(rows, pairs)

    def requests(self, views: torch.Tensor) -> torch.LongTensor:
        """Return caption, clip and view of each candidate, (N, K, 3), with each clip's view from `views`."""
        rows = self.rows[:, None].expand_as(self.candidates)
        if self.direction == "text_to_video":
            return torch.stack([rows, self.candidates, views[self.candidates]], dim=-1)
        return torch.stack([self.candidates, rows, views[rows]], dim=-1)

    def metrics(self, logits: torch.Tensor, orders: Sequence[tuple[int, float | None]]) -> list[dict[str, float]]:
        """Return the metrics of each order: a depth, and the weight of a match logit, or None for the match alone."""
        # First-stage scores are computed again, a block at a time, rather than kept: (N, C) may be large.
        ranks: list[list[torch.Tensor]] = [[] for _ in orders]
        rows = []
        for block, scores, pairs in self._blocks():
            rows.append(pairs[:, 0] + block.start)
            for ranks_of_order, (depth, weight) in zip(ranks, orders, strict=True):
                candidates = self.candidates[block, :depth]
                values = logits[block, :depth]
                if weight is not None:
                    values = fused_values(scores.gather(1, candidates), values, weight)
                final = two_stage_scores(scores, pairs, candidates, values)
                ranks_of_order.append(relevant_ranks(final, pairs))

        results = []
        for ranks_of_order in ranks:
            metrics = retrieval_metrics(torch.cat(ranks_of_order), torch.cat(rows))
            del metrics["num_queries"]
            results.append({f"{self.direction}_{name}": value for name, value in metrics.items()})
        return results

    def is_relevant(self) -> torch.BoolTensor:
        """Return whether each candidate is relevant, (N, K)."""
        # A pair as one number, row * columns + column, so that `isin` compares pairs.
        pairs = self._places_of_pairs(self.rows, self.pairs)
        num_columns = 1 + max(self.candidates.max().item(), pairs[:, 1].max().item())
        keys = self.candidates + num_columns * torch.arange(len(self.rows))[:, None]
        return torch.isin(keys, pairs[:, 0] * num_columns + pairs[:, 1])


class TwoStage:
    """
    Both stages of retrieval, in both directions (SCALAR Tables 1, 2 and S4): candidates, and their match logits.

    A mask hides a modality from both stages. The first never sees it, whatever the policy. For the second the paper
    says that "a masked modality is written as zeros in the common trunk, matching what a loader produces for an absent
    stream" ("Robustness to Test-Time Missing Modalities"). We read this as zero states of its tower, which still pass
    through the projection of the condition tokens and receive their position and type: the cross-encoder then reads
    the same number of tokens of every clip, and those of zero states are always the same. This is the policy
    `"zeros"`; modalities missing from the files count as masked. With `"absent"` no token of a missing modality is
    read. At rate 0 the two differ only for clips without video or audio. If the cross-encoder also reads subtitles,
    which have no fixed number of tokens, only `"absent"` is available.

    Args:
        model, processor, dataset: the cross-encoder and the clips it reads.
        embeddings ([`Embeddings`]): embeddings of the same data set, for the first stage and for the relevant pairs of
            captions and clips.
        depth (`int`): maximum number of clips per caption, and captions per clip, to reorder.
        rates (`Sequence[float]`): missing-modality masks, the same for both stages.
        policies (`Sequence[str]`): some of [`~scalar_retrieval.gallery.second_stage.matching.POLICIES`].
        score_options (`dict`, *optional*): keyword arguments of `retrieval_scores`; by default those of the model.
        options: of [`match_logits`].

    Raises:
        ValueError: the embeddings are not those of the data set, a method or policy is unknown, a rate is out of
            range, or as in [`match_logits`].
    """

    @torch.no_grad()
    def __init__(
        self,
        model: PreTrainedModel,
        processor: ProcessorMixin,
        dataset: Dataset,
        embeddings: Embeddings,
        depth: int = 50,
        rates: Sequence[float] = (0.0,),
        policies: Sequence[str] = ("absent",),
        score_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        clips, captions, *_ = group_rows(dataset)
        if embeddings.clip_ids != [clip["video_id"] for clip in clips] or set(embeddings.captions) != set(captions):
            raise ValueError("`embeddings` must be those of `dataset`: their clips or captions differ.")
        condition_on = model.config.condition_on
        check_policies(policies, condition_on)
        embeddings.check_finite()
        self.depth = depth
        if score_options is None:
            score_options = model.score_options()
        score_options = dict(score_options)
        self.method = score_options.setdefault("method", "scalar")

        # The first stage chooses the candidates of each mask and direction.
        masks = {}
        stages = {}
        for rate in rates:
            mask = mask_modalities(embeddings.clip_ids, embeddings.modality_mask, rate)
            masks[rate] = mask
            stages[rate] = []
            for direction in DIRECTIONS:
                stages[rate].append(_FirstStage(embeddings, mask, direction, depth, score_options))

        # What the cross-encoder has to score: the candidates, and the relevant pairs with nothing masked.
        self.settings = []
        requests = []  # (N, K, 3) each
        self._matched_setting = (policies[0], 0.0)
        matched = None
        for policy in policies:
            for rate in rates:
                self.settings.append((policy, rate))
                views = clip_views(masks[rate], embeddings.modalities, condition_on, policy)
                for stage in stages[rate]:
                    requests.append(stage.requests(views))
                if (policy, rate) == self._matched_setting:
                    relevant = torch.cat([embeddings.pairs, views[embeddings.pairs[:, 1:]]], dim=1)
                    matched = relevant[:, None]  # (P, 1, 3)
        if matched is not None:
            requests.append(matched)

        # Settings share most pairs: each is scored once, and its logit goes to every request for it.
        flat = torch.cat([request.flatten(0, 1) for request in requests])
        unique, places = flat.unique(dim=0, return_inverse=True)
        logits = match_logits(model, processor, clips, embeddings.captions, unique, **options)
        sizes = [request.shape[0] * request.shape[1] for request in requests]
        parts = iter(logits[places].split(sizes))
        self._measured = {}
        for setting in self.settings:
            self._measured[setting] = []
            for stage in stages[setting[1]]:
                self._measured[setting].append((stage, next(parts).view(stage.candidates.shape)))
        self._matched_logits = next(parts, None)

    def metrics(self, depths: Sequence[int], weight: float | None = None) -> list[dict[str, Any]]:
        """
        Measure retrieval after both stages.

        Args:
            depths (`Sequence[int]`): numbers of candidates to reorder, at most the number that was read.
            weight (`float`, *optional*): weight of the match logit, to also measure the rule `"fused"`.

        Returns:
            `list[dict]`, one per policy, rate, rule and depth, in this order: `depth`, `rule`, `policy`,
            `method`, `rate`, `mask_seed`, `num_unread_pairs` (candidates of both directions that kept their place
            because the clip has nothing for the cross-encoder to read), with `"fused"` the `weight`, and the
            `text_to_video_*` and `video_to_text_*` metrics.

        """
        # Every depth by the match alone, then by both scores.
        orders: list[tuple[int, float | None]] = []
        for order_weight in dict.fromkeys((None, weight)):
            for depth in sorted(set(depths)):
                orders.append((depth, order_weight))

        # Both directions of a mask share an entry.
        results = []
        for policy, rate in self.settings:
            entries = []
            for depth, order_weight in orders:
                entry = {"depth": depth, "rule": "match", "policy": policy, "method": self.method, "rate": rate}
                entry |= {"mask_seed": MASK_SEED, "num_unread_pairs": 0}
                if order_weight is not None:
                    entry |= {"rule": "fused", "weight": order_weight}
                entries.append(entry)
            for stage, logits in self._measured[policy, rate]:
                for entry, metrics in zip(entries, stage.metrics(logits, orders), strict=True):
                    entry["num_unread_pairs"] += logits[:, : entry["depth"]].isnan().sum().item()
                    entry |= metrics
            results += entries
        return results

    def choose_weight(self, grid: Sequence[float] = FUSION_WEIGHTS) -> dict[str, Any]:
        """
        Choose the weight of the match logit that retrieves these clips best.

        The best weight has the highest mean R@1 of both directions and all masks with the first policy at the largest
        depth: one weight has to serve whatever a clip lacks. In a tie the smallest weight wins. The chosen weight is
        for other clips: metrics on these clips would be too good.

        Args:
            grid (`Sequence[float]`): weights, ascending.

        Returns:
            `dict`: `weight`, `depth`, `policy`, `method`, `rates`, and `grid` with `curve`, the mean R@1 of each
            weight.

        """
        orders = [(self.depth, weight) for weight in grid]

        # R@1 of every weight, for each mask and direction of the first policy.
        first_policy = self.settings[0][0]
        rates = [rate for policy, rate in self.settings if policy == first_policy]
        recalls = []
        for rate in rates:
            for stage, logits in self._measured[first_policy, rate]:
                name = f"{stage.direction}_recall_at_1"
                recalls.append([metrics[name] for metrics in stage.metrics(logits, orders)])

        # Rounded, so that equal means tie despite the rounding errors of their sums.
        curve = np.mean(recalls, axis=0).round(9).tolist()
        best = grid[curve.index(max(curve))]
        return {
            "weight": best,
            "depth": self.depth,
            "policy": first_policy,
            "method": self.method,
            "rates": rates,
            "grid": list(grid),
            "curve": curve,
        }

    def diagnostic(self) -> dict[str, Any] | None:
        """
        Measure whether the match distinguishes relevant from irrelevant first candidates; not in the paper.

        Returns:
            `dict`: `auc`, the share of comparisons of a matched and a hard pair in which the matched one has the
            higher match logit, ties counted half; `num_matched_pairs`, captions with each clip they describe;
            `num_hard_pairs`, captions with the other clips among their first candidates (text to video only);
            `method`, `policy`, `depth`. Pairs that the cross-encoder cannot read are not counted. Measured with
            nothing masked and the first policy; `None` if these were not scored, or there is no pair of a kind.
        """
        if self._matched_setting not in self.settings:
            return None
        stage, logits = self._measured[self._matched_setting][0]
        # Match logits of irrelevant first candidates and of relevant pairs, without those that cannot be read.
        hard = logits[~stage.is_relevant()]
        hard = hard[~hard.isnan()]
        matched = self._matched_logits
        matched = matched[~matched.isnan()]
        if not len(matched) or not len(hard):
            return None
        return {
            "auc": area_under_curve(matched.numpy(), hard.numpy()),
            "num_matched_pairs": len(matched),
            "num_hard_pairs": len(hard),
            "direction": stage.direction,
            "method": self.method,
            "policy": self._matched_setting[0],
            "depth": self.depth,
        }


__all__ = [
    "FUSION_WEIGHTS",
    "TwoStage",
    "first_candidates",
    "match_logits",
    "two_stage_scores",
]
