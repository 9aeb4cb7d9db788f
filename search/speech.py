"""Machine transcripts of clips without subtitles, made by a speech recogniser and stored with the gallery.

- A transcript is a WebVTT file, see [`~gallery.transcripts`], with times, so that each window gets its own words. It
  records the recogniser.
- A file is transcribed once, even if nothing was understood, and again only when it changes.
"""

import os

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
        # Read the sound in parts, so that hours of it need little memory.
        reader = reader.reporting_to(lambda problem: None)  # reading the clip reports what is wrong
        start = 0.0
        waveform = reader.read_audio(path, (start, start + _READ))  # (samples,)
        if waveform is None:
            return None
        cues = []
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
                for cue in self.recognizer(waveform[first:last]):
                    cues.append(Cue(offset + cue.start, offset + cue.stop, cue.text))
            start += length
            waveform = reader.read_audio(path, (start, start + _READ))
        return Transcript(cues, self.recognizer.name)


__all__ = ["Speech"]
