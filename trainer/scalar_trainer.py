"""The Trainer of SCALAR: forward pass, gather over processes, objective terms, and retrieval as evaluation."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import datasets
import torch
from accelerate.utils import send_to_device
from peft import PeftModel
from transformers import PretrainedConfig, set_seed
from transformers.trainer_utils import HPSearchBackend, PredictionOutput

from scalar_retrieval.modeling_scalar import ScalarJointConfig, ScalarOutput, ScalarProcessor
from scalar_retrieval.modeling_scalar.modalities_scalar import CALIBRATION, FAMILIES
from scalar_retrieval.modeling_scalar.model_identity import identify
from scalar_retrieval.modeling_scalar.retrieval_scalar import ScalarRetrievalModel
from scalar_retrieval.modeling_scalar.scores_scalar import find_method, paired_weights

from .data import ClipDataset, Examples, check_rows, clips_of
from .distributed import RowLayout, average_gradients, world_size
from .draws import MatchingPairs, choose_pairs, derived_generator, full_view_probability, reduced_views
from .grad_cache import BatchInParts
from .identity import describe_identity
from .lora import apply_adapters, lora_parameters, without_adapter
from .losses import MatchingLoss
from .objectives import OBJECTIVES, Batch, Objective, Terms, centroid_temperature
from .resuming import ResumableTrainer
from .semantic_targets import SemanticTargets
from .training_args import WITH_SEMANTICS, ScalarTrainingArguments

if TYPE_CHECKING:
    from scalar_retrieval.eval.embedding.embeddings import Embeddings

logger = logging.getLogger(__name__)


@dataclass
class _Step:
    """The inputs of a step, before any tower has run."""

    inputs: dict[str, torch.Tensor]  # the model's arguments
    clip_index: torch.Tensor | None  # of this process's rows in the data set, (b,)
    rows: RowLayout
    draws: torch.Tensor  # uniform numbers of this process's rows, (b, 4)
    full_probability: float  # of keeping every modality of a clip


def _check_joint(config: ScalarJointConfig, args: ScalarTrainingArguments) -> None:
    if args.uses_matching:
        raise ValueError(
            "A joint encoder has no cross-encoder to train for matching. Set `matching_weight: 0`, as in "
            "recipes/joint.yaml."
        )
    if config.backbone_config is None:
        return
    # Only some encoders compute in float16.
    family = config.backbone_config.model_type
    if args.mixed_precision == "fp16" and not FAMILIES[family].has_float16:
        raise ValueError(
            f"A {family!r} encoder gives NaN in float16. Train with `bf16: true`, or without mixed precision."
        )


def _check_fit(
    config: PretrainedConfig, args: ScalarTrainingArguments, objective: Objective, targets: SemanticTargets | None
) -> None:
    """Raise an error unless model, arguments, objective and targets are compatible."""
    if args.n_gpu > 1:
        raise ValueError(
            f"One process sees {args.n_gpu} GPUs. Launch one process per GPU (`accelerate launch --num_processes "
            f"{args.n_gpu}`), or use one GPU (`--gpu_ids 0`)."
        )
    trainable = [name for name, parameter in objective.named_parameters() if parameter.requires_grad]
    if trainable:
        raise ValueError(
            f"The objective has trainable parameters, {trainable[:5]}, which would be neither trained nor saved with "
            "the model. Move them into the model, or fix them with `requires_grad_(False)`."
        )
    if isinstance(config, ScalarJointConfig):
        _check_joint(config, args)
    # What the losses read must exist: semantic targets, and centroids for paired negatives.
    if objective.uses_semantics and targets is None:
        raise ValueError(
            "The objective needs `semantic_targets`: create them with "
            "`python -m scalar_retrieval.trainer.semantic_targets`, or set `semantic_weight` to 0 to skip L_sem."
        )
    if args.negatives_from == "paired" and find_method(config.aggregation, config.modalities).weights is None:
        raise ValueError(
            "`negatives_from: paired` needs centroids, which the score "
            f"{config.aggregation!r} does not have. Use `negatives_from: scores`."
        )


def _not_finite(what: str, value: Any) -> str:
    return (
        f"The {what} is not finite: {value}. This step was neither applied nor saved. Lower `learning_rate`, or "
        "check the clips of the step; then continue with `--resume_from_checkpoint last`."
    )


def make_trainable(
    model: PeftModel | ScalarRetrievalModel,
    args: ScalarTrainingArguments,
    objective: Objective | type[Objective],
    revision: str | None = None,
) -> PeftModel | ScalarRetrievalModel:
    """Make those parameters trainable that the arguments name and the objective reaches; see [`apply_adapters`]."""
    modalities = None  # those of the score
    if objective.reads_every_modality:
        modalities = without_adapter(model).config.modalities
    temperature = None
    if args.learnable_temperature:
        temperature = args.temperature
    return apply_adapters(model, args.adapter, args.uses_matching, temperature, revision, modalities)


_REFUSED = {
    "preprocess_logits_for_metrics": "Evaluation is retrieval, see `evaluate`.",
    "compute_loss_func": "Pass an `objective`, see `scalar_retrieval.trainer.objectives.Objective`.",
}
"""What to do instead of giving an argument of the Trainer that has no effect here."""

Rows = datasets.Dataset | dict[str, datasets.Dataset]
"""Rows to evaluate on, or several sets of them by name."""


class ScalarTrainer(ResumableTrainer):
    """
    Train a [`ScalarModel`], a [`ScalarJointModel`] or a PEFT model of one, with the objective named in its arguments
    or with one of your own.

    The Trainer puts the adapter of its arguments on the model. A PEFT model is continued if its adapter is the same,
    and merged for `adapter="full"`. Weights in half precision are trained in float32.

    Args:
        model ([`ScalarModel`], [`ScalarJointModel`] or `PeftModel`, *optional*): The model, as [`load_model`] returns
            it; an adapter that is to be continued with `trainable=True`.
        args ([`ScalarTrainingArguments`]): The arguments of the run.
        semantic_targets ([`SemanticTargets`], *optional*): Targets of the training captions; L_sem needs them.
        objective ([`Objective`], *optional*): An objective to use instead of `args.objective`.
        train_dataset (`datasets.Dataset`): Rows with a `caption` and at least one of `video_path` (or `video`, of type
            `Video`), `audio_path`, `subtitle` and the model's further texts. None says that this clip lacks it.
            Without `audio_path` the sound is that of the video file; without `video_id`, rows of the same file are one
            clip. Other data sets ([`FeatureDataset`], batches of your own) are used as they are.
        eval_dataset (`datasets.Dataset` or `dict` of them, *optional*): Rows like these; evaluation is retrieval among
            their clips.
        processing_class ([`ScalarProcessor`]): The processor, which reads the files, and is saved with every
            checkpoint.
        data_collator (`Callable`, *optional*): By default that of the examples.
        model_init (`Callable`, *optional*): Returns a new model, instead of `model`, at the start of each training.
        compute_metrics (`Callable`, *optional*): Gets a [`~scalar_retrieval.trainer.retrieval.RetrievalPrediction`],
            and returns further metrics by name.
        callbacks, optimizers, optimizer_cls_and_kwargs: As in transformers.

    Raises:
        ValueError: If model, arguments, objective and data are incompatible, or if the loss is not finite during
            training.
        FileNotFoundError: If a file of the rows does not exist.

    Example:

        >>> model, processor = load_model("user/miniature-backbone")
        >>> args = ScalarTrainingArguments("runs/mine", adapter="heads", max_steps=1, use_cpu=True)
        >>> rows = Dataset.from_csv("train.csv")  # with the columns caption and video_path
        >>> trainer = ScalarTrainer(model, args, train_dataset=rows, processing_class=processor)
        >>> trainer.train().global_step
        {'train_runtime': ...}
        1
    """

    # The loss is a mean over the batch; the Trainer divides it by the accumulation steps.
    loss_is_scaled_for_ga = False

    def __init__(
        self,
        model: PeftModel | ScalarRetrievalModel | None,
        args: ScalarTrainingArguments,
        *,
        semantic_targets: SemanticTargets | None = None,
        objective: Objective | None = None,
        train_dataset: torch.utils.data.Dataset | datasets.Dataset | None = None,
        eval_dataset: Rows | None = None,
        processing_class: ScalarProcessor | None = None,
        data_collator: Callable[[list], dict[str, torch.Tensor]] | None = None,
        **kwargs: Any,
    ):
        for name, instead in _REFUSED.items():
            if kwargs.get(name) is not None:
                raise ValueError(f"`{name}` is not supported. {instead}")
        if not isinstance(args, ScalarTrainingArguments):
            raise TypeError(f"`args` must be `ScalarTrainingArguments`, got {type(args).__name__}.")
        self.args = args
        self.processor = processing_class
        self.semantic_targets = semantic_targets
        self._given_objective = objective
        # Rows become examples, and are checked before anything is computed.
        train_dataset = self._examples(train_dataset)
        if data_collator is None and isinstance(train_dataset, Examples):
            data_collator = train_dataset.collator
        if eval_dataset is not None:
            eval_dataset = self._checked(eval_dataset, "eval_dataset")
        if kwargs.get("compute_metrics") is None:  # which may measure anything
            prefixes = [""]
            if isinstance(eval_dataset, dict):
                prefixes = [f"{name}_" for name in eval_dataset]
            args.check_metric(prefixes)
        # The weights of a new adapter are drawn, like all that follows, from the seed.
        set_seed(args.seed)
        if model is not None:
            model = self._fitted(model, args)
        # The Trainer aligns and saves tokenizers. An encoder that is used as published keeps its own.
        if not hasattr(processing_class, "tokenizer"):
            processing_class = None
        data = {"train_dataset": train_dataset, "eval_dataset": eval_dataset, "data_collator": data_collator}
        super().__init__(model, args, processing_class=processing_class, **data, **kwargs)
        if self.optimizer is not None and args.lora_learning_rate is not None:
            raise ValueError(
                "`lora_learning_rate` has no effect on an optimizer of your own. Give it groups with rates."
            )
        self.matching_loss = MatchingLoss()
        self._reset_counts()

    # Model and data -----------------------------------------------------------------------------------------------

    @property
    def matches(self) -> bool:
        """Whether the cross-encoder is trained."""
        return self.args.uses_matching and self.scalar_config.has_cross_attention

    def _fitted(
        self, model: PeftModel | ScalarRetrievalModel, args: ScalarTrainingArguments
    ) -> PeftModel | ScalarRetrievalModel:
        """Return the model as the arguments train it, and build the objective."""
        base = without_adapter(model)
        leaves_out_semantics = args.semantic_weight is None and self.semantic_targets is None
        args.fill_in(self.semantic_targets is not None, isinstance(base.config, ScalarJointConfig))
        objective = self._given_objective
        if objective is None:
            if leaves_out_semantics and args.objective in WITH_SEMANTICS:
                logger.warning("There are no `semantic_targets`: training without L_sem (`semantic_weight` 0).")
            objective = OBJECTIVES[args.objective](args, base.config)
        _check_fit(base.config, args, objective, self.semantic_targets)
        self.loss_terms = objective.to(args.device)
        if base.dtype in (torch.float16, torch.bfloat16):
            logger.warning("The weights, loaded in %s, are trained in float32.", base.dtype)
            model.float()
        # An adapter names its base, and the commit if that is on the Hub.
        revision = None
        if base.name_or_path:
            revision = identify(base.name_or_path).commit
        model = make_trainable(model, args, objective, revision)
        if isinstance(model, PeftModel) and not base.name_or_path:
            logger.warning(
                "The model was not loaded from a folder or the Hub, so its adapter cannot be loaded again. To keep "
                "what is trained, first save the model, and load it: model.save_pretrained(FOLDER), "
                "load_model(FOLDER)."
            )
        self.scalar_model = without_adapter(model)
        self.scalar_config = self.scalar_model.config
        return model

    def call_model_init(self, trial: Any = None) -> PeftModel | ScalarRetrievalModel:
        """Return a new model, made trainable with the arguments, or with those of a trial of a search."""
        model = super().call_model_init(trial)
        self._identity = None  # that of the last model
        if trial is None:
            return self._fitted(model, self.args)
        chosen = trial
        if self.hp_search_backend == HPSearchBackend.OPTUNA:
            chosen = self.hp_space(trial)
        return self._fitted(model, replace(self.args, **chosen))

    def _examples(self, data: Any) -> torch.utils.data.Dataset | None:
        """Return training examples of rows; another data set is used as it is."""
        is_iterable = isinstance(data, torch.utils.data.IterableDataset)
        if data is not None and (is_iterable or not isinstance(data, torch.utils.data.Dataset)):
            rows = self._checked(data, "train_dataset")
            data = ClipDataset(rows, self.processor, self.args.seed, self.args.keep_in_memory)
        if isinstance(data, Examples) and isinstance(self.semantic_targets, SemanticTargets):
            self.semantic_targets.check(data.rows)
        return data

    def _checked(self, rows: Any, what: str, need_captions: bool = True) -> Any:
        """Check rows or, by name, several sets of them."""
        if isinstance(rows, dict) and what == "eval_dataset":
            return {name: self._checked(each, f"{what}[{name!r}]") for name, each in rows.items()}
        if self.processor is None:
            raise ValueError("Rows need a `processing_class`, the processor that `load_model` returns with the model.")
        return check_rows(rows, self.processor.modalities, what, need_captions)

    def _begin(self) -> None:
        super()._begin()
        self._reset_counts()

    def _reset_counts(self) -> None:
        self._last_step = -1
        self._micro_step = 0
        self._clips_since_log = 0
        self._time_of_log = 0.0

    def describe_identity(self) -> dict[str, Any]:
        """Describe what identifies this run."""
        identity = describe_identity(self.args, self.model, self.scalar_config, self.processing_class)
        identity["num_examples"] = len(self.train_dataset)
        if isinstance(self.train_dataset, Examples):
            identity |= self.train_dataset.identity()
        if isinstance(self.semantic_targets, SemanticTargets):
            identity["semantic targets"] = self.semantic_targets.sha256()
        return identity

    @cached_property
    def _clips(self) -> torch.Tensor | None:
        """The clip of each training example; None if no clip has several."""
        if self.train_dataset is None:  # the caller has batches of its own
            return None
        clips = clips_of(self.train_dataset)
        if len(clips.unique()) == len(clips):
            return None
        return clips

    # Optimizer ----------------------------------------------------------------------------------------------------

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """Create the optimizer; with `lora_learning_rate` the LoRA matrices get their own groups."""
        rate = self.args.lora_learning_rate
        if self.optimizer is not None or rate is None:
            return super().create_optimizer(model)
        optimizer = super().create_optimizer(model)
        if model is None:
            model = self.model
        # The Trainer has made groups with and without weight decay; split the LoRA matrices off each.
        adapted = set(map(id, lora_parameters(model)))
        for group in list(optimizer.param_groups):
            matrices = []
            others = []
            for parameter in group["params"]:
                if id(parameter) in adapted:
                    matrices.append(parameter)
                else:
                    others.append(parameter)
            if matrices:  # all other options, such as the weight decay, are those of their original group
                group["params"] = others
                optimizer.add_param_group({**group, "params": matrices, "lr": rate})
        return optimizer

    # One step -----------------------------------------------------------------------------------------------------

    def _start_step(self, inputs: dict[str, Any]) -> _Step:
        """Count the step and determine the layout of its rows."""
        # With accumulation, a step has several batches: number them from 0.
        step = self.state.global_step
        if step == self._last_step:
            self._micro_step += 1
        else:
            self._micro_step = 0
        self._last_step = step
        inputs = dict(inputs)
        clip_index = inputs.pop("clip_index", None)
        # Only the last batch of an epoch, or clips that were left out, can make processes have different numbers.
        may_differ = not self.args.dataloader_drop_last or getattr(self.data_collator, "leaves_out", False)
        rows = RowLayout.of(len(inputs["modality_mask"]), self.args.device, may_differ)
        # They depend only on seed, step, micro-step and position in the global batch, so resumed runs and several
        # processes draw the same.
        generator = derived_generator(self.args.seed, step, self._micro_step)
        draws = torch.rand(rows.total, 4, generator=generator)[rows.local]
        probability = 1.0
        if self.loss_terms.uses_reduced_views:
            args = self.args
            probability = full_view_probability(step, args.full_view_probability, args.full_view_decay_steps)
        return _Step(inputs, clip_index, rows, draws, probability)

    def _batch(self, output: ScalarOutput, step: _Step) -> Batch:
        """The embeddings of the step, with what the objective needs to know of them."""
        # S* of the captions of all processes (Eq. 8), once the warm-up is over, and their clips.
        device = output.text_embeds.device
        needs_affinities = self.loss_terms.uses_semantics and self.state.global_step >= self.args.loss_warmup_steps
        affinities = None
        clips = None
        if needs_affinities or self._clips is not None:
            index = step.rows.gather(step.clip_index).cpu()
            if needs_affinities:
                affinities = self.semantic_targets.affinities(index, index, self.args.semantic_temperature).to(device)
            if self._clips is not None:
                clips = self._clips[index].to(device)
        # The views M, in which some clips lose a modality.
        reduced_mask = reduced_views(
            output.modality_mask, step.full_probability, step.draws[:, :2], self.args.min_view_modalities
        )
        temperature = None
        if self.args.learnable_temperature:
            temperature = output.temperature
        return Batch(
            rows=step.rows,
            texts=output.text_embeds,
            modalities=output.modality_embeds,
            mask=output.modality_mask,
            reduced_mask=reduced_mask,
            score_options=self.scalar_model.score_options() | {"modalities": self.scalar_config.modalities},
            affinities=affinities,
            temperature=temperature,
            clips=clips,
        )

    def _choose_pairs(self, batch: Batch, step: _Step, condition_mask: torch.Tensor) -> MatchingPairs:
        temperature = self.args.temperature
        if batch.temperature is not None:
            temperature = batch.temperature.detach()
        tokens = step.inputs["input_ids"], step.inputs["attention_mask"]
        paired = self.args.negatives_from == "paired"
        return choose_pairs(batch, *tokens, condition_mask, step.draws[:, 2:], temperature, paired)

    def _total(self, batch: Batch, step: _Step, terms: Terms) -> torch.Tensor:
        """The weighted sum of all terms, which are recorded for the log."""
        total = sum(weight * loss for weight, loss in terms.values())
        losses = {name: loss for name, (_, loss) in terms.items()}
        self._record_losses(losses, batch, step, total)
        return total

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, ScalarOutput]:
        """Compute the weighted sum of the objective's terms, for this process's rows against all rows."""
        step = self._start_step(inputs)
        batch = None
        pairs = None

        def select_pairs(output: ScalarOutput) -> tuple[torch.Tensor, ...]:
            nonlocal batch, pairs
            batch = self._batch(output, step)
            states = step.rows.gather(output.condition_states, ragged=True)
            pairs = self._choose_pairs(batch, step, output.condition_mask)
            return pairs.input_ids, pairs.attention_mask, states[pairs.clips], pairs.condition_mask

        # One forward pass, because wrappers for several processes allow no second one in a step. For matching, the
        # model calls `select_pairs` between its towers and its cross-encoder: hard negatives depend on all scores.
        matching = {}
        if self.matches:
            matching = {"select_pairs": select_pairs, "condition_on": tuple(self.scalar_config.condition_on)}
        output = model(**step.inputs, **matching, return_scores=False)
        # Eq. 10: the terms of the embeddings, plus matching.
        if batch is None:
            batch = self._batch(output, step)
        terms = self.loss_terms(batch, self.state.global_step)
        if self.matches:
            loss = self.matching_loss(output.match_logits, pairs.is_match, pairs.num_pairs)
            terms["dam"] = (self.args.matching_weight, loss)
        total = self._total(batch, step, terms)
        if return_outputs:
            return total, output
        return total

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Compute the loss and its gradient, in parts if `mini_batch_size` is set."""
        # The loader has pinned them, so this process need not wait for the copy.
        inputs = send_to_device(inputs, self.args.device, non_blocking=True)
        if self.args.lora_learning_rate is not None:
            # That of the group that was added last. The schedule has advanced when this step is logged.
            self._lora_rate = float(self.optimizer.param_groups[-1]["lr"])
        if self.args.mini_batch_size is None:
            loss = super().training_step(model, inputs, num_items_in_batch)
        else:
            model.train()
            loss = self._cached_step(inputs).detach() / self.current_gradient_accumulation_steps
            if self.accelerator.sync_gradients:
                average_gradients([parameter for parameter in self.model.parameters() if parameter.requires_grad])
        # Clipping would hide a norm that overflows. A gradient scaler for half precision skips a step with a bad
        # gradient itself and lowers its scale.
        if self.accelerator.sync_gradients and self.accelerator.scaler is None:
            norm = self.accelerator.clip_grad_norm_(model.parameters(), float("inf"))  # which changes nothing
            if not torch.as_tensor(norm).isfinite():
                raise ValueError(_not_finite(f"gradient of step {self.state.global_step + 1}", norm))
        return loss

    def _cached_step(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Equivalent to [`compute_loss`] and its backward pass, a few clips at a time; see
        `scalar_retrieval.trainer.grad_cache`."""
        step = self._start_step(inputs)
        model = self.accelerator.unwrap_model(self.model_wrapped)
        size = self.args.mini_batch_size
        condition_on = None
        if self.matches:
            condition_on = tuple(self.scalar_config.condition_on)
        # Embed all clips, a few at a time and without keeping activations.
        parts = BatchInParts(model, self.scalar_model, size, self.accelerator.autocast, condition_on)
        whole = parts.forward(step.inputs)
        if self.args.learnable_temperature:
            whole.temperature = self.scalar_model.logit_scale()
        # The terms of the whole batch, as in `compute_loss`.
        batch = self._batch(whole, step)
        terms = self.loss_terms(batch, self.state.global_step)
        scale = 1 / self.current_gradient_accumulation_steps
        if self.matches:
            pairs = self._choose_pairs(batch, step, whole.condition_mask)
            loss = self._cached_matching(pairs, step.rows, whole.condition_states, scale)
            terms["dam"] = (self.args.matching_weight, loss)
        total = self._total(batch, step, terms)
        # From the loss to the embeddings, then from these to the weights, again a few clips at a time.
        self.accelerator.backward(total * scale)
        parts.backward()  # the gradients are already scaled
        return total.detach()

    def _cached_matching(
        self, pairs: MatchingPairs, rows: RowLayout, leaf: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Backpropagate L_DAM to the cross-encoder and to the condition tokens `leaf`; return the loss."""
        # Cut the graph at the condition tokens of all processes, where the gradients of all parts add up.
        gathered = rows.gather(leaf, ragged=True)
        states = gathered.detach().requires_grad_()
        total = states.new_zeros(())
        for part in torch.arange(len(pairs.clips), device=states.device).split(self.args.mini_batch_size):
            with self.accelerator.autocast():
                logits = self.scalar_model.match_logits(
                    pairs.input_ids[part],
                    pairs.attention_mask[part],
                    states[pairs.clips[part]],
                    pairs.condition_mask[part],
                )
            loss = self.matching_loss(logits, pairs.is_match[part], pairs.num_pairs)
            self.accelerator.backward(self.args.matching_weight * scale * loss)
            total = total + loss.detach()
        # Once, even without a gradient, because every process must take part in the collective equally often.
        gradient = states.grad
        if gradient is None:
            gradient = torch.zeros_like(gathered)
        gathered.backward(gradient)
        return total

    # Logging and evaluation ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def _record_losses(self, losses: dict[str, torch.Tensor], batch: Batch, step: _Step, total: torch.Tensor) -> None:
        """Add the losses and weights of a step to the means of the next log; a ValueError if the loss is not
        finite."""
        if not total.isfinite():  # the Trainer's own filter also reads the loss at every step
            values = {name: loss.item() for name, loss in losses.items()}
            raise ValueError(_not_finite(f"loss of step {self.state.global_step + 1}", values))
        parts = {f"loss_{name}": loss for name, loss in losses.items()}
        parts["p_full"] = total.new_tensor(step.full_probability)
        # How the score weights the modalities of each clip for its own text (Eq. 2).
        config = self.scalar_config
        if find_method(config.aggregation, config.modalities).weights:
            temperature = centroid_temperature(config.aggregation, config.query_temperature)
            calibration = {name: getattr(config, name) for name in CALIBRATION}
            weights = paired_weights(batch.texts, batch.modalities, batch.mask, temperature, **calibration)
            for index, name in enumerate(config.modalities):
                parts[f"weight_{name}"] = weights[:, index].mean()
            parts["weight_entropy"] = torch.special.entr(weights).sum(1).mean()
        if batch.temperature is not None:
            parts["temperature"] = batch.temperature
        self.means.add(parts)
        self._clips_since_log += batch.rows.total

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the means of all terms since the last log, over all processes, and the throughput."""
        # With the Trainer's own loss, those of the terms.
        if "loss" in logs and self.means.sums:
            names, means = self.means.take()
            if world_size() > 1:
                means = self.accelerator.reduce(means, reduction="mean")
            logs = logs | dict(zip(names, means.tolist(), strict=True))
            now = time.perf_counter()
            if self._time_of_log:
                logs["clips_per_second"] = self._clips_since_log / (now - self._time_of_log)
            self._clips_since_log = 0
            self._time_of_log = now
        if "learning_rate" in logs and self.args.lora_learning_rate is not None:
            logs["lora_learning_rate"] = self._lora_rate
        if "train_loss" in logs:  # over all steps, including those before a resumed run
            logs["train_loss"] = self._total_loss_scalar / max(self.state.global_step, 1)
        super().log(logs, start_time)

    def evaluate(
        self, eval_dataset: Rows | None = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """
        Rank the clips of the evaluation set for its captions.

        Args:
            eval_dataset (`datasets.Dataset` or `dict` of them, *optional*): Rows as in training; by default those that
                the Trainer was given. The name of a set comes before the names of its metrics.
            metric_key_prefix (`str`): What the names of metrics begin with.

        Returns:
            The metrics of the model's score, such as `eval_text_to_video_recall_at_1`, in percent, and those of
            `compute_metrics`.
        """
        sets = self.eval_dataset
        if eval_dataset is not None:
            sets = self._checked(eval_dataset, "eval_dataset")
        if sets is None:
            raise ValueError("Evaluation needs an `eval_dataset`.")
        if not isinstance(sets, dict):
            sets = {"": sets}
        metrics = {}
        for name, rows in sets.items():
            prefix = metric_key_prefix
            if name:
                prefix += f"_{name}"
            measured = self._measured(self._embedded(rows), prefix)
            self.log(measured)
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, measured)
            metrics |= measured
        return metrics

    def predict(
        self, test_dataset: datasets.Dataset, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """
        Embed the clips of rows, and with captions also these.

        Args:
            test_dataset (`datasets.Dataset`): Rows as in training, with or without `caption`. Rows with the same
                `video_id` are one clip; clips are in the order of their first rows.
            metric_key_prefix (`str`): What the names of metrics begin with.

        Returns:
            `PredictionOutput`, with `predictions`: embeddings of clips `(V, M, dim)` and their modalities `(V, M)`,
            True if present. With captions also the embeddings of captions `(Q, dim)`; `label_ids` are then the pairs
            of a caption and its clip `(P, 2)`, and `metrics` those of [`evaluate`]. Otherwise both are None.
        """
        has_captions = "caption" in getattr(test_dataset, "column_names", ())
        embeddings = self._embedded(self._checked(test_dataset, "test_dataset", has_captions))
        tensors = [embeddings.modality_embeds, embeddings.modality_mask]
        pairs = None
        metrics = None
        if has_captions:
            tensors.append(embeddings.text_embeds)
            pairs = embeddings.pairs.numpy()
            metrics = self._measured(embeddings, metric_key_prefix)
        self.control = self.callback_handler.on_predict(self.args, self.state, self.control, metrics)
        return PredictionOutput(tuple(tensor.numpy() for tensor in tensors), pairs, metrics)

    def _embedded(self, rows: datasets.Dataset) -> "Embeddings":
        # Imported here, as in `_measured`: they import most of search and evaluation, and most runs never rank.
        from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset

        return embed_dataset(
            self.scalar_model,
            self.processor,
            rows,
            batch_size=self.args.per_device_eval_batch_size,
            progress=self.is_world_process_zero() and not self.args.disable_tqdm,
        )

    def _measured(self, embeddings: "Embeddings", prefix: str) -> dict[str, float]:
        from .retrieval import measure

        measured = measure(self.scalar_model, embeddings, self.compute_metrics)
        return {f"{prefix}_{name}": value for name, value in measured.items()}


__all__ = ["ScalarTrainer", "make_trainable"]
