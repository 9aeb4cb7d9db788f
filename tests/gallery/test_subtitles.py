"""Which subtitles go with a file, and which come first: by their names, by languages, and as they are read."""

import os
import time
from fractions import Fraction

import av
import numpy as np
import pytest

from gallery.decoding import SandboxedReader
from gallery.media import clip_sha256
from gallery.subtitles import find_sidecar, in_order, language_of, languages_of, subtitles_beside
from modeling_scalar.media_scalar import MediaError, MediaReader

CUE = "1\n00:00:00,000 --> 00:00:01,000\n{}\n"
ASS = """[Script Info]
ScriptType: v4.00+

[V4+ Styles]
Format: Name, Fontname, Fontsize
Style: Default,Arial,20

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
Dialogue: 0,0:00:00.50,0:00:01.50,Default,,0,0,0,,{\\i1}Größe{\\i0}, ja,\\Nund mehr
Comment: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,nobody says this
Dialogue: 0,0:00:03.00,0:00:04.00,Default,,0,0,0,,later
"""


def write_film(path, tracks):
    """A second of picture with text tracks: of each its language, `+forced` where it is, and its words."""
    head = (
        b"[Script Info]\n[V4+ Styles]\nFormat: Name, Fontname\nStyle: Default,Arial\n[Events]\nFormat: Layer, Text\n"
    )
    with av.open(str(path), "w", format="matroska") as output:
        video = output.add_stream("mjpeg", rate=5)
        video.width = video.height = 64
        video.pix_fmt = "yuvj420p"
        streams = []
        for language, words in tracks:
            stream = output.add_stream("subrip")
            stream.codec_context.subtitle_header, stream.codec_context.time_base = head, Fraction(1, 1000)
            stream.metadata["language"] = language.partition("+")[0]
            if language.endswith("+forced"):
                stream.disposition = av.stream.Disposition.forced
            streams.append((stream, words))
        output.start_encoding()
        for _ in range(5):
            output.mux(video.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")))
        output.mux(video.encode(None))
        for stream, words in streams:
            event = av.subtitles.subtitle.SubtitleSet.create(f"0,0,Default,,0,0,0,,{words}".encode(), 0, 900, pts=0)
            packet = stream.codec_context.encode_subtitle(event)
            packet.stream, packet.time_base, packet.duration, packet.pts = stream, Fraction(1, 1000), 900, 0
            packet.dts = 0
            output.mux(packet)
    return path


def beside(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CUE.format(name))


def order(folder, languages=(), film="film.mp4"):
    found = in_order(subtitles_beside(folder / film), languages_of(languages))
    return [(os.fspath(words.file.relative_to(folder)), words.language) for words in found]


def test_subtitles_are_found_by_the_names_that_players_know(tmp_path):
    names = {
        "film.srt": None,
        "film.VTT": None,
        "film.eng.SRT": "en",
        "film.en-orig.vtt": "en",
        "film.de.ass": "de",
        "film.mp4.fr.srt": "fr",
        "film.Italian.sdh.srt": "it",
        "film.pt-BR.ssa": "pt-BR",
        "Subs/film.nl.srt": "nl",
        "Subs/film/3_Spanish.srt": "es",
        "film.en.hi.forced.srt": "en",
        "film.sub": None,
    }
    beside(tmp_path, "film.mp4", "film two.mp4", *names)
    beside(tmp_path, "film.2.srt", "film two.srt", "Subs/German.srt", "films.en.srt", "filmed.srt", "Other/film.srt")
    assert dict(order(tmp_path)) == names
    assert order(tmp_path, film="FILM TWO.mkv") == [("film two.srt", None)]
    (tmp_path / "film two.mp4").unlink()  # what lies in a folder of subtitles is now the only film's
    assert dict(order(tmp_path)) == names | {"Subs/German.srt": "de"}


def test_what_comes_first_is_said_by_languages_and_else_guessed(tmp_path):
    beside(tmp_path, "film.mp4", "film.fr.srt", "film.en.forced.srt", "film.de.vtt", "film.en.sdh.srt", "film.en.srt")
    beside(tmp_path, "Subs/film.en.srt", "film.sub")
    first = ["film.en.srt", "Subs/film.en.srt", "film.en.sdh.srt", "film.de.vtt", "film.fr.srt"]
    last = ["film.en.forced.srt", "film.sub"]
    assert [name for name, _ in order(tmp_path)] == first + last
    assert [name for name, _ in order(tmp_path, "fr,german")] == ["film.fr.srt", "film.de.vtt", *first[:3], *last]
    assert find_sidecar(tmp_path / "film.mp4") == tmp_path / "film.en.srt"
    assert find_sidecar(tmp_path / "film.mp4", ["de"]) == tmp_path / "film.de.vtt"
    beside(tmp_path, "film.srt", "film.vtt")
    assert [name for name, _ in order(tmp_path)] == ["film.srt", "film.vtt", *first, *last]
    assert find_sidecar(tmp_path / "film.mp4", ["fr"]) == tmp_path / "film.fr.srt"
    assert find_sidecar(tmp_path / "none.mp4") is find_sidecar("nowhere/film.mp4") is None
    assert clip_sha256(str(tmp_path / "film.mp4")) != clip_sha256(str(tmp_path / "film.mp4"), languages=["fr"])


def test_a_language_is_a_code_or_a_name():
    assert [language_of(name) for name in ("ger", "deu", "DE", "German", "de-AT", "zh-Hans")] == [
        "de", "de", "de", "de", "de-AT", "zh-Hans",
    ]  # fmt: skip
    assert {language_of(name) for name in ("", "und", "mul", "2", "x264", "forced", "directors cut")} == {None}
    assert languages_of("de, en,ger") == ["de", "en"] and languages_of(["pt-BR"]) == ["pt-BR"]
    with pytest.raises(ValueError, match="got 'gibberish'"):
        languages_of("en,gibberish")


def test_a_folder_that_changes_is_looked_at_again(tmp_path):
    beside(tmp_path, "film.mp4")
    for settled in (False, True):
        if settled:
            long_ago = time.time_ns() - 3600 * 10**9
            os.utime(tmp_path, ns=(long_ago, long_ago))
        assert find_sidecar(tmp_path / "film.mp4") is None
        time.sleep(0.02)  # the clock of a file system ticks
        beside(tmp_path, "film.srt")
        assert find_sidecar(tmp_path / "film.mp4") == tmp_path / "film.srt"
        (tmp_path / "film.srt").unlink()


SAID = {
    "fr": ("Le garçon est allé à l'école. Où êtes-vous ?", "cp1252"),
    "de": ("Der Bär läuft über die Wiese, sagt Jürgen.", "latin-1"),
    "pl": ("Zażółć gęślą jaźń, dziękuję bardzo. Gdzie są moje książki?", "cp1250"),
    "ru": ("Привет, как дела сегодня? Я очень рад тебя видеть.", "cp1251"),
    "tr": ("Nasılsın? Bugün gün çok güzel, değil mi?", "cp1254"),
    "ja": ("こんにちは、今日はいい天気ですね。どこへ行きますか。", "shift_jis"),
    "zh": ("你好，今天天气很好。你要去哪里？我们一起去吧。", "gb18030"),
    "en": ("Nothing — but words.", "utf-16"),
}


@pytest.mark.parametrize("language", SAID)
def test_words_are_read_in_the_encoding_that_they_are_in(tmp_path, language):
    words, encoding = SAID[language]
    path = tmp_path / f"film.{language}.srt"
    path.write_bytes(CUE.format(words).encode(encoding))
    assert SandboxedReader().read_subtitle_of(tmp_path / "film.mp4") == words
    if encoding != "utf-16":
        with pytest.raises(MediaError, match="not UTF-8"):
            MediaReader().read_subtitle(path)
    path.write_bytes(CUE.format(words).encode())
    assert SandboxedReader().read_subtitle(path) == MediaReader().read_subtitle(path) == words


def test_scripts_of_substation_alpha_are_read_with_their_seconds(tmp_path):
    path = tmp_path / "film.ass"
    reader = SandboxedReader()
    for encoding in ("utf-8", "utf-8-sig", "cp1252"):
        path.write_bytes(ASS.encode(encoding))
        assert reader.read_subtitle(path) == "Größe, ja, und mehr later"
    assert reader.read_cues(path) == [(0.5, 1.5, "Größe, ja, und mehr"), (3.0, 4.0, "later")]
    assert reader.read_subtitle(path, (2.0, None)) == "later" and reader.read_subtitle(path, (0.0, 0.4)) == ""
    for content in (b"no script", b"\x00\xff" * 50):
        path.write_bytes(content)
        with pytest.raises(MediaError, match="film.ass"):
            reader.read_subtitle(path)
    path.write_bytes(b"\n")
    assert reader.read_subtitle(path) == ""


def test_of_tracks_the_first_is_read_and_of_files_the_english_one(tmp_path):
    film = write_film(tmp_path / "film.mkv", [("ger", "guten tag"), ("eng", "good day")])
    assert SandboxedReader().read_subtitle_of(film) == "guten tag"
    assert SandboxedReader(languages="en").read_subtitle_of(film) == "good day"
    for language in ("de", "en"):
        (tmp_path / f"film.{language}.srt").write_text(CUE.format(language))
    assert SandboxedReader().read_subtitle_of(film) == "en"


def test_of_tracks_and_files_the_preferred_language_is_read_and_the_others_are_reported(tmp_path):
    film = write_film(tmp_path / "film.mkv", [("fra+forced", "un peu"), ("fra", "bonjour"), ("ger", "guten tag")])
    assert SandboxedReader().read_subtitle_of(film) == "bonjour"  # not the first, which is of a few words
    assert MediaReader().read_subtitle_of(film) == "un peu"
    assert SandboxedReader(languages="de").read_subtitle_of(film) == "guten tag"
    assert SandboxedReader(languages="de").read_subtitle_track(film) == "guten tag"
    assert SandboxedReader(languages="de").read_cues(film) == [(0.0, 0.9, "guten tag")]
    (tmp_path / "film.en.srt").write_text(CUE.format("good day"))
    for languages, words in (
        ((), "good day"),
        (["de"], "guten tag"),
        (["es"], "good day"),
        (["en", "de"], "good day"),
    ):
        reader = SandboxedReader(languages=languages)
        assert reader.read_subtitle_of(film) == words
        assert [words.kind for words in reader.subtitles_of(film)[1:]].count("in fr") == 2
    film.write_bytes(b"broken")
    assert SandboxedReader(languages=["de"]).read_subtitle_of(film) == "good day"
