"""Checks of the files of a saved model before anything is built from them, because a folder may be malicious.

Sizes in a configuration are trusted only if the weights, whose headers are read, have them too.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.utils import cached_file

_LARGEST_JSON = 50_000_000
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
# Fields that count modules built in a loop; widths cost nothing on the "meta" device.
_COUNTS = re.compile(r"layers?$|depths?$|blocks?$|experts?$|stages?$")
_FEW = 1000


class NoModelError(FileNotFoundError, ValueError):
    """There is no model at the given folder or Hub id."""


def place_of(name_or_path: str | os.PathLike) -> str:
    """
    Return the absolute folder of a model, or its id on the Hub.

    Raises:
        NoModelError: If the path is a file, or the folder does not exist and the name is not a valid Hub id.
    """
    try:
        path = Path(name_or_path)
        is_folder, is_there = path.is_dir(), path.exists()
    except (OSError, ValueError) as error:  # too long, or with a NUL
        raise NoModelError(f"{str(name_or_path)[:200]!r} is not a valid model folder: {error}.") from error
    if is_folder:
        return str(path.resolve())
    if is_there:
        raise NoModelError(f"{path} is a file. Give the folder of a model or adapter, or its Hub id.")
    if not _HUB_ID.fullmatch(str(name_or_path)):
        raise NoModelError(f"There is no model folder {str(path)!r}, and this is not a valid Hub id.")
    return str(name_or_path)


def file_of(name: str, file: str, revision: str | None = None, is_local: bool = False) -> Path | None:
    """Return a file of a folder or a Hub repository (downloaded unless `is_local`), or `None` if it does not exist."""
    options = {"local_files_only": is_local, "_raise_exceptions_for_missing_entries": False}
    found = cached_file(name, file, revision=revision, **options)
    return None if found is None else Path(found)


def read_object(path: Path) -> dict[str, Any]:
    """
    Read a JSON object of a model's folder.

    Raises:
        ValueError: If it is not JSON, not an object, or too large.
    """
    if path.stat().st_size > _LARGEST_JSON:
        raise ValueError(f"{path} must be a small JSON file, got {path.stat().st_size:,} bytes. Restore the file.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path} is not JSON: {error}. Restore the file.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(content).__name__}. Restore the file.")
    return content


def read_modules(path: Path) -> list[dict[str, Any]]:
    """
    Read the list of modules of a SentenceTransformer, `modules.json`; empty if the file holds something else.

    Raises:
        ValueError: If it is not JSON.
    """
    try:
        modules = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}. Restore the file.") from error
    are_modules = isinstance(modules, list) and all(isinstance(module, dict) for module in modules)
    return modules if are_modules else []


def weight_files(name: str, stem: str, revision: str | None = None) -> list[Path]:
    """
    Return the safetensors files of a model, or of an adapter for the stem `"adapter_model"`.

    Raises:
        ValueError: If there are none, or the index names other files than safetensors files next to it.
    """
    single = file_of(name, f"{stem}.safetensors", revision)
    if single is not None:
        return [single]
    index = file_of(name, f"{stem}.safetensors.index.json", revision)
    if index is None and not Path(name).is_dir():
        raise ValueError(f"{name} is not a folder, and the Hub has no {stem}.safetensors for that id. Check the name.")
    if index is None:
        raise ValueError(
            f"{name} holds no {stem}.safetensors. Other formats are not read, because pickles such as "
            f"{'pytorch_model' if stem == 'model' else stem}.bin can execute code. Save the model again with "
            "`save_pretrained`."
        )
    shards = read_object(index).get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(shard, str) for shard in shards.values()):
        raise ValueError(f"The `weight_map` of {index} must map tensor names to files. Restore the file.")
    files = []
    for shard in sorted(set(shards.values())):
        if not re.fullmatch(r"[\w.-]+\.safetensors", shard):
            raise ValueError(f"{index} names {shard!r}, which is not a safetensors file next to it. Restore the file.")
        found = file_of(name, shard, revision)
        if found is None:
            raise ValueError(f"{index} names {shard}, but {name} has no such file. Copy the model again.")
        files.append(found)
    return files


def shapes_of(files: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    """
    Return the shape of every tensor by name. Only headers are read.

    Raises:
        ValueError: If a file is not a valid safetensors file, for example because it is truncated.
    """
    shapes = {}
    for path in files:
        try:
            with safe_open(path, "pt") as file:
                shapes |= {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"{path} is not a valid safetensors file ({str(error) or type(error).__name__}). Copy or download it "
                "again."
            ) from error
    return shapes


def check_counts(config: Mapping[str, Any], num_tensors: int, where: str) -> None:
    """
    Check that the numbers of a configuration are finite, and that it has no more layers than there are weights.

    Raises:
        ValueError: If a field has more layers than weights, or is not finite or far too large.
    """
    waiting: list[tuple[str, Any]] = list(config.items())
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{name}.{key}", inner) for key, inner in value.items()]
        elif isinstance(value, list):
            waiting += [(name, inner) for inner in value]
        elif isinstance(value, int | float) and not abs(value) < 2**53:
            raise ValueError(f"`{name}` in {where} must be a finite number below 2**53, got {value!r:.80}.")
        elif isinstance(value, int) and _COUNTS.search(name) and value > max(num_tensors, _FEW):
            raise ValueError(
                f"`{name}` in {where} is {value}, but the model has {num_tensors} weights. Restore the file."
            )


def check_shapes(model: nn.Module, shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    """
    Check that the weights of a file have the shapes of the model's.

    Raises:
        ValueError: If some do not.
    """
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    wrong = [name for name, shape in shapes.items() if expected.get(name, shape) != shape]
    if wrong:
        raise ValueError(
            f"{len(wrong)} weights of {where} do not have the shapes that its config.json requires, such as "
            f"{wrong[0]}: expected {expected[wrong[0]]}, got {shapes[wrong[0]]}. Use the configuration that belongs "
            "to the weights."
        )


def check_finite(model: nn.Module, where: str) -> None:
    """
    Check that no weight is NaN or infinite, in one pass over the memory: half a second for a billion weights.

    Raises:
        ValueError: If one is.
    """
    bounds = {name for name, _ in model.named_buffers()}  # bounds of values, where infinite means none
    for name, value in model.state_dict().items():
        if not value.is_floating_point() or not value.numel():
            continue
        # Minimum and maximum reveal every NaN; `isfinite` would take thirty times as long.
        ends = torch.stack(value.aminmax())
        if not (~ends.isnan() if name in bounds else ends.isfinite()).all():
            raise ValueError(
                f"The weight {name} of {where} has values that are not finite: its training failed, or the file is "
                "damaged. Use an earlier checkpoint, or copy the file again."
            )


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, vocab_size: int, where: str) -> None:
    """
    Check that the vocabulary of a model covers all tokens of its tokenizer.

    Raises:
        ValueError: If it does not.
    """
    largest = max(tokenizer.get_vocab().values())
    if largest >= vocab_size:
        raise ValueError(
            f"The tokenizer in {where} has {largest + 1} tokens, but the model has {vocab_size}. Copy the tokenizer "
            "that the model was saved with."
        )


def part_of(parameter: str) -> str:
    """Return the part of a model to which a parameter, or a weight of an adapter, belongs by name."""
    names = parameter.removeprefix("base_model.model.").split(".")
    return names[1] if names[0] == "backbone" else names[0]  # a joint encoder has its own parts


__all__ = [
    "NoModelError",
    "check_counts",
    "check_finite",
    "check_shapes",
    "check_vocabulary",
    "file_of",
    "part_of",
    "place_of",
    "read_modules",
    "read_object",
    "shapes_of",
    "weight_files",
]
