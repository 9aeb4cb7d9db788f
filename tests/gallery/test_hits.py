"""What a search finds, as it is shown in a terminal and in a notebook."""

import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

from gallery.filters import Filter
from gallery.hits import _COLORS, _FURTHER, NOTHING_MATCHES, Certainty, Hit, Hits, Results, remarks_of
from gallery.windows import place_of_clip
from modeling_scalar.configuration_scalar import MODALITIES
from tests.colours import least_difference
from tests.gallery.conftest import make_clips, make_queries, write

CHROMIUM = Path("/usr/bin/chromium")
ODD = '/v/<b onload=x>&amp; "odd" \x1b[31m\u202e.mp4'


def hit(rank, name, weights=(0.73, 0.27, 0.0), presence=(True, True, False), match=None, score=0.5, names=MODALITIES):
    weights = None if weights is None else dict(zip(names, weights, strict=True))
    return Hit(rank, name, score, weights, dict(zip(names, presence, strict=True)), match)


def make_hits(*names, **options):
    settings = {"num_clips": 1000, "num_scored": 14, "query": "a dog", "root": "/v"} | options
    return Hits([hit(rank, name) for rank, name in enumerate(names, start=1)], **settings)


class Page(HTMLParser):
    """The texts of a page, its elements, and what they say."""

    def __init__(self, page):
        super().__init__()
        self.texts, self.elements, self.open = [], [], []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] != "style":
            self.texts.append(data)


def test_hits_print_rank_score_name_weights_and_how_exact_they_are():
    hits = make_hits("/v/a/1.mp4#t=30,60", "clip")
    hits = hits.having(replace(hit, place=place_of_clip(hit.clip_id)) for hit in hits)
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
        texts = Page(Results([hits])._repr_html_()).texts
        assert texts.count(NOTHING_MATCHES) == is_said
        assert not is_said or texts.index("query: a dog") < texts.index(NOTHING_MATCHES) < texts.index("a.mp4")


def test_any_modalities_are_shown_by_name_four_to_a_line_each_in_a_colour_of_its_own():
    names, weights = ("title", "video", "screen", "audio", "field_notes", "mood"), (0.5, 0.25, 0, 0.125, 0.125, 0)
    (one,) = hits = Hits([hit(1, "clip", weights, (True, True, False, True, True, True), names=names)], 1, 1)
    assert str(hits).splitlines()[1:3] == [
        "     title ████░░░░ 0.50  video ██░░░░░░ 0.25  screen – absent  audio █░░░░░░░ 0.12",
        "     field_notes █░░░░░░░ 0.12  mood ░░░░░░░░ 0.00",
    ]
    assert str(Hits([replace(one, weights=None)], 1, 1)).splitlines()[2] == "     mood present"
    read = Page(hits._repr_html_())
    bars = [re.search("#.{6}", attributes["style"])[0] for tag, attributes in read.elements if tag == "i"]
    assert bars == [_FURTHER[0], _COLORS["video"], _COLORS["audio"], _FURTHER[2], _FURTHER[3]]
    assert read.texts[read.texts.index("clip") + 1 :][: len(names)] == list(names)


def test_colours_of_eight_modalities_are_distinguished_with_every_colour_vision():
    assert least_difference([*_COLORS.values(), *_FURTHER[:5]]) > 9 and least_difference(_FURTHER) > 15


def test_the_second_stage_and_scores_without_weights_are_shown():
    hits = Hits([hit(1, "/v/1.mp4", match=2.0), hit(2, "/v/2.mp4", None, match=-900.0), hit(3, "/v/3.mp4")], 3, 3)
    assert [line for line in str(hits).splitlines() if "mp4" in line] == [
        "  1  0.500  match +2.00  /v/1.mp4", "  2  0.500  match -900.00  /v/2.mp4", "  3  0.500  /v/3.mp4",
    ]  # fmt: skip
    assert "     video present  audio present\n" in str(hits)


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({}, "Exact among 1,000 clips: 14 scored in full, the others proved to be below the best."),
        ({"num_scored": 1000}, "Exact among 1,000 clips: all were scored in full."),
        (
            {"num_allowed": 120},
            "Exact among 120 of 1,000 clips: 14 scored in full, the others proved to be below the best.",
        ),
        ({"num_allowed": 14}, "Exact among 14 of 1,000 clips: all were scored in full."),
        (
            {"num_allowed": 120, "is_estimate": True},
            "Exact among about 120 of 1,000 clips: 14 scored in full, the others proved to be below the best.",
        ),
        (
            {"certainty": Certainty.STOPPED},
            "Stopped early among 1,000 clips: 14 scored in full, there may be better ones among the others.",
        ),
        (
            {"certainty": Certainty.INDEX, "num_allowed": 14},
            "Exact up to the index among 14 of 1,000 clips: 14 scored in full, the others proved to be below the "
            "best, but for what the index missed.",
        ),
    ],
)
def test_exactness_counts_what_could_be_a_hit(options, reported):
    assert make_hits("/v/1.mp4", **options).remarks() == [reported]


def test_remarks_are_reported_once_for_all_queries():
    results = [
        make_hits("/v/1.mp4", unknown={"duration": 1, "date": 1200}, notes=["A note."]),
        make_hits("/v/2.mp4", num_scored=20, notes=["A note."]),
        make_hits(query="it's", reason="the filter leaves none of the 1000 clips"),
    ]
    assert remarks_of(results) == [
        'No hits for "it\'s": the filter leaves none of the 1000 clips.',
        "1 clip was left out because it is not known how long they last.",
        "1,200 clips were left out because it is not known when their files were changed.",
        "A note.",
        "Exact among 1,000 clips: 20 scored in full, the others proved to be below the best.",
    ]
    assert str(Results(results)).count("\nA note.") == 1 and str(Results([])) == ""
    assert make_hits(reason="x").remarks() == ["No hits for 'a dog': x."]  # nothing is exact about it


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


def test_the_page_of_a_notebook_holds_names_as_texts_and_nothing_from_elsewhere():
    hits = make_hits(ODD, "/v/a/1.mp4", query="<script>alert(1)</script>", unknown={"date": 3})
    none = make_hits(query="x</div>", reason="<i>")
    page = hits._repr_html_()
    read = Page(page)
    assert r'<b onload=x>&amp; "odd" \x1b[31m\u202e.mp4' in read.texts and "a/1.mp4" in read.texts
    assert "query: <script>alert(1)</script>" in read.texts and "0.73" in read.texts and "absent" in read.texts
    assert any(text.startswith("3 clips were left out") for text in read.texts)
    assert any(text.startswith("Exact among 1,000") for text in read.texts)
    both = Page(Results([hits, none])._repr_html_())
    assert "No hits for 'x</div>': <i>." in both.texts and both.texts.count("query: x</div>") == 1
    tags = {"div", "style", "strong", "table", "thead", "tbody", "tr", "th", "td", "bdi", "span", "i"}
    for tag, attributes in [*read.elements, *both.elements]:
        assert tag in tags and set(attributes) <= {"class", "style", "title", "scope", "dir"}
    assert not re.search(r"url\(|@import|https?:|src=|href=", page)
    assert len(make_hits("/v/" + "x" * 100_000)._repr_html_()) < 5_000


def test_each_bar_is_as_long_as_its_weight():
    weights = [re.search(r"width: (\d+)%", a["style"])[1] for tag, a in Page(make_hits("/v/1")._repr_html_()).elements
               if tag == "i"]  # fmt: skip
    assert weights == ["73", "27"]


def test_hits_of_a_gallery_carry_what_is_reported(tmp_path):
    gallery = write(tmp_path, make_clips(30))
    (hits,) = gallery.search(make_queries(1), 3, allowed=Filter(has="audio"))
    assert hits.root == "/clips" and hits.name_of(hits[0]) == hits[0].clip_id.removeprefix("/clips/")
    assert hits.remarks()[-1].startswith(f"Exact among {hits.num_allowed} of 30 clips")
    (none,) = gallery.search(make_queries(1), 3, allowed=Filter(paths="nowhere"))
    assert none.remarks() == [f"No hits: the filter leaves none of the 30 clips in {tmp_path}."]
    (none,) = gallery.search(make_queries(1), allowed=Filter(lacks="audio"), method="audio")
    assert "clips that the filter leaves has what the score 'audio' needs" in none.remarks()[0]


@pytest.mark.slow
@pytest.mark.parametrize(("ground", "ink"), [("#ffffff", "#111111"), ("#111111", "#dddddd")])
@pytest.mark.parametrize("width", [900, 390])
def test_a_browser_shows_it_in_the_colours_of_the_notebook_and_no_wider(ground, ink, width):
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.is_file():
        pytest.skip(f"no browser at {CHROMIUM}")
    page = Results([make_hits(ODD, "/v/" + "long-name/" * 20), make_hits(query="none", reason="x")])._repr_html_()
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width, "height": 600})
        asked = []
        tab.on("request", lambda request: asked.append(request.url))
        tab.set_content(f"<body style='background: {ground}; color: {ink}'>{page}</body>")
        rgb = tuple(int(ink[place : place + 2], 16) for place in (1, 3, 5))
        assert tab.locator("td.name").first.evaluate("cell => getComputedStyle(cell).color") == f"rgb{rgb}"
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth") and not asked
        ground_of = "cell => getComputedStyle(cell).backgroundColor"
        assert tab.locator("td.name").first.evaluate(ground_of) == "rgba(0, 0, 0, 0)"
        whole, piece = (tab.locator(f".bar{part}").first.bounding_box()["width"] for part in ("", " i"))
        assert piece == pytest.approx(0.73 * whole, abs=1)
        browser.close()
