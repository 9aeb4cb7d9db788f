"""A module of Sentence Transformers that embeds pictures as what a classifier recognises in them.

ConSE (Norouzi et al. 2013, arXiv 1312.5650): the vector of a picture is the mean of the sentence embeddings of the
classes, weighted by their probabilities. So it lies in the space of the sentence encoder, and nothing is trained.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.base.modules import InputModule
from torch.nn.functional import interpolate, normalize

from .efficientnet_lite import NUM_CLASSES, PICTURE_SIZE, EfficientNetLite0

_WEIGHTS = "model.safetensors"


def _channels_first(pictures: Any) -> torch.Tensor:
    """The frames of an input, `(frames, 3, height, width)`, 0 to 255; see [`PictureTagger.preprocess`]."""
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


class PictureTagger(InputModule):
    """
    Embed pictures and videos by the classes that [`EfficientNetLite0`] recognises in them.

    Args:
        dim (`int`): The dimension of the embeddings of classes, `class_embeds` `(1000, dim)`, which are loaded with
            the weights of the network.
    """

    config_keys = ["dim"]

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim
        self.network = EfficientNetLite0()
        self.register_buffer("class_embeds", torch.zeros(NUM_CLASSES, dim))

    @property
    def modalities(self) -> list[str]:
        """What can be embedded, by its name in Sentence Transformers."""
        return ["image", "video"]

    def get_embedding_dimension(self) -> int:
        """Return the dimension of embeddings."""
        return self.dim

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, torch.Tensor]:
        """
        Prepare pictures and videos. A prompt changes nothing.

        Args:
            inputs (`list`): Pictures, RGB of 0 to 255: a tensor `(3, height, width)`, an array `(height, width, 3)`
                or one of PIL. Videos have one more axis in front; all their frames count alike.

        Returns:
            `pictures` `(all frames, 3, 224, 224)` and `num_frames` `(inputs,)`.
        """
        videos = [_middle_square(_channels_first(pictures)) for pictures in inputs]
        num_frames = torch.tensor([len(frames) for frames in videos])
        return {"pictures": torch.cat(videos), "num_frames": num_frames}

    def forward(self, features: dict[str, torch.Tensor], **kwargs: Any) -> dict[str, torch.Tensor]:
        """Add `sentence_embedding` `(inputs, dim)`, of unit norm."""
        rows = []
        # One by one: a batch takes more memory and is no faster.
        for frames in features["pictures"].split(features["num_frames"].tolist()):
            logits = self.network((frames.to(self.class_embeds.dtype) - 127) / 128)
            rows.append(logits.float().softmax(dim=-1).mean(dim=0))
        probabilities = torch.stack(rows)  # (inputs, classes)
        features["sentence_embedding"] = normalize(probabilities @ self.class_embeds.float(), dim=-1)
        return features

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Save the weights, with the embeddings of the classes, as safetensors."""
        self.save_config(output_path)
        save_file(self.state_dict(), Path(output_path) / _WEIGHTS)

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Load a saved tagger; see [`~sentence_transformers.base.modules.Module.load`]."""
        place = {
            "subfolder": subfolder,
            "token": token,
            "cache_folder": cache_folder,
            "revision": revision,
            "local_files_only": local_files_only,
        }
        path = cls.load_file_path(model_name_or_path, _WEIGHTS, **place)
        if path is None:
            raise FileNotFoundError(
                f"{model_name_or_path} holds no {_WEIGHTS} in {subfolder!r}. Save the model again."
            )
        tagger = cls(**cls.load_config(model_name_or_path, **place))
        tagger.load_state_dict(load_file(path))
        return tagger


TAGGER = f"{PictureTagger.__module__}.{PictureTagger.__name__}"
"""The name of the class in the files of a saved model."""

__all__ = ["TAGGER", "PictureTagger"]
