"""The search as a Space: what is laid out, its card, and the command that it runs."""

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import RepoCard
from typer.testing import CliRunner

from commands.scalar import run
from hub_cards.card import Details, read_card
from hub_cards.space import space_card
from modeling_scalar import load_model
from search.index_folder import index_folder
from search.settings import IndexConfig
from tests.hub_cards.pushing import push_gallery, push_model, push_space
from tests.media_corpus import tone, wav

PLACE = {"model": "user/model", "gallery": "user/gallery", "gallery_revision": "b" * 40}
DETAILS = Details({"license": "mit"})


def staged(tmp_path, **changes):
    settings = {"gallery": "user/gallery", "model": "user/model"} | changes
    push_space("user/demo", Details(), **settings, output=tmp_path / "space")
    return tmp_path / "space"


def test_the_folder_holds_a_dockerfile_and_a_card(tmp_path):
    folder = staged(tmp_path)
    assert {path.name for path in folder.iterdir()} == {"Dockerfile", "README.md"}
    data = RepoCard.load(folder / "README.md").data
    assert (data.sdk, data.app_port) == ("docker", 7860) and len(data.short_description) <= 60
    assert (data.models, data.datasets) == (["user/model"], ["user/gallery"])


@pytest.mark.parametrize("details", [Details({"license": "mit", "language": ["en"]}, "## Mine\n\n* a\n"), Details()])
def test_what_a_person_wrote_is_read_back(details):
    kind, found = read_card(space_card(Path(), "user/demo", details, **PLACE))
    assert kind == "space"
    said = {"license": "apache-2.0"} | details.data
    assert found.data.items() >= said.items() and found.kept == details.kept


@pytest.fixture
def published(hub, tmp_path, model_dir):
    """A model and a gallery that it made, on the Hub; the names of its clips."""
    (tmp_path / "clips").mkdir()
    for number, name in enumerate(("low.wav", "high.wav")):
        (tmp_path / "clips" / name).write_bytes(wav(tone(16_000, 200 * (1 + number))))
    index_folder(IndexConfig(paths=[tmp_path / "clips"], model=str(model_dir), output=tmp_path / "gallery"))
    push_model(model_dir, "user/model", DETAILS)
    push_gallery(tmp_path / "gallery", "user/gallery", DETAILS, media=True)
    return SimpleNamespace(api=hub.api(), names=["high.wav", "low.wav"])


def test_the_space_serves_the_gallery_at_the_commit_that_is_there(published, hub, tmp_path, monkeypatch):
    push_space("user/demo", Details(), gallery="user/gallery")
    files = hub.repo("user/demo", "space").files()
    commit = published.api.dataset_info("user/gallery").sha
    (line,) = re.findall("^CMD scalar (.*)$", files["Dockerfile"].decode(), re.MULTILINE)
    command = shlex.split(line.replace("$SPACE_HOST", "user-demo.hf.space"))
    assert command == [
        *("serve", f"hf://datasets/user/gallery@{commit}", "--host", "0.0.0.0", "--port", "7860"),
        *("--public", "--hostname", "user-demo.hf.space"),
    ]
    # The command, as far as to the server, which a request reaches without listening.
    from starlette.testclient import TestClient

    from search.service import server

    made, idle = [], SimpleNamespace(run=lambda sockets: None)
    monkeypatch.setattr(server, "make_server", lambda app, started: made.append(app) or idle)
    with pytest.raises(SystemExit) as ended:
        run([*command[:5], "0", *command[6:]])
    assert ended.value.code == 0
    with TestClient(made[0], base_url="http://user-demo.hf.space") as client:
        about = client.get("/api/gallery").json()
        assert (about["name"], about["num_clips"]) == ("user/gallery", 2)
        hits = client.post("/api/search", json={"query": "a bell"}).json()["hits"]
        assert sorted(hit["name"] for hit in hits) == published.names
        sound = client.get(f"/{hits[0]['media']}")
        assert sound.content == (tmp_path / "clips" / hits[0]["name"]).read_bytes()
        page = client.get("/", headers={"sec-fetch-site": "cross-site"})
        assert page.status_code == 200 and "frame-ancestors *" in page.headers["content-security-policy"]
        assert client.get("/", headers={"host": "other.example"}).status_code == 400


def test_a_published_gallery_is_asked_by_its_address_and_the_model_at_its_commit(published, tmp_path, model_dir):
    from search.__main__ import app

    # Another model in its place, as it may be later: the gallery names a commit.
    model, processor = load_model(model_dir)
    model.text_projection.weight.data.neg_()
    model.save_pretrained(model_dir)
    push_model(model_dir, "user/model", DETAILS)
    asked = ["query", "hf://datasets/user/gallery", "a bell", "--json"]
    found = CliRunner().invoke(app, asked)
    assert found.exit_code == 0, found.output
    hits = json.loads(found.stdout)[0]["hits"]
    assert sorted(hit["clip_id"] for hit in hits) == published.names
    other = CliRunner().invoke(app, [*asked, "--model", str(model_dir)])
    assert other.exit_code == 1 and "Embeddings of different models cannot be compared" in other.stderr
    info = CliRunner().invoke(app, ["info", "hf://datasets/user/gallery"])
    assert "clips: 2" in info.stdout and "model: user/model" in info.stdout
    refused = CliRunner().invoke(app, ["compact", "hf://datasets/user/gallery"])
    assert refused.exit_code == 1 and "cannot be changed" in refused.stderr


def test_a_gallery_and_a_model_that_do_not_fit_are_refused(published, hub):
    with pytest.raises(ValueError, match="made by user/model, so queries of user/other cannot"):
        push_space("user/wrong", DETAILS, gallery="user/gallery", model="user/other")
    assert ("space", "user/wrong") not in hub.repos


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--public", "--token-file", "token"], "--public lets anybody search: leave out the token."),
        ([], "Use --public to let anybody search."),
    ],
)
def test_a_service_is_open_to_all_only_by_its_option(tmp_path, monkeypatch, options, message):
    from search.__main__ import app

    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text("a-token-of-enough-letters")
    (tmp_path / "token").chmod(0o600)
    reported = CliRunner().invoke(app, ["serve", "gallery", "--host", "0.0.0.0", *options])
    assert reported.exit_code == 1 and message in reported.stderr
