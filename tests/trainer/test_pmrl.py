"""PMRL's objective against float64 singular value decompositions, one row at a time."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import normalize

from scalar_retrieval.trainer.distributed import RowLayout
from scalar_retrieval.trainer.losses import PMRLLoss, leading_directions
from scalar_retrieval.trainer.objectives import Batch, PMRLObjective

MASKS = [[1, 1, 1], [1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 0], [0, 1, 1]]


def make_rows(dim=8, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    texts = normalize(torch.randn(len(MASKS), dim, generator=generator, dtype=torch.float64), dim=-1)
    noise = torch.randn(len(MASKS), 3, dim, generator=generator, dtype=torch.float64)
    modalities, mask = normalize(texts[:, None] + 0.5 * noise, dim=-1).to(dtype), torch.tensor(MASKS).bool()
    return texts.to(dtype), modalities.masked_fill(~mask[..., None], math.nan), mask


def loop_decomposition(texts, modalities, mask):
    rows = []
    for text, clip, present in zip(texts.double(), modalities.double(), mask, strict=True):
        left, values, _ = torch.linalg.svd(torch.cat([text[None], clip[present]]).T, full_matrices=False)
        rows.append((values, left[:, 0] * (left[:, 0] @ text).sign()))
    return rows


def loop_loss(rows, columns, offset, singular_value_temperature=0.05, direction_temperature=0.1, left_out=()):
    """Without the pairs (row, column) that are left out."""
    total = 0.0
    for i, (values, direction) in enumerate(rows):
        cosines = columns @ direction / direction_temperature
        total -= (values / singular_value_temperature).log_softmax(0)[0]
        total += torch.stack([cosines[j] for j in range(len(columns)) if (i, j) not in left_out]).logsumexp(0)
        total -= cosines[offset + i]
    return total / len(rows)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-12)])
def test_singular_values_and_directions_equal_those_of_the_sub_matrix(dtype, tolerance):
    texts, modalities, mask = make_rows(dtype=dtype)
    singular_values, directions = leading_directions(texts, modalities, mask)
    assert singular_values.dtype == directions.dtype == dtype
    for row, (values, direction) in enumerate(loop_decomposition(texts, modalities, mask)):
        assert (singular_values[row, len(values) :] == -math.inf).all()
        torch.testing.assert_close(singular_values[row, : len(values)].double(), values, atol=tolerance, rtol=0)
        torch.testing.assert_close(directions[row].double(), direction, atol=tolerance, rtol=0)
    assert {1, 2, 3, 4} == set(singular_values.isfinite().sum(1).tolist())


@pytest.mark.parametrize("temperatures", [(0.05, 0.1), (0.3, 1.0)])
def test_the_loss_equals_the_loop(temperatures):
    rows = make_rows()
    singular_values, directions = leading_directions(*rows)
    decomposition = loop_decomposition(*rows)
    columns = torch.stack([direction for _, direction in decomposition])
    expected = loop_loss(decomposition, columns, 0, *temperatures).item()
    assert expected > 0.05
    loss = PMRLLoss(*temperatures)(singular_values, directions, directions)
    assert loss.item() == pytest.approx(expected, rel=1e-10)
    # Captions of one clip are no negatives of each other.
    args = SimpleNamespace(direction_temperature=temperatures[1])
    clips = torch.tensor([0, 1, 0, 2, 3, 4])
    batch = Batch(RowLayout((len(MASKS),), 0), *rows, rows[2], clips=clips)
    ((_, loss),) = PMRLObjective(args, None)(batch, 0).values()
    without = loop_loss(decomposition, columns, 0, 0.05, temperatures[1], left_out={(0, 2), (2, 0)}).item()
    assert loss.item() == pytest.approx(without, rel=1e-10)
    assert without < loop_loss(decomposition, columns, 0, 0.05, temperatures[1])


def test_gradients_equal_finite_differences_of_the_decomposition():
    texts, modalities, mask = make_rows()
    texts.requires_grad_(), modalities.requires_grad_()

    def outputs(text_embeds, modality_embeds):
        singular_values, directions = leading_directions(text_embeds, modality_embeds, mask)
        return singular_values[singular_values.isfinite()], directions

    assert torch.autograd.gradcheck(outputs, (texts, modalities))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_equal_opposite_and_orthogonal_vectors_have_finite_gradients(dtype):
    axes = torch.eye(5)
    texts = axes[[0, 0, 0, 0]].to(dtype).requires_grad_()
    clips = torch.stack([axes[[0, 0, 0]], axes[[1, 2, 3]], axes[[0, 1, 1]], -axes[[0, 0, 1]]]).to(dtype)
    mask = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 1], [0, 1, 1]]).bool()
    singular_values, directions = leading_directions(texts, clips.requires_grad_(), mask)
    assert singular_values.dtype == torch.float32 and (directions * texts).sum(-1).min() >= 0
    torch.testing.assert_close(directions.norm(dim=-1), torch.ones(4))
    PMRLLoss()(singular_values, directions, directions).backward()
    assert texts.grad.isfinite().all() and clips.grad.isfinite().all() and clips.grad.abs().max() > 0


def test_autocast_does_not_touch_the_loss():
    rows = make_rows(dtype=torch.float32)
    expected = leading_directions(*rows)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = leading_directions(*rows)
        loss = PMRLLoss()(*actual, actual[1])
    torch.testing.assert_close(actual, expected, atol=0, rtol=0)
    torch.testing.assert_close(loss, PMRLLoss()(*expected, expected[1]), atol=0, rtol=0)
