"""Chooses the photographs among the stamps, and the queries that ask for them.

The package is read where it lies, and nothing of it is copied into the repository. Of a stamp's text only the first
line is read, the English caption: the other lines, and the recordings beside them, translate it.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from evidence.class_embeds import class_names

LEAST_COLOURS = 500
"""The least number of colours of a photograph."""

LEAST_SHARE = 0.1
"""The least number of colours per visible pixel of a photograph."""

_DRAWN = "cartoon"  # the name of folders of drawings
_ARTICLES = {"a", "an", "the"}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")  # also those of CamelCase
_OPAQUE = 128  # of 255
_OTHER_SENSE = {"mouse"}  # the class is a computer's, the photograph an animal's


@dataclass(frozen=True)
class Item:
    """
    A photograph.

    Args:
        path (`str`): its path below the folder of stamps, with `/`.
        title, folder (`str`): the name of its file, and those of its folders, as words.
        caption (`str`): what its maker wrote.
        query (`str`, *optional*): what asks for it; `None` if nothing does.
        kind (`str`): where the query is from: "caption", "definition" or "none".
    """

    path: str
    title: str
    folder: str
    caption: str
    query: str | None
    kind: str

    @property
    def is_shown(self) -> bool:
        """Whether it belongs to the half that is shown; the other one fits."""
        return hashlib.sha256(self.path.encode()).digest()[0] % 2 == 1


def on_white(path: Path) -> np.ndarray:
    """Read a picture, transparent ones on white: uint8 of shape `(height, width, 3)`."""
    with Image.open(path) as picture:
        picture = picture.convert("RGBA")
        ground = Image.new("RGBA", picture.size, "white")
        return np.asarray(Image.alpha_composite(ground, picture).convert("RGB"))


def is_photograph(path: Path) -> bool:
    """Whether a PNG has as many colours as a photograph: [`LEAST_COLOURS`], and [`LEAST_SHARE`] per visible pixel."""
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGBA")).astype(np.int64)
    # Colours are counted as numbers, which is faster than as rows.
    visible = pixels[pixels[..., 3] >= _OPAQUE]
    num_colours = len(np.unique(visible[:, :3] @ [65536, 256, 1]))
    return num_colours >= max(LEAST_COLOURS, LEAST_SHARE * len(visible))


def words_of(name: str) -> list[str]:
    """Split the name of a file or folder into words, in lower case."""
    return [word.lower() for word in _WORD.findall(name)]


def _words_without_articles(caption: str) -> list[str]:
    """The words of a caption without articles."""
    return [word for word in re.findall(r"\w+", caption.lower()) if word not in _ARTICLES]


def repeats(caption: str, title: str) -> bool:
    """Whether every word of a caption, articles apart, stands in the title, also as a part of a word."""
    letters = title.replace(" ", "")
    return all(word in letters for word in _words_without_articles(caption))


def _definitions() -> dict[str, str]:
    """The definitions of names that mean one class of ImageNet."""
    # A name such as "crane" can mean several classes.
    found: dict[str, list[str]] = {}
    for names, definition in class_names():
        for name in names.split(", "):
            found.setdefault(name.lower(), []).append(definition)
    known = {}
    for name, meanings in found.items():
        if len(meanings) == 1 and name not in _OTHER_SENSE:
            known[name] = meanings[0]
    return known


def _captioned(root: Path) -> Iterator[tuple[Path, str]]:
    """The PNG files with an English caption, in the order of their paths; of those that share a caption, the first."""
    known = set()
    for path in sorted(root.rglob("*.png")):
        text = path.with_suffix(".txt")
        if _DRAWN in path.relative_to(root).parts or not text.is_file():
            continue
        # The other lines translate the first one.
        first, *_ = text.read_text(encoding="utf-8").split("\n")
        caption = first.strip()
        if not caption or caption in known or not is_photograph(path):
            continue
        known.add(caption)
        yield path, caption


def read_items(root: Path) -> list[Item]:
    """
    Read the photographs with captions of their own.

    Args:
        root (`Path`): the folder of stamps.

    Raises:
        FileNotFoundError: there are none.
    """
    definitions = _definitions()
    items = []
    for path, caption in _captioned(root):
        # Names of the file and its folders become texts of the item.
        place = path.relative_to(root)
        title = " ".join(words_of(path.stem))
        folder = " ".join(words_of(place.parent.as_posix()))
        query: str | None = caption
        kind = "caption"
        if repeats(caption, title):
            # A name is used once, so that a definition asks for one item.
            query = definitions.pop(" ".join(_words_without_articles(caption)), None)
            kind = "none" if query is None else "definition"
        items.append(Item(place.as_posix(), title, folder, caption, query, kind))
    if not items:
        raise FileNotFoundError(
            f"{root} has no photographs with captions. Install Debian's tuxpaint-stamps-default, or name its folder "
            "by `--root`."
        )
    return items


def digest_of(items: Sequence[Item], root: Path) -> str:
    """Return the SHA-256 of the items and their pictures, to compare with those of other results."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(f"{item.path}\n{item.query}\n".encode())
        digest.update((root / item.path).read_bytes())
    return digest.hexdigest()


__all__ = [
    "LEAST_COLOURS",
    "LEAST_SHARE",
    "Item",
    "digest_of",
    "is_photograph",
    "on_white",
    "read_items",
    "repeats",
    "words_of",
]
