"""Words that machines recognised in the sound or pictures of a gallery's files: WebVTT files in its folder
`transcripts`.

The name of each is the hash of what the clip is read from, so files that are moved or indexed again keep theirs, and
its kind (speech or on-screen text). It names the machine. A transcript without words records that none were found.
"""

import html
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from ..store.files import write_whole
from ..store.places import lies_in_gallery

FOLDER = "transcripts"
SPEECH = "speech"
"""Words in the sound."""
SCREEN = "screen"
"""Words in the pictures."""
KINDS = (SPEECH, SCREEN)

_MACHINE = "made by machine: "
_DOUBTED = ", which doubted its words"


class Cue(NamedTuple):
    """Words, and the seconds at which they begin and end; lines are separated by line breaks."""

    start: float
    stop: float
    text: str


class Transcript(NamedTuple):
    """A machine's transcript: its cues, the machine's name, and whether there are none because it doubted them."""

    cues: Sequence[Cue]
    machine: str
    is_doubtful: bool = False


def _time(seconds: float) -> str:
    minutes, milliseconds = divmod(round(1000 * seconds), 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{milliseconds / 1000:06.3f}"


def as_vtt(cues: Sequence[Cue], note: str | None = None) -> str:
    """Format words as WebVTT, with a note for readers."""
    lines = ["WEBVTT", ""]
    if note is not None:
        lines += [f"NOTE {note}", ""]
    for cue in cues:
        # Whole milliseconds, and at least one.
        stop = max(cue.stop, cue.start + 0.001)
        lines += [f"{_time(cue.start)} --> {_time(stop)}", html.escape(cue.text, quote=False), ""]
    return "\n".join(lines)


def write_transcript(path: Path, cues: Sequence[Cue], machine: str, is_doubtful: bool = False) -> None:
    """Write words as a WebVTT file that names the machine that recognised them, and says if it doubted them."""
    # An arrow in a note would begin a cue.
    note = _MACHINE + " ".join(machine.replace("-->", "->").split())
    if is_doubtful:
        note += _DOUBTED
    text = as_vtt(cues, note)
    write_whole(path, lambda file: file.write(text.encode("utf-8", "replace")))


class Transcripts:
    """
    The transcripts of one kind in a gallery.

    Args:
        gallery (`Path`): its folder.
        kind (`str`): `SPEECH` or `SCREEN`.
    """

    def __init__(self, gallery: Path, kind: str = SPEECH):
        self._gallery = Path(gallery)
        self.kind = kind
        self.folder = self._gallery / FOLDER

    def path_of(self, sha256: str) -> Path:
        """The path of the transcript for a hash, if it exists."""
        return self.folder / f"{sha256}.{self.kind}.vtt"

    def has_words(self, sha256: str) -> bool | None:
        """Whether a transcript contains words; `None` if there is no transcript, or if a link leads out of the
        gallery."""
        # Most files have none: that is known before links are followed.
        path = self.path_of(sha256)
        if not os.path.lexists(path) or not lies_in_gallery(path, self._gallery):
            return None
        # Every cue has an arrow, which is escaped in words.
        try:
            return b" --> " in path.read_bytes()
        except FileNotFoundError:
            return None

    def is_doubtful(self, sha256: str) -> bool:
        """Whether a transcript has no words because the machine doubted them."""
        return self.has_words(sha256) is False and _DOUBTED.encode() in self.path_of(sha256).read_bytes()

    def with_words(self, sha256: str) -> Path | None:
        """The path of the transcript for a hash, if it exists and contains words."""
        if self.has_words(sha256):
            return self.path_of(sha256)
        return None

    def write_once(self, sha256: str, make: Callable[[], Transcript | None]) -> None:
        """Write what `make` returns, unless there is a transcript already or it returns `None`; one process makes it,
        while others wait."""
        self.folder.mkdir(exist_ok=True)
        lock = self.folder / f".{sha256}.{self.kind}.lock"
        try:
            with FileLock(lock, fallback_to_soft=False):
                # Another process may have made it meanwhile.
                if self.has_words(sha256) is not None:
                    return
                made = make()
                if made is not None:
                    write_transcript(self.path_of(sha256), *made)
        finally:
            lock.unlink(missing_ok=True)

    def hashes(self) -> Iterator[str]:
        """The hashes of the files that have a transcript of this kind."""
        ending = f".{self.kind}.vtt"
        for path in self.folder.glob(f"*{ending}"):
            yield path.name.removesuffix(ending)

    def kept(self) -> dict[str, list[Path]]:
        """All transcripts, of every kind, of each file, by its hash."""
        paths = defaultdict(list)
        for path in sorted(self.folder.glob("*.vtt")):
            paths[path.name.partition(".")[0]].append(path)
        return paths

    def count(self) -> tuple[int, int]:
        """The number of transcripts, and the number of those with words."""
        have_words = [self.has_words(sha256) for sha256 in self.hashes()]
        return len(have_words), have_words.count(True)

    def copy(self, gallery: Path) -> None:
        """Copy transcripts of every kind to another gallery; those that it has stay."""
        target = Transcripts(gallery).folder
        # A link out of this gallery is not followed.
        for path in self.folder.glob("*.vtt"):
            if lies_in_gallery(path, self._gallery) and not (target / path.name).exists():
                target.mkdir(exist_ok=True)
                shutil.copyfile(path, target / path.name)


__all__ = ["FOLDER", "KINDS", "SCREEN", "SPEECH", "Cue", "Transcript", "Transcripts", "as_vtt", "write_transcript"]
