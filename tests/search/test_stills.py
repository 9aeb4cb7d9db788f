"""Still pictures are made while clips are indexed, lie beside the gallery, and go with their clips; of videos without
one they are made on request."""

import io
import os

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from scalar_retrieval.gallery.decoding import SandboxedReader
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.gallery.store.stills import Stills, as_still
from scalar_retrieval.search.sources import find_files
from scalar_retrieval.search.vanished import remove
from tests.indexers import make_indexer
from tests.media_corpus import media, tone, wav
from tests.search.serving import make_app, write_gallery
from tests.search.wrong_galleries import hash_of_file

ADDRESS = "http://127.0.0.1:8000"
TALK = ["talk.webm#t=0,2", "talk.webm#t=2"]


def talk():
    """Three seconds of 30 pictures and sound."""
    return media("matroska", "mjpeg", "pcm_s16le", frames=30, seconds=3, size=(640, 48))


@pytest.fixture
def clips(tmp_path):
    folder = tmp_path / "clips"
    folder.mkdir()
    (folder / "talk.mkv").write_bytes(talk())
    (folder / "copy.mkv").write_bytes((folder / "talk.mkv").read_bytes())
    (folder / "sound.wav").write_bytes(wav(tone(16_000)))
    return folder


@pytest.fixture
def index(clips, tiny_model, tiny_processor):
    """Indexes the clips, and returns the gallery."""

    def index(segment=None, **options):
        with GalleryWriter(clips.parent / "gallery", "float32") as writer:
            writer.metadata = {"model": "model"} | ({} if segment is None else {"segment": segment})
            make_indexer(writer, tiny_model, tiny_processor, num_workers=1, **options).update(find_files([clips]))
        return Gallery.open(clips.parent / "gallery")

    return index


def names(gallery):
    return sorted(path.name for path in gallery.glob("stills/*"))


def frame_in(still, path):
    """Which frame of a film is in a still of half its size, by its number."""
    with Image.open(still) as picture:
        assert picture.format == "JPEG" and picture.size == (320, 24)
        shown = np.asarray(picture, float)
    frames = np.stack(SandboxedReader().read_frames(path))[:, ::2, ::2]
    return np.abs(frames - shown).mean(axis=(1, 2, 3)).argmin()


def test_each_clip_with_a_picture_has_the_frame_in_the_middle_as_a_still_as_long_as_it_is_there(clips, index):
    gallery = index()
    still = Stills(gallery.path).path_of(gallery.files[str(clips / "talk.mkv")].sha256)
    assert names(gallery.path) == [still.name]  # the copy shares it, and a sound has none
    assert still.stat().st_size < 15_000
    assert frame_in(still, clips / "talk.mkv") == 22  # of two frames, at a quarter and three quarters, the second
    (clips / "copy.mkv").unlink()
    (clips / "talk.mkv").write_bytes(media("matroska", "mjpeg", "", frames=4, seconds=1, size=(32, 32)))
    gallery = index(prune=True)
    (name,) = names(gallery.path)
    assert name == f"{gallery.files[str(clips / 'talk.mkv')].sha256}.jpg"
    with Image.open(gallery.path / "stills" / name) as picture:
        assert picture.size == (32, 32)  # never larger than the frame
    (clips / "talk.mkv").unlink()
    assert names(index(prune=True).path) == []


def test_windows_have_a_still_each_which_outlives_a_move_and_goes_with_the_file(clips, index):
    gallery = index(segment=1)
    sha256 = gallery.files[str(clips / "talk.mkv")].sha256
    assert names(gallery.path) == [f"{sha256}@{start}.000.jpg" for start in range(3)]
    before = {still: still.stat().st_mtime_ns for still in gallery.path.glob("stills/*")}
    os.rename(clips / "talk.mkv", clips / "moved.mkv")
    moved = index(segment=1, prune=True)
    assert sum(name.startswith(str(clips / "moved.mkv#t=")) for name in moved.clip_ids) == 3
    assert {still: still.stat().st_mtime_ns for still in gallery.path.glob("stills/*")} == before
    with GalleryWriter(gallery.path) as writer:
        remove(writer, [clips / "moved.mkv"])
        assert len(names(gallery.path)) == 3  # those of the copy
        remove(writer, [clips / "copy.mkv"])
    assert names(gallery.path) == []


def test_stills_that_no_clip_has_go_when_a_gallery_is_compacted(tmp_path):
    write_gallery(tmp_path, {"a.webm": b"a"}, {"a.webm": {"sha256": "1" * 64}})
    with GalleryWriter(tmp_path / "gallery") as writer:
        for sha256 in ("1" * 64, "2" * 64):
            writer.stills.put(sha256, None, b"picture")
        writer.commit()
        assert len(names(tmp_path / "gallery")) == 2
        writer.compact()
    assert names(tmp_path / "gallery") == [f"{'1' * 64}.jpg"]


@pytest.fixture
def service(tmp_path):
    """The folder of a gallery with stills of a clip and of a window, and their picture."""
    records = {"dog.webm": {"sha256": "0" * 64}, "talk.webm": {"sha256": "1" * 64}}
    write_gallery(tmp_path, {"dog.webm": b"dog", **dict.fromkeys(TALK, b"x")}, records, segment=2)
    picture = as_still(np.zeros((18, 32, 3), np.uint8))
    Stills(tmp_path / "gallery").put("0" * 64, None, picture)
    Stills(tmp_path / "gallery").put("1" * 64, 2.0, picture)
    return tmp_path, picture


def hits(client):
    found = client.post("/api/search", json={"query": "a dog"}).json()["hits"]
    return {(hit["name"], hit["start"]): hit for hit in found}


def test_a_still_is_made_of_the_middle_of_a_video_that_lacks_one(tmp_path):
    windows = dict.fromkeys(["cut.mkv#t=0,1", "cut.mkv#t=1,2", "cut.mkv#t=2"], talk())
    write_gallery(tmp_path, windows | {"film.mkv": talk(), "bell.wav": wav(tone(16_000)), "odd.mkv": b"x"}, segment=1)
    film = tmp_path / "clips" / "film.mkv"
    frames = {}
    with TestClient(make_app(tmp_path), ADDRESS) as client:
        for place, hit in hits(client).items():
            assert (hit["still"] is not None) == (hit["kind"] == "video")
            answer = client.get(f"/api/clips/{hit['key']}/still")
            if answer.status_code == 200:
                assert answer.headers["content-type"] == "image/jpeg"
                frames[place] = frame_in(io.BytesIO(answer.content), film)
            else:
                assert answer.json()["error"] == "There is no still of this clip."
        assert frames == {("cut.mkv", 0): 5, ("cut.mkv", 1): 15, ("cut.mkv", 2): 25, ("film.mkv", None): 15}
        # A file that has changed is not the one that was indexed.
        film.write_bytes(talk()[:-1])
        assert client.get(f"/{hits(client)['film.mkv', None]['still']}").status_code == 404
    assert names(tmp_path / "gallery") == []


def test_videos_of_a_published_gallery_are_not_downloaded_for_their_stills(tmp_path):
    write_gallery(tmp_path, {"dog.webm": b"dog"})
    cache = tmp_path / "snapshots"  # as in the Hub's cache
    cache.mkdir()
    (tmp_path / "gallery").rename(cache / "gallery")
    with TestClient(make_app(cache), ADDRESS) as client:
        (hit,) = hits(client).values()
    assert hit["kind"] == "video" and hit["still"] is None


@pytest.mark.parametrize("name", ["../../outside", "A" * 64, "a" * 64 + "\n"])
def test_a_gallery_whose_hash_is_the_path_of_a_file_is_not_served(tmp_path, name):
    write_gallery(tmp_path, {"dog.webm": b"dog"})
    hash_of_file(name)(tmp_path / "gallery")
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        make_app(tmp_path)


def test_a_stored_still_is_served_unless_it_lies_outside_the_gallery(service):
    place, picture = service
    (place / "outside.jpg").write_bytes(b"private")
    stills = place / "gallery" / "stills"
    with TestClient(make_app(place), ADDRESS) as client:
        found = hits(client)
        dog, none, talk = (found[key]["still"] for key in (("dog.webm", None), ("talk.webm", 0), ("talk.webm", 2)))
        for address in (dog, talk):
            answer = client.get(address)
            assert answer.content == picture and answer.headers["content-type"] == "image/jpeg"
            assert answer.headers["cache-control"] == "private, max-age=600"
        assert client.get(none).status_code == client.get("/api/clips/0000000000000000/still").status_code == 404
        (stills / f"{'0' * 64}.jpg").unlink()
        (stills / f"{'0' * 64}.jpg").symlink_to(place / "outside.jpg")
        assert client.get(dog).status_code == 404 and client.get(talk).content == picture
        stills.rename(place / "elsewhere")
        stills.symlink_to(place / "elsewhere")
        assert client.get(talk).status_code == 404
