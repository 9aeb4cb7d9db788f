"""Training objectives: from a batch of embeddings spread over processes to named and weighted loss terms.

A new objective is a subclass of [`Objective`], passed to [`ScalarTrainer`].
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from scalar_retrieval.modeling_scalar.configuration_scalar import ScalarConfig
from scalar_retrieval.modeling_scalar.modalities_scalar import CALIBRATION
from scalar_retrieval.modeling_scalar.scores_scalar import METHODS, find_method, paired_centroids, retrieval_scores

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
"""The weight and the unweighted value of each term, by name."""


@dataclass
class Batch:
    """
    The embeddings of one step: this process's rows, the rows of all processes, and the scores between them.

    Args:
        rows ([`RowLayout`]): How the B rows are spread over processes; b of them are on this one.
        texts (`torch.Tensor` of shape `(b, dim)`), modalities (`(b, M, dim)`), mask (`(b, M)`): The complete views.
        reduced_mask (`(b, M)`): The modalities of each clip's reduced view.
        score_options (`dict`): The keyword arguments of `retrieval_scores` for the model's score and modalities.
            Centroids use its `method` and `query_temperature`.
        affinities (`torch.Tensor` of shape `(B, B)`, *optional*): S* of the captions, 0 where unknown.
        temperature (`torch.Tensor`, *optional*): The learned contrastive temperature, if any.
        clips (`torch.LongTensor` of shape `(B,)`, *optional*): The clip of each row, if clips may have several.
    """

    rows: RowLayout
    texts: torch.Tensor
    modalities: torch.Tensor
    mask: torch.Tensor
    reduced_mask: torch.Tensor
    score_options: dict[str, Any] = field(default_factory=dict)
    affinities: torch.Tensor | None = None
    temperature: torch.Tensor | None = None
    clips: torch.Tensor | None = None

    @cached_property
    def same_clip(self) -> torch.Tensor | None:
        """Pairs of this process's rows and other rows of the same clip, `(b, B)`, which are no negatives. None if each
        row is a clip of its own."""
        if self.clips is None:
            return None
        same = self.clips[self.rows.local, None] == self.clips
        same.diagonal(self.rows.offset).zero_()
        return same

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
        """The complete and the reduced mask, `(B, M)` each."""
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

    @cached_property
    def centroids(self) -> torch.Tensor:
        """This process's reduced clips, each aggregated for its own text, `(b, dim)`; for a score with weights."""
        temperature = centroid_temperature(self.score_options["method"], self.score_options["query_temperature"])
        return paired_centroids(self.texts, self.modalities, self.reduced_mask, temperature)

    @cached_property
    def all_centroids(self) -> torch.Tensor:
        """`(B, dim)`."""
        return self.rows.gather(self.centroids)

    @cached_property
    def text_to_paired_clip(self) -> torch.Tensor:
        """C~ of Eq. 5: this process's texts against all centroids, `(b, B)`."""
        return self._cosines(self.texts, self.all_centroids)

    @cached_property
    def paired_clip_to_text(self) -> torch.Tensor:
        """C~ transposed: this process's centroids against all texts, `(b, B)`."""
        if len(self.rows.counts) == 1:
            return self.text_to_paired_clip.T
        return self._cosines(self.centroids, self.all_texts)

    def _cosines(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device_type=rows.device.type, enabled=False):  # like all scores
            return rows.to(self.centroids.dtype) @ columns.to(self.centroids.dtype).T


def centroid_temperature(method: str, query_temperature: float) -> float:
    """Return tau_w of the centroids of a score; infinite without conditioning, where all weights are equal."""
    if METHODS[method].weights == "equal":
        return float("inf")
    return query_temperature


class Objective(nn.Module):
    """
    The training objective without matching, which [`ScalarTrainer`] adds where `matching_weight` is positive.

    A subclass defines `forward` and declares what it needs, by default nothing. It has no trainable parameters: what
    is learned belongs to the model, which is saved and published.

    Attributes:
        reads_every_modality (`bool`): Whether it reads the embeddings of all modalities, even if the model's score
            does not. Otherwise, heads that the score does not read are not trained.
        uses_reduced_views (`bool`): Whether some clips lose a modality in `batch.reduced_mask`; otherwise it equals
            `batch.mask`.
        uses_semantics (`bool`): Whether it reads `batch.affinities`, for which the run needs semantic targets.

    Example:

        >>> class Margin(Objective):  # for ScalarTrainer(..., objective=Margin())
        ...     def forward(self, batch, step):
        ...         own = batch.text_to_clip.diagonal(batch.rows.offset)[:, None]
        ...         total = (batch.text_to_clip - own + 0.2).relu().sum()
        ...         return {"margin": (1.0, total / batch.rows.mean)}
    """

    reads_every_modality: bool = False
    uses_reduced_views: bool = False
    uses_semantics: bool = False

    def forward(self, batch: Batch, step: int) -> Terms:
        """
        Compute the terms of this process's rows.

        Args:
            batch ([`Batch`]): The embeddings of the step.
            step (`int`): The optimizer steps taken so far.

        Returns:
            `dict`: The weight and the value, a scalar, of each term by name; it is logged as `loss_<name>`. The mean
            of a value over processes must be that of the whole batch, so a sum over this process's rows is divided by
            `batch.rows.mean`.

        Pairs in `batch.same_clip`, if it is not None, are no negatives.
        """
        raise NotImplementedError


class ScalarObjective(Objective):
    """
    SCALAR's own objective without its matching term, Eq. 6 to 9 (Algorithm S2, steps 5 to 8).

    Raises:
        ValueError: If the model's score has no centroid, or its cosines are calibrated.
    """

    reads_every_modality = True
    uses_reduced_views = True

    def __init__(self, args: ScalarTrainingArguments, config: ScalarConfig):
        super().__init__()
        if find_method(config.aggregation, config.modalities).weights is None:
            weighted = [name for name, method in METHODS.items() if method.weights]
            raise ValueError(
                f"The objective 'scalar' needs centroids: `aggregation` must be one of {weighted}, got "
                f"{config.aggregation!r}. For another score use the objective 'contrastive'."
            )
        given = [f"`{name}`" for name in CALIBRATION if getattr(config, name) is not None]
        if given:
            raise ValueError(
                "The objective 'scalar' needs plain cosines, but this model calibrates them with "
                f"{' and '.join(given)} of its configuration. Train the model without, and "
                "calibrate it afterwards."
            )
        # The terms of Eq. 6 to 9, each with its own temperature.
        self.args = args
        query_temperature = centroid_temperature(config.aggregation, config.query_temperature)
        self.alignment = AlignmentLoss(args.temperature, args.contrastive_label_smoothing)
        self.cross_arity = CrossArityLoss(query_temperature)
        self.semantic = SemanticLoss(args.temperature, args.semantic_temperature, args.calibration_weight)
        self.uniformity = UniformityLoss()

    @property
    def uses_semantics(self) -> bool:
        """Whether L_sem has a weight. One that was not given is chosen by the Trainer, which knows the targets."""
        return bool(self.args.semantic_weight)

    def forward(self, batch: Batch, step: int) -> Terms:
        """Compute the terms of this process's rows at an optimizer step."""
        args = self.args
        rows = batch.rows
        # Eq. 6: texts and clips find each other by the score; Eq. 7: a reduced view keeps its centroid and score.
        alignment = self.alignment(
            batch.text_to_clip, batch.clip_to_text, rows.offset, rows.mean, batch.temperature, batch.same_clip
        )
        terms = {"align": (1.0, alignment)}
        if args.cross_arity_weight:
            loss = self.cross_arity(batch.texts, batch.modalities, batch.mask, batch.reduced_mask, rows.mean)
            terms["mask"] = (args.cross_arity_weight, loss)
        if step < args.loss_warmup_steps or not (args.semantic_weight or args.uniformity_weight):
            return terms
        # After the warm-up, on C~: Eq. 8, captions of near meaning score alike; Eq. 9, centroids spread over the
        # sphere.
        if args.semantic_weight:
            scores = batch.text_to_paired_clip
            affinities = batch.affinities.to(scores)
            num_observed = (affinities > 0).sum() / len(rows.counts)
            loss = self.semantic(scores, affinities[rows.local], rows.mean, num_observed, batch.temperature)
            terms["sem"] = (args.semantic_weight, loss)
        if args.uniformity_weight:
            terms["unif"] = (args.uniformity_weight, self.uniformity(batch.all_centroids, batch.clips))
        return terms


class ContrastiveObjective(Objective):
    """
    InfoNCE over the model's score: the objective of GRAM, HyperGRAM and TRIANGLE, without matching.

    Clips that the score does not cover are left out of the loss, together with their texts.

    Raises:
        ValueError: If the model's score cannot be trained.
    """

    def __init__(self, args: ScalarTrainingArguments, config: ScalarConfig):
        super().__init__()
        self.method = find_method(config.aggregation, config.modalities)
        if not self.method.is_trainable:
            trainable = [name for name, method in METHODS.items() if method.is_trainable]
            raise ValueError(
                f"The objective 'contrastive' cannot train the score {config.aggregation!r}, which has no gradient or "
                f"needs more than a training batch. Scores it can train: {trainable}."
            )
        self.alignment = AlignmentLoss(args.temperature, args.contrastive_label_smoothing)

    def forward(self, batch: Batch, step: int) -> Terms:
        """Compute the term of this process's rows."""
        text_to_clip = batch.text_to_clip
        clip_to_text = batch.clip_to_text
        same_clip = batch.same_clip
        rows = batch.rows
        offset = rows.offset
        num_rows = rows.mean
        if self.method.scorable or self.method.needs or self.method.reads is not None:
            # Only clips that have a score: rows of this process, columns of all.
            covered = self.method.covers(batch.all_masks[1], batch.score_options["modalities"])  # (B,)
            own = covered[rows.local]  # (b,)
            text_to_clip = text_to_clip[own][:, covered]
            clip_to_text = clip_to_text[own][:, covered]
            if same_clip is not None:
                same_clip = same_clip[own][:, covered]
            if not covered.any():
                nothing = 0 * (batch.texts.sum() + batch.modalities.sum())
                return {"align": (1.0, nothing)}
            # The rows of processes before this one, and the mean number per process.
            offset = int(covered[: rows.offset].sum())
            num_rows = int(covered.sum()) / len(rows.counts)
        settings = (offset, num_rows, batch.temperature, same_clip)
        return {"align": (1.0, self.alignment(text_to_clip, clip_to_text, *settings))}


class PMRLObjective(Objective):
    """PMRL's objective without its matching term."""

    reads_every_modality = True

    def __init__(self, args: ScalarTrainingArguments, config: ScalarConfig):
        super().__init__()
        self.loss = PMRLLoss(direction_temperature=args.direction_temperature)

    def forward(self, batch: Batch, step: int) -> Terms:
        """Compute the term of this process's rows."""
        singular_values, directions = leading_directions(batch.texts, batch.modalities, batch.mask)
        rows = batch.rows
        everything = rows.gather(directions)
        loss = self.loss(singular_values, directions, everything, rows.offset, rows.mean, batch.same_clip)
        return {"pmrl": (1.0, loss)}


class PathwaysObjective(Objective):
    """InfoNCE for each modality separately, for a backbone that favours no aggregation."""

    reads_every_modality = True

    def __init__(self, args: ScalarTrainingArguments, config: ScalarConfig):
        super().__init__()
        self.loss = PathwaysLoss(args.temperature)

    def forward(self, batch: Batch, step: int) -> Terms:
        """Compute the term of this process's rows."""
        local = batch.texts, batch.modalities, batch.mask
        everything = batch.all_texts, batch.all_modalities, batch.all_masks[0]
        rows = batch.rows
        return {"pathways": (1.0, self.loss(*local, *everything, rows.offset, rows.mean, batch.same_clip))}


OBJECTIVES: dict[str, type[Objective]] = {
    "scalar": ScalarObjective,
    "contrastive": ContrastiveObjective,
    "pmrl": PMRLObjective,
    "pathways": PathwaysObjective,
}
"""The objectives by their names in the argument `objective`; each is built from the arguments and the model's
configuration."""


__all__ = [
    "OBJECTIVES",
    "Batch",
    "ContrastiveObjective",
    "Objective",
    "PMRLObjective",
    "PathwaysObjective",
    "ScalarObjective",
    "Terms",
    "centroid_temperature",
]
