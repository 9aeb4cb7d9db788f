"""Recipes: bases, overrides, and errors that name the field."""

from pathlib import Path

import pytest

from trainer.recipe import parse_arguments, read_recipe

ROOT = Path(__file__).resolve().parents[2]


def write(folder, name, text):
    (folder / name).write_text(text)
    return folder / name


def test_own_fields_win_over_the_base_and_flags_over_both(tmp_path):
    write(
        tmp_path,
        "base.yaml",
        "model: a\nbenchmark: b\nroot: data\noutput_dir: out\nlearning_rate: 1e-4\nseed: 1\nbf16: false\n",
    )
    recipe = write(tmp_path, "own.yaml", "base: base.yaml\nseed: 2\nkeep_in_memory: true\nuse_cpu: true\n")
    run, training = parse_arguments([str(recipe), "--seed", "3", "--model", "b"])
    assert (training.seed, training.learning_rate, run.model, run.keep_in_memory) == (3, 1e-4, "b", True)


def test_the_defaults_are_the_papers(tmp_path):
    recipe = write(tmp_path, "r.yaml", "model: a\nbenchmark: b\nroot: data\noutput_dir: out\nuse_cpu: true\n")
    _, args = parse_arguments([str(recipe)])
    assert (args.objective, args.adapter, args.temperature) == ("scalar", "paper", 0.07)
    assert (args.contrastive_label_smoothing, args.cross_arity_weight, args.matching_weight) == (0.1, 1.0, 0.1)
    assert (args.full_view_probability, args.full_view_decay_steps) == (0.5, 2000)
    assert (args.learning_rate, args.weight_decay, args.adam_beta1, args.adam_beta2) == (2e-5, 0.01, 0.9, 0.98)
    assert (args.max_grad_norm, args.num_train_epochs, args.warmup_steps, args.seed) == (2.0, 5, 0.1, 50)
    assert args.lr_scheduler_type == "linear"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: a\nbenchmark: b\nroot: d\nlearning_rat: 1\n", "learning_rate"),
        ("- a\n", "mapping"),
        ("model: a\nnew_model: b\nbenchmark: b\nroot: d\noutput_dir: o\n", "not both"),
        ("model: a\nbenchmark: b\noutput_dir: o\n", "root"),
        ("model: a\nroot: d\noutput_dir: o\n", "benchmark"),
        ("model: a\nbenchmark: b\nroot: d\noutput_dir: o\nobjective: best\n", "objective"),
        ("model: a\nbenchmark: b\nroot: d\noutput_dir: o\nadapter: lora\n", "adapter"),
        ("model: a\nbenchmark: b\nroot: d\noutput_dir: o\ntemperature: 0\n", "temperature"),
        ("model: a\nbenchmark: b\nroot: d\noutput_dir: o\nfull_view_probability: 2\n", "full_view_probability"),
        ("model: a\nbenchmark: b\nroot: d\noutput_dir: o\ndataloader_drop_last: false\n", "dataloader_drop_last"),
    ],
)
def test_a_bad_recipe_is_refused_by_field(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        parse_arguments([str(write(tmp_path, "r.yaml", text))])


def test_a_missing_recipe_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_recipe(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("name", ["miniature", "miniature_backbone"])
def test_every_recipe_parses(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    run, args = parse_arguments([f"recipes/{name}.yaml", "--use_cpu", "true"])
    assert run.root and args.output_dir.startswith("runs/")
