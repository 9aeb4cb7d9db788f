"""Which words belong to a media file: subtitle files next to it and text tracks inside, and their order of preference.

The subtitles of `film.mp4` have the names that players expect: `film.srt`, `film.de.srt`, `film.German.forced.srt`,
also in a folder `Subs` or `Subtitles` next to it. In there they may be in a folder `film`, and if that is the only
film, they may have any name, such as `2_English.srt`. Case does not matter.
"""

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from modeling_scalar.media_scalar import TEXT_CODECS

LANGUAGES = "languages"
"""Metadata entry of a gallery: preferred languages of subtitles, in order."""

MEDIA_FILES = frozenset(
    ".mp4 .m4v .mov .mkv .webm .avi .mpg .mpeg .vob .ts .mts .m2ts .mxf .flv .wmv .asf .ogv .3gp .3g2 .gif "
    ".wav .mp3 .m4a .aac .flac .ogg .opus .wma .aif .aiff".split()
)
"""Extensions of files with pictures or sound, in lowercase."""
TEXT_FILES = (".srt", ".vtt", ".ass", ".ssa")
_UNREAD_FILES = (".sub", ".sup", ".sbv", ".ttml", ".dfxp", ".smi", ".lrc", ".usf")
_FOLDERS = ("subs", "subtitles")
_FLAGS = frozenset("forced foreign sdh cc hi default full auto orig original".split())
_JOINED = re.compile(rf"-(?=(?:{'|'.join(sorted(_FLAGS))})$)")  # en-orig
_SAME = 25  # at this distance (CLDR) or less, one language can replace the other
_TICK = 2.0  # seconds: coarsest time stamps of file systems
_GLANCE = 1.0  # seconds for which the listing of a changing folder is reused
_REMEMBERED = 1024  # folders


class Track(NamedTuple):
    """A track of subtitles inside a file: the index of its stream, its codec, its language as written in the file, and
    whether it contains only what is said in foreign languages."""

    index: int
    codec: str
    language: str
    is_forced: bool


@dataclass(frozen=True)
class Words:
    """
    One of the subtitles of a media file.

    Args:
        file (`Path`, *optional*), track (`int`, *optional*): the file next to it, or the index of the stream inside.
        language (`str`, *optional*): IETF BCP 47 tag; `None` if unknown.
        is_forced (`bool`): only what is said in foreign languages.
        is_plain (`bool`): its name has no mark except that of a language.
        depth (`int`): number of folders between it and the media file.
        unread (`str`, *optional*): why it cannot be read.
    """

    file: Path | None = None
    track: int | None = None
    language: str | None = None
    is_forced: bool = False
    is_plain: bool = True
    depth: int = 0
    unread: str | None = None

    @property
    def kind(self) -> str:
        """Its kind, for counting subtitles that are not used."""
        return self.unread or ("without a language" if self.language is None else f"in {self.language}")


# Languages ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def language_of(name: str) -> str | None:
    """The tag of a language by its code or name: "de" for "ger", "deu", "DE" and "German"; `None` if unknown."""
    import langcodes

    try:
        language = langcodes.Language.get(name)
        if language.is_valid() and language.language not in (None, "mul", "und", "zxx"):
            return str(language)
    except ValueError:
        pass
    try:
        return str(langcodes.find(name)) if len(name) > 3 else None
    except LookupError:
        return None


def languages_of(names: str | Iterable[str]) -> list[str]:
    """
    Read preferred languages in order, as "de,en" or a list of names.

    Raises:
        ValueError: one is not a language.
    """
    names = names.split(",") if isinstance(names, str) else list(names)
    found = [language_of(name.strip()) for name in names]
    if None in found:
        raise ValueError(
            f"A language is a code or an English name, such as 'de,en' or 'german', got {names[found.index(None)]!r}."
        )
    return list(dict.fromkeys(found))


@lru_cache(maxsize=4096)
def _rank(language: str | None, languages: tuple[str, ...]) -> int:
    """The index of the first language that equals this one or can be replaced by it; their number if there is none."""
    from langcodes import tag_distance

    fits = (language is not None and tag_distance(wanted, language) < _SAME for wanted in languages)
    return next((place for place, is_fit in enumerate(fits) if is_fit), len(languages))


# Files --------------------------------------------------------------------------------------------------------------


class _Folder(NamedTuple):
    """The content of a folder: subtitle files by each beginning of their names that ends before a dot and may be the
    name of a film; all subtitle files; folders of subtitles; and the names of media files, without extensions."""

    by_stem: dict[str, list[str]]
    subtitles: list[str]
    folders: list[str]
    media: set[str]


_seen: dict[str, tuple[int, float, _Folder]] = {}


def _list(folder: str) -> _Folder:
    by_stem, subtitles, folders, media = {}, [], [], set()
    for name in sorted(os.listdir(folder)):
        stem, extension = os.path.splitext(name)
        extension = extension.lower()
        if extension in MEDIA_FILES:
            media.add(stem.casefold())
        elif extension in TEXT_FILES + _UNREAD_FILES:
            subtitles.append(name)
            parts = stem.casefold().split(".")
            for length in range(1, len(parts) + 1):
                by_stem.setdefault(".".join(parts[:length]), []).append(name)
        elif name.lower() in _FOLDERS:
            folders.append(name)
    return _Folder(by_stem, subtitles, folders, media)


def _listing(folder: str) -> _Folder:
    """The content of a folder; it is listed again only after changes, as it may hold a hundred thousand files."""
    try:
        changed, now = os.stat(folder).st_mtime_ns, time.time()
        before = _seen.get(folder)
        if before is not None and before[0] == changed:
            if before[1] - changed / 1e9 > _TICK or 0 <= now - before[1] < _GLANCE:
                return before[2]
        found = _list(folder)
    except OSError:
        return _Folder({}, [], [], set())
    if len(_seen) >= _REMEMBERED:
        _seen.clear()
    _seen[folder] = changed, now, found
    return found


def _file(folder: str, name: str, language: str | None, flags: set[str], depth: int) -> Words:
    extension = os.path.splitext(name)[1].lower()
    unread = None if extension in TEXT_FILES else f"in {extension}, which is not read"
    is_forced = bool(flags & {"forced", "foreign"})
    return Words(Path(folder, name), None, language, is_forced, not flags, depth, unread)


def _named_after(stem: str, ending: str, folder: str, depth: int) -> Iterator[Words]:
    """The subtitles in a folder that are named after a media file, followed by the language and marks."""
    for name in _listing(folder).by_stem.get(stem.casefold(), ()):
        parts = os.path.splitext(name)[0].lower().split(".")[stem.count(".") + 1 :]
        marks = [mark for part in parts for mark in _JOINED.split(part)]
        if marks[:1] == [ending.lower().removeprefix(".")]:
            marks = marks[1:]  # film.mp4.srt
        language, flags = None, set()
        for mark in marks:
            known = language_of(mark) if language is None and mark not in _FLAGS - {"hi"} else None
            if known is not None:
                language = known
            elif mark in _FLAGS:
                flags.add(mark)
            else:
                break  # another film whose name begins in the same way
        else:
            yield _file(folder, name, language, flags, depth)


def _called_anything(folder: str, depth: int) -> Iterator[Words]:
    """All subtitles of a folder, which belong to one film."""
    for name in _listing(folder).subtitles:
        marks = [mark.lower() for mark in re.split(r"[\W_]+", os.path.splitext(name)[0]) if mark]
        languages = (language_of(mark) for mark in reversed(marks) if mark not in _FLAGS)
        yield _file(folder, name, next(filter(None, languages), None), _FLAGS.intersection(marks), depth)


def subtitles_beside(path: str | os.PathLike) -> list[Words]:
    """The subtitle files that belong to a media file."""
    folder, name = os.path.split(os.path.abspath(path))
    stem, ending = os.path.splitext(name)
    found, here = list(_named_after(stem, ending, folder, 0)), _listing(folder)
    for below in here.folders:
        subs = os.path.join(folder, below)
        found += _named_after(stem, ending, subs, 1)
        found += _called_anything(os.path.join(subs, stem), 2)
        if here.media == {stem.casefold()}:
            found += _called_anything(subs, 1)
    named = {words.file: words for words in reversed(found) if words.file.exists()}  # no broken links
    return list(named.values())


def subtitles_inside(tracks: Iterable[Track]) -> list[Words]:
    """The subtitles inside a media file."""
    return [
        Words(
            track=track.index,
            language=language_of(track.language),
            is_forced=track.is_forced,
            unread=None if track.codec in TEXT_CODECS else "tracks of pictures",
        )
        for track in tracks
    ]


# Order --------------------------------------------------------------------------------------------------------------


def in_order(found: Iterable[Words], languages: Sequence[str] = ()) -> list[Words]:
    """
    Sort the subtitles of a media file, best first: readable before unreadable, complete before forced, by preferred
    languages, files before tracks; among files, those without a language first, then English, then the nearest.
    """

    def key(words: Words) -> tuple:
        best = words.unread is not None, words.is_forced, _rank(words.language, tuple(languages))
        if words.file is None:
            return *best, True, words.track
        guess = 0 if words.language is None else 1 if _rank(words.language, ("en",)) == 0 else 2
        kind = (TEXT_FILES + _UNREAD_FILES).index(words.file.suffix.lower())
        return *best, False, guess, words.language or "", not words.is_plain, words.depth, kind, words.file.name

    return sorted(found, key=key)


def find_sidecar(path: str | os.PathLike, languages: Sequence[str] = ()) -> Path | None:
    """The first readable subtitle file of a media file; `None` if there is none."""
    return next((words.file for words in in_order(subtitles_beside(path), languages) if words.unread is None), None)


__all__ = [
    "LANGUAGES",
    "MEDIA_FILES",
    "TEXT_FILES",
    "Track",
    "Words",
    "find_sidecar",
    "in_order",
    "language_of",
    "languages_of",
    "subtitles_beside",
    "subtitles_inside",
]
