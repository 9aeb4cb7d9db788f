"""What a card must not show, and what the Hub says of it.

Its rules are the Hub's own to know, and it is asked. It would publish a link to a file that does not exist, a path of
one's own machine or a token.
"""

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from huggingface_hub import RepoCard
from huggingface_hub.repocard import REGEX_YAML_BLOCK

from ..card import KEPT_BEGIN, KEPT_END, front_matter, read_marks
from .privacy import TOKEN

REPO_TYPES = ("model", "dataset", "space")

_LOCAL_PATH = re.compile(
    r"(?<![\w/.:~-])/(?:home|Users|root|tmp|private|mnt|media|data|(?<!\]\(/)datasets|var|opt|srv|usr|work|workspace|scratch"
    r"|gpfs|lustre|nfs|storage|project|projects|content|kaggle|app)/[^\s)\"'`>\]]*"
    r"|\bfile://[^\s)\"'`>\]]*|(?<![\w])[A-Za-z]:\\[^\s)\"'`>\]]*"
)
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n]*\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(
    r"(?<!\\)\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'(][^\n]*?)?\)"
    r"|^ {0,3}\[[^\]\n]+\]:\s*<?([^\s>]+)|(?:src|href)=[\"']([^\"']+)",
    re.MULTILINE,
)
# A place outside the repository: a URL, this page, or one of the Hub's sections.
_ELSEWHERE = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*:|//|#|/(?:blog|collections|datasets|docs|models|papers|spaces|tasks)\b"
)


def _exists(folder: Path, link: str) -> bool:
    """Whether a relative link leads to a file or folder inside `folder`; weights may be staged as symbolic links."""
    target = os.path.normpath(folder / unquote(link))
    return Path(target).is_relative_to(os.path.normpath(folder)) and os.path.exists(target)


def _listed(value: Any) -> list[Any]:
    """A field that may hold one value or a list of them."""
    return [] if value is None else value if isinstance(value, list) else [value]


def _check_files(data: dict[str, Any], folder: Path) -> Iterator[str]:
    """The files that front matter names: the text of a licence, the app of a Space, the tables of a data set."""
    for name in ("license_link", "app_file"):
        link = data.get(name)
        # A person may have added the licence on the Hub.
        if isinstance(link, str) and link != "LICENSE" and not _ELSEWHERE.match(link) and not _exists(folder, link):
            yield f"`{name}` is {link!r}, but there is no such file."
    configs = [config for config in _listed(data.get("configs")) if isinstance(config, dict)]
    for file in (file for config in configs for file in _listed(config.get("data_files"))):
        for path in _listed(file.get("path") if isinstance(file, dict) else file):
            inside = (found.relative_to(folder).as_posix() for found in folder.rglob("*"))
            if not any(fnmatch(name, str(path)) for name in inside):
                yield f"`data_files` names {path!r}, but there is no such file."


def _check_text(card: str, folder: Path) -> Iterator[str]:
    if TOKEN.search(card):
        yield "There is something that looks like an access token. Remove it, and revoke it if it was one."
    # A person may keep what they like: an example with a path, a link to a file that was added on the Hub.
    before, _, rest = card.partition(KEPT_BEGIN)
    written = before + rest.partition(KEPT_END)[2]
    for found in sorted(set(_LOCAL_PATH.findall(written))):
        yield f"There is a path of one machine: {found}."
    prose = _CODE.sub("", _FENCE.sub("", REGEX_YAML_BLOCK.sub("", written, count=1)))
    for link in dict.fromkeys(part for groups in _LINK.findall(prose) for part in groups if part):
        if not _ELSEWHERE.match(link) and not _exists(folder, link.partition("#")[0].partition("?")[0]):
            yield f"The link {link!r} does not lead to a file of the repository."


def _check_front_matter(card: str, folder: Path) -> Iterator[str]:
    try:
        data = front_matter(card)
        if not data:
            yield "There is no front matter: a card begins with metadata in YAML between two lines of `---`."
        yield from _check_files(data, folder)
        if data:
            read_marks(card)
    except ValueError as error:
        yield str(error)


def validate(path: str | os.PathLike) -> list[str]:
    """
    Check a card as far as the Hub would not.

    Args:
        path (`str`): a README.md, or the folder of a repository that holds one. Links and files are looked up beside
            the card.

    Returns:
        `list[str]`: the problems, a sentence each; empty if there are none.

    Raises:
        FileNotFoundError: there is no card.
    """
    path = Path(path)
    file = path / "README.md" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"There is no card at {file}: expected a README.md, or a folder that holds one.")
    try:
        card = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        return [f"The card is not UTF-8: {error}."]
    return [*_check_front_matter(card, file.parent), *_check_text(card, file.parent)]


def ask_hub(path: str | os.PathLike, repo_type: str | None = None) -> list[str]:
    """
    Let the Hub check a card in which [`validate`] found nothing.

    Args:
        path (`str`): as there.
        repo_type (`str`, *optional*): "model", "dataset" or "space"; by default what the front matter looks like.

    Returns:
        `list[str]`: what the Hub would refuse; empty if it takes the card.

    Raises:
        ValueError: `repo_type` is not one of the three.
        ConnectionError, HfHubHTTPError, RequestError: the Hub was not asked, or did not answer.
    """
    if repo_type is not None and repo_type not in REPO_TYPES:
        raise ValueError(f"`repo_type` must be one of {REPO_TYPES}, got {repo_type!r}.")
    path = Path(path)
    card = RepoCard.load(path / "README.md" if path.is_dir() else path)
    try:
        card.validate(repo_type or _guess_type(card.data.to_dict()))
    except ValueError as error:
        return [str(error)]
    return []


def _guess_type(data: dict[str, Any]) -> str:
    if "sdk" in data:
        return "space"
    return "dataset" if {"configs", "dataset_info", "size_categories", "task_categories"} & data.keys() else "model"


def check_card(folder: str | os.PathLike) -> None:
    """
    Refuse a folder whose card shows what nobody should see, or leads nowhere.

    Args:
        folder (`str`): what will be published, with its README.md.

    Raises:
        FileNotFoundError: there is no card.
        ValueError: the message holds every problem.
    """
    problems = validate(folder)
    if problems:
        listed = "\n".join(f"- {problem}" for problem in problems)
        raise ValueError(f"The card cannot be published:\n{listed}")


__all__ = ["REPO_TYPES", "ask_hub", "check_card", "validate"]
