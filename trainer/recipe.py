"""Recipes: YAML files of fields, with an optional base recipe, command-line overrides and checked names."""

import difflib
import json
import logging
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

import yaml
from datasets import Dataset
from transformers import HfArgumentParser

from commands.options import columns_of
from eval.benchmarks.registry import load_benchmark
from gallery.decoding import Limits
from modeling_scalar import MODALITIES
from modeling_scalar.plugins import load_plugins
from modeling_scalar.scores_scalar import METHODS, find_method

from .training_args import ScalarTrainingArguments

logger = logging.getLogger("train")
_RECIPES = "recipes"
_PACKAGED = Path(__file__).resolve().parents[1]
"""The folder of the package's `recipes/`: a clone, or next to the installed packages."""


def _columns(text: str) -> dict[str, str]:
    """Parse a JSON mapping from a recipe, or comma-separated NAME=COLUMN pairs."""
    found = json.loads(text) if text.startswith("{") else columns_of(text.split(","))
    if not all(isinstance(name, str) for name in found.values()):
        raise ValueError(f"`columns` must map to column names, as in {{video_id: clip}}, got {found}.")
    return found


@dataclass
class RunArguments:
    """The model and data of a run. [`ScalarTrainingArguments`] says how it trains."""

    model: str | None = field(default=None, metadata={"help": "Folder or Hub id of the base model and its processor."})
    new_model: str | None = field(
        default=None, metadata={"help": "Instead of `model`: YAML of a new model to train from scratch."}
    )
    benchmark: str | None = field(default=None, metadata={"help": "Name of the data set."})
    root: str | None = field(
        default=None, metadata={"help": "Folder of the data set; for `own` a file, or the name of a data set."}
    )
    columns: dict | str | None = field(
        default=None,
        metadata={"help": "For `own`: names of its columns, as in video_id=clip,caption=text."},
    )
    holdout: float | None = field(
        default=None,
        metadata={"help": "For `own`: share of the clips in the test split; the others are train."},
    )
    words_of: str | None = field(
        default=None,
        metadata={"help": "For `own`: gallery of its files, whose transcripts and subtitle languages are used."},
    )
    aggregation: str | None = field(
        default=None,
        metadata={
            "help": f"Score of the model, one of {tuple(METHODS)} or a plugin's; by default that of its config."
        },
    )
    query_temperature: float | None = field(
        default=None,
        metadata={
            "help": "Temperature tau_w of the modality weights (Eq. 2), in training and scoring; `scalar eval "
            "calibrate` fits it. By default that of the model's config."
        },
    )
    condition_on: str | None = field(
        default=None,
        metadata={
            "help": f"Modalities that the cross-encoder reads, some of {','.join(MODALITIES)}; by default those of "
            "the model's config, for a new model video,audio as in the paper."
        },
    )
    plugin: str | None = field(
        default=None,
        metadata={"help": "Modules with scores of your own, imported first; separated by commas."},
    )
    semantic_targets: str | None = field(
        default=None,
        metadata={
            "help": "File of `python -m trainer.semantic_targets`, which L_sem needs; by default created in "
            "`output_dir` with the small sentence encoder that needs no network."
        },
    )
    features: str | None = field(
        default=None,
        metadata={
            "help": "Folder of `python -m trainer.cache_features`, to train from the stored outputs of the frozen "
            "towers; or a gallery of the training clips, to train heads from the embeddings of a joint encoder."
        },
    )
    global_batch_size: int | None = field(
        default=None,
        metadata={
            "help": "Required number of clips in a contrastive batch: `per_device_train_batch_size` times the number "
            "of processes. The run fails to start if it differs."
        },
    )
    train_split: str = field(default="train", metadata={"help": "Split to train on."})
    eval_split: str | None = field(default=None, metadata={"help": "Split to rank at every evaluation, if any."})
    report_split: str | None = field(
        default=None,
        metadata={"help": "Split to evaluate on after training, with results in `results` of `output_dir`."},
    )
    on_error: str = field(
        default="raise", metadata={"help": "'raise', or 'missing' to treat unreadable streams as absent."}
    )
    limits: str | None = field(
        default=None,
        metadata={
            "help": "Limits for reading one stream, separated by commas: memory=2GiB,time=120 (seconds),"
            "pixels=70e6,duration=86400 (seconds)."
        },
    )
    keep_in_memory: bool = field(default=False, metadata={"help": "Decode every clip once and keep its frames."})

    def __post_init__(self):
        if (self.model is None) == (self.new_model is None):
            raise ValueError("Give either `model` (a base to adapt) or `new_model` (to train from scratch), not both.")
        for name in ("benchmark", "root"):
            if getattr(self, name) is None:
                raise ValueError(f"`{name}` is required: `benchmark` is the name of the data set, `root` its folder.")
        if self.features is not None and self.new_model is not None:
            raise ValueError("`features` come from an existing model and cannot train a `new_model`.")
        if self.global_batch_size is not None and self.global_batch_size < 1:
            raise ValueError(f"`global_batch_size` must be at least 1, got {self.global_batch_size}.")
        if self.condition_on is not None:
            names = self.condition_on.split(",")
            if names != [name for name in MODALITIES if name in names]:
                raise ValueError(
                    f"`condition_on` must be some of {','.join(MODALITIES)}, each once and in this order, got "
                    f"{self.condition_on!r}."
                )
        if isinstance(self.columns, str):
            self.columns = _columns(self.columns)
        Limits.parse(self.limits.split(",") if self.limits else [])
        if self.on_error not in ("raise", "missing"):
            raise ValueError(f"`on_error` must be 'raise' or 'missing', got {self.on_error!r}.")

    def rows(self, split: str) -> Dataset:
        """Load the rows of a split of the data set."""
        own = {"columns": self.columns, "holdout": self.holdout, "words_of": self.words_of}
        return load_benchmark(self.benchmark, self.root, split, **own)

    @property
    def model_changes(self) -> dict[str, Any]:
        """The fields of the model's configuration that the run sets."""
        given = {"aggregation": self.aggregation, "query_temperature": self.query_temperature}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if self.condition_on is not None:
            changes["condition_on"] = self.condition_on.split(",")
        return changes

    def check_batch(self, training: ScalarTrainingArguments) -> None:
        """Raise a ValueError unless the contrastive batch has `global_batch_size` clips."""
        size, processes = training.per_device_train_batch_size, training.world_size
        if self.global_batch_size not in (None, size * processes):
            raise ValueError(
                f"`global_batch_size` is {self.global_batch_size}, but {processes} processes with "
                f"`per_device_train_batch_size` {size} give {size * processes} clips. Launch as many processes as the "
                "recipe was written for, or change one of the two fields (`global_batch_size: null` accepts any "
                "number)."
            )


class _Loader(yaml.SafeLoader):
    """Plain values only. Rejects repeated keys (YAML keeps the last) and aliases (they can expand to gigabytes)."""

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not supported", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"`{key.value}` is given twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: str | Path, what: str) -> dict[str, Any]:
    """
    Read a mapping of names to values.

    Args:
        path (`str` or `Path`): The file.
        what (`str`): The kind of file for messages, such as `"recipe"`.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not YAML or not a mapping, repeats a field, or uses aliases; the message names the line.
    """
    path = Path(path)
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "no file" if not path.exists() else "no regular file"
        raise FileNotFoundError(f"No {what} at {path}: there is {kind}.")
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}). Save it as UTF-8."
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f" in line {mark.line + 1}"
        raise ValueError(f"{path} is not a {what}{line}: {error.problem or error.context}.") from error
    except (RecursionError, ValueError, yaml.YAMLError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"{path} is not a {what}: {reason}") from error
    if not isinstance(content, dict):
        got = "nothing" if content is None else type(content).__name__
        raise ValueError(f"{path} must be a mapping of fields to values, got {got}.")
    return content


def _known() -> dict[str, Field]:
    return {part.name: part for part in (*fields(RunArguments), *fields(ScalarTrainingArguments)) if part.init}


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


def read_recipe(path: str | Path) -> dict[str, Any]:
    """
    Read a recipe and its base (`base: other.yaml`, relative to the file), whose fields it overrides.

    Args:
        path (`str` or `Path`): The YAML file.

    Returns:
        `dict`: The fields.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not a mapping, is based on itself, has a value of the wrong type, or an unknown field; the
            message suggests the nearest known field.
    """
    return _read_recipe(Path(path), ())


def _read_recipe(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    content = read_yaml(path, "recipe")
    above = (*above, path.resolve())
    known = _known()
    base = content.pop("base", None)
    for name, value in content.items():
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise ValueError(f"{path} has the unknown field `{name}`.{hint}")
        expected = str(known[name].type)
        is_one = "dict" in expected if isinstance(value, dict) else "str" in expected or "list" in expected
        if isinstance(value, dict | list) and not is_one:
            raise ValueError(f"`{name}` in {path} must be a single value, got {value!r:.80}.")
    if base is None:
        return content
    if not isinstance(base, str) or not base:
        raise ValueError(f"`base` in {path} must be the path of another recipe, got {base!r}.")
    below = path.parent / base
    if below.resolve() in above:
        raise ValueError(f"{path} and {below} are based on each other. Remove one `base`.")
    return _read_recipe(below, above) | content


class _Parser(HfArgumentParser):
    """The parser of command-line flags, which also converts the values of recipes."""

    in_recipe = False

    def error(self, message: str) -> NoReturn:
        if not self.in_recipe:
            super().error(message)
        raise ValueError(message.removeprefix("argument ").replace("\n", " "))


def _parser(prog: str) -> _Parser:
    return _Parser(
        [RunArguments, ScalarTrainingArguments],
        allow_abbrev=False,
        prog=prog,
        usage=f"{prog} RECIPE.yaml [MORE.yaml ...] [--field value ...]",
        description="Train a model from a recipe. Later recipes override earlier ones, and flags override recipes.",
    )


def _refuse(parser: _Parser, rest: list[str]) -> NoReturn:
    """Exit with the usage and an error about the first unknown argument."""
    if not rest[0].startswith("-"):
        parser.error(f"{rest[0]} is not a field; recipes must come before the first flag")
    name = rest[0].lstrip("-").partition("=")[0]
    near = difflib.get_close_matches(name, _known(), n=1)
    parser.error(f"unknown field {rest[0]}" + (f"; did you mean --{near[0]}?" if near else ""))


def parse_arguments(
    arguments: Sequence[str], prog: str = "scalar train"
) -> tuple[RunArguments, ScalarTrainingArguments]:
    """
    Parse `RECIPE.yaml [MORE.yaml ...] [--field value ...]` and import the plugins it names.

    The last value of a field wins; values are converted to the fields' types. Recipes and models below `recipes/` that
    do not exist in the working folder come from the package, see [`find_packaged`].

    Args:
        arguments (`list[str]`): The command line without the program.
        prog (`str`): The program's name in the usage.

    Returns:
        The two groups of arguments.

    Raises:
        FileNotFoundError, ValueError: From [`read_recipe`], for a value outside its range, or for a plugin that cannot
            be imported.
        SystemExit: For `--help` or an unknown flag.
    """
    parser = _parser(prog)
    flags, recipe = list(arguments), {}
    while flags and not flags[0].startswith("-"):
        recipe |= read_recipe(find_packaged(flags.pop(0)))
    defaults = [f"--{name}={_as_flag(value)}" for name, value in recipe.items() if value is not None]
    # YAML values are passed as flags, so that one parser converts and checks both; the last value wins.
    parser.in_recipe = True
    try:
        parser.parse_known_args(defaults)
    except ValueError as error:
        raise ValueError(f"A recipe has an invalid value: {error}.") from error
    parser.in_recipe = False
    run, training, *rest = parser.parse_args_into_dataclasses(defaults + flags, return_remaining_strings=True)
    if rest[-1]:
        _refuse(parser, rest[-1])
    if run.model is not None:
        run.model = find_packaged(run.model)
    if run.new_model is not None:
        run.new_model = find_packaged(run.new_model)
    load_plugins(run.plugin.split(",") if run.plugin else [])
    if run.aggregation is not None:
        find_method(run.aggregation, MODALITIES, "aggregation")
    return run, training


def _as_flag(value: Any) -> str:
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, list):  # the parser of transformers accepts one value per field; see `report_to`
        return ",".join(map(_as_flag, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


__all__ = ["RunArguments", "find_packaged", "parse_arguments", "read_recipe", "read_yaml"]
