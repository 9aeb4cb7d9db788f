"""`scalar query --service URL`: the best clips of a running service. Imports neither torch nor the gallery."""

import json
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from .settings import CONDITIONS, TOKEN_VARIABLE, QueryConfig, read_token

_TIMEOUT_SECONDS = 60.0


class _Service:
    """
    A connection to a service. Redirections are not followed, so that the token goes nowhere else.

    Args:
        url (`str`): its address, as `scalar serve` prints it.

    Raises:
        ValueError: it is not an address of HTTP.
    """

    def __init__(self, url: str):
        parts = urlsplit(url)
        kinds = {"http": HTTPConnection, "https": HTTPSConnection}
        if parts.scheme not in kinds or not parts.hostname:
            raise ValueError(
                f"--service must be the address of a service, such as http://127.0.0.1:8000; got {url!r}."
            )
        self._url = url
        self._path = parts.path.rstrip("/")
        self._connection = kinds[parts.scheme](parts.hostname, parts.port, timeout=_TIMEOUT_SECONDS)
        self._headers = {"content-type": "application/json"}
        token = read_token()
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"

    def call(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """
        Make one call of the API.

        Raises:
            OSError: the service does not answer.
            ValueError: it refuses the request, or is not a service of this kind.
        """
        method = "GET"
        data = None
        if body is not None:
            method = "POST"
            data = json.dumps(body)
        try:
            self._connection.request(method, f"{self._path}/api/{path}", data, self._headers)
            response = self._connection.getresponse()
            status = response.status
            content = response.read()
        except (OSError, HTTPException) as error:
            raise ConnectionError(f"The service at {self._url} does not answer: {error}.") from error
        # Every answer of a service is JSON, with an `error` if there is a problem.
        problem = None
        try:
            answer = json.loads(content)
            if status != 200:
                problem = answer["error"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"Expected a service of `scalar serve` at {self._url}; got status {status}.") from error
        if status == 401:
            problem = f"The service at {self._url} needs a token. Set {TOKEN_VARIABLE} to it."
        if problem is not None:
            raise ValueError(problem)
        return answer


def ask(config: QueryConfig) -> list[dict[str, Any]]:
    """Query a service: the answer to each text, see `POST /api/search`."""
    service = _Service(config.service)
    conditions = {name: getattr(config, name) for name in CONDITIONS}
    body = {
        "k": config.k,
        "temperature": config.temperature,
        "filter": {"paths": config.path, **conditions},
        "per_file": config.per_file,
        "unique": config.unique,
    }
    # The API takes the modalities to use, and `--mask` names those to leave out.
    if config.mask:
        known = service.call("gallery")["share"]
        body["modalities"] = [name for name in known if name not in config.mask]
    answers = []
    for text in config.queries:
        answers.append(service.call("search", body | {"query": text}))
    return answers


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def lines_of(query: str, answer: dict[str, Any]) -> Sequence[str]:
    """The hits of an answer as lines for a terminal, not yet escaped by [`~commands.texts.plain`]."""
    lines = [f"query: {query}"]
    for hit in answer["hits"]:
        # Rank, score and name, and of a part of a file its times
        line = f"{hit['rank']:3}  {hit['score']:.3f}  {hit['name']}"
        if hit["start"] is not None:
            stop = "the end"
            if hit["stop"] is not None:
                stop = _clock(hit["stop"])
            line += f" [{_clock(hit['start'])} to {stop}]"
        lines.append(line)
        # The weights of its modalities, its words that match, and its copies
        weights = hit["weights"] or {}
        shares = [f"{name} {share:.2f}" for name, share in weights.items() if hit["presence"][name]]
        if shares:
            lines.append(f"     {'  '.join(shares)}")
        for said in hit["said"] or ():
            if said["is_asked"]:
                lines.append(f"     {_clock(said['start'])}  {' '.join(said['text'].split())}")
        if hit["copies"]:
            lines.append(f"     copies: {', '.join(hit['copies'])}")
    return lines


__all__ = ["ask", "lines_of"]
