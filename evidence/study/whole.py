"""`python -m evidence study`: tune every method, train every variant from one backbone, evaluate, report.

What each run leaves in a small file says what is still to do, so the same command continues after an interruption, and
on another machine that has these files. Clips and features are made where a run that is left needs them.

Minutes of one core, by processor time: about 140 trainings of the tuning 135, 69 of the main comparison on two sets of
clips 160, 6 second stages 15, 8 trainings on class labels 8, 18 on three levels of sharing 22, 12 of masked views 20,
clips and stored features 28: 6.5 hours, 3.3 on two cores that do nothing else.
"""

import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evidence.reports.pages import print_report
from evidence.settings import StudyConfig
from scalar_retrieval.commands.texts import print_message

from .collecting import collect, describe_clips, keep_second_stage
from .jobs import Stage, Task, execute
from .report import report, write_page
from .results import StudyResults
from .runs import RECIPES, SHARED, WHOLE, ClipSet, Run, check_overlay
from .tuning import settings_of, tune

RESULTS = Path(__file__).with_name("results")
"""The published results."""

MEASURED = Path(__file__).with_name("measured")
"""What the runs of the whole study left, until it is complete."""

_COUNTS = {"train": 1500, "validation": 500, "test": 4000}
_OF_LEVELS = _COUNTS | {"test": 1000}
_NONE = dict.fromkeys(_COUNTS, 0)  # of every split
_COMPLETE = 900  # training clips of the study of masked views: the number of the 1,500 that lack nothing
_SECOND_SEED = 1  # seed of the clips on which the main comparison is repeated
_COMPARED = ("scalar_uniform", "gram", "pmrl", "hypergram", "triangle")  # whose embeddings other scores rank, too
_BY_ALL_SCORES = "scalar"  # whose embeddings every score ranks
_CURVED = ("scalar", "scalar_01", "gram")  # whose embeddings SCALAR's score ranks at several temperatures
_RERANKED = ("scalar", "scalar_uniform", "gram")  # on few clips: of 4,000 a second stage takes eight minutes
_LABELLED = ("scalar", "scalar_uniform")  # measured on class labels, too
_SHARING_VARIANTS = ("scalar", "scalar_uniform", "gram")
_WITH_KINDS = ("main", "repeated", "disagreeing")  # sets of clips whose queries are shown by kind
_VIEWED = ("scalar", "no_masked_views")
_FEW_SEEDS = 2


class _Study:
    """
    The work that is left of a study.

    Args:
        config ([`~evidence.settings.StudyConfig`]): what is trained, and where.
        variants (`Sequence[str]`): keys of `RECIPES`.
    """

    def __init__(self, config: StudyConfig, variants: Sequence[str]):
        self.config = config
        self.variants = variants
        self.overlay = Path(config.overlay)
        self.output = Path(config.output)
        self.measured = measured_of(config)
        self.recipe = check_overlay(self.overlay)
        self.backbone = str(self.recipe["model"])
        self.failures: dict[str, str] = {}

    def clips(self, name: str, counts: dict[str, int], **options: Any) -> ClipSet:
        """Return a set of clips in the folder of the study."""
        return ClipSet(self.output / "clips" / name, counts, options, self.backbone)

    def run_all(self, runs: Sequence[Run], description: str) -> None:
        """Make the clips of runs that are left, then run these."""
        # Clips are made only for runs that are left, so a finished study needs none.
        tasks = [run.task(self.overlay) for run in runs]
        needed: dict[Path, ClipSet] = {}
        for run, task in zip(runs, tasks, strict=True):
            if task.next is None:
                continue
            for clips in (run.clips, run.measured_on, run.disagreeing, run.reranked):
                if clips is not None:
                    needed[clips.root] = clips
        self._make(list(needed.values()))
        for task, why in execute(tasks, self.config.jobs, description).items():
            self.failures[task.name] = why
        # Of the second stage's long results only the reported numbers are kept.
        for run in runs:
            if run.results.is_file() and not run.second_stage.is_file():
                keep_second_stage(run.results, run.second_stage)

    def _make(self, sets: Sequence[ClipSet]) -> None:
        # Wrong clips are found before hours of training on them.
        for clips in sets:
            clips.check()
        if not sets:
            return
        unmade = execute([clips.task() for clips in sets], self.config.jobs, "clips")
        if unmade:
            raise ValueError(f"The study has no clips: {'; '.join(unmade.values())}")
        for clips in sets:
            described = self.measured / "clips" / f"{clips.root.name}.json"
            if not described.is_file():
                describe_clips(clips.root, described, clips.root.name in _WITH_KINDS)

    def new_heads(self) -> str:
        """Write the backbone with new heads, and return its folder."""
        folder = self.output / "clips" / "new-heads"
        command = (sys.executable, "-m", "evidence", "new-heads", self.backbone, str(folder))
        task = Task("new heads", folder, (Stage("heads", command, folder / "processor_config.json"),))
        failed = execute([task], 1, "new heads")
        if failed:
            raise ValueError(f"There are no new heads: {failed[task]}")
        return str(folder)

    def among_variants(self, compared: Sequence[str]) -> list[str]:
        """Return those of some variants that are trained."""
        return [variant for variant in compared if variant in self.variants]

    def experiment(
        self,
        name: str,
        clips: ClipSet,
        variants: Sequence[str],
        seeds: Sequence[int],
        settings: dict[str, dict[str, Any]],
        **others: Any,
    ) -> list[Run]:
        """Return the runs of an experiment, all variants of a seed before the next seed."""
        # Seed by seed, so that an interrupted study has whole comparisons.
        runs = []
        for seed in seeds:
            for variant in variants:
                place = Path(name, f"{variant}-{seed}")  # in both folders
                files = self.output / place, self.measured / place
                runs.append(Run(variant, seed, *files, clips, settings[variant], **others))
        return runs

    def work(self) -> None:
        """Do what is left."""
        seeds = self.config.seeds
        few = seeds[:_FEW_SEEDS]
        # The sets of clips; each is made once a run that is left needs it.
        main = self.clips("main", _COUNTS, shared=SHARED)
        repeated = self.clips("repeated", _COUNTS, shared=SHARED, seed=_SECOND_SEED)
        disagreeing = self.clips("disagreeing", _NONE | {"test": 1000}, disagree=1.0)
        reranked = self.clips("reranked", _OF_LEVELS | {"train": 0}, shared=SHARED)
        complete = self.clips("complete", _NONE | {"train": _COMPLETE}, complete=True)

        # The settings of each method come first: everything else is trained with them.
        folders = self.output / "tuning", self.measured
        tunings = tune(self.variants, self.recipe, main, *folders, self.run_all)
        settings = {variant: settings_of(variant, tunings, self.recipe) for variant in self.variants}

        # Both sets of clips have the same runs; of the whole network there is one on the first set for each seed.
        narrow = [variant for variant in self.variants if variant not in WHOLE]
        for name, clips, variants in (("main", main, self.variants), ("repeated", repeated, narrow)):
            runs = []
            for run in self.experiment(name, clips, variants, seeds, settings, disagreeing=disagreeing):
                measured = replace(run, measures=_measures_of(run.variant))
                if run.variant in _LABELLED and run.seed in few:
                    measured = replace(measured, labelled=True)
                if name == "main" and run.variant in _RERANKED and run.seed in few:
                    measured = replace(measured, reranked=reranked)
                runs.append(measured)
            self.run_all(runs, name)

        # How much modalities share: each level is a benchmark of its own.
        for value in self.config.shared:
            name = f"sharing-{value:g}"
            clips = self.clips(name, _OF_LEVELS, shared=value)
            self.run_all(self.experiment(name, clips, self.among_variants(_SHARING_VARIANTS), few, settings), name)

        # Masked views matter most where training clips lack nothing: fewer clips, as many steps.
        viewed = self.among_variants(_VIEWED)
        longer = {}
        for variant in viewed:
            epochs = settings[variant]["num_train_epochs"] * _COUNTS["train"] / _COMPLETE
            longer[variant] = settings[variant] | {"num_train_epochs": epochs}
        runs = self.experiment("views-complete", complete, viewed, seeds, longer, measured_on=main)
        self.run_all(runs, "views-complete")
        if viewed:
            of_new_heads = replace(complete, model=self.new_heads())  # the stored outputs of its towers fit
            runs = self.experiment("views-new-heads", of_new_heads, viewed, seeds, longer, measured_on=main)
            self.run_all(runs, "views-new-heads")


def _measures_of(variant: str) -> tuple[str, ...]:
    """The scores by which a variant's embeddings are ranked in the main comparison, as options."""
    measures: tuple[str, ...] = ()
    if variant == _BY_ALL_SCORES:
        measures = ("--scores", "all")
    elif variant in _COMPARED:
        measures = ("--scores", "compared")
    if variant in _CURVED:
        measures += ("--curve",)
    return measures


def _is_whole(config: StudyConfig) -> bool:
    """Whether a study is the published one: all variants, seeds and levels."""
    usual = StudyConfig()
    is_usual = tuple(config.seeds) == tuple(usual.seeds) and tuple(config.shared) == tuple(usual.shared)
    return is_usual and not config.variants


def measured_of(config: StudyConfig) -> Path:
    """Return the folder of what runs leave."""
    # What a part of the study measured is not mixed with the published runs.
    if config.measured is not None:
        return Path(config.measured)
    return MEASURED if _is_whole(config) else Path(config.output) / "measured"


def results_of(config: StudyConfig, is_complete: bool = True) -> Path:
    """Return the folder of the results."""
    if config.results is not None:
        return Path(config.results)
    if config.report_only or (is_complete and _is_whole(config)):
        return RESULTS
    return Path(config.output) / "results"


def run_study(config: StudyConfig) -> dict[str, str]:
    """
    Continue the study and print its tables.

    Args:
        config ([`~evidence.settings.StudyConfig`]): what is trained, and where.

    Returns:
        The names of failed runs, with the reason.

    Raises:
        ValueError: a variant is unknown, or the clips are others than the study's.
    """
    variants = list(config.variants or RECIPES)
    unknown = sorted(set(variants) - set(RECIPES))
    if unknown:
        raise ValueError(f"Variants are {list(RECIPES)}, got {unknown}.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # children are stopped as after Ctrl-C
    # Train and measure what is left; what is there is collected even if some of it failed.
    failures: dict[str, str] = {}
    if not config.report_only:
        study = _Study(config, variants)
        try:
            study.work()
        except KeyboardInterrupt:
            raise KeyboardInterrupt("The same command continues.") from None
        failures = study.failures
        collect(study.measured, results_of(config, is_complete=not failures))
    # The report, from the collected results alone.
    results = StudyResults(results_of(config, is_complete=not failures))
    print_report(results, report)
    if config.page is not None:
        write_page(results, Path(config.page))
    for name, why in failures.items():
        print_message(f"Error: {name}: {why}")
    return failures


__all__ = ["MEASURED", "RESULTS", "measured_of", "results_of", "run_study"]
