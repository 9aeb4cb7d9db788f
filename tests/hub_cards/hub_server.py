"""A Hub on 127.0.0.1 for tests: what the clients ask of the real one in these tests, and no more.

Repositories live in memory. As on the Hub, binary files are LFS (here those with a zero byte near the beginning); LFS
content is uploaded to and fetched from another origin ("localhost" for "127.0.0.1"), which must never see a token; a
commit call is the only thing that changes a repository. Xet is not spoken: clients need `HF_HUB_DISABLE_XET=1`. Every
token may write everywhere: what a push may not do it has to find out before.

Example:

```python
with HubServer() as hub:
    api = hub.api()
    api.create_repo("user/scalar")
    with hub.fail("PUT", "^/storage/", status="drop", after=1):  # every LFS upload but the first
        ...
    hub.repo("user/scalar").files()["README.md"]
```
"""

import base64
import hashlib
import json
import re
import secrets
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from huggingface_hub import HfApi

# Environment variables of the user's own Hub and network.
FOREIGN = re.compile(r"(HF|HUGGING_?FACE|TRANSFORMERS|XDG)_|.*_proxy$", re.IGNORECASE)


class HubError(Exception):
    """An answer that is not a success."""

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self.answer = Answer({"error": message}, status, headers)


@dataclass
class Answer:
    body: Any = b""  # JSON unless bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Commit:
    sha: str
    title: str
    files: dict[str, bytes]

    def entry(self, path: str) -> dict[str, Any]:
        """A file as a tree lists it."""
        content = self.files[path]
        oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry = {"type": "file", "oid": oid, "size": len(content), "path": path}
        if is_lfs(content):
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        return entry


def is_lfs(content: bytes) -> bool:
    """Whether git has a pointer in the place of a file."""
    return b"\0" in content[:512]


@dataclass
class Repo:
    """One repository.

    Attributes:
        commits (`list[Commit]`): oldest first.
        lfs (`dict[str, bytes]`): LFS content by sha256, also what was uploaded and never committed.
    """

    id: str
    type: str
    private: bool = False
    commits: list[Commit] = field(default_factory=list)
    lfs: dict[str, bytes] = field(default_factory=dict)

    @property
    def head(self) -> Commit:
        return self.commits[-1]

    def files(self) -> dict[str, bytes]:
        """Content by path; also of the .gitattributes that every repository has from the start."""
        return self.head.files

    def commit(self, revision: str) -> Commit:
        """The commit of `main` or of an id; HubError 404, RevisionNotFound, if there is none."""
        for commit in reversed(self.commits):
            if revision in ("main", commit.sha):
                return commit
        raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def add_commit(self, title: str, files: dict[str, bytes]) -> str:
        self.commits.append(Commit(secrets.token_hex(20), title, files))
        return self.head.sha


ROUTES: list[tuple[str, re.Pattern, Callable]] = []


def route(methods: str, pattern: str) -> Callable:
    """Register a method of HubServer; the groups of the pattern are its arguments, percent-decoded."""
    pattern = pattern.replace("<repo>", "/api/(?P<kind>model|dataset|space)s/(?P<id>[^/]+/[^/]+)")
    pattern = pattern.replace("<files>", "/(?:(?P<kind>dataset|space)s/)?(?P<id>[^/]+/[^/]+)")

    def register(function: Callable) -> Callable:
        ROUTES.append((methods, re.compile(pattern), function))
        return function

    return register


class HubServer:
    """The server; a context manager, which raises at its end if the server was asked what it does not know, or if the
    token was where it does not belong: in a request outside the Authorization header to the Hub, or in a file.

    Attributes:
        url (`str`): what `HF_ENDPOINT` is to be.
        token (`str`): of the one user, "user", for reading and writing.
        requests (`list[tuple[str, str]]`): all requests so far: method and path, percent-encoded and with the query.
    """

    def __init__(self):
        self.repos: dict[tuple[str, str], Repo] = {}
        self.requests: list[tuple[str, str]] = []
        self.token = "hf_" + secrets.token_hex(17)
        self._wrong: list[str] = []
        self._fault: Callable[[str, str], int | str | None] = lambda method, path: None
        self._lock = threading.RLock()
        self._start(0)

    # For tests

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def storage_url(self) -> str:
        """The other origin, where LFS content goes: a client that sends the token there has leaked it."""
        return f"http://localhost:{self._port}/storage"

    def api(self) -> HfApi:
        """A client of this Hub, of its user."""
        return HfApi(endpoint=self.url, token=self.token)

    def repo(self, repo_id: str, repo_type: str = "model") -> Repo:
        """The repository as it is; KeyError if there is none."""
        return self.repos[repo_type, repo_id]

    def settings(self, home: Path) -> dict[str, str]:
        """Environment variables of a process that knows this Hub and no other, with a folder for its caches."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_TOKEN": self.token,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "GRADIO_ANALYTICS_ENABLED": "False",
            "NO_PROXY": "*",
            "OMP_NUM_THREADS": "1",
        }

    @contextmanager
    def fail(self, method: str, path: str, status: int | str = 500, after: int = 0) -> Iterator[None]:
        """Within the block let requests fail. Nothing of them happens, unless `status` is "lost".

        Args:
            method (`str`): their method.
            path (`str`): regular expression, searched in the percent-encoded path with its query.
            status (`int` or `str`, defaults to 500): status of the answer; or "drop": the connection is closed without
                an answer; "lost": so too, but only after the request was carried out.
            after (`int`, defaults to 0): how many requests that match come through before.
        """
        seen = []

        def fault(asked: str, target: str) -> int | str | None:
            if asked != method or not re.search(path, target):
                return None
            seen.append(target)
            return status if len(seen) > after else None

        earlier, self._fault = self._fault, fault
        yield
        self._fault = earlier

    @contextmanager
    def offline(self) -> Iterator[None]:
        """Within the block connections are refused."""
        self._close()
        with socket.socket() as place:
            # Bound, so that nobody takes the port, but not listening.
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind(("127.0.0.1", self._port))
            try:
                yield
            finally:
                place.close()
                self._start(self._port)

    def __enter__(self) -> "HubServer":
        return self

    def __exit__(self, *exception):
        self._close()
        for repo in self.repos.values():
            for path, content in repo.files().items():
                if self.token.encode() in content:
                    self._wrong.append(f"{repo.id} holds the token in {path}")
        assert not self._wrong, "\n".join(self._wrong)

    # The server

    def _start(self, port):
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
        self._server.hub, self._port = self, self._server.server_port
        # Polled often, because stopping waits for a poll.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def _close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, method, target, headers, body):
        """The answer to a request, None for none at all."""
        token = headers.pop("authorization", "").removeprefix("Bearer ")
        told = f"{target} {headers} {token if 'localhost' in headers['host'] else ''}".encode() + body
        with self._lock:
            self.requests.append((method, target))
            if self.token.encode() in told:
                self._wrong.append(f"{method} {target} holds the token")
            fault = self._fault(method, target)
            if isinstance(fault, int):
                return Answer({"error": "Internal Server Error"}, fault)
            if fault == "drop":
                return None
            address = urlsplit(target)
            try:
                if token and token != self.token:
                    raise HubError(401, "Invalid credentials in Authorization header")
                call = SimpleNamespace(method=method, query=parse_qs(address.query), body=body, has_token=bool(token))
                answer = self._route(call, address.path)
            except HubError as error:
                answer = error.answer
            except Exception:  # the client gets an answer, and the end of the server fails the test
                self._wrong.append(traceback.format_exc())
                answer = Answer({"error": self._wrong[-1]}, 500)
        return None if fault == "lost" else answer

    def _route(self, call, path):
        for methods, pattern, function in ROUTES:
            match = pattern.fullmatch(path)
            if match and call.method in methods.split():
                groups = {name: unquote(text) for name, text in match.groupdict().items() if text is not None}
                if "id" in groups:
                    key = groups.pop("kind", "model"), groups.pop("id")
                    if key not in self.repos:
                        raise HubError(404, "Repository not found", "RepoNotFound")
                    groups["repo"] = self.repos[key]
                answer = function(self, call, **groups)
                return answer if isinstance(answer, Answer) else Answer(answer)
        raise ValueError(f"This server knows no {call.method} {path}")

    @route("HEAD", "/")
    def _front_page(self, call):
        """Libraries ask for it to learn whether the Hub can be reached."""
        return b""

    @route("POST", "/api/validate-yaml")
    def _validate_yaml(self, call):
        found = re.search("^license: *(.*)$", json.loads(call.body)["content"], re.MULTILINE)
        if found is not None and not re.fullmatch(r"\[?[a-z0-9.+-]+\]?", found[1]):
            return Answer({"errors": [{"message": f'"license" cannot be {found[1]}'}], "warnings": []}, 400)
        return {"errors": [], "warnings": []}

    @route("POST", "/api/repos/create")
    def _create_repo(self, call):
        if not call.has_token:
            raise HubError(401, "Invalid username or password.")
        asked = json.loads(call.body)
        kind, namespace = asked.get("type") or "model", asked.get("organization") or "user"
        if namespace != "user":
            raise HubError(403, f"You don't have the rights to create a {kind} under the namespace {namespace!r}")
        repo = Repo(f"{namespace}/{asked['name']}", kind, private=asked.get("visibility") == "private")
        files = {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"}
        if kind == "space":
            files["README.md"] = f"---\nsdk: {asked['sdk']}\n---\n".encode()
        repo.add_commit("initial commit", files)
        self.repos[kind, repo.id] = repo
        return {"url": f"{self.url}/{repo.id}"}

    @route("GET", "<repo>(?:/revision/(?P<revision>[^/]+))?")
    def _info(self, call, repo, revision="main"):
        commit = repo.commit(revision)
        siblings = []
        for path in sorted(commit.files):
            siblings.append({"rfilename": path})
            if "blobs" in call.query and is_lfs(commit.files[path]):
                lfs = commit.entry(path)["lfs"]
                siblings[-1]["lfs"] = {"sha256": lfs["oid"], "size": lfs["size"], "pointerSize": lfs["pointerSize"]}
        return {"id": repo.id, "sha": commit.sha, "private": repo.private, "siblings": siblings}

    @route("GET", "<repo>/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?")
    def _tree(self, call, repo, revision, path=""):
        commit = repo.commit(revision)
        entries = [commit.entry(name) for name in sorted(commit.files) if name.startswith(f"{path}/" if path else "")]
        if not entries:
            raise HubError(404, f'{path} does not exist on "{revision}"', "EntryNotFound")
        return entries

    @route("POST", "<repo>/preupload/(?P<revision>[^/]+)")
    def _preupload(self, call, repo, revision):
        commit = repo.commit(revision)
        files = []
        for file in json.loads(call.body)["files"]:
            path, mode = file["path"], "lfs" if is_lfs(base64.b64decode(file["sample"])) else "regular"
            files.append({"path": path, "uploadMode": mode, "shouldIgnore": False})
            if path in commit.files:  # by this the client leaves out what has not changed
                entry = commit.entry(path)
                files[-1]["oid"] = entry.get("lfs", entry)["oid"]
        return {"files": files}

    @route("POST", r"<files>\.git/info/lfs/objects/batch")
    def _lfs_batch(self, call, repo):
        objects = []
        for item in json.loads(call.body)["objects"]:
            upload = {"href": f"{self.storage_url}/{repo.type}/{repo.id}/{item['oid']}"}
            actions = {} if item["oid"] in repo.lfs else {"actions": {"upload": upload}}
            objects.append({"oid": item["oid"], "size": item["size"]} | actions)
        return {"transfer": "basic", "objects": objects}

    @route("PUT GET HEAD", "/storage/(?P<kind>[^/]+)/(?P<id>[^/]+/[^/]+)/(?P<oid>[^/]+)")
    def _storage(self, call, repo, oid):
        if call.method == "PUT":
            assert hashlib.sha256(call.body).hexdigest() == oid
            repo.lfs[oid] = call.body
        return Answer(repo.lfs[oid], headers={"ETag": f'"{oid}"'})

    @route("POST", "<repo>/commit/main")
    def _commit(self, call, repo):
        header, *lines = (json.loads(line) for line in call.body.splitlines())
        if header["value"].get("parentCommit") not in (None, repo.head.sha):
            raise HubError(412, "A commit has happened since. Please refresh and try again.")
        files = dict(repo.head.files)
        for line in lines:
            key, value = line["key"], line["value"]
            if key == "file":
                files[value["path"]] = base64.b64decode(value["content"], validate=True)
            elif key == "lfsFile":
                files[value["path"]] = repo.lfs[value["oid"]]
            else:
                assert key == "deletedFile", key
                del files[value["path"]]
        sha = repo.add_commit(header["value"]["summary"], files)
        place = repo.id if repo.type == "model" else f"{repo.type}s/{repo.id}"
        return {"commitOid": sha, "commitUrl": f"{self.url}/{place}/commit/{sha}"}

    @route("GET HEAD", "<files>/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
    def _resolve(self, call, repo, revision, path):
        commit = repo.commit(revision)
        headers = {"X-Repo-Commit": commit.sha}
        if path not in commit.files:
            answer = HubError(404, "Entry not found", "EntryNotFound").answer
            return Answer(answer.body, 404, answer.headers | headers)
        content, entry = commit.files[path], commit.entry(path)
        headers["ETag"] = f'"{entry["oid"]}"'
        if "lfs" not in entry:
            return Answer(content, headers=headers)
        oid = entry["lfs"]["oid"]
        headers |= {"X-Linked-Etag": f'"{oid}"', "X-Linked-Size": str(len(content))}
        return Answer(b"", 302, headers | {"Location": f"{self.storage_url}/{repo.type}/{repo.id}/{oid}"})


class _Handler(BaseHTTPRequestHandler):
    wbufsize = -1  # head and body of an answer leave together

    def log_message(self, format, *args):
        pass

    def _serve(self):
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        answer = self.server.hub.answer(self.command, self.path, headers, body)
        if answer is None:
            return
        body, content_type = answer.body, "application/octet-stream"
        if not isinstance(body, bytes):
            body, content_type = json.dumps(body).encode(), "application/json; charset=utf-8"
        self.send_response(answer.status)
        for name, value in ({"Content-Type": content_type} | answer.headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_PUT = _serve
