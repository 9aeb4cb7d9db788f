"""BEATs by itself: shapes, initialisation, saving. Its numbers are tested against the original in the conversion."""

import pytest
import torch

from scalar_retrieval.modeling_scalar import BeatsModel
from tests.conftest import make_tiny_config


@pytest.fixture
def model():
    torch.manual_seed(0)
    return BeatsModel(make_tiny_config().audio_config).eval()


def test_the_positional_convolution_keeps_the_length_for_odd_and_even_kernels():
    for width in (4, 5):
        config = make_tiny_config().audio_config
        config.num_conv_pos_embeddings = width
        assert BeatsModel(config)(torch.randn(1, 64, 32)).last_hidden_state.shape[1] == 8


@pytest.mark.parametrize("shape", [(2, 60, 32), (2, 64, 30), (2, 0, 32), (64, 32)])
def test_shapes_that_are_no_patches_are_refused(model, shape):
    with pytest.raises(ValueError, match="multiples of 16"):
        model(torch.zeros(shape))
