"""Errors of the Hub and the network, each explained in a sentence that says what to do."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from huggingface_hub import HfApi
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

REQUEST_ERRORS = (HfHubHTTPError, httpx2.RequestError, json.JSONDecodeError)
"""How a request can fail: refused, not answered, or answered by a server that is not a Hub."""


class PublishError(OSError):
    """Nothing was published; the message gives the reason, and what is left on the Hub, if anything."""


def first_line(error: BaseException) -> str:
    """Return the start of an error's message, without a full stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (" ".join(lines[:2]) or type(error).__name__).rstrip(".")


def reason(error: BaseException, api: HfApi, repo_type: str, repo_id: str, revision: str | None = None) -> str:
    """Explain in a sentence or two why a request about a repository failed, and what to do."""
    where, endpoint = f"{repo_type} {repo_id}", api.endpoint
    if isinstance(error, LocalTokenNotFoundError):
        return "There is no token. Log in with `hf auth login`, or set HF_TOKEN to a token that may write."
    if isinstance(error, RevisionNotFoundError):
        return f"There is no revision {revision!r} in the {where}."
    if isinstance(error, GatedRepoError):
        return f"The {where} is gated, and the token has no access. Request access on its page."
    status, said = None, ""
    if isinstance(error, HfHubHTTPError):
        status, said = error.response.status_code, " ".join((error.server_message or "").split()).rstrip(".")
    if status == 401 and not isinstance(error, RepositoryNotFoundError):
        return f"{endpoint} does not accept the token. Log in again with `hf auth login`, or set HF_TOKEN."
    if status == 403:
        return (
            f"{endpoint} refuses to let this token write to the {where} ({said or 'it does not say why'}). Use one "
            "that may write, or open a pull request with --create-pr."
        )
    if isinstance(error, RepositoryNotFoundError):
        return f"The {where} does not exist, or the token may not see it."
    if status in (409, 412):
        return f"The {where} has been changed in the meantime. Push again, to read its card again."
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set, so nothing can be published. Unset it, or use --dry-run."
    if isinstance(error, json.JSONDecodeError):
        return f"The server at {endpoint} is not a Hub. Check HF_ENDPOINT, and whether the network requires a login."
    if status is not None and said:
        return f"{endpoint} answers {status}: {said}."
    if isinstance(error, httpx2.RequestError | LocalEntryNotFoundError | ConnectionError):
        return f"{endpoint} cannot be reached, or the connection broke: {first_line(error)}."
    return f"{first_line(error)}."


@contextmanager
def explained(
    api: HfApi, repo_type: str, repo_id: str, revision: str | None = None, is_certain: bool = True
) -> Iterator[None]:
    """
    Raise a [`PublishError`] that says what to do, instead of an error of the Hub or of the network.

    Args:
        api ([`~huggingface_hub.HfApi`]): gives the endpoint.
        repo_type (`str`), repo_id (`str`), revision (`str`, *optional*): what is requested.
        is_certain (`bool`): whether nothing can have been published if the answer is lost.
    """
    try:
        yield
    except (*REQUEST_ERRORS, LocalTokenNotFoundError, LocalEntryNotFoundError, ConnectionError) as error:
        refused = isinstance(error, HfHubHTTPError) and error.response.status_code < 500
        end = "Nothing was published."
        if not (is_certain or refused):
            end = "If the commit succeeded anyway, pushing again changes nothing."
        raise PublishError(f"{reason(error, api, repo_type, repo_id, revision)} {end}") from error
    except RuntimeError as error:  # the client's error for an upload that failed, before any commit
        why = f": {reason(error.__cause__, api, repo_type, repo_id, revision)}" if error.__cause__ else "."
        raise PublishError(f"{first_line(error)}{why} Nothing was published.") from error


__all__ = ["REQUEST_ERRORS", "PublishError", "explained", "first_line", "reason"]
