"""Training arguments that transformers does not have. Options that change the model are in its configuration."""

from dataclasses import dataclass
from typing import Any

from transformers import TrainingArguments
from transformers.hf_argparser import HfArg

from .lora import PARTS, RECIPES, parts_of

OBJECTIVE_NAMES = ("scalar", "contrastive", "pmrl", "pathways")
"""The objectives by name; [`~trainer.objectives.OBJECTIVES`] holds their classes."""
WITH_TEMPERATURE = ("scalar", "contrastive")
"""Objectives with a contrastive temperature, which can be learned."""
WITH_SEMANTICS = ("scalar",)
"""Objectives that read semantic targets, unless the weight of their term is 0."""

NEGATIVES = ("scores", "paired")
"""The scores that hard negatives are drawn by: C of Eq. 5, as in the paper, or C~."""
_INTERVALS = {
    "(0, inf)": "temperature semantic_temperature direction_temperature",
    "[0, 1)": "contrastive_label_smoothing",
    "[0, inf)": (
        "cross_arity_weight semantic_weight calibration_weight uniformity_weight matching_weight learning_rate "
        "lora_learning_rate"
    ),
    "[0, 1e9]": "loss_warmup_steps full_view_decay_steps",
    "[0, 1]": "full_view_probability",
    "[1, 2]": "min_view_modalities",
    "[1, 1e9]": "mini_batch_size per_device_train_batch_size gradient_accumulation_steps",
}
RANGES: dict[str, str] = {}
"""The allowed interval of a numeric field, unless it is None."""
for _interval, _names in _INTERVALS.items():
    RANGES |= dict.fromkeys(_names.split(), _interval)


def _check_range(name: str, value: Any, allowed: str) -> None:
    """Raise a ValueError unless a number is in an interval such as `"[0, 1)"`."""
    if value is None:
        return
    low, high = map(float, allowed[1:-1].split(","))
    # NaN is in no interval, because every comparison with it is false.
    is_inside = low < value < high
    if allowed[0] == "[":
        is_inside |= value == low
    if allowed[-1] == "]":
        is_inside |= value == high
    if not is_inside:
        raise ValueError(f"`{name}` must be in {allowed}, got {value!r}.")


@dataclass
class ScalarTrainingArguments(TrainingArguments):
    """
    Arguments of [`ScalarTrainer`]. Defaults are the paper's (Table S1) where it has them.

    Raises:
        ValueError: If a field is outside its range, an objective or adapter is unknown, or two fields contradict each
            other.
    """

    objective: str = HfArg(
        default="scalar",
        help="Objective, to which matching is added. 'scalar': the paper's (Eq. 10). 'contrastive': InfoNCE "
        "over the model's own score (GRAM, HyperGRAM, TRIANGLE). 'pmrl': PMRL's. 'pathways': InfoNCE per "
        "modality, for a backbone.",
    )
    adapter: str = HfArg(
        default="paper",
        help=f"What to train, one of {RECIPES}; for a joint encoder 'full' or some of {PARTS}, separated by commas.",
    )
    temperature: float = HfArg(default=0.07, help="Contrastive temperature tau; positive.")
    learnable_temperature: bool = HfArg(
        default=False, help="Learn tau, starting from `temperature`; not with calibration."
    )
    contrastive_label_smoothing: float = HfArg(default=0.1, help="In the alignment loss, in [0, 1).")
    cross_arity_weight: float = HfArg(default=1.0, help="Weight beta of L_mask (Eq. 7); 0 skips it.")
    semantic_weight: float = HfArg(default=1.0, help="Weight alpha of L_sem (Eq. 8); 0 skips it.")
    calibration_weight: float = HfArg(default=1.0, help="Weight of the calibration inside L_sem; 0 skips it.")
    semantic_temperature: float = HfArg(default=0.5, help="tau* of the affinities; positive.")
    direction_temperature: float = HfArg(
        default=0.1, help="Temperature of PMRL's directions, compared instead of scores; positive."
    )
    uniformity_weight: float = HfArg(default=0.1, help="Weight lambda of L_unif (Eq. 9); 0 skips it.")
    loss_warmup_steps: int = HfArg(default=500, help="Steps before L_sem and L_unif are added.")
    matching_weight: float = HfArg(default=0.1, help="Weight of L_DAM; 0 skips the cross-encoder.")
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
    report_to: str = HfArg(default="none", help="Trackers, separated by commas: tensorboard,trackio.")

    # Defaults of transformers that the paper changes.
    learning_rate: float = HfArg(default=2e-5, help="Peak learning rate.")
    lora_learning_rate: float | None = HfArg(
        default=None, help="Peak learning rate of the LoRA matrices; by default `learning_rate`, as for heads."
    )
    weight_decay: float = HfArg(default=0.01, help="Weight decay of AdamW.")
    adam_beta2: float = HfArg(default=0.98, help="Beta2 of AdamW.")
    max_grad_norm: float = HfArg(default=2.0, help="Maximum gradient norm, for clipping.")
    num_train_epochs: float = HfArg(default=5.0, help="Epochs.")
    warmup_steps: float = HfArg(default=0.1, help="Warmup steps, or below 1 their share of all steps.")
    seed: int = HfArg(default=50, help="Seed of all draws; the paper uses 50, 51 and 52.")
    dataloader_drop_last: bool = HfArg(default=True, help="Drop the last, smaller batch of an epoch.")

    def __post_init__(self):
        # Ranges of numbers; transformers checks its own fields after that.
        for name, allowed in RANGES.items():
            _check_range(name, getattr(self, name), allowed)
        if isinstance(self.report_to, str):
            self.report_to = self.report_to.split(",")
        super().__post_init__()
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
        if self.torch_compile:
            raise ValueError("`torch_compile` would recompile at every step. Train without it.")
        if self.mini_batch_size is not None and (self.deepspeed or self.fsdp):
            raise ValueError("`mini_batch_size` averages gradients itself and does not work with DeepSpeed or FSDP.")
        self.label_names = []

    @property
    def uses_semantics(self) -> bool:
        """Whether the objective needs semantic targets."""
        return self.objective in WITH_SEMANTICS and self.semantic_weight > 0

    @property
    def uses_matching(self) -> bool:
        """Whether the objective trains the cross-encoder."""
        return self.matching_weight > 0


__all__ = ["NEGATIVES", "OBJECTIVE_NAMES", "RANGES", "WITH_SEMANTICS", "WITH_TEMPERATURE", "ScalarTrainingArguments"]
