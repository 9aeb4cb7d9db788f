"""Galleries of any number of named modalities, one of which is added or taken out."""

import itertools
import os

import pytest
import torch

from gallery.columns import clip_table
from gallery.gallery import Gallery, GalleryWriter, verify_gallery
from gallery.repair import repair
from modeling_scalar.scores_scalar import retrieval_scores
from tests.gallery.conftest import MADE_BY, make_queries
from tests.gallery.test_locking import in_child

NAMES = ("video", "audio", "subtitle", "title", "on_screen")


def make(count, modalities=NAMES, seed=0, dim=16):
    """Identifiers, unit-or-zero embeddings (N, M, D) and a mask in which every subset occurs."""
    generator, number = torch.Generator().manual_seed(seed), len(modalities)
    subsets = torch.tensor(list(itertools.product((False, True), repeat=number))[1:])
    mask = subsets[torch.arange(count) % len(subsets)]
    embeds = torch.nn.functional.normalize(torch.randn(count, number, dim, generator=generator), dim=-1)
    return [f"/clips/{row}.mp4" for row in range(count)], embeds * mask[..., None], mask


def write(folder, clips, modalities=NAMES, dtype="float32", **reported):
    with GalleryWriter(folder, dtype) as writer:
        writer.metadata = MADE_BY | {"modalities": list(modalities)} | reported
        writer.put_clips(*clips)
        writer.commit()
    return Gallery.open(folder)


def ranked(gallery, queries, **options):
    return [[(hit.clip_id, hit.score, hit.weights) for hit in hits] for hits in gallery.search(queries, 20, **options)]


@pytest.mark.parametrize("modalities", [NAMES[:number] for number in (1, 2, 4, 5)] + [("title", "mood")], ids=len)
def test_names_are_those_of_columns_hits_and_filters(tmp_path, modalities):
    names, embeds, mask = clips = make(70, modalities)
    gallery, queries = write(tmp_path, clips, modalities), make_queries(6)
    assert gallery.modalities == modalities and torch.equal(gallery.modality_mask, mask)
    assert gallery.metadata["modalities"] == list(modalities) == gallery.facts()["columns"]
    expected = retrieval_scores(queries.double(), embeds.double(), mask, method="scalar", modalities=modalities)
    for hits, scores in zip(gallery.search(queries, 20), expected, strict=True):
        best = scores.topk(20)
        assert [hit.clip_id for hit in hits] == [names[row] for row in best.indices.tolist()]
        assert torch.allclose(torch.tensor([hit.score for hit in hits]).double(), best.values, atol=1e-6)
        for hit in hits:
            assert tuple(hit.presence) == tuple(hit.weights) == modalities
            assert sum(hit.weights.values()) == pytest.approx(1)
    assert (
        gallery.verify() > 0 and Gallery.open(tmp_path, verify=True).copy(tmp_path / "copy").facts() == gallery.facts()
    )


def test_a_gallery_takes_what_its_modalities_are(tmp_path):
    write(tmp_path, make(7))
    with GalleryWriter(tmp_path) as writer, pytest.raises(ValueError, match=r"\(4, 5\).*on_screen; got \(4, 3\)"):
        writer.put_clips(*make(4, NAMES[:3]))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_modality_that_is_added_or_taken_out_changes_nothing_of_the_others(tmp_path, dtype):
    names, embeds, mask = make(200)
    mask[:, 0] |= ~mask[:, :4].any(1)
    embeds[:, 0] = torch.nn.functional.normalize(embeds[:, 0] + 1e-3, dim=-1) * mask[:, :1]
    reported = {"score_options": {"modality_scale": [1.5, 1, 1, 0.5], "modality_offset": [0, 0.1, 0, 0]}}
    four, queries = NAMES[:4], make_queries(8)
    before = write(tmp_path / "four", (names, embeds[:, :4], mask[:, :4]), four, dtype, **reported)
    with GalleryWriter(before.path) as writer:
        writer.remove_clips(names[10:20])
        writer.commit()
    before, kept = Gallery.open(before.path), [*range(10), *range(20, 200)]
    has_it = [row for row in kept if mask[row, 4]]
    with GalleryWriter(before.path) as writer:
        writer.add_modality("on_screen", [names[row] for row in reversed(has_it)], embeds[has_it].flip(0)[:, 4])
    after = Gallery.open(before.path, verify=True)
    assert after.modalities == NAMES and torch.equal(after.modality_mask, mask[kept])
    assert after.calibration == {"modality_scale": [1.5, 1, 1, 0.5, 1], "modality_offset": [0, 0.1, 0, 0, 0]}
    whole = clip_table(names, embeds, mask, dtype=dtype, has_codes=True, modalities=NAMES).take(kept)
    assert after.clips.select(whole.column_names).equals(whole)
    assert ranked(after, queries, modalities=four) != ranked(after, queries)
    for masked, method in itertools.product((four, ("video", "title")), ("scalar", "uniform", "gram")):
        first, second = (ranked(gallery, queries, modalities=masked, method=method) for gallery in (before, after))
        assert [[hit[:2] for hit in hits] for hits in first] == [[hit[:2] for hit in hits] for hits in second]
    with GalleryWriter(before.path) as writer:
        writer.remove_modality("on_screen")
    again = Gallery.open(before.path, verify=True)
    assert again.calibration == before.calibration and again.modalities == four
    assert again.clips.equals(before.clips) and ranked(again, queries) == ranked(before, queries)


def test_what_cannot_be_added_or_taken_out_is_refused_and_nothing_changes(tmp_path):
    names, embeds, mask = make(62)
    gallery = write(tmp_path, (names, embeds, mask))
    vector = torch.nn.functional.normalize(torch.ones(1, 16), dim=-1)
    with GalleryWriter(tmp_path) as writer:
        for name, clips, vectors, message in (
            ("title", names[:1], vector, "already has the modality 'title'"),
            ("Title", names[:1], vector, "lowercase letters"),
            ("gram", names[:1], vector, "has another meaning"),
            ("tags", ["other"], vector, "no clips .*other"),
            ("tags", names[:1], 2 * vector, "unit norm"),
            ("tags", names[:1], vector[:, :8] * 2**0.5, "must have shape"),
        ):
            with pytest.raises(ValueError, match=message):
                writer.add_modality(name, clips, vectors)
        alone = names[mask.tolist().index([False] * 4 + [True])]
        with pytest.raises(ValueError, match=f"without 'on_screen', none is left in .*{alone}"):
            writer.remove_modality("on_screen")
        with pytest.raises(ValueError, match="but not 'tags'"):
            writer.remove_modality("tags")
    assert Gallery.open(tmp_path).clips.equals(gallery.clips)


def test_killed_anywhere_it_is_the_old_or_the_new_state(tmp_path):
    names, embeds, mask = make(100, NAMES[:3])
    added = torch.nn.functional.normalize(torch.ones(60, 16), dim=-1)
    write(tmp_path / "before", (names, embeds, mask), NAMES[:3])
    calls = "replace fsync rename unlink mkdir".split()

    def change(folder, number):
        """Add a modality, killed at a call of the file system; what is left of the number."""
        left = [number]

        def dying(call):
            def asked(*arguments, **options):
                left[0] -= 1
                if left[0] == 0:
                    os._exit(9)
                return call(*arguments, **options)

            return asked

        with pytest.MonkeyPatch.context() as patched:
            for name in calls:
                patched.setattr(os, name, dying(getattr(os, name)))
            with GalleryWriter(folder) as writer:
                writer.add_modality("title", names[:60], added)
        return left[0]

    before = Gallery.open(tmp_path / "before")
    seen = set()
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        before.copy(folder)
        code = in_child(lambda folder=folder, number=number: change(folder, number) <= 0)
        gallery, _ = verify_gallery(folder)
        old = gallery.modalities == NAMES[:3]
        seen.add(old)
        assert old or torch.equal(gallery.modality_embeds()[:60, 3], added)
        assert torch.equal(gallery.modality_embeds()[:, :3], before.modality_embeds())
        with GalleryWriter(folder) as writer:
            if old:
                writer.add_modality("title", names[:60], added)
        assert Gallery.open(folder, verify=True).modalities == NAMES[:4] and repair(folder) == []
        if code != 9:
            break
    assert number > 10 and seen == {True, False}
