"""The tables of a gallery: embedded clips, the captions that describe some of them, and the media files they were read
from. Each of the three (see [`~gallery.storage`]) is one that `datasets.load_from_disk` reads:

`clips/`
    `clip_id` (string); one column for each of M modalities, called as it is (`video`, `audio`, `subtitle`, or any
    other name; lists of D floats): unit vectors, zero where the clip lacks the modality; `presence` (list of M bools):
    which it has, in the order of the columns; `gram` (list of M x M floats): their Gram matrix, see [`gram_of`];
    `video_codes` and so on (lists of D bytes), `code_scale` and `code_error`: the vectors in eight bits, see
    [`~gallery.exact.codes`]; `concat_video_audio`, `concat_video_subtitle` and `concat_video_audio_subtitle` of
    checkpoints with concatenation heads; `duration` of the sound in seconds, if known; `seconds`: how long the clip
    lasts, if known; `problems` (list of strings): what could not be read and counts as absent.
`queries/`
    `query_id`, `caption` (strings); `embedding` (list of D floats): a unit vector, or one for each modality (M D
    floats); `clip_ids` (list of strings): the clips that the query describes. Only benchmarks have them.
`files/`
    `path`, `size`, `mtime_ns`, `sha256` of each media file as it was when it was read, `reason` (string) if nothing,
    or not all of its windows, could be read, and `texts` (string), a JSON object of its title and the like. Only
    galleries of one's own files have them; the `clip_id` is the path then, or names a window of it (see
    [`~gallery.windows`]).

Vectors of any other model are a gallery too, once they are written with `datasets` alone (`clips/`, and for evaluation
`queries/`; of the columns those described first, up to `presence`):

    Dataset.from_dict({"clip_id": ids, "video": v, "audio": a, "subtitle": s, "presence": p}).save_to_disk("X/clips")
    Dataset.from_dict({"query_id": q, "caption": c, "embedding": t, "clip_ids": lists}).save_to_disk("X/queries")

Vectors are fixed-size lists, so that a column of a file that is memory-mapped is a matrix in place.
"""

import json
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from gallery.exact.codes import Codes, encode
from modeling_scalar.scores_scalar import CONCATENATIONS, PAPER_MODALITIES

CONCAT_COLUMNS = tuple("_".join(("concat", *names)) for names in CONCATENATIONS)
"""Columns of what the concatenation heads of some checkpoints give."""
_CODES = "_codes"  # columns of the vectors in eight bits end so
CODE_FACTS = ("code_scale", "code_error")
"""Columns beside the vectors in eight bits, of [`~gallery.exact.codes.Codes`]."""
DTYPES = {"float16": torch.float16, "float32": torch.float32}
"""Precisions in which vectors are kept."""
NORM_TOLERANCE = 0.01
"""How far a stored norm may be from 1: vectors normalised in bfloat16 miss it by up to 0.4 %, in float16 by 0.05 %."""

KEYS = {"clips": "clip_id", "files": "path", "queries": "query_id"}
"""The column that names the rows of a table."""
COPIED_ROWS = 16_384
"""How many rows are checked or copied at a time."""

_NAMED = 10
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TAKEN = ("clip_id", "text", "presence", "gram", "duration", "seconds", "problems", "bound")
_OTHER_LISTS = ("gram", *CONCAT_COLUMNS)  # of floats; all others are vectors of modalities


def modalities_of(table: pa.Table | pa.RecordBatch) -> tuple[str, ...]:
    """The modalities of a table of clips, in the order of its columns: what holds lists of floats."""
    kinds = pa.FixedSizeListType | pa.ListType | pa.LargeListType
    lists = [field for field in table.schema if isinstance(field.type, kinds) and field.name not in _OTHER_LISTS]
    return tuple(field.name for field in lists if pa.types.is_floating(field.type.value_type))


def check_modality(name: str) -> None:
    """Raise a ValueError unless a modality can be called so: as a column, and as the option of a command."""
    is_other = name in _TAKEN or name.endswith(_CODES) or name.startswith(("code_", "concat_"))
    if not _NAME.fullmatch(name) or is_other:
        raise ValueError(
            f"A modality is called by small letters, digits and _, as title or on_screen, got {name!r}"
            f"{', which is the name of something else' if is_other else ''}. Choose another name."
        )


def codes_columns(modalities: Iterable[str]) -> list[str]:
    """Columns of the vectors of modalities in eight bits, and of what is known of these."""
    return [*(f"{name}{_CODES}" for name in modalities), *CODE_FACTS]


@dataclass(frozen=True)
class MediaFile:
    """A file as it was when it was read; `reason` says why nothing, or not all of its windows, could be read; `texts`
    are what is known of it in words, as a JSON object by the names of modalities: its title, or what a list said."""

    path: str
    size: int
    mtime_ns: int
    sha256: str
    reason: str | None = None
    texts: str | None = None

    def words(self) -> dict[str, str]:
        """What is known of it in words, by the names of modalities."""
        return {} if self.texts is None else json.loads(self.texts)


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
        modality_embeds: M `torch.Tensor` of shape `(clips, dim)`, zero where absent.

    Returns:
        `torch.FloatTensor` of shape `(clips, M, M)`: inner products of the modalities, summed in float64; zero where
        absent.
    """
    blocks = []
    for parts in zip(*(embeds.split(4096) for embeds in modality_embeds), strict=True):
        exact = torch.stack([part.double() for part in parts], dim=1)  # (clips, M, D)
        blocks.append((exact @ exact.mT).float())
    return torch.cat(blocks) if blocks else torch.empty(0, len(modality_embeds), len(modality_embeds))


def _derived_of(
    vectors: Sequence[torch.Tensor],
    modality_mask: torch.Tensor,
    has_codes: bool,
    modalities: Sequence[str],
    gram: torch.Tensor,
) -> dict[str, pa.Array]:
    """Columns that say what the vectors of clips are like: presence, Gram matrices, and codes if these are kept."""
    columns = {"presence": fixed_lists(modality_mask), "gram": fixed_lists(gram.flatten(1))}
    if has_codes:
        codes = encode(vectors)
        values = [*map(fixed_lists, codes.codes), *(pa.array(fact.numpy()) for fact in (codes.scale, codes.error))]
        columns |= dict(zip(codes_columns(modalities), values, strict=True))
    return columns


def with_modality(table: pa.Table, name: str, vectors: torch.Tensor, there: torch.Tensor) -> pa.Table:
    """
    Give clips a further modality. All that is stored of the others stays as it is, bit for bit, but the codes.

    Args:
        table (`pa.Table`): clips as they are stored, with the modalities of which none has this name.
        name (`str`): what it is called.
        vectors (`torch.Tensor` of shape `(clips, D)`), there (`torch.BoolTensor` of shape `(clips,)`): its vectors,
            of the dtype of the others and zero where absent, and which clips have it.
    """
    known = modalities_of(table)
    columns = [*stacked(table, known).unbind(1), vectors]
    number = len(known)
    gram = gram_of(columns)
    gram[:, :number, :number] = stacked(table, ["gram"]).view(-1, number, number)
    return _with_vectors(table, columns, torch.cat([presence_of(table), there[:, None]], 1), gram, (*known, name))


def without_modality(table: pa.Table, name: str) -> pa.Table:
    """The clips without one of their modalities; what is stored of the others stays, bit for bit, but the codes."""
    known = modalities_of(table)
    left = [place for place, other in enumerate(known) if other != name]
    gram = stacked(table, ["gram"]).view(-1, len(known), len(known))[:, left][:, :, left]
    names = [known[place] for place in left]
    return _with_vectors(table, stacked(table, names).unbind(1), presence_of(table)[:, left], gram, names)


def _with_vectors(
    table: pa.Table,
    vectors: Sequence[torch.Tensor],
    modality_mask: torch.Tensor,
    gram: torch.Tensor,
    modalities: Sequence[str],
) -> pa.Table:
    """A table of clips with these vectors in place of its own."""
    known = modalities_of(table)
    has_codes = CODE_FACTS[0] in table.column_names
    replaced = {"clip_id", *known, *codes_columns(known), "presence", "gram"}
    columns = {"clip_id": table.column("clip_id")}
    rows_of = dict(zip(modalities, vectors, strict=True))
    columns |= {name: table.column(name) if name in known else fixed_lists(rows_of[name]) for name in modalities}
    columns |= _derived_of(vectors, modality_mask, has_codes, modalities, gram)
    return pa.table(columns | {name: table.column(name) for name in table.column_names if name not in replaced})


def clip_table(
    clip_ids: Sequence[str],
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    concat_embeds: torch.Tensor | None = None,
    durations: Sequence[float | None] | None = None,
    problems: Sequence[Sequence[str]] | None = None,
    seconds: Sequence[float | None] | None = None,
    dtype: str | None = None,
    has_codes: bool = False,
    modalities: Sequence[str] = PAPER_MODALITIES,
) -> pa.Table:
    """
    Lay clips out as they are stored.

    Args:
        clip_ids (`list[str]`): one per clip.
        modality_embeds (`torch.Tensor` of shape `(clips, M, dim)`): unit norm; absent rows count as zeros.
        modality_mask (`torch.BoolTensor` of shape `(clips, M)`): what each clip has.
        concat_embeds (`torch.Tensor` of shape `(clips, 3, dim)`, *optional*): of concatenation heads.
        durations (`list`, *optional*): of the sound in seconds, `None` where unknown.
        problems (`list`, *optional*): of each clip, what could not be read and counts as absent.
        seconds (`list`, *optional*): how long each clip lasts, `None` where unknown.
        dtype (`str`, *optional*): `"float16"` or `"float32"`; by default that of `modality_embeds`.
        has_codes (`bool`): add the vectors in eight bits, by which large galleries are searched.
        modalities (sequence of `str`): what the M vectors of a clip are called.

    Returns:
        `pa.Table` with the columns `clip_id`, one per modality, `presence`, `gram` (see [`gram_of`]), those of
        codes and of concatenation heads if there are any, `duration`, `seconds`, and `problems`.
    """
    precision = precision_of(dtype or str(modality_embeds.dtype).removeprefix("torch."))
    embeds = torch.where(modality_mask[..., None], modality_embeds, modality_embeds.new_zeros(())).to(precision)
    vectors = [column.contiguous() for column in embeds.unbind(1)]
    columns = {"clip_id": strings(clip_ids)}
    columns |= {name: fixed_lists(rows) for name, rows in zip(modalities, vectors, strict=True)}
    columns |= _derived_of(vectors, modality_mask, has_codes, modalities, gram_of(vectors))
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

    Texts with a vector for each modality, `(queries, M, dim)`, are stored with these one after the other.
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


def taken(tables: Iterable[pa.Table], rows: np.ndarray, names: Sequence[str]) -> pa.Table:
    """Copy columns of some rows, which are numbered through all tables, in ascending order."""
    batches, start = [], 0
    for batch in (batch for table in tables for batch in table.select(names).to_batches()):
        first, last = np.searchsorted(rows, (start, start + len(batch)))
        if first < last:
            batches.append(batch.take(pa.array(rows[first:last] - start)))
        start += len(batch)
    return pa.Table.from_batches(batches)


def texts_of(table: pa.Table, name: str) -> list[str]:
    """A column of texts as a list."""
    return list(map(from_utf8, table.column(name).to_pylist()))


def lists_of(table: pa.Table, name: str) -> list[list[str]]:
    """A column of lists of texts."""
    column = table.column(name)
    texts = map(from_utf8, pc.list_flatten(column).to_pylist())
    return [list(islice(texts, count)) for count in pc.list_value_length(column).to_pylist()]


def matrix_of(chunk: pa.FixedSizeListArray) -> torch.Tensor:
    """
    Read lists as a matrix, in place.

    Returns:
        `torch.Tensor` of shape `(rows, length)`: a view of the memory of `chunk`, which may be a file mapped for
        reading; writing to it is an error. Bools, which are bits in Arrow, are copied.
    """
    values = chunk.flatten()
    array = values.to_numpy(zero_copy_only=not pa.types.is_boolean(values.type)).reshape(-1, chunk.type.list_size)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array)


def codes_of(batch: pa.RecordBatch) -> Codes | None:
    """The vectors of clips in eight bits, in place; `None` if they are not kept."""
    if CODE_FACTS[0] not in batch.schema.names:
        return None
    codes = [matrix_of(batch.column(f"{name}{_CODES}")) for name in modalities_of(batch)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return Codes(codes, *(torch.from_numpy(batch.column(name).to_numpy()) for name in CODE_FACTS))


def stacked(table: pa.Table, names: Sequence[str]) -> torch.Tensor:
    """Copy columns of lists into one tensor, `(rows, columns, length)`: of bools, float16 or float32."""
    kind = table.schema.field(names[0]).type
    dtype = {"bool": torch.bool, "halffloat": torch.float16, "float": torch.float32}[str(kind.value_type)]
    result = torch.empty(len(table), len(names), kind.list_size, dtype=dtype)
    for index, name in enumerate(names):
        start = 0
        for chunk in table.column(name).chunks:
            result[start : start + len(chunk), index] = matrix_of(chunk)
            start += len(chunk)
    return result


def presence_of(table: pa.Table) -> torch.Tensor:
    """`torch.BoolTensor` of shape `(rows, M)`: which modalities clips have."""
    return stacked(table, ["presence"])[:, 0]


def embeds_of(table: pa.Table) -> torch.Tensor:
    """Copy the vectors of clips, `(rows, M, dim)`."""
    return stacked(table, modalities_of(table))


def clips_of(table: pa.Table) -> tuple:
    """The arguments of [`clip_table`] that lay these rows out; the precision is that of the vectors."""
    heads = stacked(table, CONCAT_COLUMNS) if CONCAT_COLUMNS[0] in table.column_names else None
    return (
        texts_of(table, "clip_id"),
        embeds_of(table),
        presence_of(table),
        heads,
        table.column("duration").to_pylist(),
        lists_of(table, "problems"),
        table.column("seconds").to_pylist(),
    )


def text_embeds_of(queries: pa.Table, dim: int | None) -> torch.Tensor:
    """Copy the vectors of queries into one tensor: `(queries, dim)`, or `(queries, M, dim)` where they have M."""
    vectors = stacked(queries, ["embedding"])[:, 0]
    has_several = dim is not None and vectors.shape[1] > dim and vectors.shape[1] % dim == 0
    return vectors.unflatten(1, (-1, dim)) if has_several else vectors


# Checking ---------------------------------------------------------------------------------------------------------


def off_unit(embeds: torch.Tensor) -> torch.Tensor:
    """Tell which vectors, on the last axis, miss the unit norm by more than rounding; those not finite do."""
    blocks = embeds.split(4096)  # a half-precision tensor is copied for it
    norms = [torch.linalg.vector_norm(block.float(), dim=-1) for block in blocks]
    return ~((torch.cat(norms) - 1).abs() <= NORM_TOLERANCE) if norms else embeds.new_empty(0, dtype=torch.bool)


def check_rows(
    clip_ids: Sequence[str],
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    modalities: Sequence[str] = PAPER_MODALITIES,
) -> None:
    """
    Check embedded clips.

    Args:
        clip_ids (`list[str]`): one per clip.
        modality_embeds (`torch.Tensor` of shape `(N, M, D)`): what a row with a False mask holds does not count.
        modality_mask (`torch.BoolTensor` of shape `(N, M)`): what each clip has.
        modalities (sequence of `str`): what the M vectors of a clip are called.

    Raises:
        ValueError: shapes differ, an identifier repeats, a clip has no modality, or a vector that is present is not
            of unit norm; the clips are named.
    """
    expected = (len(clip_ids), len(modalities))
    if modality_mask.shape != expected or modality_embeds.ndim != 3 or modality_embeds.shape[:2] != expected:
        raise ValueError(
            f"{len(clip_ids)} clips need `modality_mask` of shape {expected} and `modality_embeds` of shape "
            f"{(*expected, 'D')}, for {', '.join(modalities)}; got {tuple(modality_mask.shape)} and "
            f"{tuple(modality_embeds.shape)}."
        )
    if len(set(clip_ids)) != len(clip_ids):
        repeated = sorted(name for name, count in Counter(clip_ids).items() if count > 1)
        raise ValueError(f"`clip_id` must be unique, repeated: {listed(repeated)}.")
    for rows, message in (
        (~modality_mask.any(1), "Every clip needs at least one modality; these have none"),
        (
            (off_unit(modality_embeds) & modality_mask).any(1),
            "Vectors of modalities that are present must be of unit norm; they are not for the clips",
        ),
    ):
        wrong = [clip_ids[row] for row in rows.nonzero().flatten().tolist()]
        if wrong:
            raise ValueError(f"{message}: {listed(wrong)}.")


__all__ = [
    "CODE_FACTS",
    "CONCAT_COLUMNS",
    "COPIED_ROWS",
    "DTYPES",
    "KEYS",
    "NORM_TOLERANCE",
    "MediaFile",
    "check_modality",
    "check_rows",
    "clip_table",
    "clips_of",
    "codes_columns",
    "codes_of",
    "embeds_of",
    "fixed_lists",
    "from_utf8",
    "gram_of",
    "listed",
    "lists_of",
    "matrix_of",
    "modalities_of",
    "off_unit",
    "precision_of",
    "presence_of",
    "problems_of_clips",
    "query_table",
    "stacked",
    "strings",
    "taken",
    "text_embeds_of",
    "texts_of",
    "to_utf8",
    "with_modality",
    "without_modality",
]
