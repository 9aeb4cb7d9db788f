"""What embeddings were made with: model, code and versions."""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub  # which loads its client only when it is used
from huggingface_hub import constants

from .files import read_json, without_infinity

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from scalar_retrieval.modeling_scalar.model_identity import ModelIdentity

_PACKAGES = ("transformers", "peft", "accelerate", "datasets", "numpy", "av")


@dataclass(frozen=True)
class Download:
    """What the Hub would transfer for a model: number of bytes, number of files, and where to."""

    num_bytes: int
    num_files: int
    num_parameters: int | None
    host: str
    folder: Path


def pending_download(model: "ModelIdentity") -> Download | None:
    """Ask the Hub what it would transfer for a model; `None` for a folder, if nothing is missing, or if it fails."""
    from scalar_retrieval.modeling_scalar.model_identity import NOT_NEEDED, hub_answers

    if model.is_folder or not hub_answers():
        return None
    try:
        # A dry run compares the cache with the Hub.
        files = huggingface_hub.snapshot_download(
            model.name, revision=model.revision, ignore_patterns=NOT_NEEDED, dry_run=True
        )
        missing = [file for file in files if file.will_download]
        if not missing:
            return None
        weights = huggingface_hub.HfApi().model_info(model.name, revision=model.revision).safetensors
    except (OSError, ValueError):  # fetching it reports what is wrong
        return None
    # The Hub counts the parameters of models in the format of safetensors.
    num_parameters = None if weights is None else weights.total
    return Download(
        num_bytes=sum(file.file_size or 0 for file in missing),
        num_files=len(missing),
        num_parameters=num_parameters,
        host=constants.ENDPOINT,
        folder=Path(constants.HF_HUB_CACHE),
    )


def _git(*arguments: str) -> str | None:
    """Output of git run in this file's folder, or None if git fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *arguments], capture_output=True, text=True, check=True
        )
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def source_state() -> dict[str, str | bool] | None:
    """
    Return the git `commit` of this code and whether tracked files differ from it (`dirty`).

    `None` if git does not track this file: an installed package may be inside the repository of something else.
    """
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    # Files that git does not track, such as results, do not count.
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no")
    if commit is None or changes is None:
        return None
    return {"commit": commit, "dirty": bool(changes)}


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of packages that may affect results; `None` if not installed."""
    import torch  # not at the top: it loads for a second

    installed = {"python": platform.python_version(), "torch": torch.__version__}  # includes the CUDA version
    for package in _PACKAGES:
        installed[package] = None
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


def provenance_of(model: "PreTrainedModel", model_path: str | os.PathLike, **settings: Any) -> dict[str, Any]:
    """
    Return what embeddings were made with, for the `metadata` of a gallery.

    Args:
        model ([`~scalar_retrieval.modeling_scalar.ScalarModel`]): the model; determines the score options.
        model_path (`str`): where it was loaded from, a folder or a Hub id. The SHA-256 of its weights, the fingerprint
            of its files and a recipe next to it are included.
        settings: further entries, such as `device`, `task` or `left_out`.

    Returns:
        `dict`: can be written as JSON. An infinite `query_temperature` is the string `"inf"`, which `float` can read.
    """
    import torch  # not at the top: as above

    from scalar_retrieval.modeling_scalar.model_identity import identify

    # The model's files: hashes tell whether another copy is the same model.
    identity = identify(model_path)
    recipe = Path(model_path) / "recipe.json"
    training = read_json(recipe) if recipe.is_file() else None
    # How the model scores, in the form of JSON.
    score_options = model.score_options()
    for name, value in score_options.items():
        if isinstance(value, torch.Tensor):
            score_options[name] = value.item()
    provenance = {
        "model": str(model_path),
        "fingerprint": identity.fingerprint,
        "weights": identity.weights,
        "training": training,
        "query_temperature": model.config.query_temperature,
        "modalities": list(model.config.modalities),
        "modality_slices": model.config.modality_slices,
        "score_options": score_options,
        # What may change results of the same model.
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "source": source_state(),
    }
    return without_infinity(provenance) | settings


def gallery_sha256(clip_ids: Iterable[str], presence: Iterable[Sequence[int]]) -> str:
    """
    Identify the content of a gallery, whatever model embedded it.

    Args:
        clip_ids (`list[str]`), presence (for each clip, a `list` of M zeros and ones).

    Returns:
        `str`: the SHA-256 of the UTF-8 text of the JSON list of `[id, presence]` pairs, in their order, without spaces
        and with non-ASCII characters escaped.
    """
    # The text must not change: hashes of other versions are compared with it.
    pairs = list(zip(clip_ids, presence, strict=True))
    return hashlib.sha256(json.dumps(pairs, separators=(",", ":")).encode()).hexdigest()


def gallery_manifest(clip_ids: Sequence[str], modality_mask: "torch.Tensor") -> dict[str, Any]:
    """
    Describe a gallery so that metrics on two can be compared: galleries shrink as links die.

    Args:
        clip_ids (`list[str]`), modality_mask (`torch.BoolTensor` of shape `(clips, M)`): in gallery order.

    Returns:
        `dict`: `num_clips`; `ids` and `presence` (M zeros and ones per clip), and `sha256`, see [`gallery_sha256`].
    """
    presence = modality_mask.int().tolist()
    ids = list(clip_ids)
    return {"num_clips": len(ids), "ids": ids, "presence": presence, "sha256": gallery_sha256(ids, presence)}


__all__ = [
    "Download",
    "gallery_manifest",
    "gallery_sha256",
    "pending_download",
    "provenance_of",
    "source_state",
    "versions",
]
