"""The small backbone before its training: random weights, and a vocabulary learned from the data."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import yaml
from transformers import BertTokenizer, set_seed

from evidence.miniature.benchmark import load_miniature
from modeling_scalar import ScalarConfig, ScalarModel, ScalarProcessor
from modeling_scalar.feature_extraction_scalar import ScalarFeatureExtractor
from modeling_scalar.image_processing_scalar import ScalarImageProcessor

DESCRIPTION = Path(__file__).with_name("backbone.yaml")
"""The configuration of the small backbone."""

_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def learn_vocabulary(texts: Iterable[str], size: int) -> dict[str, int]:
    """
    Build a WordPiece vocabulary of special tokens, characters (which can spell any new word) and frequent words.

    The trainer of `tokenizers` breaks ties by the order of a hash map, so two runs would learn different vocabularies.
    Here the same texts always give the same vocabulary.

    Args:
        texts (iterable of `str`): Captions and subtitles.
        size (`int`): The maximum number of tokens. The rarest words beyond it are spelt by characters.

    Returns:
        `dict`: The id of each token.

    Raises:
        ValueError: If `size` is too small for the special tokens and characters.
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
        raise ValueError(f"`vocab_size` must be at least {len(tokens)} (special tokens and characters), got {size}.")
    words = sorted((word for word in counts if len(word) > 1), key=lambda word: (-counts[word], word))
    return {token: index for index, token in enumerate((tokens + words)[:size])}


def build_new(texts: Iterable[str]) -> tuple[ScalarModel, ScalarProcessor]:
    """
    Build the small backbone with random weights, and a processor whose vocabulary is learned from `texts`.

    Args:
        texts (iterable of `str`): Captions and subtitles.

    Returns:
        The model and the processor.
    """
    sections = yaml.safe_load(DESCRIPTION.read_text(encoding="utf-8"))
    tokenizer = BertTokenizer(vocab=learn_vocabulary(texts, sections["vocab_size"]))
    processor = ScalarProcessor(
        ScalarImageProcessor(**sections["image_processor"]),
        ScalarFeatureExtractor(**sections["feature_extractor"]),
        tokenizer,
        **sections["processor"],
    )
    sections["model"]["text_config"]["vocab_size"] = len(tokenizer)
    return ScalarModel(ScalarConfig(**sections["model"])), processor


def build_backbone(root: str | Path, output: str | Path, seed: int) -> None:
    """
    Write a new backbone to a folder, to be trained from it.

    Args:
        root (`str` or `Path`): The miniature benchmark whose training captions and subtitles give the vocabulary.
        output (`str` or `Path`): The folder for model and processor.
        seed (`int`): The seed of the weights.
    """
    rows, _ = load_miniature(root, "train")
    texts = [text for row in rows for text in (row["caption"], row["subtitle"]) if text]
    set_seed(seed)
    model, processor = build_new(texts)
    model.save_pretrained(output)
    processor.save_pretrained(output)


__all__ = ["DESCRIPTION", "build_backbone", "build_new", "learn_vocabulary"]
