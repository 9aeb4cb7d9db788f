"""`python -m recipes.study`: tune every method, train every variant from one backbone, evaluate, report.

What is left to do is read from the files of each run, so the same command continues after an interruption.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from commands.errors import run_command, say

# Heavy imports stay inside the functions that need them: the command itself only starts others.

_ROOT = Path(__file__).resolve().parents[2]
_COUNTS = {"train": 1500, "validation": 500, "test": 1000}
_FIRST_STAGE = ("--no-two-stage",)
_BOTH_STAGES = ("--depth", "5", "--depth", "50", "--fusion-split", "validation")
_RERANKED = ("scalar", "scalar_uniform", "scalar_full_ft", "gram")  # a second stage takes as long as a training
_SHARING_VARIANTS = ("scalar", "no_masked_views", "gram")
_FEW_SEEDS = 2


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    from .runs import RECIPES

    parser = argparse.ArgumentParser(
        prog="python -m recipes.study",
        description="Tune every method of the paper's study on the validation clips of the miniature benchmark, train "
        "every variant, evaluate it on the test clips, print the tables. The same command continues what was "
        "interrupted; a run is repeated once its folder is removed.",
    )
    parser.add_argument("--output", type=Path, default=Path("runs/study"), help="folder of the study")
    parser.add_argument("--seeds", type=int, nargs="+", default=[50, 51, 52, 53, 54], help="seeds of every variant")
    parser.add_argument("--variants", nargs="+", choices=RECIPES, default=list(RECIPES), help="by default all")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time, each on one core")
    parser.add_argument(
        "--overlay", type=Path, default=_ROOT / "recipes" / "miniature.yaml", help="recipe laid over each variant's"
    )
    parser.add_argument(
        "--shared", type=float, nargs="*", default=[0.0, 0.3, 1.0],
        help="degrees to which the modalities of further clips share what they are about; each is a benchmark",
    )  # fmt: skip
    parser.add_argument("--report-only", action="store_true", help="print the tables of what is there")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {options.jobs}")
    if not all(0 <= value <= 1 for value in options.shared):
        parser.error(f"--shared must be in [0, 1], got {options.shared}")
    return options


def _study(options: argparse.Namespace) -> dict[str, str]:
    """Do what is left; return the names of what failed and why."""
    from .jobs import execute
    from .runs import SECOND_STAGES, SHARED, Clips, Run, check_overlay
    from .tuning import settings_of, tune

    recipe = check_overlay(options.overlay)
    output, failures = options.output, {}

    def do(runs: Sequence[Run], description: str) -> None:
        found = execute([run.task(options.overlay) for run in runs], options.jobs, description)
        failures.update({task.name: why for task, why in found.items()})

    main_root, backbone = Path(recipe["root"]), str(recipe["model"])
    clips = {SHARED: Clips(main_root, output / "features", backbone, SHARED)}
    for shared in options.shared:
        name = f"shared-{shared:g}"
        clips.setdefault(
            shared, Clips(output / "clips" / name, output / "clips" / f"{name}-features", backbone, shared)
        )
    for found in clips.values():
        found.check(_COUNTS)
    unmade = execute([found.task(_COUNTS) for found in clips.values()], options.jobs, "clips")
    if unmade:
        raise ValueError(f"The study has no clips: {'; '.join(unmade.values())}")
    tunings = tune(options.variants, recipe, clips[SHARED], output / "tuning", do)
    settings = {variant: settings_of(variant, tunings, recipe) for variant in options.variants}
    do(
        [  # all variants of a seed before the next seed: an unfinished study can be reported already
            Run(variant, seed, output / "runs" / f"{variant}-{seed}", clips[SHARED], settings[variant],
                _BOTH_STAGES if variant in _RERANKED else _FIRST_STAGE)
            for seed in options.seeds
            for variant in options.variants
        ],
        "runs",
    )  # fmt: skip
    do(
        [
            Run(variant, seed, output / "sharing" / f"{shared:g}" / f"{variant}-{seed}", clips[shared],
                settings[variant], _FIRST_STAGE)
            for seed in options.seeds[:_FEW_SEEDS]
            for shared in options.shared
            for variant in _SHARING_VARIANTS
            if variant in options.variants
        ],
        "sharing",
    )  # fmt: skip
    if "scalar" in options.variants:
        do(
            [
                Run("scalar", seed, output / "second_stage" / f"{number}-{seed}", clips[SHARED],
                    settings["scalar"] | change(settings["scalar"]), _BOTH_STAGES, label)
                for seed in options.seeds[:_FEW_SEEDS]
                for number, (label, change) in enumerate(SECOND_STAGES.items())
            ],
            "second stage",
        )  # fmt: skip
    return failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is left of the study and report it; return the exit status, 1 if a run failed."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # children are stopped as after Ctrl-C
    try:
        failures = {} if options.report_only else _study(options)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("The same command continues.") from None
    from .report import report

    print(report(options.output))
    for name, why in failures.items():
        say(f"Error: {name}: {why}")
    return 1 if failures else 0


if __name__ == "__main__":
    run_command(main)
