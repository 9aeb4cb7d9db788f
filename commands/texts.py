"""Text made safe to print in a terminal, and printed."""

import sys
import unicodedata

_JOINERS = "\u200c\u200d"  # invisible, but part of words in many scripts and of emoji


def plain(text: str, encoding: str | None = None) -> str:
    """Escape characters that could control a terminal (control, direction marks), and those that `encoding` lacks."""

    if not text.isprintable():
        chars = []
        for char in text:
            is_harmless = char.isprintable() or char in _JOINERS or unicodedata.category(char) == "Zs"
            if not is_harmless:
                char = ascii(char)[1:-1]  # without the quotes
            chars.append(char)
        text = "".join(chars)
    # Then escape what the terminal's encoding lacks.
    encoding = encoding or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def printable(lines: list[str] | tuple[str, ...], encoding: str | None = None) -> str:
    """Lines as one text, each made [`plain`]."""
    return "\n".join(plain(line, encoding) for line in lines)


def print_message(message: str) -> None:
    """Print one line to stderr; characters that the terminal cannot print are escaped."""
    print(plain(message, sys.stderr.encoding), file=sys.stderr, flush=True)


def print_lines(*lines: str) -> None:
    """Print lines of a result to stdout, as [`print_message`] prints one."""
    if lines:
        print(printable(lines, sys.stdout.encoding), flush=True)


__all__ = ["plain", "print_lines", "print_message", "printable"]
