"""The commands as they are typed: their output and exit code, and what they leave in the folder."""

import json

from typer.testing import CliRunner

from scalar_retrieval.hub_cards.__main__ import app
from scalar_retrieval.modeling_scalar.model_identity import identify

NAME = "user/scalar"


def test_a_model_is_pushed_and_its_folder_takes_a_note(hub, model_dir):
    command = ["model", str(model_dir), NAME, "--license", "mit"]
    pushed = CliRunner().invoke(app, command)
    commit = hub.repo(NAME).head.sha
    assert pushed.stdout == f"Published: {hub.url}/{NAME}/commit/{commit}\n", pushed.output
    note = {"endpoint": hub.url, "repo_id": NAME, "revision": commit, "fingerprint": identify(NAME).fingerprint}
    assert json.loads((model_dir / "hub.json").read_text()) == note
    assert CliRunner().invoke(app, command).stdout == pushed.stdout
    assert "hub.json" not in hub.repo(NAME).files()
