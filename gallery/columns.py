"""The columns of embedded clips in Arrow: how they are laid out, and how they are read without a copy.

Vectors are fixed-size lists, so that a column of a file that is memory-mapped is a matrix in place.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch

from gallery.exact.codes import Codes, encode
from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.scores_scalar import CONCATENATIONS

CONCAT_COLUMNS = tuple("_".join(("concat", *names)) for names in CONCATENATIONS)
"""Columns of what the concatenation heads of some checkpoints give."""
CODE_COLUMNS = tuple(f"{name}_codes" for name in MODALITIES)
"""Columns of the vectors in eight bits, beside `code_scale` and `code_error`; see [`~gallery.exact.codes`]."""
DTYPES = {"float16": torch.float16, "float32": torch.float32}
"""Precisions in which vectors are kept."""
NORM_TOLERANCE = 0.01
"""How far a stored norm may be from 1: vectors normalised in bfloat16 miss it by up to 0.4 %, in float16 by 0.05 %."""

_NAMED = 10


def listed(names: Sequence[Any]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{list(names[:_NAMED])}{more}"


def precision_of(name: str) -> torch.dtype:
    """Return the precision of stored vectors by its name; a ValueError if there is none of that name."""
    if name not in DTYPES:
        raise ValueError(f"Vectors are kept in {' or '.join(DTYPES)}, got {name!r}. Choose one as `dtype`.")
    return DTYPES[name]


# Texts ------------------------------------------------------------------------------------------------------------


def to_utf8(text: str) -> str:
    """Write a file name that is not UTF-8 so that Arrow can hold it: a NUL, which no name holds, and its bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "\0" + text.encode("utf-8", "surrogateescape").decode("latin-1")
    return text


def from_utf8(text: str) -> str:
    """Undo [`to_utf8`]."""
    return text[1:].encode("latin-1").decode("utf-8", "surrogateescape") if text.startswith("\0") else text


def strings(texts: Sequence[str]) -> pa.Array:
    """A column of texts; of file names too."""
    return pa.array(list(map(to_utf8, texts)), pa.string())


# Writing ----------------------------------------------------------------------------------------------------------


def fixed_lists(rows: torch.Tensor) -> pa.FixedSizeListArray:
    """A column of lists of one length from the rows of a matrix, `(rows, length)`."""
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.contiguous().numpy().reshape(-1)), rows.shape[-1])


def gram_of(modality_embeds: Sequence[torch.Tensor]) -> torch.Tensor:
    """
    Compute the Gram matrix of each clip, what scores read of clips alone, from vectors as they are stored.

    Args:
        modality_embeds: three `torch.Tensor` of shape `(clips, dim)`, zero where absent.

    Returns:
        `torch.FloatTensor` of shape `(clips, 3, 3)`: inner products of the modalities, summed in float64; zero where
        absent.
    """
    blocks = []
    for parts in zip(*(embeds.split(4096) for embeds in modality_embeds), strict=True):
        exact = torch.stack([part.double() for part in parts], dim=1)  # (clips, 3, D)
        blocks.append((exact @ exact.mT).float())
    return torch.cat(blocks) if blocks else torch.empty(0, len(MODALITIES), len(MODALITIES))


def clip_table(
    clip_ids: Sequence[str],
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    concat_embeds: torch.Tensor | None = None,
    durations: Sequence[float | None] | None = None,
    problems: Sequence[Sequence[str]] | None = None,
    dtype: str | None = None,
    has_codes: bool = False,
    seconds: Sequence[float | None] | None = None,
) -> pa.Table:
    """
    Lay clips out as they are stored.

    Args:
        clip_ids (`list[str]`): one per clip.
        modality_embeds (`torch.Tensor` of shape `(clips, 3, dim)`): unit norm; absent rows count as zeros.
        modality_mask (`torch.BoolTensor` of shape `(clips, 3)`): what each clip has.
        concat_embeds (`torch.Tensor` of shape `(clips, 3, dim)`, *optional*): of concatenation heads.
        durations (`list`, *optional*): of the sound in seconds, `None` where unknown.
        problems (`list`, *optional*): of each clip, what could not be read and counts as absent.
        dtype (`str`, *optional*): `"float16"` or `"float32"`; by default that of `modality_embeds`.
        has_codes (`bool`): add the vectors in eight bits, by which large galleries are searched.
        seconds (`list`, *optional*): how long each clip lasts, `None` where unknown.

    Returns:
        `pa.Table` with the columns `clip_id`, one per modality, `presence`, `gram` (see [`gram_of`]), those of
        codes and of concatenation heads if there are any, `duration`, `seconds`, and `problems`.
    """
    precision = precision_of(dtype or str(modality_embeds.dtype).removeprefix("torch."))
    embeds = torch.where(modality_mask[..., None], modality_embeds, modality_embeds.new_zeros(())).to(precision)
    vectors = [column.contiguous() for column in embeds.unbind(1)]
    columns = {"clip_id": strings(clip_ids)}
    columns |= {name: fixed_lists(rows) for name, rows in zip(MODALITIES, vectors, strict=True)}
    columns["presence"] = fixed_lists(modality_mask)
    columns["gram"] = fixed_lists(gram_of(vectors).flatten(1))
    if has_codes:
        codes = encode(vectors)
        columns |= {name: fixed_lists(rows) for name, rows in zip(CODE_COLUMNS, codes.codes, strict=True)}
        columns |= {"code_scale": pa.array(codes.scale.numpy()), "code_error": pa.array(codes.error.numpy())}
    if concat_embeds is not None:
        concat_embeds = concat_embeds.to(precision)
        columns |= {name: fixed_lists(concat_embeds[:, index]) for index, name in enumerate(CONCAT_COLUMNS)}
    columns["duration"] = pa.array([None] * len(clip_ids) if durations is None else list(durations), pa.float64())
    columns["seconds"] = pa.array([None] * len(clip_ids) if seconds is None else list(seconds), pa.float64())
    told = [[]] * len(clip_ids) if problems is None else [list(map(to_utf8, of_clip)) for of_clip in problems]
    columns["problems"] = pa.array(told, pa.list_(pa.string()))
    return pa.table(columns)


def problems_of_clips(problems: Sequence[str], clip_ids: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Sort problems, each of which begins with the identifier of its clip, to the clips; and those of no clip."""
    told, others = {name: [] for name in clip_ids}, []
    for problem in problems:
        parts = problem.split(": ")
        names = (": ".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
        name = next((name for name in names if name in told), None)
        (others if name is None else told[name]).append(problem if name is None else problem[len(name) + 2 :])
    return list(told.values()), others


def query_table(
    query_ids: Sequence[str],
    captions: Sequence[str],
    text_embeds: torch.Tensor,
    clip_ids: Sequence[Sequence[str]],
    dtype: str | None = None,
) -> pa.Table:
    """Lay queries out as they are stored; `clip_ids`: of each query, the list of clips that it describes.

    Texts with a vector for each modality, `(queries, 3, dim)`, are stored with these one after the other.
    """
    precision = precision_of(dtype or str(text_embeds.dtype).removeprefix("torch."))
    return pa.table(
        {
            "query_id": strings(query_ids),
            "caption": strings(captions),
            "embedding": fixed_lists(text_embeds.flatten(1).to(precision)),
            "clip_ids": pa.array([list(map(to_utf8, names)) for names in clip_ids], pa.list_(pa.string())),
        }
    )


# Reading ----------------------------------------------------------------------------------------------------------


def is_string(kind: pa.DataType) -> bool:
    """Whether a column of this type holds texts."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_list(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def column_of(table: pa.Table, name: str, where: Any) -> pa.ChunkedArray:
    """Return a column without nulls; a ValueError names what is missing in `where`."""
    if name not in table.column_names:
        raise ValueError(f"{where} lacks the column `{name}`; it has {table.column_names}.")
    column = table.column(name)
    if column.null_count:
        raise ValueError(
            f"The column `{name}` of {where} has {column.null_count} nulls, of which there must be none: absent "
            "modalities are zeros, with False in `presence`."
        )
    return column


def check_type(
    table: pa.Table,
    name: str,
    where: Any,
    of_type: Callable[[pa.DataType], bool],
    kind: str,
    nullable: bool = False,
) -> pa.ChunkedArray:
    """Return a column; a ValueError if `of_type` is false of its type, which must be `kind`, or there are nulls."""
    column = table.column(name) if nullable and name in table.column_names else column_of(table, name, where)
    if not of_type(column.type):
        raise ValueError(f"The column `{name}` of {where} must hold {kind}, got {column.type}.")
    return column


def texts_of(table: pa.Table, name: str, where: Any) -> list[str]:
    """Return a column of texts as a list."""
    column = check_type(table, name, where, is_string, "strings")
    try:
        return list(map(from_utf8, column.to_pylist()))
    except UnicodeError as error:
        raise ValueError(f"The column `{name}` of {where} holds texts that are not as they were written.") from error


def lists_of(table: pa.Table, name: str, where: Any) -> list[list[str]]:
    """Return a column of lists of texts."""
    column = check_type(
        table, name, where, lambda kind: is_list(kind) and is_string(kind.value_type), "lists of strings"
    )
    if pc.list_flatten(column).null_count:
        raise ValueError(f"Lists in the column `{name}` of {where} hold nulls.")
    return [list(map(from_utf8, row)) for row in column.to_pylist()]


def check_lists(table: pa.Table, name: str, where: Any, boolean: bool = False, length: int | None = None) -> int:
    """Return the one length of the lists of floats, or bools, in a column; a ValueError if that is not what it has."""
    column = column_of(table, name, where)
    is_value = pa.types.is_boolean if boolean else pa.types.is_floating
    if not is_list(column.type) or not is_value(column.type.value_type):
        kind = "bools" if boolean else "floats"
        raise ValueError(f"The column `{name}` of {where} must hold lists of {kind}, got {column.type}.")
    if pa.types.is_fixed_size_list(column.type):
        lengths = [column.type.list_size]
    else:
        lengths = sorted(pc.unique(pc.list_value_length(column)).to_pylist())
    if len(lengths) != 1 or length not in (None, lengths[0]):
        expected = "one length" if length is None else f"the length {length}"
        raise ValueError(f"All lists in `{name}` of {where} must have {expected}, got {lengths[:_NAMED]}.")
    return lengths[0]


def matrix_of(chunk: pa.Array, length: int, where: Any = "a column") -> torch.Tensor:
    """
    Read lists of one length as a matrix, in place where Arrow has them so.

    Returns:
        `torch.Tensor` of shape `(rows, length)`: a view of the memory of `chunk`, which may be a file mapped for
        reading; writing to it is an error. Bools, which are bits in Arrow, are copied.
    """
    values = chunk.flatten()
    if values.null_count:
        raise ValueError(f"Lists in {where} hold nulls.")
    if len(values) != len(chunk) * length:
        raise ValueError(f"All lists in {where} must have the length {length}.")
    array = values.to_numpy(zero_copy_only=not pa.types.is_boolean(values.type)).reshape(-1, length)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array)


def codes_of(rows: pa.Table | pa.RecordBatch, where: Any) -> Codes | None:
    """The vectors of clips in eight bits, in place; `None` if they are not kept. A table must be of one chunk."""
    if CODE_COLUMNS[0] not in rows.schema.names:
        return None
    chunks = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in rows.columns]
    named = dict(zip(rows.schema.names, chunks, strict=True))
    codes = [matrix_of(named[name], named[name].type.list_size, where) for name in CODE_COLUMNS]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return Codes(codes, *(torch.from_numpy(named[name].to_numpy()) for name in ("code_scale", "code_error")))


def stacked(table: pa.Table, names: Sequence[str], where: Any, boolean: bool = False) -> torch.Tensor:
    """Copy columns of lists of one length into one tensor, `(rows, columns, length)`: bool, float16 or float32."""
    lengths = {check_lists(table, name, where, boolean) for name in names}
    if len(lengths) != 1:
        raise ValueError(
            f"All lists in {list(names)} of {where} must have one length, got {sorted(lengths)[:_NAMED]}."
        )
    length, columns = lengths.pop(), [table.column(name) for name in names]
    halves = all(pa.types.is_float16(column.type.value_type) for column in columns)
    dtype = torch.bool if boolean else torch.float16 if halves else torch.float32
    result = torch.empty(len(table), len(columns), length, dtype=dtype)
    for index, (name, column) in enumerate(zip(names, columns, strict=True)):
        start = 0
        for chunk in column.chunks:
            rows = matrix_of(chunk, length, f"the column `{name}` of {where}")
            result[start : start + len(rows), index] = rows
            start += len(rows)
    return result


def text_embeds_of(queries: pa.Table, dim: int | None, where: Any) -> torch.Tensor:
    """Copy the vectors of queries into one tensor: `(queries, dim)`, or `(queries, 3, dim)` where they have three."""
    vectors = stacked(queries, ["embedding"], where)[:, 0]
    if dim is not None and vectors.shape[1] == len(MODALITIES) * dim:
        return vectors.unflatten(1, (len(MODALITIES), dim))
    return vectors


def off_unit(embeds: torch.Tensor) -> torch.Tensor:
    """Tell which vectors, on the last axis, miss the unit norm by more than rounding; those not finite do."""
    blocks = embeds.split(4096)  # a half-precision tensor is copied for it
    norms = [torch.linalg.vector_norm(block.float(), dim=-1) for block in blocks]
    return ~((torch.cat(norms) - 1).abs() <= NORM_TOLERANCE) if norms else embeds.new_empty(0, dtype=torch.bool)


__all__ = [
    "CODE_COLUMNS",
    "CONCAT_COLUMNS",
    "DTYPES",
    "NORM_TOLERANCE",
    "check_lists",
    "check_type",
    "clip_table",
    "codes_of",
    "column_of",
    "fixed_lists",
    "from_utf8",
    "gram_of",
    "is_list",
    "is_string",
    "listed",
    "lists_of",
    "matrix_of",
    "off_unit",
    "precision_of",
    "problems_of_clips",
    "query_table",
    "stacked",
    "strings",
    "text_embeds_of",
    "texts_of",
    "to_utf8",
]
