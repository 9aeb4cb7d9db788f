"""A module of Sentence Transformers in which encoders with spaces of their own stand side by side: their direct sum.

A query is (t_1, ..., t_k) / sqrt(k), its embeddings by all k encoders. A modality of a clip has the embedding by its
own encoder in that encoder's slice, and zeros elsewhere, so its product with a query is a cosine of that encoder over
sqrt(k). A direct sum of one encoder is that encoder.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modality import infer_modality
from sentence_transformers.base.modules import InputModule, Transformer
from torch.nn.functional import pad

from .light_model import ENCODER
from .media_scalar import SAMPLING_RATE
from .modalities_scalar import kind_of
from .model_identity import weights_of
from .picture_tagger import LightEncoder
from .processing_joint_scalar import as_words
from .scores_scalar import unit

_SIGLIP = ("siglip", "siglip2")
_ALONE = {"video": 0, "audio": 0, "text": 0}
_OPTIONS = {"convert_to_tensor": True, "show_progress_bar": False}


def load_encoder(name: str, **model_kwargs: Any) -> SentenceTransformer:
    """
    Load an encoder that Sentence Transformers reads, with its prompts and pooling; no code of its folder runs.

    Args:
        name (`str`): A folder.
        **model_kwargs: Options of transformers' `from_pretrained`, such as `dtype`.

    Raises:
        FileNotFoundError: If there are no weights as safetensors.
    """
    weights_of(Path(name))
    # Only the library's own modules and those of this package.
    encoder = SentenceTransformer._load_with_module_classes(
        name,
        {ENCODER: LightEncoder, DIRECT_SUM: DirectSum},
        device="cpu",
        trust_remote_code=False,
        model_kwargs={"use_safetensors": True} | model_kwargs,
    )
    for module in encoder.modules():
        if not isinstance(module, Transformer):
            continue
        config = module.model.config
        # SigLIP was trained on texts of one length, without a mask; the library pads to the longest.
        if config.model_type in _SIGLIP:
            module.processing_kwargs["text"] = {
                "padding": "max_length",
                "max_length": config.text_config.max_position_embeddings,
                "return_attention_mask": False,
            }
        # CLAP normalises spectrograms in single precision. A processor may take a tokenizer's length for a sound's.
        if config.model_type == "clap":
            module.float()
            module.processing_kwargs["audio"] = {"max_length": module.processor.feature_extractor.nb_max_samples}
    return encoder


def _extractor_of(encoder: SentenceTransformer) -> Any:
    """The feature extractor of sound, which each route of a `Router` may have; `None` without one."""
    for module in encoder.modules():
        processor = getattr(module, "processor", None)
        extractor = getattr(processor, "feature_extractor", processor)
        if hasattr(extractor, "sampling_rate"):
            return extractor
    return None


def _texts_for(encoder: SentenceTransformer, texts: Sequence[str]) -> list:
    """Texts without special tokens, marked as such where the library would open the file that they seem to name."""
    tokenizer = getattr(encoder, "tokenizer", None)
    prepared = []
    for text in texts:
        text = as_words(text, tokenizer)
        if infer_modality(text) != "text":
            text = {"text": text}
        prepared.append(text)
    return prepared


def _means_of_parts(encoder: SentenceTransformer, items: Iterable[list], batch_size: int = 32) -> torch.Tensor:
    """Embed the parts of each item, such as its frames: the mean of their normalised embeddings, `(items, dim)`."""
    means = []
    for parts in items:
        embeds = encoder.encode_document(parts, batch_size=batch_size, **_OPTIONS)
        means.append(unit(embeds).mean(dim=0))
    return torch.stack(means)


def _parts_of(sound: dict[str, Any], longest: int) -> list[dict[str, Any]]:
    """All parts of the longest length that is heard at once; the last one ends where the sound ends."""
    waveform = sound["array"]
    parts = []
    for start in range(0, len(waveform), longest):
        start = max(0, min(start, len(waveform) - longest))
        parts.append(sound | {"array": waveform[start : start + longest]})
    return parts


class DirectSum(InputModule):
    """
    Encoders side by side.

    Args:
        encoders (`list[SentenceTransformer]`): Each embeds texts, for queries.
        routes (`dict[str, int]`): The number of the encoder of `"video"`, `"audio"` and `"text"`, and of single texts
            by their names, such as `"title"`. Other modalities are not embedded.
    """

    config_keys = ["routes"]

    def __init__(self, encoders: Sequence[SentenceTransformer], routes: Mapping[str, int] = _ALONE):
        super().__init__()
        self.encoders = torch.nn.ModuleList(encoders)
        self.routes = {}
        for modality, number in routes.items():
            known = encoders[number].modalities
            kind = kind_of(modality)
            if kind in known or (kind == "video" and "image" in known):
                self.routes[modality] = number
        self.slices = []
        self.dim = 0
        for encoder in encoders:
            self.slices.append([self.dim, self.dim + encoder.get_embedding_dimension()])
            self.dim = self.slices[-1][1]

    @property
    def modalities(self) -> list[str]:
        """What can be embedded, by its name in Sentence Transformers."""
        kinds = {"text", *map(kind_of, self.routes)}
        if "video" in kinds:
            kinds.add("image")
        return sorted(kinds)

    @property
    def sampling_rate(self) -> int:
        """The rate in Hz at which sound is read."""
        extractor = _extractor_of(self.encoders[self.number_of("audio")])
        return getattr(extractor, "sampling_rate", SAMPLING_RATE)

    def get_embedding_dimension(self) -> int:
        """Return the dimension of a query."""
        return self.dim

    def number_of(self, modality: str) -> int | None:
        """Return the number of a modality's encoder, `None` if none embeds it."""
        return self.routes.get(modality, self.routes.get(kind_of(modality)))

    def encode_queries(self, texts: Sequence[str]) -> torch.Tensor:
        """Embed queries by all encoders, `(queries, dim)`, of unit norm."""
        columns = []
        for encoder in self.encoders:
            columns.append(unit(encoder.encode_query(_texts_for(encoder, texts), **_OPTIONS)))
        return torch.cat(columns, dim=-1) / math.sqrt(len(columns))

    def encode_clips(self, modality: str, items: Sequence[Any]) -> torch.Tensor:
        """
        Embed one modality of clips.

        Args:
            modality (`str`): `"video"`, `"audio"` or the name of a text.
            items (`list`): Texts; uint8 frames `(frames, 3, height, width)`; or sounds with the encoder's rate,
                `{"array": ..., "sampling_rate": ...}`.

        Returns:
            `torch.FloatTensor` of shape `(clips, dim)`, of unit norm, zero outside the modality's slice.
        """
        number = self.number_of(modality)
        encoder = self.encoders[number]
        if kind_of(modality) == "text":
            embeds = encoder.encode_document(_texts_for(encoder, items), **_OPTIONS)
        elif modality == "audio":
            # CLAP takes a random part of a longer sound and, if it is fused, a random sound of a batch as longer.
            longest = getattr(_extractor_of(encoder), "nb_max_samples", sys.maxsize)
            embeds = _means_of_parts(encoder, map(partial(_parts_of, longest=longest), items), batch_size=1)
        elif encoder.supports("video"):
            chosen = {"video": {"do_sample_frames": False}}  # by the processor
            embeds = encoder.encode_document(items, processing_kwargs=chosen, **_OPTIONS)
        else:  # an encoder of pictures sees each frame
            embeds = _means_of_parts(encoder, map(list, items))
        start, stop = self.slices[number]
        return pad(unit(embeds), (start, self.dim - stop))

    # As a module of Sentence Transformers ----------------------------------------------------------------------------

    def preprocess(
        self, inputs: Sequence[Any], prompt: str | None = None, task: str | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """
        Pass inputs on to `forward`, because each encoder prepares its own.

        Args:
            inputs (`list`): Of one kind, as in `encode_clips`.
            prompt (`str`, *optional*): Not supported, as each encoder has its own.
            task (`str`, *optional*): `"query"`, or `"document"` for anything else.
        """
        if prompt:
            raise ValueError(
                f"Encoders side by side have prompts of their own, and take no other, got {prompt!r:.80}."
            )
        return {"inputs": inputs, "task": task}

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add `sentence_embedding` `(inputs, dim)`, of unit norm."""
        inputs = features["inputs"]
        kind = infer_modality(inputs[0], self.modalities)
        if kind == "image":  # a video of one frame
            kind = "video"
            inputs = [torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None] for picture in inputs]
        if features["task"] == "query" and kind == "text":
            features["sentence_embedding"] = self.encode_queries(inputs)
        else:
            features["sentence_embedding"] = self.encode_clips(kind, inputs)
        return features

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Save each encoder in a folder of its own."""
        self.save_config(output_path)
        for number, encoder in enumerate(self.encoders):
            encoder.save(str(Path(output_path, f"{number:02}_encoder")), create_model_card=False)

    @classmethod
    def load(cls, model_name_or_path: str, model_kwargs: Mapping[str, Any] | None = None, **kwargs: Any) -> Self:
        """Load what was saved in a folder."""
        encoders = []
        for folder in sorted(Path(model_name_or_path).glob("*_encoder")):
            encoders.append(load_encoder(str(folder), **model_kwargs or {}))
        return cls(encoders, cls.load_config(model_name_or_path)["routes"])


DIRECT_SUM = f"{DirectSum.__module__}.{DirectSum.__name__}"
"""The name of the class in the files of a saved model."""

__all__ = ["DIRECT_SUM", "DirectSum", "load_encoder"]
