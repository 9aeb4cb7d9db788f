"""What hears words in a stretch of speech: any model of transformers that recognises speech, or faster-whisper.

Recognisers loop, and make words up, where they understand nothing. Whisper is asked as in its paper (section 4.5):
again at a higher temperature where its words repeat themselves or are improbable. What still repeats itself, or is
more than anybody says in that time, counts as not understood, whichever model heard it.
"""

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
import torch
from transformers.utils import CONFIG_NAME

from gallery.decoding import Stopped, check_not_stopped
from gallery.files import read_json
from gallery.transcripts import Cue
from modeling_scalar.media_scalar import SAMPLING_RATE

MOST_SECONDS = 30.0
"""Seconds of sound that a recogniser is given at a time: Whisper's window."""

# Whisper's paper, section 4.5: gzip's ratio and the mean log-probability of a token beyond which it is asked again.
_TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_REPEATED, _IMPROBABLE, _NO_SPEECH = 2.4, -1.0, 0.6
_REPEATED_TOKENS = 1.35  # the same as `_REPEATED`, which transformers takes of tokens and not of letters
_TOKENS = 12  # a second, twice what a fast speaker says, and as many more for the shortest sound
_LETTERS = 40  # a second, twice what a fast speaker says
_CUE, _PAUSE = 6.0, 1.0  # words are shown together up to so many seconds, and up to such a pause
_LEAST = SAMPLING_RATE // 10  # samples: models with convolutions can hear nothing shorter than some of these


class SpeechError(ValueError):
    """A recogniser failed with some sound."""


class Recognizer(Protocol):
    """Hears words; `name` is how transcripts name it."""

    name: str

    def __call__(self, waveform: np.ndarray) -> tuple[list[Cue], str | None]:
        """
        Hear the words of a stretch of speech.

        Args:
            waveform (float32 `np.ndarray` of shape `(samples,)`): at 16 kHz, at most `MOST_SECONDS`.

        Returns:
            The words, in their order, and the language where the model says which.

        Raises:
            SpeechError: the model failed.
        """


def is_understood(text: str, seconds: float) -> bool:
    """Whether a text can be what somebody said in this time: it has words, does not loop, and is not too long."""
    letters = text.encode()
    is_loop = len(letters) > _REPEATED * len(zlib.compress(letters))
    return bool(re.search(r"\w", text)) and not is_loop and len(text) <= _LETTERS * max(seconds, 1.0)


def _cues(chunks: Iterator[tuple[float | None, float | None, str]], seconds: float) -> list[Cue]:
    """What is understood, with times within the sound; a missing one is its beginning, or its end."""
    found = []
    for start, stop, text in chunks:
        start = min(max(start or 0.0, 0.0), seconds)
        stop = seconds if stop is None else min(max(stop, start), seconds)
        if is_understood(text, stop - start):
            found.append(Cue(start, stop, " ".join(text.split())))
    return found if is_understood(" ".join(cue.text for cue in found), seconds) else []


def _not_stopped(tokens: torch.Tensor, scores: torch.Tensor, **options: Any) -> torch.Tensor:
    """A criterion by which to end generating: never, but for what a thread is interrupted in."""
    check_not_stopped()
    return torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)


class _Heeding(list):
    """Temperatures at which one after the other a stretch is heard again, unless a thread is interrupted."""

    def __iter__(self) -> Iterator[float]:
        for temperature in super().__iter__():
            check_not_stopped()
            yield temperature


def _together(words: Sequence[Cue]) -> list[Cue]:
    """Join words to lines."""
    lines: list[Cue] = []
    for word in words:
        if lines and word.stop - lines[-1].start <= _CUE and word.start - lines[-1].stop <= _PAUSE:
            lines[-1] = Cue(lines[-1].start, word.stop, f"{lines[-1].text} {word.text}")
        else:
            lines.append(word)
    return lines


class SpeechRecognizer:
    """
    Any model of transformers for the task automatic-speech-recognition, a [`Recognizer`].

    Whisper gives times and the language, CTC models the times of words; what any other hears has the times of the
    whole stretch.

    Args:
        model (`str`): a folder, or a Hub id.
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
        self.most_tokens = getattr(self.hear.model.config, "max_target_positions", 0) - 8  # beside those of the prompt
        self._lock = Lock()  # threads take turns

    def _options(self, seconds: float) -> dict[str, Any]:
        if self.kind == "ctc":
            return {"return_timestamps": "word"}
        if self.kind == "plain":
            return {}
        generating = {
            "max_new_tokens": min(int(_TOKENS * (1 + seconds)), self.most_tokens),
            "temperature": _TEMPERATURES,
            "compression_ratio_threshold": _REPEATED_TOKENS,
            "logprob_threshold": _IMPROBABLE,
            "no_speech_threshold": _NO_SPEECH,
            "stopping_criteria": [_not_stopped],
        }
        return {"return_timestamps": True, "return_language": True, "generate_kwargs": generating}

    def __call__(self, waveform: np.ndarray) -> tuple[list[Cue], str | None]:
        seconds = len(waveform) / SAMPLING_RATE
        waveform = np.pad(waveform, (0, max(0, _LEAST - len(waveform))))
        try:
            # Above a temperature of 0 words are drawn: always the same, and without changing what else is drawn.
            with self._lock, torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                heard = self.hear({"raw": waveform, "sampling_rate": SAMPLING_RATE}, **self._options(seconds))
        except Stopped:
            raise
        except Exception as error:  # a model of anybody, which may fail in any way
            raise SpeechError(f"{self.name} could not hear the words: {type(error).__name__}: {error}") from error
        chunks = heard.get("chunks") or [{"text": heard["text"], "timestamp": (0.0, seconds)}]
        languages = Counter(chunk.get("language") for chunk in chunks if re.search(r"\w", chunk["text"]))
        cues = _cues(((*chunk["timestamp"], chunk["text"]) for chunk in chunks), seconds)
        language = languages.most_common(1)[0][0] if cues else None
        return (_together(cues) if self.kind == "ctc" else cues), language


class FasterWhisperRecognizer:
    """
    Whisper as CTranslate2 computes it, a [`Recognizer`]: on a CPU in a fraction of the time that transformers takes.

    Args:
        model (`str`): a folder of CTranslate2, such as that of the Hub id `Systran/faster-whisper-small`.
        name (`str`, *optional*): how transcripts name it; by default `model`.
        device (`torch.device`, *optional*): where it runs.

    Raises:
        ValueError: it is no such folder.
        ImportError: faster-whisper is not installed.
    """

    def __init__(self, model: str, name: str | None = None, device: torch.device | None = None):
        from faster_whisper import WhisperModel

        self.name = name or model
        try:
            self._model = WhisperModel(
                model, device="cpu" if device is None else device.type, cpu_threads=torch.get_num_threads(),
                local_files_only=True,
            )  # fmt: skip
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"{self.name} is no Whisper model of CTranslate2: {error}") from error
        self._lock = Lock()

    def __call__(self, waveform: np.ndarray) -> tuple[list[Cue], str | None]:
        seconds = len(waveform) / SAMPLING_RATE
        try:
            with self._lock:
                segments, found = self._model.transcribe(
                    waveform, condition_on_previous_text=False, temperature=_Heeding(_TEMPERATURES),
                    compression_ratio_threshold=_REPEATED, log_prob_threshold=_IMPROBABLE,
                    no_speech_threshold=_NO_SPEECH, max_new_tokens=int(_TOKENS * (1 + seconds)),
                )  # fmt: skip
                kept = []
                for segment in segments:  # is heard here
                    check_not_stopped()
                    kept += [segment] if segment.avg_logprob >= _IMPROBABLE else []
        except Stopped:
            raise
        except RuntimeError as error:
            raise SpeechError(f"{self.name} could not hear the words: {error}") from error
        cues = _cues(((segment.start, segment.end, segment.text) for segment in kept), seconds)
        return cues, found.language if cues else None


def recognizer_of(folder: Path, name: str | None = None, device: torch.device | None = None) -> Recognizer:
    """
    Load what recognises speech: [`FasterWhisperRecognizer`] for a folder of CTranslate2, else [`SpeechRecognizer`].

    Args:
        folder (`Path`): of the model.
        name, device: as of these.
    """
    config = folder / CONFIG_NAME
    is_converted = (folder / "model.bin").is_file() and not (config.is_file() and "model_type" in read_json(config))
    return (FasterWhisperRecognizer if is_converted else SpeechRecognizer)(str(folder), name, device)


__all__ = [
    "MOST_SECONDS",
    "FasterWhisperRecognizer",
    "Recognizer",
    "SpeechError",
    "SpeechRecognizer",
    "is_understood",
    "recognizer_of",
]
