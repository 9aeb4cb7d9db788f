"""Draws composed clips and their captions, as the generated ones are drawn, and computes what perfect readers reach.

Modalities are named like the vectors of `light`: the photograph is the video, the spoken words are the subtitle, and
the title stands for the sound, as no package has an encoder of sounds.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evidence.miniature.clips import ABSENT_SHARES
from evidence.stamps.items import Item

from .media import WORDS, Half, Pair, Sound

MODALITIES = ("video", "title", "subtitle")
"""Of a composed clip, in the order of its vectors."""

KINDS = ("single", "several")
"""Kinds of captions: about one modality, or about two or three."""

_SHARES = {
    "video": ABSENT_SHARES["video"],
    "title": ABSENT_SHARES["audio"],
    "subtitle": ABSENT_SHARES["subtitle"],
}
_TEMPLATES = {
    1: ("{}",),
    2: ("{} and {}", "{}, with {}", "{}, together with {}", "{} while there is {}"),
    3: ("{}, {} and {}", "{} with {} and {}", "{} while there is {} and {}"),
}
_SPOKEN = ("a voice saying", "someone saying", "a woman saying")
_ARTICLE = re.compile(r"(A|An|The)\b")


@dataclass(frozen=True)
class ComposedClip:
    """
    A clip before it is written or embedded.

    Args:
        photograph ([`~evidence.stamps.items.Item`]), sound ([`Sound`]), pair (`Pair`): what it is made of.
        absent (`str`, *optional*): the modality that it lacks.
        about (`tuple[str, ...]`): the modalities that its caption describes, all of them present.
        caption (`str`): the query to which it is relevant.
    """

    photograph: Item
    sound: Sound
    pair: Pair
    absent: str | None
    about: tuple[str, ...]
    caption: str

    @property
    def present(self) -> tuple[str, ...]:
        """The modalities that it has."""
        return tuple(name for name in MODALITIES if name != self.absent)

    @property
    def kind(self) -> str:
        """The kind of its caption, one of [`KINDS`]."""
        return KINDS[0] if len(self.about) == 1 else KINDS[1]

    @property
    def spoken(self) -> str:
        """The words that are spoken."""
        return " ".join(WORDS[name] for name in self.pair)

    @property
    def contents(self) -> dict[str, str]:
        """What tells each present modality from those of other clips."""
        known = {"video": self.photograph.path, "title": self.sound.path, "subtitle": self.spoken}
        return {name: known[name] for name in self.present}


def _inside(caption: str) -> str:
    """A maker's caption as a part of a sentence."""
    words = caption.strip().rstrip(".!?")
    if _ARTICLE.match(words):
        words = words[0].lower() + words[1:]
    return words


def _caption(contents: Mapping[str, str], about: Sequence[str], rng: np.random.Generator) -> str:
    """Join what is known of some modalities, in random order."""
    phrases = [contents[about[place]] for place in rng.permutation(len(about))]
    return str(rng.choice(_TEMPLATES[len(about)])).format(*phrases)


def _draw_absent(number: int, complete: bool, rng: np.random.Generator) -> list[str | None]:
    """For each clip the modality that it lacks; the numbers of clips that lack one are rounded shares."""
    absent: list[str | None] = [None] * number
    if not complete:
        lacking = []
        for name, share in _SHARES.items():
            lacking += [name] * round(share * number)
        absent[: len(lacking)] = lacking
    return [absent[place] for place in rng.permutation(number)]


def draw(half: Half, seed: int, complete: bool) -> list[ComposedClip]:
    """
    Draw one set of clips: each photograph once, with the sound of another stamp and two words; no caption twice.

    A photograph's captions are about one modality in every other draw, so that two draws in a row, from an even seed
    on, have both kinds for each photograph.

    Args:
        half ([`Half`]): what the clips are made of.
        seed (`int`): number of the draw, not negative.
        complete (`bool`): whether all clips have all modalities; else the miniature's shares lack one.
    """
    rng = np.random.default_rng((seed, half.is_shown))
    number = len(half.photographs)
    absent = _draw_absent(number, complete, rng)
    pairs = rng.choice(len(half.pairs), number, replace=False)
    clips = []
    captions = set()
    for place, photograph in enumerate(half.photographs):
        others = [sound for sound in half.sounds if sound.caption != photograph.caption]
        pair = half.pairs[pairs[place]]
        present = [name for name in MODALITIES if name != absent[place]]
        is_single = (place + seed) % 2 == 0
        caption = None
        while caption is None or caption in captions:
            sound = others[rng.integers(len(others))]
            num_about = 1 if is_single else int(rng.integers(2, len(present) + 1))
            about = sorted(rng.permutation(present)[:num_about].tolist(), key=MODALITIES.index)
            spoken = f"{rng.choice(_SPOKEN)} {WORDS[pair[0]]} {WORDS[pair[1]]}"
            contents = {
                "video": _inside(photograph.caption),
                "title": f"the sound of {_inside(sound.caption)}",
                "subtitle": spoken,
            }
            caption = _caption(contents, about, rng)
        captions.add(caption)
        clips.append(ComposedClip(photograph, sound, pair, absent[place], tuple(about), caption))
    return clips


def recall_ceilings(clips: Sequence[ComposedClip], modality: str | None = None) -> dict[str, float | None]:
    """
    Return the expected text-to-video R@1, in percent, of a perfect reader that breaks ties at random.

    Args:
        clips (`Sequence[ComposedClip]`): the gallery.
        modality (`str`, *optional*): the only modality that the reader knows; by default it knows everything. Of the
            rest it knows nothing, also not which clips lack it.

    Returns:
        `dict`: for all captions as `"all"`, then for each of [`KINDS`]; `None` if there are none.
    """
    contents = [clip.contents for clip in clips]
    shares: dict[str, list[float]] = {name: [] for name in ("all", *KINDS)}
    for number, clip in enumerate(clips):
        asked = [name for name in clip.about if modality in (None, name)]
        candidates = 0
        for other in contents:
            candidates += all(other.get(name) == contents[number][name] for name in asked)
        shares["all"].append(100 / candidates)
        shares[clip.kind].append(100 / candidates)
    return {name: float(np.mean(values)) if values else None for name, values in shares.items()}


__all__ = ["KINDS", "MODALITIES", "ComposedClip", "draw", "recall_ceilings"]
