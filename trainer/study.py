"""`python -m trainer.study`: the paper's study in miniature. Train every variant from one backbone, evaluate, report.

What is left to do is read from the folders of the runs, so the same command continues after an interruption: a
run is trained once `recipe.json` is there, which train.py writes last, and done once its results are.

Variants with frozen towers read the outputs of these from one folder of features: all their seeds see the same frames,
in as many views as there are epochs.
"""

import argparse
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from commands.errors import run_command, say

# Heavy imports stay inside the functions that need them: the command itself only starts others.

RECIPES = {
    "scalar": "scalar",
    "scalar_uniform": "scalar_uniform",
    "scalar_full_ft": "scalar_full_ft",
    "no_masked_views": "ablation_masked_views",
    "no_cross_arity": "ablation_cross_arity",
    "no_semantic": "ablation_semantic",
    "no_uniformity": "ablation_uniformity",
    "gram": "gram",
    "pmrl": "pmrl",
    "hypergram": "hypergram",
}
"""Variants, which are the labels of their rows in tables, and their recipes in `recipes/`."""

_WITH_TRAINED_TOWERS = {"scalar_full_ft"}  # stored outputs of frozen towers cannot train them
_ROOT = Path(__file__).resolve().parents[1]
_LAUNCH = (
    "-m accelerate.commands.launch --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no "
    "--num_cpu_threads_per_process 1"
).split()
_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 120  # for a training to save a checkpoint after Ctrl-C


@dataclass(frozen=True)
class Run:
    """One training and its evaluation, in a folder of its own."""

    variant: str
    seed: int
    folder: Path

    @property
    def results(self) -> Path:
        """Where the evaluation writes."""
        return self.folder / "results"

    @property
    def stage(self) -> str | None:
        """What is to be done next: "train", then "evaluate", then None."""
        if (self.results / "results.json").is_file():
            return None
        return "evaluate" if (self.folder / "recipe.json").is_file() else "train"


def plan(output: Path, variants: Sequence[str], seeds: Sequence[int]) -> list[Run]:
    """List the runs, all variants of a seed before the next seed: an unfinished study can be reported already."""
    return [Run(variant, seed, output / f"{variant}-{seed}") for seed in seeds for variant in variants]


def recipe_of(variant: str) -> Path:
    """Return the recipe file of a variant."""
    return _ROOT / "recipes" / f"{RECIPES[variant]}.yaml"


def train_command(run: Run, overlay: Path, features: Path) -> list[str]:
    """Return the command that trains a run, from its last complete checkpoint if it has one."""
    command = [sys.executable, *_LAUNCH, str(_ROOT / "train.py"), str(recipe_of(run.variant)), str(overlay)]
    command += ["--seed", str(run.seed), "--output_dir", str(run.folder)]
    command += ["--report_to", "none", "--disable_tqdm", "true"]
    if run.variant not in _WITH_TRAINED_TOWERS:
        command += ["--features", str(features)]
    return [*command, "--resume_from_checkpoint", "auto"]


def evaluate_command(run: Run, test_root: Path) -> list[str]:
    """Return the command that evaluates a trained run."""
    command = [sys.executable, "-m", "eval", "run", "--model", str(run.folder), "--label", run.variant]
    command += ["--benchmark", "miniature", "--root", str(test_root), "--output", str(run.results)]
    return [*command, "--policy", "absent", "--num-workers", "1"]


def error_line(log: str) -> str:
    """Find the line of a log that says why a process failed: its last error, else its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    # The launcher adds an error of its own about the error of the training.
    errors = [line for line in lines if re.match(r"(?i:error): |[\w.]+(Error|Exception|Interrupt)\b", line)]
    errors = [line for line in errors if not line.startswith("subprocess.CalledProcessError")]
    return re.sub(r"^(?i:error): ", "", (errors or lines or ["nothing was logged"])[-1])


class _Job:
    """A process that does one stage of a run, with its log. In a group of its own, so that it can be stopped whole."""

    def __init__(self, run: Run, command: Sequence[str]):
        self.stage, self.started = run.stage, time.monotonic()
        self.log = run.folder / f"{self.stage}.log"
        run.folder.mkdir(parents=True, exist_ok=True)
        self._before = self.log.stat().st_size if self.log.is_file() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},  # one core per job
                start_new_session=True,
            )

    def failure(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self._before)
            return f"{error_line(log.read().decode(errors='replace'))} ({self.log})"

    def signal(self, number: int) -> bool:
        """Send a signal to the whole group; return whether any of it is left."""
        self.process.poll()
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return False
        return True


def _stop(jobs: Sequence[_Job]) -> None:
    """Interrupt processes as Ctrl-C does, wait for their checkpoints, and end what does not end."""
    for job in jobs:
        job.signal(signal.SIGINT)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    try:
        # The launcher ends at once, the training below it only after its checkpoint: wait for both.
        while time.monotonic() < deadline and any([job.signal(0) for job in jobs]):
            time.sleep(_POLL_SECONDS)
    finally:  # also when Ctrl-C comes again
        for job in jobs:
            job.signal(signal.SIGKILL)
            job.process.wait()


def execute(runs: Sequence[Run], command_of: Callable[[Run], Sequence[str]], jobs: int) -> dict[Run, str]:
    """
    Do what is left of each run, several at a time. A run that fails does not stop the others.

    Args:
        runs (`Sequence[Run]`): finished ones are skipped.
        command_of (`Callable`): gives the command of a run's next stage.
        jobs (`int`): processes at a time.

    Returns:
        `dict` of the runs that failed to the line that says why.
    """
    waiting = deque(run for run in runs if run.stage is not None)
    running: dict[Run, _Job] = {}
    failures: dict[Run, str] = {}
    with tqdm(total=len(runs), initial=len(runs) - len(waiting), desc="study", unit="run") as bar:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    run = waiting.popleft()
                    running[run] = _Job(run, command_of(run))
                    bar.set_postfix_str(", ".join(f"{job.stage} {run.folder.name}" for run, job in running.items()))
                time.sleep(_POLL_SECONDS)
                for run, job in list(running.items()):
                    code = job.process.poll()
                    if code is None:
                        continue
                    del running[run]
                    if code or run.stage == job.stage:  # the file that ends a stage is not there
                        failures[run] = job.failure()
                        bar.write(f"{run.folder.name}: {job.stage} failed: {failures[run]}")
                    else:
                        bar.write(f"{run.folder.name}: {job.stage} took {time.monotonic() - job.started:.0f} s")
                        if run.stage is None:
                            bar.update()
                        else:
                            waiting.appendleft(run)
        finally:
            _stop(list(running.values()))
    return failures


def make_features(overlay: Path, features: Path) -> None:
    """Compute the outputs of the frozen towers for the training clips, once for all runs, unless they are there."""
    from trainer.recipe import read_recipe

    recipe = read_recipe(recipe_of("scalar")) | read_recipe(overlay)
    for name in ("model", "benchmark", "root", "semantic_targets", "num_train_epochs", "on_error", "keep_in_memory"):
        if recipe.get(name) is None:
            raise ValueError(f"{overlay} must name `{name}`, as recipes/miniature.yaml does.")
    if not isinstance(recipe["num_train_epochs"], int | float):
        raise ValueError(f"`num_train_epochs` in {overlay} must be a number, got {recipe['num_train_epochs']!r}.")
    inputs = [recipe[name] for name in ("model", "root", "semantic_targets")]
    missing = [path for path in inputs if not Path(path).exists()]
    if missing:
        raise FileNotFoundError(f"{overlay} names {missing}, which are not there. `make study` makes them first.")
    if (features / "features.json").is_file():
        return
    command = [sys.executable, "-m", "trainer.cache_features", "--output", str(features)]
    for name in ("model", "benchmark", "root"):
        command += [f"--{name}", str(recipe[name])]
    command += ["--views", str(math.ceil(recipe["num_train_epochs"])), "--on-error", recipe["on_error"]]
    command += ["--keep-in-memory"] if recipe["keep_in_memory"] else []
    if subprocess.run(command).returncode:
        raise ValueError("The features of the frozen towers could not be computed; the reason is printed above.")


def report(output: Path) -> str:
    """Write the tables and figures of the runs that are evaluated into `report`; return the tables."""
    from eval.reports.report import write_report
    from eval.reports.result_files import load_results

    return write_report(load_results([output], paper_mean=True), output / "report")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.study",
        description="Train every variant of the paper's study on the miniature benchmark, evaluate it, print the "
        "tables. The same command continues what was interrupted; a run is repeated once its folder is removed.",
    )
    parser.add_argument("--output", type=Path, default=Path("runs/study"), help="folder of the study")
    parser.add_argument("--seeds", type=int, nargs="+", default=[50, 51, 52], help="seeds of every variant")
    parser.add_argument("--variants", nargs="+", choices=RECIPES, default=list(RECIPES), help="by default all")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time, each on one core")
    parser.add_argument(
        "--overlay", type=Path, default=_ROOT / "recipes" / "miniature.yaml", help="recipe laid over each variant's"
    )
    parser.add_argument("--test-root", type=Path, default=Path("data/miniature-2"), help="benchmark to evaluate on")
    parser.add_argument("--report-only", action="store_true", help="print the tables of what is there")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {options.jobs}")
    return options


def _run_study(options: argparse.Namespace) -> dict[Run, str]:
    if not (options.test_root / "miniature.json").is_file():
        raise FileNotFoundError(
            f"{options.test_root} is not a finished miniature benchmark. Make the one that the study uses with "
            f"`python -m eval miniature --output {options.test_root} --num-train 3 --num-test 1000 --seed 2`."
        )
    runs = plan(options.output, options.variants, options.seeds)
    features = options.output / "features"
    if any(run.stage == "train" and run.variant not in _WITH_TRAINED_TOWERS for run in runs):
        make_features(options.overlay, features)

    def command_of(run: Run) -> list[str]:
        if run.stage == "train":
            return train_command(run, options.overlay, features)
        return evaluate_command(run, options.test_root)

    return execute(runs, command_of, options.jobs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is left of the study and report it; return the exit status, 1 if a run failed."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # children are stopped as after Ctrl-C
    try:
        failures = {} if options.report_only else _run_study(options)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("The same command continues.") from None
    print(report(options.output))
    for run, why in failures.items():
        say(f"Error: {run.folder.name}: {why}")
    return 1 if failures else 0


if __name__ == "__main__":
    run_command(main)


__all__ = ["RECIPES", "Run", "execute", "main", "plan", "report"]
