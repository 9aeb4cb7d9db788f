"""Fingerprints of saved models: SHA-256 of their weights, and of all files that decide what they embed."""

import hashlib
import json
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download

from .checking import read_object
from .model_identity import base_of

_WEIGHTS = ("model*.safetensors", "adapter_model*.safetensors")
_PICKLED_WEIGHTS = ("pytorch_model*.bin", "adapter_model*.bin")
_CONFIGS = (
    "config.json",
    "processor_config.json",
    "tokenizer.json",
    # of a joint encoder as its publisher has it
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
    """Hash a file, once as long as it does not change: weights are large, and asked for by several names."""
    stat = path.stat()
    return _sha256_of_version(path.resolve(), stat.st_size, stat.st_mtime_ns)


def _parts(folder: Path) -> list[Path]:
    """A saved model's folder, and those below it from which Sentence Transformers loads its modules."""
    path = folder / "modules.json"
    try:
        modules = json.loads(path.read_text("utf-8")) if path.is_file() else []
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}. Restore the file.") from error
    modules = modules if isinstance(modules, list) else []
    names = {str(module.get("path") or "") for module in modules if isinstance(module, dict)}
    below = [folder / name for name in sorted(names) if re.fullmatch(r"\w[\w.-]*", name)]
    return [folder, *(part for part in below if part.is_dir())]


def _glob(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return [path for part in _parts(folder) for pattern in patterns for path in part.glob(pattern)]


def weight_digests(name_or_path: str | os.PathLike) -> dict[str, str]:
    """
    Identify the weights of a saved model or adapter, so that metrics can be traced to them.

    Args:
        name_or_path (`str`): a folder, or a Hub id whose files are in the cache.

    Returns:
        `dict`: SHA-256 by the path in the folder, of every safetensors file that `save_pretrained` writes.

    Raises:
        FileNotFoundError: there are none.
    """
    folder = Path(name_or_path)
    if not folder.is_dir():
        folder = Path(snapshot_download(str(name_or_path), local_files_only=True))
    digests = {path.relative_to(folder).as_posix(): _sha256(path) for path in sorted(_glob(folder, _WEIGHTS))}
    if not digests:
        raise FileNotFoundError(f"There are no weights ({' or '.join(_WEIGHTS)}) in {folder}.")
    return digests


def model_fingerprint(folder: str | os.PathLike) -> str:
    """Hash the files of a saved model that decide its embeddings: configuration, processor, tokenizer and weights.

    For an adapter, the base counts too: by the fingerprint of its folder if it is local, else by its Hub id.

    Raises:
        FileNotFoundError: the folder holds no weights.
        ValueError: it holds an adapter whose base cannot be told.
    """
    folder = Path(folder)
    weights = _glob(folder, _WEIGHTS + _PICKLED_WEIGHTS)
    if not _glob(folder, _WEIGHTS):
        pickles = f", only the pickles {sorted(path.name for path in weights)}, which are not read" if weights else ""
        raise FileNotFoundError(f"{str(folder)!r} holds no model: no file like {', '.join(_WEIGHTS)}{pickles}.")
    configs = (part / name for part in _parts(folder) for name in _CONFIGS)
    files = [*(path for path in configs if path.is_file()), *weights]
    parts: dict[str, Any] = {path.relative_to(folder).as_posix(): _sha256(path) for path in files}
    adapter_config = folder / "adapter_config.json"
    if adapter_config.is_file():
        adapter = read_object(adapter_config)
        base, _ = base_of(str(folder.resolve()), adapter)
        if Path(base).is_dir():
            adapter["base_model_name_or_path"] = model_fingerprint(base)  # the same wherever the folder stands
        parts["adapter_config.json"] = adapter
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


__all__ = ["model_fingerprint", "weight_digests"]
