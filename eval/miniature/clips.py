"""What each clip of the miniature benchmark is and what its caption says, drawn from the seed alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval.miniature.vocabulary import ALONE, PAIRS, SUBTITLES, VOCABULARY

SPLITS = ("train", "test")

# Share of the clips without this track. No clip lacks two, so that something is always left to retrieve by.
ABSENT_SHARES = {"video": 0.05, "audio": 0.15, "subtitle": 0.20}


@dataclass(frozen=True)
class MiniatureClip:
    """What one clip is, before it is rendered.

    Args:
        split (`str`): "train" or "test".
        index (`int`): number of the clip in its split.
        key (`tuple[int, ...]`): seed of the clip's own generator.
        attributes (`dict[str, dict[str, str]]`): modality → attribute → value, for the modalities the clip has.
        mentions (`dict[str, list[str]]`): one or two modalities → attributes of them that the caption speaks of.
        caption (`str`): the query to which this clip is relevant.
        subtitle (`str` or `None`): what is said, `None` for a clip without subtitle track.
    """

    split: str
    index: int
    key: tuple[int, ...]
    attributes: dict[str, dict[str, str]]
    mentions: dict[str, list[str]]
    caption: str
    subtitle: str | None

    @property
    def path(self) -> str:
        """File of the clip, relative to the folder of the set."""
        return f"{self.split}/{self.index:06d}.mp4"

    def row(self) -> dict[str, object]:
        """Return the clip's line of the annotation file; `None` stands for a track the clip lacks."""
        return {
            "video_id": f"mini_{self.split}_{self.index:06d}",
            "caption": self.caption,
            "video_path": self.path if "video" in self.attributes else None,
            "audio_path": self.path if "audio" in self.attributes else None,
            "subtitle": self.subtitle,
            "about": list(self.mentions),
            "mentions": self.mentions,
            "attributes": self.attributes,
        }

    def satisfies(self, query: "MiniatureClip") -> bool:
        """Return whether everything that the caption of `query` mentions is true of this clip."""
        return all(
            modality in self.attributes
            and all(self.attributes[modality][name] == query.attributes[modality][name] for name in names)
            for modality, names in query.mentions.items()
        )


def _choice(rng: np.random.Generator, values: Sequence[str]) -> str:
    return values[int(rng.integers(len(values)))]


def _with_article(phrase: str) -> str:
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def _video_phrase(words: dict[str, str], rng: np.random.Generator) -> str:
    thing = _with_article(" ".join(words[name] for name in ("colour", "shape") if name in words))
    if "motion" in words:
        thing += f" {words['motion']}"
    ground = " ".join(words[name] for name in ("pattern", "ground") if name in words)
    if not ground:
        return thing
    ground = f"on {_with_article(ground)} {_choice(rng, ('ground', 'background'))}"
    return f"{thing} {ground}"


def _audio_phrase(words: dict[str, str], rng: np.random.Generator) -> str:
    tone = _with_article(" ".join(words[name] for name in ("pitch", "timbre") if name in words))
    return " ".join([tone, *(words[name] for name in ("rhythm", "backing") if name in words)])


def _subtitle_phrase(words: dict[str, str], rng: np.random.Generator) -> str:
    phrase = f"{words.get('speaker', 'someone')} {_choice(rng, ('talking', 'speaking', 'chatting'))}"
    if "topic" in words:
        phrase += f" about {words['topic']}"
    return f"{phrase} on {words['weekday']}" if "weekday" in words else phrase


_PHRASES = {"video": _video_phrase, "audio": _audio_phrase, "subtitle": _subtitle_phrase}
# What a caption may leave out, one at a time. A caption of one modality leaves something out less often, and never
# the speaker or the topic: a few hundred clips could not be told apart by the rest.
_OMISSIBLE = {
    "video": ("shape", "colour", "ground", "pattern", "motion"),
    "audio": ("pitch", "timbre", "rhythm", "backing"),
    "subtitle": ("speaker", "topic", "weekday"),
}
_OMISSIBLE_ALONE = {**_OMISSIBLE, "subtitle": ("weekday",)}
_NOUNS = {"shape": "shape", "timbre": "sound"}  # what stands for an omitted noun


def _draw_caption(attributes: dict[str, dict[str, str]], rng: np.random.Generator) -> tuple[str, dict[str, list[str]]]:
    """Draw which modalities the caption speaks of, what it leaves out, and its wording."""
    num_about = 1 + int(rng.integers(2))
    about = [list(attributes)[i] for i in rng.permutation(len(attributes))[:num_about]]
    omissible, omit_rate = (_OMISSIBLE_ALONE, 0.2) if num_about == 1 else (_OMISSIBLE, 0.5)
    mentions, phrases = {}, []
    for modality in about:
        omitted = _choice(rng, omissible[modality]) if rng.random() < omit_rate else None
        mentions[modality] = [name for name in attributes[modality] if name != omitted]
        words = {
            name: _choice(rng, VOCABULARY[modality][name][attributes[modality][name]]) for name in mentions[modality]
        }
        if omitted in _NOUNS:
            words[omitted] = _NOUNS[omitted]
        phrases.append(_PHRASES[modality](words, rng))
    template = _choice(rng, PAIRS if num_about == 2 else ALONE[about[0]])
    return template.format(*phrases), {modality: mentions[modality] for modality in attributes if modality in mentions}


def draw_clip(seed: int, split: str, index: int, absent: str | None = None, attempt: int = 0) -> MiniatureClip:
    """Draw what one clip shows, sounds like and says, and its caption.

    Args:
        seed (`int`): of the whole set, not negative.
        split (`str`): "train" or "test".
        index (`int`): number of the clip in its split.
        absent (`str`, *optional*): the modality the clip lacks.
        attempt (`int`, defaults to 0): another value gives another, independent clip.
    """
    rng = np.random.default_rng((seed, SPLITS.index(split), 1, index, attempt))
    attributes = {
        modality: {name: _choice(rng, list(values)) for name, values in names.items()}
        for modality, names in VOCABULARY.items()
    }
    subtitle = _choice(rng, SUBTITLES).format(**attributes["subtitle"])
    attributes.pop(absent, None)
    caption, mentions = _draw_caption(attributes, rng)
    return MiniatureClip(
        split=split,
        index=index,
        key=(seed, SPLITS.index(split), 2, index, attempt),
        attributes=attributes,
        mentions=mentions,
        caption=caption,
        subtitle=subtitle if absent != "subtitle" else None,
    )


def draw_split(seed: int, split: str, count: int) -> list[MiniatureClip]:
    """Draw the clips of one split: captions are unique in it, and `ABSENT_SHARES` hold to the nearest clip."""
    absent = [modality for modality, share in ABSENT_SHARES.items() for _ in range(round(share * count))]
    absent += [None] * (count - len(absent))
    order = np.random.default_rng((seed, SPLITS.index(split), 3)).permutation(count)
    clips, captions = [], set()
    for index in range(count):
        attempt = 0
        clip = draw_clip(seed, split, index, absent[order[index]])
        while clip.caption in captions:
            attempt += 1
            clip = draw_clip(seed, split, index, absent[order[index]], attempt)
        captions.add(clip.caption)
        clips.append(clip)
    return clips


def recall_ceiling(clips: Sequence[MiniatureClip]) -> float:
    """Return the R@1, in [0, 1], expected of a perfect model that breaks ties at random.

    A caption that is true of n clips contributes 1 / n.
    """
    return float(np.mean([1 / sum(clip.satisfies(query) for clip in clips) for query in clips]))


__all__ = ["ABSENT_SHARES", "SPLITS", "MiniatureClip", "draw_clip", "draw_split", "recall_ceiling"]
