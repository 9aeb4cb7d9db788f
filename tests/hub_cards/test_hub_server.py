"""The Hub of the tests finds leaked tokens."""

from huggingface_hub import CommitOperationAdd, get_session


def push(api, files, repo_id="user/scalar", **options):
    """One commit of these files, into a new repository if need be."""
    if not api.repo_exists(repo_id):
        api.create_repo(repo_id)
    operations = [CommitOperationAdd(path, content) for path, content in files.items()]
    return api.create_commit(repo_id, operations, commit_message="Push", **options)


def test_leaked_tokens_are_found(hub):
    push(hub.api(), {"notes.txt": f"my token is {hub.token}".encode(), "weights.bin": b"\0" + hub.token.encode()})
    authorization = {"Authorization": f"Bearer {hub.token}"}
    get_session().get(f"{hub.url}/?token={hub.token}", headers=authorization | {"X-Mine": hub.token})
    get_session().put(f"{hub.storage_url}/model/user/nothing/{'0' * 64}", headers=authorization)
    get_session().post(f"{hub.url}/api/validate-yaml", json={"content": hub.token, "repoType": "model"})
    places = "\n".join(hub.leaks())
    assert "user/scalar/notes.txt" in places and "user/scalar/weights.bin" in places
    assert "GET /?token=" in places and "header x-mine" in places
    assert "header authorization of PUT /storage" in places and "body of POST /api/validate-yaml" in places
