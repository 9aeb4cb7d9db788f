"""Errors of the Hub and the network, each explained in a sentence that says what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from json import JSONDecodeError

import httpx2
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

_NETWORK = (httpx2.RequestError, ConnectionError, LocalEntryNotFoundError, JSONDecodeError)


class PublishError(OSError):
    """Nothing was published; the message gives the reason, and what is left on the Hub, if anything."""


def _reason(error: BaseException, endpoint: str, where: str) -> str:
    """Explain in a sentence or two why a request about a repository failed, and what to do."""
    # The Hub explains its own errors; those of the network have only their message.
    message = " ".join(str(error).split()[:60]).rstrip(".")
    if isinstance(error, RepositoryNotFoundError):  # also one behind a gate
        return f"The {where} does not exist, or no token that may see it was given (`hf auth login`)."
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        if status == 401:
            return f"{endpoint} needs a valid token. Log in with `hf auth login`, or set HF_TOKEN."
        message = (error.server_message or message).rstrip(".")
        return f"{endpoint} answers {status} about the {where}: {message}."
    return f"{endpoint} cannot be reached, or the connection broke: {message}."


@contextmanager
def explained(endpoint: str, where: str, end: str = "Nothing was published.") -> Iterator[None]:
    """
    Raise a [`PublishError`] that says what to do, instead of an error of the Hub or of the network.

    Args:
        endpoint (`str`), where (`str`): address of the Hub, and type and id of the repository, "model user/name".
        end (`str`): last sentence of the message, what the failure means.
    """
    try:
        yield
    except (*_NETWORK, HfHubHTTPError) as error:
        raise PublishError(f"{_reason(error, endpoint, where)} {end}") from error
    except RuntimeError as error:  # the client's error for an upload that failed, before any commit
        if error.__cause__ is None:
            raise
        reason = _reason(error.__cause__, endpoint, where)
        raise PublishError(f"{error} {reason} Nothing was published.") from error


__all__ = ["PublishError", "explained"]
