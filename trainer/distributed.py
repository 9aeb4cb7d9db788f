"""The only file that knows of ranks: how the rows of a batch lie over processes, and gathering them with gradients."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor_autograd


def world_size() -> int:
    """Return the number of processes, 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process, 0 without a process group."""
    return dist.get_rank() if world_size() > 1 else 0


@dataclass(frozen=True)
class RowLayout:
    """
    How the rows of one batch lie over processes, in the order of ranks; their numbers may differ.

    Args:
        counts (`tuple[int, ...]`): rows of each process.
        rank (`int`): of this process.
    """

    counts: tuple[int, ...]
    rank: int

    @classmethod
    def of(cls, num_rows: int, device: torch.device) -> "RowLayout":
        """Ask every process for its number of rows."""
        if world_size() == 1:
            return cls((num_rows,), 0)
        counts = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(world_size())]
        dist.all_gather(counts, torch.tensor([num_rows], device=device))
        return cls(tuple(torch.cat(counts).tolist()), rank())

    @property
    def total(self) -> int:
        """Rows of all processes."""
        return sum(self.counts)

    @property
    def offset(self) -> int:
        """Index of this process's first row among all."""
        return sum(self.counts[: self.rank])

    @property
    def mean(self) -> float:
        """Mean rows per process: what a process divides its sum by, so that averaging processes averages rows."""
        return self.total / len(self.counts)

    @property
    def local(self) -> slice:
        """This process's rows among all."""
        return slice(self.offset, self.offset + self.counts[self.rank])

    def gather(self, tensor: torch.Tensor, ragged: bool = False) -> torch.Tensor:
        """
        Concatenate the rows of all processes, in the order of ranks.

        Gradients of every process's loss flow back to the process a row came from. A loss over local rows and gathered
        columns then has, after the averaging of data-parallel training, exactly the gradient of one process that holds
        the whole batch; no factor of the number of processes is needed.

        Args:
            tensor (`torch.Tensor` of shape `(rows, ...)`): this process's rows.
            ragged (`bool`): the second axis, of tokens, may differ; it is padded with zeros to the longest.

        Returns:
            `torch.Tensor` of shape `(total, ...)`.
        """
        if len(self.counts) == 1:
            return tensor
        if ragged and (missing := _longest(tensor.shape[1], tensor.device) - tensor.shape[1]):
            padding = tensor.new_zeros(len(tensor), missing, *tensor.shape[2:])
            tensor = torch.cat([tensor, padding], dim=1)
        most = max(self.counts)
        if len(tensor) < most:  # collectives want equal shapes; the filling is dropped again below
            tensor = torch.cat([tensor, tensor.new_zeros(most - len(tensor), *tensor.shape[1:])])
        gathered = _gather_equal(tensor)
        if min(self.counts) == most:
            return gathered
        parts = gathered.split(most)
        return torch.cat([part[:count] for part, count in zip(parts, self.counts, strict=True)])


def _gather_equal(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point():  # masks and token ids have no gradient; bool has no collective on every backend
        gathered = [torch.empty_like(tensor, dtype=torch.long) for _ in range(world_size())]
        dist.all_gather(gathered, tensor.long().contiguous())
        return torch.cat(gathered).to(tensor.dtype)
    if torch.is_grad_enabled() and not tensor.requires_grad:
        # A process without a gradient of its own must still take part in the collective of the backward pass.
        tensor = tensor.detach().requires_grad_()
    return all_gather_tensor_autograd(tensor.contiguous(), gather_dim=0, group=dist.group.WORLD)


def mean_over_processes(number: float, device: torch.device) -> float:
    """Average a plain number over all processes."""
    if world_size() == 1:
        return number
    total = torch.tensor(float(number), device=device)
    dist.all_reduce(total)
    return total.item() / world_size()


def union_over_processes(places: Iterable[int], size: int, device: torch.device) -> list[int]:
    """Return the places below `size` that any process names, ascending, the same on all."""
    named = torch.zeros(size, dtype=torch.uint8, device=device)
    named[list(places)] = 1
    if world_size() > 1:
        dist.all_reduce(named, op=dist.ReduceOp.MAX)
    return named.nonzero().flatten().tolist()


def on_any_process(flag: bool, device: torch.device) -> bool:
    """Tell whether the flag is set on any process, the same answer on all."""
    return mean_over_processes(float(flag), device) > 0


def wait_for_all() -> None:
    """Wait until every process has come here."""
    if world_size() > 1:
        dist.barrier()


def check_launched() -> None:
    """
    Check that the launcher has started as many processes as it was asked for.

    `accelerate launch --num_processes 2` starts one without a word unless it is told `--multi_gpu`, on a machine
    without GPUs or with `--cpu`. It then still says where the first of several processes listens.

    Raises:
        ValueError: this is the one of several.
    """
    by_accelerate = "ACCELERATE_DYNAMO_BACKEND" in os.environ and "MASTER_PORT" in os.environ
    if by_accelerate and "WORLD_SIZE" not in os.environ and world_size() == 1:
        raise ValueError(
            "`accelerate launch` was asked for several processes and has started one, so the batch would be smaller "
            "than asked for. On CPUs launch with `--multi_gpu --num_processes N` and train with `--use_cpu true`, or "
            "ask for `--num_processes 1`. (If one process is meant, unset MASTER_ADDR and MASTER_PORT.)"
        )


def average_gradients(parameters: list[torch.nn.Parameter]) -> None:
    """
    Average the gradients of all processes in place, where no data-parallel wrapper does it.

    A parameter that got none on this process counts as zero; one that got none anywhere stays without.
    """
    if world_size() == 1 or not parameters:
        return
    has_gradient = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32)
    has_gradient = has_gradient.to(parameters[0].device)
    dist.all_reduce(has_gradient, op=dist.ReduceOp.MAX)
    for parameter, reached in zip(parameters, has_gradient.tolist(), strict=True):
        if reached:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size()


def _longest(length: int, device: torch.device) -> int:
    longest = torch.tensor(length, device=device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return int(longest)


__all__ = [
    "RowLayout",
    "average_gradients",
    "check_launched",
    "mean_over_processes",
    "on_any_process",
    "rank",
    "wait_for_all",
    "world_size",
]
