"""The three sets of clips on which encoders side by side are measured.

Of each there is a half to fit to and a half that is shown, embedded by one model. Modalities are then treated as if
each had an encoder with a space of its own; the model's one space shows what that costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    for split in ("test", "validation"):
        network, processor, rows, _ = load_for(model, root, split)
        embeddings = embed_dataset(network, processor, rows, progress=False, num_workers=1)
        embeds = embeddings.modality_embeds * embeddings.modality_mask[..., None]
        halves.append(embedding.Half(embeddings.text_embeds, embeds, embeddings.pairs[:, 1]))
    # Subtitles of the half to fit to as queries, as a gallery's own texts are read.
    owners = embeddings.modality_mask[:, -1].nonzero().flatten()
    subtitles = embed_texts(network, processor, [rows["subtitle"][row] for row in owners.tolist()], _AT_ONCE)

    found: dict[str, list[Draw]] = {}
    for title, regime in (("as generated", "complete"), ("missing", "missing")):
        others = _drawn(halves[0], regime, _SHOWN_SEED, embeddings.modalities)
        found[title] = []
        for place, one in enumerate(_drawn(halves[1], regime, _FIT_SEED, embeddings.modalities)):
            found[title].append(Draw(one, others[place], _with_texts(one, subtitles, owners)))
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
        others = _drawn(shown, regime, _SHOWN_SEED, embedding.MODALITIES)
        found[regime] = []
        for place, one in enumerate(_drawn(fitted, regime, _FIT_SEED, embedding.MODALITIES)):
            found[regime].append(Draw(one, others[place], own_texts_of(one, ["title"])))
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
        halves.append(measuring.embed_draws(half, understood, measuring.CLIPS, stamps))
    (fitted, vectors), (shown, other_vectors) = halves
    found: dict[str, list[Draw]] = {}
    for kind in measuring.CLIPS:
        found[kind] = []
        for clips, others in zip(fitted[kind], shown[kind], strict=True):
            one = measuring.compose(clips, vectors)
            texts = own_texts_of(one, ["title", "subtitle"])
            found[kind].append(Draw(one, measuring.compose(others, other_vectors), texts))
    return ClipSet((0, 1, 2), (_CLIP, _CLAP, _MINILM), found)


__all__ = ["NUM_DRAWS", "ClipSet", "Draw", "own_texts_of", "read_composed", "read_miniature", "read_stamps"]
