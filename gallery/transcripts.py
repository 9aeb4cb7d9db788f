"""Words that machines heard in the media files of a gallery: WebVTT files in its folder `transcripts`.

The name of each is the hash of what a clip is read from, so that it outlives clips: files that are moved, or indexed
again, find theirs. One without words says that nothing was understood.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

FOLDER = "transcripts"


class Transcripts:
    """
    The transcripts of a gallery.

    Args:
        gallery (`Path`): its folder.
    """

    def __init__(self, gallery: Path):
        self.folder = Path(gallery) / FOLDER

    def path_of(self, sha256: str) -> Path:
        """Where the transcript of what has a hash is, if there is one."""
        return self.folder / f"{sha256}.vtt"

    def has_words(self, sha256: str) -> bool | None:
        """Whether there are words in a transcript; `None` if there is none."""
        try:
            return b" --> " in self.path_of(sha256).read_bytes()
        except FileNotFoundError:
            return None

    def with_words(self, sha256: str) -> Path | None:
        """The transcript of what has a hash, if there is one with words."""
        return self.path_of(sha256) if self.has_words(sha256) else None

    def _all(self) -> Iterator[Path]:
        return self.folder.glob("*.vtt") if self.folder.is_dir() else iter(())

    def count(self) -> tuple[int, int]:
        """How many transcripts there are, and how many of them have words."""
        found = [self.has_words(path.stem) for path in self._all()]
        return len(found), sum(found)

    def copy(self, gallery: Path) -> None:
        """Copy all to another gallery, which keeps its own."""
        target = Transcripts(gallery)
        for path in self._all():
            target.folder.mkdir(exist_ok=True)
            if not (target.folder / path.name).exists():
                shutil.copyfile(path, target.folder / path.name)


__all__ = ["FOLDER", "Transcripts"]
