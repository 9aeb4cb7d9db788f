"""A new model to train from scratch, with a vocabulary learned from the data."""

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import BertTokenizer

from modeling_scalar import ScalarConfig, ScalarModel, ScalarProcessor
from modeling_scalar.feature_extraction_scalar import ScalarFeatureExtractor
from modeling_scalar.image_processing_scalar import ScalarImageProcessor

from .recipe import read_yaml

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


def build_new(description: str | Path, texts: Iterable[str], **changes: Any) -> tuple[ScalarModel, ScalarProcessor]:
    """
    Build a model with random weights, and a processor whose vocabulary is learned from `texts`.

    Args:
        description (`str` or `Path`): YAML with the sections `model` (fields of [`ScalarConfig`]), `image_processor`,
            `feature_extractor`, `processor` (their settings), and `vocab_size`.
        texts (iterable of `str`): Captions and subtitles.
        **changes: Fields of [`ScalarConfig`] that override those of the description.

    Returns:
        The model and the processor.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If a section is missing, unknown or has an invalid value.
    """
    path = Path(description)
    sections = read_yaml(path, "model description")
    expected = {"model", "image_processor", "feature_extractor", "processor", "vocab_size"}
    if set(sections) != expected:
        raise ValueError(f"{path} must have exactly the sections {sorted(expected)}, got {list(sections)}.")
    for name in sorted(expected - {"vocab_size"}):
        if not isinstance(sections[name], dict):
            raise ValueError(f"`{name}` in {path} must be a mapping, got {type(sections[name]).__name__}.")
    size = sections["vocab_size"]
    if not isinstance(size, int):
        raise ValueError(f"`vocab_size` in {path} must be a whole number, got {size!r}.")
    tokenizer = BertTokenizer(vocab=learn_vocabulary(texts, size))
    with _described(path, "image_processor"):
        _check_known(sections["image_processor"], ScalarImageProcessor())
        image_processor = ScalarImageProcessor(**sections["image_processor"])
    with _described(path, "feature_extractor"):
        _check_known(sections["feature_extractor"], ScalarFeatureExtractor())
        feature_extractor = ScalarFeatureExtractor(**sections["feature_extractor"])
    with _described(path, "processor"):
        processor = ScalarProcessor(image_processor, feature_extractor, tokenizer, **sections["processor"])
    with _described(path, "model"):
        config = dict(sections["model"])
        config["text_config"] = config["text_config"] | {"vocab_size": len(tokenizer)}
        _check_known(config, ScalarConfig())
        config = ScalarConfig(**config | changes)
        for name in config.sub_configs:
            _check_known(sections["model"].get(name, {}), type(getattr(config, name))())
        if config.vision_config.image_size != image_processor.image_size:
            sizes = f"{config.vision_config.image_size} of `vision_config`, {image_processor.image_size}"
            raise ValueError(f"the image sizes differ: {sizes} of `image_processor`")
        return ScalarModel(config), processor


def _check_known(given: dict[str, Any], default: Any) -> None:
    """Reject unknown fields of a configuration or processor, which would otherwise be stored and ignored."""
    unknown = sorted(set(given) - set(default.to_dict()))
    if unknown:
        near = difflib.get_close_matches(unknown[0], default.to_dict(), n=1)
        raise ValueError(f"it has no field `{unknown[0]}`" + (f"; did you mean `{near[0]}`" if near else ""))


@contextmanager
def _described(path: Path, section: str) -> Iterator[None]:
    """Name the section with the invalid values in the error."""
    try:
        yield
    # Libraries check these values in many places, so the errors have no common class.
    except (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        reason = f"the field {error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
        reason = reason.rstrip(".?")
        raise ValueError(f"Cannot build `{section}` of {path}: {reason}.") from error
    except StrictDataclassError as error:
        raise ValueError(f"`{section}` in {path} has an invalid value: {' '.join(str(error).split())}.") from error


__all__ = ["build_new", "learn_vocabulary"]
