"""`python -m recipes.study`: tune every method, train every variant from one backbone, evaluate, report.

The files of each run say what is still to do, so the same command continues after an interruption.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from commands.errors import run_command, say

# Heavy imports are inside the functions that need them: the command itself only starts others.

_ROOT = Path(__file__).resolve().parents[2]
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


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    from .runs import RECIPES

    parser = argparse.ArgumentParser(
        prog="python -m recipes.study",
        description="Tune every method of the paper's study on the validation clips of the miniature benchmark, train "
        "every variant, evaluate it on the test clips, print the tables. Run the same command to continue after an "
        "interruption; remove the folder of a run to repeat it.",
    )
    parser.add_argument("--output", type=Path, default=Path("runs/study"), help="folder of the study")
    parser.add_argument("--seeds", type=int, nargs="+", default=[50, 51, 52, 53, 54], help="seeds of every variant")
    parser.add_argument("--variants", nargs="+", choices=RECIPES, default=list(RECIPES), help="variants; default: all")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes, each on one core")
    parser.add_argument(
        "--overlay",
        type=Path,
        default=_ROOT / "recipes" / "miniature.yaml",
        help="recipe whose fields override those of each variant",
    )
    parser.add_argument(
        "--shared", type=float, nargs="*", default=[0.0, 0.3, 1.0],
        help="probabilities with which modalities share what they are about; each is a benchmark of its own",
    )  # fmt: skip
    parser.add_argument("--report-only", action="store_true", help="only print the tables of --results")
    parser.add_argument("--results", type=Path, help="folder of the results; default: OUTPUT/results")
    parser.add_argument("--page", type=Path, help="write the page with these results, and its figure, to this file")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {options.jobs}")
    if not all(0 <= value <= 1 for value in options.shared):
        parser.error(f"--shared must be in [0, 1], got {options.shared}")
    options.results = options.results or options.output / "results"
    return options


def _study(options: argparse.Namespace) -> dict[str, str]:
    """Do what is still to do; return the names of failed runs, with the reason."""
    from .jobs import Stage, Task, execute
    from .results import collect
    from .runs import SECOND_STAGES, SHARED, Clips, Run, check_overlay
    from .tuning import settings_of, tune

    recipe = check_overlay(options.overlay)
    output, failures, backbone = options.output, {}, str(recipe["model"])

    def do(runs: Sequence[Run], description: str) -> None:
        found = execute([run.task(options.overlay) for run in runs], options.jobs, description)
        failures.update({task.name: why for task, why in found.items()})

    def made(name: str, counts: dict[str, int], model: str | None = backbone, **settings: Any) -> Clips:
        return Clips(output / "clips" / name, counts, settings, model)

    of_training = _NONE | {"train": _COMPLETE}
    main_clips = Clips(Path(recipe["root"]), _COUNTS, {"shared": SHARED}, backbone)
    disagreeing = made("disagreeing", _NONE | {"test": _COUNTS["test"]}, None, disagree=1.0)
    sharing = {value: made(f"shared-{value:g}", _COUNTS, shared=value) for value in options.shared}
    viewed = {"complete": made("complete", of_training, complete=True), "mixed": made("mixed", of_training)}
    repeated = made(f"seed-{_SECOND_SEED}", _COUNTS, seed=_SECOND_SEED)
    clips = [main_clips, disagreeing, *sharing.values(), *viewed.values(), repeated]
    for found in clips:
        found.check()
    new_heads = output / "clips" / "new-heads"
    command = (sys.executable, "-m", "recipes.study.new_heads", backbone, str(new_heads))
    heads = Task("new heads", new_heads, (Stage("heads", command, new_heads / "processor_config.json"),))
    viewed["new-heads"] = replace(viewed["complete"], model=str(new_heads))  # the stored outputs of its towers fit
    unmade = execute([*(found.task() for found in clips), heads], options.jobs, "clips")
    if unmade:
        raise ValueError(f"The study has no clips: {'; '.join(unmade.values())}")
    tunings = tune(options.variants, recipe, main_clips, output / "tuning", do)
    settings = {variant: settings_of(variant, tunings, recipe) for variant in options.variants}

    def asked(variants: Sequence[str]) -> list[str]:
        return [variant for variant in variants if variant in options.variants]

    do(
        [  # all variants of a seed before the next seed, so that an unfinished study can be reported
            Run(
                variant,
                seed,
                output / "main" / f"{variant}-{seed}",
                main_clips,
                settings[variant],
                measures=("--disagree", str(disagreeing.root), "--scores", "all" if variant in _COMPARED else "own"),
                reranked=_BOTH_STAGES if variant in _RERANKED and seed in options.seeds[:_FEW_SEEDS] else (),
            )
            for seed in options.seeds
            for variant in options.variants
        ],
        "main",
    )
    few = options.seeds[:_FEW_SEEDS]
    others = [("repeated", repeated, None, asked(_REPEATED), options.seeds)]
    others += [(f"views-{name}", found, main_clips, asked(_VIEWED), options.seeds) for name, found in viewed.items()]
    others += [(f"sharing-{value:g}", found, None, asked(_SHARING_VARIANTS), few) for value, found in sharing.items()]
    for name, found, measured, variants, seeds in others:
        longer = main_clips.counts["train"] / found.counts["train"]  # fewer clips, as many steps
        changed = {v: settings[v] | {"num_train_epochs": longer * settings[v]["num_train_epochs"]} for v in variants}
        runs = [
            Run(variant, seed, output / name / f"{variant}-{seed}", found, changed[variant], measured)
            for seed in seeds
            for variant in variants
        ]
        do(runs, name)
    if "scalar" in options.variants:
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
    collect(output, {name: found.root for name, found in measured.items()}, options.results)
    return failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Continue the study and report it; return the exit status, 1 if a run failed."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # children are stopped as after Ctrl-C
    try:
        failures = {} if options.report_only else _study(options)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("The same command continues.") from None
    from .report import fill, plot_sharing, report
    from .results import Results

    results = Results(options.results)
    print(report(results))
    if options.page is not None:
        template = Path(__file__).with_name("page.md").read_text(encoding="utf-8")
        options.page.write_text(fill(template, results), encoding="utf-8")
        plot_sharing(results, options.page.with_name("miniature_sharing.png"))
    for name, why in failures.items():
        say(f"Error: {name}: {why}")
    return 1 if failures else 0


if __name__ == "__main__":
    run_command(main)
