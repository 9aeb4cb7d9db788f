"""Tuning: every method has the same small number of trials, judged on the validation split alone.

Coordinate by coordinate: the contrastive temperature, then the learning rate, then the number of epochs, each with the
best values so far. A trial is one training with one seed; the best one has the highest mean R@1 of both directions, by
the method's own score with its fitted numbers. PMRL has no contrastive temperature: that of its directions is tuned
instead; its published value, 0.1, is in the grid.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from gallery.files import read_json, write_json

from .runs import ABLATIONS, Clips, Run, with_schedule

GRID: Mapping[str, tuple[float, ...]] = {
    "temperature": (0.07, 0.1, 0.2, 0.4, 0.8),
    "learning_rate": (1e-3, 3e-3, 1e-2),
    "num_train_epochs": (2, 4, 8),
}
"""The values to try, in this order."""

SEED = 50
"""The one seed of all trials."""

_MEASURES = ("--split", "validation")


@dataclass
class Trial:
    """Settings, and their mean R@1 of both directions on the validation split, in percent; None until it is known."""

    settings: dict[str, Any]
    recall_at_1: float | None = None


@dataclass
class Tuning:
    """
    The trials of one method.

    Args:
        variant (`str`): method.
        start (`Mapping`): initial settings, those of the recipes.
        trials (`list[Trial]`): trials so far.
    """

    variant: str
    start: Mapping[str, Any]
    trials: list[Trial] = field(default_factory=list)

    def best(self) -> dict[str, Any]:
        """Return the settings of the best trial, the first of equals; without trials, those of the start."""
        known = [trial for trial in self.trials if trial.recall_at_1 is not None]
        return dict(max(known, key=lambda trial: trial.recall_at_1).settings) if known else dict(self.start)

    def propose(self, name: str) -> list[Trial]:
        """Add a trial for every value of one field, with the best other settings so far; return the new ones."""
        best = self.best()
        proposed = [best | {name: value} for value in GRID[name]]
        new = [Trial(settings) for settings in proposed if settings not in [trial.settings for trial in self.trials]]
        self.trials += new
        return new


def folder_name(variant: str, settings: Mapping[str, Any]) -> str:
    """Name the folder of a trial after its settings."""
    return "-".join([variant, *(f"{settings[name]:g}" for name in GRID)])


def tune(
    variants: Sequence[str],
    recipe: Mapping[str, Any],
    clips: Clips,
    folder: Path,
    do: Callable[[Sequence[Run], str], None],
) -> dict[str, Tuning]:
    """
    Run the trials of every method, and write them to `tuning.json`.

    Args:
        variants (`Sequence[str]`): keys of `RECIPES`. Ablations are not tuned: they take the settings of SCALAR.
        recipe (`Mapping`): initial settings: a value for each key of [`GRID`], among other fields.
        clips ([`Clips`]): their training and validation splits are used.
        folder (`Path`): of the runs.
        do (`Callable`): trains and evaluates runs; also takes a description.

    Returns:
        `dict` of trials by method.

    Raises:
        ValueError: no trial of a method could be measured.
    """
    tuned = {"scalar": None} if set(variants) & set(ABLATIONS) else {}
    tuned |= {name: None for name in variants if name not in ABLATIONS}
    found = {name: Tuning(name, {field: recipe[field] for field in GRID}) for name in tuned}
    for round_name in GRID:
        proposed = [(name, trial) for name, tuning in found.items() for trial in tuning.propose(round_name)]
        runs = [
            Run(
                name,
                SEED,
                folder / folder_name(name, trial.settings),
                clips,
                with_schedule(trial.settings, recipe),
                measures=_MEASURES,
            )
            for name, trial in proposed
        ]
        do(runs, f"tuning {round_name}")
        for (_, trial), run in zip(proposed, runs, strict=True):
            trial.recall_at_1 = recall_at_1(run)
        failed = [name for name, tuning in found.items() if all(trial.recall_at_1 is None for trial in tuning.trials)]
        if failed:
            raise ValueError(f"No training of {failed} could be measured; the reasons are printed above.")
    content = {
        name: {"chosen": tuning.best(), "trials": [vars(trial) for trial in tuning.trials]}
        for name, tuning in found.items()
    }
    write_json(
        {"grid": GRID, "seed": SEED, "split": "validation", "methods": content},
        folder / "tuning.json",
    )
    return found


def recall_at_1(run: Run) -> float | None:
    """Return the mean R@1 of both directions, in percent, of a run's own score with nothing masked and fitted numbers,
    if it has any; None if it was not measured."""
    if not run.ranks.is_file():
        return None
    fitted = read_json(run.ranks.with_name("fitted.json"))
    numbers = [entry["numbers"] for entry in fitted["scores"] if entry["score"] == fitted["own"]][-1]
    wanted = {"clips": "test", "masked": "nothing", "score": fitted["own"], "numbers": numbers}
    rows = [row for row in pq.read_table(run.ranks).to_pylist() if wanted.items() <= row.items()]
    return 100 * statistics.fmean(rank == 1 for row in rows for rank in row["ranks"])


def settings_of(variant: str, tunings: Mapping[str, Tuning], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a variant's trainings: its own best ones, or SCALAR's for an ablation."""
    return with_schedule(tunings["scalar" if variant in ABLATIONS else variant].best(), recipe)


__all__ = ["GRID", "SEED", "Trial", "Tuning", "recall_at_1", "settings_of", "tune"]
