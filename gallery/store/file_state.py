"""Media files at the time their clips were embedded, and whether they have changed since."""

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from functools import lru_cache
from pathlib import Path
from threading import Thread
from typing import TypeVar

from scalar_retrieval.modeling_scalar.media_scalar import check_content
from scalar_retrieval.modeling_scalar.tracks_scalar import find_sidecar, names_subtitle_file

from ..decoding import check_not_stopped
from .rows import MediaFile

_PATIENCE = 240.0  # seconds that a drive may take to answer: as long as a decoder may wait
_PIECE = 2**23  # bytes read at a time
_OF_NOTHING = hashlib.sha256().hexdigest()
_DIGITS = len(_OF_NOTHING)
_VERSIONS = 1024  # files whose hashes are cached

Result = TypeVar("Result")


def _call_on_drive(path: str | os.PathLike, call: Callable[..., Result], *args: object) -> Result:
    """Call a function on a drive in a thread that can be abandoned: a hanging drive would keep a program from ending.
    Raises a TimeoutError with the file's name if there is no answer, a [`~scalar_retrieval.gallery.decoding.Stopped`]
    if stopped."""
    answer: Future[Result] = Future()

    def run() -> None:
        try:
            answer.set_result(call(*args))
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()
    # Wait in short steps, to notice when reading is stopped.
    deadline = time.monotonic() + _PATIENCE
    while not wait([answer], 0.2).done:
        check_not_stopped()
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, f"no answer for {_PATIENCE:g} s", os.fspath(path))
    return answer.result()


def pieces_of(path: str | os.PathLike) -> Iterator[bytes]:
    """The content of a file in chunks; nothing of a file without a size, as the system generates some."""
    if not os.stat(path).st_size:
        return
    # Unbuffered: each piece is read by one call, which may hang.
    with _call_on_drive(path, open, path, "rb", 0) as file:
        yield from iter(lambda: _call_on_drive(path, file.read, _PIECE), b"")


def _sha256_of(path: str | os.PathLike) -> str:
    digest = hashlib.sha256()
    for piece in pieces_of(path):
        digest.update(piece)
    return digest.hexdigest()


def _beside(path: str, subtitle: str | None) -> Path | None:
    """The file with a clip's subtitles, if they are in a separate one."""
    if subtitle is None:
        return find_sidecar(path)
    if names_subtitle_file(subtitle):
        return Path(subtitle)
    return None


def mark_of(subtitle: str | None) -> str:
    """What is added to the hash of a clip whose words were given: they cannot change in any file."""
    if subtitle is None or names_subtitle_file(subtitle):
        return ""
    return f"+{hashlib.sha256(subtitle.encode('utf-8', 'surrogatepass')).hexdigest()}"


def clip_sha256(path: str, subtitle: str | None = None) -> str:
    """
    Hash the sources of a clip: the hash of the file, followed by that of its subtitles if they are not in it.

    Args:
        path (`str`): the file.
        subtitle (`str`, *optional*): words, or the path of a subtitle file, instead of the file next to it.

    Raises:
        MediaError: not a regular file (a pipe, a device or a folder), or an empty one.
        TimeoutError: its drive does not answer.
    """
    check_content(path)
    beside = _beside(path, subtitle)
    if beside is None:
        return _sha256_of(path) + mark_of(subtitle)
    words = _OF_NOTHING  # reading reports what it is instead of a file
    if beside.is_file():
        words = _sha256_of(beside)
    return f"{_sha256_of(path)}-{words}"


def clip_stat(path: str, subtitle: str | None = None) -> tuple[int, int]:
    """Size and time of change, in nanoseconds, of a file and its subtitle file together, see [`clip_sha256`]."""
    stat = os.stat(path)
    size = stat.st_size
    mtime_ns = stat.st_mtime_ns
    beside = _beside(path, subtitle)
    if beside is not None:
        stat = os.stat(beside)
        size += stat.st_size
        mtime_ns = max(mtime_ns, stat.st_mtime_ns)
    return size, mtime_ns


def unchanged_since(path: str, known: MediaFile, subtitle: str | None) -> int | None:
    """The time of change of a file if its content is the known one; `None` if it must be read."""
    # Words that were given are compared first: their mark is the end of the hash.
    _, plus, digest = known.sha256.partition("+")
    if plus + digest != mark_of(subtitle):
        return None
    # The content is read only if the time differs, as after copying a file.
    try:
        size, mtime_ns = clip_stat(path, subtitle)
        if size != known.size:
            return None
        if mtime_ns == known.mtime_ns or clip_sha256(path, subtitle) == known.sha256:
            return mtime_ns
    except (OSError, ValueError):  # reading it reports what is wrong
        pass
    return None


def has_given_words(known: MediaFile) -> bool:
    """Whether the words of a clip were given, see [`mark_of`]: they cannot be read from files."""
    return "+" in known.sha256


def is_as_known(path: str, known: MediaFile) -> bool:
    """
    Whether the files of a clip have not changed. Words from a list are not checked; a subtitle file named in a list
    counts as a change, as the gallery does not know which file it was.
    """
    # Words that were given are known only by their hash, so the file is compared alone.
    if has_given_words(known):
        return is_known_media(path, known)
    return unchanged_since(path, known, None) is not None


@lru_cache(maxsize=_VERSIONS)
def _sha256_of_version(path: str, size: int, mtime_ns: int) -> str:
    """The hash of a file, cached as long as it does not change."""
    return _sha256_of(path)


def is_known_media(path: str, known: MediaFile) -> bool:
    """Whether a media file is the one that was embedded, whatever became of the subtitles beside it."""
    try:
        if clip_stat(path, "" if has_given_words(known) else None) == (known.size, known.mtime_ns):
            return True
        # The file was touched, or its subtitles have changed: its content decides.
        stat = os.stat(path)
        return known.sha256[:_DIGITS] == _sha256_of_version(path, stat.st_size, stat.st_mtime_ns)
    except (OSError, ValueError):  # a stranger's gallery may name a file with a NUL
        return False


__all__ = [
    "clip_sha256",
    "clip_stat",
    "has_given_words",
    "is_as_known",
    "is_known_media",
    "mark_of",
    "pieces_of",
    "unchanged_since",
]
