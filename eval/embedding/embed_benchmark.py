"""Embed a benchmark into a gallery, over any number of processes; a run that was killed goes on where it was.

See [`~gallery.parallel`]. Finished blocks lie in `<output>.parts` until all are there; the gallery is written then.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from accelerate import PartialState
from transformers import PreTrainedModel, ProcessorMixin

from eval.benchmarks import configure_processor, describe_benchmark, load_split
from eval.benchmarks.rows import group_rows, query_kinds
from eval.embedding.embed_dataset import read_rows
from eval.embedding.embeddings import write_embeddings
from gallery.columns import clip_table, precision_of, query_table
from gallery.decoding import Limits, sandboxed
from gallery.embedding import check_reading, embed_captions, embed_clips
from gallery.files import locked, read_json, write_json
from gallery.gallery import Gallery
from gallery.parallel import Blocks, compute, device_of, forget_failure, start_processes, together
from gallery.provenance import describe, versions
from gallery.storage import DERIVED, MANIFEST, derived_is_whole, read_manifest
from gallery.writing import Writer, check_place
from modeling_scalar import load_model
from modeling_scalar.devices import default_dtype, said_of

logger = logging.getLogger(__name__)

_PLAN, _LOCK = "plan.json", "lock"
# Of configurations, what does not change the function they describe.
_NO_SETTING = ("_name_or_path", "transformers_version")
_PLANNED = {
    "model_sha256": "the weights or settings of the model or its processor",
    "rows_sha256": "the clips, their files, subtitles or captions, or their order",
}


# What is embedded -------------------------------------------------------------------------------------------------


def _model_sha256(model: PreTrainedModel, processor: ProcessorMixin) -> str:
    settings = [model.config.to_dict(), processor.to_dict(), processor.tokenizer.get_vocab()]
    settings[0] = {name: value for name, value in settings[0].items() if name not in _NO_SETTING}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _rows_sha256(clips: list[dict[str, Any]], queries: Sequence[list]) -> str:
    """Of everything in the rows but where the files lie; a file counts by its name and size."""

    def file(path: str | None) -> list | None:
        if path is None:
            return None
        return [os.path.basename(path), os.path.getsize(path) if os.path.isfile(path) else None]

    rows = [[clip["video_id"], file(clip["video_path"]), file(clip["audio_path"]), clip["subtitle"]] for clip in clips]
    return hashlib.sha256(json.dumps([rows, *queries]).encode()).hexdigest()


@dataclass
class _Work:
    """What is to be embedded, by what and how."""

    model: PreTrainedModel
    processor: ProcessorMixin
    clips: list[dict[str, Any]]
    captions: list[str]
    query_ids: list[str]
    pairs: list[list[int]]
    batch_size: int
    on_error: str
    dtype: str

    def plan(self) -> dict[str, Any]:
        """Everything that a block depends on."""
        return {
            "model_sha256": _model_sha256(self.model, self.processor),
            "rows_sha256": _rows_sha256(self.clips, [self.query_ids, self.captions, self.pairs]),
            "batch_size": self.batch_size,
            "on_error": self.on_error,
            "dtype": self.dtype,
        }

    def query_tables(self, ranges: Iterable[range]) -> Iterator[pa.Table]:
        """Yield the rows of the gallery for each range of queries."""
        described = [[] for _ in self.captions]
        for query, clip in self.pairs:
            described[query].append(self.clips[clip]["video_id"])
        for rows in ranges:
            block = slice(rows.start, rows.stop)
            embeds = embed_captions(self.model, self.processor, self.captions[block])
            # In float32: they are few, and so score as the same words do when they are typed.
            yield query_table(self.query_ids[block], self.captions[block], embeds, described[block], "float32")

    def clip_tables(self, ranges: list[range], num_workers: int) -> Iterator[pa.Table]:
        """Yield the rows of the gallery for each range of clips."""
        rows = [self.clips[row] for block in ranges for row in block]
        batches = read_rows(self.processor, rows, self.batch_size, self.on_error, num_workers)
        for _, batch in zip(ranges, batches, strict=True):
            ids, problems = zip(*batch.notes, strict=True)
            embeds, mask, concat_embeds = embed_clips(self.model, batch.features)
            yield clip_table(ids, embeds, mask, concat_embeds, problems=problems, dtype=self.dtype)


# The run ----------------------------------------------------------------------------------------------------------


def _check_plan(path: Path, found: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    if found.get("on_error") == "raise":  # what raised no error is the same where errors are allowed
        found = {**found, "on_error": plan["on_error"]}
    different = [_PLANNED.get(name, name) for name, value in plan.items() if found.get(name) != value]
    if different:
        raise ValueError(
            f"{path} holds embeddings that were made otherwise: different are {'; '.join(different)}. Give the "
            "arguments of that run, another folder, or remove this one."
        )


def _is_finished(output: Path, plan: dict[str, Any]) -> bool:
    """Whether there is a gallery; a ValueError if it was made otherwise, or a part of it is lost."""
    if not (output / MANIFEST).is_file():
        return False
    metadata = Gallery.open(output).metadata
    _check_plan(output, metadata.get("plan") or {}, plan)
    if metadata.get("lost"):
        raise ValueError(
            f"A part of {output} was damaged and is lost: {metadata['lost']}. Remove it, and embed the benchmark "
            "again."
        )
    return True


def _complete(output: Path) -> None:
    """Write what `datasets` reads, if a run was killed between its commit and that."""
    paths = [output / name / file for name in read_manifest(output)[1] for file in DERIVED]
    if not all(map(derived_is_whole, paths)):
        with suppress(ValueError):  # the run that has committed is about to write it
            Writer(output).close()


def _remove(parts: Path) -> None:
    """
    Remove the folder of parts, as far as that is possible: the next run removes what is left.

    Blocks go first and the lock last, so that a run that starts meanwhile never meets blocks without a plan.
    """
    with suppress(OSError):
        for path in sorted(parts.iterdir(), key=lambda path: (path.name in (_PLAN, _LOCK), path.name == _LOCK)):
            path.unlink()
        parts.rmdir()


def _prepare(output: Path, parts: Path, plan: dict[str, Any], held: ExitStack) -> None:
    """Make the folder of parts, or check that what is there belongs to the same run; nobody else may use it then."""
    try:
        _prepare_parts(output, parts, plan, held)
    except FileNotFoundError:
        if not (output / MANIFEST).is_file():
            raise
        _prepare_parts(output, parts, plan, held)  # another run has finished, and removed the parts, meanwhile


def _check_parts(parts: Path) -> None:
    """Raise a ValueError if a folder holds anything but parts; clear away a plan that a killed run half wrote."""
    for path in parts.glob(f".{_PLAN}.[0-9]*"):
        path.unlink(missing_ok=True)
    if {path.name for path in parts.iterdir()} - {_LOCK} and not (parts / _PLAN).is_file():
        raise ValueError(f"{parts} is needed for unfinished embeddings, but holds something else. Remove it.")


def _prepare_parts(output: Path, parts: Path, plan: dict[str, Any], held: ExitStack) -> None:
    if _is_finished(output, plan):
        return
    check_place(output)
    parts.mkdir(parents=True, exist_ok=True)
    if not (parts / _LOCK).exists():  # where it is, another run may begin or end at this moment
        _check_parts(parts)
    message = f"Another run embeds into {parts} at this moment. Wait until it has finished, or end its processes."
    held.enter_context(locked(parts / _LOCK, message))
    if _is_finished(output, plan):  # by a run that held the lock until now
        return
    _check_parts(parts)
    forget_failure(parts)
    plan = plan | {"versions": versions()}
    if (parts / _PLAN).is_file():
        _check_plan(parts, read_json(parts / _PLAN), plan)
    write_json(plan, parts / _PLAN)


def _compute_all(
    state: PartialState, parts: Path, work: _Work, num_workers: int, progress: bool
) -> tuple[Blocks, Blocks]:
    """Compute the blocks that are missing, together with the other processes."""
    clips = Blocks(parts, "clips", len(work.clips), work.batch_size)
    queries = Blocks(parts, "captions", len(work.captions), work.batch_size)
    with together(state):  # all processes look what is missing before one of them writes
        mine = slice(state.process_index, None, state.num_processes)
        my_queries, my_clips = queries.missing()[mine], clips.missing()[mine]
    with together(state, parts):
        work.model.to(device_of(state))
        compute(state, queries, my_queries, work.query_tables(map(queries.rows, my_queries)), progress)
        ranges = [clips.rows(block) for block in my_clips]
        compute(state, clips, my_clips, work.clip_tables(ranges, num_workers), progress)
    return clips, queries


def embed_benchmark(
    output: str | os.PathLike,
    model_path: str | os.PathLike,
    benchmark: str,
    root: str | os.PathLike,
    split: str = "test",
    batch_size: int = 32,
    on_error: str = "raise",
    num_workers: int = 2,
    dtype: str = "float16",
    progress: bool = True,
    limits: Limits | None = None,
    **options: Any,
) -> Gallery:
    """
    Embed a benchmark into a gallery. Called by all processes that `accelerate launch` starts, or by one.

    Started again after it was killed, it computes what is missing: at most one block of each process is lost. Started
    again once it is finished, it does nothing. The folder must be one that all processes see.

    Args:
        output (`str`): the gallery. Until it is finished, there is `<output>.parts` beside it.
        model_path (`str`): folder or Hub name of a model or of an adapter with its processor.
        benchmark (`str`), root (`str`), split (`str`), options: as in [`~eval.benchmarks.load_split`].
        batch_size (`int`): clips, or captions, of a block: what a forward pass computes and a kill can lose.
        on_error (`str`), num_workers (`int`): as in [`embed_dataset`], for each process.
        dtype (`str`): precision in which vectors are kept, `"float16"` or `"float32"`; those of
            captions always in the latter.
        progress (`bool`): the main process shows a bar over all processes with an estimate of the time left.
        limits ([`~gallery.decoding.Limits`], *optional*): what reading a stream may take.

    Returns:
        [`~gallery.gallery.Gallery`]: what was written.

    Raises:
        ValueError: the folder holds something else, or embeddings that were made otherwise; or as in
            [`embed_dataset`].
        FileNotFoundError: a file is not there.
        SystemExit: on all processes but the main one, if any of them failed.
    """
    state = start_processes()
    output = Path(output).resolve()
    parts = output.with_name(f"{output.name}.parts")
    with ExitStack() as held:
        with together(state):
            check_reading(batch_size, on_error, num_workers)
            precision_of(dtype)
            loaded = load_split(benchmark, root, split, **options)
            model, processor = load_model(model_path, default_dtype(model_path, device_of(state)))
            logger.info("%s: %s.", model_path, said_of(model))
            processor = configure_processor(sandboxed(processor, limits), loaded.processing)
            work = _Work(model, processor, *group_rows(loaded.dataset, loaded.task), batch_size, on_error, dtype)
            if state.is_main_process:
                plan = work.plan()
                _prepare(output, parts, plan, held)
        if (output / MANIFEST).is_file():
            if state.is_main_process:
                _complete(output)
                _remove(parts)  # of a run that was killed when it was finished
                logger.info("%s was finished before; there is nothing to do.", output)
            return Gallery.open(output)

        clips, queries = _compute_all(state, parts, work, num_workers, progress)
        with together(state):
            if state.is_main_process:
                metadata = describe(
                    model,
                    model_path,
                    benchmark=benchmark,
                    benchmark_description=describe_benchmark(benchmark, root),
                    split=split,
                    task=loaded.task,
                    processing=dict(loaded.processing),
                    left_out=loaded.left_out,
                    device=str(device_of(state)),
                    num_processes=state.num_processes,
                    on_error=on_error,
                    plan=plan,
                    **query_kinds(loaded.dataset, loaded.task),
                )
                write_embeddings(output, clips.read(), queries.read(), metadata)
                _remove(parts)
        return Gallery.open(output)


__all__ = ["embed_benchmark"]
