"""Rows of a data set become clips and queries, whatever is read in which batches."""

import time

import pytest
import torch

from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset
from scalar_retrieval.gallery.embedding import in_background
from scalar_retrieval.modeling_scalar import ScalarModel
from tests.conftest import make_tiny_config
from tests.eval.protocol.slow_matching import CONTENTS, MemoryProcessor, make_dataset, make_rows

CLIPS = [f"clip{number}" for number in range(7)]


@pytest.fixture
def rows():
    """Seven clips, the first of them with three captions."""
    rows = make_rows()
    rows.insert(2, rows[0] | {"caption": "about a cat"})
    return [*rows, rows[0] | {"caption": "low music"}]


@pytest.fixture
def embed(tiny_model, tiny_processor):
    def run(rows, model=tiny_model, **options):
        return embed_dataset(model, MemoryProcessor(tiny_processor), make_dataset(rows), progress=False, **options)

    return run


def test_rows_of_one_clip_become_one_clip_with_several_captions(embed, rows):
    embeddings = embed(rows)
    assert embeddings.clip_ids == CLIPS
    assert embeddings.pairs.tolist() == [[query, clip] for query, clip in enumerate([0, 1, 0, 2, 3, 4, 5, 6, 0])]
    assert embeddings.captions == [row["caption"] for row in rows]
    assert embeddings.query_ids[:4] == ["clip0#0", "clip1#0", "clip0#1", "clip2#0"]
    assert len(embeddings.text_embeds.unique(dim=0)) == 9 and embeddings.problems == []
    assert embeddings.modality_mask.tolist() == [list(map(bool, contents)) for contents in CONTENTS]


@pytest.mark.parametrize(("batch_size", "num_workers"), [(1, 4), (3, 3), (100, 1)])
def test_batch_size_and_threads_change_nothing_but_the_order_of_sums(embed, rows, batch_size, num_workers):
    found, expected = embed(rows, batch_size=batch_size, num_workers=num_workers), embed(rows, batch_size=4)
    assert torch.equal(found.modality_mask, expected.modality_mask) and found.captions == expected.captions
    for name in ("text_embeds", "modality_embeds"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), atol=1e-5, rtol=0)


def test_clips_with_nothing_are_all_named_and_never_dropped(embed, rows):
    nothing = dict.fromkeys(("video_path", "audio_path", "subtitle"))
    rows[3:3] = [rows[0] | nothing | {"video_id": "empty"}]
    rows += [rows[0] | nothing | {"video_id": "blank", "subtitle": " "}]
    with pytest.raises(ValueError, match=r"\['empty', 'blank'\]"):
        embed(rows, batch_size=2)


@pytest.mark.parametrize("training", [True, False])
def test_model_is_left_in_the_mode_it_was_in(embed, rows, tiny_model, tiny_processor, training):
    tiny_model.train(training)
    embed(rows)
    assert tiny_model.training is training
    with pytest.raises(FileNotFoundError, match="clip 'clip0' .* names a file that does not exist"):
        embed_dataset(tiny_model, tiny_processor, make_dataset(rows), progress=False)
    assert tiny_model.training is training


@pytest.mark.parametrize(
    ("change", "message"),
    [({"subtitle": "other"}, "'clip0' give different files"), ({"caption": "  "}, "'clip0' has no caption")],
)
def test_rows_that_make_no_sense_are_refused(embed, rows, change, message):
    rows[2] |= change
    with pytest.raises(ValueError, match=message):
        embed(rows)


def test_background_keeps_order_and_stays_a_bounded_number_of_batches_ahead():
    pulled = []

    def slow_if_even(number):
        time.sleep(0.01 * (number % 2 == 0))
        return number

    ahead = []
    numbers = (pulled.append(number) or number for number in range(12))
    for consumed, number in enumerate(in_background(slow_if_even, numbers, num_workers=3)):
        assert number == consumed
        ahead.append(len(pulled) - consumed - 1)
    assert len(ahead) == 12 and max(ahead) == 3


def test_class_labels_are_queries_that_describe_many_clips(embed, rows):
    for number, row in enumerate(rows):
        row["caption"] = ("dog", "cat")[number % 2]
    with pytest.raises(ValueError, match="clip 'clip0' has the label 'dog' twice"):
        embed(rows, task="classification")
    embeddings = embed(rows[:2] + rows[3:8], task="classification")
    assert embeddings.query_ids == ["dog", "cat"] and embeddings.clip_ids == CLIPS
    assert embeddings.pairs.tolist() == [[0, 0], [0, 3], [0, 5], [1, 1], [1, 2], [1, 4], [1, 6]]
    rows[2] |= {"caption": "cat"}
    assert embed(rows[0:3:2], task="classification").pairs.tolist() == [[0, 0], [1, 0]]  # a clip with two labels


def test_embeddings_of_a_data_set_hold_what_the_concatenation_heads_give(embed, rows):
    embeddings = embed(rows, ScalarModel(make_tiny_config(has_concat_heads=True)), batch_size=2)
    assert embeddings.concat_embeds.shape == (7, 3, 16)
    has_video_and_more = [video and bool(audio or subtitle) for video, audio, subtitle in CONTENTS]
    assert embeddings.concat_embeds.any(2).any(1).tolist() == has_video_and_more
    assert embed(rows).concat_embeds is None
