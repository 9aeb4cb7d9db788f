"""Devices and precisions of models: by name, by default, and as text for messages."""

import os

import torch

from .model_identity import ModelIdentity, identify


def default_device() -> torch.device:
    """Return the default device of commands: the accelerator if available, otherwise the CPU."""
    # Without the check, older versions return the accelerator that torch was built for, even if it is missing.
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")


def device_of_name(name: str | None) -> torch.device:
    """
    Return the device with a name; `None` means [`default_device`].

    Raises:
        ValueError: If this machine has no such device; the message lists those it has.
    """
    if name is None:
        return default_device()
    there = ["cpu"]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator().type
        there += [kind, *(f"{kind}:{index}" for index in range(torch.accelerator.device_count()))]
    if name not in there:
        raise ValueError(f"The device must be one of this machine, {' or '.join(there)}, got {name!r}.")
    return torch.device(name)


_PRECISIONS = ("bfloat16", "float16", "float32")


def dtype_of_name(name: str | None) -> torch.dtype | None:
    """
    Return the precision with a name; `None` means [`default_dtype`].

    Raises:
        ValueError: If models do not run in it.
    """
    if name is not None and name not in _PRECISIONS:
        raise ValueError(f"The precision of a model must be one of {', '.join(_PRECISIONS)}, got {name!r}.")
    return None if name is None else getattr(torch, name)


def default_dtype(model: str | os.PathLike | ModelIdentity, device: torch.device) -> torch.dtype | None:
    """
    Return the default precision of a model on a device.

    Args:
        model (`str`): The folder or Hub id of a model or an adapter.
        device (`torch.device`): The device.

    Returns:
        `torch.dtype`: For a joint encoder bfloat16 on an accelerator that supports it, which halves the memory, and
        float32 on a CPU, which is slow in lower precision. `None`, that of the checkpoint, for any other model.
    """
    if not identify(model).is_joint:
        return None
    has_it = device.type not in ("cpu", "mps") and (device.type != "cuda" or torch.cuda.is_bf16_supported())
    return torch.bfloat16 if has_it else torch.float32


def said_of(model: torch.nn.Module) -> str:
    """Describe the number of parameters, precision, memory of the weights and device of a model."""
    weights = list(model.parameters())
    kinds = sorted({str(weight.dtype).removeprefix("torch.") for weight in weights})
    place = next((weight.device for weight in weights), torch.device("cpu"))
    name = f" ({torch.cuda.get_device_name(place)})" if place.type == "cuda" else ""
    size = sum(weight.numel() * weight.element_size() for weight in weights) / 1e9
    count = sum(weight.numel() for weight in weights)
    return f"{count:,} parameters in {' and '.join(kinds)}, {size:.2g} GB, on {place}{name}"


__all__ = ["default_device", "default_dtype", "device_of_name", "dtype_of_name", "said_of"]
