"""Still pictures of the clips of a gallery: JPEG files of a few kB in its folder `stills`, made while it is indexed.

The name of each is the hash of what the clip is read from, as for transcripts (see
[`~scalar_retrieval.gallery.words.transcripts`]), followed by the start in seconds if it is a window. Exact copies
share pictures, and files that are moved keep theirs.
"""

import io
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from .files import naming
from .places import lies_in_gallery

FOLDER = "stills"
SIDE = 320
"""Maximum width and height of a still, in pixels."""
_QUALITY = 70  # of JPEG: 5 to 15 kB
_WINDOW = "@"  # which no hash contains


def as_still(frame: np.ndarray) -> bytes:
    """A frame, uint8 `(height, width, 3)`, as a small JPEG file."""
    from PIL import Image  # not at the top: of all that opens galleries, only indexing needs it

    picture = Image.fromarray(frame)
    picture.thumbnail((SIDE, SIDE))
    still = io.BytesIO()
    picture.save(still, "jpeg", quality=_QUALITY)
    return still.getvalue()


class Stills:
    """
    The still pictures of a gallery.

    Args:
        gallery (`Path`): its folder.
    """

    def __init__(self, gallery: Path):
        self._gallery = Path(gallery)
        self.folder = self._gallery / FOLDER

    def path_of(self, sha256: str, start: float | None = None) -> Path:
        """The path of the picture of a file, or of its window that begins at a given second, if it exists."""
        name = sha256
        if start is not None:
            name += f"{_WINDOW}{start:.3f}"
        return self.folder / f"{name}.jpg"

    def find(self, sha256: str, start: float | None = None) -> Path | None:
        """The same path; `None` if there is no picture, or if a link leads out of the gallery."""
        path = self.path_of(sha256, start)
        if path.is_file() and lies_in_gallery(path, self._gallery):
            return path
        return None

    def put(self, sha256: str, start: float | None, picture: bytes) -> None:
        """Save the picture of a file or a window before its clip is committed: after a kill, both are made again."""
        self.folder.mkdir(exist_ok=True)
        path = self.path_of(sha256, start)
        with naming(path):
            path.write_bytes(picture)

    def _all(self) -> Iterator[tuple[str, Path]]:
        """Each picture, by the hash in its name."""
        for path in self.folder.glob("*.jpg"):
            yield path.stem.partition(_WINDOW)[0], path

    def remove(self, of: Collection[str]) -> None:
        """Remove the pictures of files with these hashes."""
        if not of:
            return  # the folder may hold many pictures
        for sha256, path in self._all():
            if sha256 in of:
                path.unlink(missing_ok=True)

    def keep(self, of: Collection[str]) -> None:
        """Remove the pictures of all files except those with these hashes."""
        for sha256, path in self._all():
            if sha256 not in of:
                path.unlink(missing_ok=True)


__all__ = ["FOLDER", "SIDE", "Stills", "as_still"]
