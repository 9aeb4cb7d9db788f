"""The module of Sentence Transformers of `light`, and its half that embeds pictures as what a classifier recognises.

ConSE (Norouzi et al. 2013, arXiv 1312.5650): the vector of a picture is the mean of the sentence embeddings of the
classes, weighted by their probabilities. So it lies in the space of the sentence encoder, and nothing is trained.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors.torch import load_file
from sentence_transformers.base.modules import InputModule
from torch import nn
from torch.nn.functional import interpolate, normalize

from .efficientnet_lite import PICTURE_SIZE, EfficientNetLite0
from .light_model import PICTURE_WEIGHTS
from .light_texts import LightTextEncoder

_FRAMES_AT_ONCE = 2


def _channels_first(pictures: Any) -> torch.Tensor:
    """The frames of an input, `(frames, 3, height, width)`, 0 to 255; see [`LightEncoder.preprocess`]."""
    is_tensor = isinstance(pictures, torch.Tensor)
    frames = pictures if is_tensor else torch.from_numpy(np.array(pictures))
    # A picture is a video of one frame.
    if frames.ndim == 3:
        frames = frames[None]
    if frames.ndim == 4 and not is_tensor:
        frames = frames.permute(0, 3, 1, 2)
    if frames.ndim != 4 or frames.shape[1] != 3 or 0 in frames.shape:
        raise ValueError(
            "A picture must be RGB, (3, height, width) as a tensor or (height, width, 3) as an array, and a video a "
            f"stack of pictures; got the shape {tuple(np.shape(pictures))}."
        )
    return frames


def _middle_square(frames: torch.Tensor) -> torch.Tensor:
    """Cut the square in the middle of each frame, and scale it to the size that the network reads."""
    side = min(frames.shape[-2:])
    top = (frames.shape[-2] - side) // 2
    left = (frames.shape[-1] - side) // 2
    square = frames[..., top : top + side, left : left + side].float()
    return interpolate(square, (PICTURE_SIZE, PICTURE_SIZE), mode="bilinear", antialias=True)


class PictureTagger(nn.Module):
    """
    Embed pictures and videos by the classes that [`EfficientNetLite0`] recognises in them.

    Args:
        path (`Path`): The weights of the network, and the embeddings of classes, `class_embeds` `(1000, dim)`.
    """

    def __init__(self, path: Path):
        super().__init__()
        weights = load_file(path)
        self.network = EfficientNetLite0()
        self.register_buffer("class_embeds", torch.zeros_like(weights["class_embeds"]))
        self.load_state_dict(weights)
        self.network.to(memory_format=torch.channels_last)

    def forward(self, frames: torch.Tensor, num_frames: list[int]) -> torch.Tensor:
        """Embed videos, given all their frames: `(videos, dim)`, unit norm."""
        rows = []
        for video in frames.split(num_frames):
            probabilities = []
            # A few at a time: their activations fit in memory that is used again, and larger batches are slower.
            for few in video.split(_FRAMES_AT_ONCE):
                pictures = (few.to(self.class_embeds.dtype) - 127) / 128
                logits = self.network(pictures.contiguous(memory_format=torch.channels_last))
                probabilities.append(logits.float().softmax(dim=-1))
            rows.append(torch.cat(probabilities).mean(dim=0))
        probabilities = torch.stack(rows)  # (videos, classes)
        return normalize(probabilities @ self.class_embeds.float(), dim=-1)


class LightEncoder(InputModule):
    """
    Embed texts by a [`LightTextEncoder`], pictures and videos by a [`PictureTagger`].

    Args:
        folder (`Path`): The folder of [`~scalar_retrieval.modeling_scalar.light_model.light_folder`].
    """

    def __init__(self, folder: Path):
        super().__init__()
        self.folder = folder
        self.texts = LightTextEncoder(folder)
        self.pictures = PictureTagger(folder / PICTURE_WEIGHTS)

    @property
    def modalities(self) -> list[str]:
        """What can be embedded, by its name in Sentence Transformers."""
        return ["text", "image", "video"]

    def get_embedding_dimension(self) -> int:
        """Return the dimension of embeddings."""
        return self.pictures.class_embeds.shape[1]

    def preprocess(
        self, inputs: Sequence[Any], prompt: str | None = None, task: str | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """
        Prepare texts, or pictures and videos.

        Args:
            inputs (`list`): Texts, or pictures, RGB of 0 to 255: a tensor `(3, height, width)`, an array
                `(height, width, 3)` or one of PIL. Videos have one more axis in front; all their frames count alike.
            prompt (`str`, *optional*): Changes nothing.
            task (`str`, *optional*): `"query"` for texts that are queries.

        Returns:
            `texts` and `are_queries`; or `pictures` `(all frames, 3, 224, 224)` and `num_frames`.
        """
        texts = [text["text"] if isinstance(text, dict) else text for text in inputs]
        if isinstance(texts[0], str):
            return {"texts": texts, "are_queries": task == "query"}
        videos = [_middle_square(_channels_first(pictures)) for pictures in inputs]
        return {"pictures": torch.cat(videos), "num_frames": [len(frames) for frames in videos]}

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add `sentence_embedding` `(inputs, dim)`, of unit norm."""
        if "texts" in features:
            embeds = self.texts.embed(features["texts"], features["are_queries"])
        else:
            embeds = self.pictures(features["pictures"], features["num_frames"])
        features["sentence_embedding"] = embeds
        return features

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Copy the files, which nothing changes."""
        for path in self.folder.iterdir():
            if path.is_file():
                shutil.copyfile(path, Path(output_path) / path.name)

    @classmethod
    def load(cls, model_name_or_path: str, **kwargs: Any) -> Self:
        """Load what was saved in a folder."""
        return cls(Path(model_name_or_path))


__all__ = ["LightEncoder", "PictureTagger"]
