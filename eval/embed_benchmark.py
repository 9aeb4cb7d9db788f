"""Embed a benchmark into a store, over any number of processes; a run that was killed goes on where it was.

Clips and captions are cut into blocks of one batch, in the order of the benchmark. A finished block is a file in
`<store>.parts`, beside the store; the blocks that are missing are dealt out to the processes. A block is the same
forward pass whoever computes it and whenever. So a run with the same hardware and the same number of threads and
processes fills the store with the same bytes however often it was killed; with another number of processes only the
last bits of the vectors may differ.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from accelerate import PartialState
from accelerate.utils import gather_object, parse_flag_from_env
from datasets import Dataset, concatenate_datasets
from filelock import FileLock, Timeout
from tqdm.auto import tqdm
from transformers import PreTrainedModel, ProcessorMixin

from eval.benchmarks import configure_processor, load_split
from eval.embed import check_reading, embed_captions, embed_clips, group_rows, read_batches
from eval.embeddings import DESCRIPTION, check_place, clip_table, precision_of, query_table, read_json, write_store
from eval.files import write_json
from eval.provenance import describe, versions
from modeling_scalar import load_model

logger = logging.getLogger(__name__)

_PLAN, _FAILED, _LOCK, _PROBLEMS = "plan.json", "failed", "lock", b"problems"
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


def _check_plan(path: Path, found: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    if found.get("on_error") == "raise":  # what raised no error is the same where errors are allowed
        found = {**found, "on_error": plan["on_error"]}
    different = [_PLANNED.get(name, name) for name, value in plan.items() if found.get(name) != value]
    if different:
        raise ValueError(
            f"{path} holds embeddings that were made otherwise: different are {'; '.join(different)}. Give the "
            "arguments of that run, another folder, or remove this one."
        )


@contextmanager
def _alone(parts: Path) -> Iterator[None]:
    """Keep other runs out of the folder of parts. The system lets go of it when the process ends, however it does."""
    try:
        with FileLock(parts / _LOCK, timeout=0):
            yield
    except Timeout as error:
        raise ValueError(
            f"Another run embeds into {parts} at this moment. Wait until it has finished, or end its processes."
        ) from error


def _prepare(output: Path, parts: Path, plan: dict[str, Any], held: ExitStack) -> None:
    """Make the folder of parts, or check that what is there belongs to the same run; nobody else may use it then."""
    if (output / DESCRIPTION).is_file():
        _check_plan(output, read_json(output / DESCRIPTION).get("metadata", {}).get("plan", {}), plan)
        return
    check_place(output)
    parts.mkdir(parents=True, exist_ok=True)
    if not (parts / _PLAN).is_file() and {path.name for path in parts.iterdir()} - {_LOCK}:
        raise ValueError(f"{parts} is needed for unfinished embeddings, but holds something else. Remove it.")
    held.enter_context(_alone(parts))
    (parts / _FAILED).unlink(missing_ok=True)
    plan = plan | {"versions": versions()}
    if (parts / _PLAN).is_file():
        _check_plan(parts, read_json(parts / _PLAN), plan)
    write_json(plan, parts / _PLAN)


# Blocks -----------------------------------------------------------------------------------------------------------


def _start() -> PartialState:
    # Without an accelerator, accelerate makes several processes know each other only if the CPU is asked for.
    cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    # The default of ten minutes would end a run in which a process waits longer than that for another's last block.
    return PartialState(cpu, timeout=timedelta(days=7))


class _Blocks:
    """The blocks of clips, or of queries, in a folder of parts."""

    def __init__(self, parts: Path, kind: str, num_rows: int, size: int):
        self.parts, self.kind, self.num_rows, self.size = parts, kind, num_rows, size

    def _name(self, block: int) -> str:
        return f"{self.kind}-{block:06d}.arrow"

    def __len__(self) -> int:
        return -(-self.num_rows // self.size)

    def rows(self, block: int) -> range:
        return range(block * self.size, min((block + 1) * self.size, self.num_rows))

    def missing(self) -> list[int]:
        there = set(os.listdir(self.parts))
        return [block for block in range(len(self)) if self._name(block) not in there]

    def num_done(self) -> int:
        return self.num_rows - sum(len(self.rows(block)) for block in self.missing())

    def write(self, block: int, table: pa.Table, problems: Sequence[str]) -> None:
        table = table.replace_schema_metadata({_PROBLEMS: json.dumps(problems)})
        path = self.parts / self._name(block)
        with open(path.with_suffix(".new"), "wb") as file:
            with pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path.with_suffix(".new"), path)

    def read(self) -> tuple[Dataset, list[str]]:
        """The rows of all blocks, memory-mapped, and what could not be read of them."""
        files, problems = [self.parts / self._name(block) for block in range(len(self))], []
        for file in files:
            with pa.ipc.open_stream(file) as stream:
                problems += json.loads(stream.schema.metadata[_PROBLEMS])
        return concatenate_datasets([Dataset.from_file(str(file)) for file in files]), problems


@contextmanager
def _together(state: PartialState, failed: Path | None = None) -> Iterator[None]:
    """Wait for all processes at the end; if one fails, the main process raises why and the others end.

    `failed`: a file to make at once, from which the others see that their work is in vain.
    """
    caught = None
    try:
        yield
    except (OSError, ValueError) as error:
        caught = error
        if failed is not None:
            failed.touch()
    messages = [message for message in gather_object([caught and str(caught)]) if message is not None]
    if not messages:
        return
    if not state.is_main_process:
        raise SystemExit(1)  # the launcher asks for the status; one message is enough
    raise caught or ValueError("\n".join(dict.fromkeys(messages)))


def _compute(
    state: PartialState,
    blocks: _Blocks,
    mine: list[int],
    tables: Iterable[tuple[pa.Table, list[str]]],
    progress: bool,
) -> None:
    """Write the blocks of this process, until another fails. The bar counts those of all processes."""
    show = progress and state.is_main_process
    with tqdm(
        total=blocks.num_rows, initial=blocks.num_done(), desc=blocks.kind, unit=" rows", disable=not show
    ) as bar:
        for block, (table, problems) in zip(mine, tables, strict=True):
            if (blocks.parts / _FAILED).exists():
                return
            blocks.write(block, table, problems)
            if show:
                bar.update(blocks.num_done() - bar.n)


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
        """Everything that the bytes of a block depend on."""
        return {
            "model_sha256": _model_sha256(self.model, self.processor),
            "rows_sha256": _rows_sha256(self.clips, [self.query_ids, self.captions, self.pairs]),
            "batch_size": self.batch_size,
            "on_error": self.on_error,
            "dtype": self.dtype,
        }

    def query_tables(self, ranges: Iterable[range]) -> Iterator[tuple[pa.Table, list[str]]]:
        """Yield the rows of the store for each range of queries; nothing of them can be unreadable."""
        described = [[] for _ in self.captions]
        for query, clip in self.pairs:
            described[query].append(self.clips[clip]["video_id"])
        for rows in ranges:
            block = slice(rows.start, rows.stop)
            embeds = embed_captions(self.model, self.processor, self.captions[block]).to(precision_of(self.dtype))
            yield query_table(self.query_ids[block], self.captions[block], embeds, described[block]), []

    def clip_tables(self, ranges: list[range], num_workers: int) -> Iterator[tuple[pa.Table, list[str]]]:
        """Yield the rows of the store for each range of clips, and what could not be read of them."""
        rows = [self.clips[row] for block in ranges for row in block]
        batches = read_batches(self.processor, rows, self.batch_size, self.on_error, num_workers)
        for block, (batch, problems) in zip(ranges, batches, strict=True):
            embeds, mask, concat_embeds = embed_clips(self.model, batch)
            if concat_embeds is not None:
                concat_embeds = concat_embeds.to(precision_of(self.dtype))
            ids = [self.clips[row]["video_id"] for row in block]
            yield clip_table(ids, embeds.to(precision_of(self.dtype)), mask, concat_embeds), problems


def embed_benchmark(
    output: str | os.PathLike,
    model_path: str | os.PathLike,
    benchmark: str,
    root: str | os.PathLike,
    split: str = "test",
    batch_size: int = 32,
    on_error: str = "raise",
    num_workers: int = 2,
    dtype: str = "float32",
    progress: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """
    Embed a benchmark into a store. Called by all processes that `accelerate launch` starts, or by one.

    Started again after it was killed, it computes what is missing: at most one block of each process is lost. Started
    again once it is finished, it does nothing. The folder must be one that all processes see.

    Args:
        output (`str`): the store, see [`~eval.embeddings`]. Until it is finished, there is `<output>.parts` instead.
        model_path (`str`): folder or Hub name of a model or of an adapter with its processor.
        benchmark (`str`), root (`str`), split (`str`), options: as in [`~eval.benchmarks.load_split`].
        batch_size (`int`): clips, or captions, of a block: what a forward pass computes and a kill can lose.
        on_error (`str`), num_workers (`int`): as in [`~eval.embed.embed_dataset`], for each process.
        dtype (`str`): precision of the store, `"float32"` or `"float16"`; computed is in the model's.
        progress (`bool`): the main process shows a bar over all processes with an estimate of the time left.

    Returns:
        `dict`: the content of the store's `embeddings.json`.

    Raises:
        ValueError: the folder holds something else, or embeddings that were made otherwise; or as in
            [`~eval.embed.embed_dataset`].
        FileNotFoundError: a file is not there.
        SystemExit: on all processes but the main one, if any of them failed.
    """
    state = _start()
    output = Path(output).resolve()
    parts = output.with_name(f"{output.name}.parts")
    with ExitStack() as held:
        with _together(state):
            check_reading(batch_size, on_error, num_workers)
            precision_of(dtype)
            loaded = load_split(benchmark, root, split, **options)
            model, processor = load_model(model_path)
            processor = configure_processor(processor, loaded.processing)
            work = _Work(model, processor, *group_rows(loaded.dataset, loaded.task), batch_size, on_error, dtype)
            if state.is_main_process:
                plan = work.plan()
                _prepare(output, parts, plan, held)
        if (output / DESCRIPTION).is_file():
            shutil.rmtree(parts, ignore_errors=True)  # of a run that was killed when it was finished
            if state.is_main_process:
                logger.info("%s was finished before; there is nothing to do.", output)
            return read_json(output / DESCRIPTION)

        clips = _Blocks(parts, "clips", len(work.clips), batch_size)
        queries = _Blocks(parts, "captions", len(work.captions), batch_size)
        with _together(state):  # all processes look what is missing before one of them writes
            mine = slice(state.process_index, None, state.num_processes)
            my_queries, my_clips = queries.missing()[mine], clips.missing()[mine]
        with _together(state, parts / _FAILED):
            model.to(state.device)
            _compute(state, queries, my_queries, work.query_tables(map(queries.rows, my_queries)), progress)
            ranges = [clips.rows(block) for block in my_clips]
            _compute(state, clips, my_clips, work.clip_tables(ranges, num_workers), progress)
        with _together(state):
            if state.is_main_process:
                made = {"device": str(state.device), "num_processes": state.num_processes, "on_error": on_error}
                of_split = {"task": loaded.task, "processing": dict(loaded.processing), "left_out": loaded.left_out}
                metadata = describe(model, model_path, benchmark, root, split, **of_split, **made, plan=plan)
                rows, problems = clips.read()
                write_store(output, rows, queries.read()[0], problems, metadata)
                shutil.rmtree(parts)
        return read_json(output / DESCRIPTION)


__all__ = ["embed_benchmark"]
