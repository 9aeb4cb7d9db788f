"""Words in the form in which they are compared: case, accents and anything between words are ignored. In scripts
without spaces between words, each character is one.
"""

import re
from collections.abc import Iterable
from unicodedata import combining, normalize

_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_SPACELESS}]|[^\W_{_SPACELESS}]+")


def _plain(text: str) -> str:
    if text.isascii():
        return text.lower()
    return "".join(letter for letter in normalize("NFKD", normalize("NFKD", text).casefold()) if not combining(letter))


def folded(text: str) -> str:
    """The words of a text in the form in which they are compared, each between two spaces; `""` if there are none."""
    words = _WORD.findall(_plain(text))
    return f" {' '.join(words)} " if words else ""


def places_of(words: Iterable[str], text: str) -> list[tuple[int, int]]:
    """Where words or phrases occur in a text: first character, and the one after the last."""
    letters = [(letter, place) for place, original in enumerate(text) for letter in _plain(original)]
    found = list(_WORD.finditer("".join(letter for letter, _ in letters)))
    said = [match[0] for match in found]
    spans = set()
    for wanted in (folded(word).split() for word in words):
        for first in range(len(said) - len(wanted) + 1):
            if wanted and said[first : first + len(wanted)] == wanted:
                start = letters[found[first].start()][1]
                stop = letters[found[first + len(wanted) - 1].end() - 1][1] + 1
                while stop < len(text) and combining(text[stop]):
                    stop += 1
                spans.add((start, stop))
    return sorted(spans)


__all__ = ["folded", "places_of"]
