"""What can be searched, a folder and a table of PostgreSQL on one server and on three nodes, finds the same: what a
loop over clips in float64 finds."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from scalar_retrieval.gallery.filters import Filter
from scalar_retrieval.gallery.querying import Likeness, NothingToCompareError
from scalar_retrieval.gallery.searcher import UnsupportedError
from scalar_retrieval.gallery.searching import search
from scalar_retrieval.gallery.store.described import NoClipError
from scalar_retrieval.search import postgresql
from scalar_retrieval.search.addresses import TableAddress
from scalar_retrieval.search.postgresql import DatabaseTable, TableSearcher
from scalar_retrieval.search.push import push
from tests.gallery.conftest import MADE_BY
from tests.search.conformance import (
    CALIBRATED,
    DIM,
    FILTERS,
    ODD_NAMES,
    PAPER,
    TEMPERATURES,
    Clip,
    Made,
    check,
    make_clips,
    make_facts,
    make_texts,
    names_of,
    odd_filters,
)

TABLES = ["table", pytest.param("nodes", marks=pytest.mark.e2e)]


@pytest.fixture(params=["folder", *TABLES])
def hold(request, monkeypatch):
    """Gives the searcher of a gallery, or of what has changed of it since."""
    if request.param == "folder":
        yield lambda gallery: gallery.searcher
        return
    # Few clips are sampled, too, so that some of them need not be scored.
    monkeypatch.setattr(postgresql, "_LOOSE", 1)
    monkeypatch.setattr(postgresql, "_MORE", 1)
    servers = request.getfixturevalue("postgres")(1 if request.param == "table" else 3)
    databases = [server.new_database() for server in servers]
    table = DatabaseTable(TableAddress.parse(f"{databases[0]}/clips"))
    nodes = [f"127.0.0.1:{server.port}" for server in servers] if len(servers) > 1 else []

    def hold(gallery):
        push(gallery, table.address, nodes)
        nodes.clear()  # the table is there
        return TableSearcher(table)

    yield hold
    table.close()


@pytest.mark.parametrize("made", CALIBRATED, ids=lambda made: f"{len(made.modalities)} {len(made.clips)} {made.scale}")
def test_the_best_clips_are_those_that_a_loop_in_float64_finds(hold, made, tmp_path):
    searcher = hold(made.write(tmp_path))
    described = searcher.described
    assert described.modalities == made.modalities and len(searcher) == len(made.clips)
    assert (described.fingerprint, described.query_temperature) == (MADE_BY["fingerprint"], 0.1)
    has = {name: sum(name in clip.vectors for clip in made.clips) for name in made.modalities}
    assert searcher.counts().items() >= has.items()
    mixes = itertools.product(TEMPERATURES, (None, made.modalities[:1], made.modalities[-2:]))
    for seed, (temperature, modalities) in enumerate(itertools.islice(mixes, 0, None, 2)):
        asked = {"query_temperature": temperature, "modalities": modalities}
        # The first text is the vector of one modality: others of other spaces have nothing to compare with it.
        texts = [text for text in make_texts(made, 3, seed) if made.seen(text, modalities)]
        k = (7, 1000)[seed % 2]
        for text, hits in zip(texts, search(searcher, torch.stack(texts), k, **asked), strict=True):
            expected = made.scores(text, temperature=temperature, modalities=modalities)
            check(hits, made, expected, k, modalities)


def test_equal_scores_stand_in_the_order_of_the_gallery_whatever_came_changed_and_went(hold, tmp_path):
    vector = np.full(DIM, DIM**-0.5)
    clips = [Clip(f"{number}", dict.fromkeys(PAPER, vector)) for number in range(9)]
    opposite = replace(clips[1], vectors=dict.fromkeys(PAPER, -vector))
    first = Made(clips[:6], dtype="float32")
    before = hold(first.write(tmp_path))
    hold(first.write(tmp_path, [*clips[6:], opposite]))
    made = Made([clips[number] for number in (0, 2, 4, 5, 6, 7, 8, 1)], dtype="float32")
    # as it was, but last now
    hold(first.write(tmp_path, [clips[1]], gone=["3"]))
    searcher, text = before.current(), torch.tensor(vector).float()
    assert searcher is not before and searcher.current() is searcher
    for k in (2, 7, 20):
        (hits,) = search(searcher, text[None], k)
        check(hits, made, made.scores(text), k)
        assert names_of(hits) == list("02456781")[:k]


@pytest.mark.parametrize("hold", TABLES, indirect=True)
def test_filters_find_in_a_table_what_they_find_in_the_folder_or_are_the_same_error(hold, tmp_path):
    made = make_facts()
    gallery = made.write(tmp_path)
    searcher, (text,) = hold(gallery), make_texts(made, 1)

    def answer(searcher, wanted):
        try:
            (hits,) = search(searcher, text[None], 100, allowed=Filter(**wanted))
        except Exception as error:
            return type(error)
        scores = dict(zip(names_of(hits), hits.scores.tolist(), strict=True))
        return list(scores.items()), hits.num_allowed, hits.unknown, bool(hits.reason)

    answers = []
    for wanted in (*FILTERS, *odd_filters(120)):
        answers.append(answer(gallery.searcher, wanted))
        assert answer(searcher, wanted) == answers[-1], wanted
    nums_allowed = {found[1] for found in answers if isinstance(found, tuple)}
    assert len(nums_allowed) > 12 and 0 in nums_allowed
    assert sum(isinstance(found, type) for found in answers) > 10


def test_clips_like_one_are_those_that_a_loop_finds(hold, tmp_path):
    clips = make_clips(dtype="float32", kinds=("random", "tied"), count=45)
    made, refused = replace(CALIBRATED[0], dtype="float32", clips=clips), 0
    searcher = hold(made.write(tmp_path))
    for clip, modalities in itertools.product(made.clips[::9], (None, ("audio", "video"))):
        if clip.vectors.keys().isdisjoint(modalities or PAPER):
            with pytest.raises(NothingToCompareError):
                search(searcher, like=clip.name, modalities=modalities)
            refused += 1
            continue
        hits = search(searcher, like=clip.name, k=9, modalities=modalities)
        check(hits, made, made.like_scores(clip, modalities), 9, modalities, near=1e-6)  # the query is of float32
        assert hits.like == clip.name and clip.name not in names_of(hits)
    assert refused
    texts = make_texts(made, 3)
    outside = Clip("outside", dict(zip(PAPER, texts.double().numpy(), strict=True)))
    hits = search(searcher, like=Likeness("outside", texts, torch.ones(3).bool()), k=9)
    check(hits, made, made.like_scores(outside), 9, near=1e-6)
    with pytest.raises(KeyError):
        search(searcher, like="/clips/none.mp4")


def test_names_come_back_as_they_are_and_clips_are_found_by_them(hold, tmp_path):
    clips = make_clips(kinds=("random",), count=len(ODD_NAMES))
    made = Made([replace(clip, name=name, changed=0) for clip, name in zip(clips, ODD_NAMES, strict=False)])
    gallery = made.write(tmp_path)
    searcher, (text,) = hold(gallery), make_texts(made, 1)
    (hits,) = search(searcher, text[None], 100)
    check(hits, made, made.scores(text), 100)
    assert [hit.place.path for hit in hits] == names_of(hits) and len(searcher) == len(ODD_NAMES)
    for clip, embeds, mask in zip(made.clips, gallery.modality_embeds(), gallery.modality_mask, strict=True):
        assert searcher.clip_named(clip.name) == clip.name
        check(search(searcher, like=clip.name, k=3), made, made.like_scores(clip), 3, near=1e-6)
        (read,) = searcher.clips([clip.name])
        assert read.clip_id == clip.name and read.media is None
        assert read.modality_embeds.equal(embeds) and read.modality_mask.equal(mask)
    for none in ("none", "\0", "\ud800"):
        with pytest.raises(ValueError):
            searcher.clip_named(none)


@pytest.mark.parametrize("hold", TABLES, indirect=True)
def test_windows_and_files_are_found_in_a_table_as_in_the_folder(hold, tmp_path):
    clips = make_clips(seed=7, kinds=("random",), count=75)
    for place, file in enumerate(["a"] * 60 + ["d"] * 6):
        name = f"{file}#t={place},{place + 1}"
        clips[place] = replace(clips[place], name=name, seconds=1.0, changed=0, file=file)
    clips[66] = replace(clips[66], name="b#t=5", seconds=2.0, changed=0)  # looks like a window and is none
    made = Made(clips, metadata={"segment": 1})
    gallery, texts = made.write(tmp_path), make_texts(made, 6)
    searcher = hold(gallery)
    for options in ({"per_file": True}, {"per_file": True, "allowed": Filter(max_duration=1.5)}, {"inside": "d"}):
        for k in (2, 5, 100):
            found, known = (search(of, texts, k, **options) for of in (searcher, gallery.searcher))
            for ours, theirs in zip(found, known, strict=True):
                assert [hit.place for hit in ours] == [hit.place for hit in theirs]
                assert names_of(ours) == names_of(theirs) and ours.num_allowed == theirs.num_allowed
    with pytest.raises(ValueError, match="d#t=") as several:
        searcher.clip_named("d")
    assert not isinstance(several.value, NoClipError)


@pytest.mark.parametrize("hold", TABLES[:1], indirect=True)
def test_what_only_a_folder_does_is_refused_by_a_table(hold, tmp_path):
    made = Made(make_clips(seed=8, kinds=("random",)))
    searcher, text = hold(made.write(tmp_path)), make_texts(made, 1)
    mask = torch.ones(len(made.clips), dtype=torch.bool)
    for options in ({"allowed": mask}, {"unique": True}, {"method": "uniform"}, {"method": "video"}):
        with pytest.raises(UnsupportedError, match="folder"):
            search(searcher, text, **options)


def test_what_makes_no_sense_is_an_error(hold, tmp_path):
    made = Made(make_clips(seed=9, kinds=("random",)))
    searcher, text = hold(made.write(tmp_path)), make_texts(made, 1)
    for error, options in (
        (ValueError, {"query_temperature": 0.0}),
        (ValueError, {"modalities": ["smell"]}),
        (ValueError, {"allowed": Filter(has="smell")}),
        (ValueError, {"allowed": Filter(lacks=PAPER)}),
        (ValueError, {"method": "best"}),
        (ValueError, {"queries": 2 * text}),
        (TypeError, {"typing": 1}),
    ):
        with pytest.raises(error):
            search(searcher, **{"queries": text} | options)


def test_many_ask_at_once(hold, tmp_path):
    made = Made(make_clips(seed=10))
    searcher, texts = hold(made.write(tmp_path)), make_texts(made, 24)
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda text: search(searcher, text[None], 9)[0], texts))
    for text, hits in zip(texts, found, strict=True):
        check(hits, made, made.scores(text), 9)
