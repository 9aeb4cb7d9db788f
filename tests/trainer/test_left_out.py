"""With `on_error: missing`, training leaves out clips of which nothing can be read, and says so."""

import pytest
import torch

from scalar_retrieval.trainer.data import ScalarDataCollator
from tests.trainer.test_scalar_trainer import clips_in_memory

EMPTY = 3


@pytest.fixture
def dataset(tiny_processor):
    return clips_in_memory(tiny_processor, empty=EMPTY)


def test_a_clip_of_which_nothing_can_be_read_is_left_out_of_its_batch_and_named(dataset, tiny_processor, caplog):
    examples = [dataset[index] for index in (1, EMPTY, 5)]
    batch = ScalarDataCollator(tiny_processor, leaves_out=True)(examples)
    assert batch["clip_index"].tolist() == [1, 5]
    assert "The clip 'clip 3' is left out of training" in caplog.text
    alone = ScalarDataCollator(tiny_processor)([dataset[index] for index in (1, 5)])
    assert alone.keys() == batch.keys() and all(torch.equal(value, batch[name]) for name, value in alone.items())


def test_otherwise_it_is_an_error_as_is_a_batch_of_nothing_else(dataset, tiny_processor):
    with pytest.raises(ValueError, match="these have none"):
        ScalarDataCollator(tiny_processor)([dataset[1], dataset[EMPTY]])
    with pytest.raises(ValueError, match="None of the clips of a batch can be read: .*'clip 3'"):
        ScalarDataCollator(tiny_processor, leaves_out=True)([dataset[EMPTY]])
