"""The page of the search service, in a browser."""

import base64
import re
import time
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import ImageColor
from starlette.testclient import TestClient

from scalar_retrieval.gallery.store.stills import Stills, as_still
from scalar_retrieval.gallery.words.transcripts import Cue, Transcripts, write_transcript
from scalar_retrieval.search.service.app import PAGE
from tests.colours import least_difference
from tests.media_corpus import media, tone, wav
from tests.search.serving import PRESENCE, SECRET, make_app, serving, write_gallery

CHROMIUM = Path("/usr/bin/chromium")
ODD = next(name for name in PRESENCE if name.startswith("<b>"))
WINDOWS = ["talk.webm#t=0,2", "talk.webm#t=2,4", "talk.webm#t=4"]
LABELS = {"video": "Picture", "audio": "Sound", "subtitle": "Subtitles"}
SIX = LABELS | {"title": "Title", "screen": "Words on screen", "field_notes": "Field notes"}


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.is_file():
        pytest.skip(f"no browser at {CHROMIUM}")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def talk():
    """Six seconds of picture and sound that a browser plays."""
    return media("webm", "libvpx", "libopus", frames=60, seconds=6, size=(64, 64), sampling_rate=48_000)


@pytest.fixture
def opened(browser):
    """
    Serves a gallery, which is written if there is none, and opens its page; `page.ask` asks the service without it.

    That another host is asked for something, and all that the page complains of, is an error.
    """
    complaints = []
    with ExitStack() as stack:

        def opened(place, contents=None, *, metadata=None, secret=None, **options):
            if not (place / "gallery").exists():
                write_gallery(place, contents, **(metadata or {}))
            address = stack.enter_context(serving(make_app(place, secret=secret)))
            client = stack.enter_context(TestClient(make_app(place), address))
            page = browser.new_page(reduced_motion="reduce", **options)
            stack.callback(page.close)
            page.set_default_timeout(20_000)
            page.ask = lambda path="search", **body: client.post(f"/api/{path}", json=body).json()["hits"]
            page.asked = []
            page.on("request", lambda request: note(request, address))
            page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto(address)
            return page

        def note(request, address):
            request.frame.page.asked.append(request)
            if not request.url.startswith((address, "data:", "blob:")):
                complaints.append(request.url)

        yield opened
    assert [line for line in complaints if not line.startswith("Failed to load resource")] == []


def open_settings(page):
    page.locator("#settings > summary").click()


def ask(page, words):
    page.get_by_label("What are you looking for?").fill(words)
    page.keyboard.press("Enter")
    settled(page)


def slide(page, key):
    """Move the query temperature by a key."""
    page.get_by_label("Query temperature", exact=True).press(key)
    settled(page)


def switch(page, name, on):
    """Switch a modality, or how hits are shown, on or off."""
    page.get_by_role("checkbox", name=name).set_checked(on)
    settled(page)


def click(page, name):
    page.get_by_role("button", name=name).click()
    settled(page)


def wait(page, expression):
    """Wait until an expression is true; the page's policy lets nothing evaluate code inside it."""
    stop = time.monotonic() + 20
    while not page.evaluate(expression):
        assert time.monotonic() < stop, expression
        page.wait_for_timeout(10)


def settled(page):
    """Wait until what was asked for is shown."""
    wait(page, "!busy && document.getElementById('status').textContent != ''")


def shown(page):
    return page.locator(".hit .name").all_inner_texts()


def card_of(page, name):
    return page.locator("#hits > .hit", has_text=name)


def check(page, hits, on=SIX):
    """The page shows these hits, and says why."""
    assert shown(page) == [hit["name"] for hit in hits]
    assert page.locator(".hit .rank").all_inner_texts() == [str(hit["rank"]) for hit in hits]
    for card, hit in zip(page.locator(".hit").all(), hits, strict=True):
        weights, widths = [], {}
        for name, label in SIX.items():
            if name in hit["weights"]:
                widths[name] = pytest.approx(hit["weights"][name], abs=0.03)  # gaps are between the pieces
            if hit["presence"].get(name):
                weights.append(f"{label} {hit['weights'][name] * 100:.0f} %" if name in on else f"{label} not used")
        why = card.locator(".why")
        assert not why.locator(".score").is_visible()  # until it is asked for
        why.evaluate("why => { why.open = true; }")  # a click would move the focus
        assert why.locator(".score").inner_text() == f"{hit['score']:.3f}"
        assert card.locator(".weights li:visible").all_inner_texts() == weights
        mark = card.locator(".scale").evaluate("scale => parseFloat(scale.firstChild.style.left)")
        assert mark == pytest.approx(50 + 50 * hit["score"], abs=0.01)  # from -1 to 1
        drawn = "all => all.map(piece => [piece.dataset.modality, piece.offsetWidth / piece.parentNode.clientWidth])"
        pieces = dict(card.locator(".bar i").evaluate_all(drawn))
        assert {name: pieces[name] for name in widths} == widths
        why.evaluate("why => { why.open = false; }")


def test_a_query_is_typed_and_its_hits_are_shown(opened, unchanged):
    page = opened(unchanged)
    ask(page, "a dog")
    check(page, page.ask(query="a dog"))
    assert ODD in shown(page) and page.locator(".hit b").count() == 0  # names are text
    assert not page.get_by_label("Query temperature", exact=True).is_visible()  # hits come first
    open_settings(page)
    slide(page, "Home")
    check(page, page.ask(query="a dog", query_temperature=0.001))
    assert page.get_by_role("status").inner_text() == "5 hits in 5 clips."
    page.get_by_text("How exact is this?").click()
    assert re.search("exact scores .* (all|[1-5] of) 5 clips.* It took", page.locator("#proof").inner_text())

    page.route("**/api/search", lambda route: route.fulfill(status=200, body='{"hits": ['), times=1)
    page.get_by_label("Results").select_option("5")
    page.get_by_text("The answer of the service was interrupted").wait_for()
    assert page.evaluate("midnight('275760-09-14')") == "275760-09-14"  # which is no moment of JavaScript
    seconds = {5.5: "0:05.5", 59.96: "1:00", 119.98: "2:00", 3599.99: "1:00:00"}
    assert [page.evaluate(f"clock({number})") for number in seconds] == list(seconds.values())


@pytest.mark.slow
def test_clips_are_found_weighed_and_compared(opened, unchanged):
    page = opened(unchanged)
    page.get_by_text("Type what you are looking for. By name: 5 of 5 clips.").wait_for()
    assert page.evaluate("document.activeElement.id") == "query"
    assert shown(page) == sorted(PRESENCE) and not page.locator(".meters").first.is_visible()
    ask(page, "a dog")
    silent = card_of(page, "silent.webm")
    assert "subtitles are no text" in silent.locator(".problem").inner_text()
    assert silent.locator(".lacking").text_content() == "Absent: sound, subtitles"

    open_settings(page)
    slider = page.get_by_label("Query temperature", exact=True)
    slide(page, "End")
    assert slider.get_attribute("aria-valuetext") == "equal weights"
    click(page, "Reset to the gallery’s default query temperature")
    assert slider.get_attribute("aria-valuetext") == "0.1 (default)"

    for name in LABELS.values():
        switch(page, name, on=False)
    assert shown(page) == [] and "Select at least one modality" in page.get_by_role("status").inner_text()
    for name in ("Picture", "Subtitles"):
        switch(page, name, on=True)
    on = ["video", "subtitle"]
    check(page, page.ask(query="a dog", modalities=on), on)

    # The service is gone, and comes back.
    page.route("**/api/search", lambda route: route.abort(), times=1)
    page.get_by_label("Results").select_option("5")
    page.get_by_text("The service does not answer").wait_for()
    refused = {"status": 429, "headers": {"retry-after": "0.1"}, "body": "{}"}
    page.route("**/api/search", lambda route: route.fulfill(**refused), times=2)
    page.get_by_label("Results").select_option("20")
    wait(page, "!busy && document.getElementById('note').hidden")
    check(page, page.ask(query="a dog", modalities=on), on)


@pytest.mark.slow
def test_a_window_starts_and_stops_at_its_seconds(opened, tmp_path, talk):
    page = opened(tmp_path, dict.fromkeys(WINDOWS, talk), metadata={"segment": 2})
    open_settings(page)
    switch(page, "Show each file once", on=False)
    ask(page, "a dog")
    assert sorted(shown(page)) == ["talk.webm, 0:00–0:02", "talk.webm, 0:02–0:04", "talk.webm, 0:04 to the end"]
    for card in page.locator(".hit").all():
        card.get_by_role("button", name="Play").click()
        card.locator("video").evaluate("video => video.pause()")
    wait(page, "[...document.querySelectorAll('video')].every(video => video.readyState >= 2 && !video.seeking)")
    times = page.locator("video").evaluate_all("all => all.map(video => video.currentTime).sort()")
    assert times == pytest.approx([0, 2, 4], abs=0.15)
    middle = card_of(page, "0:02–0:04").locator("video")
    middle.evaluate("video => { video.muted = true; video.playbackRate = 4; return video.play(); }")
    slide(page, "Home")  # what plays goes on when the hits are ranked anew
    wait(page, "[...document.querySelectorAll('video')].every(video => video.paused)")
    assert middle.evaluate("video => video.currentTime") == pytest.approx(4, abs=0.1)
    middle.evaluate("video => { video.playbackRate = 1; return video.play(); }")  # once more
    assert middle.evaluate("video => video.currentTime") == pytest.approx(2, abs=0.5)


@pytest.mark.slow
def test_back_and_a_reload_bring_what_was_asked_for_and_how(opened, unchanged):
    page = opened(unchanged)
    ask(page, "a dog")
    open_settings(page)
    switch(page, "Sound", on=False)
    page.get_by_text("Filters").click()
    page.get_by_label("File or folder").fill("*.webm")
    page.get_by_label("File or folder").press("Tab")
    slide(page, "Home")
    page.get_by_label("Results").select_option("5")
    settled(page)
    on = ["video", "subtitle"]
    asked = {"modalities": on, "filter": {"paths": ["*.webm"]}, "query_temperature": 0.001}
    hits = page.ask(query="a dog", **asked)
    check(page, hits, on)
    click(page, f"More like this: {hits[0]['name']}")
    page.reload()
    settled(page)
    check(page, page.ask("like", key=hits[0]["key"], **asked), on)
    assert page.locator("#like-name").inner_text() == hits[0]["name"]
    assert page.locator("#settings > summary").inner_text() == "Settings (4 changed)"
    open_settings(page)
    assert page.get_by_label("File or folder").input_value() == "*.webm"
    page.go_back()
    settled(page)
    check(page, hits, on)
    assert not page.locator("#like").is_visible()
    page.go_back()  # to another number of results
    page.go_back()
    settled(page)
    check(page, page.ask(query="a dog", **asked | {"query_temperature": None}), on)
    page.go_forward()
    settled(page)
    click(page, f"More like this: {hits[0]['name']}")
    click(page, "Back to text search")
    check(page, hits, on)


@pytest.mark.slow
def test_more_hits_are_appended_as_long_as_there_are_more(opened, tmp_path):
    page = opened(tmp_path, {f"{number}.webm": b"x" for number in range(45)})
    open_settings(page)
    page.get_by_label("Results").select_option("20")
    settled(page)
    more = page.get_by_role("button", name="More", exact=True)
    more.click()
    page.get_by_text("By name: 40 of 45 clips.").wait_for()
    ask(page, "a dog")
    names = [hit["name"] for hit in page.ask(query="a dog", k=45)]
    for count in (20, 40, 45):
        wait(page, f"document.querySelectorAll('.hit').length == {count}")
        settled(page)
        assert shown(page) == names[:count] and more.is_visible() == (count < 45)
        if count < 45:
            more.click()
    wait(page, "document.activeElement === document.querySelectorAll('.hit')[40]")


@pytest.mark.slow
def test_keys_lead_to_the_words_and_from_hit_to_hit(opened, unchanged):
    page = opened(unchanged, viewport={"width": 1100, "height": 800})
    ask(page, "a dog")
    at = "[...document.querySelectorAll('.hit')].indexOf(document.activeElement)"
    # Four hits stand in a row.
    for key, place in (("ArrowDown", 0), ("ArrowRight", 1), ("ArrowDown", 4), ("ArrowUp", 0), ("ArrowRight", 1)):
        page.keyboard.press(key)
        assert page.evaluate(at) == place
    # What is in a hit belongs to it.
    page.locator(".hit").nth(1).get_by_role("button", name="More like this").focus()
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(at) == 0
    page.keyboard.press("/")
    page.keyboard.type("/a/b")
    assert page.get_by_label("What are you looking for?").input_value() == "/a/b"


def put_stills(place, *hashes):
    """Give files with these hashes a still picture."""
    for sha256 in hashes:
        Stills(place / "gallery").put(sha256, None, as_still(np.zeros((18, 32, 3), np.uint8)))


@pytest.mark.slow
def test_a_hit_shows_what_is_said_or_was_recognised_and_plays_from_there(opened, tmp_path, talk):
    contents = {"dog.webm": talk, "cat.webm": talk, ODD: b"x"}
    write_gallery(tmp_path, contents, {ODD: {"sha256": "0" * 64}})
    put_stills(tmp_path, "0" * 64)
    transcripts = Transcripts(tmp_path / "gallery")
    transcripts.folder.mkdir()
    write_transcript(transcripts.path_of("0" * 64), [Cue(1.0, 2.0, "two dogs bark")], "a model")
    cues = [Cue(1.0, 2.0, "A dóg 🐕 called Karín, <Karin>!"), Cue(4.0, 5.0, "Nothing.")]
    write_transcript(tmp_path / "clips" / "dog.vtt", cues, "a model")
    page = opened(tmp_path)
    ask(page, "two dogs")
    card, heard = card_of(page, "dog.webm"), card_of(page, ODD)
    wait(page, "document.querySelectorAll('.said-words li').length == 2")
    heard.locator(".said-words .machine").wait_for()
    assert heard.locator(".said-words li").inner_text() == "0:01 recognised speech two dogs bark"
    assert "Recognised speech" in heard.locator(".weights").inner_text()
    assert "Subtitles" not in heard.locator(".weights").inner_text()
    assert card.locator(".said-words q").inner_text() == cues[0].text and page.locator("mark").count() == 0
    card.get_by_role("button", name="Play from 0:01").click()
    wait(page, "document.querySelector('video:has(track)').currentTime >= 1")
    page.evaluate("document.querySelector('track').track.mode = 'showing'")
    wait(page, "document.querySelector('track').readyState == 2")
    assert page.evaluate("document.querySelector('track').track.cues.length") == 2
    ask(page, "thunder")
    card.get_by_text("Nothing.").wait_for()  # where no word fits, the first ones
    assert card.locator(".said-words li").count() == 2

    ask(page, 'a dog "karin"')
    assert shown(page) == ["dog.webm"] and page.get_by_role("status").inner_text() == "1 hit in 1 clip."
    assert "2 clips filtered out" in page.locator("#taken").inner_text()
    page.locator(".said-words mark").nth(1).wait_for()
    assert page.locator(".said-words mark").all_inner_texts() == ["Karín", "Karin"]
    ask(page, '"otto"')
    assert shown(page) == []
    page.get_by_text("The filters, or the words in quotation marks, leave none of the 3 clips.").wait_for()


@pytest.mark.slow
def test_videos_show_stills_and_none_is_opened_until_it_is_played(opened, tmp_path, talk):
    # One has a stored still, one and what is no video, and of one it is made.
    widths = {"made.webm": 64, "stored.webm": 32, "broken.webm": 32}
    contents = {"made.webm": talk, "stored.webm": talk, "broken.webm": b"x", "odd.webm": b"y"}
    write_gallery(tmp_path, contents, {"stored.webm": {"sha256": "0" * 64}, "broken.webm": {"sha256": "1" * 64}})
    put_stills(tmp_path, "0" * 64, "1" * 64)
    page = opened(tmp_path)
    ask(page, "a dog")
    card_of(page, "odd.webm").get_by_text("No picture").wait_for()
    for name, width in widths.items():
        still = page.get_by_alt_text(f"A frame of {name}")
        still.scroll_into_view_if_needed()
        wait(page, "[...document.querySelectorAll('.still img')].every(picture => picture.naturalWidth)")
        assert still.evaluate("img => [img.loading, img.naturalWidth]") == ["lazy", width]
    assert page.locator("video").count() == 0

    page.get_by_role("button", name="Play stored.webm").click()
    wait(page, "document.querySelector('video').currentTime > 0")
    assert page.evaluate("document.activeElement === document.querySelector('video')")
    assert len({request.url for request in page.asked if "/media" in request.url}) == 1
    for name in ("broken.webm", "odd.webm"):
        page.get_by_role("button", name=f"Play {name}").click()
        card = card_of(page, name)
        card.get_by_text("This browser cannot play the file.").wait_for()
        assert card.locator("video").count() == 0
        assert card.get_by_role("link", name="Download").get_attribute("download") == name
    assert card_of(page, "broken.webm").locator("img").evaluate("img => img.naturalWidth") == 32


@pytest.mark.slow
def test_a_sound_has_a_picture_of_how_loud_it_is(opened, tmp_path):
    contents = {"bell.wav": wav(tone(16_000)), "broken.wav": b"RIFF"}
    page = opened(tmp_path, contents, metadata={"modalities": ["audio"]})
    ask(page, "a bell")
    bell, broken = (card_of(page, name) for name in contents)
    bell.get_by_role("img", name="Loudness of bell.wav").locator("path[d]").wait_for()
    assert bell.locator(".sound path").get_attribute("d").count("M") == 100
    broken.get_by_text("This browser cannot play the file.").wait_for()
    assert broken.locator(".sound").count() == 0


@pytest.mark.slow
def test_hits_show_when_and_where_they_were_recorded_and_can_be_sorted(opened, tmp_path):
    day = 86_400 * 10**9
    late = day - 1  # the next day already in Tokyo
    records = {name: {"mtime_ns": day} for name in PRESENCE}
    records["dog.webm"] |= {"recorded_ns": 18_062 * day + late, "place": [48.1374, 11.5755]}
    records["cat.webm"] |= {"recorded_ns": 20_119 * day + late}
    write_gallery(tmp_path, records=records)
    page = opened(tmp_path, timezone_id="Asia/Tokyo")
    ask(page, "a dog")
    assert [card_of(page, name).locator(".when").inner_text() for name in ("dog.webm", "cat.webm", "bell.wav")] == [
        "15 Jun 2019 · 48.1374, 11.5755", "31 Jan 2025", "changed 2 Jan 1970",
    ]  # fmt: skip
    page.get_by_text("About this gallery").click()
    assert "2 Jan 1970 to 31 Jan 2025;" in page.locator("#counts").inner_text()
    open_settings(page)
    page.get_by_label("Order").select_option("Newest first")
    settled(page)
    assert shown(page)[:2] == ["cat.webm", "dog.webm"]
    page.locator(".why > summary").first.press("Enter")
    assert page.locator(".score").first.is_visible()
    page.reload()
    settled(page)
    check(page, page.ask(query="a dog", sort="date"))


@pytest.mark.slow
def test_copies_are_one_hit_unless_that_is_switched_off(opened, tmp_path):
    write_gallery(tmp_path, records=dict.fromkeys(("dog.webm", "cat.webm", "silent.webm"), {"sha256": "f" * 64}))
    page = opened(tmp_path)
    settled(page)
    assert sorted(shown(page)) == sorted(PRESENCE.keys() - {"cat.webm", "silent.webm"})
    ask(page, "a dog")
    assert "and 2 copies: cat.webm, silent.webm" in card_of(page, "dog.webm").inner_text() and len(shown(page)) == 3
    open_settings(page)
    switch(page, "Show copies once", on=False)
    assert len(shown(page)) == 5 and page.get_by_text("copies:").count() == 0
    page.reload()
    settled(page)
    assert len(shown(page)) == 5


@pytest.mark.slow
def test_only_what_the_filters_leave_is_shown(opened, unchanged):
    page = opened(unchanged, timezone_id="Asia/Tokyo")
    ask(page, "a dog")
    open_settings(page)
    page.get_by_text("Filters").click()
    page.get_by_label("Sound", exact=True).nth(1).select_option("no sound")
    settled(page)
    check(page, page.ask(query="a dog", filter={"lacks": ["audio"]}))
    assert page.get_by_role("status").inner_text() == "2 hits in 2 clips."
    assert page.locator("#taken").inner_text() == "3 clips filtered out."
    assert "Filters (1 active)" in page.locator("#filters summary").inner_text()
    page.get_by_label("File or folder").fill("nowhere/**, s*")
    settled(page)
    assert shown(page) == ["silent.webm"]
    for label, value in (("First day", "2026-01-31"), ("Last day", "2026-01-31")):
        page.get_by_label(label).fill(value)
    page.get_by_text("The filters leave none of the 5 clips.").wait_for()  # all were changed today
    posts = [request.post_data_json for request in page.asked if request.method == "POST"]
    wanted = posts[-1]["filter"]  # days in UTC, as dates are shown, wherever the page is looked at
    assert (wanted["after"], wanted["before"]) == ("2026-01-31T00:00:00.000Z", "2026-02-01T00:00:00.000Z")
    page.get_by_label("Minimum, seconds").fill("9")
    page.get_by_label("Maximum, seconds").fill("2")
    page.get_by_text("No clip lasts at least 9 and at most 2 seconds. Swap them?").wait_for()
    click(page, "Clear")
    wait(page, "!busy && document.getElementById('note').hidden")
    check(page, page.ask(query="a dog"))


@pytest.mark.slow
def test_a_file_of_many_windows_does_not_crowd_out_others(opened, tmp_path):
    names = [f"talk.webm#t={start},{start + 1}" for start in range(12)]
    page = opened(tmp_path, dict.fromkeys([*names, "short.webm"], b"x"), metadata={"segment": 1})
    ask(page, "a dog")
    assert page.locator("#status").inner_text() == "2 hits in 2 files."
    open_settings(page)
    card = card_of(page, "talk.webm")
    assert card.locator("p", has_text="Best of 12 windows of this file.").is_visible()
    click(card, "Show the windows of talk.webm")
    numbers = card.locator(".windows .score")
    for count, temperature in ((10, None), (12, 0.001)):
        wait(page, f"document.querySelectorAll('.windows .hit').length == {count}")
        found = page.ask(query="a dog", k=13, query_temperature=temperature)
        best = [hit for hit in found if hit["name"] == "talk.webm"][:count]
        assert numbers.all_text_contents() == [f"{hit['score']:.3f}" for hit in best]
        first = f"0:{best[0]['start']:02.0f}–0:{best[0]['stop']:02.0f}"
        assert card.locator(".windows h3").first.inner_text() == first
        if count < 12:
            click(card, "More windows")
            slide(page, "Home")  # they follow what is asked for
    assert not card.get_by_role("button", name="More windows").is_visible()
    click(card, "Hide the windows of talk.webm")
    wait(page, "document.querySelectorAll('.windows .hit').length == 0")
    switch(page, "Show each file once", on=False)
    assert len(shown(page)) == 13 and page.locator("#status").inner_text() == "13 hits in 13 clips."


@pytest.mark.slow
def test_the_token_is_asked_for_once_and_why_a_file_cannot_be_had_is_reported(opened, tmp_path, talk):
    picture = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")
    page = opened(tmp_path, {"talk.webm": talk, "dot.gif": picture}, secret=SECRET)
    refused = {"status": 503, "json": {"error": "The engine is away."}}
    page.route("**/media*", lambda route: route.fulfill(**refused))
    token = page.get_by_label("Access token")
    for given in ("wrong", "ünïcode"):
        token.fill(given)
        page.keyboard.press("Enter")
        page.locator("#login-problem:not(:empty)").wait_for()
        assert not page.locator("#search").is_visible()
        page.evaluate("document.getElementById('login-problem').textContent = ''")
    token.fill(SECRET)
    page.keyboard.press("Enter")
    ask(page, "a dog")
    cards = [card_of(page, name) for name in ("talk.webm", "dot.gif")]
    click(cards[0], "Play talk.webm")
    for card in cards:
        card.get_by_text("The engine is away.").wait_for()
    refused["status"], refused["json"] = 429, {}
    for card in cards:
        click(card, "Try again")
        card.get_by_text("The service answered with error 429.").wait_for()
    page.unroute("**/media*")
    for card in cards:
        click(card, "Try again")
    # Players send the token, too.
    loaded = "document.querySelector('video')?.readyState >= 1 && document.querySelector('img')?.naturalWidth == 1"
    wait(page, loaded)
    page.reload()
    page.locator(".hit").first.wait_for()
    kept = page.evaluate("[document.cookie, JSON.stringify({...localStorage, ...sessionStorage}), location.href]")
    assert SECRET not in "".join(kept)


@pytest.mark.slow
def test_it_fits_a_phone(opened, tmp_path):
    long = "a_very_long_name_without_any_space_" * 6 + ".webm"
    metadata = {"model": "<img src=x>" + "m" * 300, "modalities": list(SIX)}
    page = opened(tmp_path, {long: b"x"}, metadata=metadata, viewport={"width": 320, "height": 640})
    ask(page, "w" * 300)
    name = page.locator(".hit .name")
    assert name.inner_text() == f"{long[:28]}…{long[-28:]}" and name.get_attribute("title") == long
    open_settings(page)
    page.get_by_text("Filters").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    assert page.locator("img").count() == 0  # what a gallery says of itself is text, too


def luminance(colour):
    """Of a colour of CSS, nearly as WCAG 2 has it."""
    red, green, blue = ((part / 255) ** 2.2 for part in ImageColor.getrgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_words_can_be_read_and_eight_modalities_distinguished_in_light_and_dark_with_every_colour_vision():
    schemes = re.findall(r":root \{(.*?)\}", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    grounds = []
    for scheme in schemes:
        colours = dict(re.findall(r"--([\w-]+): (#\w+)", scheme))
        further = [colours[f"further-{place}"] for place in range(8)]
        assert least_difference([colours[name] for name in LABELS] + further[:5]) > 9
        assert least_difference(further) > 15
        for front, back in product(("ink", "soft"), ("ground", "card")):
            dark, light = sorted(luminance(colours[name]) for name in (front, back))
            assert (light + 0.05) / (dark + 0.05) >= 4.5  # of WCAG 2, level AA
        grounds.append(luminance(colours["ground"]))
    light, dark = grounds
    assert light > 0.5 > dark


@pytest.mark.slow
def test_any_modalities_are_named_switched_filtered_and_weighed(opened, tmp_path):
    page = opened(tmp_path, metadata={"modalities": list(SIX), "model": "light"})
    ask(page, "a dog")
    check(page, page.ask(query="a dog"))
    header = page.locator("header").text_content()
    assert "no actions, colours or people" in header and "scalar index FOLDER" in header  # on this machine
    for label in ("subtitles", "title", "words on screen", "field notes"):
        assert f" % with {label}" in page.locator("#counts").text_content()
    parts = "all => new Set(all.map(line => getComputedStyle(line).getPropertyValue('--part'))).size"
    assert page.locator(".weights li[data-modality]").evaluate_all(parts) == len(SIX)  # colours
    open_settings(page)
    page.get_by_text("Filters").click()
    switch(page, "Words on screen", on=False)
    on = [name for name in SIX if name != "screen"]
    check(page, page.ask(query="a dog", modalities=on), on)
    page.get_by_label("Field notes", exact=True).nth(1).select_option("no field notes")
    settled(page)
    check(page, page.ask(query="a dog", modalities=on, filter={"lacks": ["field_notes"]}), on)


def test_every_control_has_a_name_and_every_id_is_there():
    text = PAGE.read_text(encoding="utf-8")
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids)) and len(ids) > 20
    assert set(re.findall(r'\$\("([^"]+)"\)', text)) <= set(ids)
    assert set(re.findall(r'\bfor="([^"]+)"', text)) <= set(ids)
    assert "http://" not in text and "https://" not in text and "innerHTML" not in text
