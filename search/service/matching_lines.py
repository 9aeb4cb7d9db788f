"""Words in answers: those of a clip that best match a query."""

from collections import Counter
from collections.abc import Sequence

from scalar_retrieval.gallery.filters import split_query
from scalar_retrieval.gallery.searcher import StoredClip
from scalar_retrieval.gallery.words.cues import cues_between
from scalar_retrieval.gallery.words.folding import folded, spans_of
from scalar_retrieval.gallery.words.transcripts import Cue

from .models import Line

_LEAST = 3  # letters that two forms of a word must share at their beginning


def _is_in(word: str, words: set[str]) -> bool:
    """Whether a word is one of `words`, perhaps in another form."""
    if word in words:
        return True
    for other in words:
        is_long = min(len(word), len(other)) >= _LEAST
        if is_long and (word.startswith(other) or other.startswith(word)):
            return True
    return False


def best_cues(cues: Sequence[Cue], query: str, most: int) -> list[tuple[Cue, bool]]:
    """
    Select the cues to show.

    Returns:
        At most `most` cues in order of time, each with whether it has words of the query: those with quotes, then
        those with the rarest words; the first cues if none has any.
    """
    text, quoted = split_query(query)
    asked = set(folded(text).split())
    matches: list[list[str]] = []  # of each cue, the words of the query that it has
    num_cues: Counter[str] = Counter()  # that have a word
    for cue in cues:
        spoken = set(folded(cue.text).split())
        matches.append([word for word in asked if _is_in(word, spoken)])
        num_cues.update(matches[-1])
    # A word counts the more, the fewer cues have it, and words in quotation marks more than all others.
    worth = []
    for cue, words in zip(cues, matches, strict=True):
        value = sum(1 / num_cues[word] for word in words)
        if quoted:
            value += len(asked) * len(spans_of(quoted, cue.text))
        worth.append(value)
    # Choose by worth, and return in order of time.
    order = sorted(range(len(cues)), key=lambda place: -worth[place])
    found = []
    for place in sorted(order[:most]):
        if worth[place]:
            found.append((cues[place], True))
    return found or [(cue, False) for cue in cues[:most]]


def words_of(clip: StoredClip, query: str, most: int, is_all: bool = False) -> tuple[list[Line], int]:
    """
    Read the words of a clip.

    Returns:
        At most `most` lines that best match a query, see [`best_cues`]; with `is_all`, all lines unless there are
        more. And the number of all lines.
    """
    # The same words from two sources are one line, of the source that is read last.
    sources = {}
    for source, cues in clip.words().items():
        sources |= dict.fromkeys(cues, source)
    cues = cues_between(sorted(sources), clip.place.start, clip.place.stop)
    chosen = best_cues(cues, query, most)
    if is_all and len(cues) <= most:
        matches = dict(chosen)
        chosen = [(cue, matches.get(cue, False)) for cue in cues]
    _, quoted = split_query(query)
    lines = []
    for cue, is_asked in chosen:
        marks = spans_of(quoted, cue.text)
        lines.append(Line(**cue._asdict(), source=sources[cue], is_asked=is_asked, marks=marks))
    return lines, len(cues)


__all__ = ["best_cues", "words_of"]
