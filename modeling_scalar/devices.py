"""Devices and precisions of models: by name, by default, and in a sentence."""

import os

import torch

from .model_identity import ModelIdentity, identify


def default_device() -> torch.device:
    """Return where a command runs a model by default: on the accelerator if there is one, else on the CPU."""
    # Without the question, older versions name the accelerator that torch was built for, there or not.
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")


def device_of_name(name: str | None) -> torch.device:
    """
    Return the device of a name, `None` standing for [`default_device`].

    Raises:
        ValueError: it is none of the devices of this machine, which the message names.
    """
    if name is None:
        return default_device()
    there = ["cpu"]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator().type
        there += [kind, *(f"{kind}:{index}" for index in range(torch.accelerator.device_count()))]
    if name not in there:
        raise ValueError(f"The device must be one that is here, {' or '.join(there)}; got {name!r}.")
    return torch.device(name)


_PRECISIONS = ("bfloat16", "float16", "float32")


def dtype_of_name(name: str | None) -> torch.dtype | None:
    """
    Return the precision of a name, `None` standing for [`default_dtype`].

    Raises:
        ValueError: models do not run in it.
    """
    if name is not None and name not in _PRECISIONS:
        raise ValueError(f"The precision of a model must be one of {', '.join(_PRECISIONS)}; got {name!r}.")
    return None if name is None else getattr(torch, name)


def default_dtype(model: str | os.PathLike | ModelIdentity, device: torch.device) -> torch.dtype | None:
    """
    Return the precision in which a model runs on a device unless another is asked for.

    Args:
        model (`str`): a folder or Hub id, of a model or an adapter.
        device (`torch.device`): where it is to run.

    Returns:
        `torch.dtype`: of a joint encoder bfloat16 on an accelerator that has it, half the memory, and float32 on a
        CPU, which computes slowly in less. `None`, that of the checkpoint, for any other model.
    """
    if not identify(model).is_joint:
        return None
    has_it = device.type not in ("cpu", "mps") and (device.type != "cuda" or torch.cuda.is_bf16_supported())
    return torch.bfloat16 if has_it else torch.float32


def said_of(model: torch.nn.Module) -> str:
    """Say how large a model is, its precision, the memory of its weights and where it runs."""
    weights = list(model.parameters())
    kinds = sorted({str(weight.dtype).removeprefix("torch.") for weight in weights})
    place = next((weight.device for weight in weights), torch.device("cpu"))
    name = f" ({torch.cuda.get_device_name(place)})" if place.type == "cuda" else ""
    size = sum(weight.numel() * weight.element_size() for weight in weights) / 1e9
    count = sum(weight.numel() for weight in weights)
    return f"{count:,} parameters in {' and '.join(kinds)}, {size:.2g} GB, on {place}{name}"


__all__ = ["default_device", "default_dtype", "device_of_name", "dtype_of_name", "said_of"]
