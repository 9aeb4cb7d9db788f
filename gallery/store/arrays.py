"""Vectors that users bring as arrays, of numpy, torch or pyarrow, laid out as clips.

Shapes: N clips, M modalities, D dimensions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from scalar_retrieval.modeling_scalar.modalities_scalar import Slice
from scalar_retrieval.modeling_scalar.scores_scalar import off_unit, side_by_side

from .columns import named, tensor_of

Array = np.ndarray | torch.Tensor | pa.Array | pa.ChunkedArray


def names_of(ids: Sequence[Any] | Array) -> list[str]:
    """Identifiers as texts, from any array or list."""
    return [str(name) for name in np.asarray(ids, dtype=object)]


def _matrix_of_lists(rows: pa.Array, what: str) -> np.ndarray:
    """A column of lists as a matrix, with NaN where a list is null."""
    kind = rows.type
    is_list = isinstance(kind, (pa.ListType, pa.LargeListType, pa.FixedSizeListType))
    if not is_list or not pa.types.is_floating(kind.value_type):
        raise ValueError(f"{what} must hold lists of floats, got {kind}.")
    # All lists must have one length. If all are null, only the type of the column may define it.
    lengths = pc.unique(pc.drop_null(pc.list_value_length(rows))).to_pylist()
    values = pc.list_flatten(rows)  # without null lists
    if len(lengths) > 1 or values.null_count:
        raise ValueError(f"All lists of {what} must have one length and hold no nulls, got lengths {lengths[:10]}.")
    dim = lengths[0] if lengths else getattr(kind, "list_size", 0)
    matrix = np.full((len(rows), dim), np.nan, values.type.to_pandas_dtype())
    matrix[rows.is_valid().to_numpy(zero_copy_only=False)] = values.to_numpy().reshape(-1, dim)
    return matrix


def read_vectors(rows: Array, what: str) -> torch.Tensor:
    """
    Read vectors, one per row, without a copy if possible.

    Args:
        rows: a matrix of floats, `(N, D)`, or a column of N lists of D floats.
        what (`str`): their name in messages.

    Returns:
        `torch.Tensor` of shape `(N, D)`: float16 if they are, else float32; rows that are null are NaN.

    Raises:
        ValueError: they have another shape or type.
    """
    # A column becomes a matrix of numpy, and that becomes a tensor.
    if isinstance(rows, pa.ChunkedArray):
        rows = rows.combine_chunks()
    if isinstance(rows, pa.Array):
        rows = _matrix_of_lists(rows, what)
    if not isinstance(rows, torch.Tensor):
        rows = tensor_of(np.asarray(rows))
    if rows.ndim != 2 or not rows.is_floating_point():
        raise ValueError(f"{what} must be floats of shape (clips, dimensions), got {rows.dtype} {tuple(rows.shape)}.")
    rows = rows.detach().cpu()
    if rows.dtype == torch.float16:
        return rows
    return rows.float()


def stacked_vectors(
    columns: Mapping[str, torch.Tensor], slices: Sequence[Slice], mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Stack the vectors of clips.

    Args:
        columns (`dict[str, torch.Tensor]`): for each modality its vectors, `(N, width)`; a row of NaN is absent.
        slices: for each modality, the start and the stop of the components of a query that its vectors have.
        mask (`torch.BoolTensor` of shape `(N, M)`, *optional*): False where a clip lacks a modality.

    Returns:
        The vectors, `(N, M, D)`, zero where absent, in half precision if all have it; and which modalities clips have,
        `(N, M)`.

    Raises:
        ValueError: shapes differ; the message names them.
    """
    embeds = side_by_side(list(columns.values()), slices)
    presence = torch.stack([~matrix.isnan().all(1) for matrix in columns.values()], dim=1)  # (N, M)
    if mask is not None:
        if mask.shape != presence.shape or mask.dtype != torch.bool:
            raise ValueError(
                f"`mask` must be bools of shape {tuple(presence.shape)}, for {', '.join(columns)}, got {mask.dtype} "
                f"{tuple(mask.shape)}."
            )
        presence &= mask
    # Whatever stands where a modality is absent becomes zero, also NaN.
    return torch.where(presence[..., None], embeds, embeds.new_zeros(())), presence


def normalised(
    names: Sequence[str], embeds: torch.Tensor, presence: torch.Tensor, modalities: Sequence[str]
) -> tuple[torch.Tensor, int]:
    """
    Give vectors unit norm; those that have it, in their precision, stay as they are.

    Args:
        names (sequence of `str`): of the N clips.
        embeds, presence: as from [`stacked_vectors`].
        modalities (sequence of `str`): their M names.

    Returns:
        The vectors, and how many did not have unit norm.

    Raises:
        ValueError: a vector is zero or not finite; the clips are named.
    """
    # In float32, so that half precision is rounded only once.
    norms = torch.linalg.vector_norm(embeds.float(), dim=-1)
    wrong = presence & ~((norms > 0) & norms.isfinite())
    for place, modality in enumerate(modalities):
        clips = named(names, wrong[:, place])
        if clips:
            raise ValueError(
                f"The vectors of {modality!r} of the clips {clips} are zero or not finite. Give others, or "
                "set `mask` to False where clips lack the modality."
            )
    is_off = off_unit(embeds) & presence
    unit = (embeds.float() / norms[..., None]).to(embeds.dtype)
    return torch.where(is_off[..., None], unit, embeds), int(is_off.sum())


__all__ = ["Array", "names_of", "normalised", "read_vectors", "stacked_vectors"]
