"""What is minimised: a batch of embeddings spread over processes in, named and weighted terms out."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from modeling_scalar.aggregation_scalar import paired_centroids, retrieval_scores
from modeling_scalar.configuration_scalar import MODALITIES, ScalarConfig

from .distributed import RowLayout
from .losses import (
    AlignmentLoss,
    CrossArityLoss,
    PathwaysLoss,
    PMRLLoss,
    SemanticLoss,
    UniformityLoss,
    leading_directions,
)
from .training_args import ScalarTrainingArguments

Terms = dict[str, tuple[float, torch.Tensor]]
"""Name of a term to its weight and its unweighted value."""


@dataclass
class Batch:
    """
    The embeddings of one step: this process's rows, the rows of all, and the scores between them.

    Args:
        rows ([`RowLayout`]): which rows lie where; b of the B rows lie here.
        texts (`torch.Tensor` of shape `(b, dim)`), modalities (`(b, 3, dim)`), mask (`(b, 3)`): complete views.
        reduced_mask (`(b, 3)`): what is left of each clip in its reduced view.
        score_options (`dict`): how the model scores, keyword arguments of `retrieval_scores`.
        affinities (`torch.Tensor` of shape `(B, B)`, *optional*): S* of the captions, 0 where unknown.
        temperature (`torch.Tensor`, *optional*): the learned contrastive temperature, if there is one.
    """

    rows: RowLayout
    texts: torch.Tensor
    modalities: torch.Tensor
    mask: torch.Tensor
    reduced_mask: torch.Tensor
    score_options: dict[str, Any] = field(default_factory=dict)
    affinities: torch.Tensor | None = None
    temperature: torch.Tensor | None = None

    @cached_property
    def all_texts(self) -> torch.Tensor:
        """`(B, dim)`."""
        return self.rows.gather(self.texts)

    @cached_property
    def all_modalities(self) -> torch.Tensor:
        """`(B, 3, dim)`."""
        return self.rows.gather(self.modalities)

    @cached_property
    def all_masks(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Complete and reduced, `(B, 3)` each."""
        return tuple(self.rows.gather(torch.cat([self.mask, self.reduced_mask], dim=1)).chunk(2, dim=1))

    @cached_property
    def text_to_clip(self) -> torch.Tensor:
        """C of Eq. 5: this process's texts against all reduced clips, `(b, B)`."""
        return retrieval_scores(self.texts, self.all_modalities, self.all_masks[1], **self.score_options)

    @cached_property
    def clip_to_text(self) -> torch.Tensor:
        """C transposed: this process's reduced clips against all texts, `(b, B)`."""
        if len(self.rows.counts) == 1:
            return self.text_to_clip.T
        return retrieval_scores(self.all_texts, self.modalities, self.reduced_mask, **self.score_options).T


def centroid_temperature(config: ScalarConfig) -> float:
    """Return tau_w of the centroids: infinite where query conditioning is off and all weights are equal."""
    return float("inf") if config.aggregation == "uniform" else config.query_temperature


class ScalarObjective:
    """SCALAR's own objective without its matching term, Eq. 6 to 9 (Algorithm S2, steps 5 to 8)."""

    def __init__(self, args: ScalarTrainingArguments, config: ScalarConfig):
        if config.aggregation not in ("scalar", "uniform"):
            raise ValueError(
                f"The objective 'scalar' is that of centroids: `aggregation` must be 'scalar' or 'uniform', got "
                f"{config.aggregation!r}. For another score take the objective 'contrastive'."
            )
        self.args = args
        self.query_temperature = centroid_temperature(config)
        self.alignment = AlignmentLoss(args.temperature, args.contrastive_label_smoothing)
        self.cross_arity = CrossArityLoss(self.query_temperature)
        self.semantic = SemanticLoss(args.temperature, args.semantic_temperature, args.calibration_weight)
        self.uniformity = UniformityLoss(args.uniformity_scale)

    def __call__(self, batch: Batch, step: int) -> Terms:
        """Compute the terms of this process's rows at an optimizer step."""
        args, rows = self.args, batch.rows
        alignment = self.alignment(
            batch.text_to_clip, batch.clip_to_text, rows.offset, rows.mean, temperature=batch.temperature
        )
        terms = {"align": (1.0, alignment)}
        if args.cross_arity_weight:
            loss = self.cross_arity(batch.texts, batch.modalities, batch.mask, batch.reduced_mask, rows.mean)
            terms["mask"] = (args.cross_arity_weight, loss)
        if step < args.loss_warmup_steps or not (args.semantic_weight or args.uniformity_weight):
            return terms
        centroids = paired_centroids(batch.texts, batch.modalities, batch.reduced_mask, self.query_temperature)
        all_centroids = rows.gather(centroids)
        if args.semantic_weight:
            scores = batch.texts.to(centroids.dtype) @ all_centroids.T  # (b, B): C~ of Eq. 5
            affinities = batch.affinities.to(scores)
            num_observed = (affinities > 0).sum() / len(rows.counts)
            loss = self.semantic(scores, affinities[rows.local], rows.mean, num_observed, batch.temperature)
            terms["sem"] = (args.semantic_weight, loss)
        if args.uniformity_weight:
            terms["unif"] = (args.uniformity_weight, self.uniformity(all_centroids))
        return terms


class ContrastiveObjective:
    """InfoNCE over whatever score the model has: GRAM's, HyperGRAM's and TRIANGLE's, without matching."""

    def __init__(self, args: ScalarTrainingArguments, config: ScalarConfig):
        if config.aggregation in MODALITIES:
            raise ValueError(
                f"The objective 'contrastive' cannot train the single pathway {config.aggregation!r}: clips without "
                "it have no score. The objective 'pathways' trains each pathway."
            )
        self.needs_video_and_audio = config.aggregation == "triangle"
        self.alignment = AlignmentLoss(args.temperature, args.contrastive_label_smoothing)

    def __call__(self, batch: Batch, step: int) -> Terms:
        """Compute the terms of this process's rows; a clip that the score does not cover takes no part."""
        text_to_clip, clip_to_text, rows = batch.text_to_clip, batch.clip_to_text, batch.rows
        offset, num_rows = rows.offset, rows.mean
        if self.needs_video_and_audio:
            covered = batch.all_masks[0][:, :2].all(dim=1)  # (B,)
            text_to_clip, clip_to_text = (
                scores[covered[rows.local]][:, covered] for scores in (text_to_clip, clip_to_text)
            )
            if not covered.any():
                nothing = 0 * (batch.texts.sum() + batch.modalities.sum())
                return {"align": (1.0, nothing)}
            offset, num_rows = int(covered[: rows.offset].sum()), int(covered.sum()) / len(rows.counts)
        return {"align": (1.0, self.alignment(text_to_clip, clip_to_text, offset, num_rows, batch.temperature))}


class PMRLObjective:
    """PMRL's objective without its matching term."""

    def __init__(self, args: ScalarTrainingArguments, config: ScalarConfig):
        self.loss = PMRLLoss()

    def __call__(self, batch: Batch, step: int) -> Terms:
        """Compute the term of this process's rows."""
        singular_values, directions = leading_directions(batch.texts, batch.modalities, batch.mask)
        rows = batch.rows
        loss = self.loss(singular_values, directions, rows.gather(directions), rows.offset, rows.mean)
        return {"pmrl": (1.0, loss)}


class PathwaysObjective:
    """InfoNCE for each modality on its own: a backbone that favours no aggregation."""

    def __init__(self, args: ScalarTrainingArguments, config: ScalarConfig):
        self.loss = PathwaysLoss(args.temperature)

    def __call__(self, batch: Batch, step: int) -> Terms:
        """Compute the term of this process's rows."""
        local = batch.texts, batch.modalities, batch.mask
        everything = batch.all_texts, batch.all_modalities, batch.all_masks[0]
        return {"pathways": (1.0, self.loss(*local, *everything, batch.rows.offset, batch.rows.mean))}


_OBJECTIVES = {
    "scalar": ScalarObjective,
    "contrastive": ContrastiveObjective,
    "pmrl": PMRLObjective,
    "pathways": PathwaysObjective,
}


def build_objective(args: ScalarTrainingArguments, config: ScalarConfig):
    """Return the objective named in the arguments, a callable `(batch, step) -> Terms`."""
    return _OBJECTIVES[args.objective](args, config)


__all__ = ["Batch", "Terms", "build_objective", "centroid_temperature"]
