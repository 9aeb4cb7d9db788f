"""The whole study, with the commands it starts replaced by what they leave: what is run, in which order, and shown."""

import json

import pytest

from recipes.study import jobs
from recipes.study.__main__ import main
from tests.eval.reports.made_runs import make_run
from tests.recipes.study.made_studies import save

RECALLS = {"scalar": 30.0, "gram": 20.0, "no_semantic": 25.0}
ASKED = ("--variants", "scalar", "gram", "no_semantic", "--seeds", "50", "51", "--shared", "0")


def value(command, option):
    return command[command.index(option) + 1]


def leave(task):
    """What the commands of a task leave."""
    commands = {stage.name: stage.command for stage in task.stages}
    if "clips" in commands:
        made = {"shared": float(value(commands["clips"], "--shared"))}
        made |= {
            f"num_{name}": int(value(commands["clips"], f"--num-{name}")) for name in ("train", "validation", "test")
        }
        for stage in task.stages:
            stage.ends_with.parent.mkdir(parents=True, exist_ok=True)
            stage.ends_with.write_text(json.dumps(made))
        return
    train, label = commands["train"], value(commands["evaluate"], "--label")
    method = "gram" if label == "gram" else "scalar"
    recall = RECALLS.get(label, 28.0) - 5 * (value(train, "--temperature") != "0.15")
    diagnostic = {"auc": 0.8, "num_matched_pairs": 9, "num_hard_pairs": 9, "depth": 50, "policy": "absent"}
    found = {"two_stage_diagnostic": diagnostic | {"method": method}, "two_stage_fusion": {"weight": 0.01}}
    run = make_run(label, int(value(train, "--seed")), joint=recall, method=method, **found)
    run["two_stage"] += [entry | {"rule": "fused", "weight": 0.01} for entry in run["two_stage"]]
    run["two_stage"] = [{"rule": "match"} | entry for entry in run["two_stage"]]
    save(task.folder, run, [True, False])


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

    monkeypatch.setattr(jobs, "execute", execute)
    return found


def test_a_study_tunes_trains_and_reports_and_the_same_command_adds_what_is_left(asked, overlay, tmp_path, capsys):
    command = ["--overlay", str(overlay), "--output", str(tmp_path / "study"), *ASKED]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert list(asked) == [
        "clips", "tuning temperature", "tuning learning_rate", "tuning num_train_epochs", "runs", "sharing",
        "second stage",
    ]  # fmt: skip
    # Two methods and an ablation, which is not tuned; the main clips, and those of another degree of sharing.
    counts = {description: len(tasks) for description, tasks in asked.items()}
    assert list(counts.values()) == [2, 2 * 4, 2 * 2, 2 * 2, 3 * 2, 2 * 2, 3 * 2]
    for task in asked["runs"]:
        assert value(task.stages[0].command, "--temperature") == "0.15"
        reranks = "--fusion-split" in task.stages[1].command
        assert reranks != ("--no-two-stage" in task.stages[1].command) and reranks != ("no_semantic" in task.name)
    for title in (
        "What was tried",
        "SCALAR minus each variant",
        "What the second stage depends on",
        "modalities of a clip share",
    ):
        assert title in text
    assert (tmp_path / "study" / "report" / "sharing.png").is_file()

    asked.clear()
    assert main([*command, "--seeds", "50", "51", "52"]) == 0
    assert {name: len(tasks) for name, tasks in asked.items() if tasks} == {"runs": 3}
    assert {value(task.stages[0].command, "--seed") for task in asked["runs"]} == {"52"}


def test_clips_of_another_study_are_refused_before_anything_is_done(asked, overlay, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "miniature.json").write_text(json.dumps({"shared": 0.6, "num_train": 12}))
    with pytest.raises(ValueError, match="name another `root`"):
        main(["--overlay", str(overlay), "--output", str(tmp_path / "study"), *ASKED])
    assert not asked
