"""Every field of transformers' TrainingArguments has its effect, is harmless, or is refused by name."""

import inspect
import json
from dataclasses import fields, replace

import pytest
import torch
from transformers import EarlyStoppingCallback, Trainer, TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.modeling_scalar import MODALITIES, ScalarModel
from scalar_retrieval.trainer import training_args
from scalar_retrieval.trainer.scalar_trainer import ScalarTrainer
from scalar_retrieval.trainer.training_args import METRICS, REFUSED, ScalarTrainingArguments
from tests.trainer.test_scalar_trainer import EVAL_ROWS, Affinities, make_trainer, untimed

EVALUATED = {"eval_strategy": "steps", "eval_steps": 1, "eval_dataset": EVAL_ROWS}
EPOCHS = {"max_steps": -1, "num_train_epochs": 2}  # of two steps
SAVED = {"save_strategy": "steps", "save_steps": 1}

# A value, what it differs in from its default, and other fields of both runs. "weights" are those that were trained.
EFFECTS = {
    "per_device_train_batch_size": (2, "weights"),
    "num_train_epochs": (1, "weights", EPOCHS),
    "max_steps": (2, "weights"),
    "learning_rate": (1e-2, "weights"),
    "lr_scheduler_type": ("cosine", "weights"),
    "lr_scheduler_kwargs": ({"num_cycles": 0.2}, "weights", {"lr_scheduler_type": "cosine"}),
    "warmup_steps": (3, "weights"),
    "optim": ("sgd", "weights"),
    "optim_args": ("momentum=0.9", "weights", {"optim": "sgd"}),
    "weight_decay": (0.5, "weights"),
    "adam_beta1": (0.5, "weights"),
    "adam_beta2": (0.5, "weights"),
    "adam_epsilon": (0.1, "weights"),
    "gradient_accumulation_steps": (2, "weights"),
    "max_grad_norm": (1.0, "weights", {"optim": "sgd"}),
    "bf16": (True, "weights"),
    "neftune_noise_alpha": (5.0, "weights", {"adapter": "paper"}),
    "seed": (1, "weights"),
    "data_seed": (9, "weights"),
    "dataloader_drop_last": (False, "weights", {"size": 6, "max_steps": 2}),
    "logging_strategy": ("epoch", "log"),
    "logging_steps": (2, "log"),
    "logging_first_step": (True, "log", {"logging_steps": 2}),
    "include_num_input_tokens_seen": ("all", "log"),
    "skip_memory_metrics": (False, "log"),
    "eval_strategy": ("epoch", "log", EVALUATED),
    "eval_steps": (2, "log", EVALUATED),
    "eval_delay": (3, "log", EVALUATED),
    "eval_on_start": (True, "log", EVALUATED),
    "per_device_eval_batch_size": (2, "batch sizes", EVALUATED),
    "save_strategy": ("epoch", "files"),
    "save_steps": (2, "files", SAVED),
    "save_total_limit": (1, "files", SAVED),
    "save_only_model": (True, "files", SAVED),
    "load_best_model_at_end": (True, "weights", EVALUATED | SAVED),
    "metric_for_best_model": ("text_to_video_mean_rank", "best", EVALUATED | SAVED),
    "greater_is_better": (False, "best", EVALUATED | SAVED | {"metric_for_best_model": "mean_recall_at_1"}),
}
"""Tested below."""

SHOWN = {
    "output_dir",
    "resume_from_checkpoint",
    "fp16",
    "report_to",
    "activation_checkpointing",
    "gradient_checkpointing",
    "activation_checkpointing_kwargs",
    "gradient_checkpointing_kwargs",
    "dataloader_multiprocessing_context",
    "dataloader_num_workers",
    "dataloader_prefetch_factor",
    "restore_callback_states_from_checkpoint",
    "do_eval",
}
"""Of which other tests show the effect."""

HARMLESS = {
    # Devices, kernels and memory.
    "use_cpu",
    "local_rank",
    "full_determinism",
    "tf32",
    "torch_empty_cache_steps",
    "dataloader_pin_memory",
    # How processes exchange gradients.
    "ddp_find_unused_parameters",
    "ddp_bucket_cap_mb",
    "ddp_broadcast_buffers",
    "ddp_static_graph",
    "ddp_backend",
    "ddp_timeout",
    # What is shown, and where.
    "logging_nan_inf_filter",
    "disable_tqdm",
    "log_level",
    "log_level_replica",
    "log_on_each_node",
    "save_on_each_node",
    "run_name",
    "project",
    "trackio_space_id",
    "trackio_bucket_id",
    "trackio_static_space_id",
    "hub_private_repo",
    # Training is all that the command does, and the collator reads the columns that it needs.
    "do_train",
    "remove_unused_columns",
}
"""Read by what it names, and without effect on what is trained, logged and saved."""


def test_the_table_has_every_field_of_the_installed_transformers_once():
    tables = [EFFECTS, SHOWN, HARMLESS, REFUSED]
    listed = [name for table in tables for name in table]
    assert sorted(listed) == sorted(field.name for field in fields(TrainingArguments))


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
        texts, ids = torch.eye(4), list("abcd")
        modalities = torch.zeros(4, 3, 4)
        modalities[:, 0] = texts[[(place + (place < len(sizes))) % 4 for place in range(4)]]
        mask = torch.arange(3).expand(4, 3) == 0
        pairs = torch.arange(4)[:, None].expand(-1, 2)
        return Embeddings(texts, modalities, mask, pairs, ids, ids, ids, MODALITIES)

    monkeypatch.setattr("scalar_retrieval.eval.embedding.embed_dataset.embed_dataset", embed)
    return sizes


# Effects ------------------------------------------------------------------------------------------------------------


def run(folder, sizes, **options):
    """All that a field may change of a training of four steps, of heads alone: they take the least time."""
    sizes.clear()
    plain = {"max_steps": 4, "logging_steps": 1, "warmup_steps": 0, "adapter": "heads", "matching_weight": 0.0}
    trainer = make_trainer(folder, **plain | {"optim": "adamw_torch"} | options)
    trainer.train()
    return {
        "weights": torch.cat([p.detach().flatten() for p in trainer.model.parameters() if p.requires_grad]),
        "log": untimed(trainer.state.log_history),
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
    value, what, *options = EFFECTS[name]
    options = dict(*options)
    key = repr(options)
    if key not in plain:
        plain[key] = run(tmp_path / "plain", embedded, **options)
    before, after = plain[key][what], run(tmp_path / "run", embedded, **options | {name: value})[what]
    if what == "weights":
        assert (after - before).abs().max() > 1e-5  # more than rounding
    else:
        assert after != before


def test_activation_checkpointing_computes_layers_twice(tmp_path):
    def passes(**options):
        trainer = make_trainer(tmp_path, adapter="full", **options)
        calls = []
        for layer in trainer.scalar_model.text_model.encoder.layer:
            layer.attention.register_forward_hook(lambda *event: calls.append(event))
        trainer.train()
        return len(calls)

    plain = passes()
    assert passes(activation_checkpointing=True) == 2 * plain
    every_other = {"every_n_layers": 2}
    assert passes(gradient_checkpointing=True, gradient_checkpointing_kwargs=every_other) == 1.5 * plain


def test_data_workers_are_started_as_asked(tmp_path):
    workers = {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 3}
    loader = make_trainer(tmp_path, dataloader_multiprocessing_context="spawn", **workers).get_train_dataloader()
    assert (loader.num_workers, loader.prefetch_factor) == (2, 3)
    assert loader.multiprocessing_context.get_start_method() == "spawn"


def test_callbacks_continue_where_they_were(tmp_path, embedded):
    """Each evaluation is worse than the first, and the third such one ends the run."""

    def train(*checkpoint, restored=True):
        options = {"load_best_model_at_end": True, "max_steps": 8, "restore_callback_states_from_checkpoint": restored}
        trainer = make_trainer(tmp_path, **EVALUATED, **SAVED, **options)
        trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=3))
        trainer.train(*checkpoint)
        return trainer.state.global_step, trainer.state.best_global_step

    assert train() == (4, 1)
    assert train(str(tmp_path / "checkpoint-2")) == (4, 1)
    assert train(str(tmp_path / "checkpoint-2"), restored=False) == (5, 1)


# Evaluation ---------------------------------------------------------------------------------------------------------


def args_of(folder, **options):
    return ScalarTrainingArguments(output_dir=str(folder), use_cpu=True, **options)


def test_the_metrics_are_those_of_an_evaluation(tmp_path, embedded):
    trainer = make_trainer(tmp_path, eval_dataset=EVAL_ROWS)
    measured = trainer.evaluate()
    assert measured.keys() == {f"eval_{name}" for name in METRICS} | {"epoch"}
    both = measured["eval_text_to_video_recall_at_1"], measured["eval_video_to_text_recall_at_1"]
    assert both == (50.0, 75.0) and measured["eval_mean_recall_at_1"] == 62.5 and json.dumps(measured)
    worse = trainer.evaluate()
    changed = {name: METRICS[name] for name in METRICS if worse[f"eval_{name}"] != measured[f"eval_{name}"]}
    assert len(changed) > 8
    for name, rises in changed.items():
        assert (worse[f"eval_{name}"] < measured[f"eval_{name}"]) == rises, name


def test_the_best_checkpoint_is_kept_by_a_metric_that_falls_also_when_the_folder_is_moved(tmp_path, embedded):
    every = EVALUATED | SAVED | {"save_total_limit": 1, "load_best_model_at_end": True}
    every |= {"metric_for_best_model": "eval_text_to_video_median_rank"}
    make_trainer(tmp_path / "run", max_steps=2, **every).train()
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    trainer = make_trainer(moved, max_steps=3, **every)
    trainer.train(resume_from_checkpoint=True)
    trainer.save_model()
    assert trainer.state.best_global_step == 1
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
    ("name", "metric"), [("reduce_lr_on_plateau", "mean_recall_at_1"), ("greedy", "text_to_video_mean_rank")]
)
def test_a_schedule_by_a_metric_lowers_the_rate_when_the_metric_gets_worse(tmp_path, embedded, name, metric):
    schedule = {"lr_scheduler_type": name, "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5}}
    steps = {"logging_steps": 1, "max_steps": 3, "metric_for_best_model": metric}
    trainer = make_trainer(tmp_path, **EVALUATED, **schedule, **steps)
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert rates[-1] < rates[1]  # nothing is worse than before at the first evaluation


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
    ("name", "value", "words"),
    [
        ("ACCELERATE_USE_FSDP", "true", "`ACCELERATE_USE_FSDP`, of accelerate's configuration, is not supported"),
        ("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR", "`ACCELERATE_DYNAMO_BACKEND`, .* is not supported"),
        ("ACCELERATE_MIXED_PRECISION", "fp16", "`fp16` has no effect on a CPU"),
    ],
)
def test_what_accelerates_launcher_sets_is_refused_like_the_field(tmp_path, monkeypatch, name, value, words):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=words):
        args_of(tmp_path)
    monkeypatch.setenv(name, "NO")
    args_of(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"do_eval": True}, "`do_eval` has no effect"),
        ({"metric_for_best_model": "mean_recall_at_1"}, "`metric_for_best_model` has no effect"),
        ({"gradient_checkpointing_kwargs": {"every_n_layers": 2}}, "`activation_checkpointing_kwargs` has no effect"),
        (
            {"lr_scheduler_kwargs": {"power": 2}, "lr_scheduler_type": "constant"},
            "`lr_scheduler_kwargs` has no effect",
        ),
        ({"lr_scheduler_kwargs": {"speed": 1}}, "`lr_scheduler_kwargs` {'speed': 1}: .*'speed'"),
        ({"lr_scheduler_kwargs": "nowhere.json"}, "nowhere.json"),
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
    available = ["trackio"]
    monkeypatch.setitem(INTEGRATION_TO_CALLBACK, "trackio", EarlyStoppingCallback)  # any
    monkeypatch.setattr(training_args, "get_available_reporting_integrations", lambda: available)
    assert make_trainer(tmp_path, report_to="trackio").pop_callback(EarlyStoppingCallback)
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


def test_an_argument_of_the_trainer_without_effect_is_refused(tmp_path):
    trainer = make_trainer(tmp_path, lora_learning_rate=1e-4)
    for name in NOT_USED:
        with pytest.raises(ValueError, match=f"`{name}` is not supported. [A-Z].*[.]$"):
            ScalarTrainer(trainer.model, trainer.args, **{name: print})
    own = torch.optim.SGD(trainer.model.parameters()), None
    with pytest.raises(ValueError, match="`lora_learning_rate` has no effect on an optimizer of your own"):
        ScalarTrainer(trainer.model, trainer.args, semantic_targets=Affinities(), optimizers=own)
