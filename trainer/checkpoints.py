"""The folder of a run: it holds one run, is used by one process at a time, and decides where a command resumes.

The last file of a checkpoint is its manifest, with the sizes of all others and what resuming compares. A folder
without a manifest is no checkpoint, so nothing half-written is ever taken as one.
"""

import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from scalar_retrieval.gallery.store.files import locked, read_json, sync_folder, write_json

from .distributed import wait_for_all
from .identity import fields_of_run
from .training_args import ScalarTrainingArguments

logger = logging.getLogger(__name__)

MANIFEST = "checkpoint.json"
"""The file of a checkpoint that is written last."""

RECIPE = "recipe.json"
"""All fields of a finished run; the file is written last."""

RECORD = "training.json"
"""What a finished run trained, on what and for how long."""

_DURATION = ("max_steps", "num_train_epochs")
_REMEDY = "Choose another checkpoint, or remove this one"
_ANEW = "Resume with the original fields, or start a new run with another `output_dir`"


def _checkpoints(output_dir: str | Path) -> list[Path]:
    """The folders named like checkpoints, newest first; those without a manifest last."""
    ranked = []
    for path in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        number = re.fullmatch(r"[0-9]{1,18}", path.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-"))
        if number is not None and path.is_dir():
            ranked.append(((path / MANIFEST).is_file(), int(number[0]), path))
    return [path for *_, path in sorted(ranked, reverse=True)]


# Reading -------------------------------------------------------------------------------------------------------------


def check_checkpoint(checkpoint: str | Path) -> dict[str, Any]:
    """
    Check that a run can resume from a checkpoint: all its files exist and have their size.

    Args:
        checkpoint (`str` or `Path`): The folder.

    Returns:
        `dict`: The manifest.

    Raises:
        FileNotFoundError: If there is no manifest.
        ValueError: If a file is missing or cut, which is named, or if it holds only a model.
    """
    checkpoint = Path(checkpoint)
    manifest = read_json(checkpoint / MANIFEST, f"{_REMEDY}.")
    for name, size in manifest["files"].items():
        file = checkpoint / name
        if not file.is_file() or file.stat().st_size != size:
            raise ValueError(f"{file} is missing or does not have its {size} bytes. {_REMEDY}.")
    if not any(name.startswith("rng_state") for name in manifest["files"]):  # of each process
        raise ValueError(f"{checkpoint} holds a model only (`save_only_model`). {_REMEDY}.")
    return manifest


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
            check_checkpoint(folder)
        except (OSError, ValueError) as error:
            logger.warning("%s is skipped: %s", folder, error)
        else:
            return folder
    return None


def check_run(checkpoint: str | Path, run: dict[str, Any]) -> None:
    """
    Check that a checkpoint belongs to the run that resumes from it.

    Args:
        checkpoint (`str` or `Path`): A complete checkpoint.
        run (`dict`): What identifies the run and must not differ.

    Raises:
        ValueError: If it belongs to another run; the message says what differs.
    """
    manifest = read_json(Path(checkpoint) / MANIFEST)
    for name, value in run.items():
        before = manifest["run"].get(name)
        if before != value:
            raise ValueError(
                f"{checkpoint} belongs to another run: its {name} was {before!r}, got {value!r}. {_ANEW}."
            )


# Writing -------------------------------------------------------------------------------------------------------------


def _sync(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        sync_folder(path)  # which also does it for a file


def finish_checkpoint(checkpoint: Path, step: int, run: dict[str, Any]) -> None:
    """
    Write the manifest of a new checkpoint, once all its files are on the disk.

    Args:
        checkpoint (`Path`): The folder.
        step (`int`): The optimizer step.
        run (`dict`): What [`check_run`] will compare.
    """
    _sync(checkpoint)
    sizes = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file() and path != checkpoint / MANIFEST:
            sizes[path.relative_to(checkpoint).as_posix()] = path.stat().st_size
    write_json({"step": step, "run": run, "files": sizes}, checkpoint / MANIFEST)
    sync_folder(checkpoint.parent)


def remove_checkpoint(checkpoint: Path) -> None:
    """Remove a folder if it exists, its manifest first, so that what a kill leaves of it is no checkpoint."""
    (checkpoint / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(checkpoint, ignore_errors=True)


def remove_old(output_dir: str | Path, limit: int | None, keep: list[Path]) -> None:
    """Remove the oldest checkpoints beyond `limit`, except those in `keep`."""
    if not limit or limit < 0:
        return
    kept = set(map(Path.resolve, keep))
    others = [path for path in _checkpoints(output_dir) if path.resolve() not in kept]
    for path in others[max(0, limit - len(kept)) :]:
        remove_checkpoint(path)


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """
    Write files to a hidden folder; once all are on the disk, they replace those with the same names in `folder`.

    Yields:
        `Path`: The hidden folder.
    """
    unfinished = folder / ".model.unfinished"
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
        # Look at the disk before the removal frees some of it.
        is_full = Path(output_dir).is_dir() and shutil.disk_usage(output_dir).free < 2**20
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
        # torch and safetensors raise errors of their own, and tokenizers plain exceptions; the error of a killed data
        # worker may come at any moment.
        is_of_saving = isinstance(error, OSError | RuntimeError | SafetensorError) or type(error) is Exception
        if not is_of_saving or is_of_ended_worker(error):
            raise
        # Say why it failed, and from where the run can resume.
        remaining = "There is no complete checkpoint"
        last = last_checkpoint(output_dir)
        if last is not None:
            remaining = f"The last complete checkpoint is {last}"
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        if is_full:
            reason = f"the disk is full ({reason})"
        raise OSError(f"{Path(output_dir) / what} could not be written: {reason}. {remaining}.") from error


def is_of_ended_worker(error: BaseException) -> bool:
    """
    Whether an error reports that a data worker was killed.

    PyTorch raises a RuntimeError for it wherever the process is; a batch that is being fetched fails first.
    """
    reported = isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker")
    return reported or isinstance(error, ConnectionError | EOFError)


# The folder ----------------------------------------------------------------------------------------------------------


@contextmanager
def only_run(args: ScalarTrainingArguments) -> Iterator[None]:
    """
    Lock the folder of a run, so that no second process writes to it; create it if needed.

    Raises:
        OSError: If the folder cannot be created or written.
        ValueError: If another run is using it.
    """
    folder = Path(args.output_dir)
    lock = nullcontext()
    if args.process_index == 0:
        folder.mkdir(parents=True, exist_ok=True)
        message = f"Another run is writing to {folder}. Wait until it ends, or choose another `output_dir`."
        lock = locked(folder / ".training.lock", message)
    with lock:
        yield


def find_start(args: ScalarTrainingArguments) -> tuple[Path | None, bool]:
    """
    Find where a run starts: at the beginning, at a checkpoint, or nowhere because it has ended.

    Args:
        args ([`ScalarTrainingArguments`]): The fields of the run.

    Returns:
        The checkpoint to resume from or None, and whether the run has already ended.

    Raises:
        FileNotFoundError: If the checkpoint does not exist.
        ValueError: If the checkpoint cannot be resumed from, or a new run would begin where one is.
    """
    # Remove what a killed process may have left of its last files.
    folder = Path(args.output_dir)
    wanted = args.resume_from_checkpoint
    if args.process_index == 0:
        for name in (RECIPE, RECORD):  # the names `write_json` uses until they are complete
            for file in folder.glob(f".{name}.[0-9]*"):
                file.unlink()
    wait_for_all()
    # A checkpoint that is named.
    if wanted not in (None, "last", "auto"):
        check_checkpoint(wanted)
        return Path(wanted), False
    # A new run needs a folder without one.
    ended = folder / RECIPE
    checkpoint = last_checkpoint(folder)
    if wanted is None:
        if ended.is_file() or checkpoint is not None:
            raise ValueError(
                f"{folder} already holds a run. Continue it with `--resume_from_checkpoint last`, choose another "
                "`output_dir`, or remove the folder."
            )
        return None, False
    # The last checkpoint, unless the run has ended with the same fields.
    if ended.is_file() and _has_same_fields(ended, args):
        return None, True
    if checkpoint is None and (wanted == "last" or ended.is_file()):
        raise ValueError(
            f"There is no complete checkpoint in {folder} to resume from. Start a new run without "
            "`--resume_from_checkpoint` or with `--resume_from_checkpoint auto`."
        )
    return checkpoint, False


def _has_same_fields(ended: Path, args: ScalarTrainingArguments) -> bool:
    """Whether the finished run has the same fields; if not, for example because it is longer now, it continues."""
    before = read_json(ended)
    now = fields_of_run(args)
    for name in _DURATION:
        now[name] = getattr(args, name)
    for name, value in now.items():
        if str(before.get(name)) != str(value):  # None is stored as "None"
            return False
    return True


def mark_unfinished(args: ScalarTrainingArguments) -> None:
    """Remove the mark of a finished run before it continues."""
    if args.process_index == 0:
        (Path(args.output_dir) / RECIPE).unlink(missing_ok=True)


__all__ = [
    "MANIFEST",
    "RECIPE",
    "RECORD",
    "check_checkpoint",
    "check_run",
    "describe_failed_save",
    "find_start",
    "finish_checkpoint",
    "mark_unfinished",
    "is_of_ended_worker",
    "last_checkpoint",
    "only_run",
    "remove_checkpoint",
    "remove_old",
    "written_whole",
]
