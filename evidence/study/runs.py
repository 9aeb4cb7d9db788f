"""The runs of the study: variants, the clips they learn from, and the commands of each run.

The towers are frozen: every variant and seed reads their stored outputs, and sees the same frames. What was measured
is in small files, which say that a run is done even where its folder is not.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalar_retrieval.gallery.store.files import read_json
from scalar_retrieval.trainer.recipe_files import read_recipe

from .jobs import Stage, Task
from .towers import towers_file

RECIPES = {
    "scalar": "scalar",
    "scalar_uniform": "scalar_uniform",
    "no_masked_views": "ablation_masked_views",
    "no_cross_arity": "ablation_cross_arity",
    "no_semantic": "ablation_semantic",
    "no_uniformity": "ablation_uniformity",
    "gram": "gram",
    "pmrl": "pmrl",
    "hypergram": "hypergram",
    "triangle": "triangle",
    "scalar_01": "scalar",
    "scalar_full_ft": "scalar_full_ft",
}
"""Recipes in `recipes/` by variant; variants are also the labels of rows in tables."""

AS_SCALAR: Mapping[str, Mapping[str, Any]] = {
    "no_masked_views": {},
    "no_cross_arity": {},
    "no_semantic": {},
    "no_uniformity": {},
    "scalar_01": {"query_temperature": 0.1},
    "scalar_full_ft": {},
}
"""Variants that are trained with SCALAR's settings, and fields in which they differ besides those of their recipes:
ablations, SCALAR with the paper's temperature of weights, and the whole network."""

ABLATIONS = ("no_masked_views", "no_cross_arity", "no_semantic", "no_uniformity")
"""Variants that differ from SCALAR by one term."""

WHOLE = ("scalar_full_ft",)
"""Variants whose towers are trained, from the clips' files."""

PLUGIN = "evidence.miniature"
"""The module that registers the benchmark."""

SHARED = 0.6
"""Probability with which modalities share what they are about, in the clips of the main comparison."""

VIEWS = 8
"""Draws of frames and segments stored for each training clip; longer trainings reuse them."""

_RERANKED_RATES = ("0", "0.5", "0.9")  # shares of clips that lose a modality
_STEPS_OF_EPOCHS = ("loss_warmup_steps", "full_view_decay_steps")
_ROOT = Path(__file__).resolve().parents[2]


def recipe_of(variant: str) -> Path:
    """Return the recipe file of a variant."""
    return _ROOT / "recipes" / f"{RECIPES[variant]}.yaml"


@dataclass(frozen=True)
class ClipSet:
    """
    A miniature benchmark to train or measure on, with what is computed from it once.

    Args:
        root (`Path`): folder of the benchmark.
        counts (`Mapping[str, int]`): clips of each split.
        options (`Mapping`): further options of the set: `seed`, `shared`, `complete`, `disagree`.
        model (`str`): the backbone whose outputs for the clips are stored.
    """

    root: Path
    counts: Mapping[str, int]
    options: Mapping[str, Any]
    model: str

    @property
    def features(self) -> Path:
        """Folder of the frozen towers' outputs."""
        return self.root.with_name(f"{self.root.name}-features")

    @property
    def targets(self) -> Path:
        """The semantic targets of the training captions."""
        return self.root / "semantic_targets.safetensors"

    def check(self) -> None:
        """Raise a ValueError if the folder holds other clips than the study's."""
        path = self.root / "miniature.json"
        if not path.is_file():
            return
        # Options that are not given have the generator's defaults.
        expected = {"complete": False, "disagree": 0.0, "seed": 0, "shared": SHARED} | dict(self.options)
        expected |= {f"num_{name}": number for name, number in self.counts.items()}
        manifest = read_json(path)
        made = {name: manifest.get(name) for name in expected}
        if made != expected:
            raise ValueError(
                f"{self.root} must hold clips with {expected}, got {made}. Remove it, or name another "
                "folder with --output."
            )

    def task(self) -> Task:
        """Return the task that makes the clips; for training, their semantic targets and features; for measuring, the
        outputs of the towers."""
        python = (sys.executable, "-m")
        source = ("--plugin", PLUGIN, "--benchmark", "miniature", "--root", str(self.root))
        # The clips themselves.
        command = (*python, "evidence", "miniature", "--output", str(self.root))
        for name, number in self.counts.items():
            command += (f"--num-{name}", str(number))
        for name, value in self.options.items():
            command += (f"--{name}",)
            if value is not True:
                command += (str(value),)
        command += ("--num-proc", "1")
        stages = [Stage("clips", command, self.root / "miniature.json")]
        # What every training on them reads: computed once.
        if self.counts["train"]:
            command = (*python, "scalar_retrieval.trainer.semantic_targets", *source, "--output", str(self.targets))
            stages.append(Stage("targets", (*command, "--encoder", "light"), self.targets))
            command = (*python, "scalar_retrieval.trainer.cache_features", "--model", self.model, *source)
            command += ("--output", str(self.features), "--views", str(VIEWS))
            stages.append(Stage("features", command, self.features / "features.json"))
        # What every measurement on them reads.
        if self.counts["test"]:
            command = (*python, "evidence", "towers", self.model, str(self.root))
            stages.append(Stage("towers", command, towers_file(self.root, "test")))
        return Task(f"clips {self.root.name}", self.features, tuple(stages))


@dataclass(frozen=True)
class Run:
    """
    One training and its measurements, in a folder of its own.

    Args:
        variant (`str`), seed (`int`): what is trained, with which seed.
        folder (`Path`): of the training.
        measured (`Path`): name of the files with what is measured, without their suffixes.
        clips ([`ClipSet`]): the clips to train on.
        settings (`Mapping`): fields that override those of the recipes.
        measured_on ([`ClipSet`], *optional*): the clips to measure on, if others.
        disagreeing ([`ClipSet`], *optional*): further clips to measure on, whose modalities disagree.
        measures (`Sequence[str]`): options of `python -m evidence measure`.
        reranked ([`ClipSet`], *optional*): clips to measure the second stage on; by default it is not measured.
        labelled (`bool`): whether it is measured on class labels, too.
        is_trial (`bool`): whether it is only measured on validation clips, for a tuning.
    """

    variant: str
    seed: int
    folder: Path
    measured: Path
    clips: ClipSet
    settings: Mapping[str, Any]
    measured_on: ClipSet | None = None
    disagreeing: ClipSet | None = None
    measures: Sequence[str] = ()
    reranked: ClipSet | None = None
    labelled: bool = False
    is_trial: bool = False

    @property
    def numbers_file(self) -> Path:
        """The file of a trial's measure, or of the numbers that were fitted."""
        return self._file(".json")

    @property
    def ranks(self) -> Path:
        """The file of all ranks."""
        return self._file(".parquet")

    @property
    def second_stage(self) -> Path:
        """The file of what the second stage reaches."""
        return self._file("-second-stage.json")

    @property
    def labels(self) -> Path:
        """The file of what is measured on class labels."""
        return self._file("-labels.json")

    def _file(self, ending: str) -> Path:
        return self.measured.with_name(f"{self.measured.name}{ending}")

    @property
    def results(self) -> Path:
        """The results of the second stage, with everything."""
        return self.folder / "results" / "results.json"

    def train_command(self, overlay: Path) -> tuple[str, ...]:
        """Return the command that trains, from the last complete checkpoint if there is one."""
        fields = {"root": self.clips.root, "semantic_targets": self.clips.targets, "model": self.clips.model}
        fields |= self.settings
        # PMRL contrasts directions: they have the temperature that was tuned.
        if self.variant == "pmrl":
            fields["direction_temperature"] = self.settings["temperature"]
        fields |= {"seed": self.seed, "output_dir": self.folder, "report_to": "none", "disable_tqdm": "true"}
        # Stored outputs are of frozen towers.
        if self.variant not in WHOLE:
            fields["features"] = self.clips.features
        fields["resume_from_checkpoint"] = "auto"
        command = [sys.executable, str(_ROOT / "train.py"), str(recipe_of(self.variant)), str(overlay)]
        for name, value in fields.items():
            command += [f"--{name}", str(value)]
        return tuple(command)

    def measure_command(self) -> tuple[str, ...]:
        """Return the command that ranks the clips of the benchmark."""
        root = (self.measured_on or self.clips).root
        command = [sys.executable, "-m", "evidence", "measure", "--model", str(self.folder), "--root", str(root)]
        command += ["--output", str(self.measured), *self.measures]
        if self.disagreeing is not None:
            command += ["--disagree", str(self.disagreeing.root)]
        # A trial sees no test clip.
        if self.is_trial:
            command += ["--split", "validation"]
        if self.variant not in WHOLE:
            command.append("--stored")
        return tuple(command)

    def labels_command(self) -> tuple[str, ...]:
        """Return the command that measures on class labels."""
        command = (sys.executable, "-m", "evidence", "labels", "--model", str(self.folder))
        return (*command, "--root", str(self.clips.root), "--output", str(self.labels))

    def rerank_command(self, clips: ClipSet) -> tuple[str, ...]:
        """Return the command that evaluates the second stage."""
        command = [
            sys.executable,
            "-m",
            "scalar_retrieval.eval",
            "run",
            "--model",
            str(self.folder),
            "--label",
            self.variant,
        ]
        command += ["--plugin", PLUGIN, "--benchmark", "miniature", "--root", str(clips.root)]
        command += ["--output", str(self.results.parent), "--depth", "50", "--fusion-split", "validation"]
        for rate in _RERANKED_RATES:
            command += ["--rate", rate]
        return tuple(command)

    def task(self, overlay: Path) -> Task:
        """Return the commands that are left, as a task."""
        # What was measured counts, whether or not the trained model is still there.
        left = []
        last = self.numbers_file if self.is_trial else self.ranks
        if not last.is_file():
            left.append(Stage("measure", self.measure_command(), last))
        if self.labelled and not self.labels.is_file():
            left.append(Stage("labels", self.labels_command(), self.labels))
        if self.reranked is not None and not self.second_stage.is_file():
            left.append(Stage("rerank", self.rerank_command(self.reranked), self.results))
        if left:  # which needs the trained model
            trained = self.folder / "recipe.json"  # train.py writes it last
            left.insert(0, Stage("train", self.train_command(overlay), trained))
        return Task(self.folder.name, self.folder, tuple(left))


def with_schedule(settings: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Add the steps of a recipe that belong to its number of epochs, for another number: the same share of each."""
    # Warm-up and decay take the same share of any training.
    longer = settings["num_train_epochs"] / recipe["num_train_epochs"]
    return dict(settings) | {name: round(longer * recipe[name]) for name in _STEPS_OF_EPOCHS}


def check_overlay(overlay: Path) -> dict[str, Any]:
    """Return the fields of SCALAR's recipe under the overlay; a ValueError unless they name what the study needs."""
    # Every variant is trained under the same overlay, so one recipe shows what it lacks.
    recipe = read_recipe(recipe_of("scalar")) | read_recipe(overlay)
    if recipe.get("model") is None:
        raise ValueError(f"{overlay} must name `model`, as recipes/miniature.yaml does.")
    for name in ("num_train_epochs", "temperature", "learning_rate", *_STEPS_OF_EPOCHS):
        value = recipe.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(
                f"{overlay} must give a number as `{name}`, as recipes/miniature.yaml does; got {value!r}."
            )
    if not Path(str(recipe["model"])).exists():
        raise FileNotFoundError(f"{overlay} names the backbone {recipe['model']}, which is not there.")
    return recipe


__all__ = [
    "ABLATIONS",
    "AS_SCALAR",
    "PLUGIN",
    "RECIPES",
    "SHARED",
    "VIEWS",
    "WHOLE",
    "ClipSet",
    "Run",
    "check_overlay",
    "recipe_of",
    "with_schedule",
]
