"""`python -m evidence labels`: a trained model on short class labels, and how near it brings these to their clips.

The labels are those of the benchmark `miniature_classes`: "the sound of a bell" for all clips with a bell. Accuracy is
that of the model's own score: the share of clips that their label fits best. The text-centroid cosine is the paper's
(see [`~evidence.latent.latent_space`]), of the trained model and of the one that the training began with.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from evidence.latent import latent_space
from evidence.settings import LabelsConfig
from evidence.study.ranks import own_ranks
from evidence.study.results import BACK
from evidence.study.towers import embed_stored
from scalar_retrieval.eval.benchmarks.registry import load_split
from scalar_retrieval.eval.embedding.embed_dataset import embed_texts
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.gallery.store.described import score_options_of
from scalar_retrieval.gallery.store.files import read_json, write_json
from scalar_retrieval.modeling_scalar import load_model

_BENCHMARK = "miniature_classes"


@torch.no_grad()
def embed_classes(model: str | Path, root: Path) -> Embeddings:
    """
    Embed the class labels of the test clips, and all of these clips.

    Args:
        model (`str` or `Path`): a model with the towers of the backbone.
        root (`Path`): folder of the miniature benchmark, with the stored outputs of the towers.

    Returns:
        [`~scalar_retrieval.eval.embedding.embeddings.Embeddings`] with a query for each label; clips without sound
        belong to none.
    """
    embeddings = embed_stored(model, root, "test")
    rows = load_split(_BENCHMARK, root, "test").dataset
    label_of = dict(zip(rows["video_id"], rows["caption"], strict=True))
    labels = sorted(set(label_of.values()))
    pairs = []
    for clip, clip_id in enumerate(embeddings.clip_ids):
        if clip_id in label_of:
            pairs.append([labels.index(label_of[clip_id]), clip])
    network, processor = load_model(str(model), dtype=torch.float32)
    return replace(
        embeddings,
        text_embeds=embed_texts(network.eval(), processor, labels, len(labels)),
        pairs=torch.tensor(pairs),
        query_ids=labels,
        captions=labels,
    )


def accuracy(embeddings: Embeddings) -> float:
    """Return the share of labelled clips that their label fits best, in percent, by the score of the training."""
    options: dict[str, Any] = score_options_of(embeddings.metadata)
    method = options.pop("method")
    (ranks,) = own_ranks(embeddings, [embeddings.modality_mask], (method, options))
    return 100 * (ranks[BACK] == 1).double().mean().item()


def main(config: LabelsConfig) -> None:
    """Write the accuracy of a trained model, and its text-centroid cosine before and after the training."""
    trained = embed_classes(config.model, Path(config.root))
    initial = embed_classes(read_json(Path(config.model) / "recipe.json")["model"], Path(config.root))
    content = {
        "accuracy": accuracy(trained),
        "text_centroid_cosine": latent_space(trained)["text_centroid_cosine"],
        "initial_text_centroid_cosine": latent_space(initial)["text_centroid_cosine"],
    }
    write_json(content, Path(config.output))


__all__ = ["accuracy", "embed_classes", "main"]
