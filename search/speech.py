"""Words that are spoken in clips, by any model of transformers that recognises speech, where there are no subtitles.

A transcript is a WebVTT file of a gallery, see [`~gallery.transcripts`]. It has times, so that windows get the words
that are spoken in them; it says that a machine made it, which one, and of what language; people can read it, and
players show it. It is made once: where nothing was understood, nobody asks again. A file that changes gets another.
"""

import html
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from filelock import FileLock

from gallery.files import write_whole
from gallery.transcripts import Transcripts
from modeling_scalar.media_scalar import SAMPLING_RATE, MediaError, MediaReader

_LONG = 120.0  # seconds of sound that are heard at once: so long it can take until Ctrl-C is obeyed
_SHORT = 30.0  # the same for models that tell no times: what they hear has those of the whole
_CUE, _PAUSE = 6.0, 1.0  # words are shown together up to so many seconds, and up to such a pause
_LEAST = SAMPLING_RATE // 10  # samples: models with convolutions can hear nothing shorter than some of these
_SILENT = 1e-4  # the loudest sample of what nobody hears; in silence some models make words up
_MACHINE = "made by machine: "


class Cue(NamedTuple):
    """Words and when they are spoken, in seconds."""

    start: float
    stop: float
    text: str


def _time(seconds: float) -> str:
    minutes, milliseconds = divmod(round(1000 * seconds), 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{milliseconds / 1000:06.3f}"


def write_transcript(path: Path, cues: Sequence[Cue], model: str, language: str | None) -> None:
    """Write words as a WebVTT file that says which model heard them."""
    lines = ["WEBVTT", *([] if language is None else [f"Language: {language}"]), ""]
    lines += [f"NOTE {_MACHINE}{' '.join(model.replace('-->', '->').split())}", ""]
    for cue in cues:
        # of whole milliseconds, and never of none
        stop = max(cue.stop, cue.start + 0.001)
        lines += [f"{_time(cue.start)} --> {_time(stop)}", html.escape(cue.text, quote=False), ""]
    write_whole(path, lambda file: file.write("\n".join(lines).encode("utf-8", "replace")))


class SpeechError(ValueError):
    """A recogniser failed with some sound."""


class SpeechRecognizer:
    """
    Hears words.

    Args:
        model (`str`): a folder, or a Hub id, of any model for the task automatic-speech-recognition of transformers.
            Whisper tells times and the language, CTC models the times of words; of any other, what is heard in 30
            seconds has their time.
        name (`str`, *optional*): how transcripts name it; by default `model`.
        device (`torch.device`, *optional*): where it runs.

    Raises:
        ValueError: the model recognises no speech, or hears another rate than 16 kHz.
    """

    def __init__(self, model: str, name: str | None = None, device: torch.device | None = None):
        from transformers import pipeline  # takes seconds to import

        self.name = name or model
        try:
            # use_safetensors: a pickle could run code
            self.hear = pipeline(
                "automatic-speech-recognition", model, device=device, model_kwargs={"use_safetensors": True}
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{self.name} is no model that recognises speech: {error}") from error
        rate = self.hear.feature_extractor.sampling_rate
        if rate != SAMPLING_RATE:
            raise ValueError(f"{self.name} must hear sound of {SAMPLING_RATE} Hz, got one of {rate} Hz.")
        kinds = {"seq2seq_whisper": "whisper", "ctc": "ctc", "ctc_with_lm": "ctc"}
        self.kind = kinds.get(self.hear.type, "plain")
        self._lock = Lock()  # threads take turns

    @property
    def num_seconds(self) -> float:
        """How much sound it takes at once."""
        return _SHORT if self.kind == "plain" else _LONG

    def __call__(self, waveform: np.ndarray) -> tuple[list[Cue], str | None]:
        """
        Hear the words of a piece of sound.

        Args:
            waveform (float32 `np.ndarray` of shape `(samples,)`): at 16 kHz, at most `num_seconds`.

        Returns:
            The words, and the language where the model tells it.

        Raises:
            SpeechError: the model failed.
        """
        seconds = len(waveform) / SAMPLING_RATE
        if not len(waveform) or np.abs(waveform).max() < _SILENT:
            return [], None
        options: dict[str, Any] = {}
        if self.kind == "whisper":
            options = {"return_timestamps": True, "return_language": True}
        elif self.kind == "ctc":
            options = {"return_timestamps": "word", "chunk_length_s": 30, "stride_length_s": 5}
        waveform = np.pad(waveform, (0, max(0, _LEAST - len(waveform))))
        try:
            with self._lock:
                heard = self.hear({"raw": waveform, "sampling_rate": SAMPLING_RATE}, **options)
        except Exception as error:  # a model of anybody, which may fail in any way
            raise SpeechError(f"{self.name} could not hear the words: {type(error).__name__}: {error}") from error
        chunks = heard.get("chunks") or [{"text": heard["text"], "timestamp": (0.0, seconds)}]
        cues, languages = [], Counter()
        for chunk in chunks:
            start, stop = chunk["timestamp"]
            start = min(max(start or 0.0, 0.0), seconds)
            stop = seconds if stop is None else min(max(stop, start), seconds)
            if re.search(r"\w", chunk["text"]):
                cues.append(Cue(start, stop, " ".join(chunk["text"].split())))
                languages[chunk.get("language")] += 1
        language = languages.most_common(1)[0][0] if languages else None
        return (_together(cues) if self.kind == "ctc" else cues), language


def _together(words: Sequence[Cue]) -> list[Cue]:
    """Join words to lines."""
    lines: list[Cue] = []
    for word in words:
        if lines and word.stop - lines[-1].start <= _CUE and word.start - lines[-1].stop <= _PAUSE:
            lines[-1] = Cue(lines[-1].start, word.stop, f"{lines[-1].text} {word.text}")
        else:
            lines.append(word)
    return lines


class Speech(Transcripts):
    """
    The transcripts of a gallery, and what makes those that are missing.

    Args:
        gallery (`Path`): its folder.
        recognizer ([`SpeechRecognizer`], *optional*): without one, what was heard before is all there is.
    """

    def __init__(self, gallery: str | os.PathLike, recognizer: SpeechRecognizer | None = None):
        super().__init__(Path(gallery))
        self.recognizer = recognizer

    def is_due(self, sha256: str) -> bool:
        """Whether a clip of which this is the hash, with sound and without subtitles, is to be read again."""
        return self.recognizer is not None and self.has_words(sha256) is not False

    def of(self, path: str, sha256: str, reader: MediaReader) -> str | None:
        """
        Return the transcript of a file, which is made if it must be.

        Args:
            path (`str`), sha256 (`str`): the file, and the hash of it and of the subtitles beside it.
            reader ([`~modeling_scalar.MediaReader`]): opens the file.

        Returns:
            The path of the transcript; `None` where there are subtitles, no sound, or no words in it.

        Raises:
            SpeechError: the recogniser failed.
            OSError: it cannot be written.
        """
        if self.has_words(sha256) is None and self.recognizer is not None:
            try:
                if (reader.read_subtitle_of(path) or "").strip():
                    return None
                self._write(path, sha256, reader)
            except (MediaError, FileNotFoundError):  # reading the clip says what is wrong
                return None
        found = self.with_words(sha256)
        return None if found is None else str(found)

    def _write(self, path: str, sha256: str, reader: MediaReader) -> None:
        """Write down what is said, unless there is no sound; one process, while others wait for its transcript."""
        self.folder.mkdir(exist_ok=True)
        lock = self.folder / f".{sha256}.lock"
        try:
            with FileLock(lock, fallback_to_soft=False):
                if self.has_words(sha256) is not None:
                    return  # by another process, meanwhile
                heard = list(self._hear(path, reader))
                if heard:
                    cues = [cue for part, _ in heard for cue in part]
                    languages = Counter(language for part, language in heard for _ in part)
                    language = languages.most_common(1)[0][0] if languages else None
                    write_transcript(self.path_of(sha256), cues, self.recognizer.name, language)
        finally:
            lock.unlink(missing_ok=True)

    def _hear(self, path: str, reader: MediaReader) -> Iterator[tuple[list[Cue], str | None]]:
        """What is heard, piece by piece; nothing if there is no sound."""
        start, length = 0.0, self.recognizer.num_seconds
        while (waveform := reader.read_audio(path, (start, start + length))) is not None:
            cues, language = self.recognizer(waveform)
            yield [Cue(start + cue.start, start + cue.stop, cue.text) for cue in cues], language
            start += length


__all__ = ["Cue", "Speech", "SpeechError", "SpeechRecognizer", "write_transcript"]
