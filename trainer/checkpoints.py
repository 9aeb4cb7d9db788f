"""Checkpoints that are complete or absent, and that belong to the run that resumes from them.

A checkpoint is written to a hidden folder, which is renamed once everything in it is on the disk. Its last file lists
the others with their sizes and SHA-256, and identifies the run.
"""

import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from gallery.files import read_json, sha256_of, sync_folder, write_json
from modeling_scalar.checking import shapes_of

logger = logging.getLogger(__name__)

MANIFEST = "checkpoint.json"
"""The list of a checkpoint's files, written last."""

_FOLDERS = ("optimizer_*", "global_step*")
_REMEDY = "Choose another checkpoint, or remove this one"
_ANEW = "Resume with the original fields, or start a new run with another `output_dir`"
# Suffixes of a folder while it is written, replaced and deleted.
_UNFINISHED, _REPLACED, _REMOVED = ".unfinished", ".replaced", ".removed"


def rng_file(rank: int, num_processes: int) -> str:
    """Return the file name that the Trainer uses for the random state of a process."""
    return "rng_state.pth" if num_processes <= 1 else f"rng_state_{rank}.pth"


def _step(checkpoint: Path) -> int:
    number = checkpoint.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")
    return int(number) if re.fullmatch(r"[0-9]{1,18}", number) else -1


def _checkpoints(output_dir: str | Path) -> list[Path]:
    """The folders named like checkpoints, newest first."""
    folders = [path for path in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.is_dir()]
    return sorted((path for path in folders if _step(path) >= 0), key=_step, reverse=True)


# Reading -------------------------------------------------------------------------------------------------------------


def _read_manifest(checkpoint: Path) -> dict[str, Any]:
    path = checkpoint / MANIFEST
    if not path.is_file():
        raise ValueError(f"{path} is missing. {_REMEDY}.")
    manifest = read_json(path)
    if not isinstance(manifest.get("files"), dict):
        raise ValueError(f"{path} does not list any files. {_REMEDY}.")
    return manifest


def _check_listed(checkpoint: Path, files: dict[str, Any]) -> None:
    for name, expected in files.items():
        file = checkpoint / name
        if not isinstance(expected, dict):
            raise ValueError(f"{checkpoint / MANIFEST} is not a valid list of files. {_REMEDY}.")
        if not file.is_file():
            raise ValueError(f"{file} is missing. {_REMEDY}.")
        size = file.stat().st_size
        if size != expected.get("size"):
            raise ValueError(f"{file} must have {expected.get('size')} bytes, got {size}. {_REMEDY}.")
        if sha256_of(file) != expected.get("sha256"):
            raise ValueError(f"{file} is damaged: its SHA-256 differs. {_REMEDY}.")


def _processes_of(checkpoint: Path) -> int:
    return max(1, len(list(checkpoint.glob("rng_state_*.pth"))))


def check_checkpoint(checkpoint: str | Path, num_processes: int = 1) -> None:
    """
    Check that a run can resume from a checkpoint: all files it needs exist and are complete.

    Args:
        checkpoint (`str` or `Path`): The folder.
        num_processes (`int`): The number of processes of the resumed run.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ValueError: If a file is missing, truncated or damaged; the message names it.
    """
    checkpoint = Path(checkpoint)
    if not checkpoint.is_dir():
        raise FileNotFoundError(f"There is no checkpoint at {checkpoint}. Give its folder, or `last` for the newest.")
    manifest = _read_manifest(checkpoint)
    _check_listed(checkpoint, manifest["files"])
    if _step(checkpoint) not in (-1, manifest.get("step")):
        raise ValueError(f"{checkpoint} holds the checkpoint of step {manifest.get('step')!r}. {_REMEDY}.")
    made_by = _processes_of(checkpoint)
    if made_by != num_processes:
        raise ValueError(
            f"{checkpoint} was written by {made_by} processes, got {num_processes}. Launch {made_by} processes."
        )
    needed = [rng_file(rank, num_processes) for rank in range(num_processes)]
    # FSDP and DeepSpeed store the optimizer in folders, one part per process.
    if not any(path.is_dir() for name in _FOLDERS for path in checkpoint.glob(name)):
        needed += [OPTIMIZER_NAME, SCHEDULER_NAME]
    for name in needed:
        if not (checkpoint / name).is_file():
            raise ValueError(f"{checkpoint / name} is missing. {_REMEDY}.")


def check_weights(file: Path, expected: dict[str, torch.Tensor]) -> None:
    """
    Check that a file of weights holds exactly these tensors; libraries would silently load those that fit.

    Args:
        file (`Path`): A file of a checkpoint.
        expected (`dict` of `torch.Tensor`): The tensors by name.

    Raises:
        ValueError: If the file does not exist or holds other tensors.
    """
    if not file.is_file():
        raise ValueError(f"{file} is missing: the checkpoint has another `adapter`. Choose another checkpoint.")
    found, wanted = shapes_of([file]), {name: tuple(value.shape) for name, value in expected.items()}
    different = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
    if different:
        name = different[0]
        raise ValueError(
            f"{file} does not fit the model: {len(different)} tensors differ, such as {name} with shape "
            f"{found.get(name)}, expected {wanted.get(name)}. Resume with the original fields."
        )


def last_checkpoint(output_dir: str | Path) -> Path | None:
    """
    Find the newest complete checkpoint of a run; newer, incomplete ones are skipped with a warning.

    Args:
        output_dir (`str`): The folder of the run.

    Returns:
        `Path`, or None if there is none.
    """
    for folder in _checkpoints(output_dir):
        try:
            check_checkpoint(folder, _processes_of(folder))
        except (OSError, ValueError) as error:
            logger.warning("%s is skipped: %s", folder, error)
        else:
            return folder
    return None


def check_run(checkpoint: str | Path, run: dict[str, Any], free: dict[str, Any]) -> None:
    """
    Check that a checkpoint belongs to the run that resumes from it.

    Args:
        checkpoint (`str` or `Path`): A complete checkpoint.
        run (`dict`): What identifies the run and must not differ.
        free (`dict`): What may differ; differences are logged.

    Raises:
        ValueError: If it belongs to another run; the message says what differs.
    """
    made_by = _read_manifest(Path(checkpoint))
    for name, value in run.items():
        before = (made_by.get("run") or {}).get(name)
        if before != value:
            what = f"its {name} was {before!r}, got {value!r}"
            if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value):
                what = f"its {name} changed"
            raise ValueError(f"{checkpoint} belongs to another run: {what}. {_ANEW}.")
    for name, value in free.items():
        before = (made_by.get("free") or {}).get(name)
        if before != value:
            logger.warning("Resumed with %s %r, not %r: results will differ from those before.", name, value, before)


# Writing -------------------------------------------------------------------------------------------------------------


def _sync(folder: Path) -> None:
    for file in folder.rglob("*"):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    sync_folder(folder)


def unfinished_checkpoint(output_dir: str | Path, step: int) -> Path:
    """Return the hidden folder to which the checkpoint of a step is written."""
    return Path(output_dir) / f".{PREFIX_CHECKPOINT_DIR}-{step}{_UNFINISHED}"


def finish_checkpoint(folder: Path, step: int, run: dict[str, Any], free: dict[str, Any]) -> Path:
    """
    List the files of a new checkpoint and give it its final name, replacing an earlier one.

    Args:
        folder (`Path`): The folder from [`unfinished_checkpoint`].
        step (`int`): The optimizer step.
        run, free (`dict`): What [`check_run`] will compare.

    Returns:
        `Path`: The checkpoint.
    """
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files.pop(MANIFEST, None)
    listed = {name: {"size": path.stat().st_size, "sha256": sha256_of(path)} for name, path in files.items()}
    _sync(folder)
    write_json({"version": 1, "step": step, "run": run, "free": free, "files": listed}, folder / MANIFEST)
    checkpoint = folder.parent / f"{PREFIX_CHECKPOINT_DIR}-{step}"
    replaced = folder.parent / f".{checkpoint.name}{_REPLACED}"
    if checkpoint.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        checkpoint.rename(replaced)
    folder.rename(checkpoint)
    sync_folder(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)
    return checkpoint


def remove_old(output_dir: str | Path, limit: int | None, keep: list[Path]) -> None:
    """Remove the oldest checkpoints beyond `limit`, except those in `keep`."""
    if not limit or limit < 0:
        return
    kept = {path.resolve() for path in keep}
    old = [path for path in _checkpoints(output_dir) if path.resolve() not in kept]
    for path in old[max(0, limit - len(kept)) :]:
        removed = path.with_name(f".{path.name}{_REMOVED}")  # atomic, so no partial checkpoint is ever visible
        shutil.rmtree(removed, ignore_errors=True)
        path.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)


def clear_unfinished(output_dir: str | Path) -> None:
    """Remove partial files of a killed run; a checkpoint that was being replaced gets its name back."""
    for ending in (_REPLACED, _UNFINISHED, _REMOVED):
        for folder in Path(output_dir).glob(f".*{ending}"):
            checkpoint = folder.with_name(folder.name.removesuffix(ending)[1:])
            if ending == _REPLACED and not checkpoint.exists():
                folder.rename(checkpoint)
            else:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """
    Write files to a hidden folder; once all are on the disk, they replace those with the same names in `folder`.

    Yields:
        `Path`: The hidden folder.
    """
    unfinished = folder / f".model{_UNFINISHED}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        _sync(unfinished)
        # Weights last: when they are new, so are all other files.
        for file in sorted(unfinished.iterdir(), key=lambda path: path.suffix == ".safetensors"):
            file.replace(folder / file.name)
        sync_folder(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def describe_failed_save(output_dir: str | Path, what: str, partial: Path | None = None) -> Iterator[None]:
    """
    If a save fails, report where the run can resume and remove the partial files.

    Args:
        output_dir (`str`): The folder of the run.
        what (`str`): What is being saved, for the message.
        partial (`Path`, *optional*): The folder of the checkpoint that is being written.

    Raises:
        OSError: If the save failed, for example because the disk is full.
    """
    try:
        yield
    except BaseException as error:
        # torch and safetensors raise errors of their own; that of a killed data worker may come at any moment.
        if not isinstance(error, OSError | RuntimeError | SafetensorError) or is_of_ended_worker(error):
            if partial is not None:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        full = ""
        if Path(output_dir).is_dir() and shutil.disk_usage(output_dir).free < 2**20:  # before anything is removed
            full = "the disk is full; free some space, then resume. The error was: "
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
        kept = last_checkpoint(output_dir)
        there = f"The last complete checkpoint is {kept}" if kept else "There is no complete checkpoint"
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise OSError(f"{Path(output_dir) / what} could not be written: {full}{reason}. {there}.") from error


def is_of_ended_worker(error: BaseException) -> bool:
    """
    Whether an error reports that a data worker was killed.

    PyTorch raises a RuntimeError for it wherever the process is; a batch that is being fetched fails first.
    """
    reported = isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker")
    return reported or isinstance(error, ConnectionError | EOFError)


__all__ = [
    "MANIFEST",
    "check_checkpoint",
    "check_run",
    "check_weights",
    "clear_unfinished",
    "describe_failed_save",
    "finish_checkpoint",
    "is_of_ended_worker",
    "last_checkpoint",
    "remove_old",
    "rng_file",
    "unfinished_checkpoint",
    "written_whole",
]
