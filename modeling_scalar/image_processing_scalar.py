"""Frames to pixel values, with torch alone: neither torchvision nor Pillow.

The paper's images are resized bilinearly without antialiasing; that is the default, so that checkpoints see what they
were trained on.
"""

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import validate_typed_dict
from transformers.feature_extraction_utils import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor
from transformers.processing_utils import ImagesKwargs

RESIZE_MODES = ("squash", "crop")
_BILINEAR = 2  # PIL.Image.Resampling.BILINEAR


def frame_indices(
    num_available: int, num_frames: int, training: bool = False, generator: torch.Generator | None = None
) -> list[int]:
    """Choose `num_frames` of `num_available` items (SCALAR, implementation details: uniformly sampled frames).

    The list of indices is padded with its last entry up to `num_frames` and split into `num_frames` chunks as
    `numpy.array_split` does; each chunk gives element `(len + 1) // 2 - 1`, in training a random one.

    Args:
        num_available (`int`): at least 1.
        num_frames (`int`): at least 1.
        training (`bool`): draw from each chunk instead of taking its middle.
        generator (`torch.Generator`): required in training; the same state gives the same indices.
    Returns:
        `list[int]` of length `num_frames`, ascending.
    Raises:
        ValueError: a count below 1, or `training` without a generator.
    """
    if num_available < 1 or num_frames < 1:
        raise ValueError(
            f"`num_available` and `num_frames` must be at least 1, got {num_available!r} and {num_frames!r}."
        )
    if training and generator is None:
        raise ValueError("`training=True` draws at random: pass a seeded `generator=torch.Generator()`.")
    size, extra = divmod(max(num_available, num_frames), num_frames)
    chosen, start = [], 0
    for chunk in range(num_frames):
        length = size + (chunk < extra)
        # No draw where there is no choice: choosing again among frames already chosen then changes no later draw.
        draws = training and length > 1
        offset = int(torch.randint(length, (), generator=generator)) if draws else (length + 1) // 2 - 1
        chosen.append(min(start + offset, num_available - 1))
        start += length
    return chosen


def to_tensor(array: np.ndarray | torch.Tensor) -> torch.Tensor:
    """View an array as a tensor; copy it where torch cannot view it (read-only memory, negative strides)."""
    return array if isinstance(array, torch.Tensor) else torch.from_numpy(np.require(array, requirements=["C", "W"]))


def is_picture(item: Any) -> bool:
    """Whether this is one picture: Pillow's, or an array or tensor of three axes."""
    return hasattr(item, "getbands") or (isinstance(item, (np.ndarray, torch.Tensor)) and item.ndim == 3)


def to_frames(frames: Any) -> np.ndarray:
    """Bring the pictures of one clip to one layout.

    Args:
        frames: an array or tensor of shape `(frames, height, width, 3)` or `(frames, 3, height, width)`, one picture,
            or a list of pictures of one size. Pillow's are converted to RGB.
    Returns:
        uint8 `np.ndarray` of shape `(frames, height, width, 3)`.
    Raises:
        TypeError: something else, or numbers that are not uint8.
        ValueError: another shape, or pictures of several sizes.
    """
    if is_picture(frames):
        frames = [frames]
    if isinstance(frames, (list, tuple)):
        strange = [type(picture).__name__ for picture in frames if not is_picture(picture)]
        if strange or not frames:
            raise TypeError(f"A clip must be a list of pictures or one array, got {strange or 'an empty list'}.")
        arrays = [_channels_last(picture) for picture in frames]
        if len(sizes := {array.shape[:2] for array in arrays}) > 1:
            raise ValueError(f"The pictures of a clip must have one size, got (height, width) in {sorted(sizes)}.")
        return np.stack(arrays)
    return _channels_last(frames, ndim=4)


def _channels_last(item: Any, ndim: int = 3) -> np.ndarray:
    if hasattr(item, "getbands"):
        item = item.convert("RGB")
    if isinstance(item, torch.Tensor):
        check_uint8(item)
        item = item.detach().cpu()
    array = np.asarray(item)
    check_uint8(array)
    if array.ndim != ndim or 3 not in (array.shape[-1], array.shape[-3]) or 0 in array.shape:
        one = "" if ndim == 3 else "frames, "
        raise ValueError(
            f"{'A picture' if ndim == 3 else 'Frames of a clip'} must have the shape ({one}height, width, 3) or "
            f"({one}3, height, width), got {array.shape}."
        )
    return array if array.shape[-1] == 3 else np.moveaxis(array, -3, -1)


def check_uint8(frames: np.ndarray | torch.Tensor) -> None:
    """Refuse pixels of another type: what their range is can only be guessed.

    Raises:
        TypeError: not uint8.
    """
    if frames.dtype not in (np.uint8, torch.uint8):
        raise TypeError(
            f"Frames must be uint8 RGB in 0..255, got {frames.dtype}. If they are floats in [0, 1], convert them: "
            "`(frames * 255).round()` as uint8."
        )


def to_batch(data: Mapping[str, Any], return_tensors: Any) -> BatchFeature:
    """Make a `BatchFeature` of tensors, of arrays, or of lists with an array per clip where it has pixels or sound."""
    if return_tensors is None:
        tensors = {name: value for name, value in data.items() if isinstance(value, torch.Tensor)}
        lists = {name: list(x.numpy()) if x.is_floating_point() else x.tolist() for name, x in tensors.items()}
        return BatchFeature(dict(data) | lists)
    if (kind := getattr(return_tensors, "value", return_tensors)) not in ("pt", "np"):
        raise ValueError(f"`return_tensors` must be 'pt', 'np', or None for lists, got {return_tensors!r}.")
    return BatchFeature(dict(data), tensor_type=kind)


def agree(own: dict[str, Any], name: str, value: Any, source: str) -> None:
    """Note that a setting comes to a value.

    Raises:
        ValueError: it was given another one.
    """
    if own.get(name) is not None and own[name] != value:
        raise ValueError(f"{source} means `{name}={value!r}`, which contradicts `{name}={own[name]!r}`.")
    own[name] = value


class ClipImageProcessor(BaseImageProcessor):
    """What image processors of clips share; a subclass says in `_draw` what happens to the frames of one."""

    def _set_channels(self, image_mean: float | Sequence[float], image_std: float | Sequence[float]) -> None:
        for name, values in (("image_mean", image_mean), ("image_std", image_std)):
            values = [values] * 3 if isinstance(values, (int, float)) else list(values)
            if len(values) != 3 or (name == "image_std" and 0 in values):
                raise ValueError(f"`{name}` must be three numbers, of red, green and blue, got {values}.")
            setattr(self, name, values)

    def _draw(
        self, height: int, width: int, training: bool, generator: torch.Generator | None
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """Draw what happens to all frames of a clip; what is returned does it to some of them."""
        raise NotImplementedError

    def process_frames(
        self,
        frames: np.ndarray | torch.Tensor,
        training: bool = False,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """Process the frames of one clip; in training all of them alike.

        Args:
            frames (uint8 array or tensor of shape `(frames, height, width, 3)` or `(frames, 3, height, width)`, or a
                list of pictures): RGB, see [`to_frames`].
            training (`bool`): augment.
            generator (`torch.Generator`): required in training by a processor that augments.
        Returns:
            `torch.FloatTensor` of shape `(frames, 3, height, width)`, of the size that the processor makes.
        Raises:
            TypeError: frames that are not uint8.
            ValueError: another shape, or `training` without a generator.
        """
        frames = to_tensor(frames if isinstance(frames, (np.ndarray, torch.Tensor)) else to_frames(frames))
        check_uint8(frames)
        if frames.ndim != 4 or 3 not in (frames.shape[1], frames.shape[3]) or 0 in frames.shape:
            raise ValueError(
                "Frames of a clip must have the shape (frames, height, width, 3) or (frames, 3, height, width), "
                f"got {tuple(frames.shape)}."
            )
        if frames.shape[3] == 3:
            frames = frames.permute(0, 3, 1, 2)  # (frames, 3, height, width)
        return self._draw(*frames.shape[-2:], training, generator)(frames)

    def prepare(
        self, training: bool = False, generator: torch.Generator | None = None
    ) -> Callable[[int, int], Callable[[np.ndarray], torch.Tensor]]:
        """Process the frames of a clip one at a time, as they are decoded, to what `process_frames` makes of all.

        Returns:
            What [`~media_scalar.MediaReader.prepare_frames`] takes: a function of height and width, which draws, and
            returns one from a frame `(height, width, 3)` to what it becomes.
        """

        def start(height: int, width: int) -> Callable[[np.ndarray], torch.Tensor]:
            process = self._draw(height, width, training, generator)
            return lambda frame: process(to_tensor(frame).permute(2, 0, 1)[None])[0]

        return start

    def replace(self, **settings: Any) -> Self:
        """A copy with other values of some settings, itself if there are none.

        Raises:
            TypeError: a name that no setting has.
            StrictDataclassError: a value of another type.
        """
        if not settings:
            return self
        validate_typed_dict(self.valid_kwargs, settings)
        return self.from_dict(self.to_dict(), **settings)


class ScalarImageProcessorKwargs(ImagesKwargs, total=False):
    """The settings that `from_pretrained`, or a call, may override."""

    image_size: int
    resize_mode: str
    antialias: bool
    train_crop_scale: list[float] | tuple[float, float] | None
    train_flip: bool


# What transformers lets one choose and is fixed here; `None` is no choice.
_FIXED = {
    "do_resize": True,
    "do_convert_rgb": True,
    "default_to_square": True,
    "resample": _BILINEAR,
    "do_pad": False,
    "pad_size": None,
    "data_format": "channels_first",
    "input_data_format": None,
    "device": "cpu",
    "disable_grouping": None,
    "image_seq_length": None,
}


def _square(name: str, size: Any) -> int:
    sides = size
    if isinstance(size, Mapping):
        sides = [size[side] for side in ("height", "width")] if set(size) == {"height", "width"} else []
    sides = set(sides) if isinstance(sides, (list, tuple)) else {sides}
    if len(sides) != 1 or not all(isinstance(side, Integral) for side in sides):
        raise ValueError(f"`{name}` must be a square, as {{'height': 224, 'width': 224}} or 224, got {size!r}.")
    return int(sides.pop())


class ScalarImageProcessor(ClipImageProcessor):
    """Turn the uint8 frames of clips into normalised, square `pixel_values_videos`.

    Transformers' names of the settings are taken as well: `size` and `crop_size` if they are squares,
    `size={"shortest_edge": 224}` and `do_center_crop=True` for `resize_mode="crop"`. What they would ask for and is
    not done here (`do_resize=False`, padding, other interpolations) is refused.

    Args:
        image_size (`int`): side of the output, 224 by default.
        resize_mode (`str`): `"squash"`, the default, resizes both sides to `image_size`; `"crop"` resizes the short
            side and crops the centre (MSR-VTT and pretraining).
        antialias (`bool`): bilinear with antialiasing on uint8, several times faster. Off: bilinear without
            antialiasing on floats, the paper's.
        image_mean (`list[float]`), image_std (`list[float]`): per channel, of values in [0, 1]; CLIP's.
        train_crop_scale (`list[float]`, *optional*): in training, the range of the share of the area that a random
            square crop keeps. As in torchvision's `RandomResizedCrop`, a crop that does not fit is drawn again up to
            ten times, then the centre square is taken: always so for pictures wider than 5:4. `None`: resize as at
            test time.
        train_flip (`bool`): in training, flip half of the clips horizontally.
        do_rescale (`bool`), rescale_factor (`float`): multiply 0..255 by this first, 1/255 by default.
        do_normalize (`bool`): subtract the mean and divide by the deviation.
    Raises:
        ValueError: a value out of its range, or two that contradict each other.
    """

    valid_kwargs = ScalarImageProcessorKwargs
    model_input_names = ["pixel_values_videos"]
    # Saving keeps a setting of None only where the class has another default, and these only where they are not it.
    train_crop_scale = (0.8, 1.0)
    do_rescale = True
    rescale_factor = 1 / 255
    do_normalize = True
    do_resize = True

    def __init__(
        self,
        image_size: int | None = None,
        resize_mode: str | None = None,
        antialias: bool = False,
        image_mean: float | Sequence[float] = (0.48145466, 0.4578275, 0.40821073),
        image_std: float | Sequence[float] = (0.26862954, 0.26130258, 0.27577711),
        train_crop_scale: Sequence[float] | None = (0.8, 1.0),
        train_flip: bool = True,
        do_rescale: bool = True,
        rescale_factor: float = 1 / 255,
        do_normalize: bool = True,
        **kwargs: Any,
    ):
        given = {name: kwargs.pop(name) for name in self.valid_kwargs.__annotations__.keys() & kwargs.keys()}
        super().__init__(**kwargs)
        own = self.translate({"image_size": image_size, "resize_mode": resize_mode} | given)
        image_size, resize_mode = own.get("image_size", 224), own.get("resize_mode", "squash")
        if resize_mode not in RESIZE_MODES:
            raise ValueError(f"`resize_mode` must be one of {RESIZE_MODES}, got {resize_mode!r}.")
        if not isinstance(image_size, Integral) or image_size < 1:
            raise ValueError(f"`image_size` must be a whole number, at least 1, got {image_size!r}.")
        if train_crop_scale is not None and not 0 < train_crop_scale[0] <= train_crop_scale[1] <= 1:
            raise ValueError(f"`train_crop_scale` must be an ascending pair in (0, 1], got {train_crop_scale!r}.")
        self.image_size = image_size
        self.resize_mode = resize_mode
        self.antialias = antialias
        self._set_channels(image_mean, image_std)
        self.train_crop_scale = None if train_crop_scale is None else list(train_crop_scale)
        self.train_flip = train_flip
        for name, value in (("do_rescale", do_rescale), ("rescale_factor", rescale_factor)):
            if value != getattr(type(self), name):
                setattr(self, name, value)
        if not do_normalize:
            self.do_normalize = do_normalize

    @classmethod
    def translate(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Turn transformers' names into arguments of `__init__`.

        Raises:
            ValueError: they contradict each other, or ask for what is not done here.
        """
        own = {name: value for name, value in settings.items() if value is not None or name == "train_crop_scale"}
        for name in own.keys() & _FIXED:
            value = own.pop(name)
            if (str(value) if name == "device" else value) != _FIXED[name]:
                only = "cannot be chosen" if _FIXED[name] is None else f"can only be {_FIXED[name]!r}"
                raise ValueError(f"`{name}` {only} here, got {value!r}.")
        if (crop := own.pop("do_center_crop", None)) is not None:
            agree(own, "resize_mode", "crop" if crop else "squash", f"`do_center_crop={crop}`")
        for name in ("size", "crop_size"):
            if (size := own.pop(name, None)) is None:
                continue
            if name == "size" and isinstance(size, Mapping) and set(size) == {"shortest_edge"}:
                agree(own, "resize_mode", "crop", f"`size={dict(size)}`")
                size = size["shortest_edge"]
            agree(own, "image_size", _square(name, size), f"`{name}={size!r}`")
        return own

    @classmethod
    def from_dict(cls, image_processor_dict: Mapping[str, Any], **kwargs: Any) -> Self | tuple[Self, dict[str, Any]]:
        """As in transformers; what replaces saved settings may have transformers' names."""
        given = {name: kwargs.pop(name) for name in cls.valid_kwargs.__annotations__.keys() & kwargs.keys()}
        return super().from_dict(dict(image_processor_dict) | cls.translate(given), **kwargs)

    @property
    def size(self) -> dict[str, int]:
        """The output's size, as transformers writes it."""
        return {"height": self.image_size, "width": self.image_size}

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

    def _draw(
        self, height: int, width: int, training: bool, generator: torch.Generator | None
    ) -> Callable[[torch.Tensor], torch.Tensor]:
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
            if self.do_rescale:  # to divide is to round less
                frames = frames / 255 if self.rescale_factor == 1 / 255 else frames * self.rescale_factor
            return ((frames - mean) / std if self.do_normalize else frames).contiguous()

        return process

    def preprocess(
        self,
        images: Any,
        training: bool = False,
        generator: torch.Generator | None = None,
        return_tensors: str | None = "pt",
        **kwargs: Any,
    ) -> BatchFeature:
        """Process one clip or a list of clips with equally many frames, see `process_frames`.

        Args:
            images: one clip `(frames, height, width, 3)` or `(frames, 3, height, width)`, a batch of five axes, or a
                list of clips. A picture is a clip of one frame: so are the pictures of a list; the frames of a clip
                in a list are a list of lists.
            training (`bool`), generator (`torch.Generator`): see `process_frames`.
            return_tensors (`str`, *optional*): `"pt"`, `"np"`, or `None` for a list with an array per clip.
            **kwargs: settings for this call.
        Returns:
            `BatchFeature` with `pixel_values_videos` of shape `(clips, frames, 3, image_size, image_size)`.
        Raises:
            TypeError: frames that are not uint8, or a name that no setting has.
            ValueError: another shape, clips with different numbers of frames, or `training` without a generator.
        """
        processor = self.replace(**kwargs)
        several = isinstance(images, (list, tuple)) or getattr(images, "ndim", None) == 5
        clips = [to_frames(clip) if is_picture(clip) else clip for clip in (images if several else [images])]
        rows = [processor.process_frames(clip, training, generator) for clip in clips]
        if not rows:
            raise ValueError("The list of clips is empty: pass at least one clip.")
        if len({len(row) for row in rows}) != 1:
            raise ValueError(f"Clips of a batch must have equally many frames, got {[len(row) for row in rows]}.")
        return to_batch({"pixel_values_videos": torch.stack(rows)}, return_tensors)


ScalarImageProcessor.register_for_auto_class("AutoImageProcessor")

__all__ = [
    "RESIZE_MODES",
    "ClipImageProcessor",
    "ScalarImageProcessor",
    "ScalarImageProcessorKwargs",
    "agree",
    "check_uint8",
    "frame_indices",
    "is_picture",
    "to_batch",
    "to_frames",
    "to_tensor",
]
