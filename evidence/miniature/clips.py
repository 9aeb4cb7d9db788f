"""Draws the content of each clip of the miniature benchmark and its caption, from the seed alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import count as numbers
from itertools import product

import numpy as np

from evidence.miniature.vocabulary import (
    ALONE,
    CONCEPTS,
    EVIDENCE,
    FACTORS,
    PAIRS,
    PLACES,
    READS,
    SHARED,
    SUBTITLES,
    TEXTS,
    TRIPLES,
    VOCABULARY,
)

SPLITS = ("train", "validation", "test")

# About one modality, about two or three, or naming what several modalities express together.
KINDS = ("single", "several", "shared")

# Share of the clips without this track. No clip lacks two, so that every clip can be retrieved.
ABSENT_SHARES = {"video": 0.05, "audio": 0.15, "subtitle": 0.20}
# The same for further evidence, each independently; but without video there is no screen.
EVIDENCE_ABSENT_SHARES = {"title": 0.15, "screen": 0.30}

# A caption is specific enough for one clip in 2^12, if its modalities say that much.
_BITS = 12.0

Attributes = dict[str, dict[str, str]]
"""Modality → attribute → value."""

_Name = tuple[str, str]  # a modality and one of its attributes


@dataclass(frozen=True)
class MiniatureClip:
    """The content of one clip, before it is rendered.

    Args:
        split (`str`): one of `SPLITS`.
        index (`int`): number of the clip in its split.
        key (`tuple[int, ...]`): seed of the clip's own generator.
        attributes (`dict[str, dict[str, str]]`): modality → attribute → value, for the modalities the clip has.
        shared (`dict[str, str]`): factor → its value, for the factors that two or three modalities of the clip
            express together.
        kind (`str`): one of `kinds_of` the set's evidence.
        mentions (`dict[str, list[str]]`): modality → its attributes that the caption mentions.
        concepts (`dict[str, str]`): those of `shared` that the caption names without saying which modality has them.
        caption (`str`): the query to which this clip is relevant.
        subtitle (`str` or `None`): the spoken words, `None` for a clip without subtitle track.
        texts (`dict[str, str | None]`): further evidence of the set, by its name; `None` if the clip lacks it.
        view (`str`, *optional*): the one modality that this row of the clip shows, if it does not show all.
    """

    split: str
    index: int
    key: tuple[int, ...]
    attributes: Attributes
    shared: dict[str, str]
    kind: str
    mentions: dict[str, list[str]]
    concepts: dict[str, str]
    caption: str
    subtitle: str | None
    texts: dict[str, str | None] = field(default_factory=dict)
    view: str | None = None

    @property
    def path(self) -> str:
        """File of the clip, relative to the folder of the set."""
        return f"{self.split}/{self.index:06d}.mp4"

    @property
    def about(self) -> list[str]:
        """Modalities that the caption describes: it mentions them, or they express a concept that it names."""
        return [
            modality
            for modality, values in self.attributes.items()
            if modality in self.mentions
            or any(expressed_value(factor, modality, values) == value for factor, value in self.concepts.items())
        ]

    def row(self) -> dict[str, object]:
        """Return the clip's line of the annotation file; `None` marks a track that the clip lacks."""
        return {
            "video_id": f"mini_{self.split}_{self.index:06d}" + (f"_{self.view}" if self.view else ""),
            "caption": self.caption,
            "video_path": self.path if "video" in self.attributes else None,
            "audio_path": self.path if "audio" in self.attributes else None,
            "subtitle": self.subtitle,
            **self.texts,
            "kind": self.kind,
            "about": self.about,
            "mentions": self.mentions,
            "concepts": self.concepts,
            "attributes": self.attributes,
            "shared": self.shared,
        }

    @cached_property
    def facts(self) -> frozenset[tuple[str, ...]]:
        """Return what is true of the clip: its attributes, and the values of factors that its modalities express."""
        facts = {(m, name, value) for m, values in self.attributes.items() for name, value in values.items()}
        expressed = {(f, expressed_value(f, m, values)) for m, values in self.attributes.items() for f in FACTORS}
        return frozenset(facts | expressed)

    @cached_property
    def claims(self) -> frozenset[tuple[str, ...]]:
        """Return what the caption says, in the terms of `facts`."""
        said = {(m, name, self.attributes[m][name]) for m, names in self.mentions.items() for name in names}
        return frozenset(said | set(self.concepts.items()))

    def satisfies(self, query: "MiniatureClip") -> bool:
        """Return whether everything that the caption of `query` says is true of this clip.

        A concept is true of a clip if any modality that it has expresses it.
        """
        return query.claims <= self.facts


def kinds_of(evidence: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the kinds of captions of a set: `KINDS`; with evidence also one for each evidence that alone answers, of
    its name, and "mixed", for captions of two or three modalities with such evidence among them."""
    return (*KINDS, *evidence, "mixed") if evidence else KINDS


def expressed_value(factor: str, modality: str, values: dict[str, str]) -> str | None:
    """Return the value of a factor that a modality with these attributes expresses; `None` if it expresses none."""
    return _EXPRESSED.get((factor, modality), {}).get(tuple(values[name] for name in names_of(factor, modality)))


def names_of(factor: str, modality: str) -> tuple[str, ...]:
    """Return the attributes of a modality that express a factor; none if it does not express it."""
    return tuple(next(iter(FACTORS[factor].values())).get(modality, ()))


# Factor and modality → values of its attributes → what they express.
_EXPRESSED = {
    (factor, modality): {
        combination: value for value, options in values.items() for combination in product(*options[modality].values())
    }
    for factor, values in FACTORS.items()
    for modality in next(iter(values.values()))
}


# Wording -------------------------------------------------------------------------------------------------------------


def _choice(rng: np.random.Generator, values: Sequence[str]) -> str:
    return values[int(rng.integers(len(values)))]


def _with_article(phrase: str) -> str:
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def _video_phrase(words: dict[str, str], rng: np.random.Generator) -> str:
    nouns = (words[name] for name in ("size", "colour") if name in words)
    thing = _with_article(" ".join([*nouns, words.get("shape", "shape")]))
    if "motion" in words:
        thing += f" {words['motion']}"
    ground = " ".join(words[name] for name in ("pattern", "ground") if name in words)
    if not ground:
        return thing
    ground = f"on {_with_article(ground)} {_choice(rng, ('ground', 'background'))}"
    return f"{thing} {ground}"


def _audio_phrase(words: dict[str, str], rng: np.random.Generator) -> str:
    pitch = [words["pitch"]] if "pitch" in words else []
    tone = _with_article(" ".join([*pitch, words.get("timbre", "sound")]))
    return " ".join([tone, *(words[name] for name in ("rhythm", "backing", "entry") if name in words)])


def _subtitle_phrase(words: dict[str, str], rng: np.random.Generator) -> str:
    phrase = f"{words.get('speaker', 'someone')} {_choice(rng, ('talking', 'speaking', 'chatting'))}"
    if "topic" in words:
        phrase += f" about {words['topic']}"
    if "weekday" in words:
        phrase += f" on {words['weekday']}"
    return f"{phrase} {words['place']}" if "place" in words else phrase


def _text_phrase(heads: Sequence[str], words: dict[str, str], rng: np.random.Generator) -> str:
    *others, last = words.values()
    return f"{_choice(rng, heads)} {', '.join(others)} and {last}" if others else f"{_choice(rng, heads)} {last}"


_PHRASES = {"video": _video_phrase, "audio": _audio_phrase, "subtitle": _subtitle_phrase}
_PHRASES |= {name: partial(_text_phrase, heads) for name, heads in READS.items()}
_WORDS = VOCABULARY | EVIDENCE


def _phrase(modality: str, names: list[str], attributes: Attributes, rng: np.random.Generator) -> str:
    words = {name: _choice(rng, _WORDS[modality][name][attributes[modality][name]]) for name in names}
    return _PHRASES[modality](words, rng)


def _concept_phrase(concepts: dict[str, str], rng: np.random.Generator) -> str:
    words = {factor: _choice(rng, CONCEPTS[factor][value]) for factor, value in concepts.items()}
    return " ".join([words.get("subject", "something"), *(words[f] for f in ("tempo", "scene") if f in words)])


# Content of a caption ------------------------------------------------------------------------------------------------


_FACTOR_OF = {(modality, name): factor for factor, modality in _EXPRESSED for name in names_of(factor, modality)}


def _bits(names: Sequence[_Name], concepts: dict[str, str], shared: dict[str, str]) -> float:
    """Count the information in mentioned attributes and named concepts, in bits.

    Shared values count once, however many modalities express them. A clip can express as many values of a factor as it
    has modalities, so a concept counts less than an attribute.
    """
    bits, information = 0.0, {factor: dict.fromkeys(VOCABULARY, 0.0) for factor in shared}
    for factor in concepts:
        modalities = FACTORS[factor][concepts[factor]]
        bits += math.log2(len(FACTORS[factor]) / len(modalities))
    for modality, name in names:
        factor = _FACTOR_OF.get((modality, name))
        if factor in concepts:
            bits += math.log2(len(FACTORS[factor][concepts[factor]][modality][name]))
        elif factor in shared:
            information[factor][modality] += math.log2(len(VOCABULARY[modality][name]))
        else:
            bits += math.log2(len(_WORDS[modality][name]))
    return bits + sum(max(of_modality.values()) for of_modality in information.values())


def _enough(
    names: Sequence[_Name],
    said: list[_Name],
    concepts: dict[str, str],
    shared: dict[str, str],
    rng: np.random.Generator,
) -> list[_Name]:
    """Add attributes in random order to those in `said`, until they are specific enough."""
    said = list(said)
    for place in rng.permutation(len(names)):
        if _bits(said, concepts, shared) >= _BITS:
            break
        said.append(names[place])
    return said


def _grouped(names: Sequence[_Name], attributes: Attributes) -> dict[str, list[str]]:
    """Return attributes as mentions, in the order of the vocabulary."""
    mentions = {m: [name for name in values if (m, name) in names] for m, values in attributes.items()}
    return {modality: found for modality, found in mentions.items() if found}


def _draw_mentions(
    attributes: Attributes, shared: dict[str, str], about: Sequence[str], rng: np.random.Generator
) -> dict[str, list[str]]:
    """Draw what a caption says of some modalities: at least one attribute of each."""
    first = [(modality, _choice(rng, list(attributes[modality]))) for modality in about]
    others = [(modality, name) for modality in about for name in attributes[modality] if (modality, name) not in first]
    return _grouped(_enough(others, first, {}, shared, rng), attributes)


def _own_names(attributes: Attributes, modality: str, concepts: dict[str, str]) -> list[_Name]:
    """Return the attributes of a modality that the concepts do not determine."""
    expressed = {
        name
        for factor, value in concepts.items()
        for name, values in FACTORS[factor][value].get(modality, {}).items()
        if len(values) == 1
    }
    return [(modality, name) for name in attributes[modality] if name not in expressed]


def _draw_shared(
    attributes: Attributes, shared: dict[str, str], rng: np.random.Generator
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Draw the concepts that a caption names, and what it adds from one modality.

    It names all shared values, unless no modality has enough left to add: then one concept fewer, and so on.
    """
    concepts = {factor: shared[factor] for factor in (list(shared)[i] for i in rng.permutation(len(shared)))}
    modalities = [list(attributes)[i] for i in rng.permutation(len(attributes))]
    while True:
        possible = {modality: _own_names(attributes, modality, concepts) for modality in modalities}
        bits = {modality: _bits(names, concepts, shared) for modality, names in possible.items()}
        own = next((m for m in modalities if bits[m] >= _BITS), max(modalities, key=bits.__getitem__))
        if bits[own] >= _BITS or len(concepts) == 1:
            break
        concepts.popitem()
    mentions = _grouped(_enough(possible[own], [], concepts, shared, rng), attributes)
    return {factor: concepts[factor] for factor in FACTORS if factor in concepts}, mentions


def _templates(mentions: dict[str, list[str]]) -> Sequence[str]:
    return {1: ALONE[next(iter(mentions))], 2: PAIRS, 3: TRIPLES}[len(mentions)]


def _put(
    mentions: dict[str, list[str]],
    attributes: Attributes,
    templates: Sequence[str],
    phrases: list[str],
    rng: np.random.Generator,
) -> str:
    """Put the mentions into words, in any order, after the existing phrases."""
    modalities = list(mentions)
    said = [
        _phrase(modalities[place], mentions[modalities[place]], attributes, rng)
        for place in rng.permutation(len(modalities))
    ]
    return _choice(rng, templates).format(*phrases, *said)


def _draw_caption(
    attributes: Attributes, shared: dict[str, str], rng: np.random.Generator
) -> tuple[str, dict[str, list[str]], dict[str, str], str]:
    """Draw the kind of a caption, its content and its wording: kind, mentions, concepts and text."""
    kind = _choice(rng, KINDS)
    if kind == "shared" and not shared:
        kind = _choice(rng, KINDS[:2])
    if kind == "shared":
        concepts, mentions = _draw_shared(attributes, shared, rng)
        templates, phrases = SHARED, [_concept_phrase(concepts, rng)]
    else:
        num_about = 1 if kind == "single" else 2 + int(rng.integers(len(attributes) - 1))
        about = [list(attributes)[i] for i in rng.permutation(len(attributes))[:num_about]]
        concepts, mentions, phrases = {}, _draw_mentions(attributes, shared, about, rng), []
        templates = _templates(mentions)
    return kind, mentions, concepts, _put(mentions, attributes, templates, phrases, rng)


# Clips ---------------------------------------------------------------------------------------------------------------


def _draw_attributes(shared: float, rng: np.random.Generator) -> tuple[Attributes, dict[str, str]]:
    """Draw every modality independently; then make all of them agree in the factors that are shared."""
    attributes = {
        modality: {name: _choice(rng, list(values)) for name, values in names.items()}
        for modality, names in VOCABULARY.items()
    }
    together = {}
    for factor, values in FACTORS.items():
        if rng.random() >= shared:
            continue
        together[factor] = _choice(rng, list(values))
        for modality, options in values[together[factor]].items():
            attributes[modality] |= {name: _choice(rng, allowed) for name, allowed in options.items()}
    return attributes, together


def _draw_subtitle(attributes: dict[str, str], rng: np.random.Generator) -> str:
    return _choice(rng, SUBTITLES).format(**attributes | {"place": PLACES[attributes["place"]][0]})


def draw_clip(
    seed: int, split: str, index: int, absent: str | None = None, attempt: int = 0, *, shared: float = 0.6
) -> MiniatureClip:
    """Draw the content of one clip, and its caption.

    Args:
        seed (`int`): seed of the whole set, not negative.
        split (`str`): one of `SPLITS`.
        index (`int`): number of the clip in its split.
        absent (`str`, *optional*): the modality the clip lacks.
        attempt (`int`, defaults to 0): another value gives another, independent clip.
        shared (`float`, defaults to 0.6): for each factor, the probability that all modalities agree in it.
    """
    rng = np.random.default_rng((seed, SPLITS.index(split), 1, index, attempt))
    attributes, together = _draw_attributes(shared, rng)
    subtitle = _draw_subtitle(attributes["subtitle"], rng)
    attributes.pop(absent, None)
    together = {
        factor: value
        for factor, value in together.items()
        if sum(modality in attributes for modality in FACTORS[factor][value]) >= 2
    }
    kind, mentions, concepts, caption = _draw_caption(attributes, together, rng)
    return MiniatureClip(
        split=split,
        index=index,
        key=(seed, SPLITS.index(split), 2, index, attempt),
        attributes=attributes,
        shared=together,
        kind=kind,
        mentions=mentions,
        concepts=concepts,
        caption=caption,
        subtitle=subtitle if absent != "subtitle" else None,
    )


def _with_text(clips: list[MiniatureClip], name: str, seed: tuple[int, ...]) -> list[MiniatureClip]:
    """Add one kind of further evidence to clips, except for the share that lacks it."""
    number = list(EVIDENCE).index(name)
    order = np.random.default_rng((*seed, 4, number)).permutation(len(clips)).tolist()
    if name == "screen":
        order.sort(key=lambda row: "video" in clips[row].attributes)
    lacking, given = set(order[: round(EVIDENCE_ABSENT_SHARES[name] * len(clips))]), []
    for row, clip in enumerate(clips):
        rng = np.random.default_rng((*seed, 5, number, row))
        values = {attribute: _choice(rng, list(words)) for attribute, words in EVIDENCE[name].items()}
        text = _choice(rng, TEXTS[name]).format(**values)
        found = ({}, {name: None}) if row in lacking else ({name: values}, {name: text})
        given.append(replace(clip, attributes=clip.attributes | found[0], texts=clip.texts | found[1]))
    return given


def _draw_evidence_caption(clip: MiniatureClip, rng: np.random.Generator) -> MiniatureClip:
    """Draw the kind of a caption, and a caption if it is about evidence of the clip; else the clip keeps its own."""
    kind, present = _choice(rng, kinds_of(list(clip.texts))), [name for name in clip.texts if name in clip.attributes]
    if kind not in ([*present, "mixed"] if present else []):
        return clip
    about = [kind]
    if kind == "mixed":
        about = [_choice(rng, present)]
        others = [name for name in clip.attributes if name not in about]
        about += [others[i] for i in rng.permutation(len(others))[: 1 + int(rng.integers(2))]]
    mentions = _draw_mentions(clip.attributes, clip.shared, about, rng)
    caption = _put(mentions, clip.attributes, _templates(mentions), [], rng)
    return replace(clip, kind=kind, mentions=mentions, concepts={}, caption=caption)


def _with_evidence(clips: list[MiniatureClip], evidence: Sequence[str], seed: tuple[int, ...]) -> list[MiniatureClip]:
    """Add further evidence to clips, and give some of them captions that need it; captions stay unique."""
    for name in evidence:
        clips = _with_text(clips, name, seed)
    captions, given = {clip.caption for clip in clips}, []
    for row, clip in enumerate(clips):
        tries = (_draw_evidence_caption(clip, np.random.default_rng((*seed, 6, row, n))) for n in numbers())
        given.append(next(found for found in tries if found is clip or found.caption not in captions))
        captions.add(given[-1].caption)
    return given


def _disagreeing(clip: MiniatureClip, shared: float, rng: np.random.Generator) -> MiniatureClip:
    """Take what the caption does not describe from another clip, whose modalities share values as usual."""
    other, _ = _draw_attributes(shared, rng)
    replaced = [modality for modality in clip.attributes if modality in other and modality not in clip.about]
    attributes = clip.attributes | {modality: other[modality] for modality in replaced}
    together = {
        factor: value
        for factor, value in clip.shared.items()
        if sum(expressed_value(factor, m, attributes[m]) == value for m in FACTORS[factor][value] if m in attributes)
        > 1
    }
    subtitle = _draw_subtitle(attributes["subtitle"], rng) if "subtitle" in replaced else clip.subtitle
    return replace(clip, attributes=attributes, shared=together, subtitle=subtitle)


def views_alone(clip: MiniatureClip) -> list[MiniatureClip]:
    """Return a clip once for each of its modalities, with that modality alone and a caption of it."""
    views = []
    for number, (modality, values) in enumerate(clip.attributes.items()):
        rng = np.random.default_rng((*clip.key, number))
        mentions = _draw_mentions({modality: values}, {}, [modality], rng)
        views.append(
            replace(
                clip,
                attributes={modality: values},
                shared={},
                kind=modality if modality in EVIDENCE else "single",
                mentions=mentions,
                concepts={},
                caption=_put(mentions, clip.attributes, _templates(mentions), [], rng),
                subtitle=clip.subtitle if modality == "subtitle" else None,
                texts={name: text if name == modality else None for name, text in clip.texts.items()},
                view=modality,
            )
        )
    return views


def draw_split(
    seed: int,
    split: str,
    count: int,
    *,
    shared: float = 0.6,
    complete: bool = False,
    disagree: float = 0.0,
    evidence: Sequence[str] = (),
) -> list[MiniatureClip]:
    """Draw the clips of one split, with unique captions.

    Args:
        seed (`int`), split (`str`), shared (`float`): as in [`draw_clip`].
        count (`int`): number of clips.
        complete (`bool`): give every clip all modalities; else `ABSENT_SHARES` apply, rounded to whole clips.
        disagree (`float`): in [0, 1]: the probability that what a clip's caption does not describe is taken from
            another clip. Captions do not change.
        evidence (`Sequence[str]`): names of `EVIDENCE`. The clips are the same, with further texts, and some have
            other captions.
    """
    shares = {} if complete else ABSENT_SHARES
    absent = [modality for modality, share in shares.items() for _ in range(round(share * count))]
    absent += [None] * (count - len(absent))
    order = np.random.default_rng((seed, SPLITS.index(split), 3)).permutation(count)
    clips, captions = [], set()
    for index in range(count):
        attempt = 0
        clip = draw_clip(seed, split, index, absent[order[index]], shared=shared)
        while clip.caption in captions:
            attempt += 1
            clip = draw_clip(seed, split, index, absent[order[index]], attempt, shared=shared)
        captions.add(clip.caption)
        clips.append(clip)
    clips = _with_evidence(clips, evidence, (seed, SPLITS.index(split)))
    generators = (np.random.default_rng((seed, SPLITS.index(split), 7, row)) for row in range(count))
    return [
        _disagreeing(clip, shared, rng) if disagree and rng.random() < disagree else clip
        for clip, rng in zip(clips, generators, strict=True)
    ]


__all__ = [
    "ABSENT_SHARES",
    "EVIDENCE_ABSENT_SHARES",
    "KINDS",
    "SPLITS",
    "MiniatureClip",
    "draw_clip",
    "draw_split",
    "expressed_value",
    "kinds_of",
    "names_of",
    "views_alone",
]
