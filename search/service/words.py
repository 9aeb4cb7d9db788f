"""What is said in a clip, as its subtitle file or its transcript has it: words with their seconds."""

import html
import os
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

from modeling_scalar.media_scalar import MediaError, check_file, find_sidecar, parse_subtitle

from .media import kind_of

_MOST_BYTES = 10_000_000  # of a subtitle file
_ENDINGS = (".srt", ".vtt")
_TIME = r"(?:(\d+):)?(\d{1,2}):(\d{2}[.,]\d{1,3})"
_TIMING = re.compile(rf"^\s*{_TIME}\s*-->\s*{_TIME}")
_LEAST = 3  # letters that two forms of a word begin with alike


class Cue(NamedTuple):
    """Words, and from which second to which they are said."""

    start: float
    stop: float
    text: str


def _seconds(hours: str | None, minutes: str, seconds: str) -> float:
    return 3600 * int(hours or 0) + 60 * int(minutes) + float(seconds.replace(",", "."))


def sidecar_of(path: str) -> Path | None:
    """The subtitle file beside a file that is there and played; `None` if there is none."""
    if not (os.path.isabs(path) and os.path.isfile(path) and kind_of(path, True)):
        return None
    found = find_sidecar(path)
    return found if found is not None and os.path.realpath(found).lower().endswith(_ENDINGS) else None


def read_cues(file: Path) -> list[Cue]:
    """The cues of an `.srt` or `.vtt` file in their order; none of one that cannot be read."""
    try:
        check_file(file)
        with file.open("rb") as stream:
            lines = stream.read(_MOST_BYTES).decode("utf-8-sig").splitlines()
        timings = [(place, timing) for place, line in enumerate(lines) if (timing := _TIMING.match(line))]
        cues = []
        for (place, timing), (stop, _) in pairwise([*timings, (len(lines), None)]):
            said = [lines[place], *takewhile(str.strip, lines[place + 1 : stop])]
            text, times = parse_subtitle(file, "\n".join(said).encode()), timing.groups()
            if text:
                cues.append(Cue(_seconds(*times[:3]), _seconds(*times[3:]), text))
    except (OSError, UnicodeError, MediaError):
        return []
    return sorted(cues)


def within(cues: Sequence[Cue], start: float | None, stop: float | None) -> list[Cue]:
    """The cues that are said, at least partly, between two seconds."""
    least, most = start or 0.0, float("inf") if stop is None else stop
    return [cue for cue in cues if cue.stop > least and cue.start < most]


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))


def _is_in(word: str, words: set[str]) -> bool:
    """Whether a word is among some, maybe in another form."""
    return word in words or any(
        min(len(word), len(other)) >= _LEAST and (word.startswith(other) or other.startswith(word)) for other in words
    )


def best_cues(cues: Sequence[Cue], query: str, most: int) -> list[tuple[Cue, bool]]:
    """
    Choose what to show of what is said.

    Returns:
        The cues that have most words of the query, rare ones first, in their order, and whether they have any; the
        first ones where none has.
    """
    said, asked = [_words(cue.text) for cue in cues], _words(query)
    has = [{word for word in asked if _is_in(word, words)} for words in said]
    counts = Counter(word for words in has for word in words)
    worth = [sum(1 / counts[word] for word in words) for words in has]
    best = sorted(sorted(range(len(cues)), key=lambda place: -worth[place])[:most])
    found = [(cues[place], True) for place in best if worth[place]]
    return found or [(cue, False) for cue in cues[:most]]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(1000 * seconds), 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest / 1000:06.3f}"


def as_vtt(cues: Sequence[Cue]) -> str:
    """Cues as players take them."""
    told = [f"{_clock(cue.start)} --> {_clock(cue.stop)}\n{html.escape(cue.text, quote=False)}\n" for cue in cues]
    return "\n".join(["WEBVTT\n", *told])


__all__ = ["Cue", "as_vtt", "best_cues", "read_cues", "sidecar_of", "within"]
