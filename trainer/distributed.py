"""The only file that knows of ranks: gathering rows of all processes with their gradients."""

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor_autograd


def world_size() -> int:
    """Return the number of processes, 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process, 0 without a process group."""
    return dist.get_rank() if world_size() > 1 else 0


def gather_with_grad(tensor: torch.Tensor, ragged: bool = False) -> torch.Tensor:
    """
    Concatenate the rows of all processes, in the order of ranks.

    Gradients of every process's loss flow back to the process a row came from. A loss over local rows and gathered
    columns then has, after the averaging of data-parallel training, exactly the gradient of one process that holds the
    whole batch; no factor of the number of processes is needed.

    Args:
        tensor (`torch.Tensor` of shape `(rows, ...)`): the same shape on every process.
        ragged (`bool`): the second axis, of tokens, may differ; it is padded with zeros to the longest.

    Returns:
        `torch.Tensor` of shape `(world_size * rows, ...)`.
    """
    if world_size() == 1:
        return tensor
    if ragged and (missing := _longest(tensor.shape[1], tensor.device) - tensor.shape[1]):
        padding = tensor.new_zeros(len(tensor), missing, *tensor.shape[2:])
        tensor = torch.cat([tensor, padding], dim=1)
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


def on_any_process(flag: bool, device: torch.device) -> bool:
    """Tell whether the flag is set on any process, the same answer on all."""
    return mean_over_processes(float(flag), device) > 0


def _longest(length: int, device: torch.device) -> int:
    longest = torch.tensor(length, device=device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return int(longest)


__all__ = ["gather_with_grad", "mean_over_processes", "on_any_process", "rank", "world_size"]
