"""One commit or none: what a push makes of a repository, and what it leaves when it fails."""

import json

import pytest
import torch
from huggingface_hub import HfApi
from huggingface_hub.utils import yaml_dump
from safetensors.torch import save_file

from scalar_retrieval.hub_cards.adapter import KIND as ADAPTER
from scalar_retrieval.hub_cards.card import KEPT_BEGIN, KEPT_END, Details, read_card
from scalar_retrieval.hub_cards.errors import PublishError
from scalar_retrieval.hub_cards.model import KIND as MODEL
from scalar_retrieval.hub_cards.privacy import check_card, check_no_token, without_folders
from scalar_retrieval.hub_cards.publishing import Push, commit_folder

NAME = "user/scalar"


@pytest.fixture
def folder(tmp_path):
    """What a model's folder holds, in small."""
    folder = tmp_path / "staged"
    (folder / "results" / "a").mkdir(parents=True)
    (folder / "config.json").write_text('{"a": 1}')
    (folder / "results" / "a" / "results.json").write_text("{}")
    for number in (1, 2):
        save_file({"weight": torch.full((4,), number)}, folder / f"model-0000{number}-of-00002.safetensors")
    return folder


def card(folder, repo_id: str, details: Details, kind="model", text="A model.") -> str:
    front = f"---\n{yaml_dump(dict(details.data) | {'tags': ['test']}, sort_keys=False)}---\n"
    marks = f"<!-- hub_cards: {kind} -->\n\n# {repo_id}\n\n{text}\n\n{KEPT_BEGIN}\n{details.kept}\n{KEPT_END}\n"
    return front + marks


def push(hub, folder, make_card=card, api=None, kind=MODEL, repo_id=NAME, license="mit", **options):
    given = Push(source=folder, repo_id=repo_id, license=license, **options)
    return commit_folder(api or hub.api(), kind, given, folder, make_card)


def files_of(hub):
    return {name: content for name, content in hub.repo(NAME).files().items() if name != ".gitattributes"}


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def edit(hub, path, content, repo_id=NAME):
    """A person changes a file on the Hub."""
    hub.api().upload_file(path_or_fileobj=content, path_in_repo=path, repo_id=repo_id)


# What a push makes ---------------------------------------------------------------------------------------------------


def test_a_folder_becomes_one_commit(hub, folder):
    published = push(hub, folder)
    repo = hub.repo(NAME)
    assert [commit.title for commit in repo.commits] == ["initial commit", "Publish this model with its card"]
    assert files_of(hub) == contents(folder) and "README.md" in files_of(hub) and not repo.private
    assert published.oid == repo.commits[-1].sha
    assert published.commit_url == f"{hub.url}/{NAME}/commit/{published.oid}"
    # Pushed again, nothing changes.
    assert push(hub, folder).oid == published.oid and len(repo.commits) == 2


def test_what_a_person_wrote_is_kept_and_what_is_gone_goes(hub, folder):
    push(hub, folder)
    text = files_of(hub)["README.md"].decode()
    note = "A note, *kept*.\n\n| a | b |\n|---|---|\n\n    docker run -v /data/clips:/data image\n"
    text = text.replace("---\n", "---\nlanguage: en\n", 1).replace(f"{KEPT_BEGIN}\n", f"{KEPT_BEGIN}\n{note}")
    edit(hub, "README.md", b"\xef\xbb\xbf" + text.encode())  # as some editors save it
    theirs = {"results/notes.md", "results/mine/plot.png", "model-small.safetensors", "tokenizer_2.json"}
    for name in theirs:
        edit(hub, name, b"a person's")
    (folder / "model-00002-of-00002.safetensors").unlink()
    (folder / "results" / "a" / "results.json").unlink()
    (folder / "config.json").write_text('{"a": 2}')

    push(hub, folder, lambda *given: card(*given, text="Trained again."), license=None)
    now = files_of(hub)
    assert set(now) == {"README.md", "config.json", "model-00001-of-00002.safetensors"} | theirs
    _, details = read_card(now["README.md"].decode())
    assert details.data == {"license": "mit", "language": "en"} and note in details.kept
    assert "Trained again." in now["README.md"].decode() and now["config.json"] == b'{"a": 2}'


# Failures ------------------------------------------------------------------------------------------------------------

FAULTS = [
    ("PUT", "/storage/", {"status": 500, "after": 1}),
    ("PUT", "/storage/", {"status": "drop", "after": 1}),
    ("POST", "/validate-yaml", {"status": 500}),
    ("POST", "/commit/", {"status": "drop"}),
]


@pytest.mark.parametrize(("method", "path", "how"), FAULTS)
def test_a_failure_in_the_middle_publishes_nothing_and_the_next_push_goes_on(hub, folder, method, path, how):
    with hub.fail(method, path, **how), pytest.raises(PublishError, match="Nothing was published|Push again"):
        push(hub, folder)
    assert not any(files_of(hub) for _ in hub.repos)
    push(hub, folder)
    before = files_of(hub)
    assert before == contents(folder)
    for number in (1, 2):
        save_file({"weight": torch.zeros(4 + number)}, folder / f"model-0000{number}-of-00002.safetensors")
    with hub.fail(method, path, **how), pytest.raises(PublishError):
        push(hub, folder)
    assert files_of(hub) == before


def test_a_commit_whose_answer_is_lost_is_not_called_nothing_and_is_not_made_twice(hub, folder):
    with (
        hub.fail("POST", "/commit/", status="lost"),
        pytest.raises(PublishError, match="Push again: .* that changes nothing"),
    ):
        push(hub, folder)
    assert files_of(hub)["config.json"] == (folder / "config.json").read_bytes()
    commit = hub.repo(NAME).head.sha
    assert push(hub, folder).oid == commit


def test_a_change_meanwhile_is_not_overwritten(hub, folder):
    push(hub, folder)
    (folder / "config.json").write_text("{}")

    def slow(*given):
        edit(hub, "README.md", card(folder, NAME, Details({"license": "mit"}, "written meanwhile")).encode())
        return card(*given)

    with pytest.raises(PublishError, match="A commit has happened since.*Push again"):
        push(hub, folder, slow)
    push(hub, folder)
    assert read_card(files_of(hub)["README.md"].decode())[1].kept == "written meanwhile"


# Refusals ------------------------------------------------------------------------------------------------------------


def test_an_error_of_the_hub_says_what_is_wrong_and_that_nothing_was_published(hub, folder, monkeypatch):
    def check(message, **options):
        with pytest.raises(PublishError, match=f"{message}.*Nothing was published"):
            push(hub, folder, **options)

    check("403 about the model other/scalar", repo_id="other/scalar")
    with hub.offline():
        check("http://127.0.0.1:[0-9]+ cannot be reached")
    monkeypatch.delenv("HF_TOKEN")
    check("a valid token.*hf auth login", api=HfApi(endpoint=hub.url))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    check("HF_HUB_OFFLINE")
    assert not hub.repos


def test_a_public_repository_does_not_become_private_unasked(hub, folder):
    push(hub, folder)
    with pytest.raises(PublishError, match="already exists and is public"):
        push(hub, folder, private=True)
    push(hub, folder, private=True, repo_id="user/mine")
    assert not hub.repo(NAME).private and hub.repo("user/mine").private


def test_a_card_that_cannot_be_kept_or_breaks_the_rules_is_not_published(hub, folder):
    with pytest.raises(ValueError, match="license"):
        push(hub, folder, license="my own licence")
    assert not hub.repos
    push(hub, folder)
    edit(hub, "README.md", card(folder, NAME, Details({"license": "mit"})).replace(KEPT_END, "").encode())
    with pytest.raises(ValueError, match="marked lines of the card are broken"):
        push(hub, folder)
    assert len(hub.repo(NAME).commits) == 3


def test_a_repository_with_other_content_is_not_mixed_with(hub, folder):
    hub.api().create_repo(NAME)
    edit(hub, "weights.bin", b"mine")
    with pytest.raises(PublishError, match="holds weights.bin, which no push of this kind wrote"):
        push(hub, folder)
    assert files_of(hub) == {"weights.bin": b"mine"}
    hub.api().create_repo("user/empty")
    push(hub, folder, repo_id="user/empty")
    with pytest.raises(PublishError, match="which no push of this kind wrote"):
        push(hub, folder, lambda *given: card(*given, kind="adapter"), kind=ADAPTER, repo_id="user/empty")


# Privacy -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["hf_", "hf_oauth__refresh_", "api_org_"])
def test_a_token_in_a_file_is_not_published(hub, folder, prefix):
    (folder / "recipe.json").write_text('{"call": "hf_hub_download", "file": "hf_modeling_scalar_base_model.py"}')
    check_no_token(folder)
    token = f"{prefix}eyJhbGciOiJFZERTQSJ9"
    (folder / "recipe.json").write_text(json.dumps({"hub_token": token}))
    with pytest.raises(ValueError, match="recipe.json holds what looks like a token") as error:
        push(hub, folder)
    assert token not in str(error.value) and not hub.repos


@pytest.mark.parametrize("path", ["/home/me/runs/model", "C:\\Users\\me", "/scratch/runs"])
def test_a_path_of_this_machine_is_not_published(hub, folder, path):
    with pytest.raises(ValueError, match="paths of one machine") as error:
        push(hub, folder, lambda *given: card(*given, text=f"Trained in `{path}`."))
    assert path in str(error.value) and not hub.repos
    check_card("https://example.org/home/me a/data/b either/or s3://bucket/data/x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("C:\\Users\\jane\\tiny", "tiny"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("no sound: /home/jane doe/a b.mp4: stream 3/4", "no sound: a b.mp4: stream 3/4"),
        ("cannot read '/x/y/a.mp4' and /x/z/b.srt", "cannot read 'a.mp4' and b.srt"),
        ([{"root": "/data/msrvtt"}, 1, None], [{"root": "msrvtt"}, 1, None]),
    ],
)
def test_of_absolute_paths_the_last_component_is_kept(text, expected):
    assert without_folders(text) == expected
