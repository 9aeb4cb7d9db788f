"""Precompute the outputs of the frozen vision and audio towers for the training clips:

    python -m trainer.cache_features

Each batch of clips is appended to the table as one message of an Arrow stream; the description next to it then records
how many bytes are valid. When an interrupted call resumes, it truncates the table to that length.
"""

import copy
import logging
import math
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Literal

import datasets
import numpy as np
import pyarrow as pa
import torch
import typer
from tqdm.auto import tqdm

from commands.errors import say, user_errors
from commands.options import Column, Holdout, Limit, WordsOf, columns_of
from eval.benchmarks.registry import load_benchmark
from gallery.embedding import check_reading, in_background
from gallery.files import naming, write_json
from gallery.provenance import versions
from modeling_scalar import ScalarJointConfig, ScalarProcessor
from modeling_scalar.devices import device_of_name
from modeling_scalar.retrieval_scalar import ScalarRetrievalModel

from .data import ClipDataset, ScalarDataCollator
from .features import DESCRIPTION, FEATURES, RAGGED, TABLE, VERSION, checksums, read_description
from .towers import towers_of

logger = logging.getLogger(__name__)

_COMMAND = "python -m trainer.cache_features"
_TOKENS_PER_SECOND = 25  # of sound, in a joint encoder


@torch.no_grad()
def _row_shapes(model: ScalarRetrievalModel, processor: ScalarProcessor, with_states: bool) -> dict[str, list[int]]:
    """Shapes of the features of one clip, from a forward pass; -1 is the number of tokens of a joint encoder."""
    if isinstance(model.config, ScalarJointConfig):
        names = [name for name, modality in RAGGED.items() if modality in model.config.modalities]
        hidden = model.config.backbone_config.text_config.hidden_size
        return {name: [-1] if name.endswith("_input_ids") else [-1, hidden] for name in names}
    size, extractor = processor.image_processor.image_size, processor.feature_extractor
    features = model.get_tower_features(
        torch.zeros(1, processor.num_train_frames, 3, size, size, device=model.device),
        torch.zeros(1, extractor.num_segments, extractor.segment_length, extractor.num_mel_bins, device=model.device),
        with_states=with_states,
    )
    return {name: list(features[name].shape[1:]) for name in FEATURES if name in features}


def _schema(shapes: dict[str, list[int]], dtype: str, num_modalities: int) -> pa.Schema:
    """The columns: which modalities a clip has, and its features, each a flat list or null."""
    kinds = {name: pa.int32() if name.endswith("_input_ids") else pa.type_for_alias(dtype) for name in shapes}
    lists = [(name, pa.large_list(kind)) for name, kind in kinds.items()]
    return pa.schema([("presence", pa.list_(pa.bool_(), num_modalities)), *lists])


def _row_bytes(schema: pa.Schema, shapes: dict[str, list[int]], processor: ScalarProcessor) -> dict[str, int]:
    """Size in bytes of the features of one view of a clip; for a joint encoder the maximum."""
    width = {name: schema.field(name).type.value_type.byte_width for name in shapes}
    sizes = {name: abs(math.prod(shape)) * width[name] for name, shape in shapes.items()}
    for name in sizes.keys() & RAGGED.keys():
        if name.startswith("video"):
            most = processor.num_train_frames * (processor.image_processor.max_soft_tokens + 2)
        else:
            most = math.ceil(processor.max_audio_seconds * _TOKENS_PER_SECOND) + 2
        sizes[name] *= most
    return sizes


def _check_disk(folder: Path, rows: datasets.Dataset, views: int, row_bytes: dict[str, int], num_done: int) -> None:
    """Log the size of the features and raise a ValueError if they do not fit on the disk."""
    given = {name: sum(path is not None for path in rows[f"{name}_path"]) for name in ("video", "audio")}
    total = views * sum(given[FEATURES[name]] * size for name, size in row_bytes.items())
    needed = int(total * (1 - num_done / len(rows)))
    free = shutil.disk_usage(folder).free
    logger.info("at most %.3g GB for %d clips, %.3g GB still to write", total / 1e9, len(rows), needed / 1e9)
    if needed > free:
        raise ValueError(
            f"The features need {needed / 1e9:.3g} GB in {folder}, but only {free / 1e9:.3g} GB are free. Use another "
            "disk, fewer views, or --no-states if you train without matching."
        )


def _read(
    dataset: ClipDataset, views: int, batch_size: int, start: int, num_workers: int
) -> Iterator[tuple[dict[str, torch.Tensor], list[str]]]:
    """Yield the model's arguments and the read problems of every view of the first batch, then of the next batch."""
    collate, lock = ScalarDataCollator(dataset.processor), Lock()
    of_view = [copy.copy(dataset) for _ in range(views)]
    for view, one in enumerate(of_view):
        one.set_epoch(view)

    def prepare(item: tuple[int, range]):
        view, indices = item
        examples = [of_view[view][index] for index in indices]
        names = dataset.rows[indices.start : indices.stop]["video_id"]
        problems = [f"{name}: {x}" for name, e in zip(names, examples, strict=True) for x in e["clip"].problems]
        with lock:  # fast tokenizers fail when two threads set their padding at once
            return collate(examples), problems

    num_rows = len(dataset)
    batches = [range(first, min(first + batch_size, num_rows)) for first in range(start, num_rows, batch_size)]
    return in_background(prepare, ((view, batch) for batch in batches for view in range(views)), num_workers)


@torch.no_grad()
def _tower_features(model: ScalarRetrievalModel, batch: dict[str, torch.Tensor], with_states: bool, dtype: str):
    """The modality mask, and for each feature the arrays of the clips that have its modality."""
    names = (*(name for tower in towers_of(model).values() for name in tower.inputs), "modality_mask")
    inputs = {name: batch[name].to(model.device) for name in names if name in batch}
    features = {}
    if len(inputs) > 1:  # otherwise the batch has only subtitles
        features = model.get_tower_features(**inputs, with_states=with_states)
    arrays = {}
    for name, value in features.items():
        present = batch["modality_mask"][:, list(model.config.modalities).index(FEATURES[name])]
        value = value[present.to(value.device)].to(getattr(torch, dtype))
        if not value.isfinite().all():
            raise ValueError(f"Some `{name}` are not finite in {dtype}. Use float32, or check the model's weights.")
        arrays[name] = list(value.cpu().numpy())
        if name in RAGGED:
            arrays |= _rows_of_tokens(model, FEATURES[name], arrays[name], batch, present)
    return batch["modality_mask"].numpy(), arrays


def _rows_of_tokens(
    model: ScalarRetrievalModel,
    name: str,
    tokens: list[np.ndarray],
    batch: dict[str, torch.Tensor],
    present: torch.Tensor,
) -> dict[str, list[np.ndarray]]:
    """The token sequence of each clip without padding, and one soft token for each of its placeholders."""
    ids, masks = batch[f"{name}_input_ids"][present], batch[f"{name}_attention_mask"][present].bool()
    sequences = [row[mask].numpy() for row, mask in zip(ids, masks, strict=True)]
    placeholder = getattr(model.config.backbone_config, f"{name}_token_id")
    counts = [int((sequence == placeholder).sum()) for sequence in sequences]
    return {
        f"{name}_soft_tokens": [row[:count] for row, count in zip(tokens, counts, strict=True)],
        f"{name}_input_ids": sequences,
    }


def _record_batch(
    of_batch: Sequence[tuple[np.ndarray, dict]], schema: pa.Schema, video_ids: list[str], modalities: Sequence[str]
) -> pa.RecordBatch:
    """One row per view of each clip: all views of the first clip, then those of the next."""
    masks = np.stack([mask for mask, _ in of_batch], axis=1)  # (clips, views, M)
    varying = (masks != masks[:, :1]).any(axis=(1, 2)).nonzero()[0]
    if len(varying):
        raise ValueError(
            f"The clips {[video_ids[row] for row in varying]} have a modality in some of their views only, because "
            "parts of their files cannot be decoded. Repair the files."
        )
    presence = masks.reshape(-1, len(modalities))
    columns = [pa.FixedSizeListArray.from_arrays(pa.array(presence.reshape(-1)), len(modalities))]
    for field in schema.remove(0):
        views = [features.get(field.name, ()) for _, features in of_batch]
        rows = (row.reshape(-1) for clip in zip(*views, strict=True) for row in clip)
        present = presence[:, modalities.index(FEATURES[field.name])]
        columns.append(pa.array([next(rows) if there else None for there in present], field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _append(path: Path, num_bytes: int, message: pa.Buffer) -> int:
    """Write a message after the first `num_bytes` bytes of a file and sync it; return the new number of bytes."""
    with naming(path), open(path, "ab") as file:
        if file.tell() < num_bytes:
            raise ValueError(f"{path} must have at least {num_bytes} bytes. Remove the folder and start again.")
        file.truncate(num_bytes)
        file.write(message)
        file.flush()
        os.fsync(file.fileno())
    return num_bytes + len(message)


def cache_features(
    folder: str | os.PathLike,
    rows: datasets.Dataset,
    model: ScalarRetrievalModel,
    processor: ScalarProcessor,
    views: int = 1,
    seed: int = 50,
    dtype: str = "float16",
    with_states: bool = True,
    batch_size: int = 32,
    on_error: str = "raise",
    keep_in_memory: bool = False,
    num_workers: int = 2,
    progress: bool = True,
) -> dict[str, Any]:
    """
    Compute and store the outputs of the vision and audio towers for every row of a data set.

    View v of a row has the frames, audio segments and crops that epoch v of a run with this seed draws. An interrupted
    call resumes at the batch it had reached and writes the same files.

    Args:
        folder (`str`): The output folder, created if needed.
        rows (`datasets.Dataset`): The rows of a benchmark.
        model ([`ScalarModel`] or [`ScalarJointModel`]): The model, which is put into evaluation mode.
        processor ([`ScalarProcessor`]): The processor that reads the files, in training mode.
        views (`int`): The number of views per clip.
        seed (`int`): The seed of the draws.
        dtype (`str`): The precision of the files, `"float16"` or `"float32"`. The model computes in its own.
        with_states (`bool`): Whether to store the towers' tokens. Matching needs them; they take most of the space.
        batch_size (`int`): Clips per forward pass. Affects speed and memory; results change by rounding only.
        on_error (`str`), keep_in_memory (`bool`): See [`~trainer.data.ClipDataset`].
        num_workers (`int`): The number of threads that read batches ahead.
        progress (`bool`): Whether to show a progress bar.

    Returns:
        `dict`: The content of `features.json`.

    Raises:
        ValueError: If the folder holds other features, the disk is too small, a clip cannot be read, or the modalities
            of a clip differ between two of its views.
        FileNotFoundError: If a file does not exist.
    """
    check_reading(batch_size, on_error, num_workers)
    if views < 1:
        raise ValueError(f"`views` must be at least 1, got {views}.")
    if dtype not in ("float16", "float32"):
        raise ValueError(f"`dtype` must be 'float16' or 'float32', got {dtype!r}.")
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"The output must be a folder, but {folder} is a file. Choose another.")
    folder.mkdir(parents=True, exist_ok=True)
    identity = {
        "version": VERSION,
        "sha256": checksums(model, processor, rows),
        "num_rows": len(rows),
        "seed": seed,
        "views": views,
        "dtype": dtype,
        "with_states": with_states,
        "on_error": on_error,
    }
    before = read_description(folder)
    different = sorted(name for name, value in identity.items() if before and before.get(name) != value)
    if different:
        raise ValueError(f"{folder} holds other features: {different} differ. Remove it, or choose another folder.")
    description = before or identity | {"rows_done": 0, "num_bytes": 0, "problems": [], "versions": versions()}
    start = description["rows_done"]
    if start == len(rows):
        return description

    model.eval()
    shapes = _row_shapes(model, processor, with_states)
    modalities = list(model.config.modalities)
    schema = _schema(shapes, dtype, len(modalities))
    _check_disk(folder, rows, views, _row_bytes(schema, shapes, processor), start)
    if not start:
        description["shapes"] = shapes
        description["num_bytes"] = _append(folder / TABLE, 0, schema.serialize())
    dataset = ClipDataset(rows, processor, seed, on_error, keep_in_memory)
    computed = (
        (_tower_features(model, batch, with_states, dtype), problems)
        for batch, problems in _read(dataset, views, batch_size, start, num_workers)
    )
    with tqdm(
        total=len(rows) * views, initial=start * views, desc="features", unit="clip", disable=not progress
    ) as bar:
        for of_batch in zip(*[computed] * views, strict=True):  # all views of one batch
            features, problems = zip(*of_batch, strict=True)
            done = description["rows_done"]
            names = rows[done : done + batch_size]["video_id"]
            message = _record_batch(features, schema, names, modalities).serialize()
            description["num_bytes"] = _append(folder / TABLE, description["num_bytes"], message)
            description |= {"rows_done": done + len(names), "problems": description["problems"] + problems[0]}
            write_json(description, folder / DESCRIPTION)
            bar.update(len(names) * views)
    return description


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(no_args_is_help=True)
def main(
    model: Annotated[str, typer.Option(help="Folder or Hub id of the base model.")],
    benchmark: Annotated[str, typer.Option(help="Name of the benchmark, such as miniature.")],
    root: Annotated[Path, typer.Option(help="Folder of the benchmark.")],
    output: Annotated[Path, typer.Option(help="Output folder.")],
    split: Annotated[str, typer.Option(help="Training split.")] = "train",
    column: Column = None,
    holdout: Holdout = None,
    words_of: WordsOf = None,
    views: Annotated[int, typer.Option(help="Views per clip: random frames, audio segments and crops.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 50,
    dtype: Annotated[Literal["float16", "float32"], typer.Option(help="Precision of the files.")] = "float16",
    states: Annotated[
        bool, typer.Option("--states/--no-states", help="Store the towers' tokens, which matching needs.")
    ] = True,
    batch_size: Annotated[int, typer.Option(help="Clips per forward pass.")] = 32,
    limit: Limit = None,
    on_error: Annotated[
        Literal["raise", "missing"], typer.Option(help="Stop at an unreadable stream, or treat it as absent.")
    ] = "raise",
    keep_in_memory: Annotated[
        bool, typer.Option("--keep-in-memory", help="Decode every clip once for all views. For small data sets.")
    ] = False,
    num_workers: Annotated[int, typer.Option(help="Threads that read clips ahead.")] = 2,
    device: Annotated[str | None, typer.Option(help="Device; by default the accelerator if available.")] = None,
) -> None:
    """Precompute the outputs of the frozen vision and audio towers for the training clips; train with --features.

    At the paper's sizes a clip takes 1.8 MB per view in float16, about 250 GB for the 136,674 clips. With --no-states,
    for training without matching, it takes 4.4 kB. Training from files draws new frames, audio segments and crops in
    every epoch; training from features cycles through the stored views, so with --views 1 the frames are always the
    same. If interrupted, run the same command to resume.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with user_errors():
        from gallery.decoding import Limits, sandboxed
        from modeling_scalar import load_model

        network, processor = load_model(model, dtype=torch.float32)
        processor = sandboxed(processor, Limits.parse(limit or []))
        network.to(device_of_name(device))
        own = {"columns": column and columns_of(column), "holdout": holdout, "words_of": words_of}
        description = cache_features(
            output,
            load_benchmark(benchmark, root, split, **own),
            network,
            processor,
            views=views,
            seed=seed,
            dtype=dtype,
            with_states=states,
            batch_size=batch_size,
            on_error=on_error,
            keep_in_memory=keep_in_memory,
            num_workers=num_workers,
        )
        for problem in description["problems"]:
            say(f"counted as absent: {problem}", sys.stdout)
        say(f"Stored {views} views of {description['num_rows']} clips in {output}.", sys.stdout)


__all__ = ["cache_features"]

if __name__ == "__main__":
    app(prog_name=_COMMAND)
