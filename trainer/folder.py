"""The folder of a run: one run in it, one process at a time, and what a command that comes back finds there."""

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
"""Every field of a run that has ended; it is written last."""

_NEWEST = ("last", "true", "auto")  # the last of them begins anew where there is none
_DURATION = ("max_steps", "num_train_epochs")


def save_recipe(run: RunArguments, args: ScalarTrainingArguments) -> None:
    """Write every field of a run as `recipe.json` into its folder, beside what was trained."""
    write_json(asdict(run) | args.to_sanitized_dict(), Path(args.output_dir) / RECIPE)


@contextmanager
def only_run(args: ScalarTrainingArguments) -> Iterator[None]:
    """
    Hold the folder of a run against a second process that would write into it; made if it is not there.

    Raises:
        OSError: the folder cannot be made or written.
        ValueError: another run is going on in it.
    """
    folder = Path(args.output_dir)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"`output_dir` must be a folder, {folder} is a file. Choose another.")
    lock = nullcontext()
    if args.process_index == 0:
        folder.mkdir(parents=True, exist_ok=True)
        message = f"Another training writes into {folder}. Wait for its end, or give another `output_dir`."
        lock = locked(folder / ".training.lock", message)
    with lock:
        yield


def find_start(run: RunArguments, args: ScalarTrainingArguments) -> tuple[Path | None, bool]:
    """
    Find where a run begins: anew, at a checkpoint, or nowhere because it has ended.

    Args:
        run ([`RunArguments`]), args ([`ScalarTrainingArguments`]): of the run.

    Returns:
        The checkpoint to resume from or None, and whether the run has ended already.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        ValueError: the checkpoint cannot be resumed from, or the folder holds a run that would be mixed with this one.
    """
    folder, wanted = Path(args.output_dir), args.resume_from_checkpoint
    if args.process_index == 0:
        clear_unfinished(folder)
        for name in (RECIPE, RECORD):  # as `write_json` calls them until they are whole
            for file in folder.glob(f".{name}.[0-9]*"):
                file.unlink()
    wait_for_all()
    ended = folder / RECIPE
    if wanted is None:
        there = ended if ended.is_file() else last_checkpoint(folder)
        if there is not None:
            raise ValueError(
                f"{folder} holds a run already ({there.name}). Continue it with `--resume_from_checkpoint last`, "
                "give another `output_dir`, or remove the folder."
            )
        return None, False
    if wanted not in _NEWEST:
        checkpoint = Path(wanted)
        check_checkpoint(checkpoint, args.world_size)
        inside = checkpoint.resolve().parent == folder.resolve()
        if not inside and (ended.is_file() or last_checkpoint(folder) is not None):
            raise ValueError(
                f"{folder} holds a run already; continued from {checkpoint}, two would be mixed. Give another "
                "`output_dir`."
            )
        return checkpoint, False
    if ended.is_file() and _is_same(ended, args):
        return None, True
    checkpoint = last_checkpoint(folder)
    if checkpoint is None and (wanted != "auto" or ended.is_file()):
        raise ValueError(
            f"There is no complete checkpoint in {folder} to resume from. Begin anew, without "
            "`--resume_from_checkpoint` or with `--resume_from_checkpoint auto`."
        )
    return checkpoint, False


def _is_same(ended: Path, args: ScalarTrainingArguments) -> bool:
    """Whether the run that ended is this one; if it is to be longer, say, it goes on."""
    before = read_json(ended)
    now = fields_of_run(args) | {name: getattr(args, name) for name in _DURATION}
    return all(str(before.get(name)) == str(value) for name, value in now.items())  # None is "None" there


def forget_end(args: ScalarTrainingArguments) -> None:
    """Remove the sign that a run has ended, before it goes on."""
    if args.process_index == 0:
        (Path(args.output_dir) / RECIPE).unlink(missing_ok=True)


__all__ = ["RECIPE", "find_start", "forget_end", "only_run", "save_recipe"]
