"""Distributed training: how the rows of a batch are spread over ranks, and gathering them with gradients."""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor_autograd


def world_size() -> int:
    """Return the number of processes, 1 without a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return 1


def rank() -> int:
    """Return the rank of this process, 0 without a process group."""
    if world_size() > 1:
        return dist.get_rank()
    return 0


@dataclass
class RowLayout:
    """
    How the rows of one batch are spread over processes, in the order of ranks; the numbers of rows may differ.

    Args:
        counts (`tuple[int, ...]`): The number of rows of each process.
        rank (`int`): The rank of this process.

    Attributes:
        total (`int`): The number of rows of all processes.
        offset (`int`): The index of this process's first row in the global batch.
        local (`slice`): This process's rows in the global batch.
        mean (`float`): The mean number of rows per process. A sum divided by it, averaged over processes, is the mean
            over all rows.
    """

    counts: tuple[int, ...]
    rank: int

    def __post_init__(self):
        self.total = sum(self.counts)
        self.offset = sum(self.counts[: self.rank])
        self.local = slice(self.offset, self.offset + self.counts[self.rank])
        self.mean = self.total / len(self.counts)

    @classmethod
    def of(cls, num_rows: int, device: torch.device, may_differ: bool = True) -> "RowLayout":
        """Describe a batch of which this process has `num_rows`; gather the others' numbers if they may differ."""
        if world_size() == 1 or not may_differ:
            return cls((num_rows,) * world_size(), rank())
        counts = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(world_size())]
        dist.all_gather(counts, torch.tensor([num_rows], device=device))
        return cls(tuple(torch.cat(counts).tolist()), rank())

    def gather(self, tensor: torch.Tensor, ragged: bool = False) -> torch.Tensor:
        """
        Concatenate the rows of all processes, in the order of ranks.

        Gradients of every process's loss flow back to the process a row came from. With the gradient averaging of
        data-parallel training, a loss over local rows and gathered columns has exactly the gradient of a single
        process with the whole batch; it needs no factor for the number of processes.

        Args:
            tensor (`torch.Tensor` of shape `(rows, ...)`): This process's rows.
            ragged (`bool`): Whether the second axis (tokens) may differ; it is padded with zeros to the longest.

        Returns:
            `torch.Tensor` of shape `(total, ...)`.
        """
        if len(self.counts) == 1:
            return tensor
        # Collectives need equal shapes: pad the tokens, then the rows.
        if ragged:
            longest = torch.tensor(tensor.shape[1], device=tensor.device)
            dist.all_reduce(longest, op=dist.ReduceOp.MAX)
            missing = int(longest) - tensor.shape[1]
            tensor = nn.functional.pad(tensor, (0, 0) * (tensor.ndim - 2) + (0, missing))
        most = max(self.counts)
        if len(tensor) < most:
            tensor = torch.cat([tensor, tensor.new_zeros(most - len(tensor), *tensor.shape[1:])])
        gathered = _gather_equal(tensor)
        if min(self.counts) == most:
            return gathered
        # Remove the padding of the rows.
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
    """Average a number over all processes."""
    if world_size() == 1:
        return number
    total = torch.tensor(float(number), device=device)
    dist.all_reduce(total)
    return total.item() / world_size()


def on_any_process(flag: bool, device: torch.device) -> bool:
    """Return whether the flag is set on any process, the same result on all."""
    return mean_over_processes(float(flag), device) > 0


def wait_for_all() -> None:
    """Wait until every process has reached this point."""
    if world_size() > 1:
        dist.barrier()


def check_launched() -> None:
    """
    Check that the launcher has started the requested number of processes.

    On a machine without GPUs, or with `--cpu`, `accelerate launch --num_processes 2` silently starts a single process
    unless given `--multi_gpu`. It still sets the address of the first process.

    Raises:
        ValueError: If this is the only one of several requested processes.
    """
    by_accelerate = "ACCELERATE_DYNAMO_BACKEND" in os.environ and "MASTER_PORT" in os.environ
    if by_accelerate and "WORLD_SIZE" not in os.environ and world_size() == 1:
        raise ValueError(
            "`accelerate launch` was told to start several processes but started one, so the batch would be too "
            "small. On CPUs launch with `--multi_gpu --num_processes N` and train with `--use_cpu true`, or use "
            "`--num_processes 1`. (If you want one process, unset MASTER_ADDR and MASTER_PORT.)"
        )


def average_gradients(parameters: list[torch.nn.Parameter]) -> None:
    """
    Average the gradients of all processes in place, without a data-parallel wrapper.

    A missing gradient counts as zero; a parameter without a gradient on every process keeps none.
    """
    if world_size() == 1 or not parameters:
        return
    # Processes must agree on which gradients to reduce: those that any of them has.
    has_gradient = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
    has_gradient = has_gradient.to(parameters[0].device)
    dist.all_reduce(has_gradient, op=dist.ReduceOp.MAX)
    for parameter, reached in zip(parameters, has_gradient.tolist(), strict=True):
        if reached:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size()


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
