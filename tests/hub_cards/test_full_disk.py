import tempfile

import pytest
from typer.testing import CliRunner

from scalar_retrieval.hub_cards.__main__ import app
from tests.disks import small_disk

NAME = "user/scalar"


def push(model_dir, code):
    result = CliRunner().invoke(app, ["model", str(model_dir), NAME])
    assert result.exit_code == code, result.output
    return result


@pytest.mark.promise("data", "A full disk changes nothing that is published")
def test_a_full_disk_leaves_what_is_published_as_it_was(hub, model_dir, tmp_path, monkeypatch):
    push(model_dir, 0)
    published = hub.repo(NAME).head
    (model_dir / "recipe.json").write_text('{"seed": 1}')
    with small_disk(tmp_path / "disk", 64 * 1024) as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        reported = push(model_dir, 1).stderr.splitlines()[-1]
        assert reported.startswith("Error: ") and ("disk is full" in reported or "No space left" in reported)
        assert not list(disk.iterdir())  # nothing is left to keep it full
        assert hub.repo(NAME).head == published
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert push(model_dir, 0).stdout.startswith("Published: ")
