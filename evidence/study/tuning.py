"""Tuning: every method has the same small number of trials, judged on the validation split alone.

Coordinate by coordinate: the contrastive temperature, then the learning rate, then the number of epochs, each with the
best values so far, from the middle of each grid. Where the best value is an end of its grid, one more step is tried,
once. A trial is two trainings, with seeds of their own; the best one has the highest mean MRR@10 of both directions,
by the method's own score as trained. PMRL has no contrastive temperature: that of its directions is tuned instead; its
published value, 0.1, is in the grid.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalar_retrieval.gallery.store.files import read_json, write_json

from .runs import AS_SCALAR, ClipSet, Run, with_schedule

GRID: Mapping[str, tuple[float, ...]] = {
    "temperature": (0.07, 0.1, 0.2, 0.4, 0.8),
    "learning_rate": (1e-3, 3e-3, 1e-2),
    "num_train_epochs": (2, 4, 8),
}
"""The values to try, in this order."""

BEYOND: Mapping[str, Mapping[float, float]] = {
    "temperature": {0.07: 0.05, 0.8: 1.6},
    "learning_rate": {1e-3: 3e-4, 1e-2: 3e-2},
    "num_train_epochs": {8: 16},
}
"""The value that is also tried if an end of a grid is best."""

LATER: Mapping[str, tuple[tuple[float, float, int], ...]] = {
    "gram": ((0.1, 1e-3, 8), (0.1, 1e-3, 16), (0.2, 1e-3, 16)),
}
"""Further settings of methods, in the order of [`GRID`], tried once the results were known: the learning rate and the
epochs with which SCALAR was best. They choose nothing."""

SEEDS = (40, 41)
"""The seeds of all trials; other trainings have others."""


@dataclass
class Trial:
    """Settings, and MRR@10 of each seed on the validation split, in percent: the mean of both directions; None where
    it is not known."""

    settings: dict[str, Any]
    found: list[float | None] = field(default_factory=list)

    @property
    def mean_reciprocal_rank(self) -> float | None:
        """The mean of the seeds; None unless all are known."""
        if not self.found or None in self.found:
            return None
        return statistics.fmean(self.found)


@dataclass
class Tuning:
    """
    The trials of one method.

    Args:
        variant (`str`): method.
        trials (`list[Trial]`): trials so far.
        later (`list[Trial]`): those of [`LATER`].
    """

    variant: str
    trials: list[Trial] = field(default_factory=list)
    later: list[Trial] = field(default_factory=list)

    @property
    def is_measured(self) -> bool:
        """Whether any trial was measured."""
        return {trial.mean_reciprocal_rank for trial in self.trials} != {None}

    def best(self) -> dict[str, Any]:
        """Return the settings of the best trial, the first of equals; without trials, the middle of each grid."""
        # Before any trial each value is the middle one: no method starts from the optimum of another.
        best = {name: values[len(values) // 2] for name, values in GRID.items()}
        highest = -1.0
        for trial in self.trials:
            reached = trial.mean_reciprocal_rank
            if reached is not None and reached > highest:
                highest = reached
                best = dict(trial.settings)
        return best

    def propose(self, name: str, values: Sequence[float]) -> list[Trial]:
        """Add a trial for each value of one field, with the best other settings so far; return the new ones."""
        # The middle value of a later grid was tried with the best of the earlier one.
        best = self.best()
        tried = [trial.settings for trial in self.trials]
        new = []
        for value in values:
            settings = best | {name: value}
            if settings not in tried:
                new.append(Trial(settings))
        self.trials += new
        return new

    def beyond(self, name: str) -> list[Trial]:
        """Add the trial beyond the end of a grid if this end is best; return it."""
        further = BEYOND[name].get(self.best()[name])
        if further is None:
            return []
        return self.propose(name, (further,))


def trial_name(variant: str, settings: Mapping[str, Any], seed: int) -> str:
    """Name a training of a trial after its settings."""
    return "-".join([variant, *(f"{settings[name]:g}" for name in GRID), str(seed)])


def tune(
    variants: Sequence[str],
    recipe: Mapping[str, Any],
    clips: ClipSet,
    folder: Path,
    measured: Path,
    run_all: Callable[[Sequence[Run], str], None],
) -> dict[str, Tuning]:
    """
    Run the trials of every method, and write them to `MEASURED/tuning.json`.

    Args:
        variants (`Sequence[str]`): keys of `RECIPES`. Variants of SCALAR are not tuned: they take its settings.
        recipe (`Mapping`): fields that settings change, to which numbers of steps belong.
        clips ([`ClipSet`]): their training and validation splits are used.
        folder (`Path`): of the trainings.
        measured (`Path`): folder of what is measured; trials are in `tuning` there.
        run_all (`Callable`): trains and evaluates runs; also takes a description.

    Returns:
        `dict` of trials by method.

    Raises:
        ValueError: no trial of a method could be measured.
    """
    # Methods in the order of the variants, SCALAR first if any variant takes its settings.
    tunings: dict[str, Tuning] = {}
    if set(variants) & set(AS_SCALAR):
        tunings["scalar"] = Tuning("scalar")
    for name in variants:
        if name not in AS_SCALAR:
            tunings[name] = Tuning(name)

    def run_of(variant: str, trial: Trial, seed: int) -> Run:
        name = trial_name(variant, trial.settings, seed)
        settings = with_schedule(trial.settings, recipe)
        return Run(variant, seed, folder / name, measured / "tuning" / name, clips, settings, is_trial=True)

    def try_all(proposed: Mapping[str, Sequence[Trial]], description: str) -> None:
        """Train and measure the trials of all methods in one go, each with every seed."""
        runs = []
        for variant, trials in proposed.items():
            for trial in trials:
                runs += [run_of(variant, trial, seed) for seed in SEEDS]
        run_all(runs, description)
        # In the same order, with a measure for each seed.
        measures = map(measure_of, runs)
        for trials in proposed.values():
            for trial in trials:
                trial.found = [next(measures) for _ in SEEDS]

    # One coordinate after the other: each starts from the best values of those before.
    for name, values in GRID.items():
        proposed = {}
        for variant, tuning in tunings.items():
            proposed[variant] = tuning.propose(name, values)
        try_all(proposed, f"tuning {name}")
        failed = [variant for variant, tuning in tunings.items() if not tuning.is_measured]
        if failed:
            raise ValueError(f"No training of {failed} could be measured; the reasons are printed above.")
        # Only now is known whether an end of the grid is best.
        for variant, tuning in tunings.items():
            proposed[variant] = tuning.beyond(name)
        try_all(proposed, f"tuning {name}, one step more")

    # What was asked for once the results were known.
    later = {}
    for variant, tuning in tunings.items():
        for values in LATER.get(variant, ()):
            tuning.later.append(Trial(dict(zip(GRID, values, strict=True))))
        later[variant] = tuning.later
    try_all(later, "tuning, later")

    # The file of all trials, which the report reads.
    content: dict[str, dict[str, Any]] = {}
    for variant, tuning in tunings.items():
        content[variant] = {"chosen": tuning.best()}
        for name, trials in (("trials", tuning.trials), ("later", tuning.later)):
            content[variant][name] = []
            for trial in trials:
                found = vars(trial) | {"mean_reciprocal_rank": trial.mean_reciprocal_rank}
                content[variant][name].append(found)
    written: dict[str, Any] = {"grid": GRID, "beyond": BEYOND, "seeds": SEEDS, "split": "validation"}
    written |= {"measure": "mean_reciprocal_rank", "methods": content}
    measured.mkdir(parents=True, exist_ok=True)
    write_json(written, measured / "tuning.json")
    return tunings


def measure_of(run: Run) -> float | None:
    """Return MRR@10 of a trial, the mean of both directions, in percent; None if it was not measured."""
    if not run.numbers_file.is_file():
        return None
    return round(statistics.fmean(read_json(run.numbers_file)["mean_reciprocal_rank"].values()), 3)


def settings_of(variant: str, tunings: Mapping[str, Tuning], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a variant's trainings: its own best ones, or SCALAR's."""
    # Ablations are compared at SCALAR's settings: only the term that they lack differs.
    own = "scalar" if variant in AS_SCALAR else variant
    return with_schedule(tunings[own].best(), recipe) | dict(AS_SCALAR.get(variant, {}))


__all__ = ["BEYOND", "GRID", "LATER", "SEEDS", "Trial", "Tuning", "measure_of", "settings_of", "tune"]
