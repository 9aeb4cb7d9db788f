"""How far colours are from each other, with every kind of colour vision."""

from itertools import combinations

import numpy as np

_VISIONS = (  # Machado, Oliveira and Fernandes 2009: all cones, and without those for red, green and blue
    [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
)
_XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
_WHITE = [0.95047, 1, 1.08883]


def _lab(colour, vision):
    """A colour, `#rrggbb`, in CIE L*a*b* as a kind of vision sees it."""
    parts = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    ratios = np.array(_XYZ) @ np.clip(np.array(vision) @ linear, 0, 1) / _WHITE
    x, y, z = np.where(ratios > 0.008856, np.cbrt(ratios), 7.787 * ratios + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def least_difference(colours):
    """The least CIE 1976 difference of two of some colours, with the vision that tells them apart worst."""
    return min(
        np.linalg.norm(_lab(one, vision) - _lab(other, vision))
        for one, other in combinations(colours, 2)
        for vision in _VISIONS
    )
