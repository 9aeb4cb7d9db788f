"""The small backbone before its training: random weights, and a vocabulary learned from the data."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml
from transformers import BertTokenizer, set_seed

from evidence.miniature.benchmark import load_miniature
from scalar_retrieval.modeling_scalar import ScalarConfig, ScalarModel, ScalarProcessor
from scalar_retrieval.modeling_scalar.feature_extraction_scalar import ScalarFeatureExtractor
from scalar_retrieval.modeling_scalar.image_processing_scalar import ScalarImageProcessor

DESCRIPTION = Path(__file__).with_name("backbone.yaml")
"""The configuration of the small backbone."""

_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    return {token: index for index, token in enumerate(tokens)}


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
    # Words are those that the tokenizer itself will see.
    backend = BertTokenizer(vocab=_numbered(_SPECIAL_TOKENS)).backend_tokenizer
    counts: Counter[str] = Counter()
    for text in texts:
        pieces = backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text))
        for word, _ in pieces:
            counts[word] += 1

    # Every character at the start of a word and within one, then words by frequency and alphabet.
    characters = sorted(set().union(*counts))
    tokens = [*_SPECIAL_TOKENS, *characters, *map("##{}".format, characters)]
    if size < len(tokens):
        raise ValueError(f"`vocab_size` must be at least {len(tokens)} (special tokens and characters), got {size}.")
    for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if len(word) > 1:
            tokens.append(word)
    return _numbered(tokens[:size])


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
    # The vocabulary may be smaller than its bound.
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
    texts = [text for text in (*rows["caption"], *rows["subtitle"]) if text]
    # All weights are drawn after the seed is set.
    set_seed(seed)
    model, processor = build_new(texts)
    model.save_pretrained(output)
    processor.save_pretrained(output)


__all__ = ["DESCRIPTION", "build_backbone", "build_new", "learn_vocabulary"]
