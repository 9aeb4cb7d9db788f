"""A staged folder becomes one commit of a repository of the Hub, or nothing does.

Weights are uploaded first, but belong to nothing until the commit call: a push that fails or is stopped leaves a
repository as it was, and removes a repository or branch that it created itself.
"""

import logging
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
from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import validate_repo_id

from gallery.files import read_json, write_json
from modeling_scalar.fingerprints import ADAPTER_CONFIG, model_fingerprint

from ..card import Details, read_card
from .card_rules import check_card
from .errors import REQUEST_ERRORS, PublishError, explained, first_line, reason
from .privacy import check_no_token

logger = logging.getLogger(__name__)

RECORD = "hub.json"
"""The file in which a pushed folder remembers its place on the Hub: an adapter's base is found by it. Never pushed."""

Stage = Callable[[Path], None]
"""Fills an empty folder with all that is published but the card."""
MakeCard = Callable[[Path, str, Details], str]
"""Returns README.md, given the staged folder, the full id of the repository, and the details of the card."""


@dataclass(frozen=True)
class Kind:
    """
    A kind of thing that is published.

    Args:
        name (`str`): as the marked line of its cards has it; also the name of its template.
        repo_type (`str`): "model", "dataset" or "space".
        owned (`tuple[str, ...]`): patterns of the files that a push of this kind writes. Those of an earlier push that
            are no longer there go with the next commit; all other files were added by a person and stay.
        sdk (`str`): what runs a Space.
    """

    name: str
    repo_type: str
    owned: tuple[str, ...]
    sdk: str = "gradio"


@dataclass(frozen=True)
class Target:
    """
    Where a push goes.

    Args:
        repo_id (`str`): `user/name`, or the `name` of a repository of one's own.
        private (`bool`): make a new repository private.
        revision (`str`, *optional*): branch, created if need be, or `refs/pr/N`; `main` by default.
        create_pr (`bool`): open a pull request with the commit.
        replace (`bool`): take over a repository that holds something else; all its files are removed.

    Raises:
        ValueError: the name is not valid, or a pull request is to be opened on a branch.
    """

    repo_id: str
    private: bool = False
    revision: str | None = None
    create_pr: bool = False
    replace: bool = False

    def __post_init__(self) -> None:
        validate_repo_id(self.repo_id)
        if self.create_pr and self.revision is not None:
            raise ValueError(
                "A pull request is opened against `main`: leave out the revision. To add to an open pull request, "
                "give `refs/pr/N` as the revision alone."
            )

    @property
    def is_pull_request(self) -> bool:
        """Whether the commit stays out of every branch until somebody merges it."""
        return self.create_pr or (self.revision or "").startswith("refs/")


@dataclass(frozen=True)
class Published:
    """Where something is now: a commit of `repo_id` and its page, the page of the pull request if one was opened, and
    whether anything has changed since the commit before."""

    repo_id: str
    commit: str
    url: str
    pull_request: str | None
    changed: bool


@dataclass(frozen=True)
class _Found:
    """A repository before the push. `repo_id` is its own name, not one that redirects to it; `has_branch`: whether the
    revision exists already; `kind`: that of its card, if a push wrote it."""

    repo_id: str
    commit: str
    files: tuple[str, ...]
    has_branch: bool
    kind: str | None
    details: Details


@dataclass(frozen=True)
class _Place:
    """A target together with the kind that goes there."""

    kind: Kind
    target: Target

    @property
    def repo(self) -> dict[str, str]:
        return {"repo_id": self.target.repo_id, "repo_type": self.kind.repo_type}

    @property
    def name(self) -> str:
        return f"{self.kind.repo_type} {self.target.repo_id}"

    def renamed(self, repo_id: str) -> "_Place":
        return replace(self, target=replace(self.target, repo_id=repo_id))


# Before -------------------------------------------------------------------------------------------------------------


def _check_account(api: HfApi, place: _Place) -> _Place:
    """Make sure that the token may write there before anything is uploaded; return the place with its namespace."""
    target, account = place.target, api.whoami()
    names = [account["name"], *(organisation["name"] for organisation in account.get("orgs", []))]
    role = account.get("auth", {}).get("accessToken", {}).get("role")
    if role == "read":
        raise PublishError(
            "The token may only read. Create one that may write, then run `hf auth login` or set HF_TOKEN. Nothing "
            "was published."
        )
    if "/" not in target.repo_id:
        return place.renamed(f"{account['name']}/{target.repo_id}")
    owner = target.repo_id.split("/")[0]
    if owner not in names and not target.is_pull_request:
        raise PublishError(
            f"The token belongs to {account['name']}, who may not write to {target.repo_id}. Push under one of "
            f"{names}, or open a pull request with --create-pr. Nothing was published."
        )
    return place


def _find(api: HfApi, place: _Place) -> _Found | None:
    target = place.target
    try:
        info = api.repo_info(**place.repo)
    except RepositoryNotFoundError:
        if target.is_pull_request:
            raise
        return None
    place = place.renamed(info.id)
    has_branch = True
    if target.revision is not None:
        try:
            info = api.repo_info(**place.repo, revision=target.revision)
        except RevisionNotFoundError:
            if target.is_pull_request:
                raise
            has_branch = False
    files = tuple(sibling.rfilename for sibling in info.siblings or ())
    kind, details = None, Details()
    if "README.md" in files:
        path = api.hf_hub_download(**place.repo, filename="README.md", revision=info.sha)
        # Some editors write a byte order mark.
        kind, details = read_card(Path(path).read_bytes().decode("utf-8-sig"))
    return _Found(place.target.repo_id, info.sha, files, has_branch, kind, details)


def _with_article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _check_ours(place: _Place, found: _Found) -> None:
    """Raise an error where the repository holds something that this push would lose or mix with other things."""
    others = [name for name in found.files if name not in (".gitattributes", "README.md")]
    if place.target.replace or found.kind == place.kind.name or not (others or "README.md" in found.files):
        return
    if found.kind is None:
        holds = f"{', '.join((others or ['a card'])[:3])}, which no push wrote"
    else:
        holds = _with_article(found.kind)
    raise PublishError(
        f"{place.target.repo_id} already exists and holds {holds}; {_with_article(place.kind.name)} pushed there "
        "would mix with it. Choose another name, or give --replace to remove what is there. Nothing was published."
    )


def _check_private(api: HfApi, place: _Place) -> None:
    if place.target.private and not api.repo_info(**place.repo).private:
        raise PublishError(
            f"{place.target.repo_id} already exists and is public. Make it private in its settings, or leave out "
            "--private. Nothing was published."
        )


def _write_card(folder: Path, card: str) -> None:
    """Write and check `README.md`; a ValueError says what is wrong with it, or which file holds a token."""
    (folder / "README.md").write_bytes(card.encode("utf-8"))  # the same line breaks on every system
    check_card(folder)
    check_no_token(folder)


# The commit ---------------------------------------------------------------------------------------------------------


def _operations(folder: Path, place: _Place, found: _Found | None) -> list[CommitOperationAdd | CommitOperationDelete]:
    new = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    old = [] if found is None else [name for name in found.files if name not in new and name != ".gitattributes"]
    gone = [name for name in old if place.target.replace or any(fnmatch(name, owned) for owned in place.kind.owned)]
    additions = [CommitOperationAdd(name, str(path)) for name, path in new.items()]
    return additions + [CommitOperationDelete(name) for name in gone]


@contextmanager
def _created(api: HfApi, place: _Place, found: _Found | None) -> Iterator[str]:
    """Create repository or branch if need be; yield the commit to build on. If the push fails, remove them again."""
    target = place.target
    undo: Callable[[], None] | None = None
    if found is None:
        sdk = {"space_sdk": place.kind.sdk} if place.kind.repo_type == "space" else {}
        made = f"The {place.name}"
        with _doubtful(made):
            api.create_repo(**place.repo, private=target.private, **sdk)
        undo = partial(api.delete_repo, **place.repo)
    start = None
    try:
        start = api.repo_info(**place.repo).sha if found is None else found.commit
        if target.revision not in (None, "main") and (found is None or not found.has_branch):
            branch = {**place.repo, "branch": target.revision}
            new_branch = f"The branch {target.revision} of {target.repo_id}"
            with _doubtful(new_branch):
                api.create_branch(**branch, revision=start)
            if undo is None:
                undo, made = partial(api.delete_branch, **branch), new_branch
        yield start
    except BaseException:  # also on Ctrl-C
        if undo is not None:
            _take_back(api, place, start, undo, made)
        raise


def _take_back(api: HfApi, place: _Place, start: str | None, undo: Callable[[], None], made: str) -> None:
    """Remove what was created for a push that failed, unless it has received a commit after all."""
    try:
        heads = api.list_repo_refs(**place.repo).branches
        if all(head.target_commit == start for head in heads if start is not None):
            undo()
            return
        why = "it holds a commit"
    except (*REQUEST_ERRORS, OSError) as error:
        why = first_line(error)
    logger.warning("%s was created for this push and still exists: %s.", made, why)


@contextmanager
def _doubtful(made: str) -> Iterator[None]:
    """Warn if the answer about something that may have been created is lost. It is empty: another push fills it."""
    try:
        yield
    except (httpx2.RequestError, KeyboardInterrupt):
        logger.warning("%s may have been created: the Hub's answer was lost. Push again, or remove it.", made)
        raise


def _state(api: HfApi, place: _Place) -> str:
    """What the commit of a push would change."""
    if place.target.create_pr:
        refs = api.list_repo_refs(**place.repo, include_pull_requests=True)
        return f"the pull requests {sorted(ref.ref for ref in refs.pull_requests or ())}"
    return api.repo_info(**place.repo, revision=place.target.revision).sha


def _send(api: HfApi, place: _Place, operations: list, start: str, message: str) -> CommitInfo:
    target = place.target
    before = _state(api, place)
    try:
        with warnings.catch_warnings(record=True) as noted:  # the Hub's, about the card
            commit = api.create_commit(
                **place.repo,
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
        cause = error.__cause__
        why = f": {reason(cause, api, place.kind.repo_type, target.repo_id, target.revision)}" if cause else "."
        raise PublishError(f"{first_line(error)}{why} Nothing was published.") from error
    except (*REQUEST_ERRORS, KeyboardInterrupt) as error:
        if isinstance(error, HfHubHTTPError) and error.response.status_code < 500:  # refused
            raise
        # The commit may have been made, and its answer lost.
        try:
            now = _state(api, place)
        except REQUEST_ERRORS:
            raise _Uncertain(f"{target.repo_id} may have changed") from error
        if now != before:
            raise _Uncertain(f"{target.repo_id} has changed (it has {now})") from error
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt("Nothing had been published by then.") from None
        raise


class _Uncertain(Exception):
    """A push broke off during the commit, which may have been made; says what is known of the repository."""


def publish(api: HfApi, kind: Kind, target: Target, folder: Path, make_card: MakeCard, details: Details) -> Published:
    """
    Publish a staged folder as one commit.

    Args:
        api ([`~huggingface_hub.HfApi`]): endpoint and token.
        kind ([`Kind`]): what is published.
        target ([`Target`]): the repository, created if need be.
        folder (`Path`): everything to publish but the card.
        make_card (`Callable`): see [`MakeCard`]; it is given the details below, completed from the card that is there.
        details ([`Details`]): what the publisher says.

    Returns:
        [`Published`].

    Raises:
        PublishError: the Hub refuses or cannot be reached, or the repository holds something else. Nothing was
            published then, and what was created for it is removed again.
        ValueError: the card there cannot be kept, the new one breaks a rule, or a file holds a token.
    """
    with explained(api, kind.repo_type, target.repo_id, target.revision):
        place = _check_account(api, _Place(kind, target))
        found = _find(api, place)
        if found is not None:
            place = place.renamed(found.repo_id)
            _check_ours(place, found)
            _check_private(api, place)
        earlier = found.details if found is not None and found.kind is not None else Details()
        _write_card(folder, make_card(folder, place.target.repo_id, details.over(earlier)))
        operations = _operations(folder, place, found)
        try:
            with _created(api, place, found) as start:
                commit = _send(api, place, operations, start, f"Publish this {kind.name} with its card")
        except _Uncertain as error:
            raise PublishError(
                f"The push broke off during the commit, and {error}. Look at it before you push again."
            ) from error
    changed = found is None or commit.oid != found.commit
    return Published(place.target.repo_id, commit.oid, commit.commit_url, commit.pr_url, changed)


def push(
    kind: Kind,
    target: Target,
    details: Details,
    stage: Stage,
    make_card: MakeCard,
    output: Path | None = None,
    api: HfApi | None = None,
    source: Path | None = None,
) -> Published | str:
    """
    Stage something, write its card, and make one commit of both.

    Args:
        kind, target, details: as in [`publish`].
        stage (`Callable`), make_card (`Callable`): see [`Stage`] and [`MakeCard`].
        output (`Path`, *optional*): write what would be published there instead; nothing reaches the network.
        api ([`~huggingface_hub.HfApi`], *optional*): endpoint and token, by default those of the environment.
        source (`Path`, *optional*): a folder that remembers where it was published, see [`read_record`].

    Returns:
        [`Published`], or with `output` the card, without what a person wrote into one on the Hub.

    Raises:
        PublishError, ValueError: as in [`publish`]; also if the folder of `output` is not empty.
    """
    api = api or HfApi()
    with TemporaryDirectory(prefix="hub_cards-") as name:
        folder = Path(name)
        stage(folder)
        if output is not None:
            check_empty(output)
            card = make_card(folder, target.repo_id, details)
            _write_card(folder, card)
            shutil.copytree(folder, output, dirs_exist_ok=True)
            return card
        published = publish(api, kind, target, folder, make_card, details)
        fingerprint = fingerprint_of(folder) if kind.repo_type == "model" and source is not None else None
    if source is not None and not target.is_pull_request:
        try:
            write_record(source, api.endpoint, published, fingerprint)
        except OSError as error:
            logger.warning(
                "%s was published, but that could not be noted in %s (%s): name it wherever it is asked for.",
                published.repo_id, source, error.strerror,
            )  # fmt: skip
    return published


def fingerprint_of(folder: Path) -> str:
    """The fingerprint that a staged model has for whoever downloads it; its base, if it has one, is on the Hub."""
    config = folder / ADAPTER_CONFIG
    return model_fingerprint(folder, read_json(config) if config.is_file() else None)


# Folders ------------------------------------------------------------------------------------------------------------


def check_empty(folder: Path) -> None:
    """Raise a ValueError unless a folder is empty or does not exist yet."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} must be a new or an empty folder: give another one, or remove it.")


def write_record(folder: Path, endpoint: str, published: Published, fingerprint: str | None = None) -> None:
    """Note in a folder where it was published, and the fingerprint of the model's files there."""
    place = {"endpoint": endpoint, "repo_id": published.repo_id, "revision": published.commit}
    write_json(place | ({"fingerprint": fingerprint} if fingerprint else {}), folder / RECORD)


def read_record(folder: Path, endpoint: str) -> tuple[str, str, str | None] | None:
    """
    Look up where a folder was published.

    Args:
        folder (`Path`): of a model, an adapter or a gallery.
        endpoint (`str`): of the Hub in question.

    Returns:
        `tuple`: its id and commit there, and if it is a model the fingerprint; or `None`.

    Raises:
        ValueError: the note is not as [`write_record`] writes it.
    """
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        content = read_json(path)
        place, there = (content["repo_id"], content["revision"], content.get("fingerprint")), content["endpoint"]
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is not as a push writes it: {error!r}. Remove it, and push again.") from error
    return place if there == endpoint else None


__all__ = [
    "RECORD",
    "Kind",
    "MakeCard",
    "Published",
    "Stage",
    "Target",
    "check_empty",
    "publish",
    "push",
    "read_record",
    "write_record",
]
