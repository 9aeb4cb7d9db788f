"""A gallery that is asked by texts and by its clips."""

import pytest
import torch
from PIL import Image
from torch.nn.functional import normalize

from scalar_retrieval.gallery.decoding import sandboxed
from scalar_retrieval.gallery.embedding import embed_clips
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.gallery.hits import HitLists, Hits
from scalar_retrieval.gallery.querying import NothingToCompareError, embed_captions, query_like
from scalar_retrieval.gallery.store.windows import SEGMENT
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.modeling_scalar.model_identity import identify
from tests.gallery.conftest import DIM, make_clips, write
from tests.media_corpus import media


@pytest.fixture(scope="module")
def loaded(tiny_model_dir):
    return load_model(tiny_model_dir)


@pytest.fixture
def asked(tiny_model_dir, loaded, tmp_path, monkeypatch):
    """A gallery of a saved model, and how often that was loaded."""
    count, metadata = [], {"model": str(tiny_model_dir), "fingerprint": identify(tiny_model_dir).fingerprint}
    monkeypatch.setattr("scalar_retrieval.modeling_scalar.load_model", lambda *given: count.append(given) or loaded)
    with GalleryWriter(tmp_path / "gallery", "float32") as writer:
        writer.metadata = metadata | {"query_temperature": 0.1}
        writer.put_clips(*make_clips(20, dim=loaded[0].config.projection_dim))
        writer.commit()
    return Gallery.open(tmp_path / "gallery"), count


def test_texts_are_embedded_by_the_model_of_the_gallery_which_is_loaded_once(asked, loaded, tiny_model_dir):
    gallery, count = asked
    texts = ["a low tone", "the dog barks"]
    assert not count
    results = gallery.search(texts, k=4)
    expected = gallery.search(embed_captions(*loaded, texts), 4, method=loaded[0].score_options()["method"])
    assert results == expected and isinstance(results, HitLists) and [len(hits) for hits in results] == [4, 4]
    one = gallery.search(texts[1], k=4)
    assert isinstance(one, Hits) and one == gallery.search(embed_captions(*loaded, texts[1:]), 4)[0]
    assert one.query == texts[1] == results[1].query
    assert gallery.search(tuple(texts), 4) == expected
    assert [folder for folder, *_ in count] == [tiny_model_dir]


def test_a_file_of_another_place_is_embedded_as_clips_are_and_a_picture_is_a_clip_of_one_frame(asked, tmp_path):
    gallery, _ = asked
    model, film, photo = gallery.load_model(), tmp_path / "film.mkv", tmp_path / "photo.JPG"
    film.write_bytes(media("matroska", "mjpeg", "pcm_s16le", frames=6, seconds=2, size=(48, 32)))
    film.with_suffix(".srt").write_text("1\n00:00:00,000 --> 00:00:01,000\na dog barks\n")
    Image.new("RGB", (48, 16), "red").save(photo, "png")
    for path, seen in ((film, [True] * 3), (photo, [True, False, False])):
        clip = sandboxed(model.processor).read_clip(path)
        embeds, mask = embed_clips(model.model, model.processor(clips=[clip]))
        like = model.embed_file(path)
        assert like.mask.tolist() == mask[0].tolist() == seen
        torch.testing.assert_close(like.embeds, embeds[0], rtol=0, atol=1e-6)  # other batches may add otherwise
        hits = gallery.search(like=like, k=30)
        (expected,) = gallery.search(query_like(like.embeds, like.mask), 30)
        assert hits == expected and len(hits) == 20 and hits.like == str(path)
    with pytest.raises(NothingToCompareError, match="none of the selected modalities"):
        gallery.search(like=like, modalities=["audio"])


def test_a_model_that_scores_otherwise_is_asked_so(asked, loaded, monkeypatch):
    gallery, _ = asked
    monkeypatch.setattr(loaded[0].config, "aggregation", "gram")
    embeds = embed_captions(*loaded, ["low"])
    assert gallery.search(["low"], 20) == gallery.search(embeds, 20, method="gram") != gallery.search(embeds, 20)
    assert gallery.search(["low"], 20, method="scalar") == gallery.search(embeds, 20)


def test_a_model_that_is_gone_changed_or_not_known_is_an_error(asked, tmp_path, tiny_model_dir):
    gallery, count = asked
    gallery.metadata["model"] = str(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match=r"gone.*If it has moved.*gallery.load_model\(FOLDER\)"):
        gallery.search("low")
    gallery.load_model(tiny_model_dir)
    assert len(gallery.search("low", k=3)) == 3
    other = Gallery.open(tmp_path / "gallery")
    for change, message in (
        ({"fingerprint": "0" * 64}, "Embeddings of different models cannot be compared"),
        ({"model": None}, "does not say which model made it"),
    ):
        other.metadata.update(change)
        with pytest.raises(ValueError, match=message):
            other.search("low")
    assert len(count) == 1


@pytest.mark.parametrize("texts", ["", " \n", ["low", ""], ["\udce9"], [5]])
def test_a_text_in_which_there_is_nothing_is_refused_before_the_model_is_loaded(asked, texts):
    gallery, count = asked
    with pytest.raises(ValueError, match="A query is empty|is not UTF-8"):
        gallery.search(texts)
    assert not count


def test_no_texts_have_no_hits_and_load_no_model(asked):
    gallery, count = asked
    assert gallery.search([]) == gallery.search(torch.empty(0, gallery.dim)) == [] and not count


def test_one_thing_is_asked_at_a_time(asked):
    gallery, _ = asked
    for given in ({}, {"queries": "low", "like": gallery.clip_ids[0]}):
        with pytest.raises(ValueError, match="Give either `queries` or `like`"):
            gallery.search(**given)
    with pytest.raises(ValueError, match="`k` must be at least 1"):
        gallery.search("low", k=0)


# Like a clip --------------------------------------------------------------------------------------------------------


def test_modalities_that_cancel_have_no_centroid_and_are_a_query_all_the_same():
    vector = normalize(torch.randn(DIM, generator=torch.Generator().manual_seed(0)), dim=0)
    embeds, mask = torch.stack([vector, -vector, torch.zeros(DIM)]), torch.tensor([True, True, False])
    assert torch.equal(query_like(embeds, mask), vector[None])


def test_a_clip_is_named_as_it_is_shown_or_by_its_path(tmp_path, monkeypatch):
    _, embeds, mask = make_clips(4)
    folder = tmp_path / "clips" / "deep"
    folder.mkdir(parents=True)
    names = [str(tmp_path / "clips" / "a.mp4"), f"{folder / 'b.mp4'}#t=0,30", f"{folder / 'b.mp4'}#t=30", "c"]
    with GalleryWriter(write(tmp_path / "gallery", (names, embeds, mask)).path) as writer:
        writer.metadata |= {SEGMENT: 30.0}
        writer.commit()
        gallery = writer.gallery()
    monkeypatch.chdir(folder)
    shown = (("deep/b.mp4 [0-30 s]", 1), ("b.mp4 [30 s to the end]", 2))
    named = ((names[1], 1), ("deep/b.mp4#t=30", 2), ("b.mp4#t=0,30", 1), ("../a.mp4", 0), ("c", 3))
    for given, expected in (*named, *shown):
        assert gallery.clip_named(given) == names[expected]
    with pytest.raises(ValueError, match=r"is cut into windows in .*Name one of them, such as '.*#t=0,30', '.*#t=30'"):
        gallery.clip_named("deep/b.mp4")
    with pytest.raises(KeyError, match="There is no clip 'x' in"):
        gallery.search(like="x")


@pytest.mark.parametrize(
    ("names", "root"),
    [
        (["/a/b/1.mp4", "/a/bc/2.mp4", "/a/b.mp4"], "/a"),
        (["/a/b/c/1.mp4", "/a/b/cc.mp4", "/a/b/d/1.mp4"], "/a/b"),
        (["/a/b/x.mp4#t=0,30", "/a/b/x.mp4#t=30"], "/a/b"),
        (["/1.mp4"], "/"),
        (["v1"], None),
        (["v1", "/a/b/1.mp4"], "/a/b"),
    ],
)
def test_the_root_is_the_folder_that_all_files_share(tmp_path, names, root):
    assert write(tmp_path, (names, *make_clips(len(names))[1:])).root == root
