"""Fields of a training run that transformers does not have; what changes the function computed is configuration."""

from dataclasses import dataclass, field

from transformers import TrainingArguments

from .lora import RECIPES

OBJECTIVES = ("scalar", "pathways")


@dataclass
class ScalarTrainingArguments(TrainingArguments):
    """
    Arguments of [`ScalarTrainer`]. Defaults are the paper's (Table S1) where it has them.

    Raises:
        ValueError: a field is outside its range, or the name of an objective or recipe is unknown.
    """

    objective: str = field(
        default="scalar",
        metadata={"help": "'scalar' (Eq. 10), or 'pathways': plain InfoNCE per modality, for a backbone."},
    )
    adapter: str = field(default="paper", metadata={"help": f"What is trained, one of {RECIPES}."})
    temperature: float = field(default=0.07, metadata={"help": "Contrastive temperature tau, fixed; positive."})
    contrastive_label_smoothing: float = field(default=0.1, metadata={"help": "Of the alignment loss, in [0, 1)."})
    cross_arity_weight: float = field(default=1.0, metadata={"help": "Weight beta of L_mask (Eq. 7); 0 skips it."})
    matching_weight: float = field(default=0.1, metadata={"help": "Weight of L_DAM; 0 skips the cross-encoder."})
    full_view_probability: float = field(
        default=0.5, metadata={"help": "Value to which p_full falls, in [0, 1]; 1 turns reduced views off."}
    )
    full_view_decay_steps: int = field(default=2000, metadata={"help": "Steps over which p_full falls from 1."})
    eval_gallery_batch_size: int = field(default=64, metadata={"help": "Clips per forward pass in evaluation."})

    # Defaults of transformers that the paper changes.
    learning_rate: float = field(default=2e-5, metadata={"help": "Peak learning rate."})
    weight_decay: float = field(default=0.01, metadata={"help": "Of AdamW."})
    adam_beta2: float = field(default=0.98, metadata={"help": "Of AdamW."})
    max_grad_norm: float = field(default=2.0, metadata={"help": "Gradient clipping."})
    num_train_epochs: float = field(default=5.0, metadata={"help": "Epochs."})
    warmup_steps: float = field(default=0.1, metadata={"help": "Steps, or a share of them below 1."})
    seed: int = field(default=50, metadata={"help": "Of all draws; the paper's runs have 50, 51 and 52."})
    # Defaults that retrieval training needs: examples carry files, not columns of the model; every process must hold
    # as many rows, or the matches of gathered rows would be misplaced.
    remove_unused_columns: bool = field(default=False, metadata={"help": "Keep False: a clip is no column."})
    dataloader_drop_last: bool = field(default=True, metadata={"help": "Keep True: every process, as many rows."})

    def __post_init__(self):
        super().__post_init__()
        if self.objective not in OBJECTIVES:
            raise ValueError(f"`objective` must be one of {OBJECTIVES}, got {self.objective!r}.")
        if self.adapter not in RECIPES:
            raise ValueError(f"`adapter` must be one of {RECIPES}, got {self.adapter!r}.")
        if not self.temperature > 0:
            raise ValueError(f"`temperature` must be positive, got {self.temperature!r}.")
        if not 0 <= self.full_view_probability <= 1:
            raise ValueError(f"`full_view_probability` must be in [0, 1], got {self.full_view_probability!r}.")
        for name in ("cross_arity_weight", "matching_weight", "full_view_decay_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` must not be negative, got {getattr(self, name)!r}.")
        if self.remove_unused_columns:
            raise ValueError("`remove_unused_columns` must be False: examples carry clips, not columns of the model.")
        if self.dataloader_persistent_workers:
            raise ValueError("`dataloader_persistent_workers` must be False: such workers never learn of a new epoch.")
        if not self.dataloader_drop_last:
            raise ValueError("`dataloader_drop_last` must be True: every process needs as many rows as the others.")
        self.label_names = []


__all__ = ["OBJECTIVES", "ScalarTrainingArguments"]
