"""Writes the files of the archive: recordings, slides, sounds, films and broken files."""

import shutil
import subprocess
import tempfile
import wave
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import yaml
from PIL import Image, ImageDraw, ImageFont

CONTENTS = Path(__file__).with_name("contents.yaml")

SAMPLING_RATE = 22_050
"""Samples per second of sounds, which is what espeak-ng writes."""
CHAPTER_SECONDS = 75.0
"""Length of a chapter of the long film."""

_SIZE = (640, 360)  # width and height of pictures
_FRAME_RATE = 5
_SECONDS = 6.0  # length of sounds, and of videos with one picture
_SLIDE_SECONDS = 4.0
_CUE_SECONDS = 5.0
_AUDIO_CODECS = {".wav": "pcm_s16le", ".mp3": "mp3", ".flac": "flac", ".ogg": "libopus", ".mkv": "aac"}
_OPUS_RATE = 24_000  # Opus takes few rates
_WORDS_PER_LINE = 6


def read_contents() -> dict[str, list[dict[str, Any]]]:
    """The files and the questions of `contents.yaml`."""
    return yaml.safe_load(CONTENTS.read_text(encoding="utf-8"))


# Sounds --------------------------------------------------------------------------------------------------------------


def _speech(text: str) -> np.ndarray:
    """A text spoken by espeak-ng, int16 `(samples,)`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "speech.wav")
        subprocess.run(["espeak-ng", "-v", "en-us", "-s", "150", "-w", path, text], check=True)
        with wave.open(str(path)) as file:
            samples = file.readframes(file.getnframes())
    return np.frombuffer(samples, np.int16)


def _sound(kind: str) -> np.ndarray:
    """A sound without words, int16 `(samples,)`."""
    times = np.arange(int(_SECONDS * SAMPLING_RATE)) / SAMPLING_RATE
    if kind == "rain":
        signal = 0.1 * np.random.default_rng(0).standard_normal(len(times))
    elif kind == "tone":
        signal = 0.3 * np.sin(2 * np.pi * 440 * times)
    else:
        is_on = (times % 0.5) < 0.2
        signal = 0.3 * np.sin(2 * np.pi * 2000 * times) * is_on
    return (signal.clip(-1, 1) * np.iinfo(np.int16).max).astype(np.int16)


def _write_sound(path: Path, samples: np.ndarray) -> None:
    with av.open(str(path), "w") as container:
        codec = _AUDIO_CODECS[path.suffix]
        rate = _OPUS_RATE if codec == "libopus" else SAMPLING_RATE
        stream = container.add_stream(codec, rate=rate, layout="mono")
        resampler = av.AudioResampler(stream.format, "mono", rate)
        frame = av.AudioFrame.from_ndarray(samples[None], "s16", "mono")
        frame.rate = SAMPLING_RATE
        frame.pts = 0
        # Encoders take frames of their own size.
        waiting = av.AudioFifo()
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            waiting.write(part)
        size = stream.codec_context.frame_size or 1024
        for part in iter(lambda: waiting.read(size, partial=True), None):
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))


# Pictures ------------------------------------------------------------------------------------------------------------


def _slide(text: str, title: str | None = None) -> np.ndarray:
    """A white slide with black words, uint8 `(height, width, 3)`."""
    picture = Image.new("RGB", _SIZE, "white")
    draw = ImageDraw.Draw(picture)
    if title is not None:
        draw.text((40, 40), title, "navy", ImageFont.load_default(44))
    words = text.split()
    lines = []
    for start in range(0, len(words), _WORDS_PER_LINE):
        lines.append(" ".join(words[start : start + _WORDS_PER_LINE]))
    draw.multiline_text((40, 140), "\n".join(lines), "black", ImageFont.load_default(30), spacing=12)
    return np.asarray(picture)


def _plain(colour: list[int]) -> np.ndarray:
    """A picture of one colour with a soft gradient."""
    shades = np.linspace(0.8, 1.1, _SIZE[1])[:, None, None]
    return (np.array(colour) * shades * np.ones((_SIZE[1], _SIZE[0], 1))).clip(0, 255).astype(np.uint8)


def _write_video(path: Path, shots: list[tuple[np.ndarray, float]], tags: Mapping[str, str]) -> None:
    """Write pictures, each shown for some seconds, with the tags of the container."""
    with av.open(str(path), "w") as container:
        container.metadata.update(tags)
        stream = container.add_stream("libx264", rate=_FRAME_RATE, options={"preset": "ultrafast"})
        stream.width, stream.height = _SIZE
        stream.pix_fmt = "yuv420p"
        for picture, seconds in shots:
            frame = av.VideoFrame.from_ndarray(picture, "rgb24")
            for _ in range(round(seconds * _FRAME_RATE)):
                frame.pts = None
                container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def _write_film(path: Path, item: Mapping[str, Any]) -> None:
    """Write a film with chapters, and its subtitles next to it."""
    with av.open(str(path), "w") as container:
        container.metadata["title"] = item["title"]
        # Chapters have to be set before the first packet.
        millisecond = Fraction(1, 1000)
        chapters = []
        for number, chapter in enumerate(item["chapters"]):
            start = int(1000 * CHAPTER_SECONDS * number)
            stop = int(1000 * CHAPTER_SECONDS * (number + 1))
            tags = {"title": chapter["title"]}
            chapters.append({"id": number, "start": start, "end": stop, "time_base": millisecond, "metadata": tags})
        container.set_chapters(chapters)
        stream = container.add_stream("libx264", rate=1, options={"preset": "ultrafast"})
        stream.width, stream.height = _SIZE
        stream.pix_fmt = "yuv420p"
        # A picture of another colour for each chapter.
        generator = np.random.default_rng(1)
        for _ in item["chapters"]:
            picture = _plain(generator.integers(40, 220, 3).tolist())
            frame = av.VideoFrame.from_ndarray(picture, "rgb24")
            for _ in range(int(CHAPTER_SECONDS)):
                frame.pts = None
                container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    # A line of subtitles begins in the middle of each chapter.
    cues = []
    for number, chapter in enumerate(item["chapters"]):
        middle = CHAPTER_SECONDS * (number + 0.5)
        cues.append((middle, middle + _CUE_SECONDS, chapter["subtitle"]))
    _write_subtitles(path, cues)


def _write_subtitles(path: Path, cues: list[tuple[float, float, str]]) -> None:
    """Write a SubRip file next to a video."""
    blocks = []
    for number, (start, stop, text) in enumerate(cues, start=1):
        blocks.append(f"{number}\n{_clock(start)} --> {_clock(stop)}\n{text}\n")
    path.with_suffix(".srt").write_text("\n".join(blocks), encoding="utf-8")


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(seconds, 60)
    return f"00:{int(minutes):02d}:{int(seconds):02d},{round(1000 * (seconds % 1)):03d}"


# Files ---------------------------------------------------------------------------------------------------------------


def _write_broken(path: Path, kind: str) -> None:
    if kind == "empty":
        path.touch()
    elif kind == "text":
        path.write_text("Dear aunt, thank you for the parcel.\n", encoding="utf-8")
    else:
        _write_video(path, [(_plain([10, 200, 10]), _SECONDS)], {})
        path.write_bytes(path.read_bytes()[:2000])


def write_file(path: Path, item: Mapping[str, Any], videos: Path | None = None) -> None:
    """
    Write one file of the archive.

    Args:
        path (`Path`): where to; its folder is made.
        item (`dict`): what is in it, one of the `files` of [`read_contents`].
        videos (`Path`, *optional*): the folder with the clips that a person filmed; without it they are not written.

    Raises:
        FileNotFoundError: espeak-ng is not installed, or a clip is not in `videos`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if "speech" in item:
        _write_sound(path, _speech(item["speech"]))
    elif "sound" in item:
        _write_sound(path, _sound(item["sound"]))
    elif "slides" in item:
        title, *texts = item["slides"]
        _write_video(path, [(_slide(text, title), _SLIDE_SECONDS) for text in texts], {})
    elif "chapters" in item:
        _write_film(path, item)
    elif "filmed" in item:
        if videos is not None:
            shutil.copyfile(videos / item["filmed"], path)
    elif "broken" in item:
        _write_broken(path, item["broken"])
    else:
        # A picture of one colour, with a title and subtitles if the item has them.
        tags = {}
        if "title" in item:
            tags["title"] = item["title"]
        _write_video(path, [(_plain(item["colour"]), _SECONDS)], tags)
        cues = []
        for number, text in enumerate(item.get("subtitles", ())):
            cues.append((1 + 2.5 * number, 3 + 2.5 * number, text))
        if cues:
            _write_subtitles(path, cues)


def write_archive(folder: Path, videos: Path | None = None) -> Iterator[Path]:
    """
    Write the archive, and yield the path of each file.

    Args:
        folder (`Path`): a new folder.
        videos (`Path`, *optional*): the folder with the clips that a person filmed; without it they are left out.

    Raises:
        FileNotFoundError: espeak-ng is not installed, or a clip is not in `videos`.
    """
    for item in read_contents()["files"]:
        path = folder / item["path"]
        write_file(path, item, videos)
        if path.exists():
            yield path


__all__ = ["CHAPTER_SECONDS", "read_contents", "write_archive", "write_file"]
