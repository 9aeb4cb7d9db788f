"""Look at the files of a saved model before anything is built from them: whoever sends a folder may mean harm.

Sizes that a configuration asks for are believed only if the weights, of which the headers are read, have them too.
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
# Fields that count what a loop builds, one module after the other; the fields of widths cost nothing on "meta".
_COUNTS = re.compile(r"layers?$|depths?$|blocks?$|experts?$|stages?$")
_FEW = 1000


class NoModelError(FileNotFoundError, ValueError):
    """Where a model was expected there is something else, or nothing."""


def place_of(name_or_path: str | os.PathLike) -> str:
    """
    Return the absolute folder of a model, or its id on the Hub.

    Raises:
        NoModelError: there is a file in the folder's place, or no such folder, and it cannot be an id either.
    """
    try:
        path = Path(name_or_path)
        is_folder, is_there = path.is_dir(), path.exists()
    except (OSError, ValueError) as error:  # too long, or with a NUL
        raise NoModelError(f"{str(name_or_path)[:200]!r} cannot be the folder of a model: {error}.") from error
    if is_folder:
        return str(path.resolve())
    if is_there:
        raise NoModelError(f"{path} is a file; the folder of a model or adapter, or its id on the Hub, was expected.")
    if not _HUB_ID.fullmatch(str(name_or_path)):
        raise NoModelError(f"There is no model folder {str(path)!r}, and it cannot be an id on the Hub either.")
    return str(name_or_path)


def file_of(name: str, file: str, revision: str | None = None, is_local: bool = False) -> Path | None:
    """Return a file of a folder or a repository of the Hub (downloaded unless `is_local`); `None` if it has none."""
    options = {"local_files_only": is_local, "_raise_exceptions_for_missing_entries": False}
    found = cached_file(name, file, revision=revision, **options)
    return None if found is None else Path(found)


def read_object(path: Path) -> dict[str, Any]:
    """
    Read a JSON object of a model's folder.

    Raises:
        ValueError: it is not JSON, or something else than an object, or too large for what it is.
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
    Read the list of modules of a SentenceTransformer, `modules.json`; empty where it is no such list.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        modules = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}. Restore the file.") from error
    are_modules = isinstance(modules, list) and all(isinstance(module, dict) for module in modules)
    return modules if are_modules else []


def weight_files(name: str, stem: str, revision: str | None = None) -> list[Path]:
    """
    Return the safetensors files of a model, or with the stem `"adapter_model"` of an adapter.

    Raises:
        ValueError: there are none, or the index names something else than files beside it.
    """
    single = file_of(name, f"{stem}.safetensors", revision)
    if single is not None:
        return [single]
    index = file_of(name, f"{stem}.safetensors.index.json", revision)
    if index is None and not Path(name).is_dir():
        raise ValueError(f"{name} is no folder, and the Hub gives no {stem}.safetensors of that id. Check the name.")
    if index is None:
        raise ValueError(
            f"{name} holds no {stem}.safetensors. Weights in other formats are not read, for pickles such as "
            f"{'pytorch_model' if stem == 'model' else stem}.bin can execute code: save the model again with "
            "`save_pretrained`."
        )
    shards = read_object(index).get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(shard, str) for shard in shards.values()):
        raise ValueError(f"{index} must map names of tensors to files in its `weight_map`. Restore the file.")
    files = []
    for shard in sorted(set(shards.values())):
        if not re.fullmatch(r"[\w.-]+\.safetensors", shard):
            raise ValueError(f"{index} names {shard!r}, which is not a safetensors file beside it. Restore the file.")
        found = file_of(name, shard, revision)
        if found is None:
            raise ValueError(f"{index} names {shard}, but there is no such file in {name}. Copy the model again.")
        files.append(found)
    return files


def shapes_of(files: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    """
    Return the shape of every tensor by its name. Only headers are read.

    Raises:
        ValueError: a file is not a safetensors file: cut short, say, or with a header that contradicts it.
    """
    shapes = {}
    for path in files:
        try:
            with safe_open(path, "pt") as file:
                shapes |= {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"{path} is not a whole safetensors file ({str(error) or type(error).__name__}). Copy or download it "
                "again."
            ) from error
    return shapes


def check_counts(config: Mapping[str, Any], num_tensors: int, where: str) -> None:
    """
    Check that the numbers of a configuration are finite, and that it counts no more layers than there are weights.

    Raises:
        ValueError: a field does not, or is a number beyond all reason.
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
    Check that the weights of a file have the shapes of a model's.

    Raises:
        ValueError: some have not.
    """
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    wrong = [name for name, shape in shapes.items() if expected.get(name, shape) != shape]
    if wrong:
        raise ValueError(
            f"{len(wrong)} weights of {where} do not have the shapes that its config.json asks for, such as "
            f"{wrong[0]}: expected {expected[wrong[0]]}, got {shapes[wrong[0]]}. Give the configuration that belongs "
            "to the weights."
        )


def check_finite(model: nn.Module, where: str) -> None:
    """
    Check that no weight is NaN or infinite: one pass over the memory, half a second for a billion.

    Raises:
        ValueError: one is.
    """
    bounds = {name for name, _ in model.named_buffers()}  # of values, which may be infinite: none
    for name, value in model.state_dict().items():
        if not value.is_floating_point() or not value.numel():
            continue
        # Both ends tell of every NaN, and `isfinite` would take thirty times as long.
        ends = torch.stack(value.aminmax())
        if not (~ends.isnan() if name in bounds else ends.isfinite()).all():
            raise ValueError(
                f"The weight {name} of {where} holds numbers that are not finite: the training that made it failed, "
                "or the file is damaged. Take an earlier checkpoint, or copy the file again."
            )


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, vocab_size: int, where: str) -> None:
    """
    Check that a model knows all tokens of its tokenizer.

    Raises:
        ValueError: it does not.
    """
    largest = max(tokenizer.get_vocab().values())
    if largest >= vocab_size:
        raise ValueError(
            f"The tokenizer in {where} has {largest + 1} tokens, but the model knows {vocab_size}: it belongs to "
            "another model. Copy the tokenizer that the model was saved with."
        )


def part_of(parameter: str) -> str:
    """Return the part of a model that a parameter, or a weight of an adapter, belongs to, by its name."""
    names = parameter.removeprefix("base_model.model.").split(".")
    return names[1] if names[0] == "backbone" else names[0]  # a joint encoder has parts of its own


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
