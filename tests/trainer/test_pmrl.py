"""The gradients and the precision of PMRL's singular values; `test_losses` has the loss."""

import pytest
import torch

from scalar_retrieval.trainer.losses import PMRLLoss, leading_directions
from tests.trainer.test_losses import make_rows


def test_gradients_equal_finite_differences_of_the_decomposition():
    texts, modalities, mask = make_rows()
    texts.requires_grad_(), modalities.requires_grad_()

    def outputs(text_embeds, modality_embeds):
        singular_values, directions = leading_directions(text_embeds, modality_embeds, mask)
        return singular_values[singular_values.isfinite()], directions

    assert torch.autograd.gradcheck(outputs, (texts, modalities))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_equal_opposite_and_orthogonal_vectors_have_finite_gradients(dtype):
    axes = torch.eye(5, dtype=dtype)
    texts = axes[[0, 0, 0, 0]].requires_grad_()
    clips = torch.stack([axes[[0, 0, 0]], axes[[1, 2, 3]], axes[[0, 1, 1]], -axes[[0, 0, 1]]]).requires_grad_()
    mask = torch.ones(4, 3, dtype=torch.bool)
    singular_values, directions = leading_directions(texts, clips, mask)
    assert singular_values.dtype == torch.float32 and (directions * texts).sum(-1).min() >= 0
    torch.testing.assert_close(directions.norm(dim=-1), torch.ones(4))
    PMRLLoss()(singular_values, directions, directions).backward()
    assert texts.grad.isfinite().all() and clips.grad.isfinite().all() and clips.grad.abs().max() > 0


def test_autocast_does_not_touch_the_loss():
    texts, modalities, mask = make_rows()
    expected, directions = leading_directions(texts, modalities, mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = leading_directions(texts.float(), modalities.float(), mask)
        loss = PMRLLoss()(*rounded, rounded[1])
    torch.testing.assert_close(rounded, (expected.float(), directions.float()), atol=2e-6, rtol=0)
    torch.testing.assert_close(loss, PMRLLoss()(expected, directions, directions).float(), atol=1e-5, rtol=1e-5)
