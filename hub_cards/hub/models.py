"""Models on the Hub: which they are."""

from huggingface_hub import HfApi

from modeling_scalar.model_identity import IDENTIFYING, ModelIdentity, identify

from .errors import explained


def identify_published(api: HfApi, repo_id: str, revision: str) -> ModelIdentity:
    """
    Find out which model is on the Hub; only the files that tell it are downloaded.

    Raises:
        PublishError: they are not there, or cannot be read by this token.
    """
    with explained(api, "model", repo_id, revision):
        return identify(api.snapshot_download(repo_id, revision=revision, allow_patterns=IDENTIFYING))


__all__ = ["identify_published"]
