"""Load a saved model or adapter with the processor saved beside it, and plugins. For programs; remote code does not
need it."""

import hashlib
import json
import os
import sys
from collections.abc import Iterable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoProcessor
from transformers.utils import CONFIG_NAME, cached_file, find_adapter_config_file

from .configuration_scalar import ScalarConfig
from .modeling_scalar import ScalarModel
from .processing_scalar import ScalarProcessor

# Modules that a run may add to its base, by its configuration; nothing else may be missing in a base's weights.
# Concatenation heads are not among them: no loss trains them, so new ones would stay random.
_ADDED_MODULES = ("hyperbolic", "logit_scale")
_WEIGHTS = ("model*.safetensors", "adapter_model*.safetensors")
_PICKLED_WEIGHTS = ("pytorch_model*.bin", "adapter_model*.bin")
_CONFIGS = ("config.json", "processor_config.json", "tokenizer.json")


def _load_config(name: str, overrides: dict[str, Any], revision: str = "main") -> ScalarConfig:
    config = AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=False)
    if not isinstance(config, ScalarConfig):
        raise ValueError(f"{name} must hold a ScalarModel, got a model with a {type(config).__name__}.")
    unknown = sorted(set(overrides) - set(config.to_dict()))
    if unknown:
        raise ValueError(f"ScalarConfig has no fields {unknown}; check their spelling.")
    # Built again, not set on the object: only construction checks the fields against each other.
    return ScalarConfig.from_dict(config.to_dict() | overrides) if overrides else config


def _load_weights(name: str, config: ScalarConfig, added: tuple[str, ...], options: dict) -> ScalarModel:
    model, info = ScalarModel.from_pretrained(name, config=config, output_loading_info=True, **options)
    missing = sorted(key for key in info["missing_keys"] if key.split(".")[0] not in added)
    if missing:
        raise ValueError(f"{name} lacks {len(missing)} weights of the model, such as {missing[:3]}.")
    return model


@lru_cache(maxsize=256)
def _sha256_of_version(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sha256(path: Path) -> str:
    """Hash a file, once as long as it does not change: weights are large, and asked for by several names."""
    stat = path.stat()
    return _sha256_of_version(path.resolve(), stat.st_size, stat.st_mtime_ns)


def _glob(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return [path for pattern in patterns for path in folder.glob(pattern)]


def default_device() -> torch.device:
    """Return where a command runs a model by default: on the accelerator if there is one, else on the CPU."""
    # Without the question, older versions name the accelerator that torch was built for, there or not.
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")


def weight_digests(name_or_path: str | os.PathLike) -> dict[str, str]:
    """
    Identify the weights of a saved model or adapter, so that metrics can be traced to them.

    Args:
        name_or_path (`str`): a folder, or a Hub id whose files are in the cache.

    Returns:
        `dict`: SHA-256 by file name, of every safetensors file that `save_pretrained` writes.

    Raises:
        FileNotFoundError: there are none.
    """
    folder = Path(name_or_path)
    if not folder.is_dir():
        folder = Path(snapshot_download(str(name_or_path), allow_patterns=list(_WEIGHTS), local_files_only=True))
    digests = {path.name: _sha256(path) for path in sorted(_glob(folder, _WEIGHTS))}
    if not digests:
        raise FileNotFoundError(f"There are no weights ({' or '.join(_WEIGHTS)}) in {folder}.")
    return digests


def model_fingerprint(folder: str | os.PathLike) -> str:
    """Hash the files of a saved model that decide its embeddings: configuration, processor, tokenizer and weights.

    For an adapter, the base counts too: by the fingerprint of its folder if it is local, else by its Hub id.

    Raises:
        FileNotFoundError: the folder holds no weights.
    """
    folder = Path(folder)
    weights = _glob(folder, _WEIGHTS + _PICKLED_WEIGHTS)
    if not weights:
        raise FileNotFoundError(f"{str(folder)!r} holds no model: no file like {', '.join(_WEIGHTS)}.")
    configs = [folder / name for name in _CONFIGS if (folder / name).is_file()]
    parts: dict[str, Any] = {path.name: _sha256(path) for path in (*configs, *weights)}
    adapter_config = folder / "adapter_config.json"
    if adapter_config.is_file():
        adapter = json.loads(adapter_config.read_text(encoding="utf-8"))
        base = adapter.get("base_model_name_or_path")
        if base and Path(base).is_dir():
            adapter["base_model_name_or_path"] = model_fingerprint(base)  # the same wherever the folder stands
        parts["adapter_config.json"] = adapter
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def load_model(
    name_or_path: str | os.PathLike, dtype: torch.dtype | None = None, **config_overrides: Any
) -> tuple[ScalarModel, ScalarProcessor]:
    """
    Load a model, or an adapter on its base, and its processor; no code of the folder runs.

    An adapter is trained with a configuration that may differ from its base's, in the aggregation say. Where it was
    saved with that configuration (a `config.json` beside `adapter_config.json`), the model has it; else the base's.

    Args:
        name_or_path (`str`): a folder or Hub id.
        dtype (`torch.dtype`, *optional*): of the weights; by default that of the checkpoint.
        **config_overrides: fields of [`ScalarConfig`] to change, `aggregation="gram"` say. What they add to the model
            (a learned temperature, the learned scalars of `"hypergram"`) is newly initialised.

    Returns:
        The model, in evaluation mode, and the processor.

    Raises:
        ValueError: nothing can be loaded from there, it is not a SCALAR model with its processor, weights are missing
            (those of concatenation heads asked for by `has_concat_heads=True` too), or a field is unknown.
    """
    # An adapter remembers where its base was loaded from; an absolute folder holds in any working directory.
    name = str(Path(name_or_path).resolve()) if Path(name_or_path).is_dir() else str(name_or_path)
    options = {} if dtype is None else {"dtype": dtype}
    try:
        processor = AutoProcessor.from_pretrained(name, trust_remote_code=False)
        if not isinstance(processor, ScalarProcessor):
            raise ValueError(
                f"{name_or_path} must hold a ScalarProcessor, got {type(processor).__name__}. Save the model's "
                "processor beside it with `processor.save_pretrained`."
            )
        adapter_config = find_adapter_config_file(name)
        if adapter_config is None:
            config = _load_config(name, config_overrides)
            model = _load_weights(name, config, _ADDED_MODULES if config_overrides else (), options)
        else:
            adapter = json.loads(Path(adapter_config).read_text(encoding="utf-8"))
            base, revision = adapter["base_model_name_or_path"], adapter.get("revision") or "main"
            has_config = cached_file(name, CONFIG_NAME, _raise_exceptions_for_missing_entries=False) is not None
            source = {"name": name} if has_config else {"name": base, "revision": revision}
            config = _load_config(overrides=config_overrides, **source)
            options["revision"] = revision
            model = _load_weights(base, config, _ADDED_MODULES, options)
            model.load_adapter(name)
    except (OSError, StrictDataclassError) as error:
        raise ValueError(f"No model with its processor could be loaded from {name_or_path}: {error}") from error
    return model.eval(), processor


def load_plugins(names: Iterable[str]) -> None:
    """
    Import modules that register scores of one's own with [`~aggregation_scalar.register_method`].

    Args:
        names (iterable of `str`): importable names; a module in the working folder is found by its own.

    Raises:
        ValueError: there is no such module, or it fails.
    """
    for name in names:
        if os.getcwd() not in sys.path:  # as `python -m` has it, and a script in another folder has not
            sys.path.append(os.getcwd())
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            raise ValueError(f"The plugin {name!r} cannot be imported from here: {error}") from error
        except Exception as error:  # whatever the code of another raises
            raise ValueError(f"The plugin {name!r} fails when imported: {type(error).__name__}: {error}") from error


__all__ = ["default_device", "load_model", "load_plugins", "model_fingerprint", "weight_digests"]
