"""Training arguments that transformers does not have. Options that change the model are in its configuration."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from transformers import TrainingArguments, get_scheduler
from transformers.hf_argparser import HfArg
from transformers.integrations import get_available_reporting_integrations, get_reporting_integration_callbacks
from transformers.trainer_pt_utils import AcceleratorConfig

from scalar_retrieval.commands.schema import check_value
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS

from .lora import parts_of

OBJECTIVE_NAMES = ("scalar", "contrastive", "pmrl", "pathways")
"""The objectives by name; [`~scalar_retrieval.trainer.objectives.OBJECTIVES`] holds their classes."""
WITH_TEMPERATURE = ("scalar", "contrastive")
"""Objectives with a contrastive temperature, which can be learned."""
WITH_SEMANTICS = ("scalar",)
"""Objectives that read semantic targets, unless the weight of their term is 0."""

NEGATIVES = ("scores", "paired")
"""The scores that hard negatives are drawn by: C of Eq. 5, as in the paper, or C~."""
MEAN_RECALL = "mean_recall_at_1"
"""The metric by which the best checkpoint is chosen by default: the mean of both directions' R@1."""
METRICS = {MEAN_RECALL: True, "num_unscorable_clips": False}
"""What [`ScalarTrainer.evaluate`] measures, without `eval_`, and whether higher is better."""
for _direction in DIRECTIONS:
    for _name in ("recall_at_1", "recall_at_5", "recall_at_10", "mean_average_precision", "ndcg_at_10"):
        METRICS[f"{_direction}_{_name}"] = True
    for _name in ("median_rank", "mean_rank"):
        METRICS[f"{_direction}_{_name}"] = False

_BY_METRIC = ("reduce_lr_on_plateau", "greedy")
_REFUSALS = {
    "Use `contrastive_label_smoothing`.": "label_smoothing_factor",
    "Publish the trained model with `scalar publish adapter` or `scalar publish model`.": (
        "push_to_hub hub_token hub_model_id hub_strategy hub_always_push hub_revision"
    ),
    "Set `per_device_train_batch_size`, which decides how many clips are compared, and `mini_batch_size` to encode "
    "them in parts that fit in memory.": "auto_find_batch_size",
    "Every epoch draws the clips in a random order, which is part of the run.": (
        "train_sampling_strategy length_column_name dataloader_in_order"
    ),
    "Workers must start anew, to learn their epoch.": "dataloader_persistent_workers",
    "A resumed run continues with the next batch, at no cost.": "ignore_data_skip",
    "Only data parallelism works here: `accelerate launch --multi_gpu`. If memory is short, set `mini_batch_size`, "
    "`activation_checkpointing` or another `adapter`.": "fsdp fsdp_config deepspeed parallelism_config",
    "The data loader is our own. Set `gradient_accumulation_steps` itself.": "accelerator_config",
    "Evaluation embeds the clips in float32 and ranks them. `scalar eval run` measures more.": (
        "bf16_full_eval fp16_full_eval prediction_loss_only eval_do_concat_batches eval_use_gather_object "
        "eval_accumulation_steps include_for_metrics batch_eval_metrics"
    ),
    "It would recompile at every step.": "torch_compile torch_compile_backend torch_compile_mode",
    "It has no kernels for this model.": "use_liger_kernel liger_kernel_config",
    "A loss or gradient that is not finite already stops the run and is named.": "debug",
    "Ctrl-C and SIGTERM already save a checkpoint.": "enable_jit_checkpoint",
    "Choose what is trained with `adapter`.": "optim_target_modules",
    "The data set has no labels and no tokens to generate or count.": (
        "label_names use_cache average_tokens_across_devices"
    ),
    "Set `report_split` to evaluate after training.": "do_predict",
}
REFUSED: dict[str, str] = {}
"""What to do instead of setting a field of transformers that has no effect here."""
for _instead, _names in _REFUSALS.items():
    REFUSED |= dict.fromkeys(_names.split(), _instead)
_SWITCHES = {
    "eval_strategy": "eval_steps eval_delay do_eval metric_for_best_model",
    "metric_for_best_model": "greater_is_better",
    "activation_checkpointing": "activation_checkpointing_kwargs",
    "lr_scheduler_type": "lr_scheduler_kwargs",
    "optim": "optim_args",
}
"""Fields that only some values of another field read."""
_READ_NOTHING = (
    "no",
    None,
    False,
    "constant",
    "constant_with_warmup",
    "adafactor",
    "adamw_torch",
    "adamw_torch_fused",
)
_OF_ACCELERATE = {
    "ACCELERATE_USE_FSDP": "fsdp",
    "ACCELERATE_USE_DEEPSPEED": "deepspeed",
    "ACCELERATE_USE_MEGATRON_LM": "parallelism_config",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "parallelism_config",
    "ACCELERATE_DYNAMO_BACKEND": "torch_compile",
}
"""Settings of accelerate's configuration file, which its launcher passes on, and the field that says the same."""
_INTERVALS = {
    "(0, inf)": (
        "temperature semantic_temperature direction_temperature num_train_epochs logging_steps eval_steps save_steps"
    ),
    "[0, 1)": "contrastive_label_smoothing",
    "[0, inf)": (
        "cross_arity_weight semantic_weight calibration_weight uniformity_weight matching_weight learning_rate "
        "lora_learning_rate weight_decay max_grad_norm neftune_noise_alpha"
    ),
    "[0, 1e9]": "loss_warmup_steps full_view_decay_steps",
    "[0, 1]": "full_view_probability",
    "[1, 2]": "min_view_modalities",
    "[1, 1e9]": (
        "mini_batch_size per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps max_steps "
        "dataloader_prefetch_factor"
    ),
    "[0, 4294967295]": "seed data_seed",
}
RANGES: dict[str, str] = {}
"""The allowed interval of a numeric field, unless it has its default value."""
for _interval, _names in _INTERVALS.items():
    RANGES |= dict.fromkeys(_names.split(), _interval)


@dataclass
class ScalarTrainingArguments(TrainingArguments):
    """
    Arguments of [`ScalarTrainer`]. Defaults are the paper's (Table S1) where it has them.

    Raises:
        ValueError: If a field is outside its range, an objective or adapter is unknown, or two fields contradict each
            other.

    Example:

        >>> args = ScalarTrainingArguments("runs/mine", objective="contrastive", adapter="heads", learning_rate=1e-3)
        >>> args.temperature, args.num_train_epochs
        (0.07, 5.0)
    """

    objective: str = HfArg(
        default="scalar",
        help="Objective, to which matching is added. 'scalar': the paper's (Eq. 10). 'contrastive': InfoNCE "
        "over the model's own score (GRAM, HyperGRAM, TRIANGLE). 'pmrl': PMRL's. 'pathways': InfoNCE per "
        "modality, for a backbone.",
    )
    adapter: str = HfArg(
        default="paper",
        help="What to train: paper, all_towers, full or heads; for a joint encoder full or some of trunk, video, "
        "audio and heads, separated by commas.",
    )
    temperature: float = HfArg(default=0.07, help="Contrastive temperature tau; positive.")
    learnable_temperature: bool = HfArg(
        default=False,
        help="Learn tau, from the one that the model has learned or else from `temperature`; not with calibration.",
    )
    contrastive_label_smoothing: float = HfArg(default=0.1, help="In the alignment loss, in [0, 1).")
    cross_arity_weight: float = HfArg(default=1.0, help="Weight beta of L_mask (Eq. 7); 0 skips it.")
    semantic_weight: float | None = HfArg(
        default=None,
        help="Weight alpha of L_sem (Eq. 8); 0 skips it. By default 1, or in Python 0 without semantic targets.",
    )
    calibration_weight: float = HfArg(default=1.0, help="Weight of the calibration inside L_sem; 0 skips it.")
    semantic_temperature: float = HfArg(default=0.5, help="tau* of the affinities; positive.")
    direction_temperature: float = HfArg(
        default=0.1, help="Temperature of PMRL's directions, compared instead of scores; positive."
    )
    uniformity_weight: float = HfArg(default=0.1, help="Weight lambda of L_unif (Eq. 9); 0 skips it.")
    loss_warmup_steps: int = HfArg(default=500, help="Steps before L_sem and L_unif are added.")
    matching_weight: float | None = HfArg(
        default=None,
        help="Weight of L_DAM; 0 skips the cross-encoder. By default 0.1, or 0 for a joint encoder, which has none.",
    )
    full_view_probability: float = HfArg(
        default=0.5, help="Final probability p_full of a complete view; 1 disables reduced views."
    )
    full_view_decay_steps: int = HfArg(default=2000, help="Steps over which p_full falls from 1.")
    min_view_modalities: int = HfArg(default=2, help="Minimum number of modalities in a reduced view: 2 or 1.")
    negatives_from: str = HfArg(
        default="scores",
        help="Scores by which hard negatives of matching are drawn. 'scores': those of the model, C of Eq. 5. "
        "'paired': C~, in which each clip is aggregated once, for its own text.",
    )
    mini_batch_size: int | None = HfArg(
        default=None,
        help="Clips encoded at once if a batch does not fit in memory: the gradient of the whole batch is "
        "computed in two passes over its parts (GradCache).",
    )
    keep_in_memory: bool = HfArg(default=False, help="Decode every clip once and keep its frames.")
    report_to: str = HfArg(default="none", help="Installed trackers, separated by commas: tensorboard,trackio.")

    # Defaults of transformers that the paper changes.
    learning_rate: float = HfArg(default=2e-5, help="Peak learning rate.")
    lora_learning_rate: float | None = HfArg(
        default=None, help="Peak learning rate of the LoRA matrices; by default `learning_rate`, as for heads."
    )
    weight_decay: float = HfArg(default=0.01, help="Weight decay of AdamW.")
    adam_beta2: float = HfArg(default=0.98, help="Beta2 of AdamW.")
    max_grad_norm: float = HfArg(default=2.0, help="Maximum gradient norm, for clipping.")
    num_train_epochs: float = HfArg(default=5.0, help="Epochs.")
    per_device_eval_batch_size: int = HfArg(default=32, help="Clips that an evaluation embeds at once.")
    warmup_steps: float = HfArg(default=0.1, help="Warmup steps, or below 1 their share of all steps.")
    seed: int = HfArg(default=50, help="Seed of all draws; the paper uses 50, 51 and 52.")
    dataloader_drop_last: bool = HfArg(default=True, help="Drop the last, smaller batch of an epoch.")

    def __post_init__(self):
        # What was given; transformers changes some values and checks its own fields after that.
        self._check_given()
        self._choose_metric()
        if isinstance(self.report_to, str):
            self.report_to = self.report_to.split(",")
        super().__post_init__()
        # Schedules that wait for a metric to fall have to be told if it should rise.
        if self.lr_scheduler_type in _BY_METRIC and self.greater_is_better:
            self.lr_scheduler_kwargs = {"mode": "max"} | (self.lr_scheduler_kwargs or {})
        self._check_effects()
        # Names of objectives, adapters and scores.
        if self.objective not in OBJECTIVE_NAMES:
            raise ValueError(f"`objective` must be one of {OBJECTIVE_NAMES}, got {self.objective!r}.")
        parts = parts_of(self.adapter)
        if self.negatives_from not in NEGATIVES:
            raise ValueError(f"`negatives_from` must be one of {NEGATIVES}, got {self.negatives_from!r}.")
        if self.lora_learning_rate is not None and (self.adapter == "full" or parts == ("heads",)):
            raise ValueError(
                f"`lora_learning_rate` needs LoRA matrices, but the adapter {self.adapter!r} has none. "
                "Leave it out, or choose another adapter, such as 'paper' or 'all_towers'."
            )
        # Combinations that would train something else than they say.
        if self.learnable_temperature and self.uses_semantics and self.calibration_weight:
            raise ValueError(
                "`learnable_temperature` cannot be combined with the calibration of L_sem, because a learned "
                "temperature could absorb the scale that it fixes. Set `calibration_weight` (or `semantic_weight`) "
                "to 0, or keep the temperature fixed."
            )
        if self.learnable_temperature and self.objective not in WITH_TEMPERATURE:
            raise ValueError(f"The objective {self.objective!r} has no temperature to learn.")
        self.label_names = []

    def _check_given(self) -> None:
        """Raise a ValueError for a field that has no effect here, and for a number outside its range."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value in (field.default, None, [], AcceleratorConfig()):  # the last two are filled in
                continue
            if field.name in REFUSED:
                raise ValueError(f"`{field.name}` is not supported. {REFUSED[field.name]}")
            if field.name in RANGES:
                check_value(value, RANGES[field.name], field.name)
        for setting, name in _OF_ACCELERATE.items():
            if os.environ.get(setting, "no").lower() not in ("no", "false", "0"):
                raise ValueError(f"`{setting}`, of accelerate's configuration, is not supported. {REFUSED[name]}")

    def _choose_metric(self) -> None:
        """Choose the metric of the best checkpoint and its direction, unless given; raise a ValueError if there is no
        evaluation."""
        if self.load_best_model_at_end or self.save_strategy == "best" or self.lr_scheduler_type in _BY_METRIC:
            if self.eval_strategy == "no":
                raise ValueError(
                    "`load_best_model_at_end`, `save_strategy: best` and schedules by a metric need evaluations. Set "
                    "`eval_split` and `eval_strategy`."
                )
            if self.metric_for_best_model is None:
                self.metric_for_best_model = MEAN_RECALL
        # The direction of a metric of ours, which may follow the name of a data set; transformers has one for others.
        for name, rises in METRICS.items():
            if self.greater_is_better is None and (self.metric_for_best_model or "").endswith(name):
                self.greater_is_better = rises

    def check_metric(self, prefixes: Sequence[str] = ("",)) -> None:
        """Raise a ValueError unless the metric of the best checkpoint is measured, after one of these prefixes."""
        name = (self.metric_for_best_model or "").removeprefix("eval_")
        known = [prefix + metric for prefix in prefixes for metric in METRICS]
        if name and name not in known:
            raise ValueError(f"`metric_for_best_model` must be one of {known}, got {name!r}.")

    def _check_effects(self) -> None:
        """Raise an error for what would have no effect with other fields, on this device, or as installed."""
        for switch, names in _SWITCHES.items():
            value = getattr(self, switch)
            for name in names.split():
                if getattr(self, name) and value in _READ_NOTHING:
                    raise ValueError(f"`{name}` has no effect with `{switch}: {getattr(value, 'value', value)}`.")
        options = self.activation_checkpointing_kwargs or {}
        check_value(options.get("every_n_layers", 1), "[1, 1e9]", "every_n_layers")
        if self.mixed_precision == "fp16" and self.device.type == "cpu":  # of the field or of accelerate's launcher
            raise ValueError("`fp16` has no effect on a CPU. Train with `bf16: true`, or without mixed precision.")
        # The trackers; transformers names those that exist.
        get_reporting_integration_callbacks(self.report_to)
        for name in self.report_to:
            if name not in get_available_reporting_integrations():
                raise ImportError(f"`report_to: {name}` needs a package that is not installed: `pip install {name}`.")
        # The schedule takes its arguments: build it for an optimizer of nothing.
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=self.learning_rate)
        try:
            get_scheduler(self.lr_scheduler_type, optimizer, 1, 100, self.lr_scheduler_kwargs)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"`lr_scheduler_type: {self.lr_scheduler_type.value}` does not work with `lr_scheduler_kwargs` "
                f"{self.lr_scheduler_kwargs}: {error}"
            ) from error

    def fill_in(self, has_targets: bool, is_joint: bool) -> None:
        """
        Set weights that were not given to the paper's, or to 0 if what they need is absent.

        Args:
            has_targets (`bool`): Whether there are semantic targets.
            is_joint (`bool`): Whether the model is a joint encoder, which has no cross-encoder.
        """
        if self.semantic_weight is None:
            self.semantic_weight = float(has_targets)
        if self.matching_weight is None:
            self.matching_weight = 0.1
            if is_joint:
                self.matching_weight = 0.0

    @property
    def uses_semantics(self) -> bool:
        """Whether the objective needs semantic targets."""
        return self.objective in WITH_SEMANTICS and self.semantic_weight != 0

    @property
    def uses_matching(self) -> bool:
        """Whether the objective trains the cross-encoder."""
        return self.matching_weight != 0


__all__ = ["NEGATIVES", "OBJECTIVE_NAMES", "RANGES", "WITH_SEMANTICS", "WITH_TEMPERATURE", "ScalarTrainingArguments"]
