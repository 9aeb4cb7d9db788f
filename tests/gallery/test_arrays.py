"""Galleries of vectors that users bring."""

import gc
import math

import numpy as np
import pyarrow as pa
import pytest
import torch

from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.gallery.gallery import Gallery, verify_gallery
from scalar_retrieval.gallery.store.columns import query_table
from scalar_retrieval.modeling_scalar.scores_scalar import retrieval_scores
from tests.gallery.conftest import make_clips, make_queries

NAMES, EMBEDS, MASK = make_clips(14)
IMAGES, TITLES, WORDS = EMBEDS.unbind(1)


def with_gaps(vectors, present, gap):
    return [vector if has_it else gap for vector, has_it in zip(vectors.tolist(), present.tolist(), strict=True)]


def columns_of(kind):
    """The same vectors in arrays of some kind, absent ones as this kind has them, and a mask if it needs one."""
    columns = dict(zip(("image", "title", "words"), EMBEDS.unbind(1), strict=True))
    if kind == "torch":
        return columns, MASK
    if kind == "numpy":
        return {name: vectors.numpy() for name, vectors in columns.items()}, MASK.numpy()
    absent = [math.nan] * 16 if kind == "NaN" else None
    lists = {}
    for place, (name, vectors) in enumerate(columns.items()):
        lists[name] = with_gaps(vectors, MASK[:, place], absent)
    if kind == "NaN":
        return {name: np.array(rows, np.float32) for name, rows in lists.items()}, None
    table = pa.table({name: pa.array(rows, pa.list_(pa.float32())) for name, rows in lists.items()})
    return {name: table.column(name) for name in table.column_names}, None


@pytest.mark.promise("data", "Galleries can be made from arrays of numpy, torch or pyarrow")
@pytest.mark.parametrize("kind", ["torch", "numpy", "NaN", "null"])
def test_a_gallery_of_arrays_holds_their_vectors_and_is_searched_and_evaluated(tmp_path, kind, recwarn):
    queries = make_queries(2)
    captions = query_table(["p", "q"], ["a dog", "rain"], queries, [NAMES[:1], NAMES[1:3]])
    columns, mask = columns_of(kind)
    gallery = Gallery.from_arrays(NAMES, columns, mask, path=tmp_path / "new", queries=captions, query_temperature=0.2)
    assert not recwarn.list
    assert gallery.clip_ids == NAMES and gallery.modalities == ("image", "title", "words")
    assert "modality_slices" not in gallery.metadata  # vectors of equal width share a space
    assert torch.equal(gallery.modality_embeds(), EMBEDS) and torch.equal(gallery.modality_mask, MASK)
    assert gallery.dtype == "float32" and verify_gallery(tmp_path / "new")
    scores = retrieval_scores(queries, EMBEDS, MASK, query_temperature=0.2)
    for hits, expected in zip(gallery.search(queries, k=14), scores.sort(descending=True).values, strict=True):
        torch.testing.assert_close(hits.scores.float(), expected, rtol=0, atol=2e-6)
    assert gallery.search(queries.numpy(), k=14) == gallery.search(queries, k=14)
    loaded = Embeddings.load(tmp_path / "new")
    assert loaded.pairs.tolist() == [[0, 0], [1, 1], [1, 2]] and torch.equal(loaded.text_embeds, queries)


def test_a_gallery_without_a_folder_lives_as_long_as_its_object():
    gallery = Gallery.from_arrays(range(14), {"image": IMAGES, "title": TITLES, "words": WORDS}, MASK)
    assert gallery.clip_ids == [str(number) for number in range(14)]
    folder = gallery.path
    assert folder.is_dir()
    del gallery
    gc.collect()
    assert not folder.exists()


def test_vectors_without_unit_norm_are_normalised_and_counted():
    images = IMAGES.clone()
    images[0] *= 3
    with pytest.warns(UserWarning, match=f"1 of {int(MASK.sum())} vectors did not have unit norm"):
        gallery = Gallery.from_arrays(NAMES, {"image": images, "title": TITLES, "words": WORDS}, MASK)
    torch.testing.assert_close(gallery.modality_embeds(), EMBEDS, atol=1e-7, rtol=0)  # float32
    assert torch.equal(gallery.modality_embeds()[1:], EMBEDS[1:])


def test_half_precision_stays_and_a_method_can_be_chosen():
    gallery = Gallery.from_arrays(["a"], {"image": torch.eye(4)[:1].half()}, method="uniform")
    assert gallery.dtype == "float16" and gallery.search(torch.eye(4)[:1])[0][0].score == 1
    assert gallery.metadata["score_options"] == {"method": "uniform"}


@pytest.mark.parametrize(
    ("ids", "columns", "mask", "message"),
    [
        (["a", "b"], {"image": torch.eye(2) * torch.tensor([1, 0])}, None, "'image'.*'b'.*zero or not finite"),
        (["a", "b"], {"image": torch.eye(2)}, [True, True], "`mask` must be bools of shape"),
        (["a", "b"], {"image": torch.eye(2), "title": torch.eye(3)}, None, "as many vectors, .* got the shapes"),
        (["a", "b"], {"image": [[1, 0], [0, 1]]}, None, "`image` must be floats"),
        (["a", "b"], {"image": pa.array([[1.0], [1.0, 2.0]])}, None, "one length"),
        (["a", "b"], {"Image": torch.eye(2)}, None, "name of a modality"),
    ],
)
def test_arrays_of_which_no_gallery_can_be_made_are_refused(tmp_path, ids, columns, mask, message):
    with pytest.raises(ValueError, match=message):
        Gallery.from_arrays(ids, columns, mask, path=tmp_path)
    assert not (tmp_path / "gallery.json").exists()


def test_a_gallery_that_exists_is_not_replaced(tmp_path):
    Gallery.from_arrays(["a"], {"image": torch.eye(2)[:1]}, path=tmp_path)
    with pytest.raises(ValueError, match="already holds a gallery"):
        Gallery.from_arrays(["b"], {"image": torch.eye(2)[:1]}, path=tmp_path)
