"""The Trainer subclass: one forward pass, one gather, the losses, and retrieval as evaluation."""

from dataclasses import dataclass
from typing import Any

import datasets
import torch
from peft import PeftModel
from transformers import Trainer

from eval.embed import embed_dataset
from eval.retrieval import evaluate_embeddings
from modeling_scalar import ScalarModel, ScalarOutput
from modeling_scalar.aggregation_scalar import paired_weights, retrieval_scores
from modeling_scalar.configuration_scalar import MODALITIES

from .callbacks import EpochOfDataset
from .data import ClipDataset, derived_generator
from .distributed import gather_with_grad, mean_over_processes, rank, world_size
from .losses import AlignmentLoss, CrossArityLoss, MatchingLoss, PathwaysLoss, draw_negatives
from .training_args import ScalarTrainingArguments
from .views import full_view_probability, reduced_views

# The cross-encoder is trained on video and audio tokens only, as in the baselines that share the backbone.
MATCHING_MODALITIES = ("video", "audio")


@dataclass
class _Batch:
    """Local rows, the rows of all processes, and the scores between them (Eq. 5, matrix C)."""

    texts: torch.Tensor  # (b, D)
    modalities: torch.Tensor  # (b, 3, D)
    mask: torch.Tensor  # (b, 3), complete views
    reduced_mask: torch.Tensor  # (b, 3), reduced views
    all_texts: torch.Tensor  # (B, D)
    all_modalities: torch.Tensor  # (B, 3, D)
    all_mask: torch.Tensor  # (B, 3)
    offset: int
    text_to_clip: torch.Tensor | None = None  # (b, B)
    clip_to_text: torch.Tensor | None = None  # (b, B)


def _without_adapter(model: PeftModel | ScalarModel) -> ScalarModel:
    """Return the SCALAR model itself; its layers stay adapted."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


class ScalarTrainer(Trainer):
    """
    Train a [`ScalarModel`] or its PEFT model with the objective named in its arguments.

    Args:
        model: the model, with the trainable parameters already chosen (`trainer.lora.apply_adapters`).
        args ([`ScalarTrainingArguments`]): of the run.
        train_dataset ([`ClipDataset`]), data_collator ([`ScalarDataCollator`]): the examples.
        eval_dataset (`datasets.Dataset`, *optional*): rows of a benchmark; evaluation is retrieval among its clips.
        processing_class ([`ScalarProcessor`]): saved beside every checkpoint.
    """

    args: ScalarTrainingArguments
    # The loss is a mean over the batch; the Trainer divides it by the accumulation steps.
    loss_is_scaled_for_ga = False

    def __init__(self, model, args: ScalarTrainingArguments, **kwargs):
        if args.n_gpu > 1:
            raise ValueError(
                f"One process sees {args.n_gpu} GPUs. Launch one process per GPU (`accelerate launch --num_processes "
                f"{args.n_gpu}`), or show it one (`--gpu_ids 0`)."
            )
        super().__init__(model, args, **kwargs)
        if isinstance(self.train_dataset, ClipDataset):
            self.add_callback(EpochOfDataset(self.train_dataset))
        config = self.scalar_config = _without_adapter(model).config
        self.alignment_loss = AlignmentLoss(args.temperature, args.contrastive_label_smoothing)
        self.cross_arity_loss = CrossArityLoss(config.query_temperature)
        self.matching_loss = MatchingLoss()
        self.pathways_loss = PathwaysLoss(args.temperature)
        self._parts: dict[str, torch.Tensor] = {}
        self._num_parts = 0
        self._last_step, self._micro_step = -1, 0

    def _generator(self) -> torch.Generator:
        """Return the draws of this step, micro-step and process: a resumed run draws as an unbroken one."""
        step = self.state.global_step
        self._micro_step = self._micro_step + 1 if step == self._last_step else 0
        self._last_step = step
        return derived_generator(self.args.seed, step, self._micro_step, rank())

    def _gather(self, output: ScalarOutput, reduced_mask: torch.Tensor) -> _Batch:
        texts, modalities, mask = output.text_embeds, output.modality_embeds, output.modality_mask
        batch = _Batch(
            texts=texts,
            modalities=modalities,
            mask=mask,
            reduced_mask=reduced_mask,
            all_texts=gather_with_grad(texts),
            all_modalities=gather_with_grad(modalities),
            all_mask=gather_with_grad(mask),
            offset=rank() * len(texts),
        )
        if self.args.objective == "pathways":
            return batch
        options = {"method": self.scalar_config.aggregation, "query_temperature": self.scalar_config.query_temperature}
        all_reduced = gather_with_grad(reduced_mask)
        batch.text_to_clip = retrieval_scores(texts, batch.all_modalities, all_reduced, **options)
        if world_size() == 1:
            batch.clip_to_text = batch.text_to_clip.T
        else:
            batch.clip_to_text = retrieval_scores(batch.all_texts, modalities, reduced_mask, **options).T
        return batch

    def _pairs(self, output: ScalarOutput, batch: _Batch, inputs: dict[str, Any], generator: torch.Generator):
        """Choose matched pairs, texts with a wrong clip, and wrong texts with a clip; return them and their labels."""
        states, token_mask, ids, attention_mask = (
            gather_with_grad(tensor, ragged=True)
            for tensor in (
                output.condition_states,
                output.condition_mask,
                inputs["input_ids"],
                inputs["attention_mask"],
            )
        )
        readable = token_mask.any(dim=1)  # (B,): clips with something for the cross-encoder to read
        own = torch.arange(len(batch.texts), device=ids.device) + batch.offset
        draw = {"offset": batch.offset, "temperature": self.args.temperature, "generator": generator}
        wrong_clips = draw_negatives(batch.text_to_clip, readable, **draw)
        wrong_texts = draw_negatives(batch.clip_to_text, torch.ones_like(readable), **draw)
        texts, clips = torch.cat([own, own, wrong_texts]), torch.cat([own, wrong_clips, own])
        is_match = torch.arange(len(texts), device=ids.device) < len(own)
        keep = (texts >= 0) & (clips >= 0)
        keep &= readable[clips.clamp(min=0)]
        texts, clips = texts[keep], clips[keep]
        return (ids[texts], attention_mask[texts], states[clips], token_mask[clips]), is_match[keep]

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Compute the weighted sum of the objective's terms for this process's rows against all rows."""
        args, generator = self.args, self._generator()
        matching = args.objective == "scalar" and args.matching_weight > 0 and self.scalar_config.has_cross_attention
        full_probability = full_view_probability(
            self.state.global_step, args.full_view_probability, args.full_view_decay_steps
        )
        if args.objective == "pathways":
            full_probability = 1.0
        reduced_mask = reduced_views(inputs["modality_mask"], full_probability, generator)
        gathered: dict[str, Any] = {}

        def select_pairs(output: ScalarOutput):
            gathered["batch"] = self._gather(output, reduced_mask)
            pairs, gathered["is_match"] = self._pairs(output, gathered["batch"], inputs, generator)
            return pairs

        output = model(
            **inputs,
            select_pairs=select_pairs if matching else None,
            condition_on=MATCHING_MODALITIES,
        )
        batch = gathered["batch"] if matching else self._gather(output, reduced_mask)
        if args.objective == "pathways":
            parts = {"pathways": (1.0, self.pathways_loss(*self._pathways_arguments(batch)))}
        else:
            parts = {"align": (1.0, self.alignment_loss(batch.text_to_clip, batch.clip_to_text, batch.offset))}
            if args.cross_arity_weight:
                loss = self.cross_arity_loss(batch.texts, batch.modalities, batch.mask, batch.reduced_mask)
                parts["mask"] = (args.cross_arity_weight, loss)
            if matching:
                is_match = gathered["is_match"]
                num_pairs = mean_over_processes(len(is_match), is_match.device)
                loss = self.matching_loss(output.match_logits, is_match, num_pairs)
                parts["dam"] = (args.matching_weight, loss)
        self._remember({f"loss_{name}": loss for name, (_, loss) in parts.items()}, batch, full_probability)
        total = sum(weight * loss for weight, loss in parts.values())
        return (total, output) if return_outputs else total

    @staticmethod
    def _pathways_arguments(batch: _Batch) -> tuple:
        local = batch.texts, batch.modalities, batch.mask
        return *local, batch.all_texts, batch.all_modalities, batch.all_mask, batch.offset

    @torch.no_grad()
    def _remember(self, parts: dict[str, torch.Tensor], batch: _Batch, full_probability: float) -> None:
        weights = paired_weights(batch.texts, batch.modalities, batch.mask, self.scalar_config.query_temperature)
        parts = parts | {f"weight_{name}": weights[:, i].mean() for i, name in enumerate(MODALITIES)}
        parts["p_full"] = weights.new_tensor(full_probability)
        for name, value in parts.items():  # on the device: reading them here would wait for it at every step
            self._parts[name] = self._parts.get(name, 0) + value.detach().float()
        self._num_parts += 1

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the means of all parts since the last log, over all processes."""
        if "loss" in logs and self._num_parts:
            names = sorted(self._parts)
            means = torch.stack([self._parts[name] for name in names]) / self._num_parts
            if world_size() > 1:
                means = self.accelerator.reduce(means, reduction="mean")
            logs = logs | dict(zip(names, means.tolist(), strict=True))
            self._parts, self._num_parts = {}, 0
        super().log(logs, start_time)

    def evaluate(
        self,
        eval_dataset: datasets.Dataset | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Rank the clips of the evaluation set for its captions; return the metrics of the joint score."""
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        embeddings = embed_dataset(
            _without_adapter(self.accelerator.unwrap_model(self.model)),
            self.processing_class,
            rows,
            batch_size=self.args.eval_gallery_batch_size,
            on_error=self.train_dataset.on_error if isinstance(self.train_dataset, ClipDataset) else "raise",
            progress=self.is_world_process_zero(),
        )
        results = evaluate_embeddings(
            embeddings,
            methods=(self.scalar_config.aggregation,),
            rates=(0.0,),
            query_temperature=self.scalar_config.query_temperature,
        )
        figures = results["rates"][0]["methods"][self.scalar_config.aggregation]
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in figures.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


__all__ = ["MATCHING_MODALITIES", "ScalarTrainer"]
