"""The folder of a run: it holds one run, is used by one process at a time, and decides where a command resumes."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path

from gallery.files import locked, read_json, write_json

from .checkpoints import check_checkpoint, clear_unfinished, last_checkpoint
from .distributed import wait_for_all
from .identity import fields_of_run
from .recipe import RunArguments
from .record import RECORD
from .training_args import ScalarTrainingArguments

RECIPE = "recipe.json"
"""All fields of a finished run; the file is written last."""

_NEWEST = ("last", "true", "auto")  # "auto" starts a new run if there is no checkpoint
_DURATION = ("max_steps", "num_train_epochs")


def save_recipe(run: RunArguments, args: ScalarTrainingArguments) -> None:
    """Write all fields of a run to `recipe.json` in its folder, next to the trained weights."""
    write_json(asdict(run) | args.to_sanitized_dict(), Path(args.output_dir) / RECIPE)


@contextmanager
def only_run(args: ScalarTrainingArguments) -> Iterator[None]:
    """
    Lock the folder of a run, so that no second process writes to it; create it if needed.

    Raises:
        OSError: If the folder cannot be created or written.
        ValueError: If another run is using it.
    """
    folder = Path(args.output_dir)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"`output_dir` must be a folder, but {folder} is a file. Choose another.")
    lock = nullcontext()
    if args.process_index == 0:
        folder.mkdir(parents=True, exist_ok=True)
        message = f"Another run is writing to {folder}. Wait until it ends, or choose another `output_dir`."
        lock = locked(folder / ".training.lock", message)
    with lock:
        yield


def find_start(run: RunArguments, args: ScalarTrainingArguments) -> tuple[Path | None, bool]:
    """
    Find where a run starts: at the beginning, at a checkpoint, or nowhere because it has ended.

    Args:
        run ([`RunArguments`]), args ([`ScalarTrainingArguments`]): The fields of the run.

    Returns:
        The checkpoint to resume from or None, and whether the run has already ended.

    Raises:
        FileNotFoundError: If the checkpoint does not exist.
        ValueError: If the checkpoint cannot be resumed from, or the folder holds another run.
    """
    folder, wanted = Path(args.output_dir), args.resume_from_checkpoint
    if args.process_index == 0:
        clear_unfinished(folder)
        for name in (RECIPE, RECORD):  # the names `write_json` uses until they are complete
            for file in folder.glob(f".{name}.[0-9]*"):
                file.unlink()
    wait_for_all()
    ended = folder / RECIPE
    if wanted is None:
        there = ended if ended.is_file() else last_checkpoint(folder)
        if there is not None:
            raise ValueError(
                f"{folder} already holds a run ({there.name}). Continue it with `--resume_from_checkpoint last`, "
                "choose another `output_dir`, or remove the folder."
            )
        return None, False
    if wanted not in _NEWEST:
        checkpoint = Path(wanted)
        check_checkpoint(checkpoint, args.world_size)
        inside = checkpoint.resolve().parent == folder.resolve()
        if not inside and (ended.is_file() or last_checkpoint(folder) is not None):
            raise ValueError(
                f"{folder} already holds a run, but {checkpoint} belongs to another. Choose another `output_dir`."
            )
        return checkpoint, False
    if ended.is_file() and _is_same(ended, args):
        return None, True
    checkpoint = last_checkpoint(folder)
    if checkpoint is None and (wanted != "auto" or ended.is_file()):
        raise ValueError(
            f"There is no complete checkpoint in {folder} to resume from. Start a new run without "
            "`--resume_from_checkpoint` or with `--resume_from_checkpoint auto`."
        )
    return checkpoint, False


def _is_same(ended: Path, args: ScalarTrainingArguments) -> bool:
    """Whether the finished run has the same fields; if not, for example because it is longer now, it continues."""
    before = read_json(ended)
    now = fields_of_run(args) | {name: getattr(args, name) for name in _DURATION}
    return all(str(before.get(name)) == str(value) for name, value in now.items())  # None is stored as "None"


def forget_end(args: ScalarTrainingArguments) -> None:
    """Remove the mark of a finished run before it continues."""
    if args.process_index == 0:
        (Path(args.output_dir) / RECIPE).unlink(missing_ok=True)


__all__ = ["RECIPE", "find_start", "forget_end", "only_run", "save_recipe"]
