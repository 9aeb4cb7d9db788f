"""Encoders with spaces of their own, side by side: a modality has a slice of a query's components."""

import math

import pytest
import torch
from datasets import load_from_disk
from torch.nn.functional import normalize

from scalar_retrieval import Gallery, query_weights, retrieval_scores
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.gallery.gallery import GalleryWriter
from scalar_retrieval.gallery.querying import NothingToCompareError
from scalar_retrieval.gallery.repair import repair
from scalar_retrieval.gallery.store.columns import query_table
from scalar_retrieval.hub_cards.gallery import stage_gallery
from tests.gallery.conftest import MADE_BY

NAMES = ["image", "title", "words", "sound"]
SLICES = [[0, 5], [5, 9], [5, 9], [9, 16]]


def make(count: int, slices=SLICES, seed=0):
    """Names, vectors (count, M, D) that are zero outside their slices, and which of them are there."""
    generator = torch.Generator().manual_seed(seed)
    embeds = torch.zeros(count, len(slices), max(stop for _, stop in slices))
    for place, (start, stop) in enumerate(slices):
        embeds[:, place, start:stop] = normalize(torch.randn(count, stop - start, generator=generator), dim=-1)
    mask = torch.rand(count, len(slices), generator=generator) < 0.7
    mask[:, 0] |= ~mask.any(1)
    return [f"clip {row}" for row in range(count)], embeds * mask[..., None], mask


def make_queries(count: int, dim: int, seed=1):
    return normalize(torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)), dim=-1)


def write(folder, clips, slices=SLICES, **options):
    with GalleryWriter(folder, "float32", **options) as writer:
        writer.metadata = MADE_BY | {"modalities": NAMES[: len(slices)], "modality_slices": slices}
        writer.put_clips(*clips)
        writer.commit()
    return Gallery.open(folder)


def test_vectors_that_are_not_zero_outside_their_slices_are_refused(tmp_path):
    names, embeds, _ = make(3)
    outside = embeds.clone()
    outside[:, 0, 6] = 1e-3
    with GalleryWriter(tmp_path) as writer:
        writer.metadata = MADE_BY | {"modalities": NAMES, "modality_slices": SLICES}
        for wrong in (normalize(outside, dim=-1), torch.nn.functional.pad(embeds, (0, 1)), embeds[..., :15]):
            with pytest.raises(ValueError, match="must have 16 components, as queries have, and be zero outside"):
                writer.put_clips(names, normalize(wrong, dim=-1), (wrong != 0).any(-1))


@pytest.mark.parametrize(
    "slices", [None, SLICES[:3], [[0, 5], [5, 9], [5, 9], [9, 15]], [[0, 5], [4, 8], [4, 8], [9, 16]], [[0, 5]] * 4]
)
def test_slices_that_are_not_those_of_the_vectors_are_refused(tmp_path, slices):
    write(tmp_path, make(3))
    with GalleryWriter(tmp_path) as writer:
        writer.metadata["modality_slices"] = slices
        with pytest.raises(ValueError, match="In the metadata of .*slices"):
            writer.commit()


def test_a_query_that_has_nothing_of_the_selected_modalities_is_refused(tmp_path):
    gallery = write(tmp_path, make(3))
    query = torch.zeros(1, 16)
    query[0, 2] = 1
    assert gallery.search(query, 3)[0].weights[:, 0].eq(1).all()
    with pytest.raises(NothingToCompareError, match="nothing to compare with title, sound. Select another"):
        gallery.search(query, 3, modalities=["title", "sound"])


def test_slices_stay_when_clips_are_added_renamed_removed_published_and_evaluated(tmp_path):
    names, embeds, mask = make(30)
    write(tmp_path / "gallery", (names, embeds, mask))
    more = make(8, seed=3)
    with GalleryWriter(tmp_path / "gallery") as writer:
        writer.put_clips([f"new {name}" for name in more[0]], *more[1:])
        writer.put_queries(query_table(["q"], ["a text"], make_queries(1, 16), [[names[4]]]))
        writer.remove_clips(names[:2])
        writer.rename_clips({names[2]: "another"})
        writer.compact()
    stage_gallery(tmp_path / "gallery", tmp_path / "published")
    Embeddings.load(tmp_path / "gallery").save(tmp_path / "embeddings")
    expected = torch.cat([embeds[3:], more[1], embeds[2:3]])
    for folder in ("gallery", "published", "embeddings"):
        gallery = Gallery.open(tmp_path / folder)
        assert gallery.slices == SLICES and gallery.verify() and not repair(tmp_path / folder)
        columns = load_from_disk(tmp_path / folder / "clips").features
        assert [columns[name].length for name in NAMES] == [stop - start for start, stop in SLICES]
        assert torch.equal(gallery.modality_embeds(), expected)


# Dicts of vectors ----------------------------------------------------------------------------------------------------

SPACES = {"image": "pictures", "title": "texts", "words": "texts", "sound": "sounds"}


def dicts(clips, queries, slices=SLICES):
    """Vectors by modality, without zeros; and queries by space, of unit norm."""
    ends = dict(zip(NAMES, slices, strict=False))
    parts = {name: normalize(queries[:, start:stop], dim=-1) for name, (start, stop) in ends.items()}
    columns = {name: clips[1][:, place, start:stop] for place, (name, (start, stop)) in enumerate(ends.items())}
    return columns, parts


@pytest.mark.parametrize("given", [("image", "title", "sound"), ("title", "sound")])
def test_parts_of_queries_are_their_direct_sum_and_one_that_is_absent_leaves_its_modalities_out(given):
    clips = make(90)
    columns, parts = dicts(clips, make_queries(3, 16))
    gallery = Gallery.from_arrays(clips[0], columns, clips[2], spaces=SPACES)
    assert torch.equal(gallery.modality_embeds(), clips[1])
    few = {name: parts[name] for name in given}  # words are in the space of titles
    whole = torch.cat(list(few.values()), dim=1) / math.sqrt(len(given))
    whole = torch.nn.functional.pad(whole, (16 - whole.shape[1], 0))
    seen = clips[2] & torch.tensor(["image" in given, True, True, True])
    left = seen.any(1)
    scores = retrieval_scores(few, columns, clips[2], spaces=SPACES)
    torch.testing.assert_close(scores[:, left], retrieval_scores(whole, clips[1][left], seen[left]))
    weights = query_weights(few, columns, clips[2], spaces=SPACES)
    torch.testing.assert_close(weights[:, left], query_weights(whole, clips[1][left], seen[left]))
    assert (scores[:, ~left] == -math.inf).all() and (weights[:, ~left] == 0).all()
    for hits, row in zip(gallery.search(few, 90), scores[:, left], strict=True):
        torch.testing.assert_close(hits.scores, row.sort(descending=True).values, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"title": torch.eye(4)[:2]}, "'title' of shape (2, 4) among image, words, title"),  # twice one space
        ({"words": torch.eye(5)[:2]}, "'words' of shape (2, 5)"),
        ({"image": 2 * torch.eye(5)[:2]}, "'image' of shape (2, 5)"),
        ({"image": torch.full((2, 5), math.nan)}, "'image' of shape (2, 5)"),
        ({"picture": torch.eye(5)[:2]}, "'picture' of shape (2, 5)"),
    ],
)
def test_parts_of_queries_that_do_not_fit_are_refused_in_a_sentence_that_says_what_exists(change, message):
    clips = make(3)
    columns, _ = dicts(clips, make_queries(1, 16))
    gallery = Gallery.from_arrays(clips[0], columns, clips[2], spaces=SPACES)
    parts = {"image": torch.eye(5)[:2], "words": torch.eye(4)[:2]} | change
    for ask in (gallery.search, lambda given: retrieval_scores(given, columns, clips[2], spaces=SPACES)):
        with pytest.raises(ValueError, match="one for each space.*have the components {'image': .*0, 5") as raised:
            ask(parts)
        assert message in str(raised.value)


@pytest.mark.parametrize(
    ("spaces", "slices"),
    [
        (None, SLICES),
        ({}, SLICES),
        ({"title": "texts", "words": "texts"}, SLICES),
        ({"title": "texts"}, [[0, 5], [5, 9], [9, 13], [13, 20]]),
        (dict.fromkeys(NAMES, "one"), SLICES),  # vectors of different width cannot share a space
    ],
)
def test_modalities_of_equal_width_share_a_space_unless_they_have_different_names_of_spaces(spaces, slices):
    names, embeds, mask = make(3)
    columns, parts = dicts((names, embeds), make_queries(1, 16))
    gallery = Gallery.from_arrays(names, columns, mask, spaces=spaces)
    assert gallery.metadata["modality_slices"] == slices
    if slices == SLICES:
        del parts["words"]
    scores = retrieval_scores(parts, columns, mask, spaces=spaces)
    assert gallery.search(parts, 1)[0][0].score == pytest.approx(float(scores.max()), abs=1e-6)


def test_spaces_of_other_modalities_are_refused():
    clips = make(3)
    columns, parts = dicts(clips, make_queries(1, 16))
    for function, arguments in ((Gallery.from_arrays, (clips[0], columns)), (retrieval_scores, (parts, columns))):
        with pytest.raises(ValueError, match="`spaces` must name spaces of the modalities .* got {'images': 'a'}"):
            function(*arguments, clips[2], spaces={"images": "a"})
