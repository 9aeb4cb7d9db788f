"""A training that takes a second as a command: a tiny model with dropout on the stored features of a few clips."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import BertTokenizer

from evidence.building import learn_vocabulary
from evidence.miniature.generation import generate
from scalar_retrieval.eval.benchmarks.registry import load_benchmark
from scalar_retrieval.modeling_scalar import (
    ScalarFeatureExtractor,
    ScalarImageProcessor,
    ScalarModel,
    ScalarProcessor,
    load_model,
)
from scalar_retrieval.trainer.cache_features import cache_features
from tests.conftest import make_tiny_config


@dataclass(frozen=True)
class TinyRun:
    """Where it lies, and the command that trains it."""

    folder: Path

    def command(self, output, *fields, steps=7):
        fixed = ["train.py", "--model", self.folder / "model", "--output_dir", output]
        fixed += ["--plugin", "evidence.miniature", "--benchmark", "miniature"]
        fixed += ["--root", self.folder / "data", "--semantic_weight", "0", "--per_device_train_batch_size", "4"]
        fixed += ["--use_cpu", "true", "--disable_tqdm", "true", "--max_steps", steps, "--logging_steps", "3"]
        fixed += ["--save_strategy", "steps", "--save_steps", "2", "--save_total_limit", "2"]
        fixed += ["--features", self.folder / "features"]
        return [*fixed, *fields]


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory) -> TinyRun:
    folder = tmp_path_factory.mktemp("tiny-run")
    generate(folder / "data", num_train=12, num_validation=0, num_test=3, num_proc=1)
    rows = load_benchmark("miniature", folder / "data", "train")
    tokenizer = BertTokenizer(vocab=learn_vocabulary(rows["caption"], 300))
    extractor, images = ScalarFeatureExtractor(segment_length=64), ScalarImageProcessor(image_size=32)
    processor = ScalarProcessor(images, extractor, tokenizer, num_frames=2, num_train_frames=2)
    config = make_tiny_config()
    config.text_config.vocab_size, config.text_config.hidden_dropout_prob = len(tokenizer), 0.1
    torch.manual_seed(0)
    ScalarModel(config).save_pretrained(folder / "model")
    processor.save_pretrained(folder / "model")
    model, processor = load_model(folder / "model")
    cache_features(folder / "features", rows, model, processor, views=2)
    return TinyRun(folder)
