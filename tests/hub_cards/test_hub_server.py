"""The Hub of the tests answers the real clients; it tells what it does not know, and who leaks a token."""

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, get_session, hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

from tests.hub_cards.hub_server import HubServer

WEIGHTS = bytes(range(256)) * 40
FILES = {
    "README.md": b"---\nlicense: mit\n---\n# A model\n",
    "config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "results/a/b.csv": b"1,2\n",
}


def push(api, files=FILES, repo_id="user/scalar", **options):
    """One commit of these files, into a new repository if need be."""
    if not api.repo_exists(repo_id):
        api.create_repo(repo_id)
    operations = [CommitOperationAdd(path, content) for path, content in files.items()]
    return api.create_commit(repo_id, operations, commit_message="Push", **options)


def test_files_go_up_in_one_commit_and_come_down_unchanged(hub):
    api = hub.api()
    pushed = push(api)
    repo = hub.repo("user/scalar")
    assert [commit.title for commit in repo.commits] == ["initial commit", "Push"]
    assert pushed.oid == repo.branches["main"] == api.model_info("user/scalar").sha
    assert repo.files() == FILES | {".gitattributes": repo.commits[0].files[".gitattributes"]}
    assert list(repo.lfs.values()) == [WEIGHTS] and repo.commits[-1].lfs == {"model.safetensors"}
    assert snapshot_download("user/scalar").endswith(pushed.oid)
    for path, content in FILES.items():
        with open(hf_hub_download("user/scalar", path), "rb") as file:
            assert file.read() == content
    assert push(api).oid == pushed.oid  # nothing has changed
    api.create_commit("user/scalar", [CommitOperationDelete("config.json")], commit_message="Tidy")
    assert "config.json" not in repo.files() and len(repo.commits) == 3
    assert not hub.unknown and not hub.leaks()


def test_what_is_missing_is_distinguished(hub):
    push(hub.api())
    with pytest.raises(RevisionNotFoundError):
        hub.api().model_info("user/scalar", revision="nothing")
    with pytest.raises(RepositoryNotFoundError):
        hub.api().model_info("user/nothing")
    with pytest.raises(HfHubHTTPError) as error:
        hub.api("hf_" + "0" * 34).model_info("user/scalar")
    assert error.value.response.status_code == 401 and not isinstance(error.value, RepositoryNotFoundError)


def test_a_parent_that_is_no_longer_the_head_is_refused(hub):
    first = push(hub.api())
    push(hub.api(), {"config.json": b"1"}, parent_commit=first.oid)
    with pytest.raises(HfHubHTTPError, match="A commit has happened since"):
        push(hub.api(), {"config.json": b"2"}, parent_commit=first.oid)
    assert hub.repo("user/scalar").files()["config.json"] == b"1"


def test_leaked_tokens_are_found(hub):
    push(hub.api(), {"notes.txt": f"my token is {hub.token}".encode(), "weights.bin": b"\0" + hub.token.encode()})
    authorization = {"Authorization": f"Bearer {hub.token}"}
    get_session().get(f"{hub.url}/api/whoami-v2?token={hub.token}", headers=authorization)
    get_session().get(f"{hub.url}/api/whoami-v2", headers=authorization | {"X-Mine": hub.token})
    get_session().put(f"{hub.storage_url}/model/user/nothing/{'0' * 64}", headers=authorization)
    get_session().post(f"{hub.url}/api/validate-yaml", json={"content": hub.token, "repoType": "model"})
    places = "\n".join(hub.leaks())
    assert "user/scalar/notes.txt" in places and "LFS file of user/scalar" in places
    assert "GET /api/whoami-v2?token=" in places and "header x-mine" in places
    assert "header authorization of PUT /storage" in places and "body of POST /api/validate-yaml" in places


def test_unknown_requests_are_noted(hub):
    assert get_session().get(f"{hub.url}/api/nothing").status_code == 404
    assert [tuple(request) for request in hub.unknown] == [("GET", "/api/nothing")]


def test_the_servers_own_failures_fail_the_test():
    with pytest.raises(AssertionError, match="The test server failed"), HubServer() as hub:
        get_session().post(f"{hub.url}/api/validate-yaml", json={})


def test_the_hub_goes_away_and_comes_back(hub):
    push(hub.api())
    url = hub.url
    with hub.offline(), pytest.raises(httpx2.ConnectError):
        hub.api().model_info("user/scalar")
    assert hub.url == url and hub.api().model_info("user/scalar").id == "user/scalar"


def test_clients_in_this_process_need_no_report(hub):
    huggingface_hub.create_repo("user/scalar")
    assert list(hub.repos) == [("model", "user/scalar")] and huggingface_hub.whoami()["name"] == "user"


def test_the_environment_has_nothing_of_the_user(monkeypatch, tmp_path):
    for name in ("HF_HUB_CACHE", "HUGGING_FACE_HUB_TOKEN", "https_proxy", "TRANSFORMERS_CACHE"):
        monkeypatch.setenv(name, "mine")
    with HubServer() as hub:
        env = hub.env(tmp_path)
        assert "mine" not in env.values() and "PATH" in env
        assert env["HF_ENDPOINT"] == hub.url and env["HF_TOKEN"] == hub.token


def test_a_script_that_fails_fails_the_test(run_python):
    assert run_python("print(1)") == "1\n"
    with pytest.raises(AssertionError, match="ended with 1:(.|\n)*import of modeling_scalar halted"):
        run_python("import modeling_scalar")
