"""A Hub on 127.0.0.1 for tests: what the clients ask of the real one in these tests, and no more.

Repositories live in memory. As on the Hub, binary files are LFS (here those with a zero byte near the beginning); LFS
content is uploaded to and fetched from another origin ("localhost" for "127.0.0.1"), which must never see a token; a
commit call is the only thing that changes a branch. Xet is not spoken: clients need `HF_HUB_DISABLE_XET=1`. Every
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
import functools
import hashlib
import json
import os
import re
import secrets
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from huggingface_hub import HfApi

# Environment variables of the user's own Hub and network.
FOREIGN = re.compile(r"(HF|HUGGING_?FACE|TRANSFORMERS|XDG)_|.*_proxy$", re.IGNORECASE)


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class HubError(Exception):
    """An answer that is not a success."""

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        self.status, self.body = status, {"error": message}
        self.headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})


@dataclass(frozen=True)
class Commit:
    sha: str
    parent: str | None
    title: str
    files: dict[str, bytes]
    lfs: frozenset[str]  # paths of `files` that git has as LFS pointers

    def entry(self, path: str) -> dict[str, Any]:
        """A file as a tree lists it."""
        content = self.files[path]
        entry = {"type": "file", "oid": git_oid(content), "size": len(content), "path": path}
        if path in self.lfs:
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        return entry

    def folders(self) -> set[str]:
        return {path[:end] for path in self.files for end, letter in enumerate(path) if letter == "/"}


@dataclass
class Repo:
    """One repository.

    Attributes:
        branches (`dict[str, str]`): name to commit.
        lfs (`dict[str, bytes]`): LFS content by sha256, also what was uploaded and never committed.
    """

    id: str
    type: str
    private: bool = False
    branches: dict[str, str] = field(default_factory=dict)
    lfs: dict[str, bytes] = field(default_factory=dict)
    objects: dict[str, Commit] = field(default_factory=dict)

    @property
    def prefix(self) -> str:
        """How addresses of web pages and files begin."""
        return self.id if self.type == "model" else f"{self.type}s/{self.id}"

    @property
    def commits(self) -> list[Commit]:
        """History of main, oldest first."""
        commits, commit = [], self.commit("main")
        while commit is not None:
            commits.append(commit)
            commit = self.objects.get(commit.parent)
        return commits[::-1]

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """Content by path; also of the .gitattributes that every repository has from the start."""
        return self.commit(revision).files

    def commit(self, revision: str) -> Commit:
        """The commit of a branch or commit id; HubError 404, RevisionNotFound, if there is none."""
        sha = self.branches.get(revision, revision)
        if sha not in self.objects:
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.objects[sha]

    def add_commit(self, parent: str | None, title: str, files: dict[str, bytes], lfs: set[str]) -> Commit:
        """Add a commit that no branch names yet."""
        commit = Commit(secrets.token_hex(20), parent, title, files, frozenset(lfs))
        self.objects[commit.sha] = commit
        return commit


@dataclass
class Fault:
    """See [`HubServer.fail`]. As a context manager it ends with the block."""

    hub: "HubServer"
    method: str
    path: str
    status: int | str
    after: int
    body: Any
    seen: int = 0

    def meets(self, method: str, path: str) -> bool:
        if not (re.fullmatch(self.method, method) and re.search(self.path, path)):
            return False
        self.seen += 1
        return self.seen > self.after

    def __enter__(self) -> "Fault":
        return self

    def __exit__(self, *exception):
        self.hub.faults.remove(self)


@dataclass
class Call:
    """A request as routes see it."""

    method: str
    query: dict[str, list[str]]
    body: bytes
    user: str | None

    @functools.cached_property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Answer:
    body: Any = b""  # JSON unless bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


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
    """The server; a context manager.

    Attributes:
        url (`str`): what `HF_ENDPOINT` is to be.
        token (`str`): of the one user, "user", for reading and writing.
        requests (`list[tuple[str, str]]`): all requests so far: method and path, percent-encoded and with the query.
        bodies (`list[bytes]`): their bodies.
        unknown (`list[tuple[str, str]]`): those among them that this server does not know.
        failures (`list[str]`): tracebacks of this server's own errors; leaving the context raises if there are any.
    """

    def __init__(self):
        self.repos: dict[tuple[str, str], Repo] = {}
        self.requests: list[tuple[str, str]] = []
        self.bodies: list[bytes] = []
        self.other_headers: list[str] = []
        self.unknown: list[tuple[str, str]] = []
        self.failures: list[str] = []
        self.faults: list[Fault] = []
        self.token = "hf_" + secrets.token_hex(17)
        self._lock = threading.RLock()
        self._connections: set[socket.socket] = set()
        self._socket = self._bind(0)
        self._start()

    # For tests

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def storage_url(self) -> str:
        """The other origin, where LFS content goes: a client that sends the token there has leaked it."""
        return f"http://localhost:{self._port}/storage"

    def api(self, token: str | None = None) -> HfApi:
        """A client of this Hub: of its user, or of `token`."""
        return HfApi(endpoint=self.url, token=token or self.token)

    def repo(self, repo_id: str, repo_type: str = "model") -> Repo:
        """The repository as it is; KeyError if there is none."""
        return self.repos[repo_type, repo_id]

    def env(self, home: Path) -> dict[str, str]:
        """Environment variables of a process that knows this Hub and no other, and nothing of the user's own.

        Args:
            home (`Path`): folder of the caches.
        """
        return {name: value for name, value in os.environ.items() if not FOREIGN.match(name)} | self.settings(home)

    def settings(self, home: Path) -> dict[str, str]:
        """What [`HubServer.env`] adds to an environment without the user's own."""
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

    def fail(self, method: str, path: str, status: int | str = 500, after: int = 0, body: Any = None) -> Fault:
        """Let requests fail. Nothing of them happens, unless `status` is "lost".

        Args:
            method (`str`): regular expression of the whole method.
            path (`str`): regular expression, searched in the percent-encoded path with its query.
            status (`int` or `str`, defaults to 500): status of the answer; or "drop": the connection is closed without
                an answer; "lost": so too, but only after the request was carried out.
            after (`int`, defaults to 0): how many requests that match come through before.
            body (*optional*): of the answer; one that is not `bytes` is sent as JSON.

        Returns:
            `Fault`: to be used as a context manager.
        """
        body = {"error": "Internal Server Error"} if body is None else body
        fault = Fault(self, method, path, status, after, body)
        self.faults.append(fault)
        return fault

    def leaks(self) -> list[str]:
        """Where a token is that is not an Authorization header to the Hub: requests, uploads, published files."""
        texts = [(f"header {header.split(':')[0]}", header.encode()) for header in self.other_headers]
        for (method, path), body in zip(self.requests, self.bodies, strict=True):
            texts += [(f"{method} {path}", path.encode()), (f"body of {method} {path}", body)]
        for repo in self.repos.values():
            for path, content in repo.files().items():
                texts.append((f"{repo.prefix}/{path}", content))
        return sorted({place for place, text in texts if self.token.encode() in text})

    @contextmanager
    def offline(self) -> Iterator[None]:
        """Within the block connections are refused."""
        self._close()
        # Bound, so that nobody takes the port, but not listening.
        self._socket = self._bind(self._port)
        try:
            yield
        finally:
            self._start()

    def __enter__(self) -> "HubServer":
        return self

    def __exit__(self, *exception):
        self._close()
        assert not self.failures, "The test server failed:\n" + "\n".join(self.failures)

    # The server

    @staticmethod
    def _bind(port):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        return listener

    def _start(self):
        self._port = self._socket.getsockname()[1]
        self._server = _Server(self._socket, self)
        # Polled often, because stopping waits for a poll.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def _close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in list(self._connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # closed by the other side
                pass

    def _answer(self, method, target, headers, body):
        """The answer to a request, None for none at all."""
        address = urlsplit(target)
        authorization = headers.get("authorization", "")
        with self._lock:
            request = method, target
            self.requests.append(request)
            self.bodies.append(body)
            self.other_headers += [f"{name}: {value}" for name, value in headers.items() if name != "authorization"]
            if authorization and headers.get("host", "").startswith("localhost"):
                self.other_headers.append(f"authorization of {method} {address.path}: {authorization}")
            fault = next((fault for fault in self.faults if fault.meets(method, target)), None)
        if fault is not None and fault.status == "drop":
            return None
        if fault is not None and fault.status != "lost":
            return Answer(fault.body, fault.status)
        with self._lock:
            try:
                token = authorization.removeprefix("Bearer ")
                if token and token != self.token:
                    raise HubError(401, "Invalid credentials in Authorization header")
                call = Call(method, parse_qs(address.query), body, "user" if token else None)
                answer = self._route(call, address.path, request)
            except HubError as error:
                answer = Answer(error.body, error.status, error.headers)
            except Exception:  # the client gets an answer, and the fixture fails the test
                self.failures.append(traceback.format_exc())
                answer = Answer({"error": f"The test server failed:\n{self.failures[-1]}"}, 500)
        return None if fault is not None else answer

    def _route(self, call, path, request):
        for methods, pattern, function in ROUTES:
            match = pattern.fullmatch(path)
            if match and call.method in methods.split():
                groups = {name: unquote(text) for name, text in match.groupdict().items() if text is not None}
                if "id" in groups:
                    groups["repo"] = self._existing(groups.pop("kind", "model"), groups.pop("id"))
                answer = function(self, call, **groups)
                return answer if isinstance(answer, Answer) else Answer(answer)
        self.unknown.append(request)
        raise HubError(404, f"This server knows no {call.method} {path}")

    def _existing(self, kind, repo_id):
        if (kind, repo_id) not in self.repos:
            raise HubError(404, "Repository not found", "RepoNotFound")
        return self.repos[kind, repo_id]

    @route("HEAD", "/")
    def _front_page(self, call):
        """Libraries ask for it to learn whether the Hub can be reached."""
        return b""

    @route("POST", "/api/validate-yaml")
    def _validate_yaml(self, call):
        found = re.search("^license: *(.*)$", call.json["content"], re.MULTILINE)
        if found is not None and not re.fullmatch(r"\[?[a-z0-9.+-]+\]?", found[1]):
            return Answer({"errors": [{"message": f'"license" cannot be {found[1]}'}], "warnings": []}, 400)
        return {"errors": [], "warnings": [] if found else [{"message": '"license" is missing'}]}

    @route("POST", "/api/repos/create")
    def _create_repo(self, call):
        if call.user is None:
            raise HubError(401, "Invalid username or password.")
        kind, namespace = call.json.get("type") or "model", call.json.get("organization") or call.user
        if namespace != call.user:
            raise HubError(403, f"You don't have the rights to create a {kind} under the namespace {namespace!r}")
        repo = Repo(f"{namespace}/{call.json['name']}", kind, private=call.json.get("visibility") == "private")
        if (kind, repo.id) in self.repos:
            raise HubError(409, f"You already created this {kind} repo: {repo.id}")
        files = {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"}
        if kind == "space":
            files["README.md"] = f"---\nsdk: {call.json['sdk']}\n---\n".encode()
        repo.branches["main"] = repo.add_commit(None, "initial commit", files, set()).sha
        self.repos[kind, repo.id] = repo
        return {"url": f"{self.url}/{repo.prefix}"}

    @route("GET", "<repo>(?:/revision/(?P<revision>[^/]+))?")
    def _info(self, call, repo, revision="main"):
        commit = repo.commit(revision)
        siblings = []
        for path in sorted(commit.files):
            siblings.append({"rfilename": path})
            if "blobs" in call.query and path in commit.lfs:
                lfs = commit.entry(path)["lfs"]
                siblings[-1]["lfs"] = {"sha256": lfs["oid"], "size": lfs["size"], "pointerSize": lfs["pointerSize"]}
        return {"id": repo.id, "sha": commit.sha, "private": repo.private, "siblings": siblings}

    @route("GET", "<repo>/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?")
    def _tree(self, call, repo, revision, path=""):
        commit = repo.commit(revision)
        if path and path not in commit.folders():
            raise HubError(404, f'{path} does not exist on "{revision}"', "EntryNotFound")
        prefix = f"{path}/" if path else ""
        entries = [{"type": "directory", "oid": git_oid(x.encode()), "size": 0, "path": x} for x in commit.folders()]
        entries += [commit.entry(name) for name in commit.files]
        entries = [entry for entry in entries if entry["path"].startswith(prefix)]
        if call.query.get("recursive", ["false"])[0].lower() not in ("1", "true"):
            entries = [entry for entry in entries if "/" not in entry["path"].removeprefix(prefix)]
        return sorted(entries, key=lambda entry: entry["path"])

    @route("POST", "<repo>/preupload/(?P<revision>[^/]+)")
    def _preupload(self, call, repo, revision):
        commit = repo.commit(revision)
        files = []
        for file in call.json["files"]:
            path, is_lfs = file["path"], b"\0" in base64.b64decode(file["sample"])
            files.append({"path": path, "uploadMode": "lfs" if is_lfs else "regular", "shouldIgnore": False})
            if path in commit.files:  # by this the client leaves out what has not changed
                entry = commit.entry(path)
                files[-1]["oid"] = entry.get("lfs", entry)["oid"]
        return {"files": files}

    @route("POST", r"<files>\.git/info/lfs/objects/batch")
    def _lfs_batch(self, call, repo):
        objects = []
        for item in call.json["objects"]:
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

    @route("POST", "<repo>/commit/(?P<revision>[^/]+)")
    def _commit(self, call, repo, revision):
        head = repo.commit(revision)
        header, *lines = (json.loads(line) for line in call.body.splitlines())
        if header["value"].get("parentCommit") not in (None, head.sha):
            raise HubError(412, "A commit has happened since. Please refresh and try again.")
        files, lfs = dict(head.files), set(head.lfs)
        for line in lines:
            key, value = line["key"], line["value"]
            path = value["path"]
            lfs.discard(path)
            if key == "file":
                files[path] = base64.b64decode(value["content"], validate=True)
            elif key == "lfsFile":
                files[path] = repo.lfs[value["oid"]]
                lfs.add(path)
            else:
                assert key == "deletedFile", key
                del files[path]
        commit = repo.add_commit(head.sha, header["value"]["summary"], files, lfs)
        answer = {"commitOid": commit.sha, "commitUrl": f"{self.url}/{repo.prefix}/commit/{commit.sha}"}
        repo.branches[revision] = commit.sha
        return answer

    @route("GET HEAD", "<files>/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
    def _resolve(self, call, repo, revision, path):
        commit = repo.commit(revision)
        headers = {"X-Repo-Commit": commit.sha}
        if path not in commit.files:
            error = HubError(404, "Entry not found", "EntryNotFound")
            return Answer(error.body, 404, error.headers | headers)
        entry = commit.entry(path)
        headers["ETag"] = f'"{entry["oid"]}"'
        if path not in commit.lfs:
            return Answer(commit.files[path], headers=headers)
        oid = entry["lfs"]["oid"]
        headers |= {"X-Linked-Etag": f'"{oid}"', "X-Linked-Size": str(entry["size"])}
        return Answer(b"", 302, headers | {"Location": f"{self.storage_url}/{repo.type}/{repo.id}/{oid}"})


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket, hub: HubServer):
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.hub = hub
        self.server_activate()

    def handle_error(self, request, client_address):
        # Clients that go away, and connections that `HubServer.offline` closes, are no errors.
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body of an answer leave together

    def setup(self):
        super().setup()
        self.server.hub._connections.add(self.connection)

    def finish(self):
        self.server.hub._connections.discard(self.connection)
        super().finish()

    def log_message(self, format, *args):
        pass

    def _serve(self):
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        answer = self.server.hub._answer(self.command, self.path, headers, body)
        if answer is None:
            self.close_connection = True
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

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve
