"""Models and data sets on the Hub: their ids, and the weights of a model."""

from collections.abc import Mapping

from huggingface_hub import HfApi, ModelInfo
from huggingface_hub.utils import HFValidationError, validate_repo_id

from .errors import explained


def check_place(name: str, repo_id: str | None) -> None:
    """Raise a ValueError that names the argument unless it is an id on the Hub."""
    try:
        validate_repo_id(repo_id or "")
    except HFValidationError as error:
        raise ValueError(f"`{name}` must be an id on the Hub, such as 'user/name', got {repo_id!r}.") from error


def find_model(
    api: HfApi, repo_id: str, revision: str | None, weights: Mapping[str, str] | None
) -> tuple[ModelInfo, list[str]]:
    """
    Look up a model: the Hub's information about it, and the names of weight files, given with their SHA-256, that are
    different or missing there.

    Raises:
        PublishError: it does not exist, or this token has no access to it.
    """
    with explained(api, "model", repo_id, revision):
        info = api.model_info(repo_id, revision=revision, files_metadata=True)
    there = weights_of(info)
    return info, sorted(name for name, digest in (weights or {}).items() if there.get(name) != digest)


def weights_of(info: ModelInfo) -> dict[str, str]:
    """Return the SHA-256 of each large file of a model."""
    return {file.rfilename: file.lfs.sha256 for file in info.siblings if file.lfs is not None}


__all__ = ["check_place", "find_model", "weights_of"]
