"""Train a SCALAR model: accelerate launch train.py recipe.yaml [--field value ...]"""

import logging
import sys

import torch
from transformers import set_seed
from transformers.trainer_utils import get_last_checkpoint

from eval.benchmarks import load_benchmark
from modeling_scalar import load_model
from trainer.building import build_new
from trainer.callbacks import StopOnInterrupt
from trainer.data import ClipDataset, ScalarDataCollator
from trainer.lora import apply_adapters, count_trainable
from trainer.recipe import RunArguments, parse_arguments, save_recipe
from trainer.scalar_trainer import ScalarTrainer
from trainer.training_args import ScalarTrainingArguments

logger = logging.getLogger("train")


def train(run: RunArguments, args: ScalarTrainingArguments) -> bool:
    """Run one recipe; return whether it reached its end."""
    set_seed(args.seed)
    rows = load_benchmark(run.benchmark, run.root, run.train_split)
    if run.new_model is not None:
        texts = [text for row in rows for text in (row["caption"], row["subtitle"]) if text]
        model, processor = build_new(run.new_model, texts)
    else:
        model, processor = load_model(run.model, dtype=torch.float32)
    model = apply_adapters(model, args.adapter)
    counts = count_trainable(model)
    parts = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    logger.info("trainable: %s parameters: %s", f"{sum(counts.values()):,}", parts)

    interrupt = StopOnInterrupt()
    trainer = ScalarTrainer(
        model,
        args,
        train_dataset=ClipDataset(rows, processor, args.seed, run.on_error, run.keep_in_memory),
        eval_dataset=load_benchmark(run.benchmark, run.root, run.eval_split) if run.eval_split else None,
        data_collator=ScalarDataCollator(processor),
        processing_class=processor,
        callbacks=[interrupt],
    )
    checkpoint = args.resume_from_checkpoint
    if checkpoint in ("true", "auto", "last"):
        checkpoint = get_last_checkpoint(args.output_dir)
        if checkpoint is None:
            raise ValueError(f"There is no checkpoint in {args.output_dir} to resume from.")
    trainer.train(resume_from_checkpoint=checkpoint)
    if interrupt.interrupted:
        logger.warning("interrupted; continue with --resume_from_checkpoint last")
        return False
    trainer.save_model()
    if trainer.is_world_process_zero():
        save_recipe(run, args)
    return True


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    try:
        return 0 if train(*parse_arguments(sys.argv[1:])) else 130
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
