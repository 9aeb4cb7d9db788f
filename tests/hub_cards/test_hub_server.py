"""The Hub of the tests answers the real clients as the Hub does."""

import json
import re
import threading

import datasets
import httpx2
import huggingface_hub
import pytest
import torch
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationCopy,
    CommitOperationDelete,
    HfFileSystem,
    ModelCard,
    get_session,
    hf_hub_download,
    snapshot_download,
)
from huggingface_hub.errors import (
    BadRequestError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from modeling_scalar import load_model
from tests.conftest import ROOT, make_batch
from tests.hub_cards.hub_server import HubServer, check_card
from trainer.lora import apply_adapters

CARD = "---\nlicense: mit\ntags:\n- one\n---\n# A model\n"
WEIGHTS = bytes(range(256)) * 40
FILES = {"README.md": CARD.encode(), "config.json": b"{}", "model.safetensors": WEIGHTS, "results/a/b.csv": b"1,2\n"}


@pytest.fixture
def api(hub):
    return hub.api()


def push(api, files=FILES, repo_id="user/scalar", repo_type="model", **options):
    """One commit of these files, into a new repository if need be."""
    if not api.repo_exists(repo_id, repo_type=repo_type):
        api.create_repo(repo_id, repo_type=repo_type, space_sdk="gradio" if repo_type == "space" else None)
    operations = [CommitOperationAdd(path, content) for path, content in files.items()]
    return api.create_commit(repo_id, operations, commit_message="Push", repo_type=repo_type, **options)


def status(error) -> int:
    return error.value.response.status_code


# Up and down -------------------------------------------------------------------------------------------------------


def test_a_folder_goes_up_in_one_commit_and_comes_down_unchanged(hub, api, tmp_path):
    for path, content in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    assert api.create_repo("user/scalar") == f"{hub.url}/user/scalar"
    pushed = api.upload_folder(
        repo_id="user/scalar", folder_path=tmp_path, commit_message="All", commit_description="x"
    )

    repo = hub.repo("user/scalar")
    assert [commit.title for commit in repo.commits] == ["initial commit", "All"]
    assert pushed.oid == repo.branches["main"] == repo.commits[-1].sha and re.fullmatch("[0-9a-f]{40}", pushed.oid)
    assert repo.files() == FILES | {".gitattributes": repo.commits[0].files[".gitattributes"]}
    assert list(repo.lfs.values()) == [WEIGHTS] and repo.commits[-1].lfs == {"model.safetensors"}

    folder = snapshot_download("user/scalar")
    assert folder.endswith(pushed.oid)
    for path, content in FILES.items():
        with open(hf_hub_download("user/scalar", path), "rb") as file:
            assert file.read() == content
    assert ModelCard.load("user/scalar").data.license == "mit"
    assert not hub.unknown


def test_the_second_origin_sees_lfs_content_but_no_token(hub, api):
    push(api)
    hf_hub_download("user/scalar", "model.safetensors")
    stored = [request for request in hub.requests if request.path.startswith("/storage/")]
    assert [request.method for request in stored] == ["PUT", "GET"] and not any(x.has_token for x in stored)
    assert all(request.has_token for request in hub.requests if request not in stored)
    assert hub.leaks() == []


def test_files_are_told_with_their_ids(hub, api):
    push(api)
    info = api.model_info("user/scalar", files_metadata=True)
    assert info.sha == hub.repo("user/scalar").commits[-1].sha and info.card_data.license == "mit" and not info.private
    siblings = {sibling.rfilename: sibling for sibling in info.siblings}
    assert set(siblings) == set(api.list_repo_files("user/scalar")) == {*FILES, ".gitattributes"}
    # Of `echo -n '{}' | git hash-object --stdin`.
    assert siblings["config.json"].blob_id == "9e26dfeeb6e641a33dae4961196235bdb965b21b"
    assert siblings["config.json"].lfs is None and siblings["model.safetensors"].lfs.size == len(WEIGHTS)

    tree = {entry.path: entry for entry in api.list_repo_tree("user/scalar", recursive=True)}
    assert set(tree) == {*siblings, "results", "results/a"}
    assert {entry.path for entry in api.list_repo_tree("user/scalar", "results")} == {"results/a"}
    assert tree["model.safetensors"].lfs.sha256 == siblings["model.safetensors"].lfs.sha256
    with pytest.raises(EntryNotFoundError):
        list(api.list_repo_tree("user/scalar", "nothing"))
    paths = api.get_paths_info("user/scalar", ["config.json", "results", "nothing"])
    assert [path.path for path in paths] == ["config.json", "results"]
    assert [commit.title for commit in api.list_repo_commits("user/scalar")] == ["Push", "initial commit"]


def test_long_listings_come_in_pages(hub, api):
    hub.page_size = 2
    push(api)
    assert len(list(api.list_repo_tree("user/scalar", recursive=True))) == 7
    for number in range(3):
        push(api, {"config.json": b"%d" % number})
    assert len(api.list_repo_commits("user/scalar")) == 5
    assert sum("cursor" in request.path for request in hub.requests) == 3 + 2


def test_what_did_not_change_makes_no_commit(hub, api):
    first, again = push(api), push(api)
    assert again.oid == first.oid and len(hub.repo("user/scalar").commits) == 2


@pytest.mark.parametrize(
    "path, content, repo_type, lfs",
    [
        ("notes.txt", "é".encode() * 300, "model", False),
        ("picture.png", b"\x89PNG\r\n\x1a\n\0\0", "model", True),
        ("text.png", b"no picture", "model", False),
        ("text.png", b"no picture", "dataset", True),
        ("a/weights.bin", b"text", "model", True),
        ("large.txt", b"a" * (10 * 1024**2 + 1), "model", True),
    ],
)
def test_names_content_and_size_decide_what_is_lfs(hub, api, path, content, repo_type, lfs):
    push(api, {path: content}, repo_type=repo_type)
    commit = hub.repo("user/scalar", repo_type).commits[-1]
    assert (path in commit.lfs) == lfs and commit.files[path] == content


def test_parts_of_files_can_be_read(hub, api):
    push(api)
    files = HfFileSystem(endpoint=hub.url, token=hub.token, skip_instance_cache=True)
    with files.open("user/scalar/model.safetensors", block_size=16) as file:
        file.seek(250)
        assert file.read(10) == WEIGHTS[250:260]
    url = f"{hub.url}/user/scalar/resolve/main/config.json"
    assert get_session().get(url, headers={"Range": "bytes=-1"}).content == b"}"
    assert get_session().get(url, headers={"Range": "bytes=2-"}).status_code == 416


def test_files_are_deleted_and_copied(hub, api):
    push(api, FILES | {"results/c.csv": b"3"})
    operations = [
        CommitOperationDelete("results/"),
        CommitOperationDelete("config.json"),
        CommitOperationCopy("model.safetensors", "copy.safetensors"),
        CommitOperationCopy("README.md", "docs/README.md"),
    ]
    api.create_commit("user/scalar", operations, commit_message="Tidy")
    files = hub.repo("user/scalar").files()
    assert set(files) == {".gitattributes", "README.md", "docs/README.md", "model.safetensors", "copy.safetensors"}
    assert files["copy.safetensors"] == WEIGHTS and files["docs/README.md"] == FILES["README.md"]
    with pytest.raises(EntryNotFoundError, match="doesn't exist: config.json"):
        api.delete_file("config.json", "user/scalar")


# Revisions ---------------------------------------------------------------------------------------------------------


def test_branches_and_tags(hub, api):
    first = push(api)
    api.create_tag("user/scalar", tag="v1")
    api.create_branch("user/scalar", branch="next/one")
    push(api, {"config.json": b"[]"}, revision="next/one")
    repo = hub.repo("user/scalar")
    assert repo.files()["config.json"] == repo.files("v1")["config.json"] == b"{}"
    assert repo.files("next/one")["config.json"] == b"[]"
    with open(hf_hub_download("user/scalar", "config.json", revision="next/one"), "rb") as file:
        assert file.read() == b"[]"
    assert api.model_info("user/scalar", revision=first.oid[:8]).sha == first.oid

    refs = api.list_repo_refs("user/scalar")
    assert {branch.name for branch in refs.branches} == {"main", "next/one"}
    assert [(tag.name, tag.target_commit) for tag in refs.tags] == [("v1", first.oid)]
    with pytest.raises(HfHubHTTPError) as error:
        api.create_branch("user/scalar", branch="next/one")
    assert status(error) == 409
    with pytest.raises(HfHubHTTPError) as error:
        api.create_tag("user/scalar", tag="v1")
    assert status(error) == 409
    with pytest.raises(BadRequestError, match="neither a branch nor a pull request"):
        push(api, {"config.json": b"1"}, revision="v1")
    api.delete_branch("user/scalar", branch="next/one")
    api.delete_tag("user/scalar", tag="v1")
    for revision in ("next/one", "v1", "0" * 40):
        with pytest.raises(RevisionNotFoundError):
            api.model_info("user/scalar", revision=revision)
        with pytest.raises(RevisionNotFoundError):
            hf_hub_download("user/scalar", "config.json", revision=revision)
        with pytest.raises(RevisionNotFoundError):
            push(api, {"config.json": b"1"}, revision=revision)


def test_a_parent_that_is_no_longer_the_head_is_refused(hub, api):
    first = push(api)
    push(api, {"config.json": b"1"}, parent_commit=first.oid)
    with pytest.raises(HfHubHTTPError, match="A commit has happened since") as error:
        push(api, {"config.json": b"2"}, parent_commit=first.oid)
    assert status(error) == 412 and hub.repo("user/scalar").files()["config.json"] == b"1"


def test_whoever_can_read_may_open_a_pull_request(hub, api):
    first = push(api)
    other = hub.api(hub.add_user("other"))
    opened = push(other, {"config.json": b"[]", "new.bin": b"new"}, create_pr=True)
    assert opened.pr_revision == "refs/pr/1" and opened.pr_url == f"{hub.url}/user/scalar/discussions/1"
    push(other, {"more.txt": b"more"}, revision="refs/pr/1")
    repo = hub.repo("user/scalar")
    assert repo.branches["main"] == first.oid and repo.pull_requests[1].author == "other"
    assert repo.files("refs/pr/1") == repo.files() | {"config.json": b"[]", "new.bin": b"new", "more.txt": b"more"}
    with open(hf_hub_download("user/scalar", "new.bin", revision="refs/pr/1"), "rb") as file:
        assert file.read() == b"new"

    # The owner may add to it, a third may not; each gets a number of its own.
    push(api, {"more.txt": b"most"}, revision="refs/pr/1")
    third = hub.api(hub.add_user("third"))
    with pytest.raises(HfHubHTTPError) as error:
        push(third, {"more.txt": b""}, revision="refs/pr/1")
    assert status(error) == 403
    push(api, {"more.txt": b"2"})
    assert push(third, {"more.txt": b"3"}, create_pr=True, parent_commit=first.oid).pr_num == 2
    assert repo.history("refs/pr/2")[-2].sha == first.oid
    assert [x.num for x in api.get_repo_discussions("user/scalar")] == [2, 1]
    assert api.get_discussion_details("user/scalar", 1).target_branch == "refs/heads/main"
    assert len(api.list_repo_refs("user/scalar", include_pull_requests=True).pull_requests) == 2
    with pytest.raises(RevisionNotFoundError):
        push(api, {"more.txt": b""}, revision="refs/pr/3")
    for token, code in ((False, 401), (hub.add_user("other", role="read"), 403)):
        with pytest.raises(HfHubHTTPError) as error:
            push(hub.api(token), {"more.txt": b"4"}, create_pr=True)
        assert status(error) == code
    assert len(repo.pull_requests) == 2


# Who may what ------------------------------------------------------------------------------------------------------


def test_private_repositories_are_not_there_for_others(hub, api):
    api.create_repo("user/scalar", private=True)
    push(api)
    assert hub.repo("user/scalar").private and api.model_info("user/scalar").private
    for token, code in ((hub.add_user("other"), 404), (False, 401)):
        other = hub.api(token)
        for call in (other.model_info, other.list_repo_files, other.list_repo_refs):
            with pytest.raises(RepositoryNotFoundError) as error:
                call("user/scalar")
            assert status(error) == code
        with pytest.raises(RepositoryNotFoundError):
            other.hf_hub_download("user/scalar", "config.json")
        with pytest.raises(RepositoryNotFoundError):
            other.upload_file(path_or_fileobj=b"", path_in_repo="x", repo_id="user/scalar", create_pr=True)
    api.update_repo_settings("user/scalar", private=False)
    assert hub.api(False).file_exists("user/scalar", "config.json")


def test_a_wrong_token_is_told_from_a_missing_repository(hub, api):
    push(api)
    wrong = hub.api("hf_" + "0" * 34)
    for call in (wrong.whoami, lambda: wrong.model_info("user/scalar"), lambda: wrong.create_repo("user/other")):
        with pytest.raises(HfHubHTTPError) as error:
            call()
        assert status(error) == 401 and not isinstance(error.value, RepositoryNotFoundError)
    assert api.whoami()["name"] == "user"
    with pytest.raises(HfHubHTTPError) as error:
        hub.api(False).create_repo("user/other")
    assert status(error) == 401


def test_the_repositories_of_others_are_read_only(hub, api):
    push(api)
    for token in (hub.add_user("other"), hub.add_user("user", role="read")):
        other = hub.api(token)
        other.auth_check("user/scalar")
        for call in (
            lambda who: push(who, {"config.json": b""}),
            lambda who: push(who, {"model.safetensors": b"1"}),
            lambda who: who.create_repo("user/new"),
            lambda who: who.delete_repo("user/scalar"),
            lambda who: who.create_branch("user/scalar", branch="b"),
            lambda who: who.create_tag("user/scalar", tag="t"),
            lambda who: who.update_repo_settings("user/scalar", private=True),
            lambda who: who.auth_check("user/scalar", write=True),
        ):
            with pytest.raises(HfHubHTTPError) as error:
                call(other)
            assert status(error) == 403
    assert list(hub.repos) == [("model", "user/scalar")] and len(hub.repo("user/scalar").commits) == 2
    with pytest.raises(HfHubHTTPError, match="role write"):
        push(other, {"config.json": b""})

    member = hub.api(hub.add_user("member", orgs=("lab",)))
    push(member, repo_id="lab/scalar")
    assert hub.repo("lab/scalar").commits[-1].author == "member"
    assert member.whoami()["orgs"][0]["name"] == "lab"


def test_names_clash_within_a_kind(hub, api):
    api.create_repo("user/scalar")
    api.create_repo("user/scalar", repo_type="dataset")
    with pytest.raises(HfHubHTTPError, match="already created this model repo") as error:
        api.create_repo("user/scalar")
    assert status(error) == 409
    assert api.create_repo("user/scalar", exist_ok=True).repo_id == "user/scalar"
    assert api.create_repo("user/scalar", repo_type="dataset", exist_ok=True).repo_type == "dataset"
    api.delete_repo("user/scalar")
    assert list(hub.repos) == [("dataset", "user/scalar")]
    with pytest.raises(KeyError):
        hub.repo("user/scalar")
    with pytest.raises(RepositoryNotFoundError):
        api.delete_repo("user/scalar")


def test_what_is_missing_is_told_apart(hub, api):
    push(api)
    with pytest.raises(EntryNotFoundError):
        hf_hub_download("user/scalar", "nothing.json")
    with pytest.raises(EntryNotFoundError):
        hf_hub_download("user/scalar", "results")
    assert not api.file_exists("user/scalar", "nothing.json") and not api.repo_exists("user/nothing")
    assert not api.revision_exists("user/scalar", "nothing")
    for repo_id in ("user/nothing", "nothing"):
        with pytest.raises(RepositoryNotFoundError):
            api.model_info(repo_id)
        with pytest.raises(RepositoryNotFoundError):
            hf_hub_download(repo_id, "config.json")
    with pytest.raises(RepositoryNotFoundError, match="assumes that the repo already exists"):
        api.create_commit("user/nothing", [CommitOperationAdd("a", b"")], commit_message="x")
    api.update_repo_settings("user/scalar", gated="auto")
    for token in (False, hub.add_user("other")):
        assert hub.api(token).model_info("user/scalar").gated == "auto"
        with pytest.raises(GatedRepoError):
            hf_hub_download("user/scalar", "config.json", token=token)
    hf_hub_download("user/scalar", "config.json")


# Cards -------------------------------------------------------------------------------------------------------------


def test_a_space_begins_with_a_card(hub, api):
    api.create_repo("user/app", repo_type="space", space_sdk="gradio")
    assert b"sdk: gradio" in hub.repo("user/app", "space").files()["README.md"]
    assert api.space_info("user/app").sdk == "gradio"


@pytest.mark.parametrize(
    "front, repo_type, error",
    [
        ("license: mit", "model", None),
        ("license: my-own", "model", "license"),
        ("license: [mit", "model", "bad yaml"),
        ("- mit", "model", "mapping"),
        ("license: mit\ntags: [1]", "model", "tags"),
        ("license: mit\nmodel-index:\n- results: []", "model", r"model-index\[0\].name"),
        ("license: mit\nmodel-index:\n- name: a\n  results:\n  - task: retrieval", "model", "task.type"),
        ("license: mit\nconfigs:\n- data_files: a", "dataset", "config_name"),
        ("sdk: gradio", "space", None),
        ("title: a", "space", "sdk"),
        ("sdk: gradio\ncolorFrom: beige", "space", "colorFrom"),
        ("sdk: gradio\nshort_description: " + "a" * 61, "space", "60"),
    ],
)
def test_errors_in_a_card_refuse_it_before_anything_is_uploaded(hub, api, front, repo_type, error):
    files = {"README.md": f"---\n{front}\n---\ntext\n".encode(), "model.safetensors": b"1"}
    if error is None:
        push(api, files, repo_type=repo_type)
        assert hub.repo("user/scalar", repo_type).files()["README.md"] == files["README.md"]
        return
    with pytest.raises(ValueError, match=error):
        push(api, files, repo_type=repo_type)
    repo = hub.repo("user/scalar", repo_type)
    assert len(repo.commits) == 1 and not repo.lfs


def test_a_card_that_passed_unseen_is_refused_by_the_commit(hub, api):
    with hub.fail("POST", "validate-yaml", status=200, body={"errors": [], "warnings": []}) as fault:
        with pytest.raises(BadRequestError, match='"license" must be one of'):
            push(api, {"README.md": b"---\nlicense: nothing\n---\n"})
    assert fault.hits == 1 and len(hub.repo("user/scalar").commits) == 1


def test_a_card_without_metadata_or_licence_is_warned_about(hub, api):
    assert check_card("text", "model") == check_card("---\nnever closed", "model")
    with pytest.warns(UserWarning, match="empty or missing yaml metadata"):
        push(api, {"README.md": b"text"})
    with pytest.warns(UserWarning, match='"license" is missing'):
        push(api, {"README.md": b"---\ntags: [a]\n---\n"})
    with pytest.raises(ValueError, match="license"):
        ModelCard("---\nlicense: nothing\n---\n").validate()


# What goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [500, 403, "drop"])
@pytest.mark.parametrize("method, path, after", [("PUT", "^/storage/", 1), ("POST", "/commit/main$", 0)])
def test_a_failure_in_the_middle_leaves_nothing(hub, api, failure, method, path, after):
    push(api)
    before = hub.repo("user/scalar").commits
    with hub.fail(method, path, failure, after=after) as fault:
        # Of an upload huggingface_hub tells the file, and what went wrong as the cause.
        expected = RuntimeError if method == "PUT" else (HfHubHTTPError, httpx2.RemoteProtocolError)
        with pytest.raises(expected):
            push(api, {"config.json": b"1", "a.bin": b"a", "b.bin": b"b"}, num_threads=1)
    # Uploads are tried six times if the server failed, a commit and a refusal once.
    assert fault.hits == (6 if method == "PUT" and failure != 403 else 1)
    assert hub.repo("user/scalar").commits == before
    push(api, {"config.json": b"1", "a.bin": b"a", "b.bin": b"b"})
    assert len(hub.repo("user/scalar").commits) == len(before) + 1


def test_a_failure_may_pass(hub, api):
    with hub.fail("PUT", "^/storage/", 503, times=2, headers={"Retry-After": "1"}) as fault:
        push(api)
    assert fault.hits == 2 and hub.repo("user/scalar").files()["model.safetensors"] == WEIGHTS


def test_an_answer_may_be_lost(hub, api):
    push(api)
    with hub.fail("POST", "/commit/", "lost"):
        with pytest.raises(httpx2.RemoteProtocolError):
            push(api, {"config.json": b"1"})
    assert hub.repo("user/scalar").files()["config.json"] == b"1"


def test_a_server_may_not_answer(hub):
    with hub.fail("GET", "whoami", "hang"):
        with pytest.raises(httpx2.ReadTimeout):
            get_session().get(f"{hub.url}/api/whoami-v2", timeout=0.05)
    assert get_session().get(f"{hub.url}/api/whoami-v2").status_code == 401


def test_a_commit_of_content_that_never_arrived_is_refused(hub, api):
    lost = CommitOperationAdd("a.bin", b"a")
    with hub.fail("POST", "objects/batch", 200, body={"objects": []}):
        api.create_repo("user/scalar")
        with pytest.raises(BadRequestError, match="a.bin: an LFS pointer pointed to a file that does not exist"):
            api.create_commit("user/scalar", [lost], commit_message="x")
    repo = hub.repo("user/scalar")
    assert len(repo.commits) == 1 and not repo.lfs
    assert get_session().put(f"{hub.storage_url}/model/user/scalar/{'0' * 64}", content=b"a").status_code == 400


def test_nobody_sees_half_a_commit(hub, api):
    push(api, {"a.txt": b"0", "b.txt": b"0"})
    seen, started, over = set(), threading.Event(), threading.Event()

    def look():
        while not over.is_set():
            entries = api.get_paths_info("user/scalar", ["a.txt", "b.txt"])
            seen.add(tuple(entry.blob_id for entry in entries))
            started.set()

    reader = threading.Thread(target=look)
    reader.start()
    assert started.wait(60)
    for number in range(1, 15):
        push(api, {"a.txt": b"%d" % number, "b.txt": b"%d" % number})
    over.set()
    reader.join()
    assert len(seen) > 1 and all(a == b for a, b in seen)


def test_the_hub_goes_away_and_comes_back(hub, api):
    push(api)
    cached = hf_hub_download("user/scalar", "config.json")
    url = hub.url
    with hub.offline():
        with pytest.raises(httpx2.ConnectError):
            api.model_info("user/scalar")
        with pytest.raises(LocalEntryNotFoundError):
            hf_hub_download("user/scalar", "model.safetensors")
        assert hf_hub_download("user/scalar", "config.json") == cached
    assert hub.url == url and api.model_info("user/scalar").id == "user/scalar"
    hub.stop()
    with pytest.raises(httpx2.ConnectError):
        api.whoami()


def test_leaked_tokens_are_found(hub, api):
    push(api, {"notes.txt": f"my token is {hub.token}".encode(), "weights.bin": hub.token.encode()})
    authorization = {"Authorization": f"Bearer {hub.token}"}
    get_session().get(f"{hub.url}/api/whoami-v2?token={hub.token}")
    get_session().get(f"{hub.url}/api/whoami-v2", headers={"X-Mine": hub.token})
    get_session().get(f"{hub.storage_url}/model/user/scalar/{'0' * 64}", headers=authorization)
    get_session().post(f"{hub.url}/api/validate-yaml", json={"content": hub.token, "repoType": "model"})
    places = "\n".join(hub.leaks())
    assert "user/scalar/notes.txt" in places and "LFS file of user/scalar" in places
    assert "GET /api/whoami-v2?token=" in places and "header x-mine" in places
    assert "header authorization of GET /storage" in places and "body of POST /api/validate-yaml" in places


def test_unknown_requests_are_noted(hub):
    assert get_session().get(f"{hub.url}/api/nothing").status_code == 404
    assert [tuple(request) for request in hub.unknown] == [("GET", "/api/nothing", False)]


# Clients here and in other processes -------------------------------------------------------------------------------


def test_clients_in_this_process_need_not_be_told(hub):
    huggingface_hub.create_repo("user/scalar")
    assert list(hub.repos) == [("model", "user/scalar")] and huggingface_hub.whoami()["name"] == "user"


def test_the_environment_has_nothing_of_the_user(monkeypatch, tmp_path):
    for name in ("HF_HUB_CACHE", "HUGGING_FACE_HUB_TOKEN", "https_proxy", "TRANSFORMERS_CACHE"):
        monkeypatch.setenv(name, "mine")
    with HubServer() as hub:
        env = hub.env(tmp_path)
        assert "mine" not in env.values() and "PATH" in env
        assert env["HF_ENDPOINT"] == hub.url and env["HF_TOKEN"] == hub.token
        assert "HF_TOKEN" not in hub.env(tmp_path, token=False)
        assert hub.env(tmp_path, token="hf_other")["HF_TOKEN"] == "hf_other"


def test_a_data_set_loads_by_its_name_alone(hub, api, run_python, tmp_path):
    front = "license: mit\nconfigs:\n"
    for config in ("clips", "queries"):
        path = f"{config}/test-00000-of-00001.parquet"
        front += f"- config_name: {config}\n  data_files:\n  - split: test\n    path: {config}/test-*.parquet\n"
        (tmp_path / config).mkdir()
        datasets.Dataset.from_dict({"id": [config, "b"], "vector": [[0.5, 1.0]] * 2}).to_parquet(tmp_path / path)
    (tmp_path / "README.md").write_text(f"---\n{front}---\n")
    api.create_repo("user/gallery", repo_type="dataset", private=True)
    api.upload_folder(repo_id="user/gallery", repo_type="dataset", folder_path=tmp_path)
    script = """
import datasets
clips = datasets.load_dataset("user/gallery", "clips")
queries = datasets.load_dataset("user/gallery", "queries", split="test", streaming=True)
print(list(clips), clips["test"][0], next(iter(queries)))
"""
    printed = run_python(script)
    assert printed == "['test'] {'id': 'clips', 'vector': [0.5, 1.0]} {'id': 'queries', 'vector': [0.5, 1.0]}\n"
    assert not hub.unknown and not hub.leaks()


def test_a_script_that_fails_fails_the_test(run_python):
    assert run_python("print(1)") == "1\n"
    with pytest.raises(AssertionError, match="ended with 1:(.|\n)*import of modeling_scalar halted"):
        run_python("import modeling_scalar")


@pytest.mark.slow
def test_a_metric_loads_by_its_name_alone(hub, api, run_python):
    api.create_repo("user/retrieval", repo_type="space", space_sdk="gradio")
    folder = ROOT / "eval" / "metrics" / "retrieval"
    api.upload_folder(repo_id="user/retrieval", repo_type="space", folder_path=folder)
    script = """
import evaluate
metric = evaluate.load("user/retrieval")
print(metric.compute(predictions=[[0.1, 0.9], [0.2, 0.8]], references=[1, 0])["recall_at_1"])
"""
    assert run_python(script) == "50.0\n"
    assert not hub.unknown and not hub.leaks()


@pytest.mark.slow
def test_models_and_adapters_load_by_their_names_alone(hub, api, run_python, tmp_path, tiny_model_dir):
    base, processor = load_model(tiny_model_dir)
    base.save_pretrained(tmp_path / "base", max_shard_size="50KB")  # an index and shards
    processor.save_pretrained(tmp_path / "base")
    api.create_repo("user/scalar", private=True)
    pushed = api.upload_folder(repo_id="user/scalar", folder_path=tmp_path / "base")

    model = apply_adapters(base, matching=False).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1
    model.save_pretrained(tmp_path / "adapter")
    base.config.save_pretrained(tmp_path / "adapter")
    processor.save_pretrained(tmp_path / "adapter")
    (tmp_path / "adapter" / "README.md").unlink()
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    config |= {"base_model_name_or_path": "user/scalar", "revision": pushed.oid}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    api.create_repo("user/adapter", private=True)
    api.upload_folder(repo_id="user/adapter", folder_path=tmp_path / "adapter")

    batch = make_batch()
    torch.save(batch, tmp_path / "batch.pt")
    script = f"""
import torch
from peft import AutoPeftModelForFeatureExtraction
from transformers import AutoModel, AutoProcessor
batch = torch.load({str(tmp_path / "batch.pt")!r})
for load, name in (
    (AutoModel, "user/scalar"), (AutoPeftModelForFeatureExtraction, "user/adapter"), (AutoModel, "user/adapter")
):
    model = load.from_pretrained(name, trust_remote_code=True).eval()
    print(type(AutoProcessor.from_pretrained(name, trust_remote_code=True)).__name__, type(model).__name__)
    with torch.no_grad():
        torch.save(model(**batch).scores, {str(tmp_path)!r} + f"/{{load.__name__}}-{{name[5:]}}.pt")
"""
    printed = run_python(script)
    assert printed.count("ScalarProcessor") == 3 and not hub.unknown and not hub.leaks()
    with torch.no_grad():
        adapted = model(**batch).scores
        with model.disable_adapter():
            plain = model(**batch).scores
    assert (adapted - plain).abs().max() > 1e-3
    for name, expected in {
        "AutoModel-scalar": plain,
        "AutoPeftModelForFeatureExtraction-adapter": adapted,
        "AutoModel-adapter": adapted,
    }.items():
        torch.testing.assert_close(torch.load(tmp_path / f"{name}.pt"), expected, atol=1e-6, rtol=0)

    # From the cache, with nobody to ask; and not for others.
    number = len(hub.requests)
    assert run_python(script, env={"HF_HUB_OFFLINE": "1"}) == printed and len(hub.requests) == number
    with pytest.raises(AssertionError, match="user/scalar"):
        run_python(script, token=hub.add_user("other"), env={"HF_HOME": str(tmp_path / "empty")})
