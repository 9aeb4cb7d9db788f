"""Rows of the tables of [`~gallery.columns`], without their vectors and without torch, which loads for a second."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from commands.schema import check_value, parse_json, text

FILES = pa.schema(
    {
        "path": pa.string(),
        "size": pa.int64(),
        "mtime_ns": pa.int64(),
        "sha256": pa.string(),
        "reason": pa.string(),
        "texts": pa.string(),
    }
)
"""The columns of the table of media files: the fields of [`MediaFile`]."""

_NAMED = 10
# Of a file; of a file and the words from a list (+) or a subtitle file (-); none of an inaccessible file.
_HASH = r"([0-9a-f]{64}([+-][0-9a-f]{64})?)?"


@dataclass(frozen=True)
class MediaFile:
    """A file at the time it was read. `reason`: why the file, or a part of it, could not be read; `texts`: what is
    known of it in words, such as its title or what a list said, as a JSON object by the names of modalities."""

    path: str
    size: int
    mtime_ns: int
    sha256: str
    reason: str | None = None
    texts: str | None = None

    def words(self) -> dict[str, str]:
        """What is known of it in words, by the names of modalities; a ValueError if that is not what is recorded."""
        if self.texts is None:
            return {}
        try:
            texts = parse_json(self.texts)
            check_value(texts, {...: text})
        except ValueError as error:
            what = str(error).rstrip(".")
            raise ValueError(f"The texts of the media file {self.path!r} are not as recorded: {what}.") from error
        return texts


def abbreviated(names: Sequence[Any]) -> str:
    """The first names, and how many more there are."""
    text = str(list(names[:_NAMED]))
    if len(names) > _NAMED:
        text += f" and {len(names) - _NAMED} more"
    return text


def modalities_of(table: pa.Table | pa.RecordBatch) -> tuple[str, ...]:
    """The modalities of a table of clips, in the order of its columns: all columns of vectors."""
    # The Gram matrix of each clip is a list of floats, too, but no vector.
    names = []
    for field in table.schema:
        is_list = pa.types.is_fixed_size_list(field.type) and pa.types.is_floating(field.type.value_type)
        if is_list and field.name != "gram":
            names.append(field.name)
    return tuple(names)


def strings(texts: Sequence[str]) -> pa.Array:
    """A column of texts or file names."""
    return pa.array(list(texts), pa.string())


def texts_of(table: pa.Table, name: str) -> list[str]:
    """A column of texts as a list."""
    return table.column(name).to_pylist()


def lists_of(table: pa.Table, name: str) -> list[list[str]]:
    """A column of lists of texts."""
    # Two conversions of whole columns, as one of every list would be slow.
    column = table.column(name)
    texts = iter(pc.list_flatten(column).to_pylist())
    return [list(islice(texts, count)) for count in pc.list_value_length(column).to_pylist()]


def is_hash(value: Any) -> bool:
    """64 hexadecimal digits"""
    # Of a media file; one that could not be read has none.
    return isinstance(value, str) and re.fullmatch(_HASH, value) is not None


def check_hashes(files: pa.Table) -> None:
    """Raise a ValueError that names a media file whose hash is not one: hashes are parts of file names."""
    hashes = files.column("sha256")
    is_hash = pc.fill_null(pc.match_substring_regex(hashes, rf"^{_HASH}\z"), False)
    wrong = files.select(["path", "sha256"]).filter(pc.invert(is_hash)).slice(0, 1).to_pylist()
    if wrong:
        path = wrong[0]["path"]
        found = wrong[0]["sha256"]
        raise ValueError(f"The hash of the media file {path!r} must be 64 hexadecimal digits, got {found!r:.80}.")


__all__ = [
    "FILES",
    "MediaFile",
    "abbreviated",
    "check_hashes",
    "is_hash",
    "lists_of",
    "modalities_of",
    "strings",
    "texts_of",
]
