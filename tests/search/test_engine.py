"""A gallery in a vector engine: pushed, changed and asked, against the same gallery in its folder.

Each test runs with the client's own engine and with the real one in this process; `make engine-test QDRANT_URL=...`
runs them against a server or a cluster.
"""

import json
import os
import pickle
import shutil
import sqlite3
import subprocess
import threading
import time
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from httpx import Headers, ReadTimeout
from qdrant_client import models
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse
from qdrant_client.local import persistence
from qdrant_edge import EdgeOptimizersConfig, HnswIndexConfig

from gallery.described import fitted_to
from gallery.filters import Filter
from gallery.gallery import Gallery, GalleryWriter, MediaFile
from gallery.hits import Certainty
from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.scores_scalar import ScoreOptions
from search.engine import asking
from search.engine import collection as collection_module
from search.engine.address import parse_address
from search.engine.asking import EngineSearcher, find_best
from search.engine.clips import About, Point, point_id
from search.engine.collection import BOUND, Collection, condition_of
from search.engine.errors import ChangedError, DamagedError, NoCollectionError
from search.engine.push import PushReport, push
from tests.gallery.conftest import MADE_BY, make_clips, make_queries, write
from tests.gallery.exact.test_screening import KINDS as GALLERIES
from tests.gallery.exact.test_screening import MIXES, make_vectors
from tests.search.engines import KINDS, SERVER, EdgeClient, EdgeServer, make_client
from tests.search.test_main import index, place, run  # noqa: F401 - a fixture

KINDS = [pytest.param(kind, marks=pytest.mark.engine) if kind == "server" else kind for kind in KINDS]
CALIBRATED = {"score_options": {"modality_scale": [0.7, 1.0, 1.3], "modality_offset": [0.1, -0.2, 0.0]}}
TEMPERATURES = (1e-6, 0.01, 0.1, 1.0, 10.0, float("inf"))


@pytest.fixture
def new_collection(tmp_path):
    """Makes empty collections in an engine of a kind."""
    made = []

    def make(kind):
        name = f"test-{uuid.uuid4().hex}"
        made.append(Collection(make_client(kind, tmp_path / name), name))
        return made[-1]

    yield make
    for collection in made:
        if collection.exists():
            collection.client.delete_collection(collection.name)
        collection.close()


@pytest.fixture(params=KINDS)
def either(request, new_collection):
    return new_collection(request.param)


@pytest.fixture(params=KINDS[1:])
def collection(request, new_collection):
    return new_collection(request.param)


def made_gallery(folder, kind, count, dim=24, seed=0, dtype="float16", metadata=None):
    generator = torch.Generator().manual_seed(seed)
    mask = MIXES[torch.randint(len(MIXES), (count,), generator=generator)]
    embeds = make_vectors(kind, count, dim, seed) * mask[..., None]
    with GalleryWriter(folder, dtype) as writer:
        writer.metadata = MADE_BY | (metadata or {})
        writer.put_clips([f"/clips/{number}.mp4" for number in range(count)], embeds, mask)
        writer.commit()
        return writer.gallery()


def made_texts(gallery, count, seed=0):
    generator = torch.Generator().manual_seed(seed + 7)
    embeds = gallery.modality_embeds().float()
    near = embeds[torch.randint(len(embeds), (count,), generator=generator)].sum(1)
    texts = near + torch.randn(near.shape, generator=generator) * torch.rand(count, 1, generator=generator)
    return torch.nn.functional.normalize(texts, dim=-1)


def check_same(gallery, collection, texts, **options):
    """The same clips in the same order with the same scores wherever the engine's answer is exact; how many are."""
    asked = EngineSearcher(collection, "it").search(texts, **options)
    exact = 0
    for reported, known in zip(asked, gallery.search(texts, **options), strict=True):
        assert reported.certainty is not Certainty.INDEX
        if reported.certainty is Certainty.EXACT:
            assert [replace(hit, key=None) for hit in reported] == list(known)
            exact += 1
    return exact


def contents(collection):
    """All that a collection holds, by the numbers of its points."""
    found = {}
    offset = None
    while True:
        numbers, offset = collection._ask(
            collection.client.scroll, scroll_filter=None, limit=1000, offset=offset, with_payload=False
        )
        numbers = [record.id for record in numbers]
        for record in collection.client.retrieve(collection.name, numbers, with_payload=True, with_vectors=True):
            vectors = {name: np.asarray(vector, np.float32).tolist() for name, vector in record.vector.items()}
            found[str(record.id)] = record.payload, vectors
        if offset is None:
            return found


# Asking -------------------------------------------------------------------------------------------------------------


def test_calibrated_scores_are_proved_by_bounds_too_where_all_are_negative(tmp_path, new_collection):
    for offset, dtype in ((-2.0, "float16"), (0.2, "float32")):
        options = {"modality_scale": [0.7, 1.0, 1.3], "modality_offset": [offset, offset - 0.3, offset]}
        gallery = made_gallery(
            tmp_path / dtype, "clustered", 300, dtype=dtype, metadata={"score_options": {"method": "scalar"} | options}
        )
        collection = new_collection("real engine")
        push(gallery, collection)
        hits = EngineSearcher(collection, "it").search(made_texts(gallery, 4), 5)
        assert all((hit.score < 0) == (offset < 0) for one in hits for hit in one)
        assert min(one.num_scored for one in hits) < 300


def test_that_nothing_matches_well_travels_with_a_push(tmp_path, new_collection):
    gallery, collection = made_gallery(tmp_path / "gallery", "clustered", 100), new_collection("real engine")
    push(gallery, collection)
    texts = made_texts(gallery, 4)
    before = EngineSearcher(collection, "it").search(texts, 1)
    assert [hits.matches_well for hits in before] == [None] * 4
    least = sorted(hits[0].score for hits in before)[2]
    reported = {"score": least, "num_clips": 100, "modalities": list(gallery.modalities)}
    with GalleryWriter(gallery.path) as writer:
        writer.metadata = writer.metadata | {"least_score": reported | {"score_options": fitted_to(gallery.metadata)}}
        writer.commit()
    assert vars(push(Gallery.open(gallery.path), collection))["unchanged"] == 100
    searcher = EngineSearcher(collection, "it")
    for options in ({}, {"query_temperature": 7.0}, {"allowed": Filter(has="video")}):
        expected = Gallery.open(gallery.path).search(texts, 1, **options)
        found = [hits.matches_well for hits in searcher.search(texts, 1, **options)]
        assert found == [hits.matches_well for hits in expected]
        assert found == ([None] * 4 if options else [hits[0].score >= least for hits in before])
    assert sorted(hits.matches_well for hits in searcher.search(texts, 1)) == [False, False, True, True]
    assert searcher.search(like=gallery.clip_ids[0]).matches_well is None


def test_a_list_is_made_longer_until_the_proof_closes(tmp_path, either):
    gallery = made_gallery(tmp_path / "gallery", "random", 300, dim=4)
    push(gallery, either)
    read = []
    nearest = either.nearest
    either.nearest = lambda query, limit, where: read.append(limit) or nearest(query, limit, where)
    text, options = made_texts(gallery, 1)[0], ScoreOptions(query_temperature=0.001)
    best = find_best(either, text, 5, options, first=4)
    assert read[0] == 20 and read[1:] == [40 * 2**n for n in range(len(read) - 1)] and len(read) > 1
    assert best.certainty is Certainty.EXACT and best.num_scored == read[-1]
    known = gallery.search(text[None], 5, 0.001)[0]
    assert [point.payload["clip_id"] for point in best.points] == [hit.clip_id for hit in known]
    stopped = find_best(either, text, 5, options, first=4, most=20)
    assert stopped.certainty is Certainty.STOPPED and stopped.num_scored == 20 and len(stopped.points) == 5
    whole = find_best(either, text, 200, options, most=1)
    assert whole.certainty is Certainty.EXACT and whole.num_scored == 300


def test_an_answer_is_no_more_exact_than_the_list_of_the_engine(tmp_path, new_collection):
    gallery = made_gallery(tmp_path / "gallery", "clustered", 300)
    collection = new_collection("real engine")
    push(gallery, collection)
    collection.is_exact = False
    nearest, text = collection.nearest, made_texts(gallery, 1)
    first = nearest(np.append(text[0].numpy(), np.float32(1)), 1, None)[0][0]
    collection.nearest = lambda *asked: [entry for entry in nearest(*asked) if entry[0] != first]  # an index's miss
    reported = EngineSearcher(collection, "it").search(text, 5)[0]
    assert reported.certainty is Certainty.INDEX and "but for what the index missed" in reported.remarks()[-1]
    assert point_id("", reported[0].clip_id) != first


def test_a_proof_needs_a_bound_above_zero_unless_all_is_read(tmp_path, collection):
    """Rows bound what is above 0: of scores below it nothing is known by a list."""
    text = torch.nn.functional.normalize(torch.ones(1, 8), dim=-1)
    embeds = -text.expand(200, 3, 8) + 0.1 * torch.randn(200, 3, 8, generator=torch.Generator().manual_seed(0))
    embeds = torch.nn.functional.normalize(embeds, dim=-1)
    gallery = write(tmp_path / "gallery", ([f"{n}" for n in range(200)], embeds, torch.ones(200, 3).bool()))
    push(gallery, collection)
    for most in (1000, 200):  # a list may be just as long as it was to be, and hold all
        best = find_best(collection, text[0], 5, ScoreOptions(), first=20, most=most)
        assert best.certainty is Certainty.EXACT and best.num_scored == 200
    assert find_best(collection, text[0], 5, ScoreOptions(), first=20, most=199).certainty is Certainty.STOPPED
    assert check_same(gallery, collection, text, k=5) == 1


def test_a_collection_says_what_it_holds(tmp_path, new_collection):
    gallery = made_gallery(tmp_path / "gallery", "random", 20)
    collection = new_collection("local mode")
    push(gallery, collection)
    asked = EngineSearcher(collection, "it")
    assert (len(asked), asked.dim, asked.dtype) == (len(gallery), gallery.dim, gallery.dtype)
    with pytest.raises(ValueError, match="second stage"):  # before a model is loaded
        asked.search(["a dog"], rerank=5)
    with pytest.raises(FileNotFoundError, match="scalar push"):
        EngineSearcher(Collection(collection.client, "other"), "it")
    collection.client.create_collection("other", models.VectorParams(size=4, distance=models.Distance.DOT))
    with pytest.raises(ValueError, match="was not made by"):
        EngineSearcher(Collection(collection.client, "other"), "it")


def like(gallery, clip_id, **options):
    return gallery.search(like=clip_id, k=5, **options)


def test_clips_like_one_are_those_of_the_folder_and_proved(tmp_path, collection):
    gallery = made_gallery(tmp_path / "gallery", "clustered", 150)
    push(gallery, collection)
    asked = EngineSearcher(collection, "it")
    for name in gallery.clip_ids[:14]:
        reported = like(asked, name)
        assert reported.certainty is Certainty.EXACT
        assert [replace(hit, key=None) for hit in reported] == list(like(gallery, name))


def test_clips_like_one_of_a_calibrated_gallery_are_not_said_to_be_proved(tmp_path, collection, monkeypatch):
    """Bounds are of scores with scales and offsets, which do not count between clips."""
    monkeypatch.setattr(asking, "_UNPROVED", 20)
    gallery = made_gallery(tmp_path / "gallery", "clustered", 100, metadata=CALIBRATED)
    push(gallery, collection)
    reported = like(EngineSearcher(collection, "it"), gallery.clip_ids[0], modalities=["video"])
    assert reported.certainty is Certainty.STOPPED and len(reported) == 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", GALLERIES)
def test_ten_thousand_queries_are_answered_as_the_folder_answers_them(tmp_path, new_collection, kind):
    counts = 0
    for seed in range(5):
        gallery = made_gallery(tmp_path / f"{seed}", kind, 2500, seed=seed, dtype=("float16", "float32")[seed % 2])
        collection = new_collection("real engine")
        push(gallery, collection)
        for number, temperature in enumerate(TEMPERATURES[:5]):
            texts = made_texts(gallery, 100, seed=10 * seed + number)
            modalities = (None, ["video", "audio"], None, ["subtitle"], None)[number]
            counts += check_same(
                gallery, collection, texts, k=10, query_temperature=temperature, modalities=modalities
            )
    assert counts == 2500


# Pushing ------------------------------------------------------------------------------------------------------------


def test_a_second_push_writes_nothing(tmp_path, collection, monkeypatch):
    gallery = made_gallery(tmp_path / "gallery", "random", 50)
    with monkeypatch.context() as patched:
        patched.setattr(collection_module, "_INDEXED", {"has": "keyword"})  # a push that ends before it has all
        assert push(gallery, collection).new == 50
        collection.remove([number for number, _, _ in collection.known("")])
    assert push(gallery, collection) == PushReport(new=50)
    before = contents(collection)
    assert len(collection.client.get_collection(collection.name).payload_schema) == 5
    collection.put = collection.remove = collection.describe = None
    monkeypatch.setattr(collection.client, "create_payload_index", None)
    assert push(gallery, collection) == PushReport(unchanged=50)
    assert contents(collection) == before and len(before) == len(collection) == 50


def test_lengths_and_calibrations_of_many_digits_come_back_as_they_were(tmp_path, collection, monkeypatch):
    """The engine reads 10.598999000000049 as 10.598999000000047."""
    monkeypatch.setattr(collection_module, "_PAUSES", (0, 0, 0))
    names, embeds, mask = make_clips(3)
    seconds = [10.598999000000049, 1 / 3, 30.0]
    scales = np.random.default_rng(0).uniform(0.5, 2, 3).tolist()
    with GalleryWriter(tmp_path / "gallery") as writer:
        writer.metadata = MADE_BY | {"score_options": {"modality_scale": scales, "modality_offset": [0.1, 0.1, 1 / 3]}}
        writer.put_clips(names, embeds, mask, seconds=seconds)
        writer.commit()
        gallery = writer.gallery()
    push(gallery, collection)
    collection._about = None
    reported = collection.client.get_collection(collection.name).config.metadata["scalar"]["metadata"]
    assert isinstance(reported, str)  # in which no number is rounded
    assert collection.about().metadata["score_options"] == gallery.metadata["score_options"]
    assert len(collection.fetch([point_id("", name) for name in names])) == 3
    collection.describe = None
    assert push(gallery, collection) == PushReport(unchanged=3)


def test_a_request_is_half_of_what_an_engine_takes_at_most(tmp_path, new_collection):
    options = {"modality_scale": [0.7, 1.0, 1.3], "modality_offset": [-2.1, -2.3, -2.0]}
    for dim, dtype in ((64, "float32"), (768, "float32"), (768, "float16")):
        with GalleryWriter(tmp_path / f"{dim}{dtype}", dtype) as writer:
            writer.metadata = MADE_BY | {"score_options": options}
            writer.put_clips(["/clips/a.mp4"], make_clips(7, dim=dim)[1][6:], torch.ones(1, 3).bool())
            writer.commit()
            gallery = writer.gallery()
        collection, sent = new_collection("local mode"), []
        collection.client.upsert = lambda name, points, wait, sent=sent: sent.extend(points)
        push(gallery, collection)
        assert 1 < collection.points_at_once * len(sent[0].model_dump_json()) <= 16e6


def test_a_push_writes_what_grew_and_changed_and_removes_what_went(tmp_path, either):
    names, embeds, mask = make_clips(40)
    gallery = write(tmp_path / "gallery", (names[:30], embeds[:30], mask[:30]))
    push(gallery, either)
    with GalleryWriter(tmp_path / "gallery") as writer:
        writer.put_clips(names[30:], embeds[30:], mask[30:])
        _, others, there = make_clips(5, seed=9)
        writer.put_clips(names[:5], others, there)
        writer.remove_clips(names[10:14])
        writer.commit()
        gallery = writer.gallery()
    assert push(gallery, either) == PushReport(new=10, changed=5, unchanged=21, removed=4)
    assert len(contents(either)) == len(gallery) == 36


@pytest.mark.parametrize(
    "stops", [1, pytest.param(0, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_a_push_that_is_stopped_goes_on_and_ends_as_one_that_was_not(tmp_path, new_collection, monkeypatch, stops):
    monkeypatch.setattr(Collection, "points_at_once", 7)
    old = made_gallery(tmp_path / "old", "random", 40)
    gallery = made_gallery(tmp_path / "new", "tied", 31, seed=4)
    whole, broken = new_collection("local mode"), new_collection("real engine")
    for collection in (whole, broken):
        push(old, collection)
    push(gallery, whole)
    put = broken.put
    for _ in range(6):
        left = [stops]

        def stopping(points, left=left):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            put(points)

        broken.put = stopping
        try:
            push(gallery, broken)
        except KeyboardInterrupt:
            assert len(broken) >= 31  # what goes, goes last
    broken.put = put
    push(gallery, broken)
    assert contents(broken) == contents(whole)


def test_vectors_that_cannot_be_compared_are_refused(tmp_path, new_collection):
    collection = new_collection("local mode")
    gallery = made_gallery(tmp_path / "gallery", "random", 10)
    push(gallery, collection)
    scale = {"score_options": {"modality_scale": [1.0, 2.0, 1.0]}}
    for name, options in (
        ("fingerprint", {"metadata": {"fingerprint": "0" * 64}}),
        ("dim", {"dim": 25}),
        ("dtype", {"dtype": "float32"}),
        ("segment", {"metadata": {"segment": 30}}),
        ("score_options", {"metadata": scale}),
    ):
        other = made_gallery(tmp_path / name, "random", 10, **options)
        with pytest.raises(ValueError, match=f"differ from those of .* in {name}. They cannot be compared"):
            push(other, collection)
    assert push(gallery, collection) == PushReport(unchanged=10)
    replaced = Collection(collection.client, f"{collection.name}-2")
    push(gallery, replaced)
    replaced.client.delete_collection(replaced.name)
    push(other, Collection(replaced.client, replaced.name))
    with pytest.raises(ValueError, match="differ from those"):  # whatever it was when it was asked before
        push(gallery, replaced)
    warmer = made_gallery(tmp_path / "warmer", "random", 10, metadata={"query_temperature": 0.5, "date": "today"})
    assert push(warmer, collection) == PushReport(unchanged=10)  # the bounds hold at every temperature
    assert EngineSearcher(collection, "it").query_temperature == 0.5
    assert "date" not in EngineSearcher(collection, "it").metadata


def test_models_without_a_fingerprint_are_distinguished_by_their_names(tmp_path, new_collection):
    collection, unknown = new_collection("local mode"), {"fingerprint": None}
    push(made_gallery(tmp_path / "a", "random", 5, metadata=unknown), collection)
    assert push(made_gallery(tmp_path / "b", "random", 5, metadata=unknown), collection, "same").new == 5
    other = made_gallery(tmp_path / "other", "random", 5, metadata=unknown | {"model": "other"})
    with pytest.raises(ValueError, match="differ from those of .* in model. They cannot be compared"):
        push(other, collection, "other")


def test_parts_of_a_collection_are_pushed_one_by_one_and_searched_as_one(tmp_path, collection):
    names, embeds, mask = make_clips(60)
    halves = [write(tmp_path / f"{n}", (names[n::2], embeds[n::2], mask[n::2])) for n in (0, 1)]
    for number, gallery in enumerate(halves):
        assert push(gallery, collection, part=f"machine {number}") == PushReport(new=30)
    both, texts = write(tmp_path / "both", (names, embeds, mask)), make_queries(5)
    for reported, known in zip(EngineSearcher(collection, "it").search(texts, 9), both.search(texts, 9), strict=True):
        assert [hit.clip_id for hit in reported] == [hit.clip_id for hit in known]
    with GalleryWriter(tmp_path / "0") as writer:
        writer.remove_clips(names[:2:2])
        writer.commit()
        assert push(writer.gallery(), collection, part="machine 0").removed == 1
    assert len(collection) == 59


def test_clips_of_equal_scores_and_places_always_stand_in_one_order(tmp_path, collection):
    gallery = write(tmp_path / "gallery", make_clips(6))
    for part in "dcba":
        push(gallery, collection, part)
    hits = EngineSearcher(collection, "it").search(make_queries(1), 24)[0]
    keys = [hit.key for hit in hits]
    assert len({hit.score for hit in hits}) == 6
    assert keys == [key for start in range(0, 24, 4) for key in sorted(keys[start : start + 4])]


def test_each_file_is_looked_for_no_more_often_than_it_may_be_found(tmp_path, collection):
    _, embeds, mask = make_clips(5)
    names = ["/clips/a.mp4#t=0,30", "/clips/a.mp4#t=30,60", "/clips/b.mp4#t=0,30", "/clips/b.mp4#t=30", "/clips/c.mp4"]
    with GalleryWriter(tmp_path / "gallery") as writer:
        writer.metadata = MADE_BY | {"segment": 30}
        writer.put_clips(names, embeds, mask)
        writer.commit()
        push(writer.gallery(), collection)
    asked, sizes = EngineSearcher(collection, "it"), []
    search_vectors = asked.search_vectors
    asked.search_vectors = lambda texts, k, *more, **options: (
        sizes.append(k) or search_vectors(texts, k, *more, **options)
    )
    for k, wanted, expected in ((2, None, [2]), (3, Filter(has="subtitle"), [3, 3]), (4, None, [4, 4])):
        sizes.clear()
        assert len(asked.search(make_queries(1), k, per_file=True, allowed=wanted)[0]) <= k
        assert sizes == expected  # no more hits at a time, and no more once there are none of other files


def test_a_file_of_many_windows_is_left_out_while_others_are_looked_for(tmp_path, either):
    _, embeds, mask = make_clips(90)
    names = [f"/clips/{'long' if number < 80 else number}.mp4#t={number},{number + 1}" for number in range(90)]
    embeds[:80] = embeds[6].clone()  # so that many windows are best
    mask[:80] = True
    with GalleryWriter(tmp_path / "gallery") as writer:
        writer.metadata = MADE_BY | {"segment": 1}
        writer.put_clips(names, embeds, mask)
        writer.commit()
        gallery = writer.gallery()
    push(gallery, either)
    asked, sizes = EngineSearcher(either, "it"), []
    nearest = either.nearest
    either.nearest = lambda query, limit, where: sizes.append(limit) or nearest(query, limit, where)
    reported, known = (one.search(embeds[:1, 0], 4, per_file=True)[0] for one in (asked, gallery))
    assert [hit.clip_id for hit in reported] == [hit.clip_id for hit in known] and len(reported) == 4
    assert max(sizes) <= 128 and reported.certainty is Certainty.EXACT


def of_odd_names(folder, counts):
    """A gallery of windows, those of `a.mp4` best, and of a file that is called as windows of another are."""
    first, last = (
        [f"{name}.mp4#t={start},{start + 1}" for start in range(count)] for name, count in (("a", counts), ("d", 6))
    )
    ends = [*first, "b.mp4#t=5", *last, "b.mp4", "c.mp4"]  # best first
    names, text = [f"/clips/{end}" for end in ends], torch.nn.functional.normalize(torch.ones(1, 8), dim=-1)
    others = torch.randn(len(names), 1, 8, generator=torch.Generator().manual_seed(1))
    others = torch.nn.functional.normalize(others - (others @ text.T) * text, dim=-1)
    angles = torch.linspace(0.1, 1.2, len(names))[:, None, None]
    embeds = (angles.cos() * text + angles.sin() * others).expand(-1, 3, -1)
    with GalleryWriter(folder) as writer:
        writer.metadata = MADE_BY | {"segment": 1}
        writer.put_clips(names, embeds, torch.ones(len(names), 3).bool())
        writer.put_files(
            [MediaFile(f"/clips/{end}", 1, 1, "0" * 64) for end in ("a.mp4", "d.mp4", "b.mp4#t=5", *ends[-2:])]
        )
        writer.commit()
        return writer.gallery(), text


def test_a_file_that_is_called_as_a_window_is_one_in_every_list(tmp_path, collection):
    gallery, text = of_odd_names(tmp_path / "gallery", 9)
    push(gallery, collection)
    asked, nearest, lists = EngineSearcher(collection, "it"), collection.nearest, []
    collection.nearest = lambda *query: lists.append(query) or nearest(*query)
    for k in (2, 3, 4, 5, 9):
        lists.clear()
        reported, known = (one.search(text, k, per_file=True)[0] for one in (asked, gallery))
        assert [replace(hit, key=None) for hit in reported] == list(known)
        assert len({reported.place_of(hit).path for hit in reported}) == len(reported) == min(k, 5) and len(lists) < 6
        assert reported.certainty is Certainty.EXACT and reported.num_scored <= reported.num_allowed == 18


def test_all_lists_for_files_together_are_no_longer_than_asked_for(tmp_path, new_collection, monkeypatch):
    monkeypatch.setattr(asking, "_FIRST", 1)
    collection = new_collection("real engine")
    gallery, text = of_odd_names(tmp_path / "gallery", 60)
    push(gallery, collection)
    nearest, limits = collection.nearest, []
    collection.nearest = lambda query, limit, where: limits.append(limit) or nearest(query, limit, where)
    asked = EngineSearcher(collection, "it")
    assert asked.search(text, 4, per_file=True)[0].certainty is Certainty.EXACT and len(limits) > 1
    limits.clear()
    (reported,) = asked.search(text, 4, per_file=True, most=8)
    assert reported.certainty is Certainty.STOPPED and limits == [16]  # four for each hit, and then it is spent


def test_clips_are_scored_a_few_at_a_time(tmp_path, new_collection, monkeypatch):
    monkeypatch.setattr(asking, "_SCORED_AT_ONCE", 7)
    collection = new_collection("real engine")
    gallery = made_gallery(tmp_path / "gallery", "tied", 100)
    push(gallery, collection)
    fetch, sizes = collection.fetch, []
    collection.fetch = lambda numbers: sizes.append(len(numbers)) or fetch(numbers)
    assert check_same(gallery, collection, made_texts(gallery, 3), k=30) == 3
    assert max(sizes) == 7 and len(sizes) > 10


def test_the_file_of_a_clip_is_read_from_its_payload_alone(tmp_path, either):
    gallery, _ = of_odd_names(tmp_path / "gallery", 2)
    push(gallery, either)
    asked = EngineSearcher(either, "it")
    for name in gallery.clip_ids:
        assert asked.path_of(point_id("", name)) == gallery.place_of(name).path
    assert asked.path_of(str(uuid.uuid4())) is asked.path_of("/clips/a.mp4") is None


def test_an_empty_gallery_cannot_be_pushed(tmp_path, new_collection):
    with GalleryWriter(tmp_path / "gallery") as writer:
        writer.commit()
        with pytest.raises(ValueError, match="holds no clips"):
            push(writer.gallery(), new_collection("local mode"))


def test_the_commands_push_and_ask(place, tmp_path, monkeypatch):  # noqa: F811
    index("clips", "--dtype", "float32")
    address = f"qdrant+file://{tmp_path}/engine/clips"
    assert (
        "2 new, 0 changed, 0 unchanged, 0 removed; 2 clips in the collection" in run("push", "gallery", address).stdout
    )
    assert "0 new, 0 changed, 2 unchanged, 0 removed" in run("push", "gallery", address).stdout
    assert "0 new, 2 changed, 0 unchanged, 0 removed" in run("push", "gallery", address, "--rewrite").stdout
    reported, known = (run("query", where, "audio", "--k", "2", "--json") for where in (address, "gallery"))
    assert reported.stdout == known.stdout and "cat.mp4" in reported.stdout
    assert "Exact among 2 clips: all were scored in full" in reported.stderr
    masked = run("query", address, "audio", "--mask", "audio")
    assert "dog" in masked.stdout and "cat.mp4" not in masked.stdout
    reported, known = (run("query", where, "--like", "clips/cat.mp4", "--json") for where in (address, "gallery"))
    assert reported.stdout == known.stdout and "dog" in reported.stdout
    assert "Exact among 1 of 2 clips: all were scored in full" in reported.stderr
    assert "There is no clip 'none.mp4'" in run("query", address, "--like", "none.mp4", code=1).stderr
    missing = run("query", address + "x", "audio", code=1)
    assert missing.stderr == "Error: There is no collection 'clipsx'. `scalar push GALLERY ADDRESS` makes it.\n"
    assert "Expected the address" in run("push", "gallery", "engine", code=1).stderr
    assert "no gallery in 'engine'" in run("push", "engine", address, code=1).stderr
    other = run("query", address, "audio", "--model", "other", code=1)
    assert "Embeddings of different models cannot be compared" in other.stderr
    monkeypatch.setattr("modeling_scalar.load_model", lambda *_: pytest.fail("loaded"))
    assert "The second stage reads files" in run("query", address, "audio", "--rerank", 5, code=1).stderr
    assert "support patterns of paths" in run("query", address, "audio", "--path", "*.mkv", code=1).stderr
    assert "words in quotation marks" in run("query", address, 'an "audio"', code=1).stderr
    assert "does not know which files are copies" in run("query", address, "audio", "--unique", code=1).stderr
    reported = run("query", address, "--like", "model/config.json", code=1).stderr  # any file that is no clip
    assert "This engine only finds clips like its own" in reported


@pytest.mark.slow
def test_a_push_that_is_killed_ten_times_leaves_what_one_that_was_not_does(tmp_path, commands):
    made_gallery(tmp_path / "old", "random", 500, dim=64, seed=3)
    made_gallery(tmp_path / "gallery", "clustered", 2500, dim=64)
    whole, broken = (f"qdrant+file://{tmp_path}/{name}/clips" for name in ("whole", "broken"))
    for address in (whole, broken):
        assert commands.run("-m", "search", "push", tmp_path / "old", address, timeout=120).code == 0
    assert commands.run("-m", "search", "push", tmp_path / "gallery", whole, timeout=120).code == 0
    storage, kills = tmp_path / "broken" / "collection" / "clips" / "storage.sqlite", 0
    while kills < 10:
        before = storage.stat().st_mtime_ns
        running = commands.start("-m", "search", "push", tmp_path / "gallery", broken)
        deadline = time.monotonic() + 60
        while storage.stat().st_mtime_ns == before and time.monotonic() < deadline:  # until it writes
            time.sleep(0.002)
        time.sleep(0.005 * kills)
        running.kill()
        outcome = running.wait(60)
        assert outcome.code == -9, outcome.stderr
        kills += 1
    last = commands.run("-m", "search", "push", tmp_path / "gallery", broken, timeout=120)
    assert last.code == 0 and not last.stdout.startswith("0 new, 0 changed,"), last.stdout + last.stderr
    held = []
    for address in (whole, broken):
        collection = Collection.at(parse_address(address))
        held.append(contents(collection))
        collection.close()
    assert held[0] == held[1] and len(held[0]) == 2500


# What others do meanwhile -------------------------------------------------------------------------------------------


def test_a_clip_of_which_half_is_another_is_noticed(tmp_path, collection, monkeypatch):
    monkeypatch.setattr(collection_module, "_PAUSES", (0, 0, 0))
    gallery = made_gallery(tmp_path / "gallery", "random", 20)
    push(gallery, collection)
    number = point_id("", "/clips/3.mp4")
    whole = collection.client.retrieve(collection.name, [number], with_payload=True, with_vectors=True)[0]
    vectors = {name: (-np.array(vector)).tolist() for name, vector in whole.vector.items()}
    point = models.PointStruct(id=number, vector=vectors, payload=whole.payload)
    collection.client.upsert(collection.name, [point], wait=True)
    with pytest.raises(DamagedError, match="1 clips of .* are not as they were pushed.*--rewrite"):
        EngineSearcher(collection, "it").search(made_texts(gallery, 1), 20)
    fresh = models.PointStruct(id=number, vector=whole.vector, payload=whole.payload)
    reads, retrieve = [], collection.client.retrieve

    def later(*arguments, **options):
        reads.append(len(arguments[1]))
        if len(reads) == 2:
            collection.client.upsert(collection.name, [fresh], wait=True)
        return retrieve(*arguments, **options)

    monkeypatch.setattr(collection.client, "retrieve", later)
    assert check_same(gallery, collection, made_texts(gallery, 1), k=20) == 1
    assert reads == [20, 1]  # only what was not whole is read again


def put_as(collection, number, payload=None, vectors=None):
    """Write a point with another payload, its hash right, or with other vectors, its hash kept."""
    (whole,) = collection.client.retrieve(collection.name, [number], with_payload=True, with_vectors=True)
    held = {name: np.asarray(vector, np.float32).tolist() for name, vector in whole.vector.items()} | (vectors or {})
    if payload is not None:
        facts = {name: value for name, value in payload.items() if name not in ("digest", "place")}
        embeds = [held.get(name, np.zeros_like(held[payload["has"][0]])) for name in MODALITIES]
        payload |= {"digest": Point(facts, np.array(embeds, np.float16), 0).digest}
    struct = models.PointStruct(id=number, vector=held, payload=payload or whole.payload)
    collection.client.upsert(collection.name, [struct], wait=True)
    return whole.payload


def test_what_was_changed_in_the_engine_is_repaired_by_writing_all_of_it_again(tmp_path, collection, monkeypatch):
    monkeypatch.setattr(collection_module, "_PAUSES", ())
    gallery = made_gallery(tmp_path / "gallery", "clustered", 300)
    push(gallery, collection)
    before, text = contents(collection), made_texts(gallery, 1)
    best = gallery.search(text, 1)[0][0].clip_id
    put_as(collection, point_id("", best), vectors={BOUND: np.zeros((4, 25)).tolist()})
    worst = gallery.search(text, 300)[0][-1].clip_id
    reported = EngineSearcher(collection, "it").search(text, 1)[0]
    assert reported.certainty is Certainty.EXACT and reported[0].clip_id != best  # what docs/qdrant.md says of it
    put_as(collection, point_id("", worst), vectors={before[point_id("", worst)][0]["has"][0]: [0.5] * 24})
    assert push(gallery, collection) == PushReport(unchanged=300) and contents(collection) != before
    assert push(gallery, collection, rewrite=True) == PushReport(changed=300)
    assert contents(collection) == before and check_same(gallery, collection, text, k=5) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"clip_id": 5}, {"part": None}, {"part": "b"}, {"has": [["video"]]}, {"has": "video"}, {"place": None},
        {"place": -1}, {"place": 2**60}, {"place": "1"}, {"clip_id": "/clips/4.mp4"},
    ],
)  # fmt: skip
def test_a_payload_that_is_none_is_damage_whatever_its_hash_says(tmp_path, new_collection, monkeypatch, changed):
    monkeypatch.setattr(collection_module, "_PAUSES", ())
    collection, number = new_collection("local mode"), point_id("", "/clips/3.mp4")
    gallery = made_gallery(tmp_path / "gallery", "random", 6)
    push(gallery, collection)
    before = contents(collection)
    payload = before[number][0] | changed
    try:
        put_as(collection, number, payload)
    except (KeyError, TypeError, AttributeError):  # of which no hash can be made
        collection.client.overwrite_payload(collection.name, payload, points=[number])
    with pytest.raises(DamagedError, match="not as they were pushed"):
        EngineSearcher(collection, "it").search(make_queries(1, dim=24), 6)
    push(gallery, collection, rewrite="place" not in changed)
    assert check_same(gallery, collection, make_queries(1, dim=24), k=6) == 1


def test_a_file_without_a_name_is_damage(tmp_path, new_collection):
    collection, number = new_collection("local mode"), point_id("", "/clips/3.mp4")
    push(made_gallery(tmp_path / "gallery", "random", 6), collection)
    collection.client.overwrite_payload(collection.name, {"path": 5}, points=[number])
    with pytest.raises(DamagedError, match="not as they were pushed"):
        collection.path_of(number)


def test_an_answer_of_a_collection_that_was_replaced_meanwhile_is_none(tmp_path, new_collection):
    unknown = {"fingerprint": None}
    for number, (first, second, is_other) in enumerate((
        ({}, {"fingerprint": "0" * 64}, True),
        (unknown, unknown | {"model": "other"}, True),
        ({}, {"query_temperature": 0.5}, False),
    )):  # fmt: skip
        galleries = [
            made_gallery(tmp_path / f"{number}{n}", "random", 20, metadata=reported)
            for n, reported in enumerate((first, second))
        ]
        collection, text = new_collection("local mode"), made_texts(galleries[0], 1)
        push(galleries[0], collection)
        asked, nearest = EngineSearcher(collection, "it"), collection.nearest

        def replaced(*query, collection=collection, nearest=nearest, gallery=galleries[1]):
            collection.nearest = nearest
            collection.client.delete_collection(collection.name)
            push(gallery, collection)
            return nearest(*query)

        collection.nearest = replaced
        if is_other:
            with pytest.raises(ChangedError, match="was replaced after it was opened"):
                asked.search(text, 5)
        else:
            assert len(asked.search(text, 5)[0]) == 5
        collection.client.delete_collection(collection.name)
        with pytest.raises((NoCollectionError, ValueError), match="[Nn]o"):
            asked.search(text, 5)


def test_what_a_collection_says_of_itself_is_what_it_said_when_it_was_asked(tmp_path, new_collection):
    gallery = made_gallery(tmp_path / "gallery", "random", 5)
    collection = new_collection("local mode")
    push(gallery, collection)
    old = collection.about()
    collection.describe(old.metadata | {"query_temperature": 0.5})

    class Racing(Collection):
        _about = property(lambda self: old, lambda self, value: None)  # the former answer of another thread

    racing = Racing(collection.client, collection.name)
    assert racing.about() is old and racing.about(is_new=True).metadata["query_temperature"] == 0.5
    assert EngineSearcher(racing, "it", racing.about(is_new=True)).query_temperature == 0.5


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_clip_that_changes_is_read_old_or_new(tmp_path, new_collection, kind):
    collection = new_collection(kind)
    first = made_gallery(tmp_path / "first", "random", 60, seed=1)
    second = made_gallery(tmp_path / "second", "random", 60, seed=2)
    push(first, collection)
    number = [point_id("", f"/clips/{clip}.mp4") for clip in range(60)]
    whole = {point.digest for point in collection.fetch(number)}
    push(second, collection)
    whole |= {point.digest for point in collection.fetch(number)}
    assert len(whole) == 120
    done = threading.Event()

    def change():
        for turn in range(6):
            push((first, second)[turn % 2], collection)
        done.set()

    writer, seen, reads = threading.Thread(target=change), set(), 0
    writer.start()
    try:
        while not done.is_set() or not reads:
            records = collection.client.retrieve(
                collection.name, number, with_payload=True, with_vectors=["video", "audio", "subtitle"]
            )
            points = [collection_module._point_of(record, collection.about(), np.float16) for record in records]
            assert len(points) == 60 and None not in points
            seen |= {point.digest for point in points}
            reads += 1
            for reported in EngineSearcher(collection, "it").search(make_queries(1, dim=24), 5):
                assert len(reported) == 5
    finally:
        writer.join(60)
    assert seen <= whole


@pytest.mark.slow
def test_a_clip_that_another_process_changes_is_found_as_it_was_or_as_it_is(tmp_path, commands):
    galleries = [made_gallery(tmp_path / str(seed), "random", 400, seed=seed) for seed in (1, 2)]
    server = EdgeServer(tmp_path / "engine")
    try:
        address = f"qdrant+{server.url}/clips"
        collection = Collection.at(parse_address(address))
        numbers, whole = [point_id("", f"/clips/{clip}.mp4") for clip in range(400)], []
        for gallery in galleries:
            push(gallery, collection)
            whole.append({point.digest for point in collection.fetch(numbers)})
        assert len(whole[0] | whole[1]) == 800
        texts, mixed = make_queries(8, dim=24), 0
        for turn in range(4):
            running, ended = commands.start("-m", "search", "push", tmp_path / str(1 + turn % 2), address), []
            waiting = threading.Thread(target=lambda to=running, out=ended: out.append(to.wait(120)))
            waiting.start()
            while waiting.is_alive():
                best = find_best(collection, texts[turn], 100, ScoreOptions())
                found = {point.digest for point in best.points}
                assert len(best.points) == 100 and found <= whole[0] | whole[1]
                mixed += bool(found & whole[0]) and bool(found & whole[1])
            assert ended[0].code == 0 and " 400 changed" in ended[0].stdout
            assert check_same(galleries[turn % 2], collection, texts, k=10) == 8
        assert mixed  # some of the searches came between two batches
    finally:
        server.close()


def test_an_engine_that_does_not_answer_is_asked_again(tmp_path, new_collection, monkeypatch):
    monkeypatch.setattr(collection_module, "_PAUSES", (0, 0, 0))
    gallery = made_gallery(tmp_path / "gallery", "random", 10)
    collection = new_collection("local mode")
    push(gallery, collection)
    count, failures = collection.client.count, []

    def failing(*arguments, **options):
        if failures:
            raise failures.pop()
        return count(*arguments, **options)

    monkeypatch.setattr(collection.client, "count", failing)
    lost = ResponseHandlingException(ConnectionRefusedError("Connection refused"))
    busy = UnexpectedResponse(503, "busy", b"", Headers())
    failures += [lost, busy, lost]
    assert len(collection) == 10
    failures += [lost] * 4
    with pytest.raises(OSError, match="The engine does not answer: Connection refused"):
        len(collection)


def test_who_waits_at_a_page_does_not_wait_twice_for_an_answer(new_collection, monkeypatch):
    monkeypatch.setattr(collection_module, "_PAUSES", (0, 0, 0))
    monkeypatch.setattr(collection_module, "_PAUSES_OF_PAGE", (0, 0))
    collection, calls = new_collection("local mode"), []
    late, refused = ReadTimeout("timed out"), ConnectionRefusedError("Connection refused")
    for is_patient, source, expected in ((True, late, 4), (False, late, 1), (True, refused, 4), (False, refused, 3)):
        calls.clear()

        def failing(name, source=source):
            calls.append(name)
            raise ResponseHandlingException(source)

        with monkeypatch.context() as patched:
            patched.setattr(collection.client, "collection_exists", failing)
            patched.setattr(collection, "is_patient", is_patient)
            with pytest.raises(OSError, match="The engine does not answer"):
                collection.exists()
        assert len(calls) == expected


def test_a_collection_that_is_made_by_a_call_without_an_answer_is_used(tmp_path, new_collection, monkeypatch):
    monkeypatch.setattr(collection_module, "_PAUSES", (0,))
    collection = new_collection("local mode")
    create, calls = collection.client.create_collection, []

    def failing(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 1:
            create(*arguments, **options)
            raise ResponseHandlingException(TimeoutError("timed out"))
        raise UnexpectedResponse(409, "Conflict", b"already exists", Headers())

    monkeypatch.setattr(collection.client, "create_collection", failing)
    assert push(made_gallery(tmp_path / "gallery", "random", 10), collection).new == 10 and len(calls) == 2
    other = Collection(collection.client, "other")
    with pytest.raises(OSError, match="409"):  # and there is none
        push(made_gallery(tmp_path / "gallery", "random", 10), other)


def test_an_engine_that_says_when_to_ask_again_is_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(collection_module, "_PAUSES", (0, 0))
    server = EdgeServer(tmp_path / "engine")
    try:
        collection = Collection.at(parse_address(f"qdrant+{server.url}/clips"))
        server.fails += [429, 429]
        assert not collection.exists()
        server.fails += [429] * 3
        with pytest.raises(OSError, match="The engine does not answer"):
            collection.exists()
    finally:
        server.close()


def test_very_many_clips_are_not_counted_one_by_one(tmp_path, new_collection, monkeypatch):
    collection, ways = new_collection("real engine"), []
    push(made_gallery(tmp_path / "gallery", "random", 40), collection)
    count = collection.client.count
    collection.client.count = lambda name, count_filter, exact: ways.append(exact) or count(name, count_filter, exact)
    assert len(collection) == 40 and ways == [False, True]
    monkeypatch.setattr(collection_module, "_COUNTED", 39)
    ways.clear()
    assert len(collection) == 40 and ways == [False]
    assert collection.count(condition_of(Filter(has="audio"), ["audio"])) < 40 and ways == [False, False, True]
    asked, text = EngineSearcher(collection, "it"), make_queries(1, dim=24)
    assert "among about 40 clips" in asked.search(text, 3)[0].remarks()[-1]
    monkeypatch.undo()
    assert "among 40 clips" in asked.search(text, 3)[0].remarks()[-1]


def test_a_key_is_in_no_message(tmp_path, new_collection, monkeypatch):
    monkeypatch.setenv("QDRANT_API_KEY", "very-secret")
    collection = new_collection("local mode")
    for code, reported in ((401, "QDRANT_API_KEY"), (403, "QDRANT_API_KEY"), (400, r"400 .*\.\.\.")):
        body = b'{"status": {"error": "Invalid key very-secret"}}' + b"x" * 241 + b" very-secret"  # cut off
        error = UnexpectedResponse(code, "no", body, Headers({"api-key": "very-secret"}))
        failing = SimpleNamespace(side=error)

        def fail(*_, failing=failing, **__):
            raise failing.side

        monkeypatch.setattr(collection.client, "collection_exists", fail)
        with pytest.raises(OSError, match=reported) as caught:
            collection.exists()
        assert "very-s" not in str(caught.value) and caught.value.__suppress_context__
    monkeypatch.undo()


def test_a_key_that_cannot_be_sent_is_reported_without_it(tmp_path, monkeypatch):
    monkeypatch.setattr(collection_module, "_PAUSES", ())
    server = EdgeServer(tmp_path / "engine", key="very-secret")
    try:
        address = parse_address(f"qdrant+{server.url}/clips")
        for end in ("\n", "\r\n", " "):  # as a file of it may end
            monkeypatch.setenv("QDRANT_API_KEY", "very-secret" + end)
            assert not Collection.at(address).exists()
        for wrong in ("very-sécret", "very secret", "very-secret\nvery-secret", "very-secret\x00s", "very-secret€"):
            if "\0" not in wrong:
                monkeypatch.setenv("QDRANT_API_KEY", wrong)
                with pytest.raises(ValueError, match="QDRANT_API_KEY must consist of printable ASCII") as caught:
                    Collection.at(address)
                assert "very" not in str(caught.value)
    finally:
        server.close()
    for key in ('qu"ote-s', "back\\slash"):  # as it is repeated by what escapes it
        monkeypatch.setenv("QDRANT_API_KEY", key + "\n")
        for text in (key, repr(key), repr(key.encode()), json.dumps(key)):
            reported = collection_module._message_of(
                ResponseHandlingException(ValueError(f"Illegal header value {text}"))
            )
            assert "..." in reported and key[:4] not in reported


def test_a_server_is_asked_over_http_with_a_key(tmp_path, monkeypatch):
    monkeypatch.setattr(collection_module, "_PAUSES", (0, 0, 0))
    gallery = made_gallery(tmp_path / "gallery", "random", 90)
    server = EdgeServer(tmp_path / "engine", key="very-secret")
    try:
        address = parse_address(f"qdrant+{server.url}/clips")
        for wrong in (None, "wrong-secret"):
            monkeypatch.setenv("QDRANT_API_KEY", wrong or "")
            with pytest.raises(OSError, match="Put its key into QDRANT_API_KEY") as caught:
                push(gallery, Collection.at(address))
            assert "wrong-secret" not in str(caught.value)
        monkeypatch.setenv("QDRANT_API_KEY", "very-secret")
        collection = Collection.at(address)
        server.fails += [503, 429, 500]
        assert push(gallery, collection) == PushReport(new=90)
        assert server.asked.count(("PUT", "index")) == 5 and ("PUT", "points") in server.asked
        server.asked.clear()
        assert push(gallery, collection) == PushReport(unchanged=90)
        assert {command for command, _ in server.asked} == {"GET", "POST"}  # nothing is written
        texts = made_texts(gallery, 4)
        for options in ({}, {"modalities": ["audio"]}, {"allowed": Filter(has="video")}):
            server.fails.append(502)
            assert check_same(gallery, collection, texts, k=5, **options) == 4
        with GalleryWriter(tmp_path / "gallery") as writer:
            writer.remove_clips(gallery.clip_ids[:10])
            writer.commit()
            assert push(writer.gallery(), collection) == PushReport(unchanged=80, removed=10)
        assert len(collection) == 80
        near = Collection.at(parse_address(f"qdrant+{server.url}/clips?approximate"))
        assert EngineSearcher(near, "it").search(texts[:1], 3)[0].certainty is Certainty.INDEX
    finally:
        server.close()
    with pytest.raises(OSError, match="The engine does not answer.*Is the address right"):
        len(collection)


# Where it is --------------------------------------------------------------------------------------------------------


def test_addresses_are_read():
    assert parse_address("qdrant+http://host:1234/clips").server == "http://host:1234"
    assert parse_address("qdrant+http://[::1]/clips").server == "http://[::1]:6333"
    assert parse_address("qdrant+https://a.example/my.clips-1").server == "https://a.example:443"
    approximate = parse_address("qdrant+https://a.example/clips?approximate")
    assert approximate.is_approximate and approximate.name == "clips" and not approximate.is_here
    local = parse_address("qdrant+file:///srv/engine/clips")
    assert (str(local.folder), local.name, local.server) == ("/srv/engine", "clips", None)
    assert local.is_here and parse_address("qdrant+http://[::1]/clips").is_here
    for address in (approximate, local, parse_address("qdrant+http://[::1]/clips")):
        assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text,reported",
    [
        ("http://host/clips", "Expected the address"),
        ("qdrant+ftp://host/clips", "Expected the address"),
        ("qdrant+http://host:port/clips", "port"),
        ("qdrant+http://host/", "name has at most"),
        ("qdrant+http://host/a/b", "Expected a host and the name"),
        ("qdrant+http:///clips", "Expected a host and the name"),
        ("qdrant+http://host/cl%20ips", "name has at most"),
        ("qdrant+http://user:very-secret@host/clips", "must not contain secrets"),
        ("qdrant+htp://user:very-secret@host/clips", "must not contain secrets"),
        ("qdrant+HTTP//user:very-secret@host/clips", "must not contain secrets"),
        ("qdrant+https:user:very-secret@host/clips", "must not contain secrets"),
        ("qdrant+http://user:very-secret@[::1/clips", "must not contain secrets"),
        ("qdrant+http://ho\u2100st/clips", "invalid host or port"),
        ("qdrant+http://[::1/clips", "invalid host or port"),
        ("qdrant+very-secret", "Expected the address"),
        ("qdrant+http://host/very-secret!", "name has at most"),
        ("qdrant+http://host/very-secret/a", "Expected a host and the name"),
        ("qdrant+file:///very-secret", "absolute folder"),
        ("qdrant+http://host/clips?api_key=very-secret", "must not contain secrets"),
        ("qdrant+http://host/clips?exactly", "approximate"),
        ("qdrant+http://host/clips#part", "approximate"),
        ("qdrant+file://clips", "name has at most"),
        ("qdrant+file://folder/clips", "absolute folder"),
        ("qdrant+file:///clips", "absolute folder"),
    ],
)
def test_an_address_that_is_none_is_reported_without_secrets(text, reported):
    with pytest.raises(ValueError, match=reported) as caught:
        parse_address(text)
    assert "very-secret" not in str(caught.value)


class _Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.promise("code", "A forged Qdrant folder runs no code")
def test_a_folder_of_somebody_else_is_searched_and_runs_no_code(tmp_path):
    address = parse_address(f"qdrant+file://{tmp_path}/engine/clips")
    gallery = made_gallery(tmp_path / "gallery", "random", 3, dim=8)
    collection = Collection.at(address)
    with pytest.raises(FileNotFoundError, match="no collection 'clips'"):
        EngineSearcher(collection, "it")
    push(gallery, collection)
    collection.close()
    shutil.copytree(tmp_path / "engine", tmp_path / "copied")
    copied = parse_address(f"qdrant+file://{tmp_path}/copied/clips")
    for _ in range(2):
        collection = Collection.at(copied)
        assert len(contents(collection)) == 3
        collection.close()
    storage, run = tmp_path / "copied" / "collection" / "clips" / "storage.sqlite", tmp_path / "run"
    rows = {
        "'mkdir'|\\.mkdir is not a clip": pickle.dumps({"id": 1, "vector": _Evil(run)}),
        "not a clip": pickle.dumps(_Evil(run), 0),
        "out of input": b"",
        "damaged": pickle.dumps([1]),
    }
    for reported, row in rows.items():
        with closing(sqlite3.connect(storage)) as folder, folder:
            folder.execute("INSERT OR REPLACE INTO points VALUES ('evil', ?)", (row,))
        with pytest.raises(DamagedError, match=reported) as caught:
            Collection.at(copied)
        assert "push the gallery again" in str(caught.value) and not run.exists()
    shutil.copytree(storage.parent, tmp_path / "engine" / "collection" / "others")  # which nobody lists
    collection = Collection.at(parse_address(f"qdrant+file://{tmp_path}/engine/others"))
    with pytest.raises(DamagedError, match="push the gallery again"):
        push(gallery, collection)
    collection.close()
    assert persistence.pickle is pickle and not run.exists()


def test_the_client_unpickles_nothing_but_rows_of_clips():
    folder = Path(persistence.__file__).parent
    assert [path.name for path in folder.rglob("*.py") if "pickle" in path.read_text()] == ["persistence.py"]
    assert Path(persistence.__file__).read_text().count("pickle.load") == 1


def test_only_a_push_makes_the_folder_of_a_collection(place, tmp_path):  # noqa: F811
    wrong = run("query", f"qdrant+file://{tmp_path}/typo/clips", "audio", code=1)
    assert "There is no collection 'clips'" in wrong.stderr and not (tmp_path / "typo").exists()


def test_a_folder_that_another_process_uses_is_reported(tmp_path):
    address = parse_address(f"qdrant+file://{tmp_path}/engine/clips")
    collection = Collection.at(address)
    with pytest.raises(OSError, match="Another process uses the collections"):
        Collection.at(address)
    collection.close()


# What the engine itself promises ------------------------------------------------------------------------------------


def test_the_engine_compares_by_the_largest_product_and_normalises_nothing(tmp_path, collection):
    gallery = made_gallery(tmp_path / "gallery", "cancelling", 300)
    push(gallery, collection)
    text = np.append(made_texts(gallery, 1)[0].numpy(), np.float32(1))
    found = collection.nearest(text, 300, None)
    held = contents(collection)
    assert len(found) == len(held) == 300
    rounded = text.astype(np.float16).astype(np.float64)
    for number, score in found:
        rows = np.array(held[number][1][BOUND], np.float64)
        assert len(rows) == (1, 4, 10)[len(held[number][0]["has"]) - 1]
        expected = {(rows @ vector).max() for vector in (rounded, text.astype(np.float64))}
        assert min(abs(score - value) for value in expected) < 1e-4 * max(1, np.abs(rows).max())
    assert max(np.abs(rows).max() for _, vectors in held.values() for rows in [vectors[BOUND]]) > 10
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    for payload, vectors in held.values():
        assert {BOUND, *payload["has"]} == set(vectors)


@pytest.mark.slow
def test_the_index_of_the_engine_finds_nearly_all_that_its_vectors_hold(tmp_path):
    hnsw = HnswIndexConfig(m=16, ef_construct=64, full_scan_threshold=1)
    client = EdgeClient(
        tmp_path / "engine", hnsw, EdgeOptimizersConfig(indexing_threshold=1, default_segment_number=1)
    )
    collection = Collection(client, "clips")
    gallery = made_gallery(tmp_path / "gallery", "random", 400, dim=16)
    push(gallery, collection)
    assert client.shard.optimize()
    assert client.shard.info().indexed_vectors_count >= 400
    texts = made_texts(gallery, 10)
    exact = [
        {number for number, _ in collection.nearest(np.append(t, np.float32(1)), 50, None)} for t in texts.numpy()
    ]
    assert check_same(gallery, collection, texts[:3], k=10) == 3  # an exact search asks no index
    collection.is_exact = False
    near = [{number for number, _ in collection.nearest(np.append(t, np.float32(1)), 50, None)} for t in texts.numpy()]
    recall = np.mean([len(a & b) / 50 for a, b in zip(exact, near, strict=True)])
    assert 0.9 < recall <= 1
    asked = EngineSearcher(collection, "it").search(texts, 10)
    assert {reported.certainty for reported in asked} == {Certainty.INDEX}
    known = gallery.search(texts, 10)
    same = [len({h.clip_id for h in a} & {h.clip_id for h in b}) for a, b in zip(asked, known, strict=True)]
    assert np.mean(same) > 9
    collection.close()


# A cluster ----------------------------------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.skipif(not (SERVER and os.environ.get("QDRANT_KILL")), reason="QDRANT_KILL names no command")
def test_a_node_that_is_killed_loses_nothing(tmp_path, new_collection):
    """With replicas on other nodes; the node at QDRANT_URL must not be the one that is killed."""
    gallery = made_gallery(tmp_path / "gallery", "clustered", 5000)
    collection = new_collection("server")
    failed = []

    def pushing():
        try:
            push(gallery, collection, num_shards=3, num_replicas=2)
        except OSError as error:
            failed.append(error)

    writer = threading.Thread(target=pushing)
    writer.start()
    time.sleep(1)
    subprocess.run(os.environ["QDRANT_KILL"], shell=True, check=True)
    try:
        writer.join(300)
        assert not failed and not writer.is_alive()
        texts = made_texts(gallery, 50)
        assert check_same(gallery, collection, texts, k=10) == 50
    finally:
        if os.environ.get("QDRANT_REVIVE"):
            subprocess.run(os.environ["QDRANT_REVIVE"], shell=True, check=True)
    assert push(gallery, collection) == PushReport(unchanged=5000)
    assert check_same(gallery, collection, texts, k=10) == 50


@pytest.mark.parametrize("number, detail, rows", [(4, 3, None), (5, 3, 35), (5, 2, None), (4, 4, 35)])
def test_many_rows_of_bounds_are_reported_before_they_are_written(new_collection, caplog, number, detail, rows):
    metadata = MADE_BY | {"modalities": [f"m{m}" for m in range(number)]}
    new_collection("local mode").create(About(24, "float16", metadata, detail))
    reported = f"A clip with all {number} modalities takes {rows} rows of bounds, 2 kB."
    assert (reported in caplog.text and "postgresql://" in caplog.text) == (rows is not None)
