"""Compute the outputs of the frozen vision and audio towers for the training clips once:

    python -m trainer.cache_features

The folder holds one row per clip that has the modality, all its views together, in `.npy` files that grow as they are
written: how many clips really have a sound track is known only once all are read. They are written, not memory-mapped:
on a full disk a write fails with an error, a mapped page ends the process.
"""

import copy
import logging
import math
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Literal

import datasets
import numpy as np
import torch
import typer
from tqdm.auto import tqdm

from commands.errors import say, user_errors
from commands.options import Limit
from gallery.embedding import in_background
from gallery.files import naming, read_json, write_json
from gallery.provenance import versions
from modeling_scalar import ScalarJointConfig, ScalarProcessor
from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.devices import device_of_name
from modeling_scalar.retrieval_scalar import ScalarRetrievalModel

from .data import ClipDataset, ScalarDataCollator
from .features import DESCRIPTION, FEATURES, LENGTHS, RAGGED, VERSION, checksums
from .towers import towers_of

logger = logging.getLogger(__name__)

_COMMAND = "python -m trainer.cache_features"
_PROGRESS = "progress.json"
_MOST_WORKERS = 1024
_TOKENS_PER_SECOND = 25  # of sound, in a joint encoder


class _GrowingArray:
    """A `.npy` file to which rows are appended; after each [`flush`] its header counts them."""

    def __init__(self, path: Path, row_shape: tuple[int, ...], dtype: str, num_rows: int):
        self.row_shape, self.dtype, self.num_rows = row_shape, np.dtype(dtype), num_rows
        self._path = path
        self._file = open(path, "r+b" if num_rows else "w+b")
        self._write_header()
        end = self._file.tell() + num_rows * self.dtype.itemsize * int(np.prod(row_shape))
        if self._file.seek(0, os.SEEK_END) < end:
            raise ValueError(f"{path} is shorter than its {num_rows} rows. Remove the folder and start again.")
        self._file.truncate(end)  # rows of an interrupted batch
        self._file.seek(end)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.num_rows, *self.row_shape)

    def _write_header(self) -> None:
        # NumPy leaves room for the first axis to grow, so that the header never changes its length.
        self._file.seek(0)
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, rows: np.ndarray) -> None:
        with naming(self._path):
            self._file.write(np.ascontiguousarray(rows, self.dtype))
        self.num_rows += len(rows)

    def flush(self) -> None:
        with naming(self._path):
            self._write_header()
            self._file.seek(0, os.SEEK_END)
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        with suppress(OSError):  # what was to be kept has been flushed
            self._file.close()


@torch.no_grad()
def _row_shapes(
    model: ScalarRetrievalModel, processor: ScalarProcessor, with_states: bool
) -> dict[str, tuple[int, ...]]:
    """Shapes of the features of one clip, by asking the towers; of a joint encoder those of one token."""
    if isinstance(model.config, ScalarJointConfig):
        names = [name for name, place in RAGGED.items() if MODALITIES[place] in model.config.modalities]
        hidden = model.config.backbone_config.text_config.hidden_size
        return {name: () if name.endswith("_input_ids") else (hidden,) for name in names}
    size, extractor = processor.image_processor.image_size, processor.feature_extractor
    features = model.get_tower_features(
        torch.zeros(1, processor.num_train_frames, 3, size, size, device=model.device),
        torch.zeros(1, extractor.num_segments, extractor.segment_length, extractor.num_mel_bins, device=model.device),
        with_states=with_states,
    )
    return {name: tuple(features[name].shape[1:]) for name in FEATURES if name in features}


def _row_bytes(
    shapes: dict[str, tuple[int, ...]], dtypes: dict[str, str], views: int, processor: ScalarProcessor
) -> dict[str, int]:
    """How large the features of one clip are, of a joint encoder at most."""
    sizes = {name: views * np.dtype(dtypes[name]).itemsize * int(np.prod(shape)) for name, shape in shapes.items()}
    for name in sizes.keys() & RAGGED.keys():
        if name.startswith("video"):
            most = processor.num_train_frames * (processor.image_processor.max_soft_tokens + 2)
        else:
            most = math.ceil(processor.max_audio_seconds * _TOKENS_PER_SECOND) + 2
        sizes[name] *= most
    return sizes


def _check_disk(folder: Path, rows: datasets.Dataset, row_bytes: dict[str, int], num_done: int) -> None:
    """Log how much there is to write, and raise a ValueError if it does not fit."""
    given = [sum(path is not None for path in rows[f"{name}_path"]) for name in MODALITIES[:2]]
    total = sum(given[FEATURES[name]] * size for name, size in row_bytes.items())
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
) -> Iterator[tuple[int, dict[str, torch.Tensor], list[str]]]:
    """Yield (view, arguments of the model, problems) of all views of a batch, then of the next batch."""
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
            return view, collate(examples), problems

    num_rows = len(dataset)
    batches = [range(first, min(first + batch_size, num_rows)) for first in range(start, num_rows, batch_size)]
    return in_background(prepare, ((view, batch) for batch in batches for view in range(views)), num_workers)


@torch.no_grad()
def _tower_features(model: ScalarRetrievalModel, batch: dict[str, torch.Tensor], with_states: bool, dtype: str):
    """Presence, and the features of the present rows: an array each, of a joint encoder a list of one for each row."""
    names = (*(name for tower in towers_of(model).values() for name in tower.inputs), "modality_mask")
    inputs = {name: batch[name].to(model.device) for name in names if name in batch}
    features = {}
    if len(inputs) > 1:  # else a batch of subtitles alone
        features = model.get_tower_features(**inputs, with_states=with_states)
    arrays = {}
    for name, value in features.items():
        present = batch["modality_mask"][:, FEATURES[name]]
        value = value[present.to(value.device)].to(getattr(torch, dtype))
        if not value.isfinite().all():
            raise ValueError(f"Some `{name}` are not finite in {dtype}. Use float32, or check the model's weights.")
        arrays[name] = value.cpu().numpy()
        if name in RAGGED:
            arrays |= _rows_of_tokens(model, MODALITIES[FEATURES[name]], arrays[name], batch, present)
    return batch["modality_mask"].numpy(), arrays


def _rows_of_tokens(
    model: ScalarRetrievalModel, name: str, tokens: np.ndarray, batch: dict[str, torch.Tensor], present: torch.Tensor
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
    if views < 1 or batch_size < 1 or num_workers < 1:
        raise ValueError(
            f"`views`, `batch_size` and `num_workers` must be at least 1, got {views}, {batch_size}, {num_workers}."
        )
    if not 0 <= seed < 2**32:
        raise ValueError(f"`seed` must be from 0 to {2**32 - 1}, got {seed}.")
    if num_workers > _MOST_WORKERS:
        raise ValueError(f"`num_workers` must be at most {_MOST_WORKERS}, got {num_workers}.")
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
    done = _read_if_same(folder / DESCRIPTION, identity)
    if done is not None:
        return done
    state = _read_if_same(folder / _PROGRESS, identity) or {"rows_done": 0, "problems": []}
    start, problems = state.get("rows_done"), state.get("problems")
    if not isinstance(start, int) or not 0 <= start <= len(rows) or not isinstance(problems, list):
        raise ValueError(f"{folder / _PROGRESS} is damaged. Remove the folder and start again.")

    model.eval()
    shapes = _row_shapes(model, processor, with_states)
    dtypes = {name: "int32" if name.endswith("_input_ids") else dtype for name in shapes}
    _check_disk(folder, rows, _row_bytes(shapes, dtypes, views, processor), start)
    presence = _GrowingArray(folder / "presence.npy", (len(MODALITIES),), "bool", start)
    counts = np.load(folder / "presence.npy", mmap_mode="r", allow_pickle=False).sum(axis=0) if start else (0, 0, 0)
    arrays = {}
    for name, shape in shapes.items():
        num_clips = int(counts[FEATURES[name]])
        if name not in RAGGED:
            arrays[name] = _GrowingArray(folder / f"{name}.npy", (views, *shape), dtype, num_clips)
            continue
        path = folder / f"{name}{LENGTHS}.npy"
        num_tokens = int(np.load(path, mmap_mode="r", allow_pickle=False)[:num_clips].sum()) if num_clips else 0
        arrays[name + LENGTHS] = _GrowingArray(path, (views,), "int32", num_clips)
        arrays[name] = _GrowingArray(folder / f"{name}.npy", shape, dtypes[name], num_tokens)
    dataset = ClipDataset(rows, processor, seed, on_error, keep_in_memory)
    try:
        with tqdm(
            total=len(rows) * views, initial=start * views, desc="features", unit="clip", disable=not progress
        ) as bar:
            of_batch = []
            for view, batch, found in _read(dataset, views, batch_size, start, num_workers):
                of_batch.append(_tower_features(model, batch, with_states, dtype))
                if view == 0:
                    problems += found
                bar.update(len(batch["modality_mask"]))
                if view < views - 1:
                    continue
                _append(presence, arrays, of_batch, rows)
                of_batch = []
                write_json(identity | {"rows_done": presence.num_rows, "problems": problems}, folder / _PROGRESS)
    finally:
        for array in (presence, *arrays.values()):
            array.close()
    description = identity | {
        "arrays": {
            name: {"shape": list(array.shape), "dtype": array.dtype.name}
            for name, array in (("presence", presence), *arrays.items())
        },
        "problems": problems,
        "versions": versions(),
    }
    write_json(description, folder / DESCRIPTION)
    (folder / _PROGRESS).unlink()
    return description


def _read_if_same(path: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    content = read_json(path)
    different = sorted(name for name, value in identity.items() if content.get(name) != value)
    if different:
        raise ValueError(
            f"{path.parent} holds features that differ from these in {different}. Remove it, or give another folder."
        )
    return content


def _append(presence: _GrowingArray, arrays: dict[str, _GrowingArray], of_batch: list, rows: datasets.Dataset) -> None:
    """Append all views of a batch, and make sure that they are on the disk."""
    masks = [mask for mask, _ in of_batch]
    varying = np.any([mask != masks[0] for mask in masks], axis=(0, 2)).nonzero()[0]
    if len(varying):
        names = [rows[presence.num_rows + int(row)]["video_id"] for row in varying]
        raise ValueError(
            f"The clips {names} have a modality in some of their views and not in others: parts of their files "
            "cannot be decoded. Repair them."
        )
    presence.append(masks[0])
    for name, array in arrays.items():
        views = [features[name] for _, features in of_batch if name in features]
        if name in RAGGED and views:
            tokens = [view for clip in zip(*views, strict=True) for view in clip]
            array.append(np.concatenate(tokens))
            lengths = np.array([len(view) for view in tokens]).reshape(-1, len(views))
            arrays[name + LENGTHS].append(lengths)  # (clips, views)
        elif views:
            array.append(np.stack(views, axis=1))  # (clips, views, ...)
    for array in (*arrays.values(), presence):
        array.flush()


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(no_args_is_help=True)
def main(
    model: Annotated[str, typer.Option(help="Folder or Hub name of the base model.")],
    benchmark: Annotated[str, typer.Option(help="Name of the benchmark, such as miniature.")],
    root: Annotated[Path, typer.Option(help="Folder of the benchmark.")],
    output: Annotated[Path, typer.Option(help="Folder to write to.")],
    split: Annotated[str, typer.Option(help="Split that is trained on.")] = "train",
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
        from gallery.decoding import Limits, sandboxed
        from modeling_scalar import load_model

        network, processor = load_model(model, dtype=torch.float32)
        processor = sandboxed(processor, Limits.parse(limit or []))
        network.to(device_of_name(device))
        description = cache_features(
            output,
            load_benchmark(benchmark, root, split),
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
