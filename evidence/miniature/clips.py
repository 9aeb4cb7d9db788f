"""Draws the content of each clip of the miniature benchmark and its caption, from the seed alone."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import count as count_up
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

# A caption is specific enough for one clip in 2^12, if its modalities have that much content.
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
        # A concept is described by every modality that expresses it.
        about = []
        for modality, values in self.attributes.items():
            expressed = {factor: expressed_value(factor, modality, values) for factor in self.concepts}
            if modality in self.mentions or not expressed.items().isdisjoint(self.concepts.items()):
                about.append(modality)
        return about

    def row(self) -> dict[str, object]:
        """Return the clip's line of the annotation file; `None` marks a track that the clip lacks."""
        paths = dict.fromkeys(self.attributes, self.path)
        video_id = f"mini_{self.split}_{self.index:06d}"
        if self.view:
            video_id += f"_{self.view}"
        return {
            "video_id": video_id,
            "caption": self.caption,
            "video_path": paths.get("video"),
            "audio_path": paths.get("audio"),
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
        # Of each modality: its attributes, and what they express of every factor.
        facts = set()
        for modality, values in self.attributes.items():
            facts |= {(modality, name, value) for name, value in values.items()}
            facts |= {(factor, expressed_value(factor, modality, values)) for factor in FACTORS}
        return frozenset(facts)

    @cached_property
    def claims(self) -> frozenset[tuple[str, ...]]:
        """Return what the caption claims, in the terms of `facts`."""
        claims = set(self.concepts.items())
        for modality, names in self.mentions.items():
            claims |= {(modality, name, self.attributes[modality][name]) for name in names}
        return frozenset(claims)

    def satisfies(self, query: "MiniatureClip") -> bool:
        """Return whether everything that the caption of `query` says is true of this clip.

        A concept is true of a clip if any modality that it has expresses it.
        """
        return query.claims <= self.facts


def kinds_of(evidence: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the kinds of captions of a set: `KINDS`; with evidence also one for each evidence that alone answers, of
    its name, and "mixed", for captions of two or three modalities with such evidence among them."""
    if not evidence:
        return KINDS
    return (*KINDS, *evidence, "mixed")


def expressed_value(factor: str, modality: str, values: dict[str, str]) -> str | None:
    """Return the value of a factor that a modality with these attributes expresses; `None` if it expresses none."""
    combination = tuple(values[name] for name in names_of(factor, modality))
    return _EXPRESSED.get((factor, modality), {}).get(combination)


def names_of(factor: str, modality: str) -> tuple[str, ...]:
    """Return the attributes of a modality that express a factor; none if it does not express it."""
    return tuple(next(iter(FACTORS[factor].values())).get(modality, ()))


def _expressed() -> dict[tuple[str, str], dict[tuple[str, ...], str]]:
    """Return factor and modality → values of its attributes → what they express."""
    expressed: dict = {}
    for factor, values in FACTORS.items():
        for value, options in values.items():
            for modality, allowed in options.items():
                combinations = product(*allowed.values())
                expressed.setdefault((factor, modality), {}).update(dict.fromkeys(combinations, value))
    return expressed


_EXPRESSED = _expressed()


# Wording -------------------------------------------------------------------------------------------------------------


def _choice(rng: np.random.Generator, values: Sequence[str]) -> str:
    return values[int(rng.integers(len(values)))]


def _choices(rng: np.random.Generator, options: Mapping[str, Iterable[str]]) -> dict[str, str]:
    return {name: _choice(rng, list(values)) for name, values in options.items()}


def _shuffled(rng: np.random.Generator, values: Iterable[str]) -> list[str]:
    values = list(values)
    return [values[place] for place in rng.permutation(len(values))]


def _with_article(phrase: str) -> str:
    article = "an" if phrase[0] in "aeiou" else "a"
    return f"{article} {phrase}"


def _known(words: dict[str, str], *names: str) -> list[str]:
    """Return the words for those of some attributes that a caption mentions."""
    return [words[name] for name in names if name in words]


def _video_phrase(words: dict[str, str], rng: np.random.Generator) -> str:
    thing = " ".join([*_known(words, "size", "colour"), words.get("shape", "shape")])
    phrase = [_with_article(thing), *_known(words, "motion")]
    ground = " ".join(_known(words, "pattern", "ground"))
    if ground:
        phrase.append(f"on {_with_article(ground)} {_choice(rng, ('ground', 'background'))}")
    return " ".join(phrase)


def _audio_phrase(words: dict[str, str], rng: np.random.Generator) -> str:
    tone = " ".join([*_known(words, "pitch"), words.get("timbre", "sound")])
    return " ".join([_with_article(tone), *_known(words, "rhythm", "backing", "entry")])


def _subtitle_phrase(words: dict[str, str], rng: np.random.Generator) -> str:
    phrase = [words.get("speaker", "someone"), _choice(rng, ("talking", "speaking", "chatting"))]
    if "topic" in words:
        phrase.append(f"about {words['topic']}")
    if "weekday" in words:
        phrase.append(f"on {words['weekday']}")
    return " ".join([*phrase, *_known(words, "place")])


def _text_phrase(heads: Sequence[str], words: dict[str, str], rng: np.random.Generator) -> str:
    *others, last = words.values()
    head = _choice(rng, heads)
    if not others:
        return f"{head} {last}"
    return f"{head} {', '.join(others)} and {last}"


_PHRASES = {"video": _video_phrase, "audio": _audio_phrase, "subtitle": _subtitle_phrase}
for _text, _heads in READS.items():
    _PHRASES[_text] = partial(_text_phrase, _heads)
_WORDS = VOCABULARY | EVIDENCE


def _phrase(modality: str, names: list[str], attributes: Attributes, rng: np.random.Generator) -> str:
    words = {}
    for name in names:
        value = attributes[modality][name]
        words[name] = _choice(rng, _WORDS[modality][name][value])
    return _PHRASES[modality](words, rng)


def _concept_phrase(concepts: dict[str, str], rng: np.random.Generator) -> str:
    words = {}
    for factor, value in concepts.items():
        words[factor] = _choice(rng, CONCEPTS[factor][value])
    return " ".join([words.get("subject", "something"), *_known(words, "tempo", "scene")])


# Content of a caption ------------------------------------------------------------------------------------------------


_FACTOR_OF: dict[_Name, str] = {}
for _factor, _modality in _EXPRESSED:
    for _name in names_of(_factor, _modality):
        _FACTOR_OF[_modality, _name] = _factor


def _bits(names: Sequence[_Name], concepts: dict[str, str], shared: dict[str, str]) -> float:
    """Count the information in mentioned attributes and named concepts, in bits.

    Shared values count once, however many modalities express them. A clip can express as many values of a factor as it
    has modalities, so a concept counts less than an attribute.
    """
    bits = 0.0
    for factor, value in concepts.items():
        bits += math.log2(len(FACTORS[factor]) / len(FACTORS[factor][value]))

    # Attributes that express a shared value are counted by factor and modality, all others at once.
    information = {factor: dict.fromkeys(VOCABULARY, 0.0) for factor in shared}
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
    first: Sequence[_Name],
    concepts: dict[str, str],
    shared: dict[str, str],
    rng: np.random.Generator,
) -> list[_Name]:
    """Add attributes in random order to the first ones, until they are specific enough."""
    mentioned = list(first)
    # One at a time: the information of a caption depends on all of it.
    for place in rng.permutation(len(names)):
        if _bits(mentioned, concepts, shared) >= _BITS:
            break
        mentioned.append(names[place])
    return mentioned


def _grouped(names: Sequence[_Name], attributes: Attributes) -> dict[str, list[str]]:
    """Return attributes as mentions, in the order of the vocabulary."""
    mentions = {}
    for modality, values in attributes.items():
        mentioned = [name for name in values if (modality, name) in names]
        if mentioned:
            mentions[modality] = mentioned
    return mentions


def _draw_mentions(
    attributes: Attributes, shared: dict[str, str], about: Sequence[str], rng: np.random.Generator
) -> dict[str, list[str]]:
    """Draw what a caption mentions of some modalities: at least one attribute of each."""
    first = []
    others = []
    for modality in about:
        drawn = _choice(rng, list(attributes[modality]))
        first.append((modality, drawn))
        others += [(modality, name) for name in attributes[modality] if name != drawn]
    return _grouped(_enough(others, first, {}, shared, rng), attributes)


def _own_names(attributes: Attributes, modality: str, concepts: dict[str, str]) -> list[_Name]:
    """Return the attributes of a modality that the concepts do not determine."""
    expressed = set()
    for factor, value in concepts.items():
        for name, values in FACTORS[factor][value].get(modality, {}).items():
            if len(values) == 1:
                expressed.add(name)
    return [(modality, name) for name in attributes[modality] if name not in expressed]


def _draw_shared(
    attributes: Attributes, shared: dict[str, str], rng: np.random.Generator
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Draw the concepts that a caption names, and what it adds from one modality.

    It names all shared values, unless no modality has enough left to add: then one concept fewer, and so on.
    """
    concepts = {factor: shared[factor] for factor in _shuffled(rng, shared)}
    modalities = _shuffled(rng, attributes)
    while True:
        # The bits that each modality could add, as far as they are needed.
        possible = {}
        bits = {}
        for modality in modalities:
            possible[modality] = _own_names(attributes, modality, concepts)
            bits[modality] = min(_BITS, _bits(possible[modality], concepts, shared))
        own = max(modalities, key=bits.__getitem__)
        if bits[own] == _BITS or len(concepts) == 1:
            break
        concepts.popitem()

    # Add only as much as is needed; concepts are in the order of factors again.
    mentions = _grouped(_enough(possible[own], [], concepts, shared, rng), attributes)
    ordered = {}
    for factor in FACTORS:
        if factor in concepts:
            ordered[factor] = concepts[factor]
    return ordered, mentions


def _compose(
    concepts: dict[str, str], mentions: dict[str, list[str]], attributes: Attributes, rng: np.random.Generator
) -> str:
    """Put concepts and then mentions, in any order, into words."""
    phrases = []
    if concepts:
        templates = SHARED
        phrases.append(_concept_phrase(concepts, rng))
    elif len(mentions) == 1:
        templates = ALONE[next(iter(mentions))]
    else:
        templates = {2: PAIRS, 3: TRIPLES}[len(mentions)]
    for modality in _shuffled(rng, mentions):
        phrases.append(_phrase(modality, mentions[modality], attributes, rng))
    return _choice(rng, templates).format(*phrases)


def _draw_caption(
    attributes: Attributes, shared: dict[str, str], rng: np.random.Generator
) -> tuple[str, dict[str, list[str]], dict[str, str], str]:
    """Draw the kind of a caption, its content and its wording: kind, mentions, concepts and text."""
    kind = _choice(rng, KINDS)
    if kind == "shared" and not shared:
        kind = _choice(rng, KINDS[:2])
    concepts: dict[str, str] = {}
    if kind == "shared":
        concepts, mentions = _draw_shared(attributes, shared, rng)
    else:
        num_about = 1
        if kind == "several":
            num_about = 2 + int(rng.integers(len(attributes) - 1))
        mentions = _draw_mentions(attributes, shared, _shuffled(rng, attributes)[:num_about], rng)
    return kind, mentions, concepts, _compose(concepts, mentions, attributes, rng)


# Clips ---------------------------------------------------------------------------------------------------------------


def _draw_attributes(shared: float, rng: np.random.Generator) -> tuple[Attributes, dict[str, str]]:
    """Draw every modality independently; then make all of them agree in the factors that are shared."""
    attributes = {modality: _choices(rng, names) for modality, names in VOCABULARY.items()}
    together = {}
    for factor, values in FACTORS.items():
        if rng.random() >= shared:
            continue
        together[factor] = _choice(rng, list(values))
        for modality, options in values[together[factor]].items():
            attributes[modality] |= _choices(rng, options)
    return attributes, together


def _still_shared(shared: dict[str, str], attributes: Attributes) -> dict[str, str]:
    """Return the values of factors that at least two of the modalities express."""
    kept = {}
    for factor, value in shared.items():
        count = 0
        for modality, values in attributes.items():
            count += expressed_value(factor, modality, values) == value
        if count > 1:
            kept[factor] = value
    return kept


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
    # All modalities are drawn before one is lost, so that the others do not depend on it.
    rng = np.random.default_rng((seed, SPLITS.index(split), 1, index, attempt))
    attributes, together = _draw_attributes(shared, rng)
    subtitle = _draw_subtitle(attributes["subtitle"], rng)
    if absent == "subtitle":
        subtitle = None
    attributes.pop(absent, None)
    together = _still_shared(together, attributes)
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
        subtitle=subtitle,
    )


def _with_text(clips: list[MiniatureClip], name: str, seed: tuple[int, ...]) -> list[MiniatureClip]:
    """Add one kind of further evidence to clips, except for the share that lacks it."""
    number = list(EVIDENCE).index(name)
    order = np.random.default_rng((*seed, 4, number)).permutation(len(clips)).tolist()
    if name == "screen":
        # Clips without video come first: they have no screen.
        order.sort(key=lambda row: "video" in clips[row].attributes)
    lacking = set(order[: round(EVIDENCE_ABSENT_SHARES[name] * len(clips))])
    extended = []
    for row, clip in enumerate(clips):
        if row in lacking:
            extended.append(replace(clip, texts=clip.texts | {name: None}))
            continue
        rng = np.random.default_rng((*seed, 5, number, row))
        values = _choices(rng, EVIDENCE[name])
        text = _choice(rng, TEXTS[name]).format(**values)
        extended.append(replace(clip, attributes=clip.attributes | {name: values}, texts=clip.texts | {name: text}))
    return extended


def _draw_evidence_caption(clip: MiniatureClip, rng: np.random.Generator) -> MiniatureClip:
    """Draw the kind of a caption, and a caption if it is about evidence of the clip; else the clip keeps its own."""
    kind = _choice(rng, kinds_of(list(clip.texts)))
    present = [name for name in clip.texts if name in clip.attributes]
    if kind in present:
        about = [kind]
    elif kind == "mixed" and present:
        # One of the clip's texts, with one or two other modalities.
        about = [_choice(rng, present)]
        others = [name for name in clip.attributes if name not in about]
        about += _shuffled(rng, others)[: 1 + int(rng.integers(2))]
    else:
        return clip
    mentions = _draw_mentions(clip.attributes, clip.shared, about, rng)
    caption = _compose({}, mentions, clip.attributes, rng)
    return replace(clip, kind=kind, mentions=mentions, concepts={}, caption=caption)


def _with_evidence(clips: list[MiniatureClip], evidence: Sequence[str], seed: tuple[int, ...]) -> list[MiniatureClip]:
    """Add further evidence to clips, and give some of them captions that need it; captions stay unique."""
    for name in evidence:
        clips = _with_text(clips, name, seed)
    captions = {clip.caption for clip in clips}
    extended = []
    for row, clip in enumerate(clips):
        for attempt in count_up():
            drawn = _draw_evidence_caption(clip, np.random.default_rng((*seed, 6, row, attempt)))
            if drawn is clip or drawn.caption not in captions:
                break
        extended.append(drawn)
        captions.add(drawn.caption)
    return extended


def _disagreeing(clip: MiniatureClip, shared: float, rng: np.random.Generator) -> MiniatureClip:
    """Take what the caption does not describe from another clip, whose modalities share values as usual."""
    other, _ = _draw_attributes(shared, rng)
    replaced = set(clip.attributes).intersection(other).difference(clip.about)
    attributes = clip.attributes | {modality: other[modality] for modality in replaced}
    subtitle = clip.subtitle
    if "subtitle" in replaced:
        subtitle = _draw_subtitle(attributes["subtitle"], rng)
    shared_values = _still_shared(clip.shared, attributes)
    return replace(clip, attributes=attributes, shared=shared_values, subtitle=subtitle)


def views_alone(clip: MiniatureClip) -> list[MiniatureClip]:
    """Return a clip once for each of its modalities, with that modality alone and a caption of it."""
    # Each view has a generator of its own, so that it does not depend on the other modalities.
    views = []
    for number, (modality, values) in enumerate(clip.attributes.items()):
        rng = np.random.default_rng((*clip.key, number))
        mentions = _draw_mentions({modality: values}, {}, [modality], rng)
        texts = dict.fromkeys(clip.texts)
        if modality in texts:
            texts[modality] = clip.texts[modality]
        views.append(
            replace(
                clip,
                attributes={modality: values},
                shared={},
                kind=modality if modality in EVIDENCE else "single",
                mentions=mentions,
                concepts={},
                caption=_compose({}, mentions, clip.attributes, rng),
                subtitle=clip.subtitle if modality == "subtitle" else None,
                texts=texts,
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
    # Exact shares of the clips lack a track, in random places.
    absent: list[str | None] = []
    if not complete:
        for modality, share in ABSENT_SHARES.items():
            absent += [modality] * round(share * count)
    absent += [None] * (count - len(absent))
    number = SPLITS.index(split)
    order = np.random.default_rng((seed, number, 3)).permutation(count)

    # A clip whose caption is taken is drawn again.
    clips = []
    captions = set()
    for index in range(count):
        for attempt in count_up():
            clip = draw_clip(seed, split, index, absent[order[index]], attempt, shared=shared)
            if clip.caption not in captions:
                break
        captions.add(clip.caption)
        clips.append(clip)

    # What changes these clips has generators of its own, so that all else stays the same.
    clips = _with_evidence(clips, evidence, (seed, number))
    for row, clip in enumerate(clips):
        rng = np.random.default_rng((seed, number, 7, row))
        if rng.random() < disagree:
            clips[row] = _disagreeing(clip, shared, rng)
    return clips


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
