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
    """A text without case and accents."""
    if text.isascii():
        return text.lower()
    letters = normalize("NFKD", normalize("NFKD", text).casefold())
    return "".join(letter for letter in letters if not combining(letter))


def folded(text: str) -> str:
    """The words of a text in the form in which they are compared, each between two spaces; `""` if there are none."""
    words = _WORD.findall(_plain(text))
    if not words:
        return ""
    return f" {' '.join(words)} "


def spans_of(words: Iterable[str], text: str) -> list[tuple[int, int]]:
    """Where words or phrases occur in a text: first character, and the one after the last."""
    # One character may fold to several or none, so each folded one keeps the place of its original.
    letters = []
    places = []
    for place, original in enumerate(text):
        plain = _plain(original)
        letters += plain
        places += [place] * len(plain)
    matches = list(_WORD.finditer("".join(letters)))
    known = [match[0] for match in matches]

    spans = set()
    for word in words:
        wanted = folded(word).split()
        if not wanted:
            continue
        for first in range(len(known) - len(wanted) + 1):
            last = first + len(wanted) - 1
            if known[first : last + 1] != wanted:
                continue
            stop = places[matches[last].end() - 1] + 1
            # An accent may be a character of its own after its letter.
            while stop < len(text) and combining(text[stop]):
                stop += 1
            spans.add((places[matches[first].start()], stop))
    return sorted(spans)


__all__ = ["folded", "spans_of"]
