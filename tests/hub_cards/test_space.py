"""The search as a Space: what is laid out, its card, and the command that it runs."""

import json
import re
import shlex
import shutil
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import RepoCard
from starlette.testclient import TestClient
from typer.testing import CliRunner

import scalar_retrieval
from scalar_retrieval import index
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.modeling_scalar.light_model import LIGHT_PACKAGES
from scalar_retrieval.search.__main__ import app
from scalar_retrieval.search.service import server
from tests.hub_cards.pushing import push_gallery, push_model, push_space
from tests.media_corpus import tone, wav

GALLERY, DEMO = ("user/gallery", "dataset"), ("user/demo", "space")


def test_the_space_serves_the_gallery_at_the_commit_that_is_there(hub, tmp_path, model_dir, monkeypatch):
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "low.wav").write_bytes(wav(tone(16_000, 200)))
    index(tmp_path / "clips", tmp_path / "gallery", model_dir)
    push_model(model_dir, "user/model")
    push_gallery(tmp_path / "gallery", "user/gallery", media=True)
    push_space("user/demo", gallery="user/gallery")
    files = hub.repo("user/demo", "space").files()
    commit = hub.api().dataset_info("user/gallery").sha
    (line,) = re.findall("^CMD scalar (.*)$", files["Dockerfile"].decode(), re.MULTILINE)
    command = shlex.split(line.replace("$SPACE_HOST", "user-demo.hf.space"))
    assert command == [
        *("serve", f"hf://datasets/user/gallery@{commit}", "--host", "0.0.0.0", "--port", "7860"),
        *("--public", "--hostname", "user-demo.hf.space"),
    ]
    card = RepoCard(files["README.md"].decode()).data
    assert (card.models, card.datasets) == (["user/model"], ["user/gallery"])
    assert (card.sdk, card.app_port) == ("docker", 7860) and len(card.short_description) <= 60
    # Its media are downloaded when they are asked for, and it cannot be changed.
    gallery = Gallery.open(command[1])
    assert not (gallery.path / "media").exists()
    with pytest.raises(ValueError, match="can be read but not changed"):
        GalleryWriter(gallery.path)
    # The command, as far as to the server, which a request reaches without listening.
    made = []
    idle = SimpleNamespace(run=lambda sockets: None)
    monkeypatch.setattr(server, "make_server", lambda app: made.append(app) or idle)
    result = CliRunner().invoke(app, [*command[:5], "0", *command[6:]])
    assert result.exit_code == 0, result.output
    with TestClient(made[0], base_url="http://user-demo.hf.space") as client:
        (hit,) = client.post("/api/search", json={"query": "a bell"}).json()["hits"]
        assert client.get(f"/{hit['media']}").content == (tmp_path / "clips" / "low.wav").read_bytes()
        page = client.get("/", headers={"sec-fetch-site": "cross-site"})
        assert page.status_code == 200 and "frame-ancestors *" in page.headers["content-security-policy"]
        assert client.get("/", headers={"host": "other.example"}).status_code == 400


def test_a_gallery_of_light_names_its_packages_and_is_searched_elsewhere(hub, tmp_path):
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "low_bell.wav").write_bytes(wav(tone(16_000, 200)))
    index(tmp_path / "clips", tmp_path / "gallery")
    push_gallery(tmp_path / "gallery", "user/gallery")
    push_space("user/demo", gallery="user/gallery")
    shutil.rmtree(tmp_path / "gallery"), shutil.rmtree(tmp_path / "clips")
    found = CliRunner().invoke(app, ["query", "hf://datasets/user/gallery", "a bell", "--json"])
    assert found.exit_code == 0 and "low_bell.wav" in found.stdout, found.output

    pages = [f"https://pypi.org/project/{name}/" for name in LIGHT_PACKAGES]
    for place in (GALLERY, DEMO):
        card = hub.repo(*place).files()["README.md"].decode()
        assert [link for link in re.findall(r"\]\((.*?)\)", card) if "user/gallery" not in link] == pages
    # The line by which the card of the gallery embeds a text
    (line,) = re.findall(r"`(scalar_retrieval\.Gallery.*)`", hub.repo(*GALLERY).files()["README.md"].decode())
    assert eval(line, {"scalar_retrieval": scalar_retrieval}).shape == (1, 896)


def test_a_gallery_is_not_published_as_of_a_model_that_did_not_make_it(tmp_path, model_dir):
    Gallery.from_arrays(["a"], {"video": torch.eye(1, 4)}, path=tmp_path / "gallery")
    for model, message in (
        ("light", "was not made by the model that is now in light"),
        (str(model_dir), f"folder {model_dir} has not been pushed"),
    ):
        with pytest.raises(ValueError, match=message):
            push_gallery(tmp_path / "gallery", "user/gallery", model=model, dry_run=tmp_path / "out")


def test_the_space_of_encoders_side_by_side_names_each_and_of_no_model_is_refused(hub):
    def put_manifest(**metadata):
        """A gallery on the Hub, of which a Space reads no more."""
        content = json.dumps({"metadata": metadata}).encode()
        place = {"repo_id": "user/own", "repo_type": "dataset"}
        hub.api().upload_file(path_or_fileobj=content, path_in_repo="gallery.json", **place)

    hub.api().create_repo("user/own", repo_type="dataset")
    put_manifest()
    with pytest.raises(ValueError, match="user/own names no model"):
        push_space("user/demo", gallery="user/own")
    assert DEMO[::-1] not in hub.repos
    names = []
    for name in ("user/clip", "user/clap"):
        hub.api().create_repo(name)
        names.append(f"{name}@{hub.repo(name).head.sha}")
    put_manifest(model="+".join(names))
    push_space("user/demo", gallery="user/own")
    card = RepoCard(hub.repo(*DEMO).files()["README.md"].decode())
    assert card.data.models == ["user/clip", "user/clap"]


def test_a_service_is_open_to_all_only_by_its_option(monkeypatch, tmp_path):
    Gallery.from_arrays(["a"], {"image": torch.eye(1, 4)}, path=tmp_path / "gallery")
    monkeypatch.delenv("SCALAR_SERVICE_TOKEN", raising=False)
    command = ["serve", str(tmp_path / "gallery"), "--host", "0.0.0.0"]
    reported = CliRunner().invoke(app, command)
    assert reported.exit_code == 1 and "Use --public to let anybody search." in reported.stderr
    monkeypatch.setenv("SCALAR_SERVICE_TOKEN", "a-token-of-enough-letters")
    reported = CliRunner().invoke(app, [*command, "--public"])
    assert reported.exit_code == 1 and "--public lets anybody search: unset SCALAR_SERVICE_TOKEN" in reported.stderr
