"""The three sets of clips on which encoders side by side are measured.

Of each there is a half to fit to and a half that is shown, embedded by one model. Modalities are then treated as if
each had an encoder with a space of its own; the model's one space shows what that costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from evidence.composed import drawing, measuring, media
from evidence.stamps import embedding, items, regimes
from evidence.study.towers import load_for, metadata_of
from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset, embed_texts
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.gallery.store.provenance import provenance_of
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.modeling_scalar.model_identity import LIGHT

NUM_DRAWS = 20
"""Draws of each half, under each regime that draws anything."""

_AT_ONCE = 64  # texts in a forward pass
_CLIP = (0.2, 0.15)
_CLAP = (0.5, 0.0)
_MINILM = (0.7, 0.0)
"""A scale and an offset that put cosines from 0 to 1 where published encoders have theirs."""


@dataclass(frozen=True)
class Draw:
    """
    One draw of both halves.

    Args:
        fitted, shown ([`~scalar_retrieval.eval.embedding.embeddings.Embeddings`]): clips and captions of each half.
        own_texts (`Embeddings`): the clips to fit to, with their titles and subtitles in place of captions.
    """

    fitted: Embeddings
    shown: Embeddings
    own_texts: Embeddings


@dataclass(frozen=True)
class ClipSet:
    """
    A set of clips.

    Args:
        spaces (`tuple[int, ...]`): the number of the space of each modality, from 0.
        published (`tuple[tuple[float, float], ...]`): for each modality scale and offset of an encoder's cosines.
        regimes (`dict[str, list[Draw]]`): by what clips lack.
        about (`dict`): numbers of clips and captions, and the model.
    """

    spaces: tuple[int, ...]
    published: tuple[tuple[float, float], ...]
    regimes: dict[str, list[Draw]]
    about: dict[str, Any]


def _with_texts(embeddings: Embeddings, texts: torch.Tensor, owners: torch.Tensor) -> Embeddings:
    """The clips with other texts `(texts, D)`, and the clip that each is of `(texts,)`."""
    names = [str(number) for number in range(len(texts))]
    pairs = torch.stack([torch.arange(len(texts)), owners], dim=1)
    return replace(embeddings, text_embeds=texts, pairs=pairs, query_ids=names, captions=names)


def own_texts_of(embeddings: Embeddings, names: Sequence[str]) -> Embeddings:
    """The clips with their texts in place of captions: modalities that the encoder of queries embedded."""
    texts = []
    owners = []
    for name in names:
        column = embeddings.modalities.index(name)
        present = embeddings.modality_mask[:, column].nonzero().flatten()
        texts.append(embeddings.modality_embeds[present, column])
        owners.append(present)
    return _with_texts(embeddings, torch.cat(texts), torch.cat(owners))


def _about(draw: Draw, metadata: dict[str, Any]) -> dict[str, Any]:
    counts = {}
    for name, half in (("fit", draw.fitted), ("shown", draw.shown)):
        counts[name] = {"clips": len(half.clip_ids), "captions": len(half.captions)}
    return {"counts": counts, "fingerprint": metadata.get("fingerprint")}


# The miniature, and the stamps ---------------------------------------------------------------------------------------


def _drawn(half: embedding.Half, regime: str, seed: int, modalities: Sequence[str]) -> list[Embeddings]:
    """All draws of a regime of a half."""
    drawn = regimes.draw(half, regime, NUM_DRAWS, seed)
    queries = [str(number) for number in range(len(half.relevant))]
    found = []
    for embeds, mask in zip(drawn.modality_embeds, drawn.modality_mask, strict=True):
        found.append(
            Embeddings(
                text_embeds=half.text_embeds,
                modality_embeds=embeds,
                modality_mask=mask & embeds.any(-1),  # a clip may have lacked it before
                pairs=torch.stack([torch.arange(len(queries)), half.relevant], dim=1),
                clip_ids=[str(number) for number in range(len(mask))],
                query_ids=queries,
                captions=queries,
                modalities=tuple(modalities),
            )
        )
    return found


def read_miniature(model: Path, root: Path) -> ClipSet:
    """
    Embed the miniature benchmark: picture, sound and speech as three spaces.

    Args:
        model (`Path`): the folder of a trained model.
        root (`Path`): the folder of the benchmark. Its validation clips are the half to fit to.
    """
    halves = []
    for split in ("validation", "test"):
        network, processor, rows, _ = load_for(model, root, split)
        embeddings = embed_dataset(network, processor, rows, progress=False, num_workers=1)
        present = embeddings.modality_embeds * embeddings.modality_mask[..., None]
        halves.append(embedding.Half(embeddings.text_embeds, present, embeddings.pairs[:, 1]))
        if split == "validation":
            # Subtitles as queries, as a gallery's own texts are read.
            texts = [text for text in rows["subtitle"] if text is not None]
            subtitles = embed_texts(network, processor, texts, _AT_ONCE)
            owners = torch.tensor([text is not None for text in rows["subtitle"]]).nonzero().flatten()
    found = {}
    for regime, drawn in (("as generated", "complete"), ("missing", "missing")):
        sides = [_drawn(half, drawn, seed, embeddings.modalities) for seed, half in enumerate(halves)]
        found[regime] = []
        for fitted, shown in zip(*sides, strict=True):
            found[regime].append(Draw(fitted, shown, _with_texts(fitted, subtitles, owners)))
    about = _about(found["missing"][0], metadata_of(network, model, rows))
    return ClipSet((0, 1, 2), (_CLIP, _CLAP, _MINILM), found, about)


def read_stamps(root: Path) -> ClipSet:
    """
    Embed the stamps by `light`: pictures in one space, titles and folders in another.

    Args:
        root (`Path`): the folder of stamps.
    """
    sides: dict[bool, list[items.Item]] = {False: [], True: []}
    for item in items.read_items(root):
        sides[item.is_shown].append(item)
    halves = [embedding.embed_half(side, root) for side in sides.values()]
    found = {}
    for regime in regimes.REGIMES:
        drawn = [_drawn(half, regime, seed, embedding.MODALITIES) for seed, half in enumerate(halves)]
        found[regime] = []
        for fitted, shown in zip(*drawn, strict=True):
            found[regime].append(Draw(fitted, shown, own_texts_of(fitted, ["title"])))
    model, _ = load_model(LIGHT, modalities=embedding.MODALITIES)
    about = _about(found["missing"][0], provenance_of(model, LIGHT))
    return ClipSet((0, 1, 1), (_CLIP, _MINILM, _MINILM), found, about)


# Composed clips ------------------------------------------------------------------------------------------------------


def read_composed(stamps: Path, prompts: Path) -> ClipSet:
    """
    Embed composed clips by `light`: photograph, name of the sound and recognised words as three spaces.

    Args:
        stamps (`Path`), prompts (`Path`): the folders of both packages.
    """
    understood = media.recognise(prompts)
    sides = []
    for half in media.read_halves(stamps, prompts).values():
        clips = {}
        captions = []
        for regime in measuring.CLIPS:
            clips[regime] = [drawing.draw(half, seed, regime == "complete") for seed in range(NUM_DRAWS)]
            for drawn in clips[regime]:
                captions += [clip.caption for clip in drawn]
        # What clips are made of is embedded once.
        vectors = measuring.embed(half, understood, captions, stamps)
        composed = {}
        for regime, draws in clips.items():
            composed[regime] = [measuring.compose(drawn, vectors) for drawn in draws]
        sides.append(composed)
    found = {}
    for regime in measuring.CLIPS:
        found[regime] = []
        for fitted, shown in zip(*(side[regime] for side in sides), strict=True):
            found[regime].append(Draw(fitted, shown, own_texts_of(fitted, ["title", "subtitle"])))
    about = _about(found["complete"][0], vectors.metadata)
    return ClipSet((0, 1, 2), (_CLIP, _CLAP, _MINILM), found, about)


__all__ = ["NUM_DRAWS", "ClipSet", "Draw", "own_texts_of", "read_composed", "read_miniature", "read_stamps"]
