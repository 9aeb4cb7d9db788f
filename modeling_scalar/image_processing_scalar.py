"""Pixel values of frames, computed with torch, without torchvision or Pillow.

Images are resized bilinearly without antialiasing, as in the paper, so that checkpoints see the images they
were trained on.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import validate_typed_dict
from transformers.feature_extraction_utils import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor
from transformers.processing_utils import ImagesKwargs

_RESIZE_MODES = ("squash", "crop")


def check_whole(**settings: Any) -> None:
    """Raise a ValueError unless settings are whole numbers, at least 1."""
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            raise ValueError(f"`{name}` must be a whole number, at least 1, got {value!r:.80}.")


def frame_indices(
    num_available: int, num_frames: int, training: bool = False, generator: torch.Generator | None = None
) -> list[int]:
    """Choose `num_frames` of `num_available` items (SCALAR, implementation details: uniformly sampled frames).

    The list of indices is padded with its last entry up to `num_frames` and split into `num_frames` chunks as by
    `numpy.array_split`; the result has element `(len + 1) // 2 - 1` of each chunk, in training a random one.

    Args:
        num_available (`int`), num_frames (`int`): At least 1.
        training (`bool`): Whether to draw from each chunk at random instead of taking its middle.
        generator (`torch.Generator`): Required in training; the same state gives the same indices.

    Returns:
        `list[int]` of length `num_frames`, ascending.

    Example:

        >>> frame_indices(10, 3)  # of the chunks 0 to 3, 4 to 6 and 7 to 9
        [1, 5, 8]
        >>> frame_indices(2, 4)  # the last one is repeated
        [0, 1, 1, 1]
    """
    if training and generator is None:
        raise ValueError("`training=True` draws at random: pass a seeded `generator=torch.Generator()`.")
    # The first `extra` chunks have one item more.
    size, extra = divmod(max(num_available, num_frames), num_frames)
    chosen = []
    start = 0
    for chunk in range(num_frames):
        length = size + (chunk < extra)
        offset = (length + 1) // 2 - 1
        # No draw without a choice, so that choosing again among chosen frames does not change later draws.
        if training and length > 1:
            offset = int(torch.randint(length, (), generator=generator))
        chosen.append(min(start + offset, num_available - 1))
        start += length
    return chosen


def to_tensor(array: np.ndarray | torch.Tensor) -> torch.Tensor:
    """View an array as a tensor, or copy it if torch cannot view it (read-only memory, negative strides)."""
    if isinstance(array, torch.Tensor):
        return array
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def is_picture(item: Any) -> bool:
    """Whether this is one picture: a Pillow image, or an array or tensor with three axes."""
    return hasattr(item, "getbands") or (isinstance(item, (np.ndarray, torch.Tensor)) and item.ndim == 3)


def to_frames(frames: Any) -> np.ndarray:
    """Convert the pictures of one clip to a common layout.

    Args:
        frames: An array or tensor of shape `(frames, height, width, 3)` or `(frames, 3, height, width)`, one picture,
            or a list of pictures of the same size. Pillow images are converted to RGB.
    Returns:
        uint8 `np.ndarray` of shape `(frames, height, width, 3)`.
    """
    # A picture, a list of pictures, or all frames in one array.
    if is_picture(frames):
        frames = [frames]
    if not isinstance(frames, (list, tuple)):
        return _channels_last(frames)
    pictures = [_channels_last(picture) for picture in frames]
    return np.stack(pictures)


def _channels_last(item: Any) -> np.ndarray:
    # A Pillow image, a tensor on any device, or an array.
    if hasattr(item, "getbands"):
        item = item.convert("RGB")
    item = item.detach().cpu() if isinstance(item, torch.Tensor) else np.asarray(item)
    if item.dtype not in (np.uint8, torch.uint8):
        raise TypeError(
            f"The frames of a video must be uint8 RGB in 0..255, got {item.dtype}. If they are floats in [0, 1], "
            "convert them: `(frames * 255).round()` as uint8."
        )
    # Either layout, told apart by the axis of length 3.
    array = np.asarray(item)
    if array.ndim not in (3, 4) or 3 not in (array.shape[-1], array.shape[-3]) or 0 in array.shape:
        raise ValueError(
            "Frames must have the shape (frames, height, width, 3) or (frames, 3, height, width), and a picture "
            f"(height, width, 3) or (3, height, width), got {array.shape}."
        )
    if array.shape[-1] == 3:
        return array
    return np.moveaxis(array, -3, -1)


def to_batch(data: Mapping[str, Any], return_tensors: Any) -> BatchFeature:
    """Make a `BatchFeature` of tensors, of arrays, or of lists with an array per clip that has pixels or audio."""
    # Without tensors, as transformers' own processors: a list with an item for each clip.
    batch = dict(data)
    if return_tensors is not None:
        return BatchFeature(batch, tensor_type=return_tensors)
    for name, value in data.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            batch[name] = list(value.numpy())
        elif isinstance(value, torch.Tensor):
            batch[name] = value.tolist()
    return BatchFeature(batch)


class ClipImageProcessor(BaseImageProcessor):
    """
    Base class of image processors of clips. A subclass has `_draw(height, width, training, generator)`, which draws
    the transform of a clip; the function that it returns applies it to some frames.
    """

    def __init__(self, image_mean: Sequence[float], image_std: Sequence[float], rescale_factor: float, **kwargs: Any):
        # Transformers would store unknown settings and ignore them.
        unknown = sorted(kwargs.keys() & ImagesKwargs.__annotations__.keys())
        if unknown:
            raise TypeError(f"{type(self).__name__} has no setting {unknown}. Use its own arguments.")
        super().__init__(**kwargs)
        self.image_mean = list(image_mean)
        self.image_std = list(image_std)
        self.rescale_factor = rescale_factor

    def process_frames(
        self, frames: Any, training: bool = False, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Process the frames of one clip, all with the same augmentation in training.

        Args:
            frames: Frames for [`to_frames`].
            training (`bool`): Whether to augment.
            generator (`torch.Generator`): Required in training by a processor that augments.
        Returns:
            `torch.FloatTensor` of shape `(frames, 3, height, width)`, in the processor's output size.
        """
        frames = to_tensor(to_frames(frames)).permute(0, 3, 1, 2)  # (frames, 3, height, width)
        return self._draw(*frames.shape[-2:], training, generator)(frames)

    def prepare(
        self, height: int, width: int, training: bool = False, generator: torch.Generator | None = None
    ) -> Callable[[np.ndarray], torch.Tensor]:
        """Draw the transform of a clip of this size, for [`~media_scalar.MediaReader.read_frames`].

        Returns:
            A function that processes one frame `(height, width, 3)`, with the result of `process_frames`.
        """
        process = self._draw(height, width, training, generator)
        return lambda frame: process(to_tensor(frame).permute(2, 0, 1)[None])[0]

    def replace(self, **settings: Any) -> Self:
        """A copy with other values of some settings, or itself without any."""
        if not settings:
            return self
        validate_typed_dict(self.valid_kwargs, settings)
        return self.from_dict(self.to_dict(), **settings)


class ScalarImageProcessorKwargs(ImagesKwargs, total=False):
    """The settings that `from_pretrained` or a call may override; others of transformers are rejected."""

    image_size: int
    resize_mode: str
    train_crop_scale: list[float] | tuple[float, float] | None
    train_flip: bool


class ScalarImageProcessor(ClipImageProcessor):
    """Turn the uint8 frames of clips into normalised, square `pixel_values_videos`.

    Args:
        image_size (`int`): Side of the output.
        resize_mode (`str`): `"squash"` resizes both sides to `image_size`; `"crop"` resizes the short side and crops
            the centre (MSR-VTT and pretraining).
        image_mean (`list[float]`), image_std (`list[float]`): Per channel, for values in [0, 1]; CLIP's by default.
        train_crop_scale (`list[float]`, *optional*): In training, the range of the share of the area that a random
            square crop keeps. As in torchvision's `RandomResizedCrop`, a crop that does not fit is drawn again up to
            ten times, then the centre square is used, as always for pictures wider than 5:4. `None` resizes as at test
            time.
        train_flip (`bool`): Whether to flip half of the clips horizontally in training.
        do_rescale (`bool`), rescale_factor (`float`): Whether to first multiply 0..255 by this factor.
        do_normalize (`bool`): Whether to subtract the mean and divide by the standard deviation.
    """

    valid_kwargs = ScalarImageProcessorKwargs
    model_input_names = ["pixel_values_videos"]
    train_crop_scale = (0.8, 1.0)  # None is saved only if the class has another value

    def __init__(
        self,
        image_size: int = 224,
        resize_mode: str = "squash",
        image_mean: Sequence[float] = (0.48145466, 0.4578275, 0.40821073),
        image_std: Sequence[float] = (0.26862954, 0.26130258, 0.27577711),
        train_crop_scale: Sequence[float] | None = (0.8, 1.0),
        train_flip: bool = True,
        do_rescale: bool = True,
        rescale_factor: float = 1 / 255,
        do_normalize: bool = True,
        **kwargs: Any,
    ):
        super().__init__(image_mean, image_std, rescale_factor, **kwargs)
        if resize_mode not in _RESIZE_MODES:
            raise ValueError(f"`resize_mode` must be one of {_RESIZE_MODES}, got {resize_mode!r}.")
        if train_crop_scale is not None and not 0 < train_crop_scale[0] <= train_crop_scale[1] <= 1:
            raise ValueError(f"`train_crop_scale` must be an ascending pair in (0, 1], got {train_crop_scale!r}.")
        check_whole(image_size=image_size)
        self.image_size = image_size
        self.resize_mode = resize_mode
        self.train_crop_scale = train_crop_scale and list(train_crop_scale)
        self.train_flip = train_flip
        self.do_rescale = do_rescale
        self.do_normalize = do_normalize

    def _resize(self, frames: torch.Tensor, height: int, width: int) -> torch.Tensor:
        if tuple(frames.shape[-2:]) == (height, width):
            return frames.float()
        return F.interpolate(frames.float(), (height, width), mode="bilinear", align_corners=False)

    def _resize_and_crop(self, frames: torch.Tensor) -> torch.Tensor:
        size = self.image_size
        if self.resize_mode == "squash":
            return self._resize(frames, size, size)
        # The short side first, then the middle of the long one.
        height, width = frames.shape[-2:]
        short = min(height, width)
        frames = self._resize(frames, size * height // short, size * width // short)
        top = round((frames.shape[-2] - size) / 2)
        left = round((frames.shape[-1] - size) / 2)
        return frames[..., top : top + size, left : left + size]

    def _draw_crop(self, height: int, width: int, generator: torch.Generator) -> tuple:
        """Draw a square, as an index of frames `(..., height, width)`."""
        # A share of the area, then a place where that square fits.
        low, high = self.train_crop_scale
        short = min(height, width)
        for _ in range(10):
            share = low + (high - low) * float(torch.rand((), generator=generator))
            side = round((height * width * share) ** 0.5)
            if 0 < side <= short:
                top = int(torch.randint(height - side + 1, (), generator=generator))
                left = int(torch.randint(width - side + 1, (), generator=generator))
                break
        else:
            side = short
            top = (height - short) // 2
            left = (width - short) // 2
        return ..., slice(top, top + side), slice(left, left + side)

    def _draw(
        self, height: int, width: int, training: bool, generator: torch.Generator | None
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        # One crop and one flip for all frames of a clip.
        crop = (...,)  # the whole frame
        if training and self.train_crop_scale is not None:
            crop = self._draw_crop(height, width, generator)
        flips = training and self.train_flip and float(torch.rand((), generator=generator)) < 0.5
        mean = torch.tensor(self.image_mean).view(3, 1, 1)
        std = torch.tensor(self.image_std).view(3, 1, 1)

        def process(frames: torch.Tensor) -> torch.Tensor:
            frames = self._resize_and_crop(frames[crop])
            if flips:
                frames = frames.flip(-1)
            if self.do_rescale and self.rescale_factor == 1 / 255:  # division rounds less
                frames = frames / 255
            elif self.do_rescale:
                frames = frames * self.rescale_factor
            if self.do_normalize:
                frames = (frames - mean) / std
            return frames.contiguous()

        return process

    def preprocess(self, images: Any, return_tensors: str | None = "pt", **kwargs: Any) -> BatchFeature:
        """Process one clip or a list of clips with the same number of frames for inference, see `process_frames`.

        Args:
            images: One clip `(frames, height, width, 3)` or `(frames, 3, height, width)`, a batch with five axes, or a
                list of clips. A picture is a clip of one frame, also in a list; pass a list of lists for clips given
                as lists of pictures.
            return_tensors (`str`, *optional*): `"pt"`, `"np"`, or `None` for a list with an array per clip.
            **kwargs: Settings for this call.
        Returns:
            `BatchFeature` with `pixel_values_videos` of shape `(clips, frames, 3, image_size, image_size)`.
        """
        processor = self.replace(**kwargs)
        if not isinstance(images, (list, tuple)) and getattr(images, "ndim", None) != 5:
            images = [images]
        # Without a generator, because nothing is random here.
        rows = [processor.process_frames(clip) for clip in images]
        counts = [len(row) for row in rows]
        if len(set(counts)) != 1:
            raise ValueError(f"Clips in a batch need the same number of frames, got {counts}.")
        return to_batch({"pixel_values_videos": torch.stack(rows)}, return_tensors)


ScalarImageProcessor.register_for_auto_class("AutoImageProcessor")

__all__ = ["ClipImageProcessor", "ScalarImageProcessor", "ScalarImageProcessorKwargs", "frame_indices", "to_frames"]
