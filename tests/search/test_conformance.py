"""What can be searched, a folder and a table of PostgreSQL on one server and on three nodes, finds the same: what a
loop over clips in float64 finds."""

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

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
    ODD_PATHS,
    PAPER,
    PATHS,
    TEMPERATURES,
    WORDS,
    Clip,
    Made,
    check,
    fulfils,
    make_clips,
    make_facts,
    make_texts,
    names_of,
    odd_filters,
)

TABLES = ["table", pytest.param("nodes", marks=pytest.mark.e2e)]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Gives the gallery of clips that no test changes; it is written once."""
    galleries = {}

    def write(made):
        if id(made) not in galleries:
            galleries[id(made)] = made.write(tmp_path_factory.mktemp("gallery"))
        return galleries[id(made)]

    return write


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


@pytest.mark.parametrize("made", CALIBRATED, ids=lambda made: f"{len(made.modalities)} {made.scale} {made.offset}")
def test_the_best_clips_are_those_that_a_loop_in_float64_finds(hold, made, written):
    searcher = hold(written(made))
    described = searcher.described
    assert described.modalities == made.modalities and len(searcher) == len(made.clips)
    assert (described.fingerprint, described.query_temperature) == (MADE_BY["fingerprint"], 0.1)
    has = {name: sum(name in clip.vectors for clip in made.clips) for name in made.modalities}
    assert searcher.counts().items() >= has.items()
    mixes = itertools.product(TEMPERATURES, (None, made.modalities[:1], made.modalities[-2:]))
    for seed, (temperature, modalities) in enumerate(itertools.islice(mixes, 0, None, 2)):
        asked = {"query_temperature": temperature, "modalities": modalities}
        # The first text is the vector of one modality: others of other spaces have nothing to compare with it.
        texts = [text for text in make_texts(made, 2, seed) if made.seen(text, modalities)]
        texts = torch.stack(texts or list(make_texts(made, 2, seed)[1:]))
        for text, few, more in zip(texts, *(search(searcher, texts, k, **asked) for k in (7, 1000)), strict=True):
            expected = made.own_scores(text, temperature=temperature, modalities=modalities)
            check(few, made, expected, 7, modalities)
            check(more, made, expected, 1000, modalities)
            assert names_of(few) == names_of(more)[:7]


def test_the_best_clips_are_found_where_modalities_cancel(hold, tmp_path):
    made = Made(make_clips(seed=11, kinds=("cancelling",), count=250))
    searcher, texts = hold(made.write(tmp_path)), make_texts(made, 6)
    for temperature in (0.001, math.inf):
        for text, hits in zip(texts, search(searcher, texts, 5, temperature), strict=True):
            check(hits, made, made.own_scores(text, temperature=temperature), 5)


def test_equal_scores_stand_in_the_order_of_the_gallery_whatever_came_when(hold, tmp_path):
    vector = np.full(DIM, DIM**-0.5)
    clips = [Clip(f"{number}", dict.fromkeys(PAPER, vector)) for number in range(9)]
    opposite = replace(clips[1], vectors=dict.fromkeys(PAPER, -vector))
    first = Made(clips[:6], dtype="float32")
    hold(first.write(tmp_path))
    first.write(tmp_path, [*clips[6:], opposite])
    made = Made([clips[number] for number in (0, 2, 4, 5, 6, 7, 8, 1)], dtype="float32")
    # as it was, but last now
    searcher = hold(first.write(tmp_path, [clips[1]], gone=["3"]))
    text = torch.tensor(vector).float()
    for k in (2, 7, 20):
        (hits,) = search(searcher, text[None], k)
        check(hits, made, made.own_scores(text), k)
        assert names_of(hits) == list("02456781")[:k]


def test_what_grows_changes_and_goes_is_followed(hold, tmp_path):
    old, new = (make_clips(seed=seed, kinds=("random",), count=20) for seed in (5, 6))
    before = hold(Made(old).write(tmp_path))
    new = [replace(clip, name=clip.name.replace("/clips/1", "/clips/new")) for clip in new]
    gone = [clip.name for clip in old if clip.name.startswith("/clips/1")][:4]
    hold(Made(old).write(tmp_path, new, gone))
    names = {clip.name for clip in new}.union(gone)
    made = Made([clip for clip in old if clip.name not in names] + new)
    searcher = before.current()
    assert searcher is not before and searcher.current() is searcher
    for text in make_texts(made, 4):
        check(search(searcher, text[None], 100)[0], made, made.own_scores(text), 100)


def test_filters_leave_what_a_loop_over_clips_leaves(hold, written):
    made = make_facts()
    searcher, (text,), counts = hold(written(made)), make_texts(made, 1), set()
    asked = [(wanted, (), lambda name: True) for wanted in FILTERS + WORDS]
    asked += [({}, (path,), fits) for path, fits in PATHS.items()]
    asked += [({"min_duration": 20, "lacks": ("audio",)}, (path,), fits) for path, fits in PATHS.items()]
    for wanted, paths, fits in asked:
        found = {clip.name: fulfils(clip, wanted, fits) for clip in made.clips}
        left_out = [what for is_fit, unknown in found.values() if is_fit for what in unknown]
        expected = made.own_scores(text, among=lambda clip, found=found: found[clip.name] == (True, set()))
        for k in (8, 100):
            (hits,) = search(searcher, text[None], k, allowed=Filter(paths, **wanted))
            check(hits, made, expected, k)
            assert hits.num_allowed == len(expected), wanted
            assert hits.unknown == {what: left_out.count(what) for what in set(left_out)}, wanted
        counts.add(len(expected))
    assert len(counts) > 8 and 0 in counts
    for wanted, modalities in ((Filter(min_duration=1000), None), (Filter(lacks="audio"), ["audio"])):
        (nothing,) = search(searcher, text[None], allowed=wanted, modalities=modalities)
        assert len(nothing) == 0 and nothing.reason


@pytest.mark.parametrize("hold", TABLES, indirect=True)
def test_odd_filters_find_what_they_find_in_the_folder_or_are_the_same_error(hold, tmp_path):
    names, seconds = ODD_NAMES + ODD_PATHS, (1 / 3, 0.3, 0.1 + 0.2, 1e-7, 10**9 / 7)
    clips = [
        replace(clip, name=name, seconds=clip.seconds and seconds[place % 5])
        for place, (clip, name) in enumerate(zip(make_facts().clips, names, strict=False))
    ]
    made = Made(clips)
    gallery = made.write(tmp_path)
    searcher, (text,) = hold(gallery), make_texts(made, 1)

    def answer(searcher, wanted):
        try:
            (hits,) = search(searcher, text[None], 100, allowed=Filter(**wanted))
        except Exception as error:
            return type(error)
        return list(zip(names_of(hits), hits.scores.tolist(), strict=True)), hits.num_allowed, hits.unknown

    num_errors, num_hits = 0, []
    for wanted in odd_filters(120):
        known = answer(gallery.searcher, wanted)
        assert answer(searcher, wanted) == known, wanted
        num_errors += isinstance(known, type)
        num_hits += [] if isinstance(known, type) else [len(known[0])]
    assert num_errors > 20 and 0 in num_hits and len(set(num_hits)) > 5


def test_quoted_words_must_be_said(hold, written):
    made = make_facts()
    searcher, (text,) = hold(written(made)), make_texts(made, 1)
    embed = lambda texts: text.expand(len(texts), -1)  # noqa: E731
    model = SimpleNamespace(embed=embed, method="scalar", learned={}, model=None)
    found = {clip.name: fulfils(clip, {"words": ("good dog",)}) for clip in made.clips}
    expected = made.own_scores(text, among=lambda clip: found[clip.name] == (True, set()))
    first, second = search(searcher, ['a "Good dog"', "a dog"], 100, load=lambda: model)
    check(first, made, expected, 100)
    check(second, made, made.own_scores(text), 100)
    assert 0 < len(first) < len(second) and first.unknown["words"] > 0


def test_clips_like_one_are_those_that_a_loop_finds(hold, tmp_path):
    made = replace(
        CALIBRATED[0], dtype="float32", clips=make_clips(dtype="float32", kinds=("random", "tied"), count=45)
    )
    searcher, refused = hold(made.write(tmp_path)), 0
    for clip in made.clips[::9]:
        for modalities, has in ((None, ()), (("audio", "video"), ()), (None, ("audio",))):
            asked = {"modalities": modalities, "allowed": Filter(has=has)}
            if modalities and not clip.vectors.keys() & set(modalities):
                with pytest.raises(NothingToCompareError):
                    search(searcher, like=clip.name, **asked)
                refused += 1
                continue
            expected = made.like_scores(clip, modalities, lambda other, has=has: other.vectors.keys() >= set(has))
            hits = search(searcher, like=clip.name, k=9, **asked)
            check(hits, made, expected, 9, modalities, near=1e-6)  # the query is of float32
            assert hits.like == clip.name and clip.name not in names_of(hits)
            assert modalities or hits.num_allowed == len(expected)
    assert refused
    texts = make_texts(made, 3)
    outside = Clip("outside", dict(zip(PAPER, texts.double().numpy(), strict=True)))
    hits = search(searcher, like=Likeness("outside", texts, torch.ones(3).bool()), k=9)
    check(hits, made, made.like_scores(outside), 9, near=1e-6)
    with pytest.raises(KeyError):
        search(searcher, like="/clips/none.mp4")


def test_names_come_back_as_they_are_and_clips_are_found_by_them(hold, tmp_path):
    names = [*ODD_NAMES, "/clips/café.mp4", "/clips/cafe\u0301.mp4"]
    clips = make_clips(kinds=("random",), count=len(names))[: len(names)]
    made = Made([replace(clip, name=name, changed=0) for clip, name in zip(clips, names, strict=True)])
    gallery = made.write(tmp_path)
    hold(gallery)
    searcher, (text,) = hold(gallery), make_texts(made, 1)
    (hits,) = search(searcher, text[None], 100)
    check(hits, made, made.own_scores(text), 100)
    assert [hit.place.path for hit in hits] == names_of(hits) and len(searcher) == len(names)
    for clip in made.clips:
        assert searcher.clip_named(clip.name) == clip.name
        check(search(searcher, like=clip.name, k=3), made, made.like_scores(clip), 3, near=1e-6)
        (read,) = searcher.clips([clip.name])
        assert read.clip_id == clip.name and read.media is None
        assert read.modality_mask.tolist() == [name in clip.vectors for name in PAPER]
        for name, vector in zip(PAPER, read.modality_embeds.numpy(), strict=True):
            assert (vector == clip.vectors.get(name, 0)).all()
    for none in ("none", "\0", "\ud800"):
        with pytest.raises(ValueError):
            searcher.clip_named(none)


def test_of_windows_each_file_comes_once_by_its_best_one(hold, tmp_path):
    windows = [(f"/clips/{name}.mp4", second) for name, count in (("a", 60), ("d", 6)) for second in range(count)]
    windows = [(f"{file}#t={second},{second + 1}", file) for file, second in windows]
    whole = [(file, file) for file in ("/clips/b.mp4#t=5", "/clips/b.mp4", "/clips/c.mp4", "/clips/#t=5")]
    text, generator = normalize(torch.ones(DIM), dim=0), torch.Generator().manual_seed(1)
    clips = []
    for place, (name, file) in enumerate(windows[:60] + whole[:1] + windows[60:] + whole[1:]):
        noise = torch.randn(3, DIM, generator=generator) * (0.2 + 0.02 * place)
        vectors = normalize(text + noise, dim=-1).half().double().numpy()
        has = {mode: vector for mode, vector in zip(PAPER, vectors, strict=True) if place % 3 or mode != "audio"}
        clips.append(Clip(name, has, seconds=2.0 if name == file else 1.0, changed=0, file=file))
    made = Made(clips, metadata={"segment": 1})
    searcher = hold(made.write(tmp_path))
    for wanted, among in (
        (None, None),
        (Filter(has="audio", max_duration=1.5), lambda clip: "audio" in clip.vectors and clip.seconds < 2),
    ):
        expected = made.own_scores(text, among=among)
        files, best = {clip.name: clip.file for clip in clips}, {}
        for name in sorted(expected, key=lambda name: -expected[name][0]):
            best.setdefault(files[name], name)
        for k in (2, 5, 100):
            (hits,) = search(searcher, text[None], k, per_file=True, allowed=wanted or Filter())
            assert names_of(hits) == list(best.values())[:k]
            assert [hit.place.path for hit in hits] == list(best)[:k]
            assert hits.num_scored <= hits.num_allowed == len(expected)
    with pytest.raises(ValueError, match="d.mp4#t=") as several:
        searcher.clip_named("d.mp4")
    assert not isinstance(several.value, NoClipError)
    inside = made.own_scores(text, among=lambda clip: clip.file == "/clips/d.mp4")
    check(search(searcher, text[None], 100, inside="/clips/d.mp4")[0], made, inside, 100)


def test_what_only_a_folder_does_is_done_or_refused(hold, tmp_path):
    clips = [replace(clip, changed=0) for clip in make_clips(seed=8, kinds=("random",))[:30]]
    copies = [replace(clip, name=f"{clip.name} copy", copy_of=clip.name) for clip in clips[::4]]
    made = Made([*clips, *copies, replace(copies[0], name="another")])
    searcher, (text,), scale = hold(made.write(tmp_path)), make_texts(made, 1), [0.5, 2.0, 1.0]
    (hits,) = search(searcher, text[None], 9, modality_scale=scale)
    check(hits, made, replace(made, scale=scale).own_scores(text), 9)
    some = {clip.name for clip in made.clips[::3]}
    mask = torch.tensor([clip.name in some for clip in made.clips])
    first = {clip.name for clip in clips}
    if searcher.unsupported:
        for options in ({"allowed": mask}, {"unique": True}, {"method": "uniform"}, {"method": "video"}):
            with pytest.raises(UnsupportedError, match="folder"):
                search(searcher, text[None], **options)
        return
    (hits,) = search(searcher, text[None], 9, allowed=mask)
    check(hits, made, made.own_scores(text, among=lambda clip: clip.name in some), 9)
    (hits,) = search(searcher, text[None], 9, method="uniform")
    expected = made.own_scores(text, temperature=math.inf)
    assert hits.scores.tolist() == pytest.approx([expected[name][0] for name in names_of(hits)], abs=1e-5)
    (hits,) = search(searcher, text[None], 40, unique=True)
    check(hits, made, made.own_scores(text, among=lambda clip: clip.name in first), 40)
    copied = {clip.copy_of: [c.name for c in made.clips if c.copy_of == clip.copy_of] for clip in copies}
    assert {hit.clip_id: list(hit.copies) for hit in hits if hit.copies} == copied


def test_what_makes_no_sense_is_an_error(hold, tmp_path):
    made = Made(make_clips(seed=9, kinds=("random",)))
    searcher, text = hold(made.write(tmp_path)), make_texts(made, 1)
    for error, arguments, options in (
        (ValueError, (text, 0), {}),
        (ValueError, (text[:, :-1],), {}),
        (ValueError, (2 * text,), {}),
        (ValueError, (text, 5, 0.0), {}),
        (ValueError, (text,), {"modalities": ["smell"]}),
        (ValueError, (text,), {"allowed": Filter(has="smell")}),
        (ValueError, (text,), {"allowed": Filter(lacks=PAPER)}),
        (ValueError, (text,), {"method": "best"}),
        (TypeError, (text,), {"typing": 1}),
    ):
        with pytest.raises(error):
            search(searcher, *arguments, **options)


def test_many_ask_at_once(hold, tmp_path):
    made = Made(make_clips(seed=10))
    searcher, texts = hold(made.write(tmp_path)), make_texts(made, 24)
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda text: search(searcher, text[None], 9)[0], texts))
    for text, hits in zip(texts, found, strict=True):
        check(hits, made, made.own_scores(text), 9)
