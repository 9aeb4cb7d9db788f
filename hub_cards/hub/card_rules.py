"""Checks of a card: what it must not reveal, and what the Hub reports.

The Hub checks its own rules on request. It would not notice a path of this machine, or a token.
"""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from huggingface_hub import RepoCard

from ..card import KEPT_BEGIN, KEPT_END, front_matter, read_marks
from .privacy import TOKEN

REPO_TYPES = ("model", "dataset", "space")

_LOCAL_PATH = re.compile(
    r"(?<![\w/.:~-])/(?:home|Users|root|tmp|private|mnt|media|data|(?<!\]\(/)datasets|var|opt|srv|usr|work|workspace|scratch"
    r"|gpfs|lustre|nfs|storage|project|projects|content|kaggle|app)/[^\s)\"'`>\]]*"
    r"|\bfile://[^\s)\"'`>\]]*|(?<![\w])[A-Za-z]:\\[^\s)\"'`>\]]*"
)


def _card_of(path: Path) -> Path:
    file = path / "README.md" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"There is no card at {file}: expected a README.md, or a folder that holds one.")
    return file


def validate(path: Path) -> list[str]:
    """
    Check a card, a README.md or the folder that contains it, for what the Hub does not check.

    Returns:
        `list[str]`: the problems, a sentence each; empty if there are none.

    Raises:
        FileNotFoundError: there is no card.
    """
    file, problems = _card_of(path), []
    try:
        card = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        return [f"The card is not UTF-8: {error}."]
    try:
        if not front_matter(card):
            problems.append(
                "There is no front matter: a card begins with metadata in YAML between two lines of `---`."
            )
        read_marks(card)
    except ValueError as error:
        problems.append(str(error))
    if TOKEN.search(card):
        problems.append("There is something that looks like an access token. Remove it, and revoke it if it was one.")
    # Manual text may contain anything, such as an example with a path.
    before, _, rest = card.partition(KEPT_BEGIN)
    found = sorted(set(_LOCAL_PATH.findall(before + rest.partition(KEPT_END)[2])))
    return problems + [f"There is a path of one machine: {path}." for path in found]


def ask_hub(path: Path, repo_type: str | None = None) -> list[str]:
    """
    Let the Hub check a card in which [`validate`] found nothing, as one of `repo_type`: "model", "dataset" or "space",
    by default guessed from the card. Returns what the Hub would refuse.

    Raises:
        ValueError: `repo_type` is not one of the three.
        ConnectionError, HfHubHTTPError, RequestError: the Hub could not be reached, or did not answer.
    """
    if repo_type is not None and repo_type not in REPO_TYPES:
        raise ValueError(f"`repo_type` must be one of {REPO_TYPES}, got {repo_type!r}.")
    card = RepoCard.load(_card_of(path))
    try:
        card.validate(repo_type or _guess_type(card.data.to_dict()))
    except ValueError as error:
        with suppress(KeyError, TypeError, ValueError):  # from a Hub of another version
            return [problem["message"] for problem in json.loads(str(error))["errors"]]
        return [str(error)]
    return []


def _guess_type(data: dict[str, Any]) -> str:
    if "sdk" in data:
        return "space"
    return "dataset" if {"configs", "dataset_info", "size_categories", "task_categories"} & data.keys() else "model"


def refuse(problems: list[str]) -> None:
    """Raise a ValueError with all problems of a card, if there are any."""
    if problems:
        listed = "\n".join(f"- {problem}" for problem in problems)
        raise ValueError(f"The card cannot be published:\n{listed}")


__all__ = ["REPO_TYPES", "ask_hub", "refuse", "validate"]
