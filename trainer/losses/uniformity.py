"""Uniformity: spread the aggregated clips of a batch over the sphere (SCALAR Eq. 9; Wang and Isola, 2020)."""

import torch
from torch import nn


class UniformityLoss(nn.Module):
    """
    Push the centroids of a batch apart: Eq. 9, the logarithm of their mean Gaussian similarity.

    It is not a sum over rows, so it needs the centroids of all processes.

    Args:
        scale (`float`): The scale of the exponent, positive; with larger values, fewer and nearer pairs dominate.
    """

    def __init__(self, scale: float = 2.0):
        super().__init__()
        if not scale > 0:
            raise ValueError(f"`scale` must be positive, got {scale!r}.")
        self.scale = scale

    def forward(self, centroids: torch.Tensor) -> torch.Tensor:
        """
        Compute the term of a whole batch.

        Args:
            centroids (`torch.Tensor` of shape `(batch, dim)`): Unit norm, of all processes.

        Returns:
            `torch.Tensor`, a scalar in [-4 * scale, 0]: 0 if all are the same or there is only one clip.
        """
        batch_size = len(centroids)
        if batch_size < 2:
            return centroids.sum() * 0
        # For unit vectors |u - v|^2 = 2 - 2 <u, v>, but a centroid of cancelling modalities is shorter.
        squared_norms = centroids.square().sum(1)
        distances = (squared_norms[:, None] + squared_norms - 2 * centroids @ centroids.T).clamp(min=0)
        itself = torch.eye(batch_size, dtype=torch.bool, device=centroids.device)
        exponents = (-self.scale * distances).masked_fill(itself, float("-inf"))
        return exponents.flatten().logsumexp(0) - torch.log(exponents.new_tensor(batch_size * (batch_size - 1.0)))


__all__ = ["UniformityLoss"]
