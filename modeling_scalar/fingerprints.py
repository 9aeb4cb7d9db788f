"""Fingerprints of saved models: SHA-256 of their weights, and of all files that determine their embeddings."""

import hashlib
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from .checking import read_modules

ADAPTER_CONFIG = "adapter_config.json"

_WEIGHTS = ("model*.safetensors", "adapter_model*.safetensors")
_PICKLED_WEIGHTS = ("pytorch_model*.bin", "adapter_model*.bin")
_CONFIGS = (
    "config.json",
    "processor_config.json",
    "tokenizer.json",
    # files of a joint encoder as published
    "1_Pooling/config.json",
    "chat_template.jinja",
    "config_sentence_transformers.json",
    "modules.json",
    "preprocessor_config.json",
    "sentence_bert_config.json",
    "video_preprocessor_config.json",
)


@lru_cache(maxsize=256)
def _sha256_of_version(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sha256(path: Path) -> str:
    """Hash a file, cached as long as it does not change: weights are large, and several names may refer to them."""
    stat = path.stat()
    return _sha256_of_version(path.resolve(), stat.st_size, stat.st_mtime_ns)


def _parts(folder: Path) -> list[Path]:
    """A saved model's folder and the subfolders from which Sentence Transformers loads its modules."""
    path = folder / "modules.json"
    modules = read_modules(path) if path.is_file() else []
    names = {str(module.get("path") or "") for module in modules}
    below = [folder / name for name in sorted(names) if re.fullmatch(r"\w[\w.-]*", name)]
    return [folder, *(part for part in below if part.is_dir())]


def _glob(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return [path for part in _parts(folder) for pattern in patterns for path in part.glob(pattern)]


def weight_digests(folder: Path) -> dict[str, str]:
    """
    Return the SHA-256 of every safetensors file written by `save_pretrained`, by its path in the folder.

    Raises:
        FileNotFoundError: If there are none.
    """
    digests = {path.relative_to(folder).as_posix(): _sha256(path) for path in sorted(_glob(folder, _WEIGHTS))}
    if not digests:
        raise FileNotFoundError(f"There are no weights ({' or '.join(_WEIGHTS)}) in {folder}.")
    return digests


def model_fingerprint(folder: Path, adapter: Mapping[str, Any] | None = None) -> str:
    """
    Hash the files of a model that determine its embeddings: configuration, processor, tokenizer and weights.

    Args:
        folder (`Path`): The folder of the model or adapter.
        adapter (`dict`, *optional*): The relevant part of an adapter's configuration, hashed instead of that file.

    Raises:
        FileNotFoundError: If the folder holds no weights.
    """
    weights = _glob(folder, _WEIGHTS + _PICKLED_WEIGHTS)
    if not _glob(folder, _WEIGHTS):
        pickles = f", only the pickles {sorted(path.name for path in weights)}, which are not read" if weights else ""
        raise FileNotFoundError(f"{str(folder)!r} holds no model: no file like {', '.join(_WEIGHTS)}{pickles}.")
    configs = (part / name for part in _parts(folder) for name in _CONFIGS)
    files = [*(path for path in configs if path.is_file()), *weights]
    parts: dict[str, Any] = {path.relative_to(folder).as_posix(): _sha256(path) for path in files}
    if adapter is not None:
        parts[ADAPTER_CONFIG] = adapter
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


__all__ = ["ADAPTER_CONFIG", "model_fingerprint", "weight_digests"]
