"""Frames to pixel values, with torch alone: neither torchvision nor Pillow.

The paper's images are resized bilinearly without antialiasing; that is the default, so that checkpoints see what they
were trained on.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers.feature_extraction_utils import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor
from transformers.processing_utils import ImagesKwargs

from .decoding_scalar import to_tensor

RESIZE_MODES = ("squash", "crop")


class ScalarImagesKwargs(ImagesKwargs, total=False):
    """The settings that `from_pretrained` may override."""

    image_size: int
    resize_mode: str
    antialias: bool
    train_crop_scale: list[float] | None
    train_flip: bool


class ScalarImageProcessor(BaseImageProcessor):
    """Turn the uint8 frames of clips into normalised, square `pixel_values_videos`.

    Args:
        image_size (`int`): side of the output.
        resize_mode (`str`): `"squash"` resizes both sides to `image_size`; `"crop"` resizes the short side and crops
            the centre (MSR-VTT and pretraining).
        antialias (`bool`): bilinear with antialiasing on uint8, several times faster. Off: bilinear without
            antialiasing on floats, the paper's.
        image_mean (`list[float]`), image_std (`list[float]`): per channel, of values in [0, 1]; CLIP's.
        train_crop_scale (`list[float]`, *optional*): in training, the range of the share of the area that a random
            square crop keeps. As in torchvision's `RandomResizedCrop`, a crop that does not fit is drawn again up to
            ten times, then the centre square is taken: always so for pictures wider than 5:4. `None`: resize as at
            test time.
        train_flip (`bool`): in training, flip half of the clips horizontally.
    """

    valid_kwargs = ScalarImagesKwargs
    model_input_names = ["pixel_values_videos"]
    train_crop_scale = (0.8, 1.0)  # saving keeps a setting of None only where the class has another default

    def __init__(
        self,
        image_size: int = 224,
        resize_mode: str = "squash",
        antialias: bool = False,
        image_mean: Sequence[float] = (0.48145466, 0.4578275, 0.40821073),
        image_std: Sequence[float] = (0.26862954, 0.26130258, 0.27577711),
        train_crop_scale: Sequence[float] | None = (0.8, 1.0),
        train_flip: bool = True,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if resize_mode not in RESIZE_MODES:
            raise ValueError(f"`resize_mode` must be one of {RESIZE_MODES}, got {resize_mode!r}.")
        if image_size < 1:
            raise ValueError(f"`image_size` must be at least 1, got {image_size!r}.")
        if train_crop_scale is not None and not 0 < train_crop_scale[0] <= train_crop_scale[1] <= 1:
            raise ValueError(f"`train_crop_scale` must be an ascending pair in (0, 1], got {train_crop_scale!r}.")
        self.image_size = image_size
        self.resize_mode = resize_mode
        self.antialias = antialias
        self.image_mean = list(image_mean)
        self.image_std = list(image_std)
        self.train_crop_scale = None if train_crop_scale is None else list(train_crop_scale)
        self.train_flip = train_flip

    def _resize(self, frames: torch.Tensor, height: int, width: int) -> torch.Tensor:
        if tuple(frames.shape[-2:]) == (height, width):
            return frames.float()
        if self.antialias:
            return F.interpolate(frames, (height, width), mode="bilinear", antialias=True).float()
        return F.interpolate(frames.float(), (height, width), mode="bilinear", align_corners=False)

    def _resize_and_crop(self, frames: torch.Tensor) -> torch.Tensor:
        size = self.image_size
        if self.resize_mode == "squash":
            return self._resize(frames, size, size)
        height, width = frames.shape[-2:]
        short = min(height, width)
        frames = self._resize(frames, size * height // short, size * width // short)
        top, left = (round((side - size) / 2) for side in frames.shape[-2:])
        return frames[..., top : top + size, left : left + size]

    def _draw_crop(self, height: int, width: int, generator: torch.Generator) -> tuple[int, int, int]:
        low, high = self.train_crop_scale
        for _ in range(10):
            share = low + (high - low) * float(torch.rand((), generator=generator))
            side = round((height * width * share) ** 0.5)
            if 0 < side <= min(height, width):
                top = int(torch.randint(height - side + 1, (), generator=generator))
                left = int(torch.randint(width - side + 1, (), generator=generator))
                break
        else:
            side = min(height, width)
            top, left = (height - side) // 2, (width - side) // 2
        return top, left, side

    def process_frames(
        self,
        frames: np.ndarray | torch.Tensor,
        training: bool = False,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """Resize and normalise the frames of one clip; in training crop and flip all of them alike.

        Args:
            frames (uint8 array or tensor of shape `(frames, height, width, 3)` or `(frames, 3, height, width)`): RGB.
            training (`bool`): augment.
            generator (`torch.Generator`): required in training.
        Returns:
            `torch.FloatTensor` of shape `(frames, 3, image_size, image_size)`.
        Raises:
            TypeError: frames that are not uint8.
            ValueError: another shape, or `training` without a generator.
        """
        frames = to_tensor(frames)
        if frames.dtype != torch.uint8:
            raise TypeError(f"Frames must be uint8 RGB in 0..255, got {frames.dtype}.")
        if frames.ndim != 4 or 3 not in (frames.shape[1], frames.shape[3]) or 0 in frames.shape:
            raise ValueError(
                "Frames of a clip must have the shape (frames, height, width, 3) or (frames, 3, height, width), "
                f"got {tuple(frames.shape)}."
            )
        if frames.shape[3] == 3:
            frames = frames.permute(0, 3, 1, 2)  # (frames, 3, height, width)
        return self._draw(*frames.shape[-2:], training, generator)(frames)

    def _draw(
        self, height: int, width: int, training: bool, generator: torch.Generator | None
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """Draw what happens to all frames of a clip; what is returned does it to some of them."""
        if training and generator is None:
            raise ValueError("`training=True` draws crops at random: pass a seeded `generator=torch.Generator()`.")
        crop = None
        if training and self.train_crop_scale is not None:
            crop = self._draw_crop(height, width, generator)
        flips = training and self.train_flip and float(torch.rand((), generator=generator)) < 0.5
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (self.image_mean, self.image_std))

        def process(frames: torch.Tensor) -> torch.Tensor:
            if crop is None:
                frames = self._resize_and_crop(frames)
            else:
                top, left, side = crop
                frames = frames[..., top : top + side, left : left + side]
                frames = self._resize(frames, self.image_size, self.image_size)
            frames = frames.flip(-1) if flips else frames
            return ((frames / 255 - mean) / std).contiguous()

        return process

    def prepare(
        self, training: bool = False, generator: torch.Generator | None = None
    ) -> Callable[[int, int], Callable[[np.ndarray], torch.Tensor]]:
        """Process the frames of a clip one at a time, as they are decoded, to what `process_frames` makes of all.

        Returns:
            What [`~decoding_scalar.prepare_frames`] takes: a function of height and width, which draws, and
            returns one from a frame `(height, width, 3)` to `(3, image_size, image_size)`.
        """

        def start(height: int, width: int) -> Callable[[np.ndarray], torch.Tensor]:
            process = self._draw(height, width, training, generator)
            return lambda frame: process(to_tensor(frame).permute(2, 0, 1)[None])[0]

        return start

    def preprocess(
        self,
        images: np.ndarray | torch.Tensor | list[np.ndarray | torch.Tensor],
        training: bool = False,
        generator: torch.Generator | None = None,
        return_tensors: str | None = "pt",
    ) -> BatchFeature:
        """Process one clip or a list of clips with equally many frames, see `process_frames`.

        Returns:
            `BatchFeature` with `pixel_values_videos` of shape `(clips, frames, 3, image_size, image_size)`.
        """
        clips = images if isinstance(images, (list, tuple)) else [images]
        pixel_values = torch.stack([self.process_frames(clip, training, generator) for clip in clips])
        return BatchFeature({"pixel_values_videos": pixel_values}, tensor_type=return_tensors)


ScalarImageProcessor.register_for_auto_class("AutoImageProcessor")

__all__ = ["RESIZE_MODES", "ScalarImageProcessor"]
