"""Recipes: YAML files of fields, command-line overrides and checked values."""

import json
import logging
import os
from argparse import Action
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from datasets import Dataset
from transformers import HfArgumentParser
from transformers.hf_argparser import HfArg

from scalar_retrieval.commands.options import columns_of, load_plugins
from scalar_retrieval.eval.benchmarks.registry import load_benchmark
from scalar_retrieval.gallery.decoding import Limits
from scalar_retrieval.modeling_scalar.model_identity import identify
from scalar_retrieval.modeling_scalar.scores_scalar import METHODS, find_method

from .recipe_files import find_packaged, read_recipe, unknown_field, usage
from .training_args import ScalarTrainingArguments

logger = logging.getLogger("train")


def _split(text: str | None) -> list[str]:
    """The parts of a text, separated by commas; none of an empty one."""
    if not text:
        return []
    return text.split(",")


@dataclass
class RunArguments:
    """The model and data of a run. [`ScalarTrainingArguments`] says how it trains."""

    model: str = HfArg(help="Folder or Hub id of the base model and its processor.")
    benchmark: str = HfArg(help="Name of the data set.")
    root: str = HfArg(help="Folder of the data set; for `own` a file, or the name of a data set.")
    column: dict | str | None = HfArg(
        default=None,
        metadata={"action": "append"},
        help="For `own`: names of its columns, such as video_id=clip. Repeatable; in a recipe a mapping.",
    )
    holdout: float | None = HfArg(
        default=None, help="For `own`: share of the clips in the test split; the others are train."
    )
    words_of: str | None = HfArg(default=None, help="For `own`: gallery of its files, whose transcripts are used.")
    aggregation: str | None = HfArg(
        default=None,
        help="Score of the model, such as scalar, uniform, gram or pmrl (a wrong name lists all), one of its "
        "modalities, or a plugin's; by default that of its config.",
    )
    query_temperature: float | None = HfArg(
        default=None,
        help="Temperature tau_w of the modality weights (Eq. 2), in training and scoring; `scalar eval "
        "calibrate` fits it. By default that of the model's config.",
    )
    condition_on: str | None = HfArg(
        default=None,
        help="Modalities that the cross-encoder reads, some of video,audio,subtitle; by default those of "
        "the model's config, for a new model video,audio as in the paper.",
    )
    plugin: str | None = HfArg(
        default=None, help="Modules with scores or benchmarks of your own, imported first; separated by commas."
    )
    semantic_targets: str | None = HfArg(
        default=None,
        help="File of `python -m scalar_retrieval.trainer.semantic_targets`, which L_sem needs; by default created in "
        "`output_dir` with the small sentence encoder that needs no network.",
    )
    features: str | None = HfArg(
        default=None,
        help="Folder of `python -m scalar_retrieval.trainer.cache_features`, to train from the stored outputs of the "
        "frozen towers; or a gallery of the training clips, to train heads from the embeddings of a joint encoder.",
    )
    global_batch_size: int | None = HfArg(
        default=None,
        help="Required number of clips in a contrastive batch: `per_device_train_batch_size` times the number "
        "of processes. The run fails to start if it differs.",
    )
    train_split: str = HfArg(default="train", help="Split to train on.")
    eval_split: str | None = HfArg(default=None, help="Split to rank at every evaluation, if any.")
    report_split: str | None = HfArg(
        default=None, help="Split to evaluate on after training, with results in `results` of `output_dir`."
    )
    on_error: Literal["raise", "missing"] = HfArg(
        default="raise", help="'raise', or 'missing' to treat unreadable streams as absent."
    )
    limits: str | None = HfArg(
        default=None,
        help="Limits for reading one stream, separated by commas: memory=2GiB,time=120 (seconds),"
        "pixels=70e6,duration=86400 (seconds).",
    )

    def __post_init__(self):
        # Of a command line, those of the recipe come first, as JSON; the flags after them may rename some.
        if isinstance(self.column, list):
            column = {}
            flags = []
            for given in self.column:
                if given is None or given.startswith("{"):
                    column = json.loads(given or "{}")
                else:
                    flags += given.split(",")
            self.column = (column | columns_of(flags)) or None
        self.reading_limits()  # raises an error if they cannot be parsed

    def reading_limits(self) -> Limits:
        """The limits for reading one stream."""
        return Limits.parse(_split(self.limits))

    def plugins(self) -> list[str]:
        """The modules to import first."""
        return _split(self.plugin)

    def rows(self, split: str) -> Dataset:
        """Load the rows of a split of the data set."""
        own = {"columns": self.column, "holdout": self.holdout, "words_of": self.words_of}
        return load_benchmark(self.benchmark, self.root, split, **own)

    @property
    def model_changes(self) -> dict[str, Any]:
        """The fields of the model's configuration that the run sets."""
        changes: dict[str, Any] = {}
        if self.aggregation is not None:
            changes["aggregation"] = self.aggregation
        if self.query_temperature is not None:
            changes["query_temperature"] = self.query_temperature
        if self.condition_on is not None:
            changes["condition_on"] = self.condition_on.split(",")
        return changes

    def check_fit(self, training: ScalarTrainingArguments) -> None:
        """Raise a ValueError unless the contrastive batch has `global_batch_size` clips, and what is to be read and
        evaluated exists."""
        if self.features is not None and not os.path.isdir(self.features):
            raise FileNotFoundError(
                f"There is no folder {self.features!r} of `features`. `scalar eval embed` makes a gallery to train "
                "heads from, `python -m scalar_retrieval.trainer.cache_features` stores the outputs of frozen towers."
            )
        training.check_metric()
        evaluates = training.eval_strategy != "no" or training.eval_on_start
        if evaluates and self.eval_split is None:
            raise ValueError("`eval_strategy` and `eval_on_start` need a split to rank. Set `eval_split`.")
        if self.eval_split is not None and not evaluates:
            raise ValueError("`eval_split` is never ranked. Set `eval_strategy: epoch` or `steps`, or leave it out.")
        size = training.per_device_train_batch_size
        processes = training.world_size
        if self.global_batch_size not in (None, size * processes):
            raise ValueError(
                f"`global_batch_size` is {self.global_batch_size}, but {processes} processes with "
                f"`per_device_train_batch_size` {size} give {size * processes} clips. Launch as many processes as the "
                "recipe was written for, or change one of the two fields (`global_batch_size: null` accepts any "
                "number)."
            )

    def fit_batch(self, training: ScalarTrainingArguments, rows: Dataset) -> None:
        """
        Lower `per_device_train_batch_size` to the number of training clips, if they are the user's own and fewer.

        Raises:
            ValueError: If the rows do not fill a batch, whose size is that of a benchmark or required.
        """
        if not training.dataloader_drop_last:  # a smaller batch counts
            return
        size = training.per_device_train_batch_size * training.world_size
        num_clips = len(set(rows["video_id"]))  # a batch holds a clip once
        share = num_clips // training.world_size
        can_fit = self.benchmark == "own" and self.global_batch_size is None and num_clips > 1
        if can_fit and 0 < share < training.per_device_train_batch_size:
            training.per_device_train_batch_size = share
            fitted = share * training.world_size
            logger.info("There are %d training clips: a batch has %d of them, not %d.", num_clips, fitted, size)
        elif len(rows) < size:
            raise ValueError(
                f"{len(rows)} training examples do not fill a batch of {size}. Use more clips, a smaller "
                "`per_device_train_batch_size` (and `global_batch_size`), or `dataloader_drop_last: false`."
            )


class _Parser(HfArgumentParser):
    """A parser that reads `null` as None, for fields that are None by default."""

    def _get_values(self, action: Action, texts: list[str]) -> Any:
        can_be_none = action.default is None and not action.required
        if can_be_none and "".join(texts).lower() in ("null", "none"):
            return None
        return super()._get_values(action, texts)


def parse_arguments(
    arguments: Sequence[str], prog: str = "scalar train"
) -> tuple[RunArguments, ScalarTrainingArguments]:
    """
    Parse `RECIPE.yaml [MORE.yaml ...] [--field value ...]` and import the plugins it names.

    The last value of a field wins; values are converted to the fields' types, `null` to None. Recipes and models below
    `recipes/` that do not exist in the working folder come from the package, see
    [`~scalar_retrieval.trainer.recipe_files.find_packaged`].

    Args:
        arguments (`list[str]`): The command line without the program.
        prog (`str`): The program's name in the usage.

    Returns:
        The two groups of arguments.

    Raises:
        FileNotFoundError, ValueError: From [`~scalar_retrieval.trainer.recipe_files.read_recipe`], for a value outside
            its range, or a plugin that cannot be imported.
        SystemExit: With code 0 for `--help`, with code 2 for an unknown flag or a value of another type.
    """
    parser = _Parser([RunArguments, ScalarTrainingArguments], allow_abbrev=False, **usage(prog))
    # The recipes come first; what remains are flags.
    flags = list(arguments)
    recipe = {}
    while flags and not flags[0].startswith("-"):
        recipe |= read_recipe(find_packaged(flags.pop(0)))
    # YAML values are passed as flags, so that one parser converts and checks both; the last value wins.
    defaults = [f"--{name}={_as_flag(value)}" for name, value in recipe.items() if value is not None]
    # Name the first argument that is no field, and the field that was probably meant, before values are judged.
    for argument in parser.parse_known_args(defaults + flags)[1][:1]:
        if not argument.startswith("-"):
            parser.error(f"{argument} is not a field; recipes must come before the first flag.")
        unknown = unknown_field(argument.removeprefix("--").partition("=")[0])
        parser.error(unknown or argument)
    run, training = parser.parse_args_into_dataclasses(defaults + flags)
    # Plugins register scores, so the name of a score is checked after them. It may also be a modality of the model.
    run.model = find_packaged(run.model)
    load_plugins(run.plugins())
    if run.aggregation is not None and run.aggregation not in METHODS:
        modalities = ()
        if os.path.isdir(run.model) and identify(run.model).is_configured:
            modalities = identify(run.model).config.get("modalities", ())
        find_method(run.aggregation, modalities, "aggregation")
    return run, training


def _as_flag(value: Any) -> str:
    """The text of a YAML value on a command line."""
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, list):  # the parser of transformers accepts one value per field; see `report_to`
        return ",".join(map(_as_flag, value))
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


__all__ = ["RunArguments", "parse_arguments"]
