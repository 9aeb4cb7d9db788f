"""Which clips a search may find, by facts other than their vectors: path, duration, date, modalities, and words.

Conditions are checked here without torch, which loads for a second;
[`~scalar_retrieval.gallery.exact.clip_facts`] applies them.
"""

import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

from scalar_retrieval.commands.schema import check_value

from .words.folding import folded

# Facts that may be unknown for a clip
DURATION = "duration"
DATE = "date"
WORDS = "words"

_LONGEST = 4096  # characters of a path
_QUOTES = '"“”„‟«»'
_QUOTED = re.compile(f"[{_QUOTES}]([^{_QUOTES}]*)[{_QUOTES}]")
_TOKENS = re.compile(r"(?s)(?<![^/])\*\*/|\*+|\?|\[!?\]?[^\]]*\]|.")
_FOLDERS = "(?:.*/)?"  # any number of folders
_NOTHING = r"[^\x00-\x{10ffff}]"  # a character that there is not


class ModalityError(ValueError):
    """The clips do not have the modalities that are requested."""


class PatternError(ValueError):
    """A path pattern is invalid."""


def _expression_of(token: str) -> str:
    """The regular expression of one token of a path pattern; a character or a set of some, as `fnmatch` reads it."""
    if token.startswith("*"):
        return {"*": "[^/]*", "**/": _FOLDERS}.get(token, ".*")
    if token == "?":
        return "[^/]"
    expression = fnmatch.translate(token)[4:-3]  # without flags and end
    if expression.startswith("(?"):
        return _NOTHING
    # The complement of a set does not contain the separator of folders, either.
    if expression.startswith("[^"):
        return f"[^/{expression[2:]}"
    return expression


def text_pattern_of(glob: str) -> str | None:
    """
    Translate a path pattern, see [`Filter`].

    Returns:
        A regular expression that matches what the pattern does, between `^` and `$`; `None` if the pattern contains
        what no path does, NUL or a lone surrogate, and so matches nothing.

    Raises:
        PatternError: it is empty or too long.
    """
    if not glob.strip("/") or len(glob) > _LONGEST:
        raise PatternError(f"A path pattern must have 1 to {_LONGEST} characters, like 'holiday/*', got {glob!r:.80}.")
    try:
        glob.encode()
        path = os.path.expanduser(glob)
    except ValueError:
        return None
    # A pattern that matches a folder matches all its content; one without a leading slash begins at any folder.
    below = "/.*" if path.endswith("/") else "(?:/.*)?"
    path = path.rstrip("/").removeprefix("./")
    above = "" if path.startswith("/") else _FOLDERS
    pattern = above + "".join(map(_expression_of, _TOKENS.findall(path))) + below
    return None if "\0" in pattern else pattern


def path_matcher(globs: Iterable[str]) -> Callable[[str], bool]:
    """A function that returns whether a path matches one of some patterns, see [`Filter`]; a ValueError if invalid."""
    patterns = []
    for glob in globs:
        pattern = text_pattern_of(glob)
        # What matches no character in RE2 is a syntax error in Python.
        if pattern is not None:
            patterns.append(re.compile(pattern.replace(_NOTHING, "(?!)"), re.DOTALL))
    return lambda path: any(pattern.fullmatch(path) for pattern in patterns)


def _moment(name: str, value: str | date | datetime | None) -> datetime | None:
    """A date, or a date and a time, as a moment; the default zone is UTC, the default time midnight."""
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(str(value).strip())  # dates and moments are written like that
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC)
    except (OverflowError, ValueError) as error:
        raise ValueError(
            f"`{name}` must be a date like 2026-01-31, or a date and a time like 2026-01-31T18:00, that exists in "
            f"UTC, got {value!r}."
        ) from error


@dataclass(frozen=True)
class Filter:
    """
    Conditions that a clip must meet, all of them, to be found.

    Args:
        paths (`str`, or several): patterns, one of which must match the path. `*` and `?` match within a folder or
            file name, `**` any number of folders, `[...]` one of some characters, as in `fnmatch`. A pattern without
            a leading `/` may match from any folder on: `holiday/*.mp4` means any folder of that name. A pattern that
            matches a folder matches everything in it.
        min_duration (`float`, *optional*), max_duration (`float`, *optional*): length of the clip in seconds, both
            included.
        after (`datetime` or `str`, *optional*), before (`datetime` or `str`, *optional*): when its file was recorded,
            or if that is unknown, when it, or the subtitle file next to it, was last changed: from `after` (included)
            to `before` (excluded). A date alone is its first moment; the default zone is UTC.
        has (`str`, or several), lacks (`str`, or several): modalities that the clip must have, and must not have.
        words (`str`, or several): words or phrases, all of which must be said in the clip or be in another of its
            texts; see [`~scalar_retrieval.gallery.words.folding`]. In a query, these are in quotation marks.

    Raises:
        ValueError: no clip could meet the conditions, or a value is invalid.

    Example:

        >>> gallery = Gallery.open("galleries/videos")
        >>> hits = gallery.search("a dog barks", allowed=Filter(paths="holiday/**", has="audio"))
        >>> hits.num_allowed, hits.num_clips
        (2, 4)
    """

    paths: str | Sequence[str] = ()
    min_duration: float | None = None
    max_duration: float | None = None
    after: datetime | str | None = None
    before: datetime | str | None = None
    has: str | Sequence[str] = ()
    lacks: str | Sequence[str] = ()
    words: str | Sequence[str] = ()

    def __post_init__(self):
        # Values in one form, so that equal filters are equal: a single text is a tuple of one, dates are moments.
        for name in ("paths", "has", "lacks", "words"):
            value = getattr(self, name)
            if isinstance(value, str):
                value = (value,)
            object.__setattr__(self, name, tuple(value or ()))
        for name in ("after", "before"):
            object.__setattr__(self, name, _moment(name, getattr(self, name)))
        # Values that no clip could meet are refused here, before anything is read.
        for pattern in self.paths:
            text_pattern_of(pattern)
        for name in ("min_duration", "max_duration"):
            check_value(getattr(self, name), (None, "[0, inf)"), name)
        if None not in (self.min_duration, self.max_duration) and self.min_duration > self.max_duration:
            raise ValueError(
                f"No clip lasts at least {self.min_duration:g} and at most {self.max_duration:g} seconds. Swap them?"
            )
        if None not in (self.after, self.before) and self.after >= self.before:
            raise ValueError(f"No time is after {self.after} and before {self.before}. Swap them?")
        for word in self.words:
            if not folded(word):
                raise ValueError(f"`words` must be words or phrases, got {word!r}.")

    def check_modalities(self, modalities: Sequence[str]) -> None:
        """Raise a ValueError if unknown modalities are named, or if clips would have to lack all of them."""
        if not {*self.has, *self.lacks} <= set(modalities):
            raise ModalityError(
                f"`has` and `lacks` must name some of {tuple(modalities)}, got {self.has} and {self.lacks}."
            )
        if set(self.lacks) == set(modalities):
            raise ModalityError("Every clip has a modality: do not name all modalities in `lacks`.")

    def with_words(self, words: Iterable[str]) -> "Filter":
        """The same filter with further words."""
        return replace(self, words=tuple(dict.fromkeys((*self.words, *words))))

    @property
    def is_empty(self) -> bool:
        """Whether there is no condition, so that every clip passes."""
        return self == Filter()


def are_selected(modalities: Sequence[str] | None, known: Sequence[str]) -> tuple[bool, ...]:
    """Which of the known modalities are selected by name; all of them if no names are given."""
    names = tuple(known if modalities is None else modalities)
    if not names or not set(names) <= set(known):
        raise ModalityError(f"`modalities` must name some of {tuple(known)}, got {names}.")
    return tuple(name in names for name in known)


# Conditions within a query -------------------------------------------------------------------------------------------


def split_query(query: str) -> tuple[str, tuple[str, ...]]:
    """
    Split off what must be said literally in a query: the parts in quotation marks.

    Returns:
        The text for the model, which is the query without quotation marks; and the words or phrases inside them.

    Example:
        >>> split_query('dog "Karin"')
        ('dog Karin', ('Karin',))
    """
    parts = _QUOTED.findall(query)
    if not parts:
        return query, ()
    # Marks around punctuation alone are no condition.
    phrases = []
    for part in parts:
        phrase = " ".join(part.split())
        if folded(phrase) and phrase not in phrases:
            phrases.append(phrase)
    text = _QUOTED.sub(r"\1", query)
    return " ".join(text.split()), tuple(phrases)


def split_queries(texts: Sequence[str]) -> tuple[list[str], list[tuple[str, ...]]]:
    """[`split_query`] of several queries. Raises a ValueError that names one without words, or not UTF-8."""
    asked = []
    words = []
    for text in texts:
        left = ""
        if isinstance(text, str):
            left, quoted = split_query(text)
        if not left.strip():
            raise ValueError(f"A query is empty, got {text!r}. Type what you are looking for.")
        # A terminal in another encoding gives lone surrogates, which tokenizers refuse.
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"The query {text!r} is not UTF-8. Set the encoding of your terminal to UTF-8."
            ) from error
        asked.append(left)
        words.append(quoted)
    return asked, words


__all__ = [
    "DATE",
    "DURATION",
    "WORDS",
    "Filter",
    "ModalityError",
    "PatternError",
    "are_selected",
    "path_matcher",
    "split_queries",
    "split_query",
    "text_pattern_of",
]
