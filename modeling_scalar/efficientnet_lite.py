"""EfficientNet-Lite0 (Tan and Le 2019, without squeeze and excitation), for the 1,000 classes of ImageNet.

Batch norms are folded into the convolutions before them, as the network is not trained here.
"""

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.functional import pad, relu6

PICTURE_SIZE = 224  # of the square pictures, in pixels
NUM_CLASSES = 1000

# Of each stage: repeats, kernel, stride of the first repeat, expansion, input and output channels.
_STAGES = (
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)
_FEATURES = 1280
_NORM_EPS = 1e-3
# The batch norm behind each convolution, by the names of the published weights.
_NORMS = {
    "_conv_stem": "_bn0",
    "_expand_conv": "_bn0",
    "_depthwise_conv": "_bn1",
    "_project_conv": "_bn2",
    "_conv_head": "_bn1",
}


class _SameConv(nn.Conv2d):
    """A convolution padded like TensorFlow's "same": with a stride of 2, one more zero behind the picture than before
    it. It holds for even sizes, which all of this network's are."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1):
        padding = 0
        margins = None
        if stride == 1:
            padding = (kernel - 1) // 2
        else:
            before = (kernel - stride) // 2
            margins = (before, kernel - stride - before) * 2
        super().__init__(inputs, outputs, kernel, stride, padding=padding, groups=groups)
        self.margins = margins

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.margins is not None:
            values = pad(values, self.margins)
        return super().forward(values)


class _Block(nn.Module):
    """An inverted residual block: expand, filter each channel, project."""

    def __init__(self, kernel: int, stride: int, expansion: int, inputs: int, outputs: int):
        super().__init__()
        width = inputs * expansion
        self.expand_conv = None
        if expansion > 1:
            self.expand_conv = _SameConv(inputs, width)
        self.depthwise_conv = _SameConv(width, width, kernel, stride, groups=width)
        self.project_conv = _SameConv(width, outputs)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        # In place, as fresh memory costs more than the arithmetic.
        wide = values if self.expand_conv is None else relu6(self.expand_conv(values), inplace=True)
        projected = self.project_conv(relu6(self.depthwise_conv(wide), inplace=True))
        if self.is_residual:
            projected += values
        return projected


class EfficientNetLite0(nn.Module):
    """
    Classify pictures `(batch, 3, 224, 224)`, of which 0 to 255 became (value - 127) / 128, into logits
    `(batch, 1000)`.
    """

    def __init__(self):
        super().__init__()
        self.conv_stem = _SameConv(3, 32, kernel=3, stride=2)
        blocks = []
        for repeats, kernel, stride, expansion, inputs, outputs in _STAGES:
            blocks.append(_Block(kernel, stride, expansion, inputs, outputs))
            for _ in range(repeats - 1):
                blocks.append(_Block(kernel, 1, expansion, outputs, outputs))
        self.blocks = nn.Sequential(*blocks)
        self.conv_head = _SameConv(_STAGES[-1][-1], _FEATURES)
        self.fc = nn.Linear(_FEATURES, NUM_CLASSES)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        values = self.blocks(relu6(self.conv_stem(pictures), inplace=True))
        features = relu6(self.conv_head(values), inplace=True).mean(dim=(2, 3))
        return self.fc(features)


def fold_norms(published: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """
    Turn the published weights of EfficientNet-Lite0 into those of [`EfficientNetLite0`].

    A batch norm is an affine map of each channel, so it becomes part of the convolution before it. This is computed in
    float64, so that the result is the same on every machine.
    """
    folded = {}
    for name, weight in published.items():
        # `_blocks.0._depthwise_conv` becomes `blocks.0.depthwise_conv`.
        path, _, kind = name.rpartition(".")
        parent, _, layer = path.rpartition(".")
        ours = path.replace("_", "", 1).replace("._", ".")
        if layer == "_fc":
            folded[f"{ours}.{kind}"] = weight
        elif layer in _NORMS:
            norm = f"{parent}.{_NORMS[layer]}".lstrip(".")
            mean = published[f"{norm}.running_mean"].double()
            variance = published[f"{norm}.running_var"].double()
            shift = published[f"{norm}.bias"].double()
            scale = published[f"{norm}.weight"].double() / (variance + _NORM_EPS).sqrt()
            folded[f"{ours}.weight"] = (weight.double() * scale[:, None, None, None]).float()
            folded[f"{ours}.bias"] = (shift - mean * scale).float()
    return folded


__all__ = ["NUM_CLASSES", "PICTURE_SIZE", "EfficientNetLite0", "fold_norms"]
