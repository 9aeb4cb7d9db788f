"""What the study trains: commands, settings, equal tuning."""

import json
from pathlib import Path

import pytest

from evidence.reports.paper import VARIANTS
from evidence.study.runs import ABLATIONS, RECIPES, Clips, Run, recipe_of, with_schedule
from evidence.study.tuning import GRID, settings_of, tune
from tests.evidence.study.made_studies import RECIPE, save_run
from trainer.recipe_files import read_recipe

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def clips(tmp_path):
    return Clips(tmp_path / "clips", {"train": 9, "test": 4}, {"shared": 0.6}, str(tmp_path / "backbone"))


def test_every_variant_has_a_recipe_and_a_name():
    assert RECIPES.keys() - {"triangle"} == VARIANTS.keys() - {"scalar_full_ft"} and set(ABLATIONS) < set(RECIPES)
    for name in RECIPES:
        assert read_recipe(recipe_of(name))["model"]


@pytest.mark.parametrize("variant", RECIPES)
def test_a_training_has_its_recipe_its_settings_and_stored_features_as_towers_are_frozen(variant, clips, tmp_path):
    run = Run(variant, 51, tmp_path / "run", clips, {"temperature": 0.25})
    command = run.train_command(Path("overlay.yaml"))
    script = command.index(str(ROOT / "train.py"))
    assert command[script + 1 : script + 3] == (str(ROOT / "recipes" / f"{RECIPES[variant]}.yaml"), "overlay.yaml")
    fields = dict(zip(command[script + 3 :: 2], command[script + 4 :: 2], strict=True))
    assert fields["--seed"] == "51" and fields["--output_dir"] == str(tmp_path / "run")
    assert fields.get("--direction_temperature") == ("0.25" if variant == "pmrl" else None)
    assert fields["--temperature"] == "0.25" and fields["--root"] == str(clips.root)
    assert fields["--semantic_targets"] == str(clips.targets) and fields["--model"] == clips.model
    assert fields["--features"] == str(clips.features)
    assert read_recipe(recipe_of(variant)).get("adapter", "paper") == "paper"
    assert command[-2:] == ("--resume_from_checkpoint", "auto")  # as tests/trainer/test_folder.py has it


def test_other_clips_than_those_of_the_study_are_refused(clips):
    clips.check()  # none are there
    clips.root.mkdir(parents=True)
    made = {"version": 3, "shared": 0.6, "seed": 0, "complete": False, "disagree": 0.0, "num_train": 9, "num_test": 4}
    (clips.root / "miniature.json").write_text(json.dumps(made))
    clips.check()
    for other in ({"num_test": 5}, {"shared": 0.5}, {"seed": 1}, {"complete": True}, {"disagree": 0.5}):
        (clips.root / "miniature.json").write_text(json.dumps(made | other))
        with pytest.raises(ValueError, match="name another `root`"):
            clips.check()


def test_the_steps_of_a_recipe_keep_their_share_of_another_number_of_epochs():
    assert with_schedule({"num_train_epochs": 8}, RECIPE) == {
        "num_train_epochs": 8, "loss_warmup_steps": 17, "full_view_decay_steps": 69
    }  # fmt: skip
    longer = with_schedule({"num_train_epochs": 16}, RECIPE)
    assert (longer["loss_warmup_steps"], longer["full_view_decay_steps"]) == (34, 138)


# Tuning --------------------------------------------------------------------------------------------------------------


def recall(variant, settings):
    """A made-up landscape: each method has its own best temperature and rate."""
    best = {"scalar": (0.4, 1e-2), "gram": (0.1, 1e-3)}[variant]
    off = [settings["temperature"] != best[0], settings["learning_rate"] != best[1]]
    return 50 - 10 * off[0] - 5 * off[1] - settings["num_train_epochs"] / 2


def measure(runs, description):
    for run in runs:
        save_run(run.folder, run.variant, recall(run.variant, run.settings))


def test_every_method_has_the_same_trials_and_gets_its_own_best(clips, tmp_path):
    found = tune(["no_semantic", "gram"], RECIPE, clips, tmp_path, measure)
    assert found.keys() == {"scalar", "gram"}  # an ablation is trained as SCALAR is
    assert found["scalar"].best() == {"temperature": 0.4, "learning_rate": 1e-2, "num_train_epochs": 2}
    assert found["gram"].best() == {"temperature": 0.1, "learning_rate": 1e-3, "num_train_epochs": 2}
    counts = {len(tuning.trials) for tuning in found.values()}
    assert counts == {sum(map(len, GRID.values())) - len(GRID) + 1}
    assert all(trial.recall_at_1 is not None for tuning in found.values() for trial in tuning.trials)
    assert settings_of("no_semantic", found, RECIPE)["learning_rate"] == 1e-2
    written = json.loads((tmp_path / "tuning.json").read_text())
    assert written["split"] == "validation" and written["methods"]["gram"]["chosen"] == found["gram"].best()


def test_a_trial_is_measured_on_the_validation_split_alone(clips, tmp_path):
    asked = []

    def do(runs, description):
        asked.extend(runs)
        measure(runs, description)

    tune(["scalar"], RECIPE, clips, tmp_path, do)
    commands = [run.measure_command() for run in asked]
    assert all(command[command.index("--split") + 1] == "validation" for command in commands) and commands
    assert len({run.folder for run in asked}) == len(asked) and {run.seed for run in asked} == {50}


def test_a_trial_that_failed_is_not_chosen_and_a_method_without_any_ends_the_study(clips, tmp_path):
    def all_but_the_best(runs, description):
        measure([run for run in runs if run.settings["temperature"] != 0.4], description)

    assert tune(["scalar"], RECIPE, clips, tmp_path / "some", all_but_the_best)["scalar"].best()["temperature"] != 0.4
    with pytest.raises(ValueError, match=r"No training of \['scalar'\] could be measured"):
        tune(["scalar"], RECIPE, clips, tmp_path / "none", lambda runs, description: None)
