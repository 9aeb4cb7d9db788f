"""The three sets of clips on which encoders side by side are measured.

Of each there is a half to fit to and a half that is shown, embedded by one model. Modalities are then treated as if
each had an encoder with a space of its own; the model's one space shows what that costs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from evidence.composed import measuring, media
from evidence.stamps import embedding, items, regimes
from evidence.study.towers import load_for
from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset, embed_texts
from scalar_retrieval.eval.embedding.embeddings import Embeddings

NUM_DRAWS = 20
"""Draws of each half, under each regime that draws anything."""

_FIT_SEED = 0
_SHOWN_SEED = 1
_AT_ONCE = 64  # texts in a forward pass
# Scales and offsets that put cosines from 0 to 1 where those of published encoders lie.
_CLIP = (0.2, 0.15)
_CLAP = (0.5, 0.0)
_MINILM = (0.7, 0.0)


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
        regimes (`dict[str, list[Draw]]`): draws by what clips lack.
    """

    spaces: tuple[int, ...]
    published: tuple[tuple[float, float], ...]
    regimes: dict[str, list[Draw]]


def _with_texts(embeddings: Embeddings, texts: torch.Tensor, owners: torch.Tensor) -> Embeddings:
    """The clips with other texts `(texts, D)`, and the clip that each is of `(texts,)`."""
    names = list(map(str, range(len(texts))))
    pairs = torch.stack([torch.arange(len(texts)), owners], dim=1)
    return replace(embeddings, text_embeds=texts, pairs=pairs, query_ids=names, captions=names)


def own_texts_of(embeddings: Embeddings, names: Sequence[str]) -> Embeddings:
    """Return the clips with modalities that the encoder of queries embedded in place of captions."""
    columns = [embeddings.modalities.index(name) for name in names]
    owners, places = embeddings.modality_mask[:, columns].nonzero().T
    return _with_texts(embeddings, embeddings.modality_embeds[:, columns][owners, places], owners)


def _paired(
    fitted: Sequence[Embeddings], shown: Sequence[Embeddings], own_texts: Callable[[Embeddings], Embeddings]
) -> list[Draw]:
    """Draws of both halves."""
    draws = []
    for one, other in zip(fitted, shown, strict=True):
        draws.append(Draw(one, other, own_texts(one)))
    return draws


def _drawn(half: embedding.Half, regime: str, seed: int, modalities: Sequence[str]) -> list[Embeddings]:
    """All draws of a regime of a half."""
    drawn = regimes.draw(half, regime, NUM_DRAWS, seed)
    queries = list(map(str, range(len(half.relevant))))
    found = []
    for embeds, mask in zip(drawn.modality_embeds, drawn.modality_mask, strict=True):
        mask = mask & embeds.any(-1)  # a clip may have lacked it before
        pairs = torch.stack([torch.arange(len(queries)), half.relevant], dim=1)
        clips = list(map(str, range(len(mask))))
        found.append(Embeddings(half.text_embeds, embeds, mask, pairs, clips, queries, queries, tuple(modalities)))
    return found


def read_miniature(model: Path, root: Path) -> ClipSet:
    """
    Embed the miniature benchmark: picture, sound and speech as three spaces.

    Args:
        model (`Path`): the folder of a trained model.
        root (`Path`): the folder of the benchmark. Its validation clips are the half to fit to.
    """
    halves = []
    for split, seed in (("test", _SHOWN_SEED), ("validation", _FIT_SEED)):
        network, processor, rows, _ = load_for(model, root, split)
        embeddings = embed_dataset(network, processor, rows, progress=False, num_workers=1)
        embeds = embeddings.modality_embeds * embeddings.modality_mask[..., None]
        halves.append((embedding.Half(embeddings.text_embeds, embeds, embeddings.pairs[:, 1]), seed))
    # Subtitles of the half to fit to as queries, as a gallery's own texts are read.
    owners = embeddings.modality_mask[:, -1].nonzero().flatten()
    subtitles = embed_texts(network, processor, [rows["subtitle"][row] for row in owners.tolist()], _AT_ONCE)

    found: dict[str, list[Draw]] = {}
    for title, regime in (("as generated", "complete"), ("missing", "missing")):
        shown, fitted = (_drawn(half, regime, seed, embeddings.modalities) for half, seed in halves)
        found[title] = _paired(fitted, shown, partial(_with_texts, texts=subtitles, owners=owners))
    return ClipSet((0, 1, 2), (_CLIP, _CLAP, _MINILM), found)


def read_stamps(root: Path) -> ClipSet:
    """
    Embed the stamps by `light`: pictures in one space, titles and folders in another.

    Args:
        root (`Path`): the folder of stamps.
    """
    read = items.read_items(root)
    shown = embedding.embed_half([item for item in read if item.is_shown], root)
    fitted = embedding.embed_half([item for item in read if not item.is_shown], root)
    found: dict[str, list[Draw]] = {}
    for regime in regimes.REGIMES:
        found[regime] = _paired(
            _drawn(fitted, regime, _FIT_SEED, embedding.MODALITIES),
            _drawn(shown, regime, _SHOWN_SEED, embedding.MODALITIES),
            partial(own_texts_of, names=["title"]),
        )
    return ClipSet((0, 1, 1), (_CLIP, _MINILM, _MINILM), found)


def read_composed(stamps: Path, prompts: Path) -> ClipSet:
    """
    Embed composed clips by `light`: photograph, name of the sound and recognised words as three spaces.

    Args:
        stamps (`Path`), prompts (`Path`): the folders of both packages.
    """
    understood = media.recognise(prompts)
    halves = []
    for half in media.read_halves(stamps, prompts).values():
        clips, vectors = measuring.embed_draws(half, understood, measuring.CLIPS, stamps)
        composed = {}
        for kind, draws in clips.items():
            composed[kind] = [measuring.compose(drawn, vectors) for drawn in draws]
        halves.append(composed)
    fitted, shown = halves
    found: dict[str, list[Draw]] = {}
    for kind in measuring.CLIPS:
        found[kind] = _paired(fitted[kind], shown[kind], partial(own_texts_of, names=["title", "subtitle"]))
    return ClipSet((0, 1, 2), (_CLIP, _CLAP, _MINILM), found)


__all__ = ["NUM_DRAWS", "ClipSet", "Draw", "own_texts_of", "read_composed", "read_miniature", "read_stamps"]
