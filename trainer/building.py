"""What training starts from: a saved model with its processor, or a new one with a vocabulary from the data."""

from collections.abc import Iterable
from pathlib import Path

import torch
import yaml
from transformers import AutoModel, AutoProcessor, BertTokenizer

import modeling_scalar  # noqa: F401  (registers the Auto classes)
from modeling_scalar import ScalarConfig, ScalarModel, ScalarProcessor
from modeling_scalar.feature_extraction_scalar import ScalarFeatureExtractor
from modeling_scalar.image_processing_scalar import ScalarImageProcessor

_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def load_base(model: str) -> tuple[ScalarModel, ScalarProcessor]:
    """
    Load a model and its processor in float32.

    Args:
        model (`str`): a folder or Hub id.

    Raises:
        ValueError: what is there is no SCALAR model or processor.
    """
    if Path(model).is_dir():
        model = str(Path(model).resolve())  # what an adapter remembers of its base must hold in any working directory
    base = AutoModel.from_pretrained(model, dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(model)
    if not isinstance(base, ScalarModel) or not isinstance(processor, ScalarProcessor):
        raise ValueError(
            f"{model} must hold a ScalarModel and a ScalarProcessor, got {type(base).__name__} and "
            f"{type(processor).__name__}."
        )
    return base, processor


def build_new(description: str | Path, texts: Iterable[str]) -> tuple[ScalarModel, ScalarProcessor]:
    """
    Build a model with random weights, and a processor whose WordPiece vocabulary is learned from `texts`.

    Args:
        description (`str` or `Path`): YAML with the sections `model` (fields of [`ScalarConfig`]), `image_processor`,
            `feature_extractor`, `processor` (their settings), and `vocab_size`.
        texts (iterable of `str`): captions and subtitles.

    Returns:
        The model and the processor.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a section is missing or unknown.
    """
    path = Path(description)
    if not path.is_file():
        raise FileNotFoundError(f"No model description at {path}.")
    sections = yaml.safe_load(path.read_text(encoding="utf-8"))
    expected = {"model", "image_processor", "feature_extractor", "processor", "vocab_size"}
    if not isinstance(sections, dict) or set(sections) != expected:
        raise ValueError(f"{path} must have exactly the sections {sorted(expected)}.")
    empty = BertTokenizer(vocab={token: index for index, token in enumerate(_SPECIAL_TOKENS)})
    tokenizer = empty.train_new_from_iterator(texts, vocab_size=sections["vocab_size"], show_progress=False)
    processor = ScalarProcessor(
        ScalarImageProcessor(**sections["image_processor"]),
        ScalarFeatureExtractor(**sections["feature_extractor"]),
        tokenizer,
        **sections["processor"],
    )
    config = dict(sections["model"])
    config["text_config"] = config["text_config"] | {"vocab_size": len(tokenizer)}
    return ScalarModel(ScalarConfig(**config)), processor


__all__ = ["build_new", "load_base"]
