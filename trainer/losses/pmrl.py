"""PMRL's objective: each text and its clip's modalities share one leading direction (Liu et al., 2026; a baseline).

It has two steps, because the second term compares the directions of all processes: [`leading_directions`] of this
process's rows, which are gathered, then [`PMRLLoss`].
"""

import torch
from torch import nn

# Minimum gap between the first eigenvalue and the others. It bounds the gradient of the leading direction, which grows
# as one over the gap.
_MIN_GAP = 1e-3
# Singular values below this have no gradient, because that of a square root at zero is infinite.
_MIN_SINGULAR_VALUE = 1e-3


def leading_directions(
    text_embeds: torch.Tensor, modality_embeds: torch.Tensor, modality_mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Decompose the matrix whose columns are a text and the modalities of its clip: singular values, leading direction.

    Both come from the eigenvectors v_j of its Gram matrix G, held fixed, by first-order perturbation: the eigenvalues
    are v_j' G v_j, and the leading eigenvector is v_1 + sum_j v_j (v_j' G v_1) / (lambda_1 - lambda_j), whose value is
    v_1 and whose gradient is that of the eigenvector. Unlike the gradient of an eigendecomposition, it exists even if
    eigenvalues other than the first coincide, as they do where modalities are absent.

    Args:
        text_embeds (`torch.Tensor` of shape `(batch, dim)`): Unit norm; row i belongs to clip i.
        modality_embeds (`torch.Tensor` of shape `(batch, 3, dim)`): Unit norm; the values of masked rows (even NaN)
            have no effect.
        modality_mask (`torch.BoolTensor` of shape `(batch, 3)`): The modalities of each clip.

    Returns:
        `tuple` of the singular values, `(batch, 4)`, descending, `-inf` after the 1 + present ones of a row, and the
        leading left singular vectors, `(batch, dim)`, unit norm, on the text's side of the origin. At least float32.
    """
    dtype = torch.promote_types(torch.promote_types(text_embeds.dtype, modality_embeds.dtype), torch.float32)
    with torch.autocast(device_type=text_embeds.device.type, enabled=False):
        present = torch.where(modality_mask[..., None], modality_embeds, modality_embeds.new_zeros(()))
        vectors = torch.cat([text_embeds[:, None], present], dim=1).to(dtype)  # (B, 4, D)
        # Each absent modality, a vector of zeros, adds a zero eigenvalue; these come last.
        gram = vectors @ vectors.mT  # (B, 4, 4)
        with torch.no_grad():
            eigenvalues, basis = (tensor.flip(-1) for tensor in torch.linalg.eigh(gram))  # descending
            weights = (eigenvalues[:, :1] - eigenvalues).clamp(min=_MIN_GAP).reciprocal()
            weights[:, 0] = 0
        rotated = basis.mT @ gram @ basis  # (B, 4, 4), diagonal in value
        leading = basis[..., 0] + (basis @ (weights * rotated[..., 0])[..., None]).squeeze(-1)  # (B, 4)
        directions = nn.functional.normalize((leading[:, None] @ vectors).squeeze(1), dim=-1)  # (B, D)
        directions = torch.where((directions * vectors[:, 0]).sum(-1, keepdim=True) < 0, -directions, directions)
        squared = rotated.diagonal(dim1=1, dim2=2)
        num_vectors = 1 + modality_mask.sum(1, keepdim=True)
        beyond = torch.arange(squared.shape[1], device=squared.device) >= num_vectors
        singular_values = squared.clamp(min=_MIN_SINGULAR_VALUE**2).sqrt().masked_fill(beyond, float("-inf"))
    return singular_values, directions


class PMRLLoss(nn.Module):
    """
    Make the first singular value of each text and clip dominate, and keep the leading directions of pairs apart.

    The first term is the cross-entropy of the softmax of a row's singular values with the first as target: zero where
    all vectors are one, the logarithm of their number where they are orthogonal. The second is InfoNCE of the leading
    directions, each its own match.

    Args:
        singular_value_temperature (`float`): Divides the singular values; positive.
        direction_temperature (`float`): Divides the cosines of the directions; positive.
    """

    def __init__(self, singular_value_temperature: float = 0.05, direction_temperature: float = 0.1):
        super().__init__()
        for name, value in (
            ("singular_value_temperature", singular_value_temperature),
            ("direction_temperature", direction_temperature),
        ):
            if not value > 0:
                raise ValueError(f"`{name}` must be positive, got {value!r}.")
        self.singular_value_temperature = singular_value_temperature
        self.direction_temperature = direction_temperature

    def forward(
        self,
        singular_values: torch.Tensor,
        directions: torch.Tensor,
        all_directions: torch.Tensor,
        offset: int = 0,
        num_rows: float | None = None,
    ) -> torch.Tensor:
        """
        Compute the sum of both terms of this process's rows.

        Args:
            singular_values (`torch.Tensor` of shape `(batch, 4)`), directions (`torch.Tensor` of shape
                `(batch, dim)`): The results of [`leading_directions`].
            all_directions (`torch.Tensor` of shape `(rows of all processes, dim)`): The directions of all processes.
            offset (`int`): The index of this process's first row in the global batch.
            num_rows (`float`, *optional*): Divides the sum over rows; by default their number. With several
                processes, the mean number per process.

        Returns:
            `torch.Tensor`, a scalar, non-negative.
        """
        targets = torch.arange(len(directions), device=directions.device) + offset
        with torch.autocast(device_type=directions.device.type, enabled=False):
            cosines = directions @ all_directions.T
        total = nn.functional.cross_entropy(
            singular_values / self.singular_value_temperature, torch.zeros_like(targets), reduction="sum"
        ) + nn.functional.cross_entropy(cosines / self.direction_temperature, targets, reduction="sum")
        return total / (len(directions) if num_rows is None else num_rows)


__all__ = ["PMRLLoss", "leading_directions"]
