"""What the tables and the metadata of a gallery must be, and what metadata say of scores."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from gallery.columns import CODE_COLUMNS, CONCAT_COLUMNS, check_lists, check_type, is_string, listed, off_unit
from gallery.windows import SEGMENT
from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.scores_scalar import CALIBRATION, check_calibration

_LEAST_TEMPERATURE = float(np.finfo(np.float32).tiny)  # by less, scores would be divided to infinity


def check_clips(table: pa.Table, where: Any, dim: int | None) -> int:
    """Return the dimension of the vectors; a ValueError if the columns are not those of clips."""
    check_type(table, "clip_id", where, is_string, "strings")
    has_heads = any(name in table.column_names for name in CONCAT_COLUMNS)
    for name in MODALITIES + (CONCAT_COLUMNS if has_heads else ()):
        dim = check_lists(table, name, where, length=dim)
    if not dim:
        raise ValueError(f"Vectors in {where} must have at least one dimension, got {dim}.")
    check_lists(table, "presence", where, boolean=True, length=len(MODALITIES))
    if "gram" in table.column_names:
        check_lists(table, "gram", where, length=len(MODALITIES) ** 2)
        check_type(table, "gram", where, lambda kind: pa.types.is_float32(kind.value_type), "lists of float32")
    if CODE_COLUMNS[0] in table.column_names:
        for name in CODE_COLUMNS:
            check_type(table, name, where, lambda kind: kind == pa.list_(pa.int8(), dim), f"lists of {dim} bytes")
        for name in ("code_scale", "code_error"):
            check_type(table, name, where, pa.types.is_float32, "float32")
    for name in ("duration", "seconds"):
        if name in table.column_names:
            check_type(table, name, where, pa.types.is_floating, "floats", nullable=True)
    return dim


def check_files(table: pa.Table, where: Any) -> None:
    """Raise a ValueError if the columns are not those of media files."""
    for name, of_type, kind in (
        ("path", is_string, "strings"),
        ("size", pa.types.is_integer, "integers"),
        ("mtime_ns", pa.types.is_integer, "integers"),
        ("sha256", is_string, "strings"),
        ("reason", is_string, "strings"),
    ):
        check_type(table, name, where, of_type, kind, nullable=name == "reason")


def check_rows(clip_ids: Sequence[str], modality_embeds: torch.Tensor, modality_mask: torch.Tensor) -> None:
    """
    Check embedded clips.

    Args:
        clip_ids (`list[str]`): one per clip.
        modality_embeds (`torch.Tensor` of shape `(N, 3, D)`): what a row with a False mask holds does not count.
        modality_mask (`torch.BoolTensor` of shape `(N, 3)`): what each clip has.

    Raises:
        ValueError: shapes differ, an identifier repeats, a clip has no modality, or a vector that is present is not
            of unit norm; the clips are named.
    """
    expected = (len(clip_ids), len(MODALITIES))
    if modality_mask.shape != expected or modality_embeds.ndim != 3 or modality_embeds.shape[:2] != expected:
        raise ValueError(
            f"{len(clip_ids)} clips need `modality_mask` of shape {expected} and `modality_embeds` of shape "
            f"{(*expected, 'D')}, got {tuple(modality_mask.shape)} and {tuple(modality_embeds.shape)}."
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


# Of metadata, what is used here and where galleries are evaluated.
_IN_METADATA = {
    "model": str,
    "model_revision": str,
    "fingerprint": str,
    "dtype": str,
    "plan": dict,
    "lost": dict,
    "unfinished": dict,
    "problems": list,
    "left_out": list,
    "score_options": dict,
    "training": dict,
}
_LONGEST_NAME = 4096


def check_metadata(metadata: Mapping[str, Any], where: Any) -> None:
    """Raise a ValueError that names what in the metadata of a gallery is not as its readers expect it."""
    for name, kind in _IN_METADATA.items():
        value = metadata.get(name)
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"`{name}` in the metadata of {where} must be a {kind.__name__}, got {value!r:.80}.")
        if isinstance(value, str) and len(value) > _LONGEST_NAME:
            raise ValueError(f"`{name}` in the metadata of {where} has {len(value)} characters: {value[:40]!r}...")
    segment = metadata.get(SEGMENT)
    if segment is not None and (type(segment) not in (int, float) or not 0 < segment < math.inf):
        raise ValueError(f"`segment` in the metadata of {where} must be a number of seconds, got {segment!r:.80}.")
    for name in ("problems", "left_out"):
        if not all(isinstance(text, str) for text in metadata.get(name) or ()):
            raise ValueError(f"`{name}` in the metadata of {where} must be a list of texts.")
    for options in (metadata, metadata.get("score_options") or {}):
        value = options.get("query_temperature")
        if value in (None, "inf") or (type(value) in (int, float) and value >= _LEAST_TEMPERATURE):
            continue
        raise ValueError(
            f"`query_temperature` in the metadata of {where}, a number of float32, must be above 0, or 'inf', got "
            f"{value!r:.80}."
        )
    try:
        check_calibration(modalities=MODALITIES, **calibration_of(metadata))
    except ValueError as error:
        raise ValueError(f"In the metadata of {where}: {error}") from error


def calibration_of(metadata: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the scale and the offset of each modality's cosines that metadata tell, as far as there are any."""
    options = metadata.get("score_options") or {}
    return {name: options[name] for name in CALIBRATION if options.get(name) is not None}


def score_options_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a model scores, as the metadata of what it embedded tell: keyword arguments of `retrieval_scores`, by
    default the paper's. JSON has an infinity as a string."""
    told = {"query_temperature": metadata.get("query_temperature")} | (metadata.get("score_options") or {})
    options = {"method": "scalar", "query_temperature": 0.1} | {k: v for k, v in told.items() if v is not None}
    return {name: value if name in ("method", *CALIBRATION) else float(value) for name, value in options.items()}


__all__ = [
    "calibration_of",
    "check_clips",
    "check_files",
    "check_metadata",
    "check_rows",
    "score_options_of",
]
