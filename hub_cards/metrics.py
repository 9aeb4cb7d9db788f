"""A metric of `evaluate` as a Space: its scripts, the page that runs them, and a card made of its documentation.

What a metric is, takes, gives and cannot do is written by hand, once, in the README.md of its folder. The card adds
what depends on the place: the identifier to load it by, the versions that its page runs with, the packages it needs.
"""

import doctest
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import yaml
from huggingface_hub import SpaceCardData
from huggingface_hub.repocard import REGEX_YAML_BLOCK

from hub_cards.cards import Details, read_card, render

GRADIO_VERSION = "6.31.0"
"""What the page of a metric is tried with."""
PYTHON_VERSION = "3.11"

_PAGE = Path(__file__).parent / "metric" / "app.py"
_REQUIRED = ("README.md", "example.json", "requirements.txt")
_BLOCK = re.compile(r"(```python\n)(.*?)(```)", re.DOTALL)


def stage_metric(source: str | os.PathLike, folder: str | os.PathLike, repo_id: str) -> None:
    """
    Lay a metric out as a Space. Its documentation, README.md, is where [`metric_card`] expects it.

    Args:
        source (`str`): the folder of a metric, called as the metric is.
        folder (`str`): a new or empty folder.
        repo_id (`str`): of the Space. `evaluate.load` looks for the script that is called as the Space is.

    Raises:
        FileNotFoundError: a file of a metric is missing.
        ValueError: the Space is called otherwise than the metric, there are files that are no part of a metric, or the
            folder is not empty.
    """
    source, folder = Path(source).resolve(), Path(folder)
    name = source.name
    missing = [file for file in (f"{name}.py", *_REQUIRED) if not (source / file).is_file()]
    if missing:
        raise FileNotFoundError(f"{source} is not the folder of a metric: it lacks {missing}.")
    if repo_id.split("/")[-1] != name:
        raise ValueError(
            f"The Space of the metric {name!r} must be called {name!r} too, got {repo_id!r}: `evaluate.load` takes "
            "from a Space the script of its name."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} must be a new or an empty folder.")
    found = [path for path in source.iterdir() if path.name not in ("__init__.py", "__pycache__")]
    scripts = {path.name for path in found if path.suffix == ".py"} - {_PAGE.name}  # the page is the same for all
    others = sorted({path.name for path in found} - scripts - set(_REQUIRED))
    if others:
        raise ValueError(f"{source} holds {others}, which is no part of a metric: move it elsewhere.")
    folder.mkdir(parents=True, exist_ok=True)
    for path in found:
        shutil.copyfile(path, folder / path.name)
    shutil.copyfile(_PAGE, folder / _PAGE.name)


def _script(match: re.Match) -> str:
    """Turn a console session into what can be run as it stands, results as comments."""
    begin, session, end = match.groups()
    lines = []
    for example in doctest.DocTestParser().get_examples(session):
        lines.append(example.source.rstrip("\n"))
        lines += [f"# {line}" for line in example.want.splitlines()]
    return begin + ("\n".join(lines) + "\n" if lines else session) + end


def metric_card(folder: str | os.PathLike, repo_id: str, details: Details) -> str:
    """
    Write the card of a metric from its documentation.

    Args:
        folder (`str`): what [`stage_metric`] filled; the card is to take the place of its README.md.
        repo_id (`str`): of the Space.
        details ([`~hub_cards.cards.Details`]): what no file says. Without a licence, that of the documentation counts.

    Returns:
        `str`: the text of README.md.

    Raises:
        ValueError: README.md is a card already, or does not show how the metric is loaded.
    """
    folder, name = Path(folder), repo_id.split("/")[-1]
    text = (folder / "README.md").read_text(encoding="utf-8")
    block = REGEX_YAML_BLOCK.match(text)
    if block is None or read_card(text)[0] is not None:
        raise ValueError(f"{folder / 'README.md'} must be the documentation of a metric below its front matter.")
    loading = f'evaluate.load("eval/metrics/{name}")'
    if loading not in text:
        raise ValueError(f"The documentation of {name} must show how it is loaded: {loading}.")
    documentation = text[block.end() :].replace(loading, f'evaluate.load("{repo_id}")')
    head, sections = _BLOCK.sub(_script, documentation).strip().split("\n## ", 1)

    data = yaml.safe_load(block.group(2))
    license = data.pop("license", None)
    if details.license is None:
        details = replace(details, license=license)
    lines = (folder / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return render(
        "metric",
        SpaceCardData(**data, sdk_version=GRADIO_VERSION, python_version=PYTHON_VERSION, app_file=_PAGE.name),
        details,
        repo_id=repo_id,
        head=head.strip(),
        sections=f"## {sections}",
        packages=" ".join(f'"{line}"' for line in lines if line and not line.startswith(("#", "-"))),
    )


__all__ = ["GRADIO_VERSION", "PYTHON_VERSION", "metric_card", "stage_metric"]
