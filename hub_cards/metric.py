"""Publishes a metric of `evaluate` as a Space: its scripts, the page that runs them, and a card.

The README.md of a metric documents its definition, inputs, outputs and limitations, by hand. The card adds the id to
load it by, the versions that its page runs with, and the packages it needs.
"""

import shutil
from pathlib import Path

from huggingface_hub import HfApi, RepoCard

from .card import Details, render
from .publishing import Kind, Push

_PAGE = Path(__file__).with_name("metric_page.py")
_APP = "app.py"
GRADIO_VERSION = "6.31.0"
PYTHON_VERSION = "3.11"
"""The versions that the page is tested with."""
_REQUIRED = ("README.md", "example.json", "requirements.txt")


def stage_metric(source: Path, folder: Path, repo_id: str) -> None:
    """
    Stage a metric as a Space: its scripts, their requirements, and its documentation, from which [`metric_card`] makes
    the card.

    Raises:
        FileNotFoundError: a file of a metric is missing.
        ValueError: the Space and the metric have different names: `evaluate.load` needs the script of its name.
    """
    source = source.resolve()
    name = source.name
    # A script of the folder's name, its documentation, an example and its requirements.
    missing = []
    for file in (f"{name}.py", *_REQUIRED):
        if not (source / file).is_file():
            missing.append(file)
    if missing:
        raise FileNotFoundError(f"{source} is not the folder of a metric: it lacks {missing}.")
    if repo_id.split("/")[-1] != name:
        raise ValueError(
            f"The Space of the metric {name!r} must have the same name for `evaluate.load`, got {repo_id!r}."
        )
    for path in [*source.glob("*.py"), *(source / file for file in _REQUIRED)]:
        if path.name != "__init__.py":
            shutil.copyfile(path, folder / path.name)
    shutil.copyfile(_PAGE, folder / _APP)


def metric_card(folder: Path, repo_id: str, details: Details) -> str:
    """
    Write the card of a metric from its documentation, the README.md of `folder`, which the card will replace. The
    licence is that of `details`, or else of the documentation.
    """
    # The documentation loads the metric from a folder; the card loads it from the Hub.
    documentation = RepoCard.load(folder / "README.md")
    local = f'evaluate.load("eval/metrics/{repo_id.split("/")[-1]}")'
    lines = (folder / "requirements.txt").read_text(encoding="utf-8").splitlines()
    packages = []
    for line in lines:
        if line and not line.startswith(("#", "-")):
            packages.append(f'"{line}"')
    return render(
        "metric",
        {"sdk_version": GRADIO_VERSION, "python_version": PYTHON_VERSION, "app_file": _APP},
        details.over(Details(documentation.data.to_dict())),
        repo_id=repo_id,
        documentation=documentation.text.strip().replace(local, f'evaluate.load("{repo_id}")'),
        packages=" ".join(packages),
    )


def _stage(push: Push, folder: Path, api: HfApi) -> None:
    stage_metric(Path(push.source), folder, push.repo_id)


_OWNED = ("app.py", "example.json", "ranking.py", "requirements.txt")
KIND = Kind("metric", "space", _OWNED, _stage, metric_card, sdk="gradio")

__all__ = ["KIND", "metric_card", "stage_metric"]
