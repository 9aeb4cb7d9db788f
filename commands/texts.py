"""Texts that a terminal can print, whatever they hold."""

import unicodedata

_JOINERS = "\u200c\u200d"  # invisible, but part of words in many scripts, and of emoji


def plain(text: str, encoding: str | None = None) -> str:
    """Escape what a terminal could obey (control characters, marks of direction), and what `encoding` lacks."""

    def is_harmless(char: str) -> bool:
        return char.isprintable() or char in _JOINERS or unicodedata.category(char) == "Zs"

    text = "".join(char if is_harmless(char) else ascii(char)[1:-1] for char in text)
    encoding = encoding or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding)


__all__ = ["plain"]
