"""Fixtures: a Hub on 127.0.0.1, and folders to publish."""

import json
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants

from tests.hub_cards.folders import write_result
from tests.hub_cards.hub_server import FOREIGN, HubServer
from tests.modeling_scalar.test_loading import save_adapter


def use_hub(server: HubServer, home: Path, patch: pytest.MonkeyPatch) -> None:
    """Let clients in this process use a Hub, with a home of their own and without waits."""
    for name in filter(FOREIGN.match, list(os.environ)):
        patch.delenv(name)
    for name, value in server.settings(home).items():
        patch.setenv(name, value)
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
        patch.setattr(constants, name, value)
    # The client of the functions at the top of huggingface_hub was made on import.
    patch.setattr(huggingface_hub.hf_api.api, "endpoint", server.url)
    # Failed requests are tried again at once.
    patch.setattr(huggingface_hub.utils._http, "time", SimpleNamespace(sleep=lambda _: None))


@pytest.fixture
def hub(tmp_path_factory, monkeypatch) -> Iterator[HubServer]:
    """A new Hub, which clients in this process use too: as its user "user", with an empty cache and without waits."""
    home = tmp_path_factory.mktemp("hf_home")
    with HubServer() as server:
        use_hub(server, home, monkeypatch)
        yield server
        huggingface_hub.close_session()


@pytest.fixture
def staged(tmp_path):
    (tmp_path / "staged").mkdir()
    return tmp_path / "staged"


@pytest.fixture
def model_dir(tmp_path, tiny_model_dir):
    return shutil.copytree(tiny_model_dir, tmp_path / "model")


@pytest.fixture
def adapter_dir(tmp_path, model_dir, tiny_processor):
    """An adapter as a run leaves it, with what must stay here."""
    folder = tmp_path / "run"
    save_adapter(folder, model_dir, tiny_processor, aggregation="gram")
    (folder / "recipe.json").write_text(json.dumps({"model": str(model_dir), "seed": 1, "output_dir": "runs/x"}))
    (folder / "training_args.bin").write_bytes(pickle.dumps({"hub_token": "secret"}))
    (folder / "README.md").write_text("[More Information Needed]")
    (folder / "checkpoint-2").mkdir()
    (folder / "checkpoint-2" / "optimizer.pt").write_bytes(b"state")
    write_result(folder / "checkpoint-2" / "results", folder)
    write_result(folder / "results", folder)
    return folder
