"""The HTTP API of the search service."""

import hashlib
import json
import os
import re
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from starlette.datastructures import Headers
from starlette.testclient import TestClient

from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter, MediaFile
from scalar_retrieval.gallery.hits import NOTHING_MATCHES
from scalar_retrieval.gallery.store.file_state import clip_sha256, clip_stat
from scalar_retrieval.gallery.store.windows import clip_id_of
from scalar_retrieval.search.service import guard
from scalar_retrieval.search.service.guard import SHORTEST_TOKEN, Token
from tests.media_corpus import tone, wav
from tests.search.serving import (
    FITTED,
    PRESENCE,
    SECRET,
    make_app,
    put_clips,
    recorded,
    vector,
    vectors_of,
    write_gallery,
)

ADDRESS = "http://127.0.0.1:8000"
MODALITIES = ("video", "audio", "subtitle")


@pytest.fixture(scope="module")
def client(unchanged):
    """Of a service that no test changes."""
    with TestClient(make_app(unchanged, names=("Search.lan",)), ADDRESS) as client:
        client.folder = unchanged
        yield client


@pytest.fixture
def changing(tmp_path):
    """Of a service whose gallery is changed."""
    write_gallery(tmp_path)
    with TestClient(make_app(tmp_path), ADDRESS) as client:
        yield client


def search(client, query="a dog", code=200, **options):
    response = client.post("/api/search", json={"query": query} | options)
    assert response.status_code == code, response.text
    return response.json()


def check(answer, expected):
    """The hits of an answer are those of the gallery, whose scores and weights other tests hold to the formula."""
    assert [hit["rank"] for hit in answer["hits"]] == list(range(1, len(expected) + 1)) != []
    for found, hit in zip(answer["hits"], expected, strict=True):
        name = Path(hit.clip_id).name
        assert (found["name"], found["score"]) == (name, pytest.approx(hit.score, abs=1e-5))  # float32
        assert found["weights"] == pytest.approx(hit.weights, abs=1e-5)
        assert found["presence"] == dict(zip(MODALITIES, PRESENCE[name], strict=True))
        assert found["problems"] == (["the subtitles are no text"] if name == "silent.webm" else [])


def test_hits_are_those_of_the_gallery_at_any_temperature_and_of_the_modalities_that_are_switched_on(client):
    gallery, before = Gallery.open(client.folder / "gallery"), client.app.model.num_texts
    temperatures = [{"query_temperature": temperature} for temperature in (0.001, 0.5, 10)]
    for options in ({"k": 5}, {"modalities": ["audio"]}, *temperatures, {"k": 1}):
        check(search(client, " a wolf", **options), gallery.search(vector("a wolf")[None], **options)[0])
    assert client.app.model.num_texts == before + 1  # a query is embedded once


def test_what_a_search_does_not_find_is_reported(tmp_path):
    write_gallery(tmp_path, **FITTED | {"model": "light"})
    with TestClient(make_app(tmp_path), ADDRESS) as client:
        assert "no actions, colours or people" in client.get("/api/gallery").json()["limits"]
        answer = search(client)
        assert (answer["matches_well"], answer["note"]) == (False, NOTHING_MATCHES) and answer["hits"]
        like = client.post("/api/like", json={"key": answer["hits"][0]["key"]}).json()
        for other in (search(client, query_temperature=0.2), like):  # for which nothing was fitted
            assert (other["matches_well"], other["note"]) == (None, None)


def test_clips_like_one_are_found_as_in_the_gallery(client):
    gallery = Gallery.open(client.folder / "gallery")
    for hit in search(client)["hits"]:
        answer = client.post("/api/like", json={"key": hit["key"]}).json()
        check(answer, gallery.search(like=str(client.folder / "clips" / hit["name"])))
        audio = client.post("/api/like", json={"key": hit["key"], "modalities": ["audio"]})
        assert audio.status_code == (200 if hit["presence"]["audio"] else 404)


def test_the_usual_page_of_an_api_is_there(client):
    assert "Problem" in client.get("/api/openapi.json").json()["components"]["schemas"]
    response = client.get("/docs")
    policy = response.headers["content-security-policy"]
    assert response.status_code == 200 and "api/openapi.json" in response.text and "'sha256-" in policy
    for address in re.findall(r'(?:src|href)="(https?://[^/"]+)', response.text):
        assert address in policy


# Filters ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dated(tmp_path_factory):
    """Of a gallery that knows of all clips but one when their files were changed, on the first days of 2026."""
    folder, day, begin = tmp_path_factory.mktemp("dated"), 86_400 * 10**9, 1_767_225_600 * 10**9
    records = {name: {"mtime_ns": begin + number * day} for number, name in enumerate(PRESENCE)}
    # One was recorded somewhere, and changed later.
    records["cat.webm"] = {"mtime_ns": begin + 3 * day, "recorded_ns": begin + day, "place": [48.1374, 11.5755]}
    write_gallery(folder, records=records | {name: {"mtime_ns": 0} for name in list(PRESENCE)[-1:]})
    with TestClient(make_app(folder), ADDRESS) as client:
        yield client


@pytest.mark.parametrize(
    ("wanted", "names", "unknown"),
    [
        ({"has": ["audio"], "lacks": ["subtitle", "video"]}, {"bell.wav"}, 0),
        ({"paths": ["*.wav", "clips/d*"]}, {"bell.wav", "dog.webm"}, 0),
        ({"after": "2026-01-02", "before": "2026-01-03T00:00:01+00:00"}, {"cat.webm", "silent.webm"}, 1),
    ],
)
def test_only_what_fulfils_the_filter_is_found(dated, wanted, names, unknown):
    answer = search(dated, filter=wanted)
    assert {hit["name"] for hit in answer["hits"]} == names
    assert (answer["num_clips"], answer["num_allowed"]) == (5, len(names))
    assert answer["unknown"] == ({"date": unknown} if unknown else {})
    first = search(dated)["hits"][0]
    like = dated.post("/api/like", json={"key": first["key"], "filter": wanted}).json()
    assert {hit["name"] for hit in like["hits"]} == names - {first["name"]}


def test_hits_have_the_date_and_the_place_of_their_recording_and_can_be_sorted(dated):
    hits = search(dated, sort="date")["hits"]
    assert [hit["name"] for hit in hits][:4] == ["bell.wav", "silent.webm", "cat.webm", "dog.webm"]
    assert [hit["rank"] for hit in hits] == [1, 2, 3, 4, 5]
    recordings = [(hit["date"], hit["is_recorded"], hit["place"]) for hit in hits[1:]]
    assert recordings == [
        ("2026-01-03T00:00:00+00:00", False, None), ("2026-01-02T00:00:00+00:00", True, [48.1374, 11.5755]),
        ("2026-01-01T00:00:00+00:00", False, None), (None, False, None),
    ]  # fmt: skip
    about = dated.get("/api/gallery").json()
    assert (about["oldest"], about["newest"]) == ("2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z")


@pytest.mark.parametrize("text", ["a\\u0000b", "\\ud800"])
def test_a_filter_by_what_no_text_has_finds_nothing(client, text):
    headers = {"content-type": "application/json"}
    for wanted in (f'{{"paths": ["*{text}*"]}}', f'{{"words": ["dog {text}x"]}}'):
        body = f'{{"query": "a dog", "filter": {wanted}}}'
        response = client.post("/api/search", content=body, headers=headers)
        assert response.status_code == 200 and response.json()["hits"] == [], wanted


@pytest.fixture(scope="module")
def windows(tmp_path_factory):
    """Of a gallery of two files in twelve windows each, and of a short one."""
    folder = tmp_path_factory.mktemp("windows")
    names = [clip_id_of(name, (start, start + 1)) for start in range(12) for name in ("talk.webm", "a song.webm")]
    write_gallery(folder, dict.fromkeys([*names, "short.webm"], b"x"), segment=1)
    with TestClient(make_app(folder), ADDRESS) as client:
        yield client


COUNTS = {"a song.webm": 12, "short.webm": 1, "talk.webm": 12}


def counts_of(answer):
    return {hit["name"]: hit["num_windows"] for hit in answer["hits"]}


def test_each_file_is_reported_once_where_that_is_asked_for(windows):
    every, each = search(windows, k=30)["hits"], search(windows, per_file=True)
    assert len(every) == 25 and each["num_files"] == 3 and counts_of(each) == COUNTS
    best = {hit["name"]: hit["key"] for hit in reversed(every)}
    assert {hit["name"]: hit["key"] for hit in each["hits"]} == best
    inside = search(windows, k=20, within=best["talk.webm"])
    assert {hit["name"] for hit in inside["hits"]} == {"talk.webm"} and inside["num_allowed"] == 12
    assert search(windows, code=404, within="0" * 16)["error"]


def listed(client, **options):
    response = client.post("/api/clips", json=options)
    assert response.status_code == 200, response.text
    return response.json()


def test_clips_are_listed_by_name_and_page_by_page(windows):
    hits = []
    for skip in (0, 10, 20, 30):
        hits += listed(windows, k=10, skip=skip)["hits"]
    places = [("a song.webm", start) for start in range(12)]
    places += [("short.webm", None), *(("talk.webm", start) for start in range(12))]
    assert [(hit["name"], hit["start"]) for hit in hits] == places
    assert [hit["rank"] for hit in hits] == list(range(1, 26)) and {hit["score"] for hit in hits} == {None}
    assert list(counts_of(listed(windows, per_file=True)).items()) == list(COUNTS.items())
    assert len(listed(windows, within=hits[-1]["key"], k=20)["hits"]) == 12
    none = listed(windows, filter={"paths": ["nowhere"]})
    assert none["hits"] == [] and none["note"] == "The filters leave none of the 25 clips."


# Files --------------------------------------------------------------------------------------------------------------


def media_of(client, name):
    return next(hit["media"] for hit in search(client)["hits"] if hit["name"] == name)


def test_a_clip_is_played_in_parts(client):
    address, data = media_of(client, "dog.webm"), (client.folder / "clips" / "dog.webm").read_bytes()
    whole = client.get(address)
    assert whole.content == data and whole.headers["content-type"] == "video/webm"
    assert whole.headers["x-content-type-options"] == "nosniff"
    part = client.get(address, headers={"range": "bytes=3-5"})
    assert (part.status_code, part.content) == (206, data[3:6])
    of_another = {"range": "bytes=3-5", "if-range": '"another"'}
    assert client.get(address, headers=of_another).content == data  # parts of two files do not fit


def test_how_loud_a_sound_is_over_its_time_is_reported(tmp_path):
    halves = wav(tone(16_000) + bytes(2 * 16_000))  # a second of sound, a second of silence
    names = ("bell.wav", "bell.wav#t=0,1", "bell.wav#t=1")
    write_gallery(tmp_path, dict.fromkeys(names, halves) | {"broken.wav": b"x"}, segment=1, modalities=["audio"])
    with TestClient(make_app(tmp_path), ADDRESS) as client:
        hits = {(hit["name"], hit["start"]): hit for hit in search(client)["hits"]}
        found = {place: client.get(f"/{hit['loudness']}").json() for place, hit in hits.items()}
    whole = found["bell.wav", None]
    assert len(whole) == 100 and max(whole) == 1 and min(whole[:49]) > 0.9 and max(whole[51:]) < 0.1
    assert min(found["bell.wav", 0.0]) > 0.9 and max(found["bell.wav", 1.0][2:]) == 0
    assert found["broken.wav", None] == []


@pytest.mark.promise("code", "`scalar serve` shows no file outside a gallery's folder but those that were indexed")
@pytest.mark.parametrize("record", [None, "forged", "of nothing"])
def test_a_file_that_a_stranger_named_is_not_served(tmp_path, record):
    """Identifiers and records are what somebody wrote into a gallery: only media that were indexed are served."""
    secret, text, own = (tmp_path / name for name in ("secret.mp4", "secret.txt", "own.mp4"))
    secret.with_suffix(".srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nsecret words\n")
    for path in (secret, text, own):
        path.write_bytes(path.stem.encode())
    (tmp_path / "link.mp4").symlink_to(text)
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "folder.mp4").mkdir()
    files = [recorded(own)]
    if record is not None:
        sha256 = "0" * 64 if record == "forged" else hashlib.sha256().hexdigest()
        files.append(MediaFile(str(secret), secret.stat().st_size, 0, sha256))
    unplayed = ["relative.mp4", "/etc/passwd", str(text)]
    others = [str(tmp_path / f"{name}.mp4") for name in ("secret", "link", "pipe", "folder", "gone")]
    put_clips(tmp_path / "gallery", [*unplayed, *others, str(own)], files)
    with TestClient(make_app(tmp_path), ADDRESS) as client:
        hits = {Path(hit["name"]).name: hit for hit in search(client)["hits"]}
        assert client.get(f"/api/clips/{hits.pop('own.mp4')['key']}/media").content == b"own"
        assert len(hits) == 8 and [hits[Path(name).name]["media"] for name in unplayed] == [None] * 3
        for name, hit in hits.items():
            for call in ("media", "captions"):
                response = client.get(f"/api/clips/{hit['key']}/{call}")
                assert response.status_code == 404 and set(response.json()) == {"error"}, name
            assert client.get(f"/api/clips/{hit['key']}/words").json() == []
        assert search(client, '"secret words"')["num_allowed"] == 0


def test_a_copied_gallery_serves_the_media_that_lie_in_it_and_no_others(tmp_path):
    names = ["whole.mp4", "linked.mp4", "folder/secret.mp4", "within.mp4", "../../secret.mp4"]
    put_clips(tmp_path / "gallery", names, [MediaFile(name, 6, 0, "0" * 64) for name in names])
    media = tmp_path / "gallery" / "media"
    media.mkdir()
    (tmp_path / "secret.mp4").write_bytes(b"secret")
    (tmp_path / "secret.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nsecret words\n")
    (media / "whole.mp4").write_bytes(b"whole")
    for name, target in (
        ("whole.srt", tmp_path / "secret.srt"), ("linked.mp4", tmp_path / "secret.mp4"), ("folder", tmp_path),
        ("within.mp4", "whole.mp4"),
    ):  # fmt: skip
        (media / name).symlink_to(target)
    played = {}
    with TestClient(make_app(tmp_path), ADDRESS) as client:
        for hit in search(client)["hits"]:
            answer = client.get(f"/api/clips/{hit['key']}/media")
            played[hit["name"]] = answer.content if answer.status_code == 200 else None
            assert client.get(f"/api/clips/{hit['key']}/captions").status_code == 404
    assert list(played.values()).count(None) == 3 and played["whole.mp4"] == played["within.mp4"] == b"whole"


def test_a_picture_is_sent_as_one_if_browsers_show_its_type(tmp_path):
    write_gallery(tmp_path, {"cat.JPG": b"one", "cat.heic": b"other"})
    with TestClient(make_app(tmp_path), ADDRESS) as client:
        found = {hit["name"]: hit for hit in search(client)["hits"]}
        assert found["cat.JPG"]["kind"] == "image" and found["cat.heic"]["kind"] is found["cat.heic"]["media"] is None
        assert client.get(f"/{found['cat.JPG']['media']}").headers["content-type"] == "image/jpeg"


def test_a_file_is_played_whatever_becomes_of_its_subtitles(tmp_path):
    (tmp_path / "clips").mkdir()
    path, subtitles = (tmp_path / "clips" / name for name in ("cat.webm", "cat.srt"))
    path.write_bytes(b"cat")
    subtitles.write_text("1\n00:00:00,000 --> 00:00:01,000\na bark\n")
    both = MediaFile(str(path), *clip_stat(str(path)), clip_sha256(str(path)))
    put_clips(tmp_path / "gallery", [str(path)], [both])
    subtitles.write_text("1\n00:00:00,000 --> 00:00:01,000\na loud bark\n")
    with TestClient(make_app(tmp_path), ADDRESS) as client:
        address = media_of(client, "cat.webm")
        assert client.get(address).content == b"cat"
        assert "a loud bark" in client.get(address.replace("/media", "/captions")).text
        path.write_bytes(b"another file")
        assert client.get(address).status_code == 404


# A gallery that changes ---------------------------------------------------------------------------------------------


def test_what_is_committed_is_found_at_once_and_older_keys_stay_good(changing, tmp_path):
    before = {hit["name"]: hit["key"] for hit in search(changing)["hits"]}
    with GalleryWriter(tmp_path / "gallery") as writer:
        writer.remove_clips([str(tmp_path / "clips" / "dog.webm")])  # rows move
        writer.put_clips(["new.webm"], vectors_of("new")[None], torch.ones(1, 3).bool())
        writer.commit()
    assert {hit["name"] for hit in search(changing)["hits"]} == {*before, "new.webm"} - {"dog.webm"}
    played = {name: changing.get(f"/api/clips/{key}/media").status_code for name, key in before.items()}
    assert played.pop("dog.webm") == 404 and set(played.values()) == {200}


def test_a_gallery_that_is_damaged_or_replaced_leaves_the_last_one_served(changing, tmp_path):
    manifest = tmp_path / "gallery" / "gallery.json"
    good = manifest.read_bytes()
    for bad in (b"{}", good.replace(b"f" * 64, b"e" * 64)):
        manifest.write_bytes(bad)
        assert len(search(changing)["hits"]) == 5
        assert "cannot be opened" in changing.get("/api/gallery").json()["problem"]
    manifest.unlink()
    assert "cannot be opened" in changing.get("/api/gallery").json()["problem"]
    manifest.write_bytes(good)
    stop = time.monotonic() + 20
    while changing.get("/api/gallery").json()["problem"] is not None:
        assert time.monotonic() < stop
        time.sleep(0.05)
    assert len(search(changing)["hits"]) == 5


def test_an_empty_gallery_says_so(tmp_path):
    with GalleryWriter(tmp_path / "gallery") as writer:
        writer.metadata = {"model": "words", "fingerprint": "f" * 64}
        writer.commit()
    with TestClient(make_app(tmp_path), ADDRESS) as client:
        answer = search(client, per_file=True)
        assert answer["hits"] == [] and "no clips" in answer["note"] and listed(client)["hits"] == []


# Wrong questions ----------------------------------------------------------------------------------------------------

QUESTION = b'{"query": "a dog"%s}'
NAMED = "must name some of ('video', 'audio', 'subtitle'), got"
WRONG = [
    (b"", "Field required."), (b"{", "JSON"), (b"\xff\xfe", ""), (b"[" * 60_000, ""),
    (b'{"text": "a dog"}', "`query`: Field required; `text`: Extra inputs are not permitted."),
    (b'{"query": " \\n "}', "`query`: type"), (b'{"query": "\\ud800"}', "`query`"),
    (b'{"query": "' + b"a" * 2001 + b'"}', "2000"),
    (QUESTION % b', "k": 0', "`k`"), (QUESTION % (b', "k": ' + b"9" * 5000), ""),
    (QUESTION % b', "query_temperature": NaN', "`query_temperature`"),
    (QUESTION % b', "query_temperature": 1e-9', "`query_temperature`"),
    (QUESTION % b', "modalities": []', "`modalities`"), (QUESTION % b', "modalities": ["audio", "Video"]', NAMED),
    (QUESTION % b', "filter": {"has": ["\\u0000"]}', NAMED),
    (QUESTION % b', "filter": {"min_duration": 5, "max_duration": 2}', "Swap"),
    (QUESTION % b', "filter": {"paths": ["a", "a", "a", "a", "a", "a", "a", "a", "a"]}', "paths"),
    (QUESTION % b', "filter": {"size": 3}', "size"), (QUESTION % b', "filter": {"after": "1700000000"}', "2026-01-31"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "reported"), WRONG, ids=lambda part: repr(part[:60]))
def test_a_wrong_question_is_answered_in_one_sentence_that_says_what_is_wrong(client, body, reported):
    response = client.post("/api/search", content=body, headers={"content-type": "application/json"})
    assert 400 <= response.status_code < 500, response.text
    assert list(response.json()) == ["error"] and response.headers["content-type"] == "application/json"
    sentence = response.json()["error"]
    assert reported in sentence and "\n" not in sentence and "Traceback" not in sentence


KEYS = "0 0000000000000000 ²000000000000000 .. %2e%2e%2f0 ../../etc/passwd %2Fetc%2Fpasswd".split() + ["9" * 5000]


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [("DELETE", "/", 405), ("GET", "/api/none", 404), ("GET", "/../page.html", 404)]
    + [("GET", f"/api/clips/{key}/media", 404) for key in KEYS],
)
def test_what_is_not_there_is_reported_in_one_sentence(client, method, path, code):
    response = client.request(method, path)
    assert response.status_code == code and list(response.json()) == ["error"] and response.json()["error"]


def test_a_question_that_is_too_long_is_refused_whether_it_says_so_or_not(client):
    body = b'{"query": "' + b" " * guard.MOST_BYTES + b'"}'
    headers = {"content-type": "application/json"}
    assert client.post("/api/search", content=body, headers=headers).status_code == 413
    assert client.post("/api/search", content=iter([body]), headers=headers).status_code == 413


@pytest.mark.parametrize("error", [ValueError("/videos/caf\udce9:\nwrong"), OSError("/videos")])
def test_what_a_library_says_is_not_reported(unchanged, monkeypatch, error):
    app = make_app(unchanged)
    monkeypatch.setattr(app.archive, "search", Mock(side_effect=error))
    with TestClient(app, ADDRESS, raise_server_exceptions=False) as client:
        response = client.post("/api/search", json={"query": "a dog"})
    assert response.status_code >= 500 and list(response.json()) == ["error"] and "videos" not in response.text


def test_neither_paths_of_the_server_nor_what_a_changed_file_holds_is_reported(tmp_path, caplog):
    write_gallery(tmp_path, model=str(tmp_path / "models" / "words"))
    (shard,) = (tmp_path / "gallery" / "clips").glob("*.arrow")
    content = bytearray(shard.read_bytes())
    content[content.index(vectors_of("dog.webm")[0].numpy().tobytes()) + 7] ^= 1
    with TestClient(make_app(tmp_path), ADDRESS) as client:
        hits = search(client)["hits"]
    shard.unlink()
    shard.write_bytes(content)
    with TestClient(make_app(tmp_path), ADDRESS) as client:
        answer = search(client, code=500)
        assert answer == {"error": "A file of the gallery is damaged; see the log of the service."}
        shard.write_bytes(b"x")
        (tmp_path / "gallery" / "gallery.json").touch()
        about = client.get("/api/gallery").json()
    assert "cannot be opened" in about["problem"] and about["model"] == "words" and str(shard) in caplog.text
    assert str(tmp_path) not in json.dumps([hits, about])


# Who may ask --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1:8000", 200), ("LOCALHOST:1", 200), ("[::1]:8000", 200), ("search.lan", 200),
        ("evil.example", 400), ("127.0.0.1.nip.io", 400), ("", 400), ("localhost:x", 400),
    ],
)  # fmt: skip
def test_names_that_are_made_to_lead_here_are_refused(client, host, code):
    for path in ("/", "/api/gallery"):
        response = client.get(path, headers={"host": host})
        assert response.status_code == code
    assert code == 200 or "--hostname" in response.json()["error"]


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://evil.example"}, {"origin": "http://127.0.0.1:9000"}, {"sec-fetch-site": "same-site"}],
)
def test_pages_of_other_sites_get_no_answer(client, headers):
    media = media_of(client, "dog.webm")
    for method, path in (("POST", "/api/search"), ("GET", f"/{media}"), ("OPTIONS", "/api/search")):
        response = client.request(method, path, headers=headers, content=b"video")
        assert response.status_code == 403 and "access-control-allow-origin" not in response.headers
    own = {"origin": ADDRESS, "sec-fetch-site": "same-origin"}
    assert client.get("/api/gallery", headers=own).status_code == 200


def test_without_the_token_only_the_empty_page_is_given(unchanged):
    bearer = {"authorization": f"Bearer {SECRET}"}
    with TestClient(make_app(unchanged, secret=SECRET), ADDRESS) as client:
        assert client.get("/").status_code == 200
        wrong = [
            {"authorization": given.encode("latin-1")} for given in (f"Basic {SECRET}", f"Bearer {SECRET}x", "\xe9")
        ]
        for headers in ({}, *wrong, {"cookie": f"{guard.COOKIE}={SECRET}"}):
            for method, path in (
                ("GET", "/api/gallery"), ("POST", "/api/search"), ("POST", "/api/session"),
                ("GET", "/api/openapi.json"), ("HEAD", "/api/clips/0-0/media"),
            ):  # fmt: skip
                response = client.request(method, path, headers=headers, content=b"{}")
                assert response.status_code == 401 and response.headers["www-authenticate"] == "Bearer"
        assert client.get("/api/gallery", headers=bearer).status_code == 200
        given = client.post("/api/session", headers=bearer).headers["set-cookie"]
        assert SECRET not in given and "HttpOnly" in given and "SameSite=strict" in given
        assert client.get("/api/gallery").status_code == 200  # by the cookie


@pytest.mark.parametrize("other", ["=", "b\xe9=c", f"{guard.COOKIE}s=1", 'a="' + "\\" * 30_000 + '"'])
def test_cookies_of_others_do_not_shut_anybody_out(other):
    token = Token(SECRET)

    def knows(cookie):
        return token.accepts(Headers({"cookie": cookie}))

    mine = f"{guard.COOKIE}={token.cookie}"
    assert knows(f"{other}; {mine}") and knows(f"{mine};{other}")
    assert not knows(other) and not knows(f"{other}; {mine[:-1]}") and not knows(f"{mine}x")


@pytest.mark.parametrize("secret", ["short", "é" * 20, "two words of a token"])
def test_a_token_must_be_long_and_can_be_sent(secret):
    with pytest.raises(ValueError, match=f"{SHORTEST_TOKEN}|ASCII characters without spaces"):
        Token(secret)


def test_the_page_may_run_nothing_but_itself(client):
    response = client.get("/")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert policy.count("'sha256-") == 2  # its style and its script
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", response.text)
    for path in ("/api/gallery", "/nothing"):
        headers = client.get(path).headers
        assert "sandbox" in headers["content-security-policy"] and headers["x-content-type-options"] == "nosniff"
