"""`scalar query URL`: the best clips of a running service. Imports neither torch nor the gallery."""

import json
from collections.abc import Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from scalar_retrieval.commands.schema import check_value, count, flag, number, parse_json, text

from .settings import CONDITIONS, TOKEN_VARIABLE, QueryConfig, read_token

_TIMEOUT_SECONDS = 60.0  # until the whole answer must have arrived
_MOST_BYTES = 2**26  # of an answer

# What is read of an answer
_PROBLEM = {"error": text}
_SECONDS = "[0, inf)"
_LINE = {"start": _SECONDS, "text": text, "is_asked": flag}
_HIT = {
    "rank": count,
    "score": number,
    "name": text,
    "start": (None, _SECONDS),
    "stop": (None, _SECONDS),
    "date": (None, text),
    "is_recorded": flag,
    "weights": (None, {...: number}),
    "presence": {...: flag},
    "said": (None, [_LINE]),
    "copies": [text],
}
_ANSWER = {"hits": [_HIT], "note": (None, text)}


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
            raise ValueError(f"Expected the address of a service, such as http://127.0.0.1:8000; got {url!r}.")
        self._url = url
        self._path = f"{parts.path.rstrip('/')}/api/search"
        self.connection = kinds[parts.scheme](parts.hostname, parts.port, timeout=_TIMEOUT_SECONDS)
        self._answer: tuple[int, bytes] | Exception | None = None
        self._headers = {"content-type": "application/json"}
        token = read_token()
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"

    def search(self, body: dict[str, Any]) -> dict[str, Any]:
        """
        The answer to a request, see `POST /api/search`.

        Raises:
            OSError: the service does not answer.
            ValueError: it refuses the request, or is not a service of this kind.
        """
        # In a thread, which is left behind: whatever is at the address, from the look-up of its name on, may take its
        # time over every byte.
        caller = Thread(target=self._receive, args=(json.dumps(body),), daemon=True)
        caller.start()
        caller.join(_TIMEOUT_SECONDS)
        if self._answer is None:
            raise ConnectionError(f"The service at {self._url} has not answered in {_TIMEOUT_SECONDS:g} seconds.")
        if isinstance(self._answer, Exception):
            raise ConnectionError(f"The service at {self._url} does not answer: {self._answer}.") from self._answer
        status, content = self._answer
        self._answer = None
        # Every answer of a service is JSON, with an `error` if there is a problem.
        expected = _PROBLEM
        if status == 200:
            expected = _ANSWER
        try:
            if len(content) > _MOST_BYTES:
                raise ValueError(f"more than {_MOST_BYTES} bytes")
            answer = parse_json(content)
            check_value(answer, expected)
        except ValueError as error:
            what = str(error).rstrip(".")
            raise ValueError(
                f"Expected a service of `scalar serve` at {self._url}; the answer, with status {status}, is something "
                f"else: {what}."
            ) from error
        if status == 401:
            raise ValueError(f"The service at {self._url} needs a token. Set {TOKEN_VARIABLE} to it.")
        if status != 200:
            raise ValueError(answer["error"])
        return answer

    def _receive(self, body: str) -> None:
        """Make a request, and note its answer, or the error."""
        try:
            self.connection.request("POST", self._path, body, self._headers)
            response = self.connection.getresponse()
            self._answer = response.status, response.read(_MOST_BYTES + 1)
        except (OSError, ValueError, HTTPException, AttributeError) as error:
            # The last one comes of reading on a connection that was closed at the deadline.
            self._answer = error


def ask(config: QueryConfig) -> list[dict[str, Any]]:
    """The answer of a service to each query."""
    service = _Service(config.gallery)
    conditions = {name: getattr(config, name) for name in CONDITIONS}
    body = {
        "k": config.k,
        "query_temperature": config.query_temperature,
        "modalities": config.modalities,
        "filter": {"paths": config.path, **conditions},
        "per_file": config.per_file,
        "unique": config.unique,
        "sort": config.sort,
    }
    answers = []
    with closing(service.connection):
        for query in config.texts:
            answers.append(service.search(body | {"query": query}))
    return answers


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def lines_of(query: str, answer: dict[str, Any]) -> Sequence[str]:
    """The hits of an answer as lines for a terminal, not yet escaped by [`~scalar_retrieval.commands.texts.plain`]."""
    lines = [f"query: {query}"]
    for hit in answer["hits"]:
        # Rank, score and name, of a part of a file its times, and the day
        line = f"{hit['rank']:3}  {hit['score']:.3f}  {hit['name']}"
        if hit["start"] is not None:
            stop = "the end"
            if hit["stop"] is not None:
                stop = _clock(hit["stop"])
            line += f" [{_clock(hit['start'])} to {stop}]"
        if hit["date"] is not None:
            known = "" if hit["is_recorded"] else "changed "
            line += f"  {known}{hit['date'][:10]}"
        lines.append(line)
        # The weights of its modalities, its words that match, and its copies
        weights = hit["weights"] or {}
        shares = [f"{name} {share:.2f}" for name, share in weights.items() if hit["presence"].get(name)]
        if shares:
            lines.append(f"     {'  '.join(shares)}")
        for said in hit["said"] or ():
            if said["is_asked"]:
                lines.append(f"     {_clock(said['start'])}  {' '.join(said['text'].split())}")
        if hit["copies"]:
            lines.append(f"     copies: {', '.join(hit['copies'])}")
    return lines


__all__ = ["ask", "lines_of"]
