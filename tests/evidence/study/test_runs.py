"""What the study trains: commands, settings, equal tuning."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evidence.reports.paper import VARIANTS
from evidence.study.runs import ABLATIONS, AS_SCALAR, RECIPES, WHOLE, ClipSet, Run, recipe_of, with_schedule
from evidence.study.tuning import GRID, SEEDS, settings_of, tune
from scalar_retrieval.trainer.recipe_files import read_recipe
from tests.evidence.study.made_studies import RECIPE, save_trial

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def clips(tmp_path):
    return ClipSet(tmp_path / "clips", {"train": 9, "test": 4}, {"shared": 0.6}, str(tmp_path / "backbone"))


def test_every_variant_has_a_recipe_and_a_name():
    assert RECIPES.keys() - {"triangle", "scalar_01"} == VARIANTS.keys()
    assert {*ABLATIONS, *WHOLE} < AS_SCALAR.keys() < RECIPES.keys()
    for name in RECIPES:
        assert read_recipe(recipe_of(name))["model"]


@pytest.mark.parametrize("variant", RECIPES)
def test_a_training_has_its_recipe_its_settings_and_stored_features_if_towers_are_frozen(variant, clips, tmp_path):
    run = Run(variant, 51, tmp_path / "run", tmp_path / "measured" / "run", clips, {"temperature": 0.25})
    command = run.train_command(Path("overlay.yaml"))
    script = command.index(str(ROOT / "train.py"))
    assert command[script + 1 : script + 3] == (str(ROOT / "recipes" / f"{RECIPES[variant]}.yaml"), "overlay.yaml")
    fields = dict(zip(command[script + 3 :: 2], command[script + 4 :: 2], strict=True))
    assert fields["--seed"] == "51" and fields["--output_dir"] == str(tmp_path / "run")
    assert fields.get("--direction_temperature") == ("0.25" if variant == "pmrl" else None)
    assert fields["--temperature"] == "0.25" and fields["--root"] == str(clips.root)
    assert fields["--semantic_targets"] == str(clips.targets) and fields["--model"] == clips.model
    is_frozen = read_recipe(recipe_of(variant)).get("adapter", "paper") == "paper"
    assert fields.get("--features") == (str(clips.features) if is_frozen else None)
    assert ("--stored" in run.measure_command()) == is_frozen != (variant in WHOLE)
    assert command[-2:] == ("--resume_from_checkpoint", "auto")  # as tests/trainer/test_folder.py has it


def test_what_a_run_leaves_says_what_is_left_of_it_even_without_its_folder(clips, tmp_path):
    run = Run("scalar", 50, tmp_path / "run", tmp_path / "measured" / "scalar-50", clips, {}, reranked=clips)
    overlay = Path("overlay.yaml")

    def left(run):
        return [stage.name for stage in run.task(overlay).stages]

    assert left(run) == ["train", "measure", "rerank"]
    assert left(replace(run, labelled=True)) == ["train", "measure", "labels", "rerank"]
    run.ranks.parent.mkdir()
    run.ranks.write_bytes(b"")
    assert left(run) == ["train", "rerank"]
    run.second_stage.write_text("{}")
    assert left(run) == [] and run.task(overlay).next is None
    trial = Run("scalar", 40, tmp_path / "trial", tmp_path / "measured" / "scalar-0.2-40", clips, {}, is_trial=True)
    assert left(trial) == ["train", "measure"]
    trial.numbers_file.write_text("{}")
    assert left(trial) == []


def test_clips_have_what_their_runs_read(clips):
    def stages(**counts):
        made = replace(clips, counts={"train": 0, "validation": 0, "test": 0} | counts)
        return [stage.name for stage in made.task().stages]

    assert stages(train=9, validation=2, test=4) == ["clips", "targets", "features", "towers"]
    assert stages(train=9) == ["clips", "targets", "features"] and stages(test=4) == ["clips", "towers"]


def test_other_clips_than_those_of_the_study_are_refused(clips):
    clips.check()  # none are there
    clips.root.mkdir(parents=True)
    made = {"version": 3, "shared": 0.6, "seed": 0, "complete": False, "disagree": 0.0, "num_train": 9, "num_test": 4}
    (clips.root / "miniature.json").write_text(json.dumps(made))
    clips.check()
    for other in ({"num_test": 5}, {"shared": 0.5}, {"seed": 1}, {"complete": True}, {"disagree": 0.5}):
        (clips.root / "miniature.json").write_text(json.dumps(made | other))
        with pytest.raises(ValueError, match="name another folder"):
            clips.check()


def test_the_steps_of_a_recipe_keep_their_share_of_another_number_of_epochs():
    assert with_schedule({"num_train_epochs": 8}, RECIPE) == {
        "num_train_epochs": 8, "loss_warmup_steps": 17, "full_view_decay_steps": 69
    }  # fmt: skip
    longer = with_schedule({"num_train_epochs": 16}, RECIPE)
    assert (longer["loss_warmup_steps"], longer["full_view_decay_steps"]) == (34, 138)


# Tuning --------------------------------------------------------------------------------------------------------------


def reached(variant, settings):
    """A made-up landscape: each method has its own best settings."""
    temperature, rate, epochs = {"scalar": (0.4, 3e-3, 4), "gram": (0.03, 1, 99)}[variant]
    distance = abs(settings["temperature"] - temperature) + abs(settings["learning_rate"] - rate)
    return 50 - 10 * distance - abs(settings["num_train_epochs"] - epochs) / 10


def measure(runs, description):
    for run in runs:
        save_trial(run.measured, reached(run.variant, run.settings))


def tuned(variants, clips, tmp_path, do=measure):
    return tune(variants, RECIPE, clips, tmp_path / "trainings", tmp_path / "measured", do)


def test_every_method_has_the_same_trials_from_the_middle_and_gets_its_own_best(clips, tmp_path):
    first = {}

    def do(runs, description):
        first.setdefault(description, [run.settings for run in runs])
        measure(runs, description)

    found = tuned(["no_semantic", "scalar_01", "gram"], clips, tmp_path, do)
    assert found.keys() == {"scalar", "gram"}  # what is trained as SCALAR is not tuned
    assert {(one["learning_rate"], one["num_train_epochs"]) for one in first["tuning temperature"]} == {(3e-3, 4)}
    assert found["scalar"].best() == {"temperature": 0.4, "learning_rate": 3e-3, "num_train_epochs": 4}
    inside = sum(map(len, GRID.values())) - len(GRID) + 1
    assert len(found["scalar"].trials) == inside
    assert all(len(trial.found) == len(SEEDS) for tuning in found.values() for trial in tuning.trials)
    settings = settings_of("no_semantic", found, RECIPE)
    assert settings["temperature"] == 0.4 and "query_temperature" not in settings
    assert settings_of("scalar_01", found, RECIPE) == settings | {"query_temperature": 0.1}
    written = json.loads((tmp_path / "measured" / "tuning.json").read_text())
    assert written["split"] == "validation" and written["methods"]["gram"]["chosen"] == found["gram"].best()
    values = [trial["mean_reciprocal_rank"] for trial in written["methods"]["scalar"]["trials"]]
    assert max(values) == pytest.approx(50)


def test_where_an_end_of_a_grid_is_best_one_more_step_is_tried_once(clips, tmp_path):
    found = tuned(["gram"], clips, tmp_path)["gram"]
    assert found.best() == {"temperature": 0.05, "learning_rate": 3e-2, "num_train_epochs": 16}
    assert len(found.trials) == sum(map(len, GRID.values())) - len(GRID) + 1 + 3


def test_a_trial_is_measured_on_the_validation_split_alone_with_seeds_of_its_own(clips, tmp_path):
    asked = []

    def do(runs, description):
        asked.extend(runs)
        measure(runs, description)

    tuned(["scalar"], clips, tmp_path, do)
    commands = [run.measure_command() for run in asked]
    assert all(command[command.index("--split") + 1] == "validation" for command in commands) and commands
    assert len({run.folder for run in asked}) == len(asked) and {run.seed for run in asked} == set(SEEDS)


def test_a_trial_that_failed_is_not_chosen_and_a_method_without_any_ends_the_study(clips, tmp_path):
    def all_but_one_of_the_best(runs, description):
        measure([run for run in runs if run.settings["temperature"] != 0.4 or run.seed == SEEDS[0]], description)

    some = tuned(["scalar"], clips, tmp_path / "some", all_but_one_of_the_best)
    assert some["scalar"].best()["temperature"] != 0.4
    with pytest.raises(ValueError, match=r"No training of \['scalar'\] could be measured"):
        tuned(["scalar"], clips, tmp_path / "none", lambda runs, description: None)
