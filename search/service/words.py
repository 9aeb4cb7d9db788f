"""What is said in a clip, as its subtitles or its transcript have it: words with their seconds."""

import html
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from gallery.decoding import SandboxedReader
from gallery.subtitles import TEXT_FILES, find_sidecar

from .media import kind_of

_REMEMBERED = 64  # files, of which a track is found by reading all of the file
_LEAST = 3  # letters that two forms of a word begin with alike


class Cue(NamedTuple):
    """Words, and from which second to which they are said."""

    start: float
    stop: float
    text: str


def _stamp(path: str | os.PathLike) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=_REMEMBERED)
def _read(path: str, stamp: tuple[int, int], languages: tuple[str, ...]) -> list[Cue]:
    try:
        return [Cue(*cue) for cue in SandboxedReader(languages=languages).read_cues(path)]
    except (OSError, ValueError):
        return []


def read_cues(path: str | os.PathLike, languages: Iterable[str] = ()) -> list[Cue]:
    """
    Read what is said.

    Args:
        path (`str`): a subtitle file; or a media file, of which its text tracks say it.
        languages (iterable of `str`): of tracks those that come first.

    Returns:
        The cues in their order; none of a file that cannot be read.
    """
    stamp = _stamp(path)
    return [] if stamp is None else _read(os.fspath(path), stamp, tuple(languages))


def cues_of(path: str, languages: Iterable[str] = ()) -> list[Cue]:
    """The cues of the subtitles of a media file that is there and played."""
    if not (os.path.isabs(path) and os.path.isfile(path) and kind_of(path, True)):
        return []
    beside = find_sidecar(path, languages)
    # a link may lead to what is nobody's business
    if beside is not None and not os.path.realpath(beside).lower().endswith(TEXT_FILES):
        return []
    return read_cues(path if beside is None else beside, languages)


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


__all__ = ["Cue", "as_vtt", "best_cues", "cues_of", "read_cues", "within"]
