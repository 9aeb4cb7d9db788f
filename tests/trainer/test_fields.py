"""Every field of transformers' TrainingArguments has its effect, is harmless, or is refused by name."""

import inspect
import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.modeling_scalar import MODALITIES, ScalarModel
from scalar_retrieval.trainer.scalar_trainer import ScalarTrainer
from scalar_retrieval.trainer.training_args import METRICS, REFUSED, ScalarTrainingArguments
from tests.trainer.test_scalar_trainer import EVAL_ROWS, Affinities, make_trainer

ROOT = Path(__file__).resolve().parents[2]
EVALUATED = {"eval_strategy": "steps", "eval_steps": 2, "eval_dataset": EVAL_ROWS}
EPOCHS = {"max_steps": -1, "num_train_epochs": 2}  # of two steps
ADAM = {"optim": "adamw_torch"}
SAVED = {"save_strategy": "steps", "save_steps": 2}

# A value, what it differs in from its default, and other fields of both runs. "weights" are those that were trained.
EFFECTS = {
    "per_device_train_batch_size": (2, "weights", {}),
    "num_train_epochs": (1, "weights", EPOCHS),
    "max_steps": (2, "weights", {}),
    "learning_rate": (1e-2, "weights", {}),
    "lr_scheduler_type": ("cosine", "weights", {}),
    "lr_scheduler_kwargs": ({"num_cycles": 0.2}, "weights", {"lr_scheduler_type": "cosine"}),
    "warmup_steps": (3, "weights", {}),
    "optim": ("sgd", "weights", {}),
    "optim_args": ("momentum=0.9", "weights", {"optim": "sgd"}),
    "weight_decay": (0.5, "weights", ADAM),
    "adam_beta1": (0.5, "weights", ADAM),
    "adam_beta2": (0.5, "weights", ADAM),
    "adam_epsilon": (0.1, "weights", ADAM),
    "gradient_accumulation_steps": (2, "weights", {}),
    "max_grad_norm": (1.0, "weights", {"optim": "sgd"}),
    "bf16": (True, "weights", {}),
    "neftune_noise_alpha": (5.0, "weights", {"adapter": "paper"}),
    "seed": (1, "weights", {}),
    "data_seed": (9, "weights", {}),
    "dataloader_drop_last": (False, "weights", {"size": 6, "max_steps": 2}),
    "logging_strategy": ("epoch", "log", {}),
    "logging_steps": (2, "log", {}),
    "logging_first_step": (True, "log", {"logging_steps": 2}),
    "include_num_input_tokens_seen": ("all", "log", {}),
    "skip_memory_metrics": (False, "log", {}),
    "eval_strategy": ("epoch", "log", EVALUATED | EPOCHS | {"eval_steps": 1}),
    "eval_steps": (1, "log", EVALUATED),
    "eval_delay": (3, "log", EVALUATED),
    "eval_on_start": (True, "log", EVALUATED),
    "per_device_eval_batch_size": (2, "batch sizes", EVALUATED),
    "save_strategy": ("steps", "files", {"save_steps": 2}),
    "save_steps": (1, "files", SAVED),
    "save_total_limit": (1, "files", SAVED | {"save_steps": 1}),
    "save_only_model": (True, "files", SAVED),
    "load_best_model_at_end": (True, "weights", EVALUATED | SAVED | {"eval_steps": 1, "save_steps": 1}),
    "metric_for_best_model": ("text_to_video_mean_rank", "best", EVALUATED | SAVED),
    "greater_is_better": (
        False,
        "best",
        EVALUATED | SAVED | {"eval_steps": 1, "save_steps": 1, "metric_for_best_model": "mean_recall_at_1"},
    ),
}
"""Tested below."""

SHOWN = {
    "output_dir": "test_a_run_that_is_killed_wherever_it_is_ends_as_the_unbroken_run",
    "resume_from_checkpoint": "test_two_processes_resume_as_two_and_not_as_one",
    "fp16": "test_a_step_has_the_loss_and_the_gradient_of_the_processor",
    "report_to": "test_a_tracker_that_is_not_installed_is_named_with_its_package",
    "activation_checkpointing": "test_activation_checkpointing_computes_layers_twice",
    "gradient_checkpointing": "test_activation_checkpointing_computes_layers_twice",
    "activation_checkpointing_kwargs": "test_activation_checkpointing_computes_layers_twice",
    "gradient_checkpointing_kwargs": "test_activation_checkpointing_computes_layers_twice",
    "dataloader_multiprocessing_context": "test_data_workers_are_started_as_asked",
    "dataloader_num_workers": "test_data_workers_are_started_as_asked",
    "dataloader_prefetch_factor": "test_data_workers_are_started_as_asked",
    "restore_callback_states_from_checkpoint": "test_callbacks_continue_where_they_were",
    "do_eval": "test_what_another_field_switches_off_is_refused",
}
"""The test that shows the effect."""

HARMLESS = {
    "use_cpu": "Chooses the device.",
    "local_rank": "Given by old launchers; the environment says the same.",
    "do_train": "Training is all that the command does.",
    "remove_unused_columns": "The collator reads the columns that it needs.",
    "full_determinism": "Chooses kernels whose results repeat.",
    "tf32": "Chooses kernels of GPUs; without one it is an error.",
    "torch_empty_cache_steps": "Frees memory that nothing uses.",
    "logging_nan_inf_filter": "A loss that is not finite stops the run.",
    "dataloader_pin_memory": "Copies to a GPU faster.",
    "disable_tqdm": "Shows or hides bars.",
    "log_level": "How much transformers prints.",
    "log_level_replica": "How much transformers prints on other processes.",
    "log_on_each_node": "Which nodes print.",
    "save_on_each_node": "Which nodes save.",
    "run_name": "A name in a tracker.",
    "project": "A name in trackio.",
    "trackio_space_id": "Where trackio shows the log.",
    "trackio_bucket_id": "Where trackio stores the log.",
    "trackio_static_space_id": "Where trackio shows the finished log.",
    "hub_private_repo": "Who may see trackio's log; nothing else is pushed.",
    "ddp_find_unused_parameters": "How processes exchange gradients.",
    "ddp_bucket_cap_mb": "How processes exchange gradients.",
    "ddp_broadcast_buffers": "How processes exchange gradients.",
    "ddp_static_graph": "How processes exchange gradients.",
    "ddp_backend": "How processes exchange gradients; alone it is an error.",
    "ddp_timeout": "How long processes wait for each other.",
}
"""Read by what it names, and without effect on what is trained, logged and saved."""


def test_the_table_has_every_field_of_the_installed_transformers_once():
    tables = [EFFECTS, SHOWN, HARMLESS, REFUSED]
    listed = [name for table in tables for name in table]
    assert sorted(listed) == sorted(field.name for field in fields(TrainingArguments))


def test_the_tests_that_the_table_names_exist():
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in SHOWN.values() if f"def {name}(" not in text] == []


@pytest.fixture(autouse=True)
def without_collecting(monkeypatch):
    """The Trainer collects garbage whenever it begins, which takes most of the time of these runs."""
    monkeypatch.setattr("accelerate.utils.memory.gc.collect", lambda: 0)


@pytest.fixture
def embedded(monkeypatch):
    """Evaluate four vectors, of which each evaluation ranks one more wrongly; return the sizes of batches."""
    sizes = []

    def embed(model, processor, rows, batch_size, progress):
        assert isinstance(model, ScalarModel)  # without its adapter around it
        sizes.append(batch_size)
        texts = torch.eye(4)
        modalities = torch.zeros(4, 3, 4)
        modalities[:, 0] = texts[[(place + (place < len(sizes))) % 4 for place in range(4)]]
        mask = torch.tensor([[True, False, False]]).repeat(4, 1)
        ids = [str(number) for number in range(4)]
        pairs = torch.arange(4)[:, None].expand(-1, 2)
        return Embeddings(texts, modalities, mask, pairs, ids, ids, ids, MODALITIES)

    monkeypatch.setattr("scalar_retrieval.eval.embedding.embed_dataset.embed_dataset", embed)
    return sizes


# Effects ------------------------------------------------------------------------------------------------------------

TIMED = {"clips_per_second", "train_runtime", "train_samples_per_second", "train_steps_per_second"}


def run(folder, sizes, **options):
    """All that a field may change of a training of four steps, of heads alone: they take the least time."""
    sizes.clear()
    plain = {"max_steps": 4, "logging_steps": 1, "warmup_steps": 0, "adapter": "heads", "matching_weight": 0.0}
    trainer = make_trainer(folder, **plain | options)
    trainer.train()
    log = [{name: value for name, value in entry.items() if name not in TIMED} for entry in trainer.state.log_history]
    return {
        "weights": torch.cat([p.detach().flatten() for p in trainer.model.parameters() if p.requires_grad]),
        "log": log,
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*")),
        "best": trainer.state.best_global_step,
        "batch sizes": list(sizes),
    }


@pytest.fixture(scope="module")
def plain():
    """The runs that others are compared with, by their options."""
    return {}


@pytest.mark.parametrize("name", EFFECTS)
def test_a_field_has_its_effect(tmp_path, embedded, plain, name):
    value, what, options = EFFECTS[name]
    key = repr(options)
    if key not in plain:
        plain[key] = run(tmp_path / "plain", embedded, **options)
    before, after = plain[key][what], run(tmp_path / "run", embedded, **options | {name: value})[what]
    if what == "weights":
        assert (after - before).abs().max() > 1e-5  # more than rounding
    else:
        assert after != before


@pytest.mark.parametrize("name", ["activation_checkpointing", "gradient_checkpointing"])
def test_activation_checkpointing_computes_layers_twice(tmp_path, name):
    def passes(**options):
        trainer = make_trainer(tmp_path, adapter="full", **options)
        layers = trainer.scalar_model.text_model.encoder.layer
        calls = []
        for layer in layers:
            layer.attention.register_forward_hook(lambda *event: calls.append(event))
        trainer.train()
        return len(calls), len(layers)

    plain, layers = passes()
    assert layers == 2 and passes(**{name: True}) == (2 * plain, layers)
    assert passes(**{name: True, f"{name}_kwargs": {"every_n_layers": 2}}) == (1.5 * plain, layers)


def test_data_workers_are_started_as_asked(tmp_path):
    workers = {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 3}
    loader = make_trainer(tmp_path, dataloader_multiprocessing_context="spawn", **workers).get_train_dataloader()
    assert (loader.num_workers, loader.prefetch_factor) == (2, 3)
    assert loader.multiprocessing_context.get_start_method() == "spawn"


@pytest.mark.parametrize(("restored", "last"), [(True, 4), (False, 5)])
def test_callbacks_continue_where_they_were(tmp_path, embedded, restored, last):
    """Each evaluation is worse than the first, and the third such one ends the run."""
    every = EVALUATED | SAVED | {"eval_steps": 1, "save_steps": 1, "load_best_model_at_end": True, "max_steps": 8}
    every["restore_callback_states_from_checkpoint"] = restored

    def train(*checkpoint):
        trainer = make_trainer(tmp_path, **every)
        trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=3))
        trainer.train(*checkpoint)
        return trainer.state.global_step, trainer.state.best_global_step

    assert train() == (4, 1) and train(str(tmp_path / "checkpoint-2")) == (last, 1)


# Evaluation ---------------------------------------------------------------------------------------------------------


def args_of(folder, **options):
    return ScalarTrainingArguments(output_dir=str(folder), use_cpu=True, **options)


def test_the_metrics_are_those_of_an_evaluation(tmp_path, embedded):
    trainer = make_trainer(tmp_path, eval_dataset=EVAL_ROWS)
    measured = trainer.evaluate()
    assert measured.keys() == {f"eval_{name}" for name in METRICS} | {"epoch"}
    both = measured["eval_text_to_video_recall_at_1"], measured["eval_video_to_text_recall_at_1"]
    assert both == (50.0, 75.0) and measured["eval_mean_recall_at_1"] == 62.5
    assert measured["eval_text_to_video_mean_rank"] == 2 and json.dumps(measured)
    worse = trainer.evaluate()
    changed = [name for name in METRICS if worse[f"eval_{name}"] != measured[f"eval_{name}"]]
    assert len(changed) > 8
    for name in changed:
        assert (worse[f"eval_{name}"] < measured[f"eval_{name}"]) == METRICS[name], name


def test_the_best_checkpoint_is_kept_by_a_metric_that_falls(tmp_path, embedded):
    every = EVALUATED | SAVED | {"eval_steps": 1, "save_steps": 1, "save_total_limit": 1, "max_steps": 3}
    every |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_text_to_video_median_rank"}
    trainer = make_trainer(tmp_path, **every)
    trainer.train()
    trainer.save_model()
    assert trainer.state.best_global_step == 1
    best, final = (tmp_path / name / "adapter_model.safetensors" for name in ("checkpoint-1", ""))
    assert best.read_bytes() == final.read_bytes()


def test_the_best_checkpoint_is_kept_when_the_folder_of_a_run_is_moved(tmp_path, embedded):
    every = EVALUATED | SAVED | {"eval_steps": 1, "save_steps": 1, "save_total_limit": 1}
    make_trainer(tmp_path / "run", load_best_model_at_end=True, max_steps=2, **every).train()
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    trainer = make_trainer(moved, load_best_model_at_end=True, max_steps=3, **every)
    trainer.train(resume_from_checkpoint=True)
    trainer.save_model()
    best, final = (moved / name / "adapter_model.safetensors" for name in ("checkpoint-1", ""))
    assert best.read_bytes() == final.read_bytes()


@pytest.mark.parametrize(("sets", "words"), [(EVAL_ROWS, "'mean_recall"), ({"val": EVAL_ROWS}, "'val_mean_recall")])
def test_a_metric_that_will_not_be_measured_is_refused(tmp_path, sets, words):
    with pytest.raises(ValueError, match=f"`metric_for_best_model` must be one of .*{words}.* got 'loss'"):
        make_trainer(tmp_path, eval_dataset=sets, metric_for_best_model="loss", eval_strategy="steps")


def test_the_user_may_name_the_direction_of_a_metric(tmp_path):
    metric = {"metric_for_best_model": "val_text_to_video_mean_rank", "eval_strategy": "steps"}
    assert args_of(tmp_path, **metric).greater_is_better is False
    assert args_of(tmp_path, greater_is_better=True, **metric).greater_is_better is True


@pytest.mark.parametrize(
    ("name", "options", "falls"),
    [
        ("reduce_lr_on_plateau", {}, True),
        ("greedy", {"metric_for_best_model": "text_to_video_mean_rank"}, True),
        ("greedy", {"metric_for_best_model": "text_to_video_mean_rank", "greater_is_better": True}, False),
    ],
)
def test_a_schedule_by_a_metric_lowers_the_rate_when_the_metric_gets_worse(tmp_path, embedded, name, options, falls):
    schedule = {"lr_scheduler_type": name, "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5}}
    evaluated = EVALUATED | {"eval_steps": 1, "logging_steps": 1, "max_steps": 4}
    trainer = make_trainer(tmp_path, **evaluated, **schedule, **options)
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert (rates[-1] < rates[1]) == falls, rates  # nothing is worse than before at the first evaluation


# Refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("errors", "A transformers field without effect here is refused, and the alternative named")
@pytest.mark.parametrize("name", REFUSED)
def test_a_field_without_effect_is_refused(tmp_path, name):
    default = next(field.default for field in fields(TrainingArguments) if field.name == name)
    value = "other"
    if isinstance(default, bool):
        value = not default
    with pytest.raises(ValueError, match=f"`{name}` is not supported. [A-Z].*[.]$"):
        args_of(tmp_path, **{name: value})


@pytest.mark.parametrize(
    "options",
    [
        {"eval_steps": 2},
        {"eval_delay": 1},
        {"do_eval": True},
        {"metric_for_best_model": "mean_recall_at_1"},
        {"greater_is_better": True},
        {"activation_checkpointing_kwargs": {"use_reentrant": True}},
        {"gradient_checkpointing_kwargs": {"use_reentrant": True}},
        {"lr_scheduler_kwargs": {"power": 2}, "lr_scheduler_type": "constant"},
        {"optim_args": "momentum=0.9"},
        {"fp16": True},
    ],
)
def test_what_another_field_switches_off_is_refused(tmp_path, options):
    name = next(iter(options)).replace("gradient_", "activation_")
    with pytest.raises(ValueError, match=f"`{name}` has no effect"):
        args_of(tmp_path, **options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ACCELERATE_USE_FSDP", "true"),
        ("ACCELERATE_USE_DEEPSPEED", "true"),
        ("ACCELERATE_USE_MEGATRON_LM", "true"),
        ("ACCELERATE_USE_PARALLELISM_CONFIG", "true"),
        ("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR"),
    ],
)
def test_what_accelerates_launcher_sets_is_refused_like_the_field(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"`{name}`, of accelerate's configuration, is not supported"):
        args_of(tmp_path, mini_batch_size=2)
    for off in ("false", "NO"):
        monkeypatch.setenv(name, off)
        args_of(tmp_path)


def test_half_precision_of_the_launcher_is_refused_on_a_processor(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    with pytest.raises(ValueError, match="`fp16` has no effect on a CPU"):
        args_of(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr_scheduler_kwargs": {"speed": 1}}, "`lr_scheduler_kwargs` {'speed': 1}: .*'speed'"),
        ({"lr_scheduler_kwargs": "nowhere.json"}, "'nowhere.json'|nowhere.json: "),
        ({"lr_scheduler_type": "warmup_stable_decay"}, "warmup_stable_decay` does not work .*'num_decay_steps'"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "cosine_with_min_lr` does not work .*min_lr"),
        ({"lr_scheduler_type": "greedy"}, "need evaluations. Set `eval_split`"),
        ({"load_best_model_at_end": True, "save_strategy": "no"}, "need evaluations"),
        ({"save_strategy": "best"}, "need evaluations"),
        (
            {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"every_n_layers": 0}},
            "`every_n_layers` must be a number in",
        ),
        ({"max_steps": 0}, "`max_steps` must be a number in"),
        ({"report_to": "bogus"}, "bogus is not supported, only"),
    ],
)
def test_what_cannot_work_is_refused_before_the_training(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        args_of(tmp_path, **options)


def test_a_tracker_that_is_not_installed_is_named_with_its_package(tmp_path, monkeypatch):
    class Tracker(TrainerCallback):
        pass

    monkeypatch.setitem(INTEGRATION_TO_CALLBACK, "trackio", Tracker)
    available = ["trackio"]
    monkeypatch.setattr(
        "scalar_retrieval.trainer.training_args.get_available_reporting_integrations", lambda: available
    )
    assert isinstance(make_trainer(tmp_path, report_to="trackio").pop_callback(Tracker), Tracker)
    available.clear()
    with pytest.raises(ImportError, match="`report_to: trackio` needs .* `pip install trackio`"):
        args_of(tmp_path, report_to="trackio")


def test_checked_arguments_can_be_copied(tmp_path):
    assert replace(args_of(tmp_path, lr_scheduler_type="cosine"), seed=3).seed == 3


# Arguments of the Trainer that are used; a new one belongs here, or to those that are refused.
USED = {"model", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class", "callbacks", "self"}
USED |= {"optimizers", "optimizer_cls_and_kwargs", "compute_metrics", "model_init"}
NOT_USED = {"compute_loss_func", "preprocess_logits_for_metrics"}


def test_every_argument_of_the_installed_trainer_is_used_or_refused():
    assert set(inspect.signature(Trainer.__init__).parameters) == USED | NOT_USED


@pytest.mark.parametrize("name", sorted(NOT_USED))
def test_an_argument_of_the_trainer_without_effect_is_refused(tmp_path, name):
    trainer = make_trainer(tmp_path)
    with pytest.raises(ValueError, match=f"`{name}` is not supported. [A-Z].*[.]$"):
        ScalarTrainer(trainer.model, trainer.args, **{name: print})


def test_a_rate_of_lora_is_refused_with_an_optimizer_of_ones_own(tmp_path):
    trainer = make_trainer(tmp_path, lora_learning_rate=1e-4)
    optimizer = torch.optim.SGD(trainer.model.parameters())
    with pytest.raises(ValueError, match="`lora_learning_rate` has no effect on an optimizer of your own"):
        ScalarTrainer(trainer.model, trainer.args, semantic_targets=Affinities(), optimizers=(optimizer, None))


def test_an_optimizer_class_of_ones_own_is_used(tmp_path):
    trainer = make_trainer(tmp_path)
    sgd = torch.optim.SGD, {"lr": 1e-3}
    options = {"semantic_targets": Affinities(), "optimizer_cls_and_kwargs": sgd}
    assert type(ScalarTrainer(trainer.model, trainer.args, **options).create_optimizer()) is torch.optim.SGD
