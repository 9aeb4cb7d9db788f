"""From files to a gallery: find them, read them with the processor, embed them with the model, keep what is known.

A file is embedded once, and again only when its content changes. What cannot be read is recorded, never dropped.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from tqdm import tqdm
from transformers import PreTrainedModel

from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.media_scalar import SAMPLING_RATE, find_sidecar
from modeling_scalar.processing_scalar import Clip, ScalarProcessor

from .gallery import Entry, FailedFile, Gallery

EXTENSIONS = frozenset(
    ".mp4 .m4v .mov .mkv .webm .avi .mpg .mpeg .ts .flv .wmv .ogv .3gp .wav .mp3 .m4a .flac .ogg".split()
)
"""What is taken from a folder; a file named explicitly is taken whatever its extension."""

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


@dataclass
class IndexReport:
    """What one run did. Every file given is in exactly one of `new`, `changed`, `unchanged` and `unreadable`.

    `not_retried` is the part of `unreadable` that failed in an earlier run and has not changed since; `problems` lists
    clips of this run of which some stream could not be read; `vanished` are clips whose file is gone, `pruned` says
    whether they were taken out.
    """

    new: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    unreadable: list[FailedFile] = field(default_factory=list)
    not_retried: list[str] = field(default_factory=list)
    problems: dict[str, list[str]] = field(default_factory=dict)
    vanished: list[str] = field(default_factory=list)
    pruned: bool = False


def find_files(paths: Iterable[str | os.PathLike], recursive: bool = True) -> list[str]:
    """List the files that `paths` (files and folders) stand for, absolute, free of symbolic links, each once.

    Raises:
        FileNotFoundError: a path does not exist.
        OSError: a folder cannot be listed.
    """
    found, visited = {}, set()
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"There is no file or folder {str(path)!r}.")
        if not path.is_dir():
            found[str(path.resolve())] = None
            continue
        for folder, subfolders, names in os.walk(path, onerror=_reraise, followlinks=True):
            real = os.path.realpath(folder)
            if real in visited or not recursive:
                subfolders.clear()  # linked folders are followed once, so a circle of links ends
            visited.add(real)
            subfolders.sort()
            for name in sorted(names):
                if os.path.splitext(name)[1].lower() in EXTENSIONS:
                    found[os.path.realpath(os.path.join(folder, name))] = None
    return list(found)


def _reraise(error: OSError) -> None:
    raise error


def _sha256(path: str | os.PathLike) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _clip_sha256(path: str) -> str:
    """Hash what a clip is read from: the file and the subtitle file beside it, if there is one."""
    sidecar = find_sidecar(path)
    if sidecar is None:
        return _sha256(path)
    return hashlib.sha256(f"{_sha256(path)} {_sha256(sidecar)}".encode()).hexdigest()


def _clip_stat(path: str) -> tuple[int, int]:
    """Size and time of change, in nanoseconds, of a file together with the subtitle file beside it."""
    stats = [os.stat(file) for file in (path, find_sidecar(path)) if file is not None]
    return sum(stat.st_size for stat in stats), max(stat.st_mtime_ns for stat in stats)


def model_folder(model: str | os.PathLike) -> Path:
    """The local folder of `model`, a folder or a Hub id (downloaded if need be)."""
    if Path(model).is_dir():
        return Path(model).resolve()
    if not _HUB_ID.fullmatch(str(model)):
        raise FileNotFoundError(f"There is no model folder {str(model)!r}, and it cannot be a Hub id either.")
    return Path(snapshot_download(str(model)))


@torch.inference_mode()
def embed_queries(queries: list[str], model: PreTrainedModel, processor: ScalarProcessor) -> torch.Tensor:
    """Embed texts: `torch.FloatTensor` of shape `(Q, D)`, unit norm, on the CPU."""
    inputs = processor(text=queries).to(model.device)
    embeds = model.get_text_features(inputs["input_ids"], inputs["attention_mask"])
    return torch.nn.functional.normalize(embeds.float(), dim=-1).cpu()


@torch.inference_mode()
def embed_clips(
    clips: list[Clip], model: PreTrainedModel, processor: ScalarProcessor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Embed clips: embeddings of shape `(B, 3, D)`, float32, unit or zero, and the mask `(B, 3)`, on the CPU."""
    inputs = processor(clips=clips).to(model.device, model.dtype)
    embeds, mask = model.get_modality_features(**inputs)
    # Unit again in float32: a model in half precision is so only to its own precision.
    return torch.nn.functional.normalize(embeds.float(), dim=-1).cpu(), mask.cpu()


def _is_unchanged(path: str, record: Entry | FailedFile) -> bool:
    try:
        size, mtime_ns = _clip_stat(path)
        return size == record.size and (mtime_ns == record.mtime_ns or _clip_sha256(path) == record.sha256)
    except OSError:  # reading it will say what is wrong
        return False


class _Indexer:
    """The state of one run: clips waiting to be embedded, and embeddings waiting to be saved."""

    def __init__(self, gallery: Gallery, output: Path, model, processor, batch_size: int, save_every: int):
        self.gallery, self.output, self.model, self.processor = gallery, output, model, processor
        self.batch_size, self.save_every = batch_size, save_every
        self.report = IndexReport()
        self.clips: list[tuple[Entry, Clip]] = []
        self.embedded: list[tuple[list[Entry], torch.Tensor, torch.Tensor]] = []
        self.is_dirty = False

    def plan(self, files: list[str], retry_failed: bool) -> list[str]:
        """Return the files that must be read; report the others."""
        todo = []
        for path in files:
            known = self.gallery.entries if path in self.gallery.entries else self.gallery.failed
            record = known.get(path)
            if record is None or not _is_unchanged(path, record):
                todo.append(path)
                continue
            _, mtime_ns = _clip_stat(path)
            if mtime_ns != record.mtime_ns:  # touched, same content: remember, so as not to hash it again
                known[path] = replace(record, mtime_ns=mtime_ns)
                self.is_dirty = True
            if isinstance(record, Entry):
                self.report.unchanged.append(path)
            elif retry_failed:
                todo.append(path)
            else:
                self.report.unreadable.append(record)
                self.report.not_retried.append(path)
        return todo

    def read(self, path: str, on_error: str) -> None:
        """Read one file; fill the batch or note the failure."""
        size, mtime_ns, sha256 = 0, 0, ""
        try:
            size, mtime_ns = _clip_stat(path)
            sha256 = _clip_sha256(path)
            clip = self.processor.read_clip(path, on_error=on_error)
            problems = [
                problem.removeprefix(f"{path}: ") for problem in clip.problems
            ]  # the reader names the file too
            if clip.is_empty:
                raise ValueError("; ".join(problems) or "it has no picture, no sound and no subtitles")
        except (OSError, ValueError) as error:
            reason = str(error).removeprefix(f"{path}: ")
            if on_error == "raise":
                raise ValueError(f"{path}: {reason}") from error
            failure = FailedFile(path, size, mtime_ns, sha256, reason)
            self.gallery.failed[path] = failure
            if path in self.gallery.entries:  # what was embedded is no longer what the file holds
                self.gallery.remove({path})
            self.report.unreadable.append(failure)
            self.is_dirty = True
            return
        duration = None if clip.waveform is None else len(clip.waveform) / SAMPLING_RATE
        self.clips.append((Entry(path, size, mtime_ns, sha256, [], duration, problems), clip))

    def embed(self) -> None:
        """Embed the waiting batch."""
        if not self.clips:
            return
        entries, clips = map(list, zip(*self.clips, strict=True))
        self.clips = []
        embeds, mask = embed_clips(clips, self.model, self.processor)
        for number, row in enumerate(mask.tolist()):
            present = [name for name, here in zip(MODALITIES, row, strict=True) if here]
            entries[number] = replace(entries[number], presence=present)
        self.embedded.append((entries, embeds, mask))
        if len(self.embedded) >= self.save_every:
            self.save()

    def save(self) -> None:
        """Move the embedded batches into the gallery and write it."""
        while self.embedded:
            entries, embeds, mask = self.embedded[0]
            known = {entry.path for entry in entries if entry.path in self.gallery.entries}
            if known:
                self.gallery.remove(known)
            self.gallery.append(entries, embeds, mask)
            del self.embedded[0]
            for entry in entries:
                (self.report.changed if entry.path in known else self.report.new).append(entry.path)
                self.gallery.failed.pop(entry.path, None)
                if entry.problems:
                    self.report.problems[entry.path] = entry.problems
            self.is_dirty = True
        if self.is_dirty and self.gallery.dim is not None:
            self.gallery.save(self.output)
            self.is_dirty = False

    def look_for_vanished(self, prune: bool) -> None:
        """Report clips whose file is gone; with `prune`, take them and the records of such failures out."""
        self.report.vanished = [path for path in self.gallery.entries if not os.path.exists(path)]
        self.report.pruned = prune
        if not prune:
            return
        if self.report.vanished:
            self.gallery.remove(set(self.report.vanished))
        failed = {path: failure for path, failure in self.gallery.failed.items() if os.path.exists(path)}
        self.is_dirty |= bool(self.report.vanished) or len(failed) < len(self.gallery.failed)
        self.gallery.failed = failed


def index_files(
    files: list[str],
    gallery: Gallery,
    output: str | os.PathLike,
    model: PreTrainedModel,
    processor: ScalarProcessor,
    *,
    batch_size: int = 8,
    on_error: str = "missing",
    prune: bool = False,
    save_every: int = 16,
    progress: bool = False,
) -> IndexReport:
    """Bring `gallery` up to date with `files` and save it to `output`.

    Whatever ends the run, an error or an interrupt, what was embedded until then is saved.

    Args:
        files (`list[str]`): as returned by `find_files`. Clips of the gallery that are not among them are kept.
        batch_size (`int`): clips embedded at a time.
        on_error (`str`): "missing": a stream that cannot be decoded counts as absent, a file in which nothing can be
            read is reported, left out, and not tried again until it changes. "raise": the first problem ends the run.
        prune (`bool`): take clips whose file is gone out of the gallery, instead of only reporting them.
        save_every (`int`): batches between two saves.
        progress (`bool`): show a progress bar on stderr.
    Raises:
        ValueError: an option is out of range, or a file cannot be read and `on_error` is "raise".
    """
    if on_error not in ("missing", "raise"):
        raise ValueError(f"`on_error` must be 'missing' or 'raise', got {on_error!r}.")
    if batch_size < 1 or save_every < 1:
        raise ValueError(f"`batch_size` and `save_every` must be at least 1, got {batch_size} and {save_every}.")
    run = _Indexer(gallery, Path(output), model, processor, batch_size, save_every)
    try:
        run.look_for_vanished(prune)
        for path in tqdm(run.plan(files, retry_failed=on_error == "raise"), unit="file", disable=not progress):
            try:
                run.read(path, on_error)
            except ValueError:
                run.embed()  # the files before this one are good
                raise
            if len(run.clips) >= batch_size:
                run.embed()
        run.embed()
    finally:
        run.save()
    return run.report


__all__ = [
    "EXTENSIONS",
    "IndexReport",
    "embed_clips",
    "embed_queries",
    "find_files",
    "index_files",
    "model_folder",
]
