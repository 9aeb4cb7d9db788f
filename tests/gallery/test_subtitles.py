"""Which subtitle is that of a media file, and how it is read."""

import io
import time
import unicodedata
from fractions import Fraction

import av
import pytest

from scalar_retrieval.gallery.decoding import SandboxedReader
from scalar_retrieval.gallery.store.file_state import clip_sha256, clip_stat
from scalar_retrieval.modeling_scalar.media_scalar import MediaError, MediaReader
from scalar_retrieval.modeling_scalar.tracks_scalar import find_sidecar, main_stream
from tests.media_corpus import _subtitle_packets, box, media, remux

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


def one_picture(output):
    """Begin a stream of pictures; the packets of its only one."""
    stream = output.add_stream("mjpeg", rate=5)
    stream.width = stream.height = 64
    stream.pix_fmt = "yuvj420p"
    return stream.encode(av.VideoFrame(64, 64, "yuvj420p"))


def write_film(path, tracks):
    """A picture with text tracks, of the given words; `+default` and other flags may follow them, and `en:` or another
    language, or `en/a title:`, may stand before them."""
    with av.open(str(path), "w", format="matroska") as output:
        picture, written = one_picture(output), []
        for track in tracks:
            tags, _, words = track.rpartition(":")
            language, _, title = tags.partition("/")
            words, *flags = words.split("+")
            stream = output.add_stream("subrip")
            stream.metadata.update({"language": language or "und", "title": title})
            stream.codec_context.subtitle_header, stream.codec_context.time_base = ASS.encode(), Fraction(1, 1000)
            stream.disposition = av.stream.Disposition(0)
            for flag in flags:
                stream.disposition |= av.stream.Disposition[flag]
            written.append((stream, words))
        output.mux(picture)
        for stream, words in written:
            for packet in _subtitle_packets(stream, [words]):
                output.mux(packet)
    return path


def beside(folder, *names):
    for name in names:
        (folder / name).write_text(CUE.format(name))


def test_the_subtitle_file_with_the_shortest_name_is_that_of_a_video(tmp_path):
    film = tmp_path / "film.mp4"
    beside(tmp_path, "film.mp4", "film.cut.mp4", "film.cut.en.srt", "films.srt", "film.sub", "film.txt")
    assert find_sidecar(film) is find_sidecar("nowhere/film.mp4") is None
    for name in ("film.en.forced.srt", "film.mp4.srt", "film.fr.ass", "FILM.DE.VTT", "film.vtt", "film.SRT"):
        before = clip_sha256(str(film))
        beside(tmp_path, name)
        assert find_sidecar(film) == tmp_path / name
        assert clip_sha256(str(film)) != before
    (tmp_path / "film.SRT").unlink()
    (tmp_path / "film.SRT").symlink_to(tmp_path / "nowhere")
    assert find_sidecar(film) == tmp_path / "film.vtt"
    composed, decomposed = (unicodedata.normalize(form, "Übung") for form in ("NFC", "NFD"))
    beside(tmp_path, f"{decomposed}.en.srt")
    assert find_sidecar(tmp_path / f"{composed}.mp4") == tmp_path / f"{decomposed}.en.srt"


BESIDE = {  # of `film.mp4`: the first is its subtitle file, None if there is none
    "film.en.srt": ("film.de.srt", "film.srt", "film.en.forced.srt", "film.en.sdh.srt"),
    "film.english.full.srt": ("film.german.srt", "film.en.signs.srt", "film.en.commentary.srt"),
    "film.de.srt": ("film.forced.srt", "film.de.hi.srt", "film.en.forced.srt"),
    "film-en.srt": ("film_de.srt", "film-2.mp4", "film-2.srt", "film-part2.srt"),
    "film_en.srt": ("film.fr.srt",),
    "film (English).srt": ("film - German.srt",),
    "film [pt-BR].srt": ("film 2.srt",),
    "film.ttml": ("film.forced.srt",),
    None: (
        "film_en.mp4",
        "film_en.srt",
        "film-part2.srt",
        "film-2.srt",
        "filmen.srt",
        "film.cut.mp4",
        "Subs/film.cut.srt",
        "my film.srt",
        "Subs/English.srt",
    ),
    "Subs/film.srt": ("Subs/film-2.srt", "film-2.mp4"),
    "SUBTITLES/film/2_English.srt": ("SUBTITLES/film/3_German.srt", "SUBTITLES/film/4_English (SDH).srt"),
    "Subs/2_English.srt": ("Subs/3_German.srt",),  # next to a single film
    "sub/Film.en.srt": ("film.srt", "Subs/film.de.srt"),
    "film.srt": ("Subs/film.srt/film.en.txt", "Subs/film.en/film.en.srt"),
}


@pytest.mark.parametrize("expected", BESIDE)
def test_of_several_subtitle_files_the_best_is_that_of_a_video(tmp_path, expected):
    names = ["film.mp4", *BESIDE[expected]]
    if expected is not None:
        names.append(expected)
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        beside(tmp_path, name)
    found = find_sidecar(tmp_path / "film.mp4")
    assert found == (None if expected is None else tmp_path / expected)


def test_a_subtitle_file_that_appears_in_a_folder_below_makes_a_file_a_changed_one(tmp_path):
    beside(tmp_path, "film.mp4")
    folder = tmp_path / "Subs" / "film"
    folder.mkdir(parents=True)
    known = clip_stat(str(tmp_path / "film.mp4")), clip_sha256(str(tmp_path / "film.mp4"))
    time.sleep(0.02)  # the clock of a file system ticks
    beside(folder, "1.srt")
    assert clip_stat(str(tmp_path / "film.mp4")) != known[0]
    assert clip_sha256(str(tmp_path / "film.mp4")) != known[1]


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


TRACKS = [  # the words that are read say so
    ["eng:no, signs+forced+default", "eng:yes"],
    ["eng/Signs & Songs:no, signs+default", "eng/Dialogue:yes"],
    ["eng:no, a comment+comment", "eng/Director's commentary:no, another", "eng:yes"],
    ["eng/SDH:no, for others+default", "eng:no, for others+hearing_impaired", "eng:yes"],
    ["eng:no, signs+forced", "ger/SDH:no, for others", "ger:yes"],
    ["ger:no+default", "/English:yes"],
    *[["ger:no+default", "no", f"{language}:yes", "eng:no, later"] for language in ("eng", "en", "en-GB")],
    ["eng:no", "eng:yes+default", "ger:no"],
    ["enm:no", "ger:yes+default"],
    ["no", "yes+default", "no"],
    ["yes", "no"],
]


@pytest.mark.parametrize("tracks", TRACKS)
def test_of_several_tracks_a_full_one_in_english_or_the_default_one_is_read(tmp_path, tracks):
    film = write_film(tmp_path / "film.mkv", tracks)
    assert MediaReader().read_subtitle_of(film) == "yes"
    assert SandboxedReader().read_cues(film) == [(0.0, 0.9, "yes")]


STREAMS = {
    "commentary by its flag": ([("", "comment"), ("", "default")], 1),
    "commentary by its title": ([("Commentary", "default"), ("", "")], 1),
    "audio description": ([("", "visual_impaired"), ("", "descriptions"), ("English AD", "default"), ("Main", "")], 3),
    "the default one": ([("", ""), ("", "default"), ("", "default")], 1),
    "the first": ([("", "forced"), ("English", "")], 0),
    "nothing else": ([("", "comment")], 0),
    "no cover": ([("", "attached_pic"), ("", "comment")], 1),
}


@pytest.mark.parametrize("codec", ["pcm_s16le", "mjpeg"])
@pytest.mark.parametrize("case", STREAMS)
def test_of_several_sounds_and_pictures_the_main_one_is_read(case, codec):
    described, expected = STREAMS[case]
    with av.open(io.BytesIO(), "w", format="matroska") as output:
        for title, flag in described:
            stream = output.add_stream(codec)
            stream.metadata["title"] = title
            stream.disposition = av.stream.Disposition[flag] if flag else av.stream.Disposition(0)
        assert main_stream("film.mkv", output, stream.type).index == expected


def test_a_file_beside_is_read_before_a_track_and_though_the_film_is_broken(tmp_path):
    film = write_film(tmp_path / "film.mkv", ["guten tag"])
    (tmp_path / "film.de.srt").write_text(CUE.format("hallo"))
    assert SandboxedReader().read_subtitle_of(film) == "hallo"
    film.write_bytes(b"broken")
    assert SandboxedReader().read_subtitle_of(film) == "hallo"
    assert SandboxedReader().read_cues(film) == [(0.0, 1.0, "hallo")]


TTML = """<?xml version="1.0" encoding="UTF-8"?>
<tt:tt xmlns:tt="http://www.w3.org/ns/ttml" xmlns:ttp="http://www.w3.org/ns/ttml#parameter" ttp:frameRate="25"
  ttp:tickRate="1000"><tt:head><tt:title>no words</tt:title></tt:head>
  <tt:body><tt:div begin="10s">{}</tt:div></tt:body></tt:tt>"""
TIMES = {
    'begin="00:00:01.5" end="00:00:02.000"': (11.5, 12.0),
    'begin="00:00:01:05" end="01:00:00"': (11.2, 3610.0),
    'begin="1.5s" dur="100ms"': (11.5, 11.6),
    'begin="50f" end="4000t"': (12.0, 14.0),
    'begin="1m" dur="0.5h"': (70.0, 1870.0),
    "": (10.0, 10.0),
}


@pytest.mark.parametrize("times", TIMES)
def test_ttml_is_read_with_its_seconds(tmp_path, times):
    path = tmp_path / "film.ttml"
    path.write_text(TTML.format(f"<tt:p {times}>Größe &amp; <tt:span>so</tt:span><tt:br/>weiter</tt:p>"), "utf-8")
    ((start, stop, words),) = SandboxedReader().read_cues(path)
    assert (start, stop) == pytest.approx(TIMES[times]) and words == "Größe & so weiter"
    assert SandboxedReader().read_subtitle_of(tmp_path / "film.mp4") == "Größe & so weiter"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('<!DOCTYPE tt [<!ENTITY a "aaaa">]><tt><body><p begin="0s" end="1s">&a;</p></body></tt>', "document type"),
        (TTML.format('<tt:p begin="soon">never</tt:p>'), "the time 'soon'"),
        (TTML.format(f'<tt:p begin="{"9" * 30}">never</tt:p>'), "the time '9999"),
        (TTML.format("<tt:p>never"), "mismatched tag"),
        (TTML.replace("25", "0").format(""), "division by zero"),
    ],
)
def test_ttml_that_is_not_read_says_why(tmp_path, content, reason):
    (tmp_path / "film.ttml").write_text(content)
    with pytest.raises(MediaError, match=f"film.ttml: the TTML document does not decode .*{reason}"):
        MediaReader().read_subtitle(tmp_path / "film.ttml")


def test_webvtt_is_read_from_matroska_by_the_name_of_its_specification(tmp_path):
    film = media("matroska", "libx264", "", "webvtt", lines=("Hello, <i>world</i> &amp; all",))
    (tmp_path / "film.mkv").write_bytes(film.replace(b"D_WEBVTT/SUBTITLES", b"S_TEXT/WEBVTT".ljust(18, b"\0")))
    for reader in (SandboxedReader(), MediaReader()):
        assert reader.read_subtitle_of(tmp_path / "film.mkv") == "Hello, world & all"


CAPTIONS = """Scenarist_SCC V1.0

00:00:00:00\t9420 9420 94ae 94ae 9470 9470 c845 4c4c 4f20 942f 942f

00:00:02:00\t9420 9420 94ae 94ae 9470 9470 5745 4c4c 942f 942f

00:00:04:00\t942c 942c
"""


def test_captions_of_television_are_read_from_their_track(tmp_path):
    with av.open(io.BytesIO(CAPTIONS.encode())) as captions, av.open(str(tmp_path / "film.mov"), "w") as output:
        picture, track = one_picture(output), output.add_stream_from_template(captions.streams.subtitles[0])
        output.mux(picture)
        for packet in captions.demux():
            if packet.dts is not None:
                packet.stream = track
                output.mux(packet)
    cues = SandboxedReader().read_cues(tmp_path / "film.mov")
    assert cues == [(0.0, 2.0, "HELLO"), (2.0, pytest.approx(4.0), "WELL")]


# The words of the first caption above, one in each picture, and padding: as SEI of H.264 and user data of MPEG-2.
PICTURED = {
    "libx264": (b"\0\0\0\x34\6\4\x31\xb5\0\x31%s", "mp4"),
    "mpeg2video": (b"\0\0\1\xb2%s", "mpegts"),
    "mpeg2video in Matroska": (b"\0\0\1\xb2%s", "matroska"),
}


@pytest.mark.parametrize("name", PICTURED)
def test_captions_inside_pictures_are_read_without_decoding_these(tmp_path, name, monkeypatch):
    head, kind = PICTURED[name]
    words = bytes.fromhex(CAPTIONS.splitlines()[2].split("\t")[1])

    def with_captions(packets):
        first = min(packet.pts for packet in packets)
        changed = []
        for packet in packets:
            place = 2 * round((packet.pts - first) * packet.time_base * 10)
            said = words[place : place + 2].ljust(2, b"\x80")
            block = b"GA94\3\xc2\xff\xfc%s\xfd\x80\x80".ljust(18) % said
            content = bytes(packet)
            if name == "libx264":
                content = head % block.ljust(46, b"\xff") + content
            else:
                place = content.index(b"\0\0\1\1")
                content = content[:place] + head % block + content[place:]
            new = av.Packet(content)
            for attribute in ("stream", "pts", "dts", "time_base", "duration", "is_keyframe"):
                setattr(new, attribute, getattr(packet, attribute))
            changed.append(new)
        return changed

    film = media(kind, name.split()[0], pixels="yuv420p", encoder="bf=2")
    (tmp_path / "film").write_bytes(remux(film, kind, with_captions))
    monkeypatch.delattr(MediaReader, "decoded")
    ((start, stop, lines),) = MediaReader().cues_of_track(tmp_path / "film")
    assert (start, stop, lines) == (pytest.approx(0.9, abs=0.05), pytest.approx(2.0, abs=0.05), ["HELLO "])


def test_pictures_without_captions_and_with_padding_alone_have_no_words(tmp_path):
    (tmp_path / "film.mp4").write_bytes(media("mp4", "libx264"))
    assert MediaReader().read_subtitle_of(tmp_path / "film.mp4") is None


def write_track(path, code, contents, duration):
    """An mp4 whose text track has this code, with one packet after another, each so many milliseconds long."""

    def with_contents(packets):
        kept = [packet for packet in packets if packet.stream.type == "video"]
        (text,) = {packet.stream for packet in packets} - {packet.stream for packet in kept}
        for number, content in enumerate(contents):
            packet = av.Packet(content)
            packet.stream, packet.time_base, packet.duration = text, Fraction(1, 1000), duration
            packet.pts = packet.dts = number * duration
            kept.append(packet)
        return kept

    film = remux(media("mp4", "libx264", "", "mov_text"), "mp4", with_contents)
    path.write_bytes(film.replace(b"tx3g", code))


def test_webvtt_is_read_from_a_track_of_mp4(tmp_path):
    long = b"all " * 50  # its size is no text
    first = box(b"payl", b"Hello, <i>world</i> &amp; " + long)
    cues = [
        box(b"vtte"),
        box(b"vttc", box(b"iden", b"1"), first, box(b"sttg", b"line:0")),
        box(b"vttc", box(b"payl", b"one")) + box(b"vttc", box(b"payl", b"two")),
    ]

    write_track(tmp_path / "film.mp4", b"wvtt", cues, 1000)
    found = [cue for cue in SandboxedReader().read_cues(tmp_path / "film.mp4") if cue[2]]
    assert found == [(1.0, 2.0, ("Hello, world & " + long.decode()).strip()), (2.0, 3.0, "one"), (2.0, 3.0, "two")]


def test_ttml_is_read_from_a_track_of_mp4(tmp_path):
    said = TTML.format('<tt:p begin="1s" end="2s">in a track</tt:p>').encode()
    write_track(tmp_path / "film.mp4", b"stpp", [said], 2000)
    assert SandboxedReader().read_cues(tmp_path / "film.mp4") == [(11.0, 12.0, "in a track")]
