"""A new model to train from scratch, with a vocabulary learned from the data."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import yaml
from transformers import BertTokenizer

from modeling_scalar import ScalarConfig, ScalarModel, ScalarProcessor
from modeling_scalar.feature_extraction_scalar import ScalarFeatureExtractor
from modeling_scalar.image_processing_scalar import ScalarImageProcessor

_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def learn_vocabulary(texts: Iterable[str], size: int) -> dict[str, int]:
    """
    Build a WordPiece vocabulary: special tokens, characters, by which any new word can be spelt, and frequent words.

    The trainer of `tokenizers` breaks ties by the order of a hash map, so that two runs learn two vocabularies and
    train two models; here the same texts always give the same one.

    Args:
        texts (iterable of `str`): captions and subtitles.
        size (`int`): the most tokens; words beyond it, the rarest, are left to be spelt.

    Returns:
        `dict` of tokens to ids.

    Raises:
        ValueError: `size` does not even hold the special tokens and characters.
    """
    backend = BertTokenizer(vocab={token: index for index, token in enumerate(_SPECIAL_TOKENS)}).backend_tokenizer
    counts = Counter(
        word
        for text in texts
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text))
    )
    characters = sorted({character for word in counts for character in word})
    tokens = [*_SPECIAL_TOKENS, *characters, *(f"##{character}" for character in characters)]
    if size < len(tokens):
        raise ValueError(f"`vocab_size` must be at least {len(tokens)}, for special tokens and letters, got {size}.")
    words = sorted((word for word in counts if len(word) > 1), key=lambda word: (-counts[word], word))
    return {token: index for index, token in enumerate((tokens + words)[:size])}


def build_new(description: str | Path, texts: Iterable[str]) -> tuple[ScalarModel, ScalarProcessor]:
    """
    Build a model with random weights, and a processor whose vocabulary is learned from `texts`.

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
    tokenizer = BertTokenizer(vocab=learn_vocabulary(texts, sections["vocab_size"]))
    processor = ScalarProcessor(
        ScalarImageProcessor(**sections["image_processor"]),
        ScalarFeatureExtractor(**sections["feature_extractor"]),
        tokenizer,
        **sections["processor"],
    )
    config = dict(sections["model"])
    config["text_config"] = config["text_config"] | {"vocab_size": len(tokenizer)}
    return ScalarModel(ScalarConfig(**config)), processor


__all__ = ["build_new", "learn_vocabulary"]
