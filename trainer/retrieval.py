"""Retrieval as the evaluation of a training: what is measured of embedded rows."""

from collections.abc import Callable

import numpy as np
import torch
from transformers import EvalPrediction

from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.eval.protocol.first_stage import evaluate_embeddings, rank_pairs
from scalar_retrieval.modeling_scalar.retrieval_scalar import ScalarRetrievalModel
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS

from .training_args import MEAN_RECALL


class RetrievalPrediction(EvalPrediction):
    """
    What `compute_metrics` of [`ScalarTrainer`] gets: Q captions, V clips, P pairs of a caption and its clip.

    Attributes:
        predictions (`np.ndarray` of shape `(Q, V)`): The model's scores; higher is better, `-inf` where undefined.
        label_ids (`np.ndarray` of shape `(P, 2)`): The caption and the clip of each pair, as rows and columns of it.
        ranks (`dict` of `np.ndarray` of shape `(P,)`): For `"text_to_video"` the rank of each pair's clip among all
            clips, for `"video_to_text"` that of its caption among all captions; from 1, ties count against it.
    """

    def __init__(self, scores: np.ndarray, pairs: np.ndarray, ranks: dict[str, np.ndarray]):
        super().__init__(scores, pairs)
        self.ranks = ranks


ComputeMetrics = Callable[[RetrievalPrediction], dict[str, float]]


@torch.no_grad()
def measure(
    model: ScalarRetrievalModel, embeddings: Embeddings, compute_metrics: ComputeMetrics | None = None
) -> dict[str, float]:
    """
    Rank clips for captions and captions for clips by the model's own score, with every modality that a clip has.

    Returns:
        `dict`: [`~scalar_retrieval.trainer.training_args.METRICS`], and those that `compute_metrics` adds.

    Raises:
        ValueError: If `compute_metrics` returns a metric with one of these names.
    """
    options = model.score_options()
    method = options.pop("method")
    results = evaluate_embeddings(embeddings, methods=(method,), rates=(0.0,), **options)
    measured: dict[str, float] = results["rates"][0]["methods"][method]
    recalls = [measured[f"{direction}_recall_at_1"] for direction in DIRECTIONS]
    measured[MEAN_RECALL] = sum(recalls) / len(recalls)
    if compute_metrics is None:
        return measured
    # Metrics of the user's own, from all scores and ranks.
    inputs = embeddings.score_inputs(slice(None), slice(None))
    del inputs["modalities"]  # those of the model
    scores = model.compute_scores(**inputs)
    [by_method] = rank_pairs(embeddings, [embeddings.modality_mask], (method,), **options)
    ranks = {direction: values.numpy() for direction, values in by_method[method].items()}
    own = compute_metrics(RetrievalPrediction(scores.cpu().numpy(), embeddings.pairs.numpy(), ranks))
    same = sorted(own.keys() & measured.keys())
    if same:
        raise ValueError(f"`compute_metrics` must give its metrics names of their own; {same} are measured already.")
    return measured | own


__all__ = ["ComputeMetrics", "RetrievalPrediction", "measure"]
