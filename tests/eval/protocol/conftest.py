"""A model with a cross-encoder, and a processor whose clips lie in memory."""

import pytest
import torch

from scalar_retrieval.modeling_scalar import ScalarModel
from tests.conftest import make_tiny_config
from tests.eval.protocol.slow_matching import MemoryProcessor


@pytest.fixture
def processor(tiny_processor):
    return MemoryProcessor(tiny_processor)


def _make_model(**config):
    torch.manual_seed(1)
    model = ScalarModel(make_tiny_config(initializer_range=0.3, **config)).eval()
    torch.nn.init.normal_(model.match_head.classifier.weight)
    return model


@pytest.fixture
def model():
    return _make_model()


@pytest.fixture
def subtitle_model():
    """A model whose cross-encoder reads subtitles too."""
    return _make_model(condition_on=["video", "audio", "subtitle"])
