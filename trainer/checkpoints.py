"""Checkpoints that a resumed run can rely on: a broken one is never taken for the last one."""

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from transformers.trainer import TRAINER_STATE_NAME

logger = logging.getLogger(__name__)


def is_complete(checkpoint: Path) -> bool:
    """Tell whether the Trainer finished writing a checkpoint; it writes the state last."""
    try:
        state = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return state.get("global_step") == _step(checkpoint)


def _step(checkpoint: Path) -> int:
    number = checkpoint.name.removeprefix("checkpoint-")
    return int(number) if number.isdigit() else -1


def last_checkpoint(output_dir: str | Path) -> Path | None:
    """
    Find the newest complete checkpoint of a run; warn of newer, incomplete ones, which are skipped.

    Args:
        output_dir (`str`): of the run.

    Returns:
        `Path`, or None if there is none.
    """
    folders = [path for path in Path(output_dir).glob("checkpoint-*") if path.is_dir() and _step(path) >= 0]
    for folder in sorted(folders, key=_step, reverse=True):
        if is_complete(folder):
            return folder
        logger.warning("%s is incomplete: the run ended while it was being written. It is skipped.", folder)
    return None


@contextmanager
def describe_failed_save(output_dir: str | Path, what: str, partial: Path | None = None) -> Iterator[None]:
    """
    Say where the run can resume if a save fails, and remove the checkpoint that it left unfinished.

    Args:
        output_dir (`str`): of the run.
        what (`str`): what is being saved, for the message.
        partial (`Path`, *optional*): folder of the checkpoint that is being written.

    Raises:
        OSError: the save failed, because the disk is full for example.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors have errors of their own
        if partial is not None and not is_complete(partial):
            shutil.rmtree(partial, ignore_errors=True)
        kept = last_checkpoint(output_dir)
        there = f"The last complete checkpoint is {kept}" if kept else "There is no complete checkpoint"
        raise OSError(f"{what} could not be written: {error}. {there}.") from error


__all__ = ["describe_failed_save", "is_complete", "last_checkpoint"]
