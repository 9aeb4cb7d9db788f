"""What is said in a clip, as the service tells it."""

import os
import threading

import pytest
from starlette.testclient import TestClient

from scalar_retrieval.gallery.store.windows import clip_id_of
from scalar_retrieval.gallery.words.cues import cues_between, read_cues
from scalar_retrieval.gallery.words.transcripts import SCREEN, SPEECH, Cue, Transcripts, as_vtt, write_transcript
from scalar_retrieval.search.service.matching_lines import best_cues
from tests.search.serving import PRESENCE, make_app, write_gallery

ADDRESS = "http://127.0.0.1:8000"
SRT = """1
00:00:00,500 --> 00:00:01,500
So the dog ran
over <i>the</i> field.

2
00:00:02,100 --> 00:00:03,000
Nothing about the animals &amp; all.

3
01:00:04,100 --> 01:00:05,000
Two dogs answer the other <3
"""
CUES = [
    Cue(0.5, 1.5, "So the dog ran over the field."),
    Cue(2.1, 3.0, "Nothing about the animals & all."),
    Cue(3604.1, 3605.0, "Two dogs answer the other <3"),
]


def test_cues_are_read_with_their_seconds_and_written_as_players_take_them(tmp_path):
    for name, content in (("a.srt", SRT), ("b.vtt", as_vtt(CUES))):
        (tmp_path / name).write_text(content)
        assert read_cues(tmp_path / name) == CUES
    for content in (b"\xff\xfe", b"", b"no times"):
        (tmp_path / "c.srt").write_bytes(content)
        assert read_cues(tmp_path / "c.srt") == []
    assert read_cues(tmp_path / "none.srt") == []


def test_the_words_that_fit_best_are_those_that_the_query_shares_with_few():
    assert best_cues(CUES, "the dog in a field", 1) == [(CUES[0], True)]
    assert best_cues(CUES, "dogs", 2) == [(CUES[0], True), (CUES[2], True)]  # in another form, too
    assert best_cues(CUES, "thunder", 2) == [(CUES[0], False), (CUES[1], False)]
    assert cues_between(CUES, 1.5, 2.2) == [CUES[1]] and cues_between(CUES, 3, None) == CUES[2:]


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Of a gallery of windows with subtitles, a file that was heard and has words on the screen, and one without."""
    names = [clip_id_of("talk.webm", (0, 2)), clip_id_of("talk.webm", (2, None)), "heard.webm", "silent.webm"]
    for name in names[:3]:
        monkeypatch.setitem(PRESENCE, name, (True, True, True))
    write_gallery(tmp_path, dict.fromkeys(names, b"x"), {"heard.webm": {"sha256": "0" * 64}}, segment=2)
    (tmp_path / "clips" / "talk.srt").write_text(SRT)
    (tmp_path / "clips" / "silent.srt").symlink_to("/etc/passwd")
    (tmp_path / "gallery" / "transcripts").mkdir()
    for kind, cue in ((SPEECH, Cue(1.0, 2.0, "a bell rings")), (SCREEN, Cue(3.0, 4.0, "ring the bell"))):
        write_transcript(Transcripts(tmp_path / "gallery", kind).path_of("0" * 64), [cue], "a model")
    with TestClient(make_app(tmp_path), ADDRESS) as client:
        client.folder = tmp_path
        yield client


def test_a_hit_carries_the_words_that_match_and_their_seconds(client, monkeypatch):
    monkeypatch.setattr("scalar_retrieval.search.service.routes._WORDS_SECONDS", 20)
    found = client.post("/api/search", json={"query": 'rings "dogs answer"', "k": 1}).json()["hits"]
    said = {"start": 3604.1, "stop": 3605.0, "text": CUES[2].text, "source": "subtitle", "is_asked": True}
    assert found[0]["said"] == [said | {"marks": [[4, 15]]}]
    found = hits(client)
    assert [line["text"] for line in found["talk.webm", 0]["said"]] == [CUES[0].text]
    assert found["silent.webm", None]["said"] is None


def test_an_answer_does_not_wait_for_words_that_take_long_to_read(client, monkeypatch):
    monkeypatch.setattr("scalar_retrieval.search.service.routes._WORDS_SECONDS", 0.05)
    going_on = threading.Event()
    monkeypatch.setattr("scalar_retrieval.search.service.routes.words_of", lambda *_: going_on.wait(20))
    try:
        assert {hit["said"] for hit in hits(client).values()} == {None}
    finally:
        going_on.set()


def hits(client):
    found = client.post("/api/search", json={"query": "a dog"}).json()["hits"]
    return {(hit["name"], hit["start"]): hit for hit in found}


def test_a_clip_tells_its_words_and_its_captions(client):
    found = hits(client)

    def words(name, start, query):
        key = found[name, start]["key"]
        lines = client.get(f"/api/clips/{key}/words", params={"query": query}).json()
        return [(line["source"], line["text"], line["is_asked"]) for line in lines], client.get(
            f"/api/clips/{key}/captions"
        )

    assert words("talk.webm", 0, "dogs")[0] == [("subtitle", CUES[0].text, True)]
    lines, captions = words("talk.webm", 2, "cats")
    assert lines == [("subtitle", CUES[1].text, False), ("subtitle", CUES[2].text, False)]
    assert captions.headers["content-type"].startswith("text/vtt") and captions.text == as_vtt(CUES)
    # Recognised speech is counted apart from subtitles; words on the screen are no captions.
    lines, captions = words("heard.webm", None, "bell")
    assert lines == [("speech", "a bell rings", True), ("screen", "ring the bell", True)]
    assert "a bell rings" in captions.text and "ring the bell" not in captions.text
    assert [name for (name, _), hit in found.items() if hit["heard"]] == ["heard.webm"]
    about = client.get("/api/gallery").json()
    assert about["share"]["subtitle"] == 3 / 4 and about["heard"] == 1 / 4


def test_what_is_quoted_must_be_said_in_a_clip(client):
    def found_by(query, **options):
        answer = client.post("/api/search", json={"query": query} | options).json()
        return {(hit["name"], hit["start"]) for hit in answer["hits"]}, answer["note"]

    assert found_by('x "DOGS answer"')[0] == {("talk.webm", 2)}
    assert found_by('"a béll"')[0] == {("heard.webm", None)}
    assert found_by("x", filter={"words": ["the dog", "so"]})[0] == {("talk.webm", 0)}
    nothing = "The filters, or the words in quotation marks, leave none of the 4 clips."
    assert found_by('"dog" and "bell"') == (set(), nothing)
    (listed,) = client.post("/api/clips", json={"filter": {"words": ["dogs"]}}).json()["hits"]
    assert (listed["start"], listed["said"]) == (2, None)
    for wrong in ({"query": ' "" '}, {"query": "x", "filter": {"words": ["..."]}}):
        assert client.post("/api/search", json=wrong).status_code == 422


def test_nothing_is_reported_of_what_is_no_subtitle_file(client):
    found = hits(client)
    elsewhere = found["silent.webm", None]["key"]  # by a link
    assert client.get(f"/api/clips/{elsewhere}/words").json() == []
    assert client.get(f"/api/clips/{elsewhere}/captions").status_code == 404
    key = found["talk.webm", 0]["key"]
    os.remove(client.folder / "clips" / "talk.webm")  # beside which they would be
    assert client.get(f"/api/clips/{key}/words").json() == []
