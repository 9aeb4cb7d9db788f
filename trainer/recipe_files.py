"""The files of recipes: the names of their fields are checked here, the values later, by what takes seconds to
import."""

import ast
import logging
from argparse import ArgumentParser
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

logger = logging.getLogger("train")
_RECIPES = "recipes"
_PACKAGED = Path(__file__).resolve().parents[1]
"""The folder of the package's `recipes/`: a clone, or next to the installed packages."""


def find_packaged(name: str) -> str:
    """
    Find a recipe, or a file that a recipe names, in the working folder or else in the package.

    Args:
        name (`str`): A path. If one such as `recipes/miniature.yaml` does not exist in the working folder, the
            package's is used and this is logged.

    Returns:
        The path in the package, or `name` unchanged.
    """
    packaged = _PACKAGED / name
    if Path(name).parts[:1] != (_RECIPES,) or Path(name).exists() or not packaged.exists():
        return name
    logger.info("%s does not exist here; using the package's %s.", name, packaged)
    return str(packaged)


@cache
def known_fields() -> dict[str, str]:
    """The fields of recipes and the help of each, from the source of the dataclasses that define them: importing these
    takes seconds."""
    # Each class by the file that defines it; transformers' own is read too, not imported.
    here = Path(__file__).parent
    sources = {
        "RunArguments": here / "recipe.py",
        "ScalarTrainingArguments": here / "training_args.py",
        "TrainingArguments": Path(find_spec("transformers").origin).with_name("training_args.py"),
    }
    known: dict[str, str] = {}
    for name, path in sources.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                for part in node.body:
                    if isinstance(part, ast.AnnAssign):
                        known.setdefault(part.target.id, _help_of(part.value))
    return known


def _help_of(field: ast.expr) -> str:
    """What `field(...)` says of a field, with its default."""
    said = {keyword.arg: keyword.value for keyword in field.keywords}
    text = said.get("help")
    if text is None:  # as transformers writes it
        metadata = said["metadata"]
        text = metadata.values[[key.value for key in metadata.keys].index("help")]
    words = ast.literal_eval(text)
    if "default" in said:
        words += f" (default: {ast.unparse(said['default'])})"
    return words


def usage(prog: str) -> dict[str, str]:
    """How the command line begins, as options of a parser."""
    return {
        "prog": prog,
        "usage": f"{prog} RECIPE.yaml [MORE.yaml ...] [--field value ...]",
        "description": "Train a model from a recipe. Later recipes override earlier ones, and flags override recipes.",
    }


def print_help(prog: str) -> None:
    """Print the help of the command line, without the seconds that importing the fields takes."""
    parser = ArgumentParser(**usage(prog))
    for name, text in known_fields().items():
        parser.add_argument(f"--{name}", help=text.replace("%", "%%"))
    parser.print_help()


def unknown_field(name: str) -> str | None:
    """A sentence that suggests the nearest field, or None if a field of this name exists."""
    if name in known_fields():
        return None
    message = f"unknown field `{name}`."
    for near in get_close_matches(name, known_fields(), n=1):
        message += f" Did you mean `{near}`?"
    return message


def _read_yaml(path: Path) -> dict[str, Any]:
    """Read one file of a recipe, without its base."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no recipe at {path}.")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not a recipe: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must be a mapping of fields to values, got {type(content).__name__}.")
    return content


def read_recipe(path: str | Path) -> dict[str, Any]:
    """
    Read a recipe and its base (`base: other.yaml`, relative to the file), whose fields it overrides.

    Args:
        path (`str` or `Path`): The YAML file.

    Returns:
        `dict`: The fields.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not a mapping or has an unknown field; the message suggests the nearest known one.
    """
    # Unknown fields of the file itself, before its base is read.
    path = Path(path)
    content = _read_yaml(path)
    base = content.pop("base", None)
    for name in content:
        unknown = unknown_field(str(name))
        if unknown:
            raise ValueError(f"{path}: {unknown}")
    if base is None:
        return content
    return read_recipe(path.parent / base) | content


def check_recipes(arguments: Sequence[str]) -> None:
    """
    Check what a command line names: its recipes with their bases, the model, and the benchmark without plugins.

    Args:
        arguments (`list[str]`): See [`~scalar_retrieval.trainer.recipe.parse_arguments`].

    Raises:
        FileNotFoundError: If a recipe, the model or the folder of the benchmark does not exist.
        ValueError: If a recipe is not a mapping or has an unknown field, or no model and no benchmark can have a
            name.
    """
    from scalar_retrieval.eval.benchmarks.registry import check_benchmark
    from scalar_retrieval.modeling_scalar.model_identity import identify

    # Recipes come first, then flags; a later one overrides an earlier one.
    flags = list(arguments)
    fields: dict[str, Any] = {}
    while flags and not flags[0].startswith("-"):
        fields |= read_recipe(find_packaged(flags.pop(0)))
    # As `--field=value` or `--field value`; the last value wins. A flag that is no field is left to the parser.
    for place, flag in enumerate(flags):
        if not flag.startswith("--"):  # the value of the flag before it
            continue
        name, separator, value = flag.removeprefix("--").partition("=")
        if unknown_field(name):
            return
        if not separator:
            value = "".join(flags[place + 1 : place + 2])
        fields[name] = value
    # What they name must be there; a plugin may bring a benchmark.
    if fields.get("model"):
        identify(find_packaged(str(fields["model"])))
    if fields.get("benchmark") and not fields.get("plugin"):
        check_benchmark(str(fields["benchmark"]), fields.get("root"))


__all__ = ["check_recipes", "find_packaged", "known_fields", "print_help", "read_recipe", "unknown_field", "usage"]
