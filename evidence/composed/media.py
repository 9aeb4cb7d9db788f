"""Reads photographs, sounds and recorded words where two packages of Debian put them, and recognises the words.

Photographs and sounds are stamps of tuxpaint-stamps-default, words are prompts of asterisk-core-sounds-en-wav. Nothing
of them is copied into the repository.
"""

import hashlib
import re
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from evidence.stamps.items import Item, on_white, read_items, words_of
from scalar_retrieval.modeling_scalar.media_scalar import SAMPLING_RATE, resample

SIDE = 224
"""Width and height of a picture, in pixels: what `light` reads."""

_PAUSE = np.zeros(SAMPLING_RATE // 4, dtype=np.float32)  # around every word
_NAMES_A_THING = re.compile(r"(a|an|the)\b", re.IGNORECASE)
_NOT_SOUNDS = "symbols"  # letters, digits and faces

_ALPHABET = (
    "alfa bravo charlie delta echo foxtrot golf hotel india juliet kilo lima mike november oscar papa quebec romeo "
    "sierra tango uniform victor whiskey x-ray yankee zulu"
).split()
_NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_DAYS = "sunday monday tuesday wednesday thursday friday saturday".split()
_MONTHS = ("january february march april may june july august september october november december").split()

FIRST = {f"phonetic/{word[0]}_p.wav": word for word in _ALPHABET}
"""Prompts that come first, and their words."""

SECOND = {
    **{f"digits/{number}.wav": word for number, word in enumerate(_NUMBERS)},
    **{f"digits/{10 * number}.wav": word for number, word in enumerate(_TENS, start=2)},
    **{f"digits/day-{number}.wav": word for number, word in enumerate(_DAYS)},
    **{f"digits/mon-{number}.wav": word for number, word in enumerate(_MONTHS)},
}
"""Prompts that come second, and their words."""

WORDS = FIRST | SECOND

Pair = tuple[str, str]
"""The names of two prompts."""


@dataclass(frozen=True)
class Sound:
    """
    The own sound of a stamp.

    Args:
        path (`str`): its path below the folder of stamps, with `/`.
        title (`str`): the name of its file, as words.
        caption (`str`): what the maker of the stamp wrote.
    """

    path: str
    title: str
    caption: str


@dataclass(frozen=True)
class Half:
    """
    What the clips of one half are made of; nothing belongs to both.

    Args:
        is_shown (`bool`): whether its clips are shown; those of the other half fit.
        photographs (`list[Item]`), sounds (`list[Sound]`), pairs (`list[Pair]`): in the order of their names.
    """

    is_shown: bool
    photographs: list[Item]
    sounds: list[Sound]
    pairs: list[Pair]


def _is_shown(name: str) -> bool:
    """The rule of [`~evidence.stamps.items.Item.is_shown`]."""
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 1


def read_sounds(stamps: Path) -> list[Sound]:
    """
    Read which stamps have a sound of their own, and a caption that names a thing: it begins with an article.

    Args:
        stamps (`Path`): the folder of stamps. Of sounds that share a caption the first counts.
    """
    known = set()
    sounds = []
    for path in sorted(stamps.rglob("*.ogg")):
        place = path.relative_to(stamps)
        text = path.with_suffix(".txt")
        if _NOT_SOUNDS in place.parts or not path.with_suffix(".png").is_file() or not text.is_file():
            continue
        first, *_ = text.read_text(encoding="utf-8").split("\n")
        caption = first.strip()
        if caption in known or not _NAMES_A_THING.match(caption):
            continue
        known.add(caption)
        sounds.append(Sound(place.as_posix(), " ".join(words_of(path.stem)), caption))
    return sounds


def read_halves(stamps: Path, prompts: Path) -> dict[str, Half]:
    """
    Read what clips are made of: `"validation"`, the half that fits, and `"test"`, the half that is shown.

    Args:
        stamps (`Path`), prompts (`Path`): the folders of both packages.

    Raises:
        FileNotFoundError: there are no photographs, or no prompts.
    """
    photographs = read_items(stamps)
    sounds = read_sounds(stamps)
    if not prompts.is_dir():
        raise FileNotFoundError(
            f"{prompts} has no recorded words. Install Debian's asterisk-core-sounds-en-wav, or name its folder by "
            "`--prompts`."
        )
    pairs = list(product(FIRST, SECOND))
    halves = {}
    for name, is_shown in (("validation", False), ("test", True)):
        halves[name] = Half(
            is_shown,
            [item for item in photographs if item.is_shown == is_shown],
            [sound for sound in sounds if _is_shown(sound.path) == is_shown],
            [pair for pair in pairs if _is_shown("+".join(pair)) == is_shown],
        )
    return halves


def read_picture(path: Path) -> np.ndarray:
    """Read a photograph, uint8 of shape `(SIDE, SIDE, 3)`, whole, with white where it is not square."""
    picture = Image.fromarray(on_white(path))
    return np.asarray(ImageOps.pad(picture, (SIDE, SIDE), color="white"))


def read_speech(names: Sequence[str], prompts: Path) -> np.ndarray:
    """Read recorded words, with pauses around them, float32 of shape `(samples,)` in [-1, 1], at 16 kHz."""
    parts = [_PAUSE]
    for name in names:
        with wave.open(str(prompts / name)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), dtype=np.int16)
            rate = file.getframerate()
        parts += [resample(samples[None] / np.float32(2**15), rate), _PAUSE]
    return np.concatenate(parts)


def recognise(prompts: Path) -> dict[str, str]:
    """
    Return what a recogniser understands of each prompt; `""` for nothing. It knows that a prompt is one of the words.

    Args:
        prompts (`Path`): the folder of prompts.

    Raises:
        ModuleNotFoundError: pocketsphinx is not installed.
    """
    try:
        from pocketsphinx import Decoder
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Recorded words need a recogniser: `pip install pocketsphinx` (29 MB with its model of English).",
            name=error.name,
        ) from error
    decoder = Decoder(samprate=SAMPLING_RATE, loglevel="FATAL", lm=None)
    words = " | ".join(sorted(set(WORDS.values())))
    decoder.add_jsgf_string("word", f"#JSGF V1.0;\ngrammar word;\npublic <word> = {words};\n")
    decoder.activate_search("word")
    understood = {}
    for name in WORDS:
        samples = (read_speech([name], prompts) * (2**15 - 1)).astype(np.int16)
        decoder.start_utt()
        decoder.process_raw(samples.tobytes(), full_utt=True)
        decoder.end_utt()
        hypothesis = decoder.hyp()
        understood[name] = "" if hypothesis is None else hypothesis.hypstr
    return understood


def subtitle_of(pair: Pair, understood: Mapping[str, str]) -> str:
    """Return what was understood of two words; `""` if nothing was."""
    return " ".join(understood[name] for name in pair).strip()


__all__ = [
    "FIRST",
    "SECOND",
    "SIDE",
    "WORDS",
    "Half",
    "Pair",
    "Sound",
    "read_halves",
    "read_picture",
    "read_sounds",
    "read_speech",
    "recognise",
    "subtitle_of",
]
