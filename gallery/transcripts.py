"""Words that machines heard, or read, in the media files of a gallery: WebVTT files in its folder `transcripts`.

The name of each is the hash of what a clip is read from, so that it outlives clips: files that are moved, or indexed
again, find theirs; and its kind, which says whether it was heard or read. It names the machine. One without words says
that nothing was understood, so that nobody asks again.
"""

import html
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from gallery.files import write_whole

FOLDER = "transcripts"
SPEECH = "speech"
"""What was heard."""
SCREEN = "screen"
"""What was read in the pictures."""
KINDS = (SPEECH, SCREEN)

_MACHINE = "made by machine: "


class Cue(NamedTuple):
    """Words and when they are heard or seen, in seconds; lines of them are parted by line breaks."""

    start: float
    stop: float
    text: str


class Transcript(NamedTuple):
    """What a machine wrote down: its cues, its name, and the language if it knows which."""

    cues: Sequence[Cue]
    machine: str
    language: str | None = None


def _time(seconds: float) -> str:
    minutes, milliseconds = divmod(round(1000 * seconds), 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{milliseconds / 1000:06.3f}"


def write_transcript(path: Path, cues: Sequence[Cue], machine: str, language: str | None = None) -> None:
    """Write words as a WebVTT file that says which machine heard or read them."""
    lines = ["WEBVTT", *([] if language is None else [f"Language: {language}"]), ""]
    lines += [f"NOTE {_MACHINE}{' '.join(machine.replace('-->', '->').split())}", ""]
    for cue in cues:
        # of whole milliseconds, and never of none
        stop = max(cue.stop, cue.start + 0.001)
        lines += [f"{_time(cue.start)} --> {_time(stop)}", html.escape(cue.text, quote=False), ""]
    write_whole(path, lambda file: file.write("\n".join(lines).encode("utf-8", "replace")))


class Transcripts:
    """
    The transcripts of a gallery that are of one kind.

    Args:
        gallery (`Path`): its folder.
        kind (`str`): `SPEECH` or `SCREEN`.
    """

    def __init__(self, gallery: Path, kind: str = SPEECH):
        self.folder, self.kind = Path(gallery) / FOLDER, kind

    def path_of(self, sha256: str) -> Path:
        """Where the transcript of what has a hash is, if there is one."""
        return self.folder / f"{sha256}.{self.kind}.vtt"

    def has_words(self, sha256: str) -> bool | None:
        """Whether there are words in a transcript; `None` if there is none."""
        try:
            return b" --> " in self.path_of(sha256).read_bytes()
        except FileNotFoundError:
            return None

    def with_words(self, sha256: str) -> Path | None:
        """The transcript of what has a hash, if there is one with words."""
        return self.path_of(sha256) if self.has_words(sha256) else None

    def write_once(self, sha256: str, make: Callable[[], Transcript | None]) -> None:
        """Write what `make` returns, unless there is a transcript or it returns `None`; one process makes it, while
        others wait."""
        self.folder.mkdir(exist_ok=True)
        lock = self.folder / f".{sha256}.{self.kind}.lock"
        try:
            with FileLock(lock, fallback_to_soft=False):
                # maybe by another process, meanwhile
                if self.has_words(sha256) is None and (made := make()) is not None:
                    write_transcript(self.path_of(sha256), *made)
        finally:
            lock.unlink(missing_ok=True)

    def _hashes(self) -> Iterator[str]:
        ending = f".{self.kind}.vtt"
        for path in self.folder.glob(f"*{ending}") if self.folder.is_dir() else ():
            yield path.name.removesuffix(ending)

    def kept(self) -> dict[str, list[Path]]:
        """All transcripts of every kind that are kept of each file, by its hash."""
        found: dict[str, list[Path]] = {}
        for path in sorted(self.folder.glob("*.vtt")) if self.folder.is_dir() else ():
            found.setdefault(path.name.partition(".")[0], []).append(path)
        return found

    def count(self) -> tuple[int, int]:
        """How many transcripts there are, and how many of them have words."""
        found = [self.has_words(sha256) for sha256 in self._hashes()]
        return len(found), sum(found)

    def copy(self, gallery: Path) -> None:
        """Copy those of every kind to another gallery, which keeps its own."""
        target = Transcripts(gallery).folder
        for path in self.folder.glob("*.vtt") if self.folder.is_dir() else ():
            target.mkdir(exist_ok=True)
            if not (target / path.name).exists():
                shutil.copyfile(path, target / path.name)


__all__ = ["FOLDER", "KINDS", "SCREEN", "SPEECH", "Cue", "Transcript", "Transcripts", "write_transcript"]
