"""Machine transcripts of clips without subtitles, made by a speech recogniser and stored with the gallery.

- A transcript is a WebVTT file, see [`~gallery.transcripts`], with times, so that each window gets its own words. It
  records the recogniser.
- A file is transcribed once, even if nothing was understood, and again only when it changes.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from gallery.decoding import check_not_stopped
from gallery.transcripts import Cue, Transcript, Transcripts
from modeling_scalar.media_scalar import SAMPLING_RATE, MediaError, MediaReader

from .recognizers import MOST_SECONDS, Recognizer
from .voice import speech_probabilities, speech_stretches

_READ = 240.0  # seconds of sound read at a time


class Speech(Transcripts):
    """
    The transcripts of a gallery; makes missing ones.

    Args:
        gallery (`Path`): its folder.
        recognizer ([`~search.recognizers.Recognizer`], *optional*): without one, only existing transcripts are used.

    Attributes:
        tell (`Callable`): called with the path of a file and the second that is being transcribed.
    """

    def __init__(self, gallery: str | os.PathLike, recognizer: Recognizer | None = None):
        super().__init__(Path(gallery))
        self.recognizer = recognizer
        self.tell: Callable[[str, float], None] = lambda path, second: None

    def is_due(self, sha256: str) -> bool:
        """Whether a clip with this hash, with sound but without subtitles, should be read again."""
        return self.recognizer is not None and self.has_words(sha256) is not False

    def of(self, path: str, sha256: str, reader: MediaReader) -> str | None:
        """
        Return the transcript of a file, and make it if necessary.

        Args:
            path (`str`), sha256 (`str`): the file, and the hash of it and of the subtitles next to it.
            reader ([`~modeling_scalar.MediaReader`]): opens the file.

        Returns:
            The path of the transcript; `None` if the file has subtitles, no sound, or no words.

        Raises:
            SpeechError: the recogniser failed.
            OSError: it cannot be written.
        """
        if self.has_words(sha256) is None and self.recognizer is not None:
            try:
                if (reader.read_subtitle_of(path) or "").strip():
                    return None
                self._write(path, sha256, reader)
            except (MediaError, FileNotFoundError):  # reading the clip reports what is wrong
                return None
        found = self.with_words(sha256)
        return None if found is None else str(found)

    def _write(self, path: str, sha256: str, reader: MediaReader) -> None:
        """Write the transcript, unless there is no sound."""

        def hear() -> Transcript | None:
            heard = list(self._hear(path, reader))
            if not heard:
                return None
            return Transcript([cue for part in heard for cue in part], self.recognizer.name)

        self.write_once(sha256, hear)

    def _hear(self, path: str, reader: MediaReader) -> Iterator[list[Cue]]:
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
                self.tell(path, offset)
                cues = self.recognizer(waveform[first:last])
                yield [Cue(offset + cue.start, offset + cue.stop, cue.text) for cue in cues]
            start += length


__all__ = ["Speech"]
