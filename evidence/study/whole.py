"""`python -m evidence study`: tune every method, train every variant from one backbone, evaluate, report.

The files of each run say what is still to do, so the same command continues after an interruption.
"""

import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from commands.errors import say, show
from evidence.settings import StudyConfig

from .jobs import Stage, Task, execute
from .report import fill, plot_sharing, report
from .results import Results, collect
from .runs import RECIPES, SECOND_STAGES, SHARED, Clips, Run, check_overlay
from .tuning import settings_of, tune

RESULTS = Path(__file__).with_name("results")
"""The published results."""

_COUNTS = {"train": 1500, "validation": 500, "test": 1000}
_NONE = dict.fromkeys(_COUNTS, 0)
_COMPLETE = 900  # training clips of the study of masked views: the number of the 1,500 that lack nothing
_SECOND_SEED = 1  # seed of the clips on which the main comparison is repeated
_BOTH_STAGES = ("--rate", "0", "--depth", "50", "--fusion-split", "validation")
_COMPARED = ("scalar", "scalar_uniform", "gram", "pmrl", "hypergram", "triangle")  # whose embeddings every score ranks
_RERANKED = ("scalar", "scalar_uniform", "gram")  # a second stage takes as long as a training
_SHARING_VARIANTS = ("scalar", "scalar_uniform", "gram")
_REPEATED = ("scalar", "scalar_uniform", "gram")
_VIEWED = ("scalar", "no_masked_views")
_FEW_SEEDS = 2


def _study(config: StudyConfig, variants: Sequence[str]) -> dict[str, str]:
    """Do what is still to do; return the names of failed runs, with the reason."""
    overlay, output, seeds = Path(config.overlay), Path(config.output), config.seeds
    recipe = check_overlay(overlay)
    backbone = str(recipe["model"])
    failures: dict[str, str] = {}

    def do(runs: Sequence[Run], description: str) -> None:
        found = execute([run.task(overlay) for run in runs], config.jobs, description)
        failures.update({task.name: why for task, why in found.items()})

    def made(name: str, counts: dict[str, int], model: str | None = backbone, **settings: Any) -> Clips:
        return Clips(output / "clips" / name, counts, settings, model)

    of_training = _NONE | {"train": _COMPLETE}
    main_clips = Clips(Path(recipe["root"]), _COUNTS, {"shared": SHARED}, backbone)
    disagreeing = made("disagreeing", _NONE | {"test": _COUNTS["test"]}, None, disagree=1.0)
    sharing = {value: made(f"shared-{value:g}", _COUNTS, shared=value) for value in config.shared}
    viewed = {"complete": made("complete", of_training, complete=True), "mixed": made("mixed", of_training)}
    repeated = made(f"seed-{_SECOND_SEED}", _COUNTS, seed=_SECOND_SEED)
    clips = [main_clips, disagreeing, *sharing.values(), *viewed.values(), repeated]
    for found in clips:
        found.check()
    new_heads = output / "clips" / "new-heads"
    command = (sys.executable, "-m", "evidence", "new-heads", backbone, str(new_heads))
    heads = Task("new heads", new_heads, (Stage("heads", command, new_heads / "processor_config.json"),))
    viewed["new-heads"] = replace(viewed["complete"], model=str(new_heads))  # the stored outputs of its towers fit
    unmade = execute([*(found.task() for found in clips), heads], config.jobs, "clips")
    if unmade:
        raise ValueError(f"The study has no clips: {'; '.join(unmade.values())}")
    tunings = tune(variants, recipe, main_clips, output / "tuning", do)
    settings = {variant: settings_of(variant, tunings, recipe) for variant in variants}

    def asked(compared: Sequence[str]) -> list[str]:
        return [variant for variant in compared if variant in variants]

    do(
        [  # all variants of a seed before the next seed, so that an unfinished study can be reported
            Run(
                variant,
                seed,
                output / "main" / f"{variant}-{seed}",
                main_clips,
                settings[variant],
                measures=("--disagree", str(disagreeing.root), "--scores", "all" if variant in _COMPARED else "own"),
                reranked=_BOTH_STAGES if variant in _RERANKED and seed in seeds[:_FEW_SEEDS] else (),
            )
            for seed in seeds
            for variant in variants
        ],
        "main",
    )
    few = seeds[:_FEW_SEEDS]
    others = [("repeated", repeated, None, asked(_REPEATED), seeds)]
    others += [(f"views-{name}", found, main_clips, asked(_VIEWED), seeds) for name, found in viewed.items()]
    others += [(f"sharing-{value:g}", found, None, asked(_SHARING_VARIANTS), few) for value, found in sharing.items()]
    for name, found, measured, compared, of_seeds in others:
        longer = main_clips.counts["train"] / found.counts["train"]  # fewer clips, as many steps
        changed = {v: settings[v] | {"num_train_epochs": longer * settings[v]["num_train_epochs"]} for v in compared}
        runs = [
            Run(variant, seed, output / name / f"{variant}-{seed}", found, changed[variant], measured)
            for seed in of_seeds
            for variant in compared
        ]
        do(runs, name)
    if "scalar" in variants:
        do(
            [
                Run("scalar", seed, output / "second_stage" / f"{number}-{seed}", main_clips,
                    settings["scalar"] | change(settings["scalar"]), reranked=_BOTH_STAGES, label=label)
                for seed in few
                for number, (label, change) in enumerate(SECOND_STAGES.items())
            ],
            "second stage",
        )  # fmt: skip
    measured = {"main": main_clips, "repeated": repeated}
    measured |= {f"sharing-{value:g}": found for value, found in sharing.items()}
    measured |= {f"views-{name}": found for name, found in viewed.items()} | {"disagreeing": disagreeing}
    collect(output, {name: found.root for name, found in measured.items()}, results_of(config))
    return failures


def results_of(config: StudyConfig) -> Path:
    """Return the folder of the results."""
    if config.results is not None:
        return Path(config.results)
    return RESULTS if config.report_only else Path(config.output) / "results"


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
    try:
        failures = {} if config.report_only else _study(config, variants)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("The same command continues.") from None
    results = Results(results_of(config))
    show(*report(results).split("\n"))
    if config.page is not None:
        page = Path(config.page)
        template = Path(__file__).with_name("page.md").read_text(encoding="utf-8")
        page.write_text(fill(template, results), encoding="utf-8")
        plot_sharing(results, page.with_name("miniature_sharing.png"))
    for name, why in failures.items():
        say(f"Error: {name}: {why}")
    return failures


__all__ = ["RESULTS", "results_of", "run_study"]
