"""Queries to a gallery: texts, embedded by the model that made it, or a clip to which others should be similar.

Shapes: Q queries, D dimensions.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import normalize

from scalar_retrieval import modeling_scalar
from scalar_retrieval.modeling_scalar.scores_scalar import WEIGHING, off_unit

from .decoding import tolerant
from .embedding import configure, embed_clips, modalities_option
from .store.columns import unit_vectors
from .store.described import Described, reading_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, ProcessorMixin


def check_vectors(text_embeds: torch.Tensor, dim: int | None) -> torch.Tensor:
    """
    Return query vectors in float32 on the CPU.

    Raises:
        ValueError: their shape is not `(Q, D)` with the gallery's D, if it has one, or they are not of unit norm.
    """
    if text_embeds.ndim != 2 or text_embeds.shape[1] != (dim or text_embeds.shape[1]):
        raise ValueError(f"`text_embeds` must have shape (queries, {dim or 'D'}), got {tuple(text_embeds.shape)}.")
    # Cosines are products: a vector of another norm would shift all scores.
    text_embeds = text_embeds.detach().to("cpu", torch.float32)
    wrong = off_unit(text_embeds)
    if wrong.any():
        norms = torch.linalg.vector_norm(text_embeds[wrong], dim=-1)
        raise ValueError(f"Rows of `text_embeds` must have unit norm, got {norms.tolist()[:8]}.")
    return text_embeds


@torch.no_grad()
def embed_captions(model: "PreTrainedModel", processor: "ProcessorMixin", captions: Sequence[str]) -> torch.Tensor:
    """Embed one batch of texts: `torch.FloatTensor` of shape `(batch, dim)`, unit norm, on the CPU."""
    batch = processor(text=list(captions)).to(model.device)
    return unit_vectors(model.get_text_features(batch["input_ids"], batch["attention_mask"]).pooler_output)


class NothingToCompareError(ValueError):
    """A clip has no modality by which others could be similar to it."""


@dataclass(frozen=True)
class Likeness:
    """
    A clip from outside the gallery, to find similar ones: see [`QueryModel.embed_file`].

    Args:
        name (`str`): its name.
        embeds (`torch.FloatTensor` of shape `(M, D)`), mask (`torch.BoolTensor` of shape `(M,)`): its vectors, and
            which of them are present.
    """

    name: str
    embeds: torch.Tensor
    mask: torch.Tensor


class QueryModel:
    """
    A model that embeds queries; it can be shared by threads, which take turns.

    Args:
        model ([`~scalar_retrieval.modeling_scalar.ScalarModel`]), processor (`ProcessorMixin`).
    """

    def __init__(self, model: "PreTrainedModel", processor: "ProcessorMixin"):
        self.model = model
        self.processor = processor
        self.lock = Lock()
        # A gallery has its own temperature, scale and offset.
        options = {name: value for name, value in model.score_options().items() if name not in WEIGHING}
        self.method = options.pop("method")
        self.learned = {name: value.item() for name, value in options.items()}

    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        """Embed queries, `(Q, D)`."""
        with self.lock:
            return embed_captions(self.model, self.processor, texts)

    def embed_file(self, path: str | os.PathLike) -> Likeness:
        """
        Embed a file like a clip of the gallery, with the subtitles next to it; a picture is a clip of one frame.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: nothing in it can be read, or nothing that the model supports.
        """
        # What cannot be read counts as absent, as in an indexed clip.
        path = os.fspath(path)
        processor = tolerant(self.processor)
        clip = processor.read_clip(path, processed=True)
        # A clip without any modality has no vector, so the message says what was wrong with the file.
        if clip.is_empty:
            why = "; ".join(clip.problems) or f"{path}: found none of {', '.join(processor.modalities)}"
            raise ValueError(f"Nothing in this file can be compared with clips. {why}")
        with self.lock:
            embeds, mask = embed_clips(self.model, processor(clips=[clip]))
        return Likeness(path, embeds[0], mask[0])


class LightQueryModel(QueryModel):
    """
    [`~scalar_retrieval.modeling_scalar.model_identity.LIGHT`], of which texts need the text encoder alone. The rest is
    loaded for the first file.

    Args:
        folder (`Path`): its folder.
        load (`Callable`): loads the whole model and its processor.
    """

    method = "scalar"

    def __init__(self, folder: Path, load: "Callable[[], tuple[PreTrainedModel, ProcessorMixin]]"):
        # Not at the top: other models need none of it.
        from scalar_retrieval.modeling_scalar.light_texts import LightTextEncoder

        self.text_encoder = LightTextEncoder(folder)
        self.lock = Lock()
        self.learned = {}
        self._load = load

    @cached_property
    def _loaded(self) -> "tuple[PreTrainedModel, ProcessorMixin]":
        return self._load()

    @property
    def model(self) -> "PreTrainedModel":
        """The whole model."""
        return self._loaded[0]

    @property
    def processor(self) -> "ProcessorMixin":
        """Its processor."""
        return self._loaded[1]

    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        """Embed queries, `(Q, D)`."""
        with self.lock:
            return unit_vectors(self.text_encoder.embed(texts, are_queries=True))


def load_query_model(
    described: Described, model: str | os.PathLike | None = None, device: str | torch.device | None = None
) -> QueryModel:
    """
    Load the model that embeds texts.

    Args:
        described ([`~scalar_retrieval.gallery.store.described.Described`]): what is searched.
        model (`str`, *optional*): where the model is now, a folder or a Hub id; by default where it was.
        device (`str` or `torch.device`, *optional*): by default that of the commands.

    Raises:
        FileNotFoundError: the model does not exist.
        ValueError: the gallery was made with another model, or does not name its model and `model` is not given.
    """
    # Not at the top: no other kind of query needs it.
    from scalar_retrieval.modeling_scalar.model_identity import device_of_name, identify, is_light

    # The commit on the Hub is that of the model where it was, not of another one that is named.
    revision = None
    if not model:
        model = described.model
        revision = described.metadata.get("model_revision")
    if model is None:
        raise ValueError(
            f"{described.path} does not say which model made it. Name it with --model, or "
            "`gallery.load_model(FOLDER)`."
        )
    # Where the model is missing, the message says what it is needed for.
    try:
        identity = identify(model, revision)
        folder = identity.download()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error} Queries need this model, with which the gallery was made. If it has moved, name its folder: "
            "`--model FOLDER`, or `gallery.load_model(FOLDER)`."
        ) from error
    # Vectors of another model could not be compared with those of the gallery.
    described.check_model(str(model), identity.fingerprint)
    place = device_of_name(device)

    def load() -> "tuple[PreTrainedModel, ProcessorMixin]":
        chosen = modalities_option(identity, described.modalities)
        loaded = modeling_scalar.load_model(folder, None, place, **chosen)  # without code
        configure(loaded[1], reading_of(described.metadata))
        return loaded

    if is_light(model):
        return LightQueryModel(folder, load)
    return QueryModel(*load())


def query_like(embeds: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """
    Make a query from a clip: the centroid of its modalities, with equal weights.

    Args:
        embeds (`torch.FloatTensor` of shape `(M, D)`): the clip's vectors.
        mask (`torch.BoolTensor` of shape `(M,)`): which of them count, at least one.

    Returns:
        `torch.FloatTensor` of shape `(1, D)`: unit norm.

    Raises:
        NothingToCompareError: the clip has no modality that counts.
    """
    if not mask.any():
        raise NothingToCompareError("This clip has none of the selected modalities. Select another one.")
    vectors = normalize(embeds[mask].float(), dim=-1)
    total = vectors.sum(0)
    # A single vector stays as it is; opposite ones have no centroid.
    if len(vectors) == 1 or total.norm() <= 1e-6:
        return vectors[:1]
    return normalize(total, dim=-1)[None]


__all__ = [
    "Likeness",
    "NothingToCompareError",
    "QueryModel",
    "check_vectors",
    "embed_captions",
    "load_query_model",
    "query_like",
]
