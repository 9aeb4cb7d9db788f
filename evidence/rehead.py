"""`python -m evidence rehead GALLERY --model RUN --output NEW`: apply trained heads to the gallery of an encoder.

Nothing is embedded again: the heads transform the stored embeddings in seconds.
"""

import shutil
from pathlib import Path

import torch
from safetensors import safe_open

from scalar_retrieval.commands.texts import print_message
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.gallery.store import stills
from scalar_retrieval.gallery.store.columns import query_table, text_embeds_of
from scalar_retrieval.gallery.store.described import SCALES
from scalar_retrieval.gallery.store.provenance import provenance_of
from scalar_retrieval.gallery.store.rows import lists_of, texts_of
from scalar_retrieval.gallery.words import transcripts
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.modeling_scalar.model_identity import ModelIdentity, identify, model_summary, part_of

_BESIDE_HEADS = ("logit_scale", "hyperbolic")


def _base_of_heads(heads: ModelIdentity) -> ModelIdentity:
    """The base model of an adapter that trains only heads."""
    folder = heads.download()
    parts = set()
    if heads.adapter is not None:
        with safe_open(folder / "adapter_model.safetensors", "pt") as file:
            parts = {part_of(name) for name in file.keys()}
    others = []
    for part in sorted(parts):
        if not part.endswith("_head") and part not in _BESIDE_HEADS:
            others.append(part)
    if others or not parts:
        found = "no adapter"
        if others:
            found = f"an adapter that changes {others} too"
        raise ValueError(
            f"{folder} must hold an adapter of heads only, but holds {found}. For any other model, embed the "
            "clips again."
        )
    return heads.base


@torch.no_grad()
def rehead(gallery: Path, model: str, output: Path) -> Gallery:
    """
    Write the gallery that the encoder with trained heads would make, from the gallery of the encoder.

    Args:
        gallery (`Path`): The gallery made by the encoder that the heads belong to.
        model (`str`): The folder or Hub id of an adapter of heads.
        output (`Path`): A new or empty folder.

    Returns:
        [`~scalar_retrieval.gallery.gallery.Gallery`]: The new gallery, in the precision of the first.

    Raises:
        ValueError: If another model made the gallery, or the adapter changes more than heads.
    """
    # The heads must belong to the encoder that made the gallery.
    heads = identify(model)
    base = _base_of_heads(heads)
    old = Gallery.open(gallery)
    old.check_model(base.name, base.fingerprint, must_know=True)
    model = heads.name  # so that the gallery finds it from any folder
    network, _ = load_model(model, torch.float32)
    print_message(f"{model}: {model_summary(network)}; only its heads are applied.")

    def project(name: str, vectors: torch.Tensor) -> torch.Tensor:
        if hasattr(network, f"{name}_head"):
            vectors = network.project(name, vectors.float())
        return vectors

    # The clips, in which what is absent stays zero
    embeds = old.modality_embeds()
    columns = [project(name, embeds[:, place]) for place, name in enumerate(old.modalities)]
    mask = old.modality_mask
    embeds = torch.stack(columns, dim=1) * mask[..., None]
    problems = lists_of(old.clips, "problems")
    seconds = old.clips.column("seconds").to_pylist()
    with GalleryWriter(output, old.dtype) as writer:
        # `plan` describes the embedding run, and scales are those of the old vectors
        kept = dict(old.metadata)
        kept.pop("plan", None)
        kept.pop(SCALES, None)
        writer.metadata = kept | provenance_of(network, model)
        writer.put_clips(old.clip_ids, embeds, mask, problems, seconds)
        writer.put_files(list(old.files.values()))
        if old.queries is not None:
            vectors = project("text", text_embeds_of(old.queries))
            query_ids = texts_of(old.queries, "query_id")
            captions = texts_of(old.queries, "caption")
            clip_ids = lists_of(old.queries, "clip_ids")
            writer.put_queries(query_table(query_ids, captions, vectors, clip_ids, writer.dtype))
        writer.commit()
        # Words that were recognised, and pictures
        for name in (transcripts.FOLDER, stills.FOLDER):
            if (gallery / name).is_dir():
                shutil.copytree(gallery / name, output / name)
        return writer.gallery()


__all__ = ["rehead"]
