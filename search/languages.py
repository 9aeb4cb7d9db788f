"""The languages of the texts of clips, and those that an encoder reads."""

from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING

from scalar_retrieval.gallery.store.described import READS
from scalar_retrieval.modeling_scalar.model_identity import ModelIdentity, is_light

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

_CERTAIN = 0.9  # minimum probability: titles without words of a language stay below it
_MOST_CHARACTERS = 2000


@cache
def _identifier() -> "LanguageIdentifier":
    # Not at the top: its model loads for most of a second, and only new texts need it.
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    # Others are rare, and mistaken for these.
    identifier.set_languages([code for code in identifier.labels if code in _names()])
    return identifier


@cache
def _names() -> dict[str, str]:
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    return LANGUAGES


def language_of(text: str) -> str | None:
    """The ISO 639-1 code of the language of a text; `None` if it is uncertain, as that of most names is."""
    if not any(map(str.isalpha, text)):
        return None
    code, probability = _identifier().classify(text[:_MOST_CHARACTERS])
    return code if probability >= _CERTAIN else None


def name_of(code: str) -> str:
    """The English name of a language that [`language_of`] returns."""
    return _names()[code].title()


def languages_read(model: str, identity: ModelIdentity) -> Collection[str] | None:
    """
    The ISO 639-1 codes of the languages that a model is made for; `None` if it does not say, or reads many.

    Args:
        model (`str`), identity ([`~scalar_retrieval.modeling_scalar.model_identity.ModelIdentity`]): the name of a
            model that was downloaded, and what it is.
    """
    if is_light(model):
        return READS[model]
    # Of encoders side by side, the one that embeds texts; its card says what it reads.
    from huggingface_hub import ModelCard  # not at the top: few galleries need it

    for part in identity.parts:
        card = part.file("README.md") if part.reads_texts else None
        if card is not None:
            languages = ModelCard.load(card, ignore_metadata_errors=True).data.get("language") or "multilingual"
            if isinstance(languages, str):
                languages = [languages]
            return None if "multilingual" in languages else languages
    return None


__all__ = ["language_of", "languages_read", "name_of"]
