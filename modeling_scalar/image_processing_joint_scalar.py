"""Patches of frames for a joint encoder, computed with torch; the encoder's own processor needs torchvision.

The result is the same: each frame keeps its proportions and is as large as its budget of soft tokens allows, resized
bicubically with antialiasing on uint8.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import torch
import torch.nn.functional as F

from .image_processing_scalar import ClipImageProcessor, check_whole


def patch_grid(height: int, width: int, max_patches: int, patch_size: int, pooling: int) -> tuple[int, int]:
    """Choose the number of patches of a picture, down and across.

    Args:
        height (`int`), width (`int`): Size of the picture in pixels.
        max_patches (`int`): Maximum number of patches.
        patch_size (`int`): Side of a patch in pixels.
        pooling (`int`): Side of the square of patches that becomes one soft token; both counts are multiples of it.
    Returns:
        `tuple[int, int]`: The largest counts that roughly keep the proportions of the picture. A side that would be
        zero gets one square, and the other at most as many as the budget allows.
    """
    # Scale the picture until it has as many patches as allowed, then round down to whole squares.
    factor = math.sqrt(max_patches * patch_size**2 / (height * width))
    step = pooling * patch_size
    rows = math.floor(factor * height / step)
    columns = math.floor(factor * width / step)
    if not rows and not columns:
        raise ValueError(f"A budget of {max_patches} patches is too small for a square of {pooling} by {pooling}.")
    # A very flat or narrow picture gets one square across.
    most = max_patches // pooling**2
    if not rows:
        rows = 1
        columns = min(width // height, most)
    elif not columns:
        rows = min(height // width, most)
        columns = 1
    return rows * pooling, columns * pooling


class ScalarPatchImageProcessorKwargs(TypedDict, total=False):
    """The settings that `from_pretrained` or a call may override."""

    max_soft_tokens: int
    patch_size: int
    pooling_kernel_size: int
    image_mean: list[float] | tuple[float, ...]
    image_std: list[float] | tuple[float, ...]
    rescale_factor: float


class ScalarPatchImageProcessor(ClipImageProcessor):
    """Resize and normalise the frames of clips, and cut them into patches.

    Args:
        max_soft_tokens (`int`): Maximum per frame; it has at most `pooling_kernel_size ** 2` times as many patches.
        patch_size (`int`), pooling_kernel_size (`int`): Those of the encoder.
        image_mean, image_std (`list[float]`): Per channel, for values in [0, 1].
        rescale_factor (`float`): Factor that first multiplies 0..255.
    Raises:
        ValueError: If a value is out of range.
    """

    valid_kwargs = ScalarPatchImageProcessorKwargs
    model_input_names = ["pixel_values_videos", "video_position_ids"]

    def __init__(
        self,
        max_soft_tokens: int = 70,
        patch_size: int = 16,
        pooling_kernel_size: int = 3,
        image_mean: Sequence[float] = (0.0, 0.0, 0.0),
        image_std: Sequence[float] = (1.0, 1.0, 1.0),
        rescale_factor: float = 1 / 255,
        **kwargs: Any,
    ):
        super().__init__(image_mean, image_std, rescale_factor, **kwargs)
        check_whole(max_soft_tokens=max_soft_tokens, patch_size=patch_size, pooling_kernel_size=pooling_kernel_size)
        self.max_soft_tokens = max_soft_tokens
        self.patch_size = patch_size
        self.pooling_kernel_size = pooling_kernel_size

    @property
    def max_patches(self) -> int:
        """Number of patches per frame, including padding."""
        return self.max_soft_tokens * self.pooling_kernel_size**2

    def _draw(
        self, height: int, width: int, training: bool, generator: torch.Generator | None
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """The transform of each frame of a clip of this size; nothing is random, even in training."""
        grid = patch_grid(height, width, self.max_patches, self.patch_size, self.pooling_kernel_size)
        size = (grid[0] * self.patch_size, grid[1] * self.patch_size)
        # The factor is folded into mean and deviation, as in a fused operation, so the quotient is rounded once.
        scale = 1.0 / self.rescale_factor
        mean = torch.tensor(self.image_mean).view(3, 1, 1) * scale
        std = torch.tensor(self.image_std).view(3, 1, 1) * scale

        def process(frames: torch.Tensor) -> torch.Tensor:
            if tuple(frames.shape[-2:]) != size:
                frames = F.interpolate(frames, size, mode="bicubic", antialias=True, align_corners=False)
            return (frames.float() - mean) / std

        return process

    def num_soft_tokens(self, frames: torch.Tensor) -> int:
        """The number of soft tokens of each of these processed frames."""
        height, width = frames.shape[-2:]
        return height * width // (self.patch_size * self.pooling_kernel_size) ** 2

    def to_patches(self, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cut processed frames into patches.

        Args:
            frames (`torch.FloatTensor` of shape `(frames, 3, height, width)`): The result of `process_frames`.
        Returns:
            The patches `(frames, max_patches, values)`, padded with zeros, and their positions across and down
            `(frames, max_patches, 2)`, padded with -1.
        """
        side = self.patch_size
        patches = F.unfold(frames, side, stride=side)  # (frames, 3 * side * side, patches), channels outermost
        patches = patches.unflatten(1, (3, -1)).permute(0, 3, 2, 1).flatten(2)  # channels innermost
        rows = torch.arange(frames.shape[-2] // side)
        columns = torch.arange(frames.shape[-1] // side)
        places = torch.cartesian_prod(rows, columns).flip(1)  # (patches, 2)
        # All frames take the full budget of patches.
        padding = self.max_patches - len(places)
        patches = F.pad(patches, (0, 0, 0, padding))
        return patches, F.pad(places, (0, 0, 0, padding), value=-1).expand(len(frames), -1, -1)


ScalarPatchImageProcessor.register_for_auto_class("AutoImageProcessor")

__all__ = ["ScalarPatchImageProcessor", "patch_grid"]
