"""What a search finds, as it is shown in a terminal and in a notebook."""

import sys
from types import SimpleNamespace

import pytest
import torch

from scalar_retrieval.gallery.filters import Filter
from scalar_retrieval.gallery.hits import NOTHING_MATCHES, HitLists, Hits, Texts, remarks_of
from scalar_retrieval.gallery.store.windows import place_of_clip
from scalar_retrieval.modeling_scalar.configuration_scalar import MODALITIES
from tests.gallery.conftest import make_clips, make_queries, write

ODD = '/v/<b onload=x>&amp; "odd" \x1b[31m\u202e.mp4'


def make_hits(*names, **options):
    nothing = [()] * len(names)
    texts = Texts(list(names), [place_of_clip(name) for name in names], nothing, nothing, [None] * len(names))
    weights = torch.tensor([0.73, 0.27, 0.0]).expand(len(names), 3)
    settings = {"num_clips": 1000, "num_scored": 14, "query": "a dog", "root": "/v", "weights": weights} | options
    return Hits(MODALITIES, torch.full((len(names),), 0.5), weights > 0, lambda: texts, **settings)


def test_hits_print_rank_score_name_weights_and_how_exact_they_are():
    hits = make_hits("/v/a/1.mp4#t=30,60", "clip")
    assert str(hits).splitlines() == repr(hits).splitlines() == [
        "query: a dog",
        "  1  0.500  a/1.mp4 [30-60 s]",
        "     video ██████░░ 0.73  audio ██░░░░░░ 0.27  subtitle – absent",
        "  2  0.500  clip",
        "     video ██████░░ 0.73  audio ██░░░░░░ 0.27  subtitle – absent",
        "Exact among 1,000 clips: 14 scored in full, the others proved to be below the best.",
    ]  # fmt: skip


def test_that_nothing_matches_well_is_said_above_the_hits():
    assert NOTHING_MATCHES == "Nothing here matches well; these come nearest."
    for least, is_said in ((0.6, True), (0.5, False), (None, False)):
        hits = make_hits("/v/a.mp4", least_score=least)
        assert str(hits).splitlines()[: 2 + is_said] == [
            "query: a dog", *[NOTHING_MATCHES] * is_said, "  1  0.500  a.mp4"
        ]  # fmt: skip
        assert HitLists([hits])._repr_html_().count(NOTHING_MATCHES) == is_said


def test_the_second_stage_and_scores_without_weights_are_shown():
    hits = make_hits("/v/1.mp4", weights=None, matches=torch.tensor([2.0]).double())
    assert "\n  1  0.500  match +2.00  1.mp4\n     video present  audio present\n" in str(hits)


def test_remarks_are_reported_once_for_all_queries():
    results = [
        make_hits("/v/1.mp4", unknown={"duration": 1, "date": 1200}, notes=["A note."]),
        make_hits("/v/2.mp4", num_scored=20, notes=["A note."]),
        make_hits(query="it's", reason="the filter leaves none of the 1000 clips"),
    ]
    assert remarks_of(results) == [
        'No hits for "it\'s": the filter leaves none of the 1000 clips.',
        "1 clip was left out because it is not known how long they last.",
        "1,200 clips were left out because it is not known when their files were recorded or changed.",
        "A note.",
        "Exact among 1,000 clips: 20 scored in full, the others proved to be below the best.",
    ]
    assert str(HitLists(results)).count("\nA note.") == 1 and str(HitLists([])) == ""
    assert remarks_of([make_hits(reason="x")]) == ["No hits for 'a dog': x."]  # nothing is exact about it


def test_what_a_terminal_would_obey_is_escaped(monkeypatch):
    assert r'<b onload=x>&amp; "odd" \x1b[31m\u202e.mp4' in str(make_hits(ODD))
    assert "\x1b" not in str(make_hits(query="\x1b[31m", reason="\x1b")) + repr(make_hits(like="\x1b", query=None))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(encoding="ascii"))
    assert "video ######.. 0.73  audio ##...... 0.27  subtitle - absent" in str(make_hits("/v/1.mp4"))


def test_a_prompt_shows_the_first_of_many_and_print_all_of_them():
    hits = make_hits(*(f"/v/{number}.mp4" for number in range(60)))
    assert str(hits).count("mp4") == 60 and repr(hits).count("mp4") == 50
    assert "\nand 10 more\n" in repr(hits) and hits._repr_html_().count("<tr>") == 51
    assert "and 10 more" in hits._repr_html_()


def test_a_notebook_shows_a_table_in_which_names_are_texts():
    page = HitLists([make_hits(ODD, query="<script>"), make_hits(query="x</div>", reason="<i>")])._repr_html_()
    assert r"/v/&lt;b onload=x&gt;&amp;amp; &quot;odd&quot; \x1b[31m\u202e.mp4".removeprefix("/v/") in page
    assert "query: &lt;script&gt;" in page and "<td>0.73</td><td>0.27</td><td>absent</td>" in page
    assert "No hits for &#x27;x&lt;/div&gt;&#x27;: &lt;i&gt;." in page
    assert len(make_hits("/v/" + "x" * 100_000)._repr_html_()) < 5_000


def test_hits_are_columns_and_a_sequence():
    hits = make_hits(*"abcd")
    assert hits.scores.tolist() == [0.5] * 4 and hits.presence.shape == hits.weights.shape == (4, 3)
    assert hits[-1] == list(hits)[3] and hits[1:3].clip_ids == ["b", "c"] and hits[1:3][0].rank == 1
    chosen = hits.select([2, 0])
    assert chosen.clip_ids == ["c", "a"] and [hit.rank for hit in chosen] == [1, 2] and chosen.query == "a dog"
    both = chosen.continued(hits[3:])
    assert both.clip_ids == ["c", "a", "d"] and both.num_scored == 28 and len(both.weights) == 3
    with pytest.raises(IndexError):
        hits[4]


def test_hits_of_a_gallery_carry_what_is_reported(tmp_path):
    gallery = write(tmp_path, make_clips(30))
    (hits,) = gallery.search(make_queries(1), 3, allowed=Filter(has="audio"))
    assert hits.root == "/clips" and hits.name_of(hits[0]) == hits[0].clip_id.removeprefix("/clips/")
    assert remarks_of([hits])[-1].startswith(f"Exact among {hits.num_allowed} of 30 clips")
    for options, reported in (
        ({"allowed": Filter(paths="nowhere")}, f"the filter leaves none of the 30 clips in {tmp_path}"),
        ({"allowed": Filter(lacks="audio"), "method": "audio"}, "has what the score 'audio' needs"),
    ):
        (none,) = gallery.search(make_queries(1), **options)
        assert reported in remarks_of([none])[0]
