import doctest
import math

import numpy as np
import pytest
import torch

from scalar_retrieval.modeling_scalar import image_processing_scalar
from scalar_retrieval.modeling_scalar.image_processing_scalar import ScalarImageProcessor

RAW = {"image_mean": [0.0] * 3, "image_std": [1.0] * 3}  # pixel values stay in [0, 1]


def random_frames(num_frames=2, height=9, width=13, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (num_frames, height, width, 3), dtype=np.uint8)


def bilinear_weights(source, size):
    """How much each of the pixels of a line counts for each of those it becomes, `(size, source)`, in float64."""
    weights = np.zeros((size, source))
    for place in range(size):
        centre = max((place + 0.5) * source / size - 0.5, 0)
        first = math.floor(centre)
        weights[place, first] += 1 - (centre - first)
        weights[place, min(first + 1, source - 1)] += centre - first
    return weights


def bilinear(image, height, width):
    """Bilinear resizing with half-pixel centres and no antialiasing."""
    down, across = bilinear_weights(image.shape[0], height), bilinear_weights(image.shape[1], width)
    return np.einsum("yh,hwc,xw->yxc", down, image.astype(np.float64), across)


def channels_first(images):
    return torch.from_numpy(np.moveaxis(np.asarray(images), -1, 1)).float()


@pytest.mark.filterwarnings("error")  # of frames that are read-only
@pytest.mark.parametrize(
    ("mode", "height", "width", "resized"),
    [
        ("squash", 9, 13, (8, 8)),
        ("squash", 40, 31, (8, 8)),
        ("crop", 10, 23, (8, 18)),
        ("crop", 23, 10, (18, 8)),
        ("crop", 4, 4, (8, 8)),
    ],
)
def test_frames_are_resized_without_antialiasing_cut_to_their_centre_and_normalised(mode, height, width, resized):
    frames = random_frames(height=height, width=width)[::-1]
    frames.flags.writeable = False
    processor = ScalarImageProcessor(image_size=8, resize_mode=mode)
    mean, std = np.array(processor.image_mean), np.array(processor.image_std)
    top, left = (round((side - 8) / 2) for side in resized)
    pictures = [bilinear(frame, *resized)[top : top + 8, left : left + 8] / 255 for frame in frames]
    pixel_values = processor.process_frames(frames)
    assert pixel_values.dtype == torch.float32
    expected = channels_first([(picture - mean) / std for picture in pictures])
    torch.testing.assert_close(pixel_values, expected, atol=1e-5, rtol=0)  # float32 against float64


def test_training_crops_keep_the_stated_share_of_the_area_as_a_square_and_about_half_are_mirrored():
    y, x = np.mgrid[:200, :220]
    frames = np.stack([[y, x, x]] * 2).transpose(0, 2, 3, 1).astype(np.uint8)  # colours are coordinates
    processor = ScalarImageProcessor(image_size=16, **RAW)
    generator, corners, num_mirrored = torch.Generator().manual_seed(0), set(), 0
    for _ in range(100):
        picture, same = 255 * processor.process_frames(frames, True, generator)
        assert torch.equal(picture, same)
        down, across = picture[0, :, 0], picture[1, 0]
        assert (down.diff() > 0).all() and len(across.diff().sign().unique()) == 1
        num_mirrored += bool(across[0] > across[-1])
        corners.add((round(down[0].item()), round(across.min().item())))
        height, width = (16 / 15 * (places.max() - places.min()) for places in (down, across))
        assert abs(height - width) < 1  # interpolated coordinates
        assert (0.8 * 200 * 220) ** 0.5 - 1.5 < height < 201.5
    assert len(corners) > 50 and 30 < num_mirrored < 70  # four standard deviations


def test_a_wide_picture_is_cropped_to_its_centre_square_in_training():
    frames = random_frames(1, 8, 20)
    processor = ScalarImageProcessor(image_size=8, train_flip=False, **RAW)
    output = processor.process_frames(frames, True, torch.Generator().manual_seed(0))
    torch.testing.assert_close(output, channels_first(frames[:, :, 6:14]) / 255)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"resize_mode": "pad"}, ValueError),
        ({"image_size": 0}, ValueError),
        ({"image_size": True}, ValueError),
        ({"train_crop_scale": [0.9, 0.8]}, ValueError),
        ({"do_resize": False}, TypeError),  # of transformers, and without effect here
    ],
)
def test_impossible_settings_are_refused(settings, error):
    with pytest.raises(error, match=next(iter(settings))):
        ScalarImageProcessor(**settings)


def test_the_examples_print_these_numbers():
    results = doctest.testmod(image_processing_scalar)
    assert results.attempted and not results.failed
