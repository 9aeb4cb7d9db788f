"""Which subtitle is that of a media file, and how it is read."""

import os
import time
from fractions import Fraction

import av
import numpy as np
import pytest

from scalar_retrieval.gallery.decoding import SandboxedReader
from scalar_retrieval.gallery.store.file_state import clip_sha256
from scalar_retrieval.modeling_scalar.media_scalar import MediaError, MediaReader
from scalar_retrieval.modeling_scalar.tracks_scalar import find_sidecar

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
    """A second of picture with text tracks, of the given words; `+default` at their end marks the default track, and
    `en:` or another language at their beginning names it."""
    head = (
        b"[Script Info]\n[V4+ Styles]\nFormat: Name, Fontname\nStyle: Default,Arial\n[Events]\nFormat: Layer, Text\n"
    )
    with av.open(str(path), "w", format="matroska") as output:
        video = output.add_stream("mjpeg", rate=5)
        video.width = video.height = 64
        video.pix_fmt = "yuvj420p"
        streams = []
        for track in tracks:
            language, _, words = track.rpartition(":")
            stream = output.add_stream("subrip")
            stream.metadata["language"] = language or "und"
            stream.codec_context.subtitle_header, stream.codec_context.time_base = head, Fraction(1, 1000)
            stream.disposition = av.stream.Disposition(0)
            if words.endswith("+default"):
                stream.disposition = av.stream.Disposition.default
            streams.append((stream, words.removesuffix("+default")))
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
        (folder / name).write_text(CUE.format(name))


def test_the_subtitle_file_with_the_shortest_name_is_that_of_a_video(tmp_path):
    film = tmp_path / "film.mp4"
    beside(tmp_path, "film.mp4", "film two.mp4", "film.cut.mp4")
    beside(tmp_path, "film.cut.en.srt", "film two.srt", "films.srt", "film.sub", "film.txt")
    assert find_sidecar(film) is find_sidecar(tmp_path / "none.mp4") is find_sidecar("nowhere/film.mp4") is None
    for name in ("film.en.forced.srt", "film.mp4.srt", "film.fr.ass", "FILM.DE.VTT", "film.vtt", "film.SRT"):
        before = clip_sha256(str(film))
        beside(tmp_path, name)
        assert find_sidecar(film) == tmp_path / name
        assert clip_sha256(str(film)) != before
    (tmp_path / "film.SRT").unlink()
    (tmp_path / "film.SRT").symlink_to(tmp_path / "nowhere")
    assert find_sidecar(film) == tmp_path / "film.vtt"
    assert find_sidecar(tmp_path / "film.cut.mp4") == tmp_path / "film.cut.en.srt"
    assert find_sidecar(tmp_path / "FILM TWO.mkv") == tmp_path / "film two.srt"


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
    for content in (b"no script", b"\xff" * 50):
        path.write_bytes(content)
        with pytest.raises(MediaError, match="film.ass"):
            reader.read_subtitle(path)
    path.write_bytes(b"\n")
    assert reader.read_subtitle(path) == ""


@pytest.mark.parametrize("language", ["eng", "en", "en-GB"])
def test_the_track_in_english_is_read_before_the_default_one(tmp_path, language):
    film = write_film(tmp_path / "film.mkv", ["ger:guten tag+default", "bonjour", f"{language}:good day", "eng:later"])
    for reader in (SandboxedReader(), MediaReader()):
        assert reader.read_subtitle_of(film) == "good day"
    write_film(film, ["eng:good day", "eng:later+default", "ger:guten tag"])
    assert MediaReader().read_subtitle_of(film) == "later"
    write_film(film, ["enm:wæs hæl", "ger:guten tag+default"])
    assert MediaReader().read_subtitle_of(film) == "guten tag"


def test_the_default_track_is_read_unless_a_file_lies_beside(tmp_path):
    film = write_film(tmp_path / "film.mkv", ["guten tag", "good day+default", "bonjour"])
    for reader in (SandboxedReader(), MediaReader()):
        assert reader.read_subtitle_of(film) == "good day"
    assert SandboxedReader().read_cues(film) == [(0.0, 0.9, "good day")]
    write_film(film, ["guten tag", "good day"])
    assert SandboxedReader().read_subtitle_of(film) == MediaReader().read_subtitle_of(film) == "guten tag"
    (tmp_path / "film.de.srt").write_text(CUE.format("hallo"))
    assert SandboxedReader().read_subtitle_of(film) == "hallo"
    film.write_bytes(b"broken")
    assert SandboxedReader().read_subtitle_of(film) == "hallo"
    assert SandboxedReader().read_cues(film) == [(0.0, 1.0, "hallo")]
