"""Words that are seen in clips, on slides, signs and labels: kept beside a gallery, and made by a reader of pictures.

The sibling of [`~search.speech`]: a WebVTT file of a gallery, see [`~gallery.transcripts`], which is made once. Few
frames are read, as words stay for seconds, and each of a size at which people can read it. A line is told once, from
the first frame that has it to the next that does not.
"""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from importlib.metadata import version
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Protocol

import numpy as np

from gallery.decoding import SandboxedReader, check_not_stopped
from gallery.transcripts import SCREEN, Cue, Transcript, Transcripts
from modeling_scalar.media_scalar import MediaError

PACE = 2.0
"""Seconds from one frame that is read to the next."""
SIDE = 960
"""Pixels that a frame is wide and high at most: words of subtitles and slides are readable, and few others."""
MOST_FRAMES = 3600
"""Frames of a file, two hours of them: of a longer one the pace is slower."""

_LEAST_SCORE = 0.5  # of a line, by which RapidOCR itself leaves some out
_SAME = 0.9  # how alike two readings of a line are, by difflib's ratio: of ten letters one may be another
_MISSED = 1  # frames that a line may be missing in: no reader finds it each time
_BLOCK, _UNCHANGED = 8, 8.0  # where no block of so many pixels has changed its colour by more, nor have the words


class ScreenError(ValueError):
    """A reader failed with some picture."""


class LineReader(Protocol):
    """Reads pictures; `name` is how transcripts name it."""

    name: str

    def __call__(self, picture: np.ndarray) -> list[str]:
        """
        Read the lines of a picture, which threads may do at the same time.

        Args:
            picture (uint8 `np.ndarray` of shape `(height, width, 3)`): RGB and upright.

        Returns:
            The lines from top to bottom, and from left to right where they stand beside each other.

        Raises:
            ScreenError: the model failed.
        """


def in_reading_order(boxes: np.ndarray) -> list[int]:
    """
    Sort lines from top to bottom; those beside each other, of which the middle of one is within the other's height,
    from left to right.

    Args:
        boxes (`np.ndarray` of shape `(lines, 4, 2)`): the corners of each, as x and y.
    """
    (left, top), (_, bottom) = boxes.min(axis=1).T, boxes.max(axis=1).T
    middle, rows = (top + bottom) / 2, []
    for line in np.argsort(middle, kind="stable").tolist():
        if rows and middle[line] < bottom[rows[-1][0]]:
            rows[-1].append(line)
        else:
            rows.append([line])
    return [line for row in rows for line in sorted(row, key=lambda line: left[line])]


class RapidOcrReader:
    """
    PP-OCR as RapidOCR runs it with ONNX, a [`LineReader`]: the models come with the package, for Chinese, Japanese and
    languages in Latin letters.

    Args:
        num_threads (`int`): of a picture; several threads may read pictures at the same time.

    Raises:
        ModuleNotFoundError: rapidocr is not installed.
    """

    def __init__(self, num_threads: int = 1):
        from rapidocr import RapidOCR  # an extra, and slow to import

        runtime = "EngineConfig.onnxruntime"
        settings = {"Global.log_level": "error", "Global.text_score": _LEAST_SCORE, "Global.use_cls": False}
        threads = {f"{runtime}.{kind}_op_num_threads": num_threads for kind in ("intra", "inter")}
        self._read = RapidOCR(params=settings | threads)
        models = self._read.cfg.Rec
        self.name = f"rapidocr {version('rapidocr')}, {models.ocr_version.value} {models.model_type.value}"

    def __call__(self, picture: np.ndarray) -> list[str]:
        try:
            found = self._read(np.ascontiguousarray(picture[..., ::-1]))  # as OpenCV has colours
        except Exception as error:  # of OpenCV, of ONNX Runtime, and its own, which have nothing in common
            raise ScreenError(f"{self.name} could not read a picture: {type(error).__name__}: {error}") from error
        lines = [" ".join(line.split()) for line in found.txts or ()]
        return [lines[place] for place in in_reading_order(found.boxes)] if lines else []


# Lines over time -----------------------------------------------------------------------------------------------------


def _folded(text: str) -> str:
    """The letters and digits of a text, without capitals and accents."""
    return "".join(letter for letter in unicodedata.normalize("NFKD", text.casefold()) if letter.isalnum())


def _alike(one: str, other: str) -> float:
    """How alike two folded texts are, from 0 to 1: not at all if their digits differ, as numbers are not misread but
    counted."""
    if re.sub(r"\D", "", one) != re.sub(r"\D", "", other):
        return 0.0
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


@dataclass
class _Line:
    """A line that is seen from one second to another: how it was read, and in which frame last."""

    folded: str
    start: float
    stop: float
    texts: Counter[str]
    last: int

    def text(self) -> str:
        """What was read most often, and first."""
        return self.texts.most_common(1)[0][0]


def cues_of(frames: Iterable[tuple[float, Sequence[str]]], end: float) -> list[Cue]:
    """
    Tell each line once, however many frames have it.

    Args:
        frames (iterable of `tuple`): the second of each frame and its lines, in reading order.
        end (`float`): the second at which the last frame goes.

    Returns:
        From the second of the first frame that has a line to that of the next that does not; lines that come and go
        together are one cue. A line that is read a little differently, or not at all in one frame, is the same line.
    """
    lines: list[_Line] = []
    shown: list[_Line] = []
    frame, before = -1, 0.0
    for frame, (second, texts) in enumerate(frames):
        for line in shown:
            if line.last == frame - 1:
                line.stop = second
        for text in texts:
            folded = _folded(text)
            if not folded:
                continue
            others = [line for line in shown if line.last < frame or line.folded == folded]
            alike = ((_alike(line.folded, folded), line) for line in others)
            score, line = max(alike, key=itemgetter(0), default=(0.0, None))
            if score < _SAME:
                line = _Line(folded, second, second, Counter(), frame)
                lines.append(line)
                shown.append(line)
            line.texts[text] += 1
            line.stop, line.last = second, frame
        shown = [line for line in shown if frame - line.last <= _MISSED]
        before = second
    for line in shown:
        if line.last == frame:
            line.stop = max(before, end)
    lines.sort(key=lambda line: (line.start, line.stop))
    together = groupby(lines, key=lambda line: (line.start, line.stop))
    return [Cue(*seconds, "\n".join(line.text() for line in group)) for seconds, group in together]


def _is_unchanged(before: np.ndarray, picture: np.ndarray) -> bool:
    """Whether a picture shows the words of the one before: coding alone makes small differences."""
    if before.shape != picture.shape:
        return False
    height, width = (length // _BLOCK for length in picture.shape[:2])
    change = picture[: height * _BLOCK, : width * _BLOCK].astype(np.int16)
    change -= before[: height * _BLOCK, : width * _BLOCK]
    blocks = change.reshape(height, _BLOCK, width, _BLOCK, 3).mean(axis=(1, 3))
    return float(np.abs(blocks).max(initial=0.0)) <= _UNCHANGED


def read_screen(pictures: Iterable[tuple[float, np.ndarray]], reader: LineReader, end: float) -> list[Cue]:
    """
    Read the words that are seen in a clip.

    Args:
        pictures (iterable of `tuple`): the second of each frame, and the frame, uint8 `(height, width, 3)`, RGB and
            upright, in their order. One in which nothing has changed is not read again.
        reader ([`LineReader`]): reads them.
        end (`float`): the second at which the last one goes.

    Returns:
        See [`cues_of`].

    Raises:
        ScreenError: the reader failed.
    """

    def lines() -> Iterator[tuple[float, list[str]]]:
        before, found = np.zeros((0, 0, 3), np.uint8), []
        for second, picture in pictures:
            check_not_stopped()  # reading takes longer than decoding
            if not _is_unchanged(before, picture):
                before, found = picture, reader(picture)
            yield second, found

    return cues_of(lines(), end)


class Screen(Transcripts):
    """
    The words that are seen in the files of a gallery, and what reads those that are missing.

    Args:
        gallery (`Path`): its folder.
        reader ([`LineReader`], *optional*): without one, there is what was read before.

    Attributes:
        tell (`Callable`): called with the path of a file and the second of it that is being read.
    """

    def __init__(self, gallery: str | os.PathLike, reader: LineReader | None = None):
        super().__init__(Path(gallery), SCREEN)
        self.reader = reader
        self.tell: Callable[[str, float], None] = lambda path, second: None

    def is_due(self, sha256: str) -> bool:
        """Whether a clip of which this is the hash, with pictures and without words of theirs, is to be read again."""
        return self.reader is not None and self.has_words(sha256) is not False

    def of(self, path: str, sha256: str, media: SandboxedReader) -> str | None:
        """
        Return the words that are seen in a file, which are read if they must be.

        Args:
            path (`str`), sha256 (`str`): the file, and the hash of it and of the subtitles beside it.
            media ([`~gallery.decoding.SandboxedReader`]): opens the file.

        Returns:
            The path of the transcript; `None` where there is no picture, or there are no words in it.

        Raises:
            ScreenError: the reader failed.
            OSError: it cannot be written.
        """
        if self.has_words(sha256) is None and self.reader is not None:
            try:
                self.write_once(sha256, lambda: self._read(path, media))
            except (MediaError, FileNotFoundError):  # reading the clip says what is wrong
                return None
        found = self.with_words(sha256)
        return None if found is None else str(found)

    def _read(self, path: str, media: SandboxedReader) -> Transcript | None:
        """What is seen in a file; nothing at all if it has no picture."""
        seconds, has_pictures = media.read_duration(path) or 0.0, False
        lenient = media.noting(lambda problem: None)  # reading the clip tells what is wrong

        def pictures() -> Iterator[tuple[float, np.ndarray]]:
            nonlocal has_pictures
            for second, picture in lenient.look_through(path, max(PACE, seconds / MOST_FRAMES), SIDE):
                has_pictures = True
                self.tell(path, second)
                yield second, picture

        cues = read_screen(pictures(), self.reader, seconds)
        return Transcript(cues, self.reader.name) if has_pictures else None


__all__ = [
    "MOST_FRAMES",
    "PACE",
    "SIDE",
    "LineReader",
    "RapidOcrReader",
    "Screen",
    "ScreenError",
    "cues_of",
    "in_reading_order",
    "read_screen",
]
