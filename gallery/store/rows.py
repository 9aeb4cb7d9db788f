"""Rows of the tables of [`~scalar_retrieval.gallery.store.columns`], without their vectors and without torch, which
loads for a second."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from scalar_retrieval.commands.schema import check_value, parse_json, text

FILES = pa.schema(
    {
        "path": pa.string(),
        "size": pa.int64(),
        "mtime_ns": pa.int64(),
        "sha256": pa.string(),
        "reason": pa.string(),
        "texts": pa.string(),
        "recorded_ns": pa.int64(),
        "place": pa.list_(pa.float64()),
        "language": pa.string(),
    }
)
"""The columns of the table of media files: the fields of [`MediaFile`]."""

CODES = "_codes"
"""Suffix of the columns with vectors in eight bits."""
CODE_FACTS = ("code_scale", "code_error")
"""Columns stored with the vectors in eight bits, of [`~scalar_retrieval.gallery.store.codes.Codes`]."""

PRECISIONS = ("float16", "float32")
"""Precisions in which vectors can be stored."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TAKEN = ("clip_id", "text", "presence", "gram", "seconds", "problems", "bound")
_NULLABLE = ("seconds", "reason", "texts", "recorded_ns", "place", "language")
_NAMED = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Of a file; of a file and the words from a list (+) or a subtitle file (-); none of an inaccessible file.
_HASH = r"([0-9a-f]{64}([+-][0-9a-f]{64})?)?"


def check_modality(name: str) -> None:
    """Raise a ValueError unless the name of a modality can also be the name of a column and of a command's option."""
    is_other = name in _TAKEN or name.endswith(CODES) or name.startswith("code_")
    if is_other or not _NAME.fullmatch(name):
        got = repr(name)
        if is_other:
            got += ", which has another meaning"
        raise ValueError(
            "The name of a modality must consist of lowercase letters, digits and _, such as title or on_screen, got "
            f"{got}. Choose another name."
        )


def check_precision(name: str) -> None:
    """Raise a ValueError if vectors cannot be stored in the precision of this name."""
    if name not in PRECISIONS:
        raise ValueError(f"Vectors are stored in {' or '.join(PRECISIONS)}, got {name!r}. Choose one as `dtype`.")


@dataclass(frozen=True)
class MediaFile:
    """
    A file at the time it was read.

    Args:
        path (`str`), size (`int`): of the file; the size in bytes, with that of its subtitle file.
        mtime_ns (`int`): when it, or its subtitle file, was last changed, in nanoseconds from 1970; 0 if unknown.
        sha256 (`str`): see [`~scalar_retrieval.gallery.store.file_state.clip_sha256`].
        reason (`str`, *optional*): why the file, or a part of it, could not be read.
        texts (`str`, *optional*): what is known of it in words, such as its title or what a list said, as a JSON
            object by the names of modalities.
        recorded_ns (`int`, *optional*): when it was recorded, according to its tags or its name, in nanoseconds from
            1970.
        place (`list[float]`, *optional*): where it was recorded: latitude and longitude in degrees.
        language (`str`, *optional*): of the texts of its clips, in ISO 639-1.
    """

    path: str
    size: int
    mtime_ns: int
    sha256: str
    reason: str | None = None
    texts: str | None = None
    recorded_ns: int | None = None
    place: list[float] | None = None
    language: str | None = None

    @property
    def date(self) -> datetime | None:
        """When it was recorded, in UTC; if that is unknown, when it was last changed."""
        time = self.mtime_ns if self.recorded_ns is None else self.recorded_ns
        return moment_of(time) if time else None

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


def moment_of(nanoseconds: int) -> datetime:
    """A time of a record, in UTC and whole microseconds."""
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)


def recording_of(file: MediaFile | None) -> dict[str, Any]:
    """When and where a file was recorded, in the form of JSON: `date` in UTC; `is_recorded`, false if that is when it
    was changed, as nothing else is known; and `place`, latitude and longitude in degrees."""
    if file is None:
        file = MediaFile("", 0, 0, "")
    date = file.date and file.date.isoformat()
    return {"date": date, "is_recorded": file.recorded_ns is not None, "place": file.place}


def abbreviated(names: Sequence[Any]) -> str:
    """The first names, and how many more there are."""
    text = str(list(names[:_NAMED]))
    if len(names) > _NAMED:
        text += f" and {len(names) - _NAMED} more"
    return text


def widths_of(table: pa.Table | pa.RecordBatch) -> dict[str, int]:
    """The number of components of the vectors of each modality, in the order of the columns of a table of clips."""
    # The Gram matrix of each clip is a list of floats, too, but no vector.
    widths = {}
    for field in table.schema:
        is_list = pa.types.is_fixed_size_list(field.type) and pa.types.is_floating(field.type.value_type)
        if is_list and field.name != "gram":
            widths[field.name] = field.type.list_size
    return widths


def modalities_of(table: pa.Table | pa.RecordBatch) -> tuple[str, ...]:
    """The modalities of a table of clips, in the order of its columns: all columns of vectors."""
    return tuple(widths_of(table))


def codes_columns(modalities: Iterable[str]) -> list[str]:
    """Names of the columns with the vectors of modalities in eight bits, and of their scale and error."""
    return [f"{name}{CODES}" for name in modalities] + list(CODE_FACTS)


def _layout(name: str, table: pa.Table) -> pa.Schema:
    """The columns of a table, for the modalities, their widths and the precision that it has."""
    if name == "files":
        return FILES
    widths = widths_of(table)
    precisions = [field.type.value_type for field in table.schema if field.name in widths]
    precision = next(iter(precisions), None)
    if precision not in (pa.float16(), pa.float32()):
        raise ValueError("it has no vectors in float16 or float32")
    texts = pa.list_(pa.string())
    if name == "queries":
        vectors = pa.list_(precision, next(iter(widths.values())))
        return pa.schema({"query_id": pa.string(), "caption": pa.string(), "embedding": vectors, "clip_ids": texts})
    columns = {"clip_id": pa.string()}
    for modality, width in widths.items():
        columns[modality] = pa.list_(precision, width)
    columns["presence"] = pa.list_(pa.bool_(), len(widths))
    columns["gram"] = pa.list_(pa.float32(), len(widths) ** 2)
    if CODE_FACTS[0] in table.column_names:
        for modality, width in widths.items():
            columns[f"{modality}{CODES}"] = pa.list_(pa.int8(), width)
        columns |= dict.fromkeys(CODE_FACTS, pa.float32())
    return pa.schema({**columns, "seconds": pa.float64(), "problems": texts})


def check_layout(name: str, table: pa.Table) -> None:
    """Raise a ValueError unless a table has the columns that are written, and no null where none is written."""
    expected = _layout(name, table)
    for place, field in enumerate(expected):
        if place >= table.num_columns or table.schema.field(place) != field:
            raise ValueError(f"the column {place} must be `{field}`")
        column = table.column(place)
        num_nulls = column.null_count if field.name not in _NULLABLE else 0
        if isinstance(field.type, (pa.ListType, pa.FixedSizeListType)):
            num_nulls += sum(chunk.flatten().null_count for chunk in column.chunks)
        if num_nulls:
            raise ValueError(f"the column `{field.name}` has nulls")
    if len(expected) < table.num_columns:
        raise ValueError(f"it has further columns: {table.column_names[len(expected) :]!r:.200}")


def strings(texts: Sequence[str]) -> pa.Array:
    """A column of texts or file names."""
    return pa.array(list(texts), pa.string())


def texts_of(table: pa.Table, name: str) -> list[str]:
    """A column of texts as a list."""
    return table.column(name).to_pylist()


def lists_of(table: pa.Table, name: str) -> list[list[str]]:
    """A column of lists of texts."""
    return table.column(name).to_pylist()


def is_hash(value: Any) -> bool:
    """64 hexadecimal digits"""
    # Of a media file; one that could not be read has none.
    return isinstance(value, str) and re.fullmatch(_HASH, value) is not None


def check_hashes(files: pa.Table) -> None:
    """Raise a ValueError that names a media file whose hash is not one: hashes are parts of file names."""
    hashes = files.column("sha256")
    # Without a constant, as one makes Arrow import pandas.
    is_other = pc.or_kleene(pc.invert(pc.match_substring_regex(hashes, rf"^{_HASH}\z")), pc.is_null(hashes))
    wrong = files.select(["path", "sha256"]).filter(is_other).slice(0, 1).to_pylist()
    if wrong:
        path = wrong[0]["path"]
        found = wrong[0]["sha256"]
        raise ValueError(f"The hash of the media file {path!r} must be 64 hexadecimal digits, got {found!r:.80}.")


__all__ = [
    "CODES",
    "CODE_FACTS",
    "FILES",
    "PRECISIONS",
    "MediaFile",
    "abbreviated",
    "check_hashes",
    "check_layout",
    "check_modality",
    "check_precision",
    "codes_columns",
    "is_hash",
    "lists_of",
    "modalities_of",
    "moment_of",
    "recording_of",
    "strings",
    "texts_of",
    "widths_of",
]
