"""Publishes a metric of `evaluate` as a Space: its scripts, the page that runs them, and a card.

The README.md of a metric documents its definition, inputs, outputs and limitations, by hand. The card adds the id to
load it by, the versions that its page runs with, and the packages it needs.
"""

import doctest
import re
import shutil
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.repocard import REGEX_YAML_BLOCK

from .card import Details, front_matter, render
from .publishing import Kind
from .settings import MetricPush

_PAGE = Path(__file__).with_name("metric_page.py")
_APP = "app.py"
GRADIO_VERSION, PYTHON_VERSION = "6.31.0", "3.11"
"""The versions that the page is tested with."""
_REQUIRED = ("README.md", "example.json", "requirements.txt")
_BLOCK = re.compile(r"(```python\n)(.*?)(```)", re.DOTALL)


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
    missing = [file for file in (f"{name}.py", *_REQUIRED) if not (source / file).is_file()]
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


def _script(match: re.Match) -> str:
    """Convert a console session to runnable code, with the results as comments."""
    begin, session, end = match.groups()
    lines = []
    for example in doctest.DocTestParser().get_examples(session):
        lines.append(example.source.rstrip("\n"))
        lines += [f"# {line}" for line in example.want.splitlines()]
    return begin + ("\n".join(lines) + "\n" if lines else session) + end


def metric_card(folder: Path, repo_id: str, details: Details) -> str:
    """
    Write the card of a metric from its documentation, the README.md of `folder`, which the card will replace. The
    licence is that of `details`, or else of the documentation.

    Raises:
        ValueError: README.md has no front matter.
    """
    text = (folder / "README.md").read_text(encoding="utf-8")
    block = REGEX_YAML_BLOCK.match(text)
    if block is None:
        raise ValueError(f"{folder / 'README.md'} must be the documentation of a metric below its front matter.")
    local = f'evaluate.load("eval/metrics/{repo_id.split("/")[-1]}")'
    documentation = text[block.end() :].replace(local, f'evaluate.load("{repo_id}")')
    head, _, sections = _BLOCK.sub(_script, documentation).strip().partition("\n## ")
    lines = (folder / "requirements.txt").read_text(encoding="utf-8").splitlines()
    packages = [f'"{line}"' for line in lines if line and not line.startswith(("#", "-"))]
    return render(
        "metric",
        {"sdk_version": GRADIO_VERSION, "python_version": PYTHON_VERSION, "app_file": _APP},
        details.over(Details(front_matter(text))),
        repo_id=repo_id,
        head=head.strip(),
        sections=f"## {sections}",
        packages=" ".join(packages),
    )


def _stage(settings: MetricPush, folder: Path, api: HfApi) -> None:
    stage_metric(settings.folder, folder, settings.name)


_OWNED = ("app.py", "example.json", "ranking.py", "requirements.txt")
KIND = Kind("metric", "space", _OWNED, _stage, metric_card, "gradio")

__all__ = ["KIND", "metric_card", "stage_metric"]
