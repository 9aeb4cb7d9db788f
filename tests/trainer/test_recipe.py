"""Recipes: bases, overrides, and errors that name the field."""

import re
from dataclasses import fields
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import get_args, get_type_hints

import pytest
from datasets import Dataset

from scalar_retrieval.modeling_scalar.scores_scalar import METHODS
from scalar_retrieval.trainer.__main__ import main
from scalar_retrieval.trainer.lora import PARTS, RECIPES
from scalar_retrieval.trainer.recipe import RunArguments, parse_arguments
from scalar_retrieval.trainer.recipe_files import known_fields, read_recipe
from scalar_retrieval.trainer.training_args import REFUSED, ScalarTrainingArguments

REGISTERED = """from scalar_retrieval.modeling_scalar.scores_scalar import register_method


@register_method("of_a_plugin", needs=("video",))
def score(pairs):
    return pairs.similarities.sum(0)
"""

ROOT = Path(__file__).resolve().parents[2]


def write(folder, name, text):
    (folder / name).write_text(text)
    return folder / name


def write_recipe(folder, more=""):
    """A recipe with what every one needs, and more; return its path as a command line names it."""
    needed = "model: a\nbenchmark: b\nroot: d\noutput_dir: o\nuse_cpu: true\n"
    return str(write(folder, "r.yaml", needed + more))


def test_own_fields_win_over_the_base_later_recipes_over_earlier_and_flags_over_all(tmp_path):
    write(
        tmp_path,
        "base.yaml",
        "model: a\nbenchmark: b\nroot: data\noutput_dir: out\nlearning_rate: 1e-4\nseed: 1\nbf16: false\n",
    )
    recipe = str(write(tmp_path, "own.yaml", "base: base.yaml\nseed: 2\nkeep_in_memory: true\nuse_cpu: true\n"))
    run, training = parse_arguments([recipe, "--seed", "3", "--model", "b"])
    assert (training.seed, training.learning_rate, run.model, training.keep_in_memory) == (3, 1e-4, "b", True)
    later = str(write(tmp_path, "later.yaml", "seed: 4\nreport_to: [none]\n"))
    _, training = parse_arguments([recipe, later])
    assert (training.seed, training.report_to) == (4, [])
    assert parse_arguments([later, recipe])[1].seed == 2


def test_the_defaults_are_the_papers(tmp_path):
    _, args = parse_arguments([write_recipe(tmp_path)])
    args.fill_in(has_targets=True, is_joint=False)
    papers = {
        "objective": "scalar",
        "adapter": "paper",
        "temperature": 0.07,
        "learnable_temperature": False,
        "contrastive_label_smoothing": 0.1,
        "cross_arity_weight": 1.0,
        "semantic_weight": 1.0,
        "calibration_weight": 1.0,
        "semantic_temperature": 0.5,
        "uniformity_weight": 0.1,
        "loss_warmup_steps": 500,
        "matching_weight": 0.1,
        "full_view_probability": 0.5,
        "full_view_decay_steps": 2000,
        "min_view_modalities": 2,
        "negatives_from": "scores",
        "learning_rate": 2e-5,
        "lora_learning_rate": None,
        "lr_scheduler_type": "linear",
        "weight_decay": 0.01,
        "adam_beta1": 0.9,
        "adam_beta2": 0.98,
        "max_grad_norm": 2.0,
        "num_train_epochs": 5,
        "warmup_steps": 0.1,
        "seed": 50,
    }
    assert vars(args) | papers == vars(args)


def test_the_fields_of_recipes_are_those_of_their_dataclasses():
    found = {part.name for kind in (RunArguments, ScalarTrainingArguments) for part in fields(kind) if part.init}
    assert found == set(known_fields())


def test_the_help_names_every_field_and_adapter(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    known = known_fields()
    assert all(f"--{name} " in printed for name in known)
    assert {*RECIPES, *PARTS} <= set(re.findall(r"\w+", known["adapter"]))
    assert "(default: 0.07)" in known["temperature"]


def test_plugins_are_imported_before_the_score_is_looked_up(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path, "of_a_recipe.py", REGISTERED)
    recipe = write_recipe(tmp_path, "aggregation: of_a_plugin\n")
    with pytest.raises(ValueError, match="`aggregation` must be one of"):
        parse_arguments([recipe])
    write(tmp_path, "plugins.yaml", "plugin: [json, of_a_recipe]\n")
    try:
        run, _ = parse_arguments([recipe, str(tmp_path / "plugins.yaml")])
        assert (run.aggregation, run.plugin) == ("of_a_plugin", "json,of_a_recipe")
    finally:
        METHODS.pop("of_a_plugin", None)
    with pytest.raises(ValueError, match="'no_such_module' cannot be imported"):
        parse_arguments([recipe, "--plugin", "no_such_module"])


ON_CPU = ["--use_cpu", "true", "--fp16", "false"]


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_parses(path):
    run, args = parse_arguments([str(path), *ON_CPU])
    assert run.root and args.output_dir.startswith("runs/")


def test_recipes_of_the_package_are_found_where_there_are_none(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO", logger="train")
    run, args = parse_arguments(["recipes/gram.yaml", "recipes/miniature.yaml", *ON_CPU])
    assert (run.aggregation, args.output_dir) == ("gram", "runs/miniature")
    assert run.model == str(ROOT / "recipes" / "miniature_backbone")
    assert f"recipes/gram.yaml does not exist here; using the package's {ROOT}" in caplog.text


def test_the_public_codes_recipe_differs_from_the_papers_in_its_readings_alone():
    papers, public = (read_recipe(ROOT / "recipes" / f"{name}.yaml") for name in ("scalar", "public_code"))
    changed = {name for name, value in public.items() if papers.get(name) != value}
    readings = {"lora_learning_rate", "min_view_modalities", "negatives_from"}
    assert changed == {"semantic_targets", "output_dir"} | readings
    _, args = parse_arguments([str(ROOT / "recipes" / "public_code.yaml"), *ON_CPU])
    assert args.lora_learning_rate == pytest.approx(args.learning_rate / 10)
    assert (args.min_view_modalities, args.negatives_from) == (1, "paired")


@pytest.mark.parametrize("written", ["[video, audio]", "video,audio"])
def test_what_the_cross_encoder_reads_is_a_list_or_a_text(tmp_path, written):
    run, _ = parse_arguments([write_recipe(tmp_path, f"condition_on: {written}\n")])
    assert run.model_changes == {"condition_on": ["video", "audio"]}


def test_every_field_that_may_be_none_is_null_by_a_flag(tmp_path):
    nullable = set()
    for kind in (RunArguments, ScalarTrainingArguments):
        nullable |= {name for name, hint in get_type_hints(kind).items() if NoneType in get_args(hint)}
    nullable &= set(known_fields()) - {"output_dir", *REFUSED}
    assert {"global_batch_size", "holdout", "mini_batch_size", "ddp_backend"} <= nullable
    expected = parse_arguments([write_recipe(tmp_path)])
    recipe = write_recipe(tmp_path, "global_batch_size: 256\nmini_batch_size: 2\n")
    found = parse_arguments([recipe, *(f"--{name}=null" for name in sorted(nullable))])
    for one, other in zip(expected, found, strict=True):
        for name in nullable & vars(one).keys():
            assert getattr(other, name) == getattr(one, name), name
    assert parse_arguments([recipe, "--global-batch-size=None"])[0].global_batch_size is None
    assert parse_arguments([recipe, "--global_batch_size=null", "--global_batch_size", "8"])[0].global_batch_size == 8


def test_columns_of_repeated_flags_are_all_taken_and_rename_those_of_a_recipe(tmp_path):
    recipe = write_recipe(tmp_path, "column: {caption: text, title: heading}\n")
    run, _ = parse_arguments([recipe, "--column", "path=file", "--column", "title=a=b,subtitle=said"])
    assert run.column == {"caption": "text", "title": "a=b", "path": "file", "subtitle": "said"}
    with pytest.raises(ValueError, match="'path' is given twice: 'a' and 'b'"):
        parse_arguments([recipe, "--column", "path=a", "--column", "path=b"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seed", "null"], "invalid int value: 'null'"),
        (["--holdout", "much"], "invalid float value: 'much'"),
        (["--columns", "path=a"], "unknown field `columns`. Did you mean `column`?"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_type(tmp_path, capsys, flags, message):
    with pytest.raises(SystemExit):
        parse_arguments([write_recipe(tmp_path), *flags])
    assert message in capsys.readouterr().err


# The batch ----------------------------------------------------------------------------------------------------------


def fitted(ids, size=8, processes=1, benchmark="own", required=None, drop_last=True):
    """The batch of each process after it was fitted to these clips."""
    args = SimpleNamespace(per_device_train_batch_size=size, world_size=processes, dataloader_drop_last=drop_last)
    run = RunArguments("model", benchmark, "root", global_batch_size=required)
    run.fit_batch(args, Dataset.from_dict({"video_id": list(ids)}))
    return args.per_device_train_batch_size


def test_the_batch_of_ones_own_clips_is_at_most_all_of_them(caplog):
    caplog.set_level("INFO", logger="train")
    assert fitted("abcdefghi") == fitted("abcdefgh") == 8 and not caplog.messages
    assert fitted("abcde") == 5
    assert caplog.messages == ["There are 5 training clips: a batch has 5 of them, not 8."]
    assert fitted("aabbccddee") == 5  # a clip has several captions
    assert fitted("abcde", size=4, processes=2) == 2
    assert fitted("abc", drop_last=False) == 8  # where a smaller batch counts


@pytest.mark.parametrize(
    ("ids", "options"),
    [
        ("abcde", {"benchmark": "miniature"}),
        ("abcde", {"required": 8}),
        ("a", {}),
        ("abc", {"size": 1, "processes": 4}),
    ],
)
def test_a_batch_that_is_not_ones_own_to_choose_is_refused(ids, options):
    with pytest.raises(ValueError, match=f"^{len(ids)} training examples do not fill a batch of [48]"):
        fitted(ids, **options)
