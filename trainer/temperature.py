"""`python -m trainer.temperature`: suggest a contrastive temperature for a backbone from the spread of its cosines.

InfoNCE divides scores by tau. If their spread over unmatched pairs is much larger than tau, each text is pushed only
from its few hardest clips; if it is much smaller, from all clips alike. So tau is proportional to it: tau = RATIO *
spread. The paper fixes tau = 0.07 for its backbone; RATIO is only a starting point (docs/miniature_study.md).
"""

from typing import Annotated

import torch
import typer

from commands.errors import say, user_errors
from commands.options import Column, Device, Holdout, ModelDtype, WordsOf, columns_of

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


def main(
    model: Annotated[str, typer.Option(help="Folder or Hub id of the backbone.")],
    benchmark: Annotated[str, typer.Option(help="Name of the benchmark, such as miniature.")],
    root: Annotated[str, typer.Option(help="Folder of the benchmark.")],
    split: Annotated[str, typer.Option(help="Split to read.")] = "train",
    column: Column = None,
    holdout: Holdout = None,
    words_of: WordsOf = None,
    clips: Annotated[int, typer.Option(min=2, help="Number of rows to read, from the first.")] = 1000,
    aggregation: Annotated[str | None, typer.Option(help="Score to use instead of the model's own.")] = None,
    device: Device = None,
    model_dtype: ModelDtype = None,
) -> None:
    """Suggest a contrastive temperature for a backbone."""
    with user_errors():
        from eval.benchmarks.registry import load_benchmark
        from eval.embedding.embed_dataset import embed_dataset
        from modeling_scalar import load_model
        from modeling_scalar.model_identity import device_of_name, dtype_of_name, said_of
        from modeling_scalar.scores_scalar import retrieval_scores

        changes = {} if aggregation is None else {"aggregation": aggregation}
        network, processor = load_model(model, dtype_of_name(model_dtype), device_of_name(device), **changes)
        say(f"{model}: {said_of(network)}.")
        own = {"columns": column and columns_of(column), "holdout": holdout, "words_of": words_of}
        rows = load_benchmark(benchmark, root, split, **own)
        embeddings = embed_dataset(network, processor, rows.select(range(min(clips, len(rows)))))
        network.to("cpu")  # where the embeddings are; the score may have learned parameters
        scores = retrieval_scores(
            embeddings.text_embeds, embeddings.modality_embeds, embeddings.modality_mask, **network.score_options()
        )
        is_match = torch.zeros(scores.shape, dtype=torch.bool)
        is_match[embeddings.pairs[:, 0], embeddings.pairs[:, 1]] = True
        found = spread(scores, is_match)
        say(f"Spread of the scores of unmatched pairs: {found:.3f}; temperature: {RATIO * found:.2g}")


__all__ = ["RATIO", "spread"]

if __name__ == "__main__":
    typer.run(main)
