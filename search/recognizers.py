"""Speech recognisers: any speech recognition model of transformers, or faster-whisper.

Recognisers loop and invent words when they understand nothing. Whisper runs as in its paper (section 4.5): again at a
higher temperature if its words are repetitive or improbable. Text that is still repetitive, or longer than anybody can
say in that time, counts as not understood, for every model. So does a stretch of whose language Whisper is unsure, or
whose words it still finds improbable.
"""

import re
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from huggingface_hub import CacheNotFound, constants, scan_cache_dir
from transformers.utils import CONFIG_NAME

from scalar_retrieval.gallery.decoding import Stopped, check_not_stopped
from scalar_retrieval.gallery.store.files import read_json
from scalar_retrieval.gallery.words.transcripts import Cue
from scalar_retrieval.modeling_scalar.media_scalar import SAMPLING_RATE

from .recognised import RecognitionError

# Whisper's paper, section 4.5: gzip's ratio and the mean log-probability of a token that trigger another attempt.
_TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_REPEATED = 2.4
_IMPROBABLE = -1.0
_NO_SPEECH = 0.6
_UNSURE = 0.5  # probability of a language below which faster-whisper does not count it as detected
_REPEATED_TOKENS = 1.35  # the equivalent of `_REPEATED` in transformers, which compares tokens instead of letters
_TOKENS = 12  # per second, twice the rate of a fast speaker, and as many again for the shortest sound
_LETTERS = 40  # per second, twice the rate of a fast speaker
_CUE = 6.0  # maximum seconds of words joined into one cue
_PAUSE = 1.0  # maximum seconds of a pause within a cue
_LEAST = SAMPLING_RATE // 10  # samples: minimum length of sound for models with convolutions


def is_understood(text: str, seconds: float) -> bool:
    """Whether a text is plausible speech for this time: it has words, does not loop, and is not too long."""
    # What repeats itself compresses well.
    letters = text.encode()
    is_loop = len(letters) > _REPEATED * len(zlib.compress(letters))
    return bool(re.search(r"\w", text)) and not is_loop and len(text) <= _LETTERS * max(seconds, 1.0)


def _text_of(cues: Iterable[Cue]) -> str:
    return " ".join(cue.text for cue in cues)


def _cues(chunks: Iterable[tuple[float | None, float | None, str]], seconds: float) -> list[Cue] | None:
    """The plausible text, with times within the sound; a missing time is its start or end. `None` if no words are
    plausible."""
    cues = []
    has_words = False
    for start, stop, text in chunks:
        has_words = has_words or bool(re.search(r"\w", text))
        start = min(max(start or 0.0, 0.0), seconds)
        stop = seconds if stop is None else min(max(stop, start), seconds)
        if is_understood(text, stop - start):
            cues.append(Cue(start, stop, " ".join(text.split())))
    # A loop over several cues shows only in the whole text.
    if is_understood(_text_of(cues), seconds):
        return cues
    return None if has_words else []


def _not_stopped(tokens: torch.Tensor, scores: torch.Tensor, **options: Any) -> torch.Tensor:
    """A stopping criterion that never stops, but raises if the thread is interrupted."""
    check_not_stopped()
    return torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)


def _together(words: Sequence[Cue]) -> list[Cue]:
    """Join words into lines."""
    lines: list[Cue] = []
    for word in words:
        if lines and word.stop - lines[-1].start <= _CUE and word.start - lines[-1].stop <= _PAUSE:
            lines[-1] = Cue(lines[-1].start, word.stop, f"{lines[-1].text} {word.text}")
        else:
            lines.append(word)
    return lines


class SpeechRecognizer:
    """
    Any model of transformers for the task automatic-speech-recognition.

    Whisper reports times, CTC models the times of words; text of other models has the times of the
    whole stretch.

    Args:
        model (`str`): a folder, or a Hub id.
        name (`str`): its name in transcripts.
        device (`torch.device`): device of the model.

    Raises:
        ValueError: the model does not recognise speech, or has another sampling rate than 16 kHz.
    """

    def __init__(self, model: str, name: str, device: torch.device):
        from transformers import pipeline  # takes seconds to import

        from scalar_retrieval.modeling_scalar.loading import quietly

        self.name = name
        # Only from safetensors, as a pickle could run code.
        try:
            with quietly():
                self.pipeline = pipeline(
                    "automatic-speech-recognition", model, device=device, model_kwargs={"use_safetensors": True}
                )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{self.name} is not a speech recognition model: {error}") from error
        # Waveforms are read at one rate, for all models.
        rate = self.pipeline.feature_extractor.sampling_rate
        if rate != SAMPLING_RATE:
            raise ValueError(f"{self.name} must have a sampling rate of {SAMPLING_RATE} Hz, got {rate} Hz.")
        self.kind = {"seq2seq_whisper": "whisper", "ctc": "ctc", "ctc_with_lm": "ctc"}.get(self.pipeline.type, "plain")
        self.most_tokens = getattr(self.pipeline.model.config, "max_target_positions", 0) - 8  # without the prompt
        self._lock = Lock()  # threads take turns

    def _options(self, seconds: float) -> dict[str, Any]:
        if self.kind == "ctc":
            return {"return_timestamps": "word"}
        if self.kind == "plain":
            return {}
        # Whisper: another attempt at a higher temperature where the words are repetitive or improbable
        generating = {
            "max_new_tokens": min(int(_TOKENS * (1 + seconds)), self.most_tokens),
            "temperature": _TEMPERATURES,
            "compression_ratio_threshold": _REPEATED_TOKENS,
            "logprob_threshold": _IMPROBABLE,
            "no_speech_threshold": _NO_SPEECH,
            "stopping_criteria": [_not_stopped],
        }
        return {"return_timestamps": True, "generate_kwargs": generating}

    def _is_doubtful(self, waveform: np.ndarray, text: str) -> bool:
        """Whether Whisper does not know the language of a sound, or finds this text of it improbable: the numbers that
        its pipeline does not return."""
        model = self.pipeline.model
        config = model.generation_config
        features = self.pipeline.feature_extractor(waveform, sampling_rate=SAMPLING_RATE, return_tensors="pt")
        features = features.input_features.to(model.device, model.dtype)
        is_multilingual = getattr(config, "is_multilingual", False)  # older models do not say
        prompt = [config.decoder_start_token_id]
        if is_multilingual:
            prompt += [model.detect_language(features).item(), config.task_to_id["transcribe"]]
        prompt.append(config.no_timestamps_token_id)
        tokens = prompt + self.pipeline.tokenizer(text, add_special_tokens=False).input_ids
        ids = torch.tensor(tokens[: model.config.max_target_positions], device=model.device)  # (tokens,)
        with torch.no_grad():
            logits = model(features, decoder_input_ids=ids[None]).logits[0].float()  # (tokens, vocabulary)
        # The language follows the first token, the words the prompt.
        if is_multilingual and logits[0, list(config.lang_to_id.values())].softmax(0).amax() < _UNSURE:
            return True
        scores = logits[len(prompt) - 1 : -1].log_softmax(-1)
        return bool(scores.gather(1, ids[len(prompt) :, None]).mean() < _IMPROBABLE)

    def __call__(self, waveform: np.ndarray) -> list[Cue] | None:
        """
        Recognise the words of a stretch of speech.

        Args:
            waveform (float32 `np.ndarray` of shape `(samples,)`): at 16 kHz, at most
                [`~scalar_retrieval.search.speech.MOST_SECONDS`].

        Returns:
            The words, in order; `None` if the model recognised some, but none that it does not doubt.

        Raises:
            RecognitionError: the model failed.
        """
        seconds = len(waveform) / SAMPLING_RATE
        options = self._options(seconds)
        waveform = np.pad(waveform, (0, max(0, _LEAST - len(waveform))))
        try:
            # Above temperature 0, words are sampled: with a fixed seed, without affecting other random numbers.
            with self._lock, torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                answer = self.pipeline({"raw": waveform, "sampling_rate": SAMPLING_RATE}, **options)
                # Models without times return one text.
                chunks = answer.get("chunks") or [{"text": answer["text"], "timestamp": (0.0, seconds)}]
                cues = _cues(((*chunk["timestamp"], chunk["text"]) for chunk in chunks), seconds)
                if cues and self.kind == "whisper" and self._is_doubtful(waveform, _text_of(cues)):
                    return None
        except Stopped:
            raise
        except Exception as error:  # any model, which may fail in any way
            raise RecognitionError(
                f"{self.name} could not recognise the words: {type(error).__name__}: {error}"
            ) from error
        return _together(cues) if cues and self.kind == "ctc" else cues


class FasterWhisperRecognizer:
    """
    Whisper with CTranslate2: much faster than transformers on a CPU.

    Args:
        model (`str`): a CTranslate2 folder, such as that of the Hub id `Systran/faster-whisper-small`.
        name (`str`): its name in transcripts.
        device (`torch.device`): device of the model.

    Raises:
        ValueError: it is not such a folder.
        ImportError: faster-whisper is not installed.
    """

    def __init__(self, model: str, name: str, device: torch.device):
        from faster_whisper import WhisperModel

        self.name = name
        try:
            self._model = WhisperModel(
                model, device=device.type, cpu_threads=torch.get_num_threads(), local_files_only=True
            )
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"{self.name} is not a Whisper model of CTranslate2: {error}") from error
        self._lock = Lock()

    def __call__(self, waveform: np.ndarray) -> list[Cue] | None:
        """Recognise the words of a stretch of speech, as [`SpeechRecognizer`] does."""
        seconds = len(waveform) / SAMPLING_RATE
        try:
            with self._lock:
                segments, found = self._model.transcribe(
                    waveform, condition_on_previous_text=False, temperature=_TEMPERATURES,
                    compression_ratio_threshold=_REPEATED, log_prob_threshold=_IMPROBABLE,
                    no_speech_threshold=_NO_SPEECH, max_new_tokens=int(_TOKENS * (1 + seconds)),
                )  # fmt: skip
                is_unsure = found.language_probability < _UNSURE
                chunks = []
                has_doubts = False
                for segment in segments:  # recognised here, lazily
                    check_not_stopped()
                    if is_unsure or segment.avg_logprob < _IMPROBABLE:
                        has_doubts = True
                    else:
                        chunks.append((segment.start, segment.end, segment.text))
        except Stopped:
            raise
        except RuntimeError as error:
            raise RecognitionError(f"{self.name} could not recognise the words: {error}") from error
        cues = _cues(chunks, seconds)
        return None if has_doubts and not cues else cues


Recognizer = SpeechRecognizer | FasterWhisperRecognizer


def recognizer_of(folder: Path, name: str, device: torch.device) -> Recognizer:
    """
    Load a recogniser: [`FasterWhisperRecognizer`] for a CTranslate2 folder, else [`SpeechRecognizer`].

    Args:
        folder (`Path`): of the model.
        name, device: as for these classes.
    """
    config = folder / CONFIG_NAME
    # Both kinds may have a `config.json`, but only that of transformers names the type of the model.
    if (folder / "model.bin").is_file() and not (config.is_file() and "model_type" in read_json(config)):
        return FasterWhisperRecognizer(str(folder), name, device)
    return SpeechRecognizer(str(folder), name, device)


def _is_runnable(repo_id: str, folder: Path) -> bool:
    """Whether a downloaded revision is a speech recogniser that can be run here."""
    # A model of CTranslate2
    if (folder / "model.bin").is_file() and "whisper" in repo_id and find_spec("faster_whisper") is not None:
        return True
    # A model of transformers
    path = folder / CONFIG_NAME
    if not path.is_file() or not any(folder.glob("*.safetensors")):
        return False
    config = read_json(path)
    architectures = config.get("architectures") or [""]
    return architectures[0].endswith(("ForCTC", "ForSpeechSeq2Seq")) or config.get("model_type") == "whisper"


def downloaded_recognizer() -> tuple[str, Path]:
    """
    Find the smallest recogniser in the cache of the Hub that can be run here, as it was downloaded last.

    Returns:
        Its Hub id, and the folder of the revision.

    Raises:
        ValueError: there is none; the message says what to do.
    """
    found = []
    with suppress(CacheNotFound):
        for repo in scan_cache_dir(constants.HF_HUB_CACHE).repos:
            for revision in repo.revisions:
                if _is_runnable(repo.repo_id, revision.snapshot_path):
                    order = (repo.size_on_disk, repo.repo_id, -revision.last_modified)
                    found.append((order, repo.repo_id, revision.snapshot_path))
    if not found:
        raise ValueError(
            "No speech recogniser was downloaded before. Name one: `--transcribe FOLDER`, or `--transcribe "
            "openai/whisper-tiny`, which downloads 0.15 GB once; `Systran/faster-whisper-tiny` is faster, and needs "
            "the extra `faster-whisper`."
        )
    _, name, folder = min(found)
    return name, folder


__all__ = [
    "FasterWhisperRecognizer",
    "Recognizer",
    "SpeechRecognizer",
    "downloaded_recognizer",
    "is_understood",
    "recognizer_of",
]
