"""`python -m evidence temperature`: suggest a contrastive temperature for a backbone from the spread of its cosines.

InfoNCE divides scores by tau. If their spread over unmatched pairs is much larger than tau, each text is pushed only
from its few hardest clips; if it is much smaller, from all clips alike. So tau is proportional to it: tau = RATIO *
spread. The paper fixes tau = 0.07 for its backbone; RATIO is only a starting point (docs/miniature_study.md).
"""

import torch

import evidence.miniature  # noqa: F401 # registers its benchmark
from scalar_retrieval.commands.texts import print_message
from scalar_retrieval.eval.benchmarks.registry import load_benchmark
from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.modeling_scalar.model_identity import device_of_name, model_summary

RATIO = 1.5
"""Tau divided by the standard deviation of the backbone's scores of unmatched pairs."""


def spread(scores: torch.Tensor, is_match: torch.Tensor) -> float:
    """
    Return the standard deviation of the scores of unmatched pairs.

    Args:
        scores (`torch.Tensor` of shape `(queries, clips)`): The model's scores, `-inf` for a pair without a score.
        is_match (`torch.BoolTensor` of shape `(queries, clips)`): Whether the query describes the clip.

    Raises:
        ValueError: If there are fewer than two unmatched pairs.
    """
    unmatched = scores[~is_match & scores.isfinite()].double()
    if len(unmatched) < 2:
        raise ValueError(f"The spread needs at least two unmatched pairs, got {len(unmatched)}. Use more clips.")
    return unmatched.std().item()


def spread_of_model(
    model: str,
    root: str,
    benchmark: str,
    split: str,
    clips: int,
    aggregation: str | None = None,
    device: str | None = None,
) -> float:
    """
    Return the [`spread`] of a backbone's scores.

    Args:
        model (`str`): Folder or Hub id of the backbone.
        root (`str`), benchmark (`str`), split (`str`): The clips and their captions.
        clips (`int`): How many rows are read, from the first.
        aggregation (`str`, *optional*): A score instead of the model's own.
        device (`str`, *optional*): By default the accelerator, if there is any.
    """
    changes = {}
    if aggregation is not None:
        changes["aggregation"] = aggregation
    network, processor = load_model(model, None, device_of_name(device), **changes)
    print_message(f"{model}: {model_summary(network)}.")

    # The first clips alone: every two of them are a pair.
    rows = load_benchmark(benchmark, root, split)
    embeddings = embed_dataset(network, processor, rows.select(range(min(clips, len(rows)))))
    network.to("cpu")  # where the embeddings are; the score may have learned parameters
    scores = network.compute_scores(embeddings.text_embeds, embeddings.modality_embeds, embeddings.modality_mask)
    # Pairs of the benchmark match, all others do not.
    is_match = torch.zeros(scores.shape, dtype=torch.bool)
    is_match[embeddings.pairs[:, 0], embeddings.pairs[:, 1]] = True
    return spread(scores, is_match)


__all__ = ["RATIO", "spread", "spread_of_model"]
