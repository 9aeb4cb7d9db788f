"""Wrong inputs of training and of the commands that prepare it, each with its exit code and words of the answer.

Codes: 1 for what the user can mend, 2 for usage. Recipes and flags that fail before anything is loaded stand apart:
they cost milliseconds.
"""

import json
import pickle
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from eval.benchmarks.registry import load_benchmark
from trainer.identity import rows_sha256

ROOT = Path(__file__).resolve().parents[2]
HUGE = "1" + "0" * 400
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [*{before}, *{before}, *{before}, *{before}, *{before}, *{before}, *{before}, *{before}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

RIGHT = "model: a\nbenchmark: b\nroot: c\n"

# Recipes: content of recipe.yaml, exit code, words of the message. `{...}` name files beside it; see OTHER_FILES.
RECIPES = {
    "empty": ("", 1, ["recipe.yaml", "mapping", "nothing"]),
    "comment alone": ("# nothing\n", 1, ["recipe.yaml", "nothing"]),
    "number": ("5\n", 1, ["mapping", "int"]),
    "text": ("seed 5\n", 1, ["mapping", "str"]),
    "list": ("- seed: 5\n", 1, ["mapping", "list"]),
    "two documents": ("seed: 5\n---\nseed: 6\n", 1, ["recipe.yaml", "document"]),
    "unclosed list": ("plugin: [a, b\n", 1, ["recipe.yaml", "line"]),
    "unclosed mapping": ("lr_scheduler_kwargs: {a: 1\n", 1, ["recipe.yaml", "line"]),
    "unclosed quote": ('model: "a\n', 1, ["recipe.yaml", "line"]),
    "tab": ("seed: 5\n\tmodel: a\n", 1, ["recipe.yaml", "line 2"]),
    "bad indent": ("seed: 5\n  model: a\n", 1, ["recipe.yaml", "line 2"]),
    "no space after colon": ("seed:5\nmodel: a\n", 1, ["recipe.yaml", "line"]),
    "control character": ("seed: 5\nmodel: \x07\n", 1, ["recipe.yaml"]),
    "python object": ("seed: !!python/object/apply:os.mkdir [harm]\n", 1, ["line 1", "python/object"]),
    "python name": ("model: !!python/name:os.system\n", 1, ["line 1"]),
    "unknown tag": ("model: !model a\n", 1, ["line 1", "!model"]),
    "unknown alias": ("model: *a\n", 1, ["line 1", "alias"]),
    "alias": ("model: &a x\nbenchmark: *a\n", 1, ["line 2", "aliases"]),
    "many aliases": (BOMB, 1, ["line 2", "aliases"]),
    "merged": ("a: &a {seed: 1}\n<<: *a\n", 1, ["recipe.yaml", "line 2"]),
    "alias of itself": ("plugin: &a [*a]\n", 1, ["aliases"]),
    "field twice": ("seed: 5\nseed: 6\n", 1, ["line 2", "`seed` is given twice"]),
    "field twice in a mapping": ("lr_scheduler_kwargs: {a: 1, a: 2}\n", 1, ["`a` is given twice"]),
    "number as field": ("5: 6\n", 1, ["recipe.yaml", "unknown field `5`"]),
    "null as field": ("null: 6\n", 1, ["recipe.yaml", "unknown field"]),
    "truth as field": ("yes: 6\n", 1, ["recipe.yaml", "unknown field"]),
    "list as field": ("[a, b]: 6\n", 1, ["line 1", "unhashable key"]),
    "question": ("? {a: b}\n: 6\n", 1, ["line 1", "unhashable key"]),
    "deep lists": ("plugin: " + "[" * 3000 + "]" * 3000 + "\n", 1, ["nested too deeply"]),
    "deep mappings": ("lr_scheduler_kwargs: " + "{a: " * 3000 + "1" + "}" * 3000 + "\n", 1, ["nested too deeply"]),
    "not UTF-8": (b"model: caf\xe9\n", 1, ["recipe.yaml", "UTF-8"]),
    "UTF-16": ("seed: 5\n".encode("utf-16"), 1, ["recipe.yaml", "UTF-8"]),
    "binary": (bytes(range(256)) * 8, 1, ["recipe.yaml"]),
    "nulls": (bytes(4096), 1, ["recipe.yaml"]),
    "unknown field": ("learning_speed: 1\n", 1, ["unknown field `learning_speed`", "learning_rate"]),
    "other case": ("Seed: 1\n", 1, ["unknown field `Seed`", "`seed`"]),
    "dashes": ("learning-rate: 1\n", 1, ["unknown field", "`learning_rate`"]),
    "flag as field": ("--seed: 1\n", 1, ["unknown field"]),
    "empty field": ('"": 1\n', 1, ["unknown field"]),
    "private field": ("_n_gpu: 4\n", 1, ["unknown field `_n_gpu`"]),
    "list for a number": ("learning_rate: [1]\n", 1, ["`learning_rate`", "single value", "[1]"]),
    "empty list for a number": ("seed: []\n", 1, ["`seed`", "[]"]),
    "mapping for a number": ("learning_rate: {a: 1}\n", 1, ["`learning_rate`", "{'a': 1}"]),
    "mapping for a text": ("model: {a: 1}\n", 1, ["`model`", "{'a': 1}"]),
    "list for a truth": ("fp16: [true]\n", 1, ["`fp16`", "[True]"]),
    "word for a number": ('max_steps: "ten"\n', 1, ["max_steps", "int", "ten"]),
    "word for a real number": ("learning_rate: fast\n", 1, ["learning_rate", "float", "fast"]),
    "word for a truth": ("fp16: perhaps\n", 1, ["fp16", "perhaps"]),
    "number for a truth": ("keep_in_memory: 7\n", 1, ["keep_in_memory", "7"]),
    "fraction for a whole number": ("max_steps: 1.5\n", 1, ["max_steps", "1.5"]),
    "truth for a number": ("max_steps: true\n", 1, ["max_steps", "true"]),
    "date for a number": ("seed: 2024-01-01\n", 1, ["seed", "2024-01-01"]),
    "empty text for a number": ('seed: ""\n', 1, ["seed", "''"]),
    "unknown schedule": ("lr_scheduler_type: wavy\n", 1, ["lr_scheduler_type", "wavy"]),
    "unknown optimizer": ("optim: best\n", 1, ["optim", "best"]),
    "unknown strategy": ("save_strategy: sometimes\n", 1, ["sometimes"]),
    "huge whole number": (f"{RIGHT}max_steps: {HUGE}\n", 1, ["`max_steps`", "401 digits"]),
    "huger whole number": (f"max_steps: {'9' * 5000}\n", 1, ["recipe.yaml", "digits"]),
    "huge real number": (f"{RIGHT}learning_rate: {HUGE}\n", 1, ["`learning_rate`", "inf"]),
    "not a number": (f"{RIGHT}learning_rate: .nan\n", 1, ["`learning_rate`", "nan"]),
    "infinite": (f"{RIGHT}learning_rate: .inf\n", 1, ["`learning_rate`", "inf"]),
    "base is a list": ("base: [base.yaml]\n", 1, ["`base`", "recipe.yaml", "['base.yaml']"]),
    "base is a number": ("base: 5\n", 1, ["`base`", "5"]),
    "base is a mapping": ("base: {a: 1}\n", 1, ["`base`"]),
    "base is empty": ('base: ""\n', 1, ["`base`", "''"]),
    "base is false": ("base: false\n", 1, ["`base`", "False"]),
    "base is a folder": ("base: folder\n", 1, ["folder", "there is a folder"]),
    "base is missing": ("base: nowhere.yaml\n", 1, ["nowhere.yaml", "no file"]),
    "base is itself": ("base: recipe.yaml\n", 1, ["recipe.yaml", "based on each other"]),
    "base is itself by another way": ("base: ../{folder}/recipe.yaml\n", 1, ["based on each other"]),
    "base in a circle": ("base: circle.yaml\n", 1, ["circle.yaml", "based on each other"]),
    "base with an unknown field": ("base: unknown.yaml\n", 1, ["unknown.yaml", "`speed`"]),
    "base that is broken": ("base: broken.yaml\n", 1, ["broken.yaml", "line 2"]),
    "base that is no text": ("base: binary.yaml\n", 1, ["binary.yaml", "UTF-8"]),
    "model and new_model": ("model: a\nnew_model: b\nbenchmark: c\nroot: d\n", 1, ["either `model`", "`new_model`"]),
    "neither model": ("benchmark: c\nroot: d\n", 1, ["either `model`"]),
    "null for the model": ("model: null\nbenchmark: c\nroot: d\n", 1, ["either `model`"]),
    "no benchmark": ("model: a\nroot: d\n", 1, ["`benchmark` is required"]),
    "no root": ("model: a\nbenchmark: c\n", 1, ["`root` is required"]),
}

OTHER_FILES = {
    "circle.yaml": b"base: recipe.yaml\n",
    "unknown.yaml": b"speed: 1\n",
    "broken.yaml": b"plugin: [\n",
    "binary.yaml": b"\xff\xfe\x00",
    "few.yaml": b"model: a\n",
    "word.yaml": b"num_train_epochs: ten\nkeep_in_memory: true\n",
    "raises.py": b"raise RuntimeError('no such luck')\n",
    "unparsable.py": b"def f(:\n",
    "divides.py": b"1 / 0\n",
    "wrong_name.py": b"from modeling_scalar.scores_scalar import register_method\n"
    b"@register_method('scalar')\ndef mine(pairs):\n    return pairs\n",
    "wrong_needs.py": b"from modeling_scalar.scores_scalar import register_method\n"
    b"@register_method('mine', needs=('smell',))\ndef mine(pairs):\n    return pairs\n",
}

# Numbers that are not in their range: all of them are refused by the name of the field.
NUMBERS = [
    *[("learning_rate", value) for value in ("inf", "nan", "-inf", "-1", "-1e-9")],
    *[("matching_weight", value) for value in ("nan", "inf", "-0.1")],
    *[("temperature", value) for value in ("0", "-1", "nan", "inf")],
    ("direction_temperature", "0"),
    *[("semantic_temperature", value) for value in ("0", "nan")],
    *[("uniformity_scale", value) for value in ("0", "nan", "inf")],
    *[("contrastive_label_smoothing", value) for value in ("1", "-0.1", "nan")],
    *[
        (name, value)
        for name in ("cross_arity_weight", "semantic_weight", "calibration_weight", "uniformity_weight")
        for value in ("nan", "-1")
    ],
    *[("full_view_probability", value) for value in ("1.1", "-0.1", "nan")],
    *[("loss_warmup_steps", "-1"), ("full_view_decay_steps", "-1"), ("full_view_decay_steps", HUGE)],
    *[("weight_decay", value) for value in ("-1", "nan", "inf")],
    *[("adam_beta1", value) for value in ("1", "-0.1", "nan")],
    *[("adam_beta2", value) for value in ("1", "2", "nan")],
    *[("adam_epsilon", value) for value in ("0", "-1", "nan", "inf")],
    *[("max_grad_norm", value) for value in ("-1", "nan", "inf")],
    *[("num_train_epochs", value) for value in ("0", "-1", "nan", "inf")],
    *[("max_steps", value) for value in ("0", "-2", HUGE)],
    *[("warmup_steps", value) for value in ("-1", "nan", "inf")],
    *[("per_device_train_batch_size", value) for value in ("0", "-4", HUGE)],
    *[("per_device_eval_batch_size", "0"), ("eval_gallery_batch_size", "0"), ("mini_batch_size", "0")],
    *[("gradient_accumulation_steps", "0"), ("gradient_accumulation_steps", "-1"), ("global_batch_size", "0")],
    *[("logging_steps", value) for value in ("0", "-1", "nan")],
    *[("save_steps", value) for value in ("0", "-1", "nan")],
    *[("eval_steps", "0"), ("eval_steps", "nan"), ("save_total_limit", "0"), ("eval_delay", "-1")],
    *[("seed", "-1"), ("seed", HUGE), ("data_seed", "-1"), ("dataloader_num_workers", "-1")],
    *[("dataloader_prefetch_factor", "0"), ("label_smoothing_factor", "nan"), ("neftune_noise_alpha", "nan")],
]

# Flags after a command line that is right but for a model that is not there.
FLAGS = {
    "unknown flag": (["--learning_speed", "1"], 2, ["usage", "learning_speed", "--learning_rate"]),
    "another program's flag": (["--device", "cpu"], 2, ["usage", "--device"]),
    "shortened flag": (["--learning", "1"], 2, ["usage", "--learning"]),
    "a second recipe after flags": (["more.yaml"], 2, ["usage", "more.yaml", "before the first flag"]),
    "flag without a value": (["--seed"], 2, ["--seed", "expected one argument"]),
    "word for a number": (["--seed", "five"], 2, ["--seed", "five"]),
    "fraction for a whole number": (["--seed", "0.5"], 2, ["--seed", "0.5"]),
    "unknown schedule": (["--lr_scheduler_type", "wavy"], 2, ["wavy"]),
    "unknown truth": (["--fp16", "perhaps"], 2, ["perhaps"]),
    "unknown objective": (["--objective", "best"], 1, ["`objective`", "'best'", "scalar"]),
    "unknown adapter": (["--adapter", "lora"], 1, ["`adapter`", "'lora'", "paper"]),
    "unknown score": (["--aggregation", "best"], 1, ["`aggregation`", "best"]),
    "unknown on_error": (["--on_error", "ignore"], 1, ["`on_error`", "'ignore'"]),
    "features of a new model": (["--model=", "--new_model", "a", "--features", "f"], 1, ["`model`"]),
    "plugin that is not there": (["--plugin", "no_such_module"], 1, ["plugin", "no_such_module"]),
    "plugin without a name": (["--plugin", ","], 1, ["plugin"]),
    "plugin that raises": (["--plugin", "raises"], 1, ["'raises'", "no such luck"]),
    "plugin that divides by zero": (["--plugin", "divides"], 1, ["'divides'", "ZeroDivisionError"]),
    "plugin that is no Python": (["--plugin", "unparsable"], 1, ["'unparsable'", "SyntaxError"]),
    "plugin with a name that is taken": (["--plugin", "wrong_name"], 1, ["wrong_name", "scalar"]),
    "plugin with an unknown need": (["--plugin", "wrong_needs", "--aggregation", "mine"], 1, ["mine", "smell"]),
    "learned temperature and calibration": (["--learnable_temperature", "true"], 1, ["calibration"]),
    "temperature without use": (
        ["--learnable_temperature", "true", "--objective", "pmrl"],
        1,
        ["no temperature to learn"],
    ),
    "torch_compile": (["--torch_compile", "true"], 1, ["compile_towers"]),
    "fp16 and bf16": (["--fp16", "true", "--bf16", "true"], 1, ["fp16 and bf16"]),
    "prefetch without workers": (["--dataloader_prefetch_factor", "2"], 1, ["dataloader_prefetch_factor"]),
    "evaluation without a step": (["--logging_steps", "1.5"], 1, ["logging_steps"]),
    "best model without evaluation": (["--load_best_model_at_end", "true"], 1, ["strategy"]),
    "schedule options that are no JSON": (["--lr_scheduler_kwargs", "{a"], 1, ["lr_scheduler_kwargs"]),
    "deepspeed file that is not there": (["--deepspeed", "nowhere.json"], 1, ["deepspeed"]),
    "accelerator file that is not there": (["--accelerator_config", "nowhere.json"], 1, ["nowhere.json"]),
    "recipe that is not there": (None, 1, ["nowhere.yaml", "no file"]),
}

# What is read after the arguments: a function changes a copy of something good, in a folder of its own, and returns
# the command line. `run` is a tiny training, `folder` where it may write; see tests/trainer/conftest.py.


def _copied(run, folder, name):
    target = folder / name
    shutil.copytree(run.folder / name, target)
    return target


def _features(change):
    def make(run, folder):
        features = _copied(run, folder, "features")
        change(features)
        return run.command(folder / "out", "--features", features)

    return make


def _described(change):
    def edit(features):
        path = features / "features.json"
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return _features(edit)


def _targets(change):
    def make(run, folder):
        path = folder / "targets.safetensors"
        tensors = {
            "neighbors": torch.tensor([[1], [0]] * 6, dtype=torch.int32),
            "cosines": torch.full((12, 1), 0.5),
            "clip_of_row": torch.arange(12, dtype=torch.int32),
        }
        rows = load_benchmark("miniature", run.folder / "data", "train")
        metadata = {"rows_sha256": rows_sha256(rows["video_id"], rows["caption"])}
        change(path, tensors, metadata)
        return run.command(folder / "out", "--semantic_weight", "1", "--semantic_targets", path)

    return make


def _write(path, tensors, metadata, **changes):
    save_file(tensors | changes, path, metadata=metadata)


def _cut(path, share=0.5):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def _pickled(path):
    path.write_bytes(pickle.dumps({"a": 1}))


def _described_model(text):
    def make(run, folder):
        content = (ROOT / "recipes" / "miniature_model.yaml").read_text() if callable(text) else text
        (folder / "model.yaml").write_text(text(content) if callable(text) else content)
        fields = ["--new_model", "model.yaml", "--benchmark", "miniature", "--root", run.folder / "data"]
        fields += ["--objective", "pathways", "--adapter", "full", "--matching_weight", "0", "--max_steps", "1"]
        return ["train.py", *fields, "--output_dir", folder / "out", "--use_cpu", "true"]

    return make


def _train(*fields, **options):
    return lambda run, folder: run.command(folder / "out", *fields, **options)


def _cache(*fields):
    def make(run, folder):
        given = ["--model", run.folder / "model", "--benchmark", "miniature", "--root", run.folder / "data"]
        return ["-m", "trainer.cache_features", *given, "--output", folder / "made", *fields]

    return make


def _make_targets(*fields):
    def make(run, folder):
        given = ["--benchmark", "miniature", "--root", run.folder / "data", "--encoder", "light"]
        return ["-m", "trainer.semantic_targets", *given, "--output", folder / "made.safetensors", *fields]

    return make


def _study(*fields):
    return lambda run, folder: ["-m", "recipes.study", "--output", folder / "study", *fields]


def _in_the_way(run, folder):
    (folder / "out").write_text("a file")
    return run.command(folder / "out")


def _held(run, folder):
    (folder / "out").mkdir()
    (folder / "out" / "recipe.json").write_text("{}")
    return run.command(folder / "out")


def _held_badly(run, folder):
    (folder / "out").mkdir()
    (folder / "out" / "recipe.json").write_text("[")
    return run.command(folder / "out", "--resume_from_checkpoint", "last")


READ = {
    "root that is not there": (_train("--root", "nowhere"), 1, ["nowhere"]),
    "root that is a file": (
        lambda run, f: run.command(f / "out", "--root", run.folder / "model" / "config.json"),
        1,
        [],
    ),
    "unknown benchmark": (_train("--benchmark", "best"), 1, ["best"]),
    "unknown split": (_train("--train_split", "practice"), 1, ["practice"]),
    "unknown split of evaluation": (_train("--eval_split", "practice"), 1, ["practice"]),
    "model that is not there": (_train("--model", "nowhere"), 1, ["nowhere"]),
    "model without a name": (_train("--model="), 1, []),
    "model that is a file": (
        lambda run, f: run.command(f / "out", "--model", run.folder / "model" / "config.json"),
        1,
        [],
    ),
    "unknown tracker": (_train("--report_to", "carrier_pigeon"), 1, ["carrier_pigeon"]),
    "batch larger than the data": (_train("--per_device_train_batch_size", "64"), 1, ["12 training examples", "64"]),
    "other global batch": (_train("--global_batch_size", "8"), 1, ["`global_batch_size` is 8", "4 clips"]),
    "targets that are not there": (
        _train("--semantic_weight", "1", "--semantic_targets", "nowhere.safetensors"),
        1,
        ["nowhere.safetensors"],
    ),
    "checkpoint that is not there": (_train("--resume_from_checkpoint", "nowhere"), 1, ["nowhere", "`last`"]),
    "no last checkpoint": (_train("--resume_from_checkpoint", "last"), 1, ["no complete checkpoint"]),
    "checkpoint that is a file": (
        lambda run, f: run.command(f / "out", "--resume_from_checkpoint", run.folder / "model" / "config.json"),
        1,
        ["no checkpoint at"],
    ),
    "checkpoint that is a model": (
        lambda run, f: run.command(f / "out", "--resume_from_checkpoint", run.folder / "model"),
        1,
        ["checkpoint.json is missing"],
    ),
    "output that is a file": (_in_the_way, 1, ["`output_dir`", "is a file"]),
    "output below a file": (
        lambda run, f: run.command(run.folder / "model" / "config.json" / "out"),
        1,
        ["config.json"],
    ),
    "output that holds a run": (_held, 1, ["already holds a run", "recipe.json"]),
    "output with a broken recipe.json": (_held_badly, 1, ["recipe.json", "JSON"]),
    "output without a name": (lambda run, f: run.command(""), 1, []),
    "tuned towers and features": (_train("--adapter", "full"), 1, ["trainable parameters", "paper"]),
    "features that are not there": (_train("--features", "nowhere", features=False), 1, ["nowhere", "cache_features"]),
    "features without description": (_features(lambda f: (f / "features.json").unlink()), 1, ["no finished features"]),
    "features described by a list": (
        _features(lambda f: (f / "features.json").write_text("[]")),
        1,
        ["features.json"],
    ),
    "features described by half": (_features(lambda f: _cut(f / "features.json")), 1, ["features.json", "JSON"]),
    "features with deep JSON": (
        _features(lambda f: (f / "features.json").write_text("[" * 10**5)),
        1,
        ["features.json"],
    ),
    "features of another version": (_described(lambda c: c.update(version=7)), 1, ["version 2, got 7"]),
    "features without shapes": (_described(lambda c: c.pop("shapes")), 1, ["is not a valid description of features"]),
    "features of no views": (_described(lambda c: c.update(views=0)), 1, ["is not a valid description of features"]),
    "features of text views": (
        _described(lambda c: c.update(views="two")),
        1,
        ["is not a valid description of features"],
    ),
    "features of another model": (
        _described(lambda c: c["sha256"].update(towers="0" * 64)),
        1,
        ["do not fit this run", "vision and audio towers"],
    ),
    "features of other clips": (_described(lambda c: c["sha256"].update(rows="0" * 64)), 1, ["the clips"]),
    "features of another processor": (_described(lambda c: c["sha256"].update(processor="")), 1, ["the settings"]),
    "features with other columns": (
        _described(lambda c: c["shapes"].pop("audio_pooled")),
        1,
        ["features.arrow", "audio_pooled"],
    ),
    "features without a table": (_features(lambda f: (f / "features.arrow").unlink()), 1, ["features.arrow"]),
    "features cut off": (_features(lambda f: _cut(f / "features.arrow")), 1, ["features.arrow", "bytes"]),
    "features that are no table": (
        _features(lambda f: (f / "features.arrow").write_bytes(bytes((f / "features.arrow").stat().st_size))),
        1,
        ["features.arrow is damaged"],
    ),
    "targets cut off": (_targets(lambda p, t, m: (_write(p, t, m), _cut(p, 0.9))), 1, ["targets", "truncated"]),
    "empty targets": (_targets(lambda p, t, m: p.write_bytes(b"")), 1, ["targets", "truncated or damaged"]),
    "pickled targets": (_targets(lambda p, t, m: _pickled(p)), 1, ["targets", "damaged"]),
    "targets of other rows": (_targets(lambda p, t, m: _write(p, t, {"rows_sha256": ""})), 1, ["differ"]),
    "targets without origin": (_targets(lambda p, t, m: _write(p, t, {})), 1, ["must have the tensors"]),
    "targets of another dtype": (
        _targets(lambda p, t, m: _write(p, t, m, cosines=t["cosines"].double())),
        1,
        ["must have the tensors"],
    ),
    "other tensors": (
        _targets(lambda p, t, m: _write(p, {"a": torch.ones(2)}, m)),
        1,
        ["must have the tensors", "'a'"],
    ),
    "targets that name other clips": (
        _targets(lambda p, t, m: _write(p, t, m, neighbors=t["neighbors"] + 90)),
        1,
        ["clips that do not exist"],
    ),
    "targets with NaN": (
        _targets(lambda p, t, m: _write(p, t, m, cosines=t["cosines"] * float("nan"))),
        1,
        ["cosines outside [-1, 1]"],
    ),
    "description that is not there": (_train("--model=", "--new_model", "nowhere.yaml"), 1, ["`model`"]),
    "empty description": (_described_model(""), 1, ["model.yaml", "nothing"]),
    "description that is a list": (_described_model("- a\n"), 1, ["model.yaml", "mapping"]),
    "description with one section": (_described_model("model: {}\n"), 1, ["model.yaml", "sections"]),
    "description with another section": (_described_model(lambda t: t + "more: 1\n"), 1, ["sections", "more"]),
    "description with a section twice": (
        _described_model(lambda t: t + "vocab_size: 1\n"),
        1,
        ["vocab_size", "twice"],
    ),
    "vocabulary of a word": (_described_model(lambda t: t.replace("2000", "many")), 1, ["`vocab_size`", "'many'"]),
    "vocabulary of nothing": (_described_model(lambda t: t.replace("2000", "0")), 1, ["`vocab_size`", "0"]),
    "vocabulary too small": (_described_model(lambda t: t.replace("2000", "9")), 1, ["`vocab_size`", "letters"]),
    "processor that is a list": (
        _described_model(lambda t: t.replace("{num_frames: 4, num_train_frames: 3}", "[1]")),
        1,
        ["`processor`", "mapping"],
    ),
    "unknown field of the model": (
        _described_model(lambda t: t.replace("projection_dim: 96", "projection_size: 96")),
        1,
        ["`model`", "projection_size"],
    ),
    "word for a size": (
        _described_model(lambda t: t.replace("dim: 96", "dim: wide")),
        1,
        ["`model`", "projection_dim"],
    ),
    "size of nothing": (_described_model(lambda t: t.replace("dim: 96", "dim: 0")), 1, ["`model`"]),
    "negative size": (_described_model(lambda t: t.replace("dim: 96", "dim: -96")), 1, ["`model`"]),
    "enormous size": (
        _described_model(lambda t: t.replace("dim: 96", "dim: 100000000000000")),
        1,
        ["`model`"],
    ),
    "two image sizes": (
        _described_model(lambda t: t.replace("{image_size: 64,", "{image_size: 32,")),
        1,
        ["image sizes differ", "64", "32"],
    ),
    "unknown field of a tower": (
        _described_model(lambda t: t.replace("    patch_size: 16", "    patch: 16")),
        1,
        ["`patch`", "`patch_size`"],
    ),
    "unknown setting of the feature extractor": (
        _described_model(lambda t: t.replace("segment_length", "length")),
        1,
        ["`feature_extractor`", "`length`"],
    ),
    "heads that do not divide": (
        _described_model(lambda t: t.replace("num_attention_heads: 4", "num_attention_heads: 7")),
        1,
        ["`model`", "7"],
    ),
    "model without its text tower": (
        _described_model(lambda t: t.replace("  text_config:", "  other_config:")),
        1,
        ["`model`", "text_config"],
    ),
    "image processor of no size": (
        _described_model(lambda t: t.replace("{image_size: 64,", "{image_size: 0,")),
        1,
        ["image"],
    ),
    "unknown setting of the image processor": (
        _described_model(lambda t: t.replace("{image_size: 64,", "{picture_size: 64,")),
        1,
        ["`image_processor`", "`picture_size`", "`image_size`"],
    ),
    "unknown setting of the processor": (
        _described_model(lambda t: t.replace("num_train_frames", "num_training_frames")),
        1,
        ["processor"],
    ),
    "features of views 0": (_cache("--views", "0"), 1, ["`views`", "at least 1"]),
    "features of batches 0": (_cache("--batch-size", "0"), 1, ["`batch_size`", "at least 1"]),
    "features by no worker": (_cache("--num-workers", "0"), 1, ["`num_workers`"]),
    "features in another dtype": (_cache("--dtype", "int8"), 2, ["int8"]),
    "features of a word of views": (_cache("--views", "two"), 2, ["--views", "integer"]),
    "features by an unknown flag": (_cache("--speed", "1"), 2, ["--speed"]),
    "features of no model": (_cache("--model", "nowhere"), 1, ["nowhere"]),
    "features of no benchmark": (_cache("--benchmark", "best"), 1, ["best"]),
    "features of no split": (_cache("--split", "practice"), 1, ["practice"]),
    "features on an unknown device": (_cache("--device", "abacus"), 1, ["abacus"]),
    "features on a device that is not here": (_cache("--device", "xpu"), 1, ["xpu"]),
    "features into a file": (
        lambda run, f: _cache("--output", run.folder / "model" / "config.json")(run, f),
        1,
        ["config.json", "is a file"],
    ),
    "features into other features": (
        lambda run, f: _cache("--output", _copied(run, f, "features"), "--views", "1")(run, f),
        1,
        ["holds other features", "views"],
    ),
    "features for the disk of another": (_cache("--views", "100000000"), 1, ["GB", "free"]),
    "targets of no neighbours": (_make_targets("--neighbors", "0"), 1, ["`neighbors`"]),
    "targets of batches 0": (_make_targets("--batch-size", "0"), 1, ["`batch_size`"]),
    "targets of no benchmark": (_make_targets("--benchmark", "best"), 1, ["best"]),
    "targets of no root": (_make_targets("--root", "nowhere"), 1, ["nowhere"]),
    "targets of no split": (_make_targets("--split", "practice"), 1, ["practice"]),
    "targets by no encoder": (_make_targets("--encoder", "nowhere"), 1, ["nowhere"]),
    "targets by an encoder that is none": (
        lambda run, f: _make_targets("--encoder", run.folder / "data")(run, f),
        1,
        ["data"],
    ),
    "targets on an unknown device": (_make_targets("--device", "abacus"), 1, ["abacus"]),
    "targets into a folder": (lambda run, f: _make_targets("--output", f)(run, f), 1, ["`output`", "folder"]),
    "targets below a file": (
        lambda run, f: _make_targets("--output", run.folder / "model" / "config.json" / "x")(run, f),
        1,
        ["config.json"],
    ),
    "targets by an unknown flag": (_make_targets("--speed", "1"), 2, ["--speed"]),
    "study without a backbone": (_study(), 1, ["recipes/miniature_backbone", "not there"]),
    "study of a degree beyond all": (_study("--shared", "2"), 2, ["--shared"]),
    "study by no job": (_study("--jobs", "0"), 2, ["--jobs", "at least 1"]),
    "study of an unknown variant": (_study("--variants", "best"), 2, ["best"]),
    "study of a word for a seed": (_study("--seeds", "one"), 2, ["one"]),
    "study of nothing": (_study("--report-only"), 1, ["study"]),
    "study by an unknown flag": (_study("--speed", "1"), 2, ["--speed"]),
    "study with an overlay that lacks fields": (
        lambda run, f: _study("--overlay", f / "few.yaml")(run, f),
        1,
        ["few.yaml", "`num_train_epochs`"],
    ),
    "study with a word for its epochs": (
        lambda run, f: _study("--overlay", f / "word.yaml")(run, f),
        1,
        ["word.yaml", "`num_train_epochs`", "'ten'"],
    ),
    "study with a broken overlay": (
        lambda run, f: _study("--overlay", f / "broken.yaml")(run, f),
        1,
        ["broken.yaml"],
    ),
}
