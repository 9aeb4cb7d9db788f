"""`publish` from Python: the kind follows from the folder, and it gives what the command gives."""

import json
from pathlib import Path
from shutil import copytree

import pytest
import torch
from torch.nn.functional import normalize
from typer.testing import CliRunner

from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.hub_cards.__main__ import app
from scalar_retrieval.hub_cards.publish import publish
from tests.conftest import ROOT
from tests.modeling_scalar.test_loading import save_adapter


@pytest.fixture
def gallery_dir(tmp_path):
    columns = {name: normalize(torch.randn(2, 8), dim=-1) for name in ("image", "title")}
    return Gallery.from_arrays(["a", "b"], columns, path=tmp_path / "gallery").path


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def kind_of(folder):
    card = (Path(folder) / "README.md").read_text()
    return card.split("<!-- hub_cards: ", 1)[1].split(" ", 1)[0]


def test_a_dry_run_gives_the_folder_that_the_command_writes(hub, model_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with hub.offline():
        done = publish("model", "user/scalar", license="mit", dry_run="from_texts")
        again = publish(model_dir, "user/scalar", license="mit", dry_run=tmp_path / "from_paths")
        command = ["model", "model", "user/scalar", "--license", "mit", "--dry-run", "from_command"]
        done_by_command = CliRunner().invoke(app, command)
    assert (done, again) == ("from_texts", str(tmp_path / "from_paths"))
    assert contents(Path("from_texts")) == contents(Path("from_paths")) == contents(Path("from_command"))
    assert done_by_command.stdout.removesuffix("\n") == Path("from_command", "README.md").read_text()
    assert "Nothing was sent." in done_by_command.stderr and hub.requests == []
    with pytest.raises(FileExistsError):
        publish("model", "user/scalar", license="mit", dry_run="from_texts")


def test_the_kind_follows_from_what_the_folder_holds(
    hub, model_dir, gallery_dir, tmp_path, tiny_model_dir, tiny_processor
):
    save_adapter(tmp_path / "adapter", tiny_model_dir, tiny_processor)
    options = {"adapter": {"base": "user/base"}}
    folders = {"model": model_dir, "gallery": gallery_dir, "adapter": tmp_path / "adapter"}
    folders["metric"] = ROOT / "eval" / "metrics" / "retrieval"
    for kind, folder in folders.items():
        made = publish(folder, "user/retrieval", dry_run=tmp_path / f"{kind}-out", **options.get(kind, {}))
        assert kind_of(made) == kind
    made = publish("user/gallery", "user/search", kind="space", dry_run=tmp_path / "space-out")
    assert kind_of(made) == "space" and "user/gallery" in (Path(made) / "Dockerfile").read_text()


def test_a_folder_that_holds_two_things_is_published_as_the_one_that_is_named(hub, model_dir, gallery_dir, tmp_path):
    copytree(gallery_dir, model_dir, dirs_exist_ok=True)
    with pytest.raises(ValueError, match="only one of them; found model and gallery. .*`kind`"):
        publish(model_dir, "user/one", dry_run=tmp_path / "out")
    assert kind_of(publish(model_dir, "user/one", kind="gallery", dry_run=tmp_path / "out")) == "gallery"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"folder": "nowhere"}, FileNotFoundError, "There is no folder 'nowhere'. For a Space"),
        (
            {"folder": "empty"},
            ValueError,
            "Expected a model, an adapter, a gallery or a metric in empty, .* found none",
        ),
        ({"kind": "dataset"}, ValueError, "`kind` must be one of .*'gallery'.*, got 'dataset'"),
        ({"kind": "gallery"}, FileNotFoundError, "There is no gallery in 'model'"),
        ({"kind": "adapter"}, ValueError, "model holds no adapter_config.json"),
        ({"base": "user/base"}, ValueError, r"\['base'\] do not apply to .* kind 'model'"),
        ({"media": True, "model": "m"}, ValueError, r"\['model', 'media'\] do not apply"),
        ({"results": "nowhere"}, FileNotFoundError, "There is no results.json at nowhere"),
        ({"repo_id": "scalar"}, ValueError, "`repo_id` must be an id on the Hub, user/name, got 'scalar'"),
        ({"repo_id": "a/b/c"}, ValueError, "a/b/c"),
    ],
)
def test_a_wrong_argument_is_named_in_a_sentence(arguments, error, message, hub, model_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=message):
        publish(**{"folder": "model", "repo_id": "user/scalar"} | arguments)
    assert not hub.repos and json.loads((model_dir / "config.json").read_text())
