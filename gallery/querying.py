"""What a gallery is asked: texts, by the model that made it, or to be like one of its clips.

Shapes: Q queries, D dimensions.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import normalize

import modeling_scalar
from gallery.columns import off_unit
from gallery.decoding import sandboxed
from gallery.described import MODALITIES, Described
from gallery.embedding import embed_captions, embed_clips
from gallery.subtitles import LANGUAGES
from modeling_scalar.scores_scalar import METHODS, PAPER_MODALITIES, WEIGHING, find_method

if TYPE_CHECKING:
    from transformers import PreTrainedModel, ProcessorMixin

    from modeling_scalar.model_identity import ModelIdentity

_PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
"""Files that are one frame; others are media files."""


def check_texts(texts: Sequence[str]) -> None:
    """Raise a ValueError that names a query in which there is no word, or that is not UTF-8."""
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"A query is empty, got {text!r}. Type what you are looking for.")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"The query {text!r} is not UTF-8. Set the encoding of your terminal to UTF-8."
            ) from error


def check_vectors(text_embeds: torch.Tensor, k: int, dim: int | None, num_modalities: int) -> torch.Tensor:
    """
    Return vectors that are asked, in float32 on the CPU.

    Raises:
        ValueError: `k` is below 1, their shape is not `(Q, D)` or `(Q, 3, D)` with the D of the gallery, if it has
            one, or they are not of unit norm.
    """
    if k < 1:
        raise ValueError(f"`k` must be at least 1, got {k}.")
    shape, expected = tuple(text_embeds.shape[1:]), dim or (text_embeds.shape[-1] if text_embeds.ndim else 0)
    if shape not in ((expected,), (num_modalities, expected)):
        raise ValueError(
            f"`text_embeds` must have shape (queries, {dim or 'D'}), or with a vector for each modality "
            f"(queries, {num_modalities}, {dim or 'D'}), got {tuple(text_embeds.shape)}."
        )
    text_embeds = text_embeds.detach().to("cpu", torch.float32)
    wrong = off_unit(text_embeds)
    if wrong.any():
        norms = torch.linalg.vector_norm(text_embeds[wrong], dim=-1)
        raise ValueError(f"Rows of `text_embeds` must have unit norm, got {norms.tolist()[:8]}.")
    return text_embeds


class NothingToCompareError(ValueError):
    """A clip has nothing that others could be like."""


@dataclass(frozen=True)
class Likeness:
    """
    What clips may be like, though it is none of the gallery: see [`QueryModel.embed_file`].

    Args:
        name (`str`): what it is called.
        embeds (`torch.FloatTensor` of shape `(M, D)`), mask (`torch.BoolTensor` of shape `(M,)`): its vectors, and
            which of them there are.
    """

    name: str
    embeds: torch.Tensor
    mask: torch.Tensor


def _read_picture(path: str) -> np.ndarray:
    """A picture, upright, uint8 `(height, width, 3)`."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as picture:
            return np.array(ImageOps.exif_transpose(picture).convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path}: not a picture that can be read ({error}).") from error


class QueryModel:
    """
    A model that embeds queries; threads may use it at once, and take turns.

    Args:
        model ([`~modeling_scalar.ScalarModel`]), processor (`ProcessorMixin`).
        languages (`Sequence[str]`): of the subtitles of files those that come first, as in the gallery.
    """

    def __init__(self, model: "PreTrainedModel", processor: "ProcessorMixin", languages: Sequence[str] = ()):
        self.model, self.processor, self.languages, self.lock = model, processor, languages, Lock()
        # A gallery has its own modalities, and its own temperature, scale and offset of these.
        own = (MODALITIES, *WEIGHING)
        options = {name: value for name, value in model.score_options().items() if name not in own}
        self.method = options.pop("method")
        self.learned = {name: value.item() for name, value in options.items()}

    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        """Embed queries: `(Q, D)`, or `(Q, M, D)` by a model of which each modality meets a vector of its own."""
        with self.lock:
            return embed_captions(self.model, self.processor, texts)

    def embed_file(self, path: str | os.PathLike) -> Likeness:
        """
        Embed a file as clips of a gallery are, with the subtitles beside it; a picture is a clip of one frame.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: nothing in it can be read, or nothing that the model takes.
        """
        path, processor = os.fspath(path), sandboxed(self.processor, languages=self.languages)
        if Path(path).suffix.lower() in _PICTURES:
            clip = processor.read_clip(_read_picture(path))
        else:
            clip = processor.read_clip(path, on_error="missing", processed=True)
        if clip.is_empty:
            told = "; ".join(clip.problems) or f"{path}: it has no picture, no sound and no subtitles"
            raise ValueError(f"There is nothing that clips could be like. {told}")
        with self.lock:
            embeds, mask, _ = embed_clips(self.model, processor(clips=[clip]))
        return Likeness(path, embeds[0], mask[0])


def modalities_option(identity: "ModelIdentity", modalities: Sequence[str] | None) -> dict[str, Any]:
    """With which option of `load_model` a model embeds these modalities: none of one that has its own."""
    is_chosen = identity.kind == "encoder" and tuple(modalities or PAPER_MODALITIES) != PAPER_MODALITIES
    return {"modalities": list(modalities)} if is_chosen else {}


def load_query_model(
    searcher: Described, model: str | os.PathLike | None = None, device: str | None = None, dtype: str | None = None
) -> QueryModel:
    """
    Load the model that texts are embedded with; by default it is loaded for the first search by a text.

    Args:
        searcher ([`~gallery.searching.Searcher`]): what is searched; it keeps the model.
        model (`str`, *optional*): where it is now, a folder or a Hub id; by default where it was.
        device (`str`, *optional*), dtype (`str`, *optional*): where it runs and in which precision, by name; by
            default as the commands have it.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: the gallery does not say which model made it and none is named, or another one made it.
    """
    # Not at the top: transformers come with them, which nothing else that a gallery is asked needs.
    from modeling_scalar.devices import device_of_name, dtype_of_name
    from modeling_scalar.model_identity import identify

    revision = searcher.model_revision if model is None else None
    model = model or searcher.model
    if model is None:
        raise ValueError(
            f"{searcher.path} does not say which model made it. Name it with --model, or `gallery.load_model(FOLDER)`."
        )
    try:
        identity = identify(model, revision)
        folder = identity.download()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error} It is the model that the gallery was made with, and queries need it. Where it is elsewhere now, "
            "name the folder: `--model FOLDER`, or `gallery.load_model(FOLDER)`."
        ) from error
    searcher.check_model(str(model), identity.fingerprint)
    chosen = modalities_option(identity, searcher.modalities)
    loaded = modeling_scalar.load_model(folder, dtype_of_name(dtype), device_of_name(device), **chosen)  # without code
    searcher.query_model = QueryModel(*loaded, searcher.metadata.get(LANGUAGES, ()))
    return searcher.query_model


def query_like(embeds: torch.Tensor, mask: torch.Tensor, method: str, modalities: Sequence[str]) -> torch.Tensor:
    """
    Make a query of a clip.

    Each of its modalities is the query for the same one of others; for those that it lacks, what it has is: the
    centroid. That is the query for all where the score is of one vector per text.

    Args:
        embeds (`torch.FloatTensor` of shape `(M, D)`): the clip's vectors.
        mask (`torch.BoolTensor` of shape `(M,)`): which of them count, at least one.
        method (`str`): the score.
        modalities (sequence of `str`): what the M vectors are called.

    Returns:
        `torch.FloatTensor` of shape `(1, M, D)`, or `(1, D)`: unit norm.

    Raises:
        NothingToCompareError: the clip has nothing that counts.
        ValueError: the score is unknown.
    """
    if not mask.any():
        raise NothingToCompareError("This clip has none of the modalities that are looked at. Look at another one.")
    find_method(method, modalities)
    vectors = normalize(embeds.float(), dim=-1)
    total = vectors[mask].sum(0)
    has_centroid = mask.sum() > 1 and total.norm() > 1e-6  # of opposites there is none
    centroid = normalize(total, dim=-1) if has_centroid else vectors[mask][0]
    if not METHODS[method].takes_text_per_modality:
        return centroid[None]
    return torch.where(mask[:, None], vectors, centroid)[None]


__all__ = [
    "Likeness",
    "NothingToCompareError",
    "QueryModel",
    "check_texts",
    "check_vectors",
    "load_query_model",
    "modalities_option",
    "query_like",
]
