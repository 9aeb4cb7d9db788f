"""Fixtures: a Hub on 127.0.0.1, and Python processes that know no other."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants

from tests.hub_cards.hub_server import FOREIGN, HubServer

ROOMS = ("modeling_scalar", "eval", "trainer", "search", "hub_cards")


@pytest.fixture
def hub(tmp_path_factory, monkeypatch) -> Iterator[HubServer]:
    """A new Hub, which clients in this process use too: as its user "user", with an empty cache and without waits.

    For `datasets`, `evaluate` and `transformers` take `run_python`: they read their environment on import.
    """
    home = tmp_path_factory.mktemp("hf_home")
    with HubServer() as server:
        for name in filter(FOREIGN.match, list(os.environ)):
            monkeypatch.delenv(name)
        for name, value in server.settings(home).items():
            monkeypatch.setenv(name, value)
        for name, value in {
            "ENDPOINT": server.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": server.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HOME": str(home),
            "HF_HUB_CACHE": str(home / "hub"),
            "HF_TOKEN_PATH": str(home / "token"),
            "HF_STORED_TOKENS_PATH": str(home / "stored_tokens"),
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_DISABLE_TELEMETRY": True,
            "HF_HUB_OFFLINE": False,
        }.items():
            monkeypatch.setattr(constants, name, value)
        # The client of the functions at the top of huggingface_hub was made on import.
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", server.url)
        # Failed requests are tried again at once.
        monkeypatch.setattr(huggingface_hub.utils._http, "time", SimpleNamespace(sleep=lambda _: None))
        yield server
        huggingface_hub.close_session()


@pytest.fixture
def run_python(hub, tmp_path) -> Callable[..., str]:
    """Runs a script in a process of its own and returns what it printed.

    The caches are kept from one run of a test to the next. AssertionError if the process fails.

    Args of the function:
        script (`str`): the program.
        token (`str` or `bool`, *optional*): as in `HubServer.env`.
        without (`Sequence[str]`): packages that cannot be imported; this project's by default, so that a model's code
            comes from the Hub.
        env (`dict`, *optional*): more environment variables.
    """

    def run(
        script: str, token: str | bool | None = None, without: Sequence[str] = ROOMS, env: dict[str, str] | None = None
    ) -> str:
        blocked = f"import sys\nsys.modules.update(dict.fromkeys({list(without)}))\n"
        path = tmp_path / "script.py"
        path.write_text(blocked + script, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, path],
            env=hub.env(tmp_path / "hf_home", token) | (env or {}),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode:
            raise AssertionError(f"The script ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    return run
