"""`python -m trainer.temperature`: the contrastive temperature that suits a backbone, from the spread of its cosines.

InfoNCE sees scores divided by tau. Where their spread over unmatched pairs is many times tau, each text is pushed from
its few hardest clips alone; where it is a small part of tau, from all clips alike. So tau goes with the spread: tau =
RATIO * spread. The paper fixes tau = 0.07 for its backbone; RATIO is only a place to begin
(docs/miniature_study.md).
"""

from typing import Annotated

import torch
import typer

from commands.errors import say, user_errors
from commands.options import Column, Device, Holdout, ModelDtype, WordsOf

RATIO = 1.5
"""Tau over the standard deviation of the backbone's scores of unmatched pairs."""


def spread(scores: torch.Tensor, is_match: torch.Tensor) -> float:
    """
    Return the standard deviation of the scores of unmatched pairs.

    Args:
        scores (`torch.Tensor` of shape `(queries, clips)`): of the model's own score; a pair without one is `-inf`.
        is_match (`torch.BoolTensor` of shape `(queries, clips)`): pairs of a query and a clip that it describes.

    Raises:
        ValueError: there are fewer than two unmatched pairs.
    """
    unmatched = scores[~is_match & scores.isfinite()].double()
    if len(unmatched) < 2:
        raise ValueError(f"A spread needs at least two unmatched pairs, got {len(unmatched)}: give more clips.")
    return unmatched.std().item()


def main(
    model: Annotated[str, typer.Option(help="Folder or Hub name of the backbone.")],
    benchmark: Annotated[str, typer.Option(help="Name of the benchmark, such as miniature.")],
    root: Annotated[str, typer.Option(help="Folder of the benchmark.")],
    split: Annotated[str, typer.Option(help="Split whose clips are read.")] = "train",
    column: Column = None,
    holdout: Holdout = None,
    words_of: WordsOf = None,
    clips: Annotated[int, typer.Option(min=2, help="So many of its rows, the first ones.")] = 1000,
    aggregation: Annotated[str | None, typer.Option(help="Another score than the model's own.")] = None,
    device: Device = None,
    model_dtype: ModelDtype = None,
) -> None:
    """Suggest a contrastive temperature for a backbone."""
    with user_errors():
        from eval.benchmarks import load_benchmark
        from eval.embedding.embed_dataset import embed_dataset
        from eval.settings import columns_of
        from modeling_scalar import load_model
        from modeling_scalar.devices import device_of_name, dtype_of_name, said_of
        from modeling_scalar.scores_scalar import retrieval_scores

        changes = {} if aggregation is None else {"aggregation": aggregation}
        network, processor = load_model(model, dtype_of_name(model_dtype), device_of_name(device), **changes)
        say(f"{model}: {said_of(network)}.")
        own = {"columns": column and columns_of(column), "holdout": holdout, "words_of": words_of}
        rows = load_benchmark(benchmark, root, split, **own)
        embeddings = embed_dataset(network, processor, rows.select(range(min(clips, len(rows)))))
        network.to("cpu")  # where the embeddings are, with what the score has learned
        scores = retrieval_scores(
            embeddings.text_embeds, embeddings.modality_embeds, embeddings.modality_mask, **network.score_options()
        )
        is_match = torch.zeros(scores.shape, dtype=torch.bool)
        is_match[embeddings.pairs[:, 0], embeddings.pairs[:, 1]] = True
        found = spread(scores, is_match)
        say(f"Scores of unmatched pairs spread by {found:.3f}; temperature: {RATIO * found:.2g}")


__all__ = ["RATIO", "spread"]

if __name__ == "__main__":
    typer.run(main)
