"""Publishes a staged folder as one commit of a repository on the Hub, or not at all.

Files are uploaded first, but belong to nothing until the commit: a push that fails or is stopped leaves the repository
as it was. The same command then resumes: files that the Hub has already are not sent again.
"""

import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, RepoCard
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import HFValidationError, validate_repo_id

from scalar_retrieval.gallery.store.files import read_json, write_json
from scalar_retrieval.modeling_scalar.model_identity import identify

from .card import Details, read_card
from .errors import PublishError, explained
from .privacy import check_card, check_no_token

logger = logging.getLogger(__name__)

RECORD = "hub.json"
"""The file in which a pushed folder records its id on the Hub, to find an adapter's base. Never pushed."""

MakeCard = Callable[[Path, str, Details], str]
"""Returns README.md from the staged folder, the full id of the repository, and the details of the card."""


@dataclass(frozen=True, kw_only=True)
class Push:
    """What is published, where to and how: the arguments of [`~scalar_retrieval.hub_cards.publish.publish`]; `source`
    is its `folder`."""

    source: str | os.PathLike
    repo_id: str
    license: str | None = None
    private: bool = False
    dry_run: str | os.PathLike | None = None
    results: Sequence[str | os.PathLike] | None = None
    base: str | None = None
    model: str | None = None
    media: bool = False


@dataclass(frozen=True)
class Kind:
    """
    A kind of published repository.

    Args:
        name (`str`): its name in the marked line of its cards; also the name of its template.
        repo_type (`str`): "model", "dataset" or "space".
        owned (`tuple[str, ...]`): patterns of the files that a push of this kind writes. Files of an earlier push that
            no longer exist are deleted by the next commit; all other files were added manually and stay.
        stage (`Callable`): takes a [`Push`], an empty folder and the Hub, and fills the folder with everything but
            the card. Returns keyword arguments of `make_card`, if the files do not contain all that it needs.
        make_card (`Callable`): see [`MakeCard`].
        options (`tuple[str, ...]`): those of "results", "base", "model" and "media" that it uses.
        sdk (`str`, *optional*): SDK of a Space.
    """

    name: str
    repo_type: str
    owned: tuple[str, ...]
    stage: Callable[[Push, Path, HfApi], Mapping[str, Any] | None]
    make_card: Callable[..., str]
    options: tuple[str, ...] = ()
    sdk: str | None = None


@dataclass(frozen=True)
class _Repository:
    """What a repository holds before the push: its last commit, `None` if it does not exist yet, the names of its
    files, and the details of its card."""

    commit: str | None = None
    files: tuple[str, ...] = ()
    details: Details = Details()


def _find_repository(api: HfApi, kind: Kind, push: Push) -> _Repository:
    """Look up a repository; a [`PublishError`] if it holds something that this push would mix with."""
    try:
        info = api.repo_info(push.repo_id, repo_type=kind.repo_type)
    except RepositoryNotFoundError:
        return _Repository()
    if push.private and not info.private:
        raise PublishError(f"{info.id} already exists and is public: make it private in its settings first.")
    # Its card names the kind of push that wrote the repository.
    files = tuple(sibling.rfilename for sibling in info.siblings)
    written_by = None
    details = Details()
    if "README.md" in files:
        path = api.hf_hub_download(info.id, "README.md", repo_type=kind.repo_type, revision=info.sha)
        # Some editors write a byte order mark.
        written_by, details = read_card(Path(path).read_bytes().decode("utf-8-sig"))
    if written_by == kind.name:
        return _Repository(info.sha, files, details)
    # The Hub itself writes the first card of a Space.
    harmless = {".gitattributes"}
    if kind.repo_type == "space":
        harmless.add("README.md")
    others = sorted(set(files) - harmless)
    if written_by is not None or others:
        raise PublishError(
            f"{info.id} already exists and holds {', '.join(others[:3])}, which no push of this kind wrote. Remove "
            "that there, or choose another name. Nothing was published."
        )
    return _Repository(info.sha, files)


def _details(push: Push) -> Details:
    """Return the publisher's values that no file records."""
    if push.license:
        return Details({"license": push.license})
    return Details()


def _write_card(folder: Path, card: str) -> None:
    """Write and check `README.md`; a ValueError describes what is wrong with it, or names a file with a token."""
    (folder / "README.md").write_bytes(card.encode("utf-8"))  # the same line breaks on every system
    check_card(card)
    check_no_token(folder)


def _operations(folder: Path, kind: Kind, earlier: _Repository) -> list[CommitOperationAdd | CommitOperationDelete]:
    operations = []
    new = set()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            new.add(name)
            operations.append(CommitOperationAdd(name, str(path)))
    # Files of an earlier push that this one no longer writes.
    for name in earlier.files:
        if name not in new and any(fnmatch(name, owned) for owned in kind.owned):
            operations.append(CommitOperationDelete(name))
    return operations


def commit_folder(api: HfApi, kind: Kind, push: Push, folder: Path, make_card: MakeCard) -> CommitInfo:
    """
    Publish a staged folder as one commit, with a card that completes the publisher's values from the existing card.
    The repository is created if needed.

    Returns the commit, the earlier one if nothing has changed. It is made here, because `upload_folder` of
    huggingface_hub splits a large folder into several, in which the card and the weights might not match.

    Raises:
        PublishError: the Hub refuses or cannot be reached, or the repository holds something else.
        ValueError: the existing card cannot be kept, the new one breaks a rule of the Hub, or a file holds a token.
    """
    where = f"{kind.repo_type} {push.repo_id}"
    repo = {"repo_id": push.repo_id, "repo_type": kind.repo_type}
    # The card, from the one on the Hub; a new repository is only created if all that it will hold is right.
    with explained(api.endpoint, where):
        earlier = _find_repository(api, kind, push)
        _write_card(folder, make_card(folder, push.repo_id, _details(push).over(earlier.details)))
        RepoCard.load(folder / "README.md").validate(kind.repo_type)
        if earlier.commit is None:
            api.create_repo(**repo, private=push.private, space_sdk=kind.sdk)
    # One commit on top of the one that was found: if somebody else pushes in between, the Hub refuses it.
    with explained(api.endpoint, where, "Push again: if the commit succeeded anyway, that changes nothing."):
        return api.create_commit(
            **repo,
            operations=_operations(folder, kind, earlier),
            commit_message=f"Publish this {kind.name} with its card",
            parent_commit=earlier.commit,
        )


def send(push: Push, kind: Kind, api: HfApi | None = None) -> str:
    """
    Stage files, write their card, and commit both; a dry run writes both into a folder.

    Args:
        push ([`Push`]): what is published, where to, and how.
        kind ([`Kind`]): the kind.
        api ([`~huggingface_hub.HfApi`], *optional*): endpoint and token, by default those of the environment.

    Returns:
        `str`: the address of the commit; or of a dry run, which uses no network, the folder. Its card is without
        manual text from the Hub.

    Raises:
        PublishError, ValueError: as in [`commit_folder`].
        FileNotFoundError: a file to publish is missing.
        FileExistsError: the folder of a dry run exists.
    """
    api = api or HfApi()
    # Staged elsewhere, so that a push that fails leaves the source as it was.
    with TemporaryDirectory(prefix="hub_cards-") as name:
        folder = Path(name)
        make_card = partial(kind.make_card, **(kind.stage(push, folder, api) or {}))
        if push.dry_run is None:
            commit = commit_folder(api, kind, push, folder, make_card)
            if kind.repo_type == "model":
                _write_record(push, folder, api.endpoint, commit.oid)
            return commit.commit_url
        _write_card(folder, make_card(folder, push.repo_id, _details(push)))
        shutil.copytree(folder, push.dry_run)  # an error if it exists
        return os.fspath(push.dry_run)


# Models on the Hub --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublishedModel:
    """A model on the Hub: its id, and as far as they are known its commit and its fingerprint there."""

    repo_id: str
    revision: str | None = None
    fingerprint: str | None = None


def _write_record(push: Push, staged: Path, endpoint: str, commit: str) -> None:
    """Record in a model's folder where it was published, and the fingerprint of its files there."""
    fingerprint = identify(staged).fingerprint  # its base, if it has one, is on the Hub
    record = {"repo_id": push.repo_id, "revision": commit, "fingerprint": fingerprint}
    try:
        write_json({"endpoint": endpoint} | record, Path(push.source) / RECORD)
    except OSError as error:
        logger.warning(
            "%s was published, but that could not be noted in %s (%s): give its id where it is needed.",
            push.repo_id, push.source, error.strerror,
        )  # fmt: skip


def _read_record(folder: Path, endpoint: str) -> PublishedModel | None:
    """Look up where the folder of a model was published on this Hub."""
    path = folder / RECORD
    if not path.is_file():
        return None
    record = read_json(path)
    if record.pop("endpoint") != endpoint:
        return None
    return PublishedModel(**record)


def check_place(name: str, repo_id: str | None) -> None:
    """Raise a ValueError that names the argument unless it is an id on the Hub."""
    try:
        validate_repo_id(repo_id or "")
    except HFValidationError as error:
        raise ValueError(f"`{name}` must be an id on the Hub, such as 'user/name', got {repo_id!r}.") from error


def find_model(
    api: HfApi, name: str, revision: str | None, weights: Mapping[str, str], offline: bool
) -> PublishedModel | None:
    """
    Find a model on the Hub, and check that it has the expected weights.

    Args:
        name (`str`): its id, or its folder, which records where it was published.
        revision (`str`, *optional*): its commit, if it is named by its id.
        weights (`dict`): the SHA-256 of each weight file that it must have.
        offline (`bool`): whether nothing is looked up on the Hub.

    Returns:
        [`PublishedModel`], or `None` for a folder that was not published on this Hub.

    Raises:
        PublishError: it does not exist, or this token has no access to it.
        ValueError: it has other weights, or the name is not an id.
    """
    # A folder records where it was published; anything else is an id.
    model = PublishedModel(name, revision)
    if Path(name).is_dir() or os.path.isabs(name) or name.count("/") > 1:
        model = _read_record(Path(name), api.endpoint)
    if model is None:
        return None
    check_place("model", model.repo_id)
    if offline:
        return model
    with explained(api.endpoint, f"model {model.repo_id}", "Nothing was published; --model or --base names another."):
        info = api.model_info(model.repo_id, revision=model.revision, files_metadata=True)
    # Large files, which weights are, are known to the Hub by their SHA-256.
    published = {file.rfilename: file.lfs.sha256 for file in info.siblings if file.lfs is not None}
    different = sorted(file for file in weights if published.get(file) != weights[file])
    if different:
        raise ValueError(
            f"{info.id} at {info.sha} has other weights than expected: {different} differ. Push the folder of the "
            "model again, or name another model."
        )
    return PublishedModel(info.id, info.sha, model.fingerprint)


__all__ = [
    "RECORD",
    "Kind",
    "MakeCard",
    "PublishedModel",
    "Push",
    "check_place",
    "commit_folder",
    "find_model",
    "send",
]
