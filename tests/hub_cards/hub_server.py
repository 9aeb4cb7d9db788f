"""A Hub on 127.0.0.1 for tests: what huggingface_hub, transformers, peft, datasets and evaluate ask of the real one.

Repositories live in memory. As on the Hub, a file is LFS by `.gitattributes`, by its size or because it is binary; LFS
content is uploaded to and fetched from another origin ("localhost" for "127.0.0.1"), which must never see a token; a
commit call is the only thing that changes a branch. Xet is not spoken: clients need `HF_HUB_DISABLE_XET=1`.

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
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

import yaml  # a dependency of huggingface_hub; front matter cannot be judged without it
from huggingface_hub import HfApi
from huggingface_hub.repocard import REGEX_YAML_BLOCK  # the Hub's own

# .gitattributes of a new repository; data sets get media too.
LFS_PATTERNS = (
    "*.7z *.arrow *.bin *.bz2 *.ckpt *.ftz *.gz *.h5 *.joblib *.lfs.* *.mlmodel *.model *.msgpack *.npy *.npz *.onnx "
    "*.parquet *.pb *.pickle *.pkl *.pt *.pth *.rar *.safetensors saved_model/**/* *.tar.* *.tar *.tflite *.tgz "
    "*.wasm *.xz *.zip *.zst *tfevents*"
).split()
MEDIA_PATTERNS = (
    "*.pcm *.sam *.raw *.aac *.flac *.mp3 *.ogg *.wav *.bmp *.gif *.png *.tiff *.jpg *.jpeg *.webp *.mp4".split()
)
LARGEST_REGULAR_FILE = 10 * 1024**2

# https://huggingface.co/docs/hub/repositories-licenses
LICENSES = frozenset(
    "apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m "
    "afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 "
    "cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 "
    "cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 "
    "cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 agpl-3.0 gfdl gpl "
    "gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc lppl-1.3c ms-pl mpl-2.0 odc-by odbl openrail++ osl-3.0 postgresql "
    "ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license llama2 gemma unknown other".split()
)
# Environment variables of the user's own Hub and network.
FOREIGN = re.compile(r"(HF|HUGGING_?FACE|TRANSFORMERS|XDG)_|.*_proxy$", re.IGNORECASE)
SPACE_COLORS = ("red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray")
SPACE_README = """---
title: {title}
colorFrom: blue
colorTo: green
sdk: {sdk}
app_file: app.py
pinned: false
---

Check out the configuration reference at https://huggingface.co/docs/hub/spaces-config-reference
"""


def front_matter(content: str) -> Any:
    block = REGEX_YAML_BLOCK.search(content)
    return yaml.safe_load(block[2]) if block else None


def check_card(content: str, repo_type: str) -> tuple[list[str], list[str]]:
    """What the Hub says of a README.md: only its commonest complaints about the front matter.

    Returns:
        `tuple[list[str], list[str]]`: errors, which refuse a commit, and warnings.
    """
    try:
        data = front_matter(content)
    except yaml.YAMLError as error:
        return [f"bad yaml metadata: {error}"], []
    if data is None:
        return [], ["empty or missing yaml metadata in repo card"]
    if not isinstance(data, dict):
        return ["yaml metadata must be a mapping"], []

    errors, warnings = [], []
    licenses = data.get("license")
    if licenses is None and repo_type != "space":
        warnings.append('"license" is missing')
    for name in licenses if isinstance(licenses, list) else [licenses]:
        if name is not None and name not in LICENSES:
            errors.append(f'"license" must be one of the ids of the Hub, not {name!r}')
    for key in ("tags", "language", "datasets", "task_categories", "size_categories"):
        values = data.get(key, [])
        if not all(isinstance(value, str) for value in (values if isinstance(values, list) else [values])):
            errors.append(f'"{key}" must be strings')
    for number, model in enumerate(data.get("model-index") or []):
        errors += _missing(model, ("name",), f"model-index[{number}]")
        for place, result in enumerate(_get(model, "results") or []):
            where = f"model-index[{number}].results[{place}]"
            errors += _missing(result, ("task.type", "dataset.name", "dataset.type"), where)
            for metric in _get(result, "metrics") or [None]:
                errors += _missing(metric, ("type", "value"), f"{where}.metrics[]")
    if repo_type == "dataset":
        for config in data.get("configs") or []:
            errors += _missing(config, ("config_name",), "configs[]")
    if repo_type == "space":
        if data.get("sdk") not in ("gradio", "docker", "static", "streamlit"):
            errors.append('"sdk" must be one of [gradio, docker, static, streamlit]')
        for key in ("colorFrom", "colorTo"):
            if data.get(key) not in (None, *SPACE_COLORS):
                errors.append(f'"{key}" must be one of [{", ".join(SPACE_COLORS)}]')
        if len(str(data.get("short_description", ""))) > 60:
            errors.append('"short_description" must have at most 60 characters')
    return errors, warnings


def _get(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _missing(data: Any, paths: tuple[str, ...], where: str) -> list[str]:
    return [f'"{where}.{path}" is required' for path in paths if _get(data, path) is None]


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def lfs_pointer(content: bytes) -> bytes:
    oid = hashlib.sha256(content).hexdigest()
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(content)}\n".encode()


class HubError(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, message: str, code: str | None = None, **more):
        super().__init__(message)
        self.status, self.body = status, {"error": message, **more}
        self.headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})


class User(NamedTuple):
    name: str
    orgs: tuple[str, ...]
    role: str  # of the token: "read" or "write"

    def owns(self, namespace: str) -> bool:
        return self.role == "write" and namespace in (self.name, *self.orgs)


class Request(NamedTuple):
    """One request, as `HubServer.requests` tells it. `path` is percent-encoded and has the query."""

    method: str
    path: str
    has_token: bool


@dataclass(frozen=True)
class Commit:
    sha: str
    parent: str | None
    title: str
    message: str
    author: str
    date: str
    files: dict[str, bytes]
    lfs: frozenset[str]  # paths of `files` that git has as LFS pointers

    def entry(self, path: str) -> dict[str, Any]:
        """A file as trees and path infos list it."""
        content = self.files[path]
        if path not in self.lfs:
            return {"type": "file", "oid": git_oid(content), "size": len(content), "path": path}
        pointer = lfs_pointer(content)
        lfs = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": len(pointer)}
        return {"type": "file", "oid": git_oid(pointer), "size": len(content), "path": path, "lfs": lfs}

    def folders(self) -> dict[str, str]:
        """Every folder and an id that changes with its content."""
        folders: dict[str, Any] = {}
        for path in sorted(self.files):
            for end in (place for place, letter in enumerate(path) if letter == "/"):
                folders.setdefault(path[:end], hashlib.sha1()).update(f"{path}\0{self.entry(path)['oid']}".encode())
        return {path: digest.hexdigest() for path, digest in folders.items()}


@dataclass(frozen=True)
class PullRequest:
    number: int
    title: str
    author: str
    ref: str  # refs/pr/<number>
    base: str


@dataclass
class Repo:
    """One repository.

    Attributes:
        branches, tags (`dict[str, str]`): name to commit.
        pull_requests (`dict[int, PullRequest]`): open pull requests; their commits are `files(pull_request.ref)`.
        lfs (`dict[str, bytes]`): LFS content by sha256, also what was uploaded and never committed.
    """

    id: str
    type: str
    private: bool = False
    gated: str | bool = False
    sdk: str | None = None
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    pull_requests: dict[int, PullRequest] = field(default_factory=dict)
    lfs: dict[str, bytes] = field(default_factory=dict)
    pull_request_heads: dict[str, str] = field(default_factory=dict)
    objects: dict[str, Commit] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        return self.id.split("/")[0]

    @property
    def prefix(self) -> str:
        """How addresses of web pages and files begin."""
        return self.id if self.type == "model" else f"{self.type}s/{self.id}"

    @property
    def commits(self) -> list[Commit]:
        """History of main, oldest first."""
        return self.history("main")

    def history(self, revision: str = "main") -> list[Commit]:
        commits, commit = [], self.commit(revision)
        while commit is not None:
            commits.append(commit)
            commit = self.objects.get(commit.parent)
        return commits[::-1]

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """Content by path; also of the .gitattributes that every repository has from the start."""
        return self.commit(revision).files

    def commit(self, revision: str) -> Commit:
        """The commit of a branch, tag, pull request or (part of at least 7 characters of a) commit id.

        Raises:
            HubError: there is none: 404, RevisionNotFound.
        """
        for refs in (self.branches, self.pull_request_heads, self.tags):
            if revision in refs:
                return self.objects[refs[revision]]
        if len(revision) >= 7:
            for sha, commit in self.objects.items():
                if sha.startswith(revision):
                    return commit
        raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def add_commit(self, parent: str | None, author: str, title: str, message: str, files: dict, lfs: set) -> Commit:
        """Add a commit that no branch names yet."""
        date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        sha = hashlib.sha1(f"{len(self.objects)}\0{self.prefix}\0{parent}\0{title}\0{date}".encode()).hexdigest()
        self.objects[sha] = Commit(sha, parent, title, message, author, date, dict(files), frozenset(lfs))
        return self.objects[sha]


@dataclass
class Fault:
    """See [`HubServer.fail`]. `hits` counts the requests that it met. As a context manager it ends with the block."""

    hub: "HubServer"
    method: str
    path: str
    status: int | str
    times: int | None
    after: int
    headers: dict[str, str]
    body: Any
    seen: int = 0
    hits: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def meets(self, method: str, path: str) -> bool:
        if not (re.fullmatch(self.method, method) and re.search(self.path, path)):
            return False
        self.seen += 1
        if self.seen <= self.after or (self.times is not None and self.hits >= self.times):
            return False
        self.hits += 1
        return True

    def __enter__(self) -> "Fault":
        return self

    def __exit__(self, *exception):
        self.hub.faults.remove(self)
        self.over.set()


@dataclass
class Call:
    """A request as routes see it."""

    method: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes
    user: User | None

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
    # Repository ids have two parts here: the Hub's few old ids of one part ("gpt2") do not exist on this one.
    pattern = pattern.replace("<repo>", "/api/(?P<kind>model|dataset|space)s/(?P<id>[^/]+/[^/]+)")
    pattern = pattern.replace("<files>", "/(?:(?P<kind>dataset|space)s/)?(?P<id>[^/]+/[^/]+)")

    def register(function: Callable) -> Callable:
        ROUTES.append((methods, re.compile(pattern), function))
        return function

    return register


class HubServer:
    """The server; a context manager.

    Args:
        user (`str`, defaults to `"user"`): name of the first user, whose token is `token`.
        page_size (`int`, defaults to 1000): entries of a page of a folder's listing.

    Attributes:
        url (`str`): what `HF_ENDPOINT` is to be.
        token (`str`): of the first user, for reading and writing.
        requests (`list[Request]`): all requests so far, (method, path, has_token).
        bodies (`list[bytes]`): their bodies.
        unknown (`list[Request]`): those among them that this server does not know.
        failures (`list[str]`): tracebacks of this server's own errors; leaving the context raises if there are any.
    """

    def __init__(self, user: str = "user", page_size: int = 1000):
        self.users: dict[str, User] = {}
        self.repos: dict[tuple[str, str], Repo] = {}
        self.requests: list[Request] = []
        self.bodies: list[bytes] = []
        self.other_headers: list[str] = []
        self.unknown: list[Request] = []
        self.failures: list[str] = []
        self.faults: list[Fault] = []
        self.page_size = page_size
        self.token = self.add_user(user)
        self._lock = threading.RLock()
        self._connections: set[socket.socket] = set()
        self._server: ThreadingHTTPServer | None = None
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

    def add_user(self, name: str, orgs: tuple[str, ...] = (), role: str = "write") -> str:
        """Add a user, or another token of a user, and return the token."""
        token = "hf_" + secrets.token_hex(17)
        self.users[token] = User(name, tuple(orgs), role)
        return token

    def api(self, token: str | bool | None = None) -> HfApi:
        """A client of this Hub: of the first user, of `token`, or of nobody with `False`."""
        return HfApi(endpoint=self.url, token=self.token if token is None else token)

    def repo(self, repo_id: str, repo_type: str | None = "model") -> Repo:
        """The repository as it is; KeyError if there is none."""
        return self.repos[repo_type or "model", repo_id]

    def env(self, home: Path, token: str | bool | None = None) -> dict[str, str]:
        """Environment variables of a process that knows this Hub and no other, and nothing of the user's own.

        Args:
            home (`Path`): folder of the caches.
            token (`str` or `bool`, *optional*): as in [`HubServer.api`].
        """
        env = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
        return env | self.settings(home, token)

    def settings(self, home: Path, token: str | bool | None = None) -> dict[str, str]:
        """What [`HubServer.env`] adds to an environment without the user's own."""
        settings = {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "GRADIO_ANALYTICS_ENABLED": "False",
            "NO_PROXY": "*",
            "OMP_NUM_THREADS": "1",
        }
        if token is not False:
            settings["HF_TOKEN"] = self.token if token is None else token
        return settings

    def fail(
        self,
        method: str,
        path: str,
        status: int | str = 500,
        times: int | None = None,
        after: int = 0,
        headers: dict[str, str] | None = None,
        body: Any = None,
    ) -> Fault:
        """Let requests fail. Nothing of them happens, unless `status` is "lost".

        Args:
            method (`str`): regular expression of the whole method.
            path (`str`): regular expression, searched in the percent-encoded path with its query.
            status (`int` or `str`, defaults to 500): status of the answer; or "drop": the connection is closed without
                an answer; "lost": so too, but only after the request was carried out; "hang": no answer until the
                fault ends or the server stops.
            times (`int`, *optional*): how often; always by default.
            after (`int`, defaults to 0): how many requests that match come through before.
            headers (`dict`, *optional*), body (*optional*): of the answer; a body that is no `bytes` is sent as JSON.

        Returns:
            `Fault`: to be used as a context manager where it shall end.
        """
        body = {"error": "Internal Server Error"} if body is None else body
        fault = Fault(self, method, path, status, times, after, headers or {}, body)
        self.faults.append(fault)
        return fault

    def leaks(self) -> list[str]:
        """Where a token stands that is no Authorization header to the Hub: requests, uploads, published files."""
        texts = [(f"{request.method} {request.path}", request.path.encode()) for request in self.requests]
        texts += [
            (f"body of {request.method} {request.path}", body)
            for request, body in zip(self.requests, self.bodies, strict=True)
        ]
        texts += [(f"header {header.split(':')[0]}", header.encode()) for header in self.other_headers]
        for repo in self.repos.values():
            texts += [(f"LFS file of {repo.prefix}", content) for content in repo.lfs.values()]
            for commit in repo.objects.values():
                texts.append((f"commit message of {repo.prefix}", f"{commit.title}\n{commit.message}".encode()))
                texts += [(f"{repo.prefix}/{path}", content) for path, content in commit.files.items()]
        tokens = [token.encode() for token in self.users]
        return sorted({place for place, text in texts if any(token in text for token in tokens)})

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

    def stop(self):
        """Refuse connections from now on, and give the port back."""
        for fault in self.faults:
            fault.over.set()
        self._close()

    def __enter__(self) -> "HubServer":
        return self

    def __exit__(self, *exception):
        self.stop()
        assert not self.failures, "The test server failed:\n" + "\n".join(self.failures)

    # The server

    @staticmethod
    def _bind(port: int) -> socket.socket:
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
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._server = None
        for connection in list(self._connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # closed by the other side
                pass

    def _answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer | None:
        """The answer to a request, None for none at all."""
        address = urlsplit(target)
        authorization = headers.get("authorization", "")
        with self._lock:
            request = Request(method, target, bool(authorization))
            self.requests.append(request)
            self.bodies.append(body)
            self.other_headers += [f"{name}: {value}" for name, value in headers.items() if name != "authorization"]
            if authorization and headers.get("host", "").startswith("localhost"):
                self.other_headers.append(f"authorization of {method} {address.path}: {authorization}")
            fault = next((fault for fault in self.faults if fault.meets(method, target)), None)
        if fault is not None and fault.status == "hang":
            fault.over.wait()
        if fault is not None and fault.status in ("hang", "drop"):
            return None
        if fault is not None and fault.status != "lost":
            return Answer(fault.body, fault.status, fault.headers)
        with self._lock:
            try:
                token = authorization.removeprefix("Bearer ")
                if token and token not in self.users:
                    raise HubError(401, "Invalid credentials in Authorization header")
                call = Call(method, parse_qs(address.query), headers, body, self.users.get(token))
                answer = self._route(call, address.path, request)
            except HubError as error:
                answer = Answer(error.body, error.status, error.headers)
            except Exception:  # the client gets an answer, and the fixture fails the test
                self.failures.append(traceback.format_exc())
                answer = Answer({"error": f"The test server failed:\n{self.failures[-1]}"}, 500)
        return None if fault is not None else answer

    def _route(self, call: Call, path: str, request: Request) -> Answer:
        for methods, pattern, function in ROUTES:
            match = pattern.fullmatch(path)
            if match and call.method in methods.split():
                groups = {name: unquote(text) for name, text in match.groupdict().items() if text is not None}
                if "id" in groups:
                    kind = groups.pop("kind", "model")
                    groups["repo"] = self._readable(call, kind, groups.pop("id"))
                answer = function(self, call, **groups)
                return answer if isinstance(answer, Answer) else Answer(answer)
        if re.match(r"/api/(models|datasets|spaces)/[^/]+$|/[^/]+/resolve/", path):
            raise _not_found(call)
        self.unknown.append(request)
        raise HubError(404, f"This server knows no {call.method} {path}")

    def _readable(self, call: Call, kind: str, repo_id: str) -> Repo:
        repo = self.repos.get((kind, repo_id))
        if repo is None or (repo.private and not (call.user and repo.namespace in (call.user.name, *call.user.orgs))):
            raise _not_found(call)
        return repo

    def _writable(self, call: Call, repo: Repo, pull_request: PullRequest | None = None):
        if call.user is None:
            raise HubError(401, "Invalid username or password.")
        if call.user.owns(repo.namespace):
            return
        if call.user.role == "write" and pull_request is not None and pull_request.author == call.user.name:
            return
        message = "Forbidden: pass `create_pr=1` as a query parameter to create a Pull Request"
        raise HubError(403, message if call.user.role == "write" else "You need a token with the role write")

    @route("GET", "/api/whoami-v2")
    def _whoami(self, call: Call):
        if call.user is None:
            raise HubError(401, "Invalid username or password.")
        name, orgs, role = call.user
        return {
            "type": "user",
            "id": hashlib.sha1(name.encode()).hexdigest()[:24],
            "name": name,
            "fullname": name,
            "orgs": [{"type": "org", "name": org, "roleInOrg": "write"} for org in orgs],
            "auth": {"type": "access_token", "accessToken": {"displayName": "tests", "role": role}},
        }

    @route("POST", "/api/validate-yaml")
    def _validate_yaml(self, call: Call):
        errors, warnings = check_card(call.json["content"], call.json["repoType"])
        body = {
            "errors": [{"message": error} for error in errors],
            "warnings": [{"message": warning} for warning in warnings],
        }
        return Answer(body, 400 if errors else 200)

    @route("POST", "/api/repos/create")
    def _create_repo(self, call: Call):
        if call.user is None:
            raise HubError(401, "Invalid username or password.")
        kind, namespace = call.json.get("type") or "model", call.json.get("organization") or call.user.name
        if not call.user.owns(namespace):
            message = f'You don\'t have the rights to create a {kind} under the namespace "{namespace}"'
            raise HubError(403, message)
        repo = Repo(f"{namespace}/{call.json['name']}", kind)
        url = f"{self.url}/{repo.prefix}"
        if (kind, repo.id) in self.repos:
            raise HubError(409, f"You already created this {kind} repo: {repo.id}", url=url)
        repo.private = call.json.get("visibility") == "private"
        patterns = LFS_PATTERNS + (MEDIA_PATTERNS if kind == "dataset" else [])
        files = {".gitattributes": "".join(f"{x} filter=lfs diff=lfs merge=lfs -text\n" for x in patterns).encode()}
        if kind == "space":
            repo.sdk = call.json.get("sdk")
            if repo.sdk is None:
                raise HubError(400, '"sdk" is required')
            files["README.md"] = SPACE_README.format(title=call.json["name"], sdk=repo.sdk).encode()
        first = repo.add_commit(None, call.user.name, "initial commit", "", files, set())
        repo.branches["main"] = first.sha
        self.repos[kind, repo.id] = repo
        return {"url": url, "name": repo.id, "id": hashlib.sha1(repo.prefix.encode()).hexdigest()[:24]}

    @route("DELETE", "/api/repos/delete")
    def _delete_repo(self, call: Call):
        namespace = call.json.get("organization") or (call.user.name if call.user else "")
        repo = self._readable(call, call.json.get("type") or "model", f"{namespace}/{call.json['name']}")
        self._writable(call, repo)
        del self.repos[repo.type, repo.id]
        return b""

    @route("GET", "<repo>(?:/revision/(?P<revision>[^/]+))?")
    def _info(self, call: Call, repo: Repo, revision: str = "main"):
        commit = repo.commit(revision)
        siblings = []
        for path in sorted(commit.files):
            siblings.append({"rfilename": path})
            if "blobs" in call.query:
                entry = commit.entry(path)
                siblings[-1] |= {"size": entry["size"], "blobId": entry["oid"]}
                if "lfs" in entry:
                    lfs = entry["lfs"]
                    siblings[-1]["lfs"] = {
                        "sha256": lfs["oid"],
                        "size": lfs["size"],
                        "pointerSize": lfs["pointerSize"],
                    }
        card_data = front_matter(commit.files.get("README.md", b"").decode()) or {}
        return {
            "_id": hashlib.sha1(repo.prefix.encode()).hexdigest()[:24],
            "id": repo.id,
            "author": repo.namespace,
            "sha": commit.sha,
            "lastModified": commit.date,
            "createdAt": repo.commits[0].date,
            "private": repo.private,
            "gated": repo.gated,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": list(card_data.get("tags") or []),
            "cardData": card_data,
            "siblings": siblings,
        } | ({"sdk": repo.sdk} if repo.type == "space" else {})

    @route("GET", "<repo>/auth-check(?P<write>/write)?")
    def _auth_check(self, call: Call, repo: Repo, write: str | None = None):
        if write:
            self._writable(call, repo)
        return {}

    @route("GET", "<repo>/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?")
    def _tree(self, call: Call, repo: Repo, revision: str, path: str = ""):
        commit = repo.commit(revision)
        folders = commit.folders()
        if path and path not in folders:
            raise HubError(404, f'{path} does not exist on "{revision}"', "EntryNotFound")
        prefix = f"{path}/" if path else ""
        entries = [{"type": "directory", "oid": oid, "size": 0, "path": name} for name, oid in folders.items()]
        entries += [commit.entry(name) for name in commit.files]
        entries = [entry for entry in entries if entry["path"].startswith(prefix)]
        if not _asked(call.query, "recursive"):
            entries = [entry for entry in entries if "/" not in entry["path"].removeprefix(prefix)]
        if _asked(call.query, "expand"):
            last = {"id": commit.sha, "title": commit.title, "date": commit.date}
            entries = [entry | {"lastCommit": last} for entry in entries]
        entries.sort(key=lambda entry: entry["path"])
        return self._page(call, f"/api/{repo.type}s/{repo.id}/tree/{quote(revision, safe='')}/{quote(path)}", entries)

    def _page(self, call: Call, path: str, entries: list) -> Answer:
        start = int(call.query.get("cursor", ["0"])[0])
        end = start + self.page_size
        headers = {}
        if end < len(entries):
            query = "&".join(f"{name}={call.query[name][0]}" for name in ("recursive", "expand") if name in call.query)
            headers["Link"] = f'<{self.url}{path.rstrip("/")}?{query}&cursor={end}>; rel="next"'
        return Answer(entries[start:end], headers=headers)

    @route("POST", "<repo>/paths-info/(?P<revision>[^/]+)")
    def _paths_info(self, call: Call, repo: Repo, revision: str):
        commit = repo.commit(revision)
        is_json = "json" in call.headers.get("content-type", "")
        paths = call.json["paths"] if is_json else parse_qs(call.body.decode()).get("paths", [])
        folders = commit.folders()
        found = [commit.entry(path) for path in paths if path in commit.files]
        return found + [
            {"type": "directory", "oid": folders[path.rstrip("/")], "size": 0, "path": path.rstrip("/")}
            for path in paths
            if path.rstrip("/") in folders
        ]

    @route("GET", "<repo>/commits/(?P<revision>[^/]+)")
    def _commits(self, call: Call, repo: Repo, revision: str):
        commits = [
            {
                "id": commit.sha,
                "title": commit.title,
                "message": commit.message,
                "authors": [{"user": commit.author}],
                "date": commit.date,
            }
            for commit in reversed(repo.history(revision))
        ]
        return self._page(call, f"/api/{repo.type}s/{repo.id}/commits/{quote(revision, safe='')}", commits)

    @route("GET", "<repo>/refs")
    def _refs(self, call: Call, repo: Repo):
        def listed(refs: dict[str, str], prefix: str) -> list[dict]:
            return [{"name": name, "ref": f"{prefix}{name}", "targetCommit": sha} for name, sha in refs.items()]

        return {
            "branches": listed(repo.branches, "refs/heads/"),
            "tags": listed(repo.tags, "refs/tags/"),
            "pullRequests": listed(repo.pull_request_heads, ""),
            "converts": [],
        }

    @route("POST DELETE", "<repo>/branch/(?P<branch>[^/]+)")
    def _branch(self, call: Call, repo: Repo, branch: str):
        self._writable(call, repo)
        if call.method == "DELETE":
            if branch == "main":
                raise HubError(403, "The branch main cannot be deleted")
            if branch not in repo.branches:
                raise HubError(404, f"Invalid rev id: {branch}", "RevisionNotFound")
            del repo.branches[branch]
            return b""
        if branch in repo.branches:
            raise HubError(409, f"Reference already exists: refs/heads/{branch}")
        repo.branches[branch] = repo.commit(call.json.get("startingPoint", "main")).sha
        return b""

    @route("POST DELETE", "<repo>/tag/(?P<revision>[^/]+)")
    def _tag(self, call: Call, repo: Repo, revision: str):
        self._writable(call, repo)
        if call.method == "DELETE":
            if revision not in repo.tags:
                raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
            del repo.tags[revision]
            return b""
        if call.json["tag"] in repo.tags:
            raise HubError(409, f"Reference already exists: refs/tags/{call.json['tag']}")
        repo.tags[call.json["tag"]] = repo.commit(revision).sha
        return b""

    @route("PUT", "<repo>/settings")
    def _settings(self, call: Call, repo: Repo):
        self._writable(call, repo)
        repo.private = call.json.get("visibility", "private" if repo.private else "public") == "private"
        repo.gated = call.json.get("gated", repo.gated)
        return {"private": repo.private, "gated": repo.gated}

    @route("GET", r"<repo>/discussions(?:/(?P<number>\d+))?")
    def _discussions(self, call: Call, repo: Repo, number: str | None = None):
        listed = [
            {
                "title": pull_request.title,
                "num": pull_request.number,
                "author": {"name": pull_request.author},
                "createdAt": repo.commit(pull_request.ref).date,
                "status": "open",
                "isPullRequest": True,
                "repo": {"name": repo.id, "type": repo.type},
            }
            for pull_request in reversed(repo.pull_requests.values())
        ]
        if number is None:
            return {"count": len(listed), "start": 0, "discussions": listed}
        if int(number) not in repo.pull_requests:
            raise HubError(404, f"No discussion {number}")
        chosen = next(discussion for discussion in listed if discussion["num"] == int(number))
        base = repo.pull_requests[int(number)].base
        return chosen | {"events": [], "filesWithConflicts": False, "changes": {"base": f"refs/heads/{base}"}}

    @route("POST", "<repo>/preupload/(?P<revision>[^/]+)")
    def _preupload(self, call: Call, repo: Repo, revision: str):
        commit = self._target(call, repo, revision)
        attributes = commit.files.get(".gitattributes", b"").decode()
        patterns = re.findall(r"^(\S+) .*\bfilter=lfs\b", attributes, re.M)
        files = []
        for file in call.json["files"]:
            path = file["path"]
            lfs = file["size"] > LARGEST_REGULAR_FILE or _is_binary(base64.b64decode(file["sample"]))
            lfs |= any(fnmatchcase(path if "/" in x else path.rsplit("/", 1)[-1], x) for x in patterns)
            files.append({"path": path, "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False})
            if path in commit.files:
                entry = commit.entry(path)
                files[-1]["oid"] = entry["lfs"]["oid"] if "lfs" in entry else entry["oid"]
        return {"files": files}

    def _target(self, call: Call, repo: Repo, revision: str) -> Commit:
        """The commit that a commit call builds on, if this user may."""
        if "create_pr" in call.query:
            if call.user is None or call.user.role != "write":
                raise HubError(401 if call.user is None else 403, "Invalid username or password.")
            return repo.commit(revision)
        pull_request = next((x for x in repo.pull_requests.values() if x.ref == revision), None)
        self._writable(call, repo, pull_request)
        commit = repo.commit(revision)
        if revision not in repo.branches and pull_request is None:
            raise HubError(400, f"Cannot commit to {revision}, which is neither a branch nor a pull request")
        return commit

    @route("POST", r"<files>\.git/info/lfs/objects/batch")
    def _lfs_batch(self, call: Call, repo: Repo):
        # Whoever can read may open a pull request, and then no ref is given.
        revision = call.json.get("ref", {}).get("name")
        if revision is not None:
            self._target(call, repo, revision)
        elif call.user is None:
            raise HubError(401, "Invalid username or password.")
        objects = []
        for item in call.json["objects"]:
            href = f"/{repo.type}/{repo.id}/{item['oid']}"
            upload = {"href": f"{self.storage_url}{href}"}
            verify = {"href": f"{self.url}/verify{href}"}
            actions = {} if item["oid"] in repo.lfs else {"actions": {"upload": upload, "verify": verify}}
            objects.append({"oid": item["oid"], "size": item["size"]} | actions)
        return {"transfer": "basic", "objects": objects}

    @route("PUT GET HEAD", "/storage/(?P<kind>[^/]+)/(?P<name>[^/]+/[^/]+)/(?P<oid>[^/]+)")
    def _storage(self, call: Call, kind: str, name: str, oid: str):
        # Whoever has the address may: the Hub hands out signed ones.
        repo = self.repos.get((kind, name))
        if repo is None or (call.method != "PUT" and oid not in repo.lfs):
            raise HubError(403, "AccessDenied")
        if call.method == "PUT":
            if hashlib.sha256(call.body).hexdigest() != oid:
                raise HubError(400, "The content does not have this sha256")
            repo.lfs[oid] = call.body
            return b""
        return _content(call, repo.lfs[oid], {"ETag": f'"{oid}"'})

    @route("POST", "/verify/(?P<kind>[^/]+)/(?P<id>[^/]+/[^/]+)/(?P<oid>[^/]+)")
    def _verify(self, call: Call, repo: Repo, oid: str):
        if len(repo.lfs.get(oid, b"")) != call.json["size"]:
            raise HubError(404, "The file was not uploaded")
        return {}

    @route("POST", "<repo>/commit/(?P<revision>[^/]+)")
    def _commit(self, call: Call, repo: Repo, revision: str):
        head = self._target(call, repo, revision)
        lines = [json.loads(line) for line in call.body.splitlines()]
        header = lines[0]["value"]
        opens_pull_request = "create_pr" in call.query
        wanted = header.get("parentCommit")
        if wanted is not None and opens_pull_request:
            head = repo.commit(wanted)
        elif wanted not in (None, head.sha):
            raise HubError(412, "A commit has happened since. Please refresh and try again.")

        files, lfs = dict(head.files), set(head.lfs)
        for line in lines[1:]:
            key, value = line["key"], line["value"]
            path = value["path"]
            if key == "file":
                files[path] = base64.b64decode(value["content"], validate=True)
                lfs.discard(path)
            elif key == "lfsFile":
                if value["oid"] not in repo.lfs:
                    raise HubError(
                        400, f"{path}: an LFS pointer pointed to a file that does not exist: {value['oid']}"
                    )
                files[path] = repo.lfs[value["oid"]]
                lfs.add(path)
            elif key in ("deletedFile", "deletedFolder"):
                gone = [
                    x for x in files if x == path or (key == "deletedFolder" and x.startswith(f"{path.rstrip('/')}/"))
                ]
                if not gone:
                    raise HubError(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
                for name in gone:
                    del files[name]
                    lfs.discard(name)
            else:
                raise HubError(400, f"Unknown operation {key}")
        if any(line["value"].get("path") == "README.md" for line in lines[1:]) and "README.md" in files:
            errors, _ = check_card(files["README.md"].decode(), repo.type)
            if errors:
                raise HubError(400, "Invalid metadata in README.md", errors=[{"message": error} for error in errors])

        title, message = header["summary"], header.get("description") or ""
        commit = repo.add_commit(head.sha, call.user.name, title, message, files, lfs)
        answer = {
            "success": True,
            "commitOid": commit.sha,
            "commitUrl": f"{self.url}/{repo.prefix}/commit/{commit.sha}",
            "hookOutput": "",
        }
        if opens_pull_request:
            number = len(repo.pull_requests) + 1
            opened = PullRequest(number, title, call.user.name, f"refs/pr/{number}", revision)
            repo.pull_requests[number] = opened
            repo.pull_request_heads[opened.ref] = commit.sha
            answer["pullRequestUrl"] = f"{self.url}/{repo.prefix}/discussions/{number}"
        elif revision in repo.branches:
            repo.branches[revision] = commit.sha
        else:
            repo.pull_request_heads[revision] = commit.sha
        return answer

    @route("GET HEAD", "<files>/(?:resolve|raw)/(?P<revision>[^/]+)/(?P<path>.+)")
    def _resolve(self, call: Call, repo: Repo, revision: str, path: str):
        if repo.gated and (call.user is None or repo.namespace not in (call.user.name, *call.user.orgs)):
            message = f"Access to {repo.type} {repo.id} is restricted."
            raise HubError(401 if call.user is None else 403, message, "GatedRepo")
        commit = repo.commit(revision)
        headers = {
            "X-Repo-Commit": commit.sha,
            "Content-Disposition": f'inline; filename="{quote(path.split("/")[-1])}"',
        }
        if path not in commit.files:
            error = HubError(404, "Entry not found", "EntryNotFound")
            return Answer(error.body, 404, error.headers | headers)
        entry = commit.entry(path)
        if "lfs" not in entry:
            return _content(call, commit.files[path], headers | {"ETag": f'"{entry["oid"]}"'})
        oid = entry["lfs"]["oid"]
        headers |= {"X-Linked-Etag": f'"{oid}"', "X-Linked-Size": str(entry["size"]), "ETag": f'"{entry["oid"]}"'}
        return Answer(b"", 302, headers | {"Location": f"{self.storage_url}/{repo.type}/{repo.id}/{oid}"})


def _not_found(call: Call) -> HubError:
    # The Hub gives a client without a token no code; huggingface_hub then goes by the address, which must be https.
    return HubError(401 if call.user is None else 404, "Repository not found", "RepoNotFound")


def _asked(query: dict[str, list[str]], name: str) -> bool:
    return query.get(name, ["false"])[0].lower() in ("1", "true")


def _is_binary(sample: bytes) -> bool:
    # The end of the sample may cut a character of several bytes.
    try:
        sample[: max(len(sample) - 3, 0)].decode()
    except UnicodeDecodeError as error:
        return error.reason != "unexpected end of data"
    return b"\0" in sample


def _content(call: Call, content: bytes, headers: dict[str, str]) -> Answer:
    headers = headers | {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", call.headers.get("range", ""))
    if match is None:
        return Answer(content, headers=headers)
    first, last = match.groups()
    start = int(first) if first else max(len(content) - int(last), 0)
    end = min(int(last) + 1, len(content)) if first and last else len(content)
    if start >= end:
        return Answer(b"", 416, {"Content-Range": f"bytes */{len(content)}"})
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
    return Answer(content[start:end], 206, headers)


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
        answer = self.server.hub._answer(self.command, self.path, headers, self._body(headers))
        if answer is None:
            self.close_connection = True
            return
        body, content_type = answer.body, "application/octet-stream"
        if not isinstance(body, bytes):
            body, content_type = json.dumps(body, default=str).encode(), "application/json; charset=utf-8"
        self.send_response(answer.status)
        for name, value in ({"Content-Type": content_type} | answer.headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(headers.get("content-length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve
