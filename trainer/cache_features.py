"""Compute the outputs of the frozen vision and audio towers for the training clips once:

    python -m trainer.cache_features

A batch of clips is appended to the table as one message of an Arrow stream; then the description beside it says how
many bytes count. What stands behind them, of a batch that was interrupted, is cut off by the call that goes on.
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
from commands.options import Column, Holdout, Limit, WordsOf
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
    """Shapes of the features of one clip, by asking the towers; -1 is the number of tokens of a joint encoder."""
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
    """The columns: what a clip has, and its features, flat, each a list or null."""
    kinds = {name: pa.int32() if name.endswith("_input_ids") else pa.type_for_alias(dtype) for name in shapes}
    lists = [(name, pa.large_list(kind)) for name, kind in kinds.items()]
    return pa.schema([("presence", pa.list_(pa.bool_(), num_modalities)), *lists])


def _row_bytes(schema: pa.Schema, shapes: dict[str, list[int]], processor: ScalarProcessor) -> dict[str, int]:
    """How large the features of one view of a clip are, of a joint encoder at most."""
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
    """Log how much there is to write, and raise a ValueError if it does not fit."""
    given = {name: sum(path is not None for path in rows[f"{name}_path"]) for name in ("video", "audio")}
    total = views * sum(given[FEATURES[name]] * size for name, size in row_bytes.items())
    needed = int(total * (1 - num_done / len(rows)))
    free = shutil.disk_usage(folder).free
    logger.info("at most %.3g GB for %d clips, %.3g GB still to write", total / 1e9, len(rows), needed / 1e9)
    if needed > free:
        raise ValueError(
            f"{needed / 1e9:.3g} GB are needed in {folder}, {free / 1e9:.3g} GB are free. Choose another disk, fewer "
            "views, or --no-states, which suffices for training without matching."
        )


def _read(
    dataset: ClipDataset, views: int, batch_size: int, start: int, num_workers: int
) -> Iterator[tuple[dict[str, torch.Tensor], list[str]]]:
    """Yield the arguments of the model, and problems, for each view of a batch, then for those of the next batch."""
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
    """Presence, and for each feature a list of the arrays of the clips that have the modality."""
    names = (*(name for tower in towers_of(model).values() for name in tower.inputs), "modality_mask")
    inputs = {name: batch[name].to(model.device) for name in names if name in batch}
    features = {}
    if len(inputs) > 1:  # else a batch of subtitles alone
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
    """The sequence of each clip without its padding, and as many soft tokens as that has placeholders."""
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
    """A row for each view of each clip: all views of the first clip, then of the next."""
    masks = np.stack([mask for mask, _ in of_batch], axis=1)  # (clips, views, M)
    varying = (masks != masks[:, :1]).any(axis=(1, 2)).nonzero()[0]
    if len(varying):
        raise ValueError(
            f"The clips {[video_ids[row] for row in varying]} have a modality in some of their views and not in "
            "others: parts of their files cannot be decoded. Repair them."
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
    """Write a message behind the first bytes of a file, onto the disk; return how many bytes count now."""
    with naming(path), open(path, "ab") as file:
        if file.tell() < num_bytes:
            raise ValueError(f"{path} is shorter than its {num_bytes} bytes. Remove the folder and start again.")
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

    View v of a row has the frames, audio segments and crops that epoch v of a training with this seed draws. A call
    that was interrupted resumes at the batch it had reached and writes the same files.

    Args:
        folder (`str`): to write to; created if needed.
        rows (`datasets.Dataset`): the columns of a benchmark.
        model ([`ScalarModel`] or [`ScalarJointModel`]): put into evaluation mode, and run where it is.
        processor ([`ScalarProcessor`]): reads the files, in training mode.
        views (`int`): how often each clip is drawn.
        seed (`int`): of the draws.
        dtype (`str`): of the files, `"float16"` or `"float32"`; the model computes in its own.
        with_states (`bool`): keep the towers' tokens, which matching needs and which take nearly all the space.
        batch_size (`int`): clips per forward pass. Changes speed and memory; results by rounding only.
        on_error (`str`), keep_in_memory (`bool`): as in [`~trainer.data.ClipDataset`].
        num_workers (`int`): threads that read batches ahead.
        progress (`bool`): show a bar with an estimate of the time left.

    Returns:
        `dict`: the content of `features.json`.

    Raises:
        ValueError: the folder holds something else, the disk is too small, a clip cannot be read, or what a clip has
            differs between two of its views.
        FileNotFoundError: a file is not there.
    """
    check_reading(batch_size, on_error, num_workers)
    if views < 1:
        raise ValueError(f"`views` must be at least 1, got {views}.")
    if dtype not in ("float16", "float32"):
        raise ValueError(f"`dtype` must be 'float16' or 'float32', got {dtype!r}.")
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"The features need a folder, {folder} is a file. Choose another.")
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
        raise ValueError(
            f"{folder} holds features that differ from these in {different}. Remove it, or give another folder."
        )
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
    model: Annotated[str, typer.Option(help="Folder or Hub name of the base model.")],
    benchmark: Annotated[str, typer.Option(help="Name of the benchmark, such as miniature.")],
    root: Annotated[Path, typer.Option(help="Folder of the benchmark.")],
    output: Annotated[Path, typer.Option(help="Folder to write to.")],
    split: Annotated[str, typer.Option(help="Split that is trained on.")] = "train",
    column: Column = None,
    holdout: Holdout = None,
    words_of: WordsOf = None,
    views: Annotated[int, typer.Option(help="Draws of frames, segments and crops per clip.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 50,
    dtype: Annotated[Literal["float16", "float32"], typer.Option(help="Precision of the files.")] = "float16",
    states: Annotated[
        bool, typer.Option("--states/--no-states", help="Keep the towers' tokens, which matching needs.")
    ] = True,
    batch_size: Annotated[int, typer.Option(help="Clips per forward pass.")] = 32,
    limit: Limit = None,
    on_error: Annotated[
        Literal["raise", "missing"], typer.Option(help="Stop at a stream that cannot be read, or count it as absent.")
    ] = "raise",
    keep_in_memory: Annotated[
        bool, typer.Option("--keep-in-memory", help="Decode every clip once, for all views. For small data sets.")
    ] = False,
    num_workers: Annotated[int, typer.Option(help="Threads that read clips ahead.")] = 2,
    device: Annotated[str | None, typer.Option(help="Device; by default the accelerator if there is one.")] = None,
) -> None:
    """Compute the outputs of the frozen vision and audio towers for the training clips once; train with --features.

    At the paper's sizes a clip takes 1.8 MB per view in float16, about 250 GB for the 136,674 clips, or 4.4 kB with
    --no-states, which suffices for training without matching. Training from files draws new frames, audio segments and
    crops in every epoch; training from features takes the stored views in turn, with --views 1 the same frames each
    time. If it is interrupted, the same command resumes.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with user_errors():
        from eval.benchmarks import load_benchmark
        from eval.settings import columns_of
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
        say(f"{views} views of {description['num_rows']} clips are in {output}.", sys.stdout)


__all__ = ["cache_features"]

if __name__ == "__main__":
    app(prog_name=_COMMAND)
