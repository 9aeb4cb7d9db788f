import math

import pytest
import torch

from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter, MediaFile
from scalar_retrieval.gallery.store.columns import query_table
from scalar_retrieval.modeling_scalar.scores_scalar import retrieval_scores
from tests.gallery.conftest import DIM, MADE_BY, make_clips, make_queries, write
from tests.scores import METHODS

# Search


@pytest.fixture(scope="module", params=["float16", "float32"])
def changed(request, tmp_path_factory):
    """A gallery of three commits, with clips removed and replaced."""
    folder, batches = tmp_path_factory.mktemp("changed"), [make_clips(40, seed) for seed in range(3)]
    write(folder, *batches, dtype=request.param)
    with GalleryWriter(folder) as writer:
        writer.remove_clips(batches[0][0][3:9] + batches[2][0][:1])
        _, embeds, mask = make_clips(7, seed=9)
        writer.put_clips(batches[1][0][5:6], embeds[6:7], mask[6:7])
        writer.commit()
    gallery = Gallery.open(folder)
    assert len(gallery) == 113 and gallery.dtype == request.param
    return gallery


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if not method.uses_concat_heads])
@pytest.mark.parametrize("k", [3, 100])
@pytest.mark.parametrize("is_limited", [False, True])
def test_every_score_ranks_what_may_be_found_as_the_whole_matrix_does(changed, monkeypatch, method, k, is_limited):
    """In blocks of 8: what `retrieval_scores` gives of all clips, or of what may be found by what is looked at."""
    monkeypatch.setattr("scalar_retrieval.gallery.exact.ranking._BLOCK_OF_FEW", 8)
    gallery, queries, options = changed, make_queries(9), {}
    stored, mask = gallery.modality_embeds(), gallery.modality_mask
    assert len(stored) == 113 and str(stored.dtype) == f"torch.{gallery.dtype}"
    rows = torch.arange(113)
    if is_limited:
        options = {"modalities": ["subtitle", "video"], "allowed": rows % 3 > 0}
        mask = mask & torch.tensor([name in options["modalities"] for name in gallery.modalities])
        rows = (options["allowed"] & mask.any(1)).nonzero().flatten()
    scores = retrieval_scores(queries, stored[rows].float(), mask[rows], method, 0.1, modalities=gallery.modalities)
    values, order = scores.sort(dim=1, descending=True, stable=True)
    for row, hits in enumerate(gallery.search(queries, k, method=method, **options)):
        count = min(k, int((values[row] > -math.inf).sum()))
        assert len(hits) == count
        assert hits.scores.tolist() == pytest.approx(values[row, :count].tolist(), abs=2e-6)
        if (values[row, : count + 1].diff().abs() > 2e-6).all():  # else sums in another order may swap neighbours
            assert hits.clip_ids == [gallery.clip_ids[place] for place in rows[order[row, :count]].tolist()]


@pytest.mark.gpu
@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if not method.uses_concat_heads])
def test_in_the_memory_of_a_device_a_gallery_is_searched_the_same(changed, method):
    gallery, moved, queries = changed, changed.to("cuda"), make_queries(9)
    allowed = torch.arange(len(gallery)) % 3 > 0
    for options in ({}, {"modalities": ["audio", "subtitle"]}, {"allowed": allowed}):
        options["method"] = method
        for mine, theirs in zip(
            gallery.search(queries, 5, **options), moved.search(queries, 5, **options), strict=True
        ):
            assert mine.clip_ids == theirs.clip_ids
            torch.testing.assert_close(mine.scores, theirs.scores.cpu(), rtol=0, atol=1e-5)


def test_a_gallery_without_clips_has_no_hits(tmp_path):
    gallery = write(tmp_path, make_clips(3))
    with GalleryWriter(tmp_path) as writer:
        writer.remove_clips(gallery.clip_ids)
        writer.commit()
    for emptied in (Gallery([]), Gallery.open(tmp_path)):
        assert emptied.clip_ids == [] and emptied.search(make_queries(2)) == [[], []]
        assert len(emptied.modality_mask) == 0
    assert len(write(tmp_path, make_clips(2, seed=4))) == 2


# Writing


def test_what_is_put_is_what_is_read(tmp_path):
    names, embeds, mask = make_clips(10)
    names[3] = "/clips/ü\n.mp4"
    files = [MediaFile(name, 2**40, 7, "a" * 64) for name in names]
    files.append(MediaFile("/broken", 1, 2, "b" * 64, reason="no ü"))
    with GalleryWriter(tmp_path, "float32") as writer:
        writer.metadata = MADE_BY
        writer.put_clips(names, embeds, mask, [["a [bracket] and ü"]] + [[]] * 9, [1.5] + [None] * 9)
        writer.put_files(files)
        writer.put_queries(query_table(["q"], ["a caption"], make_queries(1), [[names[3], names[0]]]))
        assert not (tmp_path / "gallery.json").exists()
        assert writer.commit() and not writer.commit()
        with pytest.raises(KeyError, match="nowhere"):
            writer.remove_clips([names[0], "nowhere"])
        assert not writer.commit()
    gallery = Gallery.open(tmp_path)
    assert gallery.clip_ids == names and gallery.dim == DIM and gallery.dtype == "float32"
    assert torch.equal(gallery.modality_embeds(), embeds) and torch.equal(gallery.modality_mask, mask)
    assert gallery.problems() == {names[0]: ["a [bracket] and ü"]}
    assert list(gallery.files.values()) == files and gallery.metadata == MADE_BY
    assert gallery.clips.column("seconds").to_pylist() == [1.5] + [None] * 9
    assert gallery.queries.column("caption").to_pylist() == ["a caption"]
    assert gallery.facts()["num_pairs"] == 2 and gallery.verify() > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda names, embeds, mask: (names[1:], embeds, mask), "2 clips"),
        (lambda names, embeds, mask: (names, torch.nn.functional.normalize(embeds[..., 1:], dim=-1), mask), "columns"),
        (lambda names, embeds, mask: (names, embeds * math.nan, mask), "unit norm"),
        (lambda names, embeds, mask: (names, embeds, mask & False), "these have none"),
        (lambda names, embeds, mask: ([names[0], *names[:-1]], embeds, mask), "unique, repeated"),
    ],
)
def test_wrong_clips_are_refused_and_change_nothing(tmp_path, change, message):
    write(tmp_path, make_clips(3))
    with GalleryWriter(tmp_path) as writer:
        with pytest.raises(ValueError, match=message):
            writer.put_clips(*change(*make_clips(3, seed=1)))
        assert not writer.commit()
        writer.put_clips(*make_clips(3, seed=2))
        with pytest.raises(ValueError, match="once per commit"):
            writer.put_clips(*make_clips(3, seed=2))
        assert writer.commit()
    assert len(Gallery.open(tmp_path)) == 6


@pytest.mark.parametrize(
    "wrong",
    [
        {"query_temperature": "x"},
        {"score_options": [1]},
        {"score_options": {"query_temperature": 0}},
        {"score_options": {"modality_scale": [1.0, 0.0, 1.0]}},
        {"modalities": ["video", "video"]},
        {"score_options": {"unknown": 1}},
        {"least_score": {"score": "high", "num_clips": 1, "modalities": [], "score_options": {"method": "scalar"}}},
        {"segment": 10**400},
        [1],
    ],
    ids=repr,
)
def test_metadata_with_which_no_gallery_opens_are_refused_and_nothing_is_written(tmp_path, wrong):
    write(tmp_path, make_clips(3))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with GalleryWriter(tmp_path) as writer:
        writer.put_clips(*make_clips(2, seed=1))
        writer.metadata = MADE_BY | wrong if isinstance(wrong, dict) else wrong
        for change in (writer.commit, writer.compact):
            with pytest.raises(ValueError, match=r"(?i)\bmetadata of "):
                change()
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        writer.metadata = MADE_BY | {"query_temperature": math.inf}  # what was added is still there to commit
        writer.commit()
    gallery = Gallery.open(tmp_path)
    assert gallery.query_temperature == math.inf and len(gallery) == 5
