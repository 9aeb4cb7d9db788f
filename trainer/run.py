"""Train a model from a recipe: `scalar train RECIPE.yaml [--field value ...]`."""

import logging
import math
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import datasets
import torch
from peft import PeftModel
from transformers import Trainer, set_seed

from scalar_retrieval.commands.texts import print_lines
from scalar_retrieval.eval.benchmarks.clip_rows import clip_digests
from scalar_retrieval.gallery.decoding import sandboxed
from scalar_retrieval.gallery.store.files import write_json
from scalar_retrieval.gallery.store.provenance import source_state, versions
from scalar_retrieval.modeling_scalar import ScalarProcessor, load_model
from scalar_retrieval.modeling_scalar.model_identity import LIGHT, identify
from scalar_retrieval.modeling_scalar.retrieval_scalar import ScalarRetrievalModel

from .callbacks import StopOnInterrupt
from .checkpoints import (
    RECIPE,
    RECORD,
    describe_failed_save,
    find_start,
    is_of_ended_worker,
    only_run,
)
from .data import Examples
from .distributed import check_launched
from .lora import count_parameters
from .objectives import OBJECTIVES
from .recipe import RunArguments, parse_arguments
from .scalar_trainer import ScalarTrainer, make_trainable
from .semantic_targets import SemanticTargets, make_semantic_targets
from .training_args import ScalarTrainingArguments

logger = logging.getLogger("train")
_REPORT_SECONDS = 5.0
TARGETS = "semantic_targets.safetensors"
"""The default file of semantic targets in the folder of a run."""


def _build_model(
    run: RunArguments, args: ScalarTrainingArguments
) -> tuple[PeftModel | ScalarRetrievalModel, ScalarProcessor]:
    model, processor = load_model(run.model, dtype=torch.float32, trainable=True, **run.model_changes)
    return make_trainable(model, args, OBJECTIVES[args.objective], identify(run.model).commit), processor


def _stored_examples(
    run: RunArguments,
    args: ScalarTrainingArguments,
    rows: datasets.Dataset,
    model: PeftModel | ScalarRetrievalModel,
    processor: ScalarProcessor,
) -> Examples:
    """Return examples from stored outputs of towers, or from a gallery."""
    # Imported here, because they import the search packages.
    from scalar_retrieval.gallery.store.places import is_gallery

    from .cache_features import FeatureDataset
    from .embeddings import EmbeddingDataset

    if not is_gallery(run.features):
        return FeatureDataset(run.features, rows, model, processor)
    encoder = identify(run.model)
    if encoder.base is not None:  # heads that are continued have not changed what is stored
        encoder = encoder.base
    made_by = encoder.name, encoder.fingerprint
    return EmbeddingDataset(run.features, rows, model, processor, *made_by, not args.disable_tqdm)


def _semantic_targets(
    run: RunArguments, args: ScalarTrainingArguments, rows: datasets.Dataset, is_new: bool
) -> SemanticTargets:
    """The semantic targets of these rows, by default in the run's folder, where a new run creates them."""
    path = Path(run.semantic_targets or Path(args.output_dir, TARGETS))
    if run.semantic_targets is None:
        with args.main_process_first(local=False, desc="the semantic targets"):
            if args.process_index == 0 and is_new:
                logger.info("Computing semantic targets of the captions with %s: %s.", LIGHT, path)
                make_semantic_targets(rows, path, LIGHT, progress=not args.disable_tqdm)
    return SemanticTargets(path)


def _report(run: RunArguments, args: ScalarTrainingArguments) -> None:
    """Evaluate the trained model, as `scalar eval run` does."""
    # Imported here, because few runs need it.
    from scalar_retrieval.eval.reports.report import format_report
    from scalar_retrieval.eval.run import evaluate

    results = evaluate(
        args.output_dir,
        run.benchmark,
        run.root,
        output=Path(args.output_dir, "results"),
        split=run.report_split,
        columns=run.column,
        holdout=run.holdout,
        words_of=run.words_of,
        on_error=run.on_error,
        plugins=run.plugins(),
    )
    print_lines(*format_report([results]).split("\n"))


# What a run prints and leaves ----------------------------------------------------------------------------------------


def _format_counts(counts: dict[str, int]) -> str:
    parts = [f"{name} {count:,}" for name, count in counts.items()]
    return ", ".join(parts) or "nothing"


def describe_run(
    model: torch.nn.Module, args: ScalarTrainingArguments, num_examples: int, steps_per_epoch: int
) -> str:
    """
    Summarise in a few lines the trained and frozen parameters, the effective batch, the steps, and the memory that
    weights, gradients and AdamW's two moments need on each device, without activations.

    Args:
        model (`torch.nn.Module`): The model, with its trainable parameters already chosen.
        args ([`ScalarTrainingArguments`]): The arguments of the run.
        num_examples (`int`): The number of training examples.
        steps_per_epoch (`int`): The number of optimizer steps per epoch.
    """
    # Clips see each other across processes, but not across the batches of an accumulated step.
    trained = count_parameters(model)
    frozen = count_parameters(model, trainable=False)
    num_clips = args.per_device_train_batch_size * args.world_size
    steps = args.max_steps
    if steps <= 0:
        steps = math.ceil(steps_per_epoch * args.num_train_epochs)
    batch = f"{args.world_size} processes of {args.per_device_train_batch_size}"
    # Weights, gradients and AdamW's two moments in float32.
    memory = 4 * (sum(frozen.values()) + 4 * sum(trained.values())) / 2**20
    lines = [
        f"trained: {sum(trained.values()):,} parameters: {_format_counts(trained)}",
        f"frozen: {sum(frozen.values()):,} parameters: {_format_counts(frozen)}",
        f"batch: {num_clips} clips see each other ({batch}), {args.gradient_accumulation_steps} batches a step",
        f"steps: {steps:,}, {steps_per_epoch:,} an epoch of {num_examples:,} examples",
        f"memory: {memory:,.0f} MiB for weights, gradients and optimizer on each device, plus activations",
    ]
    return "\n".join(lines)


def describe_training(trainer: Trainer, seconds: float, resumed: bool) -> dict[str, Any]:
    """
    Describe a finished run.

    Args:
        trainer ([`ScalarTrainer`]): The trainer after `train`.
        seconds (`float`): The duration of `train`.
        resumed (`bool`): Whether the run resumed from a checkpoint; `seconds` then counts from there.

    Returns:
        `dict` of JSON-serialisable values: `trainable_parameters` and `frozen_parameters` (by part of the model),
        `num_examples`, `global_step`, `batch_size` (contrastive batch times accumulation), `seconds`, `resumed`,
        `hardware` (`device`, `num_processes`), `precision`, `versions`, `source` and `date`.
    """
    args = trainer.args
    batch_size = args.per_device_train_batch_size * args.world_size * args.gradient_accumulation_steps
    device = platform.processor() or platform.machine()
    if args.device.type == "cuda":
        device = torch.cuda.get_device_name(args.device)
    # That of the weights, and of the computation under mixed precision.
    precision = str(next(trainer.model.parameters()).dtype).removeprefix("torch.")
    mixed = {"fp16": "float16", "bf16": "bfloat16"}.get(trainer.accelerator.mixed_precision)
    if mixed is not None:
        precision += f", computed in {mixed}"
    return {
        "trainable_parameters": count_parameters(trainer.model),
        "frozen_parameters": count_parameters(trainer.model, trainable=False),
        "num_examples": len(trainer.train_dataset),
        "global_step": trainer.state.global_step,
        "batch_size": batch_size,
        "seconds": round(seconds, 1),
        "resumed": resumed,
        "hardware": {"device": device, "num_processes": args.world_size},
        "precision": precision,
        "versions": versions(),
        "source": source_state(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _describe_earlier(run: RunArguments, args: ScalarTrainingArguments, rows: datasets.Dataset) -> dict[str, Any]:
    """Describe the clips of one's own that the model has seen, and the training of what was continued: an adapter, or
    the weights of a whole model."""
    start = identify(run.model)
    earlier = start.read(RECORD)
    described: dict[str, Any] = {}
    clips = set(earlier.get("clips") or ())
    if run.benchmark == "own":  # the splits of published benchmarks are known to be disjoint
        clips.update(clip_digests(rows))
    if clips:
        described["clips"] = sorted(clips)
    if start.adapter is not None or (earlier and args.adapter == "full"):
        described["continues"] = {"model": run.model, "recipe": start.read(RECIPE), "training": earlier}
    return described


# A run ---------------------------------------------------------------------------------------------------------------


def train(run: RunArguments, args: ScalarTrainingArguments) -> bool:
    """Run one recipe; return whether it finished."""
    check_launched()
    run.check_fit(args)
    # All rows are read now, so that what is wrong with them is said before anything is computed.
    rows = run.rows(run.train_split)
    eval_rows = None
    if run.eval_split:
        eval_rows = run.rows(run.eval_split)
    if run.report_split:
        run.rows(run.report_split)
    # Before the fields are compared with those of an earlier run.
    run.fit_batch(args, rows)
    args.fill_in(has_targets=True, is_joint=identify(run.model).is_joint)
    with only_run(args):
        checkpoint, ended = find_start(args)
        if ended:
            logger.info("The run in %s has ended; there is nothing to resume.", args.output_dir)
            return True
        return _train(run, args, rows, eval_rows, checkpoint)


def _train(
    run: RunArguments,
    args: ScalarTrainingArguments,
    rows: datasets.Dataset,
    eval_rows: datasets.Dataset | None,
    checkpoint: Path | None,
) -> bool:
    set_seed(args.seed)
    targets = None
    if args.uses_semantics:
        targets = _semantic_targets(run, args, rows, checkpoint is None)
    # The model, the examples and the Trainer, which saves a checkpoint when interrupted.
    model, processor = _build_model(run, args)
    earlier = _describe_earlier(run, args, rows)  # now: a checkpoint that it starts from may be gone at the end
    processor = sandboxed(processor, run.reading_limits(), run.on_error)
    examples = rows
    if run.features is not None:
        examples = _stored_examples(run, args, rows, model, processor)
    interrupt = StopOnInterrupt()
    trainer = ScalarTrainer(
        model,
        args,
        semantic_targets=targets,
        train_dataset=examples,
        eval_dataset=eval_rows,
        processing_class=processor,
        callbacks=[interrupt],
    )
    if trainer.is_world_process_zero():
        steps_per_epoch = trainer.set_initial_training_values(args, trainer.get_train_dataloader())[1]
        for line in describe_run(trainer.model, args, len(examples), steps_per_epoch).splitlines():
            logger.info(line)
    # A killed data worker is an error of its machine, unless a signal ended both.
    try:
        seconds = trainer.train(resume_from_checkpoint=checkpoint).metrics["train_runtime"]
    except (RuntimeError, ConnectionError, EOFError) as error:  # of a data worker that was killed
        if not is_of_ended_worker(error):
            raise
        if interrupt.interrupted:
            return False
        message = f"A data worker was killed ({error}). Lower `dataloader_num_workers` if memory is short."
        raise OSError(message) from error
    if interrupt.interrupted:
        return False
    # Save the model and what was trained; then evaluate it, if the recipe names a split.
    with describe_failed_save(args.output_dir, ""):
        trainer.save_model()
        if trainer.is_world_process_zero():
            record = describe_training(trainer, seconds, checkpoint is not None)
            record |= earlier
            folder = Path(args.output_dir)
            write_json(record, folder / RECORD)
            write_json(asdict(run) | args.to_sanitized_dict(), folder / RECIPE)  # last: it marks the run as finished
    if run.report_split and trainer.is_world_process_zero():
        _report(run, args)
    return True


def main(arguments: Sequence[str] | None = None, prog: str = "train.py") -> int:
    """
    Train from the command line.

    Args:
        arguments (`Sequence[str]`, *optional*): A recipe and flags; by default those of this program.
        prog (`str`): The program's name in the usage.

    Returns:
        The exit status.

    Raises:
        KeyboardInterrupt: On Ctrl-C, after a checkpoint has been saved.
        ImportError, OSError, ValueError: For errors that the user can fix.
    """
    is_first = os.environ.get("RANK", "0") == "0"  # of the processes that a launcher starts
    level = logging.WARNING
    if is_first:
        level = logging.INFO
    logging.basicConfig(level=level, format="%(name)s: %(message)s")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    if arguments is None:
        arguments = sys.argv[1:]
    try:
        run, args = parse_arguments(arguments, prog)
        if not train(run, args):
            raise KeyboardInterrupt("Continue with `--resume_from_checkpoint last`.")
    except (ImportError, OSError, ValueError) as error:
        # Other ranks wait, so that only the first reports a common error before the launcher ends them.
        if not is_first:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            time.sleep(_REPORT_SECONDS)
        # The message of an error in a data worker is the worker's traceback; its last line is the error.
        message = str(error).strip()
        if "in DataLoader worker process" in message:
            raise ValueError(message.splitlines()[-1].partition(": ")[2]) from error
        raise
    return 0


__all__ = ["describe_run", "main", "train"]
