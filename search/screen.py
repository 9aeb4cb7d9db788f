"""On-screen text of clips, such as slides and signs, read by OCR and stored with the gallery.

- As in [`~scalar_retrieval.search.speech`], a WebVTT file, see [`~scalar_retrieval.gallery.words.transcripts`], which
  is made once.
- Few frames are read, as text stays for seconds, each at a size at which people can read it.
- A line is one cue, from the first frame that has it to the next that does not.
"""

import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher
from importlib.metadata import version
from itertools import filterfalse, pairwise

import numpy as np
from PIL import Image

from scalar_retrieval.gallery.decoding import SandboxedReader, check_not_stopped, room_beside_decoders
from scalar_retrieval.gallery.words.transcripts import SCREEN, Cue, Transcript

from .recognised import Recognised, RecognitionError

PACE = 2.0
"""Seconds between frames that are read."""
SIDE = 960
"""Maximum width and height of a frame in pixels: enough for the text of subtitles and slides, and little else."""
MOST_FRAMES = 3600
"""Maximum number of frames of a file, for two hours; longer files are read at a slower pace."""

_DETECTED = 480  # pixels: shorter side of a picture in which lines are looked for
_LONGEST = 3  # a picture is padded until its longer side is at most this many times the shorter one
_LEAST_SCORE = 0.5  # minimum score of a line in RapidOCR
_LEAST_LETTERS = 3  # in a line; most shorter ones are time codes, logos and misread patterns
_SAME = 0.9  # minimum similarity of two readings of a line, by difflib's ratio: one of ten letters may differ
_MISSED = 1  # consecutive frames in which a line may be missing: no reader finds it every time
_BLOCK = 8  # side of a block in pixels
_UNCHANGED = 8.0  # largest change of a block's colour where the text is the same
_EDGE = 40  # smallest difference of brightness from one pixel to the next at an edge
_LEAST_EDGES = 0.003  # smallest share of pixels at edges in a picture with a few words


def padded(picture: np.ndarray) -> np.ndarray:
    """Pad a long, narrow picture with black, below or on the right: RapidOCR enlarges a picture until its shorter side
    has 480 pixels, which would take gigabytes."""
    height, width, _ = picture.shape
    least = math.ceil(max(height, width) / _LONGEST)
    return np.pad(picture, ((0, max(0, least - height)), (0, max(0, least - width)), (0, 0)))


class RapidOcrReader:
    """
    PP-OCR from RapidOCR with ONNX: the models come with the package, for Chinese, Japanese and
    languages in Latin script.

    Raises:
        ModuleNotFoundError: rapidocr is not installed.
    """

    def __init__(self):
        from rapidocr import RapidOCR  # an extra, and slow to import

        settings = {
            "Global.log_level": "error",
            "Global.text_score": _LEAST_SCORE,
            "Global.use_cls": False,
            "Global.max_side_len": SIDE,
            # With RapidOCR's 736 pixels, lines take 2.5 times as long to find, and no more of them are found.
            "Det.limit_side_len": _DETECTED,
            "Rec.rec_batch_num": 1,  # lines in batches would take more memory
            # One thread a picture, as several pictures are read at the same time
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
        self._read = RapidOCR(params=settings)
        models = self._read.cfg.Rec
        self.name = f"rapidocr {version('rapidocr')}, {models.ocr_version.value} {models.model_type.value}"

    def __call__(self, picture: np.ndarray) -> list[str]:
        """
        Read the lines of a picture; safe to call from several threads.

        Args:
            picture (uint8 `np.ndarray` of shape `(height, width, 3)`): RGB and upright.

        Returns:
            The lines from top to bottom, and from left to right if they are next to each other.

        Raises:
            RecognitionError: the model failed.
        """
        try:
            found = self._read(np.ascontiguousarray(padded(picture)[..., ::-1]))  # BGR, as in OpenCV
        except Exception as error:  # errors of OpenCV, ONNX Runtime and RapidOCR have no common base
            raise RecognitionError(f"{self.name} could not read a picture: {type(error).__name__}: {error}") from error
        return [" ".join(line.split()) for line in found.txts or ()]


# Lines over time -----------------------------------------------------------------------------------------------------


def _has_characters(text: str) -> bool:
    """Whether a text has a Chinese, Japanese or Korean character, which may be a word."""
    # Such a character is "Lo"; not the long vowel mark and the like, which is no word and looks like a dash.
    return "Lo" in map(unicodedata.category, unicodedata.normalize("NFKC", text))


def _num_letters(text: str) -> int:
    return sum(map(str.isalpha, unicodedata.normalize("NFKC", text)))


def without_lone_characters(
    frames: Sequence[tuple[float, Sequence[str]]], names: Iterable[str]
) -> Sequence[tuple[float, Sequence[str]]]:
    """
    Leave out Chinese, Japanese and Korean characters where no name and no line of more than three letters has any, as
    patterns are misread as "国".

    Args:
        frames (sequence of `tuple`): the second of each frame and its lines.
        names (iterable of `str`): the names among which the file stands.
    """
    texts = list(names)
    for _, lines in frames:
        texts += [line for line in lines if _num_letters(line) > _LEAST_LETTERS]
    if any(map(_has_characters, texts)):
        return frames
    return [(second, list(filterfalse(_has_characters, lines))) for second, lines in frames]


def _alike(one: str, other: str) -> float:
    """The similarity of two folded texts, from 0 to 1; 0 if their digits differ, as other digits are another number
    rather than a misreading."""
    if re.sub(r"\D", "", one) != re.sub(r"\D", "", other):
        return 0.0
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


@dataclass
class _Line:
    """A line that is visible from one second to another: its readings, and the last frame that has it."""

    folded: str
    start: float
    stop: float
    texts: Counter[str]
    last: int


def cues_of(frames: Iterable[tuple[float, Sequence[str]]], end: float) -> list[Cue]:
    """
    Make one cue of each line, however many frames have it.

    Args:
        frames (iterable of `tuple`): the second of each frame and its lines, in reading order.
        end (`float`): the second at which the last frame ends.

    Returns:
        From the second of the first frame that has a line to that of the next that does not; lines that come and go
        together are one cue. A line that is read a little differently, or not at all in one frame, is the same line.
        Lines of fewer than three letters are left out, but not of Chinese, Japanese and Korean characters.
    """
    lines: list[_Line] = []
    shown: list[_Line] = []
    frame = -1
    second = 0.0
    for frame, (second, texts) in enumerate(frames):
        # A line lasts until the first frame without it.
        for line in shown:
            if line.last == frame - 1:
                line.stop = second
        for text in texts:
            if _num_letters(text) < _LEAST_LETTERS and not _has_characters(text):
                continue
            # letters and digits, without capitals and accents
            folded = "".join(filter(str.isalnum, unicodedata.normalize("NFKD", text.casefold())))
            # The line shown before that is most alike; another one of the same frame only if it is the same
            line = None
            best = 0.0
            for other in shown:
                if other.last < frame or other.folded == folded:
                    score = _alike(other.folded, folded)
                    if score > best:
                        line = other
                        best = score
            # A line that resembles none before it is new.
            if best < _SAME:
                line = _Line(folded, second, second, Counter(), frame)
                lines.append(line)
                shown.append(line)
            line.texts[text] += 1
            line.stop = second
            line.last = frame
        shown = [line for line in shown if frame - line.last <= _MISSED]
    # The lines of the last frame last until the end.
    for line in shown:
        if line.last == frame:
            line.stop = max(second, end)
    # Lines that come and go together are one cue, each with its most frequent reading, the first of several.
    together: dict[tuple[float, float], list[str]] = {}
    for line in lines:
        text, _ = line.texts.most_common(1)[0]
        together.setdefault((line.start, line.stop), []).append(text)
    return [Cue(*seconds, "\n".join(texts)) for seconds, texts in sorted(together.items())]


def _is_unchanged(before: np.ndarray, picture: np.ndarray) -> bool:
    """Whether a picture has the same text as the one before; compression causes small differences."""
    if before.shape != picture.shape:
        return False
    earlier = np.asarray(Image.fromarray(before).reduce(_BLOCK), np.int16)
    later = np.asarray(Image.fromarray(picture).reduce(_BLOCK), np.int16)
    return np.abs(earlier - later).max() <= _UNCHANGED


def stands_still(frames: np.ndarray) -> bool:
    """
    Whether the pictures of a clip look like a slide or a recorded screen: most repeat the one before, and have edges.

    Args:
        frames (uint8 `np.ndarray` of shape `(frames, height, width, 3)`): RGB, in order.
    """
    frames = frames[::2]  # enough, and comparing takes time
    num_unchanged = sum(_is_unchanged(*pair) for pair in pairwise(frames))
    if num_unchanged <= (len(frames) - 1) / 2:
        return False
    grey = np.asarray(Image.fromarray(frames[len(frames) // 2]).convert("L"), np.int16)
    return (np.abs(np.diff(grey)) >= _EDGE).mean() >= _LEAST_EDGES


class Screen(Recognised):
    """
    The on-screen text of the files of a gallery; reads missing texts.

    Args:
        gallery (`Path`): its folder.
        recognizer ([`RapidOcrReader`], *optional*): without one, only existing readings are used.
    """

    kind = SCREEN
    source = "has_pictures"
    hint = "it has pictures, see --read-text"
    doing = "reading words of"

    def make(self, path: str, media: SandboxedReader) -> Transcript | None:
        """Read the on-screen text of a file; `None` if it has no picture."""
        seconds = media.read_duration(path) or 0.0
        lenient = media.reporting_to(lambda problem: None)  # reading the clip reports what is wrong
        frames: list[tuple[float, list[str]]] = []
        before = np.zeros((0, 0, 3), np.uint8)
        lines: list[str] = []
        for second, picture in lenient.sample_frames(path, max(PACE, seconds / MOST_FRAMES), SIDE):
            self.on_progress(path, second)
            check_not_stopped()  # reading takes longer than decoding
            if not _is_unchanged(before, picture):
                with room_beside_decoders(media.limits):
                    lines = self.recognizer(picture)
                before = picture
            frames.append((second, lines))
        if not frames:
            return None
        # A camera's name is Latin everywhere, so the other names of its folder count, too.
        names = [path]
        with suppress(OSError):
            names += os.listdir(os.path.dirname(path))
        return Transcript(cues_of(without_lone_characters(frames, names), seconds), self.recognizer.name)


__all__ = [
    "MOST_FRAMES",
    "PACE",
    "SIDE",
    "RapidOcrReader",
    "Screen",
    "cues_of",
    "stands_still",
    "without_lone_characters",
]
