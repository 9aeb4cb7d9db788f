"""The runs of the study: variants, the clips they learn from, and the commands of each run.

The towers are frozen: every variant and seed reads their stored outputs, and sees the same frames.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery.files import read_json
from trainer.recipe_files import read_recipe

from .jobs import Stage, Task

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
}
"""Recipes in `recipes/` by variant; variants are also the labels of rows in tables."""

ABLATIONS = ("no_masked_views", "no_cross_arity", "no_semantic", "no_uniformity")
"""Variants that differ from SCALAR by one term, and have its settings otherwise."""

PLUGIN = "evidence.miniature"
"""The module that registers the benchmark."""

SHARED = 0.6
"""Probability with which modalities share what they are about, in the clips of the main comparison."""

SECOND_STAGES: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "SCALAR, reads no subtitle": lambda settings: {"condition_on": "video,audio"},
    "SCALAR, five times the matching": lambda settings: {"matching_weight": 0.5},
    "SCALAR, LoRA at a tenth of the rate": lambda settings: {"lora_learning_rate": settings["learning_rate"] / 10},
}
"""Variants of the second stage: names of rows, and their changes to the settings of SCALAR's training."""

VIEWS = 8
"""Draws of frames and segments stored for each training clip; longer trainings reuse them."""

_STEPS_OF_EPOCHS = ("loss_warmup_steps", "full_view_decay_steps")
_ROOT = Path(__file__).resolve().parents[2]


def recipe_of(variant: str) -> Path:
    """Return the recipe file of a variant."""
    return _ROOT / "recipes" / f"{RECIPES[variant]}.yaml"


@dataclass(frozen=True)
class Clips:
    """
    A miniature benchmark to train or measure on, with what is computed from it once.

    Args:
        root (`Path`): folder of the benchmark.
        counts (`Mapping[str, int]`): clips of each split.
        options (`Mapping`): further options of the set: `seed`, `shared`, `complete`, `disagree`.
        model (`str`, *optional*): the backbone whose features of the training clips are stored; none for clips that
            are only measured on.
    """

    root: Path
    counts: Mapping[str, int]
    options: Mapping[str, Any]
    model: str | None = None

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
        expected = {"complete": False, "disagree": 0.0, "seed": 0, "shared": SHARED} | dict(self.options)
        expected |= {f"num_{name}": number for name, number in self.counts.items()}
        made = read_json(path)
        found = {name: made.get(name) for name in expected}
        if found != expected:
            raise ValueError(
                f"{self.root} must hold clips with {expected}, got {found}. Remove it, or name another "
                "`root` in the overlay."
            )

    def task(self) -> Task:
        """Return the task that makes the clips and, for training, their semantic targets and features."""
        python = (sys.executable, "-m")
        source = ("--plugin", PLUGIN, "--benchmark", "miniature", "--root", str(self.root))
        drawn = [part for name, number in self.counts.items() for part in (f"--num-{name}", str(number))]
        for name, value in self.options.items():
            drawn += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        stages = [
            Stage(
                "clips",
                (*python, "evidence", "miniature", "--output", str(self.root), *drawn, "--num-proc", "1"),
                self.root / "miniature.json",
            )
        ]
        if self.model is not None:
            command = (*python, "trainer.semantic_targets", *source, "--output", str(self.targets))
            stages.append(Stage("targets", (*command, "--encoder", "light"), self.targets))
            command = (*python, "trainer.cache_features", "--model", self.model, *source)
            command += ("--output", str(self.features), "--views", str(VIEWS))
            stages.append(Stage("features", command, self.features / "features.json"))
        return Task(f"clips {self.root.name}", self.features, tuple(stages))


@dataclass(frozen=True)
class Run:
    """
    One training and its measurements, in a folder of its own.

    Args:
        variant (`str`), seed (`int`), folder (`Path`): what is trained, with which seed, and where.
        clips ([`Clips`]): the clips to train on.
        settings (`Mapping`): fields that override those of the recipes.
        measured ([`Clips`], *optional*): the clips to measure on, if others.
        measures (`Sequence[str]`): options of `python -m evidence measure`.
        reranked (`Sequence[str]`): options of `scalar eval run` for the second stage; by default it is not
            measured.
        label (`str`, *optional*): name of its row in tables; by default the variant.
    """

    variant: str
    seed: int
    folder: Path
    clips: Clips
    settings: Mapping[str, Any]
    measured: Clips | None = None
    measures: Sequence[str] = ()
    reranked: Sequence[str] = ()
    label: str | None = None

    @property
    def ranks(self) -> Path:
        """File of all ranks."""
        return self.folder / "measured" / "ranks.parquet"

    @property
    def results(self) -> Path:
        """Folder of the second stage's results."""
        return self.folder / "results"

    def train_command(self, overlay: Path) -> tuple[str, ...]:
        """Return the command that trains, from the last complete checkpoint if there is one."""
        fields = {
            "root": self.clips.root,
            "semantic_targets": self.clips.targets,
            "model": self.clips.model,
            **self.settings,
            **({"direction_temperature": self.settings["temperature"]} if self.variant == "pmrl" else {}),
            "seed": self.seed,
            "output_dir": self.folder,
            "report_to": "none",
            "disable_tqdm": "true",
            "features": self.clips.features,
            "resume_from_checkpoint": "auto",
        }
        command = [sys.executable, str(_ROOT / "train.py"), str(recipe_of(self.variant)), str(overlay)]
        return (*command, *(part for name, value in fields.items() for part in (f"--{name}", str(value))))

    def measure_command(self) -> tuple[str, ...]:
        """Return the command that ranks the clips of the benchmark."""
        root = (self.measured or self.clips).root
        command = [sys.executable, "-m", "evidence", "measure", "--model", str(self.folder), "--root", str(root)]
        return (*command, "--output", str(self.ranks.parent), *self.measures)

    def rerank_command(self) -> tuple[str, ...]:
        """Return the command that evaluates the second stage."""
        command = [sys.executable, "-m", "eval", "run", "--model", str(self.folder)]
        command += ["--label", self.label or self.variant]
        command += ["--plugin", PLUGIN, "--benchmark", "miniature", "--root", str(self.clips.root)]
        command += ["--output", str(self.results)]
        return (*command, *self.reranked)

    def task(self, overlay: Path) -> Task:
        """Return the commands as a task."""
        stages = [
            Stage("train", self.train_command(overlay), self.folder / "recipe.json"),  # which train.py writes last
            Stage("measure", self.measure_command(), self.ranks),
        ]
        if self.reranked:
            stages.append(Stage("rerank", self.rerank_command(), self.results / "results.json"))
        return Task(self.folder.name, self.folder, tuple(stages))


def with_schedule(settings: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Add the steps of a recipe that belong to its number of epochs, for another number: the same share of each."""
    longer = settings["num_train_epochs"] / recipe["num_train_epochs"]
    return dict(settings) | {name: round(longer * recipe[name]) for name in _STEPS_OF_EPOCHS}


def check_overlay(overlay: Path) -> dict[str, Any]:
    """Return the fields of SCALAR's recipe under the overlay; a ValueError unless they name what the study needs."""
    recipe = read_recipe(recipe_of("scalar")) | read_recipe(overlay)
    for name in ("model", "root"):
        if recipe.get(name) is None:
            raise ValueError(f"{overlay} must name `{name}`, as recipes/miniature.yaml does.")
    for name in ("num_train_epochs", "temperature", "learning_rate", *_STEPS_OF_EPOCHS):
        value = recipe.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            given = "nothing" if value is None else repr(value)
            raise ValueError(f"{overlay} must give a number as `{name}`, as recipes/miniature.yaml does; got {given}.")
    if not Path(str(recipe["model"])).exists():
        raise FileNotFoundError(f"{overlay} names the backbone {recipe['model']}, which is not there.")
    return recipe


__all__ = [
    "ABLATIONS",
    "PLUGIN",
    "RECIPES",
    "SECOND_STAGES",
    "SHARED",
    "VIEWS",
    "Clips",
    "Run",
    "check_overlay",
    "recipe_of",
    "with_schedule",
]
