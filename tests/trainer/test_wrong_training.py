"""Wrong recipes, fields and files of a training: what was expected, and the name of what was given."""

import logging
import signal
import sys

import pytest
import torch

from scalar_retrieval.commands.errors import run_command
from scalar_retrieval.trainer.__main__ import main as main_of_package
from scalar_retrieval.trainer.recipe import parse_arguments
from scalar_retrieval.trainer.recipe_files import check_recipes
from scalar_retrieval.trainer.run import main, train
from tests.trainer.test_scalar_trainer import make_trainer

RIGHT = ["--model", "no-such-model", "--benchmark", "miniature", "--root", "data", "--use_cpu", "true"]
RIGHT += ["--output_dir", "out", "--report_to", "none"]

# Recipes: the content of recipe.yaml, the exit code, and words of the message.
RECIPES = {
    "empty": ("", 1, ["recipe.yaml", "mapping"]),
    "unclosed list": ("plugin: [a, b\n", 1, ["recipe.yaml", "line"]),
    "python object": ("seed: !!python/object/apply:os.mkdir [harm]\n", 1, ["python/object"]),
    "unknown field": ("learning_speed: 1\n", 1, ["`learning_speed`", "`learning_rate`"]),
    "word for a number": ("max_steps: ten\n", 2, ["max_steps", "ten"]),
    "unknown schedule": ("lr_scheduler_type: wavy\n", 2, ["lr_scheduler_type", "wavy"]),
    "base is missing": ("base: nowhere.yaml\n", 1, ["nowhere.yaml"]),
    "no model": ("benchmark: c\nroot: d\n", 2, ["required", "--model"]),
    "another treatment": ("on_error: ignore\n", 2, ["--on_error", "ignore", "missing"]),
}

FLAGS = {
    "flag with one dash": (["-seed", "1"], 2, ["`-seed`", "`seed`"]),
    "unknown flag beside a wrong value": (["--learning_speed", "1", "--temperature", "nan"], 2, ["`learning_speed`"]),
    "a second recipe after flags": (["more.yaml"], 2, ["more.yaml", "before the first flag"]),
    "unknown objective": (["--objective", "best"], 1, ["`objective`", "'best'", "scalar"]),
    "unknown score": (["--aggregation", "best"], 1, ["`aggregation`", "best"]),
    "number outside its range": (["--temperature", "nan"], 1, ["`temperature`", "(0, 1e+15]"]),
    "plugin that raises": (["--plugin", "raises"], 1, ["'raises'", "no such luck"]),
    "learned temperature and calibration": (["--learnable_temperature", "true"], 1, ["calibration"]),
    "push to the Hub": (["--push_to_hub", "true"], 1, ["`push_to_hub`", "`scalar publish adapter`"]),
    "evaluation without a split": (["--eval_strategy", "epoch"], 1, ["`eval_split`"]),
    "split that is never ranked": (["--eval_split", "val"], 1, ["`eval_split`", "`eval_strategy: epoch`"]),
    "metric that does not exist": (
        ["--eval_split", "val", "--eval_strategy", "epoch", "--metric_for_best_model", "loss"],
        1,
        ["`metric_for_best_model`", "'loss'", "'text_to_video_recall_at_1'"],
    ),
    "another batch": (["--global_batch_size", "7"], 1, ["`global_batch_size` is 7", "8 clips"]),
}


def check_answer(code, stderr, expected_code, words):
    """One sentence, or the parser's usage; the words; no traceback."""
    assert code == expected_code and "Traceback" not in stderr, stderr
    answer = stderr.splitlines()[-1]
    assert [word for word in words if word not in answer] == [], answer


@pytest.fixture
def called(tmp_path, monkeypatch, capfd):
    """Run train.py's main here, with the files of the table in the working folder."""
    (tmp_path / "raises.py").write_text("raise RuntimeError('no such luck')\n")
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        monkeypatch.setattr(logging, "basicConfig", lambda **options: None)
        with pytest.raises(SystemExit) as ended:
            run_command(main)
        return ended.value.code, capfd.readouterr().err

    yield call
    signal.signal(signal.SIGTERM, before)


@pytest.mark.promise("errors", "A wrong recipe is refused in one sentence")
@pytest.mark.parametrize("name", RECIPES)
def test_a_wrong_recipe_is_reported_in_one_sentence(called, tmp_path, name):
    content, code, words = RECIPES[name]
    (tmp_path / "recipe.yaml").write_text(content)
    check_answer(*called("recipe.yaml"), code, words)
    assert not (tmp_path / "harm").exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", FLAGS)
def test_a_wrong_flag_is_reported(called, name):
    fields, code, words = FLAGS[name]
    check_answer(*called(*RIGHT, *fields), code, words)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["--global_batch_size", "8"], "3 training examples do not fill a batch"),
        (["--features", "nowhere"], "no folder 'nowhere' of `features`"),
        (["--holdout", "0.001", "--report_split", "test"], "none of the 3 clips"),
    ],
)
def test_what_the_table_shows_is_said_before_anything_is_computed(tmp_path, monkeypatch, fields, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.csv").write_text("video_id,path,caption,subtitle\na,,one,1\nb,,two,2\nc,,three,3\n")
    monkeypatch.setattr("scalar_retrieval.trainer.run._semantic_targets", None)  # which is called before all else
    own = ["--benchmark", "own", "--root", "own.csv", "--per_device_train_batch_size", "8"]
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        train(*parse_arguments([*RIGHT, *own, *fields]))


def test_a_learned_weight_that_is_not_finite_is_never_saved(tmp_path):
    trainer = make_trainer(tmp_path)
    torch.nn.init.constant_(trainer.scalar_model.text_projection.modules_to_save.default.weight, float("inf"))
    with pytest.raises(ValueError, match=r"weights after step 0 are not finite, .*text_projection"):
        trainer.save_model()
    assert not any(tmp_path.rglob("*.safetensors"))


def test_a_misspelt_flag_is_reported_before_a_model_that_is_missing(called, monkeypatch):
    monkeypatch.setattr("tests.trainer.test_wrong_training.main", main_of_package)
    check_answer(*called(*RIGHT, "--learning_speed", "1"), 2, ["`learning_speed`", "`learning_rate`"])


def test_a_value_that_is_the_name_of_a_field_is_no_field(tiny_model_dir):
    check_recipes(["--model", str(tiny_model_dir), "--output_dir", "model", "--seed", "3"])
