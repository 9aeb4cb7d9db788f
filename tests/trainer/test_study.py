"""The study in miniature: what is left to do, how it is done, and the arithmetic of the tables."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eval.benchmarks import load_benchmark
from eval.embed import embed_dataset
from eval.miniature import generate
from eval.reranking import evaluate_two_stage
from eval.retrieval import evaluate_embeddings
from modeling_scalar import load_model
from trainer import study
from trainer.recipe import read_recipe
from trainer.study import RECIPES, Run, error_line, evaluate, execute, main, make_features, plan, train_command
from trainer.study_tables import (
    NAMES,
    PAPER_ABLATION,
    PAPER_COMPONENTS,
    PAPER_MISSING,
    PAPER_TWO_STAGE,
    RATES,
    ablation_table,
    absolute_table,
    gain_table,
    load_results,
    markdown,
    missing_table,
    plot_gain,
    spread,
    write_report,
)

ROOT = Path(__file__).resolve().parents[2]


# What is to be done --------------------------------------------------------------------------------------------------


def python(script):
    return [sys.executable, "-c", script]


def finish(run, seconds=0.0):
    """A stand-in for training or evaluation: it leaves the file that ends the stage."""
    name = {"train": "recipe.json", "evaluate": "study.json"}[run.stage]
    return python(f"import time; time.sleep({seconds}); open({str(run.folder / name)!r}, 'w').write('x')")


def test_every_variant_has_a_recipe_and_a_name():
    assert RECIPES.keys() == NAMES.keys()
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
    (tmp_path / "study.json").write_text("{}")
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
    assert "--resume_from_checkpoint" not in command


def test_a_training_with_a_checkpoint_is_resumed(tmp_path):
    (tmp_path / "checkpoint-12").mkdir()
    (tmp_path / "checkpoint-12" / "trainer_state.json").write_text('{"global_step": 12}')
    (tmp_path / "checkpoint-24").mkdir()  # the run was killed while it wrote this
    command = train_command(Run("gram", 50, tmp_path), Path("overlay.yaml"), Path("features"))
    assert command[-2:] == ["--resume_from_checkpoint", "last"]


def test_a_training_killed_in_its_first_save_starts_anew(tmp_path):
    (tmp_path / "checkpoint-12").mkdir()
    command = train_command(Run("gram", 50, tmp_path), Path("overlay.yaml"), Path("features"))
    assert "--resume_from_checkpoint" not in command


# How it is done ------------------------------------------------------------------------------------------------------


def test_every_run_is_trained_then_evaluated_and_finished_ones_are_left_alone(tmp_path):
    runs = plan(tmp_path, ["scalar", "gram", "pmrl"], [50])
    for run in runs[:2]:
        run.folder.mkdir()
    (runs[0].folder / "study.json").write_text("done")
    (runs[1].folder / "recipe.json").write_text("trained")
    started = []

    def command_of(run):
        started.append((run.variant, run.stage))
        return finish(run)

    assert execute(runs, command_of, jobs=1) == {}
    assert started == [("gram", "evaluate"), ("pmrl", "train"), ("pmrl", "evaluate")]
    assert all(run.stage is None for run in runs)
    assert (runs[0].folder / "study.json").read_text() == "done"


def test_no_more_runs_at_a_time_than_jobs(tmp_path):
    runs = plan(tmp_path, ["scalar", "gram", "pmrl", "hypergram"], [50])
    log = tmp_path / "log"
    script = (
        "import sys, time\nopen({log!r}, 'a').write('+')\ntime.sleep(0.5)\nopen({log!r}, 'a').write('-')\n"
        "open({file!r}, 'w')"
    )
    for run in runs:
        run.folder.mkdir()
        (run.folder / "recipe.json").write_text("x")
    assert execute(runs, lambda run: python(script.format(log=str(log), file=str(run.folder / "study.json"))), 2) == {}
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
        "sys.exit(study.main(sys.argv[1:]))"
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
    assert process.returncode == 130 and errors.strip().endswith("the same command continues")
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


def test_the_study_without_its_test_clips_says_how_to_make_them(tmp_path, capsys):
    assert main(["--test-root", str(tmp_path), "--output", str(tmp_path)]) == 1
    assert "--num-test 1000 --seed 2" in capsys.readouterr().err


# Evaluation ----------------------------------------------------------------------------------------------------------


def test_evaluation_is_that_of_the_score_the_model_was_trained_for(tmp_path, tiny_model_dir):
    root = generate(tmp_path / "data", num_train=2, num_test=8, seed=4, num_proc=1)
    folder = tmp_path / "gram-51"
    shutil.copytree(tiny_model_dir, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"aggregation": "gram"}))
    (folder / "recipe.json").write_text('{"seed": 51}')
    content = evaluate(folder, root)
    assert json.loads((folder / "study.json").read_text()) == content
    assert (content["variant"], content["seed"], content["score"]["method"]) == ("gram", 51, "gram")
    assert content["training"] == {"seed": 51} and content["benchmark_description"]["seed"] == 4
    model, processor = load_model(folder)
    dataset = load_benchmark("miniature", root, "test")
    embeddings = embed_dataset(model, processor, dataset, progress=False)
    assert content["retrieval"] == evaluate_embeddings(embeddings, ("gram", "scalar", "uniform"), RATES)
    expected = evaluate_two_stage(model, processor, dataset, embeddings, 50, progress=False)
    assert content["two_stage"] == expected and expected["depth"] == 50


# Tables --------------------------------------------------------------------------------------------------------------


def make_run(variant, seed, joint=20.0, best=15.0, two_stage=30.0, slope=0.0, method="scalar"):
    """`study.json` of a run whose joint R@1 falls by `slope` per masking rate, and whose best pathway falls by 1."""
    rates = []
    for step, rate in enumerate(RATES):
        recall, pathway = joint - slope * step, best - step
        figures = {"text_to_video_recall_at_1": recall, "text_to_video_recall_at_10": 2 * recall}
        rates.append(
            {
                "rate": rate,
                "methods": {method: figures, "other": {}},
                "best_pathway": {"method": "audio", "text_to_video_recall_at_1": pathway},
                "aggregation_gain": {method: recall - pathway, "other": 99.0},
            }
        )
    return {
        "variant": variant,
        "seed": seed,
        "score": {"method": method},
        "retrieval": {"num_queries": 1000, "num_clips": 1000, "mask_seed": 0, "rates": rates},
        "two_stage": {"depth": 50, "text_to_video_recall_at_1": two_stage, "text_to_video_recall_at_10": 60.0},
        "gallery": {"sha256": "c0ffee" * 10},
        "benchmark": "miniature",
        "split": "test",
    }


def save(folder, *runs):
    for run in runs:
        path = folder / f"{run['variant']}-{run['seed']}"
        path.mkdir(exist_ok=True, parents=True)
        (path / "study.json").write_text(json.dumps(run))
    return folder


@pytest.fixture
def results(tmp_path):
    save(
        tmp_path,
        make_run("scalar", 50, joint=20.0, best=15.0, two_stage=30.0),
        make_run("scalar", 51, joint=22.0, best=16.0, two_stage=31.0, slope=1.0),
        make_run("scalar", 52, joint=24.0, best=15.0, two_stage=35.0),
        make_run("gram", 50, joint=10.0, best=15.0, two_stage=28.0, slope=2.0, method="gram"),
        make_run("gram", 52, joint=16.0, best=15.0, two_stage=32.0, slope=2.0, method="gram"),
        make_run("no_masked_views", 50, joint=18.0, best=16.0, two_stage=29.0, slope=1.5),
        make_run("no_masked_views", 51, joint=18.0, best=15.0, two_stage=31.0),
        make_run("scalar_full_ft", 50, joint=25.0, best=19.0, two_stage=40.0),
    )
    return load_results(tmp_path)


def cells(table, label):
    """The cells of the one row of a Markdown table that begins with a label."""
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
    (row,) = [row for row in rows if row[0] == label]
    return row[1:]


@pytest.mark.parametrize(
    ("numbers", "sign", "text"),
    [
        ([], False, "–"),
        ([12.34], False, "12.3"),
        ([-1.0], True, "-1.0"),
        ([1.0, 3.0], True, "+2.0 ± 1.4"),  # sample deviation: sqrt(2), not 1
        ([20.0, 22.0, 24.0], False, "22.0 ± 2.0"),
    ],
)
def test_a_mean_has_the_sample_deviation_of_two_or_more(numbers, sign, text):
    assert spread(numbers, sign) == text


def test_columns_of_a_table_stand_below_each_other():
    lines = markdown(["", "wide title"], [["a", "1"], ["long label", "22.5 ± 0.1 and more"]]).splitlines()
    assert len({len(line) for line in lines}) == 1 and lines[1].endswith("-: |") and lines[1].startswith("| ---")


def test_missing_modalities_are_compared_seed_by_seed(results):
    table = missing_table(results)
    # At 90 % three seeds 20, 22 - 4, 24, and two 10 - 8, 16 - 8; the margin has the seeds 50 and 52 alone.
    assert cells(table, "SCALAR") == ["22.0 ± 2.0", "21.7 ± 2.1", "21.3 ± 2.3", "21.0 ± 2.6", "20.7 ± 3.1"]
    assert cells(table, "GRAM") == ["13.0 ± 4.2", "11.0 ± 4.2", "9.0 ± 4.2", "7.0 ± 4.2", "5.0 ± 4.2"]
    assert cells(table, "margin") == ["+9.0 ± 1.4", "+11.0 ± 1.4", "+13.0 ± 1.4", "+15.0 ± 1.4", "+17.0 ± 1.4"]
    # (45.2 + 34.3 + 34.4 + 81.7 + 27.1) / 5 and (38.7 + 28.2 + 31.0 + 75.6 + 22.9) / 5
    assert cells(table, "paper: SCALAR")[0] == "44.5" and cells(table, "paper: GRAM")[0] == "39.3"
    assert cells(table, "paper: margin")[0] == "+5.3"


def test_gains_are_those_of_the_score_a_variant_was_trained_for(results):
    table = gain_table(results)
    assert cells(table, "SCALAR")[:4] == ["22.0 ± 2.0", "15.3 ± 0.6", "+6.7 ± 2.1", "audio"]
    assert cells(table, "GRAM")[:4] == ["13.0 ± 4.2", "15.0 ± 0.0", "-2.0 ± 4.2", "audio"]
    assert cells(table, "SCALAR, full fine-tuning") == ["25.0", "19.0", "+6.0", "audio", "–", "–", "–"]
    assert cells(table, "PMRL")[:4] == ["–"] * 4
    # Four benchmarks: (39.1 + 32.0 + 34.3 + 78.0) / 4, (42.5 + 32.1 + 36.3 + 78.0) / 4
    assert cells(table, "HyperGRAM")[4:] == ["45.9", "47.2", "-1.4"]


def test_ablations_are_changes_of_the_same_seed(results):
    table = ablation_table(results)
    # Two-stage: -1 and 0. Gains: 2 - 5 and 3 - 6. At 90 %: (18 - 6) - (16 - 4) - (20 - (15 - 4)) and 7 - 6.
    expected = ["30.0 ± 1.4", "-0.5 ± 0.7", "-3.0 ± 0.0", "-4.0 ± 7.1", "-0.8", "-6.5", "-7.1"]
    assert cells(table, "w/o masked training views") == expected
    assert cells(table, "w/o L_sem") == ["–", "–", "–", "–", "-0.0", "-0.9", "–"]
    full = ["32.0 ± 2.6", "–", "+6.7 ± 2.1", "+9.3 ± 3.5", "–", "+1.0", "-0.5"]
    assert cells(table, "full objective (gains, no changes)") == full


def test_all_variants_that_were_run_are_listed_with_their_seeds(results):
    table = absolute_table(results)
    assert cells(table, "SCALAR")[:4] == ["50, 51, 52", "22.0 ± 2.0", "44.0 ± 4.0", "32.0 ± 2.6"]
    assert cells(table, "GRAM")[0] == "50, 52"
    assert cells(table, "SCALAR, full fine-tuning")[-2:] == ["55.0", "83.3"]  # 275.1 / 5, 416.7 / 5
    assert cells(table, "w/o masked training views")[-2:] == ["–", "–"]
    assert "PMRL" not in table


def test_the_report_holds_the_four_tables_and_the_protocol(results):
    text = write_report(results)
    for table in (missing_table, gain_table, ablation_table, absolute_table):
        assert table(results) in text
    assert "1000 captions, 1000 clips" in text and "c0ffeec0ffee" in text and "first 50 clips" in text


def numbers_of(tex, start, end=r"\end{tabular}"):
    """All numbers with a decimal from the first place after `start` on, in order."""
    piece = tex[tex.index(start) + len(start) :]
    return [float(number) for number in re.findall(r"[-+]?\d+\.\d", piece[: piece.index(end)])]


@pytest.fixture
def paper(shared_dir):
    return (shared_dir / "paper" / "scalar.tex").read_text(encoding="utf-8")


def body(paper, label):
    """What follows the head of the table with this label."""
    return paper[paper.index(r"\midrule", paper.index(rf"\label{{{label}}}")) :]


def test_published_recall_under_missing_modalities_is_that_of_the_paper(paper):
    table = numbers_of(body(paper, "tab:missing"), r"\midrule")
    blocks = [table[start : start + 15] for start in range(0, len(table), 15)]  # of a benchmark: SCALAR, GRAM, margin
    assert [tuple(block[:5]) for block in blocks] == list(PAPER_MISSING["scalar"])
    assert [tuple(block[5:10]) for block in blocks] == list(PAPER_MISSING["gram"])


def test_published_components_and_gains_are_those_of_the_paper(paper):
    table = numbers_of(body(paper, "tab:supp-gain-components"), r"\midrule")
    names = ("gram", "pmrl", "hypergram", "scalar_uniform", "scalar")
    parts = [part for name in names for part in PAPER_COMPONENTS[name]]
    expected = [number for best, joint in parts for number in (best, joint, joint - best)]
    assert table == pytest.approx(expected, abs=1e-9)


def test_published_ablations_are_those_of_the_paper(paper):
    table = numbers_of(body(paper, "tab:loss_ablation"), r"\midrule")
    rows = [table[:7], table[7:15], table[15:23], table[23:30], table[30:]]
    expected = [tuple(row[5:]) for row in rows]
    assert [tuple(number for number in row if number is not None) for row in PAPER_ABLATION.values()] == expected


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("scalar", r"\textbf{\ours} (ours) &"),
        ("scalar_full_ft", r"\ours, full-FT (same recipe) &"),
        ("gram", r"\gram{}$^{\star}$~"),
        ("pmrl", r"PMRL$^{\star}$~"),
        ("hypergram", "yper"),  # HyperGRAM in one table, \hypergram in the other
    ],
)
def test_published_results_of_both_stages_are_those_of_the_paper(name, label, paper):
    numbers = []
    for table, wanted in (("tab:msrvtt", 2), ("tab:transfer", 8)):
        numbers += numbers_of(body(paper, table), label, r"\\")[:wanted]  # text to video comes first
    assert numbers == [number for pair in PAPER_TWO_STAGE[name] for number in pair]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gallery": {"sha256": "other"}}, "one gallery"),
        ({"two_stage": {"depth": 20}}, "one gallery"),
        ({"variant": "clip"}, "unknown variant 'clip'"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(changes, message, tmp_path):
    save(tmp_path, make_run("scalar", 50), make_run("gram", 51) | changes)
    with pytest.raises(ValueError, match=message):
        load_results(tmp_path)


def test_the_report_alone_prints_and_writes_what_is_there(results, tmp_path, capsys):
    assert main(["--report-only", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert (tmp_path / "tables.md").read_text() == write_report(results) == printed.removesuffix("\n")
    assert (tmp_path / "gain_vs_masking.png").stat().st_size > 10_000


def test_a_report_of_nothing_is_one_clear_line(tmp_path, capsys):
    assert main(["--report-only", "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "error: No run of the study is evaluated yet; there is nothing to report.\n"


def test_a_study_with_a_failed_run_reports_the_others_and_ends_with_an_error(results, tmp_path, capsys, monkeypatch):
    (tmp_path / "miniature.json").write_text("{}")
    monkeypatch.setattr(study, "train_command", lambda *arguments: python("raise ValueError('no memory')"))
    options = ["--output", str(tmp_path), "--test-root", str(tmp_path), "--variants", "scalar_full_ft"]
    assert main([*options, "--seeds", "50", "51"]) == 1
    out, err = capsys.readouterr()
    assert "error: scalar_full_ft-51: ValueError: no memory" in err and "scalar_full_ft-50:" not in err
    assert missing_table(results) in out


def test_the_figure_draws_what_there_is(tmp_path):
    results = load_results(save(tmp_path, make_run("scalar", 50)))
    plot_gain(results, tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 10_000
