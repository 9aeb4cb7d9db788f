"""`publish` from Python: the kind follows from the folder, and it gives what the command gives."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize
from typer.testing import CliRunner

from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.hub_cards.__main__ import app
from scalar_retrieval.hub_cards.card import read_card
from scalar_retrieval.hub_cards.publish import publish
from tests.conftest import ROOT
from tests.modeling_scalar.test_loading import save_adapter


@pytest.fixture
def gallery_dir(tmp_path):
    columns = {name: normalize(torch.randn(2, 8), dim=-1) for name in ("image", "title")}
    return Gallery.from_arrays(["a", "b"], columns, path=tmp_path / "gallery").path


def kind_of(folder):
    return read_card((Path(folder) / "README.md").read_text())[0]


def test_a_dry_run_gives_the_folder_that_the_command_writes(hub, model_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with hub.offline():
        assert publish("model", "user/scalar", license="mit", dry_run="from_python") == "from_python"
        command = ["model", "model", "user/scalar", "--license", "mit", "--dry-run", "from_command"]
        done = CliRunner().invoke(app, command)
    for path in [path for path in Path("from_python").rglob("*") if path.is_file()]:
        assert path.read_bytes() == Path("from_command", path.relative_to("from_python")).read_bytes()
    assert done.stdout.removesuffix("\n") == Path("from_python", "README.md").read_text()
    assert "Nothing was sent." in done.stderr and hub.requests == []
    with pytest.raises(FileExistsError):
        publish("model", "user/scalar", license="mit", dry_run="from_python")


def test_the_kind_follows_from_what_the_folder_holds(
    hub, model_dir, gallery_dir, tmp_path, tiny_model_dir, tiny_processor
):
    save_adapter(tmp_path / "adapter", tiny_model_dir, tiny_processor)
    metric = ROOT / "eval" / "metrics" / "retrieval"
    for kind, folder, options in (
        ("model", model_dir, {}),
        ("gallery", gallery_dir, {}),
        ("metric", metric, {}),
        ("adapter", tmp_path / "adapter", {"base": "user/base"}),
        ("space", "user/gallery", {"kind": "space"}),
    ):
        assert kind_of(publish(folder, "user/retrieval", dry_run=tmp_path / f"{kind}-out", **options)) == kind


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"folder": "nowhere"}, "There is no folder 'nowhere'. For a Space"),
        ({"folder": "empty"}, "in empty, .* found none"),
        ({"kind": "dataset"}, "`kind` must be one of .*, got 'dataset'"),
        ({"kind": "gallery"}, "There is no gallery in 'model'"),
        ({"kind": "adapter"}, "model holds no adapter_config.json"),
        ({"media": True, "base": "b"}, r"\['base', 'media'\] do not apply"),
        ({"results": "nowhere"}, "There is no results.json at nowhere"),
        ({"repo_id": "scalar"}, "`repo_id` must be an id on the Hub, user/name, got 'scalar'"),
        ({"repo_id": "a/b/c"}, "a/b/c"),
    ],
)
def test_a_wrong_argument_is_named_in_a_sentence(arguments, message, hub, model_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises((ValueError, OSError), match=message):
        publish(**{"folder": "model", "repo_id": "user/scalar"} | arguments)
    assert not hub.repos
