"""The commands as they are typed: their output and exit code, and what they leave in the folder."""

import json
from shutil import copytree

import pytest
from typer.testing import CliRunner

from scalar_retrieval.hub_cards.__main__ import app
from scalar_retrieval.modeling_scalar.model_identity import identify

NAME = "user/scalar"


@pytest.fixture
def model_dir(tmp_path, tiny_model_dir):
    return copytree(tiny_model_dir, tmp_path / "a folder")


@pytest.fixture
def push(hub, model_dir):
    def push(*options, name=NAME, code=0):
        result = CliRunner().invoke(app, ["model", str(model_dir), name, *options])
        assert result.exit_code == code, result.output
        return result

    return push


def test_a_model_is_pushed_and_its_folder_takes_a_note(hub, push, model_dir, caplog):
    commit = push("--license", "mit").stdout.removeprefix(f"Published: {hub.url}/{NAME}/commit/").strip()
    assert commit == hub.repo(NAME).branches["main"]
    note = {"endpoint": hub.url, "repo_id": NAME, "revision": commit, "fingerprint": identify(NAME).fingerprint}
    assert json.loads((model_dir / "hub.json").read_text()) == note
    assert push().stdout == f"Published: {hub.url}/{NAME}/commit/{commit}\n"
    assert "No files have been modified" in caplog.text  # by the Hub's library
    assert "hub.json" not in hub.repo(NAME).files()


def test_a_wrong_option_is_an_error_in_one_line(hub, push):
    result = push("--license", "my own", code=1)
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    result = push(name="scalar", code=1)
    assert result.stderr == "Error: `repo_id` must be an id on the Hub, user/name, got 'scalar'.\n"
    assert not result.stdout and not hub.repos
