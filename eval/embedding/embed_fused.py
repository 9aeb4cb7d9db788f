"""Fused vectors: those that a joint encoder itself computes from several modalities of a clip at once.

Our scores are functions of one vector per modality, whatever is masked. A fused vector is not: it has to be embedded
again for every set of modalities that a protocol leaves of a clip.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import BatchFeature, PreTrainedModel, ProcessorMixin

from eval.benchmarks.rows import group_rows, read_row
from eval.embedding.embeddings import FUSED, Embeddings
from gallery.embedding import check_reading, embed_fused, in_batches, read_batches
from modeling_scalar.modeling_joint_scalar import JointEncoderModel
from modeling_scalar.processing_scalar import Clip

Mix = tuple[bool, ...]


def fuses(model: PreTrainedModel) -> bool:
    """Whether a model fuses several modalities at once, and has no heads for single ones."""
    return isinstance(model, JointEncoderModel) and model.can_fuse and not model.config.has_heads


def check_fuses(model: PreTrainedModel) -> None:
    """Raise a ValueError unless a model [`fuses`]."""
    if not fuses(model):
        raise ValueError(
            "Fused vectors need a joint encoder that takes several modalities at once and has no trained heads, "
            "which this model is not. Leave out `--fused`."
        )


def needed_mixes(masks: Iterable[torch.Tensor]) -> list[list[Mix]]:
    """List for each clip the sets of at least two modalities that some mask `(clips, M)` leaves of it."""
    columns = [[tuple(row) for row in mask.tolist()] for mask in masks]
    return [[mix for mix in dict.fromkeys(rows) if sum(mix) > 1] for rows in zip(*columns, strict=True)]


def embed_fused_dataset(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    dataset: Dataset,
    embeddings: Embeddings,
    masks: Sequence[torch.Tensor],
    batch_size: int = 32,
    on_error: str = "raise",
    progress: bool = True,
    num_workers: int = 2,
    task: str = "retrieval",
) -> dict[tuple[int, Mix], torch.Tensor]:
    """
    Embed each set of modalities that masks leave of the clips of a data set, each into one vector.

    Every file is read again, and the model computes each set of at least two modalities of a clip once. A single
    modality has its vector already, and so does the whole clip if [`FUSED`] is one of its modalities.

    Args:
        model ([`~modeling_scalar.JointEncoderModel`]), processor, dataset: those of the embeddings.
        embeddings ([`Embeddings`]): embeddings of the same clips.
        masks (`Sequence[torch.BoolTensor]`, each of shape `(clips, parts)`): modalities that may be read of each clip,
            without [`FUSED`].
        batch_size (`int`): sets of modalities per forward pass.
        on_error, progress, num_workers, task: as in [`~eval.embedding.embed_dataset.embed_dataset`].

    Returns:
        `dict`: unit vectors `(dim,)` by row of the clip and set of modalities.

    Raises:
        ValueError: the model does not fuse, the data set lacks clips of the embeddings, or a file cannot be read as
            it was then.
    """
    check_reading(batch_size, on_error, num_workers)
    check_fuses(model)
    rows = {row["video_id"]: row for row in group_rows(dataset, task, processor.modalities)[0]}
    if missing := [name for name in embeddings.clip_ids if name not in rows]:
        raise ValueError(
            f"{len(missing)} clips of the embeddings are not in the benchmark, such as {missing[0]!r}, and fused "
            "vectors need their files. Give the benchmark that was embedded."
        )
    whole = embeddings.modality_mask[:, embeddings.parts]
    left = needed_mixes(mask & whole for mask in masks)
    if FUSED in embeddings.modalities:
        left = [[mix for mix in mixes if list(mix) != own] for mixes, own in zip(left, whole.tolist(), strict=True)]
    clips = [rows[name] for name in embeddings.clip_ids]
    return embed_fused_rows(model, processor, clips, left, batch_size, on_error, progress, num_workers)


def embed_fused_rows(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    rows: Sequence[dict[str, Any]],
    left: Sequence[Sequence[Mix]],
    batch_size: int,
    on_error: str,
    progress: bool,
    num_workers: int,
) -> dict[tuple[int, Mix], torch.Tensor]:
    """
    Read clips, and embed sets of modalities of each, each into one vector.

    Args:
        rows (`Sequence[dict]`): clips, as [`~eval.benchmarks.rows.read_row`] reads them.
        left (`Sequence[Sequence[Mix]]`): sets to embed of each clip, from [`needed_mixes`]; without any, the clip is
            not read.
        model, processor, batch_size, on_error, progress, num_workers: as in [`embed_fused_dataset`].

    Returns:
        `dict`: unit vectors `(dim,)` by row of the clip and set of modalities.
    """
    clips = [row for row, mixes in enumerate(left) if mixes]

    def read(row: int) -> tuple[int, tuple[int, Clip]]:
        return row, (row, read_row(processor, rows[row], on_error, processed=True))

    def fuse(clips: list[tuple[int, Clip]]) -> list[tuple[list[tuple[int, Mix]], BatchFeature]]:
        by_row = dict(clips)
        keys = [(row, mix) for row in by_row for mix in left[row]]
        return [
            (part, processor.fuse([by_row[row] for row, _ in part], whole_masks([mix for _, mix in part])))
            for part in in_batches(keys, batch_size)
        ]

    def whole_masks(mixes: list[Mix]) -> torch.Tensor:
        masks = torch.ones(len(mixes), len(processor.modalities), dtype=torch.bool)
        masks[:, [index for index, name in enumerate(processor.modalities) if name != FUSED]] = torch.tensor(mixes)
        return masks

    fused = {}
    with tqdm(total=len(clips), desc="fused", unit="clip", disable=not progress) as bar:
        for batch in read_batches(fuse, clips, read, batch_size, num_workers):
            for keys, features in batch.features:
                fused.update(zip(keys, embed_fused(model, features), strict=True))
            bar.update(len(batch.notes))
    return fused


__all__ = ["check_fuses", "embed_fused_dataset", "embed_fused_rows", "fuses", "needed_mixes"]
