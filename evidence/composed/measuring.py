"""Embeds what composed clips are made of once, fits every score to the clips of one half, and ranks the other half.

A draw of the half that fits belongs to a draw of the half that is shown, as the study's validation clips belong to its
test clips: each draw has numbers of its own, by the study's rule.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from transformers import PreTrainedModel, ProcessorMixin

from evidence.stamps.items import digest_of
from evidence.study.corrected import clip_terms
from evidence.study.measure import AS_TRAINED, FITTED_ALL, choose, write_ranks
from evidence.study.ranks import HIGHEST, Choice, own_ranks, reciprocal
from scalar_retrieval.eval.embedding.embed_dataset import embed_texts
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.eval.metrics.retrieval.ranking import relevant_ranks
from scalar_retrieval.gallery.embedding import embed_clips, in_batches
from scalar_retrieval.gallery.store.files import write_json
from scalar_retrieval.gallery.store.provenance import provenance_of, versions
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.modeling_scalar.model_identity import LIGHT
from scalar_retrieval.modeling_scalar.processing_scalar import Clip
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS, make_pairs

from .drawing import MODALITIES, ComposedClip, draw, recall_ceilings
from .media import WORDS, Half, read_halves, read_picture, recognise, subtitle_of

RANKS, FACTS = "ranks.parquet", "composed.json"
"""The files of a folder of results."""

NUM_DRAWS = 20
"""Even, so that each photograph has as many captions of each kind."""

CLIPS = ("incomplete", "complete")
"""Sets of clips of each draw."""

SCORES = ("scalar", "uniform", "gram", "gram_span", "gram_corrected", "span_corrected", "max", "mean")
TEMPERATURE, ALL = "temperature", "all"
"""Numbers of SCALAR's score: those of a fit, whether it is kept or not."""

ARITY = "scalar_arity"
"""SCALAR's score with a fitted constant for each modality that a clip lacks."""

_CONSTANTS = [number / 80 for number in range(-40, 41)]
_AT_ONCE = 32

Key = tuple[str, str]
"""A score and its numbers."""


@dataclass(frozen=True)
class Vectors:
    """
    What clips are made of, each embedded once.

    Args:
        contents (`dict`): by modality and then by the path of the photograph, by the title of the sound and by the two
            prompts: a vector of unit norm. Nothing of which the recogniser understood no word.
        captions (`dict[str, torch.Tensor]`): the vector of each caption.
        metadata (`dict`): describes the model.
    """

    contents: Mapping[str, Mapping[Any, torch.Tensor]]
    captions: Mapping[str, torch.Tensor]
    metadata: dict[str, Any]


def _embed_pictures(
    model: PreTrainedModel, processor: ProcessorMixin, half: Half, stamps: Path
) -> dict[str, torch.Tensor]:
    found = {}
    for batch in in_batches(half.photographs, _AT_ONCE):
        clips = [Clip(frames=read_picture(stamps / item.path)[None]) for item in batch]
        embeds, _ = embed_clips(model, processor(clips=clips))
        for item, vector in zip(batch, embeds[:, MODALITIES.index("video")], strict=True):
            found[item.path] = vector
    return found


def embed(half: Half, understood: Mapping[str, str], captions: Sequence[str], stamps: Path) -> Vectors:
    """
    Embed what the clips of a half are made of, by `light`.

    Args:
        half ([`Half`]): photographs, sounds and pairs of words.
        understood (`Mapping[str, str]`): what the recogniser understood of each prompt.
        captions (`Sequence[str]`): the captions of all draws.
        stamps (`Path`): the folder of stamps.
    """
    model, processor = load_model(LIGHT, modalities=MODALITIES)

    def by_text(texts: Sequence[str]) -> dict[str, torch.Tensor]:
        different = list(dict.fromkeys(texts))
        return dict(zip(different, embed_texts(model, processor, different, _AT_ONCE), strict=True))

    spoken = {pair: subtitle_of(pair, understood) for pair in half.pairs}
    vectors = by_text([text for text in spoken.values() if text])
    contents: dict[str, dict[Any, torch.Tensor]] = {
        "video": _embed_pictures(model, processor, half, stamps),
        "title": by_text([sound.title for sound in half.sounds]),
        "subtitle": {pair: vectors[text] for pair, text in spoken.items() if text},
    }
    return Vectors(contents, by_text(captions), provenance_of(model, LIGHT))


def compose(clips: Sequence[ComposedClip], vectors: Vectors) -> Embeddings:
    """Return the embeddings of clips and of their captions, with the modalities of `drawing.MODALITIES`."""
    # What a clip lacks, and words of which nothing was understood, stay zero. (V, M, D)
    dim = len(vectors.captions[clips[0].caption])
    embeds = torch.zeros(len(clips), len(MODALITIES), dim)
    mask = torch.zeros(len(clips), len(MODALITIES), dtype=torch.bool)
    for row, clip in enumerate(clips):
        keys = {"video": clip.photograph.path, "title": clip.sound.title, "subtitle": clip.pair}
        for column, name in enumerate(MODALITIES):
            vector = vectors.contents[name].get(keys[name])
            if name != clip.absent and vector is not None:
                embeds[row, column] = vector
                mask[row, column] = True
    names = [clip.photograph.path for clip in clips]
    return Embeddings(
        text_embeds=torch.stack([vectors.captions[clip.caption] for clip in clips]),
        modality_embeds=embeds,
        modality_mask=mask,
        pairs=torch.arange(len(clips)).repeat(2, 1).T,
        clip_ids=names,
        query_ids=names,
        captions=[clip.caption for clip in clips],
        metadata=vectors.metadata,
        modalities=MODALITIES,
    )


# Scores ------------------------------------------------------------------------------------------------------------


def _fitted_numbers(embeddings: Embeddings) -> tuple[dict[Key, Choice], dict[str, Any]]:
    """
    Fit all scores to the clips of the half that fits, by the study's rule.

    Returns:
        Each score with the numbers of the model and with those that are kept, SCALAR's also with those of each fit;
        and for each score what its fits gained, and whether they may be kept.
    """
    chosen, tried = choose(embeddings, SCORES)
    gains = {}
    for score, fits in tried.items():
        gains[score] = [{"count": fit.count, "gain": fit.gain, "kept": fit.is_kept} for fit in fits]
    temperature, everything = tried["scalar"]
    chosen["scalar", TEMPERATURE] = temperature.choice
    chosen["scalar", ALL] = everything.choice
    for name in MODALITIES:
        chosen[name, AS_TRAINED] = (name, {})
    return chosen, gains


def _with_arity(embeddings: Embeddings, choice: Choice) -> tuple[torch.Tensor, torch.Tensor]:
    """A score of every caption and clip, `(Q, V)`, and the number of modalities that each clip lacks, `(V,)`."""
    method, options = choice
    given = embeddings.text_embeds, embeddings.modality_embeds, embeddings.modality_mask
    pairs = make_pairs(*given, modalities=embeddings.modalities, **options)
    _, absent = clip_terms(pairs)
    return pairs.scores(method), absent


@torch.no_grad()
def fit_arity(embeddings: Embeddings, choice: Choice) -> float:
    """Return the constant for each absent modality that gives the highest MRR@10 from text to video; of equals that
    nearest to 0."""
    scores, absent = _with_arity(embeddings, choice)
    best, chosen = -1.0, 0.0
    for constant in sorted(_CONSTANTS, key=abs):
        found = reciprocal(relevant_ranks(scores + constant * absent, embeddings.pairs)).mean().item()
        if found > best:
            best, chosen = found, constant
    return chosen


@torch.no_grad()
def _arity_ranks(embeddings: Embeddings, choice: Choice, constant: float) -> dict[str, torch.Tensor]:
    """Ranks by a score plus a constant for each absent modality, in both directions."""
    scores, absent = _with_arity(embeddings, choice)
    scores = scores + constant * absent
    forward, back = DIRECTIONS
    return {forward: relevant_ranks(scores, embeddings.pairs), back: relevant_ranks(scores.T, embeddings.pairs)}


def rank_draw(
    fitted: Embeddings, shown: Mapping[str, Embeddings]
) -> tuple[dict[tuple[str, str, str, str], bytes], dict[str, Any]]:
    """
    Fit all scores to one draw of the half that fits, and rank one draw of the other.

    Args:
        fitted ([`~scalar_retrieval.eval.embedding.embeddings.Embeddings`]): clips to fit to.
        shown (`Mapping[str, Embeddings]`): clips to rank, by the name of their set.

    Returns:
        Ranks of each caption's own clip, and of each clip's own caption, a byte each, by set, score, numbers and
        direction; and what was fitted.
    """
    chosen, gains = _fitted_numbers(fitted)
    # The constant for arity comes on top of the numbers that are kept.
    kept = chosen["scalar", FITTED_ALL]
    constant = fit_arity(fitted, kept)
    ranks = {}
    for name, embeddings in shown.items():
        found = {}
        for key, choice in chosen.items():
            (found[key],) = own_ranks(embeddings, [embeddings.modality_mask], choice)
        found[ARITY, FITTED_ALL] = _arity_ranks(embeddings, kept, constant)
        for (score, numbers), by_direction in found.items():
            for direction, values in by_direction.items():
                ranks[name, score, numbers, direction] = bytes(values.clamp(max=HIGHEST).tolist())
    return ranks, {"gains": gains, "arity": constant, "temperature": kept[1]["query_temperature"]}


# Everything --------------------------------------------------------------------------------------------------------


def embed_draws(
    half: Half, understood: Mapping[str, str], kinds: Sequence[str], stamps: Path
) -> tuple[dict[str, list[list[ComposedClip]]], Vectors]:
    """
    Draw sets of clips of a half, and embed what they are made of once.

    Args:
        half ([`Half`]), understood (`Mapping[str, str]`), stamps (`Path`): as of [`embed`].
        kinds (`Sequence[str]`): some of [`CLIPS`].

    Returns:
        All draws of each kind, and the vectors of which [`compose`] makes embeddings.
    """
    clips = {}
    captions = []
    for kind in kinds:
        clips[kind] = [draw(half, seed, kind == "complete") for seed in range(NUM_DRAWS)]
        for drawn in clips[kind]:
            captions += [clip.caption for clip in drawn]
    return clips, embed(half, understood, captions, stamps)


def _ceilings(clips: Sequence[Sequence[ComposedClip]]) -> dict[str, dict[str, float]]:
    """The ceilings of each reader and kind of caption, means over draws."""
    readers = {"all": None} | {name: name for name in MODALITIES}
    found: dict[str, dict[str, float]] = {}
    for reader, modality in readers.items():
        each = [recall_ceilings(drawn, modality) for drawn in clips]
        found[reader] = {}
        for kind in each[0]:
            found[reader][kind] = float(np.mean([one[kind] for one in each]))
    return found


def measure(stamps: Path, prompts: Path, output: Path, show: Callable[[str], Any] = print) -> None:
    """
    Compare scores on composed clips, and write the results.

    Args:
        stamps (`Path`), prompts (`Path`): the folders of both packages.
        output (`Path`): folder for the results.
        show (`Callable`): prints a line.

    Raises:
        FileNotFoundError, ModuleNotFoundError: a package, or the recogniser, is not installed.
    """
    # What clips are made of is embedded once, captions for all draws.
    halves = read_halves(stamps, prompts)
    understood = recognise(prompts)
    wrong = sum(understood[name] != word for name, word in WORDS.items())
    show(f"{wrong} of {len(WORDS)} recorded words are not understood")
    facts: dict[str, Any] = {"draws": NUM_DRAWS, "halves": {}, "words": len(WORDS), "wrong": wrong}
    facts["word_error"] = 100 * wrong / len(WORDS)
    facts["versions"] = versions()
    clips = {}
    vectors = {}
    for name, half in halves.items():
        photographs, sounds, pairs = len(half.photographs), len(half.sounds), len(half.pairs)
        show(f"{name}: {photographs} photographs, {sounds} sounds, {pairs} pairs of words")
        facts["halves"][name] = {"photographs": photographs, "sounds": sounds, "pairs": pairs}
        kinds = CLIPS[:1] if name == "validation" else CLIPS
        clips[name], vectors[name] = embed_draws(half, understood, kinds, stamps)

    # Each draw is fitted by itself; ranks of all draws of a set, score, numbers and direction make one row.
    rows: dict[tuple[str, str, str, str], bytes] = {}
    facts["fits"] = []
    for number in range(NUM_DRAWS):
        fitted = compose(clips["validation"]["incomplete"][number], vectors["validation"])
        shown = {kind: compose(clips["test"][kind][number], vectors["test"]) for kind in CLIPS}
        ranks, fits = rank_draw(fitted, shown)
        for key, values in ranks.items():
            rows[key] = rows.get(key, b"") + values
        facts["fits"].append(fits)
        show(f"draw {number + 1} of {NUM_DRAWS}")
    facts["about"] = {}
    facts["ceilings"] = {}
    for kind in CLIPS:
        drawn = clips["test"][kind]
        # What each caption is about, by initials.
        facts["about"][kind] = []
        for one in drawn:
            initials = ["".join(name[0] for name in clip.about) for clip in one]
            facts["about"][kind].append(" ".join(initials))
        facts["ceilings"][kind] = _ceilings(drawn)
    facts["digest"] = digest_of([item for half in halves.values() for item in half.photographs], stamps)
    output.mkdir(parents=True, exist_ok=True)
    names = ("clips", "score", "numbers", "direction")
    table = [dict(zip(names, key, strict=True)) | {"ranks": values} for key, values in rows.items()]
    write_ranks(pa.Table.from_pylist(table), output / RANKS)
    write_json(facts, output / FACTS)


__all__ = [
    "ARITY",
    "CLIPS",
    "FACTS",
    "NUM_DRAWS",
    "RANKS",
    "SCORES",
    "Vectors",
    "compose",
    "embed",
    "embed_draws",
    "fit_arity",
    "measure",
    "rank_draw",
]
