"""What `scalar index` says before it downloads a model, and what without a network."""

import json
import socket

import pytest
from typer.testing import CliRunner

from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.gallery.store.provenance import pending_download
from scalar_retrieval.modeling_scalar import load_model, model_identity
from scalar_retrieval.modeling_scalar.model_identity import identify
from scalar_retrieval.search import __main__ as search
from tests.dual_encoders import write_clap, write_clip
from tests.joint_encoders import write_joint_encoder
from tests.media_corpus import tone, wav


@pytest.fixture
def place(hub, tmp_path, monkeypatch):
    """An encoder on the Hub, in the place of the one that is taken by default, and a clip."""
    folder = write_joint_encoder(tmp_path / "encoder")
    (folder / "model.gguf").write_bytes(bytes(1000))
    api = hub.api()
    api.create_repo("user/encoder")
    api.upload_folder(repo_id="user/encoder", folder_path=folder)
    (folder / "model.gguf").unlink()
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "sound.wav").write_bytes(wav(tone(16_000)))
    monkeypatch.setattr("scalar_retrieval.search.index_folder.DEFAULT_MODEL", "user/encoder")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def index(*arguments, code=0):
    result = CliRunner().invoke(search.app, ["index", "clips", "--output", "gallery", *arguments])
    assert result.exit_code == code, result.output
    return result


def assert_found():
    found = CliRunner().invoke(search.app, ["query", "gallery", "a bell", "--json"])
    assert json.loads(found.stdout)[0]["hits"], found.output


def test_a_download_is_as_large_as_was_reported_before_it(hub, place):
    before = pending_download(identify("user/encoder"))
    folder = identify("user/encoder").download()
    fetched = [path for path in folder.rglob("*") if path.is_file()]
    assert not list(folder.glob("*.gguf"))  # the same weights once more
    assert before.num_files == len(fetched) and before.num_bytes == sum(path.stat().st_size for path in fetched)
    assert pending_download(identify("user/encoder")) is None
    there, here = identify("user/encoder"), identify("encoder")
    assert there.commit == hub.repo("user/encoder").head.sha
    assert there.fingerprint == here.fingerprint and there.weights == here.weights


def test_indexing_needs_the_hub_once(hub, place):
    reported = index().stderr
    announced, loaded = reported.index("Downloading the model user/encoder"), reported.index("parameters in float32, ")
    assert hub.url in reported and "HF_HUB_OFFLINE=1" in reported and announced < loaded
    assert Gallery.open("gallery").model == "user/encoder"
    with hub.offline():
        again = index()
        assert "1 unchanged" in again.stdout and "Downloading the model" not in again.stderr
        assert_found()


@pytest.fixture
def silent(hub, monkeypatch):
    """A Hub that accepts connections and never answers."""
    model_identity._answers.cache_clear()  # an earlier Hub may have had its port
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr("scalar_retrieval.modeling_scalar.model_identity._HUB_TIMEOUT", 0.2)
        yield


def test_a_hub_that_never_answers_is_one_that_cannot_be_reached(place, request):
    identify("user/encoder").download()
    request.getfixturevalue("silent")
    index("--model", "user/encoder")  # what lies here needs no answer
    reported = index("--model", "user/other", code=1).stderr
    assert "'user/other'" in reported and "cannot be reached" in reported
    with pytest.raises(ValueError, match="user/other.* cannot be reached"):
        load_model("user/other")


@pytest.mark.e2e
def test_a_gallery_finds_encoders_side_by_side_at_the_revisions_that_made_it(hub, place):
    api = hub.api()
    for name, write in (("clip", write_clip), ("clap", write_clap)):
        api.create_repo(f"user/{name}")
        api.upload_folder(repo_id=f"user/{name}", folder_path=write(place / name))
    index("--model", "user/clip+user/clap")
    made = Gallery.open("gallery")
    assert made.model == "+".join(f"user/{name}@{hub.repo(f'user/{name}').head.sha}" for name in ("clip", "clap"))
    # A later revision is another model, but the gallery names its own.
    api.upload_folder(repo_id="user/clap", folder_path=write_clap(place / "changed", seed=1))
    assert identify("user/clip+user/clap").fingerprint != made.fingerprint == identify(made.model).fingerprint
    with hub.offline():
        assert "1 unchanged" in index().stdout
        assert_found()
        missing = index("--model", "user/clip+user/other", code=1).stderr
    assert "user/other" in missing and "cannot be reached" in missing
