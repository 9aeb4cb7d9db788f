"""Errors of the Hub and the network, each explained in a sentence that says what to do."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

# Class of the error, status of the answer (any if `None`), and the sentence; the first row that fits counts.
_SENTENCES = (
    (LocalTokenNotFoundError, None, "There is no token. Log in with `hf auth login`, or set HF_TOKEN."),
    (GatedRepoError, None, "The {where} is gated, and the token has no access. Request access on its page."),
    (RepositoryNotFoundError, None, "The {where} does not exist, or the token may not see it."),
    (HfHubHTTPError, 401, "{endpoint} does not accept the token. Log in with `hf auth login`, or set HF_TOKEN."),
    (
        HfHubHTTPError,
        403,
        "{endpoint} refuses to let this token write to the {where} ({message}). Use one that may write, or open a "
        "pull request with --create-pr.",
    ),
    (HfHubHTTPError, 409, "The {where} has been changed in the meantime. Push again, to read its card again."),
    (HfHubHTTPError, 412, "The {where} has been changed in the meantime. Push again, to read its card again."),
    (HfHubHTTPError, None, "{endpoint} answers {status}: {message}."),  # such as 413, a file that is too large
    (OfflineModeIsEnabled, None, "HF_HUB_OFFLINE is set, so nothing can be published. Unset it, or use --dry-run."),
    (json.JSONDecodeError, None, "The server at {endpoint} is not a Hub. Check HF_ENDPOINT and the network."),
    (httpx2.RequestError, None, "{endpoint} cannot be reached, or the connection broke: {message}."),
    (LocalEntryNotFoundError, None, "{endpoint} cannot be reached, or the connection broke: {message}."),
    (ConnectionError, None, "{endpoint} cannot be reached, or the connection broke: {message}."),
)
_KINDS = tuple(kind for kind, _, _ in _SENTENCES)


class PublishError(OSError):
    """Nothing was published; the message gives the reason, and what is left on the Hub, if anything."""


def _reason(error: BaseException, endpoint: str, where: str) -> str:
    """Explain in a sentence or two why a request about a repository failed, and what to do."""
    status, message = None, " ".join(str(error).split()[:60])
    if isinstance(error, HfHubHTTPError):
        status, message = error.response.status_code, error.server_message or message
    for kind, at, sentence in _SENTENCES:
        if isinstance(error, kind) and at in (None, status):
            return sentence.format(endpoint=endpoint, where=where, status=status, message=message.rstrip("."))
    return f"{message.rstrip('.')}."


@contextmanager
def explained(endpoint: str, where: str, is_certain: bool = True) -> Iterator[None]:
    """
    Raise a [`PublishError`] that says what to do, instead of an error of the Hub or of the network.

    Args:
        endpoint (`str`), where (`str`): address of the Hub, and type and id of the repository, "model user/name".
        is_certain (`bool`): whether nothing can have been published if the answer is lost.
    """
    try:
        yield
    except (*_KINDS, RuntimeError) as error:
        end = "Nothing was published."
        is_refused = isinstance(error, HfHubHTTPError) and error.response.status_code < 500
        if not (is_certain or is_refused or isinstance(error, RuntimeError)):
            end = "If the commit succeeded anyway, pushing again changes nothing."
        reason = _reason(error, endpoint, where)
        # The client's error for an upload that failed, before any commit.
        if isinstance(error, RuntimeError) and error.__cause__ is not None:
            reason = f"{reason} {_reason(error.__cause__, endpoint, where)}"
        raise PublishError(f"{reason} {end}") from error


__all__ = ["PublishError", "explained"]
