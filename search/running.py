"""A running `scalar serve` on this machine embeds the queries of `scalar query`, which then need not load the model.

A service writes a small file with its address into a folder that only its user can access. If the file is stale, as
after a kill, nothing answers at the address, and the model is loaded as usual.
"""

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import ProxyHandler, Request, build_opener

from gallery.files import read_json, write_json

if TYPE_CHECKING:
    import torch

_SECONDS = 5.0  # timeout of a service; loading a model takes longer
TOKEN_VARIABLE = "SCALAR_SERVICE_TOKEN"


def _folder() -> Path | None:
    """The folder for this user's services; `None` where other users could write to it."""
    if os.name != "posix":
        return None
    place = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"scalar-{os.getuid()}"
    with suppress(OSError):
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return place
    return None


def _file_of(place: str | os.PathLike) -> Path | None:
    """The file that records the service of a gallery, a folder or an address."""
    folder, name = _folder(), os.fspath(place)
    name = os.path.realpath(name) if os.path.isdir(name) else name
    return folder and folder / f"{hashlib.sha256(os.fsencode(name)).hexdigest()}.json"


@contextmanager
def announced(place: str | os.PathLike, address: str) -> Iterator[None]:
    """Record, while the service runs, that a gallery is served at an address."""
    file, record = _file_of(place), {"address": address, "pid": os.getpid()}
    with suppress(OSError):
        if file is not None:
            write_json(record, file)
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            if file is not None and read_json(file) == record:
                file.unlink()


class ServedModel:
    """Query vectors from the model of a running service, in place of a [`~gallery.querying.QueryModel`]."""

    def __init__(self, texts: Sequence[str], vectors: list[Any], method: str, learned: dict[str, float]):
        self.method, self.learned = method, learned
        self._vectors = dict(zip(texts, vectors, strict=True))

    def embed(self, texts: Sequence[str]) -> "torch.Tensor":
        """The query vectors, `(Q, D)` or `(Q, 3, D)`."""
        import torch

        return torch.tensor([self._vectors[text] for text in texts])


def ask_served(place: str | os.PathLike, fingerprint: str | None, texts: Sequence[str]) -> ServedModel | None:
    """
    Let the service of a gallery embed queries, if one runs on this machine and answers.

    Args:
        place (`str`): the gallery, a folder or an address.
        fingerprint (`str`, *optional*): of the gallery's model.
        texts (`list[str]`): the queries.

    Returns:
        [`ServedModel`]; `None` if there is no service, or it has another model.
    """
    file, secret = _file_of(place), os.environ.get(TOKEN_VARIABLE)
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {secret}"} if secret else {})
    content = json.dumps({"texts": list(texts), "fingerprint": fingerprint}).encode()
    with suppress(OSError, ValueError, KeyError, TypeError):
        if file is not None and fingerprint is not None and file.exists():
            request = Request(f"{read_json(file)['address']}api/embed", content, headers)
            with build_opener(ProxyHandler({})).open(request, timeout=_SECONDS) as response:
                answer = json.load(response)
            return ServedModel(texts, answer["vectors"], answer["method"], answer["learned"])
    return None


__all__ = ["TOKEN_VARIABLE", "ServedModel", "announced", "ask_served"]
