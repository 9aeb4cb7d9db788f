"""A day with one's own archive: 62 ordinary and nasty files, indexed, searched and served as a new user would."""

import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient
from typer.testing import CliRunner

from gallery.gallery import Gallery
from gallery.transcripts import Transcripts
from modeling_scalar.media_scalar import SAMPLING_RATE, MediaReader
from search.__main__ import app
from tests.gallery.test_subtitles import ASS, CUE, write_film
from tests.media_corpus import cut, media, noisy, wav
from tests.search.recognizing import heard_by
from tests.search.sounds import CHORD, HUM, RAIN, SPEECH

pytestmark = pytest.mark.slow

TIMES = np.arange(SAMPLING_RATE // 3) / SAMPLING_RATE  # of a note
LOUD = 0.9  # a recogniser that loops on purpose, for what is so loud
SENTENCE = "the tiger sleeps all day"
CAMERAS = {
    "MTS": ("mpegts", "libx264", "aac"), "m2ts": ("mpegts", "libx264", "aac"), "3g2": ("3g2", "mpeg4", "aac"),
    "asf": ("asf", "wmv2", "wmav2"), "gif": ("gif", "gif"),
    "opus": ("opus", "", "libopus"), "aac": ("adts", "", "aac"), "wma": ("asf", "", "wmav2"),
    "aiff": ("aiff", "", "pcm_s16be"),
}  # fmt: skip
RATES = {"libopus": 48_000, "wmav2": 44_100}
ODD = ["a:b.mp4", "[red] 100 %.mp4", "-dash.mp4", "two  spaces.mp4", "Größe 猫.mp4", "new\nline.mp4", "#t=1,2.mp4"]


def sound(waveform):
    return wav((np.clip(waveform, -1, 1) * 32_767).astype(np.int16).tobytes())


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def clip(number, frames=8, **options):
    """A small film that is no other's copy."""
    return media(
        "mp4", "libx264", "aac", frames=frames, seconds=0.1 * frames, tags=(("title", str(number)),), **options
    )


def write_archive(folder):
    """The files; returns how many a new user would count."""
    speech = MediaReader().read_audio(SPEECH)
    quiet = 0.5 * speech / np.abs(speech).max()
    steps = [0.3 * np.sin(2 * np.pi * 220 * 2 ** (step / 12) * TIMES) for step in (0, 4, 7, 12, 7, 4, 0, 5, 9, 12)]
    sounds = {
        "chord": CHORD,
        "music": np.concatenate(steps),
        "rain": RAIN,
        "hum": HUM,
        "silence": np.zeros(3 * SAMPLING_RATE),
        "speech": quiet,
        "loops": speech / np.abs(speech).max(),
        "pause": np.concatenate([quiet, np.zeros(4 * SAMPLING_RATE), RAIN]),
    }
    for name, waveform in sounds.items():
        write(folder, f"sounds/{name}.wav", sound(waveform))
    for number, (ending, (kind, *encoders)) in enumerate(CAMERAS.items()):
        settings = {"sampling_rate": RATES[encoders[-1]], "bit_rate": 48_000} if encoders[-1] in RATES else {}
        content = media(kind, *encoders, frames=8, seconds=0.8 + number / 10, **settings)
        write(folder, f"camera/{number}.{ending}", content)
    write(folder, "camera/10.vob", media("vob", "mpeg2video", "ac3", rate=25, sampling_rate=48_000))
    write(folder, "camera/11.mxf", media("mxf", "mpeg2video", "pcm_s16le", rate=25, sampling_rate=48_000))

    films = folder / "films"
    films.mkdir()
    for name in ("german", "script", "capitals", "english", "latin"):
        write_film(films / f"{name}.mkv", [])
    write(films, "german.de.srt", CUE.format("der hund").encode())
    write(films, "german.en.srt", CUE.format("the dog").encode())
    write(films, "script.ass", ASS.encode())
    write(films, "capitals.SRT", CUE.format("hello").encode())
    write(films, "english.eng.srt", CUE.format("weather").encode())
    write(films, "latin.srt", CUE.format("Größe und schöne Grüße").encode("latin-1"))
    write_film(films / "tracks.mkv", ["le chat", "the cat", "die katze+default"])

    whole = media("mp4", "libx264", "aac", frames=60, seconds=6, muxer="movflags=faststart", encoder="g=10")
    write(folder, "damaged/half.mp4", cut(whole, 0.5))
    write(folder, "damaged/stretch.mp4", noisy(whole, 0.6, 900))
    write(folder, "damaged/half.mkv", cut(media("matroska", "libx264", "aac", frames=60, seconds=6), 0.6))
    write(folder, "damaged/no index.mp4", cut(media("mp4", "libx264", "aac", frames=60, seconds=6), 0.5))
    write(folder, "damaged/empty.mp4", b"")
    write(folder, "damaged/text.mp4", b"this is no video")

    write(folder, "phone/turned.mp4", clip(1, rotation=90))
    write(
        folder, "phone/uneven.mkv", media("matroska", "libx264", frames=8, times=(0, 40, 90, 300, 310, 700, 720, 900))
    )
    for number, name in enumerate(ODD):
        write(folder, f"odd/{name}", clip(10 + number))
    write(folder, os.fsdecode(b"odd/not utf-8 \xff.mp4"), clip(20))
    for number in range(12):
        write(folder, f"ordinary/{number:02}.mp4", clip(30 + number))
    for number in range(3):
        shutil.copyfile(folder / "ordinary/00.mp4", folder / f"ordinary/copy {number}.mp4")
    for name in ("drafts/1.mp4", "drafts/2.mp4"):
        write(folder, name, clip(50))
    for name in (".trash/gone.mp4", "@eaDir/thumb.mp4", "ordinary/._00.mp4", "ordinary/.hidden.mp4"):
        write(folder, name, clip(60))
    return sum(path.suffix.lower() not in (".srt", ".ass") for path in folder.rglob("*") if path.is_file())


def run(*arguments, code=0):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return SimpleNamespace(out=result.stdout, err=result.stderr)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("day")


@pytest.fixture(scope="module")
def heard():
    """How many stretches the recogniser was asked for."""
    return []


@pytest.fixture(scope="module")
def indexed(place, tiny_model_dir, heard):
    """The archive, the gallery of it, and what its indexing reported."""
    num_files = write_archive(place / "archive")
    recognizer = heard_by("whisper", None)

    def hear(sounds, **options):
        heard.append(len(sounds["raw"]))
        text = "Thank you for watching. " * 30 if np.abs(sounds["raw"]).max() > LOUD else SENTENCE
        return {"text": text, "chunks": [{"text": text, "timestamp": (0.0, 1.0)}]}

    recognizer.hear = hear
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("search.loading.recognizer_of", lambda *_: recognizer)
        reported = run(
            "index", place / "archive", "--model", tiny_model_dir, "--output", place / "gallery",
            "--transcribe", tiny_model_dir, "--exclude", "drafts/**",
        )  # fmt: skip
    return SimpleNamespace(folder=place / "archive", gallery=place / "gallery", reported=reported, num_files=num_files)


def index(indexed, model, *options):
    return run(
        "index", indexed.folder, "--model", model, "--output", indexed.gallery, "--exclude", "drafts/**", *options
    )


def presence(indexed):
    gallery = Gallery.open(indexed.gallery)
    names = [os.path.relpath(name, indexed.folder) for name in gallery.clip_ids]
    return dict(zip(names, map(tuple, gallery.modality_mask.tolist()), strict=True))


def transcript(indexed, name):
    known = Gallery.open(indexed.gallery).files[str(indexed.folder / name)]
    path = Transcripts(indexed.gallery).path_of(known.sha256)
    return path.read_text() if path.exists() else None


def query(indexed, *options):
    return json.loads(run("query", indexed.gallery, *options, "--json", "--k", 60).out)[0]["hits"]


def test_the_archive_is_as_large_as_that_of_the_study(indexed):
    assert indexed.num_files == 62


# Speech -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["chord", "music", "rain", "hum", "silence"])
def test_nothing_is_written_for_what_is_no_speech(indexed, name):
    reported = transcript(indexed, f"sounds/{name}.wav")
    assert reported is None or "-->" not in reported


def test_speech_is_written_down_a_pause_is_skipped_and_a_loop_is_refused(indexed, heard):
    for name in ("speech", "pause"):
        assert transcript(indexed, f"sounds/{name}.wav").count(SENTENCE) == 1
    assert "-->" not in transcript(indexed, "sounds/loops.wav")
    assert heard and max(heard) < 8 * SAMPLING_RATE  # no stretch holds the pause and the rain after it


def test_digital_silence_is_no_sound(indexed):
    assert "sounds/silence.wav" not in presence(indexed)
    assert re.search(r"silence\.wav: nothing was found", indexed.reported.out)


# Subtitles ----------------------------------------------------------------------------------------------------------


def test_subtitles_are_found_by_their_names_and_in_tracks(indexed):
    found = presence(indexed)
    films = ["german", "script", "capitals", "english", "latin", "tracks"]
    assert all(found[f"films/{name}.mkv"][2] for name in films)
    with TestClient(served(indexed), "http://127.0.0.1:8000") as client:
        words = {name: words_of(client, f"films/{name}.mkv") for name in films}
    assert words == {
        "german": ["der hund"], "script": ["Größe, ja, und mehr", "later"], "capitals": ["hello"],
        "english": ["weather"], "latin": ["Größe und schöne Grüße"], "tracks": ["die katze"],
    }  # fmt: skip


# Files --------------------------------------------------------------------------------------------------------------


def test_files_of_cameras_and_odd_names_are_clips(indexed):
    found = presence(indexed)
    assert {name.rsplit(".")[-1] for name in found if name.startswith("camera/")} == {*CAMERAS, "vob", "mxf"}
    assert {f"odd/{name}" for name in ODD} <= set(found)
    assert found["phone/turned.mp4"][0] and found["phone/uneven.mkv"][0]


def test_what_is_hidden_or_excluded_is_left_out_and_counted(indexed):
    assert not any(name.startswith(("drafts", ".", "@")) or "/." in name for name in presence(indexed))
    assert "4 hidden or system files and folders are skipped." in indexed.reported.err
    assert "1 files are skipped, as their names are not UTF-8" in indexed.reported.err


def test_what_can_be_read_of_damaged_files_counts_and_is_reported(indexed, tiny_model_dir):
    found = presence(indexed)
    for name in ("half.mp4", "stretch.mp4", "half.mkv"):
        assert found[f"damaged/{name}"][0], name
        assert re.search(rf"partly read: .*{name}: .*could be read", indexed.reported.out), name
    for name in ("no index.mp4", "empty.mp4", "text.mp4"):
        assert re.search(rf"unreadable: .*{name}: ", indexed.reported.out), name
    again = index(indexed, tiny_model_dir).out
    assert "0 new, 0 changed" in again and "3 of the unreadable files failed before" in again


def test_copies_are_one_hit_and_a_renamed_file_keeps_its_clip(indexed, tiny_model_dir):
    alike = {name for name in os.listdir(indexed.folder / "ordinary") if name.startswith(("00", "copy"))}
    every = [hit["clip_id"] for hit in query(indexed, "a dog")]
    once = [hit["clip_id"] for hit in query(indexed, "a dog", "--unique")]
    assert sum(os.path.basename(name) in alike for name in every) == len(alike) == 4
    assert sum(os.path.basename(name) in alike for name in once) == 1 and len(once) == len(every) - 3
    (indexed.folder / "ordinary" / "05.mp4").rename(indexed.folder / "ordinary" / "renamed.mp4")
    reported = index(indexed, tiny_model_dir).out
    assert "1 moved" in reported and "ordinary/renamed.mp4" in presence(indexed)
    assert "ordinary/05.mp4" not in presence(indexed)


def test_a_pattern_that_fits_nothing_says_what_would(indexed):
    assert "ordinary" in run("query", indexed.gallery, "a dog", "--path", "Ordinary/**").err


def test_likeness_takes_a_bare_name_a_file_of_another_place_and_a_picture(indexed, place):
    (first, *_) = query(indexed, "--like", "ordinary/01.mp4")
    assert query(indexed, "--like", "01.mp4")[0] == first
    outside = place / "outside.mp4"
    shutil.copyfile(indexed.folder / "films" / "german.mkv", outside)
    assert query(indexed, "--like", outside)
    with av.open(str(indexed.folder / "ordinary" / "02.mp4")) as source:
        Image.fromarray(next(source.decode(video=0)).to_ndarray(format="rgb24")).save(place / "picture.png")
    assert query(indexed, "--like", place / "picture.png")


# The page -----------------------------------------------------------------------------------------------------------


def served(indexed):
    """The service of the gallery, with a model that nobody asks for words here."""
    from search.service.app import build_app
    from search.service.archive import Archive
    from search.service.folder import Folder
    from tests.search.serving import WordModel, WordProcessor

    opened = Gallery.open(indexed.gallery)
    source = Folder(indexed.gallery, opened.model, opened.metadata["fingerprint"])
    return build_app(Archive(source, WordModel(), WordProcessor()))


def listed(client, **options):
    return client.post("/api/clips", json={"k": 100, **options}).json()["hits"]


def words_of(client, name):
    (hit,) = [hit for hit in listed(client) if hit["name"].endswith(Path(name).name)]
    return [cue["text"] for cue in client.get(f"/api/clips/{hit['key']}/words").json()]


def test_the_service_lists_the_archive_with_stills_and_names_no_folder_of_the_server(indexed, place):
    with TestClient(served(indexed), "http://127.0.0.1:8000") as client:
        hits = listed(client)
        assert len(hits) == len(presence(indexed)) and len(listed(client, unique=True)) == len(hits) - 3
        for hit in hits:
            assert (hit["still"] is not None) == hit["presence"]["video"], hit["name"]
            if hit["still"] is not None:
                answer = client.get("/" + hit["still"])
                assert answer.headers["content-type"] == "image/jpeg" and len(answer.content) < 20_000
        assert str(place) not in json.dumps(hits) + client.get("/api/gallery").text


def test_verify_finds_the_gallery_whole(indexed):
    assert run("verify", indexed.gallery).out
