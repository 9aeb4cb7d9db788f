"""A Python environment that holds only the packages that a card tells people to install, and what these need.

Made of links into the environment that runs the tests, so nothing is downloaded: the same versions, less of them.
"""

import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def required(packages: list[str]) -> dict[str, Distribution]:
    """The packages and everything they require here, by name."""
    found: dict[str, Distribution] = {}
    wanted = [Requirement(package) for package in packages]
    while wanted:
        requirement = wanted.pop()
        if canonicalize_name(requirement.name) in found and not requirement.extras:
            continue
        found[canonicalize_name(requirement.name)] = package = distribution(requirement.name)
        for line in package.requires or []:
            needed = Requirement(line)
            extras = requirement.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                wanted.append(needed)
    return found


class CleanEnvironment:
    """
    An environment with some packages only.

    Args:
        folder (`Path`): new; the links go here.
        packages (`list[str]`): requirements, as in a `pip install` line.
    """

    def __init__(self, folder: Path, packages: list[str]):
        self.folder = folder
        self.packages = required(packages)
        folder.mkdir(parents=True)
        for package in self.packages.values():
            for top in {Path(file).parts[0] for file in package.files} - {"..", "__pycache__"}:
                place = Path(package.locate_file(top))
                if not (folder / top).is_symlink():
                    (folder / top).symlink_to(place, target_is_directory=place.is_dir())

    def run(self, script: str, env: dict[str, str], cwd: Path) -> str:
        """Run a program without the user's and the project's packages; return what it printed."""
        path = cwd / "snippets.py"
        path.write_text(f"import sys\nsys.path.append({str(self.folder)!r})\n{script}", encoding="utf-8")
        command = [sys.executable, "-I", "-S", str(path)]
        done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout
