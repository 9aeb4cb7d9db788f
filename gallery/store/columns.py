"""The tables of a gallery: embedded clips, captions that describe some of them, and the media files they come from.

Each of the three is a data set that `datasets.load_from_disk` reads (see [`~scalar_retrieval.gallery.store.storage`]):

`clips/`
    `clip_id` (string); one column for each of M modalities, named after it (`video`, `audio`, `subtitle`, or any
    other name; lists of floats): unit vectors, zero where the clip lacks the modality, of the components of a query
    that [`~scalar_retrieval.gallery.store.described.slices_of`] says, by default all D; `presence` (list of M bools):
    which modalities it has, in the order of the columns; `gram` (list of M x M floats): their Gram matrix, see
    [`gram_of`]; `video_codes` and so on (lists of bytes), `code_scale` and `code_error`: the vectors in eight bits,
    see [`~scalar_retrieval.gallery.store.codes`]; `seconds`: the length of the clip, if known; `problems` (list of
        strings): what could
    not be read and counts as absent.
`queries/`
    `query_id`, `caption` (strings); `embedding` (list of D floats): a unit vector;
    `clip_ids` (list of strings): the clips that the query describes. Only benchmarks have this table.
`files/`
    `path`, `size`, `mtime_ns`, `sha256` of each media file at the time it was read (see
    [`~scalar_retrieval.gallery.store.rows`]), `reason` (string) if the file or some of its windows could not be read,
    `texts` (string), a JSON object with its title and the like, their `language` (string), and `recorded_ns` and
    `place` of its recording, if known. Only galleries of one's own files have it;
    `clip_id` is then the path, or a window of it (see [`~scalar_retrieval.gallery.store.windows`]).

Vectors are fixed-size lists, so a column of a memory-mapped file is a matrix in place.
"""

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import torch

from scalar_retrieval.modeling_scalar.modalities_scalar import Slice
from scalar_retrieval.modeling_scalar.scores_scalar import off_unit, side_by_side

from .codes import Codes, encode
from .rows import CODE_FACTS, CODES, abbreviated, check_precision, codes_columns, modalities_of, strings

COPIED_ROWS = 16_384
"""Number of rows that are checked or copied at a time."""

_EXACT_ROWS = 4096  # rows that are multiplied in float64 at a time


def precision_of(name: str) -> torch.dtype:
    """Return the precision of stored vectors by its name; raises a ValueError if the name is unknown."""
    check_precision(name)
    return getattr(torch, name)


# Writing ----------------------------------------------------------------------------------------------------------


def fixed_lists(rows: torch.Tensor) -> pa.FixedSizeListArray:
    """A column of fixed-size lists from the rows of a matrix, `(rows, length)`."""
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.contiguous().numpy().reshape(-1)), rows.shape[-1])


def gram_of(modality_embeds: torch.Tensor) -> torch.Tensor:
    """
    Compute the Gram matrix of each clip, which is all that scores read of clips alone, from the stored vectors.

    Args:
        modality_embeds (`torch.Tensor` of shape `(clips, M, dim)`): zero where absent.

    Returns:
        `torch.FloatTensor` of shape `(clips, M, M)`: inner products of the modalities, summed in float64; zero where
        absent.
    """
    grams = []
    # Some clips at a time: in float64 all of them may take more room than the memory.
    for some in modality_embeds.split(_EXACT_ROWS):
        exact = some.double()
        grams.append((exact @ exact.mT).float())
    return torch.cat(grams)


def cut(embeds: torch.Tensor, slices: Sequence[Slice]) -> list[torch.Tensor]:
    """
    Leave out the components that a modality does not have.

    Args:
        embeds (`torch.Tensor` of shape `(N, M, D)`): the vectors.
        slices: for each modality, the start and the stop of its components.

    Returns:
        M `torch.Tensor` of shape `(N, stop - start)`.

    Raises:
        ValueError: D is not the end of the last slice, or a vector is not zero outside its slice.
    """
    columns = []
    for vectors, (start, stop) in zip(embeds.unbind(1), slices, strict=True):
        columns.append(vectors[:, start:stop].contiguous())
    _, dim = max(slices)
    if embeds.shape[-1] != dim or not torch.equal(side_by_side(columns, slices), embeds):
        raise ValueError(
            f"Vectors must have {dim} components, as queries have, and be zero outside the slice of their modality: "
            f"{slices!r:.200}. Got others, of {embeds.shape[-1]} components."
        )
    return columns


def clip_table(
    clip_ids: Sequence[str],
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    modalities: Sequence[str],
    problems: Sequence[Sequence[str]] | None = None,
    seconds: Sequence[float | None] | None = None,
    dtype: str | None = None,
    has_codes: bool = False,
    slices: Sequence[Slice] | None = None,
) -> pa.Table:
    """
    Lay out clips as they are stored.

    Args:
        clip_ids (`list[str]`): one per clip.
        modality_embeds (`torch.Tensor` of shape `(clips, M, dim)`): unit norm; absent rows count as zeros.
        modality_mask (`torch.BoolTensor` of shape `(clips, M)`): the modalities of each clip.
        modalities (sequence of `str`): names of the M modalities.
        problems (`list`, *optional*): for each clip, what could not be read and counts as absent.
        seconds (`list`, *optional*): length of each clip, `None` where unknown.
        dtype (`str`, *optional*): `"float16"` or `"float32"`; by default that of `modality_embeds`.
        has_codes (`bool`): add the vectors in eight bits, which speed up the search of large galleries.
        slices (*optional*): for each modality, the start and the stop of the components that are stored, by default
            all; others must be zero, see [`cut`].

    Returns:
        `pa.Table` with the columns `clip_id`, one per modality, `presence`, `gram` (see [`gram_of`]), codes if there
        are any, `seconds`, and `problems`.
    """
    # The vectors of each modality, zero where it is absent.
    precision = precision_of(dtype or str(modality_embeds.dtype).removeprefix("torch."))
    embeds = torch.where(modality_mask[..., None], modality_embeds, modality_embeds.new_zeros(())).to(precision)
    vectors = cut(embeds, slices or [(0, embeds.shape[-1])] * len(modalities))
    columns = {"clip_id": strings(clip_ids)}
    for name, rows in zip(modalities, vectors, strict=True):
        columns[name] = fixed_lists(rows)
    # What is computed from them once, so that no search has to.
    columns["presence"] = fixed_lists(modality_mask)
    columns["gram"] = fixed_lists(gram_of(embeds).flatten(1))
    if has_codes and min(rows.shape[1] for rows in vectors) > 1:  # a vector of one dimension is a sign
        codes = encode(vectors)
        values = [*map(fixed_lists, codes.codes), pa.array(codes.scale.numpy()), pa.array(codes.error.numpy())]
        columns |= dict(zip(codes_columns(modalities), values, strict=True))
    # What is known of the files.
    columns["seconds"] = pa.array(seconds or [None] * len(clip_ids), pa.float64())
    columns["problems"] = pa.array(problems or [[]] * len(clip_ids), pa.list_(pa.string()))
    return pa.table(columns)


def problems_of_clips(problems: Sequence[str], clip_ids: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Sort problems by clip: each begins with the identifier of its clip. Also return those that name no clip."""
    by_clip: dict[str, list[str]] = {name: [] for name in clip_ids}
    others = []
    for problem in problems:
        # The name may itself contain a colon: the longest one counts.
        end = problem.rfind(": ")
        while end >= 0 and problem[:end] not in by_clip:
            end = problem.rfind(": ", 0, end)
        if end < 0:
            others.append(problem)
        else:
            by_clip[problem[:end]].append(problem[end + 2 :])
    return list(by_clip.values()), others


def query_table(
    query_ids: Sequence[str],
    captions: Sequence[str],
    text_embeds: torch.Tensor,
    clip_ids: Sequence[Sequence[str]],
    dtype: str | None = None,
) -> pa.Table:
    """Lay out queries as they are stored; `clip_ids`: for each query, the clips that it describes."""
    precision = precision_of(dtype or str(text_embeds.dtype).removeprefix("torch."))
    return pa.table(
        {
            "query_id": strings(query_ids),
            "caption": strings(captions),
            "embedding": fixed_lists(text_embeds.to(precision)),
            "clip_ids": pa.array(clip_ids, pa.list_(pa.string())),
        }
    )


# Reading ----------------------------------------------------------------------------------------------------------


def unit_vectors(embeds: torch.Tensor) -> torch.Tensor:
    """Convert to float32 on the CPU, and normalise again if the model computed in lower precision."""
    full = embeds.float()
    if embeds.dtype != torch.float32:
        full = torch.nn.functional.normalize(full, dim=-1)
    return full.cpu()


def taken(tables: Iterable[pa.Table], rows: np.ndarray, names: Sequence[str]) -> pa.Table:
    """Copy some columns and rows; rows are numbered through all tables and given in ascending order."""
    batches = []
    start = 0  # the number of the first row of a batch
    for table in tables:
        for batch in table.select(names).to_batches():
            # As rows ascend, those of a batch follow each other.
            first, last = np.searchsorted(rows, (start, start + len(batch)))
            if first < last:
                batches.append(batch.take(pa.array(rows[first:last] - start)))
            start += len(batch)
    return pa.Table.from_batches(batches)


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """A tensor in the memory of an array, which may be read-only: do not write to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array)


def matrix_of(chunk: pa.FixedSizeListArray) -> torch.Tensor:
    """
    Read lists as a matrix, without a copy.

    Returns:
        `torch.Tensor` of shape `(rows, length)`: a view of the memory of `chunk`, which may be a read-only mapped
        file: do not write to it. Bools, which are bits in Arrow, are copied.
    """
    values = chunk.flatten()
    array = values.to_numpy(zero_copy_only=not pa.types.is_boolean(values.type))
    return tensor_of(array.reshape(-1, chunk.type.list_size))


def codes_of(batch: pa.RecordBatch) -> Codes | None:
    """The vectors of clips in eight bits, without a copy; `None` if they are not stored."""
    if CODE_FACTS[0] not in batch.schema.names:
        return None
    codes = [matrix_of(batch.column(f"{name}{CODES}")) for name in modalities_of(batch)]
    facts = [tensor_of(batch.column(name).to_numpy()) for name in CODE_FACTS]
    return Codes(codes, *facts)


def stacked(table: pa.Table, names: Sequence[str], slices: Sequence[Slice] | None = None) -> torch.Tensor:
    """Copy columns of lists into one tensor, `(rows, columns, length)`, of bool, float16 or float32; each into its
    slice of the length, by default all of it, with zeros elsewhere."""
    kind = table.schema.field(names[0]).type
    slices = slices or [(0, kind.list_size)] * len(names)
    _, length = max(slices)
    result = torch.from_numpy(np.zeros((len(table), len(names), length), kind.value_type.to_pandas_dtype()))
    # Chunk by chunk, so that nothing is copied twice.
    for index, (left, right) in enumerate(slices):
        start = 0
        for chunk in table.column(names[index]).chunks:
            result[start : start + len(chunk), index, left:right] = matrix_of(chunk)
            start += len(chunk)
    return result


def presence_of(table: pa.Table) -> torch.Tensor:
    """`torch.BoolTensor` of shape `(rows, M)`: which modalities clips have."""
    return stacked(table, ["presence"])[:, 0]


def embeds_of(table: pa.Table, slices: Sequence[Slice]) -> torch.Tensor:
    """Copy the vectors of clips, `(rows, M, dim)`, into the components that each modality has, zero elsewhere."""
    return stacked(table, modalities_of(table), slices)


def text_embeds_of(queries: pa.Table) -> torch.Tensor:
    """Copy the vectors of queries into one tensor, `(queries, dim)`."""
    return stacked(queries, ["embedding"])[:, 0]


# Checking ---------------------------------------------------------------------------------------------------------


def named(names: Sequence[str], is_wrong: torch.Tensor) -> str:
    """The first names where a bool tensor of shape `(names,)` is True, and how many more there are; `""` if none."""
    rows = is_wrong.nonzero().flatten().tolist()
    if not rows:
        return ""
    return abbreviated([names[row] for row in rows])


def check_unique(clip_ids: Sequence[str]) -> None:
    """Raise a ValueError that names the identifiers that repeat."""
    if len(set(clip_ids)) != len(clip_ids):
        counts = Counter(clip_ids)
        repeated = sorted(name for name in counts if counts[name] > 1)
        raise ValueError(f"`clip_id` must be unique, repeated: {abbreviated(repeated)}.")


def check_rows(
    clip_ids: Sequence[str],
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    modalities: Sequence[str],
) -> None:
    """
    Check embedded clips.

    Args:
        clip_ids (`list[str]`): one per clip.
        modality_embeds (`torch.Tensor` of shape `(N, M, D)`): rows with a False mask are ignored.
        modality_mask (`torch.BoolTensor` of shape `(N, M)`): the modalities of each clip.
        modalities (sequence of `str`): names of the M modalities.

    Raises:
        ValueError: shapes differ, an identifier repeats, a clip has no modality, or the vector of a modality that is
            present does not have unit norm; the clips are named.
    """
    # Shapes first: the checks below need them.
    expected = (len(clip_ids), len(modalities))
    if modality_mask.shape != expected or modality_embeds.ndim != 3 or modality_embeds.shape[:2] != expected:
        raise ValueError(
            f"{len(clip_ids)} clips need `modality_mask` of shape {expected} and `modality_embeds` of shape "
            f"{(*expected, 'D')}, for {', '.join(modalities)}; got {tuple(modality_mask.shape)} and "
            f"{tuple(modality_embeds.shape)}."
        )
    check_unique(clip_ids)
    empty = named(clip_ids, ~modality_mask.any(1))
    if empty:
        raise ValueError(f"Every clip needs at least one modality; these have none: {empty}.")
    # What the rows of absent modalities hold does not matter.
    wrong = named(clip_ids, (off_unit(modality_embeds) & modality_mask).any(1))
    if wrong:
        raise ValueError(f"Vectors of modalities that are present must be of unit norm; wrong for the clips: {wrong}.")


__all__ = [
    "COPIED_ROWS",
    "check_rows",
    "check_unique",
    "clip_table",
    "codes_of",
    "embeds_of",
    "fixed_lists",
    "gram_of",
    "matrix_of",
    "named",
    "precision_of",
    "presence_of",
    "problems_of_clips",
    "query_table",
    "stacked",
    "taken",
    "tensor_of",
    "text_embeds_of",
]
