"""The study in miniature: what is left to do, how it is done, and its report."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eval.__main__ import app
from eval.miniature import generate
from eval.reports.paper import VARIANTS
from trainer import study
from trainer.recipe import read_recipe
from trainer.study import RECIPES, Run, error_line, evaluate_command, execute, main, make_features, plan, train_command

ROOT = Path(__file__).resolve().parents[2]


# What is to be done --------------------------------------------------------------------------------------------------


def python(script):
    return [sys.executable, "-c", script]


def finish(run, seconds=0.0):
    """A stand-in for training or evaluation: it leaves the file that ends the stage."""
    path = {"train": run.folder / "recipe.json", "evaluate": run.results / "results.json"}[run.stage]
    path.parent.mkdir(parents=True, exist_ok=True)
    return python(f"import time; time.sleep({seconds}); open({str(path)!r}, 'w').write('x')")


def test_every_variant_has_a_recipe_and_a_name():
    assert RECIPES.keys() == VARIANTS.keys()
    for name in RECIPES:
        assert read_recipe(study.recipe_of(name))["model"]


def test_all_variants_of_a_seed_come_before_the_next_seed(tmp_path):
    runs = plan(tmp_path, ["scalar", "gram"], [51, 50])
    assert [run.folder.name for run in runs] == ["scalar-51", "gram-51", "scalar-50", "gram-50"]
    assert [(run.variant, run.seed) for run in runs][1:3] == [("gram", 51), ("scalar", 50)]


def test_the_files_of_a_run_say_what_is_next(tmp_path):
    run = Run("gram", 50, tmp_path)
    assert run.stage == "train"
    (tmp_path / "recipe.json").write_text("{}")
    assert run.stage == "evaluate"
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "results.json").write_text("{}")
    assert run.stage is None


@pytest.mark.parametrize("variant", RECIPES)
def test_a_training_has_its_recipe_its_seed_and_features_where_towers_are_frozen(variant, tmp_path):
    run = Run(variant, 51, tmp_path / "run")
    command = train_command(run, Path("overlay.yaml"), Path("features"))
    script = command.index(str(ROOT / "train.py"))
    assert command[script + 1 : script + 3] == [str(ROOT / "recipes" / f"{RECIPES[variant]}.yaml"), "overlay.yaml"]
    assert command[command.index("--seed") + 1] == "51"
    assert command[command.index("--output_dir") + 1] == str(tmp_path / "run")
    trains_towers = read_recipe(study.recipe_of(variant)).get("adapter", "paper") != "paper"
    assert ("--features" in command) != trains_towers
    assert command[-2:] == ["--resume_from_checkpoint", "auto"]  # as tests/trainer/test_folder.py has it


# How it is done ------------------------------------------------------------------------------------------------------


def test_every_run_is_trained_then_evaluated_and_finished_ones_are_left_alone(tmp_path):
    runs = plan(tmp_path, ["scalar", "gram", "pmrl"], [50])
    for run in runs[:2]:
        run.results.mkdir(parents=True)
    (runs[0].results / "results.json").write_text("done")
    (runs[1].folder / "recipe.json").write_text("trained")
    started = []

    def command_of(run):
        started.append((run.variant, run.stage))
        return finish(run)

    assert execute(runs, command_of, jobs=1) == {}
    assert started == [("gram", "evaluate"), ("pmrl", "train"), ("pmrl", "evaluate")]
    assert all(run.stage is None for run in runs)
    assert (runs[0].results / "results.json").read_text() == "done"


def test_no_more_runs_at_a_time_than_jobs(tmp_path):
    runs = plan(tmp_path, ["scalar", "gram", "pmrl", "hypergram"], [50])
    log = tmp_path / "log"
    script = (
        "import sys, time\nopen({log!r}, 'a').write('+')\ntime.sleep(0.5)\nopen({log!r}, 'a').write('-')\n"
        "open({file!r}, 'w')"
    )
    for run in runs:
        run.results.mkdir(parents=True)
        (run.folder / "recipe.json").write_text("x")

    def command_of(run):
        return python(script.format(log=str(log), file=str(run.results / "results.json")))

    assert execute(runs, command_of, 2) == {}
    marks = log.read_text()
    counts = [marks[: i + 1].count("+") - marks[: i + 1].count("-") for i in range(len(marks))]
    assert len(marks) == 8 and max(counts) == 2


def test_a_failing_run_is_reported_with_its_error_and_the_others_go_on(tmp_path):
    runs = plan(tmp_path, ["scalar", "gram", "pmrl"], [50])

    def command_of(run):
        if run.variant == "scalar":
            return python("raise ValueError('the disk is full')")
        return python("pass") if run.variant == "gram" else finish(run)

    failures = execute(runs, command_of, jobs=2)
    assert failures.keys() == set(runs[:2])
    assert failures[runs[0]] == f"ValueError: the disk is full ({runs[0].folder / 'train.log'})"
    assert failures[runs[1]] == f"nothing was logged ({runs[1].folder / 'train.log'})"
    assert runs[2].stage is None


def test_an_error_of_an_earlier_attempt_is_not_reported_again(tmp_path):
    runs = plan(tmp_path, ["scalar"], [50])
    execute(runs, lambda run: python("raise ValueError('first')"), jobs=1)
    failures = execute(runs, lambda run: python("raise SystemExit('second')"), jobs=1)
    assert failures[runs[0]].startswith("second")
    assert "first" in (runs[0].folder / "train.log").read_text()


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("step 1\nerror: no such file\n", "no such file"),
        ("Error: no such clip\nclips: 12\n", "no such clip"),
        ("Traceback\nKeyError: 'x'\nTraceback\nsubprocess.CalledProcessError: Command failed\n", "KeyError: 'x'"),
        ("error: first\nsafetensors_rust.SafetensorError: last\n", "safetensors_rust.SafetensorError: last"),
        ("loss 0.3\nKilled\n\n", "Killed"),
        ("", "nothing was logged"),
    ],
)
def test_the_line_that_says_why_is_found(log, line):
    assert error_line(log) == line


def test_interruption_reaches_the_training_below_the_launcher_and_waits_for_its_checkpoint(tmp_path):
    """As accelerate does: a launcher that ends at once, and a training that saves first."""
    training = (
        "import signal, sys, time\n"
        "def save(*_):\n    time.sleep(1)\n    open(sys.argv[1] + '/saved', 'w')\n    sys.exit(130)\n"
        "signal.signal(signal.SIGINT, save)\nopen(sys.argv[1] + '/ready', 'w')\ntime.sleep(60)"
    )
    launcher = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', sys.argv[2], sys.argv[1]]).wait()"
    script = (
        "import sys\nfrom pathlib import Path\nfrom trainer import study\n"
        "study.make_features = lambda *arguments: None\n"
        f"study.train_command = lambda run, *_: [sys.executable, '-c', {launcher!r}, str(run.folder), {training!r}]\n"
        "from commands.errors import run_command; run_command(study.main)"
    )
    (tmp_path / "miniature.json").write_text("{}")
    options = ["--output", tmp_path, "--test-root", tmp_path, "--variants", "scalar", "gram", "--seeds", "50"]
    process = subprocess.Popen(
        [*python(script), *map(str, options)], stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )
    folders = [tmp_path / name for name in ("scalar-50", "gram-50")]
    deadline = time.monotonic() + 60
    while not all((folder / "ready").is_file() for folder in folders) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors.strip().endswith("Interrupted. The same command continues.")
    assert all((folder / "saved").is_file() for folder in folders)


def write_overlay(folder, **changes):
    fields = {
        "model": str(folder), "benchmark": "miniature", "root": str(folder), "semantic_targets": str(folder),
        "num_train_epochs": 2.5, "on_error": "raise", "keep_in_memory": True,
    }  # fmt: skip
    path = folder / "overlay.yaml"
    path.write_text(json.dumps(fields | changes))  # which is YAML too
    return path


def test_features_are_made_once_from_the_recipe_of_the_miniature(tmp_path, monkeypatch):
    commands = []

    def run(command):
        commands.append(command)
        (tmp_path / "features.json").write_text("{}")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(study.subprocess, "run", run)
    overlay = write_overlay(tmp_path)
    make_features(overlay, tmp_path)
    make_features(overlay, tmp_path)
    assert len(commands) == 1 and commands[0][1:3] == ["-m", "trainer.cache_features"]
    assert commands[0][-1] == "--keep-in-memory"
    folder = str(tmp_path)
    assert dict(zip(commands[0][3:-1:2], commands[0][4:-1:2], strict=True)) == {
        "--model": folder, "--benchmark": "miniature", "--root": folder, "--output": folder, "--views": "3",
        "--on-error": "raise",
    }  # fmt: skip


def test_what_a_training_needs_is_missed_before_any_starts(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.*make study"):
        make_features(write_overlay(tmp_path, semantic_targets=str(tmp_path / "nowhere")), tmp_path)


def test_features_that_could_not_be_made_end_the_study(tmp_path, monkeypatch):
    monkeypatch.setattr(study.subprocess, "run", lambda command: subprocess.CompletedProcess(command, 1))
    with pytest.raises(ValueError, match="could not be computed"):
        make_features(write_overlay(tmp_path), tmp_path)


def test_the_study_without_its_test_clips_says_how_to_make_them(tmp_path):
    with pytest.raises(FileNotFoundError, match="--num-test 1000 --seed 2"):
        main(["--test-root", str(tmp_path), "--output", str(tmp_path)])


# Evaluation and report -----------------------------------------------------------------------------------------------


@pytest.fixture
def evaluated(tmp_path, tiny_model_dir):
    """A study whose one run is trained already, evaluated by the command itself."""
    root = generate(tmp_path / "data", num_train=2, num_validation=0, num_test=4, seed=4, num_proc=1)
    (run,) = plan(tmp_path / "study", ["gram"], [51])
    shutil.copytree(tiny_model_dir, run.folder)
    config = json.loads((run.folder / "config.json").read_text())
    (run.folder / "config.json").write_text(json.dumps(config | {"aggregation": "gram"}))
    (run.folder / "recipe.json").write_text('{"seed": 51}')
    done = CliRunner().invoke(app, evaluate_command(run, root)[3:])  # behind `python -m eval`
    assert done.exit_code == 0, done.output
    return run


def test_evaluation_is_that_of_the_score_the_model_was_trained_for(evaluated, capsys):
    results = json.loads((evaluated.results / "results.json").read_text())
    assert (results["label"], results["seed"], results["benchmark"]) == ("gram", 51, "miniature")
    assert results["score"]["method"] == "gram" and results["gallery"]["num_clips"] == 4
    assert [entry["rate"] for entry in results["retrieval"]["rates"]] == [0.0, 0.25, 0.5, 0.75, 0.9]
    assert evaluated.stage is None
    output = evaluated.folder.parent
    assert main(["--report-only", "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert printed == (output / "report" / "tables.md").read_text() + "\n"
    assert "| GRAM " in printed and "paper, mean of 5: GRAM" in printed


def test_a_report_of_nothing_is_one_clear_line(tmp_path):
    with pytest.raises((OSError, ValueError), match=f"There is no results.json in {re.escape(str(tmp_path))}"):
        main(["--report-only", "--output", str(tmp_path)])


def test_a_study_with_a_failed_run_reports_the_others_and_ends_with_an_error(tmp_path, capsys, monkeypatch):
    (tmp_path / "miniature.json").write_text("{}")
    monkeypatch.setattr(study, "report", lambda output: f"the tables of {output}")
    monkeypatch.setattr(study, "train_command", lambda *arguments: python("raise ValueError('no memory')"))
    (done,) = plan(tmp_path, ["scalar_full_ft"], [50])
    done.results.mkdir(parents=True)
    (done.results / "results.json").write_text("{}")
    options = ["--output", str(tmp_path), "--test-root", str(tmp_path), "--variants", "scalar_full_ft"]
    assert main([*options, "--seeds", "50", "51"]) == 1
    out, err = capsys.readouterr()
    assert "Error: scalar_full_ft-51: ValueError: no memory" in err and "scalar_full_ft-50:" not in err
    assert f"the tables of {tmp_path}" in out
