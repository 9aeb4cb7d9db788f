"""Machine transcripts of clips without subtitles, made by a speech recogniser and stored with the gallery.

- A transcript is a WebVTT file, see [`~gallery.transcripts`], with times, so that each window gets its own words. It
  records the recogniser.
- A file is transcribed once, even if nothing was understood, and again only when it changes.
"""

import os
from collections.abc import Iterator

from gallery.decoding import check_not_stopped
from gallery.transcripts import SPEECH, Cue, Transcript
from modeling_scalar.media_scalar import SAMPLING_RATE, MediaReader

from .recognised import Recognised
from .recognizers import MOST_SECONDS, Recognizer
from .voice import speech_probabilities, speech_stretches

_READ = 240.0  # seconds of sound read at a time


class Speech(Recognised):
    """
    The transcripts of the speech in a gallery; makes those of files without subtitles.

    Args:
        gallery (`Path`): its folder.
        recognizer ([`~search.recognizers.Recognizer`], *optional*): without one, only existing transcripts are used.
    """

    def __init__(self, gallery: str | os.PathLike, recognizer: Recognizer | None = None):
        super().__init__(gallery, SPEECH, recognizer is not None)
        self.recognizer = recognizer

    def make(self, path: str, reader: MediaReader) -> Transcript | None:
        """Transcribe a file; `None` if it has subtitles, or no sound."""
        if (reader.read_subtitle_of(path) or "").strip():
            return None
        parts = list(self._transcribe(path, reader))
        if not parts:
            return None
        return Transcript([cue for part in parts for cue in part], self.recognizer.name)

    def _transcribe(self, path: str, reader: MediaReader) -> Iterator[list[Cue]]:
        """The words of each stretch of speech; nothing at all if there is no sound."""
        reader, start = reader.noting(lambda problem: None), 0.0  # reading the clip reports what is wrong
        while (waveform := reader.read_audio(path, (start, start + _READ))) is not None:
            yield []  # there is sound
            stretches = speech_stretches(speech_probabilities(waveform), MOST_SECONDS)
            length, is_full = _READ, len(waveform) >= int(_READ * SAMPLING_RATE)
            if is_full and stretches and stretches[-1][1] >= len(waveform) and stretches[-1][0] > 0:
                length = stretches.pop()[0] / SAMPLING_RATE  # transcribed together with what follows
            for first, last in stretches:
                check_not_stopped()  # transcription is the slowest step
                offset = start + first / SAMPLING_RATE
                self.on_progress(path, offset)
                cues = self.recognizer(waveform[first:last])
                yield [Cue(offset + cue.start, offset + cue.stop, cue.text) for cue in cues]
            start += length


__all__ = ["Speech"]
