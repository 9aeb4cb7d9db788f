"""A new model to train from scratch, with a vocabulary learned from the data."""

from collections.abc import Iterable
from pathlib import Path

import yaml
from transformers import BertTokenizer

from modeling_scalar import ScalarConfig, ScalarModel, ScalarProcessor
from modeling_scalar.feature_extraction_scalar import ScalarFeatureExtractor
from modeling_scalar.image_processing_scalar import ScalarImageProcessor

_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


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


__all__ = ["build_new"]
