"""Run tasks of several commands, a few at a time; the files they write say which are done."""

import os
import re
import signal
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 120  # for a training to save a checkpoint after Ctrl-C


@dataclass(frozen=True)
class Stage:
    """A command, and the file that it writes last: it is done once this file exists."""

    name: str
    command: tuple[str, ...]
    ends_with: Path


@dataclass(frozen=True)
class Task:
    """Consecutive commands, with their logs in a folder."""

    name: str
    folder: Path
    stages: tuple[Stage, ...]

    @property
    def next(self) -> Stage | None:
        """The next stage; None if all are done."""
        for stage in self.stages:
            if not stage.ends_with.is_file():
                return stage
        return None


def error_line(log: str) -> str:
    """Return the line of a log that explains a failure: its last error, else its last line."""
    last = "nothing was logged"
    last_error = None
    for line in map(str.strip, log.splitlines()):
        if not line:
            continue
        last = line
        # The launcher adds an error of its own about the error of the training.
        is_of_launcher = line.startswith("subprocess.CalledProcessError")
        if not is_of_launcher and re.match(r"(?i:error): |[\w.]+(Error|Exception|Interrupt)\b", line):
            last_error = line
    return re.sub(r"^(?i:error): ", "", last_error or last)


class _Process:
    """One stage of a task and its log, in a process group of its own, so that it can be stopped as a whole."""

    def __init__(self, task: Task):
        self.stage = task.next
        self.started = time.monotonic()
        self.log = task.folder / f"{self.stage.name}.log"
        task.folder.mkdir(parents=True, exist_ok=True)
        # A log goes on over interruptions: what it held before says nothing about this attempt.
        self.log.touch()
        self._before = self.log.stat().st_size
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.stage.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},  # one core per process
                start_new_session=True,
            )

    def failure(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self._before)
            return f"{error_line(log.read().decode(errors='replace'))} ({self.log})"

    def signal(self, number: int) -> bool:
        """Send a signal to the whole group; return whether any of it is left."""
        self.process.poll()
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return False
        return True


def _stop(processes: Sequence[_Process]) -> None:
    """Interrupt processes as Ctrl-C does, wait for their checkpoints, and kill those that do not end."""
    for process in processes:
        process.signal(signal.SIGINT)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    try:
        # The launcher ends at once, the training below it only after its checkpoint: wait for both. The list polls
        # every process, where a generator would stop at the first that is left.
        while time.monotonic() < deadline and any([process.signal(0) for process in processes]):
            time.sleep(_POLL_SECONDS)
    finally:  # also when Ctrl-C comes again
        for process in processes:
            process.signal(signal.SIGKILL)
            process.process.wait()


def execute(tasks: Sequence[Task], jobs: int, description: str = "tasks") -> dict[Task, str]:
    """
    Run the remaining stages of each task, several tasks at a time. A task that fails does not stop the others.

    Args:
        tasks (`Sequence[Task]`): tasks; finished ones are skipped.
        jobs (`int`): number of processes at a time.
        description (`str`): label of the progress bar.

    Returns:
        `dict` of failed tasks to the line of the log that explains the failure.
    """
    waiting = deque([task for task in tasks if task.next is not None])
    running: dict[Task, _Process] = {}
    failures: dict[Task, str] = {}
    with tqdm(total=len(tasks), initial=len(tasks) - len(waiting), desc=description, unit="task") as bar:
        try:
            while waiting or running:
                # Fill free places, then look for processes that ended.
                while waiting and len(running) < jobs:
                    task = waiting.popleft()
                    running[task] = _Process(task)
                    names = [f"{job.stage.name} {task.name}" for task, job in running.items()]
                    bar.set_postfix_str(", ".join(names))
                time.sleep(_POLL_SECONDS)
                for task, job in list(running.items()):
                    code = job.process.poll()
                    if code is None:
                        continue
                    del running[task]
                    if code or task.next == job.stage:  # the file that ends a stage is not there
                        failures[task] = job.failure()
                        bar.write(f"{task.name}: {job.stage.name} failed: {failures[task]}")
                    else:
                        bar.write(f"{task.name}: {job.stage.name} took {time.monotonic() - job.started:.0f} s")
                        if task.next is None:
                            bar.update()
                        else:
                            waiting.appendleft(task)  # its next stage comes before other tasks
        finally:
            _stop(list(running.values()))
    return failures


__all__ = ["Stage", "Task", "error_line", "execute"]
