"""Models and data sets on the Hub: how they are named there, and which model one is."""

from huggingface_hub import HfApi
from huggingface_hub.utils import HFValidationError, validate_repo_id

from modeling_scalar.model_identity import IDENTIFYING, ModelIdentity, identify

from .errors import explained


def check_place(name: str, repo_id: str | None) -> None:
    """Raise a ValueError that names an argument unless it is an id on the Hub."""
    try:
        validate_repo_id(repo_id or "")
    except HFValidationError as error:
        raise ValueError(f"`{name}` must be an id on the Hub, such as 'user/name', got {repo_id!r}.") from error


def identify_published(api: HfApi, repo_id: str, revision: str) -> ModelIdentity:
    """
    Find out which model is on the Hub; only the files that tell it are downloaded.

    Raises:
        PublishError: they are not there, or cannot be read by this token.
    """
    with explained(api, "model", repo_id, revision):
        return identify(api.snapshot_download(repo_id, revision=revision, allow_patterns=IDENTIFYING))


__all__ = ["check_place", "identify_published"]
