"""The page of the search service, in a browser."""

import base64
import io
import re
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from PIL import Image
from starlette.testclient import TestClient

from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.gallery.words.transcripts import Cue, Transcripts, write_transcript
from scalar_retrieval.search.service.app import PAGE
from tests.colours import least_difference
from tests.media_corpus import media, tone, wav
from tests.search.serving import PRESENCE, SECRET, make_app, recorded, serving, write_gallery

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
def open_page(browser):
    """Opens an address; that another host is asked for something, and all that the page complains of, is an error."""
    hosts, complaints, pages = set(), [], []

    def open_page(address, **options):
        page = browser.new_page(reduced_motion="reduce", **options)
        page.set_default_timeout(20_000)
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        pages.append((page, urlsplit(address).netloc))
        return page

    yield open_page
    for page, _ in pages:
        page.close()
    assert hosts <= {host for _, host in pages} | {""}  # "" of what is in the page itself
    assert [line for line in complaints if not line.startswith("Failed to load resource")] == []


@contextmanager
def served(place, contents=None, segment=None, metadata=None, **options):
    if not (place / "gallery").exists():
        write_gallery(place, contents, segment, **(metadata or {}))
    app = make_app(place, **options)
    with serving(app) as address, TestClient(make_app(place), address) as client:
        app.ask = lambda path="search", **body: client.post(f"/api/{path}", json=body).json()["hits"]
        yield address, app


def open_settings(page):
    page.locator("#settings > summary").click()


def ask(page, words):
    page.get_by_label("What are you looking for?").fill(words)
    page.keyboard.press("Enter")
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


def reported(hit, on=SIX):
    """What the page says of the modalities of a hit."""
    lines = []
    for name, label in ((name, SIX[name]) for name in hit["presence"]):
        if hit["presence"][name]:
            lines.append(f"{label} {hit['weights'][name] * 100:.0f} %" if name in on else f"{label} not used")
    return lines


def absent(hit):
    """What the page says of what a hit lacks."""
    missing = [SIX[name].lower() for name in hit["presence"] if not hit["presence"][name]]
    return f"Absent: {', '.join(missing)}" if missing else ""


def check(page, hits, on=SIX):
    assert shown(page) == [hit["name"] for hit in hits]
    assert page.locator(".hit .rank").all_inner_texts() == [str(hit["rank"]) for hit in hits]
    for card, hit in zip(page.locator(".hit").all(), hits, strict=True):
        why = card.locator(".why")
        assert not why.locator(".score").is_visible()  # until it is asked for
        why.evaluate("why => { why.open = true; }")  # a click would move the focus
        assert why.locator(".score").inner_text() == f"{hit['score']:.3f}"
        assert why.locator(".lacking").inner_text() == absent(hit)
        assert card.locator(".weights li:visible").all_inner_texts() == reported(hit, on)
        mark = "scale => parseFloat(scale.firstChild.style.left) * scale.clientWidth / 100"
        width = card.locator(".scale").evaluate("scale => scale.clientWidth")  # from -1 to 1, 0 in the middle
        assert card.locator(".scale").evaluate(mark) == pytest.approx(width * (1 + hit["score"]) / 2, abs=1)
        whole = card.locator(".bar").evaluate("bar => bar.clientWidth")
        for name, weight in hit["weights"].items():
            width = card.locator(f".bar [data-modality={name}]").evaluate(
                "piece => piece.getBoundingClientRect().width"
            )
            assert width == pytest.approx(whole * weight, abs=6)  # gaps are between the pieces
        why.evaluate("why => { why.open = false; }")


def test_a_query_is_typed_and_its_hits_are_shown(open_page, unchanged):
    with served(unchanged) as (address, app):
        page = open_page(address)
        ask(page, "a dog")
        check(page, app.ask(query="a dog"))
        assert ODD in shown(page) and page.locator(".hit b").count() == 0  # names are text
        assert not page.get_by_label("Query temperature", exact=True).is_visible()  # hits come first
        open_settings(page)
        page.get_by_label("Query temperature", exact=True).press("Home")
        settled(page)
        check(page, app.ask(query="a dog", query_temperature=0.001))
        assert app.model.num_texts == 1
        assert page.get_by_role("status").inner_text() == "5 hits in 5 clips."
        page.get_by_text("How exact is this?").click()
        assert re.search("exact scores .* (all|[1-5] of) 5 clips.* It took", page.locator("#proof").inner_text())

        page.route("**/api/search", lambda route: route.fulfill(status=200, body='{"hits": ['), times=1)
        page.get_by_label("Results").select_option("5")
        page.get_by_text("The answer of the service was interrupted").wait_for()
        page.get_by_label("Results").select_option("20")
        wait(page, "!busy && document.getElementById('note').hidden")
        assert page.evaluate("midnight('275760-09-14')") == "275760-09-14"  # which is no moment of JavaScript
        seconds = {5: "0:05", 5.5: "0:05.5", 59.94: "0:59.9", 59.96: "1:00", 119.98: "2:00", 3599.99: "1:00:00"}
        assert [page.evaluate(f"clock({number})") for number in seconds] == list(seconds.values())


@pytest.mark.slow
def test_clips_are_found_weighed_and_compared(open_page, unchanged):
    with served(unchanged) as (address, app):
        page = open_page(address)
        page.get_by_text("Type what you are looking for. By name: 5 of 5 clips.").wait_for()
        assert page.evaluate("document.activeElement.id") == "query"
        assert shown(page) == sorted(PRESENCE) and not page.locator(".meters").first.is_visible()
        ask(page, "a dog")
        open_settings(page)
        assert "subtitles are no text" in page.locator(".hit", has_text="silent.webm").locator(".problem").inner_text()

        slider = page.get_by_label("Query temperature", exact=True)
        slider.press("End")
        settled(page)
        assert slider.get_attribute("aria-valuetext") == "equal weights"
        page.get_by_role("button", name="Reset to the gallery’s default query temperature").click()
        settled(page)
        assert slider.get_attribute("aria-valuetext") == "0.1 (default)"

        page.get_by_role("checkbox", name="Sound").uncheck()
        settled(page)
        check(page, app.ask(query="a dog", modalities=["video", "subtitle"]), on=("video", "subtitle"))
        for name in ("Picture", "Subtitles"):
            page.get_by_role("checkbox", name=name).uncheck()
        settled(page)
        assert shown(page) == [] and "Select at least one modality" in page.get_by_role("status").inner_text()
        for name in LABELS.values():
            page.get_by_role("checkbox", name=name).check()
        settled(page)

        first = app.ask(query="a dog")[0]
        page.get_by_role("button", name=f"More like this: {first['name']}").click()
        settled(page)
        check(page, app.ask("like", key=first["key"]))
        assert page.locator("#like-name").inner_text() == first["name"]
        page.get_by_role("button", name="Back to text search").click()
        settled(page)
        assert shown(page)[0] == first["name"] and not page.locator("#like").is_visible()

        # The service is gone, and comes back.
        page.route("**/api/search", lambda route: route.abort(), times=1)
        page.get_by_label("Results").select_option("5")
        page.get_by_text("The service does not answer").wait_for()
        refused = {"status": 429, "headers": {"retry-after": "0.1"}, "body": "{}"}
        page.route("**/api/search", lambda route: route.fulfill(**refused), times=2)
        page.get_by_label("Results").select_option("20")
        wait(page, "!busy && document.getElementById('note').hidden")
        assert shown(page) == [hit["name"] for hit in app.ask(query="a dog")]


@pytest.mark.slow
def test_a_window_starts_and_stops_at_its_seconds(open_page, tmp_path, talk):
    with served(tmp_path, dict.fromkeys(WINDOWS, talk), segment=2) as (address, _):
        page = open_page(address)
        open_settings(page)
        page.get_by_label("Show each file once").uncheck()
        ask(page, "a dog")
        assert sorted(shown(page)) == ["talk.webm, 0:00–0:02", "talk.webm, 0:02–0:04", "talk.webm, 0:04 to the end"]
        middle = page.locator(".hit", has_text="0:02–0:04").locator("video")
        for card in page.locator(".hit").all():
            card.get_by_role("button", name="Play").click()
            card.locator("video").evaluate("video => video.pause()")
        wait(page, "[...document.querySelectorAll('video')].every(video => video.readyState >= 2 && !video.seeking)")
        times = page.locator("video").evaluate_all("all => all.map(video => video.currentTime).sort()")
        assert times == pytest.approx([0, 2, 4], abs=0.15)
        middle.evaluate("video => { video.muted = true; video.playbackRate = 4; return video.play(); }")
        # What plays goes on when the hits are ranked anew.
        page.get_by_label("Query temperature", exact=True).fill("20")
        settled(page)
        wait(page, "[...document.querySelectorAll('video')].every(video => video.paused)")
        assert middle.evaluate("video => video.currentTime") == pytest.approx(4, abs=0.1)
        middle.evaluate("video => { video.playbackRate = 1; return video.play(); }")  # once more
        assert middle.evaluate("video => video.currentTime") == pytest.approx(2, abs=0.5)


@pytest.mark.slow
def test_back_and_a_reload_bring_what_was_asked_for_and_how(open_page, unchanged):
    with served(unchanged) as (address, app):
        page = open_page(address)
        ask(page, "a dog")
        open_settings(page)
        page.get_by_role("checkbox", name="Sound").uncheck()
        page.get_by_text("Filters").click()
        page.get_by_label("File or folder").fill("*.webm")
        page.get_by_label("File or folder").press("Tab")
        page.get_by_label("Query temperature", exact=True).press("Home")
        page.get_by_label("Results").select_option("5")
        settled(page)
        asked = {"modalities": ["video", "subtitle"], "filter": {"paths": ["*.webm"]}}
        asked |= {"query_temperature": 0.001, "k": 5}
        on = ("video", "subtitle")
        check(page, app.ask(query="a dog", **asked), on)
        first = app.ask(query="a dog", **asked)[0]
        page.get_by_role("button", name=f"More like this: {first['name']}").click()
        settled(page)
        like = app.ask("like", key=first["key"], **asked)
        check(page, like, on)
        page.reload()
        settled(page)
        check(page, like, on)
        assert page.locator("#settings > summary").inner_text() == "Settings (4 changed)"
        open_settings(page)
        assert page.get_by_label("File or folder").input_value() == "*.webm"
        page.go_back()
        settled(page)
        check(page, app.ask(query="a dog", **asked), on)
        assert not page.locator("#like").is_visible()
        for change in ({"k": 10}, {"query_temperature": None}):
            page.go_back()
            settled(page)
            asked |= change
            check(page, app.ask(query="a dog", **asked), on)
        page.go_forward()
        settled(page)
        check(page, app.ask(query="a dog", **asked | {"query_temperature": 0.001}), on)


@pytest.mark.slow
def test_more_hits_are_appended_as_long_as_there_are_more(open_page, tmp_path):
    with served(tmp_path, {f"{number}.webm": b"x" for number in range(45)}) as (address, app):
        page = open_page(address)
        open_settings(page)
        page.get_by_label("Results").select_option("20")
        settled(page)
        page.get_by_role("button", name="More", exact=True).click()
        page.get_by_text("By name: 40 of 45 clips.").wait_for()
        assert shown(page) == sorted(f"{number}.webm" for number in range(45))[:40]
        ask(page, "a dog")
        hits = app.ask(query="a dog", k=45)
        for count in (20, 40, 45):
            settled(page)
            wait(page, f"document.querySelectorAll('.hit').length == {count}")
            check(page, hits[:count])
            assert page.get_by_role("button", name="More", exact=True).is_visible() == (count < 45)
            if count < 45:
                page.get_by_role("button", name="More", exact=True).click()
        wait(page, "document.activeElement === document.querySelectorAll('.hit')[40]")


@pytest.mark.slow
def test_keys_lead_to_the_words_and_from_hit_to_hit(open_page, unchanged):
    with served(unchanged) as (address, _):
        page = open_page(address, viewport={"width": 1100, "height": 800})
        ask(page, "a dog")
        at = "[...document.querySelectorAll('.hit')].indexOf(document.activeElement)"
        keys = (("ArrowDown", 0), ("ArrowRight", 1), ("ArrowDown", 4), ("ArrowUp", 0), ("ArrowRight", 1))
        boxes = [hit.bounding_box() for hit in page.locator(".hit").all()]
        assert [box["y"] == boxes[0]["y"] for box in boxes] == [True] * 4 + [False]  # a grid
        for key, place in keys:
            page.keyboard.press(key)
            assert page.evaluate(at) == place
        page.keyboard.press("Tab")  # what is in a hit belongs to it
        page.locator(".hit").nth(1).get_by_role("button", name="More like this").focus()
        page.keyboard.press("ArrowLeft")
        assert page.evaluate(at) == 0
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "query"
        page.keyboard.type("/a/b")
        assert page.get_by_label("What are you looking for?").input_value() == "/a/b"


def put_stills(place, *names, hashes=None):
    """Still pictures of files, of which those with the same hash are copies."""
    picture = io.BytesIO()
    Image.new("RGB", (32, 18), "red").save(picture, "jpeg")
    with GalleryWriter(place / "gallery") as writer:
        for number, name in enumerate(names):
            sha256 = (hashes or {}).get(name, f"{number:064d}")
            writer.put_files([replace(recorded(place / "clips" / name), sha256=sha256)])
            writer.stills.put(sha256, None, picture.getvalue())
        writer.commit()


@pytest.mark.slow
def test_a_hit_shows_what_is_said_or_was_recognised_and_plays_from_there(open_page, tmp_path, talk):
    with served(tmp_path, {"dog.webm": talk, "cat.webm": talk, ODD: b"x"}) as (address, _):
        put_stills(tmp_path, ODD)
        transcripts = Transcripts(tmp_path / "gallery")
        transcripts.folder.mkdir()
        write_transcript(transcripts.path_of("0" * 64), [Cue(1.0, 2.0, "two dogs bark")], "a model")
        srt = "1\n00:00:01,000 --> 00:00:02,000\nA dog, &lt;b&gt;.\n\n2\n00:00:04,000 --> 00:00:05,000\nNothing.\n"
        (tmp_path / "clips" / "dog.srt").write_text(srt)
        page = open_page(address)
        ask(page, "two dogs")
        card, heard = (page.locator(".hit", has_text=name) for name in ("dog.webm", ODD))
        card.get_by_text("A dog, <b>.").wait_for()
        wait(page, "document.querySelectorAll('.said-words li').length == 2")  # no longer those of the list
        heard.locator(".said-words .machine").wait_for()
        assert heard.locator(".said-words li").inner_text() == "0:01 recognised speech two dogs bark"
        assert "Recognised speech" in heard.locator(".weights").inner_text()
        assert "Subtitles" not in heard.locator(".weights").inner_text()
        assert card.locator(".said-words li").all_inner_texts() == ["0:01 A dog, <b>."]
        card.get_by_role("button", name="Play from 0:01").click()
        wait(page, "document.querySelector('video:has(track)').currentTime >= 1")
        page.evaluate("document.querySelector('track').track.mode = 'showing'")
        wait(page, "document.querySelector('track').readyState == 2")
        texts = page.evaluate("[...document.querySelector('track').track.cues].map(cue => cue.text)")
        assert texts == ["A dog, &lt;b&gt;.", "Nothing."]
        ask(page, "thunder")
        card.get_by_text("Nothing.").wait_for()  # where no word fits, the first ones
        assert card.locator(".said-words li").count() == 2
        assert page.locator(".hit", has_text="cat.webm").locator(".said-words li").count() == 0


@pytest.mark.slow
def test_what_is_quoted_is_found_and_marked(open_page, tmp_path, talk):
    names = {name: talk for name in ("dog.webm", "<b>&amp; \"odd\" 'name'.webm")}
    with served(tmp_path, names | {"cat.webm": talk}) as (address, _):
        for name, text in zip(names, ("A dóg 🐕 called Karín, &lt;Karin>!", "No dog."), strict=True):
            srt = f"1\n00:00:01,000 --> 00:00:02,000\n{text}\n"
            (tmp_path / "clips" / name).with_suffix(".srt").write_text(srt)
        page = open_page(address)
        ask(page, 'a dog "karin"')
        assert shown(page) == ["dog.webm"]
        assert page.get_by_role("status").inner_text() == "1 hit in 1 clip."
        assert "2 clips filtered out" in page.locator("#taken").inner_text()
        page.locator(".said-words mark").nth(1).wait_for()
        assert page.locator(".said-words mark").all_inner_texts() == ["Karín", "Karin"]
        assert page.locator(".said-words q").inner_text() == "A dóg 🐕 called Karín, <Karin>!"
        ask(page, '"otto"')
        assert shown(page) == []
        page.get_by_text("The filters, or the words in quotation marks, leave none of the 3 clips.").wait_for()
        ask(page, "karin dog")
        assert len(shown(page)) == 3 and page.locator("mark").count() == 0


@pytest.mark.slow
def test_videos_show_stills_and_none_is_opened_until_it_is_played(open_page, tmp_path, talk):
    # Two have a stored still, of one there is none, and the others are made.
    contents = {f"{number}.webm": talk for number in range(17)}
    contents |= {"stored.webm": talk, "broken.webm": b"x", "odd.webm": b"y"}
    with served(tmp_path, contents) as (address, _):
        put_stills(tmp_path, "stored.webm", "broken.webm")
        page = open_page(address)
        asked = []
        page.on("request", lambda request: asked.append(request.url) if "/media" in request.url else None)
        stills = []
        page.on("response", lambda answer: stills.append(answer.status) if "/still" in answer.url else None)
        ask(page, "a dog")
        for card in page.locator(".hit").all():
            card.scroll_into_view_if_needed()
        stored, broken, odd = (page.locator(".hit", has_text=name) for name in list(contents)[-3:])
        odd.get_by_text("No picture").wait_for()
        wait(page, "[...document.querySelectorAll('.still img')].every(picture => picture.naturalWidth)")
        widths = page.locator(".still img").evaluate_all("all => all.map(picture => picture.naturalWidth)")
        assert sorted(widths) == [32, 32, *[64] * 17]
        still = stored.get_by_alt_text("A frame of stored.webm")
        assert still.get_attribute("loading") == "lazy" and still.evaluate("img => img.naturalWidth") == 32
        assert asked == [] and page.locator("video").count() == 0

        stored.get_by_role("button", name="Play stored.webm").click()
        wait(page, "document.querySelector('video').currentTime > 0")
        assert page.evaluate("document.activeElement === document.querySelector('video')")
        assert len(set(asked)) == 1 and stills.count(404) == 1
        for card, name in ((broken, "broken.webm"), (odd, "odd.webm")):
            card.get_by_role("button", name=f"Play {name}").click()
            card.get_by_text("This browser cannot play the file.").wait_for()
            assert card.locator("video").count() == 0
            link = card.get_by_role("link", name="Download")
            assert link.get_attribute("download") == name and link.get_attribute("href").endswith("/media")
        assert broken.locator("img").evaluate("img => img.naturalWidth") == 32


@pytest.mark.slow
def test_a_sound_has_a_picture_of_how_loud_it_is(open_page, tmp_path):
    contents = {"bell.wav": wav(tone(16_000)), "broken.wav": b"RIFF"}
    with served(tmp_path, contents, metadata={"modalities": ["audio"]}) as (address, app):
        page, refused = open_page(address), []
        page.on("response", lambda answer: refused.append(answer.url) if answer.status >= 400 else None)
        ask(page, "a bell")
        bell, broken = (page.locator(".hit", has_text=name) for name in contents)
        bell.get_by_role("img", name="Loudness of bell.wav").locator("path[d]").wait_for()
        found = app.ask(query="a bell")
        assert {hit["name"]: hit["loudness"] is not None for hit in found} == dict.fromkeys(contents, True)
        assert bell.locator(".sound path").get_attribute("d").count("M") == 100
        box, sound = (bell.locator(name).bounding_box() for name in (".player", ".sound"))
        assert box["height"] > sound["height"] > 20 and box["width"] > sound["width"] > 100
        broken.get_by_text("This browser cannot play the file.").wait_for()
        assert broken.locator(".sound").count() == 0
        assert refused == []  # nothing is asked for that is not there


@pytest.mark.slow
def test_hits_show_when_and_where_they_were_recorded_and_can_be_sorted(open_page, tmp_path):
    with served(tmp_path) as (address, app):
        days = {"dog.webm": "2019-06-15", "cat.webm": "2025-01-31", "silent.webm": None}
        files = Gallery.open(tmp_path / "gallery").files
        with GalleryWriter(tmp_path / "gallery") as writer:
            for path, file in files.items():
                day = days.get(Path(path).name)
                moment = None if day is None else int(datetime.fromisoformat(f"{day}T23:00Z").timestamp()) * 10**9
                place = {"place": [48.1374, 11.5755]} if day == "2019-06-15" else {}
                writer.put_files([replace(file, mtime_ns=86_400 * 10**9, recorded_ns=moment, **place)])
            writer.commit()
        page = open_page(address, timezone_id="Asia/Tokyo")
        ask(page, "a dog")
        found = {}
        for card in page.locator(".hit").all():
            found[card.locator(".name").inner_text()] = card.locator(".when").inner_text()
        assert found["dog.webm"] == "15 Jun 2019 · 48.1374, 11.5755"
        assert found["cat.webm"] == "31 Jan 2025" and found["silent.webm"] == "changed 2 Jan 1970"
        page.get_by_text("About this gallery").click()
        assert "5 files, 5 clips" in page.locator("#counts").inner_text()
        assert "2 Jan 1970 to 31 Jan 2025;" in page.locator("#counts").inner_text()
        open_settings(page)
        page.get_by_label("Order").select_option("Newest first")
        settled(page)
        assert shown(page)[:2] == ["cat.webm", "dog.webm"]
        page.locator(".why > summary").first.press("Enter")
        assert page.locator(".score").first.is_visible()
        page.reload()
        settled(page)
        check(page, app.ask(query="a dog", sort="date"))


@pytest.mark.slow
def test_copies_are_one_hit_unless_that_is_switched_off(open_page, tmp_path):
    with served(tmp_path) as (address, _):
        same = dict.fromkeys(("dog.webm", "cat.webm", "silent.webm"), "f" * 64)
        put_stills(tmp_path, *same, hashes=same)
        page = open_page(address)
        settled(page)
        assert sorted(shown(page)) == sorted(PRESENCE.keys() - {"cat.webm", "silent.webm"})
        ask(page, "a dog")
        dog = page.locator(".hit", has_text="dog.webm")
        assert dog.get_by_text("and 2 copies: cat.webm, silent.webm").is_visible() and len(shown(page)) == 3
        open_settings(page)
        page.get_by_label("Show copies once").uncheck()
        settled(page)
        assert sorted(shown(page)) == sorted(PRESENCE) and page.get_by_text("copies:").count() == 0
        page.reload()
        settled(page)
        assert len(shown(page)) == 5


@pytest.mark.slow
def test_only_what_the_filters_leave_is_shown(open_page, unchanged):
    with served(unchanged) as (address, app):
        page = open_page(address, timezone_id="Asia/Tokyo")
        asked = []
        page.on("request", lambda request: asked.append(request) if request.method == "POST" else None)
        ask(page, "a dog")
        open_settings(page)
        page.get_by_text("Filters").click()
        page.get_by_label("Sound", exact=True).nth(1).select_option("no sound")
        settled(page)
        check(page, app.ask(query="a dog", filter={"lacks": ["audio"]}))
        assert page.get_by_role("status").inner_text() == "2 hits in 2 clips."
        assert page.locator("#taken").inner_text() == "3 clips filtered out."
        assert "Filters (1 active)" in page.locator("#filters summary").inner_text()
        page.get_by_label("File or folder").fill("nowhere/**, s*")
        settled(page)
        assert shown(page) == ["silent.webm"]
        page.get_by_label("First day").fill("2026-01-31")
        page.get_by_label("Last day").fill("2026-01-31")
        page.get_by_text("The filters leave none of the 5 clips.").wait_for()  # all were changed today
        wanted = asked[-1].post_data_json["filter"]  # days in UTC, as dates are shown, wherever the page is looked at
        assert (wanted["after"], wanted["before"]) == ("2026-01-31T00:00:00.000Z", "2026-02-01T00:00:00.000Z")
        page.get_by_label("Minimum, seconds").fill("9")
        page.get_by_label("Maximum, seconds").fill("2")
        page.get_by_text("No clip lasts at least 9 and at most 2 seconds. Swap them?").wait_for()
        page.get_by_role("button", name="Clear").click()
        wait(page, "!busy && document.getElementById('note').hidden")
        check(page, app.ask(query="a dog"))


@pytest.mark.slow
def test_a_file_of_many_windows_does_not_crowd_out_others(open_page, tmp_path):
    names = [f"talk.webm#t={start},{start + 1}" for start in range(12)]
    with served(tmp_path, dict.fromkeys([*names, "short.webm"], b"x"), segment=1) as (address, app):
        page = open_page(address)
        ask(page, "a dog")
        assert page.locator("#status").inner_text() == "2 hits in 2 files."
        open_settings(page)
        card = page.locator("#hits > .hit", has_text="talk.webm")
        assert card.locator("p", has_text="Best of 12 windows of this file.").is_visible()
        best = [hit for hit in app.ask(query="a dog", k=13) if hit["name"] == "talk.webm"]
        card.get_by_role("button", name="Show the windows of talk.webm").click()
        wait(page, "document.querySelectorAll('.windows .hit').length == 10")
        assert (
            card.locator(".windows h3").first.inner_text() == f"0:{best[0]['start']:02.0f}–0:{best[0]['stop']:02.0f}"
        )
        numbers = card.locator(".windows .score")
        assert numbers.all_text_contents() == [f"{hit['score']:.3f}" for hit in best[:10]]
        card.get_by_role("button", name="More windows").click()
        wait(page, "document.querySelectorAll('.windows .hit').length == 12")
        assert not card.get_by_role("button", name="More windows").is_visible()
        page.get_by_label("Query temperature", exact=True).press("Home")  # they follow what is asked for
        settled(page)
        best = [hit for hit in app.ask(query="a dog", k=13, query_temperature=0.001) if hit["name"] == "talk.webm"]
        assert numbers.all_text_contents() == [f"{hit['score']:.3f}" for hit in best]
        card.get_by_role("button", name="Hide the windows of talk.webm").click()
        wait(page, "document.querySelectorAll('.windows .hit').length == 0")
        page.get_by_label("Show each file once").uncheck()
        settled(page)
        assert len(shown(page)) == 13 and page.locator("#status").inner_text() == "13 hits in 13 clips."


@pytest.mark.slow
def test_why_a_file_cannot_be_had_now_is_reported_and_it_can_be_tried_again(open_page, tmp_path, talk):
    picture = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")
    with served(tmp_path, {"talk.webm": talk, "dot.gif": picture}, secret=SECRET) as (address, app):
        page = open_page(address)
        refused = {"status": 503, "json": {"error": "The engine is away."}}
        page.route("**/media*", lambda route: route.fulfill(**refused))
        page.get_by_label("Access token").fill(SECRET)
        page.keyboard.press("Enter")
        ask(page, "a dog")
        cards = [page.locator(".hit", has_text=name) for name in ("talk.webm", "dot.gif")]
        cards[0].get_by_role("button", name="Play talk.webm").click()
        for card in cards:
            card.get_by_text("The engine is away.").wait_for()
        refused["status"], refused["json"] = 429, {}
        for card in cards:
            card.get_by_role("button", name="Try again").click()
            card.get_by_text("The service answered with error 429.").wait_for()
        page.unroute("**/media*")
        for card in cards:
            card.get_by_role("button", name="Try again").click()
        wait(
            page,
            "document.querySelector('video')?.readyState >= 1 && document.querySelector('img')?.naturalWidth == 1",
        )
        assert not page.locator("#login").is_visible()


@pytest.mark.slow
def test_the_token_is_asked_for_once(open_page, tmp_path):
    with served(tmp_path, {"bell.wav": wav(tone(16_000))}, secret=SECRET) as (address, _):
        page = open_page(address)
        token = page.get_by_label("Access token")
        for given in ("wrong", "ünïcode"):
            token.fill(given)
            page.keyboard.press("Enter")
            page.locator("#login-problem:not(:empty)").wait_for()
            assert not page.locator("#search").is_visible()
            page.evaluate("document.getElementById('login-problem').textContent = ''")
        token.fill(SECRET)
        page.keyboard.press("Enter")
        ask(page, "a bell")
        wait(page, "document.querySelector('audio').readyState >= 1")  # players send it too
        page.reload()
        page.locator(".hit").wait_for()
        kept = page.evaluate("[document.cookie, JSON.stringify({...localStorage, ...sessionStorage}), location.href]")
        assert SECRET not in "".join(kept)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_in_light_and_dark(open_page, tmp_path, scheme):
    long = "a_very_long_name_without_any_space_" * 6 + ".webm"
    contents, metadata = {long: b"x", "bell.wav": b"x"}, {"model": "<img src=x>" + "m" * 300}
    with served(tmp_path, contents, metadata=metadata) as (address, _):
        page = open_page(address, viewport={"width": 320, "height": 640}, color_scheme=scheme)
        ask(page, "w" * 300)
        name = page.locator(".hit .name", has_text=".webm")
        assert name.inner_text() == f"{long[:28]}…{long[-28:]}" and name.get_attribute("title") == long
        assert page.locator(".hit .name", has_text="bell").inner_text() == "bell.wav"
        open_settings(page)
        page.get_by_text("Filters").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        assert page.locator("img").count() == 0  # what a gallery says of itself is text, too
        inks = page.evaluate(
            "[document.body, document.querySelector('.hit'), document.querySelector('.soft')]"
            ".map(e => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor])"
        )
        (ink, ground), (_, card), (soft, _) = inks
        for front, back in ((ink, ground), (ink, card), (soft, ground), (soft, card)):
            assert contrast(front, back) >= 4.5  # of WCAG 2, level AA
        assert (luminance(ground) > 0.5) == (scheme == "light")


def luminance(colour):
    parts = [int(number) / 255 for number in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first, second):
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_colours_of_eight_modalities_are_distinguished_with_every_colour_vision():
    text = PAGE.read_text(encoding="utf-8")
    schemes = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--([\w-]+): (#\w{6})\b", scheme))
        further = [colours[f"further-{place}"] for place in range(8)]
        assert least_difference([colours[name] for name in LABELS] + further[:5]) > 9
        assert least_difference(further) > 15
    for name in [*LABELS, *(f"further-{place}" for place in range(8))]:
        assert text.count(f"--{name}: #") == 2


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_any_modalities_are_named_switched_filtered_and_weighed(open_page, tmp_path, width):
    with served(tmp_path, metadata={"modalities": list(SIX), "model": "light"}) as (address, app):
        page = open_page(address, viewport={"width": width, "height": 800})
        asked = []
        page.on("request", lambda request: asked.append(request) if request.method == "POST" else None)
        ask(page, "a dog")
        check(page, app.ask(query="a dog"))
        assert "modalities" not in asked[-1].post_data_json  # all of them
        assert "no actions, colours or people" in page.locator("header").text_content()
        assert "scalar index FOLDER" in page.locator("header").text_content()  # on this machine
        for label in ("subtitles", "title", "words on screen", "field notes"):
            assert f" % with {label}" in page.locator("#counts").text_content()
        open_settings(page)
        page.get_by_text("Filters").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        colours = (
            page.locator(".hit")
            .first.locator(".weights li[data-modality]")
            .evaluate_all("all => all.map(line => getComputedStyle(line).getPropertyValue('--part'))")
        )
        assert len(set(colours)) == len(SIX) and all(colours)
        page.get_by_role("checkbox", name="Words on screen").uncheck()
        settled(page)
        on = [name for name in SIX if name != "screen"]
        assert asked[-1].post_data_json["modalities"] == on
        check(page, app.ask(query="a dog", modalities=on), on)
        page.get_by_label("Field notes", exact=True).nth(1).select_option("no field notes")
        settled(page)
        wanted = {"modalities": on, "filter": {"lacks": ["field_notes"]}}
        check(page, app.ask(query="a dog", **wanted), on)


def test_every_control_has_a_name_and_every_id_is_there():
    text = PAGE.read_text(encoding="utf-8")
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids)) and len(ids) > 20
    assert set(re.findall(r'\$\("([^"]+)"\)', text)) <= set(ids)
    assert set(re.findall(r'\bfor="([^"]+)"', text)) <= set(ids)
    assert "http://" not in text and "https://" not in text and "innerHTML" not in text
