"""In which state files are: what indexing reports of each, and what users are told of all of them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from shlex import quote

from gallery.described import calibration_hint
from gallery.gallery import Gallery
from gallery.subtitles import LANGUAGES
from gallery.windows import SEGMENT


class Status(StrEnum):
    """What became of a file; the words are those of the report."""

    NEW = "new"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    MOVED = "moved"
    """It was known by the name of a file that is gone; its clips are kept, by its own."""
    UNREADABLE = "unreadable"
    """Nothing of it can be read, and it has no clips."""
    OUT_OF_REACH = "out of reach"
    """Nobody knows whether it is there, or what it holds now; its clips are kept."""
    GONE = "gone"
    """It is not there any more; its clips are kept."""
    REMOVED = "removed"
    """It is not there any more, and its clips were taken out."""


@dataclass(frozen=True, slots=True)
class FileState:
    """
    What one run found out about a file.

    Args:
        path (`str`), status ([`Status`]): the file, and what became of it.
        reason (`str`, *optional*): why it is unreadable or out of reach; of one that is gone, why `--prune` keeps its
            clips.
        problems (`tuple[str]`): what of it could not be read, in this run or before.
        is_old (`bool`): what is wrong was found by an earlier run, and was not tried again, as nothing has changed.
        is_dropped (`bool`): it is unreadable, and the clips that there were of it are removed.
        is_transcribed (`bool`): its subtitles are a transcript made by machine.
        heard (`float`, *optional*): how many seconds of its sound the model hears, if there is more.
        unused (`tuple[str]`): what each of its subtitles is that is not read.
    """

    path: str
    status: Status
    reason: str | None = None
    problems: tuple[str, ...] = ()
    is_old: bool = False
    is_dropped: bool = False
    is_transcribed: bool = False
    heard: float | None = None
    unused: tuple[str, ...] = ()


class Report(dict[str, FileState]):
    """The states of files, by path: what a later run finds out takes the place of what was known before."""

    def add(self, state: FileState) -> None:
        """Note the state of a file."""
        self[state.path] = state

    def of(self, *statuses: Status) -> list[FileState]:
        """The files of one status, or of several."""
        return [state for state in self.values() if state.status in statuses]

    def counts(self) -> str:
        """How many files there are of each status, in words."""
        found = Counter(state.status for state in self.values())
        always = (Status.NEW, Status.CHANGED, Status.UNCHANGED, Status.UNREADABLE)
        return ", ".join(f"{found[status]} {status}" for status in Status if status in always or found[status])

    def lines(self, gallery: Gallery) -> Iterator[str]:
        """What users are told, the gallery being as it is afterwards."""
        yield f"{self.counts()}; {len(gallery)} clips in the gallery"
        if num_transcribed := sum(state.is_transcribed for state in self.values()):
            yield f"of {num_transcribed} files of this run, the subtitles are transcripts made by machine"
        if unused := Counter(kind for state in self.values() for kind in state.unused):
            yield _told_of_unused(unused, gallery.metadata.get(LANGUAGES, ()))
        unreadable = self.of(Status.UNREADABLE)
        if num_old := sum(state.is_old for state in unreadable):
            have = "has" if num_old == 1 else "have"
            yield f"{num_old} of the unreadable failed before and {have} not changed: not tried again"
        for state in unreadable:
            fate = ", and its clips are removed" if state.is_dropped else ""
            yield f"unreadable{fate}: {state.path}: {state.reason}"
        for state in self.values():
            if state.problems:
                told = "; ".join(problem.rstrip(".") for problem in state.problems)
                fate = ". It failed before and has not changed: not tried again." if state.is_old else ""
                yield f"partly read: {state.path}: {told}{fate}"
        if cut := [state for state in self.values() if state.heard is not None]:
            yield _told_of_cut(cut, gallery.metadata.get(SEGMENT))
        for state in self.of(Status.OUT_OF_REACH):
            yield f"out of reach, its clips are kept: {state.path}: {state.reason}"
        for state in self.of(Status.GONE):
            yield f"gone from disk, its clips are kept: {state.path}: {state.reason or '--prune removes them'}"
        for state in self.of(Status.REMOVED):
            yield f"gone from disk, its clips are removed: {state.path}"
        if any(state.reason for state in self.of(Status.GONE, Status.OUT_OF_REACH)):
            yield f"what will not come back, `scalar remove {quote(str(gallery.path))} PATH` takes out"
        lacking = (~gallery.modality_mask).sum(dim=0).tolist() if len(gallery) else []
        counts = zip(gallery.modalities, lacking, strict=False)
        if told := [f"{count} without {name}" for name, count in counts if count]:
            first = gallery.modalities[lacking.index(max(lacking))]
            command = f"scalar info {quote(str(gallery.path))} --missing {first}"
            yield f"in the gallery, {', '.join(told)}; `{command}` names them"
        if len(gallery) and gallery.metadata.get("is_encoder"):  # of a model of one's own, training has told
            source = "--embeddings", str(gallery.path), "--model", str(gallery.model), "--benchmark", "own"
            columns = "caption, path" if gallery.metadata.get(SEGMENT) is None else "caption, video_id"
            if hint := calibration_hint(gallery.metadata, *source, "--root", "captions.csv", columns=columns):
                yield hint


def _told_of_unused(unused: Counter[str], languages: Sequence[str]) -> str:
    """Count the subtitles that are not read, and say what others would be."""
    counts = ", ".join(
        f"{count} {kind}" for kind, count in sorted(unused.items(), key=lambda item: (-item[1], item[0]))
    )
    first = f"{','.join(languages)} first" if languages else "those without a language and in English first"
    return (
        f"of the subtitles of these files, one of each is read, {first}; left unused: {counts}. For others, index "
        "into a new gallery with --language"
    )


def _told_of_cut(states: list[FileState], segment: float | None) -> str:
    """Say that the end of some sound is left out, and what has all of it."""
    first, heard = states[0].path, states[0].heard
    name = first if len(states) == 1 else f"{first} and {len(states) - 1} more"
    if segment is not None and segment <= heard:
        return (
            f"longer than the header says: {name} could not be cut as long as it is, and the sound after the first "
            f"{heard:g} s of a window is left out; a copy by `ffmpeg -i FILE -c copy NEW` says how long it is"
        )
    what = "the sound" if segment is None else "in windows the sound"
    return (
        f"longer than the model hears: of {name}, {what} after the first {heard:g} s is left out; a new gallery with "
        f"--segment {heard:g} has all of it"
    )


__all__ = ["FileState", "Report", "Status"]
