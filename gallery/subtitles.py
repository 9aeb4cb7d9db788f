"""Which words belong to a media file: the subtitle file next to it, else a text track inside.

Subtitle files of `film.mp4` are `film.srt`, and those with something between the name and the extension, such as
`film.en.srt`, unless they belong to a media file with a longer name, such as `film.en.mp4`. The file with the shortest
name is used; if several are as short, the first in alphabetical order. Case does not matter.
"""

import os
import time
from pathlib import Path

MEDIA_FILES = frozenset(
    ".mp4 .m4v .mov .mkv .webm .avi .mpg .mpeg .vob .ts .mts .m2ts .mxf .flv .wmv .asf .ogv .3gp .3g2 .gif "
    ".wav .mp3 .m4a .aac .flac .ogg .opus .wma .aif .aiff".split()
)
"""Extensions of files with pictures or sound, in lowercase."""
TEXT_FILES = (".srt", ".vtt", ".ass", ".ssa")
_TICK = 2.0  # seconds: coarsest time stamps of file systems
_GLANCE = 1.0  # seconds for which the listing of a changing folder is reused
_REMEMBERED = 1024  # folders


_Folder = dict[str, list[str]]
"""The subtitle files of a folder by the lowercase name, without extension, of the media file, best first."""

_seen: dict[str, tuple[int, float, _Folder]] = {}


def _beginnings(stem: str) -> list[str]:
    """The names of media files that a subtitle file with this stem may belong to, the longest first."""
    parts = stem.casefold().split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


def _list(folder: str) -> _Folder:
    media, subtitles = set(), []
    for name in os.listdir(folder):
        stem, extension = os.path.splitext(name)
        if extension.lower() in MEDIA_FILES:
            media.add(stem.casefold())
        elif extension.lower() in TEXT_FILES:
            subtitles.append(name)
    by_stem: _Folder = {}
    for name in sorted(subtitles, key=lambda name: (len(name), name)):
        for beginning in _beginnings(os.path.splitext(name)[0]):
            by_stem.setdefault(beginning, []).append(name)
            if beginning in media:
                break  # shorter names are other files
    return by_stem


def _listing(folder: str) -> _Folder:
    """The subtitles in a folder; it is listed again only after changes, as it may hold a hundred thousand files."""
    try:
        changed, now = os.stat(folder).st_mtime_ns, time.time()
        before = _seen.get(folder)
        if before is not None and before[0] == changed:
            if before[1] - changed / 1e9 > _TICK or 0 <= now - before[1] < _GLANCE:
                return before[2]
        found = _list(folder)
    except OSError:
        return {}
    if len(_seen) >= _REMEMBERED:
        _seen.clear()
    _seen[folder] = changed, now, found
    return found


def find_sidecar(path: str | os.PathLike) -> Path | None:
    """The subtitle file next to a media file; `None` if there is none."""
    folder, name = os.path.split(os.path.abspath(path))
    for subtitle in _listing(folder).get(os.path.splitext(name)[0].casefold(), ()):
        file = Path(folder, subtitle)
        if file.exists():  # no broken link
            return file
    return None


__all__ = ["MEDIA_FILES", "TEXT_FILES", "find_sidecar"]
