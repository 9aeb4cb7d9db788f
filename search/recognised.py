"""Words that a machine recognises in files of a gallery: made once per file, and kept as WebVTT files."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from scalar_retrieval.gallery.words.transcripts import Transcript, Transcripts
from scalar_retrieval.modeling_scalar.media_scalar import MediaError, MediaReader


class RecognitionError(ValueError):
    """A recogniser failed on a sound or a picture."""


class Recognised(Transcripts):
    """
    The transcripts of one kind in a gallery; a subclass makes missing ones.

    Args:
        gallery (`Path`): its folder.
        recognizer (`Callable`, *optional*): recognises words, see the subclass. Without one, only existing transcripts
            are used.

    Attributes:
        on_progress (`Callable`): called with the path of a file and the second of it that is being recognised.
    """

    # A subclass names its kind, as in `Transcripts`, the fact by which a file may have words, what to tell users of a
    # file that nobody has searched for them, and what making a transcript is called.
    kind: str
    source: str
    hint: str
    doing: str

    def __init__(self, gallery: str | os.PathLike, recognizer: Callable[[np.ndarray], list] | None = None):
        super().__init__(Path(gallery), self.kind)
        self.recognizer = recognizer
        self.on_progress: Callable[[str, float], None] = lambda path, second: None

    def is_known(self, sha256: str) -> bool:
        """Whether such words of a file were looked for before, or are in this run."""
        return self.recognizer is not None or self.has_words(sha256) is not None

    def of(self, path: str, sha256: str, reader: MediaReader) -> str | None:
        """
        Return the transcript of a file, and make it if necessary.

        Args:
            path (`str`), sha256 (`str`): the file, and the hash of it and of the subtitles next to it.
            reader ([`~scalar_retrieval.modeling_scalar.MediaReader`]): opens the file.

        Returns:
            The path of the transcript; `None` if there is none, or no words in it.

        Raises:
            RecognitionError: the recogniser failed.
            OSError: it cannot be written.
        """
        # Make it once, even if it turns out to have no words.
        if self.recognizer is not None and self.has_words(sha256) is None:
            try:
                self.write_once(sha256, lambda: self.make(path, reader))
            except (MediaError, FileNotFoundError):  # reading the clip reports what is wrong
                return None
        found = self.with_words(sha256)
        return None if found is None else str(found)

    def make(self, path: str, reader: MediaReader) -> Transcript | None:
        """Recognise the words of a file; `None` if it has nothing in which they could be. Subclasses do this."""


__all__ = ["Recognised", "RecognitionError"]
