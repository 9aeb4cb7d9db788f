"""One commit or none: what a push makes of a repository, and what it leaves when it fails."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
import torch
from huggingface_hub import HfApi
from huggingface_hub.utils import yaml_dump
from safetensors.torch import save_file

from hub_cards.adapter import KIND as ADAPTER
from hub_cards.card import KEPT_BEGIN, KEPT_END, Details, read_card
from hub_cards.hub import publishing
from hub_cards.hub.errors import PublishError
from hub_cards.hub.privacy import check_no_token
from hub_cards.hub.publishing import publish, read_record, write_record
from hub_cards.model import KIND as MODEL
from hub_cards.settings import MetricPush
from hub_cards.space import KIND as SPACE
from tests.hub_cards.pushing import Target, settings_of

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


def push(hub, folder, make_card=card, details=None, api=None, **how):
    kind, target = how.pop("kind", MODEL), Target(how.pop("repo_id", NAME), **how)
    settings = settings_of(MetricPush, target, details or Details({"license": "mit"}), folder=folder)
    return publish(api or hub.api(), kind, settings, folder, make_card)


def preview(folder, output):
    """What a dry run writes."""

    def stage(settings, staged, api):
        shutil.copytree(folder, staged, dirs_exist_ok=True)

    settings = settings_of(MetricPush, Target(NAME), Details({"license": "mit"}), output, folder=folder)
    return publishing.push(settings, replace(MODEL, stage=stage, make_card=card))


def files_of(hub, revision="main", repo_id=NAME):
    return {name: content for name, content in hub.repo(repo_id).files(revision).items() if name != ".gitattributes"}


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
    assert published.commit == repo.commits[-1].sha and published.changed and published.pull_request is None
    assert published.url == f"{hub.url}/{NAME}/commit/{published.commit}"
    assert hub.leaks() == [] and hub.unknown == []


def test_a_name_without_an_owner_is_ones_own(hub, folder):
    assert push(hub, folder, repo_id="scalar", private=True).repo_id == NAME
    assert hub.repo(NAME).private and f"# {NAME}\n".encode() in files_of(hub)["README.md"]


def test_pushing_the_same_again_changes_nothing(hub, folder):
    first, second = push(hub, folder), push(hub, folder)
    assert second.commit == first.commit and first.changed and not second.changed
    assert len(hub.repo(NAME).commits) == 2


def test_what_a_person_wrote_is_kept_and_what_is_gone_goes(hub, folder):
    push(hub, folder, details=Details({"license": "mit", "language": ["en", "de"]}))
    text = files_of(hub)["README.md"].decode()
    written = "A note, *kept*.\n\n| a | b |\n|---|---|\n"
    edit(hub, "README.md", text.replace(f"{KEPT_BEGIN}\n", f"{KEPT_BEGIN}\n{written}").encode())
    edit(hub, "notebook.ipynb", b"a person's")
    (folder / "model-00002-of-00002.safetensors").unlink()
    (folder / "results" / "a" / "results.json").unlink()
    (folder / "config.json").write_text('{"a": 2}')

    push(hub, folder, lambda *given: card(*given, text="Trained again."), details=Details())
    now = files_of(hub)
    assert set(now) == {"README.md", "config.json", "model-00001-of-00002.safetensors", "notebook.ipynb"}
    kind, details = read_card(now["README.md"].decode())
    assert (kind, details.data) == ("model", {"license": "mit", "language": ["en", "de"]})
    assert written in details.kept and "Trained again." in now["README.md"].decode()
    assert now["config.json"] == b'{"a": 2}' and len(hub.repo(NAME).commits) == 5


def test_of_a_persons_files_none_goes_that_only_looks_like_ours(hub, folder):
    push(hub, folder)
    theirs = {
        "results/notes.md",
        "results/mine/plot.png",
        "model_card.pdf",
        "model-small.safetensors",
        "tokenizer_2.json",
    }
    for name in theirs:
        edit(hub, name, b"a person's")
    (folder / "config.json").write_text('{"a": 2}')
    push(hub, folder)
    assert theirs <= set(files_of(hub))
    space = folder.parent / "space"
    space.mkdir()
    (space / "Dockerfile").write_text("FROM scratch")

    def space_card(*given):
        return card(*given, kind="space").replace("tags:", "title: a\nsdk: docker\ntags:")

    api = hub.api()
    push(hub, space, space_card, kind=SPACE, repo_id="user/app")
    api.upload_file(path_or_fileobj=b"x", path_in_repo="helpers.py", repo_id="user/app", repo_type="space")
    push(hub, space, space_card, kind=SPACE, repo_id="user/app")
    assert set(hub.repo("user/app", "space").files()) == {".gitattributes", "README.md", "Dockerfile", "helpers.py"}


def test_a_card_that_was_saved_with_a_signature_keeps_its_licence(hub, folder):
    push(hub, folder, details=Details({"license": "mit", "language": ["en"]}))
    edit(hub, "README.md", b"\xef\xbb\xbf" + files_of(hub)["README.md"])
    push(hub, folder, details=Details())
    assert read_card(files_of(hub)["README.md"].decode())[1] == Details({"license": "mit", "language": ["en"]})


def test_the_card_has_the_name_that_the_hub_gives(hub, folder):
    """A repository that was renamed, or is written in other capitals: the Hub leads from the old name to its own."""
    push(hub, folder)
    (folder / "config.json").write_text("{}")
    there = {"Location": f"/api/models/{NAME}"}
    with hub.fail("GET", "/api/models/user/old", status=307, headers=there):
        assert push(hub, folder, repo_id="user/old").repo_id == NAME
    assert f"# {NAME}\n" in files_of(hub)["README.md"].decode() and files_of(hub)["config.json"] == b"{}"


def test_a_branch_is_made_and_main_stays(hub, folder):
    push(hub, folder)
    before = files_of(hub)
    (folder / "config.json").write_text('{"a": 2}')
    published = push(hub, folder, revision="v2")
    assert files_of(hub) == before and files_of(hub, "v2")["config.json"] == b'{"a": 2}'
    assert hub.repo(NAME).branches["v2"] == published.commit
    assert push(hub, folder, revision="v2").commit == published.commit


def test_main_may_be_named(hub, folder):
    assert push(hub, folder, revision="main").changed
    assert files_of(hub) == contents(folder) and not push(hub, folder, revision="main").changed


def test_a_new_repository_on_a_branch(hub, folder):
    published = push(hub, folder, revision="v1")
    assert files_of(hub) == {} and files_of(hub, "v1") == contents(folder)
    assert hub.repo(NAME).branches["v1"] == published.commit


def test_a_pull_request_and_a_second_commit_to_it(hub, folder):
    push(hub, folder)
    before = files_of(hub)
    (folder / "config.json").write_text('{"a": 2}')
    stranger = hub.api(hub.add_user("stranger"))
    opened = push(hub, folder, api=stranger, create_pr=True)
    assert opened.pull_request == f"{hub.url}/{NAME}/discussions/1"
    assert files_of(hub) == before and files_of(hub, "refs/pr/1")["config.json"] == b'{"a": 2}'
    (folder / "config.json").write_text('{"a": 3}')
    push(hub, folder, api=stranger, revision="refs/pr/1")
    assert files_of(hub) == before and files_of(hub, "refs/pr/1")["config.json"] == b'{"a": 3}'


def test_a_dry_run_reaches_nobody(hub, folder, tmp_path):
    with hub.offline():
        text = preview(folder, tmp_path / "out")
    assert (tmp_path / "out" / "README.md").read_text() == text == card(folder, NAME, Details({"license": "mit"}))
    written = contents(tmp_path / "out")
    assert written == contents(folder) | {"README.md": text.encode()} and hub.requests == []
    with pytest.raises(ValueError, match="out must be a new or an empty folder"):
        preview(folder, tmp_path / "out")


# Failures ------------------------------------------------------------------------------------------------------------

FAULTS = {
    "the first upload of weights": ("PUT", "/storage/", {"status": 500}),
    "the second upload of weights": ("PUT", "/storage/", {"status": 500, "after": 1}),
    "the connection at an upload": ("PUT", "/storage/", {"status": "drop", "after": 1}),
    "the question what is LFS": ("POST", "/preupload/", {"status": 503}),
    "the check of the card": ("POST", "/validate-yaml", {"status": 500}),
    "the commit": ("POST", "/commit/", {"status": 500}),
    "the connection at the commit": ("POST", "/commit/", {"status": "drop"}),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("revision", [None, "v2"])
def test_a_failure_in_the_middle_publishes_nothing_and_the_next_push_goes_on(hub, folder, fault, revision):
    method, path, how = FAULTS[fault]
    with hub.fail(method, path, **how), pytest.raises(PublishError, match="Nothing was published|changes nothing"):
        push(hub, folder, revision=revision)
    assert all(not files_of(hub, branch) for kind, name in hub.repos for branch in hub.repo(name).branches)
    push(hub, folder, revision=revision)
    assert files_of(hub, revision or "main") == contents(folder)

    before, branches = files_of(hub), dict(hub.repo(NAME).branches)
    save_file({"weight": torch.zeros(5)}, folder / "model-00001-of-00002.safetensors")
    save_file({"weight": torch.zeros(6)}, folder / "model-00002-of-00002.safetensors")
    with hub.fail(method, path, **how), pytest.raises(PublishError, match="Nothing was published|changes nothing"):
        push(hub, folder, revision=revision)
    assert files_of(hub) == before and hub.repo(NAME).branches == branches
    assert hub.leaks() == []


@pytest.mark.parametrize("status", [402, 403, 413, 503])
def test_what_the_hub_says_is_reported(hub, folder, status):
    reason = "Storage limit reached."
    with (
        hub.fail("POST", "/api/repos/create", status=status, body={"error": reason}),
        pytest.raises(PublishError, match="Storage limit reached.*Nothing was published"),
    ):
        push(hub, folder)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"status": 200, "body": b"<html>Please log in</html>"}, "is not a Hub"),
        ({"status": 302, "headers": {"Location": "/api/whoami-v2"}}, "redirects"),
    ],
)
def test_what_is_no_hub_is_reported(hub, folder, how, message):
    with hub.fail("GET", "/whoami-v2", **how), pytest.raises(PublishError, match=f"{message}.*Nothing was published"):
        push(hub, folder)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_commit_whose_answer_is_lost_is_not_called_nothing_and_is_not_made_twice(hub, folder, is_new):
    if not is_new:
        push(hub, folder)
        (folder / "config.json").write_text("{}")
    with (
        hub.fail("POST", "/commit/", status="lost"),
        pytest.raises(PublishError, match="pushing again changes nothing"),
    ):
        push(hub, folder)
    assert files_of(hub)["config.json"] == (folder / "config.json").read_bytes()
    assert not push(hub, folder).changed


def test_a_change_meanwhile_is_not_overwritten(hub, folder):
    push(hub, folder)
    (folder / "config.json").write_text("{}")

    def slow(*given):
        edit(hub, "README.md", card(folder, NAME, Details({"license": "mit"}, "written meanwhile")).encode())
        return card(*given)

    with pytest.raises(PublishError, match="has been changed in the meantime. Push again"):
        push(hub, folder, slow)
    push(hub, folder)
    assert read_card(files_of(hub)["README.md"].decode())[1].kept == "written meanwhile"


# Refusals ------------------------------------------------------------------------------------------------------------


def test_a_wrong_token(hub, folder):
    with pytest.raises(PublishError, match="does not accept the token.*hf auth login.*Nothing was published"):
        push(hub, folder, api=hub.api("hf_" + "x" * 34))


def test_no_token(hub, folder, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(PublishError, match="There is no token.*hf auth login"):
        push(hub, folder, api=HfApi(endpoint=hub.url))


def test_a_repository_behind_a_gate(hub, folder):
    push(hub, folder)
    hub.repo(NAME).gated = "manual"
    with pytest.raises(PublishError, match=f"The model {NAME} is gated.*Nothing was published"):
        push(hub, folder, api=hub.api(hub.add_user("stranger")), create_pr=True)


def test_the_name_of_somebody_else(hub, folder):
    with pytest.raises(PublishError, match="refuses to let this token write to the model other/scalar"):
        push(hub, folder, repo_id="other/scalar")
    token = hub.add_user("member", orgs=("lab",))
    push(hub, folder, repo_id="lab/scalar", api=hub.api(token))
    assert files_of(hub, repo_id="lab/scalar") == contents(folder)


@pytest.mark.parametrize("how", [{"create_pr": True}, {"revision": "refs/pr/1"}])
def test_a_pull_request_needs_a_repository(hub, folder, how):
    with pytest.raises(PublishError, match=f"The model {NAME} does not exist.*Nothing was published"):
        push(hub, folder, **how)
    assert not hub.repos


def test_a_pull_request_that_is_not_there(hub, folder):
    push(hub, folder)
    with pytest.raises(PublishError, match="no revision 'refs/pr/7'"):
        push(hub, folder, revision="refs/pr/7")


def test_no_network(hub, folder):
    with hub.offline(), pytest.raises(PublishError, match=f"{hub.url} cannot be reached.*Nothing was published"):
        push(hub, folder)


def test_offline_by_choice(hub, folder, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PublishError, match="HF_HUB_OFFLINE is set.*--dry-run"):
        push(hub, folder)


def test_a_name_that_is_taken_by_something_else(hub, folder):
    push(hub, folder)
    before = files_of(hub)

    def adapter_card(*given):
        return card(*given, kind="adapter")

    with pytest.raises(PublishError, match="holds a push of kind model; this adapter would mix with it.*--replace"):
        push(hub, folder, adapter_card, kind=ADAPTER)
    assert files_of(hub) == before
    push(hub, folder, adapter_card, kind=ADAPTER, replace=True)
    assert read_card(files_of(hub)["README.md"].decode())[0] == "adapter"


@pytest.mark.parametrize("name", ["README.md", "weights.bin"])
def test_what_somebody_else_put_there_is_not_replaced_unasked(hub, folder, name):
    hub.api().create_repo(NAME)
    edit(hub, name, b"---\nlicense: mit\n---\nWritten by hand.")
    with pytest.raises(PublishError, match="which no push wrote.*--replace"):
        push(hub, folder)
    assert files_of(hub) == {name: b"---\nlicense: mit\n---\nWritten by hand."}
    push(hub, folder, replace=True)
    assert files_of(hub) == contents(folder)


def test_an_empty_repository_is_filled(hub, folder):
    hub.api().create_repo(NAME)
    push(hub, folder)
    assert files_of(hub) == contents(folder)


def test_a_public_repository_does_not_become_private_unasked(hub, folder):
    push(hub, folder)
    with pytest.raises(PublishError, match="already exists and is public"):
        push(hub, folder, private=True)
    assert not hub.repo(NAME).private


def test_a_card_with_broken_marks_is_not_lost(hub, folder):
    push(hub, folder)
    edit(hub, "README.md", card(folder, NAME, Details({"license": "mit"})).replace(KEPT_END, "").encode())
    with pytest.raises(ValueError, match="marked lines of the card are broken"):
        push(hub, folder)
    assert len(hub.repo(NAME).commits) == 3


def test_a_card_against_the_rules_is_not_published(hub, folder):
    with pytest.raises(ValueError, match="license"):
        push(hub, folder, details=Details({"license": "my own licence"}))
    assert not hub.repos


def test_a_token_in_a_file_is_not_published(hub, folder, tmp_path):
    (folder / "recipe.json").write_text(json.dumps({"hub_token": hub.token}))
    for act in (push, lambda *_: preview(folder, tmp_path / "out")):
        with pytest.raises(ValueError, match="recipe.json holds what looks like a token") as error:
            act(hub, folder)
        assert hub.token not in str(error.value)
    assert not hub.repos and not (tmp_path / "out").exists()


@pytest.mark.parametrize("prefix", ["hf_", "hf_oauth_", "hf_oauth__refresh_", "hf_jwt_", "api_org_"])
def test_tokens_of_every_kind_are_found(folder, prefix):
    check_no_token(folder)
    (folder / "config.json").write_text('{"call": "hf_hub_download", "file": "hf_modeling_scalar_base_model.py"}')
    check_no_token(folder)
    (folder / "config.json").write_text(f'{{"x": "{prefix}eyJhbGciOiJFZERTQSJ9.eyJz"}}')
    with pytest.raises(ValueError, match="config.json holds what looks like a token"):
        check_no_token(folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "a/b/c"}, "Repo id"),
        ({"name": "a b"}, "Repo id"),
        ({"create_pr": True, "revision": "v2"}, "refs/pr/N"),
    ],
)
def test_a_target_that_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        MetricPush(**{"folder": Path(), "name": NAME} | arguments)


def test_a_folder_knows_where_it_was_pushed(hub, folder, tmp_path):
    published = push(hub, folder)
    assert read_record(tmp_path, hub.url) is None
    write_record(tmp_path, hub.url, published)
    assert read_record(tmp_path, hub.url) == (NAME, published.commit, None)
    assert read_record(tmp_path, "https://huggingface.co") is None  # another Hub
    (tmp_path / "hub.json").write_text('{"repo_id": 1}')
    with pytest.raises(ValueError, match="hub.json is not as a push writes it"):
        read_record(tmp_path, hub.url)


def test_errors_of_the_network_are_those_of_huggingface_hub():
    from huggingface_hub.errors import HfHubHTTPError

    assert issubclass(HfHubHTTPError, httpx2.HTTPError)


def test_what_a_person_added_does_not_stop_the_next_push(hub, folder):
    """A picture put there on the Hub, linked from the kept text, beside a command with a path."""
    push(hub, folder)
    edit(hub, "demo.gif", b"GIF89a")
    text = files_of(hub)["README.md"].decode()
    note = "![the demo](demo.gif)\n\n    docker run -v /data/clips:/data image\n\n[More Information Needed]\n"
    edit(hub, "README.md", text.replace(f"{KEPT_BEGIN}\n", f"{KEPT_BEGIN}\n{note}").encode())
    (folder / "config.json").write_text("{}")
    push(hub, folder)
    assert note in files_of(hub)["README.md"].decode() and "demo.gif" in files_of(hub)


def test_front_matter_that_a_person_added_is_kept(hub, folder):
    push(hub, folder)
    text = files_of(hub)["README.md"].decode()
    edit(hub, "README.md", text.replace("---\n", "---\nextra_gated_prompt: Say who you are.\n", 1).encode())
    (folder / "config.json").write_text("{}")
    push(hub, folder)
    assert "\nextra_gated_prompt: Say who you are.\n" in files_of(hub)["README.md"].decode()
