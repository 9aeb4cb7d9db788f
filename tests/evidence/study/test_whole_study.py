"""The whole study, with the commands it starts replaced by what they leave: what is run, in which order, and shown."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from evidence.settings import StudyConfig
from evidence.study import whole
from evidence.study.tuning import SEEDS
from tests.eval.reports.made_runs import make_run
from tests.evidence.study.made_studies import save_clips, save_labels, save_run, save_trial

RECALLS = {"scalar": 40.0, "gram": 30.0, "no_semantic": 35.0}
COUNTS = {"runs": 6 + 6 + 4 + 2 + 2}
ASKED = {"variants": ("scalar", "gram", "no_semantic"), "seeds": (50, 51), "shared": (0.0,)}


def value(command, option):
    return command[command.index(option) + 1]


def leave(task):
    """What the commands of a task leave."""
    commands = {stage.name: stage.command for stage in task.stages}
    if "clips" in commands:
        command, root = commands["clips"], task.stages[0].ends_with.parent
        made = {name: int(value(command, f"--{name.replace('_', '-')}")) for name in
                ("num_train", "num_validation", "num_test")}  # fmt: skip
        made |= {"complete": "--complete" in command}
        made |= {n: float(value(command, f"--{n}")) for n in ("shared", "disagree") if f"--{n}" in command}
        made |= {"seed": int(value(command, "--seed"))} if "--seed" in command else {}
        save_clips(root, 100, **made)
        for stage in task.stages[1:]:
            stage.ends_with.parent.mkdir(parents=True, exist_ok=True)
            stage.ends_with.write_text("{}")
        return
    if "heads" in commands:
        task.folder.mkdir(parents=True)
        task.stages[0].ends_with.write_text("{}")
        return
    train, variant = commands["train"], task.folder.name.rpartition("-")[0]
    task.folder.mkdir(parents=True, exist_ok=True)
    (task.folder / "recipe.json").write_text("{}")
    own = "gram" if task.folder.name.startswith("gram") else "scalar"
    recall = RECALLS.get(variant, 38.0)
    output = Path(value(commands["measure"], "--output"))
    if "validation" in commands["measure"]:
        save_trial(output, 40.0 - 5 * (value(train, "--temperature") != "0.1"))
        return
    save_run(output, own, recall, disagree=recall - 5)
    if "labels" in commands:
        save_labels(output, int(value(train, "--seed")))
    if "rerank" in commands:
        label = value(commands["rerank"], "--label")
        diagnostic = {"auc": 0.8, "num_matched_pairs": 9, "num_hard_pairs": 9, "depth": 50, "policy": "absent"}
        found = {"two_stage_diagnostic": diagnostic | {"method": own}, "two_stage_fusion": {"weight": 0.01}}
        run = make_run(label, int(value(train, "--seed")), joint=recall, method=own, **found)
        run["two_stage"] = [{"rule": "match"} | entry for entry in run["two_stage"]]
        (task.folder / "results").mkdir()
        (task.folder / "results" / "results.json").write_text(json.dumps(run))


@pytest.fixture
def overlay(tmp_path):
    fields = {
        "model": str(tmp_path), "root": str(tmp_path / "data"), "temperature": 0.3, "learning_rate": 3e-3,
        "num_train_epochs": 8, "loss_warmup_steps": 17, "full_view_decay_steps": 69,
    }  # fmt: skip
    path = tmp_path / "overlay.yaml"
    path.write_text(json.dumps(fields))
    return path


@pytest.fixture
def asked(monkeypatch):
    """The tasks that were left to do, by the work they belong to."""
    found = {}

    def execute(tasks, number, description):
        left = [task for task in tasks if task.next is not None]
        found.setdefault(description, []).extend(left)
        for task in left:
            leave(task)
        return {}

    monkeypatch.setattr(whole, "execute", execute)
    return found


@pytest.fixture
def study(overlay, tmp_path, monkeypatch):
    monkeypatch.setattr(whole, "report", lambda results: f"{len(results.study['runs'])} runs")
    return StudyConfig(overlay=overlay, output=tmp_path / "study", **ASKED)


def test_a_study_tunes_trains_and_reports_and_the_same_command_adds_what_is_left(asked, study, tmp_path, capsys):
    assert whole.run_study(study) == {}
    assert capsys.readouterr().out == f"{COUNTS['runs']} runs\n"
    # Two methods and an ablation, which is not tuned; three others are measured where they were asked for.
    trials = len(SEEDS) * len(("scalar", "gram"))
    assert {description: len(tasks) for description, tasks in asked.items() if tasks} == {
        "clips": 6, "new heads": 1, "tuning temperature": trials * 5, "tuning learning_rate": trials * 2,
        "tuning num_train_epochs": trials * 2, "main": 3 * 2, "repeated": 3 * 2, "views-complete": 2,
        "views-new-heads": 2, "sharing-0": 2 * 2,
    }  # fmt: skip
    for task in asked["main"]:
        measured, reranked = (
            {stage.name: stage.command for stage in task.stages}.get(name) for name in ("measure", "rerank")
        )
        assert value(task.stages[0].command, "--temperature") == "0.1"
        assert (reranked is not None) == ("no_semantic" not in task.name)
        scores = {"scalar": "all", "gram": "compared"}.get(task.name.rpartition("-")[0])
        assert ("--scores" not in measured) if scores is None else value(measured, "--scores") == scores
        assert ("--curve" in measured) == ("no_semantic" not in task.name)
    main_epochs, repeated, views = (
        float(value(asked[name][0].stages[0].command, "--num_train_epochs"))
        for name in ("main", "repeated", "views-complete")
    )
    assert repeated == main_epochs and views * 900 == pytest.approx(main_epochs * 1500)  # as many steps
    output = tmp_path / "study"
    assert {path.name for path in (output / "results").iterdir()} == {"README.md", "ranks.parquet", "study.json"}
    content = json.loads((output / "results" / "study.json").read_text())
    assert content["clips"].keys() == {"main", "repeated", "disagreeing", "reranked", "complete", "sharing-0"}
    assert [(run["experiment"], run["variant"]) for run in content["labels"]] == [
        (name, "scalar") for name in ("main", "main", "repeated", "repeated")
    ]
    assert len(content["second_stage"]) == 4 and content["tuning"]["methods"].keys() == {"scalar", "gram"}

    asked.clear()
    assert whole.run_study(replace(study, seeds=(50, 51, 52))) == {}
    left = {name: len(tasks) for name, tasks in asked.items() if tasks}
    assert left == {"main": 3, "repeated": 3, "views-complete": 1, "views-new-heads": 1}
    assert {value(task.stages[0].command, "--seed") for task in asked["main"]} == {"52"}


def test_on_another_machine_only_what_is_left_is_made(asked, study, tmp_path):
    whole.run_study(study)
    asked.clear()
    shutil.copytree(tmp_path / "study" / "measured", tmp_path / "other" / "measured")
    for lost in (tmp_path / "other" / "measured" / "sharing-0").glob("gram-51*"):
        lost.unlink()
    again = replace(study, output=tmp_path / "other")
    assert whole.run_study(again) == {}
    left = {name: [task.name for task in tasks] for name, tasks in asked.items() if tasks}
    assert left.pop("new heads") == ["new heads"]
    assert left == {"clips": ["clips sharing-0"], "sharing-0": ["gram-51"]}


def test_results_are_published_only_when_the_whole_study_is_complete():
    whole_study = StudyConfig(seeds=[50, 51, 52])  # as the command line gives them
    assert whole.measured_of(whole_study) == whole.MEASURED
    assert whole.results_of(whole_study) == whole.RESULTS
    assert whole.results_of(whole_study, is_complete=False) == Path("runs/study/results")
    part = StudyConfig(seeds=(50,))
    assert whole.measured_of(part) == Path("runs/study/measured")
    assert whole.results_of(part) == Path("runs/study/results")
    assert whole.results_of(replace(part, report_only=True)) == whole.RESULTS
