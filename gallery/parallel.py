"""Rows computed in blocks by any number of processes; a run that was killed goes on where it was.

Rows are cut into blocks in their order. A finished block is a file in a folder of parts; the blocks that are missing
are dealt out to the processes. A block is the same forward pass whoever computes it and whenever. So a run with the
same hardware and the same number of threads gives the same rows however often it was killed and however many processes
there were; on other hardware the last bits of vectors may differ, for sums are added in another order.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import torch
from accelerate import PartialState
from accelerate.utils import gather_object, parse_flag_from_env
from tqdm.auto import tqdm

from gallery.files import write_whole
from gallery.storage import map_arrow

_FAILED = "failed"


def start_processes() -> PartialState:
    """Make the processes that `accelerate launch` started, or this one alone, know each other."""
    # Without an accelerator, accelerate makes several processes know each other only if the CPU is asked for.
    cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    # The default of ten minutes would end a run in which a process waits longer than that for another's last block.
    return PartialState(cpu, timeout=timedelta(days=7))


def start_launched() -> PartialState | None:
    """The same, of several processes alone; `None` if this one was started by itself."""
    return start_processes() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else None


def num_local_processes() -> int:
    """How many processes `accelerate launch` started on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def device_of(state: PartialState) -> torch.device:
    """
    Return where a process computes.

    On a CPU that is "cpu" however many processes there are. `accelerate` numbers it, and `model.to("cpu:0")` copies
    weights that lie in a mapped file to other addresses, at which some machines add products in another order.
    """
    return torch.device("cpu") if state.device.type == "cpu" else state.device


@contextmanager
def together(state: PartialState, parts: Path | None = None) -> Iterator[None]:
    """
    Wait for all processes at the end; if one fails, the main process raises why and the others end.

    Args:
        state (`PartialState`): of [`start_processes`].
        parts (`Path`, *optional*): where [`compute`] sees at once that another process has failed.
    """
    caught = None
    try:
        yield
    except (OSError, ValueError) as error:
        caught = error
        if parts is not None:
            with suppress(OSError):  # a disk may be full; the others then find out when they wait
                (parts / _FAILED).touch()
    messages = [message for message in gather_object([caught and str(caught)]) if message is not None]
    if not messages:
        return
    if not state.is_main_process:
        raise SystemExit(1)  # the launcher asks for the status; one message is enough
    raise caught or ValueError("\n".join(dict.fromkeys(messages)))


@dataclass(frozen=True)
class Blocks:
    """
    Rows of one kind, and the files of their finished blocks.

    Args:
        parts (`Path`): the folder.
        kind (`str`): what the rows are; names the files and the progress bar.
        num_rows (`int`), size (`int`): of all blocks, and of one.
    """

    parts: Path
    kind: str
    num_rows: int
    size: int

    def _path(self, block: int) -> Path:
        return self.parts / f"{self.kind}-{block:06d}.arrow"

    def __len__(self) -> int:
        return -(-self.num_rows // self.size)

    def rows(self, block: int) -> range:
        """Return the rows of a block."""
        return range(block * self.size, min((block + 1) * self.size, self.num_rows))

    def missing(self) -> list[int]:
        """Return the blocks that are not finished."""
        there = set(os.listdir(self.parts))
        return [block for block in range(len(self)) if self._path(block).name not in there]

    def num_done(self) -> int:
        """Return how many rows are finished."""
        return self.num_rows - sum(len(self.rows(block)) for block in self.missing())

    def write(self, block: int, table: pa.Table) -> None:
        """Keep a finished block: whole, or not at all."""

        def write(file: BinaryIO) -> None:
            with pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table)

        write_whole(self._path(block), write)

    def read(self) -> pa.Table:
        """Return the rows of all blocks, memory-mapped; a ValueError names a block that is damaged."""
        tables = []
        for block in range(len(self)):
            table, expected = map_arrow(self._path(block)), len(self.rows(block))
            if len(table) != expected:
                raise ValueError(
                    f"{self._path(block)} must have {expected} rows, got {len(table)}. Remove it: the same command "
                    "makes it again."
                )
            tables.append(table)
        return pa.concat_tables(tables)


def compute(
    state: PartialState, blocks: Blocks, mine: Sequence[int], tables: Iterable[pa.Table], progress: bool
) -> None:
    """
    Write the blocks of this process, until another process fails.

    Args:
        state (`PartialState`): of [`start_processes`].
        blocks ([`Blocks`]), mine (`list[int]`): all blocks, and those of this process.
        tables: the rows of each of these, computed when they are asked for.
        progress (`bool`): the main process shows a bar over all processes with an estimate of the time left.
    """
    show = progress and state.is_main_process
    with tqdm(
        total=blocks.num_rows, initial=blocks.num_done(), desc=blocks.kind, unit=" rows", disable=not show
    ) as bar:
        for block, table in zip(mine, tables, strict=True):
            if (blocks.parts / _FAILED).exists():
                return
            blocks.write(block, table)
            if show:
                bar.update(blocks.num_done() - bar.n)


def forget_failure(parts: Path) -> None:
    """Let a new run begin where an earlier one failed."""
    (parts / _FAILED).unlink(missing_ok=True)


__all__ = [
    "Blocks",
    "compute",
    "device_of",
    "forget_failure",
    "num_local_processes",
    "start_launched",
    "start_processes",
    "together",
]
