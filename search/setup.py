"""What a process needs to read and embed files: the model, its processor, and recognisers of words."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scalar_retrieval import modeling_scalar
from scalar_retrieval.gallery.decoding import Limits, sandboxed
from scalar_retrieval.gallery.embedding import configure, modalities_option
from scalar_retrieval.modeling_scalar.modalities_scalar import PAPER_MODALITIES
from scalar_retrieval.modeling_scalar.model_identity import identify

from .screen import RapidOcrReader

if TYPE_CHECKING:
    import torch

    from scalar_retrieval.modeling_scalar.processing_scalar import ScalarProcessor
    from scalar_retrieval.modeling_scalar.retrieval_scalar import ScalarRetrievalModel

    from .recognizers import Recognizer


@dataclass(frozen=True)
class Setup:
    """
    How files are read and embedded, in any process.

    Args:
        gallery (`Path`): the absolute path of the gallery's folder, where transcripts are kept.
        model (`str`): a folder, a Hub id or `light`, or encoders side by side, see
            [`~scalar_retrieval.modeling_scalar.model_identity.identify`].
        modalities (`tuple[str]`, *optional*): of the gallery; by default those of the model.
        transcribe (`str`, *optional*): a speech recognition model, a folder or a Hub id.
        recognizer_name (`str`, *optional*): its name in transcripts; by default `transcribe`.
        read_text (`bool`): read on-screen text.
        limits ([`~scalar_retrieval.gallery.decoding.Limits`]): on reading a stream.
        reading (`dict`): settings of the processor, see [`~scalar_retrieval.gallery.store.described.reading_of`].
    """

    gallery: Path
    model: str
    modalities: tuple[str, ...] | None
    transcribe: str | None
    recognizer_name: str | None
    read_text: bool
    limits: Limits
    reading: Mapping[str, float]


@dataclass(frozen=True)
class Loaded:
    """What a [`Setup`] names, loaded."""

    model: "ScalarRetrievalModel"
    processor: "ScalarProcessor"
    recognizer: "Recognizer | None"
    line_reader: RapidOcrReader | None


def check_words(modalities: Collection[str]) -> None:
    """Raise a ValueError if modalities make no use of what is transcribed."""
    if "subtitle" not in modalities:
        raise ValueError("`transcribe` makes subtitles, but the gallery has no modality `subtitle`.")


def load(setup: Setup, device: "torch.device") -> Loaded:
    """
    Load a model onto a device, and the recognisers.

    Raises:
        ValueError: the model cannot take the modalities, or makes no use of transcripts.
        ModuleNotFoundError: a recogniser's package is not installed.
    """
    # The model, and whether it can take the modalities of the gallery
    identity = identify(setup.model)
    options = modalities_option(identity, setup.modalities)
    model, processor = modeling_scalar.load_model(identity.download(), None, device, **options)
    available = model.config.modalities
    lacking = set(setup.modalities or ()).difference(available, PAPER_MODALITIES)
    if lacking:
        raise ValueError(
            f"{identity.name} embeds {', '.join(available)}, and cannot also take {', '.join(sorted(lacking))}. A "
            "joint encoder as published takes any text."
        )
    configure(processor, setup.reading)
    # Recognisers make words where a file has none.
    recognizer = None
    if setup.transcribe is not None:
        from .recognizers import recognizer_of  # not at the top: it imports what only transcribing needs

        check_words(processor.modalities)
        name = setup.recognizer_name or setup.transcribe
        recognizer = recognizer_of(identify(setup.transcribe).download(), name, model.device)
    # OCR is loaded only if it is asked for, as it needs an extra.
    line_reader = None
    if setup.read_text:
        line_reader = RapidOcrReader()
    return Loaded(model, sandboxed(processor, setup.limits), recognizer, line_reader)


__all__ = ["Loaded", "Setup", "check_words", "load"]
