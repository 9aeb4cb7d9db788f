"""The tracks of media files: which one is read, the subtitle files beside them, and the words of either."""

import html
import io
import os
import re
import time
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from itertools import groupby
from operator import mul
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

try:
    import av
except ImportError:
    av = None

FILM_FILES = frozenset(
    ".mp4 .m4v .mp4v .mov .qt .mqv .mkv .mk3d .webm .avi .divx .xvid .mpg .mpeg .mpe .mpv .m1v .m2v .m2p .mp2v .mpv2 "
    ".vob .vro .evo .mod .tod .ts .mts .m2ts .m2t .tp .trp .mxf .flv .f4v .wmv .wm .asf .dvr-ms .wtv .ogv .ogm .ogx "
    ".3gp .3gpp .3g2 .3gp2 .3gpp2 .mj2 .gif .dv .dif .rm .rmvb .nut .ivf .obu .264 .h264 .265 .h265 .hevc .y4m .ismv "
    ".insv .360".split()
)
"""Extensions of films, in lowercase."""
MEDIA_FILES = FILM_FILES.union(
    ".wav .wave .bwf .rf64 .w64 .mp3 .mp2 .m2a .mpa .m4a .m4b .m4r .3ga .aac .adts .ac3 .eac3 .ec3 .flac .ogg .oga "
    ".opus .spx .mka .weba .wma .ra .aif .aiff .aifc .au .snd .caf .amr .awb .wv .ape .tta".split()
)
"""Extensions of films and sounds, in lowercase."""
TEXT_FILES = (".srt", ".vtt", ".ass", ".ssa", ".ttml", ".dfxp")
_TEXT_CODECS = ("ass", "ssa", "subrip", "srt", "webvtt", "mov_text", "text", "cc_dec")
# Encodings of subtitle files that are not UTF-8.
_ENCODINGS = (
    "cp1252 cp1250 cp1251 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 koi8_r cp874 cp932 cp949 gb18030 big5 utf_16 "
    "utf_32"
).split()

# Words in names and titles of tracks and files, and names of FFmpeg's flags: of what is no full account of a film, and
# of what is for people who are hard of hearing.
_ASIDE = set(
    "forced foreign sign signs song songs comment comments commentary kommentar commentaire visual ad "
    "description descriptions descriptive described effects".split()
)
_FOR_DEAF = {"sdh", "cc", "hi", "hoh", "hearing"}
_ENGLISH = {"en", "eng", "english"}
# What may follow the name of a video after a hyphen, a space or the like: a language (ISO 639), or what is above.
_TAGS = set(
    "aa ab af ak am an ar as ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en eo "
    "es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv "
    "ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd "
    "ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr "
    "ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu "
    "ara ben bul cat ces chi cze dan deu dut ell eng est fas fil fin fra fre ger gre heb hin hrv hun ind ita jpn kor "
    "lav lit may msa nld nor per pol por ron rum rus slk slo slv spa srp swe tam tel tha tur ukr urd vie zho "
    "arabic bengali bulgarian catalan chinese croatian czech danish dutch english estonian farsi filipino finnish "
    "french german greek hebrew hindi hungarian indonesian italian japanese korean latvian lithuanian malay norwegian "
    "persian polish portuguese romanian russian serbian slovak slovenian spanish swedish tamil telugu thai turkish "
    "ukrainian urdu vietnamese deutsch français español italiano português us gb cn hk mx hans hant "
    "default full sub subs subtitle subtitles captions".split()
) | _ASIDE | _FOR_DEAF  # fmt: skip

AnyPath = str | os.PathLike
Cue = tuple[float, float, list[str]]
"""Start and end in seconds, and lines."""


class MediaError(ValueError):
    """A file or one of its streams cannot be decoded. The message names the file and, where known, the stream."""


def check_memory(error: Exception) -> None:
    """Raise an error that is due to lack of memory, for data or for a thread, as a MemoryError."""
    if isinstance(error, (MemoryError, BlockingIOError)):
        raise MemoryError(str(error)) from error


def select(container: Any, stream: Any) -> None:
    """Make the demuxer skip the data of all other streams."""
    for other in container.streams:
        if other.index != stream.index:
            other.discard = av.stream.Discard.all


def rank(words: str) -> tuple[bool, bool, bool, bool]:
    """The order of tracks, and of subtitle files, by what is said of them; the least one is read. What is no full
    account of a film (forced subtitles, signs, commentary, descriptions) comes last, before that what is not in
    English, then what is for people who are hard of hearing, and what is not the default."""
    tags = set(re.findall(r"[^\W\d_]+", words.casefold()))
    return bool(tags & _ASIDE), not tags & _ENGLISH, bool(tags & _FOR_DEAF), "default" not in tags


def rank_of_track(stream: Any) -> tuple[bool, bool, bool, bool]:
    """The rank of a track by its flags, language and title. Containers write `eng`, some programs `en` or `en-GB`."""
    words = [stream.metadata.get(name, "") for name in ("language", "title", "handler_name")]
    words.append(str(stream.disposition.name))
    if stream.type != "subtitle":  # a forced track of sound is one that must be played
        words[-1] = words[-1].replace("forced", "")
    return rank(" ".join(words))


def main_stream(path: AnyPath, container: Any, kind: str) -> Any:
    """Select the stream of a kind to read, if any: the first default one, or else the first, but a commentary or
    description only if there is nothing else. Cover art and thumbnails are attached pictures, not video."""
    streams = []
    for stream in getattr(container.streams, kind):
        if not stream.disposition & (av.stream.Disposition.attached_pic | av.stream.Disposition.timed_thumbnails):
            streams.append(stream)
    if not streams:
        return None
    stream = min(streams, key=lambda stream: rank_of_track(stream)[::3])  # whether aside, whether default
    if stream.codec_context is None:
        raise MediaError(f"{path}: no decoder for {kind} stream {stream.index}.")
    select(container, stream)
    return stream


def stream_name(path: AnyPath, stream: Any) -> str:
    """The name of a stream of a file in errors."""
    return f"{path}: {stream.type} stream {stream.index} ({getattr(stream.codec_context, 'name', 'unknown')})"


def is_text(path: AnyPath, container: Any, stream: Any) -> bool:
    """Whether the packets of a track of subtitles or data are text: FFmpeg decodes it, or, of tracks in Matroska and
    MP4 that it does not know, they may be WebVTT or TTML. Unknown tracks of broadcasts are teletext."""
    if stream.type == "data":  # as FFmpeg calls WebVTT in MP4, and what cameras measure
        entries = stream.index_entries
        if not len(entries):
            return False
        with open(path, "rb") as file:
            file.seek(max(0, entries[0].pos))
            return file.read(8)[4:] in _BOXES
    if stream.codec_context is None:
        return container.format.name.startswith(("matroska", "mov"))
    return stream.codec_context.name in _TEXT_CODECS


def _plain(name: str) -> str:
    """A name by which files that belong together find each other, however a system writes case and accents."""
    return unicodedata.normalize("NFC", name.casefold())


def _owners(stem: str, media: Collection[str]) -> Iterator[str]:
    """The names of media files to which a subtitle file of this name may belong: `film` of `film.en`, `film-en` and
    `film (English)`, but not of `film-2`; and of none of them if there is a media file of a longer name."""
    yield stem
    for end in range(len(stem) - 1, 0, -1):
        if stem[: end + 1] in media:
            return
        if stem[end] == "." or (stem[end] in "-_ ([" and _TAGS.issuperset(re.findall(r"[^\W_]+", stem[end:]))):
            yield stem[:end]


@lru_cache(maxsize=32)
def _listed(folder: Path, version: tuple[int, int], media: frozenset[str]) -> tuple[frozenset[str], dict]:
    known = set(media)
    files = defaultdict(list)
    subtitles = []
    for name in os.listdir(folder):
        stem, extension = os.path.splitext(_plain(name))
        if extension in MEDIA_FILES:
            known.add(stem)
        elif extension in TEXT_FILES:
            subtitles.append((stem, name))
        else:  # perhaps a folder
            files[stem + extension].append(folder / name)
    for stem, name in subtitles:
        for owner in ("", *_owners(stem, known)):
            files[owner].append(folder / name)
    return frozenset(known), files


def _list(folder: Path, media: frozenset[str] = frozenset()) -> tuple[frozenset[str], dict[str, list[Path]]]:
    """The media files in a folder, without extension and with those of another folder, and the subtitle files and
    folders by the name of the media file that they belong to, and by `""`; all names as from `_plain`."""
    # List the folder once for all its files, again when it has changed.
    try:
        changed = os.stat(folder).st_mtime_ns
        now = time.time_ns()
        version = (changed, 0)
        if now - changed <= 2e9:  # the coarsest clock of file systems: later changes may have the same time
            version = (changed, now // 10**9)
        return _listed(folder, version, media)
    except OSError:
        return media, {}


def find_sidecar(path: AnyPath) -> Path | None:
    """
    The subtitle file of a media file, if any: `film.srt` of `film.mp4`, or with something between the name and the
    extension, as `film.en.srt`, `film-en.srt` and `film (English).srt`, unless it belongs to a media file with a
    longer name; also in a folder `Subs`, `Sub` or `Subtitles`, and any file in `Subs/film`, or in `Subs` next to a
    single film. Of several, the one by `rank`, then that with the shortest name. Case does not matter, nor how accents
    are encoded.
    """
    path = Path(os.path.abspath(path))
    stem = _plain(path.stem)
    media, beside = _list(path.parent)
    found = [*beside.get(stem, ())]
    # Folders of subtitles next to it.
    for name in ("subs", "sub", "subtitles"):
        for folder in beside.get(name, ()):
            further, below = _list(folder, media)
            for file in below.get(stem, ()):
                found += [file, *_list(file)[1].get("", ())]
            if len(media) == 1 and further == media:  # not one that holds films itself
                found += below.get("", ())

    def order(file: Path) -> tuple[tuple[bool, ...], int, str]:
        return rank(_plain(file.stem).removeprefix(stem)), len(file.name), file.name

    for file in sorted(found, key=order):
        if file.suffix.lower() in TEXT_FILES and file.exists():  # no folder, no broken link
            return file
    return None


def names_subtitle_file(subtitle: Any) -> bool:
    """Whether a subtitle is the path of a subtitle file, not the text itself."""
    if isinstance(subtitle, str):
        return subtitle.lower().endswith(TEXT_FILES) and "\n" not in subtitle
    return isinstance(subtitle, os.PathLike)


def join_lines(lines: Iterable[str]) -> str:
    """Join cue lines to one string; a line that repeats the one before it (rolling captions) counts once."""
    stripped = (" ".join(line.split()) for line in lines)
    return " ".join(line for line, _ in groupby(filter(None, stripped)))


_TTML = re.compile(r"<(\w+:)?tt\b")
_RATE = re.compile(r"\b(frameRate|tickRate)=[\"'](\d+)")
_BREAK = re.compile(r"</?(\w+:)?br\b[^>]*>")
_TIMING = re.compile(r"\b\d{1,3}(:\d\d){2}[.,]\d{1,3}\s*-->\s*\d{1,3}(:\d\d){2}[.,]\d")
_MARKUP = re.compile(r"\{\\[^{}]*\}")  # which the decoders of FFmpeg make of every format's
_BOXES = (b"vttc", b"vtte")  # of WebVTT in MP4 (ISO/IEC 14496-30): a cue, and none
_CUE_IN_MP4 = re.compile(rb"(....)payl", re.DOTALL)  # the size of its text
# CEA-608 in pictures (ATSC A/53), in the SEI of H.264 and HEVC and the user data of MPEG-2: three bytes each.
_CAPTIONS = re.compile(rb"(?:\xb5\x00\x31|\x00\x00\x01\xb2)GA94\x03..((?:[\xf8-\xfe]..)+)", re.DOTALL)
_OF_FIELD_1 = re.compile(r"\bfc(?!8080)(\w+)")  # in hexadecimal, without padding


def _decoded_text(path: AnyPath, content: bytes) -> str:
    """The text of a subtitle file; an encoding other than UTF-8 is guessed from its bytes."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"{path}: the subtitle file is not UTF-8 ({error.reason}). Convert it"
    try:
        from charset_normalizer import from_bytes
    except ImportError:
        raise MediaError(f"{problem}, or install charset-normalizer.") from None
    matches = list(from_bytes(content, cp_isolation=_ENCODINGS))
    if not matches:
        raise MediaError(f"{problem}: its encoding is unknown.")
    # Among equally good matches the Western European encoding, by far the most frequent one.
    for match in matches:
        if match.encoding == "cp1252" and match.chaos <= matches[0].chaos:
            return str(match)
    return str(matches[0])


def _ttml_cues(name: str, text: str) -> list[Cue]:
    """The cues of a TTML document: its paragraphs, whose times count from those of the elements around them."""
    try:
        if "<!DOCTYPE" in text:
            raise ValueError("a document type, which may define entities without end")
        root = ElementTree.fromstring(_BREAK.sub("\n", text))
        rates = dict(_RATE.findall(text))
        frame = 1 / float(rates.get("frameRate", 30))
        units = {"h": 3600, "m": 60, "s": 1, "ms": 1e-3, "f": frame, "t": 1 / float(rates.get("tickRate", 1))}

        def seconds(time: str) -> float:
            match = re.fullmatch(r"([\d:.]{1,20})(h|m|s|ms|f|t)?", time)
            if match is None:
                raise ValueError(f"the time {time!r}")
            number, unit = match.groups()
            if ":" not in number:
                return float(number) * units[unit or "s"]
            return sum(map(mul, map(float, number.split(":")), (3600, 60, 1, frame)))

        cues = []
        origins = {root: 0.0}  # when the element around each begins
        for element in root.iter():
            start = origins[element] + seconds(element.get("begin", "0s"))
            origins.update(dict.fromkeys(element, start))
            if element.tag.rpartition("}")[2] == "p":
                stop = start + seconds(element.get("dur", "0s"))
                if "end" in element.attrib:
                    stop = origins[element] + seconds(element.get("end"))
                cues.append((start, stop, "".join(element.itertext()).split("\n")))
        return cues
    except (ElementTree.ParseError, ArithmeticError, ValueError) as error:
        raise MediaError(f"{name}: the TTML document does not decode ({error}).") from error


def _cues_of_text(name: str, text: str, kind: str) -> list[Cue]:
    """The cues of a text in a format of FFmpeg's."""
    try:
        with av.open(io.BytesIO(text.encode()), format=kind) as container:
            return list(track_cues(name, container, container.streams.subtitles[0], 0.0))
    except av.FFmpegError as error:
        check_memory(error)
        raise MediaError(f"{name} does not decode ({error.strerror}).") from error


def captions_in(packet: Any) -> str:
    """The captions inside a packet of pictures, as words of a Scenarist file: four hexadecimal digits each."""
    head = bytes(memoryview(packet)[:4096])  # they stand before the picture
    if b"GA94" not in head:  # which is found faster
        return ""
    triplets = b"".join(_CAPTIONS.findall(head))
    return " ".join(_OF_FIELD_1.findall(triplets.hex(" ", -3)))


def caption_cues(name: str, captions: Iterable[tuple[float, str]]) -> list[Cue]:
    """The cues of captions inside pictures, of which the seconds and the words of `captions_in` are given."""
    lines = ["Scenarist_SCC V1.0"]
    for second, words in captions:
        clock = time.strftime("%H:%M:%S", time.gmtime(second % 86_400))
        lines.append(f"{clock}:{int(second % 1 * 30):02}\t{words}")
    return _cues_of_text(name, "\n\n".join(lines), "scc")


def subtitle_cues(path: AnyPath, content: bytes) -> list[Cue]:
    """The cues of a SubRip, WebVTT, SubStation Alpha or TTML file, without markup."""
    text = _decoded_text(path, content)
    if _TTML.search(text):
        return _ttml_cues(os.fspath(path), text)
    # By content, because extensions are often wrong; without a mark it is SubRip.
    kind = "srt"
    if text.startswith("WEBVTT"):
        kind = "webvtt"
    elif "[Events]" in text:
        kind = "ass"
    cues = _cues_of_text(f"{path}: the subtitle file", text, kind)
    # FFmpeg finds no cue in a text of another format, which is not an empty subtitle.
    if not cues and kind == "srt" and text.strip() and not _TIMING.search(text):
        raise MediaError(
            f"{path}: the subtitle file has text but no cue with a timing (`00:00:01,000 --> 00:00:02,000`)."
        )
    return cues


def _cues_in_boxes(content: bytes) -> list[Any]:
    """The cues in a packet of WebVTT in MP4, as packets for the decoder."""
    packets = []
    for match in _CUE_IN_MP4.finditer(content):
        stop = match.start() + int.from_bytes(match[1])
        packets.append(av.Packet(content[match.end() : stop]))
    return packets


def track_cues(path: AnyPath, container: Any, stream: Any, zero: float) -> Iterator[Cue]:
    """The cues of a text track; `zero` is the file's first second."""
    tick = float(stream.time_base or 0)
    decoder = stream.codec_context or av.CodecContext.create("webvtt", "r")  # see `is_text`
    select(container, stream)
    try:
        for packet in container.demux(stream):
            start = (packet.pts or 0) * tick - zero
            stop = start + (packet.duration or 0) * tick
            parts = [packet]
            if stream.codec_context is None:
                content = bytes(packet)
                if content[4:8] in _BOXES:
                    parts = _cues_in_boxes(content)
                elif _TTML.search(document := content.decode("utf-8")):
                    for begins, ends, lines in _ttml_cues(stream_name(path, stream), document):
                        yield begins - zero, ends - zero, lines
                    continue
            for shown in filter(None, map(decoder.decode2, parts)):
                if decoder.name == "cc_dec":  # the packet ends what was shown before
                    start = shown.pts / av.time_base - zero
                    stop = start + shown.end_display_time / 1000
                for subtitle in shown:
                    # ReadOrder, Layer, Style, Name, MarginL, MarginR, MarginV, Effect, Text
                    text = subtitle.ass.decode("utf-8").split(",", 8)[-1]
                    if re.search(r"\{[^{}]*\\p[1-9]", text):  # a drawing, not words
                        text = ""
                    text = html.unescape(_MARKUP.sub("", text)).replace(r"\h", " ")
                    yield start, stop, re.split(r"\\[Nn]|\n", text)
    except (av.FFmpegError, UnicodeDecodeError) as error:
        check_memory(error)
        reason = getattr(error, "strerror", None) or error
        raise MediaError(f"{stream_name(path, stream)}: the subtitle track does not decode ({reason}).") from error


__all__ = [
    "FILM_FILES",
    "MEDIA_FILES",
    "TEXT_FILES",
    "AnyPath",
    "Cue",
    "MediaError",
    "av",
    "caption_cues",
    "captions_in",
    "check_memory",
    "find_sidecar",
    "main_stream",
    "is_text",
    "join_lines",
    "names_subtitle_file",
    "rank_of_track",
    "stream_name",
    "subtitle_cues",
    "track_cues",
]
