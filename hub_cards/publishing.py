"""A staged folder becomes one commit of a repository of the Hub, or nothing does.

Weights go up first, but are part of nothing until the commit call: a push that fails or is stopped leaves a repository
as it was, and takes away a repository or branch that it made itself.
"""

import json
import logging
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from .cards import Details, read_card
from .files import TOKEN
from .validation import check_card

logger = logging.getLogger(__name__)

REPO_TYPES = {"model": "model", "adapter": "model", "gallery": "dataset", "metric": "space", "space": "space"}
"""The type of repository that each kind of card belongs to."""

_ARTICLES = {kind: f"{'an' if kind == 'adapter' else 'a'} {kind}" for kind in REPO_TYPES}

# What a push of each kind writes: of these, what is no longer there goes in the same commit. Others are a person's.
_OF_MODEL = (
    *("config.json", "processor_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.txt", "model.safetensors", "model-?????-of-?????.safetensors", "model.safetensors.index.json"),
    *("*_scalar.py", "modeling_beats.py", "recipe.json", "training.json", "emissions.csv", "merge.json"),
    *("results/*/results.json", "results/*/results.png", "results/*/report/*"),
)
_OWNED = {
    "model": _OF_MODEL,
    "adapter": (*_OF_MODEL, "adapter_config.json", "adapter_model*.safetensors"),
    "gallery": ("clips/*", "queries/*", "media/*", "embeddings.json"),
    "metric": ("app.py", "example.json", "ranking.py", "requirements.txt"),
    "space": ("app.py", "rendering.py", "searching.py", "requirements.txt", "space.json"),
}

RECORD = "hub.json"
"""Where a pushed folder remembers its place on the Hub: an adapter's base is found by it. Never pushed itself."""

_OF_THE_HUB = (HfHubHTTPError, httpx2.RequestError, json.JSONDecodeError)
"""How a request fails: refused, not answered, or answered by something else than a Hub."""

MakeCard = Callable[[str, Details], str]

_TOKEN = re.compile(TOKEN.pattern.encode())
_SCANNED = 20 * 2**20  # a token in a larger file is in weights or media, where these letters are chance


class PublishError(OSError):
    """Nothing was published; the message says why, and what is left on the Hub if anything is."""


@dataclass(frozen=True)
class Target:
    """
    Where a push goes.

    Args:
        repo_id (`str`): `user/name`, or the `name` of a repository of one's own.
        kind (`str`): one of [`REPO_TYPES`].
        private (`bool`): make a new repository private.
        revision (`str`, *optional*): branch, made if need be, or `refs/pr/N`; `main` by default.
        create_pr (`bool`): open a pull request with the commit.
        replace (`bool`): take over a repository that holds something else; all its files go.

    Raises:
        ValueError: the name is none, or a pull request is asked for on a branch.
    """

    repo_id: str
    kind: str
    private: bool = False
    revision: str | None = None
    create_pr: bool = False
    replace: bool = False

    def __post_init__(self) -> None:
        validate_repo_id(self.repo_id)
        if self.create_pr and self.revision is not None:
            raise ValueError(
                "A pull request is opened against `main`: leave out the revision. To add to a pull request that is "
                "open, give `refs/pr/N` as the revision alone."
            )

    @property
    def repo_type(self) -> str:
        """As huggingface_hub calls it."""
        return REPO_TYPES[self.kind]

    @property
    def is_pull_request(self) -> bool:
        """Whether the commit stays out of every branch until somebody merges it."""
        return self.create_pr or (self.revision or "").startswith("refs/")

    @property
    def _place(self) -> dict[str, str]:
        return {"repo_id": self.repo_id, "repo_type": self.repo_type}


@dataclass(frozen=True)
class Published:
    """Where it is now: `commit` of `repo_id`, `url`, the `pull_request`'s URL if one was opened, and whether anything
    had `changed`."""

    repo_id: str
    commit: str
    url: str
    pull_request: str | None
    changed: bool


@dataclass(frozen=True)
class _Found:
    """A repository before the push. `repo_id` is its own name, not one that leads to it; `has_branch`: whether the
    revision is there already."""

    repo_id: str
    commit: str
    files: tuple[str, ...]
    has_branch: bool
    kind: str | None
    details: Details


# Messages -----------------------------------------------------------------------------------------------------------


def _reason(error: BaseException, target: Target, endpoint: str) -> str:
    where = f"the {target.repo_type} {target.repo_id}"
    if isinstance(error, LocalTokenNotFoundError):
        return "There is no token. Log in with `hf auth login`, or set HF_TOKEN, with a token that may write."
    if isinstance(error, RevisionNotFoundError):
        return f"There is no revision {target.revision!r} in {where}."
    if isinstance(error, GatedRepoError):
        return f"{where[0].upper()}{where[1:]} is gated, and the token has no access. Ask for it on its page."
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    said = " ".join((error.server_message or "").split()).rstrip(".") if isinstance(error, HfHubHTTPError) else ""
    if status == 401 and not isinstance(error, RepositoryNotFoundError):
        return f"{endpoint} does not accept the token. Log in again with `hf auth login`, or set HF_TOKEN."
    if status == 403:
        return (
            f"{endpoint} refuses the token at {where} ({said or 'it does not say why'}). Use one that may write, or "
            "open a pull request with --create-pr."
        )
    if isinstance(error, RepositoryNotFoundError):
        return f"{where[0].upper()}{where[1:]} is not there, or the token may not see it."
    if status == 409:
        return f"{where[0].upper()}{where[1:]} was made by somebody else meanwhile. Look at it, then push again."
    if status == 412:
        return f"{where[0].upper()}{where[1:]} was changed meanwhile. Push again: its card is then read anew."
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set, so nothing can be published. Unset it, or use --dry-run."
    if isinstance(error, json.JSONDecodeError):
        return f"What answers at {endpoint} is no Hub. Look at HF_ENDPOINT, and whether the network wants a login."
    if status is not None and said:
        return f"{endpoint} answers {status}: {said}."
    if isinstance(error, httpx2.RequestError | LocalEntryNotFoundError | ConnectionError):
        return f"{endpoint} cannot be reached, or the connection broke: {_first_line(error)}."
    return f"{_first_line(error)}."


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (" ".join(lines[:2]) or type(error).__name__).rstrip(".")


@contextmanager
def explained(api: HfApi, target: Target) -> Iterator[None]:
    """
    Turn errors of the Hub and the network into one sentence about what to do.

    Args:
        api ([`~huggingface_hub.HfApi`]): names the endpoint.
        target ([`Target`]): names the repository.

    Raises:
        PublishError: in place of an error of the Hub or of the network.
    """
    try:
        yield
    except (*_OF_THE_HUB, LocalTokenNotFoundError, LocalEntryNotFoundError, ConnectionError) as error:
        raise PublishError(f"{_reason(error, target, api.endpoint)} Nothing was published.") from error


# Before -------------------------------------------------------------------------------------------------------------


def _check_account(api: HfApi, target: Target) -> Target:
    """See to it that the token may write there, before anything is uploaded; return the target with its namespace."""
    account = api.whoami()
    names = [account["name"], *(organisation["name"] for organisation in account.get("orgs", []))]
    role = account.get("auth", {}).get("accessToken", {}).get("role")
    if role == "read":
        raise PublishError(
            "The token may only read. Make one that may write, then `hf auth login`, or set HF_TOKEN. Nothing was "
            "published."
        )
    if "/" not in target.repo_id:
        return replace(target, repo_id=f"{account['name']}/{target.repo_id}")
    owner = target.repo_id.split("/")[0]
    if owner not in names and not target.is_pull_request:
        raise PublishError(
            f"The token belongs to {account['name']}, who may not write to {target.repo_id}. Push under one of "
            f"{names}, or open a pull request with --create-pr. Nothing was published."
        )
    return target


def _find(api: HfApi, target: Target) -> _Found | None:
    try:
        info = api.repo_info(**target._place)
    except RepositoryNotFoundError:
        if target.is_pull_request:
            raise
        return None
    target = replace(target, repo_id=info.id)
    has_branch = True
    if target.revision is not None:
        try:
            info = api.repo_info(**target._place, revision=target.revision)
        except RevisionNotFoundError:
            if target.is_pull_request:
                raise
            has_branch = False
    files = tuple(sibling.rfilename for sibling in info.siblings or ())
    kind, details = None, Details()
    if "README.md" in files:
        path = api.hf_hub_download(**target._place, filename="README.md", revision=info.sha)
        kind, details = read_card(Path(path).read_bytes().decode("utf-8-sig"))  # some editors write the signature
    return _Found(target.repo_id, info.sha, files, has_branch, kind, details)


def _check_ours(target: Target, found: _Found) -> None:
    """Raise where the repository holds something that this push would lose or mix with other things."""
    others = [name for name in found.files if name not in (".gitattributes", "README.md")]
    if target.replace or found.kind == target.kind or not (others or "README.md" in found.files):
        return
    holds = _ARTICLES.get(found.kind) or f"{', '.join((others or ['a card'])[:3])}, which no push wrote"
    raise PublishError(
        f"{target.repo_id} is there already and holds {holds}; {_ARTICLES[target.kind]} pushed there would mix with "
        "it. Choose another name, or give --replace to remove what is there. Nothing was published."
    )


def _check_private(api: HfApi, target: Target) -> None:
    if target.private and not api.repo_info(**target._place).private:
        raise PublishError(
            f"{target.repo_id} is there already and public. Make it private in its settings, or leave out --private. "
            "Nothing was published."
        )


def check_no_token(folder: Path) -> None:
    """Raise a ValueError that names the file if a file of the folder holds what looks like a token of the Hub."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.stat().st_size <= _SCANNED and path.suffix != ".safetensors":
            if _TOKEN.search(path.read_bytes()):
                raise ValueError(
                    f"{path.relative_to(folder)} holds what looks like a token (hf_...). Remove it from the file that "
                    "this one was made of, and revoke the token: it may have been read."
                )


def write_card(folder: Path, target: Target, card: str) -> None:
    """Write and check `README.md`; a ValueError says which rule of the Hub it breaks, or which file holds a token."""
    (folder / "README.md").write_bytes(card.encode("utf-8"))  # no other line breaks on another system
    check_card(folder, target.repo_type)
    check_no_token(folder)


# The commit ---------------------------------------------------------------------------------------------------------


def _operations(folder: Path, target: Target, found: _Found | None) -> list:
    new = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    old = [] if found is None else [name for name in found.files if name not in new and name != ".gitattributes"]
    gone = [name for name in old if target.replace or any(fnmatch(name, owned) for owned in _OWNED[target.kind])]
    additions = [CommitOperationAdd(name, str(path)) for name, path in new.items()]
    return additions + [CommitOperationDelete(name) for name in gone]


@contextmanager
def _place_for(api: HfApi, target: Target, found: _Found | None) -> Iterator[str]:
    """Make the repository or branch if need be; yield the commit to build on. What was made goes if the push fails."""
    undo: Callable[[], None] | None = None
    if found is None:
        sdk = {"space_sdk": "gradio"} if target.repo_type == "space" else {}
        made = f"The {target.repo_type} {target.repo_id}"
        with _doubtful(made):
            api.create_repo(**target._place, private=target.private, **sdk)
        undo = partial(api.delete_repo, **target._place)
    start = None
    try:
        start = api.repo_info(**target._place).sha if found is None else found.commit
        if target.revision not in (None, "main") and (found is None or not found.has_branch):
            branch = {**target._place, "branch": target.revision}
            new_branch = f"The branch {target.revision} of {target.repo_id}"
            with _doubtful(new_branch):
                api.create_branch(**branch, revision=start)
            if undo is None:
                undo, made = partial(api.delete_branch, **branch), new_branch
        yield start
    except BaseException:  # also of Ctrl-C
        if undo is not None:
            _take_back(api, target, start, undo, made)
        raise


def _take_back(api: HfApi, target: Target, start: str | None, undo: Callable[[], None], made: str) -> None:
    """Remove what was made for a push that failed, unless something has come into it after all."""
    try:
        heads = api.list_repo_refs(**target._place).branches
        if all(head.target_commit == start for head in heads if start is not None):
            undo()
            return
        reason = "it holds a commit"
    except (*_OF_THE_HUB, OSError) as error:
        reason = _first_line(error)
    logger.warning("%s was made for this push and is still there: %s.", made, reason)


@contextmanager
def _doubtful(made: str) -> Iterator[None]:
    """Say so where the answer is lost of something that may have been made. It is empty: another push fills it."""
    try:
        yield
    except (httpx2.RequestError, KeyboardInterrupt):
        logger.warning("%s may have been made: the answer of the Hub was lost. Push again, or remove it.", made)
        raise


def _state(api: HfApi, target: Target) -> str:
    """What the commit of a push would change."""
    if target.create_pr:
        refs = api.list_repo_refs(**target._place, include_pull_requests=True)
        return f"the pull requests {sorted(ref.ref for ref in refs.pull_requests or ())}"
    return api.repo_info(**target._place, revision=target.revision).sha


def _send(api: HfApi, target: Target, operations: list, start: str, message: str):
    before = _state(api, target)
    try:
        with warnings.catch_warnings(record=True) as noted:  # of the Hub, about the card
            commit = api.create_commit(
                **target._place,
                operations=operations,
                commit_message=message,
                revision=target.revision,
                create_pr=target.create_pr,
                parent_commit=start,
            )
        for warning in noted:
            if issubclass(warning.category, UserWarning):
                logger.warning("%s", " ".join(str(warning.message).split()))
        return commit
    except RuntimeError as error:  # how the client reports an upload that failed, before any commit
        reason = f": {_reason(error.__cause__, target, api.endpoint)}" if error.__cause__ else "."
        raise PublishError(f"{_first_line(error)}{reason} Nothing was published.") from error
    except (*_OF_THE_HUB, KeyboardInterrupt) as error:
        if isinstance(error, HfHubHTTPError) and error.response.status_code < 500:  # refused
            raise
        # The answer may be lost of a commit that was made.
        try:
            now = _state(api, target)
        except _OF_THE_HUB:
            raise _Uncertain(f"{target.repo_id} may have changed") from error
        if now != before:
            raise _Uncertain(f"{target.repo_id} has changed (it has {now})") from error
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt("Nothing had been published by then.") from None
        raise


class _Uncertain(Exception):
    """A push broke off during the commit, which may have been made; says what is known of the repository."""


def publish(api: HfApi, target: Target, folder: Path, make_card: MakeCard, details: Details) -> Published:
    """
    Publish a staged folder as one commit.

    Args:
        api ([`~huggingface_hub.HfApi`]): endpoint and token.
        target ([`Target`]): the repository, made if need be.
        folder (`Path`): everything to publish but the card.
        make_card (`Callable`): returns README.md, given the repository's full id, and the details below over those of
            the card that is there.
        details ([`Details`]): what the publisher says.

    Returns:
        [`Published`].

    Raises:
        PublishError: the Hub refuses or cannot be reached, or the repository holds something else. Nothing was
            published then, and what was made for it is gone again.
        ValueError: the card there cannot be kept, the new one breaks a rule, or a file holds a token.
    """
    with explained(api, target):
        target = _check_account(api, target)
        found = _find(api, target)
        if found is not None:
            target = replace(target, repo_id=found.repo_id)
            _check_ours(target, found)
            _check_private(api, target)
        earlier = found.details if found is not None and found.kind is not None else Details()
        write_card(folder, target, make_card(target.repo_id, details.over(earlier)))
        operations = _operations(folder, target, found)
        try:
            with _place_for(api, target, found) as start:
                commit = _send(api, target, operations, start, f"Publish this {target.kind} with its card")
        except _Uncertain as error:
            raise PublishError(
                f"The push broke off during the commit, and {error}. Look at it before you push again."
            ) from error
    changed = found is None or commit.oid != found.commit
    return Published(target.repo_id, commit.oid, commit.commit_url, commit.pr_url, changed)


def preview(target: Target, folder: Path, make_card: MakeCard, details: Details, output: Path) -> str:
    """
    Write what would be published, without a network.

    Args:
        target, folder, make_card, details: as in [`publish`].
        output (`Path`): a new or empty folder.

    Returns:
        `str`: the card. What a person wrote into a card on the Hub is not in it.

    Raises:
        ValueError: as in [`publish`], or the folder holds something.
    """
    if output.exists() and (output.is_file() or any(output.iterdir())):
        raise ValueError(f"{output} is there already. Give another folder for the dry run, or remove it.")
    card = make_card(target.repo_id, details)
    write_card(folder, target, card)
    shutil.copytree(folder, output, dirs_exist_ok=True)
    return card


@contextmanager
def staging() -> Iterator[Path]:
    """Yield an empty folder that is gone afterwards."""
    with TemporaryDirectory(prefix="hub_cards-") as folder:
        yield Path(folder) / ""


# Where a folder is on the Hub ---------------------------------------------------------------------------------------


def write_record(folder: Path, endpoint: str, published: Published) -> None:
    """Note in a folder where it was published."""
    content = {"endpoint": endpoint, "repo_id": published.repo_id, "revision": published.commit}
    (folder / RECORD).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_record(folder: Path, endpoint: str) -> tuple[str, str] | None:
    """
    Look up where a folder was published.

    Args:
        folder (`Path`): of a model, an adapter or a gallery.
        endpoint (`str`): of the Hub in question.

    Returns:
        `tuple`: its id and commit there, or `None`.

    Raises:
        ValueError: the note is not as [`write_record`] writes it.
    """
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        place, there = (content["repo_id"], content["revision"]), content["endpoint"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is not as a push writes it: {error!r}. Remove it, and push again.") from error
    return place if there == endpoint else None


__all__ = [
    "RECORD",
    "REPO_TYPES",
    "PublishError",
    "Published",
    "Target",
    "check_no_token",
    "explained",
    "preview",
    "publish",
    "read_record",
    "staging",
    "write_card",
    "write_record",
]
